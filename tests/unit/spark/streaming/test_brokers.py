"""Streams over running brokers: positions, limits, new and deleted queues. Without Spark.

Decisions of a stream are tested in test_stream.py, over folders; these tests cover the brokers.
"""

import dataclasses
import json
import logging
import pickle
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
from reput.spark import options as option_texts, rows
from reput.spark.live import calls as live_calls
from reput.spark.live.calls import ReadFailed, RetryingClient
from reput.spark.options import TriggerLimits
from reput.spark.store_planner import DataLoss
from reput.spark.streaming.positions import Offset, lag_of
from reput.spark.streaming.stream import QueueStream
from reput.testing import LocalBroker
from spark import live_traffic, reading
from spark.live_traffic import BROKER, queue

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
    parsed = option_texts.parse_stream(reading.texts(texts))
    columns = parsed.columns or list(rows.message_fields(parsed))
    stream = QueueStream(parsed, columns, clock)
    return stream if clock else pickle.loads(pickle.dumps(stream))


def earliest(mq: LocalBroker, clock: ManualClock | None = None, **given: Any) -> QueueStream:
    return open_stream(mq, clock, **{"topic": "Orders", "startingOffsets": "earliest", **given})


def batch_of(stream: QueueStream, start: Offset, end: Offset) -> list[reading.Row]:
    """Return the rows of a micro-batch, with offsets from a checkpoint and pickled tasks."""
    start, end = (json.loads(json.dumps(offset)) for offset in (start, end))
    tasks = pickle.loads(pickle.dumps(stream.tasks(start, end)))
    return [row for task in tasks for batch in stream.read(task) for row in batch.to_pylist()]


def batches(
    stream: QueueStream, start: Offset, limits: TriggerLimits | None = None
) -> Iterator[list[reading.Row]]:
    while (end := stream.latest_offset(start, limits)) != start:
        yield batch_of(stream, start, end)
        start = end


def places(read_rows: list[reading.Row]) -> list[tuple[int, int]]:
    return sorted((row["queue_id"], row["queue_offset"]) for row in read_rows)


ALL = sorted((i % 4, i // 4) for i in range(COUNT))


def everything(stream: QueueStream, limits: TriggerLimits | None = None) -> list[reading.Row]:
    return [row for batch in batches(stream, stream.initial_offset(), limits) for row in batch]


# --- positions and limits ---------------------------------------------------


def test_positions_and_rows_equal_a_stream_over_the_store(tmp_path: Path) -> None:
    limits = TriggerLimits(max_offsets=50)
    with LocalBroker(topics={"Orders": 4}, folder=tmp_path) as mq:
        send(mq, "Orders", COUNT)
        of_brokers = earliest(mq)
        start = of_brokers.initial_offset()
        end = of_brokers.latest_offset(start, limits)
        rows_read = sorted(batch_of(of_brokers, start, end), key=lambda row: row["physical_offset"])
    parsed = option_texts.parse_stream(
        {"path": str(tmp_path), "broker": BROKER, "topic": "Orders", "startingOffsets": "earliest"}
    )
    of_store = QueueStream(parsed, list(rows.message_fields(parsed)))
    assert of_store.initial_offset() == start
    assert of_store.latest_offset(start, limits) == end
    of_store_rows = sorted(batch_of(of_store, start, end), key=lambda row: row["physical_offset"])
    assert rows_read == of_store_rows
    assert len(rows_read) == 50


@pytest.mark.parametrize("limit", [1, 7, 50, 1000])
def test_a_limit_of_messages_is_kept_and_each_message_read_once(
    mq: LocalBroker, limit: int
) -> None:
    stream = earliest(mq)
    limits = TriggerLimits(max_offsets=limit)
    read_batches = [*batches(stream, stream.initial_offset(), limits)]
    assert [len(batch) for batch in read_batches[:-1]] == [limit] * (len(read_batches) - 1)
    assert places([row for batch in read_batches for row in batch]) == ALL


@pytest.mark.parametrize("limit", [1, 1500, 4000, 10**6])
def test_a_limit_of_bytes_is_kept_by_sampled_sizes(mq: LocalBroker, limit: int) -> None:
    stream = earliest(mq)
    read_batches = [*batches(stream, stream.initial_offset(), TriggerLimits(max_bytes=limit))]
    assert places([row for batch in read_batches for row in batch]) == ALL
    largest = max(row["store_size"] for batch in read_batches for row in batch)
    sizes = [sum(row["store_size"] for row in batch) for batch in read_batches]
    assert all(size <= max(1.3 * limit, largest) for size in sizes)
    assert all(size >= 0.6 * limit for size in sizes[:-1])


def test_a_limit_below_the_queue_count_takes_the_oldest_messages(mq: LocalBroker) -> None:
    stream = earliest(mq)
    read_batches = [*batches(stream, stream.initial_offset(), TriggerLimits(max_offsets=1))]
    times = [row["store_timestamp"] for batch in read_batches for row in batch]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"startingOffsets": "latest"}, [30, 30, 30, 30]),
        ({"startingOffsets": {"Orders": {BROKER: {"0": 3, "1": -1}}}}, [3, 30, 0, 0]),
        ({"startingTimestamp": 1}, [0, 0, 0, 0]),
        ({"startingTimestamp": 9_000_000_000_000}, [30, 30, 30, 30]),
    ],
)
def test_starting_positions(mq: LocalBroker, options: dict[str, Any], counts: list[int]) -> None:
    offset = open_stream(mq, topic="Orders", **options).initial_offset()
    assert offset == {"$v": 1, "Orders": {BROKER: {str(i): n for i, n in enumerate(counts)}}}


