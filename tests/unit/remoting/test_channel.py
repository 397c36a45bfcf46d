"""A connection from inside: addresses, joined writes, its end."""

import asyncio
from typing import Any

import pytest

from remoting_subject import both_loops
from reput.errors import ConnectionLost, RequestTimedOut
from reput.format import command as commands
from reput.format.command import Command
from reput.format.message import Host
from reput.remoting.addressed import address_of
from reput.remoting.channel import Channel
from reput.remoting.connection import READ_BYTES, find_frame
from reput.remoting.server_state import ServerState


@pytest.mark.parametrize(
    ("name", "text", "address"),
    [
        (("10.1.2.3", 10911), "10.1.2.3:10911", b"\x0a\1\2\3"),
        (("::1", 5, 0, 0), "[::1]:5", bytes(15) + b"\1"),
        (("fe80::1%eth0", 5, 0, 2), "[fe80::1%eth0]:5", b"\xfe\x80" + bytes(13) + b"\1"),
        # IPv4 on a dual-stack socket: clients and records use the IPv4 form.
        (("::ffff:10.1.2.3", 5, 0, 0), "10.1.2.3:5", b"\x0a\1\2\3"),
    ],
)
def test_addresses(name: Any, text: str, address: bytes) -> None:
    assert address_of(name) == (text, Host(address, name[1]))


@pytest.mark.parametrize("name", [None, ()])
def test_a_closed_connection_has_no_address(name: Any) -> None:
    assert address_of(name) == ("", Host(bytes(4), 0))


NO_TURNS_S = 3600
"""A time slice that no test exceeds: all frames of a read are handled at once."""


