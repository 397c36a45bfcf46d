"""Tasks of a conversion: find the entries of a file, and write their records to the new log.

Between the two, a file for each log file of the source has the old and the new physical offset of
each record. References to other records are looked up there.
"""

import functools
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord, NotInStore
from reput.format import kernels, message as record, message_id, properties as props
from reput.spark.jobs import packing
from reput.spark.jobs.draft_store import WINDOW_BYTES
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.foreign import opening
from reput.store.foreign.chain_check import ChainCheck
from reput.store.foreign.ledger_reader import LedgerReader
from reput.store.log.commit_log_view import Damage, LogFile
from reput.store.reader import StoreReader

MOVED = np.dtype([("old", "i8"), ("new", "i8"), ("size", "i4")])
"""Row of a record: physical offset in the source, in the new log, and size in bytes."""
_ORIGIN = b"ORIGIN_MESSAGE_ID\x01"
_NAMES = (b"ORIGIN_MESSAGE_ID", b"DLQ_ORIGIN_MESSAGE_ID")
"""Properties with the offset id of another message: of what a consumer has sent back."""
_OFFSET_DIGITS = 16
_PAIRS, _VALUE = props.PROPERTY_SEPARATOR.encode(), props.NAME_VALUE_SEPARATOR.encode()


@dataclass(frozen=True, slots=True)
class ForeignStore:
    """The source of a conversion. Each job opens it again."""

    path: str
    job_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def reader(self) -> StoreReader:
        """Return the reader; a process opens it once per job."""
        return _opened(self)


@functools.lru_cache(maxsize=2)
def _opened(store: ForeignStore) -> StoreReader:
    return opening.open_reader(store.path)


@dataclass(frozen=True, slots=True)
class NewLog:
    """What every task needs to know."""

    source: ForeignStore
    parts: str
    """Folder of the tables of records."""
    commit_log: str
    """Folder of the new log."""
    first: int
    """Physical offset at which both logs begin."""
    file_bytes: int
    ledger_start: int
    """Physical offset from which on records move."""
    stop: int
    """Physical offset at which the source ends."""

    def part(self, start: int) -> str:
        """Return the path of the table of a log file of the source."""
        return f"{self.parts}/{paths.offset_name(start)}"

    def log_file(self, start: int) -> str:
        """Return the path of a file of the new log."""
        return f"{self.commit_log}/{paths.offset_name(start)}"


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """The facts about a log file of the source."""

    start: int
    count: int
    """Number of records."""
    size_bytes: int
    """Bytes of the records."""
    newest_ms: int
    damage: tuple[Damage, ...]
    first_index: int = -1
    """Index of the first entry; -1 without entries."""
    last_index: int = -1
    first_term: int = 0
    last_term: int = 0
    faults: tuple[str, ...] = ()
    """Faults of indexes, terms and the file of indexes, a sentence each."""


# --- scan -----------------------------------------------------------------------------------------


def scan(log: NewLog, start: int) -> ScannedFile:
    """Find the records of the log file that begins at ``start``, and save their places."""
    reader = log.source.reader()
    file = reader.log.file_at(start)
    stop = min(file.nominal_end, log.stop)
    chains: ChainCheck | None = None
    rows: list[npt.NDArray[np.void]] = []
    damage: list[Damage] = []
    newest_ms = 0
    if isinstance(reader, LedgerReader):
        chains = ChainCheck(reader.ledger)
        reader.log.chain_sink = chains.take
    for batch in reader.log.walk(start, stop, is_end=stop == log.stop):
        damage += batch.damage
        if len(batch.positions):
            batch_rows = np.zeros(len(batch.positions), MOVED)
            batch_rows["old"] = batch.positions + batch.physical_offset
            batch_rows["size"] = batch.sizes
            rows.append(batch_rows)
            times = batch.columns().numbers("store_timestamp")
            newest_ms = max(newest_ms, int(times.max()))
    table = np.concatenate(rows) if rows else np.zeros(0, MOVED)
    if start >= log.ledger_start:
        save(log.part(start), table)
    scanned = ScannedFile(start, len(table), int(table["size"].sum()), newest_ms, tuple(damage))
    return (
        scanned
        if chains is None
        else replace(
            scanned,
            first_index=chains.first_index,
            last_index=chains.last_index,
            first_term=chains.first_term,
            last_term=chains.last_term,
            faults=tuple(chains.order_faults + chains.index_faults),
        )
    )


