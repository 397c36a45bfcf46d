"""What a consumer tells operators who ask through a broker: 307 and 221.

Source: rocketmq 4.9.8 ``DefaultMQPushConsumerImpl.consumerRunningInfo``.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from reput.client.core.consume_rates import ConsumeRates
from reput.client.core.offset_table import OffsetTable
from reput.client.instance import ClientInstance
from reput.client.membership import Membership
from reput.client.queue_pulls import MIB, PulledQueue
from reput.config import key_of
from reput.format import bodies, command, headers
from reput.format.command import Command


def consumer_status(request: Command, offsets: OffsetTable) -> Command:
    """Return the reply to 221: how far the group is in the queues of a topic."""
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
) -> Command:
    """Return the reply to 307: settings, queues with what of them is here, rates.

    Args:
        request: The request.
        instance: Of the consumer.
        membership: What it wants.
        offsets: How far the group is.
        queues: The queues that are its own.
        rates: Topic to how fast it is consumed.
        started_ms: When the consumer was.
        is_orderly: Whether its listener is.
        locked_ms: Queue -> when the broker locked it last, ms since the epoch.
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
        mq_table=bodies.ProcessQueueInfos(
            {one.queue: _queue_info(one, offsets, locks.get(one.queue, 0)) for one in queues}
        ),
        properties=properties,
        status_table={
            topic: rates[topic].status(now_ms) if topic in rates else _NOTHING
            for topic in sorted(membership.wanted)
        },
        subscription_set=[one.data() for one in membership.wanted.values()],
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
