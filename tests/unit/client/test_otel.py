"""Spans and metrics of OpenTelemetry, over a real broker."""

import asyncio
import importlib
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context as contexts, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from reput.client import (
    ClientConfig,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendFailed,
    TransactionProducer,
    TransactionState,
    blocking,
    hooks,
    otel,
)
from reput.client.hooks import ConsumeCall, SendCall
from reput.testing import LocalBroker

FIRST = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
GUARD_S = 30


class Telemetry:
    """What the clients have reported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.tracer = self.tracers.get_tracer("test")

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    async def wait_for(self, name: str) -> ReadableSpan:
        """Return a span that a background task ends."""
        async with asyncio.timeout(GUARD_S):
            while not self.spans(name):
                await asyncio.sleep(0.01)
        return self.only(name)

    def points(self, name: str) -> dict[str, Any]:
        """Return the points of a metric by operation."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            str((point.attributes or {})["messaging.operation.name"]): point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        }


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    current = Telemetry()
    otel.instrument(tracer_provider=current.tracers, meter_provider=current.meters)
    yield current
    otel.uninstrument()
    assert hooks.installed is None
    current.tracers.shutdown()
    current.meters.shutdown()


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    parent = span.parent
    return None if parent is None else (parent.trace_id, parent.span_id)


def id_of(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def links_of(span: ReadableSpan) -> set[tuple[int, int]]:
    return {(link.context.trace_id, link.context.span_id) for link in span.links}


def received_by(messages: list[ReceivedMessage], event: asyncio.Event) -> Callable[..., Any]:
    async def listen(batch: list[ReceivedMessage], _: object) -> None:
        messages.extend(batch)
        event.set()

    return listen


async def test_a_message_is_processed_in_the_trace_of_its_send(
    rocketmq: LocalBroker, telemetry: Telemetry
) -> None:
    current: list[tuple[int, int]] = []

    async def listen(messages: list[ReceivedMessage], _: object) -> None:
        span_context = trace.get_current_span().get_span_context()
        current.append((span_context.trace_id, span_context.span_id))

    consumer = PushConsumer("readers", namesrv=rocketmq.namesrv_addr, listener=listen, config=FIRST)
    await consumer.subscribe("Orders")
    async with Producer("orders", namesrv=rocketmq.namesrv_addr) as producer:
        # The span of the program's start is no parent of later consumption.
        with telemetry.tracer.start_as_current_span("program") as program:
            token = contexts.attach(baggage.set_baggage("secret", "1"))
            message = Message("Orders", b"body", tags="new", keys=["a", "b"])
            result = await producer.send(message)
            contexts.detach(token)
            await consumer.start()
        assert not message.properties
        processed = await telemetry.wait_for("process Orders")
        await consumer.close()
    sent = telemetry.only("send Orders")
    assert parent_of(sent) == (
        program.get_span_context().trace_id,
        program.get_span_context().span_id,
    )
    assert parent_of(processed) == id_of(sent)
    assert current == [id_of(processed)]
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    common = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": "Orders",
        "messaging.message.id": result.message_id,
        "messaging.message.body.size": 4,
        "messaging.destination.partition.id": str(result.queue.queue_id),
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("a", "b"),
        "messaging.rocketmq.message.type": "normal",
    }
    host, port = rocketmq.broker_addr.split(":")
    sent_attributes, processed_attributes = (
        dict(sent.attributes or {}),
        dict(processed.attributes or {}),
    )
    assert sent_attributes.pop("messaging.client.id")
    assert processed_attributes.pop("messaging.client.id")
    assert sent_attributes == {
        **common,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "server.address": host,
        "server.port": int(port),
    }
    assert processed_attributes == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "readers",
        "messaging.rocketmq.consumption_model": "clustering",
    }
    (received,) = await polled(rocketmq, 1)
    assert received.properties["traceparent"].split("-")[1] == f"{sent.context.trace_id:032x}"
    assert "baggage" not in received.properties
    assert telemetry.points("messaging.client.sent.messages")["send"].value == 1
    consumed = telemetry.points("messaging.client.consumed.messages")
    assert {name: point.value for name, point in consumed.items()} == {"process": 1, "receive": 1}
    assert telemetry.points("messaging.process.duration")["process"].count == 1
    operations = telemetry.points("messaging.client.operation.duration")
    assert {name: point.count for name, point in operations.items()} == {"send": 1, "receive": 1}


