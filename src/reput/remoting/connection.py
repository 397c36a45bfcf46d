"""The protocol of a connection without I/O: splitting into frames, and matching of replies.

FrameBuffer       bytes in pieces of any size -> a buffer with complete frames PendingRequests
requests that wait for a reply, by opaque
"""

from typing import Generic, NamedTuple, TypeVar

from reput.errors import NotAFrame, Overloaded
from reput.format.command import FRAME_BYTES_MAX, LENGTH, MARK, Buffer

READ_BYTES = 256 * 1024
"""Size of a shared buffer, and of the largest read. 64 KiB is slower with bodies of 1 KiB."""
IN_FLIGHT_MAX = 65_535
"""Pending requests of one connection; Java's ``clientAsyncSemaphoreValue``."""
_GROWTH = 2
_SLOW_RATIO = 8
"""A frame gets a separate buffer if a read brings less than this fraction of the kept bytes: bytes
that arrive singly are not copied with each read."""
_OPAQUE_MAX = 0x7FFFFFFF

_T = TypeVar("_T")


def find_frame(buffer: Buffer, start: int, end: int) -> tuple[int, int] | None:
    """Return begin and end of the frame at ``start``; None if its length is incomplete.

    The end may be after ``end``: then the frame is incomplete.

    Raises:
        NotAFrame: The length is not valid.
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
    """The read buffer of a connection, and the bytes kept between reads.

    The buffer is shared by all connections of an owner: between two reads only the beginning of an
    incomplete frame is kept, here. A frame that is larger than the buffer, or arrives in small
    pieces, gets a separate buffer when copying the kept bytes costs more. Its size is at most
    ``_GROWTH`` times the bytes that have arrived, whatever length is announced.

    Args:
        shared: The buffer. Owners of many connections pass one view: each takes 200 bytes.
    """

    __slots__ = ("_filled", "_last_read", "_own", "_own_size", "_shared", "_tail")

    def __init__(self, shared: bytearray | memoryview) -> None:
        self._shared = shared if isinstance(shared, memoryview) else memoryview(shared)
        self._tail = b""
        self._own: bytearray | None = None
        self._own_size = 0
        self._filled = 0
        self._last_read = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept between two reads."""
        return len(self._tail) if self._own is None else len(self._own)

    @property
    def has_beginning(self) -> bool:
        """True if the beginning of a frame is kept, or complete frames wait."""
        return self._own is not None or bool(self._tail)

    def room(self) -> memoryview:
        """Return the buffer for the next read, which must follow at once."""
        if self._own is not None:
            return memoryview(self._own)[self._filled :]
        size = len(self._tail)
        self._shared[:size] = self._tail
        return self._shared[size:]

    def filled(self, count: int) -> tuple[memoryview, int]:
        """Record that ``count`` bytes were read; return the buffer and the end of its content."""
        self._last_read = count
        if self._own is None:
            return self._shared, len(self._tail) + count
        self._filled += count
        return self._whole()

    def kept(self) -> tuple[memoryview, int]:
        """Return the kept bytes, and their end, in the form of a read."""
        if self._own is not None:
            return self._whole()
        size = len(self._tail)
        self._shared[:size] = self._tail
        return self._shared, size

    def _whole(self) -> tuple[memoryview, int]:
        """Return the frame of a separate buffer if it is complete; else make room."""
        own = self._own
        assert own is not None, "no frame has a separate buffer"
        if self._filled == self._own_size:
            self._own = None
            self._tail = b""
            if self._own_size > len(self._shared):
                return memoryview(own), self._own_size
            self._shared[: self._own_size] = own  # the fast path reads only there
            return self._shared, self._own_size
        if self._filled == len(own):
            self._own = bytearray(min(_GROWTH * len(own), self._own_size))
            self._own[: self._filled] = own
        return self._shared, 0

    def keep(self, view: memoryview, position: int, end: int) -> None:
        """Keep ``view[at:end]`` for the next read: waiting frames, or the beginning of one.

        Raises:
            NotAFrame: The bytes are not a frame.
        """
        if self._own is not None:
            return
        if position == end:
            self._tail = b""
            return
        frame = find_frame(view, position, end)
        kept = end - position
        if frame is not None:
            size = frame[1] - position
            # Until then the shared buffer has room enough for the next read.
            is_large = size > len(self._shared) <= _GROWTH * kept
            is_slow = frame[1] > end and _SLOW_RATIO * self._last_read < kept
            if is_large or is_slow:
                self._own_size = size
                self._filled = kept
                self._own = bytearray(min(_GROWTH * kept, size))
                self._own[:kept] = view[position:end]
                self._tail = b""
                return
        self._tail = bytes(view[position:end])

    def clear(self) -> None:
        """Drop the kept bytes, of a connection that is closed."""
        self._own = None
        self._tail = b""


class PendingRequest(NamedTuple, Generic[_T]):
    """A request that waits for its reply."""

    future: _T
    deadline: float
    code: int
    timeout_ms: int


class PendingRequests(Generic[_T]):
    """The pending requests of a connection. Times are in the loop's seconds."""

    __slots__ = ("_last_opaque", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, PendingRequest[_T]] = {}
        self._last_opaque = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, future: _T, code: int, timeout_ms: int, now: float) -> tuple[int, float]:
        """Add a request; return its opaque and its deadline.

        Raises:
            Overloaded: ``IN_FLIGHT_MAX`` requests are pending.
        """
        if len(self._waiting) >= IN_FLIGHT_MAX:
            raise Overloaded(f"{IN_FLIGHT_MAX} requests on one connection wait for a reply")
        opaque = (self._last_opaque + 1) & _OPAQUE_MAX
        while opaque in self._waiting:
            opaque = (opaque + 1) & _OPAQUE_MAX
        self._last_opaque = opaque
        deadline = now + timeout_ms / 1000
        self._waiting[opaque] = PendingRequest(future, deadline, code, timeout_ms)
        return opaque, deadline

    def remove(self, opaque: int) -> _T | None:
        """Remove the request of a reply and return its future; None if it is not pending."""
        entry = self._waiting.pop(opaque, None)
        return None if entry is None else entry.future

    def expire(self, now: float) -> list[PendingRequest[_T]]:
        """Remove and return the requests whose deadline is over."""
        late = [opaque for opaque, entry in self._waiting.items() if entry.deadline <= now]
        return [self._waiting.pop(opaque) for opaque in late]

    def take_all(self) -> list[PendingRequest[_T]]:
        """Remove and return all requests."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting.values())

    def next_deadline(self) -> float | None:
        """Return the earliest deadline; None if no request is pending."""
        return min((entry.deadline for entry in self._waiting.values()), default=None)
