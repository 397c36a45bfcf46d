"""Reads planned, pickled and run without Spark, compared with the manifests by Java."""

import hashlib
import json
import shutil
import struct
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import golden
import store_builder
from reput.errors import CorruptRecord, InvalidOption, StoreUnavailable
from reput.format import cq_unit, message_id, sys_flag as flags
from reput.spark import plan, portions
from reput.spark.filters import Constraint, from_span, from_values
from reput.spark.store_planner import DataLoss
from spark import reading
from spark.reading import message_offsets, offsets, read, read_light

ALL = "all"
VERSION = pytest.mark.parametrize("version", golden.VERSIONS)
TORN = pytest.mark.parametrize(("version", "variant"), golden.EACH_DAMAGE)
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST", "SALVAGE")


def clean(version: str) -> Path:
    return golden.unpack(version, "clean")


# --- whole stores -----------------------------------------------------------


@VERSION
@pytest.mark.sampled(3)
def test_every_undamaged_recovered_variant_equals_its_manifest(version: str) -> None:
    variants = golden.torn_recovered(version)
    for variant in variants if version == "4.9.7" else ("no-cq-no-index-abort", "cq-zeroed-abort"):
        name = f"torn/{variant}-recovered"
        left = reading.damaged(version, variant)
        if left.runs or variant in ("torn-tail", "cq-ahead"):
            continue  # Java cut these logs in memory, but left the bytes on disk
        got = read_light(golden.unpack(version, name), readIsolation=ALL)
        assert offsets(got.rows) == message_offsets(golden.messages(version, name)), variant


def test_uncommitted_messages_in_their_own_topic_are_hidden_too(tmp_path: Path) -> None:
    # Stored as by brokers before 4.3: without a unit, found only in the log.
    kinds = [flags.TRANSACTION_PREPARED, flags.TRANSACTION_COMMIT, flags.TRANSACTION_ROLLBACK, 0]
    messages = [
        store_builder.message("T", b"x", keys=f"k{i}", sys_flag=kind)
        for i, kind in enumerate(kinds)
    ]
    built = store_builder.build(tmp_path / "store", messages)
    every = [message.physical_offset for message in built.messages]
    for how in ("auto", "log", "consumequeue"):
        for topic in ({}, {"topic": "T"}):
            assert offsets(read_light(built.root, scan=how, **topic).rows) == [every[1], every[3]]
            got = read_light(built.root, scan=how, readIsolation=ALL, **topic)
            assert sorted(offsets(got.rows)) == every
    for i in range(4):
        got = read_light(built.root, key=f"k{i}", readIsolation=ALL)
        assert offsets(got.rows) == [every[i]]
        assert offsets(read_light(built.root, key=f"k{i}").rows) == every[i : i + 1] * (i % 2)


def test_several_stores_are_one_read() -> None:
    stores = [str(golden.unpack(version, "ext")) for version in golden.VERSIONS]
    every = Counter(
        offset
        for version in golden.VERSIONS
        for offset in message_offsets(golden.messages(version, "ext"))
    )
    for got in (read_light(",".join(stores)), read_light(None, paths=stores)):
        assert Counter(offsets(got.rows)) == every
        assert {task.partition.store for task in got.tasks} == {0, 1, 2}
    assert read_light(f"file://{stores[0]}").rows == read_light(stores[0]).rows


def test_a_pattern_reads_the_matching_stores(tmp_path: Path) -> None:
    for name in ("b", "a", "no-store"):
        (tmp_path / name).mkdir()
    for name in ("a", "b"):
        shutil.copytree(golden.unpack("4.9.7", "ext"), tmp_path / name / "store")
    got = read_light(f"{tmp_path}/*/store")
    assert len(got.rows) == 2 * len(golden.messages("4.9.7", "ext"))
    assert [task.facts.path for task in got.tasks] == [f"{tmp_path}/{n}/store" for n in "ab"]
    (tmp_path / "a[1]").symlink_to(tmp_path / "a")
    assert len(read_light(f"{tmp_path}/a[1]/store").tasks) == 1
    with pytest.raises(InvalidOption, match=r"option 'path' is '.*nothing.*'; allowed: a pattern"):
        read(f"{tmp_path}/nothing*")


@pytest.mark.parametrize("path", ["/nowhere", __file__, str(Path(__file__).parent)])
def test_a_folder_without_a_store_is_refused(path: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"give the folder|no store"):
        read(path)


def test_a_store_without_a_record_has_no_rows(tmp_path: Path) -> None:
    store_builder.build(tmp_path / "store", [])
    (tmp_path / "store" / "commitlog").mkdir()
    for how in ("auto", "log"):
        assert read(tmp_path / "store", scan=how) == ([], [], read(tmp_path / "store").summary)


# --- stores of running brokers ----------------------------------------------


@pytest.fixture
def lock_holder() -> Iterator[Callable[[Path], int]]:
    """Start a process that locks a store like a broker, and return its id."""
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    started: list[subprocess.Popen[bytes]] = []

    def hold(store: Path) -> int:
        (store / "lock").touch()
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(store / "lock")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"locked\n"
        return child.pid

    yield hold
    for child in started:
        child.communicate()


