"""Streams of PySpark 4.0 and 4.1, errors without tracebacks, and an entry point that never fails.

Calls are in the order in which those versions make them; tests/spark/test_versions.py runs them.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import store_builder
from reput.errors import InvalidOption, StoreUnavailable
from reput.spark.datasource_api import InputPartition, plain_errors
from reput.spark.source import RocketMQDataSource, UnlimitedStreamReader
from reput.spark.store_planner import DataLoss

COLUMNS = StructType([StructField("queue_offset", LongType())])
Offset = dict[str, Any]


def reader_of(root: Path, **options: object) -> UnlimitedStreamReader:
    texts = {name: str(value) for name, value in options.items()}
    return UnlimitedStreamReader(
        {"path": str(root), "broker": "b", "startingOffsets": "earliest", **texts}, COLUMNS
    )


def store(folder: Path, **counts: int) -> Path:
    messages = [store_builder.message(topic) for topic, n in counts.items() for _ in range(n)]
    return store_builder.build(folder, messages).root


def read(reader: UnlimitedStreamReader, start: Offset, end: Offset) -> list[int]:
    """Read a micro-batch, with offsets from a checkpoint."""
    start, end = (json.loads(json.dumps(offset)) for offset in (start, end))
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    reader.commit(end)
    return [number for batch in batches for number in batch["queue_offset"].to_pylist()]


def micro_batches(reader: UnlimitedStreamReader, start: Offset) -> Iterator[list[int]]:
    while (end := reader.latestOffset()) != start:
        yield read(reader, start, end)
        start = end


def test_a_new_query_asks_for_its_end_first(tmp_path: Path) -> None:
    root = store(tmp_path / "s", TopicA=10)
    reader = reader_of(root)
    end = reader.latestOffset()
    start = reader.initialOffset()
    assert read(reader, start, end) == [*range(10)]
    assert reader.latestOffset() == end
    for name, value in (("maxOffsetsPerTrigger", "4"), ("maxBytesPerTrigger", "4k")):
        with pytest.raises(InvalidOption, match=rf"{name}.*left out with availableNow, and until"):
            reader_of(root, **{name: value}).latestOffset()
    # A plan without partitions has one empty task.
    columns = StructType([StructField("topic", StringType())])
    for view, nothing in itertools.product(("messages", "topics"), (None, InputPartition(None))):
        source = RocketMQDataSource({"path": str(root), "view": view})
        assert [*source.reader(columns).read(nothing)] == []


def test_limits_are_kept_by_a_query_with_a_checkpoint(tmp_path: Path) -> None:
    root = store(tmp_path / "s", TopicA=10)
    start = reader_of(root).initialOffset()
    reader = reader_of(root, maxOffsetsPerTrigger=4)
    assert reader.partitions(start, start) == []  # AcceptsLatestSeenOffset
    assert [*micro_batches(reader, start)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_available_now_reads_everything_once_over_restarts(tmp_path: Path) -> None:
    reader = reader_of(store(tmp_path / "s", TopicA=10))
    end = reader.latestOffset()
    start = reader.initialOffset()
    assert read(reader, start, end) == [*range(10)]
    grown = store(tmp_path / "grown", TopicA=12, TopicB=3)
    reader = reader_of(grown)
    later = reader.latestOffset()
    assert reader.partitions(end, end) == []
    assert sorted(read(reader, end, later)) == [0, 1, 2, 10, 11]
    reader = reader_of(grown)
    assert reader.latestOffset() == later


def test_available_now_reports_deleted_queues(tmp_path: Path) -> None:
    start = reader_of(store(tmp_path / "s", TopicA=1, TopicB=1)).latestOffset()
    rest = store(tmp_path / "rest", TopicA=2)
    reader = reader_of(rest)
    end = reader.latestOffset()
    with pytest.raises(DataLoss, match="queue TopicB/0 of b is missing"):
        read(reader, start, end)
    reader = reader_of(rest, failOnDataLoss=False)
    assert read(reader, start, reader.latestOffset()) == [1]


# --- errors -------------------------------------------------------------------------------------


@plain_errors
class CalledClass:
    def fails(self) -> None:
        raise StoreUnavailable("no store")

    def rows(self) -> Iterator[int]:
        yield 1
        self.fails()

    def bug(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("is_worker", [True, False])
def test_tracebacks_are_hidden_in_workers(monkeypatch: pytest.MonkeyPatch, is_worker: bool) -> None:
    for call in (CalledClass().fails, lambda: [*CalledClass().rows()]):
        monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
        if is_worker:
            monkeypatch.setenv("PYTHON_WORKER_FACTORY_PORT", "1")
        with pytest.raises(StoreUnavailable, match="no store"):
            call()
        assert bool(os.environ["SPARK_HIDE_TRACEBACK"]) == is_worker
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(AssertionError):
        CalledClass().bug()
    assert os.environ["SPARK_HIDE_TRACEBACK"] == ""


# --- the entry point ----------------------------------------------------------------------------

USE = """
import sys
sys.modules[{missing!r}] = None
import pyspark_rocketmq
try:
    pyspark_rocketmq.DefaultSource({{}})
except ImportError as error:
    print(pyspark_rocketmq.DefaultSource.name(), error)
"""


@pytest.mark.parametrize("missing", ["pyarrow", "pyspark"])
def test_the_entry_point_can_always_be_imported(missing: str) -> None:
    """Spark imports it to find any data source: an error would take all others with it."""
    ran = subprocess.run(
        [sys.executable, "-c", USE.format(missing=missing)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ran.stdout.startswith("rocketmq format('rocketmq') needs PySpark 4.0 or later and pip")
    assert missing in ran.stdout
