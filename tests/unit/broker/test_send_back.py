"""36, over a connection: order of the checks, codes, and what consumers see then."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import broker_subject
from broker_subject import Subject, messages_in
from reput.clock import ManualClock
from reput.format import message as record, names
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import SendBackHeader
from reput.format.message import StoredMessage
from reput.store.config import FlushDiskType
from reput.store.incoming import IncomingMessage
from reput.store.table_files import SubscriptionGroup

START_MS = 1_700_000_000_000
DELAYS = "1s 2s 3s 4s 5s 6s 7s 8s 9s 10s"


def stored(subject: Subject, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    subject.broker.store.step_memory()
    result = subject.broker.store.get(topic, queue_id, 0)
    return [record.decode(bytes(one)) for one in result.records]


def deliver(subject: Subject) -> None:
    broker = subject.broker
    broker.store.step_memory()
    while broker.parts.delayed.step(broker.clock.now_ms()):
        pass
    broker.store.step_memory()


async def send_back(subject: Subject, offset: int, group: str = "G", **fields: Any) -> Command:
    header = SendBackHeader(offset=offset, group=group, **{"delay_level": 0, **fields})
    return await subject.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest_asyncio.fixture
async def timed(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Subject]:
    """A broker whose time stands still."""
    async with broker_subject.running(
        tmp_path, clock=clock, store={"message_delay_level": DELAYS}
    ) as one:
        await one.send("T", b"body", properties={"TAGS": "a"})
        yield one


async def test_it_comes_again_later_and_each_time_later_still(
    timed: Subject, clock: ManualClock
) -> None:
    (message,) = stored(timed, "T")
    for attempt in range(1, 4):
        reply = await send_back(timed, message.physical_offset)
        assert (reply.code, reply.remark) == (ResponseCode.SUCCESS, None)
        clock.advance((3 + attempt - 1) * 1000 - 1)
        deliver(timed)
        assert len(stored(timed, "%RETRY%G")) == attempt - 1
        clock.advance(1)
        deliver(timed)
        pulled = await timed.pull("%RETRY%G", consumer_group="G", queue_offset=attempt - 1)
        (message,) = messages_in(pulled.body)
        assert message.reconsume_times == attempt
        assert message.properties["RETRY_TOPIC"] == "T"
        assert message.body == b"body"
        assert message.tags == "a"


async def test_after_the_last_attempt_it_is_a_dead_letter_at_once(timed: Subject) -> None:
    (message,) = stored(timed, "T")
    reply = await send_back(timed, message.physical_offset, max_reconsume_times=0)
    assert reply.code == ResponseCode.SUCCESS
    (dead,) = stored(timed, "%DLQ%G")
    assert dead.reconsume_times == 1
    assert stored(timed, names.SCHEDULE_TOPIC, 2) == []
    pulled = await timed.pull("%DLQ%G")
    assert [one.body for one in messages_in(pulled.body)] == [b"body"]


async def test_the_time_of_what_waits_survives_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    settings: dict[str, Any] = {"clock": clock, "store": {"message_delay_level": DELAYS}}
    async with broker_subject.running(tmp_path, **settings) as subject:
        for number in range(3):
            await subject.send("T", b"%d" % number)
            await send_back(subject, stored(subject, "T")[-1].physical_offset)
            clock.advance(1000)
        deliver(subject)  # 3 s later: the first
        assert [one.body for one in stored(subject, "%RETRY%G")] == [b"0"]
    clock.advance(999)
    async with broker_subject.running(tmp_path, **settings) as subject:
        deliver(subject)
        assert [one.body for one in stored(subject, "%RETRY%G")] == [b"0"]
        clock.advance(1)
        deliver(subject)
        assert [one.body for one in stored(subject, "%RETRY%G")] == [b"0", b"1"]
    clock.advance(60_000)
    async with broker_subject.running(tmp_path, **settings) as subject:
        deliver(subject)
        assert [one.body for one in stored(subject, "%RETRY%G")] == [b"0", b"1", b"2"]


async def test_who_waits_for_the_message_gets_it_from_the_loop(tmp_path: Path) -> None:
    """No step by hand: the broker's own loops, by the clock of the machine."""
    async with broker_subject.running(
        tmp_path, store={"message_delay_level": "1s 1s 1s"}
    ) as subject:
        await subject.send("T", b"body", properties={"DELAY": "1"})
        held = await subject.pull("T", sys_flag=6, suspend_timeout_millis=15_000)
        assert [one.body for one in messages_in(held.body)] == [b"body"]


