"""JSON in fastjson's dialect: the accepted texts, linear time, and the refused texts."""

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from reput.format import fastjson
from reput.format.fastjson import ObjectKeyed

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | TEXTS


def written(value: Any) -> str:
    """Write a value like fastjson: integer keys without quotes, object keys as objects."""
    if isinstance(value, dict):
        entries = (f"{written(key)}:{written(item)}" for key, item in value.items())
        return "{" + ",".join(entries) + "}"
    if isinstance(value, ObjectKeyed):
        return "{" + ",".join(f"{written(key)}:{written(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


def read_as(value: Any) -> Any:
    """Return the value that the reader makes of a written value: integer keys become strings."""
    if isinstance(value, dict):
        return {str(key): read_as(item) for key, item in value.items()}
    if isinstance(value, ObjectKeyed):
        return ObjectKeyed((read_as(key), read_as(item)) for key, item in value)
    if isinstance(value, list):
        return [read_as(item) for item in value]
    return value


OBJECTS = st.dictionaries(TEXTS, SCALARS, min_size=1, max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXTS, inner, max_size=4)
        | st.dictionaries(st.integers(-99, 1 << 40), inner, max_size=4)
        | st.lists(st.tuples(OBJECTS, inner), min_size=1, max_size=3).map(ObjectKeyed)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_text_written_by_fastjson_is_read(value: Any) -> None:
    assert fastjson.parse(written(value)) == read_as(value)


def test_digits_in_strings_are_not_taken_for_keys() -> None:
    assert fastjson.parse(r'{0:"{1:2}",1:"a\",2:\"b"}') == {"0": "{1:2}", "1": 'a",2:"b'}


HOSTILE = {
    "escaped quotes": '\\"',
    "a brace and escaped quotes": '{\\"',
    "opened strings": '{"',
    "a line end after a backslash": '"\\\n',
    "lists": "[",
    "maps in lists": "[{",
    "maps": "{",
    "bare keys": "{1:",
    "bare keys of one map": "1:1,",
    "keys that are objects": '{{"a":1}:',
    "objects in a row": '{{"a":1}:1}',
    "spaces": "{ ",
    "digits": "1",
    "commas": ",",
    "backslashes": "\\",
    "quotes": '"',
}


def cpu_seconds(text: str) -> float:
    begun = time.process_time()
    with pytest.raises(ValueError):  # noqa: PT011 - the text is invalid in some way
        fastjson.parse(text)
    return time.process_time() - begun


@pytest.mark.parametrize("prefix", ["", "{", '"'])
@pytest.mark.parametrize("piece", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.sampled(5)
def test_invalid_json_takes_linear_time(piece: str, prefix: str) -> None:
    """Reading takes linear time; quadratic time took hours for 1 MB."""
    small = min(cpu_seconds(prefix + piece * 10_000 + "}]") for _ in range(3))
    large = min(cpu_seconds(prefix + piece * 80_000 + "}]") for _ in range(2))
    assert large < 24 * small + 0.02


@pytest.mark.parametrize("text", ["[" * 1_000_000, "{1:" * 300_000, '{{"a":' * 100_000])
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        fastjson.parse(text)


def test_an_error_quotes_only_the_beginning_of_a_long_token() -> None:
    with pytest.raises(ValueError, match="characters") as raised:
        fastjson.parse("{{} x" + "x" * 100_000)
    assert len(str(raised.value)) < 400


# --- surrogates -----------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        r'"\ud800"',
        r'["\uDC00"]',
        r'{"a":{"b":["\udbff x"]}}',
        r'{"\ud800":1}',
        r'{{"\ud800":1}:2}',
        r'"\ude00\ud83d"',
    ],
)
def test_a_lone_surrogate_is_detected(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("surrogate pair (\\ud") + "|surrogate"):
        fastjson.check_text(text, fastjson.parse(text))


@pytest.mark.parametrize("text", [r'"\ud83d\ude00"', r'"\\ud800"', '"😀"', r'{"a":"\u00e4"}'])
def test_characters_outside_the_bmp_are_accepted(text: str) -> None:
    fastjson.check_text(text, fastjson.parse(text))
    fastjson.parse(text).__repr__().encode()