def save(path: str, table: npt.NDArray[np.void]) -> None:
    """Write the table of a log file."""
    Disk().replace(path, table.tobytes())


def load(path: str) -> npt.NDArray[np.void]:
    """Return the table of a log file, without reading all of it."""
    if not os.path.getsize(path):  # noqa: PTH202 - paths are texts here
        return np.zeros(0, MOVED)
    return np.memmap(path, MOVED, "r")


# --- copy -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """The result of copying a log file of the source."""

    size_bytes: int
    changed_references: int
    """Number of references to other records that were moved."""
    lost_references: int
    """Number of references to records that the source does not have; they are unchanged."""


class Places:
    """The new places of records.

    Args:
        log: The conversion.
        starts: Physical offsets of the source's log files with entries, ascending.
    """

    def __init__(self, log: NewLog, starts: tuple[int, ...]) -> None:
        self._log = log
        self._starts = np.array(starts, np.int64)
        self._load = functools.lru_cache(8)(load)

    def new_of(self, old: int) -> int | None:
        """Return the new place of a record; None if the source does not have it."""
        if old < self._log.ledger_start:
            return old  # a record of the plain part, or one that has expired
        number = int(np.searchsorted(self._starts, old, "right")) - 1
        if number < 0:
            return None
        table = self._load(self._log.part(int(self._starts[number])))
        row = int(np.searchsorted(table["old"], old))
        if row == len(table) or table["old"][row] != old:
            return None
        return int(table["new"][row])


