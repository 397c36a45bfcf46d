"""The dry run: compare the output of a dispatch with the existing files."""

import functools
from dataclasses import dataclass

import numpy as np

from reput.format import cq_unit
from reput.spark.jobs.dispatch import (
    index_writer,
    unit_files,
    write_tasks,
)
from reput.spark.jobs.dispatch.job import DispatchJob, Surveyed
from reput.spark.jobs.dispatch.write_plan import QueueKey
from reput.spark.jobs.dispatch.write_tasks import IndexCompared, IndexTask, UnitsCompared, UnitTask
from reput.store.files import paths
from reput.store.files.files import Folder, data_bytes, open_folder


@dataclass(frozen=True, slots=True)
class QueueDifference:
    """Differences in the units of a queue."""

    topic: str
    queue_id: int
    missing: int
    """Units without a file, or with zeros in their place."""
    different: int
    extra: int
    """Existing units that no record of the log has."""


@dataclass(frozen=True, slots=True)
class IndexDifference:
    """Difference in an index file; files are compared in order, not by name."""

    number: int
    """Number of the file, from 0, oldest first."""
    name: str | None
    """Name of the existing file; None if it is missing."""
    first_byte: int | None
    """Position of the first byte that differs; None if the file is missing or should not exist."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes that a dispatch would make."""

    compared_with: str
    queues: tuple[QueueDifference, ...]
    """Queues that differ."""
    index: tuple[IndexDifference, ...]
    """Index files that differ."""
    expired_units: int
    """Units of messages that the log no longer has; they are no difference."""

    @property
    def is_same(self) -> bool:
        """Whether the existing files are byte-identical with those a dispatch makes."""
        return not self.queues and not self.index


def compare_output(job: DispatchJob, surveyed: Surveyed, root: str) -> tuple[Difference, list[str]]:
    """Compare the output of a dispatch with the existing files, and change nothing.

    Returns:
        The difference, and the names that index files would have.
    """
    folder = open_folder(root)
    job.refuse_other_sizes(folder)
    present = list(unit_files.index_files(folder)) if job.is_indexed else []
    tasks: list[UnitTask | IndexTask] = [
        IndexTask(file, present[i] if i < len(present) else None)
        for i, file in enumerate(surveyed.index)
    ]
    done = job.runner(
        "compare",
        functools.partial(write_tasks.compare, surveyed.parts, root, job.config),
        [*tasks, *surveyed.unit_tasks()],
    )
    index_done = [result for result in done if isinstance(result, IndexCompared)]
    index = [
        IndexDifference(i, present[i] if i < len(present) else None, compared.first_byte)
        for i, compared in enumerate(index_done)
        if i >= len(present) or compared.first_byte is not None
    ]
    index += [IndexDifference(i, present[i], None) for i in range(len(index_done), len(present))]
    wrong: dict[QueueKey, list[int]] = {}
    for result in done:
        if isinstance(result, UnitsCompared):
            for key, (missing, different) in result.differences.items():
                counts = wrong.setdefault(key, [0, 0, 0])
                counts[0] += missing
                counts[1] += different
    expired = _find_extra(job, folder, surveyed, wrong)
    names: list[str] = []
    for compared in index_done:
        names.append(index_writer.name_of(compared.begin_timestamp, names[-1] if names else None))
    queues = tuple(QueueDifference(*key, *counts) for key, counts in sorted(wrong.items()))
    return Difference(root, queues, tuple(index), expired), names


def _find_extra(
    job: DispatchJob, folder: Folder, surveyed: Surveyed, wrong: dict[QueueKey, list[int]]
) -> int:
    """Count the units outside of each queue; return the number that belongs to expired messages.

    If only a range of times is dispatched, units of other messages are not counted.
    """
    log = job.reader.log
    is_whole = (surveyed.start, surveyed.stop) == (log.min_offset, surveyed.source.end)
    expired = 0
    for key, start, file_size in unit_files.queue_files(folder):
        if not job.is_wanted(key[0]):
            continue
        path = f"{paths.queue_folder(*key)}/{paths.offset_name(start)}"
        first, stop = surveyed.queues.extents.get(key, (0, 0))
        begin = start // cq_unit.SIZE
        low, high = first - begin, stop - begin
        if low <= 0 and high >= file_size // cq_unit.SIZE:
            continue
        size = data_bytes(folder, path, file_size) // cq_unit.SIZE * cq_unit.SIZE
        units = unit_files.read_units(folder, path, 0, size)
        is_outside = np.ones(len(units), bool)
        is_outside[max(low, 0) : max(high, 0)] = False
        is_outside &= unit_files.are_written(units)
        offsets = units["physical_offset"]
        is_expired = is_outside & (offsets < log.min_offset)
        expired += int(is_expired.sum())
        is_extra = is_outside & ~is_expired
        if not is_whole:
            is_extra &= (offsets >= surveyed.start) & (offsets < surveyed.stop)
        count = int(is_extra.sum())
        if count:
            wrong.setdefault(key, [0, 0, 0])[2] += count
    return expired
