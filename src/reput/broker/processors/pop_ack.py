"""200051, 200151, 200053, 200056: what becomes of messages that were popped.

The order of the checks and the codes are Java's ``AckMessageProcessor`` and
``ChangeInvisibleTimeProcessor`` of 5.5.0.
"""

from typing import TYPE_CHECKING, NamedTuple

from reput.broker.pop_checkpoints import Key
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

if TYPE_CHECKING:
    from reput.broker.server import Broker


def ack_message(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Take note that a message was consumed. One that nobody holds any more is left as it is."""
    header = headers.decode(AckMessageHeader, request.ext_fields)
    low, high = _check(broker, header.topic, header.queue_id, header.consumer_group)
    if not low <= header.offset <= high:
        raise RequestRefused(
            ResponseCode.NO_MESSAGE,
            f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset}, "
            f"store:{low}~{high}",
        )
    handle = pop_codec.parse_handle(header.extra_info, header.queue_id, header.offset)
    if handle.is_ordered:
        _ack_in_order(
            broker, header.topic, header.consumer_group, header.queue_id, header.offset,
            handle.pop_ms,
        )  # fmt: skip
    else:
        key = _key(header.topic, header.consumer_group, handle)
        broker.pops.revive.checkpoints.acknowledge(key, header.offset)
    broker.stats.acknowledged(header.topic, header.consumer_group)
    return commands.reply(request)


def batch_ack(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Take note that many messages were consumed."""
    for one in named(request.body):
        take(broker, one)
    return commands.reply(request)


class Named(NamedTuple):
    """Messages of one checkpoint that were consumed."""

    ack: BatchAck
    topic: str
    """Where they are: of a retry topic, that."""
    distances: int
    """Bit i: the message ``i`` behind the start."""


def named(body: bytes) -> list[Named]:
    """Return which messages the body of a batch of acks names. Nothing is done if one is wrong.

    Raises:
        RequestRefused: It names none.
        InvalidBody: It cannot be read.
    """
    acks = pop_codec.decode_batch_ack(body).acks if body else []
    if not acks:
        raise RequestRefused(ResponseCode.NO_MESSAGE, "the body names no messages")
    return [
        Named(one, pop_codec.topic_of(one.kind, one.topic, one.group), one.distances)
        for one in acks
    ]


def take(broker: "Broker", named: Named) -> None:
    """Take note that messages were consumed. Raises ``RequestRefused`` for some of an order."""
    one, topic, distances = named
    broker.stats.acknowledged(topic, one.group, distances.bit_count())
    if one.revive_queue_id == ORDERED_REVIVE_QUEUE:
        for distance in range(distances.bit_length()):
            if distances >> distance & 1:
                queue_offset = one.start_offset + distance
                _ack_in_order(broker, topic, one.group, one.queue_id, queue_offset, one.pop_ms)
        return
    key = Key(topic, one.group, one.queue_id, one.start_offset, one.pop_ms)
    broker.pops.revive.checkpoints.acknowledge(key, one.start_offset, distances)


def change_invisible_time(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Let a message be seen by others earlier or later."""
    header = headers.decode(ChangeInvisibleTimeHeader, request.ext_fields)
    low, high = _check(broker, header.topic, header.queue_id, header.consumer_group)
    if not low <= header.offset < high:
        raise RequestRefused(
            ResponseCode.NO_MESSAGE,
            f"message {header.offset} of queue {header.queue_id} of {header.topic} is not there: "
            f"they are {low} to {high - 1}",
        )
    if header.invisible_time < 0:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime is {header.invisible_time}; allowed: at least 0 ms",
        )
    handle = pop_codec.parse_handle(header.extra_info, header.queue_id, header.offset)
    if handle.is_ordered:
        reply = _postpone_in_order(broker, header, handle)
    else:
        reply = _hold_anew(broker, header, handle)
    return commands.reply(request, ResponseCode.SUCCESS, None, headers.encode(reply))


def roll_back(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Move what a key-value store of checkpoints holds to the revive topic: there is none."""
    return commands.reply(request)


def _hold_anew(
    broker: "Broker", header: ChangeInvisibleTimeHeader, handle: Handle
) -> ChangeInvisibleTimeReplyHeader:
    revive = broker.pops.revive
    old = _key(header.topic, header.consumer_group, handle)
    if not revive.checkpoints.holds(old, header.offset):
        # Java holds it once more, and it would be delivered twice.
        raise RequestRefused(
            ResponseCode.NO_MESSAGE,
            f"nobody holds message {header.offset} of queue {header.queue_id} of {header.topic} "
            f"by {header.extra_info!r}: it was acknowledged, or its time is over",
        )
    now_ms = broker.clock.now_ms()
    pop_ms = now_ms
    new = Key(header.topic, header.consumer_group, header.queue_id, header.offset, pop_ms)
    while new in revive.checkpoints:  # within the same millisecond
        pop_ms += 1
        new = new._replace(pop_ms=pop_ms)
    invisible_ms = max(0, now_ms + header.invisible_time - pop_ms)
    put = revive.hold(
        new,
        [header.offset],
        invisible_ms,
        handle.revive_queue_id % broker.config.revive_queue_num,
        now_ms,
        is_suspended=bool(header.suspend),
    )
    if not put.status.is_stored:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"no checkpoint: {put.status.name}: {put.reason}"
        )
    broker.stats.checkpointed(header.topic, header.consumer_group)
    revive.checkpoints.acknowledge(old, header.offset)
    broker.stats.acknowledged(header.topic, header.consumer_group)
    return ChangeInvisibleTimeReplyHeader(
        pop_time=pop_ms, invisible_time=invisible_ms, revive_qid=handle.revive_queue_id
    )


def _postpone_in_order(
    broker: "Broker", header: ChangeInvisibleTimeHeader, handle: Handle
) -> ChangeInvisibleTimeReplyHeader:
    visible_ms = broker.clock.now_ms() + header.invisible_time
    broker.pops.orders.postpone(
        header.topic,
        header.consumer_group,
        header.queue_id,
        header.offset,
        handle.pop_ms,
        visible_ms,
    )
    broker.wake_pops(header.topic, header.queue_id)
    return ChangeInvisibleTimeReplyHeader(
        pop_time=handle.pop_ms,
        invisible_time=visible_ms - handle.pop_ms,
        revive_qid=handle.revive_queue_id,
    )


def _ack_in_order(
    broker: "Broker", topic: str, group: str, queue_id: int, queue_offset: int, pop_ms: int
) -> None:
    pops = broker.pops
    known = pops.offsets.find(topic, group, queue_id)
    if known is not None and queue_offset < known:
        return
    try:
        behind = pops.orders.acknowledge(topic, group, queue_id, queue_offset, pop_ms)
    except ValueError as error:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{known}, "
            f"commit:{queue_offset}: {error}",
        ) from error
    if behind is not None:
        pops.offsets.set(topic, group, queue_id, behind)
        broker.wake_pops(topic, queue_id)


def _check(broker: "Broker", topic: str, queue_id: int, group: str) -> tuple[int, int]:
    """Return where the queue begins and ends. Raises ``RequestRefused``."""
    if not broker.is_master:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, "a slave keeps no checkpoints: tell its master"
        )
    known = broker.topics.get(topic)
    if known is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
        )
    if not 0 <= queue_id < known.read_queue_count:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"queueId[{queue_id}] is illegal, topic:[{topic}] "
            f"topicConfig.readQueueNums:[{known.read_queue_count}] consumer:[{group}]",
        )
    return broker.store.min_offset(topic, queue_id), broker.store.max_offset(topic, queue_id)


def _key(topic: str, group: str, handle: Handle) -> Key:
    return Key(topic, group, handle.queue_id, handle.start_offset, handle.pop_ms)
