"""Sends the rows of a task to brokers: pipelined, with retries and deduplication.

Messages of one queue are sent in the order of their rows, one request at a time, also on retries;
in mode ``async`` many at a time, without order. A message without a queue in its row goes to
another broker when its broker fails.

A repeated task skips messages that brokers already have. The first message of a task is stored
before any other is sent: if it is missing, no message of the task is stored, and no other lookup is
needed. Lookups use the broker's index, which lags its log by a moment; so two attempts in quick
succession may store a message twice, under one key.
"""

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

import pyarrow as pa

from reput.client.admin import Admin
from reput.client.config import ProducerConfig
from reput.client.core import requests
from reput.client.core.key_search import KeyQuery
from reput.client.core.patience import Patience
from reput.client.core.route_cache import NoRoute, TopicRoute
from reput.client.message import check_topic, received
from reput.clock import SystemClock
from reput.errors import (
    BrokerError,
    ConnectionLost,
    InvalidOption,
    RemotingError,
    ReputError,
    RequestTimedOut,
    broker_error,
)
from reput.format import names
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.spark.live.calls import connected
from reput.spark.option_table import ONEWAY, SKIP_ALL, SKIP_DERIVED, SKIP_NONE
from reput.spark.sending import rows as outgoing_rows
from reput.spark.sending.options import SendOptions
from reput.spark.sending.requests import (
    KeyMaker,
    Lane,
    OutgoingRequest,
    Packer,
    Parcel,
    QueueDealer,
    TaskIdentity,
)
from reput.spark.sending.rows import BadRow

log = logging.getLogger("reput.spark")

