"""The client against servers that answer, stay silent, answer out of order, close and return."""

import asyncio
import errno
import gc
import random
from typing import Any

import pytest

import remoting_subject as subject_of
from remoting_subject import RawServer, Subject, both_loops, read_frame
from reput.errors import (
    ConnectionLost,
    InvalidOption,
    RequestRefused,
    RequestTimedOut,
    Unreachable,
)
from reput.format import command as commands
from reput.format.codes import ResponseCode
from reput.format.command import Command, Serialization
from reput.remoting import client as client_module
from reput.remoting.channel import Channel
from reput.remoting.client import RemotingClient, cancel, split_address
from waiting import until

LONG_MS = 30_000


def request(code: int, **more: Any) -> Command:
    return Command(code, **more)


# --- requests -----------------------------------------------------------------


@both_loops
async def test_each_of_many_requests_in_flight_gets_its_reply() -> None:
    async with Subject() as subject, RemotingClient() as client:
        replies = await asyncio.gather(
            *[
                client.invoke(subject.address, request(subject_of.ECHO, body=b"%d" % n), LONG_MS)
                for n in range(10_000)
            ]
        )
        assert [reply.body for reply in replies] == [b"%d" % n for n in range(10_000)]
        assert len(subject.opened) == 1


@both_loops
async def test_replies_out_of_order() -> None:
    async with Subject() as subject, RemotingClient() as client:
        asked = [
            asyncio.ensure_future(
                client.invoke(subject.address, request(subject_of.LATER, body=b"%d" % n), LONG_MS)
            )
            for n in range(500)
        ]
        await until(lambda: len(subject.later) == 500)
        random.Random(5).shuffle(subject.later)
        for channel, command in subject.later:
            channel.send(commands.reply(command, body=command.body))
        assert [(await reply_task).body for reply_task in asked] == [b"%d" % n for n in range(500)]


@both_loops
async def test_requests_that_are_sent_at_once_have_their_replies_in_order() -> None:
    async with Subject() as subject, RemotingClient() as client:
        requests = [request(subject_of.LATER, body=b"%d" % n) for n in range(20)]
        replies = await client.send_requests(subject.address, requests, LONG_MS)
        await until(lambda: len(subject.later) == 20)
        random.Random(5).shuffle(subject.later)
        for channel, command in subject.later:
            channel.send(commands.reply(command, body=command.body))
        assert [(await reply).body for reply in replies] == [b"%d" % n for n in range(20)]


@both_loops
async def test_a_reply_that_is_no_longer_awaited_is_left() -> None:
    async with Subject() as subject, RemotingClient() as client:
        requests = [request(subject_of.LATER) for _ in range(2)]
        replies = await client.send_requests(subject.address, requests, LONG_MS)
        await until(lambda: len(subject.later) == 2)
        cancel(replies)
        for channel, command in subject.later:
            channel.send(commands.reply(command))
        reply = await client.invoke(subject.address, request(subject_of.ECHO), LONG_MS)
        assert reply.code == ResponseCode.SUCCESS
        assert all(reply.cancelled() for reply in replies)


@both_loops
async def test_a_reply_with_an_error_code_is_a_reply() -> None:
    async with Subject() as subject, RemotingClient() as client:
        reply = await client.invoke(subject.address, request(subject_of.REFUSED), LONG_MS)
        assert (reply.code, reply.remark) == (ResponseCode.TOPIC_NOT_EXIST, "no such topic")


@both_loops
async def test_large_requests_and_replies_both_ways_at_once() -> None:
    """The data exceeds every buffer: a client that stopped reading while writing would deadlock."""
    async with Subject() as subject, RemotingClient() as client:
        body = bytes(1 << 20)
        replies = await asyncio.gather(
            *[
                client.invoke(subject.address, request(subject_of.ECHO, body=body), LONG_MS)
                for _ in range(50)
            ]
        )
        assert all(reply.body == body for reply in replies)


@both_loops
async def test_one_way() -> None:
    async with Subject() as subject, RemotingClient() as client:
        for _ in range(10):
            await client.send_oneway(subject.address, request(subject_of.ECHO))
        await client.invoke(subject.address, request(subject_of.ECHO), LONG_MS)
        assert subject.seen[subject_of.ECHO] == 11


@both_loops
async def test_a_request_that_cannot_be_encoded_leaves_no_state() -> None:
    async with Subject() as subject, RemotingClient() as client:
        bad = request(1 << 20, serialization=Serialization.ROCKETMQ)
        with pytest.raises(ValueError, match="does not fit a binary header"):
            await client.invoke(subject.address, bad, LONG_MS)
        channel = client.channel(subject.address)
        assert channel is not None
        assert len(channel._pending) == 0
        assert (await client.invoke(subject.address, request(subject_of.ECHO), LONG_MS)).code == 0


