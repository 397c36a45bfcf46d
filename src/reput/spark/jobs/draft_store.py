"""The folder of a store while a job writes it: a draft, which is renamed when it is complete."""

import os
import shutil
from pathlib import Path

from reput.errors import InvalidOption, StoreUnavailable, WriteFailed
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import Folder

WINDOW_BYTES = 8 * 1024 * 1024


class DraftStore:
    """The draft of a store.

    Args:
        source: Store that the job reads.
        target: Folder of the store; new or empty.
        suffix: End of the name of the draft, beside the target.
    """

    def __init__(self, source: str, target: Path, suffix: str) -> None:
        self._source = source
        self.target = target
        self.path = target.with_name(target.name + suffix)
        self._disk = Disk()

    def refuse_target(self) -> None:
        """Refuse a target that must not be written to.

        Raises:
            StoreUnavailable: It has files.
            InvalidOption: It is inside of the source.
        """
        target = self.target
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise StoreUnavailable(f"{target} exists already; give a new folder, or an empty one")
        if target.resolve().is_relative_to(Path(self._source).resolve()):
            raise InvalidOption("target", str(target), f"a folder outside of {self._source}")

    def begin(self) -> None:
        """Create the folder; delete what a killed run has left in it.

        Raises:
            WriteFailed: It cannot be written or deleted.
        """
        if self.path.exists():
            try:
                shutil.rmtree(self.path)
            except OSError as error:
                reason = f"cannot delete what a killed run left: {error.strerror}"
                raise WriteFailed(str(self.path), reason) from error
        self._disk.make_folder(f"{self.path}/{paths.COMMIT_LOG}")

    def create_log_files(self, first: int, stop: int, file_bytes: int) -> None:
        """Create the files of the log ``[first, stop)``, empty and in full size."""
        for start in range(first, stop, file_bytes):
            os.close(self._disk.create(self.log_file(start), file_bytes, is_durable=False))

    def log_file(self, start: int) -> str:
        """Return the path of the log file that begins at a physical offset."""
        return f"{self.path}/{paths.COMMIT_LOG}/{paths.offset_name(start)}"

    def copy_tree(self, folder: Folder, path: str, *, is_folder: bool) -> None:
        """Copy a file, or all files of a folder, to the same path."""
        if not is_folder:
            self.copy_file(folder, path, path)
            return
        for entry in folder.entries(path):
            self.copy_tree(folder, f"{path}/{entry.name}", is_folder=entry.is_folder)

    def copy_file(self, folder: Folder, path: str, new_path: str) -> None:
        """Copy a file to another path."""
        target = f"{self.path}/{new_path}"
        self._disk.make_folder(os.path.dirname(target), is_durable=False)  # noqa: PTH120
        entry = folder.entry(path)
        size = entry.size if entry is not None else 0
        descriptor = self._disk.create(target, size, is_durable=False)
        try:
            for position in range(0, size, WINDOW_BYTES):
                length = min(size - position, WINDOW_BYTES)
                data = folder.read(path, position, length)
                self._disk.write(descriptor, target, position, data)
        finally:
            os.close(descriptor)

    def publish(self) -> None:
        """Make all durable, and rename the draft to the target."""
        self._disk.sync_filesystem(str(self.path))
        if self.target.exists():
            self.target.rmdir()
        self._disk.rename(str(self.path), str(self.target))
        self._disk.sync_folder(str(self.target.parent))
