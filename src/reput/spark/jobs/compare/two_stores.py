"""The two stores of a comparison, and reads that tasks make of both."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reput.spark.jobs.stopped_store import StoppedStore
from reput.store.files import paths
from reput.store.files.files import Folder
from reput.store.log.commit_log_view import CommitLogView
from reput.store.reader import StoreReader

WINDOW_BYTES = 8 * 1024 * 1024

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class TwoStores:
    """The two stores, and the fields that may differ between them."""

    left: StoppedStore
    right: StoppedStore
    ignore: frozenset[str]
    """Names of message and unit fields."""
    allow_live: bool

    @property
    def readers(self) -> tuple[StoreReader, StoreReader]:
        """Readers of both; an executor opens a stopped store once."""
        return self._open(self.left), self._open(self.right)

    def _open(self, store: StoppedStore) -> StoreReader:
        return StoreReader.open(store.path, allow_live=True) if self.allow_live else store.reader()


def read(folder: Folder, path: str, start: int, length: int) -> Bytes:
    """Return bytes of a file, fewer at its end."""
    return np.frombuffer(folder.read(path, start, length), np.uint8)


def first_difference(ours: Bytes, theirs: Bytes) -> int | None:
    """Return the first position where two pieces of equal length differ, None if they do not."""
    if np.array_equal(ours, theirs):
        return None
    return int(np.argmax(ours != theirs))


def place(log: CommitLogView, physical_offset: int) -> tuple[str, int]:
    """Return the file of a physical offset, and the position in it. Raises ``NotInStore``."""
    file = log.file_at(physical_offset)
    return f"{paths.COMMIT_LOG}/{file.name}", physical_offset - file.start
