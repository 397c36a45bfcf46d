"""Codes 200050, 200052, 200054, 200055: pops, and queries about them.

The order of the checks and the codes are those of Java's ``PopMessageProcessor``,
``PeekMessageProcessor``, ``NotificationProcessor`` and ``PollingInfoProcessor`` of 5.5.0.
"""

import functools
from typing import Protocol

from reput.broker import limits, quotas
from reput.broker.access.access import Grant
from reput.broker.filter import selection
from reput.broker.filter.selection import Selection
from reput.broker.parts import Parts
from reput.broker.pop.pops import ANY_QUEUE, HeldPop, PopParameters, Popped
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
from reput.store.writing.pop_reader import PopBatch

_STARTS_AT_END = 1
_LATE_MS = 500
"""Time after the deadline of a pop at which its client has given up, in ms."""
HELD_MS_MIN = 50
"""Shortest time for which a pop is held, in ms."""


class _QueueHeader(Protocol):
    consumer_group: str
    topic: str
    queue_id: int


def pop_message(parts: Parts, channel: Channel, request: Command) -> Command | None:
    """Return messages and hide them from the group for a while, or hold the request."""
    parameters, born_ms, poll_ms = wanted(parts, request, channel.address)
    return answer(parts, channel, request, parameters, time_left(parts, born_ms, poll_ms))


def time_left(parts: Parts, born_ms: int, poll_ms: int) -> int:
    """Return how long a pop can still be held, in ms, after its time on the way.

    Args:
        parts: The parts of the broker.
        born_ms: When the request was created; 0 if unknown.
        poll_ms: Its total time from then on.

    Raises:
        RequestRefused: Its client has given up.
    """
    left_ms = poll_ms - _on_way_ms(parts, born_ms)
    if left_ms < -_LATE_MS:
        raise RequestRefused(
            ResponseCode.POLLING_TIMEOUT,
            f"the broker[{parts.settings.broker.broker_ip1}] pop message is timeout too much",
        )
    return left_ms


def _on_way_ms(parts: Parts, born_ms: int) -> int:
    return max(parts.clock.client_ms() - born_ms, 0) if born_ms else 0


