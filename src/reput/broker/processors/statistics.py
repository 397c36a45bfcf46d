"""Codes 28, 208, 315, 317: the broker's state, and the progress of groups.

Names are Java's (4.9.7 ``AdminBrokerProcessor.prepareRuntimeInfo``, ``StoreStatsService``). Values
about thread pools, queues and locks, which this broker lacks, are included for admin tools, with
the value that is true here.
"""

from reput import __version__
from reput.broker.counters.stats import TIMER_DEQUEUE_NUMS, TOPIC_PUT_NUMS, WindowTotal
from reput.broker.parts import Parts
from reput.broker.processors.offsets import topics_of_group
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
from reput.remoting.long_replies import CHUNK, LIGHT_CHUNK, LongBody, chunks, sort
from reput.remoting.server import LongReply
from reput.remoting.time_slices import Steps
from reput.store.tables.config_tables import TopicConfig

_RATE_SPANS_MS = (10_000, 60_000, 600_000)
_RATES = ("putTps", "getFoundTps", "getMissTps", "getTransferedTps")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_ALL_GROUPS = "all groups; ask for each group with request 208"
_NO_POOL = 2**31 - 1
"""Java's count of free pool buffers if there is no pool."""
_NO_LIMIT = str(2**31 - 1)
"""Capacity of the queues of thread pools, which cannot be full here."""


# --- the broker -----------------------------------------------------------------------


