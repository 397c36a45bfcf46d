"""A slave's end of a connection: what it makes of a master's bytes, and what it reports.

The master is a socket, or a script; the log is a bytearray.
"""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import pytest

import seeds
from log_copy import assert_same
from reput.broker.replication.framing import (
    AnyFrameHeader,
    ClassicSlaveFraming,
    SlaveFraming,
)
from reput.broker.replication.log_receiver import (
    RECEIVED_AT_ONCE,
    Disconnected,
    LogReceiver,
    PlainConnection,
)
from reput.broker.replication.state import SlaveState, SlaveStatus
from reput.clock import ManualClock
from reput.errors import DiskFull, StoreUnavailable, WriteFailed
from reput.store.config import DurableIn, StoreConfig
from reput.store.writing.replica_log import ReplicaLog
from store_fixture import Stores
from store_subject import message
from world import until

DEADLINE_S = 10.0
FILE_SIZE = 1 << 20
NOW_MS = 1_700_000_000_000


class Log:
    """A log in memory."""

    def __init__(self, end: int = 0) -> None:
        self.begin = end
        self.data = bytearray()
        self.durable_end = end
        self.problem = ""
        self.room = bytearray()
        self.failure: Exception | None = None
        self.spare_bytes = FILE_SIZE

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    def begin_at(self, physical_offset: int, now_ms: int) -> None:
        assert not self.data
        self.begin = physical_offset

    def buffer(self, size: int, kept: int) -> memoryview:
        if self.failure is not None:
            raise self.failure
        if size > FILE_SIZE - self.end % FILE_SIZE:
            raise StoreUnavailable(f"{size} bytes do not fit")
        self.room = self.room[:kept] + bytes(size - kept)
        return memoryview(self.room)

    def spare(self, size_max: int) -> memoryview:
        spare = min(self.spare_bytes, FILE_SIZE - self.end % FILE_SIZE) if self.end else 0
        self.room = bytearray(min(spare, size_max))
        return memoryview(self.room)

    def add(self, size: int, filled: int) -> None:
        assert size <= filled <= len(self.room)
        self.data += self.room[:size]
        self.room = self.room[size:]


class Subject:
    """A receiver; ``received`` and ``synced`` count its calls."""

    def __init__(
        self,
        connection: Any,
        log: Any,
        config: StoreConfig | None = None,
        framing: SlaveFraming | None = None,
        **settings: Any,
    ) -> None:
        self.log = log
        self.status = SlaveStatus()
        self.clock = ManualClock(NOW_MS)
        self.received_count = self.sync_count = 0
        config = config or StoreConfig(
            mapped_file_size_commit_log=FILE_SIZE, max_message_size=FILE_SIZE // 2, **settings
        )
        self.receiver = LogReceiver(
            connection,
            config,
            cast(ReplicaLog, log),
            self.status,
            self.clock,
            on_received=self._received,
            sync_soon=self._sync_soon,
            framing=framing,
        )

    def _received(self) -> None:
        self.received_count += 1

    def _sync_soon(self) -> None:
        self.sync_count += 1


class Running(Subject):
    """A receiver that is connected to a socket of the test."""

    def __init__(self, log: Log, **settings: Any) -> None:
        self.master, own = socket.socketpair()
        self.master.setblocking(False)
        own.setblocking(False)
        super().__init__(PlainConnection(own), log, **settings)
        self.task = asyncio.create_task(self.receiver.run())
        self._rest = b""

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.master, data)

    async def reports(self, count: int) -> list[int]:
        """Return the next reports."""
        while len(self._rest) < 8 * count:
            data = await asyncio.get_running_loop().sock_recv(self.master, 4096)
            assert data, "the slave has disconnected"
            self._rest += data
        reports = [value for (value,) in struct.iter_unpack(">q", self._rest[: 8 * count])]
        self._rest = self._rest[8 * count :]
        return reports

    def is_disconnected(self) -> bool:
        try:
            return self.master.recv(1) == b""
        except ConnectionResetError:  # the slave did not read everything
            return True

    async def report_of(self, physical_offset: int) -> None:
        """Receive reports up to a value."""
        while (await self.reports(1))[0] != physical_offset:
            pass


@contextlib.asynccontextmanager
async def running(log: Log, **settings: Any) -> AsyncIterator[Running]:
    subject = Running(log, **settings)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield subject
    finally:
        subject.task.cancel()
        await asyncio.gather(subject.task, return_exceptions=True)
        subject.master.close()


