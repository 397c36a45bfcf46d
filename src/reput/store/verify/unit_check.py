"""One consume queue against the log: its units, and records without a unit."""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, NotInStore
from reput.format import cq_unit, names
from reput.store import paths
from reput.store.consume_queue_view import QueueFile, UnitArray, list_queue_files
from reput.store.files import Folder
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
    ]
)
"""A record that belongs into a queue."""
Rows = npt.NDArray[np.void]


# --- records without a unit ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Lacking:
    """Records of one queue with consecutive queue offsets that have no unit."""

    queue_offset: int
    count: int
    physical_offset: int
    """Of the first."""
    is_pending: bool
    """A broker's next start puts them into the queue."""

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


def _lacking(rows: Rows, redispatch_from: int) -> Iterator[_Lacking]:
    """Yield the runs of rows, which come in the order of their queue offsets."""
    if not len(rows):
        return
    numbers = rows["queue_offset"]
    pending = rows["physical_offset"] >= redispatch_from
    breaks = np.flatnonzero((np.diff(numbers) > 1) | np.diff(pending)) + 1
    for first, end in itertools.pairwise([0, *breaks.tolist(), len(rows)]):
        count = int(numbers[end - 1]) - int(numbers[first]) + 1
        place = int(rows["physical_offset"][first])
        yield _Lacking(int(numbers[first]), count, place, bool(pending[first]))


def _merged(found: list[_Lacking]) -> list[_Lacking]:
    """Join runs that several comparisons found side by side."""
    merged: list[_Lacking] = []
    for one in sorted(found, key=lambda run: run.queue_offset):
        last = merged[-1] if merged else one
        if last.queue_offset + last.count == one.queue_offset and last.is_pending == one.is_pending:
            merged[-1] = dataclasses.replace(last, count=last.count + one.count)
        else:
            merged.append(one)
    return merged


def _report_lacking(ledger: Ledger, found: list[_Lacking], path_at: Callable[[int], str]) -> None:
    merged = _merged(found)
    for one in merged[: findings.RUNS_MAX]:
        one.add_to(ledger, path_at(one.queue_offset))
    for is_pending in (True, False):
        rest = [one for one in merged[findings.RUNS_MAX :] if one.is_pending is is_pending]
        if rest:
            total = dataclasses.replace(rest[0], count=sum(one.count for one in rest))
            span = f"{total.count} more messages from {total.queue_offset} on"
            total.add_to(ledger, path_at(total.queue_offset), span)


class AbsentQueueCheck:
    """A queue that records name and that has no files."""

    def __init__(self, path: str, is_deleted: bool, redispatch_from: int) -> None:
        self._is_deleted = is_deleted
        self._redispatch_from = redispatch_from
        self._lacking: list[_Lacking] = []
        self.path = path
        self.files: list[QueueFile] = []

    def compare(self, rows: Rows) -> None:
        """Take records of this queue."""
        self._lacking += _lacking(rows, self._redispatch_from)

    def check(self, ledger: Ledger, log: LogCheck) -> dict[int, int]:
        """Report the records; those of a topic that no table knows are left from its deletion."""
        if self._is_deleted:
            count = sum(one.count for one in self._lacking)
            text = f"{count} messages in the log are of a topic that was deleted"
            ledger.add(Severity.NOTE, FindingKind.TOPIC, self.path, text, count=count)
        else:
            _report_lacking(ledger, self._lacking, lambda _: self.path)
        return {}


# --- units --------------------------------------------------------------------------------------

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
    """Return the tags codes at extension addresses; the address where no unit stands.

    Args:
        folder: The store.
        path: The folder of the queue's extension files.
        addresses: Tags codes of its units that are addresses.
    """
    codes = addresses.copy()
    at = addresses - cq_unit.ext_address(0)
    for file in list_queue_files(folder, path):
        room = file.size - _EXT_HEAD.itemsize
        inside = np.flatnonzero((at >= file.start) & (at <= file.start + room))
        if not len(inside):
            continue
        data = np.frombuffer(folder.read(f"{path}/{file.name}"), np.uint8)
        places = (at[inside] - file.start)[:, None] + np.arange(_EXT_HEAD.itemsize)
        heads = data[places].view(_EXT_HEAD)[:, 0]
        is_unit = heads["size"] == _EXT_HEAD.itemsize + heads["bit_map_bytes"]
        codes[inside[is_unit]] = heads["tags_code"][is_unit]
    return codes


