"""Compiled kernels and their reference implementation agree, on damaged bytes too.

Hypothesis makes a log file of records with every oddity of the format, between them zeros, garbage
and bytes that look like heads; then damage. Both implementations return the same result, no intact
record is lost, and no byte outside of the given memory is read or written.
"""

import itertools
import os
import pickle
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings, strategies as st

from reput.format import body as bodies, message as record, properties as props, sys_flag as flags
from reput.format.kernels import native, reference
from reput.format.kernels.layout import LOCATED, Pairs, Runs, Segments, Words
from reput.format.message import Host, StoredMessage, Verdict

try:
    native.engine()
except native.KernelsUnavailable:
    pytest.skip("no compiled kernels here", allow_module_level=True)

# The profile of the run (``--hypothesis-profile``), or the one of the environment.
PROFILE = settings.get_profile(
    os.environ.get("HYPOTHESIS_PROFILE", settings.get_current_profile_name())
)


def examples(count: int) -> settings:
    """Set ``count`` examples per 100 of the profile; a third of that with the default profile."""
    percent = PROFILE.max_examples if PROFILE.max_examples > 100 else 33
    return settings(
        PROFILE,
        max_examples=max(count * percent // 100, 1),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        phases=[phase for phase in PROFILE.phases if phase is not Phase.explain],  # Minutes.
    )


# --- generated records ----------------------------------------------------

ODD_BYTES = st.sampled_from(
    [
        b"\xff",
        b"\xc3",  # Truncated.
        b"\xc0\x80",  # Overlong.
        b"\xed\xa0\x80",  # A surrogate.
        b"\xf4\x90\x80\x80",  # Over U+10FFFF.
        b"\xf0\x9f\x98",  # Truncated.
        b"a\x80b",
        b"\xe0\x80\x80",
    ]
)
TEXTS = st.text(max_size=8).map(str.encode)
PROPERTY_NAMES = st.one_of(
    st.sampled_from(
        [b"TAGS", b"KEYS", b"UNIQ_KEY", b"WAIT", b"TAGZ", b"UNIQ_KEZ", b"a", b"", b" "]
    ),
    TEXTS,
    ODD_BYTES,
)
PROPERTY_VALUES = st.one_of(
    TEXTS,
    st.sampled_from(
        [b"", b"x", b"TagA", b" one  two ", b"k1 k2", b"   ", b"x\x01y", b"\x01", b"Aa BB"]
    ),
    ODD_BYTES,
    st.lists(st.one_of(TEXTS, st.just(b"")), max_size=4).map(b" ".join),
)
KNOWN_NAMES = st.sampled_from([b"TAGS", b"KEYS", b"KEYS", b"UNIQ_KEY"])
WORDS = st.lists(st.one_of(TEXTS, st.sampled_from([b"", b"", b"k", b"key2"])), max_size=5).map(
    b" ".join
)
PAIRS = st.one_of(
    st.tuples(KNOWN_NAMES, st.one_of(WORDS, PROPERTY_VALUES)).map(b"\x01".join),
    st.tuples(PROPERTY_NAMES, PROPERTY_VALUES).map(b"\x01".join),
    PROPERTY_NAMES,  # No separator.
)


def property_strings() -> st.SearchStrategy[bytes]:
    """Return pairs, with or without the last separator."""
    ends = st.sampled_from([b"", b"\x02"])
    return st.tuples(st.lists(PAIRS, max_size=7).map(b"\x02".join), ends).map(b"".join)


PROPERTIES = st.one_of(
    property_strings(),
    property_strings(),  # So that the other kinds are half of the examples.
    property_strings(),
    st.sampled_from(
        [b"", b"TAGS\x01\xc3", b"a\x01\xe2\x82", b"KEYS\x01k \xf0\x9f\x98"]
    ),  # Truncated.
    # Over 64 pairs, and more pairs of one name than of all other names.
    st.integers(60, 90).map(lambda n: b"".join(b"k%d\x01v%d\x02" % (i % 70, i) for i in range(n))),
    # The largest number of pairs that a string can hold.
    st.integers(1, 40).map(lambda n: b"\x02".join([b"a\x01b"] * n)),
    st.one_of(
        st.binary(max_size=40),
        st.lists(st.sampled_from([b"\x01", b"\x02", b"TAGS", b"a", b" "]), max_size=12).map(
            b"".join
        ),
    ),
)
ADDRESSES = st.one_of(
    st.binary(min_size=4, max_size=4),
    st.binary(min_size=16, max_size=16),
    st.sampled_from([bytes(4), bytes(16), b"\xff" * 16, b"\xfd" + bytes(14) + b"\x02"]),
)
# Drawn together: separate draws would take most of the time.
FIXED_FIELDS = struct.Struct(">4i4q2i")
COMPRESSION_TYPES = st.sampled_from(
    [0, flags.COMPRESSION_LZ4, flags.COMPRESSION_ZSTD, flags.COMPRESSION_ZLIB, 0x400, 0x700]
)


@st.composite
def stored_bodies(draw: st.DrawFn) -> tuple[bytes, int]:
    """Return a stored body and its compression bits, which may be wrong."""
    plain = draw(st.one_of(st.binary(max_size=24), st.integers(0, 300).map(lambda n: b"ab" * n)))
    if draw(st.integers(0, 2)):
        return plain, 0
    bits = flags.COMPRESSED | draw(COMPRESSION_TYPES)
    if draw(st.booleans()) or bodies.compression_name(bits).startswith("unknown"):
        return plain, bits
    packed = bodies.compress(plain, bits)
    return packed[: draw(st.sampled_from([None, -1, 3]))], bits


@dataclass(frozen=True)
class Draft:
    """A record without its offset."""

    message: StoredMessage
    topic: bytes
    trailer: str
    """Kind of the ``__CRC32#`` property: "", "right", "wrong" or "odd"."""
    body_crc_error: int
    inner: "Draft | None" = None
    """A record within the body, at its right offset: only a scan from outside skips it."""

    def at(self, physical_offset: int) -> bytes:
        message = self.message
        body = message.body
        if self.inner is not None:
            body_start = record.HEAD.size + record.STORE_TIMESTAMP.size + record.TAIL.size
            body_start += record.host_bytes(message.born_host.is_v6)
            body_start += record.host_bytes(message.store_host.is_v6)
            body = self.inner.at(physical_offset + body_start)
        property_bytes = message.property_bytes
        if self.trailer and property_bytes and not property_bytes.endswith(b"\x02"):
            property_bytes += b"\x02"
        values = {name: getattr(message, name) for name in StoredMessage.__slots__}
        values |= {
            "topic": "t" * len(self.topic),
            "body": body,
            "body_crc": bodies.crc(body) ^ self.body_crc_error,
            "physical_offset": physical_offset,
            "property_bytes": property_bytes,
        }
        data = bytearray(record.encode(StoredMessage(**values)))
        topic_end = len(data) - len(property_bytes) - record.PROPERTIES_LENGTH.size
        data[topic_end - len(self.topic) : topic_end] = self.topic
        if self.trailer:
            data = bytearray(record.append_crc_property(bytes(data)))
        if self.trailer == "wrong":
            data[-2] ^= 1
        elif self.trailer == "odd":
            data[-5] = ord("x")
        return bytes(data)


@st.composite
def drafts(draw: st.DrawFn, inner: st.SearchStrategy[Draft] | None = None) -> Draft:
    """Return a record."""
    body, bits = draw(stored_bodies())
    fixed = draw(
        st.one_of(
            st.just(bytes(FIXED_FIELDS.size)),
            st.binary(min_size=FIXED_FIELDS.size, max_size=FIXED_FIELDS.size),
        )
    )
    fields = FIXED_FIELDS.unpack(fixed)
    born_host, store_host = (Host(draw(ADDRESSES), port) for port in fields[:2])
    # Undefined bits are kept; those of hosts and body must be right.
    bits |= fields[2] & ~0x731
    bits |= flags.BORN_HOST_V6 if born_host.is_v6 else 0
    bits |= flags.STORE_HOST_V6 if store_host.is_v6 else 0
    message = StoredMessage(
        topic="",
        body=body,
        queue_id=fields[3],
        queue_offset=fields[4],
        physical_offset=0,
        born_timestamp=fields[5],
        born_host=born_host,
        store_timestamp=fields[6],
        store_host=store_host,
        flag=fields[8],
        sys_flag=bits,
        reconsume_times=fields[9],
        prepared_transaction_offset=fields[7],
        version=draw(st.sampled_from([1, 1, 2])),
        property_bytes=draw(PROPERTIES),
    )
    return Draft(
        message,
        draw(st.one_of(TEXTS, st.sampled_from([b"", b"T", b"Topic", b"x" * 130]), ODD_BYTES)),
        draw(st.sampled_from(["", "", "", "right", "wrong", "odd"])),
        draw(st.sampled_from([0, 0, 0, 0, 1])),
        draw(inner) if inner is not None else None,
    )


# --- generated logs -------------------------------------------------------


class Log(NamedTuple):
    """Bytes of a log file, perhaps damaged."""

    data: bytes
    base: int
    """Physical offset of the first byte."""
    records: tuple[tuple[int, int], ...]
    """Position and size of the written records."""


HEAD_WORDS = [
    magic.to_bytes(4, "big", signed=True)
    for magic in (record.MAGIC_V1, record.MAGIC_V2, record.MAGIC_BLANK)
]
FILLERS = st.one_of(
    st.integers(1, 100).map(bytes),
    st.binary(min_size=1, max_size=50),
    st.lists(
        st.sampled_from([*HEAD_WORDS, b"\xda", b"\xcb", b"\x80\xbf\xbf", b"\0\0\0\x60", b"\0"]),
        min_size=1,
    ).map(b"".join),
)
BASES = st.one_of(
    st.sampled_from([0, 1 << 30, 1 << 62]), st.integers(0, 1 << 20), st.integers(0, 1 << 62)
)


@st.composite
def logs(draw: st.DrawFn, *, fillers: bool = True) -> Log:
    """Return a log file: records, fillers between them, and one of the endings of files."""
    base = draw(BASES)
    kinds = ["record"] * 6 + ["nested"] + ["filler"] * (2 if fillers else 0)
    makers = {"record": drafts(), "nested": drafts(inner=drafts()), "filler": FILLERS}
    data = b""
    places = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6)):
        filler = draw(makers[kind])
        if isinstance(filler, Draft):
            packed = filler.at(base + len(data))
            places.append((len(data), len(packed)))
            data += packed
        else:
            data += filler
    ending = draw(st.sampled_from(["", "zeros", "blank", "filler"]))
    if ending == "zeros":
        data += bytes(draw(st.integers(1, 100)))
    elif ending == "filler" and fillers:
        data += draw(FILLERS)
    elif ending == "blank":
        rest = draw(st.one_of(st.just(b""), st.integers(0, 30).map(bytes), st.binary(max_size=30)))
        data += record.pack_blank(8 + len(rest)) + rest
    return Log(data, base, tuple(places))


