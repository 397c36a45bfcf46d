"""Requests to name servers and brokers with retries, over connections shared by a process.

Spark reuses Python workers: the next task of a process reuses the connections of the last one.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from reput.client.admin import Admin
from reput.client.blocking import Facade
from reput.client.config import ClientConfig
from reput.client.core import pull_replies, requests
from reput.client.core.key_search import EVER, KeyPage, KeyQuery, Window
from reput.client.core.patience import ANSWER_RETRIES, Patience
from reput.client.core.pull_replies import PulledRecords, PullOutcome
from reput.client.core.route_cache import NoRoute, TopicRoute
from reput.clock import Clock, SystemClock
from reput.errors import (
    BrokerError,
    CorruptRecord,
    InvalidOption,
    RemotingError,
    ReputError,
)
from reput.format import bodies, headers, message as record, names, sys_flag as flags
from reput.format.bodies import MessageQueue
from reput.format.codes import MASTER_ID, PullFlag, RequestCode, ResponseCode
from reput.format.command import Buffer, Command
from reput.spark.live.pull_connection import PullConnections, PullTemplate
from reput.spark.option_table import FROM_SLAVE
from reput.spark.options import LiveOptions
from reput.store.tables.config_tables import BATCH_QUEUES

log = logging.getLogger("reput.spark")

ALL_TAGS: Final = "*"
SAMPLE_COUNT: Final = 32
"""Number of messages that are read to estimate the record size of a queue."""
RECORD_BYTES: Final = 1024.0
"""Estimate of the record size if no message can be read, in bytes."""
_QUESTIONS_IN_FLIGHT = 64

T = TypeVar("T")


class ReadFailed(ReputError):
    """A broker or name server did not provide the requested data after all retries."""


class NotRegistered(RemotingError):
    """Brokers are not registered with any name server, temporarily or permanently."""

    retriable = True


# Connections of this process -----------------------------------------------------------------


class Cluster(Facade[Admin]):
    """Connections to the servers of a cluster, and the thread of their event loop.

    Args:
        client: The client that the loop runs.
        certificates: Certificates of ``lines`` with TLS; None for plain connections.

    Attributes:
        lines: Additional connections for pulls, without a thread.
    """

    def __init__(self, client: Admin, certificates: ssl.SSLContext | None) -> None:
        super().__init__(client)
        self.lines = PullConnections(certificates)

    def close(self) -> None:
        """Close all connections."""
        self.lines.close()
        super().close()

    @property
    def admin(self) -> Admin:
        """The admin client, for use within ``run``."""
        return self._client

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the connections' loop, and wait for it."""
        return self._wait_for(coroutine)


_clusters: dict[tuple[int, ClientConfig], Cluster] = {}
"""Clusters by process (a fork has the object without its thread), and how to connect to them."""
_lock = threading.Lock()  # protects _clusters
_OPTION_NAMES = {"namesrvAddr": "nameServer"}
"""Names of settings of clients as they are in options."""


def connected(live: LiveOptions) -> Cluster:
    """Return the process's connections to a cluster, created by the first call.

    Raises:
        InvalidOption: An address is not allowed, or a file of TLS cannot be used.
    """
    try:
        config = ClientConfig(
            namesrv_addr=live.name_server,
            request_timeout_ms=live.pull_timeout_ms,
            access_key=live.access_key,
            secret_key=live.secret_key,
            security_token=live.security_token,
            use_tls=live.use_tls,
            namespace_v2=live.namespace_v2,
            tls_client_trust_cert_path=live.tls_trust_cert_path,
            tls_client_cert_path=live.tls_cert_path,
            tls_client_key_path=live.tls_key_path,
            tls_client_key_password=live.tls_key_password.reveal(),
        )
    except InvalidOption as error:
        name = _OPTION_NAMES.get(error.name, error.name)
        raise InvalidOption(name, error.value, error.allowed) from None
    key = (os.getpid(), config)
    with _lock:
        if key not in _clusters:
            cluster = Cluster(Admin(client=config), config.tls_context())
            cluster.start()
            _clusters[key] = cluster
        return _clusters[key]


def disconnect() -> None:
    """Close all connections of this process; later reads create new ones."""
    with _lock:
        mine = [key for key in _clusters if key[0] == os.getpid()]
        clusters = [_clusters.pop(key) for key in mine]
        _clusters.clear()
    for cluster in clusters:
        with contextlib.suppress(RuntimeError):  # the interpreter starts no threads any more
            cluster.close()


atexit.register(disconnect)


