"""The rows of units and entries that the first pass of a dispatch leaves for the second, by range.

They are in files below the target's drafts, so that the log is read once. A dry run writes nothing
and reads the log again.

    00000012.units     rows of ``UNIT_ROW``, queue by queue
    00000012.entries   rows of ``ENTRY_ROW``, in log order
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from reput.spark import plan
from reput.spark.jobs.dispatch import (
    extract,
    unit_files,
    write_plan,
)
from reput.spark.jobs.dispatch.extract import (
    ENTRY_ROW,
    UNIT_ROW,
    EntryRows,
    LogSource,
    RangeRead,
    StoreChanged,
    UnitRows,
)
from reput.spark.jobs.dispatch.write_plan import Share, Survey
from reput.store.queues.consume_queue_view import UNIT_TYPE


class RangeRows(Protocol):
    """The rows of each range."""

    def units(self, number: int) -> UnitRows:
        """Return the units of a range."""

    def entries(self, number: int, start: int, stop: int) -> EntryRows:
        """Return some index entries of a range."""


@dataclass(frozen=True)
class SavedRows:
    """Rows in files of a folder that driver and workers share."""

    folder: str

    def _path(self, number: int, kind: str) -> str:
        return f"{self.folder}/{number:08d}.{kind}"

    def save(self, number: int, rows_read: RangeRead) -> None:
        """Save the rows of a range. A task that runs twice writes the same bytes."""
        for kind, rows in (("units", rows_read.units), ("entries", rows_read.entries)):
            data = rows.view(np.uint8).data
            unit_files.write_at(self._path(number, kind), len(data), [(0, data)])

    def units(self, number: int) -> UnitRows:
        """Return the units of a range."""
        return np.fromfile(self._path(number, "units"), UNIT_ROW)

    def entries(self, number: int, start: int, stop: int) -> EntryRows:
        """Return some index entries of a range."""
        path, size = self._path(number, "entries"), ENTRY_ROW.itemsize
        return np.fromfile(path, ENTRY_ROW, count=stop - start, offset=start * size)


@dataclass(frozen=True)
class ReReadRows:
    """Rows that are extracted from the log again; those of the last range are cached."""

    source: LogSource
    ranges: Sequence[plan.LogRange]
    is_indexed: bool

    @functools.cached_property
    def _last(self) -> dict[int, RangeRead]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cached rows."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def _read(self, number: int) -> RangeRead:
        if number not in self._last:
            self._last.clear()
            self._last[number] = extract.read(
                self.source, self.ranges[number], is_indexed=self.is_indexed
            )
        return self._last[number]

    def units(self, number: int) -> UnitRows:
        """Return the units of a range."""
        return self._read(number).units

    def entries(self, number: int, start: int, stop: int) -> EntryRows:
        """Return some index entries of a range."""
        rows = self._read(number).entries[start:stop]
        if len(rows) != stop - start:
            raise StoreChanged(f"range {number} has fewer index entries than were found before")
        return rows


def detail(parts: RangeRows, number: int, survey: Survey, key: write_plan.QueueKey) -> None:
    """Split the runs of a queue in the survey of a range into a run per record."""
    low, high = survey.rows[key]
    survey.runs[key] = extract.runs_of(parts.units(number)[low:high], is_detailed=True)


def made_units(rows: UnitRows, share: Share) -> npt.NDArray[np.void]:
    """Return the units that a queue gets from a range, as a single dispatcher would put them.

    Raises:
        StoreChanged: They are not the units of the plan.
    """
    units = np.zeros(share.stop - share.first, UNIT_TYPE)
    queue_end, row = share.before, 0
    for run in extract.runs_of(rows, is_detailed=share.is_detailed):
        done = write_plan.step(queue_end, run)
        if done.after.max_offset > done.first:
            own = max(run.start, done.first)
            source = row + own - run.start
            if done.first < share.first or done.after.max_offset > share.stop:
                break
            # Before a gap: lost messages get the unit of the next one.
            units[done.first - share.first : own - share.first] = rows["unit"][source]
            units[own - share.first : run.stop - share.first] = rows["unit"][
                source : row + run.stop - run.start
            ]
        queue_end = done.after
        row += run.stop - run.start
    if queue_end.max_offset != share.stop:
        raise StoreChanged("a queue has other units than were found before")
    return units
