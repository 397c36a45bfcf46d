"""Cuts the end of a closed store's log, and keeps the bytes in a file.

    cut/OFFSET-TIME.tmp     the bytes, being copied; nothing has changed
    cut/OFFSET-TIME.begun   the bytes are durable; the cut must be finished
    cut/OFFSET-TIME         the log ends at OFFSET

A crash in between leaves the name ``.begun``, and the next ``finish`` repeats the cut: each of its
steps can be repeated. Then the folder is as after a crash: the next opening makes queues, index and
tables of the store follow from the log.
"""

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from reput.errors import CorruptRecord, StoreUnavailable
from reput.format import message as record
from reput.store.checkpoint import CheckpointFile
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import Folder, open_folder
from reput.store.files.folder_lock import FolderLock
from reput.store.log import bulk_append
from reput.store.log.commit_log_view import CommitLogView
from reput.store.log.mapped_file_queue import MappedFileQueue
from reput.store.log.newest_records import records_before
from reput.store.opening.summary import Summary

_BEGUN_SUFFIX = ".begun"
_CHUNK_BYTES = 1024 * 1024

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CutReport:
    """Result of a cut."""

    physical_offset: int
    """New end of the log."""
    byte_count: int
    """Number of bytes cut, without trailing zeros."""
    path: str
    """File with these bytes; empty if there are none."""


class LogFile(Protocol):
    """A file of the log, with the attributes that a cut needs."""

    path: str
    start: int
    """Physical offset of the first byte."""

    @property
    def end(self) -> int:
        """Physical offset after the last byte."""


def cut_log(config: StoreConfig, physical_offset: int, now_ms: int, disk: Disk) -> CutReport:
    """Cut the log of a closed store durably, and keep the bytes in the folder ``cut``.

    Args:
        config: The options of the store.
        physical_offset: The new end of the log: the start of a record or file, or the log's end.
        now_ms: The time, ms; it becomes part of the file's name.
        disk: Writes files.

    Raises:
        StoreUnavailable: The store is open, or the offset is outside of the log.
        WriteFailed: The disk failed; also ``DiskFull``, with which nothing has changed.
    """
    root = config.store_path_root_dir
    lock = FolderLock(root)
    try:
        lock.add_folders(_writable_folders(config))
        finish_cut(config, disk, now_ms)
        log = CommitLogView(_folder(config))
        end = log.data_end
        if not log.files or not log.min_offset <= physical_offset <= log.files[-1].end:
            raise StoreUnavailable(
                f"the log of {root} cannot be cut at physical offset {physical_offset}; "
                f"it has {log.min_offset} to {end}"
            )
        if physical_offset >= end:
            return CutReport(physical_offset, 0, "")
        files = _load(config, disk)
        try:
            path = keep_bytes(root, files.files, physical_offset, end, now_ms, disk)
        finally:
            files.close()
        finish_cut(config, disk, now_ms)
        return CutReport(physical_offset, end - physical_offset, path)
    finally:
        lock.release()


def _writable_folders(config: StoreConfig) -> list[str]:
    read_only = config.read_only_commit_log_folders
    return [folder for folder in config.commit_log_folders if folder not in read_only]


def _folder(config: StoreConfig) -> Folder:
    return open_folder(config.store_path_root_dir, commit_log_folders=config.commit_log_folders)


def _load(config: StoreConfig, disk: Disk) -> MappedFileQueue:
    files = MappedFileQueue(
        config.commit_log_folders,
        config.mapped_file_size_commit_log,
        disk,
        read_only_folders=config.read_only_commit_log_folders,
    )
    files.load()
    return files


