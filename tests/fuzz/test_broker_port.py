"""Random bytes on the broker's port get an answer or a close, and other clients are served.

``test_remoting`` tests the frames of ``remoting``; here they reach the kernel of sends.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

import world
from cases import case
from remoting_subject import read_frame
from reput.format import command as commands
from reput.format.codes import ResponseCode
from reput.format.command import Command
from request_corpus import pull, send
from world import Subject, until


def suspended_pull(opaque: int, suspend_ms: int) -> bytes:
    return pull(
        opaque=opaque,
        queue_id=3,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=6,
        suspend_timeout_millis=suspend_ms,
    )


@contextlib.asynccontextmanager
async def wire(
    subject: Subject,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", subject.broker.identity.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def is_well(subject: Subject) -> None:
    """Check that other clients are served, and that no state of the closed connection is left."""
    reply = await subject.send("T", b"still here")
    assert reply.code == ResponseCode.SUCCESS
    broker = subject.broker
    await until(
        lambda: broker.connection_counts()["main"] == 1 and not len(broker.parts.held_pulls)
    )


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"\xff" * 64,
    struct.pack(">I", 0xFFFFFFFE) + b"x" * 32,
    struct.pack(">i", -1) + b"x" * 32,
    struct.pack(">i", 3) + b"abc",
    struct.pack(">i", 16_777_217) + b"x" * 100,
    struct.pack(">ii", 20, 0x00FFFFFF) + bytes(16),
    struct.pack(">ii", 20, 0x7F000004) + bytes(16),
    struct.pack(">ii", 12, 8) + b"{not JSON"[:8],
]


async def test_garbage_closes_its_connection_only(subject: Subject) -> None:
    await subject.send("T")
    for garbage in GARBAGE:
        with case(garbage):
            async with wire(subject) as (reader, writer):
                # The frames before it are answered.
                writer.write(send(opaque=7) + garbage)
                reply = await read_frame(reader)
                assert (reply.opaque, reply.code) == (7, ResponseCode.SUCCESS)
                assert await reader.read() == b""
            await is_well(subject)


async def test_half_frames_and_clients_that_vanish(subject: Subject) -> None:
    await subject.send("T")
    frame = send()
    for cut in range(0, len(frame), 7):
        async with wire(subject) as (_, writer):
            writer.write(frame[:cut])
            await writer.drain()
    await is_well(subject)


async def test_a_frame_byte_by_byte(subject: Subject) -> None:
    await subject.send("T")
    async with wire(subject) as (reader, writer):
        for byte in send(opaque=5) + send(opaque=6):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert [(await read_frame(reader)).opaque for _ in range(2)] == [5, 6]
    await is_well(subject)


@pytest.mark.soak
async def test_100_000_tiny_frames(subject: Subject) -> None:
    tiny = commands.encode(Command(9_999, 3))
    async with wire(subject) as (reader, writer):
        for _ in range(100):
            writer.write(tiny * 1_000)
            codes = {(await read_frame(reader)).code for _ in range(1_000)}
            assert codes == {ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
    await is_well(subject)


async def test_a_storm_of_connections(subject: Subject) -> None:
    await subject.send("T", queue_id=1)
    frame = send(opaque=9) + suspended_pull(10, 15_000)

    async def come_and_go() -> None:
        async with wire(subject) as (reader, writer):
            writer.write(frame)
            reply = await read_frame(reader)
            assert reply.code == ResponseCode.SUCCESS

    # "T"/3 has a message from the fixture; without it, pulls would be held.
    for _ in range(10):
        await asyncio.gather(*(come_and_go() for _ in range(50)))
    await is_well(subject)


async def test_pending_replies_to_a_client_that_does_not_read_are_bounded(subject: Subject) -> None:
    for _ in range(32):
        await subject.send("T", b"x" * 8_000, queue_id=3)
    pull = suspended_pull(1, 0)
    async with wire(subject) as (_, writer):
        # 2,000 replies of 256 KB would be half a gigabyte.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                for _ in range(200):
                    writer.write(pull * 10)
                    await writer.drain()
        port = writer.get_extra_info("sockname")[1]
        channels = subject.broker._servers[0].channels
        (channel,) = (candidate for candidate in channels if candidate.peer == f"127.0.0.1:{port}")
        transport = channel._transport
        assert transport is not None
        assert transport.get_write_buffer_size() < 8 << 20
        # Other clients are served meanwhile.
        assert (await subject.send("T")).code == ResponseCode.SUCCESS
        writer.transport.abort()
    await is_well(subject)


def test_random_bytes_and_mutated_frames(tmp_path: Path) -> None:
    frames = [send(), send(b""), suspended_pull(2, 0)]
    mutated = st.tuples(
        st.sampled_from(frames),
        st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    ).map(lambda pair: mutate(*pair))
    with asyncio.Runner() as runner:
        context = world.broker(tmp_path)
        subject = runner.run(context.__aenter__())
        runner.run(subject.send("T"))

        @hypothesis.given(st.lists(st.one_of(mutated, st.binary(max_size=30)), max_size=4))
        def feed(pieces: list[bytes]) -> None:
            runner.run(feed_one(subject, b"".join(pieces)))

        feed()
        runner.run(is_well(subject))
        runner.run(context.__aexit__(None, None, None))


def mutate(frame: bytes, changes: list[tuple[int, int]]) -> bytes:
    data = bytearray(frame)
    for position, value in changes:
        data[position % len(data)] = value
    return bytes(data)


async def feed_one(subject: Subject, data: bytes) -> None:
    async with wire(subject) as (reader, writer):
        writer.write(data + send(opaque=77))
        writer.write_eof()
        with contextlib.suppress(OSError):
            await reader.read()
    reply = await subject.send("T")
    assert reply.code == ResponseCode.SUCCESS
