"""Codes 200070, 200071, 200074 to 200079: lite topics.

The order of the checks and the codes are those of Java's ``PopLiteMessageProcessor``,
``LiteSubscriptionCtlProcessor`` and ``LiteManagerProcessor`` of 5.5.0.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from reput.broker import limits
from reput.broker.lite import subscriptions
from reput.broker.lite.lite_pops import QUEUE_ID, HeldLitePop, PoppedLite, WantedLite
from reput.broker.lite.subscriptions import LiteClient, LiteGroup
from reput.broker.parts import Parts
from reput.broker.processors import pop
from reput.broker.topic.attributes import MESSAGE_TYPE
from reput.errors import RequestRefused
from reput.format import bodies, command as commands, headers, names, pop_reply
from reput.format.bodies import LiteOffset, LiteSubscription, LiteSubscriptionsBody
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import IS_ONEWAY, Command
from reput.format.headers import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeReplyHeader,
    LiteClientHeader,
    LiteDispatchHeader,
    LiteGroupHeader,
    LiteTopicHeader,
    NotifyUnsubscribeLiteHeader,
    ParentTopicHeader,
    PopLiteMessageHeader,
    PopLiteMessageReplyHeader,
)
from reput.format.pop_codec import MESSAGES_MAX, ORDERED_REVIVE_QUEUE, Handle
from reput.remoting.channel import Channel
from reput.remoting.long_replies import chunks
from reput.remoting.server import LongReply
from reput.store.tables.config_tables import TopicConfig

EXPIRATION = "lite.topic.expiration"
LITE = (MESSAGE_TYPE, "LITE")
_POLICY_FIRST, _POLICY_END = 1, 2
_RETURNED_MAX = 10_000
"""Maximum number of lite topics in a reply."""
_ACTIONS = ("PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE")


# --- sends ----------------------------------------------------------------------


def queue_of(parts: Parts, topic: str, lite_topic: str) -> str:
    """Return the light queue of a message. Raises ``RequestRefused``."""
    check_name(lite_topic)
    if not parts.settings.store.enable_multi_dispatch:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            "this broker has no lite topics: it needs enableMultiDispatch=true",
        )
    return names.lite_queue(topic, lite_topic)


# --- pops -----------------------------------------------------------------------


def pop_lite(parts: Parts, channel: Channel, request: Command) -> Command | None:
    """Return messages of the lite topics of a client, or hold the request."""
    header = headers.decode(PopLiteMessageHeader, request.ext_fields)
    left_ms = pop.time_left(parts, header.born_time, header.poll_time)
    pop.check_broker(parts, "pop message is")
    if not 0 < header.max_msg_num <= MESSAGES_MAX:
        raise _invalid(f"maxMsgNum is {header.max_msg_num}; allowed: 1 to {MESSAGES_MAX}")
    if header.invisible_time <= 0:
        raise _invalid(f"invisibleTime is {header.invisible_time}; allowed: at least 1 ms")
    limits.POP_INVISIBLE_MS.check(header.invisible_time)
    limits.POP_ATTEMPT_LETTERS.check(len(header.attempt_id or ""))
    wanted = WantedLite(
        header.client_id,
        header.consumer_group,
        header.topic,
        header.max_msg_num,
        header.invisible_time,
        header.attempt_id,
    )
    _check_reading(parts, wanted, channel.address)
    popped = parts.lite.pop(wanted, parts.clock.now_ms())
    if popped.counts or popped.has_more or left_ms < pop.HELD_MS_MIN:
        return _reply(parts, request, wanted, popped)
    client = parts.lite.subscriptions.client(wanted.client_id)
    place = (wanted.client_id, "") if client is None else parts.lite.subscriptions.place_of(client)
    deadline_ms = parts.clock.monotonic_ms() + left_ms
    envelope = commands.envelope(request)
    grant = None if parts.access is None else parts.access.grant(envelope)
    find_reply = functools.partial(retry_held, parts)
    held = HeldLitePop(channel, envelope, wanted, place, deadline_ms, find_reply, grant)
    if parts.lite.held.hold(held):
        return None
    return _reply(parts, request, wanted, popped, ResponseCode.POLLING_FULL)


def retry_held(parts: Parts, held: HeldLitePop, is_last: bool) -> Command | None:
    """Return the reply to a held pop; None if there is none yet. Raises ``RequestRefused``."""
    if parts.access is not None:
        parts.access.recheck(held.grant)
    pop.check_broker(parts, "pop message is")
    _check_reading(parts, held.wanted, held.channel.address)
    popped = parts.lite.pop(held.wanted, parts.clock.now_ms())
    if not (popped.counts or popped.has_more or is_last):
        return None
    return _reply(parts, held.request, held.wanted, popped)


def _check_reading(parts: Parts, wanted: WantedLite, address: str) -> None:
    """Check that a group may read the lite topics of a parent. Raises ``RequestRefused``."""
    topic = parts.topics.readable(wanted.topic)
    if LITE not in topic.attributes:
        raise _invalid(f"the topic [{wanted.topic}] message type not match")
    parts.subscription_groups.check_consuming(wanted.group, parts.clock.now_ms(), address)
    settings = _settings(parts, wanted.group)
    if settings is None or settings.topic != wanted.topic:
        raise _invalid(f"subscription bind topic not match, {wanted.group}")


def _settings(parts: Parts, group: str) -> LiteGroup | None:
    return subscriptions.group_of(parts.subscription_groups.get(group))


def _reply(
    parts: Parts,
    request: Command,
    wanted: WantedLite,
    popped: PoppedLite,
    empty: ResponseCode = ResponseCode.POLLING_TIMEOUT,
) -> Command:
    body = b"".join(popped.data)
    count = len(popped.counts)
    if count:
        parts.deliveries.stats.popped(wanted.topic, wanted.group, QUEUE_ID, count, len(body))
    header = PopLiteMessageReplyHeader(
        pop_time=popped.pop_ms,
        invisible_time=wanted.invisible_ms,
        revive_qid=ORDERED_REVIVE_QUEUE,
        order_count_info=";".join(map(str, popped.counts)),
    )
    return commands.reply(
        request,
        ResponseCode.SUCCESS if count else empty,
        pop_reply.FOUND if count else "NO_MESSAGE_IN_QUEUE",
        headers.encode(header),
        body,
    )


# --- acks and changes of invisible times --------------------------------------------


def acknowledge(parts: Parts, header: AckMessageHeader, handle: Handle) -> None:
    """Record that a message of a lite topic was consumed. Raises ``RequestRefused``."""
    queue = _held_queue(parts, header, handle)
    try:
        parts.lite.acknowledge(queue, header.consumer_group, header.offset, handle.pop_ms)
    except ValueError as error:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, f"ack offset illegal: {error}"
        ) from error
    parts.deliveries.stats.acknowledged(header.topic, header.consumer_group, 1)


def change_invisible_time(
    parts: Parts, header: ChangeInvisibleTimeHeader, handle: Handle
) -> ChangeInvisibleTimeReplyHeader:
    """Change when a message of a lite topic becomes visible. Raises ``RequestRefused``."""
    queue = _held_queue(parts, header, handle)
    visible_ms = parts.clock.now_ms() + header.invisible_time
    parts.lite.postpone(
        queue,
        header.consumer_group,
        header.offset,
        handle.pop_ms,
        visible_ms,
        is_suspended=bool(header.suspend),
    )
    return ChangeInvisibleTimeReplyHeader(
        pop_time=handle.pop_ms,
        invisible_time=visible_ms - handle.pop_ms,
        revive_qid=handle.revive_queue_id,
    )


def _held_queue(
    parts: Parts, header: AckMessageHeader | ChangeInvisibleTimeHeader, handle: Handle
) -> str:
    """Return the light queue of a handle. Raises ``RequestRefused``."""
    settings = _settings(parts, header.consumer_group)
    if settings is None or settings.topic != header.topic:
        raise _invalid(f"subscription bind topic not match, {header.consumer_group}")
    queue = names.lite_queue(header.topic, header.lite_topic or "")
    if not 0 <= header.offset < parts.store.max_offset(queue, QUEUE_ID):
        raise RequestRefused(
            ResponseCode.NO_MESSAGE,
            f"message {header.offset} of the lite topic {header.lite_topic!r} of {header.topic} "
            "does not exist",
        )
    if header.queue_id != QUEUE_ID or not handle.is_ordered:
        raise _invalid("ack queue illegal.")
    return queue


# --- subscriptions ------------------------------------------------------------------


def change_subscriptions(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Change the subscriptions of clients to lite topics."""
    body = bodies.decode(LiteSubscriptionsBody, request.body) if request.body else None
    if body is None or not body.subscription_set:
        text = (
            "Request body is null." if body is None else "LiteSubscriptionCtlRequestBody is empty."
        )
        raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, text)
    for change in body.subscription_set:
        if change.action not in _ACTIONS:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"the action is {change.action!r}; allowed: {', '.join(_ACTIONS)}",
            )
        if not (change.client_id.strip() and change.group.strip() and change.topic.strip()):
            continue  # as in Java
        yield from _change(parts, channel, change)
    return commands.reply(request)