def wanted(
    parts: Parts, request: Command, address: str = quotas.OWN
) -> tuple[PopParameters, int, int]:
    """Decode and check a pop; return its parameters, its born time and its total time in ms.

    Args:
        parts: The parts of the broker.
        request: The pop.
        address: Address of the client.

    Raises:
        RequestRefused: A value is wrong, or the group has no permission.
        InvalidHeader: The header cannot be decoded.
    """
    header = headers.decode(PopMessageHeader, request.ext_fields)
    time_left(parts, header.born_time, header.poll_time)
    check_broker(parts, "pop message is")
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
    parameters = PopParameters(
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
    return parameters, header.born_time, header.poll_time


def answer(
    parts: Parts, channel: Channel, request: Command, wanted: PopParameters, poll_ms: int
) -> Command | None:
    """Return the reply to a pop; None if it is sent directly, or the pop is held.

    Raises:
        RequestRefused: No message was popped, as a checkpoint cannot be stored.
    """
    popped = pop(parts, wanted)
    is_plain_request = not request.flag and request.serialization is Serialization.JSON
    if is_plain_request and is_plain(wanted, popped):
        send_plain(parts, channel, request.opaque, wanted, popped)
        return None
    return answer_popped(parts, channel, request, wanted, poll_ms, popped)


def is_plain(wanted: PopParameters, popped: Popped) -> bool:
    """Return True if ``send_plain`` can send the reply."""
    return popped.count > 0 and not wanted.is_ordered


def answer_popped(
    parts: Parts,
    channel: Channel,
    request: Command,
    wanted: PopParameters,
    poll_ms: int,
    popped: Popped,
) -> Command | None:
    """Return the reply to a pop with its result; None if the pop is held."""
    if _has_result(popped) or poll_ms < HELD_MS_MIN:
        return _reply(parts, request, wanted, popped)
    deadline_ms = parts.clock.monotonic_ms() + poll_ms
    envelope = commands.envelope(request)
    find_reply, grant = functools.partial(retry_held, parts), _grant(parts, envelope)
    held = HeldPop(channel, envelope, wanted, deadline_ms, find_reply, grant=grant)
    if parts.pops.held.hold(held):
        return None
    return _reply(parts, request, wanted, popped, ResponseCode.POLLING_FULL)


def notification(parts: Parts, channel: Channel, request: Command) -> Command | None:
    """Return whether there are messages to pop, or hold the request until there are."""
    header = headers.decode(NotificationHeader, request.ext_fields)
    check_broker(parts, "peeking message is")
    limits.POP_ATTEMPT_LETTERS.check(len(header.attempt_id or ""))
    _check_queue(parts, header, channel.address)
    wanted = PopParameters(
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
    if not has_messages and left_ms >= HELD_MS_MIN:
        deadline_ms = parts.clock.monotonic_ms() + left_ms
        envelope = commands.envelope(request)
        find_reply, grant = functools.partial(retry_held, parts), _grant(parts, envelope)
        held = HeldPop(
            channel, envelope, wanted, deadline_ms, find_reply, is_question=True, grant=grant
        )
        if parts.pops.held.hold(held):
            return None
        return _answer(request, NotificationReplyHeader(has_msg=False, polling_full=True))
    return _answer(request, NotificationReplyHeader(has_msg=has_messages))


def peek_message(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return messages that a pop would find, without popping them."""
    header = headers.decode(PeekMessageHeader, request.ext_fields)
    check_broker(parts, "peeking message is")
    _check_queue(parts, header, channel.address)
    queue_id = max(header.queue_id, ANY_QUEUE)
    wanted = PopParameters(header.topic, header.consumer_group, queue_id, header.max_msg_nums, 0)
    popped = parts.pops.peek(wanted)
    reply = PopMessageReplyHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=popped.rest)
    code = ResponseCode.SUCCESS if popped.count else ResponseCode.PULL_NOT_FOUND
    remark = "FOUND" if popped.count else "NO_MESSAGE_IN_QUEUE"
    _count(parts, wanted, popped, has_taken=False)
    fields = headers.encode(reply)
    return commands.reply(request, code, remark, fields, b"".join(popped.data))


def polling_info(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the number of a group's held pops at a queue."""
    header = headers.decode(PollingInfoHeader, request.ext_fields)
    check_broker(parts, "peeking message is")
    _check_queue(parts, header, channel.address)
    waiting = parts.pops.held.held_at(header.topic, max(header.queue_id, ANY_QUEUE))
    count = sum(
        held.wanted.group == header.consumer_group and not held.is_question for held in waiting
    )
    return _answer(request, PollingInfoReplyHeader(polling_num=count))


def retry_held(parts: Parts, held: HeldPop, is_last: bool) -> Command | None:
    """Return the reply to a held pop; None if there is none yet. Raises ``RequestRefused``."""
    wanted = held.wanted
    if parts.access is not None:
        parts.access.recheck(held.grant)
    check_broker(parts, "pop message is")
    address = held.channel.address
    _check_group(parts, wanted.topic, wanted.group, wanted.queue_id, address)
    if held.is_question:
        has_messages = parts.pops.has_messages(wanted, parts.clock.now_ms())
        if not has_messages and not is_last:
            return None
        return _answer(held.request, NotificationReplyHeader(has_msg=has_messages))
    popped = pop(parts, wanted)
    if not _has_result(popped) and not is_last:
        return None
    return _reply(parts, held.request, wanted, popped)


def pop(parts: Parts, wanted: PopParameters) -> Popped:
    """Pop messages; the caller must send the result.

    Raises:
        RequestRefused: No message was popped, as a checkpoint cannot be stored.
    """
    if len(parts.resets):
        parts.resets.discard(wanted.topic, wanted.group, wanted.queue_id)
    popped = parts.pops.pop(wanted, parts.clock.now_ms())
    if not popped.count and popped.refusal is not None:
        status, reason = popped.refusal.status.name, popped.refusal.reason
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no checkpoint: {status}: {reason}")
    return popped


def _grant(parts: Parts, envelope: Command) -> Grant | None:
    return None if parts.access is None else parts.access.grant(envelope)


def _has_result(popped: Popped) -> bool:
    """Return True if the pop has a result now: messages, or skipped ones with others after them."""
    return popped.count > 0 or (popped.has_skipped and popped.rest > 0)


def check_broker(parts: Parts, what: str) -> None:
    """Check that this broker serves pops. Raises ``RequestRefused``."""
    if parts.identity.is_stopping:  # as with pulls: consumers retry within seconds
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping")
    if not parts.identity.is_master:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, "a slave has no checkpoints: pop from its master"
        )
    if not parts.identity.is_readable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the broker[{parts.settings.broker.broker_ip1}] {what} forbidden",
        )


def _check_queue(parts: Parts, header: _QueueHeader, address: str) -> None:
    _check_group(parts, header.topic, header.consumer_group, header.queue_id, address)


def _check_group(parts: Parts, topic: str, group: str, queue_id: int, address: str) -> None:
    topic_config = parts.topics.readable(topic, "peeking")  # as in Java, also of pops
    if queue_id >= topic_config.read_queue_count:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic:[{topic}] "
            f"topicConfig.readQueueNums:[{topic_config.read_queue_count}] consumer:[{group}]",
        )
    groups = parts.subscription_groups
    groups.check_consuming(group, parts.clock.now_ms(), address)
    parts.commits.check_reading(topic_config, group, queue_id)
    if groups.is_forbidden(group, topic):  # Java refuses only pulls, and lets the group pop
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{group}] is forbidden for topic[{topic}]",
        )


