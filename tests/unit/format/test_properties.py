"""Property strings: decoded like Java, and encoded so that no reader misparses them."""

import pytest
from hypothesis import given, strategies as st

import golden
from cases import each
from reput.format import java, properties as props
from reput.format.message import decode as decode_record

# --- reading --------------------------------------------------------------


@each(
    ("data", "expected"),
    [
        (b"", {}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x02", {"a": "b"}),
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01b\x02\x02\x02c\x01d\x02", {"a": "b", "c": "d"}),
        # A pair counts only if name and value are present.
        (b"a\x01\x02c\x01d", {"c": "d"}),
        (b"\x01b\x02c\x01d", {"c": "d"}),
        (b"a\x02c\x01d", {"c": "d"}),
        (b"a", {}),
        (b"\x01", {}),
        (b"\x02", {}),
        # The value extends to the end of the pair.
        (b"a\x01b\x01c", {"a": "b\x01c"}),
        (b"a\x01\x01", {"a": "\x01"}),
        # The last of equal names wins.
        (b"a\x01b\x02a\x01c", {"a": "c"}),
        (b"a\x01b\x02a\x01", {"a": "b"}),
        # Other control characters and spaces are text.
        (b" a\x00\x03\x01\tb ", {" a\x00\x03": "\tb "}),
        ("ключ\x01\U0001f62f馬".encode(), {"ключ": "\U0001f62f馬"}),
        (b"a\x01\xff\xc3", {"a": "\ufffd\ufffd"}),
    ],
)
def test_decode(data: bytes, expected: dict[str, str]) -> None:
    assert props.decode(data) == expected


def test_decode_keeps_the_stored_order() -> None:
    assert list(props.decode(b"b\x01x\x02a\x01y\x02c\x01z")) == ["b", "a", "c"]
    assert list(props.decode(b"b\x01x\x02a\x01y\x02b\x01z")) == ["a", "b"]


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_separators_inside_values_of_golden_stores(version: str) -> None:
    """Producers of the golden stores put both separators into values."""
    seen = 0
    for expected, place in golden.records(version, "clean"):
        message = decode_record(place.record)
        properties = props.decode(message.property_bytes)
        assert golden.known_properties(version, properties) == expected["properties"]
        seen += any("\x01" in value for value in properties.values())
    assert seen


@given(st.binary(max_size=200))
def test_decode_never_raises(data: bytes) -> None:
    properties = props.decode(data)
    assert all(name and value for name, value in properties.items())
    assert all("\x01" not in name and "\x02" not in name + properties[name] for name in properties)


# --- D21: the last separator ----------------------------------------------


@pytest.mark.parametrize(
    ("version", "is_there"), [("4.5.2", {True}), ("4.9.7", {False}), ("5.5.0", {True})]
)
def test_versions_that_write_the_last_separator(version: str, is_there: set[bool]) -> None:
    endings = set()
    for _, place in golden.records(version, "clean"):
        message = decode_record(place.record)
        if message.property_bytes and "UNIQ_KEY" in message.properties:
            endings.add(message.property_bytes.endswith(b"\x02"))
    assert is_there <= endings


def test_appending_keeps_the_other_properties() -> None:
    tags, more = b"TAGS\x01TagA", b"CLUSTER\x01c"
    expected = {"TAGS": "TagA", "CLUSTER": "c"}
    for first in (tags, tags + b"\x02"):
        for second in (more, more + b"\x02"):
            assert props.decode(props.append(first, second)) == expected
    assert props.append(tags, b"") == tags
    assert props.append(b"", more) == more
    assert props.append(tags + b"\x02", b"") == tags + b"\x02"
    assert b"\x02\x02" not in props.append(tags + b"\x02", more)


def test_an_encoded_string_ends_with_a_separator() -> None:
    assert props.encode({"a": "b"}) == b"a\x01b\x02"
    assert props.encode({"a": "b"}, last_separator=False) == b"a\x01b"
    assert props.encode({"a": "b", "c": "d"}, last_separator=False) == b"a\x01b\x02c\x01d"
    assert props.encode({}) == props.encode({}, last_separator=False) == b""


@pytest.mark.parametrize(
    "properties",
    [
        {"a\x01": "b"},
        {"a\x02": "b"},
        {"a": "b\x01"},
        {"a": "\x02b"},
        {"": "b"},
        {"a": ""},
        {"good": "x", "a": ""},
    ],
)
def test_text_with_a_separator_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="property"):
        props.encode(properties)


