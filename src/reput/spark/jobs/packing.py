"""Write a store with a repacked log: its folder, the new places of records, the changes in them."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reput.errors import InvalidOption
from reput.format import body as bodies, message as record, properties as props
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import Folder

Rows = npt.NDArray[np.int64]


def begin_store(store: str, mark: str, request: bytes) -> None:
    """Create a store's folder, or check that an earlier run did; delete the log files in it.

    Args:
        store: The folder.
        mark: Name of a file that exists until the store is complete.
        request: Description of the store to write.

    Raises:
        InvalidOption: The folder holds other files.
    """
    disk, folder = Disk(), Path(store)
    disk.make_folder(store)
    if any(folder.iterdir()):
        if not (folder / mark).exists() or (folder / mark).read_bytes() != request:
            raise InvalidOption("store", store, "a folder that is new or empty")
    else:
        disk.replace(str(folder / mark), request)
    disk.make_folder(str(folder / paths.COMMIT_LOG))
    for path in (folder / paths.COMMIT_LOG).iterdir():
        disk.unlink(str(path))


def copy_tables(source: Folder, store: str) -> None:
    """Copy the broker's tables into a store."""
    disk, folder = Disk(), Path(store)
    disk.make_folder(str(folder / paths.CONFIG))
    for table in source.entries(paths.CONFIG):
        if table.name.endswith(".json"):
            data = bytes(source.read(f"{paths.CONFIG}/{table.name}"))
            disk.replace(str(folder / paths.CONFIG / table.name), data)


def finish_store(store: str, mark: str) -> None:
    """Delete the mark: the store is complete."""
    disk = Disk()
    disk.unlink(str(Path(store, mark)))
    disk.sync_folder(store)


def pack(sizes: Rows, file_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut records into files as a broker does: a blank follows the last record of each file.

    Args:
        sizes: Sizes of the records, in order.
        file_bytes: Size of a log file.

    Yields:
        (number of the first record, number after the last one) of each file.

    Raises:
        InvalidOption: A record is larger than a file.
    """
    room = file_bytes - record.BLANK.size
    if len(sizes) and int(sizes.max()) > room:
        raise InvalidOption("file_bytes", file_bytes, f"{int(sizes.max()) + record.BLANK.size} up")
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, before + room, "right"))
        yield first, stop
        first = stop


def move(data: npt.NDArray[np.uint8], positions: Rows, sizes: Rows, start: int) -> None:
    """Write the new physical offset into records.

    Args:
        data: The records.
        positions: Position of each record in ``data``.
        sizes: Size of each record.
        start: Physical offset of ``data``.
    """
    offsets = positions + start
    for i in range(record.PHYSICAL_OFFSET.size):
        target = positions + record.POSITION_PHYSICAL_OFFSET + i
        data[target] = offsets >> (56 - 8 * i) & 0xFF
    # The checksum property of a record covers the offset, too.
    last = positions + sizes - record.CRC_PROPERTY_BYTES
    has_crc = np.ones(len(positions), np.bool_)
    for i, byte in enumerate(record.CRC_PROPERTY_PREFIX):
        has_crc &= data[last + i] == byte
    digits_at = len(record.CRC_PROPERTY_PREFIX)
    has_crc &= data[positions + sizes - 1] == ord(props.PROPERTY_SEPARATOR)
    for position, crc_start in zip(
        positions[has_crc].tolist(), last[has_crc].tolist(), strict=True
    ):
        digits = f"{bodies.crc(data[position:crc_start].tobytes()):010d}"[::-1].encode()
        target = crc_start + digits_at
        data[target : target + len(digits)] = np.frombuffer(digits, np.uint8)


def write_log_file(store: str, name: str, data: memoryview, size: int) -> None:
    """Write a log file durably. Bytes after the data are zeros, which take no disk space."""
    disk = Disk()
    target = f"{store}/{paths.COMMIT_LOG}/{name}"
    draft = f"{store}/{paths.COMMIT_LOG}/.{name}.{uuid.uuid4().hex}{paths.DRAFT_SUFFIX}"
    try:
        descriptor = disk.create(draft, size, is_durable=False)
        try:
            disk.write(descriptor, draft, 0, data)
            disk.sync_file(descriptor, draft)
        finally:
            os.close(descriptor)
        disk.rename(draft, target)
        disk.sync_folder(os.path.dirname(target))  # noqa: PTH120 - paths are texts here
    finally:
        disk.unlink(draft)