def test_a_running_broker_is_refused_unless_allowed(
    tmp_path: Path, lock_holder: Callable[[Path], int]
) -> None:
    store = golden.copy_store("4.9.7", "unclean", tmp_path)
    process = lock_holder(store)
    with pytest.raises(StoreUnavailable, match=f"in use by process {process}.*allowLive=true"):
        read(store)
    # The last record may be half written: no record follows it, and no queue points at it.
    messages = golden.messages("4.9.7", "unclean")[:-1]
    got = read_light(store, allowLive=True, readIsolation=ALL)
    assert offsets(got.rows) == message_offsets(messages)
    for topic, _ in Counter(message["topic"] for message in messages).most_common(4):
        wanted = [message["commitLogOffset"] for message in messages if message["topic"] == topic]
        got = read_light(store, allowLive=True, topic=topic, scan="consumequeue")
        assert sorted(offsets(got.rows)) == wanted


def test_a_changed_store_is_read_again(tmp_path: Path) -> None:
    """Python workers are reused: facts cached from one read must not serve the next."""
    messages = store_builder.messages(40)
    store_builder.build(tmp_path / "store", messages[:20])
    assert len(read_light(tmp_path / "store").rows) == 20
    shutil.rmtree(tmp_path / "store")
    store_builder.build(tmp_path / "store", messages)
    assert len(read_light(tmp_path / "store").rows) == 40


# --- one topic, three ways --------------------------------------------------


@TORN
@pytest.mark.sampled(6)
def test_damaged_queues_hide_nothing(version: str, variant: str) -> None:
    """No fewer rows than the log holds, and each once, with every kind of scan."""
    store, left = golden.unpack(version, f"torn/{variant}"), reading.damaged(version, variant)
    messages = golden.messages(version, "clean")
    topics = sorted({message["topic"] for message in messages})
    lossy = {"failOnDataLoss": variant != "cq-ahead", "mode": "PERMISSIVE"}
    known = {run[0] for run in left.runs} | {message["commitLogOffset"] for message in messages}
    for some in (topics[::2], topics[1::2], topics[7:8]):
        wanted = [message["commitLogOffset"] for message in left.good if message["topic"] in some]
        for how in ("consumequeue", "auto"):
            got = read_light(store, topics=",".join(some), scan=how, **lossy)
            assert offsets(got.messages) == wanted, (some, how)
            assert {row["physical_offset"] for row in got.damage} <= known


def test_messages_of_a_deleted_queue_are_found_in_the_log(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(80, queues=4))
    shutil.rmtree(built.queue_file("TopicA", 1).parent)
    for how in ("auto", "consumequeue"):
        got = read_light(built.root, topic="TopicA", scan=how)
        wanted = [
            message.physical_offset for message in built.messages if message.topic == "TopicA"
        ]
        assert sorted(offsets(got.rows)) == wanted


def test_any_single_damaged_unit_hides_nothing(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(60))
    path = built.queue_file("TopicA", 0, 0)
    data = path.read_bytes()
    queue = built.queue("TopicA")
    wanted = [message.physical_offset for message in built.messages if message.topic == "TopicA"]
    nothing = bytes(cq_unit.SIZE)
    foreign = cq_unit.pack(cq_unit.Unit(built.messages[1].physical_offset, 100, 0))
    beyond = cq_unit.pack(cq_unit.Unit(built.end_offset - 10, 500, 0))
    for number in range(len(queue)):
        position = number * cq_unit.SIZE
        for unit in (nothing, foreign, beyond):
            path.write_bytes(data[:position] + unit + data[position + cq_unit.SIZE :])
            options = {"mode": "PERMISSIVE", "failOnDataLoss": unit is not beyond}
            got = read_light(built.root, topic="TopicA", scan="consumequeue", **options)
            assert offsets(got.messages) == wanted, (number, unit)


def test_a_unit_of_another_message_of_the_same_size_is_reported(tmp_path: Path) -> None:
    messages = [
        store_builder.message("AB"[i % 2], b"body", unique_key=f"{i:032}") for i in range(8)
    ]
    built = store_builder.build(tmp_path / "store", messages)
    assert len({message.store_size for message in built.messages}) == 1
    path = built.queue_file("A")
    foreign = built.messages[3]
    unit = cq_unit.pack(cq_unit.Unit(foreign.physical_offset, foreign.store_size, 0))
    path.write_bytes(
        path.read_bytes()[: cq_unit.SIZE] + unit + path.read_bytes()[2 * cq_unit.SIZE :]
    )
    with pytest.raises(CorruptRecord, match=r"another message \(queue A/0, queue offset 1\)") as e:
        read(built.root, topic="A", scan="consumequeue")
    assert e.value.physical_offset == foreign.physical_offset
    got = read(built.root, topic="A", scan="consumequeue", mode="PERMISSIVE")
    assert len(got.messages) == 3
    (row,) = got.damage
    assert (row["topic"], row["queue_id"], row["queue_offset"]) == ("A", 0, 1)
    assert row["_corrupt_record"] == "the unit points at another message"


