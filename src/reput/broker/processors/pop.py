"""200050, 200052, 200054, 200055: messages that members of a group take from any queue.

The order of the checks and the codes are Java's ``PopMessageProcessor``, ``PeekMessageProcessor``,
``NotificationProcessor`` and ``PollingInfoProcessor`` of 5.5.0.
"""

from typing import Protocol

from reput import limits
from reput.broker import held_requests, quotas
from reput.broker.filter import selection
from reput.broker.filter.selection import Selection
from reput.broker.parts import Parts
from reput.broker.pop.pops import ANY_QUEUE, HeldPop, Popped, Wanted
from reput.broker.topic import priority
from reput.errors import RequestRefused
from reput.format import command as commands, headers, names, pop_reply
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
from reput.store.pop_reader import Taken

_STARTS_AT_END = 1
_LATE_MS = 500
"""So long behind a pop's time nobody waits for it any more."""
_HELD_MS_MIN = 50
"""A pop with less time than this is answered at once."""


class _AsksForQueue(Protocol):
    consumer_group: str
    topic: str
    queue_id: int


def pop_message(parts: Parts, channel: Channel, request: Command) -> Command | None:
    """Return messages that nobody else sees for a while, or hold the request until there are."""
    found, born_ms, poll_ms = wanted(parts, request, channel.address)
    return answer(parts, channel, request, found, time_left(parts, born_ms, poll_ms))


def time_left(parts: Parts, born_ms: int, poll_ms: int) -> int:
    """Return how long a pop may still wait, ms; it has been on its way since it was made.

    Args:
        parts: The parts of the broker.
        born_ms: When it was made; 0: not said.
        poll_ms: How long it may take from then on.

    Raises:
        RequestRefused: Nobody waits for it any more.
    """
    left_ms = poll_ms - _on_way_ms(parts, born_ms)
    if left_ms < -_LATE_MS:
        raise RequestRefused(
            ResponseCode.POLLING_TIMEOUT,
            f"the broker[{parts.settings.broker.broker_ip1}] pop message is timeout too much",
        )
    return left_ms


def _on_way_ms(parts: Parts, born_ms: int) -> int:
    return max(parts.clock.now_ms() - born_ms, 0) if born_ms else 0


def wanted(parts: Parts, request: Command, address: str = quotas.OWN) -> tuple[Wanted, int, int]:
    """Return what a pop asks for, which its group may have, when it was made, and its time, ms.

    Args:
        parts: The parts of the broker.
        request: The pop.
        address: Of the client.

    Raises:
        RequestRefused: It is wrong, or may not.
        InvalidHeader: It cannot be read.
    """
    header = headers.decode(PopMessageHeader, request.ext_fields)
    time_left(parts, header.born_time, header.poll_time)
    _check_broker(parts, "pop message is")
    if not 0 < header.max_msg_nums <= MESSAGES_MAX:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"the broker[{parts.settings.broker.broker_ip1}] pop message's num is greater than "
            f"{MESSAGES_MAX}" if header.max_msg_nums > 0 else
            f"maxMsgNums is {header.max_msg_nums}; allowed: 1 to {MESSAGES_MAX}",
        )  # fmt: skip
    if header.invisible_time <= 0:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime is {header.invisible_time}; allowed: at least 1 ms",
        )
    limits.POP_INVISIBLE_MS.check(header.invisible_time)
    limits.POP_ATTEMPT_LETTERS.check(len(header.attempt_id or ""))
    if not names.is_retry_topic(header.topic):
        retry_topic = names.pop_retry_topic(header.topic, header.consumer_group)
        limits.POP_RETRY_TOPIC_LETTERS.check(len(retry_topic), names.printable(retry_topic))
    _check_queue(parts, header, address)
    if header.order:
        queue_count = parts.topics.readable(header.topic).read_queue_count
        parts.pops.orders.check_room(
            header.topic, header.consumer_group, 1 if header.queue_id >= 0 else queue_count
        )
    found = Wanted(
        header.topic,
        header.consumer_group,
        max(header.queue_id, ANY_QUEUE),
        header.max_msg_nums,
        header.invisible_time,
        _selection(parts, header.exp_type, header.exp),
        starts_at_end=header.init_mode == _STARTS_AT_END,
        is_ordered=bool(header.order),
        attempt_id=header.attempt_id,
        priority_percent=priority.read_percent(
            parts.topics.readable(header.topic),
            parts.subscription_groups.get(header.consumer_group),
        ),
    )
    return found, header.born_time, header.poll_time


