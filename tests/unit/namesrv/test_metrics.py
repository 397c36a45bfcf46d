"""/metrics and /health of a name server, over HTTP."""

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from reput import limits
from reput.clock import ManualClock
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.namesrv import health
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.metrics import NameServerMeter
from reput.namesrv.server import NameServer
from reput.remoting.client import RemotingClient
from reput.remoting.metrics_server import MetricsServer

SAMPLE = re.compile(r"^([a-z_]+)(\{[^}]*\})? (\S+)$", re.MULTILINE)
PLAIN = Path(__file__).parents[2] / "data" / "remoting" / "register_4.9.7_plain.json"


class Running:
    """A name server, the listener of its metrics, and a client."""

    def __init__(self, server: NameServer, client: RemotingClient, clock: ManualClock) -> None:
        self.server = server
        self.client = client
        self.clock = clock
        self.http = MetricsServer(NameServerMeter(server), refusals=server.refusals)

    async def ask(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> int:
        request = Command(code, ext_fields=fields, body=body)
        reply = await self.client.invoke(f"127.0.0.1:{self.server.port}", request, 30_000)
        return reply.code

    async def register(self, address: str) -> None:
        fields = {
            "brokerName": "broker-a", "brokerAddr": address, "clusterName": "C", "brokerId": "0",
        }  # fmt: skip
        assert await self.ask(RequestCode.REGISTER_BROKER, fields, PLAIN.read_bytes()) == 0

    async def get(self, path: str) -> tuple[int, str]:
        return await asyncio.to_thread(self._get, path)

    def _get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.http.port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    async def samples(self) -> dict[str, float]:
        status, text = await self.get("/metrics")
        assert status == 200, text
        return {name + labels: float(value) for name, labels, value in SAMPLE.findall(text)}


@pytest_asyncio.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    clock = ManualClock(1_700_000_000_000)
    config = NamesrvConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        kv_config_path=str(tmp_path / "kvConfig.json"),
        config_store_path=str(tmp_path / "namesrv.properties"),
    )
    async with NameServer(config, clock=clock) as server, RemotingClient() as client:
        name_server = Running(server, client, clock)
        name_server.http.start()
        yield name_server
        await name_server.http.stop()


async def test_registrations_are_counted(running: Running) -> None:
    await running.register("h:1")
    await running.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"})
    samples = await running.samples()
    assert samples["reput_healthy"] == 1
    assert samples["reput_namesrv_brokers"] == 1
    assert samples["reput_namesrv_addresses"] == 1
    assert samples["reput_namesrv_topics"] == 3
    assert samples["reput_namesrv_takeovers_total"] == 0
    assert samples["reput_namesrv_kv_keys"] == 2
    assert samples["reput_namesrv_kv_bytes"] > 0
    assert samples["reput_connections"] == 1


async def test_refusals_are_counted(running: Running) -> None:
    samples = await running.samples()
    for limit in limits.declared():
        assert samples[f'reput_limit_refusals_total{{limit="{limit.name}"}}'] == 0
    text = b"a" * (limits.SETTINGS_BYTES.maximum + 1)
    assert await running.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=text) == 1
    samples = await running.samples()
    assert samples['reput_limit_refusals_total{limit="settings_bytes"}'] == 1
    _, text_of_health = await running.get("/health")
    assert json.loads(text_of_health)["refusals"] == {"settings_bytes": 1}


async def test_two_brokers_that_claim_the_same_id_cause_a_warning(running: Running) -> None:
    await running.register("h:1")
    await running.register("h:2")
    status, text = await running.get("/health")
    (warning,) = json.loads(text)["warnings"]
    assert status == 200
    assert warning.startswith(
        "two addresses register as broker 'broker-a' with id 0: 'h:1' is registered"
    )
    assert (await running.samples())["reput_namesrv_takeovers_total"] == 1
    running.clock.advance(health.TAKEOVER_SHOWN_MS + 1)
    running.server.expired_ms = running.clock.monotonic_ms()
    assert health.check(running.server).warnings == ()


async def test_problems_make_health_fail(running: Running, tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").mkdir()
    fields = {"namespace": "n", "key": "k", "value": "v"}
    assert await running.ask(RequestCode.PUT_KV_CONFIG, fields) == 1
    status, text = await running.get("/health")
    assert status == 503
    (problem,) = json.loads(text)["problems"]
    assert problem.startswith("shared settings cannot be saved: ")
    (tmp_path / "kvConfig.json").rmdir()
    assert await running.ask(RequestCode.PUT_KV_CONFIG, fields) == 0
    assert health.check(running.server).is_well
    running.clock.advance(20_000)
    (problem,) = health.check(running.server).problems
    assert problem == "silent brokers have not been checked for 20000 ms"
    running.server.expiry_failure = "ValueError: no"
    (problem,) = health.check(running.server).problems
    assert problem == "removing silent brokers failed: ValueError: no"


async def test_an_unwritable_file_is_logged_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").write_text("no folder")
    path = f"{tmp_path}/home/namesrv/kvConfig.json"
    config = NamesrvConfig(
        bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"),
        config_store_path=path,
    )  # fmt: skip
    async with NameServer(config) as server:
        (warning,) = health.check(server).warnings
    assert warning == (
        f"configStorePath={path} cannot be written, so changes of settings will be refused: "
        f"{tmp_path}/home is not a folder; set configStorePath in namesrv.conf"
    )
    assert warning in caplog.messages
