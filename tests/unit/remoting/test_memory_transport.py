"""A connection inside of a process: bytes arrive, in order, and behave like those of a socket."""

import asyncio

import pytest
from hypothesis import given, settings, strategies as st

from reput.errors import ConnectionLost
from reput.format.command import Command, reply
from reput.remoting import limits, memory_transport
from reput.remoting.channel import Channel
from reput.remoting.connection import READ_BYTES
from reput.remoting.server import RemotingServer
from reput.remoting.server_state import ConnectionLimits, ServerState


class Ends(asyncio.BufferedProtocol):
    """A protocol that records what it reads."""

    def __init__(self, room: int = 1 << 16) -> None:
        self.transport: asyncio.Transport
        self.received = bytearray()
        self.states: list[str] = []
        self._buffer = bytearray(room)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def pause_writing(self) -> None:
        self.states.append("paused")

    def resume_writing(self) -> None:
        self.states.append("resumed")

    def connection_lost(self, exc: Exception | None) -> None:
        self.states.append("lost")


def pair(room: int = 1 << 16) -> tuple[Ends, Ends]:
    client, server = Ends(room), Ends(room)
    memory_transport.join(client, server, ("10.0.0.7", 5), ("127.0.0.1", 9))
    return client, server


async def settle() -> None:
    """Let everything that is due happen."""
    for _ in range(20):
        await asyncio.sleep(0)


@given(
    pieces=st.lists(st.binary(max_size=300), max_size=20),
    room=st.integers(1, 400),
    pauses=st.sets(st.integers(0, 20)),
)
@settings(max_examples=50, deadline=None)
def test_bytes_arrive_in_order(pieces: list[bytes], room: int, pauses: set[int]) -> None:
    async def check() -> None:
        client, server = pair(room)
        for number, piece in enumerate(pieces):
            if number in pauses:
                server.transport.pause_reading()
            client.transport.write(piece)
            await asyncio.sleep(0)
            server.transport.resume_reading()
        client.transport.close()
        await settle()
        assert bytes(server.received) == b"".join(pieces)
        assert (client.states[-1], server.states[-1]) == ("lost", "lost")

    asyncio.run(check())


def test_a_reader_that_pauses_holds_the_writer() -> None:
    async def check() -> None:
        client, server = pair()
        server.transport.pause_reading()
        client.transport.write(bytes(memory_transport.HIGH_BYTES + 1))
        await settle()
        assert client.states == ["paused"]
        assert client.transport.get_write_buffer_size() == memory_transport.HIGH_BYTES + 1
        server.transport.resume_reading()
        await settle()
        assert client.states == ["paused", "resumed"]
        assert client.transport.get_write_buffer_size() == 0

    asyncio.run(check())


def test_an_aborted_connection_delivers_nothing_more() -> None:
    async def check() -> None:
        client, server = pair()
        client.transport.write(b"dropped")
        client.transport.abort()
        client.transport.write(b"too late")
        await settle()
        assert (bytes(server.received), server.states) == (b"", ["lost"])
        assert client.transport.is_closing()

    asyncio.run(check())


class Echo:
    """A service that answers with the peer that it sees, and asks once."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []

    def on_open(self, channel: Channel) -> None:
        self.channels.append(channel)

    def on_request(self, channel: Channel, request: Command) -> Command:
        return reply(request, remark=channel.peer, body=request.body)

    def on_closed(self, channel: Channel) -> None:
        self.channels.remove(channel)


class Client:
    """The owner of a client's side."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.is_closed = False

    def on_open(self, channel: Channel) -> None:
        pass

    def on_bytes(self, channel: Channel, view: memoryview, end: int) -> int:
        return channel.take_frames(view, 0, end)

    def on_request(self, channel: Channel, request: Command) -> None:
        self.asked.append(request.code)
        channel.answer(request, reply(request, body=b"client"))

    def on_closed(self, channel: Channel, error: Exception | None) -> None:
        self.is_closed = True


def test_a_server_serves_a_client_of_its_own_process() -> None:
    async def check() -> None:
        service, owner = Echo(), Client()
        server = RemotingServer(service, host="127.0.0.1")
        await server.start()
        channel = server.connect_here(owner, bytearray(READ_BYTES), ("10.0.0.7", 4711))
        answers = await asyncio.gather(
            *(channel.invoke(Command(1, body=b"%d" % n), 1000) for n in range(100))
        )
        assert [answer.body for answer in answers] == [b"%d" % n for n in range(100)]
        assert {answer.remark for answer in answers} == {"10.0.0.7:4711"}
        (there,) = service.channels
        asked = await there.invoke(Command(40), 1000)
        assert (asked.body, owner.asked) == (b"client", [40])
        large = bytes(3 * READ_BYTES)
        assert (await channel.invoke(Command(1, body=large), 1000)).body == large
        await server.stop()
        await settle()
        assert owner.is_closed
        with pytest.raises(ConnectionLost):
            await channel.invoke(Command(1), 1000)

    asyncio.run(check())


def test_limits_of_connections_do_not_count_clients_of_the_process() -> None:
    async def check() -> None:
        few = ConnectionLimits(connections=limits.CONNECTIONS.at(1))
        state = ServerState(few)
        server = RemotingServer(Echo(), host="127.0.0.1", state=state)
        await server.start()
        channels = [
            server.connect_here(Client(), bytearray(READ_BYTES), ("10.0.0.7", 4711))
            for _ in range(2)
        ]
        pipe = server.open_pipe(("10.0.0.7", 4711), lambda late: None, lambda: None)
        for channel in channels:
            assert (await channel.invoke(Command(1, body=b"1"), 1000)).body == b"1"
        assert not pipe.is_closing()
        assert (state.connection_count, state.connections_of) == (0, {})
        for channel in channels:
            channel.close()
        await settle()
        assert (state.connection_count, state.connections_of) == (0, {})
        await server.stop()

    asyncio.run(check())
