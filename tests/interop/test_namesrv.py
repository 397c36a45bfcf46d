"""Official brokers and the official admin tool with our name server, beside the official one.

A broker registers with both. Then mqadmin sends the same requests to each, and prints the same.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from interop import java_cluster
from interop.conftest import StartOfficial
from interop.java_cluster import JavaClient, JavaCluster
from interop.java_oracle import Oracle
from reput import config
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.server import NameServer
from reput.remoting.time_slices import run_whole

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

VERSIONS = pytest.mark.parametrize("version", java_cluster.broker_versions())
START_S = 60
# Allowed differences: addresses of name servers, loads and times.
ADDRESS = re.compile(r"127\.0\.0\.1:\d+(?=[\]=])")
CLUSTER_LINE = re.compile(r"^(\S+ +\S+ +\d+ +127\.0\.0\.1:\d+ +V\S+)", re.MULTILINE)


@dataclass
class Both:
    """A broker and two name servers: ours, and Java's."""

    ours: NameServer
    broker: JavaCluster

    @property
    def java_address(self) -> str:
        return self.broker.namesrv

    @property
    def our_address(self) -> str:
        return f"127.0.0.1:{self.ours.port}"

    async def prints(self, java: JavaClient, *arguments: str) -> str:
        """Assert that mqadmin prints the same with both name servers; return the output with ours.

        The order of lines may differ: Java's lists of topics are hash sets.
        """
        outputs = [
            ADDRESS.sub("NAMESRV", await admin(java, *arguments, namesrv=address))
            for address in (self.our_address, self.java_address)
        ]
        # The depth of a stack trace depends on the number of earlier calls in Java.
        lines = [[line for line in text.splitlines() if line[:4] != "\tat "] for text in outputs]
        assert sorted(lines[0]) == sorted(lines[1])
        return outputs[0]


