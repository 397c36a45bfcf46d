"""The port for slaves, with slaves whose every byte the test controls."""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

import seeds
from ports import free_port
from replicated_log import GUARD_S, LogFiles, Slave
from reput.broker import limits
from reput.broker.identity import Identity
from reput.broker.pending_replies import PendingReplies
from reput.broker.replication import catch_up
from reput.broker.replication.reports import Reason
from reput.broker.replication.slave_port import SlavePort
from reput.broker.settings.config import BrokerConfig
from reput.broker.settings.live import LiveConfig
from reput.clock import ManualClock
from reput.errors import InvalidOption
from reput.store.config import BrokerRole, DurableIn, StoreConfig
from reput.store.message_store import MessageStore
from world import until

FILE_SIZE = 10_000
HUGE = 1 << 60


class Replies:
    """The held replies, as far as the port uses them."""

    def __init__(self) -> None:
        self.settle_count = 0
        self.sync_count = 0
        self.held_count = 0

    def __len__(self) -> int:
        return self.held_count

    def settle(self) -> None:
        self.settle_count += 1

    def sync_soon(self) -> None:
        self.sync_count += 1


class Master:
    """A port for slaves, over a log that the test writes."""

    def __init__(self, folder: Path, **settings: object) -> None:
        file_size = cast("int", settings.setdefault("mapped_file_size_commit_log", FILE_SIZE))
        self.log = LogFiles(folder, file_size)
        self.replies = Replies()
        self.connected: list[Slave] = []
        self.clock = ManualClock(1_000_000)
        config = StoreConfig(
            **cast("Any", {"ha_listen_port": 0, "max_message_size": 1_000, **settings})
        )
        broker = BrokerConfig(bind_address="127.0.0.1", broker_ip2="10.1.2.3")
        live = LiveConfig(broker, config)
        self.identity = Identity(live, 0)
        self.port = SlavePort(
            live,
            self.identity,
            cast("MessageStore", self.log),
            cast("PendingReplies", self.replies),
            self.clock,
        )

    def put(self, size: int) -> bytes:
        data = random.Random(len(self.log.data)).randbytes(size)
        self.log.append(data)
        self.port.pump()
        return data

    async def slave(self, *offsets: int, host: str = "127.0.0.1") -> Slave:
        slave = await Slave.connect(self.port.port, host)
        self.connected.append(slave)
        slave.report(*offsets)
        return slave

    def acked(self) -> list[int | None]:
        return [replica.acked_offset for replica in self.log.replicas.replicas]

    def pass_time(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.port.step(self.clock.monotonic_ms())


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    masters: list[Master] = []

    async def start(**settings: object) -> Master:
        folder = tmp_path / f"log-{len(masters)}"
        folder.mkdir()
        masters.append(Master(folder, **settings))
        await masters[-1].port.start()
        return masters[-1]

    yield start
    for master in masters:
        await master.port.stop()
        for slave in master.connected:
            slave.close()
        assert master.log.held_count == 0
        assert master.log.replicas.replicas == []


Start = Callable[..., Any]


# --- the log --------------------------------------------------------------------------------------


async def test_a_slave_gets_every_byte_and_its_acknowledgement_counts(start: Start) -> None:
    master: Master = await start()
    first = master.put(500)
    slave = await master.slave(0)
    assert await slave.receive(0, 500) == first
    second = master.put(700)
    assert await slave.receive(500, 1_200) == second
    assert master.acked() == [0]
    slave.report(1_200)
    await until(lambda: master.acked() == [1_200])
    assert master.log.settled[-1] == [1_200]
    assert master.replies.settle_count == len(master.log.settled)


async def test_the_address_for_slaves_is_that_of_broker_ip2(start: Start) -> None:
    master: Master = await start()
    assert master.identity.ha_address == f"10.1.2.3:{master.port.port}"


async def test_an_accepted_slave_hears_so_at_once(start: Start) -> None:
    master: Master = await start()
    master.put(500)
    slave = await master.slave(500)
    assert await slave.frame() == (500, b"")
    assert master.acked() == [500]


async def test_no_frame_crosses_a_file_and_none_is_larger_than_a_batch(start: Start) -> None:
    master: Master = await start(ha_transfer_batch_size=3_000)
    data = master.put(2 * FILE_SIZE + 17)
    slave = await master.slave(0)
    assert await slave.receive(0, len(data)) == data
    assert all(size <= 3_000 for _, size in slave.frames)
    assert {begin for begin, _ in slave.frames} >= {0, FILE_SIZE, 2 * FILE_SIZE}
    assert all(
        begin // FILE_SIZE == (begin + size - 1) // FILE_SIZE for begin, size in slave.frames
    )


async def test_an_empty_slave_begins_at_the_first_file(start: Start) -> None:
    master: Master = await start()
    data = master.put(3 * FILE_SIZE + 5)
    master.log.delete_before(FILE_SIZE)
    slave = await master.slave(0)
    assert await slave.receive(FILE_SIZE, len(data)) == data[FILE_SIZE:]
    assert master.acked() == [None]
    slave.report(len(data))
    await until(lambda: master.acked() == [len(data)])


async def test_an_empty_slave_begins_at_the_last_file_if_so_configured(start: Start) -> None:
    master: Master = await start(sync_from_last_file=True)
    data = master.put(3 * FILE_SIZE + 5)
    slave = await master.slave(0)
    assert await slave.receive(3 * FILE_SIZE, len(data)) == data[3 * FILE_SIZE :]


async def test_bytes_that_are_not_durable_are_kept_back_with_send_after_disk(start: Start) -> None:
    master: Master = await start(ha_send_after=DurableIn.DISK)
    master.log.limit = 0
    slave = await master.slave(0)
    assert await slave.frame() == (0, b"")
    data = master.put(500)
    await until(lambda: master.replies.sync_count)
    master.log.limit = 300
    master.port.pump()
    assert await slave.receive(0, 300) == data[:300]
    master.log.limit = 500
    master.port.pump()
    assert await slave.receive(300, 500) == data[300:]


async def test_several_puts_of_a_turn_are_one_frame(start: Start) -> None:
    master: Master = await start()
    slave = await master.slave(0)
    assert await slave.frame() == (0, b"")
    data = b"".join(master.put(10) for _ in range(64))
    assert await slave.frame() == (0, data)


async def test_a_slave_that_does_not_read_holds_no_file_and_gets_all_later(start: Start) -> None:
    size = 8 << 20
    master: Master = await start(mapped_file_size_commit_log=16 << 20)
    slave = await master.slave(0)
    data = master.put(size)
    await until(lambda: master.port.slaves)
    link = master.port.slaves[0]
    await until(lambda: link._is_blocked)
    assert link.replica.sent_offset < size
    assert master.log.held_count == 0
    assert await slave.receive(0, size) == data


async def test_a_blocked_slave_delays_no_other(start: Start) -> None:
    master: Master = await start(mapped_file_size_commit_log=16 << 20)
    _slow, fast = await master.slave(0), await master.slave(0, host="127.0.0.2")
    await until(lambda: len(master.port.slaves) == 2)
    data = master.put(8 << 20)
    assert await fast.receive(0, len(data)) == data
    fast.report(len(data))
    await until(lambda: len(data) in master.acked())


async def test_flow_control_limits_the_bytes_without_empty_frames(start: Start) -> None:
    master: Master = await start(ha_flow_control_enable=True, max_ha_transfer_byte_in_second=10_240)
    slave = await master.slave(0)
    assert await slave.frame() == (0, b"")
    data = master.put(2_500)
    assert await slave.receive(0, 1_024) == data[:1_024]
    master.clock.advance(50)
    assert await slave.receive(1_024, 1_536) == data[1_024:1_536]
    master.clock.advance(1_000)
    assert await slave.receive(1_536, 2_500) == data[1_536:]
    assert all(size for _, size in slave.frames)
    assert master.port.counts.heartbeats == 1


# --- catching up ----------------------------------------------------------------------------------


@pytest.fixture
def small_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "BEGIN_BYTES", 100_000)
    monkeypatch.setattr(catch_up, "END_BYTES", 30_000)