@st.composite
def damaged_logs(draw: st.DrawFn, *, in_place: bool = False) -> Log:
    """Return a damaged log; ``in_place`` shifts no other byte."""
    log = draw(logs())
    data = bytearray(log.data)
    kinds = ["flip", "put", "zero", "copy", "word"] + ([] if in_place else ["insert", "delete"])
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=3)):
        if not data:
            break
        position = draw(st.integers(0, len(data) - 1))
        length = min(draw(st.one_of(st.integers(1, 12), st.integers(1, 200))), len(data) - position)
        if kind == "flip":
            data[position] ^= draw(st.integers(1, 255))
        elif kind == "put":
            new = draw(st.binary(min_size=1, max_size=12))[:length]
            data[position : position + len(new)] = new
        elif kind == "zero":
            data[position : position + length] = bytes(length)
        elif kind == "copy":
            source = draw(st.integers(0, len(data) - length))
            data[position : position + length] = data[source : source + length]
        elif kind == "word":
            new = draw(st.sampled_from(HEAD_WORDS))[:length]
            data[position : position + len(new)] = new
        elif kind == "insert":
            data[position:position] = draw(FILLERS)
        else:
            del data[position : position + length]
    intact = log.records
    if in_place:
        intact = tuple(
            (position, size)
            for position, size in intact
            if data[position : position + size] == log.data[position : position + size]
        )
    return Log(bytes(data), log.base, intact)


