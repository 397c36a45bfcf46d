"""Rows sent to brokers without Spark: order, retries, replays, and the messages stored."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from reput.errors import BrokerError, ConnectionLost, InvalidOption, RequestTimedOut
from reput.format import command
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.remoting.client import RemotingClient
from reput.spark import option_table
from reput.spark.live.calls import disconnect
from reput.spark.sending import options as write_options
from reput.spark.sending.requests import TaskIdentity
from reput.spark.sending.rows import BadRow
from reput.spark.sending.send import SendingFailed, SentCounts, send
from reput.testing import LocalBroker
from scripted_cluster import ScriptedCluster

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
WRITE_ID = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"T": 4}) as running:
        yield running
        disconnect()


@pytest.fixture
def mq(broker: LocalBroker) -> LocalBroker:
    """Create an empty topic ``T`` and a test's own identity: the index keeps earlier keys."""
    broker.clear()
    broker.create_topic("T", 4)
    next(WRITE_ID)
    return broker


def write(address: str, columns: dict[str, list[Any]], **options: Any) -> SentCounts:
    """Write rows in two Arrow batches; a second write in a test has the same identity."""
    texts = {name.replace("_", "."): str(value) for name, value in options.items()}
    parsed = write_options.parse(
        {"nameServer": address, "topic": "T", "send.retryIntervalMs": "1", **texts}
    )
    rows = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    halves = [rows.slice(0, rows.num_rows // 2), rows.slice(rows.num_rows // 2)]
    return send(halves, parsed, TaskIdentity(repr(WRITE_ID), 0))


def numbers(count: int) -> dict[str, list[Any]]:
    """Return rows with a number as body; a third has a queue, a third a sharding key."""
    return {
        "body": [b"%d" % i for i in range(count)],
        "queue_id": [i % 4 if i % 3 == 0 else None for i in range(count)],
        "sharding_key": [f"s{i % 5}" if i % 3 == 1 else None for i in range(count)],
    }


def by_queue(mq: LocalBroker, count: int) -> dict[int, list[int]]:
    """Return the numbers in each queue; there must be all of them, each once."""
    numbers_by_queue = defaultdict(list)
    for message in sorted(mq.messages("T", at_least=count), key=lambda sent: sent.queue_offset):
        numbers_by_queue[message.queue_id].append(int(message.body))
    sent = itertools.chain.from_iterable(numbers_by_queue.values())
    assert sorted(sent) == list(range(count))
    return numbers_by_queue


class Faults:
    """Sends that are lost before a broker gets them, or whose replies are lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before: Callable[[int], Exception | None] = lambda number: None
        self.after: Callable[[int], Exception | None] = lambda number: None
        self.asked: list[Command] = []
        self._count = 0
        invoke = RemotingClient.invoke

        async def patched(
            client: RemotingClient, address: str, request: Command, timeout_ms: int = 3000
        ) -> Command:
            self.asked.append(request)
            if request.code not in SENDS:
                return await invoke(client, address, request, timeout_ms)
            number = self._count
            self._count += 1
            if error := self.before(number):
                raise error
            reply = await invoke(client, address, request, timeout_ms)
            if error := self.after(number):
                raise error
            return reply

        monkeypatch.setattr(RemotingClient, "invoke", patched)

    def codes(self) -> list[int]:
        return [request.code for request in self.asked]


@pytest.fixture
def faults(mq: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


# --- messages stored --------------------------------------------------------


@pytest.mark.parametrize("mode", option_table.SEND_MODES)
def test_every_row_is_sent_once(mq: LocalBroker, faults: Faults, mode: str) -> None:
    counts = write(mq.namesrv_addr, numbers(300), sendMode=mode)
    queues = by_queue(mq, 300)
    assert (counts.message_count, counts.retry_count, counts.skipped_count) == (300, 0, 0)
    assert counts.body_bytes == sum(len(str(i)) for i in range(300))
    assert (counts.request_count < 60) == (mode == "batch")
    shards = defaultdict(set)
    for queue_id, bodies in queues.items():
        assert mode == "async" or bodies == sorted(bodies)
        for i in bodies:
            if i % 3 == 0:
                assert queue_id == i % 4
            if i % 3 == 1:
                shards[i % 5].add(queue_id)
    assert all(len(of_key) == 1 for of_key in shards.values())
    if mode == "batch":
        assert faults.codes().count(RequestCode.QUERY_MESSAGE) == 1
        first = next(request for request in faults.asked if request.code in SENDS)
        assert first.body == b"0"  # sent alone, and answered before the others are sent


def test_large_bodies_are_compressed(mq: LocalBroker, faults: Faults) -> None:
    rows = {"body": [b"ab" * 50_000, b"cd" * 100_000, b"e"]}
    write(mq.namesrv_addr, rows)
    assert {message.body for message in mq.messages("T", at_least=3)} == set(rows["body"])
    assert all(len(request.body) < 2000 for request in faults.asked)


def test_unknown_topics_are_created_like_by_producers(
    mq: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    write(mq.namesrv_addr, {"body": [b"x"] * 10}, topic="New")
    assert len(mq.messages("New", at_least=10)) == 10
    text = "topic 'New' does not exist: its first message creates it"
    assert caplog.messages == [text]
    write(mq.namesrv_addr, {"body": [b"x"]}, topic="New")
    assert caplog.messages == [text]


def test_delayed_messages_are_sent_beside_batches(mq: LocalBroker) -> None:
    delays = [18 if i == 4 else 0 for i in range(9)]  # 2 h
    rows = {"body": [b"%d" % i for i in range(9)], "delay_level": delays}
    assert write(mq.namesrv_addr, rows).message_count == 9
    messages = mq.messages("T", at_least=8)
    assert sorted(int(message.body) for message in messages) == [0, 1, 2, 3, 5, 6, 7, 8]
    # A second attempt finds the delayed one in the schedule topic.
    assert write(mq.namesrv_addr, rows).skipped_count == 9


def test_invalid_rows_and_options_are_refused(mq: LocalBroker) -> None:
    two = [b"x", b"x"]
    refusals: list[tuple[type[Exception], str, dict[str, list[Any]], dict[str, Any]]] = [
        (BadRow, "row 3, column 'body': is null", {"body": [*two, b"x", None]}, {}),
        (
            BadRow,
            "row 1, column 'queue_id': is 9; topic 'T' has queues 0, 1",
            {"body": two, "queue_id": [0, 9]},
            {},
        ),
        (
            BadRow,
            r"row 1, column 'body': has 2000 bytes; .*maxMessageBytes",
            {"body": [b"x", bytes(2000)]},
            {"maxMessageBytes": 1999},
        ),
        (
            BadRow,
            "row 1, column 'deliver_at': is set; broker broker-a is older",
            {"body": two, "deliver_at": [None, 1 << 41]},
            {},
        ),
        (
            InvalidOption,
            "brokers of topic 'T': broker-a",
            {"body": two},
            {"broker": "broker-z"},
        ),
        (InvalidOption, "SCHEDULE_TOPIC_XXXX", {"body": two}, {"topic": "SCHEDULE_TOPIC_XXXX"}),
        (InvalidOption, "colour", {"body": two, "colour": [1, 1]}, {}),
    ]
    for kind, text, columns, options in refusals:
        with pytest.raises(kind, match=text):
            write(mq.namesrv_addr, columns, **options)


# --- failures ---------------------------------------------------------------


@pytest.mark.parametrize("mode", ["batch", "sync", "async"])
def test_lost_requests_and_replies(mq: LocalBroker, faults: Faults, mode: str) -> None:
    """They change no order, and a lost reply repeats no message."""
    faults.after = lambda number: RequestTimedOut("x", 310, 1) if number % 3 == 1 else None
    counts = write(mq.namesrv_addr, numbers(100), sendMode=mode, send_retryIntervalMs=50)
    assert (counts.retry_count, counts.message_count) == (0, 100)
    by_queue(mq, 100)
    if mode == "async":
        return
    mq.clear()
    mq.create_topic("T", 4)
    next(WRITE_ID)
    faults.after = lambda number: None
    faults.before = lambda number: ConnectionLost("x") if number % 3 == 1 else None
    counts = write(mq.namesrv_addr, numbers(300), sendMode=mode, batchBytes=2000)
    assert all(queue == sorted(queue) for queue in by_queue(mq, 300).values())
    assert counts.retry_count > 0
    assert RequestCode.GET_ROUTEINFO_BY_TOPIC in faults.codes()


def test_retries_are_limited(mq: LocalBroker, faults: Faults) -> None:
    faults.after = lambda number: ConnectionLost("x") if number == 0 else None
    write(mq.namesrv_addr, {"body": [b"x"]}, skipPresent="none")
    messages = mq.messages("T", at_least=2)
    assert len({message.message_id for message in messages}) == len(messages) - 1 == 1
    faults.before = lambda number: ConnectionLost("there") if number > 2 else None
    text = r"rows? \d+.*: not sent to queue T/\d of broker broker-a: connection to there lost"
    with pytest.raises(SendingFailed, match=text + ".*sent 3 times"):
        write(mq.namesrv_addr, numbers(10), send_numRetries=2)
    # A permanent refusal is not retried.
    illegal = BrokerError(ResponseCode.MESSAGE_ILLEGAL, "message too large", "there")
    faults.before, faults.asked = (lambda number: illegal), []
    with pytest.raises(SendingFailed, match=r"row 0: .*too large .*sent once.*have 7 bytes"):
        write(mq.namesrv_addr, {"body": [b"x" * 7]})
    assert len([code for code in faults.codes() if code in SENDS]) == 1


# --- replays ----------------------------------------------------------------


def test_a_second_attempt_sends_missing_rows(mq: LocalBroker, faults: Faults) -> None:
    faults.before = lambda number: ConnectionLost("x") if number > 40 else None
    with pytest.raises(SendingFailed):
        write(mq.namesrv_addr, numbers(100), sendMode="sync", send_numRetries=0)
    had = len(mq.messages("T", at_least=41))
    faults.before = lambda number: None
    counts = write(mq.namesrv_addr, numbers(100), sendMode="sync")
    assert (counts.skipped_count, counts.message_count) == (had, 100 - had)
    by_queue(mq, 100)


def test_other_rows_of_an_earlier_attempt_are_sent(mq: LocalBroker) -> None:
    write(mq.namesrv_addr, {"body": [b"1", b"2", b"3"]})
    counts = write(mq.namesrv_addr, {"body": [b"1", b"3", b"2"]})
    assert (counts.skipped_count, counts.message_count) == (1, 2)
    messages = mq.messages("T", at_least=5)
    assert len({message.message_id for message in messages}) == 5


def test_own_keys_are_looked_up_if_configured(mq: LocalBroker) -> None:
    rows = {"body": [b"1", b"2"], "uniq_key": ["A", "B"]}
    for present, skipped in (("derived", 0), ("derived", 0), ("all", 2), ("none", 0)):
        counts = write(mq.namesrv_addr, rows, skipPresent=present)
        assert counts.skipped_count == skipped, present


# --- statuses of brokers ----------------------------------------------------


async def scripted(code: ResponseCode, **options: Any) -> SentCounts:
    async with ScriptedCluster({"T": {"broker-a": 1}}) as cluster:
        cluster.broker.answers[RequestCode.QUERY_MESSAGE] = _nothing
        cluster.broker.store_as(code)
        try:
            return await asyncio.to_thread(write, cluster.namesrv, {"body": [b"x"]}, **options)
        finally:
            await asyncio.to_thread(disconnect)


def _nothing(request: Command) -> Command:
    fields = {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
    return command.reply(request, ResponseCode.QUERY_NOT_FOUND, "no", fields)


@pytest.mark.parametrize("status", option_table.FAIL_STATUSES)
async def test_a_status_in_fail_on_is_a_failure(status: str) -> None:
    code = ResponseCode[status]
    with pytest.raises(SendingFailed, match=f"row 0: .*says {status}; option failOn"):
        await scripted(code)
    others = ",".join(set(option_table.FAIL_STATUSES) - {status})
    for fail_on in ("none", others):
        assert (await scripted(code, failOn=fail_on)).unsafe_count == 1


async def test_a_refused_message_goes_to_another_broker() -> None:
    async with ScriptedCluster({"T": {"broker-a": 1, "broker-b": 1}}, brokers=2) as cluster:
        for broker in cluster.brokers:
            broker.answers[RequestCode.QUERY_MESSAGE] = _nothing
        cluster.broker.refuse(ResponseCode.SYSTEM_BUSY)
        counts = await asyncio.to_thread(write, cluster.namesrv, {"body": [b"x"]})
        assert (counts.message_count, counts.retry_count) == (1, 1)
        assert len(cluster.brokers[1].asked(*SENDS)) == 1
        with pytest.raises(SendingFailed, match="queue T/0 of broker broker-a"):
            await asyncio.to_thread(
                write,
                cluster.namesrv,
                {"body": [b"x"], "queue_id": [0]},
                broker="broker-a",
                send_numRetries=1,
            )
        await asyncio.to_thread(disconnect)
