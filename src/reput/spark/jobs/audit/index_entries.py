"""The index in an audit: files in themselves, and the entries that point into a range."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reput.format import kernels
from reput.spark import plan
from reput.spark.jobs.audit.inputs import AuditInputs, Codes
from reput.spark.jobs.audit.verdicts import (
    INDEXED,
    Indexed,
)
from reput.store.index_view import IndexFileView, IndexView
from reput.store.verify import index_check, number_runs
from reput.store.verify.index_check import CheckedFile, Coverage

_INDEXED = np.array(
    [
        INDEXED.index(
            {
                Coverage.IN_FILE: Indexed.MISSING,
                Coverage.PENDING: Indexed.PENDING,
            }.get(where, Indexed.UNCOVERED)
        )
        for where in Coverage
    ],
    np.int8,
)
"""What it means that the index does not find a message, by ``Coverage``."""


@dataclass(frozen=True)
class IndexBlock:
    """Some entries of an index file, and where they point."""

    file: str
    first: int
    count: int


@dataclass(frozen=True)
class IndexFound:
    """What a task finds in an index file."""

    checked: CheckedFile
    stale: int
    """Entries that point after the end of the log."""


def check_index(setting: AuditInputs, name: str) -> IndexFound:
    """Check an index file in itself, and note where its entries point."""
    view = _index_view(setting, name)
    checked = index_check.check_file(view)
    stale = 0
    for first, count, _, high in checked.blocks.tolist():
        if high >= setting.source.end:
            places = index_check.entries_of(view, first, count)["physical_offset"]
            stale += int(np.count_nonzero(places >= setting.source.end))
    return IndexFound(checked, stale)


def _index_view(setting: AuditInputs, name: str) -> IndexFileView:
    return next(one for one in IndexView(setting.source.folder).files if one.name == name)


class RangeEntries:
    """The index entries that point into a range, in the order of the log.

    Args:
        setting: The store.
        part: The range.
        blocks: Entries some of which point into it.
    """

    def __init__(
        self,
        setting: AuditInputs,
        part: plan.LogRange,
        blocks: Sequence[IndexBlock],
    ) -> None:
        self._setting = setting
        self._base = part.start
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
        key_places, is_found, is_stray = index_check.compare_keys(columns, entries, self._base)
        self.strays += int(np.count_nonzero(is_stray))
        places = columns.numbers("physical_offset")
        has_keys = np.isin(places, key_places)
        lacks = np.isin(places, key_places[~is_found])
        codes = np.full(columns.count, INDEXED.index(Indexed.NO_KEYS), np.int8)
        codes[has_keys] = INDEXED.index(Indexed.INDEXED)
        rows = np.flatnonzero(lacks)
        where = index_check.coverage(
            places[rows], self._setting.index_spans, self._setting.is_stopped
        )
        codes[rows] = _INDEXED[where]
        return codes

    def settle(self) -> int:
        """Return how many entries point at no message with their key."""
        self.strays += len(self._pairs) - self._done
        self._done = len(self._pairs)
        return self.strays
