"""14, 15, 29 to 32, 308: where groups are, where queues begin and end."""

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
    """Return which message of a queue a group reads next."""
    header = headers.decode(QueryConsumerOffsetHeader, request.ext_fields)
    topic, queue_id = header.topic, header.queue_id
    known = parts.deliveries.consumer_offsets.get(topic, header.consumer_group, queue_id)
    if known is not None:
        return _offset(request, known)
    # A new group on a young queue begins at its beginning, whatever the client would choose.
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
    """Take note of which message of a queue a group reads next.

    4.9 takes those of topics that were deleted, whose offsets so come back
    (known-bugs.md#deleted-topics); 5.x not.
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
    """Return how far the last of a topic's groups is in each queue.

    A group whose next message has expired does not count there. If it is the group to compare with,
    and others count, the answer is the largest number there is.

    As Java 5.5, but for two things. Java forgets for good where the groups are that are to be left
    out; here asking changes nothing. Java fails if the group to compare with is in a queue in which
    none counts; here that queue is left out. 4.9 compares with nothing: it looks for a group of the
    topic's name.
    """
    header = headers.decode(QueryCorrectionOffsetHeader, request.ext_fields)
    topic = header.topic
    left_out = set((header.filter_groups or "").split(","))
    groups = []
    for chunk in chunks(parts.deliveries.consumer_offsets.readers(), LIGHT_CHUNK):
        groups += [group for one, group in chunk if one == topic and group not in left_out]
        yield
    found: dict[int, int] = {}
    for group in groups:
        for consumer_offsets in chunks(
            parts.deliveries.consumer_offsets.of(topic, group).items(), 4 * CHUNK
        ):
            for queue_id, consumer_offset in consumer_offsets:
                if consumer_offset >= parts.store.min_offset(topic, queue_id):
                    found[queue_id] = min(found.get(queue_id, consumer_offset), consumer_offset)
            yield
    if header.compare_group in groups:
        compared = parts.deliveries.consumer_offsets.of(topic, header.compare_group)
        for queue_id, compared_offset in compared.items():
            if found.get(queue_id, 0) > compared_offset:
                found[queue_id] = JAVA_LONG_MAX
    body = bodies.encode(CorrectionOffsets(correction_offsets=found))
    return commands.reply(request, body=body)


def search_offset(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the queue offset that a time names."""
    header = headers.decode(SearchOffsetHeader, request.ext_fields)
    boundary = Boundary.UPPER if header.boundary_type == "UPPER" else Boundary.LOWER
    found = parts.store.offset_by_time(header.topic, header.queue_id, header.timestamp, boundary)
    return _offset(request, found)


def max_offset(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the queue offset behind the newest message."""
    header = headers.decode(QueueHeader, request.ext_fields)
    return _offset(request, parts.store.max_offset(header.topic, header.queue_id))


def min_offset(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the queue offset of the oldest message."""
    header = headers.decode(QueueHeader, request.ext_fields)
    return _offset(request, parts.store.min_offset(header.topic, header.queue_id))


def earliest_store_time(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return when the oldest message of a queue was stored; -1 if there is none."""
    header = headers.decode(QueueHeader, request.ext_fields)
    found = parts.store.earliest_message_time(header.topic, header.queue_id)
    answer = TimestampReplyHeader(timestamp=-1 if found is None else found)
    return commands.reply(request, ext_fields=headers.encode(answer))


def _offset(request: Command, value: int) -> Command:
    return commands.reply(request, ext_fields=headers.encode(OffsetReplyHeader(offset=value)))
