"""A name server on a port: connections that open and close, and timeouts."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from reput.clock import ManualClock
from reput.errors import InvalidOption, RemotingError
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.server import NameServer
from reput.remoting.client import RemotingClient
from reput.remoting.time_slices import run_whole
from waiting import until

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


async def test_a_silent_broker_is_removed_and_its_connection_closed(
    server: NameServer, clock: ManualClock
) -> None:
    address = f"127.0.0.1:{server.port}"
    async with RemotingClient() as client:
        await client.invoke(address, registration())
        clock.set(0)
        clock.advance(120_000)
        assert not server.expire()
        assert run_whole(server.routes.topics())
        clock.advance(1)
        assert server.expire()
        assert run_whole(server.routes.topics()) == []
        await until(lambda: client.channel(address) is None)


async def test_the_event_loop_expires_silent_brokers(tmp_path: Path, clock: ManualClock) -> None:
    config = NamesrvConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        scan_not_active_broker_interval=1,
        kv_config_path=str(tmp_path / "kvConfig.json"),
    )
    async with NameServer(config, clock=clock) as server, RemotingClient() as client:
        await client.invoke(f"127.0.0.1:{server.port}", registration())
        clock.advance(120_001)
        await until(lambda: run_whole(server.routes.topics()) == [])


async def test_several_servers_in_one_process(tmp_path: Path) -> None:
    first, second = (NameServer(settings(tmp_path / name)) for name in "ab")
    async with first, second, RemotingClient() as client:
        assert first.port != second.port
        await client.invoke(f"127.0.0.1:{first.port}", registration())
        assert run_whole(first.routes.topics())
        assert not run_whole(second.routes.topics())


async def test_stop_twice_and_start_again(tmp_path: Path) -> None:
    server = NameServer(settings(tmp_path))
    await server.stop()
    await server.start()
    address = f"127.0.0.1:{server.port}"
    async with RemotingClient() as client:
        assert (await client.invoke(address, registration())).code == ResponseCode.SUCCESS
    await server.stop()
    await server.stop()
    async with RemotingClient() as client:
        with pytest.raises(RemotingError):
            await client.invoke(address, registration())


async def test_an_unreadable_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text("{")
    with pytest.raises(InvalidOption, match="kvConfigPath"):
        NameServer(settings(tmp_path))


def large_registration(count: int, address: str = ADDRESS) -> Command:
    topics = {
        f"topic-{i:06}": {
            "order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG",
            "topicName": f"topic-{i:06}", "topicSysFlag": 0, "writeQueueNums": 8,
        }
        for i in range(count)
    }  # fmt: skip
    table = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": topics}
    body = json.dumps({"topicConfigSerializeWrapper": table}, separators=(",", ":")).encode()
    fields = {"brokerName": "large", "brokerAddr": address, "clusterName": "C", "brokerId": "0"}
    return Command(RequestCode.REGISTER_BROKER, ext_fields=fields, body=body, version=500)


@pytest.mark.soak
async def test_others_are_served_while_a_broker_with_100_000_topics_comes_and_goes(
    server: NameServer,
) -> None:
    address, count = f"127.0.0.1:{server.port}", 100_000
    answered = 0
    request = large_registration(count)

    async def ask_on(client: RemotingClient) -> None:
        nonlocal answered
        while True:
            route_request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "T"})
            assert (await client.invoke(address, route_request, 60_000)).code == 17
            answered += 1

    async with RemotingClient() as other:
        asking = asyncio.create_task(ask_on(other))
        async with RemotingClient() as broker:
            reply = await broker.invoke(address, request, 60_000)
            assert reply.code == ResponseCode.SUCCESS, reply.remark
            assert server.routes.topic_count == count
            # Each slice of 5 ms lets the other client be served.
            assert answered >= 20
            listed = await broker.invoke(
                address, Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), 60_000
            )
            assert len(json.loads(listed.body)["topicList"]) == count
        answered = 0
        await until(lambda: server.routes.topic_count == 0)
        assert answered >= 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
