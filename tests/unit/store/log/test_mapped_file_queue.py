"""The run of files: loading, growth, truncation, and several folders."""

import gc
import logging
import os
import re
import threading
from pathlib import Path

import pytest

from descriptors import open_below
from reput.errors import DiskFull, StoreUnavailable, WriteFailed
from reput.store.files.disk import Disk
from reput.store.log import mapped_file
from reput.store.log.mapped_file_queue import MappedFileQueue
from reput.store.log.transient_pool import TransientPool

SIZE = 8192
NOW_MS = 1_700_000_000_000


class Folders(Disk):
    """A disk where folders can be full or read-only, and which records its operations."""

    def __init__(self) -> None:
        super().__init__()
        self.full: set[str] = set()
        self.read_only: set[str] = set()
        self.done: list[str] = []

    def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
        folder = Path(path).parent.name
        if folder in self.read_only:
            raise WriteFailed(path, "cannot create: Read-only file system")
        self.done.append(f"create {Path(path).name[-5:]}")
        return super().create(path, size, is_durable=is_durable)

    def reserve(self, descriptor: int, path: str, start: int, length: int) -> None:
        if Path(path).parent.name in self.full:
            raise DiskFull(path, length, "full")
        super().reserve(descriptor, path, start, length)

    def unlink(self, path: str) -> None:
        self.done.append(f"unlink {Path(path).name[-5:]}")
        super().unlink(path)

    def sync_folder(self, path: str) -> None:
        self.done.append("sync folder")

    def sync_file(self, descriptor: int, path: str) -> None:
        self.done.append(f"sync {Path(path).name[-5:]}")


@pytest.fixture
def disk() -> Folders:
    return Folders()


def queue_in(root: Path, disk: Disk, names: str = "a", **options: object) -> MappedFileQueue:
    folders = [str(root / name) for name in names]
    return MappedFileQueue(folders, SIZE, disk, **options)  # type: ignore[arg-type]


def make(root: Path, *starts: int, folder: str = "a", fill: bytes = b"x") -> None:
    (root / folder).mkdir(exist_ok=True)
    for start in starts:
        (root / folder / f"{start:020d}").write_bytes(fill * SIZE)


def names(root: Path) -> dict[str, list[int]]:
    return {path.name: sorted(int(file.name) for file in path.iterdir()) for path in root.iterdir()}


def grow(queue: MappedFileQueue, count: int) -> None:
    for _ in range(count):
        queue.roll().append(b"x" * SIZE)


# --- loading --------------------------------------------------------------


def test_a_missing_folder_is_an_empty_run(tmp_path: Path, disk: Disk) -> None:
    queue = queue_in(tmp_path, disk)
    queue.load()
    assert queue.files == ()
    assert (queue.first, queue.last, queue.min_offset, queue.max_offset) == (None, None, 0, 0)
    assert queue.file_at(0) is None
    assert (queue.flush(), queue.commit()) == (0, 0)
    assert names(tmp_path) == {}, "nothing is made by looking"


def test_files_are_found_in_order_and_count_as_full(tmp_path: Path, disk: Disk) -> None:
    make(tmp_path, 2 * SIZE, SIZE, 3 * SIZE)
    queue = queue_in(tmp_path, disk)
    queue.load()
    assert [file.start for file in queue.files] == [SIZE, 2 * SIZE, 3 * SIZE]
    assert (queue.min_offset, queue.max_offset) == (SIZE, 4 * SIZE)
    assert queue.flush() == 4 * SIZE


def test_many_files_cost_no_map_and_no_descriptor(tmp_path: Path, disk: Disk) -> None:
    make(tmp_path, *range(0, 100 * SIZE, SIZE))
    queue = queue_in(tmp_path, disk)
    queue.load()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    assert all(file.read(0, 1) == b"x" for file in queue.files)
    assert open_below(tmp_path) == []
    queue.close()


def test_a_file_of_another_size_is_refused(tmp_path: Path, disk: Disk) -> None:
    make(tmp_path, 0, SIZE, 2 * SIZE)
    os.truncate(tmp_path / "a" / f"{SIZE:020d}", SIZE - 1)
    queue = queue_in(tmp_path, disk)
    with pytest.raises(StoreUnavailable, match=f"{SIZE:020d} has {SIZE - 1} bytes, but mapped"):
        queue.load()


def test_an_empty_last_file_is_dropped_and_logged(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, 0)
    (tmp_path / "a" / f"{SIZE:020d}").touch()
    queue = queue_in(tmp_path, disk)
    with caplog.at_level(logging.WARNING):
        queue.load()
    assert [file.start for file in queue.files] == [0]
    assert names(tmp_path) == {"a": [0]}
    assert f"{SIZE:020d} is empty and is deleted" in caplog.text


