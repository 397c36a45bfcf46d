"""Records as columns: compared with Java's manifests by field, and between the kernels."""

import hashlib
import itertools
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import golden
from cases import each
from reput.format import (
    batch,
    body as bodies,
    cq_unit,
    index_entry,
    message as record,
    sys_flag as flags,
)
from reput.format.kernels import native, reference
from reput.format.kernels.layout import IntArray, Pairs, Runs, Words
from reput.format.message import Host, StoredMessage, Verdict

try:
    native.engine()
except native.KernelsUnavailable:
    pytest.skip("no compiled kernels here", allow_module_level=True)

NUMBERS = (
    "queue_id",
    "flag",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "born_timestamp",
    "store_timestamp",
    "reconsume_times",
    "prepared_transaction_offset",
    "body_crc",
    "store_size",
)


def texts(runs: Runs) -> list[bytes | None]:
    """Return the values of a text column."""
    ends, data = runs.offsets.tolist(), runs.data.tobytes()
    values = [data[a:b] for a, b in itertools.pairwise(ends)]
    if runs.present is None:
        return list(values)
    return [
        value if is_present else None
        for value, is_present in zip(values, runs.present.tolist(), strict=True)
    ]


def strings(runs: Runs) -> list[str | None]:
    return [None if value is None else value.decode() for value in texts(runs)]


def lists(offsets: IntArray, values: list[Any]) -> list[list[Any]]:
    """Return the values by row."""
    ends = offsets.tolist()
    return [values[a:b] for a, b in itertools.pairwise(ends)]


def columns_of(columns: Any) -> dict[str, Any]:
    """Return the results of all methods."""
    numbers = {name: columns.numbers(name) for name in NUMBERS}
    return numbers | {
        "topics": columns.topics(),
        "topic_ids": columns.topic_ids(),
        "bodies": columns.bodies(),
        "stored_bodies": columns.bodies(decompress=False),
        "raw_properties": columns.raw_properties(),
        "properties": columns.properties(),
        "tags": columns.tags(),
        "keys": columns.keys(),
        "unique_keys": columns.unique_keys(),
        "batch_unique_keys": columns.batch_unique_keys(),
        "offset_ids": columns.offset_ids(),
        "message_ids": columns.message_ids(),
        "message_ids_of": columns.message_ids(columns.offset_ids()),
        "born_hosts": columns.born_hosts(),
        "store_hosts": columns.store_hosts(),
        "tags_codes": columns.tags_codes(),
        "key_hashes": columns.key_hashes(with_tags=True),
        "key_hashes_without_tags": columns.key_hashes(),
    }


