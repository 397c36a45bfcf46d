"""Messages with a delivery time, from the producers of Java 5.5.0 and ours, and their recall.

See ``clusters`` for the brokers.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop import wire
from interop.clusters import KINDS, Cluster, start_cluster
from interop.conftest import StartOracle
from interop.java_cluster import Settings
from interop.java_oracle import ClusterOracle, JavaError
from interop.wire import LOOKS, PAUSE_S
from reput.client import Message, Producer
from reput.clock import SystemClock
from reput.errors import BrokerError, InvalidHeader
from reput.format import recall_handle as handles
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import RecallMessageHeader
from reput.format.message import StoredMessage
from reput.format.recall_handle import RecallHandle
from world import messages_in

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

VERSION = "5.5.0"
SETTINGS: Settings = {"recallMessageEnable": True}
CLOCK = SystemClock()
LATE_MS_MAX = 6_000
DAY_S = 86_400


class TimerOracle(ClusterOracle):
    """Running ``TimerOracle.java``."""

    main_class = "TimerOracle"


@pytest.fixture(scope="module")
def java(start_oracle: StartOracle) -> TimerOracle:
    return start_oracle(TimerOracle, VERSION)


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, java: TimerOracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with start_cluster(request.param, VERSION, folder, SETTINGS) as running:
        yield running


async def arrived(cluster: Cluster, topic: str, count: int) -> dict[bytes, StoredMessage]:
    """Wait for ``count`` messages in a topic's queues, and return them."""
    async with wire.connected(cluster.address) as broker:
        for _ in range(LOOKS):
            messages = []
            for queue_id in range(4):
                reply = await broker.pull(topic, queue_id)
                messages += messages_in(reply.body) if reply.code == ResponseCode.SUCCESS else []
            if len(messages) >= count:
                return {message.body: message for message in messages}
            await asyncio.sleep(PAUSE_S)
        raise AssertionError(f"{topic}: {len(messages)} of {count}")


async def test_java_sends_with_each_time_property_and_recalls(
    cluster: Cluster, java: TimerOracle
) -> None:
    def send(body: str, kind: str, value: int) -> dict[str, object]:
        received: dict[str, object] = java.ask_one(
            "send", cluster.namesrv, "Timer", body, kind, value
        )
        assert received["status"] == "SEND_OK"
        return received

    def play() -> dict[str, tuple[int, dict[str, object]]]:
        send("warm", "ms", 1)
        at_ms = CLOCK.now_ms() + 2_345
        kinds = {"sec": ("sec", 2, 2000), "ms": ("ms", 1_700, 1_700), "at": ("at", at_ms, 0)}
        sent = {}
        for body, (kind, value, delay_ms) in kinds.items():
            received = send(body, kind, value)
            begin = received["begin"]
            assert isinstance(begin, int)
            sent[body] = (begin + delay_ms if delay_ms else at_ms), received
        gone = send("gone", "ms", 2_500)
        key = java.ask_one("recall", cluster.namesrv, "Timer", str(gone["handle"]))
        assert key == gone["id"]
        past = send("past", "at", at_ms - 60_000)
        assert past["handle"] is None
        return sent

    sent = await asyncio.to_thread(play)
    received = await arrived(cluster, "Timer", 5)
    for body, (due_ms, result) in sent.items():
        message = received[body.encode()]
        assert due_ms <= message.store_timestamp <= due_ms + LATE_MS_MAX
        assert message.queue_id == result["queueId"]
        out_ms = int(message.properties["TIMER_OUT_MS"])
        assert out_ms % 1000 == 0
        handle = handles.decode(str(result["handle"]))
        assert handle == RecallHandle("Timer", "broker-a", str(out_ms + 1), str(result["id"]))
        assert message.properties["REAL_TOPIC"] == "Timer"
        assert message.properties["REAL_QID"] == str(message.queue_id)
        assert int(message.properties["TIMER_ENQUEUE_MS"]) <= out_ms
        assert int(message.properties["TIMER_DEQUEUE_MS"]) >= due_ms
    await asyncio.sleep(1.5)
    assert b"gone" not in await arrived(cluster, "Timer", 5)
    assert received.keys() == {b"warm", b"sec", b"ms", b"at", b"past"}


