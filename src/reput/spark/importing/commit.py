"""Commit of an import: the fragments of its tasks become log files.

A new store is built beside its folder, complete with queues and index, and renamed at the end.

Appending to an existing store has five steps:

    settle    make the end of the log definite: truncate torn tails and leftovers of killed imports
              note      ``appends.json`` records where the import begins (``store.log.bulk_append``)
              write     new log files and the free space of the last file, except for the eight
              bytes at the end of the log; then sync
    publish   write these eight bytes: one write, after which everything is part of the log
    derive    queues and index, as at any start of a broker

If that needs more than two new files, a new folder of log files is made, with hard links to the old
files, and exchanged with the store's: Java searches only the last files for the end of the log.

A crash before ``publish`` leaves the store with its old messages, a crash after it with all of the
new ones too; queues and index are derived from the log. The next import, or a reput broker,
truncates the leftovers. Reasons: docs/decisions/0013-an-import-begins-with-its-last-write.md.
"""

import contextlib
import ctypes
import errno
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from reput.clock import Clock, SystemClock
from reput.cores import usable_cores
from reput.errors import CorruptRecord, InvalidOption, NotInStore, StoreUnavailable, WriteFailed
from reput.format import names
from reput.format.codes import PERM_READ, PERM_WRITE
from reput.spark.importing import files as import_files
from reput.spark.importing.files import Stitch, log_path
from reput.spark.importing.options import ImportOptions
from reput.spark.importing.plan import Fragment, LogPart, Planner
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import open_folder
from reput.store.files.folder_lock import FolderLock
from reput.store.log import bulk_append
from reput.store.log.bulk_append import Appends, Begun
from reput.store.message_store import MessageStore
from reput.store.opening.summary import Summary
from reput.store.reader import Condition, StoreReader
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.topics import TopicTable

DRAFTS_SUFFIX = ".imports"
"""Suffix of the folder, beside the store's, with the drafts of running imports."""
_SCHEDULE_QUEUE_COUNT = 18
_SETTLE_TRIES = 5
_DEAD_AFTER_MS = 86_400_000
"""Age after which an unchanged draft counts as abandoned, in ms."""
_NEW_FILES_MAX = 2
"""Number of new files: Java brokers search only the last three files for the end of the log."""
_COPY_BYTES = 8 * 1024 * 1024
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_RENAME_SWAP = 2
"""Attribute of macOS with the same purpose."""

log = logging.getLogger("reput.spark")


@dataclass(frozen=True, slots=True)
class Imported:
    """Result of an import."""

    message_count: int
    log_start: int
    """Physical offset of its first record, or of the end of the log if it has none."""
    log_end: int
    """Physical offset after its last record."""


def is_store(path: str) -> bool:
    """Return whether there is a store to append to.

    Raises:
        InvalidOption: The path holds something else.
    """
    folder = Path(path)
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise InvalidOption("path", path, "a folder; this is a file")
    if (folder / paths.COMMIT_LOG).is_dir():
        return True
    if any(folder.iterdir()):
        raise InvalidOption("path", path, "a store, or a folder that is new or empty")
    return False


def check_target(options: ImportOptions, *, overwrite: bool) -> None:
    """Check before the tasks start what would fail at the end.

    Raises:
        InvalidOption: There is no store, or its files have other sizes.
        StoreUnavailable: Another process has the store, or it keeps its queues in RocksDB.
    """
    if is_store(options.path):
        reader = StoreReader.open(options.path)
        if not overwrite:
            _refuse_other_sizes(reader, options)


def _refuse_other_sizes(reader: StoreReader, options: ImportOptions) -> None:
    config = options.store
    sizes = {file.size for file in reader.log.files} - {0}
    if sizes and sizes != {config.mapped_file_size_commit_log}:
        raise InvalidOption(
            "mappedFileSizeCommitLog",
            config.mapped_file_size_commit_log,
            f"{max(sizes)}, as the log files of {options.path} have",
        )


