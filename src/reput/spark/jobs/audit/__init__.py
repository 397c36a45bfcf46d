"""The job ``audit``: a verdict for each message, and for everything that is no message.

    result = audit(spark, "/data/store", table="/data/audit")
    result.is_clean, result.lost_count
    messages(spark, "/data/audit").filter("verdict = 'lost'")
    audit_page.render(result)                     # reput.spark.pages.audit: one HTML page

    index    a task per index file: hash chains, and where entries point               (reads)
    records  a task per range of the log: each record against its unit, its index entries and the
             consumer offsets of groups; rows of the table, if there is one            (reads log)
    units    a task for some queues: units that no record claimed                      (reads)
    sum up   the driver: holes and the messages they took, groups, counts
    links    Spark, on the table: copies, deliveries, ends of transactions             (shuffles)

The log is read once. Queues and index are read about once: each range reads the units at the queue
offsets of its records, and the blocks of index entries that point into it; units that a record
claimed are not read again. Tasks return counts, runs and samples, and the driver merges a few
thousand results at a time, so that its memory follows queues and damage, not messages. Only
comparisons of messages with each other shuffle, and only with a table.

``store/verify`` judges; the job distributes, writes the table, and compares messages.
"""

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from reput.clock import SystemClock
from reput.errors import InvalidOption
from reput.format import cq_unit
from reput.spark import plan
from reput.spark.jobs import queue_runs
from reput.spark.jobs.audit import cross_checks, message_table
from reput.spark.jobs.audit.index_entries import IndexBlocks, check_index
from reput.spark.jobs.audit.inputs import AuditInputs
from reput.spark.jobs.audit.judge_log import RecordsTask, judge_records
from reput.spark.jobs.audit.judge_units import UnclaimedUnits, UnitsTask, judge_units
from reput.spark.jobs.audit.totals import AuditTotals
from reput.spark.jobs.audit.verdicts import AuditResult, Fault
from reput.spark.jobs.dispatch.extract import LogSource
from reput.spark.jobs.dispatch.job import open_store
from reput.spark.jobs.running import Progress, Runner, runner_on
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.files import absolute
from reput.store.queues import tombstones
from reput.store.reader import Condition
from reput.store.tables.config_tables import ConsumerOffset, Table
from reput.store.verify.index_check import CheckedFile, spans_of
from reput.store.verify.queue_rows import redispatch_from

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RANGE_BYTES = 128 * 1024 * 1024
"""Approximate bytes of the log that a task reads."""
RANGE_BYTES_MAX = 1 << 31
"""Limit of a range: an offset in it and a key's hash are packed into one number."""
SAMPLE = 100
"""Maximum number each of lost messages, holes, and findings by kind in a result."""
_TASKS_AT_ONCE = 4096
"""Task results that the driver holds at a time."""
_UNITS_A_TASK = 4 * 1024 * 1024

Task = TypeVar("Task")
Done = TypeVar("Done")


def audit(
    spark: "SparkSession | None",
    store: str,
    *,
    config: StoreConfig | None = None,
    table: str | None = None,
    now_ms: int | None = None,
    allow_live: bool = False,
    sample: int = SAMPLE,
    range_bytes: int = RANGE_BYTES,
    progress: Progress | None = None,
) -> AuditResult:
    """Audit a store: give each message a verdict, and find faults in everything else.

    Args:
        spark: The session; without one tasks run in this process, and there is no table.
        store: The store's folder or URI, the same on the driver and all workers.
        config: The store's settings: folders of its log, delay levels.
        table: Folder or URI for the table of all messages, the same on the driver and all workers.
            The table of an earlier audit is replaced. Without a table there are no checks of
            messages against each other: copies, missing deliveries, ends of transactions.
        now_ms: Time at which delayed messages are due or not; by default the driver's clock.
        allow_live: Accept a running broker: the store is audited up to the present end of its log,
            and messages that the broker has not dispatched yet are not lost.
        sample: Lost messages, holes, and findings of each kind to list; all are counted.
        range_bytes: Approximate bytes of the log that a task reads, up to 2 GiB.
        progress: Called with the number of completed tasks.

    Returns:
        The result. A damaged store is no error.

    Raises:
        InvalidOption: An argument is wrong, or ``table`` holds other files.
        StoreUnavailable: The folder is no store, or is in use without ``allow_live``.
        CorruptRecord: Two log files overlap; such a log cannot be audited.
        WriteFailed: The table cannot be written to.
        TaskFailed: A task failed as often as Spark retries it. Run the audit again.
    """
    if spark is None and table is not None:
        raise InvalidOption("table", table, "none, without a Spark session")
    runner = runner_on(spark, "audit", progress)
    result = run_audit(
        runner,
        store,
        config=config,
        table=table,
        now_ms=now_ms,
        allow_live=allow_live,
        sample=sample,
        range_bytes=range_bytes,
    )
    if spark is not None and table is not None:
        runner.report("links", 0, 1)
        result = cross_checks.complete(spark, result, table)
        message_table.finish(table, result.as_json())
        runner.report("links", 1, 1)
    return result


