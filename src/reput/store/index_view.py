"""Index files for reading: key -> physical offsets that may carry it.

"May": an entry holds a hash, so whoever asks must look at the message
(known-bugs.md#hash-collisions). Entry times are not used at all: they are whole seconds, and wrong
in the first entry of a rolled file (known-bugs.md#index-seconds, known-bugs.md#index-first-entry).
Header times choose files, with a second of slack.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord
from reput.format import index_entry
from reput.store import paths
from reput.store.files import Bytes, Folder

SLACK_MS = 1000
DEFAULT_SLOT_COUNT = 5_000_000
DEFAULT_ENTRY_COUNT = 20_000_000
_USUAL_BYTES_PER_SLOT = (
    index_entry.SLOT.size + DEFAULT_ENTRY_COUNT // DEFAULT_SLOT_COUNT * index_entry.ENTRY.size
)
_MANY_SLOTS = 10_000
"""So many cannot fit a file's header by chance; few can."""

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
        """The header; that of a file without entries if it is empty.

        Raises:
            CorruptRecord: The file is too short for one, or it is nonsense.
        """
        if self.size == 0:
            return index_entry.Header(0, 0, 0, 0, 0, 0)
        try:
            header = index_entry.unpack_header(self._read(0, index_entry.HEADER.size))
        except CorruptRecord as error:
            raise CorruptRecord(error.reason, file=self._path) from None
        if header.next_entry < 0:
            raise CorruptRecord(f"header says {header.next_entry} entries", file=self._path)
        return header

    @cached_property
    def slot_count(self) -> int:
        """How many slots the file has, which it does not say.

        File size gives 4*slots + 20*entries. The right pair is where the first and the last entry
        carry the physical offsets that the header names, and the last one's slot leads to it.

        Raises:
            CorruptRecord: No split of the file fits its header.
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
        """Yield the numbers of slots under which the last entry has the header's last offset."""
        most = (body - ENTRY_TYPE.itemsize * self.header.next_entry) // index_entry.SLOT.size
        # Slots more by five move the entries on by one: all last entries are one array.
        candidates = range(body // index_entry.SLOT.size % 5, most + 1, 5)
        if not len(candidates):
            return
        start = index_entry.entry_position(self.header.next_entry - 1, candidates[0])
        data = self._read(start, len(candidates) * ENTRY_TYPE.itemsize)
        last = np.frombuffer(data, ENTRY_TYPE, len(data) // ENTRY_TYPE.itemsize)
        for place in np.flatnonzero(last["physical_offset"] == self.header.end_physical_offset):
            yield candidates[int(place)]

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
        # A running broker may have put more since the header was read.
        return last <= self._slot(newest.key_hash % slot_count) < capacity

    def _agrees_at(self, slot_count: int) -> bool:
        """Whether all slots lead to entries that belong to them, and nothing follows the entries.

        The whole file says more than its header: needed for small files only, where several
        numbers of slots fit that.
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
        """Whether a message stored in ``[begin_ms, end_ms]`` can be indexed here.

        See known-bugs.md#index-overlap.
        """
        header = self.header
        if header.entry_count == 0:
            return False
        return (
            header.begin_timestamp <= end_ms + SLACK_MS
            and header.end_timestamp >= begin_ms - SLACK_MS
        )

    def chain(self, key_hash: int) -> Iterator[int]:
        """Yield the physical offsets of entries with this hash, newest first.

        Raises:
            CorruptRecord: The chain leads to an entry of another slot, or not to an older one.
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
        """Return all entries, in the order they were put."""
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
        """Return physical offsets, ascending, of messages that may carry ``topic#key``.

        Files that cannot be read are errors, not silence.

        Raises:
            CorruptRecord: An index file that may hold the key is damaged.
        """
        key_hash = index_entry.key_hash(index_key)
        found: set[int] = set()
        for file in self.files:
            if file.overlaps(begin_ms, end_ms):
                found.update(file.chain(key_hash))
        return sorted(found)
