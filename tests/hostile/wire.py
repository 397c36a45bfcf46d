"""Requests in the encoding of a hostile client: any content can be encoded.

``reput.format.command.encode`` writes only valid frames. A ``Draft`` has fields of any JSON type,
a body as a document or as bytes, and wrong lengths.
"""

import contextlib
import json
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from reput.errors import NotAFrame
from reput.format import command as commands
from reput.format.command import Command

ONEWAY = 2
JSON, BINARY = 0, 1


@dataclass
class Draft:
    """A request before it is encoded."""

    code: int
    fields: dict[str, Any] | None = None
    """Fields of the header; any JSON values."""
    document: Any = None
    """The body as JSON; None: ``body`` is the body."""
    body: bytes = b""
    flag: int = 0
    opaque: int = 1
    version: Any = 407
    language: Any = "JAVA"
    serialization: int = JSON
    raw_header: bytes | None = None
    """Header bytes that replace the encoded fields."""
    length_lie: int = 0
    """Number that is added to the frame's length."""
    header_length_lie: int = 0
    mutations: list[str] = field(default_factory=list)
    """Names of the applied mutations, for reports."""

    def copy(self) -> "Draft":
        """Return a copy that shares no mutable state."""
        document = json.loads(json.dumps(self.document)) if self.document is not None else None
        fields = None if self.fields is None else dict(self.fields)
        return replace(self, fields=fields, document=document, mutations=list(self.mutations))

    def body_bytes(self) -> bytes:
        return self.body if self.document is None else json.dumps(self.document).encode()

    def encode(self) -> bytes:
        """Return the frame."""
        body = self.body_bytes()
        header = self.raw_header
        if header is None:
            header = self._binary_header() if self.serialization == BINARY else self._json_header()
        header_length = len(header) + self.header_length_lie
        length = 4 + len(header) + len(body) + self.length_lie
        mark = (self.serialization & 0xFF) << 24 | header_length & 0xFFFFFF
        return struct.pack(">II", length & 0xFFFFFFFF, mark) + header + body

    def _json_header(self) -> bytes:
        header: dict[str, Any] = {
            "code": self.code,
            "flag": self.flag,
            "language": self.language,
            "opaque": self.opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": self.version,
        }
        if self.fields is not None:
            header["extFields"] = self.fields
        return json.dumps(header).encode()

    def _binary_header(self) -> bytes:
        fields = b""
        for name, value in (self.fields or {}).items():
            text = value if isinstance(value, str) else json.dumps(value)
            data, name_data = (
                text.encode(errors="surrogatepass"),
                name.encode(errors="surrogatepass"),
            )
            fields += struct.pack(">h", len(name_data) & 0x7FFF) + name_data[:0x7FFF]
            fields += struct.pack(">i", len(data)) + data
        version = self.version if isinstance(self.version, int) else 0
        head = struct.pack(">HBh", self.code & 0xFFFF, 0, version & 0x7FFF)
        head += struct.pack(">Ii", self.opaque & 0xFFFFFFFF, self.flag & 0x7FFFFFFF)
        return head + struct.pack(">ii", 0, len(fields)) + fields

    def describe(self) -> str:
        """Return a description in one line."""
        size = len(self.body) if self.document is None else -1
        body = f" body {size}" if size > 0 else ""
        return f"{self.code}{body} {'+'.join(self.mutations) or 'well-formed'}"


class Closed(Exception):
    """The server has closed the connection."""


class Connection:
    """A plain connection of a patient client."""

    def __init__(self, port: int, *, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(30)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def abort(self) -> None:
        """Close the connection with a reset."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def write(self, data: bytes, limit_s: float = 30.0, *, reads: bool = True) -> bool:
        """Write, and read the received bytes meanwhile; return whether all bytes were taken.

        Raises:
            Closed: The server has closed the connection.
        """
        view = memoryview(data)
        deadline = time.monotonic() + limit_s
        self.socket.setblocking(False)
        try:
            while view:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                events = self._wait(select.POLLOUT | (select.POLLIN if reads else 0), left)
                if events & ~select.POLLOUT:
                    self._fill()
                if events & select.POLLOUT:
                    with contextlib.suppress(BlockingIOError):
                        view = view[self.socket.send(view) :]
        except OSError as error:
            raise Closed(str(error)) from error
        return True

    def _wait(self, events: int, limit_s: float) -> int:
        """Return the events of the socket, if there are any in time."""
        poll = select.poll()  # select() knows the first 1,024 descriptors only
        poll.register(self.socket, events)
        return next((event for _, event in poll.poll(limit_s * 1000)), 0)

    def _fill(self) -> None:
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        if not data:
            raise Closed("end of the stream")
        self._buffer += data

    def frames(self, limit_s: float = 30.0) -> Iterator[Command]:
        """Yield received frames, until none has come for some time.

        Raises:
            Closed: The server has closed the connection.
        """
        self.socket.setblocking(False)
        while True:
            while len(self._buffer) >= 4:
                (length,) = struct.unpack_from(">i", self._buffer)
                if len(self._buffer) < 4 + length:
                    break
                frame = bytes(self._buffer[4 : 4 + length])
                del self._buffer[: 4 + length]
                try:
                    yield commands.decode(frame)
                except NotAFrame as error:
                    raise AssertionError(f"the server wrote {frame[:200]!r}: {error}") from error
            if not self._wait(select.POLLIN, limit_s):
                return
            try:
                self._fill()
            except OSError as error:
                raise Closed(str(error)) from error

    def ask(self, draft: Draft, limit_s: float = 120.0) -> Command:
        """Return the reply to a request.

        Raises:
            Closed: The server has closed the connection instead.
            TimeoutError: There was no reply.
        """
        if not self.write(draft.encode(), limit_s):
            raise TimeoutError(f"{draft.describe()} was not taken in {limit_s} s")
        for frame in self.frames(limit_s):
            if frame.is_reply and frame.opaque == draft.opaque:
                return frame
        raise TimeoutError(f"no reply to {draft.describe()} in {limit_s} s")


def outcome(port: int, draft: Draft, limit_s: float = 120.0) -> Command | None:
    """Return the reply to a request on a separate connection; None if the server closed it."""
    with Connection(port) as connection:
        try:
            return connection.ask(draft, limit_s)
        except Closed:
            return None


def answered(port: int, draft: Draft, limit_s: float = 120.0) -> Command:
    """Return the reply to a request; fail if there is none."""
    reply = outcome(port, draft, limit_s)
    assert reply is not None, f"no reply to {draft.describe()}"
    return reply


def accepted(port: int, draft: Draft) -> Command:
    """Return the reply to a request; fail if it is refused."""
    reply = answered(port, draft)
    assert reply.code == 0, reply.remark
    return reply


def refused(port: int, draft: Draft) -> Command:
    """Return the reply to a request; fail if it is accepted."""
    reply = answered(port, draft)
    assert reply.code != 0, f"{draft.describe()} is accepted"
    return reply


def together(drafts: Iterable[Draft]) -> bytes:
    """Return concatenated requests, numbered."""
    data = []
    for number, draft in enumerate(drafts, 1):
        draft.opaque = number
        data.append(draft.encode())
    return b"".join(data)
