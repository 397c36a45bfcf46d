"""28, 208, 315, 317: how a broker is doing, and how far behind groups are.

Names are Java's (4.9.7 ``AdminBrokerProcessor.prepareRuntimeInfo``, ``StoreStatsService``). What a
broker of threads and queues has and this one has not (pools, locks) is given where admin tools read
it, with the value that is true here.
"""

import shutil
from typing import TYPE_CHECKING

from reput.broker.processors.connections import topics_of_group
from reput.broker.stats import TIMER_DEQUEUE_NUMS, TOPIC_PUT_NUMS, Sums
from reput.errors import RequestRefused
from reput.format import bodies, codes, command as commands, headers, names
from reput.format.bodies import (
    BrokerStats,
    ConsumeStats,
    ConsumeStatsInBroker,
    KvTable,
    MessageQueue,
    OffsetWrapper,
    OffsetWrappers,
    StatsItem,
)
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import ConsumeStatsHeader, ConsumeStatsInBrokerHeader, StatsHeader
from reput.remoting.channel import Channel
from reput.store.config_tables import TopicConfig
from reput.store.disk import Disk

if TYPE_CHECKING:
    from reput.broker.server import Broker

_RATE_SPANS_MS = (10_000, 60_000, 600_000)
_RATES = ("putTps", "getFoundTps", "getMissTps", "getTransferedTps")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_NO_POOL = 2**31 - 1
"""Java's count of free pool buffers where there is no pool."""
_NO_LIMIT = str(2**31 - 1)
"""Of queues in front of thread pools: none can be full here."""


# --- the broker -----------------------------------------------------------------------


def runtime_info(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return how the broker is doing, a text a name."""
    table = _described(broker)
    for part in (_counted, _timed, _parked, _stored):
        table |= part(broker)
    return commands.reply(request, body=bodies.encode(KvTable(table=dict(sorted(table.items())))))


def _described(broker: "Broker") -> dict[str, str]:
    seconds, _ = divmod(broker.clock.now_ms() - broker.started_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return {
        "bootTimestamp": str(broker.started_ms),
        "brokerActive": "true",  # 5.x
        "brokerVersion": str(codes.VERSION),
        "brokerVersionDesc": codes.VERSION_NAME,
        "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
        "startAcceptSendRequestTimeStamp": "0",
    }


def _counted(broker: "Broker") -> dict[str, str]:
    stats = broker.stats
    stats.look()
    mornings = stats.mornings
    rates = [stats.rates(span_ms) for span_ms in _RATE_SPANS_MS]
    found = {
        name: " ".join(str(one[number]) for one in rates) for number, name in enumerate(_RATES)
    }
    found["getTransferredTps"] = found["getTransferedTps"]  # its name in 5.x
    found["getTotalTps"] = " ".join(str(one[1] + one[2]) for one in rates)
    # What waits for the disk is what Java keeps in the queue of its pool for sends.
    waiting_count = len(broker.intake)
    return found | {
        "msgGetTotalTodayMorning": str(mornings.got_today),
        "msgGetTotalTodayNow": str(stats.got_count),
        "msgGetTotalYesterdayMorning": str(mornings.got_yesterday),
        "msgPutTotalTodayMorning": str(mornings.put_today),
        "msgPutTotalTodayNow": str(stats.put_count),
        "msgPutTotalYesterdayMorning": str(mornings.put_yesterday),
        "pageCacheLockTimeMills": "0",
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueSize": "0",
        "putMessageAverageSize": str(stats.put_bytes / max(stats.put_count, 1)),
        "putMessageFailedTimes": str(stats.put_failed_count),
        "putMessageSizeTotal": str(stats.put_bytes),
        "putMessageTimesTotal": str(stats.put_count),
        "queryThreadPoolQueueHeadWaitTimeMills": "0",
        "queryThreadPoolQueueSize": "0",
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "sendThreadPoolQueueSize": str(waiting_count),
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": _NO_LIMIT,
        "dispatchMaxBuffer": "0",  # nothing ever sets it in Java either
        "getMessageEntireTimeMax": str(stats.get_ms_max),
        "pullThreadPoolQueueCapacity": _NO_LIMIT,
        "queryThreadPoolQueueCapacity": _NO_LIMIT,
        "sendThreadPoolQueueCapacity": _NO_LIMIT,
        # 5.x
        "ackThreadPoolQueueCapacity": _NO_LIMIT,
        "ackThreadPoolQueueHeadWaitTimeMills": "0",
        "ackThreadPoolQueueSize": "0",
        "litePullThreadPoolQueueCapacity": _NO_LIMIT,
        "litePullThreadPoolQueueHeadWaitTimeMills": "0",
        "litePullThreadPoolQueueSize": "0",
    }


def _timed(broker: "Broker") -> dict[str, str]:
    times = broker.intake.put_times
    return {
        "putLatency99": f"{times.percentile_ms(0.99):.2f}",
        "putLatency999": f"{times.percentile_ms(0.999):.2f}",
        "putMessageDistributeTime": times.distribution(),
        "putMessageEntireTimeMax": str(times.max_ms),
    }


def _parked(broker: "Broker") -> dict[str, str]:
    """Return how the timer is doing; 5.x."""
    timers, stats, now_ms = broker.timers, broker.stats, broker.clock.now_ms()
    read_ms = timers.check(now_ms).read_time_ms
    cluster = broker.config.broker_cluster_name
    return {
        "timerCongestNum": str(len(timers)),
        "timerDequeueTps": str(stats.tps(TIMER_DEQUEUE_NUMS, cluster)),
        "timerEnqueueTps": str(stats.tps(TOPIC_PUT_NUMS, names.TIMER_TOPIC)),
        "timerOffsetBehind": str(timers.behind_count),
        "timerReadBehind": str(max(now_ms - read_ms, 0) // 1000),
    }


def _stored(broker: "Broker") -> dict[str, str]:
    store, log, root = broker.store, broker.store.log, broker.store.root
    earliest_ms = log.store_timestamp_at(log.min_offset)
    disk = Disk()
    used = {folder: disk.usage(folder) for folder in broker.store_config.commit_log_folders}
    space = shutil.disk_usage(root)
    found = {
        "commitLogDirCapacity": f"Total : {readable(space.total)}, Free : {readable(space.free)}.",
        "commitLogDiskRatio": str(min(used.values())),
        "commitLogMaxOffset": str(store.max_physical_offset),
        "commitLogMinOffset": str(store.min_physical_offset),
        "consumeQueueDiskRatio": str(disk.usage(root)),
        "dispatchBehindBytes": str(log.written_offset - store.dispatcher.dispatched_offset),
        "earliestMessageTimeStamp": str(-1 if earliest_ms is None else earliest_ms),
        "remainHowManyDataToFlush": readable(log.written_offset - log.flushed_offset),
        "remainTransientStoreBufferNumbs": str(log.pool.available if log.pool else _NO_POOL),
    }
    if log.pool:
        found["remainHowManyDataToCommit"] = readable(log.written_offset - log.readable_offset)
    found |= {f"commitLogDiskRatio_{folder}": str(ratio) for folder, ratio in used.items()}
    # Of a level that has no queue any more only the table knows.
    levels = {level: (reached, 0) for level, reached in broker.delayed.table.all().items()}
    found |= {
        f"scheduleMessageOffset_{level}": f"{reached},{end}"
        for level, (reached, end) in (levels | broker.delayed.progress()).items()
    }
    if refusal := store.refusal:
        found["putRefusal"] = refusal  # not in Java: why nothing can be put
    return found


def readable(byte_count: int) -> str:
    """Return bytes as Java prints them: ``2.0 GiB``."""
    size, unit = float(byte_count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{byte_count} B"


def broker_stats(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return what a counter did in the last minute, hour and day."""
    header = headers.decode(StatsHeader, request.ext_fields)
    broker.stats.look()  # a counter is there as soon as something is counted
    found = broker.stats.find(header.stats_name, header.stats_key)
    if found is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
        )
    minute, hour, day = map(_item, found)
    answer = BrokerStats(stats_day=day, stats_hour=hour, stats_minute=minute)
    return commands.reply(request, body=bodies.encode(answer))