def copy(log: NewLog, starts: tuple[int, ...], start: int) -> CopiedFile:
    """Write the records of a log file of the source to their new places.

    It can be repeated: the same records go to the same places.

    Raises:
        WriteFailed: The disk failed; also ``DiskFull``.
    """
    reader = log.source.reader()
    file = reader.log.file_at(start)
    if start < log.ledger_start:
        return CopiedFile(_copy_plain(log, reader, file), 0, 0)
    table = load(log.part(start))
    references = References(reader, Places(log, starts))
    size_bytes = 0
    disk, descriptor, path = Disk(), -1, ""
    try:
        for run in _runs(log, table):
            target = log.log_file(int(run["new"][0]) // log.file_bytes * log.file_bytes)
            if target != path:
                if descriptor >= 0:
                    disk.sync_file(descriptor, path)
                    os.close(descriptor)
                path, descriptor = target, disk.open(target)
            data, positions = _gathered(reader, file, run)
            size_bytes += len(data)
            references.move(data, positions, run)
            array = np.frombuffer(data, np.uint8)
            sizes = run["size"].astype(np.int64)
            packing.move(array, positions, sizes, int(run["new"][0]))
            disk.write(descriptor, path, int(run["new"][0]) % log.file_bytes, memoryview(data))
        if descriptor >= 0:
            disk.sync_file(descriptor, path)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return CopiedFile(size_bytes, references.changed_count, references.lost_count)


def _runs(log: NewLog, table: npt.NDArray[np.void]) -> Iterator[npt.NDArray[np.void]]:
    """Yield rows that lie in one window of the source and one file of the new log."""
    row = 0
    while row < len(table):
        limit = int(table["old"][row]) + WINDOW_BYTES
        file_end = (int(table["new"][row]) // log.file_bytes + 1) * log.file_bytes
        stop = min(
            int(np.searchsorted(table["old"], limit)), int(np.searchsorted(table["new"], file_end))
        )
        stop = max(stop, row + 1)
        yield np.array(table[row:stop])
        row = stop


def _gathered(
    reader: StoreReader, file: LogFile, run: npt.NDArray[np.void]
) -> tuple[bytearray, npt.NDArray[np.int64]]:
    """Return the records of rows, concatenated, and their positions."""
    first = int(run["old"][0])
    end = int(run["old"][-1] + run["size"][-1])
    window = memoryview(
        reader.folder.read(f"{paths.COMMIT_LOG}/{file.name}", first - file.start, end - first)
    )
    begins = (run["old"] - first).tolist()
    ends = (run["old"] - first + run["size"]).tolist()
    data = bytearray().join([window[begin:end] for begin, end in zip(begins, ends, strict=True)])
    return data, run["new"] - run["new"][0]


def _copy_plain(log: NewLog, reader: StoreReader, file: LogFile) -> int:
    """Copy a file of the plain part, whose records stay where they are."""
    disk, target = Disk(), log.log_file(file.start)
    end = min(reader.log.data_end_of(file), log.stop) - file.start
    descriptor = disk.open(target)
    try:
        for position in range(0, end, WINDOW_BYTES):
            length = min(end - position, WINDOW_BYTES)
            data = reader.folder.read(f"{paths.COMMIT_LOG}/{file.name}", position, length)
            disk.write(descriptor, target, position, data)
        disk.sync_file(descriptor, target)
    finally:
        os.close(descriptor)
    return end


class References:
    """Moves what records say about the places of other records.

    That is the physical offset of the half message in the message of a transaction, and the offset
    id of the original in a message that a consumer has sent back.

    Args:
        reader: The source.
        places: New places of records.
    """

    def __init__(self, reader: StoreReader, places: Places) -> None:
        self._reader = reader
        self._places = places
        self.changed_count = 0
        self.lost_count = 0

    def move(
        self, data: bytearray, positions: npt.NDArray[np.int64], run: npt.NDArray[np.void]
    ) -> None:
        """Change the references in records, in place.

        Args:
            data: The records.
            positions: Their positions.
            run: Their rows.
        """
        prepared = kernels.Columns(data, positions).numbers("prepared_transaction_offset")
        for row in np.flatnonzero(prepared):
            self._move_prepared(data, int(positions[row]), int(prepared[row]))
        place = data.find(_ORIGIN)
        while place >= 0:
            i = int(np.searchsorted(positions, place, "right")) - 1
            self._move_ids(data, int(positions[i]), int(run["size"][i]))
            place = data.find(_ORIGIN, int(positions[i] + run["size"][i]))

    def _move_ids(self, data: bytearray, begin: int, size: int) -> None:
        """Change the ids in the properties of the record at ``begin``."""
        properties = record.decode(memoryview(data), begin, check_crc=False).property_bytes
        place = begin + size - len(properties)
        for pair in properties.split(_PAIRS):
            name, _, value = pair.partition(_VALUE)
            if name in _NAMES and len(value) in message_id.OFFSET_ID_LENGTHS:
                self._move_id(data, place + len(name) + 1, value.decode("ascii", "replace"))
            place += len(pair) + 1

    def _move_prepared(self, data: bytearray, position: int, old: int) -> None:
        new = self._new_of(old)
        if new is not None:
            (flags,) = record.SYS_FLAG.unpack_from(data, position + record.POSITION_SYS_FLAG)
            place = position + record.prepared_transaction_position(flags)
            record.PHYSICAL_OFFSET.pack_into(data, place, new)

    def _move_id(self, data: bytearray, position: int, text: str) -> None:
        try:
            old = message_id.decode_offset_id(text)
        except ValueError:
            return  # a value of a client
        try:
            is_own = self._reader.log.message_at(old.physical_offset).store_host == old.store_host
        except (CorruptRecord, NotInStore):
            is_own = False
        new = self._new_of(old.physical_offset) if is_own else None
        if new is not None:
            digits = f"{new:0{_OFFSET_DIGITS}X}".encode()
            end = position + len(text)
            data[end - _OFFSET_DIGITS : end] = digits

    def _new_of(self, old: int) -> int | None:
        new = self._places.new_of(old)
        self.changed_count += new is not None and new != old
        self.lost_count += new is None
        return new
