"""Records: those of Java decode as in Java, and damage gets the expected verdict."""

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

import golden
from cases import each
from reput.errors import CorruptRecord
from reput.format import body as bodies, java, message_id, properties as props, sys_flag as flags
from reput.format.message import (
    CRC_PROPERTY_BYTES,
    FIXED_BYTES_V1,
    JUDGED_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    REASONS,
    Host,
    StoredMessage,
    Verdict,
    append_crc_property,
    classify,
    decode,
    encode,
    pack_blank,
    property_text,
    topic_and_queue,
)

RECOVERED = [
    (version, f"torn/{name}-recovered")
    for version in golden.VERSIONS
    for name in golden.torn_recovered(version)
]

# --- records that Java wrote --------------------------------------------------


def as_in_manifest(version: str, message: StoredMessage) -> dict[str, object]:
    """Return the manifest's description of one of our records."""
    properties = golden.known_properties(version, dict(message.properties))
    plain_body = message.plain_body()
    description: dict[str, object] = {
        "commitLogOffset": message.physical_offset,
        "storeSize": message.store_size,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "topic": message.topic,
        "tags": message.tags,
        "keys": properties.get("KEYS"),
        "uniqKey": message.unique_key,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": str(message.born_host),
        "storeHost": str(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCRC": message.body_crc,
        "crcOk": bodies.crc(message.body) == message.body_crc,
        "storedBodyLength": len(message.body),
        "storedBodySha256": hashlib.sha256(message.body).hexdigest(),
        "bodyLength": len(plain_body),
        "bodySha256": hashlib.sha256(plain_body).hexdigest(),
        "offsetMsgId": message_id.offset_id(message),
        "properties": properties,
    }
    if message.version == 2:
        description["magic"] = MAGIC_V2
    return description


@pytest.mark.parametrize(("version", "name"), golden.STORES + RECOVERED)
@pytest.mark.sampled(5)
def test_every_record_equals_javas(version: str, name: str) -> None:
    count = 0
    for expected, place in golden.records(version, name):
        crc_ok = expected["crcOk"]
        message = decode(place.file, place.position, check_crc=crc_ok)
        assert as_in_manifest(version, message) == expected
        assert message.keys == [word for word in (expected["keys"] or "").split(" ") if word]
        assert encode(message) == place.record
        judged = classify(place.file, place.position, place.physical_offset)
        assert judged == (Verdict.MESSAGE if crc_ok else Verdict.BAD_CRC, place.size)
        count += 1
    assert count == golden.manifest(version, name)["log"]["records"]


@each(("version", "name"), golden.STORES + RECOVERED)
def test_every_file_ends_where_javas_does(version: str, name: str) -> None:
    log = golden.manifest(version, name)["log"]
    files = log_files(version, name)
    listed = [
        {"name": f"{physical_offset:020}", "size": len(data)}
        for physical_offset, data in files.items()
    ]
    assert listed[: len(log["files"])] == log["files"], "a further file may follow the end"
    file_bytes = log["files"][0]["size"]

    def judge(physical_offset: int) -> tuple[Verdict, int]:
        return classify(
            files[physical_offset - physical_offset % file_bytes],
            physical_offset % file_bytes,
            physical_offset,
        )

    for blank in log["blanks"]:
        physical_offset, size = blank["commitLogOffset"], blank["size"]
        assert judge(physical_offset) == (Verdict.BLANK, size)
        assert files[physical_offset - physical_offset % file_bytes][
            physical_offset % file_bytes :
        ].startswith(pack_blank(size))
    if log["end"] == "zeros to the end of the file":
        physical_offset = log["endOffset"]
        assert judge(physical_offset) == (Verdict.ZEROS, file_bytes - physical_offset % file_bytes)


def log_files(version: str, name: str) -> dict[int, bytes]:
    return {
        int(path.removeprefix("commitlog/")): data
        for path, data in golden.files(version, name).items()
        if path.startswith("commitlog/")
    }


def walk(version: str, name: str) -> Iterator[tuple[Verdict, int, int]]:
    """Yield the verdict on each record and blank of a log, with its offset and size."""
    for base, data in log_files(version, name).items():
        position = 0
        while position < len(data):
            verdict, size = classify(data, position, base + position)
            yield verdict, base + position, size
            if not size:
                break
            position += size


@each("version", golden.VERSIONS)
@each("variant", ["crc-early", "crc-late", "crc-late-abort", "crc-boundary"])
def test_one_flipped_bit_in_a_body_is_one_bad_record(version: str, variant: str) -> None:
    sizes = {m["commitLogOffset"]: m["storeSize"] for m in golden.messages(version, "clean")}
    whole = {Verdict.MESSAGE, Verdict.BLANK, Verdict.ZEROS}
    ((verdict, physical_offset, size),) = (
        segment for segment in walk(version, f"torn/{variant}") if segment[0] not in whole
    )
    assert verdict is Verdict.BAD_CRC
    assert sizes[physical_offset] == size
    lost = golden.torn_variants(version)[variant]["recordsLost"]
    assert min(lost, default=physical_offset) == physical_offset, (
        "Java cuts the log there, or does not look"
    )


@pytest.mark.parametrize("version", golden.VERSIONS)
@pytest.mark.parametrize(
    ("variant", "verdicts"),
    [
        # The second half of the record is zeros: its body, or the fields after the body.
        ("torn-tail", {Verdict.BAD_CRC, Verdict.BAD_LENGTH}),
        ("size-late", {Verdict.BAD_LENGTH}),
    ],
)
def test_torn_and_wrong_sizes(version: str, variant: str, verdicts: set[Verdict]) -> None:
    damaged = [segment for segment in walk(version, f"torn/{variant}") if segment[0] > 3]
    (verdict, position, _) = damaged[0]
    assert verdict in verdicts
    assert position == min(golden.torn_variants(version)[variant]["recordsLost"])


def test_a_committed_message_names_its_half_message() -> None:
    """D37: RECONSUMETIMES takes 4 bytes; with 8, the offset after it would be wrong."""
    seen = 0
    for version in golden.VERSIONS:
        unique_keys = {
            m["commitLogOffset"]: m["uniqKey"] for m in golden.messages(version, "clean")
        }
        for _, place in golden.records(version, "clean"):
            message = decode(place.record)
            if flags.transaction_type(message.sys_flag) == flags.TRANSACTION_COMMIT:
                assert unique_keys[message.prepared_transaction_offset] == message.unique_key
                seen += 1
    assert seen


# --- records with a checksum --------------------------------------------------

CRC_RECORDS = [
    (bytes.fromhex(crc_record["record"]), crc_record)
    for crc_record in json.loads((golden.DATA / "5.5.0" / "crc-records.json").read_bytes())
]
"""Records written by RocketMQ 5.5.0's store with ``enabledAppendPropCRC`` on."""


def without_crc_property(record: bytes) -> bytes:
    """Return the record without ``__CRC32#``, with its lengths adjusted."""
    message = decode(record)
    return encode(replace(message, property_bytes=message.property_bytes[:-CRC_PROPERTY_BYTES]))


@each(("data", "manifest"), CRC_RECORDS)
def test_record_checksum_of_java_is_right(data: bytes, manifest: dict[str, str]) -> None:
    offset = int(manifest["commitLogOffset"])
    assert classify(data, 0, offset) == (Verdict.MESSAGE, len(data))
    message = decode(data)
    assert message.properties["__CRC32#"] == manifest["crcProperty"]
    assert encode(message) == data


@each(("data", "manifest"), CRC_RECORDS)
def test_we_write_the_checksum_as_java_does(data: bytes, manifest: dict[str, str]) -> None:
    assert append_crc_property(without_crc_property(data)) == data


@each(("data", "manifest"), CRC_RECORDS)
def test_a_checksum_of_zero_is_compared_too(data: bytes, manifest: dict[str, str]) -> None:
    assert set(manifest["crcProperty"]) != {"0"}
    zero = data[:-11] + b"0000000000" + b"\x02"
    offset = int(manifest["commitLogOffset"])
    assert classify(zero, 0, offset) == (Verdict.BAD_RECORD_CRC, len(data))
    with pytest.raises(CorruptRecord, match="__CRC32#"):
        decode(zero)
    assert decode(zero, check_crc=False).properties["__CRC32#"] == "0000000000"


def test_a_right_checksum_of_zero_is_right() -> None:
    # CRC-32 is linear: the four bytes that give any wanted sum can be solved for bit by bit.
    data = bytearray(without_crc_property(CRC_RECORDS[0][0]))
    data += bytes(CRC_PROPERTY_BYTES)
    size = len(data)
    data[0:4] = size.to_bytes(4, "big")
    message = decode(CRC_RECORDS[0][0])
    length_at = size - len(message.property_bytes) - 2
    data[length_at : length_at + 2] = len(message.property_bytes).to_bytes(2, "big")
    data[16:20] = solve_flag(bytes(data[:-CRC_PROPERTY_BYTES])).to_bytes(4, "big")
    data[-CRC_PROPERTY_BYTES:] = b"__CRC32#\x010000000000\x02"
    assert bodies.crc(bytes(data[:-CRC_PROPERTY_BYTES])) == 0
    assert classify(bytes(data), 0, 0) == (Verdict.MESSAGE, size)
    bare = without_crc_property(bytes(data))
    assert append_crc_property(bare) == data


def solve_flag(data: bytes) -> int:
    """Return the FLAG (bytes 16 to 20) with which BODYCRC's sum over ``data`` is 0."""

    def sum_with(flag: int) -> int:
        return bodies.crc(data[:16] + flag.to_bytes(4, "big") + data[20:])

    base = sum_with(0)
    basis: dict[int, tuple[int, int]] = {}  # highest bit -> (sum, flag bits)
    for bit in range(32):
        value, flag = sum_with(1 << bit) ^ base, 1 << bit
        for high, (other, other_flag) in sorted(basis.items(), reverse=True):
            if value >> high & 1:
                value, flag = value ^ other, flag ^ other_flag
        if value:
            basis[value.bit_length() - 1] = (value, flag)
    value, flag = base, 0
    for high, (other, other_flag) in sorted(basis.items(), reverse=True):
        if value >> high & 1:
            value, flag = value ^ other, flag ^ other_flag
    assert value == 0
    return flag


def test_the_size_check_includes_the_checksum() -> None:
    bare = without_crc_property(CRC_RECORDS[0][0])
    message = decode(bare)
    room = props.LENGTH_MAX - len(message.property_bytes)
    for spare, fits in ((CRC_PROPERTY_BYTES, True), (CRC_PROPERTY_BYTES - 1, False)):
        filler = b"x\x01" + b"y" * (room - spare - 3) + b"\x02"
        long = encode(replace(message, property_bytes=message.property_bytes + filler))
        if fits:
            assert len(decode(append_crc_property(long)).property_bytes) == props.LENGTH_MAX
        else:
            with pytest.raises(ValueError, match=f"over {props.LENGTH_MAX}"):
                append_crc_property(long)


def test_a_checksum_after_a_missing_separator_is_ignored() -> None:
    bare = encode(replace(a_message(), property_bytes=b"a\x01b"))
    with pytest.raises(ValueError, match="separator"):
        append_crc_property(bare)


@pytest.mark.parametrize(
    "trailer",
    [
        b"__CRC32#\x0112345x7890\x02",  # Not digits.
        b"__CRC32#\x021234567890\x02",  # Not a property.
        b"__CRC32#\x011234567890\x01",  # No separator at the end.
        b"\0" * 20,  # Reserved, and never written.
    ],
)
def test_an_invalid_checksum_property_is_not_compared(trailer: bytes) -> None:
    data = encode(replace(a_message(), property_bytes=b"a\x01b\x02" + trailer))
    assert classify(data, 0, 0)[0] is Verdict.MESSAGE


def test_a_checksum_that_is_not_last_is_not_compared() -> None:
    data = encode(
        replace(a_message(), property_bytes=b"__CRC32#\x011234567890\x02WAIT\x01false\x02")
    )
    assert classify(data, 0, 0)[0] is Verdict.MESSAGE


# --- cuts and flips -------------------------------------------------------


def samples() -> Iterator[object]:
    """Return a record of each shape (hosts, versions, compression), and two with a checksum."""
    chosen = [("4.5.2", "clean", 106736), ("4.9.7", "clean", 105739), ("5.5.0", "v5", 83800)]
    for version, sys_flag in (("4.9.7", 16), ("4.9.7", 48), ("5.5.0", 32), ("5.5.0", 825)):
        smallest = min(
            (m for m in golden.messages(version, "clean") if m["sysFlag"] == sys_flag),
            key=lambda m: (m["storeSize"], m["commitLogOffset"]),
        )
        chosen.append((version, "clean", smallest["commitLogOffset"]))
    for version, name, offset in chosen:
        place = golden.find_record(version, name, offset)
        yield pytest.param(place.record, id=f"{version}-{offset}")
    yield pytest.param(CRC_RECORDS[1][0], id="crc")
    yield pytest.param(CRC_RECORDS[23][0], id="crc-v2-v6")


SAMPLES = pytest.mark.parametrize("data", list(samples()))


def parts(data: bytes) -> list[tuple[str, int, int]]:
    """Return name, start and end of each field, from the table of facts and not from the codec."""
    (sys_flag,) = struct.unpack_from(">i", data, 36)
    is_v2 = data[4:8] == bytes.fromhex("daa320ab")
    fields: list[tuple[str, int, int]] = []

    def add(name: str, size: int) -> int:
        start = fields[-1][2] if fields else 0
        fields.append((name, start, start + size))
        return start

    for name, size in (
        ("TOTALSIZE", 4),
        ("MAGIC", 4),
        ("BODYCRC", 4),
        ("QUEUEID", 4),
        ("FLAG", 4),
        ("QUEUEOFFSET", 8),
        ("PHYSICALOFFSET", 8),
        ("SYSFLAG", 4),
        ("BORNTIMESTAMP", 8),
        ("BORNHOST", 20 if sys_flag & 0x10 else 8),
        ("STORETIMESTAMP", 8),
        ("STOREHOST", 20 if sys_flag & 0x20 else 8),
        ("RECONSUMETIMES", 4),
        ("PREPAREDTRANSACTIONOFFSET", 8),
    ):
        add(name, size)
    for length, name, size in (
        ("BODYLEN", "body", 4),
        ("TOPICLEN", "topic", 2 if is_v2 else 1),
        ("PROPSLEN", "properties", 2),
    ):
        start = add(length, size)
        add(name, int.from_bytes(data[start : start + size], "big"))
    assert fields[-1][2] == len(data)
    return fields


def has_crc(data: bytes) -> bool:
    return data[-20:-11] == b"__CRC32#\x01"


def own_offset(data: bytes) -> int:
    return int.from_bytes(data[28:36], "big")


def expected_of_flip(data: bytes, field: str, position: int, flipped: bytes) -> Verdict:
    """Return the verdict on a record whose byte at ``position`` has changed."""
    seen_by_record_crc = Verdict.BAD_RECORD_CRC if has_crc(data) else Verdict.MESSAGE
    if field == "TOTALSIZE":
        size = int.from_bytes(flipped[:4], "big", signed=True)
        fixed = 92 if data[7] == 0xAB else 91
        return Verdict.BAD_LENGTH if fixed <= size <= len(data) else Verdict.BAD_SIZE
    if field == "MAGIC":
        is_other_version = flipped[4:8].hex() in ("daa320a7", "daa320ab")
        return Verdict.BAD_LENGTH if is_other_version else Verdict.BAD_MAGIC
    if field in ("BODYCRC", "body"):
        return Verdict.BAD_CRC
    if field == "PHYSICALOFFSET":
        return Verdict.BAD_PHYSICAL_OFFSET
    if field in ("BODYLEN", "TOPICLEN", "PROPSLEN"):
        return Verdict.BAD_LENGTH
    if field == "SYSFLAG" and position == 39:
        v6_hosts, v6_hosts_now = (byte[position] & 0x30 for byte in (data, flipped))
        if v6_hosts.bit_count() != v6_hosts_now.bit_count():
            return Verdict.BAD_LENGTH
        # The other host now has 16 bytes: the lengths are the same, and at the same positions.
    if field == "properties" and position >= len(data) - CRC_PROPERTY_BYTES and has_crc(data):
        is_digit = len(data) - 11 <= position < len(data) - 1 and 0x30 <= flipped[position] <= 0x39
        return Verdict.BAD_RECORD_CRC if is_digit else Verdict.MESSAGE
    return seen_by_record_crc  # Fields without redundancy.


@SAMPLES
def test_the_property_string_alone(data: bytes) -> None:
    assert property_text(memoryview(data)) == java.decode_utf8(decode(data).property_bytes)
    for field, start, end in parts(data):
        if field not in ("SYSFLAG", "BODYLEN", "TOPICLEN", "PROPSLEN"):
            continue
        for position in range(start, end):
            for mask in (0x01, 0x10, 0x20, 0x30, 0x80, 0xFF):
                flipped = data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]
                verdict, _ = classify(flipped, 0, own_offset(data), check_crc=False)
                if verdict is Verdict.MESSAGE:
                    expected = java.decode_utf8(decode(flipped, check_crc=False).property_bytes)
                    assert property_text(memoryview(flipped)) == expected
                else:
                    with pytest.raises(CorruptRecord):
                        property_text(memoryview(flipped))