def _selection(parts: Parts, expression_type: str | None, expression: str | None) -> Selection:
    if not expression or selection.is_tag_type(expression_type):
        return selection.of_tags(expression)
    return parts.filters.of_expression(expression_type, expression)


def send_plain(
    parts: Parts, channel: Channel, opaque: int, wanted: PopParameters, popped: Popped
) -> None:
    """Send what ``_reply`` returns, for a plain request with messages."""
    _count(parts, wanted, popped, has_taken=True)
    body = b"".join(popped.data)
    head = pop_reply.found_head(
        opaque,
        popped.pop_ms,
        wanted.invisible_ms,
        popped.revive_queue_id,
        popped.rest,
        ";".join(popped.start_infos),
        ";".join(popped.message_infos),
        len(body),
    )
    channel.write(head)
    channel.write(body)


def _reply(
    parts: Parts,
    request: Command,
    wanted: PopParameters,
    popped: Popped,
    empty: ResponseCode = ResponseCode.POLLING_TIMEOUT,
) -> Command:
    _count(parts, wanted, popped, has_taken=True)
    header = PopMessageReplyHeader(
        pop_time=popped.pop_ms,
        invisible_time=wanted.invisible_ms,
        revive_qid=popped.revive_queue_id,
        rest_num=popped.rest,
        start_offset_info=";".join(popped.start_infos),
        msg_offset_info=";".join(popped.message_infos),
        order_count_info=";".join(popped.order_infos) if wanted.is_ordered else None,
    )
    return commands.reply(
        request,
        ResponseCode.SUCCESS if popped.count else empty,
        pop_reply.FOUND if popped.count else "NO_MESSAGE_IN_QUEUE",
        headers.encode(header),
        b"".join(popped.data),
    )


def _count(parts: Parts, wanted: PopParameters, popped: Popped, *, has_taken: bool) -> None:
    stats, group = parts.deliveries.stats, wanted.group
    for topic, queue_id, result in popped.results:
        if isinstance(result, PopBatch) or (has_taken and not wanted.is_ordered):
            stats.popped(topic, group, queue_id, result.message_count, len(result.data))
        else:
            stats.pulled(topic, group, result, queue_id=queue_id, latency_ms=0)


def _answer(request: Command, header: Header) -> Command:
    return commands.reply(request, ResponseCode.SUCCESS, None, headers.encode(header))
