"""The commit log for reading: files, segments, single records.

A walk yields what stands in a range, tiled: records, blanks, unwritten zeros and damage. It reads in
windows (maps of local files, range requests of remote ones), so memory stays flat however large the
log is; a record or a run of damage that crosses a window comes out whole.
"""

import bisect
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, NotInStore
from reput.format import kernels, message as record
from reput.format.message import StoredMessage, Verdict
from reput.store import paths
from reput.store.files import Bytes, Folder

_TAIL_STEP_BYTES = 64 * 1024
_TAIL_SLACK_BYTES = 8
"""A record may end with zeros: the length of absent properties."""
_HEAD_BYTES = 4096
_SEGMENTS_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the log."""

    name: str
    start: int
    """Physical offset of its first byte."""
    size: int
    """Bytes that are there."""
    nominal_size: int
    """Bytes that should be there: up to the next file, or as many as its neighbours have."""
    modified_ms: int

    @property
    def end(self) -> int:
        """Physical offset behind its last byte that is there."""
        return self.start + self.size

    @property
    def nominal_end(self) -> int:
        """Physical offset where the next file starts."""
        return self.start + self.nominal_size


@dataclass(frozen=True, slots=True)
class Damage:
    """A run of bytes that are no records, though records should be there."""

    physical_offset: int
    length: int
    verdict: Verdict
    file: str

    @property
    def end(self) -> int:
        """Physical offset behind the last of these bytes."""
        return self.physical_offset + self.length

    @property
    def reason(self) -> str:
        """What is wrong."""
        return record.REASONS[self.verdict]

    def error(self) -> CorruptRecord:
        """The same as an exception."""
        return CorruptRecord(
            self.reason, physical_offset=self.physical_offset, file=self.file, length=self.length
        )


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Records of one window."""

    buffer: Bytes
    physical_offset: int
    """Of the buffer's first byte."""
    positions: npt.NDArray[np.int64]
    """Of the records, within the buffer."""
    sizes: npt.NDArray[np.int32]
    damage: tuple[Damage, ...] = ()
    """Runs of bytes between the records that are none; may reach back into earlier windows."""

    def columns(self) -> kernels.Columns:
        """Decode the records."""
        return kernels.Columns(self.buffer, self.positions)


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """Records that stood where they were looked for, and those that did not."""

    batch: LogBatch
    rows: npt.NDArray[np.int64]
    """For each record of the batch, which of the asked-for offsets it stands at."""
    bad: tuple[tuple[int, Damage], ...]
    """Which of the asked-for offsets have no record of the asked-for size, and why."""


