"""The scan of a log: every verdict, every cut, every flipped byte, with both kernels."""

import hashlib
import itertools
import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import golden
import seeds
from cases import each
from reput.format import body as bodies, message as record, sys_flag as flags
from reput.format.kernels import native, reference
from reput.format.kernels.layout import Segments
from reput.format.message import Host, StoredMessage, Verdict

try:
    native.engine()
except native.KernelsUnavailable:
    pytest.skip("no compiled kernels here", allow_module_level=True)

BASE = 1 << 40
V4 = Host(bytes([192, 0, 2, 1]), 10911)
V6 = Host(bytes.fromhex("fd000000000000000000000000000002"), 10911)


def pack(physical_offset: int, **fields: Any) -> bytes:
    """Encode a record; ``body_crc`` is right unless given."""
    values: dict[str, Any] = {
        "topic": "Topic",
        "body": b"body",
        "queue_id": 1,
        "queue_offset": 2,
        "physical_offset": physical_offset,
        "born_timestamp": 3,
        "born_host": V4,
        "store_timestamp": 4,
        "store_host": V4,
        "property_bytes": b"TAGS\x01TagA\x02",
    }
    values |= fields
    values.setdefault("body_crc", bodies.crc(values["body"]))
    return record.encode(StoredMessage(**values))


BOTH_V6 = {
    "born_host": V6,
    "store_host": V6,
    "sys_flag": flags.BORN_HOST_V6 | flags.STORE_HOST_V6,
}
KINDS: dict[str, Callable[[int], bytes]] = {
    "plain": lambda physical_offset: pack(physical_offset),
    "v2": lambda physical_offset: pack(physical_offset, version=2, body=b"b" * 21),
    "v6": lambda physical_offset: pack(physical_offset, **BOTH_V6),
    "empty": lambda physical_offset: pack(physical_offset, body=b"", property_bytes=b"", topic=""),
    "born-v6": lambda physical_offset: pack(
        physical_offset, born_host=V6, sys_flag=flags.BORN_HOST_V6
    ),
    "zeros": lambda physical_offset: pack(physical_offset, body=bytes(70)),
    "crc": lambda physical_offset: record.append_crc_property(pack(physical_offset, body=b"c" * 9)),
    "v2-v6-crc": lambda physical_offset: record.append_crc_property(
        pack(physical_offset, version=2, **BOTH_V6)
    ),
    "long": lambda physical_offset: pack(physical_offset, topic="t" * 130, body=b"z" * 40),
}


def build(kinds: list[str], base: int = BASE) -> tuple[bytes, list[tuple[int, int]]]:
    """Build a log of records of these kinds; return its bytes, positions and sizes of records."""
    parts: list[bytes] = []
    places = []
    position = 0
    for kind in kinds:
        parts.append(KINDS[kind](base + position))
        places.append((position, len(parts[-1])))
        position += len(parts[-1])
    return b"".join(parts), places


ALL, ALL_PLACES = build(list(KINDS))
ENDINGS = {
    "nothing": b"",
    "zeros": bytes(50),
    "blank": record.pack_blank(29) + b"left " * 4 + b".",
    "blank of 8": record.pack_blank(8),
    "7 zeros": bytes(7),
    "garbage": b"garbage!" * 5 + bytes(12),
}


def listed(segments: Segments) -> list[tuple[int, int, Verdict]]:
    return [
        (position, size, Verdict(verdict))
        for position, size, verdict in zip(
            segments.positions.tolist(),
            segments.sizes.tolist(),
            segments.verdicts.tolist(),
            strict=True,
        )
    ]


def scan(
    data: Any, start: int = 0, stop: int | None = None, *, base: int = BASE, **options: Any
) -> list[tuple[int, int, Verdict]]:
    """Scan with both kernels; return their common result."""
    stop = len(data) if stop is None else stop
    compiled = native.scan(data, start, stop, physical_offset=base, **options)
    plain = reference.scan(data, start, stop, physical_offset=base, **options)
    assert listed(compiled) == listed(plain)
    assert compiled.next_position == plain.next_position
    assert compiled.positions.tolist() == sorted(set(compiled.positions.tolist()))
    ends = compiled.positions + compiled.sizes
    assert ends.tolist() == [*compiled.positions.tolist()[1:], *ends.tolist()[-1:]]
    assert compiled.next_position == (ends[-1] if len(ends) else start)
    return listed(compiled)


def messages(segments: list[tuple[int, int, Verdict]]) -> list[tuple[int, int]]:
    return [(position, size) for position, size, verdict in segments if verdict is Verdict.MESSAGE]


