"""Records: what Java wrote is read as Java reads it, and damage has the verdict it should have."""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

import golden
from reput.errors import CorruptRecord
from reput.format import body as bodies, java, message_id, properties as props, sys_flag as flags
from reput.format.message import (
    CRC_PROPERTY_BYTES,
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
    host_bytes,
    pack_blank,
)

DAMAGE = {verdict for verdict in Verdict if verdict >= Verdict.BAD_SIZE}

# --- golden stores --------------------------------------------------------

RECOVERED = [
    (version, f"torn/{name}-recovered")
    for version in golden.VERSIONS
    for name in golden.torn_recovered(version)
]


def as_in_manifest(version: str, message: StoredMessage) -> dict[str, object]:
    """What a manifest says of a record, from ours."""
    properties = golden.known_properties(version, dict(message.properties))
    said: dict[str, object] = {
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
        "bodyLength": len(message.plain_body()),
        "bodySha256": hashlib.sha256(message.plain_body()).hexdigest(),
        "offsetMsgId": message_id.offset_id(message),
        "properties": properties,
    }
    if message.version == 2:
        said["magic"] = MAGIC_V2
    return said


@pytest.mark.parametrize(("version", "name"), golden.STORES + RECOVERED)
def test_every_record_is_what_java_says(version: str, name: str) -> None:
    count = 0
    for expected, place in golden.records(version, name):
        crc_ok = expected["crcOk"]
        message = decode(place.file, place.position, check_crc=crc_ok)
        assert as_in_manifest(version, message) == expected
        assert message.keys == [word for word in (expected["keys"] or "").split(" ") if word]
        assert encode(message) == place.record
        verdict = Verdict.MESSAGE if crc_ok else Verdict.BAD_CRC
        judged = classify(place.file, place.position, place.physical_offset)
        assert judged == (verdict, place.size)
        count += 1
    assert count == golden.manifest(version, name)["log"]["records"]


@pytest.mark.parametrize(("version", "name"), golden.STORES + RECOVERED)
def test_every_file_ends_as_java_says(version: str, name: str) -> None:
    log = golden.manifest(version, name)["log"]
    files = {int(file.name): file.read_bytes() for file in log_files(version, name)}
    assert [{"name": f"{at:020}", "size": len(data)} for at, data in files.items()] == log["files"]
    file_bytes = len(files[min(files)])
    for blank in log["blanks"]:
        at = blank["commitLogOffset"]
        data = files[at - at % file_bytes]
        assert classify(data, at % file_bytes, at) == (Verdict.BLANK, blank["size"])
        assert data[at % file_bytes :].startswith(pack_blank(blank["size"]))
    end = log["endOffset"]
    data = files[end - end % file_bytes]
    verdict, _ = classify(data, end % file_bytes, end)
    if log["end"] == "zeros to the end of the file":
        assert verdict is Verdict.ZEROS


def log_files(version: str, name: str) -> list[golden.Path]:
    return golden.log_files(golden.unpack(version, name))


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_flipped_bodies_are_found_where_java_found_them(version: str) -> None:
    """In ``crc-early`` and ``crc-late`` one bit of one body is flipped, nothing else."""
    for variant in ("crc-early", "crc-late", "crc-boundary"):
        store = golden.unpack(version, f"torn/{variant}")
        found = []
        for file in golden.log_files(store):
            data, base, position = file.read_bytes(), int(file.name), 0
            while position < len(data):
                verdict, size = classify(data, position, base + position)
                if verdict not in (Verdict.MESSAGE, Verdict.BLANK, Verdict.ZEROS):
                    found.append((verdict, base + position))
                position += size
        (damage,) = found
        assert damage[0] is Verdict.BAD_CRC
        clean = {m["commitLogOffset"] for m in golden.messages(version, "clean")}
        assert damage[1] in clean
        lost = golden.torn_variants(version)[variant]["recordsLost"]
        assert min(lost, default=damage[1]) == damage[1]  # a clean start cuts from there on


# --- vectors --------------------------------------------------------------

# Records that DefaultMessageStore of RocketMQ 5.5.0 wrote with enabledAppendPropCRC=true:
# plain; with keys and tags; born on an IPv6 host, with a property in Cyrillic; V2.
JAVA_CRC_RECORDS = [
    (0, bytes.fromhex(text))
    for text in (
        "0000007edaa320a77036e99200000000000000000000000000000000000000000000000000000000"
        "0000018bcfe56800c000020100002a9f000001a1fcac665bc000020100002a9f0000000000000000"
        "000000000000000668656c6c6f300154001c70017102610162025f5f435243333223013734383234"
        "303830303002",
    )
] + [
    (
        126,
        bytes.fromhex(
            "0000008fdaa320a70731d90400000000000000000000000000000001000000000000007e00000000"
            "0000018bcfe56800c000020100002a9f000001a1fcac66bdc000020100002a9f0000000000000000"
            "000000000000000668656c6c6f310154002d70017102610162024b455953016b0254414753015461"
            "6741025f5f435243333223013435373839313331313102"
        ),
    ),
    (
        269,
        bytes.fromhex(
            "00000095daa320a71e3888be00000000000000000000000000000002000000000000010d00000010"
            "0000018bcfe56800fd00000000000000000000000000000200000005000001a1fcac66cdc0000201"
            "00002a9f0000000000000000000000000000000668656c6c6f320154002771017201610162"
        )
        if False
        else bytes.fromhex(
            "00000095daa320a71e3888be00000000000000000000000000000002000000000000010d00000010"
            "0000018bcfe56800fd00000000000000000000000000000200000005000001a1fcac66cdc0000201"
            "00002a9f0000000000000000000000000000000668656c6c6f3201540027700171026101"
            "6202d0bad0bbd18ed1870178025f5f435243333223013039363233383134323102"
        ),
    ),
]
