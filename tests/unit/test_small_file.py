"""Small files: the file is complete at any moment."""

import os
from pathlib import Path

import pytest

import own_thread
from reput import small_file
from reput.errors import WriteFailed

STEPS = ("write draft", "sync draft", "rename", "sync folder")


class Crash(BaseException):
    """The process has ended."""


def test_the_old_file_is_kept_as_backup(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    small_file.replace_file(str(path), b"one")
    assert path.read_bytes() == b"one"
    assert [file.name for file in path.parent.iterdir()] == ["file"]
    small_file.replace_file(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert small_file.backup_of(path).read_bytes() == b"one"
    assert len(list(path.parent.iterdir())) == 2


@pytest.mark.parametrize("last", range(6))
def test_a_crash_leaves_the_old_or_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    left = last

    def counted(step: object) -> object:
        def call(*arguments: object) -> object:
            nonlocal left
            if not left:
                raise Crash
            left -= 1
            return step(*arguments)  # type: ignore[operator]

        return call

    for name in ("sync_data", "sync_folder"):
        own_thread.replace(monkeypatch, small_file, name, counted(getattr(small_file, name)))
    own_thread.replace(monkeypatch, Path, "replace", counted(Path.replace))
    try:
        small_file.replace_file(str(path), b"new")
    except Crash:
        assert path.read_bytes() == (b"old" if last <= 3 else b"new")
    else:
        assert last == 5
        assert path.read_bytes() == b"new"


def test_the_file_is_synced_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    done: list[str] = []

    def sync(descriptor: int) -> None:
        done.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)

    replace = Path.replace

    def rename(self: Path, target: Path) -> Path:
        done.append(f"rename {self.name} {target.name}")
        return replace(self, target)

    own_thread.replace(monkeypatch, small_file, "sync_data", sync)
    own_thread.replace(
        monkeypatch, small_file, "sync_folder", lambda path: done.append(f"sync {path.name}")
    )
    own_thread.replace(monkeypatch, Path, "replace", rename)
    small_file.replace_file(str(path), b"new")
    draft = f"file.{os.getpid()}.tmp"
    assert done == [f"sync {draft}", f"rename {draft} file", f"sync {tmp_path.name}"]


def test_a_failure_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path = str(tmp_path / "folder")
    with pytest.raises(WriteFailed, match=f"{path}: cannot write: Is a directory"):
        small_file.replace_file(path, b"data")
