"""The tasks of a dispatch, which run on executors, any number of times.

The output of a task depends on the log and on the driver's plan alone, so a task that runs twice,
at once or after a kill, writes the same bytes to the same places.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from reput.format import index_entry
from reput.spark import plan
from reput.spark.jobs.dispatch import (
    extract,
    index_writer,
    spill,
    unit_files,
)
from reput.spark.jobs.dispatch.extract import EntryRows, LogSource
from reput.spark.jobs.dispatch.index_writer import DraftOutput, FileOutput, IndexWriter
from reput.spark.jobs.dispatch.spill import RangeRows, SavedRows
from reput.spark.jobs.dispatch.write_plan import IndexFile, QueueKey, Share, Survey
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.files import open_folder


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """A range to read."""

    number: int
    part: plan.LogRange


@dataclass(frozen=True, slots=True)
class UnitTask:
    """The units of a range to write."""

    number: int
    shares: dict[QueueKey, Share]


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Entries to put into an index file."""

    file: IndexFile
    name: str | None
    """Name of the file; in a comparison None if it does not exist."""
    header: index_entry.Header = index_writer.NO_ENTRIES
    """Present header of the file."""
    seed_ms: int = 0
    """Store time of the last entry before the ranges."""

    def rows(self, parts: RangeRows) -> Iterator[EntryRows]:
        """Yield the entries."""
        for span in self.file.spans:
            yield parts.entries(span.range_number, span.start, span.stop)

    def before_ms(self, parts: RangeRows) -> int:
        """Return the store time of the entry before the file's first; 0 if there is none."""
        if self.file.before is None:
            return self.seed_ms
        number, entry = self.file.before
        return int(parts.entries(number, entry, entry + 1)["store_timestamp"][0])


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The folders that tasks write to."""

    queues: str
    """Folder with the topics' folders."""
    index: str
    config: StoreConfig
    is_draft: bool
    """True if the files are not used before all of them are durable."""

    @property
    def index_bytes(self) -> int:
        """Size of an index file."""
        return index_bytes(self.config)

    def queue(self, key: QueueKey) -> str:
        """Return the folder of a queue."""
        return f"{self.queues}/{key[0]}/{key[1]}"


def index_bytes(config: StoreConfig) -> int:
    """Return the size of an index file."""
    return index_entry.entry_position(config.max_index_num, config.max_hash_slot_num)


def survey(
    source: LogSource, is_indexed: bool, saved: SavedRows | None, task: SurveyTask
) -> Survey:
    """Read a range, and save its rows if ``saved`` is given."""
    rows = extract.read(source, task.part, is_indexed=is_indexed)
    if saved is not None:
        saved.save(task.number, rows)
    return rows.survey


def write(
    parts: RangeRows, place: WriteTarget, task: UnitTask | IndexTask
) -> index_entry.Header | None:
    """Write units or an index file; return the header of the latter."""
    config = place.config
    if isinstance(task, UnitTask):
        rows = parts.units(task.number)
        for key, share in task.shares.items():
            low, high = share.rows
            units = spill.made_units(rows[low:high], share)
            size = config.mapped_file_size_consume_queue
            unit_files.write_units(
                place.queue(key), size, share.first, units, is_start=share.is_start
            )
        return None
    slots = config.max_hash_slot_num
    newest = index_writer.newest_of(open_folder(place.index), str(task.name), slots, task.header)
    writer = IndexWriter(slots, task.header, task.before_ms(parts), newest)
    kind = DraftOutput if place.is_draft else FileOutput
    with kind(f"{place.index}/{task.name}", place.index_bytes) as output:
        return writer.put(task.rows(parts), output)


@dataclass(frozen=True, slots=True)
class UnitsCompared:
    """Differences between existing units and a range's."""

    differences: dict[QueueKey, tuple[int, int]]
    """Queue -> numbers of missing and of different units."""


@dataclass(frozen=True, slots=True)
class IndexCompared:
    """The difference in an existing index file."""

    begin_timestamp: int
    first_byte: int | None
    """The first byte that differs."""


def compare(
    parts: RangeRows, root: str, config: StoreConfig, task: UnitTask | IndexTask
) -> UnitsCompared | IndexCompared:
    """Compare the output of a task with the existing file."""
    folder = open_folder(root)
    if isinstance(task, IndexTask):
        return _compare_index(parts, root, config, task)
    differences = {}
    rows = parts.units(task.number)
    for key, share in task.shares.items():
        missing = different = 0
        low, high = share.rows
        units = spill.made_units(rows[low:high], share)
        size = config.mapped_file_size_consume_queue
        for file_start, position, made in unit_files.by_file(share.first, units, size):
            name = f"{paths.queue_folder(*key)}/{paths.offset_name(file_start)}"
            present = unit_files.read_units(folder, name, position, made.nbytes)
            wrong = made != present
            absent = wrong & ~unit_files.are_written(present)
            missing += int(absent.sum())
            different += int((wrong & ~absent).sum())
        if missing or different:
            differences[key] = (missing, different)
    return UnitsCompared(differences)


def _compare_index(
    parts: RangeRows, root: str, config: StoreConfig, task: IndexTask
) -> IndexCompared:
    begin = int(next(task.rows(parts))["store_timestamp"][0])
    if task.name is None:
        return IndexCompared(begin, None)
    slots = config.max_hash_slot_num
    newest = np.zeros(slots, np.int32)
    writer = IndexWriter(slots, task.header, task.before_ms(parts), newest)
    output = index_writer.ComparingOutput(
        open_folder(root), f"{paths.INDEX}/{task.name}", index_bytes(config)
    )
    writer.put(task.rows(parts), output)
    return IndexCompared(begin, output.first_byte())