def messages(spark: "SparkSession", table: str) -> "DataFrame":
    """Return the table of an audit, a row per message. Columns: docs/reference/audit.md.

    Raises:
        InvalidOption: No audit has finished a table there.
    """
    return cross_checks.messages(spark, table)


def run_audit(
    runner: Runner,
    store: str,
    *,
    config: StoreConfig | None = None,
    table: str | None = None,
    now_ms: int | None = None,
    allow_live: bool = False,
    sample: int = SAMPLE,
    range_bytes: int = RANGE_BYTES,
) -> AuditResult:
    """Run an audit without the links, with any runner of tasks."""
    if not 1 <= range_bytes <= RANGE_BYTES_MAX:
        raise InvalidOption("range_bytes", range_bytes, f"a number from 1 to {RANGE_BYTES_MAX}")
    if sample < 0:
        raise InvalidOption("sample", sample, "a number from 0 on")
    store = absolute(store)  # workers have other working directories
    settings = replace(config or StoreConfig(), store_path_root_dir=store)
    now = SystemClock().now_ms() if now_ms is None else now_ms
    job = _Audit(runner, store, settings, now, allow_live=allow_live, sample=sample, table=table)
    return job.run(range_bytes)


class _Audit:
    """An audit, on the driver."""

    def __init__(
        self,
        runner: Runner,
        store: str,
        config: StoreConfig,
        now_ms: int,
        *,
        allow_live: bool,
        sample: int,
        table: str | None,
    ) -> None:
        self._runner = runner
        self._store = store
        self._config = config
        self._now_ms = now_ms
        self._sample = sample
        self._table = None if table is None else absolute(table)
        self._reader = open_store(store, config, allow_live=allow_live)
        self._end = max(self._reader.end_offset, self._reader.log.min_offset)
        self._offsets: list[ConsumerOffset] = []

    def run(self, range_bytes: int) -> AuditResult:
        """Run all stages."""
        reader, log = self._reader, self._reader.log
        totals = AuditTotals(reader, self._end, self._sample)
        totals.check_files()
        inputs = self._inputs(totals)
        if self._table is not None:
            message_table.prepare(self._table)
        index = self._check_index(inputs, totals)
        inputs = replace(inputs, index_spans=spans_of(index))
        files = [(file.start, file.nominal_end) for file in log.files]
        cuts = plan_cuts(log.min_offset, self._end, files)
        ranges = plan.split_log(0, cuts, self._end, range_bytes)
        judge = functools.partial(judge_records, inputs, self._table)
        for records in self._in_waves("records", judge, _record_tasks(ranges, index)):
            totals.add_records(records)
        totals.settle_records()
        holes = totals.hole_places()
        judge_unclaimed = functools.partial(judge_units, inputs, holes, self._table)
        for units in self._in_waves("units", judge_unclaimed, self._unit_tasks(totals)):
            totals.add_units(units)
        totals.settle_units()
        totals.add_groups(self._offsets)
        totals.add_delays(inputs.delays)
        return totals.result(self._store, self._now_ms, self._table)

    def _in_waves(
        self, stage: str, function: Callable[[Task], Done], tasks: Iterator[Task]
    ) -> Iterator[Done]:
        """Run tasks, a few thousand at a time."""
        while wave := list(itertools.islice(tasks, _TASKS_AT_ONCE)):
            yield from self._runner(stage, function, wave)

    # Inputs of tasks

    def _inputs(self, totals: AuditTotals) -> AuditInputs:
        reader = self._reader
        topics: Iterable[str] = totals.table(paths.TOPICS, reader.topics, {})
        self._offsets = totals.table(paths.CONSUMER_OFFSETS, reader.consumer_offsets, [])
        delays = totals.table(paths.DELAY_OFFSETS, reader.delay_offsets, dict[int, int]())
        totals.table(paths.SUBSCRIPTION_GROUPS, reader.subscription_groups, dict[str, Table]())
        if reader.state.checkpoint_problem is not None:
            reason = reader.state.checkpoint_problem.reason
            totals.find(Fault.TABLE, paths.CHECKPOINT, reason)
        source = LogSource(
            self._store,
            self._config,
            self._end,
            None,
            tombstones.read(reader.folder),
            frozenset(topic.name for topic in reader.folder.entries(paths.BATCH_CONSUME_QUEUE)),
        )
        return AuditInputs(
            source,
            now_ms=self._now_ms,
            sample=self._sample,
            is_live=reader.is_live,
            is_stopped=reader.state.condition is Condition.CLEAN,
            redispatch_from=redispatch_from(reader),
            known_topics=frozenset(topics),
            groups=_by_topic(self._offsets),
            delays=delays,
            index_spans=spans_of(()),
        )

    # Tasks

    def _check_index(self, inputs: AuditInputs, totals: AuditTotals) -> list[CheckedFile]:
        """Check each index file; return the files with entries."""
        files = iter([view.name for view in self._reader.index.files])
        check = functools.partial(check_index, inputs)
        results = list(self._in_waves("index", check, files))
        for result in results:
            totals.add_index(result)
        return [result.checked for result in results if len(result.checked.blocks)]

    def _unit_tasks(self, totals: AuditTotals) -> Iterator[UnitsTask]:
        gathered: list[UnclaimedUnits] = []
        number = count = 0
        for queue in self._unclaimed(totals):
            gathered.append(queue)
            count += queue_runs.count(queue.runs)
            if count >= _UNITS_A_TASK:
                yield UnitsTask(number, tuple(gathered))
                gathered, count = [], 0
                number += 1
        if gathered:
            yield UnitsTask(number, tuple(gathered))

    def _unclaimed(self, totals: AuditTotals) -> Iterator[UnclaimedUnits]:
        """Yield the units that no record claimed, queue by queue, in slices for one task."""
        for topic, queue_ids in self._reader.queue_ids.items():
            for queue_id in queue_ids:
                view = self._reader.queue(topic, queue_id)
                claimed = totals.claimed.get((topic, queue_id), [])
                first = view.files[0].start // cq_unit.SIZE if view.files else 0
                stop = max(view.max_offset, claimed[-1][1] if claimed else 0)
                first_claimed = claimed[0][0] if claimed else stop
                for runs in _sliced(queue_runs.without([(first, stop)], claimed)):
                    present = tuple(totals.present_in((topic, queue_id), list(runs)))
                    yield UnclaimedUnits(topic, queue_id, runs, first_claimed, present)
        for topic, queue_ids in self._reader.batch_queue_ids.items():
            for queue_id in queue_ids:
                claimed = totals.claimed_batches.get((topic, queue_id), [])
                stop = len(self._reader.batch_queue(topic, queue_id).units)
                rest = queue_runs.without([(0, stop)], claimed)
                if rest:
                    yield UnclaimedUnits(topic, queue_id, tuple(rest), stop, is_batch=True)


