"""Checkpoint and tables against log and queues."""

from collections.abc import Callable

from reput.errors import CorruptRecord
from reput.format import fastjson, names
from reput.store.files import paths
from reput.store.reader import Condition, StoreReader
from reput.store.tables import config_tables
from reput.store.verify.findings import FindingKind, Ledger, Severity
from reput.store.verify.log_check import LogCheck


def check_checkpoint(reader: StoreReader, ledger: Ledger, log: LogCheck) -> None:
    """Compare the checkpoint with the end of the log. Call after the scan."""
    path = paths.CHECKPOINT
    entry = reader.folder.entry(path)
    state = reader.state
    if entry is not None:
        ledger.add_file(path, entry.size)
    if state.checkpoint_problem is not None:
        ledger.add(Severity.WARNING, FindingKind.CHECKPOINT, path, state.checkpoint_problem.reason)
    elif state.checkpoint is None and reader.log.files:
        text = "missing or empty: after a crash 4.x starts over from the first log file"
        ledger.add(Severity.NOTE, FindingKind.CHECKPOINT, path, text)
    if state.checkpoint is None:
        return
    ahead_ms = state.checkpoint.physical_timestamp - log.newest_ms
    queue_end = state.checkpoint.queue_physical_offset
    is_clean = state.condition is Condition.CLEAN
    severity = Severity.DAMAGE if is_clean and not log.ends_in_damage else Severity.WARNING
    if ahead_ms > 0:
        text = f"messages {ahead_ms} ms newer than the last one were flushed: the log lost its end"
        ledger.add(severity, FindingKind.CHECKPOINT, path, text)
    if queue_end > log.end:
        text = f"the queues reached {queue_end}, the log ends at {log.end}: it lost its end"
        ledger.add(severity, FindingKind.CHECKPOINT, path, text)


def check_tables(reader: StoreReader, ledger: Ledger) -> None:
    """Check that each table can be read, and its queues and offsets."""
    checks: dict[str, Callable[[StoreReader, Ledger], object]] = {
        paths.TOPICS: _check_topics,
        paths.CONSUMER_OFFSETS: _check_consumer_offsets,
        paths.DELAY_OFFSETS: _check_delay_offsets,
        paths.SUBSCRIPTION_GROUPS: lambda reader, _: reader.subscription_groups(),
        paths.CONSUMER_FILTERS: lambda reader, _: config_tables.load(
            reader.folder, paths.CONSUMER_FILTERS
        ),
    }
    for path, check in checks.items():
        entry = reader.folder.entry(path)
        if entry is not None:
            ledger.add_file(path, entry.size)
        try:
            check(reader, ledger)
        except CorruptRecord as error:
            ledger.add(Severity.DAMAGE, FindingKind.TABLE, path, error.reason)
            continue
        has_backup = reader.folder.entry(path + paths.BACKUP_SUFFIX) is not None
        if has_backup and not _is_table(reader, path):
            text = "missing, empty or no table: its .bak is used instead"
            ledger.add(Severity.WARNING, FindingKind.TABLE, path, text)


def _is_table(reader: StoreReader, path: str) -> bool:
    if reader.folder.entry(path) is None:
        return False
    try:
        return isinstance(fastjson.parse(bytes(reader.folder.read(path)).decode()), dict)
    except (ValueError, RecursionError):
        return False


def _check_topics(reader: StoreReader, ledger: Ledger) -> None:
    """Compare the topic table with the existing queues."""
    topics = reader.topics()
    with_queues = {*reader.queue_ids, *reader.batch_queue_ids}
    for topic in sorted(with_queues - set(topics)):
        if topics and not topic.startswith(names.LMQ_PREFIX) and not names.is_system_topic(topic):
            text = f"does not name topic {topic}, which has queue files"
            ledger.add(Severity.NOTE, FindingKind.TOPIC, paths.TOPICS, text)
    unused = [
        topic
        for topic in topics
        if topic not in with_queues
        and not names.is_system_topic(topic)
        and not names.is_retry_topic(topic)
    ]
    if unused:
        text = f"topics without a message so far: {', '.join(unused)}"
        ledger.add(Severity.NOTE, FindingKind.TOPIC, paths.TOPICS, text, count=len(unused))


def _check_consumer_offsets(reader: StoreReader, ledger: Ledger) -> None:
    """Report groups with an offset after the end of the queue.

    Java moves a group that pulls there to 0 if the queue is empty, else to the end of the queue. A
    group that pulls only after more messages have arrived skips them up to its offset (seen with
    4.9.7 and 5.5.0). A queue without files is a note, as its topic may have been deleted.
    """
    path = paths.CONSUMER_OFFSETS
    for entry in reader.consumer_offsets():
        consumer_offset = entry.consumer_offset
        end = queue_end(reader, entry.topic, entry.queue_id)
        if consumer_offset > (end or 0):
            place = f"{consumer_offset} of {entry.topic}/{entry.queue_id}"
            text = f"group {entry.group} is at {place}, which ends at {end or 0}"
            is_note = end is None
            severity = Severity.NOTE if is_note else _unless_crashed(reader, Severity.WARNING)
            kind = FindingKind.CONSUMER_OFFSET
            ledger.add(severity, kind, path, text, queue_offset=consumer_offset)


def _check_delay_offsets(reader: StoreReader, ledger: Ledger) -> None:
    for level, done, end in reader.delay_progress():
        if done > end:
            text = f"delay level {level} has delivered up to {done}, its queue ends at {end}"
            severity = _unless_crashed(reader, Severity.WARNING)
            path = paths.DELAY_OFFSETS
            ledger.add(severity, FindingKind.CONSUMER_OFFSET, path, text, queue_offset=done)


def queue_end(reader: StoreReader, topic: str, queue_id: int) -> int | None:
    """Return the queue offset after the last message of a queue; None without files."""
    if queue_id in reader.queue_ids.get(topic, ()):
        return reader.queue(topic, queue_id).max_offset
    if queue_id in reader.batch_queue_ids.get(topic, ()):
        return reader.batch_queue(topic, queue_id).max_offset
    return None


def _unless_crashed(reader: StoreReader, severity: Severity) -> Severity:
    """Return a severity, or a note after a crash, when queues may be incomplete."""
    return severity if reader.state.condition is Condition.CLEAN else Severity.NOTE
