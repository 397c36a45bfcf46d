"""Codes 14, 15, 29 to 32, 43, 45, 308, 314: consumer offsets, positions, and bounds of queues."""

import logging

from reput.broker.parts import Parts
from reput.broker.topic.topics import data_version
from reput.config import JAVA_LONG_MAX
from reput.errors import RequestRefused
from reput.format import bodies, command as commands, headers
from reput.format.bodies import ConsumerOffsetTable, CorrectionOffsets, OffsetTable
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    CloneGroupOffsetHeader,
    OffsetReplyHeader,
    QueryConsumerOffsetHeader,
    QueryCorrectionOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimestampReplyHeader,
    UpdateConsumerOffsetHeader,
)
from reput.remoting.channel import Channel
from reput.remoting.long_replies import CHUNK, LIGHT_CHUNK, LongBody, chunks, sort
from reput.remoting.server import LongReply
from reput.remoting.time_slices import Steps
from reput.store.reader import Boundary

_COPIED_AT_ONCE = 250
"""Offsets that a clone copies between two yields."""

_log = logging.getLogger(__name__)


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


def clone_offsets(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Copy the consumer offsets of a group to another group."""
    header = headers.decode(CloneGroupOffsetHeader, request.ext_fields)
    group, other = header.src_group, header.dest_group
    parts.commits.check_group(other)
    topics = [header.topic] if header.topic else (yield from topics_of_group(parts, group))
    source = parts.groups.consumer(group)
    work = 0
    for topic in topics:
        work += 1
        if header.offline or source is None or topic in source.subscriptions:
            for chunk in chunks(
                parts.deliveries.consumer_offsets.of(topic, group).items(), _COPIED_AT_ONCE
            ):
                if parts.topics.get(topic) is None:
                    break
                offsets = parts.deliveries.consumer_offsets
                new = (offsets.get(topic, other, queue_id) is None for queue_id, _ in chunk)
                parts.commits.check_room(sum(new))
                for queue_id, consumer_offset in chunk:
                    parts.deliveries.consumer_offsets.put(topic, other, queue_id, consumer_offset)
                work += len(chunk)
                if work >= _COPIED_AT_ONCE:
                    work = 0
                    yield
        elif work >= _COPIED_AT_ONCE:
            work = 0
            yield
    _log.info("offsets of group %r set to those of %r by %s: %d topics", other, group, channel.peer,
              len(topics))  # fmt: skip
    return commands.reply(request)


def topics_of_group(parts: Parts, group: str) -> Steps[list[str]]:
    """Return the topics in which a group has offsets."""
    topics: set[str] = set()
    for chunk in chunks(parts.deliveries.consumer_offsets.readers(), LIGHT_CHUNK):
        topics.update(topic for topic, reader in chunk if reader == group)
        yield
    return (yield from sort(topics))


def all_consumer_offsets(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the consumer offsets of all groups in all queues."""
    body = yield from parts.listings.ask("consumer offsets", lambda: _all_offsets(parts))
    return commands.reply(request, body=body)


def _all_offsets(parts: Parts) -> Steps[bytes]:
    # Before the offsets: a later change raises it again, so a slave that has it lacks nothing.
    version = parts.deliveries.consumer_offsets.current_version(parts.clock.now_ms())
    table = LongBody("offsets of all groups; ask for single groups with request 208")
    queue_count = 0
    for topic, group in list(parts.deliveries.consumer_offsets.readers()):
        queues = parts.deliveries.consumer_offsets.of(topic, group)
        if not queues:
            continue  # deleted in between
        table.add_pair(f"{topic}@{group}", queues)
        queue_count += 10 + len(queues)  # a group costs as much as some of its queues
        if queue_count >= LIGHT_CHUNK:
            queue_count = 0
            yield
    template = ConsumerOffsetTable(data_version=data_version(version), offset_table={})
    return table.encode_in(template, "offset_table")


def all_delay_offsets(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the position of each delay level."""
    version = parts.delayed.table.current_version(parts.clock.now_ms())
    table = OffsetTable(data_version=data_version(version), offset_table=parts.delayed.table.all())
    return commands.reply(request, body=bodies.encode(table))


def _offset(request: Command, value: int) -> Command:
    return commands.reply(request, ext_fields=headers.encode(OffsetReplyHeader(offset=value)))
