"""The index against the log: its files, keys without entries, entries without keys."""

import bisect
import dataclasses
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, NotInStore
from reput.format import index_entry, kernels, sys_flag as flags
from reput.store import paths
from reput.store.index_view import ENTRY_TYPE, IndexFileView
from reput.store.reader import Condition, StoreReader
from reput.store.verify import findings, runs
from reput.store.verify.findings import Kind, Ledger, Progress, Severity
from reput.store.verify.log import Log
from reput.store.verify.runs import NO_OFFSETS, Mask, Offsets

_ENTRIES_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class _EntryBlock:
    """Some entries of an index file, and where they point."""

    file: int
    first: int
    count: int
    low: int
    high: int
    """Smallest and largest physical offset."""


@dataclass(frozen=True, slots=True)
class _Keyless:
    """Messages in a row that the index does not find by all of their keys."""

    first: int
    last: int
    """Physical offsets of the first and the last one."""
    count: int
    reaches_start: bool
    """No message with keys comes before in what was compared at once."""
    reaches_end: bool


class Index:
    """The index against the log."""

    def __init__(self, reader: StoreReader, ledger: Ledger) -> None:
        self._reader = reader
        self._ledger = ledger
        self._lock = threading.Lock()
        self._files: list[IndexFileView] = []
        """Those that can be read and hold entries."""
        self._blocks: list[_EntryBlock] = []
        self._strays: defaultdict[int, list[Offsets]] = defaultdict(list)
        """By file: where entries point that no message has the key of."""
        self._keyless: list[_Keyless] = []
        self._first_found: list[int] = []
        """Of all that was compared at once, the first message that is found by its keys."""
        self._before_count = 0
        self.entry_count = 0

    @property
    def _start(self) -> int:
        return min(file.header.begin_physical_offset for file in self._files)

    @property
    def _end(self) -> int:
        return max(file.header.end_physical_offset for file in self._files)

    # Files

    def check_files(self, progress: Progress) -> None:
        """Check each file in itself, and note where its entries point. Call before the walk."""
        views = self._reader.index.files
        usual = runs.usual(view.size for view in views)
        for done, view in enumerate(views):
            path = f"{paths.INDEX}/{view.name}"
            if view.size != usual:
                text = f"has {view.size} bytes, others {usual}"
                self._ledger.add(Severity.WARNING, Kind.INDEX_FILE, path, text)
            try:
                count = self._check_file(path, view)
            except CorruptRecord as error:
                count = 0
                self._ledger.add(Severity.DAMAGE, Kind.INDEX_FILE, path, error.reason)
            self._ledger.add_file(path, view.size, count)
            progress("index", done + 1, len(views))
        if not self._files and self._reader.log.files:
            text = "holds no entries: messages are not found by key"
            self._ledger.add(Severity.NOTE, Kind.INDEX_ABSENT, paths.INDEX, text)

    def _check_file(self, path: str, view: IndexFileView) -> int:
        count = view.header.entry_count
        if not count:
            return 0
        chains = Chains(view.slot_count)
        for first in range(1, count + 1, _ENTRIES_AT_ONCE):
            entries = entries_of(view, first, min(_ENTRIES_AT_ONCE, count + 1 - first))
            chains.follow(first, entries)
            places = entries["physical_offset"]
            low, high = int(places.min()), int(places.max())
            self._blocks.append(_EntryBlock(len(self._files), first, len(entries), low, high))
        self._files.append(view)
        self.entry_count += count
        self._check_header(path, view)
        self._check_chains(path, view, chains)
        return count

    def _check_header(self, path: str, view: IndexFileView) -> None:
        header = view.header
        for name, place, timestamp in (
            ("first", header.begin_physical_offset, header.begin_timestamp),
            ("last", header.end_physical_offset, header.end_timestamp),
        ):
            try:
                stored_at = self._reader.log.store_timestamp_at(place)
            except (CorruptRecord, NotInStore):
                continue  # expired, cut off, or damage that is reported as such
            if stored_at != timestamp:
                text = f"the header's time of the {name} message is not that of the message"
                self._ledger.add(Severity.WARNING, Kind.INDEX_FILE, path, text)

    def _check_chains(self, path: str, view: IndexFileView, chains: "Chains") -> None:
        start = index_entry.slot_position(0)
        size = index_entry.SLOT.size * len(chains.newest)
        slots = np.frombuffer(view.folder.read(path, start, size), ">i4")
        broken = chains.broken_count + int((slots != chains.newest).sum())
        if broken:
            text = f"{broken} links of its hash chains are wrong: keys are not found"
            self._ledger.add(Severity.DAMAGE, Kind.INDEX_CHAIN, path, text, count=broken)
        in_use, counted = int((slots != 0).sum()), view.header.slots_used
        if counted not in (in_use, view.header.entry_count, view.header.next_entry):
            text = f"the header counts {counted} slots in use, there are {in_use}"
            self._ledger.add(Severity.NOTE, Kind.INDEX_FILE, path, text)

    # Against the log

    def compare(self, columns: kernels.Columns | None, begin: int, end: int) -> None:
        """Compare the keys of messages in ``[begin, end)`` with the entries that point there."""
        if not self._files:
            return
        places, hashes, files = self._entries_between(begin, end)
        is_stray = np.ones(len(places), np.bool_)
        if columns is not None:
            entries = pairs_of(places, hashes, begin)
            key_places, key_hashes = keys_of(columns)
            keys = pairs_of(key_places, key_hashes, begin)
            self._keep_keyless(key_places, runs.is_in(keys, runs.distinct(entries)))
            is_stray = ~runs.is_in(entries, runs.distinct(keys))
            if is_stray.any():  # 5.4 and later index tags, too
                tags = pairs_of(*keys_of(columns, with_tags=True), begin)
                is_stray &= ~runs.is_in(entries, runs.distinct(tags))
        with self._lock:
            for number in np.unique(files[is_stray]):
                self._strays[number].append(places[is_stray & (files == number)])

    def _entries_between(
        self, begin: int, end: int
    ) -> tuple[Offsets, Offsets, npt.NDArray[np.int32]]:
        """Return where entries point, their hashes, and the number of their file."""
        places, hashes, files = [NO_OFFSETS], [NO_OFFSETS], [np.empty(0, np.int32)]
        for block in self._blocks:
            if block.low < end and block.high >= begin:
                entries = entries_of(self._files[block.file], block.first, block.count)
                at = entries["physical_offset"].astype(np.int64)
                inside = (at >= begin) & (at < end)
                places.append(at[inside])
                hashes.append(entries["key_hash"][inside].astype(np.int64))
                files.append(np.full(len(places[-1]), block.file, np.int32))
        return np.concatenate(places), np.concatenate(hashes), np.concatenate(files)

    def _keep_keyless(self, key_places: Offsets, is_found: Mask) -> None:
        """Note messages of which a key has no entry."""
        messages = runs.distinct(key_places)
        lacks = runs.is_in(messages, runs.distinct(key_places[~is_found]))
        is_before = messages < self._start
        found = messages[~lacks & ~is_before]
        with self._lock:
            self._before_count += int((lacks & is_before).sum())
            self._first_found += found[:1].tolist()
            for start, count in runs.of(lacks & ~is_before):
                end = start + count
                first, last = int(messages[start]), int(messages[end - 1])
                run = _Keyless(first, last, count, start == 0, end == len(messages))
                self._keyless.append(run)

    def check(self, log: Log) -> None:
        """Report keys without entries and entries without keys. Call after the walk."""
        count = self._before_count
        if count:
            text = f"begins at physical offset {self._start}; {count} messages are before that"
            self._ledger.add(Severity.NOTE, Kind.NOT_INDEXED, paths.INDEX, text, count=count)
        joined = self._joined()
        for run in joined[: findings.RUNS_MAX]:
            self._report_keyless(run)
        rest = sum(run.count for run in joined[findings.RUNS_MAX :])
        if rest:
            text = f"{rest} more messages are not found by a key of theirs"
            self._ledger.add(Severity.DAMAGE, Kind.KEY_MISSING, paths.INDEX, text, count=rest)
        for number, view in enumerate(self._files):
            self._report_strays(f"{paths.INDEX}/{view.name}", number, log)

    def _joined(self) -> list[_Keyless]:
        """Join runs between which no message is found by its keys."""
        found = sorted(self._first_found)
        joined: list[_Keyless] = []
        for run in sorted(self._keyless, key=lambda one: one.first):
            last = joined[-1] if joined else None
            if last is not None and last.reaches_end and run.reaches_start:
                is_same = bisect.bisect(found, last.last) == bisect.bisect(found, run.first)
            else:
                is_same = False
            if last is not None and is_same:
                count = last.count + run.count
                joined[-1] = dataclasses.replace(run, first=last.first, count=count)
            else:
                joined.append(run)
        return joined

    def _report_keyless(self, run: _Keyless) -> None:
        span = f"{run.count} messages from physical offset {run.first} to {run.last}"
        path = paths.INDEX
        for view in self._files:
            if view.header.begin_physical_offset <= run.first <= view.header.end_physical_offset:
                path = f"{paths.INDEX}/{view.name}"
        if run.first > self._end and self._reader.state.condition is not Condition.CLEAN:
            severity, kind, text = Severity.NOTE, Kind.NOT_INDEXED, f"{span}: not indexed yet"
        elif self._is_between_files(run):
            severity, kind = Severity.WARNING, Kind.NOT_INDEXED
            text = f"{span}: in no index file; after a crash brokers do not write all of them again"
        else:
            severity, kind = Severity.DAMAGE, Kind.KEY_MISSING
            text = f"{span}: not found by a key of theirs"
        length = run.last - run.first + 1
        self._ledger.add(
            severity, kind, path, text, physical_offset=run.first, length=length, count=run.count
        )

    def _is_between_files(self, run: _Keyless) -> bool:
        """Whether one index file ends before a run, and the next begins behind it."""
        headers = [view.header for view in self._files]
        is_in_one = any(
            one.begin_physical_offset <= run.last and one.end_physical_offset > run.first
            for one in headers
        )
        return not is_in_one and self._start < run.first <= run.last < self._end

    def _report_strays(self, path: str, number: int, log: Log) -> None:
        """Report entries that point at no message with their key; expired ones are no fault."""
        places = np.concatenate([NO_OFFSETS, *self._strays[number], *self._behind(number)])
        is_stale = places >= log.end
        is_in_hole = ~is_stale & log.in_hole(places)
        for severity, kind, mask, text in (
            (Severity.NOTE, Kind.ENTRY_STALE, is_stale, "behind the end of the log"),
            (Severity.WARNING, Kind.ENTRY_IN_HOLE, is_in_hole, "into damage of the log"),
            (
                Severity.WARNING,
                Kind.ENTRY_WRONG,
                ~(is_stale | is_in_hole),
                "at no message with their key",
            ),
        ):
            count = int(mask.sum())
            if count:
                what = f"{'1 entry points' if count == 1 else f'{count} entries point'} {text}"
                self._ledger.add(severity, kind, path, what, count=count)

    def _behind(self, number: int) -> Iterator[Offsets]:
        """Yield where entries of a file point, if that is behind all that was compared."""
        stop = self._reader.end_offset
        for block in self._blocks:
            if block.file == number and block.high >= stop:
                entries = entries_of(self._files[number], block.first, block.count)
                places = entries["physical_offset"].astype(np.int64)
                yield places[places >= stop]


