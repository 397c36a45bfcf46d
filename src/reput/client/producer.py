"""The producer.

    async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
        result = await producer.send(Message("Orders", b"one", tags="new"))

Sends use a topic's queues in turn; a retry prefers another broker. If brokers are busy, or none can
be reached, the send is repeated with increasing delays until its timeout. A message that was not
acknowledged raises an error; it is never dropped silently. It may be stored nevertheless if only
the reply was lost: a retried message can be stored twice, with one ``message_id``.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import random
import socket
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Self, cast

from reput.client import hooks
from reput.client.config import ClientConfig, ProducerConfig, client_config
from reput.client.connection_events import ConnectionCallback, ConnectionCalls, ConnectionEvent
from reput.client.core import requests, retry
from reput.client.core.queue_choice import FAILURE_COUNTS_AS_MS, QueueChoice, SlowBrokers
from reput.client.core.requests import COMPRESSED_ZLIB, SendRequests
from reput.client.core.retry import SendFailed
from reput.client.core.route_cache import NoRoute, TopicRoute
from reput.client.core.send_counts import SendCounts, TopicSends
from reput.client.core.subscription import TAG_SEPARATOR
from reput.client.core.unique_key import UniqueKeys
from reput.client.hooks import ClientFacts, SendCall, SendOperation
from reput.client.instance import Answer, ClientInstance, MemberKind, NotReady, NotStarted
from reput.client.membership import Problem
from reput.client.message import (
    Message,
    ReceivedMessage,
    SendResult,
    SendStatus,
    check_group,
    check_topic,
    property_text,
)
from reput.client.metrics import Metric, producer_metrics
from reput.client.request_reply import AwaitedReplies, NoReply, is_reply, reply_message
from reput.client.send_back import MAX_RECONSUME_TIMES
from reput.client.trace import GROUP_PREFIX, TraceWriter, sender_config, sender_group
from reput.client.with_statement import AsyncWithOnly
from reput.clock import Clock, SystemClock
from reput.errors import (
    InvalidHeader,
    InvalidOption,
    RemotingError,
    ReputError,
    broker_error,
)
from reput.format import (
    batch,
    bodies,
    java,
    names,
    namespace,
    properties as props,
    recall_handle as handles,
    sharding,
)
from reput.format.bodies import ClusterInfo, MessageQueue, ProducerData
from reput.format.codes import MASTER_ID, RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import RecallMessageHeader

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Function that selects one of a topic's queues for a message."""

COMPRESS_ASIDE_BYTES = 128 * 1024
"""Size above which a body is compressed in a thread, in bytes, so that the loop is not blocked."""
FRESH_ROUTE_MS = 1_000
"""Maximum time that a retry waits for a fresh route before it uses the known one, in ms."""
READY_PAUSE_MS = 50
"""First pause of ``ready`` after a failed attempt, in ms; each further one is twice as long."""
READY_PAUSE_MAX_MS = 1_000
"""Maximum pause of ``ready``, in ms."""

_STATUS_OF_CODE = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
_OK = SendStatus.SEND_OK
_RESULTS = {
    SendStatus.SEND_OK: "ok",
    SendStatus.FLUSH_DISK_TIMEOUT: "flush_disk_timeout",
    SendStatus.FLUSH_SLAVE_TIMEOUT: "flush_slave_timeout",
    SendStatus.SLAVE_NOT_AVAILABLE: "slave_not_available",
}
"""Results of sends in metrics; besides, there are ``failed`` and ``oneway``."""


class NotTried(RemotingError):
    """Result of a message in ``send_many`` that was not sent, since another one had failed.

    Args:
        sharding_key: Key of the message, which waited for an earlier one of the same key.
    """

    retriable = True

    def __init__(self, sharding_key: str) -> None:
        super().__init__(
            f"not sent: another message failed while those of key {sharding_key!r} were waiting"
        )


class NotAllSent(RemotingError):
    """Error of ``send_many``, which stopped at a failure.

    Args:
        results: Result or error of each message that was taken, in order.
    """

    def __init__(self, results: Sequence[SendResult | ReputError]) -> None:
        self.results = list(results)
        errors = [result for result in results if isinstance(result, ReputError)]
        failures = [error for error in errors if not isinstance(error, NotTried)]
        self.retriable = all(error.retriable for error in failures)
        super().__init__(
            f"{len(results) - len(errors)} messages sent, {len(failures)} failed, the others were"
            f" not sent; first failure: {failures[0]}"
        )


@dataclass(slots=True)
class _Outgoing:
    """An encoded message or batch, ready for any broker."""

    topic: str
    """Topic with its namespace."""
    first: Message
    unique_key: str
    """Unique key; those of a batch are separated by commas."""
    properties: str
    body: bytes
    born_ms: int
    sys_flag: int = 0
    reconsume_times: str = "0"
    max_reconsume_times: str | None = None
    is_batch: bool = False
    is_reply: bool = False
    inner: Sequence[Message] = ()
    """Messages of a batch."""