def runtime_info(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the state of the broker as a table of texts."""
    yield from parts.deliveries.stats.update()
    table = _described(parts)
    for part in (_counted, _timed, _parked, _stored, _undecided, _replicated):
        table |= part(parts)
    return commands.reply(request, body=bodies.encode(KvTable(table=dict(sorted(table.items())))))


def _described(parts: Parts) -> dict[str, str]:
    seconds, _ = divmod(parts.clock.now_ms() - parts.identity.started_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return {
        "bootTimestamp": str(parts.identity.started_ms),
        # 5.x; false on slaves, which deliver no delayed messages and check no transactions.
        "brokerActive": str(parts.identity.is_master).lower(),
        "brokerVersion": str(codes.VERSION),
        "brokerVersionDesc": codes.VERSION_NAME,
        "reputVersion": __version__,
        "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
        "startAcceptSendRequestTimeStamp": "0",
    }


def _counted(parts: Parts) -> dict[str, str]:
    stats = parts.deliveries.stats
    mornings = stats.mornings
    rates = [stats.rates(span_ms) for span_ms in _RATE_SPANS_MS]
    values = {
        name: " ".join(str(rates_of_span[number]) for rates_of_span in rates)
        for number, name in enumerate(_RATES)
    }
    values["getTransferredTps"] = values["getTransferedTps"]  # its name in 5.x
    values["getTotalTps"] = " ".join(
        str(rates_of_span[1] + rates_of_span[2]) for rates_of_span in rates
    )
    # Sends that wait for the disk correspond to the queue of Java's send pool.
    waiting_count = len(parts.pending_replies)
    return values | {
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
        "dispatchMaxBuffer": "0",  # never set in Java either
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


def _timed(parts: Parts) -> dict[str, str]:
    times = parts.pending_replies.put_times
    return {
        "putLatency99": f"{times.percentile_ms(0.99):.2f}",
        "putLatency999": f"{times.percentile_ms(0.999):.2f}",
        "putMessageDistributeTime": times.distribution(),
        "putMessageEntireTimeMax": str(times.max_ms),
    }


def _parked(parts: Parts) -> dict[str, str]:
    """Return the state of the timer; 5.x."""
    timers, stats, now_ms = parts.timers, parts.deliveries.stats, parts.clock.now_ms()
    read_ms = timers.check(now_ms).read_time_ms
    cluster = parts.settings.broker.broker_cluster_name
    return {
        "timerCongestNum": str(len(timers)),
        "timerDequeueTps": str(stats.tps(TIMER_DEQUEUE_NUMS, cluster)),
        "timerEnqueueTps": str(stats.tps(TOPIC_PUT_NUMS, names.TIMER_TOPIC)),
        "timerOffsetBehind": str(timers.pending_count),
        "timerReadBehind": str(max(now_ms - read_ms, 0) // 1000),
    }


def _stored(parts: Parts) -> dict[str, str]:
    store, log, root = parts.store, parts.store.log, parts.store.root
    earliest_ms = log.store_timestamp_at(log.min_offset)
    disk = store.disk
    used = {folder: disk.usage(folder) for folder in parts.settings.store.commit_log_folders}
    space = disk.space(root)
    state = {
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
        state["remainHowManyDataToCommit"] = readable(log.written_offset - log.readable_offset)
    state |= {f"commitLogDiskRatio_{folder}": str(ratio) for folder, ratio in used.items()}
    # The table has positions of levels without a queue, too.
    levels = {level: (reached, 0) for level, reached in parts.delayed.table.all().items()}
    state |= {
        f"scheduleMessageOffset_{level}": f"{reached},{end}"
        for level, (reached, end) in (levels | parts.delayed.progress()).items()
    }
    if refusal := store.why_no_puts:
        state["putRefusal"] = refusal  # not in Java: why puts are refused
    return state


def _undecided(parts: Parts) -> dict[str, str]:
    """Return the number of messages that wait for a client's decision; not in Java."""
    return {
        "halfMessages": str(parts.transactions.waiting_count),
        "poppedMessages": str(parts.pops.revive.checkpoints.message_count),
    }


def _replicated(parts: Parts) -> dict[str, str]:
    """Return the state of replication; not in Java."""
    config = parts.settings.store
    table = {"brokerRole": str(config.broker_role)}
    if parts.identity.is_master:
        info = parts.replication.slave_port.slaves_status()
        return table | {
            "slavesConnected": str(len(info.ha_connection_info)),
            "slavesInSync": str(info.in_sync_slave_nums),
            "slavesNeeded": str(config.replicas_needed - 1),
            "slavesRefused": str(sum(parts.replication.slave_port.counts.refused.values())),
        }
    status = parts.replication.follower.status
    end = parts.store.replica_log.end
    table |= {
        "masterAddress": status.master_address,
        "masterHaAddress": status.master_ha_address,
        "masterMaxOffset": str(status.master_max_offset),
        "slaveLagBytes": str(max(status.master_max_offset - end, 0)),
        "slaveMaxOffset": str(end),
        "slaveState": str(status.state),
    }
    if parts.settings.master_role:
        table["masterRole"] = parts.settings.master_role
    if status.reason:
        table["slaveReason"] = status.reason
    if status.diverged_offset is not None:
        table["slaveDivergedOffset"] = str(status.diverged_offset)
    return table


def readable(byte_count: int) -> str:
    """Format a number of bytes like Java: ``2.0 GiB``."""
    size, unit = float(byte_count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{byte_count} B"


def broker_stats(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the values of a counter for the last minute, hour and day."""
    header = headers.decode(StatsHeader, request.ext_fields)
    yield from parts.deliveries.stats.update()  # so that new counters exist
    totals = parts.deliveries.stats.find(header.stats_name, header.stats_key)
    if totals is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
        )
    minute, hour, day = map(_item, totals)
    stats = BrokerStats(stats_day=day, stats_hour=hour, stats_minute=minute)
    return commands.reply(request, body=bodies.encode(stats))


def _item(total: WindowTotal) -> StatsItem:
    return StatsItem(avgpt=total.avgpt, sum=total.sum, tps=total.tps)


# --- groups ---------------------------------------------------------------------------


def consume_stats(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the progress of a group in each queue that it reads."""
    header = headers.decode(ConsumeStatsHeader, request.ext_fields)
    group = header.consumer_group
    has_topic = bool(header.topic and header.topic.strip())
    topic_names = [header.topic or ""] if has_topic else (yield from topics_of_group(parts, group))
    consume_tps = 0.0
    progress = LongBody(f"group {group}; name one topic")
    for number, name in enumerate(topic_names, 1):
        if number % CHUNK == 0:
            yield
        topic = _readable(parts, group, name)
        if topic is not None:
            yield from _add_progress(parts, progress, group, topic, topic.read_queue_count)
            consume_tps += parts.deliveries.stats.get_tps(name, group)
    answer = ConsumeStats(consume_tps=consume_tps, offset_table=OffsetWrappers())
    return commands.reply(request, body=progress.encode_in(answer, "offset_table"))


def all_consume_stats(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the progress of each group in each topic that it reads."""
    header = headers.decode(ConsumeStatsInBrokerHeader, request.ext_fields)
    topics_by_group: dict[str, list[str]] = {}
    for chunk in chunks(parts.deliveries.consumer_offsets.readers(), LIGHT_CHUNK):
        for topic_name, group in chunk:
            topics_by_group.setdefault(group, []).append(topic_name)
        yield
    lag = 0  # positions of pulls are not stored, so no messages are in flight
    groups = LongBody(_ALL_GROUPS)
    for number, group in enumerate(parts.subscription_groups.all(), 1):
        if number % CHUNK == 0:
            yield
        body = LongBody(_ALL_GROUPS)
        for topic_number, name in enumerate((yield from sort(topics_by_group.get(group, ()))), 1):
            if topic_number % CHUNK == 0:
                yield  # also after topics that are left out
            topic = _readable(parts, group, name)
            if topic is None or (header.is_order and not topic.order):
                continue
            progress = LongBody(_ALL_GROUPS)
            lag += yield from _add_progress(parts, progress, group, topic, topic.write_queue_count)
            tps = parts.deliveries.stats.get_tps(name, group)
            stats = ConsumeStats(consume_tps=tps, offset_table=OffsetWrappers())
            body.add_text(progress.encode_in(stats, "offset_table"))
            yield
        groups.add_text(b"{%b:%b}" % (bodies.encode(group), body.as_list()))
    answer = ConsumeStatsInBroker(
        broker_addr=parts.identity.address, consume_stats_list=[], total_diff=lag
    )
    return commands.reply(request, body=groups.encode_in(answer, "consume_stats_list"))


def _readable(parts: Parts, group: str, name: str) -> TopicConfig | None:
    """Return a group's topic if it exists, and if its members still subscribe to it."""
    members = parts.groups.consumer(group)
    subscribed = members.subscriptions if members is not None else {}
    return parts.topics.get(name) if not subscribed or name in subscribed else None


def _add_progress(
    parts: Parts, body: LongBody, group: str, topic: TopicConfig, queue_count: int
) -> Steps[int]:
    """Add a group's progress in the queues of a topic; return its consumer lag."""
    lag = 0
    consumer_offsets = parts.deliveries.consumer_offsets.of(topic.name, group)
    for queue_id in range(queue_count):
        consumer_offset = max(consumer_offsets.get(queue_id, 0), 0)
        last_ms = None
        if consumer_offset:
            last_ms = parts.store.store_time(topic.name, queue_id, consumer_offset - 1)
        progress = OffsetWrapper(
            broker_offset=parts.store.max_offset(topic.name, queue_id),
            consumer_offset=consumer_offset,
            last_timestamp=last_ms or 0,
            pull_offset=consumer_offset,  # positions of pulls are not stored
        )
        lag += progress.broker_offset - consumer_offset
        body.add_pair(
            MessageQueue(topic.name, parts.settings.broker.broker_name, queue_id), progress
        )
        if len(body) % CHUNK == 0:
            yield
    return lag
