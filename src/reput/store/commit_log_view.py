"""The commit log for reading: files, segments, single records.

A walk yields what stands in a range, tiled: records, blanks, unwritten zeros and damage. It reads
in windows (maps of local files, range requests of remote ones), so memory stays flat however large
the log is; what a walk finds does not depend on where windows end.
"""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, NotInStore
from reput.format import kernels, message as record
from reput.format.message import StoredMessage, Verdict
from reput.store import paths
from reput.store.files import Bytes, Folder, data_bytes

_TAIL_STEP_BYTES = 64 * 1024
_HEAD_BYTES = 4096
_SEGMENTS_MAX = 1 << 16
_FRAMED = (Verdict.MESSAGE, Verdict.BLANK, Verdict.TRUNCATED)
_CHECKSUMS = (Verdict.BAD_CRC, Verdict.BAD_RECORD_CRC)
"""Of whole records: what follows is judged for itself."""


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
        return self._data_end_before(file, file.end)

    def _data_end_before(self, file: LogFile, stop: int) -> int:
        end = data_bytes(self._folder, f"{paths.COMMIT_LOG}/{file.name}", file.size)
        end = min(end, stop - file.start)
        step = _TAIL_STEP_BYTES
        while end > 0:
            start = max(end - step, 0)
            found = kernels.data_end(self._read(file, start, end - start))
            if found:
                return file.start + start + found
            end = start
            step = min(step * 4, self._folder.window_bytes)
        return file.start

    def data_goes_on(self, physical_offset: int) -> bool:
        """Whether anything but zeros stands from an offset on, in its file or a later one."""
        return any(
            self.data_end_of(file) > max(physical_offset, file.start)
            for file in self.files
            if file.end > physical_offset
        )

    def holds(self, physical_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tell which offsets lie in a file that is there."""
        starts = np.array([file.start for file in self.files], np.int64)
        ends = np.array([file.end for file in self.files], np.int64)
        place = np.searchsorted(starts, physical_offsets, "right") - 1
        inside: npt.NDArray[np.bool_] = place >= 0
        inside[inside] = physical_offsets[inside] < ends[place[inside]]
        return inside

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
        length = max(size or _HEAD_BYTES, record.JUDGED_BYTES)
        head = self._read(file, physical_offset - file.start, length)
        _, data = self._framed(file, physical_offset, head)
        verdict, claimed = record.classify(
            data, 0, physical_offset, file_end=file.nominal_end - physical_offset
        )
        if verdict is not Verdict.MESSAGE:
            reason = record.REASONS.get(verdict, f"no record here but {verdict.name.lower()}")
            raise CorruptRecord(reason, physical_offset=physical_offset, file=file.name)
        return bytes(data[:claimed])

    def message_at(self, physical_offset: int, size: int | None = None) -> StoredMessage:
        """Return the message at an offset. Raises as ``record_bytes`` does."""
        return record.decode(self.record_bytes(physical_offset, size))

    def end_of(self, physical_offset: int) -> int | None:
        """Return where the record at an offset ends; None if no record is framed right there.

        Its checksums are not looked at.
        """
        if self.find_record(physical_offset, physical_offset + 1) != physical_offset:
            return None
        file = self.file_at(physical_offset)
        size, magic = record.SIZE_AND_MAGIC.unpack_from(
            self._read(file, physical_offset - file.start, record.SIZE_AND_MAGIC.size)
        )
        return None if magic == record.MAGIC_BLANK else physical_offset + int(size)

    def store_timestamp_at(self, physical_offset: int) -> int:
        """Return the store time of the record at an offset, ms. Raises as ``record_bytes`` does."""
        return self.message_at(physical_offset).store_timestamp

    def find_record(self, physical_offset: int, stop: int) -> int:
        """Return where the next record or blank from ``physical_offset`` on is, else ``stop``."""
        for file in self.files:
            at = max(physical_offset, file.start)
            while at < min(file.end, stop):
                length = min(self._folder.window_bytes, stop - at + record.JUDGED_BYTES)
                window = self._read(file, at - file.start, length)
                found = kernels.find_record(
                    window, 0, physical_offset=at, file_end=file.nominal_end - at
                )
                at += found
                if found < len(window):
                    if at >= stop:
                        return stop
                    if self._framed(file, at, memoryview(window)[found:])[0] in _FRAMED:
                        return at
                    at += 1
                elif at < file.end and found:
                    at -= record.JUDGED_BYTES - 1  # too few bytes of a part to judge
                else:
                    break
        return stop

    def part_start(self, physical_offset: int, stop: int) -> int:
        """Return where to walk from for the part of the log that ``[physical_offset, stop)`` is."""
        expected = self.min_offset
        for file in self.files:
            if physical_offset <= file.start:
                is_gap = physical_offset == expected
                return physical_offset if is_gap else min(file.start, stop)
            if physical_offset < file.nominal_end:
                return self.find_record(physical_offset, min(file.nominal_end, stop))
            expected = file.nominal_end
        return stop

    def _framed(self, file: LogFile, physical_offset: int, data: Bytes) -> tuple[Verdict, Bytes]:
        """Judge head and lengths of what stands at an offset; ``data`` is its first part, or more.

        Returns the verdict, and the data with as much added as the record needs.
        """
        file_end = file.nominal_end - physical_offset
        verdict, claimed = record.classify(
            data, 0, physical_offset, file_end=file_end, check_crc=False
        )
        if verdict is Verdict.TRUNCATED and claimed > len(data):
            data = self._read(file, physical_offset - file.start, claimed)
            verdict, _ = record.classify(
                data, 0, physical_offset, file_end=file_end, check_crc=False
            )
        return verdict, data

    def first_record(self, file: LogFile) -> StoredMessage | None:
        """Return the first message of a file, None if it starts with anything else."""
        try:
            return self.message_at(file.start)
        except (CorruptRecord, NotInStore):
            return None

    def last_record(self, file: LogFile, stop: int | None = None) -> StoredMessage | None:
        """Return the last message of a file that starts before ``stop``, found from behind."""
        end = self.data_end_of(file)
        high = end if stop is None else min(end, stop)
        while high > file.start:
            low = max(high - _TAIL_STEP_BYTES, file.start)
            last: StoredMessage | None = None
            at = low
            while (at := self.find_record(at, high)) < high:
                try:
                    last = self.message_at(at)
                except CorruptRecord:
                    at += 1  # a blank, or a record with a wrong checksum
                else:
                    at += last.store_size
            if last is not None:
                return last
            high = low
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
                nothing = _only([])
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
        gaps = (
            physical_offsets[row + 1 : stop]
            - physical_offsets[row : stop - 1]
            - sizes[row : stop - 1]
        )
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
            is_end: The log ends at ``stop``, and what is behind is not looked at. Else damage that
                begins at ``stop`` is told too, and any in full: parts of the log that are walked
                from their ``part_start`` tell each damage once.
        """
        if start >= stop:
            return
        expected = start
        for file in self.files:
            if file.nominal_end <= start:
                continue
            if expected < min(file.start, stop):
                gap = paths.offset_name(expected)
                yield _only([Damage(expected, file.start - expected, Verdict.MISSING, gap)])
            if file.start >= stop:
                return
            expected = file.nominal_end
            file_stop = min(stop, file.nominal_end)
            is_end_here = is_end and stop <= file.nominal_end
            yield from self._walk_file(
                file, max(start, file.start), file_stop, check_crc, is_end_here
            )

    def _walk_file(
        self, file: LogFile, start: int, stop: int, check_crc: bool, is_end: bool
    ) -> Iterator[LogBatch]:
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
            is_cut = found.next_position == 0
            if is_cut and len(window) == window_bytes and position + len(window) < file.size:
                window_bytes *= 4  # a record larger than the window
                continue
            cut = [Damage(at, 1, Verdict.TRUNCATED, file.name)]
            runs = cut if is_cut else _runs(found, at, file)
            at += max(found.next_position, 1)
            if runs and runs[-1].end == at and runs[-1].verdict not in _CHECKSUMS:
                run = runs.pop()
                if runs and runs[-1].end == run.physical_offset:
                    # Zeros behind it, up to the end of the file: told apart below, if at all.
                    run = runs.pop() if runs[-1].verdict not in _CHECKSUMS else run
                rest, at = self._whole_run(file, run, stop, is_end)
                runs += rest
            is_message = found.verdicts == Verdict.MESSAGE
            yield LogBatch(
                window,
                file.start + position,
                found.positions[is_message],
                found.sizes[is_message],
                tuple(runs),
            )
        if not is_end and at < file.nominal_end:
            yield from self._damage_behind(file, at)

    def _damage_behind(self, file: LogFile, physical_offset: int) -> Iterator[LogBatch]:
        """Yield the damage that begins just behind the last record of a walk: no other meets it."""
        if self.find_record(physical_offset, physical_offset + 1) == physical_offset:
            return
        head = self._read(file, physical_offset - file.start, _HEAD_BYTES)
        verdict, _ = self._framed(file, physical_offset, head)
        run = Damage(physical_offset, 1, verdict, file.name)
        runs, end = self._whole_run(file, run, physical_offset, is_end=False)
        is_zeros = runs[0].verdict is Verdict.BAD_ZEROS
        is_room = is_zeros and end == file.nominal_end and end >= self.data_end
        if not is_room:
            yield _only(runs)

    def _whole_run(
        self, file: LogFile, run: Damage, stop: int, is_end: bool
    ) -> tuple[list[Damage], int]:
        """Complete a run of damage or zeros that a window may have cut.

        It ends at the next record or blank. Where none follows in the file, or before the end of
        the log, the zeros up to there are a run of their own: nothing says that they belong to
        what is damaged.

        Returns the runs, and where they end.
        """
        limit = stop if is_end else file.nominal_end
        end = self.find_record(min(run.end, limit), limit)
        zeros = end
        if end == limit <= file.end:
            zeros = max(self._data_end_before(file, end), run.physical_offset)
            # Fewer zeros cannot be told from the end of what is damaged.
            zeros = zeros if end - zeros >= record.SIZE_AND_MAGIC.size else end
        runs = []
        if run.physical_offset < zeros:
            verdict = Verdict.BAD_ZEROS if run.verdict is Verdict.ZEROS else run.verdict
            length = zeros - run.physical_offset
            runs.append(Damage(run.physical_offset, length, verdict, file.name))
        if zeros < end:
            runs.append(Damage(zeros, end - zeros, Verdict.BAD_ZEROS, file.name))
        return runs, end


def _runs(found: kernels.Segments, at: int, file: LogFile) -> list[Damage]:
    """Return damage and zeros of a window."""
    is_run = (found.verdicts > Verdict.TRUNCATED) | (found.verdicts == Verdict.ZEROS)
    return [
        Damage(
            at + int(found.positions[i]),
            int(found.sizes[i]),
            Verdict(int(found.verdicts[i])),
            file.name,
        )
        for i in np.flatnonzero(is_run)
    ]


def _only(damage: list[Damage]) -> LogBatch:
    at = damage[0].physical_offset if damage else 0
    return LogBatch(b"", at, np.empty(0, np.int64), np.empty(0, np.int32), tuple(damage))
