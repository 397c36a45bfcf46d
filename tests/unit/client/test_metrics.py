"""Metrics of clients, their connection events and readiness, against a broker."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from reput.client import (
    ClientCollector,
    ConnectionChange,
    ConnectionEvent,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    NotReady,
    PeerKind,
    PopConsumer,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendFailed,
    blocking,
)
from reput.client.core.send_counts import OTHER, TOPICS_MAX, SendCounts
from reput.client.metrics import Distribution, producer_metrics
from reput.errors import InvalidOption
from reput.format.codes import ResponseCode
from reput.testing import LocalBroker
from scripted_cluster import ScriptedCluster

GUARD_S = 30
"""Limit of a test's waits, in s."""


@pytest.fixture(scope="module")
def rocketmq() -> Iterator[LocalBroker]:
    with LocalBroker(topics=["T", "Pushed", "Pulled", "Popped"]) as mq:
        yield mq


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    topics = {"T": {"broker-a": 4}, "TBW102": {"broker-a": 8}}
    async with ScriptedCluster(topics) as running:
        yield running


class Events:
    """Records events of connections."""

    def __init__(self) -> None:
        self.all: list[ConnectionEvent] = []
        self._changed = asyncio.Condition()

    async def __call__(self, event: ConnectionEvent) -> None:
        async with self._changed:
            self.all.append(event)
            self._changed.notify_all()

    async def until(self, change: ConnectionChange, kind: PeerKind) -> ConnectionEvent:
        def of_kind() -> list[ConnectionEvent]:
            return [e for e in self.all if (e.change, e.peer_kind) == (change, kind)]

        async with asyncio.timeout(GUARD_S), self._changed:
            await self._changed.wait_for(of_kind)
        return of_kind()[0]


# --- metrics ----------------------------------------------------------------------


async def test_a_producer_counts_sends_by_result(cluster: ScriptedCluster) -> None:
    once = ProducerConfig(retry_backoff_ms=0)
    async with Producer("P", namesrv=cluster.namesrv, config=once) as producer:
        await producer.send(Message("T", b"x"))
        await producer.send_batch([Message("T", b"x"), Message("T", b"y")])
        cluster.broker.store_as(ResponseCode.SLAVE_NOT_AVAILABLE)
        await producer.send(Message("T", b"x"))
        cluster.broker.refuse(ResponseCode.SYSTEM_ERROR)
        with pytest.raises(SendFailed):
            await producer.send(Message("T", b"x"))
        metrics = producer.metrics()

    assert metrics["reput_client_sends_total"].values == {
        ("P", "T", "ok"): 2,
        ("P", "T", "slave_not_available"): 1,
        ("P", "T", "failed"): 1,
    }
    assert metrics["reput_client_send_retries_total"].values == {("P", "T"): 2}
    durations = metrics["reput_client_send_duration_seconds"].values["P", "T"]
    assert isinstance(durations, Distribution)
    assert durations.count == 4
    assert metrics["reput_client_connections"].values == {("broker",): 1, ("name server",): 1}


async def test_a_oneway_send_is_counted_as_such(rocketmq: LocalBroker) -> None:
    async with Producer("P", namesrv=rocketmq.namesrv_addr) as producer:
        await producer.send_oneway(Message("T", b"x"))
        assert producer.metrics()["reput_client_sends_total"].values == {("P", "T", "oneway"): 1}


def test_the_number_of_topics_is_bounded() -> None:
    sends = SendCounts()
    for number in range(TOPICS_MAX + 50):
        sends.of(f"T{number}").add("ok", 1)
    values = producer_metrics("P", sends, None)["reput_client_sends_total"].values
    assert len(values) == TOPICS_MAX + 1
    assert values["P", "T0", "ok"] == 1
    assert values["P", OTHER, "ok"] == 50