class ScanInput(NamedTuple):
    """A scan of a part of a log file."""

    log: Log
    part: bytes
    file_end: int | None
    start: int
    stop: int
    check_crc: bool

    def scan(self, kernels: Any, **changes: Any) -> Segments:
        wanted = {
            "physical_offset": self.log.base,
            "file_end": self.file_end,
            "check_crc": self.check_crc,
        }
        scanned: Segments = kernels.scan(self.part, self.start, self.stop, **wanted | changes)
        return scanned


@st.composite
def looks(draw: st.DrawFn) -> ScanInput:
    """Return a scan of a damaged log, whole or in part."""
    log = draw(damaged_logs())
    length = len(log.data)
    end = draw(st.one_of(st.just(length), st.just(length), st.integers(0, length)))
    later = st.one_of(st.just(length), st.integers(end, end + 40), st.integers(end, 1 << 31))
    file_end = draw(st.one_of(st.none(), later.filter(lambda value: value >= end)))
    start = draw(st.one_of(st.just(0), st.just(0), st.integers(0, end)))
    stop = draw(st.one_of(st.just(end), st.just(end), st.integers(0, end + 40)))
    return ScanInput(log, log.data[:end], file_end, start, stop, draw(st.booleans()))


def whole(log: Log) -> ScanInput:
    """Return a scan of a whole log, without a check of checksums."""
    return ScanInput(log, log.data, None, 0, len(log.data), False)


