"""Stores that Java brokers left after a crash or damage: what we make of them, and what Java made.

The twin of an unclean or torn store is the same store after a Java broker had recovered it. Ours
must have the same queues, with the same units, and find the same messages by key; or more. Where
it differs, ``DIFFERENCES`` says how and why.
"""

from pathlib import Path
from typing import Any

import pytest

import golden
from reput.clock import ManualClock
from reput.errors import StoreUnavailable
from reput.store.config import StoreConfig
from reput.store.message_store import MessageStore
from reput.store.reader import StoreReader

pytestmark = [pytest.mark.crash, pytest.mark.interop, pytest.mark.slow]

NOW_MS = 1_900_000_000_000

Units = dict[tuple[str, int], dict[int, tuple[int, int]]]
"""Queue -> queue offset -> (physical offset, size)."""


def open_store(root: Path, version: str, name: str) -> MessageStore:
    sizes = golden.manifest(version, name)["config"]
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=int(sizes["mappedFileSizeCommitLog"]),
        mapped_file_size_consume_queue=int(sizes["mappedFileSizeConsumeQueue"]),
        max_hash_slot_num=int(sizes["maxHashSlotNum"]),
        max_index_num=int(sizes["maxIndexNum"]),
        max_message_size=int(sizes["maxMessageSize"]),
        message_delay_level=sizes["messageDelayLevel"],
        index_tags=version.startswith("5.5"),
    )
    return MessageStore.open(config=config, clock=ManualClock(NOW_MS))


def units_of(root: Path) -> Units:
    reader = StoreReader.open(str(root))
    found: Units = {}
    for queue in reader.queues():
        units: dict[int, tuple[int, int]] = {}
        for offset in range(queue.min_offset, queue.max_offset):
            unit = queue.unit(offset)
            if unit is not None and unit.is_written:
                units[offset] = (unit.physical_offset, unit.size)
        if units:
            found[queue.topic, queue.queue_id] = units
    return found


def found_by_unique_key(root: Path) -> set[int]:
    """Physical offsets of the messages that are found by their unique key."""
    reader = StoreReader.open(str(root))
    found = set()
    for one in reader.messages():
        key = one.properties.get("UNIQ_KEY")
        if key:
            hits = reader.messages_by_key(one.topic, key)
            found.update(hit.physical_offset for hit in hits.messages)
    return found


def compare(version: str, name: str, twin: str, into: Path) -> dict[str, Any]:
    """Recover a copy, and return in what it differs from its twin, by kind."""
    root = golden.copy_store(version, name, into)
    manifest = "clean" if name.startswith("torn/") else name
    open_store(root, version, manifest).close()
    java_root = golden.unpack(version, twin)
    reader = StoreReader.open(str(root))
    ours, java = units_of(root), units_of(java_root)
    end = reader.end_offset
    # What Java's broker stored after its start (due delayed messages) is no matter of recovery.
    differences: dict[str, Any] = {
        "lost units": [
            (*queue, offset)
            for queue, units in java.items()
            for offset, unit in units.items()
            if unit[0] < end and ours.get(queue, {}).get(offset) != unit
        ],
        "more units": [
            (*queue, offset)
            for queue, units in ours.items()
            for offset, unit in units.items()
            if java.get(queue, {}).get(offset) != unit
        ],
    }
    mine, theirs = found_by_unique_key(root), found_by_unique_key(java_root)
    differences["lost keys"] = sorted(at for at in theirs - mine if at < end)
    differences["more keys"] = sorted(mine - theirs)
    differences["log end"] = end - StoreReader.open(str(java_root)).end_offset
    return differences