async def test_a_push_consumer_counts_results_queues_and_lag(rocketmq: LocalBroker) -> None:
    async with Producer("P", namesrv=rocketmq.namesrv_addr) as producer:
        for number in range(8):
            await producer.send(Message("Pushed", b"%d" % number))
    refused = asyncio.Semaphore(0)

    async def listen(messages: list[ReceivedMessage], _: ConsumeContext) -> ConsumeResult:
        if messages[0].body == b"3":
            refused.release()
            return ConsumeResult.LATER
        return ConsumeResult.SUCCESS

    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = PushConsumer("G", namesrv=rocketmq.namesrv_addr, listener=listen, config=config)
    await consumer.subscribe("Pushed")
    async with consumer, asyncio.timeout(GUARD_S):
        await refused.acquire()
        await rocketmq.wait_until_consumed_async("G")
        metrics = consumer.metrics()

    assert metrics["reput_client_messages_received_total"].values["G", "Pushed"] == 8
    consumed = metrics["reput_client_messages_consumed_total"].values
    assert consumed["G", "Pushed", "success"] == 7
    assert consumed["G", "Pushed", "failed"] == 1
    assert metrics["reput_client_queues"].values["G", "Pushed"] == 4
    assert metrics["reput_client_lag_messages"].values["G", "Pushed"] == 0
    durations = metrics["reput_client_listener_duration_seconds"].values["G", "Pushed"]
    assert isinstance(durations, Distribution)
    assert durations.count == 8


async def test_messages_that_were_polled_are_no_lag_once_they_are_consumed(
    rocketmq: LocalBroker,
) -> None:
    async with PullConsumer("G2", namesrv=rocketmq.namesrv_addr) as consumer:
        (queue, *_) = await consumer.queues("Pulled")
        await consumer.assign([queue])
        consumer.seek(queue, 0)
        async with Producer("P", namesrv=rocketmq.namesrv_addr) as producer:
            for _ in range(5):
                await producer.send(Message("Pulled", b"x"), queue=queue)

        def value(name: str, *more: str) -> object:
            return consumer.metrics()[name].values["G2", "Pulled", *more]

        count = 0
        while count < 5:
            count += len(await consumer.poll(count_max=5 - count, timeout_ms=GUARD_S * 1000))
        lag = value("reput_client_lag_messages")
        assert isinstance(lag, int)
        assert 0 < lag <= 5
        await consumer.poll(timeout_ms=0)
        assert value("reput_client_lag_messages") == 0
        assert value("reput_client_messages_consumed_total", "success") == 5
        assert value("reput_client_queues") == 1


async def test_acknowledged_messages_are_consumed(rocketmq: LocalBroker) -> None:
    consumer = PopConsumer("G3", namesrv=rocketmq.namesrv_addr)
    await consumer.subscribe("Popped")
    async with consumer, asyncio.timeout(GUARD_S):
        await consumer.ready()
        await consumer.pop(timeout_ms=1)  # the group begins here
        async with Producer("P", namesrv=rocketmq.namesrv_addr) as producer:
            await producer.send_many([Message("Popped", b"x") for _ in range(2)])
        messages: list[ReceivedMessage] = []
        while len(messages) < 2:
            messages += await consumer.pop(2 - len(messages))
        first, second = messages
        await consumer.ack(first)
        await consumer.nack(second)
        values = consumer.metrics()["reput_client_messages_consumed_total"].values
    assert values == {("G3", "Popped", "success"): 1, ("G3", "Popped", "failed"): 1}


async def test_prometheus_reads_clients_and_counts_shared_connections_once(
    cluster: ScriptedCluster,
) -> None:
    async with (
        Producer("P1", namesrv=cluster.namesrv) as first,
        Producer("P2", namesrv=cluster.namesrv) as second,
    ):
        await first.send(Message("T", b"x"))
        await second.send(Message("T", b"x"))
        registry = CollectorRegistry()
        registry.register(ClientCollector(first, second))
        lines = generate_latest(registry).decode().splitlines()
    assert 'reput_client_sends_total{group="P1",result="ok",topic="T"} 1.0' in lines
    assert 'reput_client_sends_total{group="P2",result="ok",topic="T"} 1.0' in lines
    assert 'reput_client_connections{peer="broker"} 1.0' in lines
    bucket = 'reput_client_send_duration_seconds_bucket{group="P1",le="+Inf",topic="T"} 1.0'
    assert bucket in lines


def test_clients_of_one_group_are_added_up(rocketmq: LocalBroker) -> None:
    namesrv = rocketmq.namesrv_addr
    with (
        blocking.Producer("Same", namesrv=namesrv) as first,
        blocking.Producer("Same", namesrv=namesrv) as second,
    ):
        first.send(Message("T", b"x"))
        second.send(Message("T", b"x"))
        registry = CollectorRegistry()
        registry.register(ClientCollector(first, second))
        labels = {"group": "Same", "topic": "T"}
        name = "reput_client_sends_total"
        assert registry.get_sample_value(name, labels | {"result": "ok"}) == 2
        name = "reput_client_send_duration_seconds_count"
        assert registry.get_sample_value(name, labels) == 2
        # Two members of a group never share connections.
        name = "reput_client_connections"
        assert registry.get_sample_value(name, {"peer": "broker"}) == 2


