"""Systems that lack calls of Linux: each is taken away, and the work is done without it."""

import ctypes
import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from reput import descriptors
from reput.broker.replication.slave_socket import PlainSlaveSocket
from reput.errors import StoreUnavailable, WriteFailed
from reput.spark.importing import commit
from reput.store.files import disk as disks, folder_lock, memory
from reput.store.files.disk import Disk
from reput.store.files.folder_lock import FolderLock

OF_LINUX = (
    *("posix_fallocate", "fdatasync", "sendfile", "preadv", "memfd_create"),
    *("SEEK_DATA", "SEEK_HOLE", "sched_getaffinity"),
)
PROGRAM = f"""
import os, select, sys
for name in {OF_LINUX}:
    delattr(os, name)
del select.epoll
sys.platform = "darwin-like"
from reput import descriptors
descriptors._IS_LINUX = True  # the layout of locks is still that of this system
from reput.store.files import disk, folder_lock
assert folder_lock._OFD_SETLK is None
disk._libc = object()  # without syncfs and statx
from reput.client import ConsumerConfig, ConsumeFromWhere, Message
from reput.client.blocking import Producer, PullConsumer
from reput.testing import LocalBroker

first = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
for count in (50, 0):  # the second broker opens the store of the first
    with LocalBroker(folder=sys.argv[1], settings={{"flushDiskType": "SYNC_FLUSH"}}) as mq:
        with Producer("P", namesrv=mq.namesrv_addr) as producer:
            producer.send_many(Message("T", b"%d" % i, keys="k%d" % i) for i in range(count))
        with PullConsumer(f"G{{count}}", namesrv=mq.namesrv_addr, config=first) as consumer:
            consumer.subscribe("T")
            print(len({{next(consumer).body for _ in range(50)}}))
"""


@pytest.mark.slow
def test_a_broker_works_without_all_of_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.stdout.split(), done.returncode) == (["50", "50"], 0), done.stderr


def test_space_is_reserved_by_writing_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    disk, path = Disk(), str(tmp_path / "file")
    descriptor = disk.create(path, 1 << 20)
    try:
        assert os.fstat(descriptor).st_blocks * 512 < 1 << 20
        disk.reserve(descriptor, path, 0, 1 << 20)
        assert os.fstat(descriptor).st_blocks * 512 >= 1 << 20
        assert os.fstat(descriptor).st_size == 1 << 20
    finally:
        os.close(descriptor)


def test_a_file_system_is_synced_with_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(disks, "_libc", object())
    monkeypatch.setattr(disks.os, "sync", lambda: calls.append("sync"))
    monkeypatch.setattr(disks, "sync_data", lambda _: calls.append("sync_data"))
    Disk().sync_filesystem(str(tmp_path))
    assert calls == ["sync", "sync_data"]


def test_where_data_is_in_a_file_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SEEK_DATA", "SEEK_HOLE"):
        monkeypatch.delattr(os, name)
    with (tmp_path / "file").open("wb") as file:
        for seek in (descriptors.seek_data, descriptors.seek_hole):
            with pytest.raises(OSError, match="Invalid argument") as caught:
                seek(file.fileno(), 0)
            assert caught.value.errno == errno.EINVAL


def test_bytes_are_read_into_a_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    monkeypatch.delattr(os, "preadv")
    buffer = bytearray(b"........")
    with (tmp_path / "file").open("rb") as file:
        assert descriptors.read_into(file.fileno(), memoryview(buffer), 5) == 5
    assert buffer == b"56789..."


def test_a_file_is_sent_with_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    monkeypatch.delattr(os, "sendfile")
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "file").open("rb") as file:
        connection = PlainSlaveSocket(ours)
        assert connection.send_file(file.fileno(), 3, 5) == 5
        assert theirs.recv(100) == b"34567"
        assert connection.send_file(file.fileno(), 10, 5) == 0


def test_pages_are_not_populated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    room = memory.AnonymousMemory(memory.PAGE_BYTES)
    assert not memory.populate(room.address, room.size)


def test_a_lock_of_the_process_excludes_other_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "_OFD_SETLK", None)
    lock = FolderLock(str(tmp_path))
    with pytest.raises(StoreUnavailable, match="in use"):
        FolderLock(str(tmp_path))
    command = f"from reput.store.files.folder_lock import FolderLock; FolderLock({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, check=False)
    assert b"in use" in done.stderr
    lock.release()
    FolderLock(str(tmp_path)).release()


class Libc:
    """A C library with the calls that are given to it."""

    def __init__(self, **calls: object) -> None:
        self.__dict__.update(calls)


def test_folders_are_exchanged_with_the_call_of_macos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bytes, bytes, int]] = []
    owner = SimpleNamespace(disk=Disk())
    exchange = commit.Commit._exchange
    libc = Libc(renamex_np=lambda *arguments: asked.append(arguments) or 0)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: libc)
    exchange(owner, "/draft", str(tmp_path / "store"))  # type: ignore[arg-type]
    assert asked == [(b"/draft", os.fsencode(tmp_path / "store"), 2)]
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Libc())
    with pytest.raises(WriteFailed, match="not implemented; import to a new folder"):
        exchange(owner, "/draft", str(tmp_path / "store"))  # type: ignore[arg-type]
