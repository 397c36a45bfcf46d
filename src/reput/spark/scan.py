"""Reads of any view: each is planned on the driver, and its partitions are read on the executors.

With any plan of view ``messages``, every row is checked against all conditions.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from reput.spark import plan, views
from reput.spark.archive import files as archive_files
from reput.spark.filters import Constraint
from reput.spark.options import ReadOptions
from reput.spark.partition_reader import PartitionReader, open_for
from reput.spark.rows import RowMaker, message_fields, warn_of_ignored
from reput.spark.store_opening import store_paths
from reput.spark.store_planner import StorePlanner, Summary, Task, check_brokers, option_constraint

log = logging.getLogger("reput.spark")


class Scan(Protocol):
    """One batch read."""

    def tasks(self) -> Sequence[Any]:
        """Plan the read."""

    def read(self, task: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""


def fields_of(options: ReadOptions) -> dict[str, pa.DataType]:
    """Return the columns of a read with these options, by name."""
    return message_fields(options) if options.view == "messages" else views.fields(options)


def scan_of(
    options: ReadOptions, columns: Sequence[str], constraint: Constraint | None = None
) -> Scan:
    """Return the read of a view, of stores or of brokers.

    Args:
        options: Options of the read.
        columns: Names of the selected columns, in order, at least one.
        constraint: Conditions on rows; views other than ``messages`` ignore them.
    """
    if options.view != "messages":
        return _ViewScan(options, columns)
    if options.live is None:
        return MessageScan(options, columns, constraint)
    from reput.spark.live.scan import LiveScan  # reads of stores need no network

    return LiveScan(options, columns, constraint)


class _ViewScan:
    """The views other than messages."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    def tasks(self) -> list[views.ViewPart]:
        return views.partitions(self._options)

    def read(self, task: views.ViewPart) -> Iterator[pa.RecordBatch]:
        return views.read(self._options, self._columns, task)


class MessageScan:
    """One batch read of view ``messages``.

    Args:
        options: Options of the read.
        columns: Names of the selected columns, in order.
        constraint: Pushed-down predicates.
    """

    def __init__(
        self, options: ReadOptions, columns: Sequence[str], constraint: Constraint | None = None
    ) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._constraint = option_constraint(options).meet(constraint or Constraint())
        self.summary = Summary()

    # On the driver --------------------------------------------------------------------------

    def tasks(self) -> list[Task]:
        """Plan the read.

        Raises:
            StoreUnavailable: A path is not a store, or is in use.
            InvalidOption: Topics or offsets in the options do not fit the store.
            DataLoss: Messages in the options are deleted, unless ``failOnDataLoss`` is false.
        """
        tasks = [task for planner in self._planners() for task in planner.tasks()]
        for line in self.summary.lines:
            log.info("%s", line)
        return tasks

    def counts(self) -> list[tuple[str, str, int, int]] | None:
        """Return the number of rows of each queue: (broker, topic, queue id, rows).

        Returns:
            None if a read is necessary.

        Raises:
            ReputError: As ``tasks``.
        """
        counts = []
        for planner in self._planners():
            of_store = planner.counts()
            if of_store is None:
                return None
            counts += [(planner.broker, *queue, rows) for queue, rows in of_store.items()]
        return counts

    def _planners(self) -> list[StorePlanner]:
        self.summary.add(f"wanted: {self._constraint.describe()}")
        warn_of_ignored(self._options)
        planners = [
            _planner_of(path)(number, path, self._options, self._constraint, self.summary)
            for number, path in enumerate(store_paths(self._options))
        ]
        check_brokers(self._options, {planner.broker for planner in planners})
        return planners

    # On the executors -----------------------------------------------------------------------

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition.

        Raises:
            CorruptRecord: A record cannot be decoded and mode is FAILFAST.
        """
        reader = open_for(task.facts, self._options.allow_live)
        maker = RowMaker(self._columns, self._options, task.facts.broker)
        reading = PartitionReader(reader, self._options, self._constraint, task.facts, maker)
        match task.partition:
            case plan.LogRange():
                return reading.log_range(task.partition)
            case plan.QueueRange():
                return reading.queue_range(task.partition)
            case plan.Points():
                return reading.points(task.partition)
            case plan.ArchiveRows():
                return reading.archive_rows(task.partition)
            case plan.ArchiveDamage():
                return reading.archive_damage(task.partition)


def _planner_of(path: str) -> type[StorePlanner]:
    if archive_files.is_archive(path):
        from reput.spark.archive.planner import ArchivePlanner

        return ArchivePlanner
    return StorePlanner
