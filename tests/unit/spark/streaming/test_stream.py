"""Streams over store folders, without Spark: positions, limits, new and deleted queues."""

import itertools
import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import golden
import store_builder
from reput.clock import ManualClock
from reput.errors import CorruptRecord, InvalidOption, StoreUnavailable
from reput.format.message import StoredMessage
from reput.spark.options import TriggerLimits
from reput.spark.store_planner import DataLoss
from reput.spark.streaming import stores as followed_stores
from reput.spark.streaming.positions import (
    CheckpointTooNew,
    Lag,
    QueueKey,
    decode,
    encode,
    lag_of,
)
from reput.spark.streaming.stream import QueueStream
from spark import reading, streams
from spark.streams import batch_of, batches, everything, places, places_of

QUEUED = 48
"""Messages of ``store_builder.messages``, 12 in each of four queues."""


def open_stream(store: Path | str, **options: Any) -> QueueStream:
    return streams.open_stream(path=store, **{"allowLive": True, **options})


GOLDEN: dict[str, Any] = {"allowLive": False, "readIsolation": "all"}
"""Options of reads of golden stores."""


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


def test_messages_of_extended_and_batch_queues_are_read_once_with_any_limit() -> None:
    names = [name for version, name in golden.STORES if version == "5.5.0"]
    stores = [
        store
        for store in (golden.unpack("5.5.0", name) for name in names)
        if (store / "batchconsumequeue").is_dir()
    ]
    assert stores
    for store in (golden.unpack("4.9.7", "ext"), *stores):
        want = reading.read(store, readIsolation="all").messages
        for limits in (None, TriggerLimits(max_offsets=3), TriggerLimits(max_bytes=700)):
            assert everything(earliest(store, **GOLDEN), limits) == want


# --- where streams start ----------------------------------------------------


def test_a_stream_starts_at_latest_and_reads_later_messages(grow: Any) -> None:
    stream = open_stream(grow(20).root)
    start = stream.initial_offset()
    assert stream.latest_offset(start, None) is start
    five = {"": {"0": 5, "1": 5}}
    assert start == {"$v": 1, "TopicA": five, "TopicB": five}
    grown = grow(30)
    end = stream.latest_offset(start, None)
    assert places(batch_of(stream, start, end)) == places_of(grown.messages[20:])
    assert batch_of(stream, end, end) == []


def test_starting_positions(grow: Any) -> None:
    root, start_ms = grow(QUEUED).root, store_builder.START_MS
    for options, want in (
        ({"startingOffsets": "earliest"}, [0, 0, 0, 0]),
        ({"startingOffsets": "latest"}, [12, 12, 12, 12]),
        ({"startingOffsets": {"TopicA": {"b": {"0": 3, "1": -1}}}}, [3, 12, 0, 0]),
        ({"startingOffsets": {"TopicB": {"b": {"1": -2}}}}, [0, 0, 0, 0]),
        ({"startingTimestamp": start_ms + 7 * 8}, [2, 2, 2, 2]),
        ({"startingTimestamp": start_ms + 7 * 9}, [3, 2, 2, 2]),
        ({"startingOffsetsByTimestamp": {"TopicA": {"b": {"0": start_ms + 1}}}}, [1, 12, 12, 12]),
    ):
        start = open_stream(root, broker="b", **options).initial_offset()
        assert [start[f"Topic{t}"]["b"][queue] for t in "AB" for queue in "01"] == want, options
    late = {"startingOffsetsByTimestamp": {"TopicA": {"b": {"0": start_ms + 10**9}}}, "broker": "b"}
    with pytest.raises(InvalidOption, match="startingOffsetsByTimestampStrategy=latest"):
        open_stream(root, **late).initial_offset()
    stream = open_stream(root, startingOffsetsByTimestampStrategy="latest", **late)
    assert stream.initial_offset()["TopicA"]["b"]["0"] == 12


def test_a_stream_starts_at_the_offsets_of_a_group() -> None:
    table = golden.manifest("4.9.7", "clean")["consumerOffsets"]
    topics = {message["topic"] for message in golden.messages("4.9.7", "clean")}
    name, offsets = next(row for row in table.items() if row[0].split("@")[0] in topics)
    topic, group = name.split("@")
    options = {"startingOffsets": f"group:{group}", "topic": topic, "allowLive": False}
    start = open_stream(golden.unpack("4.9.7", "clean"), **options).initial_offset()
    queues = start[topic][reading.BROKER]
    assert {queue: queues[queue] for queue in offsets} == offsets


