"""Messages inside of batch records of 5.x: each reader has a row for each of them."""

import asyncio
import csv
import itertools
import json
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import batch_records
import golden
import reput.arrow
import seeds
import store_builder
import store_fixture
from batch_records import BATCHES, PLAIN, Sent
from reput.client.admin import Admin
from reput.clock import ManualClock
from reput.errors import BrokerError, CorruptRecord
from reput.format import batch as batches, kernels, message as record, sys_flag as flags
from reput.format.batch import InnerMessage
from reput.format.codes import RequestCode, ResponseCode
from reput.spark import portions
from reput.spark.accelerator import planning
from reput.spark.archive import files
from reput.spark.filters import Constraint, from_span, from_values
from reput.spark.jobs.archive import archive
from reput.spark.jobs.compact import archive_compaction
from reput.spark.live import calls as live_calls
from reput.spark.live.calls import ReadFailed
from reput.spark.options import TriggerLimits
from reput.spark.store_planner import DataLoss
from reput.store.files.files import open_folder
from reput.testing import LocalBroker
from spark import live_traffic, reading, streams
from spark.in_process import InProcess
from spark.live_traffic import BROKER
from spark.reading import Row, read
from spark.streams import places, places_of

SENT = [message for messages in batch_records.records() for message in messages]
OF_QUEUE = [each for each in SENT if (each.topic, each.queue_id) == (BATCHES, 0)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stores = store_fixture.Stores(tmp_path_factory.mktemp("batches"))
    clock = ManualClock(store_fixture.START_MS)
    assert batch_records.fill(stores.open(clock=clock), clock) == SENT
    stores.check()
    return stores.root()


@pytest.fixture(scope="module")
def archived(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("archived") / "archive"
    archive(InProcess(), str(store), str(into), include_last=True, broker=BROKER)
    return into


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Return the address of the name server of a running broker with the messages."""

    async def send(namesrv: str) -> list[Sent]:
        async with Admin(namesrv) as admin:
            return await batch_records.send(admin, BROKER)

    with LocalBroker() as running:
        assert asyncio.run(send(running.namesrv_addr)) == SENT
        yield running.namesrv_addr
        live_calls.disconnect()


class Source:
    """A place where the messages are read: ``store``, ``archive`` or ``brokers``."""

    def __init__(self, kind: str, where: Path | str) -> None:
        self.kind = kind
        name = "nameServer" if kind == "brokers" else "path"
        self.where = {name: where, "broker": BROKER}

    def read(self, constraint: Constraint | None = None, **options: Any) -> list[Row]:
        if self.kind == "brokers":
            return live_traffic.read(str(self.where["nameServer"]), constraint, **options)
        return read(self.where["path"], constraint, broker=BROKER, **options).rows


@pytest.fixture(params=["store", "archive", "brokers"])
def source(request: pytest.FixtureRequest) -> Source:
    names = {"store": "store", "archive": "archived", "brokers": "address"}
    return Source(request.param, request.getfixturevalue(names[request.param]))


def values(row: Row) -> dict[str, Any]:
    """Return the columns of a row that its producer has set."""
    names = ("topic", "queue_id", "queue_offset", "body", "flag", "tags", "keys", "msg_id")
    properties = {name: dict(row["properties"])[name] for name in ("UNIQ_KEY", "KEYS", "TAGS")}
    return {name: row[name] for name in names} | {"properties": properties}


def values_of(message: Sent) -> dict[str, Any]:
    return {
        **{
            name: getattr(message, name)
            for name in ("topic", "queue_id", "queue_offset", "body", "flag", "tags")
        },
        "keys": [*message.keys],
        "msg_id": message.unique_key,
        "properties": {
            "UNIQ_KEY": message.unique_key,
            "KEYS": " ".join(message.keys),
            "TAGS": message.tags,
        },
    }


def by_place(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))


# --- stores -----------------------------------------------------------------


def test_each_message_has_a_row_with_its_own_values(source: Source) -> None:
    rows = source.read()
    assert by_place(map(values, rows)) == by_place(map(values_of, SENT))
    assert {row["sys_flag"] for row in rows} == {0}


def test_any_columns_partitions_and_pulls_give_each_message_once(source: Source) -> None:
    options: list[dict[str, Any]] = [
        {"maxRecordsPerPartition": 2},
        {"minPartitions": 40},
        {"maxBytesPerPartition": 300},
        {"includeBody": False},
        {"columns": "topic,queue_id,queue_offset,msg_id,physical_offset"},
    ]
    if source.kind == "brokers":
        options += [{"fetchOffset.numRetries": 0, "pullBatchSize": 1}, {"pullBatchSize": 2}]
    for given in options:
        assert places(source.read(**given)) == places_of(SENT), given
    for scan in ("consumequeue", "log") if source.kind == "store" else ():
        got = places(source.read(topic=BATCHES, scan=scan))
        assert got == places_of(each for each in SENT if each.topic == BATCHES)


def test_rows_of_a_batch_have_place_and_size_of_its_record(store: Path) -> None:
    rows = read(store).rows
    for name in ("physical_offset", "offset_msg_id", "store_timestamp", "store_size"):
        of_record: dict[int, set[Any]] = {}
        for row, message in zip(rows, SENT, strict=True):
            of_record.setdefault(message.record, set()).add(row[name])
        assert all(len(each) == 1 for each in of_record.values())
    sizes = {row["physical_offset"]: row["store_size"] for row in rows}
    starts = sorted(sizes)
    assert [a + sizes[a] for a in starts[:-1]] == starts[1:], "the records tile the log"
    times_ms = [round(row["store_timestamp"].timestamp() * 1000) for row in rows]
    for time_ms in sorted({*times_ms}):  # a start by time is the first message of its batch
        later = [each for each, own_ms in zip(SENT, times_ms, strict=True) if own_ms >= time_ms]
        assert places(read(store, startingTimestamp=time_ms).rows) == places_of(later)


def test_selections_are_about_the_messages(source: Source) -> None:
    first, second, last = SENT[0], SENT[1], SENT[-1]
    ids = [second.unique_key, last.unique_key, first.batch_key]
    selections: list[tuple[dict[str, Any], Callable[[Sent], bool]]] = [
        ({"tags": "TagB"}, lambda each: each.tags == "TagB"),
        ({"tags": "TagB", "topic": PLAIN}, lambda e: (e.tags, e.topic) == ("TagB", PLAIN)),
        ({"tags": "TagOfBatch"}, lambda _: False),
        ({"key": "k4-3"}, lambda each: "k4-3" in each.keys),
        ({"key": "k0-2", "topic": BATCHES}, lambda each: "k0-2" in each.keys),
        ({"key": "shared"}, lambda _: True),
        ({"key": "shared", "topic": PLAIN}, lambda each: each.topic == PLAIN),
        ({"uniqKey": second.unique_key}, lambda each: each is second),
        ({"uniqKey": first.batch_key}, lambda each: each.batch_key == first.batch_key),
        ({"sql92": "TAGS = 'TagB'"}, lambda each: each.tags == "TagB"),
        ({"constraint": from_values("tags", ["TagB"])}, lambda each: each.tags == "TagB"),
        ({"constraint": from_values("msg_id", ids)}, lambda each: each.unique_key in ids),
        ({"constraint": from_span("queue_offset", 1, 2)}, lambda each: each.queue_offset in (1, 2)),
        ({"constraint": from_span("queue_offset", 4, 9)}, lambda e: 4 <= e.queue_offset <= 9),
    ]
    for options, wants in selections:
        for scan in ("auto", "log") if source.kind == "store" else ("auto",):
            got = source.read(scan=scan, **options)
            assert places(got) == places_of(filter(wants, SENT)), (options, scan)


def test_a_range_may_begin_and_end_inside_of_a_batch(source: Source) -> None:
    bounds = [*itertools.combinations_with_replacement(range(len(OF_QUEUE) + 1), 2)]
    for start, stop in bounds if source.kind == "store" else bounds[seeds.today() % 5 :: 5]:
        got = source.read(
            assign={BATCHES: {BROKER: [0]}},
            startingOffsets={BATCHES: {BROKER: {"0": start}}},
            endingOffsets={BATCHES: {BROKER: {"0": stop}}},
        )
        assert places(got) == places_of(OF_QUEUE[start:stop])


@pytest.mark.parametrize("source", ["store", "brokers"], indirect=True)
def test_a_stream_has_each_message_once(source: Source) -> None:
    limits = (
        *(None, TriggerLimits(max_offsets=1)),
        TriggerLimits(max_offsets=3, max_bytes=300 if source.kind == "store" else None),
    )
    wanted = [each for each in SENT if each.topic == BATCHES]
    for start, limit in itertools.product((0, 2, 5, 12), limits):
        starts = {BATCHES: {BROKER: {"0": start, "1": 0}}}
        where = {**source.where, "topic": BATCHES, "startingOffsets": starts}
        stream = streams.open_stream(**where)
        assert stream.initial_offset()[BATCHES][BROKER]["0"] == start
        assert places(streams.everything(stream, limit)) == places_of(
            each for each in wanted if each.queue_id or each.queue_offset >= start
        )


def test_what_counts_records_leaves_batch_queues_out(
    store: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reading.scan(store).counts() is None, "units of batch queues are no messages"
    assert planning.plan_of(reading.parse(store)) is None
    scan = live_traffic.scan_of(address)
    tasks = scan.tasks()
    assert scan.plain_pulls(tasks) is None
    with pytest.raises(ReadFailed, match="has a batch record"):
        [*itertools.chain.from_iterable(map(scan.read_records, tasks))]
    scan = live_traffic.scan_of(address, topic=PLAIN)
    assert scan.plain_pulls(scan.tasks()) is not None
    # Brokers may refuse to list their settings of topics.
    calls = type(live_calls.connected(scan._live).admin.calls)
    ask, refused = calls.ask, []

    async def refuse(self: Any, where: str, request: Any, *more: Any, **named: Any) -> Any:
        if request.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            refused.append(where)
            raise BrokerError(ResponseCode.NO_PERMISSION, "no", where)
        return await ask(self, where, request, *more, **named)

    monkeypatch.setattr(calls, "ask", refuse)
    got = live_traffic.read(address, tags="TagB")
    assert places(got) == places_of(each for each in SENT if each.tags == "TagB")
    assert refused


def test_messages_without_a_unit_are_split_too(tmp_path: Path, store: Path) -> None:
    """As after a crash: only the log has them, and ranges are bounded by their queue offsets."""
    shutil.copytree(store / "commitlog", tmp_path / "store" / "commitlog")
    for options in ({}, {"startingOffsets": "earliest", "endingTimestamp": 1 << 50}):
        assert places(read(tmp_path / "store", **options).rows) == places_of(SENT)


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


def test_a_body_that_is_no_batch_is_treated_by_mode(tmp_path: Path, store: Path) -> None:
    broken = tmp_path / "store"
    shutil.copytree(store / "commitlog", broken / "commitlog")
    file = golden.log_files(broken)[0]
    data = bytearray(file.read_bytes())
    first = record.decode(bytes(data), 0)
    assert first.sys_flag & flags.INNER_BATCH
    body = bytes(4) + first.body[4:]  # a message of size 0
    position = data.index(first.body)
    data[position : position + len(body)] = body
    data[8:12] = (zlib.crc32(body) & 0x7FFFFFFF).to_bytes(4, "big")
    file.write_bytes(data)
    rest = [each for each in SENT if each.record != 0]
    with pytest.raises(CorruptRecord, match="not the batch of messages") as raised:
        read(broken)
    assert raised.value.physical_offset == 0
    plain = [each for each in SENT if each.topic == PLAIN]
    assert places(read(broken, topic=PLAIN, scan="log").rows) == places_of(plain)
    assert places(read(broken, mode="DROPMALFORMED").rows) == places_of(rest)
    for mode in ("PERMISSIVE", "SALVAGE"):
        damaged, *others = read(broken, mode=mode).rows
        assert "not the batch of messages" in damaged["_corrupt_record"]
        assert (damaged["queue_offset"], damaged["physical_offset"]) == (0, 0)
        assert damaged["sys_flag"] & flags.INNER_BATCH
        assert places(others) == places_of(rest)
        assert {row["_corrupt_record"] for row in others} == {None}


def test_a_compacted_archive_ends_at_the_last_message_of_a_batch(
    archived: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "archive"
    shutil.copytree(archived, copy)
    (manifest,) = files.load_manifests(open_folder(str(copy)))
    first, *_ = sorted(part.date for part in manifest.parts if part.topic == BATCHES)
    gone = [part.path for part in manifest.parts if (part.topic, part.date) == (BATCHES, first)]
    archive_compaction.drop_parts((str(copy), manifest.start, tuple(gone)))
    last = OF_QUEUE[-3:]
    of_queue = {"assign": {BATCHES: {BROKER: [0]}}}
    starts = {BATCHES: {BROKER: {"0": last[0].queue_offset}}}
    assert places(read(copy, startingOffsets=starts, **of_queue).rows) == places_of(last)
    with pytest.raises(DataLoss, match=f"holds 3 to {last[-1].queue_offset + 1}, asked for were 0"):
        read(copy, startingOffsets={BATCHES: {BROKER: {"0": 0}}}, **of_queue)


# --- Arrow and files --------------------------------------------------------


def test_arrow_has_a_row_for_each_message(store: Path) -> None:
    table = reput.arrow.scan(store, topic=BATCHES, filter=pc.field("tags") == "TagB").read_all()
    assert [values(row) for row in table.to_pylist()] == [
        values_of(each) for each in SENT if (each.topic, each.tags) == (BATCHES, "TagB")
    ]
    head = reput.arrow.scan(store, topic=BATCHES).read_all().slice(0, 2)
    assert places(head.to_pylist()) == places_of(SENT[:2])


def test_exports_have_a_row_for_each_message(tmp_path: Path, store: Path) -> None:
    def lines(path: Path) -> list[str]:
        return path.read_text().splitlines()

    readers: dict[str, Callable[[Path], list[Any]]] = {
        "parquet": lambda path: pq.read_table(path)["body"].to_pylist(),
        "arrow": lambda path: pa.ipc.open_file(path).read_all()["body"].to_pylist(),
        "jsonl": lambda path: [json.loads(line)["body"].encode() for line in lines(path)],
        "csv": lambda path: [row["body"].encode() for row in csv.DictReader(lines(path))],
    }
    bodies = [each.body for each in SENT if each.topic == BATCHES]
    for ending, bodies_of in readers.items():
        file = tmp_path / f"b.{ending}"
        assert reput.arrow.export(store, file, topic=BATCHES).message_count == len(bodies)
        assert bodies_of(file) == bodies