def frame(physical_offset: int, data: bytes = b"") -> bytes:
    return struct.pack(">qi", physical_offset, len(data)) + data


# --- frames -----------------------------------------------------------------------------------


class _RefusingFraming(ClassicSlaveFraming):
    """Refuses the frame at a physical offset, as if its epoch could not be written."""

    def __init__(self, log: Log, refused_offset: int) -> None:
        self._log = log
        self._refused_offset = refused_offset
        self.taken: list[int] = []

    def take(self, header: AnyFrameHeader) -> None:
        assert self._log.end <= header.physical_offset, "its bytes are in the log"
        if header.physical_offset == self._refused_offset:
            raise WriteFailed("epochs", "cannot write: No space left on device")
        self.taken.append(header.physical_offset)


@pytest.mark.parametrize("spare_bytes", [0, 13, FILE_SIZE])
async def test_no_byte_of_a_refused_frame_is_in_the_log(spare_bytes: int) -> None:
    log = Log(100)
    log.spare_bytes = spare_bytes
    framing = _RefusingFraming(log, 106)
    async with running(log, framing=framing) as slave:
        await slave.send(frame(100, b"abc") + frame(103, b"def") + frame(106, b"ghi"))
        assert "No space left on device" in str(await slave.task)
        assert (bytes(log.data), framing.taken) == (b"abcdef", [100, 103])


async def test_a_slave_reports_at_once() -> None:
    async with running(Log(12_345)) as slave:
        assert await slave.reports(1) == [12_345]
        assert slave.status.written_ms == NOW_MS


@pytest.mark.parametrize("spare_bytes", [0, 1, 12, 13, 500, FILE_SIZE])
async def test_the_log_is_the_data_of_all_frames_however_they_are_cut(spare_bytes: int) -> None:
    source = random.Random(7)
    log, data = Log(FILE_SIZE), b""
    log.spare_bytes = spare_bytes
    stream = b""
    for size in [0, 1, 0, 0, 11, 12, 13, 1000, 0, 70_000, 5]:
        part = source.randbytes(size)
        stream += frame(FILE_SIZE + len(data), part)
        data += part
    async with running(log) as slave:
        sent = 0
        while sent < len(stream):
            size = source.choice([1, 3, 12, 13, 500, 40_000, 100_000])
            await slave.send(stream[sent : sent + size])
            await asyncio.sleep(0)
            sent += size
        await slave.report_of(FILE_SIZE + len(data))
        assert log.data == data
        assert slave.status.received_bytes == len(data)
        assert slave.status.master_max_offset == FILE_SIZE + len(data)


async def test_only_whole_frames_are_published_and_reported() -> None:
    async with running(Log()) as slave:
        await slave.send(frame(0, b"abc") + frame(3, b"defgh")[:-1])
        assert await slave.reports(2) == [0, 3]
        assert slave.log.data == b"abc"
        await slave.send(b"h")
        assert await slave.reports(1) == [8]
        assert slave.log.data == b"abcdefgh"


async def test_all_frames_of_a_read_have_one_acknowledgement() -> None:
    async with running(Log()) as slave:
        assert await slave.reports(1) == [0]
        slave.master.send(b"".join(frame(number, b"x") for number in range(1000)))
        assert await slave.reports(1) == [1000]
        assert slave.received_count == 1


async def test_heartbeats_of_any_number_change_nothing() -> None:
    async with running(Log(50)) as slave:
        for _ in range(20):
            await slave.send(frame(50) * 5000)
        await slave.send(frame(50, b"x"))
        assert await slave.reports(2) == [50, 51]


async def test_a_frame_may_be_longer_than_what_is_received_at_once() -> None:
    size = FILE_SIZE
    assert size >= RECEIVED_AT_ONCE
    async with running(Log()) as slave:
        data = random.Random(1).randbytes(size)
        await slave.send(frame(0, data))
        await slave.send(frame(size, b"x"))
        await slave.report_of(size + 1)
        assert slave.log.data == data + b"x"


async def test_the_loop_turns_while_there_is_more_if_frames_take_long() -> None:
    connection, log = Script([]), Log(5)
    log.spare_bytes = 100
    slave = Subject(connection, log)
    connection.after_receive = lambda: slave.clock.advance(4)
    connection.input = b"".join(frame(5 + number, b"x") for number in range(1000))
    begun_ms = slave.clock.monotonic_ms()
    slave.receiver.on_readable()
    assert slave.clock.monotonic_ms() == begun_ms + 12
    assert 5 < log.end < 100
    while connection.input:
        slave.receiver.on_readable()
    assert log.data == b"x" * 1000
    slave.receiver.disconnect(Disconnected("done"))


