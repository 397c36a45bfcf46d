"""minInSyncReplicas: refused before anything is stored, with the code and text of 5.x."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

import world
from reput.format import batch
from reput.format.batch import InnerMessage
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import EndTransactionHeader
from reput.store.config import BrokerRole
from reput.store.log.replica_acks import Replica
from world import Subject

GROUP = "producers"
HALF = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": "0A0B"}
COMMIT, ROLLBACK = 8, 12


@pytest_asyncio.fixture
async def subject(tmp_path: Path) -> AsyncIterator[Subject]:
    store = {
        "broker_role": BrokerRole.SYNC_MASTER,
        "in_sync_replicas": 1,
        "min_in_sync_replicas": 2,
    }
    async with world.broker(tmp_path, store=store) as running:
        slave = add_slave(running)
        assert (await running.send("T", b"first", queue_id=3)).code == ResponseCode.SUCCESS
        running.broker.store.replicas.remove(slave)
        yield running


def add_slave(subject: Subject) -> Replica:
    store, clock = subject.broker.store, subject.broker.clock
    slave = Replica("127.0.0.1:1", store.max_physical_offset, reported_ms=clock.monotonic_ms())
    store.replicas.add(slave)
    return slave


def assert_refused(reply: Command) -> None:
    """Java 5.3.3: ``SendMessageProcessor.handlePutMessageResult``."""
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")


async def test_a_send_is_refused_and_not_stored(subject: Subject) -> None:
    end = subject.broker.store.max_physical_offset
    for _ in range(2):
        assert_refused(await subject.send("T"))
    assert subject.broker.store.max_physical_offset == end
    add_slave(subject)
    assert (await subject.send("T")).code == ResponseCode.SUCCESS
    assert subject.broker.store.max_offset("T", 0) == 1


async def test_a_batch_is_refused_and_not_stored(subject: Subject) -> None:
    end = subject.broker.store.max_physical_offset
    body = batch.encode([InnerMessage(0, b"one", b""), InnerMessage(0, b"two", b"")])
    assert_refused(await subject.send("T", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True))
    assert subject.broker.store.max_physical_offset == end


async def test_a_send_that_does_not_wait_is_stored(subject: Subject) -> None:
    """As in Java: ``CommitLog.needHandleHA`` is false for it."""
    reply = await subject.send("T", properties={"WAIT": "false"})
    assert reply.code == ResponseCode.SUCCESS
    assert subject.broker.store.max_offset("T", 0) == 1


async def test_a_half_message_is_refused_and_not_stored(subject: Subject) -> None:
    end = subject.broker.store.max_physical_offset
    assert_refused(await subject.send("T", b"half", properties=HALF, sys_flag=4))
    assert subject.broker.store.max_physical_offset == end


async def test_the_half_message_stays_if_its_end_is_refused(subject: Subject) -> None:
    """RocketMQ loses the commit: https://github.com/apache/rocketmq/issues/7709."""
    slave = add_slave(subject)
    reply = await subject.send("T", b"half", queue_id=1, properties=HALF, sys_flag=4)
    assert reply.ext_fields is not None
    store = subject.broker.store
    store.replicas.remove(slave)
    end = store.max_physical_offset
    header = EndTransactionHeader(
        producer_group=GROUP,
        tran_state_table_offset=int(reply.ext_fields["queueOffset"]),
        commit_log_offset=int(reply.ext_fields["msgId"][16:], 16),
        commit_or_rollback=COMMIT,
        msg_id="0A0B",
        transaction_id="0A0B",
    )
    for decision in (COMMIT, ROLLBACK):
        header.commit_or_rollback = decision
        assert_refused(await subject.ask(RequestCode.END_TRANSACTION, header))
    assert store.max_physical_offset == end
    add_slave(subject)
    header.commit_or_rollback = COMMIT
    reply = await subject.ask(RequestCode.END_TRANSACTION, header)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    assert store.max_offset("T", 1) == 1
