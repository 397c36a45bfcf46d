"""Servers and clients over TLS: modes, pieces, limits, ends, many handshakes, new certificates."""

import asyncio
import contextlib
import functools
import gc
import logging
import os
import socket
import ssl
import sys
import time
import warnings
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import remoting_subject as subject_of
from certificates import DAY, NOW, Authority, Pair
from remoting_subject import RawServer, Subject, both_loops, closed, read_frame
from reput.errors import ConnectionLost, Unreachable
from reput.format import command as commands
from reput.format.command import FRAME_BYTES_MAX, IS_ONEWAY, Command
from reput.remoting import limits, tls_settings
from reput.remoting.channel import Channel
from reput.remoting.client import RemotingClient
from reput.remoting.connection import READ_BYTES
from reput.remoting.server import LongReply
from reput.remoting.server_state import ConnectionLimits, ServerState
from reput.remoting.tls import PIECE_BYTES, TlsSession
from reput.remoting.tls_acceptor import SESSION_BYTES, Handshake, TlsAcceptor
from reput.remoting.tls_settings import TlsMode, TlsSettings
from waiting import until

ANYBODY = tls_settings.client_context(TlsSettings())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("broker")


def given(pair: Pair, **more: Any) -> TlsSettings:
    own = {"tls_server_cert_path": pair.certificate, "tls_server_key_path": pair.key}
    return TlsSettings(**{**own, **more})


@contextlib.asynccontextmanager
async def server(settings: TlsSettings, **more: Any) -> AsyncIterator[tuple[Subject, TlsAcceptor]]:
    state = ServerState(tls=settings, **more)
    assert state.tls is not None
    async with Subject(state=state) as subject:
        yield subject, state.tls
    await state.tls.stop()


async def connect(subject: Subject) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await subject.connect(ssl=ANYBODY, limit=1 << 25)


def echo(opaque: int, body: bytes = b"") -> bytes:
    return commands.encode(Command(subject_of.ECHO, opaque, body=body))


