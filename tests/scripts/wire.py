"""Clients of a server in this process, for golden scripts: connections without sockets.

Replies are matched by their opaque. Requests of the server are printed.
"""

import asyncio
import datetime
import json
import logging
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import all_limits
from reput.format import command as commands, message as record, properties as props, sys_flag
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import LENGTH, Command
from reput.format.message import StoredMessage
from reput.remoting.channel import Channel
from reput.remoting.server import RemotingServer

START_MS = 1_700_000_000_000
"""Time of the clock when a script begins."""
GUARD_S = 20
"""Timeout of a script that gets no reply, in seconds."""
_TURNS = 25
"""Turns of the loop after which all work that needs no time and no thread is done."""
_TIME = re.compile(r"(?<![\d-])1(?:69|70)\d{10}(?!\d)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d#\d\d:\d\d:\d\d:\d{3}")
_REFUSAL = re.compile(r"\S+:\d+: request \d+ refused: ")
_DURATION = re.compile(r"(-?\d+)(ms|s|m|h|d)")
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT_MAX = 200


class Limits:
    """Changes of limits that have no setting."""

    def __init__(self) -> None:
        self._changes: list[Any] = []

    def change(self, name: str, maximum: int) -> None:
        limits = all_limits.module_of(name)
        change = mock.patch.object(limits, name, getattr(limits, name).at(maximum))
        change.start()
        self._changes.append(change)

    def restore(self) -> None:
        for change in reversed(self._changes):
            change.stop()


class Transport(asyncio.Transport):
    """Collects the bytes that are written."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__()
        self.peer = peer
        self.written = b""
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.peer, "sockname": ("192.0.2.1", 10911)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Client:
    """A connection to a server."""

    def __init__(self, name: str, peer: tuple[str, int], channel: Channel) -> None:
        self.name = name
        self.channel = channel
        self.transport = Transport(peer)
        self.expected: dict[int, Callable[[Command], list[str]]] = {}
        """Opaque of a request -> function that prints its reply."""
        self.answer: Command | None = None
        """The client's reply to requests of the server."""
        channel.connection_made(self.transport)

    def feed(self, data: bytes) -> None:
        """Send bytes."""
        while data and not self.transport.is_closed:
            room = self.channel.get_buffer(-1)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            self.channel.buffer_updated(size)
            data = data[size:]

    def received(self) -> list[Command]:
        """Return the commands that the server has sent since the last call."""
        data, self.transport.written = self.transport.written, b""
        received = []
        while data:
            (size,) = LENGTH.unpack_from(data)
            received.append(commands.decode(data[4 : 4 + size]))
            data = data[4 + size :]
        return received

    def close(self) -> None:
        self.transport.is_closed = True
        self.channel.connection_lost(None)


class Clients:
    """The clients of a server, by name.

    Args:
        connect: Makes a connection.
        step: Runs the next steps of the server; called in each turn of the loop.
    """

    def __init__(self, connect: Callable[[], Channel], step: Callable[[], object]) -> None:
        self._connect = connect
        self._step = step
        self._clients: dict[str, Client] = {}
        self._opaque = 0
        self.printed: list[str] = []
        """Lines for all that clients received, except the reply to the current command."""
        self.on_request: Callable[[Command], None] = lambda request: None
        """Called with each request of the server."""

    def named(self, name: str, address: str = "192.0.2.7") -> Client:
        """Return a client; connect it if necessary."""
        if name not in self._clients or self._clients[name].transport.is_closed:
            peer = (address, 4711 + len(self._clients))
            self._clients[name] = Client(name, peer, self._connect())
        return self._clients[name]

    def close(self, name: str) -> None:
        self._clients.pop(name).close()

    def forget_all(self) -> None:
        """Print the last commands of a stopped server, and drop its clients."""
        self._receive()
        self._clients.clear()

    async def ask(
        self,
        client: Client,
        request: Command,
        show: Callable[[Command], list[str]],
        *,
        is_later: bool = False,
    ) -> list[str]:
        """Send a request; return its reply as text.

        Args:
            client: The client that sends it.
            request: The request.
            show: Returns a reply as text.
            is_later: True if no reply is expected now.
        """
        self._opaque += 1
        request.opaque = self._opaque
        replies: list[list[str]] = []

        def keep(reply: Command) -> list[str]:
            replies.append(show(reply))
            return []

        client.expected[request.opaque] = keep
        client.feed(commands.encode(request))
        is_later = is_later or request.is_oneway
        await self.settle(lambda: bool(replies), is_awaited=not is_later)
        if replies:
            return replies[0]
        client.expected[request.opaque] = show
        return ["(no reply)"]

    async def settle(
        self, is_done: Callable[[], bool] = lambda: True, *, is_awaited: bool = False
    ) -> None:
        """Let all work happen that needs no time; wait for a reply if one is expected."""
        turn = 0
        async with asyncio.timeout(GUARD_S):
            while turn < _TURNS or (is_awaited and not is_done()):
                self._step()
                self._receive()
                await asyncio.sleep(0 if turn < 2 * _TURNS else 0.001)
                turn += 1
        self._receive()

    def _receive(self) -> None:
        for client in list(self._clients.values()):
            for command in client.received():
                if not command.is_reply:
                    self.on_request(command)
                    self.printed += [f"{client.name} <- {line}" for line in shown_request(command)]
                    if client.answer is not None and not command.is_oneway:
                        answer = commands.reply(
                            command, client.answer.code, client.answer.remark,
                            client.answer.ext_fields, client.answer.body,
                        )  # fmt: skip
                        client.feed(commands.encode(answer))
                    continue
                lines = client.expected.pop(command.opaque)(command)
                self.printed += [f"{client.name} <- {line}" for line in lines]


