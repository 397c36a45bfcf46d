"""Official brokers as slaves of ours: 4.5.2, 4.9.7 and 5.5.0.

The official broker decides: its log must become equal to ours, byte for byte, and it
must stay connected. Its slaves of 5.x need a name server that has the master's address for slaves.
"""

import asyncio
import contextlib
import random
import re
import shutil
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from interop import java_oracle, wire
from interop.conftest import _or_skip
from interop.java_cluster import JavaClient, JavaCluster, JavaMessage, Settings
from interop.pairs import assert_same_logs, stopped
from interop.wire import Remote
from ports import free_port
from reput.format import bodies
from reput.format.bodies import HaRuntimeInfo
from reput.format.codes import RequestCode, ResponseCode
from reput_cluster import ReputCluster

pytestmark = [
    pytest.mark.interop,
    pytest.mark.rotating,
]

SLAVES = java_oracle.ALL_VERSIONS if java_oracle.wants_all_versions() else ("5.5.0",)
FILE_BYTES = 1 << 20
BODY_BYTES_MAX = 200 << 10
MESSAGE_COUNT = 10_000 if java_oracle.wants_all_versions() else 1_000
QUEUE_COUNT = 4
GUARD_S = 180.0
"""Time limit of a wait, in seconds; no wait is expected to take that long."""
MASTER: Settings = {
    "brokerIP2": "127.0.0.1",
    "mappedFileSizeCommitLog": FILE_BYTES,
    "maxMessageSize": 512 << 10,
    "registerNameServerPeriod": 10_000,
}
SLAVE: Settings = {
    "brokerRole": "SLAVE",
    "brokerId": 1,
    "brokerIP2": "127.0.0.1",
    "mappedFileSizeCommitLog": FILE_BYTES,
    "maxMessageSize": 512 << 10,
    "registerNameServerPeriod": 10_000,
    "slaveReadEnable": True,
}


class Pair:
    """Our master and an official slave.

    Args:
        version: Version of the slave.
        folder: Folder for both.
        master: Further settings of the master.
        slave: Further settings of the slave.
        is_official_namesrv: Use the official name server instead of ours.
    """

    def __init__(
        self,
        version: str,
        folder: Path,
        master: Settings | None = None,
        slave: Settings | None = None,
        *,
        is_official_namesrv: bool = False,
    ) -> None:
        self._master_settings = {**MASTER, **(master or {})}
        self._slave_settings = {**SLAVE, **(slave or {})}
        self._folder, self._version = folder, version
        self._stack = contextlib.ExitStack()
        self._slave: JavaCluster | None = None
        namesrv = None
        if is_official_namesrv:
            self._start_slave(None)
            namesrv = self.slave.namesrv
        self.master = self._stack.enter_context(
            ReputCluster(folder / "master", self._master_settings, namesrv=namesrv)
        )

    @property
    def slave(self) -> JavaCluster:
        assert self._slave is not None, "the slave was not started"
        return self._slave

    def start_slave(self) -> None:
        """Start the slave, with an empty folder."""
        if self._slave is None:
            self._start_slave(self.master.namesrv)

    def _start_slave(self, namesrv: str | None) -> None:
        folder = self._folder / "slave"
        folder.mkdir(exist_ok=True)
        self._slave = self._stack.enter_context(
            _or_skip(
                lambda: JavaCluster(self._version, folder, self._slave_settings, namesrv=namesrv)
            )
        )

    def close(self) -> None:
        self._stack.close()

    async def status(self) -> HaRuntimeInfo:
        """Return what our master reports about its slaves."""
        async with wire.connected(self.master.address) as remote:
            reply = await remote.ask(RequestCode.GET_BROKER_HA_STATUS)
            assert reply.code == ResponseCode.SUCCESS
            return bodies.decode(HaRuntimeInfo, reply.body)

    def starts(self) -> list[int]:
        """Return the physical offsets from which our master has served slaves, oldest first."""
        text = (self.master.folder / "broker.log").read_text()
        return [int(start) for start in re.findall(r"it gets the bytes from (\d+) on", text)]

    async def logs(self, text: str) -> None:
        """Wait until our master has logged a text."""
        deadline = time.monotonic() + GUARD_S
        while text not in (log := (self.master.folder / "broker.log").read_text()):
            assert time.monotonic() < deadline, log[-5000:]
            await asyncio.sleep(0.1)

    async def acknowledged_after(self, physical_offset: int) -> None:
        """Wait until the slave has acknowledged more than a physical offset."""
        deadline = time.monotonic() + GUARD_S
        while True:
            infos = (await self.status()).ha_connection_info
            if any(info.slave_ack_offset > physical_offset for info in infos):
                return
            assert time.monotonic() < deadline, self.master.log()

    async def without_slaves(self) -> None:
        """Wait until our master has lost its slaves."""
        async with asyncio.timeout(GUARD_S):
            while (await self.status()).ha_connection_info:
                await asyncio.sleep(0.1)

    async def caught_up(self, slave_count: int = 1) -> HaRuntimeInfo:
        """Wait until slaves have acknowledged the whole log."""
        deadline = time.monotonic() + GUARD_S
        while True:
            status = await self.status()
            if sum(not info.diff for info in status.ha_connection_info) >= slave_count:
                return status
            assert time.monotonic() < deadline, f"{status}\n{self.master.log()}"
            await asyncio.sleep(0.1)


