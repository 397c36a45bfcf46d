"""Receives: pops of brokers, as streams of messages; acks, and changes of invisible times.

Source: rocketmq-proxy 5.5.0 ``ReceiveMessageActivity``, ``ConsumerProcessor``.
"""

import asyncio
import dataclasses
import itertools
import logging
import struct
import sys
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from reput.broker import limits as broker_limits
from reput.client.core import pop_handles, requests
from reput.client.core.pop_handles import ReplyHandles
from reput.client.core.subscription import Subscription
from reput.clock import Clock
from reput.errors import ReputError
from reput.format import headers, limits, message as records, pop_codec, properties as props
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeReplyHeader,
    PopMessageHeader,
    PopMessageReplyHeader,
    SendBackHeader,
)
from reput.format.message import StoredMessage
from reput.grpc import settings, statuses
from reput.grpc.backend import GroupFacts, UnknownBroker
from reput.grpc.caller import EARLY_MS, Caller
from reput.grpc.clients import ASK_MS, Client
from reput.grpc.conversion import Receipt
from reput.grpc.records import PoppedRecord, popped
from reput.grpc.renewal import MARGIN_MS, Held
from reput.grpc.statuses import Code, StatusError
from reput.grpc.wire import protobuf

AUTO_RENEW_MS = 60_000
INVISIBLE_MS = (10_000, 12 * 3_600_000)
"""Allowed invisible times of a receive, in ms."""
POLL_MS_MAX = 20_000
TOGETHER_MAX = 256
"""Requests about messages of a client that wait for replies at once."""
GIVEN_BACK_MS = 1_000
"""Invisible time of messages whose consumer has disconnected, in ms."""
_ANY_QUEUE = -1
"""Queue id of all pops, as with Java's proxy in cluster mode: simple consumers name the queues of a
route in turn, and would wait at an empty one for messages of another."""
_FROM_END = 1
EMPTY = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)
"""Codes of pops without messages."""
_RECORD_BYTES = struct.Struct(">i")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReceiveParameters:
    """The parameters of a receive."""

    group: GroupFacts
    topic: str
    broker_name: str
    subscription: Subscription
    count_max: int
    invisible_ms: int
    poll_ms: int
    renews: bool
    attempt_id: str | None

    @property
    def text_bytes(self) -> int:
        """Memory of the texts that the client chooses, in bytes."""
        return sys.getsizeof(self.subscription.expression) + sys.getsizeof(self.attempt_id)


@dataclass(frozen=True, slots=True)
class Received:
    """A message that was popped."""

    message: StoredMessage
    receipt: Receipt
    delivery_attempt: int
    due_ms: int
    """When it becomes visible again, in ms since the epoch."""

    @property
    def receipt_text(self) -> str:
        """The handle as text."""
        return str(self.receipt)

    @property
    def tags(self) -> str | None:
        """The tag."""
        return self.message.tags


def wanted(
    call: Caller,
    request: dict[str, Any],
    group: GroupFacts,
    broker_name: str,
    clock: Clock,
    early_ms: int,
) -> ReceiveParameters:
    """Return the parameters of a ReceiveMessage.

    Args:
        call: Who asks.
        request: The request.
        group: Its group.
        broker_name: The broker to ask.
        clock: The clock.
        early_ms: Time before its end at which the broker may answer a held pop, in ms: the pop is
            held for longer, as consumers count on the whole time.

    Raises:
        StatusError: A value is not allowed.
        LimitExceeded: The attempt id or the expression is so long that brokers refuse it.
    """
    attempt_id = request.get("attempt_id")
    broker_limits.POP_ATTEMPT_LETTERS.check(len(attempt_id or ""))
    limits.HEADER_BYTES.check(len(request.get("filter_expression", {}).get("expression", "")))
    queue = request.get("message_queue", {})
    topic = queue.get("topic", {}).get("name", "")
    renews = bool(request.get("auto_renew"))
    invisible_ms = AUTO_RENEW_MS if renews else milliseconds(request.get("invisible_duration"))
    check_invisible_time(invisible_ms, INVISIBLE_MS[0])
    poll_ms = _poll_ms(call, request, clock)
    subscription = settings.filter_of(topic, request.get("filter_expression", {}), clock.now_ms())
    return ReceiveParameters(
        group,
        topic,
        broker_name,
        subscription,
        min(max(request.get("batch_size", 1), 1), settings.BATCH_MAX),
        invisible_ms,
        poll_ms + early_ms if poll_ms else 0,
        renews,
        attempt_id,
    )


