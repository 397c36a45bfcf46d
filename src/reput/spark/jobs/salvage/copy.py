"""Write the new log of a salvaged store: records at their old positions, fillers in the holes.

The files exist already, full of zeros; a task writes into some of them.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reput.spark import plan
from reput.spark.jobs import hole_filling
from reput.spark.jobs.hole_filling import Fill, Hole
from reput.spark.jobs.stopped_store import StoppedStore
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.reader import StoreReader

WINDOW_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders and sizes that every task needs."""

    source: StoppedStore
    draft: str
    first_start: int
    """Physical offset where the log begins."""
    file_bytes: int
    has_crc: bool
    """True if fillers have a checksum over the whole record: a broker may require it."""


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """Bytes ``[start, stop)`` of the log to copy, within one file."""

    start: int
    stop: int


Work = tuple[CopiedRange | Fill, ...]
"""The work of a task, in log order."""


def plan_copy(layout: Layout, holes: Sequence[Hole], end: int, partition_bytes: int) -> list[Work]:
    """Return the work of each task; all together write the log up to ``end``."""
    first = layout.first_start
    spans = plan.without_spans(
        [(first, end)] if first < end else [],
        [(hole.physical_offset, hole.end) for hole in holes],
    )
    work: list[CopiedRange | Fill] = []
    for start, stop in spans:
        # A range ends at the end of its file, and is at most a task's share.
        place = start
        while place < stop:
            file_end = place + layout.file_bytes - (place - first) % layout.file_bytes
            upto = min(stop, file_end, place + partition_bytes)
            work.append(CopiedRange(place, upto))
            place = upto
    for hole in holes:
        work += hole_filling.in_files(hole, first, layout.file_bytes)
    work.sort(key=_start_of)
    tasks: list[Work] = []
    share: list[CopiedRange | Fill] = []
    share_bytes = 0
    for part in work:
        size = part.stop - part.start if isinstance(part, CopiedRange) else part.length
        if share and share_bytes + size > partition_bytes:
            tasks.append(tuple(share))
            share, share_bytes = [], 0
        share.append(part)
        share_bytes += size
    return [*tasks, tuple(share)] if share else tasks


def write(layout: Layout, work: Work) -> int:
    """Do the work of a task, which can be repeated; return the number of bytes.

    Raises:
        WriteFailed: The disk failed; also ``DiskFull``.
    """
    reader, disk = layout.source.reader(), Disk()
    written = 0
    for start, parts in _by_file(layout, work):
        path = f"{layout.draft}/{paths.COMMIT_LOG}/{paths.offset_name(start)}"
        descriptor = disk.open(path)
        try:
            for part in parts:
                for place, data in _contents(reader, part, layout.has_crc):
                    disk.write(descriptor, path, place - start, data)
                    written += len(data)
            disk.sync_file(descriptor, path)
        finally:
            os.close(descriptor)
    return written


def _by_file(layout: Layout, work: Work) -> Iterator[tuple[int, list[CopiedRange | Fill]]]:
    """Yield the start of each file of a task, and the work in it."""
    grouped: dict[int, list[CopiedRange | Fill]] = defaultdict(list)
    for part in work:
        grouped[(_start_of(part) - layout.first_start) // layout.file_bytes].append(part)
    for number, parts in grouped.items():
        yield layout.first_start + number * layout.file_bytes, parts


def _contents(
    reader: StoreReader, part: CopiedRange | Fill, has_crc: bool
) -> Iterator[tuple[int, bytes | memoryview]]:
    if isinstance(part, Fill):
        yield from hole_filling.content(part, has_crc=has_crc)
        return
    file = reader.log.file_at(part.start)
    place = part.start
    while place < part.stop:
        length = min(part.stop - place, WINDOW_BYTES)
        data = reader.folder.read(f"{paths.COMMIT_LOG}/{file.name}", place - file.start, length)
        if not data:
            return  # after the end of a cut file: zeros, as in a new file
        yield place, data
        place += len(data)


def _start_of(part: CopiedRange | Fill) -> int:
    return part.start if isinstance(part, CopiedRange) else part.physical_offset