@SAMPLES
def test_topic_and_queue_alone(data: bytes) -> None:
    whole = decode(data)
    assert topic_and_queue(data) == (whole.topic, whole.queue_id, whole.sys_flag)
    for field, start, end in parts(data):
        if field not in ("SYSFLAG", "BODYLEN", "TOPICLEN", "PROPSLEN"):
            continue
        for position in range(start, end):
            for mask in (0x01, 0x10, 0x20, 0x30, 0x80, 0xFF):
                flipped = data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]
                verdict, _ = classify(flipped, 0, own_offset(data), check_crc=False)
                if verdict is Verdict.MESSAGE:
                    whole = decode(flipped, check_crc=False)
                    expected = whole.topic, whole.queue_id, whole.sys_flag
                    assert topic_and_queue(flipped) == expected
                else:
                    with pytest.raises(CorruptRecord):
                        topic_and_queue(flipped)


@SAMPLES
def test_flip_every_byte(data: bytes) -> None:
    offset = own_offset(data)
    for field, start, end in parts(data):
        for position in range(start, end):
            for mask in (0x01, 0x02, 0x04, 0x08, 0x0C, 0x10, 0x20, 0x40, 0x80, 0xFF):
                flipped = data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]
                expected = expected_of_flip(data, field, position, flipped)
                verdict, size = classify(flipped, 0, offset)
                assert verdict is expected, (field, position, mask)
                has_size = verdict in (Verdict.MESSAGE, Verdict.BAD_CRC, Verdict.BAD_RECORD_CRC)
                assert size == (len(data) if has_size else 0)
                # decode has no offset to compare with: pull replies have no positions.
                is_read = verdict in (Verdict.MESSAGE, Verdict.BAD_PHYSICAL_OFFSET)
                if is_read and not (field == "PHYSICALOFFSET" and has_crc(data)):
                    assert decode(flipped).store_size == len(data)
                else:
                    with pytest.raises(CorruptRecord):
                        decode(flipped)