@pytest.mark.usefixtures("small_lags")
async def test_a_slave_that_lags_far_is_served_by_a_thread_then_by_the_loop(start: Start) -> None:
    master: Master = await start(ha_transfer_batch_size=4_096)
    data = master.put(15 * FILE_SIZE + 123)
    slave = await master.slave(0)
    received = await slave.receive(0, len(data), acknowledges=True)
    assert received == data
    assert master.port.counts.catch_ups == 1
    assert max(size for _, size in slave.frames) == 4_096
    await until(lambda: master.acked() == [len(data)])
    assert not master.port.slaves[0].is_catching_up
    assert master.port.counts.sent_bytes == len(data)
    more = master.put(100)
    assert await slave.receive(len(data), len(data) + 100) == more


@pytest.mark.usefixtures("small_lags")
async def test_the_loop_serves_a_lag_below_the_threads(start: Start) -> None:
    master: Master = await start()
    data = master.put(9 * FILE_SIZE)
    slave = await master.slave(0)
    assert await slave.receive(0, len(data)) == data
    assert master.port.counts.catch_ups == 0


@pytest.mark.usefixtures("small_lags")
async def test_a_file_that_is_sent_may_expire(start: Start) -> None:
    size = 32 << 20
    master: Master = await start(mapped_file_size_commit_log=size)
    data = master.put(size + 200_000)
    slave = await master.slave(0)
    _, piece = await slave.frame()
    while not piece:
        _, piece = await slave.frame()
    master.log.delete_before(size)
    rest = await slave.receive(len(piece), len(data))
    assert piece + rest == data


