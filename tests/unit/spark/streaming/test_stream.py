"""Streams over store folders, without Spark: positions, limits, new and deleted queues."""

import itertools
import json
import logging
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import golden
import store_builder
from reput.clock import ManualClock
from reput.errors import CorruptRecord, InvalidOption, StoreUnavailable
from reput.format.message import StoredMessage
from reput.spark import options as option_texts, rows
from reput.spark.options import TriggerLimits
from reput.spark.store_planner import DataLoss
from reput.spark.streaming import stores as followed_stores
from reput.spark.streaming.positions import (
    CheckpointTooNew,
    Lag,
    Offset,
    QueueKey,
    decode,
    encode,
    lag_of,
)
from reput.spark.streaming.stream import QueueStream
from spark import reading

VERSION = pytest.mark.parametrize("version", golden.VERSIONS)
QUEUED = 48
"""Messages of ``store_builder.messages``, 12 in each of four queues."""


def open_stream(store: Path | str | None, **options: Any) -> QueueStream:
    path = {} if store is None else {"path": str(store)}
    parsed = option_texts.parse_stream({**path, **reading.texts(options)})
    columns = parsed.columns or list(rows.message_fields(parsed))
    return QueueStream(parsed, columns, options.get("clock"))


def batch_of(stream: QueueStream, start: Offset, end: Offset) -> list[reading.Row]:
    """Return the rows of a micro-batch, with offsets from a checkpoint and pickled tasks."""
    start, end = (json.loads(json.dumps(offset)) for offset in (start, end))
    rows_read: list[reading.Row] = []
    for task in pickle.loads(pickle.dumps(stream.tasks(start, end))):
        for batch in stream.read(task):
            batch.validate(full=True)
            rows_read += batch.to_pylist()
    for row in rows_read:
        if row.get("properties") is not None:
            row["properties"] = dict(row["properties"])
    return rows_read


def batches(
    stream: QueueStream, start: Offset, limits: TriggerLimits | None = None
) -> Iterator[list[reading.Row]]:
    """Yield every micro-batch after a position, until no messages are left."""
    while (end := stream.latest_offset(start, limits)) != start:
        yield batch_of(stream, start, end)
        start = end


def everything(stream: QueueStream, limits: TriggerLimits | None = None) -> list[reading.Row]:
    read_rows = [row for batch in batches(stream, stream.initial_offset(), limits) for row in batch]
    return sorted(read_rows, key=lambda row: row["physical_offset"])


def places(rows_read: list[reading.Row]) -> list[tuple[str, int, int]]:
    return sorted((row["topic"], row["queue_id"], row["queue_offset"]) for row in rows_read)


def places_of(messages: list[StoredMessage]) -> list[tuple[str, int, int]]:
    return sorted((message.topic, message.queue_id, message.queue_offset) for message in messages)


def earliest(store: Path | str, **options: Any) -> QueueStream:
    return open_stream(store, startingOffsets="earliest", **options)


@pytest.fixture
def grow(tmp_path: Path) -> Callable[..., store_builder.Built]:
    """Return ``write(count)``: builds the store of a running broker with ``count`` messages."""
    root = tmp_path / "store"

    def write(count: int, **more: Any) -> store_builder.Built:
        shutil.rmtree(root, ignore_errors=True)
        return store_builder.build(
            root, store_builder.messages(count), is_crashed=True, has_next_file=True, **more
        )

    return write


# --- rows -------------------------------------------------------------------


@VERSION
@pytest.mark.parametrize("name", ["clean", "ext"])
@pytest.mark.parametrize(
    "limits", [None, TriggerLimits(max_offsets=37), TriggerLimits(max_bytes=20_000)]
)
@pytest.mark.sampled(6)
def test_rows_equal_those_of_a_batch_read(
    version: str, name: str, limits: TriggerLimits | None
) -> None:
    store = golden.unpack(version, name)
    options = {"readIsolation": "all", "maxBytesPerPartition": "30k"}
    got = everything(earliest(store, **options), limits)
    assert got == reading.read(store, **options).messages


def test_messages_of_5x_batches_are_read_once_with_any_limit() -> None:
    names = [name for version, name in golden.STORES if version == "5.5.0"]
    batch_stores = [
        store
        for store in (golden.unpack("5.5.0", name) for name in names)
        if (store / "batchconsumequeue").is_dir()
    ]
    for store in batch_stores:
        for limits in (None, TriggerLimits(max_offsets=3), TriggerLimits(max_bytes=700)):
            got = everything(earliest(store, readIsolation="all"), limits)
            assert got == reading.read(store, readIsolation="all").messages
    assert batch_stores


