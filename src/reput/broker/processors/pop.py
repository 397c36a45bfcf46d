"""200050, 200052, 200054, 200055: messages that members of a group take from any queue.

The order of the checks and the codes are Java's ``PopMessageProcessor``, ``PeekMessageProcessor``,
``NotificationProcessor`` and ``PollingInfoProcessor`` of 5.5.0.
"""

from typing import TYPE_CHECKING, Protocol

from reput.broker import priority, pull_hold, selection
from reput.broker.pop import ANY_QUEUE, HeldPop, Popped, Wanted
from reput.broker.selection import Selection
from reput.errors import RequestRefused
from reput.format import command as commands, headers, pop_reply
from reput.format.codes import ResponseCode
from reput.format.command import Command, Serialization
from reput.format.headers import (
    Header,
    NotificationHeader,
    NotificationReplyHeader,
    PeekMessageHeader,
    PollingInfoHeader,
    PollingInfoReplyHeader,
    PopMessageHeader,
    PopMessageReplyHeader,
)
from reput.format.pop_codec import MESSAGES_MAX
from reput.remoting.channel import Channel
from reput.store.taking import Taken

if TYPE_CHECKING:
    from reput.broker.server import Broker

_STARTS_AT_END = 1
_LATE_MS = 500
"""So long behind a pop's time nobody waits for it any more."""
_HELD_MS_MIN = 50
"""A pop with less time than this is answered at once."""


class _AsksForQueue(Protocol):
    consumer_group: str
    topic: str
    queue_id: int


def pop_message(broker: "Broker", channel: Channel, request: Command) -> Command | None:
    """Return messages that nobody else sees for a while, or hold the request until there are."""
    found, born_ms, poll_ms = wanted(broker, request)
    return answer(broker, channel, request, found, time_left(broker, born_ms, poll_ms))


def time_left(broker: "Broker", born_ms: int, poll_ms: int) -> int:
    """Return how long a pop may still wait, ms; it has been on its way since it was made.

    Args:
        broker: Whose clock says so: that of the sender should agree.
        born_ms: When it was made; 0: not said.
        poll_ms: How long it may take from then on.

    Raises:
        RequestRefused: Nobody waits for it any more.
    """
    left_ms = poll_ms - _on_way_ms(broker, born_ms)
    if left_ms < -_LATE_MS:
        raise RequestRefused(
            ResponseCode.POLLING_TIMEOUT,
            f"the broker[{broker.config.broker_ip1}] pop message is timeout too much",
        )
    return left_ms


def _on_way_ms(broker: "Broker", born_ms: int) -> int:
    return max(broker.clock.now_ms() - born_ms, 0) if born_ms else 0


def wanted(broker: "Broker", request: Command) -> tuple[Wanted, int, int]:
    """Return what a pop asks for, which its group may have, when it was made, and its time, ms.

    Raises:
        RequestRefused: It is wrong, or may not.
        InvalidHeader: It cannot be read.
    """
    header = headers.decode(PopMessageHeader, request.ext_fields)
    time_left(broker, header.born_time, header.poll_time)
    _check_broker(broker, "pop message is")
    if not 0 < header.max_msg_nums <= MESSAGES_MAX:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"the broker[{broker.config.broker_ip1}] pop message's num is greater than "
            f"{MESSAGES_MAX}" if header.max_msg_nums > 0 else
            f"maxMsgNums is {header.max_msg_nums}; allowed: 1 to {MESSAGES_MAX}",
        )  # fmt: skip
    if header.invisible_time <= 0:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime is {header.invisible_time}; allowed: at least 1 ms",
        )
    _check_queue(broker, header)
    found = Wanted(
        header.topic,
        header.consumer_group,
        max(header.queue_id, ANY_QUEUE),
        header.max_msg_nums,
        header.invisible_time,
        _selection(broker, header.exp_type, header.exp),
        starts_at_end=header.init_mode == _STARTS_AT_END,
        is_ordered=bool(header.order),
        attempt_id=header.attempt_id,
        priority_percent=priority.read_percent(
            broker.topics.readable(header.topic),
            broker.subscription_groups.get(header.consumer_group),
        ),
    )
    return found, header.born_time, header.poll_time


