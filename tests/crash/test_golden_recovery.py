"""Stores that Java brokers left after a crash or damage: what we make of them, and what Java made.

The twin of an unclean or torn store is the same store after a Java broker had recovered it. Ours
must have the same queues, with the same units, and find the same messages by key; or more. Where
it differs, ``DIFFERENCES`` says how and why.
"""

from pathlib import Path

import pytest

import golden
from reput.clock import ManualClock
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


CASES = [(version, "unclean", "recovered") for version in golden.VERSIONS] + [
    (version, f"torn/{name}", f"torn/{name}-recovered")
    for version, name in golden.EACH_DAMAGE
    if name in golden.torn_recovered(version)
]

DIFFERENCES = {
    # D5: Java cuts the log at the damaged record, and all valid records behind it.
    "torn/crc-late-abort": {"more keys"},
    # known-bugs.md#lost-index-files: Java's index begins where its recovery did; entries of older
    # files are lost.
    "torn/no-index": {"more keys"},
    "torn/no-index-abort": {"more keys"},
    # known-bugs.md#undispatched-messages: Java dispatches from the file of the checkpoint's time
    # on; all before it is lost.
    "torn/no-cq-no-index-abort": {"more keys", "more units"},
    # Java leaves a queue whose only file has no unit any more, and the log none after the
    # checkpoint's time. We make it anew.
    "torn/cq-zeroed": {"more units"},
    # D1: Java goes on behind the units that are left, with units of later messages: 14 is there
    # what was 25. We make the queue anew.
    "torn/cq-zeroed-abort": {"more units", "other units"},
}
"""What we have and Java has not, by store."""


@pytest.mark.parametrize(("version", "name", "twin"), CASES)
def test_recovery_makes_what_java_makes_or_more(
    version: str, name: str, twin: str, tmp_path: Path
) -> None:
    root = golden.copy_store(version, name, tmp_path)
    open_store(root, version, "clean" if name.startswith("torn/") else name).close()
    java_root = golden.unpack(version, twin)
    # What Java's broker stored after its start (due delayed messages) is no matter of recovery.
    end = StoreReader.open(str(root)).end_offset
    if name.startswith("torn/"):
        end = min(end, *golden.torn_variants(version)[name.removeprefix("torn/")]["maxPhyOffset"])
    ours, java = units_of(root), units_of(java_root)
    missing, others = [], []
    for queue, units in java.items():
        for offset, unit in units.items():
            mine = ours.get(queue, {}).get(offset)
            if unit[0] < end and mine != unit:
                (missing if mine is None else others).append((*queue, offset))
    mine, theirs = found_by_unique_key(root), found_by_unique_key(java_root)
    more_units = any(units.keys() - java.get(queue, {}).keys() for queue, units in ours.items())
    assert missing == []
    assert [at for at in theirs - mine if at < end] == []
    differences = {
        "more units": more_units,
        "more keys": bool(mine - theirs),
        "other units": bool(others),
    }
    assert {what for what, is_so in differences.items() if is_so} == DIFFERENCES.get(name, set())
    if others:
        clean = units_of(golden.unpack(version, "clean"))
        assert all(ours[topic, q][at] == clean[topic, q][at] for topic, q, at in others)
