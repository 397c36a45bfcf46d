"""Codes 200051, 200151, 200053, 200056: acks and new invisible times of popped messages.

The order of the checks and the codes are those of Java's ``AckMessageProcessor`` and
``ChangeInvisibleTimeProcessor`` of 5.5.0.
"""

from collections.abc import Iterable
from typing import NamedTuple

from reput.broker import limits
from reput.broker.parts import Parts
from reput.broker.pop.checkpoints import Checkpoint, Key
from reput.broker.processors import lite
from reput.errors import RequestRefused
from reput.format import command as commands, headers, pop_codec
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeReplyHeader,
)
from reput.format.pop_codec import ORDERED_REVIVE_QUEUE, BatchAck, Handle
from reput.remoting.channel import Channel
from reput.remoting.long_replies import chunks
from reput.remoting.server import LongReply
from reput.store.writing.incoming import PutResult

RENEWED_TOGETHER_MS = 1_000
"""Difference between new invisible times below which the later one is not stored, in ms."""


def ack_message(parts: Parts, channel: Channel, request: Command) -> Command:
    """Record that a message was consumed. An ack of a message that is not held is ignored."""
    header = headers.decode(AckMessageHeader, request.ext_fields)
    if header.lite_topic:
        _check_master(parts)
        handle = pop_codec.parse_handle(header.extra_info, header.queue_id, header.offset)
        lite.acknowledge(parts, header, handle)
        return commands.reply(request)
    low, high = _check(parts, header.topic, header.queue_id, header.consumer_group)
    if not low <= header.offset <= high:
        raise RequestRefused(
            ResponseCode.NO_MESSAGE,
            f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset}, "
            f"store:{low}~{high}",
        )
    handle = pop_codec.parse_handle(header.extra_info, header.queue_id, header.offset)
    if handle.is_ordered:
        _ack_in_order(
            parts, header.topic, header.consumer_group, header.queue_id, header.offset,
            handle.pop_ms,
        )  # fmt: skip
    else:
        key = _key(header.topic, header.consumer_group, handle)
        if not parts.pops.revive.checkpoints.acknowledge(key, header.offset):
            _park_ack(parts, key, [header.offset], handle.revive_queue_id, handle.invisible_ms)
    _count(parts, header.topic, header.consumer_group, 1)
    return commands.reply(request)