def test_selections_apply_to_streams() -> None:
    store = golden.unpack("4.9.7", "clean")
    for options in (
        {"topic": "GoldenFour"},
        {"subscribePattern": "Golden.*", "tags": "TagA"},
        {"assign": {"GoldenFour": {"broker-a": [1, 3]}}},
        {"topic": "GoldenOne", "columns": "queue_offset,physical_offset", "includeBody": False},
        {"uniqKey": golden.messages("4.9.7", "clean")[5]["uniqKey"]},
        {},
    ):
        assert everything(earliest(store, **options)) == sorted(
            reading.read(store, **options).rows, key=lambda row: row["physical_offset"]
        )


# --- where streams start ----------------------------------------------------


def test_a_stream_starts_at_latest_and_reads_later_messages(grow: Any) -> None:
    built = grow(20)
    stream = open_stream(built.root, allowLive=True)
    start = stream.initial_offset()
    assert stream.latest_offset(start, None) is start
    assert start == {
        "$v": 1,
        "TopicA": {"": {"0": 5, "1": 5}},
        "TopicB": {"": {"0": 5, "1": 5}},
    }
    grown = grow(30)
    end = stream.latest_offset(start, None)
    assert places(batch_of(stream, start, end)) == places_of(grown.messages[20:])
    assert batch_of(stream, end, end) == []


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"startingOffsets": "earliest"}, [0, 0, 0, 0]),
        ({"startingOffsets": "latest"}, [12, 12, 12, 12]),
        ({"startingOffsets": {"TopicA": {"b": {"0": 3, "1": -1}}}}, [3, 12, 0, 0]),
        ({"startingOffsets": {"TopicB": {"b": {"1": -2}}}}, [0, 0, 0, 0]),
        ({"startingTimestamp": store_builder.START_MS + 7 * 8}, [2, 2, 2, 2]),
        ({"startingTimestamp": store_builder.START_MS + 7 * 9}, [3, 2, 2, 2]),
        (
            {"startingOffsetsByTimestamp": {"TopicA": {"b": {"0": store_builder.START_MS + 1}}}},
            [1, 12, 12, 12],
        ),
    ],
)
def test_starting_positions(grow: Any, options: dict[str, Any], want: list[int]) -> None:
    built = grow(QUEUED)
    start = open_stream(built.root, allowLive=True, broker="b", **options).initial_offset()
    queues = [start[topic]["b"][queue] for topic in ("TopicA", "TopicB") for queue in ("0", "1")]
    assert queues == want


def test_a_stream_starts_at_the_offsets_of_a_group() -> None:
    store = golden.unpack("4.9.7", "clean")
    table = golden.manifest("4.9.7", "clean")["consumerOffsets"]
    read_topics = {message["topic"] for message in golden.messages("4.9.7", "clean")}
    name, offsets = next(
        (name, offsets) for name, offsets in table.items() if name.split("@")[0] in read_topics
    )
    topic, group = name.split("@")
    stream = open_stream(store, startingOffsets=f"group:{group}", topic=topic)
    queues = stream.initial_offset()[topic][reading.BROKER]
    assert {queue: queues[queue] for queue in offsets} == offsets


def test_late_times_follow_their_strategy(grow: Any) -> None:
    late = {"TopicA": {"b": {"0": store_builder.START_MS + 10**9}}}
    root = grow(QUEUED).root
    given_options = {"allowLive": True, "broker": "b", "startingOffsetsByTimestamp": late}
    with pytest.raises(InvalidOption, match="startingOffsetsByTimestampStrategy=latest"):
        open_stream(root, **given_options).initial_offset()
    stream = open_stream(root, startingOffsetsByTimestampStrategy="latest", **given_options)
    assert stream.initial_offset()["TopicA"]["b"]["0"] == 12


