"""The commit log for reading: files, segments, single records.

``walk`` yields the contents of a range without gaps: records, blanks, unwritten zeros and damage.
It reads in windows (maps of local files, range requests of remote ones), so memory stays constant
for a log of any size; the results do not depend on where windows end.
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
from reput.store.files import paths
from reput.store.files.files import Bytes, Folder, data_bytes

_TAIL_STEP_BYTES = 64 * 1024
_HEAD_BYTES = 4096
_SEGMENTS_MAX = 1 << 16
_FRAMED = (Verdict.MESSAGE, Verdict.BLANK, Verdict.TRUNCATED)
_CHECKSUMS = (Verdict.BAD_CRC, Verdict.BAD_RECORD_CRC)
"""Verdicts on complete records: the bytes after them are classified separately."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the log."""

    name: str
    start: int
    """Physical offset of the first byte."""
    size: int
    """Actual size in bytes."""
    nominal_size: int
    """Required size in bytes: up to the next file, or the size of the other files."""
    modified_ms: int

    @property
    def end(self) -> int:
        """Physical offset after the last byte of the actual size."""
        return self.start + self.size

    @property
    def nominal_end(self) -> int:
        """Physical offset at which the next file starts."""
        return self.start + self.nominal_size


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of bytes without valid records, where records should be."""

    physical_offset: int
    length: int
    verdict: Verdict
    file: str

    @property
    def end(self) -> int:
        """Physical offset after the last of these bytes."""
        return self.physical_offset + self.length

    @property
    def reason(self) -> str:
        """Description of the damage."""
        return record.REASONS[self.verdict]

    def error(self) -> CorruptRecord:
        """Return the damage as an exception."""
        return CorruptRecord(
            self.reason, physical_offset=self.physical_offset, file=self.file, length=self.length
        )


@dataclass(frozen=True, slots=True)
class LogBatch:
    """The records of one window."""

    buffer: Bytes
    physical_offset: int
    """Physical offset of the buffer's first byte."""
    positions: npt.NDArray[np.int64]
    """Positions of the records in the buffer."""
    sizes: npt.NDArray[np.int32]
    damage: tuple[Damage, ...] = ()
    """Ranges without valid records; they may start in an earlier window."""

    def columns(self) -> kernels.Columns:
        """Return the records' columns, which are decoded on use."""
        return kernels.Columns(self.buffer, self.positions)


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """Records read at requested offsets, and the offsets without a valid record."""

    batch: LogBatch
    rows: npt.NDArray[np.int64]
    """Index of the requested offset of each record in the batch."""
    bad: tuple[tuple[int, Damage], ...]
    """Index of each requested offset without a record of the requested size, and the damage."""


