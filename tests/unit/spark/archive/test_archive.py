"""Archives return what was archived. Jobs run in this process; stores give expected values."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import golden
import own_thread
from reput.errors import CorruptRecord, InvalidOption, StoreUnavailable
from reput.format import names
from reput.format.message import Verdict
from reput.spark.archive import files, view as archive_view, write as archive_write
from reput.spark.archive.view import ArchiveReader
from reput.spark.filters import Constraint
from reput.spark.jobs import archive as archive_job, restore as restore_module
from reput.spark.jobs.archive import ArchiveResult
from reput.spark.jobs.packing import pack
from reput.spark.jobs.restore import RestoreResult, restore as restore_job
from reput.spark.jobs.running import TaskFailed
from reput.spark.store_planner import DataLoss
from reput.store.files.disk import Disk
from reput.store.files.files import open_folder
from reput.store.log.archived import HEADER, MANIFESTS, is_archived, manifest_path
from reput.store.message_store import MessageStore
from reput.store.reader import Boundary, StoreReader
from reput.store.writing.incoming import IncomingMessage
from spark import reading
from spark.in_process import InProcess
from spark.jobs_setting import files_below, settings

SESSION: Any = InProcess()
ALL_STORES = [
    *golden.EACH_STORE,
    *((version, f"torn/{variant}") for version, variant in golden.EACH_DAMAGE),
]
"""Each kind of store and damage in one of the versions; with ``make soak`` in all."""
EVERY_STORE = pytest.mark.parametrize(("version", "name"), ALL_STORES)
VERSION = pytest.mark.parametrize("version", golden.VERSIONS)
GROUP = "CG_Offsets"
MOVED = ("physical_offset", "offset_msg_id", "msg_id")
"""Columns that depend on the position of a record."""


@pytest.fixture(scope="module", autouse=True)
def hurried() -> Iterator[None]:
    """Skip syncs, which take long: no test here is about power loss."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Disk, "sync_file", lambda *_: None)
        patch.setattr(Disk, "sync_folder", lambda *_: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def archived_once(hurried: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Archive each log file only once: the variants of a store share most of them.

    Tests that must archive again use ``afresh``.
    """
    known: dict[tuple[object, ...], tuple[files.Manifest, Path]] = {}

    def write(segment: archive_write.Segment) -> files.Manifest:
        data = (Path(segment.store) / "commitlog" / f"{segment.start:020d}").read_bytes()
        asked = dataclasses.replace(segment, store="", archive="")
        key = (hashlib.sha256(data).hexdigest(), asked, archive_write.ROW_GROUP_BYTES)
        archived = Path(segment.archive)
        if key in known:
            manifest, kept = known[key]
            copy_pieces(manifest, kept, archived)
        else:
            manifest = archive_write.write_segment(segment)
            # A separate folder: a test's folder is deleted after it.
            kept = tmp_path_factory.mktemp("segment")
            copy_pieces(manifest, archived, kept)
            known[key] = manifest, kept
        return manifest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive_job, "write_segment", write)
        yield


def copy_pieces(manifest: files.Manifest, archived: Path, into: Path) -> None:
    """Copy the files of one log file from an archive into another archive."""
    for path in (*(piece.path for piece in manifest.pieces), manifest_path(manifest.start)):
        target = into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy(archived / path, target)


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Archive every log file from its own bytes."""
    monkeypatch.setattr(archive_job, "write_segment", archive_write.write_segment)


def archive(store: Path, into: Path, **options: Any) -> ArchiveResult:
    options = {"include_last": True, "broker": reading.BROKER, **options}
    return archive_job.archive(SESSION, str(store), str(into), **options)


def restore(archive: Path, store: Path, **options: Any) -> RestoreResult:
    return restore_job(SESSION, str(archive), str(store), **options)


def manifests_of(archive: Path) -> list[files.Manifest]:
    return files.load_manifests(open_folder(str(archive)))


def verify(archive: Path) -> archive_job.VerifyResult:
    return archive_job.verify(SESSION, str(archive))


def assert_same(
    store: Path, archive: Path, constraint: Constraint | None = None, **options: Any
) -> reading.Read:
    """Read a store and its archive with the same options."""
    options = {"broker": reading.BROKER, "readIsolation": "all", **options}
    want, got = (reading.read(place, constraint, **options) for place in (store, archive))
    assert got.messages == want.messages
    assert reading.runs(got.damage) == reading.runs(want.damage)
    return got


class Archives:
    """``clean`` of each version, and an archive of the whole of it, made when a test needs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, version: str) -> tuple[Path, Path]:
        store, into = golden.unpack(version, "clean"), self._folder / version
        if not into.exists():
            archive(store, into)
        return store, into


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return Archives(tmp_path_factory.mktemp("archive"))


# Reading ------------------------------------------------------------------------------------


@EVERY_STORE
@pytest.mark.sampled(8)
def test_an_archive_is_read_and_restored_like_its_store(
    version: str, name: str, tmp_path: Path
) -> None:
    store = golden.unpack(version, name)
    result = archive(store, tmp_path / "archive")
    got = assert_same(store, tmp_path / "archive", mode="PERMISSIVE", failOnDataLoss=False)
    record_count = len({row["physical_offset"] for row in got.messages})
    assert result.messages == record_count
    assert verify(tmp_path / "archive").problems == ()
    if any(row["_corrupt_record"] == "the file is missing" for row in got.damage):
        with pytest.raises(StoreUnavailable, match="repack=True"):
            restore(tmp_path / "archive", tmp_path / "back")
        return
    back = restore(tmp_path / "archive", tmp_path / "back")
    assert back.is_identical
    assert back.messages == record_count
    old = files_below(store / "commitlog")
    new = files_below(tmp_path / "back" / "commitlog")
    assert new.items() <= old.items()
    # The missing files hold no part of the log.
    end = StoreReader.open(str(store)).end_offset
    assert all(int(key) >= end for key in old.keys() - new.keys())


@VERSION
@pytest.mark.sampled(3)
def test_columns_and_partitions_are_those_of_the_store(version: str, archives: Archives) -> None:
    for options in (
        {"resolveTopics": True},
        {"rawProperties": True, "charset": "utf-8"},
        {"decompress": "none", "includeHeaders": False},
        {"minPartitions": 7},
        {"maxBytesPerPartition": "10k"},
        {"maxRecordsPerPartition": 20},
        {"startingOffsets": f"group:{GROUP}", "failOnDataLoss": False},
    ):
        assert assert_same(*archives[version], **options).messages
    got = assert_same(*archives[version], Constraint(topics=frozenset({"GoldenOne"})))
    read = {path for task in got.tasks for path, _ in task.partition.row_groups}
    assert read
    assert all("topic=GoldenOne/" in path for path in read)
    with pytest.raises(DataLoss, match="'Nowhere' is not in"):
        reading.read(archives[version][1], topic="Nowhere")
    pattern = f"{archives[version][1].parent}/{version[:3]}*"
    count = len(golden.messages(version, "clean"))
    assert len(reading.read_light(pattern, readIsolation="all").messages) == count


@VERSION
@pytest.mark.sampled(3)
def test_lookups_by_key_and_id(version: str, archives: Archives) -> None:
    messages = golden.messages(version, "clean")
    word = next(message["keys"] for message in messages if message["keys"]).split(" ")[0]
    unique = next(message["uniqKey"] for message in messages if message["uniqKey"])
    for options in ({"key": word}, {"uniqKey": unique}):
        got = assert_same(*archives[version], **options)
        assert got.messages
        assert "index names" in got.summary
        assert "log scan of 0 bytes" in got.summary
    reader = ArchiveReader.open(str(archives[version][1]))
    (looked_up,) = reader.messages_by_id(messages[7]["offsetMsgId"])
    assert looked_up.physical_offset == messages[7]["commitLogOffset"]


@VERSION
@pytest.mark.sampled(3)
def test_offsets_by_time_equal_those_of_the_store(version: str, archives: Archives) -> None:
    store, archived = archives[version]
    old, new = StoreReader.open(str(store)), ArchiveReader.open(str(archived))
    times = sorted({message["storeTimestamp"] for message in golden.messages(version, "clean")})
    assert new.end_offset == old.end_offset
    assert {*new.queue_ids} <= {*old.queue_ids}
    for topic, ids in new.queue_ids.items():
        assert old.queue_ids[topic] == ids
        for queue_id in ids:
            queues = [reader.queue(topic, queue_id) for reader in (old, new)]
            bounds = {(queue.min_offset, queue.max_offset) for queue in queues}
            assert len(bounds) == 1
            for time_ms in (*times[:: len(times) // 2], times[0] - 1, times[-1] + 1):
                for boundary in Boundary:
                    arguments = (topic, queue_id, time_ms, boundary)
                    assert new.offset_by_time(*arguments) == old.offset_by_time(*arguments)


class _Bucket:
    """Replaces ``pyarrow.fs.FileSystem``: ``s3://bucket/PATH`` is PATH on this machine."""

    @staticmethod
    def from_uri(uri: str) -> tuple[Any, str]:
        scheme, _, path = uri.partition("://bucket")
        if scheme != "s3":
            raise ValueError(f"no file system for {uri}")
        return pyarrow.fs.LocalFileSystem(), path


def test_an_archive_at_a_uri_is_the_same_archive(
    tmp_path: Path, archives: Archives, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, local = archives["4.9.7"]
    monkeypatch.setattr(pyarrow.fs, "FileSystem", _Bucket)
    monkeypatch.setattr(archive_job, "write_segment", archive_write.write_segment)
    location = f"s3://bucket{tmp_path}/archive"
    archive_job.archive(SESSION, str(store), location, include_last=True, broker=reading.BROKER)
    assert files_below(tmp_path / "archive") == files_below(local)
    manifests = manifests_of(local)
    again = archive_job.archive(SESSION, str(store), location, broker=reading.BROKER)
    assert (again.log_files, again.already_archived) == (0, len(manifests) - 1)
    assert archive_job.verify(SESSION, location).problems == ()
    assert is_archived(location, 0, manifests[0].size)
    assert not is_archived(f"{location}-not-there", 0, manifests[0].size)

    key = next(m["keys"] for m in golden.messages("4.9.7", "clean") if m["keys"]).split(" ")[0]
    for asked in ({}, {"key": key}, {"includeBody": False}):
        read = {"broker": reading.BROKER, "readIsolation": "all", **asked}
        got, want = reading.read(location, **read), reading.read(local, **read)
        assert got.messages == want.messages != []
    assert restore_job(SESSION, location, str(tmp_path / "back")).is_identical
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        archive_job.archive(SESSION, str(store), "gs://other/archive", broker="b")


def test_a_read_without_bodies_reads_no_body_column(
    archives: Archives, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, archived = archives["5.5.0"]
    place = "msg_id,physical_offset,keys"
    asked: set[str] = set()
    real = archive_view.ArchivedLog.read_row_group

    def read(self: Any, path: str, number: int, columns: list[str]) -> Any:
        asked.update(columns)
        return real(self, path, number, columns)

    monkeypatch.setattr(archive_view.ArchivedLog, "read_row_group", read)
    for options in ({"includeBody": False}, {"columns": f"{place},store_size,body_crc"}):
        assert assert_same(store, archived, **options).messages
    assert asked == {"record_head", "record_tail"}
    assert assert_same(store, archived, columns=f"{place},body").messages
    assert "body" in asked


# Damage -------------------------------------------------------------------------------------


@VERSION
@pytest.mark.parametrize("kind", ["crc-", "size-late"])
@pytest.mark.sampled(4)
def test_damage_is_reported_as_in_the_store(version: str, kind: str, tmp_path: Path) -> None:
    variants = golden.torn_variants(version)
    variant = next(name for name in variants if name.startswith((kind, "crc-")))
    store = golden.unpack(version, f"torn/{variant}")
    archive(store, tmp_path / "archive")
    for mode in ("PERMISSIVE", "DROPMALFORMED", "SALVAGE"):
        assert_same(store, tmp_path / "archive", mode=mode)
    assert_same(store, tmp_path / "archive", mode="PERMISSIVE", checkCrc=False)
    errors = []
    for place in (store, tmp_path / "archive"):
        with pytest.raises(CorruptRecord) as raised:
            reading.read(place)
        error = raised.value
        errors.append((error.reason, error.physical_offset, error.length))
    assert errors[0] == errors[1]
    left = reading.damaged(version, variant)
    for message in left.salvaged:
        with pytest.raises(CorruptRecord, match="BODYCRC"):
            reading.read(tmp_path / "archive", uniqKey=message["uniqKey"])
    kept = left.good[0]["uniqKey"]
    assert len(reading.read(tmp_path / "archive", uniqKey=kept).messages) == 1


def test_the_manifest_has_the_damage_with_its_bytes(tmp_path: Path) -> None:
    store = golden.unpack("4.9.7", "torn/size-late")
    result = archive(store, tmp_path)
    (run,) = reading.damaged("4.9.7", "size-late").runs
    assert (result.damaged_runs, result.damaged_bytes) == (1, run[1])
    reader = ArchiveReader.open(str(tmp_path))
    ((manifest, damage),) = reader.damage()
    assert manifest is not None
    assert (damage.physical_offset, damage.length) == run[:2]
    assert damage.verdict is Verdict.BAD_LENGTH
    kept = reader.log.file_bytes(manifest.start)
    position = run[0] - manifest.start
    old = (store / "commitlog" / manifest.name).read_bytes()
    assert kept[position : position + run[1]] == old[position : position + run[1]]


# Archiving ----------------------------------------------------------------------------------


@VERSION
@pytest.mark.usefixtures("afresh")
@pytest.mark.sampled(3)
def test_a_second_run_does_nothing_and_a_forced_run_writes_the_same(
    version: str, tmp_path: Path
) -> None:
    store = golden.unpack(version, "clean")
    first = archive(store, tmp_path / "a")
    written = files_below(tmp_path / "a")
    again = archive(store, tmp_path / "a", include_last=False)
    assert (again.log_files, again.left) == (0, 1)
    assert again.already_archived == first.log_files - 1
    for path in (tmp_path / "a" / MANIFESTS).iterdir():
        path.unlink()
    (tmp_path / "a" / files.MESSAGES / ".x.parquet.1.tmp").write_bytes(b"half")
    assert archive(store, tmp_path / "a") == first
    assert files_below(tmp_path / "a") == written


@pytest.mark.usefixtures("afresh")
def test_two_attempts_of_a_task_do_not_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt starts after the first has ended, and is killed at each of its writes."""
    store = golden.unpack("4.9.7", "clean")
    end = StoreReader.open(str(store)).end_offset
    assert end > 64 * 1024
    segment = archive_write.Segment(str(store), str(tmp_path), 0, 64 * 1024, True, "b")
    archive_write.write_segment(segment)
    written = files_below(tmp_path)
    rename, left = Disk.rename, [0]

    def die(self: Disk, source: str, target: str) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        rename(self, source, target)

    with monkeypatch.context() as patch:
        own_thread.replace(patch, Disk, "rename", die)
        for writes in range(len(written)):
            left[0] = writes
            with pytest.raises(KeyboardInterrupt):
                archive_write.write_segment(segment)
            assert files_below(tmp_path) == written
            assert is_archived(str(tmp_path), 0, 64 * 1024)
    with ThreadPoolExecutor(2) as pool:
        both = [*pool.map(archive_write.write_segment, [segment, segment])]
    assert both[0] == both[1]
    assert files_below(tmp_path) == written


def test_a_log_that_grew_is_archived_again(tmp_path: Path) -> None:
    store = golden.copy_store("4.9.7", "recovered", tmp_path)
    archive(store, tmp_path / "a")
    before = ArchiveReader.open(str(tmp_path / "a")).manifests[-1]
    assert not before.is_closed
    with MessageStore.open(str(store), settings("4.9.7", "recovered")) as opened:
        for i in range(200):
            opened.put(
                IncomingMessage("Later", b"x" * 1000, property_bytes=b"KEYS\x01later%d\x02" % i)
            )
    archive(store, tmp_path / "a")
    assert_same(store, tmp_path / "a")
    assert verify(tmp_path / "a").problems == ()
    assert is_archived(str(tmp_path / "a"), before.start, before.size)
    assert reading.read(tmp_path / "a", key="later150").messages[0]["topic"] == "Later"


def test_is_archived_is_true_only_for_complete_files(archives: Archives, tmp_path: Path) -> None:
    store, whole = archives["4.9.7"]
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    logs = golden.log_files(store)
    size = logs[0].stat().st_size
    manifests = manifests_of(copy)
    assert [is_archived(str(copy), manifest.start, size) for manifest in manifests] == [
        manifest.is_closed for manifest in manifests
    ]
    assert not manifests[-1].is_closed
    assert not is_archived(str(copy), 0, size + 1)
    assert not is_archived(str(copy), 1 << 40, size)
    (copy / manifests[0].parts[0].path).unlink()
    assert not is_archived(str(copy), 0, size)
    (copy / manifest_path(manifests[1].start)).write_bytes(b"{}")
    assert not is_archived(str(copy), manifests[1].start, size)


def test_verify_finds_changed_files(archives: Archives, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(archives["5.5.0"][1], copy)
    manifest = manifests_of(copy)[1]
    for piece in (manifest.parts[0], manifest.rest, manifest.keys):
        path = copy / piece.path
        good = path.read_bytes()
        middle = len(good) // 2
        path.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
        (problem,) = verify(copy).problems
        assert piece.path in problem
        path.write_bytes(good)
    path.unlink()
    (problem,) = verify(copy).problems
    assert piece.path in problem


@pytest.mark.usefixtures("afresh")
def test_a_part_that_reads_back_differently_is_not_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(*arguments: Any) -> Any:
        return split(*arguments)[::-1]

    split = archive_write.records.split_records
    write = archive_write._write_parquet

    def write_wrong(*arguments: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(archive_write.records, "split_records", other)
            write(*arguments)

    monkeypatch.setattr(archive_write, "_write_parquet", write_wrong)
    monkeypatch.setattr(archive_write.records.ColumnMaker, "table", _honest_table(split))
    with pytest.raises(TaskFailed, match="reads back as other bytes"):
        archive(golden.unpack("4.9.7", "ext"), tmp_path / "a")
    assert manifests_of(tmp_path / "a") == []


def _honest_table(split: Any) -> Any:
    import pyarrow as pa

    def table(self: Any, data: Any, positions: Any, sizes: Any) -> Any:
        plain = self._maker.batch(archive_write.kernels.Columns(data, positions))
        columns = [*plain.columns, *split(data, positions, sizes)]
        return pa.Table.from_arrays(columns, schema=archive_write.records.SCHEMA)

    return table


def test_an_archive_has_one_broker_and_its_own_folder(tmp_path: Path) -> None:
    store = golden.unpack("4.9.7", "ext")
    archive(store, tmp_path / "a")
    with pytest.raises(InvalidOption, match="not 'broker-a'"):
        archive(store, tmp_path / "a", broker="broker-b")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("mine")
    with pytest.raises(InvalidOption, match="new or empty"):
        archive(store, tmp_path / "b")
    (tmp_path / "a" / HEADER).write_text('{"format": 2, "broker": ""}')
    with pytest.raises(StoreUnavailable, match="format 2"):
        reading.read(tmp_path / "a")


def test_the_parquet_files_are_readable_without_reput(archives: Archives) -> None:
    _, archived = archives["4.9.7"]
    messages = golden.messages("4.9.7", "clean")
    expected = {message["commitLogOffset"]: message for message in messages}
    count = 0
    for part in (part for manifest in manifests_of(archived) for part in manifest.parts):
        with pq.ParquetFile(archived / part.path) as parquet:
            rows = parquet.read().to_pylist()
            column = parquet.metadata.row_group(0).column(4)
        assert column.path_in_schema == "physical_offset"
        assert column.has_column_index
        assert column.statistics.min == part.row_groups[0].min_offset
        assert len(rows) == part.rows
        for row in rows:
            message = expected[row["physical_offset"]]
            assert row["topic"] == message["topic"] == part.topic
            place = row["queue_id"], row["queue_offset"]
            assert place == (message["queueId"], message["queueOffset"])
            assert part.date == row["store_timestamp"].strftime("%Y-%m-%d")
            pieces = (row[name] for name in ("record_head", "body", "record_tail"))
            assert sum(map(len, pieces)) == message["storeSize"]
        count += len(rows)
    assert count == len(expected)


def test_partition_names_are_valid_on_any_file_system() -> None:
    long = "%" * 250
    path = files.part_path(5, long, None, 3)
    assert path != files.part_path(5, long + "%", None, 3)
    assert all(len(part) < 256 for part in path.split("/"))
    assert path.endswith("/date=__HIVE_DEFAULT_PARTITION__/00000000000000000005-0003.parquet")
    assert files.part_path(0, names.RETRY_PREFIX + "a/b", "2026-11-21", 0) == (
        "messages/topic=%25RETRY%25a%2Fb/date=2026-11-21/00000000000000000000-0000.parquet"
    )


@pytest.mark.parametrize("version", golden.VERSIONS if golden.IS_SOAK else golden.VERSIONS[-1:])
def test_the_content_does_not_depend_on_part_and_row_group_sizes(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_write, "ROW_GROUP_BYTES", 3000)
    monkeypatch.setattr(archive_write, "PART_BYTES", 10_000)
    monkeypatch.setattr(archive_write, "ROW_GROUP_ROWS_MAX", 7)
    store = golden.unpack(version, "clean")
    result = archive(store, tmp_path / "a")
    assert result.parquet_files > 60
    assert_same(store, tmp_path / "a")
    assert_same(store, tmp_path / "a", topic="GoldenFour", maxBytesPerPartition="4k")
    restore(tmp_path / "a", tmp_path / "back")
    new = files_below(tmp_path / "back" / "commitlog")
    assert new.items() <= files_below(store / "commitlog").items()


# Restoring a part ---------------------------------------------------------------------------


@VERSION
@pytest.mark.parametrize("file_bytes", [None, 48_000])
@pytest.mark.sampled(4)
def test_a_restored_part_is_repacked(
    version: str, file_bytes: int | None, archives: Archives, tmp_path: Path
) -> None:
    store, archived = archives[version]
    topics = ["GoldenOne", "GoldenFour", "%RETRY%CG_Retry"]
    result = restore(archived, tmp_path / "back", topics=topics, file_bytes=file_bytes)
    assert not result.is_identical
    whole = reading.read(store, readIsolation="all").messages
    want = [row for row in whole if row["topic"] in topics]
    got = reading.read(tmp_path / "back", readIsolation="all").messages
    assert [_unmoved(row) for row in got] == [_unmoved(message) for message in want]
    assert result.messages == len(want)
    config = dataclasses.replace(
        settings(version), mapped_file_size_commit_log=result.file_bytes, max_message_size=16 * 1024
    )
    with MessageStore.open(str(tmp_path / "back"), config) as opened:
        ends = {(row["topic"], row["queue_id"]): row["queue_offset"] + 1 for row in want}
        assert {place: opened.max_offset(*place) for place in ends} == ends
    tables = [StoreReader.open(str(root)).topics() for root in (tmp_path / "back", store)]
    assert tables[0] == tables[1]
    with pytest.raises(InvalidOption, match="topics of the archive: %DLQ%"):
        restore(archived, tmp_path / "nowhere", topics=["Nowhere"])
    assert not (tmp_path / "nowhere").exists()


def _unmoved(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in MOVED}


def test_a_restored_time_range_is_repacked(archives: Archives, tmp_path: Path) -> None:
    messages = golden.messages("5.5.0", "clean")
    low, high = messages[200]["storeTimestamp"], messages[500]["storeTimestamp"]
    result = restore(archives["5.5.0"][1], tmp_path / "back", begin_ms=low, end_ms=high)
    want = [message for message in messages if low <= message["storeTimestamp"] < high]
    got = reading.read_light(tmp_path / "back", readIsolation="all").messages
    assert [(row["topic"], row["queue_id"], row["queue_offset"]) for row in got] == [
        (message["topic"], message["queueId"], message["queueOffset"]) for message in want
    ]
    # Queues begin at their first restored message, even if there were earlier ones.
    firsts: dict[tuple[str, int], int] = {}
    for message in want:
        if message["sysFlag"] & 4 == 0:
            firsts.setdefault((message["topic"], message["queueId"]), message["queueOffset"])
    assert any(firsts.values())
    config = dataclasses.replace(
        settings("5.5.0"), mapped_file_size_commit_log=result.file_bytes, max_message_size=16 * 1024
    )
    with MessageStore.open(str(tmp_path / "back"), config) as opened:
        assert {place: opened.min_offset(*place) for place in firsts} == firsts


@VERSION
@pytest.mark.sampled(3)
def test_repacking_drops_damage(version: str, tmp_path: Path) -> None:
    archive(golden.unpack(version, "torn/log-missing"), tmp_path / "a")
    result = restore(tmp_path / "a", tmp_path / "back", repack=True)
    good = reading.damaged(version, "log-missing").good
    assert result.messages == len(good)
    got = reading.read(tmp_path / "back", readIsolation="all")  # FAILFAST mode
    assert len(got.messages) == len(good)


def test_repacked_records_get_a_new_record_checksum(tmp_path: Path) -> None:
    config = dataclasses.replace(settings("5.5.0"), enabled_append_prop_crc=True)
    with MessageStore.open(str(tmp_path / "store"), config) as opened:
        for i in range(300):
            opened.put(IncomingMessage(f"Topic{i % 3}", b"%d" % i * 50))
    archive(tmp_path / "store", tmp_path / "a")
    restore(tmp_path / "a", tmp_path / "back", topics=["Topic2"])
    got = reading.read(tmp_path / "back")
    assert [row["body"] for row in got.messages] == [b"%d" % i * 50 for i in range(2, 300, 3)]
    assert all("__CRC32#" in row["properties"] for row in got.messages)


def test_a_killed_restore_can_be_run_again(
    archives: Archives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived = archives["4.9.7"][1]

    def die(store: str, mark: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(restore_module, "finish_store", die)
        with pytest.raises(KeyboardInterrupt):
            restore(archived, tmp_path / "back", topics=["GoldenFour"])
    with pytest.raises(InvalidOption, match="new or empty"):
        restore(archived, tmp_path / "back", topics=["GoldenOne"])
    for name in ("back", "other"):
        restore(archived, tmp_path / name, topics=["GoldenFour"])
    assert files_below(tmp_path / "back") == files_below(tmp_path / "other")
    with pytest.raises(InvalidOption, match="new or empty"):
        restore(archived, tmp_path / "back", topics=["GoldenFour"])


def test_a_damaged_archive_is_not_restored(archives: Archives, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(archives["4.9.7"][1], copy)
    path = copy / manifest_path(0)
    table = json.loads(path.read_text())
    table["sha256"] = "0" * 64
    path.write_text(json.dumps(table))
    with pytest.raises(TaskFailed, match="another checksum"):
        restore(copy, tmp_path / "back")


def test_records_are_packed_like_by_a_broker() -> None:
    sizes = np.array([40, 52, 40, 60, 92, 10], np.int64)
    assert [*pack(sizes, 100)] == [(0, 2), (2, 3), (3, 4), (4, 5), (5, 6)]
    assert [*pack(sizes[:0], 100)] == []
    with pytest.raises(InvalidOption, match="100 up"):
        [*pack(sizes, 99)]
