"""Our slave of the official master: the same log, the same queues, and the refusals."""

import asyncio
import contextlib
import itertools
import random
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interop import java_cluster
from interop.java_cluster import SMALL_FILES, JavaCluster
from interop.pairs import assert_same_logs, assert_same_stores
from reput.errors import RemotingError
from reput.format import bodies, headers, message as record
from reput.format.bodies import HaRuntimeInfo, KvTable
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import SendMessageHeader, ViewMessageHeader
from reput.remoting.client import RemotingClient
from reput_cluster import ReputCluster

pytestmark = [
    pytest.mark.rotating,
    pytest.mark.interop,
    pytest.mark.slow,
]

FILE_SIZE = 1 << 20
GUARD_S = 180.0
PAUSE_S = 0.05
TOPIC = "T"
SENDS_AT_ONCE = 64
TIMEOUT_MS = 20_000
TINY_FILES = {"mappedFileSizeCommitLog": FILE_SIZE, "maxMessageSize": FILE_SIZE // 4}


class Client:
    """Sends plain requests to brokers."""

    def __init__(self, remoting: RemotingClient) -> None:
        self._remoting = remoting
        self._ids = itertools.count()

    async def ask(self, address: str, request: Command) -> Command:
        return await self._remoting.invoke(address, request, TIMEOUT_MS)

    async def send(self, address: str, body: bytes, topic: str = TOPIC) -> None:
        number = next(self._ids)
        header = SendMessageHeader(
            producer_group="producers",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=number % 4,
            sys_flag=0,
            born_timestamp=1_700_000_000_000,
            flag=0,
            properties=f"KEYS\1key{number}\2TAGS\1tag{number % 7}",
        )
        request = Command(
            RequestCode.SEND_MESSAGE_V2, ext_fields=headers.encode_v2(header), body=body
        )
        reply = await self.ask(address, request)
        # Without a slave the message is stored nevertheless.
        assert reply.code in (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE), reply.remark

    async def send_all(self, address: str, all_bodies: Iterator[bytes]) -> None:
        """Send many at the same time."""
        while some := list(itertools.islice(all_bodies, SENDS_AT_ONCE)):
            await asyncio.gather(*(self.send(address, body) for body in some))

    async def table(self, address: str) -> dict[str, str]:
        while True:
            reply = await self.ask(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
            if reply.code == ResponseCode.SUCCESS:
                break
            # In its first second 4.x has no sample of its rates, and throws this.
            assert "NoSuchElementException" in (reply.remark or "")
            await asyncio.sleep(PAUSE_S)
        return bodies.decode(KvTable, reply.body).table

    async def end(self, address: str) -> int:
        return int((await self.table(address))["commitLogMaxOffset"])

    async def slave_status(self, address: str) -> HaRuntimeInfo:
        reply = await self.ask(address, Command(RequestCode.GET_BROKER_HA_STATUS))
        return bodies.decode(HaRuntimeInfo, reply.body)

    async def body_at(self, address: str, physical_offset: int) -> bytes | None:
        """Return the body of a message; None if there is none, or the broker reopens its store."""
        fields = headers.encode(ViewMessageHeader(offset=physical_offset))
        request = Command(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields=fields)
        try:
            reply = await self.ask(address, request)
        except RemotingError:
            return None
        return record.decode(reply.body).body if reply.code == ResponseCode.SUCCESS else None

    async def until_equal(self, master: str, slave: str) -> int:
        """Wait until a slave has and has dispatched the log of its master; return its end."""
        end = await self.end(master)
        async with asyncio.timeout(GUARD_S):
            while True:
                table = await self.table(slave)
                assert int(table["commitLogMaxOffset"]) <= end
                if int(table["commitLogMaxOffset"]) == end and table["dispatchBehindBytes"] == "0":
                    return end
                await asyncio.sleep(PAUSE_S)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with RemotingClient() as remoting:
        yield Client(remoting)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(params=java_cluster.broker_versions())
def master_of(
    request: pytest.FixtureRequest, stack: contextlib.ExitStack, tmp_path: Path
) -> Callable[..., JavaCluster]:
    """Provide a function that starts the official master of a version."""

    def start(**settings: Any) -> JavaCluster:
        return stack.enter_context(JavaCluster(request.param, tmp_path / "master", settings))

    return start


@pytest.fixture
def slave_of(stack: contextlib.ExitStack, tmp_path: Path) -> Callable[..., ReputCluster]:
    """Provide a function that starts our slave."""

    def start(master: JavaCluster, **settings: Any) -> ReputCluster:
        settings = {"brokerId": 1, "brokerRole": "SLAVE", "brokerIP2": "127.0.0.1", **settings}
        slave = ReputCluster(tmp_path / "slave", settings, namesrv=master.namesrv)
        return stack.enter_context(slave)

    return start


def random_bodies(count: int, size_max: int, seed: int = 1) -> Iterator[bytes]:
    source = random.Random(seed)
    for _ in range(count):
        yield source.randbytes(int(size_max ** source.random()))


def expire(store: Path, count: int) -> None:
    """Delete the first files of a log, as after their time; Java does it only once an hour."""
    for path in sorted((store / "commitlog").iterdir())[:count]:
        path.unlink()


async def test_log_and_queues_are_those_of_the_master(
    master_of: Callable[..., JavaCluster], slave_of: Callable[..., ReputCluster], client: Client
) -> None:
    """1 B to 200 KiB, sent before and while the slave follows; 16 MiB files roll."""
    master = master_of()
    count = 5000
    await client.send_all(master.address, random_bodies(count, 200 * 1024))
    slave = await asyncio.to_thread(slave_of, master)
    await client.send_all(master.address, random_bodies(count, 200 * 1024, seed=2))
    await client.send(master.address, bytes(4 * 1024 * 1024 - 1024))
    end = await client.until_equal(master.address, slave.address)
    await asyncio.to_thread(slave.stop_broker)
    await asyncio.to_thread(master.stop_broker)
    file_size = int(SMALL_FILES["mappedFileSizeCommitLog"])
    assert assert_same_stores(master.store, slave.store, end) == -(-end // file_size)


async def test_a_restarted_slave_continues_and_finds_a_restarted_master(
    master_of: Callable[..., JavaCluster],
    slave_of: Callable[..., ReputCluster],
    client: Client,
) -> None:
    master = master_of(**TINY_FILES)
    slave = await asyncio.to_thread(slave_of, master, **TINY_FILES)
    for seed, end_slave in enumerate([slave.stop_broker, slave.kill_broker]):
        await client.send_all(master.address, random_bodies(300, FILE_SIZE // 8, seed))
        end = await client.until_equal(master.address, slave.address)
        await asyncio.to_thread(end_slave)
        await client.send_all(master.address, random_bodies(30, FILE_SIZE // 8, seed + 10))
        await asyncio.to_thread(slave.start)
        await client.until_equal(master.address, slave.address)
        assert f"from physical offset {end} on" in slave.log()
    await asyncio.to_thread(master.stop_broker)
    await asyncio.to_thread(master.start)
    await client.send_all(master.address, random_bodies(30, FILE_SIZE // 8, 50))
    end = await client.until_equal(master.address, slave.address)
    await asyncio.to_thread(slave.stop_broker)
    await asyncio.to_thread(master.stop_broker)
    assert_same_stores(master.store, slave.store, end)


@pytest.mark.parametrize("expired", [0, 2])
async def test_an_empty_slave_gets_the_whole_history(
    master_of: Callable[..., JavaCluster],
    slave_of: Callable[..., ReputCluster],
    client: Client,
    expired: int,
) -> None:
    """Java's own slave would begin at the last file."""
    master = master_of(**TINY_FILES)
    await client.send_all(master.address, random_bodies(600, FILE_SIZE // 8))
    if expired:
        await asyncio.to_thread(master.stop_broker)
        expire(master.store, expired)
        await asyncio.to_thread(master.start)
    begin = int((await client.table(master.address))["commitLogMinOffset"])
    assert begin == expired * FILE_SIZE
    slave = await asyncio.to_thread(slave_of, master, **TINY_FILES)
    end = await client.until_equal(master.address, slave.address)
    assert end - begin > 3 * FILE_SIZE
    await asyncio.to_thread(slave.stop_broker)
    await asyncio.to_thread(master.stop_broker)
    count = assert_same_logs(master.store, slave.store, end)
    assert count == -(-end // FILE_SIZE) - expired


async def until_logged(slave: ReputCluster, *words: str) -> str:
    """Wait until a line of the slave's log has some words; return it."""
    async with asyncio.timeout(GUARD_S):
        while True:
            for line in slave.log().splitlines():
                if all(word in line for word in words):
                    return line
            await asyncio.sleep(PAUSE_S)


async def test_a_slave_with_other_records_is_refused(
    master_of: Callable[..., JavaCluster], slave_of: Callable[..., ReputCluster], client: Client
) -> None:
    """The slave is ahead, and then has another last record."""
    master = master_of(**TINY_FILES)
    slave = await asyncio.to_thread(slave_of, master, **TINY_FILES)
    await client.send_all(master.address, random_bodies(20, 2000))
    await client.until_equal(master.address, slave.address)
    common = await client.end(master.address)
    await asyncio.to_thread(slave.stop_broker)
    await asyncio.to_thread(master.stop_broker)
    shutil.copytree(master.store, master.folder / "before")
    await asyncio.to_thread(master.start)
    await asyncio.to_thread(slave.start)
    await client.send(master.address, b"lost")
    ahead = await client.until_equal(master.address, slave.address)
    await asyncio.to_thread(slave.stop_broker)
    await asyncio.to_thread(master.stop_broker)
    # The master loses its last record, as in a power failure.
    shutil.rmtree(master.store)
    (master.folder / "before").rename(master.store)
    await asyncio.to_thread(master.start)
    await asyncio.to_thread(slave.start)
    await until_logged(slave, "ahead", str(ahead), str(common))
    status = await client.slave_status(slave.address)
    assert status.ha_client_runtime_info.max_offset == ahead

    await client.send(master.address, b"kept")
    assert await client.end(master.address) == ahead
    await asyncio.to_thread(slave.kill_broker)
    await asyncio.to_thread(slave.start)
    await until_logged(slave, "diverged", str(common))
    assert await client.body_at(master.address, common) == b"kept"
    assert await client.body_at(slave.address, common) == b"lost"

    # If its operator allows that, the slave cuts its log at that record, and keeps the bytes.
    await asyncio.to_thread(slave.stop_broker)
    slave = await asyncio.to_thread(slave_of, master, **TINY_FILES, haDivergedPolicy="truncate")
    async with asyncio.timeout(GUARD_S):
        while await client.body_at(slave.address, common) != b"kept":
            await asyncio.sleep(PAUSE_S)
    await client.send_all(master.address, random_bodies(20, 2000, seed=2))
    end = await client.until_equal(master.address, slave.address)
    await asyncio.to_thread(slave.stop_broker)
    await asyncio.to_thread(master.stop_broker)
    assert_same_stores(master.store, slave.store, end)
    (kept,) = (slave.store / "cut").iterdir()
    assert kept.name.startswith(f"{common:020}-")
    assert b"lost" in kept.read_bytes()


async def test_a_slave_whose_next_bytes_expired_is_refused(
    master_of: Callable[..., JavaCluster], slave_of: Callable[..., ReputCluster], client: Client
) -> None:
    """Java's slave would take heartbeats for ever, and look healthy."""
    master = master_of(**TINY_FILES)
    slave = await asyncio.to_thread(slave_of, master, **TINY_FILES)
    await client.send_all(master.address, random_bodies(20, 2000))
    end = await client.until_equal(master.address, slave.address)
    await asyncio.to_thread(slave.stop_broker)
    await client.send_all(master.address, random_bodies(600, FILE_SIZE // 8))
    await asyncio.to_thread(master.stop_broker)
    expire(master.store, 2)
    await asyncio.to_thread(master.start)
    await asyncio.to_thread(slave.start)
    await until_logged(slave, "too old", str(end), str(2 * FILE_SIZE))
    table = await client.table(slave.address)
    assert table["slaveState"] == "too old"
    assert str(2 * FILE_SIZE) in table["slaveReason"]
    status = await client.slave_status(slave.address)
    assert status.ha_client_runtime_info.max_offset == end
    assert int(table["slaveLagBytes"]) > 2 * FILE_SIZE


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mappedFileSizeCommitLog": 2 * FILE_SIZE}, (str(FILE_SIZE), str(2 * FILE_SIZE))),
        ({"brokerClusterName": "Other"}, ("Other", "DefaultCluster")),
    ],
)
async def test_another_master_is_refused(
    master_of: Callable[..., JavaCluster],
    slave_of: Callable[..., ReputCluster],
    client: Client,
    settings: dict[str, Any],
    words: tuple[str, ...],
) -> None:
    master = master_of(**TINY_FILES)
    await client.send(master.address, b"first")
    # The name server of 5.5.0 does not give the master of another cluster.
    given = {"haMasterAddress": f"127.0.0.1:{master.port + 1}"}
    slave = await asyncio.to_thread(slave_of, master, **{**TINY_FILES, **given, **settings})
    await until_logged(slave, "refused", *words)
    assert await client.end(slave.address) == 0