def answer(
    broker: "Broker", channel: Channel, request: Command, wanted: Wanted, poll_ms: int
) -> Command | None:
    """Return the reply to a pop; None: it is sent, or comes when there are messages.

    Raises:
        RequestRefused: Nothing was taken, as a checkpoint cannot be stored.
    """
    found = pop(broker, wanted)
    is_plain = not request.flag and request.serialization is Serialization.JSON
    if is_plain and is_common(wanted, found):
        send_found(broker, channel, request.opaque, wanted, found)
        return None
    return answer_found(broker, channel, request, wanted, poll_ms, found)


def is_common(wanted: Wanted, found: Popped) -> bool:
    """Whether ``send_found`` may be called."""
    return found.count > 0 and not wanted.is_ordered


def answer_found(
    broker: "Broker",
    channel: Channel,
    request: Command,
    wanted: Wanted,
    poll_ms: int,
    found: Popped,
) -> Command | None:
    """Return the reply to a pop that found something, or nothing yet; None: it is held."""
    if _is_answer(found) or poll_ms < _HELD_MS_MIN:
        return _reply(broker, request, wanted, found)
    held = HeldPop(channel, request, wanted, broker.clock.monotonic_ms() + poll_ms)
    if broker.pops.held.hold(held):
        return None
    return _reply(broker, request, wanted, found, ResponseCode.POLLING_FULL)


def notification(broker: "Broker", channel: Channel, request: Command) -> Command | None:
    """Tell whether there is something to pop, or wait until there is."""
    header = headers.decode(NotificationHeader, request.ext_fields)
    _check_broker(broker, "peeking message is")
    _check_queue(broker, header)
    wanted = Wanted(
        header.topic,
        header.consumer_group,
        max(header.queue_id, ANY_QUEUE),
        0,
        0,
        is_ordered=bool(header.order),
        attempt_id=header.attempt_id,
    )
    has_messages = broker.pops.has_messages(wanted, broker.clock.now_ms())
    left_ms = header.poll_time - _on_way_ms(broker, header.born_time)
    if not has_messages and left_ms >= _HELD_MS_MIN:
        deadline_ms = broker.clock.monotonic_ms() + left_ms
        held = HeldPop(channel, request, wanted, deadline_ms, is_question=True)
        if broker.pops.held.hold(held):
            return None
        return _answer(request, NotificationReplyHeader(has_msg=False, polling_full=True))
    return _answer(request, NotificationReplyHeader(has_msg=has_messages))


def peek_message(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return messages that a pop would find, without taking them."""
    header = headers.decode(PeekMessageHeader, request.ext_fields)
    _check_broker(broker, "peeking message is")
    _check_queue(broker, header)
    queue_id = max(header.queue_id, ANY_QUEUE)
    wanted = Wanted(header.topic, header.consumer_group, queue_id, header.max_msg_nums, 0)
    found = broker.pops.peek(wanted)
    reply = PopMessageReplyHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=found.rest)
    code = ResponseCode.SUCCESS if found.count else ResponseCode.PULL_NOT_FOUND
    remark = "FOUND" if found.count else "NO_MESSAGE_IN_QUEUE"
    _count(broker, wanted, found, has_taken=False)
    fields = headers.encode(reply)
    return commands.reply(request, code, remark, fields, b"".join(found.data))


def polling_info(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return how many pops of a group wait at a queue."""
    header = headers.decode(PollingInfoHeader, request.ext_fields)
    _check_broker(broker, "peeking message is")
    _check_queue(broker, header)
    waiting = broker.pops.held.at(header.topic, max(header.queue_id, ANY_QUEUE))
    count = sum(
        one.wanted.group == header.consumer_group and not one.is_question for one in waiting
    )
    return _answer(request, PollingInfoReplyHeader(polling_num=count))


def look_again(broker: "Broker", held: HeldPop, *, is_last: bool = False) -> bool:
    """Look whether a pop that waits finds something now, and answer it if so.

    Args:
        broker: Whose it is.
        held: The pop.
        is_last: Its time is over: answer it anyway.

    Returns:
        Whether it was answered.
    """
    return pull_hold.answer(held, lambda: _looked_again(broker, held, is_last=is_last))


def _looked_again(broker: "Broker", held: HeldPop, *, is_last: bool) -> Command | None:
    """Return the answer; None if there is none yet. Raises ``RequestRefused``."""
    wanted = held.wanted
    _check_broker(broker, "pop message is")
    _check_group(broker, wanted.topic, wanted.group, wanted.queue_id)
    if held.is_question:
        has_messages = broker.pops.has_messages(wanted, broker.clock.now_ms())
        if not has_messages and not is_last:
            return None
        return _answer(held.request, NotificationReplyHeader(has_msg=has_messages))
    found = pop(broker, wanted)
    if not _is_answer(found) and not is_last:
        return None
    return _reply(broker, held.request, wanted, found)


def pop(broker: "Broker", wanted: Wanted) -> Popped:
    """Take messages; what was found has to be answered.

    Raises:
        RequestRefused: Nothing was taken, as a checkpoint cannot be stored.
    """
    found = broker.pops.pop(wanted, broker.clock.now_ms())
    if not found.count and found.refusal is not None:
        status, reason = found.refusal.status.name, found.refusal.reason
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no checkpoint: {status}: {reason}")
    return found


def _is_answer(found: Popped) -> bool:
    """Whether it is worth an answer now: messages, or unwanted ones with others behind them."""
    return found.count > 0 or (found.has_skipped and found.rest > 0)


def _check_broker(broker: "Broker", what: str) -> None:
    if broker.is_stopping:  # as pulls: consumers come back in seconds
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping")
    if not broker.is_master:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, "a slave keeps no checkpoints: pop from its master"
        )
    if not broker.is_readable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"the broker[{broker.config.broker_ip1}] {what} forbidden"
        )


