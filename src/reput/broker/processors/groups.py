"""Codes 34, 35, 46, 38, 41, 42: clients, their groups and locks."""

from reput.broker import limits
from reput.broker.filter import selection
from reput.broker.parts import Parts
from reput.config import JAVA_INT_MAX
from reput.errors import RequestRefused
from reput.format import bodies, command as commands, headers, names
from reput.format.bodies import (
    CheckClientBody,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockBody,
    LockReply,
    MessageQueue,
)
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import ConsumerGroupHeader, UnregisterClientHeader
from reput.remoting.channel import Channel
from reput.remoting.long_replies import LIGHT_CHUNK, LongBody, chunks
from reput.remoting.server import LongReply
from reput.remoting.time_slices import Steps
from reput.store.tables.groups import SubscriptionGroup

_WORD_LETTERS_MAX = 64
"""Longest value of a heartbeat's enumerations, such as the message model."""
_HEARTBEAT_FIELDS = {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"}
"""Fields of a reply to a heartbeat (5.x): clients send their subscriptions with each one."""
_QUEUES_AT_ONCE = 200
"""Queues that are locked between two yields."""


def heartbeat(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Register a client, its groups and its subscriptions.

    Everything is checked first, including the limits. After that a heartbeat is refused only if
    other clients reach a limit between two slices, or if there are too many SQL92 filters, which
    are compiled singly: groups before that one are registered then. Other members are notified, and
    tables written, once for the whole heartbeat.
    """
    data = bodies.decode(HeartbeatData, request.body)
    yield
    consumers = data.consumer_data_set
    producers = [data_set.group_name for data_set in data.producer_data_set]
    limits.HEARTBEAT_GROUPS.check(len(consumers) + len(producers))
    subscription_count = sum(len(data_set.subscription_data_set) for data_set in consumers)
    limits.HEARTBEAT_SUBSCRIPTIONS.check(subscription_count)
    check_client_id(data.client_id)
    added_bytes = 0
    for consumer in consumers:
        _check_consumer(parts, consumer)
        added_bytes += parts.groups.more_bytes(consumer)
        yield
    for name in producers:
        _check_producer_group(name)
    parts.groups.check_room(channel, consumers, producers)
    parts.groups.check_subscriptions(added_bytes, data.client_id)
    _check_making(parts, [data_set.group_name for data_set in consumers], channel.address)
    now_ms, monotonic_ms = parts.clock.now_ms(), parts.clock.monotonic_ms()
    newest_ms: dict[str, int] = {}
    saves_filters = False
    for consumer in consumers:
        name = consumer.group_name
        parts.groups.check_room(channel, [consumer], ())
        parts.groups.check_subscriptions(parts.groups.more_bytes(consumer), name)
        settings = parts.subscription_groups.obtain(name, now_ms, channel.address)
        if settings is not None:
            parts.members.make_retry_topic(settings, now_ms, channel.address)
        has_changed = parts.groups.register_consumer(
            channel, data.client_id, consumer, request.language, request.version, monotonic_ms
        )
        if has_changed:
            parts.members.notify(name)
        saves_filters |= yield from parts.members.register_filters(consumer, newest_ms)
        yield
    for name in producers:
        parts.groups.check_room(channel, (), [name])
        parts.groups.register_producer(
            channel, data.client_id, name, request.language, request.version, monotonic_ms
        )
        yield
    reply = commands.reply(request, ext_fields=dict(_HEARTBEAT_FIELDS))
    if saves_filters:
        parts.table_writes.answer(channel, request, parts.consumer_filters.table, reply)
        return None
    return reply


def _check_making(parts: Parts, groups: list[str], address: str) -> None:
    """Check that groups and their retry topics can be created. Raises ``LimitExceeded``."""
    parts.subscription_groups.check_making(groups, address)
    retry_topics = {}
    for name in groups:
        settings = parts.subscription_groups.get(name)
        if settings is None:
            if not parts.subscription_groups.may_make(name):
                continue
            settings = SubscriptionGroup(name=name)
        topic = names.retry_topic(name)
        if settings.retry_queue_count > 0 and names.is_legal_group_topic(topic):
            retry_topics[topic] = settings.retry_queue_count
    parts.topics.check_making(retry_topics, address)


def check_client_id(client_id: str) -> None:
    """Check the id of a client. Raises ``RequestRefused``."""
    limits.CLIENT_ID_BYTES.check(len(client_id.encode("utf-8", "surrogatepass")))
    if not names.is_printable(client_id):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"client id {client_id!r}: allowed: text without control characters",
        )


def _check_consumer(parts: Parts, data: ConsumerData) -> None:
    """Check a member's data for a group. Raises ``RequestRefused``."""
    parts.subscription_groups.check_name(data.group_name)
    for value in (data.consume_type, data.message_model, data.consume_from_where):
        if len(value) > _WORD_LETTERS_MAX or not names.is_printable(value):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"group {data.group_name}: {names.printable(value)!r} is no consumeType, "
                "messageModel or consumeFromWhere",
            )
    for subscription in data.subscription_data_set:
        check_subscribed_topic(subscription.topic)
        place = f"group {data.group_name}, topic {subscription.topic}"
        limits.SUBSCRIPTION_BYTES.check(len(subscription.sub_string or ""), place)
        limits.SUBSCRIPTION_TAGS.check(len(subscription.tags_set), place)
        limits.SUBSCRIPTION_TAGS.check(len(subscription.code_set), place)
        limits.SUBSCRIPTION_BYTES.check(sum(map(len, subscription.tags_set)), place)
        if len(subscription.expression_type or "") > _WORD_LETTERS_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"{place}: expressionType is too long"
            )