def same(a: Any, b: Any) -> bool:
    """Return whether two results are equal, types included."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, tuple):
        return type(a) is type(b) and all(map(same, a, b))
    return bool(a == b)


def assert_same(compiled: Any, plain: Any) -> None:
    assert compiled.count == plain.count
    ours, theirs = columns_of(compiled), columns_of(plain)
    for name, value in ours.items():
        assert same(value, theirs[name]), name


def log_columns(kernels: Any, data: bytes, base: int = 0, **options: Any) -> Any:
    """Return the records of a log file."""
    segments = kernels.scan(data, 0, len(data), physical_offset=base, **options)
    return kernels.Columns(data, segments.positions[segments.verdicts == Verdict.MESSAGE])


# --- odd records --------------------------------------------------------------

V4 = Host(bytes([192, 0, 2, 1]), 10911)
V6 = Host(bytes.fromhex("fd000000000000000000000000000002"), 10911)
FULL_V6 = Host(b"\xff" * 16, -(1 << 31))


def pack(physical_offset: int, **fields: Any) -> bytes:
    """Encode a record."""
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
    }
    values |= fields
    return record.encode(StoredMessage(**values))


def packed(text: bytes, kind: int) -> dict[str, Any]:
    bits = flags.COMPRESSED | kind
    return {"body": bodies.compress(text, bits), "sys_flag": bits}


ODD: list[dict[str, Any]] = [
    {},
    {"topic": ""},
    {"topic": "ü€😀" * 9},
    {"topic": "t" * 300},  # V2
    {"version": 2},
    {"body": b""},
    {"queue_id": -1, "flag": -(1 << 31), "queue_offset": -(1 << 63), "born_timestamp": -1},
    {"reconsume_times": 16, "prepared_transaction_offset": (1 << 63) - 1, "body_crc": -1},
    {"born_host": V6, "sys_flag": flags.BORN_HOST_V6},
    {"store_host": V6, "sys_flag": flags.STORE_HOST_V6},
    {
        "born_host": FULL_V6,
        "store_host": FULL_V6,
        "sys_flag": flags.BORN_HOST_V6 | flags.STORE_HOST_V6,
    },
    {"born_host": Host(bytes(4), 0), "store_host": Host(b"\xff" * 4, (1 << 31) - 1)},
    packed(b"zlib " * 50, flags.COMPRESSION_ZLIB),
    packed(b"untyped " * 50, 0),
    packed(b"lz4 " * 50, flags.COMPRESSION_LZ4),
    packed(b"zstd " * 50, flags.COMPRESSION_ZSTD),
    {"body": b"not packed", "sys_flag": flags.COMPRESSED},
    {"body": b"unknown", "sys_flag": flags.COMPRESSED | 0x500},
    {"body": b"", "sys_flag": flags.COMPRESSED},
    *(
        {"property_bytes": text}
        for text in (
            b"\x01",
            b"\x02",
            b"\x01\x02",
            b"a",
            b"a\x01",
            b"\x01b",
            b"a\x01b",
            b"a\x01b\x02",
            b"\x02\x02a\x01b\x02\x02c\x01d",
            b"a\x01b\x01c\x02d\x01\x01\x02",
            b"a\x01\x02b\x01\x02",
            b"a\x011\x02b\x012\x02a\x013\x02",
            b"a\x011\x02a\x01\x02",  # An empty value does not replace the earlier one.
            b"TAGS\x01TagA\x02KEYS\x01one\x02UNIQ_KEY\x01C0000201\x02",
            b"TAGS\x01TagA\x02TAGS\x01TagB",
            b"TAGS\x01TagA\x02TAGS\x01",
            b"TAG\x01x\x02TAGSS\x01y\x02UNIQ_KE\x01z\x02UNIQ_KEY2\x01z\x02keys\x01k",
            b"KEYS\x01 one  two \x02",
            b"KEYS\x01   \x02",
            b"KEYS\x01" + b" ".join([b"k"] * 70),
            "TAGS\x01Tag ü😀\x02KEYS\x01客户 78\x02UNIQ_KEY\x01ü".encode(),
            b"TAGS\x01\xff\x02KEYS\x01a\xc3 b\x02UNIQ_KEY\x01\xed\xa0\x80",
            b"\xff\x01x\x02\xfe\x01y\x02",  # Two names that are equal when decoded.
            b"TAGS\xff\x01x",
            b"".join(b"name%d\x01value%d\x02" % (i, i) for i in range(100)),
            b"".join(b"name%d\x01value%d\x02" % (i % 9, i) for i in range(100)),
            b"\x02".join([b"a\x01b"] * 70),
            b"long\x01" + b"x" * 32_000,
        )
    ),
]


def build(fields: list[dict[str, Any]], base: int = 0) -> tuple[bytes, IntArray]:
    parts: list[bytes] = []
    positions = []
    position = 0
    for values in fields:
        positions.append(position)
        parts.append(pack(base + position, **values))
        position += len(parts[-1])
    return b"".join(parts), np.array(positions, np.int64)


ODD_LOG, ODD_POSITIONS = build(ODD)


@each("row", range(len(ODD)))
def test_each_odd_record_alone(row: int) -> None:
    positions = ODD_POSITIONS[row : row + 1]
    assert_same(native.Columns(ODD_LOG, positions), reference.Columns(ODD_LOG, positions))


def test_odd_records_together_and_in_any_order() -> None:
    for positions in (ODD_POSITIONS, ODD_POSITIONS[::-1], np.repeat(ODD_POSITIONS, 3)):
        assert_same(native.Columns(ODD_LOG, positions), reference.Columns(ODD_LOG, positions))


def test_odd_properties_read_as_the_codec_reads_them() -> None:
    pairs = native.Columns(ODD_LOG, ODD_POSITIONS).properties()
    names, values = (lists(pairs.offsets, strings(runs)) for runs in pairs[1:])
    for row, position in enumerate(ODD_POSITIONS.tolist()):
        expected = record.decode(ODD_LOG, position, check_crc=False).properties
        items = list(zip(names[row], values[row], strict=True))
        assert items == list(expected.items())


def test_topic_that_is_not_utf8_is_read_as_java_reads_it() -> None:
    data = bytearray(pack(0, topic="AB", body=b"", property_bytes=b"TAGS\x01t"))
    position = data.index(b"AB")
    for topic in (b"\xff\xfe", b"A\xc3", b"\x80B", b"\xc0\x80"):
        data[position : position + 2] = topic
        for kernels in (native, reference):
            columns = kernels.Columns(bytes(data), np.zeros(2, np.int64))
            expected = topic.decode("utf-8", "replace")
            assert strings(columns.topics()) == [expected] * 2
            ids, names = columns.topic_ids()
            assert ids.tolist() == [0, 0]
            assert names == [expected]
            _, hashes = columns.key_hashes(with_tags=True)
            tag_hash = index_entry.key_hash(index_entry.tag_key_of(expected, "t"))
            assert hashes.tolist() == [tag_hash] * 2


@pytest.mark.parametrize("character", ["ü", "€", "😀"])
def test_character_cut_by_the_end_of_a_text_is_not_read_on(character: str) -> None:
    """The bytes after the record do not complete the character."""
    whole = character.encode()
    for cut in range(1, len(whole)):
        data = pack(0, property_bytes=b"TAGS\x01" + whole[:cut]) + whole[cut:] + bytes(8)
        positions = np.zeros(1, np.int64)
        compiled = native.Columns(data, positions)
        assert_same(compiled, reference.Columns(data, positions))
        assert strings(compiled.tags()) == [whole[:cut].decode("utf-8", "replace")]


def test_absent_is_null_and_never_empty() -> None:
    columns = native.Columns(
        *build([{}, {"property_bytes": b"TAGS\x01\x02KEYS\x01\x02UNIQ_KEY\x01"}])
    )
    assert texts(columns.tags()) == texts(columns.unique_keys()) == [None, None]
    assert columns.tags_codes().tolist() == [0, 0]
    assert columns.keys().offsets.tolist() == [0, 0, 0]
    assert texts(columns.message_ids()) == texts(columns.offset_ids())


def test_body_that_cannot_be_unpacked_is_given_as_stored() -> None:
    bad = {"body": b"not packed", "sys_flag": flags.COMPRESSED}
    data, positions = build([{}, bad, packed(b"good" * 9, flags.COMPRESSION_ZSTD)])
    for kernels in (native, reference):
        columns = kernels.Columns(data, positions)
        runs, failures = columns.bodies()
        assert texts(runs) == [b"body", b"not packed", b"good" * 9]
        assert list(failures) == [1]
        assert "zlib" in failures[1]
        # Decoding the bodies leaves the stored ones unchanged.
        assert texts(columns.bodies(decompress=False)[0])[1:] == [
            b"not packed",
            bodies.compress(b"good" * 9, flags.COMPRESSED | flags.COMPRESSION_ZSTD),
        ]


# --- batch records ------------------------------------------------------------


def inner(body: bytes, text: bytes, flag: int = 0) -> bytes:
    size = 22 + len(body) + len(text)
    head = struct.pack(">iiiii", size, 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(text)) + text


BATCH = inner(b"one", b"TAGS\x01a\x02UNIQ_KEY\x01u1\x02", 7) + inner(b"", b"", -1)
ODD_BATCH = inner(b"x" * 99, b"TAGS\x01\xff\x02KEYS\x01a\xc3 b\x02", 1) + inner(b"two", b"a\x01b")
WRAPPED = flags.INNER_BATCH | flags.NEED_UNWRAP
BATCHES: list[dict[str, Any]] = [
    {"body": BATCH, "sys_flag": WRAPPED, "property_bytes": b"UNIQ_KEY\x01outer\x02TAGS\x01o"},
    {},
    {"body": ODD_BATCH, "sys_flag": WRAPPED | flags.STORE_HOST_V6, "store_host": V6},
    {"body": ODD_BATCH, "sys_flag": flags.INNER_BATCH, "property_bytes": b"UNIQ_KEY\x01\xff"},
    *(
        packed(BATCH * 9, kind)
        | {"sys_flag": WRAPPED | flags.COMPRESSED | kind, "topic": "t" * 200}
        for kind in (flags.COMPRESSION_ZLIB, flags.COMPRESSION_LZ4, flags.COMPRESSION_ZSTD)
    ),
    {"body": b"", "sys_flag": WRAPPED},
    {"body": b"", "sys_flag": WRAPPED | flags.COMPRESSED},
    {"body": BATCH[:-1], "sys_flag": WRAPPED},
    {"body": b"not packed", "sys_flag": WRAPPED | flags.COMPRESSED},
    *(fields for fields in ODD if "body" not in fields),
]


def test_the_messages_inside_of_batch_records_are_those_of_the_codec() -> None:
    data, positions = build(BATCHES)
    records = [record.decode(data, position, check_crc=False) for position in positions.tolist()]
    expected = [message for outer in records for message in batch.unwrap_if_valid(outer)]
    for kernels in (native, reference):
        columns = kernels.Columns(data, positions).unwrapped()
        for name in NUMBERS:
            assert columns.numbers(name).tolist() == [getattr(each, name) for each in expected]
        assert texts(columns.bodies(decompress=False)[0]) == [each.body for each in expected]
        assert strings(columns.tags()) == [each.tags for each in expected]
        assert strings(columns.unique_keys()) == [each.unique_key for each in expected]
        assert strings(columns.batch_unique_keys()) == [each.batch_unique_key for each in expected]
        left = columns.numbers("sys_flag") & flags.INNER_BATCH
        assert [each.body for each in expected if each.sys_flag & flags.INNER_BATCH] == [
            BATCH[:-1],
            b"not packed",
        ]
        assert np.count_nonzero(left) == 2


def test_unwrapped_columns_are_the_same_in_both_engines() -> None:
    data, positions = build(BATCHES)
    compiled, plain = (kernels.Columns(data, positions) for kernels in (native, reference))
    assert_same(compiled.unwrapped(), plain.unwrapped())
    assert_same(compiled.unwrapped().unwrapped(), plain.unwrapped())
    rows = np.arange(0, compiled.count, 2)
    assert_same(compiled.take(rows).unwrapped(), plain.take(rows).unwrapped())
    assert_same(compiled.unwrapped().take(rows), plain.unwrapped().take(rows))
    assert_same(compiled, plain)
    no_batches = native.Columns(ODD_LOG, ODD_POSITIONS)
    assert no_batches.unwrapped() is no_batches


# --- selections of rows -------------------------------------------------------


def test_no_rows() -> None:
    nothing = np.empty(0, np.int64)
    for buffer in (b"", ODD_LOG):
        compiled = native.Columns(buffer, nothing)
        assert_same(compiled, reference.Columns(buffer, nothing))
        assert_same(compiled.take(nothing), reference.Columns(buffer, nothing))
    some = native.Columns(ODD_LOG, ODD_POSITIONS)
    assert_same(some.take(np.zeros(some.count, np.bool_)), reference.Columns(ODD_LOG, nothing))


def test_take_by_mask_and_by_indices() -> None:
    rng = np.random.default_rng(3)
    compiled, plain = (kernels.Columns(ODD_LOG, ODD_POSITIONS) for kernels in (native, reference))
    count = compiled.count
    compiled.properties()  # Columns cached for the whole must not appear in a part.
    for rows in (
        rng.random(count) < 0.5,
        np.ones(count, np.bool_),
        np.arange(count)[::-1],
        rng.integers(-count, count, 200),
        np.array([count - 1]),
        np.array([5, 5, 5], np.int32),
    ):
        part = compiled.take(rows)
        assert_same(part, plain.take(rows))
        assert_same(part, reference.Columns(ODD_LOG, ODD_POSITIONS[rows]))
        assert_same(
            part.take(np.arange(part.count)[::2]), plain.take(rows).take(np.arange(part.count)[::2])
        )
    assert_same(compiled, plain)


def test_a_part_outlives_its_source() -> None:
    """The part keeps the repaired texts and the buffer alive."""
    data, positions = build(ODD)
    columns = native.Columns(bytearray(data), positions)
    part = columns.take(np.arange(columns.count))
    del columns, data
    for _ in range(100):
        bytearray(len(ODD_LOG))  # Reuses memory that was freed by mistake.
    assert_same(part, reference.Columns(ODD_LOG, ODD_POSITIONS))


MANY = 100_000 if "REPUT_SOAK" in os.environ else 20_000


def many() -> tuple[bytes, IntArray]:
    """Return a log of a hundred thousand small records: a thousand, repeated."""
    kinds = [
        {
            "topic": f"Topic{i % 37}",
            "body": b"b" * (i % 50),
            "queue_id": i % 16,
            "queue_offset": i,
            "property_bytes": f"KEYS\x01k{i} k{i % 7}\x02TAGS\x01Tag{i % 11}\x02".encode()
            + (f"UNIQ_KEY\x01C0{i:030d}\x02".encode() if i % 3 else b""),
        }
        for i in range(1000)
    ]
    one_round, positions = build(kinds)
    data = np.frombuffer(one_round * (MANY // 1000), np.uint8).copy()
    starts = np.concatenate([positions + len(one_round) * i for i in range(MANY // 1000)])
    places = np.arange(8) + starts[:, None] + record.POSITION_PHYSICAL_OFFSET
    data[places] = starts.astype(">i8").view(np.uint8).reshape(-1, 8)
    return data.tobytes(), starts


@pytest.mark.slow
def test_many_rows_in_one_thread_and_in_two() -> None:
    data, positions = many()
    segments = native.scan(data, 0, len(data), physical_offset=0, check_crc=False, room=MANY + 1)
    assert (segments.verdicts == Verdict.MESSAGE).all()
    assert np.array_equal(segments.positions, positions)
    compiled = native.Columns(data, positions)
    assert_same(compiled, reference.Columns(data, positions))

    whole = columns_of(compiled)
    parts = [positions[: MANY // 3], positions[MANY // 3 :]]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            decoded = list(pool.map(lambda part: columns_of(native.Columns(data, part)), parts))
            for name in ("topics", "bodies", "raw_properties", "message_ids", "born_hosts"):
                runs = [column[name] if name != "bodies" else column[name][0] for column in decoded]
                joined = np.concatenate([column.data for column in runs])
                all_runs = whole[name] if name != "bodies" else whole[name][0]
                assert np.array_equal(joined, all_runs.data), name
                sizes = np.concatenate([np.diff(column.offsets) for column in runs])
                assert np.array_equal(sizes, np.diff(all_runs.offsets)), name
            for name in (*NUMBERS, "tags_codes"):
                assert np.array_equal(
                    np.concatenate([column[name] for column in decoded]), whole[name]
                )


# --- golden stores, compared with Java's manifests ----------------------------


def rows_of(columns: native.Columns) -> list[dict[str, Any]]:
    """Return rows in the form of a manifest."""
    pairs, words = columns.properties(), columns.keys()
    assert isinstance(pairs, Pairs)
    assert isinstance(words, Words)
    names, values = (lists(pairs.offsets, strings(runs)) for runs in pairs[1:])
    stored = texts(columns.bodies(decompress=False)[0])
    plain, failures = columns.bodies()
    assert failures == {}
    by_name = {
        "commitLogOffset": columns.numbers("physical_offset").tolist(),
        "storeSize": columns.numbers("store_size").tolist(),
        "queueId": columns.numbers("queue_id").tolist(),
        "queueOffset": columns.numbers("queue_offset").tolist(),
        "topic": strings(columns.topics()),
        "tags": strings(columns.tags()),
        "uniqKey": strings(columns.unique_keys()),
        "sysFlag": columns.numbers("sys_flag").tolist(),
        "flag": columns.numbers("flag").tolist(),
        "bornTimestamp": columns.numbers("born_timestamp").tolist(),
        "storeTimestamp": columns.numbers("store_timestamp").tolist(),
        "bornHost": strings(columns.born_hosts()),
        "storeHost": strings(columns.store_hosts()),
        "reconsumeTimes": columns.numbers("reconsume_times").tolist(),
        "preparedTransactionOffset": columns.numbers("prepared_transaction_offset").tolist(),
        "bodyCRC": columns.numbers("body_crc").tolist(),
        "storedBodyLength": [len(body or b"") for body in stored],
        "storedBodySha256": [hashlib.sha256(body or b"").hexdigest() for body in stored],
        "bodyLength": [len(text or b"") for text in texts(plain)],
        "bodySha256": [hashlib.sha256(text or b"").hexdigest() for text in texts(plain)],
        "offsetMsgId": strings(columns.offset_ids()),
        "properties": [dict(zip(*row, strict=True)) for row in zip(names, values, strict=True)],
        "words": lists(words.offsets, strings(words.words)),
        "messageId": strings(columns.message_ids()),
        "tagsCode": columns.tags_codes().tolist(),
    }
    return [dict(zip(by_name, row, strict=True)) for row in zip(*by_name.values(), strict=True)]


@pytest.mark.interop
@pytest.mark.parametrize(("version", "name"), golden.STORES)
@pytest.mark.sampled(5)
def test_every_record_java_decoded_is_decoded_alike(version: str, name: str) -> None:
    expected = {message["commitLogOffset"]: message for message in golden.messages(version, name)}
    compared = 0
    for file in golden.log_files(golden.unpack(version, name)):
        data = file.read_bytes()
        columns = log_columns(native, data, int(file.name))
        assert_same(columns, log_columns(reference, data, int(file.name)))
        for row in rows_of(columns):
            java = expected.get(row["commitLogOffset"])
            if java is None:
                continue  # After Java's end of the log; test_log_scan has the list.
            compared += 1
            words, message_id, tags_code = (row.pop(n) for n in ("words", "messageId", "tagsCode"))
            row["properties"] = golden.known_properties(version, row["properties"])
            keys = row["properties"].get("KEYS")
            assert keys == java["keys"]
            assert words == [word for word in (keys or "").split(" ") if word]
            assert message_id == (java["uniqKey"] or java["offsetMsgId"])
            assert tags_code == cq_unit.tags_code(java["tags"])
            assert row == {field: java[field] for field in row}
    assert compared == len(expected) > 0


@pytest.mark.interop
@pytest.mark.parametrize("version", golden.VERSIONS)
def test_every_indexed_key_has_the_hash_java_looks_up(version: str) -> None:
    """Each unique key and each word of KEYS gives its row and hash."""
    for file in golden.log_files(golden.unpack(version, "clean")):
        columns = log_columns(native, file.read_bytes(), int(file.name))
        rows, hashes = columns.key_hashes()
        topics = strings(columns.topics())
        words = columns.keys()
        unique = [(row, key) for row, key in enumerate(strings(columns.unique_keys())) if key]
        keys = [
            (row, key)
            for row, key_words in enumerate(lists(words.offsets, strings(words.words)))
            for key in key_words
        ]
        expected = [
            (row, index_entry.key_hash(f"{topics[row]}#{key}")) for row, key in unique + keys
        ]
        assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == expected