@pytest.mark.parametrize("seed", range(4))
async def test_a_store_gets_the_same_log_and_queues_however_frames_are_cut(
    stores: Stores, seed: int
) -> None:
    source = seeds.random("cut frames", seed)
    master = stores.open("master")
    for number in range(400):
        body = source.randbytes(source.choice([0, 10, 300, 3_000]))
        master.put(message("TopicA", body, number % 3, keys=f"k{number}"))
    master.step()
    slave = stores.open("slave", broker_role="SLAVE")
    connection = Script([])
    subject = Subject(connection, slave.replica_log, config=slave.config)
    stream, position = b"", 0
    while position < master.log.written_offset:
        view = master.log_view(position, source.choice([1, 50, 700, 5_000, 40_000]))
        assert view is not None
        stream += frame(position, bytes(view.data)) + frame(position + len(view.data)) * (seed % 2)
        position += len(view.data)
        view.release()
    while stream:
        size = source.choice([1, 11, 12, 13, 900, 20_000])
        connection.input, stream = stream[:size], stream[size:]
        while connection.input:
            subject.receiver.on_readable()
        slave.step()  # makes room ahead, sometimes
    slave.replica_log.dispatch()
    while slave.step():
        pass
    assert_same(master, slave)
    subject.receiver.disconnect(Disconnected("done"))


async def test_an_empty_log_begins_where_an_unchecked_master_begins() -> None:
    async with running(Log()) as slave:
        await slave.send(frame(3 * FILE_SIZE, b"abc"))
        await slave.report_of(3 * FILE_SIZE + 3)


# --- the end of the connection ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "data", "words"),
    [
        (Log(10), frame(11, b"x"), ["physical offset 11", "ends at 10"]),
        (Log(10), frame(9), ["physical offset 9", "ends at 10"]),
        (Log(10), frame(0), ["physical offset 0", "ends at 10"]),
        (Log(), frame(123_456, b"x"), ["physical offset 123456", "ends at 0"]),
        (Log(10), struct.pack(">qi", 10, -1), ["-1 bytes"]),
        (Log(10), struct.pack(">qi", 10, FILE_SIZE + 1), [f"{FILE_SIZE + 1} bytes"]),
        (Log(10), struct.pack(">qi", -1, 5), ["physical offset -1"]),
        (Log(FILE_SIZE - 5), struct.pack(">qi", FILE_SIZE - 5, 6), ["6 bytes", "not fit"]),
        (Log(10), b"GET / HTTP/1.1\r\n\r\n", ["physical offset"]),
    ],
)
async def test_a_frame_that_does_not_continue_the_log_ends_the_connection(
    log: Log, data: bytes, words: list[str]
) -> None:
    end = log.end
    async with running(log) as slave:
        await slave.send(data)
        reason = await slave.task
        assert [word for word in words if word not in str(reason)] == []
        assert reason.state is SlaveState.SEARCHING
        assert log.end == end
        assert await slave.reports(1) == [end]
        assert slave.is_disconnected()


async def test_what_came_before_a_bad_frame_is_kept_and_acknowledged() -> None:
    async with running(Log()) as slave:
        await slave.send(frame(0, b"abc") + frame(7, b"x"))
        assert "physical offset 7" in str(await slave.task)
        assert slave.log.data == b"abc"
        assert await slave.reports(2) == [0, 3]


async def test_a_master_that_closes_ends_the_connection() -> None:
    async with running(Log()) as slave:
        await slave.send(frame(0, b"abc") + frame(3, b"de")[:-1])
        slave.master.shutdown(socket.SHUT_WR)
        assert "closed" in str(await slave.task)
        assert slave.log.data == b"abc"


async def test_a_full_disk_ends_the_connection_as_failed() -> None:
    log = Log()
    log.failure = DiskFull("/log", 5, "no space")
    async with running(log) as slave:
        await slave.send(frame(0, b"abcde"))
        reason = await slave.task
        assert reason.state is SlaveState.FAILED
        assert "/log" in str(reason)


async def test_a_connection_can_be_ended_from_outside() -> None:
    async with running(Log()) as slave:
        await slave.reports(1)
        slave.receiver.disconnect(Disconnected("there is another master"))
        assert str(await slave.task) == "there is another master"
        assert slave.is_disconnected()