def keep_bytes(
    root: str, files: Iterable[LogFile], start: int, end: int, now_ms: int, disk: Disk
) -> str:
    """Copy bytes of the log to a file that announces their cut; return its path after the cut.

    Args:
        root: Folder of the store.
        files: The files of the log.
        start: Physical offset of the first byte.
        end: Physical offset after the last byte.
        now_ms: The time, ms.
        disk: Writes the file.

    Raises:
        WriteFailed: The disk failed; also ``DiskFull``. Nothing has changed.
    """
    folder = f"{root}/{paths.CUT_BYTES}"
    disk.make_folder(folder)
    while Path(path := f"{folder}/{paths.offset_name(start)}-{now_ms}").exists():
        now_ms += 1
    draft = path + paths.DRAFT_SUFFIX
    disk.unlink(draft)
    descriptor = disk.create(draft, end - start, is_durable=False)
    try:
        for file in files:
            for physical_offset in range(max(start, file.start), min(end, file.end), _CHUNK_BYTES):
                size = min(_CHUNK_BYTES, end - physical_offset, file.end - physical_offset)
                data = _read(file.path, physical_offset - file.start, size)
                disk.write(descriptor, draft, physical_offset - start, data)
        disk.sync_file(descriptor, draft)
    except BaseException:
        disk.unlink(draft)
        raise
    finally:
        os.close(descriptor)
    disk.rename(draft, path + _BEGUN_SUFFIX)
    disk.sync_folder(folder)
    return path


def _read(path: str, position: int, size: int) -> bytes:
    try:
        with Path(path).open("rb") as file:
            file.seek(position)
            return file.read(size)
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read: {error.strerror}") from error


def finish_cut(config: StoreConfig, disk: Disk, now_ms: int) -> None:
    """Finish a cut that was begun, if there is one; the caller has locked the folders.

    Args:
        config: The options of the store.
        disk: Writes files.
        now_ms: The time, ms.

    Raises:
        StoreUnavailable: A log file has another size than configured.
        WriteFailed: The disk failed; also ``DiskFull``. Call it again.
    """
    root = config.store_path_root_dir
    folder = Path(root, paths.CUT_BYTES)
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        if entry.name.endswith(paths.DRAFT_SUFFIX):
            disk.unlink(str(entry))
        elif entry.name.endswith(_BEGUN_SUFFIX):
            physical_offset = paths.parse_offset_name(entry.name.partition("-")[0])
            if physical_offset is not None:
                _cut(config, physical_offset, disk, now_ms)
            note_finished(str(entry).removesuffix(_BEGUN_SUFFIX), disk)


def note_finished(path: str, disk: Disk) -> None:
    """Record that the log ends where bytes that were kept began.

    Args:
        path: The result of ``keep_bytes``.
        disk: Writes files.

    Raises:
        WriteFailed: The disk failed. The cut is repeated at the next opening.
    """
    begun, folder = path + _BEGUN_SUFFIX, os.path.dirname(path)  # noqa: PTH120 - paths are texts
    if Path(path).exists() or disk.link(begun, path):
        disk.sync_folder(folder)  # before the other name may be lost
        disk.unlink(begun)
    else:
        disk.rename(begun, path)
    disk.sync_folder(folder)


def _cut(config: StoreConfig, physical_offset: int, disk: Disk, now_ms: int) -> None:
    """Cut the log, after resetting all files that refer to the bytes."""
    root = config.store_path_root_dir
    disk.replace(f"{root}/{paths.ABORT}", str(os.getpid()).encode())
    Summary.delete(root, disk)
    _forget_import(config, physical_offset, disk)
    files = _load(config, disk)
    try:
        last, data = next(records_before(files.files, physical_offset), (0, b""))
        checkpoint = CheckpointFile(f"{root}/{paths.CHECKPOINT}", disk)
        checkpoint.load()
        checkpoint.limit_to(last, record.store_timestamp_of(memoryview(data)) if data else 0)
        checkpoint.flush()
        files.truncate(physical_offset, now_ms)
    finally:
        files.close()
    _log.warning("the log of %s was cut: it ends at physical offset %d", root, physical_offset)


def _forget_import(config: StoreConfig, physical_offset: int, disk: Disk) -> None:
    """Remove the state of the last import if its records are cut: it can be repeated."""
    try:
        appends = bulk_append.read(_folder(config))
    except CorruptRecord as error:
        _log.warning("%s", error)
        return
    begun = appends.begun
    if begun is not None and begun.log_end >= physical_offset:
        batches = {name: batch for name, batch in appends.batches.items() if name != begun.stream}
        bulk_append.save(config.store_path_root_dir, bulk_append.Appends(None, batches), disk)