async def polled(rocketmq: LocalBroker, count: int) -> list[ReceivedMessage]:
    consumer = PullConsumer("pullers", namesrv=rocketmq.namesrv_addr, config=FIRST)
    async with consumer, asyncio.timeout(GUARD_S):
        await consumer.subscribe("Orders")
        messages: list[ReceivedMessage] = []
        while len(messages) < count:
            messages += await consumer.poll()
    return messages


async def test_a_batch_has_a_context_for_each_message(
    rocketmq: LocalBroker, telemetry: Telemetry
) -> None:
    async with Producer("orders", namesrv=rocketmq.namesrv_addr) as producer:
        batch = [Message("Orders", b"a"), Message("Orders", b"b"), Message("Orders", b"c")]
        await producer.send_batch(batch)
    sent, created = telemetry.only("send Orders"), telemetry.spans("create Orders")
    assert sent.attributes is not None
    assert sent.attributes["messaging.batch.message_count"] == 3
    assert sent.kind is SpanKind.CLIENT
    assert links_of(sent) == set(map(id_of, created))
    assert len(created) == 3
    await polled(rocketmq, 3)
    received = telemetry.spans("receive Orders")
    assert set().union(*map(links_of, received)) == set(map(id_of, created))
    assert telemetry.points("messaging.client.sent.messages")["send"].value == 3


async def test_a_listener_of_several_messages_has_links(
    rocketmq: LocalBroker, telemetry: Telemetry
) -> None:
    async with Producer("orders", namesrv=rocketmq.namesrv_addr) as producer:
        queue = (await sent_first(producer)).queue
        for _ in range(3):
            await producer.send(Message("Orders", b"x"), queue=queue)
    messages: list[ReceivedMessage] = []
    done = asyncio.Event()
    consumer = PushConsumer(
        "readers",
        namesrv=rocketmq.namesrv_addr,
        listener=received_by(messages, done),
        config=ConsumerConfig(
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_message_batch_max_size=8
        ),
    )
    await consumer.subscribe("Orders")
    async with consumer, asyncio.timeout(GUARD_S):
        while len(messages) < 4:
            await done.wait()
            done.clear()
    sent = set(map(id_of, telemetry.spans("send Orders")))
    processed = telemetry.spans("process Orders")
    several = [span for span in processed if len(span.links) > 1]
    assert several
    assert all(parent_of(span) is None for span in several)
    assert set().union(*map(links_of, several)) <= sent


async def sent_first(producer: Producer) -> Any:
    return await producer.send(Message("Orders", b"first"))


async def test_popped_messages_are_received_and_settled(
    rocketmq: LocalBroker, telemetry: Telemetry
) -> None:
    consumer = PopConsumer("poppers", namesrv=rocketmq.namesrv_addr, config=FIRST)
    async with Producer("orders", namesrv=rocketmq.namesrv_addr) as producer, consumer:
        await sent_first(producer)
        await consumer.subscribe("Orders")
        with telemetry.tracer.start_as_current_span("program") as program:
            async with asyncio.timeout(GUARD_S):
                while not (messages := await consumer.pop()):
                    pass
            await consumer.nack(messages[0], delay_ms=0)
            async with asyncio.timeout(GUARD_S):
                while not (messages := await consumer.pop()):
                    pass
            await consumer.ack(*messages)
    sent = id_of(telemetry.only("send Orders"))
    received = telemetry.spans("receive Orders")
    settled = [telemetry.only("nack Orders"), telemetry.only("ack Orders")]
    for span in (*received, *settled):
        assert links_of(span) == {sent}
        assert span.kind is SpanKind.CLIENT
        assert span.parent is not None
        assert span.parent.span_id == program.get_span_context().span_id
    assert len(received) == 2
    assert {(span.attributes or {})["messaging.operation.type"] for span in settled} == {"settle"}