# --- whole logs -----------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_whole_records_and_an_ending(ending: str) -> None:
    data = ALL + ENDINGS[ending]
    end, left = len(ALL), len(ENDINGS[ending])
    segments = scan(data)
    assert messages(segments) == ALL_PLACES
    expected = {
        "nothing": [],
        "zeros": [(end, left, Verdict.ZEROS)],
        "blank": [(end, left, Verdict.BLANK)],
        "blank of 8": [(end, left, Verdict.BLANK)],
        "7 zeros": [(end, left, Verdict.ZEROS)],
        "garbage": [(end, left - 12, Verdict.BAD_MAGIC), (end + left - 12, 12, Verdict.ZEROS)],
    }
    assert segments[len(ALL_PLACES) :] == expected[ending]


def test_the_empty_log() -> None:
    assert scan(b"") == []
    for kernels in (native, reference):
        assert kernels.find_record(b"", 0, physical_offset=0) == 0
        assert kernels.data_end(b"") == 0


@pytest.mark.parametrize("base", [0, 1, 1 << 31, 1 << 62])
def test_any_base_offset(base: int) -> None:
    data, places = build(["plain", "v6"], base)
    assert messages(scan(data, base=base)) == places
    assert messages(scan(data, base=base + 1)) == []


@pytest.mark.parametrize("check_crc", [True, False])
def test_damage_has_a_verdict_and_the_rest_is_found(check_crc: bool) -> None:
    """A damaged record in the middle gets a verdict; all other records are found."""
    data, places = build(["plain", "crc", "v2"])
    (_, first), (start, size), (end, last) = places
    body_at = record.HEAD.size + 2 * record.HOST_V4_BYTES + 8 + record.TAIL.size

    def damaged(position: int, new: bytes) -> bytes:
        return data[: start + position] + new + data[start + position + len(new) :]

    unless_checked = Verdict.MESSAGE
    cases = {
        "size too large": (damaged(0, b"\0\0\1\0"), Verdict.BAD_LENGTH),
        "size too small": (damaged(0, b"\0\0\0\1"), Verdict.BAD_SIZE),
        "size negative": (damaged(0, b"\xff"), Verdict.BAD_SIZE),
        "size over the file": (damaged(0, b"\x7f"), Verdict.BAD_SIZE),
        "magic": (damaged(4, b"\xdb"), Verdict.BAD_MAGIC),
        "blank in the middle": (damaged(0, record.pack_blank(size)), Verdict.BAD_SIZE),
        "v2 magic": (damaged(7, b"\xab"), Verdict.BAD_LENGTH),
        "place": (damaged(35, b"\0"), Verdict.BAD_PHYSICAL_OFFSET),
        "host bit": (damaged(39, b"\x10"), Verdict.BAD_LENGTH),
        "body length": (damaged(body_at - 4, b"\0\0\0\x08"), Verdict.BAD_LENGTH),
        "body length negative": (damaged(body_at - 4, b"\xff"), Verdict.BAD_LENGTH),
        "body": (damaged(body_at, b"x"), Verdict.BAD_CRC if check_crc else unless_checked),
        "body checksum": (damaged(8, b"\1"), Verdict.BAD_CRC if check_crc else unless_checked),
        "queue id": (damaged(12, b"\1"), Verdict.BAD_RECORD_CRC if check_crc else unless_checked),
        "trailer": (
            damaged(size - 3, b"1" if data[start + size - 3] != ord("1") else b"2"),
            Verdict.BAD_RECORD_CRC if check_crc else unless_checked,
        ),
        "odd trailer": (damaged(size - 3, b"x"), Verdict.MESSAGE),
        "zeros": (damaged(0, bytes(size)), Verdict.BAD_ZEROS),
        "zeros and more": (damaged(0, bytes(size - 5)), Verdict.BAD_ZEROS),
    }
    for name, (bytes_, verdict) in cases.items():
        # The record after a wrong size is still found.
        expected = [
            (0, first, Verdict.MESSAGE),
            (start, size, verdict),
            (end, last, Verdict.MESSAGE),
        ]
        assert scan(bytes_, check_crc=check_crc) == expected, name
        judged = native.judge(
            bytes_, np.array([0, start, end]), physical_offset=BASE, check_crc=check_crc
        )
        assert [Verdict(value) for value in judged.verdicts] == [
            segment[2] for segment in expected
        ], name
    assert messages(scan(data)) == places


# --- every cut, every byte ------------------------------------------------


@pytest.mark.parametrize("check_crc", [True, False])
def test_cut_at_every_position(check_crc: bool) -> None:
    """The cut is the end of the file, or the end of the bytes read so far."""
    data = ALL + ENDINGS["blank"]
    for end in range(len(data) + 1):
        whole = [place for place in ALL_PLACES if sum(place) <= end]
        assert messages(scan(data[:end], check_crc=check_crc)) == whole
        part = scan(data[:end], check_crc=check_crc, file_end=len(data))
        assert messages(part) == whole
        # No verdict on missing bytes: the scan stops before the truncated record.
        covered = sum(size for _, size, _ in part)
        assert covered == (len(data) if end == len(data) else sum(size for _, size in whole))