@SAMPLES
def test_cut_at_every_byte(data: bytes) -> None:
    offset = own_offset(data)
    for cut in range(1, len(data)):
        part = data[:cut]
        # The file ends here: no more bytes will come.
        expected = (Verdict.BAD_SIZE, 0) if any(part) else (Verdict.ZEROS, cut)
        assert classify(part, 0, offset) == expected
        # The file continues.
        size = len(data) if cut >= JUDGED_BYTES else 0
        assert classify(part, 0, offset, file_end=len(data)) == (Verdict.TRUNCATED, size)
        with pytest.raises(CorruptRecord):
            decode(part)
    assert classify(data, 0, offset, file_end=len(data) + 100) == (Verdict.MESSAGE, len(data))


@SAMPLES
def test_a_cut_record_with_a_wrong_offset_is_damage(data: bytes) -> None:
    offset = own_offset(data)
    for cut in range(JUDGED_BYTES, len(data)):
        verdict, size = classify(data[:cut], 0, offset + 1, file_end=1 << 20)
        assert (verdict, size) == (Verdict.BAD_PHYSICAL_OFFSET, 0)


@SAMPLES
def test_torn_at_every_byte(data: bytes) -> None:
    """A record whose rest is zeros is detected, unless only properties are lost."""
    offset = own_offset(data)
    starts = {name: start for name, start, _ in parts(data)}
    for cut in range(len(data)):
        torn = data[:cut] + bytes(len(data) - cut)
        verdict, _ = classify(torn, 0, offset)
        if torn == data or cut >= starts["properties"]:
            assert verdict is Verdict.MESSAGE
        elif not any(torn):
            assert verdict is Verdict.ZEROS
        else:
            assert verdict >= Verdict.BAD_SIZE
            with pytest.raises(CorruptRecord):
                decode(torn)