async def test_python_sends_and_recalls(cluster: Cluster) -> None:
    async with Producer("timer-python", namesrv=cluster.namesrv) as producer:
        begin_ms = CLOCK.now_ms()
        kept = await producer.send(Message("TimerPython", b"kept", delay_ms=1_500))
        gone = await producer.send(Message("TimerPython", b"gone", deliver_at_ms=begin_ms + 2_000))
        now = await producer.send(Message("TimerPython", b"now"))
        assert now.recall_handle is None
        assert kept.recall_handle is not None
        assert gone.recall_handle is not None
        assert await producer.recall("TimerPython", gone.recall_handle) == gone.message_id
        received = await arrived(cluster, "TimerPython", 2)
        assert received.keys() == {b"kept", b"now"}
        assert received[b"kept"].store_timestamp >= begin_ms + 1_500
        with pytest.raises(BrokerError, match="timestamp invalid") as late:
            await producer.recall("TimerPython", kept.recall_handle)
        assert late.value.response_code == ResponseCode.ILLEGAL_OPERATION
        await asyncio.sleep(2)
        assert (await arrived(cluster, "TimerPython", 2)).keys() == {b"kept", b"now"}


ILLEGAL = (
    "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; "
    "or if set del msg, the delay time should be bigger than the current time"
)


@pytest.mark.parametrize(
    ("properties", "code", "remark"),
    [
        ({"TIMER_DELAY_SEC": str(3 * DAY_S + 5)}, ResponseCode.MESSAGE_ILLEGAL, ILLEGAL),
        ({"TIMER_DELAY_MS": "soon"}, ResponseCode.MESSAGE_ILLEGAL, ILLEGAL),
        ({"TIMER_DELIVER_MS": "9223372036854775808"}, ResponseCode.MESSAGE_ILLEGAL, ILLEGAL),
        (
            {"TIMER_DELIVER_MS": "5", "TIMER_DEL_UNIQKEY": "k"},
            ResponseCode.MESSAGE_ILLEGAL,
            ILLEGAL,
        ),
        ({"TIMER_DELIVER_MS": "x", "DELAY": "1"}, ResponseCode.SUCCESS, None),
        ({"TIMER_DELAY_SEC": str(3 * DAY_S - 5)}, ResponseCode.SUCCESS, None),
        ({"TIMER_DELIVER_MS": "-5"}, ResponseCode.SUCCESS, None),
    ],
)
async def test_illegal_times_are_refused(
    cluster: Cluster, properties: dict[str, str], code: ResponseCode, remark: str | None
) -> None:
    async with wire.connected(cluster.address) as broker:
        reply = await broker.send("TimerRefused", properties=properties)
    assert (reply.code, reply.remark) == (code, remark)


@pytest.mark.parametrize(
    ("topic", "handle", "code", "remark"),
    [
        ("Missing", "x", 17, "recall failed, the topic[Missing] not exist"),
        ("TimerRefused", "@", 604, "recall handle is invalid"),
        (
            "TimerRefused", RecallHandle("O", "broker-a", "5", "k"), 604,
            "recall failed, topic not match",
        ),
        (
            "TimerRefused", RecallHandle("TimerRefused", "other", "5", "k"), 604,
            "recall failed, broker service not available",
        ),
        (
            "TimerRefused", RecallHandle("TimerRefused", "broker-a", "5", "k"), 604,
            "recall failed, timestamp invalid",
        ),
        (
            "TimerRefused", RecallHandle("TimerRefused", "broker-a", "x", "k"), 604,
            "recall failed, timestamp invalid",
        ),
    ],
)  # fmt: skip
async def test_illegal_recalls_are_refused(
    cluster: Cluster, topic: str, handle: str | RecallHandle, code: int, remark: str
) -> None:
    text = handle if isinstance(handle, str) else handles.encode(handle)
    header = RecallMessageHeader(producer_group="g", topic=topic, recall_handle=text)
    async with wire.connected(cluster.address) as broker:
        await broker.send("TimerRefused")
        reply = await broker.ask(RequestCode.RECALL_MESSAGE, header)
    assert (reply.code, reply.remark) == (code, remark)


