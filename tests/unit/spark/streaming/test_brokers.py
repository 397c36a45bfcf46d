"""Streams over running brokers: positions, limits, new and deleted queues. Without Spark.

Decisions of a stream are tested in test_stream.py, over folders; these tests cover the brokers.
"""

import dataclasses
import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reput.client import blocking
from reput.client.core.route_cache import TopicRoute
from reput.client.instance import ClientInstance
from reput.client.message import Message
from reput.clock import ManualClock
from reput.errors import InvalidOption, StoreUnavailable
from reput.format.codes import RequestCode
from reput.remoting.client import RemotingClient
from reput.spark.live import calls as live_calls
from reput.spark.live.calls import ReadFailed, RetryingClient
from reput.spark.options import TriggerLimits
from reput.spark.store_planner import DataLoss
from reput.spark.streaming.positions import lag_of
from reput.spark.streaming.stream import QueueStream
from reput.testing import LocalBroker
from spark import live_traffic, streams
from spark.live_traffic import BROKER, queue
from spark.streams import batch_of, batches, everything, places

COUNT = 120
"""Messages of topic Orders, 30 in each of four queues."""


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"Orders": 4}) as running:
        send(running, "Orders", COUNT)
        yield running
        live_calls.disconnect()


def send(mq: LocalBroker, topic: str, count: int, queue_count: int = 4) -> None:
    """Send messages to the queues in turn, and wait until they can be read."""
    with blocking.Producer("p", namesrv=mq.namesrv_addr) as producer:
        for i in range(count):
            body = b"%d" % i + b"x" * (i % 3 * 50)
            producer.send(Message(topic, body), queue=queue(i % queue_count, topic))
    mq.messages(topic, at_least=count)


def open_stream(mq: LocalBroker, clock: ManualClock | None = None, **given: Any) -> QueueStream:
    texts = {"nameServer": mq.namesrv_addr, "fetchOffset.retryIntervalMs": 1, **given}
    return streams.open_stream(clock, **texts)


def earliest(mq: LocalBroker, clock: ManualClock | None = None, **given: Any) -> QueueStream:
    return open_stream(mq, clock, **{"topic": "Orders", "startingOffsets": "earliest", **given})


