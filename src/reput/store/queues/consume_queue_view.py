"""A consume queue for reading: queue offset -> position of the message in the log.

Files contain units of 20 bytes (46 in batch queues of 5.x). A file's name is the byte offset of its
first unit, so the unit of queue offset n is at byte 20*n of the queue. After the last unit there
are zeros; a queue whose first message was not number 0 starts with pre-blanks.
"""

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, NotInStore
from reput.format import cq_unit
from reput.store.files import paths
from reput.store.files.files import Folder, data_bytes

UNIT_TYPE = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
BATCH_UNIT_TYPE = np.dtype(
    [
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("queue_offset", ">i8"),
        ("message_count", ">i2"),
        ("compacted_offset", ">i4"),
        ("reserved", ">i4"),
    ]
)
assert UNIT_TYPE.itemsize == cq_unit.SIZE
assert BATCH_UNIT_TYPE.itemsize == cq_unit.BATCH_SIZE

UnitArray = npt.NDArray[np.void]

_NEAR_UNITS = 400

Value = TypeVar("Value")


class _cached_property(Generic[Value]):
    """``functools.cached_property`` without its lock.

    Up to Python 3.11 all instances share a lock, and threads would read one queue after another.
    """

    def __init__(self, find: Callable[[Any], Value]) -> None:
        self._find = find
        self.__doc__ = find.__doc__

    def __get__(self, owner: Any, _: type) -> Value:
        value = self._find(owner)
        owner.__dict__[self._find.__name__] = value  # found before this descriptor from now on
        return value


@dataclass(frozen=True, slots=True)
class QueueFile:
    """One file of a queue."""

    name: str
    start: int
    """Byte offset of its first unit within the queue."""
    size: int
    modified_ms: int


def list_queue_files(folder: Folder, path: str) -> list[QueueFile]:
    """Return the files of a queue folder in order; files with other names are left out."""
    files = []
    for entry in folder.entries(path):
        start = paths.parse_offset_name(entry.name)
        if start is not None and not entry.is_folder:
            files.append(QueueFile(entry.name, start, entry.size, entry.modified_ms))
    return files