class CommitLogView:
    """The files of a commit log.

    Raises:
        CorruptRecord: Two files overlap.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    @cached_property
    def files(self) -> list[LogFile]:
        """All files, also the one that waits for its first record, in order."""
        entries = [
            (start, entry)
            for entry in self._folder.entries(paths.COMMIT_LOG)
            if not entry.is_folder and (start := paths.parse_offset_name(entry.name)) is not None
        ]
        usual = max((entry.size for _, entry in entries), default=0)
        found = []
        for i, (start, entry) in enumerate(entries):
            nominal = max(usual, entry.size)
            if i + 1 < len(entries):
                # Missing files leave a gap; a file of another size ends where the next one starts.
                nominal = min(entries[i + 1][0] - start, nominal)
            if nominal < entry.size:
                raise CorruptRecord(
                    f"has {entry.size} bytes and reaches into the next file",
                    file=f"{paths.COMMIT_LOG}/{entry.name}",
                )
            found.append(LogFile(entry.name, start, entry.size, nominal, entry.modified_ms))
        return found

    @property
    def min_offset(self) -> int:
        """The first physical offset; 0 for a log without files."""
        return self.files[0].start if self.files else 0

    @cached_property
    def data_end(self) -> int:
        """Physical offset behind the last byte that is not zero, in any file."""
        for file in reversed(self.files):
            end = self.data_end_of(file)
            if end > file.start:
                return end
        return self.min_offset

    def missing(self) -> Iterator[Damage]:
        """Yield the gaps that missing files leave."""
        for file, following in zip(self.files, self.files[1:], strict=False):
            if file.nominal_end < following.start:
                gap = following.start - file.nominal_end
                name = paths.offset_name(file.nominal_end)
                yield Damage(file.nominal_end, gap, Verdict.MISSING, name)

    def data_end_of(self, file: LogFile) -> int:
        """Return the physical offset behind the file's last byte that is not zero, or its start."""
        end = file.size
        step = _TAIL_STEP_BYTES
        while end > 0:
            start = max(end - step, 0)
            found = kernels.data_end(self._read(file, start, end - start))
            if found:
                return file.start + min(start + found + _TAIL_SLACK_BYTES, file.size)
            end = start
            step = min(step * 4, self._folder.window_bytes)
        return file.start

    def file_at(self, physical_offset: int) -> LogFile:
        """Return the file that holds an offset.

        Raises:
            NotInStore: None does; the text says what the log holds.
        """
        place = bisect.bisect_right([file.start for file in self.files], physical_offset) - 1
        if place >= 0 and physical_offset < self.files[place].end:
            return self.files[place]
        raise NotInStore(
            f"no log file holds physical offset {physical_offset}; "
            f"the log has {self.min_offset} to {self.data_end}"
        )

    def _read(self, file: LogFile, start: int, length: int) -> Bytes:
        return self._folder.read(f"{paths.COMMIT_LOG}/{file.name}", start, length)

    def record_bytes(self, physical_offset: int, size: int | None = None) -> bytes:
        """Return the bytes of the record at an offset; ``size`` saves a read where it is known.

        Raises:
            NotInStore: The offset is outside the log.
            CorruptRecord: No whole record stands there.
        """
        file = self.file_at(physical_offset)
        at = physical_offset - file.start
        data = self._read(file, at, size or _HEAD_BYTES)
        verdict, claimed = record.classify(
            data, 0, physical_offset, file_end=file.nominal_size - at, check_crc=False
        )
        if verdict is Verdict.TRUNCATED and claimed > len(data):
            data = self._read(file, at, claimed)
        verdict, claimed = record.classify(
            data, 0, physical_offset, file_end=file.nominal_size - at
        )
        if verdict is not Verdict.MESSAGE:
            reason = record.REASONS.get(verdict, f"no record here but {verdict.name.lower()}")
            raise CorruptRecord(reason, physical_offset=physical_offset, file=file.name)
        return bytes(data[:claimed])

    def message_at(self, physical_offset: int, size: int | None = None) -> StoredMessage:
        """Return the message at an offset. Raises as ``record_bytes`` does."""
        return record.decode(self.record_bytes(physical_offset, size))

    def store_timestamp_at(self, physical_offset: int) -> int:
        """Return the store time of the record at an offset, ms. Raises as ``record_bytes`` does."""
        return self.message_at(physical_offset).store_timestamp

    def find_record(self, physical_offset: int, stop: int) -> int:
        """Return the offset of the first record or blank from ``physical_offset`` on, else ``stop``."""
        for file in self.files:
            if file.end <= physical_offset:
                continue
            at = max(physical_offset, file.start)
            while at < min(file.end, stop):
                start = at - file.start
                window = self._read(file, start, self._folder.window_bytes)
                found = kernels.find_record(
                    window, 0, physical_offset=at, file_end=file.nominal_size - start
                )
                if found < len(window):
                    return min(at + found, stop)
                if start + len(window) >= file.size:
                    break
                at += max(len(window) - record.JUDGED_BYTES, 1)
        return stop

    def first_record(self, file: LogFile) -> StoredMessage | None:
        """Return the first message of a file, None if it starts with anything else."""
        try:
            return self.message_at(file.start)
        except (CorruptRecord, NotInStore):
            return None

    def last_record(self, file: LogFile) -> StoredMessage | None:
        """Return the last message of a file, found from the end of its data backwards."""
        end = self.data_end_of(file) - file.start
        start = end
        while start > 0:
            start = max(start - _TAIL_STEP_BYTES, 0)
            at = file.start + start
            last: StoredMessage | None = None
            while (at := self.find_record(at, file.start + end)) < file.start + end:
                try:
                    last = self.message_at(at)
                except CorruptRecord:
                    at += 1  # a blank, or a record with a wrong checksum
                else:
                    at += last.store_size
            if last is not None:
                return last
        return None

    def read_at(
        self,
        physical_offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int32],
        *,
        check_crc: bool = True,
    ) -> Iterator[FoundRecords]:
        """Read records whose offsets and sizes are known, as from a consume queue, in windows.

        Args:
            physical_offsets: Ascending.
            sizes: Of the same records.
            check_crc: Compare bodies and records with their checksums.
        """
        starts = np.array([file.start for file in self.files], np.int64)
        row = 0
        while row < len(physical_offsets):
            place = int(np.searchsorted(starts, physical_offsets[row], "right")) - 1
            file = self.files[place] if place >= 0 else None
            if file is None or physical_offsets[row] >= file.end:
                gone = Damage(int(physical_offsets[row]), int(sizes[row]), Verdict.MISSING, "")
                nothing = dataclasses.replace(_only(gone), damage=())
                yield FoundRecords(nothing, np.empty(0, np.int64), ((row, gone),))
                row += 1
                continue
            stop = self._window_rows(file, physical_offsets, sizes, row)
            yield self._read_window(file, physical_offsets, sizes, row, stop, check_crc)
            row = stop

    def _window_rows(
        self,
        file: LogFile,
        physical_offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int32],
        row: int,
    ) -> int:
        """Return behind which row a window that starts at ``row`` ends."""
        limit = min(file.end, int(physical_offsets[row]) + self._folder.window_bytes)
        stop = int(np.searchsorted(physical_offsets, limit, "left"))
        gaps = physical_offsets[row + 1 : stop] - physical_offsets[row : stop - 1] - sizes[row : stop - 1]
        wide = np.flatnonzero(gaps > self._folder.gap_bytes_max)
        stop = row + 1 + int(wide[0]) if len(wide) else stop
        return max(min(stop, row + _SEGMENTS_MAX), row + 1)

    def _read_window(
        self,
        file: LogFile,
        physical_offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int32],
        row: int,
        stop: int,
        check_crc: bool,
    ) -> FoundRecords:
        base = int(physical_offsets[row])
        end = min(int((physical_offsets[row:stop] + sizes[row:stop]).max()), file.end)
        window = self._read(file, base - file.start, end - base)
        positions = physical_offsets[row:stop] - base
        judged = kernels.judge(
            window,
            positions,
            physical_offset=base,
            file_end=file.nominal_end - base,
            check_crc=check_crc,
        )
        good = (judged.verdicts == Verdict.MESSAGE) & (judged.sizes == sizes[row:stop])
        bad = []
        for i in np.flatnonzero(~good):
            verdict = Verdict(int(judged.verdicts[i]))
            # Framed right but of another size than asked for: not the record that was meant.
            verdict = Verdict.BAD_SIZE if verdict is Verdict.MESSAGE else verdict
            verdict = Verdict.BAD_MAGIC if verdict is Verdict.BLANK else verdict
            at = base + int(positions[i])
            bad.append((row + int(i), Damage(at, int(sizes[row + i]), verdict, file.name)))
        batch = LogBatch(window, base, positions[good], judged.sizes[good])
        return FoundRecords(batch, row + np.flatnonzero(good), tuple(bad))

    def walk(
        self, start: int, stop: int, *, check_crc: bool = True, is_end: bool = True
    ) -> Iterator[LogBatch]:
        """Walk the records that start in ``[start, stop)``, and the damage between them.

        Args:
            start: Where a record, blank or file starts.
            stop: Records from here on are left.
            check_crc: Compare bodies and records with their checksums.
            is_end: The log ends at ``stop``: zeros up to it are room, not damage.
        """
        expected = start
        for file in self.files:
            if file.nominal_end <= start or file.start >= stop:
                continue
            if file.start > expected:
                gap = paths.offset_name(expected)
                damage = Damage(expected, file.start - expected, Verdict.MISSING, gap)
                yield _only(damage)
            expected = file.nominal_end
            file_stop = min(stop, file.nominal_end)
            may_be_empty = is_end and stop <= file.nominal_end
            yield from self._walk_file(
                file, max(start, file.start), file_stop, check_crc, may_be_empty
            )

    def _walk_file(
        self, file: LogFile, start: int, stop: int, check_crc: bool, may_end_in_zeros: bool
    ) -> Iterator[LogBatch]:
        pending: Damage | None = None  # what the next window may continue
        at = start
        window_bytes = self._folder.window_bytes
        while at < stop:
            position = at - file.start
            window = self._read(file, position, window_bytes)
            found = kernels.scan(
                window,
                0,
                stop - at,
                physical_offset=at,
                file_end=file.nominal_size - position,
                check_crc=check_crc,
                room=_SEGMENTS_MAX,
            )
            if found.next_position == 0:
                if position + len(window) < file.size:
                    window_bytes *= 4  # a record larger than the window
                    continue
                cut = Damage(at, file.nominal_end - at, Verdict.TRUNCATED, file.name)
                yield _only(_joined(pending, cut) if pending else cut)
                return
            runs = _runs(found, at, file.name)
            if pending is not None:
                if runs and runs[0].physical_offset == at and _is_one_run(pending, runs[0]):
                    runs[0] = _joined(pending, runs[0])
                else:
                    runs.insert(0, pending)
            at += found.next_position
            pending = runs.pop() if runs and runs[-1].end == at else None
            is_message = found.verdicts == Verdict.MESSAGE
            yield LogBatch(
                window,
                file.start + position,
                found.positions[is_message],
                found.sizes[is_message],
                tuple(_closed(run) for run in runs),
            )
        if pending is None and at == stop < file.nominal_end and not may_end_in_zeros:
            # Damage that begins just here has no other walk to report it.
            pending = self._damage_at(file, stop)
            at += pending.length if pending else 0
        if pending is not None and at >= stop and stop < file.nominal_end:
            # It may reach further than this walk was to go.
            end = self.find_record(at, file.nominal_end)
            if pending.verdict is not Verdict.ZEROS or end < file.nominal_end:
                pending = dataclasses.replace(pending, length=end - pending.physical_offset)
        if pending is not None and not (pending.verdict is Verdict.ZEROS and may_end_in_zeros):
            yield _only(_closed(pending))


    def _damage_at(self, file: LogFile, physical_offset: int) -> Damage | None:
        position = physical_offset - file.start
        window = self._read(file, position, self._folder.window_bytes)
        file_end = file.nominal_size - position
        found = kernels.scan(window, 0, 1, physical_offset=physical_offset, file_end=file_end, room=1)
        runs = _runs(found, physical_offset, file.name)
        is_framing = runs and runs[0].verdict not in (Verdict.BAD_CRC, Verdict.BAD_RECORD_CRC)
        return runs[0] if is_framing else None


