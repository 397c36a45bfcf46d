"""Messages inside of batch records of 5.x: each reader has a row for each of them."""

import csv
import itertools
import json
import pickle
import shutil
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import batch_records
import reput.arrow
import store_builder
import store_fixture
from batch_records import BATCHES, PLAIN, Sent
from reput.clock import ManualClock
from reput.errors import CorruptRecord
from reput.format import batch as batches, kernels, message as record, sys_flag as flags
from reput.format.batch import InnerMessage
from reput.spark import options as option_texts, portions
from reput.spark.accelerator import planning
from reput.spark.archive import files
from reput.spark.filters import from_span, from_values
from reput.spark.jobs.archive import archive
from reput.spark.jobs.compact import archive_compaction
from reput.spark.options import TriggerLimits
from reput.spark.scan import MessageScan
from reput.spark.store_planner import DataLoss
from reput.spark.streaming.stream import QueueStream
from reput.store.files.files import open_folder
from spark import reading
from spark.in_process import InProcess
from spark.reading import read

Place = tuple[str, int, int]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Sent]]:
    stores = store_fixture.Stores(tmp_path_factory.mktemp("batches"))
    clock = ManualClock(store_fixture.START_MS)
    sent = batch_records.fill(stores.open(clock=clock), clock)
    stores.check()
    return stores.root(), sent


@pytest.fixture
def store(filled: tuple[Path, list[Sent]]) -> Path:
    return filled[0]


@pytest.fixture
def sent(filled: tuple[Path, list[Sent]]) -> list[Sent]:
    return filled[1]


