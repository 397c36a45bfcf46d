"""A proxy that delays the bytes of both directions.

    python -m benchmarks.delay_proxy PORT TARGET MILLISECONDS

MILLISECONDS is the delay of each direction. Bytes are never reordered, and reading stops while much
is delayed, as on a long line.
"""

import asyncio
import sys
from collections import deque

_HELD_BYTES_MAX = 64 << 20
_READ_BYTES = 1 << 20


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    held: deque[tuple[float, bytes]] = deque()
    arrived, sent = asyncio.Event(), asyncio.Event()
    held_bytes = 0

    async def send() -> None:
        nonlocal held_bytes
        while True:
            while not held:
                arrived.clear()
                await arrived.wait()
            due_s, data = held.popleft()
            if not data:
                writer.close()
                return
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            writer.write(data)
            await writer.drain()
            held_bytes -= len(data)
            sent.set()

    sending = loop.create_task(send())
    data = b"-"
    while data:
        while held_bytes > _HELD_BYTES_MAX:
            sent.clear()
            await sent.wait()
        data = await reader.read(_READ_BYTES)
        held.append((loop.time() + delay_s, data))
        held_bytes += len(data)
        arrived.set()
    await sending


async def main(port: int, target: str, delay_ms: float) -> None:
    """Run the proxy."""
    host, _, target_port = target.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(target_port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            _pass(reader, far_writer, delay_ms / 1000),
            _pass(far_reader, writer, delay_ms / 1000),
            return_exceptions=True,
        )

    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=_READ_BYTES)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
