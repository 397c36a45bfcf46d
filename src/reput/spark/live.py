"""View ``messages`` over running brokers: the same rows as from their stores, without the folders.

Planning asks name servers and brokers for routes, ends of queues and a few sizes; it cuts the
wanted queue offsets into partitions as ``plan`` does for stores. A task pulls its ranges with
several requests on the way at a time, and decodes the records as a scan of a store does: a reply
to a pull holds record bytes unchanged.

Nothing is left behind on a broker: pulls come in the name of a group that every broker has
(``TOOLS_CONSUMER``), say what is wanted themselves instead of by heartbeats, commit no offset, and
ask for no offset that a queue does not have, which brokers would note in a topic.

The connections of a process are kept for its next task: Spark uses Python workers again.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reput.client.admin import Admin
from reput.client.blocking import Facade
from reput.client.config import ClientConfig
from reput.client.core import requests
from reput.client.core.route_cache import NoRoute, TopicRoute
from reput.errors import Answered, CorruptRecord, InvalidOption, RemotingError, ReputError
from reput.format import bodies, headers, kernels, message as record, names, sys_flag as flags
from reput.format.bodies import MessageQueue
from reput.format.codes import PullFlag, RequestCode, ResponseCode
from reput.format.message import Verdict
from reput.spark import plan
from reput.spark.filters import Constraint
from reput.spark.options import EARLIEST, LATEST, Bound, LiveOptions, ReadOptions
from reput.spark.rows import RowFilter, RowMaker
from reput.spark.scan import CLOCK_SLACK_MS, DataLoss, Summary, option_constraint, portions

log = logging.getLogger("reput.spark")

PULLS_IN_FLIGHT: Final = 16
"""Pulls of a task that are on the way at a time: enough to keep a broker busy from one core."""
_BATCH_BYTES = 1024 * 1024
"""About how much is decoded at a time."""
_CHUNK_BYTES = 512 * 1024
"""About how much one chunk brings, so that what is in flight stays small with large messages."""
_CHUNK_COUNT_MAX = 1024
"""Offsets of a chunk where the broker looks for tags: it looks at some hundreds a pull."""
_QUESTIONS_IN_FLIGHT = 64
_SAMPLE_COUNT = 32
_NAMES_SHOWN = 20
_EXPRESSION_BYTES_MAX = 8 * 1024
_ALL = "*"
_REMOVING = "MESSAGE_WAS_REMOVING"
_PULLED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)

T = TypeVar("T")


class ReadFailed(ReputError):
    """A broker or name server did not give what was asked for, however often it was asked."""


@dataclass(frozen=True)
class LiveTask:
    """One partition with all that reading it takes. Picklable."""

    partition: plan.QueueRange
    broker: str
    """Name of the broker that has all of its queues."""
    record_bytes: float
    """About how large its records are."""


class LiveScan:
    """One batch read of view ``messages`` from brokers.

    Args:
        options: What the read was told; ``live`` is set.
        columns: Names of the wanted columns, in order.
        constraint: What pushed-down predicates demand.
    """

    def __init__(
        self, options: ReadOptions, columns: Sequence[str], constraint: Constraint | None = None
    ) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._pushed = constraint or Constraint()
        self._constraint = option_constraint(options).meet(self._pushed)
        self.summary = Summary()

    @property
    def _live(self) -> LiveOptions:
        assert self._options.live is not None
        return self._options.live

    # On the driver --------------------------------------------------------------------------

    def tasks(self) -> list[LiveTask]:
        """Plan the read: as much of each queue as there is now.

        Raises:
            InvalidOption: Topics, brokers or offsets that were named do not fit.
            DataLoss: What was named is gone, unless ``failOnDataLoss`` is false.
            ReadFailed: Somebody does not answer, or refuses.
        """
        self.summary.add(f"wanted: {self._constraint.describe()}")
        cluster = connected(self._live)
        asker = _Asker(cluster.admin, self._live)
        planner = _Planner(asker, self._options, self._pushed, self.summary)
        tasks = cluster.run(planner.tasks())
        for line in self.summary.lines:
            log.info("%s", line)
        return tasks

    # On the executors -----------------------------------------------------------------------

    def read(self, task: LiveTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, queue by queue in the order of queue offsets.

        Raises:
            CorruptRecord: A broker sends what is no record.
            DataLoss: Messages have gone since they were planned, unless ``failOnDataLoss`` is
                false.
            ReadFailed: Somebody does not answer, or refuses.
        """
        cluster = connected(self._live)
        options = self._options
        loss = _Loss(options.fail_on_data_loss)
        asker = _Asker(cluster.admin, self._live)
        feed = _Feed(asker, task, lambda topic: _expression(self._constraint, topic), loss)
        rows = _Rows(
            RowMaker(self._columns, options, task.broker),
            RowFilter(options, self._constraint),
            loss,
            check_crc=options.check_crc,
        )
        try:
            while chunks := cluster.run(feed.next()):
                yield from rows.batches(chunks)
        finally:
            cluster.run(feed.close())


