"""Spark reads a slave, and finds no difference between the stores of a pair."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from interop import pairs
from interop.pairs import Pair
from reput.spark.jobs.compare import compare
from reput.spark.live import calls as live_calls
from spark import live_traffic
from spark.conftest import spark as spark

pytestmark = [
    pytest.mark.rotating,
    pytest.mark.interop,
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore"),
]

COUNT = live_traffic.COUNT + 1  # and one that is delayed for two hours


def bodies(spark: SparkSession, pair: Pair, **options: str) -> list[bytes]:
    """Return the bodies of a topic, read by Spark."""
    frame = (
        spark.read.format("rocketmq")
        .option("nameServer", pair.namesrv)
        .option("topic", "Orders")
        .options(**options)
        .load()
        .select("body")
    )
    return sorted(bytes(row.body) for row in frame.collect())


@pytest.mark.parametrize(("master", "slave"), [("4.9.7", "4.9.7"), ("reput", "reput")])
def test_spark_reads_the_slave(
    spark: SparkSession, master: str, slave: str, tmp_path: Path
) -> None:
    with Pair(master, slave, tmp_path) as pair:
        live_traffic.publish(pair.namesrv)
        for topic, queue_count in live_traffic.TOPICS.items():
            pair.until_caught_up(topic, queue_count)
        with pairs.stopped(pair.slave.broker_pid):
            expected = bodies(spark, pair)
        assert len(expected) == COUNT
        with pairs.stopped(pair.master.broker_pid):
            assert bodies(spark, pair, readFrom="slave") == expected
        pair.master.kill_broker()
        assert bodies(spark, pair) == expected, "another broker with the messages replaces it"
        live_calls.disconnect()


@pytest.mark.parametrize(("master", "slave"), [("4.9.7", "4.9.7"), ("reput", "reput")])
def test_the_stores_of_a_pair_are_equal(
    spark: SparkSession, master: str, slave: str, tmp_path: Path
) -> None:
    with Pair(master, slave, tmp_path) as pair:
        live_traffic.publish(pair.namesrv)
        pair.until_equal()  # without pulls, which would create groups on the slave only
        master_address, slave_address = pair.master.address, pair.slave.address
        pair.until_synced(lambda: pairs.tables(slave_address) == pairs.tables(master_address))
        pair.slave.stop_broker()
        pair.master.stop_broker()
        live_calls.disconnect()
        comparison = compare(spark, str(pair.master.store), str(pair.slave.store))
        assert comparison.matched_by == "physical"
        for section in ("messages", "queues", "tables"):
            findings = [row for row in comparison.findings if row.section == section]
            # Java's master creates a topic when it stops.
            known = [row for row in findings if row.field == "RMQ_SYS_TRANS_HALF_TOPIC"]
            assert sum(comparison.counts[section].values()) == len(known), findings
        # Index files are named by their time, tables contain the times of their changes; a store of
        # ours has its own list of queues, and the mark of a slave.
        names = {(finding.file or "").partition("/")[0] for finding in comparison.findings}
        own = {"queues.known", "queues.summary", "slave"} if master == pairs.REPUT else set()
        assert names <= {"config", "index"} | own, comparison.findings
