"""Connections that open and say nothing, at the ports of a server.

Many of them belong to another process (``hostile.silent``): both ends of 10,000 are more
descriptors than a process may have on many systems. The time of their deadline is an argument.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

import seeds
from hostile.servers import memory_of
from http2_peer import HELLO, echo_service
from raw_http2 import Raw, raw
from remoting_subject import ECHO, Subject, both_loops
from reput import descriptors
from reput.format import command as commands
from reput.format.command import Command
from reput.grpc import limits as grpc_limits
from reput.grpc.http2.server import GrpcServer
from reput.limits import Limit
from reput.remoting import limits as remoting_limits, listener
from reput.remoting.deadlines import CUTS_MAX
from reput.remoting.server_state import ConnectionLimits, ServerState
from reput.remoting.tls_settings import TlsSettings
from waiting import until

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(
        sys.platform != "linux", reason="127.0.0.2 is an address of this machine on Linux only"
    ),
]

TESTS = Path(__file__).resolve().parents[1]
ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
OTHER = "127.0.0.1"
"""Address of the client that makes calls."""
MEMORY_MAX = 8 << 10
"""Allowed memory of a silent connection at the server, in bytes."""
HOUR_S = 3600
NO_WORDS = ""
IN_ALL, OF_ADDRESS = 6, 3
FRAME = commands.encode(Command(ECHO, 1))


class Silent:
    """The process with silent connections."""

    def __init__(self, process: asyncio.subprocess.Process, state: ServerState) -> None:
        self._process = process
        self._state = state

    async def open(self, count: int) -> None:
        """Wait until all connections are open: the server has accepted or refused each."""
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        refused = self._state.refusals.counts
        opened = 0
        while opened < count:
            opened = int(await self._process.stdout.readline())
            while self._state.connection_count + refused.total() < opened:
                await asyncio.sleep(0)
            self._process.stdin.write(b"\n")

    async def last_words(self) -> dict[str, int]:
        """Return what the server has said to how many connections, when all are closed."""
        assert self._process.stdout is not None
        words: dict[str, int] = json.loads(await self._process.stdout.readline())
        return words


@contextlib.asynccontextmanager
async def silent(server: GrpcServer, count: int, addresses: Sequence[str]) -> AsyncIterator[Silent]:
    """Open connections in another process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hostile.silent", str(server.port), str(count), *addresses),
        cwd=TESTS,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        running = Silent(process, server.state)
        await running.open(count)
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def running(**of_connections: Limit) -> AsyncIterator[GrpcServer]:
    """Run a server as a broker does, with TLS, and other limits of connections."""
    state = ServerState(
        ConnectionLimits(**of_connections), tls=TlsSettings(tls_test_mode_enable=True)
    )
    server = GrpcServer(echo_service(), host="127.0.0.1", state=state)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def call(client: Raw, stream_id: int) -> None:
    """Make a call, and check its reply."""
    client.writer.write(client.peer.call(stream_id, b"hello"))
    assert await client.ended(stream_id) == (0, b"")
    assert client.replies.messages(stream_id) == [b"hello"]


