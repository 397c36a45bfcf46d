"""Convert: write a plain store with the messages of one in another form.

    scan     a task per log file: its records, and its faults
    plan     the driver: the new place of each record
    copy     a task per log file: its records to their new places, and what they say of others
    tables   the driver: all other files
    derive   queues and index of the new log, by the job ``dispatch``
    adopt    the store is opened once, as a broker would: checkpoint
    publish  the draft folder is renamed to the target

From DLedger, records lose the 48 bytes around them, so that all after the first move towards the
start of the log: physical offsets change, and with them offset ids. Queue offsets, keys, times and
hosts stay. A plain part before DLedger's entries stays as it is. The new log begins where the old
one did, so that what had expired is expired for it, too.
docs/how-to/leave-dledger.md says what happens to entries that are not known to be committed.
"""

import dataclasses
import functools
import itertools
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reput.errors import CorruptRecord, InvalidOption, StoreUnavailable
from reput.format import message as record
from reput.spark.jobs import folder_checks, inferred_settings
from reput.spark.jobs.adopted_store import MovedOffset, adopt, check_log
from reput.spark.jobs.convert import records
from reput.spark.jobs.convert.records import CopiedFile, ForeignStore, NewLog, ScannedFile
from reput.spark.jobs.convert.timer_log import copy_timer_log
from reput.spark.jobs.dispatch import run_dispatch
from reput.spark.jobs.draft_store import DraftStore
from reput.spark.jobs.running import Progress, Runner, runner_on
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import absolute, open_folder
from reput.store.foreign import rocksdb
from reput.store.foreign.chain_check import order_fault
from reput.store.foreign.ledger_reader import LedgerReader, LedgerState
from reput.store.log.commit_log_view import Damage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMS = ("dledger", "rocksdb")
"""Forms of stores that can be converted."""
UNCOMMITTED = ("keep", "drop")
"""What may be done with entries that are not known to be committed."""
DRAFT_SUFFIX = ".convert-draft"
_PARTS = ".convert-parts"
_DERIVED = frozenset(
    {
        paths.COMMIT_LOG,
        paths.CONSUME_QUEUE,
        paths.CONSUME_QUEUE_EXT,
        paths.BATCH_CONSUME_QUEUE,
        paths.INDEX,
        paths.CHECKPOINT,
        paths.ABORT,
        paths.LOCK,
        paths.QUEUE_SUMMARY,
        paths.KNOWN_QUEUES,
        paths.TIMER_LOG,
        "consumequeue_rocksdb",
    }
)
"""Files that the new store derives; all others are copied."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Bytes of the source that are not in the new store."""

    physical_offset: int
    length: int
    file: str
    reason: str
    is_damage: bool
    """Whether messages may be lost: neither the torn tail of a crash nor dropped entries."""


@dataclass(frozen=True)
class Converted:
    """The result of a conversion; ``as_json`` gives plain values."""

    source: str
    form: str
    """Form of the source: ``dledger`` or ``rocksdb``."""
    target: str
    file_bytes: int
    """Value of ``mappedFileSizeCommitLog`` for the broker."""
    queue_file_bytes: int
    """Value of ``mappedFileSizeConsumeQueue`` for the broker."""
    start_offset: int
    """Physical offset at which both logs begin."""
    moved_from: int | None
    """Physical offset from which on records have new ones; None if none has."""
    source_end: int
    """Physical offset at which the source's log ends."""
    end_offset: int
    """Physical offset at which the new log ends."""
    record_count: int
    record_bytes: int
    queue_count: int
    changed_references: int
    """Number of references from records to others that were moved: half messages, originals."""
    lost_references: int
    """Number of references to records that the source no longer has; they are unchanged."""
    ledger: LedgerState | None
    """What the member says about its entries; None if the source is no store with DLedger."""
    uncommitted: str
    """``keep``, ``drop``, or ``none`` if all entries are committed."""
    left_out: tuple[LeftOut, ...]
    """Damage, the torn tail of a crash, dropped entries."""
    moved_offsets: tuple[MovedOffset, ...]
    notes: tuple[str, ...]
    """Remarks for the operator."""

    @property
    def is_damaged(self) -> bool:
        """Whether records are left out as damaged."""
        return any(part.is_damage for part in self.left_out)

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        return dataclasses.asdict(self)


