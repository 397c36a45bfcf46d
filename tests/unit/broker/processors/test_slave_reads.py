"""What a slave serves, and what it leaves to its master. Codes are those of Java's 4.9.7."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import pop_client
import world
from reput.broker.replication.state import SlaveState
from reput.clock import ManualClock
from reput.format import bodies, names
from reput.format.bodies import LockBody, MessageQueue
from reput.format.codes import PullFlag, RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    AckMessageHeader,
    EndTransactionHeader,
    Header,
    QueryConsumerOffsetHeader,
    QueryMessageHeader,
    QueueHeader,
    SearchOffsetHeader,
    SendBackHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
)
from reput.remoting.time_slices import run_whole
from reput.store.config import BrokerRole
from world import NAME, Subject, messages_in, until

COUNT = 3
NOW_MS = 1_700_000_000_000
SUSPEND = int(PullFlag.HAS_SUBSCRIPTION | PullFlag.SUSPEND)


@contextlib.asynccontextmanager
async def slave_of(root: Path, **store: Any) -> AsyncIterator[Subject]:
    """Run a slave on the store of a master that has stopped: queue 0 of ``T`` has 3 messages."""
    if not root.joinpath("commitlog").exists():
        async with world.broker(root, clock=ManualClock(NOW_MS)) as master:
            for number in range(COUNT):
                await master.send("T", b"%d" % number, properties={"KEYS": "key"})
    clock = ManualClock(NOW_MS)
    settings = {"broker_role": BrokerRole.SLAVE, **store}
    async with world.broker(root, clock=clock, store=settings, broker_id=1) as slave:
        yield slave


@pytest.fixture
async def slave(tmp_path: Path) -> AsyncIterator[Subject]:
    async with slave_of(tmp_path) as subject:
        yield subject


async def offset_of(subject: Subject, code: RequestCode, header: Header) -> str:
    reply = await subject.ask(code, header)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    assert reply.ext_fields is not None
    return next(iter(reply.ext_fields.values()))


async def committed(subject: Subject) -> int | None:
    """Return the consumer offset of the readers in queue 0; None if there is none."""
    fields = {"consumer_group": "consumers", "topic": "T", "queue_id": 0}
    header = QueryConsumerOffsetHeader(**fields, set_zero_if_not_found=False)
    reply = await subject.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
    if reply.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    assert reply.ext_fields is not None
    return int(reply.ext_fields["offset"])


def place(reply: Command) -> tuple[int, str, str]:
    """Return the code, the next queue offset and the suggested broker of a reply to a pull."""
    assert reply.ext_fields is not None
    fields = reply.ext_fields
    return reply.code, fields["nextBeginOffset"], fields["suggestWhichBrokerId"]


# --- pulls ------------------------------------------------------------------------


async def test_a_slave_serves_pulls(slave: Subject) -> None:
    """It does so with slaveReadEnable off, unlike slaves of 5.x: the master may be dead."""
    for _ in range(3):
        reply = await slave.pull("T")
        assert place(reply) == (ResponseCode.SUCCESS, str(COUNT), "0")
        assert [message.body for message in messages_in(reply.body)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(("queue_id", "queue_offset"), [(0, COUNT + 1), (0, -1), (1, 5)])
async def test_an_offset_outside_is_left_to_the_master(
    slave: Subject, queue_id: int, queue_offset: int
) -> None:
    reply = await slave.pull("T", queue_id, queue_offset)
    assert place(reply) == (ResponseCode.PULL_RETRY_IMMEDIATELY, str(queue_offset), "0")


async def test_an_offset_outside_is_corrected_if_that_is_switched_on(tmp_path: Path) -> None:
    async with slave_of(tmp_path, offset_check_in_slave=True) as slave:
        reply = await slave.pull("T", 0, COUNT + 1)
        assert place(reply) == (ResponseCode.PULL_OFFSET_MOVED, str(COUNT), "0")
        assert slave.broker.store.max_offset(names.OFFSET_MOVED_TOPIC, 0) == 0


async def test_without_its_master_a_slave_holds_pulls_that_it_would_leave_to_it(
    slave: Subject,
) -> None:
    """Else consumers whose offset it lacks would repeat them without a pause."""
    waiting = asyncio.ensure_future(
        slave.pull("T", 0, COUNT + 1, sys_flag=SUSPEND, suspend_timeout_millis=15_000)
    )
    await until(lambda: len(slave.parts.held_pulls))
    run_whole(slave.parts.held_pulls.expire(14_999))
    assert len(slave.parts.held_pulls) == 1
    run_whole(slave.parts.held_pulls.expire(15_000))
    reply = await waiting
    assert place(reply) == (ResponseCode.PULL_RETRY_IMMEDIATELY, str(COUNT + 1), "0")


async def test_a_slave_that_follows_sends_such_pulls_to_its_master(slave: Subject) -> None:
    slave.parts.replication.follower.status.state = SlaveState.FOLLOWING
    reply = await slave.pull("T", 0, COUNT + 1, sys_flag=SUSPEND, suspend_timeout_millis=15_000)
    assert place(reply) == (ResponseCode.PULL_RETRY_IMMEDIATELY, str(COUNT + 1), "0")


async def test_records_of_the_master_wake_held_pulls(tmp_path: Path) -> None:
    async with slave_of(tmp_path / "slave"):
        pass
    shutil.copytree(tmp_path / "slave", tmp_path / "master")
    async with slave_of(tmp_path / "slave") as slave:
        waiting = asyncio.ensure_future(
            slave.pull("T", 0, COUNT, sys_flag=SUSPEND, suspend_timeout_millis=600_000)
        )
        await until(lambda: len(slave.parts.held_pulls))
        end = slave.broker.store.max_physical_offset
        async with world.broker(tmp_path / "master", clock=ManualClock(NOW_MS)) as master:
            await master.send("T", b"new")
            record = master.broker.store.record_at(end)
        assert record is not None
        log = slave.broker.store.replica_log
        log.buffer(len(record))[:] = record
        log.publish(len(record))
        reply = await waiting
        assert place(reply) == (ResponseCode.SUCCESS, str(COUNT + 1), "0")
        assert [message.body for message in messages_in(reply.body)] == [b"new"]


# --- consumer offsets ---------------------------------------------------------------


async def test_offsets_that_come_with_pulls_are_not_stored(slave: Subject) -> None:
    flag = int(PullFlag.HAS_SUBSCRIPTION | PullFlag.COMMIT_OFFSET)
    for _ in range(3):
        await slave.pull("T", sys_flag=flag, commit_offset=2)
    assert await committed(slave) is None


async def test_offsets_that_are_committed_are_kept(tmp_path: Path) -> None:
    async with slave_of(tmp_path) as slave:
        header = UpdateConsumerOffsetHeader(
            consumer_group="consumers", topic="T", queue_id=0, commit_offset=2
        )
        reply = await slave.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        assert reply.code == ResponseCode.SUCCESS
        assert await committed(slave) == 2
    async with slave_of(tmp_path) as slave:
        assert await committed(slave) == 2


# --- messages -----------------------------------------------------------------------


async def test_sends_are_refused(slave: Subject) -> None:
    """Java's 4.9.7 answers with 14, upon which its producers try another broker."""
    for topic in ("T", "New"):
        for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
            reply = await slave.send(topic, code=code)
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "brokerRole is SLAVE" in (reply.remark or "")
    assert slave.parts.topics.get("New") is None
    assert slave.broker.store.max_offset("T", 0) == COUNT