def test_partitions_have_the_configured_size(mq: LocalBroker) -> None:
    stream = earliest(mq, maxRecordsPerPartition=25)
    start = stream.initial_offset()
    tasks = stream.tasks(start, stream.latest_offset(start, None))
    assert [sum(batch.num_rows for batch in stream.read(task)) for task in tasks] == [25] * 4 + [20]


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
        assert places(batch_of(stream, start, end)) == [(0, 0), (0, 1), (0, 2)]
        admin.create_topic("New", queue_count=2)
        send(mq, "New", 2, 2)
        clock.advance(10_000)
        later = stream.latest_offset(end, None)
        assert places(batch_of(stream, end, later)) == [(0, 3), (1, 0)]


def test_a_frozen_stream_ends_at_the_queue_ends_of_its_start(mq: LocalBroker) -> None:
    with blocking.Admin(mq.namesrv_addr) as admin:
        admin.create_topic("Frozen", queue_count=1)
    send(mq, "Frozen", 5, 1)
    stream = earliest(mq, topic="Frozen")
    stream.freeze()
    start = stream.initial_offset()
    send(mq, "Frozen", 4, 1)
    limits = TriggerLimits(max_offsets=2, min_offsets=100)
    assert [len(batch) for batch in batches(stream, start, limits)] == [2, 2, 1]
    assert lag_of(stream.report() or {}).messages == 4


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


def test_deselected_queues_keep_their_position(mq: LocalBroker) -> None:
    start = earliest(mq).latest_offset({}, None)
    other = open_stream(mq, subscribePattern="Nothing.*")
    assert other.latest_offset(start, None) is start


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
    assert places(read_rows) == [place for place in ALL if place[1] >= 10]
    past_the_end = {"Orders": {BROKER: {"0": 31}}}
    with pytest.raises(DataLoss, match="it was truncated, or recreated"):
        earliest(mq).latest_offset(past_the_end, None)
    assert lenient.latest_offset(past_the_end, None)["Orders"][BROKER]["0"] == 30


# --- restarts ---------------------------------------------------------------


def test_a_repeated_batch_ignores_later_messages(mq: LocalBroker) -> None:
    with blocking.Admin(mq.namesrv_addr) as admin:
        admin.create_topic("Again", queue_count=2)
    send(mq, "Again", 20, 2)
    stream = earliest(mq, topic="Again")
    start = stream.initial_offset()
    end = stream.latest_offset(start, TriggerLimits(max_offsets=13))
    first = batch_of(stream, start, end)
    send(mq, "Again", 8, 2)
    again = earliest(mq, topic="Again")
    assert batch_of(again, start, end) == first
    rest = [row for batch in batches(again, end) for row in batch]
    assert Counter(places(first + rest)) == {(i % 2, i // 2): 1 for i in range(28)}


# --- consumer offsets -------------------------------------------------------


def test_offsets_are_committed_to_a_group_only_if_configured(mq: LocalBroker) -> None:
    before = live_traffic.traces(mq.namesrv_addr)
    everything(earliest(mq))
    stream = earliest(mq, group="Spark", commitOffsets="none")
    everything(stream)
    stream.commit(stream.initial_offset())
    assert live_traffic.traces(mq.namesrv_addr) == before

    stream = earliest(mq, group="Spark", commitOffsets="onCommit")
    start = stream.initial_offset()
    end = stream.latest_offset(start, TriggerLimits(max_offsets=40))
    with blocking.Admin(mq.namesrv_addr) as admin:

        def lags() -> list[int]:
            stats = admin.consume_stats("Spark").queues
            return [stat.broker_offset - stat.consumer_offset for stat in stats]

        assert lags() == [30] * 4
        stream.commit(end)
        assert lags() == [20] * 4
        last = stream.latest_offset(end, None)
        assert lags() == [20] * 4  # planned, but not finished
        assert stream.latest_offset(last, None) is last
        assert lags() == [0] * 4
    # Another stream, and a batch read, start at the committed offsets.
    other = open_stream(mq, topic="Orders", startingOffsets="group:Spark")
    assert other.initial_offset() == last


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


def test_an_invalid_group_name_is_refused(mq: LocalBroker) -> None:
    stream = earliest(mq, group="a b", commitOffsets="onCommit")
    with pytest.raises(InvalidOption, match="'group' is 'a b'"):
        stream.latest_offset(stream.initial_offset(), None)


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


# --- options ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"commitOffsets": "onCommit"}, "together with group"),
        ({"group": "g"}, "together with commitOffsets=onCommit, or none"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"view": "topics"}, "the other views are for batch reads"),
        ({"discoveryIntervalMs": 0}, "a whole number from 1"),
        ({"readFrom": "any"}, "master, slave"),
        ({"suspendTimeout": 1}, "pulls are not held"),
    ],
)
def test_options_refused_in_a_stream_of_brokers(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        option_texts.parse_stream(reading.texts({"nameServer": "x:1", **given}))


def test_options_of_streams_of_brokers_only() -> None:
    options = option_texts.parse({"nameServer": "x:1", "discoveryIntervalMs": "5"})
    with pytest.raises(InvalidOption, match="left out in a batch read, which discovers once"):
        option_texts.check_batch(options)
    with pytest.raises(InvalidOption, match="unless nameServer is set"):
        option_texts.parse({"path": "x", "discoveryIntervalMs": "5"})
