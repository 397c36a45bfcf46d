"""JSON as fastjson writes and reads it, where it is none.

Maps with integer keys have them without quotes (``{0:"a"}``); maps whose keys are objects have the
object as key (``{{"topic":"T"}:5}``). Both are read; what is written is standard JSON, but for
objects as keys: readers of 5.4 and later take them no other way. Checked with 5.5.0.
"""

import contextlib
import json
import re
from typing import Any

from reput.errors import excerpt

# A string that is never closed is matched to the end of the text: if it were not, each quote in it
# would be tried as the beginning of one, which takes quadratic time. DOTALL, as a backslash may
# stand before a line end.
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_BARE_KEY = re.compile(rf"({_STRING})|([{{,]\s*)(-?\d+)(?=\s*:)", re.DOTALL)
_TOKEN = re.compile(rf'{_STRING}|[{{}}\[\]:,]|[^\s{{}}\[\]:,"]+', re.DOTALL)
_OBJECT_KEY = re.compile(r"[{,]\s*\{")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class ObjectKeyed(list[tuple[Any, Any]]):
    """A map whose keys are objects: pairs of key and value."""


def parse(text: str) -> Any:
    """Return the value of a text; bare integer keys become strings.

    A map with an object among its keys becomes ``ObjectKeyed``. Takes linear time.

    Raises:
        ValueError: Not JSON even so, or nested too deeply.
    """
    try:
        with contextlib.suppress(ValueError):
            return json.loads(text)  # most is JSON; a table of 10,000 topics must not take long
        quoted = _BARE_KEY.sub(lambda m: m[1] or f'{m[2]}"{m[3]}"', text)
        try:
            return json.loads(quoted)
        except ValueError:
            if not _OBJECT_KEY.search(quoted):
                raise
            return _Parser(quoted).value_of_all()
    except RecursionError:
        raise ValueError("nested too deeply") from None


def check_text(text: str, value: Any) -> None:
    """Refuse strings that are no Unicode text: half of a surrogate pair cannot be sent on or saved.

    Args:
        text: What was parsed.
        value: What it was parsed to.

    Raises:
        ValueError: A string in it, or a key, has a lone surrogate.
    """
    if _SURROGATE_ESCAPE.search(text):  # rare, and strings have surrogates in no other way
        _check_strings(value)


def _check_strings(value: Any) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            surrogate = f"\\u{ord(value[error.start]):04x}"
            raise ValueError(
                f"text with half of a surrogate pair ({surrogate}), which is no Unicode"
            ) from None
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_strings(key)
            _check_strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_strings(item)


def pretty(value: Any) -> str:
    """Return the JSON of a value for people: each entry of a map on a line, lists on one."""
    return _pretty(value, "\n")


def _pretty(value: Any, line: str) -> str:
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    inner = line + "\t"
    entries = (f"{json.dumps(key)}:{_pretty(one, inner)}" for key, one in value.items())
    return "{" + inner + f",{inner}".join(entries) + line + "}"


class _Parser:
    """Reads JSON with objects as keys, token by token: bodies with them are small."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0

    def value_of_all(self) -> Any:
        found = self._value()
        if self._at != len(self._tokens):
            raise ValueError(f"{excerpt(self._tokens[self._at])!r} behind the end")
        return found

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise ValueError("the text is cut")
        self._at += 1
        token: str = self._tokens[self._at - 1]
        return token

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _expect(self, wanted: str) -> None:
        token = self._next()
        if token != wanted:
            raise ValueError(f"{excerpt(token)!r} where {wanted!r} should be")

    def _value(self) -> Any:
        token = self._next()
        if token == "{":
            return self._map()
        if token == "[":
            return self._list()
        return json.loads(token)

    def _list(self) -> list[Any]:
        found = []
        while self._peek() != "]":
            found.append(self._value())
            if self._peek() != "]":
                self._expect(",")
        self._next()
        return found

    def _map(self) -> Any:
        pairs: list[tuple[Any, Any]] = []
        while self._peek() != "}":
            key = self._value()
            self._expect(":")
            pairs.append((key, self._value()))
            if self._peek() != "}":
                self._expect(",")
        self._next()
        if all(isinstance(key, str) for key, _ in pairs):
            return dict(pairs)
        return ObjectKeyed(pairs)
