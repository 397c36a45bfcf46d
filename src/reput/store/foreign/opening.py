"""Open a store of any form for reading."""

import dataclasses
import itertools
from typing import Any

from reput.errors import StoreUnavailable
from reput.store.files import paths
from reput.store.files.files import Folder, open_folder
from reput.store.foreign import ledger, rocksdb
from reput.store.foreign.ledger_reader import SHOWN_MAX, LedgerReader
from reput.store.foreign.rocksdb import RocksFolder
from reput.store.reader import StoreReader, process_name


def open_reader(location: str, *, allow_live: bool = False) -> StoreReader:
    """Open a store: a plain one, or one with DLedger or RocksDB.

    Args:
        location: Local path or URI of its folder.
        allow_live: As for ``StoreReader.open``.

    Raises:
        StoreUnavailable: Not a store, or in use without ``allow_live``.
        ExtraMissing: It needs the package ``rocksdict``.
    """
    folder = open_folder(location)
    is_in_rocksdb, is_in_ledger = rocksdb.is_used(folder), bool(ledger.members(folder))
    if not (is_in_rocksdb or is_in_ledger):
        return StoreReader.open(location, allow_live=allow_live)
    shown: Folder = RocksFolder(folder) if is_in_rocksdb else folder
    reader: StoreReader
    if is_in_ledger:
        reader = LedgerReader(shown, allow_live=allow_live)
    elif folder.entry(paths.COMMIT_LOG) is None:
        raise StoreUnavailable(f"{location} is no store: it has no folder {paths.COMMIT_LOG}")
    else:
        reader = StoreReader(shown, allow_live=allow_live)
    holder = reader.state.lock_holder
    if holder is not None and not allow_live:
        raise StoreUnavailable(
            f"{location} is in use by {process_name(holder)}; stop the broker, or allow "
            "reading beside it (option allowLive=true, --live)"
        )
    return reader


def info(reader: StoreReader) -> dict[str, Any]:
    """Return what a summary of a store has besides that of a plain one, as plain values."""
    if not isinstance(reader, LedgerReader):
        return {}
    state = reader.ledger_state
    first = state.last_index + 1 - (state.uncommitted_count or 0) if state.last_index else 0
    uncommitted = [
        {
            "index": number,
            "topic": message.topic,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "physical_offset": message.physical_offset,
            "id": message.unique_key,
        }
        for number, message in enumerate(itertools.islice(reader.uncommitted(), SHOWN_MAX), first)
    ]
    fields = {
        **dataclasses.asdict(state),
        "uncommitted_count": state.uncommitted_count,
        "uncommitted": uncommitted,
    }
    return {"dledger": fields}
