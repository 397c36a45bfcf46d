"""Reads of a running broker, planned, sent and read without Spark, beside reads of its store."""

import itertools
import json
import random
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import seeds
import store_fixture
from reput.client import blocking
from reput.client.message import Message
from reput.clock import ManualClock
from reput.errors import (
    ConnectionLost,
    CorruptRecord,
    InvalidOption,
    RequestTimedOut,
    Unreachable,
)
from reput.format import message as record
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.remoting.client import RemotingClient
from reput.spark import explain, plan
from reput.spark.filters import from_values
from reput.spark.live import calls as live_calls, pull_pipeline, scan as live
from reput.spark.live.calls import ReadFailed, RetryingClient
from reput.spark.live.plan import LiveTask
from reput.spark.live.pull_connection import PullConnection, PullConnections, PullReply
from reput.spark.live.scan import LiveScan
from reput.spark.store_planner import DataLoss
from reput.testing import LocalBroker
from spark import live_traffic
from spark.live_traffic import BROKER, GROUP, Case, queue, read, scan_of
from spark.reading import Row, rows_of

pytestmark = pytest.mark.xdist_group("live")  # they share a broker and its traffic

BODY_AT = 88
"""Size of a record's head with two IPv4 hosts."""


CASES = store_fixture.some(live_traffic.NAMES)
"""Names of the reads of a day: each is one of five days, with ``make soak`` all are."""


@dataclass
class Results:
    """Rows of live reads, and the store of the broker, which has stopped."""

    folder: Path
    cases: dict[str, Case]
    rows: dict[str, list[Row]]
    traces: tuple[Any, Any]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("live")
    with LocalBroker(folder=folder) as mq:
        address = mq.namesrv_addr
        traffic = live_traffic.publish(address)
        of_all = live_traffic.cases(traffic)
        listed = {name: of_all[name] for name in CASES}
        rows = live_traffic.read_all(address, listed)
        both = (traffic.traces_before, live_traffic.traces(address))
        live_calls.disconnect()
    return Results(folder, listed, rows, both)


def test_rows_equal_those_of_the_store(results: Results) -> None:
    for name, case in results.cases.items():
        of_store = case.rows_of(results.folder)
        assert results.rows[name] == of_store, name
        assert bool(of_store) is (name not in live_traffic.NOTHING)


def test_reading_leaves_no_trace(results: Results) -> None:
    before, after = results.traces
    assert before == after
    groups = json.loads((results.folder / "config/subscriptionGroup.json").read_text())
    assert set(groups["subscriptionGroupTable"]) == set(before[1])
    offsets = json.loads((results.folder / "config/consumerOffset.json").read_text())
    assert set(offsets["offsetTable"]) == {f"Orders@{GROUP}"}


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"Orders": 2, "Empty": 1}) as running:
        with blocking.Producer("p", namesrv=running.namesrv_addr) as producer:
            producer.send_many(
                [Message("Orders", b"%d" % i, tags="TagA") for i in range(100)],
                queue=queue(0),
            )
        running.messages("Orders", at_least=100)
        yield running
        live_calls.disconnect()


@pytest.fixture
def planned(mq: LocalBroker) -> tuple[LiveScan, LiveTask]:
    """Return a scan and its only task: queue 0, 100 messages."""
    scan = scan_of(mq.namesrv_addr, topic="Orders")
    (task,) = scan.tasks()
    assert task.partition.slices == (plan.QueueSlice("Orders", 0, 0, 100),)
    return scan, task


# --- plans ------------------------------------------------------------------


def test_plans(mq: LocalBroker) -> None:
    tasks = scan_of(mq.namesrv_addr, topic="Orders", maxRecordsPerPartition=40).tasks()
    assert [(part.start, part.stop) for task in tasks for part in task.partition.slices] == [
        (0, 40),
        (40, 80),
        (80, 100),
    ]
    assert len(scan_of(mq.namesrv_addr, topic="Orders", minPartitions=4).tasks()) == 4
    text = explain(nameServer=mq.namesrv_addr, topic="Orders", tags="TagA")
    assert text.startswith("wanted: topics in ['Orders'], tags in ['TagA']")
    assert "1 of 2 queues" in text


