"""A connection inside of a process: it is like one with a socket, and replies are there at once."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from reput.errors import ConnectionLost
from reput.format import command as commands
from reput.format.command import Command, reply
from reput.remoting import inner_channel, limits
from reput.remoting.channel import Channel
from reput.remoting.connection import READ_BYTES
from reput.remoting.inner_channel import InnerChannel
from reput.remoting.server import RemotingServer
from reput.remoting.server_state import ConnectionLimits, ServerState

HELD, ASKED_BACK = 2, 3
"""Request codes: the reply comes later; the service sends a request before it replies."""


async def settle() -> None:
    """Let everything that is due happen."""
    for _ in range(20):
        await asyncio.sleep(0)


class Echo:
    """A service that answers with the peer that it sees."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []
        self.held: list[Command] = []
        self.is_serving = False

    def on_open(self, channel: Channel) -> None:
        self.channels.append(channel)

    def on_request(self, channel: Channel, request: Command) -> Command | None:
        self.is_serving = True
        try:
            if request.code == HELD:
                self.held.append(request)
                return None
            if request.code == ASKED_BACK:
                channel.send(Command(40, flag=commands.IS_ONEWAY))
            return reply(request, remark=channel.peer, body=request.body)
        finally:
            self.is_serving = False

    def on_closed(self, channel: Channel) -> None:
        self.channels.remove(channel)


class Client:
    """The owner of a client's side."""

    def __init__(self, service: Echo | None = None) -> None:
        self.service = service
        self.asked: list[int] = []
        self.is_closed = False

    def on_open(self, channel: Channel) -> None:
        pass

    def on_bytes(self, channel: Channel, view: memoryview, end: int) -> int:
        return channel.take_frames(view, 0, end)

    def on_request(self, channel: Channel, request: Command) -> None:
        assert self.service is None or not self.service.is_serving
        self.asked.append(request.code)
        if not request.is_oneway:
            channel.answer(request, reply(request, body=b"client"))

    def on_closed(self, channel: Channel, error: Exception | None) -> None:
        self.is_closed = True


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Echo, Client, InnerChannel]]:
    service = Echo()
    owner = Client(service)
    # Nothing is put off, however slow the machine is.
    server = RemotingServer(service, host="127.0.0.1", state=ServerState(slice_s=60))
    await server.start()
    yield service, owner, server.connect_here(owner, bytearray(READ_BYTES), ("10.0.0.7", 4711))
    await server.stop()


async def test_a_reply_is_there_when_its_request_is_sent() -> None:
    async with connected() as (_, _, channel):
        sent = channel.send_request(Command(1, body=b"now"), 1000)
        assert sent.done()
        assert ((await sent).body, (await sent).remark) == (b"now", "10.0.0.7:4711")


async def test_a_held_reply_comes_later() -> None:
    async with connected() as (service, _, channel):
        held = channel.send_request(Command(HELD), 1000)
        other = channel.send_request(Command(1, body=b"other"), 1000)
        assert (held.done(), other.done()) == (False, True)
        service.channels[0].answer(service.held[0], reply(service.held[0], body=b"late"))
        assert not held.done(), "the server's callback does not run its client"
        assert (await held).body == b"late"


async def test_a_request_of_the_server_is_handled_after_the_servers_callback() -> None:
    async with connected() as (_, owner, channel):
        sent = channel.send_request(Command(ASKED_BACK), 1000)
        assert sent.done()
        assert owner.asked == [], "not while the request is sent"
        await settle()
        assert owner.asked == [40]


@pytest.mark.parametrize("seed", range(3))
async def test_replies_in_pieces_of_any_size_arrive_in_order(seed: int) -> None:
    """Pieces of late replies, and replies that are there at once, are frames of one stream."""
    rng = random.Random(seed)
    async with connected() as (service, _, channel):
        for _ in range(50):
            held = [channel.send_request(Command(HELD), 1000) for _ in range(rng.randrange(4))]
            (there,) = service.channels
            for request in service.held:
                body = bytes(rng.randrange(3 * READ_BYTES)) if rng.random() < 0.1 else b"late"
                frame = commands.encode(reply(request, body=body))
                cut = rng.randrange(len(frame))
                there.write(frame[:cut])
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
                there.write(frame[cut:])
            service.held.clear()
            now = channel.send_request(Command(1, body=b"now"), 1000)
            assert [(await each).code for each in (*held, now)] == [0] * (len(held) + 1)


async def test_requests_wait_while_the_server_does_not_read() -> None:
    async with connected() as (service, _, channel):
        service.channels[0].hold(lambda: None)  # a long request
        body = bytes(inner_channel.HIGH_BYTES)
        sent = channel.send_request(Command(1, body=body), 1000)
        await settle()
        assert (sent.done(), channel.is_writable) == (False, False)
        service.channels[0].release()
        await channel.writable()
        assert (await sent).body == body


async def test_the_end_fails_the_requests_that_wait() -> None:
    async with connected() as (service, owner, channel):
        held = channel.send_request(Command(HELD), 1000)
        service.channels[0].close()
        with pytest.raises(ConnectionLost):
            await held
        assert (owner.is_closed, channel.is_closed, service.channels) == (True, True, [])


async def test_the_client_ends_the_connection() -> None:
    async with connected() as (service, owner, channel):
        channel.close()
        await settle()
        assert (owner.is_closed, service.channels) == (True, [])
        with pytest.raises(ConnectionLost):
            channel.send_request(Command(1), 1000)


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
