"""Stores that Java brokers left after a crash or damage: our recovery compared with Java's.

The counterpart of an unclean or torn store is the same store after the recovery of a Java broker.
Ours must have the same queues, with the same units, and find the same messages by key; or more.
``DIFFERENCES`` lists the differences and their reasons.
"""

from pathlib import Path

import pytest

import golden
import seeds
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
    units_by_queue: Units = {}
    for queue in reader.queues():
        units: dict[int, tuple[int, int]] = {}
        for offset in range(queue.min_offset, queue.max_offset):
            unit = queue.unit(offset)
            if unit is not None and unit.is_written:
                units[offset] = (unit.physical_offset, unit.size)
        if units:
            units_by_queue[queue.topic, queue.queue_id] = units
    return units_by_queue


def found_by_unique_key(root: Path, every: int) -> set[int]:
    """Return physical offsets of the messages that are found by their unique key.

    Args:
        root: Folder of the store.
        every: Number of days in which each key is looked up once.
    """
    reader = StoreReader.open(str(root))
    offsets = set()
    for message in reader.messages():
        key = message.properties.get("UNIQ_KEY")
        if key and (sum(key.encode()) + seeds.today()) % every == 0:
            hits = reader.messages_by_key(message.topic, key)
            offsets.update(hit.physical_offset for hit in hits.messages)
    return offsets


CASES = [(version, "unclean", "recovered") for version in golden.VERSIONS] + [
    (version, f"torn/{name}", f"torn/{name}-recovered")
    for version, name in golden.EACH_DAMAGE
    if name in golden.torn_recovered(version)
]

DIFFERENCES = {
    # D5: Java cuts the log at the damaged record, and loses all valid records after it.
    "torn/crc-late-abort": {"more keys"},
    # known-bugs.md#lost-index-files: Java's index begins where its recovery did; entries of older
    # files are lost.
    "torn/no-index": {"more keys"},
    "torn/no-index-abort": {"more keys"},
    # known-bugs.md#undispatched-messages: Java dispatches from the file of the checkpoint's time;
    # earlier messages are lost.
    "torn/no-cq-no-index-abort": {"more keys", "more units"},
    # Java keeps a queue whose only file has no unit left, although the log has messages from before
    # the checkpoint's time. We rebuild the queue.
    "torn/cq-zeroed": {"more units"},
    # D1: Java appends units of later messages to the remaining ones: unit 14 points at the message
    # that was 25. We rebuild the queue.
    "torn/cq-zeroed-abort": {"more units", "other units"},
}
"""Units and messages that we have and Java lost, by store."""


@pytest.mark.parametrize(("version", "name", "java_name"), CASES)
@pytest.mark.sampled(4)
def test_recovery_restores_at_least_what_java_restores(
    version: str, name: str, java_name: str, tmp_path: Path
) -> None:
    root = golden.copy_store(version, name, tmp_path)
    open_store(root, version, "clean" if name.startswith("torn/") else name).close()
    java_root = golden.unpack(version, java_name)
    # Due delayed messages that Java's broker stored after its start are no part of recovery.
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
    every = 5 if name == "unclean" and not golden.IS_SOAK else 1  # these are large
    mine, theirs = found_by_unique_key(root, every), found_by_unique_key(java_root, every)
    more_units = any(units.keys() - java.get(queue, {}).keys() for queue, units in ours.items())
    assert missing == []
    assert [queue_offset for queue_offset in theirs - mine if queue_offset < end] == []
    differences = {
        "more units": more_units,
        "more keys": bool(mine - theirs),
        "other units": bool(others),
    }
    assert {what for what, is_so in differences.items() if is_so} == DIFFERENCES.get(name, set())
    if others:
        clean = units_of(golden.unpack(version, "clean"))
        assert all(
            ours[topic, q][queue_offset] == clean[topic, q][queue_offset]
            for topic, q, queue_offset in others
        )
