"""The index for writing and live lookups: key -> physical offsets, in files of fixed size.

Kernels put entries into the current file, which is mapped; this module gives them files, splits
the keys of a record over two files where one ends, and walks chains. File format:
``reput.format.index_entry``.

A file's name is its time of creation; two files never share one, however fast they follow each
other, and names only grow (known-bugs.md#index-file-names). Room is reserved ahead of the entries,
so a full disk is an error and not a signal.
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
from reput.store import paths
from reput.store.config import StoreConfig
from reput.store.disk import Disk
from reput.store.files import LocalFolder
from reput.store.hot_state import HotState
from reput.store.index_view import IndexFileView
from reput.store.kernels import control_block as state, hot, tables
from reput.store.mapped_file import MappedFile

SLACK_MS = 1000
"""Entry times are whole seconds: a search begins this much earlier."""

STEPS = 500
"""Entries that a search walks through between two turns of others, half a millisecond."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _File:
    """One index file."""

    name: str
    file: MappedFile
    header: index_entry.Header
    """Of a file that is full; the current one's is in the control block."""
    is_gone: bool = False
    """Whether it was deleted, or unmapped: who walks through it ends there."""
    _view: memoryview | None = None

    def view(self) -> memoryview:
        """Return the file's bytes, which stay mapped until ``let_go``."""
        if self._view is None:
            is_held = self.file.hold()
            assert is_held, f"{self.file.path} is closed"
            self._view = hot.view_at(self.file.address, self.file.size)
        return self._view

    def view_if_there(self) -> memoryview | None:
        """Return the file's bytes; None if it was deleted, or unmapped."""
        return None if self.is_gone else self.view()

    def let_go(self) -> None:
        """Use the file's bytes no more."""
        self.is_gone = True
        if self._view is not None:
            self._view = None
            self.file.release()


