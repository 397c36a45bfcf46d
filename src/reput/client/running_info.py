"""Requests of operators to a consumer, through a broker: 307, 221 and 309.

Source: rocketmq 4.9.8 ``DefaultMQPushConsumerImpl.consumerRunningInfo``,
``ConsumeMessageConcurrentlyService.consumeMessageDirectly``.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from reput.client.core.consume_rates import ConsumeRates
from reput.client.core.offset_table import OffsetTable
from reput.client.instance import ClientInstance
from reput.client.listener import ConsumeContext, ConsumeResult, ListenerCalls
from reput.client.membership import Membership
from reput.client.message import received
from reput.client.queue_pops import PopSource
from reput.client.queue_pulls import MIB, PulledQueue
from reput.clock import Clock
from reput.config import key_of
from reput.errors import CorruptRecord
from reput.format import bodies, command, headers
from reput.format.codes import ResponseCode
from reput.format.command import Command


def consumer_status(request: Command, offsets: OffsetTable) -> Command:
    """Return the reply to 221: consumer offsets of the group in a topic."""
    header = headers.decode(headers.ConsumerStatusHeader, request.ext_fields)
    table = bodies.QueueOffsets(offsets.of_topic(header.topic))
    return command.reply(
        request, body=bodies.encode(bodies.ConsumerStatus(message_queue_table=table))
    )


def running_info(
    request: Command,
    instance: ClientInstance,
    membership: Membership,
    offsets: OffsetTable,
    queues: Iterable[PulledQueue],
    rates: Mapping[str, ConsumeRates],
    started_ms: int,
    *,
    is_orderly: bool = False,
    locked_ms: Mapping[bodies.MessageQueue, int] | None = None,
    sources: Iterable[PopSource] = (),
) -> Command:
    """Return the reply to 307: settings, queues with their cached messages, rates.

    Args:
        request: The request.
        instance: Client instance of the consumer.
        membership: Group and subscriptions.
        offsets: Consumer offsets of the group.
        queues: Queues of the member.
        rates: Consumption rates by topic.
        started_ms: Start time of the consumer, in ms since the epoch.
        is_orderly: True for an orderly listener.
        locked_ms: Queue to the time of its last lock, in ms since the epoch.
        sources: Sources of a pop consumer.
    """
    now_ms = instance.clock.now_ms()
    config = dataclasses.asdict(membership.config)
    properties = {
        **{key_of(name): str(value) for name, value in config.items()},
        "consumerGroup": membership.group,
        "PROP_NAMESERVER_ADDR": instance.config.namesrv_addr,
        "PROP_CONSUMEORDERLY": "true" if is_orderly else "false",
        "PROP_THREADPOOL_CORE_SIZE": str(membership.config.consume_concurrency),
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        "PROP_CONSUME_TYPE": membership.consume_type,
    }
    locks = locked_ms or {}
    body = bodies.ConsumerRunningInfo(
        mq_pop_table=bodies.PopQueueInfos(
            {source.queue: _source_info(source) for source in sources}
        ),
        mq_table=bodies.ProcessQueueInfos(
            {
                owned.queue: _queue_info(owned, offsets, locks.get(owned.queue, 0))
                for owned in queues
            }
        ),
        properties=properties,
        status_table={
            topic: rates[topic].status(now_ms) if topic in rates else _NOTHING
            for topic in sorted(membership.wanted)
        },
        subscription_set=[subscription.data() for subscription in membership.wanted.values()],
    )
    return command.reply(request, body=bodies.encode(body))


_NOTHING = ConsumeRates(0).status(0)


def _queue_info(
    pulled: PulledQueue, offsets: OffsetTable, locked_ms: int
) -> bodies.ProcessQueueInfo:
    messages = pulled.messages
    count = messages.message_count
    return bodies.ProcessQueueInfo(
        cached_msg_count=count,
        cached_msg_max_offset=messages.last_offset if count else 0,
        cached_msg_min_offset=messages.consumer_offset if count else 0,
        cached_msg_size_in_mi_b=messages.size_bytes // MIB,
        commit_offset=offsets.get(pulled.queue) or 0,
        droped=messages.is_dropped,
        last_consume_timestamp=messages.last_taken_ms,
        last_lock_timestamp=locked_ms,
        last_pull_timestamp=pulled.pulled_at_ms,
        locked=locked_ms > 0,
        transaction_msg_count=messages.taken_count if locked_ms else 0,
        transaction_msg_max_offset=messages.waiting_offset - 1 if locked_ms else 0,
        transaction_msg_min_offset=messages.consumer_offset if locked_ms else 0,
        try_unlock_times=0,
    )


def _source_info(source: PopSource) -> bodies.PopQueueInfo:
    return bodies.PopQueueInfo(
        droped=not source.is_ours,
        last_pop_timestamp=source.popped_at_ms,
        wait_ack_count=source.held_count,
    )


async def consume_directly(
    request: Command, calls: ListenerCalls, clock: Clock, *, is_orderly: bool
) -> Command:
    """Call a listener with a message of the broker's choice, and return the reply to 309."""
    header = headers.decode(headers.ConsumeDirectlyHeader, request.ext_fields)
    try:
        (message,) = received(request.body, header.broker_name or "")
        context = ConsumeContext(message.queue)
    except (CorruptRecord, ValueError) as error:
        remark = f"not one whole message: {error}"
        return command.reply(request, ResponseCode.SYSTEM_ERROR, remark)
    begun_ms = clock.monotonic_ms()
    result, error_raised = await calls.call([message], context)
    names_of = {
        ConsumeResult.SUCCESS: "CR_SUCCESS",
        ConsumeResult.LATER: "CR_LATER",
        ConsumeResult.COMMIT: "CR_COMMIT",
        ConsumeResult.ROLLBACK: "CR_ROLLBACK",
    }
    outcome = bodies.ConsumeDirectlyResult(
        auto_commit=context.auto_commit,
        consume_result="CR_THROW_EXCEPTION" if error_raised else names_of[result],
        order=is_orderly,
        remark=repr(error_raised) if error_raised else None,
        spent_time_mills=clock.monotonic_ms() - begun_ms,
    )
    return command.reply(request, body=bodies.encode(outcome))
