"""Units of a consume queue against the log: units without a record, records without a unit.

``compare_units``, ``compare_batches`` and ``judge_unclaimed`` judge some units or records at a
time; the Spark job ``audit`` runs them, too. The classes below them judge one queue.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, NotInStore
from reput.format import cq_unit, names
from reput.format.message import StoredMessage
from reput.store.files import paths
from reput.store.files.files import Folder
from reput.store.log.commit_log_view import CommitLogView
from reput.store.queues.consume_queue_view import (
    UNIT_TYPE,
    ConsumeQueueView,
    QueueFile,
    UnitArray,
    list_queue_files,
)
from reput.store.reader import StoreReader, belongs
from reput.store.verify import findings, number_runs
from reput.store.verify.findings import FindingKind, Ledger, Severity
from reput.store.verify.log_check import LogCheck
from reput.store.verify.number_runs import NO_OFFSETS, Mask, Offsets, Spans

ROW = np.dtype(
    [
        ("queue", np.int32),
        ("queue_offset", np.int64),
        ("physical_offset", np.int64),
        ("size", np.int32),
        ("tags_code", np.int32),
        ("has_tags_code", np.bool_),
    ]
)
"""A record that belongs into a queue. The unit of a delayed message has a time as its tags code."""
Rows = npt.NDArray[np.void]

_NEAR_UNITS = 1024
"""Up to this many units between two others are read although no record needs them."""
_RECOVERED_FILES = 3
"""Files of a queue that Java checks at a start, the last ones."""


# --- judging some records or units at a time ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnitComparison:
    """Records of a queue and the units at their queue offsets."""

    is_none: Mask
    """Records without a unit: no file, zeros or filler."""
    is_pending: Mask
    """Records whose missing unit the broker adds at its next start."""
    is_mine: Mask
    """Records that their unit points at."""
    is_wrong_size: Mask
    """Records that their unit points at with another size."""
    is_wrong_tags: Mask
    """Records that their unit points at with another tags code."""
    tags_codes: Offsets
    """Tags codes of the units."""

    @property
    def is_other(self) -> Mask:
        """Records whose unit points elsewhere."""
        return ~(self.is_none | self.is_mine)


def units_at(view: ConsumeQueueView, numbers: Offsets) -> tuple[UnitArray, Mask]:
    """Read the units at queue offsets, which ascend; zeros where the queue has no file.

    Returns:
        The units, and whether a file holds each.
    """
    units, is_there = np.zeros(len(numbers), UNIT_TYPE), np.zeros(len(numbers), np.bool_)
    gaps = (np.flatnonzero(np.diff(numbers) > _NEAR_UNITS) + 1).tolist()
    for first, stop in itertools.pairwise([0, *gaps, len(numbers)]):
        if first == stop:
            continue
        for start, block in view.blocks(int(numbers[first]), int(numbers[stop - 1]) + 1):
            low, high = np.searchsorted(numbers, [start, start + len(block)])
            units[low:high] = block[numbers[low:high] - start]
            is_there[low:high] = True
    return units, is_there


def compare_units(
    reader: StoreReader,
    topic: str,
    queue_id: int,
    rows: Rows,
    units: UnitArray,
    redispatch_from: int,
) -> UnitComparison:
    """Compare records with the units at their queue offsets.

    Args:
        reader: The store.
        topic: Topic of the queue.
        queue_id: Id of the queue.
        rows: The records.
        units: The units; zeros where there is no file.
        redispatch_from: Physical offset from which the broker's next start dispatches.
    """
    is_none = is_blank(units["size"], units["physical_offset"]) | (units["size"] == 0)
    is_mine = ~is_none & (units["physical_offset"] == rows["physical_offset"])
    is_pending = is_none & (rows["physical_offset"] >= redispatch_from)
    if queue_id in reader.queue_ids.get(topic, ()):
        is_pending &= rows["queue_offset"] >= _recovered_from(reader.queue(topic, queue_id).files)
    codes = tags_codes(reader, topic, queue_id, units)
    return UnitComparison(
        is_none,
        is_pending,
        is_mine,
        is_mine & (units["size"] != rows["size"]),
        is_mine & (codes != rows["tags_code"]) & rows["has_tags_code"],
        codes,
    )


def _recovered_from(files: Sequence[QueueFile]) -> int:
    """Return the first queue offset whose unit a start after a crash can rewrite.

    Java (4.9.7 and 5.5.0) ends a queue at the first zeros in its last three files, and dispatches
    from there. Zeros in earlier files stay, and pulls of them fail. If the first unit of these
    files is zeros, Java forgets where the queue ends, and may put message 0 there.
    """
    recovered = files[-_RECOVERED_FILES:]
    if not recovered or not recovered[0].start:
        return 0
    return recovered[0].start // cq_unit.SIZE + 1


def compare_batches(
    rows: Rows, units: UnitArray, order: Offsets, redispatch_from: int
) -> tuple[Offsets, UnitComparison]:
    """Compare batches with the units that point at them.

    Args:
        rows: The batches.
        units: Units of their batch queue.
        order: Numbers of the units, sorted by physical offset.
        redispatch_from: Physical offset from which the broker's next start dispatches.

    Returns:
        The number of each batch's unit, and the comparison.
    """
    ranks = np.searchsorted(units["physical_offset"][order], rows["physical_offset"])
    is_there = ranks < len(order)
    numbers = np.zeros(len(rows), np.int64)
    numbers[is_there] = order[ranks[is_there]]
    compared = np.zeros(len(rows), units.dtype)
    compared[is_there] = units[numbers[is_there]]
    is_mine = is_there & (compared["size"] > 0)
    for name in ("physical_offset", "queue_offset"):
        is_mine &= compared[name] == rows[name]
    codes: Offsets = compared["tags_code"].astype(np.int64)
    return numbers, UnitComparison(
        ~is_mine,
        ~is_mine & (rows["physical_offset"] >= redispatch_from),
        is_mine,
        is_mine & (compared["size"] != rows["size"]),
        is_mine & (codes != rows["tags_code"]),
        codes,
    )


@dataclass(frozen=True, slots=True)
class UnclaimedVerdicts:
    """Verdicts on units that no record claims."""

    is_zero: Mask
    is_blank: Mask
    is_invalid: Mask
    is_expired: Mask
    """Units that point before the log."""
    is_stale: Mask
    """Units that point after the end of the log."""
    hole_of: Offsets
    """Number of the hole of the log that the unit points into; -1 if there is none."""
    is_wrong: Mask
    """Units that point at another record, or not at the start of a record."""


def judge_unclaimed(
    units: UnitArray, has_record: Mask, start: int, end: int, holes: Spans
) -> UnclaimedVerdicts:
    """Judge units that no record claims.

    Args:
        units: The units.
        has_record: Whether a record has the queue offset of the unit, which points elsewhere.
        start: Physical offset where the log starts.
        end: Physical offset where it ends.
        holes: Its holes.
    """
    places, sizes = units["physical_offset"].astype(np.int64), units["size"]
    is_zero, blank = sizes == 0, is_blank(sizes, places)
    is_invalid = (sizes < 0) | (places < 0)
    is_unit = ~(is_zero | blank | is_invalid)
    is_unknown = is_unit & ~has_record
    is_expired, is_stale = is_unknown & (places < start), is_unknown & (places >= end)
    hole_of = np.where(is_unknown & ~is_stale, holes.of(places), -1)
    is_wrong = is_unit & ~(is_expired | is_stale | (hole_of >= 0))
    return UnclaimedVerdicts(is_zero, blank, is_invalid, is_expired, is_stale, hole_of, is_wrong)


def is_blank(sizes: npt.NDArray[Any], places: npt.NDArray[Any]) -> Mask:
    """Return which units are the filler before a queue's first message."""
    blank: Mask = (sizes == cq_unit.PRE_BLANK_SIZE) & (places == 0)
    return blank


