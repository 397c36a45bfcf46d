"""A network in memory: connections between addresses, which can be slow, silent, cut or cramped.

    write -> in flight --(delay of the link, in order, in pieces)--> inbox of the peer -> read
                       link silent: waits; too long: the connection ends with a timeout

A link is directed: ``silence("10.0.0.1", "10.0.0.2")`` stops the bytes of one direction only.
"""

import asyncio
import errno
import itertools
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sim.trace import Trace

if TYPE_CHECKING:
    from sim.loop import Context, Loop, Process

SYSTEM_BYTES = 64 * 1024
"""Bytes that the systems of both ends keep for a reader."""
HIGH_BYTES = 64 * 1024
LOW_BYTES = 16 * 1024
CONNECT_S = 60.0
"""Time after which a host that does not answer is given up."""
SILENCE_S = 20.0
"""Time after which a connection with undeliverable bytes ends."""
_END, _RESET = object(), object()

Address = tuple[str, int]


class Link:
    """One direction between two hosts."""

    def __init__(self) -> None:
        self.delay_s = (0.00005, 0.0005)
        """Delay, from and to."""
        self.is_silent = False
        self.bytes_at_once: int | None = None
        """Bytes that a reader takes at once; None: all."""


class Server:
    """A listening address of ``create_server``."""

    def __init__(self, network: "Network", address: Address) -> None:
        self._network = network
        self._address = address
        self.sockets = [self]

    def getsockname(self) -> Address:
        return self._address

    def close(self) -> None:
        self._network.listeners.pop(self._address, None)

    def is_serving(self) -> bool:
        return self._address in self._network.listeners

    async def wait_closed(self) -> None:
        """Return at once."""


class Network:
    """All hosts and their connections.

    Args:
        loop: The loop.
        chance: Source of all choices.
        trace: Gets all bytes that arrive.
    """

    def __init__(self, loop: "Loop", chance: random.Random, trace: Trace) -> None:
        self.loop = loop
        self.chance = chance
        self.trace = trace
        self.listeners: dict[Address, tuple[Process, Callable[[Side], object]]] = {}
        self.down: set[str] = set()
        """Hosts without power."""
        self._links: dict[tuple[str, str], Link] = {}
        self._sides: dict[Side, None] = {}
        self._ports = itertools.count(40_000)
        self._free_ports = itertools.count(20_000)

    # Links --------------------------------------------------------------------------------------

    def link(self, source: str, target: str) -> Link:
        """Return the link from a host to another one."""
        return self._links.setdefault((source, target), Link())

    def silence(self, source: str, target: str) -> None:
        """Stop the bytes of one direction."""
        self.link(source, target).is_silent = True

    def heal(self, source: str, target: str) -> None:
        """Let a link work again: what was written meanwhile arrives."""
        link = self.link(source, target)
        link.is_silent, link.bytes_at_once = False, None
        link.delay_s = Link().delay_s

    def heal_all(self) -> None:
        """Let all links work again."""
        for source, target in list(self._links):
            self.heal(source, target)

    def cut(self, first: str, second: str) -> None:
        """End the connections between two hosts, as a firewall that forgets them would."""
        for side in list(self._sides):
            if {side.address[0], side.peer_address[0]} == {first, second}:
                side.arrive(_RESET)

    def end_process(self, process: "Process", *, is_silent: bool) -> None:
        """End the connections of a process.

        Args:
            process: The process.
            is_silent: Whether its host has lost power, so that the peers learn nothing.
        """
        for address, (owner, _) in list(self.listeners.items()):
            if owner is process:
                del self.listeners[address]
        for side in list(self._sides):
            if side.process is process:
                side.is_open = False
                self.forget(side)
                side.flight.clear()
                if not is_silent:
                    side.send(_RESET)

    # Connections --------------------------------------------------------------------------------

    def listen(self, process: "Process", port: int, accept: Callable[["Side"], object]) -> Address:
        """Listen on an address; raise ``OSError`` if it is in use."""
        address = (process.host, port or next(self._free_ports))
        if address in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.listeners[address] = process, accept
        return address

    def serve(
        self, process: "Process", factory: Callable[[], asyncio.BaseProtocol], port: int
    ) -> Server:
        """Listen, with a protocol for each connection."""
        address = self.listen(process, port, lambda side: SimTransport(side, factory()))
        return Server(self, address)

    async def connect(
        self, process: "Process", factory: Callable[[], asyncio.BaseProtocol], address: Address
    ) -> tuple["SimTransport", asyncio.BaseProtocol]:
        """Connect to an address, as ``create_connection``. Raises ``OSError``."""
        side = await self.open(process, address)
        protocol = factory()
        return SimTransport(side, protocol), protocol

    async def open(self, process: "Process", address: Address) -> "Side":
        """Return the near side of a new connection. Raises ``OSError``."""
        here, there = process.host, address[0]
        deadline = self.loop.now + CONNECT_S
        while True:
            await asyncio.sleep(sum(self._delay(*pair) for pair in ((here, there), (there, here))))
            is_silent = self.link(here, there).is_silent or self.link(there, here).is_silent
            if not is_silent and there not in self.down:
                break
            if self.loop.now >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            await asyncio.sleep(0.2)
        if address not in self.listeners:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        owner, accept = self.listeners[address]
        own_address = (here, next(self._ports))
        near, far = (
            Side(self, process, own_address, address),
            Side(self, owner, address, own_address),
        )
        near.peer, far.peer = far, near
        self._sides[near] = self._sides[far] = None
        self.loop.call_soon(accept, far, context=far.context)
        return near

    def _delay(self, source: str, target: str) -> float:
        return self.chance.uniform(*self.link(source, target).delay_s)

    def forget(self, side: "Side") -> None:
        """Remove a side that is closed."""
        self._sides.pop(side, None)


