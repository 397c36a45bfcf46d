"""Write index files from rows of entries, a block at a time, as a broker's puts would.

Only the slots are in memory, 4 bytes each: 20 MB for a file of RocketMQ's size. A file can be
continued. Entries that a killed run has put after its end are overwritten: a slot whose newest
entry is after the end is followed back to an entry before it.
"""

import datetime
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from reput.errors import WriteFailed
from reput.format import index_entry
from reput.spark.jobs.dispatch.extract import EntryRows
from reput.store.files.disk import Disk
from reput.store.files.files import Folder, data_bytes
from reput.store.index.index_view import ENTRY_TYPE

_PLACE_BITS = 17
_ENTRIES_AT_ONCE = 1 << _PLACE_BITS
_INT_MAX = (1 << 31) - 1
_SLOTS_ONE_BY_ONE = 1 << 10
_YEAR_10000_MS = 253_402_214_400_000
_ZEROS = bytes(1 << 16)
NO_ENTRIES = index_entry.Header(0, 0, 0, -1, 0, 1)
"""Header of a file without entries."""


class Output(Protocol):
    """Destination of the bytes of a file."""

    def put(self, position: int, data: Any) -> None:
        """Write bytes at a position."""

    def settle(self) -> None:
        """Make all bytes so far durable before any that follow."""


