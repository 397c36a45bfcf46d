"""Queues and index, derived by several threads: the bytes of one thread, whatever happens."""

import dataclasses
import functools
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import seeds
import store_fixture
from reput.clock import ManualClock
from reput.errors import DiskFull
from reput.format import names, properties as props, sys_flag as flags
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.kernels import hot
from reput.store.message_store import MessageStore
from reput.store.opening import rebuild
from reput.store.writing.incoming import IncomingMessage
from store_fixture import START_MS, needs_kernels
from store_subject import message

pytestmark = [pytest.mark.crash, needs_kernels]

FAMILIES = (paths.CONSUME_QUEUE, paths.CONSUME_QUEUE_EXT, paths.INDEX)
SETTINGS = {"enable_multi_dispatch": True, "index_tags": True}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each store large enough for threads, and its pieces as small as a few records."""
    monkeypatch.setattr(rebuild, "PARALLEL_BYTES_MIN", 1)
    monkeypatch.setattr(rebuild, "PIECE_BYTES", 4096)
    monkeypatch.setattr(rebuild, "_TOPICS_MAX", 8)


def random_message(chance: random.Random, number: int) -> IncomingMessage:
    """Return a message; one of ten is of a kind that Python dispatches, or that stops kernels."""
    kind = chance.randrange(40)
    body = b"x" * chance.choice((0, 3, 100, 100, 700))
    topic, queue_id = f"Topic{chance.randrange(6)}", chance.randrange(3)
    keys = " ".join(f"k{chance.randrange(50)}" for _ in range(chance.randrange(4)))
    fields: dict[str, object] = {
        "keys": chance.choice((keys, f" {keys}  k")),
        "unique_key": chance.choice(("", f"U{number}")),
        "tags": chance.choice(("", "TagA", "标签")),
    }
    if kind == 0:
        body = b"y" * 9000  # longer than a piece
    elif kind == 1:
        topic = f"Rare{number}"
    elif kind == 2:
        names_of_queues = f"%LMQ%a{number % 3}"
        fields["properties"] = {props.INNER_MULTI_DISPATCH: names_of_queues}
    elif kind in (3, 4, 5):
        kinds = (flags.TRANSACTION_PREPARED, flags.TRANSACTION_ROLLBACK, flags.TRANSACTION_COMMIT)
        fields["sys_flag"] = kinds[kind - 3]
    elif kind == 6:
        fields["property_bytes"] = b"KEYS\x01\xff\xfe\x02"
    elif kind in (7, 8):
        topic, queue_id = names.SCHEDULE_TOPIC, kind - 5
        fields["properties"] = {props.DELAY: str(queue_id + 1), props.REAL_TOPIC: "Topic0"}
    return message(topic, body, queue_id, **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return a function that returns the store of a seed; tests copy it."""

    @functools.cache
    def store_of(seed: int) -> Path:
        root = tmp_path_factory.mktemp("store") / str(seed)
        write(root, seed)
        return root

    return store_of


def write(root: Path, seed: int) -> None:
    """Write a store of several log files and many pieces, and leave it as a crash does."""
    chance = seeds.random("rebuilt stores", seed)
    clock = ManualClock(START_MS)
    store = MessageStore.open(config=store_fixture.config(root, **SETTINGS), clock=clock)
    for number in range(700):
        store.put(random_message(chance, number))
        clock.advance(chance.randrange(3000))
        if number % 250 == 249:
            store.delete_topic(f"Topic{chance.randrange(6)}")
    store.step()
    store.abandon()


def damage(root: Path, seed: int) -> None:
    """Change a byte of a few records, and remove a few."""
    chance = seeds.random("rebuilt damage", seed)
    for path in sorted((root / paths.COMMIT_LOG).iterdir())[:-1]:
        with path.open("r+b") as file:
            file.seek(chance.randrange(60_000))
            file.write(b"?")
            file.seek(chance.randrange(60_000))
            file.write(bytes(chance.randrange(2000)))


def without(root: Path, into: Path, *families: str) -> Path:
    """Return a copy of a store without some of its derived files."""
    shutil.copytree(root, into)
    for family in families:
        shutil.rmtree(into / family, ignore_errors=True)
    return into