class Side:
    """One side of a connection: what it has sent, and what has arrived."""

    def __init__(
        self, network: Network, process: "Process", address: Address, peer_address: Address
    ) -> None:
        from sim.loop import context_of

        self.network = network
        self.process = process
        self.address = address
        self.peer_address = peer_address
        self.peer: Side
        self.context: Context = context_of(process)
        self.is_open = True
        self.flight: deque[Any] = deque()
        self.inbox: deque[bytes] = deque()
        self.has_end = False
        """Whether the peer has closed its side, and all its bytes are read or in the inbox."""
        self.error: OSError | None = None
        self.flight_bytes = self.inbox_bytes = 0
        self.on_arrival: Callable[[], object] = lambda: None
        self.on_room: Callable[[], object] | None = None
        """Called when there is more room for writes; None while its owner has no need of it."""
        self._is_due = False
        self._silent_since: float | None = None
        self._link = network.link(address[0], peer_address[0])
        self._name = f"{address[0]}:{address[1]}>{peer_address[0]}:{peer_address[1]}"

    @property
    def unread_bytes(self) -> int:
        """Bytes that were written and that the peer has not read."""
        return self.flight_bytes + self.peer.inbox_bytes

    def send(self, piece: Any) -> None:
        """Send bytes, or an end."""
        self.flight.append(piece)
        if isinstance(piece, bytes):
            self.flight_bytes += len(piece)
        self.deliver_later()

    def deliver_later(self) -> None:
        """Deliver the next piece after the delay of the link."""
        if self._is_due or not self.flight:
            return
        self._is_due = True
        loop, delay = self.network.loop, self.network.chance.uniform(*self._link.delay_s)
        loop.call_later(delay, self._deliver, context=loop.world_context())

    def _deliver(self) -> None:
        self._is_due = False
        network = self.network
        if not self.flight:
            return
        if self._link.is_silent or self.peer_address[0] in network.down:
            self._wait()
            return
        self._silent_since = None
        if self.peer.inbox_bytes > SYSTEM_BYTES:
            return  # until it reads
        piece = self.flight.popleft()
        if isinstance(piece, bytes):
            piece = self._cut_piece(piece)
            self.flight_bytes -= len(piece)
            network.trace.add(network.loop.now, self._name, piece)
        else:
            network.trace.add(network.loop.now, f"{self._name} end")
        self.peer.arrive(piece)
        self.deliver_later()

    def _cut_piece(self, piece: bytes) -> bytes:
        """Return the bytes that arrive together: more than one write, or a part of one."""
        chance = self.network.chance
        while self.flight and isinstance(self.flight[0], bytes) and chance.random() < 0.5:
            piece += self.flight.popleft()
        size = self._link.bytes_at_once
        if size is None and len(piece) > 1 and chance.random() < 0.1:
            size = 1 + int(chance.random() * len(piece))
        if size is not None and size < len(piece):
            self.flight.appendleft(piece[size:])
            piece = piece[:size]
        return piece

    def _wait(self) -> None:
        """Try again later, or end the connection after a long silence."""
        network = self.network
        if self._silent_since is None:
            self._silent_since = network.loop.now
        if network.loop.now - self._silent_since > SILENCE_S:
            self.flight.clear()
            self.flight_bytes = 0
            self._fail(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
            return
        self._is_due = True
        network.loop.call_later(0.2, self._deliver, context=network.loop.world_context())

    def arrive(self, piece: Any) -> None:
        """Take a piece from the network."""
        if not self.is_open:
            if piece is not _RESET and self.peer.is_open:
                self.send(_RESET)
            return
        if piece is _RESET:
            self._fail(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
            return
        if piece is _END:
            self.has_end = True
        else:
            self.inbox.append(piece)
            self.inbox_bytes += len(piece)
        self._call(self.on_arrival)

    def _fail(self, error: OSError) -> None:
        if not self.is_open or self.error is not None:
            return
        self.error = error
        self.inbox.clear()
        self.inbox_bytes = 0
        self._call(self.on_arrival)
        self.call_for_room()

    def _call(self, action: Callable[[], object]) -> None:
        self.network.loop.call_soon(action, context=self.context)

    def call_for_room(self) -> None:
        """Call who waits for room."""
        if self.on_room is not None:
            self._call(self.on_room)

    def read_into(self, buffer: memoryview) -> int:
        """Read bytes that have arrived; return their number."""
        size = 0
        while self.inbox and size < len(buffer):
            piece = self.inbox.popleft()
            part = piece[: len(buffer) - size]
            buffer[size : size + len(part)] = part
            size += len(part)
            if len(part) < len(piece):
                self.inbox.appendleft(piece[len(part) :])
        self.inbox_bytes -= size
        if size:
            self.peer.deliver_later()
            self.peer.call_for_room()
        return size

    def close(self, *, is_abrupt: bool = False) -> None:
        """Close this side."""
        if not self.is_open:
            return
        if is_abrupt:
            self.flight.clear()
            self.flight_bytes = 0
        if self.error is None:
            self.send(_RESET if is_abrupt or self.inbox else _END)
        self.is_open = False
        self.network.forget(self)


class SimTransport(asyncio.Transport):
    """A side of a connection with a protocol.

    Args:
        side: The side.
        protocol: Its protocol, which is started.
    """

    def __init__(self, side: Side, protocol: asyncio.BaseProtocol) -> None:
        super().__init__({"peername": side.peer_address, "sockname": side.address})
        self._side = side
        self._protocol: Any = protocol
        self._is_reading = True
        self._is_closing = False
        self._is_lost = False
        self._has_paused = False
        side.on_arrival = self._arrived
        self._protocol.connection_made(self)
        side._call(self._arrived)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    # Writing ------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        if self._side.error is not None:
            return
        self._side.send(bytes(data))
        if not self._has_paused and self.get_write_buffer_size() > HIGH_BYTES:
            self._has_paused = True
            self._side.on_room = self._check_room
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return max(0, self._side.unread_bytes - SYSTEM_BYTES)

    def _check_room(self) -> None:
        if self._has_paused and not self._is_lost and self.get_write_buffer_size() <= LOW_BYTES:
            self._has_paused = False
            self._side.on_room = self._check_room if self._is_closing else None
            self._protocol.resume_writing()
        if self._is_closing and not self._is_lost and not self.get_write_buffer_size():
            self._lose(None)

    def is_closing(self) -> bool:
        # After the end of a run there is nothing to close: streams are released at any time.
        return self._is_closing or self._side.network.loop.is_closed()

    def close(self) -> None:
        """Close the connection when all bytes are on their way."""
        if self._is_closing:
            return
        self._is_closing = True
        self._side.on_room = self._check_room
        if not self.get_write_buffer_size():
            self._lose(None)

    def abort(self) -> None:
        """Close the connection, and drop the bytes on their way."""
        self._is_closing = True
        self._side.close(is_abrupt=True)
        self._lose(None)

    def _lose(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._side.close()
        self._side._call(lambda: self._protocol.connection_lost(error))

    # Reading ------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._side._call(self._arrived)

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def _arrived(self) -> None:
        side = self._side
        if side.error is not None:
            self._lose(side.error)
            return
        if not self.is_reading():
            return
        if side.inbox:
            self._read()
            if side.inbox or side.has_end:
                side._call(self._arrived)
            return
        if side.has_end:
            keeps_open = self._protocol.eof_received()
            if not keeps_open:
                self.close()

    def _read(self) -> None:
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            buffer = memoryview(self._protocol.get_buffer(-1))
            size = self._side.read_into(buffer)
            if size:
                self._protocol.buffer_updated(size)
            return
        data = bytearray(SYSTEM_BYTES)
        size = self._side.read_into(memoryview(data))
        if size:
            self._protocol.data_received(bytes(data[:size]))


class SimSocket:
    """A side of a connection, or a listening address, as a socket that does not block.

    Args:
        loop: The loop, which has its descriptor.
        side: The side; None for a listening one.
        address: Its own address.
    """

    def __init__(self, loop: "Loop", side: Side | None, address: Address) -> None:
        self._loop = loop
        self._side = side
        self._address = address
        self._on_readable: Callable[[], object] | None = None
        self._on_writable: Callable[[], object] | None = None
        self._accepted: deque[Side] = deque()
        self._descriptor = loop.register(self)
        self._is_closed = False
        if side is not None:
            side.on_arrival = self._readable

    @classmethod
    def listening(cls, loop: "Loop", process: "Process", port: int) -> "SimSocket":
        """Return a listening socket. Raises ``OSError``."""
        made: list[SimSocket] = []
        address = loop.network.listen(process, port, lambda side: made[0]._accept_later(side))
        made.append(cls(loop, None, address))
        return made[0]

    def _accept_later(self, side: Side) -> None:
        self._accepted.append(side)
        self._readable()

    def accept(self) -> tuple["SimSocket", Address]:
        if not self._accepted:
            raise BlockingIOError
        side = self._accepted.popleft()
        return SimSocket(self._loop, side, side.address), side.peer_address

    # Descriptors --------------------------------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self._is_closed else self._descriptor

    def watch_reads(self, callback: Callable[[], object] | None) -> bool:
        """Set the callback for bytes that have arrived; return whether there was one."""
        was_set, self._on_readable = self._on_readable is not None, callback
        self._readable()
        return was_set

    def watch_writes(self, callback: Callable[[], object] | None) -> bool:
        """Set the callback for room; return whether there was one."""
        was_set, self._on_writable = self._on_writable is not None, callback
        if self._side is not None:
            self._side.on_room = self._writable if callback is not None else None
        self._writable()
        return was_set

    @property
    def _is_readable(self) -> bool:
        side = self._side
        if side is None:
            return bool(self._accepted)
        return bool(side.inbox) or side.has_end or side.error is not None

    def _readable(self) -> None:
        if self._on_readable is not None and self._is_readable:
            self._loop.call_soon(self._read_once)

    def _read_once(self) -> None:
        if self._on_readable is not None and self._is_readable:
            self._on_readable()
            self._readable()  # as long as something is there

    def _writable(self) -> None:
        if self._on_writable is not None and self._room() > 0:
            self._loop.call_soon(self._write_once)

    def _write_once(self) -> None:
        if self._on_writable is not None and self._room() > 0:
            self._on_writable()

    def _room(self) -> int:
        side = self._side
        if side is None:
            return 0
        return 1 if side.error is not None else SYSTEM_BYTES - side.unread_bytes

    # The interface of sockets ---------------------------------------------------------------------

    def setblocking(self, is_blocking: bool) -> None:
        """Do nothing: it never blocks."""

    def setsockopt(self, *_: Any) -> None:
        """Do nothing."""

    def getsockname(self) -> Address:
        return self._address

    def _checked(self) -> Side:
        side = self._side
        if self._is_closed or side is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if side.error is not None:
            raise side.error
        return side

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        count = self._receive(memoryview(buffer))
        return bytes(buffer[:count])

    def recvmsg_into(self, buffers: Sequence[memoryview]) -> tuple[int, list[Any], int, None]:
        count = 0
        for buffer in buffers:
            part = self._checked().read_into(buffer) if count else self._receive(buffer)
            count += part
            if part < len(buffer):
                break
        return count, [], 0, None

    def _receive(self, buffer: memoryview) -> int:
        side = self._checked()
        if side.inbox:
            return side.read_into(buffer)
        if side.has_end:
            return 0
        raise BlockingIOError

    def send(self, data: bytes | memoryview, _flags: int = 0) -> int:
        side, room = self._checked(), self._room()
        if room <= 0:
            raise BlockingIOError
        if not side.peer.is_open and side.has_end:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        part = bytes(data[:room])
        side.send(part)
        return len(part)

    def sendmsg(self, parts: Sequence[bytes | memoryview]) -> int:
        return self.send(b"".join(parts))

    def shutdown(self, how: int) -> None:
        self._checked().close()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._on_readable = self._on_writable = None
        if self._side is not None:
            self._side.close()
        else:
            self._loop.network.listeners.pop(self._address, None)
            for side in self._accepted:
                side.close(is_abrupt=True)
