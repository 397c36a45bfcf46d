"""A 5.x client that makes a small call repeatedly, and logs the response times.

    python -m hostile.call_probe PORT PID FILE    in ``tests/``; ends with its stdin

The log is that of ``hostile.probe``. The call is a Heartbeat of a client without settings, which is
refused with a status.
"""

import socket
import sys

from hostile.calls import Conversation, prefixed
from hostile.probe import Probe
from reput.grpc.http2.frames import HEAD, Flag, FrameType

_HEAD_BYTES = 9


class CallProbe(Probe):
    """Makes the calls and writes the log."""

    def begin(self, connection: socket.socket) -> None:
        """Write what a connection begins with."""
        self._conversation = Conversation(client_id=b"probe")
        self._kept = bytearray()
        connection.sendall(Conversation.hello())

    def next_request(self) -> bytes:
        """Return the next call."""
        return self._conversation.call("Heartbeat", prefixed(b""))

    def read_reply(self, connection: socket.socket) -> None:
        """Read up to the end of a call."""
        while not take_end_of_call(self._kept):
            read = connection.recv(1 << 16)
            if not read:
                raise ConnectionResetError
            self._kept += read


def take_end_of_call(kept: bytearray) -> bool:
    """Remove the complete frames from received bytes; return whether one of them ends a call.

    Raises:
        ConnectionResetError: One of them refuses the call, or ends the connection.
    """
    is_ended = False
    while len(kept) >= _HEAD_BYTES:
        size_and_kind, flags, _ = HEAD.unpack_from(kept)
        end = _HEAD_BYTES + (size_and_kind >> 8)
        if len(kept) < end:
            break
        del kept[:end]
        kind = size_and_kind & 0xFF
        if kind in (FrameType.GOAWAY, FrameType.RST_STREAM):
            raise ConnectionResetError
        if kind in (FrameType.DATA, FrameType.HEADERS) and flags & Flag.END_STREAM:
            is_ended = True
    return is_ended


if __name__ == "__main__":
    CallProbe(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], b"").run()