@SAMPLES
def test_record_in_the_middle_of_a_buffer(data: bytes) -> None:
    offset = own_offset(data)
    buffer = b"\xda\xa3\x20" + data + b"\xff" * 50
    for view in (buffer, bytearray(buffer), memoryview(buffer)):
        assert classify(view, 3, offset) == (Verdict.MESSAGE, len(data))
        assert decode(view, 3) == decode(data)
        assert classify(view, 3, offset + 1)[0] is Verdict.BAD_PHYSICAL_OFFSET


def test_blanks() -> None:
    for size in (8, 9, 100, 65536):
        rest = bytes(size - 8)
        data = struct.pack(">iI", size, 0xCBD43194) + rest
        assert classify(data, 0, 5) == (Verdict.BLANK, size)
        assert classify(data + b"\0", 0, 5) == (Verdict.BAD_SIZE, 0)
        assert classify(data[:8], 0, 5, file_end=size)[0] is (
            Verdict.BLANK if size == 8 else Verdict.TRUNCATED
        )
        with pytest.raises(CorruptRecord):
            decode(data)
    assert struct.pack(">i", MAGIC_BLANK) == bytes.fromhex("cbd43194")


def test_zeros() -> None:
    for size in (1, 7, 8, 9, 91, 4096):
        assert classify(bytes(size), 0, 0) == (Verdict.ZEROS, size)
        with pytest.raises(CorruptRecord):
            decode(bytes(size))
    assert classify(bytes(99) + b"x", 0, 0) == (Verdict.BAD_ZEROS, 0)
    assert classify(bytes(6) + b"x", 0, 0) == (Verdict.BAD_SIZE, 0)