def queue_counts(path: str) -> dict[str, int]:
    """Return the number of queues per topic; empty without a store.

    Raises:
        CorruptRecord: Its table of topics cannot be decoded.
    """
    if not is_store(path):
        return {}
    # The lock may belong to another import, which will finish soon.
    reader = StoreReader.open(path, allow_live=True)
    return {
        topic: max(topic_config.write_queue_count, 1)
        for topic, topic_config in reader.topics().items()
    }


def drafts_folder(path: str, job: str) -> str:
    """Return the folder of an import's drafts."""
    return f"{path}{DRAFTS_SUFFIX}/{job}"


def drop_drafts(path: str, job: str, now_ms: int) -> None:
    """Delete the drafts of an import, and abandoned ones."""
    shutil.rmtree(drafts_folder(path, job), ignore_errors=True)
    folder = Path(path + DRAFTS_SUFFIX)
    # A draft that cannot be deleted now does no harm; another import may be using it.
    with contextlib.suppress(OSError):
        for draft in folder.iterdir():
            if now_ms - _changed_ms(draft) > _DEAD_AFTER_MS:
                log.warning("%s is left of an import that has died, and is deleted", draft)
                shutil.rmtree(draft, ignore_errors=True)
        folder.rmdir()


def _changed_ms(draft: Path) -> int:
    """Return the time of the last change in a draft, in ms."""
    return max(path.stat().st_mtime_ns for path in (draft, *draft.iterdir())) // 1_000_000


