"""What long replies are made with: work in small parts, and bodies that grow entry by entry.

A processor whose work grows with what the broker holds is a generator (``processors``). It encodes
each entry as soon as it has it, so that no single step is long, and so that a reply that no frame
can hold is refused before it costs the memory of one.
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
"""Entries between two yields, where one takes up to 20 us."""
LIGHT_CHUNK = 1_000
"""Entries between two yields, where one takes up to 1 us."""


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
    found = []
    for number, item in enumerate(heapq.merge(*runs), 1):
        found.append(item)
        if number % LIGHT_CHUNK == 0:
            yield
    return found


class LongBody:
    """The entries of a list or map in the JSON of a reply.

    Args:
        advice: What to ask for instead where they are too many for one reply.
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._entries: list[bytes] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, *values: object) -> None:
        """Add entries of a list, which then count as one."""
        if values:
            self.add_text(bodies.encode(values)[1:-1])

    def add_pair(self, key: object, value: object) -> None:
        """Add an entry of a map; a message queue as key is written as Java's readers want it."""
        self.add_text(bodies.encode_pair(key, value))

    def add_text(self, text: bytes) -> None:
        """Add what is JSON already.

        Raises:
            LimitExceeded: No frame can hold all of it.
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
        """Return the JSON of a body with the entries in an empty list or map of it.

        Raises:
            LimitExceeded: No frame can hold it.
        """
        data = _filled(template, field, b",".join(self._entries))
        if len(data) > limits.REPLY_BYTES.maximum:
            raise self._refusal()
        return data


def _filled(template: bodies.Body | dict[str, Any], field: str, entries: bytes) -> bytes:
    """Return the JSON of a body with entries in one of its lists or maps, which is empty."""
    data = bodies.encode(template)
    if not entries:
        return data
    name = field
    if isinstance(template, bodies.Body):
        names = zip(template.__struct_fields__, template.__struct_encode_fields__, strict=True)
        name = dict(names)[field]
    # No string holds this: quotes in strings are escaped.
    start = data.index(b'"' + name.encode() + b'":') + len(name) + 3
    assert data[start : start + 2] in (b"{}", b"[]"), f"{field} is not empty"
    return b"".join((data[: start + 1], entries, data[start + 1 :]))
