"""The dispatch job on golden and built stores, with tasks in this process; Spark: tests/spark."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import golden
import own_thread
import store_builder
import store_fixture
from reput import config
from reput.errors import InvalidOption, StoreUnavailable
from reput.format import (
    cq_unit,
    index_entry,
    message as record,
    properties as props,
    sys_flag as flags,
)
from reput.spark.jobs.dispatch import run_dispatch
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage
from spark.dispatch_setting import (
    FAMILIES,
    Here,
    Killed,
    assert_same,
    build,
    engine,
    files_of,
    small,
)

WHOLE = [(version, name) for version, name in golden.STORES if name in ("clean", "recovered", "v5")]
"""Stores without extension units whose log has all records that units point at."""
KEYS_LOST = ("recovered",)
"""Stores whose index lost keys in a crash of the Java broker (known-bugs.md#lost-index-files)."""


def dispatched(version: str, name: str, store: Path, target: Path, range_bytes: int) -> Any:
    """Dispatch a golden store with the configuration of the broker that wrote it."""
    written = "clean" if name.startswith("torn/") else name
    settings = dict(golden.manifest(version, written)["config"])
    settings.pop("storePathRootDir", None)
    settings.pop("storePathCommitLog", None)
    explicit = {"store_path_root_dir": str(store), "index_tags": version >= "5.4"}
    options = config.load(StoreConfig, settings, environment={}, explicit=explicit).value
    skips = {"skip_batch_queues": name == "v5"}
    return options, lambda: run_dispatch(
        Here(), str(store), config=options, target=str(target), range_bytes=range_bytes, **skips
    )


@pytest.mark.parametrize(("version", "name"), WHOLE)
@pytest.mark.sampled(4)
def test_queues_and_index_have_the_bytes_of_java(version: str, name: str, tmp_path: Path) -> None:
    store, target = golden.unpack(version, name), tmp_path / "target"
    _, run = dispatched(version, name, store, target, 5000)
    result = run()
    assert result.records == golden.manifest(version, name)["log"]["records"]
    assert result.ranges > 10
    assert result.holes == ()
    assert_same(target, store, [paths.CONSUME_QUEUE])
    if name in KEYS_LOST:
        return
    expected, written = (files_of(root, paths.INDEX) for root in (store, target))
    if version == "4.5.2":
        # 4.5.2 counts every entry as a new slot (known-bugs.md#index-slot-count).
        expected, written = (
            {number: _without_slots_used(file) for number, file in files.items()}
            for files in (expected, written)
        )
    assert written == expected


def _without_slots_used(data: bytes) -> bytes:
    header = dataclasses.replace(index_entry.unpack_header(data), slots_used=0)
    return index_entry.pack_header(header) + data[index_entry.HEADER.size :]


ENGINE = [store for store in golden.STORES if store[1] != "ext"] + [
    (version, f"torn/{name}")
    for version, name in store_fixture.some(golden.EACH_DAMAGE)
    if name != "log-short"  # the engine requires log files of one size
]


@pytest.mark.parametrize(("version", "name"), ENGINE)
@pytest.mark.sampled(10)
def test_queues_and_index_equal_those_of_the_store_engine(
    version: str, name: str, tmp_path: Path
) -> None:
    store, target = golden.copy_store(version, name, tmp_path), tmp_path / "target"
    options, run = dispatched(version, name, store, target, 7000)
    for family in FAMILIES:
        shutil.rmtree(store / family, ignore_errors=True)
    expected = engine(store, tmp_path, options)
    run()
    assert_same(target, expected)


# --- built stores ---------------------------------------------------------------------------


@given(seed=st.integers(0, 1 << 30), range_bytes=st.integers(100, 9000))
@settings(max_examples=6)
def test_the_files_do_not_depend_on_ranges_and_order(
    tmp_path_factory: pytest.TempPathFactory, seed: int, range_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    built = build(folder / "store", queue_offsets={("TopicA", 1): 30, ("TopicB", 0): 20})
    target = folder / "target"
    result = run_dispatch(
        Here(seed), str(built.root), config=small(built.root), target=str(target),
        range_bytes=range_bytes,
    )  # fmt: skip
    assert_same(target, built.root)
    assert (result.records, result.units, len(result.index_files)) == (120, 120, 10)
    assert result.index_entries == 120 * 3
    assert sorted(result.index_files) == list(result.index_files)
    assert sorted(path.name for path in target.iterdir()) == ["consumequeue", "index", "lock"]


def test_a_killed_run_gives_the_same_files_when_run_again(tmp_path: Path) -> None:
    built = build(tmp_path / "store")
    target = tmp_path / "target"

    def run(runner: Here) -> None:
        options = small(built.root)
        run_dispatch(runner, str(built.root), config=options, target=str(target), range_bytes=2000)

    kills = 0
    for seed in range(20):
        try:
            run(Here(seed, failing=0.05))
        except Killed:
            kills += 1
            is_published = (target / paths.CONSUME_QUEUE).exists()
            assert is_published == (target / paths.INDEX).exists()
            if is_published:
                assert_same(target, built.root)
    assert kills > 5
    run(Here())
    assert_same(target, built.root)


def test_a_run_killed_between_renames_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, expected = build(tmp_path / "store"), build(tmp_path / "expected").root
    options = small(built.root)
    rename = Disk.rename
    for allowed in range(5):
        left = [allowed]

        def limited(self: Disk, source: str, to: str, left: list[int] = left) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            rename(self, source, to)

        with monkeypatch.context() as patch:
            own_thread.replace(patch, Disk, "rename", limited)
            try:
                run_dispatch(Here(), str(built.root), config=options, in_place=True)
            except Killed:
                assert allowed < 4
            else:
                assert allowed == 4
        # Existing families are correct; a family that was moved aside is restored or replaced.
        for family in FAMILIES:
            if (built.root / family).exists():
                assert_same(built.root, expected, [family])
            else:
                assert (built.root / f"{family}.old").exists()
        run_dispatch(Here(), str(built.root), config=options, in_place=True)
        assert_same(built.root, expected)
        left_over = (".old", ".tmp", ".gone")
        assert not [path for path in built.root.iterdir() if path.suffix in left_over]


A_TURN = [(0, 0), (1, 0), (0, 1), (1, 1)]
PLACES: dict[str, list[tuple[int, int]]] = {
    "a topic created again": [(0, n) for n in (0, 1, 2, 3, 0, 1, 2, 3, 4, 5)],
    "a gap": [(0, n) for n in (7, 8, 9, 13, 14, 15)],
    "one damaged": [(0, n) for n in (0, 1, 1 << 40, 2, 3)],
    "the first one damaged": [(0, n) for n in (1 << 40, 4, 5, 6)],
    "a jump that is too far at first": [(0, n) for n in (0, 1, 2, *range(60, 120))],
    "backwards": [(0, n) for n in (5, 3, 4, 5, 6)],
    "a topic created again twice": [(0, n) for n in (0, 1, 2, 0, 1, 0)],
    "created again, the other queue ends before": [*A_TURN, (0, 2), (0, 0)],
    "created again, the other queue ends after": [*A_TURN, (0, 0)],
    "both queues begin again": [*A_TURN, (0, 0), (1, 0), (0, 1)],
}
"""Queue id and queue offset of records, in the order of the log."""


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.sampled(2)
def test_queue_offsets_that_are_not_consecutive(name: str, tmp_path: Path) -> None:
    places = PLACES[name]
    messages = store_builder.messages(len(places), topics=1, queues=1)
    placed = [
        dataclasses.replace(message, queue_id=queue_id, queue_offset=queue_offset)
        for message, (queue_id, queue_offset) in zip(
            store_builder.place(messages, 4096), places, strict=True
        )
    ]
    root = tmp_path / "store"
    (root / paths.COMMIT_LOG).mkdir(parents=True)
    for start, data in store_builder.log_files(placed, 4096).items():
        (root / paths.COMMIT_LOG / paths.offset_name(start)).write_bytes(data)
    expected = engine(root, tmp_path, small(root))
    for range_bytes in (400, 100_000):
        target = tmp_path / f"target-{range_bytes}"
        run_dispatch(
            Here(), str(root), config=small(root), target=str(target), range_bytes=range_bytes
        )
        assert_same(target, expected)


def test_messages_without_unit_or_entry_or_with_another_code(tmp_path: Path) -> None:
    message = store_builder.message
    light = {props.INNER_MULTI_DISPATCH: "%LMQ%a,TopicB", props.INNER_MULTI_QUEUE_OFFSET: "4,0"}
    messages = [
        message("TopicA", b"1", tags="TagA", keys="k", sys_flag=flags.TRANSACTION_PREPARED),
        message("TopicA", b"2", tags="TagA", keys="k l", sys_flag=flags.TRANSACTION_COMMIT),
        message("TopicA", b"3", tags="TagA", keys="k", sys_flag=flags.TRANSACTION_ROLLBACK),
        message("SCHEDULE_TOPIC_XXXX", b"4", queue_id=2, properties={props.DELAY: "3"}, tags="T"),
        message("SCHEDULE_TOPIC_XXXX", b"5", queue_id=2, properties={props.DELAY: "99"}),
        message("SCHEDULE_TOPIC_XXXX", b"6", queue_id=2, properties={props.DELAY: "x"}, tags="T"),
        message("TopicA", b"7", properties=light, tags="TagL"),
        message("%RETRY%group", b"8", properties=light),
        message("a/b", b"9", keys="nowhere"),
        message("TopicA", b"10", queue_id=70_000, keys="far"),
    ]
    root = store_builder.build(tmp_path / "store", messages, queue_file_units=10, entries=40).root
    options = {"enable_multi_dispatch": True, "index_tags": True}
    expected = engine(root, tmp_path, small(root, **options))
    for range_bytes in (150, 100_000):
        target = tmp_path / f"target-{range_bytes}"
        result = run_dispatch(
            Here(), str(root), config=small(root, **options), target=str(target),
            range_bytes=range_bytes,
        )  # fmt: skip
        assert_same(target, expected)
        assert result.unqueued == {"no queue can have their topic and queue id": 1}
        assert (target / "consumequeue/%LMQ%a/0").exists()
        assert not (target / "consumequeue/a").exists()


def test_a_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    root = build(tmp_path / "store").root
    options = small(root)
    with MessageStore.open(config=options) as store:
        store.delete_topic("TopicB")
    expected = engine(root, tmp_path, small(root))
    target = tmp_path / "target"
    result = run_dispatch(Here(), str(root), config=options, target=str(target), range_bytes=1500)
    assert_same(target, expected)
    assert not (target / "consumequeue/TopicB").exists()
    assert result.units == 80


# --- parts, dry runs, refusals ---------------------------------------------------------------


def test_a_topic_in_place_leaves_the_others(tmp_path: Path) -> None:
    built = build(tmp_path / "store")
    broken = [built.queue_file(topic) for topic in ("TopicA", "TopicB")]
    good = [path.read_bytes() for path in broken]
    for path in broken:
        path.write_bytes(bytes(len(good[0])))
    result = run_dispatch(
        Here(), str(built.root), config=small(built.root), topics=["TopicA"], in_place=True
    )
    assert (result.queues, result.units, result.index_files) == (2, 40, ())
    assert (result.is_same, json.loads(json.dumps(result.as_json()))["units"]) == (None, 40)
    assert broken[0].read_bytes() == good[0]
    assert broken[1].read_bytes() == bytes(len(good[0]))
    assert files_of(built.root, paths.INDEX)
    assert not (built.root / "dispatch.tmp").exists()


def test_a_time_range_equals_a_log_of_that_part(tmp_path: Path) -> None:
    built = build(tmp_path / "store")
    low, high = built.messages[33], built.messages[77]
    target = tmp_path / "target"
    result = run_dispatch(
        Here(), str(built.root), config=small(built.root), target=str(target), range_bytes=900,
        start_ms=low.store_timestamp, end_ms=high.store_timestamp,
    )  # fmt: skip
    assert (result.log_start, result.log_end) == (low.physical_offset, high.physical_offset)
    assert result.records == result.units == 44
    expected = store_builder.queue_files(built.messages[33:77], 10)
    queue_files = files_of(target, paths.CONSUME_QUEUE)
    assert queue_files == {
        f"{topic}/{queue_id}/{paths.offset_name(start)}": bytes(data)
        for (topic, queue_id), files in expected.items()
        for start, data in files.items()
    }


def test_a_dry_run_reports_each_difference_and_writes_nothing(tmp_path: Path) -> None:
    built = build(tmp_path / "store")
    options = small(built.root)

    def dry_run(**more: Any) -> Any:
        result = run_dispatch(
            Here(), str(built.root), config=options, dry_run=True, range_bytes=2000, **more
        )
        assert result.target is None
        assert result.is_same == result.as_json()["is_same"] == result.difference.is_same
        return result.difference

    assert dry_run().is_same
    before = {path for path in built.root.rglob("*") if path.is_file()}
    queue_file = built.queue_file("TopicA", number=0)
    data = bytearray(queue_file.read_bytes())
    data[3 * cq_unit.SIZE + 19] ^= 1
    data[5 * cq_unit.SIZE : 6 * cq_unit.SIZE] = bytes(cq_unit.SIZE)
    queue_file.write_bytes(data)
    built.queue_file("TopicB", 1, number=1).unlink()
    extra = built.root / "consumequeue/TopicZ/4" / paths.offset_name(0)
    extra.parent.mkdir(parents=True)
    unit = cq_unit.pack(cq_unit.Unit(5, 100, 0))
    extra.write_bytes(unit * 2 + bytes(8 * cq_unit.SIZE))
    index = sorted((built.root / "index").iterdir())
    damaged = bytearray(index[1].read_bytes())
    damaged[77] ^= 1
    index[1].write_bytes(damaged)
    index[-1].unlink()
    difference = dry_run()
    assert [dataclasses.astuple(queue_file) for queue_file in difference.queues] == [
        ("TopicA", 0, 1, 1, 0),
        ("TopicB", 1, 10, 0, 0),
        ("TopicZ", 4, 0, 0, 2),
    ]
    assert [dataclasses.astuple(queue_file) for queue_file in difference.index] == [
        (1, index[1].name, 77),
        (9, None, None),
    ]
    after = {path for path in built.root.rglob("*") if path.is_file()}
    assert after - before == {extra}
    assert dry_run(topics=["TopicC"]).is_same
    run_dispatch(Here(), str(built.root), config=options, in_place=True)
    assert dry_run().is_same
    empty = tmp_path / "empty"
    empty.mkdir()
    missing = dry_run(target=str(empty))
    assert sum(queue_file.missing for queue_file in missing.queues) == 120
    assert len(missing.index) == 10


def test_the_store_engine_continues_after_the_job(tmp_path: Path) -> None:
    built = build(tmp_path / "store")
    options = small(built.root)
    with MessageStore.open(config=options):
        pass
    shutil.rmtree(built.root / paths.CONSUME_QUEUE)
    run_dispatch(Here(), str(built.root), config=options, in_place=True)
    with MessageStore.open(config=options) as store:
        assert store.recovery.rebuilt_queues == []
        assert store.max_offset("TopicA", 0) == 20
    assert_same(built.root, build(tmp_path / "again").root)


@pytest.mark.parametrize("part", ["body", "properties"])
def test_a_record_torn_by_an_earlier_crash_gets_no_unit(part: str, tmp_path: Path) -> None:
    """The broker skipped it, and gave its queue offset again: rebuilt queues have to agree."""
    root = tmp_path / "store"
    options = small(root, mapped_file_size_commit_log=64 * 1024)
    store = MessageStore.open(config=options)
    keys = f"KEYS\1{'k' * 600}\2".encode()  # more than a sector
    ends = [
        store.put(IncomingMessage("TopicA", b"b" * 700, queue_id, keys)).end_offset
        for queue_id in [0] * 18 + [1]
    ]
    store.abandon()
    zeros = (ends[17] - 1_000, 10) if part == "body" else (ends[17] & -512, ends[17] % 512)
    with next((root / paths.COMMIT_LOG).iterdir()).open("r+b") as file:
        file.seek(zeros[0])
        file.write(bytes(zeros[1]))
    with MessageStore.open(config=options) as store:
        assert [hole.physical_offset for hole in store.recovery.holes] == [ends[16]]
        for body in (b"after", b"the crash"):
            store.put(IncomingMessage("TopicA", body))
        store.step()
    expected = files_of(root, paths.CONSUME_QUEUE)
    with MessageStore.open(config=options) as store:
        (data,) = store.get("TopicA", 0, 17, 1).records
        assert record.decode(data).body == b"after"
    result = run_dispatch(Here(), str(root), config=options, target=str(tmp_path / "target"))
    assert [hole[0] for hole in result.holes] == [ends[16]]
    assert files_of(tmp_path / "target", paths.CONSUME_QUEUE) == expected
    shutil.rmtree(root / paths.CONSUME_QUEUE)
    with MessageStore.open(config=options) as store:
        assert store.recovery.was_clean
        assert store.recovery.rebuilt_queues == [("TopicA", 0), ("TopicA", 1)]
    assert files_of(root, paths.CONSUME_QUEUE) == expected


def test_invalid_options_are_refused(tmp_path: Path) -> None:
    built, other = build(tmp_path / "store"), build(tmp_path / "other")
    root, options = str(built.root), small(built.root)
    extended = small(built.root, enable_consume_queue_ext=True)
    wrong = small(built.root, mapped_file_size_consume_queue=4000)
    here: dict[str, Any] = {"config": options, "in_place": True}
    dry: dict[str, Any] = {"config": options, "dry_run": True}
    refusals: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (InvalidOption, "a folder to write to, or in_place", {"config": options}),
        (InvalidOption, "target", {**here, "target": root}),
        (InvalidOption, "in_place", {"config": options, "target": f"{root}/../store"}),
        (InvalidOption, "in_place", {**here, "start_ms": 1}),
        (InvalidOption, "range_bytes", {**dry, "range_bytes": 0}),
        (
            InvalidOption,
            "share; object stores",
            {"config": options, "target": "s3://bucket/rebuilt"},
        ),
        (InvalidOption, "no store", {"config": options, "target": str(other.root)}),
        (InvalidOption, "enableConsumeQueueExt", {**dry, "config": extended}),
        (StoreUnavailable, "mappedFileSizeConsumeQueue", {**here, "config": wrong}),
    ]
    for kind, text, refused in refusals:
        with pytest.raises(kind, match=text):
            run_dispatch(Here(), root, **refused)
    with MessageStore.open(config=options):
        for options_of in (here, dry):
            with pytest.raises(StoreUnavailable, match="in use"):
                run_dispatch(Here(), root, **options_of)
    with pytest.raises(StoreUnavailable, match="no store"):
        run_dispatch(Here(), str(tmp_path), **here)
    assert not (tmp_path / "lock").exists()
    (built.root / paths.BATCH_CONSUME_QUEUE / "TopicB" / "0").mkdir(parents=True)
    with pytest.raises(StoreUnavailable, match=r"'TopicB'.*skip_batch_queues"):
        run_dispatch(Here(), root, **dry)
