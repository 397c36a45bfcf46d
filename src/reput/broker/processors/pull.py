"""11, 361: messages to consumers, and pulls that wait.

The order of the checks and the codes are Java's ``PullMessageProcessor``.
"""

from typing import TYPE_CHECKING

from reput.broker import pull_hold, selection
from reput.broker.pull_hold import HeldPull
from reput.broker.selection import Selection
from reput.errors import RequestRefused
from reput.format import command as commands, headers
from reput.format.codes import ForbiddenType, PullFlag, ResponseCode
from reput.format.command import Command
from reput.format.headers import PullMessageHeader, PullMessageReplyHeader
from reput.remoting.channel import Channel
from reput.store.config_tables import TopicConfig
from reput.store.delivering import Reader
from reput.store.getting import GetResult, GetStatus

if TYPE_CHECKING:
    from reput.broker.server import Broker


_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


def pull_message(broker: "Broker", channel: Channel, request: Command) -> Command | None:
    """Return messages of a queue, or hold the request until there are some."""
    header = headers.decode(PullMessageHeader, request.ext_fields)
    topic = _check(broker, header)
    wanted = _selection(broker, header)
    begun_ms = broker.clock.monotonic_ms()
    moved = _moved(broker, request, header)
    if moved is not None:
        return moved
    result = _get(broker, header, wanted, header.queue_offset)
    if header.sys_flag & PullFlag.COMMIT_OFFSET and broker.is_master:
        broker.consumer_offsets.put(
            header.topic, header.consumer_group, header.queue_id, header.commit_offset
        )
    if result.status is GetStatus.FOUND:
        _let_kernel_answer(broker, header, topic, wanted)
    code = _code(result, header.queue_offset)
    if code is ResponseCode.PULL_NOT_FOUND and header.sys_flag & PullFlag.SUSPEND:
        is_long = broker.config.long_polling_enable
        wait_ms = (
            header.suspend_timeout_millis if is_long else broker.config.short_polling_time_mills
        )
        held = HeldPull(
            channel, request, header, wanted, header.queue_offset,
            broker.clock.monotonic_ms() + wait_ms,
        )  # fmt: skip
        if broker.held_pulls.hold(held):
            return None
    return _reply(broker, request, header, result, code, begun_ms)


def look_again(broker: "Broker", held: HeldPull, *, is_last: bool = False) -> bool:
    """Look whether a pull that waits finds something now, and answer it if so.

    Args:
        broker: Whose it is.
        held: The pull.
        is_last: Its time is over: answer it anyway.

    Returns:
        Whether it was answered.
    """
    return pull_hold.answer(held, lambda: _looked_again(broker, held, is_last=is_last))


def _looked_again(broker: "Broker", held: HeldPull, *, is_last: bool) -> Command | None:
    """Return the answer; None if there is none yet. Raises ``RequestRefused``."""
    _check(broker, held.header)  # what was allowed may be so no longer
    moved = _moved(broker, held.request, held.header)
    if moved is not None:
        return moved
    begun_ms = broker.clock.monotonic_ms()
    result = _get(broker, held.header, held.selection, held.queue_offset)
    code = _code(result, held.queue_offset)
    if result.status is GetStatus.NO_MATCHED_MESSAGE:
        held.queue_offset = result.next_offset  # what came is not wanted: do not look at it again
    has_nothing = code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
    # One look goes so far only; behind it may be what is wanted.
    has_more = result.next_offset < result.max_offset
    if has_nothing and not has_more and not is_last:
        return None
    if has_nothing and held.queue_offset != held.header.queue_offset:
        code = ResponseCode.PULL_RETRY_IMMEDIATELY  # so that the consumer gets on
    return _reply(broker, held.request, held.header, result, code, begun_ms)


def _moved(broker: "Broker", request: Command, header: PullMessageHeader) -> Command | None:
    """Return the answer to a pull whose group is to go on elsewhere; None if it is not.

    What that pull commits is from before, and does not count.
    """
    topic, queue_id = header.topic, header.queue_id
    next_offset = broker.resets.take(topic, header.consumer_group, queue_id)
    if next_offset is None:
        return None
    fields = PullMessageReplyHeader(
        suggest_which_broker_id=0,
        next_begin_offset=next_offset,
        min_offset=broker.store.min_offset(topic, queue_id),
        max_offset=broker.store.max_offset(topic, queue_id),
    )
    return commands.reply(
        request, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", headers.encode(fields)
    )


