"""Hashes, checksums and message ids: the same numbers as Java."""

import struct

import pytest

import seeds
from interop import samples
from interop.java_oracle import Oracle
from reput.format import body, cq_unit, index_entry, java, message_id
from reput.format.message import Host

pytestmark = pytest.mark.interop

INT_MIN = -(1 << 31)
HASHES_TO_INT_MIN = "polygenelubricants"


def texts(oracle: Oracle) -> list[str]:
    random = seeds.random("java hashes", 1)
    alphabets = (samples.PLAIN, samples.PLAIN + samples.ODD, samples.ODD + samples.SURROGATES)
    return [
        "",
        HASHES_TO_INT_MIN,
        "TagA",
        "TopicA#k1",
        "\ud83d\ude00",  # a surrogate pair in two characters: from slicing, never from json.loads
        *(samples.text(random, 80, alphabets[i % 3]) for i in range(oracle.size(3000))),
    ]


def ends_in_int_min(start: str) -> str:
    """Return a text that begins with ``start`` and hashes to Integer.MIN_VALUE."""
    total = java.string_hash(start + "A" * 7)
    missing = (INT_MIN - total) & 0xFFFFFFFF
    digits = []
    for _ in range(7):
        missing, digit = divmod(missing, 31)
        digits.append(chr(ord("A") + digit))
    return start + "".join(reversed(digits))


def test_string_hashes_are_equal(oracle: Oracle) -> None:
    expected = oracle.ask("hash", [(text,) for text in texts(oracle)])
    assert [java.string_hash(text) for text in texts(oracle)] == expected
    assert java.string_hash(HASHES_TO_INT_MIN) == INT_MIN


def test_key_hashes_are_equal(oracle: Oracle) -> None:
    keys = [index_entry.key_of("Topic", text) for text in texts(oracle)] + texts(oracle)
    keys += [ends_in_int_min(f"Topic#{i}") for i in range(50)]
    expected = oracle.ask("indexKeyHash", [(key,) for key in keys])
    assert [index_entry.key_hash(key) for key in keys] == expected
    assert expected[-50:] == [0] * 50


def test_tags_codes_are_equal(oracle: Oracle) -> None:
    expected = oracle.ask("tagsCode", [(text,) for text in texts(oracle)])
    assert [cq_unit.tags_code(text) for text in texts(oracle)] == expected
    assert cq_unit.tags_code(HASHES_TO_INT_MIN) == INT_MIN


def test_checksums_are_equal(oracle: Oracle) -> None:
    random = seeds.random("java hashes", 2)
    data = [random.randbytes(random.choice((0, 1, 5, 100, 5000))) for _ in range(oracle.size(500))]
    assert [body.crc(part) for part in data] == oracle.ask("crc", [(part,) for part in data])


def test_offset_ids_of_java_are_decoded(oracle: Oracle) -> None:
    random = seeds.random("java hashes", 3)
    hosts = [
        samples.host(random, is_v6=oracle.version != "4.5.2" and i % 2 == 0)
        for i in range(oracle.size(500, 100))
    ]
    offsets = [samples.number(random, 64) for _ in hosts]
    ids = oracle.ask(
        "createMessageId",
        [(host.address, host.port, offset) for host, offset in zip(hosts, offsets, strict=True)],
    )
    for host, offset, text in zip(hosts, offsets, ids, strict=True):
        assert message_id.encode_offset_id(host, offset) == text
        assert message_id.decode_offset_id(text) == message_id.OffsetId(host, offset)


def test_java_decodes_our_offset_ids(oracle: Oracle) -> None:
    random = seeds.random("java hashes", 4)
    hosts = [
        samples.host(random, is_v6=oracle.version != "4.5.2" and i % 2 == 0)
        for i in range(oracle.size(500, 100))
    ]
    ids = [message_id.encode_offset_id(host, samples.number(random, 64)) for host in hosts]
    ids += [text.lower() for text in ids]  # people paste text that tools print
    for text, answer in zip(ids, oracle.ask("decodeMessageId", [(i,) for i in ids]), strict=True):
        decoded = message_id.decode_offset_id(text)
        assert answer == {"host": str(decoded.store_host), "offset": decoded.physical_offset}


def test_only_java_prints_a_mapped_ipv4_address_as_ipv4(oracle: Oracle) -> None:
    if oracle.version == "4.5.2":
        pytest.skip("no such case: 4.5 has no IPv6")
    host = Host(bytes(10) + b"\xff\xff" + bytes((192, 0, 2, 1)), 10911)
    text = message_id.encode_offset_id(host, 7)
    assert len(text) == 56
    assert oracle.ask_one("decodeMessageId", text) == {"host": "192.0.2.1:10911", "offset": 7}
    assert struct.unpack(">iq", bytes.fromhex(text)[16:]) == (10911, 7)