# --- no reply -------------------------------------------------------------------------------


@both_loops
async def test_no_reply_in_time() -> None:
    async with Subject() as subject, RemotingClient() as client:
        patient = asyncio.ensure_future(
            client.invoke(subject.address, request(subject_of.LATER), LONG_MS)
        )
        with pytest.raises(RequestTimedOut) as raised:
            await client.invoke(subject.address, request(subject_of.SILENT), 20)
        assert (raised.value.code, raised.value.timeout_ms) == (subject_of.SILENT, 20)
        assert raised.value.retriable
        await until(lambda: bool(subject.later))
        channel, command = subject.later[0]
        channel.send(commands.reply(command, body=b"late"))
        assert (await patient).body == b"late"
        assert len(subject.opened) == 1


@both_loops
async def test_each_of_many_requests_times_out() -> None:
    async with Subject() as subject, RemotingClient() as client:
        await client.invoke(subject.address, request(subject_of.ECHO), 5_000)  # Connects.
        results = await asyncio.gather(
            *[
                client.invoke(subject.address, request(subject_of.SILENT), 5 + n % 40)
                for n in range(2_000)
            ],
            return_exceptions=True,
        )
        assert all(isinstance(result, RequestTimedOut) for result in results)
        assert {result.timeout_ms for result in results} == set(range(5, 45))  # type: ignore[union-attr]


@both_loops
async def test_a_late_reply_is_ignored() -> None:
    async with Subject() as subject, RemotingClient() as client:
        with pytest.raises(RequestTimedOut):
            await client.invoke(subject.address, request(subject_of.LATER), 1)
        await until(lambda: bool(subject.later))
        channel, command = subject.later[0]
        channel.send(commands.reply(command, body=b"late"))
        channel.send(Command(0, 12345, flag=1))  # A reply without a request.
        reply = await client.invoke(subject.address, request(subject_of.ECHO, body=b"x"), LONG_MS)
        assert reply.body == b"x"


@both_loops
async def test_a_cancelled_request_does_not_disturb_others() -> None:
    async with Subject() as subject, RemotingClient() as client:
        given_up, patient = [
            asyncio.ensure_future(
                client.invoke(subject.address, request(subject_of.LATER), LONG_MS)
            )
            for _ in range(2)
        ]
        await until(lambda: len(subject.later) == 2)
        given_up.cancel()
        for channel, command in subject.later:
            channel.send(commands.reply(command, body=b"reply"))
        assert (await patient).body == b"reply"
        with pytest.raises(asyncio.CancelledError):
            await given_up


@both_loops
async def test_a_server_that_does_not_read() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await done.wait()
        writer.transport.abort()

    done = asyncio.Event()
    async with RawServer(talk) as server, RemotingClient() as client:
        body = bytes(16_000_000)
        for _ in range(3):
            with pytest.raises(RequestTimedOut):
                await client.invoke(server.address, request(subject_of.ECHO, body=body), 20)
        with pytest.raises(RequestTimedOut):
            await client.send_oneway(server.address, request(subject_of.ECHO), 20)
        done.set()


# --- connections ----------------------------------------------------------------------------


@both_loops
async def test_a_lost_connection_fails_all_pending_requests_and_is_reopened() -> None:
    async with Subject() as subject, RemotingClient() as client:
        for round_ in range(1, 4):
            asked = [
                asyncio.ensure_future(
                    client.invoke(subject.address, request(subject_of.SILENT), LONG_MS)
                )
                for _ in range(100)
            ]
            await until(lambda n=round_: subject.seen[subject_of.SILENT] == 100 * n)  # type: ignore[misc]
            subject.opened[-1].abort()
            for call in asked:
                with pytest.raises(ConnectionLost) as raised:
                    await call
                assert raised.value.address == subject.address
            assert client.channel(subject.address) is None
            reply = await client.invoke(subject.address, request(subject_of.ECHO), LONG_MS)
            assert reply.code == 0
            assert len(subject.opened) == round_ + 1


@both_loops
async def test_concurrent_requests_share_a_connection() -> None:
    async with Subject() as subject, RemotingClient() as client:
        await asyncio.gather(
            *[client.invoke(subject.address, request(subject_of.ECHO), LONG_MS) for _ in range(50)]
        )
        assert len(subject.opened) == 1