# --- time -------------------------------------------------------------------------------------


async def test_a_silent_master_is_left() -> None:
    async with running(Log(), ha_housekeeping_interval=20_000) as slave:
        await slave.reports(1)
        slave.clock.advance(19_000)
        await slave.send(frame(0, b"abc"))
        await slave.report_of(3)
        slave.clock.advance(20_000)
        slave.receiver.tick(slave.clock.monotonic_ms())
        assert not slave.task.done()
        slave.clock.advance(1)
        slave.receiver.tick(slave.clock.monotonic_ms())
        reason = str(await slave.task)
        assert "20001 ms" in reason
        assert "haHousekeepingInterval" in reason


async def test_a_heartbeat_follows_the_last_report_after_its_interval() -> None:
    async with running(Log(7), ha_send_heartbeat_interval=5_000) as slave:
        assert await slave.reports(1) == [7]
        slave.clock.advance(4_999)
        slave.receiver.tick(slave.clock.monotonic_ms())
        slave.clock.advance(1)
        slave.receiver.tick(slave.clock.monotonic_ms())
        slave.receiver.tick(slave.clock.monotonic_ms())
        assert await slave.reports(1) == [7]
        assert slave.status.written_ms == NOW_MS + 5_000
        await slave.send(frame(7, b"x"))
        assert await slave.reports(1) == [8]


async def test_the_rate_is_that_of_the_last_second() -> None:
    async with running(Log()) as slave:
        await slave.send(frame(0, bytes(5000)))
        await slave.report_of(5000)
        slave.clock.advance(1000)
        slave.receiver.tick(slave.clock.monotonic_ms())
        assert slave.status.bytes_per_second == 5000
        slave.clock.advance(1000)
        slave.receiver.tick(slave.clock.monotonic_ms())
        assert slave.status.bytes_per_second == 0


# --- acknowledgements -------------------------------------------------------------------------


async def test_what_is_only_in_memory_is_not_acknowledged_with_ack_after_disk() -> None:
    async with running(Log(5), ha_ack_after=DurableIn.DISK) as slave:
        assert await slave.reports(1) == [5]
        slave.master.send(frame(5, b"abc") + frame(8, b"de"))
        await until(lambda: slave.sync_count)
        slave.receiver.synced()
        assert slave.sync_count == 1
        slave.log.durable_end = 8
        slave.receiver.synced()
        slave.log.durable_end = 10
        slave.receiver.synced()
        slave.receiver.synced()
        assert await slave.reports(2) == [8, 10]
        with pytest.raises(BlockingIOError):
            slave.master.recv(1)


class Script:
    """A connection whose sends take the given numbers of bytes; None blocks."""

    def __init__(self, takes: Sequence[int | None]) -> None:
        self.takes = list(takes)
        self.sent = b""
        self.far, self.near = socket.socketpair()
        self.near.setblocking(False)
        self.fileno = self.near.fileno
        self.input = b""
        self.has_more = False
        self.after_receive: Callable[[], object] = lambda: None

    def send(self, data: bytes) -> int:
        size = self.takes.pop(0) if self.takes else len(data)
        if size is None:
            raise BlockingIOError
        self.sent += data[:size]
        return min(size, len(data))

    def receive(self, buffers: Sequence[memoryview]) -> int:
        count = 0
        for buffer in buffers:
            size = min(len(buffer), len(self.input))
            buffer[:size] = self.input[:size]
            self.input = self.input[size:]
            count += size
        if not count:
            raise BlockingIOError
        self.after_receive()
        return count

    def close(self) -> None:
        self.near.close()
        self.far.close()


@pytest.mark.parametrize("takes", [[None, None, None], [3, None, 5], [None, 1, 1, None, 6]])
async def test_a_master_that_does_not_read_gets_whole_reports_and_the_newest_last(
    takes: list[int | None],
) -> None:
    connection = Script(takes)
    slave = Subject(connection, Log())
    for number in range(20):
        connection.input = frame(number, b"x")
        slave.receiver.on_readable()
    await until(lambda: connection.sent.endswith(struct.pack(">q", 20)))
    reports = [value for (value,) in struct.iter_unpack(">q", connection.sent)]
    assert reports == sorted(set(reports))
    assert len(reports) <= 20
    slave.receiver.disconnect(Disconnected("done"))