@pytest.mark.usefixtures("small_lags")
async def test_a_slave_whose_next_bytes_expired_is_refused(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    master: Master = await start(ha_flow_control_enable=True, max_ha_transfer_byte_in_second=10_240)
    data = master.put(20 * FILE_SIZE)
    slave = await master.slave(0)
    await slave.receive(0, 1_024)
    (master.log.folder / f"{FILE_SIZE:020}").unlink()
    master.log.min_offset = 2 * FILE_SIZE
    master.clock.advance(100)
    await slave.receive(1_024, 2_048)
    async with asyncio.timeout(GUARD_S):
        while not master.port.counts.refused[Reason.EXPIRED]:
            master.clock.advance(100)
            await asyncio.sleep(0.001)
    rest = await slave.closed()
    assert b"".join(split(rest)) == data[2_048:FILE_SIZE]
    assert f"no longer has physical offset {FILE_SIZE}: it was deleted" in caplog.text


def split(stream: bytes) -> list[bytes]:
    """Return the data of whole frames."""
    pieces, position = [], 0
    while position < len(stream):
        _, size = struct.unpack_from(">qi", stream, position)
        pieces.append(stream[position + 12 : position + 12 + size])
        position += 12 + size
    return pieces


@pytest.mark.usefixtures("small_lags")
async def test_the_port_can_stop_while_a_thread_waits_for_its_slave(start: Start) -> None:
    master: Master = await start(mapped_file_size_commit_log=64 << 20)
    master.put(48 << 20)
    await master.slave(0)
    await until(lambda: master.port.slaves and master.port.slaves[0].is_catching_up)
    async with asyncio.timeout(GUARD_S):
        await master.port.stop()


# --- reports --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "reason", "text"),
    [
        ([9_999], Reason.BELOW_MIN, "ends at physical offset 9999, but this log begins at 10000"),
        ([25_001], Reason.ABOVE_MAX, "physical offset 25001, after the end of this log, 25000"),
        ([HUGE], Reason.ABOVE_MAX, f"physical offset {HUGE}, after the end of this log, 25000"),
        ([20_000, HUGE], Reason.IMPOSSIBLE, f"acknowledges physical offset {HUGE}"),
        ([20_000, 19_999], Reason.IMPOSSIBLE, "acknowledges physical offset 19999"),
    ],
)
async def test_an_impossible_report_closes_the_connection_and_acknowledges_nothing(
    start: Start,
    caplog: pytest.LogCaptureFixture,
    offsets: list[int],
    reason: Reason,
    text: str,
) -> None:
    master: Master = await start()
    master.put(25_000)
    master.log.delete_before(FILE_SIZE)
    slave = await master.slave(*offsets)
    await slave.closed()
    assert master.acked() == []
    assert master.port.counts.refused == {reason: 1}
    refusals = [record.getMessage() for record in caplog.records if "refused" in record.message]
    assert len(refusals) == 1
    assert text in refusals[0]
    assert all(offset is None or offset <= 25_000 for acks in master.log.settled for offset in acks)