async def all_of(
    questions: Iterable[Coroutine[Any, Any, T]], in_flight: int = _QUESTIONS_IN_FLIGHT
) -> list[T]:
    """Return all results in order, with a bounded number in flight; or raise the first error."""
    room = asyncio.Semaphore(in_flight)

    async def ask(question: Coroutine[Any, Any, T]) -> T:
        async with room:
            return await question

    asked = list(questions)
    tasks = [asyncio.create_task(ask(question)) for question in asked]
    try:
        return list(await asyncio.gather(*tasks))
    finally:  # after an error the other results are useless
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for question in asked:
            question.close()


# Requests, with retries ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """Estimates from a few messages."""

    count: int
    byte_count: int
    store_timestamp: int
    """Store time of the first one, in ms; 0 if there is none."""

    @property
    def record_bytes(self) -> float:
        """Average record size, in bytes."""
        return self.byte_count / self.count if self.count else RECORD_BYTES


class RetryingClient:
    """Requests to name servers and brokers, with retries of temporary errors. Runs in the loop.

    Args:
        admin: Client of the cluster.
        live: Settings of the requests.
        clock: Measures how long servers are away.
    """

    def __init__(
        self,
        admin: Admin,
        live: LiveOptions,
        clock: Clock | None = None,
    ) -> None:
        self._admin = admin
        self.live = live
        self._clock = clock or SystemClock()

    async def route(self, topic: str) -> TopicRoute | None:
        """Return the current route of a topic; None if no name server has it."""

        async def ask() -> TopicRoute | None:
            try:
                return await self._admin.topic_route(topic)
            except NoRoute:
                return None

        return await self.patiently(f"route of topic {topic!r}", None, ask)

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        return await self.patiently("topics", None, self._admin.topics)

    async def brokers(self) -> dict[str, str]:
        """Return broker name to cluster name."""
        known = await self.patiently("brokers", None, self._admin.clusters)
        table = known.cluster_addr_table
        return {name: cluster for cluster, broker_names in table.items() for name in broker_names}

    async def ends(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the first queue offset of a queue, and that after the last message."""
        header = headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id)

        async def ask() -> tuple[int, int]:
            low, high = await asyncio.gather(
                self._offset(queue, RequestCode.GET_MIN_OFFSET, header),
                self._offset(queue, RequestCode.GET_MAX_OFFSET, header),
            )
            return low, max(low, high)

        return await self.patiently(f"ends of {queue_name(queue)}", queue.topic, ask)

    async def ends_of_topic(self, topic: str, broker: str) -> dict[int, tuple[int, int]]:
        """Return the ends of a topic's queues on a broker, by queue id; empty without the topic."""

        async def ask() -> dict[int, tuple[int, int]]:
            request = requests.make(
                RequestCode.GET_TOPIC_STATS_INFO, headers.TopicHeader(topic=topic)
            )
            try:
                reply = await self._admin.calls.ask_broker(broker, request)
            except BrokerError as error:
                if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
                    return {}
                raise
            table = bodies.decode(bodies.TopicStats, reply.body).offset_table
            return {
                queue.queue_id: (stats.min_offset, max(stats.min_offset, stats.max_offset))
                for queue, stats in table.items()
            }

        return await self.patiently(f"ends of topic {topic!r} on {broker}", None, ask)

    async def topic_configs(self, broker: str) -> dict[str, bodies.TopicConfigData]:
        """Return the topics of a broker with their settings, by name."""
        return await self.patiently(
            f"topics of {broker}", None, lambda: self._admin.topic_configs(broker)
        )

    async def batch_topics(self, queues: Iterable[MessageQueue]) -> dict[str, frozenset[str]]:
        """Return the topics with batch queues of each broker of some queues, by its name.

        Brokers before 5.0 have none. A broker that does not show its settings to this user is
        judged by the first message of each queue.
        """
        of_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            of_broker.setdefault(queue.broker_name, []).append(queue)
        topics = await all_of(map(self._batch_topics_of, of_broker.values()))
        return dict(zip(of_broker, topics, strict=True))

    async def _batch_topics_of(self, queues: Sequence[MessageQueue]) -> frozenset[str]:
        """Return the topics with batch queues of the broker of some queues."""
        kind, batches = BATCH_QUEUES

        async def ask() -> frozenset[str] | None:
            address = await self.address(queues[0])
            request = requests.make(RequestCode.GET_ALL_TOPIC_CONFIG)
            try:
                reply = await self._admin.calls.ask(address, request)
            except BrokerError as error:
                if error.response_code == ResponseCode.NO_PERMISSION:
                    return None
                raise
            table = bodies.decode(bodies.TopicConfigTable, reply.body).topic_config_table
            return frozenset(
                name
                for name, config in table.items()
                if (config.attributes or {}).get(kind) == batches
            )

        what = f"settings of the topics of {queues[0].broker_name}"
        topics = await self.patiently(what, queues[0].topic, ask)
        if topics is not None:
            return topics
        are_batches = await all_of(map(self._begins_with_batch, queues))
        named = zip(queues, are_batches, strict=True)
        return frozenset(queue.topic for queue, is_batch in named if is_batch)

    async def _begins_with_batch(self, queue: MessageQueue) -> bool:
        low, high = await self.ends(queue)
        first = await self.first_message(queue, low) if low < high else None
        return first is not None and bool(first.sys_flag & flags.INNER_BATCH)

    async def broker_address(self, broker: str) -> str:
        """Return the address of a broker's master."""
        return await self.patiently(
            f"address of {broker}", None, lambda: self._admin.calls.address(broker)
        )

    async def search(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the approximate queue offset of a time."""
        header = headers.SearchOffsetHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=time_ms
        )
        return await self.patiently(
            f"time {time_ms} in {queue_name(queue)}",
            queue.topic,
            lambda: self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header),
        )

    async def _offset(self, queue: MessageQueue, code: RequestCode, header: headers.Header) -> int:
        address = await self.address(queue)
        reply = await self._admin.calls.ask(address, requests.make(code, header))
        return headers.decode(headers.OffsetReplyHeader, reply.ext_fields).offset

    async def address(self, queue: MessageQueue) -> str:
        """Return the address for requests about a queue. Raises ``RemotingError``."""
        route = await self._admin.calls.instance.route(queue.topic)
        if queue.broker_name not in route.brokers:
            route = await self._admin.calls.route(queue.topic)
        slaves = [number for number in route.brokers.get(queue.broker_name, {}) if number]
        reads_slave = self.live.read_from == FROM_SLAVE and slaves
        return route.any_address(queue.broker_name, min(slaves) if reads_slave else MASTER_ID)

    async def consumer_offsets(self, broker: str) -> dict[str, dict[int, int]]:
        """Return the consumer offsets of a broker, by ``topic@group`` and queue id."""

        async def ask() -> dict[str, dict[int, int]]:
            request = requests.make(RequestCode.GET_ALL_CONSUMER_OFFSET)
            reply = await self._admin.calls.ask_broker(broker, request)
            return bodies.decode(bodies.ConsumerOffsetTable, reply.body).offset_table

        return await self.patiently(f"consumer offsets of {broker}", None, ask)

    async def pull(
        self, queue: MessageQueue, queue_offset: int, count: int, expression: str = ALL_TAGS
    ) -> PulledRecords:
        """Return records of a queue from an offset on. The broker does not hold the pull."""

        async def ask() -> PulledRecords:
            address = await self.address(queue)
            request = self._pull_request(queue, queue_offset, count, expression)
            remoting = self._admin.calls.instance.remoting
            reply = await remoting.invoke(address, request, self.live.pull_timeout_ms)
            pulled = pull_replies.read(reply, address)
            if pulled.outcome(queue_offset, is_filtered=False) is PullOutcome.STUCK:
                # Files are being deleted, or the store was replaced: retrying at once is useless.
                remark = f"{reply.remark}, continue at {pulled.next_offset}"
                raise BrokerError(ResponseCode.SYSTEM_BUSY, remark, address)
            return pulled

        what = f"messages of {queue_name(queue)} from queue offset {queue_offset} on"
        return await self.patiently(what, queue.topic, ask)

    async def first_message(
        self, queue: MessageQueue, queue_offset: int
    ) -> record.StoredMessage | None:
        """Return the first message of a queue from an offset on; None if a pull finds none."""
        pulled = await self.pull(queue, queue_offset, 1)
        return record.decode(pulled.records, check_crc=False) if pulled.records else None

    async def query(
        self, queue: MessageQueue, key: str, window: Window = EVER, *, is_unique: bool
    ) -> KeyPage:
        """Return the newest messages with a key, of all queues of the topic on the broker.

        Args:
            queue: A queue of the topic and broker.
            key: The key. Messages whose keys have the same hash may be among the result.
            window: Their store times.
            is_unique: It is a unique key.
        """
        query = KeyQuery(queue.topic, key, window, is_unique)

        async def ask() -> KeyPage:
            address = await self.address(queue)
            return await self._admin.calls.ask_index(address, query, self.live.pull_timeout_ms)

        what = f"key {key[:100]!r} in topic {queue.topic!r} of broker {queue.broker_name}"
        what += " (scan=consumequeue needs no index)"
        return await self.patiently(what, queue.topic, ask)

    def pull_template(self, queue: MessageQueue, expression: str) -> PullTemplate:
        """Return the constant part of the pulls of a queue."""
        config = self._admin.calls.instance.config
        request = self._pull_request(queue, 0, 0, expression)
        request.ext_fields = {**(request.ext_fields or {}), **config.request_fields()}
        return PullTemplate(request, config.signer())

    def _pull_request(
        self, queue: MessageQueue, queue_offset: int, count: int, expression: str
    ) -> Command:
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
        return requests.make(RequestCode.PULL_MESSAGE, header)

    async def commit(self, group: str, queue: MessageQueue, consumer_offset: int) -> None:
        """Set the consumer offset of a group."""
        await self.patiently(
            f"consumer offset of {queue_name(queue)}",
            queue.topic,
            lambda: self._admin.update_consumer_offset(group, queue, consumer_offset),
            ANSWER_RETRIES,
        )

    async def make_group(self, group: str, broker: str) -> None:
        """Create a consumer group on a broker that lacks it.

        Includes its retry topic, by which administration tools list groups.
        """

        async def ask() -> None:
            if group not in await self._admin.groups(broker=broker):
                await self._admin.create_group(group, broker=broker)
            topic = names.retry_topic(group)
            if topic not in await self._admin.topic_configs(broker):
                await self._admin.create_topic(topic, queue_count=1, broker=broker)

        what = f"consumer group {group} of broker {broker}"
        await self.patiently(what, None, ask, ANSWER_RETRIES)

    async def sample(
        self, queue: MessageQueue, queue_offset: int, count: int = SAMPLE_COUNT
    ) -> Sample:
        """Return estimates from the next messages of a queue."""
        pulled = await self.pull(queue, queue_offset, count)
        if pulled.code != ResponseCode.SUCCESS:
            return Sample(0, 0, 0)
        count_found = len(frames(pulled.records, queue))
        return Sample(count_found, len(pulled.records), record.store_timestamp_of(pulled.records))

    async def patiently(
        self,
        what: str,
        topic: str | None,
        ask: Callable[[], Awaitable[T]],
        retry_count: int | None = None,
    ) -> T:
        """Run a request with retries; refresh a topic's route if it may be outdated.

        Args:
            what: The request, for errors.
            topic: The topic, if it is about one.
            ask: Sends the request once.
            retry_count: Maximum number of retries in place of the option's.

        Raises:
            ReadFailed: The last attempt failed.
        """
        live = self.live
        count = live.retry_count if retry_count is None else retry_count
        patience = Patience(live.retry_timeout_ms, count, live.retry_interval_ms)
        while True:
            try:
                return await ask()
            except RemotingError as error:
                if patience.is_over(error, self._clock.monotonic_ms()):
                    raise _failed(what, patience, error, live) from error
                if patience.is_worth_a_line:
                    log.warning("%s: %s; asking again", what, error)
                await self._pause()
                if topic is not None and error.refresh_route:
                    with contextlib.suppress(RemotingError):
                        await self._admin.calls.route(topic)

    async def _pause(self) -> None:
        await asyncio.sleep(self.live.retry_interval_ms / 1000)


def _failed(what: str, patience: Patience, error: RemotingError, live: LiveOptions) -> ReadFailed:
    return ReadFailed(
        f"{what}: {error} (asked {patience}; name server {live.name_server}; options "
        "retryTimeout, pullTimeoutMs and fetchOffset.numRetries give more patience)"
    )


def queue_name(queue: MessageQueue) -> str:
    """Return the name of a queue in errors."""
    return f"queue {queue.topic}/{queue.queue_id} of broker {queue.broker_name}"


def frames(records: Buffer, queue: MessageQueue | None = None, position: int = 0) -> list[int]:
    """Return the positions of the records in a reply. Raises ``CorruptRecord``."""
    positions = []
    end = len(records)
    unpack = record.SIZE_AND_MAGIC.unpack_from
    while position < end:
        size = unpack(records, position)[0] if end - position >= record.FIXED_BYTES_V1 else 0
        if not record.FIXED_BYTES_V1 <= size <= end - position:
            place = f"reply to a pull from {queue_name(queue)}" if queue is not None else None
            left = end - position
            reason = f"record at byte {position} has size {size}; {left} bytes are left"
            raise CorruptRecord(reason, file=place)
        positions.append(position)
        position += size
    return positions