def listed(segments: Segments) -> list[tuple[int, int, Verdict]]:
    """Return segments as tuples, for readable differences."""
    assert segments.positions.dtype == np.int64
    assert segments.sizes.dtype == np.int32
    assert segments.verdicts.dtype == np.uint8
    return [
        (position, size, Verdict(verdict))
        for position, size, verdict in zip(
            segments.positions.tolist(),
            segments.sizes.tolist(),
            segments.verdicts.tolist(),
            strict=True,
        )
    ]


# --- scanning -------------------------------------------------------------


@examples(400)
@given(looks())
def test_both_kernels_scan_alike(look: ScanInput) -> None:
    compiled, plain = look.scan(native), look.scan(reference)
    assert listed(compiled) == listed(plain)
    assert compiled.next_position == plain.next_position


@examples(200)
@given(looks())
def test_segments_tile_the_scanned_range_and_agree_with_classify(look: ScanInput) -> None:
    segments = look.scan(native)
    start = look.start
    for position, size, verdict in listed(segments):
        assert position == start < look.stop
        assert size > 0
        start += size
        judged, bytes_judged = record.classify(
            look.part,
            position,
            look.log.base + position,
            file_end=look.file_end,
            check_crc=look.check_crc,
        )
        assert judged is verdict
        if verdict in (Verdict.MESSAGE, Verdict.BLANK, Verdict.BAD_CRC, Verdict.BAD_RECORD_CRC):
            assert bytes_judged == size
    assert segments.next_position == start
    end = min(look.stop, len(look.part))
    if start < end:
        # The scan stops early only where too few bytes are left for a verdict.
        assert look.file_end is not None
        assert look.file_end > len(look.part)
        judged, _ = record.classify(
            look.part, start, look.log.base + start, file_end=look.file_end, check_crc=False
        )
        assert judged is Verdict.TRUNCATED


@examples(150)
@given(looks(), st.integers(1, 3))
def test_a_scan_with_little_room_can_be_resumed(look: ScanInput, room: int) -> None:
    for kernels in (native, reference):
        whole = look.scan(kernels)
        segments: list[tuple[int, int, Verdict]] = []
        position = look.start
        while True:
            some = look._replace(start=position).scan(kernels, room=room)
            assert len(some.positions) <= room
            segments += listed(some)
            if not len(some.positions):
                break
            assert some.next_position > position
            position = some.next_position
        assert segments == listed(whole)
        assert position == whole.next_position


