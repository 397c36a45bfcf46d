"""28, 208, 315, 317 at a broker."""

from pathlib import Path

import world
from reput.broker.processors.statistics import readable
from reput.clock import ManualClock
from reput.format import bodies
from reput.format.bodies import (
    KvTable,
)
from reput.format.codes import RequestCode
from world import Subject

# The names in the reply of a 4.9.7 broker to mqadmin brokerStatus.
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


async def test_runtime_info_has_the_names_of_java_and_true_values(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    async with world.broker(tmp_path, clock=clock) as subject:
        empty = await runtime(subject)
        assert empty.keys() >= {*JAVA_NAMES.split(), *NAMES_OF_5.split()}
        assert (empty["putMessageTimesTotal"], empty["earliestMessageTimeStamp"]) == ("0", "-1")
        await subject.send("T", b"one")
        clock.advance((25 * 3600 + 61) * 1000)
        await subject.send("T", b"two")
        await subject.pull("T")
        info = await runtime(subject)
    assert info["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert (info["brokerVersion"], info["brokerVersionDesc"]) == ("407", "V4_9_7")
    assert (info["msgPutTotalTodayNow"], info["msgGetTotalTodayNow"]) == ("2", "2")
    assert info["earliestMessageTimeStamp"] == "1700000000000"
    assert info["putMessageSizeTotal"] == info["commitLogMaxOffset"]
    assert float(info["putMessageAverageSize"]) == int(info["commitLogMaxOffset"]) / 2
    assert 0 < float(info["commitLogDiskRatio"]) <= 1
    assert len(info["putTps"].split()) == 3


async def test_runtime_info_reports_the_pool(tmp_path: Path) -> None:
    pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}
    async with world.broker(tmp_path, store=pool) as subject:
        await subject.send("T", b"one")
        info = await runtime(subject)
    # The log has one buffer, and soon another for its next file.
    assert info["remainTransientStoreBufferNumbs"] in ("2", "1")
    assert info["remainHowManyDataToCommit"].endswith(" B")


def test_bytes_are_printed_as_java_does() -> None:
    # MixAll.humanReadableByteCount(bytes, false)
    assert [readable(size) for size in (0, 1023, 1024, 1536, 1 << 30, 252 << 30)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 GiB", "252.0 GiB",
    ]  # fmt: skip


async def test_a_level_without_messages_is_reported(subject: Subject) -> None:
    """Java also lists it, for a salvaged store."""
    subject.parts.delayed.table.put(17, 3)
    assert (await runtime(subject))["scheduleMessageOffset_17"] == "3,0"