def places(rows: Iterable[dict[str, Any]]) -> list[Place]:
    return [(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows]


def places_of(messages: Iterable[Sent]) -> list[Place]:
    return [(each.topic, each.queue_id, each.queue_offset) for each in messages]


def values(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a row that its producer has set."""
    names = ("topic", "queue_id", "queue_offset", "body", "flag", "tags", "keys", "msg_id")
    return {name: row[name] for name in names} | {"properties": dict(row["properties"])}


def values_of(message: Sent) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "body": message.body,
        "flag": message.flag,
        "tags": message.tags,
        "keys": [*message.keys],
        "msg_id": message.unique_key,
        "properties": {
            "UNIQ_KEY": message.unique_key,
            "KEYS": " ".join(message.keys),
            "TAGS": message.tags,
        },
    }


# --- stores -----------------------------------------------------------------


def test_each_message_has_a_row_with_its_own_values(store: Path, sent: list[Sent]) -> None:
    for options in ({}, {"maxBytesPerPartition": 300}, {"topic": BATCHES, "scan": "consumequeue"}):
        rows = read(store, **options).rows
        assert [values(row) for row in rows] == [
            values_of(each) for each in sent if options.get("topic") in (None, each.topic)
        ]
        assert {row["sys_flag"] for row in rows} == {0}


def test_rows_of_a_batch_have_place_and_size_of_its_record(store: Path, sent: list[Sent]) -> None:
    rows = read(store).rows
    for name in ("physical_offset", "offset_msg_id", "store_timestamp", "store_size"):
        of_record: dict[int, set[Any]] = {}
        for row, message in zip(rows, sent, strict=True):
            of_record.setdefault(message.record, set()).add(row[name])
        assert all(len(each) == 1 for each in of_record.values())
    sizes = {row["physical_offset"]: row["store_size"] for row in rows}
    starts = sorted(sizes)
    assert [a + sizes[a] for a in starts[:-1]] == starts[1:], "the records tile the log"


SELECTIONS: dict[str, tuple[dict[str, Any], Callable[[Sent], bool]]] = {
    "tags": ({"tags": "TagB"}, lambda each: each.tags == "TagB"),
    "tag of the batch": ({"tags": "TagOfBatch"}, lambda _: False),
    "key": ({"key": "k4-3"}, lambda each: "k4-3" in each.keys),
    "key of a topic": ({"key": "k0-2", "topic": BATCHES}, lambda each: "k0-2" in each.keys),
    "key of all": ({"key": "shared"}, lambda _: True),
    "key of a plain topic": (
        {"key": "shared", "topic": PLAIN},
        lambda each: each.topic == PLAIN,
    ),
    "unique key": (
        {"uniqKey": f"{0xA0002:032X}"},
        lambda each: each.unique_key == f"{0xA0002:032X}",
    ),
    "unique key of the batch": (
        {"uniqKey": f"{0xB0000:032X}"},
        lambda each: each.batch_key == f"{0xB0000:032X}",
    ),
    "sql92": ({"sql92": "TAGS = 'TagB'"}, lambda each: each.tags == "TagB"),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_are_about_the_messages(store: Path, sent: list[Sent], name: str) -> None:
    options, wants = SELECTIONS[name]
    chosen = places_of(filter(wants, sent))
    assert places(read(store, **options).rows) == chosen
    assert places(read(store, scan="log", **options).rows) == chosen


def test_predicates_are_about_the_messages(store: Path, sent: list[Sent]) -> None:
    for column, bounds in (("queue_offset", (1, 2)), ("queue_offset", (4, 9))):
        got = read(store, from_span(column, *bounds)).rows
        assert places(got) == places_of(
            each for each in sent if bounds[0] <= each.queue_offset <= bounds[1]
        )
    wanted = [sent[1].unique_key, sent[-1].unique_key, sent[0].batch_key]
    got = read(store, from_values("msg_id", wanted)).rows
    assert places(got) == places_of(each for each in sent if each.unique_key in wanted)


def test_a_range_may_begin_and_end_inside_of_a_batch(store: Path, sent: list[Sent]) -> None:
    of_queue = [each for each in sent if (each.topic, each.queue_id) == (BATCHES, 0)]
    for start, stop in itertools.combinations_with_replacement(range(len(of_queue) + 1), 2):
        got = read(
            store,
            broker="b",
            assign={BATCHES: {"b": [0]}},
            startingOffsets={BATCHES: {"b": {"0": start}}},
            endingOffsets={BATCHES: {"b": {"0": stop}}},
        )
        assert places(got.rows) == places_of(of_queue[start:stop])


def test_a_start_by_time_is_the_first_message_of_the_batch(store: Path, sent: list[Sent]) -> None:
    rows = zip(read(store).rows, sent, strict=True)
    times_ms = [round(row["store_timestamp"].timestamp() * 1000) for row, _ in rows]
    for time_ms in sorted({*times_ms}):
        later = [each for each, own_ms in zip(sent, times_ms, strict=True) if own_ms >= time_ms]
        assert places(read(store, startingTimestamp=time_ms).rows) == places_of(later)


def test_counts_are_of_messages(store: Path, sent: list[Sent]) -> None:
    scan = MessageScan(reading.parse(store), ["topic"])
    assert scan.counts() is None, "units of batch queues are no messages: rows are counted"
    assert sum(batch.num_rows for task in scan.tasks() for batch in scan.read(task)) == len(sent)


def test_the_accelerator_leaves_batch_queues_to_python(store: Path) -> None:
    assert planning.plan_of(reading.parse(store)) is None


def test_messages_without_a_unit_are_split_too(
    tmp_path: Path, store: Path, sent: list[Sent]
) -> None:
    """As after a crash: only the log has them, and ranges are bounded by their queue offsets."""
    copy = tmp_path / "store"
    for file in (store / "commitlog").iterdir():
        (copy / "commitlog").mkdir(parents=True, exist_ok=True)
        (copy / "commitlog" / file.name).write_bytes(file.read_bytes())
    for options in ({}, {"startingOffsets": "earliest", "endingTimestamp": 1 << 50}):
        assert places(read(copy, **options).rows) == places_of(sent)


def test_compressed_batches_without_a_unit_are_unpacked_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They expand many times, and there may be a whole log of them."""
    inner = batches.encode([InnerMessage(0, bytes(1_000), b"")] * 30)
    messages = [
        store_builder.message(
            "T",
            zlib.compress(inner),
            unique_key="A" * 32,
            sys_flag=flags.COMPRESSED | flags.INNER_BATCH | flags.NEED_UNWRAP,
        )
        for _ in range(20)
    ]
    built = store_builder.build(tmp_path / "store", messages, log_file_bytes=1 << 20)
    shutil.rmtree(built.root / "consumequeue")
    counts: list[int] = []
    unwrapped = kernels.Columns.unwrapped

    def counted(columns: kernels.Columns) -> kernels.Columns:
        counts.append(columns.count)
        return unwrapped(columns)

    monkeypatch.setattr(kernels.Columns, "unwrapped", counted)
    monkeypatch.setattr(portions, "_PACKED_BYTES_A_BATCH", 2 * built.messages[0].store_size)
    planner = reading.scan(built.root, endingTimestamp=1 << 50)
    planner.tasks()
    assert sum(counts) >= 20
    assert max(counts) <= 3


def no_batch(store: Path, into: Path) -> tuple[Path, int]:
    """Copy a store with a batch record whose body is none; return it and the record's offset."""
    (file,) = [path for path in sorted((store / "commitlog").iterdir()) if path.stat().st_size][:1]
    data = bytearray(file.read_bytes())
    first = record.decode(bytes(data), 0)
    assert first.sys_flag & flags.INNER_BATCH
    position = data.index(first.body)
    broken = bytes(4) + first.body[4:]  # a message of size 0
    data[position : position + len(broken)] = broken
    data[8:12] = (zlib.crc32(broken) & 0x7FFFFFFF).to_bytes(4, "big")
    (into / "commitlog").mkdir(parents=True)
    (into / "commitlog" / file.name).write_bytes(data)
    return into, 0


def test_a_body_that_is_no_batch_is_treated_by_mode(
    tmp_path: Path, store: Path, sent: list[Sent]
) -> None:
    broken, offset = no_batch(store, tmp_path / "store")
    rest = [each for each in sent if each.record != 0]
    with pytest.raises(CorruptRecord, match="not the batch of messages") as raised:
        read(broken)
    assert raised.value.physical_offset == offset
    assert places(read(broken, topic=PLAIN, scan="log").rows) == places_of(
        each for each in sent if each.topic == PLAIN
    )
    assert places(read(broken, mode="DROPMALFORMED").rows) == places_of(rest)
    for mode in ("PERMISSIVE", "SALVAGE"):
        first, *others = read(broken, mode=mode).rows
        assert "not the batch of messages" in first["_corrupt_record"]
        assert (first["queue_offset"], first["physical_offset"]) == (0, offset)
        assert first["sys_flag"] & flags.INNER_BATCH
        assert places(others) == places_of(rest)
        assert {row["_corrupt_record"] for row in others} == {None}


# --- streams ----------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 2, 5, 12])
@pytest.mark.parametrize(
    "limits", [None, TriggerLimits(max_offsets=1), TriggerLimits(max_offsets=3, max_bytes=300)]
)
def test_a_stream_has_each_message_once(
    store: Path, sent: list[Sent], start: int, limits: TriggerLimits | None
) -> None:
    starts = {BATCHES: {"b": {"0": start, "1": 0}}}
    texts = {"path": str(store), "topic": BATCHES, "startingOffsets": starts, "broker": "b"}
    options = option_texts.parse_stream(reading.texts(texts))
    stream = QueueStream(options, ["topic", "queue_id", "queue_offset"])
    position = stream.initial_offset()
    assert position[BATCHES]["b"]["0"] == start
    rows: list[dict[str, Any]] = []
    while (end := stream.latest_offset(position, limits)) != position:
        for task in pickle.loads(pickle.dumps(stream.tasks(position, end))):
            for batch in stream.read(task):
                rows += batch.to_pylist()
        position = json.loads(json.dumps(end))
    assert sorted(places(rows)) == sorted(
        places_of(
            each
            for each in sent
            if each.topic == BATCHES and (each.queue_id or each.queue_offset >= start)
        )
    )


def test_a_micro_batch_may_begin_and_end_inside_of_a_batch(store: Path, sent: list[Sent]) -> None:
    """As positions of an earlier version, or of another reader, do."""
    texts = {"path": str(store), "topic": BATCHES, "startingOffsets": "earliest", "broker": "b"}
    options = option_texts.parse_stream(reading.texts(texts))
    stream = QueueStream(options, ["topic", "queue_id", "queue_offset"])
    initial = stream.initial_offset()
    of_queue = [each for each in sent if (each.topic, each.queue_id) == (BATCHES, 0)]
    for start, stop in itertools.combinations(range(len(of_queue) + 1), 2):
        before, after = (json.loads(json.dumps(initial)) for _ in range(2))
        before[BATCHES]["b"]["0"], after[BATCHES]["b"]["0"] = start, stop
        tasks = stream.tasks(before, after)
        rows = [row for task in tasks for batch in stream.read(task) for row in batch.to_pylist()]
        assert places(rows) == places_of(of_queue[start:stop])


# --- archives ---------------------------------------------------------------


@pytest.fixture(scope="module")
def archived(filled: tuple[Path, list[Sent]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("archived") / "archive"
    archive(InProcess(), str(filled[0]), str(into), include_last=True, broker="b")
    return into


def test_an_archive_has_the_rows_of_its_store(
    archived: Path, store: Path, sent: list[Sent]
) -> None:
    got = read(archived).messages
    assert [values(row) for row in got] == [values_of(each) for each in sent]
    assert got == read(store, broker="b").messages
    without = read(archived, columns="topic,queue_id,queue_offset,msg_id,physical_offset")
    assert places(without.messages) == places_of(sent)
    assert places(read(archived, includeBody=False).messages) == places_of(sent)


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_of_an_archive_are_about_the_messages(
    archived: Path, sent: list[Sent], name: str
) -> None:
    options, wants = SELECTIONS[name]
    chosen = places_of(filter(wants, sent))
    assert places(read(archived, **options).messages) == chosen
    assert places(read(archived, scan="log", **options).messages) == chosen


def test_a_range_of_an_archive_may_begin_and_end_inside_of_a_batch(
    archived: Path, sent: list[Sent]
) -> None:
    of_queue = [each for each in sent if (each.topic, each.queue_id) == (BATCHES, 0)]
    for start, stop in itertools.combinations_with_replacement(range(len(of_queue) + 1), 2):
        got = read(
            archived,
            assign={BATCHES: {"b": [0]}},
            startingOffsets={BATCHES: {"b": {"0": start}}},
            endingOffsets={BATCHES: {"b": {"0": stop}}},
        )
        assert places(got.messages) == places_of(of_queue[start:stop])
    got = read(archived, from_span("queue_offset", 12, 12))
    assert places(got.messages) == places_of(of_queue[12:13])


def test_a_compacted_archive_ends_at_the_last_message_of_a_batch(
    archived: Path, sent: list[Sent], tmp_path: Path
) -> None:
    copy = tmp_path / "archive"
    shutil.copytree(archived, copy)
    (manifest,) = files.load_manifests(open_folder(str(copy)))
    first, *_ = sorted(part.date for part in manifest.parts if part.topic == BATCHES)
    gone = [part.path for part in manifest.parts if (part.topic, part.date) == (BATCHES, first)]
    archive_compaction.drop_parts((str(copy), manifest.start, tuple(gone)))
    last = [each for each in sent if (each.topic, each.queue_id) == (BATCHES, 0)][-3:]
    starts = {BATCHES: {"b": {"0": last[0].queue_offset}}}
    got = read(copy, assign={BATCHES: {"b": [0]}}, startingOffsets=starts)
    assert places(got.messages) == places_of(last)
    with pytest.raises(DataLoss, match=f"holds 3 to {last[-1].queue_offset + 1}, asked for were 0"):
        read(copy, assign={BATCHES: {"b": [0]}}, startingOffsets={BATCHES: {"b": {"0": 0}}})


# --- Arrow and files --------------------------------------------------------


def test_arrow_has_a_row_for_each_message(store: Path, sent: list[Sent]) -> None:
    table = reput.arrow.scan(store, topic=BATCHES, filter=pc.field("tags") == "TagB").read_all()
    assert [values(row) for row in table.to_pylist()] == [
        values_of(each) for each in sent if (each.topic, each.tags) == (BATCHES, "TagB")
    ]
    head = reput.arrow.scan(store, topic=BATCHES).read_all().slice(0, 2)
    assert places(head.to_pylist()) == places_of(sent[:2])


def test_exports_have_a_row_for_each_message(tmp_path: Path, store: Path, sent: list[Sent]) -> None:
    bodies = [each.body for each in sent if each.topic == BATCHES]
    for ending in ("parquet", "arrow", "jsonl", "csv"):
        file = tmp_path / f"b.{ending}"
        done = reput.arrow.export(store, file, topic=BATCHES)
        assert done.message_count == len(bodies)
        if ending == "parquet":
            got = pq.read_table(file)["body"].to_pylist()
        elif ending == "arrow":
            got = pa.ipc.open_file(file).read_all()["body"].to_pylist()
        elif ending == "jsonl":
            got = [json.loads(line)["body"].encode() for line in file.read_text().splitlines()]
        else:
            with file.open(newline="") as lines:
                got = [row["body"].encode() for row in csv.DictReader(lines)]
        assert got == bodies