class StartPair(Protocol):
    def __call__(
        self, version: str, *, has_slave: bool = True, **more: bool | Settings
    ) -> Pair: ...


@pytest.fixture
def start_pair(tmp_path: Path) -> Iterator[StartPair]:
    with contextlib.ExitStack() as stack:

        def start(version: str, *, has_slave: bool = True, **more: Any) -> Pair:
            pair = Pair(version, tmp_path, **more)
            stack.callback(pair.close)
            if has_slave:
                pair.start_slave()
            return pair

        yield start


async def send_many(address: str, count: int, *, seed: int = 1) -> list[ResponseCode]:
    """Send messages of 1 byte to 200 KiB, most of them small; return the codes of the replies."""
    sizes = random.Random(seed)
    codes = []
    async with wire.connected(address) as remote:
        for first in range(0, count, 100):
            number = min(100, count - first)
            bodies_ = [
                sizes.randbytes(int(BODY_BYTES_MAX ** sizes.random())) for _ in range(number)
            ]
            replies = await asyncio.gather(
                *(
                    remote.send("T", body, queue_id=index % QUEUE_COUNT)
                    for index, body in enumerate(bodies_)
                )
            )
            codes += [ResponseCode(reply.code) for reply in replies]
    return codes


async def assert_equal_logs(pair: Pair, *, from_file: int = 0) -> None:
    end = (await pair.caught_up()).master_commit_log_max_offset
    assert_same_logs(pair.master.store, pair.slave.store, end, from_file)
    # Java's slave has accepted every frame, and its parser every record.
    warnings = (pair.slave.folder / "warnings.log").read_text(errors="replace")
    assert not re.search(r"master pushed offset|\[BUG\]", warnings), warnings[-3000:]


@pytest.mark.parametrize("is_official_namesrv", [False, True], ids=["our-namesrv", "javas-namesrv"])
@pytest.mark.parametrize("version", SLAVES)
async def test_logs_are_equal(
    version: str, is_official_namesrv: bool, start_pair: StartPair
) -> None:
    pair = start_pair(version, is_official_namesrv=is_official_namesrv)
    codes = await send_many(pair.master.address, MESSAGE_COUNT)
    assert set(codes) == {ResponseCode.SUCCESS}
    await assert_equal_logs(pair)
    status = await pair.status()
    assert status.master_commit_log_max_offset > 3 * FILE_BYTES  # files have rolled, with blanks
    assert status.in_sync_slave_nums == len(status.ha_connection_info) == 1


@pytest.mark.parametrize("version", SLAVES)
async def test_an_empty_slave_gets_the_whole_history(version: str, start_pair: StartPair) -> None:
    """More than 16 MiB: a thread sends the first part."""
    pair = start_pair(version, has_slave=False)
    async with wire.connected(pair.master.address) as remote:
        for number in range(100):
            await remote.send("T", random.Random(number).randbytes(300 << 10))
    pair.start_slave()
    await assert_equal_logs(pair)
    await send_many(pair.master.address, 200)
    await assert_equal_logs(pair)


