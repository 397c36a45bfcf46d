"""Dispatch of a long range of the log by several threads, for recovery.

    log    | piece | piece | piece | piece | ...         2 MiB each
             any thread: checksums, texts, hashes -> digest of the piece
             one thread: units of its records, in the order of the log
             one thread at a time: index entries, in the same order

Most of the work is that on digests, which depend on nothing but the log. Units are put by the
thread of the store, which also does whatever Python has to do for a record (``dispatch``). Index
entries follow in any thread: queues and index have no word in common. A thread without work takes
the next task, so the load is even for any mix of queues and keys.

The result is that of a single thread, byte for byte. Queues and index get the same entries in the
same order, and a piece without a valid digest is dispatched by ``hot.dispatch``, after all index
entries before it. A digest need not begin where a record does, so it is used only at places where
dispatch arrives.

Memory: two digests for each thread, and four more, of ``Digest.BYTES`` each.
"""

import contextlib
import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from reput.cores import usable_cores
from reput.format import message as record
from reput.format.kernels.rows import word_count
from reput.store.hot_state import HotState
from reput.store.index.index_file import IndexFiles
from reput.store.kernels import digest_args as args, hot
from reput.store.log.commit_log import CommitLog
from reput.store.log.mapped_file import MappedFile
from reput.store.writing.dispatch import STEP_BYTES, Dispatcher

PIECE_BYTES = 2 * 1024 * 1024
"""Bytes of the log in a digest."""
PARALLEL_BYTES_MIN = 64 * 1024 * 1024
"""Range below which one thread dispatches alone, which takes some 50 ms."""
THREADS_MAX = 64

_TOPICS_MAX = 4096
_BYTES_PER_HASH = 32

_log = logging.getLogger(__name__)


