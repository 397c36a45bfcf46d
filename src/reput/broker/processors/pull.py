"""Codes 11, 361: pulls, and held pulls.

The order of the checks and the codes are those of Java's ``PullMessageProcessor`` of 4.9.7: a slave
serves pulls (known-bugs.md#unreadable-slave), and replies name the broker to read from.
"""

import functools

from msgspec import structs

from reput.broker.filter import selection
from reput.broker.filter.selection import Selection
from reput.broker.held_requests import HeldPull
from reput.broker.parts import Parts
from reput.broker.pull_subscriptions import Reader
from reput.broker.replication.state import SlaveState
from reput.errors import RequestRefused
from reput.format import bodies, command as commands, headers, names, properties as props
from reput.format.bodies import MessageQueue, OffsetMovedEvent
from reput.format.codes import MASTER_ID, ForbiddenType, PullFlag, ResponseCode
from reput.format.command import Command
from reput.format.headers import PullMessageHeader, PullMessageReplyHeader
from reput.remoting.channel import Channel
from reput.store.getting import GetResult, GetStatus
from reput.store.tables.config_tables import TopicConfig
from reput.store.writing.incoming import IncomingMessage

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_MOVED = (
    GetStatus.NO_MESSAGE_IN_QUEUE,
    GetStatus.NO_MATCHED_LOGIC_QUEUE,
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.OFFSET_TOO_SMALL,
)
"""Results for offsets outside of a queue."""


def pull_message(parts: Parts, channel: Channel, request: Command) -> Command | None:
    """Return messages of a queue, or hold the request until there are some."""
    header = headers.decode(PullMessageHeader, request.ext_fields)
    topic = _check(parts, channel, header)
    wanted = _selection(parts, header)
    begun_ms = parts.clock.monotonic_ms()
    moved = _moved(parts, request, header)
    if moved is not None:
        return moved
    result = _get(parts, header, wanted, header.queue_offset)
    if header.sys_flag & PullFlag.COMMIT_OFFSET and parts.identity.is_master:
        parts.commits.commit_along(
            topic, header.consumer_group, header.queue_id, header.commit_offset, channel.address
        )
    if result.status is GetStatus.FOUND:
        _let_kernel_answer(parts, header, topic, wanted)
    code = _code(parts, result, header.queue_offset)
    waits = code is ResponseCode.PULL_NOT_FOUND or _waits_for_master(parts, result)
    if waits and header.sys_flag & PullFlag.SUSPEND:
        is_long = parts.settings.broker.long_polling_enable
        wait_ms = (
            header.suspend_timeout_millis
            if is_long
            else parts.settings.broker.short_polling_time_mills
        )
        # `wanted` has the subscription
        held_header = structs.replace(header, subscription=None, expression_type=None)
        envelope = commands.envelope(request)
        held = HeldPull(
            channel, envelope, held_header, wanted, header.queue_offset,
            parts.clock.monotonic_ms() + wait_ms, functools.partial(retry_held, parts),
            None if parts.access is None else parts.access.grant(envelope),
        )  # fmt: skip
        if parts.held_pulls.hold(held):
            return None
    return _reply(parts, request, header, result, code, begun_ms)


def retry_held(parts: Parts, held: HeldPull, is_last: bool) -> Command | None:
    """Return the reply to a held pull; None if there is none yet. Raises ``RequestRefused``."""
    # Permissions may have changed.
    if parts.access is not None:
        parts.access.recheck(held.grant)
    _check(parts, held.channel, held.header)
    moved = _moved(parts, held.request, held.header)
    if moved is not None:
        return moved
    begun_ms = parts.clock.monotonic_ms()
    result = _get(parts, held.header, held.selection, held.queue_offset)
    code = _code(parts, result, held.queue_offset)
    if result.status is GetStatus.NO_MATCHED_MESSAGE:
        held.queue_offset = result.next_offset  # do not read filtered messages again
    has_nothing = code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
    # A read covers a limited range; later messages may match.
    has_more = result.next_offset < result.max_offset
    if has_nothing and not has_more and not is_last:
        return None
    if has_nothing and held.queue_offset != held.header.queue_offset:
        code = ResponseCode.PULL_RETRY_IMMEDIATELY  # so that the consumer makes progress
    return _reply(parts, held.request, held.header, result, code, begun_ms)


def _moved(parts: Parts, request: Command, header: PullMessageHeader) -> Command | None:
    """Return the reply with an offset that an operator has set; None if there is none.

    The offset that this pull commits is older, and is ignored.
    """
    topic, queue_id = header.topic, header.queue_id
    next_offset = parts.resets.take(topic, header.consumer_group, queue_id)
    if next_offset is None:
        return None
    topic_flag, group_flag = _sys_flags(parts, topic, header.consumer_group)
    fields = PullMessageReplyHeader(
        topic_sys_flag=topic_flag,
        group_sys_flag=group_flag,
        suggest_which_broker_id=MASTER_ID,
        next_begin_offset=next_offset,
        min_offset=parts.store.min_offset(topic, queue_id),
        max_offset=parts.store.max_offset(topic, queue_id),
    )
    return commands.reply(
        request, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", headers.encode(fields)
    )


