"""A log in files, and a slave, as the port for slaves sees them."""

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path

from reput.store.log.commit_log import LogPiece
from reput.store.log.replica_acks import ReplicaAcks

GUARD_S = 20.0


class View:
    def __init__(self, data: memoryview, log: "LogFiles") -> None:
        self.data = data
        self._log = log
        log.held_count += 1

    def release(self) -> bool:
        self.data.release()
        self._log.held_count -= 1
        return True


@dataclass
class LogFiles:
    """Enough of a store for ``SlavePort``: a log of any bytes, in files of a fixed size."""

    folder: Path
    file_size: int
    min_offset: int = 0
    data: bytearray = field(default_factory=bytearray)
    """The bytes from physical offset 0 on."""
    limit: int | None = None
    """``replication_limit``, if it is not the end of the log."""
    replicas: ReplicaAcks = field(default_factory=ReplicaAcks)
    settled: list[list[int | None]] = field(default_factory=list)
    """The acknowledged offsets, at each change."""
    held_count: int = 0

    @property
    def log(self) -> "LogFiles":
        return self

    @property
    def readable_offset(self) -> int:
        return len(self.data)

    max_physical_offset = readable_offset

    @property
    def replication_limit(self) -> int:
        return len(self.data) if self.limit is None else self.limit

    def append(self, data: bytes) -> None:
        first = len(self.data) // self.file_size * self.file_size
        self.data += data
        for start in range(first, len(self.data), self.file_size):
            piece = self.data[start : start + self.file_size]
            (self.folder / f"{start:020}").write_bytes(piece.ljust(self.file_size, b"\0"))

    def delete_before(self, physical_offset: int) -> None:
        for begin in range(self.min_offset, physical_offset, self.file_size):
            (self.folder / f"{begin:020}").unlink()
        self.min_offset = physical_offset

    def log_view(self, physical_offset: int, size_max: int) -> View | None:
        end = min(self.replication_limit, self._file_end(physical_offset))
        size = min(size_max, end - physical_offset)
        if size <= 0 or physical_offset < self.min_offset:
            return None
        return View(memoryview(bytes(self.data[physical_offset : physical_offset + size])), self)

    def log_file(self, physical_offset: int) -> LogPiece | None:
        if physical_offset < self.min_offset:
            return None
        end = self._file_end(physical_offset)
        start = end - self.file_size
        size = min(self.replication_limit, end) - physical_offset
        return LogPiece(str(self.folder / f"{start:020}"), physical_offset - start, size)

    def replicas_changed(self) -> None:
        self.settled.append([replica.acked_offset for replica in self.replicas.replicas])

    def _file_end(self, physical_offset: int) -> int:
        return physical_offset // self.file_size * self.file_size + self.file_size


class Slave:
    """A slave whose every byte the test controls. It reads only when the test asks it to."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.frames: list[tuple[int, int]] = []
        """Start and size of each frame with data."""

    @classmethod
    async def connect(cls, port: int, host: str = "127.0.0.1") -> "Slave":
        connection = socket.socket()
        connection.setblocking(False)
        connection.bind((host, 0))
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return cls(connection)

    def report(self, *offsets: int) -> None:
        self.write(b"".join(struct.pack(">q", offset) for offset in offsets))

    def write(self, data: bytes) -> None:
        if data:
            assert self.connection.send(data) == len(data)

    async def read(self, size: int) -> bytes:
        data = bytearray()
        async with asyncio.timeout(GUARD_S):
            while len(data) < size:
                missing = size - len(data)
                piece = await asyncio.get_running_loop().sock_recv(self.connection, missing)
                assert piece, "closed by the master"
                data += piece
        return bytes(data)

    async def frame(self) -> tuple[int, bytes]:
        """Return the start and the data of the next frame."""
        start, size = struct.unpack(">qi", await self.read(12))
        return start, await self.read(size)

    async def receive(self, start: int, end: int, *, acknowledges: bool = False) -> bytes:
        """Return the bytes of a range, which must arrive without a gap."""
        data, next_offset = bytearray(), start
        while next_offset < end:
            begin, piece = await self.frame()
            assert begin == next_offset
            data += piece
            next_offset += len(piece)
            if piece:
                self.frames.append((begin, len(piece)))
                if acknowledges:
                    self.report(next_offset)
        assert next_offset == end
        return bytes(data)

    async def closed(self) -> bytes:
        """Wait until the master closes the connection; return what it sent before."""
        data = bytearray()
        async with asyncio.timeout(GUARD_S):
            try:
                while piece := await asyncio.get_running_loop().sock_recv(self.connection, 1 << 16):
                    data += piece
            except ConnectionResetError:
                pass
        return bytes(data)

    def close(self) -> None:
        self.connection.close()