@examples(250)
@given(damaged_logs(in_place=True), st.booleans())
def test_no_record_outside_the_damage_is_lost(log: Log, check_crc: bool) -> None:
    """A bad record must not cost the other ones (known-bugs.md#dispatch-skips-a-buffer)."""
    segments = native.scan(
        log.data, 0, len(log.data), physical_offset=log.base, check_crc=check_crc
    )
    taken = {
        (position, size)
        for position, size, verdict in listed(segments)
        if verdict in (Verdict.MESSAGE, Verdict.BAD_CRC, Verdict.BAD_RECORD_CRC)
    }
    assert set(log.records) <= taken
    if not check_crc:
        good = {place[:2] for place in listed(segments) if place[2] is Verdict.MESSAGE}
        assert set(log.records) <= good


WHOLE = (Verdict.MESSAGE, Verdict.BLANK, Verdict.BAD_CRC, Verdict.BAD_RECORD_CRC)


def walk_in_windows(
    log: Log, window_bytes: int, kernels: Any
) -> Iterator[tuple[int, int, Verdict]]:
    """Read a file window by window, like ``reput.store``; positions are those in the file."""
    start = 0
    width = window_bytes
    while start < len(log.data):
        window = log.data[start : start + width]
        segments = kernels.scan(
            window,
            0,
            len(window),
            physical_offset=log.base + start,
            file_end=len(log.data) - start,
        )
        for position, size, verdict in listed(segments):
            yield start + position, size, verdict
        if segments.next_position:
            start += segments.next_position
            width = window_bytes
        else:
            assert start + len(window) < len(log.data), "nothing is left to read, and no progress"
            width *= 2


@examples(200)
@given(damaged_logs(), st.one_of(st.integers(1, 60), st.integers(60, 500)))
def test_a_scan_in_windows_finds_the_records_of_a_whole_scan(log: Log, window_bytes: int) -> None:
    whole = native.scan(log.data, 0, len(log.data), physical_offset=log.base)
    expected = [segment for segment in listed(whole) if segment[2] in WHOLE]
    # Between bytes of TOTALSIZE that are zero.
    inside_a_head = [position + 2 for position, _ in log.records]
    for width in (window_bytes, *inside_a_head):
        walked = list(walk_in_windows(log, width, native))
        assert walked == list(walk_in_windows(log, width, reference))
        assert [segment for segment in walked if segment[2] in WHOLE] == expected
        ends = [0, *(position + size for position, size, _ in walked)]
        assert [position for position, _, _ in walked] == ends[:-1]
        assert ends[-1] == len(log.data)


@examples(100)
@given(looks(), st.data())
def test_both_judge_positions_alike(look: ScanInput, data: st.DataObject) -> None:
    end = len(look.part)
    anywhere = st.integers(0, end - 1) if end else st.nothing()
    starts = [position for position, _ in look.log.records if position < end]
    drawn = data.draw(st.lists(anywhere, max_size=6 if end else 0))
    positions = np.array([*starts, *drawn, *range(end)[-5:]], np.int64)
    where = {
        "physical_offset": look.log.base,
        "file_end": look.file_end,
        "check_crc": look.check_crc,
    }
    compiled = native.judge(look.part, positions, **where)
    assert listed(compiled) == listed(reference.judge(look.part, positions, **where))
    for position, size, verdict in listed(compiled):
        judged, bytes_judged = record.classify(
            look.part,
            position,
            look.log.base + position,
            file_end=look.file_end,
            check_crc=look.check_crc,
        )
        if judged is Verdict.ZEROS:  # The expected position of a record.
            assert verdict in (Verdict.BAD_ZEROS, Verdict.BAD_SIZE)
            assert size == 0
        else:
            assert (verdict, size) == (judged, bytes_judged)


@examples(150)
@given(looks())
def test_both_find_the_same_next_record(look: ScanInput) -> None:
    where = {"physical_offset": look.log.base, "file_end": look.file_end}
    record_position = native.find_record(look.part, look.start, **where)
    assert record_position == reference.find_record(look.part, look.start, **where)
    assert look.start <= record_position <= len(look.part)