# --- topics -----------------------------------------------------------------


def test_missing_topics_and_queues() -> None:
    store = clean("4.9.7")
    with pytest.raises(DataLoss, match=r"topic 'Golden0ne' is not in .*; it has .*failOnDataLoss"):
        read(store, topic="GoldenOne,Golden0ne")
    got = read_light(store, topic="GoldenOne,Golden0ne", failOnDataLoss=False)
    assert got.rows == read_light(store, topic="GoldenOne").rows != []
    assert "data loss: topic 'Golden0ne'" in got.summary
    assign = {"GoldenFour": {reading.BROKER: [1, 77]}}
    with pytest.raises(DataLoss, match="queue GoldenFour/77 is not in"):
        read(store, assign=assign)
    assert read_light(store, assign=assign, failOnDataLoss=False).rows
    with pytest.raises(InvalidOption, match="light queue"):
        read(golden.unpack("5.5.0", "v5"), topic="%LMQ%first")
    with pytest.raises(InvalidOption, match="option 'sql92' is 'a >'; allowed: a filter express"):
        read(store, sql92="a >")


def test_a_broker_that_has_none_of_the_stores_is_refused() -> None:
    bounds = ("startingOffsets", "endingOffsets")
    tables: dict[str, Any] = {"assign": {"GoldenOne": {"broker-b": [0]}}}
    for name in (*bounds, *(f"{bound}ByTimestamp" for bound in bounds)):
        tables[name] = {"GoldenOne": {"broker-b": {"0": 3}}}
    for name, table in tables.items():
        with pytest.raises(InvalidOption, match=f"option '{name}' is 'broker-b'; .*broker-a"):
            read(clean("4.9.7"), **{name: table})
        assert read_light(clean("4.9.7"), broker="broker-b", **{name: table}).rows


def test_json_options_by_the_broker_of_each_store(tmp_path: Path) -> None:
    """A store whose tables do not name its broker takes the option's only broker."""
    known, nameless = golden.unpack("4.9.7", "ext"), golden.copy_store("4.9.7", "ext", tmp_path)
    queues = Counter(
        (message["topic"], message["queueId"]) for message in golden.messages("4.9.7", "ext")
    )
    (topic, queue_id), count = queues.most_common(1)[0]
    shutil.rmtree(nameless / "config")
    assert len(read_light(nameless, assign={topic: {"any": [queue_id]}}).rows) == count
    two = {topic: {"any": [queue_id], "other": [queue_id]}}
    with pytest.raises(InvalidOption, match=r"option 'assign' is 'any'.*option broker"):
        read(nameless, assign=two)
    both = read_light(f"{known},{nameless}", assign={topic: {"broker-a": [queue_id]}})
    assert len(both.rows) == 2 * count


# --- starts and ends --------------------------------------------------------


def of_queue(value: int | str) -> dict[str, Any]:
    return {"GoldenOne": {reading.BROKER: {"0": value}}}


def test_times_of_queues_without_a_later_message() -> None:
    store = clean("4.9.7")
    queue = [row for row in read_light(store, topic="GoldenOne").rows if row["queue_id"] == 0]
    newest = max(message["storeTimestamp"] for message in golden.messages("4.9.7", "clean"))
    late = {"startingOffsetsByTimestamp": of_queue(newest + 1)}
    text = r"'startingOffsetsByTimestamp' is \d+.*Strategy=latest"
    with pytest.raises(InvalidOption, match=text):
        read(store, **late)
    got = read_light(store, startingOffsetsByTimestampStrategy="latest", **late)
    assert len(got.rows) == len(read_light(store).rows) - len(queue)
    # A time for all queues excludes queues without a message at or after it.
    got = read_light(store, startingTimestamp=newest, **late)
    assert {row["store_timestamp"] for row in got.rows} == {reading.time_of(newest)}


@pytest.mark.parametrize("bound", ["starting", "ending"])
def test_precedence_of_timestamps_queue_timestamps_and_offsets(bound: str) -> None:
    queue = [
        message
        for message in golden.messages("4.9.7", "clean")
        if (message["topic"], message["queueId"]) == ("GoldenOne", 0)
    ]
    late, early = queue[20]["storeTimestamp"], queue[5]["storeTimestamp"]
    firsts = [30]
    for time in (late, early):
        later = (message for message in queue if message["storeTimestamp"] >= time)
        firsts.append(next(later)["queueOffset"])
    assert len({*firsts}) == 3
    given: dict[str, Any] = {}
    options = (f"{bound}Offsets", of_queue(30)), (f"{bound}OffsetsByTimestamp", of_queue(late))
    for (name, value), first in zip((*options, (f"{bound}Timestamp", early)), firsts, strict=True):
        given[name] = value
        got = read_light(clean("4.9.7"), topic="GoldenOne", **given).rows
        shown = [row["queue_offset"] for row in got if row["queue_id"] == 0]
        assert (min(shown) == first) if bound == "starting" else (max(shown) == first - 1), name


