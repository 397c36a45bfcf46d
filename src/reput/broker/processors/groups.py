"""34, 35, 46, 38, 41, 42: clients, their groups, their locks."""

from typing import TYPE_CHECKING

from reput.broker import selection
from reput.errors import RequestRefused
from reput.format import bodies, command as commands, headers
from reput.format.bodies import CheckClientBody, ConsumerList, HeartbeatData, LockBody, LockReply
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import ConsumerGroupHeader, UnregisterClientHeader
from reput.remoting.channel import Channel

if TYPE_CHECKING:
    from reput.broker.server import Broker


def heartbeat(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Take note of a client, its groups and what they subscribe to."""
    data = bodies.decode(HeartbeatData, request.body)
    now_ms, monotonic_ms = broker.clock.now_ms(), broker.clock.monotonic_ms()
    for consumer in data.consumer_data_set:
        settings = broker.subscription_groups.find(consumer.group_name, now_ms)
        if settings is not None:
            broker.make_retry_topic(settings, now_ms)
        has_changed = broker.groups.register_consumer(
            channel, data.client_id, consumer, request.language, request.version, monotonic_ms
        )
        broker.take_filters(consumer)
        if has_changed:
            broker.tell_members(consumer.group_name)
    for producer in data.producer_data_set:
        broker.groups.register_producer(
            channel,
            data.client_id,
            producer.group_name,
            request.language,
            request.version,
            monotonic_ms,
        )
    return commands.reply(request)


def unregister_client(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Forget a client that leaves."""
    header = headers.decode(UnregisterClientHeader, request.ext_fields)
    if header.producer_group:
        broker.groups.unregister_producer(channel, header.producer_group)
    if header.consumer_group and broker.groups.unregister_consumer(channel, header.consumer_group):
        broker.member_left(header.consumer_group)
    return commands.reply(request)


def check_client_config(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Check an expression before a consumer subscribes with it."""
    one = bodies.decode(CheckClientBody, request.body).subscription_data
    if one.class_filter_mode:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, selection.NO_CLASS_FILTER)
    if not selection.is_tag_type(one.expression_type):
        broker.filters.of_expression(one.expression_type, one.sub_string)
    return commands.reply(request)


def consumer_list(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return the ids of a group's members."""
    header = headers.decode(ConsumerGroupHeader, request.ext_fields)
    group = broker.groups.consumer(header.consumer_group)
    if group is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"no consumer for this group, {header.consumer_group}",
        )
    body = ConsumerList(consumer_id_list=group.client_ids)
    return commands.reply(request, body=bodies.encode(body))


def lock_queues(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Lock queues for a client that consumes in order."""
    asked = bodies.decode(LockBody, request.body)
    monotonic_ms = broker.clock.monotonic_ms()
    got = broker.locks.lock(asked.consumer_group, asked.client_id, asked.mq_set, monotonic_ms)
    return commands.reply(request, body=bodies.encode(LockReply(lock_ok_mq_set=got)))


def unlock_queues(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Give locks back."""
    asked = bodies.decode(LockBody, request.body)
    broker.locks.unlock(asked.consumer_group, asked.client_id, asked.mq_set)
    return commands.reply(request)