def test_a_missing_named_topic_or_queue_is_an_error(grow: Any) -> None:
    root = grow(QUEUED).root
    with pytest.raises(DataLoss, match="topic 'Nope' is not in"):
        open_stream(root, allowLive=True, topic="Nope").initial_offset()
    with pytest.raises(DataLoss, match="holds 0 to 12, asked for were 40"):
        open_stream(
            root, allowLive=True, broker="b", startingOffsets={"TopicA": {"b": {"0": 40}}}
        ).initial_offset()
    with pytest.raises(InvalidOption, match="brokers of the stores: b"):
        open_stream(
            root, allowLive=True, broker="b", startingOffsets={"TopicA": {"c": {"0": 4}}}
        ).initial_offset()
    waiting = open_stream(root, allowLive=True, topic="Nope", failOnDataLoss=False)
    assert waiting.initial_offset() == {"$v": 1}
    assert waiting.latest_offset({}, None) == {}


# --- limits -----------------------------------------------------------------


def test_a_limit_of_messages_is_shared_in_proportion_to_the_backlog(grow: Any) -> None:
    root = grow(QUEUED).root
    stream = earliest(root, allowLive=True)
    sizes = []
    for batch in batches(stream, stream.initial_offset(), TriggerLimits(max_offsets=10)):
        sizes.append(len(batch))
        queues = Counter((row["topic"], row["queue_id"]) for row in batch)
        assert len(queues) == 4 or len(batch) < 10
        assert max(queues.values()) - min(queues.values()) <= 1
    assert sizes == [10, 10, 10, 10, 8]


def test_a_limit_below_the_queue_count_takes_the_oldest_messages(grow: Any) -> None:
    built = grow(QUEUED)
    stream = earliest(built.root, allowLive=True)
    offsets = [
        batch[0]["physical_offset"]
        for batch in batches(stream, stream.initial_offset(), TriggerLimits(max_offsets=1))
    ]
    assert offsets == [message.physical_offset for message in built.messages]


@pytest.mark.parametrize("limit", [300, 1000, 2500, 10**6])
def test_a_limit_of_bytes_is_exact(grow: Any, limit: int) -> None:
    built = grow(QUEUED)
    stream = earliest(built.root, allowLive=True)
    read = [*batches(stream, stream.initial_offset(), TriggerLimits(max_bytes=limit))]
    largest = max(message.store_size for message in built.messages)
    sizes = [sum(row["store_size"] for row in batch) for batch in read]
    assert all(size <= max(limit, largest) for size in sizes)
    # All but the last are full: no waiting message would have fitted if all had one size.
    assert all(size > limit - largest for size in sizes[:-1])
    assert places([row for batch in read for row in batch]) == places_of(built.messages)


def test_a_message_larger_than_the_limit_is_read_alone(grow: Any) -> None:
    built = grow(QUEUED)
    stream = earliest(built.root, allowLive=True)
    read_batches = [*batches(stream, stream.initial_offset(), TriggerLimits(max_bytes=1))]
    assert [len(batch) for batch in read_batches] == [1] * QUEUED
    assert [batch[0]["physical_offset"] for batch in read_batches] == [
        message.physical_offset for message in built.messages
    ]


def test_both_limits_apply_together(grow: Any) -> None:
    stream = earliest(grow(QUEUED).root, allowLive=True)
    limits = TriggerLimits(max_offsets=10, max_bytes=2000)
    for batch in batches(stream, stream.initial_offset(), limits):
        assert len(batch) <= 10
        assert sum(row["store_size"] for row in batch) <= 2000


def test_a_batch_waits_for_the_minimum_up_to_the_maximum_delay(grow: Any) -> None:
    clock = ManualClock()
    root = grow(8).root
    parsed = option_texts.parse_stream({"path": str(root), "allowLive": "true"})
    stream = QueueStream(parsed, ["queue_offset", "physical_offset"], clock)
    limits = TriggerLimits(min_offsets=10, max_delay_ms=1000)
    start = stream.initial_offset()
    clock.advance(5000)
    assert stream.latest_offset(start, limits) is start  # no messages wait, so no delay passes
    grow(12)
    assert stream.latest_offset(start, limits) is start
    clock.advance(999)
    assert stream.latest_offset(start, limits) is start
    assert lag_of(stream.report() or {}).messages == 4
    clock.advance(1)
    end = stream.latest_offset(start, limits)
    assert len(batch_of(stream, start, end)) == 4
    grow(22)
    late = stream.latest_offset(end, limits)  # enough messages: without delay
    assert len(batch_of(stream, end, late)) == 10
    grow(23)
    assert stream.latest_offset(late, limits) is late  # the delay starts now
    assert stream.latest_offset(late, None) != late  # unless there is no limit


