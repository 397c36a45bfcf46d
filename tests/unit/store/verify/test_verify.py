"""Verification: a verdict for every file and hole of golden stores.

``tests/scripts/store/verify`` has the findings for each kind of damage.
"""

import ast
import random
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest

import golden
import seeds
import store_builder
from reput.format.message import Verdict
from reput.store import verify as verification
from reput.store.reader import StoreReader
from reput.store.verify import Finding, FindingKind, Severity, VerifyReport, verify
from store_builder import MemoryFolder

STORE = pytest.mark.parametrize(("version", "name"), golden.STORES)
VERSION = pytest.mark.parametrize("version", golden.VERSIONS)
UNIT = struct.Struct(">qiq")

SOUND_VARIANTS = (
    "abort-only",
    "no-checkpoint",
    "no-checkpoint-abort",
    "no-index",
    "no-index-abort",
    "log-empty-file",
    "garbage-tail",
    "torn-tail",
)
"""Torn stores in a state that a crash or an administrator explains."""
BODY_VARIANTS = ("crc-early", "crc-late", "crc-late-abort", "crc-boundary", "size-late")


def report_of(version: str, name: str) -> VerifyReport:
    return verify(StoreReader.open(str(golden.unpack(version, name))))


def torn(version: str, variant: str) -> VerifyReport:
    return report_of(version, f"torn/{variant}")


def of_kind(report: VerifyReport, *kinds: FindingKind) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind in kinds]


def kinds(report: VerifyReport, severity: Severity = Severity.WARNING) -> set[FindingKind]:
    """Return the kinds of findings from a severity on."""
    return {finding.kind for finding in report.findings if finding.severity >= severity}


def damaged_record(version: str, variant: str) -> int:
    """Return the physical offset of the record that a torn store's manifest names as damaged."""
    match = re.search(r"record,? at (\d+)", golden.torn_variants(version)[variant]["damage"])
    assert match
    return int(match[1])


def listed(version: str, variant: str, number: int = 0) -> list[Any]:
    """Return a list from the description of the damage in a torn store's manifest."""
    text = golden.torn_variants(version)[variant]["damage"]
    values: list[Any] = ast.literal_eval(re.findall(r"\[\[.*?\]\]", text)[number])
    return values


# --- golden stores --------------------------------------------------------


@STORE
@pytest.mark.sampled(5)
def test_a_store_of_a_broker_is_not_damaged(version: str, name: str) -> None:
    report = report_of(version, name)
    assert not report.is_damaged, report.findings[0]
    assert report.holes == ()


@STORE
@pytest.mark.sampled(5)
def test_counts_are_those_of_java(version: str, name: str) -> None:
    report = report_of(version, name)
    manifest = golden.manifest(version, name)
    assert report.record_count == manifest["log"]["records"]
    assert report.log_end == manifest["log"]["endOffset"]
    if manifest["opened"]:
        alive = sum(queue["maxOffset"] - queue["minOffset"] for queue in manifest["queues"])
        batches = [q for q in manifest["queues"] if q.get("type") == "BatchConsumeQueue"]
        extra = sum(q["maxOffset"] - q["minOffset"] - len(q["batchUnits"]) for q in batches)
        # Units whose records have expired stay until their file goes.
        assert report.unit_count >= alive - extra
        assert report.unit_count == alive - extra or "expired" in name
        # Entry 0 of a file is never used, but it is counted.
        assert report.entry_count == sum(
            max(0, entry["indexCount"] - 1) for entry in manifest["index"]
        )


@STORE
@pytest.mark.sampled(5)
def test_every_file_of_the_store_has_a_verdict(version: str, name: str) -> None:
    report = report_of(version, name)
    paths = [file.path for file in report.files]
    assert len(paths) == len(set(paths))
    families = ("commitlog/", "consumequeue", "batchconsumequeue/", "index/")
    for file in golden.manifest(version, name)["files"]:
        if file["path"].startswith(families) and not file["path"].endswith(".bak"):
            assert file["path"] in paths
    sizes = {file["path"]: file["size"] for file in golden.manifest(version, name)["files"]}
    for verdict in report.files:
        assert verdict.path not in sizes or verdict.size == sizes[verdict.path]


@VERSION
def test_records_not_dispatched_before_a_crash_are_noted(version: str) -> None:
    report = report_of(version, "unclean")
    lacking = golden.manifest(version, "unclean")["recordsNotInQueues"]
    findings = of_kind(report, FindingKind.NOT_DISPATCHED)
    assert sum(finding.count or 0 for finding in findings) == len(lacking)
    assert {finding.physical_offset for finding in findings} <= set(lacking)
    assert {finding.severity for finding in findings} == {Severity.NOTE}
    assert report.severity is Severity.NOTE


