"""Codes 14, 15, 29 to 32, 308: consumer offsets, and the bounds of queues."""

from reput.broker.parts import Parts
from reput.config import JAVA_LONG_MAX
from reput.errors import RequestRefused
from reput.format import bodies, command as commands, headers
from reput.format.bodies import CorrectionOffsets
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    OffsetReplyHeader,
    QueryConsumerOffsetHeader,
    QueryCorrectionOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimestampReplyHeader,
    UpdateConsumerOffsetHeader,
)
from reput.remoting.channel import Channel
from reput.remoting.long_replies import CHUNK, LIGHT_CHUNK, chunks
from reput.remoting.server import LongReply
from reput.store.reader import Boundary


def query_consumer_offset(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return a group's consumer offset in a queue."""
    header = headers.decode(QueryConsumerOffsetHeader, request.ext_fields)
    topic, queue_id = header.topic, header.queue_id
    consumer_offset = parts.deliveries.consumer_offsets.get(topic, header.consumer_group, queue_id)
    if consumer_offset is not None:
        return _offset(request, consumer_offset)
    # A new group starts at the beginning of a young queue, regardless of the client's choice.
    is_young = parts.store.min_offset(topic, queue_id) <= 0 and not parts.store.is_on_disk(
        topic, queue_id
    )
    if is_young and header.set_zero_if_not_found is not False:
        return _offset(request, 0)
    raise RequestRefused(
        ResponseCode.QUERY_NOT_FOUND,
        "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
    )


def update_consumer_offset(parts: Parts, channel: Channel, request: Command) -> Command:
    """Set a group's consumer offset in a queue.

    4.9 accepts offsets of deleted topics, which so reappear (known-bugs.md#deleted-topics); 5.x
    refuses them.
    """
    header = headers.decode(UpdateConsumerOffsetHeader, request.ext_fields)
    topic = parts.topics.get(header.topic)
    if topic is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
    if parts.resets.is_waiting(header.topic, header.consumer_group, header.queue_id):
        return commands.reply(request, remark="Offset has been previously reset")
    parts.commits.commit(
        topic, header.consumer_group, header.queue_id, header.commit_offset, channel.address
    )
    return commands.reply(request)


def correction_offsets(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the lowest consumer offset of a topic's groups in each queue.

    Groups whose next message has expired are ignored. If the group to compare with is among them
    and others are not, the result is the largest number there is.

    As Java 5.5, with two differences. Java permanently deletes the offsets of the groups to leave
    out; here a query changes nothing. Java fails if the group to compare with is in a queue without
    other groups; here that queue is left out. 4.9 does not compare: it looks for a group with the
    topic's name.
    """
    header = headers.decode(QueryCorrectionOffsetHeader, request.ext_fields)
    topic = header.topic
    left_out = set((header.filter_groups or "").split(","))
    groups = []
    for chunk in chunks(parts.deliveries.consumer_offsets.readers(), LIGHT_CHUNK):
        groups += [
            group for topic_name, group in chunk if topic_name == topic and group not in left_out
        ]
        yield
    lowest: dict[int, int] = {}
    for group in groups:
        for consumer_offsets in chunks(
            parts.deliveries.consumer_offsets.of(topic, group).items(), 4 * CHUNK
        ):
            for queue_id, consumer_offset in consumer_offsets:
                if consumer_offset >= parts.store.min_offset(topic, queue_id):
                    lowest[queue_id] = min(lowest.get(queue_id, consumer_offset), consumer_offset)
            yield
    if header.compare_group is not None and header.compare_group in groups:
        compared = parts.deliveries.consumer_offsets.of(topic, header.compare_group)
        for queue_id, compared_offset in compared.items():
            if lowest.get(queue_id, 0) > compared_offset:
                lowest[queue_id] = JAVA_LONG_MAX
    body = bodies.encode(CorrectionOffsets(correction_offsets=lowest))
    return commands.reply(request, body=body)


def search_offset(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the queue offset at a timestamp."""
    header = headers.decode(SearchOffsetHeader, request.ext_fields)
    boundary = Boundary.UPPER if header.boundary_type == "UPPER" else Boundary.LOWER
    queue_offset = parts.store.offset_by_time(
        header.topic, header.queue_id, header.timestamp, boundary
    )
    return _offset(request, queue_offset)


def max_offset(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the queue offset after the newest message."""
    header = headers.decode(QueueHeader, request.ext_fields)
    return _offset(request, parts.store.max_offset(header.topic, header.queue_id))


def min_offset(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the queue offset of the oldest message."""
    header = headers.decode(QueueHeader, request.ext_fields)
    return _offset(request, parts.store.min_offset(header.topic, header.queue_id))


def earliest_store_time(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the store time of the oldest message of a queue; -1 if there is none."""
    header = headers.decode(QueueHeader, request.ext_fields)
    stored_ms = parts.store.earliest_message_time(header.topic, header.queue_id)
    fields = TimestampReplyHeader(timestamp=-1 if stored_ms is None else stored_ms)
    return commands.reply(request, ext_fields=headers.encode(fields))


def _offset(request: Command, value: int) -> Command:
    return commands.reply(request, ext_fields=headers.encode(OffsetReplyHeader(offset=value)))
