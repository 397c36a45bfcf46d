"""Changes of the role at run time, and the guard against a second master."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from broker_subject import broker_config, store_config
from reput.broker.master_guard import AnotherMaster
from reput.broker.server import Broker
from reput.broker.settings.config import load
from reput.clock import SystemClock
from reput.errors import InvalidOption
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.server import NameServer
from reput.store.config import BrokerRole
from reput.store.incoming import IncomingMessage

GUARD_S = 30.0


@pytest_asyncio.fixture
async def name_server(tmp_path: Path) -> AsyncIterator[NameServer]:
    config = NamesrvConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        kv_config_path=str(tmp_path / "kv.json"),
        config_store_path=str(tmp_path / "namesrv.properties"),
    )
    async with NameServer(config) as server:
        yield server


def make(folder: Path, name_server: NameServer, role: str, broker_id: int = 0) -> Broker:
    return Broker(
        broker_config(
            namesrv_addr=f"127.0.0.1:{name_server.port}",
            broker_id=broker_id,
            broker_ip2="127.0.0.1",
        ),
        store_config(
            folder,
            broker_role=BrokerRole(role),
            mapped_file_size_commit_log=1 << 20,
            max_message_size=1 << 16,
            ha_send_heartbeat_interval=200,
            ha_housekeeping_interval=2_000,
        ),
        clock=SystemClock(),
    )


async def until(is_done: Callable[[], object]) -> None:
    async with asyncio.timeout(GUARD_S):
        while not is_done():
            await asyncio.sleep(0.01)


def put(broker: Broker, count: int) -> list[int]:
    """Put messages in queue 0 of topic T; return their queue offsets."""
    results = [broker.store.put(IncomingMessage("T", b"x" * 100, queue_id=0)) for _ in range(count)]
    broker.parts.replication.slave_port.pump()
    assert all(result.status.is_stored for result in results)
    return [result.queue_offset for result in results]


def addresses(name_server: NameServer) -> dict[int, str]:
    brokers = [broker for broker in name_server.parts.routes.brokers() if broker is not None]
    return {} if not brokers else dict(brokers[0].broker_addrs)


async def test_a_slave_that_is_promoted_continues_the_queues(
    tmp_path: Path, name_server: NameServer
) -> None:
    master = make(tmp_path / "m", name_server, "ASYNC_MASTER")
    await master.start()
    await master.parts.registration.register()
    async with make(tmp_path / "s", name_server, "SLAVE", 1) as slave:
        await slave.parts.registration.register()
        assert put(master, 100) == list(range(100))
        end = master.store.max_physical_offset
        await until(lambda: slave.store.max_physical_offset == end)
        port = slave.identity.port
        await master.stop()
        # As a copy of the master's table that is newer than the copy of its log.
        slave.parts.deliveries.consumer_offsets.put("T", "g", 0, 1_000)

        await slave.change_role(BrokerRole.ASYNC_MASTER, 0)

        assert slave.identity.port == port
        assert slave.store.max_offset("T", 0) == 100
        assert slave.parts.deliveries.consumer_offsets.get("T", "g", 0) == 100
        assert put(slave, 1) == [100]
        await slave.parts.registration.register()
        assert addresses(name_server) == {0: slave.identity.address}


async def test_no_slave_becomes_master_beside_a_living_one(
    tmp_path: Path, name_server: NameServer
) -> None:
    async with make(tmp_path / "m", name_server, "ASYNC_MASTER") as master:
        await master.parts.registration.register()
        async with make(tmp_path / "s", name_server, "SLAVE", 1) as slave:
            with pytest.raises(AnotherMaster, match=master.identity.address):
                await slave.change_role(BrokerRole.ASYNC_MASTER, 0)
            assert not slave.identity.is_master
            assert slave.failure is None
            with pytest.raises(InvalidOption, match="brokerId"):
                await slave.change_role(BrokerRole.SLAVE, 0)
        other = make(tmp_path / "o", name_server, "ASYNC_MASTER")
        with pytest.raises(AnotherMaster, match="haForceMaster=true"):
            await other.start()


async def test_a_dead_master_does_not_prevent_a_start(
    tmp_path: Path, name_server: NameServer
) -> None:
    """Its address stays listed for two minutes."""
    first = make(tmp_path / "m", name_server, "ASYNC_MASTER")
    await first.start()
    await first.parts.registration.register()
    listed = addresses(name_server)
    for server in first._servers:  # as if it was killed: it does not unregister
        await server.stop()
    async with make(tmp_path / "o", name_server, "ASYNC_MASTER") as second:
        assert second.identity.is_master
        assert addresses(name_server) == listed
    await first.stop()


async def test_a_master_that_is_demoted_refuses_messages_and_is_a_slave(
    tmp_path: Path, name_server: NameServer
) -> None:
    async with make(tmp_path / "m", name_server, "ASYNC_MASTER") as broker:
        await broker.parts.registration.register()
        put(broker, 3)
        await broker.change_role(BrokerRole.SLAVE, 2)
        assert "SLAVE" in broker.store.refusal
        assert broker.store.max_offset("T", 0) == 3
        await broker.parts.registration.register()
        assert addresses(name_server) == {2: broker.identity.address}


async def test_a_stop_during_a_change_ends_the_broker(
    tmp_path: Path, name_server: NameServer
) -> None:
    broker = make(tmp_path / "m", name_server, "ASYNC_MASTER")
    await broker.start()
    put(broker, 3)
    change = asyncio.create_task(broker.change_role(BrokerRole.SLAVE, 1))
    await until(lambda: broker.identity.is_stopping)
    await broker.stop()
    await change
    assert not broker._is_open
    async with make(tmp_path / "m", name_server, "SLAVE", 1) as again:
        assert again.store.max_offset("T", 0) == 3


async def test_the_log_is_cut_at_a_reopening(tmp_path: Path, name_server: NameServer) -> None:
    async with make(tmp_path / "s", name_server, "ASYNC_MASTER") as broker:
        put(broker, 10)
        queue = broker.store.queues.find("T", 0)
        assert queue is not None
        unit = queue.unit(7)
        assert unit is not None
        cut_at = unit.physical_offset
        await broker.reopen(cut_at)
        assert broker.failure is None
        assert broker.store.max_physical_offset == cut_at
        assert broker.store.max_offset("T", 0) == 7
        assert put(broker, 1) == [7]


def test_a_role_and_its_id_belong_together() -> None:
    assert load({"brokerRole": "SLAVE", "brokerId": "3"}).broker.broker_id == 3
    with pytest.raises(InvalidOption, match="brokerId"):
        load({"brokerRole": "SLAVE"})
    loaded = load({"brokerRole": "SYNC_MASTER", "brokerId": "3"})
    assert loaded.broker.broker_id == 0
    assert loaded.warnings == (
        "brokerId=3 has no effect: brokerRole is SYNC_MASTER, and a master has id 0",
    )