def answer(
    parts: Parts, channel: Channel, request: Command, wanted: Wanted, poll_ms: int
) -> Command | None:
    """Return the reply to a pop; None: it is sent, or comes when there are messages.

    Raises:
        RequestRefused: Nothing was taken, as a checkpoint cannot be stored.
    """
    found = pop(parts, wanted)
    is_plain_request = not request.flag and request.serialization is Serialization.JSON
    if is_plain_request and is_plain(wanted, found):
        send_plain(parts, channel, request.opaque, wanted, found)
        return None
    return answer_popped(parts, channel, request, wanted, poll_ms, found)


def is_plain(wanted: Wanted, found: Popped) -> bool:
    """Whether ``send_plain`` may be called."""
    return found.count > 0 and not wanted.is_ordered


def answer_popped(
    parts: Parts,
    channel: Channel,
    request: Command,
    wanted: Wanted,
    poll_ms: int,
    found: Popped,
) -> Command | None:
    """Return the reply to a pop that found something, or nothing yet; None: it is held."""
    if _is_answer(found) or poll_ms < _HELD_MS_MIN:
        return _reply(parts, request, wanted, found)
    deadline_ms = parts.clock.monotonic_ms() + poll_ms
    held = HeldPop(channel, commands.envelope(request), wanted, deadline_ms)
    if parts.pops.held.hold(held):
        return None
    return _reply(parts, request, wanted, found, ResponseCode.POLLING_FULL)


def notification(parts: Parts, channel: Channel, request: Command) -> Command | None:
    """Tell whether there is something to pop, or wait until there is."""
    header = headers.decode(NotificationHeader, request.ext_fields)
    _check_broker(parts, "peeking message is")
    limits.POP_ATTEMPT_LETTERS.check(len(header.attempt_id or ""))
    _check_queue(parts, header, channel.address)
    wanted = Wanted(
        header.topic,
        header.consumer_group,
        max(header.queue_id, ANY_QUEUE),
        0,
        0,
        is_ordered=bool(header.order),
        attempt_id=header.attempt_id,
    )
    has_messages = parts.pops.has_messages(wanted, parts.clock.now_ms())
    left_ms = header.poll_time - _on_way_ms(parts, header.born_time)
    if not has_messages and left_ms >= _HELD_MS_MIN:
        deadline_ms = parts.clock.monotonic_ms() + left_ms
        kept = commands.envelope(request)
        held = HeldPop(channel, kept, wanted, deadline_ms, is_question=True)
        if parts.pops.held.hold(held):
            return None
        return _answer(request, NotificationReplyHeader(has_msg=False, polling_full=True))
    return _answer(request, NotificationReplyHeader(has_msg=has_messages))