@VERSION
def test_where_the_index_begins_is_noted(version: str) -> None:
    report = report_of(version, "torn/no-index-abort-recovered")
    (note,) = of_kind(report, FindingKind.NOT_INDEXED)
    assert note.severity is Severity.NOTE
    begin = min(
        entry["beginPhyOffset"]
        for entry in golden.manifest(version, "torn/no-index-abort-recovered")["index"]
    )
    assert f"begins at physical offset {begin}" in note.text
    assert not report.is_damaged


# --- torn stores ----------------------------------------------------------


@VERSION
@pytest.mark.parametrize("variant", SOUND_VARIANTS)
@pytest.mark.sampled(4)
def test_what_a_crash_explains_is_no_damage(version: str, variant: str) -> None:
    report = torn(version, variant)
    assert not report.is_damaged, report.findings[0]
    if variant.startswith("no-index"):
        assert of_kind(report, FindingKind.INDEX_ABSENT)


@VERSION
@pytest.mark.parametrize("variant", BODY_VARIANTS)
@pytest.mark.sampled(4)
def test_a_flipped_bit_is_a_hole_of_one_record(version: str, variant: str) -> None:
    report = torn(version, variant)
    (hole,) = report.holes
    physical_offset = damaged_record(version, variant)
    sizes = {
        message["commitLogOffset"]: message["storeSize"]
        for message in golden.messages(version, "clean")
    }
    assert (hole.damage.physical_offset, hole.damage.length) == (
        physical_offset,
        sizes[physical_offset],
    )
    is_size = variant == "size-late"
    assert hole.damage.verdict is (Verdict.BAD_LENGTH if is_size else Verdict.BAD_CRC)
    assert kinds(report, Severity.DAMAGE) == {FindingKind.LOG_HOLE}
    assert [finding.count for finding in of_kind(report, FindingKind.UNIT_IN_HOLE)] == [1]
    assert report.record_count == len(sizes) - 1


@VERSION
def test_a_torn_record_is_a_torn_tail_after_a_crash_and_damage_otherwise(version: str) -> None:
    after_crash, otherwise = torn(version, "torn-tail"), torn(version, "torn-tail-noabort")
    physical_offset = damaged_record(version, "torn-tail")
    (tail,) = after_crash.holes
    assert (tail.kind, tail.severity) == (FindingKind.TORN_TAIL, Severity.WARNING)
    assert (
        tail.damage.physical_offset == otherwise.holes[0].damage.physical_offset == physical_offset
    )
    assert otherwise.holes[0].kind is FindingKind.LOG_HOLE
    assert otherwise.is_damaged


@VERSION
def test_garbage_after_the_last_record_is_a_torn_tail(version: str) -> None:
    (hole,) = torn(version, "garbage-tail").holes
    assert hole.damage.physical_offset == golden.manifest(version, "clean")["maxPhyOffset"]
    assert (hole.damage.length, hole.kind) == (400, FindingKind.TORN_TAIL)


@VERSION
def test_a_truncated_log_file(version: str) -> None:
    report = torn(version, "log-short")
    last = golden.messages(version, "clean")[-1]
    assert report.holes[0].damage.physical_offset == last["commitLogOffset"]
    assert kinds(report, Severity.DAMAGE) == {FindingKind.LOG_FILE_SIZE, FindingKind.LOG_HOLE}
    (size,) = of_kind(report, FindingKind.LOG_FILE_SIZE)
    (verdict,) = [file for file in report.files if file.path == size.path]
    assert verdict.severity is Severity.DAMAGE


@VERSION
def test_a_missing_log_file(version: str) -> None:
    report = torn(version, "log-missing")
    (hole,) = report.holes
    match = re.search(r"Log file (\d+)", golden.torn_variants(version)["log-missing"]["damage"])
    assert match
    lost = golden.torn_variants(version)["log-missing"]["recordsLost"]
    assert hole.damage.file == match[1]
    assert hole.damage.verdict is Verdict.MISSING
    assert sum(finding.count or 0 for finding in of_kind(report, FindingKind.UNIT_IN_HOLE)) == len(
        lost
    )
    assert f"commitlog/{match[1]}" in [file.path for file in report.files]