async def test_a_transaction(rocketmq: LocalBroker, telemetry: Telemetry) -> None:
    producer = TransactionProducer(
        "deciders", namesrv=rocketmq.namesrv_addr, check=lambda _: TransactionState.COMMIT
    )
    async with producer:
        for state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            with telemetry.tracer.start_as_current_span("program"):
                await producer.send_in_transaction(
                    Message("Orders", b"x"), lambda *_, state=state: state
                )
    sent = telemetry.spans("send Orders")
    types = [(span.attributes or {})["messaging.rocketmq.message.type"] for span in sent]
    assert types == ["transaction", "transaction"]
    for span, half in zip(
        (telemetry.only("commit Orders"), telemetry.only("rollback Orders")), sent, strict=True
    ):
        assert span.context.trace_id == half.context.trace_id
    (received,) = await polled(rocketmq, 1)
    assert received.properties["traceparent"].split("-")[2] == f"{sent[0].context.span_id:016x}"


async def test_a_request_and_its_reply_are_one_trace(
    rocketmq: LocalBroker, telemetry: Telemetry
) -> None:
    async with Producer("orders", namesrv=rocketmq.namesrv_addr) as producer:

        async def answer(messages: list[ReceivedMessage], _: object) -> None:
            for message in messages:
                await producer.reply(message, b"yes")

        consumer = PushConsumer(
            "readers", namesrv=rocketmq.namesrv_addr, listener=answer, config=FIRST
        )
        await consumer.subscribe("Orders")
        await sent_first(producer)
        telemetry.exporter.clear()
        async with consumer:
            reply = await producer.request(Message("Orders", b"?"), timeout_ms=20_000)
    asked, (answered,) = telemetry.spans("send Orders")[-1], [
        span for span in telemetry.exporter.get_finished_spans() if "REPLY" in span.name
        and span.context.trace_id == telemetry.spans("send Orders")[-1].context.trace_id
    ]  # fmt: skip
    assert reply.body == b"yes"
    processed = [span for span in telemetry.spans("process Orders") if span.parent is not None
                 and span.parent.span_id == asked.context.span_id]  # fmt: skip
    assert parent_of(answered) == id_of(processed[0])


async def test_failures_are_errors(rocketmq: LocalBroker, telemetry: Telemetry) -> None:
    def listen(messages: list[ReceivedMessage], _: object) -> ConsumeResult:
        if messages[0].body == b"first":
            raise ValueError("bad")
        return ConsumeResult.LATER

    consumer = PushConsumer("readers", namesrv=rocketmq.namesrv_addr, listener=listen, config=FIRST)
    await consumer.subscribe("Orders")
    async with Producer("orders", namesrv=rocketmq.namesrv_addr) as producer, consumer:
        await sent_first(producer)
        await producer.send(Message("Orders", b"second"))
        async with asyncio.timeout(GUARD_S):
            while len(telemetry.spans("process Orders")) < 2:
                await asyncio.sleep(0.01)
        rocketmq.fail_next(50)
        with pytest.raises(SendFailed):
            await producer.send(Message("Orders", b"third"), timeout_ms=200)
        failed = telemetry.spans("send Orders")[-1]
        assert (failed.attributes or {})["error.type"] == "SendFailed"
        assert failed.status.status_code is StatusCode.ERROR
    processed = telemetry.spans("process Orders")[:2]
    assert {(span.attributes or {}).get("error.type") for span in processed} == {
        "ValueError",
        "later",
    }
    assert {span.status.status_code for span in processed} == {StatusCode.ERROR}