def test_every_damage_has_a_reason() -> None:
    assert {v for v in Verdict if v >= Verdict.TRUNCATED} <= set(REASONS)


# --- encoding -----------------------------------------------------------------


def a_message() -> StoredMessage:
    body = b"hello"
    return StoredMessage(
        topic="T",
        body=body,
        queue_id=1,
        queue_offset=2,
        physical_offset=0,
        born_timestamp=1_700_000_000_000,
        born_host=Host(bytes([127, 0, 0, 1]), 20911),
        store_timestamp=1_700_000_000_001,
        store_host=Host(bytes([127, 0, 0, 1]), 20911),
        body_crc=907060870,
    )


V6 = Host(bytes.fromhex("fd00") + bytes(13) + b"\x02", 10911)


def test_smallest_record() -> None:
    """The smallest record has 97 bytes: 91 fixed bytes, 5 of body, 1 of topic."""
    data = encode(a_message())
    assert len(data) == 97
    assert data[:8] == struct.pack(">iI", 97, 0xDAA320A7)
    assert classify(data, 0, 0) == (Verdict.MESSAGE, 97)
    assert FIXED_BYTES_V1 == 91


@pytest.mark.parametrize("size", [1, 126, 127, 128, 255, 256, 32767])
def test_topics_over_127_bytes_make_v2_records(size: int) -> None:
    data = encode(replace(a_message(), topic="t" * size))
    message = decode(data)
    assert message.topic == "t" * size
    assert message.version == (1 if size <= 127 else 2)
    assert struct.unpack_from(">i", data, 4) == ((MAGIC_V1 if size <= 127 else MAGIC_V2),)
    assert len(data) == 96 + size + (size > 127)


