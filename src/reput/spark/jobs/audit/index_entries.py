"""The index in an audit: checks of single files, and the entries that point into a range."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reput.format import kernels
from reput.spark import plan
from reput.spark.jobs.audit.inputs import AuditInputs, Codes
from reput.spark.jobs.audit.verdicts import INDEXED, Indexed
from reput.store.index.index_view import IndexFileView, IndexView
from reput.store.verify import index_check, number_runs
from reput.store.verify.index_check import CheckedFile, Coverage

_INDEXED = np.array(
    [
        INDEXED.index(
            {
                Coverage.IN_FILE: Indexed.MISSING,
                Coverage.PENDING: Indexed.PENDING,
            }.get(coverage, Indexed.UNCOVERED)
        )
        for coverage in Coverage
    ],
    np.int8,
)
"""Positions in ``INDEXED`` for messages that the index does not find, by ``Coverage``."""


@dataclass(frozen=True)
class IndexBlock:
    """Consecutive entries of an index file."""

    file: str
    first: int
    count: int


@dataclass(frozen=True)
class IndexResult:
    """The result of a task for an index file."""

    checked: CheckedFile
    stale: int
    """Entries that point after the end of the log."""


def check_index(inputs: AuditInputs, name: str) -> IndexResult:
    """Check an index file by itself, and summarize where its entries point."""
    view = _index_view(inputs, name)
    checked = index_check.check_file(view)
    stale = 0
    for first, count, _, high in checked.blocks.tolist():
        if high >= inputs.source.end:
            places = index_check.entries_of(view, first, count)["physical_offset"]
            stale += int(np.count_nonzero(places >= inputs.source.end))
    return IndexResult(checked, stale)


def _index_view(inputs: AuditInputs, name: str) -> IndexFileView:
    return next(file for file in IndexView(inputs.source.folder).files if file.name == name)


class IndexBlocks:
    """All blocks of index entries, sorted by the smallest physical offset in each."""

    def __init__(self, index: Sequence[CheckedFile]) -> None:
        self._files = [file.name for file in index]
        rows = [
            np.column_stack((np.full(len(file.blocks), number), file.blocks))
            for number, file in enumerate(index)
        ]
        blocks = np.concatenate([np.empty((0, 5), np.int64), *rows])
        self._rows: npt.NDArray[np.int64] = blocks[np.argsort(blocks[:, 3], kind="stable")]
        # The largest physical offset in all blocks up to each.
        self._reach = np.maximum.accumulate(self._rows[:, 4])

    def into(self, start: int, stop: int) -> tuple[IndexBlock, ...]:
        """Return the blocks with entries that may point into ``[start, stop)``."""
        low = int(np.searchsorted(self._reach, start))
        high = int(np.searchsorted(self._rows[:, 3], stop))
        rows = self._rows[low:high]
        rows = rows[rows[:, 4] >= start]
        return tuple(
            IndexBlock(self._files[number], first, count)
            for number, first, count, _, _ in rows.tolist()
        )


class RangeEntries:
    """The index entries that point into a range, in log order.

    Args:
        inputs: The store.
        part: The range.
        blocks: Blocks of entries some of which point into it.
    """

    def __init__(
        self, inputs: AuditInputs, part: plan.LogRange, blocks: Sequence[IndexBlock]
    ) -> None:
        self._inputs = inputs
        self._base = part.start
        pairs = [number_runs.NO_OFFSETS]
        views: dict[str, IndexFileView] = {}
        for block in blocks:
            if block.file not in views:
                views[block.file] = _index_view(inputs, block.file)
            entries = index_check.entries_of(views[block.file], block.first, block.count)
            places = entries["physical_offset"].astype(np.int64)
            inside = (places >= part.start) & (places < part.stop)
            hashes = entries["key_hash"][inside].astype(np.int64)
            pairs.append(index_check.pairs_of(places[inside], hashes, self._base))
        self._pairs = np.sort(np.concatenate(pairs))
        self._done = 0
        self._strays = 0

    def judge(self, columns: kernels.Columns, end: int) -> Codes:
        """Return positions in ``INDEXED`` for the records of a window that ends at ``end``."""
        stop = int(np.searchsorted(self._pairs, (end - self._base) << 31))
        entries = self._pairs[self._done : stop]
        self._done = stop
        key_places, is_found, is_stray = index_check.compare_keys(columns, entries, self._base)
        self._strays += int(np.count_nonzero(is_stray))
        places = columns.numbers("physical_offset")
        has_keys = np.isin(places, key_places)
        lacks = np.isin(places, key_places[~is_found])
        codes = np.full(columns.count, INDEXED.index(Indexed.NO_KEYS), np.int8)
        codes[has_keys] = INDEXED.index(Indexed.INDEXED)
        rows = np.flatnonzero(lacks)
        coverage = index_check.coverage(
            places[rows], self._inputs.index_spans, self._inputs.is_stopped
        )
        codes[rows] = _INDEXED[coverage]
        return codes

    def settle(self) -> int:
        """Return the number of entries that point at no message with their key."""
        self._strays += len(self._pairs) - self._done
        self._done = len(self._pairs)
        return self._strays
