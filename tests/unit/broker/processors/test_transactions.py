"""37, 39 and 323 over the wire; texts and codes are those of Java's ``EndTransactionProcessor``."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import world
from reput.clock import ManualClock
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    CreateTopicHeader,
    EndTransactionHeader,
    Header,
    NotificationHeader,
    PopMessageHeader,
)
from reput.format.message import StoredMessage
from store_fixture import START_MS
from world import Subject, messages_in, until

GROUP = "producers"
HALF = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": "0A0B", "WAIT": "true"}
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GUARD_S = 20


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest_asyncio.fixture
async def subject(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Subject]:
    async with world.broker(tmp_path, clock=clock, transaction_check_max=1) as running:
        await running.send("T", b"first", queue_id=3)
        yield running


async def send_half(subject: Subject, **more: Any) -> EndTransactionHeader:
    """Send a half message; return the header that decides it."""
    fields = {"sys_flag": 4, "born_timestamp": subject.broker.clock.now_ms(), **more}
    reply = await subject.send("T", b"half", queue_id=1, properties=HALF, **fields)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    assert reply.ext_fields is not None
    assert reply.ext_fields["queueId"] == "1"  # the reply has the queue that the producer requested
    return EndTransactionHeader(
        producer_group=GROUP,
        tran_state_table_offset=int(reply.ext_fields["queueOffset"]),
        commit_log_offset=int(reply.ext_fields["msgId"][16:], 16),
        commit_or_rollback=COMMIT,
        msg_id="0A0B",
        transaction_id="0A0B",
    )


POP = PopMessageHeader(
    consumer_group="G",
    topic="T",
    queue_id=-1,
    max_msg_nums=1,
    invisible_time=60_000,
    poll_time=20_000,
    born_time=0,
    init_mode=0,
)
QUESTION = NotificationHeader(
    consumer_group="G", topic="T", queue_id=1, poll_time=20_000, born_time=0
)


@pytest.mark.parametrize(
    ("code", "header"),
    [(RequestCode.POP_MESSAGE, POP), (RequestCode.NOTIFICATION, QUESTION)],
    ids=["pop", "notification"],
)
async def test_a_commit_wakes_what_waits_for_messages(
    tmp_path: Path, code: RequestCode, header: Header
) -> None:
    async with world.broker(tmp_path) as subject:
        await subject.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            CreateTopicHeader(
                topic="T",
                default_topic="",
                read_queue_nums=4,
                write_queue_nums=4,
                perm=6,
                topic_filter_type="SINGLE_TAG",
            ),
        )
        decision = await send_half(subject)
        waiting = asyncio.ensure_future(subject.ask(code, header))
        await until(lambda: len(subject.parts.pops.held))
        dispatched = subject.parts.store.step_memory
        subject.parts.store.step_memory = lambda: False  # only the commit itself may notify
        assert (await end(subject, decision)).code == ResponseCode.SUCCESS
        assert (await asyncio.wait_for(waiting, GUARD_S)).code == ResponseCode.SUCCESS
        subject.parts.store.step_memory = dispatched


async def end(subject: Subject, header: EndTransactionHeader, **fields: Any) -> Command:
    changed = world.with_fields(header, fields)
    return await subject.ask(RequestCode.END_TRANSACTION, changed)


async def messages(subject: Subject, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    return messages_in((await subject.pull(topic, queue_id)).body)


# --- asking -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "store",
    [
        {"flush_disk_type": world.StoreConfig().flush_disk_type.SYNC_FLUSH},
        {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
    ],
)
async def test_a_commit_may_follow_at_once(
    tmp_path: Path, clock: ManualClock, store: dict[str, Any]
) -> None:
    """The half message may be on disk, in the file, or only in a buffer."""
    async with world.broker(tmp_path, clock=clock, store=store) as subject:
        await subject.send("T")
        header = await send_half(subject)
        assert (await end(subject, header)).code == ResponseCode.SUCCESS
        async with asyncio.timeout(GUARD_S):
            while not await messages(subject, "T", 1):
                clock.advance(100)  # a pool buffer is written to the file later
                await asyncio.sleep(0.01)