def test_a_missing_named_topic_or_queue_is_an_error(grow: Any) -> None:
    root = grow(QUEUED).root
    refusals: tuple[tuple[type[Exception], str, dict[str, Any]], ...] = (
        (DataLoss, "topic 'Nope' is not in", {"topic": "Nope"}),
        (
            DataLoss,
            "holds 0 to 12, asked for were 40",
            {"startingOffsets": {"TopicA": {"b": {"0": 40}}}},
        ),
        (
            InvalidOption,
            "brokers of the stores: b",
            {"startingOffsets": {"TopicA": {"c": {"0": 4}}}},
        ),
    )
    for kind, text, options in refusals:
        with pytest.raises(kind, match=text):
            open_stream(root, broker="b", **options).initial_offset()
    waiting = open_stream(root, topic="Nope", failOnDataLoss=False)
    assert waiting.initial_offset() == {"$v": 1}
    assert waiting.latest_offset({}, None) == {}
    with pytest.raises(StoreUnavailable):
        earliest(root / "nowhere").initial_offset()


# --- limits -----------------------------------------------------------------


def test_limits(grow: Any) -> None:
    """Below the number of queues the oldest messages are taken; else shares follow the backlog."""
    built = grow(QUEUED)
    largest = max(message.store_size for message in built.messages)
    stream = earliest(built.root)
    for count, size in (
        *((1, None), (10, None), (None, 1)),
        *((None, 300), (None, 1000), (None, 2500), (None, 10**6), (10, 2000)),
    ):
        limits = TriggerLimits(max_offsets=count, max_bytes=size)
        read = [*batches(stream, stream.initial_offset(), limits)]
        assert places(itertools.chain(*read)) == places_of(built.messages)
        sizes = [sum(row["store_size"] for row in batch) for batch in read]
        if 1 in (count, size):
            assert [[row["physical_offset"] for row in batch] for batch in read] == [
                [message.physical_offset] for message in built.messages
            ]
        elif count and size:
            assert max(map(len, read)) <= count
            assert max(sizes) <= size
        elif count:
            assert [len(batch) for batch in read] == [10, 10, 10, 10, 8]
            for batch in read:
                queues = Counter((row["topic"], row["queue_id"]) for row in batch)
                assert len(queues) == 4 or len(batch) < 10
                assert max(queues.values()) - min(queues.values()) <= 1
        elif size:
            assert max(sizes) <= max(size, largest)
            # All but the last are full: no waiting message would have fitted if all had one size.
            assert all(each > size - largest for each in sizes[:-1])


def test_a_batch_waits_for_the_minimum_up_to_the_maximum_delay(grow: Any) -> None:
    clock = ManualClock()
    stream = open_stream(grow(8).root, clock=clock)
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
    stream = earliest(built.root, topic="TopicA,TopicB,TopicC", failOnDataLoss=False)
    stream.freeze()
    start = stream.initial_offset()
    more = [*store_builder.messages(30), store_builder.message("TopicC")]
    shutil.rmtree(built.root)
    store_builder.build(built.root, more, is_crashed=True)
    limits = TriggerLimits(max_offsets=7, min_offsets=1000)
    assert places(itertools.chain(*batches(stream, start, limits))) == places_of(built.messages)
    assert lag_of(stream.report() or {}).messages == 11
    # One that starts after its end reads nothing.
    stream = open_stream(grow(20).root)
    stream.freeze()
    grow(24)
    start = stream.initial_offset()
    assert stream.latest_offset(start, None) is start


# --- new and deleted queues ---------------------------------------------------


def test_new_topics_and_queues_are_read_from_their_start(tmp_path: Path) -> None:
    root = tmp_path / "store"
    first = [store_builder.message("TopicA", b"%d" % i) for i in range(5)]
    store_builder.build(root, first, is_crashed=True)
    stream = open_stream(root)
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
    stream = open_stream(root)
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
    again = open_stream(root)
    read_rows = batch_of(again, start, middle) + batch_of(again, middle, end)
    assert places(read_rows) == places_of(built.messages[1:])