def _change(parts: Parts, channel: Channel, change: LiteSubscription) -> Iterator[None]:
    registry = parts.lite.subscriptions
    known = registry.client(change.client_id)
    if change.action == "COMPLETE_REMOVE":
        if known is not None:
            yield from registry.remove(known)
        return
    queues = list(dict.fromkeys(_queues(change)))
    if change.action == "PARTIAL_REMOVE":
        if known is not None:
            yield from _remove(parts, known, queues)
        return
    group = parts.subscription_groups.get(change.group)
    if group is None or not group.consume_enable:
        raise RequestRefused(
            ResponseCode.ILLEGAL_OPERATION, "Consumer group is not allowed to consume."
        )
    settings = subscriptions.group_of(group)
    if settings is None or settings.topic != change.topic:
        raise RequestRefused(
            ResponseCode.ILLEGAL_OPERATION,
            f"the group {change.group} is bound to "
            f"{'no topic' if settings is None else settings.topic}; set its attribute "
            f"{subscriptions.BIND_TOPIC} to {change.topic}",
        )
    if change.action == "PARTIAL_ADD" and settings.is_wildcard:
        raise RequestRefused(
            ResponseCode.ILLEGAL_OPERATION,
            "subscribe lite operation is not supported for this group",
        )
    if not settings.is_wildcard:
        kept = known.queues if known is not None and change.action == "PARTIAL_ADD" else ()
        count = len(kept) + sum(queue not in kept for queue in queues)
        settings.check_quota(change.client_id, change.group, count)
    if known is None:
        limits.LITE_CLIENTS.check(registry.client_count + 1)
    now_ms = parts.clock.monotonic_ms()
    client = registry.obtain(change.client_id, change.group, change.topic, channel, now_ms)
    if settings.is_wildcard:
        parts.lite.add_all(client)
    else:
        if change.action == "COMPLETE_ADD":
            for part in chunks(client.queues.difference(queues)):
                for queue in part:
                    registry.unsubscribe(client, queue)
                yield
        yield from _add(parts, client, queues, settings, change.offset_option)
    parts.lite.wake(client)


