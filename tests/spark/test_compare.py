"""Compare on a real session: messages joined by queue offset and key, and findings as rows.

The parts without Spark's tables are tested in tests/unit/spark/jobs/compare/test_compare.py.
"""

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import golden
from reput.client import blocking
from reput.client.message import Message
from reput.format import message as record
from reput.spark.jobs.compare import OTHER_BROKER, Comparison, compare, findings_frame
from reput.store.reader import StoreReader
from reput.testing import LocalBroker
from spark.jobs_setting import flip, log_place
from spark.live_traffic import queue

pytestmark = pytest.mark.filterwarnings("ignore")


def run(spark: SparkSession, left: Path, right: Path, **options: Any) -> Comparison:
    options.setdefault("sections", ["messages"])
    return compare(spark, str(left), str(right), partition_bytes=300_000, **options)


@pytest.mark.soak
def test_each_planted_difference_is_found(spark: SparkSession, tmp_path: Path) -> None:
    left = golden.unpack("4.9.7", "clean")
    right = golden.copy_store("4.9.7", "clean", tmp_path)
    for match in ("physical", "queue"):
        got = run(spark, left, right, match=match)
        assert (got.is_equal, got.matched_by) == (True, match)
    messages = [
        message
        for message in golden.messages("4.9.7", "clean")
        if message["topic"] == "GoldenOne"
        and message["uniqKey"]
        and message["sysFlag"] == 0
        and message["storedBodyLength"] > 20
    ]
    body, time, magic, offset = messages[10:50:10]
    for message, inside, mask in (
        (body, 88 + 2, 0x10),  # after the head and two IPv4 hosts
        (time, record.POSITION_BORN_HOST + 8 + 7, 0x01),
        (magic, record.POSITION_MAGIC, 0x10),
    ):
        path, position = log_place(right, message["commitLogOffset"])
        flip(path, position + inside, mask)
    path, position = log_place(right, offset["commitLogOffset"])
    with path.open("r+b") as file:
        file.seek(position + record.POSITION_QUEUE_OFFSET)
        file.write(struct.pack(">q", 5_000))

    got = run(spark, left, right, match="queue")
    assert got.counts["messages"] == {"only_left": 1, "only_right": 0, "different": 3}
    by_place = {finding.physical_offset: finding for finding in got.findings}
    assert by_place[body["commitLogOffset"]].field == "body"
    assert by_place[time["commitLogOffset"]].field == "store_timestamp"
    assert by_place[magic["commitLogOffset"]].kind == "only_left"
    moved = by_place[offset["commitLogOffset"]]
    assert moved.field == "queue_offset"
    assert (moved.left, moved.right) == (str(offset["queueOffset"]), "5000")
    assert offset["uniqKey"] in moved.text
    ignoring = run(spark, left, right, match="queue", ignore=OTHER_BROKER)
    assert ignoring.counts["messages"] == {"only_left": 1, "only_right": 0, "different": 2}
    # Every finding is a row of a frame.
    frame = findings_frame(spark, str(left), str(right), sections=["messages"], match="queue")
    assert frame.groupBy("kind").sum("count").count() == 2
    # Stores of other brokers are matched by queue.
    other = run(spark, left, golden.unpack("4.5.2", "clean"), findings_max=3)
    assert (other.matched_by, len(other.findings)) == ("queue", 3)
    assert sum(other.counts["messages"].values()) > 3


def test_a_store_compared_with_a_broker_on_its_copy(spark: SparkSession, tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    with (
        LocalBroker(topics={"Orders": 2, "Other": 1}, folder=left) as broker,
        blocking.Producer("p", namesrv=broker.namesrv_addr) as producer,
    ):
        producer.send_many(
            Message("Orders", b"%d" % i, tags="TagA", keys=f"k{i}", flag=i) for i in range(40)
        )
        producer.send(Message("Other", b"x"))
        broker.messages("Orders", at_least=40)
    shutil.copytree(left, right)
    (changed,) = [
        message for message in StoreReader.open(str(left)).messages() if message.flag == 7
    ]
    log_file = next((right / "commitlog").iterdir())
    flip(log_file, changed.physical_offset + record.POSITION_FLAG + 3)
    for folder, topic in ((left, "Orders"), (right, "Other")):
        with LocalBroker(folder=folder) as broker:
            with blocking.Producer("p", namesrv=broker.namesrv_addr) as producer:
                producer.send(Message(topic, b"later"), queue=queue(0, topic))
            broker.messages(topic, at_least={"Orders": 41, "Other": 2}[topic])
            if folder == left:
                continue
            address = {"nameServer": broker.namesrv_addr}
            got = compare(spark, str(left), address)
    assert got.sections == ("messages", "queues")
    assert got.matched_by == "queue"
    assert got.right == address["nameServer"]
    assert got.counts == {
        "messages": {"only_left": 1, "only_right": 1, "different": 1},
        "queues": {"only_left": 1, "only_right": 1, "different": 0},
    }
    by_kind = {finding.kind: finding for finding in got.findings if finding.section == "messages"}
    assert by_kind["different"].physical_offset == changed.physical_offset
    assert by_kind["different"].field == "flag"
    assert (by_kind["different"].left, by_kind["different"].right) == ("7", str(7 ^ 0x10))
    assert (by_kind["only_left"].topic, by_kind["only_right"].topic) == ("Orders", "Other")
    lacks, has = [finding for finding in got.findings if finding.section == "queues"]
    assert (lacks.topic, lacks.queue_offset, lacks.count) == ("Orders", 20, 1)
    assert (lacks.left, lacks.right) == ("0 to 21", "0 to 20")
    assert (has.topic, has.left, has.right) == ("Other", "0 to 1", "0 to 2")
