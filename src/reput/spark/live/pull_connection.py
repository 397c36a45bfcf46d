"""Blocking connection to a broker for pipelined pulls, without an event loop.

A broker returns at most 32 messages per pull, so that a million messages take 30,000 pulls: the
cost of a pull decides the speed of reading topics. A request is a template with three numbers
filled in; replies are read in bulk.
"""

import select
import ssl
import time
from typing import Final

import msgspec

from reput.errors import ConnectionLost, NotAFrame, RequestTimedOut
from reput.format import command as commands
from reput.format.codes import RequestCode
from reput.format.command import MARK, Command
from reput.format.signing import Signer
from reput.remoting import polled_socket
from reput.remoting.client import CONNECT_TIMEOUT_MS
from reput.remoting.connection import FrameBuffer, find_frame
from reput.remoting.frame_template import FrameTemplate

_READ_BYTES: Final = 1 << 20
"""Maximum number of bytes per read: a few large replies, or a hundred small ones."""
_OPAQUE_MAX = 0x7FFFFFFF
_NUMBERS = (
    (b'"opaque":0,', b'"opaque":%d,'),
    (b'"queueOffset":"0"', b'"queueOffset":"%d"'),
    (b'"maxMsgNums":"0"', b'"maxMsgNums":"%d"'),
)
"""Fields that differ between pulls, in the order of the header."""


class PullTemplate(FrameTemplate):
    """The pulls of one queue, which differ in opaque, queue offset and message count.

    Args:
        request: A pull with opaque, queue offset and message count 0.
        signer: Signs each pull; None: they are not signed.
    """

    def __init__(self, request: Command, signer: Signer | None = None) -> None:
        super().__init__(request, _NUMBERS, signer)


class _Fields(msgspec.Struct, rename="camel"):
    """Fields of a reply with records that are decoded."""

    next_begin_offset: int


class _Header(msgspec.Struct):
    """Header of a reply with records. Other replies take the general decoder."""

    code: int
    flag: int
    opaque: int
    extFields: _Fields | None = None
    remark: str | None = None


class PullReply(msgspec.Struct, gc=False):
    """Reply of a broker to a pull."""

    opaque: int
    code: int
    remark: str | None
    next_offset: int
    """Queue offset of the next pull; 0 if the reply has none."""
    records: bytes


_decode_header = msgspec.json.Decoder(_Header, strict=False).decode


def read_reply(frame: memoryview) -> PullReply | None:
    """Return the reply in a frame, without its length field; None for a request.

    Raises:
        NotAFrame: It is damaged, or of another protocol.
    """
    size = MARK.unpack_from(frame)[0]  # of the header, if it is JSON
    end = MARK.size + size
    try:
        header = _decode_header(frame[MARK.size : end]) if 0 < size <= len(frame) else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        header = None
    if header is None or end > len(frame):
        return _read_other(commands.decode(frame))
    if header.flag & commands.IS_REPLY == 0:
        return None
    fields = header.extFields
    next_offset = 0 if fields is None else fields.next_begin_offset
    return PullReply(header.opaque, header.code, header.remark, next_offset, bytes(frame[end:]))


def _read_other(command: Command) -> PullReply | None:
    """Return a reply without a next queue offset."""
    if not command.is_reply:
        return None
    return PullReply(command.opaque, command.code, command.remark, 0, b"")


class PullConnection:
    """A connection to a broker. One reader uses it at a time.

    Args:
        address: ``host:port`` of the broker.
        certificates: Certificates of a connection with TLS; None for a plain one.

    Raises:
        Unreachable: It could not be made.
    """

    def __init__(self, address: str, certificates: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._socket = polled_socket.connect(address, CONNECT_TIMEOUT_MS, certificates)
        self._poll = select.poll()
        self._poll.register(self._socket)
        self._frames = FrameBuffer(bytearray(_READ_BYTES))
        self._has_more = False  # whether bytes may have arrived that polling does not see
        self._last_opaque = 0
        self._out = bytearray()

    def ask(self, template: PullTemplate, queue_offset: int, count: int) -> int:
        """Queue a pull for ``send`` and ``receive``; return its opaque."""
        opaque = self._last_opaque = (self._last_opaque + 1) & _OPAQUE_MAX
        self._out += template.fill(opaque, queue_offset, count)
        return opaque

    def send(self) -> None:
        """Send queued pulls as far as the system accepts them. Raises ``ConnectionLost``."""
        if not self._out:
            return
        try:
            del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConnectionLost(self.address, str(error)) from error

    def receive(self, wait_s: float, timeout_ms: int) -> list[PullReply]:
        """Send queued pulls; return the replies of the next read, in order of arrival.

        The result may be empty if a large reply arrives in parts.

        Args:
            wait_s: Time to wait for the next bytes, in seconds; 0 or less: only what has arrived.
            timeout_ms: Timeout reported in an error.

        Raises:
            ConnectionLost: The broker closed the connection, or sent an invalid reply.
            RequestTimedOut: No bytes arrived in time.
        """
        if not self._has_more:
            self._await(wait_s, timeout_ms)
        room = self._frames.room()
        self._has_more = False
        try:
            size = self._socket.recv_into(room)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ConnectionLost(self.address, str(error)) from error
        if size == 0:
            raise ConnectionLost(self.address)
        self._has_more = size == len(room)
        replies = []
        try:
            view, end = self._frames.filled(size)
            position = 0
            while (place := find_frame(view, position, end)) is not None and place[1] <= end:
                reply = read_reply(view[place[0] : place[1]])
                if reply is not None:  # a broker may send requests to its clients too
                    replies.append(reply)
                position = place[1]
            self._frames.keep(view, position, end)
        except NotAFrame as error:
            raise ConnectionLost(self.address, str(error)) from error
        return replies

    def _await(self, wait_s: float, timeout_ms: int) -> None:
        """Wait for bytes; a broker may stop reading until its replies are read."""
        deadline = time.monotonic() + wait_s
        while True:
            self.send()
            events = select.POLLIN | (select.POLLOUT if self._out else 0)
            self._poll.modify(self._socket, events)
            ready = self._poll.poll(max(deadline - time.monotonic(), 0) * 1000)
            if not ready:
                raise RequestTimedOut(self.address, RequestCode.PULL_MESSAGE, timeout_ms)
            if ready[0][1] != select.POLLOUT:
                return

    def is_quiet(self) -> bool:
        """Return whether no unread bytes, and no end of the connection, have arrived."""
        if self._has_more:
            return False
        self._poll.modify(self._socket, select.POLLIN)
        return not self._poll.poll(0)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class PullConnections:
    """Idle connections by address, for the next task of a process.

    Args:
        certificates: Certificates of connections with TLS; None for plain ones.
    """

    def __init__(self, certificates: ssl.SSLContext | None = None) -> None:
        self._certificates = certificates
        self._idle: dict[str, list[PullConnection]] = {}

    def take(self, address: str) -> PullConnection:
        """Return an idle or new connection to an address. Raises ``Unreachable``."""
        idle = self._idle.get(address, [])
        while idle:
            line = idle.pop()
            if line.is_quiet():
                return line
            line.close()
        return PullConnection(address, self._certificates)

    def give_back(self, line: PullConnection) -> None:
        """Keep an idle connection without outstanding replies."""
        self._idle.setdefault(line.address, []).append(line)

    def close(self) -> None:
        """Close all idle connections."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()
