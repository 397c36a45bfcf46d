"""The index for writing and live lookups: key -> physical offsets, in files of fixed size.

Kernels add entries to the current file, which is mapped. This module creates the files, splits the
keys of a record over two files where one ends, and follows chains. File format:
``reput.format.index_entry``.

A file is named by its creation time. Names are unique and ascending, however fast files follow each
other (known-bugs.md#index-file-names). Space is reserved before entries are written, so a full disk
is an error and not a signal.
"""

import datetime
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reput.errors import CorruptRecord, StoreUnavailable
from reput.format import index_entry
from reput.format.kernels.rows import rows_of, start_of
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import LocalFolder
from reput.store.hot_state import HotState
from reput.store.index.index_view import IndexFileView
from reput.store.kernels import hot, tables
from reput.store.kernels.control_block import IndexFileRow
from reput.store.log.mapped_file import MappedFile

STEPS = 500
"""Entries that a search reads before it yields to other work: half a millisecond."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _File:
    """One index file."""

    name: str
    mapped: MappedFile
    header: index_entry.Header
    """Header of a full file; that of the current file is in the control block."""
    is_gone: bool = False
    """True if the file was deleted or unmapped: searches that read it end there."""
    _view: memoryview | None = None

    def view(self) -> memoryview:
        """Return the file's bytes, which stay mapped until ``release``."""
        if self._view is None:
            is_held = self.mapped.hold()
            assert is_held, f"{self.mapped.path} is closed"
            self._view = hot.view_at(self.mapped.address, self.mapped.size)
        return self._view

    def view_if_there(self) -> memoryview | None:
        """Return the file's bytes; None if it was deleted or unmapped."""
        return None if self.is_gone else self.view()

    def release(self) -> None:
        """Release the file's bytes."""
        self.is_gone = True
        if self._view is not None:
            self._view = None
            self.mapped.release()


