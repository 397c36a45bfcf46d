"""JSON with the extensions that fastjson writes and reads.

Maps with integer keys lack the quotes (``{0:"a"}``); maps whose keys are objects have the
object as key (``{{"topic":"T"}:5}``). Both are read. Output is standard JSON except for objects as
keys, which readers of 5.4 and later accept in no other form. Checked with 5.5.0.
"""

import contextlib
import json
import re
from typing import Any

from reput.errors import excerpt

# A string without a closing quote matches to the end of the text. Otherwise each quote in it would
# be tried as the start of a string, in quadratic time. DOTALL: a backslash may precede a line end.
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_BARE_KEY = re.compile(rf"({_STRING})|([{{,]\s*)(-?\d+)(?=\s*:)", re.DOTALL)
_TOKEN = re.compile(rf'{_STRING}|[{{}}\[\]:,]|[^\s{{}}\[\]:,"]+', re.DOTALL)
_OBJECT_KEY = re.compile(r"[{,]\s*\{")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class ObjectKeyed(list[tuple[Any, Any]]):
    """A map whose keys are objects: pairs of key and value."""


def parse(text: str) -> Any:
    """Parse a text; bare integer keys become strings.

    A map with an object among its keys becomes ``ObjectKeyed``. Takes linear time.

    Raises:
        ValueError: The text is not JSON even with the extensions, or is nested too deeply.
    """
    try:
        with contextlib.suppress(ValueError):
            return json.loads(text)  # most input is JSON; keep tables of 10,000 topics fast
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
    """Reject strings with a lone surrogate, which cannot be forwarded or saved.

    Args:
        text: The parsed text.
        value: The result of parsing it.

    Raises:
        ValueError: A string or a key has a lone surrogate.
    """
    if _SURROGATE_ESCAPE.search(text):  # rare; the only way to get a surrogate
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
    """Return indented JSON: one line per entry of a map, one line per list."""
    return _pretty(value, "\n")


def _pretty(value: Any, line: str) -> str:
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    inner = line + "\t"
    entries = (f"{json.dumps(key)}:{_pretty(item, inner)}" for key, item in value.items())
    return "{" + inner + f",{inner}".join(entries) + line + "}"


class _Parser:
    """Recursive-descent parser for JSON with objects as keys; only small bodies have them."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0

    def value_of_all(self) -> Any:
        value = self._value()
        if self._at != len(self._tokens):
            raise ValueError(f"{excerpt(self._tokens[self._at])!r} after the end")
        return value

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
        items = []
        while self._peek() != "]":
            items.append(self._value())
            if self._peek() != "]":
                self._expect(",")
        self._next()
        return items

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
