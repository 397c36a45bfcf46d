"""A TCP proxy between two processes, whose traffic a test stops, delays or cuts.

    async with Link("127.0.0.1:10912", random.Random(7)) as link:
        connect(link.port)
        link.up.delay_s = 0.002        # from the client to the target
        link.down.is_open = False      # a partition in one direction: nothing arrives
        link.cut()                     # reset both sides; later connections work
        link.refuse()                  # no connection is possible
        link.half_open()               # connections succeed, and stay silent
        link.heal()

A link is a directed pair: one process connects to one port of another. Bytes that a partition has
stopped arrive after healing, as TCP sends them again; if the connection was cut meanwhile, they are
lost. All choices come from the given Random.
"""

import asyncio
import contextlib
import enum
import random
import socket
import struct
from collections import deque
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from waiting import until

CHUNK_BYTES_MAX = 64 << 10
BUFFER_BYTES_MAX = 1 << 20
"""Bytes that a direction keeps while it delays or stops them; then it stops reading."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing resets the connection."""


class Mode(enum.Enum):
    """Treatment of connections."""

    PASS = "pass"
    REFUSE = "refuse"
    """A connection is reset at once."""
    HALF_OPEN = "half-open"
    """A connection is accepted, and nothing else happens; the end of one side is hidden from the
    other."""


class Direction:
    """Traffic in one direction of all connections of a link.

    Attributes:
        is_open: False: nothing passes; the sender gets no error.
        delay_s: Delay of each chunk, in s.
        jitter_s: Maximum random addition to the delay, in s; order is kept.
        splits: Whether chunks are split at random positions.
        bytes_per_s: Rate of each connection; 0: no limit.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.is_open = True
        self.delay_s = 0.0
        self.jitter_s = 0.0
        self.splits = False
        self.bytes_per_s = 0
        self.passed_bytes = 0
        self.changed = asyncio.Condition()

    def heal(self) -> None:
        """Let everything pass at once."""
        self.is_open, self.delay_s, self.jitter_s = True, 0.0, 0.0
        self.splits, self.bytes_per_s = False, 0

    def size(self) -> int:
        """Return the number of bytes of the next chunk."""
        if self.splits:
            return self.chance.randrange(1, 200)
        return CHUNK_BYTES_MAX if not self.bytes_per_s else max(1, self.bytes_per_s // 50)

    def wait_s(self) -> float:
        """Return the delay of the next chunk."""
        return self.delay_s + (self.chance.random() * self.jitter_s if self.jitter_s else 0.0)


class Link:
    """The proxy before a port.

    Args:
        target: Address of the target, ``host:port``; it may change.
        chance: Source of choices.
        port: Port of the proxy; by default any free one.
    """

    def __init__(self, target: str, chance: random.Random, port: int = 0) -> None:
        self.target = target
        self.port = port
        self.mode = Mode.PASS
        self.up = Direction(chance)
        self.down = Direction(chance)
        self.connection_count = 0
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen. Raises ``OSError``."""
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, limit=CHUNK_BYTES_MAX
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        self.cut()
        await until(lambda: not self._connections)  # by themselves; a cancelled one is logged
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # --- faults ------------------------------------------------------------------

    def heal(self) -> None:
        """Pass everything again. Connections that were half-open are reset."""
        if self.mode is Mode.HALF_OPEN:
            self.cut()
        self.mode = Mode.PASS
        self.up.heal()
        self.down.heal()
        self._wake()

    def cut(self) -> None:
        """Reset all connections."""
        for connection in list(self._connections):
            connection.reset()

    def refuse(self) -> None:
        """Reset all connections, and each new one."""
        self.mode = Mode.REFUSE
        self.cut()

    def half_open(self) -> None:
        """Stop all traffic; connections succeed, and the end of one side is hidden."""
        self.mode = Mode.HALF_OPEN
        self.up.is_open = self.down.is_open = False

    def stop_traffic(self, *, up: bool = True, down: bool = True) -> None:
        """Stop traffic in one direction or both; the connections stay open."""
        self.up.is_open, self.down.is_open = not up, not down

    def delay(self, delay_s: float, jitter_s: float = 0.0) -> None:
        """Delay the traffic of both directions."""
        for direction in (self.up, self.down):
            direction.delay_s, direction.jitter_s = delay_s, jitter_s

    # --- inside ---------------------------------------------------------------

    def _wake(self) -> None:
        async def notify(direction: Direction) -> None:
            async with direction.changed:
                direction.changed.notify_all()

        for direction in (self.up, self.down):
            self._run(notify(direction))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        connection = _Connection(self, reader, writer)
        self._connections.add(connection)
        try:
            if self.mode is not Mode.REFUSE:
                await connection.serve()
        except OSError:
            pass
        finally:
            connection.reset()
            self._connections.discard(connection)


