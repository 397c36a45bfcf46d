"""A connection to a broker for pulls, many on the way at a time; without an event loop.

A broker gives 32 messages a pull, so that a million of them are 30,000 pulls: what one costs here
decides how fast topics are read. A request is a template with three numbers put in; replies are
read in bulk, and whoever asked takes those that have come.
"""

import select
import socket
from typing import Final

from reput.errors import ConnectionLost, NotAFrame, RequestTimedOut, Unreachable
from reput.format import command as commands
from reput.format.codes import RequestCode
from reput.format.command import LENGTH, MARK, Command
from reput.remoting.client import CONNECT_TIMEOUT_MS, split_address
from reput.remoting.connection import Inbox, find_frame

_READ_BYTES: Final = 1 << 20
"""What one read takes at most: a few large replies, or a hundred small ones."""
_OPAQUE_MAX = 0x7FFFFFFF
_OPAQUE = b'"opaque":0,'
_COUNT = b'"maxMsgNums":"0"'
_QUEUE_OFFSET = b'"queueOffset":"0"'


class PullTemplate:
    """What pulls of one queue have in common.

    Args:
        request: A pull with opaque, queue offset and count 0.
    """

    def __init__(self, request: Command) -> None:
        header = commands.encode_head(request)[LENGTH.size + MARK.size :].replace(b"%", b"%%")
        # Quotes in values are escaped: these stand only where the fields are.
        for field, number in (
            (_OPAQUE, b'"opaque":%(opaque)d,'),
            (_COUNT, b'"maxMsgNums":"%(count)d"'),
            (_QUEUE_OFFSET, b'"queueOffset":"%(queue_offset)d"'),
        ):
            assert header.count(field) == 1, f"no {field!r} in {header!r}"
            header = header.replace(field, number)
        self._header = header

    def request(self, opaque: int, queue_offset: int, count: int) -> bytes:
        """Return the frame of one pull."""
        header = self._header % {
            b"opaque": opaque,
            b"queue_offset": queue_offset,
            b"count": count,
        }
        size = len(header)
        return LENGTH.pack(MARK.size + size) + MARK.pack(size) + header

    def __len__(self) -> int:
        """About how long a frame is."""
        return len(self._header)


class Line:
    """A connection to a broker. One reader uses it at a time.

    Args:
        address: Whom to, ``host:port``.

    Raises:
        Unreachable: It could not be made.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        try:
            self._socket = socket.create_connection(
                split_address(address), timeout=CONNECT_TIMEOUT_MS / 1000
            )
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except TimeoutError as error:
            raise Unreachable(address, f"no answer in {CONNECT_TIMEOUT_MS} ms") from error
        except OSError as error:
            raise Unreachable(address, error.strerror or str(error)) from error
        self._inbox = Inbox(bytearray(_READ_BYTES))
        self._last_opaque = 0
        self._out: list[bytes] = []

    def ask(self, template: PullTemplate, queue_offset: int, count: int) -> int:
        """Add a pull to what ``receive`` or ``flush`` sends; return its opaque."""
        opaque = self._last_opaque = (self._last_opaque + 1) & _OPAQUE_MAX
        self._out.append(template.request(opaque, queue_offset, count))
        return opaque

    def flush(self, timeout_ms: int) -> None:
        """Send what was asked. Raises ``ConnectionLost``."""
        if not self._out:
            return
        data = b"".join(self._out)
        self._out.clear()
        try:
            self._socket.settimeout(timeout_ms / 1000)
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(self.address, str(error)) from error

    def receive(self, wait_s: float, timeout_ms: int) -> list[Command]:
        """Send what was asked; return the replies of the next read, in the order they came.

        There may be none yet, where large ones come in pieces.

        Args:
            wait_s: How long to wait for the next bytes, seconds; 0: only what has come.
            timeout_ms: What an error says was waited, and how long a write may take.

        Raises:
            ConnectionLost: The broker closed the connection, or what it sent is no reply.
            RequestTimedOut: Nothing came in time.
        """
        self.flush(timeout_ms)
        try:
            self._socket.settimeout(max(wait_s, 0))
            size = self._socket.recv_into(self._inbox.room())
        except (TimeoutError, BlockingIOError) as error:
            raise RequestTimedOut(self.address, RequestCode.PULL_MESSAGE, timeout_ms) from error
        except OSError as error:
            raise ConnectionLost(self.address, str(error)) from error
        if size == 0:
            raise ConnectionLost(self.address)
        found = []
        try:
            view, end = self._inbox.filled(size)
            at = 0
            while (place := find_frame(view, at, end)) is not None and place[1] <= end:
                found.append(commands.decode(view[place[0] : place[1]]))
                at = place[1]
            self._inbox.keep(view, at, end)
        except NotAFrame as error:
            raise ConnectionLost(self.address, str(error)) from error
        return [one for one in found if one.is_reply]  # a broker may ask its clients things, too

    def is_quiet(self) -> bool:
        """Whether nothing has come that nobody took: not even the end of the connection."""
        return not select.select([self._socket], [], [], 0)[0]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class Lines:
    """Lines that nobody uses now, by address: the next task of a process takes them."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Line]] = {}

    def take(self, address: str) -> Line:
        """Return a line to an address, made if need be. Raises ``Unreachable``."""
        idle = self._idle.get(address, [])
        while idle:
            line = idle.pop()
            if line.is_quiet():
                return line
            line.close()
        return Line(address)

    def give_back(self, line: Line) -> None:
        """Keep a line on which no reply is awaited."""
        self._idle.setdefault(line.address, []).append(line)

    def close(self) -> None:
        """Close all that nobody uses."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()
