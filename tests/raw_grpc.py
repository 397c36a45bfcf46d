"""A client of the 5.x service that sends many calls in one write, on a socket."""

import socket
from types import TracebackType
from typing import Any, Self

from http2_peer import HELLO, Frame, Http2Peer, Replies, split
from reput.grpc.http2 import frames
from reput.grpc.http2.frames import Flag, FrameType
from reput.grpc.wire import protobuf
from reput.grpc.wire.grpc_messages import METHODS, SERVICE

_HEAD_BYTES = 9


class RawGrpc:
    """A connection.

    Args:
        endpoint: ``host:port``.
        client_id: Id of the client.
    """

    def __init__(self, endpoint: str, client_id: str = "raw") -> None:
        host, _, port = endpoint.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self._socket.sendall(HELLO + frames.window_update(0, 1 << 30))
        self._peer = Http2Peer(hello=b"")  # encodes and decodes header blocks
        self._replies = Replies(self._peer)
        self._headers = ((b"x-mq-client-id", client_id.encode()), (b"x-mq-language", b"PYTHON"))
        self._stream_id = -1
        self._kept = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def calls(self, *calls: tuple[str, dict[str, Any] | bytes]) -> list[list[dict[str, Any]]]:
        """Make calls in one write; return the replies to each, in order.

        Args:
            calls: Name of a method, and its request, or the bytes of one.
        """
        sent, stream_ids = [], []
        for name, request in calls:
            message = (
                request
                if isinstance(request, bytes)
                else protobuf.encode(METHODS[name].request, request)
            )
            self._stream_id += 2
            stream_ids.append(self._stream_id)
            path = f"/{SERVICE}/{name}".encode()
            sent.append(self._peer.call(self._stream_id, message, *self._headers, path=path))
        self._socket.sendall(b"".join(sent))
        while not self._replies.ends.issuperset(stream_ids):
            self._replies.add(self._received())
        replies = []
        for (name, _), number in zip(calls, stream_ids, strict=True):
            table = METHODS[name].reply
            replies.append(
                [protobuf.decode(table, each) for each in self._replies.messages(number)]
            )
        return replies

    def call(self, name: str, **request: Any) -> dict[str, Any]:
        """Make a call; return the one reply."""
        ((reply,),) = self.calls((name, request))
        return reply

    def _received(self) -> list[Frame]:
        read = self._socket.recv(1 << 18)
        if not read:
            raise ConnectionError("the server has closed the connection")
        self._kept += read
        position = 0
        while len(self._kept) - position >= _HEAD_BYTES:
            end = position + _HEAD_BYTES + int.from_bytes(self._kept[position : position + 3])
            if end > len(self._kept):
                break
            position = end
        whole, self._kept = self._kept[:position], self._kept[position:]
        received = split(whole)
        for frame in received:
            if frame.kind == FrameType.SETTINGS and not frame.flags:
                self._socket.sendall(frames.SETTINGS_ACK)
            if frame.kind == FrameType.PING and not frame.flags:
                self._socket.sendall(frames.frame(FrameType.PING, Flag.ACK, 0, frame.payload))
        return received