def entries_of(view: IndexFileView, first: int, count: int) -> npt.NDArray[np.void]:
    """Return some entries of an index file."""
    position = index_entry.entry_position(first, view.slot_count)
    path = f"{paths.INDEX}/{view.name}"
    data = view.folder.read(path, position, count * ENTRY_TYPE.itemsize)
    return np.frombuffer(data, ENTRY_TYPE, len(data) // ENTRY_TYPE.itemsize)


def keys_of(columns: kernels.Columns, *, with_tags: bool = False) -> tuple[Offsets, Offsets]:
    """Return (physical offset, hash) of each key that a broker indexes."""
    rows, hashes = columns.key_hashes(with_tags=with_tags)
    transaction = columns.numbers("sys_flag") & flags.TRANSACTION_MASK
    indexed = transaction[rows] != flags.TRANSACTION_ROLLBACK
    places = columns.numbers("physical_offset")[rows[indexed]]
    return places, hashes[indexed].astype(np.int64)


def pairs_of(places: Offsets, hashes: Offsets, begin: int) -> Offsets:
    """Return place and key hash as one number each: a log file takes no more than 2 GiB."""
    pairs: Offsets = (places - begin) << 31 | hashes & 0x7FFFFFFF
    return pairs


class Chains:
    """The hash chains of an index file, followed from its first entry on."""

    def __init__(self, slot_count: int) -> None:
        self.newest = np.zeros(slot_count, np.int32)
        """What each slot must hold."""
        self.broken_count = 0

    def follow(self, first: int, entries: npt.NDArray[np.void]) -> None:
        """Take the next entries: each must name the one before it in its slot."""
        hashes = entries["key_hash"].astype(np.int64)
        slots = np.abs(hashes) % len(self.newest)
        order = np.argsort(slots, kind="stable")
        slots, numbers = slots[order], first + order
        starts = np.flatnonzero(np.diff(slots, prepend=-1))
        expected = np.roll(numbers, 1)
        expected[starts] = self.newest[slots[starts]]
        is_broken = (entries["previous"][order] != expected) | (hashes[order] < 0)
        self.broken_count += int(is_broken.sum())
        ends = np.append(starts[1:], len(slots)) - 1
        self.newest[slots[ends]] = numbers[ends]