class CommitLogView:
    """The files of a commit log.

    Raises:
        CorruptRecord: Two files overlap.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    @cached_property
    def files(self) -> list[LogFile]:
        """All files in order, including one without records so far."""
        entries = [
            (start, entry)
            for entry in self._folder.entries(paths.COMMIT_LOG)
            if not entry.is_folder and (start := paths.parse_offset_name(entry.name)) is not None
        ]
        usual = max((entry.size for _, entry in entries), default=0)
        files = []
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
            files.append(LogFile(entry.name, start, entry.size, nominal, entry.modified_ms))
        return files

    @property
    def min_offset(self) -> int:
        """First physical offset; 0 for a log without files."""
        return self.files[0].start if self.files else 0

    @cached_property
    def data_end(self) -> int:
        """Physical offset after the last byte that is not zero, in any file."""
        for file in reversed(self.files):
            end = self.data_end_of(file)
            if end > file.start:
                return end
        return self.min_offset

    def missing(self) -> Iterator[Damage]:
        """Yield the gaps of missing files."""
        for file, following in zip(self.files, self.files[1:], strict=False):
            if file.nominal_end < following.start:
                gap = following.start - file.nominal_end
                name = paths.offset_name(file.nominal_end)
                yield Damage(file.nominal_end, gap, Verdict.MISSING, name)

    def data_end_of(self, file: LogFile) -> int:
        """Return the physical offset after a file's last byte that is not zero, or its start."""
        return self._data_end_before(file, file.end)

    def _data_end_before(self, file: LogFile, stop: int) -> int:
        end = data_bytes(self._folder, f"{paths.COMMIT_LOG}/{file.name}", file.size)
        end = min(end, stop - file.start)
        step = _TAIL_STEP_BYTES
        while end > 0:
            start = max(end - step, 0)
            data_length = kernels.data_end(self._read(file, start, end - start))
            if data_length:
                return file.start + start + data_length
            end = start
            step = min(step * 4, self._folder.window_bytes)
        return file.start

    def has_data_from(self, physical_offset: int) -> bool:
        """Return True if any bytes from an offset on are not zero, in its file or a later one."""
        return any(
            self.data_end_of(file) > max(physical_offset, file.start)
            for file in self.files
            if file.end > physical_offset
        )

    def holds(self, physical_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for each offset whether it is in an existing file."""
        starts = np.array([file.start for file in self.files], np.int64)
        ends = np.array([file.end for file in self.files], np.int64)
        index = np.searchsorted(starts, physical_offsets, "right") - 1
        inside: npt.NDArray[np.bool_] = index >= 0
        inside[inside] = physical_offsets[inside] < ends[index[inside]]
        return inside

    def file_at(self, physical_offset: int) -> LogFile:
        """Return the file that contains an offset.

        Raises:
            NotInStore: No file does; the text contains the range of the log.
        """
        index = bisect.bisect_right([file.start for file in self.files], physical_offset) - 1
        if index >= 0 and physical_offset < self.files[index].end:
            return self.files[index]
        raise NotInStore(
            f"no log file contains physical offset {physical_offset}; "
            f"the log has {self.min_offset} to {self.data_end}"
        )

    def _read(self, file: LogFile, start: int, length: int) -> Bytes:
        return self._folder.read(f"{paths.COMMIT_LOG}/{file.name}", start, length)

    def record_bytes(self, physical_offset: int, size: int | None = None) -> bytes:
        """Return the bytes of the record at an offset; a known ``size`` saves a read.

        Raises:
            NotInStore: The offset is outside of the log.
            CorruptRecord: There is no complete record.
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
        """Return the end of the record at an offset; None if no valid head of a record is there.

        Checksums are not compared.
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
        """Return the offset of the next record or blank from an offset on; ``stop`` without one."""
        for file in self.files:
            position = max(physical_offset, file.start)
            while position < min(file.end, stop):
                length = min(self._folder.window_bytes, stop - position + record.JUDGED_BYTES)
                window = self._read(file, position - file.start, length)
                skipped = kernels.find_record(
                    window, 0, physical_offset=position, file_end=file.nominal_end - position
                )
                position += skipped
                if skipped < len(window):
                    if position >= stop:
                        return stop
                    if self._framed(file, position, memoryview(window)[skipped:])[0] in _FRAMED:
                        return position
                    position += 1
                elif position < file.end and skipped:
                    position -= record.JUDGED_BYTES - 1  # too few bytes of a part to judge
                else:
                    break
        return stop

    def part_start(self, physical_offset: int, stop: int) -> int:
        """Return the offset at which to walk a partition ``[physical_offset, stop)`` of the log."""
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
        """Classify the bytes at an offset without checksums; ``data`` is the first part, or more.

        Returns the verdict, and the data, extended to the end of the record.
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
        """Return the first message of a file; None if the file starts with anything else."""
        try:
            return self.message_at(file.start)
        except (CorruptRecord, NotInStore):
            return None

    def last_record(self, file: LogFile, stop: int | None = None) -> StoredMessage | None:
        """Return the last message of a file that starts before ``stop``, searched backwards."""
        end = self.data_end_of(file)
        high = end if stop is None else min(end, stop)
        while high > file.start:
            low = max(high - _TAIL_STEP_BYTES, file.start)
            last: StoredMessage | None = None
            physical_offset = low
            while (physical_offset := self.find_record(physical_offset, high)) < high:
                try:
                    last = self.message_at(physical_offset)
                except CorruptRecord:
                    physical_offset += 1  # a blank, or a record with a wrong checksum
                else:
                    physical_offset += last.store_size
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
        """Read records of known offsets and sizes, for example from a consume queue, in windows.

        Args:
            physical_offsets: Offsets of the records, ascending.
            sizes: Sizes of the records.
            check_crc: Compare bodies and records with their checksums.
        """
        starts = np.array([file.start for file in self.files], np.int64)
        row = 0
        while row < len(physical_offsets):
            index = int(np.searchsorted(starts, physical_offsets[row], "right")) - 1
            file = self.files[index] if index >= 0 else None
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
        """Return the row after the last one of a window that starts at ``row``."""
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
            # A valid record of another size than the requested one is a different record.
            verdict = Verdict.BAD_SIZE if verdict is Verdict.MESSAGE else verdict
            verdict = Verdict.BAD_MAGIC if verdict is Verdict.BLANK else verdict
            start = base + int(positions[i])
            bad.append((row + int(i), Damage(start, int(sizes[row + i]), verdict, file.name)))
        batch = LogBatch(window, base, positions[good], judged.sizes[good])
        return FoundRecords(batch, row + np.flatnonzero(good), tuple(bad))

    def walk(
        self, start: int, stop: int, *, check_crc: bool = True, is_end: bool = True
    ) -> Iterator[LogBatch]:
        """Walk the records that start in ``[start, stop)``, and the damage between them.

        Args:
            start: Offset of a record, blank or file.
            stop: Records from here on are left out.
            check_crc: Compare bodies and records with their checksums.
            is_end: The log ends at ``stop``, and later bytes are not read. Otherwise damage that
                begins at ``stop`` is yielded too, and all damage in full: walks of consecutive
                partitions that begin at their ``part_start`` yield each damage once.
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
        physical_offset = start
        window_bytes = self._folder.window_bytes
        while physical_offset < stop:
            position = physical_offset - file.start
            window = self._read(file, position, window_bytes)
            segments = kernels.scan(
                window,
                0,
                stop - physical_offset,
                physical_offset=physical_offset,
                file_end=file.nominal_size - position,
                check_crc=check_crc,
                room=_SEGMENTS_MAX,
            )
            is_cut = segments.next_position == 0
            if is_cut and len(window) == window_bytes and position + len(window) < file.size:
                window_bytes *= 4  # a record larger than the window
                continue
            cut = [Damage(physical_offset, 1, Verdict.TRUNCATED, file.name)]
            runs = cut if is_cut else _runs(segments, physical_offset, file)
            physical_offset += max(segments.next_position, 1)
            if runs and runs[-1].end == physical_offset and runs[-1].verdict not in _CHECKSUMS:
                run = runs.pop()
                if runs and runs[-1].end == run.physical_offset:
                    # Zeros after it, up to the end of the file, may be separated below.
                    run = runs.pop() if runs[-1].verdict not in _CHECKSUMS else run
                rest, physical_offset = self._whole_run(file, run, stop, is_end)
                runs += rest
            is_message = segments.verdicts == Verdict.MESSAGE
            yield LogBatch(
                window,
                file.start + position,
                segments.positions[is_message],
                segments.sizes[is_message],
                tuple(runs),
            )
        if not is_end and physical_offset < file.nominal_end:
            yield from self._damage_at_end(file, physical_offset)

    def _damage_at_end(self, file: LogFile, physical_offset: int) -> Iterator[LogBatch]:
        """Yield the damage that begins at the end of a walk: no other walk yields it."""
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
        """Complete a range of damage or zeros that a window may have cut.

        It ends at the next record or blank. If none follows in the file, or before the end of the
        log, the zeros before that end are a separate range: they need not be part of the damage.

        Returns the ranges, and their end.
        """
        limit = stop if is_end else file.nominal_end
        end = self.find_record(min(run.end, limit), limit)
        zeros = end
        if end == limit <= file.end:
            zeros = max(self._data_end_before(file, end), run.physical_offset)
            # Fewer zeros may just as well be the end of the damaged bytes.
            zeros = zeros if end - zeros >= record.SIZE_AND_MAGIC.size else end
        runs = []
        if run.physical_offset < zeros:
            verdict = Verdict.BAD_ZEROS if run.verdict is Verdict.ZEROS else run.verdict
            length = zeros - run.physical_offset
            runs.append(Damage(run.physical_offset, length, verdict, file.name))
        if zeros < end:
            runs.append(Damage(zeros, end - zeros, Verdict.BAD_ZEROS, file.name))
        return runs, end


def _runs(segments: kernels.Segments, window_offset: int, file: LogFile) -> list[Damage]:
    """Return the damage and zeros of a window."""
    is_run = (segments.verdicts > Verdict.TRUNCATED) | (segments.verdicts == Verdict.ZEROS)
    return [
        Damage(
            window_offset + int(segments.positions[i]),
            int(segments.sizes[i]),
            Verdict(int(segments.verdicts[i])),
            file.name,
        )
        for i in np.flatnonzero(is_run)
    ]


def _only(damage: list[Damage]) -> LogBatch:
    start = damage[0].physical_offset if damage else 0
    return LogBatch(b"", start, np.empty(0, np.int64), np.empty(0, np.int32), tuple(damage))
