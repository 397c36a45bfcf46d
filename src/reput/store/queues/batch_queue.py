"""Batch queues of 5.x (queue.type=BatchCQ): one unit per batch, which is one record of the log.

The files are mapped, like those of the log: there are few of them. The queue offset of a unit does
not follow from its position, so lookups use binary search; queue offset, physical offset and store
time of units are ascending. Layout: docs/formats/consume-queue.md. Source: rocketmq 5.5.0
``BatchConsumeQueue``.
"""

import bisect
import itertools
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np

from reput.format import cq_unit, java
from reput.format.cq_unit import BatchUnit
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.hot_state import HotState, QueueEnds
from reput.store.kernels.control_block import QueueRow
from reput.store.log.mapped_file_queue import MappedFileQueue
from reput.store.queues.consume_queue_view import BATCH_UNIT_TYPE, UnitArray

SIZE_KEY = "mapperFileSizeBatchConsumeQueue"
_NO_HOLDERS_MS = 0  # files of units are held for syncs only


class BatchQueue(QueueEnds):
    """The units of one batch queue. Kernels assign queue offsets from its row.

    Args:
        topic: Topic of the queue.
        queue_id: Id of the queue.
        files: Files of the units.
        address: Address of the row.
        row: Row with the queue's ends.
    """

    def __init__(
        self, topic: str, queue_id: int, files: MappedFileQueue, address: int, row: QueueRow
    ) -> None:
        super().__init__(address, row)
        self.topic = topic
        self.queue_id = queue_id
        self.files = files
        self.is_damaged = False
        """True if units are missing: the queue must be rebuilt from the log."""
        self._end = 0
        """Number of the next unit; the first unit ever has number 0."""

    # Ends -------------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """Queue offset of the first unit in the files, even if its record has left the log."""
        return self._at(self._first).queue_offset if self._first < self._end else self.max_offset

    @property
    def _first(self) -> int:
        """Number of the first unit in a file."""
        return min(self.files.min_offset // cq_unit.BATCH_SIZE, self._end)

    # Writing ----------------------------------------------------------------------------------

    def load(self, log_min: int, *, is_clean: bool) -> None:
        """Find the files and the last unit.

        Args:
            log_min: Minimum physical offset of the log.
            is_clean: True if no crash can have lost units in any file.

        Raises:
            StoreUnavailable: A file has another size than configured, or cannot be read.
            WriteFailed: An empty file, left by a crash, cannot be deleted.
        """
        self.files.load()
        starts = [file.start for file in self.files.files]
        size = self.files.file_size
        self.is_damaged = any(b - a != size for a, b in itertools.pairwise(starts))
        if not starts or self.is_damaged:
            return
        # The next file is created when one is full: the last one may be empty.
        for file in self.files.files[-2 if is_clean else 0 :]:
            units = np.frombuffer(file.read(0, size), BATCH_UNIT_TYPE)
            count = _count_units(units)
            self._end = file.start // cq_unit.BATCH_SIZE + count
            if count < len(units):
                break
        self._set_ends(self._at(self._end - 1) if self._end > self._first else None)
        self.correct_min_offset(log_min)

    def _set_ends(self, last: BatchUnit | None) -> None:
        row = self.row
        end = last.queue_offset + last.message_count if last is not None else 0
        row.max_offset = row.next_offset = end
        row.notified_offset = end
        row.end_physical = last.physical_offset + last.size if last is not None else 0
        row.min_offset = min(row.min_offset, end)

    def put(self, unit: BatchUnit) -> bool:
        """Append the unit of a batch; return False if it was appended before.

        Raises:
            DiskFull: There is no space; nothing has changed.
            WriteFailed: A file cannot be created.
        """
        if unit.physical_offset < self.end_physical_offset:
            return False
        last = self.files.last
        if last is None or last.written == last.size:
            last = self.files.roll()
            self._end = last.start // cq_unit.BATCH_SIZE
        last.append(cq_unit.pack_batch(unit))
        is_first = self._first == self._end
        self._end += 1
        row = self.row
        if is_first:
            row.min_offset = unit.queue_offset
        end = unit.queue_offset + unit.message_count
        row.max_offset = end
        row.next_offset = max(row.next_offset, end)
        row.end_physical = unit.physical_offset + unit.size
        return True

    def cut(self, physical_offset: int) -> int:
        """Remove the units that point at ``physical_offset`` or after it; return their number.

        The rest of the file becomes zeros, durably, and the files can be written to.

        Raises:
            WriteFailed: The disk failed; also ``DiskFull``.
        """
        end = self._search(lambda unit: unit.physical_offset >= physical_offset)
        gone, self._end = self._end - end, end
        self.files.truncate(end * cq_unit.BATCH_SIZE, _NO_HOLDERS_MS)
        self._set_ends(self._at(end - 1) if end > self._first else None)
        return gone

    def reset(self) -> None:
        """Remove all units; they will be appended again. Raises ``WriteFailed``."""
        self.files.truncate(0, _NO_HOLDERS_MS)
        self._end = self._first
        self._set_ends(None)

    def correct_min_offset(self, log_min: int) -> None:
        """Set the minimum offset: the first batch whose record is in the log, else the maximum."""
        number = self._search(lambda unit: unit.physical_offset >= log_min)
        low = self._at(number).queue_offset if number < self._end else self.max_offset
        self.row.min_offset = low

    @property
    def has_expired_files(self) -> bool:
        """True if the first file of several has only units before the minimum offset."""
        if len(self.files.files) < 2:
            return False
        second = self._at(self.files.files[1].start // cq_unit.BATCH_SIZE)
        return second.is_written and second.queue_offset <= self.min_offset

    def delete_before(self, log_min: int) -> int:
        """Delete the files whose batches have left the log, but not the last; return their number.

        Raises:
            WriteFailed: A file cannot be deleted; it can be tried again.
        """
        self.correct_min_offset(log_min)
        deleted = 0
        while self.has_expired_files:
            self.files.delete_first(_NO_HOLDERS_MS)
            deleted += 1
        return deleted

    # Reading ----------------------------------------------------------------------------------

    def _at(self, number: int) -> BatchUnit:
        position = number * cq_unit.BATCH_SIZE
        file = self.files.file_at(position)
        assert file is not None, f"{self.topic}/{self.queue_id} has no unit {number}"
        return cq_unit.unpack_batch(file.read(position - file.start, cq_unit.BATCH_SIZE))

    def _search(self, is_after: Callable[[BatchUnit], bool]) -> int:
        """Return the number of the first unit for which an ascending condition is true."""
        numbers = range(self._first, self._end)
        return self._first + bisect.bisect_left(
            numbers, True, key=lambda number: is_after(self._at(number))
        )

    def units_from(self, queue_offset: int) -> Iterator[BatchUnit]:
        """Yield the unit of the batch that contains a queue offset, and all later units."""
        later = self._search(lambda unit: unit.queue_offset > queue_offset)
        for number in range(max(later - 1, self._first), self._end):
            yield self._at(number)

    def unit(self, queue_offset: int) -> BatchUnit | None:
        """Return the unit of the batch that contains a queue offset; None if there is none."""
        unit = next(self.units_from(queue_offset), None)
        if unit is None:
            return None
        end = unit.queue_offset + unit.message_count
        return unit if unit.queue_offset <= queue_offset < end else None

    def offset_by_time(self, timestamp_ms: int, *, is_upper: bool) -> int:
        """Return the first queue offset of the batch for a store time.

        Args:
            timestamp_ms: The time.
            is_upper: If true, take the last batch stored at or before the time, ``min_offset`` if
                there is none; else the first one at or after it, ``max_offset`` if there is none.
        """
        alive = self._search(lambda unit: unit.queue_offset >= self.min_offset)
        if is_upper:
            number = self._search(lambda unit: unit.store_timestamp > timestamp_ms) - 1
            return (
                self._at(max(number, alive)).queue_offset if alive < self._end else self.min_offset
            )
        number = max(self._search(lambda unit: unit.store_timestamp >= timestamp_ms), alive)
        return self._at(number).queue_offset if number < self._end else self.max_offset


Family = dict[tuple[str, int], BatchQueue]


class BatchQueues:
    """The batch queues of a store.

    Args:
        root: Folder of the store.
        file_size: Size of a file of units in bytes.
        hot_state: State shared with kernels.
        disk: Writes the files.
    """

    def __init__(self, root: str, file_size: int, hot_state: HotState, disk: Disk) -> None:
        self.topics: set[str] = set()
        """Topics that have or are configured to have batch queues."""
        self._root = root
        self._file_size = file_size
        self._hot = hot_state
        self._disk = disk
        self._queues: Family = {}
        self.before_making: Callable[[str], None] = lambda topic: None
        """Called with the topic before a queue is created."""

    def __iter__(self) -> Iterator[BatchQueue]:
        return iter(list(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def load(self, log_min: int, *, is_clean: bool) -> None:
        """Find the queues. Arguments and errors are those of ``BatchQueue.load``."""
        family = f"{self._root}/{paths.BATCH_CONSUME_QUEUE}"
        for topic in _names_in(family):
            for name in _names_in(f"{family}/{topic}"):
                queue_id = paths.parse_queue_id(name)
                if queue_id is not None:
                    self.make(topic, queue_id).load(log_min, is_clean=is_clean)

    def find(self, topic: str, queue_id: int) -> BatchQueue | None:
        """Return a queue; None if there is none."""
        return self._queues.get((topic, queue_id))

    def make(self, topic: str, queue_id: int) -> BatchQueue:
        """Return a queue, created if it does not exist."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            self.before_making(topic)
            self.topics.add(topic)
            name = java.encode_utf8(topic)
            self._hot.keep_slow(name, is_slow=True)
            address, row = self._hot.add_queue(name, queue_id)
            files = MappedFileQueue(
                [self._folder(topic, queue_id)], self._file_size, self._disk, size_key=SIZE_KEY
            )
            queue = self._queues[topic, queue_id] = BatchQueue(topic, queue_id, files, address, row)
        return queue

    def _folder(self, topic: str, queue_id: int) -> str:
        return f"{self._root}/{paths.queue_folder(topic, queue_id, paths.BATCH_CONSUME_QUEUE)}"

    def of_topic(self, topic: str) -> list[BatchQueue]:
        """Return the queues of a topic."""
        return [queue for queue in self._queues.values() if queue.topic == topic]

    def drop(self, queues: Collection[BatchQueue]) -> None:
        """Delete queues with their files, permanently.

        Raises:
            WriteFailed: The disk failed, and some files may be left. Call it again.
        """
        for queue in queues:
            folder = Path(self._folder(queue.topic, queue.queue_id))
            queue.reset()
            queue.files.close()
            if folder.exists():
                for path in folder.iterdir():
                    self._disk.unlink(str(path))
                self._disk.sync_folder(str(folder))
                folder.rmdir()
            del self._queues[queue.topic, queue.queue_id]
            name = java.encode_utf8(queue.topic)
            self._hot.drop_queue(name, queue.queue_id, queue.row)
            if not self.of_topic(queue.topic):
                if folder.parent.exists():
                    folder.parent.rmdir()
                self._hot.keep_slow(name, is_slow=False)
                self._hot.drop_topic(name)

    def detach(self, queues: Collection[BatchQueue]) -> list[str]:
        """Remove queues from the tables, as ``ConsumeQueues.detach``."""
        topics = {queue.topic for queue in queues}
        for queue in queues:
            del self._queues[queue.topic, queue.queue_id]
        left = {topic for topic, _ in self._queues}
        for topic in topics - left:
            name = java.encode_utf8(topic)
            self._hot.keep_slow(name, is_slow=False)
            self._hot.drop_topic(name)
        for queue in queues:
            if queue.topic in left:
                self._hot.hide_queue(java.encode_utf8(queue.topic), queue.queue_id)
        families = f"{self._root}/{paths.BATCH_CONSUME_QUEUE}"
        folders = [f"{families}/{topic}" for topic in sorted(topics - left)]
        folders += [
            self._folder(queue.topic, queue.queue_id) for queue in queues if queue.topic in left
        ]
        return folders

    def release(self, queue: BatchQueue) -> None:
        """Free the memory of a detached queue."""
        queue.files.close()
        queue.row.marks = 0
        self._hot.free_queue(queue.row)

    def take_news(self) -> Iterator[tuple[BatchQueue, int]]:
        """Yield the queues with new units since the last call, and their previous ends."""
        for queue in self:
            first, end = queue.row.notified_offset, queue.max_offset
            if first != end:
                queue.row.notified_offset = end
                yield queue, first

    def sync(self) -> None:
        """Make units durable; may run in a worker thread while the writer writes.

        Raises:
            WriteFailed: The disk failed.
        """
        for queue in self:
            queue.files.flush()

    def close(self) -> None:
        """Close all files; nothing is written."""
        for queue in self:
            queue.files.close()


def _count_units(units: UnitArray) -> int:
    """Count units up to the first that is invalid, or decreases."""
    offsets, queue_offsets = units["physical_offset"], units["queue_offset"]
    is_bad = (units["size"] <= 0) | (offsets < 0) | (units["message_count"] <= 0)
    is_bad[1:] |= offsets[1:] < (offsets + units["size"])[:-1]
    is_bad[1:] |= queue_offsets[1:] < (queue_offsets + units["message_count"])[:-1]
    bad = np.flatnonzero(is_bad)
    return int(bad[0]) if len(bad) else len(units)


def _names_in(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names
    except (FileNotFoundError, NotADirectoryError):
        return []