@pytest.mark.slow
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.sampled(3)
def test_every_byte_flipped(mask: int, check_crc: bool) -> None:
    data = bytearray(ALL + ENDINGS["blank"])
    for position in range(len(data)):
        data[position] ^= mask
        segments = scan(bytes(data), check_crc=check_crc)
        lost = set(ALL_PLACES) - set(messages(segments))
        damaged = {place for place in ALL_PLACES if place[0] <= position < sum(place)}
        assert lost <= damaged
        data[position] ^= mask


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 4, 8, 36, 91, 300])
def test_zeros_over_every_range(length: int) -> None:
    """Zeros do not hide a neighbouring record."""
    whole = ALL + ENDINGS["zeros"]
    for start in range(0, len(whole), 3):
        data = bytearray(whole)
        data[start : start + length] = bytes(len(data[start : start + length]))
        intact = [
            (position, size)
            for position, size in ALL_PLACES
            if data[position : position + size] == whole[position : position + size]
        ]
        intact_places = messages(scan(bytes(data), check_crc=False))
        assert set(intact) <= set(intact_places)


@pytest.mark.slow
def test_start_and_stop_anywhere() -> None:
    data = ALL + ENDINGS["garbage"]
    firsts = [position for position, _ in ALL_PLACES]
    for start in range(len(data)):
        walked = scan(data, start)
        records_from_start = [place for place in ALL_PLACES if place[0] >= start]
        assert messages(walked) == records_from_start
        stop = start + 150
        expected = [place for place in records_from_start if place[0] < stop]
        assert messages(scan(data, start, stop)) == expected
        record_position = native.find_record(data, start, physical_offset=BASE)
        assert record_position == reference.find_record(data, start, physical_offset=BASE)
        assert record_position == min(
            (position for position in firsts if position >= start), default=len(data)
        )
    assert scan(data, len(data)) == []
    assert scan(data, 10, 5) == []


@pytest.mark.parametrize("kernels", [native, reference])
def test_a_scan_with_little_room_is_resumable(kernels: Any) -> None:
    data = ALL + ENDINGS["garbage"]
    whole = kernels.scan(data, 0, len(data), physical_offset=BASE)
    for room in (1, 2, 5, len(whole.positions), 1000):
        position = 0
        records = []
        while position < len(data):
            some = kernels.scan(data, position, len(data), physical_offset=BASE, room=room)
            assert 0 < len(some.positions) <= room
            records += listed(some)
            position = some.next_position
        assert records == listed(whole)
    nothing = kernels.scan(data, 0, len(data), physical_offset=BASE, room=0)
    assert listed(nothing) == []
    assert nothing.next_position == 0


# --- parts of a file ------------------------------------------------------


def test_lead_bytes_at_the_end_of_a_part_are_no_record() -> None:
    """Bytes that are too few for a verdict are neither a record nor damage."""
    data = b"x" * 60 + b"\xda" * 30
    for kernels in (native, reference):
        where = {"physical_offset": BASE, "file_end": 1000}
        assert kernels.find_record(data, 0, **where) == len(data)
        segments = kernels.scan(data, 0, len(data), **where)
        left = record.JUDGED_BYTES - 1
        assert listed(segments) == [(0, len(data) - left, Verdict.BAD_MAGIC)]


@each("inside", range(1, 9))
def test_zeros_at_the_end_of_a_part_may_be_a_head(inside: int) -> None:
    """A TOTALSIZE starts with zeros: a part that ends with them must not hide the record."""
    first = KINDS["plain"](BASE)
    gap = len(first) + 50
    data = first + bytes(50) + KINDS["v2"](BASE + gap)
    part = data[: gap + inside]
    taken = native.scan(part, 0, len(part), physical_offset=BASE, file_end=len(data))
    assert taken.next_position <= gap
    assert scan(part, file_end=len(data)) == listed(taken)
    rest = scan(data, taken.next_position)
    assert messages(rest) == [(gap, len(data) - gap)]


def test_walk_over_growing_parts_finds_everything() -> None:
    data = ALL + bytes(100) + b"damage" * 30 + bytes(60)
    data += KINDS["plain"](BASE + len(data)) + ENDINGS["zeros"]
    whole = scan(data)
    for step in (1, 7, 50, 333):
        position = 0
        records = []
        for end in [*range(step, len(data), step), len(data)]:
            segments = native.scan(
                data[:end], position, end, physical_offset=BASE, file_end=len(data)
            )
            records += listed(segments)
            position = segments.next_position
        assert position == len(data)
        assert messages(records) == messages(whole)
        assert len(messages(records)) == len(ALL_PLACES) + 1


