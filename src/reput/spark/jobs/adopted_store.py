"""Open the draft of a store once, as a broker would: checkpoint, and offsets after queues' ends."""

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from reput.clock import ManualClock
from reput.errors import CorruptRecord
from reput.format import names
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.message_store import MessageStore
from reput.store.tables.offsets import ConsumerOffsetTable, DelayOffsetTable


@dataclass(frozen=True, slots=True)
class MovedOffset:
    """An offset that was after the present end of its queue."""

    name: str
    """Consumer group, or ``delay level N``."""
    topic: str
    queue_id: int
    before: int
    after: int


def adopt(
    draft: Path, config: StoreConfig, newest_ms: int, end: int, batch_topics: Container[str]
) -> list[MovedOffset]:
    """Open a store as a broker would, and move offsets to the ends of queues.

    Args:
        draft: The store's folder.
        config: Its settings.
        newest_ms: Store time of its last message, in ms.
        end: Physical offset at which its log ends.
        batch_topics: Topics with batch queues, whose offsets are left as they are.

    Raises:
        CorruptRecord: The log is not as planned, which is a bug.
    """
    # A stopped clock: names made from the time must not differ between runs.
    store = MessageStore.open(str(draft), config, clock=ManualClock(newest_ms))
    try:
        report = store.recovery
        check_log(len(report.holes) + (report.torn is not None), report.end_offset, end)
        moved = _move_offsets(store, draft, newest_ms, batch_topics)
    finally:
        store.close()
    (draft / paths.QUEUE_SUMMARY).unlink(missing_ok=True)  # names times of files
    return moved


def _move_offsets(
    store: MessageStore, draft: Path, now_ms: int, batch_topics: Container[str]
) -> list[MovedOffset]:
    """Move offsets after the end of their queue back: new messages would be skipped."""
    disk, moved = Disk(), []
    consumers = ConsumerOffsetTable.load(str(draft), disk)
    for entry in list(consumers.all()):
        queue = store.queues.find(entry.topic, entry.queue_id)
        end = queue.max_offset if queue is not None else 0
        before = entry.consumer_offset
        if before > end and entry.topic not in batch_topics:
            consumers.put(entry.topic, entry.group, entry.queue_id, end)
            moved.append(MovedOffset(entry.group, entry.topic, entry.queue_id, before, end))
    delays = DelayOffsetTable.load(str(draft), disk)
    for level, offset in sorted(delays.all().items()):
        queue = store.queues.find(names.SCHEDULE_TOPIC, level - 1)
        end = queue.max_offset if queue is not None else 0
        if offset > end:
            delays.put(level, end)
            name = f"delay level {level}"
            moved.append(MovedOffset(name, names.SCHEDULE_TOPIC, level - 1, offset, end))
    for table in (consumers, delays):
        if moved and table.is_dirty:
            table.save(now_ms)
    return moved


def check_log(hole_count: int, found_end: int, end: int) -> None:
    """Check a new log against its plan.

    Raises:
        CorruptRecord: It has holes, or another end.
    """
    if hole_count or found_end != end:
        raise CorruptRecord(
            f"the new log has {hole_count} holes and ends at {found_end}, not {end}",
            physical_offset=found_end,
        )
