"""The disk of a host: it forgets unsynced bytes when power is cut, can be full, and can fail."""

from pathlib import Path

from lossy_disk import LossyDisk
from reput.errors import DiskFull, WriteFailed
from reput.store.files.disk import Space
from sim.loop import Loop


class SimDisk(LossyDisk):
    """The disk below a folder; all operations are in the trace.

    Args:
        root: The folder.
        loop: Has the time and the trace.
        name: Name of the host.
    """

    def __init__(self, root: Path, loop: Loop, name: str) -> None:
        self._loop = loop
        self._name = name
        self.is_full = False
        self.fails_syncs = False
        self.sync_count = 0
        super().__init__(root)

    def _note(self, action: str, path: str, data: bytes = b"") -> None:
        path = path.removeprefix(str(self._root.parent))
        if "/abort" in path or "/queues.summary" in path:
            data = b""  # the id of the process, times of files
        self._loop.trace.add(self._loop.now, f"{self._name} {action} {path}", data)

    def _check_room(self, path: str, size: int) -> None:
        if self.is_full:
            raise DiskFull(path, size, "cannot write: No space left on device")

    def _check_sync(self, path: str) -> None:
        self.sync_count += 1
        if self.fails_syncs:
            raise WriteFailed(path, "cannot sync: Input/output error")

    def sync_file(self, descriptor: int, path: str) -> None:
        self._check_sync(path)
        data = Path(f"/proc/self/fd/{descriptor}").read_bytes()
        self._contents[self._id(path)] = data
        self._note("sync", path, data)

    def sync_folder(self, path: str) -> None:
        self._check_sync(path)
        self._keep_names([Path(path)])
        self._note("sync", path)

    def sync_filesystem(self, path: str) -> None:
        super().sync_filesystem(path)
        self._note("syncfs", path)

    def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
        self._check_room(path, size)
        self._note("create", path)
        return super().create(path, size, is_durable=is_durable)

    def reserve(self, descriptor: int, path: str, start: int, length: int) -> None:
        self._check_room(path, length)
        super().reserve(descriptor, path, start, length)

    def write(self, descriptor: int, path: str, position: int, data: bytes | memoryview) -> None:
        self._note("write", path, bytes(data))
        super().write(descriptor, path, position, data)

    def rename(self, source: str, target: str) -> None:
        self._note("rename", source)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._note("unlink", path)
        super().unlink(path)

    def space(self, path: str) -> Space:
        return Space(1 << 30, 0 if self.is_full else 1 << 29)

    def usage(self, path: str) -> float:
        return 0.99 if self.is_full else 0.5