def test_an_empty_file_before_the_last_is_refused(tmp_path: Path, disk: Disk) -> None:
    make(tmp_path, SIZE)
    (tmp_path / "a" / f"{0:020d}").touch()
    with pytest.raises(StoreUnavailable, match="has 0 bytes"):
        queue_in(tmp_path, disk).load()


def test_other_names_are_ignored_and_logged_once(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, 0)
    (tmp_path / "a" / "notes.txt").write_bytes(b"mine")
    (tmp_path / "a" / f"{SIZE:020d}").mkdir()
    queue = queue_in(tmp_path, disk)
    with caplog.at_level(logging.WARNING):
        queue.load()
    assert len(queue.files) == 1
    assert len(caplog.records) == 1
    assert f"['{SIZE:020d}', 'notes.txt']" in caplog.text


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path, disk: Disk) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(StoreUnavailable, match=f"^{tmp_path}/a cannot be read: Not a directory"):
        queue_in(tmp_path, disk).load()


def test_folders_are_merged_by_offset(tmp_path: Path, disk: Disk) -> None:
    make(tmp_path, 0, 2 * SIZE, folder="b")
    make(tmp_path, SIZE, folder="a")
    make(tmp_path, 3 * SIZE, folder="c")
    queue = queue_in(tmp_path, disk, "ba", read_only_folders=[str(tmp_path / "c")])
    queue.load()
    assert [Path(file.path).parent.name for file in queue.files] == ["b", "a", "b", "c"]


@pytest.mark.parametrize("start", [SIZE, SIZE + 1, 2 * SIZE - 1])
def test_two_files_for_one_offset_are_refused(tmp_path: Path, disk: Disk, start: int) -> None:
    make(tmp_path, 0, SIZE, folder="a")
    make(tmp_path, start, folder="b")
    with pytest.raises(StoreUnavailable, match=f"both contain physical offset {start}"):
        queue_in(tmp_path, disk, "ab").load()


def test_gaps_are_not_fatal(tmp_path: Path, disk: Disk) -> None:
    make(tmp_path, SIZE, 2 * SIZE, 5 * SIZE)
    queue = queue_in(tmp_path, disk)
    queue.load()
    assert [file.start for file in queue.files] == [SIZE, 2 * SIZE, 5 * SIZE]


