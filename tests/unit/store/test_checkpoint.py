"""The checkpoint file: its fields, when it is flushed, and what a Java broker would read."""

import logging
import struct
from pathlib import Path

import pytest

from descriptors import open_below
from reput.errors import WriteFailed
from reput.format.checkpoint_page import Checkpoint
from reput.store.checkpoint import CheckpointFile
from reput.store.files.disk import Disk


class RecordingDisk(Disk):
    """A disk that records its operations in order; a sync may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []
        self.is_failing = False

    def write(self, descriptor: int, path: str, position: int, data: bytes | memoryview) -> None:
        self.done.append(f"write {position} {len(data)}")
        super().write(descriptor, path, position, data)

    def sync_file(self, descriptor: int, path: str) -> None:
        self.done.append("sync")
        if self.is_failing:
            raise WriteFailed(path, "broken")

    def sync_folder(self, path: str) -> None:
        self.done.append("sync folder")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def disk() -> RecordingDisk:
    return RecordingDisk()


@pytest.fixture
def checkpoint(path: str, disk: RecordingDisk) -> CheckpointFile:
    made = CheckpointFile(path, disk)
    made.load()
    return made


def test_fields_are_at_the_positions_of_java(path: str, checkpoint: CheckpointFile) -> None:
    checkpoint.advance(physical_timestamp=1, queue_timestamp=2, index_timestamp=3)
    checkpoint.advance(
        master_flushed_offset=4, confirmed_physical_offset=5, queue_physical_offset=6
    )
    checkpoint.flush()
    page = Path(path).read_bytes()
    assert len(page) == 4096
    assert struct.unpack(">6q", page[:48]) == (1, 2, 3, 4, 5, 6)
    assert page[48:] == bytes(4048)
    assert CheckpointFile(path, Disk()).load() == Checkpoint(1, 2, 3, 4, 5, 6)


def test_the_page_is_one_write_and_one_sync(
    checkpoint: CheckpointFile, disk: RecordingDisk
) -> None:
    checkpoint.flush()
    assert disk.done == ["sync", "sync folder", "write 0 4096", "sync"]
    del disk.done[:]
    checkpoint.advance(physical_timestamp=7)
    checkpoint.flush()
    assert disk.done == ["write 0 4096", "sync"]
    checkpoint.flush()
    assert disk.done == ["write 0 4096", "sync"], "nothing new"


def test_a_field_changes_only_by_its_own_name(checkpoint: CheckpointFile) -> None:
    checkpoint.advance(queue_timestamp=5, queue_physical_offset=100)
    checkpoint.advance(index_timestamp=9)
    assert checkpoint.fields == Checkpoint(
        queue_timestamp=5, queue_physical_offset=100, index_timestamp=9
    )


def test_offsets_only_go_up_and_times_follow_the_clock(checkpoint: CheckpointFile) -> None:
    checkpoint.advance(physical_timestamp=1000, queue_physical_offset=500)
    checkpoint.advance(physical_timestamp=400, queue_physical_offset=300)
    assert checkpoint.fields == Checkpoint(physical_timestamp=400, queue_physical_offset=500)


def test_offsets_never_exceed_the_end_of_a_truncated_log(checkpoint: CheckpointFile) -> None:
    checkpoint.advance(
        physical_timestamp=1000,
        queue_physical_offset=500,
        confirmed_physical_offset=90,
        master_flushed_offset=101,
    )
    checkpoint.cut(100)
    assert checkpoint.fields == Checkpoint(
        physical_timestamp=1000,
        queue_physical_offset=100,
        confirmed_physical_offset=90,
        master_flushed_offset=100,
    )


def test_a_failed_flush_is_repeated(
    checkpoint: CheckpointFile, disk: RecordingDisk, path: str
) -> None:
    checkpoint.flush()
    checkpoint.advance(physical_timestamp=8)
    disk.is_failing = True
    with pytest.raises(WriteFailed):
        checkpoint.flush()
    disk.is_failing = False
    del disk.done[:]
    checkpoint.flush()
    assert disk.done == ["write 0 4096", "sync"]
    assert CheckpointFile(path, Disk()).load().physical_timestamp == 8


def test_changes_during_a_flush_are_for_the_next_one(path: str) -> None:
    class Busy(Disk):
        def sync_file(self, descriptor: int, path: str) -> None:
            checkpoint.advance(physical_timestamp=checkpoint.fields.physical_timestamp + 1)

    checkpoint = CheckpointFile(path, Busy())
    checkpoint.advance(physical_timestamp=10)
    Path(path).write_bytes(bytes(4096))
    checkpoint.flush()
    assert struct.unpack(">q", Path(path).read_bytes()[:8]) == (10,)
    checkpoint.flush()
    assert struct.unpack(">q", Path(path).read_bytes()[:8]) == (11,)


@pytest.mark.parametrize("length", [1, 24, 47])
def test_a_truncated_page_counts_as_none_and_is_written_whole(
    path: str, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    Path(path).write_bytes(b"\x01" * length)
    checkpoint = CheckpointFile(path, Disk())
    with caplog.at_level(logging.WARNING):
        assert checkpoint.load() == Checkpoint()
    assert f"is truncated: {length} of 4096 bytes" in caplog.text
    checkpoint.flush()
    assert Path(path).read_bytes() == bytes(4096)


def test_flushing_keeps_no_descriptor(tmp_path: Path, checkpoint: CheckpointFile) -> None:
    before = open_below(tmp_path)
    checkpoint.flush()
    assert open_below(tmp_path) == before