def test_recall_handles_are_equal(java: TimerOracle) -> None:
    for handle in (
        RecallHandle("T", "broker-a", "1700000000001", "0A0B"),
        RecallHandle("%RETRY%g", "b", "5", "客户?>~" * 20),
    ):
        text = java.ask_one("handle", *handle)
        assert handles.encode(handle) == text
        assert handles.decode(text) == handle
    for text in ("djEgYSBiIGMgZA==", "djEgYSBiIGMgZA", "djEgYSBiIGM=", "djIgYSBiIGMgZA==", "", "@"):
        try:
            expected = java.ask_one("decode", text)
        except JavaError:
            with pytest.raises(InvalidHeader):
                handles.decode(text)
        else:
            assert list(handles.decode(text)) == expected


# --- a folder that moves between the brokers --------------------------------------------


async def counts(cluster: Cluster, topic: str, wanted: set[bytes]) -> Counter[bytes]:
    """Return how often each message has arrived, a second after all expected ones are there."""
    async with wire.connected(cluster.address) as broker:
        for _ in range(4 * LOOKS):
            reply = await broker.pull(topic, 0)
            counter = Counter(message.body for message in messages_in(reply.body))
            if counter.keys() >= wanted:
                await asyncio.sleep(1.5)
                reply = await broker.pull(topic, 0)
                return Counter(message.body for message in messages_in(reply.body))
            await asyncio.sleep(PAUSE_S)
        raise AssertionError(f"{counter} of {wanted}")


async def send(cluster: Cluster, body: str, deliver_ms: int) -> str:
    marks = {"TIMER_DELIVER_MS": str(deliver_ms), "UNIQ_KEY": body}
    async with wire.connected(cluster.address) as broker:
        reply = await broker.send("Moved", body.encode(), properties=marks)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return (reply.ext_fields or {}).get("recallHandle", "")


async def recall(cluster: Cluster, handle: str) -> None:
    header = RecallMessageHeader(producer_group="g", topic="Moved", recall_handle=handle)
    async with wire.connected(cluster.address) as broker:
        reply = await broker.ask(RequestCode.RECALL_MESSAGE, header)
    assert reply.code == ResponseCode.SUCCESS, reply.remark


AGAIN = {("reput", "official"): {b"between"}, ("official", "reput", "official"): {b"new 0"}}
"""Messages that RocketMQ may deliver again, depending on the timing of its start.

They are after the oldest waiting message in the log, or were in the timer wheel.
"""


@pytest.mark.parametrize(
    "kinds",
    [("reput", "official"), ("official", "reput"), ("official", "reput", "official")],
    ids=["to Java", "from Java", "there and back"],
)
async def test_the_other_broker_continues_a_folder(
    java: TimerOracle, tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    """No message is lost, and none is delivered twice except those in ``AGAIN``."""
    folder = tmp_path / "both"
    first, *others = kinds
    with start_cluster(first, VERSION, folder, SETTINGS) as cluster:
        later_ms = CLOCK.now_ms() + 12_000 * (len(kinds) - 1)
        await send(cluster, "before", CLOCK.now_ms() + 1_200)
        for number in range(3):
            await send(cluster, f"later {number}", later_ms)
        handle = await send(cluster, "gone", later_ms)
        await send(cluster, "between", CLOCK.now_ms() + 1_200)
        await recall(cluster, handle)
        assert (await counts(cluster, "Moved", {b"before", b"between"})).total() == 2
        cluster.stop()
    wanted = {b"before", b"between"}
    counter: Counter[bytes] = Counter()
    for number, kind in enumerate(others):
        with start_cluster(kind, VERSION, folder, SETTINGS) as cluster:
            await send(cluster, f"new {number}", CLOCK.now_ms() + 1_200)
            wanted.add(b"new %d" % number)
            if kind is others[-1]:
                wanted |= {b"later 0", b"later 1", b"later 2"}
            counter = await counts(cluster, "Moved", wanted)
            cluster.stop()
    assert counter.keys() == wanted
    twice = counter - Counter(wanted)
    assert twice <= Counter(AGAIN.get(kinds, set()))
