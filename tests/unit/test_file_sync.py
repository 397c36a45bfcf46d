"""Syncs use the call of the system that reaches the disk."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from reput import file_sync

FULL = 51
"""``F_FULLFSYNC`` of macOS."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the syncs instead of waiting for the disk."""
    calls: list[str] = []
    fake = SimpleNamespace(
        open=lambda *_: 7,
        close=lambda _: calls.append("close"),
        fsync=lambda _: calls.append("fsync"),
        fdatasync=lambda _: calls.append("fdatasync"),
        O_RDONLY=os.O_RDONLY,
        O_DIRECTORY=os.O_DIRECTORY,
    )
    monkeypatch.setattr(file_sync, "os", fake)
    return calls


def as_macos(monkeypatch: pytest.MonkeyPatch, command: Callable[[int, int], int]) -> None:
    monkeypatch.setattr(file_sync, "fcntl", SimpleNamespace(F_FULLFSYNC=FULL, fcntl=command))
    monkeypatch.delattr(file_sync.os, "fdatasync")


def test_linux_syncs_data_without_times(calls: list[str]) -> None:
    assert not hasattr(fcntl, "F_FULLFSYNC")
    file_sync.sync_data(7)
    file_sync.sync_folder("folder")
    assert calls == ["fdatasync", "fsync", "close"]


def test_macos_empties_the_cache_of_the_drive(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_macos(monkeypatch, lambda _, command: calls.append(f"fcntl {command}") or 0)
    file_sync.sync_data(7)
    file_sync.sync_folder("folder")
    assert calls == [f"fcntl {FULL}", f"fcntl {FULL}", "close"]


@pytest.mark.parametrize(("number", "is_fsync_enough"), [(errno.ENOTSUP, True), (errno.EIO, False)])
def test_a_file_system_without_the_command_gets_fsync_and_an_error_stays_one(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, number: int, is_fsync_enough: bool
) -> None:
    def refuse(_: int, command: int) -> int:
        raise OSError(number, os.strerror(number))

    as_macos(monkeypatch, refuse)
    if is_fsync_enough:
        file_sync.sync_data(7)
        assert calls == ["fsync"]
        return
    with pytest.raises(OSError, match=os.strerror(number)):
        file_sync.sync_data(7)
    assert calls == []


def test_windows_cannot_sync_a_folder(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(file_sync.os, "O_DIRECTORY")
    file_sync.sync_folder(tmp_path)
    assert calls == []
