"""Codes 17, 18, 21, 202, 215, 300, 305, 306, 316, 343, 345, 351: topics, queues and readers.

Checks and texts are those of Java's ``AdminBrokerProcessor``, 4.9.7; 18, 343, 345, 351 and
attributes are of 5.x. Changes are in the file when the reply is sent, and deletions are on disk:
deleted topics do not come back (known-bugs.md#deleted-topics).
"""

import logging

from reput.broker import limits
from reput.broker.parts import Parts
from reput.broker.processors import offsets, table_lists
from reput.broker.topic import attributes, topic_list
from reput.broker.topic.topics import invalid_topic, topic_data
from reput.config import JAVA_INT_MAX
from reput.errors import RequestRefused
from reput.format import bodies, command as commands, headers, limits as format_limits, names
from reput.format.bodies import (
    GroupList,
    GroupSubscription,
    MessageQueue,
    TopicConfigData,
    TopicConfigList,
    TopicList,
    TopicOffset,
    TopicOffsets,
    TopicStats,
)
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    CreateTopicHeader,
    GroupAndTopicHeader,
    GroupHeader,
    TopicHeader,
)
from reput.remoting.channel import Channel
from reput.remoting.long_replies import CHUNK, LIGHT_CHUNK, LongBody, chunks, sort
from reput.remoting.server import LongReply
from reput.remoting.time_slices import Steps
from reput.store.tables.config_tables import TopicConfig

QUEUE_COUNT_MAX = format_limits.TOPIC_QUEUES.maximum
"""Queues per topic: each is a folder, a file and a line in the output of admin tools."""
PERM_MAX = 7
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")

_log = logging.getLogger(__name__)


def create_topic(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Create or change a topic."""
    refuse_on_slave(parts)
    header = headers.decode(CreateTopicHeader, request.ext_fields)
    topic = TopicConfigData(
        order=header.order,
        perm=header.perm,
        read_queue_nums=header.read_queue_nums,
        topic_filter_type=header.topic_filter_type,
        topic_name=header.topic,
        topic_sys_flag=header.topic_sys_flag or 0,
        write_queue_nums=header.write_queue_nums,
        attributes=attributes.parse(header.attributes),
    )
    yield from table_lists.put(parts, channel, parts.topics, [topic], _settings)
    parts.table_writes.answer(channel, request, parts.topics.table)
    return None


def create_topics(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Create or change several topics: all of them, or none; see ``table_lists``."""
    refuse_on_slave(parts)
    wanted = bodies.decode(TopicConfigList, request.body).topic_config_list
    limits.LISTED_TOPICS.check(len(wanted))
    yield
    yield from table_lists.put(parts, channel, parts.topics, wanted, _settings)
    parts.table_writes.answer(channel, request, parts.topics.table)
    return None


def _settings(parts: Parts, topic: TopicConfigData) -> TopicConfig:
    """Return the new settings of a topic. Raises ``RequestRefused``."""
    check_topic(parts, topic.topic_name)
    _check_settings(topic)
    return TopicConfig(
        name=topic.topic_name,
        read_queue_count=topic.read_queue_nums,
        write_queue_count=topic.write_queue_nums,
        perm=topic.perm,
        order=topic.order,
        filter_type=topic.topic_filter_type,
        sys_flag=topic.topic_sys_flag,
        attributes=_attributes(parts, topic),
    )


def _attributes(parts: Parts, topic: TopicConfigData) -> tuple[tuple[str, str], ...]:
    """Return the new attributes of a topic. Raises ``RequestRefused``."""
    changes = topic.attributes or {}
    is_mixed = changes.get("+" + attributes.MESSAGE_TYPE) == attributes.MIXED
    if is_mixed and not parts.settings.broker.enable_mixed_message_type:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            "MIXED message type is not supported. (enableMixedMessageType allows it)",
        )
    known = parts.topics.get(topic.topic_name)
    return attributes.changed(
        dict(known.attributes) if known is not None else None, changes, attributes.OF_TOPICS
    )


def check_topic(parts: Parts, name: str) -> None:
    """Check the name of a topic that is to be changed.

    Raises:
        RequestRefused: The name is not valid, or it is a system topic.
    """
    parts.topics.check_name(name)
    is_system = name in parts.topics.system_topics or names.is_system_topic(name)
    if is_system and parts.settings.broker.validate_system_topic_when_update_topic:
        raise invalid_topic(f"The topic[{name}] is conflict with system topic.")


def _check_settings(topic: TopicConfigData) -> None:
    for setting, value, low, high in (
        ("readQueueNums", topic.read_queue_nums, 0, QUEUE_COUNT_MAX),
        ("writeQueueNums", topic.write_queue_nums, 0, QUEUE_COUNT_MAX),
        ("perm", topic.perm, 0, PERM_MAX),
        ("topicSysFlag", topic.topic_sys_flag, -JAVA_INT_MAX - 1, JAVA_INT_MAX),
    ):
        if not low <= value <= high:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"{setting} of topic[{topic.topic_name}] is {value}; allowed: {low} to {high}",
            )
    if topic.topic_filter_type not in FILTER_TYPES:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"topicFilterType = [{names.printable(topic.topic_filter_type)}] value invalid, "
            f"topic[{topic.topic_name}]; allowed: {', '.join(FILTER_TYPES)}",
        )


