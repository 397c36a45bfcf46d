"""The two ends of a connection, for tests of remoting: on asyncio's loop and on uvloop's."""

import asyncio
import contextlib
import functools
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from reput.broker import limits
from reput.errors import RequestRefused
from reput.format import command as commands
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.server import LongReply, RemotingServer

GUARD_S = 60
"""Timeout in s that ends a hanging test; no test is expected to take so long."""

ECHO = 1
SILENT = 2
"""Code of a request without an answer."""
LATER = 3
"""Code of a request that is answered when the test releases it."""
BROKEN = 4
"""Code of a request whose service raises an error that is a bug."""
REFUSED = 5
"""Code of a request whose service raises an error with a response code."""
LARGE = 6
"""Code of a request that is answered with a body of field ``size`` bytes."""
UNSPEAKABLE = 7
"""Code of a request whose reply the binary header cannot express."""
LONG = 8
"""Code of a request that is answered after field ``steps`` steps."""
LIMITED = 9
"""Code of a request that a limit refuses."""


def both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test twice: on asyncio's own loop, and on the loop of the servers."""

    @pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
    @functools.wraps(test)
    def run(*args: Any, new_loop: Callable[[], asyncio.AbstractEventLoop], **more: Any) -> None:
        async def guarded() -> None:
            async with asyncio.timeout(GUARD_S):
                await test(*args, **more)

        problems: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=new_loop) as runner:
            loop = runner.get_loop()
            loop.set_exception_handler(lambda _, context: problems.append(context))
            runner.run(guarded())
        assert not problems

    # pytest must see a plain function with an additional argument.
    del run.__wrapped__
    signature = inspect.signature(test)
    loop = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    parameters = [*signature.parameters.values(), loop]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


class Subject:
    """A service that executes the requests above, and its server."""

    def __init__(self, **settings: Any) -> None:
        self.server = RemotingServer(self, host="127.0.0.1", **settings)
        self.opened: list[Channel] = []
        self.closed: list[Channel] = []
        self.later: list[tuple[Channel, Command]] = []
        self.seen: Counter[int] = Counter()
        """Number of requests by code."""
        self.steps = 0
        """Number of executed steps of long requests."""

    async def __aenter__(self) -> "Subject":
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def connect(self, **more: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a plain connection."""
        return await asyncio.open_connection("127.0.0.1", self.server.port, **more)

    def on_open(self, channel: Channel) -> None:
        self.opened.append(channel)

    def on_closed(self, channel: Channel) -> None:
        self.closed.append(channel)

    def _long(self, request: Command) -> LongReply:
        fields = request.ext_fields or {}
        for _ in range(int(fields["steps"])):
            self.steps += 1
            yield
        if "fails" in fields:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        return commands.reply(request)

    def on_request(self, channel: Channel, request: Command) -> Command | LongReply | None:
        self.seen[request.code] += 1
        fields = request.ext_fields or {}
        if request.code == ECHO:
            return commands.reply(request, ext_fields=request.ext_fields, body=request.body)
        if request.code == LATER:
            self.later.append((channel, request))
            return None
        if request.code == BROKEN:
            raise RuntimeError("a bug")
        if request.code == REFUSED:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        if request.code == LARGE:
            return commands.reply(request, body=b"x" * int(fields["size"]))
        if request.code == LONG:
            return self._long(request)
        if request.code == LIMITED:
            limits.HEARTBEAT_GROUPS.check(5_000)
        if request.code == UNSPEAKABLE:
            return commands.reply(request, 1 << 20)
        return None


async def read_frame(reader: asyncio.StreamReader) -> Command:
    """Read one command from a plain connection."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return commands.decode(await reader.readexactly(size))


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a plain connection in any state."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class RawServer:
    """A server whose bytes the test decides."""

    def __init__(
        self, talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> None:
        self._talk = talk
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "RawServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._talk(reader, writer)
        await closed(writer)

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        await asyncio.gather(*self._tasks)
