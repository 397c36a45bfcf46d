"""The accelerator beside the Python source: the same rows in the same partitions, or an error."""

import shutil
import zlib
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import zstandard
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession, functions as F

import golden
import reput.spark
import seeds
import store_builder
from reput.errors import CorruptRecord, ReputError
from reput.format import sys_flag as flags
from reput.spark import accelerator
from reput.spark.plan import LogRange
from spark import reading

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        shutil.which("javac") is None, reason="missing java: javac compiles the jar"
    ),
]

FLIPS = 300 if golden.IS_SOAK else 8
SMALL_PARTITIONS = "20k"
FAILURES = (ReputError, Py4JJavaError)
"""Errors of the plan, and of the jar."""


def accelerated(spark: SparkSession, store: Path, **options: Any) -> DataFrame | None:
    return accelerator.accelerated(spark, reading.parse(store, **options))


def rows_of(frame: DataFrame | None) -> list[list[dict[str, Any]]]:
    """Return the rows of each partition that has any."""
    assert frame is not None
    partitions: dict[int, list[dict[str, Any]]] = {}
    for row in frame.withColumn("partition", F.spark_partition_id()).toArrow().to_pylist():
        partitions.setdefault(row.pop("partition"), []).append(plain(row))
    return list(partitions.values())


def python_rows(store: Path, **options: Any) -> list[list[dict[str, Any]]]:
    """Return the same of the Python source, whose rows in Spark are those of its scan."""
    scan = reading.scan(store, **options)
    partitions = [
        [plain(row) for batch in scan.read(task) for row in batch.to_pylist()]
        for task in scan.tasks()
    ]
    return [rows for rows in partitions if rows]


def fails_or_is_not_plain(spark: SparkSession, store: Path, **options: Any) -> bool:
    """Return whether a read by the jar fails, if it is the jar that reads."""
    try:
        frame = accelerated(spark, store, **options)
        if frame is not None:
            frame.toArrow()
    except FAILURES:
        return True
    return frame is None


def plain(row: dict[str, Any]) -> dict[str, Any]:
    # Pairs in their order: a map of Spark has one.
    return {name: [*value] if isinstance(value, list) else value for name, value in row.items()}


@pytest.mark.parametrize(("version", "name"), golden.EACH_STORE)
@pytest.mark.sampled(7)
def test_golden_stores(spark_with_jar: SparkSession, version: str, name: str) -> None:
    store = golden.unpack(version, name)
    options = {"readIsolation": "all", "maxBytesPerPartition": SMALL_PARTITIONS}
    frame = accelerated(spark_with_jar, store, **options)
    if frame is None:
        assert not any(type(task.partition) is LogRange for task in reading.scan(store).tasks())
    else:
        assert rows_of(frame) == python_rows(store, **options)


@pytest.mark.parametrize(("version", "variant"), golden.EACH_DAMAGE)
@pytest.mark.sampled(6)
def test_damage_is_an_error_or_stays_with_python(
    spark_with_jar: SparkSession, version: str, variant: str
) -> None:
    store = golden.unpack(version, f"torn/{variant}")
    try:
        wanted = python_rows(store, readIsolation="all")
    except ReputError:
        assert fails_or_is_not_plain(spark_with_jar, store, readIsolation="all")
    else:
        assert rows_of(accelerated(spark_with_jar, store, readIsolation="all")) == wanted
    for mode in ("PERMISSIVE", "DROPMALFORMED", "SALVAGE"):
        assert accelerated(spark_with_jar, store, mode=mode) is None


def odd_messages(seed: int, last_separator: bytes = b"") -> list[Any]:
    """Return messages with everything that a record may have."""
    draw = seeds.random("odd messages", seed)
    packers = {
        0: zlib.compress,
        flags.COMPRESSION_ZLIB: zlib.compress,
        flags.COMPRESSION_LZ4: lz4.frame.compress,
        flags.COMPRESSION_ZSTD: zstandard.compress,
    }
    properties = (
        b"",
        b"TAGS\x01TagA\x02KEYS\x01a  b c\x02",
        b"KEYS\x01 \x02TAGS\x01\x02UNIQ_KEY\x01",
        b"a\x01first\x02b\x01x\x02a\x01second\x02TAGS\x01x\x01y",
        b"no separator\x02\x01no name\x02\x02c\x01d",
        "TAGS\x01caf\u00e9\x02\u4e2d\x01\U0001f600\x02KEYS\x01\u00fc \u00fc".encode(),
        b"TAGS\x01\xff\xfe\x02KEYS\x01\xed\xa0\x80 ok\x02\xc3\x01v\x02",
        b"UNIQ_KEY\x01C0000201ABCD18B4AAC2000000000007\x02long\x01" + b"v" * 700,
    )
    messages = []
    for number in range(400):
        body = draw.randbytes(draw.choice((0, 1, 7, 300)))
        sys_flag = draw.choice((0, 0, 0, flags.TRANSACTION_COMMIT, flags.TRANSACTION_PREPARED))
        if body and draw.random() < 0.3:
            kind = draw.choice((*packers,))
            body, sys_flag = packers[kind](body), sys_flag | flags.COMPRESSED | kind
        messages.append(
            store_builder.message(
                draw.choice(
                    ("TopicA", "TopicB", "T" * 200, "t\u00f6pic", "RMQ_SYS_TRANS_HALF_TOPIC")
                ),
                body,
                queue_id=draw.randrange(3),
                sys_flag=sys_flag,
                born_host=draw.choice((store_builder.HOST, store_builder.HOST_V6)),
                store_host=draw.choice((store_builder.HOST, store_builder.HOST_V6)),
                property_bytes=draw.choice(properties) + last_separator,
                born_timestamp=draw.choice((0, -1, -(1 << 62), 1 << 60, 253_402_300_799_999)),
                flag=draw.choice((0, -1, 1 << 30)),
                reconsume_times=number % 17,
                prepared_transaction_offset=number - 5,
            )
        )
    return messages