@both_loops
async def test_an_address_without_listener_is_unreachable() -> None:
    async with Subject() as subject:
        address = subject.address
    async with RemotingClient() as client:
        results = await asyncio.gather(
            *[client.invoke(address, request(subject_of.ECHO)) for _ in range(5)],
            return_exceptions=True,
        )
        for error in results:
            assert isinstance(error, Unreachable)
            assert error.address == address
            assert "refused" in error.reason.lower()
            assert error.retriable


@both_loops
async def test_a_connection_that_takes_too_long() -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    async with RemotingClient(connect_timeout_ms=20) as client:
        client._dialer._loop = _LoopThatNeverConnects(never)  # type: ignore[assignment]
        with pytest.raises(Unreachable, match="no answer in 20 ms"):
            await client.connect("127.0.0.1:1")


class _LoopThatNeverConnects:
    def __init__(self, never: Any) -> None:
        self.create_connection = never
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@pytest.mark.parametrize(
    "address",
    [
        *("", "host", "host:", ":1", "host:x", "host:65536", "a:-1", "1.2.3.4:१"),
        *("a\0b:1", "a\nb:1", "\x1b[31m:1", "host:" + "9" * 5_000),
    ],
    ids=lambda address: repr(address[:20]),
)
def test_invalid_addresses(address: str) -> None:
    if address == "1.2.3.4:१":
        assert split_address(address) == ("1.2.3.4", 1)  # int() accepts all digits of Unicode.
        return
    with pytest.raises(InvalidOption, match="host:port"):
        split_address(address)


@both_loops
async def test_a_host_that_is_no_name_is_unreachable() -> None:
    """A name server may answer with any text."""
    client = RemotingClient()
    for host in ("x" * 64 + ".y", "a..b", "x" * 100_000):
        with pytest.raises(Unreachable):
            await client.connect(f"{host}:1")
    await client.close()


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:9876", "127.0.0.1", 9876),
        (" name:1 ", "name", 1),
        ("[::1]:10911", "::1", 10911),
        ("::1:10911", "::1", 10911),
    ],
)
def test_addresses(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)


@both_loops
async def test_an_idle_connection_is_closed_and_reopened() -> None:
    async with Subject() as subject, RemotingClient(idle_ms=40) as client:
        await client.invoke(subject.address, request(subject_of.ECHO), LONG_MS)
        await until(lambda: not subject.server.channels)
        await client.invoke(subject.address, request(subject_of.ECHO), LONG_MS)
        assert len(subject.opened) == 2


@both_loops
async def test_garbage_from_the_server() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async with RawServer(talk) as server, RemotingClient() as client:
        with pytest.raises(ConnectionLost, match="is the other side a RocketMQ client or broker"):
            await client.invoke(server.address, request(subject_of.ECHO), LONG_MS)


@both_loops
async def test_a_server_that_closes_in_the_middle_of_a_reply() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frame = await read_frame(reader)
        writer.write(commands.encode(commands.reply(frame, body=b"body"))[:-1])
        await writer.drain()

    async with RawServer(talk) as server, RemotingClient() as client:
        with pytest.raises(ConnectionLost):
            await client.invoke(server.address, request(subject_of.ECHO), LONG_MS)


# --- closing --------------------------------------------------------------------------------


@both_loops
async def test_close_fails_all_pending_requests() -> None:
    async with Subject() as subject:
        client = RemotingClient()
        asked = [
            asyncio.ensure_future(
                client.invoke(subject.address, request(subject_of.SILENT), LONG_MS)
            )
            for _ in range(10)
        ]
        await until(lambda: subject.seen[subject_of.SILENT] == 10)
        await client.close()
        for call in asked:
            with pytest.raises(ConnectionLost):
                await call
        with pytest.raises(Unreachable, match="this client is closed"):
            await client.invoke(subject.address, request(subject_of.ECHO))
        await client.close()
        await until(lambda: not subject.server.channels)


