"""``compact``: kept and dropped messages equal a model's, for a store and for its archive."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reput.clock import ManualClock
from reput.errors import InvalidOption, NotInStore, StoreUnavailable
from reput.spark.archive import files
from reput.spark.archive.view import ArchiveReader
from reput.spark.jobs import archive as archive_job, compact as job
from reput.spark.jobs.compact import CompactResult, archive_compaction
from reput.spark.jobs.compact.expired import Retention
from reput.spark.jobs.restore import restore
from reput.store.config import StoreConfig
from reput.store.files.disk import Disk
from reput.store.files.files import open_folder
from reput.store.log.archived import is_archived
from reput.store.message_store import MessageStore
from reput.store.reader import StoreReader
from reput.store.verify import Severity, verify as verify_store
from reput.store.writing.incoming import IncomingMessage, PutStatus
from spark import reading
from spark.in_process import InProcess
from spark.jobs_setting import files_below

SESSION: Any = InProcess()
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = 1_794_700_800_000  # 2026-11-15 00:00 UTC
NOW_MS = START_MS + 6 * DAY_MS
LOG_FILE_BYTES = 32 * 1024
TOPICS = ["kept", "short", "shorter", "%RETRY%group", "SCHEDULE_TOPIC_XXXX"]
RETENTION = {"kept": None, "short": 2 * DAY_MS, ".*": DAY_MS}
BEGINS = {"short": NOW_MS - 2 * DAY_MS, "shorter": NOW_MS - DAY_MS, "%RETRY%group": NOW_MS - DAY_MS}
"""First store time that stays, by topic; the topic of delayed messages is a system topic."""

Key = tuple[str, int, int]


@pytest.fixture(scope="module", autouse=True)
def hurried() -> Iterator[None]:
    """Skip syncs: no test here is about power loss."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Disk, "sync_file", lambda *_: None)
        patch.setattr(Disk, "sync_folder", lambda *_: None)
        yield


@dataclass(frozen=True)
class Put:
    """A message that the test has put."""

    key: Key
    """Topic, queue id, queue offset."""
    time_ms: int
    physical_offset: int
    body: bytes


def config(**settings: Any) -> StoreConfig:
    return StoreConfig(
        mapped_file_size_commit_log=LOG_FILE_BYTES,
        mapped_file_size_consume_queue=4000,
        max_hash_slot_num=100,
        max_index_num=400,
        max_message_size=8 * 1024,
        **settings,
    )


def put_all(root: Path) -> list[Put]:
    """Build a store of six days: a message an hour per topic, and a queue without new messages."""
    clock, puts = ManualClock(START_MS), []
    with MessageStore.open(str(root), config(), clock=clock) as store:
        for hour in range(6 * 24):
            for topic in TOPICS:
                queue_id = 1 if topic == "shorter" and hour < 5 else 0
                body = f"{topic} {hour}".encode() * (1 + hour % 40)
                keys = f"KEYS\x01{topic}-{hour}\x02".encode()
                result = store.put(IncomingMessage(topic, body, queue_id, keys))
                assert result.status is PutStatus.PUT_OK
                place = (topic, queue_id, result.queue_offset)
                puts.append(Put(place, clock.now_ms(), result.physical_offset, body))
            clock.advance(HOUR_MS)
    return puts


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Put]]:
    root = tmp_path_factory.mktemp("store") / "store"
    return root, put_all(root)


def compact(source: Path, target: Path | None = None, **options: Any) -> CompactResult:
    options = {"retention": RETENTION, "clock": ManualClock(NOW_MS), **options}
    return job.compact(SESSION, str(source), str(target) if target else None, **options)


def rows(path: Path, **options: Any) -> dict[Key, bytes]:
    messages = reading.read(path, broker="b", readIsolation="all", **options).messages
    return {(row["topic"], row["queue_id"], row["queue_offset"]): row["body"] for row in messages}


def keys_of(puts: list[Put]) -> dict[Key, bytes]:
    return {put.key: put.body for put in puts}


def is_expired(put: Put) -> bool:
    return put.key[0] in BEGINS and put.time_ms < BEGINS[put.key[0]]


# Stores -------------------------------------------------------------------------------------


def expected(puts: list[Put]) -> list[Put]:
    """Return the messages that stay: the young ones, and the last message of each queue."""
    lasts = {put.key[:2]: put for put in puts}
    return [put for put in puts if not is_expired(put) or lasts[put.key[:2]] is put]


