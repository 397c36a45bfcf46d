"""Java's string hash and Java's UTF-8."""

import codecs

import pytest
from hypothesis import given, strategies as st

import golden
from cases import each
from reput.format import java

# --- hash -----------------------------------------------------------------


@each(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TopicA#k1", -1903240649),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -(1 << 31)),
        # Two UTF-16 units: 0xD83D * 31 + 0xDE2F.
        ("\U0001f62f", 0xD83D * 31 + 0xDE2F),
        # A lone surrogate.
        ("\ud83d", 0xD83D),
    ],
)
def test_string_hash_vectors(text: str, expected: int) -> None:
    assert java.string_hash(text) == expected


@each(("version", "name"), golden.STORES)
def test_string_hash_of_golden_tags(version: str, name: str) -> None:
    for tags, code in golden.manifest(version, name)["tagsCodes"].items():
        assert java.string_hash(tags) == code


@given(st.text(st.characters()))
def test_string_hash_equals_the_documented_sum(text: str) -> None:
    units = [unit for char in text for unit in utf16(ord(char))]
    total = sum(unit * 31 ** (len(units) - 1 - i) for i, unit in enumerate(units))
    assert java.string_hash(text) == (total + (1 << 31)) % (1 << 32) - (1 << 31)


def utf16(point: int) -> list[int]:
    if point < 0x10000:
        return [point]
    point -= 0x10000
    return [0xD800 + (point >> 10), 0xDC00 + (point & 0x3FF)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0), (5, 5), (-5, 5), ((1 << 31) - 1, (1 << 31) - 1), (1 - (1 << 31), (1 << 31) - 1)],
)
def test_absolute_hash(value: int, expected: int) -> None:
    assert java.absolute_hash(value) == expected


def test_absolute_of_the_smallest_int_is_zero() -> None:
    assert java.absolute_hash(-(1 << 31)) == 0


# --- UTF-8 ----------------------------------------------------------------

X = "\ufffd"


@each(
    ("data", "expected"),
    [
        # Printed by new String(data, UTF_8) of Java 17 and 25.
        ("", ""),
        ("41", "A"),
        ("c3bc", "ü"),
        ("e9a6ac", "馬"),
        ("f09f98af", "\U0001f62f"),
        ("80", X),
        ("ff41", X + "A"),
        ("c0af", X + X),
        ("c3", X),
        ("c341", X + "A"),
        ("e9a6", X),
        ("e9a641", X + "A"),
        ("e080af", X + X + X),
        ("f09f98", X),
        ("f09f9841", X + "A"),
        ("f0808080", X + X + X + X),
        ("f5808080", X + X + X + X),
        ("f4908080", X + X + X + X),
        # An encoded surrogate becomes a single replacement character, whatever its length.
        ("eda080", X),
        ("edbfbf", X),
        ("eda0", X),
        ("eda041", X + "A"),
        ("41eda08042", "A" + X + "B"),
        ("eda0bdedb8af", X + X),
        ("eda080eda080", X + X),
        ("ed9fbf", "\ud7ff"),
        ("ed", X),
        ("ed41", X + "A"),
        ("edffa0", X + X + X),
    ],
)
def test_decode_utf8_vectors(data: str, expected: str) -> None:
    assert java.decode_utf8(bytes.fromhex(data)) == expected


@given(st.text(st.characters(codec="utf-8")))
def test_utf8_round_trip(text: str) -> None:
    assert java.decode_utf8(java.encode_utf8(text)) == text
    assert java.encode_utf8(text) == text.encode()


@given(st.binary())
def test_decode_never_raises(data: bytes) -> None:
    text = java.decode_utf8(data)
    assert not any(0xD800 <= ord(char) < 0xE000 for char in text)
    assert X in text or text.encode() == data


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\ud83db", b"a?b"),
        ("\udc00", b"?"),
        # Two adjacent halves are one character in any Java string.
        ("\ud83d\ude2f", "\U0001f62f".encode()),
        ("\ude2f\ud83d", b"??"),
    ],
)
def test_encode_of_surrogates(text: str, expected: bytes) -> None:
    assert java.encode_utf8(text) == expected


@given(st.text(st.characters()))
def test_half_a_character_is_a_question_mark_and_all_others_are_kept(text: str) -> None:
    """The codec of UTF-16 joins halves and detects single ones, as strings of Java do."""
    codecs.register_error("question mark", lambda error: ("?", error.end))
    units = text.encode("utf-16-le", "surrogatepass")
    assert java.encode_utf8(text) == units.decode("utf-16-le", "question mark").encode()