@both_loops
async def test_close_while_connecting() -> None:
    async with Subject() as subject:
        client = RemotingClient()
        asked = asyncio.ensure_future(client.invoke(subject.address, request(subject_of.ECHO)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises((Unreachable, ConnectionLost)):
            await asked


async def test_a_refused_connection_whose_caller_was_cancelled_is_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio would report an exception that no caller has seen when the task is collected."""
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    refused = asyncio.Event()

    async def refuse(*_: object) -> Channel:
        await refused.wait()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    async with RemotingClient() as client:
        monkeypatch.setattr(client._dialer, "_open", refuse)
        caller = asyncio.ensure_future(client.connect("127.0.0.1:1"))
        await asyncio.sleep(0)
        (attempt,) = client._connecting.values()
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        await asyncio.sleep(0)  # shield() stops watching the attempt
        refused.set()
        await asyncio.wait([attempt])
        del caller, attempt
        gc.collect()
        assert not client._connecting
    assert reported == []


@both_loops
async def test_a_connection_that_is_lost_before_it_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lost notification would let the closing of the client wait forever."""
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def connect_and_lose(*args: Any) -> tuple[asyncio.Transport, Channel]:
        transport, channel = await connect(*args)
        transport.abort()
        while not channel.is_closed:
            await asyncio.sleep(0)
        return transport, channel

    monkeypatch.setattr(loop, "create_connection", connect_and_lose)
    async with Subject() as subject, RemotingClient() as client:
        with pytest.raises(Unreachable, match="closed at once"):
            await client.invoke(subject.address, request(subject_of.ECHO))
        async with asyncio.timeout(20):
            await client.close()


@both_loops
async def test_close_does_not_wait_for_a_server_that_does_not_read() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await done.wait()
        writer.transport.abort()

    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(client_module, "LAST_WORDS_S", 0.02)
    done = asyncio.Event()
    async with RawServer(talk) as server:
        client = RemotingClient()
        with pytest.raises(RequestTimedOut):
            await client.invoke(
                server.address, request(subject_of.ECHO, body=bytes(16_000_000)), 20
            )
        await client.close()
        done.set()
    monkeypatch.undo()


# --- requests of the server -----------------------------------------------------------------


@both_loops
async def test_the_client_answers_requests_of_the_server() -> None:
    def sync(address: str, command: Command) -> Command | None:
        assert address == subject.address
        if command.code == subject_of.BROKEN:
            raise RuntimeError("a bug")
        if command.code == subject_of.REFUSED:
            raise RequestRefused(17, "not here")
        return None if command.code == subject_of.SILENT else commands.reply(command, body=b"sync")

    async def later(address: str, command: Command) -> Command | None:
        await asyncio.sleep(0)
        return sync(address, command)

    for handler in (sync, later):
        async with Subject() as subject, RemotingClient(handler=handler) as client:
            await client.invoke(subject.address, request(subject_of.ECHO), LONG_MS)
            (channel,) = subject.opened

            async def ask(code: int, timeout_ms: int = LONG_MS, c: Channel = channel) -> Command:
                return await c.invoke(request(code), timeout_ms)

            replies = await asyncio.gather(*[ask(subject_of.ECHO) for _ in range(100)])
            assert {reply.body for reply in replies} == {b"sync"}
            broken = await ask(subject_of.BROKEN)
            assert (broken.code, broken.remark) == (1, "RuntimeError: a bug")
            refused = await ask(subject_of.REFUSED)
            assert (refused.code, refused.remark) == (17, "not here")
            with pytest.raises(RequestTimedOut):
                await ask(subject_of.SILENT, 20)


@both_loops
async def test_a_client_without_handler_answers_with_an_error() -> None:
    async with Subject() as subject, RemotingClient() as client:
        await client.invoke(subject.address, request(subject_of.ECHO), LONG_MS)
        reply = await subject.opened[0].invoke(request(40), LONG_MS)
        assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@both_loops
async def test_both_sides_send_requests_at_once() -> None:
    """Both sides use the same opaques; a reply is not mistaken for a request."""
    async with (
        Subject() as subject,
        RemotingClient(
            handler=lambda _, command: commands.reply(command, body=b"client")
        ) as client,
    ):
        await client.invoke(subject.address, request(subject_of.ECHO), LONG_MS)
        (channel,) = subject.opened
        mine = [
            client.invoke(subject.address, request(subject_of.ECHO, body=b"server"), LONG_MS)
            for _ in range(200)
        ]
        theirs = [channel.invoke(request(subject_of.ECHO), LONG_MS) for _ in range(200)]
        replies = await asyncio.gather(*mine, *theirs)
        assert [reply.body for reply in replies] == [b"server"] * 200 + [b"client"] * 200


@both_loops
async def test_a_lost_client_fails_the_requests_of_the_server() -> None:
    async with Subject() as subject:
        async with RemotingClient(handler=lambda _, __: None) as client:
            await client.invoke(subject.address, request(subject_of.ECHO), LONG_MS)
            (channel,) = subject.opened
            asked = asyncio.ensure_future(channel.invoke(request(40), LONG_MS))
            await asyncio.sleep(0)
        with pytest.raises(ConnectionLost):
            await asked
        with pytest.raises(ConnectionLost):
            await channel.invoke(request(40), LONG_MS)