class Transport(asyncio.Transport):
    """A transport that accepts a given number of bytes, and keeps the written ones."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 7), "sockname": ("10.0.0.2", 8)})
        self.written: list[bytes] = []
        self.is_closing_ = False
        self.is_aborted = False
        self.is_reading = True
        self.unread_bytes = 0

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.is_closing_ = True

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closing_

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class Owner:
    """An owner that answers each request, and records its calls."""

    def __init__(self) -> None:
        self.requests: list[Command] = []
        self.ends: list[Exception | None] = []
        self.reply_bytes = 0

    def on_open(self, channel: Channel) -> None:
        self.channel = channel

    def on_bytes(self, channel: Channel, view: memoryview, end: int) -> int:
        return channel.take_frames(view, 0, end)

    def on_request(self, channel: Channel, request: Command) -> None:
        self.requests.append(request)
        channel.send(commands.reply(request, body=bytes(self.reply_bytes)))

    def on_closed(self, channel: Channel, error: Exception | None) -> None:
        self.ends.append(error)


def opened(*, is_server: bool = True) -> tuple[Channel, Transport, Owner]:
    owner, transport = Owner(), Transport()
    channel = Channel(
        owner,
        bytearray(READ_BYTES),
        shared=ServerState(slice_s=NO_TURNS_S) if is_server else None,
    )
    channel.connection_made(transport)
    return channel, transport, owner


def feed(channel: Channel, data: bytes) -> None:
    room = channel.get_buffer(-1)
    room[: len(data)] = data
    channel.buffer_updated(len(data))


def frames_in(data: bytes) -> list[Command]:
    frames, position = [], 0
    while (place := find_frame(data, position, len(data))) is not None:
        frames.append(commands.decode(data[place[0] : place[1]]))
        position = place[1]
    return frames


async def test_replies_to_one_read_are_sent_in_one_write() -> None:
    channel, transport, owner = opened()
    feed(channel, b"".join(commands.encode(Command(1, n)) for n in range(10)))
    assert owner.channel is channel
    (written,) = transport.written
    assert [frame.opaque for frame in frames_in(written)] == list(range(10))
    assert (channel.peer, str(channel.local_host)) == ("10.0.0.1:7", "10.0.0.2:8")


async def test_writes_of_one_turn_are_sent_together() -> None:
    channel, transport, _ = opened()
    for number in range(10):
        channel.send(Command(1, number))
    assert transport.written == []
    await asyncio.sleep(0)
    (written,) = transport.written
    assert [frame.opaque for frame in frames_in(written)] == list(range(10))


async def test_pending_writes_are_sent_before_the_close() -> None:
    channel, transport, _ = opened()
    channel.send(Command(1, 5))
    channel.close()
    assert [frame.opaque for frame in frames_in(b"".join(transport.written))] == [5]
    assert transport.is_closing_
    assert channel.is_closed
    channel.send(Command(1, 6))
    channel.close()
    await asyncio.sleep(0)
    assert len(transport.written) == 1


async def test_frames_after_an_invalid_frame_are_not_handled() -> None:
    channel, transport, owner = opened()
    good = commands.encode(Command(1, 1))
    feed(channel, good + b"\xff\xff\xff\xff" + good)
    assert len(owner.requests) == 1
    assert len(transport.written) == 1  # Its reply.
    assert channel.is_closed
    channel.connection_lost(None)
    assert "frame of -1 bytes" in str(owner.ends[0])


async def test_frames_wait_while_replies_are_not_taken() -> None:
    """Frames that were already read wait too; none is lost or overtakes another."""
    channel, transport, owner = opened()
    owner.reply_bytes = 300_000
    write = transport.write

    def write_and_pause(data: Any) -> None:
        write(data)
        channel.pause_writing()

    transport.write = write_and_pause  # type: ignore[method-assign]
    feed(channel, b"".join(commands.encode(Command(1, n)) for n in range(20)) + b"\0\0")
    handled = len(owner.requests)
    assert handled == 4  # Until there was more than 1 MiB of replies.
    assert not transport.is_reading
    assert not channel.is_writable
    for _ in range(4):
        channel.resume_writing()
        await asyncio.sleep(0)
        assert not transport.is_reading
    transport.write = write  # type: ignore[method-assign]
    channel.resume_writing()
    await asyncio.sleep(0)
    assert transport.is_reading
    assert [request.opaque for request in owner.requests] == list(range(20))
    assert [frame.opaque for frame in frames_in(b"".join(transport.written))] == list(range(20))
    feed(channel, commands.encode(Command(1, 99))[2:])  # The truncated frame is still kept.
    assert owner.requests[-1].opaque == 99


async def test_a_client_continues_to_read() -> None:
    channel, transport, owner = opened(is_server=False)
    channel.pause_writing()
    assert transport.is_reading
    owner.reply_bytes = 300_000
    feed(channel, b"".join(commands.encode(Command(1, n)) for n in range(20)))
    assert len(owner.requests) == 20


async def test_a_close_while_frames_wait() -> None:
    channel, transport, owner = opened()
    owner.reply_bytes = 2_000_000
    transport.write = lambda _: channel.pause_writing()  # type: ignore[method-assign]
    feed(channel, commands.encode(Command(1)) * 5)
    assert len(owner.requests) == 1
    channel.resume_writing()
    channel.connection_lost(ConnectionResetError("gone"))
    await asyncio.sleep(0)
    assert len(owner.requests) == 1
    assert isinstance(owner.ends[0], ConnectionResetError)


async def test_a_waiting_writer_is_notified_of_the_close() -> None:
    channel, _, _ = opened()
    channel.pause_writing()
    waiting = asyncio.ensure_future(channel.writable())
    await asyncio.sleep(0)
    assert not waiting.done()
    channel.connection_lost(None)
    await waiting


async def test_writers_that_waited_do_not_all_write_at_once() -> None:
    """The first one may fill the connection again: a hundred large requests were in memory."""
    channel, _, _ = opened()
    writers: list[int] = []

    async def write(number: int) -> None:
        await channel.writable()
        writers.append(number)
        channel.pause_writing()

    channel.pause_writing()
    tasks = [asyncio.ensure_future(write(number)) for number in range(3)]
    for number in range(3):
        await asyncio.sleep(0)
        channel.resume_writing()
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(writers) == number + 1
    await asyncio.gather(*tasks)
    assert sorted(writers) == [0, 1, 2]


async def test_requests_to_the_peer() -> None:
    channel, transport, _ = opened()
    first, second = (
        channel.send_request(Command(1), 30_000),
        channel.send_request(Command(2), 30_000),
    )
    await asyncio.sleep(0)
    asked = frames_in(b"".join(transport.written))
    assert asked[0].opaque != asked[1].opaque
    feed(channel, commands.encode(commands.reply(asked[1], body=b"two")))
    assert (await second).body == b"two"
    channel.connection_lost(None)
    with pytest.raises(ConnectionLost, match=r"10\.0\.0\.1:7"):
        await first
    with pytest.raises(ConnectionLost):
        channel.send_request(Command(1), 1)


@both_loops
async def test_one_timer_serves_all_pending_requests() -> None:
    channel, _, _ = opened()
    long, short = channel.send_request(Command(1), 60_000), channel.send_request(Command(2), 10)
    with pytest.raises(RequestTimedOut, match="did not answer request 2 within 10 ms"):
        await short
    assert not long.done()
    channel.connection_lost(None)
    with pytest.raises(ConnectionLost):
        await long


@pytest.mark.parametrize("is_server", [True, False])
async def test_an_exception_while_handling_bytes_closes_only_that_connection(
    is_server: bool, caplog: pytest.LogCaptureFixture
) -> None:
    channel, transport, owner = opened(is_server=is_server)

    def fail(*_: object) -> int:
        raise ArithmeticError("a bug")

    owner.on_bytes = fail  # type: ignore[method-assign]
    feed(channel, commands.encode(Command(1)))
    assert transport.is_closing_
    assert "10.0.0.1:7: its bytes were not handled" in caplog.text
    assert "ArithmeticError: a bug" in caplog.text
