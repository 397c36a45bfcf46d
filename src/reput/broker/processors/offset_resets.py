"""Code 222: consumer offsets that an operator sets.

Source: rocketmq 4.9.7 and 5.5.0 ``AdminBrokerProcessor``, ``Broker2Client``.
"""

import logging
from itertools import islice

from reput.broker.group.groups import ConsumerGroup
from reput.broker.parts import Parts
from reput.errors import V5_0_0, RequestRefused
from reput.format import command as commands, headers
from reput.format.bodies import (
    MessageQueue,
    QueueOffset,
    QueueOffsets,
    ResetOffsetList,
    ResetOffsets,
)
from reput.format.codes import LanguageCode, RequestCode, ResponseCode
from reput.format.command import IS_ONEWAY, Command
from reput.format.headers import ResetOffsetHeader
from reput.remoting.channel import Channel
from reput.remoting.long_replies import CHUNK, LongBody, chunks
from reput.remoting.server import LongReply
from reput.remoting.time_slices import Steps

LATEST = -1
"""Timestamp that means the end of each queue."""
ACTIVE = "CONSUME_ACTIVELY"
"""Type of consumers that pull for themselves, in heartbeats."""
_LOGGED_QUEUES = 100
"""Queues of one reset in a line of the log."""

_log = logging.getLogger(__name__)