def peek_message(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return messages that a pop would find, without taking them."""
    header = headers.decode(PeekMessageHeader, request.ext_fields)
    _check_broker(parts, "peeking message is")
    _check_queue(parts, header, channel.address)
    queue_id = max(header.queue_id, ANY_QUEUE)
    wanted = Wanted(header.topic, header.consumer_group, queue_id, header.max_msg_nums, 0)
    found = parts.pops.peek(wanted)
    reply = PopMessageReplyHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=found.rest)
    code = ResponseCode.SUCCESS if found.count else ResponseCode.PULL_NOT_FOUND
    remark = "FOUND" if found.count else "NO_MESSAGE_IN_QUEUE"
    _count(parts, wanted, found, has_taken=False)
    fields = headers.encode(reply)
    return commands.reply(request, code, remark, fields, b"".join(found.data))


def polling_info(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return how many pops of a group wait at a queue."""
    header = headers.decode(PollingInfoHeader, request.ext_fields)
    _check_broker(parts, "peeking message is")
    _check_queue(parts, header, channel.address)
    waiting = parts.pops.held.held_at(header.topic, max(header.queue_id, ANY_QUEUE))
    count = sum(
        one.wanted.group == header.consumer_group and not one.is_question for one in waiting
    )
    return _answer(request, PollingInfoReplyHeader(polling_num=count))


def retry_held(parts: Parts, held: HeldPop, *, is_last: bool = False) -> bool:
    """Look whether a pop that waits finds something now, and answer it if so.

    Args:
        parts: The parts of the broker.
        held: The pop.
        is_last: Its time is over: answer it anyway.

    Returns:
        Whether it was answered.
    """
    return held_requests.answer(held, lambda: _retry(parts, held, is_last=is_last))


def _retry(parts: Parts, held: HeldPop, *, is_last: bool) -> Command | None:
    """Return the answer; None if there is none yet. Raises ``RequestRefused``."""
    wanted = held.wanted
    _check_broker(parts, "pop message is")
    address = held.channel.address
    _check_group(parts, wanted.topic, wanted.group, wanted.queue_id, address)
    if held.is_question:
        has_messages = parts.pops.has_messages(wanted, parts.clock.now_ms())
        if not has_messages and not is_last:
            return None
        return _answer(held.request, NotificationReplyHeader(has_msg=has_messages))
    found = pop(parts, wanted)
    if not _is_answer(found) and not is_last:
        return None
    return _reply(parts, held.request, wanted, found)


def pop(parts: Parts, wanted: Wanted) -> Popped:
    """Take messages; what was found has to be answered.

    Raises:
        RequestRefused: Nothing was taken, as a checkpoint cannot be stored.
    """
    found = parts.pops.pop(wanted, parts.clock.now_ms())
    if not found.count and found.refusal is not None:
        status, reason = found.refusal.status.name, found.refusal.reason
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no checkpoint: {status}: {reason}")
    return found


def _is_answer(found: Popped) -> bool:
    """Whether it is worth an answer now: messages, or unwanted ones with others behind them."""
    return found.count > 0 or (found.has_skipped and found.rest > 0)


def _check_broker(parts: Parts, what: str) -> None:
    if parts.identity.is_stopping:  # as pulls: consumers come back in seconds
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping")
    if not parts.identity.is_master:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, "a slave keeps no checkpoints: pop from its master"
        )
    if not parts.identity.is_readable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the broker[{parts.settings.broker.broker_ip1}] {what} forbidden",
        )


def _check_queue(parts: Parts, header: _AsksForQueue, address: str) -> None:
    _check_group(parts, header.topic, header.consumer_group, header.queue_id, address)


def _check_group(parts: Parts, topic: str, group: str, queue_id: int, address: str) -> None:
    known = parts.topics.readable(topic)
    if queue_id >= known.read_queue_count:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic:[{topic}] "
            f"topicConfig.readQueueNums:[{known.read_queue_count}] consumer:[{group}]",
        )
    groups = parts.subscription_groups
    groups.check_consuming(group, parts.clock.now_ms(), address)
    parts.commits.check_reading(known, group, queue_id)
    if groups.is_forbidden(group, topic):  # Java refuses pulls alone, and lets the group pop
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{group}] is forbidden for topic[{topic}]",
        )


def _selection(parts: Parts, expression_type: str | None, expression: str | None) -> Selection:
    if not expression or selection.is_tag_type(expression_type):
        return selection.of_tags(expression)
    return parts.filters.of_expression(expression_type, expression)


def send_plain(parts: Parts, channel: Channel, opaque: int, wanted: Wanted, found: Popped) -> None:
    """Send what ``_reply`` returns, where messages were found and it is plain how."""
    _count(parts, wanted, found, has_taken=True)
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
    parts: Parts,
    request: Command,
    wanted: Wanted,
    found: Popped,
    empty: ResponseCode = ResponseCode.POLLING_TIMEOUT,
) -> Command:
    _count(parts, wanted, found, has_taken=True)
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


def _count(parts: Parts, wanted: Wanted, found: Popped, *, has_taken: bool) -> None:
    stats, group = parts.deliveries.stats, wanted.group
    for topic, queue_id, result in found.results:
        if isinstance(result, Taken) or (has_taken and not wanted.is_ordered):
            stats.popped(topic, group, queue_id, result.message_count, len(result.data))
        else:
            stats.pulled(topic, group, result, queue_id=queue_id, latency_ms=0)


def _answer(request: Command, header: Header) -> Command:
    return commands.reply(request, ResponseCode.SUCCESS, None, headers.encode(header))
