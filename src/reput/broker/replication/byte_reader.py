"""Waits until a connection to a master has taken or delivered some bytes."""

import asyncio

from reput.broker.replication.log_receiver import ByteStream


async def write_all(connection: ByteStream, data: bytes) -> None:
    """Send bytes. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    while data:
        try:
            data = data[connection.send(data) :]
        except BlockingIOError:
            ready = asyncio.Event()
            loop.add_writer(connection.fileno(), ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_writer(connection.fileno())


async def read_exactly(connection: ByteStream, size: int) -> bytes:
    """Receive ``size`` bytes. Raises ``Disconnected``, ``OSError``."""
    loop = asyncio.get_running_loop()
    room, filled = bytearray(size), 0
    while filled < size:
        try:
            filled += connection.receive([memoryview(room)[filled:]])
        except BlockingIOError:
            ready = asyncio.Event()
            loop.add_reader(connection.fileno(), ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(connection.fileno())
    return bytes(room)