@pytest.mark.parametrize("record_crc", [False, True])
def test_records_with_everything(
    spark_with_jar: SparkSession, tmp_path: Path, record_crc: bool
) -> None:
    messages = odd_messages(7, b"\x02" if record_crc else b"")
    built = store_builder.build(
        tmp_path / "store", messages, log_file_bytes=40_000, record_crc=record_crc
    )
    for options in (
        {"readIsolation": "all", "maxBytesPerPartition": "7001"},
        {"decompress": "none", "checkCrc": False},
        {"topic": "TopicA,TopicB", "scan": "log"},
        {"startingPhysicalOffset": 30_001, "endingPhysicalOffset": 90_002},
        {"columns": "keys,store_timestamp,broker", "broker": "a"},
    ):
        wanted = python_rows(built.root, **options)
        assert len(wanted) > 0
        assert rows_of(accelerated(spark_with_jar, built.root, **options)) == wanted


def test_spark_prunes_columns_and_selects_topics_and_queues(
    spark_with_jar: SparkSession, tmp_path: Path
) -> None:
    built = store_builder.build(tmp_path / "store", odd_messages(8), log_file_bytes=40_000)
    frame = accelerated(spark_with_jar, built.root)
    assert frame is not None
    visible = [row for part in python_rows(built.root) for row in part]
    assert frame.count() == len(visible)
    selected = frame.where(
        "topic in ('TopicA', 't\u00f6pic') and queue_id = 1 and tags is not null"
    )
    assert [row.asDict() for row in selected.select("tags", "msg_id").collect()] == [
        {"tags": row["tags"], "msg_id": row["msg_id"]}
        for row in visible
        if row["topic"] in ("TopicA", "t\u00f6pic") and row["queue_id"] == 1 and row["tags"]
    ]
    assert frame.where("topic = 'TopicA' and topic = 'TopicB'").count() == 0
    assert frame.where("topic is null").count() == 0
    by_tags = {row["tags"]: row["count"] for row in frame.groupBy("tags").count().collect()}
    assert by_tags == {
        tags: sum(row["tags"] == tags for row in visible)
        for tags in {row["tags"] for row in visible}
    }
    ends = frame.agg(F.max("tags"), F.min("msg_id"), F.max("topic")).first()
    assert ends is not None
    assert ends[0] == max(tags for tags in by_tags if tags)
    assert ends[1] == min(row["msg_id"] for row in visible)
    assert ends[2] == max(row["topic"] for row in visible)
    # Frames of one plan do not share predicates.
    assert frame.count() == len(visible)


def test_flipped_bytes_are_found_as_by_python(spark_with_jar: SparkSession, tmp_path: Path) -> None:
    built = store_builder.build(
        tmp_path / "store", store_builder.messages(40), log_file_bytes=1 << 16
    )
    (file,) = golden.log_files(built.root)
    good = file.read_bytes()
    end = built.messages[-1].physical_offset + built.messages[-1].store_size
    draw = seeds.random("flipped bytes")
    options = {"maxBytesPerPartition": 3000}
    for _ in range(FLIPS):
        place, bit = draw.randrange(end), 1 << draw.randrange(8)
        file.write_bytes(good[:place] + bytes([good[place] ^ bit]) + good[place + 1 :])
        try:
            wanted = python_rows(built.root, **options)
        except ReputError:
            assert fails_or_is_not_plain(spark_with_jar, built.root, **options), place
            continue
        assert rows_of(accelerated(spark_with_jar, built.root, **options)) == wanted, place


def test_errors_name_place_and_remedy(spark_with_jar: SparkSession, tmp_path: Path) -> None:
    built = store_builder.build(
        tmp_path / "store", store_builder.messages(40), log_file_bytes=1 << 16
    )
    (file,) = golden.log_files(built.root)
    place = built.messages[20].physical_offset
    data = bytearray(file.read_bytes())
    data[place + 100] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptRecord):
        python_rows(built.root)
    frame = accelerated(spark_with_jar, built.root)
    assert frame is not None
    with pytest.raises(Py4JJavaError) as caught:
        frame.count()
    for part in (f"physical offset {place}", str(file), "mode=PERMISSIVE", "BODYCRC"):
        assert part in str(caught.value)
    file.unlink()
    with pytest.raises(Py4JJavaError, match="is gone since the read was planned"):
        frame.count()


def test_what_is_not_plain_is_read_by_python(spark_with_jar: SparkSession, tmp_path: Path) -> None:
    built = store_builder.build(tmp_path / "store", store_builder.messages(40))
    for options in (
        {"tags": "Tag1"},
        {"sql92": "a = 1"},
        {"key": "key-1"},
        {"charset": "utf-8"},
        {"rawProperties": True},
        {"startingTimestamp": 1},
        {"allowLive": True},
        {"view": "topics"},
        {"topic": "TopicA", "scan": "consumequeue"},
    ):
        assert accelerated(spark_with_jar, built.root, **options) is None
    frame = reput.spark.read(spark_with_jar, str(built.root), tags="Tag1", columns="tags")
    assert {row["tags"] for row in frame.collect()} == {"Tag1"}
