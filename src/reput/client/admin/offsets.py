"""Offsets: of groups, of queues, and their units."""

from reput.client.admin import members, topics
from reput.client.admin.cluster_calls import AdminConnection
from reput.client.core import requests
from reput.client.core.route_cache import TopicRoute
from reput.errors import BrokerError, InvalidOption
from reput.format import bodies, headers
from reput.format.bodies import ConsumeQueueUnits, MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command


async def consumer_offset(admin: AdminConnection, group: str, queue: MessageQueue) -> int | None:
    """Return the consumer offset of a group; None if it has none.

    For a young queue that still has its first message, brokers return 0 instead of None.
    """
    header = headers.QueryConsumerOffsetHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id
    )
    try:
        reply = await admin.calls.ask_queue(
            queue, requests.make(RequestCode.QUERY_CONSUMER_OFFSET, header)
        )
    except BrokerError as error:
        if error.response_code == ResponseCode.QUERY_NOT_FOUND:
            return None
        raise
    return _offset(reply)


async def update_consumer_offset(
    admin: AdminConnection, group: str, queue: MessageQueue, consumer_offset: int
) -> None:
    """Set the consumer offset of a group. Running members overwrite it: stop them first."""
    if consumer_offset < 0:
        raise InvalidOption("consumer_offset", consumer_offset, "0 or more")
    header = headers.UpdateConsumerOffsetHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=consumer_offset,
    )
    await admin.calls.ask_queue(queue, requests.make(RequestCode.UPDATE_CONSUMER_OFFSET, header))


async def reset_offsets(
    admin: AdminConnection, group: str, topic: str, timestamp_ms: int, *, is_forced: bool = True
) -> dict[MessageQueue, int]:
    """Reset a group to the messages of a time, whether it is running or not.

    Args:
        group: Consumer group.
        topic: The topic.
        timestamp_ms: Store time of the first message; -1: the end of the queues.
        is_forced: Also forwards; otherwise only backwards.

    Returns:
        The new consumer offsets.
    """
    if timestamp_ms < -1:
        raise InvalidOption("timestamp_ms", timestamp_ms, "ms since the epoch, or -1")
    header = headers.ResetOffsetHeader(
        topic=topic, group=group, timestamp=timestamp_ms, is_force=is_forced
    )
    route = await topics.topic_route(admin, topic)
    consumer_offsets: dict[MessageQueue, int] = {}
    for broker_name in sorted(route.brokers):
        request = requests.make(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        try:
            reply = await admin.calls.ask(route.master(broker_name), request)
        except BrokerError:
            # One of two codes if no member is connected; then only the table was changed.
            if await members.consumer_connection(admin, group) is not None:
                raise
            consumer_offsets.update(
                await _reset_offline(admin, group, route, broker_name, timestamp_ms, is_forced)
            )
        else:
            consumer_offsets.update(bodies.decode(bodies.ResetOffsets, reply.body).offset_table)
    return dict(sorted(consumer_offsets.items()))


async def _reset_offline(
    admin: AdminConnection,
    group: str,
    route: TopicRoute,
    broker_name: str,
    timestamp_ms: int,
    is_forced: bool,
) -> dict[MessageQueue, int]:
    consumer_offsets: dict[MessageQueue, int] = {}
    for queue in route.subscribe_queues:
        if queue.broker_name != broker_name:
            continue
        if timestamp_ms == -1:
            wanted = await max_offset(admin, queue)
        else:
            wanted = await search_offset(admin, queue, timestamp_ms)
        if not is_forced:
            known = await consumer_offset(admin, group, queue)
            wanted = wanted if known is None else min(known, wanted)
        await update_consumer_offset(admin, group, queue, wanted)
        consumer_offsets[queue] = wanted
    return consumer_offsets


async def clone_offsets(admin: AdminConnection, from_group: str, to_group: str, topic: str) -> None:
    """Copy the consumer offsets of a topic from one group to another."""
    header = headers.CloneGroupOffsetHeader(
        src_group=from_group, dest_group=to_group, topic=topic, offline=False
    )
    await admin.calls.change_brokers(
        await admin.calls.masters_of_group(from_group),
        lambda: requests.make(RequestCode.CLONE_GROUP_OFFSET, header),
    )


async def min_offset(admin: AdminConnection, queue: MessageQueue) -> int:
    """Return the first queue offset of a queue."""
    return _offset(await admin.calls.ask_queue(queue, _queue(RequestCode.GET_MIN_OFFSET, queue)))


async def max_offset(admin: AdminConnection, queue: MessageQueue) -> int:
    """Return the queue offset after the last message."""
    return _offset(await admin.calls.ask_queue(queue, _queue(RequestCode.GET_MAX_OFFSET, queue)))


async def search_offset(admin: AdminConnection, queue: MessageQueue, timestamp_ms: int) -> int:
    """Return the queue offset of the first message stored at or after a time.

    Brokers before 5.1.1 return the nearest one, possibly the previous.
    """
    header = headers.SearchOffsetHeader(
        topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
    )
    request = requests.make(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    return _offset(await admin.calls.ask_queue(queue, request))


async def earliest_store_time(admin: AdminConnection, queue: MessageQueue) -> int:
    """Return the store time of the oldest message, in ms since the epoch.

    For an empty queue, brokers return -1 or an arbitrary value.
    """
    request = _queue(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
    reply = await admin.calls.ask_queue(queue, request)
    return headers.decode(headers.TimestampReplyHeader, reply.ext_fields).timestamp


async def consume_queue(
    admin: AdminConnection,
    queue: MessageQueue,
    queue_offset: int,
    count: int,
    group: str | None = None,
) -> ConsumeQueueUnits:
    """Return units of a consume queue and, with a group, whether its filter matches each."""
    header = headers.QueryConsumeQueueHeader(
        topic=queue.topic,
        queue_id=queue.queue_id,
        index=queue_offset,
        count=count,
        consumer_group=group,
    )
    request = requests.make(RequestCode.QUERY_CONSUME_QUEUE, header)
    return bodies.decode(ConsumeQueueUnits, (await admin.calls.ask_queue(queue, request)).body)


def _offset(reply: Command) -> int:
    return headers.decode(headers.OffsetReplyHeader, reply.ext_fields).offset


def _queue(code: RequestCode, queue: MessageQueue) -> Command:
    header = headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
    return requests.make(code, header)
