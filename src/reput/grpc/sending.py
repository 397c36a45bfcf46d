"""Sends, recalls, and ends of transactions.

Each message of a request becomes a separate request to the broker, and has its own result;
messages of one group of messages go to one queue, in order.

Source: rocketmq-proxy 5.5.0 ``SendMessageActivity``, ``ProducerProcessor``.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reput.client.core import requests
from reput.errors import Unreachable
from reput.format import headers, message_id as ids, names, properties as props, sys_flag as flags
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    EndTransactionHeader,
    RecallMessageHeader,
    SendMessageHeader,
    SendMessageReplyHeader,
)
from reput.grpc import conversion, queue_choice, routes, statuses, validation
from reput.grpc.backend import Backend, BrokerQueues, TopicFacts
from reput.grpc.caller import Pause
from reput.grpc.clients import Client
from reput.grpc.conversion import Outgoing
from reput.grpc.settings import RETRY_DELAYS_S
from reput.grpc.statuses import Code, StatusError
from reput.grpc.transactions import Half, Transactions
from reput.grpc.wire.grpc_messages import TransactionResolution, TransactionSource
from reput.remoting.client import cancel

SEND_MS = 10_000
"""Timeout of a send to a broker, in ms, for a client without a deadline."""
_DEFAULT_QUEUES = 4
_DECISIONS = {
    TransactionResolution.COMMIT: flags.TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: flags.TRANSACTION_ROLLBACK,
}


class Sender:
    """Sends for all clients.

    Args:
        backend: Topics and brokers.
        transactions: The open transactions.
    """

    def __init__(self, backend: Backend, transactions: Transactions) -> None:
        self._backend = backend
        self._transactions = transactions
        self._turns = itertools.count()

    async def send(
        self,
        client: Client,
        messages: Sequence[dict[str, Any]],
        now_ms: int,
        timeout_ms: int,
        pause: Pause,
    ) -> list[dict[str, Any]]:
        """Send messages; return an entry with its own status for each.

        Args:
            client: The client.
            messages: The messages.
            now_ms: The time in ms since the epoch.
            timeout_ms: Time that the broker has, in ms.
            pause: Called between messages.

        Raises:
            StatusError: The request is refused as a whole: nothing was sent.
            ReputError: There is no connection to the broker.
        """
        validation.check_topic_of(messages)
        outgoing: list[Outgoing] = []
        for message in messages:
            if outgoing:
                await pause()
            validation.check_message(message, now_ms)
            outgoing.append(conversion.outgoing(message, client.address, now_ms))
        topic = await self._topic(outgoing[0].topic)
        for each in outgoing:
            check_type(topic, each)
        queues = self._queues(topic, outgoing)
        broker, queue_id = await self._reachable(client, queues) if len(queues) > 1 else queues[0]
        broker_name = broker.broker_name
        if not broker.has_timers:
            outgoing = [with_delay_level(message, broker, now_ms) for message in outgoing]
        pending: list[asyncio.Future[Command]] = []
        try:
            for each in outgoing:
                if pending:
                    await pause()
                pending.append(await client.send(broker_name, _request(each, queue_id), timeout_ms))
            replies = [await reply for reply in pending]
        except BaseException:
            cancel(pending)
            raise
        entries: list[dict[str, Any]] = []
        for reply, each in zip(replies, outgoing, strict=True):
            if entries:
                await pause()
            if each.sys_flag & flags.TRANSACTION_PREPARED and reply.code in statuses.STORED:
                half = _half(reply, broker_name)
                self._transactions.add(each.topic, each.message_id, half)
            entries.append(entry(reply, each.message_id))
        return entries

    async def _topic(self, name: str) -> TopicFacts:
        topic = await self._backend.topic(name)
        if topic is None:
            raise StatusError(
                Code.TOPIC_NOT_FOUND, f"No topic route info in name server for the topic: {name}"
            )
        return topic

    async def _reachable(
        self, client: Client, queues: Sequence[tuple[BrokerQueues, int]]
    ) -> tuple[BrokerQueues, int]:
        """Return the first queue whose broker is connected, or else the last one."""
        for place in queues[:-1]:
            with contextlib.suppress(Unreachable):
                await client.channel(place[0].broker_name)
                return place
        return queues[-1]

    def _queues(
        self, topic: TopicFacts, messages: Sequence[Outgoing]
    ) -> list[tuple[BrokerQueues, int]]:
        """Return the queue of a message group; for messages without one, a queue of each broker.

        Brokers take turns, and so do the queues of each.
        """
        keys = {message.sharding_key for message in messages}
        if len(keys) > 1:
            raise StatusError(
                Code.BAD_REQUEST, "the messages of a request must be of one message group"
            )
        brokers = topic.writable
        if not brokers:
            raise StatusError(Code.FORBIDDEN, "no writable queue")
        (key,) = keys
        if key is not None:
            queues = routes.writable(topic)
            name, queue_id = queues[queue_choice.queue_index(key, len(queues))]
            return [(next(b for b in brokers if b.broker_name == name), queue_id)]
        turn, first = divmod(next(self._turns), len(brokers))
        return [
            (broker, turn % broker.write_count) for broker in (*brokers[first:], *brokers[:first])
        ]

    async def recall(self, client: Client, topic_name: str, handle: str) -> str:
        """Recall a message of the timer; return its id.

        Raises:
            StatusError: The topic or the handle is wrong.
            ReputError: The broker refused, or there is no connection.
        """
        topic = await self._topic(topic_name)
        if topic.message_type not in ("DELAY", "MIXED"):
            raise StatusError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "TopicMessageType validate failed, the expected type is "
                f"{topic.message_type}, but actual type is DELAY: only messages of topics of DELAY "
                "and MIXED can be recalled",
            )
        header = RecallMessageHeader(
            producer_group=topic_name, topic=topic_name, recall_handle=handle
        )
        broker_name = conversion.broker_of_recall_handle(handle)
        reply = await client.ask(broker_name, requests.make(RequestCode.RECALL_MESSAGE, header))
        statuses.check(reply)
        return (reply.ext_fields or {}).get("msgId", "")

    async def end_transaction(self, client: Client, request: dict[str, Any], now_ms: int) -> None:
        """Commit or roll back; an unknown decision does nothing.

        Raises:
            StatusError: The transaction is unknown.
            ReputError: The broker refused, or there is no connection.
        """
        resolution = request.get("resolution", 0)
        decision = _DECISIONS.get(resolution)
        if decision is None:
            return
        topic = request.get("topic", {}).get("name", "")
        transaction_id = request.get("transaction_id", "")
        half = await self._transactions.find(client, topic, transaction_id, now_ms)
        header = EndTransactionHeader(
            producer_group=topic,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.physical_offset,
            commit_or_rollback=decision,
            from_transaction_check=request.get("source") == TransactionSource.SOURCE_SERVER_CHECK,
            msg_id=request.get("message_id", ""),
            transaction_id=transaction_id,
        )
        command = requests.make(RequestCode.END_TRANSACTION, header)
        statuses.check(await client.ask(half.broker_name, command))
        self._transactions.drop(topic, transaction_id)


def check_type(topic: TopicFacts, message: Outgoing) -> None:
    """Check the type of a message against that of its topic. Raises ``StatusError``."""
    expected = topic.message_type
    if expected in (message.message_type, "MIXED") or names.is_retry_topic(topic.name):
        return
    if names.is_dlq_topic(topic.name):
        return
    raise StatusError(
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        "TopicMessageType validate failed, the expected type is "
        f"{expected}, but actual type is {message.message_type}",
    )


def with_delay_level(message: Outgoing, broker: BrokerQueues, now_ms: int) -> Outgoing:
    """Return a message for a broker without timers: with the delay level that is not too early.

    Raises:
        StatusError: No level is as long.
    """
    due = message.properties.get(props.TIMER_DELIVER_MS)
    if due is None:
        return message
    delay_ms = int(due) - now_ms
    if delay_ms > 1000 * RETRY_DELAYS_S[-1]:
        raise StatusError(
            Code.ILLEGAL_DELIVERY_TIME,
            f"the broker {broker.broker_name} has delay levels only, as it is older than 5.0; "
            f"allowed: up to {RETRY_DELAYS_S[-1]} s from now",
        )
    properties = {**message.properties}
    del properties[props.TIMER_DELIVER_MS]
    if delay_ms > 0:
        level = next(i for i, s in enumerate(RETRY_DELAYS_S, 1) if 1000 * s >= delay_ms)
        properties[props.DELAY] = str(level)
    return replace(message, properties=properties)


def _request(message: Outgoing, queue_id: int) -> Command:
    header = SendMessageHeader(
        producer_group=message.topic,
        topic=message.topic,
        default_topic=names.AUTO_CREATE_TOPIC,
        default_topic_queue_nums=_DEFAULT_QUEUES,
        queue_id=queue_id,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_ms,
        flag=0,
        properties=props.join(message.properties),
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )
    return Command(
        RequestCode.SEND_MESSAGE_V2, ext_fields=headers.encode_v2(header), body=message.body
    )


def _half(reply: Command, broker_name: str) -> Half:
    """Return the place of a half message from the broker's reply."""
    answer = headers.decode(SendMessageReplyHeader, reply.ext_fields)
    place = ids.decode_offset_id(answer.msg_id)
    return Half(broker_name, answer.queue_offset, place.physical_offset)


def entry(reply: Command, message_id: str) -> dict[str, Any]:
    """Return the entry of a message for the broker's reply."""
    status = statuses.of_reply(reply)
    entry: dict[str, Any] = {"status": status, "message_id": message_id}
    if reply.code not in statuses.STORED:
        return entry
    answer = headers.decode(SendMessageReplyHeader, reply.ext_fields)
    entry["offset"] = answer.queue_offset
    if answer.recall_handle:
        entry["recall_handle"] = answer.recall_handle
    if reply.code == ResponseCode.SUCCESS:
        entry["transaction_id"] = message_id  # of each message, not only of transactions
    return entry