def expire(built: store_builder.Built, files: int) -> list[StoredMessage]:
    """Delete the first files of the log, like a broker; return the messages that are left."""
    for file in sorted((built.root / "commitlog").iterdir())[:files]:
        file.unlink()
    log_start = files * built.log_file_bytes
    return [message for message in built.messages if message.physical_offset >= log_start]


def test_expired_messages_are_an_error_or_skipped(
    grow: Any, caplog: pytest.LogCaptureFixture
) -> None:
    built = grow(QUEUED)
    start = earliest(built.root).initial_offset()
    end = earliest(built.root).latest_offset(start, None)
    planned = {
        is_strict: [stream, stream.tasks(start, end)]
        for is_strict in (True, False)
        for stream in [earliest(built.root, failOnDataLoss=is_strict)]
    }
    left = expire(built, 1)
    first = min(message.queue_offset for message in left if message.topic == "TopicA")
    assert first > 0
    text = rf"queue TopicA/0 holds {first} to 12, requested is 0 on: messages 0 to {first} have exp"
    with pytest.raises(DataLoss, match=text + r".*failOnDataLoss=false"):
        earliest(built.root).latest_offset(start, None)
    with pytest.raises(DataLoss, match="requested is 0 to 12"):
        earliest(built.root).tasks(start, end)
    stream = earliest(built.root, failOnDataLoss=False)
    with caplog.at_level(logging.WARNING, "reput.spark"):
        read = itertools.chain(*batches(stream, start, TriggerLimits(max_offsets=9)))
        assert places(read) == places_of(left)
    assert any("queue TopicB/1 holds" in line for line in caplog.messages)
    assert lag_of(stream.report() or {}).data_losses >= 4
    # Between plan and task.
    with pytest.raises(DataLoss, match=r"queue Topic\w/\d of .* has \d+ of the 12 messages"):
        streams.rows_of(*planned[True])
    assert places(streams.rows_of(*planned[False])) == places_of(left)


def test_missing_units_in_the_middle_are_an_error(grow: Any) -> None:
    built = grow(200)
    files = sorted((built.root / "consumequeue" / "TopicA" / "0").iterdir())
    assert len(files) > 2
    files[1].unlink()
    stream = earliest(built.root)
    with pytest.raises(DataLoss, match=r"queue TopicA/0 of .* has 30 of the 50 messages 0 to 50"):
        everything(stream)
    kept = everything(earliest(built.root, failOnDataLoss=False))
    assert len(kept) == 180


def test_a_truncated_queue_is_an_error_or_read_from_its_end(grow: Any) -> None:
    root = grow(QUEUED).root
    start = earliest(root).latest_offset({}, None)
    grow(40)
    text = "queue TopicA/0 holds 0 to 10, requested is 12 on: it was truncated, or recreated"
    with pytest.raises(DataLoss, match=text):
        earliest(root).latest_offset(start, None)
    lenient = earliest(root, failOnDataLoss=False)
    end = lenient.latest_offset(start, None)
    assert end["TopicA"][""] == {"0": 10, "1": 10}
    assert batch_of(lenient, start, end) == []
    grown = grow(44)
    later = lenient.latest_offset(end, None)
    assert places(batch_of(lenient, end, later)) == places_of(grown.messages[40:])


def test_a_deleted_topic_is_an_error_or_dropped(grow: Any) -> None:
    root = grow(QUEUED).root
    start = earliest(root).latest_offset({}, None)
    shutil.rmtree(root / "consumequeue" / "TopicB")
    text = r"queue TopicB/0 is missing from .*store, requested is 12 on"
    with pytest.raises(DataLoss, match=text):
        earliest(root).latest_offset(start, None)
    lenient = earliest(root, failOnDataLoss=False)
    end = lenient.latest_offset(start, None)
    assert end == {"$v": 1, "TopicA": {"": {"0": 12, "1": 12}}}
    grow(QUEUED)  # created again: read from its start
    later = lenient.latest_offset(end, None)
    assert len(batch_of(lenient, end, later)) == 24


