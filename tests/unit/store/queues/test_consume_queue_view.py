"""Consume queues, batch queues and extension units."""

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import golden
import seeds
import store_builder
from cases import each
from reput.errors import CorruptRecord, NotInStore, ReputError
from reput.format import cq_unit
from reput.format.cq_unit import BatchUnit, ExtUnit, Unit
from reput.store.files.files import open_folder
from reput.store.queues.consume_queue_view import BatchConsumeQueueView, ConsumeQueueView, ExtView
from reput.store.reader import StoreReader
from store_builder import MemoryFolder

STORE = pytest.mark.parametrize(
    ("version", "name"), [store for store in golden.STORES if store[1] != "unclean"]
)
FILE_UNITS = 10
FILE_BYTES = FILE_UNITS * cq_unit.SIZE
PRE_BLANK = Unit(0, cq_unit.PRE_BLANK_SIZE, 0)


def queue_of(files: dict[int, bytes], log_min: int = 0) -> ConsumeQueueView:
    """Return a queue in memory with the given units of each file."""
    named = {f"consumequeue/T/0/{start:020d}": data for start, data in files.items()}
    return ConsumeQueueView(MemoryFolder(named), "T", 0, log_min)


def unit(number: int) -> Unit:
    return Unit(1000 + 100 * number, 100, number % 5)


def packed(units: list[Unit | None]) -> bytes:
    """Return the bytes of files; None is an empty unit."""
    return b"".join(cq_unit.pack(row) if row else bytes(cq_unit.SIZE) for row in units)


def files_of(first: int, stop: int) -> dict[int, bytes]:
    """Return files with the units ``[first, stop)``, as a broker would have them."""
    start = first - first % FILE_UNITS
    units: list[Unit | None] = [PRE_BLANK] * (first - start)
    units += [unit(number) for number in range(first, stop)]
    units += [None] * (-len(units) % FILE_UNITS)
    data = packed(units)
    return {
        start * cq_unit.SIZE + position: data[position : position + FILE_BYTES]
        for position in range(0, len(data), FILE_BYTES)
    }


# --- what Java says of its queues -----------------------------------------


def java_queues(manifest: dict[str, Any]) -> Iterator[tuple[str, int, list[list[int]], int, int]]:
    """Return (topic, queue id, units, min offset, max offset) of each queue, as expected.

    The minimum is the first unit whose message is still in the log, else the maximum. Java 4.x
    keeps the old minimum when the whole log of a queue has expired, and counts pre-blanks of a
    recreated queue (known-bugs.md#minimum-offsets).
    """
    for queue in manifest["queues"]:
        if "units" not in queue:
            continue
        units = [entry["unit"] if isinstance(entry, dict) else entry for entry in queue["units"]]
        alive = [
            number
            for number, (offset, size, _) in enumerate(units, queue["minOffset"])
            if offset >= manifest["minPhyOffset"] and size != cq_unit.PRE_BLANK_SIZE
        ]
        first = alive[0] if alive else queue["maxOffset"]
        yield queue["topic"], queue["queueId"], units, first, queue["maxOffset"]


@STORE
def test_queues_of_golden_stores(version: str, name: str) -> None:
    manifest = golden.manifest(version, name)
    reader = StoreReader.open(str(golden.unpack(version, name)))
    for topic, queue_id, units, first, stop in java_queues(manifest):
        queue = reader.queue(topic, queue_id)
        where = (topic, queue_id)
        assert (queue.min_offset, queue.max_offset) == (first, stop), where
        numbers, rows = queue.units(first, stop)
        assert numbers.tolist() == list(range(first, stop)), where
        assert [list(row) for row in rows.tolist()] == units[len(units) - (stop - first) :], where
        for number in {first, stop - 1} if first < stop else ():
            assert queue.unit(number) == Unit(*units[number - stop]), where


@STORE
def test_the_bytes_of_the_units_are_those_java_counted(version: str, name: str) -> None:
    manifest = golden.manifest(version, name)
    reader = StoreReader.open(str(golden.unpack(version, name)))
    for java in manifest["queues"]:
        if "unitsSha256" not in java:
            continue
        queue = reader.queue(java["topic"], java["queueId"])
        data = b"".join(
            units.tobytes() for _, units in queue.blocks(java["minOffset"], java["maxOffset"])
        )
        assert hashlib.sha256(data).hexdigest() == java["unitsSha256"]