@VERSION
@pytest.mark.sampled(3)
def test_reads_from_the_offsets_of_a_group(version: str) -> None:
    own = {
        (key.removesuffix("@CG_Offsets"), int(queue_id)): offset
        for key, queues in golden.manifest(version, "clean")["consumerOffsets"].items()
        if key.endswith("@CG_Offsets")
        for queue_id, offset in queues.items()
    }
    assert own
    rows = read_light(clean(version)).rows
    for name, is_start in (("startingOffsets", True), ("endingOffsets", False)):
        got = read_light(clean(version), **{name: "group:CG_Offsets"})
        assert sorted(offsets(got.rows)) == [
            row["physical_offset"]
            for row in rows
            for bound in [own.get((row["topic"], row["queue_id"]))]
            if bound is None or (row["queue_offset"] >= bound) is is_start
        ]
        text = f"option '{name}' is 'group:NoSuchGroup'.*CG_Offsets"
        with pytest.raises(InvalidOption, match=text):
            read(clean(version), **{name: "group:NoSuchGroup"})


@VERSION
@pytest.mark.sampled(3)
def test_offsets_outside_a_queue_are_data_loss(version: str) -> None:
    store = golden.unpack(version, "expired")
    queue = next(
        queue
        for queue in golden.manifest(version, "expired")["queues"]
        if queue["minOffset"] > 2 and queue["maxOffset"] > queue["minOffset"] + 2
    )
    topic, queue_id, low, high = (
        queue[name] for name in ("topic", "queueId", "minOffset", "maxOffset")
    )
    for bound, number, count in [
        ("startingOffsets", low - 1, high - low),
        ("startingOffsets", high + 1, 0),
        ("endingOffsets", high + 1, high - low),
        ("endingOffsets", low - 1, 0),
        ("startingOffsets", high, None),
        ("endingOffsets", low, None),
    ]:
        options = {
            "assign": {topic: {reading.BROKER: [queue_id]}},
            bound: {topic: {reading.BROKER: {str(queue_id): number}}},
        }
        if count is None:  # nothing is lost
            assert not read(store, **options).rows
            continue
        text = rf"queue {topic}/{queue_id} of .* holds {low} to {high}, asked for were \d+ to \d+"
        with pytest.raises(DataLoss, match=text):
            read(store, **options)
        got = read_light(store, failOnDataLoss=False, **options)
        assert [row["queue_offset"] for row in got.rows] == [*range(low, high)][:count]


@VERSION
def test_a_log_cut_before_the_end_of_its_queues_is_data_loss(version: str) -> None:
    store = golden.unpack(version, "torn/cq-ahead")
    with pytest.raises(DataLoss, match=r"queue .* has messages up to physical offset \d+, the log"):
        read(store)
    left = reading.damaged(version, "cq-ahead").good
    got = read_light(store, failOnDataLoss=False, readIsolation=ALL)
    assert offsets(got.rows) == message_offsets(left)


def test_a_range_may_begin_or_end_inside_of_a_batch_of_java() -> None:
    topic = "GoldenBatch-bcq"
    for start, stop in ((0, 12), (3, 12), (4, 12), (6, 11), (11, 12), (12, 12), (0, 5), (5, 6)):
        starts, stops = ({topic: {reading.BROKER: {"0": number}}} for number in (start, stop))
        got = read_light(
            golden.unpack("5.5.0", "v5"), topic=topic, startingOffsets=starts, endingOffsets=stops
        )
        assert [row["queue_offset"] for row in got.rows] == list(range(start, stop))


# --- partitions -------------------------------------------------------------


@pytest.mark.parametrize(
    "split",
    [
        {"maxBytesPerPartition": "1k"},
        {"maxBytesPerPartition": "20k"},
        {"minPartitions": 50},
        {"maxRecordsPerPartition": 10},
    ],
    ids=str,
)
@VERSION
@pytest.mark.sampled(4)
def test_any_partitions_give_each_row_once(version: str, split: dict[str, Any]) -> None:
    store = golden.unpack(version, "unclean" if "minPartitions" in split else "clean")
    whole, parts = read_light(store), read_light(store, **split)
    assert len(parts.tasks) > len(whole.tasks)
    assert len(parts.tasks) >= split.get("minPartitions", 1)
    assert parts.rows == whole.rows
    ranges = [task.partition for task in parts.tasks]
    assert all(isinstance(part, plan.LogRange) for part in ranges)
    total = sum(task.partition.byte_count for task in whole.tasks)
    assert sum(part.byte_count for part in ranges) == total
    if split.get("maxBytesPerPartition") == "20k":
        assert max(part.byte_count for part in ranges) <= 20 * 1024
    for topic in ("GoldenOne", "GoldenFour"):
        by_queue = read_light(store, topic=topic, scan="consumequeue", **split)
        wanted = [row["physical_offset"] for row in whole.rows if row["topic"] == topic]
        assert sorted(offsets(by_queue.rows)) == wanted
        counts = [
            sum(piece.count for piece in task.partition.slices)
            for task in by_queue.tasks
            if isinstance(task.partition, plan.QueueRange)
        ]
        assert max(counts) <= split.get("maxRecordsPerPartition", 1 << 30)