@dataclass(frozen=True, slots=True)
class IndexWriter:
    """Puts entries into an index file.

    Args:
        slots: ``maxHashSlotNum``.
        header: Present header of the file.
        seed_ms: Store time of the entry before the file; 0 if there is none.
        newest: Number of the newest entry of each slot; changed in place.
    """

    slots: int
    header: index_entry.Header
    seed_ms: int
    newest: npt.NDArray[np.int32]

    def put(self, rows: Iterable[EntryRows], output: Output) -> index_entry.Header:
        """Append entries; return the new header."""
        header = self.header
        is_changed = np.zeros(self.slots, bool)
        for block in _blocks(rows):
            entries, slots, fresh = self._linked(block, header)
            position = index_entry.entry_position(header.next_entry, self.slots)
            output.put(position, entries.view(np.uint8).data)
            first, last = block[0], block[-1]
            is_first = header.next_entry <= 1
            header = index_entry.Header(
                int(first["store_timestamp"]) if is_first else header.begin_timestamp,
                int(last["store_timestamp"]),
                int(first["physical_offset"]) if is_first else header.begin_physical_offset,
                int(last["physical_offset"]),
                header.slots_used + fresh,
                header.next_entry + len(block),
            )
            is_changed[slots] = True
        output.settle()
        self._put_slots(np.flatnonzero(is_changed), output)
        output.put(0, index_entry.pack_header(header))
        return header

    def _linked(
        self, block: EntryRows, header: index_entry.Header
    ) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64], int]:
        """Return entries, their slots, and the number of slots that were empty before."""
        # By slot, then in order: distinct numbers, which numpy sorts fastest.
        keys = block["key_hash"].astype(np.int64) % self.slots << _PLACE_BITS
        keys |= np.arange(len(block))
        keys.sort()
        slots, order = keys >> _PLACE_BITS, keys & (_ENTRIES_AT_ONCE - 1)
        numbers = (header.next_entry + order).astype(np.int32)
        starts = np.flatnonzero(np.diff(slots, prepend=-1))
        previous = np.empty(len(block), np.int32)
        previous[1:] = numbers[:-1]
        previous[starts] = self.newest[slots[starts]]
        ends = np.append(starts[1:], len(slots)) - 1
        self.newest[slots[ends]] = numbers[ends]
        entries = np.empty(len(block), ENTRY_TYPE)
        entries["key_hash"] = block["key_hash"]
        entries["physical_offset"] = block["physical_offset"]
        entries["seconds"] = self._seconds(block["store_timestamp"], header)
        entries["previous"][order] = previous
        return entries, slots[starts], int(np.count_nonzero(previous == 0))

    def _seconds(
        self, timestamps: npt.NDArray[np.int64], header: index_entry.Header
    ) -> npt.NDArray[np.int64]:
        """Return seconds since the file's begin; for its first entry since the entry before it."""
        is_first = header.next_entry <= 1
        begins = np.full(len(timestamps), timestamps[0] if is_first else header.begin_timestamp)
        if is_first:
            begins[0] = self.seed_ms
        seconds = np.clip((timestamps - begins) // 1000, 0, _INT_MAX)
        return np.where(begins > 0, seconds, 0)

    def _put_slots(self, changed: npt.NDArray[np.int64], output: Output) -> None:
        if len(changed) > _SLOTS_ONE_BY_ONE:
            output.put(index_entry.slot_position(0), self.newest.astype(">i4").view(np.uint8).data)
            return
        for slot in changed.tolist():
            number = index_entry.SLOT.pack(int(self.newest[slot]))
            output.put(index_entry.slot_position(slot), number)


def _blocks(parts: Iterable[EntryRows]) -> Iterator[EntryRows]:
    for rows in parts:
        for start in range(0, len(rows), _ENTRIES_AT_ONCE):
            yield rows[start : start + _ENTRIES_AT_ONCE]


def newest_of(
    folder: Folder, path: str, slots: int, header: index_entry.Header
) -> npt.NDArray[np.int32]:
    """Return the newest entry of each slot among those before the end that a header gives."""
    if header.next_entry <= 1:
        return np.zeros(slots, np.int32)
    start = index_entry.slot_position(0)
    table = folder.read(path, start, slots * index_entry.SLOT.size)
    newest = np.frombuffer(table, ">i4").astype(np.int32)
    while len(after := np.flatnonzero(newest >= header.next_entry)):
        first, last = int(newest[after].min()), int(newest[after].max())
        position = index_entry.entry_position(first, slots)
        data = folder.read(path, position, (last - first + 1) * ENTRY_TYPE.itemsize)
        newest[after] = np.frombuffer(data, ENTRY_TYPE)["previous"][newest[after] - first]
    return newest


def cut(
    folder: Folder, path: str, slots: int, header: index_entry.Header, output: "FileOutput"
) -> None:
    """Remove the entries after the end that a header gives; a killed run has put them."""
    start, end = (
        index_entry.slot_position(0),
        index_entry.entry_position(header.next_entry, slots),
    )
    present = np.frombuffer(folder.read(path, start, slots * index_entry.SLOT.size), ">i4")
    newest = newest_of(folder, path, slots, header)
    for slot in np.flatnonzero(present != newest).tolist():
        number = index_entry.SLOT.pack(int(newest[slot]))
        output.put(index_entry.slot_position(slot), number)
    output.put(0, index_entry.pack_header(header))
    output.settle()
    size = output.size
    for position in range(end, data_bytes(folder, path, size), len(_ZEROS)):
        length = min(len(_ZEROS), size - position)
        if any(folder.read(path, position, length)):
            output.put(position, _ZEROS[:length])


class FileOutput:
    """An index file of ``size`` bytes, created if it does not exist; a context manager."""

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self.size = size
        self._descriptor = -1

    def __enter__(self) -> "FileOutput":
        """Open the file. Raises ``WriteFailed``."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o644)
            if os.fstat(self._descriptor).st_size < self.size:
                os.ftruncate(self._descriptor, self.size)
        except OSError as error:
            raise WriteFailed(self._path, f"cannot write: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def put(self, position: int, data: Any) -> None:
        """Write bytes at a position."""
        Disk().write(self._descriptor, self._path, position, data)

    def settle(self) -> None:
        """Sync the file."""
        Disk().sync_file(self._descriptor, self._path)


class DraftOutput(FileOutput):
    """An index file that is not used before all of it is durable."""

    def settle(self) -> None:
        """Do nothing: the order of writes does not matter."""


class ComparingOutput:
    """Compares bytes with those of an existing file.

    Args:
        folder: The store.
        path: Path of the file.
        size: Size that the file should have.
    """

    def __init__(self, folder: Folder, path: str, size: int) -> None:
        self._present = np.frombuffer(folder.read(path), np.uint8)
        self._size = size
        self._ends: list[tuple[int, int]] = []
        self._first: int | None = (
            None if len(self._present) == size else min(len(self._present), size)
        )

    def put(self, position: int, data: Any) -> None:
        """Compare bytes at a position."""
        expected = np.frombuffer(data, np.uint8)
        present = self._present[position : position + len(expected)]
        self._record(position, np.flatnonzero(present != expected[: len(present)]))
        self._ends.append((position, position + len(expected)))

    def settle(self) -> None:
        """Do nothing."""

    def _record(self, position: int, wrong: npt.NDArray[np.int64]) -> None:
        if len(wrong):
            first = position + int(wrong[0])
            self._first = first if self._first is None else min(first, self._first)

    def first_byte(self) -> int | None:
        """Return the first byte that differs; bytes that were not put should be zeros."""
        done = 0
        for start, stop in [*sorted(self._ends), (self._size, self._size)]:
            for low in range(done, start, 1 << 20):
                part = self._present[low : min(low + (1 << 20), start)]
                self._record(low, np.flatnonzero(part))
            done = max(done, stop)
        return self._first


def name_of(begin_timestamp: int, before: str | None) -> str:
    """Return the name of an index file from the store time of its first entry, in ms.

    It is the local time; or the predecessor's name plus one, if it would not follow it.
    """
    ms = min(max(begin_timestamp, 0), _YEAR_10000_MS)
    when = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).astimezone()
    name = f"{when:%Y%m%d%H%M%S}{ms % 1000:03d}"
    if before is not None and name <= before:
        name = f"{int(before) + 1:017d}"
    return name