@examples(100)
@given(logs(fillers=False), st.data())
def test_find_record_finds_the_next_record_from_any_position(log: Log, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(log.data)))
    next_position = native.find_record(log.data, position, physical_offset=log.base)
    following = [
        record_position for record_position, _ in log.records if record_position >= position
    ]
    if following:
        assert next_position <= following[0]
        verdict, _ = record.classify(
            log.data, next_position, log.base + next_position, check_crc=False
        )
        assert verdict is Verdict.MESSAGE
    else:
        assert next_position >= position


@examples(100)
@given(st.lists(st.one_of(st.integers(1, 40).map(bytes), st.binary(max_size=20))), st.data())
def test_both_find_the_same_end_of_data(pieces: list[bytes], data: st.DataObject) -> None:
    buffer = b"".join(pieces)
    start = data.draw(st.integers(0, len(buffer)))
    end = native.data_end(buffer, start)
    assert end == reference.data_end(buffer, start)
    assert not any(buffer[end:])
    assert end == start or buffer[end - 1]


@examples(100)
@given(st.binary(max_size=300), st.integers(0, 20))
def test_checksums_are_equal(data: bytes, skip: int) -> None:
    part = memoryview(data)[skip:]
    assert native.checksum(part) == reference.checksum(part) == bodies.crc(part)


# --- columns --------------------------------------------------------------

NUMBERS = [name for name, _ in LOCATED[: [name for name, _ in LOCATED].index("store_size") + 1]]


def described(value: Any) -> Any:
    """Return a result of ``Columns`` as plain values and types, to make differences readable."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, Runs):
        assert value.offsets.dtype == np.int32
        assert value.data.dtype == np.uint8
        data, ends = value.data.tobytes(), value.offsets.tolist()
        assert ends[0] == 0
        assert ends[-1] == len(data)
        texts = [data[a:b] for a, b in itertools.pairwise(ends)]
        return texts, None if value.present is None else described(value.present)
    if isinstance(value, (Words, Pairs, tuple)):
        return [described(item) for item in value]
    return value


def all_columns(columns: Any) -> dict[str, Any]:
    """Return the results of all methods."""
    values = {name: columns.numbers(name) for name in NUMBERS}
    values |= {
        "topics": columns.topics(),
        "topic_ids": columns.topic_ids(),
        "bodies": columns.bodies(),
        "stored_bodies": columns.bodies(decompress=False),
        "raw_properties": columns.raw_properties(),
        "properties": columns.properties(),
        "tags": columns.tags(),
        "keys": columns.keys(),
        "unique_keys": columns.unique_keys(),
        "offset_ids": columns.offset_ids(),
        "message_ids": columns.message_ids(),
        "message_ids_of": columns.message_ids(columns.offset_ids()),
        "born_hosts": columns.born_hosts(),
        "store_hosts": columns.store_hosts(),
        "tags_codes": columns.tags_codes(),
        "key_hashes": columns.key_hashes(),
        "key_hashes_with_tags": columns.key_hashes(with_tags=True),
    }
    return {"count": columns.count} | {name: described(value) for name, value in values.items()}


def accepted(look: ScanInput) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the positions of the records that a scan finds."""
    segments = look.scan(native)
    return segments.positions[segments.verdicts == Verdict.MESSAGE]


@examples(300)
@given(st.one_of(looks(), logs().map(whole)))
def test_both_kernels_decode_alike(look: ScanInput) -> None:
    positions = accepted(look)
    compiled = all_columns(native.Columns(look.part, positions))
    plain = all_columns(reference.Columns(look.part, positions))
    for name, value in plain.items():
        assert compiled[name] == value, name


@examples(100)
@given(logs(), st.data())
def test_both_take_the_same_rows(log: Log, data: st.DataObject) -> None:
    positions = np.array([position for position, _ in log.records], np.int64)
    compiled, plain = (kernels.Columns(log.data, positions) for kernels in (native, reference))
    count = len(positions)
    masks = st.lists(st.booleans(), min_size=count, max_size=count).map(
        lambda values: np.array(values, np.bool_)
    )
    indices = st.lists(
        st.integers(-count, count - 1) if count else st.nothing(), max_size=8 * bool(count)
    ).map(lambda values: np.array(values, np.int64))
    all_columns(compiled)  # Columns computed for all rows must not appear in a part.
    for rows in (data.draw(masks), data.draw(indices)):
        part = all_columns(compiled.take(rows))
        assert part == all_columns(plain.take(rows))
        assert part == all_columns(reference.Columns(log.data, positions[rows]))


