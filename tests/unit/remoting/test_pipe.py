"""A connection whose replies are there when the write returns."""

import asyncio

from reput.remoting.pipe import Pipe

ADDRESS, OWN = ("127.0.0.1", 1), ("127.0.0.1", 2)


class Upper(asyncio.BufferedProtocol):
    """A server that answers with capital letters; with a small buffer."""

    def __init__(self) -> None:
        self.transport: Pipe
        self.is_lost = False
        self._buffer = bytearray(4)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Pipe)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(bytes(self._buffer[:nbytes]).upper())

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


def test_replies_are_returned_or_come_later() -> None:
    async def run() -> None:
        late: list[bytes] = []
        server = Upper()
        pipe = Pipe(server, ADDRESS, OWN, late.append, lambda: None)
        assert pipe.get_extra_info("peername") == ADDRESS
        assert pipe.exchange(b"abcdefghij") == b"ABCDEFGHIJ"
        server.transport.write(b"later")
        assert late == [b"later"]

    asyncio.run(run())


def test_a_server_that_does_not_read_gets_the_rest_later() -> None:
    async def run() -> None:
        late: list[bytes] = []
        pipe = Pipe(Upper(), ADDRESS, OWN, late.append, lambda: None)
        pipe.pause_reading()
        assert not pipe.is_ready
        assert pipe.exchange(b"abcdef") == b""
        pipe.resume_reading()
        assert not pipe.is_ready, "requests wait"
        await asyncio.sleep(0)
        assert b"".join(late) == b"ABCDEF"
        assert pipe.is_ready

    asyncio.run(run())


def test_both_sides_learn_of_the_end() -> None:
    async def run() -> None:
        server, ends = Upper(), []
        pipe = Pipe(server, ADDRESS, OWN, lambda data: None, lambda: ends.append("closed"))
        pipe.close()
        pipe.close()
        assert pipe.is_closing()
        await asyncio.sleep(0)
        assert server.is_lost
        assert ends == ["closed"]
        server.transport.write(b"nothing")

    asyncio.run(run())
