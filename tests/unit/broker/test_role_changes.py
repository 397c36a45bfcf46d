"""Changes of the role at run time, and the guard against a second master."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import world
from ports import free_port, free_port_of_broker
from reput.broker import assembly, closing
from reput.broker.master_guard import AnotherMaster
from reput.broker.monitoring.current_meter import CurrentMeter
from reput.broker.registration import Registration
from reput.broker.replication.replication import Replication
from reput.broker.server import Broker
from reput.broker.settings.config import load
from reput.broker.tables.saved_tables import SavedTables
from reput.clock import SystemClock
from reput.errors import InvalidOption, WriteFailed
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.namesrv.server import NameServer
from reput.remoting.client import RemotingClient
from reput.store.config import BrokerRole
from reput.store.log.replica_acks import Replica
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage
from world import GUARD_S, broker_config, store_config, until


@pytest_asyncio.fixture
async def name_server(tmp_path: Path) -> AsyncIterator[NameServer]:
    async with world.name_server(tmp_path) as started:
        yield started


def make(
    folder: Path,
    name_server: NameServer,
    role: str,
    broker_id: int = 0,
    conf: Path | None = None,
    port: int = 0,
    **settings: Any,
) -> Broker:
    return Broker(
        broker_config(
            namesrv_addr=world.address_of(name_server),
            broker_id=broker_id,
            broker_ip2="127.0.0.1",
            listen_port=port,
        ),
        store_config(
            folder,
            broker_role=BrokerRole(role),
            mapped_file_size_commit_log=1 << 20,
            max_message_size=1 << 16,
            ha_send_heartbeat_interval=200,
            ha_housekeeping_interval=2_000,
            **settings,
        ),
        clock=SystemClock(),
        config_path=None if conf is None else str(conf),
    )


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


async def test_a_promotion_without_a_port_for_slaves_changes_nothing(
    tmp_path: Path, name_server: NameServer
) -> None:
    conf = tmp_path / "broker.conf"
    text = "brokerRole=SLAVE\nbrokerId=1\n"
    conf.write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        slave = make(tmp_path / "s", name_server, "SLAVE", 1, conf, ha_listen_port=port)
        await slave.start()
        store = slave.store
        async with RemotingClient() as client, asyncio.timeout(GUARD_S):
            reply = await client.invoke(
                slave.identity.address,
                Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerRole=ASYNC_MASTER\n"),
                int(GUARD_S * 1000),
            )
        assert reply.code != ResponseCode.SUCCESS
        assert reply.remark is not None
        assert f"option 'haListenPort' is {port}" in reply.remark
        assert "in use" in reply.remark
        assert slave.is_open
        assert slave.store is store
        assert not slave.identity.is_master
        assert conf.read_text() == text
    await slave.change_role(BrokerRole.ASYNC_MASTER, 0)
    assert slave.parts.replication.slave_port.port == port
    assert put(slave, 1) == [0]
    await slave.stop()


async def test_the_port_for_slaves_is_free_again_if_the_promotion_is_not_written(
    tmp_path: Path, name_server: NameServer
) -> None:
    port = free_port()
    conf = tmp_path / "missing" / "broker.conf"
    async with make(tmp_path / "s", name_server, "SLAVE", 1, conf, ha_listen_port=port) as slave:
        with pytest.raises(InvalidOption, match="configuration file"):
            await slave.change_role(BrokerRole.ASYNC_MASTER, 0)
        assert not slave.identity.is_master
        assert slave.is_open
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_a_forced_promotion_counts_once(tmp_path: Path, name_server: NameServer) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerRole=SLAVE\nbrokerId=1\n")
    async with make(tmp_path / "m", name_server, "ASYNC_MASTER") as master:
        await master.parts.registration.register()
        async with make(tmp_path / "s", name_server, "SLAVE", 1, conf) as slave:
            changes = {"brokerRole": "ASYNC_MASTER", "brokerId": "0"}
            with pytest.raises(AnotherMaster):
                await slave.change_settings(changes)
            await slave.change_settings({**changes, "haForceMaster": "true"})
            assert slave._change_task is not None
            await slave._change_task
            assert slave.identity.is_master
        assert conf.read_text() == "brokerRole=ASYNC_MASTER\nbrokerId=0\n"
        await master.parts.registration.register()  # the two have overwritten each other
        with pytest.raises(AnotherMaster):
            await make(tmp_path / "s", name_server, "ASYNC_MASTER").start()
        settings = {"ha_force_master": True}
        async with make(tmp_path / "s", name_server, "ASYNC_MASTER", **settings) as forced:
            assert forced.identity.is_master


async def test_a_dead_master_does_not_prevent_a_start(
    tmp_path: Path, name_server: NameServer
) -> None:
    """Its address stays listed for two minutes."""
    first = make(tmp_path / "m", name_server, "ASYNC_MASTER")
    await first.start()
    await first.parts.registration.register()
    listed = addresses(name_server)
    for port in first._servers:  # as if it was killed: it does not unregister
        await port.stop()
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


# --- failures half-way ----------------------------------------------------------------------


async def fails(*_: object, **__: object) -> None:
    raise WriteFailed("table", "the disk is full")


def fails_at_once(*_: object, **__: object) -> None:
    raise WriteFailed("table", "the disk is full")


@pytest.mark.parametrize(
    ("owner", "name", "failing"),
    [
        (SavedTables, "save_all", fails_at_once),
        (Registration, "stop", fails),
        (MessageStore, "close", fails_at_once),
        (MessageStore, "open", fails_at_once),
        (assembly, "assemble", fails_at_once),
        (Broker, "_listen", fails),
        (Replication, "start", fails),
    ],
)
async def test_a_broker_that_cannot_reopen_its_store_is_closed(
    tmp_path: Path,
    name_server: NameServer,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    failing: Callable[..., object],
) -> None:
    # No ephemeral ports: another test would get them when they are closed.
    port = free_port_of_broker()
    broker = make(tmp_path / "m", name_server, "ASYNC_MASTER", port=port)
    await broker.start()
    put(broker, 3)
    meter = CurrentMeter(broker)
    ha_port = broker.parts.replication.slave_port.port
    monkeypatch.setattr(owner, name, failing)
    async with asyncio.timeout(GUARD_S):
        with pytest.raises(WriteFailed, match="the disk is full"):
            await broker.change_role(BrokerRole.SLAVE, 1)
        await broker.ended.wait()
    assert not broker.is_open
    health = await meter.check_health()
    assert health.problems == (f"the store could not be reopened: {broker.failure}",)
    assert broker.store.refusal == "the store is closed"
    for closed in (port, ha_port):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", closed)
    monkeypatch.undo()
    await broker.stop()
    # The folder is free, and has everything.
    async with make(tmp_path / "m", name_server, "SLAVE", 1) as again:
        assert again.store.max_offset("T", 0) == 3


async def test_a_role_changes_without_name_servers(tmp_path: Path, name_server: NameServer) -> None:
    async with make(tmp_path / "s", name_server, "SLAVE", 1) as slave:
        await name_server.stop()
        async with asyncio.timeout(GUARD_S):
            await slave.change_role(BrokerRole.ASYNC_MASTER, 0)
        assert slave.failure is None
        assert put(slave, 1) == [0]


async def test_a_role_that_changes_while_the_store_is_reopened_is_taken_after_it(
    tmp_path: Path, name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make(tmp_path / "m", name_server, "ASYNC_MASTER") as broker:
        begin = Broker._begin

        async def begin_and_change(self: Broker) -> None:
            monkeypatch.setattr(Broker, "_begin", begin)
            await begin(self)
            await self.change_settings({"brokerRole": "SLAVE", "brokerId": "2"})

        monkeypatch.setattr(Broker, "_begin", begin_and_change)
        await broker.change_role(BrokerRole.SLAVE, 1)
        assert broker.settings.broker.broker_id == 2
        await broker.parts.registration.register()
        assert addresses(name_server) == {2: broker.identity.address}


# --- held replies ---------------------------------------------------------------------------


async def test_held_replies_have_their_real_status_when_a_master_is_demoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java 5.3.3 answers 12, FLUSH_SLAVE_TIMEOUT, for what no slave has acknowledged in time."""
    monkeypatch.setattr(closing, "LAST_ACKS_MS", 50)
    settings = {"broker_role": BrokerRole.SYNC_MASTER, "slave_timeout": 60_000}
    async with world.broker(tmp_path, store=settings) as subject:
        store, clock = subject.broker.store, subject.broker.clock
        slave = Replica("192.0.2.1:1", 0, reported_ms=clock.monotonic_ms())
        store.replicas.add(slave)
        sends = [asyncio.create_task(subject.send("T", b"%d" % count)) for count in range(5)]
        await until(lambda: len(subject.parts.pending_replies) == 5)
        third = store.queues.find("T", 0)
        assert third is not None
        unit = third.unit(2)
        assert unit is not None
        slave.acked_offset = unit.physical_offset + unit.size
        await subject.broker.change_role(BrokerRole.SLAVE, 1)
        codes = [(await send).code for send in sends]
        assert codes == [ResponseCode.SUCCESS] * 3 + [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 2
        assert subject.broker.store.max_offset("T", 0) == 5


def test_a_role_and_its_id_belong_together() -> None:
    assert load({"brokerRole": "SLAVE", "brokerId": "3"}).broker.broker_id == 3
    with pytest.raises(InvalidOption, match="brokerId"):
        load({"brokerRole": "SLAVE"})
    loaded = load({"brokerRole": "SYNC_MASTER", "brokerId": "3"})
    assert loaded.broker.broker_id == 0
    assert loaded.warnings == (
        "brokerId=3 has no effect: brokerRole is SYNC_MASTER, and a master has id 0",
    )
