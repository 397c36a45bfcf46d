"""Sends that wait for the timer, and what takes them back: replies, checks, codes."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import broker_subject
from broker_subject import NAME, Subject
from reput.clock import ManualClock
from reput.format import headers, message as record, names, recall_handle as handles, timer_check
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import RecallMessageHeader
from reput.format.message import StoredMessage
from reput.format.recall_handle import RecallHandle

START_MS = 1_700_000_000_000
SECOND_MS = 1000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest_asyncio.fixture
async def timed(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Subject]:
    """A broker that recalls, whose clock is the test's."""
    async with broker_subject.running(tmp_path, clock=clock, recall_message_enable=True) as subject:
        yield subject


def stored(subject: Subject, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    subject.broker.store.step_memory()
    result = subject.broker.store.get(topic, queue_id, 0)
    return [record.decode(bytes(one)) for one in result.records]


def deliver(subject: Subject) -> None:
    timers, clock = subject.parts.timers, subject.broker.clock
    while timers.step(clock.now_ms()):
        subject.broker.store.step_memory()


async def recall(subject: Subject, handle: str, topic: str = "T") -> Command:
    header = RecallMessageHeader(producer_group="producers", topic=topic, recall_handle=handle)
    return await subject.ask(RequestCode.RECALL_MESSAGE, header)


async def send(subject: Subject, topic: str = "T", **properties: str) -> dict[str, str]:
    reply = await subject.send(topic, b"body", queue_id=3, properties=properties)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return reply.ext_fields or {}


async def test_a_message_that_waits_is_parked_and_told_where_it_goes(timed: Subject) -> None:
    fields = await send(timed, TIMER_DELAY_SEC="5", UNIQ_KEY="0A", WAIT="true", TAGS="a")
    assert fields["queueId"] == "3"
    (waiting,) = stored(timed, names.TIMER_TOPIC)
    assert stored(timed, "T", 3) == []
    assert waiting.properties == {
        "TIMER_DELAY_SEC": "5", "UNIQ_KEY": "0A", "WAIT": "true", "TAGS": "a",
        "CLUSTER": broker_subject.CLUSTER, "REAL_TOPIC": "T", "REAL_QID": "3",
        "TIMER_OUT_MS": str(START_MS + 4000),
    }  # fmt: skip
    handle = handles.decode(fields["recallHandle"])
    assert handle == RecallHandle("T", NAME, str(START_MS + 4001), "0A")
    topic = timed.broker.parts.topics.get(names.TIMER_TOPIC)
    assert topic is not None
    assert (topic.read_queue_count, topic.write_queue_count, topic.perm) == (1, 1, 6)


async def test_what_does_not_wait_has_no_handle(timed: Subject) -> None:
    assert "recallHandle" not in await send(timed, UNIQ_KEY="0A")
    assert "recallHandle" not in await send(timed, UNIQ_KEY="0B", TIMER_DELIVER_MS="5")
    assert "recallHandle" not in await send(timed, UNIQ_KEY="0C", DELAY="3")
    assert "recallHandle" not in await send(timed, TIMER_DELAY_SEC="3")
    assert [one.properties["UNIQ_KEY"] for one in stored(timed, "T", 3)] == ["0A", "0B"]


async def test_a_recalled_message_does_not_come(timed: Subject, clock: ManualClock) -> None:
    kept = await send(timed, UNIQ_KEY="kept", TIMER_DELAY_MS="1500")
    gone = await send(timed, UNIQ_KEY="gone", TIMER_DELAY_MS="1500")
    assert kept != gone
    clock.advance(1000)
    reply = await recall(timed, gone["recallHandle"])
    assert (reply.code, reply.ext_fields) == (0, {"msgId": "gone", "MSG_REGION": "DefaultRegion"})
    mark = stored(timed, names.TIMER_TOPIC)[-1]
    assert (mark.body, mark.tags) == (b"0", "_RECALL_TAG_")
    assert mark.properties["TIMER_DEL_UNIQKEY"] == mark.properties["UNIQ_KEY"] == "gone"
    assert mark.properties["TIMER_OUT_MS"] == str(START_MS + 1000)
    clock.advance(1000)
    deliver(timed)
    assert [one.properties["UNIQ_KEY"] for one in stored(timed, "T", 3)] == ["kept"]


@pytest.mark.parametrize(
    ("handle", "code", "text"),
    [
        ("", ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
        ("@@@", ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
        ("djIgVCBiIDUgaw==", ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
        ("djEgVCBi", ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
        (("Other", NAME, 5 * SECOND_MS), ResponseCode.ILLEGAL_OPERATION, "topic not match"),
        (("T", "broker-x", 5 * SECOND_MS), ResponseCode.ILLEGAL_OPERATION, "service not available"),
        (("T", NAME, 0), ResponseCode.ILLEGAL_OPERATION, "timestamp invalid"),
        (("T", NAME, 3 * 86400 * SECOND_MS), ResponseCode.ILLEGAL_OPERATION, "timestamp invalid"),
    ],
)
async def test_recalls_that_java_refuses(
    timed: Subject, handle: str | tuple[str, str, int], code: ResponseCode, text: str
) -> None:
    await send(timed)
    if not isinstance(handle, str):
        topic, broker, after_ms = handle
        handle = handles.encode(RecallHandle(topic, broker, str(START_MS + after_ms), "k"))
    reply = await recall(timed, handle)
    assert (reply.code, text in (reply.remark or "")) == (code, True), reply.remark


async def test_a_topic_that_is_not_there(timed: Subject) -> None:
    reply = await recall(timed, "x", topic="Missing")
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert reply.remark == "recall failed, the topic[Missing] not exist"


async def test_recalling_is_off_by_default(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        fields = await send(subject, UNIQ_KEY="k", TIMER_DELAY_SEC="9")
        reply = await recall(subject, fields["recallHandle"])
        assert reply.code == ResponseCode.NO_PERMISSION
        assert reply.remark == "recall failed, operation is forbidden"


async def test_a_batch_does_not_wait(timed: Subject) -> None:
    reply = await timed.send("T", code=RequestCode.SEND_BATCH_MESSAGE, batch=True,
                             properties={"TIMER_DELAY_SEC": "5"})  # fmt: skip
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL


async def test_the_timers_queue_is_not_for_clients(timed: Subject) -> None:
    reply = await timed.send(names.TIMER_TOPIC)
    assert reply.code == ResponseCode.NO_PERMISSION


async def test_how_far_the_timer_is(timed: Subject, clock: ManualClock) -> None:
    await send(timed, TIMER_DELAY_SEC="5")
    deliver(timed)
    reply = await timed.ask(RequestCode.GET_TIMER_CHECK_POINT)
    assert timer_check.decode(reply.body)[:4] == (START_MS - 999, 0, 1, 1)


async def test_how_many_wait_of_each_topic(timed: Subject, clock: ManualClock) -> None:
    """As a broker of 5.5.0 answers: what has left stays with a count of 0."""
    for number, (topic, delay) in enumerate([("A", "3"), ("A", "600"), ("B", "600"), ("B", "9")]):
        properties = {"UNIQ_KEY": f"{number}", "TIMER_DELAY_SEC": delay}
        reply = await timed.send(topic, properties=properties)
        assert reply.code == ResponseCode.SUCCESS
        if number == 3:
            await recall(timed, reply.ext_fields["recallHandle"], topic="B")
    deliver(timed)
    assert await timer_metrics(timed) == {
        "dataVersion": {"counter": 5, "stateVersion": 0, "timestamp": START_MS},
        "timingCount": {
            "A": {"count": 2, "timeStamp": START_MS},
            "B": {"count": 1, "timeStamp": START_MS},
        },
    }
    clock.advance(10_000)
    deliver(timed)
    told = (await timer_metrics(timed))["timingCount"]
    assert told["A"] == {"count": 1, "timeStamp": START_MS + 10_000}
    assert told["B"] == {"count": 1, "timeStamp": START_MS}


async def test_the_timer_is_stopped_while_it_runs(timed: Subject, clock: ManualClock) -> None:
    for text, count in ((b"timerStopEnqueue=true", 0), (b"timerStopEnqueue=false", 2)):
        reply = await timed.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        await send(timed, TIMER_DELAY_SEC="1")
        clock.advance(5_000)
        deliver(timed)
        assert len(stored(timed, "T", 3)) == count


async def test_the_engine_of_the_timer_is_switched(timed: Subject) -> None:
    async def switch(**fields: str) -> Command:
        request = Command(RequestCode.SWITCH_TIMER_ENGINE, ext_fields=fields)
        return await timed.client.invoke(timed.address, request, 10_000)

    await timed.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"timerStopEnqueue=true")
    for fields, why in (
        ({"E_T": "R"}, "timerRocksDBEnable must be configured true when broker start"),
        ({"E_T": "X"}, "param error: E_T is 'X'; allowed: F"),
        ({}, "param error"),
    ):
        reply = await switch(**fields)
        assert reply.code == ResponseCode.INVALID_PARAMETER
        assert (reply.remark or "").startswith(why)
        assert timed.broker.parts.timers.config.timer_stop_enqueue
    reply = await switch(E_T="F")
    assert (reply.code, reply.remark) == (ResponseCode.SUCCESS, "switch timer engine success")
    assert not timed.broker.parts.timers.config.timer_stop_enqueue


async def timer_metrics(subject: Subject) -> dict[str, Any]:
    reply = await subject.ask(RequestCode.GET_TIMER_METRICS)
    assert reply.code == ResponseCode.SUCCESS
    found: dict[str, Any] = json.loads(reply.body)
    return found


async def test_without_a_timer_nothing_is_told(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, store={"timer_wheel_enable": False}) as subject:
        for code, remark in (
            (RequestCode.GET_TIMER_CHECK_POINT, "The checkpoint is null"),
            (RequestCode.GET_TIMER_METRICS, "The timer message store is null"),
        ):
            reply = await subject.ask(code)
            assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, remark)


def test_fields_of_the_header() -> None:
    """As Java names them."""
    header = RecallMessageHeader(producer_group="g", topic="T", recall_handle="h")
    assert headers.encode(header) == {"producerGroup": "g", "topic": "T", "recallHandle": "h"}