def _poll_ms(call: Caller, request: dict[str, Any], clock: Clock) -> int:
    """Return how long to wait for messages: as asked, and less than until the deadline."""
    asked = request.get("long_polling_timeout")
    poll_ms = POLL_MS_MAX if asked is None else min(milliseconds(asked), POLL_MS_MAX)
    if call.deadline_ms is not None:
        poll_ms = min(poll_ms, call.deadline_ms - clock.monotonic_ms() - EARLY_MS)
    return max(poll_ms, 0)


def check_invisible_time(invisible_ms: int, least_ms: int) -> None:
    """Check an invisible time. Raises ``StatusError``."""
    most_ms = INVISIBLE_MS[1]
    if invisible_ms < least_ms:
        text = f"the invisibleTime is too small. min is {least_ms}"
    elif invisible_ms > most_ms:
        text = f"the invisibleTime is too large. max is {most_ms}"
    else:
        return
    raise StatusError(Code.ILLEGAL_INVISIBLE_TIME, f"{text}, in ms; it is {invisible_ms}")


def milliseconds(duration: dict[str, int] | None) -> int:
    """Return a Duration in ms; 0 for None. Raises ``InvalidProtobuf``."""
    return 0 if duration is None else protobuf.duration_ms(duration)


async def pop(
    client: Client, wanted: ReceiveParameters, clock: Clock
) -> Sequence[Received | PoppedRecord]:
    """Pop messages; none if there were none in time.

    Raises:
        StatusError: The broker refused.
        ReputError: There is no connection, or no reply.
    """
    header = PopMessageHeader(
        consumer_group=wanted.group.name,
        topic=wanted.topic,
        queue_id=_ANY_QUEUE,
        max_msg_nums=wanted.count_max,
        invisible_time=wanted.invisible_ms,
        poll_time=wanted.poll_ms,
        born_time=clock.now_ms(),
        init_mode=_FROM_END,
        exp_type=wanted.subscription.expression_type,
        exp=wanted.subscription.expression,
        order=wanted.group.is_ordered,
        attempt_id=wanted.attempt_id,
    )
    request = requests.make(RequestCode.POP_MESSAGE, header)
    reply = await client.ask(wanted.broker_name, request, wanted.poll_ms + ASK_MS)
    if reply.code in EMPTY:
        return []
    statuses.check(reply)
    answer = headers.decode(PopMessageReplyHeader, reply.ext_fields)
    handles = ReplyHandles(answer, wanted.broker_name)
    items = popped(reply.body, answer, handles, wanted.broker_name)
    if items is not None:
        return items
    return [_received(message, handles, answer) for message in messages_of(reply.body)]


def messages_of(data: bytes) -> Iterator[StoredMessage]:
    """Yield the messages of concatenated records."""
    position = 0
    while position < len(data):
        yield records.decode(data, position, check_crc=False)
        position += _RECORD_BYTES.unpack_from(data, position)[0]


def _received(
    message: StoredMessage, handles: ReplyHandles, answer: PopMessageReplyHeader
) -> Received:
    checkpoint = message.properties.get(props.POP_CHECKPOINT)
    kind = (
        next(iter(handles.kinds)) if len(handles.kinds) == 1 else pop_codec.kind_of(message.topic)
    )
    handle = handles.of(kind, message.queue_id, message.queue_offset, checkpoint)
    attempts = handles.taken_count(handle) or message.reconsume_times
    due_ms = answer.pop_time + answer.invisible_time
    return Received(message, Receipt(handle, message.physical_offset), attempts + 1, due_ms)


