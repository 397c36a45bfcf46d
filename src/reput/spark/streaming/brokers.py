"""Followed queues of running brokers: each trigger requests their ends.

Routes and the list of topics are refreshed every ``discoveryIntervalMs``. The number of waiting
messages is exact; their sizes and age are estimated from the first ones.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from reput.client.core.route_cache import TopicRoute
from reput.clock import Clock
from reput.errors import RemotingError
from reput.format.bodies import MessageQueue
from reput.spark.filters import Constraint
from reput.spark.live import calls as live_calls
from reput.spark.live.calls import (
    Cluster,
    NotRegistered,
    ReadFailed,
    RetryingClient,
    Sample,
    all_of,
)
from reput.spark.live.plan import Extent, LiveTask, Planner, split
from reput.spark.live.scan import LiveScan
from reput.spark.option_table import COMMIT_NONE
from reput.spark.options import DISCOVERY_INTERVAL_MS, LiveOptions, ReadOptions
from reput.spark.store_planner import Summary
from reput.spark.streaming.followed import Part, Sizes, Whereabouts
from reput.spark.streaming.positions import QueueKey

log = logging.getLogger("reput.spark")

T = TypeVar("T")


class _Queue:
    """A queue of a broker at one trigger."""

    def __init__(self, key: QueueKey, ends: tuple[int, int], followed: "BrokerQueues") -> None:
        self.identity = key
        self.first, self.end = ends
        self._followed = followed
        self._key = key

    @property
    def reach(self) -> int:
        """The end: still valid later unless a slave has taken over."""
        return self.end

    def has(self, queue_offset: int) -> bool:
        """Return whether a message still exists."""
        return queue_offset >= self.first

    def sizes(self, start: int, stop: int, most: int | None = None) -> Sizes:
        """Return estimated sizes of ``[start, stop)``, all equal."""
        stop = stop if most is None else min(stop, start + most)
        size = max(int(self._record_bytes(start)), 1)
        stops = np.arange(start + 1, stop + 1, dtype=np.int64)
        return Sizes(stops, np.full(len(stops), size, np.int64))

    def byte_count(self, start: int, stop: int) -> int:
        """Return the estimated size of a range in the log, in bytes."""
        return int((stop - start) * self._record_bytes(start))

    def batch_stop(self, start: int, stop: int) -> int:
        """Return ``stop``: a pull starts at the batch that contains its offset."""
        return stop

    def store_timestamp(self, queue_offset: int) -> int:
        """Return the store time of a message, in ms; 0 if it cannot be read."""
        return self._sample(queue_offset).store_timestamp

    def _record_bytes(self, start: int) -> float:
        return self._sample(start).record_bytes

    def _sample(self, start: int) -> Sample:
        return self._followed.sample(self._key, start)


class BrokerQueues:
    """The queues of the brokers registered at some name servers.

    Args:
        options: Options of the stream; ``live`` is set.
        columns: Names of the selected columns, in order.
        clock: Measures the age of routes.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str], clock: Clock) -> None:
        assert options.live is not None
        self._options = options
        self._live: LiveOptions = options.live
        self._columns = tuple(columns)
        self._clock = clock
        self._interval_ms = self._live.discovery_interval_ms or DISCOVERY_INTERVAL_MS
        self._discovered_ms: int | None = None
        self._brokers: frozenset[str] = frozenset()
        """All registered brokers, selected or not."""
        self._queues: dict[QueueKey, MessageQueue] = {}
        self._unwanted: dict[str, TopicRoute | None] = {}
        """Routes of topics in positions that the options do not select."""
        self._samples: dict[QueueKey, tuple[int, Sample]] = {}
        """Latest sample of each queue, with its position."""
        self._committed: dict[QueueKey, int] = {}
        self._has_group: set[str] = set()
        """Names of brokers that have the group of ``commitOffsets``."""

    @property
    def places(self) -> str:
        """The name servers."""
        return f"name server {self._live.name_server}"

    def starts(self) -> dict[QueueKey, int]:
        """Return the start of a new query; see ``Followed``."""

        async def ask(client: RetryingClient) -> dict[MessageQueue, int]:
            return await self._planner(client).starts()

        return {_key(queue): start for queue, start in self._run(ask).items()}

    def wanted(self, positions: Iterable[QueueKey]) -> dict[QueueKey, _Queue]:
        """Request the ends of the selected queues."""

        async def ask(client: RetryingClient) -> dict[QueueKey, _Queue]:
            await self._discover(client)
            return await self._look(client, self._queues)

        return self._run(ask)

    def queues_of(self, positions: Iterable[QueueKey]) -> dict[QueueKey, _Queue]:
        """Request the ends of existing queues among some."""
        keys = list(positions)

        async def ask(client: RetryingClient) -> dict[QueueKey, _Queue]:
            await self._discover(client)
            here = [key for key in keys if await self._whereabouts(client, key) is _HERE]
            return await self._look(client, here)

        return self._run(ask)

    def whereabouts(self, key: QueueKey) -> Whereabouts:
        """Return whether the broker of a queue is registered, and has it."""
        return self._run(lambda client: self._whereabouts(client, key))

    async def _whereabouts(self, client: RetryingClient, key: QueueKey) -> Whereabouts:
        if key in self._queues:
            return Whereabouts.HERE
        if key.broker not in self._brokers:
            named = self._live.brokers
            is_left_out = named is not None and key.broker not in named
            return Whereabouts.GONE if is_left_out else Whereabouts.AWAY
        if key.topic not in self._unwanted:
            self._unwanted[key.topic] = await client.route(key.topic)
        route = self._unwanted[key.topic]
        is_here = route is not None and _message_queue(key) in route.subscribe_queues
        return Whereabouts.HERE if is_here else Whereabouts.GONE

    def wait_for(self, keys: Iterable[QueueKey]) -> None:
        """Wait until the brokers of queues are registered, for ``retryTimeout`` at most."""
        names = {key.broker for key in keys if self.whereabouts(key) is Whereabouts.AWAY}

        async def wait(client: RetryingClient) -> None:
            async def ask() -> None:
                self._discovered_ms = None
                await self._discover(client)
                missing = sorted(names - self._brokers)
                if missing:
                    raise NotRegistered(f"{', '.join(missing)}: not registered")

            with contextlib.suppress(ReadFailed):  # the caller names the queue
                await client.patiently("brokers", None, ask)

        if names:
            self._run(wait)

    def prefetch(self, parts: Iterable[Part]) -> None:
        """Take a sample at the start of each part."""
        places = [(part.key, part.start) for part in parts if not self._has(part.key, part.start)]
        if places:
            self._run(lambda client: all_of(self._sample(client, *place) for place in places))

    def sample(self, key: QueueKey, start: int) -> Sample:
        """Return estimates from the messages at a position of a queue."""
        if not self._has(key, start):
            self._run(lambda client: self._sample(client, key, start))
        return self._samples[key][1]

    def _has(self, key: QueueKey, start: int) -> bool:
        return key in self._samples and self._samples[key][0] == start

    async def _sample(self, client: RetryingClient, key: QueueKey, start: int) -> None:
        self._samples[key] = start, await client.sample(_message_queue(key), start)

    def oldest(self, parts: Sequence[Part]) -> int | None:
        """Return the store time of the oldest first message of the parts, in ms."""
        times = [part.queue.store_timestamp(part.start) for part in parts]
        return min((time for time in times if time), default=None)

    # Micro-batches --------------------------------------------------------------------------

    def tasks(self, parts: Sequence[Part]) -> list[LiveTask]:
        """Split a micro-batch into tasks."""
        self.prefetch(parts)
        batch_topics = {}
        if self._options.tags is not None:
            queues = [_message_queue(part.key) for part in parts]
            batch_topics = self._run(lambda client: client.batch_topics(queues))
        extents = [
            Extent(
                _message_queue(part.key),
                part.start,
                part.stop,
                self.sample(part.key, part.start).record_bytes,
            )
            for part in parts
        ]
        return split(extents, self._options, batch_topics)

    def read(self, task: LiveTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, as in a batch read."""
        return LiveScan(self._options, self._columns).read(task)

    # Consumer offsets -----------------------------------------------------------------------

    def commit(self, positions: Mapping[QueueKey, int]) -> None:
        """Set the consumer offsets of ``group`` if ``commitOffsets`` is set.

        Failed commits are made up for by the next one: the stream does not depend on them.

        Raises:
            InvalidOption: The name of the group is not allowed.
        """
        group = self._live.group
        if group is None or self._live.commit_offsets == COMMIT_NONE:
            return
        news = {
            key: consumer_offset
            for key, consumer_offset in positions.items()
            if self._committed.get(key) != consumer_offset
        }
        if not news:
            return

        async def send(client: RetryingClient) -> None:
            for broker in sorted({key.broker for key in news} - self._has_group):
                await client.make_group(group, broker)
                self._has_group.add(broker)
            await all_of(
                client.commit(group, _message_queue(key), consumer_offset)
                for key, consumer_offset in news.items()
            )
            self._committed |= news

        try:
            self._run(send)
        except (RemotingError, ReadFailed) as error:
            log.warning("group %s: offsets are not committed: %s", group, error)

    # Requests ------------------------------------------------------------------------------

    def _run(self, ask: Callable[[RetryingClient], Coroutine[Any, Any, T]]) -> T:
        cluster: Cluster = live_calls.connected(self._live)
        return cluster.run(ask(RetryingClient(cluster.admin, self._live, self._clock)))

    def _planner(self, client: RetryingClient) -> Planner:
        return Planner(client, self._options, Constraint(), Summary())

    async def _discover(self, client: RetryingClient) -> None:
        """Refresh brokers and routes if they are outdated."""
        now_ms = self._clock.monotonic_ms()
        if self._discovered_ms is not None and now_ms - self._discovered_ms < self._interval_ms:
            return
        planner = self._planner(client)
        queues = await planner.queues(await planner.brokers())
        self._brokers = planner.registered
        self._queues = {_key(queue): queue for queue in queues}
        self._unwanted.clear()
        self._discovered_ms = now_ms

    async def _look(
        self, client: RetryingClient, keys: Collection[QueueKey]
    ) -> dict[QueueKey, _Queue]:
        ends = await all_of(client.ends(_message_queue(key)) for key in keys)
        return {key: _Queue(key, end, self) for key, end in zip(keys, ends, strict=True)}


_HERE = Whereabouts.HERE


def _key(queue: MessageQueue) -> QueueKey:
    return QueueKey(queue.topic, queue.broker_name, queue.queue_id)


def _message_queue(key: QueueKey) -> MessageQueue:
    return MessageQueue(topic=key.topic, broker_name=key.broker, queue_id=key.queue_id)
