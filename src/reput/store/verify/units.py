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
from reput.store.verify import findings, runs
from reput.store.verify.findings import Kind, Ledger, Severity
from reput.store.verify.log import Log
from reput.store.verify.runs import NO_OFFSETS, Mask, Offsets

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
        span = span or runs.span("message", self.queue_offset, self.count)
        if self.is_pending:
            severity, kind = Severity.NOTE, Kind.NOT_DISPATCHED
            text = f"{span}: not dispatched yet, the broker's next start does it"
        else:
            severity, kind = Severity.DAMAGE, Kind.UNIT_MISSING
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


class AbsentQueue:
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

    def check(self, ledger: Ledger, log: Log) -> dict[int, int]:
        """Report the records; those of a topic that no table knows are left from its deletion."""
        if self._is_deleted:
            count = sum(one.count for one in self._lacking)
            text = f"{count} messages in the log are of a topic that was deleted"
            ledger.add(Severity.NOTE, Kind.TOPIC, self.path, text, count=count)
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


class Queue:
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
        self._wrong: defaultdict[Kind, list[Offsets]] = defaultdict(list)
        """Queue offsets of units that point at their record, and do not agree with it."""
        self._missed: list[Offsets] = []
        """Queue offsets of records whose unit points elsewhere."""
        self._lacking: list[_Lacking] = []
        """Records for whose unit there is no place: no file, or filler."""
        self._unwritten: list[_Lacking] = []
        """Records that find zeros."""
        self._has_units = False
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
        is_written = units["size"] != 0
        self._unwritten += _lacking(rows[~is_written], self._redispatch_from)
        is_mine = is_written & (units["physical_offset"] == rows["physical_offset"])
        self._claim(numbers[is_mine])
        self._missed.append(numbers[is_written & ~is_mine])
        wrong = {Kind.UNIT_WRONG_SIZE: is_mine & (units["size"] != rows["size"])}
        if self._topic != names.SCHEDULE_TOPIC:  # there it is the time of delivery
            wrong[Kind.UNIT_WRONG_TAGS] = is_mine & (self._tags_codes(units) != rows["tags_code"])
        for kind, mask in wrong.items():
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

    def _tags_codes(self, units: UnitArray) -> Offsets:
        """Return the units' tags codes, those in extension files from there."""
        codes = units["tags_code"].astype(np.int64)
        extended = np.flatnonzero(codes <= cq_unit.EXT_ADDRESS_MAX)
        if len(extended):
            path = paths.queue_folder(self._topic, self._queue_id, paths.CONSUME_QUEUE_EXT)
            codes[extended] = extension_codes(self._reader.folder, path, codes[extended])
        return codes

    # What it has itself

    def check(self, ledger: Ledger, log: Log) -> dict[int, int]:
        """Report what is wrong; return how many units each file holds, by the file's start."""
        stop = max(self._view.max_offset, self._first + len(self._claimed))
        counts: dict[int, int] = {}
        for start, units in self._view.blocks(self._first, stop):
            counts[start * cq_unit.SIZE] = int((units["size"] != 0).sum())
            self._check_block(ledger, log, start, units)
        # Zeros amid the units are reported as such.
        behind = [one for one in self._unwritten if one.queue_offset >= stop]
        _report_lacking(ledger, self._lacking + behind, self._path_at)
        return counts

    def _check_block(self, ledger: Ledger, log: Log, start: int, units: UnitArray) -> None:
        places = units["physical_offset"].astype(np.int64)
        masks = self._judge(log, start, places, units["size"])
        for kind, parts in self._wrong.items():
            masks[kind] = runs.mask(np.concatenate(parts), start, len(units))
        wrong = runs.of(masks[Kind.UNIT_WRONG_RECORD])[: findings.RUNS_MAX]
        texts = {first: self._describe(int(places[first])) for first, _ in wrong}
        for kind, mask in masks.items():
            is_text_own = kind is Kind.UNIT_WRONG_RECORD
            ledger.add_units(
                self._path_at(start), kind, mask, start, texts if is_text_own else None
            )

    def _judge(
        self, log: Log, start: int, places: Offsets, sizes: npt.NDArray[np.int32]
    ) -> dict[Kind, Mask]:
        """Judge units: those that no record claimed, and the order of those that are right."""
        claimed = self._claimed[start - self._first : start - self._first + len(places)]
        claimed = np.pad(claimed, (0, len(places) - len(claimed)))
        missed = runs.mask(np.concatenate([NO_OFFSETS, *self._missed]), start, len(places))
        zero = sizes == 0
        blank = is_blank(sizes, places)
        invalid = (sizes < 0) | (places < 0)
        other = ~(claimed | zero | blank | invalid)
        unknown = other & ~missed
        expired = unknown & (places < log.start)
        stale = unknown & (places >= log.end)
        in_hole = unknown & log.in_hole(places)
        wrong = other & ~(expired | stale | in_hole)
        if self._reader.is_live:
            stale[:] = False  # the broker has gone on since
        if self._topic.startswith(names.LMQ_PREFIX):
            wrong = self._without_light(wrong, start, places)
        return {
            Kind.UNIT_ZERO: zero,
            Kind.UNIT_BLANK: blank & self._is_behind_units(~(blank | zero)),
            Kind.UNIT_INVALID: invalid,
            Kind.UNIT_STALE: stale,
            Kind.UNIT_IN_HOLE: in_hole,
            Kind.UNIT_WRONG_RECORD: wrong,
            Kind.UNIT_OUT_OF_ORDER: self._out_of_order(places, claimed | expired),
            Kind.QUEUE_OFFSET_TWICE: missed & claimed,
        }

    def _is_behind_units(self, is_unit: Mask) -> Mask:
        """Whether each place comes after some unit of the queue."""
        behind: Mask = np.logical_or.accumulate(is_unit) | self._has_units
        self._has_units = bool(behind[-1])
        return behind

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


