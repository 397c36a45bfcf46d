"""Where the records of an import go: which log file, which queue offsets. Pure.

Tasks leave fragments: records without their places, one behind the other, and of each record its
size and its queue. Fragments follow each other in the order of Spark's partitions. Log files are
filled as a broker fills them: a record that leaves no room for the blank behind it begins the next
file. What a log file gets is a ``LogPart``, which can be written without looking at the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from reput.errors import InvalidOption
from reput.format import message as record

QueueKey = tuple[str, int]
"""Topic and queue id."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """What a task has left."""

    path: str
    """Of the records; see ``import_files``."""
    size: int
    """Bytes of the records."""
    count: int
    queues: tuple[QueueKey, ...]
    """Queues that records go to; a record says which by its place here."""


@dataclass(frozen=True, slots=True)
class RecordTable:
    """The records of a fragment, in order."""

    sizes: npt.NDArray[np.int32]
    queues: npt.NDArray[np.int32]
    """Places in ``Fragment.queues``."""
    times_ms: npt.NDArray[np.int64] | None = None
    """Store times, where records keep their own."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Records ``[first, stop)`` of a fragment."""

    fragment: int
    """Its number."""
    first: int
    stop: int
    position: int
    """Where the first one begins in the fragment, bytes."""
    size: int
    """Bytes of all of them."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """What one log file gets."""

    file_start: int
    """Physical offset of the file."""
    position: int
    """Where the first record goes, bytes from the start of the file."""
    pieces: tuple[Piece, ...]
    is_ended: bool
    """A blank follows the last record: the log goes on in the next file."""
    queue_offsets: Mapping[QueueKey, int]
    """What the first message of each queue gets that the part has records of."""
    time_ms: int
    """Store time of the last record before the part; times never go back."""

    @property
    def start(self) -> int:
        """Physical offset of its first byte."""
        return self.file_start + self.position

    @property
    def size(self) -> int:
        """Bytes of its records."""
        return sum(piece.size for piece in self.pieces)


@dataclass
class Planner:
    """Takes fragments in order; what it knows of them is a few words each.

    Args:
        log_start: Physical offset where a log file starts: the others, at multiples of
            ``file_bytes`` from there.
        log_end: Where the log ends, and the first record goes.
        file_bytes: Size of a log file.
        queue_offsets: What the next message of a queue gets; 0 for those that are not there.
        time_ms: Store time of the last record; also of those that bring none.
    """

    log_start: int
    log_end: int
    file_bytes: int
    queue_offsets: Mapping[QueueKey, int]
    time_ms: int
    parts: list[LogPart] = field(default_factory=list)
    """Log files that are full."""
    message_count: int = 0

    def __post_init__(self) -> None:
        self._next = dict(self.queue_offsets)
        self._fragment_count = 0
        self._begin(self.log_end - (self.log_end - self.log_start) % self.file_bytes)
        self._position = self._first_position = self.log_end - self._file_start

    def add(self, fragment: Fragment, table: RecordTable) -> None:
        """Place the records of the next fragment.

        Raises:
            InvalidOption: A record is larger than a log file.
        """
        room = self.file_bytes - record.BLANK.size
        largest = int(table.sizes.max(initial=0))
        if largest > room:
            raise InvalidOption(
                "mappedFileSizeCommitLog",
                self.file_bytes,
                f"{largest + record.BLANK.size} at least, as a record has {largest} bytes",
            )
        ends = np.cumsum(table.sizes, dtype=np.int64)
        first = before = 0
        while first < len(ends):
            left = before + room - self._position
            stop = int(np.searchsorted(ends, left, "right"))
            if stop > first:
                behind = int(ends[stop - 1])
                size = behind - before
                self._pieces.append(Piece(self._fragment_count, first, stop, before, size))
                self._count(fragment, table, first, stop)
                self._position += size
                before = behind
            if stop < len(ends):
                self._end(is_ended=True)
                self._begin(self._file_start + self.file_bytes)
            first = stop
        self._fragment_count += 1

    def finish(self) -> list[LogPart]:
        """Return what each log file gets, in order; the last one may have room left."""
        if self._pieces:
            self._end(is_ended=False)
        return self.parts

    @property
    def end(self) -> int:
        """Where the log will end."""
        return self._file_start + self._position

    @property
    def next_offsets(self) -> dict[QueueKey, int]:
        """What the next message of each queue will get."""
        return dict(self._next)

    def _count(self, fragment: Fragment, table: RecordTable, first: int, stop: int) -> None:
        counts = np.bincount(table.queues[first:stop], minlength=len(fragment.queues))
        for place in np.flatnonzero(counts):
            key = fragment.queues[place]
            queue_offset = self._next.get(key, 0)
            self._offsets_before.setdefault(key, queue_offset)
            self._next[key] = queue_offset + int(counts[place])
        if table.times_ms is not None:
            self.time_ms = max(self.time_ms, int(table.times_ms[first:stop].max()))
        self.message_count += stop - first

    def _begin(self, file_start: int) -> None:
        self._file_start = file_start
        self._position = self._first_position = 0
        self._pieces: list[Piece] = []
        self._offsets_before: dict[QueueKey, int] = {}
        self._time_before = self.time_ms

    def _end(self, *, is_ended: bool) -> None:
        self.parts.append(
            LogPart(
                self._file_start,
                self._first_position,
                tuple(self._pieces),
                is_ended,
                self._offsets_before,
                self._time_before,
            )
        )