def test_a_frozen_stream_ends_at_the_messages_of_its_start(grow: Any) -> None:
    built = grow(20)
    stream = earliest(
        built.root, allowLive=True, topic="TopicA,TopicB,TopicC", failOnDataLoss=False
    )
    stream.freeze()
    start = stream.initial_offset()
    limits = TriggerLimits(max_offsets=7, min_offsets=1000)
    more = [*store_builder.messages(30), store_builder.message("TopicC")]
    shutil.rmtree(built.root)
    store_builder.build(built.root, more, is_crashed=True)
    read_rows = [row for batch in batches(stream, start, limits) for row in batch]
    assert places(read_rows) == places_of(built.messages)
    assert lag_of(stream.report() or {}).messages == 11


def test_a_frozen_stream_that_starts_after_its_end_reads_nothing(grow: Any) -> None:
    stream = open_stream(grow(20).root, allowLive=True)
    stream.freeze()
    grow(24)
    start = stream.initial_offset()
    assert stream.latest_offset(start, None) is start


# --- new and deleted queues ---------------------------------------------------


def test_new_topics_and_queues_are_read_from_their_start(tmp_path: Path) -> None:
    root = tmp_path / "store"
    first = [store_builder.message("TopicA", b"%d" % i) for i in range(5)]
    store_builder.build(root, first, is_crashed=True)
    stream = open_stream(root, allowLive=True)
    start = stream.initial_offset()
    more = [
        *(store_builder.message("TopicA", b"q", queue_id=2) for _ in range(3)),
        *(store_builder.message("TopicB", b"b") for _ in range(2)),
    ]
    shutil.rmtree(root)
    built = store_builder.build(root, first + more, is_crashed=True)
    end = stream.latest_offset(start, None)
    assert places(batch_of(stream, start, end)) == places_of(built.messages[5:])
    assert end == {"$v": 1, "TopicA": {"": {"0": 5, "2": 3}}, "TopicB": {"": {"0": 2}}}


def test_a_repeated_batch_of_a_new_queue_above_zero_is_unchanged(tmp_path: Path) -> None:
    root = tmp_path / "store"
    first = [store_builder.message("TopicA")]
    store_builder.build(root, first, is_crashed=True)
    stream = open_stream(root, allowLive=True)
    start = stream.initial_offset()
    more = [store_builder.message("TopicB", b"%d" % i) for i in range(6)]
    places_above = {("TopicB", 0): 107}
    shutil.rmtree(root)
    built = store_builder.build(root, first + more, queue_offsets=places_above, is_crashed=True)
    middle = stream.latest_offset(start, TriggerLimits(max_offsets=4))
    assert middle == {
        "$v": 1,
        "$starts": {"TopicB": {"": {"0": 107}}},
        "TopicA": {"": {"0": 1}},
        "TopicB": {"": {"0": 111}},
    }
    end = stream.latest_offset(middle, None)
    assert end == {"$v": 1, "TopicA": {"": {"0": 1}}, "TopicB": {"": {"0": 113}}}
    again = open_stream(root, allowLive=True)
    read_rows = batch_of(again, start, middle) + batch_of(again, middle, end)
    assert places(read_rows) == places_of(built.messages[1:])


def expire(built: store_builder.Built, files: int) -> int:
    """Delete the first files of the log, like a broker; return the new start of the log."""
    for file in sorted((built.root / "commitlog").iterdir())[:files]:
        file.unlink()
    return files * built.log_file_bytes


def test_expired_messages_are_an_error_with_their_offsets(grow: Any) -> None:
    built = grow(QUEUED)
    stream = earliest(built.root, allowLive=True)
    start = stream.initial_offset()
    end = stream.latest_offset(start, None)
    log_start = expire(built, 1)
    left = [message for message in built.messages if message.physical_offset >= log_start]
    first = min(message.queue_offset for message in left if message.topic == "TopicA")
    assert first > 0
    text = rf"queue TopicA/0 holds {first} to 12, requested is 0 on: messages 0 to {first} have exp"
    again = earliest(built.root, allowLive=True)
    with pytest.raises(DataLoss, match=text + r".*failOnDataLoss=false"):
        again.latest_offset(start, None)
    with pytest.raises(DataLoss, match="requested is 0 to 12"):
        again.tasks(start, end)