def _queues(change: LiteSubscription) -> Iterator[str]:
    for lite_topic in change.lite_topic_set or ():
        check_name(lite_topic)
        yield names.lite_queue(change.topic, lite_topic)


def check_name(lite_topic: str) -> None:
    """Check the name of a lite topic. Raises ``RequestRefused``."""
    limits.LITE_TOPIC_LETTERS.check(len(lite_topic), names.printable(lite_topic))
    if not names.is_legal_group(lite_topic):
        raise RequestRefused(
            ResponseCode.ILLEGAL_OPERATION,
            f"the lite topic is {names.printable(lite_topic)!r}; allowed: letters, digits, - and _",
        )


def _add(
    parts: Parts,
    client: LiteClient,
    queues: list[str],
    settings: LiteGroup,
    option: LiteOffset | None,
) -> Iterator[None]:
    registry = parts.lite.subscriptions
    new = [queue for queue in queues if queue not in client.queues]
    parts.lite.check_room(len(new))
    for part in chunks(new):
        for queue in part:
            parts.lite.add(client, queue, settings)
            if option is not None:
                _reset(parts, queue, client.group, option)
        yield
    registry.all_wait(client, new)


def _remove(parts: Parts, client: LiteClient, queues: list[str]) -> Iterator[None]:
    settings = _settings(parts, client.group)
    for part in chunks(queues):
        for queue in part:
            is_gone = parts.lite.subscriptions.unsubscribe(client, queue)
            if is_gone and settings is not None and settings.resets_unsubscribed:
                parts.lite.reset(queue, client.group, 0)
        yield


