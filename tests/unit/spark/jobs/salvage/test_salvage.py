"""Salvage of the damaged golden stores: every complete record is recovered, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.fs
import pytest

import golden
import own_thread
from reput.errors import DiskFull, InvalidOption, StoreUnavailable, WriteFailed
from reput.spark.jobs import hole_filling
from reput.spark.jobs.running import TaskFailed
from reput.spark.jobs.salvage import DRAFT_SUFFIX, Salvaged, salvage
from reput.store.files.disk import Disk
from reput.store.reader import StoreReader
from reput.store.verify import FindingKind, Severity, verify
from spark.in_process import InProcess
from spark.jobs_setting import files_below, flip, log_place, settings
from store_fixture import some

TORN = pytest.mark.parametrize(("version", "variant"), some(golden.TORN))
VERSION = pytest.mark.parametrize("version", golden.VERSIONS)


DISK_CALLS = ("create", "make_folder", "rename", "replace", "reserve", "sync_file", "write")


def no_room(name: str) -> DiskFull:
    return DiskFull("a file", 1, f"cannot {name}: no room is left")


def whole_messages(version: str, name: str) -> list[tuple[dict[str, Any], bytes]]:
    """Return the messages of the undamaged store that the damaged one has completely."""
    logs = {
        int(path.removeprefix("commitlog/")): data
        for path, data in golden.files(version, name).items()
        if path.startswith("commitlog/")
    }

    def is_whole(place: golden.Place) -> bool:
        return any(
            data[place.physical_offset - start :][: place.size] == place.record
            for start, data in logs.items()
            if start <= place.physical_offset
        )

    records = golden.records(version, "clean")
    return [(message, place.record) for message, place in records if is_whole(place)]


def run(version: str, source: Path | str, target: Path, **options: Any) -> Salvaged:
    options.setdefault("config", settings(version))
    return salvage(InProcess(), str(source), str(target), partition_bytes=200_000, **options)


def assert_clean(target: Path, report: Salvaged) -> None:
    """Check that a store has no findings but units of lost messages that point at the next ones."""
    checked = verify(StoreReader.open(str(target)))
    wrong = [finding for finding in checked.findings if finding.severity > Severity.NOTE]
    assert {finding.kind for finding in wrong} <= {FindingKind.UNIT_WRONG_RECORD}, [
        finding.text for finding in wrong
    ]
    assert len(wrong) <= sum(len(queue.lost) for queue in report.queues)
    assert not (target / "abort").exists()


class Killed(BaseException):
    pass


def failing_from(
    monkeypatch: pytest.MonkeyPatch, number: int, make: Callable[[str], BaseException]
) -> list[str]:
    """Let every call of the disk fail from a number on; return the list of their names."""
    calls: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(Disk, name)

        def method(self: Disk, *arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) > number:
                raise make(name)
            return call(self, *arguments, **options)

        return method

    for name in DISK_CALLS:
        own_thread.replace(monkeypatch, Disk, name, counted(name))
    return calls


@TORN
@pytest.mark.sampled(5)
def test_complete_messages_are_recovered_and_losses_reported(
    version: str, variant: str, tmp_path: Path
) -> None:
    name = f"torn/{variant}"
    whole = whole_messages(version, name)
    report = run(version, golden.unpack(version, name), tmp_path / "new")

    reader = StoreReader.open(str(tmp_path / "new"))
    for message, data in whole:
        assert reader.log.record_bytes(message["commitLogOffset"]) == data
        if message["sysFlag"] & 4 == 0:
            assert offset_in_queue(reader, message) == message["commitLogOffset"]
    assert report.record_count == len(whole)
    assert report.record_bytes == sum(len(data) for _, data in whole)
    here = {message["commitLogOffset"] for message, _ in whole}
    others = [message for message in reader.messages() if message.physical_offset not in here]
    assert {message.topic for message in others} <= {hole_filling.TOPIC}
    assert_clean(tmp_path / "new", report)

    reported = {
        (queue.topic, queue.queue_id, offset)
        for queue in report.queues
        for start, stop in queue.lost
        for offset in range(start, stop)
    }
    gone = {
        (message["topic"], message["queueId"], message["queueOffset"])
        for message in golden.messages(version, "clean")
        if message["commitLogOffset"] not in here and message["sysFlag"] & 4 == 0
    }
    if variant == "cq-ahead":
        # Most queues were cut like the log, so their losses cannot be known.
        ahead = golden.torn_variants(version)[variant]["damage"].partition("units beyond]: ")[2]
        assert reported <= gone
        assert len(reported) >= len(json.loads(ahead.rstrip(".")))
    else:
        assert reported == gone
    assert (report.lost_count, report.duplicate_count) == (len(reported), 0)
    assert all(hole.length > 0 and hole.reason for hole in report.holes)


def offset_in_queue(reader: StoreReader, message: dict[str, Any]) -> int:
    place = (message[name] for name in ("topic", "queueId", "queueOffset"))
    return reader.message_in_queue(*place).physical_offset


@VERSION
@pytest.mark.sampled(3)
def test_a_sound_store_is_unchanged(version: str, tmp_path: Path) -> None:
    source = golden.unpack(version, "clean")
    report = run(version, source, tmp_path / "new")
    before, after = files_below(source), files_below(tmp_path / "new")
    for path, data in before.items():
        if path.startswith(("commitlog/", "consumequeue/", "config/")) and ".bak" not in path:
            assert after[path] == data, path
    assert (report.holes, report.lost_count, report.moved_offsets) == ((), 0, ())
    json.dumps(report.as_json())
    if version == "5.5.0":
        return  # that its index has tags is a setting that no file reveals
    # Sizes are taken from the files of a store on object storage without a configuration.
    with pytest.MonkeyPatch.context() as patch:
        local = SimpleNamespace(
            from_uri=lambda uri: (pyarrow.fs.LocalFileSystem(), uri.removeprefix("s3://bucket"))
        )
        patch.setattr(pyarrow.fs, "FileSystem", local)
        run(version, f"s3://bucket{source}", tmp_path / "guessed", config=None)
    guessed = files_below(tmp_path / "guessed")
    assert guessed.keys() == after.keys()
    # Delay levels are the other one.
    differing = [path for path in after if guessed[path] != after[path]]
    assert all("SCHEDULE_TOPIC" in path for path in differing), differing


@pytest.mark.parametrize(
    ("version", "name"), [("4.9.7", "expired"), ("4.9.7", "ext"), ("5.5.0", "v5")]
)
def test_expired_logs_extension_units_and_light_queues(
    version: str, name: str, tmp_path: Path
) -> None:
    source = golden.unpack(version, name)
    report = salvage(InProcess(), str(source), str(tmp_path / "new"), partition_bytes=200_000)
    assert report.record_count == len(golden.messages(version, name))
    assert report.lost_count == 0
    assert report.holes == ()
    old, new = (StoreReader.open(str(root)) for root in (source, tmp_path / "new"))
    assert new.log.min_offset == old.log.min_offset
    assert new.end_offset == old.end_offset
    assert new.queue_ids == old.queue_ids
    for queue in old.queues():
        other = new.queue(queue.topic, queue.queue_id)
        assert other.max_offset == queue.max_offset, (queue.topic, queue.queue_id)
        numbers, units = queue.units(queue.min_offset, queue.max_offset)
        _, others = other.units(queue.min_offset, queue.max_offset)
        assert units["physical_offset"].tolist() == others["physical_offset"].tolist()
        assert len(numbers) == len(units)
    assert_clean(tmp_path / "new", report)


@pytest.mark.parametrize("make", [Killed, no_room], ids=["killed", "disk-full"])
@pytest.mark.sampled(2)
def test_a_failed_run_gives_the_same_store_when_run_again(
    make: Callable[[str], BaseException], tmp_path: Path
) -> None:
    source = golden.unpack("4.9.7", "torn/log-missing")
    target = tmp_path / "new"
    with pytest.MonkeyPatch.context() as patch:
        calls = failing_from(patch, 1 << 62, make)
        whole = run("4.9.7", source, tmp_path / "whole")
    rename = len(calls) - 1 - calls[::-1].index("rename")
    # Kills spread over the run, and at the last calls, which rename the folder.
    for number in [*range(0, rename, rename // 4), rename - 1, rename]:
        with pytest.MonkeyPatch.context() as patch:
            failing_from(patch, number, make)
            with pytest.raises((Killed, WriteFailed, TaskFailed)) as caught:
                run("4.9.7", source, target)
        assert make is Killed or "no room is left" in str(caught.value)
        assert not target.exists(), f"call {number}, {calls[number]}"
    target.mkdir()  # an empty folder may remain
    again = run("4.9.7", source, target)
    assert not (tmp_path / f"new{DRAFT_SUFFIX}").exists()
    assert files_below(target) == files_below(tmp_path / "whole")
    assert again.queues == whole.queues


def test_invalid_targets_are_refused(tmp_path: Path) -> None:
    source = golden.copy_store("4.9.7", "torn/log-missing", tmp_path / "source")
    before = files_below(source)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target in (source, tmp_path / "full", tmp_path / "file"):
        with pytest.raises(StoreUnavailable, match="exists already"):
            run("4.9.7", source, target)
    with pytest.raises(InvalidOption, match="outside of"):
        run("4.9.7", source, source / "new")
    assert files_below(source) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "source"]


def test_records_cut_off_by_java_are_found_through_its_queues(tmp_path: Path) -> None:
    """Java cut the log at a damaged record, only in memory: units on disk point after the cut."""
    store = golden.unpack("4.9.7", "torn/crc-late-recovered")
    lost = set(golden.torn_variants("4.9.7")["crc-late"]["recordsLost"])
    run("4.9.7", store, tmp_path / "new")
    reader = StoreReader.open(str(tmp_path / "new"))
    recovered = {
        message.physical_offset
        for message in reader.messages()
        if message.topic != hole_filling.TOPIC
    }
    assert lost - recovered == {min(lost)}


def test_records_cut_off_earlier_are_recovered_if_configured(tmp_path: Path) -> None:
    store = golden.copy_store("4.9.7", "clean", tmp_path)
    messages = golden.messages("4.9.7", "clean")
    cut, following = messages[-6]["commitLogOffset"], messages[-5:]
    path, position = log_place(store, cut)
    flip(path, position + 4)
    for file in (path for path in (store / "consumequeue").rglob("0*") if path.is_file()):
        units = bytearray(file.read_bytes())
        for start in range(0, len(units), 20):
            if int.from_bytes(units[start : start + 8], "big") >= cut:
                units[start : start + 20] = bytes(20)
        file.write_bytes(units)
    without = run("4.9.7", store, tmp_path / "without")
    assert without.end_offset == cut
    assert any("include_stale" in note for note in without.notes)
    assert [hole.physical_offset for hole in without.holes] == [cut]
    report = run("4.9.7", store, tmp_path / "with", include_stale=True)
    assert report.record_count == without.record_count + len(following)
    reader = StoreReader.open(str(tmp_path / "with"))
    for message in following:
        assert offset_in_queue(reader, message) == message["commitLogOffset"]


def test_damage_in_every_file_and_a_record_at_a_files_start(tmp_path: Path) -> None:
    store = golden.copy_store("4.9.7", "clean", tmp_path)
    firsts: dict[Path, dict[str, Any]] = {}
    for message in golden.messages("4.9.7", "clean"):
        path, _ = log_place(store, message["commitLogOffset"])
        firsts.setdefault(path, message)
    for path, message in firsts.items():
        flip(path, message["commitLogOffset"] - int(path.name) + 4)
    report = run("4.9.7", store, tmp_path / "new")
    assert report.record_count == len(golden.messages("4.9.7", "clean")) - len(firsts)
    assert [hole.physical_offset for hole in report.holes] == [
        message["commitLogOffset"] for message in firsts.values()
    ]
    assert_clean(tmp_path / "new", report)


def test_a_damaged_table_is_restored_from_its_backup(tmp_path: Path) -> None:
    store = golden.copy_store("4.9.7", "clean", tmp_path)
    topics = store / "config" / "topics.json"
    backup = topics.with_name("topics.json.bak")
    backup.write_bytes(topics.read_bytes())
    topics.write_bytes(b"{" * 10)
    offsets = store / "config" / "consumerOffset.json"
    offsets.write_bytes(b"nonsense")
    offsets.with_name("consumerOffset.json.bak").write_bytes(b"nonsense")
    report = run("4.9.7", store, tmp_path / "new")
    fates = dict(report.tables)
    assert fates["config/topics.json"] == "from backup"
    assert fates["config/consumerOffset.json"] == "lost"
    assert (tmp_path / "new/config/topics.json").read_bytes() == backup.read_bytes()