def split(
    received: Sequence[Received | PoppedRecord], wanted: ReceiveParameters
) -> tuple[
    list[Received | PoppedRecord], list[Received | PoppedRecord], list[Received | PoppedRecord]
]:
    """Return messages to deliver, those with other tags, and those with too many attempts."""
    delivered: list[Received | PoppedRecord] = []
    unwanted: list[Received | PoppedRecord] = []
    dead: list[Received | PoppedRecord] = []
    for item in received:
        if wanted.subscription.tag_set and item.tags not in wanted.subscription.tag_set:
            unwanted.append(item)
        elif item.delivery_attempt > wanted.group.retry_max + 1:
            dead.append(item)
        else:
            delivered.append(item)
    return delivered, unwanted, dead


# --- received messages ---------------------------------------------------------


async def ack(client: Client, group: str, topic: str, receipt: Receipt) -> None:
    """Acknowledge a message.

    Raises:
        StatusError: It is not held any more, or the broker refused.
        ReputError: There is no connection, or no reply.
    """
    handle = receipt.handle
    header = AckMessageHeader(
        consumer_group=group,
        topic=pop_codec.topic_of(handle.kind, topic, group),
        queue_id=handle.queue_id,
        extra_info=str(handle),
        offset=handle.queue_offset,
        lite_topic=receipt.lite_topic or None,
    )
    await _ask(client, receipt, requests.make(RequestCode.ACK_MESSAGE, header))


async def _ask(client: Client, receipt: Receipt, request: Command) -> Command:
    """Ask the broker of a received message; return its reply, which is a success.

    Raises:
        StatusError: It is not held any more, or the broker refused, or is not known.
        ReputError: There is no connection, or no reply.
    """
    try:
        reply = await client.ask(receipt.handle.broker_name, request)
    except UnknownBroker as error:
        raise StatusError(Code.INVALID_RECEIPT_HANDLE, str(error)) from error
    statuses.check(reply, of_receipt=True)
    return reply