def test_a_topic_too_long_for_its_field_is_refused() -> None:
    with pytest.raises(ValueError, match="topic takes 32768 bytes"):
        encode(replace(a_message(), topic="t" * 32768))


def test_properties_too_long_for_their_field_are_refused() -> None:
    longest = b"a\x01" + b"b" * (props.LENGTH_MAX - 2)
    assert decode(encode(replace(a_message(), property_bytes=longest))).property_bytes == longest
    with pytest.raises(ValueError, match="32768 bytes, over 32767"):
        encode(replace(a_message(), property_bytes=longest + b"b"))


def test_a_negative_length_is_damage() -> None:
    data = bytearray(encode(a_message()))
    data[-2:] = b"\x80\x00"
    assert classify(bytes(data), 0, 0) == (Verdict.BAD_LENGTH, 0)


@pytest.mark.parametrize("born_v6", [False, True])
@pytest.mark.parametrize("store_v6", [False, True])
def test_every_place_follows_from_the_sys_flag(born_v6: bool, store_v6: bool) -> None:
    v4 = a_message().born_host
    message = replace(
        a_message(),
        born_host=V6 if born_v6 else v4,
        store_host=V6 if store_v6 else v4,
        sys_flag=born_v6 * 0x10 | store_v6 * 0x20,
        property_bytes=b"a\x01b\x02",
        reconsume_times=3,
        prepared_transaction_offset=4,
    )
    data = encode(message)
    assert len(data) == 97 + 4 + 12 * born_v6 + 12 * store_v6
    position = 48 + (20 if born_v6 else 8)
    assert data[position : position + 8] == message.store_timestamp.to_bytes(8, "big")
    position += 8 + (20 if store_v6 else 8)
    assert data[position : position + 16] == struct.pack(">iqi", 3, 4, 5)
    read = decode(data)
    assert (read.born_host, read.store_host) == (message.born_host, message.store_host)
    assert (read.body, read.topic, dict(read.properties)) == (b"hello", "T", {"a": "b"})


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_java_wrote_every_mix_of_hosts(version: str) -> None:
    mixes = {m["sysFlag"] & 0x30 for m in golden.messages(version, "clean")}
    assert mixes == {0, 0x10, 0x20, 0x30}