ALL = sorted(("Orders", i % 4, i // 4) for i in range(COUNT))


# --- positions and limits ---------------------------------------------------


def test_positions_and_rows_equal_a_stream_over_the_store(tmp_path: Path) -> None:
    limits = TriggerLimits(max_offsets=50)
    with LocalBroker(topics={"Orders": 4}, folder=tmp_path) as mq:
        send(mq, "Orders", COUNT)
        stream = earliest(mq)
        start = stream.initial_offset()
        end = stream.latest_offset(start, limits)
        rows = batch_of(stream, start, end)
    texts = {"path": tmp_path, "broker": BROKER, "topic": "Orders", "startingOffsets": "earliest"}
    stream = streams.open_stream(**texts)
    assert (stream.initial_offset(), stream.latest_offset(start, limits)) == (start, end)
    rows_of_store = batch_of(stream, start, end)
    assert live_traffic.in_order(rows) == live_traffic.in_order(rows_of_store)
    assert len(rows) == 50


def test_limits_are_kept_by_sampled_sizes(mq: LocalBroker) -> None:
    stream = earliest(mq)
    for limit, size in ((1, None), (50, None), (None, 1500), (None, 4000), (None, 10**6)):
        limits = TriggerLimits(max_offsets=limit, max_bytes=size)
        read = [*batches(stream, stream.initial_offset(), limits)]
        assert places(itertools.chain(*read)) == ALL
        if limit:
            assert [len(batch) for batch in read[:-1]] == [limit] * (len(read) - 1)
        if limit == 1:  # the oldest messages of all queues
            times = [batch[0]["store_timestamp"] for batch in read]
            assert times == sorted(times)
        if size:
            sizes = [sum(row["store_size"] for row in batch) for batch in read]
            assert max(sizes) <= 1.3 * size
            assert all(each >= 0.6 * size for each in sizes[:-1])
    stream = earliest(mq, maxRecordsPerPartition=25)
    tasks = stream.tasks({}, stream.latest_offset({}, None))
    assert [len(streams.rows_of(stream, [task])) for task in tasks] == [25] * 4 + [20]


def test_starting_positions(mq: LocalBroker) -> None:
    options: tuple[tuple[dict[str, Any], list[int]], ...] = (
        ({"startingOffsets": "latest"}, [30, 30, 30, 30]),
        ({"startingOffsets": {"Orders": {BROKER: {"0": 3, "1": -1}}}}, [3, 30, 0, 0]),
        ({"startingTimestamp": 1}, [0, 0, 0, 0]),
        ({"startingTimestamp": 9_000_000_000_000}, [30, 30, 30, 30]),
    )
    for given, counts in options:
        start = open_stream(mq, topic="Orders", **given).initial_offset()
        assert start == {"$v": 1, "Orders": {BROKER: {str(i): n for i, n in enumerate(counts)}}}
    # Queues that another query does not select keep their position.
    other = open_stream(mq, subscribePattern="Nothing.*")
    assert other.latest_offset(start, None) is start


def test_lag_counts_remaining_messages(mq: LocalBroker) -> None:
    stream = earliest(mq)
    assert stream.report() is None
    start = stream.initial_offset()
    end = stream.latest_offset(start, TriggerLimits(max_offsets=40))
    lag = lag_of(json.dumps(stream.report()))
    rest = batch_of(stream, end, stream.latest_offset(end, None))
    assert lag.messages == len(rest) == 80
    assert lag.bytes == pytest.approx(sum(row["store_size"] for row in rest), rel=0.2)
    oldest = min(row["store_timestamp"] for row in rest)
    assert lag.oldest_store_timestamp == int(oldest.timestamp() * 1000)
    assert lag_of(stream.report() or {}).messages == 0


# --- new and deleted queues ---------------------------------------------------


def test_later_messages_and_topics_are_read(mq: LocalBroker) -> None:
    clock = ManualClock()
    stream = open_stream(mq, clock, subscribePattern="New.*", startingOffsets="latest")
    start = stream.initial_offset()
    assert start == {"$v": 1}
    assert stream.latest_offset(start, None) is start
    with blocking.Admin(mq.namesrv_addr) as admin:
        admin.create_topic("New", queue_count=1)
        send(mq, "New", 3, 1)
        assert stream.latest_offset(start, None) is start  # cached routes are used
        clock.advance(10_000)
        end = stream.latest_offset(start, None)
        assert end == {"$v": 1, "New": {BROKER: {"0": 3}}}
        assert places(batch_of(stream, start, end)) == [("New", 0, i) for i in range(3)]
        frozen, frozen_start = earliest(mq, topic="New"), {"$v": 1, "New": {BROKER: {"0": 0}}}
        frozen.freeze()
        admin.create_topic("New", queue_count=2)
        send(mq, "New", 2, 2)
        clock.advance(10_000)
        later = stream.latest_offset(end, None)
        assert places(batch_of(stream, end, later)) == [("New", 0, 3), ("New", 1, 0)]
    # A frozen stream ends at the ends of the queues at its start.
    limits = TriggerLimits(max_offsets=2, min_offsets=100)
    assert [len(batch) for batch in batches(frozen, frozen_start, limits)] == [2, 1]
    assert lag_of(frozen.report() or {}).messages == 1  # a queue that came later is left out


def test_a_deleted_topic_is_an_error_or_dropped(mq: LocalBroker) -> None:
    with blocking.Admin(mq.namesrv_addr) as admin:
        admin.create_topic("Doomed", queue_count=1)
        send(mq, "Doomed", 3, 1)
        given = {"topic": "Doomed,Orders", "discoveryIntervalMs": 1}
        clock = ManualClock()
        start = earliest(mq, **given).latest_offset({}, None)
        admin.delete_topic("Doomed")
        text = r"queue Doomed/0 of broker-a is missing from name server"
        with pytest.raises(DataLoss, match=text):
            earliest(mq, **given).latest_offset(start, None)
        with pytest.raises(DataLoss, match="requested is 0 on"):
            earliest(mq, **given).tasks({}, start)
        lenient = earliest(mq, clock, failOnDataLoss=False, **given)
        end = lenient.latest_offset(start, None)
        assert set(end) == {"$v", "Orders"}
        assert lag_of(lenient.report() or {}).data_losses == 1
        assert len(batch_of(lenient, {}, start)) == COUNT
        admin.create_topic("Doomed", queue_count=1)
        send(mq, "Doomed", 2, 1)
        clock.advance(1)
        assert len(batch_of(lenient, end, lenient.latest_offset(end, None))) == 2


def test_queues_of_an_unreachable_broker_keep_their_position(
    mq: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = earliest(mq).initial_offset()
    end = earliest(mq).latest_offset(start, None)

    async def no_brokers(client: RetryingClient) -> dict[str, str]:
        return {}

    monkeypatch.setattr(RetryingClient, "brokers", no_brokers)
    text = "the broker of queue Orders/0 of broker-a is not registered with name server"
    impatient = {"retryTimeout": "0s"}
    with pytest.raises(DataLoss, match=text):
        earliest(mq, **impatient).latest_offset(start, None)
    lenient = earliest(mq, failOnDataLoss=False, **impatient)
    assert lenient.latest_offset(start, None) is start
    with pytest.raises(StoreUnavailable, match=text):  # its messages may arrive later
        lenient.tasks(start, end)
    others = earliest(mq, failOnDataLoss=False, broker="broker-b")
    assert others.tasks(start, end) == []


def test_expired_and_truncated_queues_are_errors_or_tolerated(
    mq: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = earliest(mq).initial_offset()
    ends = RetryingClient.ends

    async def expired(client: RetryingClient, followed: Any) -> tuple[int, int]:
        return 10, (await ends(client, followed))[1]

    monkeypatch.setattr(RetryingClient, "ends", expired)
    text = r"queue Orders/0 of broker-a holds 10 to 30, requested is 0 on: messages 0 to 10 have ex"
    with pytest.raises(DataLoss, match=text):
        earliest(mq).latest_offset(start, None)
    lenient = earliest(mq, failOnDataLoss=False)
    read_rows = batch_of(lenient, start, lenient.latest_offset(start, None))
    assert places(read_rows) == [place for place in ALL if place[2] >= 10]
    past_the_end = {"Orders": {BROKER: {"0": 31}}}
    with pytest.raises(DataLoss, match="it was truncated, or recreated"):
        earliest(mq).latest_offset(past_the_end, None)
    assert lenient.latest_offset(past_the_end, None)["Orders"][BROKER]["0"] == 30


# --- restarts ---------------------------------------------------------------


def test_a_repeated_batch_ignores_later_messages(mq: LocalBroker) -> None:
    mq.create_topic("Again", 2)
    send(mq, "Again", 20, 2)
    stream = earliest(mq, topic="Again")
    start = stream.initial_offset()
    end = stream.latest_offset(start, TriggerLimits(max_offsets=13))
    first = batch_of(stream, start, end)
    send(mq, "Again", 8, 2)
    again = earliest(mq, topic="Again")
    assert batch_of(again, start, end) == first
    rest = [row for batch in batches(again, end) for row in batch]
    assert places(first + rest) == sorted(("Again", i % 2, i // 2) for i in range(28))


# --- consumer offsets -------------------------------------------------------


def test_offsets_are_committed_to_a_group_only_if_configured(mq: LocalBroker) -> None:
    before = live_traffic.traces(mq.namesrv_addr)
    stream = earliest(mq, group="Spark", commitOffsets="none")
    start = stream.initial_offset()
    last = stream.latest_offset(start, None)
    stream.commit(last)
    assert stream.latest_offset(last, None) is last
    assert live_traffic.traces(mq.namesrv_addr) == before

    stream = earliest(mq, group="Spark", commitOffsets="onCommit")
    end = stream.latest_offset(start, TriggerLimits(max_offsets=40))
    with blocking.Admin(mq.namesrv_addr) as admin:

        def lags() -> list[int]:
            stats = admin.consume_stats("Spark").queues
            return [stat.broker_offset - stat.consumer_offset for stat in stats]

        assert lags() == [30] * 4
        stream.commit(end)
        assert lags() == [20] * 4
        assert stream.latest_offset(end, None) == last
        assert lags() == [20] * 4  # planned, but not finished
        assert stream.latest_offset(last, None) is last
        assert lags() == [0] * 4
    # Another stream, and a batch read, start at the committed offsets.
    other = open_stream(mq, topic="Orders", startingOffsets="group:Spark")
    assert other.initial_offset() == last
    with pytest.raises(InvalidOption, match="'group' is 'a b'"):
        earliest(mq, group="a b", commitOffsets="onCommit").latest_offset(start, None)


def test_failed_commits_are_retried_with_the_next_batch(
    mq: LocalBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = earliest(mq, group="Patient", commitOffsets="onCommit")
    start = stream.initial_offset()
    update = RetryingClient.commit

    async def refused(*_: object) -> None:
        raise ReadFailed("the broker is busy")

    monkeypatch.setattr(RetryingClient, "commit", refused)
    with caplog.at_level(logging.WARNING, "reput.spark"):
        end = stream.latest_offset(start, None)
    assert "group Patient: offsets are not committed: the broker is busy" in caplog.messages
    monkeypatch.setattr(RetryingClient, "commit", update)
    stream.latest_offset(end, None)
    with blocking.Admin(mq.namesrv_addr) as admin:
        assert admin.consumer_offset("Patient", queue(0)) == 30


# --- requests ---------------------------------------------------------------


def test_a_trigger_queries_each_queue_once_and_routes_at_intervals(
    mq: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    stream = earliest(mq, clock, discoveryIntervalMs=60_000)
    last = stream.latest_offset(stream.initial_offset(), None)
    asked: Counter[int] = Counter()
    invoke = RemotingClient.invoke

    async def counted(client: RemotingClient, address: str, request: Any, *more: Any) -> Any:
        asked[request.code] += 1
        return await invoke(client, address, request, *more)

    monkeypatch.setattr(RemotingClient, "invoke", counted)
    for _ in range(5):
        clock.advance(10_000)
        assert stream.latest_offset(last, None) is last
    assert asked == {RequestCode.GET_MIN_OFFSET: 20, RequestCode.GET_MAX_OFFSET: 20}
    clock.advance(10_000)
    stream.latest_offset(last, None)
    assert asked[RequestCode.GET_ROUTEINFO_BY_TOPIC] == 1


@pytest.mark.parametrize("read_from", ["master", "slave"])
def test_slaves_are_preferred_if_configured(
    mq: LocalBroker, monkeypatch: pytest.MonkeyPatch, read_from: str
) -> None:
    """Of master and slave only the broker that must be asked is reachable."""
    route = ClientInstance.route

    async def with_slave(
        instance: ClientInstance, topic: str, *, refresh: bool = False
    ) -> TopicRoute:
        answer = await route(instance, topic, refresh=refresh)
        there, nowhere = answer.brokers[BROKER][0], "127.0.0.1:1"
        master, slave = (there, nowhere) if read_from == "master" else (nowhere, there)
        return dataclasses.replace(answer, brokers={BROKER: {0: master, 1: slave}})

    monkeypatch.setattr(ClientInstance, "route", with_slave)
    stream = earliest(mq, readFrom=read_from, **{"fetchOffset.numRetries": 0})
    assert places(everything(stream)) == ALL
