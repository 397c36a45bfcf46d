"""The commit log of a slave: bytes of the master's log, received straight into the mapped files.

The bytes come in pieces that are not aligned to records. They are dispatched up to the last whole
record. Bytes that cannot be a record stop dispatch: a slave that skipped them would silently differ
from its master.
"""

from collections.abc import Callable, Iterator

from reput.errors import StoreUnavailable
from reput.store.commit_log import CommitLog
from reput.store.dispatch import Dispatcher
from reput.store.newest_records import records_before


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
        """Physical offset up to which the log is durable; ``sync`` of the store advances it."""
        return self._commit_log.flushed_offset

    @property
    def problem(self) -> str:
        """Reason why dispatch stopped at bytes that cannot be a record; empty if it did not."""
        return self._dispatcher.problem

    def begin_at(self, physical_offset: int, now_ms: int) -> None:
        """Set the physical offset at which an empty log begins, the start of a file.

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

        Further calls return the same bytes until they are published; bytes that were filled
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

    @property
    def has_unpublished(self) -> bool:
        """True if bytes that ``buffer`` returned are not yet part of the log."""
        return self._touched > self.end

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
        """Yield the records that end at any offset or before it; see ``newest_records``."""
        return records_before(self._commit_log.files.files, min(physical_offset, self.end))