def _reset(parts: Parts, queue: str, group: str, option: LiteOffset) -> None:
    """Set where a group begins to read a queue; TIMESTAMP is ignored, as in Java."""
    position = parts.lite.position(queue, group)
    target = None
    if option.type == "OFFSET":
        target = max(option.value, 0)
    elif option.type == "TAIL_N":
        target = None if position is None else max(position - option.value, 0)
    elif option.type == "POLICY" and option.value == _POLICY_FIRST:
        target = 0
    elif option.type == "POLICY" and option.value == _POLICY_END:
        target = parts.store.max_offset(queue, QUEUE_ID)
    if target is not None:
        parts.lite.reset(queue, group, target)


def notify_evicted(client: LiteClient, queue: str) -> None:
    """Notify a client that another one of its group has its lite topic now."""
    lite_topic = names.lite_topic_of(queue)
    if lite_topic is None:
        return
    header = NotifyUnsubscribeLiteHeader(
        lite_topic=lite_topic[1], consumer_group=client.group, client_id=client.client_id
    )
    client.channel.notify(
        Command(
            RequestCode.NOTIFY_UNSUBSCRIBE_LITE, flag=IS_ONEWAY, ext_fields=headers.encode(header)
        )
    )


# --- queries ------------------------------------------------------------------------