def test_record_that_claims_more_than_the_file_has() -> None:
    """The record is damage in the whole file, and in a part that ends before the record could."""
    data = bytearray(ALL)
    start, size = ALL_PLACES[3]
    data[start : start + 4] = (len(ALL) - start + 1).to_bytes(4, "big")
    for end in (len(ALL), start + size + 10):
        segments = scan(bytes(data[:end]), file_end=len(ALL))
        assert (start, Verdict.BAD_SIZE) in [
            (position, verdict) for position, _, verdict in segments
        ]


# --- ends of data, checksums ----------------------------------------------


def test_data_end_at_every_position_and_alignment() -> None:
    for length, zeros, lead in itertools.product(range(12), range(20), range(3)):
        data = b"?" * lead + b"\1" * length + bytes(zeros)
        for start in (0, lead, len(data)):
            expected = max(start, lead + length)
            assert native.data_end(data, start) == reference.data_end(data, start) == expected


# --- buffers, threads, real logs ------------------------------------------


def test_any_buffer_is_accepted() -> None:
    mapped = mmap.mmap(-1, len(ALL))
    mapped[:] = ALL
    expected = listed(native.scan(ALL, 0, len(ALL), physical_offset=BASE))
    padded = memoryview(b"???" + ALL + b"???")
    for buffer in (
        bytearray(ALL),
        memoryview(ALL),
        mapped,
        np.frombuffer(ALL, np.uint8),
        padded[3:-3],
    ):
        assert scan(buffer) == expected
        assert native.find_record(buffer, 1, physical_offset=BASE) == ALL_PLACES[1][0]
        assert reference.find_record(buffer, 1, physical_offset=BASE) == ALL_PLACES[1][0]
        assert native.data_end(buffer) == reference.data_end(buffer) == len(ALL.rstrip(b"\0"))


def test_ranges_scanned_in_threads_join_to_one_scan() -> None:
    rng = seeds.random("scan in threads")
    kinds = rng.choices(list(KINDS), k=20_000)
    data, places = build(kinds)
    damaged = bytearray(data)
    for _ in range(200):
        damaged[rng.randrange(len(damaged))] ^= 0xFF
    buffer = bytes(damaged)
    whole = native.scan(buffer, 0, len(buffer), physical_offset=BASE)
    middles = [len(buffer) * i // 8 for i in range(1, 8)]
    starts = [
        0,
        *(native.find_record(buffer, position, physical_offset=BASE) for position in middles),
    ]
    ranges = list(zip(starts, [*starts[1:], len(buffer)], strict=True))

    def walk(bounds: tuple[int, int]) -> list[tuple[int, int, Verdict]]:
        return listed(native.scan(buffer, *bounds, physical_offset=BASE))

    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            parts = list(pool.map(walk, ranges))
            assert list(itertools.chain(*parts)) == listed(whole)
    assert len(messages(listed(whole))) > len(places) - 400


def golden_logs() -> Iterator[tuple[str, int, bytes]]:
    """Return every distinct log file of the golden stores."""
    seen = set()
    for version, name in (*golden.STORES, *((v, f"torn/{name}") for v, name in golden.TORN)):
        for file in golden.log_files(golden.unpack(version, name)):
            data = file.read_bytes()
            state = hashlib.sha256(data).digest()
            if state not in seen and file.name.isdigit():
                seen.add(state)
                yield f"{version} {name} {file.name}", int(file.name), data


@pytest.mark.slow
@pytest.mark.interop
def test_both_kernels_agree_on_golden_logs_and_on_damaged_ones() -> None:
    count = 0
    for name, base, data in golden_logs():
        for check_crc in (True, False):
            for end in {len(data), len(data) * 2 // 3}:
                part = data[:end]
                options = {"base": base, "check_crc": check_crc, "file_end": len(data)}
                assert scan(part, **options) is not None, name
        count += 1
    assert count > 80


@pytest.mark.interop
@each(("version", "name"), golden.STORES)
def test_every_record_of_java_is_found(version: str, name: str) -> None:
    records = {}
    damage = []
    for file in golden.log_files(golden.unpack(version, name)):
        data = file.read_bytes()
        base = int(file.name)
        for position, size, verdict in scan(data, base=base):
            if verdict is Verdict.MESSAGE:
                records[base + position] = size
            elif verdict > Verdict.TRUNCATED:
                damage.append((base + position, size, verdict))
    expected = {
        message["commitLogOffset"]: message["storeSize"]
        for message in golden.messages(version, name)
    }
    assert expected.items() <= records.items()
    beyond = golden.manifest(version, name)["log"].get("readableBeyondEnd", [])
    assert set(records) - set(expected) <= set(beyond)
    assert damage == []
