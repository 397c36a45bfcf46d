"""The consume queues for writing: they map (topic, queue id, queue offset) to a log record.

``write_out`` writes the tails of queues to their files. Only the queues used last hold a
descriptor, fewer a mapping: ten thousand queues cost memory for their units and little else
(known-bugs.md#queue-mappings). Units that a crash loses are derived again from the log.

``dispatch`` decides which units to append, and ``recovery`` repairs a broken queue.
"""

import contextlib
import errno
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reput.descriptors import read_into, seek_data, seek_hole
from reput.errors import OutOfResources, StoreUnavailable, WriteFailed
from reput.format import cq_unit, java
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.memory import FileMap
from reput.store.hot_state import HotState
from reput.store.kernels import control_block as state, hot
from reput.store.kernels.control_block import READ_UNITS_MAX
from reput.store.queues.consume_queue import ConsumeQueue, QueueEnd, count_units, has_bytes
from reput.store.queues.consume_queue_ext import ConsumeQueueExt
from reput.store.queues.consume_queue_view import UNIT_TYPE, UnitArray

_DESCRIPTORS_MAX = 128
_MAPPED_MAX = 16
"""Number of files that stay mapped after a search by time."""
_SYNC_ONE_BY_ONE_MAX = 32
"""Number of files above which one call syncs the whole file system."""
_FIRST_READ_BYTES = 4096
"""Bytes of a queue file that are read first, a page: most of many queues have no others."""
_AHEAD_QUEUES_MAX = 128
"""Number of queues whose units are kept after a read ahead: 5 MB."""
QUEUES_PER_STEP = 16
"""Queues that one step writes, at 10 to 60 us each; requests wait no longer than that."""
_LOOKS_PER_STEP = 512
"""Queues that one step examines: most of them may wait for a file."""
_FILES_AT_ONCE = 4
"""Files that such a step creates itself; a file system may take a millisecond for each."""
_NEW_FILES_MIN = 512
"""Queues above which a stop creates their files in two threads."""
_NEW_FILES_PER_PART = 64
_FILES_PER_STEP = 64
"""Files that one step of the disk thread creates."""


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """A queue file with a wrong length."""

    path: str
    size: int