async def test_the_last_whole_report_of_a_read_counts_and_settles_once(start: Start) -> None:
    master: Master = await start()
    slave = await master.slave(0)
    master.put(1_000)
    await slave.receive(0, 1_000)
    settled = len(master.log.settled)
    slave.write(struct.pack(">4q", 100, 400, 400, 900) + b"\0\0\0")
    await until(lambda: master.acked() == [900])
    assert len(master.log.settled) == settled + 1
    slave.write(struct.pack(">q", 1_000)[3:])
    await until(lambda: master.acked() == [1_000])


async def test_an_acknowledgement_ends_with_its_connection(start: Start) -> None:
    master: Master = await start()
    master.put(1_000)
    slave = await master.slave(1_000)
    await until(lambda: master.acked() == [1_000])
    slave.close()
    await until(lambda: master.acked() == [])
    assert master.log.settled[-1] == []


async def test_an_older_connection_of_the_same_host_must_report_again(start: Start) -> None:
    master: Master = await start()
    master.put(1_000)
    old = await master.slave(1_000)
    other = await master.slave(900, host="127.0.0.2")
    await until(lambda: len(master.acked()) == 2)
    await master.slave(500)
    await until(lambda: len(master.acked()) == 3)
    assert master.acked() == [None, 900, 500]
    old.report(1_000)
    await until(lambda: master.acked() == [1_000, 900, 500])
    other.close()


async def test_two_slaves_of_a_host_are_available_at_once(start: Start) -> None:
    """Else sends that need both would be answered with SLAVE_NOT_AVAILABLE for seconds."""
    master: Master = await start()
    master.put(1_000)
    slaves = [await master.slave(1_000), await master.slave(1_000)]
    await until(lambda: len(master.acked()) == 2)
    acks, now_ms = master.log.replicas, master.clock.monotonic_ms()
    assert acks.available(1_000, 500, now_ms) == 2
    assert acks.confirmed(2) is None
    # Both get the next message, and acknowledge it.
    master.put(100)
    for slave in slaves:
        await slave.receive(1_000, 1_100)
        slave.report(1_100)
    await until(lambda: acks.confirmed(2) == 1_100)


async def test_two_connections_of_one_slave_count_once(start: Start) -> None:
    """Java counts both: ``GroupTransferService`` of 5.3.3 has a TODO about it."""
    master: Master = await start()
    master.put(1_000)
    await master.slave(1_000)  # its host lost its power: the connection stays, and is silent
    await until(lambda: master.acked() == [1_000])
    master.pass_time(4_000)
    acks, new = master.log.replicas, await master.slave(900)
    await until(lambda: master.acked() == [None, 900])
    master.put(100)
    await new.receive(900, 1_100)
    new.report(1_100)
    await until(lambda: acks.confirmed(1) == 1_100)
    assert acks.confirmed(2) is None
    reported_since_ms = master.clock.monotonic_ms() - 1_000
    assert acks.available(1_100, 500, reported_since_ms) == 1


async def test_a_probe_without_a_report_leaves_the_slave_of_its_host_alone(start: Start) -> None:
    master: Master = await start()
    master.put(1_000)
    await master.slave(1_000)
    await until(lambda: master.acked() == [1_000])
    probe = await master.slave()
    await until(lambda: master.port.unreported_count == 1)
    probe.write(b"GET / H")  # seven bytes
    assert master.acked() == [1_000]


async def test_held_replies_are_settled_at_once_if_there_is_no_slave(start: Start) -> None:
    master: Master = await start(broker_role=BrokerRole.SYNC_MASTER)
    master.replies.held_count = 1
    master.put(100)
    await until(lambda: master.replies.settle_count)


# --- time -----------------------------------------------------------------------------------------


async def test_heartbeats_come_when_nothing_was_sent(start: Start) -> None:
    master: Master = await start()
    data = master.put(500)
    slave = await master.slave(500)
    assert await slave.frame() == (500, b"")
    master.pass_time(4_999)
    assert master.port.counts.heartbeats == 1
    slave.report(500)
    data = master.put(100)
    assert await slave.frame() == (500, data)
    master.pass_time(4_999)  # since the data
    assert master.port.counts.heartbeats == 1
    master.pass_time(1)
    assert await slave.frame() == (600, b"")