@TORN
@pytest.mark.sampled(6)
def test_any_partitions_report_damage_once(version: str, variant: str) -> None:
    store = golden.unpack(version, f"torn/{variant}")
    is_damaged = bool(reading.damaged(version, variant).runs)
    options = {"mode": "PERMISSIVE", "failOnDataLoss": variant != "cq-ahead"}
    whole = read_light(store, **options)
    assert bool(whole.damage) == is_damaged
    sizes = ("1000", "20001") if version == "4.9.7" else ("20001",)
    for size in sizes if is_damaged else sizes[-1:]:
        parts = read_light(store, maxBytesPerPartition=size, **options)
        assert parts.messages == whole.messages
        assert reading.runs(parts.damage) == reading.runs(whole.damage), size


def test_partitions_cut_beside_damage_report_it_once(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(70))
    path, start = built.log_file(1), built.log_file_bytes
    data = bytearray(path.read_bytes())
    bad = [message for message in built.messages if message.physical_offset >= start][2]
    position, size = bad.physical_offset - start, bad.store_size + 20
    data[position : position + size] = b"\xee" * size
    path.write_bytes(data)
    planner = reading.scan(built.root, mode="PERMISSIVE", columns="physical_offset,_corrupt_record")

    def rows_of(*ranges: plan.LogRange) -> list[Any]:
        tasks = [replace(task, partition=part) for part in ranges]
        return [[*row.values()] for row in reading.rows_of(planner, tasks)]

    (task,) = planner.tasks()
    whole = rows_of(task.partition)
    assert sum(note is not None for _, note in whole) == 1
    stop = task.partition.stop
    near = [bad.physical_offset, bad.physical_offset + size]
    around = [
        position + step for position in near for step in (*range(-40, 0, 7), *range(-3, 4), 50, 150)
    ]
    for middle in (*around, *range(1, stop, 331)):
        halves = plan.LogRange(0, 0, middle, False), plan.LogRange(0, middle, stop, True)
        assert sorted(rows_of(*halves), key=str) == sorted(whole, key=str), middle


# --- filters ----------------------------------------------------------------


def test_the_plan_of_a_lookup_and_of_a_topic() -> None:
    key = next(
        word for m in golden.messages("4.9.7", "clean") for word in (m["keys"] or "").split()
    )
    got = read_light(clean("4.9.7"), key=key)
    assert any(isinstance(task.partition, plan.Points) for task in got.tasks)
    assert "index names" in got.summary
    got = read_light(clean("4.9.7"), topic="GoldenBatch")
    assert "consume queues, about" in got.summary
    assert "log scan of 0 bytes" in got.summary


def test_a_unique_key_in_the_form_of_an_offset_id_is_no_damage(tmp_path: Path) -> None:
    """Both have 32 digits: the key's digits usually point into the middle of a record."""
    host = store_builder.HOST
    keys = [message_id.encode_offset_id(replace(host, port=port), 150) for port in (1, 2)]
    messages = [
        store_builder.message("T", b"x" * 100, unique_key=keys[0]),
        store_builder.message("T", b"x" * 100),
    ]
    built = store_builder.build(tmp_path / "store", messages)
    got = read(built.root, from_values("msg_id", keys))
    assert offsets(got.rows) == [0]
    own = message_id.offset_id(built.messages[1])
    assert offsets(read(built.root, from_values("msg_id", [own])).rows) == offsets(
        read(built.root).rows[1:]
    )


def test_messages_of_a_deleted_topic_are_found_by_key(tmp_path: Path) -> None:
    """The index has keys by topic, and no table names the topic any more."""
    built = store_builder.build(tmp_path / "store", store_builder.messages(60))
    shutil.rmtree(built.root / "consumequeue" / "TopicB")
    table = built.root / "config" / "topics.json"
    topics = json.loads(table.read_text())
    del topics["topicConfigTable"]["TopicB"]
    table.write_text(json.dumps(topics))
    for number in (0, 1, 40, 41):
        got = read_light(built.root, key=f"key-{number}")
        assert offsets(got.rows) == [built.messages[number].physical_offset]
    shutil.rmtree(built.root / "config")
    shutil.rmtree(built.root / "consumequeue")
    got = read_light(built.root, key="key-40")
    assert offsets(got.rows) == [built.messages[40].physical_offset]


def test_a_wrong_index_costs_a_scan_but_no_row(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(60), slots=4)
    path = built.index_file(0)
    data = bytearray(path.read_bytes())
    data[40 : 40 + 16] = struct.pack(">4i", 99999, 99999, 99999, 99999)
    path.write_bytes(data)
    got = read_light(built.root, key="key-3")
    assert offsets(got.rows) == [built.messages[3].physical_offset]
    assert "index not used" in got.summary


