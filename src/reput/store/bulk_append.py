"""Which import was begun behind the log's end, and which batches of streams are in the log.

An import writes its records behind the end of the log, all but the eight bytes that stand just
there, makes them durable, and then writes these: before, the log ends where it ended; after, all of
it is in the log (docs/decisions/0013-an-import-begins-with-its-last-write.md). What one that was
killed leaves behind the end is no part of the log, though it looks like records: this file says so
to our readers. It also keeps batches of a stream from being put twice.

The file is ours alone: a JSON object, replaced as a whole.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from reput.errors import CorruptRecord
from reput.store import paths
from reput.store.disk import Disk
from reput.store.files import Folder


@dataclass(frozen=True, slots=True)
class Begun:
    """An import that was begun."""

    log_end: int
    """Physical offset where the log ended; while no record stands there, it is not done."""
    first_offset: int
    """Physical offset of its first record: there, or at the start of the next file."""
    checksum: int
    """CRC-32 of that record: what stands there may be a broker's."""
    stream: str | None = None
    """The stream that it is a batch of."""
    batch_id: int = 0


@dataclass(frozen=True, slots=True)
class Appends:
    """What the file says."""

    begun: Begun | None = None
    """The import that may not be done."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """Stream -> the last of its batches that is in the log."""


def read(folder: Folder) -> Appends:
    """Return what a store's file says; nothing if there is none.

    Raises:
        CorruptRecord: It cannot be read.
    """
    if folder.entry(paths.BULK_APPENDS) is None:
        return Appends()
    try:
        found = json.loads(bytes(folder.read(paths.BULK_APPENDS)))
        begun = found["begun"]
        return Appends(
            None if begun is None else Begun(**begun),
            {str(stream): int(batch_id) for stream, batch_id in found["batches"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecord(
            f"it cannot be read: {error}; it says which batches of streams are in the log, and if "
            "Spark writes none to this store, it can be deleted",
            file=paths.BULK_APPENDS,
        ) from error


def save(root: str, appends: Appends, disk: Disk) -> None:
    """Replace a store's file, durably. Raises ``WriteFailed``."""
    begun = appends.begun
    members = {
        "begun": None
        if begun is None
        else {name: getattr(begun, name) for name in Begun.__dataclass_fields__},
        "batches": dict(appends.batches),
    }
    text = json.dumps(members, indent="\t", sort_keys=True)
    disk.replace(f"{root}/{paths.BULK_APPENDS}", text.encode("ascii"))