_CHUNK_ROWS: Final = 1024
_CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Amount of data passed to the loop at a time, in bytes."""
_HELD_BYTES_MAX = 32 * 1024 * 1024
"""Amount of data of a task in memory and in flight, in bytes, at which it waits."""
_LOOKUPS_IN_FLIGHT = 64
_COMPRESS_ASIDE_BYTES = 128 * 1024
_VERSION_5 = 412
"""``MQVersion.V5_0_0_SNAPSHOT``: older brokers ignore deliver times."""
_STORED = {
    int(ResponseCode.SUCCESS): "SEND_OK",
    int(ResponseCode.FLUSH_DISK_TIMEOUT): "FLUSH_DISK_TIMEOUT",
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): "FLUSH_SLAVE_TIMEOUT",
    int(ResponseCode.SLAVE_NOT_AVAILABLE): "SLAVE_NOT_AVAILABLE",
}
_PRODUCER = ProducerConfig()
"""Settings of producers for everything without an option."""


class SendingFailed(ReputError):
    """A broker did not accept a request after all retries; the text has its rows."""


@dataclass
class SentCounts:
    """Counters of a task or a write."""

    message_count: int = 0
    """Number of messages that brokers accepted."""
    body_bytes: int = 0
    """Size of their bodies as in the rows, in bytes."""
    request_count: int = 0
    retry_count: int = 0
    skipped_count: int = 0
    """Number of messages that brokers already had."""
    unsafe_count: int = 0
    """Number of messages accepted with a status that ``failOn`` tolerates."""

    def add(self, other: "SentCounts") -> None:
        """Add the counters of another task."""
        for counter in fields(self):
            setattr(self, counter.name, getattr(self, counter.name) + getattr(other, counter.name))


def send(
    batches: Iterable[pa.RecordBatch], options: SendOptions, identity: TaskIdentity
) -> SentCounts:
    """Send the rows of a task; return when brokers have stored all of them.

    Raises:
        BadRow: A row is not a valid message, or brokers do not accept it.
        InvalidOption: A column or topic is not allowed.
        SendingFailed: A broker does not reply, or refuses.
    """
    cluster = connected(options.live)
    sender = _Sender(cluster.admin, options, identity.partition)
    packer = Packer(options, KeyMaker(identity))
    try:
        for parcels in _chunks(_parcels(batches, options, packer)):
            cluster.run(sender.take(parcels))
        cluster.run(sender.finish())
    finally:
        cluster.run(sender.close())
    return sender.counts


def _parcels(
    batches: Iterable[pa.RecordBatch], options: SendOptions, packer: Packer
) -> Iterator[Parcel]:
    row = 0
    for rows in batches:
        outgoing_rows.check_columns(rows.schema, options.rows)
        for message in outgoing_rows.messages(rows, options.rows, row):
            yield packer.parcel(message)
        row += rows.num_rows


def _chunks(parcels: Iterator[Parcel]) -> Iterator[list[Parcel]]:
    chunk: list[Parcel] = []
    size_bytes = 0
    for parcel in parcels:
        chunk.append(parcel)
        size_bytes += parcel.size_bytes
        if len(chunk) >= _CHUNK_ROWS or size_bytes >= _CHUNK_BYTES:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk


class _Topic:
    """Queues and lanes of a topic."""

    def __init__(self, route: TopicRoute, dealer: QueueDealer) -> None:
        self.route = route
        self.dealer = dealer


class _Sender:
    """Sends for one task. Runs in the loop."""

    def __init__(self, admin: Admin, options: SendOptions, partition: int) -> None:
        self.counts = SentCounts()
        self._admin = admin
        self._options = options
        self._partition = partition
        self._requests = requests.SendRequests(
            options.producer_group, _PRODUCER.create_topic_key, _PRODUCER.default_topic_queue_nums
        )
        self._clock = SystemClock()
        self._topics: dict[str, _Topic] = {}
        self._lanes: dict[MessageQueue, Lane] = {}
        self._window = asyncio.Semaphore(options.window_count)
        self._tasks: set[asyncio.Task[None]] = set()
        self._held_bytes = 0
        self._progress = asyncio.Event()
        self._failure: BaseException | None = None
        self._has_begun = False
        self._is_replay = False
        self._asked_timers: set[str] = set()
        """Brokers whose support of deliver times was checked."""
        self._oneway_queues: dict[str, MessageQueue] = {}
        """One queue per broker that got one-way sends."""

    # Taking messages --------------------------------------------------------------------------

    async def take(self, parcels: list[Parcel]) -> None:
        """Send some messages; return when there is room for more."""
        if self._options.skip_present == SKIP_DERIVED and not self._has_begun:
            parcels = await self._begin(parcels)
        if self._options.skip_present == SKIP_ALL or self._is_replay:
            parcels = await self._absent(parcels)
        for parcel in parcels:
            await self._put(parcel)
        while self._held_bytes > _HELD_BYTES_MAX and self._failure is None:
            self._close_lanes()
            self._progress.clear()
            await self._progress.wait()
        self._raise_failure()

    async def finish(self) -> None:
        """Send the remaining messages, and wait for all replies."""
        await self._drain()
        for queue in self._oneway_queues.values():
            # A broker reads earlier one-way sends of a connection before this request.
            try:
                await self._admin.max_offset(queue)
            except RemotingError as error:
                raise SendingFailed(f"broker {queue.broker_name}, after oneway: {error}") from error

    async def close(self) -> None:
        """Drop requests in flight."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self) -> None:
        self._close_lanes()
        while self._tasks and self._failure is None:
            self._progress.clear()
            await self._progress.wait()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # Replays ----------------------------------------------------------------------------------

    async def _begin(self, parcels: list[Parcel]) -> list[Parcel]:
        """Look up the first message with a derived key; store it, or detect a repeated task.

        Returns:
            The remaining messages.
        """
        index = next((i for i, candidate in enumerate(parcels) if candidate.is_derived), None)
        if index is None:
            return parcels
        self._has_begun = True
        if await self._is_there(parcels[index]):
            self._is_replay = True
            return parcels
        for parcel in parcels[: index + 1]:
            await self._put(parcel)
        await self._drain()
        return parcels[index + 1 :]

    async def _absent(self, parcels: list[Parcel]) -> list[Parcel]:
        """Return the messages that brokers lack."""
        questions = asyncio.Semaphore(_LOOKUPS_IN_FLIGHT)

        async def is_wanted(parcel: Parcel) -> bool:
            if not parcel.is_derived and self._options.skip_present != SKIP_ALL:
                return True
            async with questions:
                return not await self._is_there(parcel)

        wanted = await asyncio.gather(*map(is_wanted, parcels))
        self.counts.skipped_count += wanted.count(False)
        return [parcel for parcel, is_absent in zip(parcels, wanted, strict=True) if is_absent]

    async def _is_there(self, parcel: Parcel) -> bool:
        """Return whether a broker of the topic has a message with this key."""
        message = parcel.message
        topic = await self._topic(message.topic)
        places = [message.topic]
        if message.delay_level:
            places.append(names.SCHEDULE_TOPIC)
        if message.is_timed:
            places.append(names.TIMER_TOPIC)
        queue_of = {queue.broker_name: queue for queue in topic.dealer.queues}
        for queue in queue_of.values():
            for place in places:
                if await self._has_key(topic, queue, place, parcel.unique_key):
                    return True
        return False

    async def _has_key(
        self, topic: _Topic, queue: MessageQueue, place: str, unique_key: str
    ) -> bool:
        query = KeyQuery(place, unique_key, is_unique=True)
        patience = self._patience()
        while True:
            try:
                address = topic.route.master(queue.broker_name)
                page = await self._admin.calls.ask_index(address, query, self._options.timeout_ms)
                return any(
                    message.stored.unique_key == unique_key and message.stored.topic == place
                    for message in received(page.records, queue.broker_name)
                )
            except RemotingError as error:
                if patience.is_over(error, self._clock.monotonic_ms()):
                    raise SendingFailed(
                        f"cannot look for key {unique_key} in topic {place!r}: {error} "
                        "(skipPresent=none looks for none)"
                    ) from error
                await self._pause(topic, error)

    # Queues -----------------------------------------------------------------------------------

    async def _topic(self, name: str) -> _Topic:
        """Return the queues of a topic, which stay the same until the task ends."""
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        check_topic(name)
        with contextlib.suppress(RemotingError):
            await self._warn_of_new(name)
        route = await self._route(name)
        wanted = self._options.brokers
        queues = [
            queue for queue in route.publish_queues if wanted is None or queue.broker_name in wanted
        ]
        if not queues:
            known = ", ".join(sorted({queue.broker_name for queue in route.publish_queues}))
            given = ", ".join(sorted(wanted or ()))
            raise InvalidOption("broker", given, f"brokers of topic {name!r}: {known}")
        return self._topics.setdefault(name, _Topic(route, QueueDealer(queues, self._partition)))

    async def _warn_of_new(self, topic: str) -> None:
        """Log a topic that the first message will create: it may be misspelt."""
        try:
            await self._admin.topic_route(topic)
        except NoRoute:
            log.warning("topic %r does not exist: its first message creates it", topic)

    async def _route(self, topic: str) -> TopicRoute:
        patience = self._patience()
        while True:
            try:
                return await self._admin.calls.instance.publish_route(
                    topic,
                    _PRODUCER.create_topic_key,
                    _PRODUCER.default_topic_queue_nums,
                    refresh=True,
                )
            except RemotingError as error:
                if patience.is_over(error, self._clock.monotonic_ms()):
                    raise SendingFailed(
                        f"cannot send to topic {topic!r}: {error} (name server "
                        f"{self._options.name_server})"
                    ) from error
                if patience.is_worth_a_line:
                    log.warning("route of topic %s: %s; asking again", topic, error)
                await asyncio.sleep(self._options.retry_interval_ms / 1000)

    def _patience(self) -> Patience:
        options = self._options
        return Patience(options.retry_timeout_ms, options.retry_count, options.retry_interval_ms)

    async def _put(self, parcel: Parcel) -> None:
        """Put a message into its lane, and send complete requests."""
        topic = await self._topic(parcel.message.topic)
        queue = topic.dealer.queue(parcel.message)
        if parcel.message.is_timed:
            await self._check_timer(topic, queue, parcel)
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = Lane(queue, self._options)
        self._held_bytes += parcel.size_bytes
        lane.add(parcel)
        if lane.ready:
            if not parcel.is_fixed:
                topic.dealer.turn()
            self._go(lane)

    async def _check_timer(self, topic: _Topic, queue: MessageQueue, parcel: Parcel) -> None:
        """Reject a message that a broker would deliver at once instead of later."""
        broker = queue.broker_name
        if broker in self._asked_timers:
            return
        request = requests.make(RequestCode.GET_BROKER_RUNTIME_INFO)
        try:
            version = (await self._ask(topic, queue, request)).version
        except RemotingError as error:
            raise SendingFailed(f"version of broker {broker}: {error}") from error
        if version < _VERSION_5:
            reason = f"is set; broker {broker} is older than 5.0, and waits for delay levels only"
            raise BadRow(parcel.message.row, "deliver_at", reason)
        self._asked_timers.add(broker)

    def _close_lanes(self) -> None:
        for lane in self._lanes.values():
            lane.close()
            self._go(lane)

    def _go(self, lane: Lane) -> None:
        """Send complete requests of a lane: the next one, or all."""
        if lane.sends_one_at_a_time:
            if lane.ready and not lane.is_busy:
                lane.is_busy = True
                self._start(self._send_in_turn(lane))
        else:
            while lane.ready:
                self._start(self._send(lane.ready.popleft()))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
        self._progress.set()

    # Sending ----------------------------------------------------------------------------------

    async def _send_in_turn(self, lane: Lane) -> None:
        while lane.ready and self._failure is None:
            await self._send(lane.ready.popleft())
        lane.is_busy = False

    async def _send(self, request: OutgoingRequest) -> None:
        """Send a request until a broker has it."""
        async with self._window:
            command = await self._command(request)
            topic = self._topics[request.queue.topic]
            queue = request.queue
            patience = self._patience()
            while not await self._attempt(request, topic, queue, command(queue), patience):
                self.counts.retry_count += 1
                if not request.is_fixed:
                    queue = next(topic.dealer.others(queue), queue)
        counts = self.counts
        counts.request_count += 1
        counts.message_count += len(request.parcels)
        counts.body_bytes += sum(len(parcel.message.body) for parcel in request.parcels)
        self._held_bytes -= request.size_bytes
        self._progress.set()

    async def _attempt(
        self,
        request: OutgoingRequest,
        topic: _Topic,
        queue: MessageQueue,
        command: Command,
        patience: Patience,
    ) -> bool:
        """Send a request once; return whether a broker has it. Raises ``SendingFailed``."""
        try:
            if self._options.mode == ONEWAY:
                address = topic.route.master(queue.broker_name)
                remoting = self._admin.calls.instance.remoting
                await remoting.send_oneway(address, command, self._options.timeout_ms)
                self._oneway_queues[queue.broker_name] = queue
                return True
            reply = await self._ask(topic, queue, command)
            status = _STORED.get(reply.code)
            if status is None:
                raise broker_error(reply.code, reply.remark, queue.broker_name)
        except RemotingError as error:
            if patience.is_over(error, self._clock.monotonic_ms()):
                raise self._failed(request, queue, error, patience) from error
            if patience.is_worth_a_line:
                log.warning("%s of topic %s: %s; sending again", request.rows, queue.topic, error)
            await self._pause(topic, error)
            return await self._has_arrived(request, error)
        if status != "SEND_OK":
            if status in self._options.fail_on:
                raise SendingFailed(
                    f"{request.rows}: broker {queue.broker_name} has stored them, but says "
                    f"{status}; option failOn says which of such answers are failures"
                )
            self.counts.unsafe_count += len(request.parcels)
        return True

    async def _has_arrived(self, request: OutgoingRequest, error: RemotingError) -> bool:
        """Return whether a request whose reply is missing was stored."""
        if not isinstance(error, ConnectionLost | RequestTimedOut):
            return False
        first = request.parcels[0]  # a request is stored as a whole or not at all
        looks = first.is_derived and self._options.skip_present != SKIP_NONE
        return looks and await self._is_there(first)

    async def _command(self, request: OutgoingRequest) -> Callable[[MessageQueue], Command]:
        """Return a function that encodes the request for a queue, once per attempt."""
        message = request.parcels[0].message
        body, sys_flag = request.body(), 0
        over = self._options.compress_over_bytes
        if not request.is_batch and over and len(body) >= over:
            if len(body) > _COMPRESS_ASIDE_BYTES:
                packed = await asyncio.to_thread(zlib.compress, body, _PRODUCER.compress_level)
            else:
                packed = zlib.compress(body, _PRODUCER.compress_level)
            if len(packed) < len(body):
                body, sys_flag = packed, requests.COMPRESSED_ZLIB
        properties = request.properties()
        born_ms = message.born_timestamp_ms
        if born_ms is None:
            born_ms = self._clock.now_ms()

        def make(queue: MessageQueue) -> Command:
            return self._requests.send(
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                properties,
                body,
                born_ms,
                sys_flag,
                0 if request.is_batch else message.flag,
                is_batch=request.is_batch,
            )

        return make

    async def _ask(self, topic: _Topic, queue: MessageQueue, command: Command) -> Command:
        address = topic.route.master(queue.broker_name)
        remoting = self._admin.calls.instance.remoting
        return await remoting.invoke(address, command, self._options.timeout_ms)

    async def _pause(self, topic: _Topic, error: RemotingError) -> None:
        """Wait before the next attempt; refresh a route that may be outdated."""
        await asyncio.sleep(self._options.retry_interval_ms / 1000)
        if error.refresh_route:
            with contextlib.suppress(RemotingError):
                topic.route = await self._admin.calls.route(topic.route.topic)

    def _failed(
        self,
        request: OutgoingRequest,
        queue: MessageQueue,
        error: RemotingError,
        patience: Patience,
    ) -> SendingFailed:
        hint = ""
        if isinstance(error, BrokerError) and error.response_code == ResponseCode.MESSAGE_ILLEGAL:
            size = sum(len(parcel.message.body) for parcel in request.parcels)
            hint = f"; the bodies have {size} bytes, and brokers a maxMessageSize"
        return SendingFailed(
            f"{request.rows}: not sent to queue {queue.topic}/{queue.queue_id} of broker "
            f"{queue.broker_name}: {error} (sent {patience}; options retryTimeout, "
            f"sendTimeoutMs and send.numRetries give more patience){hint}"
        )
