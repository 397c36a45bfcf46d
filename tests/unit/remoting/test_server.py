"""The server against honest, slow, broken and numerous clients, and strangers."""

import asyncio
import contextlib
import logging
import os
import socket
import struct

import pytest
import uvloop

import remoting_subject as subject_of
from remoting_subject import Subject, both_loops, closed, read_frame
from reput.errors import ConnectionLost, InvalidBody, Overloaded
from reput.format import command as commands, limits as format_limits
from reput.format.codes import ResponseCode
from reput.format.command import FRAME_BYTES_MAX, IS_ONEWAY, Command, Serialization
from reput.remoting import limits, listener, server as server_module
from reput.remoting.channel import Channel
from reput.remoting.connection import READ_BYTES
from reput.remoting.long_replies import COUNTED_BYTES, LongBody
from reput.remoting.server import LongReply, RemotingServer
from reput.remoting.server_state import ConnectionLimits, ServerState
from waiting import until

WRITE_BYTES_MAX = 4 << 20
"""Limit of pending replies: far less than is requested, more than the default limits."""


@both_loops
async def test_requests_are_answered_in_their_serialization() -> None:
    async with Subject() as subject:
        reader, writer = await subject.connect()
        for number, serialization in enumerate(Serialization):
            request = Command(
                subject_of.ECHO, 77 + number, ext_fields={"k": "v"}, body=b"body",
                serialization=serialization,
            )  # fmt: skip
            writer.write(commands.encode(request))
            reply = await read_frame(reader)
            assert (reply.opaque, reply.code, reply.is_reply) == (77 + number, 0, True)
            assert (reply.body, reply.ext_fields) == (b"body", {"k": "v"})
            assert reply.serialization is serialization
        await closed(writer)
        await until(lambda: not subject.server.channels)
        assert subject.opened == subject.closed


@both_loops
async def test_the_channel_has_the_address_of_the_peer() -> None:
    async with Subject() as subject:
        _, writer = await subject.connect()
        await until(lambda: bool(subject.opened))
        (channel,) = subject.opened
        port = writer.get_extra_info("sockname")[1]
        assert channel.peer == f"127.0.0.1:{port}"
        assert (channel.host.address, channel.host.port) == (b"\x7f\0\0\1", port)
        assert channel.local_host.port == subject.server.port
        await closed(writer)


# --- pieces -----------------------------------------------------------------------------


@both_loops
async def test_a_frame_cut_at_every_byte() -> None:
    request = commands.encode(Command(subject_of.ECHO, 5, ext_fields={"k": "v"}, body=b"body"))
    async with Subject() as subject:
        reader, writer = await subject.connect()
        for cut in range(1, len(request)):
            writer.write(request[:cut])
            await writer.drain()
            for _ in range(4):
                await asyncio.sleep(0)  # The server's turn.
            writer.write(request[cut:])
            assert (await read_frame(reader)).body == b"body"
        for byte in request:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert (await read_frame(reader)).body == b"body"
        await closed(writer)


@both_loops
@pytest.mark.sampled(2)
async def test_a_hundred_thousand_frames_in_one_write() -> None:
    count = 100_000
    tiny = commands.encode(
        Command(subject_of.SILENT, flag=IS_ONEWAY, serialization=Serialization.ROCKETMQ)
    )
    async with Subject() as subject:
        reader, writer = await subject.connect()
        writer.write(tiny * count + commands.encode(Command(subject_of.ECHO, 9)))
        assert (await read_frame(reader)).opaque == 9
        assert subject.seen == {subject_of.SILENT: count, subject_of.ECHO: 1}
        await closed(writer)


@both_loops
async def test_frames_around_the_size_of_the_buffer_and_the_largest() -> None:
    async with Subject() as subject:
        reader, writer = await subject.connect()
        head = len(commands.encode(Command(subject_of.ECHO, 1)))
        largest = FRAME_BYTES_MAX + 4 - head
        for size in (READ_BYTES - head - 1, READ_BYTES - head, READ_BYTES - head + 1,
                     2 * READ_BYTES + 3, largest):  # fmt: skip
            body = os.urandom(64) + bytes(size - 64)
            request = Command(subject_of.SILENT, 1, body=body)
            writer.write(commands.encode(request) + commands.encode(Command(subject_of.ECHO, 2)))
            assert (await read_frame(reader)).opaque == 2
        assert subject.seen[subject_of.SILENT] == 5
        await closed(writer)


# --- bytes that are no frame --------------------------------------------------