def test_expired_messages_are_skipped_and_logged_once_if_configured(
    grow: Any, caplog: pytest.LogCaptureFixture
) -> None:
    built = grow(QUEUED)
    start = earliest(built.root, allowLive=True).initial_offset()
    log_start = expire(built, 1)
    stream = earliest(built.root, allowLive=True, failOnDataLoss=False)
    with caplog.at_level(logging.WARNING, "reput.spark"):
        rows_read = [
            row for batch in batches(stream, start, TriggerLimits(max_offsets=9)) for row in batch
        ]
    left = [message for message in built.messages if message.physical_offset >= log_start]
    assert places(rows_read) == places_of(left)
    assert any("queue TopicB/1 holds" in line for line in caplog.messages)
    assert lag_of(stream.report() or {}).data_losses >= 4


def test_messages_that_expire_between_plan_and_task_are_an_error_too(grow: Any) -> None:
    built = grow(QUEUED)
    for options, is_error in (({}, True), ({"failOnDataLoss": False}, False)):
        built = grow(QUEUED)
        stream = earliest(built.root, allowLive=True, **options)
        start = stream.initial_offset()
        tasks = stream.tasks(start, stream.latest_offset(start, None))
        log_start = expire(built, 1)
        if is_error:
            with pytest.raises(
                DataLoss, match=r"queue Topic\w/\d of .* has \d+ of the 12 messages"
            ):
                [batch for task in tasks for batch in stream.read(task)]
            continue
        read_rows = [
            row for task in tasks for batch in stream.read(task) for row in batch.to_pylist()
        ]
        left = [message for message in built.messages if message.physical_offset >= log_start]
        assert places(read_rows) == places_of(left)


def test_missing_units_in_the_middle_are_an_error(grow: Any) -> None:
    built = grow(200)
    files = sorted((built.root / "consumequeue" / "TopicA" / "0").iterdir())
    assert len(files) > 2
    files[1].unlink()
    stream = earliest(built.root, allowLive=True)
    with pytest.raises(DataLoss, match=r"queue TopicA/0 of .* has 30 of the 50 messages 0 to 50"):
        everything(stream)
    kept = everything(earliest(built.root, allowLive=True, failOnDataLoss=False))
    assert len(kept) == 180


def test_a_truncated_queue_is_an_error_or_read_from_its_end(grow: Any) -> None:
    root = grow(QUEUED).root
    stream = earliest(root, allowLive=True)
    start = stream.latest_offset(stream.initial_offset(), None)
    grow(40)
    text = "queue TopicA/0 holds 0 to 10, requested is 12 on: it was truncated, or recreated"
    with pytest.raises(DataLoss, match=text):
        earliest(root, allowLive=True).latest_offset(start, None)
    lenient = earliest(root, allowLive=True, failOnDataLoss=False)
    end = lenient.latest_offset(start, None)
    assert end["TopicA"][""] == {"0": 10, "1": 10}
    assert batch_of(lenient, start, end) == []
    grown = grow(44)
    later = lenient.latest_offset(end, None)
    assert places(batch_of(lenient, end, later)) == places_of(grown.messages[40:])


def test_a_deleted_topic_is_an_error_or_dropped(grow: Any) -> None:
    root = grow(QUEUED).root
    stream = earliest(root, allowLive=True)
    start = stream.latest_offset(stream.initial_offset(), None)
    shutil.rmtree(root / "consumequeue" / "TopicB")
    text = r"queue TopicB/0 is missing from .*store, requested is 12 on"
    with pytest.raises(DataLoss, match=text):
        earliest(root, allowLive=True).latest_offset(start, None)
    lenient = earliest(root, allowLive=True, failOnDataLoss=False)
    end = lenient.latest_offset(start, None)
    assert end == {"$v": 1, "TopicA": {"": {"0": 12, "1": 12}}}
    grow(QUEUED)  # created again: read from its start
    later = lenient.latest_offset(end, None)
    assert len(batch_of(lenient, end, later)) == 24


def test_deselected_queues_keep_their_position(grow: Any) -> None:
    root = grow(20).root
    stream = earliest(root, allowLive=True)
    start = stream.latest_offset(stream.initial_offset(), None)
    grow(QUEUED)
    narrow = earliest(root, allowLive=True, topic="TopicA")
    middle = narrow.latest_offset(start, None)
    assert {row["topic"] for row in batch_of(narrow, start, middle)} == {"TopicA"}
    assert middle["TopicB"] == start["TopicB"]
    end = stream.latest_offset(middle, None)
    assert len(batch_of(stream, middle, end)) == 14


