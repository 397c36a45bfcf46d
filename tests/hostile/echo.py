"""A server that answers at once: its response times are the noise of the machine.

python -m hostile.echo    in ``tests/``; prints its port and serves until its stdin ends
"""

import asyncio
import sys
from typing import cast

import uvloop


class Echo(asyncio.Protocol):
    """Protocol that writes back the received bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()


if __name__ == "__main__":
    uvloop.run(serve())