@examples(50)
@given(logs(fillers=False))
def test_records_round_trip_through_columns(log: Log) -> None:
    """Compare with the codec directly: it shares no code with the reference implementation."""
    columns = native.Columns(
        log.data, np.array([position for position, _ in log.records], np.int64)
    )
    properties = columns.properties()
    names, values = (described(runs)[0] for runs in properties[1:])
    for row, (position, size) in enumerate(log.records):
        message = record.decode(log.data, position, check_crc=False)
        assert columns.numbers("store_size")[row] == size
        for name in NUMBERS:
            assert columns.numbers(name)[row] == getattr(message, name), name
        first, last = properties.offsets[row : row + 2]
        row_properties = dict(zip(names[first:last], values[first:last], strict=True))
        assert row_properties == {
            name.encode(): value.encode()
            for name, value in props.decode(message.property_bytes).items()
        }


# --- memory: no byte outside the buffer is read -------------------------------

GUARDED = '''
"""Run the kernels on buffers next to a page without access, before or after them."""

import ctypes, mmap, pickle, sys
import numpy as np
from reput.format.kernels import native
from reput.format.message import Verdict

PAGE = mmap.PAGESIZE
ROOM = 64 * PAGE
region = mmap.mmap(-1, ROOM + 2 * PAGE)
START = ctypes.addressof(ctypes.c_char.from_buffer(region)) + PAGE
END = START + ROOM
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
for guard in (START - PAGE, END):
    assert libc.mprotect(guard, PAGE, 0) == 0


def place(data, at):
    """Copy bytes to an address; return them as a buffer."""
    ctypes.memmove(at, data, len(data))
    return (ctypes.c_uint8 * len(data)).from_address(at)


def run(data, start, stop, base, file_end, check_crc):
    native.checksum(data)
    native.data_end(data, start)
    native.find_record(data, start, physical_offset=base, file_end=file_end)
    found = native.scan(
        data, start, stop, physical_offset=base, file_end=file_end, check_crc=check_crc
    )
    everywhere = np.arange(len(data))
    native.judge(data, everywhere, physical_offset=base, file_end=file_end, check_crc=check_crc)
    columns = native.Columns(data, found.positions[found.verdicts == Verdict.MESSAGE])
    columns.topics(), columns.topic_ids(), columns.raw_properties(), columns.properties()
    columns.bodies(), columns.bodies(decompress=False), columns.tags(), columns.keys()
    columns.unique_keys(), columns.offset_ids(), columns.message_ids(), columns.tags_codes()
    columns.born_hosts(), columns.store_hosts(), columns.key_hashes(with_tags=True)
    columns.take(np.arange(columns.count)[::-1]).properties()
    return columns.count


with open(sys.argv[1], "rb") as file:
    cases = pickle.load(file)
rows = 0
for data, *rest in cases:
    assert len(data) <= ROOM
    rows += run(place(data, END - len(data)), *rest)  # right before the guard
    run(place(data, START), *rest)  # right after the other one
if sys.argv[2:] == ["--overstep"]:
    native.checksum((ctypes.c_uint8 * 9).from_address(END - 8))
print(native.engine(), len(cases), rows)
'''


