"""The new log of a salvaged store: pieces of the old one where they stood, fillers in the holes.

A task writes some of both into files that are there already, full of zeros.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reput.spark import plan
from reput.spark.jobs import hole_filling
from reput.spark.jobs.hole_filling import Fill, Hole
from reput.spark.jobs.stopped_store import StoppedStore
from reput.store import paths
from reput.store.disk import Disk
from reput.store.reader import StoreReader

WINDOW_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are, for every task."""

    source: StoppedStore
    draft: str
    first_start: int
    """Physical offset where the log begins."""
    file_bytes: int
    has_crc: bool
    """Fillers carry a checksum over the whole record: a broker may insist on it."""


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """Bytes ``[start, stop)`` of the log to be copied; they lie in one file."""

    start: int
    stop: int


Work = tuple[CopiedRange | Fill, ...]
"""Of one task, in the order of the log."""


def plan_copy(layout: Layout, holes: Sequence[Hole], end: int, partition_bytes: int) -> list[Work]:
    """Return what each task writes, so that all together write the log up to ``end``."""
    first = layout.first_start
    spans = plan.without_spans(
        [(first, end)] if first < end else [],
        [(hole.physical_offset, hole.end) for hole in holes],
    )
    work: list[CopiedRange | Fill] = []
    for start, stop in spans:
        # No piece reaches over the end of a file, nor is it more than a task's share.
        at = start
        while at < stop:
            file_end = at + layout.file_bytes - (at - first) % layout.file_bytes
            upto = min(stop, file_end, at + partition_bytes)
            work.append(CopiedRange(at, upto))
            at = upto
    for hole in holes:
        work += hole_filling.in_files(hole, first, layout.file_bytes)
    work.sort(key=_start_of)
    tasks: list[Work] = []
    share: list[CopiedRange | Fill] = []
    share_bytes = 0
    for one in work:
        size = one.stop - one.start if isinstance(one, CopiedRange) else one.length
        if share and share_bytes + size > partition_bytes:
            tasks.append(tuple(share))
            share, share_bytes = [], 0
        share.append(one)
        share_bytes += size
    return [*tasks, tuple(share)] if share else tasks


def write(layout: Layout, work: Work) -> int:
    """Do one task, which can be done again; return how many bytes that were.

    Raises:
        WriteFailed: The disk failed; also ``DiskFull``.
    """
    reader, disk = layout.source.reader(), Disk()
    written = 0
    for start, some in _by_file(layout, work):
        path = f"{layout.draft}/{paths.COMMIT_LOG}/{paths.offset_name(start)}"
        descriptor = disk.open(path)
        try:
            for one in some:
                for at, data in _contents(reader, one, layout.has_crc):
                    disk.write(descriptor, path, at - start, data)
                    written += len(data)
            disk.sync_file(descriptor, path)
        finally:
            os.close(descriptor)
    return written


def _by_file(layout: Layout, work: Work) -> Iterator[tuple[int, list[CopiedRange | Fill]]]:
    """Yield the start of each file of a task, and what is to be written into it."""
    grouped: dict[int, list[CopiedRange | Fill]] = defaultdict(list)
    for one in work:
        grouped[(_start_of(one) - layout.first_start) // layout.file_bytes].append(one)
    for number, some in grouped.items():
        yield layout.first_start + number * layout.file_bytes, some


def _contents(
    reader: StoreReader, one: CopiedRange | Fill, has_crc: bool
) -> Iterator[tuple[int, bytes | memoryview]]:
    if isinstance(one, Fill):
        yield from hole_filling.content(one, has_crc=has_crc)
        return
    file = reader.log.file_at(one.start)
    at = one.start
    while at < one.stop:
        length = min(one.stop - at, WINDOW_BYTES)
        data = reader.folder.read(f"{paths.COMMIT_LOG}/{file.name}", at - file.start, length)
        if not data:
            return  # behind the end of a cut file: zeros, as a new file has
        yield at, data
        at += len(data)


def _start_of(one: CopiedRange | Fill) -> int:
    return one.start if isinstance(one, CopiedRange) else one.physical_offset