def test_messages_after_planning_are_not_read(mq: LocalBroker) -> None:
    scan = scan_of(mq.namesrv_addr, topic="Empty")
    assert scan.tasks() == []
    with blocking.Producer("p", namesrv=mq.namesrv_addr) as producer:
        producer.send(Message("Empty", b"1"))
        mq.messages("Empty", at_least=1)
        tasks = scan.tasks()
        producer.send(Message("Empty", b"2"))
        mq.messages("Empty", at_least=2)
    assert [row["body"] for row in rows_of(scan, tasks)] == [b"1"]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"topic": "Nope"}, DataLoss, "topic 'Nope' is not known to name server"),
    ({"topic": "%LMQ%x"}, InvalidOption, "light queue"),
    ({"cluster": "Nope"}, InvalidOption, "DefaultCluster"),
    ({"broker": "Nope"}, InvalidOption, "names of brokers: broker-a"),
    ({"assign": {"Orders": {"b": [0]}}}, InvalidOption, "names of brokers: broker-a"),
    ({"assign": {"Orders": {BROKER: [7]}}}, DataLoss, "queue Orders/7 of broker broker-a is not"),
    (
        {"topic": "Empty", "startingOffsets": {"Orders": {BROKER: {"0": 1}}}},
        DataLoss,
        "queue Orders/0 of broker broker-a is not",
    ),
    ({"startingOffsets": "group:nobody"}, InvalidOption, "none: no group has committed"),
    (
        {"topic": "Orders", "startingOffsets": {"Orders": {BROKER: {"0": 101}}}},
        DataLoss,
        "queue Orders/0 of broker broker-a holds 0 to 100, asked for were 101 to 100",
    ),
    (
        {
            "topic": "Orders",
            "startingOffsetsByTimestamp": {"Orders": {BROKER: {"0": 9_000_000_000_000}}},
        },
        InvalidOption,
        "startingOffsetsByTimestampStrategy=latest",
    ),
]


def test_invalid_offsets_and_names_are_refused(mq: LocalBroker) -> None:
    for given, kind, text in REFUSED:
        with pytest.raises(kind, match=text):
            scan_of(mq.namesrv_addr, **given).tasks()
    with pytest.raises(InvalidOption, match="option 'nameServer' is 'here:x'"):
        scan_of("here:x").tasks()
    scan = scan_of(mq.namesrv_addr, topics="Orders,Nope", failOnDataLoss=False)
    assert len(rows_of(scan, scan.tasks())) == 100
    assert any("data loss: topic 'Nope'" in line for line in scan.summary.lines)


def test_predicates_may_exclude_queues_with_offsets(mq: LocalBroker) -> None:
    starting = {"Orders": {BROKER: {"0": 90}}, "Empty": {BROKER: {"0": 0}}}
    constraint = from_values("topic", ["Orders"])
    rows = read(mq.namesrv_addr, constraint, topics="Orders,Empty", startingOffsets=starting)
    assert [row["queue_offset"] for row in rows] == list(range(90, 100))


def test_an_unreachable_name_server_is_an_error() -> None:
    given = {"topic": "T", "pullTimeoutMs": 500, "fetchOffset.numRetries": 1}
    with pytest.raises(ReadFailed, match=r"asked 2 times; name server 127\.0\.0\.1:1;"):
        scan_of("127.0.0.1:1", **given).tasks()
    live_calls.disconnect()


# --- reading ----------------------------------------------------------------


