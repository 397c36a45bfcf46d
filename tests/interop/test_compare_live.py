"""A store is compared with the official broker that runs on a copy of it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import golden
from interop.conftest import StartOfficial
from reput.format import message as record
from reput.spark.jobs.compare import compare
from spark.conftest import spark as spark
from spark.jobs_setting import flip, log_place

pytestmark = [
    pytest.mark.interop,
    pytest.mark.rotating,
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore"),
]


def test_only_the_changed_message_differs(
    spark: SparkSession,
    start_official: StartOfficial,
    tmp_path: Path,
) -> None:
    left = golden.copy_store("4.9.7", "clean", tmp_path / "left")
    right = golden.copy_store("4.9.7", "clean", tmp_path / "cluster")
    messages = [
        message
        for message in golden.messages("4.9.7", "clean")
        if message["topic"] == "GoldenFour" and message["sysFlag"] == 0
    ]
    changed = messages[len(messages) // 2]
    path, position = log_place(left, changed["commitLogOffset"])
    flip(path, position + record.POSITION_FLAG + 3)

    cluster = start_official("4.9.7", golden.manifest("4.9.7", "clean")["config"], right.parent)
    got = compare(spark, str(left), {"nameServer": cluster.namesrv}, findings_max=10_000)
    assert sum(sum(kinds.values()) for kinds in got.counts.values()) == sum(
        finding.count for finding in got.findings
    )
    # A broker delivers delayed messages and checks half messages, so it has more messages than the
    # store had. Name servers do not list all system topics.
    lacking = {finding.topic for finding in got.findings if finding.kind == "only_left"}
    assert lacking <= {"RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"}
    (difference,) = [finding for finding in got.findings if finding.kind == "different"]
    assert difference.section == "messages"
    assert difference.field == "flag"
    assert (
        difference.topic,
        difference.queue_id,
        difference.queue_offset,
        difference.physical_offset,
    ) == (
        "GoldenFour",
        *(changed["queueId"], changed["queueOffset"], changed["commitLogOffset"]),
    )
