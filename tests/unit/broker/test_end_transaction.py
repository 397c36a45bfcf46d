"""37, 39 and 323 over the wire; texts and codes are those of Java's ``EndTransactionProcessor``."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import broker_subject
from broker_subject import Subject, messages_in
from reput.clock import ManualClock
from reput.format import headers, names
from reput.format.bodies import HeartbeatData, ProducerData
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import EndTransactionHeader, ResumeCheckHeader
from reput.format.message import StoredMessage
from reput.remoting.client import RemotingClient
from store_fixture import START_MS

GROUP = "producers"
HALF = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": "0A0B", "WAIT": "true"}
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
INTERVAL_MS = 30_000
GUARD_S = 20


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest_asyncio.fixture
async def subject(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Subject]:
    async with broker_subject.running(tmp_path, clock=clock, transaction_check_max=1) as one:
        await one.send("T", b"first", queue_id=3)
        yield one


async def send_half(subject: Subject, **more: Any) -> EndTransactionHeader:
    """Send a half message; return what decides it."""
    fields = {"sys_flag": 4, "born_timestamp": subject.broker.clock.now_ms(), **more}
    reply = await subject.send("T", b"half", queue_id=1, properties=HALF, **fields)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    assert reply.ext_fields is not None
    assert reply.ext_fields["queueId"] == "1"  # the producer is told what it asked for
    return EndTransactionHeader(
        producer_group=GROUP,
        tran_state_table_offset=int(reply.ext_fields["queueOffset"]),
        commit_log_offset=int(reply.ext_fields["msgId"][16:], 16),
        commit_or_rollback=COMMIT,
        msg_id="0A0B",
        transaction_id="0A0B",
    )


async def end(subject: Subject, header: EndTransactionHeader, **fields: Any) -> Command:
    changed = broker_subject.with_fields(header, fields)
    return await subject.ask(RequestCode.END_TRANSACTION, changed)


async def messages(subject: Subject, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    return messages_in((await subject.pull(topic, queue_id)).body)


async def test_a_commit_delivers(subject: Subject) -> None:
    header = await send_half(subject)
    assert await messages(subject, "T", 1) == []
    reply = await end(subject, header)
    assert (reply.code, reply.remark) == (ResponseCode.SUCCESS, None)
    (found,) = await messages(subject, "T", 1)
    assert (found.body, found.sys_flag) == (b"half", 8)
    assert found.prepared_transaction_offset == header.commit_log_offset
    assert found.properties == {
        **HALF, "CLUSTER": "DefaultCluster", "REAL_TOPIC": "T", "REAL_QID": "1",
    }  # fmt: skip
    (half,) = await messages(subject, names.HALF_TOPIC)
    assert half.sys_flag == 0


async def test_a_commit_wakes_who_waits(subject: Subject) -> None:
    header = await send_half(subject)
    pull = asyncio.create_task(
        subject.pull("T", 1, sys_flag=6, suspend_timeout_millis=GUARD_S * 1000)
    )
    async with asyncio.timeout(GUARD_S):
        while not len(subject.parts.held_pulls):
            await asyncio.sleep(0)
        await end(subject, header)
        reply = await pull
    assert [one.body for one in messages_in(reply.body)] == [b"half"]


async def test_a_rollback_delivers_nothing(subject: Subject) -> None:
    header = await send_half(subject)
    reply = await end(subject, header, commit_or_rollback=ROLLBACK)
    assert reply.code == ResponseCode.SUCCESS
    assert await messages(subject, "T", 1) == []
    assert [one.body for one in await messages(subject, names.OP_HALF_TOPIC)] == [b"0"]


@pytest.mark.parametrize("state", [UNKNOWN, 4, 99])
@pytest.mark.parametrize("is_from_check", [True, False])
async def test_who_does_not_know_gets_no_reply(
    subject: Subject, state: int, is_from_check: bool
) -> None:
    header = await send_half(subject)
    header.commit_or_rollback, header.from_transaction_check = state, is_from_check
    fields = headers.encode(header)
    request = Command(RequestCode.END_TRANSACTION, ext_fields=fields)
    asking = asyncio.create_task(subject.client.invoke(subject.address, request, GUARD_S * 1000))
    await asyncio.sleep(0)
    # The next request on the connection is answered, and the one before it was not.
    assert (await subject.send("T", b"loud", queue_id=2)).code == ResponseCode.SUCCESS
    assert not asking.done()
    asking.cancel()
    assert subject.parts.transactions.progress() == (0, 1)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"producer_group": "others"}, "The producer group wrong"),
        ({"tran_state_table_offset": 5}, "The transaction state table offset wrong"),
        ({"commit_log_offset": 3}, "Find prepared transaction message failed"),
        ({"commit_log_offset": 1 << 40}, "Find prepared transaction message failed"),
        ({"commit_log_offset": -1}, "Find prepared transaction message failed"),
        ({"commit_log_offset": 0}, "Find prepared transaction message failed"),  # is no half
    ],
)
async def test_refusals(
    subject: Subject, fields: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    header = await send_half(subject)
    reply = await end(subject, header, **fields)
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, text)
    assert await messages(subject, "T", 1) == []
    assert subject.parts.transactions.refused_count == 1
    assert text in caplog.text  # a producer that sends it one way hears nothing


async def test_a_slave_ends_nothing(tmp_path: Path) -> None:
    store = {"broker_role": broker_subject.StoreConfig().broker_role.SLAVE}
    async with broker_subject.running(tmp_path, store=store, broker_id=1) as subject:
        header = EndTransactionHeader(
            producer_group=GROUP, tran_state_table_offset=0, commit_log_offset=0,
            commit_or_rollback=UNKNOWN,
        )  # fmt: skip
        reply = await end(subject, header)
        assert reply.code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_settings_are_in_force_at_once(subject: Subject) -> None:
    broker_subject.reconfigure(subject.broker, {"rejectTransactionMessage": "true"})
    reply = await subject.send("T", properties=HALF)
    assert reply.code == ResponseCode.NO_PERMISSION
    assert reply.remark == "the broker[127.0.0.1] sending transaction message is forbidden"


# --- asking -----------------------------------------------------------------------------


async def join(subject: Subject, client: RemotingClient | None = None, group: str = GROUP) -> None:
    part = ProducerData(group_name=group)
    body = HeartbeatData(client_id="me", consumer_data_set=[], producer_data_set=[part])
    reply = await subject.tell(RequestCode.HEART_BEAT, body, client=client)
    assert reply.code == ResponseCode.SUCCESS


async def until_asked(subject: Subject, heard: list[Command], count: int = 1) -> list[Command]:
    async with asyncio.timeout(GUARD_S):
        while len(heard) < count:
            await asyncio.sleep(0.01)
    return heard


async def test_a_producer_is_asked_and_answers(subject: Subject, clock: ManualClock) -> None:
    await join(subject)
    await send_half(subject)
    clock.advance(INTERVAL_MS)
    (asked,) = await until_asked(subject, subject.heard)
    assert (asked.code, asked.is_oneway) == (RequestCode.CHECK_TRANSACTION_STATE, True)
    (found,) = messages_in(asked.body)
    assert (found.topic, found.queue_id, found.body) == ("T", 1, b"half")
    assert found.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert asked.ext_fields is not None
    fields = asked.ext_fields
    assert (fields["msgId"], fields["transactionId"]) == ("0A0B", "0A0B")
    assert int(fields["tranStateTableOffset"]) == found.queue_offset == 1
    assert int(fields["commitLogOffset"]) == found.physical_offset
    answer = EndTransactionHeader(
        producer_group=GROUP,
        tran_state_table_offset=int(fields["tranStateTableOffset"]),
        commit_log_offset=int(fields["commitLogOffset"]),
        commit_or_rollback=COMMIT,
        from_transaction_check=True,
    )
    assert (await end(subject, answer)).code == ResponseCode.SUCCESS
    assert [one.body for one in await messages(subject, "T", 1)] == [b"half"]


async def test_producers_of_a_group_are_asked_by_turns(
    subject: Subject, clock: ManualClock
) -> None:
    heard: list[Command] = []

    def listen(address: str, request: Command) -> None:
        heard.append(request)

    async with RemotingClient(handler=listen) as other, RemotingClient() as stranger:
        await join(subject)
        await join(subject, other)
        await join(subject, stranger, "strangers")
        for _ in range(10):
            await send_half(subject)
        clock.advance(INTERVAL_MS)
        await until_asked(subject, subject.heard, 5)
        await until_asked(subject, heard, 5)
    assert len(heard) == len(subject.heard) == 5


async def test_what_was_given_up_is_taken_up_again(subject: Subject, clock: ManualClock) -> None:
    await send_half(subject)
    async with asyncio.timeout(GUARD_S):
        while not subject.parts.transactions.given_up_count:
            clock.advance(INTERVAL_MS)
            await asyncio.sleep(0.15)
    (given_up,) = await messages(subject, names.CHECK_MAX_TIME_TOPIC)
    await join(subject)
    id_ = f"7F000001{subject.broker.identity.port:08X}{given_up.physical_offset:016X}"
    reply = await subject.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHeader(msg_id=id_))
    assert (reply.code, reply.remark) == (ResponseCode.SUCCESS, None)
    async with asyncio.timeout(GUARD_S):
        while not subject.heard:  # a round may be under way that does not see it yet
            clock.advance(INTERVAL_MS)
            await asyncio.sleep(0.15)


@pytest.mark.parametrize(
    ("msg_id", "text"),
    [
        ("nonsense", "allowed: an offset id"),
        (f"7F00000100002A9F{1 << 40:016X}", "can not find message by the offset"),
        (f"7F00000100002A9F{0:016X}", "is in topic T; allowed"),
    ],
)
async def test_what_cannot_be_resumed(subject: Subject, msg_id: str, text: str) -> None:
    header = ResumeCheckHeader(msg_id=msg_id)
    reply = await subject.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert text in (reply.remark or "")


@pytest.mark.parametrize(
    "store",
    [
        {"flush_disk_type": broker_subject.StoreConfig().flush_disk_type.SYNC_FLUSH},
        {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
    ],
)
async def test_a_commit_follows_at_once(
    tmp_path: Path, clock: ManualClock, store: dict[str, Any]
) -> None:
    """Whether the disk, or the file, has the half message or not."""
    async with broker_subject.running(tmp_path, clock=clock, store=store) as subject:
        await subject.send("T")
        header = await send_half(subject)
        assert (await end(subject, header)).code == ResponseCode.SUCCESS
        async with asyncio.timeout(GUARD_S):
            while not await messages(subject, "T", 1):
                clock.advance(100)  # a pool is written to the file by and by
                await asyncio.sleep(0.01)


async def test_progress_is_a_groups_offset_after_a_stop(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await end(subject, await send_half(subject))
    async with broker_subject.running(tmp_path) as subject:
        offsets = subject.parts.deliveries.consumer_offsets
        assert offsets.get(names.HALF_TOPIC, names.TRANSACTION_GROUP, 0) == 1
        assert offsets.get(names.OP_HALF_TOPIC, names.TRANSACTION_GROUP, 0) == 1
        assert subject.parts.transactions.progress() == (1, 1)