def broker_info(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the numbers of lite topics and subscriptions, and the topics and groups."""
    registry, store = parts.lite.subscriptions, parts.settings.store
    light = 0
    topics = parts.store.queues.topics()
    for part in chunks(topics):
        light += sum(map(names.is_light, part))
        yield
    return _json(
        request,
        {
            "storeType": "default",
            "maxLmqNum": store.max_lmq_consume_queue_num,
            "currentLmqNum": light,
            "liteSubscriptionCount": registry.count,
            "orderInfoCount": parts.lite.blocks.count,
            "cqTableSize": len(topics),
            "offsetTableSize": sum(1 for _ in parts.deliveries.consumer_offsets.readers()),
            "eventMapSize": registry.client_count,
            "topicMeta": {
                topic.name: _minutes(topic)
                for topic in parts.topics.all().values()
                if LITE in topic.attributes
            },
            "groupMeta": _groups_by_topic(parts),
        },
    )


def parent_info(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the settings of a parent topic, its groups, and the number of its lite topics."""
    header = headers.decode(ParentTopicHeader, request.ext_fields)
    topic = _parent(parts, header.topic)
    prefix, light, children = names.lite_queue(topic.name, ""), 0, 0
    for part in chunks(parts.store.queues.topics()):
        light += sum(map(names.is_light, part))
        children += sum(name.startswith(prefix) for name in part)
        yield
    return _json(
        request,
        {
            "topic": topic.name,
            "ttl": _minutes(topic),
            "groups": _groups_by_topic(parts).get(topic.name),
            "lmqNum": light,
            "liteTopicCount": children,
        },
    )


def topic_info(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the offsets of a lite topic, and its clients."""
    header = headers.decode(LiteTopicHeader, request.ext_fields)
    _parent(parts, header.parent_topic)
    queue = names.lite_queue(header.parent_topic, header.lite_topic)
    end = parts.store.max_offset(queue, QUEUE_ID)
    updated_ms = parts.store.store_time(queue, QUEUE_ID, end - 1) if end > 0 else None
    clients = [
        {"clientId": client_id, "group": group}
        for group, ids in parts.lite.subscriptions.subscribers(queue, header.parent_topic)
        for client_id in ids
    ]
    return _json(
        request,
        {
            "parentTopic": header.parent_topic,
            "liteTopic": header.lite_topic,
            "subscriber": clients,
            "topicOffset": {
                "minOffset": parts.store.min_offset(queue, QUEUE_ID) if end > 0 else 0,
                "maxOffset": end,
                "lastUpdateTimestamp": updated_ms or 0,
            },
            "shardingToBroker": True,
        },
    )


def client_info(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the lite topics of a client."""
    header = headers.decode(LiteClientHeader, request.ext_fields)
    _parent(parts, header.parent_topic)
    settings = _group(parts, header.group)
    if settings.topic != header.parent_topic:
        raise _invalid(f"Subscription [{header.group}]-[{header.parent_topic}] not match.")
    client = parts.lite.subscriptions.client(header.client_id)
    count = max(0, min(header.max_count, _RETURNED_MAX))
    queues = client.queues if client is not None else set()
    return _json(
        request,
        {
            "parentTopic": header.parent_topic,
            "group": header.group,
            "clientId": header.client_id,
            "lastAccessTime": client.polled_ms if client is not None else -1,
            "lastConsumeTime": 0,
            "liteTopicCount": len(queues) if client is not None else -1,
            "liteTopicSet": sorted(itertools.islice(queues, count)),
        },
    )


def group_info(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the lag of a group in a lite topic, or in those in which it is largest."""
    header = headers.decode(LiteGroupHeader, request.ext_fields)
    settings = _group(parts, header.group)
    answer: dict[str, Any] = {
        "group": header.group,
        "parentTopic": settings.topic,
        "earliestUnconsumedTimestamp": -1,
        "totalLagCount": -1,
    }
    if header.lite_topic is not None:
        answer["liteTopic"] = header.lite_topic
    if header.lite_topic:
        queue = names.lite_queue(settings.topic, header.lite_topic)
        position = parts.lite.position(queue, header.group)
        end = parts.store.max_offset(queue, QUEUE_ID)
        if end > 0 and position is not None:
            answer["totalLagCount"] = end - position
            answer["earliestUnconsumedTimestamp"] = _time(parts, queue, position)
            answer["liteTopicOffsetWrapper"] = {
                "brokerOffset": end,
                "consumerOffset": position,
                "pullOffset": 0,
                "lastTimestamp": _time(parts, queue, position - 1) if position else 0,
            }
        return _json(request, answer)
    prefix = names.lite_queue(settings.topic, "")
    lags: list[tuple[int, str, int]] = []
    for part in chunks(parts.store.queues.topics()):
        for queue in part:
            position = (
                parts.lite.position(queue, header.group) if queue.startswith(prefix) else None
            )
            lag = 0 if position is None else parts.store.max_offset(queue, QUEUE_ID) - position
            if position is not None and lag > 0:
                lags.append((lag, queue, position))
        yield
    count = max(0, min(header.top_k, _RETURNED_MAX))
    oldest = []
    for lags_part in chunks(lags):
        oldest += [
            (_time(parts, queue, position), lag, queue) for lag, queue, position in lags_part
        ]
        yield
    by_time = sorted(oldest)
    answer["totalLagCount"] = sum(lag for lag, _, _ in lags)
    answer["earliestUnconsumedTimestamp"] = by_time[0][0] if by_time else -1
    answer["lagCountTopK"] = _lags(prefix, sorted(oldest, key=lambda row: -row[1])[:count])
    answer["lagTimestampTopK"] = _lags(prefix, by_time[:count])
    return _json(request, answer)


def _lags(prefix: str, rows: Iterable[tuple[int, int, str]]) -> list[dict[str, Any]]:
    return [
        {
            "liteTopic": queue.removeprefix(prefix),
            "lagCount": lag,
            "earliestUnconsumedTimestamp": oldest_ms,
        }
        for oldest_ms, lag, queue in rows
    ]


def _time(parts: Parts, queue: str, queue_offset: int) -> int:
    store_ms = parts.store.store_time(queue, QUEUE_ID, queue_offset)
    return -1 if store_ms is None else store_ms


def dispatch_again(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Look for messages in all queues of a client, or of all clients of a group."""
    header = headers.decode(LiteDispatchHeader, request.ext_fields)
    _group(parts, header.group)
    registry = parts.lite.subscriptions
    for client in registry.clients(header.group):
        if header.client_id in (None, "", client.client_id):
            for part in chunks(client.queues):
                registry.all_wait(client, part)
                yield
            parts.lite.wake(client)
    return commands.reply(request)


def _parent(parts: Parts, name: str) -> TopicConfig:
    topic = parts.topics.get(name)
    if topic is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{name}] not exist.")
    if LITE not in topic.attributes:
        raise _invalid(f"Topic [{name}] type not match.")
    return topic


def _group(parts: Parts, name: str) -> LiteGroup:
    group = parts.subscription_groups.get(name)
    if group is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{name}] not exist."
        )
    settings = subscriptions.group_of(group)
    if settings is None:
        raise _invalid(f"Group [{name}] is not a LITE group.")
    return settings


def _minutes(topic: TopicConfig) -> int:
    return int(dict(topic.attributes).get(EXPIRATION, "-1"))


def _groups_by_topic(parts: Parts) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, group in parts.subscription_groups.all().items():
        settings = subscriptions.group_of(group)
        if settings is not None:
            groups.setdefault(settings.topic, []).append(name)
    return groups


def _json(request: Command, answer: dict[str, Any]) -> Command:
    return commands.reply(request, body=bodies.encode(answer))


def _invalid(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, text)
