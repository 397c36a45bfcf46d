"""The index against the log: its files, keys without entries, entries without keys."""

import bisect
import dataclasses
import enum
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, NotInStore
from reput.format import index_entry, kernels, sys_flag as flags
from reput.store.files import paths
from reput.store.index.index_view import ENTRY_TYPE, IndexFileView
from reput.store.reader import Condition, StoreReader
from reput.store.verify import findings, number_runs
from reput.store.verify.findings import FindingKind, Ledger, Progress, Severity
from reput.store.verify.log_check import LogCheck
from reput.store.verify.number_runs import NO_OFFSETS, Mask, Offsets

_ENTRIES_AT_ONCE = 1 << 16


class Coverage(enum.IntEnum):
    """Place of a message that lacks an entry for one of its keys."""

    IN_FILE = 0
    """Inside an index file, or after the last file of a stopped store: the entries are missing."""
    BEFORE = 1
    """Before the first message of the index."""
    BETWEEN = 2
    """Between two files: after a crash brokers do not write all entries again."""
    PENDING = 3
    """After the last message of the index; the broker's next start indexes it."""


@dataclass(frozen=True)
class CheckedFile:
    """The check of an index file."""

    name: str
    problem: str | None = None
    """Reason why it cannot be read."""
    begin: int = 0
    end: int = -1
    """Physical offsets of the first and the last message that its header names."""
    blocks: Offsets = field(default_factory=lambda: np.empty((0, 4), np.int64))
    """A row per block: number of its first entry, entries, smallest and largest physical offset."""
    broken_links: int = 0
    slots_used: int = 0
    """Number of slots in use, which may differ from the header."""


@dataclass(frozen=True, slots=True)
class _Keyless:
    """Consecutive messages with keys that the index does not find by all of their keys."""

    first: int
    last: int
    """Physical offsets of the first and the last message."""
    count: int
    coverage: Coverage
    reaches_start: bool
    """True if no message with keys is before it in its window."""
    reaches_end: bool