def test_deselected_queues_keep_their_position(grow: Any) -> None:
    root = grow(20).root
    stream = earliest(root)
    start = stream.latest_offset({}, None)
    grow(QUEUED)
    narrow = earliest(root, topic="TopicA")
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
    stream = earliest(built.root)
    start = stream.initial_offset()
    middle = stream.latest_offset(start, None)
    assert places(batch_of(stream, start, middle)) == places_of(built.messages[:-1])
    data[place : place + last.store_size] = kept
    file.write_bytes(data)
    end = stream.latest_offset(middle, None)
    assert places(batch_of(stream, middle, end)) == places_of([last])


def test_a_crashed_store_is_read_up_to_the_end_of_its_log() -> None:
    stream = earliest(golden.unpack("4.9.7", "torn/cq-ahead"), failOnDataLoss=False, **GOLDEN)
    want = reading.damaged("4.9.7", "cq-ahead").good
    assert reading.offsets(everything(stream)) == reading.message_offsets(want)


def test_damage_is_treated_as_in_a_batch_read() -> None:
    store = golden.unpack("4.9.7", "torn/crc-late")
    with pytest.raises(CorruptRecord, match="body does not match BODYCRC"):
        everything(earliest(store, **GOLDEN))
    for mode in ("DROPMALFORMED", "PERMISSIVE", "SALVAGE"):
        want = reading.read(store, mode=mode, readIsolation="all").rows
        got = everything(earliest(store, mode=mode, **GOLDEN))
        columns = ("physical_offset", "_corrupt_record")
        assert [[row.get(name) for name in columns] for row in got] == [
            [row.get(name) for name in columns]
            for row in sorted(want, key=lambda row: row["physical_offset"])
        ]


def test_stopped_stores_are_opened_again_only_after_changes(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store_builder.build(root, store_builder.messages(20))
    stream = earliest(root, allowLive=False)
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
    both = {"paths": [str(store) for store in stores], "startingOffsets": "earliest"}
    with pytest.raises(StoreUnavailable, match="stream each store separately"):
        streams.open_stream(**both).initial_offset()
    for store in stores:
        name = f"broker-{store.parent.name}"
        (store / "config").mkdir(exist_ok=True)
        table = {name: {"topicName": name, "perm": 7, "readQueueNums": 1, "writeQueueNums": 1}}
        (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    stream = streams.open_stream(**both)
    assert set(stream.initial_offset()["TopicA"]) == {"broker-a", "broker-b"}
    read_rows = everything(stream, TriggerLimits(max_offsets=3))
    assert Counter(row["broker"] for row in read_rows) == {"broker-a": 10, "broker-b": 20}


def test_a_single_store_keeps_its_name_in_a_checkpoint(grow: Any) -> None:
    root = grow(20).root
    start = earliest(root).initial_offset()
    stream = earliest(root, broker="named-later")
    end = stream.latest_offset(start, None)
    assert set(end["TopicA"]) == {""}
    assert {row["broker"] for row in batch_of(stream, start, end)} == {"named-later"}


# --- partitions -------------------------------------------------------------


def test_a_partition_is_a_part_of_the_log(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(400))
    total = sum(message.store_size for message in built.messages)
    for options in (
        {"maxBytesPerPartition": "8k"},
        {"minPartitions": 7},
        {"maxRecordsPerPartition": 30},
    ):
        stream = earliest(built.root, **options)
        start = stream.initial_offset()
        tasks = stream.tasks(start, stream.latest_offset(start, None))
        parts = [streams.rows_of(stream, [task]) for task in tasks]
        assert places(itertools.chain(*parts)) == places_of(built.messages)
        assert len(parts) >= 7
        assert max(map(len, parts)) <= options.get("maxRecordsPerPartition", 400)
        if "maxBytesPerPartition" in options:
            assert all(sum(row["store_size"] for row in part) <= 8192 * 1.3 for part in parts)
            assert len(tasks) <= 2 * (total // 8192 + 1)
            spans = [sorted(row["physical_offset"] for row in part) for part in parts]
            # Partitions overlap only by the messages that one reads above its size.
            overlaps = sum(low[0] < before[-1] for before, low in itertools.pairwise(spans))
            assert overlaps <= len(spans) // 2


# --- progress ---------------------------------------------------------------


def test_progress_has_ends_and_lag(grow: Any) -> None:
    built = grow(QUEUED)
    stream = earliest(built.root)
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
    stream = earliest(grow(QUEUED).root)
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
