"""17, 18, 21, 202, 215, 300, 305, 306, 316, 343, 345, 351: topics, their queues and readers.

Checks and texts are Java's ``AdminBrokerProcessor``, 4.9.7; 18, 343, 345, 351 and attributes are
5.x's. What is changed is in the file when the reply is sent, and what is deleted on disk: it does
not come back (anchors D18).
"""

import logging
from typing import TYPE_CHECKING

from reput.broker import attributes
from reput.broker.topics import topic_data
from reput.errors import RequestRefused
from reput.format import bodies, command as commands, headers, names
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
from reput.store.config_tables import TopicConfig

if TYPE_CHECKING:
    from reput.broker.server import Broker

QUEUE_COUNT_MAX = 65_535
"""Of a topic: each queue is a folder, a file and a line in what admin tools print."""
PERM_MAX = 7
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")

_log = logging.getLogger(__name__)


def create_topic(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Make or change a topic."""
    refuse_on_slave(broker)
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
    _put(broker, channel, [topic])
    return commands.reply(request)


def create_topics(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Make or change several topics: all of them, or none."""
    refuse_on_slave(broker)
    _put(broker, channel, bodies.decode(TopicConfigList, request.body).topic_config_list)
    return commands.reply(request)


def _put(broker: "Broker", channel: Channel, wanted: list[TopicConfigData]) -> None:
    """Raises ``RequestRefused``; then nothing has changed."""
    changed = []
    for topic in wanted:
        check_topic(broker, topic.topic_name)
        _check_settings(topic)
        changed.append(
            TopicConfig(
                name=topic.topic_name,
                read_queue_count=topic.read_queue_nums,
                write_queue_count=topic.write_queue_nums,
                perm=topic.perm,
                order=topic.order,
                filter_type=topic.topic_filter_type,
                sys_flag=topic.topic_sys_flag,
                attributes=_attributes(broker, topic),
            )
        )
    now_ms = broker.clock.now_ms()
    for one in changed:
        if broker.store_config.enable_lmq and names.is_light(one.name):
            _log.info("topic %s is there without being made, and stays as it is", one.name)
            continue
        broker.topics.put(one, now_ms)
        _log.info("topic %s set by %s: %s", one.name, channel.peer, one)
    broker.topics.table.save(now_ms, is_durable=False)


def _attributes(broker: "Broker", topic: TopicConfigData) -> tuple[tuple[str, str], ...]:
    """Return the attributes that a topic gets. Raises ``RequestRefused``."""
    changes = topic.attributes or {}
    is_mixed = changes.get("+" + attributes.MESSAGE_TYPE) == attributes.MIXED
    if is_mixed and not broker.config.enable_mixed_message_type:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            "MIXED message type is not supported. (enableMixedMessageType allows it)",
        )
    known = broker.topics.get(topic.topic_name)
    return attributes.changed(
        dict(known.attributes) if known is not None else None, changes, attributes.OF_TOPICS
    )


def check_topic(broker: "Broker", name: str) -> None:
    """Check the name of a topic that somebody wants to change.

    Raises:
        RequestRefused: No topic can have it, or it is RocketMQ's own.
    """
    broker.topics.check_name(name)
    is_system = name in broker.topics.system_topics or names.is_system_topic(name)
    if is_system and broker.config.validate_system_topic_when_update_topic:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic."
        )


def _check_settings(topic: TopicConfigData) -> None:
    for what, value, most in (
        ("readQueueNums", topic.read_queue_nums, QUEUE_COUNT_MAX),
        ("writeQueueNums", topic.write_queue_nums, QUEUE_COUNT_MAX),
        ("perm", topic.perm, PERM_MAX),
    ):
        if not 0 <= value <= most:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"{what} of topic[{topic.topic_name}] is {value}; allowed: 0 to {most}",
            )
    if topic.topic_filter_type not in FILTER_TYPES:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"topicFilterType of topic[{topic.topic_name}] is {topic.topic_filter_type}; "
            f"allowed: {', '.join(FILTER_TYPES)}",
        )


def refuse_on_slave(broker: "Broker") -> None:
    """Raises ``RequestRefused`` if this broker has its tables from a master."""
    if not broker.is_master:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            "Can't modify topic or subscription group from slave broker, "
            "please execute it from master broker.",
        )