@dataclass(frozen=True)
class Commit:
    """Commits the fragments of one import to its store.

    Args:
        options: Options of the write.
        job: Name of the drafts.
        fragments: In the order of their records in the log.
        stream: Stream and number of the batch, if it is one.
        clock: The clock.
        disk: Access to the disk.
    """

    options: ImportOptions
    job: str
    fragments: Sequence[Fragment]
    stream: tuple[str, int] | None = None
    clock: Clock = field(default_factory=SystemClock)
    disk: Disk = field(default_factory=Disk)

    @property
    def _root(self) -> str:
        return self.options.path

    def run(self, *, overwrite: bool = False) -> Imported | None:
        """Create or extend the store.

        Args:
            overwrite: Replace an existing store by a new one.

        Returns:
            The result; None if a stream's batch is already in the log.

        Raises:
            InvalidOption: The path is not a store, its log files have other sizes, or a message
                names a queue that its topic lacks.
            StoreUnavailable: Another process has the store, or it cannot be imported to.
            WriteFailed: The disk failed. The store has its old messages.
        """
        there = is_store(self._root)
        if not there or overwrite:
            return self._make(there)
        return self._append()

    # A new store ------------------------------------------------------------------------------

    def _make(self, there: bool) -> Imported:
        draft = drafts_folder(self._root, self.job) + "/store"
        shutil.rmtree(draft, ignore_errors=True)
        self.disk.make_folder(f"{draft}/{paths.COMMIT_LOG}", is_durable=False)
        planner = self._planned(Planner(0, 0, self._file_bytes, {}, self._time_ms(0)))
        parts = planner.finish()
        self._write_files(parts, lambda part: log_path(draft, part.file_start))
        self._add_topics(draft)
        if self.stream is not None:
            query, batch_id = self.stream
            bulk_append.save(draft, Appends(None, {query: batch_id}), self.disk)
        self._derive(draft)
        self.disk.sync_filesystem(draft)
        if not there:
            self._publish(draft)
            return Imported(planner.message_count, 0, planner.end)
        lock = FolderLock(self._root)
        try:
            self._exchange(draft, self._root)
        finally:
            lock.release()
        return Imported(planner.message_count, 0, planner.end)

    def _publish(self, draft: str) -> None:
        # An empty folder is replaced; a folder that is no longer empty is another process's store.
        self.disk.make_folder(os.path.dirname(self._root))  # noqa: PTH120 - paths are texts here
        self.disk.rename(draft, self._root)
        self.disk.sync_folder(os.path.dirname(self._root))  # noqa: PTH120

    def _exchange(self, draft: str, target: str) -> None:
        """Exchange a draft and a folder in one step."""
        libc = ctypes.CDLL(None, use_errno=True)
        new, old = os.fsencode(draft), os.fsencode(target)
        if hasattr(libc, "renameat2"):
            is_done = libc.renameat2(_AT_FDCWD, new, _AT_FDCWD, old, _RENAME_EXCHANGE) == 0
        elif hasattr(libc, "renamex_np"):
            is_done = libc.renamex_np(new, old, _RENAME_SWAP) == 0
        else:
            is_done = False
            ctypes.set_errno(errno.ENOSYS)
        if not is_done:
            reason = os.strerror(ctypes.get_errno())
            raise WriteFailed(
                target, f"cannot be exchanged with {draft}: {reason}; import to a new folder"
            )
        self.disk.sync_folder(os.path.dirname(target))  # noqa: PTH120 - paths are texts here

    # An existing store -----------------------------------------------------------------------

    def _append(self) -> Imported | None:
        lock, reader = self._settled()
        try:
            appends = _resolved(reader)
            if self.stream is not None and self.stream[1] <= appends.batches.get(
                self.stream[0], -1
            ):
                log.warning("batch %d is in %s already", self.stream[1], self._root)
                return None
            planner = self._plan(reader)
            parts = planner.finish()
            if parts:
                self._add_topics(self._root)
                begun = self._put(parts, appends)
                # Everything is in the log now; the next import or broker would do the rest.
                self._try(lambda: bulk_append.save(self._root, _done(appends, begun), self.disk))
        finally:
            lock.release()
        if parts:
            self._try(lambda: self._derive(self._root))
        return Imported(planner.message_count, reader.end_offset, planner.end)

    def _settled(self) -> tuple[FolderLock, StoreReader]:
        """Return the locked store, with queues and index known to be complete."""
        for _ in range(_SETTLE_TRIES):
            lock = FolderLock(self._root)
            try:
                reader = StoreReader(open_folder(self._root), holds_lock=True)
                # A store that reput did not close may have a torn tail, or queues that lack units.
                summary = Summary.load(self._root)
                is_settled = (
                    summary is not None
                    and summary.log_end == reader.end_offset
                    and reader.tail.stale is None
                    and reader.state.condition is Condition.CLEAN
                )
            except BaseException:
                lock.release()
                raise
            if is_settled:
                return lock, reader
            lock.release()
            self._derive(self._root)
        raise StoreUnavailable(f"{self._root} is opened by others again and again")

    def _plan(self, reader: StoreReader) -> Planner:
        """Return the plan of log files.

        Raises:
            InvalidOption: Its log files have another size.
            StoreUnavailable: A topic has batch queues.
        """
        keys = {key for fragment in self.fragments for key in fragment.queues}
        for topic in sorted({topic for topic, _ in keys}):
            if topic in reader.batch_queue_ids:
                raise StoreUnavailable(
                    f"topic {topic} has batch queues, to which nothing can be imported"
                )
        offsets = {key: reader.queue(*key).max_offset for key in keys}
        end = reader.end_offset
        newest_ms = 0
        if end > reader.log.min_offset:
            last = reader.log.last_record(reader.log.file_at(end - 1), end)
            newest_ms = last.store_timestamp if last is not None else 0
        _refuse_other_sizes(reader, self.options)
        start = reader.log.min_offset
        time_ms = self._time_ms(newest_ms)
        return self._planned(Planner(start, end, self._file_bytes, offsets, time_ms))

    def _time_ms(self, newest_ms: int) -> int:
        """Return the store time of records without one, after ``newest_ms``."""
        # Offsets are searched by bisection on times, which must not decrease.
        return newest_ms if self.options.keeps_store_times else max(newest_ms, self.clock.now_ms())

    def _put(self, parts: Sequence[LogPart], appends: Appends) -> Begun:
        """Append, so that the last write makes everything part of the log; return the result."""
        first = parts[0]
        with_records = next(part for part in parts if part.pieces)
        checksum = zlib.crc32(self._stitch.first_record(with_records))
        query, batch_id = self.stream or (None, 0)
        begun = Begun(first.start, with_records.start, checksum, query, batch_id)
        bulk_append.save(self._root, replace(appends, begun=begun), self.disk)
        self.disk.make_folder(drafts_folder(self._root, self.job), is_durable=False)
        if len(parts) - 1 > _NEW_FILES_MAX:
            self._put_beside(parts)
        else:
            self._put_after_end(parts)
        return begun

    def _put_after_end(self, parts: Sequence[LogPart]) -> None:
        """Write everything after the end of the log, and last the bytes at its end."""
        first, *others = parts
        in_place, drafts = self._log_path(first), drafts_folder(self._root, self.job)
        if not Path(in_place).exists():
            self._create(in_place)  # zeros: ignored by readers

        def path_of(part: LogPart) -> str:
            return in_place if part is first else f"{drafts}/{paths.offset_name(part.file_start)}"

        head = self._write_files(parts, path_of, first, bare_at=first.position)
        for part in reversed(others):
            self.disk.rename(path_of(part), self._log_path(part))
        self.disk.sync_folder(f"{self._root}/{paths.COMMIT_LOG}")
        descriptor = self.disk.open(in_place)
        try:
            self.disk.write(descriptor, in_place, first.position, head)
            self.disk.sync_file(descriptor, in_place)
        finally:
            os.close(descriptor)

    def _put_beside(self, parts: Sequence[LogPart]) -> None:
        """Build another folder of log files, with links to the old ones, and exchange the two.

        The last file is copied, so that the old folder stays unchanged.
        """
        first = parts[0]
        folder = f"{self._root}/{paths.COMMIT_LOG}"
        draft = f"{drafts_folder(self._root, self.job)}/{paths.COMMIT_LOG}"
        self.disk.make_folder(draft, is_durable=False)
        try:
            for path in Path(folder).iterdir():
                if path.name != paths.offset_name(first.file_start):
                    os.link(path, f"{draft}/{path.name}")
        except OSError as error:
            raise WriteFailed(draft, f"cannot link log files: {error.strerror}") from error

        def path_of(part: LogPart) -> str:
            return f"{draft}/{paths.offset_name(part.file_start)}"

        self._create(path_of(first))
        if first.position:
            self._copy(self._log_path(first), path_of(first), first.position)
        self._write_files(parts, path_of, first)
        self.disk.sync_folder(draft)
        self._exchange(draft, folder)

    def _copy(self, source: str, target: str, size: int) -> None:
        reading, writing = os.open(source, os.O_RDONLY | os.O_CLOEXEC), self.disk.open(target)
        try:
            for position in range(0, size, _COPY_BYTES):
                data = os.pread(reading, min(size - position, _COPY_BYTES), position)
                self.disk.write(writing, target, position, data)
        finally:
            os.close(reading)
            os.close(writing)

    def _log_path(self, part: LogPart) -> str:
        return log_path(self._root, part.file_start)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (StoreUnavailable, WriteFailed) as error:
            log.warning(
                "the messages are in %s; the rest is left to its next start: %s", self._root, error
            )

    # Both -------------------------------------------------------------------------------------

    @property
    def _file_bytes(self) -> int:
        return self.options.store.mapped_file_size_commit_log

    @property
    def _stitch(self) -> Stitch:
        has_crc = self.options.store.enabled_append_prop_crc
        return Stitch(self.fragments, self._file_bytes, has_crc, self.disk)

    def _planned(self, planner: Planner) -> Planner:
        for fragment in self.fragments:
            planner.add(fragment, import_files.load_table(fragment))
        return planner

    def _create(self, path: str) -> None:
        os.close(self.disk.create(path, self._file_bytes))

    def _write_files(
        self,
        parts: Sequence[LogPart],
        path_of: Callable[[LogPart], str],
        there: LogPart | None = None,
        bare_at: int | None = None,
    ) -> bytes:
        """Write log files concurrently; return the bytes that were left out.

        Args:
            parts: Content of the files.
            path_of: Returns the path of a file.
            there: The part whose file exists; the others are created.
            bare_at: Position in that file of eight bytes to leave as zeros.
        """
        stitch = self._stitch

        def write(part: LogPart) -> bytes:
            path = path_of(part)
            if part is there:
                return stitch.write(part, path, bare_at)
            self.disk.unlink(path)
            os.close(self.disk.create(path, self._file_bytes, is_durable=False))
            return stitch.write(part, path)

        with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
            return b"".join(pool.map(write, parts))

    def _add_topics(self, root: str) -> None:
        """Create the queues of new topics, as a broker would on the first message.

        Raises:
            InvalidOption: A message names a queue that its topic lacks.
        """
        table = TopicTable.load(root, self.disk)
        now_ms = self.clock.now_ms()
        for topic, queue_id in sorted(_last_queues(self.fragments).items()):
            known = table.get(topic)
            if known is None:
                count = max(self._new_queue_count(topic), queue_id + 1)
                table.put(TopicConfig(topic, count, count, PERM_READ | PERM_WRITE), now_ms)
            elif queue_id >= max(known.read_queue_count, known.write_queue_count):
                raise InvalidOption(
                    "queue_id",
                    queue_id,
                    f"queues of topic {topic}, which are 0 to {known.write_queue_count - 1}; give "
                    "it more of them first",
                )
        if table.is_dirty:
            table.save(now_ms)

    def _new_queue_count(self, topic: str) -> int:
        if topic == names.SCHEDULE_TOPIC:
            return max(_SCHEDULE_QUEUE_COUNT, len(self.options.store.delay_levels_ms))
        if names.is_retry_topic(topic) or names.is_dlq_topic(topic):
            return 1
        return self.options.queue_count

    def _derive(self, root: str) -> None:
        """Open a store, which derives its queues and index from its log."""
        store = MessageStore.open(root, self.options.store, clock=self.clock, disk=self.disk)
        store.close()


