"""Official brokers as slaves of ours: 4.5.2, 4.9.7 and 5.5.0.

The official broker decides: its log must become equal to ours, byte for byte, and it
must stay connected. Its slaves of 5.x need a name server that has the master's address for slaves.
"""

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from interop import java_oracle, wire
from interop.clusters import until
from interop.conftest import _or_skip
from interop.java_cluster import JavaClient, JavaCluster, JavaMessage, Settings
from interop.java_oracle import wants_all_versions
from interop.wire import Remote
from reput.format import bodies
from reput.format.bodies import HaRuntimeInfo
from reput.format.codes import RequestCode, ResponseCode
from reput_cluster import ReputCluster

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not wants_all_versions(), reason="minutes: make interop-all"),
]

SLAVES = java_oracle.ALL_VERSIONS if java_oracle.wants_all_versions() else ("5.5.0",)
FILE_BYTES = 1 << 20
BODY_BYTES_MAX = 200 << 10
MESSAGE_COUNT = 10_000 if java_oracle.wants_all_versions() else 1_000
QUEUE_COUNT = 4
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

    async def logs(self, text: str, guard_s: float = 40) -> None:
        """Wait until our master has logged a text."""
        deadline = time.monotonic() + guard_s
        while text not in (log := (self.master.folder / "broker.log").read_text()):
            assert time.monotonic() < deadline, log[-5000:]
            await asyncio.sleep(0.1)

    async def acknowledged_after(self, physical_offset: int, guard_s: float = 40) -> None:
        """Wait until the slave has acknowledged more than a physical offset."""
        deadline = time.monotonic() + guard_s
        while True:
            infos = (await self.status()).ha_connection_info
            if any(info.slave_ack_offset > physical_offset for info in infos):
                return
            assert time.monotonic() < deadline, self.master.log()

    async def caught_up(self, guard_s: float = 40, slave_count: int = 1) -> HaRuntimeInfo:
        """Wait until slaves have acknowledged the whole log."""
        deadline = time.monotonic() + guard_s
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


def log_of(store: Path, end: int) -> bytes:
    """Return the bytes of a log up to its end, from its first file on."""
    files = sorted((store / "commitlog").iterdir())
    first = int(files[0].name)
    return b"".join(file.read_bytes() for file in files)[: end - first]


def first_file(store: Path) -> int:
    return min(int(file.name) for file in (store / "commitlog").iterdir())


async def assert_equal_logs(pair: Pair, *, from_file: int = 0) -> None:
    status = await pair.caught_up()
    end = status.master_commit_log_max_offset
    ours, theirs = log_of(pair.master.store, end), log_of(pair.slave.store, end)
    assert first_file(pair.slave.store) == from_file
    assert len(theirs) == end - from_file
    assert ours[len(ours) - len(theirs) :] == theirs
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
        # Java waits 5 s between two attempts.
        await pair.caught_up(guard_s=15)
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

SYNC: Settings = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 3_000}


async def timed_send(remote: Remote, **properties: str) -> tuple[ResponseCode, float]:
    begun = time.monotonic()
    reply = await remote.send("T", b"body", properties=properties)
    return ResponseCode(reply.code), time.monotonic() - begun


@pytest.mark.parametrize("path", ["fast", "processors"])
@pytest.mark.parametrize("version", SLAVES)
async def test_statuses_of_a_sync_master(version: str, path: str, start_pair: StartPair) -> None:
    pair = start_pair(version, master={**SYNC, "reputFastPath": path == "fast"}, has_slave=False)
    async with wire.connected(pair.master.address) as remote:
        code, duration_s = await timed_send(remote)
        assert code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert duration_s < 2
        pair.start_slave()
        await pair.caught_up()
        codes = await send_many(pair.master.address, 300)
        assert set(codes) == {ResponseCode.SUCCESS}
        await assert_equal_logs(pair)
        os.kill(pair.slave.broker_pid, signal.SIGSTOP)
        try:
            code, duration_s = await timed_send(remote)
            assert code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert 3 <= duration_s < 4.5
            code, duration_s = await timed_send(remote, WAIT="false")
            assert code == ResponseCode.SUCCESS
            assert duration_s < 2
        finally:
            os.kill(pair.slave.broker_pid, signal.SIGCONT)
        await pair.caught_up()
        code, _ = await timed_send(remote)
        assert code == ResponseCode.SUCCESS
        await asyncio.to_thread(pair.slave.kill_broker)
        code, duration_s = await timed_send(remote)
        assert code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert duration_s < 2


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
            code, duration_s = await timed_send(remote)
            assert code == ResponseCode.SUCCESS
            assert duration_s < 2
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
        code, _ = await timed_send(remote)
        assert code == ResponseCode.SUCCESS


async def test_java_producers_see_the_statuses(start_pair: StartPair, tmp_path: Path) -> None:
    pair = start_pair("5.5.0", master=SYNC, has_slave=False)
    for version in ("4.9.7", "5.5.0"):
        with (
            JavaClient(version, tmp_path / f"client-{version}") as java,
            java.producer(pair.master.namesrv) as producer,
        ):
            (none,) = await asyncio.to_thread(producer.send, [JavaMessage("T", b"none")])
            assert none.status == "SLAVE_NOT_AVAILABLE"
    pair.start_slave()
    await pair.caught_up()
    for version in ("4.9.7", "5.5.0"):
        with (
            JavaClient(version, tmp_path / f"client-{version}") as java,
            java.producer(pair.master.namesrv) as producer,
        ):
            (result,) = await asyncio.to_thread(producer.send, [JavaMessage("T", b"one")])
            assert result.status == "SEND_OK"
            os.kill(pair.slave.broker_pid, signal.SIGSTOP)
            try:
                (late,) = await asyncio.to_thread(producer.send, [JavaMessage("T", b"late")])
            finally:
                os.kill(pair.slave.broker_pid, signal.SIGCONT)
            assert late.status == "FLUSH_SLAVE_TIMEOUT"
            await pair.caught_up()


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
        code, _ = await timed_send(remote)
        assert code == ResponseCode.SUCCESS
    await asyncio.to_thread(pair.master.kill_broker)
    shutil.rmtree(pair.master.store)
    shutil.copytree(tmp_path / "earlier", pair.master.store)
    pair.master.start()
    await pair.logs("after the end of this log")
    async with wire.connected(pair.master.address) as remote:
        code, duration_s = await timed_send(remote)
        assert code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert duration_s < 2
    assert (await pair.status()).ha_connection_info == ()


