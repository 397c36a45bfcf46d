"""JSON as fastjson writes and reads it, where it is none.

Maps with integer keys have them without quotes (``{0:"a"}``); maps whose keys are objects have the
object as key (``{{"topic":"T"}:5}``). Both are read; what is written is standard JSON, but for
objects as keys: readers of 5.4 and later take them no other way. Source: rocketmq-5.5 section 8.
"""

import contextlib
import json
import re
from typing import Any

_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|([{,]\s*)(-?\d+)(?=\s*:)')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


class ObjectKeyed(list[tuple[Any, Any]]):
    """A map whose keys are objects: pairs of key and value."""


def parse(text: str) -> Any:
    """Return the value of a text; bare integer keys become strings.

    A map with an object among its keys becomes ``ObjectKeyed``.

    Raises:
        ValueError: Not JSON even so.
    """
    with contextlib.suppress(ValueError):
        return json.loads(text)  # most is JSON; a table of 10,000 topics must not take long
    quoted = _BARE_KEY.sub(lambda m: m[1] or f'{m[2]}"{m[3]}"', text)
    try:
        return json.loads(quoted)
    except ValueError:
        if not re.search(r"[{,]\s*\{", quoted):
            raise
        return _Parser(quoted).value_of_all()


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
            raise ValueError(f"{self._tokens[self._at]!r} behind the end")
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
            raise ValueError(f"{token!r} where {wanted!r} should be")

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