@pytest.mark.parametrize(
    ("host", "sys_flag"),
    [(V6, 0), (V6, 0x20), (Host(bytes(4), 1), 0x10), (Host(bytes(5), 1), 0), (Host(b"", 1), 0)],
)
def test_hosts_and_flags_must_agree(host: Host, sys_flag: int) -> None:
    with pytest.raises(ValueError, match="born host"):
        encode(replace(a_message(), born_host=host, sys_flag=sys_flag))


def test_properties_are_not_searched_in_the_topic() -> None:
    topic = "a\x01b\x02TAGS\x01wrong"
    message = decode(encode(replace(a_message(), topic=topic, property_bytes=b"TAGS\x01right\x02")))
    assert message.topic == topic
    assert dict(message.properties) == {"TAGS": "right"}


def test_hosts_as_text() -> None:
    assert str(Host(bytes([192, 0, 2, 1]), 10911)) == "192.0.2.1:10911"
    assert str(V6) == "[fd00:0:0:0:0:0:0:2]:10911"
    assert (V6.is_v6, Host(bytes(4), 0).is_v6) == (True, False)


# --- arbitrary input ----------------------------------------------------------

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.builds(
    Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), int32
)
names = st.text(
    st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=20
)


@st.composite
def stored_messages(draw: st.DrawFn) -> StoredMessage:
    born_host, store_host, body = draw(hosts), draw(hosts), draw(st.binary(max_size=100))
    properties = draw(st.dictionaries(names, names, max_size=5))
    host_bits = born_host.is_v6 * flags.BORN_HOST_V6 | store_host.is_v6 * flags.STORE_HOST_V6
    return StoredMessage(
        topic=draw(st.text(st.characters(codec="utf-8"), max_size=150)),
        body=body,
        queue_id=draw(int32),
        queue_offset=draw(int64),
        physical_offset=draw(int64),
        born_timestamp=draw(int64),
        born_host=born_host,
        store_timestamp=draw(int64),
        store_host=store_host,
        flag=draw(int32),
        sys_flag=draw(int32) & ~0x30 | host_bits,
        reconsume_times=draw(int32),
        prepared_transaction_offset=draw(int64),
        body_crc=bodies.crc(body),
        version=draw(st.sampled_from((1, 2))),
        property_bytes=props.encode(properties, last_separator=draw(st.booleans())),
        properties=properties,
    )