async def test_a_silent_slave_is_closed(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    master: Master = await start()
    silent, living = await master.slave(0), await master.slave(0, host="127.0.0.2")
    await until(lambda: len(master.acked()) == 2)
    master.pass_time(19_000)
    living.report(0)
    await until(lambda: master.port.counts.reports == 3)
    master.pass_time(1_000)
    await silent.closed()
    assert [link.host for link in master.port.slaves] == ["127.0.0.2"]
    assert master.port.counts.refused == {Reason.SILENT: 1}
    assert "no report for 20000 ms" in caplog.text


async def test_a_slave_that_takes_nothing_is_named_once(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    master: Master = await start()
    slave = await master.slave(0)
    assert await slave.frame() == (0, b"")
    data = master.put(100)
    assert await slave.frame() == (0, data)
    for count in range(2, 7):
        assert caplog.text.count("takes no byte after physical offset 0") == (count > 4)
        slave.report(0)
        await until(lambda count=count: master.port.counts.reports == count)
        master.pass_time(10_000 - (count == 3))
    slave.report(100)
    await until(lambda: master.acked() == [100])


async def test_a_connection_without_a_whole_report_is_closed(start: Start) -> None:
    master: Master = await start()
    probes = [await master.slave() for _ in range(3)]
    await until(lambda: master.port.unreported_count == 3)
    probes[0].write(b"\0")
    master.pass_time(19_999)
    assert master.port.unreported_count == 3
    master.pass_time(1)
    for probe in probes:
        assert await probe.closed() == b""
    assert master.port.unreported_count == 0
    assert master.port.counts.refused == {Reason.UNREPORTED: 3}


async def test_rates_and_acknowledgement_times_are_measured(start: Start) -> None:
    master: Master = await start()
    slave = await master.slave(0)
    await slave.frame()
    master.put(3_000)
    await slave.receive(0, 3_000)
    master.clock.advance(7)
    slave.report(3_000)
    await until(lambda: master.acked() == [3_000])
    assert master.port.counts.ack_times.sum_ms == 7
    master.pass_time(1_493)
    assert master.port.slaves[0].bytes_per_s == 2_000
    master.pass_time(1_000)
    assert master.port.slaves[0].bytes_per_s == 0


# --- hostile clients ------------------------------------------------------------------------------


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_thousand_probes_neither_leak_nor_push_out_a_slave(start: Start) -> None:
    master: Master = await start()
    data = master.put(1_000)
    slave = await master.slave(1_000)
    await slave.frame()
    before = descriptors()
    probes = []
    for number in range(1_000):
        probe = socket.socket()
        probe.setblocking(False)
        probe.connect_ex(("127.0.0.1", master.port.port))
        probes.append(probe)
        if number % 50 == 49:
            await until(lambda n=number: master.port.counts.accepted == n + 2)
    assert master.port.unreported_count <= limits.HA_UNREPORTED_PER_ADDRESS.maximum
    assert descriptors() <= before + 1_000 + limits.HA_UNREPORTED_PER_ADDRESS.maximum
    data = master.put(500)
    assert await slave.receive(1_000, 1_500) == data
    slave.report(1_500)
    await until(lambda: master.acked() == [1_500])
    late = await master.slave(1_500, host="127.0.0.2")
    assert await late.frame() == (1_500, b"")
    for probe in probes:
        probe.close()
    await until(lambda: master.port.unreported_count == 0)
    late.close()
    await until(lambda: len(master.port.slaves) == 1)
    assert descriptors() < before + 100  # a few belong to the shared broker


async def test_random_bytes_acknowledge_nothing(start: Start) -> None:
    master: Master = await start()
    master.put(1_000)
    noise = seeds.random("slave port noise")
    for size in [1, 7, 8, 9, 16, 4_096, 100_000, *(noise.randrange(1, 300) for _ in range(50))]:
        probe = await master.slave()
        probe.write(b"\x01" + noise.randbytes(size - 1))  # no value of this log
        if size >= 8:
            await probe.closed()
        probe.close()
    await until(lambda: master.port.unreported_count == 0)
    assert master.acked() == []
    assert all(acks == [] for acks in master.log.settled)


async def test_a_slave_that_floods_reports_stalls_no_client(start: Start) -> None:
    master: Master = await start()
    master.put(1_000)
    flooding, slave = await master.slave(1_000), await master.slave(1_000, host="127.0.0.2")
    await slave.frame()
    loop = asyncio.get_running_loop()
    reports = struct.pack(">q", 1_000) * 500_000
    flood = loop.create_task(loop.sock_sendall(flooding.connection, reports))
    data = master.put(100)
    assert await slave.receive(1_000, 1_100) == data
    slave.report(1_100)
    await until(lambda: 1_100 in master.acked())
    await flood


async def test_slaves_without_progress_make_room(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sixty-four that reported offset 0 kept the real slave out."""
    monkeypatch.setattr(limits, "HA_SLAVES", limits.HA_SLAVES.at(3))
    master: Master = await start()
    data = master.put(1_000)
    real = await master.slave(0, host="127.0.0.9")
    assert await real.receive(0, 1_000) == data
    real.report(1_000)
    await until(lambda: master.acked() == [1_000])
    idle = [await master.slave(0, host=f"127.0.0.{number}") for number in (1, 2)]
    await until(lambda: len(master.port.slaves) == 3)
    late = await master.slave(1_000, host="127.0.0.3")
    await idle[0].closed()
    late.report(1_000)
    await until(lambda: master.port.counts.reports == 6)
    await master.slave(0, host="127.0.0.4")
    await idle[1].closed()
    assert {link.host for link in master.port.slaves} == {"127.0.0.9", "127.0.0.3", "127.0.0.4"}
    assert master.port.counts.refused == {Reason.TOO_MANY: 2}
    assert "slaves of a master: more than 3; allowed: at most 3, limit ha_slaves" in caplog.text


@pytest.mark.parametrize("kind", ["reported", "unreported"])
async def test_no_address_keeps_out_another(
    start: Start, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    names = ("HA_SLAVES", "HA_SLAVES_PER_ADDRESS")
    if kind == "unreported":
        names = ("HA_UNREPORTED", "HA_UNREPORTED_PER_ADDRESS")
    for name, maximum in zip(names, (8, 4), strict=True):
        monkeypatch.setattr(limits, name, getattr(limits, name).at(maximum))
    master: Master = await start()
    master.put(1_000)
    reports = (0,) if kind == "reported" else ()
    for number in range(30):
        await master.slave(*reports, host=f"127.0.0.{1 + number % 2}")
        await until(lambda count=number: master.port.counts.accepted == count + 1)
        await until(lambda: not reports or not master.port.unreported_count)
        # Even if all make progress, as far as a master can see.
        for link in master.port.slaves:
            link.progress_ms = number
    assert len(master.port.slaves) + master.port.unreported_count <= 8
    real = await master.slave(1_000, host="127.0.0.9")
    assert await real.frame() == (1_000, b"")
    for _ in range(8):
        await master.slave(*reports, host="127.0.0.1")
    await until(lambda: master.port.counts.accepted == 39)
    await until(lambda: not reports or not master.port.unreported_count)
    assert "127.0.0.9" in {link.host for link in master.port.slaves}


# --- the status for operators ---------------------------------------------------------------------


async def test_the_status_has_each_slave(start: Start) -> None:
    master: Master = await start(ha_slave_fallbehind_max=500)
    master.put(1_000)
    near = await master.slave(501)
    far = await master.slave(500, host="127.0.0.2")
    await until(lambda: len(master.acked()) == 2)
    await near.receive(501, 1_000)
    await far.receive(500, 1_000)
    status = master.port.slaves_status()
    assert (status.master, status.master_commit_log_max_offset) == (True, 1_000)
    assert status.in_sync_slave_nums == 1
    shown = [
        (info.slave_ack_offset, info.diff, info.in_sync, info.transfer_from_where)
        for info in status.ha_connection_info
    ]
    # As in Java: a slave is in sync if it lags less than the maximum.
    assert shown == [(501, 499, True, 1_000), (500, 500, False, 1_000)]
    name = near.connection.getsockname()
    assert status.ha_connection_info[0].addr == f"{name[0]}:{name[1]}"


# --- addresses ------------------------------------------------------------------------------------


async def test_the_port_follows_that_for_requests(start: Start, tmp_path: Path) -> None:
    port = free_port()
    master = Master(tmp_path, ha_listen_port=-1)
    master.identity.port = port - 1
    await master.port.start()
    assert master.port.port == port
    await master.port.stop()


async def test_there_may_be_no_port_after_that_for_requests(tmp_path: Path) -> None:
    master = Master(tmp_path, ha_listen_port=-1)
    master.identity.port = 65_535
    with pytest.raises(InvalidOption, match="a port up to 65535, since listenPort is 65535"):
        await master.port.start()


async def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        master = Master(tmp_path, ha_listen_port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            await master.port.start()