def _item(sums: Sums) -> StatsItem:
    return StatsItem(avgpt=sums.avgpt, sum=sums.sum, tps=sums.tps)


# --- groups ---------------------------------------------------------------------------


def consume_stats(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return how far a group is in each queue that it reads."""
    header = headers.decode(ConsumeStatsHeader, request.ext_fields)
    group = header.consumer_group
    is_one = bool(header.topic and header.topic.strip())
    names = [header.topic or ""] if is_one else topics_of_group(broker, group)
    answer = ConsumeStats(consume_tps=0.0, offset_table=OffsetWrappers())
    for topic in _readable(broker, group, names):
        answer.offset_table.update(_progress(broker, group, topic, topic.read_queue_count))
        answer.consume_tps += broker.stats.get_tps(topic.name, group)
    return commands.reply(request, body=bodies.encode(answer))


def all_consume_stats(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return how far each group is in each topic that it reads."""
    header = headers.decode(ConsumeStatsInBrokerHeader, request.ext_fields)
    topics_by_group: dict[str, list[str]] = {}
    for topic_name, group in sorted(broker.consumer_offsets.readers()):
        topics_by_group.setdefault(group, []).append(topic_name)
    behind_count = 0
    groups = []
    for group in broker.subscription_groups.all():
        found = []
        for topic in _readable(broker, group, topics_by_group.get(group, [])):
            if header.is_order and not topic.order:
                continue
            progress = _progress(broker, group, topic, topic.write_queue_count)
            behind_count += sum(
                one.broker_offset - one.consumer_offset for one in progress.values()
            )
            tps = broker.stats.get_tps(topic.name, group)
            found.append(ConsumeStats(consume_tps=tps, offset_table=progress))
        groups.append({group: found})
    answer = ConsumeStatsInBroker(
        broker_addr=broker.address, consume_stats_list=groups, total_diff=behind_count
    )
    return commands.reply(request, body=bodies.encode(answer))


def _readable(broker: "Broker", group: str, names: list[str]) -> list[TopicConfig]:
    """Return those of a group's topics that exist, and that its members have not given up."""
    members = broker.groups.consumer(group)
    subscribed = members.subscriptions if members is not None else {}
    found = []
    for name in names:
        topic = broker.topics.get(name)
        if topic is not None and (not subscribed or name in subscribed):
            found.append(topic)
    return found


def _progress(broker: "Broker", group: str, topic: TopicConfig, queue_count: int) -> OffsetWrappers:
    found = OffsetWrappers()
    consumer_offsets = broker.consumer_offsets.of(topic.name, group)
    for queue_id in range(queue_count):
        consumer_offset = max(consumer_offsets.get(queue_id, 0), 0)
        last_ms = None
        if consumer_offset:
            last_ms = broker.store.store_time(topic.name, queue_id, consumer_offset - 1)
        queue = MessageQueue(topic.name, broker.config.broker_name, queue_id)
        found[queue] = OffsetWrapper(
            broker_offset=broker.store.max_offset(topic.name, queue_id),
            consumer_offset=consumer_offset,
            last_timestamp=last_ms or 0,
            pull_offset=consumer_offset,  # what it has pulled since is not kept
        )
    return found
