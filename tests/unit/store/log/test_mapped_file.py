"""A mapped file: positions, room, durability, and readers that hold it."""

import ctypes
import errno
import gc
import logging
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import own_thread
from descriptors import open_below
from reput.errors import DiskFull, NotInStore, StoreUnavailable, WriteFailed
from reput.store.files import memory
from reput.store.files.disk import Disk
from reput.store.log import mapped_file
from reput.store.log.mapped_file import MappedFile
from reput.store.log.transient_pool import TransientPool

PAGE = mmap.PAGESIZE
SIZE = 10 * PAGE + 100
MIB = 1024 * 1024
NOW_MS = 1_700_000_000_000
ROOT = Path(__file__).parents[4]


class SmallDisk(Disk):
    """A disk with room up to a position."""

    room_until = SIZE

    def reserve(self, descriptor: int, path: str, start: int, length: int) -> None:
        if start + length > self.room_until:
            raise DiskFull(path, length, "the disk is small")
        super().reserve(descriptor, path, start, length)


class ForgetfulDisk(Disk):
    """A disk that records what a power failure would leave: the bytes of the last sync."""

    def __init__(self) -> None:
        super().__init__()
        self.durable: dict[str, bytes] = {}

    def sync_file(self, descriptor: int, path: str) -> None:
        self.durable[path] = os.pread(descriptor, os.fstat(descriptor).st_size, 0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "00000000000000000000")


@pytest.fixture
def file(path: str) -> Iterator[MappedFile]:
    made = MappedFile.create(path, 0, SIZE, Disk())
    yield made
    made.close()


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_file, "RESERVE_BYTES", 2 * PAGE)


def written(path: str, data: bytes) -> str:
    Path(path).write_bytes(data.ljust(SIZE, b"\0"))
    return path


