"""Connections through proxies: whose header is read, whose is required, what it changes."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

import remoting_subject as subject_of
from certificates import Authority, Pair
from remoting_subject import Subject, both_loops, closed, read_frame
from reput.format import command as commands
from reput.format.command import Command
from reput.remoting import limits, listener, networks, tls_settings
from reput.remoting.channel import Channel
from reput.remoting.proxy_acceptor import HeaderResult, ProxyAcceptor
from reput.remoting.server_state import ConnectionLimits, ServerState
from reput.remoting.tls_settings import TlsMode, TlsSettings
from waiting import until

PROXY = "127.0.0.2"
"""Address of connections that come from a proxy; those from 127.0.0.1 do not."""
CLIENT = "203.0.113.9:4711"
ANYBODY = tls_settings.client_context(TlsSettings())

SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
TEXT = b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 10911\r\n"
BINARY = SIGNATURE + bytes.fromhex("2111000c cb007109 0a000001 1267 2a9f")
MAPPED = (
    SIGNATURE
    + bytes.fromhex("21210024")
    + (bytes.fromhex("00000000000000000000ffffcb007109") * 2 + bytes.fromhex("1267 2a9f"))
)
SIX = b"PROXY TCP6 2001:db8::9 2001:db8::1 4711 10911\r\n"
SOURCES = {"text": (TEXT, CLIENT), "binary": (BINARY, CLIENT), "mapped": (MAPPED, CLIENT),
           "six": (SIX, "[2001:db8::9]:4711")}  # fmt: skip
LOCAL = SIGNATURE + bytes.fromhex("2000 0000")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Authority(tmp_path_factory.mktemp("tls")).issue("broker")


@contextlib.asynccontextmanager
async def server(
    pair: Pair | None = None, proxies: str = PROXY, **more: Any
) -> AsyncIterator[tuple[Subject, ProxyAcceptor]]:
    tls = None
    if pair is not None:
        tls = TlsSettings(tls_server_cert_path=pair.certificate, tls_server_key_path=pair.key)
    state = ServerState(tls=tls, proxies=networks.parse(proxies, "key"), **more)
    assert state.proxies is not None
    async with Subject(state=state) as subject:
        yield subject, state.proxies


async def connect(
    subject: Subject, source: str = PROXY
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await subject.connect(local_addr=(source, 0))


def echo(opaque: int) -> bytes:
    return commands.encode(Command(subject_of.ECHO, opaque))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name != "asyncio"]


# --- the source ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("name", SOURCES)
@both_loops
async def test_the_source_is_the_peer(name: str, is_encrypted: bool, pair: Pair) -> None:
    header, expected = SOURCES[name]
    async with server(pair) as (subject, proxies):
        reader, writer = await connect(subject)
        proxy = "{}:{}".format(*writer.get_extra_info("sockname"))
        await until(lambda: bool(subject.opened))
        (channel,) = subject.opened
        assert channel.peer == proxy
        writer.write(header)
        if is_encrypted:
            await writer.start_tls(ANYBODY)
        writer.write(echo(7) + echo(8))
        assert [(await read_frame(reader)).opaque for _ in range(2)] == [7, 8]
        assert channel.peer == expected
        assert channel.address == expected.rpartition(":")[0]
        assert channel.host.port == 4711
        assert str(channel.local_host) == subject.address
        assert not channel.is_local
        assert subject.server.state.connections_of == {channel.address: 1}
        assert proxies.counts == {HeaderResult.SOURCE: 1}
        await closed(writer)
        await until(lambda: not subject.server.channels)
        assert not subject.server.state.connections_of
        assert not proxies.deadlines


@pytest.mark.parametrize("name", ["text", "binary"])
@pytest.mark.parametrize("is_encrypted", [False, True])
@both_loops
async def test_a_header_split_at_each_byte(name: str, is_encrypted: bool, pair: Pair) -> None:
    header, expected = SOURCES[name]
    context = tls_settings.client_context(TlsSettings())
    async with server(pair) as (subject, proxies):
        for border in range(1, len(header) + 2):
            reader, writer = await connect(subject)
            data = header + (b"" if is_encrypted else echo(border))
            writer.write(data[:border])
            if border < len(header):
                await until(lambda: bool(proxies.deadlines))
            writer.write(data[border:])
            if is_encrypted:
                await writer.start_tls(context)
                writer.write(echo(border))
            assert (await read_frame(reader)).opaque == border
            assert subject.opened[-1].peer == expected
            await closed(writer)
            await until(lambda: not subject.server.channels)
        assert proxies.counts == {HeaderResult.SOURCE: len(header) + 1}


@both_loops
async def test_a_header_in_single_bytes(pair: Pair) -> None:
    async with server(pair) as (subject, _):
        for header in (TEXT, BINARY):
            reader, writer = await connect(subject)
            data = header + echo(3)
            for position in range(len(data)):
                writer.write(data[position : position + 1])
                await writer.drain()
                await asyncio.sleep(0)
            assert (await read_frame(reader)).opaque == 3
            assert subject.opened[-1].peer == CLIENT
            await closed(writer)


@pytest.mark.parametrize(
    "header", [LOCAL, b"PROXY UNKNOWN\r\n", BINARY.replace(b"\x21\x11", b"\x21\x12")],
    ids=["local", "unknown", "datagram"],
)  # fmt: skip
@both_loops
async def test_without_a_source_the_proxy_is_the_peer(header: bytes) -> None:
    async with server() as (subject, proxies):
        reader, writer = await connect(subject)
        writer.write(header + echo(1))
        assert (await read_frame(reader)).opaque == 1
        (channel,) = subject.opened
        assert channel.peer == "{}:{}".format(*writer.get_extra_info("sockname"))
        assert not channel.is_local
        assert proxies.counts == {HeaderResult.NO_SOURCE: 1}
        await closed(writer)


@both_loops
async def test_limits_of_an_address_count_for_the_source(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bounds = ConnectionLimits(connections_per_address=limits.CONNECTIONS_PER_ADDRESS.at(2))
    async with server(connection_limits=bounds) as (subject, _):
        writers = []
        for number in range(6):  # two of each client, more than an address may have
            reader, writer = await connect(subject)
            writer.write(TEXT.replace(b"113.9", b"113.%d" % (number // 2)) + echo(number))
            assert (await read_frame(reader)).opaque == number
            writers.append(writer)
        reader, writer = await connect(subject)
        writer.write(TEXT.replace(b"113.9", b"113.1") + echo(9))
        assert await reader.read() == b""
        assert "connections from one address (203.0.113.1:4711)" in caplog.text
        for open_writer in (*writers, writer):
            await closed(open_writer)
        await until(lambda: not subject.server.channels)
        assert not subject.server.state.connections_of


@both_loops
async def test_a_silent_connection_makes_room_for_its_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "SILENT_S", 0.0)
    bounds = ConnectionLimits(connections_per_address=limits.CONNECTIONS_PER_ADDRESS.at(2))
    async with server(connection_limits=bounds) as (subject, proxies):
        state = subject.server.state
        other = await connect(subject)
        other[1].write(TEXT.replace(b"113.9", b"113.1"))
        await until(lambda: proxies.counts.total() == 1)
        silent = await connect(subject)
        silent[1].write(TEXT)
        await until(lambda: state.connections_of["203.0.113.9"] == 1)
        new = [await connect(subject) for _ in range(2)]
        for number, (reader, writer) in enumerate(new):
            writer.write(TEXT + echo(number))
            assert (await read_frame(reader)).opaque == number
        assert await silent[0].read() == b""
        other[1].write(echo(7))
        assert (await read_frame(other[0])).opaque == 7
        assert state.refusals.counts == {"connections_per_address": 1}
        for _, writer in (other, silent, *new):
            await closed(writer)
        await until(lambda: not subject.server.channels)
        assert not state.connections_of
        assert len(state.silent) == 0


# --- whose header ---------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [TEXT, BINARY], ids=["text", "binary"])
@pytest.mark.parametrize("proxies", ["", PROXY], ids=["off", "of others"])
@both_loops
async def test_a_header_of_another_peer_is_not_a_frame(header: bytes, proxies: str) -> None:
    state = ServerState(tls=TlsSettings(), proxies=networks.parse(proxies, "key"))
    async with Subject(state=state) as subject:
        reader, writer = await connect(subject, "127.0.0.1")
        writer.write(header + echo(1))
        assert await reader.read() == b""
        (channel,) = subject.opened
        assert channel.peer == "{}:{}".format(*writer.get_extra_info("sockname"))
        assert not subject.seen
        await closed(writer)


@both_loops
async def test_nothing_stays_in_front_of_the_connections_of_others(pair: Pair) -> None:
    for of_tls in (None, pair):
        async with server(of_tls) as (subject, proxies):
            reader, writer = await connect(subject, "127.0.0.1")
            writer.write(echo(1))
            assert (await read_frame(reader)).opaque == 1
            (channel,) = subject.opened
            assert channel._transport is not None
            assert channel._transport.get_protocol() is channel
            assert channel.is_local
            assert not proxies.counts
            await closed(writer)


async def test_without_proxies_the_first_protocol_is_the_channel() -> None:
    assert isinstance(Subject(state=ServerState()).server._protocol(), Channel)


@both_loops
async def test_a_second_header_is_not_a_frame() -> None:
    async with server() as (subject, _):
        reader, writer = await connect(subject)
        writer.write(TEXT + TEXT.replace(b"113.9", b"113.8") + echo(1))
        assert await reader.read() == b""
        assert subject.opened[0].peer == CLIENT
        assert not subject.seen
        await closed(writer)


# --- no header ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        echo(1),
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"PROXY TCP4 203.0.113.9 10.0.0.1 4711\r\n" + echo(1),
        TEXT[:-2] + b"\n" + echo(1),
        b"PROXY UNKNOWN " + b"x" * 93 + b"\r\n",
        SIGNATURE + bytes.fromhex("2111000b") + bytes(11),
        SIGNATURE + bytes.fromhex("2111ffff"),
    ],
    ids=["a frame", "a handshake", "few words", "no CR", "108 bytes", "few bytes", "64 KiB"],
)
@both_loops
async def test_a_proxy_without_a_correct_header_is_one_line(
    data: bytes, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with server(pair) as (subject, proxies):
        reader, writer = await connect(subject)
        proxy = "{}:{}".format(*writer.get_extra_info("sockname"))
        writer.write(data)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        await closed(writer)
        await until(lambda: not subject.server.channels)
        (line,) = lines(caplog)
        assert line.startswith(f"{proxy}: no PROXY header: ")
        assert "Traceback" not in caplog.text
        assert proxies.counts == {HeaderResult.FAILED: 1}
        assert not subject.seen
        assert not proxies.deadlines


@both_loops
async def test_a_header_that_stalls_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    async with server() as (subject, proxies):
        begun_s = asyncio.get_running_loop().time()
        reader, writer = await connect(subject)
        writer.write(TEXT[:20])
        await until(lambda: bool(proxies.deadlines))
        limit_s = limits.PROXY_HEADER_MS.maximum / 1000
        assert limit_s >= 3, "the least of the specification"
        proxies.deadlines.expire(begun_s + limit_s - 1)
        assert not proxies.counts
        proxies.deadlines.expire(begun_s + limit_s + 60)
        assert await reader.read() == b""
        (line,) = lines(caplog)
        assert "proxy_header_ms" in line
        assert proxies.counts == {HeaderResult.FAILED: 1}
        await closed(writer)


@both_loops
async def test_a_proxy_that_leaves(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with server() as (subject, proxies):
        _, writer = await connect(subject)
        await until(lambda: bool(subject.opened))
        await closed(writer)  # a check whether the port is open
        await until(lambda: len(subject.closed) == 1)
        assert not lines(caplog)
        assert not proxies.counts
        _, writer = await connect(subject)
        writer.write(TEXT[:20])
        await until(lambda: bool(proxies.deadlines))
        await closed(writer)
        await until(lambda: len(subject.closed) == 2)
        assert "closed by the other side" in lines(caplog)[0]
        assert proxies.counts == {HeaderResult.FAILED: 1}


@both_loops
async def test_a_stop_closes_connections_without_a_header() -> None:
    async with server() as (subject, proxies):
        reader, writer = await connect(subject)
        writer.write(TEXT[:20])
        await until(lambda: bool(proxies.deadlines))
    assert await reader.read() == b""
    assert not proxies.counts
    await closed(writer)


@both_loops
async def test_enforcing_counts_with_a_proxy(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tls = TlsSettings(
        tls_server_cert_path=pair.certificate,
        tls_server_key_path=pair.key,
        tls_server_mode=TlsMode.ENFORCING,
    )
    state = ServerState(tls=tls, proxies=networks.parse(PROXY, "key"))
    async with Subject(state=state) as subject:
        reader, writer = await connect(subject)
        writer.write(TEXT + echo(1))
        assert await reader.read() == b""
        assert not subject.seen
        assert f"{CLIENT}: it does not use TLS" in caplog.text
        await closed(writer)
