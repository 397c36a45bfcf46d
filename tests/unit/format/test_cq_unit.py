"""Consume-queue units of all golden queues, extension units and batch units included."""

import hashlib
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

import golden
from cases import each
from reput.errors import CorruptRecord
from reput.format import cq_unit, sys_flag as flags
from reput.format.cq_unit import BatchUnit, ExtUnit, Unit

OPENED = golden.OPENED + [
    (version, f"torn/{variant}-recovered")
    for version in golden.VERSIONS
    for variant in golden.torn_recovered(version)
]

# --- reading a queue by hand ----------------------------------------------


def queue_bytes(files: dict[str, bytes], kind: str, queue: dict[str, Any]) -> tuple[int, bytes]:
    """Return the position at which the files of a queue begin, and their concatenated bytes."""
    prefix = f"{kind}/{queue['topic']}/{queue['queueId']}/"
    queue_files = {
        int(path.removeprefix(prefix)): data
        for path, data in files.items()
        if path.startswith(prefix)
    }
    joined = b"".join(queue_files[start] for start in sorted(queue_files))
    return min(queue_files, default=0), joined


def plain_queues(version: str, name: str) -> Iterator[tuple[dict[str, Any], int, bytes]]:
    files = golden.files(version, name)
    for queue in golden.manifest(version, name)["queues"]:
        if "type" not in queue:
            yield queue, *queue_bytes(files, "consumequeue", queue)


# --- every unit -----------------------------------------------------------


@each(("version", "name"), OPENED)
def test_every_unit_equals_javas(version: str, name: str) -> None:
    assert golden.manifest(version, name)["opened"]
    for queue, start, data in plain_queues(version, name):
        first, last = (queue[bound] * cq_unit.SIZE - start for bound in ("minOffset", "maxOffset"))
        if first == last:
            continue
        stored = data[first:last]
        assert hashlib.sha256(stored).hexdigest() == queue["unitsSha256"]
        units = [cq_unit.unpack(data, position) for position in range(first, last, cq_unit.SIZE)]
        expected = [unit["unit"] if isinstance(unit, dict) else unit for unit in queue["units"]]
        assert [[u.physical_offset, u.size, u.tags_code] for u in units] == expected
        assert b"".join(map(cq_unit.pack, units)) == stored
        assert all(unit.is_written != unit.is_pre_blank for unit in units)
        if last < len(data):
            next_unit = cq_unit.unpack(data, last)
            recovered = name.endswith("recovered")
            assert not next_unit.is_written or recovered, "old units stay after a cut"


@each(("version", "name"), [unit for unit in OPENED if "/" not in unit[1]])
def test_units_match_their_messages(version: str, name: str) -> None:
    """Size, queue offset and tags code match; the code of a delayed message is its due time."""
    messages = {m["commitLogOffset"]: m for m in golden.messages(version, name)}
    kinds: Counter[str] = Counter()
    for queue, _, _ in plain_queues(version, name):
        for queue_offset, unit in enumerate(queue["units"], queue["minOffset"]):
            offset, size, code = unit["unit"] if isinstance(unit, dict) else unit
            if offset not in messages:
                assert offset < golden.manifest(version, name)["minPhyOffset"]
                kinds["expired"] += 1
                continue
            message = messages[offset]
            assert message["storeSize"] == size
            if not queue["topic"].startswith("%LMQ%"):
                assert message["queueOffset"] == queue_offset
                assert message["topic"] == queue["topic"]
            if isinstance(unit, dict):
                kinds["ext"] += 1
                assert cq_unit.is_ext_address(code)
                code = unit["ext"]["tagsCode"]
            else:
                assert not cq_unit.is_ext_address(code)
            if queue["topic"] == "SCHEDULE_TOPIC_XXXX":
                kinds["schedule"] += 1
                assert code >= message["storeTimestamp"] + 1000
            else:
                kinds["hash"] += 1
                assert cq_unit.tags_code(message["tags"]) == code
    assert kinds["hash"]
    assert ("ext" in kinds) == (name == "ext")


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_tags_code_vectors(version: str) -> None:
    for tags, code in golden.manifest(version, "clean")["tagsCodes"].items():
        assert cq_unit.tags_code(tags) == code
    assert cq_unit.tags_code(None) == cq_unit.tags_code("") == 0
    assert cq_unit.tags_code("TagA") == 2598919


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_two_tags_may_have_the_same_code(version: str) -> None:
    """A tags code is a hint: the reader must compare the tags."""
    codes = golden.manifest(version, "clean")["tagsCodes"]
    assert codes["Aa"] == codes["BB"] == cq_unit.tags_code("Aa") == cq_unit.tags_code("BB")


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_records_of_a_killed_broker_are_in_queues_or_listed_as_missing(version: str) -> None:
    seen: set[int] = set()
    for path, data in golden.files(version, "unclean").items():
        if path.startswith("consumequeue/"):
            units = [
                cq_unit.unpack(data, position) for position in range(0, len(data), cq_unit.SIZE)
            ]
            seen |= {unit.physical_offset for unit in units if unit.is_written}
    queued = {
        m["commitLogOffset"]
        for m in golden.messages(version, "unclean")
        if flags.is_queued(m["sysFlag"])
    }
    not_yet = set(golden.manifest(version, "unclean")["recordsNotInQueues"])
    assert not_yet
    assert seen | not_yet == queued
    assert not seen & not_yet


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_pre_blanks(version: str) -> None:
    """Queues rebuilt from a log that starts late have filler units up to the first message."""
    blanks = 0
    for queue, start, data in plain_queues(version, "expired-nocq-recovered"):
        first = queue["minOffset"] * cq_unit.SIZE - start
        for position in range(0, min(first, len(data)), cq_unit.SIZE):
            unit = cq_unit.unpack(data, position)
            assert unit == Unit(0, cq_unit.PRE_BLANK_SIZE, 0)
            assert unit.is_pre_blank
            assert not unit.is_written
            blanks += 1
        if queue["units"]:
            assert not cq_unit.unpack(data, first).is_pre_blank
    assert blanks