# --- stores -----------------------------------------------------------------


def test_a_unit_without_its_record_waits(grow: Any) -> None:
    built = grow(QUEUED)
    last = built.messages[-1]
    file = built.root / "commitlog" / f"{last.physical_offset - last.physical_offset % 4096:020d}"
    data = bytearray(file.read_bytes())
    place = last.physical_offset % 4096
    kept = bytes(data[place : place + last.store_size])
    data[place : place + last.store_size] = bytes(last.store_size)
    file.write_bytes(data)
    stream = earliest(built.root, allowLive=True)
    start = stream.initial_offset()
    middle = stream.latest_offset(start, None)
    assert places(batch_of(stream, start, middle)) == places_of(built.messages[:-1])
    data[place : place + last.store_size] = kept
    file.write_bytes(data)
    end = stream.latest_offset(middle, None)
    assert places(batch_of(stream, middle, end)) == places_of([last])


def test_a_crashed_store_is_read_up_to_the_end_of_its_log() -> None:
    store = golden.unpack("4.9.7", "torn/cq-ahead")
    want = reading.damaged("4.9.7", "cq-ahead").good
    stream = earliest(store, readIsolation="all", failOnDataLoss=False)
    assert reading.offsets(everything(stream)) == reading.message_offsets(want)


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED", "PERMISSIVE", "SALVAGE"])
def test_damage_is_treated_as_in_a_batch_read(mode: str) -> None:
    store = golden.unpack("4.9.7", "torn/crc-late")
    stream = earliest(store, readIsolation="all", mode=mode)
    if mode == "FAILFAST":
        with pytest.raises(CorruptRecord, match="body does not match BODYCRC"):
            everything(stream)
        return
    got = everything(stream)
    bad = reading.damaged("4.9.7", "crc-late").runs
    messages = golden.messages("4.9.7", "clean")
    assert len(got) == len(messages) - (mode == "DROPMALFORMED")
    if mode != "DROPMALFORMED":
        assert [row["physical_offset"] for row in got if row["_corrupt_record"]] == [bad[0][0]]


