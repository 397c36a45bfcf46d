"""The commit log of a slave: bytes of the master's log, received straight into the mapped files.

The bytes come in pieces that are not aligned to records. They are dispatched up to the last whole
record. Bytes that cannot be a record stop dispatch: a slave skips nothing, as it would differ from
its master then without a notice.
"""

from collections.abc import Callable, Iterator

from reput.errors import StoreUnavailable
from reput.format import kernels
from reput.format.message import Verdict
from reput.store.commit_log import CommitLog
from reput.store.dispatch import Dispatcher
from reput.store.mapped_file import MappedFile

_SEARCH_BYTES = 64 * 1024
"""Bytes before an offset that are searched first for the record before it."""


class ReplicaLog:
    """The log of a slave that is open for receiving. For the thread that owns the store.

    Args:
        log: The commit log.
        dispatcher: Dispatches the records.
        on_grown: Called after bytes were added: dispatches them, and notifies listeners.
    """

    def __init__(
        self, log: CommitLog, dispatcher: Dispatcher, on_grown: Callable[[], None]
    ) -> None:
        self._commit_log = log
        self._dispatcher = dispatcher
        self._on_grown = on_grown
        self._touched = 0  # physical offset after the last byte that ``buffer`` has given out

    # Receiving --------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Physical offset of the next byte to be received."""
        return self._commit_log.written_offset

    @property
    def durable_end(self) -> int:
        """Physical offset up to which the log is on disk; ``sync`` of the store moves it."""
        return self._commit_log.flushed_offset

    @property
    def problem(self) -> str:
        """Why dispatch has stopped at bytes that cannot be a record; empty if it has not."""
        return self._dispatcher.problem

    def begin_at(self, physical_offset: int, now_ms: int) -> None:
        """Let an empty log begin at a physical offset, that of a file.

        Args:
            physical_offset: The offset of the first byte to be received.
            now_ms: The time, ms.

        Raises:
            StoreUnavailable: It is not the start of a file, or the log is not empty.
            WriteFailed: The disk failed; also ``DiskFull``.
        """
        log = self._commit_log
        if physical_offset < 0 or physical_offset % log.file_size:
            raise StoreUnavailable(
                f"the log cannot begin at physical offset {physical_offset}; allowed: a multiple "
                f"of mappedFileSizeCommitLog, {log.file_size}, which must be the master's"
            )
        if log.written_offset != log.min_offset:
            raise StoreUnavailable(
                f"the log cannot begin at physical offset {physical_offset}: it has the bytes from "
                f"{log.min_offset} to {log.written_offset}"
            )
        log.begin_at(physical_offset, now_ms)
        self._dispatcher.go_to(physical_offset)
        self._touched = physical_offset

    def buffer(self, size: int) -> memoryview:
        """Return the next ``size`` bytes of the log, to be filled and then published.

        A further call gives out the same bytes, until they are published; bytes that were filled
        and not published are overwritten with zeros then: they may be another master's.

        Args:
            size: Number of bytes, all in one file.

        Raises:
            StoreUnavailable: They do not fit into the rest of the file: the master's files have
                another size.
            DiskFull: There is no space for them.
            WriteFailed: The disk failed.
        """
        log = self._commit_log
        end, file_size = log.written_offset, log.file_size
        left = file_size - end % file_size
        if size > left:
            raise StoreUnavailable(
                f"{size} bytes at physical offset {end} do not fit into the log file, which has "
                f"{left} bytes left; mappedFileSizeCommitLog is {file_size} here, and must be the "
                "master's"
            )
        if left == file_size:
            self._begin_file(end)
        if self._touched > end:
            log.room(self._touched - end)[:] = bytes(self._touched - end)
        room = log.room(size)
        self._touched = end + size
        return room

    def _begin_file(self, physical_offset: int) -> None:
        last = self._commit_log.files.last
        if last is None or last.start < physical_offset:
            self._commit_log.roll()

    def publish(self, size: int) -> None:
        """Add the first ``size`` bytes of the last ``buffer`` to the log; dispatch whole records.

        Raises:
            DiskFull: There is no space for queues or index. The bytes are part of the log; the
                store's next step tries again to dispatch them.
            WriteFailed: The disk failed; likewise.
        """
        self._commit_log.extend(size)
        self._on_grown()

    # The last records -------------------------------------------------------------------------

    def last_record(self) -> tuple[int, bytes] | None:
        """Return physical offset and bytes of the last whole record; None without one."""
        return next(self.records_before(self.end), None)

    def records_before(self, physical_offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield the records that end at an offset or before it, newest first.

        Args:
            physical_offset: Any physical offset.

        Yields:
            Physical offset and bytes of each record.
        """
        for file in reversed(self._commit_log.files.files):
            if file.start >= physical_offset:
                continue
            yield from self._records_of(file, min(physical_offset, file.end, self.end))

    def _records_of(self, file: MappedFile, stop: int) -> Iterator[tuple[int, bytes]]:
        high = stop - file.start
        while high > 0:
            starts, high = self._find_before(file, high)
            for start, size in reversed(starts):
                data = self._commit_log.read(file.start + start, size)
                if data is None:
                    return  # the file has expired
                yield file.start + start, data

    @staticmethod
    def _find_before(file: MappedFile, high: int) -> tuple[list[tuple[int, int]], int]:
        """Find records of a file that end at a position or before it.

        Returns:
            Position and size of consecutive records, and the position of the first of them; 0 if
            there are none.
        """
        span = _SEARCH_BYTES
        while True:
            low = max(high - span, 0)
            if not file.hold():
                return [], 0
            try:
                records = _records_in(
                    file.view(low, high), file.start + low, file.size - low, is_start=not low
                )
            finally:
                file.release()
            if records or not low:
                records = [(low + position, size) for position, size in records]
                return records, records[0][0] if records else 0
            span *= 4


def _records_in(
    data: memoryview, physical_offset: int, file_end: int, *, is_start: bool
) -> list[tuple[int, int]]:
    """Return position and size of the records of a part of a log file.

    Where a part begins, the bytes of a body may look like a record. No record follows such bytes,
    so records before damage are left out, unless the part is the start of its file.
    """
    place = {"physical_offset": physical_offset, "file_end": file_end}
    position = 0 if is_start else kernels.find_record(data, 0, **place)
    segments = kernels.scan(data, position, len(data), **place, check_crc=False)
    records: list[tuple[int, int]] = []
    for start, size, verdict in zip(
        segments.positions.tolist(),
        segments.sizes.tolist(),
        segments.verdicts.tolist(),
        strict=True,
    ):
        if verdict == Verdict.MESSAGE:
            records.append((start, size))
        elif verdict != Verdict.BLANK and not is_start:
            records.clear()
    return records
