"""36 over a connection: the order of the checks, codes, and what consumers get."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import world
from reput.clock import ManualClock
from reput.format import batch, message as record, properties as props
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import SendBackHeader
from reput.store.config import FlushDiskType
from reput.store.writing.incoming import IncomingMessage
from world import Subject, messages_in

START_MS = 1_700_000_000_000
DELAYS = "1s 2s 3s 4s 5s 6s 7s 8s 9s 10s"


async def send_back(subject: Subject, offset: int, group: str = "G", **fields: Any) -> Command:
    header = SendBackHeader(offset=offset, group=group, **{"delay_level": 0, **fields})
    return await subject.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest_asyncio.fixture
async def timed(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Subject]:
    """A broker with a stopped clock."""
    async with world.broker(
        tmp_path, clock=clock, store={"message_delay_level": DELAYS}
    ) as running:
        await running.send("T", b"body", properties={"TAGS": "a"})
        yield running


async def test_a_held_pull_gets_the_message_from_the_loop(tmp_path: Path) -> None:
    """The broker's own loops deliver it, with the machine's clock."""
    async with world.broker(tmp_path, store={"message_delay_level": "1s 1s 1s"}) as subject:
        await subject.send("T", b"body", properties={"DELAY": "1"})
        held = await subject.pull("T", sys_flag=6, suspend_timeout_millis=15_000)
        assert [message.body for message in messages_in(held.body)] == [b"body"]


async def test_send_back_under_sync_flush(tmp_path: Path) -> None:
    async with world.broker(
        tmp_path,
        store={"message_delay_level": "1s", "flush_disk_type": FlushDiskType.SYNC_FLUSH},
    ) as subject:
        await subject.send("T", b"body", properties={"DELAY": "1"})
        held = await subject.pull("T", sys_flag=6, suspend_timeout_millis=15_000)
        assert [message.body for message in messages_in(held.body)] == [b"body"]


async def test_times_for_the_timer_of_a_message_that_has_not_waited(
    timed: Subject, clock: ManualClock
) -> None:
    """As in 5.5.0: a delay level replaces the time, and a dead letter waits for it.

    Messages inside of a batch do not wait, and so keep their time; so do those of 4.9.
    """
    inner = batch.InnerMessage(0, b"late", props.encode({"TIMER_DELAY_SEC": "4", "KEYS": "k"}))
    await timed.send("B", batch.encode([inner]), code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    (message,) = messages_in((await timed.pull("B")).body)
    assert message.properties["TIMER_DELAY_SEC"] == "4"
    for level in (1, -1):
        reply = await send_back(timed, message.physical_offset, delay_level=level)
        assert reply.code == ResponseCode.SUCCESS
    waiting = [
        record.decode(data, check_crc=False)
        for topic in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")
        for data in [stored_in(timed, topic)]
    ]
    assert [stored.properties["REAL_TOPIC"] for stored in waiting] == ["%RETRY%G", "%DLQ%G"]
    retry, dead = (stored.properties for stored in waiting)
    assert not {"TIMER_DELAY_SEC", "TIMER_OUT_MS"} & retry.keys()
    assert int(dead["TIMER_OUT_MS"]) == (START_MS + 4_000) // 1_000 * 1_000 - 1_000


def stored_in(subject: Subject, topic: str) -> bytes:
    """Return the record of the only message of a topic's first queue."""
    result = subject.broker.store.get(topic, 0, 0, 32)
    assert result.max_offset == 1
    return bytes(result.data)


# --- checks ----------------------------------------------------------------------------


async def test_a_refusal_of_the_store(timed: Subject) -> None:
    long = IncomingMessage("T", b"x", property_bytes=b"p\x01" + b"x" * 32_700)
    result = timed.broker.store.put(long)
    reply = await send_back(timed, result.physical_offset)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None
    assert reply.remark.startswith("PROPERTIES_SIZE_EXCEEDED")


async def test_after_a_put_that_stalled(timed: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(timed.parts.put_stalls, "_turns_left", 1)
        assert (await send_back(timed, 0)).code == ResponseCode.SYSTEM_BUSY
    assert (await send_back(timed, 0)).code == ResponseCode.SUCCESS
