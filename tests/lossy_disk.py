"""A disk that can lose power: it records synced data, and leaves the folder as a crash would.

    disk = LossyDisk(root)
    store = MessageStore.open(root, disk=disk)
    ...
    disk.lose_power(random.Random(7), Loss.SECTORS, before=store.abandon)
    store = MessageStore.open(root, disk=disk)

Only the data that POSIX promises is sure to survive: bytes of a file by its own sync, its name by
the sync of its folder. Of all other data any part may survive: each sector that differs, each name.
Logs and index are mapped, so the written data is the current content of the files.
"""

import enum
import itertools
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from reput.store.files.disk import Disk

SECTOR_BYTES = 512
PAGE_BYTES = 4096


class Loss(enum.Enum):
    """The part of unsynced bytes and names that is lost."""

    ALL = "all"
    NOTHING = "nothing"
    """A crash of the process, not of the machine."""
    SECTORS = "sectors"
    PAGES = "pages"
    FILES = "files"
    """Of each file all unsynced bytes or none."""
    MOST_SECTORS = "most sectors"
    FEW_SECTORS = "few sectors"


_SHARES = {Loss.ALL: 1.0, Loss.NOTHING: 0.0, Loss.MOST_SECTORS: 0.9, Loss.FEW_SECTORS: 0.05}


class LossyDisk(Disk):
    """The disk below a folder."""

    def __init__(self, root: str | Path) -> None:
        super().__init__()
        self._root = Path(root)
        self._ids = itertools.count()
        self._live: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._contents: dict[int, bytes] = {}
        if self._root.exists():
            self.sync_filesystem(str(root))

    def sync_file(self, descriptor: int, path: str) -> None:
        super().sync_file(descriptor, path)
        self._contents[self._id(path)] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self._keep_names([Path(path)])

    def sync_filesystem(self, path: str) -> None:
        # Not a real sync: it would slow other processes of the machine.
        folders = [Path(folder) for folder, _, _ in os.walk(self._root)]
        self._keep_names(folders)
        for name, number in self._names.items():
            self._contents[number] = Path(name).read_bytes()

    def create(self, path: str, size: int, *, is_durable: bool = True) -> int:
        self._live.pop(path, None)
        return super().create(path, size, is_durable=is_durable)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if Path(target).is_dir():
            self._move_folder(f"{source}/", f"{target}/")
            return
        known = self._live.pop(source, None)  # None: it was never synced.
        self._live[target] = next(self._ids) if known is None else known

    def link(self, source: str, target: str) -> bool:
        is_done = super().link(source, target)
        if is_done:
            self._live[target] = self._id(source)
        return is_done

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._live.pop(path, None)

    def lose_power(
        self, chance: random.Random, loss: Loss, *, before: Callable[[], None] = lambda: None
    ) -> None:
        """Leave the folder as a crash would, and continue from there.

        Args:
            chance: Source of the choices.
            loss: Kind of the loss.
            before: Called when the contents are known: closes the files of the folder.
        """
        live = {str(path): path.read_bytes() for path in self._root.rglob("*") if path.is_file()}
        left = self._survivors(live, chance, loss)
        before()
        shutil.rmtree(self._root)
        self._root.mkdir()
        for path, data in left.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(data)
        self._live.clear()
        self._names.clear()
        self._contents.clear()
        self.sync_filesystem(str(self._root))

    # --- inside ---------------------------------------------------------------

    def _id(self, path: str) -> int:
        return self._live.setdefault(path, next(self._ids))

    def remove_folder(self, path: str) -> None:
        super().remove_folder(path)
        self._names = {
            name: content for name, content in self._names.items() if Path(name).parent.exists()
        }

    def _move_folder(self, source: str, target: str) -> None:
        """Move files along with their folder; the move of the folder itself is never lost."""
        for table in (self._live, self._names):
            for path in [path for path in table if path.startswith(source)]:
                table[target + path.removeprefix(source)] = table.pop(path)

    def _keep_names(self, folders: list[Path]) -> None:
        # Texts and not paths: a simulation does this thousands of times.
        for folder in map(str, folders):
            with os.scandir(folder) as entries:
                there = sorted(entry.path for entry in entries if entry.is_file())
            for name in [name for name in self._names if name.rpartition("/")[0] == folder]:
                del self._names[name]
            for name in there:
                self._names[name] = self._id(name)

    def _survivors(
        self, live: dict[str, bytes], chance: random.Random, loss: Loss
    ) -> dict[str, bytes]:
        lost = _SHARES.get(loss, 0.5)
        left = {}
        for path in sorted({*live, *self._names}):
            durable, now = self._names.get(path), self._live.get(path)
            if path in live and now is None:
                now = self._id(path)  # Not created by this disk: the lock.
            if durable != now and chance.random() >= lost:
                durable = now  # The new name was written.
            if durable is None:
                continue
            synced = self._contents.get(durable)
            written = live[path] if durable == now else (synced or b"")
            if synced is None:
                if chance.random() < lost / 2:
                    left[path] = b""  # Not even its size was written.
                    continue
                synced = bytes(len(written))
            left[path] = _torn(synced, written, chance, loss, lost)
        return left


def _torn(synced: bytes, written: bytes, chance: random.Random, loss: Loss, lost: float) -> bytes:
    """Return the rest of a file: the synced bytes, and some that were written later."""
    assert len(synced) == len(written), "sizes change only where files are made"
    unit = {Loss.PAGES: PAGE_BYTES, Loss.FILES: max(len(synced), 1)}.get(loss, SECTOR_BYTES)
    left = bytearray(synced)
    for position in range(0, len(synced), unit):
        if (
            written[position : position + unit] != synced[position : position + unit]
            and chance.random() >= lost
        ):
            left[position : position + unit] = written[position : position + unit]
    return bytes(left)
