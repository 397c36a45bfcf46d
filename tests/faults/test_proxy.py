"""The TCP proxy of fault runs: passes, stops, delays, splits, cuts, refuses, half-opens."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from faults.proxy import Link

GUARD_S = 20.0
SILENCE_S = 0.05
"""Time in which a byte that passes would arrive; later ones are found by the next expectation."""


class Target:
    """A server that keeps its connections for the test."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )
        self.address = ""

    async def take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(GUARD_S):
            return await self.accepted.get()


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    running = Target()
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await running.accepted.put((reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    running.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield running
    server.close()
    for writer in writers:
        writer.transport.abort()


@pytest.fixture
async def link(target: Target) -> AsyncIterator[Link]:
    async with Link(target.address, random.Random(7)) as running:
        yield running


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def ends(link: Link, target: Target) -> AsyncIterator[Ends]:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    yield reader, writer, *await target.take()
    writer.transport.abort()


async def receive(reader: asyncio.StreamReader, count: int) -> bytes:
    async with asyncio.timeout(GUARD_S):
        return await reader.readexactly(count)


async def is_silent(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(SILENCE_S):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


async def is_reset(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(GUARD_S):
        try:
            return await reader.read(1) == b""
        except ConnectionError:
            return True


async def test_bytes_and_the_end_pass_in_both_directions(ends: Ends) -> None:
    reader, writer, target_reader, target_writer = ends
    data = random.Random(1).randbytes(3_000_000)
    writer.write(data)
    assert await receive(target_reader, len(data)) == data
    target_writer.write(b"reply")
    assert await receive(reader, 5) == b"reply"
    writer.write_eof()
    assert await target_reader.read() == b""
    target_writer.write(b"after the end")
    assert await receive(reader, 13) == b"after the end"


async def test_a_stopped_direction_is_silent_and_loses_nothing(link: Link, ends: Ends) -> None:
    reader, writer, target_reader, target_writer = ends
    link.stop_traffic(up=True, down=False)
    writer.write(b"question")
    target_writer.write(b"news")
    assert await receive(reader, 4) == b"news"
    assert await is_silent(target_reader)
    link.heal()
    assert await receive(target_reader, 8) == b"question"


async def test_a_stopped_direction_takes_a_limited_number_of_bytes(link: Link, ends: Ends) -> None:
    _, writer, _, _ = ends
    link.stop_traffic()
    writer.write(bytes(64 << 20))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SILENCE_S):
            await writer.drain()


async def test_delayed_bytes_arrive_later_and_in_order(link: Link, ends: Ends) -> None:
    _, writer, target_reader, _ = ends
    link.delay(0.05, 0.05)
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    for number in range(20):
        writer.write(b"%02d" % number)
        await asyncio.sleep(0)
    data = await receive(target_reader, 40)
    assert data == b"".join(b"%02d" % number for number in range(20))
    assert loop.time() - start_s >= 0.05


async def test_chunks_are_split_and_complete(link: Link, ends: Ends) -> None:
    _, writer, target_reader, _ = ends
    link.up.splits = True
    data = random.Random(2).randbytes(20_000)
    writer.write(data)
    assert await receive(target_reader, len(data)) == data


async def test_a_cut_resets_both_sides_and_later_connections_work(
    link: Link, ends: Ends, target: Target
) -> None:
    reader, _, target_reader, _ = ends
    link.cut()
    assert await is_reset(reader)
    assert await is_reset(target_reader)
    again_reader, again_writer = await asyncio.open_connection("127.0.0.1", link.port)
    _, target_writer = await target.take()
    target_writer.write(b"hello")
    assert await receive(again_reader, 5) == b"hello"
    again_writer.transport.abort()


async def test_a_cut_loses_stopped_bytes(link: Link, ends: Ends) -> None:
    _, writer, target_reader, _ = ends
    link.stop_traffic()
    writer.write(b"lost")
    assert await is_silent(target_reader)
    link.cut()
    link.heal()
    assert await is_reset(target_reader)


async def test_refused_connections_end_at_once(link: Link, ends: Ends, target: Target) -> None:
    reader, *_ = ends
    link.refuse()
    assert await is_reset(reader)
    with contextlib.suppress(ConnectionError):
        again_reader, again_writer = await asyncio.open_connection("127.0.0.1", link.port)
        assert await is_reset(again_reader)
        again_writer.transport.abort()
    assert target.accepted.empty()


async def test_a_half_open_link_hides_the_end_and_accepts_connections(
    link: Link, ends: Ends, target: Target
) -> None:
    reader, _, _, target_writer = ends
    link.half_open()
    target_writer.transport.abort()
    assert await is_silent(reader)
    other_reader, other_writer = await asyncio.open_connection("127.0.0.1", link.port)
    other_writer.write(b"nothing answers")
    assert await is_silent(other_reader)
    assert target.accepted.empty()
    link.heal()
    assert await is_reset(reader)
    assert await is_reset(other_reader)


async def test_a_link_without_a_target_ends_connections(unused_tcp_port: int) -> None:
    async with Link(f"127.0.0.1:{unused_tcp_port}", random.Random(7)) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        assert await is_reset(reader)
        writer.transport.abort()


async def test_choices_repeat_with_the_seed(target: Target) -> None:
    def choices(seed: int) -> list[object]:
        link = Link(target.address, random.Random(seed))
        link.up.splits = True
        link.up.jitter_s = 1.0
        return [*(link.up.size() for _ in range(20)), *(link.up.wait_s() for _ in range(20))]

    assert choices(3) == choices(3) != choices(4)