def test_index_entries_of_missing_records_are_no_damage(tmp_path: Path) -> None:
    """A recovery cut the log; records written later have other bounds (README of golden)."""
    old = [store_builder.message("T", b"o" * n, keys=f"old{n}") for n in (10, 30, 50, 70)]
    new = [store_builder.message("T", b"n" * n, keys=f"new{n}") for n in (20, 45, 5, 60, 11)]
    before = store_builder.build(tmp_path / "before", old)
    after = store_builder.build(tmp_path / "after", new)
    shutil.rmtree(after.root / "index")
    shutil.copytree(before.root / "index", after.root / "index")
    for n in (10, 30, 50, 70):
        assert not read(after.root, key=f"old{n}", topic="T").rows


def test_ignored_parts_of_an_expression_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    got = read_light(clean("4.9.7"), sql92="TAGS = 'TagA' LIKE 'b'")
    assert offsets(got.rows) == offsets(read_light(clean("4.9.7"), sql92="TAGS = 'TagA'").rows)
    (warning,) = [
        record.getMessage() for record in caplog.records if "ignores" in record.getMessage()
    ]
    assert warning == (
        """SQL92 expression "TAGS = 'TagA' LIKE 'b'" means "TAGS = 'TagA'": RocketMQ ignores """
        """what follows, "LIKE 'b'\""""
    )


def test_predicates_on_store_times_skip_log_files(tmp_path: Path) -> None:
    messages = [
        store_builder.message("T", b"x" * 900, store_timestamp=store_builder.START_MS + i * 60_000)
        for i in range(40)
    ]
    built = store_builder.build(tmp_path / "store", messages)
    time_us = built.messages[20].store_timestamp * 1000
    got = read_light(built.root, from_span("store_timestamp", time_us, time_us))
    assert offsets(got.rows) == [built.messages[20].physical_offset]
    assert "store time skips 8 of 10 log files" in got.summary or "skips 9" in got.summary
    by_queue = read_light(
        built.root, from_span("store_timestamp", time_us, time_us), topic="T", scan="consumequeue"
    )
    assert offsets(by_queue.rows) == [built.messages[20].physical_offset]


# --- modes ------------------------------------------------------------------


@TORN
@pytest.mark.sampled(5)
def test_modes(version: str, variant: str) -> None:
    store, left = golden.unpack(version, f"torn/{variant}"), reading.damaged(version, variant)
    options = {"readIsolation": ALL, "failOnDataLoss": variant != "cq-ahead"}

    permissive = read(store, mode="PERMISSIVE", **options)
    for row in permissive.messages:
        assert row.pop("_corrupt_record") is None
    good = [reading.row_of(message) for message in left.good]
    assert [reading.comparable(version, row) for row in permissive.messages] == good
    assert reading.runs(permissive.damage) == left.runs
    for row in permissive.damage:
        known = {"physical_offset", "store_size", "_corrupt_record", "broker"}
        assert all(value is None for name, value in row.items() if name not in known)

    dropped = read_light(store, mode="DROPMALFORMED", **options)
    assert offsets(dropped.rows) == message_offsets(left.good)
    assert "_corrupt_record" not in dropped.rows[0]

    if left.runs:
        with pytest.raises(CorruptRecord) as error:
            read_light(store, mode="FAILFAST", **options)
        offset, _, reason = left.runs[0]
        file_bytes = int(golden.manifest(version, "clean")["config"]["mappedFileSizeCommitLog"])
        file = store / "commitlog" / f"{offset - offset % file_bytes:020d}"
        assert str(error.value).startswith(f"{file}, physical offset {offset}, ")
        assert str(error.value).endswith(f" bytes: {reason}")
    else:
        assert read_light(store, mode="FAILFAST", **options).rows == dropped.rows

    salvage = read_light(store, mode="SALVAGE", **options)
    whole = sorted([*message_offsets(left.good), *message_offsets(left.salvaged)])
    assert offsets(salvage.messages) == whole
    notes = {
        row["physical_offset"]: row["_corrupt_record"]
        for row in salvage.messages
        if row["_corrupt_record"]
    }
    assert notes == {message["commitLogOffset"]: reading.CRC_REASON for message in left.salvaged}
    assert reading.runs(salvage.damage) == ([] if left.salvaged else left.runs)