class ConsumeQueueView:
    """The units of one queue.

    Args:
        folder: The store.
        topic: Topic of the queue.
        queue_id: Id of the queue.
        log_min: Minimum physical offset of the log; messages before it are gone
            (known-bugs.md#minimum-offsets).
    """

    def __init__(self, folder: Folder, topic: str, queue_id: int, log_min: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._folder = folder
        self._path = paths.queue_folder(topic, queue_id)
        self._log_min = log_min

    @_cached_property
    def files(self) -> list[QueueFile]:
        """The files with units."""
        return [file for file in list_queue_files(self._folder, self._path) if file.size]

    @property
    def cut_file(self) -> QueueFile | None:
        """A file that is shorter than the others: units may be missing.

        See known-bugs.md#file-sizes.
        """
        usual = max((file.size for file in self.files), default=0)
        return next((file for file in self.files if file.size < usual), None)

    @_cached_property
    def max_offset(self) -> int:
        """Queue offset of the next message; 0 for a queue without files."""
        for file in reversed(self.files):
            count = self._written_units(file)
            if count:
                return file.start // cq_unit.SIZE + count
        return self.files[0].start // cq_unit.SIZE if self.files else 0

    @_cached_property
    def min_offset(self) -> int:
        """First queue offset whose message is still in the log, else ``max_offset``."""
        first = self.files[0].start // cq_unit.SIZE if self.files else 0
        for start, units in self.blocks(first, self.max_offset):
            alive = np.flatnonzero(_is_written(units) & (units["physical_offset"] >= self._log_min))
            if len(alive):
                return start + int(alive[0])
        return self.max_offset

    @_cached_property
    def last_unit(self) -> cq_unit.Unit | None:
        """Unit of the last message; None for an empty queue."""
        try:
            last = self.unit(self.max_offset - 1)
        except (NotInStore, CorruptRecord):
            return None  # no file has a unit, though files may start above zero
        return last if last.is_written else None

    @property
    def end_physical_offset(self) -> int | None:
        """Physical offset after the last message of the queue; None for an empty queue."""
        last = self.last_unit
        return last.physical_offset + last.size if last else None

    def targets_from(self, physical_offset: int) -> npt.NDArray[np.int64]:
        """Return the ascending physical offsets of units, from an offset of the log on."""
        span = range(self.min_offset, self.max_offset)
        try:
            index = bisect.bisect_left(
                span, physical_offset, key=lambda number: self.unit(number).physical_offset
            )
        except (NotInStore, CorruptRecord):
            return np.empty(0, np.int64)  # a file is missing
        _, units = self.units(self.min_offset + index, self.max_offset)
        return units["physical_offset"].astype(np.int64)

    def _written_units(self, file: QueueFile) -> int:
        """Count the units up to the last one with a size; the rest of the file is zeros."""
        # With thousands of queues most files are sparse: their holes are not read.
        stored = data_bytes(self._folder, f"{self._path}/{file.name}", file.size)
        units = self._units_of(file, 0, min(-(-stored // cq_unit.SIZE), file.size // cq_unit.SIZE))
        sizes = units["size"]
        written = len(sizes)
        if written and sizes[-1] == 0:
            low, high = 0, written  # units before low are written, from high on they are not
            while low < high:
                middle = (low + high) // 2
                if sizes[middle]:
                    low = middle + 1
                else:
                    high = middle
            written = low
            if _continues(sizes, low):
                written = int(np.flatnonzero(sizes)[-1]) + 1
        return written

    def _units_of(self, file: QueueFile, first: int, count: int) -> UnitArray:
        data = self._folder.read(
            f"{self._path}/{file.name}", first * cq_unit.SIZE, count * cq_unit.SIZE
        )
        return np.frombuffer(data, UNIT_TYPE, len(data) // cq_unit.SIZE)

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, UnitArray]]:
        """Yield (queue offset of the first unit, units) of ``[start, stop)``, one file at a time.

        Queue offsets in a missing file are left out.
        """
        for file in self.files:
            first = file.start // cq_unit.SIZE
            low = max(start, first)
            high = min(stop, first + file.size // cq_unit.SIZE)
            if low < high:
                yield low, self._units_of(file, low - first, high - low)

    def units(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], UnitArray]:
        """Return the units of ``[start, stop)`` that point at a record, and their queue offsets."""
        numbers, parts = [np.empty(0, np.int64)], [np.empty(0, UNIT_TYPE)]
        for first, units in self.blocks(start, stop):
            written = np.flatnonzero(_is_written(units))
            numbers.append(first + written)
            parts.append(units[written])
        return np.concatenate(numbers), np.concatenate(parts)

    def unit(self, queue_offset: int) -> cq_unit.Unit:
        """Return the unit of a queue offset.

        Raises:
            NotInStore: No file contains it.
            CorruptRecord: The file that contained it is truncated.
        """
        byte_offset = queue_offset * cq_unit.SIZE
        index = bisect.bisect_right([file.start for file in self.files], byte_offset) - 1
        if queue_offset >= 0 and index >= 0:
            file = self.files[index]
            if byte_offset + cq_unit.SIZE <= file.start + file.size:
                path = f"{self._path}/{file.name}"
                return cq_unit.unpack(
                    bytes(self._folder.read(path, byte_offset - file.start, cq_unit.SIZE))
                )
            if byte_offset < file.start + max(other.size for other in self.files):
                raise CorruptRecord(
                    f"is truncated to {file.size} bytes, before queue offset {queue_offset}",
                    file=f"{self._path}/{file.name}",
                )
        raise NotInStore(
            f"queue {self.topic}/{self.queue_id} has no unit {queue_offset}; "
            f"it has {self.min_offset} to {self.max_offset}"
        )


def _continues(sizes: npt.NDArray[np.int32], written: int) -> bool:
    """Return True if units follow the zeros after ``written``: then zeros are not the end.

    Examines the next units, and then units in doubling distances: the empty rest, which is most
    of many files, must not be read.
    """
    if sizes[written : written + _NEAR_UNITS].any():
        return True
    steps = np.arange(max(len(sizes) - written, 1).bit_length())
    ahead = written + (_NEAR_UNITS << steps)
    return bool(sizes[ahead[ahead < len(sizes)]].any())


def _is_written(units: UnitArray) -> npt.NDArray[np.bool_]:
    blank = (units["size"] == cq_unit.PRE_BLANK_SIZE) & (units["physical_offset"] == 0)
    written: npt.NDArray[np.bool_] = (units["size"] > 0) & (units["physical_offset"] >= 0) & ~blank
    return written


class BatchConsumeQueueView:
    """The units of a batch queue of 5.x: one per batch, with its first queue offset.

    The arguments are those of ``ConsumeQueueView``.
    """

    def __init__(self, folder: Folder, topic: str, queue_id: int, log_min: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._folder = folder
        self._log_min = log_min
        self._path = paths.queue_folder(topic, queue_id, paths.BATCH_CONSUME_QUEUE)

    @_cached_property
    def files(self) -> list[QueueFile]:
        """The files with units."""
        return [file for file in list_queue_files(self._folder, self._path) if file.size]

    @_cached_property
    def units(self) -> UnitArray:
        """All units that point at a record."""
        parts = [np.empty(0, BATCH_UNIT_TYPE)]
        for file in self.files:
            data = self._folder.read(f"{self._path}/{file.name}")
            units = np.frombuffer(data, BATCH_UNIT_TYPE, len(data) // cq_unit.BATCH_SIZE)
            parts.append(units[(units["size"] > 0) & (units["message_count"] > 0)])
        return np.concatenate(parts)

    @property
    def min_offset(self) -> int:
        """First queue offset of a batch that is still in the log, else ``max_offset``."""
        alive = np.flatnonzero(self.units["physical_offset"] >= self._log_min)
        return int(self.units["queue_offset"][alive[0]]) if len(alive) else self.max_offset

    @property
    def max_offset(self) -> int:
        """Queue offset of the next message."""
        if not len(self.units):
            return 0
        return int(self.units["queue_offset"][-1]) + int(self.units["message_count"][-1])

    @property
    def last_unit(self) -> cq_unit.BatchUnit | None:
        """Unit of the last batch; None for an empty queue."""
        return self._unit_at(-1) if len(self.units) else None

    @property
    def end_physical_offset(self) -> int | None:
        """Physical offset after the last batch; None for an empty queue."""
        last = self.last_unit
        return last.physical_offset + last.size if last else None

    def unit(self, queue_offset: int) -> cq_unit.BatchUnit:
        """Return the unit of the batch that contains a queue offset.

        Raises:
            NotInStore: No batch contains it.
        """
        index = int(np.searchsorted(self.units["queue_offset"], queue_offset, "right")) - 1
        if index >= 0:
            unit = self._unit_at(index)
            if unit.queue_offset <= queue_offset < unit.queue_offset + unit.message_count:
                return unit
        raise NotInStore(f"batch queue {self.topic}/{self.queue_id} has no message {queue_offset}")

    def units_of(self, start: int, stop: int) -> UnitArray:
        """Return the units of the batches that have a message of ``[start, stop)``."""
        firsts = self.units["queue_offset"].astype(np.int64)
        ends = firsts + self.units["message_count"]
        chosen: UnitArray = self.units[(firsts < stop) & (ends > start)]
        return chosen

    def targets_from(self, physical_offset: int) -> npt.NDArray[np.int64]:
        """Return the physical offsets of units, from an offset of the log on."""
        targets = self.units["physical_offset"].astype(np.int64)
        return targets[targets >= physical_offset]

    def _unit_at(self, index: int) -> cq_unit.BatchUnit:
        return cq_unit.BatchUnit(*(int(value) for value in self.units[index].tolist()[:7]))


class ExtView:
    """The extension units of one queue (``enableConsumeQueueExt``)."""

    def __init__(self, folder: Folder, topic: str, queue_id: int) -> None:
        self._folder = folder
        self._path = paths.queue_folder(topic, queue_id, paths.CONSUME_QUEUE_EXT)

    @_cached_property
    def files(self) -> list[QueueFile]:
        """The extension files."""
        return list_queue_files(self._folder, self._path)

    def unit(self, address: int) -> cq_unit.ExtUnit:
        """Return the extension unit at the address in a consume-queue unit's tags code.

        Raises:
            CorruptRecord: There is no unit at the address.
        """
        position = cq_unit.ext_offset(address)
        for file in self.files:
            if file.start <= position < file.start + file.size:
                data = self._folder.read(f"{self._path}/{file.name}", position - file.start, 32768)
                unit = cq_unit.unpack_ext(data)
                if unit is not None:
                    return unit
        raise CorruptRecord(f"extension address {address} points at no unit", file=self._path)
