"""Planning of reads from running brokers: queue offsets become tasks.

Name servers and brokers provide routes, ends of queues and a few record sizes; ``plan`` splits the
selected queue offsets into partitions as for stores.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from reput.client.core.route_cache import TopicRoute
from reput.errors import InvalidOption, one_of
from reput.format import names
from reput.format.bodies import MessageQueue
from reput.spark import limits, plan
from reput.spark.filters import Constraint
from reput.spark.live.calls import (
    RECORD_BYTES,
    SAMPLE_COUNT,
    NotRegistered,
    ReadFailed,
    RetryingClient,
    all_of,
    queue_name,
)
from reput.spark.live.lookup import KeyLookup
from reput.spark.option_kinds import EARLIEST, LATEST
from reput.spark.options import Bound, ReadOptions
from reput.spark.rows import RowFilter
from reput.spark.store_planner import CLOCK_SLACK_MS, DataLoss, Summary, option_constraint

log = logging.getLogger("reput.spark")

_NAMES_SHOWN = 20

BatchTopics = Mapping[str, frozenset[str]]
"""Names of brokers, and of their topics with batch queues."""


@dataclass(frozen=True)
class LiveTask:
    """One partition with everything needed to read it. Picklable."""

    partition: plan.QueueRange
    broker: str
    """Name of the broker of all its queues."""
    record_bytes: float
    """Estimated record size, in bytes."""
    batch_topics: frozenset[str] = frozenset()
    """Topics of the broker with batch queues, which it does not filter by the messages' tags."""

    def after(self, count: int) -> "LiveTask":
        """Return the task without its first messages."""
        slices = []
        for part in self.partition.slices:
            skipped_count = min(count, part.count)
            count -= skipped_count
            if skipped_count < part.count:
                slices.append(replace(part, start=part.start + skipped_count))
        return replace(self, partition=replace(self.partition, slices=tuple(slices)))


class Loss:
    """Policy for messages that no longer exist."""

    def __init__(self, is_error: bool, summary: Summary | None = None) -> None:
        self._is_error = is_error
        self._summary = summary

    def report(self, what: str) -> None:
        """Raise ``DataLoss``, or log a warning."""
        if self._is_error:
            raise DataLoss(f"{what} (failOnDataLoss=false reads the rest)")
        log.warning("%s", what)
        if self._summary is not None:
            self._summary.add(f"data loss: {what}")


@dataclass(frozen=True)
class Extent:
    """Selected part of a queue."""

    queue: MessageQueue
    start: int
    stop: int
    record_bytes: float