# --- extension units ------------------------------------------------------


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_every_ext_unit_equals_javas(version: str) -> None:
    files = golden.files(version, "ext")
    config = golden.manifest(version, "ext")["config"]
    file_bytes = int(config["mappedFileSizeConsumeQueueExt"])
    sizes: set[int] = set()
    for queue in golden.manifest(version, "ext")["queues"]:
        start, data = queue_bytes(files, "consumequeue_ext", queue)
        assert start == 0
        position = 0
        for expected in queue["units"]:
            address = expected["unit"][2]
            place = cq_unit.ext_offset(address)
            assert cq_unit.ext_address(place) == address
            if place != position:  # The previous unit was the last of its file.
                assert cq_unit.unpack_ext(data, position) is None
                assert data[position : position + 2] == b"\xff\xff"
                assert place == position + file_bytes - position % file_bytes
            unit = cq_unit.unpack_ext(data, place)
            ext = expected["ext"]
            bit_map = bytes.fromhex(ext["bitMap"] or "")
            assert unit == ExtUnit(ext["size"], ext["tagsCode"], ext["msgStoreTime"], bit_map)
            assert unit is not None
            assert cq_unit.pack_ext(unit) == data[place : place + unit.size]
            position = place + unit.size
            sizes.add(unit.size)
        if position % file_bytes and data:
            assert cq_unit.unpack_ext(data, position) is None
    assert sizes == {20, 34}


def test_ext_addresses() -> None:
    assert cq_unit.ext_address(0) == -(1 << 63)
    assert cq_unit.ext_offset(-(1 << 63) + 2048) == 2048
    for code, is_address in (
        (-(1 << 63), True),
        (-2147483649, True),
        (-2147483648, False),
        (-1, False),
        (0, False),
        (1795229275985, False),
    ):
        assert cq_unit.is_ext_address(code) == Unit(0, 1, code).is_ext_address == is_address


def test_bytes_that_are_no_ext_unit() -> None:
    assert cq_unit.unpack_ext(b"\xff\xff") is None
    assert cq_unit.unpack_ext(bytes(2)) is None
    assert cq_unit.unpack_ext(b"xx\xff\xff\x00", 2) is None


@each(
    "data",
    [
        b"",
        b"\x00",
        struct.pack(">hqqh", 20, 1, 2, 0)[:-1],
        struct.pack(">hqqh", 21, 1, 2, 0) + b"x",
        struct.pack(">hqqh", 21, 1, 2, 1),
        struct.pack(">hqqh", 19, 1, 2, -1),
        struct.pack(">hqqh", -2, 1, 2, 0),
        struct.pack(">hqqh", 10, 1, 2, 0),
    ],
)
def test_bad_ext_units(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match="extension unit"):
        cq_unit.unpack_ext(data)


def test_ext_unit_that_is_too_long() -> None:
    longest = ExtUnit(32767, 0, 0, bytes(32767 - 20))
    assert cq_unit.unpack_ext(cq_unit.pack_ext(longest)) == longest
    with pytest.raises(ValueError, match="32768 bytes; at most 32767"):
        cq_unit.pack_ext(ExtUnit(0, 0, 0, bytes(32768 - 20)))