def test_blocking_clients_take_the_context_of_their_thread(
    rocketmq: LocalBroker, telemetry: Telemetry
) -> None:
    seen: list[int] = []
    done = threading.Event()

    def listen(messages: list[ReceivedMessage], _: object) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        done.set()

    with (
        blocking.Producer("orders", namesrv=rocketmq.namesrv_addr) as producer,
        telemetry.tracer.start_as_current_span("program") as program,
    ):
        producer.send(Message("Orders", b"x"))
    consumer = blocking.PushConsumer(
        "readers", namesrv=rocketmq.namesrv_addr, listener=listen, config=FIRST
    )
    with consumer:
        consumer.subscribe("Orders")
        assert done.wait(GUARD_S)
    assert seen == [program.get_span_context().trace_id]
    sent = telemetry.only("send Orders")
    assert sent.parent is not None
    assert sent.parent.span_id == program.get_span_context().span_id


async def test_traces_of_rocketmq_are_not_traced(
    rocketmq: LocalBroker, telemetry: Telemetry
) -> None:
    client = ClientConfig(namesrv_addr=rocketmq.namesrv_addr, enable_trace=True)
    async with Producer("orders", client=client) as producer:
        await sent_first(producer)
    assert [span.name for span in telemetry.exporter.get_finished_spans()] == ["send Orders"]


async def test_a_context_that_has_no_room_is_left_out(
    rocketmq: LocalBroker, telemetry: Telemetry
) -> None:
    full = Message("Orders", b"x", properties={"a": "b" * 10_700})
    async with Producer("orders", namesrv=rocketmq.namesrv_addr) as producer:
        await producer.send(full)
    (received,) = await polled(rocketmq, 1)
    assert "traceparent" not in received.properties
    assert received.properties["a"] == full.properties["a"]


async def test_without_a_tracer_messages_stay_as_they_are(rocketmq: LocalBroker) -> None:
    otel.instrument()  # the API alone has providers that do nothing
    try:
        async with Producer("orders", namesrv=rocketmq.namesrv_addr) as producer:
            await sent_first(producer)
        (received,) = await polled(rocketmq, 1)
        assert "traceparent" not in received.properties
    finally:
        otel.uninstrument()


class BrokenHook:
    """A hook that always fails."""

    def sending(self, call: SendCall) -> None:
        raise ValueError("hook")

    sent = sending

    def consuming(self, call: ConsumeCall) -> None:
        raise ValueError("hook")

    consumed = consuming


async def test_a_failing_hook_does_not_stop_a_client(
    rocketmq: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    hooks.install(BrokenHook())
    try:
        async with Producer("orders", namesrv=rocketmq.namesrv_addr) as producer:
            await sent_first(producer)
        assert [message.body for message in await polled(rocketmq, 1)] == [b"first"]
    finally:
        hooks.install(None)
    assert caplog.messages.count("the client hook failed") == 4


@pytest.mark.parametrize(
    ("opt_in", "prefixes"),
    [
        ("", ["messaging.rocketmq."]),
        ("http", ["messaging.rocketmq."]),
        ("http, messaging", ["rocketmq."]),
        ("messaging/dup", ["messaging.rocketmq.", "rocketmq."]),
    ],
)
async def test_the_names_of_attributes_can_be_chosen(
    rocketmq: LocalBroker,
    monkeypatch: pytest.MonkeyPatch,
    opt_in: str,
    prefixes: list[str],
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    telemetry = Telemetry()
    otel.instrument(tracer_provider=telemetry.tracers)
    try:
        async with Producer("orders", namesrv=rocketmq.namesrv_addr) as producer:
            await producer.send(Message("Orders", b"x", tags="t"))
    finally:
        otel.uninstrument()
    attributes = telemetry.only("send Orders").attributes or {}
    named = [name.removesuffix("message.tag") for name in attributes if name.endswith("tag")]
    assert named == prefixes


def test_the_entry_point_instruments(telemetry: Telemetry) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (target,) = project["entry-points"]["opentelemetry_instrumentor"].values()
    module, _, name = target.partition(":")
    instrumentor = getattr(importlib.import_module(module), name)()
    instrumentor.uninstrument()
    assert hooks.installed is None
    instrumentor.instrument(skip_dep_check=True, raise_exception_on_conflict=True)
    assert isinstance(hooks.installed, otel.OtelHook)


def test_without_the_package_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; import reput.client.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install '.[otel]'" in done.stderr
    code = "import sys; from reput.client import Producer; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
