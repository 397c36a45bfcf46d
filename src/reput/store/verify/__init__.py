"""Verify a store: a verdict for every file and every hole, and the evidence.

    commit log      every record is read and its checksums compared; other bytes are holes
    consume queues  each queued record has its unit, each unit points at its record
    index           each key of each message has an entry, each entry points at a message with its
    key tables          checkpoint and tables can be read, and agree with the above

The log is read once, a file per thread. The content of a window is compared at once: its keys with
the index entries that point into it, its queued records (some millions at a time) with the units at
their queue offsets. A unit that a record claims is marked, which takes a byte of memory per unit.
Unclaimed units and index entries are judged after that.

The effects of a crash are no damage: a torn last record, records that are not in their queue yet.
Known leftovers of brokers are notes or warnings: index entries of records that were cut off, parts
of the log that no index file covers, messages of a deleted topic.

The functions that judge records, units, index files and entries are shared with the Spark job
``audit`` and need numpy only.
"""

from reput.errors import CorruptRecord
from reput.store.files import paths
from reput.store.reader import Condition, StoreReader, process_name
from reput.store.verify import table_check
from reput.store.verify.findings import (
    FileVerdict,
    Finding,
    FindingKind,
    HoleVerdict,
    Ledger,
    Progress,
    Severity,
    VerifyReport,
)
from reput.store.verify.index_check import IndexChecks
from reput.store.verify.log_check import LogCheck
from reput.store.verify.queue_check import ROWS_MAX, QueueChecks

__all__ = [
    "ROWS_MAX",
    "FileVerdict",
    "Finding",
    "FindingKind",
    "HoleVerdict",
    "Progress",
    "Severity",
    "VerifyReport",
    "verify",
]


def _silent(part: str, done: int, total: int) -> None:
    pass


def verify(reader: StoreReader, *, progress: Progress = _silent) -> VerifyReport:
    """Compare all parts of a store with each other. Damage is part of the report, not an error.

    Args:
        reader: The store.
        progress: Called with the progress, by several threads, one at a time.

    Raises:
        NotInStore: A file was deleted meanwhile.
        StoreUnavailable: A file cannot be read.
    """
    ledger = Ledger()
    _check_condition(reader, ledger)
    try:
        log = LogCheck(reader, ledger)
    except CorruptRecord as error:
        path = error.file or paths.COMMIT_LOG
        text = f"{error.reason}; nothing else can be checked"
        ledger.add(Severity.DAMAGE, FindingKind.LOG_FILES_OVERLAP, path, text)
        return ledger.report(reader)
    queues = QueueChecks(reader, ledger)
    index = IndexChecks(reader, ledger)
    index.check_files(progress)
    log.walk(queues, index, progress)
    queues.check(log, progress)
    index.check(log)
    table_check.check_checkpoint(reader, ledger, log)
    table_check.check_tables(reader, ledger)
    return ledger.report(
        reader,
        log_start=log.start,
        log_end=log.end,
        record_count=log.record_count,
        queued_count=queues.queued_count,
        unit_count=queues.unit_count,
        entry_count=index.entry_count,
    )


def _check_condition(reader: StoreReader, ledger: Ledger) -> None:
    state = reader.state
    for path in (paths.ABORT, paths.LOCK):
        entry = reader.folder.entry(path)
        if entry is not None:
            ledger.add_file(path, entry.size)
    if state.condition is Condition.RUNNING:
        text = f"{process_name(state.lock_holder or 0)} is running on the store"
        ledger.add(Severity.NOTE, FindingKind.RUNNING, paths.LOCK, text)
    elif state.has_abort:
        text = "the broker was not stopped, or the store was copied while it ran"
        ledger.add(Severity.NOTE, FindingKind.CRASHED, paths.ABORT, text)