class ScriptServer(RemotingServer):
    """A server without a socket."""

    async def start(self) -> None:
        """Do nothing: scripts connect their clients."""

    async def stop(self) -> None:
        for channel in list(self.channels):
            channel.close()
            channel.connection_lost(None)


class Logs(logging.Handler):
    """Keeps the warnings and errors of the server."""

    def __init__(self, printed: list[str], root: str) -> None:
        super().__init__(logging.WARNING)
        self._printed = printed
        self._root = root

    def emit(self, entry: logging.LogRecord) -> None:
        text = entry.getMessage().replace(self._root, "ROOT")
        if _REFUSAL.match(text):  # the reply has the error
            return
        if entry.exc_info and entry.exc_info[1] is not None:
            text += f": {entry.exc_info[1]!r}"
        self._printed.append(f"{entry.levelname.lower()}: {text}")


# Text -------------------------------------------------------------------------------------------


def duration_ms(text: str) -> int:
    """Return the duration of a text like ``1s500ms``, in ms."""
    parts = _DURATION.findall(text)
    assert parts, f"{text} is no duration"
    assert "".join(number + unit for number, unit in parts) == text, f"{text} is no duration"
    return sum(int(number) * _UNITS[unit] for number, unit in parts)


def value_of(text: str) -> str:
    """Return an argument with its time: ``@1s`` is one second after the start of the script."""
    if text.startswith("@") and _DURATION.fullmatch(text[1:]):
        return str(START_MS + duration_ms(text[1:]))
    return text


def time_of(text: str) -> str:
    """Return a time as ``@`` and the milliseconds since the start of the script."""
    return f"@{int(text) - START_MS}ms"


def with_times(line: str) -> str:
    """Replace each time in a text; dates are in the local time zone."""
    line = _DATE.sub(lambda match: _ms_of_date(match[0]), line)
    return _TIME.sub(lambda match: time_of(match[0]), line)


def _ms_of_date(text: str) -> str:
    seconds, milliseconds = text[:-4], int(text[-3:])
    local = datetime.datetime.strptime(seconds, "%Y-%m-%d#%H:%M:%S")  # noqa: DTZ007 - it is local
    return str(int(local.timestamp()) * 1000 + milliseconds)


