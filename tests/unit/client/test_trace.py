"""Traces of producers and consumers, written and read."""

import asyncio
from collections.abc import Mapping

import pytest

from reput.client import (
    Admin,
    BrokerError,
    ClientConfig,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    NoRoute,
    Producer,
    PullConsumer,
    PushConsumer,
    blocking,
    trace as traces,
)
from reput.client.core.trace_codec import (
    Begun,
    Consumed,
    MessageKind,
    Outcome,
    Recalled,
    Sent,
    TransactionEnded,
)
from reput.client.message import ReceivedMessage, SendResult
from reput.client.trace import TraceWriter
from reput.client.transaction_producer import TransactionProducer, TransactionState
from reput.clock import ManualClock
from reput.errors import Unreachable
from reput.format import message as records, properties as props, recall_handle as handles
from reput.format.bodies import MessageQueue
from reput.format.message import Host, StoredMessage
from reput.testing.local_broker import LocalBroker


@pytest.fixture
def namesrv(rocketmq: LocalBroker) -> str:
    return rocketmq.namesrv_addr


def traced(namesrv: str, **settings: str) -> ClientConfig:
    return ClientConfig(namesrv_addr=namesrv, enable_trace=True, **settings)


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_a_message_is_traced_from_producer_to_consumer(namesrv: str, namespace: str) -> None:
    config = traced(namesrv, namespace=namespace)
    key = f"key-of-{namespace}"  # the log still contains traces of the other test
    consumed: asyncio.Queue[ReceivedMessage] = asyncio.Queue()

    async def listen(messages: list[ReceivedMessage], _: object) -> ConsumeResult:
        for message in messages:
            consumed.put_nowait(message)
        return ConsumeResult.SUCCESS

    async with Producer("p", client=config) as producer:
        result = await producer.send(Message("T", b"body", "tag", ["k1", key]))
    first = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = PushConsumer("c", listener=listen, config=first, client=config)
    await consumer.subscribe("T")
    async with consumer:
        await consumed.get()
    async with Admin(namesrv) as admin:
        sent, begun, done = await admin.message_trace(result.message_id)
        by_key = await admin.messages_by_key("RMQ_SYS_TRACE_TOPIC", key)
    assert len(by_key) == 2
    assert sent.client_address.startswith("127.0.0.1:")
    message = sent.trace
    assert isinstance(message, Sent)
    assert (message.group, message.topic, message.tags, message.keys) == (
        "p",
        "T",
        "tag",
        f"k1 {key}",
    )
    assert (message.region, message.body_bytes, message.kind) == (
        "DefaultRegion",
        4,
        MessageKind.NORMAL,
    )
    assert (message.offset_message_id, message.is_success) == (result.offset_message_id, True)
    assert isinstance(begun.trace, Begun)
    assert isinstance(done.trace, Consumed)
    assert (begun.trace.group, begun.trace.retry_count, begun.trace.keys) == ("c", 0, f"k1 {key}")
    assert (done.trace.call_id, done.trace.group) == (begun.trace.call_id, "c")
    assert (done.trace.is_success, done.trace.outcome) == (True, Outcome.SUCCESS)


async def test_each_message_of_a_batch_is_traced(namesrv: str) -> None:
    async with Producer("p", client=traced(namesrv)) as producer:
        result = await producer.send_batch([Message("T", b"1"), Message("T", b"22", "tag")])
    async with Admin(namesrv) as admin:
        traces = [
            (await admin.message_trace(message_id))[0].trace for message_id in result.message_ids
        ]
    assert [trace.body_bytes for trace in traces if isinstance(trace, Sent)] == [1, 2]
    assert [trace.tags for trace in traces if isinstance(trace, Sent)] == [None, "tag"]


async def test_a_pull_consumer_traces_delivery_and_consumption(namesrv: str) -> None:
    config = traced(namesrv)
    async with Producer("p", client=config) as producer:
        sent = await producer.send(Message("T", b"body", keys="polled"))
    async with PullConsumer("polls", client=config) as consumer:
        await consumer.assign([sent.queue])
        consumer.seek(sent.queue, sent.queue_offset)
        (message,) = await consumer.poll(1)
        assert message.message_id == sent.message_id
    with pytest.raises(ZeroDivisionError):  # a message that is not consumed has no end trace
        await poll_and_fail(PullConsumer("fails", client=config), sent)
    async with Admin(namesrv) as admin:
        traces = [trace.trace for trace in await admin.message_trace(sent.message_id)]
    (begun,) = [trace for trace in traces if isinstance(trace, Begun) and trace.group == "polls"]
    (done,) = [trace for trace in traces if isinstance(trace, Consumed)]
    assert (done.call_id, done.group, done.keys) == (begun.call_id, "polls", "polled")
    assert (done.is_success, done.outcome) == (True, Outcome.SUCCESS)
    assert [trace.group for trace in traces if isinstance(trace, Begun)].count("fails") == 1


async def poll_and_fail(consumer: PullConsumer, sent: SendResult) -> None:
    async with consumer:
        await consumer.assign([sent.queue])
        consumer.seek(sent.queue, sent.queue_offset)
        assert await consumer.poll(1)
        raise ZeroDivisionError


