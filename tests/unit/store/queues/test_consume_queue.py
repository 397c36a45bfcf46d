"""Consume queues: truncation, read-ahead, many queues at once.

tests/interop/test_same_bytes.py compares whole files with Java's byte by byte. Scripts:
``tests/scripts/store/queue``.
"""

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from reput.errors import DiskFull
from reput.format import cq_unit
from reput.format.cq_unit import Unit
from reput.store.files.disk import Disk
from reput.store.hot_state import HotState
from reput.store.kernels import hot
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.queues.consume_queues import QUEUES_PER_STEP, ConsumeQueues

UNITS_A_FILE = 5
SIZE = UNITS_A_FILE * cq_unit.SIZE


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[ConsumeQueues]:
    made = ConsumeQueues(str(tmp_path), SIZE, HotState(), Disk())
    yield made
    made.close()


def reopened(root: Path, log_min: int = 0) -> ConsumeQueues:
    reloaded = ConsumeQueues(str(root), SIZE, HotState(), Disk())
    reloaded.load(log_min)
    return reloaded


def fill(queue: ConsumeQueue, count: int) -> None:
    """Append consecutive units of records of 100 bytes."""
    for _ in range(count):
        number = queue.max_offset
        queue.append(Unit(100 * number, 100, number))


def units(queue: ConsumeQueue) -> list[Unit | None]:
    return [queue.unit(number) for number in range(queue.min_offset, queue.max_offset)]


def expected(first: int, stop: int) -> list[Unit]:
    return [Unit(100 * number, 100, number) for number in range(first, stop)]