@both_loops
@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_silent_connections_make_room_and_are_closed(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    descriptors.raise_limit()
    if descriptors.connections_max() < count:
        pytest.skip(f"the system allows a process less than {count} connections (ulimit -Hn)")
    # Nothing ends by itself, however long it takes to open them.
    monkeypatch.setattr(
        grpc_limits, "HTTP2_PREFACE_MS", grpc_limits.HTTP2_PREFACE_MS.at(HOUR_S * 1000)
    )
    monkeypatch.setattr(listener, "SILENT_S", 0.0)
    async with running(connections=remoting_limits.CONNECTIONS.at(count)) as server:
        refused = server.state.refusals.counts
        before = memory_of("self")
        async with silent(server, count, ADDRESSES) as others:
            assert len(server.channels) == count
            assert memory_of("self") - before < count * MEMORY_MAX
            async with raw(server, local_addr=(OTHER, 0)) as client:
                await call(client, 1)
                assert refused == {"connections": 1}
                now = asyncio.get_running_loop().time()
                server._beginning.expire(now + HOUR_S)
                assert refused["http2_preface_ms"] == CUTS_MAX
                await call(client, 3)
                while len(server._beginning):
                    server._beginning.expire(now + HOUR_S)
                await until(lambda: len(server.channels) == 1)
                await call(client, 5)
                assert server.state.connections_of == {OTHER: 1}
                assert refused == {"connections": 1, "http2_preface_ms": count - 1}
                words = await others.last_words()
        expected = str(grpc_limits.HTTP2_PREFACE_MS.exceeded())
        assert words == {NO_WORDS: 1, expected: count - 1}


@both_loops
async def test_further_connections_of_an_address_are_refused() -> None:
    few = remoting_limits.CONNECTIONS_PER_ADDRESS.at(100)
    async with (
        running(connections_per_address=few) as server,
        silent(server, 150, ADDRESSES[:1]),
        raw(server, local_addr=(OTHER, 0)) as client,
    ):
        await call(client, 1)
        await until(lambda: server.state.connections_of[ADDRESSES[0]] == 100)
        assert server.state.refusals.counts == {"connections_per_address": 50}


@both_loops
async def test_connections_that_have_just_opened_make_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "SILENT_S", float(HOUR_S))
    async with (
        running(connections=remoting_limits.CONNECTIONS.at(20)) as server,
        silent(server, 20, ADDRESSES),
        raw(server, local_addr=(OTHER, 0)) as client,
    ):
        with contextlib.suppress(ConnectionError):
            assert await client.reader.read() == b""
        assert server.state.refusals.counts == {"connections": 1}
        assert len(server._beginning) == 20


class Model:
    """Which of the connections of two ports a server keeps: names by their number, oldest first."""

    def __init__(self) -> None:
        self.address_of: dict[int, str] = {}
        self.silent: set[int] = set()
        self.refusals = 0

    def open(self, number: int, address: str) -> None:
        """Keep a new connection, if there is room or one that is silent makes room."""
        of_address = [name for name, other in self.address_of.items() if other == address]
        if len(of_address) >= OF_ADDRESS:
            candidates = of_address
        elif len(self.address_of) >= IN_ALL:
            candidates = list(self.address_of)
        else:
            candidates = None
        if candidates is not None:
            self.refusals += 1
            silent = [name for name in candidates if name in self.silent]
            if not silent:
                return
            self.close(silent[0])
        self.address_of[number] = address
        self.silent.add(number)

    def close(self, number: int) -> None:
        self.address_of.pop(number, None)
        self.silent.discard(number)


@both_loops
@pytest.mark.parametrize("seed", range(3))
async def test_only_the_oldest_silent_connection_of_any_port_makes_room(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Connections say nothing, a part of a frame, or a frame, in any order."""
    monkeypatch.setattr(listener, "SILENT_S", 0.0)
    rng = seeds.random("silent connections", seed)
    bounds = {
        "connections": remoting_limits.CONNECTIONS.at(IN_ALL),
        "connections_per_address": remoting_limits.CONNECTIONS_PER_ADDRESS.at(OF_ADDRESS),
    }
    model = Model()
    writers: dict[int, asyncio.StreamWriter] = {}
    unsent: dict[int, bytes] = {}
    async with running(**bounds) as server, Subject(state=server.state) as subject:
        ports = {server.port: HELLO, subject.server.port: FRAME}
        refused = server.state.refusals.counts

        def kept() -> set[str]:
            channels = [*server.channels, *subject.server.channels]
            return {channel.peer for channel in channels if not channel.is_closed}

        def expected() -> set[str]:
            names = (writers[name].get_extra_info("sockname") for name in model.address_of)
            return {f"{host}:{port}" for host, port in names}

        for number in range(120):
            speakers = [name for name in unsent if name in model.address_of]
            if rng.random() < 0.5 or not speakers:
                address, port = rng.choice(ADDRESSES), rng.choice(list(ports))
                _, writers[number] = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=(address, 0)
                )
                unsent[number] = ports[port]
                model.open(number, address)
                await until(lambda: refused.total() == model.refusals)
            else:
                name = rng.choice(speakers)
                size = rng.choice([1, len(unsent[name]), len(unsent[name])])
                writers[name].write(unsent[name][:size])
                unsent[name] = unsent[name][size:]
                if not unsent[name]:
                    del unsent[name]
                    model.silent.discard(name)
                if not rng.randrange(4):
                    writers[name].close()
                    model.close(name)
            await until(lambda: kept() == expected())
            await until(lambda: server.state.connection_count == len(model.address_of))
            await until(lambda: len(server.state.silent) == len(model.silent))
        for writer in writers.values():
            writer.close()