class IndexFiles:
    """The index of a store.

    Args:
        root: Folder of the store.
        config: Sizes, and whether there is an index.
        hot_state: State shared with kernels.
        disk: Writes the files.
    """

    def __init__(self, root: str, config: StoreConfig, hot_state: HotState, disk: Disk) -> None:
        self._root = root
        self.folder = self._folder = f"{root}/{paths.INDEX}"
        """Path of the folder with the files."""
        self._disk = disk
        self._block = hot_state.block
        self._block_address = hot_state.address
        self._slot_count = config.max_hash_slot_num
        self._entry_max = config.max_index_num
        self._size = index_entry.entry_position(self._entry_max, self._slot_count)
        self._files: list[_File] = []
        self._full_unsynced: list[MappedFile] = []
        self._rows = rows_of(IndexFileRow, 0)
        self._forget_rows()
        block = self._block
        block.index_is_on = config.message_index_enable
        block.index_has_tags = config.index_tags
        block.index_slots = self._slot_count
        block.index_entries_max = self._entry_max
        block.index_end_offset = -1
        self.timestamp_of_full = 0
        """End time of the newest full file, in ms; once synced, it goes to the checkpoint."""

    # Files ------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find the files; the last one becomes the current file.

        A file that is truncated, or contradicts its header, is deleted together with the later
        ones: their entries are derived from the log.

        Raises:
            StoreUnavailable: A file has another size than configured.
        """
        self._forget_rows()
        sizes = self._sizes()
        self._refuse_other_sizes(sizes)
        is_broken = False
        last = max(sizes, default="")
        for name, size in sizes.items():
            path = f"{self._folder}/{name}"
            file = self._open(name) if size == self._size and not is_broken else None
            is_empty = size == 0 or (file is not None and file.header.next_entry <= 1)
            if file is not None and not is_empty and self._is_whole(file):
                self._files.append(file)
                continue
            if not is_empty or name != last:
                _log.warning("%s is damaged, or later than a damaged file; it is rebuilt", path)
                is_broken = True
            if file is not None:
                file.mapped.close()
            self._disk.unlink(path)
        if len(self._files) < len(sizes):
            self._disk.sync_folder(self._folder)
        if self._files:
            self._enter_last()

    def current_file(self) -> MappedFile | None:
        """Return the file that entries are added to; None if there is none. For any thread."""
        last = self._files[-1:]
        return last[0].mapped if last else None

    def file_paths(self) -> list[str]:
        """Return the paths of all files. For any thread."""
        return [file.mapped.path for file in list(self._files)]

    def _sizes(self) -> dict[str, int]:
        try:
            sizes = {file.name: file.stat().st_size for file in Path(self._folder).iterdir()}
        except FileNotFoundError:
            return {}
        return {name: sizes[name] for name in sorted(filter(paths.is_index_name, sizes))}

    def _refuse_other_sizes(self, sizes: dict[str, int]) -> None:
        """Raise an error for files of other sizes, unless they are truncated."""
        has_right = self._size in sizes.values()
        folder = LocalFolder(self._root, Path(self._root))
        others = {name: size for name, size in sizes.items() if size not in (0, self._size)}
        for name, size in others.items():
            try:
                is_cut = has_right or IndexFileView(folder, name, size, 0).slot_count == 0
            except CorruptRecord:
                is_cut = True
            if size > self._size or not is_cut:
                raise StoreUnavailable(
                    f"{self._folder}/{name} has {size} bytes, but with maxHashSlotNum="
                    f"{self._slot_count} and maxIndexNum={self._entry_max} it has {self._size}; "
                    "set them to the values that the file was created with"
                )

    def _open(self, name: str) -> _File:
        file = MappedFile.open(f"{self._folder}/{name}", 0, self._size, self._disk)
        header = index_entry.unpack_header(file.read(0, index_entry.HEADER.size))
        return _File(name, file, header)

    def _is_whole(self, index_file: _File) -> bool:
        """Return True if the first and the last entry agree with the header."""
        header = index_file.header
        if not 1 < header.next_entry <= self._entry_max:
            return False
        first, last = (
            self._entry(index_file.mapped, number) for number in (1, header.next_entry - 1)
        )
        slot = index_entry.slot_position(last.key_hash % self._slot_count)
        (newest,) = index_entry.SLOT.unpack(index_file.mapped.read(slot, index_entry.SLOT.size))
        return (
            first.physical_offset == header.begin_physical_offset
            and last.physical_offset == header.end_physical_offset
            and int(newest) >= header.next_entry - 1
        )

    def _entry(self, file: MappedFile, number: int) -> index_entry.Entry:
        # Not by ``read``: the mapped memory may be ahead of ``written``.
        is_held = file.hold()
        assert is_held, f"{file.path} is closed"
        address = file.address + index_entry.entry_position(number, self._slot_count)
        data = hot.bytes_at(address, index_entry.ENTRY.size)
        file.release()
        return index_entry.unpack_entry(data, 0)

    def _is_full(self, file: _File) -> bool:
        return file.header.next_entry >= self._entry_max

    def _enter_last(self) -> None:
        """Make the last file the current one. If it is full, the next entry creates a new file."""
        full = [file.header.end_timestamp for file in self._files if self._is_full(file)]
        self.timestamp_of_full = full[-1] if full else 0
        last = self._files[-1]
        if not self._is_full(last):
            self._resume(last)
            return
        self._enter(last.mapped, last.header)
        block = self._block
        block.index_next = last.header.next_entry
        block.index_slots_used = last.header.slots_used
        block.index_limit = 0

    def _resume(self, last: _File) -> None:
        header = last.header
        last.mapped.cut(index_entry.entry_position(header.next_entry, self._slot_count))
        self._enter(last.mapped, header)
        block = self._block
        block.index_next = header.next_entry
        block.index_slots_used = header.slots_used

    def _enter(self, file: MappedFile, header: index_entry.Header) -> None:
        block = self._block
        block.index_address = file.write_address  # 0 for a full file, which is only read
        block.index_next = 1
        block.index_slots_used = 0
        block.index_begin_timestamp = header.begin_timestamp
        block.index_end_timestamp = header.end_timestamp
        block.index_begin_offset = header.begin_physical_offset
        block.index_end_offset = header.end_physical_offset
        self._set_limit(file)

    def _set_limit(self, file: MappedFile) -> None:
        start = index_entry.entry_position(0, self._slot_count)
        self._block.index_limit = (file.reserved - start) // index_entry.ENTRY.size

    def make_room(self, entry_count: int, now_ms: int) -> bool:
        """Reserve space for the entries of a record; return False if the file has no room.

        Raises:
            DiskFull: There is no space on the disk.
        """
        if not self._files:
            self._add(index_entry.Header(0, 0, 0, -1, 0, 0), now_ms)
        needed = self._block.index_next + entry_count
        if needed > self._entry_max:
            return False
        if needed > self._block.index_limit:
            file = self._files[-1].mapped
            file.reserve(index_entry.entry_position(needed, self._slot_count))
            self._set_limit(file)
        return True

    def _add(self, seed: index_entry.Header, now_ms: int) -> None:
        self._disk.make_folder(self._folder)
        name = _name(now_ms)
        if self._files and name <= self._files[-1].name:
            name = _following(self._files[-1].name)
        path = f"{self._folder}/{name}"
        file = MappedFile.create(path, 0, self._size, self._disk)
        try:
            file.reserve(index_entry.entry_position(1, self._slot_count))
        except BaseException:
            file.destroy(now_ms=0)
            raise
        self._forget_rows()
        self._files.append(_File(name, file, seed))
        self._enter(file, seed)

    def roll(self, now_ms: int) -> None:
        """Continue in a new file; its times begin at the end of the old file's, as in Java.

        Raises:
            DiskFull: There is no space for a new file; the old one stays the current one.
        """
        old = self._files[-1]
        tables.write_index_header(self._block_address)  # it lacks the last entries
        header = self._header()
        seed = index_entry.Header(
            header.end_timestamp,
            header.end_timestamp,
            header.end_physical_offset,
            header.end_physical_offset,
            0,
            0,
        )
        self._add(seed, now_ms)
        old.header = header
        old.mapped.written = old.mapped.size
        self._full_unsynced.append(old.mapped)
        self.timestamp_of_full = header.end_timestamp

    def _header(self) -> index_entry.Header:
        block = self._block
        return index_entry.Header(
            block.index_begin_timestamp,
            block.index_end_timestamp,
            block.index_begin_offset,
            block.index_end_offset,
            block.index_slots_used,
            block.index_next,
        )

    def put(
        self, keys: Sequence[str], physical_offset: int, store_timestamp: int, now_ms: int
    ) -> None:
        """Add the entries of a record, split over two files if one ends; kernels add most entries.

        Args:
            keys: Keys made by ``index_entry.key_of`` and ``tag_key_of``, in the broker's order.
            physical_offset: Physical offset of the record.
            store_timestamp: Store time of the record, in ms.
            now_ms: Current time in ms, for the name of a new file.

        Raises:
            DiskFull: There is no space on the disk; the entries before that are added.
        """
        position = 0
        while position < len(keys):
            if not self._files:
                self._add(index_entry.Header(0, 0, 0, -1, 0, 0), now_ms)
            room = self._entry_max - self._block.index_next
            if room <= 0:
                self.roll(now_ms)
                continue
            part = keys[position : position + room]
            self.make_room(len(part), now_ms)
            self._put_part(part, physical_offset, store_timestamp)
            position += len(part)

    def _put_part(self, keys: Sequence[str], physical_offset: int, store_timestamp: int) -> None:
        """Add entries with space reserved: several by a kernel, if they are UTF-8."""
        try:
            texts = [key.encode() for key in keys] if len(keys) > 1 else None
        except UnicodeEncodeError:
            texts = None
        if texts is None:
            for key in keys:
                tables.put_entry(self._block_address, key, physical_offset, store_timestamp)
            tables.write_index_header(self._block_address)
            return
        sizes = np.array([len(text) for text in texts], np.int32)
        data = np.frombuffer(b"".join(texts), np.uint8)
        hot.put_texts(
            self._block_address, hot.address_of(data), hot.address_of(sizes), len(keys),
            physical_offset, store_timestamp,
        )  # fmt: skip

    # Recovery ---------------------------------------------------------------------------------

    @property
    def end_physical_offset(self) -> int:
        """Physical offset of the last indexed record; -1 if there is none."""
        return self._block.index_end_offset

    @property
    def end_timestamp(self) -> int:
        """Store time of the last indexed record, in ms; 0 if there is none."""
        return self._block.index_end_timestamp

    @property
    def names(self) -> list[str]:
        """Names of the files, oldest first."""
        return [file.name for file in self._files]

    def drop_after(self, name: str) -> None:
        """Delete the files that are newer than a missing one."""
        self._keep(sum(1 for file in self._files if file.name < name))

    def drop_unproven(self, timestamp_ms: int | None, log_end: int) -> None:
        """Delete files that may not be on disk, or have offsets after the log's end.

        Entries from ``end_physical_offset`` on must be added again
        (known-bugs.md#lost-index-files).

        Args:
            timestamp_ms: Index time of the checkpoint, for full files; None if all are on disk.
            log_end: Physical offset of the log's end (known-bugs.md#positions-after-a-cut).
        """
        kept = len(self._files) if timestamp_ms is None else self._count_proven(timestamp_ms)
        while kept and self._files[kept - 1].header.end_physical_offset >= log_end:
            kept -= 1
        self._keep(kept)

    def _keep(self, kept: int) -> None:
        if kept == len(self._files):
            return
        self._forget_rows()
        while len(self._files) > kept:
            self._files[-1].release()
            self._files.pop().mapped.destroy(now_ms=0)
        self._disk.sync_folder(self._folder)
        block = self._block
        block.index_address = 0
        block.index_end_offset = -1
        block.index_next = 0
        self.timestamp_of_full = 0
        if self._files:
            self._enter_last()

    def _count_proven(self, timestamp_ms: int) -> int:
        """Count the files that were full and durable when the checkpoint recorded its index time.

        That time is the end time of the last of them. An end time that is not later proves nothing:
        a clock may have been set back, and many records have the same time.
        """
        full = itertools.takewhile(self._is_full, self._files)
        ends = [file.header.end_timestamp for file in full]
        if timestamp_ms in ends:
            return ends.index(timestamp_ms) + 1
        return sum(1 for _ in itertools.takewhile(lambda end: end < timestamp_ms, ends))

    def entries_of_last_record(self) -> int:
        """Count the entries of the last indexed record."""
        count = 0
        for file, header in self._newest_first():
            for number in range(header.next_entry - 1, 0, -1):
                if self._entry(file.mapped, number).physical_offset != self.end_physical_offset:
                    return count
                count += 1
        return count

    # Lookups ----------------------------------------------------------------------------------

    def newest_first(self, index_key: str, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield the physical offsets of messages that may have a key and a store time in a range.

        Newest first, without duplicates. The caller must check each message
        (known-bugs.md#hash-collisions). Files are selected if their times overlap the range
        (known-bugs.md#index-overlap), entries by their second. The first entry of a file is always
        yielded, since its time is relative to another file (known-bugs.md#index-first-entry).

        Clients determine the length of a chain: None is yielded after each ``STEPS`` entries, so
        that other work can be done. Files may be created and deleted then.
        """
        key_hash = index_entry.key_hash(index_key)
        slot = index_entry.slot_position(key_hash % self._slot_count)
        last = -1
        steps = 0
        for file, header in list(self._newest_first()):
            is_before = header.end_timestamp < begin_ms - index_entry.SLACK_MS
            is_after = header.begin_timestamp > end_ms + index_entry.SLACK_MS
            if header.entry_count == 0 or is_after or is_before:
                continue
            view = file.view_if_there()
            if view is None:
                continue
            (number,) = index_entry.SLOT.unpack_from(view, slot)
            newer = header.next_entry
            while 0 < number < newer:
                entry_hash, physical_offset, seconds, previous = index_entry.ENTRY.unpack_from(
                    view, index_entry.entry_position(number, self._slot_count)
                )
                steps += 1
                if entry_hash == key_hash and physical_offset != last:
                    about_ms = header.begin_timestamp + 1000 * seconds
                    if begin_ms - index_entry.SLACK_MS < about_ms <= end_ms or number == 1:
                        last = physical_offset
                        yield physical_offset
                        view = file.view_if_there()  # it may be unmapped now
                if steps % STEPS == 0:
                    yield None
                    view = file.view_if_there()
                if view is None:
                    break
                newer, number = number, previous

    def publish_rows(self) -> None:
        """Give kernels the rows of all files, unless they have them."""
        block = self._block
        if block.index_file_count >= 0:
            return
        self._rows = rows_of(IndexFileRow, len(self._files))
        for row, file in zip(self._rows, self._files, strict=True):
            row.map = hot.address_of(np.frombuffer(file.view(), np.uint8))
            row.begin_ms = file.header.begin_timestamp
            row.end_ms = file.header.end_timestamp
            row.next_entry = file.header.next_entry
        block.index_files = start_of(self._rows)
        block.index_file_count = len(self._files)

    def _forget_rows(self) -> None:
        """Take the rows from kernels, before files are added or deleted."""
        self._block.index_file_count = -1

    def _newest_first(self) -> Iterator[tuple[_File, index_entry.Header]]:
        for i in range(len(self._files) - 1, -1, -1):
            file = self._files[i]
            yield file, self._header() if i == len(self._files) - 1 else file.header

    # Durability and expiry --------------------------------------------------------------------

    def sync(self) -> int:
        """Make all entries durable; return the end time of the newest full file, in ms.

        May run in a worker thread.
        """
        timestamp = self.timestamp_of_full  # first: its file is on the list now, or synced
        while self._full_unsynced:
            self._full_unsynced[0].flush()
            self._full_unsynced.pop(0)
        # Not by ``flush``: a new file may be current by now, and headers follow their entries.
        for file in self._files[-1:]:
            file.mapped.sync()
        return timestamp

    def delete_before(self, log_min: int) -> int:
        """Delete files, except the last, whose records have all left the log; return their number.

        After a crash they may exist again, and are deleted again.

        Raises:
            WriteFailed: A file cannot be deleted; call it again.
        """
        deleted = 0
        while len(self._files) > 1 and self._files[0].header.end_physical_offset < log_min:
            self._forget_rows()
            self._files[0].release()
            self._files[0].mapped.destroy(now_ms=0)
            self._files.pop(0)
            deleted += 1
        return deleted

    def close(self) -> None:
        """Unmap all files."""
        self._block.index_address = 0
        self._forget_rows()
        for file in self._files:
            file.release()
            file.mapped.close()
        self._files.clear()


def _name(now_ms: int) -> str:
    when = datetime.datetime.fromtimestamp(now_ms / 1000).astimezone()
    return f"{when:%Y%m%d%H%M%S}{now_ms % 1000:03d}"


def _following(name: str) -> str:
    return f"{int(name) + 1:017d}"