def check_subscribed_topic(topic: str) -> None:
    """Check the name of a topic that is consumed. Raises ``RequestRefused``.

    The topic need not exist. It may be a retry topic, whose name contains the group's.
    """
    limits.SUBSCRIBED_TOPIC_LETTERS.check(len(topic))
    if not names.is_printable(topic):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"topic {topic!r}: allowed: text without control characters",
        )


def _check_producer_group(name: str) -> None:
    """Check the name of a producer group, which is saved nowhere. Raises ``RequestRefused``."""
    limits.GROUP_NAME_LETTERS.check(len(name))
    if not names.is_printable(name):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"producer group {name!r}: allowed: text without control characters",
        )


def unregister_client(parts: Parts, channel: Channel, request: Command) -> Command:
    """Remove a client that leaves."""
    header = headers.decode(UnregisterClientHeader, request.ext_fields)
    if header.producer_group:
        parts.groups.unregister_producer(channel, header.producer_group)
    if header.consumer_group and parts.groups.unregister_consumer(channel, header.consumer_group):
        parts.members.left(header.consumer_group)
    return commands.reply(request)


def check_client_config(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Check an expression before a consumer subscribes with it."""
    subscription = bodies.decode(CheckClientBody, request.body).subscription_data
    if subscription.class_filter_mode:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, selection.NO_CLASS_FILTER)
    expression_type, expression = subscription.expression_type, subscription.sub_string
    if not selection.is_tag_type(expression_type):
        yield from parts.filters.compile_in_steps(expression_type, expression) or ()
        parts.filters.of_expression(expression_type, expression)
    return commands.reply(request)


def consumer_list(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the ids of a group's members."""
    header = headers.decode(ConsumerGroupHeader, request.ext_fields)
    group = parts.groups.consumer(header.consumer_group)
    if group is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"no consumer for this group, {header.consumer_group}",
        )
    members = LongBody(f"members of group {header.consumer_group}")
    for chunk in chunks(group.client_ids, LIGHT_CHUNK):
        members.add(*chunk)
        yield
    body = members.encode_in(ConsumerList(consumer_id_list=[]), "consumer_id_list")
    return commands.reply(request, body=body)


def lock_queues(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Lock queues for a client that consumes in order."""
    requested = yield from _queues(parts, request)
    locked = []
    for chunk in chunks(requested.mq_set, _QUEUES_AT_ONCE):
        locked += parts.locks.lock(
            requested.consumer_group,
            requested.client_id,
            chunk,
            parts.clock.monotonic_ms(),
            channel.address,
        )
        yield
    return commands.reply(request, body=bodies.encode(LockReply(lock_ok_mq_set=locked)))


def unlock_queues(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Release locks."""
    requested = yield from _queues(parts, request)
    for chunk in chunks(requested.mq_set, _QUEUES_AT_ONCE):
        parts.locks.unlock(requested.consumer_group, requested.client_id, chunk)
        yield
    return commands.reply(request)


def _queues(parts: Parts, request: Command) -> Steps[LockBody]:
    """Decode and check a request to lock or unlock queues. Raises ``RequestRefused``."""
    requested = bodies.decode(LockBody, request.body)
    yield
    limits.LOCK_QUEUES.check(len(requested.mq_set))
    parts.subscription_groups.check_name(requested.consumer_group)
    check_client_id(requested.client_id)
    for chunk in chunks(requested.mq_set, _QUEUES_AT_ONCE):
        for queue in chunk:
            _check_queue(queue)
        yield
    return requested


def _check_queue(queue: MessageQueue) -> None:
    check_subscribed_topic(queue.topic)
    limits.BROKER_NAME_LETTERS.check(len(queue.broker_name))
    if not 0 <= queue.queue_id <= JAVA_INT_MAX:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId of topic {queue.topic} is {queue.queue_id}; allowed: 0 to {JAVA_INT_MAX}",
        )
