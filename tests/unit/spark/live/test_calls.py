"""Brokers and name servers that are away: repeated requests, and streams."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from reput.broker.server import Broker
from reput.client import blocking
from reput.client.core.patience import Patience
from reput.client.message import Message
from reput.clock import ManualClock
from reput.errors import BrokerError, ConnectionLost, RemotingError, TlsFailed, Unreachable
from reput.format.codes import ResponseCode
from reput.spark import options as option_texts, rows
from reput.spark.live import calls as live_calls
from reput.spark.live.calls import ReadFailed, RetryingClient
from reput.spark.options import LiveOptions
from reput.spark.store_planner import DataLoss
from reput.spark.streaming.stream import QueueStream
from reput.testing import LocalBroker
from spark import reading
from spark.live_traffic import BROKER, queue

TWO_MINUTES_MS = 120_000
AWAY = Unreachable("there", "refused")


def attempts(error: RemotingError, count: int | None, timeout_ms: int, interval_ms: int) -> int:
    """Return the number of attempts with one error; each takes no time."""
    patience, now_ms = Patience(timeout_ms, count, interval_ms), 0
    while not patience.is_over(error, now_ms):
        now_ms += interval_ms
    return patience.attempt_count


@pytest.mark.parametrize(
    ("error", "count", "timeout_ms", "expected"),
    [
        (AWAY, None, TWO_MINUTES_MS, 121),
        (AWAY, None, 0, 1),
        (AWAY, 3, TWO_MINUTES_MS, 4),
        (AWAY, 3, 2000, 3),
        (AWAY, 0, TWO_MINUTES_MS, 1),
        (ConnectionLost("there"), None, 5000, 6),
        (TlsFailed("no"), None, TWO_MINUTES_MS, 1),
        (BrokerError(ResponseCode.SYSTEM_ERROR, ""), None, TWO_MINUTES_MS, 4),
        (BrokerError(ResponseCode.SYSTEM_ERROR, ""), 9, TWO_MINUTES_MS, 10),
        (BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, ""), None, 9000, 10),
        (BrokerError(ResponseCode.MESSAGE_ILLEGAL, ""), None, TWO_MINUTES_MS, 1),
    ],
)
def test_attempts(error: RemotingError, count: int | None, timeout_ms: int, expected: int) -> None:
    assert attempts(error, count, timeout_ms, 1000) == expected


async def test_a_server_may_be_away_for_two_minutes_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()

    async def pause(client: RetryingClient) -> None:
        clock.advance(client.live.retry_interval_ms)

    monkeypatch.setattr(RetryingClient, "_pause", pause)
    client = RetryingClient(None, LiveOptions("ns:1"), clock)  # type: ignore[arg-type]
    returns_ms = TWO_MINUTES_MS

    async def ask() -> str:
        if clock.monotonic_ms() < returns_ms:
            raise AWAY
        return "there"

    assert await client.patiently("topics", None, ask) == "there"
    returns_ms *= 100
    with pytest.raises(ReadFailed, match=r"asked \d+ times; .*options retryTimeout"):
        await client.patiently("topics", None, ask)


# --- a broker that restarts ---------------------------------------------------------------------


class Outage:
    """A restart of a broker that ends after two minutes by the clock of the stream."""

    def __init__(self, mq: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.pause_count = 0
        self._mq = mq
        self._is_down, self._may_start = threading.Event(), threading.Event()
        close = Broker._close

        async def held(broker: Broker) -> None:
            await close(broker)
            self._is_down.set()
            await asyncio.to_thread(self._may_start.wait)

        async def pause(client: RetryingClient) -> None:
            self.pause_count += 1
            self.wait(30_000)
            await asyncio.sleep(0.02 if self._may_start.is_set() else 0)

        monkeypatch.setattr(Broker, "_close", held)
        monkeypatch.setattr(RetryingClient, "_pause", pause)

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._mq.restart)
        self._thread.start()
        self._is_down.wait()
        self._ends_ms = self.clock.monotonic_ms() + TWO_MINUTES_MS

    def wait(self, duration_ms: int) -> None:
        """Let time pass until the broker may start."""
        if not self._may_start.is_set():
            self.clock.advance(duration_ms)
            if self.clock.monotonic_ms() >= self._ends_ms:
                self._may_start.set()

    def end(self) -> None:
        self._may_start.set()
        self._thread.join()


@pytest.fixture
def mq() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"Orders": 2}) as running:
        yield running
        live_calls.disconnect()


def send(mq: LocalBroker, count: int) -> None:
    with blocking.Producer("p", namesrv=mq.namesrv_addr) as producer:
        for i in range(count):
            producer.send(Message("Orders", b"%d" % i), queue=queue(i % 2))


def stream_of(mq: LocalBroker, clock: ManualClock) -> QueueStream:
    texts = {"nameServer": mq.namesrv_addr, "topic": "Orders", "startingOffsets": "earliest"}
    parsed = option_texts.parse_stream(reading.texts(texts))
    return QueueStream(parsed, list(rows.message_fields(parsed)), clock)


@pytest.mark.parametrize("stage", ["trigger", "plan", "read"])
def test_a_broker_restarts_in_mid_stream(
    mq: LocalBroker, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    send(mq, 20)
    mq.messages("Orders", at_least=20)
    outage = Outage(mq, monkeypatch)
    stream = stream_of(mq, outage.clock)
    start = stream.initial_offset()
    end = stream.latest_offset(start, None)
    if stage == "trigger":
        outage.begin()
        assert stream.latest_offset(start, None) == end
    if stage == "plan":
        outage.begin()
        outage.clock.advance(10_000)  # a new route shows that the broker is not registered
    tasks = stream.tasks(start, end)
    if stage == "read":
        outage.begin()
    batches = [batch for task in tasks for batch in stream.read(task)]
    outage.end()
    places = [(row["queue_id"], row["queue_offset"]) for b in batches for row in b.to_pylist()]
    assert sorted(places) == [(i, j) for i in range(2) for j in range(10)]
    assert outage.pause_count >= 4


def test_a_stream_waits_for_an_unregistered_broker(
    mq: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(mq, 4)
    mq.messages("Orders", at_least=4)
    outage = Outage(mq, monkeypatch)
    stream, frozen = (stream_of(mq, outage.clock) for _ in range(2))
    end = stream.latest_offset(stream.initial_offset(), None)
    outage.begin()
    for _ in range(12):  # two minutes of triggers
        outage.clock.advance(10_000)
        assert stream.latest_offset(end, None) is end
    assert outage.pause_count == 0
    outage.clock.advance(100_000)
    with pytest.raises(DataLoss, match="the broker of queue Orders/0 of broker-a is not"):
        stream.latest_offset(end, None)
    # A query that ends now waits for the broker, and needs its messages.
    frozen.freeze()
    outage.wait(0)
    assert frozen.latest_offset(end, None) is end
    outage.end()
    send(mq, 2)
    mq.messages("Orders", at_least=6)
    outage.clock.advance(10_000)
    assert stream.latest_offset(end, None) == {"$v": 1, "Orders": {BROKER: {"0": 3, "1": 3}}}
