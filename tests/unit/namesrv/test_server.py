"""A name server on a port: connections that come and go, and time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from reput.clock import ManualClock
from reput.errors import InvalidOption
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.server import NameServer
from reput.remoting.client import RemotingClient

PLAIN = Path(__file__).parents[2] / "data" / "remoting" / "register_4.9.7_plain.json"
ADDRESS = "10.0.0.1:10911"


def settings(folder: Path) -> NamesrvConfig:
    return NamesrvConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        kv_config_path=str(folder / "kvConfig.json"),
        config_store_path=str(folder / "namesrv.properties"),
    )


def registration() -> Command:
    fields = {"brokerName": "broker-a", "brokerAddr": ADDRESS, "clusterName": "C", "brokerId": "0"}
    return Command(RequestCode.REGISTER_BROKER, ext_fields=fields, body=PLAIN.read_bytes())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
async def server(tmp_path: Path, clock: ManualClock) -> AsyncIterator[NameServer]:
    async with NameServer(settings(tmp_path), clock=clock) as running:
        yield running


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0)


async def test_a_broker_that_closes_its_connection_is_gone(server: NameServer) -> None:
    async with RemotingClient() as client:
        reply = await client.invoke(f"127.0.0.1:{server.port}", registration())
        assert reply.code == ResponseCode.SUCCESS
        assert server.routes.topics() == ["%RETRY%group", "Ordered", "TopicA"]
    await until(lambda: server.routes.topics() == [])


async def test_a_silent_broker_is_gone_and_its_connection_closed(
    server: NameServer, clock: ManualClock
) -> None:
    address = f"127.0.0.1:{server.port}"
    async with RemotingClient() as client:
        await client.invoke(address, registration())
        clock.set(0)
        clock.advance(120_000)
        assert not server.expire()
        assert server.routes.topics()
        clock.advance(1)
        assert server.expire()
        assert server.routes.topics() == []
        await until(lambda: client.channel(address) is None)


async def test_the_loop_looks_for_silent_brokers(tmp_path: Path, clock: ManualClock) -> None:
    config = NamesrvConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        scan_not_active_broker_interval=1,
        kv_config_path=str(tmp_path / "kvConfig.json"),
    )
    async with NameServer(config, clock=clock) as server, RemotingClient() as client:
        await client.invoke(f"127.0.0.1:{server.port}", registration())
        clock.advance(120_001)
        await until(lambda: server.routes.topics() == [])


async def test_an_unknown_code_is_answered(server: NameServer) -> None:
    async with RemotingClient() as client:
        reply = await client.invoke(f"127.0.0.1:{server.port}", Command(9999))
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert reply.remark == "request type 9999 not supported"


async def test_bad_requests_get_a_reason(server: NameServer) -> None:
    async with RemotingClient() as client:
        address = f"127.0.0.1:{server.port}"
        reply = await client.invoke(address, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC))
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "topic" in (reply.remark or "")
        forbidden = Command(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"kvConfigPath=x")
        reply = await client.invoke(address, forbidden)
        assert reply.code == ResponseCode.NO_PERMISSION


async def test_several_in_one_process(tmp_path: Path) -> None:
    first, second = (NameServer(settings(tmp_path / name)) for name in "ab")
    async with first, second, RemotingClient() as client:
        assert first.port != second.port
        await client.invoke(f"127.0.0.1:{first.port}", registration())
        assert first.routes.topics()
        assert not second.routes.topics()


async def test_stopping_twice_and_starting_again(tmp_path: Path) -> None:
    server = NameServer(settings(tmp_path))
    await server.stop()
    await server.start()
    await server.stop()
    await server.stop()


async def test_an_unreadable_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text("{")
    with pytest.raises(InvalidOption, match="kvConfigPath"):
        NameServer(settings(tmp_path))