def _runs(found: kernels.Segments, at: int, file: str) -> list[Damage]:
    """Return damage and zeros of a window."""
    is_run = (found.verdicts > Verdict.TRUNCATED) | (found.verdicts == Verdict.ZEROS)
    return [
        Damage(
            at + int(found.positions[i]),
            int(found.sizes[i]),
            Verdict(int(found.verdicts[i])),
            file,
        )
        for i in np.flatnonzero(is_run)
    ]


def _is_one_run(first: Damage, second: Damage) -> bool:
    """Whether two neighbours are the same run: zeros behind damage are not part of it."""
    return second.verdict is not Verdict.ZEROS or first.verdict is Verdict.ZEROS


def _joined(first: Damage, second: Damage) -> Damage:
    verdict = first.verdict if second.verdict is Verdict.ZEROS else _closed(first).verdict
    return Damage(first.physical_offset, first.length + second.length, verdict, first.file)


def _closed(run: Damage) -> Damage:
    """Return a run that something follows: zeros are damage then."""
    if run.verdict is not Verdict.ZEROS:
        return run
    return Damage(run.physical_offset, run.length, Verdict.BAD_ZEROS, run.file)


def _only(damage: Damage) -> LogBatch:
    return LogBatch(
        b"", damage.physical_offset, np.empty(0, np.int64), np.empty(0, np.int32), (damage,)
    )
