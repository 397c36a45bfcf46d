"""``format("rocketmq")`` over a running broker, in a real Spark session.

The exhaustive tests of options, plans and rows are in tests/unit/spark and need no JVM.
"""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from reput.client import Message, blocking
from reput.testing import LocalBroker
from spark import reading
from spark.live_traffic import BROKER

pytestmark = pytest.mark.filterwarnings("ignore")

COUNT = 200


def send(mq: LocalBroker, *numbers: int) -> None:
    with blocking.Producer("p", namesrv=mq.namesrv_addr) as producer:
        producer.send_many(Message("Orders", b"%d" % i, tags=f"Tag{i % 3}") for i in numbers)
    mq.messages("Orders", at_least=numbers[-1] + 1)


def test_rows_predicates_and_errors(spark: SparkSession, tmp_path: Path) -> None:
    def rows(frame: Any) -> list[reading.Row]:
        table = frame.toArrow().sort_by("physical_offset")
        of_frame: list[reading.Row] = table.to_pylist(maps_as_pydicts="strict")
        return of_frame

    predicate = "tags = 'Tag1' and queue_offset between 10 and 20 and queue_id < 3"
    with LocalBroker(topics={"Orders": 4}, folder=tmp_path) as mq:
        send(mq, *range(COUNT - 1))
        reader = spark.read.format("rocketmq").option("nameServer", mq.namesrv_addr)
        assert reader.load(topic="Orders").count() == COUNT - 1
        send(mq, COUNT - 1)  # Spark plans a frame once: the message is in the next one
        frame = reader.load(maxRecordsPerPartition=60, pushdown=True)
        assert frame.rdd.getNumPartitions() >= 4
        everything, chosen = rows(frame), rows(frame.filter(predicate))
        for given, text in (
            ({"topic": "Nope"}, "topic 'Nope' is not known to name server"),
            ({"secretKey": "pass-1"}, "unless accessKey is given as well"),
        ):
            with pytest.raises(PySparkException) as error:
                reader.load(**given).count()
            assert text in str(error.value)
            assert "pass-1" not in str(error.value)
    assert everything == reading.read(tmp_path, broker=BROKER).messages
    assert len(everything) == COUNT
    assert chosen == [
        row
        for row in everything
        if row["tags"] == "Tag1" and 10 <= row["queue_offset"] <= 20 and row["queue_id"] < 3
    ]