@VERSION
def test_queues_that_were_zeroed_lack_their_newer_half(version: str) -> None:
    findings = of_kind(torn(version, "cq-zeroed"), FindingKind.UNIT_MISSING)
    expected = {
        (topic, queue_id, first, end - first)
        for topic, queue_id, first, end in listed(version, "cq-zeroed")
    }
    assert {
        (*_queue_of(finding), finding.queue_offset, finding.count) for finding in findings
    } == expected


@VERSION
@pytest.mark.parametrize("variant", ["cq-zeroed", "cq-zeroed-abort"])
def test_missing_units_are_those_that_java_did_not_restore(version: str, variant: str) -> None:
    changed = golden.torn_variants(version)[variant]["queuesChanged"]
    findings = of_kind(torn(version, variant), FindingKind.UNIT_MISSING)
    assert {_queue_of(finding) for finding in findings} == {
        (q["topic"], q["queueId"]) for q in changed
    }


def test_queues_that_java_would_lose_without_index_and_queues_are_reported() -> None:
    changed = golden.torn_variants("5.5.0")["no-cq-no-index-abort"]["queuesChanged"]
    report = torn("5.5.0", "no-cq-no-index-abort")
    findings = of_kind(report, FindingKind.UNIT_MISSING)
    assert {_queue_of(finding) for finding in findings} == {
        (q["topic"], q["queueId"]) for q in changed
    }
    dispatched = of_kind(report, FindingKind.UNIT_MISSING, FindingKind.NOT_DISPATCHED)
    assert sum(finding.count or 0 for finding in dispatched) == report.queued_count


@VERSION
def test_without_queues_every_queued_record_lacks_its_unit(version: str) -> None:
    report = torn(version, "no-cq")
    findings = of_kind(report, FindingKind.UNIT_MISSING)
    assert (
        sum(finding.count or 0 for finding in findings)
        == report.queued_count
        == report.record_count
    )


@VERSION
def test_a_truncated_queue_file(version: str) -> None:
    (size,) = of_kind(torn(version, "cq-short"), FindingKind.QUEUE_FILE_SIZE)
    assert size.path.startswith("consumequeue/GoldenOne/0/")
    assert size.severity is Severity.DAMAGE


@VERSION
def test_queues_ahead_of_a_log_that_lost_its_end(version: str) -> None:
    report = torn(version, "cq-ahead")
    beyond = {(topic, queue_id): count for topic, queue_id, count in listed(version, "cq-ahead", 1)}
    stale = of_kind(report, FindingKind.UNIT_STALE)
    assert {_queue_of(finding): finding.count for finding in stale} == beyond
    assert kinds(report, Severity.DAMAGE) == {FindingKind.CHECKPOINT}
    assert report.log_end == golden.torn_variants(version)["cq-ahead"]["maxPhyOffset"][1]


def _queue_of(finding: Finding) -> tuple[str, int]:
    _, topic, queue_id, *_ = finding.path.split("/")
    return topic, int(queue_id)


# --- damage done here -----------------------------------------------------

QUEUE = "consumequeue/TopicA/0/00000000000000000000"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> MemoryFolder:
    """Return a store without faults, of several log and queue files."""
    root = tmp_path_factory.mktemp("verify") / "store"
    store_builder.build(root, store_builder.messages(60), log_file_bytes=8192, queue_file_units=5)
    return MemoryFolder.load(root)


def checked(folder: MemoryFolder) -> VerifyReport:
    return verify(StoreReader(folder))


def patched(folder: MemoryFolder, path: str, position: int, data: bytes) -> MemoryFolder:
    changed = bytearray(folder.files[path])
    changed[position : position + len(data)] = data
    return folder.changed(path, changed)


def unit(folder: MemoryFolder, number: int, path: str = QUEUE) -> tuple[int, int, int]:
    values: tuple[int, int, int] = UNIT.unpack_from(folder.files[path], 20 * number)
    return values


def with_unit(
    folder: MemoryFolder, number: int, place: int, size: int, code: int, path: str = QUEUE
) -> MemoryFolder:
    return patched(folder, path, 20 * number, UNIT.pack(place, size, code))


def test_the_store_before_damage_is_sound(sound: MemoryFolder) -> None:
    report = checked(sound)
    assert report.severity is Severity.OK, report.findings
    assert report.record_count == report.unit_count == 60


