"""The two ids of a message."""

import pytest
from hypothesis import given, strategies as st

import golden
from cases import each
from reput.format import message_id
from reput.format.message import Host, decode as decode_record

LOCAL = Host(bytes([127, 0, 0, 1]), 20911)
FIRST = "7F000001000051AF0000000000000000"


def test_vector() -> None:
    assert message_id.encode_offset_id(LOCAL, 0) == FIRST
    assert message_id.decode_offset_id(FIRST) == message_id.OffsetId(LOCAL, 0)
    assert message_id.decode_offset_id(FIRST.lower()).store_host == LOCAL


@each(("version", "name"), golden.STORES)
def test_ids_equal_those_of_java(version: str, name: str) -> None:
    lengths = set()
    for expected, place in golden.records(version, name):
        message = decode_record(place.record)
        text = expected["offsetMsgId"]
        assert message_id.offset_id(message) == text
        decoded = message_id.decode_offset_id(text)
        assert decoded.physical_offset == expected["commitLogOffset"]
        assert str(decoded.store_host) == expected["storeHost"]
        assert message_id.message_id(message) == (expected["uniqKey"] or text)
        lengths.add(len(text))
    assert lengths <= set(message_id.OFFSET_ID_LENGTHS) == {32, 56}
    if name == "clean":
        assert lengths == ({32} if version == "4.5.2" else {32, 56})


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_ids_returned_to_producers(version: str) -> None:
    """The ids that brokers returned for sends lead to the messages."""
    stored = {m["offsetMsgId"]: m["uniqKey"] for m in golden.messages(version, "clean")}
    checked = 0
    for answer in golden.sent(version, "clean"):
        if not answer.get("offsetMsgId"):
            continue
        ids = answer["offsetMsgId"].split(",")
        keys = answer["msgId"].split(",")
        if len(ids) == len(keys):
            assert [stored[text] for text in ids] == keys
            checked += 1
        for offset_id in ids:
            assert message_id.decode_offset_id(offset_id).physical_offset >= 0
    assert checked > 100


@each(
    "text",
    [
        "",
        FIRST[:-1],
        FIRST + "0",
        FIRST + FIRST,
        "G" + FIRST[1:],
        " " * 32,
        "7F 00 00 01 00 00 51 AF 00 00 00",
        FIRST[:-2] + " 0",
        "-" + FIRST[1:],
        "0x" + FIRST[2:],
        "\uff10" * 32,
    ],
)
def test_an_invalid_offset_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="message id"):
        message_id.decode_offset_id(text)


addresses = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)
ports = st.integers(-(1 << 31), (1 << 31) - 1)


@given(st.builds(Host, addresses, ports), st.integers(-(1 << 63), (1 << 63) - 1))
def test_round_trip(host: Host, physical_offset: int) -> None:
    text = message_id.encode_offset_id(host, physical_offset)
    assert text == text.upper()
    assert message_id.decode_offset_id(text) == message_id.OffsetId(host, physical_offset)


@given(st.text(max_size=60))
def test_any_text_is_an_id_or_refused(text: str) -> None:
    try:
        decoded = message_id.decode_offset_id(text)
    except ValueError:
        return
    again = message_id.encode_offset_id(decoded.store_host, decoded.physical_offset)
    assert again == text.upper()
