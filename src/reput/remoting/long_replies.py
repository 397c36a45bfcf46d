"""Long replies: work in small parts, and bodies that are encoded entry by entry.

A processor whose work grows with the broker's contents is a generator (``processors``). It encodes
each entry immediately, so that no single step is long, and so that a reply that is too large for a
frame is refused before it takes that much memory.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from reput import limits
from reput.errors import LimitExceeded
from reput.format import bodies
from reput.remoting.time_slices import Steps

_T = TypeVar("_T")

CHUNK = 50
"""Entries between two yields, for entries of up to 20 us."""
LIGHT_CHUNK = 1_000
"""Entries between two yields, for entries of up to 1 us."""


def chunks(items: Iterable[_T], size: int = CHUNK) -> Iterator[Sequence[_T]]:
    """Copy items at once, and yield the copy in chunks of a size."""
    copied = list(items)
    for start in range(0, len(copied), size):
        yield copied[start : start + size]


def sort(items: Collection[str]) -> Steps[list[str]]:
    """Sort names, a part at a time."""
    runs = []
    for chunk in chunks(items, LIGHT_CHUNK):
        runs.append(sorted(chunk))
        yield
    if len(runs) < 2:
        return runs[0] if runs else []
    names = []
    for number, item in enumerate(heapq.merge(*runs), 1):
        names.append(item)
        if number % LIGHT_CHUNK == 0:
            yield
    return names


class LongBody:
    """The entries of a list or map in the JSON of a reply.

    Args:
        advice: Requests to use instead if there are too many entries, for the error message.
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._entries: list[bytes] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, *values: object) -> None:
        """Add entries of a list, which count as one in ``len``."""
        if values:
            self.add_text(bodies.encode(values)[1:-1])

    def add_pair(self, key: object, value: object) -> None:
        """Add an entry of a map; a message queue as key is encoded in Java's form."""
        self.add_text(bodies.encode_pair(key, value))

    def add_text(self, text: bytes) -> None:
        """Add encoded JSON.

        Raises:
            LimitExceeded: The body is too large for a frame.
        """
        self._entries.append(text)
        self._size += len(text) + 1
        if self._size > limits.REPLY_BYTES.maximum:
            raise self._refusal()

    def _refusal(self) -> LimitExceeded:
        return limits.REPLY_BYTES.exceeded(place=self._advice)

    def as_list(self) -> bytes:
        """Return the JSON of a list of the entries."""
        return b"[" + b",".join(self._entries) + b"]"

    def encode_in(self, template: bodies.Body | dict[str, Any], field: str) -> bytes:
        """Return the JSON of a body with the entries in one of its empty lists or maps.

        Raises:
            LimitExceeded: The body is too large for a frame.
        """
        data = _filled(template, field, b",".join(self._entries))
        if len(data) > limits.REPLY_BYTES.maximum:
            raise self._refusal()
        return data


def _filled(template: bodies.Body | dict[str, Any], field: str, entries: bytes) -> bytes:
    """Return the JSON of a body with entries in one of its empty lists or maps."""
    data = bodies.encode(template)
    if not entries:
        return data
    name = field
    if isinstance(template, bodies.Body):
        names = zip(template.__struct_fields__, template.__struct_encode_fields__, strict=True)
        name = dict(names)[field]
    # Strings cannot contain this: their quotes are escaped.
    start = data.index(b'"' + name.encode() + b'":') + len(name) + 3
    assert data[start : start + 2] in (b"{}", b"[]"), f"{field} is not empty"
    return b"".join((data[: start + 1], entries, data[start + 1 :]))