async def test_a_recall_is_traced_even_if_the_broker_refuses() -> None:
    with LocalBroker(topics=["T"], settings={"recallMessageEnable": "true"}) as mq:
        async with Producer("p", client=traced(mq.namesrv_addr)) as producer:
            sent = await producer.send(Message("T", b"body", delay_ms=600_000))
            assert sent.recall_handle is not None
            await producer.recall("T", sent.recall_handle)
            late = handles.decode(sent.recall_handle)._replace(deliver_ms="1")
            with pytest.raises(BrokerError, match="timestamp"):
                await producer.recall("T", handles.encode(late))
        async with Admin(mq.namesrv_addr) as admin:
            stored_traces = [entry.trace for entry in await admin.message_trace(sent.message_id)]
    recalls = [trace for trace in stored_traces if isinstance(trace, Recalled)]
    assert [(recall.topic, recall.group, recall.is_success) for recall in recalls] == [
        ("T", "p", True),
        ("T", "p", False),
    ]
    assert recalls[0].region == "DefaultRegion"


async def test_traces_may_go_to_another_topic(namesrv: str) -> None:
    async with Producer("p", client=traced(namesrv, trace_topic="Traces")) as producer:
        result = await producer.send(Message("T", b"body"))
    async with Admin(namesrv) as admin:
        assert len(await admin.message_trace(result.message_id, topic="Traces")) == 1
        with pytest.raises(NoRoute):
            await admin.message_trace(result.message_id, topic="NoSuchTopic")


# --- the writer alone ------------------------------------------------------------------


class Collector:
    """Records messages instead of sending them."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.error: Unreachable | None = None
        self.arrived = asyncio.Event()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def send(self, message: Message, *, timeout_ms: int | None = None) -> SendResult:
        if self.error is not None:
            raise self.error
        self.sent.append(message)
        self.arrived.set()
        return result()


def result() -> SendResult:
    return SendResult(traces.SendStatus.SEND_OK, "ID", "7F", MessageQueue("T", "b", 0), 0)


@pytest.fixture
def collector() -> Collector:
    return Collector()


def write(writer: TraceWriter, topic: str = "T") -> None:
    writer.sent(
        [Message(topic, b"body")],
        result(),
        region="R",
        broker_address="b:1",
        body_bytes=4,
        begun_ms=0,
    )


async def test_traces_are_sent_in_batches(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "GATHER_MS", 600_000)
    writer = TraceWriter(collector, "Traces", "g", ManualClock())
    await writer.start()
    for _ in range(traces.ENOUGH_COUNT):
        write(writer)
    await collector.arrived.wait()
    await writer.close()
    (message,) = collector.sent
    assert message.body.count(b"\x02") == traces.ENOUGH_COUNT
    assert (message.topic, message.keys) == ("Traces", "ID")


async def test_dropped_traces_are_counted(collector: Collector) -> None:
    writer = TraceWriter(collector, "Traces", "g", ManualClock())
    for _ in range(traces.WAITING_MAX + 5):
        write(writer)
    assert writer.dropped_count == 5
    collector.error = Unreachable("b:1", "gone")
    await writer.close()
    assert writer.dropped_count == traces.WAITING_MAX + 5
    assert collector.sent == []


async def test_traces_are_not_traced(collector: Collector) -> None:
    writer = TraceWriter(collector, "Traces", "g", ManualClock())
    write(writer, "Traces")
    writer.begun([stored("Traces"), stored("T", {"TRACE_ON": "false"}), ReceivedMessage(b"", "b")])
    await writer.close()
    assert collector.sent == []


def stored(topic: str, properties: Mapping[str, str] | None = None) -> ReceivedMessage:
    """Return a message as a broker delivers it."""
    host = Host(bytes((192, 0, 2, 1)), 10911)
    message = StoredMessage(
        topic, b"body", 0, 0, 0, 1, host, 2, host, property_bytes=props.encode(properties or {})
    )
    return ReceivedMessage(records.encode(message), "b")


@pytest.mark.parametrize("state", list(TransactionState))
async def test_the_end_of_a_transaction_is_traced(namesrv: str, state: TransactionState) -> None:
    async with TransactionProducer(
        "p", client=traced(namesrv), check=lambda _: TransactionState.UNKNOWN
    ) as producer:
        done = await producer.send_in_transaction(
            Message("T", b"body", "tag", "k1 k2"), lambda *_: state
        )
    async with Admin(namesrv) as admin:
        sent, ended = [entry.trace for entry in await admin.message_trace(done.half.message_id)]
    assert isinstance(sent, Sent)
    assert isinstance(ended, TransactionEnded)
    assert (sent.kind, ended.kind) == (MessageKind.HALF, MessageKind.COMMIT)
    assert (ended.topic, ended.tags, ended.keys, ended.group) == ("T", "tag", "k1 k2", "p")
    assert ended.broker_address == sent.broker_address
    assert (ended.state, ended.is_check) == (
        {"commit": "COMMIT_MESSAGE", "rollback": "ROLLBACK_MESSAGE", "unknown": "UNKNOW"}[
            state.value
        ],
        False,
    )


async def test_a_transaction_of_the_blocking_producer_is_traced(namesrv: str) -> None:
    def run() -> str:
        with blocking.TransactionProducer(
            "p", client=traced(namesrv), check=lambda _: TransactionState.UNKNOWN
        ) as producer:
            message = Message("T", b"body", "tag", "k1 k2")
            done = producer.send_in_transaction(message, lambda *_: TransactionState.COMMIT)
            return done.half.message_id

    message_id = await asyncio.to_thread(run)
    async with Admin(namesrv) as admin:
        _, ended = [entry.trace for entry in await admin.message_trace(message_id)]
    assert isinstance(ended, TransactionEnded)
    assert (ended.topic, ended.tags, ended.keys, ended.group) == ("T", "tag", "k1 k2", "p")
