"""200, 201, 207, 225, 352, 353: the settings of consumer groups.

Source: rocketmq 4.9.7 ``AdminBrokerProcessor``; 225, 352 and 353 are 5.x's.
"""

import logging
from typing import TYPE_CHECKING, Any

from reput.broker import attributes
from reput.broker.processors.topics import refuse_on_slave
from reput.errors import RequestRefused
from reput.format import bodies, command as commands, headers, names
from reput.format.bodies import (
    DataVersion,
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import GroupForbiddenHeader, GroupHeader, GroupNameHeader
from reput.remoting.channel import Channel
from reput.store.table_files import SubscriptionGroup

if TYPE_CHECKING:
    from reput.broker.server import Broker

RETRY_POLICIES = ("EXPONENTIAL", "CUSTOMIZED")

_log = logging.getLogger(__name__)


def create_group(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Make or change a group."""
    refuse_on_slave(broker)
    _put(broker, channel, [bodies.decode(SubscriptionGroupConfig, request.body)])
    return commands.reply(request)


def create_groups(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Make or change several groups: all of them, or none."""
    refuse_on_slave(broker)
    _put(broker, channel, bodies.decode(SubscriptionGroupList, request.body).group_config_list)
    return commands.reply(request)


def _put(broker: "Broker", channel: Channel, wanted: list[SubscriptionGroupConfig]) -> None:
    """Raises ``RequestRefused``; then nothing has changed."""
    changed = []
    for group in wanted:
        if not group.group_name.strip():
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the group's name is blank")
        if group.retry_queue_nums < 0 or group.retry_max_times < -1:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"group {group.group_name}: retryQueueNums is {group.retry_queue_nums}, allowed: "
                f"0 and more; retryMaxTimes is {group.retry_max_times}, allowed: -1 and more",
            )
        _check_retry_policy(group)
        known = broker.subscription_groups.get(group.group_name)
        changed.append(
            SubscriptionGroup(
                name=group.group_name,
                consume_enable=group.consume_enable,
                consume_from_min_enable=group.consume_from_min_enable,
                consume_broadcast_enable=group.consume_broadcast_enable,
                retry_queue_count=group.retry_queue_nums,
                retry_max=group.retry_max_times,
                broker_id=group.broker_id,
                slow_broker_id=group.which_broker_when_consume_slowly,
                notify_members_enable=group.notify_consumer_ids_changed_enable,
                consume_orderly=group.consume_message_orderly,
                consume_timeout_minute=group.consume_timeout_minute,
                sys_flag=group.group_sys_flag,
                attributes=attributes.changed(
                    dict(known.attributes) if known is not None else None,
                    group.attributes or {},
                    attributes.OF_GROUPS,
                ),
                retry_policy=group.group_retry_policy,
                subscriptions=group.subscription_data_set,
            )
        )
    now_ms = broker.clock.now_ms()
    for one in changed:
        if broker.store_config.enable_lmq and names.is_light(one.name):
            _log.info("group %s is there without being made, and stays as it is", one.name)
            continue
        broker.subscription_groups.put(one, now_ms)
        _log.info("group %s set by %s: %s", one.name, channel.peer, one)
    broker.subscription_groups.table.save(now_ms, is_durable=False)


def _check_retry_policy(group: SubscriptionGroupConfig) -> None:
    policy = group.group_retry_policy
    if policy is not None and policy.get("type", "CUSTOMIZED") not in RETRY_POLICIES:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"group {group.group_name}: type of groupRetryPolicy is {policy['type']!r}; "
            f"allowed: {', '.join(RETRY_POLICIES)}",
        )


def delete_group(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Delete the settings of a group, and its offsets if that is asked for."""
    refuse_on_slave(broker)
    header = headers.decode(GroupNameHeader, request.ext_fields)
    now_ms = broker.clock.now_ms()
    if broker.subscription_groups.delete(header.group_name, now_ms):
        broker.subscription_groups.table.save(now_ms)
    removes_offsets = header.remove_offset or header.clean_offset
    if removes_offsets and broker.consumer_offsets.delete(group=header.group_name):
        broker.consumer_offsets.save(now_ms)
    broker.resets.delete(group=header.group_name)
    broker.stats.group_deleted(header.group_name)
    _log.info("group %s deleted by %s", header.group_name, channel.peer)
    return commands.reply(request)


def all_groups(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return all groups with their settings."""
    version = broker.subscription_groups.table.version
    found = {
        "dataVersion": DataVersion(counter=version.counter, timestamp=version.timestamp_ms),
        "subscriptionGroupTable": {
            name: _settings(group) for name, group in broker.subscription_groups.all().items()
        },
        "forbiddenTable": broker.subscription_groups.table.all_forbidden(),
    }
    return commands.reply(request, body=bodies.encode(found))


def group_settings(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return the settings of a group. Asking makes none (anchors D18)."""
    name = headers.decode(GroupHeader, request.ext_fields).group
    group = broker.subscription_groups.get(name)
    if group is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name}"
        )
    return commands.reply(request, body=bodies.encode(_settings(group)))


def forbid_topic(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Forbid a group to read a topic, or allow it again; say whether it may."""
    header = headers.decode(GroupForbiddenHeader, request.ext_fields)
    groups = broker.subscription_groups
    if header.readable is not None:
        refuse_on_slave(broker)
        now_ms = broker.clock.now_ms()
        groups.forbid(header.group, header.topic, now_ms, is_forbidden=not header.readable)
        groups.table.save(now_ms, is_durable=False)
        _log.info("group %s may read %s: %s, says %s", header.group, header.topic, header.readable,
                  channel.peer)  # fmt: skip
    is_readable = not groups.is_forbidden(header.group, header.topic)
    body = GroupForbidden(group=header.group, topic=header.topic, readable=is_readable)
    return commands.reply(request, body=bodies.encode(body))


def _settings(group: SubscriptionGroup) -> dict[str, Any]:
    """Return all settings under their names, those with Java's defaults too: not all is Java."""
    settings: dict[str, Any] = {
        "attributes": dict(group.attributes),
        "brokerId": group.broker_id,
        "consumeBroadcastEnable": group.consume_broadcast_enable,
        "consumeEnable": group.consume_enable,
        "consumeFromMinEnable": group.consume_from_min_enable,
        "consumeMessageOrderly": group.consume_orderly,
        "consumeTimeoutMinute": group.consume_timeout_minute,
        "groupName": group.name,
        "groupRetryPolicy": group.retry_policy or {"type": "CUSTOMIZED"},
        "groupSysFlag": group.sys_flag,
        "notifyConsumerIdsChangedEnable": group.notify_members_enable,
        "retryMaxTimes": group.retry_max,
        "retryQueueNums": group.retry_queue_count,
        "whichBrokerWhenConsumeSlowly": group.slow_broker_id,
    }
    if group.subscriptions is not None:
        settings["subscriptionDataSet"] = group.subscriptions
    return settings