def message_at(log: CommitLogView, physical_offset: int) -> StoredMessage | None:
    """Return the record that starts at a physical offset; None if no whole one does."""
    try:
        return log.message_at(physical_offset)
    except (CorruptRecord, NotInStore):
        return None


# --- tags codes -----------------------------------------------------------------------------------

_EXT_HEAD = np.dtype(
    [
        ("size", ">i2"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("bit_map_bytes", ">i2"),
    ]
)
assert _EXT_HEAD.itemsize == cq_unit.EXT_HEAD.size


def extension_codes(folder: Folder, path: str, addresses: Offsets) -> Offsets:
    """Return the tags codes at extension addresses; the address itself if no unit is there.

    Args:
        folder: The store.
        path: The folder of the queue's extension files.
        addresses: The tags codes of units that are addresses.
    """
    codes = addresses.copy()
    positions = addresses - cq_unit.ext_address(0)
    for file in list_queue_files(folder, path):
        room = file.size - _EXT_HEAD.itemsize
        inside = np.flatnonzero((positions >= file.start) & (positions <= file.start + room))
        if not len(inside):
            continue
        data = np.frombuffer(folder.read(f"{path}/{file.name}"), np.uint8)
        bytes_of = (positions[inside] - file.start)[:, None] + np.arange(_EXT_HEAD.itemsize)
        heads = data[bytes_of].view(_EXT_HEAD)[:, 0]
        is_unit = heads["size"] == _EXT_HEAD.itemsize + heads["bit_map_bytes"]
        codes[inside[is_unit]] = heads["tags_code"][is_unit]
    return codes


def tags_codes(reader: StoreReader, topic: str, queue_id: int, units: UnitArray) -> Offsets:
    """Return the tags codes of units; an address is looked up in the extension files."""
    codes: Offsets = units["tags_code"].astype(np.int64)
    extended = np.flatnonzero(codes <= cq_unit.EXT_ADDRESS_MAX)
    if len(extended):
        path = paths.queue_folder(topic, queue_id, paths.CONSUME_QUEUE_EXT)
        codes[extended] = extension_codes(reader.folder, path, codes[extended])
    return codes


# --- records without a unit -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _MissingUnits:
    """Records of one queue with consecutive queue offsets that have no unit."""

    queue_offset: int
    count: int
    physical_offset: int
    """Physical offset of the first record."""
    is_pending: bool
    """The broker's next start puts the units."""

    def add_to(self, ledger: Ledger, path: str, span: str = "") -> None:
        span = span or number_runs.span("message", self.queue_offset, self.count)
        if self.is_pending:
            severity, kind = Severity.NOTE, FindingKind.NOT_DISPATCHED
            text = f"{span}: not dispatched yet, the broker's next start does it"
        else:
            severity, kind = Severity.DAMAGE, FindingKind.UNIT_MISSING
            text = f"{span}: in the log, but without a unit"
        ledger.add(
            severity,
            kind,
            path,
            text,
            physical_offset=self.physical_offset,
            queue_offset=self.queue_offset,
            count=self.count,
        )


def _missing_units(rows: Rows, is_pending: Mask) -> Iterator[_MissingUnits]:
    """Yield the runs of rows, which are sorted by queue offset."""
    if not len(rows):
        return
    numbers = rows["queue_offset"]
    breaks = np.flatnonzero((np.diff(numbers) > 1) | np.diff(is_pending)) + 1
    for first, end in itertools.pairwise([0, *breaks.tolist(), len(rows)]):
        count = int(numbers[end - 1]) - int(numbers[first]) + 1
        place = int(rows["physical_offset"][first])
        yield _MissingUnits(int(numbers[first]), count, place, bool(is_pending[first]))


def _merged(missing: list[_MissingUnits]) -> list[_MissingUnits]:
    """Join adjacent runs of several comparisons."""
    merged: list[_MissingUnits] = []
    for run in sorted(missing, key=lambda run: run.queue_offset):
        last = merged[-1] if merged else run
        if last.queue_offset + last.count == run.queue_offset and last.is_pending == run.is_pending:
            merged[-1] = dataclasses.replace(last, count=last.count + run.count)
        else:
            merged.append(run)
    return merged


def _report_missing(
    ledger: Ledger, missing: list[_MissingUnits], path_at: Callable[[int], str]
) -> None:
    merged = _merged(missing)
    for run in merged[: findings.RUNS_MAX]:
        run.add_to(ledger, path_at(run.queue_offset))
    for is_pending in (True, False):
        rest = [run for run in merged[findings.RUNS_MAX :] if run.is_pending is is_pending]
        if rest:
            total = dataclasses.replace(rest[0], count=sum(run.count for run in rest))
            span = f"{total.count} more messages from {total.queue_offset} on"
            total.add_to(ledger, path_at(total.queue_offset), span)


# --- judging one queue ----------------------------------------------------------------------------


class AbsentQueueCheck:
    """A queue that records name and that has no files."""

    def __init__(self, path: str, is_deleted: bool, redispatch_from: int) -> None:
        self._is_deleted = is_deleted
        self._redispatch_from = redispatch_from
        self._missing: list[_MissingUnits] = []
        self.path = path
        self.files: list[QueueFile] = []

    def compare(self, rows: Rows) -> None:
        """Record messages of this queue."""
        self._missing += _missing_units(rows, rows["physical_offset"] >= self._redispatch_from)

    def check(self, ledger: Ledger, log: LogCheck) -> dict[int, int]:
        """Report the messages; if the topic was deleted, they are what its deletion left."""
        if self._is_deleted:
            count = sum(run.count for run in self._missing)
            text = f"{count} messages in the log are of a topic that was deleted"
            ledger.add(Severity.NOTE, FindingKind.TOPIC, self.path, text, count=count)
        else:
            _report_missing(ledger, self._missing, lambda _: self.path)
        return {}


class PlainQueueCheck:
    """A consume queue against the log."""

    def __init__(
        self, reader: StoreReader, topic: str, queue_id: int, redispatch_from: int
    ) -> None:
        self._reader = reader
        self._topic = topic
        self._queue_id = queue_id
        self._view = reader.queue(topic, queue_id)
        self._redispatch_from = redispatch_from
        self._first = self._view.files[0].start // cq_unit.SIZE if self._view.files else 0
        self._claimed = np.zeros(0, np.bool_)
        """Whether each unit from the first one on points at its record."""
        self._wrong: defaultdict[FindingKind, list[Offsets]] = defaultdict(list)
        """Queue offsets of units that point at their record but disagree with it."""
        self._missed: list[Offsets] = []
        """Queue offsets of records whose unit points elsewhere."""
        self._pending: list[Offsets] = []
        """Queue offsets of zeros that the broker's next start overwrites."""
        self._missing: list[_MissingUnits] = []
        """Records without a file for their unit, or with filler in its place."""
        self._zeros: list[_MissingUnits] = []
        """Records with zeros in the place of their unit."""
        self._last_place = -1
        self.path = paths.queue_folder(topic, queue_id)
        self.files = list_queue_files(reader.folder, self.path)

    # Records

    def compare(self, rows: Rows) -> None:
        """Compare records of this queue, sorted by queue offset, with their units."""
        numbers = rows["queue_offset"]
        units, is_there = units_at(self._view, numbers)
        compared = compare_units(
            self._reader, self._topic, self._queue_id, rows, units, self._redispatch_from
        )
        is_zero = is_there & (units["size"] == 0)
        for missing, mask in (
            (self._zeros, is_zero),
            (self._missing, compared.is_none & ~is_zero),
        ):
            missing += _missing_units(rows[mask], compared.is_pending[mask])
        self._pending.append(numbers[is_zero & compared.is_pending])
        self._claim(numbers[compared.is_mine])
        self._missed.append(numbers[compared.is_other])
        for kind, mask in (
            (FindingKind.UNIT_WRONG_SIZE, compared.is_wrong_size),
            (FindingKind.UNIT_WRONG_TAGS, compared.is_wrong_tags),
        ):
            if mask.any():
                self._wrong[kind].append(numbers[mask])

    def _claim(self, numbers: Offsets) -> None:
        if not len(numbers):
            return
        needed = int(numbers[-1]) + 1 - self._first
        if needed > len(self._claimed):
            room = max(needed, self._view.max_offset - self._first)
            self._claimed = np.pad(self._claimed, (0, room - len(self._claimed)))
        self._claimed[numbers - self._first] = True

    # Units

    def check(self, ledger: Ledger, log: LogCheck) -> dict[int, int]:
        """Report the faults of the queue.

        Returns:
            Number of units in each file, by the file's start.
        """
        stop = max(self._view.max_offset, self._first + len(self._claimed))
        counts: dict[int, int] = {}
        for start, units in self._view.blocks(self._first, stop):
            counts[start * cq_unit.SIZE] = int((units["size"] != 0).sum())
            self._check_block(ledger, log, start, units)
        # Zeros amid the units are reported as units, unless they are pending.
        zeros = [run for run in self._zeros if run.queue_offset >= stop or run.is_pending]
        _report_missing(ledger, self._missing + zeros, self._path_at)
        return counts

    def _check_block(self, ledger: Ledger, log: LogCheck, start: int, units: UnitArray) -> None:
        places = units["physical_offset"].astype(np.int64)
        masks = self._judge(log, start, units)
        for kind, numbers in self._wrong.items():
            masks[kind] = number_runs.mask(np.concatenate(numbers), start, len(units))
        wrong = number_runs.of(masks[FindingKind.UNIT_WRONG_RECORD])[: findings.RUNS_MAX]
        texts = {first: self._describe(int(places[first])) for first, _ in wrong}
        for kind, mask in masks.items():
            has_texts = kind is FindingKind.UNIT_WRONG_RECORD
            ledger.add_units(self._path_at(start), kind, mask, start, texts if has_texts else None)

    def _judge(self, log: LogCheck, start: int, units: UnitArray) -> dict[FindingKind, Mask]:
        """Judge units that no record claims, and the order of the others."""
        claimed = self._claimed[start - self._first : start - self._first + len(units)]
        claimed = np.pad(claimed, (0, len(units) - len(claimed)))
        missed, pending = (
            number_runs.mask(np.concatenate([NO_OFFSETS, *numbers]), start, len(units))
            for numbers in (self._missed, self._pending)
        )
        judged = judge_unclaimed(units, missed | claimed, log.start, log.end, log.holes)
        places = units["physical_offset"].astype(np.int64)
        wrong, stale = judged.is_wrong & ~claimed, judged.is_stale
        # Filler may be before the first unit that a record claims.
        is_after_first = np.full(len(units), self._claimed.any())
        is_after_first &= np.arange(start, start + len(units)) > self._first + self._first_claimed
        if self._reader.is_live:
            stale[:] = False  # the broker has appended since
        if self._topic.startswith(names.LMQ_PREFIX):
            wrong = self._without_light(log, wrong, start, places)
        return {
            FindingKind.UNIT_ZERO: judged.is_zero & ~pending,
            FindingKind.UNIT_BLANK: judged.is_blank & is_after_first,
            FindingKind.UNIT_INVALID: judged.is_invalid & ~claimed,
            FindingKind.UNIT_STALE: stale,
            FindingKind.UNIT_IN_HOLE: judged.hole_of >= 0,
            FindingKind.UNIT_WRONG_RECORD: wrong,
            FindingKind.UNIT_OUT_OF_ORDER: self._out_of_order(places, claimed | judged.is_expired),
            FindingKind.QUEUE_OFFSET_TWICE: missed & claimed,
        }

    @property
    def _first_claimed(self) -> int:
        return int(self._claimed.argmax()) if len(self._claimed) else 0

    def _out_of_order(self, places: Offsets, is_right: Mask) -> Mask:
        """Return which of the right units point before their predecessor."""
        rows = np.flatnonzero(is_right)
        is_before = np.zeros(len(places), np.bool_)
        if len(rows):
            is_before[rows] = np.diff(places[rows], prepend=self._last_place) <= 0
            self._last_place = int(places[rows[-1]])
        return is_before

    def _without_light(self, log: LogCheck, wrong: Mask, start: int, places: Offsets) -> Mask:
        """Clear the units of a light queue (LMQ) whose message names the queue, but no number."""
        for row in np.flatnonzero(wrong):
            message = message_at(self._reader.log, int(places[row]))
            if message is not None:
                wrong[row] = not belongs(message, self._topic, self._queue_id, start + int(row))
        return wrong

    def _describe(self, physical_offset: int) -> str:
        message = message_at(self._reader.log, physical_offset)
        if message is None:
            return f"points at physical offset {physical_offset}, where no record starts"
        queue = f"{message.topic}/{message.queue_id}"
        return f"points at message {message.queue_offset} of queue {queue}"

    def _path_at(self, queue_offset: int) -> str:
        """Return the file that holds a unit, or the queue's folder."""
        position = queue_offset * cq_unit.SIZE
        for file in self.files:
            if file.start <= position < file.start + file.size:
                return f"{self.path}/{file.name}"
        return self.path


class BatchQueueCheck:
    """A batch queue of 5.x against the log: one unit per batch."""

    def __init__(
        self, reader: StoreReader, topic: str, queue_id: int, redispatch_from: int
    ) -> None:
        self._view = reader.batch_queue(topic, queue_id)
        self._redispatch_from = redispatch_from
        self._missing: list[_MissingUnits] = []
        count = len(self._view.units)
        self._order = np.argsort(self._view.units["physical_offset"], kind="stable")
        self._is_right = np.zeros(count, np.bool_)
        self._is_wrong_size = np.zeros(count, np.bool_)
        self._is_wrong_tags = np.zeros(count, np.bool_)
        self.path = paths.queue_folder(topic, queue_id, paths.BATCH_CONSUME_QUEUE)
        self.files = list_queue_files(reader.folder, self.path)

    def compare(self, rows: Rows) -> None:
        """Compare batches of this queue with their units."""
        numbers, compared = compare_batches(
            rows, self._view.units, self._order, self._redispatch_from
        )
        self._is_right[numbers[compared.is_mine]] = True
        self._is_wrong_size[numbers[compared.is_wrong_size]] = True
        self._is_wrong_tags[numbers[compared.is_wrong_tags]] = True
        is_none = compared.is_none
        self._missing += _missing_units(rows[is_none], compared.is_pending[is_none])

    def check(self, ledger: Ledger, log: LogCheck) -> dict[int, int]:
        """Report the faults of the queue.

        Returns:
            Number of units, by the start of the first file.
        """
        units = self._view.units
        judged = judge_unclaimed(units, self._is_right, log.start, log.end, log.holes)
        jumps = np.zeros(len(units), np.bool_)
        ends = units["queue_offset"] + units["message_count"]
        jumps[1:] = units["queue_offset"][1:] != ends[:-1]
        masks = {
            FindingKind.UNIT_ZERO: judged.is_zero,
            FindingKind.UNIT_INVALID: judged.is_invalid,
            FindingKind.UNIT_STALE: judged.is_stale,
            FindingKind.UNIT_IN_HOLE: judged.hole_of >= 0,
            FindingKind.UNIT_WRONG_RECORD: judged.is_wrong & ~self._is_right,
            FindingKind.UNIT_WRONG_SIZE: self._is_wrong_size,
            FindingKind.UNIT_WRONG_TAGS: self._is_wrong_tags,
            FindingKind.UNIT_OUT_OF_ORDER: jumps,
        }
        for kind, mask in masks.items():
            ledger.add_units(self.path, kind, mask, 0)
        _report_missing(ledger, self._missing, lambda _: self.path)
        return {file.start: len(units) for file in self._view.files[:1]}
