"""Extension units for writing (``enableConsumeQueueExt``): tags code, store time and filter bits.

With this option a queue's unit contains an address instead of its tags code; the extension files
have the other fields at that address. The position of a unit follows from the sizes of the previous
ones, so units that are written again after a crash get the same positions.
"""

import os
from pathlib import Path

from reput.descriptors import open_descriptor
from reput.errors import CorruptRecord
from reput.format import cq_unit
from reput.store.files import paths
from reput.store.files.disk import Disk, failed_opening

_UNIT_BYTES_MAX = 32767
_END_BYTES = cq_unit.EXT_END.size * 2
"""Bytes at the end of a file for its end mark: four bytes, of which two are used."""


class ConsumeQueueExt:
    """The extension of one queue. It holds no descriptor; new units are buffered in memory.

    Args:
        folder: Folder of the files.
        file_size: Size of a file in bytes.
        disk: Writes the files.
    """

    def __init__(self, folder: str, file_size: int, disk: Disk) -> None:
        self._folder = folder
        self._file_size = file_size
        self._disk = disk
        self._end = 0
        self._pending = bytearray()
        self._pending_start = 0
        self._unsynced: list[str] = []  # files that ended since the last ``write_out``

    @property
    def end(self) -> int:
        """Position of the next unit over all files; of the next file if the unit does not fit."""
        return self._end

    def cut(self, end: int) -> None:
        """Continue at a position after the last unit of the queue; later bytes are invalid."""
        self._pending.clear()
        self._end = end

    def end_of(self, address: int) -> int:
        """Return the position after the unit at an address.

        Raises:
            CorruptRecord: There is no unit.
        """
        unit = self.unit(address)
        return cq_unit.ext_offset(address) + unit.size

    def put(self, unit: cq_unit.ExtUnit) -> int:
        """Append a unit; return the address for the queue's unit.

        Raises:
            DiskFull: A file ended, and there was no space to write it.
        """
        data = cq_unit.pack_ext(unit)
        left = self._file_size - self._end % self._file_size
        if len(data) > left - _END_BYTES:
            self._append(cq_unit.EXT_END.pack(cq_unit.EXT_END_MARK))
            self._unsynced = self.write_out()
            self._end += self._file_size - self._end % self._file_size
        address = cq_unit.ext_address(self._end)
        self._append(data)
        return address

    def _append(self, data: bytes) -> None:
        if not self._pending:
            self._pending_start = self._end
        self._pending += data
        self._end += len(data)

    def write_out(self) -> list[str]:
        """Write the buffered units; return the paths of the files that must be synced.

        Raises:
            DiskFull: There was no space; it can be tried again.
        """
        if not self._pending:
            written, self._unsynced = self._unsynced, []
            return written
        file, position = divmod(self._pending_start, self._file_size)
        path = self._path(file * self._file_size)
        if not Path(path).exists():
            Path(self._folder).mkdir(parents=True, exist_ok=True)
            descriptor = self._disk.create(path, self._file_size, is_durable=False)
        else:
            descriptor = self._disk.open(path)
        try:
            self._disk.write(descriptor, path, position, bytes(self._pending))
        finally:
            os.close(descriptor)
        self._pending.clear()
        written, self._unsynced = [*self._unsynced, path], []
        return written

    def unit(self, address: int) -> cq_unit.ExtUnit:
        """Return the unit at an address.

        Raises:
            CorruptRecord: There is none.
        """
        position = cq_unit.ext_offset(address)
        data = self._bytes_at(position)
        unit = cq_unit.unpack_ext(data) if len(data) >= cq_unit.EXT_HEAD.size else None
        if unit is None:
            raise CorruptRecord(f"extension address {address} points at no unit", file=self._folder)
        return unit

    def _bytes_at(self, position: int) -> bytes:
        if self._pending and position >= self._pending_start:
            start = position - self._pending_start
            return bytes(self._pending[start : start + _UNIT_BYTES_MAX])
        file, file_position = divmod(position, self._file_size)
        path = self._path(file * self._file_size)
        try:
            descriptor = open_descriptor(path, os.O_RDONLY)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise failed_opening(path, "open", error) from error
        try:
            return os.pread(descriptor, _UNIT_BYTES_MAX, file_position)
        finally:
            os.close(descriptor)

    def _path(self, start: int) -> str:
        return f"{self._folder}/{paths.offset_name(start)}"

    def delete_before(self, address: int) -> None:
        """Delete the files with units before an address only, except the last file."""
        first = cq_unit.ext_offset(address) // self._file_size * self._file_size
        for start in self._starts()[:-1]:
            if start < first:
                self._disk.unlink(self._path(start))

    def delete(self) -> None:
        """Delete all files."""
        self.cut(0)
        for start in self._starts():
            self._disk.unlink(self._path(start))

    def _starts(self) -> list[int]:
        try:
            starts = [paths.parse_offset_name(file.name) for file in Path(self._folder).iterdir()]
        except FileNotFoundError:
            return []
        return sorted(start for start in starts if start is not None)