class BatchQueue:
    """One batch queue of 5.x against the log: a unit a batch."""

    def __init__(
        self, reader: StoreReader, topic: str, queue_id: int, redispatch_from: int
    ) -> None:
        self._view = reader.batch_queue(topic, queue_id)
        self._redispatch_from = redispatch_from
        self._lacking: list[_Lacking] = []
        self._places = self._view.units["physical_offset"].astype(np.int64)
        self._is_right = np.zeros(len(self._places), np.bool_)
        self.path = paths.queue_folder(topic, queue_id, paths.BATCH_CONSUME_QUEUE)
        self.files = list_queue_files(reader.folder, self.path)

    def compare(self, rows: Rows) -> None:
        """Compare batches of this queue with their units."""
        order = np.argsort(self._places, kind="stable")
        at = np.searchsorted(self._places, rows["physical_offset"], sorter=order)
        has_unit = at < len(order)
        found = order[at[has_unit]]
        units, some = self._view.units[found], rows[has_unit]
        fields = ("physical_offset", "size", "queue_offset", "tags_code")
        is_mine = np.all([units[name] == some[name] for name in fields], axis=0)
        self._is_right[found[is_mine]] = True
        has_unit[has_unit] = is_mine
        self._lacking += _lacking(rows[~has_unit], self._redispatch_from)

    def check(self, ledger: Ledger, log: Log) -> dict[int, int]:
        """Report what is wrong; return how many units each file holds, by the file's start."""
        units = self._view.units
        other = ~self._is_right & (self._places >= log.start)
        stale = other & (self._places >= log.end)
        in_hole = other & log.in_hole(self._places)
        jumps = np.zeros(len(units), np.bool_)
        ends = units["queue_offset"] + units["message_count"]
        jumps[1:] = units["queue_offset"][1:] != ends[:-1]
        masks = {
            Kind.UNIT_STALE: stale,
            Kind.UNIT_IN_HOLE: in_hole,
            Kind.UNIT_WRONG_RECORD: other & ~(stale | in_hole),
            Kind.UNIT_OUT_OF_ORDER: jumps,
        }
        for kind, mask in masks.items():
            ledger.add_units(self.path, kind, mask, 0)
        _report_lacking(ledger, self._lacking, lambda _: self.path)
        return {file.start: len(units) for file in self._view.files[:1]}
