"""Archiving of one log file. Runs in a Spark task; needs no Spark itself.

One pass over the log file finds the records, with topic and day, and the ranges without records.
Then each topic and day is written as Parquet files, one at a time, from the mapped log, so that
memory holds one row group regardless of the number of topics. The written files are read back and
compared with the log before the manifest, which is written last, marks the log file as archived.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from reput.errors import CorruptRecord
from reput.format import kernels, sys_flag as flags
from reput.format.message import Verdict
from reput.spark.archive import files, records
from reput.spark.archive.files import Manifest, Part, Piece, Queue, RowGroup, Run
from reput.spark.archive.folder import ArchiveFolder, archive_folder
from reput.store.files import paths
from reput.store.files.files import open_folder
from reput.store.log import archived
from reput.store.log.commit_log_view import CommitLogView, Damage

ROW_GROUP_BYTES = 16 * 1024 * 1024
"""Size of the records of a row group, in bytes: what a lookup of one message reads."""
ROW_GROUP_ROWS_MAX = 64 * 1024
PART_BYTES = 512 * 1024 * 1024
"""Size of the records of a Parquet file, in bytes."""
KEY_TYPE = np.dtype([("hash", "<i4"), ("position", "<u4")])
"""Entry of a keys file: index hash of ``topic#key``, and position in the log file."""
_REST_LEVEL = 3
_HALF_MADE = (Verdict.BAD_CRC, Verdict.BAD_RECORD_CRC)
"""Damage of records that are indexed nevertheless, so that lookups find them."""
_DAY_MS = 86_400_000
_DAY_MIN, _DAY_MAX = -719_162, 2_932_896
"""Days of the years 1 to 9999; others have no date."""


@dataclass(frozen=True)
class Segment:
    """One log file to archive."""

    store: str
    """Folder of the store."""
    archive: str
    """Folder of the archive, a path or URI."""
    start: int
    """Physical offset of the log file's first byte."""
    stop: int
    """Physical offset after its part of the log."""
    is_closed: bool
    """True if the log continues in the next file."""
    broker: str
    level: int = 1
    """Compression level of zstd."""


@dataclass(frozen=True)
class _Records:
    """The records of a log file, as parallel arrays."""

    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    topics: npt.NDArray[np.int64]
    """Number of each record's topic."""
    topic_names: list[str]
    days: npt.NDArray[np.int64]
    """Day of each record since 1970; records without a date share one number."""
    times_ms: npt.NDArray[np.int64]
    queue_ids: npt.NDArray[np.int64]
    queue_offsets: npt.NDArray[np.int64]
    last_offsets: npt.NDArray[np.int64]
    """Queue offsets of their last messages: a batch record has several."""
    is_queued: npt.NDArray[np.bool_]
    keys: npt.NDArray[np.void]
    damage: tuple[Damage, ...]


def write_segment(segment: Segment) -> Manifest:
    """Archive one log file. Idempotent: repeating it writes the same files.

    Nothing is deleted, so that two concurrent attempts do no harm: both leave the same files.

    Raises:
        CorruptRecord: Written data reads back differently.
        WriteFailed: The archive cannot be written.
        NotInStore: The log file is missing.
    """
    folder = open_folder(segment.store)
    log = CommitLogView(folder)
    file = log.file_at(segment.start)
    data = np.frombuffer(folder.read(f"{paths.COMMIT_LOG}/{file.name}"), np.uint8)
    records_found = _walk(log, segment, data)
    target = archive_folder(segment.archive)
    parts = list(_write_parts(segment, data, records_found, target))
    ranges = _rest_ranges(records_found, len(data))
    rest = write_piece(target, f"{files.REST}/{file.name}.zst", _pack(data, ranges))
    keys = write_piece(target, files.keys_path(file.start), records_found.keys.tobytes())
    damaged = sum(run.length for run in records_found.damage)
    record_bytes = int(records_found.sizes.sum())
    manifest = Manifest(
        format=archived.FORMAT,
        start=file.start,
        size=len(data),
        nominal_size=file.nominal_size,
        sha256=hashlib.sha256(data.data).hexdigest(),
        end=segment.stop,
        is_closed=segment.is_closed,
        messages=len(records_found.positions),
        record_bytes=record_bytes,
        blank_bytes=max(segment.stop - file.start - record_bytes - damaged, 0),
        damaged_bytes=damaged,
        min_time_ms=int(records_found.times_ms.min()) if len(records_found.times_ms) else None,
        max_time_ms=int(records_found.times_ms.max()) if len(records_found.times_ms) else None,
        rest_ranges=tuple((file.start + position, length) for position, length in ranges),
        damage=tuple(
            Run(run.physical_offset, run.length, run.verdict.name) for run in records_found.damage
        ),
        queues=tuple(_queues(records_found)),
        rest=rest,
        keys=keys,
        parts=tuple(parts),
    )
    write_manifest(target, manifest)
    return manifest


