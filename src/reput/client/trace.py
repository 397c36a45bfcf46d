"""Traces of producers and consumers, sent as messages of the trace topic.

Enabled by ``ClientConfig.enable_trace``. Traced operations do not wait: traces are collected and
sent in batches by a separate producer. If too many wait, or sending fails, they are dropped and
counted. ``Admin.message_trace``, ``reput message trace`` and RocketMQ's ``mqadmin
queryMsgTraceById`` read them.

Source: rocketmq 4.9.7 and 5.5.0 ``AsyncTraceDispatcher``, ``DefaultRecallMessageTraceHook``.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from reput.client.config import ClientConfig
from reput.client.core import trace_codec
from reput.client.core.trace_codec import (
    Begun,
    Consumed,
    MessageKind,
    Outcome,
    Recalled,
    Sent,
    Trace,
    TraceMessage,
    TransactionEnded,
)
from reput.client.message import Message, ReceivedMessage, SendResult, SendStatus
from reput.client.outages import Outages
from reput.clock import Clock
from reput.errors import CorruptRecord, ReputError
from reput.format import properties as props
from reput.format.send_reply import REGION

log = logging.getLogger(__name__)

GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
WAITING_MAX = 4096
"""Maximum number of traces that wait to be sent; more are dropped."""
ENOUGH_COUNT = 400
"""Number of traces that are sent at once."""
GATHER_MS = 500
"""Maximum time that the first of fewer traces waits, in ms."""
SEND_TIMEOUT_MS = 5_000

_serial = itertools.count(1)


class Sender(Protocol):
    """Interface of the producer that sends traces."""

    async def start(self) -> None:
        """Start the producer."""

    async def close(self) -> None:
        """Close the producer."""

    async def send(self, message: Message, *, timeout_ms: int | None = None) -> SendResult:
        """Send a message."""


def sender_group(group: str, role: str) -> str:
    """Return the group of a producer of traces; ``role`` is PRODUCE or CONSUME."""
    return f"{GROUP_PREFIX}-{group}-{role}-{next(_serial)}"


def sender_config(config: ClientConfig) -> ClientConfig:
    """Return the settings of a producer of traces, which has its own connections and client id."""
    return dataclasses.replace(config, enable_trace=False, namespace="")


class TraceWriter:
    """Collects traces and sends them periodically.

    Args:
        sender: Producer for traces only.
        topic: Trace topic.
        group: Traced group, without namespace.
        clock: The clock.
    """

    def __init__(self, sender: Sender, topic: str, group: str, clock: Clock) -> None:
        self.dropped_count = 0
        """Number of traces that could not be kept or sent."""
        self.group = group
        self.topic = topic
        self._sender = sender
        self._clock = clock
        self._outages = Outages(clock)
        self._waiting: deque[Trace] = deque()
        self._has_some = asyncio.Event()
        self._has_enough = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    async def start(self) -> None:
        """Start sending."""
        await self._sender.start()
        self._task = asyncio.create_task(self._run(), name=f"reput traces of {self.group}")

    async def close(self) -> None:
        """Send pending traces, and stop."""
        self._is_closing = True
        self._has_some.set()
        self._has_enough.set()
        try:
            if self._task is not None:
                await self._task
            await self._send_waiting()
        finally:
            await self._sender.close()

    def add(self, traces: Sequence[Trace]) -> None:
        """Add traces; they are dropped if too many wait."""
        if len(self._waiting) + len(traces) > WAITING_MAX:
            self._drop(len(traces), "too many wait to be sent")
            return
        self._waiting.extend(traces)
        self._has_some.set()
        if len(self._waiting) >= ENOUGH_COUNT:
            self._has_enough.set()

    def _drop(self, count: int, reason: object) -> None:
        self.dropped_count += count
        text = "%d traces of %s are dropped, %d in all"
        numbers = (count, self.group, self.dropped_count)
        self._outages.warn(log, reason, text, *numbers, kind="traces")

    async def _run(self) -> None:
        while not self._is_closing:
            await self._has_some.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER_MS / 1000):
                    await self._has_enough.wait()
            await self._send_waiting()

    async def _send_waiting(self) -> None:
        self._has_some.clear()
        self._has_enough.clear()
        traces = list(self._waiting)
        self._waiting.clear()
        for message in trace_codec.pack(traces):
            await self._send(message)

    async def _send(self, trace: TraceMessage) -> None:
        message = Message(self.topic, trace.body, keys=" ".join(trace.keys))
        try:
            await self._sender.send(message, timeout_ms=SEND_TIMEOUT_MS)
        except ReputError as error:
            self._drop(trace.body.count(trace_codec.LINE_END.encode()), error)

    # --- traces -----------------------------------------------------------------

    def sent(
        self,
        messages: Sequence[Message],
        result: SendResult,
        *,
        region: str | None,
        broker_address: str,
        body_bytes: int,
        begun_ms: int,
    ) -> None:
        """Trace a send that a broker has answered.

        Args:
            messages: The message, or those of a batch.
            result: Result of the send.
            region: Region in the broker's reply.
            broker_address: Address of the broker.
            body_bytes: Length of the body as sent, of a single message.
            begun_ms: Start of the send, in ms since the epoch.
        """
        if messages[0].topic.startswith(self.topic):
            return
        cost_ms = max(0, self._clock.now_ms() - begun_ms)
        is_batch = len(messages) > 1
        places = zip(messages, result.message_ids, result.offset_message_ids, strict=True)
        self.add(
            [
                Sent(
                    time_ms=begun_ms,
                    region=region,
                    group=self.group,
                    topic=message.topic,
                    message_id=message_id,
                    tags=message.tags,
                    keys=keys_text(message),
                    broker_address=broker_address,
                    body_bytes=len(message.body) if is_batch else body_bytes,
                    cost_ms=cost_ms,
                    kind=_kind(message),
                    offset_message_id=offset_id,
                    is_success=result.status is SendStatus.SEND_OK,
                )
                for message, message_id, offset_id in places
            ]
        )

    def transaction_ended(
        self,
        topic: str,
        message_id: str,
        tags: str | None,
        keys: str | None,
        *,
        broker_address: str,
        transaction_id: str | None,
        state: str,
        is_check: bool = False,
    ) -> None:
        """Trace the end of a transaction; the fields are those of ``TransactionEnded``."""
        self.add(
            [
                TransactionEnded(
                    time_ms=self._clock.now_ms(),
                    region=REGION,
                    group=self.group,
                    topic=topic,
                    message_id=message_id,
                    tags=tags,
                    keys=keys,
                    broker_address=broker_address,
                    kind=MessageKind.COMMIT,
                    transaction_id=transaction_id,
                    state=state,
                    is_check=is_check,
                )
            ]
        )

    def recalled(
        self, topic: str, message_id: str, *, region: str | None, is_success: bool
    ) -> None:
        """Trace the reply to a recall; the fields are those of ``Recalled``.

        Java's producers trace recalls only if a system property is set.
        """
        self.add(
            [
                Recalled(
                    time_ms=self._clock.now_ms(),
                    region=region,
                    group=self.group,
                    topic=topic,
                    message_id=message_id,
                    is_success=is_success,
                )
            ]
        )

    def begun(self, messages: Sequence[ReceivedMessage]) -> str:
        """Trace the start of a listener's call; return the id for ``consumed``."""
        now_ms = self._clock.now_ms()
        call_id = uuid.uuid4().hex.upper()
        self.add(
            [
                Begun(
                    time_ms=now_ms,
                    region=message.properties.get("MSG_REGION"),
                    group=self.group,
                    call_id=call_id,
                    message_id=message.message_id,
                    retry_count=message.reconsume_times,
                    keys=message.properties.get(props.KEYS),
                )
                for message in self._traced(messages)
            ]
        )
        return call_id

    def consumed(
        self,
        messages: Sequence[ReceivedMessage],
        call_id: str,
        outcome: Outcome,
        duration_ms: int,
    ) -> None:
        """Trace the result of a listener's call.

        Args:
            messages: The messages passed to ``begun``.
            call_id: Result of ``begun``.
            outcome: Outcome of the call.
            duration_ms: Duration in ms; as in Java, each message records its share.
        """
        now_ms = self._clock.now_ms()
        self.add(
            [
                Consumed(
                    call_id=call_id,
                    message_id=message.message_id,
                    cost_ms=duration_ms // len(messages),
                    is_success=outcome is Outcome.SUCCESS,
                    keys=message.properties.get(props.KEYS),
                    outcome=outcome,
                    time_ms=now_ms,
                    group=self.group,
                )
                for message in self._traced(messages)
            ]
        )

    def _traced(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return messages without traces and without those whose broker disables tracing."""
        traced = []
        for message in messages:
            with contextlib.suppress(CorruptRecord):  # consumers notice the damage
                if message.topic != self.topic and message.properties.get("TRACE_ON") != "false":
                    traced.append(message)
        return traced


def keys_text(message: Message) -> str | None:
    """Return the keys of a sent message; None without keys."""
    keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    return keys or None


def _kind(message: Message) -> MessageKind:
    if (
        message.delay_level
        or message.delay_ms
        or message.deliver_at_ms
        or "__STARTDELIVERTIME" in message.properties
    ):
        return MessageKind.DELAY
    if message.properties.get(props.TRANSACTION_PREPARED) == "true":
        return MessageKind.HALF
    return MessageKind.NORMAL
