"""Index files: headers, chains and hashes of the golden stores, and Java's answers to queries."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

import golden
from cases import each
from reput.errors import CorruptRecord
from reput.format import index_entry, java
from reput.format.index_entry import Entry, Header

OPENED = golden.OPENED + [
    (version, f"torn/{variant}-recovered")
    for version in golden.VERSIONS
    for variant in golden.torn_recovered(version)
]

# --- reading an index file by hand ----------------------------------------


class IndexFile:
    """An index file and the number of its slots."""

    def __init__(self, name: str, data: bytes, slot_count: int) -> None:
        self.name = name
        self.data = data
        self.slot_count = slot_count
        self.header = index_entry.unpack_header(data)

    def newest(self, slot: int) -> int:
        """Return the entry number that is stored in a slot."""
        position = index_entry.slot_position(slot)
        (number,) = index_entry.SLOT.unpack_from(self.data, position)
        return int(number)

    def entry(self, number: int) -> Entry:
        """Return the entry with this number."""
        return index_entry.unpack_entry(
            self.data, index_entry.entry_position(number, self.slot_count)
        )

    def chain(self, slot: int) -> Iterator[tuple[int, Entry]]:
        """Yield numbers and entries of a slot, newest first, up to the entry where Java stops."""
        number = self.newest(slot)
        while 0 < number < self.header.next_entry:
            entry = self.entry(number)
            yield number, entry
            if entry.previous >= number:
                return
            number = entry.previous


def index_files(version: str, name: str) -> list[IndexFile]:
    """Return the files, oldest first."""
    config = golden.manifest(version, name)["config"]
    return [
        IndexFile(path.removeprefix("index/"), data, int(config["maxHashSlotNum"]))
        for path, data in golden.files(version, name).items()
        if path.startswith("index/")
    ]


def keys_of(version: str, message: dict[str, Any]) -> list[str]:
    """Return the texts that the broker hashes for a message, in its order."""
    words = [message["uniqKey"], *(message["keys"] or "").split(" ")]
    keys = [index_entry.key_of(message["topic"], word) for word in words if word]
    if version == "5.5.0" and message["tags"]:
        keys.append(index_entry.tag_key_of(message["topic"], message["tags"]))
    return keys


# --- the golden files -----------------------------------------------------


@each(("version", "name"), OPENED)
def test_every_header_equals_javas(version: str, name: str) -> None:
    files = index_files(version, name)
    expected = golden.manifest(version, name)["index"]
    assert [file.name for file in files] == [expected_file["name"] for expected_file in expected]
    for file, expected_header in zip(files, expected, strict=True):
        header = file.header
        assert header.begin_timestamp == expected_header["beginTimestamp"]
        assert header.end_timestamp == expected_header["endTimestamp"]
        assert header.begin_physical_offset == expected_header["beginPhyOffset"]
        assert header.end_physical_offset == expected_header["endPhyOffset"]
        assert header.slots_used == expected_header["hashSlotCount"]
        assert max(header.next_entry, 1) == expected_header["indexCount"]
        assert header.entry_count == expected_header["indexCount"] - 1
        assert index_entry.pack_header(header) == file.data[:40]
        config = golden.manifest(version, name)["config"]
        end = index_entry.entry_position(int(config["maxIndexNum"]), file.slot_count)
        assert end == len(file.data)


@pytest.mark.parametrize(("version", "name"), OPENED)
@pytest.mark.sampled(8)
def test_every_entry_is_reached_once_and_leads_to_its_record(version: str, name: str) -> None:
    messages = {m["commitLogOffset"]: m for m in golden.messages(version, name)}
    lost: set[int] = set()
    known: list[bytes] = []
    if name.startswith("torn/"):
        variant = name.removeprefix("torn/").removesuffix("-recovered")
        lost = set(golden.torn_variants(version)[variant]["recordsLost"])
        # Most files are unchanged by the damage.
        known = [file.data for file in index_files(version, "clean")]
    for file in index_files(version, name):
        if file.data in known:
            continue
        header = file.header
        reached = []
        used = 0
        for slot in range(file.slot_count):
            chain = list(file.chain(slot))
            used += bool(chain)
            numbers = [number for number, _ in chain]
            assert numbers == sorted(numbers, reverse=True)
            reached += numbers
            for number, entry in chain:
                position = index_entry.entry_position(number, file.slot_count)
                assert index_entry.pack_entry(entry) == file.data[position : position + 20]
                assert entry.key_hash % file.slot_count == slot
                if entry.physical_offset not in messages:
                    # The record was in the deleted start of the log, or in the truncated end.
                    start = golden.manifest(version, name)["minPhyOffset"]
                    assert entry.physical_offset < start or entry.physical_offset in lost
                    continue
                message = messages[entry.physical_offset]
                hashes = map(index_entry.key_hash, keys_of(version, message))
                assert entry.key_hash in hashes
                if number > 1:
                    late = message["storeTimestamp"] - header.begin_timestamp
                    assert entry.seconds == max(late, 0) // 1000
        assert sorted(reached) == list(range(1, max(header.next_entry, 1)))
        # D13: 4.5 counts entries, later versions count slots.
        counted = header.entry_count if version == "4.5.2" else used
        assert header.slots_used == counted


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_entries_are_the_keys_of_the_log_in_order(version: str) -> None:
    """The whole index follows from the messages: no entry is missing or duplicate."""
    stored = [
        (entry.key_hash, entry.physical_offset)
        for file in index_files(version, "clean")
        for entry in map(file.entry, range(1, file.header.next_entry))
    ]
    expected = [
        (index_entry.key_hash(key), message["commitLogOffset"])
        for message in golden.messages(version, "clean")
        for key in keys_of(version, message)
    ]
    assert stored == expected


def search(files: list[IndexFile], query: dict[str, Any]) -> list[int]:
    """Return the physical offsets that ``IndexService.queryOffset`` returns."""
    begin, end, most = query["begin"], query["end"], query["max"]
    hashed = index_entry.key_hash(index_entry.key_of(query["topic"], query["key"]))
    physical_offsets: list[int] = []
    for file in reversed(files):
        header = file.header
        if header.begin_timestamp <= end and header.end_timestamp >= begin:
            for _, entry in file.chain(hashed % file.slot_count):
                if len(physical_offsets) >= most or entry.seconds < 0:
                    break
                time = header.begin_timestamp + entry.seconds * 1000
                if entry.key_hash == hashed and begin <= time <= end:
                    physical_offsets.append(entry.physical_offset)
                if time < begin:
                    break
        if header.begin_timestamp < begin or len(physical_offsets) >= most:
            break
    return physical_offsets


@pytest.mark.parametrize(("version", "name"), OPENED)
@pytest.mark.sampled(8)
def test_lookups_return_the_same_offsets_as_java(version: str, name: str) -> None:
    files = index_files(version, name)
    queries = golden.manifest(version, name)["queries"]
    matches = {(q["topic"], q["key"], q["begin"]): search(files, q) for q in queries}
    assert matches == {(q["topic"], q["key"], q["begin"]): q["indexOffsets"] for q in queries}


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_a_hit_may_belong_to_another_key(version: str) -> None:
    """``Aa`` and ``BB`` have the same hash, as keys and as topics: readers check the message."""
    messages = {m["commitLogOffset"]: m for m in golden.messages(version, "clean")}
    foreign = 0
    for query in golden.manifest(version, "clean")["queries"]:
        for offset in query["indexOffsets"]:
            message = messages[offset]
            asked = index_entry.key_of(query["topic"], query["key"])
            own = keys_of(version, message)
            assert index_entry.key_hash(asked) in map(index_entry.key_hash, own)
            foreign += asked not in own
    assert foreign
    assert index_entry.key_hash("GoldenKeys#Aa") == index_entry.key_hash("GoldenKeys#BB")
    assert index_entry.key_hash("Golden_Aa#k") == index_entry.key_hash("Golden_BB#k")


# --- hashes ---------------------------------------------------------------


def test_key_hash_vectors() -> None:
    assert java.string_hash("TopicA#k1") == -1903240649
    assert index_entry.key_hash("TopicA#k1") == 1903240649
    assert index_entry.key_hash("") == 0


def test_the_hash_without_absolute_value_becomes_zero() -> None:
    assert java.string_hash("polygenelubricants") == -(1 << 31)
    assert index_entry.key_hash("polygenelubricants") == 0


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_java_stored_entries_with_hash_zero(version: str) -> None:
    hashes = {
        file.entry(number).key_hash
        for file in index_files(version, "clean")
        for number in range(1, file.header.next_entry)
    }
    assert 0 in hashes
    assert min(hashes) == 0


def test_key_texts() -> None:
    assert index_entry.key_of("T", "k 1") == "T#k 1"
    assert index_entry.tag_key_of("T", "a || b") == "T#T#a || b"


# --- the layout -----------------------------------------------------------


def test_positions() -> None:
    """Entries take 20 bytes; number s is at s * 20 after the slots, not at (s - 1) * 20."""
    assert (index_entry.HEADER.size, index_entry.SLOT.size, index_entry.ENTRY.size) == (40, 4, 20)
    assert index_entry.slot_position(0) == 40
    assert index_entry.slot_position(7) == 68
    assert index_entry.entry_position(0, 100) == 440
    assert index_entry.entry_position(3, 100) == 500
    assert index_entry.entry_position(20_000_000, 5_000_000) == 420_000_040


def test_layout_by_hand() -> None:
    header = Header(1, 2, 3, 4, 5, 6)
    assert index_entry.pack_header(header) == struct.pack(">qqqqii", 1, 2, 3, 4, 5, 6)
    entry = Entry(1, 2, 3, 4)
    assert index_entry.pack_entry(entry) == struct.pack(">iqii", 1, 2, 3, 4)


@pytest.mark.parametrize(("stored", "count"), [(0, 0), (-1, 0), (1, 0), (2, 1), (400, 399)])
def test_entry_count(stored: int, count: int) -> None:
    assert Header(0, 0, 0, 0, 0, stored).entry_count == count


int64 = st.integers(-(1 << 63), (1 << 63) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)


@given(st.builds(Header, int64, int64, int64, int64, int32, int32), st.binary(max_size=9))
def test_header_round_trip(header: Header, following: bytes) -> None:
    assert index_entry.unpack_header(index_entry.pack_header(header) + following) == header


@given(st.builds(Entry, int32, int64, int32, int32), st.binary(max_size=9))
def test_entry_round_trip(entry: Entry, before: bytes) -> None:
    data = before + index_entry.pack_entry(entry)
    assert index_entry.unpack_entry(memoryview(data), len(before)) == entry


@given(st.text())
def test_key_hash_is_never_negative(key: str) -> None:
    assert 0 <= index_entry.key_hash(key) < 1 << 31


def test_cut() -> None:
    for size in (0, 1, 39):
        with pytest.raises(CorruptRecord, match=f"header is cut: {size} of 40"):
            index_entry.unpack_header(bytes(size))
    for position in (-1, 1, 20, 99):
        with pytest.raises(CorruptRecord, match=f"entry at {position} is cut"):
            index_entry.unpack_entry(bytes(20), position)
