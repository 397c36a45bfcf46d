"""The commit log of a slave: bytes of the master's log, received straight into the mapped files.

    buffer or spare -> filled by the connection -> add -> acknowledged -> dispatch

The bytes come in pieces that are not aligned to records. They are dispatched up to the last whole
record. Bytes that cannot be a record stop dispatch: a slave that skipped them would silently differ
from its master.
"""

from collections.abc import Callable, Iterator

from reput.errors import StoreUnavailable
from reput.format.message import StoredMessage
from reput.store.log.commit_log import CommitLog
from reput.store.log.newest_records import records_before
from reput.store.writing.dispatch import Dispatcher


class ReplicaLog:
    """The log of a slave that is open for receiving. For the thread that owns the store.

    Args:
        log: The commit log.
        dispatcher: Dispatches the records.
        dispatch: Dispatches bytes that were added, and notifies listeners.
    """

    def __init__(
        self, log: CommitLog, dispatcher: Dispatcher, dispatch: Callable[[], None]
    ) -> None:
        self._commit_log = log
        self._dispatcher = dispatcher
        self._dispatch = dispatch
        self._touched = 0  # physical offset after the last byte that may have been filled

    # Receiving --------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Physical offset of the next byte to be received."""
        return self._commit_log.written_offset

    @property
    def durable_end(self) -> int:
        """Physical offset up to which the log is durable; the store's ``sync`` advances it."""
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

    def buffer(self, size: int, kept: int = 0) -> memoryview:
        """Return the next ``size`` bytes of the log, to be filled and then added.

        Further calls return the same bytes until they are added; bytes that were filled and
        are neither added nor kept are overwritten with zeros then: they may be another master's.

        Args:
            size: Number of bytes, all in one file.
            kept: Number of bytes at their start that are filled already, in ``spare``.

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
        self._clear(end, kept)
        room = log.room(size)
        self._touched = end + size
        return room

    def spare(self, size_max: int) -> memoryview:
        """Return the next bytes of the log that have space on disk; may be empty.

        For data whose size is not known yet. What was filled is to be added, or to be passed to
        ``buffer`` as kept.

        Args:
            size_max: Maximum number of bytes.
        """
        log = self._commit_log
        end = log.written_offset
        if not end:
            return memoryview(bytearray())  # it is not known where the log begins
        self._clear(end, 0)
        return log.spare_room(size_max)

    def _clear(self, end: int, kept: int) -> None:
        """Overwrite bytes that were filled and are not part of the log."""
        excess = self._touched - end
        if excess > kept:
            self._commit_log.room(excess)[kept:] = bytes(excess - kept)
            self._touched = end + kept

    def _begin_file(self, physical_offset: int) -> None:
        last = self._commit_log.files.last
        if last is None or last.start < physical_offset:
            self._commit_log.roll()

    @property
    def has_unpublished(self) -> bool:
        """True if bytes that may have been filled are not part of the log."""
        return self._touched > self.end

    def add(self, size: int, filled: int | None = None) -> None:
        """Add the first ``size`` bytes of the last ``buffer`` or ``spare`` to the log.

        Args:
            size: Number of bytes.
            filled: Number of bytes that were filled, if there were more.
        """
        log = self._commit_log
        if filled is not None:
            self._touched = max(self._touched, log.written_offset + filled)
        log.extend(size)

    def dispatch(self) -> None:
        """Dispatch the whole records that were added.

        Raises:
            DiskFull: There is no space for queues or index. The bytes are part of the log; the
                store's next step tries again to dispatch them.
            WriteFailed: The disk failed; likewise.
        """
        self._dispatch()

    def find_unqueued(self, begin: int) -> tuple[int, StoredMessage | None]:
        """Find the first record whose queue does not exist yet; see ``Dispatcher``."""
        return self._dispatcher.find_unqueued(begin)

    def publish(self, size: int) -> None:
        """Add the first ``size`` bytes of the last ``buffer``, and dispatch; raises likewise."""
        self.add(size)
        self._dispatch()

    # The last records -------------------------------------------------------------------------

    def last_record(self) -> tuple[int, bytes] | None:
        """Return physical offset and bytes of the last whole record; None without one."""
        return next(self.records_before(self.end), None)

    def records_before(self, physical_offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield the records that end at any offset or before it; see ``newest_records``."""
        return records_before(self._commit_log.files.files, min(physical_offset, self.end))
