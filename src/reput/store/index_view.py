"""Index files for reading: key -> physical offsets that may carry it.

"May": an entry holds a hash, so whoever asks must look at the message (anchors D10). Entry times
are not used at all: they are whole seconds, and wrong in the first entry of a rolled file (anchors
D8, D9). Header times choose files, with a second of slack.
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
        """The header. Raises ``CorruptRecord`` if the file is too short for one."""
        try:
            return index_entry.unpack_header(self._read(0, index_entry.HEADER.size))
        except CorruptRecord as error:
            raise CorruptRecord(error.reason, file=self._path) from None

    @cached_property
    def slot_count(self) -> int:
        """How many slots the file has, which it does not say.

        File size gives 4*slots + 20*entries; of the pairs that fit, the right one is where the
        first and the last entry carry the physical offsets that the header names.

        Raises:
            CorruptRecord: No split of the file fits its header.
        """
        body = self.size - index_entry.HEADER.size
        if self.header.entry_count == 0:
            return 0
        usual = (
            DEFAULT_SLOT_COUNT,
            body // (index_entry.SLOT.size + 4 * index_entry.ENTRY.size),
        )
        for slot_count in usual:
            if self._splits_at(slot_count):
                return slot_count
        most = (body - index_entry.ENTRY.size * self.header.next_entry) // index_entry.SLOT.size
        candidates = range(body // index_entry.SLOT.size % 5, most + 1, 5)
        for slot_count in self._matching_ends(candidates):
            if self._splits_at(slot_count):
                return slot_count
        raise CorruptRecord("no number of slots fits header and size", file=self._path)

    def _matching_ends(self, candidates: range) -> Iterator[int]:
        """Yield the candidates under which the last entry has the header's last offset."""
        if not len(candidates):
            return
        entry = index_entry.entry_position(self.header.next_entry - 1, candidates[0])
        words = np.frombuffer(self._read(entry, self.size), np.uint8)
        target = np.frombuffer(self.header.end_physical_offset.to_bytes(8, "big"), np.uint8)
        step = candidates.step * index_entry.SLOT.size
        starts = np.arange(len(candidates)) * step + 4
        starts = starts[starts + 8 <= len(words)]
        match = np.ones(len(starts), np.bool_)
        for i in range(8):
            match &= words[starts + i] == target[i]
        for place in np.flatnonzero(match):
            yield candidates[int(place)]

    def _splits_at(self, slot_count: int) -> bool:
        body = self.size - index_entry.HEADER.size
        entry_bytes = body - slot_count * index_entry.SLOT.size
        last = self.header.next_entry - 1
        if slot_count <= 0 or entry_bytes % index_entry.ENTRY.size:
            return False
        if entry_bytes < (last + 1) * index_entry.ENTRY.size:
            return False
        newest = self._entry(last, slot_count)
        if newest.physical_offset != self.header.end_physical_offset or newest.key_hash < 0:
            return False
        if self._entry(1, slot_count).physical_offset != self.header.begin_physical_offset:
            return False
        return self._slot(newest.key_hash % slot_count) == last

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
        """Whether a message stored in ``[begin_ms, end_ms]`` can be indexed here (anchors D14)."""
        header = self.header
        if header.entry_count == 0:
            return False
        return (
            header.begin_timestamp <= end_ms + SLACK_MS
            and header.end_timestamp >= begin_ms - SLACK_MS
        )

    def chain(self, key_hash: int) -> Iterator[int]:
        """Yield the physical offsets of entries with this hash, newest first."""
        if self.header.entry_count == 0:
            return
        slot_count = self.slot_count
        number = self._slot(key_hash % slot_count)
        # A chain only leads to older entries; one that does not is damage and ends here.
        newer = self.header.next_entry
        while 0 < number < newer:
            entry = self._entry(number, slot_count)
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