async def test_a_message_cannot_be_sent_back(slave: Subject) -> None:
    header = SendBackHeader(offset=0, group="consumers", delay_level=0)
    reply = await slave.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert (reply.remark or "").startswith("SERVICE_NOT_AVAILABLE: brokerRole is SLAVE")
    assert slave.parts.topics.get("%RETRY%consumers") is None


async def test_a_transaction_cannot_be_ended(slave: Subject) -> None:
    header = EndTransactionHeader(
        producer_group="p", tran_state_table_offset=0, commit_log_offset=0, commit_or_rollback=8
    )
    reply = await slave.ask(RequestCode.END_TRANSACTION, header)
    assert reply.code == ResponseCode.SLAVE_NOT_AVAILABLE == 11


async def test_messages_are_found(slave: Subject) -> None:
    header = QueryMessageHeader(
        topic="T", key="key", max_num=64, begin_timestamp=0, end_timestamp=(1 << 63) - 1
    )
    reply = await slave.ask(RequestCode.QUERY_MESSAGE, header)
    messages = messages_in(reply.body)
    assert sorted(message.body for message in messages) == [b"0", b"1", b"2"]
    reply = await slave.ask(
        RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=messages[0].physical_offset)
    )
    assert [message.body for message in messages_in(reply.body)] == [messages[0].body]


async def test_the_bounds_of_queues(slave: Subject) -> None:
    queue = QueueHeader(topic="T", queue_id=0)
    assert await offset_of(slave, RequestCode.GET_MAX_OFFSET, queue) == str(COUNT)
    assert await offset_of(slave, RequestCode.GET_MIN_OFFSET, queue) == "0"
    search = SearchOffsetHeader(topic="T", queue_id=0, timestamp=NOW_MS)
    assert await offset_of(slave, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search) == "0"
    stored = await offset_of(slave, RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
    assert stored == str(NOW_MS)


# --- pops and locks -------------------------------------------------------------------


async def test_pops_and_acks_are_refused(slave: Subject) -> None:
    reply = await pop_client.pop_reply(slave)
    assert reply.code == ResponseCode.NO_PERMISSION
    assert reply.remark == "a slave has no checkpoints: pop from its master"
    header = AckMessageHeader(
        consumer_group="g", topic="T", queue_id=0, offset=0,
        extra_info=f"0 {NOW_MS} 60000 0 0 {NAME} 0 0",
    )  # fmt: skip
    reply = await slave.ask(RequestCode.ACK_MESSAGE, header)
    assert reply.code == ResponseCode.NO_PERMISSION
    assert reply.remark == "a slave has no checkpoints: send acks to its master"


async def test_queues_are_locked(slave: Subject) -> None:
    """As in Java, any broker locks queues; clients ask masters only."""
    queue = MessageQueue(topic="T", broker_name=NAME, queue_id=0)
    body = LockBody(client_id="me", consumer_group="consumers", mq_set=[queue])
    reply = await slave.send_body(RequestCode.LOCK_BATCH_MQ, body)
    assert bodies.decode(bodies.LockReply, reply.body).lock_ok_mq_set == [queue]