async def admin(java: JavaClient, *arguments: str, namesrv: str) -> str:
    return await asyncio.to_thread(java.mqadmin, *arguments, namesrv=namesrv)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; Java processes act asynchronously."""
    deadline = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < deadline, f"condition not met in {START_S} s"
        await asyncio.sleep(0.05)


def settings(folder: Path) -> NamesrvConfig:
    return NamesrvConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        kv_config_path=str(folder / "kvConfig.json"),
        config_store_path=str(folder / "namesrv.properties"),
    )


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[NameServer]:
    async with NameServer(settings(tmp_path)) as running:
        yield running


@pytest.fixture(params=java_cluster.broker_versions())
async def both(
    request: pytest.FixtureRequest, ours: NameServer, start_official: StartOfficial
) -> Both:
    address = f"127.0.0.1:{ours.port}"
    broker = await asyncio.to_thread(start_official, request.param, also=(address,))
    await until(lambda: "TBW102" in run_whole(ours.routes.topics()))
    return Both(ours, broker)


async def test_mqadmin_prints_the_same_with_both_name_servers(
    both: Both, java_client: JavaClient
) -> None:
    java, broker = java_client, both.broker
    listed = await both.prints(java, "topicList")
    assert "TBW102" in listed
    assert "TBW102" in await both.prints(java, "topicList", "-c")
    assert '"broker-a"' in await both.prints(java, "topicRoute", "-t", "TBW102")
    assert "DefaultCluster" in await both.prints(java, "topicClusterList", "-t", "TBW102")

    async def clusters(address: str) -> list[str]:
        return CLUSTER_LINE.findall(await admin(java, "clusterList", namesrv=address))

    async with asyncio.timeout(60):
        while not await clusters(both.java_address):  # before its first sample a broker fails
            await asyncio.sleep(0.1)
    assert await clusters(both.our_address) == await clusters(both.java_address)

    # A topic made on the broker reaches both; an ordered one sets its order configuration in both.
    made = ("-t", "Ordered", "-b", broker.address, "-o", "true", "-r", "3", "-w", "3")
    for address in (both.our_address, both.java_address):
        assert "success" in await admin(java, "updateTopic", *made, namesrv=address)
    assert '"readQueueNums":3' in await both.prints(java, "topicRoute", "-t", "Ordered")

    # Write permission.
    wiped = await both.prints(java, "wipeWritePerm", "-b", "broker-a")
    assert re.search(r"OK, [1-9]\d*", wiped)
    assert '"perm":4' in await both.prints(java, "topicRoute", "-t", "Ordered")
    if "4.5.2" not in (java.version, broker.version):  # neither tools nor name server support it
        added = await both.prints(java, "addWritePerm", "-b", "broker-a")
        assert re.search(r"OK, [1-9]\d*", added)
        assert '"perm":6' in await both.prints(java, "topicRoute", "-t", "Ordered")

    # Deletion.
    assert "success" in await admin(
        java, "deleteTopic", "-c", "DefaultCluster", "-t", "Ordered", namesrv=both.our_address
    )
    assert "No topic route info" in await admin(
        java, "topicRoute", "-t", "Ordered", namesrv=both.our_address
    )


async def test_kv_configuration_and_settings_are_changed(
    both: Both, java_client: JavaClient, tmp_path: Path
) -> None:
    java = java_client
    put = ("-s", "NS", "-k", "key", "-v", "value with spaces")
    assert "success" in await both.prints(java, "updateKvConfig", *put)
    assert "value with spaces" in (tmp_path / "kvConfig.json").read_text()
    assert "success" in await both.prints(java, "deleteKvConfig", "-s", "NS", "-k", "key")
    assert "value with spaces" not in (tmp_path / "kvConfig.json").read_text()

    changed = ("-k", "orderMessageEnable", "-v", "true")
    assert "success" in await both.prints(java, "updateNamesrvConfig", *changed)
    assert "orderMessageEnable=true" in (tmp_path / "namesrv.properties").read_text()
    fixed = ("-k", "kvConfigPath", "-v", "/x")
    lets_anyone = both.broker.version == "4.5.2"  # its name server would write there
    for address in (both.our_address, *(() if lets_anyone else (both.java_address,))):
        refused = await admin(java, "updateNamesrvConfig", *fixed, namesrv=address)
        assert "CODE: 16" in refused
        assert "Can not update config" in refused

    shown = []
    for address in (both.our_address, both.java_address):
        text = await admin(java, "getNamesrvConfig", namesrv=address)
        shown.append(dict(re.findall(r"^(\w+) += +(.*?)\s*$", text, re.MULTILINE)))
    common = shown[0].keys() & shown[1].keys()
    assert {"orderMessageEnable", "serverChannelMaxIdleTimeSeconds"} <= common
    differing = {key for key in common if shown[0][key] != shown[1][key]}
    files_and_ports = {"configStorePath", "kvConfigPath", "listenPort", "rocketmqHome"}
    assert differing <= files_and_ports | {"bindAddress"}


@VERSIONS
@pytest.mark.parametrize("is_compressed", [False, True])
async def test_a_broker_registers_and_disappears(
    ours: NameServer,
    start_official: StartOfficial,
    tmp_path: Path,
    version: str,
    is_compressed: bool,
) -> None:
    address = f"127.0.0.1:{ours.port}"
    more = {"compressedRegister": is_compressed}
    broker = await asyncio.to_thread(
        JavaCluster, version, tmp_path / "broker", more, namesrv=address
    )
    try:
        assert "TBW102" in run_whole(ours.routes.topics())
        route = run_whole(ours.routes.route("TBW102"))
        assert route is not None
        assert route.broker_datas[0].broker_addrs == {0: broker.address}
        await asyncio.to_thread(broker.stop_broker)
        await until(lambda: run_whole(ours.routes.topics()) == [])
        assert ours.routes.clusters() == {}
        await asyncio.to_thread(broker.start)
        assert "TBW102" in run_whole(ours.routes.topics())
        await asyncio.to_thread(broker.kill_broker)
        await until(lambda: run_whole(ours.routes.topics()) == [])
    finally:
        await asyncio.to_thread(broker.kill)


async def test_every_setting_of_java_is_accepted(table_oracle: Oracle) -> None:
    """Our name server accepts all settings of Java's, with the same defaults."""
    package = "org.apache.rocketmq"
    common = f"{package}.common.namesrv.NamesrvConfig"
    netty = f"{package}.remoting.netty.Netty"
    java: dict[str, str] = {}
    names = [common, f"{netty}ServerConfig"]
    if not table_oracle.is_4:
        names.insert(0, f"{netty}ClientConfig")
    for name in names:
        java |= table_oracle.ask_one("settings", name, "")
    java["listenPort"] = "9876"  # set by NamesrvStartup
    files = {"kvConfigPath", "configStorePath", "rocketmqHome"}
    settings = config.Settings({key: value for key, value in java.items() if key not in files})
    assert settings.make(NamesrvConfig) == NamesrvConfig()
    assert settings.unknown() == ()
