"""The disk below the stores of scripts: its usage, failures and losses are set by a script."""

from collections.abc import Iterator
from contextlib import contextmanager

from lossy_disk import LossyDisk
from reput.errors import DiskFull, WriteFailed
from reput.store.files import paths


class ScriptDisk(LossyDisk):
    """A disk that can be full, fail, and lose what was not synced."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.used_percent = 50
        self.used_percent_of: dict[str, int] = {}
        """Usage by the last part of a path, instead of ``used_percent``."""
        self.freed_percent = 0
        """Decrease of the usage by the deletion of a log file."""
        self.failing: dict[str, str] = {}
        """Operation -> text in the path for which it fails."""
        self.full = ""
        """Text in the paths for which there is no room; ``/`` for all."""
        self.done: list[str] = []
        """Deletions and syncs of folders, in order."""
        self.usage_count = 0

    @contextmanager
    def _doing(self, operation: str, path: str, size: int | None = None) -> Iterator[None]:
        text = self.failing.get(operation)
        if text is not None and text in path:
            raise WriteFailed(path, f"cannot {operation.replace('_', ' ')}: a test")
        if size is not None and self.full and self.full in path:
            raise DiskFull(path, size, "no room: a test")
        yield

    def take_files(self) -> None:
        """Take the current files as if they were synced."""
        self._live.clear()
        self._names.clear()
        self._contents.clear()
        super().sync_filesystem(str(self._root))

    def usage(self, path: str) -> float:
        self.usage_count += 1
        name = path.rpartition("/")[2]
        return self.used_percent_of.get(name, self.used_percent) / 100

    def check_writable(self, path: str) -> None:
        with self._doing("check_writable", path):
            super().check_writable(path)

    def sync_file(self, descriptor: int, path: str) -> None:
        with self._doing("sync_file", path):
            super().sync_file(descriptor, path)

    def sync_folder(self, path: str) -> None:
        with self._doing("sync_folder", path):
            self.done.append(f"sync {self._short(path)}")
            super().sync_folder(path)

    def sync_filesystem(self, path: str) -> None:
        with self._doing("sync_filesystem", path):
            super().sync_filesystem(path)

    def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
        with self._doing("create", path, size):
            return super().create(path, size, is_durable=is_durable)

    def reserve(self, descriptor: int, path: str, start: int, length: int) -> None:
        with self._doing("reserve", path, length):
            super().reserve(descriptor, path, start, length)

    def write(self, descriptor: int, path: str, position: int, data: bytes | memoryview) -> None:
        with self._doing("write", path, len(data)):
            super().write(descriptor, path, position, data)

    def replace(self, path: str, data: bytes) -> None:
        with self._doing("replace", path, len(data)):
            super().replace(path, data)

    def rename(self, source: str, target: str) -> None:
        with self._doing("rename", source):
            super().rename(source, target)

    def unlink(self, path: str) -> None:
        with self._doing("unlink", path):
            self.done.append(f"unlink {self._short(path)}")
            if f"/{paths.COMMIT_LOG}/" in path:
                self.used_percent -= self.freed_percent
            super().unlink(path)

    def _short(self, path: str) -> str:
        """Return a path below the store's root, without leading zeros of a file's name."""
        path = path.removeprefix(str(self._root)).removeprefix("/")
        folder, _, name = path.rpartition("/")
        return f"{folder}/{int(name)}" if name.isdigit() and folder else path or "."