class IndexChecks:
    """The index against the log."""

    def __init__(self, reader: StoreReader, ledger: Ledger) -> None:
        self._reader = reader
        self._ledger = ledger
        self._lock = threading.Lock()
        self._files: list[IndexFileView] = []
        """Files that can be read and have entries."""
        self._checked: list[CheckedFile] = []
        """Checks of the same files."""
        self._strays: defaultdict[int, list[Offsets]] = defaultdict(list)
        """Number of the file -> physical offsets of entries whose key no message has."""
        self._keyless: list[_Keyless] = []
        self._first_found: list[int] = []
        """First message in each window that the index finds by its keys."""
        self._before_count = 0
        self.entry_count = 0

    @property
    def _is_stopped(self) -> bool:
        return self._reader.state.condition is Condition.CLEAN

    @property
    def _start(self) -> int:
        return min(file.begin for file in self._checked)

    # Files

    def check_files(self, progress: Progress) -> None:
        """Check each file, and record where its entries point. Call before the scan."""
        views = self._reader.index.files
        usual = number_runs.usual(view.size for view in views)
        for done, view in enumerate(views):
            path = f"{paths.INDEX}/{view.name}"
            if view.size != usual:
                text = f"has {view.size} bytes, others {usual}"
                self._ledger.add(Severity.WARNING, FindingKind.INDEX_FILE, path, text)
            self._ledger.add_file(path, view.size, self._check_file(path, view))
            progress("index", done + 1, len(views))
        if not self._files and self._reader.log.files:
            text = "holds no entries: messages are not found by key"
            self._ledger.add(Severity.NOTE, FindingKind.INDEX_ABSENT, paths.INDEX, text)

    def _check_file(self, path: str, view: IndexFileView) -> int:
        checked = check_file(view)
        if checked.problem is not None:
            self._ledger.add(Severity.DAMAGE, FindingKind.INDEX_FILE, path, checked.problem)
        if not len(checked.blocks):
            return 0
        self._files.append(view)
        self._checked.append(checked)
        self._check_header(path, view)
        if checked.broken_links:
            text = f"{checked.broken_links} links of its hash chains are wrong: keys are not found"
            broken = checked.broken_links
            self._ledger.add(Severity.DAMAGE, FindingKind.INDEX_CHAIN, path, text, count=broken)
        header, in_use = view.header, checked.slots_used
        if header.slots_used not in (in_use, header.entry_count, header.next_entry):
            text = f"the header counts {header.slots_used} slots in use, there are {in_use}"
            self._ledger.add(Severity.NOTE, FindingKind.INDEX_FILE, path, text)
        self.entry_count += header.entry_count
        return header.entry_count

    def _check_header(self, path: str, view: IndexFileView) -> None:
        header = view.header
        for name, place, timestamp in (
            ("first", header.begin_physical_offset, header.begin_timestamp),
            ("last", header.end_physical_offset, header.end_timestamp),
        ):
            try:
                stored_at = self._reader.log.store_timestamp_at(place)
            except (CorruptRecord, NotInStore):
                continue  # expired, cut off, or reported as damage
            if stored_at != timestamp:
                text = f"the header's time of the {name} message is not that of the message"
                self._ledger.add(Severity.WARNING, FindingKind.INDEX_FILE, path, text)

    # Against the log

    def compare(self, columns: kernels.Columns | None, begin: int, end: int) -> None:
        """Compare the keys of messages in ``[begin, end)`` with the entries that point there."""
        if not self._files:
            return
        places, hashes, files = self._entries_between(begin, end)
        is_stray = np.ones(len(places), np.bool_)
        if columns is not None:
            key_places, is_found, is_stray = compare_keys(
                columns, pairs_of(places, hashes, begin), begin
            )
            self._keep_keyless(key_places, is_found)
        with self._lock:
            for number in np.unique(files[is_stray]):
                self._strays[number].append(places[is_stray & (files == number)])

    def _entries_between(
        self, begin: int, end: int
    ) -> tuple[Offsets, Offsets, npt.NDArray[np.int32]]:
        """Return the physical offsets of entries, their hashes, and the numbers of their files."""
        places, hashes, files = [NO_OFFSETS], [NO_OFFSETS], [np.empty(0, np.int32)]
        for number, view in enumerate(self._files):
            for first, count, low, high in self._checked[number].blocks.tolist():
                if low < end and high >= begin:
                    entries = entries_of(view, first, count)
                    targets = entries["physical_offset"].astype(np.int64)
                    inside = (targets >= begin) & (targets < end)
                    places.append(targets[inside])
                    hashes.append(entries["key_hash"][inside].astype(np.int64))
                    files.append(np.full(len(places[-1]), number, np.int32))
        return np.concatenate(places), np.concatenate(hashes), np.concatenate(files)

    def _keep_keyless(self, key_places: Offsets, is_found: Mask) -> None:
        """Record the messages that lack an entry for a key."""
        messages = number_runs.distinct(key_places)
        lacks = number_runs.is_in(messages, number_runs.distinct(key_places[~is_found]))
        codes = coverage(messages, spans_of(self._checked), self._is_stopped)
        is_before = codes == Coverage.BEFORE
        complete = messages[~lacks & ~is_before]
        with self._lock:
            self._before_count += int((lacks & is_before).sum())
            self._first_found += complete[:1].tolist()
            for kind in (Coverage.IN_FILE, Coverage.BETWEEN, Coverage.PENDING):
                for start, count in number_runs.of(lacks & (codes == kind)):
                    end = start + count
                    first, last = int(messages[start]), int(messages[end - 1])
                    run = _Keyless(first, last, count, kind, start == 0, end == len(messages))
                    self._keyless.append(run)

    def check(self, log: LogCheck) -> None:
        """Report keys without entries and entries without keys. Call after the scan."""
        count = self._before_count
        if count:
            text = f"begins at physical offset {self._start}; {count} messages are before that"
            self._ledger.add(Severity.NOTE, FindingKind.NOT_INDEXED, paths.INDEX, text, count=count)
        joined = self._joined()
        for run in joined[: findings.RUNS_MAX]:
            self._report_keyless(run)
        rest = sum(run.count for run in joined[findings.RUNS_MAX :])
        if rest:
            text = f"{rest} more messages are not found by a key of theirs"
            self._ledger.add(
                Severity.DAMAGE, FindingKind.KEY_MISSING, paths.INDEX, text, count=rest
            )
        for number, view in enumerate(self._files):
            self._report_strays(f"{paths.INDEX}/{view.name}", number, log)

    def _joined(self) -> list[_Keyless]:
        """Join runs that have no message with all its entries between them."""
        found_first = sorted(self._first_found)
        joined: list[_Keyless] = []
        for run in sorted(self._keyless, key=lambda run: run.first):
            last = joined[-1] if joined else None
            is_same = last is not None and last.coverage is run.coverage
            if is_same and last is not None and last.reaches_end and run.reaches_start:
                is_same = bisect.bisect(found_first, last.last) == bisect.bisect(
                    found_first, run.first
                )
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
        if run.coverage is Coverage.PENDING:
            severity, kind, text = (
                Severity.NOTE,
                FindingKind.NOT_INDEXED,
                f"{span}: not indexed yet",
            )
        elif run.coverage is Coverage.BETWEEN:
            severity, kind = Severity.WARNING, FindingKind.NOT_INDEXED
            text = f"{span}: in no index file; after a crash brokers do not write all of them again"
        else:
            severity, kind = Severity.DAMAGE, FindingKind.KEY_MISSING
            text = f"{span}: not found by a key of theirs"
        length = run.last - run.first + 1
        self._ledger.add(
            severity, kind, path, text, physical_offset=run.first, length=length, count=run.count
        )

    def _report_strays(self, path: str, number: int, log: LogCheck) -> None:
        """Report entries that point at no message with their key; expired ones are no fault."""
        places = np.concatenate([NO_OFFSETS, *self._strays[number], *self._after_walk(number)])
        is_stale = places >= log.end
        is_in_hole = ~is_stale & log.in_hole(places)
        for severity, kind, mask, text in (
            (Severity.NOTE, FindingKind.ENTRY_STALE, is_stale, "after the end of the log"),
            (Severity.WARNING, FindingKind.ENTRY_IN_HOLE, is_in_hole, "into damage of the log"),
            (
                Severity.WARNING,
                FindingKind.ENTRY_WRONG,
                ~(is_stale | is_in_hole),
                "at no message with their key",
            ),
        ):
            count = int(mask.sum())
            if count:
                entries = "1 entry points" if count == 1 else f"{count} entries point"
                self._ledger.add(severity, kind, path, f"{entries} {text}", count=count)

    def _after_walk(self, number: int) -> Iterator[Offsets]:
        """Yield the physical offsets of a file's entries that are after all windows."""
        stop = self._reader.end_offset
        for first, count, _, high in self._checked[number].blocks.tolist():
            if high >= stop:
                entries = entries_of(self._files[number], first, count)
                places = entries["physical_offset"].astype(np.int64)
                yield places[places >= stop]


