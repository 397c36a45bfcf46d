"""Access to an archive's files, on a local file system or at a URI of pyarrow.fs.

``reput.store.files.files`` reads names, manifests and keys. This module opens Parquet files, with
pyarrow, and writes: a file of an archive is complete as soon as it has its name, also after a
crash, and two attempts of a task may write the same file concurrently.
"""

import contextlib
import functools
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from reput.errors import StoreUnavailable, WriteFailed
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import arrow_uri, is_remote, local_path

_DRAFTS = ".*.tmp"
_WHOLE_OR_NOT_AT_ALL = ("s3", "gcs", "abfs")
"""File systems on which a file appears when it is closed."""
_COPIED_AT_ONCE = 8 * 1024 * 1024


class ArchiveFolder(Protocol):
    """Interface for writing an archive; paths are relative to the archive."""

    location: str
    """Location as given by the user."""

    def make(self) -> None:
        """Create the folder and its parents if missing. Raises ``WriteFailed``."""

    def draft(self, path: str) -> contextlib.AbstractContextManager[Path]:
        """Yield a local path; its content becomes the file, durably, at the end.

        After an exception the file is missing, or unchanged if it existed.

        Raises:
            WriteFailed: The file cannot be written.
        """

    def put(self, path: str, data: bytes) -> None:
        """Write a file durably. Raises ``WriteFailed``."""

    def delete(self, path: str) -> None:
        """Delete a file if it exists. Raises ``WriteFailed``."""

    def files(self, path: str = "") -> list[str]:
        """Return all files below a folder, sorted, without drafts."""

    def sweep(self) -> None:
        """Delete the drafts of killed writers."""

    def open_parquet(self, path: str) -> pq.ParquetFile:
        """Open a Parquet file.

        Raises:
            StoreUnavailable: It is missing, or cannot be reached.
        """


def archive_folder(location: str) -> ArchiveFolder:
    """Return the archive folder at a path or URI; it need not exist.

    Raises:
        StoreUnavailable: The file system of a URI cannot be reached.
    """
    if is_remote(location):
        return _RemoteArchive(location)
    return _LocalArchive(location)


class _LocalArchive:
    def __init__(self, location: str) -> None:
        self.location = location
        self._root = local_path(location)
        self._disk = Disk()

    def make(self) -> None:
        self._disk.make_folder(str(self._root))

    @contextlib.contextmanager
    def draft(self, path: str) -> Iterator[Path]:
        target = self._root / paths.below(path)
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        self._disk.make_folder(str(target.parent))
        try:
            with _write_errors(target):
                yield draft
            descriptor = self._disk.open(str(draft))
            try:
                self._disk.sync_file(descriptor, str(draft))
            finally:
                os.close(descriptor)
            self._disk.rename(str(draft), str(target))
            self._disk.sync_folder(str(target.parent))
        finally:
            draft.unlink(missing_ok=True)

    def put(self, path: str, data: bytes) -> None:
        with self.draft(path) as draft:
            draft.write_bytes(data)

    def delete(self, path: str) -> None:
        self._disk.unlink(str(self._root / paths.below(path)))

    def files(self, path: str = "") -> list[str]:
        files = (file for file in (self._root / paths.below(path)).rglob("*") if file.is_file())
        names = (file for file in files if not file.match(_DRAFTS))
        return sorted(str(file.relative_to(self._root)) for file in names)

    def sweep(self) -> None:
        for draft in list(self._root.rglob(_DRAFTS)):
            self._disk.unlink(str(draft))

    def open_parquet(self, path: str) -> pq.ParquetFile:
        target = self._root / paths.below(path)
        try:
            return pq.ParquetFile(pa.memory_map(str(target)))
        except FileNotFoundError as error:
            raise StoreUnavailable(f"{target} is gone from the archive") from error


class _RemoteArchive:
    def __init__(self, location: str) -> None:
        self.location = location
        self._fs, self._root = _reach(location)

    def make(self) -> None:
        with _write_errors(self.location):
            self._fs.create_dir(self._root, recursive=True)

    @contextlib.contextmanager
    def draft(self, path: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="reput-archive-") as folder:
            draft = Path(folder, path.rpartition("/")[2])
            with _write_errors(f"{self.location}/{path}"):
                yield draft
                self._upload(draft, f"{self._root}/{paths.below(path)}")

    def _upload(self, draft: Path, target: str) -> None:
        is_atomic = self._fs.type_name in _WHOLE_OR_NOT_AT_ALL
        folder, _, name = target.rpartition("/")
        name = target if is_atomic else f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
        if not is_atomic:
            self._fs.create_dir(folder, recursive=True)
        # compression=None: otherwise pyarrow compresses .zst files again.
        with (
            draft.open("rb") as source,
            self._fs.open_output_stream(name, compression=None) as stream,
        ):
            shutil.copyfileobj(source, stream, _COPIED_AT_ONCE)
        written = self._fs.get_file_info(name).size
        if written != draft.stat().st_size:
            raise OSError(f"{written} of {draft.stat().st_size} bytes arrived")
        if not is_atomic:
            self._fs.move(name, target)

    def put(self, path: str, data: bytes) -> None:
        with self.draft(path) as draft:
            draft.write_bytes(data)

    def delete(self, path: str) -> None:
        with _write_errors(f"{self.location}/{path}"), contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(f"{self._root}/{paths.below(path)}")

    def files(self, path: str = "") -> list[str]:
        return [name for name in self._all(path) if not _is_draft(name)]

    def sweep(self) -> None:
        if self._fs.type_name not in _WHOLE_OR_NOT_AT_ALL:
            for name in filter(_is_draft, self._all("")):
                self.delete(name)

    def _all(self, path: str) -> list[str]:
        folder = f"{self._root}/{paths.below(path)}".rstrip("/")
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
        try:
            entries = self._fs.get_file_info(selector)
        except OSError as error:
            raise StoreUnavailable(f"{self.location} cannot be listed: {error}") from error
        names = (entry.path for entry in entries if entry.type == fs.FileType.File)
        return sorted(name.removeprefix(self._root).lstrip("/") for name in names)

    def open_parquet(self, path: str) -> pq.ParquetFile:
        try:
            source = self._fs.open_input_file(f"{self._root}/{paths.below(path)}")
            return pq.ParquetFile(source, pre_buffer=True)
        except FileNotFoundError as error:
            raise StoreUnavailable(f"{self.location}/{path} is gone from the archive") from error


@functools.lru_cache(maxsize=16)
def _reach(location: str) -> tuple[fs.FileSystem, str]:
    try:
        filesystem, root = fs.FileSystem.from_uri(arrow_uri(location))
    except (OSError, ValueError) as error:
        raise StoreUnavailable(f"{location} cannot be reached: {error}") from error
    return filesystem, root.rstrip("/")


def _is_draft(path: str) -> bool:
    return Path(path).match(_DRAFTS)


@contextlib.contextmanager
def _write_errors(target: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteFailed(str(target), f"cannot write: {error}") from error