def tags_codes(reader: StoreReader, topic: str, queue_id: int, units: UnitArray) -> Offsets:
    """Return the tags codes of units, those in extension files from there."""
    codes: Offsets = units["tags_code"].astype(np.int64)
    extended = np.flatnonzero(codes <= cq_unit.EXT_ADDRESS_MAX)
    if len(extended):
        path = paths.queue_folder(topic, queue_id, paths.CONSUME_QUEUE_EXT)
        codes[extended] = extension_codes(reader.folder, path, codes[extended])
    return codes


# --- judging, some records or units at a time -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnitComparison:
    """Records of a queue against the units at their places in it."""

    is_none: Mask
    """There is no unit: no file, zeros or filler."""
    is_mine: Mask
    """The unit points at the record."""
    is_wrong_size: Mask
    is_wrong_tags: Mask
    """Of units that point at their record."""
    tags_codes: Offsets
    """Of the units."""

    @property
    def is_other(self) -> Mask:
        """The unit points elsewhere."""
        return ~(self.is_none | self.is_mine)


def compare_units(
    reader: StoreReader, topic: str, queue_id: int, rows: Rows, units: UnitArray
) -> UnitComparison:
    """Compare records with the units at their queue offsets; zeros where there is no file."""
    is_none = is_blank(units["size"], units["physical_offset"]) | (units["size"] == 0)
    is_mine = ~is_none & (units["physical_offset"] == rows["physical_offset"])
    codes = tags_codes(reader, topic, queue_id, units)
    # In the schedule topic it is the time of delivery.
    has_tags = topic != names.SCHEDULE_TOPIC
    return UnitComparison(
        is_none,
        is_mine,
        is_mine & (units["size"] != rows["size"]),
        is_mine & (codes != rows["tags_code"]) & has_tags,
        codes,
    )


def compare_batches(rows: Rows, units: UnitArray, order: Offsets) -> tuple[Offsets, UnitComparison]:
    """Compare batches with the units that point at them; return also the number of each unit.

    Args:
        rows: The batches.
        units: Units of their batch queue.
        order: Numbers of the units, sorted by where they point.
    """
    at = np.searchsorted(units["physical_offset"][order], rows["physical_offset"])
    is_there = at < len(order)
    numbers = np.zeros(len(rows), np.int64)
    numbers[is_there] = order[at[is_there]]
    found = np.zeros(len(rows), units.dtype)
    found[is_there] = units[numbers[is_there]]
    is_mine = is_there & (found["size"] > 0)
    for name in ("physical_offset", "queue_offset"):
        is_mine &= found[name] == rows[name]
    codes: Offsets = found["tags_code"].astype(np.int64)
    compared = UnitComparison(
        ~is_mine,
        is_mine,
        is_mine & (found["size"] != rows["size"]),
        is_mine & (codes != rows["tags_code"]),
        codes,
    )
    return numbers, compared


@dataclass(frozen=True, slots=True)
class UnclaimedVerdicts:
    """Units that no record claims, and where they point."""

    is_zero: Mask
    is_blank: Mask
    is_invalid: Mask
    is_expired: Mask
    """Before the log."""
    is_stale: Mask
    """After the end of the log."""
    hole_of: Offsets
    """The hole of the log that they point into; -1 of others."""
    is_wrong: Mask