def plan_cuts(start: int, end: int, files: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans that no range of the log may cross: files, and gaps between them."""
    edges = {start, end}
    for file_start, file_end in files:
        edges |= {min(max(file_start, start), end), min(max(file_end, start), end)}
    ordered = sorted(edges)
    return list(itertools.pairwise(ordered))


def _record_tasks(
    ranges: Sequence[plan.LogRange], index: Sequence[CheckedFile]
) -> Iterator[RecordsTask]:
    """Yield a task per range, with the blocks of index entries that point into it."""
    blocks = IndexBlocks(index)
    for part in ranges:
        yield RecordsTask(part, blocks.into(part.start, part.stop))


def _sliced(runs: Iterable[queue_runs.Run]) -> Iterator[tuple[queue_runs.Run, ...]]:
    """Yield runs in groups of at most ``_UNITS_A_TASK`` units."""
    group: list[queue_runs.Run] = []
    room = _UNITS_A_TASK
    for start, stop in runs:
        while start < stop:
            cut = min(stop, start + room)
            group.append((start, cut))
            room -= cut - start
            start = cut
            if not room:
                yield tuple(group)
                group, room = [], _UNITS_A_TASK
    if group:
        yield tuple(group)


def _by_topic(
    offsets: Iterable[ConsumerOffset],
) -> Mapping[str, Mapping[str, Mapping[int, int]]]:
    by_topic: defaultdict[str, dict[str, dict[int, int]]] = defaultdict(dict)
    for entry in offsets:
        by_topic[entry.topic].setdefault(entry.group, {})[entry.queue_id] = entry.consumer_offset
    return dict(by_topic)
