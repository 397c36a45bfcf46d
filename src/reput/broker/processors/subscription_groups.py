"""Codes 200, 201, 207, 225, 352, 353: the settings of consumer groups.

Source: rocketmq 4.9.7 ``AdminBrokerProcessor``; 225, 352 and 353 are of 5.x.
"""

import logging
from typing import Any

from reput.broker import limits
from reput.broker.parts import Parts
from reput.broker.processors import table_lists
from reput.broker.processors.topics import refuse_on_slave
from reput.broker.topic import attributes
from reput.broker.topic.topics import data_version
from reput.config import JAVA_INT_MAX, JAVA_LONG_MAX
from reput.errors import RequestRefused
from reput.format import bodies, command as commands, headers
from reput.format.bodies import (
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import GroupForbiddenHeader, GroupHeader, GroupNameHeader
from reput.remoting.channel import Channel
from reput.remoting.long_replies import CHUNK, LongBody, chunks
from reput.remoting.server import LongReply
from reput.remoting.time_slices import Steps
from reput.store.tables.groups import SubscriptionGroup

JAVA_INT_MIN, JAVA_LONG_MIN = -JAVA_INT_MAX - 1, -JAVA_LONG_MAX - 1
RETRY_POLICIES = ("EXPONENTIAL", "CUSTOMIZED")

_log = logging.getLogger(__name__)


def create_group(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Create or change a group."""
    refuse_on_slave(parts)
    wanted = [bodies.decode(SubscriptionGroupConfig, request.body)]
    yield from table_lists.put(parts, channel, parts.subscription_groups, wanted, _changed)
    parts.table_writes.answer(channel, request, parts.subscription_groups.table)
    return None


def create_groups(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Create or change several groups: all of them, or none; see ``table_lists``."""
    refuse_on_slave(parts)
    wanted = bodies.decode(SubscriptionGroupList, request.body).group_config_list
    limits.LISTED_GROUPS.check(len(wanted))
    yield
    yield from table_lists.put(parts, channel, parts.subscription_groups, wanted, _changed)
    parts.table_writes.answer(channel, request, parts.subscription_groups.table)
    return None


def _changed(parts: Parts, group: SubscriptionGroupConfig) -> SubscriptionGroup:
    """Return the new settings of a group. Raises ``RequestRefused``."""
    name = group.group_name
    parts.subscription_groups.check_name(name)
    for setting, value, low, high in (
        ("retryQueueNums", group.retry_queue_nums, 0, limits.GROUP_RETRY_QUEUES.maximum),
        ("retryMaxTimes", group.retry_max_times, -1, JAVA_INT_MAX),
        ("brokerId", group.broker_id, JAVA_LONG_MIN, JAVA_LONG_MAX),
        (
            "whichBrokerWhenConsumeSlowly",
            group.which_broker_when_consume_slowly,
            JAVA_LONG_MIN,
            JAVA_LONG_MAX,
        ),
        ("consumeTimeoutMinute", group.consume_timeout_minute, JAVA_INT_MIN, JAVA_INT_MAX),
        ("groupSysFlag", group.group_sys_flag, JAVA_INT_MIN, JAVA_INT_MAX),
    ):
        if low <= value <= high:
            continue
        existing = parts.subscription_groups.get(name)
        if (
            setting == "retryQueueNums"
            and existing is not None
            and existing.retry_queue_count == value
        ):
            continue  # from before the limit existed
        if setting == "retryQueueNums" and value > high:
            raise limits.GROUP_RETRY_QUEUES.exceeded(value, name)
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"group {name}: {setting} is {value}; allowed: {low} to {high}",
        )
    _check_retry_policy(group)
    existing = parts.subscription_groups.get(name)
    return SubscriptionGroup(
        name=name,
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
            dict(existing.attributes) if existing is not None else None,
            group.attributes or {},
            attributes.OF_GROUPS,
        ),
        retry_policy=group.group_retry_policy,
        subscriptions=group.subscription_data_set,
    )


def _check_retry_policy(group: SubscriptionGroupConfig) -> None:
    policy = group.group_retry_policy
    if policy is not None and policy.get("type", "CUSTOMIZED") not in RETRY_POLICIES:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"group {group.group_name}: type of groupRetryPolicy is {policy['type']!r}; "
            f"allowed: {', '.join(RETRY_POLICIES)}",
        )


def delete_group(parts: Parts, channel: Channel, request: Command) -> None:
    """Delete the settings of a group, and its offsets if requested."""
    refuse_on_slave(parts)
    header = headers.decode(GroupNameHeader, request.ext_fields)
    group, keeps_offsets = header.group_name, not (header.remove_offset or header.clean_offset)
    parts.deletion_requests.check_room()
    parts.subscription_groups.delete(group, parts.clock.now_ms())
    _log.info("group %s deleted by %s", group, channel.peer)
    parts.deletion_requests.answer(
        channel,
        request,
        lambda: parts.deletions.delete_group(group, keeps_offsets=keeps_offsets),
    )


def all_groups(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return all groups with their settings."""
    body = yield from parts.listings.ask("groups", lambda: _all_groups(parts))
    return commands.reply(request, body=body)


def _all_groups(parts: Parts) -> Steps[bytes]:
    template = {
        "dataVersion": data_version(parts.subscription_groups.table.version),
        "subscriptionGroupTable": {},
        "forbiddenTable": parts.subscription_groups.table.all_forbidden(),
    }
    groups = LongBody("all groups; ask for single groups with request 352")
    for chunk in chunks(parts.subscription_groups.all().items(), 4 * CHUNK):
        for name, group in chunk:
            groups.add_pair(name, _settings(group))
        yield
    return groups.encode_in(template, "subscriptionGroupTable")


def group_settings(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the settings of a group. A query creates none (known-bugs.md#deleted-topics)."""
    name = headers.decode(GroupHeader, request.ext_fields).group
    group = parts.subscription_groups.get(name)
    if group is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name}"
        )
    return commands.reply(request, body=bodies.encode(_settings(group)))


def forbid_topic(parts: Parts, channel: Channel, request: Command) -> Command | None:
    """Forbid a group to read a topic, or allow it; return whether it is allowed."""
    header = headers.decode(GroupForbiddenHeader, request.ext_fields)
    groups = parts.subscription_groups
    if header.readable is not None:
        refuse_on_slave(parts)
        now_ms = parts.clock.now_ms()
        groups.check_name(header.group)
        if parts.topics.get(header.topic) is None:
            parts.topics.check_name(header.topic)
        groups.forbid(header.group, header.topic, now_ms, is_forbidden=not header.readable)
        _log.info(
            "group %r may read %r: %s, set by %s",
            header.group, header.topic, header.readable, channel.peer,
        )  # fmt: skip
    is_readable = not groups.is_forbidden(header.group, header.topic)
    body = GroupForbidden(group=header.group, topic=header.topic, readable=is_readable)
    reply = commands.reply(request, body=bodies.encode(body))
    if header.readable is None:
        return reply
    parts.table_writes.answer(channel, request, groups.table, reply)
    return None


def _settings(group: SubscriptionGroup) -> dict[str, Any]:
    """Return all settings by name, including Java's defaults, as clients need not be Java."""
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