# Connections of this process -----------------------------------------------------------------


class Cluster(Facade[Admin]):
    """Connections to the servers of a cluster, and the thread they live in."""

    @property
    def admin(self) -> Admin:
        """For use within ``run``."""
        return self._client

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine where the connections live, and wait for it."""
        return self._wait_for(coroutine)


_clusters: dict[tuple[int, str, int], Cluster] = {}
"""By process, as a fork has the object but not its thread; by name servers and patience."""
_lock = threading.Lock()  # protects _clusters


def connected(live: LiveOptions) -> Cluster:
    """Return the connections to a cluster, made with the first call of this process."""
    key = (os.getpid(), live.name_server, live.pull_timeout_ms)
    with _lock:
        if key not in _clusters:
            try:
                config = ClientConfig(
                    namesrv_addr=live.name_server, request_timeout_ms=live.pull_timeout_ms
                )
            except InvalidOption as error:
                raise InvalidOption("nameServer", live.name_server, error.allowed) from None
            cluster = Cluster(Admin(client=config))
            cluster.start()
            _clusters[key] = cluster
        return _clusters[key]


def disconnect() -> None:
    """Close all connections of this process; reading makes new ones."""
    with _lock:
        mine = [key for key in _clusters if key[0] == os.getpid()]
        found = [_clusters.pop(key) for key in mine]
        _clusters.clear()
    for cluster in found:
        with contextlib.suppress(RuntimeError):  # the interpreter takes no new threads any more
            cluster.close()


atexit.register(disconnect)


# Questions, with patience --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pulled:
    """What a broker says to a pull."""

    code: int
    remark: str
    records: bytes
    next_offset: int
    min_offset: int
    max_offset: int


class _Asker:
    """Asks name servers and brokers, again after what may pass. Lives in the loop."""

    def __init__(self, admin: Admin, live: LiveOptions) -> None:
        self._admin = admin
        self.live = live

    async def route(self, topic: str) -> TopicRoute | None:
        """Return where a topic is as of now, None if nobody knows it."""

        async def ask() -> TopicRoute | None:
            try:
                return await self._admin.topic_route(topic)
            except NoRoute:
                return None

        return await self._patiently(f"route of topic {topic!r}", None, ask)

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        return await self._patiently("topics", None, self._admin.topics)

    async def brokers(self) -> dict[str, str]:
        """Return broker name -> cluster name."""
        known = await self._patiently("brokers", None, self._admin.clusters)
        table = known.cluster_addr_table
        return {name: cluster for cluster, found in table.items() for name in found}

    async def ends(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the first queue offset of a queue, and the one behind the last."""

        async def ask() -> tuple[int, int]:
            low, high = await asyncio.gather(
                self._admin.min_offset(queue), self._admin.max_offset(queue)
            )
            return low, max(low, high)

        return await self._patiently(f"ends of {_name(queue)}", queue.topic, ask)

    async def search(self, queue: MessageQueue, time_ms: int) -> int:
        """Return about which queue offset a time names."""
        return await self._patiently(
            f"time {time_ms} in {_name(queue)}",
            queue.topic,
            lambda: self._admin.search_offset(queue, time_ms),
        )

    async def consumer_offsets(self, broker: str) -> dict[str, dict[int, int]]:
        """Return the consumer offsets that a broker knows: ``topic@group`` -> queue id -> one."""

        async def ask() -> dict[str, dict[int, int]]:
            request = requests.make(RequestCode.GET_ALL_CONSUMER_OFFSET)
            reply = await self._admin.calls.ask_broker(broker, request)
            return bodies.decode(bodies.ConsumerOffsetTable, reply.body).offset_table

        return await self._patiently(f"consumer offsets of {broker}", None, ask)

    async def pull(
        self, queue: MessageQueue, queue_offset: int, count: int, expression: str = _ALL
    ) -> _Pulled:
        """Return records of a queue from an offset on. The broker is not to wait for any."""
        header = headers.PullMessageHeader(
            consumer_group=self.live.consumer_group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_msg_nums=count,
            sys_flag=int(PullFlag.HAS_SUBSCRIPTION),
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=expression,
            sub_version=0,
            expression_type="TAG",
        )

        async def ask() -> _Pulled:
            instance = self._admin.calls.instance
            address = (await instance.route(queue.topic)).any_address(queue.broker_name)
            request = requests.make(RequestCode.PULL_MESSAGE, header)
            reply = await instance.remoting.invoke(address, request, self.live.pull_timeout_ms)
            if reply.code not in _PULLED:
                raise Answered(reply.code, reply.remark, address)
            said = headers.decode(headers.PullMessageReplyHeader, reply.ext_fields)
            is_found = reply.code == ResponseCode.SUCCESS
            gets_nowhere = said.next_begin_offset <= queue_offset
            if gets_nowhere and reply.code in (
                ResponseCode.SUCCESS,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
            ):
                # Files are being deleted, or messages of another store: to ask at once is no use.
                remark = f"{reply.remark}, go on at {said.next_begin_offset}"
                raise Answered(ResponseCode.SYSTEM_BUSY, remark, address)
            return _Pulled(
                reply.code,
                reply.remark or "",
                bytes(reply.body) if is_found else b"",
                said.next_begin_offset,
                said.min_offset,
                said.max_offset,
            )

        what = f"messages of {_name(queue)} from queue offset {queue_offset} on"
        return await self._patiently(what, queue.topic, ask)

    async def _patiently(self, what: str, topic: str | None, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask, and ask again; a topic's route is asked for anew where it may be outdated."""
        live = self.live
        for attempt in range(live.retry_count + 1):
            try:
                return await ask()
            except RemotingError as error:
                if not error.retriable or attempt == live.retry_count:
                    raise _failed(what, attempt + 1, error, live) from error
                log.warning("%s: %s; asking again", what, error)
                await asyncio.sleep(live.retry_interval_ms / 1000)
                if topic is not None and error.refresh_route:
                    with contextlib.suppress(RemotingError):
                        await self._admin.calls.route(topic)
        raise AssertionError("the last attempt returns or raises")


def _failed(what: str, attempts: int, error: RemotingError, live: LiveOptions) -> ReadFailed:
    times = "once" if attempts == 1 else f"{attempts} times"
    return ReadFailed(
        f"cannot read {what}: {error} (asked {times}; name server {live.name_server}; options "
        "pullTimeoutMs, fetchOffset.numRetries and fetchOffset.retryIntervalMs give more patience)"
    )


def _name(queue: MessageQueue) -> str:
    return f"queue {queue.topic}/{queue.queue_id} of broker {queue.broker_name}"


class _Loss:
    """What to do about messages that are not there any more."""

    def __init__(self, is_error: bool, summary: Summary | None = None) -> None:
        self._is_error = is_error
        self._summary = summary

    def report(self, what: str) -> None:
        """Raise ``DataLoss``, or take note."""
        if self._is_error:
            raise DataLoss(f"{what} (failOnDataLoss=false reads what is left)")
        log.warning("%s", what)
        if self._summary is not None:
            self._summary.add(f"data loss: {what}")


def _expression(constraint: Constraint, topic: str) -> str:
    """Return what a broker is told of the wanted tags; every record is looked at again.

    Queues of system topics have other things where those of others have the hash of the tag.
    """
    tags = constraint.tags
    if tags is None or names.is_system_topic(topic):
        return _ALL
    if any(not tag or tag == _ALL or "|" in tag or tag != tag.strip() for tag in tags):
        return _ALL
    text = " || ".join(sorted(tags))
    return text if len(text.encode()) <= _EXPRESSION_BYTES_MAX else _ALL


# Planning ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Extent:
    """What is wanted of a queue."""

    queue: MessageQueue
    start: int
    stop: int
    record_bytes: float


class _Planner:
    """Plans one read. Lives in the loop."""

    def __init__(
        self, asker: _Asker, options: ReadOptions, pushed: Constraint, summary: Summary
    ) -> None:
        assert options.live is not None
        self._asker = asker
        self._options = options
        self._live = options.live
        self._pushed = pushed
        self._constraint = option_constraint(options).meet(pushed)
        self._summary = summary
        self._loss = _Loss(options.fail_on_data_loss, summary)
        self._filter = RowFilter(options, self._constraint)
        self._questions = asyncio.Semaphore(_QUESTIONS_IN_FLIGHT)
        self._offsets: dict[str, dict[str, dict[int, int]]] = {}

    async def tasks(self) -> list[LiveTask]:
        brokers = await self._brokers()
        queues = await self._queues(brokers)
        self._check_named_queues(queues)
        for bound, name in ((self._options.start, "starting"), (self._options.end, "ending")):
            if bound.group is not None:
                await self._load_consumer_offsets(f"{name}Offsets", bound.group, brokers)
        if self._constraint.is_empty:
            return []
        found = await self._all(self._extent(queue) for queue in queues)
        extents = [one for one in found if one is not None]
        tasks = self._split(extents)
        total = int(sum((one.stop - one.start) * one.record_bytes for one in extents))
        self._summary.add(
            f"{self._live.name_server}: {len(extents)} of {len(queues)} queues, about {total} "
            f"bytes, {len(tasks)} partitions"
        )
        return tasks

    async def _all(self, questions: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        async def one(question: Coroutine[Any, Any, T]) -> T:
            async with self._questions:
                return await question

        asked = list(questions)
        tasks = [asyncio.create_task(one(question)) for question in asked]
        try:
            return list(await asyncio.gather(*tasks))
        finally:  # after an error the others are of no use
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for question in asked:
                question.close()

    # Which queues ---------------------------------------------------------------------------

    async def _brokers(self) -> frozenset[str]:
        """Return the names of the brokers that are read."""
        known = await self._asker.brokers()
        live = self._live
        clusters = sorted(set(known.values()))
        if live.cluster is not None and live.cluster not in clusters:
            raise InvalidOption("cluster", live.cluster, ", ".join(clusters) or "none is there")
        chosen = {name for name, one in known.items() if live.cluster in (None, one)}
        shown = ", ".join(sorted(chosen)) or "none is registered"
        for name in sorted(live.brokers or ()):
            if name not in chosen:
                raise InvalidOption("broker", name, f"names of brokers: {shown}")
        if live.brokers is not None:
            chosen &= live.brokers
        for option, table in self._options.by_broker():
            for named in table.values():
                for name in named:
                    if name not in chosen:
                        raise InvalidOption(option, name, f"names of brokers: {shown}")
        return frozenset(chosen)

    async def _queues(self, brokers: frozenset[str]) -> list[MessageQueue]:
        """Return the wanted queues, by broker, topic and id."""
        named = self._options.topics or (self._options.assign or {}).keys()
        for topic in named:
            if topic.startswith(names.LMQ_PREFIX):
                raise InvalidOption(
                    "topic", topic, "topics; a light queue's messages are in its topic"
                )
        topics = sorted(named) if named else await self._asker.topics()
        topics = [
            topic
            for topic in topics
            if self._filter.wants_topic(topic) and not topic.startswith(names.LMQ_PREFIX)
        ]
        routes = await self._all(self._asker.route(topic) for topic in topics)
        found: list[MessageQueue] = []
        ids = self._constraint.queue_ids
        for topic, route in zip(topics, routes, strict=True):
            readable = () if route is None else route.subscribe_queues
            there = [queue for queue in readable if queue.broker_name in brokers]
            if not there and named:
                await self._lose_topic(topic, route)
            found += [
                queue
                for queue in there
                if (ids is None or queue.queue_id in ids) and self._is_assigned(queue)
            ]
        return sorted(found, key=lambda one: (one.broker_name, one.topic, one.queue_id))

    async def _lose_topic(self, topic: str, route: TopicRoute | None) -> None:
        where = f"name server {self._live.name_server}"
        if route is not None:
            self._loss.report(f"topic {topic!r} has no queue to read on the brokers asked for")
            return
        has = ", ".join((await self._asker.topics())[:_NAMES_SHOWN])
        self._loss.report(f"topic {topic!r} is not known to {where}; it has {has}")

    def _is_assigned(self, queue: MessageQueue) -> bool:
        assign = self._options.assign
        if assign is None:
            return True
        return queue.queue_id in assign.get(queue.topic, {}).get(queue.broker_name, ())

    def _check_named_queues(self, queues: Sequence[MessageQueue]) -> None:
        known = {(one.topic, one.broker_name, one.queue_id) for one in queues}
        for _, table in self._options.by_broker():
            for topic, brokers in table.items():
                for broker, named in brokers.items():
                    for queue_id in named:
                        is_known = (topic, broker, queue_id) in known
                        if not is_known and not self._is_pushed_out(topic, queue_id):
                            what = f"queue {topic}/{queue_id} of broker {broker}"
                            self._loss.report(f"{what} is not among the queues that are read")

    def _is_pushed_out(self, topic: str, queue_id: int) -> bool:
        """Whether predicates leave a queue out: that options name it is no mistake then."""
        topics, ids = self._pushed.topics, self._pushed.queue_ids
        return (topics is not None and topic not in topics) or (
            ids is not None and queue_id not in ids
        )

    # Which offsets --------------------------------------------------------------------------

    async def _extent(self, queue: MessageQueue) -> _Extent | None:
        low, high = await self._asker.ends(queue)
        start = await self._bound(self._options.start, queue, low, high, is_start=True)
        stop = await self._bound(self._options.end, queue, low, high, is_start=False)
        if not (low <= start <= high and low <= stop <= high):
            self._loss.report(
                f"{_name(queue)} holds {low} to {high}, asked for were {start} to {stop}"
            )
        start, stop = max(start, low), min(stop, high)
        span, times = self._constraint.queue_offsets, self._constraint.store_times_us
        start, stop = max(start, span.low), min(stop, span.high + 1)
        if not times.is_all and start < stop:
            begin_ms = times.low // 1000 - CLOCK_SLACK_MS
            end_ms = times.high // 1000 + CLOCK_SLACK_MS
            start = await self._offset_by_time(queue, begin_ms, start, stop)
            stop = await self._offset_by_time(queue, end_ms + 1, start, stop)
        if start >= stop:
            return None
        return _Extent(queue, start, stop, await self._record_bytes(queue, start, stop))

    async def _bound(
        self, bound: Bound, queue: MessageQueue, low: int, high: int, *, is_start: bool
    ) -> int:
        if bound.timestamp_ms is not None:
            return await self._offset_by_time(queue, bound.timestamp_ms, low, high)
        time_ms = _of_queue(bound.timestamps, queue)
        if time_ms is not None:
            found = await self._offset_by_time(queue, time_ms, low, high)
            if is_start and found == high and self._options.late_timestamp == "error":
                raise InvalidOption(
                    "startingOffsetsByTimestamp",
                    time_ms,
                    f"a time up to the last message of {_name(queue)}; or set "
                    "startingOffsetsByTimestampStrategy=latest to read nothing of it",
                )
            return found
        whole = low if is_start else high
        if bound.group is not None:
            table = self._offsets[queue.broker_name]
            offsets = table.get(f"{queue.topic}@{bound.group}", {})
            return offsets.get(queue.queue_id, whole)
        asked = _of_queue(bound.offsets, queue)
        if asked is None:
            return whole
        return {EARLIEST: low, LATEST: high}.get(asked, asked)

    async def _load_consumer_offsets(
        self, option: str, group: str, brokers: frozenset[str]
    ) -> None:
        chosen = sorted(brokers)
        tables = await self._all(self._asker.consumer_offsets(one) for one in chosen)
        self._offsets = dict(zip(chosen, tables, strict=True))
        groups = {key.rpartition("@")[2] for table in tables for key in table}
        if group not in groups:
            known = ", ".join(sorted(groups)) or "none: no group has committed an offset"
            raise InvalidOption(option, f"group:{group}", f"group: and one of {known}")

    async def _offset_by_time(self, queue: MessageQueue, time_ms: int, low: int, high: int) -> int:
        """Return the first queue offset in ``[low, high)`` at or after a time, else ``high``.

        Brokers before 5.1.1 return the nearest: what they say is where to look first.
        """
        if low >= high or time_ms <= 0:
            return low
        first, behind = low, high  # it is one of these, or between

        async def look_at(place: int) -> None:
            nonlocal first, behind
            if await self._store_time(queue, place) >= time_ms:
                behind = place
            else:
                first = place + 1

        guess = await self._asker.search(queue, time_ms)
        for place in (guess, guess - 1, guess + 1, high - 1):
            if first <= place < behind:
                await look_at(place)
        while first < behind:
            await look_at((first + behind) // 2)
        return first

    async def _store_time(self, queue: MessageQueue, queue_offset: int) -> int:
        """Return when a message was stored, ms; 0 if it is being deleted."""
        said = await self._asker.pull(queue, queue_offset, 1)
        if said.code != ResponseCode.SUCCESS:
            return 0
        return record.store_timestamp_of(said.records)

    async def _record_bytes(self, queue: MessageQueue, start: int, stop: int) -> float:
        """Return about how large records are, from the first ones and some in the middle."""
        places = {start, (start + stop) // 2} if stop - start > _SAMPLE_COUNT else {start}
        count = size = 0
        for place in sorted(places):
            said = await self._asker.pull(queue, place, _SAMPLE_COUNT)
            count += len(_frames(said.records))
            size += len(said.records)
        return size / count if count else 1024.0

    # Partitions -----------------------------------------------------------------------------

    def _split(self, extents: Sequence[_Extent]) -> list[LiveTask]:
        options = self._options
        total = sum((one.stop - one.start) * one.record_bytes for one in extents)
        target = plan.target_bytes(total, options.max_bytes_per_partition, options.min_partitions)
        tasks: list[LiveTask] = []
        for number, broker in enumerate(sorted({one.queue.broker_name for one in extents})):
            mine = [one for one in extents if one.queue.broker_name == broker]
            sizes = {(one.queue.topic, one.queue.queue_id): one.record_bytes for one in mine}
            slices = [
                plan.Extent(
                    plan.QueueSlice(one.queue.topic, one.queue.queue_id, one.start, one.stop),
                    one.record_bytes,
                )
                for one in mine
            ]
            most = options.max_records_per_partition
            for part in plan.split_queues(number, slices, target, most):
                size = sum(one.count * sizes[one.topic, one.queue_id] for one in part.slices)
                count = sum(one.count for one in part.slices)
                tasks.append(LiveTask(part, broker, size / max(count, 1)))
        return tasks


def _of_queue(table: dict[str, dict[str, dict[int, int]]], queue: MessageQueue) -> int | None:
    return table.get(queue.topic, {}).get(queue.broker_name, {}).get(queue.queue_id)


# Pulling -------------------------------------------------------------------------------------


@dataclass
class _Chunk:
    """A few offsets of a queue, which are pulled one reply after the other."""

    queue: MessageQueue
    start: int
    stop: int
    expression: str
    replies: list[bytes] = field(default_factory=list)
    lost_count: int = 0
    """Offsets that were reported already."""

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.replies))


class _Feed:
    """Pulls the ranges of a task in order, some chunks ahead. Lives in the loop."""

    def __init__(
        self, asker: _Asker, task: LiveTask, expression: Callable[[str], str], loss: _Loss
    ) -> None:
        self._asker = asker
        self._task = task
        self._expression = expression
        self._loss = loss
        self._batch_size = asker.live.pull_batch_size
        self._mean_bytes = max(task.record_bytes, 1.0)
        self._chunks: Iterator[_Chunk] | None = None
        self._pending: deque[asyncio.Task[_Chunk]] = deque()

    async def next(self) -> list[_Chunk]:
        """Return the next chunks in order, about a batch's bytes; none at the end."""
        if self._chunks is None:
            self._chunks = self._cut(await self._slices())
        self._fill()
        found: list[_Chunk] = []
        held_bytes = 0
        while self._pending and held_bytes < _BATCH_BYTES:
            chunk = await self._pending[0]
            self._pending.popleft()
            self._fill()
            found.append(chunk)
            held_bytes += chunk.byte_count
        return found

    async def close(self) -> None:
        """Forget what is on the way."""
        tasks = list(self._pending)
        self._pending.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _slices(self) -> list[tuple[MessageQueue, int, int]]:
        """Return what is still there of what was planned."""
        found = []
        slices = self._task.partition.slices
        queues = [
            MessageQueue(topic=one.topic, broker_name=self._task.broker, queue_id=one.queue_id)
            for one in slices
        ]
        ends = await asyncio.gather(*(self._asker.ends(queue) for queue in queues))
        for one, queue, (low, high) in zip(slices, queues, ends, strict=True):
            start, stop = max(one.start, low), min(one.stop, high)
            if (start, stop) != (one.start, one.stop):
                self._report(queue, one.start, one.stop, low, high)
            if start < stop:
                found.append((queue, start, stop))
        return found

    def _report(self, queue: MessageQueue, start: int, stop: int, low: int, high: int) -> None:
        self._loss.report(
            f"{_name(queue)} holds {low} to {high} now, planned were {start} to {stop}"
        )

    def _cut(self, slices: Sequence[tuple[MessageQueue, int, int]]) -> Iterator[_Chunk]:
        for queue, start, stop in slices:
            expression = self._expression(queue.topic)
            at = start
            while at < stop:
                count_max = self._batch_size if expression == _ALL else _CHUNK_COUNT_MAX
                count = max(min(count_max, int(_CHUNK_BYTES / self._mean_bytes)), 1)
                behind = min(at + count, stop)
                yield _Chunk(queue, at, behind, expression)
                at = behind

    def _fill(self) -> None:
        assert self._chunks is not None
        while len(self._pending) < PULLS_IN_FLIGHT:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            self._pending.append(asyncio.create_task(self._pull(chunk)))

    async def _pull(self, chunk: _Chunk) -> _Chunk:
        """Pull all of a chunk."""
        at, stop = chunk.start, chunk.stop
        is_filtered = chunk.expression != _ALL
        while at < stop:
            count = min(self._batch_size, stop - at)
            said = await self._asker.pull(chunk.queue, at, count, chunk.expression)
            if said.code == ResponseCode.SUCCESS:
                chunk.replies.append(said.records)
                at = said.next_offset
                continue
            if said.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                if not is_filtered or said.remark == _REMOVING:
                    self._lose(chunk, at, said.next_offset, said)
                at = said.next_offset
                continue
            # The queue ends here, begins later, or has a hole.
            following = max(said.next_offset, said.min_offset if at < said.min_offset else 0)
            if following <= at or at >= said.max_offset:
                following = stop
            self._lose(chunk, at, following, said)
            at = following
        if not is_filtered and chunk.replies:
            mean = chunk.byte_count / (chunk.stop - chunk.start)
            self._mean_bytes += (max(mean, 1.0) - self._mean_bytes) / 8
        return chunk

    def _lose(self, chunk: _Chunk, start: int, stop: int, said: _Pulled) -> None:
        stop = min(stop, chunk.stop)
        self._report(chunk.queue, start, stop, said.min_offset, said.max_offset)
        chunk.lost_count += stop - start


# Rows ----------------------------------------------------------------------------------------


class _Rows:
    """Makes rows of what was pulled."""

    def __init__(
        self, maker: RowMaker, row_filter: RowFilter, loss: _Loss, *, check_crc: bool
    ) -> None:
        self._maker = maker
        self._filter = row_filter
        self._loss = loss
        self._check_crc = check_crc

    def batches(self, chunks: Sequence[_Chunk]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some chunks, in order."""
        buffer = bytearray().join(part for chunk in chunks for part in chunk.replies)
        counts: list[int] = []
        found: list[int] = []
        begin = 0
        for chunk in chunks:
            before = len(found)
            for part in chunk.replies:
                found += [begin + at for at in _frames(part, chunk.queue)]
                begin += len(part)
            counts.append(len(found) - before)
        positions = np.array(found, np.int64)
        which = np.repeat(np.arange(len(chunks)), counts)
        self._judge(buffer, positions, which, chunks)
        columns = kernels.Columns(buffer, positions)
        offsets = columns.numbers("queue_offset")
        starts = np.array([chunk.start for chunk in chunks], np.int64)
        stops = np.array([chunk.stop for chunk in chunks], np.int64)
        is_inside = (offsets >= starts[which]) & (offsets < stops[which])
        self._check_gaps(chunks, columns, which, is_inside)
        if not is_inside.all():
            columns = columns.take(is_inside)
        rows = self._filter.rows(columns)
        if len(rows) == 0:
            return
        for kept in portions(columns if len(rows) == columns.count else columns.take(rows)):
            try:
                batch = self._maker.batch(kept)
            except CorruptRecord as error:
                _damaged(chunks[0].queue, error.reason, error.physical_offset or 0)
            if batch.num_rows:
                yield batch

    def _judge(
        self,
        buffer: bytearray,
        positions: npt.NDArray[np.int64],
        which: npt.NDArray[np.int64],
        chunks: Sequence[_Chunk],
    ) -> None:
        """Raise ``CorruptRecord`` unless everything is a whole record."""
        data = np.frombuffer(buffer, np.uint8)
        width = record.PHYSICAL_OFFSET.size
        fields = positions[:, None] + (record.POSITION_PHYSICAL_OFFSET + np.arange(width))
        # The kernel judges records where they say they stand. These have moved.
        own = data[fields]
        data[fields] = positions.astype(">i8").view(np.uint8).reshape(-1, width)
        judged = kernels.judge(buffer, positions, physical_offset=0, check_crc=self._check_crc)
        data[fields] = own
        for row in np.flatnonzero(judged.verdicts != Verdict.MESSAGE):
            at = int(positions[row])
            offset = int.from_bytes(own[row].tobytes(), signed=True)
            verdict = Verdict(int(judged.verdicts[row]))
            if verdict is Verdict.BAD_RECORD_CRC:  # which is about the physical offset as well
                one = memoryview(buffer)[at : at + int(judged.sizes[row])]
                verdict = record.classify(one, 0, offset)[0]
            if verdict is not Verdict.MESSAGE:
                reason = record.REASONS.get(verdict, "no record is here")
                _damaged(chunks[which[row]].queue, reason, offset)

    def _check_gaps(
        self,
        chunks: Sequence[_Chunk],
        columns: kernels.Columns,
        which: npt.NDArray[np.int64],
        is_inside: npt.NDArray[np.bool_],
    ) -> None:
        """Report offsets that a broker has passed over without a word."""
        counts = np.bincount(which[is_inside], minlength=len(chunks))
        for number, chunk in enumerate(chunks):
            missing = chunk.stop - chunk.start - chunk.lost_count - int(counts[number])
            if chunk.expression != _ALL or missing <= 0:
                continue
            mine = which == number
            if (columns.numbers("sys_flag")[mine] & flags.INNER_BATCH).any():
                continue  # one record stands for several offsets
            there = columns.numbers("queue_offset")[mine & is_inside].tolist()
            ends = [chunk.start - 1, *there, chunk.stop]
            holes = [f"{a + 1} to {b}" for a, b in pairwise(ends) if b - a > 1]
            self._loss.report(
                f"{_name(chunk.queue)} has no messages at queue offsets {', '.join(holes)}: its "
                "broker passes over them"
            )


def _damaged(queue: MessageQueue, reason: str, physical_offset: int) -> NoReturn:
    raise CorruptRecord(
        reason, physical_offset=physical_offset, file=f"reply to a pull from {_name(queue)}"
    )


def _frames(records: bytes, queue: MessageQueue | None = None) -> list[int]:
    """Return where the records of a reply begin. Raises ``CorruptRecord``."""
    found = []
    at, end = 0, len(records)
    unpack = record.SIZE_AND_MAGIC.unpack_from
    while at < end:
        size = unpack(records, at)[0] if end - at >= record.FIXED_BYTES_V1 else 0
        if not record.FIXED_BYTES_V1 <= size <= end - at:
            place = f"reply to a pull from {_name(queue)}" if queue is not None else None
            reason = f"size {size} of the record at byte {at} is none: {end - at} bytes are left"
            raise CorruptRecord(reason, file=place)
        found.append(at)
        at += size
    return found