# --- batch units ----------------------------------------------------------


def test_every_batch_unit_equals_javas() -> None:
    files = golden.files("5.5.0", "v5")
    messages = {m["commitLogOffset"]: m for m in golden.messages("5.5.0", "v5")}
    (queue,) = (q for q in golden.manifest("5.5.0", "v5")["queues"] if "batchUnits" in q)
    _, data = queue_bytes(files, "batchconsumequeue", queue)
    for i, expected in enumerate(queue["batchUnits"]):
        position = i * cq_unit.BATCH_SIZE
        unit = cq_unit.unpack_batch(data, position)
        assert unit == BatchUnit(
            expected["commitLogOffset"],
            expected["size"],
            expected["tagsCode"],
            messages[expected["commitLogOffset"]]["storeTimestamp"],
            expected["queueOffset"],
            expected["batchNum"],
            expected["compactedOffset"],
        )
        assert unit.is_written
        assert cq_unit.pack_batch(unit) == data[position : position + cq_unit.BATCH_SIZE]
    end = len(queue["batchUnits"]) * cq_unit.BATCH_SIZE
    assert not cq_unit.unpack_batch(data, end).is_written
    assert len(data) % cq_unit.BATCH_SIZE == 0


# --- the layouts ----------------------------------------------------------


def test_sizes() -> None:
    assert (cq_unit.SIZE, cq_unit.EXT_HEAD.size, cq_unit.BATCH_SIZE) == (20, 20, 46)


@pytest.mark.parametrize(
    ("unit", "is_written"),
    [
        (Unit(0, 100, 0), True),
        (Unit(5, 0x7FFFFFFF, 0), True),
        (Unit(0, 0, 0), False),
        (Unit(0, 0x7FFFFFFF, 0), False),
        (Unit(5, -1, 0), False),
        (Unit(-1, 100, 0), False),
    ],
)
def test_is_written(unit: Unit, is_written: bool) -> None:
    assert unit.is_written is is_written


@pytest.mark.parametrize(
    ("offset", "size", "count", "is_written"),
    [(0, 1, 1, True), (0, 0, 1, False), (0, 1, 0, False), (-1, 1, 1, False), (0, -1, 1, False)],
)
def test_is_written_for_batch_units(offset: int, size: int, count: int, is_written: bool) -> None:
    assert BatchUnit(offset, size, 0, 0, 0, count, -1).is_written is is_written


int64 = st.integers(-(1 << 63), (1 << 63) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int16 = st.integers(-(1 << 15), (1 << 15) - 1)


@given(st.builds(Unit, int64, int32, int64))
def test_unit_round_trip(unit: Unit) -> None:
    data = cq_unit.pack(unit)
    assert cq_unit.unpack(data) == cq_unit.unpack(b"abc" + data, 3) == unit


@given(st.builds(BatchUnit, int64, int32, int64, int64, int64, int16, int32))
def test_batch_unit_round_trip(unit: BatchUnit) -> None:
    data = cq_unit.pack_batch(unit)
    assert cq_unit.unpack_batch(memoryview(data)) == unit


@given(int64, int64, st.binary(max_size=60))
def test_ext_unit_round_trip(code: int, store_timestamp: int, bit_map: bytes) -> None:
    data = cq_unit.pack_ext(ExtUnit(0, code, store_timestamp, bit_map))
    unit = ExtUnit(20 + len(bit_map), code, store_timestamp, bit_map)
    assert cq_unit.unpack_ext(b"ab" + data + b"c", 2) == unit


@given(st.integers(0, (1 << 63) - (1 << 31) - 1))
def test_ext_address_round_trip(place: int) -> None:
    address = cq_unit.ext_address(place)
    assert cq_unit.is_ext_address(address)
    assert cq_unit.ext_offset(address) == place


@pytest.mark.parametrize("position", [-1, 1, 19, 20, 100])
def test_cut_units(position: int) -> None:
    with pytest.raises(CorruptRecord, match=f"unit at {position} is cut: 20 bytes"):
        cq_unit.unpack(bytes(20), position)
    with pytest.raises(CorruptRecord, match="is cut"):
        cq_unit.unpack_batch(bytes(46), position)


@given(st.binary(max_size=60), st.integers(-5, 65))
def test_any_bytes_are_a_unit_or_corrupt(data: bytes, position: int) -> None:
    for unpack in (cq_unit.unpack, cq_unit.unpack_batch, cq_unit.unpack_ext):
        try:
            unpack(data, position)
        except CorruptRecord:
            continue
