"""Stores of ``data/dledger``: written and described by official brokers and clients.

``tests/data/dledger/README.md`` describes them. Physical offsets of a manifest are those of the
running broker.
"""

import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import zstandard

DATA = Path(__file__).parent / "data" / "dledger"
STORES = sorted(
    (archive.parent.name, archive.name.removesuffix(".tar.zst"))
    for archive in DATA.glob("*/*.tar.zst")
)
"""Every store, as (version, name)."""
IN_LEDGER = [store for store in STORES if store[1] != "rocksdb"]
_MOVED = ("physical_offset", "offset_msg_id", "prepared_transaction_offset")
_OF_PULLS = ("MIN_OFFSET", "MAX_OFFSET")
"""Properties that a client adds to what it has pulled."""
_REFERENCES = ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")


def unpack(version: str, name: str, into: Path) -> Path:
    """Return the root of a store's copy, with files in their full sizes."""
    packed = (DATA / version / f"{name}.tar.zst").read_bytes()
    data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=1 << 26)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(into, filter="data")
    for path, size in manifest(version, name)["sizes"].items():
        os.truncate(into / path, size)
    return into / "store"


def manifest(version: str, name: str) -> dict[str, Any]:
    """Return what the official clients saw."""
    text = gzip.decompress((DATA / version / f"{name}.json.gz").read_bytes())
    described: dict[str, Any] = json.loads(text)
    return described


def messages(described: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return messages by queue and queue offset, with references as such places.

    What has moved is compared by what it points to.
    """
    places = {
        message["physical_offset"]: (queue, message["queue_offset"])
        for queue, entry in described["queues"].items()
        for message in entry["messages"]
    }
    named: dict[tuple[str, int], dict[str, Any]] = {}
    for queue, entry in described["queues"].items():
        for message in entry["messages"]:
            fields = {name: value for name, value in message.items() if name not in _MOVED}
            if message["msg_id"] == message["offset_msg_id"]:
                del fields["msg_id"]  # it has no other id
            half = message["prepared_transaction_offset"]
            fields["prepared"] = places.get(half) if half else None
            fields["properties"] = {
                name: places.get(int(value[-16:], 16)) if name in _REFERENCES else value
                for name, value in message["properties"].items()
                if name not in _OF_PULLS
            }
            named[queue, message["queue_offset"]] = fields
    return named


def file(version: str, name: str, path: str) -> bytes:
    """Return the bytes of a store's file, without the zeros at its end."""
    packed = (DATA / version / f"{name}.tar.zst").read_bytes()
    data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=1 << 26)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.extractfile(f"store/{path}")
        assert member is not None
        return member.read()