def refuse_on_slave(parts: Parts) -> None:
    """Raise ``RequestRefused`` if this broker copies its tables from a master."""
    if not parts.identity.is_master:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            "Can't modify topic or subscription group from slave parts, "
            "please execute it from master broker.",
        )


def delete_topic(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Delete a topic: its settings, its queues, and the consumer offsets of its groups."""
    refuse_on_slave(parts)
    name = headers.decode(TopicHeader, request.ext_fields).topic
    check_topic(parts, name)
    doomed = [name]
    if parts.settings.broker.clear_retry_topic_when_delete_topic:
        # Retry topics that 5.x creates for pops of this topic only, in both spellings.
        for group in (yield from groups_of_topic(parts, name)):
            retry = names.retry_topic(group)
            doomed += [retry_name for retry_name in (f"{retry}_{name}", f"{retry}+{name}")
                       if parts.topics.get(retry_name) is not None]  # fmt: skip
    parts.deletion_requests.check_room()
    for topic in doomed:
        parts.topics.delete(topic, parts.clock.now_ms())
        _log.info("topic %s deleted by %s", topic, channel.peer)
    parts.deletion_requests.answer(channel, request, lambda: parts.deletions.delete_topics(doomed))
    return None


def all_topics(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return all topics with their settings."""
    body = yield from topic_list.encode(parts.topics, parts.listings)
    return commands.reply(request, body=body)


def topic_settings(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the settings of a topic."""
    name = headers.decode(TopicHeader, request.ext_fields).topic
    topic = parts.topics.get(name)
    if topic is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}"
        )
    return commands.reply(request, body=bodies.encode(topic_data(topic)))


def topic_stats(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the bounds of each queue of a topic, and the time of the last put."""
    topic = existing(parts, headers.decode(TopicHeader, request.ext_fields).topic)
    store = parts.store
    offsets = LongBody(f"topic {topic.name}; ask for single queues with requests 30 and 31")
    # Java 4.9 leaves out queues that are only readable; 5.x has them.
    for queue_id in range(max(topic.write_queue_count, topic.read_queue_count)):
        max_offset = store.max_offset(topic.name, queue_id)
        updated_ms = store.store_time(topic.name, queue_id, max_offset - 1) if max_offset else 0
        offset = TopicOffset(
            last_update_timestamp=-1 if updated_ms is None else updated_ms,
            max_offset=max_offset,
            min_offset=store.min_offset(topic.name, queue_id),
        )
        offsets.add_pair(
            MessageQueue(topic.name, parts.settings.broker.broker_name, queue_id), offset
        )
        if queue_id % CHUNK == CHUNK - 1:
            yield
    put_tps = parts.deliveries.stats.put_tps(topic.name)
    template = TopicStats(offset_table=TopicOffsets(), topic_put_tps=put_tps)
    return commands.reply(request, body=offsets.encode_in(template, "offset_table"))


def existing(parts: Parts, name: str) -> TopicConfig:
    """Return an existing topic. Raises ``RequestRefused``."""
    topic = parts.topics.get(name)
    if topic is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
    return topic


def groups_of_topic(parts: Parts, topic: str) -> Steps[list[str]]:
    """Return the groups that subscribe to a topic or have offsets in it."""
    group_names = set(parts.groups.groups_of_topic(topic))
    for chunk in chunks(parts.deliveries.consumer_offsets.readers(), LIGHT_CHUNK):
        group_names.update(group for name, group in chunk if name == topic)
        yield
    return (yield from sort(group_names))


def consumed_by(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the groups of a topic."""
    name = headers.decode(TopicHeader, request.ext_fields).topic
    groups = LongBody(f"groups of topic {name}")
    for chunk in chunks((yield from groups_of_topic(parts, name)), LIGHT_CHUNK):
        groups.add(*chunk)
        yield
    body = groups.encode_in(GroupList(group_list=[]), "group_list")
    return commands.reply(request, body=body)


def topics_of_group(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the topics in which a group has offsets."""
    name = headers.decode(GroupHeader, request.ext_fields).group
    topics = LongBody(f"topics of group {name}")
    for chunk in chunks((yield from offsets.topics_of_group(parts, name)), LIGHT_CHUNK):
        topics.add(*chunk)
        yield
    template = TopicList(broker_addr=parts.identity.address, topic_list=[])
    return commands.reply(request, body=topics.encode_in(template, "topic_list"))


def subscription_of_group(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return a group's subscription to a topic, if it has one."""
    header = headers.decode(GroupAndTopicHeader, request.ext_fields)
    group = parts.groups.consumer(header.group)
    subscription = group.subscriptions.get(header.topic) if group is not None else None
    body = GroupSubscription(group=header.group, topic=header.topic, subscription_data=subscription)
    return commands.reply(request, body=bodies.encode(body))


def system_topics(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return RocketMQ's system topics."""
    names_of_topics = TopicList(topic_list=sorted(parts.topics.system_topics))
    return commands.reply(request, body=bodies.encode(names_of_topics))


def clean_unused_topics(parts: Parts, channel: Channel, request: Command) -> None:
    """Delete the queues of topics that are in no table."""
    parts.deletion_requests.answer(channel, request, parts.deletions.clean_unknown_topics)


def clean_expired_queues(parts: Parts, channel: Channel, request: Command) -> None:
    """Delete queues whose messages have all expired."""
    parts.deletion_requests.answer(channel, request, parts.deletions.clean_unused_queues)