class Peer:
    """A client whose encrypted bytes the test sends as it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.session = TlsSession(ANYBODY, is_server=False)
        self.reader = reader
        self.writer = writer
        self.plain = bytearray()

    @classmethod
    async def connect(cls, subject: Subject, *, is_established: bool = True) -> "Peer":
        peer = cls(*await subject.connect())
        if is_established:
            await peer.shake()
        return peer

    async def shake(self, size: int = 1 << 20) -> None:
        while not self.session.shake():
            await self.send(self.session.take_output(), size)
            self.session.feed(await self.reader.read(1 << 16))
        await self.send(self.session.take_output(), size)

    async def send(self, data: bytes, size: int = 1 << 20) -> None:
        for begin in range(0, len(data), size):
            self.writer.write(data[begin : begin + size])
            await self.writer.drain()
            await asyncio.sleep(0)

    async def frame(self) -> Command:
        """Return the next frame."""
        room = memoryview(bytearray(1 << 16))
        while len(self.plain) < 4 or len(self.plain) < 4 + int.from_bytes(self.plain[:4], "big"):
            data = await self.reader.read(100)
            assert data, "the connection has ended"
            self.session.feed(data)
            self.plain += room[: self.session.decrypt_into(room)]
        end = 4 + int.from_bytes(self.plain[:4], "big")
        frame = commands.decode(bytes(self.plain[4:end]))
        del self.plain[:end]
        return frame


# --- modes --------------------------------------------------------------------------------------


@both_loops
async def test_plain_and_encrypted_on_one_port(pair: Pair) -> None:
    async with server(given(pair)) as (subject, tls):
        for context in (None, ANYBODY, None, ANYBODY):
            reader, writer = await subject.connect(ssl=context)
            writer.write(echo(7, b"body"))
            assert (await read_frame(reader)).body == b"body"
            (channel,) = subject.server.channels
            if context is None:
                # Nothing stays between the loop and the channel.
                assert channel._transport is not None
                assert channel._transport.get_protocol() is channel
            assert channel.peer == "127.0.0.1:{}".format(writer.get_extra_info("sockname")[1])
            await closed(writer)
            await until(lambda: not subject.server.channels)
        assert tls.counts == {Handshake.DONE: 2}
        assert len(subject.opened) == len(subject.closed) == 4


@both_loops
async def test_enforcing_executes_nothing_of_a_plain_connection(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with server(given(pair, tls_server_mode=TlsMode.ENFORCING)) as (subject, tls):
        reader, writer = await subject.connect()
        writer.write(echo(1))
        assert await reader.read() == b""
        await closed(writer)
        assert not subject.seen
        assert tls.counts == {Handshake.PLAIN_REFUSED: 1}
        assert "tls.server.mode is enforcing" in caplog.text
        reader, writer = await connect(subject)
        writer.write(echo(1))
        assert (await read_frame(reader)).opaque == 1
        await closed(writer)


@both_loops
async def test_disabled_closes_encrypted_connections(
    caplog: pytest.LogCaptureFixture, pair: Pair
) -> None:
    caplog.set_level(logging.INFO)
    async with server(given(pair, tls_server_mode=TlsMode.DISABLED)) as (subject, _):
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await connect(subject)
        assert "tls.server.mode is disabled" in caplog.text
        reader, writer = await subject.connect()
        writer.write(echo(1))
        assert (await read_frame(reader)).opaque == 1
        await closed(writer)


@both_loops
async def test_a_certificate_is_made_when_it_is_needed() -> None:
    async with server(TlsSettings()) as (subject, tls):
        reader, writer = await subject.connect()
        writer.write(echo(1))
        await read_frame(reader)
        await closed(writer)
        assert tls.context is None, "plain connections need none"
        connections = await asyncio.gather(connect(subject), connect(subject))
        for reader, writer in connections:
            writer.write(echo(2))
            assert (await read_frame(reader)).opaque == 2
            await closed(writer)
        assert tls.context is not None


@both_loops
async def test_without_the_package_the_log_says_what_is_missing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)  # that of `reput up`
    monkeypatch.setitem(sys.modules, "cryptography", None)
    async with server(TlsSettings()) as (subject, tls):
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await connect(subject)
        assert "tls.server.keyPath" in caplog.text
        assert "pip install '.[tls]'" in caplog.text
        assert tls.counts == {Handshake.FAILED: 1}


# --- pieces -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5, 100])
@both_loops
async def test_in_pieces(pair: Pair, size: int) -> None:
    async with server(given(pair)) as (subject, _):
        peer = await Peer.connect(subject, is_established=False)
        await peer.shake(size)
        await peer.send(peer.session.encrypt(echo(3, b"body")), size)
        reply = await peer.frame()
        assert (reply.opaque, reply.body) == (3, b"body")
        await closed(peer.writer)


@both_loops
async def test_borders_of_records_inside_of_frames(pair: Pair) -> None:
    async with server(given(pair)) as (subject, _):
        peer = await Peer.connect(subject)
        frame = echo(9, b"0123456789")
        for border in range(1, len(frame)):
            records = peer.session.encrypt(frame[:border]) + peer.session.encrypt(frame[border:])
            await peer.send(records)
            assert (await peer.frame()).body == b"0123456789"
        await closed(peer.writer)
        assert subject.seen == {subject_of.ECHO: len(frame) - 1}


@both_loops
async def test_frames_around_the_size_of_the_buffer_and_the_largest(pair: Pair) -> None:
    async with server(given(pair)) as (subject, _):
        reader, writer = await connect(subject)
        head = len(echo(1))
        for size in (READ_BYTES - head - 1, READ_BYTES - head, READ_BYTES - head + 1,
                     2 * READ_BYTES + 3, FRAME_BYTES_MAX - 200):  # fmt: skip
            body = os.urandom(64) + bytes(size - 64)
            writer.write(echo(1, body))
            assert (await read_frame(reader)).body == body
        largest = Command(subject_of.SILENT, 1, body=bytes(FRAME_BYTES_MAX + 4 - head))
        writer.write(commands.encode(largest) + echo(2))
        assert (await read_frame(reader)).opaque == 2
        await closed(writer)


@both_loops
async def test_many_frames_in_turns(pair: Pair) -> None:
    # With slices this short, frames wait in the channel and bytes in the session.
    async with server(given(pair), slice_s=0.0001) as (subject, _):
        reader, writer = await connect(subject)
        count = 20_000
        silent = commands.encode(Command(subject_of.SILENT, flag=IS_ONEWAY))
        writer.write(silent * count + echo(9))
        assert (await read_frame(reader)).opaque == 9
        assert subject.seen == {subject_of.SILENT: count, subject_of.ECHO: 1}
        await closed(writer)


@both_loops
async def test_a_long_request_holds_later_frames_of_the_same_record(pair: Pair) -> None:
    async with server(given(pair)) as (subject, _):
        peer = await Peer.connect(subject)
        long = Command(subject_of.LONG, 1, ext_fields={"steps": "3000"})
        await peer.send(peer.session.encrypt(commands.encode(long) + echo(2)))
        await peer.send(peer.session.encrypt(echo(3)))
        assert [(await peer.frame()).opaque for _ in range(3)] == [1, 2, 3]
        await closed(peer.writer)


class Held(Subject):
    """A service whose long requests last until they are released."""

    is_released = False
    read_count = 0

    def on_bytes(self, channel: Channel, view: memoryview, end: int) -> int:
        self.read_count += 1
        return channel.take_frames(view, 0, end)

    def has_read(self, count: int) -> bool:
        return self.read_count >= count

    def on_request(self, channel: Channel, request: Command) -> Command | LongReply | None:
        if request.code != subject_of.LONG:
            return super().on_request(channel, request)
        return self._held(request)

    def _held(self, request: Command) -> LongReply:
        while not self.is_released:
            yield
        return commands.reply(request)


async def send_after_a_held_request(subject: Held, peer: Peer, frames: bytes) -> int:
    """Send frames in the same read as the end of a request that is held; return their size."""
    held = commands.encode(Command(subject_of.LONG, 1, body=bytes(1_000)))
    # It arrives slowly, so that it gets a separate buffer, which has no room for other frames.
    for part, more in ((held[:900], b""), (held[900:910], b""), (held[910:], frames)):
        expected = subject.read_count + 1
        data = peer.session.encrypt(part) + peer.session.encrypt(more)
        peer.writer.write(data)
        await until(functools.partial(subject.has_read, expected))
    return len(data)


@both_loops
async def test_bytes_after_a_long_request_are_counted_until_they_are_read(pair: Pair) -> None:
    """They were kept in the session: 90 kB a connection, until its end."""
    state = ServerState(tls=given(pair), slice_s=0.0001)
    async with Held(state=state) as subject:
        peer = await Peer.connect(subject)
        (channel,) = subject.opened
        size = await send_after_a_held_request(subject, peer, echo(2, bytes(40_000)) + echo(3))
        await until(lambda: state.unfinished.total_bytes >= size - PIECE_BYTES)
        subject.is_released = True
        assert [(await peer.frame()).opaque for _ in range(3)] == [1, 2, 3]
        assert state.unfinished.total_bytes == 0
        subject.is_released = False
        await send_after_a_held_request(subject, peer, bytes(40_000))
        await until(lambda: state.unfinished.total_bytes > 0)
        channel.abort()
        assert state.unfinished.total_bytes == 0
        await closed(peer.writer)


@both_loops
async def test_connections_with_bytes_after_long_requests_are_limited(pair: Pair) -> None:
    few = limits.UNFINISHED_BYTES_PER_ADDRESS.at(100_000)
    of_connections = ConnectionLimits(unfinished_bytes_per_address=few)
    state = ServerState(of_connections, tls=given(pair), slice_s=0.0001)
    async with Held(state=state) as subject:
        peers = [await Peer.connect(subject) for _ in range(6)]
        for peer in peers:
            await send_after_a_held_request(subject, peer, bytes(50_000))
        await until(lambda: state.refusals.counts == {few.name: 4})
        await until(lambda: len(subject.server.channels) == 2)
        assert 0 < state.unfinished.total_bytes <= few.maximum
        for peer in peers:
            await closed(peer.writer)


# --- ends and failures --------------------------------------------------------------------------


@both_loops
@pytest.mark.parametrize("count", [100, 2_000])
async def test_requests_before_the_end_are_handled(pair: Pair, count: int) -> None:
    """A client that ends after its last one-way request loses none, however long they take."""
    async with server(given(pair), slice_s=0.0001) as (subject, _):
        peer = await Peer.connect(subject)
        silent = commands.encode(Command(subject_of.SILENT, flag=IS_ONEWAY))
        data = peer.session.encrypt(silent * count)
        peer.session.end()
        peer.writer.write(data + peer.session.take_output())
        await closed(peer.writer)
        await until(lambda: not subject.server.channels)
        assert subject.seen == {subject_of.SILENT: count}


@both_loops
async def test_the_end_is_reported_and_answered(pair: Pair) -> None:
    async with server(given(pair)) as (subject, _):
        peer = await Peer.connect(subject)
        await peer.send(peer.session.encrypt(echo(1)))
        await peer.frame()
        peer.session.end()
        await peer.send(peer.session.take_output())
        peer.session.feed(await peer.reader.read())
        assert peer.session.decrypt_into(memoryview(bytearray(9))) == 0
        assert peer.session.has_ended
        assert peer.session.failure is None
        await closed(peer.writer)
        await until(lambda: not subject.server.channels)


@both_loops
async def test_a_changed_byte_ends_the_connection(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    async with server(given(pair)) as (subject, _):
        peer = await Peer.connect(subject)
        good, bad = peer.session.encrypt(echo(1)), bytearray(peer.session.encrypt(echo(2)))
        bad[-1] ^= 1
        await peer.send(good + bad + peer.session.encrypt(echo(3)))
        await peer.reader.read()
        await closed(peer.writer)
        await until(lambda: not subject.server.channels)
        assert subject.seen == {subject_of.ECHO: 1}
        assert "Traceback" not in caplog.text


def hello_of_tls_1_1() -> bytes:
    old = tls_settings.client_context(TlsSettings())
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    session = TlsSession(old, is_server=False)
    session.shake()
    return session.take_output()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\x04abcd",
        b"\x16" + bytes(600),
        b"\x16GET / HTTP/1.1\r\n\r\n",
        hello_of_tls_1_1(),
    ],
    ids=["no hello", "zeros", "http", "tls 1.1"],
)
@both_loops
async def test_a_failed_handshake_is_one_line(
    pair: Pair, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    caplog.set_level(logging.INFO)
    async with server(given(pair)) as (subject, tls):
        reader, writer = await subject.connect()
        port = writer.get_extra_info("sockname")[1]
        writer.write(data)
        await reader.read()
        await closed(writer)
        await until(lambda: not subject.server.channels)
        assert tls.counts == {Handshake.FAILED: 1}
        (record,) = [line for line in caplog.records if line.name != "asyncio"]
        assert record.getMessage().startswith(f"127.0.0.1:{port}: no TLS handshake: ")
        assert record.exc_info is None


@both_loops
async def test_a_handshake_that_stalls_is_cut(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with server(given(pair)) as (subject, tls):
        assert limits.TLS_HANDSHAKE_MS.maximum == 10_000
        begun_s = asyncio.get_running_loop().time()
        peer = await Peer.connect(subject, is_established=False)
        peer.session.shake()
        await peer.send(peer.session.take_output()[:100])
        await until(lambda: bool(tls.deadlines))
        other = await Peer.connect(subject)
        await until(lambda: bool(tls.counts[Handshake.DONE]))
        tls.deadlines.expire(begun_s + limits.TLS_HANDSHAKE_MS.maximum / 1000 - 1)
        assert not tls.counts[Handshake.FAILED]
        tls.deadlines.expire(begun_s + limits.TLS_HANDSHAKE_MS.maximum / 1000 + 60)
        assert await peer.reader.read() == b""
        assert tls.counts == {Handshake.FAILED: 1, Handshake.DONE: 1}
        assert "tls_handshake_ms" in caplog.text
        await other.send(other.session.encrypt(echo(1)))
        assert (await other.frame()).opaque == 1
        for client_side in (peer, other):
            await closed(client_side.writer)


@both_loops
async def test_handshakes_take_bounded_memory(pair: Pair) -> None:
    """The sessions of 9,000 that do not end took 440 MB."""
    few = limits.UNFINISHED_BYTES_PER_ADDRESS.at(10 * SESSION_BYTES)
    of_connections = ConnectionLimits(unfinished_bytes_per_address=few)
    async with server(given(pair), connection_limits=of_connections) as (subject, _):
        state = subject.server.state
        begun = [await Peer.connect(subject, is_established=False) for _ in range(15)]
        for peer in begun:
            peer.session.shake()
            await peer.send(peer.session.take_output())
        await until(lambda: state.refusals.counts[few.name] == 5)
        await until(lambda: len(subject.server.channels) == 10)
        assert state.unfinished.total_bytes == few.maximum
        for peer in begun[5:]:
            await peer.shake()
        await until(lambda: not state.unfinished.total_bytes)
        for peer in begun:
            await closed(peer.writer)


@both_loops
async def test_new_handshakes_do_not_delay_those_that_have_begun(pair: Pair) -> None:
    """Else all of a thousand clients had one open before the first could end."""
    async with server(given(pair), slice_s=0.0) as (subject, tls):
        peers = [await Peer.connect(subject, is_established=False) for _ in range(40)]
        for peer in peers:
            peer.session.shake()
        open_most = 0

        async def shake(peer: Peer) -> None:
            nonlocal open_most
            await peer.shake()
            open_most = max(open_most, len(tls.deadlines))

        await asyncio.gather(*map(shake, peers))
        assert open_most < 20
        for peer in peers:
            await closed(peer.writer)


@both_loops
async def test_closed_connections_are_released_without_the_collector(pair: Pair) -> None:
    """Each of the parts had the other, until the collector ran: sessions take 50 kB."""
    async with server(given(pair)) as (subject, _):
        gc.collect()
        gc.disable()
        try:
            for data in (b"\x16\x03\x01\0\x05xxxxx", b"\x16\x03\x01\x40\0", echo(1)[:-1]):
                _, writer = await subject.connect()
                writer.write(data)
                await until(lambda: bool(subject.opened))
                released = weakref.ref(subject.opened.pop())
                await closed(writer)
                await until(lambda: bool(subject.closed))
                subject.closed.clear()
                await until(lambda released=released: released() is None)  # type: ignore[misc]
        finally:
            gc.enable()


@both_loops
async def test_a_client_that_leaves_during_the_handshake(pair: Pair) -> None:
    async with server(given(pair)) as (subject, tls):
        peer = await Peer.connect(subject, is_established=False)
        peer.session.shake()
        await peer.send(peer.session.take_output())
        await peer.reader.read(1)
        await closed(peer.writer)
        await until(lambda: not subject.server.channels)
        assert tls.counts == {Handshake.FAILED: 1}
        assert not tls.deadlines


@both_loops
async def test_a_client_that_does_not_read_is_not_read(pair: Pair) -> None:
    async with server(given(pair)) as (subject, _):
        reader, writer = await connect(subject)
        await until(lambda: bool(subject.opened))
        # Else the kernel's buffers grow, and the server may write again before the client reads.
        for end, option in (
            (writer.transport, socket.SO_RCVBUF),
            (subject.opened[0]._transport, socket.SO_SNDBUF),
        ):
            end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, 1 << 16)
        large = Command(subject_of.LARGE, 1, ext_fields={"size": str(1 << 20)})
        count = 20
        writer.transport.pause_reading()
        writer.write(commands.encode(large) * count)
        await until(lambda: any(not channel.is_writable for channel in subject.server.channels))
        seen = subject.seen[subject_of.LARGE]
        for _ in range(50):
            await asyncio.sleep(0)
        assert subject.seen[subject_of.LARGE] <= seen + 1 < count
        writer.transport.resume_reading()
        for _ in range(count):
            assert len((await read_frame(reader)).body or b"") == 1 << 20
        await closed(writer)


# --- many handshakes ----------------------------------------------------------------------------


@both_loops
async def test_two_hundred_handshakes_do_not_hold_the_loop(authority: Authority) -> None:
    pair = authority.issue("rsa", is_rsa=True)
    async with server(given(pair), slice_s=0.0) as (subject, tls):
        peers = [await Peer.connect(subject, is_established=False) for _ in range(200)]
        for peer in peers:
            peer.session.shake()
        hellos = [peer.session.take_output() for peer in peers]
        for peer, hello in zip(peers, hellos, strict=True):
            peer.writer.write(hello)
        # CPU time: a machine that does other work is not a loop that is held.
        longest, before = 0.0, time.process_time()
        while any(not peer.reader._buffer for peer in peers):  # type: ignore[attr-defined]
            await asyncio.sleep(0)
            now = time.process_time()
            longest, before = max(longest, now - before), now
        assert longest < 0.05
        for peer in peers:
            peer.session.feed(await peer.reader.read(1 << 16))
            peer.session.shake()
            peer.writer.write(peer.session.take_output())
        await until(lambda: tls.counts[Handshake.DONE] == 200)
        for peer in peers:
            await closed(peer.writer)


# --- new certificates ---------------------------------------------------------------------------


def contents(*paths: str) -> list[bytes]:
    return [Path(path).read_bytes() for path in paths]


def replace(path: str, data: bytes | None) -> None:
    if data is None:
        Path(path).unlink()
    else:
        Path(path).write_bytes(data)


def _subject(writer: asyncio.StreamWriter) -> bytes:
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return certificate


@both_loops
async def test_new_files_are_used_by_new_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    authority = Authority(tmp_path)
    pair = authority.issue("broker")
    async with server(given(pair)) as (subject, tls):
        reader, writer = await connect(subject)
        first = _subject(writer)
        tls.reload()
        assert not caplog.text, "nothing has changed"

        (key,) = contents(pair.key)
        authority.issue("broker")
        (new_key,) = contents(pair.key)
        replace(pair.key, key)  # only the certificate has changed
        tls.reload()
        tls.reload()
        assert caplog.text.count("key values mismatch") == 1
        _, other = await connect(subject)
        assert _subject(other) == first
        await closed(other)

        replace(pair.key, new_key)
        tls.reload()
        _, other = await connect(subject)
        assert _subject(other) != first
        await closed(other)

        replace(pair.key, None)
        tls.reload()
        assert "No such file" in caplog.text
        writer.write(echo(5))  # the old connection continues
        assert (await read_frame(reader)).opaque == 5
        await closed(writer)


@both_loops
async def test_certificates_replaced_under_load(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("broker")
    certificates: set[bytes] = set()
    counts: list[int] = []
    is_over = False

    async def requests(subject: Subject) -> None:
        count = 0
        while not is_over:
            reader, writer = await connect(subject)
            certificates.add(_subject(writer))
            for _ in range(5):
                count += 1
                writer.write(echo(count))
                assert (await read_frame(reader)).opaque == count
            await closed(writer)
        counts.append(count)

    async with server(given(pair)) as (subject, tls):
        clients = [asyncio.create_task(requests(subject)) for _ in range(6)]
        while len(certificates) < 4:
            key, certificate = contents(pair.key, pair.certificate)
            authority.issue("broker")
            new_key, new_certificate = contents(pair.key, pair.certificate)
            # Either file first, and both in pieces: each state may be seen by the watcher.
            for path, data in (
                (pair.certificate, certificate),
                (pair.key, key),
                (pair.key, new_key[:100]),
                (pair.key, new_key),
                (pair.certificate, new_certificate[:100]),
                (pair.certificate, new_certificate),
            ):
                replace(path, data)
                await asyncio.to_thread(tls.reload)
            await asyncio.sleep(0)
        is_over = True
        await asyncio.gather(*clients)
        assert not tls.counts[Handshake.FAILED]
        assert tls.counts[Handshake.DONE] * 5 >= sum(counts) > 0
        assert subject.seen[subject_of.ECHO] == sum(counts)


@pytest.mark.parametrize("which", ["certificate", "key"])
@pytest.mark.parametrize("content", [b"", b"no PEM", b"-----BEGIN CERTIFICATE-----\nAA==\n"])
async def test_an_unreadable_file_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, which: str, content: bytes
) -> None:
    pair = Authority(tmp_path).issue("broker")
    async with server(given(pair)) as (_, tls):
        before = tls.context
        replace(getattr(pair, which), content)
        for _ in range(3):
            tls.reload()
        assert tls.context is before
        (record,) = caplog.records
        assert record.exc_info is None
        assert getattr(pair, which) in record.getMessage()


async def test_an_expired_certificate_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("broker")
    async with server(given(pair)) as (_, tls):
        before = tls.context
        authority.issue("broker", begin=NOW - 2 * DAY, end=NOW - DAY)
        tls.reload()
        assert tls.context is before
        assert "tls.server.certPath" in caplog.text
        assert "this one is expired" in caplog.text


# --- our clients --------------------------------------------------------------------------------


@both_loops
async def test_our_client(pair: Pair, authority: Authority) -> None:
    trusting = tls_settings.client_context(TlsSettings(tls_client_trust_cert_path=authority.path))
    async with server(given(pair)) as (subject, tls), RemotingClient(tls=trusting) as client:
        body = os.urandom(3 << 20)
        replies = await asyncio.gather(
            *(
                client.invoke(subject.address, Command(subject_of.ECHO, body=sent), 30_000)
                for sent in (b"", b"x", body)
            )
        )
        assert [reply.body or b"" for reply in replies] == [b"", b"x", body]
        assert tls.counts == {Handshake.DONE: 1}
        waiting = asyncio.ensure_future(
            client.invoke(subject.address, Command(subject_of.LATER), 30_000)
        )
        await until(lambda: bool(subject.later))
        subject.later[0][0].close()
        with pytest.raises(ConnectionLost):
            await waiting


@both_loops
async def test_our_client_refuses_a_foreign_server(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    strange = TlsSettings(tls_client_trust_cert_path=Authority(tmp_path, "stranger").path)
    tls = tls_settings.client_context(strange)
    async with server(given(pair)) as (subject, acceptor), RemotingClient(tls=tls) as client:
        with pytest.raises(Unreachable, match="certificate verify failed"):
            await client.invoke(subject.address, Command(subject_of.ECHO))
        await until(lambda: bool(acceptor.counts))
        assert acceptor.counts == {Handshake.FAILED: 1}
        assert "alert unknown ca" in caplog.text


@both_loops
async def test_our_client_without_a_required_certificate(pair: Pair, authority: Authority) -> None:
    required = {
        "tls_server_need_client_auth": "require",
        "tls_server_auth_client": True,
        "tls_server_trust_cert_path": authority.path,
    }
    own = authority.issue("client")
    certified = tls_settings.client_context(
        TlsSettings(tls_client_key_path=own.key, tls_client_cert_path=own.certificate)
    )
    async with server(given(pair, **required)) as (subject, _):
        async with RemotingClient(tls=certified) as client:
            assert (await client.invoke(subject.address, Command(subject_of.ECHO))).code == 0
        async with RemotingClient(tls=ANYBODY) as client:
            # With TLS 1.3 the refusal comes after the client's handshake, or is lost with it.
            with pytest.raises((ConnectionLost, Unreachable)):
                await client.invoke(subject.address, Command(subject_of.ECHO))
        assert subject.seen == {subject_of.ECHO: 1}


@both_loops
async def test_our_client_and_a_server_without_tls() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(echo(1))
        await reader.read()

    for talk, reason in ((close, "closed by the other side"), (answer, "wrong version number")):
        async with RawServer(talk) as raw, RemotingClient(tls=ANYBODY) as client:
            with pytest.raises(Unreachable, match=f"no TLS handshake: {reason}"):
                await client.invoke(raw.address, Command(subject_of.ECHO))


@both_loops
async def test_our_client_and_a_server_that_is_silent() -> None:
    release = asyncio.Event()

    async def stay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()

    async with RawServer(stay) as raw:
        async with RemotingClient(tls=ANYBODY, connect_timeout_ms=20) as client:
            with pytest.raises(Unreachable, match="no answer in 20 ms"):
                await client.connect(raw.address)
        release.set()


def test_an_unusable_file_is_refused_before_the_start(pair: Pair) -> None:
    with pytest.raises(Exception, match=r"tls\.server\.keyPath"):
        ServerState(tls=given(pair, tls_server_key_path="/nowhere"))