def test_a_store_keeps_young_messages_and_ends_of_queues(
    made: tuple[Path, list[Put]], tmp_path: Path
) -> None:
    root, puts = made
    before = files_below(root)
    planned = compact(root, tmp_path / "new", dry_run=True)
    assert not (tmp_path / "new").exists()
    result = compact(root, tmp_path / "new")
    assert files_below(root) == before
    want = expected(puts)
    assert rows(tmp_path / "new") == keys_of(want)
    gone = Counter(put.key[0] for put in puts) - Counter(put.key[0] for put in want)
    assert {entry.topic: entry.messages for entry in result.topics} == dict(gone)
    assert planned.topics == result.topics
    assert (planned.is_written, result.is_written) == (False, True)
    assert result.changed_log_files >= 3
    printed = json.loads(json.dumps(result.as_json()))
    assert {entry["topic"]: entry["messages"] for entry in printed["topics"]} == dict(gone)

    old, new = StoreReader.open(str(root)), StoreReader.open(str(tmp_path / "new"))
    assert new.end_offset == old.end_offset
    assert new.log.min_offset == result.changed_log_files * LOG_FILE_BYTES
    last = old.log.files[-1]
    assert last.start < old.end_offset  # the newest log file, which is never changed
    name = f"commitlog/{last.name}"
    assert (root / name).read_bytes() == (tmp_path / "new" / name).read_bytes()
    with MessageStore.open(str(tmp_path / "new"), config()) as store:
        for topic, queue_id in {put.key[:2] for put in puts}:
            offsets = [put.key[2] for put in want if put.key[:2] == (topic, queue_id)]
            assert store.min_offset(topic, queue_id) == min(offsets)
            assert store.max_offset(topic, queue_id) == max(offsets) + 1
        assert store.put(IncomingMessage("shorter", b"on", 1)).queue_offset == 5
    report = verify_store(StoreReader.open(str(tmp_path / "new")))
    assert [finding for finding in report.findings if finding.severity is Severity.DAMAGE] == []


