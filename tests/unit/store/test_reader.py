"""The reader of whole stores, compared with Java's reports about its own stores."""

import fcntl
import functools
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

import golden
import store_builder
from cases import each
from reput.errors import CorruptRecord, NotInStore, StoreUnavailable
from reput.format import (
    checkpoint_page,
    cq_unit,
    message as record,
    message_id,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.checkpoint_page import Checkpoint
from reput.format.message import StoredMessage, Verdict
from reput.store.files import paths
from reput.store.files.files import Bytes, LocalFolder
from reput.store.log.commit_log_view import Damage
from reput.store.reader import (
    END_OF_TIME_MS,
    Boundary,
    Condition,
    LogTail,
    StoreReader,
    belongs,
)
from store_builder import MemoryFolder, message

OPENED = [store for store in golden.STORES if store[1] != "unclean"]
TORN = [(version, f"torn/{variant}") for version, variant in golden.EACH_DAMAGE]
RECOVERED = [
    (version, f"torn/{variant}-recovered")
    for version, variant in golden.EACH_DAMAGE
    if variant in golden.torn_recovered(version)
]

JAVA_HITS_MAX = 64
"""``maxMsgsNumBatch``: the limit of hits of a lookup in Java."""

each_store = pytest.mark.parametrize(("version", "name"), golden.STORES)
each_opened_store = pytest.mark.parametrize(
    ("version", "name"), [store for store in OPENED if store in golden.EACH_STORE]
)
each_recovered_store = pytest.mark.parametrize(("version", "name"), RECOVERED)
each_damaged_store = pytest.mark.parametrize(("version", "name"), TORN + RECOVERED)
each_version = pytest.mark.parametrize("version", golden.VERSIONS)


@functools.lru_cache(4)  # each reader keeps files open
def reader_of(version: str, name: str) -> StoreReader:
    return StoreReader.open(str(golden.unpack(version, name)))


def damage_of(reader: StoreReader) -> list[Damage]:
    return [damage for batch in reader.walk() for damage in batch.damage]


def offsets_of(messages: list[StoredMessage] | Iterator[StoredMessage]) -> list[int]:
    return [stored.physical_offset for stored in messages]


# --- messages -------------------------------------------------------------


def as_manifest(stored: StoredMessage, version: str) -> dict[str, Any]:
    """Return a message as the manifest describes it."""

    def sha256(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    def text(host: record.Host) -> str:
        return str(host)

    properties = golden.known_properties(version, dict(stored.properties))
    return {
        "commitLogOffset": stored.physical_offset,
        "storeSize": stored.store_size,
        "queueId": stored.queue_id,
        "queueOffset": stored.queue_offset,
        "topic": stored.topic,
        "tags": stored.tags,
        "keys": stored.properties.get(props.KEYS),
        "uniqKey": stored.unique_key,
        "sysFlag": stored.sys_flag,
        "flag": stored.flag,
        "bornTimestamp": stored.born_timestamp,
        "storeTimestamp": stored.store_timestamp,
        "bornHost": text(stored.born_host),
        "storeHost": text(stored.store_host),
        "reconsumeTimes": stored.reconsume_times,
        "preparedTransactionOffset": stored.prepared_transaction_offset,
        "bodyCRC": stored.body_crc,
        "crcOk": True,
        "storedBodyLength": len(stored.body),
        "storedBodySha256": sha256(stored.body),
        "bodyLength": len(stored.plain_body()),
        "bodySha256": sha256(stored.plain_body()),
        "offsetMsgId": message_id.offset_id(stored),
        "properties": properties,
    }


@each_store
@pytest.mark.sampled(5)
def test_messages_are_those_of_java(version: str, name: str) -> None:
    expected = golden.messages(version, name)
    stored = list(reader_of(version, name).messages())
    assert len(stored) == len(expected) == golden.manifest(version, name)["log"]["records"]
    for actual, wanted in zip(stored, expected, strict=True):
        magic = record.MAGIC_V2 if actual.version == 2 else record.MAGIC_V1
        assert wanted.get("magic", record.MAGIC_V1) == magic
        assert as_manifest(actual, version) == {k: v for k, v in wanted.items() if k != "magic"}


@each(("version", "name"), golden.STORES)
def test_the_log_begins_and_ends_as_in_java(version: str, name: str) -> None:
    manifest = golden.manifest(version, name)
    reader = reader_of(version, name)
    assert reader.tail == LogTail(manifest["log"]["endOffset"])
    assert damage_of(reader) == []
    if manifest["opened"]:
        assert reader.log.min_offset == manifest["minPhyOffset"]
        assert reader.end_offset == manifest["maxPhyOffset"]


@each(("version", "name"), golden.STORES)
def test_how_the_broker_left_the_store(version: str, name: str) -> None:
    manifest = golden.manifest(version, name)
    state = reader_of(version, name).state
    has_abort = any(file["path"] == "abort" for file in manifest["files"])
    assert state.has_abort == has_abort == (name == "unclean")
    assert state.condition is (Condition.CRASHED if has_abort else Condition.CLEAN)
    assert state.lock_holder is None
    assert state.checkpoint_problem is None
    stored = manifest["checkpoint"]
    assert state.checkpoint == Checkpoint(
        physical_timestamp=stored["physicMsgTimestamp"],
        queue_timestamp=stored["logicsMsgTimestamp"],
        index_timestamp=stored["indexMsgTimestamp"],
        master_flushed_offset=stored.get("masterFlushedOffset", 0),
        confirmed_physical_offset=stored.get("confirmPhyOffset", 0),
        queue_physical_offset=stored.get("logicsPhysicalOffset", 0),
    )
    if stored["minTimestampIndex"] != stored["minTimestamp"]:
        assert state.checkpoint.min_timestamp == stored["minTimestamp"]


@each_store
@pytest.mark.sampled(5)
def test_log_files_and_their_records(version: str, name: str) -> None:
    manifest = golden.manifest(version, name)
    stored = golden.messages(version, name)
    states = list(reader_of(version, name).log_file_states())
    assert [(f"commitlog/{log_state.file.name}", log_state.file.size) for log_state in states] == [
        (file["path"], file["size"])
        for file in manifest["files"]
        if file["path"].startswith("commitlog/")
    ]
    for log_state in states:
        file = log_state.file
        inside = [m for m in stored if file.start <= m["commitLogOffset"] < file.nominal_end]
        if not inside:
            assert (log_state.first_offset, log_state.last_offset) == (None, None)
            assert (log_state.min_store_timestamp, log_state.max_store_timestamp) == (None, None)
            assert log_state.wasted_bytes == file.nominal_size
            continue
        first, last = inside[0], inside[-1]
        assert (log_state.first_offset, log_state.last_offset) == (
            first["commitLogOffset"],
            last["commitLogOffset"],
        )
        assert (log_state.min_store_timestamp, log_state.max_store_timestamp) == (
            first["storeTimestamp"],
            last["storeTimestamp"],
        )
        used = last["commitLogOffset"] + last["storeSize"]
        assert log_state.wasted_bytes == file.nominal_end - used


@each_version
def test_the_tables_through_the_reader(version: str) -> None:
    manifest = golden.manifest(version, "clean")
    reader = reader_of(version, "clean")
    assert set(reader.topics()) == set(manifest["topics"])
    assert len(reader.consumer_offsets()) == sum(map(len, manifest["consumerOffsets"].values()))
    offsets = {int(level): value for level, value in manifest["delayOffsets"].items()}
    assert reader.delay_offsets() == offsets
    assert set(reader.subscription_groups()) == set(manifest["subscriptionGroups"])
    ends = {
        queue["queueId"] + 1: queue["maxOffset"]
        for queue in manifest["queues"]
        if queue["topic"] == names.SCHEDULE_TOPIC
    }
    known = {level for level in ends if level in offsets or ends[level]} | set(offsets)
    assert reader.delay_progress() == [
        (level, offsets.get(level, 0), ends.get(level, 0)) for level in sorted(known)
    ]


# --- damaged stores, before and after Java's recovery ---------------------


def torn_entry(version: str, name: str) -> dict[str, Any]:
    variant = name.removeprefix("torn/").removesuffix("-recovered")
    return golden.torn_variants(version)[variant]


def number_in(text: str, pattern: str) -> int:
    match = re.search(pattern, text)
    assert match is not None, (text, pattern)
    return int(match[1])


def lost_records(version: str, name: str) -> list[dict[str, Any]]:
    """Return the records of ``clean`` that the described damage destroyed.

    Java's own recovery loses more: it cuts the log at the first bad record, in memory. On disk the
    records and units after the cut are unchanged, so this reader still returns them
    (known-bugs.md#recovery-truncates, known-bugs.md#stale-tail).
    """
    stored = golden.messages(version, "clean")
    text = torn_entry(version, name)["damage"]
    variant = name.removeprefix("torn/").removesuffix("-recovered")
    if variant == "cq-ahead":
        cut = number_in(text, r"Log cut at (\d+)")
        return [java for java in stored if java["commitLogOffset"] >= cut]
    if variant == "log-missing":
        start = number_in(text, r"Log file (\d+)")
        stop = start + int(golden.manifest(version, "clean")["config"]["mappedFileSizeCommitLog"])
        return [java for java in stored if start <= java["commitLogOffset"] < stop]
    if variant == "log-short":
        return stored[-1:]
    if variant in ("torn-tail", "torn-tail-noabort", "size-late") or variant.startswith("crc-"):
        physical_offset = number_in(text, r"record,? at (\d+)")
        (lost,) = (java for java in stored if java["commitLogOffset"] == physical_offset)
        return [lost]
    return []


def expected_damage(version: str, name: str) -> list[tuple[int, int, set[Verdict]]]:
    """Return (physical offset, end, possible verdicts) of each run of damage in a damaged store."""
    variant = name.removeprefix("torn/").removesuffix("-recovered")
    lost = lost_records(version, name)
    if variant == "log-missing":
        start = number_in(torn_entry(version, name)["damage"], r"Log file (\d+)")
        size = int(golden.manifest(version, "clean")["config"]["mappedFileSizeCommitLog"])
        return [(start, start + size, {Verdict.MISSING})]
    if not lost or variant == "cq-ahead" or name == "torn/torn-tail":
        return []
    (java,) = lost
    end = java["commitLogOffset"] + java["storeSize"]
    if variant.startswith("torn-tail"):
        half = java["commitLogOffset"] + number_in(
            torn_entry(version, name)["damage"], r"byte (\d+)"
        )
        lengths = {Verdict.BAD_LENGTH, Verdict.BAD_CRC}
        return [(java["commitLogOffset"], half, lengths), (half, end, {Verdict.BAD_ZEROS})]
    verdict = {
        "log-short": {Verdict.TRUNCATED},
        "size-late": {Verdict.BAD_LENGTH},
    }.get(variant, {Verdict.BAD_CRC})
    return [(java["commitLogOffset"], end, verdict)]


@each_damaged_store
@pytest.mark.sampled(5)
def test_messages_of_damaged_stores(version: str, name: str) -> None:
    """All undamaged messages are returned in order, with their content in ``clean``."""
    lost = {entry["commitLogOffset"] for entry in lost_records(version, name)}
    stored = golden.messages(version, "clean")
    expected = [entry for entry in stored if entry["commitLogOffset"] not in lost]
    actual = list(reader_of(version, name).messages())
    assert [
        (
            entry.physical_offset,
            entry.store_size,
            entry.topic,
            entry.queue_id,
            entry.queue_offset,
            entry.store_timestamp,
            entry.body_crc,
            message_id.offset_id(entry),
            golden.known_properties(version, dict(entry.properties)),
        )
        for entry in actual
    ] == [
        (
            entry["commitLogOffset"],
            entry["storeSize"],
            entry["topic"],
            entry["queueId"],
            entry["queueOffset"],
            entry["storeTimestamp"],
            entry["bodyCRC"],
            entry["offsetMsgId"],
            entry["properties"],
        )
        for entry in expected
    ]


@each_recovered_store
@pytest.mark.sampled(5)
def test_every_message_that_java_keeps_is_found(version: str, name: str) -> None:
    """Except messages with a wrong checksum, which Java does not check everywhere."""
    java = {entry["commitLogOffset"] for entry in golden.messages(version, name) if entry["crcOk"]}
    offsets = set(offsets_of(reader_of(version, name).messages()))
    assert java <= offsets
    manifest = golden.manifest(version, name)
    assert all(physical_offset >= manifest["maxPhyOffset"] for physical_offset in offsets - java)


@each(("version", "name"), TORN + RECOVERED)
def test_damage_is_where_it_was_done(version: str, name: str) -> None:
    reader = reader_of(version, name)
    runs = damage_of(reader)
    expected = expected_damage(version, name)
    assert [(run.physical_offset, run.end) for run in runs] == [
        (start, end) for start, end, _ in expected
    ]
    for run, (start, _, verdicts) in zip(runs, expected, strict=True):
        assert run.verdict in verdicts
        size = int(golden.manifest(version, "clean")["config"]["mappedFileSizeCommitLog"])
        assert run.file == paths.offset_name(start - start % size)
        assert run.file in str(run.error())
        assert record.REASONS[run.verdict] in str(run.error())


@each(("version", "name"), TORN + RECOVERED)
def test_the_end_of_damaged_logs(version: str, name: str) -> None:
    """After a crash the log ends before a torn last record; otherwise that record is damage."""
    clean_end = golden.manifest(version, "clean")["log"]["endOffset"]
    tail = reader_of(version, name).tail
    text = torn_entry(version, name)["damage"]
    if name == "torn/torn-tail":
        last = number_in(text, r"record, at (\d+)")
        assert tail.end_offset == last
        assert tail.torn is not None
        assert tail.torn.physical_offset == last
        assert last < tail.torn.end <= clean_end
    elif name.startswith("torn/garbage-tail"):
        assert tail.end_offset == clean_end
        garbage = tail.stale if name.endswith("recovered") else tail.torn
        assert garbage is not None
        assert garbage.physical_offset == clean_end
        assert garbage.length <= number_in(text, r"(\d+) random bytes")
        assert garbage.length > 390
    elif name.startswith("torn/cq-ahead"):
        assert tail == LogTail(number_in(text, r"Log cut at (\d+)"))
    else:
        assert tail == LogTail(clean_end)


@each_damaged_store
@pytest.mark.sampled(5)
def test_queues_of_damaged_stores(version: str, name: str) -> None:
    """On disk they are as Java left them, also where it cut in memory only (`queuesChanged`)."""
    entry = torn_entry(version, name)
    reader = reader_of(version, name)
    is_recovered = name.endswith("-recovered")
    manifest = golden.manifest(version, name if is_recovered else "clean")
    clean = {
        (java["topic"], java["queueId"]): java
        for java in golden.manifest(version, "clean")["queues"]
    }
    changed = {(java["topic"], java["queueId"]) for java in entry.get("queuesChanged", [])}
    variant = name.removeprefix("torn/").removesuffix("-recovered")
    min_offset = golden.manifest(version, "clean")["minPhyOffset"]
    assert reader.log.min_offset == min_offset
    for java in manifest["queues"]:
        where = (java["topic"], java["queueId"])
        queue = reader.queue(*where)
        units = java["units"]
        if not is_recovered and (variant.startswith("no-cq") or where in damaged_queues(entry)):
            continue
        assert queue.max_offset >= java["maxOffset"]
        numbers, rows = queue.units(java["minOffset"], java["maxOffset"])
        expected = [
            (number, unit)
            for number, unit in enumerate(units, java["minOffset"])
            if unit[1] not in (0, cq_unit.PRE_BLANK_SIZE)
        ]
        assert numbers.tolist() == [number for number, _ in expected]
        assert [list(unit) for unit in rows.tolist()] == [unit for _, unit in expected]
        if expected:
            assert queue.min_offset == expected[0][0]
        if where not in changed:
            assert queue.max_offset == java["maxOffset"]
        elif queue.max_offset > java["maxOffset"]:
            # After Java's cut the old units are unchanged.
            before = clean[where]
            assert queue.max_offset == before["maxOffset"]
            _, appended = queue.units(java["maxOffset"], queue.max_offset)
            assert [list(unit) for unit in appended.tolist()] == before["units"][
                java["maxOffset"] :
            ]


def damaged_queues(entry: dict[str, Any]) -> set[tuple[str, int]]:
    """Return the queues that a variant's description names as damaged."""
    matches = re.findall(r'\["([^"]+)", (\d+), \d+', entry["damage"])
    matches += re.findall(r"consume queue (\S+)/(\d+) cut", entry["damage"])
    return {(topic, int(queue_id)) for topic, queue_id in matches}


@each(("version", "name"), TORN)
def test_zeroed_and_truncated_queues(version: str, name: str) -> None:
    entry = torn_entry(version, name)
    reader = reader_of(version, name)
    if name in ("torn/cq-zeroed", "torn/cq-zeroed-abort"):
        zeroed = re.findall(r'\["([^"]+)", (\d+), (\d+), (\d+)\]', entry["damage"])
        assert len(zeroed) >= 5
        for topic, queue_id, first_zeroed, _ in zeroed:
            assert reader.queue(topic, int(queue_id)).max_offset == int(first_zeroed)
    if name == "torn/cq-ahead":
        ahead = re.findall(r'\["([^"]+)", (\d+), (\d+)\]', entry["damage"].split("ahead")[1])
        assert ahead
        for topic, queue_id, count in ahead:
            queue = reader.queue(topic, int(queue_id))
            for number in range(queue.max_offset - int(count), queue.max_offset):
                with pytest.raises(NotInStore):
                    reader.message_in_queue(topic, int(queue_id), number)
            reader.message_in_queue(topic, int(queue_id), queue.max_offset - int(count) - 1)
    if name.startswith("torn/no-cq"):
        assert reader.queue_ids == {}
        assert reader.queue_end is None
    if name == "torn/no-index":
        assert reader.index.files == []


@each(("version", "name"), TORN + RECOVERED)
def test_index_headers_of_damaged_stores(version: str, name: str) -> None:
    is_recovered = name.endswith("-recovered")
    if name.startswith(("torn/no-index", "torn/no-cq-no-index")) and not is_recovered:
        assert reader_of(version, name).index.files == []
        return
    manifest = golden.manifest(version, name if is_recovered else "clean")
    files = reader_of(version, name).index.files
    assert [file.name for file in files] == [entry["name"] for entry in manifest["index"]]
    slots = int(golden.manifest(version, "clean")["config"]["maxHashSlotNum"])
    for file, java in zip(files, manifest["index"], strict=True):
        header = file.header
        assert (header.begin_timestamp, header.end_timestamp) == (
            java["beginTimestamp"],
            java["endTimestamp"],
        )
        assert (header.begin_physical_offset, header.end_physical_offset) == (
            java["beginPhyOffset"],
            java["endPhyOffset"],
        )
        assert max(header.next_entry, 1) == max(java["indexCount"], 1)
        assert file.slot_count == (slots if header.entry_count else 0)


@each(("version", "name"), TORN)
def test_states_of_torn_stores(version: str, name: str) -> None:
    entry = torn_entry(version, name)
    state = reader_of(version, name).state
    assert state.has_abort == entry["abortFile"]
    assert state.condition is (Condition.CRASHED if entry["abortFile"] else Condition.CLEAN)
    is_there = not name.startswith("torn/no-checkpoint")
    assert (state.checkpoint is not None) == is_there


@pytest.mark.crash
@each_version
@pytest.mark.parametrize("variant", ["log-short", "cq-short", "log-empty-file"])
def test_files_of_wrong_length_are_errors_with_their_name(version: str, variant: str) -> None:
    """Files of wrong length are errors with the file's name, and the rest is read.

    Java 4.9.3 ignored such files and opened "fine" (rmq#3467); later versions do not start.
    """
    reader = reader_of(version, f"torn/{variant}")
    text = torn_entry(version, f"torn/{variant}")["damage"]
    if variant == "log-short":
        file = reader.log.files[-1]
        assert file.size == number_in(text, r"to (\d+) bytes") < file.nominal_size
        (damage,) = damage_of(reader)
        assert damage.file == file.name
        last = golden.messages(version, "clean")[-1]
        with pytest.raises(CorruptRecord, match=file.name):
            reader.message_at(last["commitLogOffset"])
        with pytest.raises(CorruptRecord, match=file.name):
            reader.message_in_queue(last["topic"], last["queueId"], last["queueOffset"])
    elif variant == "cq-short":
        ((topic, queue_id),) = damaged_queues({"damage": text})
        queue = reader.queue(topic, queue_id)
        assert queue.cut_file is not None
        assert queue.cut_file.size == number_in(text, r"to (\d+) bytes")
        with pytest.raises(CorruptRecord, match=queue.cut_file.name):
            queue.unit((queue.cut_file.start + queue.cut_file.size) // cq_unit.SIZE)
    else:
        file = reader.log.files[-1]
        assert (file.size, file.nominal_size) == (0, reader.log.files[0].size)
        assert damage_of(reader) == []


# --- lookups --------------------------------------------------------------


@each_opened_store
def test_messages_of_every_queue(version: str, name: str) -> None:
    """Light and batch queues too; a queue offset whose message has expired has no message."""
    manifest = golden.manifest(version, name)
    reader = reader_of(version, name)
    for queue in manifest["queues"]:
        where = (queue["topic"], queue["queueId"])
        if "batchUnits" in queue:
            for unit in queue["batchUnits"]:
                for i in range(unit["batchNum"]):
                    stored = reader.message_in_queue(*where, unit["queueOffset"] + i)
                    assert stored.physical_offset == unit["commitLogOffset"]
            continue
        for number, java in enumerate(queue["units"], queue["minOffset"]):
            offset, size, _ = java["unit"] if isinstance(java, dict) else java
            if size == cq_unit.PRE_BLANK_SIZE or offset < manifest["minPhyOffset"]:
                with pytest.raises(NotInStore):
                    reader.message_in_queue(*where, number)
                continue
            stored = reader.message_in_queue(*where, number)
            assert (stored.physical_offset, stored.store_size) == (offset, size)
        for outside in (-1, queue["maxOffset"], 1 << 40):
            with pytest.raises(NotInStore):
                reader.message_in_queue(*where, outside)


@pytest.mark.parametrize(
    ("version", "name"),
    OPENED + [store for store in RECOVERED if "index" in store[1] or "late" in store[1]],
)
@pytest.mark.sampled(5)
def test_keys_find_the_messages_that_java_finds(version: str, name: str) -> None:
    """The reader returns all hits, not the first 32, and filters Java's hits by text and time.

    See known-bugs.md#index-seconds and known-bugs.md#hash-collisions.
    """
    manifest = golden.manifest(version, name)
    stored = {entry["commitLogOffset"]: entry for entry in golden.messages(version, name)}
    reader = reader_of(version, name)
    for query in manifest["queries"]:
        begin, end = query["begin"], query["end"]
        hits = reader.messages_by_key(query["topic"], query["key"], begin, end)
        offsets = offsets_of(hits.messages)
        java = set()
        for physical_offset in query["messageOffsets"]:
            entry = stored.get(physical_offset)
            if entry is None or not entry["crcOk"] or entry["topic"] != query["topic"]:
                continue
            keys = [entry["uniqKey"], *(entry["keys"] or "").split(" ")]
            if query["key"] in keys and begin <= entry["storeTimestamp"] <= end:
                java.add(physical_offset)
        assert java <= set(offsets)
        assert offsets == sorted(offsets)
        places = [(hit.physical_offset, hit.queue_offset) for hit in hits.messages]
        assert len(set(places)) == len(places)
        for entry in hits.messages:
            assert entry.topic == query["topic"]
            assert query["key"] in [entry.unique_key, entry.batch_unique_key, *entry.keys]
            assert begin <= entry.store_timestamp <= end
        is_all = len(query["indexOffsets"]) < min(query["max"], JAVA_HITS_MAX)
        if is_all and begin == manifest["queries"][0]["begin"]:
            known = {physical_offset for physical_offset in offsets if physical_offset in stored}
            assert known == java


@pytest.mark.slow
@each_version
@pytest.mark.sampled(3)
def test_every_message_by_its_ids(version: str) -> None:
    stored = golden.messages(version, "clean")
    reader = reader_of(version, "clean")
    copies: dict[tuple[str, str], list[int]] = {}
    for java in stored:
        copies.setdefault((java["topic"], java["uniqKey"]), []).append(java["commitLogOffset"])
    for java in stored:
        hits = reader.messages_by_id(java["offsetMsgId"], java["topic"])
        assert offsets_of(hits) == [java["commitLogOffset"]]
        assert reader.messages_by_id(java["offsetMsgId"].lower(), java["topic"]) == hits
        if java["uniqKey"]:
            hits = reader.messages_by_id(java["uniqKey"], java["topic"])
            assert offsets_of(hits) == copies[java["topic"], java["uniqKey"]]


@each_version
def test_ids_without_a_topic_are_looked_up_in_all(version: str) -> None:
    stored = golden.messages(version, "clean")
    reader = reader_of(version, "clean")
    for java in stored[:: len(stored) // 12]:
        assert offsets_of(reader.messages_by_id(java["offsetMsgId"])) == [java["commitLogOffset"]]
        if java["uniqKey"]:
            same = {
                other["commitLogOffset"] for other in stored if other["uniqKey"] == java["uniqKey"]
            }
            assert set(offsets_of(reader.messages_by_id(java["uniqKey"]))) == same
    for unknown in ("", "x" * 32, "0" * 32, "F" * 56, "C0000202000055980000000000FFFFFF"):
        assert reader.messages_by_id(unknown) == []


@each_version
def test_an_id_with_another_host_finds_nothing(version: str) -> None:
    java = golden.messages(version, "clean")[7]
    other_id = "0A" + java["offsetMsgId"][2:]
    assert reader_of(version, "clean").messages_by_id(other_id, java["topic"]) == []


def by_time(
    times: list[int], first: int, timestamp_ms: int, boundary: Boundary
) -> int:  # the rule, applied to the queue's store times
    if boundary is Boundary.LOWER:
        return first + next((i for i, t in enumerate(times) if t >= timestamp_ms), len(times))
    return first + max((i for i, t in enumerate(times) if t <= timestamp_ms), default=0)


@each_opened_store
@pytest.mark.sampled(3)
def test_offset_by_time(version: str, name: str) -> None:
    """The first message at or after the time, the last at or before; 4.x returns "the nearest"."""
    manifest = golden.manifest(version, name)
    stored = {entry["commitLogOffset"]: entry for entry in golden.messages(version, name)}
    reader = reader_of(version, name)
    timestamps: dict[tuple[str, int], set[int]] = {}
    for entry in manifest["offsetByTime"]:
        timestamps.setdefault((entry["topic"], entry["queueId"]), set()).add(entry["timestamp"])
    for queue in manifest["queues"]:
        if "units" not in queue:
            continue
        where = (queue["topic"], queue["queueId"])
        units = [unit["unit"] if isinstance(unit, dict) else unit for unit in queue["units"]]
        times = [stored[offset]["storeTimestamp"] for offset, _, _ in units if offset in stored]
        first = queue["maxOffset"] - len(times)
        for timestamp in {
            *timestamps.get(where, ()),
            *times[:3],
            *times[-3:],
            -1,
            0,
            END_OF_TIME_MS,
        }:
            for boundary in Boundary:
                expected = by_time(times, first, timestamp, boundary)
                assert reader.offset_by_time(*where, timestamp, boundary) == expected


@pytest.mark.parametrize("name", [name for version, name in OPENED if version == "5.5.0"])
@pytest.mark.sampled(3)
def test_offset_by_time_is_that_of_java_5(name: str) -> None:
    """Batch queues too, where Java searches the batches."""
    reader = reader_of("5.5.0", name)
    for query in golden.manifest("5.5.0", name)["offsetByTime"][:: 1 if golden.IS_SOAK else 3]:
        where = (query["topic"], query["queueId"], query["timestamp"])
        assert reader.offset_by_time(*where, Boundary.LOWER) == query["lower"], query
        assert reader.offset_by_time(*where, Boundary.UPPER) == query["upper"], query
        assert reader.offset_by_time(*where) == query["lower"]


def test_equal_times_are_one_block_and_answers_are_clamped(tmp_path: Path) -> None:
    times = [100, 100, 100, 200, 300, 300, 500]
    start = store_builder.START_MS
    built = store_builder.build(
        tmp_path / "store",
        [message(store_timestamp=start + time_ms) for time_ms in times],
        queue_offsets={("TopicA", 0): 40},
    )
    reader = StoreReader.open(str(built.root))
    expected = {
        0: (40, 40),
        99: (40, 40),
        100: (40, 42),
        101: (43, 42),
        200: (43, 43),
        299: (44, 43),
        300: (44, 45),
        301: (46, 45),
        500: (46, 46),
        501: (47, 46),
        10_000: (47, 46),
    }
    for time_ms, (lower, upper) in expected.items():
        assert reader.offset_by_time("TopicA", 0, start + time_ms, Boundary.LOWER) == lower
        assert reader.offset_by_time("TopicA", 0, start + time_ms, Boundary.UPPER) == upper
    for boundary in Boundary:
        assert reader.offset_by_time("TopicA", 9, start, boundary) == 0


def test_with_damage_and_holes(tmp_path: Path) -> None:
    """An unreadable unit counts with the time of the one before; no lookup hangs or raises."""
    built = store_builder.build(
        tmp_path / "store",
        [message(body=bytes(i % 90), queue_id=0) for i in range(100)],
        queue_file_units=10,
    )
    whole = StoreReader.open(str(built.root))
    for number, damage in (
        (1, lambda path: path.unlink()),
        (2, lambda path: path.write_bytes(b"\xaa" * 4096)),
    ):
        damage(built.log_file(number))
    queue_file = built.queue_file("TopicA", 0, 7)
    built.queue_file("TopicA", 0, 4).unlink()
    data = bytearray(queue_file.read_bytes())
    data[40:60] = cq_unit.pack(cq_unit.Unit(-5, -1, 0))
    data[60:80] = cq_unit.pack(cq_unit.Unit(0, cq_unit.PRE_BLANK_SIZE, 0))
    queue_file.write_bytes(data)
    reader = StoreReader.open(str(built.root))
    lost = {
        stored.queue_offset
        for stored in built.messages
        if not any(stored.physical_offset == good.physical_offset for good in reader.messages())
    } | {*range(40, 50), 72, 73}
    for stored in built.messages:
        if stored.queue_offset in lost:
            continue
        lower = reader.offset_by_time("TopicA", 0, stored.store_timestamp, Boundary.LOWER)
        upper = reader.offset_by_time("TopicA", 0, stored.store_timestamp, Boundary.UPPER)
        assert lower == stored.queue_offset
        assert upper >= stored.queue_offset
        assert {*range(stored.queue_offset + 1, upper + 1)} <= lost
        assert whole.offset_by_time("TopicA", 0, stored.store_timestamp) == stored.queue_offset


@pytest.mark.soak
def test_the_search_skips_a_large_hole() -> None:
    """The search skips a missing log file of a million messages at once."""
    count = 300_000
    placed = store_builder.place([message(), message()], 4096)
    files = {
        f"commitlog/{start:020d}": bytes(data)
        for start, data in store_builder.log_files(placed, 4096).items()
    }
    far = 1 << 40
    last = replace(placed[0], physical_offset=far, queue_offset=count, store_timestamp=1 << 42)
    files[f"commitlog/{far:020d}"] = record.encode(last).ljust(4096, b"\0")
    units = [cq_unit.Unit(0, placed[0].store_size, 0)]
    units += [cq_unit.Unit(5000 + i, 100, 0) for i in range(1, count)]
    units += [cq_unit.Unit(far, last.store_size, 0)]
    files[f"consumequeue/TopicA/0/{0:020d}"] = b"".join(map(cq_unit.pack, units))
    folder = MemoryFolder(files)
    reads = 0
    whole = folder.read

    def read(path: str, start: int = 0, length: int | None = None) -> bytes:
        nonlocal reads
        reads += 1
        return whole(path, start, length)

    folder.read = read  # type: ignore[method-assign]
    reader = StoreReader(folder)
    middle = placed[0].store_timestamp + 1
    assert reader.offset_by_time("TopicA", 0, middle, Boundary.LOWER) == count
    assert reader.offset_by_time("TopicA", 0, middle, Boundary.UPPER) == count - 1
    assert reads < 5000


# --- light queues ---------------------------------------------------------


def test_a_light_queue_points_at_messages_that_name_it() -> None:
    reader = reader_of("5.5.0", "v5")
    first = reader.message_in_queue("%LMQ%first", 0, 1)
    assert first.topic == "GoldenOne-lmq"
    assert belongs(first, first.topic, first.queue_id, first.queue_offset)
    assert belongs(first, "%LMQ%first", 0, 1)
    assert belongs(first, "%LMQ%second-1", 0, 0)
    assert not belongs(first, "%LMQ%first", 0, 2)
    assert not belongs(first, "%LMQ%second-0", 0, 0)
    assert not belongs(first, "%LMQ%other", 0, 1)


# --- the end of the log ---------------------------------------------------


def rewritten(
    root: Path, *, same_sizes: bool, is_crashed: bool
) -> tuple[store_builder.Built, list[StoredMessage], int]:
    """Return a store that Java truncated at a message and continued, with old bytes after its end.

    Returns the store, the messages of the old tail that are still there, and the end of the log.
    """
    body = bytes(60)
    old = [message(body=body, keys=f"old-{i}") for i in range(30)]
    built = store_builder.build(root, old, log_file_bytes=8192)
    kept = built.messages[:20]
    later = kept[-1].store_timestamp + 60_000
    fresh = [
        message(
            body=body if same_sizes else bytes(33 + i),
            keys=f"new-{20 + i}",
            store_timestamp=later + i,
        )
        for i in range(4)
    ]
    whole = store_builder.place([*kept, *fresh], 8192)
    end = whole[-1].physical_offset + whole[-1].store_size
    (data,) = store_builder.log_files(built.messages, 8192).values()
    (new,) = store_builder.log_files(whole, 8192).values()
    data[:end] = new[:end]
    built.log_file().write_bytes(data)
    queue = store_builder.queue_files(whole, built.queue_file_units)["TopicA", 0]
    for file in (root / "consumequeue" / "TopicA" / "0").iterdir():
        file.unlink()
    for start, units in queue.items():
        (root / "consumequeue" / "TopicA" / "0" / f"{start:020d}").write_bytes(units)
    if is_crashed:
        (root / "abort").touch()
    stale = [stored for stored in built.messages if stored.physical_offset >= end]
    return replace(built, messages=whole), stale, end


@pytest.mark.crash
@pytest.mark.parametrize("is_crashed", [False, True])
def test_a_stale_tail_is_not_read(tmp_path: Path, is_crashed: bool) -> None:
    """Java cuts in memory only; whole old records follow the new end on disk (rmq#10666)."""
    built, stale, end = rewritten(tmp_path / "store", same_sizes=False, is_crashed=is_crashed)
    assert len(stale) >= 4
    reader = StoreReader.open(str(built.root))
    assert reader.end_offset == end
    assert list(reader.messages()) == built.messages
    assert damage_of(reader) == []
    assert reader.tail.torn is None
    assert reader.tail.stale is not None
    assert reader.tail.stale.physical_offset == end
    assert reader.tail.stale.end == reader.log.data_end
    for old in stale:
        with pytest.raises(NotInStore):
            reader.message_at(old.physical_offset)
    hits = reader.messages_by_key("TopicA", stale[0].keys[0])
    assert hits == ([], [])
    (state,) = reader.log_file_states()
    assert state.last_offset == built.messages[-1].physical_offset
    assert state.max_store_timestamp == built.messages[-1].store_timestamp


@pytest.mark.crash
def test_a_stale_tail_that_fits_exactly_is_read_as_in_java(tmp_path: Path) -> None:
    """Old records that follow the new ones without a seam look like new ones.

    A recovery of Java walks into them as well (rmq#10666), so its broker would serve them. The
    checkpoint and the queues have no more information; only poison at the cut would.
    """
    built, stale, end = rewritten(tmp_path / "store", same_sizes=True, is_crashed=False)
    reader = StoreReader.open(str(built.root))
    assert reader.queue_end == end
    assert list(reader.messages()) == built.messages + stale


@pytest.mark.crash
def test_damage_in_the_middle_does_not_end_a_crashed_log() -> None:
    """Newer records follow the damage, so the log continues (known-bugs.md#recovery-truncates)."""
    placed = store_builder.place(store_builder.messages(40), 4096)
    files = store_builder.log_files(placed, 4096)
    bad = next(
        stored for stored in placed if stored.physical_offset >= max(files) + 100 and stored.body
    )
    position = bad.physical_offset % 4096
    files[max(files)][position + record.POSITION_MAGIC] ^= 0xFF
    named = {f"commitlog/{start:020d}": data for start, data in files.items()}
    reader = StoreReader(MemoryFolder({**named, "abort": b""}))
    assert reader.state.condition is Condition.CRASHED
    assert list(reader.messages()) == [stored for stored in placed if stored != bad]
    (damage,) = damage_of(reader)
    assert (damage.physical_offset, damage.length) == (bad.physical_offset, bad.store_size)
    assert reader.tail == LogTail(placed[-1].physical_offset + placed[-1].store_size)


@pytest.mark.parametrize("has_next_file", [False, True])
@pytest.mark.parametrize("is_crashed", [False, True])
def test_an_empty_store(tmp_path: Path, is_crashed: bool, has_next_file: bool) -> None:
    for start in (0, 8192):
        root = tmp_path / f"store{start}"
        built = store_builder.build(
            root,
            [],
            physical_offset=start,
            is_crashed=is_crashed,
            has_next_file=has_next_file,
        )
        (root / "commitlog").mkdir(exist_ok=True)
        for allow_live in (False, True):
            reader = StoreReader.open(str(built.root), allow_live=allow_live)
            assert list(reader.messages()) == []
            assert reader.tail == LogTail(start if has_next_file else 0)
            assert damage_of(reader) == []
            assert reader.queue_ids == {}
            assert reader.messages_by_id("0" * 32) == []
            assert reader.messages_by_key("T", "k") == ([], [])
            assert reader.offset_by_time("T", 0, 5) == 0
            with pytest.raises(NotInStore):
                reader.message_at(start)
            with pytest.raises(NotInStore):
                reader.message_in_queue("T", 0, 0)
            assert [log_state.first_offset for log_state in reader.log_file_states()] == [
                None
            ] * has_next_file


def test_expired_messages_are_no_damage() -> None:
    for version in golden.VERSIONS:
        reader = reader_of(version, "expired")
        assert reader.log.min_offset > 0
        for start in (0, 5, reader.log.min_offset - 1):
            batches = list(reader.walk(start))
            assert [run for batch in batches for run in batch.damage] == []
            count = sum(len(batch.positions) for batch in batches)
            assert count == golden.manifest(version, "expired")["log"]["records"]


def test_parts_of_the_log(tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(40))
    reader = StoreReader.open(str(built.root))
    for i in (0, 1, 17, 39):
        for j in (0, 18, 39):
            low, high = built.messages[i].physical_offset, built.messages[j].physical_offset
            assert list(reader.messages(low, high)) == built.messages[i:j]
        assert list(reader.messages(built.messages[i].physical_offset)) == built.messages[i:]
    assert list(reader.messages(stop=1 << 62)) == built.messages
    assert list(reader.messages(1 << 62)) == []


# --- D18: reading changes nothing -----------------------------------------


def fingerprint(root: Path) -> dict[str, tuple[int, int, int, str]]:
    """Return mode, size, times of change and content of every file and folder."""
    states = {}
    for path in [root, *sorted(root.rglob("*"))]:
        state = path.stat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        size = state.st_size if path.is_file() else 0
        states[str(path)] = (state.st_mode, size, state.st_mtime_ns, content)
    return states


def read_everything(reader: StoreReader) -> None:
    """Call every public query, also for things that do not exist."""
    for stored in reader.messages():
        last = stored
    list(reader.walk())
    for queue in reader.queues():
        queue.units(queue.min_offset, queue.max_offset)
        reader.offset_by_time(queue.topic, queue.queue_id, 1)
        reader.extension(queue.topic, queue.queue_id)
    reader.queue("NoSuchTopic", 5).max_offset  # noqa: B018 - asks
    reader.batch_queue("NoSuchTopic", 5).max_offset  # noqa: B018
    reader.messages_by_id("0" * 32)
    reader.messages_by_key("NoSuchTopic", "key")
    reader.messages_by_key(last.topic, last.unique_key or "")
    list(reader.log_file_states())
    reader.topics(), reader.consumer_offsets(), reader.delay_progress()
    reader.subscription_groups(), reader.broker_name()
    for ask in (
        lambda: reader.message_in_queue("NoSuchTopic", 5, 0),
        lambda: reader.message_at(1 << 60),
    ):
        with pytest.raises(NotInStore):
            ask()


@pytest.mark.parametrize(
    ("version", "name"),
    [
        *((version, "clean") for version in golden.VERSIONS),
        ("5.5.0", "v5"),
        ("4.9.7", "unclean"),
        ("4.9.7", "torn/no-cq-no-index-abort"),
        ("4.5.2", "torn/log-short"),
        ("5.5.0", "torn/garbage-tail"),
    ],
)
@pytest.mark.sampled(4)
def test_reading_changes_and_creates_nothing(
    golden_copy: Callable[[str, str], Path], version: str, name: str
) -> None:
    root = golden_copy(version, name)
    before = fingerprint(root.parent)
    for allow_live in (False, True):
        read_everything(StoreReader.open(str(root), allow_live=allow_live))
    assert fingerprint(root.parent) == before


def test_a_read_only_store_can_be_read() -> None:
    """Root, which may write everywhere, becomes another user, after everything is imported."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        root = golden.copy_store("4.9.7", "clean", Path(name))
        read_everything(StoreReader.open(str(root)))
        for path in (Path(name), *Path(name).rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        if user == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(PermissionError):
                (root / "new").touch()
            read_everything(StoreReader.open(str(root)))
        finally:
            os.seteuid(user)
            for path in (Path(name), *Path(name).rglob("*")):
                if path.is_dir():
                    path.chmod(0o755)


# --- properties, and errors -------------------------------------------------------------


@pytest.mark.parametrize("last", [b"", b"\x02"])
def test_property_strings_with_and_without_the_last_separator(tmp_path: Path, last: bytes) -> None:
    """4.9 writes none, 4.5 and 5.x write one; tags and keys are the same (rmq#3476)."""
    stored = b"KEYS\x01k1 k2\x02TAGS\x01TagA\x02UNIQ_KEY\x01id" + last
    built = store_builder.build(
        tmp_path / "store",
        [
            message(keys="k1 k2", tags="TagA", unique_key="id", property_bytes=stored),
            message(keys="k2"),
        ],
    )
    reader = StoreReader.open(str(built.root))
    read = next(reader.messages())
    assert read.property_bytes == stored
    assert (read.tags, read.keys, read.unique_key) == ("TagA", ["k1", "k2"], "id")
    assert reader.messages_by_key("TopicA", "k1").messages == [read]
    assert reader.messages_by_id("id", "TopicA") == [read]
    columns = next(iter(reader.walk())).columns()
    assert [int(code) for code in columns.tags_codes()] == [cq_unit.tags_code("TagA"), 0]


@each_version
def test_java_wrote_both_kinds(version: str) -> None:
    ends = {
        stored.property_bytes[-1:] == b"\x02" for stored in reader_of(version, "clean").messages()
    }
    assert ends == {version != "4.9.7"}


def test_properties_come_from_property_bytes_only(tmp_path: Path) -> None:
    """Here topic and body both look like property strings (rust#2872)."""
    text = "TAGS\x01WRONG\x02KEYS\x01wrong\x02"
    built = store_builder.build(
        tmp_path / "store",
        [
            message("TAGS\x01TOPIC\x02", text.encode(), tags="right", keys="key"),
            message("KEYS\x01TOPIC\x02", text.encode()),
        ],
    )
    first, second = StoreReader.open(str(built.root)).messages()
    assert first.properties == {"TAGS": "right", "KEYS": "key"}
    assert second.properties == {}
    assert second.tags is None
    columns = next(iter(StoreReader.open(str(built.root)).walk())).columns()
    assert [int(code) for code in columns.tags_codes()] == [cq_unit.tags_code("right"), 0]


@pytest.fixture
def built(tmp_path: Path) -> store_builder.Built:
    return store_builder.build(tmp_path / "store", store_builder.messages(40))


def test_a_truncated_checkpoint_is_reported_and_blocks_nothing(built: store_builder.Built) -> None:
    path = built.root / "checkpoint"
    whole = path.read_bytes()
    for length in range(49):
        path.write_bytes(whole[:length])
        reader = StoreReader.open(str(built.root))
        state = reader.state
        if length in (0, 48):
            assert state.checkpoint_problem is None
        else:
            assert state.checkpoint is None
            assert state.checkpoint_problem is not None
            assert state.checkpoint_problem.file == "checkpoint"
        assert reader.end_offset == built.end_offset
    assert list(reader.messages()) == built.messages
    assert checkpoint_page.unpack(whole) == state.checkpoint


# --- opening stores -------------------------------------------------------


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="does not exist"):
        StoreReader.open(str(tmp_path / "nothing"))
    with pytest.raises(StoreUnavailable, match="it has no folder commitlog"):
        StoreReader.open(str(tmp_path))
    (tmp_path / "commitlog").write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="it has no folder commitlog"):
        StoreReader.open(str(tmp_path))
    with pytest.raises(StoreUnavailable, match="is a file"):
        StoreReader.open(str(tmp_path / "commitlog"))


@pytest.mark.parametrize("topic", ["", "x" * 300, "nul\0", "a/b", "..", "\ud800", "%RETRY%x"])
def test_unknown_topics(built: store_builder.Built, topic: str) -> None:
    reader = StoreReader.open(str(built.root))
    assert reader.queue(topic, 0).max_offset == 0
    assert reader.messages_by_key(topic, "shared") == ([], [])
    with pytest.raises(NotInStore):
        reader.message_in_queue(topic, 0, 0)


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "file://localhost{}"])
def test_a_store_by_path_and_uri(built: store_builder.Built, form: str) -> None:
    location = form.format(built.root)
    reader = StoreReader.open(location)
    assert reader.location == location
    assert list(reader.messages()) == built.messages


class _Remote:
    """``pyarrow.fs.FileSystem`` that reads PATH of this machine for ``s3://bucket/PATH``."""

    @staticmethod
    def from_uri(uri: str) -> tuple[Any, str]:
        return pyarrow.fs.LocalFileSystem(), uri.removeprefix("s3://bucket")


@pytest.mark.parametrize(
    ("version", "name"),
    [("4.9.7", "clean"), ("5.5.0", "v5"), ("4.5.2", "unclean"), ("4.9.7", "torn/size-late")],
)
@pytest.mark.sampled(2)
def test_a_remote_store_gives_the_same_answers(
    monkeypatch: pytest.MonkeyPatch, version: str, name: str
) -> None:
    monkeypatch.setattr(pyarrow.fs, "FileSystem", _Remote)
    local = reader_of(version, name)
    for window_bytes in (None, 1000):
        remote = StoreReader.open(f"s3://bucket{golden.unpack(version, name)}")
        if window_bytes:
            remote.folder.window_bytes = window_bytes
        assert list(remote.messages()) == list(local.messages())
        assert damage_of(remote) == damage_of(local)
        assert remote.tail == local.tail
        assert remote.queue_ids == local.queue_ids
        assert remote.topics() == local.topics()
        assert list(remote.log_file_states()) == list(local.log_file_states())
        for queue, wanted in zip(remote.queues(), local.queues(), strict=True):
            assert (queue.min_offset, queue.max_offset) == (wanted.min_offset, wanted.max_offset)
        for stored in list(local.messages())[::50]:
            key = stored.unique_key or ""
            assert remote.messages_by_key(stored.topic, key) == local.messages_by_key(
                stored.topic, key
            )
        assert remote.state == local.state


# --- beside a broker ------------------------------------------------------


@pytest.fixture
def running(built: store_builder.Built) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that holds the store's lock as a broker does."""
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    (built.root / "abort").touch()
    command = [sys.executable, "-c", code, str(built.root / "lock")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.stdin.close()


def test_a_store_in_use_is_refused_with_the_process(
    built: store_builder.Built, running: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(StoreUnavailable, match=rf"in use by process {running.pid};.*allowLive"):
        StoreReader.open(str(built.root))


def test_a_store_in_use_can_be_read_where_that_is_allowed(
    built: store_builder.Built, running: subprocess.Popen[bytes]
) -> None:
    reader = StoreReader.open(str(built.root), allow_live=True)
    assert reader.state.condition is Condition.RUNNING
    assert reader.state.lock_holder == running.pid
    assert reader.is_live
    assert list(reader.messages()) == built.messages


def test_a_lock_of_this_process_is_no_other_broker(built: store_builder.Built) -> None:
    with (built.root / "lock").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
        assert StoreReader.open(str(built.root)).state.condition is Condition.CLEAN


def live_reader(files: dict[str, Any]) -> StoreReader:
    folder = MemoryFolder({**files, "abort": b""})
    folder.holder = 4711
    return StoreReader(folder, allow_live=True)


def test_a_live_log_ends_with_the_last_record_that_is_certainly_whole() -> None:
    """The very last record may be half written: it counts once a unit or a record follows it."""
    placed = store_builder.place(store_builder.messages(20), 4096)
    files = store_builder.log_files(placed, 4096)
    named: dict[str, Any] = {f"commitlog/{start:020d}": data for start, data in files.items()}
    assert list(live_reader(named).messages()) == placed[:-1]
    queues = {
        f"consumequeue/{topic}/{queue_id}/{start:020d}": data
        for (topic, queue_id), parts in store_builder.queue_files(placed, 20).items()
        for start, data in parts.items()
    }
    assert list(live_reader({**named, **queues}).messages()) == placed
    end = placed[-1].physical_offset + placed[-1].store_size
    files[max(files)][end - max(files)] = 1
    assert list(live_reader(named).messages()) == placed
    assert live_reader(named).tail == LogTail(end)


@pytest.mark.parametrize("order", ["naive", "size last", "backwards"])
@pytest.mark.parametrize("with_queues", [False, True])
@pytest.mark.sampled(3)
def test_a_reader_beside_a_writer_sees_whole_records_only(order: str, with_queues: bool) -> None:
    """At every step of eight bytes the reader returns a prefix of the sent messages."""
    sent = store_builder.place(store_builder.messages(14), 2048)
    whole = store_builder.log_files(sent, 2048)
    files = {start: bytearray(2048) for start in [*whole, max(whole) + 2048]}
    named: dict[str, Any] = {f"commitlog/{start:020d}": data for start, data in files.items()}
    seen = 0
    for i, written in enumerate(sent):
        start = written.physical_offset - written.physical_offset % 2048
        before = sent[i - 1] if i else None
        if before is not None and before.physical_offset < start:
            appended = before.physical_offset + before.store_size - (start - 2048)
            files[start - 2048][appended : appended + 8] = whole[start - 2048][
                appended : appended + 8
            ]
        data = record.encode(written)
        position = written.physical_offset - start
        steps = [(low, min(low + 8, len(data))) for low in range(0, len(data), 8)]
        if order == "size last":
            steps = [*((low, high) for low, high in steps if low), (4, 8), (0, 4)]
        if order == "backwards":
            steps.reverse()
        for low, high in steps:
            files[start][position + low : position + high] = data[low:high]
            reader = live_reader(named)
            read = list(reader.messages())
            assert read == sent[: len(read)]
            assert i - 1 <= len(read) <= i + 1
            assert len(read) >= seen or not with_queues
            assert damage_of(reader) == []
            assert (reader.tail.torn, reader.tail.stale) == (None, None)
            seen = len(read)
        if with_queues:
            for (topic, queue_id), parts in store_builder.queue_files(sent[: i + 1], 20).items():
                for first, units in parts.items():
                    named[f"consumequeue/{topic}/{queue_id}/{first:020d}"] = units
            assert list(live_reader(named).messages()) == sent[: i + 1]


WRITER = """
import mmap, pathlib, sys, time

root, order = pathlib.Path(sys.argv[1]), sys.argv[2]
files = {}
for path in (root / "store/commitlog").iterdir():
    with path.open("r+b") as file:
        written = mmap.mmap(file.fileno(), 0)
    files[int(path.name)] = (root / path.name).read_bytes(), written
print("ready", flush=True)
end = 0
for line in (root / "places").read_text().split("\\n"):
    offset, size = map(int, line.split())
    start = offset - offset % 65536
    if end < start:  # the blank
        whole, written = files[start - 65536]
        place = end - start + 65536
        written[place : place + 8] = whole[place : place + 8]
    whole, written = files[start]
    at = offset - start
    for low in range(at + 4 * (order == "size last"), at + size, 64):
        high = min(low + 64, at + size)
        written[low:high] = whole[low:high]
    written[at : at + 4] = whole[at : at + 4]
    end = offset + size
    time.sleep(0.002)
"""


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("order", ["naive", "size last"])
def test_a_reader_beside_a_writing_process(tmp_path: Path, order: str) -> None:
    """Another process writes records into a real mapped file."""
    sent = store_builder.place(
        [message(body=bytes([i % 251]) * (i % 900), keys=f"k{i}") for i in range(400)], 65536
    )
    root = store_builder.build(tmp_path / "store", [], is_crashed=True).root
    (root / "commitlog").mkdir()
    for start, data in store_builder.log_files(sent, 65536).items():
        (root / "commitlog" / f"{start:020d}").write_bytes(bytes(65536))
        (tmp_path / f"{start:020d}").write_bytes(data)
    (tmp_path / "places").write_text(
        "\n".join(f"{written.physical_offset} {written.store_size}" for written in sent)
    )
    command = [sys.executable, "-c", WRITER, str(tmp_path), order]
    seen = -1
    rounds = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        is_done = False
        while not is_done:
            is_done = writer.poll() is not None
            reader = StoreReader.open(str(root), allow_live=True)
            visible = list(reader.messages())
            assert visible == sent[: len(visible)]
            assert len(visible) >= seen
            assert damage_of(reader) == []
            seen = len(visible)
            rounds += 1
    assert writer.returncode == 0
    assert seen == len(sent) - 1, "nothing says that the last one is whole"
    assert rounds > 5
    assert list(StoreReader.open(str(root)).messages()) == sent


# --- the builder ----------------------------------------------------------


@each_version
def test_the_builder_writes_the_log_of_java(version: str) -> None:
    """After a blank 4.5 leaves old bytes of its buffer; everything else is equal."""
    config = golden.manifest(version, "clean")["config"]
    file_bytes = int(config["mappedFileSizeCommitLog"])
    messages = list(reader_of(version, "clean").messages())
    built = store_builder.log_files(messages, file_bytes)
    blanks = {
        blank["commitLogOffset"] - blank["commitLogOffset"] % file_bytes: blank["commitLogOffset"]
        for blank in golden.manifest(version, "clean")["log"]["blanks"]
    }
    stored = golden.log_files(golden.unpack(version, "clean"))
    assert len(built) == len(stored)
    for path in stored:
        start = int(path.name)
        end = blanks[start] % file_bytes + 8 if start in blanks else file_bytes
        assert path.read_bytes()[:end] == bytes(built[start][:end])


def test_a_built_store_has_the_messages_put_into_it(tmp_path: Path) -> None:
    sent = [
        *store_builder.messages(60, topics=3, queues=2),
        message("t" * 127),
        message("%RETRY%" + "l" * 200, b"long topic: V2"),
        message("V6", born_host=store_builder.HOST_V6, store_host=store_builder.HOST_V6),
        message("V6", born_host=store_builder.HOST_V6),
        message("Half", sys_flag=flags.TRANSACTION_PREPARED, keys="half"),
        message("Half", sys_flag=flags.TRANSACTION_ROLLBACK, keys="half"),
        message("Half", sys_flag=flags.TRANSACTION_COMMIT, keys="half"),
        message("Empty", b""),
    ]
    for i, record_crc in enumerate((False, True)):
        built = store_builder.build(
            tmp_path / str(i),
            sent,
            record_crc=record_crc,
            physical_offset=8192,
            queue_offsets={("TopicA", 0): 27},
            has_next_file=True,
        )
        reader = StoreReader.open(str(built.root))
        assert list(reader.messages()) == built.messages
        assert damage_of(reader) == []
        assert reader.tail == LogTail(built.end_offset)
        assert [stored.body for stored in built.messages] == [stored.body for stored in sent]
        assert [stored.topic for stored in built.messages] == [stored.topic for stored in sent]
        assert {stored.version for stored in built.messages} == {1, 2}
        for stored in built.messages:
            assert reader.messages_by_id(message_id.offset_id(stored), stored.topic) == [stored]
            if flags.is_queued(stored.sys_flag):
                actual = reader.message_in_queue(stored.topic, stored.queue_id, stored.queue_offset)
                assert actual == stored
            for key in stored.keys:
                hits = reader.messages_by_key(stored.topic, key).messages
                is_indexed = stored.sys_flag & flags.TRANSACTION_MASK != flags.TRANSACTION_ROLLBACK
                assert (stored in hits) == is_indexed
        assert reader.queue("TopicA", 0).min_offset == 27
        assert reader.queue("Half", 0).max_offset == 1
        crc_properties = [props.CRC32 in stored.properties for stored in built.messages]
        assert crc_properties == [record_crc] * len(sent)


class FarFolder(LocalFolder):
    """A folder whose first two reads of queues return only when both have begun."""

    reads_at_once = 4

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), root)
        self._both = threading.Barrier(2, timeout=60)
        self._early = iter(range(2))
        self.queue_reads = 0

    def read(self, path: str, start: int = 0, length: int | None = None) -> Bytes:
        if path.startswith(paths.CONSUME_QUEUE):
            self.queue_reads += 1
            if next(self._early, None) is not None:
                self._both.wait()
        return super().read(path, start, length)


def test_remote_queues_are_read_concurrently() -> None:
    version, name = "4.9.7", "clean"
    folder = FarFolder(golden.unpack(version, name))
    reader = StoreReader(folder)
    manifest = golden.manifest(version, name)
    assert reader.end_offset == manifest["maxPhyOffset"]
    reader.load_min_offsets(
        reader.queue(queue["topic"], queue["queueId"]) for queue in manifest["queues"]
    )
    reads = folder.queue_reads
    for java in manifest["queues"]:
        view = reader.queue(java["topic"], java["queueId"])
        assert (view.min_offset, view.max_offset) == (java["minOffset"], java["maxOffset"])
        assert (view.end_physical_offset is None) == (view.min_offset == view.max_offset)
    assert folder.queue_reads == reads > 2, "what was learned is kept"