# --- connections ------------------------------------------------------------------


async def test_the_program_hears_of_connections(cluster: ScriptedCluster) -> None:
    events = Events()
    async with Producer("P", namesrv=cluster.namesrv, on_connection=events) as producer:
        assert not producer.is_connected
        await producer.send(Message("T", b"x"))
        assert producer.is_connected
        broker = PeerKind.BROKER
        assert (await events.until(ConnectionChange.CONNECTED, broker)) == ConnectionEvent(
            ConnectionChange.CONNECTED, broker, cluster.broker.address
        )
        for channel in list(cluster.broker.channels):
            channel.close()
        lost = await events.until(ConnectionChange.DISCONNECTED, broker)
        assert (lost.address, lost.reason) == (cluster.broker.address, "closed by the other side")
        assert not producer.is_connected
        await producer.send(Message("T", b"x"))
        again = await events.until(ConnectionChange.RECONNECTED, broker)
        assert again.address == cluster.broker.address
        values = producer.metrics()["reput_client_reconnects_total"].values
        assert values["broker",] == 1
    assert events.all[0].peer_kind is PeerKind.NAME_SERVER
    # The end of the client itself is no event.
    assert [event.change for event in events.all if event.peer_kind is broker] == [
        ConnectionChange.CONNECTED,
        ConnectionChange.DISCONNECTED,
        ConnectionChange.RECONNECTED,
    ]


async def test_a_failing_callback_is_logged_and_breaks_nothing(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    calls = asyncio.Semaphore(0)

    async def fail(event: ConnectionEvent) -> None:
        calls.release()
        raise ValueError("mine")

    async with Producer("P", namesrv=cluster.namesrv, on_connection=fail) as producer:
        await producer.send(Message("T", b"x"))
        async with asyncio.timeout(GUARD_S):
            await calls.acquire()  # name server
            await calls.acquire()  # broker
        await producer.send(Message("T", b"x"))
    assert "on_connection failed: connected" in caplog.text


def test_a_plain_callback_of_a_blocking_client_may_use_it(rocketmq: LocalBroker) -> None:
    has_sent = threading.Event()

    def send(event: ConnectionEvent) -> None:
        if event.peer_kind is PeerKind.BROKER and not has_sent.is_set():
            producer.send(Message("T", b"from the callback"))
            has_sent.set()

    producer = blocking.Producer("P", namesrv=rocketmq.namesrv_addr, on_connection=send)
    with producer:
        producer.send(Message("T", b"x"))
        assert has_sent.wait(GUARD_S)
        assert producer.is_connected
    assert not producer.is_connected


def test_a_callback_has_to_be_a_function() -> None:
    with pytest.raises(InvalidOption, match="on_connection"):
        Producer("P", namesrv="127.0.0.1:1", on_connection="log")  # type: ignore[arg-type]


# --- readiness --------------------------------------------------------------------


async def test_a_producer_is_ready_for_a_topic(cluster: ScriptedCluster) -> None:
    async with Producer("P", namesrv=cluster.namesrv) as producer:
        assert not producer.is_ready("T")
        await producer.ready("T")
        assert producer.is_ready("T")
        assert producer.is_ready()
        assert not producer.is_ready("Other")
        await producer.ready("New")  # the first message will create it
        assert cluster.broker.sent_count == 0


def test_a_blocking_producer_is_ready_for_any_topic(rocketmq: LocalBroker) -> None:
    with blocking.Producer("P", namesrv=rocketmq.namesrv_addr) as producer:
        assert not producer.is_ready()
        producer.ready()
        assert producer.is_ready()
        assert producer.is_connected


async def test_the_reason_for_not_being_ready_is_reported(cluster: ScriptedCluster) -> None:
    await cluster.broker.stop()
    async with Producer("P", namesrv=cluster.namesrv) as producer:
        with pytest.raises(NotReady, match=r"producer P is not ready after 200 ms: .*refused"):
            await producer.ready("T", timeout_ms=200)
        with pytest.raises(InvalidOption):
            await producer.ready("bad topic!")
