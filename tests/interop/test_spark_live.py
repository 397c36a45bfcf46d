"""Spark's live source on the official broker: rows as of its store, and nothing left behind."""

import json

import pytest

from interop import java_cluster
from interop.conftest import StartOfficial
from reput.spark import live
from reput.store.reader import StoreReader
from spark import live_traffic
from spark.live_traffic import GROUP

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("test_spark_live")]


@pytest.mark.parametrize("version", java_cluster.broker_versions())
def test_rows_are_those_of_the_store(version: str, start_official: StartOfficial) -> None:
    cluster = start_official(version)
    address = cluster.namesrv
    traffic = live_traffic.publish(address)
    listed = live_traffic.cases(traffic)
    found = live_traffic.read_all(address, listed)
    after = live_traffic.traces(address)
    live.disconnect()
    cluster.stop_broker()
    assert after == traffic.traces_before
    for name, case in listed.items():
        of_store = case.rows_of(cluster.store)
        assert found[name] == of_store, name
        assert bool(of_store) is (name not in live_traffic.NOTHING), name
    groups = json.loads((cluster.store / "config/subscriptionGroup.json").read_text())
    assert set(groups["subscriptionGroupTable"]) == set(traffic.traces_before[1])
    offsets = StoreReader.open(str(cluster.store)).consumer_offsets()
    assert {(one.topic, one.group) for one in offsets} == {("Orders", GROUP)}
