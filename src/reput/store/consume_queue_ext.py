"""Extension units for writing (``enableConsumeQueueExt``): tags code, store time and filter bits.

Where it is on, a queue's unit holds an address instead of its tags code, and at that address in the
extension files stands the rest. A unit's place follows from the sizes of those before it, so units
that are put again after a crash land where they were.
"""

import os
from pathlib import Path

from reput.descriptors import open_descriptor
from reput.errors import CorruptRecord
from reput.format import cq_unit
from reput.store import paths
from reput.store.disk import Disk, failed_opening

_UNIT_BYTES_MAX = 32767
_END_BYTES = cq_unit.EXT_END.size * 2
"""A file keeps this much free for the mark that ends it: four bytes, of which two are used."""


class ConsumeQueueExt:
    """The extension of one queue. It holds no descriptor; units wait in memory to be written out.

    Args:
        folder: Of its files.
        file_size: Bytes of a file.
        disk: What writes.
    """

    def __init__(self, folder: str, file_size: int, disk: Disk) -> None:
        self._folder = folder
        self._file_size = file_size
        self._disk = disk
        self._end = 0
        self._pending = bytearray()
        self._pending_at = 0
        self._unsynced: list[str] = []  # files that ended since the last ``write_out``

    @property
    def end(self) -> int:
        """Byte, over all files, where the next unit goes unless its file ends before."""
        return self._end

    def cut(self, end: int) -> None:
        """Go on at a byte: behind the last unit that a queue points at. What is behind is void."""
        self._pending.clear()
        self._end = end

    def end_of(self, address: int) -> int:
        """Return the byte behind the unit at an address.

        Raises:
            CorruptRecord: There is no unit.
        """
        unit = self.unit(address)
        return cq_unit.ext_offset(address) + unit.size

    def put(self, unit: cq_unit.ExtUnit) -> int:
        """Put a unit; return the address that goes into the queue's unit.

        Raises:
            DiskFull: A file ended, and there was no room to write it out.
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
            self._pending_at = self._end
        self._pending += data
        self._end += len(data)

    def write_out(self) -> list[str]:
        """Write what waits in memory; return the paths of the files that must be synced.

        Raises:
            DiskFull: There was no room; it can be tried again.
        """
        if not self._pending:
            written, self._unsynced = self._unsynced, []
            return written
        file, position = divmod(self._pending_at, self._file_size)
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
        at = cq_unit.ext_offset(address)
        data = self._bytes_at(at)
        unit = cq_unit.unpack_ext(data) if len(data) >= cq_unit.EXT_HEAD.size else None
        if unit is None:
            raise CorruptRecord(f"extension address {address} points at no unit", file=self._folder)
        return unit

    def _bytes_at(self, at: int) -> bytes:
        if self._pending and at >= self._pending_at:
            start = at - self._pending_at
            return bytes(self._pending[start : start + _UNIT_BYTES_MAX])
        file, position = divmod(at, self._file_size)
        path = self._path(file * self._file_size)
        try:
            descriptor = open_descriptor(path, os.O_RDONLY)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise failed_opening(path, "open", error) from error
        try:
            return os.pread(descriptor, _UNIT_BYTES_MAX, position)
        finally:
            os.close(descriptor)

    def _path(self, start: int) -> str:
        return f"{self._folder}/{paths.offset_name(start)}"

    def delete_before(self, address: int) -> None:
        """Delete the files all of whose units stand before an address, but the last."""
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
            found = [paths.parse_offset_name(one.name) for one in Path(self._folder).iterdir()]
        except FileNotFoundError:
            return []
        return sorted(start for start in found if start is not None)
