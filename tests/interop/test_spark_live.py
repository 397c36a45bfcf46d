"""Spark's live source on the official broker: the rows of its store, and nothing left over."""

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from interop import java_cluster
from interop.conftest import StartOfficial
from interop.java_cluster import JavaClient, JavaCluster
from reput.client import blocking
from reput.client.message import Message
from reput.format import names
from reput.spark import explain, options as option_texts, views
from reput.spark.live import calls as live_calls
from reput.spark.live.calls import ReadFailed
from reput.spark.options import TriggerLimits
from reput.spark.store_planner import DataLoss
from reput.spark.streaming.positions import Offset
from reput.spark.streaming.stream import QueueStream
from reput.store.reader import StoreReader
from spark import live_traffic
from spark.live_traffic import BROKER, GROUP, queue

pytestmark = [pytest.mark.interop, pytest.mark.rotating, pytest.mark.xdist_group("test_spark_live")]


@pytest.mark.parametrize("version", java_cluster.broker_versions())
def test_rows_equal_those_of_the_store(version: str, start_official: StartOfficial) -> None:
    cluster = start_official(version)
    address = cluster.namesrv
    traffic = live_traffic.publish(address)
    listed = live_traffic.cases(traffic)
    rows_by_name = live_traffic.read_all(address, listed)
    of_views = {view: view_rows(nameServer=address, view=view) for view in ("offsets", "topics")}
    for given in ({"key": "k17"}, {"uniqKey": traffic.unique_key}):
        plan = explain(nameServer=address, topic="Orders", **given)
        assert re.search(r"\b[1-4] of 241 messages are pulled", plan), plan
    after = live_traffic.traces(address)
    live_calls.disconnect()
    cluster.stop_broker()
    assert after == traffic.traces_before
    # 4.5 does not register the schedule topic with name servers.
    waiting = live_traffic.Case({"topic": names.SCHEDULE_TOPIC}).rows_of(cluster.store)
    unlisted = {row["physical_offset"] for row in waiting if version == "4.5.2"}
    for name, case in listed.items():
        of_store = case.rows_of(cluster.store)
        of_store = [row for row in of_store if row["physical_offset"] not in unlisted]
        assert rows_by_name[name] == of_store, name
        assert bool(of_store) is (name not in live_traffic.NOTHING), name
    for view, rows in of_views.items():
        of_store = view_rows(path=str(cluster.store), view=view, broker=BROKER)
        topics = {row["topic"] for row in rows}
        assert topics >= ({*live_traffic.TOPICS} if view == "topics" else {"Orders"})
        # The broker makes topics for itself until it stops.
        of_store = [row for row in of_store if row["topic"] in topics]
        for row in (*rows, *of_store):
            row.pop("store")
            row.pop("queue_count", None)  # Java makes the files of a queue that is looked at
        assert rows == of_store, view
    groups = json.loads((cluster.store / "config/subscriptionGroup.json").read_text())
    assert set(groups["subscriptionGroupTable"]) == set(traffic.traces_before[1])
    offsets = StoreReader.open(str(cluster.store)).consumer_offsets()
    assert {(offset.topic, offset.group) for offset in offsets} == {("Orders", GROUP)}


def view_rows(**given: str) -> list[dict[str, Any]]:
    parsed = option_texts.parse(given)
    return [
        row
        for part in views.partitions(parsed)
        for batch in views.read(parsed, list(views.fields(parsed)), part)
        for row in batch.to_pylist()
    ]


def follow(namesrv: str, start: Offset | None, **more: str) -> tuple[Offset, list[tuple[int, int]]]:
    """Read topic Orders to its end, as a query that was just started.

    Args:
        namesrv: Address of the name server.
        start: Position from a checkpoint; None: a new query.
        more: Further options.

    Returns:
        The position at the end, and queue id and queue offset of all messages read.
    """
    texts = {"nameServer": namesrv, "topic": "Orders", "startingOffsets": "earliest"}
    options = option_texts.parse_stream({**texts, **more})
    stream = QueueStream(options, ["queue_id", "queue_offset"])
    start = stream.initial_offset() if start is None else start
    messages: list[tuple[int, int]] = []
    while (end := stream.latest_offset(start, TriggerLimits(max_offsets=90))) != start:
        rows = [
            (row["queue_id"], row["queue_offset"])
            for task in stream.tasks(start, end)
            for batch in stream.read(task)
            for row in batch.to_pylist()
        ]
        assert 0 < len(rows) <= 90
        messages += rows
        start = json.loads(json.dumps(end))
    return start, sorted(messages)


def send(namesrv: str, count: int, queue_count: int) -> None:
    with blocking.Producer("p", namesrv=namesrv) as producer:
        for i in range(count):
            producer.send(Message("Orders", b"x" * (i + 1)), queue=queue(i % queue_count))


@pytest.mark.parametrize("version", java_cluster.broker_versions())
def test_a_stream_reads_each_message_once_and_its_group_is_visible(
    version: str, start_official: StartOfficial, tmp_path: Path
) -> None:
    address = start_official(version).namesrv
    group = {"group": "Spark", "commitOffsets": "onCommit"}
    with blocking.Admin(address) as admin, JavaClient(version, tmp_path / "client") as java:
        admin.create_topic("Orders", queue_count=2, broker=BROKER)
        send(address, 200, 2)
        place, read = follow(address, None, **group)
        assert read == [(i, n) for i in (0, 1) for n in range(100)]
        admin.create_topic("Orders", queue_count=4, broker=BROKER)
        send(address, 100, 4)
        shown = java.mqadmin("consumerProgress", "-g", "Spark", namesrv=address)
        assert "Diff Total: 100\n" in shown, shown
        place, more = follow(address, place, **group)
        assert more == [(i, n) for i in (0, 1) for n in range(100, 125)] + [
            (i, n) for i in (2, 3) for n in range(25)
        ]
        shown = java.mqadmin("consumerProgress", "-g", "Spark", namesrv=address)
        assert "Diff Total: 0\n" in shown, shown
        admin.delete_topic("Orders")
        with pytest.raises(DataLoss, match="queue Orders/0 of broker-a"):
            follow(address, place)
    live_calls.disconnect()


@pytest.mark.parametrize("version", java_cluster.broker_versions())
def test_slaves_are_read(version: str, start_official: StartOfficial, tmp_path: Path) -> None:
    address = start_official(version, {"brokerRole": "ASYNC_MASTER"}).namesrv
    settings = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": True}
    with (
        JavaCluster(version, tmp_path / "slave", settings, namesrv=address),
        blocking.Admin(address) as admin,
    ):
        admin.create_topic("Orders", queue_count=2, broker=BROKER)
        send(address, 200, 2)
        expected = follow(address, None)
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(ReadFailed):  # the messages arrive after the topic
                if follow(address, None, readFrom="slave") == expected:
                    break
            assert time.monotonic() < deadline, "the slave does not catch up"
    live_calls.disconnect()
