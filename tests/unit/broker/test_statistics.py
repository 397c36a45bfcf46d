"""28, 208, 315, 317 at a broker."""

import asyncio
from pathlib import Path

import broker_subject
from broker_subject import CLUSTER, NAME, Subject
from reput.broker.processors.statistics import readable
from reput.clock import ManualClock
from reput.format import bodies
from reput.format.bodies import (
    BrokerStats,
    ConsumerData,
    ConsumeStats,
    ConsumeStatsInBroker,
    HeartbeatData,
    KvTable,
    MessageQueue,
    SubscriptionData,
)
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import ConsumeStatsHeader, ConsumeStatsInBrokerHeader, StatsHeader

# The names that a broker of 4.9.7 answers to mqadmin brokerStatus.
JAVA_NAMES = """
    EndTransactionQueueSize bootTimestamp brokerVersion brokerVersionDesc commitLogDirCapacity
    commitLogDiskRatio commitLogMaxOffset commitLogMinOffset consumeQueueDiskRatio
    dispatchBehindBytes earliestMessageTimeStamp getFoundTps getMissTps getTotalTps
    getTransferedTps msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning
    msgPutTotalTodayMorning msgPutTotalTodayNow msgPutTotalYesterdayMorning pageCacheLockTimeMills
    pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putMessageAverageSize
    putMessageFailedTimes putMessageSizeTotal putMessageTimesTotal putTps
    queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
    remainTransientStoreBufferNumbs runtime sendThreadPoolQueueHeadWaitTimeMills
    sendThreadPoolQueueSize startAcceptSendRequestTimeStamp
    EndTransactionThreadPoolQueueCapacity dispatchMaxBuffer getMessageEntireTimeMax
    pullThreadPoolQueueCapacity putLatency99 putLatency999 putMessageDistributeTime
    putMessageEntireTimeMax queryThreadPoolQueueCapacity sendThreadPoolQueueCapacity
"""
NAMES_OF_5 = """
    ackThreadPoolQueueCapacity ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize
    brokerActive getTransferredTps litePullThreadPoolQueueCapacity
    litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize timerCongestNum
    timerDequeueTps timerEnqueueTps timerOffsetBehind timerReadBehind
"""


async def runtime(subject: Subject) -> dict[str, str]:
    reply = await subject.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    return bodies.decode(KvTable, reply.body).table


async def test_runtime_info_has_javas_names_and_true_values(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    async with broker_subject.running(tmp_path, clock=clock) as subject:
        empty = await runtime(subject)
        assert empty.keys() >= {*JAVA_NAMES.split(), *NAMES_OF_5.split()}
        assert (empty["putMessageTimesTotal"], empty["earliestMessageTimeStamp"]) == ("0", "-1")
        await subject.send("T", b"one")
        clock.advance((25 * 3600 + 61) * 1000)
        await subject.send("T", b"two")
        await subject.pull("T")
        found = await runtime(subject)
    assert found["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert (found["brokerVersion"], found["brokerVersionDesc"]) == ("407", "V4_9_7")
    assert (found["msgPutTotalTodayNow"], found["msgGetTotalTodayNow"]) == ("2", "2")
    assert found["earliestMessageTimeStamp"] == "1700000000000"
    assert found["putMessageSizeTotal"] == found["commitLogMaxOffset"]
    assert float(found["putMessageAverageSize"]) == int(found["commitLogMaxOffset"]) / 2
    assert 0 < float(found["commitLogDiskRatio"]) <= 1
    assert len(found["putTps"].split()) == 3


async def test_what_a_pool_holds_is_told(tmp_path: Path) -> None:
    pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}
    async with broker_subject.running(tmp_path, store=pool) as subject:
        await subject.send("T", b"one")
        found = await runtime(subject)
    # The log has one, and by and by one for its next file.
    assert found["remainTransientStoreBufferNumbs"] in ("2", "1")
    assert found["remainHowManyDataToCommit"].endswith(" B")


async def test_what_waits_for_the_timer_is_told(subject: Subject) -> None:
    await subject.send("T", b"later", properties={"TIMER_DELAY_SEC": "3600"})
    while (found := await runtime(subject))["timerCongestNum"] != "1":
        await asyncio.sleep(0.01)
    assert (found["timerOffsetBehind"], found["timerReadBehind"]) == ("0", "0")
    assert found["timerDequeueTps"] == "0.0"


def test_bytes_are_printed_as_java_does() -> None:
    # MixAll.humanReadableByteCount(bytes, false)
    assert [readable(one) for one in (0, 1023, 1024, 1536, 1 << 30, 252 << 30)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 GiB", "252.0 GiB",
    ]  # fmt: skip


async def view(subject: Subject, name: str, key: str) -> Command:
    header = StatsHeader(stats_name=name, stats_key=key)
    return await subject.ask(RequestCode.VIEW_BROKER_STATS_DATA, header)


async def test_a_level_whose_messages_are_gone_is_told(subject: Subject) -> None:
    """As Java does, of a salvaged store."""
    subject.parts.delayed.table.put(17, 3)
    assert (await runtime(subject))["scheduleMessageOffset_17"] == "3,0"


async def test_counters_of_puts_and_gets(subject: Subject) -> None:
    for _ in range(3):
        await subject.send("U", b"body")
    await subject.pull("U")
    # The broker samples by itself; twenty minutes later is a sample of every window but the day's.
    now_ms = subject.broker.clock.now_ms()
    subject.parts.deliveries.stats.step(now_ms + 1_200_000)
    puts = bodies.decode(BrokerStats, (await view(subject, "TOPIC_PUT_NUMS", "U")).body)
    assert (puts.stats_minute.sum, puts.stats_hour.sum) == (3, 3)
    size = bodies.decode(BrokerStats, (await view(subject, "TOPIC_PUT_SIZE", "U")).body)
    gets = bodies.decode(BrokerStats, (await view(subject, "GROUP_GET_NUMS", "U@consumers")).body)
    got = bodies.decode(BrokerStats, (await view(subject, "GROUP_GET_SIZE", "U@consumers")).body)
    assert gets.stats_minute.sum == 3
    assert got.stats_minute.sum == size.stats_minute.sum  # records go out as they came in
    total = bodies.decode(BrokerStats, (await view(subject, "BROKER_PUT_NUMS", CLUSTER)).body)
    assert total.stats_minute.sum == 4


async def test_a_counter_that_is_not_there_is_an_error(subject: Subject) -> None:
    reply = await view(subject, "TOPIC_PUT_NUMS", "None")
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "The stats <TOPIC_PUT_NUMS> <None> not exist",
    )