@STORE
def test_queues_with_files_are_listed(version: str, name: str) -> None:
    manifest = golden.manifest(version, name)
    reader = StoreReader.open(str(golden.unpack(version, name)))
    expected: dict[str, dict[str, set[int]]] = {"consumequeue": {}, "batchconsumequeue": {}}
    for file in manifest["files"]:
        family, *rest = file["path"].split("/")
        if family in expected:
            topic, queue_id, _ = rest
            expected[family].setdefault(topic, set()).add(int(queue_id))
    assert expected["consumequeue"]
    for family, queue_ids in (
        ("consumequeue", reader.queue_ids),
        ("batchconsumequeue", reader.batch_queue_ids),
    ):
        assert queue_ids == {topic: sorted(ids) for topic, ids in expected[family].items()}
    # 4.9 opens a queue for every level; levels without a message have no files.
    java = {(queue["topic"], queue["queueId"]): queue for queue in manifest["queues"]}
    known = {
        (topic, queue_id)
        for queues in expected.values()
        for topic, ids in queues.items()
        for queue_id in ids
    }
    assert known <= set(java)
    assert not any(java[key]["maxOffset"] for key in set(java) - known)
    assert [(queue.topic, queue.queue_id) for queue in reader.queues()] == [
        (topic, queue_id) for topic, ids in reader.queue_ids.items() for queue_id in ids
    ]


@STORE
def test_how_far_queues_reach_into_the_log(version: str, name: str) -> None:
    manifest = golden.manifest(version, name)
    reader = StoreReader.open(str(golden.unpack(version, name)))
    for java in manifest["queues"]:
        if "units" in java and java["maxOffset"]:
            queue = reader.queue(java["topic"], java["queueId"])
            assert queue.end_physical_offset == java["maxPhysicOffset"]


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_extension_units(version: str) -> None:
    manifest = golden.manifest(version, "ext")
    reader = StoreReader.open(str(golden.unpack(version, "ext")))
    count = with_map = 0
    for java in manifest["queues"]:
        extension = reader.extension(java["topic"], java["queueId"])
        for stored in java["units"]:
            if not isinstance(stored, dict):
                assert not cq_unit.is_ext_address(stored[2])
                continue
            address, expected = stored["unit"][2], stored["ext"]
            assert cq_unit.is_ext_address(address)
            actual = extension.unit(address)
            assert actual == ExtUnit(
                expected["size"],
                expected["tagsCode"],
                expected["msgStoreTime"],
                bytes.fromhex(expected["bitMap"] or ""),
            )
            count += 1
            with_map += bool(actual.bit_map)
    assert count > with_map > 0


def test_batch_queues() -> None:
    reader = StoreReader.open(str(golden.unpack("5.5.0", "v5")))
    (java,) = (q for q in golden.manifest("5.5.0", "v5")["queues"] if "batchUnits" in q)
    queue = reader.batch_queue(java["topic"], java["queueId"])
    assert (queue.min_offset, queue.max_offset) == (java["minOffset"], java["maxOffset"])
    assert java["batchUnits"]
    for stored in java["batchUnits"]:
        for number in range(stored["queueOffset"], stored["queueOffset"] + stored["batchNum"]):
            actual = queue.unit(number)
            assert actual.physical_offset == stored["commitLogOffset"]
            assert actual.size == stored["size"]
            assert actual.tags_code == stored["tagsCode"]
            assert actual.queue_offset == stored["queueOffset"]
            assert actual.message_count == stored["batchNum"]
            assert actual.compacted_offset == stored["compactedOffset"]
    last = java["batchUnits"][-1]
    assert queue.end_physical_offset == last["commitLogOffset"] + last["size"]
    for outside in (-1, java["maxOffset"], 1 << 40):
        with pytest.raises(NotInStore):
            queue.unit(outside)


# --- queues by the rules --------------------------------------------------


@each(
    ("first", "stop"),
    [(0, 1), (0, 9), (0, 10), (0, 11), (0, 35), (3, 4), (7, 30), (9, 10), (20, 40), (527, 555)],
)
def test_min_and_max(first: int, stop: int) -> None:
    queue = queue_of(files_of(first, stop))
    assert (queue.min_offset, queue.max_offset) == (first, stop)
    numbers, units = queue.units(0, 1 << 40)
    assert numbers.tolist() == list(range(first, stop))
    assert units["physical_offset"].tolist() == [1000 + 100 * n for n in range(first, stop)]
    assert queue.unit(first) == unit(first)
    assert queue.unit(stop - 1) == unit(stop - 1)
    assert queue.end_physical_offset == 1000 + 100 * stop
    for number in range(first - first % FILE_UNITS, first):
        assert queue.unit(number) == PRE_BLANK
        assert not queue.unit(number).is_written


