"""Folders: local and remote ones give the same answers, and errors name the remedy."""

import fcntl
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

from descriptors import OF_THIS_PROCESS, open_below
from reput.errors import NotInStore, StoreUnavailable
from reput.store.files import files
from reput.store.files.files import Entry, Folder, LocalFolder, RemoteFolder, open_folder

LARGE = bytes(range(256)) * 1024
"""Larger than the size from which a read returns a map."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "large").write_bytes(LARGE)
    (tmp_path / "commitlog" / "empty").write_bytes(b"")
    (tmp_path / "commitlog" / "folder").mkdir()
    (tmp_path / "abort").write_bytes(b"4711")
    os.utime(tmp_path / "abort", ns=(0, 1_700_000_000_123_456_789))
    return tmp_path


class _LocalAsRemote:
    """``pyarrow.fs.FileSystem`` for URIs ``s3://bucket/PATH`` that reads PATH of this machine."""

    @staticmethod
    def from_uri(uri: str) -> tuple[Any, str]:
        scheme, _, path = uri.partition("://bucket")
        if scheme != "s3":
            return pyarrow.fs.LocalFileSystem(), uri  # nothing exists there
        return pyarrow.fs.LocalFileSystem(), path


@pytest.fixture(params=["local", "remote"])
def folder(request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    if request.param == "local":
        return open_folder(str(root))
    monkeypatch.setattr(pyarrow.fs, "FileSystem", _LocalAsRemote)
    return open_folder(f"s3://bucket{root}")


# --- local and remote-------------------------------------------------------


def test_entries_are_sorted_and_distinguish_folders_from_files(folder: Folder) -> None:
    entries = folder.entries("commitlog")
    assert [(entry.name, entry.size, entry.is_folder) for entry in entries] == [
        ("empty", 0, False),
        ("folder", 0, True),
        ("large", len(LARGE), False),
    ]


def test_an_entry_has_its_time_in_ms(folder: Folder) -> None:
    assert folder.entry("abort") == Entry("abort", 4, 1_700_000_000_123, False)
    entry = folder.entry("commitlog")
    assert entry is not None
    assert entry.is_folder
    assert entry.name == "commitlog"


@pytest.mark.parametrize(
    "path",
    [
        "nothing",
        "nothing/below",
        "abort/below",
        "commitlog/large/below",
        "n" * 300,  # longer than a name may be
        "nul\0",
        "lone\ud800surrogate",
    ],
)
def test_a_missing_entry_is_no_error(folder: Folder, path: str) -> None:
    assert folder.entry(path) is None
    assert folder.entries(path) == []


def test_a_file_has_no_entries(folder: Folder) -> None:
    assert folder.entries("abort") == []


@pytest.mark.parametrize(
    ("start", "length"),
    [
        (0, None),
        (5, None),
        (0, 0),
        (0, 10),
        (4095, 2),
        (4097, 100_000),
        (1, len(LARGE)),
        (len(LARGE) - 1, 1),
        (len(LARGE) - 1, 10),
        (len(LARGE), 10),
        (len(LARGE), None),
        (len(LARGE) + 99, 10),
        (len(LARGE) + 99, None),
    ],
)
def test_reading_returns_the_existing_bytes(folder: Folder, start: int, length: int | None) -> None:
    stop = None if length is None else start + length
    assert bytes(folder.read("commitlog/large", start, length)) == LARGE[start:stop]


def test_an_empty_file_has_no_bytes(folder: Folder) -> None:
    assert bytes(folder.read("commitlog/empty")) == b""
    assert bytes(folder.read("commitlog/empty", 0, 100_000)) == b""


def test_a_missing_file_is_named(folder: Folder) -> None:
    with pytest.raises(NotInStore, match="commitlog/gone was deleted"):
        folder.read("commitlog/gone")
    with pytest.raises(NotInStore, match="commitlog/gone was deleted"):
        folder.read("commitlog/gone", 0, 10)


def test_a_folder_cannot_be_read(folder: Folder) -> None:
    with pytest.raises(StoreUnavailable, match="commitlog"):
        folder.read("commitlog")
    with pytest.raises(StoreUnavailable, match="commitlog"):
        folder.read("commitlog", 0, 10)


@pytest.mark.parametrize("folder", ["local"], indirect=True)  # remote: as it was opened
def test_readers_see_the_growth_of_a_file(folder: Folder, root: Path) -> None:
    assert bytes(folder.read("abort", 0, 100)) == b"4711"
    with (root / "abort").open("ab") as file:
        file.write(b"more")
    assert bytes(folder.read("abort", 0, 100)) == b"4711more"


def test_a_replaced_file_is_read_again(folder: Folder, root: Path) -> None:
    """A broker replaces its tables in this way."""
    assert bytes(folder.read("abort")) == b"4711"
    (root / "abort.tmp").write_bytes(b"new")
    (root / "abort.tmp").rename(root / "abort")
    assert bytes(folder.read("abort")) == b"new"


# --- local ----------------------------------------------------------------


def test_large_parts_are_views_and_small_ones_copies(root: Path) -> None:
    folder = open_folder(str(root))
    assert isinstance(folder.read("commitlog/large"), memoryview)
    assert isinstance(folder.read("commitlog/large", 0, 100), bytes)


def test_a_view_outlives_its_folder_and_file(root: Path) -> None:
    view = open_folder(str(root)).read("commitlog/large")
    (root / "commitlog" / "large").unlink()
    assert bytes(view) == LARGE


@pytest.mark.skipif(not OF_THIS_PROCESS.exists(), reason="counts descriptors in /proc")
def test_descriptors_are_bounded_and_closed_with_the_folder(tmp_path: Path) -> None:
    for i in range(200):
        (tmp_path / str(i)).write_bytes(b"%d" % i)
    folder = open_folder(str(tmp_path))
    for _ in range(2):
        for i in range(200):
            assert folder.read(str(i), 0, 10) == b"%d" % i
    assert 0 < len(open_below(tmp_path)) <= 64
    del folder
    assert open_below(tmp_path) == []


def test_threads_share_a_folder(tmp_path: Path) -> None:
    """More files than the limit of open ones, so that threads close each other's descriptors."""
    for i in range(100):
        (tmp_path / str(i)).write_bytes(b"%d" % i * 50)
    folder = open_folder(str(tmp_path))
    wrong: list[Any] = []

    def read(first: int) -> None:
        for i in range(2000):
            number = (first + i * 7) % 100
            try:
                data = folder.read(str(number), 0, 1000)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test says it
                wrong.append(error)
                return
            if data != b"%d" % number * 50:
                wrong.append((number, data))

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.fixture
def locked(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock as a broker does: exclusively, on the first byte."""
    (root / "lock").write_bytes(b"lock")
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(root / "lock")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.stdin.close() if process.stdin else None


def test_the_process_that_holds_the_lock(root: Path, locked: subprocess.Popen[bytes]) -> None:
    assert open_folder(str(root)).lock_holder("lock") == locked.pid


def test_an_existing_lock_file_is_not_held(root: Path) -> None:
    (root / "lock").write_bytes(b"lock")
    folder = open_folder(str(root))
    assert folder.lock_holder("lock") is None
    assert folder.lock_holder("commitlog") is None
    assert folder.lock_holder("nothing") is None


def test_a_lock_on_other_bytes_is_not_that_of_a_broker(root: Path) -> None:
    with (root / "abort").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 3)
        code = (
            "import sys\n"
            "from reput.store.files.files import open_folder\n"
            "print(open_folder(sys.argv[1]).lock_holder('abort'))\n"
        )
        command = [sys.executable, "-c", code, str(root)]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert done.stdout == "None\n"


def test_checking_a_lock_does_not_take_it(root: Path) -> None:
    (root / "lock").write_bytes(b"lock")
    folder = open_folder(str(root))
    folder.lock_holder("lock")
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    subprocess.run([sys.executable, "-c", code, str(root / "lock")], check=True)


OUTSIDE = ["../secret", "a/../../secret", "/etc/passwd", "..", "a\0b"]
"""Paths that a manifest or a table may contain, and that lead out of the folder."""


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("kind", ["path", "uri"])
def test_paths_stay_below_the_folder(tmp_path: Path, path: str, kind: str) -> None:
    """Manifests of archives name files: the author of one could have read any."""
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    folder = LocalFolder(str(root), root) if kind == "path" else RemoteFolder(f"file://{root}")
    for start, length in ((0, None), (0, 10), (0, 1 << 20)):
        with pytest.raises(StoreUnavailable, match="is not in the folder; allowed"):
            folder.read(path, start, length)
    assert folder.entry(path) is None
    assert folder.entries(path) == []


def test_names_with_dots_are_no_way_out(root: Path) -> None:
    (root / "a..b").write_bytes(b"data")
    assert open_folder(str(root)).read("a..b") == b"data"


# --- where it is ----------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "file://", "file:", "file://localhost"])
def test_a_local_folder_by_path_or_uri(tmp_path: Path, prefix: str) -> None:
    folder = open_folder(f"{prefix}{tmp_path}")
    assert isinstance(folder, LocalFolder)
    assert folder.location == f"{prefix}{tmp_path}"
    assert folder.entries("") == []


def test_a_file_uri_is_quoted_and_a_path_is_not(tmp_path: Path) -> None:
    spaced, literal = tmp_path / "a b", tmp_path / "a%20b"
    spaced.mkdir()
    literal.mkdir()
    (spaced / "spaced").touch()
    (literal / "literal").touch()
    assert [entry.name for entry in open_folder(f"file://{tmp_path}/a%20b").entries("")] == [
        "spaced"
    ]
    assert [entry.name for entry in open_folder(f"{tmp_path}/a%20b").entries("")] == ["literal"]


def test_a_file_of_another_host_is_refused() -> None:
    with pytest.raises(StoreUnavailable, match="host elsewhere"):
        open_folder("file://elsewhere/store")


def test_a_path_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="does not exist"):
        open_folder(str(tmp_path / "nothing"))
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="is a file"):
        open_folder(str(tmp_path / "file"))


# --- remote ---------------------------------------------------------------


def test_a_missing_remote_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyarrow.fs, "FileSystem", _LocalAsRemote)
    with pytest.raises(StoreUnavailable, match="does not exist"):
        open_folder(f"s3://bucket{tmp_path}/nothing")


@pytest.mark.parametrize("location", ["nosuchscheme://bucket/store", "s3://%%%/"])
def test_a_uri_that_cannot_be_reached(location: str) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        open_folder(location)


def test_a_remote_folder_without_pyarrow_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StoreUnavailable, match=r"pip install '\.\[spark\]'"):
        open_folder("s3://bucket/store")


def test_a_remote_lock_is_never_held(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyarrow.fs, "FileSystem", _LocalAsRemote)
    assert RemoteFolder(f"s3://bucket{root}").lock_holder("abort") is None


def test_a_subtree_of_a_remote_file_system(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class SubTree:
        @staticmethod
        def from_uri(uri: str) -> tuple[Any, str]:
            return pyarrow.fs.SubTreeFileSystem(str(root), pyarrow.fs.LocalFileSystem()), ""

    monkeypatch.setattr(pyarrow.fs, "FileSystem", SubTree)
    folder = open_folder("gs://bucket")
    assert bytes(folder.read("abort")) == b"4711"
    assert [entry.name for entry in folder.entries("commitlog")] == ["empty", "folder", "large"]


@pytest.mark.parametrize("start", [0, 5, (256 << 10) - 3, 256 << 10, (512 << 10) - 1, 700_000])
@pytest.mark.parametrize("length", [0, 4, 256 << 10, (256 << 10) + 1, 1 << 20])
def test_small_reads_are_cut_out_of_blocks(
    start: int, length: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random.Random(1).randbytes(700_000)
    (root / "data").write_bytes(data)
    monkeypatch.setattr(pyarrow.fs, "FileSystem", _LocalAsRemote)
    folder = open_folder(f"s3://bucket{root}")
    for _ in range(2):
        assert bytes(folder.read("data", start, length)) == data[start : start + length]


def test_names_are_listed_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyarrow.fs, "FileSystem", _LocalAsRemote)
    folder = open_folder(f"s3://bucket{root}")
    assert folder.entry("commitlog/later") is None
    (root / "commitlog" / "later").touch()
    assert folder.entry("commitlog/later") is None
    names = [entry.name for entry in open_folder(f"s3://bucket{root}").entries("commitlog")]
    assert names == ["empty", "folder", "large", "later"]


@pytest.mark.parametrize("uri", ["s3://key:hush@bucket/store", "abfs://name:hush@host/store"])
def test_a_password_in_a_uri_is_refused_and_not_shown(uri: str) -> None:
    with pytest.raises(StoreUnavailable, match="AWS_SECRET_ACCESS_KEY") as caught:
        open_folder(uri)
    assert "hush" not in str(caught.value)


def test_windows_are_large_where_a_read_is_slow() -> None:
    assert files.RemoteFolder.window_bytes >= 1 << 20
