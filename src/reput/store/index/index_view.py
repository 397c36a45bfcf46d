"""Index files for reading: key -> physical offsets of messages that may have it.

An entry only contains a hash of the key, so the caller must check the message
(known-bugs.md#hash-collisions). Entry times are not used: they are in whole seconds, and wrong in
the first entry of a rolled file (known-bugs.md#index-seconds, known-bugs.md#index-first-entry).
Files are selected by the times in their headers, extended by a second.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord
from reput.format import index_entry
from reput.store.files import paths
from reput.store.files.files import Bytes, Folder

DEFAULT_SLOT_COUNT = 5_000_000
DEFAULT_ENTRY_COUNT = 20_000_000
_USUAL_BYTES_PER_SLOT = (
    index_entry.SLOT.size + DEFAULT_ENTRY_COUNT // DEFAULT_SLOT_COUNT * index_entry.ENTRY.size
)
_MANY_SLOTS = 10_000
"""Numbers of slots from this one on cannot match a file's header by chance; lower ones can."""

ENTRY_TYPE = np.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
assert ENTRY_TYPE.itemsize == index_entry.ENTRY.size


@dataclass(frozen=True)
class IndexFileView:
    """One index file."""

    folder: Folder
    name: str
    size: int
    modified_ms: int

    @property
    def _path(self) -> str:
        return f"{paths.INDEX}/{self.name}"

    def _read(self, start: int, length: int) -> Bytes:
        return self.folder.read(self._path, start, length)

    @cached_property
    def header(self) -> index_entry.Header:
        """The header; all fields are 0 if the file is empty.

        Raises:
            CorruptRecord: The file is too short for a header, or the header is invalid.
        """
        if self.size == 0:
            return index_entry.Header(0, 0, 0, 0, 0, 0)
        try:
            header = index_entry.unpack_header(self._read(0, index_entry.HEADER.size))
        except CorruptRecord as error:
            raise CorruptRecord(error.reason, file=self._path) from None
        if header.next_entry < 0:
            raise CorruptRecord(f"header has {header.next_entry} entries", file=self._path)
        return header

    @cached_property
    def slot_count(self) -> int:
        """Number of slots of the file; the file itself does not contain it.

        The file size is 4*slots + 20*entries. With the right numbers, the first and the last entry
        have the physical offsets in the header, and the last one's slot points to it.

        Raises:
            CorruptRecord: No numbers fit the header.
        """
        if self.header.entry_count == 0:
            return 0
        body = self.size - index_entry.HEADER.size
        for usual in (DEFAULT_SLOT_COUNT, body // _USUAL_BYTES_PER_SLOT):
            if usual >= _MANY_SLOTS and self._splits_at(usual):
                return usual
        fits = [count for count in self._matching_ends(body) if self._splits_at(count)]
        if len(fits) > 1:
            fits = [count for count in fits if self._agrees_at(count)]
        if not fits:
            raise CorruptRecord("no number of slots fits header and size", file=self._path)
        return fits[0]

    def _matching_ends(self, body: int) -> Iterator[int]:
        """Yield numbers of slots for which the last entry has the header's last offset."""
        slot_max = (body - ENTRY_TYPE.itemsize * self.header.next_entry) // index_entry.SLOT.size
        # Five more slots move the entries by one, so all possible last entries form one array.
        candidates = range(body // index_entry.SLOT.size % 5, slot_max + 1, 5)
        if not len(candidates):
            return
        start = index_entry.entry_position(self.header.next_entry - 1, candidates[0])
        data = self._read(start, len(candidates) * ENTRY_TYPE.itemsize)
        last = np.frombuffer(data, ENTRY_TYPE, len(data) // ENTRY_TYPE.itemsize)
        for index in np.flatnonzero(last["physical_offset"] == self.header.end_physical_offset):
            yield candidates[int(index)]

    def _splits_at(self, slot_count: int) -> bool:
        entry_bytes = self.size - index_entry.HEADER.size - slot_count * index_entry.SLOT.size
        capacity, rest = divmod(entry_bytes, ENTRY_TYPE.itemsize)
        last = self.header.next_entry - 1
        if slot_count <= 0 or rest or capacity <= last:
            return False
        newest = self._entry(last, slot_count)
        if newest.physical_offset != self.header.end_physical_offset or newest.key_hash < 0:
            return False
        if self._entry(1, slot_count).physical_offset != self.header.begin_physical_offset:
            return False
        # A running broker may have added entries since the header was read.
        return last <= self._slot(newest.key_hash % slot_count) < capacity

    def _agrees_at(self, slot_count: int) -> bool:
        """Return True if all slots point to their entries, and only zeros follow the entries.

        Used for small files only, in which several numbers of slots fit the header.
        """
        data = self._read(0, self.size)
        count = self.header.entry_count
        slots = np.frombuffer(data, ">i4", slot_count, index_entry.HEADER.size)
        start = index_entry.entry_position(1, slot_count)
        hashes = np.frombuffer(data, ENTRY_TYPE, count, start)["key_hash"]
        used = np.flatnonzero(slots)
        numbers = slots[used]
        return (
            bool(((numbers > 0) & (numbers <= count)).all())
            and bool((hashes[numbers - 1] % slot_count == used).all())
            and not any(data[start + count * ENTRY_TYPE.itemsize :])
        )

    def _slot(self, slot: int) -> int:
        data = self._read(index_entry.slot_position(slot), index_entry.SLOT.size)
        return int.from_bytes(data, "big", signed=True)

    def _entry(self, number: int, slot_count: int) -> index_entry.Entry:
        position = index_entry.entry_position(number, slot_count)
        try:
            return index_entry.unpack_entry(self._read(position, index_entry.ENTRY.size), 0)
        except CorruptRecord as error:
            raise CorruptRecord(error.reason, file=self._path) from None

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Return True if the file can index a message stored in ``[begin_ms, end_ms]``.

        See known-bugs.md#index-overlap.
        """
        header = self.header
        if header.entry_count == 0:
            return False
        return (
            header.begin_timestamp <= end_ms + index_entry.SLACK_MS
            and header.end_timestamp >= begin_ms - index_entry.SLACK_MS
        )

    def chain(self, key_hash: int) -> Iterator[int]:
        """Yield the physical offsets of entries with a hash, newest first.

        Raises:
            CorruptRecord: The chain contains an entry of another slot, or a later one.
        """
        if self.header.entry_count == 0:
            return
        slot_count = self.slot_count
        slot = key_hash % slot_count
        number = self._slot(slot)
        newer = number + 1
        while number:
            entry = self._entry(number, slot_count) if 0 < number < newer else None
            if entry is None or entry.key_hash % slot_count != slot:
                raise CorruptRecord(f"entry {number} is not of slot {slot}", file=self._path)
            if entry.key_hash == key_hash:
                yield entry.physical_offset
            newer, number = number, entry.previous

    def entries(self) -> npt.NDArray[np.void]:
        """Return all entries, in the order of their addition."""
        count = self.header.entry_count
        if count == 0:
            return np.empty(0, ENTRY_TYPE)
        start = index_entry.entry_position(1, self.slot_count)
        data = self._read(start, count * ENTRY_TYPE.itemsize)
        return np.frombuffer(data, ENTRY_TYPE, len(data) // ENTRY_TYPE.itemsize)


class IndexView:
    """All index files of a store."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    @cached_property
    def files(self) -> list[IndexFileView]:
        """The files, oldest first."""
        return [
            IndexFileView(self._folder, entry.name, entry.size, entry.modified_ms)
            for entry in self._folder.entries(paths.INDEX)
            if paths.is_index_name(entry.name) and not entry.is_folder
        ]

    def candidates(self, index_key: str, begin_ms: int, end_ms: int) -> list[int]:
        """Return the ascending physical offsets of messages that may have the key ``topic#key``.

        A file that cannot be read is an error; it is not ignored.

        Raises:
            CorruptRecord: An index file that may contain the key is damaged.
        """
        key_hash = index_entry.key_hash(index_key)
        physical_offsets: set[int] = set()
        for file in self.files:
            if file.overlaps(begin_ms, end_ms):
                physical_offsets.update(file.chain(key_hash))
        return sorted(physical_offsets)
