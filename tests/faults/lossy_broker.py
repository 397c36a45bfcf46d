"""Our broker as a process that loses power on SIGUSR1: ``lossy_broker.py SEED broker -c PATH``.

The store's folder is then as a crash of the machine would leave it: of the bytes that were not
synced, a part is lost, which depends on the seed.
"""

import os
import random
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lossy_disk import Loss, LossyDisk
from reput.store.files import disk

EXIT_CODE = 137


class OneDisk(LossyDisk):
    """The lossy disk below the broker's store: one, shared by all parts and threads."""

    made: Self | None = None
    root: Path
    lock = threading.RLock()

    def __new__(cls) -> Self:
        if cls.made is None:
            cls.made = super().__new__(cls)
            LossyDisk.__init__(cls.made, cls.root)
        return cls.made

    def __init__(self) -> None:
        """Do nothing: ``__new__`` has initialized the disk."""

    def lose(self, chance: random.Random) -> None:
        """Lose power, and end the process. Acknowledgements are sent by this thread only."""
        with self.lock:
            self.lose_power(chance, chance.choice(list(Loss)))
        os._exit(EXIT_CODE)


def _locked(name: str) -> Any:
    def call(self: OneDisk, *arguments: Any, **options: Any) -> Any:
        with self.lock:
            return getattr(LossyDisk, name)(self, *arguments, **options)

    return call


for _name in (
    "sync_file", "sync_folder", "sync_filesystem", "create", "rename", "link", "unlink",
    "remove_folder",
):  # fmt: skip
    setattr(OneDisk, _name, _locked(_name))


def main() -> None:
    """Run the command with the lossy disk."""
    lines = Path(sys.argv[-1]).read_text(encoding="utf-8").splitlines()
    (root,) = (line.partition("=")[2] for line in lines if line.startswith("storePathRootDir="))
    OneDisk.root = Path(root)
    disk.Disk = OneDisk  # type: ignore[misc]
    chance = random.Random(sys.argv.pop(1))

    def lose(number: int, frame: FrameType | None) -> None:
        OneDisk().lose(chance)

    signal.signal(signal.SIGUSR1, lose)
    # Modules of the broker import the class by its name, so they are imported only now.
    from reput.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