def shown_text(data: bytes) -> str:
    """Return a body as text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if (data and not text) or not text.isprintable():
        return data.hex(" ") if len(data) <= _TEXT_MAX else f"({len(data)} bytes)"
    return f"({len(data)} bytes)" if len(data) > _TEXT_MAX else quoted(text)


def quoted(text: str) -> str:
    """Return a text in a kind of quotes that it does not contain."""
    return f"'{text}'" if '"' in text and "'" not in text else json.dumps(text, ensure_ascii=False)


_SEPARATORS = {1: ":", 2: ";"}  # of properties


def shown_fields(fields: dict[str, str] | None) -> str:
    return "".join(
        f" {name}={value if value and ' ' not in value else quoted(value)}".translate(_SEPARATORS)
        for name, value in (fields or {}).items()
    )


_CODES = {code.value: name for name, code in ResponseCode.__members__.items()}
"""Code -> its name; of two names for one number, the one of 5.x."""


def shown_code(code: int) -> str:
    return _CODES.get(code, str(code))


def shown_reply(reply: Command, *hidden: str, only: str | None = None) -> list[str]:
    """Return a reply as text: code, remark, header fields, and the body on the next line."""
    fields = {name: text for name, text in (reply.ext_fields or {}).items() if name not in hidden}
    remark = f" {quoted(reply.remark)}" if reply.remark else ""
    line = shown_code(reply.code) + remark + shown_fields(fields)
    return [line, *shown_body(reply.body, only)]


def shown_request(request: Command) -> list[str]:
    """Return a request of the server as text."""
    oneway = " (one-way)" if request.is_oneway else ""
    line = RequestCode(request.code).name + oneway + shown_fields(request.ext_fields)
    return [line, *shown_body(request.body, None)]


def shown_body(body: bytes, only: str | None) -> list[str]:
    """Return a body as lines: records as messages, all else as text.

    Args:
        body: The body.
        only: The members of a JSON object to print, joined by commas: ``table.T``.
    """
    if not body:
        return []
    if is_record(body):
        return [shown_message(message) for message in messages_in(body)]
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return [shown_text(body)]
    if only is None:
        return text.splitlines() if text[:1] in "{[" or "=" in text else [shown_text(body)]
    if not text.startswith("{"):
        return [line for line in text.splitlines() if line.partition("=")[0] in only.split(",")]
    document = json.loads(text)
    lines = []
    for path in only.split(","):
        value = document
        for name in path.split("/"):
            value = value.get(name, "(none)") if isinstance(value, dict) else value[int(name)]
        lines.append(f"{path}: {json.dumps(value, separators=(',', ':'), ensure_ascii=False)}")
    return lines


def is_record(body: bytes) -> bool:
    magics = {record.MAGIC_V1, record.MAGIC_V2}
    return len(body) > 8 and record.SIZE_AND_MAGIC.unpack_from(body)[1] in magics


def messages_in(data: bytes) -> list[StoredMessage]:
    """Return the messages of a body of consecutive records."""
    messages = []
    while data:
        messages.append(record.decode(data))
        data = data[messages[-1].store_size :]
    return messages


_FLAGS = {
    sys_flag.COMPRESSED: "compressed",
    sys_flag.MULTI_TAGS: "multi_tags",
    sys_flag.BORN_HOST_V6: "born_v6",
    sys_flag.STORE_HOST_V6: "stored_v6",
    sys_flag.NEED_UNWRAP: "need_unwrap",
    sys_flag.INNER_BATCH: "inner_batch",
}
_KINDS = {0: "", 4: "prepared", 8: "commit", 12: "rollback"}


def shown_message(message: StoredMessage, *, has_place: bool = False) -> str:
    """Return a message as text: place, body, differences from a plain send, properties in order.

    ``CLUSTER=DefaultCluster``, which each send gets, is left out.

    Args:
        message: The message.
        has_place: True to begin with the physical offset and the size of its record.
    """
    place = f"{message.physical_offset}+{message.store_size} " if has_place else ""
    words = [f"{place}{message.topic}/{message.queue_id}@{message.queue_offset}",
             shown_text(message.body)]  # fmt: skip
    words.append(f"@{message.store_timestamp - START_MS}ms")
    if message.born_timestamp != message.store_timestamp:
        words.append(f"born=@{message.born_timestamp - START_MS}ms")
    flags = [name for bit, name in _FLAGS.items() if message.sys_flag & bit]
    kind = _KINDS[message.sys_flag & 12]
    words += [kind] if kind else []
    words += flags
    if message.flag:
        words.append(f"flag={message.flag}")
    if message.reconsume_times:
        words.append(f"reconsume={message.reconsume_times}")
    if message.prepared_transaction_offset:
        words.append(f"prepared={message.prepared_transaction_offset}")
    properties = props.decode(message.property_bytes)
    for name, value in properties.items():
        if (name, value) != (props.CLUSTER, "DefaultCluster"):
            text = value if len(value) <= _TEXT_MAX else f"({len(value)} letters)"
            words.append(f"{name}={text if text and ' ' not in text else quoted(text)}")
    return " ".join(words)