def judge_unclaimed(
    units: UnitArray, has_record: Mask, start: int, end: int, holes: Spans
) -> UnclaimedVerdicts:
    """Judge units that no record claims.

    Args:
        units: The units.
        has_record: Whether a record has the queue offset of the unit, and the unit is not its own.
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


class PlainQueueCheck:
    """One consume queue against the log."""

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
        """Units that point at their record, from the first one on."""
        self._wrong: defaultdict[FindingKind, list[Offsets]] = defaultdict(list)
        """Queue offsets of units that point at their record, and do not agree with it."""
        self._missed: list[Offsets] = []
        """Queue offsets of records whose unit points elsewhere."""
        self._lacking: list[_Lacking] = []
        """Records for whose unit there is no place: no file, or filler."""
        self._unwritten: list[_Lacking] = []
        """Records that find zeros."""
        self._pending: list[Offsets] = []
        """Queue offsets of those that a broker's next start puts into the queue."""
        self._last_place = -1
        self.path = paths.queue_folder(topic, queue_id)
        self.files = list_queue_files(reader.folder, self.path)

    # What the log has for it

    def compare(self, rows: Rows) -> None:
        """Compare records of this queue, in the order of their queue offsets, with their units."""
        numbers = rows["queue_offset"]
        has_place = np.zeros(len(rows), np.bool_)
        for start, units in self._view.blocks(int(numbers[0]), int(numbers[-1]) + 1):
            low, high = np.searchsorted(numbers, [start, start + len(units)])
            found = units[numbers[low:high] - start]
            has_place[low:high] = ~is_blank(found["size"], found["physical_offset"])
            self._compare(rows[low:high][has_place[low:high]], found[has_place[low:high]])
        self._lacking += _lacking(rows[~has_place], self._redispatch_from)

    def _compare(self, rows: Rows, units: UnitArray) -> None:
        numbers = rows["queue_offset"]
        compared = compare_units(self._reader, self._topic, self._queue_id, rows, units)
        self._unwritten += _lacking(rows[compared.is_none], self._redispatch_from)
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

    # What it has itself

    def check(self, ledger: Ledger, log: LogCheck) -> dict[int, int]:
        """Report what is wrong; return how many units each file holds, by the file's start."""
        stop = max(self._view.max_offset, self._first + len(self._claimed))
        self._pending = [
            np.arange(one.queue_offset, one.queue_offset + one.count, dtype=np.int64)
            for one in self._unwritten
            if one.is_pending
        ]
        counts: dict[int, int] = {}
        for start, units in self._view.blocks(self._first, stop):
            counts[start * cq_unit.SIZE] = int((units["size"] != 0).sum())
            self._check_block(ledger, log, start, units)
        # Zeros amid the units are reported as such; but after a crash a recovery ends the queue
        # there, and the broker dispatches again.
        behind = [one for one in self._unwritten if one.queue_offset >= stop or one.is_pending]
        _report_lacking(ledger, self._lacking + behind, self._path_at)
        return counts

    def _check_block(self, ledger: Ledger, log: LogCheck, start: int, units: UnitArray) -> None:
        places = units["physical_offset"].astype(np.int64)
        masks = self._judge(log, start, units)
        for kind, parts in self._wrong.items():
            masks[kind] = number_runs.mask(np.concatenate(parts), start, len(units))
        wrong = number_runs.of(masks[FindingKind.UNIT_WRONG_RECORD])[: findings.RUNS_MAX]
        texts = {first: self._describe(int(places[first])) for first, _ in wrong}
        for kind, mask in masks.items():
            is_text_own = kind is FindingKind.UNIT_WRONG_RECORD
            ledger.add_units(
                self._path_at(start), kind, mask, start, texts if is_text_own else None
            )

    def _judge(self, log: LogCheck, start: int, units: UnitArray) -> dict[FindingKind, Mask]:
        """Judge units: those that no record claimed, and the order of those that are right."""
        claimed = self._claimed[start - self._first : start - self._first + len(units)]
        claimed = np.pad(claimed, (0, len(units) - len(claimed)))
        missed = number_runs.mask(np.concatenate([NO_OFFSETS, *self._missed]), start, len(units))
        pending = number_runs.mask(np.concatenate([NO_OFFSETS, *self._pending]), start, len(units))
        judged = judge_unclaimed(units, missed | claimed, log.start, log.end, log.holes)
        places = units["physical_offset"].astype(np.int64)
        wrong, stale = judged.is_wrong & ~claimed, judged.is_stale
        # Filler may be before the first unit that a record claims.
        is_after_first = np.full(len(units), self._claimed.any())
        is_after_first &= np.arange(start, start + len(units)) > self._first + self._first_claimed
        if self._reader.is_live:
            stale[:] = False  # the broker has gone on since
        if self._topic.startswith(names.LMQ_PREFIX):
            wrong = self._without_light(wrong, start, places)
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
        """Whether each unit that is right in itself points before the one before."""
        rows = np.flatnonzero(is_right)
        found = np.zeros(len(places), np.bool_)
        if len(rows):
            found[rows] = np.diff(places[rows], prepend=self._last_place) <= 0
            self._last_place = int(places[rows[-1]])
        return found

    def _without_light(self, wrong: Mask, start: int, places: Offsets) -> Mask:
        """Take out units of a light queue (LMQ) whose message names the queue without a number."""
        for row in np.flatnonzero(wrong):
            try:
                one = self._reader.log.message_at(int(places[row]))
            except (CorruptRecord, NotInStore):
                continue
            wrong[row] = not belongs(one, self._topic, self._queue_id, start + int(row))
        return wrong

    def _describe(self, physical_offset: int) -> str:
        try:
            one = self._reader.log.message_at(physical_offset)
        except (CorruptRecord, NotInStore):
            return f"points at physical offset {physical_offset}, where no record starts"
        return f"points at message {one.queue_offset} of queue {one.topic}/{one.queue_id}"

    def _path_at(self, queue_offset: int) -> str:
        """Return the file that holds a unit, or the queue's folder."""
        at = queue_offset * cq_unit.SIZE
        for file in self.files:
            if file.start <= at < file.start + file.size:
                return f"{self.path}/{file.name}"
        return self.path