_LENGTH = struct.Struct(">i")
BAD = {
    "length below the mark": _LENGTH.pack(3) + b"abc",
    "length zero": _LENGTH.pack(0),
    "negative length": _LENGTH.pack(-1) + b"abcd",
    "length of 4 GiB": b"\xff\xff\xff\xff" + b"abcd",
    "one byte too long": _LENGTH.pack(FRAME_BYTES_MAX + 1),
    "http": b"GET /index.html HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
    "tls": bytes.fromhex("16030102000100 01fc0303") + bytes(512),
    "random": bytes.fromhex("00000040") + bytes(range(0x40)),
    "header beyond the frame": _LENGTH.pack(8) + _LENGTH.pack(5) + b"{}  ",
    "header of 16 MiB": _LENGTH.pack(8) + b"\0\xff\xff\xff" + b"{}  ",
    "not JSON": _LENGTH.pack(8) + _LENGTH.pack(4) + b"{x:}",
    "JSON without code": _LENGTH.pack(6) + _LENGTH.pack(2) + b"{}",
    "deep JSON": _LENGTH.pack(100_004) + _LENGTH.pack(100_000) + b"[" * 100_000,
    "not UTF-8": _LENGTH.pack(27) + _LENGTH.pack(23) + b'{"code":1,"remark":"\xff"}',
    "serialization 7": _LENGTH.pack(8) + b"\7\0\0\4abcd",
    "binary header cut": _LENGTH.pack(10) + b"\1\0\0\6abcdef",
    "binary text beyond": _LENGTH.pack(25) + b"\1\0\0\x15" + bytes(13) + b"\x7f\xff\xff\xff"
    + bytes(4),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@both_loops
async def test_only_the_connection_with_the_invalid_frame_is_closed(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Subject() as subject:
        good_reader, good_writer = await subject.connect()
        bad_reader, bad_writer = await subject.connect()
        half = commands.encode(Command(subject_of.ECHO, 3, body=b"half"))
        good_writer.write(half[:7])
        await good_writer.drain()
        with caplog.at_level(logging.WARNING):
            # The frames before it are still served.
            bad_writer.write(commands.encode(Command(subject_of.ECHO, 8)) + BAD[name])
            assert (await read_frame(bad_reader)).opaque == 8
            # A reset, if there were more bytes than the server has read.
            with contextlib.suppress(ConnectionResetError):
                assert await bad_reader.read() == b""
        assert "closing the connection" in caplog.text
        good_writer.write(half[7:])
        assert (await read_frame(good_reader)).body == b"half"
        await until(lambda: len(subject.server.channels) == 1)
        await closed(bad_writer)
        await closed(good_writer)


# --- slow readers -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1_000, 200_000])
@both_loops
@pytest.mark.sampled(2)
async def test_the_server_stops_reading_from_a_client_that_does_not_read(size: int) -> None:
    """This holds for one read and for many; later the client gets all replies, in order."""
    count = 200_000_000 // size if size > 10_000 else 50_000
    async with Subject() as subject:
        reader, writer = await subject.connect(limit=1 << 16)
        asked = b"".join(
            commands.encode(Command(subject_of.LARGE, n, ext_fields={"size": str(size)}))
            for n in range(count)
        )
        writer.transport.set_write_buffer_limits(1 << 30)
        writer.write(asked)
        await until(lambda: bool(subject.opened))
        (channel,) = subject.opened
        most = 0

        def is_stopped() -> bool:
            nonlocal most
            most = max(most, waiting_bytes(channel))
            return not channel.is_writable

        await until(is_stopped)
        other_reader, other_writer = await subject.connect()
        for _ in range(50):  # Other clients are served meanwhile.
            other_writer.write(commands.encode(Command(subject_of.ECHO, 1)))
            await read_frame(other_reader)
            is_stopped()
        served = subject.seen[subject_of.LARGE]
        assert served < count
        for number in range(count):
            reply = await read_frame(reader)
            assert (reply.opaque, len(reply.body)) == (number, size)
            is_stopped()
        assert subject.seen[subject_of.LARGE] == count
        assert most < WRITE_BYTES_MAX
        await closed(writer)
        await closed(other_writer)


def waiting_bytes(channel: object) -> int:
    transport = channel._transport  # type: ignore[attr-defined]
    size: int = transport.get_write_buffer_size()
    return size + channel._out_bytes  # type: ignore[attr-defined]


@both_loops
async def test_replies_to_many_requests_in_one_read_are_bounded() -> None:
    """A client that reads nothing sends 2,000 requests of 100 bytes, each for 100 KB."""
    count, size = 2_000, 100_000
    async with Subject() as subject:
        _, writer = await subject.connect(limit=1 << 10)
        request = Command(subject_of.LARGE, 1, ext_fields={"size": str(size)})
        writer.write(commands.encode(request) * count)
        await until(lambda: bool(subject.opened))
        (channel,) = subject.opened
        await until(lambda: not channel.is_writable)
        for _ in range(100):
            await asyncio.sleep(0)
        assert waiting_bytes(channel) < WRITE_BYTES_MAX
        assert subject.seen[subject_of.LARGE] < count
        writer.transport.abort()
        await until(lambda: not subject.server.channels)


# --- connections come and go ----------------------------------------------------------------


@both_loops
async def test_a_storm_of_connections_leaves_no_resources() -> None:
    async with Subject() as subject:
        for start in range(0, 1_000, 100):
            pairs = await asyncio.gather(*[subject.connect() for _ in range(100)])
            for number, (reader, writer) in enumerate(pairs, start):
                request = commands.encode(Command(subject_of.ECHO, number))
                if number % 3 == 0:
                    writer.write(request[:9])  # Closed at once.
                elif number % 3 == 1:
                    writer.write(request)
                    await read_frame(reader)
            for number, (_, writer) in enumerate(pairs, start):
                if number % 2:
                    writer.transport.abort()
                await closed(writer)
        await until(lambda: len(subject.opened) == 1_000 and not subject.server.channels)
        assert set(subject.closed) == set(subject.opened)
        assert len(subject.closed) == 1_000


@both_loops
async def test_an_idle_connection_is_closed() -> None:
    async with Subject(idle_ms=40) as subject:
        reader, writer = await subject.connect()
        assert await reader.read() == b""
        await until(lambda: not subject.server.channels)
        await closed(writer)


@both_loops
async def test_an_idle_connection_that_does_not_read_is_aborted() -> None:
    async with Subject(idle_ms=40) as subject:
        _, writer = await subject.connect(limit=1 << 10)
        request = Command(subject_of.LARGE, 1, ext_fields={"size": "16000000"})
        writer.write(commands.encode(request))
        await until(lambda: bool(subject.opened))
        await until(lambda: not subject.server.channels)  # Closing alone would not cut it.
        await closed(writer)


@both_loops
async def test_stop_does_not_wait_for_a_client_that_does_not_read() -> None:
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(server_module, "LAST_WORDS_S", 0.05)
    subject = Subject()
    async with subject:
        _, stuck = await subject.connect(limit=1 << 10)
        request = Command(subject_of.LARGE, 1, ext_fields={"size": "16000000"})
        stuck.write(commands.encode(request))
        reader, writer = await subject.connect()
        writer.write(commands.encode(Command(subject_of.ECHO, 4)))
        await until(lambda: subject.seen[subject_of.LARGE] == 1 == subject.seen[subject_of.ECHO])
    monkeypatch.undo()
    assert (await read_frame(reader)).opaque == 4  # The final replies are sent.
    assert await reader.read() == b""
    await until(lambda: not subject.server.channels)
    await closed(stuck)
    await closed(writer)
    with pytest.raises(OSError):  # noqa: PT011 - refused, by whatever name
        await subject.connect()


def test_a_connection_that_is_accepted_while_the_server_stops_is_closed() -> None:
    async def stop_after(turns: int) -> None:
        subject = Subject()
        async with asyncio.timeout(10), subject:
            client = socket.create_connection(("127.0.0.1", subject.server.port))
            for _ in range(turns):
                await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(sock=client)
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            await until(lambda: not subject.server.channels)
        assert len(subject.closed) == len(subject.opened)
        await closed(writer)

    # Not on asyncio's loop: in 3.11 it leaves such a connection to the garbage collector.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for turns in range(6):  # accepted and reported in different turns of the loop
            runner.run(stop_after(turns))


@both_loops
async def test_a_server_that_was_never_started_can_be_stopped() -> None:
    subject = Subject()
    server = RemotingServer(subject)
    await server.stop()
    assert not server.channels
    assert (subject.opened, subject.closed) == ([], [])


@both_loops
async def test_a_port_in_use() -> None:
    async with Subject() as subject:
        other = RemotingServer(Subject(), host="127.0.0.1", port=subject.server.port)
        with pytest.raises(OSError, match="in use"):
            await other.start()
        await other.stop()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
@both_loops
async def test_ipv6() -> None:
    subject = Subject()
    subject.server.host = "::1"
    try:
        await subject.server.start()
    except OSError as error:
        pytest.skip(f"no IPv6 loopback: {error}")
    reader, writer = await asyncio.open_connection("::1", subject.server.port)
    writer.write(commands.encode(Command(subject_of.ECHO, 4)))
    assert (await read_frame(reader)).opaque == 4
    assert subject.opened[0].peer.startswith("[::1]:")
    assert subject.opened[0].host.address == bytes(15) + b"\1"
    await closed(writer)
    await subject.server.stop()


# --- errors -------------------------------------------------------------------------------


@both_loops
async def test_an_exception_of_a_service_is_the_reply(caplog: pytest.LogCaptureFixture) -> None:
    async with Subject() as subject:
        reader, writer = await subject.connect()
        writer.write(commands.encode(Command(subject_of.BROKEN, 1)))
        reply = await read_frame(reader)
        assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "RuntimeError: a bug")
        assert "request 4 of" in caplog.text
        writer.write(commands.encode(Command(subject_of.REFUSED, 2)))
        reply = await read_frame(reader)
        assert (reply.code, reply.remark) == (ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        assert reply.opaque == 2
        await closed(writer)


@both_loops
async def test_a_reply_that_cannot_be_encoded_becomes_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Subject() as subject:
        reader, writer = await subject.connect()
        request = Command(subject_of.UNSPEAKABLE, 1, serialization=Serialization.ROCKETMQ)
        writer.write(commands.encode(request))
        reply = await read_frame(reader)
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert reply.remark is not None
        assert "does not fit a binary header" in reply.remark
        assert "reply to request 7" in caplog.text
        await closed(writer)


@both_loops
async def test_one_way_requests_never_get_a_reply() -> None:
    async with Subject() as subject:
        reader, writer = await subject.connect()
        for code in (subject_of.ECHO, subject_of.BROKEN, subject_of.REFUSED):
            writer.write(commands.encode(Command(code, 1, flag=IS_ONEWAY)))
        writer.write(commands.encode(Command(subject_of.ECHO, 2)))
        assert (await read_frame(reader)).opaque == 2
        assert subject.seen[subject_of.BROKEN] == 1
        await closed(writer)


@both_loops
async def test_a_request_with_too_many_fields_is_answered_and_the_connection_stays() -> None:
    async with Subject() as subject:
        reader, writer = await subject.connect()
        for serialization in Serialization:
            fields = {f"k{i}": "v" for i in range(format_limits.HEADER_FIELDS.maximum + 20)}
            many = Command(subject_of.ECHO, 5, ext_fields=fields, serialization=serialization)
            writer.write(commands.encode(many))
            reply = await read_frame(reader)
            assert (reply.opaque, reply.code) == (5, ResponseCode.SYSTEM_ERROR)
            assert f"at most {format_limits.HEADER_FIELDS.maximum}" in (reply.remark or "")
            writer.write(commands.encode(Command(subject_of.ECHO, 6, body=b"x")))
            assert (await read_frame(reader)).body == b"x"
        await closed(writer)


# --- turns and limits ---------------------------------------------------------------------


@both_loops
async def test_a_client_that_sends_much_does_not_delay_others() -> None:
    """One read may be megabytes of small requests: other clients are served in between."""
    count = 20_000
    busy = commands.encode(Command(subject_of.SILENT, flag=IS_ONEWAY))
    async with Subject(state=ServerState(slice_s=0.0)) as subject:
        _, flood = await subject.connect()
        reader, writer = await subject.connect()
        flood.write(busy * count)
        await until(lambda: subject.seen[subject_of.SILENT] > 0)
        before = subject.seen[subject_of.SILENT]
        writer.write(commands.encode(Command(subject_of.ECHO, 5)))
        assert (await read_frame(reader)).opaque == 5
        # One frame a turn: the echo came after a few of the requests, not after all.
        assert before < subject.seen[subject_of.SILENT] < count / 2
        await until(lambda: subject.seen[subject_of.SILENT] == count)
        await closed(flood)
        await closed(writer)


@both_loops
async def test_the_first_request_of_a_read_takes_its_part_of_the_slice() -> None:
    """The slice began after it: a read of two costly requests held the loop for both."""
    count = 20
    async with Subject(state=ServerState(slice_s=0.0)) as subject:
        _, writer = await subject.connect()
        writer.write(commands.encode(Command(subject_of.SILENT, flag=IS_ONEWAY)) * count)
        handled_in_turns = []
        while subject.seen[subject_of.SILENT] < count:
            before = subject.seen[subject_of.SILENT]
            await asyncio.sleep(0)
            handled_in_turns.append(subject.seen[subject_of.SILENT] - before)
        assert max(handled_in_turns) == 1
        await closed(writer)


@both_loops
async def test_large_requests_that_arrive_together_are_handled_in_turns() -> None:
    """A slice for each of the connections: megabytes on some of them took 90 ms of one turn."""
    async with Subject(state=ServerState(slice_s=0.0)) as subject:
        clients = [socket.create_connection(("127.0.0.1", subject.server.port)) for _ in range(10)]
        await until(lambda: len(subject.opened) == len(clients))
        large = commands.encode(Command(subject_of.SILENT, flag=IS_ONEWAY, body=bytes(20_000)))
        for client in clients:
            client.sendall(large)
        handled_in_turns = []
        while subject.seen[subject_of.SILENT] < len(clients):
            before = subject.seen[subject_of.SILENT]
            await asyncio.sleep(0)
            handled_in_turns.append(subject.seen[subject_of.SILENT] - before)
        assert max(handled_in_turns) == 1
        for client in clients:
            client.close()


@both_loops
async def test_a_long_request_runs_in_slices_and_keeps_the_order_of_its_connection() -> None:
    async with Subject(state=ServerState(slice_s=0.0)) as subject:
        reader, writer = await subject.connect()
        other_reader, other = await subject.connect()
        long_fields = {"steps": "2000"}
        writer.write(
            commands.encode(Command(subject_of.LONG, 1, ext_fields=long_fields))
            + commands.encode(Command(subject_of.ECHO, 2))
        )
        await until(lambda: subject.steps > 10)
        other.write(commands.encode(Command(subject_of.ECHO, 3)))
        assert (await read_frame(other_reader)).opaque == 3
        assert subject.steps < 2000
        assert [(await read_frame(reader)).opaque for _ in range(2)] == [1, 2]
        assert subject.steps == 2000
        await closed(writer)
        await closed(other)


@both_loops
async def test_long_requests_that_begin_in_one_turn_share_a_slice() -> None:
    """Each of 300 had a slice at once: 1.5 s in one turn of the loop."""
    async with Subject(state=ServerState(slice_s=0.0)) as subject:
        clients = [socket.create_connection(("127.0.0.1", subject.server.port)) for _ in range(20)]
        await until(lambda: len(subject.opened) == len(clients))
        frame = commands.encode(Command(subject_of.LONG, 1, ext_fields={"steps": "3"}))
        for client in clients:
            client.sendall(frame)
        steps_of_a_turn = [0]
        while subject.steps < 3 * len(clients):
            before = subject.steps
            await asyncio.sleep(0)
            steps_of_a_turn.append(subject.steps - before)
        # A step for all new requests together, and one for the queue.
        assert max(steps_of_a_turn) <= 2
        for client in clients:
            client.close()


@both_loops
async def test_half_made_replies_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred requests for a list of 12 MB took more than a gigabyte."""
    few = limits.UNREAD_BYTES_PER_ADDRESS.at(2_000_000)
    state = ServerState(ConnectionLimits(unread_bytes_per_address=few), slice_s=0.0)
    size_most = 0

    def listing(channel: Channel, request: Command) -> LongReply:
        nonlocal size_most
        body = LongBody("ask for less")
        for _ in range(10):
            body.add_text(bytes(COUNTED_BYTES))
            size_most = max(size_most, state.unread.total_bytes)
            yield
        return commands.reply(request, body=body.as_list())

    async with Subject(state=state) as subject:
        monkeypatch.setattr(subject, "on_request", listing)
        asking = [await subject.connect() for _ in range(8)]
        frame = commands.encode(Command(subject_of.LONG, 1))
        for _, writer in asking:
            writer.write(frame)
        # Each gets its reply, a refusal, or the end of its connection; then nothing is counted.
        replies = [await _reply_or_end(reader) for reader, _ in asking]
        answered = [reply for reply in replies if reply is not None and not reply.code]
        refused = [reply for reply in replies if reply is not None and reply.code]
        assert answered
        assert all(few.name in (reply.remark or "") for reply in refused)
        assert state.refusals.counts == {few.name: len(asking) - len(answered)}
        assert 0 < size_most <= few.maximum
        await until(lambda: not state.unread.total_bytes)
        assert not state.slices
        for _, writer in asking:
            await closed(writer)


async def _reply_or_end(reader: asyncio.StreamReader) -> Command | None:
    try:
        return await read_frame(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


@both_loops
async def test_a_long_reply_ends_at_once_with_a_cut_connection() -> None:
    """A queue of others was before it, and it kept its memory until its turn."""
    ended = []

    def listing(channel: Channel, request: Command) -> LongReply:
        try:
            while True:
                yield
        finally:
            ended.append(channel)

    async with Subject(state=ServerState(slice_s=0.0)) as subject:
        subject.on_request = listing  # type: ignore[method-assign, assignment]
        _, writer = await subject.connect()
        writer.write(commands.encode(Command(subject_of.LONG, 1)))
        await until(lambda: bool(subject.opened) and bool(subject.server.state.slices))
        (channel,) = subject.opened
        channel.cut(limits.UNREAD_BYTES)
        assert ended == [channel]
        await until(lambda: not subject.server.state.slices)
        await closed(writer)


@both_loops
async def test_a_long_request_ends_with_its_connection() -> None:
    async with Subject(state=ServerState(slice_s=0.0)) as subject:
        _, writer = await subject.connect()
        writer.write(
            commands.encode(Command(subject_of.LONG, 1, ext_fields={"steps": "1000000000"}))
        )
        await until(lambda: subject.steps > 3)
        subject.opened[0].abort()
        await until(lambda: not len(subject.server.state.slices))
        assert subject.steps < 1_000_000_000
        await closed(writer)


@both_loops
async def test_a_long_request_that_fails_is_answered() -> None:
    async with Subject(state=ServerState(slice_s=0.0)) as subject:
        reader, writer = await subject.connect()
        fields = {"steps": "5", "fails": "yes"}
        writer.write(commands.encode(Command(subject_of.LONG, 1, ext_fields=fields)))
        reply = await read_frame(reader)
        assert (reply.code, reply.remark) == (ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        await closed(writer)


@both_loops
async def test_refusals_of_a_limit_are_counted_and_logged_rarely(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Subject() as subject:
        reader, writer = await subject.connect()
        for number in range(50):
            writer.write(commands.encode(Command(subject_of.LIMITED, number)))
            reply = await read_frame(reader)
            assert reply.remark is not None
            assert "allowed: at most 1000" in reply.remark
        assert subject.server.state.refusals.counts == {"heartbeat_groups": 50}
        lines = [record for record in caplog.records if "heartbeat_groups" in record.message]
        assert 1 <= len(lines) < 50
        await closed(writer)


async def _is_closed_by_peer(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(OSError):
        return await reader.read(1) == b""
    return True


@both_loops
async def test_limits_of_connections_in_total_and_per_address() -> None:
    state = ServerState(
        ConnectionLimits(
            limits.CONNECTIONS.at(3), connections_per_address=limits.CONNECTIONS_PER_ADDRESS.at(2)
        )
    )
    async with Subject(state=state) as subject:
        writers = []
        for address in ("127.0.0.1", "127.0.0.1", "127.0.0.2"):
            reader, writer = await subject.connect(local_addr=(address, 0))
            await _speak(reader, writer)
            writers.append(writer)
        reader, fourth = await subject.connect(local_addr=("127.0.0.3", 0))
        assert await _is_closed_by_peer(reader)
        await closed(writers.pop())
        await until(lambda: state.connection_count == 2)
        reader, third = await subject.connect(local_addr=("127.0.0.1", 0))
        assert await _is_closed_by_peer(reader)
        assert state.refusals.counts == {"connections": 1, "connections_per_address": 1}
        reader, fifth = await subject.connect(local_addr=("127.0.0.2", 0))
        fifth.write(commands.encode(Command(subject_of.ECHO, 4)))
        assert (await read_frame(reader)).opaque == 4
        for writer in (*writers, third, fourth, fifth):
            await closed(writer)
        await until(lambda: state.connection_count == 0)
        assert not state.connections_of


async def _speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(commands.encode(Command(subject_of.ECHO, 1)))
    await read_frame(reader)


@both_loops
async def test_the_oldest_silent_connection_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SILENT_S", 0.0)
    state = ServerState(ConnectionLimits(limits.CONNECTIONS.at(4)))
    async with Subject(state=state) as subject:
        speaker = await subject.connect()
        await _speak(*speaker)
        silent, beginning, spoken = [await subject.connect() for _ in range(3)]
        await until(lambda: state.connection_count == 4)
        beginning[1].write(commands.encode(Command(subject_of.ECHO, 2))[:-1])
        await until(lambda: subject.opened[2].unfinished_since is not None)
        await _speak(*spoken)
        new = [await subject.connect()]
        await _speak(*new[0])
        assert await _is_closed_by_peer(silent[0])
        new.append(await subject.connect())
        await _speak(*new[1])
        assert await _is_closed_by_peer(beginning[0])
        late, late_writer = await subject.connect()
        assert await _is_closed_by_peer(late)
        for connection in (speaker, spoken, *new):
            await _speak(*connection)
        assert state.refusals.counts == {"connections": 3}
        for _, writer in (speaker, silent, beginning, spoken, *new, (late, late_writer)):
            await closed(writer)
        await until(lambda: state.connection_count == 0)
        assert len(state.silent) == 0


@both_loops
async def test_a_silent_connection_makes_room_for_its_address_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "SILENT_S", 0.0)
    few = limits.CONNECTIONS_PER_ADDRESS.at(2)
    state = ServerState(ConnectionLimits(limits.CONNECTIONS.at(4), connections_per_address=few))
    source, other = ("127.0.0.1", 0), ("127.0.0.2", 0)
    async with Subject(state=state) as subject:
        others = [await subject.connect(local_addr=other) for _ in range(2)]
        first, second = [await subject.connect(local_addr=source) for _ in range(2)]
        await until(lambda: state.connection_count == 4)
        # Both limits are reached.
        third = await subject.connect(local_addr=source)
        await _speak(*third)
        assert await _is_closed_by_peer(first[0])
        assert state.connections_of == {source[0]: 2, other[0]: 2}
        await _speak(*second)
        fourth = await subject.connect(local_addr=source)
        assert await _is_closed_by_peer(fourth[0])
        assert state.refusals.counts == {"connections_per_address": 2}
        for connection in (*others, second, third):
            await _speak(*connection)
        for _, writer in (*others, first, second, third, fourth):
            await closed(writer)


@both_loops
async def test_connections_that_have_just_opened_make_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "SILENT_S", 3600.0)
    state = ServerState(ConnectionLimits(limits.CONNECTIONS.at(1)))
    async with Subject(state=state) as subject:
        silent = await subject.connect()
        await until(lambda: state.connection_count == 1)
        reader, writer = await subject.connect()
        assert await _is_closed_by_peer(reader)
        await _speak(*silent)
        for open_writer in (silent[1], writer):
            await closed(open_writer)


@both_loops
async def test_connections_inside_of_the_process_make_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "SILENT_S", 0.0)
    state = ServerState(ConnectionLimits(limits.CONNECTIONS.at(1)))
    async with Subject(state=state) as subject:
        pipe = subject.server.open_pipe(("127.0.0.1", 1), lambda data: None, lambda: None)
        first = await subject.connect()
        await _speak(*first)
        reader, writer = await subject.connect()
        assert await _is_closed_by_peer(reader)
        assert pipe.exchange(commands.encode(Command(subject_of.ECHO, 1)))
        await _speak(*first)
        for open_writer in (first[1], writer):
            await closed(open_writer)
        pipe.close()


@both_loops
async def test_incomplete_frames_take_bounded_memory() -> None:
    """A hundred connections with 15 MB of a frame each took 3 GB."""
    limit_bytes = 4 << 20
    state = ServerState(
        ConnectionLimits(unfinished_bytes_per_address=limits.UNFINISHED_BYTES.at(limit_bytes))
    )
    beginning = _LENGTH.pack(FRAME_BYTES_MAX) + bytes(1 << 20)
    async with Subject(state=state) as subject:
        writers = []
        for _ in range(12):
            _, writer = await subject.connect()
            writers.append(writer)
            with contextlib.suppress(OSError):
                writer.write(beginning)
                await writer.drain()
        await until(lambda: state.refusals.counts["unfinished_bytes"] > 0)
        assert state.unfinished.total_bytes <= limit_bytes
        reader, good = await subject.connect()
        good.write(commands.encode(Command(subject_of.ECHO, 4)))
        assert (await read_frame(reader)).opaque == 4
        for writer in (*writers, good):
            await closed(writer)
        await until(lambda: not subject.server.channels)
        assert state.unfinished.total_bytes == 0


@both_loops
async def test_a_cut_connection_drops_its_bytes_at_once() -> None:
    """The loop reports the end of a connection later: thousands may be cut in one turn."""
    state = ServerState(
        ConnectionLimits(unfinished_bytes_per_address=limits.UNFINISHED_BYTES.at(1 << 20))
    )
    async with Subject(state=state) as subject:
        _, writer = await subject.connect()
        writer.write(_LENGTH.pack(FRAME_BYTES_MAX) + bytes(500_000))
        await until(lambda: state.unfinished.total_bytes >= 500_000)
        (channel,) = subject.opened
        channel.cut(limits.UNFINISHED_BYTES)
        assert not subject.closed
        assert channel._frames.kept_bytes == 0
        await closed(writer)


@both_loops
async def test_unread_replies_take_bounded_memory() -> None:
    limit_bytes = 16 << 20
    state = ServerState(
        ConnectionLimits(unread_bytes_per_address=limits.UNREAD_BYTES.at(limit_bytes))
    )
    large = commands.encode(Command(subject_of.LARGE, 1, ext_fields={"size": str(12 << 20)}))
    async with Subject(state=state) as subject:
        sockets = []
        for _ in range(8):
            plain = socket.create_connection(("127.0.0.1", subject.server.port))
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.sendall(large)
            sockets.append(plain)
        await until(lambda: state.refusals.counts["unread_bytes"] > 0)
        assert state.unread.total_bytes <= limit_bytes
        reader, good = await subject.connect()
        good.write(commands.encode(Command(subject_of.ECHO, 4)))
        assert (await read_frame(reader)).opaque == 4
        await closed(good)
        for plain in sockets:
            plain.close()


@both_loops
async def test_a_client_that_does_not_read_gets_no_notices_and_no_requests() -> None:
    """A request of 200 bytes pushed 4 MB to a member that does not read: gigabytes in a second."""
    state = ServerState()
    pushed = Command(subject_of.ECHO, flag=IS_ONEWAY, body=bytes(1 << 20))
    async with Subject(state=state) as subject:
        plain = socket.create_connection(("127.0.0.1", subject.server.port))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await until(lambda: bool(subject.opened))
        (channel,) = subject.opened
        sent = 0
        while channel.notify(pushed) and sent < 100:
            sent += 1
            await asyncio.sleep(0)
        assert sent < 20
        with pytest.raises(Overloaded, match="unread_notice_bytes"):
            channel.send_request(Command(subject_of.ECHO), 1_000)
        assert channel.unread_bytes < 16 << 20
        assert state.refusals.counts["unread_notice_bytes"] == 2
        plain.close()


@both_loops
async def test_a_frame_that_takes_too_long_closes_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "UNFINISHED_FRAME_MS", limits.UNFINISHED_FRAME_MS.at(0))
    async with Subject(idle_ms=1_000) as subject:
        reader, writer = await subject.connect()
        writer.write(_LENGTH.pack(100) + b"a")
        await until(lambda: bool(subject.opened) and subject.opened[0].unfinished_since is not None)
        subject.server._watch()
        assert await _is_closed_by_peer(reader)
        assert subject.server.state.refusals.counts == {"unfinished_frame_ms": 1}
        await closed(writer)


@both_loops
async def test_requests_to_clients_take_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests to a member that reads and never answers are kept until they time out."""
    monkeypatch.setattr(limits, "PUSHED_BYTES", limits.PUSHED_BYTES.at(1_000))
    async with Subject() as subject:
        reader, writer = await subject.connect()
        await until(lambda: bool(subject.opened))
        (channel,) = subject.opened
        first = channel.send_request(Command(subject_of.ECHO, body=bytes(600)), 60_000)
        with pytest.raises(Overloaded, match="pushed_bytes"):
            channel.send_request(Command(subject_of.ECHO, body=bytes(600)), 60_000)
        asked = await read_frame(reader)
        writer.write(commands.encode(commands.reply(asked)))
        await first
        await channel_turn()
        second = channel.send_request(Command(subject_of.ECHO, body=bytes(600)), 60_000)
        await closed(writer)
        with pytest.raises(ConnectionLost):
            await second
        await channel_turn()
        assert subject.server.state.pushed_bytes == 0


async def channel_turn() -> None:
    """Let callbacks of futures run."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@both_loops
async def test_an_error_is_quoted_in_part_and_a_bug_is_logged_a_few_times(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of 16 MiB caused a reply and a log line of that size, and a traceback each."""

    def fail(channel: Channel, request: Command) -> Command:
        text = (request.body * 1_000_000).decode()
        raise RuntimeError(text) if request.code == 1 else InvalidBody(text)

    async with Subject() as subject:
        monkeypatch.setattr(subject, "on_request", fail)
        reader, writer = await subject.connect()
        for code in (1, 2):
            for _ in range(20):
                writer.write(commands.encode(Command(code, 1, body=b"x")))
                reply = await read_frame(reader)
                assert "xxx... (1000" in (reply.remark or "")
                assert len(reply.remark or "") < 1_100
        await closed(writer)
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert 1 <= len(tracebacks) < 20