@VERSION
@pytest.mark.sampled(3)
def test_a_salvaged_record_is_complete_with_every_kind_of_scan(version: str) -> None:
    store = golden.unpack(version, "torn/crc-early")
    (bad,) = reading.damaged(version, "crc-early").salvaged
    wanted = {k: v for k, v in reading.row_of(bad).items() if k not in ("body", "properties")}
    light = {"includeBody": False, "includeHeaders": False, "readIsolation": ALL}
    ways: list[dict[str, Any]] = [
        {},
        {"topic": bad["topic"], "scan": "consumequeue"},
        {"topic": bad["topic"], "scan": "log"},
        {"uniqKey": bad["uniqKey"]},
        {"uniqKey": bad["uniqKey"], "topic": bad["topic"]},
        {"minPartitions": 100},
    ]
    for options in ways:
        got = read(store, mode="SALVAGE", **light, **options)
        (row,) = [row for row in got.rows if row["_corrupt_record"] is not None]
        assert row == {**wanted, "_corrupt_record": reading.CRC_REASON}, options
        with pytest.raises(CorruptRecord, match=reading.CRC_REASON):
            read(store, mode="FAILFAST", **options)
        got = read_light(store, checkCrc=False, readIsolation=ALL, **options)
        assert bad["commitLogOffset"] in offsets(got.rows)
        assert "_corrupt_record" not in got.rows[0]


def test_stale_records_after_the_end_of_the_log(tmp_path: Path) -> None:
    """A recovery cut the log and left the bytes: only salvage reads them."""
    messages = store_builder.messages(30)
    built = store_builder.build(tmp_path / "store", messages)
    kept = store_builder.build(tmp_path / "kept", messages[:20])
    cut = built.messages[20]
    path = built.log_file(cut.physical_offset // built.log_file_bytes)
    data = bytearray(path.read_bytes())
    position = cut.physical_offset % built.log_file_bytes
    data[position : position + 8] = b"\xff" * 8  # the first of them is unreadable
    path.write_bytes(data)
    for name in ("consumequeue", "index", "checkpoint"):
        target = built.root / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        source = kept.root / name
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    everything = [message.physical_offset for message in built.messages]
    for mode in MODES[:3]:
        assert offsets(read_light(built.root, mode=mode).rows) == everything[:20]
    got = read_light(built.root, mode="SALVAGE")
    assert offsets(got.messages) == everything[:20] + everything[21:]
    stale = [row for row in got.rows if row["_corrupt_record"]]
    assert offsets(stale) == everything[21:]
    assert {row["_corrupt_record"] for row in stale} == {
        "after the end of the log: truncated by a recovery"
    }
    assert "stale bytes after the end of the log" in got.summary


def test_damage_is_that_of_the_rows_read() -> None:
    """A row of damage has only its place; a predicate on another column excludes it."""
    store = golden.unpack("4.9.7", "torn/size-late")
    (run,) = reading.damaged("4.9.7", "size-late").runs
    for options in ({"endingPhysicalOffset": run[0]}, {"startingPhysicalOffset": run[0] + 1}):
        assert read_light(store, **options).rows
        assert not read_light(store, mode="PERMISSIVE", **options).damage
    with pytest.raises(CorruptRecord):
        read_light(store, endingPhysicalOffset=run[0] + 1)
    shown: list[dict[str, Any]] = [
        {"constraint": from_span("physical_offset", None, run[0])},
        {"constraint": from_span("physical_offset", 0, None)},
        {"constraint": Constraint(not_null=frozenset({"store_size"}))},
        {"topic": "GoldenOne"},
    ]
    hidden: list[dict[str, Any]] = [
        {"constraint": from_span("physical_offset", run[0] + 1, None)},
        {"constraint": from_values("topic", ["GoldenOne"])},
        {"constraint": Constraint(not_null=frozenset({"msg_id"}))},
        {"constraint": from_span("store_timestamp", 0, None)},
        *({"tags": "TagA"}, {"key": "k"}, {"sql92": "a = 1"}, {"startingTimestamp": 0}),
    ]
    for given in (*shown, *hidden):
        got = read_light(store, mode="PERMISSIVE", scan="log", **given)
        assert bool(got.damage) == (given in shown), given


@pytest.mark.parametrize("mode", MODES)
def test_a_body_that_cannot_be_decompressed(tmp_path: Path, mode: str) -> None:
    bad = store_builder.message("T", b"no zlib at all", sys_flag=flags.COMPRESSED)
    plain = [store_builder.message("T", body) for body in (b"plain", b"plain too")]
    built = store_builder.build(tmp_path / "store", [plain[0], bad, plain[1]])
    if mode == "FAILFAST":
        with pytest.raises(CorruptRecord, match="body is not zlib") as error:
            read(built.root, mode=mode)
        assert error.value.physical_offset == built.messages[1].physical_offset
        assert error.value.file == str(built.log_file(0))
    else:
        got = read(built.root, mode=mode)
        shown = [] if mode == "DROPMALFORMED" else [b"no zlib at all"]
        assert [row["body"] for row in got.rows] == [b"plain", *shown, b"plain too"]
        notes = [str(row.get("_corrupt_record")) for row in got.rows]
        assert ["body is not zlib" in note for note in notes] == [
            False,
            *(True for _ in shown),
            False,
        ]
    for options in ({"decompress": "none"}, {"includeBody": False}, {"columns": "topic,queue_id"}):
        planner = reading.scan(built.root, mode=mode, **options)
        assert len(reading.rows_of(planner, planner.tasks())) == 3


def test_a_damaged_table_does_not_prevent_reads_of_the_log(tmp_path: Path) -> None:
    store = golden.copy_store("4.9.7", "clean", tmp_path)
    everything = read_light(store).rows
    for table, options in (
        ("consumerOffset", {"startingOffsets": "group:CG_Offsets", "mode": "PERMISSIVE"}),
        ("topics", {}),
    ):
        for path in (store / "config").glob(f"{table}.json*"):
            path.write_text("{ not json")
        with pytest.raises(CorruptRecord, match=rf"config/{table}\.json"):
            read(store, **options)
        assert offsets(read_light(store, mode="PERMISSIVE").rows) == offsets(everything)
        assert read_light(store, mode="SALVAGE", topic="GoldenOne").rows


# --- columns and bodies -----------------------------------------------------


def test_large_decompressed_bodies_come_in_small_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "_PACKED_BYTES_A_BATCH", 1000)
    bodies = [b"x" * 100, zlib.compress(bytes(30_000))]
    messages = [store_builder.message("T", bodies[i % 2], sys_flag=i % 2) for i in range(60)]
    built = store_builder.build(tmp_path / "store", messages, log_file_bytes=1 << 20)
    planner = reading.scan(built.root)
    batches = [batch for task in planner.tasks() for batch in planner.read(task)]
    assert len(batches) > 3
    assert max(batch.nbytes for batch in batches) < 400_000
    assert [row["queue_offset"] for b in batches for row in b.to_pylist()] == list(range(60))


