"""The metrics of our broker under RocketMQ's names, compared with those of Java's broker."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interop.clusters import start_cluster
from interop.java_oracle import JavaUnavailable
from interop.record_metrics import VERSION, scrape, settings, shape, traffic
from ports import free_port
from reput.broker.monitoring.rocketmq_metrics import LEFT_OUT

pytestmark = [pytest.mark.interop, pytest.mark.rotating]


async def metrics_of(kind: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the shape of the metrics of a broker after the traffic."""
    port = free_port()
    more = {"timerWheelEnable": True} if kind == VERSION else {}
    with start_cluster(kind, VERSION, folder, {**settings(port), **more}) as cluster:
        async with traffic(cluster.namesrv, cluster.address):
            return shape(await asyncio.to_thread(scrape, port))


async def test_both_brokers_export_the_same_names_kinds_and_labels(tmp_path: Path) -> None:
    try:
        javas = await metrics_of(VERSION, tmp_path / "java")
    except JavaUnavailable as reason:
        pytest.skip(f"missing java: {reason}")
    ours = await metrics_of("reput", tmp_path / "reput")
    assert ours == {name: metric for name, metric in javas.items() if name not in LEFT_OUT}