class ConsumeQueues:
    """All queues of a store.

    Args:
        root: Folder of the store.
        file_size: Size of a queue file in bytes, a multiple of the unit's.
        hot_state: Contains the rows of the queues.
        disk: Writes the files.
        ext_file_size: Size of an extension file in bytes; 0 if queues have no extensions.
    """

    def __init__(
        self,
        root: str,
        file_size: int,
        hot_state: HotState,
        disk: Disk,
        *,
        ext_file_size: int = 0,
    ) -> None:
        assert file_size % cq_unit.SIZE == 0
        self._ext_file_size = ext_file_size
        self.root = root
        self.file_size = file_size
        self.tail_bytes = 0
        """Memory of all tails, in bytes."""
        self.light_count = 0
        """Number of light queues."""
        self.before_making: Callable[[str], None] = lambda topic: None
        """Called with the topic before a queue is created."""
        self._hot = hot_state
        self._disk = disk
        self._queues: dict[str, dict[int, ConsumeQueue]] = {}
        self._by_address: dict[int, ConsumeQueue] = {}
        self._read_ahead: OrderedDict[int, ConsumeQueue] = OrderedDict()  # by address of the row
        self._descriptors: OrderedDict[str, int] = OrderedDict()  # by path; the last used is last
        self._mapped: OrderedDict[str, tuple[ConsumeQueue, FileMap]] = OrderedDict()  # as above
        self._unsynced_lock = threading.Lock()  # guards _unsynced and _has_new_names
        self._unsynced: dict[str, int] = {}  # path -> bytes written
        self._making = threading.Lock()  # guards _to_make and _made, held while a file is created
        # Locks are not fair. The writer holds this one while it waits for _making, and the disk
        # thread takes it between two of hundreds of files, which lets the writer go first.
        self._turn = threading.Lock()
        self._to_make: dict[ConsumeQueue, str] = {}  # path of the file that the queue waits for
        self._made: dict[ConsumeQueue, str] = {}  # path of a created file without a write so far
        self.is_waiting_for_files = False
        """True if all queues that ``write_some`` examined wait for ``make_files``."""
        self._has_new_names = False
        self._read_buffer = np.zeros(READ_UNITS_MAX * cq_unit.SIZE, np.uint8)
        self._read_address = hot.address_of(self._read_buffer)
        self.last_units: list[tuple[str, int, cq_unit.Unit]] = []
        """Topic, queue id and last unit of each queue that ``load`` found."""
        self.broken: list[BrokenFile] = []
        """Files that ``load`` found too short; their queues are marked as damaged."""
        self.missing_files: set[str] = set()
        """Paths of files that were deleted by others while in use."""

    # Queues -----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter([queue for queues in self._queues.values() for queue in queues.values()])

    def __len__(self) -> int:
        return len(self._by_address)

    def snapshot(self) -> list[ConsumeQueue]:
        """Return all queues; may be called in any thread."""
        return list(self._by_address.values())

    def ids_by_topic(self) -> dict[str, list[int]]:
        """Return the ids of each topic's queues; may be called in any thread."""
        return {topic: list(queues) for topic, queues in list(self._queues.items())}

    def topics(self) -> list[str]:
        """Return the topics with queues."""
        return list(self._queues)

    def of_topic(self, topic: str) -> dict[int, ConsumeQueue]:
        """Return the queues of a topic by id."""
        return self._queues.get(topic, {})

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue; None if it was never written to.

        A read creates no queue: known-bugs.md#deleted-topics.
        """
        queues = self._queues.get(topic)
        return queues.get(queue_id) if queues else None

    def at(self, address: int) -> ConsumeQueue:
        """Return the queue whose row has the address."""
        return self._by_address[address]

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, created if it does not exist; it has no files until it has units."""
        queue = self.find(topic, queue_id)
        if queue is None:
            self.before_making(topic)
            address, row = self._hot.add_queue(java.encode_utf8(topic), queue_id)
            queue = ConsumeQueue(self, topic, queue_id, address, row)
            if self._ext_file_size:
                queue.extension = self._extension(queue)
            self._queues.setdefault(topic, {})[queue_id] = queue
            self.light_count += queue.is_light
            self._by_address[address] = queue
        return queue

    def _extension(self, queue: ConsumeQueue) -> ConsumeQueueExt:
        folder = paths.queue_folder(queue.topic, queue.queue_id, paths.CONSUME_QUEUE_EXT)
        return ConsumeQueueExt(f"{self.root}/{folder}", self._ext_file_size, self._disk)

    def _former_extension(self, queue: ConsumeQueue) -> ConsumeQueueExt | None:
        """Return the extension of a queue whose units were written while the option was on."""
        folder = paths.queue_folder(queue.topic, queue.queue_id, paths.CONSUME_QUEUE_EXT)
        sizes = [file.stat().st_size for file in _scan(f"{self.root}/{folder}")]
        if not any(sizes):
            return None
        return ConsumeQueueExt(f"{self.root}/{folder}", max(sizes), self._disk)

    def mark(self, queue: ConsumeQueue) -> None:
        """Put a queue on the lists of dirty and touched queues, as the kernels do."""
        for bit, put_on_list in (
            (state.MARK_DIRTY, self._hot.mark_dirty),
            (state.MARK_TOUCHED, self._hot.mark_touched),
        ):
            if not queue.row.marks & bit:
                queue.row.marks |= bit
                put_on_list(queue.address)

    # Files ------------------------------------------------------------------------------------

    def load(
        self,
        log_min: int,
        ends: Mapping[tuple[str, int], QueueEnd] | None = None,
        *,
        are_all: bool = True,
    ) -> None:
        """Find all queues with files.

        Args:
            log_min: Minimum physical offset of the log.
            ends: Ends of the queues at a clean stop, if the log began there too. Files that were
                not modified since then are not read.
            are_all: True if nothing was written since; else files may be new, or have expired.

        Raises:
            StoreUnavailable: Files cannot be read, or their size is not the configured one
                (known-bugs.md#file-sizes).
        """
        folders = list(self._folders())
        sizes = {file.st_size for _, _, files in folders for file in files.values()} - {0}
        if len(sizes) == 1 and self.file_size not in sizes:
            path = next(
                path for _, path, files in folders if any(f.st_size for f in files.values())
            )
            raise StoreUnavailable(
                f"queue files have {sizes.pop()} bytes ({path}), but mappedFileSizeConsumeQueue "
                f"is {self.file_size}; set it to the size of the files"
            )
        for (topic, queue_id), path, files in folders:
            queue = self.make(topic, queue_id)
            known_end = ends.get((topic, queue_id)) if ends else None
            for start, file_state in sorted(files.items()) if len(files) > 1 else files.items():
                size = file_state.st_size
                if size > self.file_size:
                    raise StoreUnavailable(
                        f"{path}/{paths.offset_name(start)} has {size} bytes, but "
                        f"mappedFileSizeConsumeQueue is {self.file_size}"
                    )
                if size < self.file_size:
                    # It stays short until its queue is reset: it must be found again after a crash.
                    self.broken.append(BrokenFile(self.path_of(queue, start), size))
                    queue.is_damaged = True
                queue.files.append(start)
            queue.is_damaged |= not self._is_contiguous(queue, known_end if are_all else None)
            if known_end is not None and self._is_unchanged(queue, known_end, files):
                self._take_end(queue, known_end)
                continue
            self._find_end(queue, log_min, files)
            if queue.extension is not None:
                queue.cut_extension()

    def _is_contiguous(self, queue: ConsumeQueue, known: QueueEnd | None) -> bool:
        """Return True if no file is missing, and the first and last units of full files are valid.

        Whether a file is missing before the first one is known only from ``known``; without it,
        the log decides.
        """
        files = queue.files
        if not files:
            return True
        if known is not None and known.min_offset * cq_unit.SIZE < files[0]:
            return False
        if len(files) == 1:
            return True
        if any(b - a != self.file_size for a, b in itertools.pairwise(files)):
            return False
        last_offset = -1
        for start in files[:-1]:
            first, last = self._outer_units(queue, start)
            is_blank = start == files[0] and first.size == cq_unit.PRE_BLANK_SIZE
            if not (is_blank or first.is_written) or not last.is_written:
                return False
            # Equal where units that replace lost messages are on both sides of a file's end.
            if not last_offset <= first.physical_offset + is_blank <= last.physical_offset:
                return False
            last_offset = last.physical_offset
        return True

    def _outer_units(self, queue: ConsumeQueue, start: int) -> tuple[cq_unit.Unit, cq_unit.Unit]:
        """Return the first and the last unit of a file; units of zeros if it is short."""
        descriptor = self._open(queue, start)
        first, last = (
            os.pread(descriptor, cq_unit.SIZE, position).ljust(cq_unit.SIZE, b"\0")
            for position in (0, self.file_size - cq_unit.SIZE)
        )
        return cq_unit.unpack(first), cq_unit.unpack(last)

    def has_units_in_rest(self, queue: ConsumeQueue, physical_offset: int) -> bool:
        """Return True if units before a physical offset follow the presumed end of a queue."""
        units = self.load_units(queue, queue.files[-1])
        rest = units[queue.max_offset - queue.files[-1] // cq_unit.SIZE :]
        offsets = rest["physical_offset"]
        is_unit = (rest["size"] > 0) & (offsets >= 0) & (offsets < physical_offset)
        return bool(is_unit.any())

    def _is_unchanged(
        self, queue: ConsumeQueue, known: QueueEnd, files: dict[int, os.stat_result]
    ) -> bool:
        """Return True if the queue's files are those of the clean stop and need not be read."""
        last = (known.max_offset - 1) * cq_unit.SIZE // self.file_size * self.file_size
        return (
            not queue.is_damaged
            and queue.files[-1:] == [last]
            and last - queue.files[0] == (len(queue.files) - 1) * self.file_size
            and files[last].st_mtime_ns == known.modified_ns
            and queue.extension is None
            and not known.last_unit.is_ext_address
        )

    def _take_end(self, queue: ConsumeQueue, known: QueueEnd) -> None:
        self._set_loaded_end(queue, known.max_offset)
        queue.known_end = known
        queue.row.min_offset = known.min_offset
        queue.row.end_physical = known.physical_offset + known.size
        self.last_units.append((queue.topic, queue.queue_id, known.last_unit))

    def _set_loaded_end(self, queue: ConsumeQueue, max_offset: int) -> None:
        row = queue.row
        row.max_offset = row.next_offset = max_offset
        row.written_offset = row.tail_offset = max_offset
        row.notified_offset = max_offset

    def modified_ns(self, queue: ConsumeQueue, start: int) -> int:
        """Return the modification time of a queue's file, in ns."""
        return os.stat(self.path_of(queue, start)).st_mtime_ns  # noqa: PTH116 - paths are texts here

    def _folders(self) -> Iterator[tuple[tuple[str, int], str, dict[int, os.stat_result]]]:
        family = f"{self.root}/{paths.CONSUME_QUEUE}"
        for topic in _scan(family):
            if not topic.is_dir():
                continue
            for entry in _scan(topic.path):
                queue_id = paths.parse_queue_id(entry.name)
                if queue_id is None or not entry.is_dir():
                    continue
                files = {
                    start: file.stat()
                    for file in _scan(entry.path)
                    if (start := paths.parse_offset_name(file.name)) is not None
                }
                yield (topic.name, queue_id), entry.path, files

    def _find_end(
        self, queue: ConsumeQueue, log_min: int, states: Mapping[int, os.stat_result]
    ) -> None:
        """Set the end: after the last unit of the valid ones from the start of the last file."""
        if not queue.files:
            return
        units = self.load_units(queue, queue.files[-1])
        count = count_units(units)
        while not count and len(queue.files) > 1:
            queue.has_rest |= has_bytes(units)
            self.delete(queue, queue.files.pop())  # empty files are deleted
            units = self.load_units(queue, queue.files[-1])
            count = count_units(units)
        queue.has_rest |= count < len(units) and has_bytes(units[count:])
        last = cq_unit.unpack(units[count - 1].tobytes()) if count else None
        end = queue.files[-1] // cq_unit.SIZE + count
        row = queue.row
        self._set_loaded_end(queue, end)
        if last is not None and last.is_written:
            row.end_physical = last.physical_offset + last.size
            if last.is_ext_address and queue.extension is None:
                queue.extension = self._former_extension(queue)
            self.last_units.append((queue.topic, queue.queue_id, last))
        if len(queue.files) == 1 and count and log_min <= units["physical_offset"][0]:
            row.min_offset = queue.first_offset
        else:
            queue.correct_min_offset(log_min)
        if last is not None and last.is_written:
            modified_ns = states[queue.files[-1]].st_mtime_ns
            place = last.physical_offset, last.size, last.tags_code
            queue.known_end = QueueEnd(end, queue.min_offset, *place, modified_ns)

    def load_units(self, queue: ConsumeQueue, start: int) -> UnitArray:
        """Return the units of a file, without the zeros at its end."""
        descriptor = self._open(queue, start)
        data = os.pread(descriptor, min(_FIRST_READ_BYTES, self.file_size), 0)
        # Most of a page is zeros; they are skipped, which matters with thousands of queues.
        count = -(-len(data.rstrip(b"\0")) // cq_unit.SIZE)
        is_cut = count > len(data) // cq_unit.SIZE  # the last unit
        if is_cut or not _is_hole(descriptor, len(data), self.file_size):
            size = -(-_data_end(descriptor, self.file_size) // cq_unit.SIZE) * cq_unit.SIZE
            data = os.pread(descriptor, min(size, self.file_size), 0)
            count = -(-len(data.rstrip(b"\0")) // cq_unit.SIZE)
        return np.frombuffer(data, UNIT_TYPE, min(count, len(data) // cq_unit.SIZE))

    def path_of(self, queue: ConsumeQueue, start: int) -> str:
        """Return the path of a file of a queue."""
        return f"{queue.folder}/{paths.offset_name(start)}"

    def _open(self, queue: ConsumeQueue, start: int) -> int:
        return self._open_path(queue, start, self.path_of(queue, start))

    def _open_path(self, queue: ConsumeQueue, start: int, path: str) -> int:
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            descriptor = self._open_again(queue, start)
            self._keep(path, descriptor)
        else:
            self._descriptors.move_to_end(path)
        return descriptor

    def map_for_kernels(self, queue: ConsumeQueue, start: int) -> None:
        """Map a file of a queue for searches by time, unless it is.

        Raises:
            WriteFailed: The file cannot be opened.
        """
        path = self.path_of(queue, start)
        if path in self._mapped:
            self._mapped.move_to_end(path)
            return
        self._unmap(next((path for path, each in self._mapped.items() if each[0] is queue), ""))
        descriptor = self._open(queue, start)
        size = os.fstat(descriptor).st_size
        try:
            units = FileMap(descriptor, size, is_writable=False)
        except OSError:  # an empty file, or too many maps
            return
        self._mapped[path] = queue, units
        row = queue.row
        row.mapped = units.address
        row.mapped_offset = start // cq_unit.SIZE
        row.mapped_count = size // cq_unit.SIZE
        if len(self._mapped) > _MAPPED_MAX:
            self._unmap(next(iter(self._mapped)))

    def _unmap(self, path: str) -> None:
        if path in self._mapped:
            queue, units = self._mapped.pop(path)
            row = queue.row
            row.mapped = row.mapped_count = 0
            units.close()

    def files_in_use(self) -> list[str]:
        """Return the paths of the open files, those used last; may be called in any thread."""
        return list(self._descriptors)

    def _open_again(self, queue: ConsumeQueue, start: int) -> int:
        path = self.path_of(queue, start)
        try:
            return self._disk.open(path)
        except OutOfResources:
            if not self._descriptors:
                raise
            os.close(self._descriptors.popitem(last=False)[1])  # reuse one of ours
            return self._disk.open(path)
        except WriteFailed as error:
            if start in queue.files and isinstance(error.__cause__, FileNotFoundError):
                self.missing_files.add(path)
            raise

    def _keep(self, path: str, descriptor: int) -> None:
        self._descriptors[path] = descriptor
        if len(self._descriptors) > _DESCRIPTORS_MAX:
            os.close(self._descriptors.popitem(last=False)[1])

    def create(self, queue: ConsumeQueue, path: str) -> None:
        """Create a file of a queue and its folders. Raises ``DiskFull``."""
        if self._made.get(queue) == path:
            # Without the lock, which the disk thread may hold for long. That thread reads both
            # tables in the opposite order, so it never creates a file that exists.
            self._to_make.pop(queue, None)
            del self._made[queue]
            return
        with self._turn, self._making:
            self._to_make.pop(queue, None)
            made = self._made.pop(queue, None)
            if made is not None and made != path:
                self._disk.unlink(made)
            if made != path:
                self._keep(path, self._make_file(queue, path))

    def _make_file(self, queue: ConsumeQueue, path: str) -> int:
        self._disk.make_folder(path[: path.rindex("/")], is_durable=False)
        descriptor = self._disk.create(path, self.file_size, is_durable=False)
        with self._unsynced_lock:
            self._has_new_names = True
        return descriptor

    def make_files(self) -> bool:
        """Create some of the files that queues wait for; may run in a worker thread.

        Returns:
            True if there were any.

        Raises:
            DiskFull: There was no space for a file. ``write_some`` creates the next files itself,
                so that the writer gets the error too.
        """
        wanted = list(self._to_make.items())[:_FILES_PER_STEP]
        try:
            for queue, path in wanted:
                self._make_ahead(queue, path)
        finally:
            self.is_waiting_for_files = False
        return bool(wanted)

    def _make_ahead(self, queue: ConsumeQueue, path: str) -> None:
        """Create a file that a queue waits for, unless it no longer waits."""
        with self._turn:
            pass  # if the writer waits, it goes first
        with self._making:
            is_made = self._made.get(queue) == path
            if not is_made and self._to_make.get(queue) == path:
                try:
                    os.close(self._make_file(queue, path))
                except WriteFailed:
                    self._to_make.clear()  # else queues would wait for these files forever
                    raise
                self._made[queue] = path
            # ``write_some`` may have requested the same file again meanwhile.
            if self._to_make.get(queue) == path:
                self._to_make.pop(queue, None)

    def forget_made_files(self, queue: ConsumeQueue) -> None:
        """Delete the file created for a queue: its units will be written to another one."""
        with self._turn, self._making:
            self._to_make.pop(queue, None)
            made = self._made.pop(queue, None)
            if made is not None:
                self._disk.unlink(made)

    def _file_to_make(self, queue: ConsumeQueue) -> str | None:
        """Return the path of the file that the next unsaved unit begins; None if it exists.

        A file that begins with blanks is created together with them: without them, a queue would
        appear after a crash to begin before its first message.
        """
        row = queue.row
        first = row.written_offset
        if first == row.max_offset or first * cq_unit.SIZE % self.file_size:
            return None
        start = first * cq_unit.SIZE
        if queue.files and start <= queue.files[-1]:
            return None
        path = self.path_of(queue, start)
        return None if self._made.get(queue) == path else path

    def write(
        self, queue: ConsumeQueue, start: int, position: int, data: memoryview | bytes
    ) -> None:
        """Write into an existing file. Raises ``DiskFull``."""
        self.write_to(queue, start, self.path_of(queue, start), position, data)

    def write_to(
        self,
        queue: ConsumeQueue,
        start: int,
        path: str,
        position: int,
        data: memoryview | bytes,
    ) -> None:
        """Write into an existing file whose path is known. Raises ``DiskFull``."""
        self._disk.write(self._open_path(queue, start, path), path, position, data)
        with self._unsynced_lock:
            self._unsynced[path] = self._unsynced.get(path, 0) + len(data)

    def note_written(self, file_paths: list[str]) -> None:
        """Record that files of extensions must be synced with the queue files."""
        with self._unsynced_lock:
            for path in file_paths:
                self._unsynced[path] = self._unsynced.get(path, 0) + cq_unit.SIZE
                self._has_new_names = True

    def read(self, queue: ConsumeQueue, queue_offset: int, count: int) -> tuple[int, int]:
        """Read units of one file into the read buffer; see ``ConsumeQueue.units_at``."""
        file, position = divmod(queue_offset * cq_unit.SIZE, self.file_size)
        size = min(count * cq_unit.SIZE, self.file_size - position)
        try:
            descriptor = self._open(queue, file * self.file_size)
        except WriteFailed:
            if file * self.file_size not in queue.files:
                return 0, 0
            raise
        size = read_into(descriptor, self._read_buffer.data[:size], position)
        return self._read_address, size // cq_unit.SIZE

    def append_to_read(self, count: int, units: npt.NDArray[np.uint8]) -> None:
        """Append units of a tail to the ``count`` units that ``read`` returned last."""
        position = count * cq_unit.SIZE
        self._read_buffer[position : position + len(units)] = units

    def note_ahead(self, queue: ConsumeQueue) -> None:
        """Record that units of a queue were read ahead; evict those of the oldest queue."""
        self._read_ahead[queue.address] = queue
        self._read_ahead.move_to_end(queue.address)
        if len(self._read_ahead) > _AHEAD_QUEUES_MAX:
            self._read_ahead.popitem(last=False)[1].forget_ahead()

    def delete(self, queue: ConsumeQueue, start: int) -> None:
        """Delete one file of a queue."""
        path = self.path_of(queue, start)
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)
        self._unmap(path)
        self._disk.unlink(path)
        with self._unsynced_lock:
            self._unsynced.pop(path, None)
            self._has_new_names = True  # a deleted file that reappeared after a crash would be used

    def sync_names(self, queue: ConsumeQueue) -> None:
        """Make the names of a queue's files durable. Raises ``WriteFailed``."""
        self._disk.sync_folder(queue.folder)

    def drop(self, queues: Collection[ConsumeQueue]) -> None:
        """Delete queues with their files, permanently.

        A queue of the same name may be created at once; a crash brings back neither the old queue
        nor its files.

        Raises:
            WriteFailed: The disk failed, and some files may be left. Call this method again.
        """
        for queue in queues:
            self.forget_made_files(queue)
            while queue.files:
                self.delete(queue, queue.files[-1])
                queue.files.pop()
            if queue.extension is not None:
                queue.extension.delete()
        if len(queues) > _SYNC_ONE_BY_ONE_MAX:
            self._disk.sync_filesystem(self.root)
        else:
            for queue in queues:
                if Path(queue.folder).exists():
                    self.sync_names(queue)
        self._hot.take_off_lists({queue.address for queue in queues})
        for queue in queues:
            self._remove(queue)
        for topic in {queue.topic for queue in queues}:
            if not self._queues[topic]:
                del self._queues[topic]
                self._hot.drop_topic(java.encode_utf8(topic))

    def detach(self, queues: Collection[ConsumeQueue]) -> list[str]:
        """Remove queues from the tables; ``release`` each of them afterwards.

        Their files stay, and must be deleted before queues of the same names get files.

        Returns:
            The folders of the queues' files, or of all files of their topics.
        """
        by_topic: dict[str, list[ConsumeQueue]] = {}
        for queue in queues:
            by_topic.setdefault(queue.topic, []).append(queue)
        with self._turn, self._making:
            for queue in queues if self._to_make or self._made else ():
                self._to_make.pop(queue, None)
                self._made.pop(queue, None)
        self._hot.take_off_lists({queue.address for queue in queues})
        folders = []
        for topic, gone in by_topic.items():
            name = java.encode_utf8(topic)
            queues_by_id = self._queues[topic]
            if len(gone) == len(queues_by_id):
                del self._queues[topic]
                self._hot.drop_topic(name)
                names_in_family = [topic]
            else:
                for queue in gone:
                    del queues_by_id[queue.queue_id]
                    self._hot.hide_queue(name, queue.queue_id)
                names_in_family = [f"{topic}/{queue.queue_id}" for queue in gone]
            folders += [
                f"{self.root}/{family}/{name_in_family}"
                for family in (paths.CONSUME_QUEUE, paths.CONSUME_QUEUE_EXT)
                for name_in_family in names_in_family
            ]
        starts = tuple(f"{folder}/" for folder in folders)
        for path in [path for path in self._descriptors if path.startswith(starts)]:
            os.close(self._descriptors.pop(path))
        for path in [path for path in self._mapped if path.startswith(starts)]:
            self._unmap(path)
        return folders

    def release(self, queue: ConsumeQueue) -> None:
        """Free the memory of a detached queue."""
        self._free(queue)
        self._hot.free_queue(queue.row)

    def _free(self, queue: ConsumeQueue) -> None:
        queue.drop_tail()
        queue.forget_ahead()
        self._read_ahead.pop(queue.address, None)
        queue.row.marks = 0
        del self._by_address[queue.address]
        self.light_count -= queue.is_light

    def _remove(self, queue: ConsumeQueue) -> None:
        self._free(queue)
        for folder in (Path(queue.folder), Path(queue.folder).parent):
            with contextlib.suppress(OSError):  # not empty: other queues, or files of others
                folder.rmdir()
        del self._queues[queue.topic][queue.queue_id]
        name = java.encode_utf8(queue.topic)
        self._hot.drop_queue(name, queue.queue_id, queue.row)

    # Durability -------------------------------------------------------------------------------

    def write_out(self) -> int:
        """Write the units of all tails to files; return the number of queues with new units.

        Raises:
            DiskFull: Queues that were not written stay on the list.
        """
        rows = self._hot.dirty_rows()
        done = 0
        try:
            self._write_new_files([self._by_address[address] for address in rows])
            for address in rows:
                queue = self._by_address[address]
                queue.write_out()
                queue.row.marks &= ~state.MARK_DIRTY
                done += 1
        finally:
            self._hot.set_dirty_rows(rows[done:])
        return done

    def _write_new_files(self, queues: list[ConsumeQueue]) -> None:
        """Write the units that begin a new file, if there are many, in two threads.

        Nearly all of the time is spent in the system, in 80,000 folders and files for example.

        Raises:
            DiskFull: As ``write_out``; the rest is tried again.
        """
        if len(queues) < _NEW_FILES_MIN:
            return
        with self._turn, self._making:
            new_files = [
                (queue, path)
                for queue in queues
                if queue.extension is None
                and queue not in self._made
                and (path := self._file_to_make(queue)) is not None
                and queue.row.tail_offset <= queue.row.written_offset
            ]
            for queue, _ in new_files:
                self._to_make.pop(queue, None)
            parts = iter(range(0, len(new_files), _NEW_FILES_PER_PART))
            failures: list[Exception] = []

            def write_parts() -> None:
                for first in parts:  # shared by the threads
                    if failures:
                        break
                    try:
                        self._write_part(new_files[first : first + _NEW_FILES_PER_PART])
                    except Exception as error:  # noqa: BLE001 - raised again below
                        failures.append(error)

            thread = threading.Thread(target=write_parts, name="reput-queue-files")
            thread.start()
            try:
                write_parts()
            finally:
                thread.join()
        if failures:
            raise failures[0]

    def _write_part(self, new_files: list[tuple[ConsumeQueue, str]]) -> None:
        written: dict[str, int] = {}
        try:
            for queue, path in new_files:
                written[path] = queue.write_new_file(path, self._disk)
        finally:
            with self._unsynced_lock:
                self._has_new_names = True
                self._unsynced.update(written)

    @property
    def dirty_count(self) -> int:
        """Number of queues with units that are in no file."""
        return self._hot.dirty_count

    def write_some(self, left: int) -> int:
        """Write the new units of some queues to files, starting with the oldest.

        All but a few new files are left to ``make_files``. While all queues wait for files, this
        does nothing.

        Args:
            left: Number of queues to examine; queues that became dirty later are not counted.

        Returns:
            The number of these queues that are left.

        Raises:
            DiskFull: As ``write_out``.
        """
        left = min(left, self._hot.dirty_count)
        if self.is_waiting_for_files:
            return left
        waiting: list[int] = []
        seen = 0
        made = _FILES_AT_ONCE if self._to_make else 0  # the disk thread creates files already
        try:
            for address in self._hot.first_dirty_rows(min(left, _LOOKS_PER_STEP)):
                queue = self._by_address[address]
                path = self._file_to_make(queue)
                made += path is not None
                if path is not None and made > _FILES_AT_ONCE:
                    self._to_make[queue] = path
                    waiting.append(address)
                else:
                    queue.write_out()
                    queue.row.marks &= ~state.MARK_DIRTY
                seen += 1
                if seen - len(waiting) == QUEUES_PER_STEP:
                    break
        finally:
            self._hot.put_off_dirty_rows(seen, left, waiting)
        self.is_waiting_for_files = 0 < seen == len(waiting)
        return left - seen + len(waiting)

    def sync(self, least_bytes: int = 0) -> None:
        """Make durable what was written, in files with at least ``least_bytes`` of new data.

        May run in a worker thread while the writer writes; covers what was written before.

        Raises:
            WriteFailed: The disk failed; the next call tries again.
        """
        with self._unsynced_lock:
            due = {path: size for path, size in self._unsynced.items() if size >= least_bytes}
            has_new_names = self._has_new_names
            if not due and (least_bytes or not has_new_names):
                return
            for path in due:
                del self._unsynced[path]
            self._has_new_names = False
        try:
            if has_new_names or len(due) > _SYNC_ONE_BY_ONE_MAX:
                self._disk.sync_filesystem(self.root)
                return
            for path in due:
                self._sync_file(path)
        except BaseException:
            with self._unsynced_lock:
                for path, size in due.items():
                    self._unsynced[path] = self._unsynced.get(path, 0) + size
                self._has_new_names |= has_new_names
            raise

    def _sync_file(self, path: str) -> None:
        try:
            descriptor = self._disk.open(path)
        except WriteFailed as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return  # deleted meanwhile
            raise
        try:
            self._disk.sync_file(descriptor, path)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close all descriptors; nothing is written."""
        for path in list(self._mapped):
            self._unmap(path)
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def _scan(path: str) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_hole(descriptor: int, position: int, size: int) -> bool:
    """Return True if it is known that a file has no data from a position on."""
    if position >= size:
        return True
    try:
        return seek_data(descriptor, position) >= size
    except OSError as error:
        return error.errno == errno.ENXIO


def _data_end(descriptor: int, size: int) -> int:
    """Return the end of the last bytes that are stored: queue files are mostly sparse."""
    try:
        hole = seek_hole(descriptor, 0)
        while hole < size:
            try:
                data = seek_data(descriptor, hole)
            except OSError:
                return hole
            hole = seek_hole(descriptor, data)
    except OSError:
        return size
    return size