# --- judging, a file or a range at a time ---------------------------------------------------------


def check_file(view: IndexFileView) -> CheckedFile:
    """Check an index file, and record where its entries point."""
    try:
        header = view.header
        if not header.entry_count:
            return CheckedFile(view.name)
        chains = Chains(view.slot_count)
        blocks = []
        for first in range(1, header.entry_count + 1, _ENTRIES_AT_ONCE):
            count = min(_ENTRIES_AT_ONCE, header.entry_count + 1 - first)
            entries = entries_of(view, first, count)
            chains.follow(first, entries)
            places = entries["physical_offset"]
            blocks.append((first, len(entries), int(places.min()), int(places.max())))
        start, size = index_entry.slot_position(0), index_entry.SLOT.size * len(chains.newest)
        data = view.folder.read(f"{paths.INDEX}/{view.name}", start, size)
        slots = np.frombuffer(data, ">i4")
    except CorruptRecord as error:
        return CheckedFile(view.name, problem=error.reason)
    return CheckedFile(
        view.name,
        begin=header.begin_physical_offset,
        end=header.end_physical_offset,
        blocks=np.array(blocks, np.int64),
        broken_links=chains.broken_count + int(np.count_nonzero(slots != chains.newest)),
        slots_used=int(np.count_nonzero(slots)),
    )


def compare_keys(
    columns: kernels.Columns, entries: Offsets, begin: int
) -> tuple[Offsets, Mask, Mask]:
    """Compare the keys of messages with index entries.

    Args:
        columns: The messages.
        entries: The entries that point at these messages' bytes of the log, from ``pairs_of``.
        begin: Physical offset that the pairs are relative to.

    Returns:
        Physical offset of each key's message, whether each key has an entry, and whether each
        entry points at no message with its key.
    """
    places, hashes = keys_of(columns)
    keys = pairs_of(places, hashes, begin)
    is_found = number_runs.is_in(keys, number_runs.distinct(entries))
    is_stray = ~number_runs.is_in(entries, number_runs.distinct(keys))
    if is_stray.any():  # 5.4 and later index tags, too
        tags = pairs_of(*keys_of(columns, with_tags=True), begin)
        is_stray &= ~number_runs.is_in(entries, number_runs.distinct(tags))
    return places, is_found, is_stray


def spans_of(files: Iterable[CheckedFile]) -> Offsets:
    """Return a row per index file with entries: its first and its last message."""
    rows = [(file.begin, file.end) for file in files if len(file.blocks)]
    return np.array(sorted(rows), np.int64).reshape(-1, 2)


def coverage(places: Offsets, spans: Offsets, is_stopped: bool) -> npt.NDArray[np.int8]:
    """Return the ``Coverage`` of messages by the index files of ``spans_of``."""
    codes = np.full(len(places), Coverage.BETWEEN, np.int8)
    if not len(spans):
        return codes
    begins, reach = spans[:, 0], np.maximum.accumulate(spans[:, 1])
    ranks = np.searchsorted(begins, places, "right") - 1
    codes[ranks < 0] = Coverage.BEFORE
    codes[places > reach[-1]] = Coverage.IN_FILE if is_stopped else Coverage.PENDING
    codes[(ranks >= 0) & (places <= reach[np.maximum(ranks, 0)])] = Coverage.IN_FILE
    return codes


def entries_of(view: IndexFileView, first: int, count: int) -> npt.NDArray[np.void]:
    """Return consecutive entries of an index file."""
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
    """Return physical offset and key hash packed into one number: a log file has at most 2 GiB."""
    pairs: Offsets = (places - begin) << 31 | hashes & 0x7FFFFFFF
    return pairs


class Chains:
    """The hash chains of an index file, followed from its first entry."""

    def __init__(self, slot_count: int) -> None:
        self.newest = np.zeros(slot_count, np.int32)
        """Number that each slot must have."""
        self.broken_count = 0

    def follow(self, first: int, entries: npt.NDArray[np.void]) -> None:
        """Take the next entries: each must name the previous entry of its slot."""
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