@pytest.mark.parametrize("starts", [(SIZE, 2 * SIZE, 3 * SIZE), (SIZE, 5 * SIZE, 6 * SIZE), (7,)])
def test_file_at_returns_the_file_that_contains_the_offset(
    tmp_path: Path, disk: Disk, starts: tuple[int, ...]
) -> None:
    make(tmp_path, *starts)
    queue = queue_in(tmp_path, disk)
    queue.load()
    for wanted in range(0, 8 * SIZE, SIZE // 4):
        expected = [start for start in starts if start <= wanted < start + SIZE]
        file = queue.file_at(wanted)
        assert ([file.start] if file else []) == expected


# --- growing --------------------------------------------------------------


def test_roll_creates_the_folder_and_names_files_by_their_offset(
    tmp_path: Path, disk: Disk
) -> None:
    queue = queue_in(tmp_path / "store", disk)
    queue.load()
    grow(queue, 2)
    assert names(tmp_path / "store") == {"a": [0, SIZE]}
    assert queue.max_offset == 2 * SIZE
    assert queue.roll().reserved == SIZE, "room for the first step"
    queue.close()


def test_an_empty_run_may_begin_anywhere(tmp_path: Path, disk: Disk) -> None:
    queue = queue_in(tmp_path, disk)
    assert queue.roll(start=5 * SIZE).start == 5 * SIZE
    queue.close()


def test_flush_does_not_pass_a_file_that_is_not_full(tmp_path: Path, disk: Disk) -> None:
    queue = queue_in(tmp_path, disk)
    first = queue.roll()
    first.append(b"hello")
    queue.roll().append(b"world")
    assert (queue.flush(), queue.max_offset) == (5, 5)
    first.append(b"." * (SIZE - 5))
    assert (queue.flush(), queue.max_offset) == (SIZE + 5, SIZE + 5)
    queue.close()


def test_the_prepared_file_is_taken(tmp_path: Path, disk: Folders) -> None:
    queue = queue_in(tmp_path, disk)
    queue.prepare_next()
    assert queue.has_prepared, "the first file"
    grow(queue, 1)
    assert not queue.has_prepared
    queue.prepare_next()
    queue.prepare_next()
    assert queue.has_prepared
    assert names(tmp_path) == {"a": [0, SIZE]}
    assert queue.max_offset == SIZE
    del disk.done[:]
    assert queue.roll().start == SIZE
    assert disk.done == []
    assert not queue.has_prepared
    queue.close()


def test_a_clean_stop_leaves_no_prepared_file(tmp_path: Path, disk: Disk) -> None:
    queue = queue_in(tmp_path, disk)
    grow(queue, 1)
    queue.prepare_next()
    queue.drop_prepared()
    queue.drop_prepared()
    assert names(tmp_path) == {"a": [0]}
    assert queue.roll().start == SIZE
    queue.close()


def test_preparing_in_a_thread_while_files_roll(tmp_path: Path) -> None:
    queue = queue_in(tmp_path, Disk())
    grow(queue, 1)
    stop = threading.Event()

    def prepare() -> None:
        while not stop.is_set():
            queue.prepare_next()

    thread = threading.Thread(target=prepare)
    thread.start()
    grow(queue, 30)
    stop.set()
    thread.join()
    assert [file.start for file in queue.files] == list(range(0, 31 * SIZE, SIZE))
    queue.drop_prepared()
    assert names(tmp_path) == {"a": list(range(0, 31 * SIZE, SIZE))}
    queue.close()


def test_the_writer_of_a_warmed_run_never_waits_for_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = []
    monkeypatch.setattr("reput.store.files.memory.lock", lambda address, size: locked.append(size))
    monkeypatch.setattr(mapped_file, "RESERVE_BYTES", SIZE // 4)
    queue = queue_in(tmp_path, Disk(), is_warmed=True)
    file = queue.roll()
    assert (file.reserved, locked) == (SIZE // 4, []), "another thread warms it"
    while queue.step_warming(SIZE // 4):
        pass
    assert (file.reserved, locked) == (SIZE, [SIZE])
    queue.close()


def test_only_files_that_are_written_to_stay_locked_in_memory(tmp_path: Path) -> None:
    gc.collect()  # files of other tests
    before = locked_bytes()
    queue = queue_in(tmp_path, Disk(), is_warmed=True)
    grow(queue, 1)
    for _ in range(6):
        queue.prepare_next()
        while queue.step_warming(SIZE):
            pass
        assert locked_bytes() - before == 2 * SIZE, "the last file and the prepared one"
        grow(queue, 1)
    while queue.step_warming(SIZE):
        pass
    assert locked_bytes() - before == SIZE
    queue.close()
    assert locked_bytes() == before


def locked_bytes() -> int:
    (line,) = re.findall(r"VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(line)


def test_new_files_take_buffers_until_there_is_none(tmp_path: Path, disk: Disk) -> None:
    pool = TransientPool(1, SIZE, is_locked=False)
    queue = queue_in(tmp_path, disk, pool=pool)
    first = queue.roll()
    first.append(b"x" * SIZE)
    assert (queue.max_offset, pool.available) == (0, 0)
    second = queue.roll()
    assert second.write_address == second.address, "no buffer was left"
    second.append(b"y")
    assert (queue.max_offset, queue.flush()) == (0, 0), "the first file is not committed"
    assert queue.commit() == SIZE + 1
    assert pool.available == 1
    assert queue.flush() == SIZE + 1
    queue.close()


def test_a_file_that_cannot_be_created_returns_its_buffer(tmp_path: Path, disk: Folders) -> None:
    pool = TransientPool(1, SIZE, is_locked=False)
    queue = queue_in(tmp_path, disk, pool=pool)
    disk.read_only = {"a"}
    with pytest.raises(WriteFailed):
        queue.roll()
    disk.read_only, disk.full = set(), {"a"}
    with pytest.raises(DiskFull):
        queue.roll()
    assert pool.available == 1
    assert names(tmp_path) == {"a": []}


# --- several folders ------------------------------------------------------


def test_files_take_turns_over_sorted_folders(tmp_path: Path, disk: Disk) -> None:
    queue = queue_in(tmp_path, disk, "cab")
    grow(queue, 7)
    assert names(tmp_path) == {
        "a": [0, 3 * SIZE, 6 * SIZE],
        "b": [SIZE, 4 * SIZE],
        "c": [2 * SIZE, 5 * SIZE],
    }
    queue.close()


def test_folders_marked_full_or_read_only_are_skipped(tmp_path: Path, disk: Disk) -> None:
    # As Java's MultiPathMappedFileQueue: the turn counts only the folders that are left.
    queue = queue_in(tmp_path, disk, "abcd", read_only_folders=[str(tmp_path / "a")])
    queue.full_folders = {str(tmp_path / "c")}
    grow(queue, 4)
    assert names(tmp_path) == {"b": [0, 2 * SIZE], "d": [SIZE, 3 * SIZE]}
    queue.close()


def test_folders_are_used_when_all_are_marked_full(tmp_path: Path, disk: Disk) -> None:
    queue = queue_in(tmp_path, disk, "ab")
    queue.full_folders = {str(tmp_path / "a"), str(tmp_path / "b")}
    grow(queue, 2)
    assert names(tmp_path) == {"a": [0], "b": [SIZE]}
    queue.close()


def test_a_folder_found_full_or_read_only_is_skipped(
    tmp_path: Path, disk: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_in(tmp_path, disk, "abc")
    disk.full, disk.read_only = {"a"}, {"b"}
    with caplog.at_level(logging.WARNING):
        grow(queue, 2)
    assert names(tmp_path) == {"a": [], "b": [], "c": [0, SIZE]}
    assert f"no new file in {tmp_path}/a: " in caplog.text
    queue.close()


@pytest.mark.parametrize(("full", "read_only"), [("a", "b"), ("b", "a"), ("ab", "")])
def test_no_room_in_any_folder_is_disk_full_and_leaves_no_file(
    tmp_path: Path, disk: Folders, full: str, read_only: str
) -> None:
    queue = queue_in(tmp_path, disk, "ab")
    disk.full, disk.read_only = set(full), set(read_only)
    with pytest.raises(DiskFull):
        queue.roll()
    assert names(tmp_path) == {"a": [], "b": []}
    assert queue.files == ()


def test_only_read_only_folders_are_an_error(tmp_path: Path, disk: Disk) -> None:
    queue = queue_in(tmp_path, disk, "a", read_only_folders=[str(tmp_path / "a")])
    with pytest.raises(WriteFailed, match=f"^{tmp_path}/a: no new file: every folder is read-only"):
        queue.roll()


# --- durability -----------------------------------------------------------


def test_flush_goes_over_file_ends_in_order(tmp_path: Path, disk: Folders) -> None:
    queue = queue_in(tmp_path, disk)
    grow(queue, 2)
    queue.roll().append(b"tail")
    del disk.done[:]
    assert queue.flush() == 2 * SIZE + 4
    assert disk.done == ["sync 00000", f"sync 0{SIZE}", f"sync {2 * SIZE}"]
    del disk.done[:]
    assert queue.flush() == 2 * SIZE + 4
    assert disk.done == []
    queue.close()


def test_flushed_data_has_no_hole(tmp_path: Path) -> None:
    class Broken(Disk):
        is_broken = False

        def sync_file(self, descriptor: int, path: str) -> None:
            if self.is_broken and path.endswith(str(SIZE)):
                raise WriteFailed(path, "cannot sync: Input/output error")

    disk = Broken()
    queue = queue_in(tmp_path, disk)
    grow(queue, 3)
    disk.is_broken = True
    for _ in range(2):
        with pytest.raises(WriteFailed):
            queue.flush()
    assert [file.flushed for file in queue.files] == [SIZE, 0, 0]
    queue.close()


def test_a_deleted_file_is_durable_for_no_thread(tmp_path: Path, disk: Disk) -> None:
    """The next flush, perhaps of another thread, has nothing to sync and must fail too."""
    queue = queue_in(tmp_path, disk)
    file = queue.roll()
    file.append(b"kept")
    assert queue.flush() == 4
    Path(file.path).unlink()
    file.append(b"lost")
    for _ in range(2):
        with pytest.raises(WriteFailed, match="was deleted while the store is open"):
            queue.flush()
        assert file.flushed == 4
    queue.close()


# --- shrinking ------------------------------------------------------------


def test_truncate_deletes_newest_first_then_zeros_the_tail(tmp_path: Path, disk: Folders) -> None:
    make(tmp_path, 0, SIZE, 2 * SIZE, 3 * SIZE)
    queue = queue_in(tmp_path, disk)
    queue.load()
    queue.truncate(SIZE + 5, NOW_MS)
    assert disk.done == [
        f"unlink {3 * SIZE}",
        f"unlink {2 * SIZE}",
        "sync folder",
        f"sync 0{SIZE}",
    ]
    assert names(tmp_path) == {"a": [0, SIZE]}
    assert (tmp_path / "a" / f"{SIZE:020d}").read_bytes() == b"x" * 5 + bytes(SIZE - 5)
    assert queue.max_offset == queue.flush() == SIZE + 5
    last = queue.last
    assert last is not None
    assert last.append(b"y") == 5
    queue.close()


@pytest.mark.parametrize(
    ("physical_offset", "left", "end"),
    [
        (5 * SIZE, [SIZE, 2 * SIZE], 3 * SIZE),
        (3 * SIZE, [SIZE, 2 * SIZE], 3 * SIZE),
        (3 * SIZE - 1, [SIZE, 2 * SIZE], 3 * SIZE - 1),
        (2 * SIZE, [SIZE, 2 * SIZE], 2 * SIZE),
        (2 * SIZE - 1, [SIZE], 2 * SIZE - 1),
        (SIZE, [SIZE], SIZE),
        (SIZE - 1, [], 0),
    ],
)
def test_truncate_anywhere(
    tmp_path: Path, disk: Disk, physical_offset: int, left: list[int], end: int
) -> None:
    make(tmp_path, SIZE, 2 * SIZE)
    queue = queue_in(tmp_path, disk)
    queue.load()
    queue.truncate(physical_offset, NOW_MS)
    assert names(tmp_path) == {"a": left}
    assert queue.max_offset == end
    queue.close()


def test_after_truncate_at_a_file_end_the_next_file_follows(tmp_path: Path, disk: Disk) -> None:
    make(tmp_path, 0)
    queue = queue_in(tmp_path, disk)
    queue.load()
    queue.truncate(SIZE, NOW_MS)
    assert queue.roll().start == SIZE
    queue.close()


def test_the_oldest_file_goes_first_and_the_last_one_never(tmp_path: Path, disk: Disk) -> None:
    queue = queue_in(tmp_path, disk)
    grow(queue, 3)
    assert queue.delete_first(NOW_MS).start == 0
    assert queue.delete_first(NOW_MS).start == SIZE
    assert (queue.min_offset, queue.max_offset) == (2 * SIZE, 3 * SIZE)
    with pytest.raises(AssertionError, match="never deleted"):
        queue.delete_first(NOW_MS)
    assert names(tmp_path) == {"a": [2 * SIZE]}
    queue.close()


def test_a_deletion_does_not_wait_for_the_file_that_is_being_made(tmp_path: Path) -> None:
    """Another thread creates the next file, which takes long on a slow disk."""
    begun, may_end = threading.Event(), threading.Event()

    class SlowDisk(Disk):
        def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
            if path.endswith(str(2 * SIZE)):
                begun.set()
                assert may_end.wait(20)
            return super().create(path, size, is_durable=is_durable)

    queue = queue_in(tmp_path, SlowDisk())
    grow(queue, 2)
    thread = threading.Thread(target=queue.prepare_next)
    thread.start()
    assert begun.wait(20)
    deletion = threading.Thread(target=queue.delete_first, args=(NOW_MS,))
    deletion.start()
    deletion.join(20)
    was_waiting = deletion.is_alive()
    may_end.set()
    thread.join()
    deletion.join()
    assert not was_waiting
    assert queue.roll().start == 2 * SIZE
    assert names(tmp_path) == {"a": [SIZE, 2 * SIZE]}
    queue.close()


def test_a_file_that_cannot_be_deleted_stays_in_the_run(tmp_path: Path, disk: Folders) -> None:
    queue = queue_in(tmp_path, disk)
    grow(queue, 2)
    first = queue.files[0]
    Path(first.path).unlink()
    Path(first.path).mkdir()  # cannot be unlinked
    with pytest.raises(WriteFailed, match="cannot delete"):
        queue.delete_first(NOW_MS)
    assert queue.first is first
    assert first.read(0, 1) == b"x"
    queue.close()


def test_deletion_of_held_files_is_retried(tmp_path: Path, disk: Disk) -> None:
    queue = queue_in(tmp_path, disk)
    grow(queue, 3)
    first, second = queue.files[:2]
    first.hold()
    second.hold()
    queue.delete_first(NOW_MS)
    queue.delete_first(NOW_MS + 1000)
    assert names(tmp_path) == {"a": [2 * SIZE]}
    assert not queue.step(NOW_MS + 119_999)
    assert queue.step(NOW_MS + 120_000), "the first was held for too long"
    assert not first.release()
    assert second.release()
    assert queue.step(NOW_MS + 120_000)
    assert not queue.step(NOW_MS + 900_000)
    queue.close()


def test_a_closed_run_still_serves_holders_of_a_file(tmp_path: Path, disk: Disk) -> None:
    queue = queue_in(tmp_path, disk)
    grow(queue, 2)
    file = queue.files[0]
    file.hold()
    queue.close()
    assert queue.files == ()
    assert file.address
    assert file.release()
    assert file.address == 0