def _check(parts: Parts, channel: Channel, header: PullMessageHeader) -> TopicConfig:
    """Return the topic if it can be pulled. Raises ``RequestRefused``."""
    if parts.identity.is_stopping:
        # Consumers retry within seconds. After a plain "not found" those of 4.x would pull again at
        # once, and wait half a minute for the reply when the connection closes.
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping")
    if parts.store.has_unconfirmed:
        text = "this slave has messages that its master has not confirmed yet"
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, text)
    if not parts.identity.is_readable:
        raise _forbidden(
            ForbiddenType.BROKER,
            f"the broker[{parts.settings.broker.broker_ip1}] pulling message is forbidden",
        )
    try:
        parts.subscription_groups.check_consuming(
            header.consumer_group, parts.clock.now_ms(), channel.address
        )
    except RequestRefused as error:
        raise _typed(error, ForbiddenType.GROUP) from None
    if parts.subscription_groups.is_forbidden(header.consumer_group, header.topic):
        raise _forbidden(
            ForbiddenType.SUBSCRIPTION,
            f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
        )
    try:
        topic = parts.topics.readable(header.topic)
    except RequestRefused as error:
        raise _typed(error, ForbiddenType.TOPIC) from None
    if not 0 <= header.queue_id < topic.read_queue_count:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_count}] "
            f"consumer:[{header.consumer_group}]",
            old_code=ResponseCode.SYSTEM_ERROR,
        )
    return topic


def _forbidden(kind: ForbiddenType, remark: str) -> RequestRefused:
    return _typed(RequestRefused(ResponseCode.NO_PERMISSION, remark), kind)


def _typed(error: RequestRefused, kind: ForbiddenType) -> RequestRefused:
    """Add the kind of a missing permission to an error, if that is the reason."""
    if error.response_code == ResponseCode.NO_PERMISSION:
        error.reply_fields = {"forbiddenType": str(int(kind))}
    return error


def _selection(parts: Parts, header: PullMessageHeader) -> Selection:
    """Return the filter of a pull. Raises ``RequestRefused``."""
    if header.sys_flag & PullFlag.CLASS_FILTER:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, selection.NO_CLASS_FILTER)
    if header.sys_flag & PullFlag.HAS_SUBSCRIPTION:
        if selection.is_tag_type(header.expression_type):
            return selection.of_tags(header.subscription)
        return parts.filters.of_expression(header.expression_type, header.subscription)
    group = parts.groups.consumer(header.consumer_group)
    if group is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
        )
    settings = parts.subscription_groups.get(header.consumer_group)
    if (
        settings is not None
        and not settings.consume_broadcast_enable
        and group.message_model == "BROADCASTING"
    ):
        raise _forbidden(
            ForbiddenType.BROADCASTING,
            f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
        )
    subscription = group.subscriptions.get(header.topic)
    if subscription is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
        )
    if subscription.sub_version < header.sub_version:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
        )
    if subscription.class_filter_mode:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, selection.NO_CLASS_FILTER)
    if selection.is_tag_type(subscription.expression_type):
        return selection.of_subscription(subscription)
    parts.filters.check_type(subscription.expression_type)
    group_filter = parts.consumer_filters.find(header.topic, header.consumer_group)
    if group_filter is None:
        raise RequestRefused(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "The broker's consumer filter data is not exist!Your expression may be wrong!",
        )
    if group_filter.client_version < header.sub_version:
        raise RequestRefused(
            ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"
        )
    return parts.filters.of_group(group_filter)


def _let_kernel_answer(
    parts: Parts, header: PullMessageHeader, topic: TopicConfig, wanted: Selection
) -> None:
    """Enable the kernel for the following pulls of this group, if possible."""
    if wanted.message_filter is not None:
        return
    if any(_sys_flags(parts, topic.name, header.consumer_group)):
        return  # its replies have none
    if parts.resets.is_waiting(header.topic, header.consumer_group):
        return  # the kernel would bypass the resets of its queues
    has_subscription = header.sys_flag & PullFlag.HAS_SUBSCRIPTION
    reader = Reader(
        header.topic,
        header.consumer_group,
        (header.subscription or "") if has_subscription else None,
        0 if has_subscription else wanted.version,
        wanted.tags_codes,
        topic.read_queue_count,
        *_suggested_brokers(parts, header.consumer_group),
    )
    parts.pull_subscriptions.add(reader)


