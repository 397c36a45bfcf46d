"""The service of RocketMQ's 5.x clients, over brokers.

    call -> request -> checks -> requests to a broker, over the client's own connection -> reply

An error is the status of a normal reply, as the SDKs expect it; only Telemetry ends with a status
of gRPC. The service keeps nothing that a restart loses: handles carry all that is needed. It
remembers the connected clients, the messages that it renews, and open transactions, which brokers
know too.

Source: rocketmq-proxy 5.5.0 ``GrpcMessagingApplication``.
"""

import asyncio
import functools
import ipaddress
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from reput.clock import Clock
from reput.errors import CallFailed, ReputError
from reput.format.bodies import ConsumerData
from reput.format.message import Host
from reput.grpc import deliveries, lite, receiving, routes, settings, statuses, validation
from reput.grpc.access import Gate
from reput.grpc.backend import Backend, GroupFacts, TopicFacts
from reput.grpc.caller import Caller
from reput.grpc.clients import Client, Clients
from reput.grpc.conversion import Receipt
from reput.grpc.deliveries import Deliveries
from reput.grpc.encodings import readable
from reput.grpc.fast_calls import FastCalls
from reput.grpc.http2 import messages
from reput.grpc.http2.grpc import Call, SentMessage, Service, bidirectional, server_stream, unary
from reput.grpc.receiving import Received, ReceiveParameters
from reput.grpc.records import PoppedRecord
from reput.grpc.sending import SEND_MS, Sender
from reput.grpc.statuses import Code, StatusError
from reput.grpc.telemetry import Answers, Stream
from reput.grpc.transactions import Transactions
from reput.grpc.wire import protobuf
from reput.grpc.wire.grpc_messages import ACK_MESSAGE_RESULT_ENTRY, METHODS, SERVICE, ClientType

GIVE_BACK_S = 0.2
"""Time at a stop to give back the messages of calls that have ended, in seconds."""

_FIELD_BYTES = 120
"""Memory that a field of a decoded message takes at most, besides its own bytes."""

_log = logging.getLogger(__name__)

Handler = Callable[[Caller, dict[str, Any]], Awaitable[dict[str, Any]]]