def write_piece(target: ArchiveFolder, path: str, data: bytes) -> Piece:
    """Write a non-Parquet file of an archive."""
    target.put(path, data)
    return Piece(path, len(data), hashlib.sha256(data).hexdigest())


def write_manifest(target: ArchiveFolder, manifest: Manifest) -> None:
    """Write a manifest, which makes the log file part of the archive."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    target.put(archived.manifest_path(manifest.start), text)


# Survey of the log file -------------------------------------------------------------------


def _walk(log: CommitLogView, segment: Segment, data: npt.NDArray[np.uint8]) -> _Records:
    names: dict[str, int] = {}
    damage: list[Damage] = []
    keys: list[npt.NDArray[np.void]] = []
    pieces: list[tuple[npt.NDArray[np.int64], ...]] = []
    is_end = not segment.is_closed
    for batch in log.walk(segment.start, segment.stop, is_end=is_end):
        columns = batch.columns()
        ids, topics = columns.topic_ids()
        numbers = np.array([names.setdefault(item, len(names)) for item in topics], np.int64)
        positions = batch.positions + (batch.physical_offset - segment.start)
        keys.append(_keys(columns, positions))
        keys += (
            _keys(messages, messages.numbers("physical_offset") - segment.start)
            for messages in records.messages_inside(columns)
        )
        damage += batch.damage
        pieces.append(
            (
                positions,
                batch.sizes.astype(np.int64),
                numbers[ids] if len(numbers) else ids.astype(np.int64),
                columns.numbers("store_timestamp"),
                columns.numbers("queue_id").astype(np.int64),
                columns.numbers("queue_offset"),
                records.last_offsets(columns),
                columns.numbers("sys_flag").astype(np.int64),
            )
        )
    for run in damage:
        if run.verdict in _HALF_MADE:
            place = np.array([run.physical_offset - segment.start], np.int64)
            keys.append(_keys(kernels.Columns(data, place), place))
    columns_of = [
        np.concatenate([np.empty(0, np.int64), *(piece[i] for piece in pieces)]) for i in range(8)
    ]
    positions, sizes, ids64, times_ms, queue_ids, queue_offsets, last_offsets, sys_flags = (
        columns_of
    )
    days = times_ms // _DAY_MS
    days[(days < _DAY_MIN) | (days > _DAY_MAX)] = _DAY_MAX + 1
    kind = sys_flags & flags.TRANSACTION_MASK
    is_queued = (kind == flags.TRANSACTION_NONE) | (kind == flags.TRANSACTION_COMMIT)
    entries = np.concatenate([np.empty(0, KEY_TYPE), *keys])
    entries = entries[np.lexsort((entries["position"], entries["hash"]))]
    return _Records(
        positions,
        sizes,
        ids64,
        list(names),
        days,
        times_ms,
        queue_ids,
        queue_offsets,
        last_offsets,
        is_queued,
        entries,
        tuple(sorted(damage, key=lambda item: item.physical_offset)),
    )


def _keys(columns: kernels.Columns, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    rows, hashes = columns.key_hashes()
    entries = np.empty(len(rows), KEY_TYPE)
    entries["hash"] = hashes
    entries["position"] = positions[rows]
    return entries


def _rest_ranges(records_found: _Records, size: int) -> list[tuple[int, int]]:
    """Return (position, length) of the ranges without records."""
    starts = np.concatenate([[0], records_found.positions + records_found.sizes])
    stops = np.concatenate([records_found.positions, [size]])
    gaps = np.flatnonzero(starts < stops)
    return [(int(starts[i]), int(stops[i] - starts[i])) for i in gaps]


def _pack(data: npt.NDArray[np.uint8], ranges: list[tuple[int, int]]) -> bytes:
    rest = np.concatenate(
        [np.empty(0, np.uint8), *(data[position : position + n] for position, n in ranges)]
    )
    return zstandard.ZstdCompressor(level=_REST_LEVEL).compress(rest.data)


def _queues(records_found: _Records) -> Iterator[Queue]:
    kept = np.flatnonzero(records_found.is_queued)
    topics, ids, offsets, lasts = (
        records_found.topics[kept],
        records_found.queue_ids[kept],
        records_found.queue_offsets[kept],
        records_found.last_offsets[kept],
    )
    order = np.lexsort((offsets, ids, topics))
    topics, ids, offsets, lasts = topics[order], ids[order], offsets[order], lasts[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (np.diff(topics) != 0) | (np.diff(ids) != 0)
    firsts = np.flatnonzero(is_first)
    for first, end in zip(firsts, [*firsts[1:], len(order)], strict=True):
        topic = records_found.topic_names[topics[first]]
        low, high = int(offsets[first]), int(lasts[end - 1])
        yield Queue(topic, int(ids[first]), int(end - first), low, high)


# Parquet ------------------------------------------------------------------------------------


def _write_parts(
    segment: Segment, data: npt.NDArray[np.uint8], records_found: _Records, target: ArchiveFolder
) -> Iterator[Part]:
    """Write the records of each topic and day, ordered by their first record."""
    groups = records_found.topics << 32 | (records_found.days - _DAY_MIN)
    codes, firsts = np.unique(groups, return_index=True)
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], [*codes, codes[-1] + 1] if len(codes) else [])
    maker = records.ColumnMaker(segment.broker)
    for i in np.argsort(firsts):
        rows = order[bounds[i] : bounds[i + 1]]
        topic = records_found.topic_names[records_found.topics[rows[0]]]
        day = int(records_found.days[rows[0]])
        date = None if day > _DAY_MAX else str(np.datetime64(day, "D"))
        for number, part in enumerate(_cut(rows, records_found.sizes, PART_BYTES, len(rows))):
            path = files.part_path(segment.start, topic, date, number)
            row_groups = list(_cut(part, records_found.sizes, ROW_GROUP_BYTES, ROW_GROUP_ROWS_MAX))
            with target.draft(path) as draft:
                _write_parquet(draft, maker, data, records_found, row_groups, segment.level)
                size, sha256 = draft.stat().st_size, sha256_of(draft)
            yield Part(
                path,
                topic,
                date,
                len(part),
                size,
                sha256,
                tuple(
                    _row_group(row_group, records_found, segment.start) for row_group in row_groups
                ),
            )


def _cut(
    rows: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], most_bytes: int, most_rows: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Split rows into runs of about ``target`` bytes of records."""
    ends = np.cumsum(sizes[rows])
    start = 0
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + most_bytes, "right"))
        stop = min(max(stop, start + 1), start + most_rows)
        yield rows[start:stop]
        start = stop


