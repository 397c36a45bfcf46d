"""Compact an archive: drop the Parquet files whose messages have all expired.

A Parquet file has one topic and one day, so a day of messages is dropped at a time, and only
manifests and keys are written. The manifest of a log file changes in one step. Files that no
manifest names are deleted after that by the driver, and by the next run if this one is killed.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from reput.format import sys_flag as flags
from reput.spark.archive import files, records
from reput.spark.archive.files import Dropped, Manifest, Part, Queue
from reput.spark.archive.folder import ArchiveFolder, archive_folder
from reput.spark.archive.write import KEY_TYPE, write_manifest, write_piece
from reput.spark.jobs.compact.expired import Retention
from reput.store.files.files import open_folder

Task = tuple[str, int, tuple[str, ...]]
"""An archive, the start of a log file, and the paths of the parts to drop."""


def expired_parts(manifest: Manifest, retention: Retention) -> list[Part]:
    """Return the parts of a log file whose messages have all expired.

    A log file that was not closed when it was archived is archived again, and is kept whole.
    """
    return [part for part in manifest.parts if manifest.is_closed and _is_past(part, retention)]


def _is_past(part: Part, retention: Retention) -> bool:
    begin_ms = retention.begin_ms(part.topic)
    return begin_ms is not None and all(group.max_time_ms < begin_ms for group in part.row_groups)


def drop_parts(task: Task) -> int:
    """Write the manifest and the keys of a log file without some parts; return the number dropped.

    Parts that the manifest no longer has were dropped before.
    """
    archive, start, dropped_paths = task
    folder, target = open_folder(archive), archive_folder(archive)
    manifest = files.load_manifest(folder, start)
    gone = [part for part in manifest.parts if part.path in dropped_paths]
    if not gone:
        return 0
    left = tuple(part for part in manifest.parts if part.path not in dropped_paths)
    entries = np.frombuffer(folder.read(manifest.keys.path), KEY_TYPE)
    entries = entries[
        ~np.isin(entries["position"].astype(np.int64) + start, _offsets(target, gone))
    ]
    keys = write_piece(target, _next_keys_path(manifest), entries.tobytes())
    topics = {part.topic for part in gone}
    queues = [queue for queue in manifest.queues if queue.topic not in topics]
    queues += _queues(target, [part for part in left if part.topic in topics])
    dropped = [
        Dropped(
            part.topic, part.date, part.rows, sum(group.record_bytes for group in part.row_groups)
        )
        for part in gone
    ]
    write_manifest(
        target,
        msgspec.structs.replace(
            manifest,
            queues=tuple(queues),
            keys=keys,
            parts=left,
            dropped=(*manifest.dropped, *dropped),
        ),
    )
    return len(gone)


def _next_keys_path(manifest: Manifest) -> str:
    stem = manifest.keys.path.rpartition("/")[2].removesuffix(".keys")
    return files.keys_path(manifest.start, int(stem.partition("-")[2] or 0) + 1)


def _offsets(target: ArchiveFolder, parts: Sequence[Part]) -> npt.NDArray[np.int64]:
    """Return the physical offsets of the messages of parts."""
    offsets = [np.empty(0, np.int64)]
    for part in parts:
        with target.open_parquet(part.path) as parquet:
            offsets.append(parquet.read(["physical_offset"]).column(0).to_numpy())
    return np.concatenate(offsets)


def _queues(target: ArchiveFolder, parts: Sequence[Part]) -> Iterator[Queue]:
    """Yield the queues of parts, with their counts and offsets."""
    queues: dict[tuple[str, int], Queue] = {}
    for part in parts:
        with target.open_parquet(part.path) as parquet:
            table = parquet.read(["queue_id", "queue_offset", "sys_flag"], use_threads=False)
            ids, offsets, sys_flags = (table.column(i).to_numpy() for i in range(3))
            lasts = _last_offsets(parquet) if (sys_flags & flags.INNER_BATCH).any() else offsets
        is_queued = (sys_flags & flags.TRANSACTION_PREPARED) == 0
        for queue_id in np.unique(ids[is_queued]).tolist():
            is_there = is_queued & (ids == queue_id)
            low, high = int(offsets[is_there].min()), int(lasts[is_there].max())
            known = queues.get((part.topic, queue_id), Queue(part.topic, queue_id, 0, low, high))
            queues[part.topic, queue_id] = Queue(
                part.topic,
                queue_id,
                known.messages + int(np.count_nonzero(is_there)),
                min(known.min_offset, low),
                max(known.max_offset, high),
            )
    yield from queues.values()


def _last_offsets(parquet: pq.ParquetFile) -> npt.NDArray[np.int64]:
    """Return the queue offset of the last message of each record of a part."""
    names = records.record_columns()
    groups = (parquet.read_row_group(i, names) for i in range(parquet.num_row_groups))
    return np.concatenate([records.last_offsets(records.columns_of(group)) for group in groups])


def delete_unnamed(archive: str) -> None:
    """Delete the files that belong to a log file and that its manifest does not name.

    A log file without a manifest is being archived: its files are kept.
    """
    folder, target = open_folder(archive), archive_folder(archive)
    manifests = files.load_manifests(folder)
    names = {manifest.name for manifest in manifests}
    named = {piece.path for manifest in manifests for piece in manifest.pieces}
    for path in (*target.files(files.MESSAGES), *target.files(files.KEYS)):
        name = path.rpartition("/")[2].partition(".")[0].partition("-")[0]
        if path not in named and name in names:
            target.delete(path)
