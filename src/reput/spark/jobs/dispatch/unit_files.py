"""Read and write the queue files of a dispatch, and list the queue and index files of a folder."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from reput.errors import NotInStore, WriteFailed
from reput.format import cq_unit
from reput.spark.jobs.dispatch.write_plan import QueueKey
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import Folder
from reput.store.queues.consume_queue_view import UNIT_TYPE

UnitArray = npt.NDArray[np.void]


def write_at(path: str, size: int, parts: Iterable[tuple[int, Any]]) -> None:
    """Write bytes at positions of a file of ``size`` bytes. Other tasks may be writing to it.

    Raises:
        WriteFailed: The disk refuses it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            for position, data in parts:
                Disk().write(descriptor, path, position, data)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise WriteFailed(path, f"cannot write: {error.strerror}") from error


def write_units(
    queue_folder: str, file_size: int, first: int, units: UnitArray, *, is_start: bool
) -> None:
    """Write units of a queue from queue offset ``first`` on.

    At the beginning of a queue the space before its first unit in the file is filled with blanks.
    """
    for file_start, position, part in by_file(first, units, file_size):
        parts: list[tuple[int, Any]] = [(position, part.view(np.uint8).data)]
        if is_start and position and file_start + position == first * cq_unit.SIZE:
            parts.insert(0, (0, _blanks(position)))
        write_at(f"{queue_folder}/{paths.offset_name(file_start)}", file_size, parts)


def by_file(first: int, units: UnitArray, file_size: int) -> Iterator[tuple[int, int, UnitArray]]:
    """Yield (start of the file, position in it, units) for units from queue offset ``first`` on."""
    row = 0
    while row < len(units):
        offset = (first + row) * cq_unit.SIZE
        position = offset % file_size
        stop = min(len(units), row + (file_size - position) // cq_unit.SIZE)
        yield offset - position, position, units[row:stop]
        row = stop


def _blanks(size: int) -> bytes:
    return cq_unit.pack(cq_unit.Unit(0, cq_unit.PRE_BLANK_SIZE, 0)) * (size // cq_unit.SIZE)


def read_units(folder: Folder, path: str, position: int, length: int) -> UnitArray:
    """Return ``length`` bytes of a file as units; zeros where the file is missing or shorter."""
    try:
        data = bytes(folder.read(path, position, length))
    except NotInStore:
        data = b""
    return np.frombuffer(data.ljust(length, b"\0"), UNIT_TYPE)


def are_written(units: UnitArray) -> npt.NDArray[np.bool_]:
    """Return which units point at a message."""
    is_blank = (units["size"] == cq_unit.PRE_BLANK_SIZE) & (units["physical_offset"] == 0)
    written: npt.NDArray[np.bool_] = (units["size"] > 0) & ~is_blank
    return written


def queue_files(folder: Folder) -> Iterator[tuple[QueueKey, int, int]]:
    """Yield (queue, start, size) of each existing queue file."""
    for topic in folder.entries(paths.CONSUME_QUEUE):
        for queue in folder.entries(f"{paths.CONSUME_QUEUE}/{topic.name}"):
            queue_id = paths.parse_queue_id(queue.name)
            if queue_id is None:
                continue
            for file in folder.entries(paths.queue_folder(topic.name, queue_id)):
                start = paths.parse_offset_name(file.name)
                if start is not None:
                    yield (topic.name, queue_id), start, file.size


def index_files(folder: Folder) -> dict[str, int]:
    """Return the existing index files and their sizes, oldest first."""
    return {
        entry.name: entry.size
        for entry in sorted(folder.entries(paths.INDEX), key=lambda entry: entry.name)
        if paths.is_index_name(entry.name)
    }