def run_guarded(cases: list[Any], folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    file = folder / "cases"
    file.write_bytes(pickle.dumps(cases))
    return subprocess.run(
        [sys.executable, "-c", GUARDED, str(file), *options],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_nothing_outside_the_buffer_is_read(tmp_path: Path) -> None:
    cases: list[Any] = []

    @examples(250)
    @given(looks())
    def collect(look: ScanInput) -> None:
        where = (look.start, look.stop, look.log.base, look.file_end, look.check_crc)
        cases.append((look.part, *where))
        # Each record alone: no byte follows a text that ends inside a character.
        cases.extend(
            (
                look.log.data[position : position + size],
                0,
                size,
                look.log.base + position,
                None,
                False,
            )
            for position, size in look.log.records
        )
        # A record truncated at several positions: the first missing byte is read first.
        for position, size in look.log.records[-1:]:
            file_end = None if look.check_crc else position + size
            cases.extend(
                (look.log.data[:end], position, end, look.log.base, file_end, True)
                for end in range(position + 1, position + size, 17 + size // 20)
            )

    collect()
    done = run_guarded(cases, tmp_path)
    assert done.returncode == 0, (done.returncode, done.stderr)
    engine, count, rows = done.stdout.split()
    assert engine == native.engine()
    assert int(count) == len(cases) > 500
    assert int(rows) > 100


def test_a_read_past_the_buffer_is_detected(tmp_path: Path) -> None:
    """The guard works: the same run crashes on a buffer that extends into the next page."""
    done = run_guarded([(b"\0" * 9, 0, 9, 0, None, True)], tmp_path, "--overstep")
    assert done.returncode in (-signal.SIGSEGV, -signal.SIGBUS)
    assert "assert" not in done.stderr.lower()


# --- memory: no byte outside the arrays is written ----------------------------


class GuardedNumpy:
    """numpy whose new arrays are between guard bytes and contain garbage instead of zeros."""

    GUARD = 64

    def __init__(self) -> None:
        self._blocks: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, count: int, kind: Any) -> Any:
        size = count * np.dtype(kind).itemsize
        block = np.full(size + 2 * self.GUARD, 0xA5, np.uint8)
        self._blocks.append(block)
        return block[self.GUARD : self.GUARD + size].view(kind)

    def zeros(self, count: int, kind: Any) -> Any:
        return self.full(count, 0, kind)

    def full(self, count: int, value: int, kind: Any) -> Any:
        array = self.empty(count, kind)
        array[:] = value
        return array

    def check(self) -> None:
        assert self._blocks
        for block in self._blocks:
            assert (block[: self.GUARD] == 0xA5).all()
            assert (block[-self.GUARD :] == 0xA5).all()


# The extremes: pairs of two characters, words of one, addresses of the widest form.
WIDEST = Draft(
    StoredMessage(
        topic="",
        body=b"",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        born_timestamp=0,
        born_host=Host(b"\xff" * 16, -(2**31)),
        store_timestamp=0,
        store_host=Host(b"\xff" * 16, -(2**31)),
        sys_flag=flags.BORN_HOST_V6 | flags.STORE_HOST_V6,
        property_bytes=b"\x02".join([b"%c\x01b" % letter for letter in range(97, 117)]),
    ),
    b"T",
    "",
    0,
)
WORDY = Draft(
    StoredMessage(
        topic="",
        body=b"",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        born_timestamp=0,
        born_host=Host(b"\xff" * 4, -(2**31)),
        store_timestamp=0,
        store_host=Host(b"\xff" * 4, -(2**31)),
        property_bytes=b"KEYS\x01" + b" ".join([b"k"] * 20),
    ),
    b"T",
    "",
    0,
)


def scan_input(draft: Draft, count: int) -> ScanInput:
    """Return a scan of a log with the same record ``count`` times."""
    data = b""
    places = []
    for _ in range(count):
        places.append((len(data), len(draft.at(0))))
        data += draft.at(len(data))
    return ScanInput(Log(data, 0, tuple(places)), data, None, 0, len(data), True)


@examples(150)
@given(looks(), st.one_of(st.integers(1, 3), st.just(1 << 10)))
@example(scan_input(WIDEST, 1), 1)
@example(scan_input(WIDEST, 5), 5)
@example(scan_input(WORDY, 1), 1)
@example(scan_input(WORDY, 5), 5)
def test_nothing_outside_the_results_is_written(look: ScanInput, room: int) -> None:
    guarded = GuardedNumpy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "np", guarded)
        compiled = look.scan(native, room=room)
        guarded.check()
        native.judge(look.part, compiled.positions, physical_offset=look.log.base)
        guarded.check()
        positions = compiled.positions[compiled.verdicts == Verdict.MESSAGE]
        columns = all_columns(native.Columns(look.part, positions))
        guarded.check()
    assert listed(compiled) == listed(look.scan(reference, room=room))
    assert columns == all_columns(reference.Columns(look.part, positions))