async def consume_stats(subject: Subject, topic: str | None = None) -> dict[MessageQueue, object]:
    header = ConsumeStatsHeader(consumer_group="group", topic=topic)
    reply = await subject.ask(RequestCode.GET_CONSUME_STATS, header)
    return {
        queue: (one.broker_offset, one.consumer_offset, one.last_timestamp)
        for queue, one in bodies.decode(ConsumeStats, reply.body).offset_table.items()
    }


async def test_how_far_a_group_is(subject: Subject) -> None:
    await subject.send("T")
    await subject.send("T")
    await subject.send("U")
    subject.parts.deliveries.consumer_offsets.put("T", "group", 0, 1)
    subject.parts.deliveries.consumer_offsets.put("Gone", "group", 0, 1)
    first_ms = subject.broker.store.store_time("T", 0, 0)
    found = await consume_stats(subject)
    assert found == {
        MessageQueue("T", NAME, 0): (2, 1, first_ms),
        MessageQueue("T", NAME, 1): (0, 0, 0),
        MessageQueue("T", NAME, 2): (0, 0, 0),
        MessageQueue("T", NAME, 3): (1, 0, 0),
    }
    # A topic that is named counts though nothing of it was read.
    assert {queue.topic for queue in await consume_stats(subject, "U")} == {"U"}
    assert {queue.topic for queue in await consume_stats(subject, " ")} == {"T"}
    assert await consume_stats(subject, "None") == {}


async def test_topics_that_members_have_given_up_are_left_out(subject: Subject) -> None:
    subject.parts.deliveries.consumer_offsets.put("T", "group", 0, 0)
    data = ConsumerData(
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        consume_type="CONSUME_PASSIVELY",
        group_name="group",
        message_model="CLUSTERING",
        subscription_data_set=[SubscriptionData(topic="U", sub_version=1)],
        unit_mode=False,
    )
    body = HeartbeatData(client_id="me", consumer_data_set=[data], producer_data_set=[])
    await subject.tell(RequestCode.HEART_BEAT, body)
    assert await consume_stats(subject) == {}


async def test_how_far_all_groups_are(subject: Subject) -> None:
    await subject.send("T")
    subject.parts.subscription_groups.find("group", 0)
    subject.parts.deliveries.consumer_offsets.put("T", "group", 0, 0)
    reply = await subject.ask(
        RequestCode.GET_BROKER_CONSUME_STATS, ConsumeStatsInBrokerHeader(is_order=False)
    )
    found = bodies.decode(ConsumeStatsInBroker, reply.body)
    assert found.broker_addr == subject.broker.identity.address
    assert found.total_diff == 2
    by_group = {name: stats for one in found.consume_stats_list for name, stats in one.items()}
    assert by_group["TOOLS_CONSUMER"] == []
    (stats,) = by_group["group"]
    assert len(stats.offset_table) == 4
    ordered = await subject.ask(
        RequestCode.GET_BROKER_CONSUME_STATS, ConsumeStatsInBrokerHeader(is_order=True)
    )
    assert bodies.decode(ConsumeStatsInBroker, ordered.body).total_diff == 0