class _Digest:
    """The entries of a piece of the log; see ``digest_args``. The memory is used again."""

    def __init__(self) -> None:
        entry_max = PIECE_BYTES // record.FIXED_BYTES_V1 + 1
        self._words = args.DigestWords()
        self._entries = np.empty((entry_max, word_count(args.DigestEntry)), np.int64)
        self._topics = np.empty((_TOPICS_MAX, word_count(args.DigestTopic)), np.int64)
        self._slots = np.zeros(2 * _TOPICS_MAX, np.int64)
        self._hashes = np.empty(PIECE_BYTES // _BYTES_PER_HASH, np.int32)
        self._crc_tables = hot.crc_tables()
        self._words.entries = hot.address_of(self._entries)
        self._words.topics = hot.address_of(self._topics)
        self._words.topic_slots = hot.address_of(self._slots)
        self._words.hashes = hot.address_of(self._hashes)
        self._words.crc_tables = hot.address_of(self._crc_tables)
        self._words.entries_max = entry_max
        self._words.topics_max = _TOPICS_MAX
        self._words.topic_slot_count = len(self._slots)
        self._words.hashes_max = len(self._hashes)
        self.address = self._words.address
        self.file: MappedFile
        """File of the piece, which is held."""
        self.stop = 0
        """Position of the end of the piece."""
        self.count = 0
        """Number of entries."""
        self.next_number = 0
        """The entry after the last one whose unit was put."""
        self.is_ready = False

    def begin(self, file: MappedFile, start: int, stop: int, end: int, *, is_start: bool) -> None:
        """Set the piece of a file; ``end`` is the end of the file's bytes."""
        self.file, self.stop = file, stop
        self.count = self.next_number = 0
        self.is_ready = False
        words = self._words
        words.file, words.base = file.address, file.start
        words.start, words.stop, words.is_start = start, stop, is_start
        words.end, words.file_end = end, file.size
        words.topic_count = 0
        self._slots[:] = 0

    def want_keys(self, *, has_keys: bool, has_tags: bool) -> None:
        """Set which keys are hashed."""
        self._words.has_keys, self._words.has_tags = has_keys, has_tags

    def fill(self) -> None:
        """Read the piece."""
        self.count = hot.digest(self.address)

    def number_of(self, position: int) -> int:
        """Return the number of the first entry at or after a position."""
        for number in (self.next_number, self.next_number + 1):
            if number <= self.count and self.position(number) == position:
                return number
        positions = self._entries[: self.count, args.ENTRY.position]
        return int(np.searchsorted(positions, position))

    def position(self, number: int) -> int:
        """Return the position of an entry; that of the end if there are no more."""
        return int(self._entries[number, args.ENTRY.position]) if number < self.count else self.stop

    def key_count(self, number: int) -> int:
        """Return the number of index entries of a record."""
        ends = self._entries[:, args.ENTRY.hashes_end]
        return int(ends[number] - (ends[number - 1] if number else 0))

    def timestamp(self, number: int) -> int:
        """Return the store time of a record, in ms."""
        return int(self._entries[number, args.ENTRY.timestamp])


class _Tasks:
    """Tasks of several threads; see ``Rebuild``. Any thread may run any of them.

    Args:
        thread_count: Number of threads, with the caller's.
        put_keys: Puts the index entries of a digest from one number up to another.
        recycle: Called with each digest whose index entries are put, by the thread that has the
            lock.
    """

    def __init__(
        self,
        thread_count: int,
        put_keys: Callable[[_Digest, int, int], None],
        recycle: Callable[[_Digest], None],
    ) -> None:
        self._put_keys = put_keys
        self._recycle = recycle
        self._changed = threading.Condition()  # guards everything below
        self._planned: deque[_Digest] = deque()
        self._ranges: deque[tuple[_Digest, int, int]] = deque()
        self._is_indexing = False
        self._is_closed = False
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"rebuild-{number}", daemon=True)
            for number in range(1, thread_count)
        ]
        for thread in self._threads:
            thread.start()

    def plan(self, digest: _Digest) -> None:
        """Let a digest be filled."""
        with self._changed:
            self._planned.append(digest)
            self._changed.notify()

    def put_keys(self, digest: _Digest, number: int, end: int) -> None:
        """Let index entries be put, after those of earlier calls; then recycle the digest."""
        with self._changed:
            self._ranges.append((digest, number, end))
            self._changed.notify()

    def wait_for(self, digest: _Digest) -> None:
        """Work until a planned digest is filled."""
        self._work_until(lambda: digest.is_ready)

    def wait_for_keys(self) -> None:
        """Work until all index entries are put."""
        self._work_until(lambda: not self._ranges and not self._is_indexing)

    def wait_for_a_range(self) -> None:
        """Work until the number of waiting index ranges is lower, or there is none."""
        count = len(self._ranges) + self._is_indexing
        self._work_until(lambda: len(self._ranges) + self._is_indexing < max(count, 1))

    def close(self) -> None:
        """End all threads; tasks that have not begun are dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        while self._ranges:
            self._recycle(self._ranges.popleft()[0])

    def _work_until(self, is_done: Callable[[], bool]) -> None:
        while (task := self._task_unless(is_done)) is not None:
            self._run(task)
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        while (task := self._task_unless(lambda: self._is_closed)) is not None:
            self._run(task)

    def _task_unless(self, is_done: Callable[[], bool]) -> "_Task | None":
        """Return the next task, as soon as there is one; None if nothing is left to do."""
        with self._changed:
            while not is_done() and self._failure is None:
                if self._ranges and not self._is_indexing:
                    self._is_indexing = True
                    digest, number, end = self._ranges.popleft()
                    return _Task(digest, functools.partial(self._put_keys, digest, number, end))
                if self._planned:
                    digest = self._planned.popleft()
                    return _Task(digest, None)
                self._changed.wait()
        return None

    def _run(self, task: "_Task") -> None:
        digest, put_keys = task
        error: BaseException | None = None
        try:
            (put_keys or digest.fill)()
        except BaseException as raised:  # noqa: BLE001 - the thread of the store raises it
            error = raised
        with self._changed:
            self._failure = self._failure or error
            if put_keys is None:
                digest.is_ready = True
            else:
                self._is_indexing = False
                self._recycle(digest)
            self._changed.notify_all()


class _Task(NamedTuple):
    """A digest to be filled, or one whose index entries are to be put."""

    digest: _Digest
    put_keys: Callable[[], None] | None


class Rebuild:
    """Dispatch by several threads; ``parallel`` makes one.

    Args:
        dispatcher: Calls ``dispatch``, and does what a kernel stops for.
        hot_state: State shared with kernels.
        log: Source of the records.
        index: The index files. Until the end, only this object may use them.
        thread_count: Number of threads, with the caller's.
        end: End of the log.
        now_ms: Current time in ms, for the names of index files.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        hot_state: HotState,
        log: CommitLog,
        index: IndexFiles,
        *,
        thread_count: int,
        end: int,
        now_ms: int,
    ) -> None:
        self._block, self._address = hot_state.block, hot_state.address
        self._dispatcher = dispatcher
        self._commit_log, self._index = log, index
        self._end, self._now_ms = end, now_ms
        self._has_index = self._block.index_is_on
        self._free = [_Digest() for _ in range(2 * thread_count + 4)]
        for digest in self._free:
            digest.want_keys(
                has_keys=bool(self._has_index), has_tags=bool(self._block.index_has_tags)
            )
        self._pieces: deque[_Digest] = deque()
        """Digests that are planned or filled, in the order of the log."""
        self._planned_offset = -1
        """Physical offset after the last planned piece; -1 before the first."""
        self._digest: _Digest | None = None
        """The digest whose units are being put."""
        self._first = 0
        """The first entry of the digest without index entries."""
        self._slow_until = 0
        """Physical offset of the end of a piece whose digest has ended."""
        self._tasks = _Tasks(thread_count, self._put_keys, self._recycle)

    def dispatch(self, file: MappedFile, stop: int, end: int, file_end: int) -> None:
        """Dispatch records from ``input_position`` on; the arguments are those of ``hot.dispatch``.

        Raises:
            DiskFull: There is no space for the index.
        """
        position = self._block.input_position
        digest = self._digest_at(file, position)
        number = digest.number_of(position) if digest is not None else 0
        if digest is None or digest.position(number) != position or number == digest.count:
            self._leave_digest(file.start + position)
            self._tasks.wait_for_keys()
            self._block.index_is_on = self._has_index
            piece_stop = min(stop, max(self._slow_until - file.start, position + 1))
            hot.dispatch(self._address, file.address, piece_stop, end, file_end, file.start)
            return
        self._block.index_is_on = 0  # for records that Python dispatches
        digest.next_number = hot.put_digested_units(
            self._address, digest.address, number, digest.count, stop
        )

    def finish(self) -> None:
        """Put the rest of the index entries. Raises as ``dispatch``."""
        self._leave_digest(self._end)
        self._tasks.wait_for_keys()

    def close(self) -> None:
        """End all threads; what they have not done is left."""
        self._block.index_is_on = self._has_index
        self._tasks.close()
        if self._digest is not None:
            self._recycle(self._digest)
        while self._pieces:
            self._recycle(self._pieces.popleft())

    # Pieces -----------------------------------------------------------------------------------

    def _digest_at(self, file: MappedFile, position: int) -> _Digest | None:
        """Return the digest of the piece with a position; None if it has ended before."""
        physical_offset = file.start + position
        digest = self._digest
        if digest is not None and physical_offset < digest.file.start + digest.stop:
            return digest
        if physical_offset < self._slow_until:
            return None
        self._leave_digest(physical_offset)
        while self._pieces and self._end_of(self._pieces[0]) <= physical_offset:
            self._tasks.wait_for(self._pieces[0])  # passed by a long record, or by damage
            self._recycle(self._pieces.popleft())
        if not self._pieces:
            self._planned_offset = physical_offset
            while not self._free:
                self._tasks.wait_for_a_range()
            self._plan(is_start=True)
        digest = self._digest = self._pieces.popleft()
        assert digest.file is file
        self._tasks.wait_for(digest)
        self._first = digest.number_of(position)
        return digest

    def _end_of(self, digest: _Digest) -> int:
        return digest.file.start + digest.stop

    def _plan(self, *, is_start: bool = False) -> None:
        """Plan the next pieces, as far as digests are free.

        Args:
            is_start: A record begins where the first of them does.
        """
        while self._free and self._planned_offset < self._end:
            start = self._planned_offset
            file = self._commit_log.files.file_at(start)
            if file is None or not file.hold():
                starts = [each.start for each in self._commit_log.files.files]
                self._planned_offset = min([self._end, *(s for s in starts if s > start)])
                continue
            position = start - file.start
            end = min(self._end - file.start, file.size)
            stop = min((position // PIECE_BYTES + 1) * PIECE_BYTES, end)
            digest = self._free.pop()
            digest.begin(file, position, stop, end, is_start=is_start)
            is_start = False
            self._planned_offset = file.start + stop
            self._pieces.append(digest)
            self._tasks.plan(digest)

    def _leave_digest(self, physical_offset: int) -> None:
        """Put the index entries of the current digest, up to where dispatch is."""
        digest, self._digest = self._digest, None
        if digest is None:
            return
        self._slow_until = self._end_of(digest)
        end = digest.number_of(physical_offset - digest.file.start)
        if self._has_index and self._first < end:
            self._tasks.put_keys(digest, self._first, end)
        else:
            self._recycle(digest)
        self._plan()

    def _recycle(self, digest: _Digest) -> None:
        digest.file.release()
        self._free.append(digest)

    # The index --------------------------------------------------------------------------------

    def _put_keys(self, digest: _Digest, number: int, end: int) -> None:
        while True:
            number = hot.put_digested_keys(self._address, digest.address, number, end)
            if number == end:
                return
            if not self._index.make_room(digest.key_count(number), self._now_ms):
                self._put_keys_of(digest, number)  # they may be split over two files
                number += 1

    def _put_keys_of(self, digest: _Digest, number: int) -> None:
        data = hot.bytes_of_record(digest.file.address + digest.position(number))
        message = record.decode(data, check_crc=False)
        keys = record.index_keys(message, has_tags=bool(self._block.index_has_tags))
        self._index.put(keys, message.physical_offset, message.store_timestamp, self._now_ms)


@contextlib.contextmanager
def parallel(
    dispatcher: Dispatcher,
    hot_state: HotState,
    log: CommitLog,
    index: IndexFiles,
    *,
    thread_count: int,
    start: int,
    end: int,
    now_ms: int,
) -> Iterator[None]:
    """Let the steps of a dispatcher use several threads, if the range of the log is long.

    Args:
        dispatcher: Checks the content of records (``checks_content``), and is no replica's.
        hot_state: State shared with kernels.
        log: Source of the records.
        index: The index files; nothing else may use them meanwhile.
        thread_count: Number of threads, with the caller's; 0: as many as there are usable cores.
        start: Physical offset where dispatch begins.
        end: End of the log.
        now_ms: Current time in ms, for the names of index files.

    Raises:
        DiskFull: There is no space for the index.
    """
    thread_count = min(thread_count or usable_cores(), THREADS_MAX)
    is_long = end - start >= PARALLEL_BYTES_MIN
    if thread_count == 1 or not is_long or hot_state.is_slow or not hot.is_compiled:
        yield
        return
    _log.info("%d bytes of the log are dispatched by %d threads", end - start, thread_count)
    rebuild = Rebuild(
        dispatcher, hot_state, log, index, thread_count=thread_count, end=end, now_ms=now_ms
    )
    dispatcher.kernel, dispatcher.step_bytes = rebuild.dispatch, PIECE_BYTES
    try:
        yield
        rebuild.finish()
    finally:
        rebuild.close()
        dispatcher.kernel, dispatcher.step_bytes = dispatcher.scan, STEP_BYTES
