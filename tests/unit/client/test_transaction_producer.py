"""Requests of a transaction producer, and its answers to checks; requests are Java's."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from reput.client import transaction_producer
from reput.client.message import Message, ReceivedMessage, SendResult, SendStatus
from reput.client.transaction_producer import TransactionProducer, TransactionState
from reput.errors import InvalidOption
from reput.format import body as bodies, command, headers, message as record, properties as props
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import IS_ONEWAY, Command
from reput.format.headers import CheckTransactionStateHeader, EndTransactionHeader
from reput.format.message import Host, StoredMessage
from scripted_cluster import ScriptedBroker, ScriptedCluster
from waiting import until

END = RequestCode.END_TRANSACTION
GUARD_S = 20
HOST = Host(b"\x7f\0\0\1", 10911)
COMMIT, ROLLBACK, UNKNOWN = TransactionState


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster({"T": {"broker-a": 4}, "U": {"broker-a": 1}}) as running:
        running.brokers[0].answers[END] = command.reply
        yield running


@pytest.fixture
def broker(cluster: ScriptedCluster) -> ScriptedBroker:
    return cluster.brokers[0]


def producer(
    cluster: ScriptedCluster,
    check: Callable[[ReceivedMessage], Any] = lambda _: UNKNOWN,
    **more: Any,
) -> TransactionProducer:
    return TransactionProducer("P", check=check, namesrv=cluster.namesrv, **more)


def ends(broker: ScriptedBroker) -> list[EndTransactionHeader]:
    return [headers.decode(EndTransactionHeader, end.ext_fields) for end in broker.asked(END)]


# --- sending ----------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "code"), [(COMMIT, 8), (ROLLBACK, 12)])
async def test_requests_of_a_transaction(
    cluster: ScriptedCluster, broker: ScriptedBroker, state: TransactionState, code: int
) -> None:
    broker.sent_count = 7
    seen: list[tuple[Message, SendResult]] = []

    def execute(message: Message, half: SendResult) -> TransactionState:
        assert not broker.asked(END)
        seen.append((message, half))
        return state

    message = Message("T", b"x" * 5000, "tag", properties={"a": "b"})
    async with producer(cluster) as running:
        result = await running.send_in_transaction(message, execute)
    (request,) = broker.asked(RequestCode.SEND_MESSAGE_V2)
    sent = headers.decode_v2(request.ext_fields)
    assert sent.sys_flag == 4 | 1 | 0x300  # prepared; compressed, by zlib
    assert props.decode((sent.properties or "").encode()) == {
        "TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": result.half.message_id, "TAGS": "tag",
        "a": "b",
    }  # fmt: skip
    (end,) = ends(broker)
    assert end == EndTransactionHeader(
        producer_group="P",
        tran_state_table_offset=7,
        commit_log_offset=7,
        commit_or_rollback=code,
        from_transaction_check=False,
        msg_id=result.half.message_id,
        transaction_id=result.half.message_id,
    )
    assert seen == [(message, result.half)]
    assert (result.state, result.is_settled) == (state, True)


async def test_an_unknown_state_is_not_sent(
    cluster: ScriptedCluster, broker: ScriptedBroker
) -> None:
    async with producer(cluster) as running:
        result = await running.send_in_transaction(Message("T", b"x"), lambda *_: UNKNOWN)
        assert (result.state, result.is_settled) == (UNKNOWN, False)
        with pytest.raises(RuntimeError, match="no room"):
            await running.send_in_transaction(Message("T", b"x"), fail)
        with pytest.raises(InvalidOption, match="returns a TransactionState"):
            await running.send_in_transaction(Message("T", b"x"), lambda *_: True)  # type: ignore[arg-type,return-value]
    assert ends(broker) == []


def fail(message: Message, half: SendResult) -> TransactionState:
    raise RuntimeError("no room")


async def test_coroutines_run_in_the_loop_and_functions_in_threads(
    cluster: ScriptedCluster,
) -> None:
    threads = []

    async def coroutine(message: Message, half: SendResult) -> TransactionState:
        threads.append(threading.current_thread())
        return COMMIT

    def function(message: Message, half: SendResult) -> TransactionState:
        threads.append(threading.current_thread())
        return COMMIT

    async with producer(cluster) as running:
        for end in (coroutine, function):
            await running.send_in_transaction(Message("T", b"x"), end)
    assert [end is threading.main_thread() for end in threads] == [True, False]


async def test_a_half_message_stored_with_a_warning_is_rolled_back(
    cluster: ScriptedCluster, broker: ScriptedBroker
) -> None:
    """The local transaction does not run, as in Java."""
    broker.store_as(ResponseCode.FLUSH_DISK_TIMEOUT)
    async with producer(cluster) as running:
        result = await running.send_in_transaction(Message("T", b"x"), fail)
    assert result.half.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert result.state is ROLLBACK
    assert [end.commit_or_rollback for end in ends(broker)] == [12]


async def test_a_refused_end_is_left_to_a_check(
    cluster: ScriptedCluster, broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.answers[END] = lambda request: command.reply(request, 1, "The producer group wrong")
    async with producer(cluster) as running:
        result = await running.send_in_transaction(Message("T", b"x"), lambda *_: COMMIT)
    assert (result.state, result.is_settled) == (COMMIT, False)
    assert "asks later" in caplog.text
    assert "The producer group wrong" in caplog.text


async def test_a_delayed_message_is_refused(
    cluster: ScriptedCluster, broker: ScriptedBroker
) -> None:
    async with producer(cluster) as running:
        with pytest.raises(InvalidOption, match="0 in a transaction"):
            await running.send_in_transaction(Message("T", b"x", delay_level=3), fail)
    assert not broker.asked(RequestCode.SEND_MESSAGE_V2)


# --- checks -------------------------------------------------------------------------------


def question(number: int = 5) -> Command:
    properties = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": f"ID{number}", "REAL_TOPIC": "T"}
    half = StoredMessage(
        "T", b"%d" % number, 2, number, 1000 + number, 0, HOST, 0, HOST,
        property_bytes=props.encode(properties), body_crc=bodies.crc(b"%d" % number),
    )  # fmt: skip
    header = CheckTransactionStateHeader(
        tran_state_table_offset=number, commit_log_offset=1000 + number, msg_id=f"ID{number}",
        transaction_id=f"ID{number}",
    )  # fmt: skip
    return Command(
        RequestCode.CHECK_TRANSACTION_STATE,
        flag=IS_ONEWAY,
        ext_fields=headers.encode(header),
        body=record.encode(half),
    )


async def send_checks(broker: ScriptedBroker, *questions: Command) -> None:
    """Send checks to the client whose heartbeat has arrived."""
    async with asyncio.timeout(GUARD_S):
        await broker.until_asked(RequestCode.HEART_BEAT)
    for check in questions:
        broker.channels[-1].send(check)


async def until_ended(broker: ScriptedBroker, count: int = 1) -> None:
    async with asyncio.timeout(GUARD_S):
        await broker.until_asked(END, count)


@pytest.mark.parametrize(("state", "code"), [(COMMIT, 8), (ROLLBACK, 12)])
async def test_a_check_is_answered(
    cluster: ScriptedCluster, broker: ScriptedBroker, state: TransactionState, code: int
) -> None:
    seen: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> TransactionState:
        seen.append(message)
        return state

    async with producer(cluster, check, topics=["T"]):
        await send_checks(broker, question())
        await until_ended(broker)
    (end,) = ends(broker)
    assert end == EndTransactionHeader(
        producer_group="P",
        tran_state_table_offset=5,
        commit_log_offset=1005,
        commit_or_rollback=code,
        from_transaction_check=True,
        msg_id="ID5",
        transaction_id="ID5",
    )
    (message,) = seen
    assert (message.topic, message.body, message.message_id) == ("T", b"5", "ID5")
    assert message.broker_name == "broker-a"


async def test_a_check_without_a_decision_is_not_answered(
    cluster: ScriptedCluster, broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    answers = {b"1": UNKNOWN, b"2": None, b"4": COMMIT}

    async def check(message: ReceivedMessage) -> TransactionState:
        return answers[message.body]  # type: ignore[return-value]

    async with producer(cluster, check, topics=["T"]):
        await send_checks(broker, *map(question, (1, 2, 3, 4)))
        await until_ended(broker)
    assert [end.msg_id for end in ends(broker)] == ["ID4"]
    assert "a function that returns a TransactionState" in caplog.text
    assert "KeyError: b'3'" in caplog.text


async def test_concurrent_checks_are_limited(
    cluster: ScriptedCluster, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_producer, "CHECKS_WAITING_MAX", 20)
    running_count = most = 0
    may_continue = asyncio.Event()

    async def check(message: ReceivedMessage) -> TransactionState:
        nonlocal running_count, most
        running_count += 1
        most = max(most, running_count)
        await may_continue.wait()
        running_count -= 1
        return COMMIT

    async with producer(cluster, check, topics=["T"]):
        await send_checks(broker, *map(question, range(30)))
        await until(lambda: running_count >= transaction_producer.CHECKS_AT_ONCE)
        may_continue.set()
        await until_ended(broker, 20)
    assert len(ends(broker)) == 20
    assert most == transaction_producer.CHECKS_AT_ONCE


async def test_brokers_of_the_given_topics_get_a_heartbeat_at_start(
    cluster: ScriptedCluster, broker: ScriptedBroker
) -> None:
    async with producer(cluster, topics=["T", "Nowhere"]):
        (beat, *_) = await broker.until_asked(RequestCode.HEART_BEAT)
    assert b'"groupName":"P"' in beat.body


async def test_a_close_cancels_running_checks(
    cluster: ScriptedCluster, broker: ScriptedBroker
) -> None:
    begun = asyncio.Event()

    async def check(message: ReceivedMessage) -> TransactionState:
        begun.set()
        await asyncio.Event().wait()
        return COMMIT

    async with producer(cluster, check, topics=["T"]):
        await send_checks(broker, question())
        await begun.wait()
    assert ends(broker) == []
