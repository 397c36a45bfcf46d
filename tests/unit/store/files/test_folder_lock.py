"""The lock excludes all other stores: in this process, in others, and Java's."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from reput.errors import StoreUnavailable
from reput.store.files.folder_lock import FolderLock

# Java's FileChannel.tryLock takes a lock of the process on byte 0.
AS_JAVA = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
except OSError:
    sys.exit(7)
"""


def java_gets_it(root: Path) -> bool:
    command = [sys.executable, "-c", AS_JAVA, str(root / "lock")]
    status = subprocess.run(command, check=False).returncode
    assert status in (0, 7)
    return status == 0


def test_the_file_is_equal_to_that_of_java(tmp_path: Path) -> None:
    FolderLock(str(tmp_path)).release()
    assert (tmp_path / "lock").read_bytes() == b"lock"


def test_a_second_store_is_refused_with_the_reason(tmp_path: Path) -> None:
    lock = FolderLock(str(tmp_path))
    with pytest.raises(StoreUnavailable, match=r"in use.*lock; stop it first"):
        FolderLock(str(tmp_path))
    assert not java_gets_it(tmp_path)
    lock.release()
    assert java_gets_it(tmp_path)
    FolderLock(str(tmp_path)).release()


def test_the_lock_survives_a_close_of_the_file_in_this_process(tmp_path: Path) -> None:
    lock = FolderLock(str(tmp_path))
    with (tmp_path / "lock").open("rb"):
        pass
    assert not java_gets_it(tmp_path)
    lock.release()


def test_a_running_java_broker_excludes_the_store(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with path.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        with pytest.raises(StoreUnavailable, match="in use"):
            FolderLock(str(tmp_path))


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be opened to lock it"):
        FolderLock(str(tmp_path / "nowhere"))