def _row_group(rows: npt.NDArray[np.int64], records_found: _Records, log_start: int) -> RowGroup:
    last = rows[-1]
    return RowGroup(
        rows=len(rows),
        record_bytes=int(records_found.sizes[rows].sum()),
        min_offset=log_start + int(records_found.positions[rows[0]]),
        end_offset=log_start + int(records_found.positions[last] + records_found.sizes[last]),
        min_queue_offset=int(records_found.queue_offsets[rows].min()),
        max_queue_offset=int(records_found.last_offsets[rows].max()),
        min_time_ms=int(records_found.times_ms[rows].min()),
        max_time_ms=int(records_found.times_ms[rows].max()),
    )


def _write_parquet(
    draft: Path,
    maker: records.ColumnMaker,
    data: npt.NDArray[np.uint8],
    records_found: _Records,
    row_groups: list[npt.NDArray[np.int64]],
    level: int,
) -> None:
    rows_max = max(len(rows) for rows in row_groups)
    options = records.writer_options(rows_max, level)
    with (
        pa.OSFile(str(draft), "wb") as sink,
        pq.ParquetWriter(sink, records.SCHEMA, **options) as writer,
    ):
        for rows in row_groups:
            table = maker.table(data, records_found.positions[rows], records_found.sizes[rows])
            writer.write_table(table, row_group_size=rows_max)
    with pa.memory_map(str(draft)) as source, pq.ParquetFile(source) as written:
        for i, rows in enumerate(row_groups):
            names = records.record_columns()
            got = written.read_row_group(i, columns=names, use_threads=False)
            want = records.split_records(
                data, records_found.positions[rows], records_found.sizes[rows]
            )
            for name, pieces in zip(names, want, strict=True):
                if not got.column(name).combine_chunks().equals(pieces):
                    raise CorruptRecord(f"row group {i} reads back as other bytes", file=str(draft))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