# --- D20: the length ------------------------------------------------------


@pytest.mark.parametrize("last_separator", [False, True])
def test_longest_string_that_fits(last_separator: bool) -> None:
    room = 32767 - 2 - last_separator
    data = props.encode({"a": "b" * room}, last_separator=last_separator)
    assert len(data) == props.LENGTH_MAX == 32767
    with pytest.raises(ValueError, match="32768 bytes; at most 32767"):
        props.encode({"a": "b" * (room + 1)}, last_separator=last_separator)


def test_the_limit_counts_bytes_and_not_characters() -> None:
    with pytest.raises(ValueError, match="at most 32767"):
        props.encode({"a": "馬" * 11000})


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_java_stored_thirty_thousand_bytes(version: str) -> None:
    longest = max(
        len(decode_record(place.record).property_bytes)
        for expected, place in golden.records(version, "clean")
        if expected["storeSize"] > 30000
    )
    assert 30000 < longest <= props.LENGTH_MAX


# --- writing and reading --------------------------------------------------

texts = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1)


@given(st.dictionaries(texts, texts, max_size=8), st.booleans())
def test_encode_decode_round_trip(properties: dict[str, str], last_separator: bool) -> None:
    data = props.encode(properties, last_separator=last_separator)
    assert props.decode(data) == properties
    assert list(props.decode(data)) == list(properties)


@given(
    st.dictionaries(texts, texts, max_size=5),
    st.dictionaries(texts, texts, max_size=5),
    st.booleans(),
)
def test_append_is_an_update(
    first: dict[str, str], second: dict[str, str], last_separator: bool
) -> None:
    data = props.append(props.encode(first, last_separator=last_separator), props.encode(second))
    assert props.decode(data) == {**first, **second}


# --- keys -----------------------------------------------------------------


@each(
    ("keys", "words"),
    [
        (None, []),
        ("", []),
        ("a", ["a"]),
        ("a b", ["a", "b"]),
        (" a  b ", ["a", "b"]),
        ("   ", []),
        ("a\tb\u00a0c", ["a\tb\u00a0c"]),
        ("a,b", ["a,b"]),
    ],
)
def test_split_keys(keys: str | None, words: list[str]) -> None:
    assert props.split_keys(keys) == words


@given(st.text(alphabet="ab\x01\x02é", max_size=40), st.text(alphabet="ab", min_size=1, max_size=2))
def test_a_getter_agrees_with_decode(text: str, name: str) -> None:
    assert props.getter(text)(name) == props.decode(text.encode()).get(name)


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_a_getter_agrees_with_decode_on_golden_stores(version: str) -> None:
    for _, place in golden.records(version, "clean"):
        message = decode_record(place.record)
        get = props.getter(java.decode_utf8(message.property_bytes))
        assert {name: get(name) for name in message.properties} == message.properties


_VALUES = st.text(st.characters(min_codepoint=3, exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(st.sampled_from(["A", "AB", "B", "REAL_TOPIC"]), _VALUES), st.booleans())
def test_a_single_lookup_agrees_with_decode(properties: dict[str, str], ends: bool) -> None:
    data = props.encode(properties, last_separator=ends)
    for name in ("A", "AB", "B", "REAL_TOPIC", "C"):
        value = props.find(data, name)
        assert (None if value is None else value.decode()) == props.decode(data).get(name)


def test_the_last_of_equal_names_wins() -> None:
    assert props.find(b"A\x011\x02AB\x019\x02A\x012\x02B\x01A\x013", "A") == b"2"
    assert props.find(b"A\x01", "A") is None
