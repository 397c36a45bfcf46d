"""Every panel of ``ops/grafana`` has series: a real Prometheus evaluates it over real brokers."""

import asyncio
import contextlib
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from interop.clusters import start_cluster
from interop.java_oracle import JavaUnavailable
from interop.record_metrics import VERSION, settings, traffic
from ports import free_port
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.metrics import NameServerMeter
from reput.namesrv.server import NameServer
from reput.remoting.metrics_server import MetricsServer
from scripts.monitoring_files import BOARDS, RULES_FILE

PROMETHEUS = shutil.which("prometheus")
GUARD_S = 120
SCRAPE_S = 1

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed"),
]


@contextlib.contextmanager
def running_prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    """Run Prometheus with our rules; yield the address of its API."""
    folder.mkdir()
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(RULES_FILE)],
        "scrape_configs": [{"job_name": "brokers", "static_configs": [{"targets": targets}]}],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stderr=log,
            stdout=log,
        )
        try:
            yield f"http://{address}/api/v1"
        finally:
            process.terminate()
            process.wait(60)


def asked(url: str, **query: str) -> Any:
    """Return the answer to a request to the API of Prometheus; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]
    except (ConnectionError, urllib.error.URLError) as error:
        if isinstance(error, urllib.error.HTTPError):
            raise AssertionError(f"{query}: {error.read().decode()}") from None
        return None


def panels_without_series(api: str, side: str) -> set[str]:
    """Return the panels for which Prometheus returns nothing, by board and title."""
    missing = set()
    for board in BOARDS.values():
        for panel in board.panels:
            for expression, _ in panel.queries:
                for variable in ("$cluster", "$broker", "$topic", "$group"):
                    expression = expression.replace(variable, ".*")
                expression = expression.replace("$__rate_interval", "30s")
                data = asked(f"{api}/query", query=expression)
                if not (data and data["result"]):
                    missing.add(f"{board.title}: {panel.title}")
    return missing


@contextlib.asynccontextmanager
async def measured_cluster(side: str, folder: Path) -> AsyncIterator[list[str]]:
    """Run a cluster with traffic; yield the addresses of its metrics."""
    port, own_port = free_port(), free_port()
    exported = settings(port)
    if side == "java":
        with start_cluster(
            VERSION, VERSION, folder, {**exported, "timerWheelEnable": True}
        ) as java:
            async with traffic(java.namesrv, java.address):
                yield [f"127.0.0.1:{port}"]
        return
    names = NamesrvConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        kv_config_path=str(folder / "kv"),
        config_store_path=str(folder / "names"),
    )
    async with NameServer(names) as server:
        name_metrics = MetricsServer(NameServerMeter(server))
        name_metrics.start()
        try:
            cluster = await asyncio.to_thread(
                start_cluster,
                "reput",
                VERSION,
                folder,
                {**exported, "metricsPort": own_port},
                namesrv=f"127.0.0.1:{server.port}",
            )
            with cluster:
                async with traffic(cluster.namesrv, cluster.address):
                    yield [f"127.0.0.1:{p}" for p in (port, own_port, name_metrics.port)]
        finally:
            await name_metrics.stop()


@pytest.mark.sampled(14)
@pytest.mark.parametrize("side", ["reput", "java"])
async def test_every_panel_has_series(side: str, tmp_path: Path) -> None:
    of_other_side = {
        f"{board.title}: {panel.title}"
        for board in BOARDS.values()
        for panel in board.panels
        if panel.only not in ("", side)  # of a slave: none of these brokers has one
    }
    try:
        async with measured_cluster(side, tmp_path / side) as targets:
            with running_prometheus(tmp_path / "prometheus", targets) as api:
                missing: set[str] = {"everything"}
                async with asyncio.timeout(GUARD_S):
                    while missing != of_other_side:
                        await asyncio.sleep(SCRAPE_S)
                        missing = await asyncio.to_thread(panels_without_series, api, side)
                        print(sorted(missing ^ of_other_side))  # noqa: T201 - for a failed test
                    rules = await asyncio.to_thread(asked, f"{api}/rules")
    except JavaUnavailable as reason:
        pytest.skip(f"missing java: {reason}")
    health = {rule["name"]: rule["lastError"] for g in rules["groups"] for rule in g["rules"]
              if rule["health"] == "err"}  # fmt: skip
    assert not health