@pytest.mark.parametrize("version", SLAVES)
async def test_a_slave_whose_next_bytes_expired_is_refused(
    version: str, start_pair: StartPair
) -> None:
    pair = start_pair(version)
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


async def test_probes_of_the_port_acknowledge_nothing(start_pair: StartPair) -> None:
    pair = start_pair(SLAVES[-1], master=SYNC, has_slave=False)
    port = pair.master.port + 1
    end = (await pair.status()).master_commit_log_max_offset
    noise = random.Random(3)
    probes = [
        struct.pack(">q", end + 1),
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
            code, duration_s = await timed_send(remote)
        assert code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert duration_s < 2
        assert (await pair.status()).ha_connection_info == ()
        pair.start_slave()
        await pair.caught_up()
        assert len((await pair.status()).ha_connection_info) == 1


async def test_two_slaves_of_different_versions(start_pair: StartPair, tmp_path: Path) -> None:
    pair = start_pair("4.9.7", master={**SYNC, "inSyncReplicas": 3})
    await pair.caught_up()
    async with wire.connected(pair.master.address) as remote:
        code, duration_s = await timed_send(remote)
        assert code == ResponseCode.SLAVE_NOT_AVAILABLE  # two slaves are needed
        assert duration_s < 2
        folder = tmp_path / "second"
        folder.mkdir()
        settings = {**SLAVE, "brokerId": 2}
        with JavaCluster("5.5.0", folder, settings, namesrv=pair.master.namesrv):
            await pair.caught_up(slave_count=2)
            codes = await send_many(pair.master.address, 200)
            assert set(codes) == {ResponseCode.SUCCESS}
            end = (await pair.caught_up(slave_count=2)).master_commit_log_max_offset
            ours = log_of(pair.master.store, end)
            assert log_of(pair.slave.store, end) == ours == log_of(folder / "store", end)


async def test_our_slave_beside_an_official_one(start_pair: StartPair, tmp_path: Path) -> None:
    pair = start_pair(SLAVES[-1], master={**SYNC, "inSyncReplicas": 3})
    settings = {**SLAVE, "brokerId": 2}
    with ReputCluster(tmp_path / "ours", settings, namesrv=pair.master.namesrv) as ours:
        await pair.caught_up(slave_count=2)
        codes = await send_many(pair.master.address, 500)
        assert set(codes) == {ResponseCode.SUCCESS}
        end = (await pair.caught_up(slave_count=2)).master_commit_log_max_offset
        expected = log_of(pair.master.store, end)
        assert log_of(pair.slave.store, end) == expected == log_of(ours.store, end)


# --- mqadmin --------------------------------------------------------------------------------------

NUMBERS = (
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\b\d+(\.\d+)?\b"), "N"),
    (re.compile(r" +"), " "),
)


def without_numbers(text: str) -> str:
    for pattern, instead in NUMBERS:
        text = pattern.sub(instead, text)
    return text


def ha_status(java: JavaClient, master: ReputCluster | JavaCluster) -> str:
    """Return what mqadmin prints about a master whose slave has all."""

    def caught_up() -> str:
        text = java.mqadmin("haStatus", "-b", master.address, namesrv=master.namesrv)
        fields = next((line for line in text.splitlines() if line.startswith("127.0.0.1")), "")
        return text if fields.split()[2:3] == ["0"] else ""

    return until(caught_up)


def test_mqadmin_prints_the_same_of_both_masters(start_pair: StartPair, tmp_path: Path) -> None:
    """4.x has no such command."""
    pair = start_pair("5.5.0")
    with contextlib.ExitStack() as stack:
        java = stack.enter_context(JavaClient("5.5.0", tmp_path / "client"))
        folder = tmp_path / "official"
        folder.mkdir()
        (folder / "slave").mkdir()
        official = stack.enter_context(JavaCluster("5.5.0", folder, MASTER))
        stack.enter_context(JavaCluster("5.5.0", folder / "slave", SLAVE, namesrv=official.namesrv))
        for master in (pair.master, official):
            with java.producer(master.namesrv) as producer:
                assert producer.send([JavaMessage("T", b"one")])[0].status == "SEND_OK"
        ours, theirs = (ha_status(java, master) for master in (pair.master, official))
        assert without_numbers(ours) == without_numbers(theirs)
        assert "#SlaveNum\t1" in ours
        assert "#InSyncSlaveNum\t1" in ours
        for command in ("clusterList", "resetMasterFlushOffset -b BROKER -o 0"):
            ours, theirs = (
                without_numbers(
                    java.mqadmin(
                        *command.replace("BROKER", master.address).split(),
                        namesrv=master.namesrv,
                    )
                )
                for master in (pair.master, official)
            )
            assert ours.split("#")[0] == theirs.split("#")[0], command