def _last_queues(fragments: Iterable[Fragment]) -> Mapping[str, int]:
    """Return the highest queue id of each topic."""
    highest: dict[str, int] = {}
    for topic, queue_id in (key for fragment in fragments for key in fragment.queues):
        highest[topic] = max(highest.get(topic, 0), queue_id)
    return highest


def _resolved(reader: StoreReader) -> Appends:
    """Return the notes of earlier imports, with the outcome of the last one resolved.

    Raises:
        CorruptRecord: ``appends.json`` cannot be decoded.
        StoreUnavailable: The log ends before the start of the last import.
    """
    appends = bulk_append.read(reader.folder)
    begun = appends.begun
    if begun is None:
        return appends
    if begun.stream is not None and begun.log_end < reader.log.min_offset:
        raise StoreUnavailable(
            f"{reader.location} has lost the part of its log that says whether batch "
            f'{begun.batch_id} of stream {begun.stream} is in it; set "begun" in '
            f'{paths.BULK_APPENDS} to null, and "batches" to what you know'
        )
    try:
        there = reader.log.record_bytes(begun.first_offset)
    except (NotInStore, CorruptRecord):
        there = b""
    is_done = zlib.crc32(there) == begun.checksum and begun.first_offset < reader.end_offset
    return _done(appends, begun) if is_done else replace(appends, begun=None)


def _done(appends: Appends, begun: Begun) -> Appends:
    batches = dict(appends.batches)
    if begun.stream is not None:
        batches[begun.stream] = begun.batch_id
    return Appends(None, batches)