class Producer(AsyncWithOnly):
    """Sends messages to the brokers of a cluster. Use it as ``async with``.

    Args:
        group: Group of equal producers; brokers may query any of them about a transaction.
        namesrv: ``host:port;host:port``; by default NAMESRV_ADDR of the environment.
        on_connection: Async or plain function that is called with each ``ConnectionEvent``, one
            at a time. Plain functions run in a thread.
        config: Settings of sends.
        client: Settings of the client.
        clock: The clock; tests pass their own.

    Raises:
        InvalidOption: An argument is not allowed.
    """

    _kind = MemberKind.PRODUCER

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        on_connection: ConnectionCallback | None = None,
        config: ProducerConfig | None = None,
        client: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_group("group", group)
        self.config = config or ProducerConfig()
        self._client_config = client_config(namesrv, client)
        self._namespace = self._client_config.namespace
        self.group = namespace.wrap(self._namespace, group)
        self._clock = clock or SystemClock()
        self._instance: ClientInstance | None = None
        self._requests = SendRequests(
            self.group, self.config.create_topic_key, self.config.default_topic_queue_nums
        )
        avoids_slow = self.config.send_latency_fault_enable
        self._slow_brokers = SlowBrokers() if avoids_slow else None
        self._choice = QueueChoice(self._slow_brokers)
        self._unique_keys = UniqueKeys(bytes(4), 0, 0)
        self._full_topics: dict[str, str] = {}
        """Topics of sends, to their names with namespace."""
        self._has_warned_of_level = False
        self._awaited = AwaitedReplies(self._clock)
        self._traces: TraceWriter | None = None
        self._sends = SendCounts()
        self._connection_calls = ConnectionCalls(on_connection)
        self._greeted: set[str] = set()
        """Addresses of brokers that have this producer's heartbeat and can push replies to it."""

    # --- coming and going -------------------------------------------------------

    async def start(self) -> None:
        """Start the producer; the first message opens connections."""
        if self._instance is not None:
            self._instance.check_caller("producer")
            return
        self._instance = await ClientInstance.join(self._client_config, self, clock=self._clock)
        address = _packed(self._instance.address)
        self._unique_keys = UniqueKeys(address, os.getpid(), random.getrandbits(32))
        if self._client_config.enable_trace:
            self._traces = trace_writer(self._client_config, self.group, "PRODUCE", self._clock)
            await self._traces.start()

    async def close(self) -> None:
        """Unregister from the brokers and stop. Pending ``request`` calls may fail."""
        if self._instance is not None:
            self._instance.check_caller("producer")
        instance, self._instance = self._instance, None
        traces, self._traces = self._traces, None
        try:
            if instance is not None:
                await instance.leave(self)
        finally:
            await self._connection_calls.close()
            if traces is not None:
                await traces.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        """True while a connection to a broker is open. It may be read in any thread."""
        instance = self._instance
        return instance is not None and instance.is_connected

    def is_ready(self, topic: str | None = None) -> bool:
        """Return whether a send needs neither a route nor a new connection.

        Args:
            topic: Topic to send to; None: any.
        """
        if topic is None or not self.is_connected:
            return self.is_connected
        instance, full = self._joined(), self._full_topics.get(topic)
        route = None if full is None else instance.known_route(full)
        return route is not None and any(
            instance.remoting.channel(address) is not None for address in _masters(route)
        )

    async def ready(self, topic: str | None = None, timeout_ms: int = 10_000) -> None:
        """Wait until ``is_ready``: fetch the route of a topic, and connect to one of its brokers.

        Args:
            topic: Topic to send to; None: any broker of the name servers.
            timeout_ms: Time to wait, in ms.

        Raises:
            InvalidOption: The topic's name is illegal.
            NotStarted: The producer is not started.
            NotReady: The time is over; the error has the reason.
        """
        instance = self._joined()
        full = None if topic is None else self._full_topic(topic)
        problem = "name servers and brokers do not answer"
        pause_ms = READY_PAUSE_MS
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    try:
                        await self._connect(instance, full)
                        return
                    except Problem as error:
                        problem = str(error)
                    await asyncio.sleep(pause_ms / 1000)
                    pause_ms = min(2 * pause_ms, READY_PAUSE_MAX_MS)
        except TimeoutError:
            raise NotReady("producer", self.group, timeout_ms, problem) from None

    async def _connect(self, instance: ClientInstance, full_topic: str | None) -> None:
        """Connect to a broker: of a topic, or any. Raises ``RemotingError``."""
        if full_topic is not None:
            addresses = _masters(await self._route(full_topic))
        else:
            request = requests.make(RequestCode.GET_BROKER_CLUSTER_INFO)
            reply = await instance.ask_name_server(request)
            if reply.code != ResponseCode.SUCCESS:
                raise instance.name_server_error(reply)
            brokers = bodies.decode(ClusterInfo, reply.body).broker_addr_table.values()
            masters = (broker.broker_addrs.get(MASTER_ID) for broker in brokers)
            addresses = [address for address in masters if address is not None]
        problem = RemotingError("no broker is registered at the name server")
        for address in addresses:
            try:
                await instance.remoting.connect(address)
                return
            except RemotingError as error:
                problem = error
        raise problem

    def metrics(self) -> dict[str, Metric]:
        """Return the metrics of this client by name; may be called in any thread."""
        return producer_metrics(self.group, self._sends, self._instance)

    # --- sending ----------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message, and return its position.

        Args:
            message: The message.
            queue: The queue, or a selector; then there is only one attempt unless the broker is
                busy or cannot be reached.
            sharding_key: Key that selects the queue, as ``SelectMessageQueueByHash`` of Java does;
                instead of ``queue``. Messages of one key stay in order while the number of queues
                stays the same. It is sent as the property ``__SHARDINGKEY``.
            timeout_ms: Timeout of all attempts, in ms; None: as configured.

        Raises:
            InvalidOption: The message or queue is not allowed.
            NoRoute: Until the timeout no name server has the topic or the template topic, or none
                answers.
            SendFailed: The last attempt failed; it has the reason and ``retriable``.
        """
        if sharding_key is not None:
            message, queue = _sharded(message, sharding_key, queue)
        if hooks.installed is None:
            return await self._send(await self._outgoing(message), queue, timeout_ms)
        with self._observed(SendOperation.SEND, [message]) as call:
            (message,) = call.messages
            call.result = await self._send(await self._outgoing(message), queue, timeout_ms)
        return call.result

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send messages of one topic as one request: all are stored, in order, or none.

        Args:
            messages: At least one; together at most ``max_message_bytes``.
            queue: As in ``send``; a selector is given the first message.
            sharding_key: As in ``send``, for all messages.
            timeout_ms: As in ``send``.

        Raises:
            InvalidOption: The messages cannot form a batch, or one of them is not allowed.
            NoRoute, SendFailed: As in ``send``.
        """
        batched = list(messages)
        if sharding_key is not None:
            sharded = [_sharded(message, sharding_key, queue) for message in batched]
            batched = [message for message, _ in sharded]
            queue = sharded[0][1] if sharded else queue
        if hooks.installed is None:
            return await self._send(self._outgoing_batch(batched), queue, timeout_ms)
        _check_batch(batched)
        with self._observed(SendOperation.SEND, batched, is_batch=True) as call:
            outgoing = self._outgoing_batch(call.messages)
            call.result = await self._send(outgoing, queue, timeout_ms)
        return call.result

    async def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | Callable[[Message], str | None] | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages individually, with ``window_count`` of them in flight.

        The brokers may store them in another order, except those of one sharding key: each of them
        is sent when the previous one is stored. Results are in the order of the messages.

        Args:
            messages: Iterated as the window allows, so that they can be generated on the way.
            queue: As in ``send``, for each message.
            sharding_key: As in ``send``: a key for all messages, or a function that returns the key
                of each, or None for any queue.
            timeout_ms: As in ``send``, for each message.

        Raises:
            NotAllSent: A send failed. No further messages were taken; sends in flight were awaited.
        """
        results: list[SendResult | ReputError | None] = []
        source = iter(messages)
        has_failed = False
        last_of_key: dict[str, asyncio.Event] = {}
        """Sharding key -> the event that is set after its last send."""

        async def send_in_order(message: Message) -> SendResult:
            nonlocal has_failed
            key = sharding_key(message) if callable(sharding_key) else sharding_key
            if key is None:
                return await self.send(message, queue=queue, timeout_ms=timeout_ms)
            previous = last_of_key.get(key)
            end = last_of_key[key] = asyncio.Event()
            try:
                if previous is not None:
                    await previous.wait()
                    if has_failed:
                        raise NotTried(key)
                return await self.send(
                    message, queue=queue, sharding_key=key, timeout_ms=timeout_ms
                )
            except BaseException:
                has_failed = True  # before the next message of the key continues
                raise
            finally:
                if last_of_key[key] is end:
                    del last_of_key[key]
                end.set()

        async def send_in_turn() -> None:
            nonlocal has_failed
            while not has_failed:
                message = next(source, None)
                if message is None:
                    return
                index = len(results)
                results.append(None)
                try:
                    results[index] = await send_in_order(message)
                except ReputError as error:
                    results[index] = error
                    has_failed = True

        count = self.config.window_count
        if isinstance(messages, Sized):
            count = min(count, len(messages))
        async with asyncio.TaskGroup() as senders:
            for _ in range(count):
                senders.create_task(send_in_turn())
        if has_failed:
            raise NotAllSent(cast(list[SendResult | ReputError], results))
        return cast(list[SendResult], results)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> None:
        """Send a message without a reply: it may be lost silently.

        Args:
            message: The message.
            queue: As in ``send``.
            sharding_key: As in ``send``.

        Raises:
            InvalidOption, NoRoute: As in ``send``.
            RemotingError: There is no connection to the broker.
        """
        if sharding_key is not None:
            message, queue = _sharded(message, sharding_key, queue)
        if hooks.installed is None:
            await self._send_oneway(message, queue)
            return
        with self._observed(SendOperation.ONEWAY, [message]) as call:
            (message,) = call.messages
            call.broker_address = await self._send_oneway(message, queue)

    async def _send_oneway(
        self, message: Message, queue: MessageQueue | QueueSelector | None
    ) -> str:
        """Send a message without a reply; return the address of the broker."""
        instance = self._joined()
        outgoing = await self._outgoing(message)
        route = await self._route_in_time(outgoing.topic, self.config.send_timeout_ms)
        chosen = self._fixed_queue(route, queue, message)
        if chosen is None:
            now_ms = self._clock.monotonic_ms()
            chosen = self._choice.choose(route.topic, route.publish_queues, now_ms, None)
        address = route.master(chosen.broker_name)
        begun_ms = self._clock.monotonic_ms()
        await instance.remoting.send_oneway(address, self._request(outgoing, chosen))
        self._sends.of(outgoing.topic).add("oneway", self._clock.monotonic_ms() - begun_ms)
        return address

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> ReceivedMessage:
        """Send a message, and return the reply of its consumer.

        Args:
            message: As in ``send``.
            queue: As in ``send``.
            timeout_ms: Timeout of the reply, in ms; None: that of sends.

        Raises:
            NoReply: The message was stored but not replied to in time.
            InvalidOption, NoRoute, SendFailed: As in ``send``.
        """
        timeout_ms = timeout_ms or self.config.send_timeout_ms
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        await self._greet(self._full_topic(message.topic), timeout_ms)
        client_id = self._joined().client_id
        request, reply = self._awaited.begin(message, client_id, timeout_ms)
        try:
            left_ms = max(1, deadline_ms - self._clock.monotonic_ms())
            await self.send(request, queue=queue, timeout_ms=left_ms)
            left_ms = deadline_ms - self._clock.monotonic_ms()
            async with asyncio.timeout(left_ms / 1000):
                return await reply
        except TimeoutError:
            raise NoReply(message.topic, timeout_ms) from None
        finally:
            reply.cancel()

    async def _greet(self, topic: str, timeout_ms: int) -> None:
        """Register this client at the brokers of a topic, so that they can push replies to it."""
        route = await self._route_in_time(topic, timeout_ms)
        addresses = {route.master(queue.broker_name) for queue in route.publish_queues}
        if not addresses <= self._greeted:
            instance = self._joined()
            await instance.heartbeat()
            self._greeted |= set(filter(instance.broker_version, addresses))

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Reply to a consumed request, through the broker that it came from.

        Args:
            request: The request.
            body: Body of the reply, at least a byte.
            properties: Other properties.
            timeout_ms: As in ``send``.

        Raises:
            InvalidOption: The message is not a request.
            SendFailed: As in ``send``; also if the requester is gone or no longer waits.
        """

        def queue_of_broker(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
            # The requester is connected to that broker, perhaps to no other.
            same = [queue for queue in queues if queue.broker_name == request.broker_name]
            return random.choice(same or list(queues))

        message = reply_message(request, body, properties)
        return await self.send(message, queue=queue_of_broker, timeout_ms=timeout_ms)

    async def recall(self, topic: str, recall_handle: str, *, timeout_ms: int | None = None) -> str:
        """Cancel the delivery of a message that waits for its time.

        Args:
            topic: Topic of the message.
            recall_handle: Handle from the result of its send.
            timeout_ms: Timeout of the reply, in ms; None: that of sends.

        Returns:
            The unique key of the message.

        Raises:
            InvalidOption: The handle is invalid, or of another topic.
            NoRoute: As in ``send``; also if the broker is unknown.
            BrokerError: The broker does not support recalls (``recallMessageEnable``), or it is too
                late.
            RemotingError: The broker was not reached, or did not reply.
        """
        full = self._full_topic(topic)
        try:
            handle = handles.decode(recall_handle)
        except InvalidHeader as error:
            raise InvalidOption("recall_handle", recall_handle, "what a send returned") from error
        if handle.topic != full:
            raise InvalidOption("recall_handle", recall_handle, f"one of topic {topic!r}")
        timeout_ms = timeout_ms or self.config.send_timeout_ms
        address = (await self._route_in_time(full, timeout_ms)).master(handle.broker_name)
        header = RecallMessageHeader(
            producer_group=self.group, topic=full, recall_handle=recall_handle
        )
        request = requests.make(RequestCode.RECALL_MESSAGE, header)
        reply = await self._joined().remoting.invoke(address, request, timeout_ms)
        fields = reply.ext_fields or {}
        is_success = reply.code == ResponseCode.SUCCESS
        if self._traces is not None:
            region = fields.get("MSG_REGION")
            self._traces.recalled(topic, handle.unique_key, region=region, is_success=is_success)
        if not is_success:
            raise broker_error(reply.code, reply.remark, address)
        return fields.get("msgId", handle.unique_key)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of a topic.

        Raises:
            InvalidOption, NoRoute: As in ``send``.
        """
        full, timeout_ms = self._full_topic(topic), self.config.send_timeout_ms
        return self._own_names(await self._route_in_time(full, timeout_ms))

    # --- what an instance asks its members --------------------------------------

    def _heartbeat_part(self) -> ProducerData:
        """Return the producer's part of a heartbeat."""
        return ProducerData(group_name=self.group)

    def _topics(self) -> Collection[str]:
        """Return the topics of earlier sends."""
        return self._full_topics.values()

    def _on_members_changed(self) -> None:
        """Do nothing: producers do not rebalance."""

    def _on_route_changed(self, route: TopicRoute) -> None:
        """Do nothing: each send uses the current route."""

    def _on_request(self, address: str, request: Command) -> Answer:
        """Handle a pushed reply message; other requests are for transaction producers."""
        if request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return self._awaited.take(request)
        return None

    def _on_connection(self, event: ConnectionEvent) -> None:
        """Report an event to the program."""
        self._connection_calls.report(event)

    # --- hooks ------------------------------------------------------------------

    @contextlib.contextmanager
    def _observed(
        self,
        operation: SendOperation,
        messages: list[Message],
        *,
        half: SendResult | None = None,
        is_batch: bool = False,
    ) -> Iterator[SendCall]:
        """Report an operation to the hook, except those of the producers of traces.

        The block sets the result, and takes the messages from the call.
        """
        topic = messages[0].topic if half is None else half.queue.topic
        instance = self._joined()
        own = self._namespace
        facts = ClientFacts(namespace.unwrap(own, self.group), own, instance.client_id)
        call = SendCall(operation, facts, topic, messages, is_batch, half)
        if self.group.startswith(GROUP_PREFIX):
            yield call
            return
        with hooks.sending(call):
            yield call
            route = instance.known_route(self._full_topics.get(topic, topic))
            if call.result is not None and route is not None:
                call.broker_address = route.address(call.result.queue.broker_name)

    # --- from message to request ------------------------------------------------

    async def _outgoing(self, message: Message) -> _Outgoing:
        topic = self._full_topics.get(message.topic) or self._full_topic(message.topic)
        body = message.body
        self._check(message)
        now_ms = self._clock.now_ms()
        unique_key = message.properties.get(props.UNIQ_KEY)
        if unique_key is None:
            unique_key = self._unique_keys.next(now_ms)
        outgoing = _Outgoing(topic, message, unique_key, "", body, now_ms)
        if is_reply(message):
            outgoing.topic = message.topic  # the cluster's topic, whatever the request's namespace
            outgoing.is_reply = True
        if topic.startswith(names.RETRY_PREFIX):
            message = _take_retry_fields(outgoing)
        if self._namespace:
            properties = {**message.properties, props.INSTANCE_ID: self._namespace}
            message = dataclasses.replace(message, properties=properties)
        outgoing.properties = property_text(message, unique_key)
        if len(body) >= self.config.compress_body_over_bytes:
            await self._compress(outgoing)
        return outgoing

    def _outgoing_batch(self, messages: Sequence[Message]) -> _Outgoing:
        _check_batch(messages)
        first = messages[0]
        topic = self._full_topic(first.topic)
        now_ms = self._clock.now_ms()
        inner, unique_keys = [], []
        for message in messages:
            self._check(message)
            unique_key = message.properties.get(props.UNIQ_KEY) or self._unique_keys.next(now_ms)
            unique_keys.append(unique_key)
            property_bytes = java.encode_utf8(property_text(message, unique_key))
            inner.append(batch.InnerMessage(message.flag, message.body, property_bytes))
        body = batch.encode(inner)
        if len(body) > self.config.max_message_bytes:
            allowed = f"at most {self.config.max_message_bytes} bytes (max_message_bytes)"
            raise InvalidOption("messages", f"{len(body)} bytes as a batch", allowed)
        properties = "" if first.wait else f"{props.WAIT}\x01false\x02"
        all_keys = ",".join(unique_keys)
        return _Outgoing(
            topic, first, all_keys, properties, body, now_ms, is_batch=True, inner=messages
        )

    def _request(self, outgoing: _Outgoing, queue: MessageQueue) -> Command:
        request = self._requests.send(
            outgoing.topic,
            queue.broker_name,
            queue.queue_id,
            outgoing.properties,
            outgoing.body,
            outgoing.born_ms,
            outgoing.sys_flag,
            outgoing.first.flag,
            outgoing.reconsume_times,
            outgoing.max_reconsume_times,
            outgoing.is_batch,
        )
        if outgoing.is_reply:
            request.code = RequestCode.SEND_REPLY_MESSAGE_V2
        return request

    async def _compress(self, outgoing: _Outgoing) -> None:
        body, level = outgoing.body, self.config.compress_level
        if len(body) > COMPRESS_ASIDE_BYTES:
            packed = await asyncio.to_thread(zlib.compress, body, level)
        else:
            packed = zlib.compress(body, level)
        if len(packed) < len(body):
            outgoing.body = packed
            outgoing.sys_flag = COMPRESSED_ZLIB

    def _check(self, message: Message) -> None:
        body = message.body
        if not isinstance(body, bytes):
            raise InvalidOption("body", type(body).__name__, "bytes")
        if not 0 < len(body) <= self.config.max_message_bytes:
            allowed = f"1 to {self.config.max_message_bytes} bytes (max_message_bytes)"
            raise InvalidOption("body", f"{len(body)} bytes", allowed)
        tags = message.tags
        # A message with an id is a copy, and stays as it is.
        if tags and TAG_SEPARATOR in tags and props.UNIQ_KEY not in message.properties:
            allowed = "one tag; only subscriptions list tags, like TagA || TagB"
            raise InvalidOption("tags", tags, allowed)
        if message.delay_level > DEFAULT_DELAY_LEVELS and not self._has_warned_of_level:
            self._has_warned_of_level = True
            _log.warning(
                "delay level %d: RocketMQ has %d levels, unless messageDelayLevel has more; a "
                "message with a higher one waits as long as with the highest: 2 hours by default",
                message.delay_level,
                DEFAULT_DELAY_LEVELS,
            )
        if not -_FLAG_LIMIT <= message.flag < _FLAG_LIMIT:
            raise InvalidOption("flag", message.flag, "a whole number of 32 bits with a sign")

    def _full_topic(self, topic: str) -> str:
        """Return a topic with its namespace, and record it as used."""
        full = self._full_topics.get(topic)
        if full is None:
            check_topic(topic)
            full = namespace.wrap(self._namespace, topic)
            check_topic(full)
            self._full_topics[topic] = full
        return full

    # --- from request to result -------------------------------------------------

    async def _send(
        self,
        outgoing: _Outgoing,
        queue: MessageQueue | QueueSelector | None,
        timeout_ms: int | None,
    ) -> SendResult:
        """Send a message, and count the send."""
        sends = self._sends.of(outgoing.topic)
        begun_ms = self._clock.monotonic_ms()
        result = "failed"
        try:
            stored = await self._send_until_stored(outgoing, queue, timeout_ms, sends)
            result = _RESULTS[stored.status]
            return stored
        finally:
            sends.add(result, self._clock.monotonic_ms() - begun_ms)

    async def _send_until_stored(
        self,
        outgoing: _Outgoing,
        queue: MessageQueue | QueueSelector | None,
        timeout_ms: int | None,
        sends: TopicSends,
    ) -> SendResult:
        """Send until a broker has stored the message, or attempts or time are exhausted."""
        topic = outgoing.topic
        timeout_ms = timeout_ms or self.config.send_timeout_ms
        begun_ms = now_ms = self._clock.monotonic_ms()
        route = self._joined().known_route(topic)
        if route is None or not route.publish_queues:
            route = await self._route_in_time(topic, timeout_ms)
            now_ms = min(self._clock.monotonic_ms(), begun_ms + timeout_ms - 1)
        fixed = self._fixed_queue(route, queue, outgoing.first) if queue is not None else None
        retry_count = self.config.retry_times_when_send_failed
        attempts = retry.Attempts(
            1 + retry_count if fixed is None else 1,
            begun_ms + timeout_ms,
            waits_for_busy=retry_count > 0,
            backoff_ms=self.config.retry_backoff_ms,
        )
        deadline_ms = attempts.deadline_ms
        stored: SendResult | None = None
        last_broker: str | None = None
        while True:
            chosen = fixed or self._choice.choose(topic, route.publish_queues, now_ms, last_broker)
            last_broker = chosen.broker_name
            attempts.broker_names.append(last_broker)
            failure: RemotingError | None = None
            try:
                stored = await self._attempt(outgoing, route, chosen, deadline_ms - now_ms)
                if stored.status is _OK or not self.config.retry_another_broker_when_not_store_ok:
                    return stored
            except RemotingError as error:
                failure = error
            now_ms = self._clock.monotonic_ms()
            has_other = fixed is None and any(
                candidate.broker_name not in attempts.broker_names
                for candidate in route.publish_queues
            )
            pause_ms = attempts.pause_ms(failure, now_ms, has_other=has_other)
            if pause_ms is None:
                if stored is not None:
                    return stored
                assert failure is not None
                raise SendFailed(outgoing.first.topic, attempts.broker_names, failure) from failure
            sends.retry_count += 1
            if pause_ms:
                await asyncio.sleep(pause_ms / 1000)
            if failure is not None and failure.refresh_route:
                route = await self._fresh_route(route, deadline_ms - now_ms)
            now_ms = min(self._clock.monotonic_ms(), deadline_ms - 1)

    async def _attempt(
        self, outgoing: _Outgoing, route: TopicRoute, queue: MessageQueue, timeout_ms: int
    ) -> SendResult:
        if self._slow_brokers is None:
            return await self._ask(outgoing, route, queue, timeout_ms)
        begun_ms = self._clock.monotonic_ms()
        latency_ms = FAILURE_COUNTS_AS_MS
        try:
            result = await self._ask(outgoing, route, queue, timeout_ms)
            latency_ms = self._clock.monotonic_ms() - begun_ms
        finally:
            now_ms = self._clock.monotonic_ms()
            self._slow_brokers.record(queue.broker_name, latency_ms, now_ms)
        return result

    async def _ask(
        self, outgoing: _Outgoing, route: TopicRoute, queue: MessageQueue, timeout_ms: int
    ) -> SendResult:
        address = route.master(queue.broker_name)
        request = self._request(outgoing, queue)
        begun_ms = self._clock.now_ms() if self._traces is not None else 0
        reply = await self._joined().remoting.invoke(address, request, timeout_ms)
        status = _STATUS_OF_CODE.get(reply.code)
        if status is None:
            raise broker_error(reply.code, reply.remark, address)
        fields = reply.ext_fields or {}
        try:
            queue_id = int(fields["queueId"])
            if queue_id != queue.queue_id or self._namespace:
                # A broker may choose another queue, for priorities or a negative id.
                queue = self._own_name(queue, queue_id)
            result = SendResult(
                status,
                outgoing.unique_key,
                fields["msgId"],
                queue,
                int(fields["queueOffset"]),
                fields.get("transactionId"),
                fields.get("recallHandle"),
            )
        except (KeyError, ValueError) as error:
            raise InvalidHeader(f"reply to a send from {address}: {error}") from error
        if self._traces is not None and fields.get("TRACE_ON") != "false":
            self._traces.sent(
                outgoing.inner or [outgoing.first],
                result,
                region=fields.get("MSG_REGION"),
                broker_address=address,
                body_bytes=len(outgoing.body),
                begun_ms=begun_ms,
            )
        return result

    async def _route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        return await self._joined().publish_route(
            topic,
            self.config.create_topic_key,
            self.config.default_topic_queue_nums,
            refresh=refresh,
        )

    async def _route_in_time(self, topic: str, timeout_ms: int) -> TopicRoute:
        """Return a route for sends; request it until the timeout while there is none.

        Name servers may be starting, or its brokers may not have registered yet. As brokers that
        are not reached, they are asked only once without ``retry_backoff_ms`` or retries.

        Raises:
            NoRoute: No name server has the topic, or none answers.
            BrokerError: The name server refuses.
        """
        pause_ms = self.config.retry_backoff_ms
        is_patient = pause_ms > 0 and self.config.retry_times_when_send_failed > 0
        failure: RemotingError | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                while failure is None or is_patient:
                    try:
                        return await self._route(topic)
                    except RemotingError as error:
                        if not error.retriable:
                            raise
                        failure = error
                    if is_patient:
                        await asyncio.sleep(pause_ms / 1000)
                        pause_ms = min(2 * pause_ms, max(pause_ms, retry.BACKOFF_MAX_MS))
        if isinstance(failure, NoRoute):
            raise failure
        servers = ", ".join(self._joined().name_servers)
        reason = failure or f"no reply in {timeout_ms} ms"
        raise NoRoute(topic, f"no name server answers ({servers}): {reason}") from failure

    async def _fresh_route(self, route: TopicRoute, budget_ms: int) -> TopicRoute:
        """Return a fresh route, or the known one if that takes too long."""
        try:
            async with asyncio.timeout(min(budget_ms, FRESH_ROUTE_MS) / 1000):
                return await self._route(route.topic, refresh=True)
        except (TimeoutError, RemotingError):
            return route

    def _fixed_queue(
        self, route: TopicRoute, queue: MessageQueue | QueueSelector | None, message: Message
    ) -> MessageQueue | None:
        if queue is None:
            return None
        if not isinstance(queue, MessageQueue):
            queue = queue(self._own_names(route), message)
            if not isinstance(queue, MessageQueue):
                raise InvalidOption("queue", queue, "a MessageQueue from the selector")
        if queue.topic != message.topic:
            raise InvalidOption("queue", queue, f"a queue of topic {message.topic!r}")
        return queue

    def _own_names(self, route: TopicRoute) -> list[MessageQueue]:
        """Return queues with the topic's name within the namespace."""
        if not self._namespace:
            return list(route.publish_queues)
        return [self._own_name(queue, queue.queue_id) for queue in route.publish_queues]

    def _own_name(self, queue: MessageQueue, queue_id: int) -> MessageQueue:
        topic = namespace.unwrap(self._namespace, queue.topic)
        return MessageQueue(topic=topic, broker_name=queue.broker_name, queue_id=queue_id)

    def _joined(self) -> ClientInstance:
        if self._instance is None:
            raise NotStarted("producer")
        self._instance.check_caller("producer")
        return self._instance


def trace_writer(config: ClientConfig, group: str, role: str, clock: Clock) -> TraceWriter:
    """Return the trace writer of a client, not started.

    Args:
        config: Settings of the client.
        group: Group of the client, with namespace.
        role: ``PRODUCE`` or ``CONSUME``.
        clock: The clock.
    """
    plain = namespace.unwrap(config.namespace, group)
    sender = Producer(
        sender_group(plain, role),
        config=ProducerConfig(retry_backoff_ms=0),  # Traces do not delay the end of a client.
        client=sender_config(config),
        clock=clock,
    )
    return TraceWriter(sender, config.trace_topic, plain, clock)


def _sharded(
    message: Message, sharding_key: str, queue: MessageQueue | QueueSelector | None
) -> tuple[Message, QueueSelector]:
    """Return a message with its sharding key as a property, and the selector of its queue."""
    if queue is not None:
        raise InvalidOption("sharding_key", sharding_key, "nothing, where queue= is given as well")
    if not sharding_key or not isinstance(sharding_key, str):
        raise InvalidOption("sharding_key", sharding_key, "text that is not empty")
    properties = {**message.properties, props.SHARDING_KEY: sharding_key}

    def select(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
        return queues[sharding.queue_index(sharding_key, len(queues))]

    return dataclasses.replace(message, properties=properties), select


_log = logging.getLogger(__name__)
_FLAG_LIMIT = 1 << 31
DEFAULT_DELAY_LEVELS = 18
"""Number of delay levels of a broker without messageDelayLevel."""


def _take_retry_fields(outgoing: _Outgoing) -> Message:
    """Move the retry properties that a consumer sets on a message to the header fields of a send.

    RocketMQ 4.5 takes no message of a retry topic without the largest number of retries.

    Returns:
        The message without those properties.
    """
    properties = dict(outgoing.first.properties)
    outgoing.reconsume_times = properties.pop(props.RECONSUME_TIME, "0")
    retries_max = properties.pop(props.MAX_RECONSUME_TIMES, str(MAX_RECONSUME_TIMES))
    outgoing.max_reconsume_times = retries_max
    return dataclasses.replace(outgoing.first, properties=properties)


def _check_batch(messages: Sequence[Message]) -> None:
    """Check a batch as ``MessageBatch.generateFromList`` does."""
    if not messages:
        raise InvalidOption("messages", "none", "at least one")
    first = messages[0]
    if first.topic.startswith(names.RETRY_PREFIX):
        raise InvalidOption("topic", first.topic, "a topic that is no retry topic, in a batch")
    for message in messages:
        if message.topic != first.topic:
            raise InvalidOption("topic", message.topic, f"one for the batch: {first.topic!r}")
        if message.wait != first.wait:
            raise InvalidOption("wait", message.wait, f"one for the batch: {first.wait}")
        for name in ("delay_level", "delay_ms", "deliver_at_ms"):
            if getattr(message, name):
                raise InvalidOption(name, getattr(message, name), "0 in a batch")


def _masters(route: TopicRoute) -> list[str]:
    """Return the addresses of the brokers that take sends to a topic."""
    names = sorted({queue.broker_name for queue in route.publish_queues})
    addresses = map(route.address, names)
    return [address for address in addresses if address is not None]


def _packed(address: str) -> bytes:
    """Return an address as 4 or 16 bytes; for a name, four bytes made from its letters."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, address)
        except OSError:
            continue
    return zlib.crc32(address.encode()).to_bytes(4, "big")