def _check_queue(broker: "Broker", header: _AsksForQueue) -> None:
    _check_group(broker, header.topic, header.consumer_group, header.queue_id)


def _check_group(broker: "Broker", topic: str, group: str, queue_id: int) -> None:
    known = broker.topics.readable(topic)
    if queue_id >= known.read_queue_count:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic:[{topic}] "
            f"topicConfig.readQueueNums:[{known.read_queue_count}] consumer:[{group}]",
        )
    groups = broker.subscription_groups
    groups.check_consuming(group, broker.clock.now_ms())
    if groups.is_forbidden(group, topic):  # Java refuses pulls alone, and lets the group pop
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{group}] is forbidden for topic[{topic}]",
        )


def _selection(broker: "Broker", expression_type: str | None, expression: str | None) -> Selection:
    if not expression or selection.is_tag_type(expression_type):
        return selection.of_tags(expression)
    return broker.filters.of_expression(expression_type, expression)


def send_found(
    broker: "Broker", channel: Channel, opaque: int, wanted: Wanted, found: Popped
) -> None:
    """Send what ``_reply`` returns, where messages were found and it is plain how."""
    _count(broker, wanted, found, has_taken=True)
    body = b"".join(found.data)
    head = pop_reply.found_head(
        opaque,
        found.pop_ms,
        wanted.invisible_ms,
        found.revive_queue_id,
        found.rest,
        ";".join(found.start_infos),
        ";".join(found.message_infos),
        len(body),
    )
    channel.write(head)
    channel.write(body)


def _reply(
    broker: "Broker",
    request: Command,
    wanted: Wanted,
    found: Popped,
    empty: ResponseCode = ResponseCode.POLLING_TIMEOUT,
) -> Command:
    _count(broker, wanted, found, has_taken=True)
    header = PopMessageReplyHeader(
        pop_time=found.pop_ms,
        invisible_time=wanted.invisible_ms,
        revive_qid=found.revive_queue_id,
        rest_num=found.rest,
        start_offset_info=";".join(found.start_infos),
        msg_offset_info=";".join(found.message_infos),
        order_count_info=";".join(found.order_infos) if wanted.is_ordered else None,
    )
    return commands.reply(
        request,
        ResponseCode.SUCCESS if found.count else empty,
        pop_reply.FOUND if found.count else "NO_MESSAGE_IN_QUEUE",
        headers.encode(header),
        b"".join(found.data),
    )


def _count(broker: "Broker", wanted: Wanted, found: Popped, *, has_taken: bool) -> None:
    stats, group = broker.stats, wanted.group
    for topic, queue_id, result in found.results:
        if isinstance(result, Taken) or (has_taken and not wanted.is_ordered):
            stats.popped(topic, group, queue_id, result.message_count, len(result.data))
        else:
            stats.pulled(topic, group, result, queue_id=queue_id, latency_ms=0)


def _answer(request: Command, header: Header) -> Command:
    return commands.reply(request, ResponseCode.SUCCESS, None, headers.encode(header))