def reset_offset(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Set the consumer offsets of a group in a topic.

    Tools of 4.9 send a timestamp, and the members are notified. Tools of 5.x may also send a queue,
    or -1 for all: then each member gets its new offset with its next pull, and none need be
    connected. Pops continue from the new offset in both cases: their members have no position.
    """
    header = headers.decode(ResetOffsetHeader, request.ext_fields)
    is_new = header.queue_id is not None or request.version >= V5_0_0
    if is_new and parts.settings.broker.use_server_side_reset_offset:
        return (yield from _reset_here(parts, channel, request, header))
    wanted = yield from _offsets_by_time(parts, header)
    group = parts.groups.consumer(header.group)
    if group is None:
        raise RequestRefused(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group} "
            f"Topic: {header.topic} Timestamp: {header.timestamp}",
        )
    body = yield from _encoded_offsets(parts, header.topic, wanted)
    list_body = yield from _encoded_list(parts, header.topic, wanted)
    # Java's lite pull consumers take a new offset from a pull only: they ignore the notice.
    at_next_pull = (
        group.consume_type == ACTIVE and parts.settings.broker.use_server_side_reset_offset
    )
    yield from _set_offsets(parts, header.topic, header.group, wanted, at_next_pull=at_next_pull)
    is_list = request.language == LanguageCode.CPP
    yield from _notify_offsets(group, header, body, list_body, is_list=is_list)
    _log.info(
        "offsets of %r in %r set by %s: %s",
        header.group, header.topic, channel.peer, _shortened(wanted),
    )  # fmt: skip
    return commands.reply(request, body=body)


def _reset_here(
    parts: Parts, channel: Channel, request: Command, header: ResetOffsetHeader
) -> Steps[Command]:
    """Set the offsets on this side; rocketmq 5.5 ``AdminBrokerProcessor.resetOffsetInner``."""
    topic, group = header.topic, header.group
    if not parts.identity.is_master:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
    config = parts.topics.get(topic)
    if config is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
    if parts.subscription_groups.get(group) is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist"
        )
    wanted = yield from _wanted_offsets(parts, header, config.read_queue_count)
    parts.commits.check_room(
        len(wanted) - parts.deliveries.consumer_offsets.queue_count(topic, group)
    )
    body = yield from _encoded_offsets(parts, topic, wanted)
    yield from _set_offsets(parts, topic, group, wanted, at_next_pull=True)
    _log.info("offsets of %r in %r set by %s: %s", group, topic, channel.peer, _shortened(wanted))
    return commands.reply(request, body=body)


def _set_offsets(
    parts: Parts, topic: str, group: str, wanted: dict[int, int], *, at_next_pull: bool
) -> Steps[None]:
    """Set consumer offsets, for pops and for members that join.

    Args:
        parts: The parts of the broker.
        topic: The topic.
        group: Consumer group.
        wanted: Queue id -> new offset.
        at_next_pull: True: members that pull get the new offsets with their next pull, and what
            they commit until then is ignored.

    Raises:
        LimitExceeded: There would be too many pending resets.
        RequestRefused: The topic was deleted meanwhile.
    """
    if at_next_pull:
        parts.resets.check_room(len(wanted))
    for chunk in chunks(wanted.items()):
        if parts.topics.get(topic) is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} was deleted")
        if at_next_pull:
            parts.pull_subscriptions.clear()  # its pulls bypass the resets
        for queue_id, queue_offset in chunk:
            parts.pops.reset(topic, group, queue_id, queue_offset)
            if at_next_pull:
                parts.resets.assign(topic, group, queue_id, queue_offset)
                parts.held_pulls.wake(topic, queue_id)
        yield


def _shortened(offsets: dict[int, int]) -> str:
    """Format offsets for the log: all of a usual topic, the first of a large one."""
    text = ", ".join(f"{key}: {value}" for key, value in islice(offsets.items(), _LOGGED_QUEUES))
    return text if len(offsets) <= _LOGGED_QUEUES else f"{text} ... {len(offsets)} queues"


def _wanted_offsets(
    parts: Parts, header: ResetOffsetHeader, queue_count: int
) -> Steps[dict[int, int]]:
    """Return queue id -> new offset. Raises ``RequestRefused``."""
    queue_id, store = header.queue_id, parts.store
    if queue_id is None or queue_id < 0:
        queue_ids = range(queue_count)
        if not queue_ids:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
    elif queue_id >= queue_count:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"topic[{header.topic}] has no queue {queue_id}; allowed: 0 to {queue_count - 1}",
        )
    elif header.queue_offset not in (None, -1):
        low, high = (
            store.min_offset(header.topic, queue_id),
            store.max_offset(header.topic, queue_id),
        )
        if not low <= header.queue_offset <= high + 1:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {header.queue_offset} not in consume queue range [{low}-{high}]",
            )
        return {queue_id: header.queue_offset}
    else:
        queue_ids = range(queue_id, queue_id + 1)
    offsets: dict[int, int] = {}
    for chunk in chunks(queue_ids):
        for id_ in chunk:
            if header.timestamp < 0:
                offsets[id_] = store.max_offset(header.topic, id_)
            else:
                offsets[id_] = store.offset_by_time(header.topic, id_, header.timestamp)
        yield
    return offsets


def _offsets_by_time(parts: Parts, header: ResetOffsetHeader) -> Steps[dict[int, int]]:
    """Return queue id -> new offset at a timestamp. Raises ``RequestRefused``."""
    topic = parts.topics.get(header.topic)
    if topic is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
        )
    offsets: dict[int, int] = {}
    for queue_id in range(topic.write_queue_count):
        known = parts.deliveries.consumer_offsets.get(topic.name, header.group, queue_id)
        if known is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
            )
        if header.timestamp == LATEST:
            wanted = parts.store.max_offset(topic.name, queue_id)
        else:
            wanted = parts.store.offset_by_time(topic.name, queue_id, header.timestamp)
        offsets[queue_id] = wanted if header.is_force else min(wanted, known)
        if queue_id % CHUNK == CHUNK - 1:
            yield
    return offsets


def _encoded_offsets(parts: Parts, topic: str, offsets: dict[int, int]) -> Steps[bytes]:
    body = LongBody(f"topic {topic}; name single queues")
    for chunk in chunks(offsets.items(), 4 * CHUNK):
        for queue_id, queue_offset in chunk:
            body.add_pair(
                MessageQueue(topic, parts.settings.broker.broker_name, queue_id), queue_offset
            )
        yield
    return body.encode_in(ResetOffsets(offset_table=QueueOffsets()), "offset_table")


def _encoded_list(parts: Parts, topic: str, offsets: dict[int, int]) -> Steps[bytes]:
    body = LongBody(f"topic {topic}; name single queues")
    name = parts.settings.broker.broker_name
    for chunk in chunks(offsets.items(), 4 * CHUNK):
        body.add(
            *(
                QueueOffset(broker_name=name, offset=queue_offset, queue_id=queue_id, topic=topic)
                for queue_id, queue_offset in chunk
            )
        )
        yield
    return body.encode_in(ResetOffsetList(offset_table=[]), "offset_table")


def _notify_offsets(
    group: ConsumerGroup[Channel],
    header: ResetOffsetHeader,
    body: bytes,
    list_body: bytes,
    *,
    is_list: bool,
) -> Steps[None]:
    fields = headers.encode(
        ResetOffsetHeader(topic=header.topic, group=header.group, timestamp=header.timestamp)
    )
    for member in list(group.members.values()):
        # Java checks the language of the admin client; what matters is what the consumer can read.
        takes_list = is_list or member.language == LanguageCode.CPP
        member.channel.notify(
            Command(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                flag=IS_ONEWAY,
                ext_fields=fields,
                body=list_body if takes_list else body,
            )
        )
        yield
