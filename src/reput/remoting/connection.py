"""What a connection decides: where frames begin and end, and whom a reply belongs to. Pure.

FrameBuffer       bytes in pieces of any size -> a buffer with whole frames
PendingRequests   requests that wait for a reply, by opaque
"""

from typing import Generic, NamedTuple, TypeVar

from reput.errors import NotAFrame, Overloaded
from reput.format.command import FRAME_BYTES_MAX, LENGTH, MARK, Buffer

READ_BYTES = 256 * 1024
"""Of a shared buffer: what one read takes at most. 64 KiB cost more with bodies of 1 KiB."""
IN_FLIGHT_MAX = 65_535
"""Requests of one connection that wait for a reply; Java's ``clientAsyncSemaphoreValue``."""
_GROWTH = 2
_SLOW_RATIO = 8
"""A frame of which a read brings less than this part of what is kept gets a buffer of its own: what
comes byte by byte is not copied with each byte."""
_OPAQUE_MAX = 0x7FFFFFFF

_T = TypeVar("_T")


def find_frame(buffer: Buffer, start: int, end: int) -> tuple[int, int] | None:
    """Return where the frame at ``start`` has its content; None if its length is not there yet.

    The end may lie behind ``end``: then the rest has not come yet.

    Raises:
        NotAFrame: The length is impossible.
    """
    content = start + LENGTH.size
    if content > end:
        return None
    (size,) = LENGTH.unpack_from(buffer, start)
    if size < MARK.size or size > FRAME_BYTES_MAX:
        raise NotAFrame(
            f"frame of {size} bytes; allowed: {MARK.size} to {FRAME_BYTES_MAX} "
            "(is the other side a RocketMQ client or broker?)"
        )
    return content, content + size


class FrameBuffer:
    """Where bytes are read into, and what is kept of them.

    The buffer is shared by all connections of an owner: between two reads only the beginning of an
    unfinished frame is kept, here. A frame that is larger than the buffer, or comes in small
    pieces, gets a buffer of its own, which grows with what comes: what a length only promises takes
    no memory.

    Args:
        shared: The buffer.
    """

    def __init__(self, shared: bytearray) -> None:
        self._shared = memoryview(shared)
        self._tail = b""
        self._own: bytearray | None = None
        self._own_size = 0
        self._filled = 0
        self._last_read = 0

    @property
    def kept_bytes(self) -> int:
        """How many bytes are kept between two reads."""
        return len(self._tail) if self._own is None else len(self._own)

    @property
    def has_beginning(self) -> bool:
        """Whether the beginning of a frame is kept, or frames that wait."""
        return self._own is not None or bool(self._tail)

    def room(self) -> memoryview:
        """Return where the next bytes are to be read into, at once."""
        if self._own is not None:
            return memoryview(self._own)[self._filled :]
        size = len(self._tail)
        self._shared[:size] = self._tail
        return self._shared[size:]

    def filled(self, count: int) -> tuple[memoryview, int]:
        """Take note that so many bytes were read; return what there is now, and its end."""
        self._last_read = count
        if self._own is None:
            return self._shared, len(self._tail) + count
        self._filled += count
        return self._whole()

    def kept(self) -> tuple[memoryview, int]:
        """Return what is kept, and its end, as if it had just been read."""
        if self._own is not None:
            return self._whole()
        size = len(self._tail)
        self._shared[:size] = self._tail
        return self._shared, size

    def _whole(self) -> tuple[memoryview, int]:
        """Return the frame with a buffer of its own if all of it has come; else make room."""
        own = self._own
        assert own is not None, "no frame has a buffer of its own"
        if self._filled == self._own_size:
            self._own = None
            self._tail = b""
            if self._own_size > len(self._shared):
                return memoryview(own), self._own_size
            self._shared[: self._own_size] = own  # where the fast path looks
            return self._shared, self._own_size
        if self._filled == len(own):
            self._own = bytearray(min(_GROWTH * len(own), self._own_size))
            self._own[: self._filled] = own
        return self._shared, 0

    def keep(self, view: memoryview, at: int, end: int) -> None:
        """Keep ``view[at:end]`` for the next read: frames that wait, the beginning of one.

        Raises:
            NotAFrame: It is none.
        """
        if self._own is not None:
            return
        if at == end:
            self._tail = b""
            return
        place = find_frame(view, at, end)
        kept = end - at
        if place is not None:
            size = place[1] - at
            is_large = size > len(self._shared)
            is_slow = place[1] > end and _SLOW_RATIO * self._last_read < kept
            if is_large or is_slow:
                self._own_size = size
                self._filled = kept
                room = max(_GROWTH * (len(self._shared) if is_large else kept), kept)
                self._own = bytearray(min(room, size))
                self._own[:kept] = view[at:end]
                self._tail = b""
                return
        self._tail = bytes(view[at:end])


class Question(NamedTuple, Generic[_T]):
    """A request that waits for its reply."""

    future: _T
    deadline: float
    code: int
    timeout_ms: int


class PendingRequests(Generic[_T]):
    """The requests of a connection that wait for a reply. Times are seconds, of the loop."""

    def __init__(self) -> None:
        self._waiting: dict[int, Question[_T]] = {}
        self._last_opaque = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, future: _T, code: int, timeout_ms: int, now: float) -> tuple[int, float]:
        """Let somebody wait; return the opaque of the request, and how long it waits.

        Raises:
            Overloaded: ``IN_FLIGHT_MAX`` wait already.
        """
        if len(self._waiting) >= IN_FLIGHT_MAX:
            raise Overloaded(f"{IN_FLIGHT_MAX} requests on one connection wait for a reply")
        opaque = (self._last_opaque + 1) & _OPAQUE_MAX
        while opaque in self._waiting:
            opaque = (opaque + 1) & _OPAQUE_MAX
        self._last_opaque = opaque
        deadline = now + timeout_ms / 1000
        self._waiting[opaque] = Question(future, deadline, code, timeout_ms)
        return opaque, deadline

    def answered(self, opaque: int) -> _T | None:
        """Return who asked; None if nobody did, or waits no more."""
        question = self._waiting.pop(opaque, None)
        return None if question is None else question.future

    def expire(self, now: float) -> list[Question[_T]]:
        """Take out those that have waited long enough."""
        late = [opaque for opaque, one in self._waiting.items() if one.deadline <= now]
        return [self._waiting.pop(opaque) for opaque in late]

    def take_all(self) -> list[Question[_T]]:
        """Take out all."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting.values())

    def next_deadline(self) -> float | None:
        """Return when the first of them has waited long enough; None if none waits."""
        return min((one.deadline for one in self._waiting.values()), default=None)