@pytest.mark.parametrize("version", SLAVES)
async def test_an_empty_slave_gets_the_last_file_if_so_configured(
    version: str, start_pair: StartPair
) -> None:
    pair = start_pair(version, master={"syncFromLastFile": True}, has_slave=False)
    await send_many(pair.master.address, 500)
    end = (await pair.status()).master_commit_log_max_offset
    pair.start_slave()
    await assert_equal_logs(pair, from_file=end // FILE_BYTES * FILE_BYTES)


@pytest.mark.parametrize("version", SLAVES)
async def test_a_restarted_slave_continues(version: str, start_pair: StartPair) -> None:
    pair = start_pair(version)
    for stop in (pair.slave.stop_broker, pair.slave.kill_broker):
        await send_many(pair.master.address, 300)
        before = (await pair.caught_up()).master_commit_log_max_offset
        await asyncio.to_thread(stop)
        await send_many(pair.master.address, 300, seed=2)
        pair.slave.start()
        await assert_equal_logs(pair)
        # Not from the start again: at most the part of its last record is copied twice.
        assert before - (512 << 10) <= pair.starts()[-1] <= before


@pytest.mark.parametrize("version", SLAVES)
async def test_a_slave_killed_while_it_receives_continues(
    version: str, start_pair: StartPair
) -> None:
    """Anywhere: inside of records, headers and blanks."""
    pair = start_pair(version)
    for seed in range(3):
        end = (await pair.caught_up()).master_commit_log_max_offset
        sending = asyncio.ensure_future(send_many(pair.master.address, 2_000, seed=seed))
        await pair.acknowledged_after(end)
        pair.slave.kill_broker()
        await sending
        pair.slave.start()
        await assert_equal_logs(pair)


@pytest.mark.parametrize("version", SLAVES)
async def test_a_slave_reconnects_to_a_restarted_master(
    version: str, start_pair: StartPair
) -> None:
    pair = start_pair(version)
    for stop in (pair.master.stop_broker, pair.master.kill_broker):
        await send_many(pair.master.address, 100)
        await pair.caught_up()
        await asyncio.to_thread(stop)
        pair.master.start()
        await send_many(pair.master.address, 100, seed=2)
        await pair.caught_up()
        await assert_equal_logs(pair)


@pytest.mark.parametrize("version", SLAVES)
async def test_large_messages_and_full_files(version: str, start_pair: StartPair) -> None:
    """Messages near maxMessageSize, and records that leave the smallest blanks."""
    pair = start_pair(version)
    async with wire.connected(pair.master.address) as remote:
        for size in (1, 512 << 10, 500_000, 512 << 10, *range(40_000, 40_100)):
            reply = await remote.send("T", bytes([size % 251]) * size)
            assert reply.code == ResponseCode.SUCCESS, reply.remark
    await assert_equal_logs(pair)


# --- SYNC_MASTER ----------------------------------------------------------------------------------

SLAVE_TIMEOUT_MS = 10_000
"""Longer than a slave's acknowledgement takes on a busy machine."""
SYNC: Settings = {
    "brokerRole": "SYNC_MASTER",
    "slaveTimeout": SLAVE_TIMEOUT_MS,
    # A slave that missed two heartbeats counts as unavailable: later than that.
    "haSendHeartbeatInterval": 12_000,
}


async def send_one(remote: Remote, **properties: str) -> ResponseCode:
    """Send a message; a code other than FLUSH_SLAVE_TIMEOUT shows that nothing was waited for."""
    return ResponseCode((await remote.send("T", b"body", properties=properties)).code)


@pytest.mark.parametrize("path", ["fast", "processors"])
@pytest.mark.parametrize("version", SLAVES)
async def test_statuses_of_a_sync_master(version: str, path: str, start_pair: StartPair) -> None:
    pair = start_pair(version, master={**SYNC, "reputFastPath": path == "fast"}, has_slave=False)
    async with wire.connected(pair.master.address) as remote:
        assert await send_one(remote) == ResponseCode.SLAVE_NOT_AVAILABLE
        pair.start_slave()
        await pair.caught_up()
        codes = await send_many(pair.master.address, 300)
        assert set(codes) == {ResponseCode.SUCCESS}
        await assert_equal_logs(pair)
        with stopped(pair.slave.broker_pid):
            begun_s = time.monotonic()
            assert await send_one(remote) == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert time.monotonic() - begun_s >= SLAVE_TIMEOUT_MS / 1000
            assert await send_one(remote, WAIT="false") == ResponseCode.SUCCESS
        await pair.caught_up()
        assert await send_one(remote) == ResponseCode.SUCCESS
        await asyncio.to_thread(pair.slave.kill_broker)
        await pair.without_slaves()
        assert await send_one(remote) == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_sync_flush_and_sync_master(start_pair: StartPair) -> None:
    pair = start_pair(SLAVES[-1], master={**SYNC, "flushDiskType": "SYNC_FLUSH"})
    await pair.caught_up()
    codes = await send_many(pair.master.address, 300)
    assert set(codes) == {ResponseCode.SUCCESS}
    await assert_equal_logs(pair)


async def test_bytes_are_sent_after_the_disk_if_so_configured(start_pair: StartPair) -> None:
    pair = start_pair(SLAVES[-1], master={**SYNC, "haSendAfter": "disk"})
    await pair.caught_up()
    async with wire.connected(pair.master.address) as remote:
        for _ in range(20):
            assert await send_one(remote) == ResponseCode.SUCCESS
    await assert_equal_logs(pair)


async def test_a_master_without_enough_replicas_stores_nothing(start_pair: StartPair) -> None:
    pair = start_pair(
        SLAVES[-1], master={**SYNC, "inSyncReplicas": 2, "minInSyncReplicas": 2}, has_slave=False
    )
    async with wire.connected(pair.master.address) as remote:
        end = (await pair.status()).master_commit_log_max_offset
        reply = await remote.send("T", b"body")
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "in-sync replicas not enough" in (reply.remark or "")
        assert (await pair.status()).master_commit_log_max_offset == end
        pair.start_slave()
        await pair.caught_up()
        assert await send_one(remote) == ResponseCode.SUCCESS


async def test_java_producers_see_the_statuses(start_pair: StartPair, tmp_path: Path) -> None:
    pair = start_pair("5.5.0", master=SYNC, has_slave=False)
    with contextlib.ExitStack() as stack:
        producers = []
        for version in ("4.9.7", "5.5.0"):
            java = stack.enter_context(JavaClient(version, tmp_path / f"client-{version}"))
            producers.append(stack.enter_context(java.producer(pair.master.namesrv)))

        async def statuses() -> set[str]:
            messages = [JavaMessage("T", b"body")]
            results = await asyncio.gather(
                *(
                    asyncio.to_thread(producer.send, messages, timeout_ms=60_000)
                    for producer in producers
                )
            )
            return {result.status for (result,) in results}

        assert await statuses() == {"SLAVE_NOT_AVAILABLE"}
        pair.start_slave()
        await pair.caught_up()
        assert await statuses() == {"SEND_OK"}
        with stopped(pair.slave.broker_pid):
            assert await statuses() == {"FLUSH_SLAVE_TIMEOUT"}


# --- slaves and probes that must not count --------------------------------------------------------


@pytest.mark.parametrize("version", SLAVES)
async def test_a_slave_that_is_ahead_is_refused(
    version: str, start_pair: StartPair, tmp_path: Path
) -> None:
    pair = start_pair(version, master=SYNC)
    await send_many(pair.master.address, 50)
    await pair.caught_up()
    # The master loses its last message.
    await asyncio.to_thread(pair.master.stop_broker)
    shutil.copytree(pair.master.store, tmp_path / "earlier")
    pair.master.start()
    await pair.caught_up()
    async with wire.connected(pair.master.address) as remote:
        assert await send_one(remote) == ResponseCode.SUCCESS
    await asyncio.to_thread(pair.master.kill_broker)
    shutil.rmtree(pair.master.store)
    shutil.copytree(tmp_path / "earlier", pair.master.store)
    pair.master.start()
    await pair.logs("after the end of this log")
    async with wire.connected(pair.master.address) as remote:
        assert await send_one(remote) == ResponseCode.SLAVE_NOT_AVAILABLE
    assert (await pair.status()).ha_connection_info == ()


@pytest.mark.parametrize("version", SLAVES)
async def test_a_slave_whose_next_bytes_expired_is_refused(
    version: str, start_pair: StartPair
) -> None:
    metrics_port = free_port()
    pair = start_pair(version, master={"metricsPort": metrics_port})
    await send_many(pair.master.address, 50)
    await pair.caught_up()
    await asyncio.to_thread(pair.slave.stop_broker)
    await send_many(pair.master.address, 500)
    await asyncio.to_thread(pair.master.stop_broker)
    for name in (0, FILE_BYTES, 2 * FILE_BYTES):
        (pair.master.store / "commitlog" / f"{name:020}").unlink()
    pair.master.start()
    pair.slave.start()
    await pair.logs(f"but this log begins at {3 * FILE_BYTES}")
    assert (await pair.status()).ha_connection_info == ()
    metrics = await asyncio.to_thread(text_at, f"http://127.0.0.1:{metrics_port}/metrics")
    (refused,) = re.findall(
        r'reput_replication_refused_total{.*reason="below_min".*} (\d+)', metrics
    )
    assert int(refused) >= 1


def text_at(url: str) -> str:
    with urllib.request.urlopen(url, timeout=GUARD_S) as reply:
        return str(reply.read(), "utf-8")


@pytest.mark.parametrize("version", SLAVES)
async def test_a_slave_with_smaller_files_is_named(version: str, start_pair: StartPair) -> None:
    """Java's slave drops bytes that do not fit into its file, and reports its old end."""
    pair = start_pair(
        version,
        master={"haHousekeepingInterval": 12_000},
        slave={"mappedFileSizeCommitLog": FILE_BYTES // 2},
    )
    begun_s = time.monotonic()
    await send_many(pair.master.address, 100)
    end = (await pair.status()).master_commit_log_max_offset
    assert end > FILE_BYTES // 2
    await pair.logs("takes no byte after physical offset")
    # It connects at most every 5 s.
    assert len(pair.starts()) <= 2 + (time.monotonic() - begun_s) / 5
    for info in (await pair.status()).ha_connection_info:
        assert info.slave_ack_offset <= FILE_BYTES // 2


async def test_probes_of_the_port_acknowledge_nothing(start_pair: StartPair) -> None:
    pair = start_pair(SLAVES[-1], master=SYNC, has_slave=False)
    port = pair.master.port + 1
    end = (await pair.status()).master_commit_log_max_offset
    noise = random.Random(3)
    probes = [
        struct.pack(">q", end + (1 << 20)),  # also after the send below
        struct.pack(">q", 1 << 60),
        struct.pack(">q", -1),
        b"\x01" + noise.randbytes(7),
        b"\x01" + noise.randbytes(100_000),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x7f",
        b"",
    ]
    with contextlib.ExitStack() as stack:
        for data in probes * 20:
            probe = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with contextlib.suppress(ConnectionError):
                probe.sendall(data)
        async with wire.connected(pair.master.address) as remote:
            assert await send_one(remote) == ResponseCode.SLAVE_NOT_AVAILABLE
        assert (await pair.status()).ha_connection_info == ()
        pair.start_slave()
        await pair.caught_up()
        assert len((await pair.status()).ha_connection_info) == 1


async def test_two_slaves_of_different_versions(start_pair: StartPair, tmp_path: Path) -> None:
    pair = start_pair("4.9.7", master={**SYNC, "inSyncReplicas": 3})
    await pair.caught_up()
    async with wire.connected(pair.master.address) as remote:
        # Two slaves are needed.
        assert await send_one(remote) == ResponseCode.SLAVE_NOT_AVAILABLE
        folder = tmp_path / "second"
        folder.mkdir()
        settings = {**SLAVE, "brokerId": 2}
        with JavaCluster("5.5.0", folder, settings, namesrv=pair.master.namesrv):
            await pair.caught_up(slave_count=2)
            codes = await send_many(pair.master.address, 200)
            assert set(codes) == {ResponseCode.SUCCESS}
            end = (await pair.caught_up(slave_count=2)).master_commit_log_max_offset
            for store in (pair.slave.store, folder / "store"):
                assert_same_logs(pair.master.store, store, end)


async def test_our_slave_beside_an_official_one(start_pair: StartPair, tmp_path: Path) -> None:
    pair = start_pair(SLAVES[-1], master={**SYNC, "inSyncReplicas": 3})
    settings = {**SLAVE, "brokerId": 2}
    with ReputCluster(tmp_path / "ours", settings, namesrv=pair.master.namesrv) as ours:
        await pair.caught_up(slave_count=2)
        codes = await send_many(pair.master.address, 500)
        assert set(codes) == {ResponseCode.SUCCESS}
        end = (await pair.caught_up(slave_count=2)).master_commit_log_max_offset
        for store in (pair.slave.store, ours.store):
            assert_same_logs(pair.master.store, store, end)