def maps_of(path: str) -> int:
    """Return how often this process maps a file, deleted or not."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum(f" {path}" in line for line in lines)


# --- bytes ----------------------------------------------------------------


def test_a_created_file_is_zeros_of_full_size(file: MappedFile, path: str) -> None:
    assert Path(path).read_bytes() == bytes(SIZE)
    assert (file.written, file.committed, file.flushed, file.reserved) == (0, 0, 0, 0)


def test_appends_follow_each_other_and_are_in_the_file(file: MappedFile, path: str) -> None:
    assert file.append(b"hello") == 0
    assert file.append(b"world") == 5
    assert file.read(3, 4) == b"lowo"
    assert Path(path).read_bytes()[:11] == b"helloworld\0"


def test_a_kernel_writes_to_the_address_and_sets_written(file: MappedFile, path: str) -> None:
    file.reserve(8)
    ctypes.memmove(file.write_address + file.written, b"kernel", 6)
    file.written += 6
    assert file.read(0, 6) == b"kernel"
    assert file.write_address == file.address != 0


def test_an_append_fits_up_to_the_last_byte(file: MappedFile) -> None:
    file.append(b"x" * (SIZE - 1))
    file.append(b"y")
    assert file.written == file.size == file.reserved
    with pytest.raises(AssertionError):
        file.append(b"z")


@pytest.mark.parametrize(("position", "length"), [(0, 6), (5, 1), (-1, 1), (2, -1)])
def test_only_written_bytes_are_read(file: MappedFile, position: int, length: int) -> None:
    file.append(b"hello")
    with pytest.raises(AssertionError):
        file.read(position, length)


# --- opening --------------------------------------------------------------


def test_an_opened_file_is_full_and_not_mapped_before_it_is_read(path: str) -> None:
    file = MappedFile.open(written(path, b"hello"), 4096, SIZE, Disk())
    assert (file.written, file.flushed, file.end) == (SIZE, SIZE, 4096 + SIZE)
    assert file.address == 0
    assert maps_of(path) == 0
    assert file.read(0, 5) == b"hello"
    assert maps_of(path) == 1
    assert file.write_address == 0, "mapped to be read only"
    file.close()
    assert maps_of(path) == 0


def test_maps_keep_no_descriptor(path: str) -> None:
    file = MappedFile.open(written(path, b"hello"), 0, SIZE, Disk())
    file.read(0, 5)
    assert open_below(Path(path).parent) == []
    file.close()


@pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE + 1])
def test_a_wrong_size_names_file_sizes_and_key(path: str, size: int) -> None:
    Path(path).write_bytes(bytes(size))
    with pytest.raises(StoreUnavailable) as caught:
        MappedFile.open(path, 0, SIZE, Disk(), size_key="mappedFileSizeCommitLog")
    text = str(caught.value)
    assert text.startswith(f"{path} has {size} bytes, but mappedFileSizeCommitLog is {SIZE}")
    assert f"set mappedFileSizeCommitLog={size}" in text


def test_a_missing_file_is_named(path: str) -> None:
    with pytest.raises(StoreUnavailable, match=f"^{path} cannot be opened: No such file"):
        MappedFile.open(path, 0, SIZE, Disk())


def test_a_file_that_vanished_before_it_was_read_is_named(path: str) -> None:
    file = MappedFile.open(written(path, b"hello"), 0, SIZE, Disk())
    Path(path).unlink()
    with pytest.raises(StoreUnavailable, match=f"^{path} cannot be opened: No such file"):
        file.read(0, 5)


def test_a_new_file_that_cannot_be_mapped_is_removed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, size: int, *, is_writable: bool) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(memory, "FileMap", refuse)
    with pytest.raises(StoreUnavailable, match=f"^{path} cannot be mapped: Cannot allocate"):
        MappedFile.create(path, 0, SIZE, Disk())
    assert not Path(path).exists()


def test_a_file_that_shrank_is_an_error_and_no_signal(path: str) -> None:
    file = MappedFile.open(written(path, b"hello"), 0, SIZE, Disk())
    os.truncate(path, PAGE)
    with pytest.raises(StoreUnavailable, match=f"was {SIZE} bytes, now {PAGE}"):
        file.read(0, 5)


# --- room -----------------------------------------------------------------


def test_room_is_reserved_in_steps_and_allocated(path: str) -> None:
    step = mapped_file.RESERVE_BYTES
    assert step == 16 * MIB
    file = MappedFile.create(path, 0, 2 * step + 5, Disk())
    for position, reserved in [
        (0, 0),
        (1, step),
        (step, step),
        (step + 1, 2 * step),
        (2 * step + 1, 2 * step + 5),
    ]:
        file.reserve(position)
        assert file.reserved == reserved
        assert Path(path).stat().st_blocks * 512 >= reserved
        assert Path(path).stat().st_blocks * 512 < reserved + MIB
        assert Path(path).stat().st_size == 2 * step + 5
    file.close()


@pytest.mark.usefixtures("small_steps")
def test_a_full_disk_fails_the_append_until_there_is_room(path: str) -> None:
    disk = SmallDisk()
    disk.room_until = 2 * PAGE
    file = MappedFile.create(path, 0, SIZE, disk)
    file.append(b"a" * 2 * PAGE)
    with pytest.raises(DiskFull, match=f"^{path}: no room for {2 * PAGE} bytes"):
        file.append(b"b")
    assert (file.written, file.reserved) == (2 * PAGE, 2 * PAGE)
    disk.room_until = SIZE
    assert file.append(b"b") == 2 * PAGE
    file.close()


def test_a_really_full_disk_is_an_error_and_no_signal(tmp_path: Path) -> None:
    code = """
import sys
from reput.errors import DiskFull
from reput.store.log import mapped_file
from reput.store.files.disk import Disk
mapped_file.RESERVE_BYTES = 65536
file = mapped_file.MappedFile.create(sys.argv[1] + "/file", 0, 4 << 20, Disk())
try:
    while True:
        file.append(b"x" * 1000)
except DiskFull:
    file.flush()
    print(file.written, file.flushed, file.reserved)