async def test_under_sync_flush_too(tmp_path: Path) -> None:
    async with broker_subject.running(
        tmp_path,
        store={"message_delay_level": "1s", "flush_disk_type": FlushDiskType.SYNC_FLUSH},
    ) as subject:
        await subject.send("T", b"body", properties={"DELAY": "1"})
        held = await subject.pull("T", sys_flag=6, suspend_timeout_millis=15_000)
        assert [one.body for one in messages_in(held.body)] == [b"body"]


# --- checks ----------------------------------------------------------------------------


async def test_the_group_is_made_if_that_is_allowed(timed: Subject) -> None:
    (message,) = stored(timed, "T")
    assert (await send_back(timed, message.physical_offset, "New")).code == ResponseCode.SUCCESS
    assert timed.broker.parts.subscription_groups.get("New") is not None


async def test_a_group_that_does_not_exist(tmp_path: Path) -> None:
    async with broker_subject.running(
        tmp_path, auto_create_subscription_group=False, broker_permission=4
    ) as subject:
        reply = await send_back(subject, 0)
        assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert reply.remark == "subscription group not exist, G"


async def test_a_broker_that_takes_no_messages(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, broker_permission=4) as subject:
        reply = await send_back(subject, 0)
        assert reply.code == ResponseCode.NO_PERMISSION


async def test_a_group_that_does_not_retry_drops_the_message(timed: Subject) -> None:
    for count in (0, -1):
        timed.broker.parts.subscription_groups.put(
            SubscriptionGroup(name="G", retry_queue_count=count), 0
        )
        reply = await send_back(timed, 999_999)
        assert (reply.code, reply.remark) == (ResponseCode.SUCCESS, None)
    assert timed.broker.parts.topics.get("%RETRY%G") is None


@pytest.mark.parametrize("offset", [1, 999_999_999, -1, 1 << 62])
async def test_an_offset_without_message(timed: Subject, offset: int) -> None:
    reply = await send_back(timed, offset)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark == f"look message by offset failed, {offset}"


async def test_what_the_store_refuses(timed: Subject) -> None:
    long = IncomingMessage("T", b"x", property_bytes=b"p\x01" + b"x" * 32_700)
    result = timed.broker.store.put(long)
    reply = await send_back(timed, result.physical_offset)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None
    assert reply.remark.startswith("PROPERTIES_SIZE_EXCEEDED")


async def test_a_store_that_is_full(timed: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = stored(timed, "T")
    monkeypatch.setattr(timed.broker.store._putter, "refusal", "no room")
    reply = await send_back(timed, message.physical_offset)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark == "SERVICE_NOT_AVAILABLE: no room"


async def test_a_busy_store(timed: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed.broker.store, "is_page_cache_busy", lambda: True)
    assert (await send_back(timed, 0)).code == ResponseCode.SYSTEM_BUSY


async def test_a_header_without_offset(timed: Subject) -> None:
    request = Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields={"group": "G"})
    reply = await timed.client.invoke(timed.address, request)
    assert reply.code == ResponseCode.SYSTEM_ERROR


# --- a copy that a client sends -----------------------------------------------------------


async def test_a_copy_beyond_the_limit_is_a_dead_letter_without_delay(timed: Subject) -> None:
    reply = await timed.send(
        "%RETRY%G", b"copy", properties={"DELAY": "5"}, reconsume_times=3, max_reconsume_times=3
    )
    assert reply.code == ResponseCode.SUCCESS
    (dead,) = stored(timed, "%DLQ%G")
    assert (dead.body, dead.reconsume_times) == (b"copy", 3)


async def test_a_copy_before_that_waits_for_its_turn(timed: Subject, clock: ManualClock) -> None:
    reply = await timed.send(
        "%RETRY%G", b"copy", properties={"DELAY": "5"}, reconsume_times=2, max_reconsume_times=3
    )
    assert reply.code == ResponseCode.SUCCESS
    assert stored(timed, "%RETRY%G") == []
    clock.advance(5000)
    deliver(timed)
    (found,) = stored(timed, "%RETRY%G")
    assert (found.body, found.reconsume_times) == (b"copy", 2)
