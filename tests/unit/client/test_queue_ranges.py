"""Ranges of queues are read completely and in order, from brokers with gaps and failures too."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

import store_builder
from reput.client import queue_ranges
from reput.client.admin import Admin
from reput.client.core import subscription
from reput.client.queue_ranges import Gap, PulledRange, RangeReader
from reput.clock import ManualClock
from reput.errors import BrokerError, RemotingError
from reput.format import command, message as record
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.message import StoredMessage
from scripted_cluster import ScriptedBroker, ScriptedCluster

PATIENCE_MS = 30_000
ALL = subscription.tags("T", "*", 0)


class QueueModel:
    """Queues of a broker, which returns at most ``count_max`` messages of a range without holes.

    Args:
        broker: Answers with these queues.
        messages: Messages of each queue id, by queue offset.
        min_offset: First queue offset of each.
        count_max: Maximum number of messages of a reply.
    """

    def __init__(
        self,
        broker: ScriptedBroker,
        messages: dict[int, list[StoredMessage]],
        *,
        min_offset: int = 0,
        count_max: int = 32,
    ) -> None:
        self.messages = messages
        self.min_offset = min_offset
        self.count_max = count_max
        self.failures: list[ResponseCode] = []
        """Codes of the next replies, which have no records and no progress."""
        broker.answers[RequestCode.PULL_MESSAGE] = self.pull

    def pull(self, request: Command) -> Command:
        fields = request.ext_fields or {}
        start, count = int(fields["queueOffset"]), int(fields["maxMsgNums"])
        stored = {m.queue_offset: m for m in self.messages[int(fields["queueId"])]}
        end = max(stored, default=-1) + 1
        if self.failures:
            return self._reply(request, self.failures.pop(0), start, end)
        if start < self.min_offset:
            return self._reply(request, ResponseCode.PULL_OFFSET_MOVED, self.min_offset, end)
        if start >= end:
            return self._reply(request, ResponseCode.PULL_NOT_FOUND, start, end)
        if start not in stored:
            following = min(number for number in stored if number > start)
            return self._reply(request, ResponseCode.PULL_NOT_FOUND, following, end)
        stop = start
        while stop in stored and stop - start < min(count, self.count_max):
            stop += 1
        body = b"".join(record.encode(stored[number]) for number in range(start, stop))
        return self._reply(request, ResponseCode.SUCCESS, stop, end, body)

    def _reply(
        self, request: Command, code: ResponseCode, next_offset: int, end: int, body: bytes = b""
    ) -> Command:
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(end),
        }
        return command.reply(request, code, "why", fields, body)


def messages_of(counts: list[int], step_ms: int = 10) -> dict[int, list[StoredMessage]]:
    """Return messages of queues of T, stored in turn at random."""
    randomly = random.Random(5)
    ids = [queue_id for queue_id, count in enumerate(counts) for _ in range(count)]
    randomly.shuffle(ids)
    drafts = [
        store_builder.message("T", queue_id=queue_id, store_timestamp=1_000_000 + i * step_ms)
        for i, queue_id in enumerate(ids)
    ]
    placed = store_builder.place(drafts, 1 << 30)
    return {
        queue_id: [message for message in placed if message.queue_id == queue_id]
        for queue_id in range(len(counts))
    }


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster({"T": {"broker-a": 4}}) as running:
        yield running


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1)


@pytest.fixture
async def admin(cluster: ScriptedCluster, clock: ManualClock) -> AsyncIterator[Admin]:
    async with Admin(cluster.namesrv, clock=clock) as started:
        yield started


@pytest.fixture
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_ranges, "_PULL_AGAIN_MS", 0)


def queue(queue_id: int = 0) -> MessageQueue:
    return MessageQueue(topic="T", broker_name="broker-a", queue_id=queue_id)


async def parts_of(
    reader: RangeReader, low: int, high: int, expression: str = "*"
) -> list[PulledRange | Gap]:
    wanted = subscription.tags("T", expression, 0)
    async with contextlib.aclosing(reader.read(queue(), low, high, wanted)) as parts:
        return [part async for part in parts]


def offsets_of(reader: RangeReader, parts: list[PulledRange | Gap]) -> list[int]:
    return [
        message.queue_offset
        for part in parts
        if isinstance(part, PulledRange)
        for message in reader.messages(queue(), part.records, ALL)
        if part.low <= message.queue_offset < part.high
    ]


@pytest.mark.parametrize("count_max", [1, 7, 32])
@pytest.mark.parametrize(("low", "high"), [(0, 300), (5, 290), (40, 41), (9, 9)])
async def test_each_offset_of_a_range_is_read_once(
    cluster: ScriptedCluster, admin: Admin, count_max: int, low: int, high: int
) -> None:
    QueueModel(cluster.broker, messages_of([300]), count_max=count_max)
    reader = RangeReader(admin.calls.instance)
    parts = await parts_of(reader, low, high)
    assert not any(isinstance(part, Gap) for part in parts)
    assert offsets_of(reader, parts) == list(range(low, high))


async def test_gaps_are_expired_messages_holes_and_the_end(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    queues = messages_of([100])
    queues[0] = [m for m in queues[0] if m.queue_offset >= 20 and not 50 <= m.queue_offset < 53]
    QueueModel(cluster.broker, queues, min_offset=20)
    reader = RangeReader(admin.calls.instance)
    parts = await parts_of(reader, 10, 120)
    assert offsets_of(reader, parts) == [message.queue_offset for message in queues[0]]
    gaps = [part for part in parts if isinstance(part, Gap)]
    missing = [number for gap in gaps for number in range(gap.low, gap.high)]
    assert missing == [*range(10, 20), *range(50, 53), *range(100, 120)]
    assert [gap.is_expired for gap in gaps] == [gap.low < 20 for gap in gaps]
    assert str(gaps[0]) == "offsets 10 to 19 have expired"
    assert str(gaps[1]) == "the broker returns nothing from queue offset 50 to 52"


async def test_a_broker_that_makes_no_progress_has_a_gap_without_patience(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    model = QueueModel(cluster.broker, messages_of([10]))
    model.failures = [ResponseCode.PULL_RETRY_IMMEDIATELY]
    reader = RangeReader(admin.calls.instance)
    assert await parts_of(reader, 0, 10) == [Gap(0, 10, is_expired=False)]


@pytest.mark.usefixtures("_no_delay")
async def test_with_patience_it_is_asked_again(cluster: ScriptedCluster, admin: Admin) -> None:
    model = QueueModel(cluster.broker, messages_of([100]))
    model.failures = [ResponseCode.PULL_RETRY_IMMEDIATELY] * 5
    reader = RangeReader(admin.calls.instance, patience_ms=PATIENCE_MS)
    assert offsets_of(reader, await parts_of(reader, 0, 100)) == list(range(100))


@pytest.mark.usefixtures("_no_delay")
async def test_with_patience_refused_and_lost_pulls_are_repeated(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    model = QueueModel(cluster.broker, messages_of([300]))
    model.failures = [ResponseCode.SYSTEM_BUSY] * 12
    reader = RangeReader(admin.calls.instance, patience_ms=PATIENCE_MS)
    assert offsets_of(reader, await parts_of(reader, 0, 300)) == list(range(300))
    answer, count = cluster.broker.answers[RequestCode.PULL_MESSAGE], 0

    def lose_line(request: Command) -> Command | None:
        nonlocal count
        count += 1
        if count % 6:
            return answer(request)
        cluster.broker.channels[-1].close()
        return None

    cluster.broker.answers[RequestCode.PULL_MESSAGE] = lose_line
    assert offsets_of(reader, await parts_of(reader, 0, 300)) == list(range(300))


@pytest.mark.usefixtures("_no_delay")
async def test_patience_ends(cluster: ScriptedCluster, admin: Admin, clock: ManualClock) -> None:
    def busy(request: Command) -> Command:
        clock.advance(PATIENCE_MS // 4)
        return command.reply(request, ResponseCode.SYSTEM_BUSY, "busy")

    cluster.broker.answers[RequestCode.PULL_MESSAGE] = busy
    reader = RangeReader(admin.calls.instance, patience_ms=PATIENCE_MS)
    with pytest.raises(BrokerError, match="busy"):
        await parts_of(reader, 0, 10)


async def test_without_patience_a_refusal_is_an_error(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    QueueModel(cluster.broker, messages_of([10])).failures = [ResponseCode.NO_PERMISSION]
    with pytest.raises(RemotingError, match="why"):
        await parts_of(RangeReader(admin.calls.instance), 0, 10)


async def test_a_filtered_range_is_one_pull_while_the_broker_makes_progress(
    cluster: ScriptedCluster, admin: Admin
) -> None:
    model = QueueModel(cluster.broker, messages_of([300]), count_max=1000)
    reader = RangeReader(admin.calls.instance)
    await parts_of(reader, 0, 300, "A || B")
    (request,) = cluster.broker.asked(RequestCode.PULL_MESSAGE)
    fields = request.ext_fields or {}
    assert (fields["maxMsgNums"], fields["subscription"]) == ("300", "A || B")
    assert fields["commitOffset"] == "0"
    assert model.failures == []


@pytest.mark.parametrize("counts", [[200], [1, 0, 150, 70], [40, 40, 40, 40]])
async def test_messages_of_several_queues_are_in_the_order_of_their_store_times(
    cluster: ScriptedCluster, admin: Admin, counts: list[int]
) -> None:
    queues = messages_of(counts)
    QueueModel(cluster.broker, queues, count_max=5)
    reader = RangeReader(admin.calls.instance)
    gaps: list[Gap] = []
    ranges = {queue(queue_id): (0, len(stored)) for queue_id, stored in queues.items()}
    messages = reader.in_order(ranges, lambda _, gap: gaps.append(gap))
    async with contextlib.aclosing(messages):
        places = [message.physical_offset async for message in messages]
    assert places == sorted(m.physical_offset for stored in queues.values() for m in stored)
    assert gaps == []


async def test_an_abandoned_merge_leaves_no_task(cluster: ScriptedCluster, admin: Admin) -> None:
    QueueModel(cluster.broker, messages_of([100, 100]), count_max=3)
    reader = RangeReader(admin.calls.instance)
    messages = reader.in_order({queue(0): (0, 100), queue(1): (0, 100)}, lambda *_: None)
    async with contextlib.aclosing(messages):
        async for message in messages:
            assert message.physical_offset == 0
            break
    assert not [task for task in asyncio.all_tasks() if "_QueueMessages" in repr(task)]


async def test_gaps_of_a_merge_are_reported(cluster: ScriptedCluster, admin: Admin) -> None:
    queues = messages_of([20])
    QueueModel(cluster.broker, {0: queues[0][5:]}, min_offset=5)
    gaps: list[tuple[MessageQueue, Gap]] = []
    reader = RangeReader(admin.calls.instance)
    messages = reader.in_order({queue(): (0, 20)}, lambda *gap: gaps.append(gap))
    assert [message.queue_offset async for message in messages] == list(range(5, 20))
    assert gaps == [(queue(), Gap(0, 5, is_expired=True))]
