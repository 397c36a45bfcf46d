"""Reads and writes of a namespace's topics, beside clients of it, of another one and of none."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from reput.client import ClientConfig, ConsumeFromWhere, ConsumerConfig, Message, blocking
from reput.errors import InvalidOption
from reput.format import names
from reput.spark.live.calls import disconnect
from reput.spark.sending import options as write_options
from reput.spark.sending.requests import TaskIdentity
from reput.spark.sending.rows import BadRow
from reput.spark.sending.send import send
from reput.spark.streaming.stream import QueueStream
from reput.testing import LocalBroker
from spark import live_traffic, reading, streams
from spark.live_traffic import BROKER

TENANT = "tenant"
COUNT = 10


def client_of(mq: LocalBroker, namespace: str = TENANT) -> ClientConfig:
    return ClientConfig(namesrv_addr=mq.namesrv_addr, namespace=namespace)


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    topics = {
        **{f"{space}Orders": 2 for space in ("", "tenant%", "other%")},
        **{"tenant%Bills": 1, "%RETRY%tenant%billing": 1, "other%Mine": 1},
    }
    with LocalBroker(topics=topics) as running:
        for space in ("", TENANT, "other"):
            with blocking.Producer("p", client=client_of(running, space)) as producer:
                for i in range(COUNT):
                    producer.send(Message("Orders", f"{space} {i}".encode()))
        with blocking.Producer("p", client=client_of(running)) as producer:
            producer.send(Message("Bills", b"a bill", delay_level=1))
            producer.send(Message("Bills", b"a bill"))
            producer.send(Message("%RETRY%billing", b"again"))
        running.messages("tenant%Orders", at_least=COUNT)
        yield running
        disconnect()


def read(mq: LocalBroker, **given: Any) -> list[reading.Row]:
    return live_traffic.read(mq.namesrv_addr, namespace=TENANT, **given)


def test_topics_are_those_of_the_namespace_and_shown_without_it(mq: LocalBroker) -> None:
    rows = read(mq, topic="Orders")
    assert sorted(row["body"] for row in rows) == [b"tenant %d" % i for i in range(COUNT)]
    assert {row["properties"]["INSTANCE_ID"] for row in rows} == {TENANT}
    assert rows == read(mq, topic="tenant%Orders")
    retry, schedule = "%RETRY%billing", names.SCHEDULE_TOPIC
    for given, topics in (
        ({"topic": "Orders"}, {"Orders"}),
        ({"topic": "tenant%Orders", "namespace": ""}, {"tenant%Orders"}),
        ({"readIsolation": "all"}, {"Orders", "Bills", retry}),
        ({"includeRetry": False}, {"Orders", "Bills"}),
        ({"namespace": "other"}, {"Orders"}),
        ({"namespace": "ten"}, set()),
        ({"subscribePattern": "O.*|%RETRY%b.*"}, {"Orders", retry}),
        ({"subscribePattern": "tenant%.*|SCHEDULE.*"}, set()),
        ({"topic": schedule}, {schedule}),
        ({"topic": schedule, "resolveTopics": True}, {"Bills"}),
    ):
        got = live_traffic.read(mq.namesrv_addr, **{"namespace": TENANT, **given})
        assert {row["topic"] for row in got} == topics, given


def test_offsets_of_queues_and_groups(mq: LocalBroker) -> None:
    offsets = {"Orders": {BROKER: {"0": 3, "1": 3}}}
    rows = read(mq, topic="Orders", startingOffsets=offsets)
    assert {row["queue_offset"] for row in rows} == {3, 4}
    with blocking.Admin(mq.namesrv_addr) as admin:
        for queue in admin.topic_route("tenant%Orders").subscribe_queues:
            admin.update_consumer_offset("tenant%billing", queue, 4)
    rows = read(mq, topic="Orders", startingOffsets="group:billing")
    assert {row["queue_offset"] for row in rows} == {4}
    with pytest.raises(InvalidOption, match="group:tenant%nobody"):
        read(mq, topic="Orders", startingOffsets="group:nobody")


def test_a_stream_continues_with_and_without_the_namespace(mq: LocalBroker) -> None:
    """Positions have full names, so that a query may change from one way to the other."""

    def stream(**given: Any) -> QueueStream:
        where = {"nameServer": mq.namesrv_addr, "startingOffsets": "earliest"}
        return streams.open_stream(**{**where, "columns": "topic,queue_offset", **given})

    of_tenant = stream(topic="Orders", namespace=TENANT, group="Spark", commitOffsets="onCommit")
    start = of_tenant.initial_offset()
    end = of_tenant.latest_offset(start, None)
    assert end == {"$v": 1, "tenant%Orders": {BROKER: {"0": 5, "1": 5}}}
    rows = streams.batch_of(of_tenant, start, end)
    assert [row["topic"] for row in rows] == ["Orders"] * COUNT
    of_tenant.commit(end)
    by_full_name = stream(topic="tenant%Orders")
    assert by_full_name.initial_offset() == start
    assert by_full_name.latest_offset(end, None) == end
    assert stream(topic="Orders", namespace=TENANT, startingOffsets=end).initial_offset() == end
    with blocking.Admin(mq.namesrv_addr) as admin:
        assert "tenant%Spark" in admin.groups(broker=BROKER)
        progress = admin.consume_stats("tenant%Spark")
    assert [(row.queue.topic, row.consumer_offset) for row in progress.queues] == [
        ("tenant%Orders", 5),
        ("tenant%Orders", 5),
    ]


def write(mq: LocalBroker, columns: dict[str, list[Any]], **given: str) -> None:
    options = write_options.parse({"nameServer": mq.namesrv_addr, **given})
    send([pa.record_batch(columns)], options, TaskIdentity("w", 0))


@pytest.mark.parametrize("mode", ["batch", "sync"])
def test_consumers_of_the_namespace_get_written_rows(mq: LocalBroker, mode: str) -> None:
    topics = [f"Bills-{mode}", f"tenant%Bills-{mode}", f"Bills-{mode}"]
    space = pa.array([[("INSTANCE_ID", "elsewhere")]] * 3, pa.map_(pa.string(), pa.string()))
    rows = {"topic": topics, "body": [b"1", b"2", b"3"], "properties": space}
    write(mq, rows, namespace=TENANT, sendMode=mode)
    first = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    received = []
    with blocking.PullConsumer("c", client=client_of(mq), config=first) as consumer:
        consumer.assign(consumer.queues(f"Bills-{mode}"))
        while len(received) < 3:
            received += consumer.poll()
    assert sorted(message.body for message in received) == [b"1", b"2", b"3"]
    for message in received:
        assert (message.topic, message.properties["INSTANCE_ID"]) == (f"Bills-{mode}", TENANT)
    topic = "T" * (names.TOPIC_LENGTH_MAX - len(TENANT))
    with pytest.raises(BadRow, match=f"'tenant%T+'; allowed: 1 to {names.TOPIC_LENGTH_MAX}"):
        write(mq, {"topic": [topic], "body": [b"x"]}, namespace=TENANT)