def test_a_queue_without_files_is_empty() -> None:
    queue = queue_of({})
    assert (queue.min_offset, queue.max_offset) == (0, 0)
    assert queue.end_physical_offset is None
    numbers, units = queue.units(0, 100)
    assert len(numbers) == len(units) == 0
    with pytest.raises(NotInStore, match="queue T/0 has no unit 0; it has 0 to 0"):
        queue.unit(0)


def test_offsets_outside_have_no_unit() -> None:
    queue = queue_of(files_of(20, 35))
    for outside in (-1, 0, 19, 40, 1 << 62):
        with pytest.raises(NotInStore, match="it has 20 to 35"):
            queue.unit(outside)
    assert not queue.unit(36).is_written  # room in the last file


def test_parts_of_a_queue() -> None:
    queue = queue_of(files_of(0, 35))
    for start, stop in ((0, 35), (9, 11), (10, 10), (15, 12), (34, 99), (-5, 3)):
        numbers, units = queue.units(start, stop)
        assert numbers.tolist() == list(range(max(start, 0), min(stop, 35)))
        assert len(units) == len(numbers)
    assert [start for start, _ in queue.blocks(5, 35)] == [5, 10, 20, 30]


@each(
    ("log_min", "expected"),
    [(0, 0), (1000, 0), (1001, 1), (1099, 1), (1100, 1), (3000, 20), (4400, 34), (4401, 35)],
)
def test_min_offset_is_the_first_unit_whose_message_is_in_the_log(
    log_min: int, expected: int
) -> None:
    """Without such a message it is the maximum; 4.x keeps the old minimum (rmq#8753)."""
    assert queue_of(files_of(0, 35), log_min).min_offset == expected


def test_an_empty_last_file() -> None:
    """The queue ends in the file before: brokers create files early, or empty one (rmq#1960)."""
    files = files_of(0, 20) | {2 * FILE_BYTES: bytes(FILE_BYTES)}
    queue = queue_of(files)
    assert (queue.min_offset, queue.max_offset) == (0, 20)
    assert queue.end_physical_offset == 3000
    files[3 * FILE_BYTES] = b""
    queue = queue_of(files)
    assert (queue.min_offset, queue.max_offset) == (0, 20)


def test_only_empty_files_above_zero() -> None:
    for files in ({FILE_BYTES: bytes(FILE_BYTES)}, {FILE_BYTES: b""}):
        queue = queue_of(files)
        assert queue.min_offset == queue.max_offset
        assert queue.end_physical_offset is None
    assert queue_of({FILE_BYTES: bytes(FILE_BYTES)}).max_offset == FILE_UNITS


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_expired_queues_of_golden_stores(version: str) -> None:
    """Queues whose whole log has expired: nothing to read, and the end is kept."""
    manifest = golden.manifest(version, "expired")
    reader = StoreReader.open(str(golden.unpack(version, "expired")))
    gone = [
        (topic, queue_id, stop)
        for topic, queue_id, units, first, stop in java_queues(manifest)
        if first == stop and units
    ]
    assert gone or version == "5.5.0"
    for topic, queue_id, stop in gone:
        queue = reader.queue(topic, queue_id)
        assert queue.min_offset == queue.max_offset == stop
        with pytest.raises(NotInStore):
            reader.message_in_queue(topic, queue_id, stop - 1)


def test_other_names_in_a_queue_folder_are_left_out() -> None:
    folder = MemoryFolder(
        {
            "consumequeue/T/0/00000000000000000000": packed([unit(0)] + [None] * 9),
            "consumequeue/T/0/.DS_Store": b"x",
            "consumequeue/T/0/00000000000000000200/x": b"x",
            "consumequeue/T/x/00000000000000000000": b"x",
            "consumequeue/T/01/00000000000000000000": b"x",
            "consumequeue/stray": b"x",
            "commitlog/00000000000000000000": bytes(100),
        }
    )
    queue = ConsumeQueueView(folder, "T", 0, 0)
    assert queue.max_offset == 1
    assert StoreReader(folder).queue_ids == {"T": [0]}


def test_a_missing_file_is_a_gap() -> None:
    files = files_of(0, 35)
    del files[FILE_BYTES]
    queue = queue_of(files)
    assert (queue.min_offset, queue.max_offset) == (0, 35)
    numbers, _ = queue.units(0, 35)
    assert numbers.tolist() == [*range(10), *range(20, 35)]
    with pytest.raises(NotInStore):
        queue.unit(10)