def convert(
    spark: "SparkSession | None",
    source: str,
    target: str,
    *,
    form: str,
    config: StoreConfig | None = None,
    uncommitted: str = "keep",
    skip_damage: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Write a plain store with the messages of a store in another form, at the same queue offsets.

    Args:
        spark: The session; without one tasks run in this process.
        source: The store, whose broker is stopped. It is only read.
        target: Folder of the new store: a local folder that every executor reaches, new or empty.
        form: Form of the source: ``dledger`` or ``rocksdb``.
        config: Settings of the store's broker. By default sizes are inferred from the files, and
            the rest has RocketMQ's defaults.
        uncommitted: What to do with entries after the committed index of the member's checkpoint,
            which is up to 3 s old after a crash: ``keep``, as they may have been acknowledged, or
            ``drop``.
        skip_damage: Leave out damaged records, instead of an error for the first one.
        progress: Called with the completed tasks, and the steps of the driver.

    Raises:
        StoreUnavailable: The source is no store of this form or in use, or the target is not empty.
        CorruptRecord: The source is damaged.
        InvalidOption: An argument is wrong, ``config`` is needed or does not fit the files, or the
            target is inside of the source.
        WriteFailed: The target cannot be written; also ``DiskFull``. Run it again.
        TaskFailed: A task failed as often as Spark retries it.
    """
    for option, value, allowed in (
        ("form", form, FORMS),
        ("uncommitted", uncommitted, UNCOMMITTED),
    ):
        if value not in allowed:
            raise InvalidOption(option, value, " or ".join(allowed))
    runner = runner_on(spark, "convert", progress)
    source, target = absolute(source), folder_checks.writable_folder("target", target)
    return _Conversion(runner, source, Path(target), form, config, uncommitted, skip_damage).run()


class _Conversion:
    """A run, on the driver."""

    def __init__(
        self,
        runner: Runner,
        source: str,
        target: Path,
        form: str,
        config: StoreConfig | None,
        uncommitted: str,
        skip_damage: bool,
    ) -> None:
        self._runner = runner
        self._source = source
        self._form = form
        self._skip_damage = skip_damage
        self._draft = DraftStore(source, target, DRAFT_SUFFIX)
        self._store = ForeignStore(source)
        self._reader = self._store.reader()
        self._ledger = self._reader if isinstance(self._reader, LedgerReader) else None
        if form == "dledger" and self._ledger is None:
            raise StoreUnavailable(
                f"{source} has no log in DLedger: allowed are stores with dledger-nN/data"
            )
        if form == "rocksdb" and not rocksdb.is_used(open_folder(source)):
            raise StoreUnavailable(
                f"{source} has neither queues nor tables in RocksDB: it is a plain store"
            )
        self._config = inferred_settings.infer_settings(self._reader, config)
        self._file_bytes = self._config.mapped_file_size_commit_log
        self._notes: list[str] = []
        self._left_out: list[LeftOut] = []
        self._uncommitted, self._stop = self._decide(uncommitted)
        self._disk = Disk()

    def run(self) -> Converted:
        self._draft.refuse_target()
        first = self._reader.log.min_offset
        self._draft.begin()
        parts = self._draft.path / _PARTS
        self._disk.make_folder(str(parts), is_durable=False)
        log = NewLog(
            source=self._store,
            parts=str(parts),
            commit_log=f"{self._draft.path}/{paths.COMMIT_LOG}",
            first=first,
            file_bytes=self._file_bytes,
            ledger_start=self._ledger.ledger.start if self._ledger is not None else self._stop,
            stop=self._stop,
        )
        files = [file.start for file in self._reader.log.files if file.start < self._stop]
        scanned = self._runner("scan", functools.partial(records.scan, log), files)
        self._judge(scanned, log)
        end = self._plan(log, scanned)
        moved_starts = tuple(start for start in files if start >= log.ledger_start)
        copied: list[CopiedFile] = self._runner(
            "copy", functools.partial(records.copy, log, moved_starts), files
        )
        self._runner.report("tables", 0, 1)
        self._copy_rest(log, moved_starts)
        shutil.rmtree(parts)
        self._derive(end)
        self._keep_expired()
        newest_ms = max((file.newest_ms for file in scanned), default=0)
        self._runner.report("adopt", 0, 1)
        batch_topics = self._reader.batch_queue_ids
        moved = adopt(self._draft.path, self._config, newest_ms, end, batch_topics)
        queue_count = sum(
            len(list(topic.iterdir()))
            for topic in (self._draft.path / paths.CONSUME_QUEUE).glob("*")
        )
        self._runner.report("publish", 0, 1)
        self._draft.publish()
        self._runner.report("publish", 1, 1)
        lost_references = sum(file.lost_references for file in copied)
        if lost_references:
            self._notes.append(
                f"{lost_references} messages name a half message or an original that is not in "
                "the log: they are unchanged"
            )
        return Converted(
            source=self._source,
            form=self._form,
            target=str(self._draft.target),
            file_bytes=self._file_bytes,
            queue_file_bytes=self._config.mapped_file_size_consume_queue,
            start_offset=first,
            moved_from=log.ledger_start if moved_starts else None,
            source_end=self._reader.end_offset,
            end_offset=end,
            record_count=sum(file.count for file in scanned),
            record_bytes=sum(file.size_bytes for file in scanned),
            queue_count=queue_count,
            changed_references=sum(file.changed_references for file in copied),
            lost_references=lost_references,
            ledger=self._ledger.ledger_state if self._ledger is not None else None,
            uncommitted=self._uncommitted,
            left_out=tuple(self._left_out),
            moved_offsets=tuple(moved),
            notes=tuple(self._notes),
        )

    # Judge ------------------------------------------------------------------------------------

    def _decide(self, uncommitted: str) -> tuple[str, int]:
        """Return ``keep``, ``drop`` or ``none`` for uncommitted entries, and the end of the source.

        Raises:
            InvalidOption: They are to be dropped, and it is not known which they are.
        """
        end = self._reader.end_offset
        if self._ledger is None:
            return "none", end
        state = self._ledger.ledger_state
        if uncommitted == "drop" and state.committed_end is None:
            problems = "; ".join(state.problems) or "its committed entry is not in the log"
            raise InvalidOption("uncommitted", "drop", f"keep, since {problems}")
        self._notes += state.problems
        if state.committed_end is None or state.committed_end >= end:
            return "none", end
        span = f"{state.uncommitted_count} entries after committed index {state.committed_index}"
        if uncommitted == "keep":
            self._notes.append(f"{span} are kept: their messages may have been acknowledged")
            return "keep", end
        file = self._reader.log.file_at(state.committed_end)
        self._left_out.append(
            LeftOut(
                state.committed_end,
                end - state.committed_end,
                file.name,
                f"{span}, dropped as requested",
                is_damage=False,
            )
        )
        return "drop", state.committed_end

    def _judge(self, scanned: Sequence[ScannedFile], log: NewLog) -> None:
        """Refuse a damaged source, or report the faults.

        Raises:
            CorruptRecord: It is damaged, and damage is not to be skipped.
        """
        damage = [hole for file in scanned for hole in file.damage]
        damage += [gap for gap in self._reader.log.missing() if gap.physical_offset < self._stop]
        damage = list({hole.physical_offset: hole for hole in damage}.values())
        damage.sort(key=lambda hole: hole.physical_offset)
        if damage and not self._skip_damage:
            more = f"; {len(damage) - 1} more places are damaged" if len(damage) > 1 else ""
            raise CorruptRecord(
                f"{damage[0].reason}{more}. Allowed are logs without damage: convert another "
                "member of the group, or leave damaged records out (--skip-damage)",
                physical_offset=damage[0].physical_offset,
                file=damage[0].file,
                length=damage[0].length,
            )
        plain = [hole for hole in damage if hole.physical_offset < log.ledger_start]
        if plain:
            raise CorruptRecord(
                f"{plain[0].reason}, in a part of the log that is copied as it is: salvage cannot "
                "read this store, so its records must be repaired from a backup",
                physical_offset=plain[0].physical_offset,
                file=plain[0].file,
                length=plain[0].length,
            )
        self._left_out += [_left_out(hole, is_damage=True) for hole in damage]
        tail = self._reader.tail
        rests = (rest for rest in (tail.torn, tail.stale) if rest is not None)
        self._left_out += [_left_out(rest, is_damage=False) for rest in rests]
        for file, following in itertools.pairwise(scanned):
            before, entry = (
                (file.last_index, file.last_term),
                (following.first_index, following.first_term),
            )
            is_next = entry[0] == before[0] + 1 and entry[1] >= before[1]
            if file.first_index >= 0 and following.first_index >= 0 and not is_next:
                place = f"{paths.offset_name(following.start)}, its first entry"
                self._notes.append(order_fault(place, before, entry))
        self._notes += (fault for file in scanned for fault in file.faults)

    # Plan and copy ----------------------------------------------------------------------------

    def _plan(self, log: NewLog, scanned: Sequence[ScannedFile]) -> int:
        """Give each record its new place, create the files, and return the end of the new log."""
        file_bytes, room = self._file_bytes, self._file_bytes - record.BLANK.size
        place = log.ledger_start
        blanks: list[int] = []
        for file in scanned:
            if file.start < log.ledger_start:
                continue
            table = np.array(records.load(log.part(file.start)))
            row = 0
            while row < len(table):
                ends = np.cumsum(table["size"][row:], dtype=np.int64)
                left = room - place % file_bytes
                count = int(np.searchsorted(ends, left, "right"))
                new = table["new"][row : row + count]
                new[:] = place + ends[:count] - table["size"][row : row + count]
                place += int(ends[count - 1]) if count else 0
                row += count
                if row < len(table):
                    if place % file_bytes == 0 and not count:
                        raise InvalidOption(
                            "mappedFileSizeCommitLog", file_bytes, "the size of the source's files"
                        )
                    blanks.append(place)
                    place = (place // file_bytes + 1) * file_bytes
            records.save(log.part(file.start), table)
        end = place if self._ledger is not None else self._stop
        has_files = bool(self._reader.log.files)
        self._draft.create_log_files(log.first, max(end, log.first + has_files), file_bytes)
        for blank in blanks:
            path = self._draft.log_file(blank // file_bytes * file_bytes)
            descriptor = self._disk.open(path)
            try:
                data = record.pack_blank(file_bytes - blank % file_bytes)
                self._disk.write(descriptor, path, blank % file_bytes, data)
            finally:
                os.close(descriptor)
        return end

    # Everything else --------------------------------------------------------------------------

    def _copy_rest(self, log: NewLog, moved_starts: tuple[int, ...]) -> None:
        """Copy the files that are not derived."""
        folder = self._reader.folder
        for entry in folder.entries(""):
            is_of_ledger = self._ledger is not None and entry.name == self._ledger.ledger.member
            if entry.name not in _DERIVED and not is_of_ledger:
                self._draft.copy_tree(folder, entry.name, is_folder=entry.is_folder)
        places = records.Places(log, moved_starts)
        for entry in folder.entries(paths.TIMER_LOG):
            path = f"{paths.TIMER_LOG}/{entry.name}"
            self._notes += copy_timer_log(folder, path, self._draft, places)

    def _derive(self, end: int) -> None:
        """Derive queues and index of the new log.

        The dispatch makes neither extension units nor batch queues: ``adopt`` derives all queues of
        such stores.

        Raises:
            CorruptRecord: The new log is not as planned, which is a bug.
        """
        is_plain = not (self._config.enable_consume_queue_ext or self._reader.batch_queue_ids)
        if is_plain and self._reader.log.files:
            path = str(self._draft.path)
            made = run_dispatch(self._runner, path, config=self._config, in_place=True)
            check_log(len(made.holes), made.log_end, end)

    def _keep_expired(self) -> None:
        """Keep queues whose messages have all expired: the next one continues their offsets."""
        for family, by_topic in (
            (paths.CONSUME_QUEUE, self._reader.queue_ids),
            (paths.BATCH_CONSUME_QUEUE, self._reader.batch_queue_ids),
        ):
            for topic, queue_ids in by_topic.items():
                for queue_id in queue_ids:
                    path = paths.queue_folder(topic, queue_id, family)
                    is_derived = not self._config.enable_consume_queue_ext
                    if is_derived and not (self._draft.path / path).exists():
                        self._draft.copy_tree(self._reader.folder, path, is_folder=True)


def _left_out(damage: Damage, *, is_damage: bool) -> LeftOut:
    place = damage.physical_offset, damage.length
    return LeftOut(*place, damage.file, damage.reason, is_damage)