class _Connection:
    """A connection through a link."""

    def __init__(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._link = link
        self._client = reader, writer
        self._writers = [writer]
        self._is_reset = asyncio.Event()

    async def serve(self) -> None:
        """Forward bytes until both sides have ended, or until the connection is reset."""
        reader, writer = self._client
        if self._link.mode is Mode.HALF_OPEN:
            # The client's bytes are taken by its peer's kernel, up to a limit.
            await self._is_reset.wait()
            return
        host, _, port = self._link.target.rpartition(":")
        target_reader, target_writer = await asyncio.open_connection(
            host, int(port), limit=CHUNK_BYTES_MAX
        )
        self._writers.append(target_writer)
        if self._is_reset.is_set():
            return
        flows = [
            asyncio.create_task(self._forward(reader, target_writer, self._link.up)),
            asyncio.create_task(self._forward(target_reader, writer, self._link.down)),
        ]
        is_reset = asyncio.create_task(self._is_reset.wait())
        try:
            running = {*flows, is_reset}
            while not is_reset.done() and not all(flow.done() for flow in flows):
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                running = {task for task in running if not task.done()}
                if any(flow.done() and flow.exception() is not None for flow in flows):
                    return
        finally:
            for task in (*flows, is_reset):
                task.cancel()
            await asyncio.gather(*flows, is_reset, return_exceptions=True)

    def reset(self) -> None:
        """Reset both sides."""
        self._is_reset.set()
        for writer in self._writers:
            with contextlib.suppress(OSError):
                sock = writer.get_extra_info("socket")
                if sock is not None:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        """Forward bytes, each after its delay; the end of the stream, too."""
        waiting: deque[tuple[float, bytes]] = deque()
        arrived = asyncio.Event()
        loop = asyncio.get_running_loop()
        size = 0

        async def read() -> None:
            nonlocal size
            last_s = 0.0
            while True:
                data = await reader.read(direction.size())
                # Later chunks do not overtake.
                last_s = max(last_s, loop.time() + direction.wait_s())
                waiting.append((last_s, data))
                size += len(data)
                arrived.set()
                if not data:
                    return
                while size > BUFFER_BYTES_MAX:
                    await asyncio.sleep(0.01)

        reading = asyncio.create_task(read())
        try:
            while True:
                while not waiting:
                    arrived.clear()
                    if reading.done():
                        reading.result()  # raises
                    reading.add_done_callback(lambda _: arrived.set())
                    await arrived.wait()
                due_s, data = waiting.popleft()
                if due_s > loop.time():
                    await asyncio.sleep(due_s - loop.time())
                async with direction.changed:
                    await direction.changed.wait_for(lambda: direction.is_open)
                if not data:
                    if writer.can_write_eof():
                        writer.write_eof()
                    return
                writer.write(data)
                direction.passed_bytes += len(data)
                size -= len(data)
                await writer.drain()
                if direction.bytes_per_s:
                    await asyncio.sleep(len(data) / direction.bytes_per_s)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