def is_blank(sizes: npt.NDArray[Any], places: npt.NDArray[Any]) -> Mask:
    """Whether units are the filler before a queue's first message."""
    found: Mask = (sizes == cq_unit.PRE_BLANK_SIZE) & (places == 0)
    return found


class BatchQueueCheck:
    """One batch queue of 5.x against the log: a unit a batch."""

    def __init__(
        self, reader: StoreReader, topic: str, queue_id: int, redispatch_from: int
    ) -> None:
        self._view = reader.batch_queue(topic, queue_id)
        self._redispatch_from = redispatch_from
        self._lacking: list[_Lacking] = []
        count = len(self._view.units)
        self._order = np.argsort(self._view.units["physical_offset"], kind="stable")
        self._is_right = np.zeros(count, np.bool_)
        self._is_wrong_size = np.zeros(count, np.bool_)
        self._is_wrong_tags = np.zeros(count, np.bool_)
        self.path = paths.queue_folder(topic, queue_id, paths.BATCH_CONSUME_QUEUE)
        self.files = list_queue_files(reader.folder, self.path)

    def compare(self, rows: Rows) -> None:
        """Compare batches of this queue with their units."""
        numbers, compared = compare_batches(rows, self._view.units, self._order)
        self._is_right[numbers[compared.is_mine]] = True
        self._is_wrong_size[numbers[compared.is_wrong_size]] = True
        self._is_wrong_tags[numbers[compared.is_wrong_tags]] = True
        self._lacking += _lacking(rows[compared.is_none], self._redispatch_from)

    def check(self, ledger: Ledger, log: LogCheck) -> dict[int, int]:
        """Report what is wrong; return how many units each file holds, by the file's start."""
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
        _report_lacking(ledger, self._lacking, lambda _: self.path)
        return {file.start: len(units) for file in self._view.files[:1]}