class IndexFiles:
    """The index of a store.

    Args:
        root: The store's folder.
        config: Sizes, and whether there is an index at all.
        hot_state: Where the kernels look.
        disk: What writes.
    """

    def __init__(self, root: str, config: StoreConfig, hot_state: HotState, disk: Disk) -> None:
        self._root = root
        self.folder = self._folder = f"{root}/{paths.INDEX}"
        """Where the files are."""
        self._disk = disk
        self._block = hot_state.block
        self._block_address = hot_state.address
        self._slot_count = config.max_hash_slot_num
        self._entry_max = config.max_index_num
        self._size = index_entry.entry_position(self._entry_max, self._slot_count)
        self._files: list[_File] = []
        self._full_unsynced: list[MappedFile] = []
        block = self._block
        block[state.INDEX_IS_ON] = config.message_index_enable
        block[state.INDEX_HAS_TAGS] = config.index_tags
        block[state.INDEX_SLOTS] = self._slot_count
        block[state.INDEX_ENTRIES_MAX] = self._entry_max
        block[state.INDEX_END_OFFSET] = -1
        self.timestamp_of_full = 0
        """End time of the newest file that is full, ms; what the checkpoint may say once synced."""

    # Files ------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find the files; the last one becomes current.

        A file that is cut, or contradicts its own header, is deleted with those behind it: their
        entries follow from the log.

        Raises:
            StoreUnavailable: A file has another size than configured.
        """
        sizes = self._sizes()
        self._refuse_other_sizes(sizes)
        is_broken = False
        last = max(sizes, default="")
        for name, size in sizes.items():
            path = f"{self._folder}/{name}"
            one = self._open(name) if size == self._size and not is_broken else None
            is_empty = size == 0 or (one is not None and one.header.next_entry <= 1)
            if one is not None and not is_empty and self._is_whole(one):
                self._files.append(one)
                continue
            if not is_empty or name != last:
                _log.warning("%s is damaged, or behind one that is; it is made anew", path)
                is_broken = True
            if one is not None:
                one.file.close()
            self._disk.unlink(path)
        if len(self._files) < len(sizes):
            self._disk.sync_folder(self._folder)
        if self._files:
            self._enter_last()

    def current_file(self) -> MappedFile | None:
        """Return the file that entries go to; None if there is none. For any thread."""
        last = self._files[-1:]
        return last[0].file if last else None

    def file_paths(self) -> list[str]:
        """Return the paths of all files. For any thread."""
        return [one.file.path for one in list(self._files)]

    def _sizes(self) -> dict[str, int]:
        try:
            found = {one.name: one.stat().st_size for one in Path(self._folder).iterdir()}
        except FileNotFoundError:
            return {}
        return {name: found[name] for name in sorted(filter(paths.is_index_name, found))}

    def _refuse_other_sizes(self, sizes: dict[str, int]) -> None:
        """Refuse files of other sizes, unless they were cut."""
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
                    "set them to what the file was made with"
                )

    def _open(self, name: str) -> _File:
        file = MappedFile.open(f"{self._folder}/{name}", 0, self._size, self._disk)
        header = index_entry.unpack_header(file.read(0, index_entry.HEADER.size))
        return _File(name, file, header)

    def _is_whole(self, one: _File) -> bool:
        """Whether the first and the last entry are where, and what, the header says."""
        header = one.header
        if not 1 < header.next_entry <= self._entry_max:
            return False
        first, last = (self._entry(one.file, number) for number in (1, header.next_entry - 1))
        slot = index_entry.slot_position(last.key_hash % self._slot_count)
        (newest,) = index_entry.SLOT.unpack(one.file.read(slot, index_entry.SLOT.size))
        return (
            first.physical_offset == header.begin_physical_offset
            and last.physical_offset == header.end_physical_offset
            and int(newest) >= header.next_entry - 1
        )

    def _entry(self, file: MappedFile, number: int) -> index_entry.Entry:
        # Not by ``read``: the current file's map is ahead of what it knows to be written.
        is_held = file.hold()
        assert is_held, f"{file.path} is closed"
        at = file.address + index_entry.entry_position(number, self._slot_count)
        data = hot.bytes_at(at, index_entry.ENTRY.size)
        file.release()
        return index_entry.unpack_entry(data, 0)

    def _is_full(self, one: _File) -> bool:
        return one.header.next_entry >= self._entry_max

    def _enter_last(self) -> None:
        """Make the last file current. If it is full, the next entry makes a new one."""
        full = [one.header.end_timestamp for one in self._files if self._is_full(one)]
        self.timestamp_of_full = full[-1] if full else 0
        last = self._files[-1]
        if not self._is_full(last):
            self._resume(last)
            return
        self._enter(last.file, last.header)
        block = self._block
        block[state.INDEX_NEXT] = last.header.next_entry
        block[state.INDEX_SLOTS_USED] = last.header.slots_used
        block[state.INDEX_LIMIT] = 0

    def _resume(self, last: _File) -> None:
        header = last.header
        last.file.cut(index_entry.entry_position(header.next_entry, self._slot_count))
        self._enter(last.file, header)
        block = self._block
        block[state.INDEX_NEXT] = header.next_entry
        block[state.INDEX_SLOTS_USED] = header.slots_used

    def _enter(self, file: MappedFile, header: index_entry.Header) -> None:
        block = self._block
        block[state.INDEX_ADDRESS] = file.write_address  # 0 for a full file, which is only read
        block[state.INDEX_NEXT] = 1
        block[state.INDEX_SLOTS_USED] = 0
        block[state.INDEX_BEGIN_TIMESTAMP] = header.begin_timestamp
        block[state.INDEX_END_TIMESTAMP] = header.end_timestamp
        block[state.INDEX_BEGIN_OFFSET] = header.begin_physical_offset
        block[state.INDEX_END_OFFSET] = header.end_physical_offset
        self._set_limit(file)

    def _set_limit(self, file: MappedFile) -> None:
        start = index_entry.entry_position(0, self._slot_count)
        self._block[state.INDEX_LIMIT] = (file.reserved - start) // index_entry.ENTRY.size

    def make_room(self, entry_count: int, now_ms: int) -> bool:
        """Make room for the entries of a record; False if the current file ends among them.

        Raises:
            DiskFull: There is no room on disk.
        """
        if not self._files:
            self._add(index_entry.Header(0, 0, 0, -1, 0, 0), now_ms)
        needed = self._block[state.INDEX_NEXT] + entry_count
        if needed > self._entry_max:
            return False
        if needed > self._block[state.INDEX_LIMIT]:
            file = self._files[-1].file
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
        self._files.append(_File(name, file, seed))
        self._enter(file, seed)

    def roll(self, now_ms: int) -> None:
        """Go on in a new file; its times begin where the old one's end, as in Java.

        Raises:
            DiskFull: There is no room for a new file; the old one stays current.
        """
        old = self._files[-1]
        tables.write_index_header(self._block_address)  # it lacks those put since the last call
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
        old.file.written = old.file.size
        self._full_unsynced.append(old.file)
        self.timestamp_of_full = header.end_timestamp

    def _header(self) -> index_entry.Header:
        block = self._block
        return index_entry.Header(
            block[state.INDEX_BEGIN_TIMESTAMP],
            block[state.INDEX_END_TIMESTAMP],
            block[state.INDEX_BEGIN_OFFSET],
            block[state.INDEX_END_OFFSET],
            block[state.INDEX_SLOTS_USED],
            block[state.INDEX_NEXT],
        )

    def put(
        self, keys: Sequence[str], physical_offset: int, store_timestamp: int, now_ms: int
    ) -> None:
        """Put the entries of a record, rolling where a file ends; kernels do so for most records.

        Args:
            keys: As ``index_entry.key_of`` and ``tag_key_of`` make them, in the broker's order.
            physical_offset: Of the record.
            store_timestamp: Of the record, ms.
            now_ms: Names a new file.

        Raises:
            DiskFull: There is no room on disk; the entries so far are put.
        """
        position = 0
        while position < len(keys):
            if not self._files:
                self._add(index_entry.Header(0, 0, 0, -1, 0, 0), now_ms)
            room = self._entry_max - self._block[state.INDEX_NEXT]
            if room <= 0:
                self.roll(now_ms)
                continue
            part = keys[position : position + room]
            self.make_room(len(part), now_ms)
            self._put_part(part, physical_offset, store_timestamp)
            position += len(part)

    def _put_part(self, keys: Sequence[str], physical_offset: int, store_timestamp: int) -> None:
        """Put entries for which there is room: many by a kernel, if they are UTF-8."""
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
        """Physical offset of the last record that is indexed; -1 if none is."""
        return self._block[state.INDEX_END_OFFSET]

    @property
    def end_timestamp(self) -> int:
        """Store time of that record, ms; 0 if there is none."""
        return self._block[state.INDEX_END_TIMESTAMP]

    @property
    def names(self) -> list[str]:
        """Names of the files, oldest first."""
        return [one.name for one in self._files]

    def drop_behind(self, name: str) -> None:
        """Delete the files that are newer than one that is missing."""
        self._keep(sum(1 for one in self._files if one.name < name))

    def drop_unproven(self, timestamp_ms: int | None, log_end: int) -> None:
        """Delete files that are not known to be on disk, or reach beyond the end of the log.

        Entries must be put again from ``end_physical_offset`` on (known-bugs.md#lost-index-files).

        Args:
            timestamp_ms: What the checkpoint says of full files; None if all files are proven.
            log_end: Physical offset where the log ends (known-bugs.md#positions-after-a-cut).
        """
        kept = len(self._files) if timestamp_ms is None else self._count_proven(timestamp_ms)
        while kept and self._files[kept - 1].header.end_physical_offset >= log_end:
            kept -= 1
        self._keep(kept)

    def _keep(self, kept: int) -> None:
        if kept == len(self._files):
            return
        while len(self._files) > kept:
            self._files[-1].let_go()
            self._files.pop().file.destroy(now_ms=0)
        self._disk.sync_folder(self._folder)
        block = self._block
        block[state.INDEX_ADDRESS] = 0
        block[state.INDEX_END_OFFSET] = -1
        block[state.INDEX_NEXT] = 0
        self.timestamp_of_full = 0
        if self._files:
            self._enter_last()

    def _count_proven(self, timestamp_ms: int) -> int:
        """Count the files that were full and durable when the checkpoint got its index time.

        It is the end time of the last of them. That others are not newer proves nothing: a clock
        may have gone back, and many records have the same time.
        """
        full = itertools.takewhile(self._is_full, self._files)
        ends = [one.header.end_timestamp for one in full]
        if timestamp_ms in ends:
            return ends.index(timestamp_ms) + 1
        return sum(1 for _ in itertools.takewhile(lambda end: end < timestamp_ms, ends))

    def entries_of_last_record(self) -> int:
        """Count the entries of the record that was indexed last."""
        count = 0
        for one, header in self._newest_first():
            for number in range(header.next_entry - 1, 0, -1):
                if self._entry(one.file, number).physical_offset != self.end_physical_offset:
                    return count
                count += 1
        return count

    # Lookups ----------------------------------------------------------------------------------

    def newest_first(self, index_key: str, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield where messages may stand that carry a key and were stored in a time range.

        Newest first, without doubles. Each must be checked on the message
        (known-bugs.md#hash-collisions). Files are chosen by whether their times overlap the range
        (known-bugs.md#index-overlap), entries by their second; the first entry of a file, whose
        time is relative to another file, is always proposed (known-bugs.md#index-first-entry).

        A chain is as long as clients have made it: None is yielded after each ``STEPS`` entries
        that were walked through, so that others may have their turn. Files may come and go then.
        """
        key_hash = index_entry.key_hash(index_key)
        slot = index_entry.slot_position(key_hash % self._slot_count)
        last = -1
        steps = 0
        for one, header in list(self._newest_first()):
            is_before = header.end_timestamp < begin_ms - SLACK_MS
            if header.entry_count == 0 or header.begin_timestamp > end_ms + SLACK_MS or is_before:
                continue
            view = one.view_if_there()
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
                    if begin_ms - SLACK_MS < about_ms <= end_ms or number == 1:
                        last = physical_offset
                        yield physical_offset
                        view = one.view_if_there()  # it may be unmapped now
                if steps % STEPS == 0:
                    yield None
                    view = one.view_if_there()
                if view is None:
                    break
                newer, number = number, previous

    def _newest_first(self) -> Iterator[tuple[_File, index_entry.Header]]:
        for i in range(len(self._files) - 1, -1, -1):
            one = self._files[i]
            yield one, self._header() if i == len(self._files) - 1 else one.header

    # Durability and expiry --------------------------------------------------------------------

    def sync(self) -> int:
        """Make all entries durable; return the end time of the newest full file, ms.

        May run in a worker thread.
        """
        timestamp = self.timestamp_of_full  # first: its file is on the list by then, or synced
        while self._full_unsynced:
            self._full_unsynced[0].flush()
            self._full_unsynced.pop(0)
        # Not flushed: it may be the next one by now, and the header follows its entries.
        for one in self._files[-1:]:
            one.file.sync()
        return timestamp

    def delete_before(self, log_min: int) -> int:
        """Delete files, but the last, whose records are all gone from the log; return how many.

        After a crash they may be there again, and are deleted again.

        Raises:
            WriteFailed: A file cannot be deleted; call it again.
        """
        deleted = 0
        while len(self._files) > 1 and self._files[0].header.end_physical_offset < log_min:
            self._files[0].let_go()
            self._files[0].file.destroy(now_ms=0)
            self._files.pop(0)
            deleted += 1
        return deleted

    def close(self) -> None:
        """Unmap all files."""
        self._block[state.INDEX_ADDRESS] = 0
        for one in self._files:
            one.let_go()
            one.file.close()
        self._files.clear()


def _name(now_ms: int) -> str:
    when = datetime.datetime.fromtimestamp(now_ms / 1000).astimezone()
    return f"{when:%Y%m%d%H%M%S}{now_ms % 1000:03d}"


def _following(name: str) -> str:
    return f"{int(name) + 1:017d}"
