"""Long replies: work in small parts, and bodies that are encoded entry by entry.

A processor whose work grows with the broker's contents is a generator (``processors``). It encodes
each entry immediately, so that no single step is long, and so that a reply that is too large for a
frame is refused before it takes that much memory. Its bytes count as unread ones of the
connection (``counting``). A reply that is the same for all clients is made once for all that wait
for it (``SharedReplies``).
"""

import contextlib
import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from reput.errors import LimitExceeded
from reput.format import bodies
from reput.remoting import limits
from reput.remoting.time_slices import Steps

_T = TypeVar("_T")

CHUNK = 50
"""Entries between two yields, for entries of up to 20 us."""
LIGHT_CHUNK = 1_000
"""Entries between two yields, for entries of up to 1 us."""
COUNTED_BYTES = 64 * 1024
"""Bytes of a body that are counted together."""

Count = Callable[[int], object]
"""Counts further bytes of a reply. Raises ``LimitExceeded``."""

_count: ContextVar[Count | None] = ContextVar("_count", default=None)


@contextlib.contextmanager
def counting(count: Count | None) -> Iterator[None]:
    """Count the bodies of the replies that are created in this context.

    Args:
        count: Counts their bytes; None: they are not counted.
    """
    token = _count.set(count)
    try:
        yield
    finally:
        _count.reset(token)


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
        self._counted_size = 0
        self._count = _count.get()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, *values: object) -> None:
        """Add entries to a list; ``len`` counts them as one entry."""
        if values:
            self.add_text(bodies.encode(values)[1:-1])

    def add_pair(self, key: object, value: object) -> None:
        """Add an entry of a map; a message queue as key is encoded in Java's form."""
        self.add_text(bodies.encode_pair(key, value))

    def add_text(self, text: bytes) -> None:
        """Add encoded JSON.

        Raises:
            LimitExceeded: The body is too large for a frame, or all that are being made take too
                much memory.
        """
        self._entries.append(text)
        self._size += len(text) + 1
        if self._size > limits.REPLY_BYTES.maximum:
            raise self._refusal()
        uncounted = self._size - self._counted_size
        if uncounted >= COUNTED_BYTES and self._count is not None:
            self._counted_size = self._size
            self._count(uncounted)

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


class _Build:
    """The making of a shared body.

    Args:
        work: Makes it.
        number: Its number.
        version: Version of the contents at its begin; None: they have none.
    """

    def __init__(self, work: Steps[bytes], number: int, version: Hashable | None) -> None:
        self.number = number
        self.version = version
        self.is_over = False
        self._work = work
        self._body = b""
        self._failure: Exception | None = None

    def advance(self) -> None:
        """Do a step of the work."""
        if self.is_over:
            return
        try:
            with counting(None):
                next(self._work)
        except StopIteration as end:
            self.is_over, self._body = True, end.value
        except Exception as error:  # noqa: BLE001 - all that wait get it
            self.is_over, self._failure = True, error

    def result(self) -> bytes:
        """Return the body, or raise what its making has raised."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        return self._body


class SharedReplies:
    """Bodies of replies that are the same for all clients, such as the list of all topics.

    However many clients wait for a body, it is made once at a time: each of their turns does a step
    of it. A client gets a body that was begun after its request, or whose version is still in
    force.
    """

    def __init__(self) -> None:
        self._builds: dict[str, _Build] = {}
        self._begun_count = 0

    def ask(
        self, name: str, make: Callable[[], Steps[bytes]], version: Hashable | None = None
    ) -> Steps[bytes]:
        """Return a body.

        Args:
            name: Name of the body.
            make: Makes it.
            version: Version of its contents now; None: they have none, and the body is not kept.

        Raises:
            LimitExceeded: It is too large for a frame.
        """
        begun = self._begun_count
        while True:
            build = self._builds.get(name)
            if build is None:
                self._begun_count += 1
                build = self._builds[name] = _Build(make(), self._begun_count, version)
            is_fresh = build.number > begun or (version is not None and build.version == version)
            while not build.is_over:
                build.advance()
                if not build.is_over:
                    yield
            if self._builds.get(name) is build and (build.version is None or not is_fresh):
                del self._builds[name]
            if is_fresh:
                return build.result()