class Front:
    """The messaging service of RocketMQ's gRPC clients.

    Args:
        backend: Topics, groups and brokers.
        clock: The clock.
        gate: Checks who may make calls; None: everybody may.
    """

    def __init__(self, backend: Backend, clock: Clock, gate: Gate | None = None) -> None:
        self._backend = backend
        self._gate = gate
        self._clock = clock
        transactions = Transactions(backend)
        self._answers = Answers(transactions)
        self._sender = Sender(backend, transactions)
        self._fast: FastCalls | None = None
        self._deliveries: Deliveries | None = None
        self._giving_back: set[asyncio.Task[None]] = set()
        self._turns = itertools.count()
        """Round-robin order of the brokers for receives that name no broker."""
        self.clients = Clients(
            backend,
            clock,
            asked=self._answers.ask,
            leave=self._leave,
            renew=lambda client, margin_ms: receiving.renew(client, clock, margin_ms),
        )
        handlers: dict[str, Handler] = {
            "QueryRoute": self._query_route,
            "Heartbeat": self._heartbeat,
            "SendMessage": self._send_message,
            "QueryAssignment": self._query_assignment,
            "AckMessage": self._ack_message,
            "ChangeInvisibleDuration": self._change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": self._forward,
            "EndTransaction": self._end_transaction,
            "NotifyClientTermination": self._notify_client_termination,
            "RecallMessage": self._recall_message,
            "SyncLiteSubscription": self._sync_lite_subscription,
        }
        self.service = Service(
            {
                **{_path(name): self._unary(name, handler) for name, handler in handlers.items()},
                _path("ReceiveMessage"): server_stream(self._receive_message).paced(),
                _path("Telemetry"): bidirectional(self._telemetry).paced(),
            }
        )

    def use_fast_path(self, fast: FastCalls) -> None:
        """Serve requests that arrive together in one pass, where possible."""
        self._fast = fast
        self._deliveries = Deliveries()
        self.service.fast = fast

    def start(self) -> None:
        """Start the periodic checks of clients."""
        self.clients.start()

    async def stop(self) -> None:
        """Forget all clients."""
        await self.clients.stop()
        await asyncio.gather(*self._giving_back, return_exceptions=True)

    async def suspend(self) -> dict[str, Any]:
        """Stop for a restart; return what ``clients.resume`` needs then, as values of JSON."""
        if self._giving_back:  # some wait for pops that brokers hold
            await asyncio.wait(self._giving_back, timeout=GIVE_BACK_S)
        kept = await self.clients.suspend()
        await asyncio.gather(*self._giving_back, return_exceptions=True)
        return kept

    # Calls ------------------------------------------------------------------------------------

    def _unary(self, name: str, handler: Handler) -> Any:
        """Return a method: errors become the status of its reply."""
        method = METHODS[name]

        async def answer(call: Call, sent: SentMessage) -> bytes:
            try:
                caller, request = await self._request(name, call, sent)
                reply = await handler(caller, request)
                reply.setdefault("status", statuses.OK)
                if call.connection.is_busy and reply["status"] is statuses.OK:
                    self._learn(name, call, caller, request)
            except CallFailed:
                raise
            except (StatusError, ReputError) as error:
                reply = {"status": statuses.of_error(error)}
            except Exception as error:  # noqa: BLE001 - the outermost edge of a call
                _log.exception("%s of %s", name, call.peer.peer)
                reply = {"status": statuses.of_error(error)}
            return protobuf.encode(method.reply, reply)

        return unary(answer).paced()

    def _learn(self, name: str, call: Call, caller: Caller, request: dict[str, Any]) -> None:
        """Have further calls like one that has succeeded served by the fast path."""
        if self._fast is not None and name in ("SendMessage", "AckMessage"):
            self._fast.learn(call, self.clients.of(caller), request)

    async def _request(
        self, name: str, call: Call, sent: SentMessage
    ) -> tuple[Caller, dict[str, Any]]:
        """Return the caller of a call, who may make it, and the request.

        Who calls is checked before the message is decompressed or decoded: only clients that are
        known may cause the work.

        Raises:
            StatusError: The call has no client id.
            ReputError: It may not be made, or the message is damaged.
        """
        await call.turn()
        caller = self._caller(call)
        if self._gate is not None:
            await self._gate.identify(name, caller, call.text)
        request = await self._decoded(name, call, sent)
        if self._gate is not None:
            await self._gate.authorize(name, caller, request)
        return caller, request

    async def _decoded(self, name: str, call: Call, sent: SentMessage) -> dict[str, Any]:
        """Return a message of a client. Raises ``ReputError``: it is damaged, or too large."""
        content = await call.content(sent)
        table = METHODS[name].request
        if len(content) <= protobuf.SMALL_BYTES:
            return protobuf.decode(table, content)
        count = await call.run(protobuf.counted_in_steps(table, content))
        call.claim_more(count * _FIELD_BYTES)
        return await call.run(protobuf.decoded_in_steps(table, content))

    def _caller(self, call: Call) -> Caller:
        """Return the client of a call. Raises ``StatusError``: it has no id."""
        client_id = call.text("x-mq-client-id")
        if not client_id:
            raise StatusError(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
        peer = call.connection.peer
        deadline_ms = None
        if call.deadline is not None:
            left_s = call.deadline - call.connection.now
            deadline_ms = self._clock.monotonic_ms() + int(1000 * left_s)
        return Caller(
            client_id,
            call.text("x-mq-language"),
            (peer.address, peer.host.port),
            _address(peer.local_host),
            deadline_ms,
            pause=call.pause,
        )

    # Routes -----------------------------------------------------------------------------------

    async def _topic(self, resource: dict[str, Any]) -> TopicFacts:
        name = resource.get("name", "")
        validation.check_topic(name)
        topic = await self._backend.topic(name)
        if topic is None:
            raise StatusError(
                Code.TOPIC_NOT_FOUND, f"No topic route info in name server for the topic: {name}"
            )
        return topic

    async def _group(self, resource: dict[str, Any], caller: Caller) -> GroupFacts:
        name = resource.get("name", "")
        validation.check_group(name)
        group = await self._backend.group(name, caller.address[0])
        if group is None:
            raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, f"group not found: {name}")
        return group

    async def _query_route(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        topic = await self._topic(request.get("topic", {}))
        endpoints = routes.endpoints_for(caller, request.get("endpoints", {}))
        return {"message_queues": routes.queues(topic, endpoints)}

    async def _query_assignment(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        topic = await self._topic(request.get("topic", {}))
        group = await self._group(request.get("group", {}), caller)
        endpoints = routes.endpoints_for(caller, request.get("endpoints", {}))
        is_ordered = group.is_ordered and not group.lite_parent
        assignments = routes.assignments(topic, endpoints, is_ordered=is_ordered)
        if not assignments:
            raise StatusError(Code.FORBIDDEN, "no readable queue")
        return {"assignments": assignments}

    # Clients ----------------------------------------------------------------------------------

    def _telemetry(self, call: Call) -> None:
        read = functools.partial(self._command, call)
        Stream(
            call, self._caller(call), read, self._set_settings, self._answers, self._stream_ended
        )
        if self._gate is None:
            call.headers = _TELEMETRY_HEADERS  # it stays open, and nothing more is needed of them

    def _stream_ended(self, client: Client) -> None:
        self.clients.watch(client)
        if lite.is_lite(client) and client in self.clients:
            self._keep(self._unsubscribe_lite(client))

    async def _leave(self, client: Client) -> None:
        """Release the messages and lite topics of a disconnected client for other clients."""
        await receiving.leave(client)
        if lite.is_lite(client):
            await self._unsubscribe_lite(client)

    async def _unsubscribe_lite(self, client: Client) -> None:
        """Remove the subscriptions of a client to lite topics."""
        change = lite.farewell(client)
        try:
            await lite.change(client, await self._brokers_of([change.topic]), change)
        except (StatusError, ReputError) as error:
            _log.warning("%r keeps its lite topics for minutes: %s", client, error)

    async def _command(self, call: Call, caller: Caller, sent: SentMessage) -> dict[str, Any]:
        """Return a command of a client, who may send it. Raises ``ReputError``."""
        await call.turn()
        if self._gate is not None:
            await self._gate.identify("Telemetry", caller, call.text)
        return await self._decoded("Telemetry", call, sent)

    async def _set_settings(
        self, caller: Caller, sent: dict[str, Any], stream: Stream
    ) -> dict[str, Any]:
        """Take the settings of a client, and register it at brokers; return those to answer."""
        settings.check_size(sent)
        if self._gate is not None:
            await self._gate.authorize("Telemetry", caller, {"settings": sent})
        if "publishing" in sent:
            for topic in sent["publishing"].get("topics", ()):
                validation.check_topic(topic.get("name", ""))
            sent.setdefault("client_type", int(ClientType.PRODUCER))
            answer = settings.of_producer(sent)
        elif "subscription" in sent:
            settings.check_consumer(sent)
            group = await self._group(sent["subscription"].get("group", {}), caller)
            lite.check_settings(sent, group)
            answer = settings.of_consumer(sent, group)
        else:
            raise StatusError(
                Code.BAD_REQUEST, "there is no publishing or subscription data in settings"
            )
        client = self.clients.of(caller)
        client.settings, client.telemetry, stream.client = sent, stream, client
        await self._register(client, caller)
        return answer

    async def _register(self, client: Client, caller: Caller) -> None:
        """Send the heartbeat of a client to the brokers of its topics."""
        sent = client.settings or {}
        producers: list[str] = []
        consumer = None
        if "publishing" in sent:
            producers = settings.topics_of(sent)
            topics = producers
        else:
            data = []
            for subscription in settings.subscriptions(sent, self._clock.now_ms()):
                data.append(subscription)
                await caller.pause()
            consumer = settings.consumer_data(sent, data)
            topics = [entry.topic for entry in consumer.subscription_data_set]
        if not producers and consumer is None:
            return
        brokers = await self._brokers_of(topics)
        results = await asyncio.gather(
            *(self._register_at(client, name, producers, consumer) for name in brokers),
            return_exceptions=True,
        )
        failures = [result for result in results if result is not None]
        for failure in failures:
            # One broker of several that is not there is no reason to refuse a client.
            if len(failures) == len(results) or not isinstance(failure, ReputError):
                raise failure
            _log.info("%r is not registered at a broker: %s", client, failure)

    async def _register_at(
        self,
        client: Client,
        broker_name: str,
        producers: list[str],
        consumer: ConsumerData | None,
    ) -> None:
        statuses.check(await client.ask(broker_name, client.heartbeat(producers, consumer)))

    async def _brokers_of(self, topics: list[str]) -> list[str]:
        names: dict[str, None] = {}
        for name in topics:
            topic = await self._backend.topic(name)
            for broker in topic.brokers if topic is not None else ():
                names[broker.broker_name] = None
        return list(names)

    async def _heartbeat(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        client = self.clients.of(caller)
        if client.settings is None:
            raise StatusError(
                Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client"
            )
        _check_group(client.settings, request)
        await self._register(client, caller)
        return {}

    async def _notify_client_termination(
        self, caller: Caller, request: dict[str, Any]
    ) -> dict[str, Any]:
        client = self.clients.of(caller)
        if client.settings is not None:
            _check_group(client.settings, request)
        self.clients.end(client)
        if client.settings is None:
            raise StatusError(
                Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client"
            )
        return {}

    # Producers --------------------------------------------------------------------------------

    async def _send_message(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        client = self.clients.of(caller)
        entries = await self._sender.send(
            client,
            request.get("messages", ()),
            self._clock.now_ms(),
            caller.patience_ms(client.seen_ms, SEND_MS),
            caller.pause,
        )
        return {"status": statuses.of_entries(entries), "entries": entries}

    async def _recall_message(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        name = request.get("topic", {}).get("name", "")
        validation.check_topic(name)
        message_id = await self._sender.recall(
            self.clients.of(caller), name, request.get("recall_handle", "")
        )
        return {"message_id": message_id}

    async def _end_transaction(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        validation.check_topic(request.get("topic", {}).get("name", ""))
        if not request.get("transaction_id"):
            raise StatusError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        client = self.clients.of(caller)
        await self._sender.end_transaction(client, request, self._clock.now_ms())
        return {}

    # Consumers --------------------------------------------------------------------------------

    async def _receive_message(self, call: Call, sent: SentMessage) -> None:
        try:
            replies = await self._received(call, sent)
        except CallFailed:
            raise
        except (StatusError, ReputError) as error:
            replies = [_reply({"status": statuses.of_error(error)})]
            error.__traceback__ = None  # whose frames have the pop, and the pop has the error
        except Exception as error:  # noqa: BLE001 - the outermost edge of a call
            _log.exception("ReceiveMessage of %s", call.peer.peer)
            replies = [_reply({"status": statuses.of_error(error)})]
        end = _reply({"delivery_timestamp": protobuf.from_ms(self._clock.now_ms())})
        call.send_encoded(b"".join((*replies, end)))

    async def _received(self, call: Call, sent: SentMessage) -> list[bytes]:
        caller, request = await self._request("ReceiveMessage", call, sent)
        client = self.clients.of(caller)
        group = await self._group(request.get("group", {}), caller)
        queue = request.get("message_queue", {})
        topic = await self._topic(queue.get("topic", {}))
        broker_name = routes.readable_broker(
            topic, queue.get("broker", {}).get("name", ""), next(self._turns)
        )
        if not settings.subscribes(client.settings, request):
            is_lite = bool(group.lite_parent)
            known = settings.of_receive(client.settings, request, is_lite=is_lite)
            settings.check_size(known)
            client.settings = known
            await self._register(client, caller)
        wanted = receiving.wanted(
            caller, request, group, broker_name, self._clock, self._backend.early_ms
        )
        del request, queue, sent  # a poll lasts for long
        call.forget_content()
        call.hold(wanted.text_bytes)
        pop = lite.pop if lite.is_lite(client) else receiving.pop
        popping = asyncio.ensure_future(pop(client, wanted, self._clock))
        # If the call or its connection ends before the reply, no client has seen the messages.
        call.on_cancel = lambda: self._keep(
            self._give_back(client, wanted, popping, is_attempt=False)
        )
        received = await asyncio.shield(popping)
        try:
            items = await self._to_deliver(client, wanted, received)
        except (StatusError, ReputError):
            self._keep(self._give_back(client, wanted, popping, is_attempt=False))
            raise
        if not items:
            raise StatusError(
                Code.MESSAGE_NOT_FOUND, "no match message" if received else "no new message"
            )
        if call.has_ended:
            return []
        if wanted.renews:
            group_name, now_ms = wanted.group.name, self._clock.now_ms()
            for item in items:
                client.renewals.add(
                    group_name, wanted.topic, item.receipt_text, item.due_ms, now_ms, call.peer
                )
            self.clients.watch(client)
        # From now on the client may work on them: until the last byte is on its way, the end of the
        # call gives them back, as an attempt that may have been the end of the client.
        call.on_cancel = lambda: self._keep(
            self._give_back(client, wanted, popping, is_attempt=True)
        )
        if self._deliveries is None:
            return [_OK_REPLY, *(deliveries.encode(wanted, item) for item in items)]
        return [_OK_REPLY, *self._deliveries.encode(wanted, items)]

    async def _to_deliver(
        self, client: Client, wanted: ReceiveParameters, received: Sequence[Received | PoppedRecord]
    ) -> list[Received | PoppedRecord]:
        """Return the messages that a client gets, in a form that it can read.

        Those with other tags are acknowledged, those with too many attempts are dead letters.

        Raises:
            StatusError: A broker refused.
            ReputError: There is no connection to a broker, or no reply.
        """
        group, topic = wanted.group.name, wanted.topic
        delivered, unwanted, dead = receiving.split(received, wanted)
        for item in unwanted:
            await receiving.ack(client, group, topic, item.receipt)
        for item in dead:
            message_id = item.message.unique_key or ""
            await receiving.forward(client, group, topic, item.receipt, message_id)
        return [
            replace(item, message=await readable(item.message, client.language))
            if isinstance(item, Received)
            else item
            for item in delivered
        ]

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    async def _give_back(
        self,
        client: Client,
        wanted: ReceiveParameters,
        popping: "asyncio.Future[Sequence[Received | PoppedRecord]]",
        *,
        is_attempt: bool,
    ) -> None:
        """Make messages visible again that were popped for a call that has ended."""
        await asyncio.wait([popping])
        if popping.cancelled() or popping.exception() is not None:
            return  # it has popped nothing
        received = popping.result()
        group = wanted.group.name
        for item in received:
            client.renewals.drop(group, str(item.receipt))
            await receiving.give_back(
                client, group, wanted.topic, item.receipt, is_attempt=is_attempt
            )

    async def _receipt(
        self, client: Client, group: str, topic: str, text: str, lite_topic: str
    ) -> Receipt:
        """Return the present handle of a message.

        Raises:
            StatusError: It has expired.
            ReputError: There is no connection to the broker, or no reply.
        """
        receipt = Receipt.parse(client.renewals.current(group, text))
        if lite_topic and not receipt.lite_topic:  # of Java's proxy
            receipt = replace(receipt, lite_topic=lite_topic)
        now_ms = self._clock.now_ms()
        is_over = receipt.visible_ms <= now_ms
        if is_over and not receipt.lite_topic and self._backend.keeps_handles:
            # It may have been renewed before a restart: the broker knows.
            return await receiving.hold_expired(client, group, topic, receipt)
        receipt.check(now_ms)
        return receipt

    async def _ack_message(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        client, group, topic = self._place(caller, request)
        entries, encoded = [], []
        for entry in request.get("entries", ()):
            await caller.pause()
            text = entry.get("receipt_handle", "")
            try:
                lite_topic = entry.get("lite_topic", "")
                receipt = await self._receipt(client, group, topic, text, lite_topic)
                await receiving.ack(client, group, topic, receipt)
                client.renewals.drop(group, text)
                status: dict[str, Any] = statuses.OK
            except (StatusError, ReputError) as error:
                status = statuses.of_error(error)
            entries.append({"status": status})
            answer = {"message_id": entry.get("message_id", ""), "receipt_handle": text}
            encoded.append(protobuf.encode(ACK_MESSAGE_RESULT_ENTRY, {**answer, "status": status}))
        return {"status": statuses.of_entries(entries), "entries": encoded}

    def _place(self, caller: Caller, request: dict[str, Any]) -> tuple[Client, str, str]:
        """Return client, group and topic of a request about received messages."""
        group = request.get("group", {}).get("name", "")
        topic = request.get("topic", {}).get("name", "")
        validation.check_topic(topic)
        validation.check_group(group)
        return self.clients.of(caller), group, topic

    async def _change_invisible_duration(
        self, caller: Caller, request: dict[str, Any]
    ) -> dict[str, Any]:
        text = request.get("receipt_handle", "")
        try:
            client, group, topic = self._place(caller, request)
            invisible_ms = receiving.milliseconds(request.get("invisible_duration"))
            receiving.check_invisible_time(invisible_ms, 0)
            lite_topic = request.get("lite_topic", "")
            receipt = await self._receipt(client, group, topic, text, lite_topic)
            changed = await receiving.change(
                client,
                group,
                topic,
                receipt,
                invisible_ms,
                suspends=bool(request.get("suspend")),
            )
        except (StatusError, ReputError) as error:
            # Some SDKs replace their handle by that of the reply, even by an empty one.
            return {"status": statuses.of_error(error), "receipt_handle": text}
        client.renewals.drop(group, text)
        return {"receipt_handle": str(changed)}

    async def _forward(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        client, group, topic = self._place(caller, request)
        text = request.get("receipt_handle", "")
        lite_topic = request.get("lite_topic", "")
        receipt = await self._receipt(client, group, topic, text, lite_topic)
        if self._gate is not None and not self._backend.checks_users:
            await receiving.check_place(client, group, topic, receipt)
        await receiving.forward(client, group, topic, receipt, request.get("message_id", ""))
        client.renewals.drop(group, text)
        return {}

    async def _sync_lite_subscription(
        self, caller: Caller, request: dict[str, Any]
    ) -> dict[str, Any]:
        client, _, topic = self._place(caller, request)
        change = await lite.change_of(client, request, caller.pause)
        group = await self._group(request.get("group", {}), caller)
        lite.check_parent(group, topic)
        lite.check_quota(group, change)
        await lite.change(client, await self._brokers_of([topic]), change)
        return {}


def _check_group(known: dict[str, Any], request: dict[str, Any]) -> None:
    """Check the group that a consumer names. Raises ``StatusError``."""
    if "subscription" in known:
        validation.check_group(request.get("group", {}).get("name", ""))


def _reply(values: dict[str, Any]) -> bytes:
    """Return a message of a reply of ReceiveMessage."""
    return messages.encode(protobuf.encode(METHODS["ReceiveMessage"].reply, values))


_OK_REPLY = _reply({"status": statuses.OK})


def _path(name: str) -> str:
    return f"/{SERVICE}/{name}"


_TELEMETRY_HEADERS = {b":path": _path("Telemetry").encode()}
"""Headers of all Telemetry calls, without access control."""


@functools.lru_cache(maxsize=256)  # of this side
def _address(host: Host) -> tuple[str, int]:
    return str(ipaddress.ip_address(host.address)), host.port