def derived(root: Path) -> dict[str, bytes]:
    """Return the bytes of all derived files."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for family in FAMILIES
        for path in sorted((root / family).rglob("*"))
        if path.is_file()
    }


def open_store(
    root: Path,
    thread_count: int,
    disk: Disk | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> MessageStore:
    config = store_fixture.config(root, reput_recovery_threads=thread_count, **SETTINGS)
    clock = ManualClock(START_MS + 10_000_000)
    return MessageStore.open(config=config, clock=clock, disk=disk, progress=progress)


def rebuilt(root: Path, thread_count: int) -> tuple[str, list[object], dict[str, bytes]]:
    """Open and close a store; return what the recovery did, and the bytes of its derived files."""
    with open_store(root, thread_count) as store:
        report = store.recovery
    return str(report), [dataclasses.astuple(hole) for hole in report.holes], derived(root)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.sampled(4)
def test_several_threads_write_the_bytes_of_one(
    seed: int, tmp_path: Path, written: Callable[[int], Path]
) -> None:
    original = without(written(seed % 2), tmp_path / "store")
    if seed > 1:
        damage(original, seed)
    sequential, parallel = (
        rebuilt(without(original, tmp_path / str(count), *FAMILIES), count) for count in (1, 3)
    )
    assert len(sequential[2]) > 50
    assert bool(sequential[1]) == (seed > 1)
    assert parallel == sequential


def test_a_gap_in_a_queue_lets_dispatch_begin_again(
    tmp_path: Path, written: Callable[[int], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """It begins at the end of the index, meets the gap, and goes back to the start of the log."""
    original = without(written(1), tmp_path / "store")
    open_store(original, 1).close()
    expected = derived(original)
    (original / paths.ABORT).touch()
    (original / paths.QUEUE_SUMMARY).unlink()
    index = sorted((original / paths.INDEX).iterdir())
    queues = [sorted(path.iterdir()) for path in (original / paths.CONSUME_QUEUE).glob("Topic*/*")]
    units = max(queues, key=len)
    for file in (*index[len(index) // 2 :], *units[1:]):
        file.unlink()
    sequential, parallel = (rebuilt(without(original, tmp_path / str(n)), n) for n in (1, 3))
    assert caplog.text.count("lacks units before") == 2
    assert parallel == sequential
    assert parallel[2] == expected


def test_the_log_names_the_number_of_threads(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    written: Callable[[int], Path],
) -> None:
    without(written(0), tmp_path / "store")
    monkeypatch.setattr(rebuild, "usable_cores", lambda: 5)
    with caplog.at_level(logging.INFO):
        open_store(tmp_path / "store", 0).abandon()
        assert "dispatched by 5 threads" in caplog.text
        caplog.clear()
        monkeypatch.setattr(rebuild, "PARALLEL_BYTES_MIN", 1 << 30)
        open_store(tmp_path / "store", 0).close()
    assert "threads" not in caplog.text


class FullDisk(Disk):
    """A disk without space for index files after the first few."""

    def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
        names_of_files = os.listdir(os.path.dirname(path))  # noqa: PTH208, PTH120
        if f"/{paths.INDEX}/" in path and len(names_of_files) > 5:
            raise DiskFull(path, size, "none left")
        return super().create(path, size, is_durable=is_durable)


def test_a_full_disk_ends_the_start_and_the_next_one_succeeds(
    tmp_path: Path, written: Callable[[int], Path]
) -> None:
    expected = rebuilt(without(written(0), tmp_path / "one", *FAMILIES), 1)
    copy = without(written(0), tmp_path / "full", *FAMILIES)
    with pytest.raises(DiskFull):
        open_store(copy, 3, FullDisk())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rebuild")]
    assert rebuilt(copy, 3)[2] == expected[2]


CHILD = """
import os, signal, sys
from pathlib import Path
from reput.store.opening import rebuild
import test_parallel_rebuild as tests

rebuild.PARALLEL_BYTES_MIN, rebuild.PIECE_BYTES = 1, 4096
left = int(sys.argv[2])

def progress(*_):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

tests.open_store(Path(sys.argv[1]), 3, progress=progress)
"""


@pytest.mark.parametrize("steps", [3, 40])
@pytest.mark.sampled(2)
def test_a_kill_in_a_rebuild_is_repaired_by_the_next_start(
    steps: int, tmp_path: Path, written: Callable[[int], Path]
) -> None:
    copy = without(written(1), tmp_path / "killed", *FAMILIES)
    modules = [str(Path(file).parent) for file in (store_fixture.__file__, __file__)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*modules, *sys.path])}
    command = [sys.executable, "-c", CHILD, str(copy), str(steps)]
    assert subprocess.run(command, env=environment, check=False).returncode == -9
    expected = rebuilt(without(written(1), tmp_path / "one", *FAMILIES), 1)
    assert rebuilt(copy, 3)[2] == expected[2]


def test_digests_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Callable[[int], Path]
) -> None:
    """Most records take the parallel way: a piece without a digest would show no difference."""
    by_digest, one_by_one = [], []
    put, scan = hot.put_digested_units, hot.dispatch

    def put_digested(*arguments: int) -> int:
        number = put(*arguments)
        by_digest.append(number - arguments[2])
        return number

    def dispatch(*arguments: int) -> int:
        one_by_one.append(scan(*arguments))
        return one_by_one[-1]

    monkeypatch.setattr(hot, "put_digested_units", put_digested)
    monkeypatch.setattr(hot, "dispatch", dispatch)
    open_store(without(written(0), tmp_path / "copy", *FAMILIES), 2).abandon()
    assert sum(by_digest) > sum(one_by_one)