def delete_topic(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Delete a topic: its settings, its queues, and how far groups have read them."""
    refuse_on_slave(broker)
    name = headers.decode(TopicHeader, request.ext_fields).topic
    check_topic(broker, name)
    doomed = [name]
    if broker.config.clear_retry_topic_when_delete_topic:
        # Those that 5.x made for pop consumption of this topic alone, in both of its spellings.
        for group in groups_of_topic(broker, name):
            retry = names.retry_topic(group)
            doomed += [one for one in (f"{retry}_{name}", f"{retry}+{name}")
                       if broker.topics.get(one) is not None]  # fmt: skip
    for topic in doomed:
        _delete(broker, topic)
        _log.info("topic %s deleted by %s", topic, channel.peer)
    return commands.reply(request)


def _delete(broker: "Broker", topic: str) -> None:
    now_ms = broker.clock.now_ms()
    broker.stats.look()
    # First what makes it look alive: after a crash in between, a deletion can be asked for again.
    if broker.topics.delete(topic, now_ms):
        broker.topics.table.save(now_ms)
    broker.store.delete_topic(topic)
    if broker.consumer_offsets.delete(topic=topic):
        broker.consumer_offsets.save(now_ms)
    broker.resets.delete(topic=topic)
    broker.stats.topic_deleted(topic)


def all_topics(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return all topics with their settings."""
    return commands.reply(request, body=bodies.encode(broker.topics.describe()))


def topic_settings(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return the settings of a topic."""
    name = headers.decode(TopicHeader, request.ext_fields).topic
    known = broker.topics.get(name)
    if known is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}"
        )
    return commands.reply(request, body=bodies.encode(topic_data(known)))


def topic_stats(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return where each queue of a topic begins and ends, and when something was put last."""
    topic = existing(broker, headers.decode(TopicHeader, request.ext_fields).topic)
    store = broker.store
    offsets = TopicOffsets()
    # Java 4.9 leaves out queues that are only read; 5.x has them.
    for queue_id in range(max(topic.write_queue_count, topic.read_queue_count)):
        max_offset = store.max_offset(topic.name, queue_id)
        updated_ms = store.store_time(topic.name, queue_id, max_offset - 1) if max_offset else 0
        queue = MessageQueue(topic.name, broker.config.broker_name, queue_id)
        offsets[queue] = TopicOffset(
            last_update_timestamp=-1 if updated_ms is None else updated_ms,
            max_offset=max_offset,
            min_offset=store.min_offset(topic.name, queue_id),
        )
    return commands.reply(request, body=bodies.encode(TopicStats(offset_table=offsets)))


def existing(broker: "Broker", name: str) -> TopicConfig:
    """Return a topic. Raises ``RequestRefused``."""
    topic = broker.topics.get(name)
    if topic is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
    return topic


def groups_of_topic(broker: "Broker", topic: str) -> list[str]:
    """Return the groups that subscribe to a topic or have offsets in it."""
    with_offsets = {group for one, group in broker.consumer_offsets.readers() if one == topic}
    return sorted(with_offsets.union(broker.groups.groups_of_topic(topic)))


def consumed_by(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return the groups of a topic."""
    name = headers.decode(TopicHeader, request.ext_fields).topic
    found = GroupList(group_list=groups_of_topic(broker, name))
    return commands.reply(request, body=bodies.encode(found))


def topics_of_group(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return the topics in which a group has offsets."""
    name = headers.decode(GroupHeader, request.ext_fields).group
    found = sorted({topic for topic, group in broker.consumer_offsets.readers() if group == name})
    body = TopicList(broker_addr=broker.address, topic_list=found)
    return commands.reply(request, body=bodies.encode(body))


def subscription_of_group(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return what the members of a group subscribe to in a topic; nothing, if it has none."""
    header = headers.decode(GroupAndTopicHeader, request.ext_fields)
    group = broker.groups.consumer(header.group)
    found = group.subscriptions.get(header.topic) if group is not None else None
    body = GroupSubscription(group=header.group, topic=header.topic, subscription_data=found)
    return commands.reply(request, body=bodies.encode(body))


def system_topics(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return the topics that are RocketMQ's own."""
    found = TopicList(topic_list=sorted(broker.topics.system_topics))
    return commands.reply(request, body=bodies.encode(found))


def clean_unused_topics(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Delete the queues of topics that are in no table."""
    broker.store.clean_topics(broker.topics.all().keys())
    return commands.reply(request)


def clean_expired_queues(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Delete queues whose messages have all expired."""
    broker.store.clean_unused_queues()
    return commands.reply(request)