async def change(
    client: Client,
    group: str,
    topic: str,
    receipt: Receipt,
    invisible_ms: int,
    *,
    suspends: bool = False,
    keeps_handle: bool = False,
) -> Receipt:
    """Change the invisible time of a message, counted from now; return its new handle.

    Args:
        client: The client.
        group: Its group.
        topic: The topic that was received from.
        receipt: The handle.
        invisible_ms: The time, in ms.
        suspends: Whether the next delivery does not count as an attempt.
        keeps_handle: Whether the old handle stays valid, if the broker is able to do that.

    Raises:
        StatusError: It is not held any more, or the broker refused.
        ReputError: There is no connection, or no reply.
    """
    handle = receipt.handle
    header = ChangeInvisibleTimeHeader(
        consumer_group=group,
        topic=pop_codec.topic_of(handle.kind, topic, group),
        queue_id=handle.queue_id,
        extra_info=str(handle),
        offset=handle.queue_offset,
        invisible_time=invisible_ms,
        suspend=suspends or None,
        lite_topic=receipt.lite_topic or None,
        keeps_handle=keeps_handle or None,
    )
    request = requests.make(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    reply = await _ask(client, receipt, request)
    answer = headers.decode(ChangeInvisibleTimeReplyHeader, reply.ext_fields)
    if keeps_handle and answer.pop_time == handle.pop_ms:
        renewed = dataclasses.replace(handle, invisible_ms=answer.invisible_time)
    else:
        renewed = pop_handles.changed(handle, answer)
    return dataclasses.replace(receipt, handle=renewed)


async def hold_expired(client: Client, group: str, topic: str, receipt: Receipt) -> Receipt:
    """Hold a message with an expired handle for a while: its broker may still hold it.

    Raises:
        StatusError: It does not, or refused.
        ReputError: There is no connection, or no reply.
    """
    try:
        return await change(client, group, topic, receipt, AUTO_RENEW_MS, keeps_handle=True)
    except StatusError as error:
        if error.code is not Code.INVALID_RECEIPT_HANDLE:
            raise
        raise StatusError(error.code, f"receipt handle is expired: {error.message}") from error


async def check_place(client: Client, group: str, topic: str, receipt: Receipt) -> None:
    """Check that a handle's place in the log is that of its message.

    A handle is a text of the client: another place would give it a message that it may not read.

    Raises:
        StatusError: It is not, or the broker refused.
        ReputError: There is no connection, or no reply.
    """
    header = headers.ViewMessageHeader(offset=receipt.physical_offset)
    request = requests.make(RequestCode.VIEW_MESSAGE_BY_ID, header)
    reply = await _ask(client, receipt, request)
    handle = receipt.handle
    message = records.decode(reply.body, check_crc=False)
    if receipt.lite_topic:
        place: tuple[object, ...] = message.topic, message.properties.get(props.LITE_TOPIC)
        is_right = place == (topic, receipt.lite_topic)
    else:
        wanted_topic = pop_codec.topic_of(handle.kind, topic, group)
        place = message.topic, message.queue_id, message.queue_offset
        is_right = place == (wanted_topic, handle.queue_id, handle.queue_offset)
    if not is_right:
        raise StatusError(
            Code.INVALID_RECEIPT_HANDLE, "the place in the handle is that of another message"
        )


async def forward(
    client: Client, group: str, topic: str, receipt: Receipt, message_id: str
) -> None:
    """Put a message into the dead letters of its group, and acknowledge it.

    Raises:
        StatusError: It is not held any more, or the broker refused.
        ReputError: There is no connection, or no reply.
    """
    header = SendBackHeader(
        offset=receipt.physical_offset,
        group=group,
        delay_level=-1,
        origin_msg_id=message_id,
        origin_topic=pop_codec.topic_of(receipt.handle.kind, topic, group),
        max_reconsume_times=0,
    )
    request = requests.make(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    await _ask(client, receipt, request)
    await ack(client, group, topic, receipt)


async def give_back(
    client: Client, group: str, topic: str, receipt: Receipt, *, is_attempt: bool
) -> None:
    """Make a message visible soon, unless it is acknowledged.

    Args:
        client: The client.
        group: Its group.
        topic: The topic that was received from.
        receipt: The handle.
        is_attempt: Whether the delivery counts: the message was handed out, and may be the reason
            for the end of its consumer. What never left the server does not count.
    """
    try:
        await change(client, group, topic, receipt, GIVEN_BACK_MS, suspends=not is_attempt)
    except StatusError as error:
        if error.code is not Code.INVALID_RECEIPT_HANDLE:
            _log.warning("%s of %r stays invisible for its time: %s", receipt, client, error)
    except ReputError as error:
        _log.warning("%s of %r stays invisible for its time: %s", receipt, client, error)


async def renew(client: Client, clock: Clock, margin_ms: int = MARGIN_MS) -> None:
    """Renew the invisible times of a client's messages that end within ``margin_ms``."""

    async def renew_one(held: Held, invisible_ms: int) -> None:
        receipt = Receipt.parse(held.receipt)
        try:
            receipt = await change(
                client, held.group, held.topic, receipt, invisible_ms, keeps_handle=True
            )
        except (ReputError, StatusError):
            held.failure_count += 1
        else:
            client.renewals.renewed(held, str(receipt), clock.now_ms() + invisible_ms)

    due = client.renewals.due(clock.now_ms(), margin_ms)
    await _together(renew_one(*renewal) for renewal in due)
    client.renewals.settle()


async def leave(client: Client) -> None:
    """Make the messages of a disconnected client visible soon; they count as delivered."""

    async def leave_one(held: Held) -> None:
        receipt = Receipt.parse(held.receipt)
        await give_back(client, held.group, held.topic, receipt, is_attempt=True)

    await _together(map(leave_one, client.renewals.take_all()))


async def _together(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await calls, ``TOGETHER_MAX`` at a time: a broker that hangs delays them only once."""
    waiting = iter(calls)
    while some := list(itertools.islice(waiting, TOGETHER_MAX)):
        await asyncio.gather(*some)
