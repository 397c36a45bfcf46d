"""One consume queue for writing: its files, and its tail in memory.

    files      | pre-blanks | units ......................... written | zeros
    tail              (memory)      | units ................................. | room
                                    tail_offset       written_offset     max_offset

Kernels append new units to the tail. ``write_out`` writes it to the files, and so does
``make_room`` when the tail is full. The position of a unit follows from its queue offset, so
writing a unit twice writes the same bytes.
"""

import contextlib
import os
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, WriteFailed
from reput.format import cq_unit, names
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.hot_state import QueueEnds
from reput.store.kernels import hot
from reput.store.kernels.control_block import READ_UNITS_MAX, QueueRow
from reput.store.queues.consume_queue_ext import ConsumeQueueExt
from reput.store.queues.consume_queue_view import UNIT_TYPE, UnitArray

_TAIL_UNITS_INITIAL = 32
_TAIL_UNITS_MAX = 1024
_TAIL_GROWTH = 4
_TAIL_BYTES_MAX = 64 * 1024 * 1024
"""Limit of the memory of all tails; above it, new tails stay small."""
_AHEAD_UNITS = 2048
"""Number of units that one read gets for a reader that reads in order."""


class QueueEnd(NamedTuple):
    """The end of a queue at a clean stop."""

    max_offset: int
    min_offset: int
    physical_offset: int
    """Physical offset of the last unit; ``size`` and ``tags_code`` are of this unit too."""
    size: int
    tags_code: int
    modified_ns: int
    """Modification time of the last file, in ns."""

    @property
    def last_unit(self) -> cq_unit.Unit:
        """The last unit."""
        return cq_unit.Unit(self.physical_offset, self.size, self.tags_code)


class _Family(Protocol):
    """The family of a queue: all queues of a store, which share descriptors and a read buffer."""

    root: str
    file_size: int
    tail_bytes: int

    def mark(self, queue: "ConsumeQueue") -> None: ...
    def path_of(self, queue: "ConsumeQueue", start: int) -> str: ...
    def load_units(self, queue: "ConsumeQueue", start: int) -> UnitArray: ...
    def modified_ns(self, queue: "ConsumeQueue", start: int) -> int: ...
    def create(self, queue: "ConsumeQueue", path: str) -> None: ...
    def forget_made_files(self, queue: "ConsumeQueue") -> None: ...
    def write(
        self, queue: "ConsumeQueue", start: int, position: int, data: memoryview | bytes
    ) -> None: ...
    def write_to(
        self,
        queue: "ConsumeQueue",
        start: int,
        path: str,
        position: int,
        data: memoryview | bytes,
    ) -> None: ...
    def note_written(self, file_paths: list[str]) -> None: ...
    def read(self, queue: "ConsumeQueue", queue_offset: int, count: int) -> tuple[int, int]: ...
    def append_to_read(self, count: int, units: npt.NDArray[np.uint8]) -> None: ...
    def note_ahead(self, queue: "ConsumeQueue") -> None: ...
    def delete(self, queue: "ConsumeQueue", start: int) -> None: ...
    def sync_names(self, queue: "ConsumeQueue") -> None: ...