def _check(broker: "Broker", header: PullMessageHeader) -> TopicConfig:
    """Return the topic, which may be pulled. Raises ``RequestRefused``."""
    if broker.is_stopping:
        # Consumers come back in seconds. A plain "nothing there" makes those of 4.x pull again at
        # once, and wait half a minute for the answer that the end of the connection takes away.
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping")
    if not broker.is_readable:
        raise _forbidden(
            ForbiddenType.BROKER,
            f"the broker[{broker.config.broker_ip1}] pulling message is forbidden",
        )
    try:
        broker.subscription_groups.check_consuming(header.consumer_group, broker.clock.now_ms())
    except RequestRefused as error:
        raise _typed(error, ForbiddenType.GROUP) from None
    if broker.subscription_groups.is_forbidden(header.consumer_group, header.topic):
        raise _forbidden(
            ForbiddenType.SUBSCRIPTION,
            f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
        )
    try:
        topic = broker.topics.readable(header.topic)
    except RequestRefused as error:
        raise _typed(error, ForbiddenType.TOPIC) from None
    if not 0 <= header.queue_id < topic.read_queue_count:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_count}] "
            f"consumer:[{header.consumer_group}]",
        )
    return topic


def _forbidden(kind: ForbiddenType, remark: str) -> RequestRefused:
    return _typed(RequestRefused(ResponseCode.NO_PERMISSION, remark), kind)


def _typed(error: RequestRefused, kind: ForbiddenType) -> RequestRefused:
    """Return an error that says why there is no permission, if that is what is wrong."""
    if error.response_code == ResponseCode.NO_PERMISSION:
        error.reply_fields = {"forbiddenType": str(int(kind))}
    return error


def _selection(broker: "Broker", header: PullMessageHeader) -> Selection:
    """Return what is wanted. Raises ``RequestRefused``."""
    if header.sys_flag & PullFlag.CLASS_FILTER:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, selection.NO_CLASS_FILTER)
    if header.sys_flag & PullFlag.HAS_SUBSCRIPTION:
        if selection.is_tag_type(header.expression_type):
            return selection.of_tags(header.subscription)
        return broker.filters.of_expression(header.expression_type, header.subscription)
    group = broker.groups.consumer(header.consumer_group)
    if group is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
        )
    settings = broker.subscription_groups.get(header.consumer_group)
    if (
        settings is not None
        and not settings.consume_broadcast_enable
        and group.message_model == "BROADCASTING"
    ):
        raise _forbidden(
            ForbiddenType.BROADCASTING,
            f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
        )
    known = group.subscriptions.get(header.topic)
    if known is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
        )
    if known.sub_version < header.sub_version:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
        )
    if known.class_filter_mode:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, selection.NO_CLASS_FILTER)
    if selection.is_tag_type(known.expression_type):
        return selection.of_subscription(known)
    broker.filters.check_type(known.expression_type)
    one = broker.consumer_filters.find(header.topic, header.consumer_group)
    if one is None:
        raise RequestRefused(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "The broker's consumer filter data is not exist!Your expression may be wrong!",
        )
    if one.client_version < header.sub_version:
        raise RequestRefused(
            ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"
        )
    return broker.filters.of_group(one)


def _let_kernel_answer(
    broker: "Broker", header: PullMessageHeader, topic: TopicConfig, wanted: Selection
) -> None:
    """Let the kernel answer the pulls that follow this one, if it can."""
    if wanted.message_filter is not None or not broker.is_master:
        return
    if broker.resets.is_waiting(header.topic, header.consumer_group):
        return  # of one of its queues, to which this kernel would answer
    has_subscription = header.sys_flag & PullFlag.HAS_SUBSCRIPTION
    reader = Reader(
        header.topic,
        header.consumer_group,
        (header.subscription or "") if has_subscription else None,
        0 if has_subscription else wanted.version,
        wanted.tags_codes,
        topic.read_queue_count,
    )
    broker.store.deliverer.add(reader)


def _get(
    broker: "Broker", header: PullMessageHeader, wanted: Selection, queue_offset: int
) -> GetResult:
    return broker.store.get(
        header.topic,
        header.queue_id,
        queue_offset,
        header.max_msg_nums,
        tags_codes=wanted.tags_codes,
        message_filter=wanted.message_filter,
    )


def _code(result: GetResult, queue_offset: int) -> ResponseCode:
    if result.status in (GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE):
        is_moved = queue_offset != 0
        return ResponseCode.PULL_OFFSET_MOVED if is_moved else ResponseCode.PULL_NOT_FOUND
    return _CODES[result.status]


def _reply(
    broker: "Broker",
    request: Command,
    header: PullMessageHeader,
    result: GetResult,
    code: ResponseCode,
    begun_ms: int,
) -> Command:
    broker.stats.pulled(
        header.topic,
        header.consumer_group,
        result,
        queue_id=header.queue_id,
        latency_ms=broker.clock.monotonic_ms() - begun_ms,
    )
    if code is ResponseCode.PULL_OFFSET_MOVED and result.status is not GetStatus.FOUND:
        broker.tell_offset_moved(header, result.next_offset)
    return commands.reply(
        request,
        code,
        result.status.name,
        headers.encode(
            PullMessageReplyHeader(
                suggest_which_broker_id=0,
                next_begin_offset=result.next_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
            )
        ),
        result.data,
    )
