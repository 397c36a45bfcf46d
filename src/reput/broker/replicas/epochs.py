"""The epochs of a broker's log, and their file.

The file is replaced, durably, before a byte of a new epoch is acknowledged, and before the log is
cut: after a crash it has too few epochs, never one that the log lacks.
"""

from collections.abc import Sequence
from pathlib import Path

from reput.errors import CorruptRecord, StoreUnavailable
from reput.format import epoch_file
from reput.format.epoch_file import Epoch
from reput.store.files.disk import Disk


class Epochs:
    """The epochs of a log.

    Args:
        path: Path of the file.
        disk: Writes it.

    Raises:
        StoreUnavailable: The file is damaged, or cannot be read.
    """

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self.all: Sequence[Epoch] = tuple(_read(path))
        """The epochs, oldest first."""

    @property
    def last(self) -> int:
        """Number of the last epoch; -1 without one."""
        return self.all[-1].number if self.all else -1

    def check(self, log_start: int, log_end: int) -> None:
        """Leave out epochs of bytes that the log does not have, after it was opened.

        Raises:
            WriteFailed: The file cannot be written.
        """
        self._write(epoch_file.expired(epoch_file.cut(self.all, log_end), log_start))

    def add(self, epoch: Epoch) -> None:
        """Add an epoch durably. Raises ``WriteFailed``."""
        self._write(epoch_file.added(self.all, epoch))

    def begin(self, number: int, log_start: int, log_end: int) -> None:
        """Add the epoch of a master, whose next bytes are the first of it.

        A log that has no epochs yet is that of its first master from the start on.

        Raises:
            WriteFailed: The file cannot be written.
        """
        self.add(Epoch(number, log_end if self.all else log_start))

    def cut(self, log_end: int) -> None:
        """Cut the epochs as the log will be cut. Raises ``WriteFailed``."""
        self._write(epoch_file.cut(self.all, log_end))

    def replace(self, epochs: Sequence[Epoch]) -> None:
        """Replace all epochs by those of a master with the same records. Raises ``WriteFailed``."""
        self._write(epochs)

    def _write(self, epochs: Sequence[Epoch]) -> None:
        if tuple(epochs) != self.all:
            self._disk.replace(self._path, epoch_file.encode(epochs))
            self.all = tuple(epochs)


def _read(path: str) -> list[Epoch]:
    try:
        return epoch_file.decode(Path(path).read_bytes())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read: {error.strerror}") from error
    except CorruptRecord as error:
        raise StoreUnavailable(
            f"{path} is damaged: {error}. Without the file the broker compares its log with its "
            "master's record by record; if it is to be master, restore the file first"
        ) from error