def files(root: Path) -> dict[int, list[Unit]]:
    """Return the nonzero units of each file of queue T/0, by the file's first unit number."""
    stored = {}
    for path in sorted((root / "consumequeue/T/0").iterdir()):
        data = path.read_bytes()
        assert len(data) == SIZE
        read = [cq_unit.unpack(data, position) for position in range(0, SIZE, cq_unit.SIZE)]
        stored[int(path.name) // cq_unit.SIZE] = [unit for unit in read if unit.size]
    return stored


def written(root: Path) -> list[Unit]:
    return [unit for units_of_file in files(root).values() for unit in units_of_file]


# --- taking out -------------------------------------------------------------


@pytest.mark.parametrize("physical_offset", [0, 1, 350, 400, 500, 1100, 1199, 1200, 5000])
@pytest.mark.parametrize("is_written", [False, True])
def test_truncation_removes_the_units_after_it(
    queues: ConsumeQueues, physical_offset: int, is_written: bool, tmp_path: Path
) -> None:
    queue = queues.make("T", 0)
    fill(queue, 12)
    if is_written:
        queues.write_out()
    queue.cut(physical_offset)
    left = min(-(-physical_offset // 100), 12)
    assert (queue.max_offset, queue.next_offset) == (left, left)
    assert queue.end_physical_offset == 100 * left
    assert units(queue) == expected(0, left)
    fill(queue, 1)
    queues.write_out()
    assert written(tmp_path) == expected(0, left + 1)


# --- reading ahead ----------------------------------------------------------


@given(
    st.integers(0, 70),
    st.lists(
        st.tuples(st.integers(0, 75), st.integers(1, 12), st.sampled_from(["", "", "put", "cut"])),
        max_size=12,
    ),
)
def test_units_ahead_are_the_stored_units(count: int, reads: list[tuple[int, int, str]]) -> None:
    """Cached reads return what an uncached read returns, after any reads, puts and truncations."""
    with tempfile.TemporaryDirectory() as root:
        queues = ConsumeQueues(root, SIZE, HotState(), Disk())
        queue = queues.make("T", 0)
        fill(queue, count)
        for queue_offset, wanted, then in reads:
            if queue_offset < queue.max_offset:
                plain = queue.units(queue_offset, wanted)
                address, ahead_count = queue.units_ahead(queue_offset, wanted)
                assert ahead_count == len(plain)
                assert hot.bytes_at(address, ahead_count * cq_unit.SIZE) == plain.tobytes()
            if then == "put":
                fill(queue, wanted)
            elif then == "cut" and queue.max_offset:
                queue.cut(100 * max(1, queue.max_offset - wanted))
        queues.close()


# --- many queues, some a step -----------------------------------------------


class CountingDisk(Disk):
    """A disk that counts created files."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
        self.made.append(path)
        return super().create(path, size, is_durable=is_durable)


def test_a_step_creates_few_files_and_the_disk_thread_the_others(tmp_path: Path) -> None:
    disk = CountingDisk()
    queues = ConsumeQueues(str(tmp_path), SIZE, HotState(), disk)
    for queue_id in range(1_000):
        fill(queues.make("T", queue_id), 3)
    left, steps = queues.dirty_count, 0
    while left:
        before = len(disk.made)
        left = queues.write_some(left)
        assert len(disk.made) - before <= 4
        before = len(disk.made)
        queues.make_files()
        assert len(disk.made) - before <= 64
        steps += 1
        assert steps < 100
    assert len(disk.made) == 1_000
    assert len(set(disk.made)) == 1_000
    assert queues.dirty_count == 0
    assert not queues.make_files()
    queues.close()
    loaded = reopened(tmp_path)
    assert len(loaded) == 1_000
    assert all(units(queue) == expected(0, 3) for queue in loaded)


@pytest.mark.parametrize("room", [None, 40, 500])
def test_a_stop_creates_many_files_in_two_threads(tmp_path: Path, room: int | None) -> None:
    """Some queues begin a second file, too; some have a file already, or wait for it."""

    class Full(Disk):
        """A disk with room for some files, then full, then with room again."""

        left = 1 << 30 if room is None else room

        def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
            self.left -= 1
            if self.left == -1:
                raise DiskFull(path, size, "no room: a test")
            return super().create(path, size, is_durable=is_durable)

    queues = ConsumeQueues(str(tmp_path), SIZE, HotState(), Full())
    counts = {(f"T{n // 8}", n % 8): 1 + n % (UNITS_A_FILE + 2) for n in range(700)}
    for number, (key, count) in enumerate(counts.items()):
        fill(queues.make(*key), count)
        if number == 20:
            queues.write_some(21)  # some have files, some wait for them
            queues.make_files()
    if room is not None:
        with pytest.raises(DiskFull):
            queues.write_out()
        assert queues.dirty_count
    assert queues.write_out()
    assert queues.dirty_count == 0
    queues.sync()
    queues.close()
    loaded = reopened(tmp_path)
    assert {(queue.topic, queue.queue_id): queue.max_offset for queue in loaded} == counts
    assert all(units(queue) == expected(0, queue.max_offset) for queue in loaded)
    for path in (tmp_path / "consumequeue").glob("*/*/*"):
        assert path.stat().st_size == SIZE


def test_waiting_queues_keep_their_turn(queues: ConsumeQueues) -> None:
    """Waiting queues follow the others of a round, and precede queues that became dirty later."""
    made = [queues.make("T", queue_id) for queue_id in range(60)]
    for queue in made[:30]:
        fill(queue, 1)
    queues.write_out()
    for queue in (*made[30:50], *made[:30]):
        fill(queue, 1)
    left = queues.dirty_count
    for queue in made[50:]:
        fill(queue, 1)  # after the round began
    # Four get files; with the twelve that have files, a step writes no others.
    assert QUEUES_PER_STEP == 16
    assert queues.write_some(left) == 50 - QUEUES_PER_STEP
    left_queues = [queues.at(address).queue_id for address in queues._hot.dirty_rows()]
    assert left_queues == [*range(12, 30), *range(34, 50), *range(50, 60)]


def test_a_round_ends_while_queues_keep_getting_units(queues: ConsumeQueues) -> None:
    for queue_id in range(300):
        fill(queues.make("T", queue_id), 1)
    queues.write_out()
    for queue_id in range(300):
        fill(queues.make("T", queue_id), 1)
    left = queues.dirty_count
    for steps in range(1, 300):
        left = queues.write_some(left)
        fill(queues.make("T", 299 if steps == 1 else 0), 1)
        if not left:
            break
    assert steps == -(-300 // QUEUES_PER_STEP)
    assert queues.dirty_count > 0  # queues that became dirty later wait for the next round


def test_a_queue_dropped_while_waiting_for_its_file_leaves_none(tmp_path: Path) -> None:
    disk = CountingDisk()
    queues = ConsumeQueues(str(tmp_path), SIZE, HotState(), disk)
    for queue_id in range(20):
        fill(queues.make("T", queue_id), 1)
    queues.write_some(20)
    queues.make_files()  # files without a write
    for queue_id in range(20, 40):
        fill(queues.make("T", queue_id), 1)
    queues.write_some(40)
    queues.drop(list(queues))
    assert not queues.make_files()
    assert not (tmp_path / "consumequeue/T").exists()
    queues.close()


class CountingQueues(ConsumeQueues):
    """Queues that count the checks for missing files."""

    checks = 0

    def _file_to_make(self, queue: ConsumeQueue) -> str | None:
        self.checks += 1
        return super()._file_to_make(queue)


def test_queues_that_all_wait_for_their_files_are_not_checked_again(tmp_path: Path) -> None:
    queues = CountingQueues(str(tmp_path), SIZE, HotState(), Disk())
    for queue_id in range(20):
        fill(queues.make("T", queue_id), 1)
    assert queues.write_some(20) == 16
    assert not queues.is_waiting_for_files
    assert queues.write_some(16) == 16
    assert queues.is_waiting_for_files
    checks = queues.checks
    assert [queues.write_some(16) for _ in range(3)] == [16, 16, 16]
    assert queues.checks == checks
    queues.make_files()
    assert not queues.is_waiting_for_files
    assert queues.write_some(16) == 0
    queues.close()


class BusyDiskThread(ConsumeQueues):
    """Queues whose files are created at the worst moment: just after one was found missing."""

    def _file_to_make(self, queue: ConsumeQueue) -> str | None:
        path = super()._file_to_make(queue)
        if path is not None and self._to_make.get(queue) == path:
            assert self.make_files()
        return path


def test_a_file_created_during_its_request_is_created_once(tmp_path: Path) -> None:
    disk = CountingDisk()
    queues = BusyDiskThread(str(tmp_path), SIZE, HotState(), disk)
    for queue_id in range(20):
        fill(queues.make("T", queue_id), 1)
    while queues.dirty_count:
        queues.write_some(20)
    queues.make_files()
    assert not queues.make_files()
    assert len(disk.made) == len(set(disk.made)) == 20
    queues.close()
    assert all(units(queue) == expected(0, 1) for queue in reopened(tmp_path))


class SlowDisk(CountingDisk):
    """A disk that blocks while it creates its first file, so that other threads run."""

    def __init__(self) -> None:
        super().__init__()
        self.is_making = threading.Event()
        self.may_continue = threading.Event()

    def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
        descriptor = super().create(path, size, is_durable=is_durable)
        if not self.is_making.is_set():
            self.is_making.set()
            assert self.may_continue.wait(30)
        return descriptor


def test_a_writer_waits_for_one_file_of_the_disk_thread_and_not_for_all(tmp_path: Path) -> None:
    """Locks are not fair: a send waited 100 ms for the 64 files of a step."""
    disk = SlowDisk()
    disk.is_making.set()
    queues = ConsumeQueues(str(tmp_path), SIZE, HotState(), disk)
    for queue_id in range(64):
        fill(queues.make("T", queue_id), 1)
    queues.write_some(64)
    before = len(disk.made)
    disk.is_making.clear()
    thread = threading.Thread(target=queues.make_files)
    thread.start()
    assert disk.is_making.wait(30)
    wanted = queues.make("T", 63)
    writer = threading.Thread(target=wanted.write_out)
    writer.start()
    while not queues._turn.locked():
        assert writer.is_alive()
    disk.may_continue.set()
    writer.join(30)
    thread.join(30)
    assert str(tmp_path / "consumequeue/T/63") in disk.made[before + 1]
    queues.close()
    assert len(disk.made) == len(set(disk.made))


def test_failed_file_creation_in_the_disk_thread_fails_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer gets the error, and does not wait for the file forever."""
    disk = CountingDisk()
    queues = ConsumeQueues(str(tmp_path), SIZE, HotState(), disk)
    for queue_id in range(20):
        fill(queues.make("T", queue_id), 1)

    def fail(path: str, *_: object, **__: object) -> int:
        raise DiskFull(path, SIZE, "none left")

    left = queues.write_some(20)
    with monkeypatch.context() as full:
        full.setattr(disk, "create", fail)
        with pytest.raises(DiskFull):
            queues.make_files()
        for _ in range(3):
            with pytest.raises(DiskFull):
                queues.write_some(left)
            assert not queues.make_files()
    while left:
        left = queues.write_some(left)
        queues.make_files()
    assert len(disk.made) == len(set(disk.made)) == 20
    queues.close()
    assert all(units(queue) == expected(0, 1) for queue in reopened(tmp_path))


class FullOnceDisk(CountingDisk):
    """A disk without room for the first write."""

    is_full = True

    def write(self, descriptor: int, path: str, position: int, data: bytes | memoryview) -> None:
        if self.is_full:
            self.is_full = False
            raise DiskFull(path, len(data), "none left")
        super().write(descriptor, path, position, data)


def test_a_file_without_room_for_its_blanks_is_created_again(tmp_path: Path) -> None:
    queues = ConsumeQueues(str(tmp_path), SIZE, HotState(), FullOnceDisk())
    queue = queues.make("T", 0)
    queue.start_at(7)
    fill(queue, 1)
    with pytest.raises(DiskFull):
        queues.write_out()
    queues.write_out()
    queues.close()
    assert [queue.max_offset for queue in reopened(tmp_path)] == [8]


def test_a_queue_that_begins_elsewhere_gets_its_file_with_its_blanks(tmp_path: Path) -> None:
    queues = ConsumeQueues(str(tmp_path), SIZE, HotState(), Disk())
    for queue_id in range(10):
        queue = queues.make("T", queue_id)
        queue.start_at(7)
        fill(queue, 1)
    assert queues.write_some(10) == 0
    queues.close()
    assert {queue.max_offset for queue in reopened(tmp_path)} == {8}
