"""A client of a gRPC server on the event loop that sends and receives frames."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from http2_peer import HELLO, Frame, Http2Peer, Replies, split
from remoting_subject import closed
from reput.grpc.http2.server import GrpcServer


class Raw:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.peer = Http2Peer(hello=b"")  # encodes and decodes header blocks
        self.replies = Replies(self.peer)

    async def frame(self) -> Frame:
        """Return the next frame."""
        head = await self.reader.readexactly(9)
        payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        frame = split(head + payload)[0]
        self.replies.add([frame])
        return frame

    async def until(self, kind: int) -> Frame:
        """Return the next frame of a kind."""
        while True:
            frame = await self.frame()
            if frame.kind == kind:
                return frame

    async def ended(self, stream_id: int) -> tuple[int, bytes]:
        """Return the status of a call."""
        while stream_id not in self.replies.ends:
            await self.frame()
        return self.replies.status(stream_id)


@contextlib.asynccontextmanager
async def raw(server: GrpcServer, hello: bytes = HELLO, **more: Any) -> AsyncIterator[Raw]:
    """Connect to a server on this machine; ``more`` are arguments of ``open_connection``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, **more)
    client = Raw(reader, writer)
    writer.write(hello)
    try:
        yield client
    finally:
        await closed(writer)
