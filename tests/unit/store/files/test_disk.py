"""The disk operations: room, durability, and errors without room."""

import errno
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import own_thread
from descriptors import open_below
from reput.errors import DiskFull, StoreUnavailable, WriteFailed
from reput.store.files import disk
from reput.store.files.disk import Disk

MIB = 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "file")


@pytest.fixture
def descriptor(path: str) -> Iterator[int]:
    descriptor = Disk().create(path, 4 * MIB)
    yield descriptor
    os.close(descriptor)


def allocated_bytes(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


def failing(code: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


# --- files ----------------------------------------------------------------


def test_a_created_file_has_its_size_and_uses_no_room(descriptor: int) -> None:
    assert os.fstat(descriptor).st_size == 4 * MIB
    assert allocated_bytes(descriptor) == 0


@pytest.mark.parametrize("is_durable", [True, False])
def test_create_syncs_size_and_name(path: str, is_durable: bool) -> None:
    synced = []

    class Watching(Disk):
        def sync_file(self, descriptor: int, path: str) -> None:
            synced.append((path, os.fstat(descriptor).st_size))

        def sync_folder(self, path: str) -> None:
            synced.append((path, [entry.name for entry in Path(path).iterdir()]))

    os.close(Watching().create(path, 4096, is_durable=is_durable))
    folder = str(Path(path).parent)
    assert synced == ([(path, 4096), (folder, ["file"])] if is_durable else [])


def test_create_never_overwrites(path: str) -> None:
    Path(path).write_bytes(b"here")
    with pytest.raises(WriteFailed, match=r"file: cannot create: File exists"):
        Disk().create(path, 4096)
    assert Path(path).read_bytes() == b"here"


def test_a_file_that_cannot_be_synced_is_removed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_thread.replace(monkeypatch, os, "fdatasync", failing(errno.EIO))
    with pytest.raises(WriteFailed, match="cannot sync: Input/output error"):
        Disk().create(path, 4096)
    assert not Path(path).exists()


def test_folders_are_created_with_their_parents_and_synced(tmp_path: Path) -> None:
    synced = []

    class Watching(Disk):
        def sync_folder(self, path: str) -> None:
            synced.append(path)

    disk = Watching()
    disk.make_folder(str(tmp_path / "a" / "b"))
    disk.make_folder(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [str(tmp_path), str(tmp_path / "a")]


def test_a_folder_that_cannot_be_created_is_named(path: str) -> None:
    Path(path).touch()
    with pytest.raises(WriteFailed, match=f"^{path}/a: cannot create the folder: Not a directory"):
        Disk().make_folder(f"{path}/a")


def test_rename_replaces(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"new")
    (tmp_path / "b").write_bytes(b"old")
    Disk().rename(str(tmp_path / "a"), str(tmp_path / "b"))
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("b", b"new")]


def test_unlink_of_a_missing_file_is_no_error(path: str, descriptor: int) -> None:
    Disk().unlink(path)
    Disk().unlink(path)
    assert not Path(path).exists()


def test_a_missing_file_is_named(path: str, tmp_path: Path) -> None:
    for action in (
        lambda: Disk().open(path),
        lambda: Disk().rename(path, f"{path}2"),
        lambda: Disk().sync_folder(path),
        lambda: Disk().sync_filesystem(path),
    ):
        with pytest.raises(WriteFailed, match=f"^{path}: cannot .*No such file or directory"):
            action()


# --- room -----------------------------------------------------------------


def test_reserved_room_is_allocated(path: str, descriptor: int) -> None:
    Disk().reserve(descriptor, path, MIB, 2 * MIB)
    assert allocated_bytes(descriptor) >= 2 * MIB
    assert os.fstat(descriptor).st_size == 4 * MIB
    assert os.pread(descriptor, 4 * MIB, 0) == bytes(4 * MIB)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_zeros_are_written_where_reservation_is_unsupported(
    path: str, descriptor: int, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    own_thread.replace(monkeypatch, os, "posix_fallocate", failing(code))
    os.pwrite(descriptor, b"before", 0)
    Disk().reserve(descriptor, path, MIB + 1, 2 * MIB)
    Disk().sync_file(descriptor, path)
    assert allocated_bytes(descriptor) >= 2 * MIB
    assert os.fstat(descriptor).st_size == 4 * MIB
    assert os.pread(descriptor, 6, 0) == b"before"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_lack_of_room_names_file_and_size(
    path: str, descriptor: int, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    own_thread.replace(monkeypatch, os, "posix_fallocate", failing(code))
    with pytest.raises(DiskFull) as caught:
        Disk().reserve(descriptor, path, 0, 12345)
    assert caught.value.path == path
    assert caught.value.asked_bytes == 12345
    assert str(caught.value).startswith(f"{path}: no room for 12345 bytes: cannot reserve space: ")


def test_write_continues_until_all_is_written(
    path: str, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    own_thread.replace(
        monkeypatch, os, "pwrite", lambda fd, data, position: pwrite(fd, data[:3], position)
    )
    Disk().write(descriptor, path, 5, b"0123456789")
    assert os.pread(descriptor, 17, 0) == b"\0\0\0\0\x000123456789\0\0"


def test_a_file_size_limit_counts_as_a_lack_of_room(tmp_path: Path) -> None:
    code = """
import os, resource, sys
from reput.errors import DiskFull
from reput.store.files.disk import Disk
disk, folder = Disk(), sys.argv[1]
before = disk.create(f"{folder}/before", 1 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
for action in (
    lambda: disk.create(f"{folder}/after", 1 << 20),
    lambda: disk.write(before, f"{folder}/before", 0, bytes(5000)),
    lambda: disk.write(before, f"{folder}/before", 4096, b"x"),
):
    try:
        action()
    except DiskFull as error:
        print(os.path.basename(error.path), error.asked_bytes)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [f"after {1 << 20}", "before 904", "before 1"]
    assert not (tmp_path / "after").exists()


# --- durability -----------------------------------------------------------


def test_a_failed_sync_is_reported(
    path: str, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_thread.replace(monkeypatch, os, "fdatasync", failing(errno.EIO))
    with pytest.raises(WriteFailed, match="cannot sync: Input/output error") as caught:
        Disk().sync_file(descriptor, path)
    assert not isinstance(caught.value, DiskFull)


def test_fsync_is_used_without_fdatasync(
    path: str, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.delattr(os, "fdatasync")
    own_thread.replace(monkeypatch, os, "fsync", synced.append)
    Disk().sync_file(descriptor, path)
    assert synced == [descriptor]


class _Library:
    """A C library that records the folders whose file systems are synced."""

    def __init__(self) -> None:
        self.synced: list[Path] = []

    def syncfs(self, descriptor: int) -> int:
        self.synced.append(path_of(descriptor))
        return 0


def path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux names descriptors")
def test_folders_and_whole_file_systems_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = _Library()
    names: list[Path] = []
    monkeypatch.setattr(disk, "_libc", library)
    monkeypatch.setattr(disk, "sync_names", lambda descriptor: names.append(path_of(descriptor)))
    Disk().sync_folder(str(tmp_path))
    assert (names, library.synced) == ([tmp_path], [])
    Disk().sync_filesystem(str(tmp_path))
    assert (names, library.synced) == ([tmp_path], [tmp_path])


def test_a_file_of_the_working_folder_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that was started with ``-c broker.conf`` writes its role into that file."""
    monkeypatch.chdir(tmp_path)
    for content in (b"old", b"new"):
        Disk().replace("broker.conf", content)
        assert (tmp_path / "broker.conf").read_bytes() == content


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_replaced_file_keeps_its_permissions(path: str, mode: int) -> None:
    """A broker.conf may have passwords, and a promotion changes its role."""
    Path(path).touch(mode)
    Path(path).chmod(mode)
    Disk().replace(path, b"new")
    assert stat.S_IMODE(Path(path).stat().st_mode) == mode


def test_syncs_keep_no_descriptor(tmp_path: Path) -> None:
    Disk().sync_folder(str(tmp_path))
    Disk().sync_filesystem(str(tmp_path))
    assert open_below(tmp_path) == []


# --- usage ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "free", "available", "usage"),
    [
        (1000, 1000, 1000, 0.0),
        (1000, 250, 250, 0.75),
        (1000, 249, 249, 0.76),  # Java rounds up to a whole percent
        (1000, 250, 200, 0.79),  # 750 of 950: blocks reserved for root are not free
        (1000, 0, 0, 1.0),
        (0, 0, 0, 0.0),  # a file system without a size
    ],
)
def test_usage_is_equal_to_that_of_java(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    blocks: int,
    free: int,
    available: int,
    usage: float,
) -> None:
    state = os.statvfs_result((4096, 4096, blocks, free, available, 0, 0, 0, 0, 255))
    own_thread.replace(monkeypatch, os, "statvfs", lambda _: state)
    assert Disk().usage(str(tmp_path)) == usage


def test_usage_of_this_disk_is_a_share(tmp_path: Path) -> None:
    assert 0 <= Disk().usage(str(tmp_path)) <= 1


@pytest.fixture
def folder_of_another_user() -> Iterator[Path]:
    """Return a folder that this user may read only; root becomes another user for the test."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(user)


def test_a_folder_without_permission_to_create_files_is_named(
    folder_of_another_user: Path,
) -> None:
    path = str(folder_of_another_user)
    with pytest.raises(WriteFailed, match=f"^{path}: cannot create files: Permission denied") as it:
        Disk().check_writable(path)
    assert f"the folder belongs to {folder_of_another_user.stat().st_uid}" in str(it.value)


def test_an_own_folder_is_writable(tmp_path: Path) -> None:
    Disk().check_writable(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_usage_of_a_missing_folder_names_it(path: str) -> None:
    with pytest.raises(StoreUnavailable, match=f"^{path}: .*No such file"):
        Disk().usage(path)


class _OldLibrary:
    """A C library without ``statx``, like that of macOS."""


@pytest.mark.parametrize("has_statx", [True, False])
def test_links_and_size_are_those_of_stat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_statx: bool
) -> None:
    if not has_statx:
        monkeypatch.setattr(disk, "_libc", _OldLibrary())
    path = tmp_path / "file"
    path.write_bytes(bytes(5_000))
    descriptor = os.open(path, os.O_RDWR)
    try:
        assert Disk().links_and_size(descriptor) == (1, 5_000)
        (tmp_path / "second").hardlink_to(path)
        os.truncate(descriptor, 6 << 30)
        assert Disk().links_and_size(descriptor) == (2, 6 << 30)
        path.unlink()
        (tmp_path / "second").unlink()
        assert Disk().links_and_size(descriptor) == (0, 6 << 30)
    finally:
        os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Disk().links_and_size(descriptor)