def test_many_runs_are_summarized(sound: MemoryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sound
    monkeypatch.setattr(verification.findings, "RUNS_MAX", 1)
    for number in (0, 2, 4):
        folder = patched(folder, QUEUE, 20 * number, bytes(20))
    findings = of_kind(checked(folder), FindingKind.UNIT_ZERO)
    assert [(finding.queue_offset, finding.count) for finding in findings] == [(0, 1), (2, 2)]
    for number in (0, 2, 4):
        folder = with_unit(folder, number, *store_builder.PRE_BLANK)
    findings = of_kind(checked(folder), FindingKind.UNIT_MISSING)
    assert [(finding.queue_offset, finding.count) for finding in findings] == [(0, 1), (2, 2)]


def test_comparing_a_few_records_at_once_finds_the_same(
    sound: MemoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = patched(with_unit(sound, 3, 1 << 40, 1, 1), QUEUE, 20, bytes(20))
    whole = checked(damaged)
    monkeypatch.setattr(verification.queue_check, "ROWS_MAX", 1)
    monkeypatch.setattr(verification.index_check, "_ENTRIES_AT_ONCE", 3)
    in_pieces = checked(MemoryFolder(damaged.files, window_bytes=600))
    assert in_pieces == whole


def test_progress_reaches_its_end(sound: MemoryFolder) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}
    verify(StoreReader(sound), progress=lambda what, *done: seen.setdefault(what, []).append(done))
    assert set(seen) == {"index", "commit log", "consume queues"}
    for steps in seen.values():
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]


# --- queues of other kinds ------------------------------------------------


def test_tags_codes_are_looked_up_in_extension_files() -> None:
    folder = MemoryFolder.load(golden.unpack("4.9.7", "ext"))
    path, position = next(
        (path, 0) for path in sorted(folder.files) if path.startswith("consumequeue_ext/")
    )
    report = checked(patched(folder, path, position + 2, struct.pack(">q", 4711)))
    (wrong,) = [finding for finding in report.findings if finding.severity is Severity.DAMAGE]
    assert wrong.kind is FindingKind.UNIT_WRONG_TAGS


def test_a_light_queue_holds_messages_of_other_topics() -> None:
    folder = MemoryFolder.load(golden.unpack("5.5.0", "v5"))
    path = "consumequeue/%LMQ%first/0/00000000000000000000"
    own = "consumequeue/GoldenOne-lmq/0/00000000000000000000"
    assert unit(folder, 0, path) == unit(folder, 0, own)
    report = checked(with_unit(folder, 1, *unit(folder, 0, path), path))
    assert kinds(report, Severity.DAMAGE) == {FindingKind.UNIT_WRONG_RECORD} or kinds(
        report, Severity.DAMAGE
    ) == {FindingKind.UNIT_OUT_OF_ORDER}
    zeroed = checked(patched(folder, path, 20 * 9, bytes(20)))
    (missing,) = of_kind(zeroed, FindingKind.UNIT_MISSING)
    assert (missing.path, missing.queue_offset) == (path, 9)


def test_batch_queues_have_a_unit_for_each_batch() -> None:
    folder = MemoryFolder.load(golden.unpack("5.5.0", "v5"))
    path = "batchconsumequeue/GoldenBatch-bcq/0/00000000000000000000"
    moved = checked(patched(folder, path, 46 + 8, struct.pack(">i", 1)))
    assert kinds(moved, Severity.DAMAGE) == {FindingKind.UNIT_WRONG_SIZE}
    zeroed = checked(patched(folder, path, 46 * 2, bytes(46)))
    (missing,) = of_kind(zeroed, FindingKind.UNIT_MISSING)
    assert missing.queue_offset == 8


# --- random damage -------------------------------------------------------


def _byte(data: bytearray, position: int, chance: random.Random) -> None:
    data[position] ^= 1 << chance.randrange(8)


def _zeros(data: bytearray, position: int, chance: random.Random) -> None:
    data[position : position + 64] = bytes(len(data[position : position + 64]))


def _cut(data: bytearray, position: int, chance: random.Random) -> None:
    del data[position:]


def _noise(data: bytearray, position: int, chance: random.Random) -> None:
    data[position : position + 40] = chance.randbytes(len(data[position : position + 40]))


@pytest.mark.parametrize("harm", [_byte, _zeros, _cut, _noise])
@pytest.mark.sampled(2)
def test_no_damage_stops_a_verification(
    sound: MemoryFolder, harm: Callable[[bytearray, int, random.Random], None]
) -> None:
    chance = seeds.random("verify", harm.__name__)
    for path, whole in sorted(sound.files.items()):
        for _ in range((6 if golden.IS_SOAK else 2) if whole else 0):
            data = bytearray(whole)
            harm(data, chance.randrange(len(data)), chance)
            report = checked(sound.changed(path, data))
            assert report.files
            for hole in report.holes:
                assert hole.damage.length > 0