def batch_ack(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Record that several messages were consumed."""
    acks: list[AckedMessages] = []
    for chunk in chunks(_acks(request.body)):
        acks += _acked_messages(chunk)
        yield
    for part in chunks(acks):
        for ack in part:
            acknowledge(parts, ack)
        yield
    return commands.reply(request)


class AckedMessages(NamedTuple):
    """Acknowledged messages of one checkpoint."""

    ack: BatchAck
    topic: str
    """Topic of the queue, which may be a retry topic."""
    distances: int
    """Bit i is set for the message at ``start_offset + i``."""


def decode_batch(body: bytes) -> list[AckedMessages]:
    """Decode a batch of acks. If one is invalid, the whole batch is refused.

    Raises:
        RequestRefused: It is empty, or exceeds a limit.
        InvalidBody: It cannot be decoded.
    """
    return _acked_messages(_acks(body))


def _acked_messages(acks: Iterable[BatchAck]) -> list[AckedMessages]:
    return [
        AckedMessages(ack, pop_codec.topic_of(ack.kind, ack.topic, ack.group), ack.distances)
        for ack in acks
    ]


def _acks(body: bytes) -> list[BatchAck]:
    """Return the entries of a batch of acks. Raises the same errors as ``decode_batch``."""
    limits.ACK_BODY_BYTES.check(len(body))
    acks = pop_codec.decode_batch_ack(body).acks if body else []
    if not acks:
        raise RequestRefused(ResponseCode.NO_MESSAGE, "the body names no messages")
    return acks


def acknowledge(parts: Parts, acked: AckedMessages) -> None:
    """Record that messages were consumed. Raises ``RequestRefused`` for some ordered ones."""
    ack, topic, distances = acked
    if ack.revive_queue_id == ORDERED_REVIVE_QUEUE:
        _count(parts, topic, ack.group, distances.bit_count())
        config = parts.topics.get(topic)
        if config is None or not 0 <= ack.queue_id < config.read_queue_count:
            return
        low = parts.store.min_offset(topic, ack.queue_id)
        high = parts.store.max_offset(topic, ack.queue_id)
        for distance in pop_codec.bit_numbers(distances):
            queue_offset = ack.start_offset + distance
            if low <= queue_offset <= high:  # as in Java, other offsets are ignored
                _ack_in_order(parts, topic, ack.group, ack.queue_id, queue_offset, ack.pop_ms)
        return
    key = Key(topic, ack.group, ack.queue_id, ack.start_offset, ack.pop_ms)
    if parts.pops.revive.checkpoints.acknowledge(key, ack.start_offset, distances):
        # Popped messages always have a topic and a group.
        parts.deliveries.stats.acknowledged(topic, ack.group, distances.bit_count())
    else:
        offsets = [ack.start_offset + number for number in pop_codec.bit_numbers(distances)]
        _park_ack(parts, key, offsets, ack.revive_queue_id, ack.invisible_ms)
        _count(parts, topic, ack.group, distances.bit_count())


def _park_ack(
    parts: Parts, key: Key, offsets: list[int], revive_queue_id: int, invisible_ms: int
) -> bool:
    """Put an ack for a checkpoint that may still be in the timer; return whether it may be there.

    Raises:
        RequestRefused: It may be there, and the ack cannot be put.
    """
    revive, now_ms = parts.pops.revive, parts.clock.now_ms()
    due_ms = key.pop_ms + invisible_ms
    # The names are those of a client, and nothing is stored for unknown ones.
    has_group = parts.subscription_groups.get(key.group) is not None
    if not has_group or not revive.may_come(key, due_ms, now_ms):
        return False
    revive_queue_id %= parts.settings.broker.revive_queue_num
    put = revive.park_ack(key, offsets, due_ms, revive_queue_id, now_ms)
    _check_put(put, "no record of the ack")
    return True


def change_invisible_time(parts: Parts, channel: Channel, request: Command) -> Command:
    """Change the time at which a message becomes visible to the group again."""
    header = headers.decode(ChangeInvisibleTimeHeader, request.ext_fields)
    if header.lite_topic:
        _check_master(parts)
    else:
        low, high = _check(parts, header.topic, header.queue_id, header.consumer_group)
        if not low <= header.offset < high:
            raise RequestRefused(
                ResponseCode.NO_MESSAGE,
                f"message {header.offset} of queue {header.queue_id} of {header.topic} does not "
                f"exist: the queue has {low} to {high - 1}",
            )
    if header.invisible_time < 0:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime is {header.invisible_time}; allowed: at least 0 ms",
        )
    limits.POP_INVISIBLE_MS.check(header.invisible_time)
    handle = pop_codec.parse_handle(header.extra_info, header.queue_id, header.offset)
    if header.lite_topic:
        reply = lite.change_invisible_time(parts, header, handle)
    elif handle.is_ordered:
        reply = _postpone_in_order(parts, header, handle)
    else:
        reply = _replace_checkpoint(parts, header, handle)
    return commands.reply(request, ResponseCode.SUCCESS, None, headers.encode(reply))


def roll_back(parts: Parts, channel: Channel, request: Command) -> Command:
    """Do nothing: Java moves checkpoints from a key-value store, which this broker lacks."""
    return commands.reply(request)


def _replace_checkpoint(
    parts: Parts, header: ChangeInvisibleTimeHeader, handle: Handle
) -> ChangeInvisibleTimeReplyHeader:
    revive = parts.pops.revive
    old = _key(header.topic, header.consumer_group, handle)
    held = revive.checkpoints.holding(old, header.offset)
    now_ms = parts.clock.now_ms()
    if held is not None and header.keeps_handle:
        return _renew(parts, header, handle, held)
    may_come = revive.may_come(old, old.pop_ms + handle.invisible_ms, now_ms)
    if held is None and (header.keeps_handle or not may_come):
        # Java adds a second checkpoint, and the message would be delivered twice.
        raise _not_held(header)
    pop_ms = now_ms
    new = Key(header.topic, header.consumer_group, header.queue_id, header.offset, pop_ms)
    while new in revive.checkpoints:  # an equal key within the same millisecond
        pop_ms += 1
        new = new._replace(pop_ms=pop_ms)
    invisible_ms = max(0, now_ms + header.invisible_time - pop_ms)
    put = revive.hold(
        new,
        [header.offset],
        invisible_ms,
        handle.revive_queue_id % parts.settings.broker.revive_queue_num,
        now_ms,
        is_suspended=bool(header.suspend),
    )
    _check_put(put)
    parts.deliveries.stats.checkpointed(header.topic, header.consumer_group)
    if not revive.checkpoints.acknowledge(old, header.offset):
        _park_ack(parts, old, [header.offset], handle.revive_queue_id, handle.invisible_ms)
    _count(parts, header.topic, header.consumer_group, 1)
    return ChangeInvisibleTimeReplyHeader(
        pop_time=pop_ms, invisible_time=invisible_ms, revive_qid=handle.revive_queue_id
    )


def _renew(
    parts: Parts, header: ChangeInvisibleTimeHeader, handle: Handle, held: Checkpoint
) -> ChangeInvisibleTimeReplyHeader:
    """Postpone a checkpoint: its handles stay valid, after a restart too."""
    now_ms = parts.clock.now_ms()
    key, due_ms = held.key, now_ms + header.invisible_time
    # Messages that were popped together are renewed together, each by a request.
    if due_ms - held.due_ms >= RENEWED_TOGETHER_MS:
        left = [held.queue_offsets[number] for number in held.left]
        revive = parts.pops.revive
        put = revive.hold(key, left, due_ms - key.pop_ms, held.revive_queue_id, now_ms)
        _check_put(put)
    else:
        due_ms = held.due_ms
    return ChangeInvisibleTimeReplyHeader(
        pop_time=key.pop_ms, invisible_time=due_ms - key.pop_ms, revive_qid=handle.revive_queue_id
    )


def _not_held(header: ChangeInvisibleTimeHeader) -> RequestRefused:
    return RequestRefused(
        ResponseCode.NO_MESSAGE,
        f"message {header.offset} of queue {header.queue_id} of {header.topic} is not held "
        f"under {header.extra_info!r}: it was acknowledged, or its time is over",
    )


def _check_put(put: PutResult, problem: str = "no checkpoint") -> None:
    if not put.status.is_stored:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"{problem}: {put.status.name}: {put.reason}"
        )


def _postpone_in_order(
    parts: Parts, header: ChangeInvisibleTimeHeader, handle: Handle
) -> ChangeInvisibleTimeReplyHeader:
    visible_ms = parts.clock.now_ms() + header.invisible_time
    is_held = parts.pops.orders.postpone(
        header.topic,
        header.consumer_group,
        header.queue_id,
        header.offset,
        handle.pop_ms,
        visible_ms,
        is_suspended=bool(header.suspend),
    )
    if header.keeps_handle and not is_held:
        raise _not_held(header)
    parts.pops.arrived(header.topic, header.queue_id)
    return ChangeInvisibleTimeReplyHeader(
        pop_time=handle.pop_ms,
        invisible_time=visible_ms - handle.pop_ms,
        revive_qid=handle.revive_queue_id,
    )


def _ack_in_order(
    parts: Parts, topic: str, group: str, queue_id: int, queue_offset: int, pop_ms: int
) -> None:
    pops = parts.pops
    settings = parts.topics.get(topic)
    is_queue = settings is not None and 0 <= queue_id < settings.read_queue_count
    if settings is None or not is_queue or parts.subscription_groups.get(group) is None:
        return  # a batch may contain any names: nothing is stored for unknown ones
    parts.commits.check_reading(settings, group, queue_id)
    consumer_offset = pops.offsets.find(topic, group, queue_id)
    if consumer_offset is not None and queue_offset < consumer_offset:
        return
    try:
        next_offset = pops.orders.acknowledge(topic, group, queue_id, queue_offset, pop_ms)
    except ValueError as error:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{consumer_offset}, "
            f"commit:{queue_offset}: {error}",
        ) from error
    if next_offset is not None:
        pops.offsets.set(topic, group, queue_id, next_offset)
        parts.pops.arrived(topic, queue_id)


def _count(parts: Parts, topic: str, group: str, count: int) -> None:
    """Count acknowledged messages of an existing topic and group: names come from clients."""
    if parts.topics.get(topic) is not None and parts.subscription_groups.get(group) is not None:
        parts.deliveries.stats.acknowledged(topic, group, count)


def _check(parts: Parts, topic: str, queue_id: int, group: str) -> tuple[int, int]:
    """Return the first offset of a queue and the one after its end. Raises ``RequestRefused``."""
    _check_master(parts)
    parts.subscription_groups.check_name(group)
    config = parts.topics.get(topic)
    if config is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
        )
    if not 0 <= queue_id < config.read_queue_count:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"queueId[{queue_id}] is illegal, topic:[{topic}] "
            f"topicConfig.readQueueNums:[{config.read_queue_count}] consumer:[{group}]",
        )
    return parts.store.min_offset(topic, queue_id), parts.store.max_offset(topic, queue_id)


def _check_master(parts: Parts) -> None:
    if not parts.identity.is_master:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, "a slave has no checkpoints: send acks to its master"
        )


def _key(topic: str, group: str, handle: Handle) -> Key:
    return Key(topic, group, handle.queue_id, handle.start_offset, handle.pop_ms)