# --- damage ---------------------------------------------------------------


def test_a_truncated_file_is_named() -> None:
    files = files_of(0, 40)
    assert queue_of(files).cut_file is None
    for start, number, length in ((FILE_BYTES, 15, 100), (3 * FILE_BYTES, 32, 45)):
        cut = {**files, start: files[start][:length]}
        queue = queue_of(cut)
        assert queue.cut_file is not None
        assert queue.cut_file.name == f"{start:020d}"
        with pytest.raises(CorruptRecord, match=f"is truncated to {length} bytes") as caught:
            queue.unit(number)
        assert caught.value.file == f"consumequeue/T/0/{start:020d}"
        assert queue.unit(number - 1 if length == 100 else 31).is_written


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_a_truncated_golden_queue(version: str) -> None:
    text = golden.torn_variants(version)["cq-short"]["damage"]
    topic, queue_id = text.split("consume queue ")[1].split(" cut")[0].split("/")
    before, after = (int(word) for word in text.split() if word.isdigit())
    reader = StoreReader.open(str(golden.unpack(version, "torn/cq-short")))
    queue = reader.queue(topic, int(queue_id))
    assert queue.cut_file is not None
    assert queue.cut_file.size == after
    stop = (queue.cut_file.start + after) // cq_unit.SIZE
    queue.unit(stop - 1)
    for number in (stop, (queue.cut_file.start + before) // cq_unit.SIZE - 1):
        with pytest.raises(CorruptRecord, match=queue.cut_file.name):
            queue.unit(number)
    others = [view for view in reader.queues() if view.cut_file is not None]
    assert others == [queue]


@pytest.mark.parametrize("units", [30, 300, 5000])
def test_lost_units_in_the_middle_do_not_end_a_queue(units: int) -> None:
    """The units after a run of zeros can still be read."""
    source = seeds.random("lost units", units)
    written = units * 9 // 10
    data = packed([unit(number) for number in range(written)] + [None] * (units - written))
    for _ in range(60):
        start = source.randrange(written - 1)
        count = min(source.choice((1, 1, 1, 2, 5, 30, 200)), (written - start) // 3 or 1)
        lost = bytearray(data)
        lost[start * 20 : (start + count) * 20] = bytes(count * 20)
        queue = queue_of({0: bytes(lost)})
        assert queue.max_offset == written
        numbers, _ = queue.units(0, written)
        assert numbers.tolist() == [*range(start), *range(start + count, written)]
        assert not queue.unit(start).is_written


def test_a_mostly_empty_queue_is_not_read_as_a_whole(tmp_path: Path) -> None:
    """The search reads only the pages that it needs.

    A file has 6 MB, most of them zeros (known-bugs.md#queue-mappings).
    """
    file = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    file.parent.mkdir(parents=True)
    with file.open("wb") as out:
        out.write(packed([unit(number) for number in range(1000)]))
        out.truncate(6_000_000)
    queue = ConsumeQueueView(open_folder(str(tmp_path)), "T", 0, 0)
    assert (queue.min_offset, queue.max_offset) == (0, 1000)
    assert file.stat().st_blocks * 512 < 200_000


def test_any_byte_changed_gives_units_or_errors() -> None:
    files = files_of(3, 25)
    for start, data in files.items():
        for position in range(FILE_BYTES):
            for mask in (0xFF, 0x80, 0x01):
                changed = bytearray(data)
                changed[position] ^= mask
                queue = queue_of({**files, start: bytes(changed)}, 500)
                low, high = queue.min_offset, queue.max_offset
                assert 0 <= low <= high <= 30
                numbers, units = queue.units(low, high)
                for number, stored in zip(numbers.tolist(), units.tolist(), strict=True):
                    touched = (
                        start + position // cq_unit.SIZE * cq_unit.SIZE == number * cq_unit.SIZE
                    )
                    assert touched or stored == (
                        *struct.unpack(">qiq", cq_unit.pack(unit(number))),
                    )
                _ = queue.end_physical_offset


# --- batch queues ---------------------------------------------------------


def batch_unit(number: int) -> BatchUnit:
    return BatchUnit(1000 + 500 * number, 500, 7, 10_000 + number, 100 + 4 * number, 4, -1)


def batch_queue_of(data: bytes, log_min: int = 0) -> BatchConsumeQueueView:
    folder = MemoryFolder({"batchconsumequeue/T/0/00000000000000000000": data})
    return BatchConsumeQueueView(folder, "T", 0, log_min)


def test_batch_units() -> None:
    data = b"".join(cq_unit.pack_batch(batch_unit(number)) for number in range(5))
    queue = batch_queue_of(data + bytes(46 * 15))
    assert (queue.min_offset, queue.max_offset) == (100, 120)
    assert queue.end_physical_offset == 3500
    for queue_offset in range(100, 120):
        assert queue.unit(queue_offset) == batch_unit((queue_offset - 100) // 4)
    for outside in (99, 120):
        with pytest.raises(NotInStore):
            queue.unit(outside)


def test_min_and_max_of_batch_queues() -> None:
    data = b"".join(cq_unit.pack_batch(batch_unit(number)) for number in range(5))
    assert batch_queue_of(data, 1500).min_offset == 104
    assert batch_queue_of(data, 3001).min_offset == 120
    empty = batch_queue_of(bytes(46 * 3))
    assert (empty.min_offset, empty.max_offset, empty.end_physical_offset) == (0, 0, None)


def test_batch_units_in_any_order_give_the_right_batch_or_none() -> None:
    source = seeds.random("batch units")
    data = bytearray(b"".join(cq_unit.pack_batch(batch_unit(number)) for number in range(9)))
    for _ in range(500):
        changed = bytearray(data)
        changed[source.randrange(len(data))] ^= 1 << source.randrange(8)
        queue = batch_queue_of(bytes(changed))
        for queue_offset in range(100, 136):
            try:
                result = queue.unit(queue_offset)
            except NotInStore:
                continue
            assert result.queue_offset <= queue_offset < result.queue_offset + result.message_count


# --- extension ------------------------------------------------------------


def extension_of(files: dict[int, bytes]) -> ExtView:
    named = {f"consumequeue_ext/T/0/{start:020d}": data for start, data in files.items()}
    return ExtView(MemoryFolder(named), "T", 0)


def test_extension_files_are_consecutive() -> None:
    units = [ExtUnit(20 + size, size, 10_000 + size, b"\xff" * size) for size in (0, 14, 3)]
    data = b"".join(cq_unit.pack_ext(stored) for stored in units)
    end = cq_unit.EXT_END.pack(cq_unit.EXT_END_MARK)
    view = extension_of({0: (data + end).ljust(200, b"\0"), 200: data.ljust(200, b"\0")})
    position = 0
    for stored in units:
        for start in (0, 200):
            assert view.unit(cq_unit.ext_address(start + position)) == stored
        position += stored.size
    assert len(view.files) == 2
    for nowhere in (position, position + 2, 199, 200 + position, 400, 1 << 40):
        with pytest.raises(CorruptRecord):
            view.unit(cq_unit.ext_address(nowhere))


def test_a_queue_without_extension_has_no_units() -> None:
    with pytest.raises(CorruptRecord, match="points at no unit") as caught:
        extension_of({}).unit(cq_unit.ext_address(0))
    assert caught.value.file == "consumequeue_ext/T/0"


def test_any_extension_address_gives_a_unit_or_an_error() -> None:
    source = seeds.random("extensions")
    view = extension_of({0: source.randbytes(3000), 3000: bytes(3000)})
    for position in range(6100):
        try:
            result = view.unit(cq_unit.ext_address(position))
        except ReputError:
            continue
        assert result.size == 20 + len(result.bit_map)


# --- the builder ----------------------------------------------------------


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_the_builder_writes_the_queues_of_java(version: str) -> None:
    """All but the schedule topic's queues, whose units contain deliver times."""
    store = golden.unpack(version, "clean")
    units = int(golden.manifest(version, "clean")["config"]["mappedFileSizeConsumeQueue"]) // 20
    messages = list(StoreReader.open(str(store)).messages())
    built = store_builder.queue_files(messages, units)
    compared = 0
    for (topic, queue_id), files in built.items():
        if topic == "SCHEDULE_TOPIC_XXXX":
            continue
        for start, data in files.items():
            path = store / "consumequeue" / topic / str(queue_id) / f"{start:020d}"
            assert path.read_bytes() == bytes(data)
            compared += 1
    assert compared > 60


def test_blocks_are_views_of_what_is_stored() -> None:
    (block,) = queue_of(files_of(0, 10)).blocks(0, 10)
    assert block[0] == 0
    assert block[1].dtype.itemsize == 20
    assert np.array_equal(block[1]["size"], np.full(10, 100))
