"""The index in an audit: files in themselves, and the entries that point into a range."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord
from reput.format import index_entry, kernels
from reput.spark import plan
from reput.spark.jobs.audit.setting import Codes, Setting
from reput.spark.jobs.audit.verdicts import (
    INDEXED,
    Indexed,
)
from reput.store import paths
from reput.store.index_view import IndexFileView, IndexView
from reput.store.verify import index as index_check, runs as number_runs

_ENTRIES_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class IndexBlock:
    """Some entries of an index file, and where they point."""

    file: str
    first: int
    count: int


@dataclass(frozen=True)
class IndexFound:
    """What a task finds in an index file."""

    file: str
    problem: str | None = None
    """Why it cannot be read."""
    begin: int = 0
    end: int = -1
    """Physical offsets of the first and the last message that its header names."""
    blocks: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 4), np.int64))
    """A row a block: number of its first entry, entries, smallest and largest physical offset."""
    broken_links: int = 0
    stale: int = 0
    """Entries that point behind the end of the log."""


def check_index(setting: Setting, name: str) -> IndexFound:
    """Check an index file in itself, and note where its entries point."""
    view = _index_view(setting, name)
    try:
        count = view.header.entry_count
        return _check_entries(setting, view, count) if count else IndexFound(name)
    except CorruptRecord as error:
        return IndexFound(name, problem=error.reason)


def _index_view(setting: Setting, name: str) -> IndexFileView:
    return next(one for one in IndexView(setting.source.folder).files if one.name == name)


def _check_entries(setting: Setting, view: IndexFileView, count: int) -> IndexFound:
    chains = index_check.Chains(view.slot_count)
    blocks = []
    stale = 0
    for first in range(1, count + 1, _ENTRIES_AT_ONCE):
        some = index_check.entries_of(view, first, min(_ENTRIES_AT_ONCE, count + 1 - first))
        chains.follow(first, some)
        places = some["physical_offset"]
        stale += int(np.count_nonzero(places >= setting.source.end))
        blocks.append((first, len(some), int(places.min()), int(places.max())))
    start = index_entry.slot_position(0)
    size = index_entry.SLOT.size * len(chains.newest)
    slots = np.frombuffer(view.folder.read(f"{paths.INDEX}/{view.name}", start, size), ">i4")
    broken = chains.broken_count + int(np.count_nonzero(slots != chains.newest))
    header = view.header
    return IndexFound(
        view.name,
        begin=header.begin_physical_offset,
        end=header.end_physical_offset,
        blocks=np.array(blocks, np.int64),
        broken_links=broken,
        stale=stale,
    )


class Entries:
    """The index entries that point into a range, in the order of the log.

    Args:
        setting: The store.
        part: The range.
        blocks: Entries some of which point into it.
        spans: First and last physical offset of the index files that reach into it.
    """

    def __init__(
        self,
        setting: Setting,
        part: plan.LogRange,
        blocks: Sequence[IndexBlock],
        spans: Sequence[tuple[int, int]],
    ) -> None:
        self._setting = setting
        self._base = part.start
        self._spans = spans
        found = [number_runs.NO_OFFSETS]
        views: dict[str, IndexFileView] = {}
        for block in blocks:
            if block.file not in views:
                views[block.file] = _index_view(setting, block.file)
            entries = index_check.entries_of(views[block.file], block.first, block.count)
            places = entries["physical_offset"].astype(np.int64)
            inside = (places >= part.start) & (places < part.stop)
            hashes = entries["key_hash"][inside].astype(np.int64)
            found.append(index_check.pairs_of(places[inside], hashes, self._base))
        self._pairs = np.sort(np.concatenate(found))
        self._done = 0
        self.strays = 0

    def judge(self, columns: kernels.Columns, end: int) -> Codes:
        """Judge the records of a window that ends at ``end``; entries before it are settled."""
        stop = int(np.searchsorted(self._pairs, (end - self._base) << 31))
        entries = self._pairs[self._done : stop]
        self._done = stop
        key_places, key_hashes = index_check.keys_of(columns)
        keys = index_check.pairs_of(key_places, key_hashes, self._base)
        is_found = number_runs.is_in(keys, entries)
        is_stray = ~number_runs.is_in(entries, number_runs.distinct(keys))
        if is_stray.any():  # 5.4 and later index tags, too
            tags = index_check.pairs_of(*index_check.keys_of(columns, with_tags=True), self._base)
            is_stray &= ~number_runs.is_in(entries, number_runs.distinct(tags))
        self.strays += int(np.count_nonzero(is_stray))
        places = columns.numbers("physical_offset")
        has_keys = np.isin(places, key_places)
        lacks = np.isin(places, key_places[~is_found])
        codes = np.full(columns.count, INDEXED.index(Indexed.NO_KEYS), np.int8)
        codes[has_keys] = INDEXED.index(Indexed.INDEXED)
        rows = np.flatnonzero(lacks)
        codes[rows] = [INDEXED.index(self._why(int(place))) for place in places[rows]]
        return codes

    def _why(self, place: int) -> Indexed:
        """Say what it means that the index does not find a message."""
        if any(begin <= place <= end for begin, end in self._spans):
            return Indexed.MISSING
        if place <= self._setting.index_end or self._setting.index_end < 0:
            return Indexed.UNCOVERED
        return Indexed.MISSING if self._setting.is_stopped else Indexed.PENDING

    def settle(self) -> int:
        """Return how many entries point at no message with their key."""
        self.strays += len(self._pairs) - self._done
        self._done = len(self._pairs)
        return self.strays
