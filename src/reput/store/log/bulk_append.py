"""The file of bulk appends: an unfinished import, and the last batch of each stream in the log.

An import writes its records after the end of the log, except the eight bytes directly at the end,
makes them durable, and then writes these eight bytes: before that the end of the log is unchanged;
after it, the whole import is in the log
(docs/decisions/0013-an-import-begins-with-its-last-write.md). An interrupted import leaves bytes
after the end that look like records but are not part of the log; readers recognize them by this
file. It also prevents that batches of a stream are put twice.

Only reput has this file: a JSON object, replaced as a whole.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from reput.errors import CorruptRecord
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import Folder


@dataclass(frozen=True, slots=True)
class Begun:
    """An import that was begun."""

    log_end: int
    """Physical offset of the log's end before the import, which is unfinished until it has a record
    there."""
    first_offset: int
    """Physical offset of its first record: that end, or the start of the next file."""
    checksum: int
    """CRC-32 of that record: the record at the offset may be a broker's."""
    stream: str | None = None
    """Stream of the batch that is imported; None for other imports."""
    batch_id: int = 0


@dataclass(frozen=True, slots=True)
class Appends:
    """The contents of the file."""

    begun: Begun | None = None
    """The last import, which may be unfinished."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """Stream -> its last batch in the log."""


def read(folder: Folder) -> Appends:
    """Return the contents of a store's file; empty if there is none.

    Raises:
        CorruptRecord: The file cannot be read.
    """
    if folder.entry(paths.BULK_APPENDS) is None:
        return Appends()
    try:
        contents = json.loads(bytes(folder.read(paths.BULK_APPENDS)))
        begun = contents["begun"]
        return Appends(
            None if begun is None else Begun(**begun),
            {str(stream): int(batch_id) for stream, batch_id in contents["batches"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecord(
            f"it cannot be read: {error}; it contains the last batch of each stream in the log; "
            "if Spark writes no streams to this store, it can be deleted",
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