def test_connections_are_kept_for_the_next_task(
    planned: tuple[LiveScan, LiveTask], mq: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_calls.disconnect()
    made: list[str] = []
    connect = PullConnection.__init__

    def counted(line: PullConnection, address: str, *certificates: Any) -> None:
        made.append(address)
        connect(line, address, *certificates)

    monkeypatch.setattr(PullConnection, "__init__", counted)
    scan, task = planned
    cluster = live_calls.connected(scan._live)
    assert live_calls.connected(scan_of(mq.namesrv_addr, topic="Empty")._live) is cluster
    for _ in range(2):
        assert len(rows_of(scan, [task])) == 100
    assert len(made) == 1
    live_calls.disconnect()
    assert live_calls.connected(scan._live) is not cluster
    batches = scan.read(task)  # it may end early
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(rows_of(scan, [task])) == 100


def test_messages_deleted_since_planning_are_data_loss(
    mq: LocalBroker, planned: tuple[LiveScan, LiveTask]
) -> None:
    scan, task = planned
    for start, stop, count in ((-5, 10, 10), (90, 120, 10), (150, 160, 0)):
        part = replace(task.partition, slices=(plan.QueueSlice("Orders", 0, start, stop),))
        text = f"queue Orders/0 of broker broker-a holds 0 to 100 now, planned were {start} to "
        with pytest.raises(DataLoss, match=f"{text}{stop}"):
            rows_of(scan, [replace(task, partition=part)])
        tolerant = scan_of(mq.namesrv_addr, topic="Orders", failOnDataLoss=False)
        assert len(rows_of(tolerant, [replace(task, partition=part)])) == count


class Patched:
    """Pulls without the fast path; ``change`` may modify each reply before it is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def take(lines: PullConnections, address: str) -> PullConnection:
            raise Unreachable(address, "there are no lines")

        monkeypatch.setattr(PullConnections, "take", take)
        self.failures_left = 0
        self.asked: list[Command] = []
        self.change = lambda reply: None
        invoke = RemotingClient.invoke

        async def patched(
            client: RemotingClient, address: str, request: Command, timeout_ms: int = 3000
        ) -> Command:
            self.asked.append(request)
            if request.code != RequestCode.PULL_MESSAGE:
                return await invoke(client, address, request, timeout_ms)
            if self.failures_left:
                self.failures_left -= 1
                raise ConnectionLost(address)
            reply = await invoke(client, address, request, timeout_ms)
            self.change(reply)
            return reply

        monkeypatch.setattr(RemotingClient, "invoke", patched)


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch, planned: Any) -> Patched:
    return Patched(monkeypatch)


def test_lost_connections_are_reopened_and_retries_limited(
    mq: LocalBroker, planned: tuple[LiveScan, LiveTask], pulls: Patched
) -> None:
    pulls.failures_left = 3
    rows = rows_of(planned[0], [planned[1]])
    assert [row["queue_offset"] for row in rows] == list(range(100))
    assert RequestCode.GET_ROUTEINFO_BY_TOPIC in [request.code for request in pulls.asked]
    pulls.failures_left = 1000
    scan = scan_of(mq.namesrv_addr, topic="Orders", **{"fetchOffset.numRetries": 3})
    text = r"messages of queue Orders/0 of broker broker-a from queue offset 0 on: connection to "
    with pytest.raises(ReadFailed, match=text + ".* lost.*asked 4 times"):
        rows_of(scan, [planned[1]])


def test_pulls_name_the_client_and_commit_nothing(mq: LocalBroker, pulls: Patched) -> None:
    assert len(read(mq.namesrv_addr, topic="Orders", tags="TagA")) == 100
    headers = [
        request.ext_fields or {}
        for request in pulls.asked
        if request.code == RequestCode.PULL_MESSAGE
    ]
    assert {header["consumerGroup"] for header in headers} == {"TOOLS_CONSUMER"}
    assert {header["sysFlag"] for header in headers} == {"4"}
    assert {header["subscription"] for header in headers} == {"*", "TagA"}
    codes = {request.code for request in pulls.asked}
    assert not codes & {RequestCode.HEART_BEAT, RequestCode.UPDATE_CONSUMER_OFFSET}


def damage(reply: Command) -> None:
    data = bytearray(reply.body)
    data[BODY_AT] ^= 1
    reply.body = bytes(data)


def tear(reply: Command) -> None:
    reply.body = bytes(reply.body)[:-1]


def skip_the_first(reply: Command) -> None:
    data = bytes(reply.body)
    size, _ = record.SIZE_AND_MAGIC.unpack_from(data)
    reply.body = data[size:]


def expire(reply: Command) -> None:
    """Let offsets 32 to 63 expire between planning and the pull."""
    fields = reply.ext_fields or {}
    if fields.get("nextBeginOffset") == "64":
        reply.code, reply.remark, reply.body = 21, "OFFSET_TOO_SMALL", b""
        fields.update(minOffset="64")


def with_checksums(flip: int) -> Callable[[Command], None]:
    """Add record checksums, which cover the physical offset: not the position in a reply."""

    def change(reply: Command) -> None:
        data = bytes(reply.body)
        places = [*live_calls.frames(data), len(data)]
        parts = [data[start:end] for start, end in pairwise(places)]
        whole = [bytearray(record.append_crc_property(part)) for part in parts]
        whole[-1][record.POSITION_FLAG] ^= flip
        reply.body = b"".join(whole)

    return change


LOSSES: list[tuple[Callable[[Command], None], str, list[int]]] = [
    (
        skip_the_first,
        "has no messages at queue offsets 0 to 1: its broker",
        [number for number in range(100) if number % 32],
    ),
    (expire, "holds 64 to 100 now, planned were 32 to 64", [*range(32), *range(64, 100)]),
]


def test_damaged_and_lost_messages_are_errors(
    mq: LocalBroker, planned: tuple[LiveScan, LiveTask], pulls: Patched
) -> None:
    of_queue = "reply to a pull from queue Orders/0 of broker"
    for change, text in (
        (damage, of_queue),
        (tear, "bytes are left"),
        (with_checksums(1), of_queue),
    ):
        pulls.change = change
        with pytest.raises(CorruptRecord, match=text):
            rows_of(planned[0], [planned[1]])
    pulls.change = with_checksums(0)
    rows = rows_of(planned[0], [planned[1]])
    assert ["__CRC32#" in row["properties"] for row in rows] == [True] * 100
    tolerant = scan_of(mq.namesrv_addr, topic="Orders", failOnDataLoss=False)
    for pulls.change, text, left in LOSSES:
        with pytest.raises(DataLoss, match=text):
            rows_of(planned[0], [planned[1]])
        rows = rows_of(tolerant, [planned[1]])
        assert [row["queue_offset"] for row in rows] == left


# --- lines ------------------------------------------------------------------


class Meddled:
    """Replies of the fast path; ``change`` gets the number of each and may modify it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.change: Callable[[int, PullReply], Iterable[PullReply]] = lambda _, reply: [reply]
        self.reads = itertools.count()
        self.at_read: Callable[[int, PullConnection], None] = lambda number, line: None
        self.asked_again: list[int] = []
        receive, pull = PullConnection.receive, RetryingClient.pull

        def meddled(line: PullConnection, wait_s: float, timeout_ms: int) -> list[PullReply]:
            self.at_read(next(self.reads), line)
            replies: list[PullReply] = []
            for reply in receive(line, wait_s, timeout_ms):
                replies += self.change(self.count, reply)
                self.count += 1
            return replies[::-1]  # brokers answer in any order

        async def noted(client: RetryingClient, queue: Any, queue_offset: int, *more: Any) -> Any:
            self.asked_again.append(queue_offset)
            return await pull(client, queue, queue_offset, *more)

        monkeypatch.setattr(PullConnection, "receive", meddled)
        monkeypatch.setattr(RetryingClient, "pull", noted)


@pytest.fixture
def small(mq: LocalBroker) -> tuple[LiveScan, LiveTask]:
    """Return a scan and its task: 100 messages, 3 in each pull."""
    scan = scan_of(mq.namesrv_addr, topic="Orders", pullBatchSize=3)
    (task,) = scan.tasks()
    return scan, task


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, small: Any) -> Iterator[Meddled]:
    yield Meddled(monkeypatch)
    live_calls.disconnect()