def test_a_charset_decodes_the_body(tmp_path: Path) -> None:
    texts = {"utf-8": "Grüße", "latin-1": "Grüße", "gb18030": "客户"}
    bodies = [text.encode(charset) for charset, text in texts.items()]
    messages = [store_builder.message("T", body) for body in (*bodies, b"\xff\xfe\x81")]
    built = store_builder.build(tmp_path / "store", messages)
    for number, (charset, text) in enumerate(texts.items()):
        rows = read(built.root, charset=charset).rows
        assert rows[number]["body"] == text
        assert isinstance(rows[-1]["body"], str)


@VERSION
@pytest.mark.sampled(3)
def test_bodies_as_stored_and_original_topics(version: str) -> None:
    messages = golden.messages(version, "clean")
    options = {"resolveTopics": True, "readIsolation": ALL, "decompress": "none"}
    for row, message in zip(read(clean(version), **options).rows, messages, strict=True):
        properties = message["properties"]
        assert row["topic"] == properties.get("REAL_TOPIC", message["topic"])
        assert row["queue_id"] == int(properties.get("REAL_QID", message["queueId"]))
        digest = hashlib.sha256(row["body"]).hexdigest()
        assert (len(row["body"]), digest) == (
            message["storedBodyLength"],
            message["storedBodySha256"],
        )
    assert any("REAL_TOPIC" in message["properties"] for message in messages)
    assert any(message["sysFlag"] & flags.COMPRESSED for message in messages)


def test_columns_have_the_requested_order() -> None:
    got = read(clean("4.9.7"), columns="msg_id, tags ,physical_offset")
    assert list(got.rows[0]) == ["msg_id", "tags", "physical_offset"]
    whole = read_light(clean("4.9.7"))
    assert [row["tags"] for row in got.rows] == [row["tags"] for row in whole.rows]


# --- counts -----------------------------------------------------------------


@TORN
@pytest.mark.sampled(5)
def test_counts_of_a_damaged_store_are_those_of_a_scan(version: str, variant: str) -> None:
    """Where a scan fails, damage would need a look at the messages."""
    store = golden.unpack(version, f"torn/{variant}")
    try:
        counts = reading.scan(store, failOnDataLoss=False).counts()
        rows = read_light(store, failOnDataLoss=False, scan="log").rows
    except CorruptRecord:
        return
    want = Counter((row["topic"], row["queue_id"]) for row in rows)
    assert counts is None or {(t, q): number for _, t, q, number in counts if number} == want


def test_counts_of_selected_queues() -> None:
    store, start = clean("4.9.7"), {"GoldenOne": {reading.BROKER: {"0": 3}}}
    for options in (
        {"topic": "GoldenOne,GoldenFour"},
        {"topic": "GoldenOne", "endingOffsets": start},
        {"subscribePattern": "Golden.*"},
    ):
        want = Counter((row["topic"], row["queue_id"]) for row in read_light(store, **options).rows)
        counts = reading.scan(store, **options).counts()
        assert counts is not None
        assert {(topic, queue): count for _, topic, queue, count in counts if count} == want != {}
    for options in (  # which need a look at the messages
        *({"mode": "PERMISSIVE"}, {"scan": "log"}, {"readIsolation": "all"}, {"tags": "TagA"}),
        *({"startingPhysicalOffset": 5}, {"key": "x"}, {"sql92": "a = 1"}, {"resolveTopics": True}),
    ):
        assert reading.scan(store, **options).counts() is None, options