def _get(
    parts: Parts, header: PullMessageHeader, wanted: Selection, queue_offset: int
) -> GetResult:
    return parts.store.get(
        header.topic,
        header.queue_id,
        queue_offset,
        header.max_msg_nums,
        tags_codes=wanted.tags_codes,
        message_filter=wanted.message_filter,
    )


def _code(parts: Parts, result: GetResult, queue_offset: int) -> ResponseCode:
    if result.status in (GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE):
        is_moved = queue_offset != 0
        code = ResponseCode.PULL_OFFSET_MOVED if is_moved else ResponseCode.PULL_NOT_FOUND
    else:
        code = _CODES[result.status]
    if code is ResponseCode.PULL_OFFSET_MOVED and _keeps_offsets(parts):
        return ResponseCode.PULL_RETRY_IMMEDIATELY
    return code


def _keeps_offsets(parts: Parts) -> bool:
    """Return whether offsets outside of a queue are left to the master, as a slave may lag."""
    return not parts.identity.is_master and not parts.settings.store.offset_check_in_slave


def _waits_for_master(parts: Parts, result: GetResult) -> bool:
    """Return whether a pull from an offset outside of a queue is held.

    While the master is away, consumers would repeat such pulls without a pause
    (known-bugs.md#pulls-without-pause).
    """
    return (
        result.status in _MOVED
        and _keeps_offsets(parts)
        and parts.replication.follower.status.state is not SlaveState.FOLLOWING
    )


def _suggested_brokers(parts: Parts, group_name: str) -> tuple[int, int]:
    """Return the ids of the brokers that a group should read from.

    Returns:
        The id for messages near the end of the log, and the id for messages far from it.
    """
    group = parts.subscription_groups.get(group_name)
    if group is None or not parts.settings.broker.slave_read_enable:
        return MASTER_ID, MASTER_ID
    return group.broker_id, group.slow_broker_id


def _suggested_broker(parts: Parts, group_name: str, result: GetResult, code: ResponseCode) -> int:
    """Return the id of the broker that a group should read from after this result."""
    if result.status in _MOVED and code is ResponseCode.PULL_RETRY_IMMEDIATELY:
        group = parts.subscription_groups.get(group_name)
        return MASTER_ID if group is None else group.broker_id
    return _suggested_brokers(parts, group_name)[result.suggests_slave]


def _reply(
    parts: Parts,
    request: Command,
    header: PullMessageHeader,
    result: GetResult,
    code: ResponseCode,
    begun_ms: int,
) -> Command:
    parts.deliveries.stats.pulled(
        header.topic,
        header.consumer_group,
        result,
        queue_id=header.queue_id,
        latency_ms=parts.clock.monotonic_ms() - begun_ms,
    )
    if code is ResponseCode.PULL_OFFSET_MOVED and result.status is not GetStatus.FOUND:
        _record_move(parts, header, result.next_offset)
    topic_flag, group_flag = _sys_flags(parts, header.topic, header.consumer_group)
    return commands.reply(
        request,
        code,
        _remark(result.status),
        headers.encode(
            PullMessageReplyHeader(
                topic_sys_flag=topic_flag,
                group_sys_flag=group_flag,
                suggest_which_broker_id=_suggested_broker(
                    parts, header.consumer_group, result, code
                ),
                next_begin_offset=result.next_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
            )
        ),
        result.data,
    )


def _sys_flags(parts: Parts, topic_name: str, group_name: str) -> tuple[int, int]:
    """Return the system flags of a topic and of a group."""
    topic, group = parts.topics.get(topic_name), parts.subscription_groups.get(group_name)
    return topic.sys_flag if topic else 0, group.sys_flag if group else 0


def _remark(status: GetStatus) -> str:
    """Return Java's name of a result; Java creates a queue when it is read."""
    is_missing = status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    return (GetStatus.NO_MESSAGE_IN_QUEUE if is_missing else status).name


def _record_move(parts: Parts, header: PullMessageHeader, next_offset: int) -> None:
    """Store a message about a consumer whose offset was outside of the queue."""
    if not parts.identity.is_master:
        return
    event = OffsetMovedEvent(
        consumer_group=header.consumer_group,
        message_queue=MessageQueue(
            header.topic, parts.settings.broker.broker_name, header.queue_id
        ),
        offset_new=next_offset,
        offset_request=header.queue_offset,
    )
    properties = {props.TAGS: header.consumer_group, props.KEYS: header.consumer_group}
    try:
        property_bytes, body = props.encode(properties), bodies.encode(event)
    except ValueError:
        return  # a property cannot hold the group's name: the pull is answered without an event
    host = parts.identity.store_host
    parts.store.put(
        IncomingMessage(
            topic=names.OFFSET_MOVED_TOPIC,
            body=body,
            property_bytes=property_bytes,
            born_timestamp=parts.clock.now_ms(),
            born_host=host,
            store_host=host,
            waits=False,
        )
    )