def test_stopped_stores_are_opened_again_only_after_changes(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store_builder.build(root, store_builder.messages(20))
    stream = earliest(root)
    start = stream.initial_offset()
    middle = stream.latest_offset(start, None)
    assert len(batch_of(stream, start, middle)) == 20
    tasks = stream.tasks(start, middle) + stream.tasks(start, middle)
    assert len({task.facts.plan for task in tasks}) == 1
    shutil.rmtree(root)
    grown = store_builder.build(root, store_builder.messages(40))
    end = stream.latest_offset(middle, None)
    assert places(batch_of(stream, middle, end)) == places_of(grown.messages[20:])
    assert stream.tasks(middle, end)[0].facts.plan != tasks[0].facts.plan


def test_several_stores_are_identified_by_their_brokers(tmp_path: Path) -> None:
    stores = [tmp_path / name / "store" for name in ("a", "b")]
    for store, count in zip(stores, (10, 20), strict=True):
        store_builder.build(store, store_builder.messages(count))
    both = json.dumps([str(store) for store in stores])
    with pytest.raises(StoreUnavailable, match="stream each store separately"):
        open_stream(None, paths=both).initial_offset()
    for store in stores:
        name = f"broker-{store.parent.name}"
        config = store / "config"
        config.mkdir(exist_ok=True)
        table = {name: {"topicName": name, "perm": 7, "readQueueNums": 1, "writeQueueNums": 1}}
        (config / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    stream = open_stream(None, paths=both, startingOffsets="earliest")
    assert set(stream.initial_offset()["TopicA"]) == {"broker-a", "broker-b"}
    read_rows = everything(stream, TriggerLimits(max_offsets=3))
    assert Counter(row["broker"] for row in read_rows) == {"broker-a": 10, "broker-b": 20}


def test_a_single_store_keeps_its_name_in_a_checkpoint(grow: Any) -> None:
    root = grow(20).root
    start = earliest(root, allowLive=True).initial_offset()
    stream = earliest(root, allowLive=True, broker="named-later")
    end = stream.latest_offset(start, None)
    assert set(end["TopicA"]) == {""}
    assert {row["broker"] for row in batch_of(stream, start, end)} == {"named-later"}


def test_a_store_with_a_running_broker_needs_allow_live(grow: Any) -> None:
    stream = earliest(grow(20).root / "nowhere")
    with pytest.raises(StoreUnavailable):
        stream.initial_offset()


# --- partitions -------------------------------------------------------------


def test_a_partition_is_a_part_of_the_log(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(400))
    stream = earliest(built.root, maxBytesPerPartition="8k")
    start = stream.initial_offset()
    tasks = stream.tasks(start, stream.latest_offset(start, None))
    spans = []
    for task in tasks:
        read_rows = [row for batch in stream.read(task) for row in batch.to_pylist()]
        assert sum(row["store_size"] for row in read_rows) <= 8 * 1024 * 1.3
        offsets = [row["physical_offset"] for row in read_rows]
        spans.append((min(offsets), max(offsets)))
    total = sum(message.store_size for message in built.messages)
    assert len(tasks) <= 2 * (total // 8192 + 1)
    # Partitions overlap only by the messages that one reads above its size.
    overlaps = sum(low < before for (_, before), (low, _) in itertools.pairwise(spans))
    assert overlaps <= len(spans) // 2


def test_minimum_partitions_and_maximum_records_per_partition(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(200))
    for options in ({"minPartitions": 7}, {"maxRecordsPerPartition": 30}):
        stream = earliest(built.root, **options)
        start = stream.initial_offset()
        tasks = stream.tasks(start, stream.latest_offset(start, None))
        counts = [sum(batch.num_rows for batch in stream.read(task)) for task in tasks]
        assert len(counts) >= 7
        assert sum(counts) == 200
        if "maxRecordsPerPartition" in options:
            assert max(counts) <= 30


# --- progress ---------------------------------------------------------------


def test_progress_has_ends_and_lag(grow: Any) -> None:
    built = grow(QUEUED)
    stream = earliest(built.root, allowLive=True)
    assert stream.report() is None
    start = stream.initial_offset()
    end = stream.latest_offset(start, TriggerLimits(max_offsets=20))
    report = stream.report()
    assert report is not None
    done = {tuple(place) for place in places(batch_of(stream, start, end))}
    rest = [m for m in built.messages if (m.topic, m.queue_id, m.queue_offset) not in done]
    lag = lag_of(json.dumps(report))
    assert lag.messages == 28
    assert lag.bytes == sum(message.store_size for message in rest)
    assert lag.oldest_store_timestamp == min(message.store_timestamp for message in rest)
    assert lag.data_losses == 0
    assert report["TopicA"] == {"": {"0": 12, "1": 12}}
    last = stream.latest_offset(end, None)
    assert lag_of(stream.report() or {}) == Lag(0, 0, None, 0)
    assert stream.latest_offset(last, None) is last


# --- positions --------------------------------------------------------------

KEYS = st.builds(
    QueueKey, st.text("ab%-", min_size=1), st.text("xyz"), st.integers(min_value=0, max_value=99)
)
POSITIONS = st.dictionaries(KEYS, st.integers(min_value=0, max_value=(1 << 63) - 1))


@given(POSITIONS, POSITIONS, st.randoms())
@settings(max_examples=50)
def test_positions_have_a_canonical_text(
    positions: dict[QueueKey, int], starts: dict[QueueKey, int], random: Any
) -> None:
    text = json.dumps(encode(positions, starts))
    assert decode(json.loads(text)) == (positions, starts)
    shuffled = list(positions.items())
    random.shuffle(shuffled)
    assert json.dumps(encode(dict(shuffled), starts)) == text
    del (of_old := json.loads(text))["$v"]
    assert decode(of_old) == (positions, starts)


def test_positions_of_a_later_release_are_refused(grow: Any) -> None:
    stream = earliest(grow(QUEUED).root, allowLive=True)
    later = {**stream.initial_offset(), "$v": 2}
    text = "positions of version 2, this release of reput reads version 1: continue the query with"
    for call in (
        lambda: stream.latest_offset(later, None),
        lambda: stream.tasks(later, later),
        lambda: stream.commit(later),
    ):
        with pytest.raises(CheckpointTooNew, match=text):
            call()


def test_an_archive_cannot_be_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_builder.build(tmp_path / "store", store_builder.messages(4))
    monkeypatch.setattr(followed_stores.archive_files, "is_archive", lambda path: True)
    with pytest.raises(StoreUnavailable, match=r"is an archive.*spark\.read"):
        earliest(tmp_path / "store").initial_offset()
