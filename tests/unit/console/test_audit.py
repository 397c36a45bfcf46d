"""The audit log: the contents of file and page, and entries that cannot be written."""

import errno
import logging
import os
from pathlib import Path

import pytest

from reput.console.audit import AuditEntry, AuditLog, AuditUnwritable


def entry(detail: str) -> AuditEntry:
    return AuditEntry(1_700_000_000_000, "ann", "127.0.0.1:1", "topic.delete", {}, "done", detail)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "audit.jsonl"


def test_the_newest_entries_are_those_of_the_file(path: Path) -> None:
    path.parent.mkdir()
    log = AuditLog(path)
    for detail in "ab":
        log.add(entry(detail))
    assert log.newest() == AuditLog(path).newest() == [entry("b"), entry("a")]


def test_an_entry_that_the_file_lacks_is_logged_and_not_shown(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(path)
    with (
        caplog.at_level(logging.ERROR, "reput.console.audit"),
        pytest.raises(AuditUnwritable, match=str(path)),
    ):
        log.add(entry("lost"))
    assert log.newest() == []
    assert caplog.messages == [
        "in no audit log: topic.delete by ann from 127.0.0.1:1: done, lost",
    ]
    path.parent.mkdir()
    log.add(entry("kept"))
    assert log.newest() == AuditLog(path).newest() == [entry("kept")]


def test_a_full_disk_leaves_no_part_of_a_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    log = AuditLog(path)
    log.add(entry("first"))
    write = os.write
    with monkeypatch.context() as full:
        full.setattr("os.write", lambda descriptor, data: write(descriptor, data[:20]))
        with pytest.raises(AuditUnwritable, match=os.strerror(errno.ENOSPC)):
            log.add(entry("cut"))
    log.add(entry("last"))
    caplog.clear()
    assert AuditLog(path).newest() == [entry("last"), entry("first")]
    assert not caplog.messages