def assert_all_messages_are_read(scan_and_task: tuple[LiveScan, LiveTask]) -> None:
    scan, task = scan_and_task
    rows = rows_of(scan, [task])
    assert [row["queue_offset"] for row in rows] == list(range(100))
    assert [row["body"] for row in rows] == [b"%d" % i for i in range(100)]


def with_stale_replies(_: int, reply: PullReply) -> list[PullReply]:
    # The list is reversed afterwards: the first of two replies counts, as for every client.
    other = PullReply(reply.opaque + 10_000, 0, "FOUND", 99, b"of somebody else")
    return [other, PullReply(reply.opaque, 0, "FOUND", 99, b"again"), reply]


def cut_to(count: int) -> Callable[[int, PullReply], list[PullReply]]:
    """Shorten each reply to a number of messages."""

    def cut(_: int, reply: PullReply) -> list[PullReply]:
        places = live_calls.frames(reply.records)
        if len(places) > count:
            reply.records = reply.records[: places[count]]
            reply.next_offset -= len(places) - count
        return [reply]

    return cut


def test_replies_in_any_order_stale_ones_and_short_ones(
    small: tuple[LiveScan, LiveTask], lines: Meddled
) -> None:
    """None of them needs another request."""
    for change, reply_count in ((lines.change, 34), (with_stale_replies, 34), (cut_to(1), 100)):
        lines.change, lines.count = change, 0
        assert_all_messages_are_read(small)
        assert lines.count == reply_count
    assert lines.asked_again == []