class Planner:
    """Plans one read, or the positions of a stream. Runs in the loop.

    Args:
        client: Client for requests.
        options: Options of the read; ``live`` is set.
        pushed: Pushed-down predicates.
        summary: Records the decisions.
    """

    def __init__(
        self, client: RetryingClient, options: ReadOptions, pushed: Constraint, summary: Summary
    ) -> None:
        assert options.live is not None
        self._client = client
        self._options = options
        self._live = options.live
        self._pushed = pushed
        self._constraint = option_constraint(options).meet(pushed)
        self._summary = summary
        self._loss = Loss(options.fail_on_data_loss, summary)
        self._filter = RowFilter(options, self._constraint)
        self._known: dict[str, str] = {}
        self._offsets: dict[str, dict[str, dict[int, int]]] = {}

    async def tasks(self) -> list[LiveTask]:
        """Plan a batch read. Raises as ``LiveScan.tasks`` does."""
        queues = await self._checked_queues()
        if self._constraint.is_empty:
            return []
        ranges = await all_of(self._range(queue) for queue in queues)
        spans = {queue: span for queue, span in zip(queues, ranges, strict=True) if span}
        options = self._options
        asks_broker = self._constraint.tags is not None or options.keys or options.unique_keys
        batch_topics = await self._client.batch_topics(spans) if asks_broker else {}
        extents = await self._extents(spans, batch_topics)
        tasks = split(extents, self._options, batch_topics)
        total = int(sum((extent.stop - extent.start) * extent.record_bytes for extent in extents))
        self._summary.add(
            f"{self._live.name_server}: {len(extents)} of {len(queues)} queues, about {total} "
            f"bytes, {len(tasks)} partitions"
        )
        return tasks

    async def _extents(
        self, spans: Mapping[MessageQueue, tuple[int, int]], batch_topics: BatchTopics
    ) -> list[Extent]:
        """Return what to pull of the selected parts of queues."""
        options = self._options
        keys = options.unique_keys or options.keys
        if keys is None or options.scan != "auto":
            return await self._whole(spans)
        # The index of a broker has the keys of a batch, not those of the messages inside.
        batches = {queue for queue in spans if queue.topic in batch_topics[queue.broker_name]}
        whole = await self._whole({queue: spans[queue] for queue in batches})
        spans = {queue: span for queue, span in spans.items() if queue not in batches}
        lookup = KeyLookup(self._client, keys, is_unique=options.unique_keys is not None)
        ranges = await lookup.ranges(spans)
        count = sum(stop - start for _, start, stop in ranges)
        total = sum(stop - start for start, stop in spans.values())
        self._summary.add(
            f"{self._live.name_server}: {count} of {total} messages are pulled, by the brokers' "
            "index, and what it does not cover"
        )
        return [*whole, *(Extent(*each, RECORD_BYTES) for each in ranges)]

    async def _whole(self, spans: Mapping[MessageQueue, tuple[int, int]]) -> list[Extent]:
        """Return the parts of queues unsplit, with estimates of their record sizes."""
        sizes = await all_of(self._record_bytes(queue, *span) for queue, span in spans.items())
        return [
            Extent(queue, *span, size)
            for (queue, span), size in zip(spans.items(), sizes, strict=True)
        ]

    async def starts(self) -> dict[MessageQueue, int]:
        """Return the start queue offset of each selected queue.

        Raises:
            InvalidOption: Topics, brokers or offsets in the options do not exist.
            DataLoss: Messages in the options are deleted, unless ``failOnDataLoss`` is false.
            ReadFailed: A server does not reply, or refuses.
        """
        queues = await self._checked_queues()
        return dict(zip(queues, await all_of(map(self._start, queues)), strict=True))

    async def _start(self, queue: MessageQueue) -> int:
        low, high = await self._client.ends(queue)
        start = await self._bound(self._options.start, queue, low, high, is_start=True)
        if not low <= start <= high:
            self._loss.report(f"{queue_name(queue)} holds {low} to {high}, asked for was {start}")
        return min(max(start, low), high)

    async def _checked_queues(self) -> list[MessageQueue]:
        """Return the selected queues after checking that everything in the options exists."""
        brokers = await self.checked_brokers()
        queues = await self.queues(brokers.keys(), self._lose_topic)
        self._check_named_queues(queues)
        for bound, name in ((self._options.start, "starting"), (self._options.end, "ending")):
            if bound.group is not None:
                await self._load_consumer_offsets(f"{name}Offsets", bound.group, brokers)
        return queues

    # Which queues ---------------------------------------------------------------------------

    @property
    def registered(self) -> frozenset[str]:
        """Names of all brokers found by ``brokers``."""
        return frozenset(self._known)

    async def brokers(self) -> dict[str, str]:
        """Return the selected brokers that exist: name to cluster."""
        self._known = await self._client.brokers()
        live = self._live
        return {
            name: cluster
            for name, cluster in self._known.items()
            if live.cluster in (None, cluster) and (live.brokers is None or name in live.brokers)
        }

    async def checked_brokers(self) -> dict[str, str]:
        """Return the selected brokers, name to cluster; those of the options must exist."""
        # A name server that has just started knows no broker yet.
        brokers = await self._client.patiently("brokers", None, self._registered_brokers)
        self._check_brokers(brokers)
        return brokers

    async def _registered_brokers(self) -> dict[str, str]:
        """Return the selected brokers; raise ``NotRegistered`` if no broker is registered."""
        brokers = await self.brokers()
        if not self._known:
            raise NotRegistered("no broker is registered")
        return brokers

    def _check_brokers(self, chosen: Mapping[str, str]) -> None:
        live = self._live
        clusters = sorted(set(self._known.values()))
        if live.cluster is not None and live.cluster not in clusters:
            raise InvalidOption("cluster", live.cluster, _shown(live.cluster, clusters))
        there = [name for name, cluster in self._known.items() if live.cluster in (None, cluster)]
        there.sort()
        for name in sorted(live.brokers or ()):
            if name not in there:
                raise InvalidOption("broker", name, f"names of brokers: {_shown(name, there)}")
        for option, table in self._options.by_broker():
            for named in table.values():
                for name in named:
                    if name not in chosen:
                        shown = _shown(name, there)
                        raise InvalidOption(option, name, f"names of brokers: {shown}")

    async def queues(
        self,
        brokers: Collection[str],
        lose_topic: Callable[[str, TopicRoute | None], Awaitable[None]] | None = None,
    ) -> list[MessageQueue]:
        """Return the selected queues, by broker, topic and id.

        Args:
            brokers: Names of the selected brokers.
            lose_topic: Called with a topic of the options without queues, and its route.
        """
        named = self._options.topics or (self._options.assign or {}).keys()
        for topic in named:
            if topic.startswith(names.LMQ_PREFIX):
                raise InvalidOption(
                    "topic", topic, "topics; a light queue's messages are in its topic"
                )
        topics = sorted(named) if named else await self._client.topics()
        topics = [
            topic
            for topic in topics
            if self._filter.wants_topic(topic) and not topic.startswith(names.LMQ_PREFIX)
        ]
        routes = await all_of(self._client.route(topic) for topic in topics)
        queues: list[MessageQueue] = []
        ids = self._constraint.queue_ids
        for topic, route in zip(topics, routes, strict=True):
            readable = () if route is None else route.subscribe_queues
            there = [queue for queue in readable if queue.broker_name in brokers]
            if not there and named and lose_topic is not None:
                await lose_topic(topic, route)
            queues += [
                queue
                for queue in there
                if (ids is None or queue.queue_id in ids) and self._is_assigned(queue)
            ]
        return sorted(queues, key=lambda queue: (queue.broker_name, queue.topic, queue.queue_id))

    async def _lose_topic(self, topic: str, route: TopicRoute | None) -> None:
        where = f"name server {self._live.name_server}"
        if route is not None:
            self._loss.report(f"topic {topic!r} has no queue to read on the brokers asked for")
            return
        own = {*self._known.keys(), *self._known.values()}  # each has a topic of its name

        def rank(known: str) -> tuple[bool, str]:
            return names.kind_of(known) != "user" or known in own, known

        has = one_of(topic, sorted(await self._client.topics(), key=rank), _NAMES_SHOWN)
        self._loss.report(f"topic {topic!r} is not known to {where}; it has {has}")

    def _is_assigned(self, queue: MessageQueue) -> bool:
        assign = self._options.assign
        if assign is None:
            return True
        return queue.queue_id in assign.get(queue.topic, {}).get(queue.broker_name, ())

    def _check_named_queues(self, queues: Sequence[MessageQueue]) -> None:
        known = {(queue.topic, queue.broker_name, queue.queue_id) for queue in queues}
        for _, table in self._options.by_broker():
            for topic, brokers in table.items():
                for broker, named in brokers.items():
                    for queue_id in named:
                        is_known = (topic, broker, queue_id) in known
                        if not is_known and not self._is_pushed_out(topic, queue_id):
                            what = f"queue {topic}/{queue_id} of broker {broker}"
                            self._loss.report(f"{what} is not among the queues that are read")

    def _is_pushed_out(self, topic: str, queue_id: int) -> bool:
        """Return whether predicates exclude a queue, so that options may name it."""
        topics, ids = self._pushed.topics, self._pushed.queue_ids
        return (topics is not None and topic not in topics) or (
            ids is not None and queue_id not in ids
        )

    # Which offsets --------------------------------------------------------------------------

    async def _range(self, queue: MessageQueue) -> tuple[int, int] | None:
        """Return the selected queue offsets of a queue; None if there are none."""
        low, high = await self._client.ends(queue)
        start = await self._bound(self._options.start, queue, low, high, is_start=True)
        stop = await self._bound(self._options.end, queue, low, high, is_start=False)
        if not (low <= start <= high and low <= stop <= high):
            self._loss.report(
                f"{queue_name(queue)} holds {low} to {high}, asked for were {start} to {stop}"
            )
        start, stop = max(start, low), min(stop, high)
        span, times = self._constraint.queue_offsets, self._constraint.store_times_us
        start, stop = max(start, span.low), min(stop, span.high + 1)
        if not times.is_all and start < stop:
            begin_ms = times.low // 1000 - CLOCK_SLACK_MS
            end_ms = times.high // 1000 + CLOCK_SLACK_MS
            start = await self._offset_by_time(queue, begin_ms, start, stop)
            stop = await self._offset_by_time(queue, end_ms + 1, start, stop)
        return (start, stop) if start < stop else None

    async def _bound(
        self, bound: Bound, queue: MessageQueue, low: int, high: int, *, is_start: bool
    ) -> int:
        if bound.timestamp_ms is not None:
            return await self._offset_by_time(queue, bound.timestamp_ms, low, high)
        time_ms = _of_queue(bound.timestamps, queue)
        if time_ms is not None:
            queue_offset = await self._offset_by_time(queue, time_ms, low, high)
            if is_start and queue_offset == high and self._options.late_timestamp == "error":
                raise InvalidOption(
                    "startingOffsetsByTimestamp",
                    time_ms,
                    f"a time up to the last message of {queue_name(queue)}; or set "
                    "startingOffsetsByTimestampStrategy=latest to read nothing of it",
                )
            return queue_offset
        if bound.group is not None:
            table = self._offsets[queue.broker_name]
            offsets = table.get(f"{queue.topic}@{bound.group}", {})
            return offsets.get(queue.queue_id, low if is_start else high)
        asked = _of_queue(bound.offsets, queue)
        if asked is None:
            return high if bound.word == "latest" else low
        return {EARLIEST: low, LATEST: high}.get(asked, asked)

    async def _load_consumer_offsets(
        self, option: str, group: str, brokers: Collection[str]
    ) -> None:
        chosen = sorted(brokers)
        tables = await all_of(self._client.consumer_offsets(broker) for broker in chosen)
        self._offsets = dict(zip(chosen, tables, strict=True))
        groups = {key.rpartition("@")[2] for table in tables for key in table}
        if group not in groups:
            known = ", ".join(sorted(groups)) or "none: no group has committed an offset"
            raise InvalidOption(option, f"group:{group}", f"group: and one of {known}")

    async def _offset_by_time(self, queue: MessageQueue, time_ms: int, low: int, high: int) -> int:
        """Return the first queue offset in ``[low, high)`` at or after a time, else ``high``.

        Brokers before 5.1.1 return the nearest one, which is only the start of the search.
        """
        if low >= high or time_ms <= 0:
            return low
        first, stop = low, high  # it is one of these, or between them

        async def check(place: int) -> None:
            nonlocal first, stop
            if await self._store_time(queue, place) >= time_ms:
                stop = place
            else:
                first = place + 1

        guess = await self._client.search(queue, time_ms)
        for place in (guess, guess - 1, guess + 1, high - 1):
            if first <= place < stop:
                await check(place)
        while first < stop:
            await check((first + stop) // 2)
        return first

    async def _store_time(self, queue: MessageQueue, queue_offset: int) -> int:
        """Return the store time of a message, in ms; 0 if it is being deleted."""
        return (await self._client.sample(queue, queue_offset, 1)).store_timestamp

    async def _record_bytes(self, queue: MessageQueue, start: int, stop: int) -> float:
        """Return an estimate of the record size, from the first records and some in the middle."""
        places = {start, (start + stop) // 2} if stop - start > SAMPLE_COUNT else {start}
        count = size = 0
        for place in sorted(places):
            sample = await self._client.sample(queue, place)
            count, size = count + sample.count, size + sample.byte_count
        return size / count if count else RECORD_BYTES


def _shown(name: str, known: Sequence[str]) -> str:
    return one_of(name, known) or "none is registered"


def split(
    extents: Sequence[Extent], options: ReadOptions, batch_topics: BatchTopics | None = None
) -> list[LiveTask]:
    """Split the selected parts of queues into tasks of one broker each.

    Args:
        extents: The parts.
        options: Options of the read.
        batch_topics: Topics with batch queues, if brokers filter by tags.

    Raises:
        ReadFailed: The ends that the brokers report make too many.
    """
    total = sum((extent.stop - extent.start) * extent.record_bytes for extent in extents)
    target = plan.target_bytes(total, options.max_bytes_per_partition, options.min_partitions)
    _check_partitions(extents, target, options.max_records_per_partition)
    tasks: list[LiveTask] = []
    for number, broker in enumerate(sorted({extent.queue.broker_name for extent in extents})):
        mine = [extent for extent in extents if extent.queue.broker_name == broker]
        sizes = {
            (extent.queue.topic, extent.queue.queue_id): extent.record_bytes for extent in mine
        }
        slices = [
            plan.Extent(
                plan.QueueSlice(
                    extent.queue.topic, extent.queue.queue_id, extent.start, extent.stop
                ),
                extent.record_bytes,
            )
            for extent in mine
        ]
        for part in plan.split_queues(number, slices, target, options.max_records_per_partition):
            size = sum(each.count * sizes[each.topic, each.queue_id] for each in part.slices)
            count = sum(each.count for each in part.slices)
            of_broker = (batch_topics or {}).get(broker, frozenset())
            tasks.append(LiveTask(part, broker, size / max(count, 1), of_broker))
    return tasks


def _check_partitions(extents: Sequence[Extent], target: int, records_max: int | None) -> None:
    def count(extent: Extent) -> int:
        records = extent.stop - extent.start
        by_bytes = int(records * extent.record_bytes) // target
        return max(by_bytes, records // (records_max or records))

    limit = limits.LIVE_PARTITIONS
    total = sum(map(count, extents))
    if total > limit.maximum:
        largest = max(extents, key=count)
        place = f"{queue_name(largest.queue)} from {largest.start} to {largest.stop}"
        raise ReadFailed(str(limit.exceeded(total, place)))


def _of_queue(table: dict[str, dict[str, dict[int, int]]], queue: MessageQueue) -> int | None:
    return table.get(queue.topic, {}).get(queue.broker_name, {}).get(queue.queue_id)
