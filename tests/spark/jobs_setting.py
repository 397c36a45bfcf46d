"""Configurations of the golden stores, and damage to copies of them, for tests of jobs."""

from pathlib import Path

import golden
from reput.store.config import StoreConfig
from reput.store.files import paths


def settings(version: str, name: str = "clean") -> StoreConfig:
    """Return the configuration of the broker that wrote a golden store."""
    written = golden.manifest(version, name)["config"]
    default = StoreConfig()
    return StoreConfig(
        mapped_file_size_commit_log=int(written["mappedFileSizeCommitLog"]),
        mapped_file_size_consume_queue=int(written["mappedFileSizeConsumeQueue"]),
        max_hash_slot_num=int(written["maxHashSlotNum"]),
        max_index_num=int(written["maxIndexNum"]),
        max_message_size=int(written["maxMessageSize"]),
        message_delay_level=written.get("messageDelayLevel", default.message_delay_level),
        index_tags=version == "5.5.0",
    )


def files_below(root: Path) -> dict[str, bytes]:
    """Return the content of the files below a folder, but for the lock of a store."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != paths.LOCK
    }


def flip(path: Path, position: int, mask: int = 0x10) -> None:
    """Flip a bit of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def log_place(store: Path, physical_offset: int) -> tuple[Path, int]:
    """Return the log file with a physical offset, and the position in it."""
    starts = [(int(path.name), path) for path in golden.log_files(store)]
    start, path = max(file for file in starts if file[0] <= physical_offset)
    return path, physical_offset - start