def test_a_reply_without_the_next_records_is_requested_again(
    small: tuple[LiveScan, LiveTask], lines: Meddled
) -> None:
    codes = (
        *(ResponseCode.SYSTEM_BUSY, ResponseCode.PULL_NOT_FOUND),
        *(ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED),
        ResponseCode.SUCCESS,  # a reply without progress
    )
    for number, code in itertools.product((0, 1, 17, 33), codes):
        first: list[int] = []

        def fail(
            count: int, reply: PullReply, number: int = number, code: int = code, first: Any = first
        ) -> list[PullReply]:
            if count != number:
                return [reply]
            first.append(reply.next_offset - len(live_calls.frames(reply.records)))
            next_offset = reply.next_offset if code else first[0]
            return [PullReply(reply.opaque, code, "so it is", next_offset, b"")]

        lines.change, lines.count, lines.asked_again = fail, 0, []
        assert_all_messages_are_read(small)
        assert lines.asked_again == first, (number, code)


@pytest.mark.parametrize("error", [ConnectionLost("here"), RequestTimedOut("here", 11, 5)])
def test_missing_replies_of_a_lost_connection_are_requested_again(
    small: tuple[LiveScan, LiveTask], lines: Meddled, error: Exception
) -> None:
    """Also within a part of a chunk: only missing messages are requested again."""
    lines.change = cut_to(2)
    for number in range(6):
        lines.reads = itertools.count()

        def end(read: int, line: PullConnection, number: int = number) -> None:
            if read == number:
                raise error

        lines.at_read = end
        assert_all_messages_are_read(small)
    assert lines.asked_again
    assert any(queue_offset % 3 for queue_offset in lines.asked_again)


def test_a_connection_closed_during_a_read(
    small: tuple[LiveScan, LiveTask], lines: Meddled
) -> None:
    def close(read: int, line: PullConnection) -> None:
        if read == 1:
            line._socket.shutdown(socket.SHUT_RDWR)

    # The other requests get no reply.
    lines.change = lambda number, reply: [reply] if number % 3 else []
    lines.at_read = close
    assert_all_messages_are_read(small)
    assert lines.asked_again


def test_a_long_pause_between_batches_is_no_timeout(
    small: tuple[LiveScan, LiveTask], lines: Meddled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies that have arrived in the meantime are not overdue."""
    clock = ManualClock()
    now = SimpleNamespace(monotonic=lambda: clock.monotonic_ms() / 1e3)
    monkeypatch.setattr(pull_pipeline, "time", now)
    monkeypatch.setattr(pull_pipeline, "_BATCH_BYTES", 1)
    row_count = 0
    for batch in small[0].read(small[1]):
        row_count += batch.num_rows
        clock.advance(3_600_000)
    assert row_count == 100
    assert lines.asked_again == []


# --- records of many replies ------------------------------------------------


def _reply(rng: random.Random, count: int) -> bytes:
    sizes = [rng.choice((91, 92, 100, 5000)) for _ in range(count)]
    return b"".join(record.SIZE_AND_MAGIC.pack(size, 0) + bytes(size - 8) for size in sizes)


@pytest.mark.parametrize("count", [0, 1, 8, 9, 40])
def test_records_of_joined_replies_equal_those_of_each(count: int) -> None:
    rng = seeds.random("joined replies", count)
    for _ in range(20):
        replies = [_reply(rng, rng.randint(0, 33)) for _ in range(count)]
        ends = np.cumsum([0, *map(len, replies)])
        places = live._places(bytearray(b"".join(replies)), ends, [queue(0)] * count)
        assert places.tolist() == [
            int(first) + position
            for first, reply in zip(ends, replies, strict=False)
            for position in live_calls.frames(reply)
        ]


def _judged(replies: Sequence[bytes | bytearray], queues: Sequence[MessageQueue]) -> str:
    """Return the error of records in joined replies; nothing if they are whole."""
    ends = np.cumsum([0, *map(len, replies)])
    try:
        live._places(bytearray(b"".join(replies)), ends, queues)
    except CorruptRecord as error:
        return str(error)
    return ""


def test_an_invalid_size_is_found_in_any_reply() -> None:
    rng = seeds.random("invalid sizes")
    replies = [bytearray(_reply(rng, rng.randint(3, 33))) for _ in range(21)]
    queues = [queue(i) for i in range(21)]
    assert _judged(replies, queues) == ""
    for which, damage in itertools.product((0, 5, 20), (-1, 0, 90, 1 << 30)):
        last, good = live_calls.frames(replies[which])[-1], bytes(replies[which])
        struct.pack_into(">i", replies[which], last, damage)
        with pytest.raises(CorruptRecord) as of_one:
            live_calls.frames(replies[which], queues[which])
        assert _judged(replies, queues) == str(of_one.value), (which, damage)
        replies[which][:] = good
    for cut in range(1, 91):
        short = [*replies[:-1], replies[-1][:-cut]]
        assert "bytes are left" in _judged(short, queues), cut