def test_a_killed_compaction_of_a_store_can_be_repeated(
    made: tuple[Path, list[Put]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _ = made
    compact(root, tmp_path / "whole")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job, "finish_store", die)
        with pytest.raises(KeyboardInterrupt):
            compact(root, tmp_path / "killed")
    later = ManualClock(NOW_MS + DAY_MS)
    with pytest.raises(InvalidOption, match="new or empty"):
        compact(root, tmp_path / "killed", retention={".*": DAY_MS}, clock=later)
    compact(root, tmp_path / "killed", clock=later)
    assert files_below(tmp_path / "killed") == files_below(tmp_path / "whole")
    with pytest.raises(InvalidOption, match="new or empty"):
        compact(root, tmp_path / "killed")


def test_nothing_is_written_if_no_log_file_is_saved(
    made: tuple[Path, list[Put]], tmp_path: Path
) -> None:
    result = compact(made[0], tmp_path / "new", retention={"shorter": 6 * DAY_MS - 2 * HOUR_MS})
    assert (result.messages_dropped, result.is_written, result.freed_bytes) == (2, False, 0)
    assert not (tmp_path / "new").exists()


def test_a_damaged_store_is_refused(made: tuple[Path, list[Put]], tmp_path: Path) -> None:
    shutil.copytree(made[0], tmp_path / "store")
    log_file = tmp_path / "store" / "commitlog" / f"{0:020d}"
    data = bytearray(log_file.read_bytes())
    data[100] ^= 1
    log_file.write_bytes(data)
    with pytest.raises(Exception, match="salvage it first"):
        compact(tmp_path / "store", tmp_path / "new")
    log_file.unlink()
    (tmp_path / "store" / "commitlog" / f"{LOG_FILE_BYTES:020d}").unlink()
    shutil.copy(made[0] / "commitlog" / f"{0:020d}", log_file)
    with pytest.raises(StoreUnavailable, match=r"lacks log file .*salvage it first"):
        compact(tmp_path / "store", tmp_path / "new")


# Archives -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole_archive(made: tuple[Path, list[Put]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = tmp_path_factory.mktemp("archive") / "whole"
    archive_job.archive(SESSION, str(made[0]), str(kept), broker="b")
    return kept


@pytest.fixture
def archived(whole_archive: Path, tmp_path: Path) -> Path:
    """Copy an archive of all closed log files."""
    shutil.copytree(whole_archive, tmp_path / "archive")
    return tmp_path / "archive"


def left_in(archive: Path, puts: list[Put]) -> list[Put]:
    """Return the messages that an archive keeps: it drops whole files of a topic and day."""
    open_file = len(files.load_manifests(open_folder(str(archive)))) * LOG_FILE_BYTES
    parts: dict[tuple[str, int, int], list[Put]] = {}
    for put in (put for put in puts if put.physical_offset < open_file):
        place = (put.key[0], put.time_ms // DAY_MS, put.physical_offset // LOG_FILE_BYTES)
        parts.setdefault(place, []).append(put)
    return [
        put for part in parts.values() if not all(is_expired(put) for put in part) for put in part
    ]


def test_an_archive_drops_expired_days(
    made: tuple[Path, list[Put]], archived: Path, tmp_path: Path
) -> None:
    root, puts = made
    before = files_below(archived)
    whole = rows(archived)
    planned = compact(archived, dry_run=True)
    assert files_below(archived) == before
    result = compact(archived)
    want = left_in(archived, puts)
    assert rows(archived) == keys_of(want)
    assert len(whole) - len(want) == result.messages_dropped == planned.messages_dropped > 100
    assert result.messages_kept == len(want)
    assert len(files_below(archived)) < len(before)

    # The archive is consistent: it is complete, and every lookup finds the messages kept.
    assert archive_job.verify(SESSION, str(archived)).problems == ()
    reader = ArchiveReader.open(str(archived))
    for topic, queue_id in {put.key[:2] for put in puts}:
        offsets = [put.key[2] for put in want if put.key[:2] == (topic, queue_id)]
        bounds = reader.queue(topic, queue_id)
        known = (min(offsets), max(offsets) + 1) if offsets else (0, 0)
        assert (bounds.min_offset, bounds.max_offset) == known
    gone = next(put for put in puts if put.key in whole and put not in want)
    kept = want[0]
    assert rows(archived, key=_key_of(gone)) == {}
    assert rows(archived, key=_key_of(kept)) == {kept.key: kept.body}
    with pytest.raises(NotInStore, match="taken out by compact"):
        reader.message_at(gone.physical_offset)

    # A broker may still delete the log files, and dropped messages are not archived again.
    for manifest in reader.manifests:
        assert is_archived(str(archived), manifest.start, manifest.size)
    after = files_below(archived)
    archive_job.archive(SESSION, str(root), str(archived), broker="b")
    assert compact(archived).messages_dropped == 0
    assert files_below(archived) == after

    with pytest.raises(StoreUnavailable, match=r"compacted, .*repack=True"):
        restore(SESSION, str(archived), str(tmp_path / "back"))
    restore(SESSION, str(archived), str(tmp_path / "back"), repack=True)
    assert rows(tmp_path / "back") == keys_of(want)


def _key_of(put: Put) -> str:
    return f"{put.key[0]}-{(put.time_ms - START_MS) // HOUR_MS}"


@pytest.mark.parametrize("killed_in", ["write_manifest", "delete_unnamed"])
def test_a_killed_compaction_of_an_archive_can_be_repeated(
    killed_in: str,
    made: tuple[Path, list[Put]],
    archived: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(archived, tmp_path / "whole")
    compact(tmp_path / "whole")
    calls = []

    def die(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == (3 if killed_in == "write_manifest" else 1):
            raise KeyboardInterrupt
        real(*arguments)

    real = getattr(archive_compaction, killed_in)
    with monkeypatch.context() as patch:
        patch.setattr(archive_compaction, killed_in, die)
        with pytest.raises(KeyboardInterrupt):
            compact(archived)
    assert archive_job.verify(SESSION, str(archived)).problems == ()
    compact(archived)
    assert files_below(archived) == files_below(tmp_path / "whole")


# Options ------------------------------------------------------------------------------------


def test_the_first_matching_pattern_applies_but_not_to_system_topics() -> None:
    rules = Retention((("a", None), ("a.*", 10), (".*", 20), ("RMQ_SYS_TRACE_TOPIC", 5)), 100)
    assert rules.begin_ms("a") is None
    assert rules.begin_ms("ab") == 90
    assert rules.begin_ms("b") == rules.begin_ms("%DLQ%g") == 80
    assert rules.begin_ms("SCHEDULE_TOPIC_XXXX") is None
    assert rules.begin_ms("RMQ_SYS_TRACE_TOPIC") == 95


@pytest.mark.parametrize(
    ("retention", "problem"),
    [({}, "a time for each"), ({"(": 1}, "regular expressions"), ({"a": -1}, "from 0 up")],
)
def test_wrong_retention_is_refused(
    retention: dict[str, int | None], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidOption, match=problem):
        compact(tmp_path, retention=retention)


def test_a_store_requires_a_target_and_an_archive_refuses_it(
    made: tuple[Path, list[Put]], archived: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidOption, match="the folder of the store to make"):
        compact(made[0])
    with pytest.raises(InvalidOption, match="compacted in place"):
        compact(archived, tmp_path / "new")