@given(stored_messages())
def test_encode_decode_round_trip(message: StoredMessage) -> None:
    data = encode(message)
    is_v2 = message.version == 2 or len(message.topic.encode()) > 127
    expected = replace(message, store_size=len(data), version=2 if is_v2 else 1)
    assert decode(data) == expected
    assert encode(decode(data)) == data
    assert classify(data, 0, message.physical_offset) == (Verdict.MESSAGE, len(data))


@given(stored_messages())
def test_an_added_checksum_is_right(message: StoredMessage) -> None:
    properties = dict(message.properties)
    properties.pop(props.CRC32, None)
    bare = encode(replace(message, property_bytes=props.encode(properties)))
    data = append_crc_property(bare)
    assert classify(data, 0, message.physical_offset) == (Verdict.MESSAGE, len(data))
    assert decode(data).properties.keys() == {*properties, props.CRC32}
    assert without_crc_property(data) == bare


@st.composite
def damaged_records(draw: st.DrawFn) -> bytes:
    data = bytearray(encode(draw(stored_messages())))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(data) - 1))
        data[position : position + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    return bytes(data) or b"\0"


@given(damaged_records() | st.binary(min_size=1, max_size=300), st.integers(0, 400))
def test_any_bytes_have_a_verdict(data: bytes, more: int) -> None:
    for file_end in (None, len(data) + more):
        for check_crc in (True, False):
            verdict, size = classify(
                data, 0, own_offset(data), file_end=file_end, check_crc=check_crc
            )
            assert verdict in Verdict
            assert 0 <= size <= len(data) + more
            assert (size > 0) >= (verdict in (Verdict.MESSAGE, Verdict.BLANK, Verdict.ZEROS))
    for check_crc in (True, False):
        try:
            message = decode(data, check_crc=check_crc)
        except CorruptRecord:
            continue
        assert encode(message) == data[: message.store_size] or is_not_utf8(message, data)


def is_not_utf8(message: StoredMessage, data: bytes) -> bool:
    """Return whether the topic is malformed UTF-8, the only text that does not round-trip."""
    return "\ufffd" in message.topic
