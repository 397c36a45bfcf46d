"""Positions of an import's records: log files and queue offsets. Pure.

Tasks leave fragments: concatenated records without positions, and the size and queue of each.
Fragments are ordered by Spark's partitions. Log files are filled as by a broker: a record that
leaves no space for the blank after it begins the next file. The content of a log file is a
``LogPart``, which can be written independently.
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
    """Result of a task."""

    path: str
    """Path of the records; see ``import_files``."""
    size: int
    """Size of the records, in bytes."""
    count: int
    queues: tuple[QueueKey, ...]
    """Queues of the records, which refer to them by index."""


@dataclass(frozen=True, slots=True)
class RecordTable:
    """The records of a fragment, in order."""

    sizes: npt.NDArray[np.int32]
    queues: npt.NDArray[np.int32]
    """Indexes into ``Fragment.queues``."""
    times_ms: npt.NDArray[np.int64] | None = None
    """Store times in ms, if records keep their own."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Records ``[first, stop)`` of a fragment."""

    fragment: int
    """Number of the fragment."""
    first: int
    stop: int
    position: int
    """Position of the first one in the fragment, in bytes."""
    size: int
    """Size of all of them, in bytes."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """Content of one log file."""

    file_start: int
    """Physical offset of the file."""
    position: int
    """Position of the first record in the file, in bytes."""
    pieces: tuple[Piece, ...]
    is_ended: bool
    """True if a blank follows the last record and the log continues in the next file."""
    queue_offsets: Mapping[QueueKey, int]
    """Queue offset of the part's first message, by queue."""
    time_ms: int
    """Store time of the last record before the part, in ms; times never decrease."""

    @property
    def start(self) -> int:
        """Physical offset of its first byte."""
        return self.file_start + self.position

    @property
    def size(self) -> int:
        """Size of its records, in bytes."""
        return sum(piece.size for piece in self.pieces)


@dataclass
class Planner:
    """Plans fragments in order, keeping a few words per fragment.

    Args:
        log_start: Physical offset of the start of a log file; the others start at multiples of
            ``file_bytes`` from it.
        log_end: End of the log, where the first record goes.
        file_bytes: Size of a log file.
        queue_offsets: Next queue offset by queue; 0 if missing.
        time_ms: Store time of the last record, also used for records without one.
    """

    log_start: int
    log_end: int
    file_bytes: int
    queue_offsets: Mapping[QueueKey, int]
    time_ms: int
    parts: list[LogPart] = field(default_factory=list)
    """Complete log files."""
    message_count: int = 0

    def __post_init__(self) -> None:
        self._next = dict(self.queue_offsets)
        self._fragment_count = 0
        self._begin(self.log_end - (self.log_end - self.log_start) % self.file_bytes)
        self._position = self._first_position = self.log_end - self._file_start

    def add(self, fragment: Fragment, table: RecordTable) -> None:
        """Plan the records of the next fragment.

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
                piece_end = int(ends[stop - 1])
                size = piece_end - before
                self._pieces.append(Piece(self._fragment_count, first, stop, before, size))
                self._count(fragment, table, first, stop)
                self._position += size
                before = piece_end
            if stop < len(ends):
                self._end(is_ended=True)
                self._begin(self._file_start + self.file_bytes)
            first = stop
        self._fragment_count += 1

    def finish(self) -> list[LogPart]:
        """Return the content of each log file, in order; the last one may have free space."""
        if self._pieces:
            self._end(is_ended=False)
        return self.parts

    @property
    def end(self) -> int:
        """Physical offset of the new end of the log."""
        return self._file_start + self._position

    @property
    def next_offsets(self) -> dict[QueueKey, int]:
        """Next queue offset by queue."""
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
