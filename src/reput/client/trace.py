"""Writes traces of what a producer or consumer does, as messages of the trace topic.

Switched on by ``ClientConfig.enable_trace``. Nothing that is traced waits for it: traces are put by
until there are some, then sent by a producer of their own. Those that come too fast, or cannot be
sent, are dropped, and counted. ``Admin.message_trace``, ``reput message trace`` and RocketMQ's
``mqadmin queryMsgTraceById`` read them.

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
from reput.clock import Clock
from reput.errors import CorruptRecord, ReputError
from reput.format import properties as props
from reput.format.send_reply import REGION

log = logging.getLogger(__name__)

GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
WAITING_MAX = 4096
"""Traces that wait to be sent; more are dropped."""
ENOUGH_COUNT = 400
"""So many are sent at once."""
GATHER_MS = 500
"""How long the first of fewer waits for others."""
SEND_TIMEOUT_MS = 5_000

_serial = itertools.count(1)


class Sender(Protocol):
    """The producer that sends traces."""

    async def start(self) -> None:
        """Begin."""

    async def close(self) -> None:
        """End."""

    async def send(self, message: Message, *, timeout_ms: int | None = None) -> SendResult:
        """Send a message."""


def sender_group(group: str, role: str) -> str:
    """Return the group of a producer of traces; ``role`` is PRODUCE or CONSUME."""
    return f"{GROUP_PREFIX}-{group}-{role}-{next(_serial)}"


def sender_config(config: ClientConfig) -> ClientConfig:
    """Return the settings of a producer of traces: its connections and client id are its own."""
    return dataclasses.replace(config, enable_trace=False, namespace="")


class TraceWriter:
    """Takes traces, and sends them now and then.

    Args:
        sender: Sends them, and does nothing else.
        topic: Where to.
        group: Whose doings they are, without namespace.
        clock: The time.
    """

    def __init__(self, sender: Sender, topic: str, group: str, clock: Clock) -> None:
        self.dropped_count = 0
        """Traces that could not be kept or sent."""
        self.group = group
        self.topic = topic
        self._sender = sender
        self._clock = clock
        self._waiting: deque[Trace] = deque()
        self._has_some = asyncio.Event()
        self._has_enough = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    async def start(self) -> None:
        """Begin to send."""
        await self._sender.start()
        self._task = asyncio.create_task(self._run(), name=f"reput traces of {self.group}")

    async def close(self) -> None:
        """Send what waits, and end."""
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
        """Put traces by; they are dropped if too many wait."""
        if len(self._waiting) + len(traces) > WAITING_MAX:
            self._drop(len(traces), "too many wait to be sent")
            return
        self._waiting.extend(traces)
        self._has_some.set()
        if len(self._waiting) >= ENOUGH_COUNT:
            self._has_enough.set()

    def _drop(self, count: int, reason: object) -> None:
        self.dropped_count += count
        log.warning("%d traces of %s are dropped, %d in all: %s", count, self.group,
                    self.dropped_count, reason)  # fmt: skip

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
        for one in trace_codec.pack(traces):
            await self._send(one)

    async def _send(self, one: TraceMessage) -> None:
        message = Message(self.topic, one.body, keys=" ".join(one.keys))
        try:
            await self._sender.send(message, timeout_ms=SEND_TIMEOUT_MS)
        except ReputError as error:
            self._drop(one.body.count(trace_codec.LINE_END.encode()), error)

    # --- what is traced ---------------------------------------------------------

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
            result: What became of it.
            region: What the broker says of itself.
            broker_address: Which broker.
            body_bytes: Length of the body as sent, of a single message.
            begun_ms: When it was sent; ms since the epoch.
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
        """Trace what became of a transaction; the fields are those of ``TransactionEnded``."""
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
        """Trace what a broker has answered to a recall; the fields are those of ``Recalled``.

        Java's producers do so where a system property says it.
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
        """Trace that messages are handed out; return what their end is to be told with."""
        now_ms = self._clock.now_ms()
        call_id = uuid.uuid4().hex.upper()
        self.add(
            [
                Begun(
                    time_ms=now_ms,
                    region=one.properties.get("MSG_REGION"),
                    group=self.group,
                    call_id=call_id,
                    message_id=one.message_id,
                    retry_count=one.reconsume_times,
                    keys=one.properties.get(props.KEYS),
                )
                for one in self._traced(messages)
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
        """Trace what became of messages that were ``begun``.

        Args:
            messages: The same.
            call_id: What ``begun`` has returned.
            outcome: How it ended.
            duration_ms: From then to now; as in Java, each message is told its share.
        """
        now_ms = self._clock.now_ms()
        self.add(
            [
                Consumed(
                    call_id=call_id,
                    message_id=one.message_id,
                    cost_ms=duration_ms // len(messages),
                    is_success=outcome is Outcome.SUCCESS,
                    keys=one.properties.get(props.KEYS),
                    outcome=outcome,
                    time_ms=now_ms,
                    group=self.group,
                )
                for one in self._traced(messages)
            ]
        )

    def _traced(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return those that no broker has excepted, and that are no traces themselves."""
        found = []
        for one in messages:
            with contextlib.suppress(CorruptRecord):  # whoever gets it notices
                if one.topic != self.topic and one.properties.get("TRACE_ON") != "false":
                    found.append(one)
        return found


def keys_text(message: Message) -> str | None:
    """Return the keys of a message as it is sent; None if it has none."""
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