"""
    mount = 'mount -t tmpfs -o size=1m none "$0" && exec "$1" -c "$2" "$0"'
    shell = ["unshare", "-rm", "sh", "-c", mount, str(tmp_path), sys.executable, code]
    try:
        done = subprocess.run(shell, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode > 0 and "DiskFull" not in done.stderr and not done.stdout:
        pytest.skip(f"no tmpfs may be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    in_file, flushed, reserved = map(int, done.stdout.split())
    assert in_file == flushed
    assert MIB - 65536 - 1000 < in_file <= reserved <= MIB


def test_touch_makes_pages_and_changes_no_byte(file: MappedFile) -> None:
    file.append(b"hello")
    file.touch(0, SIZE)
    assert file.read(0, 5) == b"hello"


def test_touch_stays_within_the_room(file: MappedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        memory, "populate", lambda address, length: calls.append((address, length)) or True
    )
    file.touch(0, SIZE)
    assert calls == []
    file.reserve(1)
    file.touch(PAGE, 2 * SIZE)
    assert calls == [(file.address + PAGE, SIZE - PAGE)]


def test_touch_reads_where_the_system_cannot_populate(
    file: MappedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "populate", lambda *_: False)
    file.append(b"hello")
    file.touch(0, SIZE)
    assert file.read(0, 5) == b"hello"


def test_touch_reports_a_lack_of_room(file: MappedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: int, length: int) -> bool:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))

    monkeypatch.setattr(memory, "populate", refuse)
    file.reserve(1)
    with pytest.raises(WriteFailed, match="cannot fault in pages: Bad address"):
        file.touch(0, PAGE)


def test_a_warm_file_has_all_its_room(file: MappedFile) -> None:
    steps = 0
    while file.warm(SIZE // 4):
        steps += 1
    assert steps == 4
    assert file.reserved == SIZE
    file.lock_memory()
    file.unlock_memory()


def test_forbidden_locking_logs_a_warning_with_a_remedy(
    file: MappedFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(address: int, size: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(memory, "lock", refuse)
    with caplog.at_level(logging.WARNING):
        file.lock_memory()
    assert "is not locked in memory: Cannot allocate memory; raise the memlock" in caplog.text


# --- durability -----------------------------------------------------------


def test_flush_makes_written_bytes_durable(path: str) -> None:
    disk = ForgetfulDisk()
    file = MappedFile.create(path, 0, SIZE, disk)
    file.append(b"hello")
    assert disk.durable[path] == bytes(SIZE), "the size is durable from the start"
    assert file.flush() == file.flushed == 5
    assert disk.durable[path][:6] == b"hello\0"
    file.close()


def test_flush_without_new_bytes_does_not_sync(path: str) -> None:
    disk = ForgetfulDisk()
    file = MappedFile.create(path, 0, SIZE, disk)
    disk.durable.clear()
    assert file.flush() == 0
    assert disk.durable == {}
    file.close()


def test_bytes_appended_during_a_sync_are_not_durable(path: str) -> None:
    class Busy(Disk):
        def sync_file(self, descriptor: int, path: str) -> None:
            if appending:
                appending[0].append(b"world")

    appending: list[MappedFile] = []
    file = MappedFile.create(path, 0, SIZE, Busy())
    appending.append(file)
    file.append(b"hello")
    assert file.flush() == 5
    assert file.written == 10
    file.close()


def test_flushing_in_a_thread_never_overstates_durability(path: str) -> None:
    disk = ForgetfulDisk()
    file = MappedFile.create(path, 0, SIZE, disk)
    promised = []

    def flush() -> None:
        while not promised or promised[-1][0] < SIZE:
            flushed = file.flush()
            promised.append((flushed, disk.durable[path][:flushed]))

    thread = threading.Thread(target=flush)
    thread.start()
    data = bytes(i % 251 + 1 for i in range(SIZE))  # never zero
    for position in range(0, SIZE, 23):
        file.append(data[position : position + 23])
    thread.join()
    assert all(durable == data[:flushed] for flushed, durable in promised)
    file.close()


def test_a_failed_sync_is_never_forgotten(path: str) -> None:
    class Broken(Disk):
        is_broken = False

        def sync_file(self, descriptor: int, path: str) -> None:
            if self.is_broken:
                raise WriteFailed(path, "cannot sync: Input/output error")

    disk = Broken()
    file = MappedFile.create(path, 0, SIZE, disk)
    file.append(b"hello")
    disk.is_broken = True
    with pytest.raises(WriteFailed, match="Input/output error"):
        file.flush()
    disk.is_broken = False  # the system has dropped the pages, and reports no error any more
    with pytest.raises(WriteFailed, match="Input/output error"):
        file.flush()
    assert file.flushed == 0
    file.close()


def test_a_full_durable_file_keeps_no_descriptor(path: str) -> None:
    file = MappedFile.create(path, 0, SIZE, Disk())
    file.append(b"x" * SIZE)
    assert file.flush() == SIZE
    assert open_below(Path(path).parent) == []
    assert file.read(SIZE - 1, 1) == b"x"
    file.close()


def test_a_file_closed_and_moved_during_a_sync_is_no_foreign_change(path: str) -> None:
    """The files of a batch queue are closed and moved when its topic is deleted."""

    class Leaving(Disk):
        def sync_file(self, descriptor: int, path: str) -> None:
            if leaving:
                leaving.pop().close()
                Path(path).rename(f"{path}.away")

    leaving: list[MappedFile] = []
    file = MappedFile.create(path, 0, SIZE, Leaving())
    file.append(b"hello")
    leaving.append(file)
    assert file.flush(fails_if_changed=True) == 5
    assert not leaving


# --- cutting --------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1, PAGE - 1, PAGE, PAGE + 1, SIZE - 1, SIZE])
def test_truncated_bytes_are_durable_zeros_before_any_append(path: str, position: int) -> None:
    disk = ForgetfulDisk()
    stale = b"stale" * (SIZE // 5)
    file = MappedFile.open(written(path, stale), 0, SIZE, disk)
    file.cut(position)
    assert disk.durable[path] == stale[:position].ljust(SIZE, b"\0")
    assert (file.written, file.flushed, file.reserved) == (position, position, position)
    if position < SIZE:
        file.append(b"x")
        assert file.read(0, position + 1) == stale[:position] + b"x"
    file.close()


def test_zeros_that_an_earlier_run_wrote_are_synced_too(path: str) -> None:
    disk = ForgetfulDisk()
    file = MappedFile.open(written(path, b"hello"), 0, SIZE, disk)
    file.cut(5)
    assert path in disk.durable
    file.close()


def test_cutting_holes_takes_no_room_and_zeros_are_not_written_again(path: str) -> None:
    with Path(path).open("wb") as sparse:
        sparse.write(b"hello".ljust(2 * PAGE, b"\0"))
        sparse.truncate(64 * MIB)

    class Watching(Disk):
        def write(self, *_: object) -> None:
            raise AssertionError("these were zeros")

    file = MappedFile.open(path, 0, 64 * MIB, Watching())
    file.cut(5)
    assert Path(path).stat().st_blocks * 512 < MIB
    file.close()


def test_all_bytes_are_scanned_where_holes_are_unsupported(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    file = MappedFile.open(written(path, b"hello" * (SIZE // 5)), 0, SIZE, Disk())
    own_thread.replace(monkeypatch, os, "lseek", refuse)
    file.cut(5)
    assert Path(path).read_bytes() == b"hello".ljust(SIZE, b"\0")
    file.close()


def test_a_file_that_was_read_can_be_truncated_and_appended_to(path: str) -> None:
    file = MappedFile.open(written(path, b"hello, stale"), 0, SIZE, Disk())
    assert file.read(0, 7) == b"hello, "
    file.cut(7)
    file.append(b"world")
    assert file.flush() == 12
    assert maps_of(path) == 1
    assert Path(path).read_bytes()[:13] == b"hello, world\0"
    file.close()


def test_a_file_held_by_a_reader_is_not_truncated(path: str) -> None:
    file = MappedFile.open(written(path, b"hello"), 0, SIZE, Disk())
    file.hold()
    with pytest.raises(AssertionError, match="held by 1"):
        file.cut(3)
    file.release()
    file.close()


# --- with a pool ----------------------------------------------------------


def test_with_a_buffer_only_committed_bytes_are_in_the_file(path: str) -> None:
    pool = TransientPool(1, SIZE, is_locked=False)
    file = MappedFile.create(path, 0, SIZE, Disk(), buffer=pool.borrow())
    file.append(b"hello")
    assert (file.written, file.committed, file.flush()) == (5, 0, 0)
    assert Path(path).read_bytes() == bytes(SIZE)
    assert file.commit() == 5
    assert file.read(0, 5) == b"hello"
    file.append(b"world")
    assert file.flush() == 5, "flush makes committed bytes durable"
    assert file.commit() == 10
    assert file.flush() == 10
    assert Path(path).read_bytes()[:11] == b"helloworld\0"
    file.close()


def test_the_buffer_returns_zeroed_after_the_last_byte(path: str) -> None:
    pool = TransientPool(1, SIZE, is_locked=False)
    file = MappedFile.create(path, 0, SIZE, Disk(), buffer=pool.borrow())
    file.append(b"x" * SIZE)
    assert pool.available == 0
    assert file.commit() == SIZE
    assert pool.available == 1
    assert file.write_address == file.address
    assert (file.commit(), file.flush()) == (SIZE, SIZE)
    buffer = pool.borrow()
    assert buffer is not None
    assert bytes(buffer.view) == bytes(SIZE)
    file.close()


def test_uncommitted_bytes_are_lost_and_the_buffer_is_zeroed(path: str) -> None:
    pool = TransientPool(1, SIZE, is_locked=False)
    file = MappedFile.create(path, 0, SIZE, Disk(), buffer=pool.borrow())
    file.append(b"hello")
    file.commit()
    file.append(b"lost")
    file.close()
    assert Path(path).read_bytes()[:10] == b"hello\0\0\0\0\0"
    assert file.written == 5
    buffer = pool.borrow()
    assert buffer is not None
    assert bytes(buffer.view) == bytes(SIZE)


def test_a_failed_commit_is_repeated(path: str) -> None:
    class Full(Disk):
        is_full = True

        def write(self, descriptor: int, path: str, position: int, data: bytes | memoryview):
            if self.is_full:
                raise DiskFull(path, len(data), "full")
            super().write(descriptor, path, position, data)

    disk = Full()
    pool = TransientPool(1, SIZE, is_locked=False)
    file = MappedFile.create(path, 0, SIZE, disk, buffer=pool.borrow())
    file.append(b"hello")
    with pytest.raises(DiskFull):
        file.commit()
    assert file.committed == 0
    disk.is_full = False
    assert file.commit() == 5
    assert file.read(0, 5) == b"hello"
    file.close()


# --- holders and deletion --------------------------------------------------


def test_a_held_file_is_deleted_but_not_unmapped(file: MappedFile, path: str) -> None:
    file.append(b"hello")
    assert file.hold()
    assert not file.destroy(NOW_MS)
    assert not Path(path).exists()
    assert not file.hold(), "no new holder"
    assert not file.destroy(NOW_MS + 119_999)
    assert ctypes.string_at(file.address, 5) == b"hello"
    assert file.release()
    assert file.address == 0
    assert maps_of(path) == 0
    assert file.destroy(NOW_MS + 119_999)


def test_a_forced_destroy_keeps_addresses_valid_and_marks_the_file(
    file: MappedFile, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    file.append(b"hello")
    address = file.address
    file.hold()
    file.hold()
    file.destroy(NOW_MS)
    with caplog.at_level(logging.WARNING):
        assert file.destroy(NOW_MS + 120_000)
        assert file.destroy(NOW_MS + 240_000)
    assert [record.message for record in caplog.records] == [
        f"{path} was deleted, but is still held by 2 readers; its space is freed now, and the "
        "bytes that they read from it are ignored"
    ]
    assert maps_of(path) == 0, "the disk has its room back"
    assert ctypes.string_at(address, SIZE) == bytes(SIZE)
    assert not file.release()
    assert ctypes.string_at(address, SIZE) == bytes(SIZE)
    assert not file.release()
    assert file.address == 0


def test_a_destroy_without_a_timeout(file: MappedFile) -> None:
    file.hold()
    assert file.destroy(NOW_MS, forced_after_ms=0)
    assert not file.release()


def test_a_file_without_holders_is_destroyed_at_once(file: MappedFile, path: str) -> None:
    assert file.destroy(NOW_MS)
    assert maps_of(path) == 0
    assert file.destroy(NOW_MS)


def test_a_file_that_cannot_be_deleted_stays_as_it_is(path: str) -> None:
    class Stubborn(Disk):
        def unlink(self, path: str) -> None:
            raise WriteFailed(path, "cannot delete: Read-only file system")

    file = MappedFile.open(written(path, b"hello"), 0, SIZE, Stubborn())
    with pytest.raises(WriteFailed):
        file.destroy(NOW_MS)
    assert file.read(0, 5) == b"hello"
    file.close()


def test_a_closed_file_is_not_read(file: MappedFile) -> None:
    file.append(b"hello")
    file.close()
    file.close()
    assert not file.hold()
    with pytest.raises(NotInStore, match="was deleted or closed"):
        file.read(0, 5)


def test_a_running_flush_keeps_the_file_open(path: str) -> None:
    class Closing(Disk):
        def sync_file(self, descriptor: int, path: str) -> None:
            if closing:
                closing[0].close()
                super().sync_file(descriptor, path)

    closing: list[MappedFile] = []
    file = MappedFile.create(path, 0, SIZE, Closing())
    file.append(b"hello")
    closing.append(file)
    assert file.flush() == 5
    assert maps_of(path) == 0
    assert file.flush() == 5


def test_an_abandoned_file_is_unmapped(path: str) -> None:
    file = MappedFile.create(path, 0, SIZE, Disk())
    assert maps_of(path) == 1
    del file
    gc.collect()
    assert maps_of(path) == 0


# --- all of it against a bytearray ----------------------------------------


class FileModel(RuleBasedStateMachine):
    """Calls in any order, with a buffer or without, compared with plain bytes and three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = f"{self.folder.name}/00000000000000000000"
        self.disk = ForgetfulDisk()
        self.pool = TransientPool(1, SIZE, is_locked=False)
        self.file = MappedFile.create(self.path, 0, SIZE, self.disk)
        self.steps = pytest.MonkeyPatch()
        self.steps.setattr(mapped_file, "RESERVE_BYTES", PAGE)
        self.expected = bytearray()
        self.committed = self.flushed = 0

    def teardown(self) -> None:
        self.file.close()
        self.steps.undo()
        self.folder.cleanup()

    @precondition(lambda self: not self.expected)
    @rule()
    def use_a_buffer(self) -> None:
        self.file.destroy(NOW_MS)
        self.file = MappedFile.create(self.path, 0, SIZE, self.disk, buffer=self.pool.borrow())

    @rule(data=st.binary(max_size=2 * PAGE) | st.binary(min_size=1, max_size=9))
    def append(self, data: bytes) -> None:
        data = data[: SIZE - len(self.expected)]
        assert self.file.append(data) == len(self.expected)
        self.expected += data

    @precondition(lambda self: len(self.expected) > SIZE // 2)
    @rule()
    def fill(self) -> None:
        self.append(b"." * SIZE)

    @rule()
    def commit(self) -> None:
        assert self.file.commit() == len(self.expected)

    @rule()
    def flush(self) -> None:
        self.flushed = self.file.committed
        assert self.file.flush() == self.flushed

    @rule(position=st.integers(0, SIZE))
    def reserve(self, position: int) -> None:
        self.file.reserve(position)
        assert self.file.reserved >= position

    @rule(start=st.integers(0, SIZE), stop=st.integers(0, SIZE))
    def touch(self, start: int, stop: int) -> None:
        self.file.touch(start, stop)

    @rule(share=st.floats(0, 1))
    def reopen_and_cut(self, share: float) -> None:
        kept = int(share * self.file.committed)
        self.file.close()
        self.file = MappedFile.open(self.path, 0, SIZE, self.disk)
        self.file.cut(kept)
        del self.expected[kept:]
        self.flushed = kept

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.file.committed))
        stop = data.draw(st.integers(start, self.file.committed))
        assert self.file.read(start, stop - start) == self.expected[start:stop]

    @invariant()
    def positions_are_in_order(self) -> None:
        file = self.file
        assert file.written == len(self.expected)
        assert file.flushed == self.flushed
        assert 0 <= file.flushed <= file.committed <= file.written <= file.reserved <= SIZE

    @invariant()
    def the_file_holds_committed_bytes_and_then_zeros(self) -> None:
        committed = self.expected[: self.file.committed]
        assert Path(self.path).read_bytes() == committed.ljust(SIZE, b"\0")

    @invariant()
    def flushed_bytes_survive(self) -> None:
        assert self.disk.durable[self.path][: self.flushed] == self.expected[: self.flushed]


def test_a_file_agrees_with_the_model() -> None:
    run_state_machine_as_test(FileModel)