class ConsumeQueue(QueueEnds):
    """The units of one queue, from ``min_offset`` to ``max_offset``."""

    __slots__ = (
        *("_ahead", "_family", "_tail", "extension", "files"),
        *("has_rest", "is_damaged", "known_end", "queue_id", "topic"),
    )

    def __init__(
        self, family: _Family, topic: str, queue_id: int, address: int, row: QueueRow
    ) -> None:
        super().__init__(address, row)
        self._family = family
        self._tail: npt.NDArray[np.uint8] | None = None
        self._ahead: npt.NDArray[np.uint8] | None = None
        self.topic = topic
        self.queue_id = queue_id
        self.files: list[int] = []
        """Start of each file, in bytes from unit 0; ascending."""
        self.is_damaged = False
        """True if units are missing in the middle: the queue must be rebuilt from the log."""
        self.has_rest = False
        """True if there are bytes other than zeros after the last unit."""
        self.extension: ConsumeQueueExt | None = None
        """The extension that the units' addresses refer to; None without one."""
        self.known_end: QueueEnd | None = None
        """The end in the files at the opening; None if it is unknown, or units were removed."""

    @property
    def folder(self) -> str:
        """Path of the folder with its files."""
        return f"{self._family.root}/{paths.queue_folder(self.topic, self.queue_id)}"

    @property
    def is_light(self) -> bool:
        """True for a light queue (LMQ): its messages belong to another topic and queue as well."""
        return self.topic.startswith(names.LMQ_PREFIX)

    @property
    def is_fresh(self) -> bool:
        """True if the queue has never had a unit."""
        return not self.files and self.max_offset == 0 and self.next_offset == 0

    # Writing ----------------------------------------------------------------------------------

    def start_at(self, queue_offset: int) -> None:
        """Set the first offset of a fresh queue: the log has lost its first messages."""
        assert self.is_fresh
        self._set_end(queue_offset)
        self.row.min_offset = queue_offset

    def make_room(self) -> None:
        """Ensure that the tail has room for one more unit.

        Raises:
            DiskFull: There was no space to write the tail to a file; the tail is unchanged.
        """
        row = self.row
        if self._tail is None:
            self._new_tail(_TAIL_UNITS_INITIAL)
            return
        limit = row.tail_limit
        if row.max_offset - row.tail_offset < limit:
            return
        self.write_out()
        if limit < _TAIL_UNITS_MAX and self._family.tail_bytes < _TAIL_BYTES_MAX:
            self._new_tail(limit * _TAIL_GROWTH)
        else:
            row.tail_offset = row.max_offset

    def _new_tail(self, unit_count: int) -> None:
        self.drop_tail()
        self._tail = np.zeros(unit_count * cq_unit.SIZE, np.uint8)
        self._family.tail_bytes += len(self._tail)
        row = self.row
        row.tail = hot.address_of(self._tail)
        row.tail_limit = unit_count
        row.tail_offset = row.max_offset

    def drop_tail(self) -> None:
        """Drop the tail with the units in it."""
        if self._tail is not None:
            self._family.tail_bytes -= len(self._tail)
        self._tail = None
        self.row.tail = self.row.tail_limit = 0
        self.row.tail_offset = self.row.max_offset

    def append(self, unit: cq_unit.Unit) -> None:
        """Append a unit. Raises ``DiskFull`` as ``make_room`` does."""
        self.make_room()
        assert self._tail is not None
        row = self.row
        position = (row.max_offset - row.tail_offset) * cq_unit.SIZE
        self._tail[position : position + cq_unit.SIZE] = np.frombuffer(cq_unit.pack(unit), np.uint8)
        row.max_offset += 1
        row.next_offset = max(row.next_offset, row.max_offset)
        row.end_physical = unit.physical_offset + unit.size
        self._family.mark(self)

    def write_out(self) -> None:
        """Write the tail's new units to files. Raises ``DiskFull``; units written before stay."""
        row = self.row
        if self._tail is None:
            return
        family = self._family
        if self.extension is not None:
            family.note_written(self.extension.write_out())
        end = row.max_offset
        while (first := row.written_offset) < end:
            file, file_position = divmod(first * cq_unit.SIZE, family.file_size)
            count = min(end - first, (family.file_size - file_position) // cq_unit.SIZE)
            tail_position = (first - row.tail_offset) * cq_unit.SIZE
            data = self._tail[tail_position : tail_position + count * cq_unit.SIZE].data
            self._write(file * family.file_size, file_position, data)
            row.written_offset = first + count

    def write_new_file(self, path: str, disk: Disk) -> int:
        """Write the next units to a file that they begin; return the size. Raises ``DiskFull``.

        May run in any thread, while the writer waits.
        """
        row, family = self.row, self._family
        first = row.written_offset
        count = min(row.max_offset - first, family.file_size // cq_unit.SIZE)
        position = (first - row.tail_offset) * cq_unit.SIZE
        assert self._tail is not None
        disk.make_folder(path[: path.rindex("/")], is_durable=False)
        descriptor = disk.create(path, family.file_size, is_durable=False)
        try:
            self.files.append(first * cq_unit.SIZE)
            data = self._tail[position : position + count * cq_unit.SIZE].data
            disk.write(descriptor, path, 0, data)
        finally:
            os.close(descriptor)
        row.written_offset = first + count
        return len(data)

    def _write(self, file_start: int, position: int, data: memoryview | bytes) -> None:
        family = self._family
        path = family.path_of(self, file_start)
        if not self.files or file_start > self.files[-1]:
            is_first = not self.files
            family.create(self, path)
            if is_first and position:
                blank = cq_unit.pack(cq_unit.Unit(0, cq_unit.PRE_BLANK_SIZE, 0))
                try:
                    family.write(self, file_start, 0, blank * (position // cq_unit.SIZE))
                except WriteFailed:
                    family.delete(self, file_start)  # the next attempt creates it again
                    raise
            self.files.append(file_start)
        family.write_to(self, file_start, path, position, data)

    def cut(self, physical_offset: int) -> None:
        """Remove the units that point at ``physical_offset`` or after it.

        The rest of the file is overwritten with zeros, whatever it contains: a crash may have left
        any of the pages that were not synced, and old units must not follow new ones.
        """
        if self.end_physical_offset <= physical_offset and not self.has_rest:
            return
        self.write_out()
        self.drop_tail()
        self._family.forget_made_files(self)
        family = self._family
        units = family.load_units(self, self.files[-1])
        count = count_units(units, physical_offset)
        while not count and len(self.files) > 1:
            family.delete(self, self.files.pop())
            units = family.load_units(self, self.files[-1])
            count = count_units(units, physical_offset)
        self._set_end(self.files[-1] // cq_unit.SIZE + count)
        rest = units[count:]
        if has_bytes(rest):
            family.write(self, self.files[-1], count * cq_unit.SIZE, bytes(rest.nbytes))
        self.has_rest = False
        self._set_end_physical(cq_unit.unpack(units[count - 1].tobytes()) if count else None)
        row = self.row
        row.min_offset = min(row.min_offset, self.max_offset)
        self.cut_extension()

    def _set_end_physical(self, last: cq_unit.Unit | None) -> None:
        is_real = last is not None and last.is_written
        end = last.physical_offset + last.size if last is not None and is_real else 0
        self.row.end_physical = end

    def cut_extension(self) -> None:
        """Truncate the extension after the last record that a unit refers to."""
        if self.extension is None:
            return
        end = 0
        for queue_offset in range(self.max_offset - 1, self.first_offset - 1, -1):
            unit = self.unit(queue_offset)
            if unit is not None and unit.is_ext_address:
                with contextlib.suppress(CorruptRecord):
                    end = self.extension.end_of(unit.tags_code)
                    break
        self.extension.cut(end)

    def _set_end(self, queue_offset: int) -> None:
        row = self.row
        row.max_offset = queue_offset
        row.next_offset = queue_offset
        row.written_offset = queue_offset
        row.notified_offset = queue_offset
        row.tail_offset = queue_offset
        self.known_end = None
        self.forget_ahead()

    def reset(self) -> None:
        """Delete all files and units; the units will be appended again."""
        self.drop_tail()
        self._family.forget_made_files(self)
        for start in self.files:
            self._family.delete(self, start)
        self.files.clear()
        if self.extension is not None:
            self.extension.delete()
        self.has_rest = False
        self._set_end(0)
        self.row.end_physical = self.row.min_offset = 0

    def delete_before(self, log_min: int) -> int:
        """Delete the files whose messages have left the log, but not the last; return their number.

        Each deletion is durable before the next one starts, so that a crash leaves no gap.

        Raises:
            WriteFailed: A file cannot be deleted, or not durably; it can be tried again.
        """
        self.correct_min_offset(log_min)
        deleted = 0
        while self.has_expired_files:
            self._family.delete(self, self.files[0])
            self.files.pop(0)
            self._family.sync_names(self)
            deleted += 1
        first = self.unit(self.min_offset)
        if deleted and self.extension is not None and first is not None and first.is_ext_address:
            self.extension.delete_before(first.tags_code)
        return deleted

    @property
    def has_expired_files(self) -> bool:
        """True if the first file of several has only units before the minimum offset."""
        return len(self.files) > 1 and self.files[1] <= self.min_offset * cq_unit.SIZE

    def correct_min_offset(self, log_min: int) -> None:
        """Set the minimum offset: the first unit whose record is in the log, else the maximum.

        The log only loses messages, so the minimum never decreases; reading one unit is mostly
        enough.
        """
        high = self.max_offset
        low = min(max(self.first_offset, self.min_offset), high)
        if self.end_physical_offset <= log_min:
            low = high
        first = self.unit(low) if low < high else None
        if first is not None and first.is_written and first.physical_offset >= log_min:
            high = low
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is not None and unit.is_written and unit.physical_offset >= log_min:
                high = middle
            else:
                low = middle + 1
        self.row.min_offset = low

    # Reading ----------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """Queue offset of the first unit in the files, even if its message has left the log."""
        if self.files:
            return self.files[0] // cq_unit.SIZE
        return self.row.written_offset

    def units_at(self, queue_offset: int, count: int) -> tuple[int, int]:
        """Return the address of the units from ``queue_offset`` on, and their number.

        The number is at most ``count`` and ``READ_UNITS_MAX``, and no unit is after the end of the
        file; it is 0 if there is no file. The address is valid until the next call of any method
        of ``ConsumeQueues`` or its queues.

        Raises:
            WriteFailed: A file of the queue cannot be opened: it was deleted, or no descriptor is
                free. A reader that took its units for missing would skip messages.
        """
        row = self.row
        count = min(count, row.max_offset - queue_offset, READ_UNITS_MAX)
        tail_offset = row.tail_offset
        if queue_offset >= tail_offset:
            return row.tail + cq_unit.SIZE * (queue_offset - tail_offset), count
        in_files = min(count, tail_offset - queue_offset)
        address, unit_count = self._family.read(self, queue_offset, in_files)
        reaches_tail = queue_offset + unit_count == tail_offset
        if self._tail is not None and reaches_tail and unit_count < count:
            rest = (count - unit_count) * cq_unit.SIZE
            self._family.append_to_read(unit_count, self._tail[:rest])
            unit_count = count
        return address, unit_count

    def units_ahead(self, queue_offset: int, count: int) -> tuple[int, int]:
        """Return the same as ``units_at``, and keep the units that follow in memory.

        A reader that continues there reads no file for a while; kernels use these units too. The
        address is valid until other units are read ahead.
        """
        row = self.row
        in_files = row.tail_offset - queue_offset
        wanted_count = min(count, in_files, _AHEAD_UNITS)
        index = queue_offset - row.ahead_offset
        if wanted_count > 0 and not 0 <= index <= row.ahead_count - wanted_count:
            address, unit_count = self._family.read(self, queue_offset, min(in_files, _AHEAD_UNITS))
            self._keep_ahead(address, queue_offset, unit_count)
            index = 0
        if wanted_count < min(count, self.max_offset - queue_offset):
            return self.units_at(queue_offset, count)  # units of the tail, or more than is kept
        unit_count = min(count, row.ahead_count - index)
        return row.ahead + cq_unit.SIZE * index, unit_count

    def _keep_ahead(self, address: int, queue_offset: int, count: int) -> None:
        if self._ahead is None:
            self._ahead = np.empty(_AHEAD_UNITS * cq_unit.SIZE, np.uint8)
        size = cq_unit.SIZE * count
        self._ahead.data[:size] = hot.view_at(address, size)
        row = self.row
        row.ahead = hot.address_of(self._ahead)
        row.ahead_offset = queue_offset
        row.ahead_count = count
        self._family.note_ahead(self)

    def forget_ahead(self) -> None:
        """Release the units that were read ahead."""
        self._ahead = None
        row = self.row
        row.ahead = row.ahead_offset = row.ahead_count = 0

    def units(self, queue_offset: int, count: int) -> UnitArray:
        """Return a copy of the units that ``units_at`` returns."""
        address, unit_count = self.units_at(queue_offset, count)
        return np.frombuffer(hot.bytes_at(address, unit_count * cq_unit.SIZE), UNIT_TYPE)

    def unit(self, queue_offset: int) -> cq_unit.Unit | None:
        """Return a unit between ``first_offset`` and ``max_offset``; None if it is missing."""
        if not self.first_offset <= queue_offset < self.max_offset:
            return None
        address, unit_count = self.units_at(queue_offset, 1)
        return cq_unit.unpack(hot.bytes_at(address, cq_unit.SIZE)) if unit_count else None

    def end(self) -> QueueEnd | None:
        """Return the end of a queue that is written to files; None if it has no units."""
        known = self.known_end
        if known is not None and known.max_offset == self.max_offset:
            # Nothing was added. If another program has written, the next start sees another time.
            return known._replace(min_offset=self.min_offset)
        last = self.unit(self.max_offset - 1)
        if last is None or not last.is_written:
            return None
        modified_ns = self._family.modified_ns(self, self.files[-1])
        return QueueEnd(
            self.max_offset,
            self.min_offset,
            last.physical_offset,
            last.size,
            last.tags_code,
            modified_ns,
        )

    def following_file(self, queue_offset: int) -> int:
        """Return the queue offset at which the file after that of ``queue_offset`` starts."""
        file_units = self._family.file_size // cq_unit.SIZE
        return (queue_offset // file_units + 1) * file_units


def count_units(units: UnitArray, physical_offset: int = 1 << 62) -> int:
    """Count units up to the first that is invalid, decreases, or is after an offset."""
    if len(units) == 1:  # most of thousands of queues have few units
        unit_offset, unit_size, _ = units[0].item()
        return int(unit_size > 0 and 0 <= unit_offset < physical_offset)
    offsets = units["physical_offset"]
    is_bad = (units["size"] <= 0) | (offsets < 0) | (offsets >= physical_offset)
    is_bad[1:] |= offsets[1:] < offsets[:-1]
    bad = np.flatnonzero(is_bad)
    return int(bad[0]) if len(bad) else len(units)


def has_bytes(units: UnitArray) -> bool:
    """Return True if any byte of units is not zero."""
    return bool(units.view(np.uint8).any())
