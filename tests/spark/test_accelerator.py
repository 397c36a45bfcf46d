"""The accelerator beside the Python source: the same rows in the same partitions, or an error."""

import functools
import shutil
import zlib
from collections import Counter
from collections.abc import Mapping
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
from reput.errors import ReputError
from reput.format import sys_flag as flags
from reput.spark import accelerator
from spark import reading
from spark.jobs_setting import flip

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        shutil.which("javac") is None, reason="missing java: javac compiles the jar"
    ),
]

FLIPS = 300 if golden.IS_SOAK else 4
FAILURES = (ReputError, Py4JJavaError)
"""Errors of the plan, and of the jar."""


def accelerated(spark: SparkSession, store: Path, **options: Any) -> DataFrame | None:
    return accelerator.accelerated(spark, reading.parse(store, **options))


Rows = list[list[dict[str, Any]]]
"""The rows of each partition that has any."""


def rows_of_each(frames: Mapping[Any, DataFrame | None]) -> dict[Any, Rows]:
    """Return the rows of frames with the same columns, read in one query."""
    keys, tagged = [*frames], []
    for number, frame in enumerate(frames.values()):
        assert frame is not None, keys[number]
        columns = {"frame": F.lit(number), "partition": F.spark_partition_id()}
        tagged.append(frame.withColumns(columns))
    partitions: list[dict[int, list[dict[str, Any]]]] = [{} for _ in keys]
    for row in functools.reduce(DataFrame.union, tagged).toArrow().to_pylist():
        number, partition = row.pop("frame"), row.pop("partition")
        partitions[number].setdefault(partition, []).append(plain(row))
    return {key: [*parts.values()] for key, parts in zip(keys, partitions, strict=True)}


def rows_of(frame: DataFrame | None) -> Rows:
    return rows_of_each({0: frame})[0]


def python_rows(store: Path, **options: Any) -> Rows:
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


def test_golden_stores(spark_with_jar: SparkSession) -> None:
    options = {"readIsolation": "all", "maxBytesPerPartition": "100k"}
    frames, expected = {}, {}
    for version, name in golden.EACH_STORE:
        store = golden.unpack(version, name)
        frame = accelerated(spark_with_jar, store, **options)
        assert (frame is None) == (store / "batchconsumequeue").is_dir()
        if frame is not None:
            frames[version, name] = frame
            expected[version, name] = python_rows(store, **options)
    assert rows_of_each(frames) == expected


@pytest.mark.parametrize(("version", "variant"), golden.EACH_DAMAGE)
@pytest.mark.sampled(12)
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


def test_records_with_everything(spark_with_jar: SparkSession, tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [
        {"readIsolation": "all", "maxBytesPerPartition": "7001"},
        {"decompress": "none", "checkCrc": False},
        {"topic": "TopicA,TopicB", "scan": "log"},
        {"startingPhysicalOffset": 30_001, "endingPhysicalOffset": 90_002},
    ]
    frames, expected = {}, {}
    for record_crc in (False, True):
        messages = odd_messages(7, b"\x02" if record_crc else b"")
        root = store_builder.build(
            tmp_path / str(record_crc), messages, log_file_bytes=40_000, record_crc=record_crc
        ).root
        for number, options in enumerate(cases):
            frames[record_crc, number] = accelerated(spark_with_jar, root, **options)
            expected[record_crc, number] = python_rows(root, **options)
    assert all(expected.values())
    assert rows_of_each(frames) == expected
    few = {"columns": "keys,store_timestamp,broker", "broker": "a"}
    assert rows_of(accelerated(spark_with_jar, root, **few)) == python_rows(root, **few)


def test_spark_prunes_columns_and_selects_topics_and_queues(
    spark_with_jar: SparkSession, tmp_path: Path
) -> None:
    built = store_builder.build(tmp_path / "store", odd_messages(8), log_file_bytes=40_000)
    frame = accelerated(spark_with_jar, built.root)
    assert frame is not None
    visible = [row for part in python_rows(built.root) for row in part]
    chosen = frame.where("topic in ('TopicA', 't\u00f6pic') and queue_id = 1 and tags is not null")
    assert [row.asDict() for row in chosen.select("tags", "msg_id").collect()] == [
        {"tags": row["tags"], "msg_id": row["msg_id"]}
        for row in visible
        if row["topic"] in ("TopicA", "t\u00f6pic") and row["queue_id"] == 1 and row["tags"]
    ]
    assert frame.where("topic = 'TopicA' and topic = 'TopicB'").count() == 0
    by_tags = {row["tags"]: row["count"] for row in frame.groupBy("tags").count().collect()}
    assert by_tags == Counter(row["tags"] for row in visible)
    # Frames of one plan do not share predicates.
    assert frame.count() == len(visible)
    by_python = reput.spark.read(spark_with_jar, str(built.root), tags="TagA", columns="tags")
    assert by_python.count() == by_tags["TagA"]  # a selection that the jar does not know


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
    flip(file, place + 100, 1)
    frame = accelerated(spark_with_jar, built.root)
    assert frame is not None
    with pytest.raises(Py4JJavaError) as caught:
        frame.count()
    for part in (f"physical offset {place}", str(file), "mode=PERMISSIVE", "BODYCRC"):
        assert part in str(caught.value)
    file.unlink()
    with pytest.raises(Py4JJavaError, match="is gone since the read was planned"):
        frame.count()
