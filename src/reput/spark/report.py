"""Report of a store, computed by Spark: content, times, sizes, damage.

``collect`` runs the jobs and returns plain numbers; ``reput.spark.pages.store`` draws them. All
numbers cover the whole store, including system topics.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import IntegerType

from reput import __version__
from reput.format import index_entry
from reput.spark.registration import let_workers_find_source
from reput.store.queues import tombstones
from reput.store.reader import StoreReader
from reput.store.verify import queue_rows

Progress = Callable[[str, int, int], None]
"""Called with the current step's name, the number of finished steps, and the total."""

BUCKETS_SECONDS = (1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400)
BUCKET_COUNT_MAX = 200
TOP_COUNT = 12
OTHERS = "others"


@dataclass
class ReportedTopic:
    """Numbers of one topic."""

    topic: str
    messages: int
    bytes: int
    body_bytes: int
    queues: int
    first_ms: int
    last_ms: int


@dataclass
class Agreement:
    """Agreement of a derived file family with the log."""

    right: int
    """Number of entries that point at their message."""
    wrong: int
    """Number of entries that point at no such message."""
    missing: int
    """Number of messages (or keys of messages) without an entry."""


@dataclass
class GapRow:
    """A range of the log without records."""

    physical_offset: int
    length: int
    kind: str
    reason: str
    file: str


@dataclass
class FileRow:
    """Numbers of a log file."""

    name: str
    size: int
    wasted: int
    first_ms: int | None
    last_ms: int | None


@dataclass
class LagRow:
    """Consumer lag of a group."""

    group: str
    topic: str
    lag: int


@dataclass
class Report:
    """All content of the report. Times are ms since the epoch, sizes bytes."""

    store: str
    broker: str
    condition: str
    reput_version: str
    spark_version: str
    messages: int = 0
    bytes: int = 0
    body_bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0
    topics: list[ReportedTopic] = field(default_factory=list)
    tags: list[tuple[str, int]] = field(default_factory=list)
    """(tag, messages), most frequent first; the empty tag for messages without one."""
    bucket_seconds: int = 3600
    timeline: list[tuple[int, str, int]] = field(default_factory=list)
    """(start of bucket, topic or ``others``, messages)."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """(power of two above the record size, messages)."""
    latencies: list[tuple[int, int]] = field(default_factory=list)
    """(power of two above the ms from born to stored, messages)."""
    producers: list[tuple[str, int]] = field(default_factory=list)
    """(address without port, messages), most frequent first."""
    gaps: list[GapRow] = field(default_factory=list)
    files: list[FileRow] = field(default_factory=list)
    queue_agreement: Agreement | None = None
    index_agreement: Agreement | None = None
    lags: list[LagRow] = field(default_factory=list)
    seconds: float = 0.0
    """Duration of the jobs, in seconds."""

    @property
    def damage(self) -> list[GapRow]:
        """Damaged gaps, without the range after the end of the log."""
        return [gap for gap in self.gaps if gap.kind == "damage"]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain lists and dictionaries."""
        return dataclasses.asdict(self)


def collect(
    spark: SparkSession, path: str, progress: Progress | None = None, *, allow_live: bool = False
) -> Report:
    """Compute the report of a store.

    Args:
        spark: The session.
        path: The store folder.
        progress: Called before each step.
        allow_live: Allow a store that a broker is using.

    Raises:
        ReputError: The store cannot be read.
    """
    reader = StoreReader.open(path, allow_live=allow_live)
    report = Report(
        store=path,
        broker=reader.broker_name(),
        condition=reader.state.condition.value,
        reput_version=__version__,
        spark_version=spark.version,
    )
    store = {"path": path, "allowLive": str(allow_live).lower()}
    read = functools.partial(_messages, spark, store)
    view = functools.partial(_view, spark, store)
    steps: list[tuple[str, Callable[[], None]]] = [
        ("messages per topic", lambda: _topics(report, read)),
        ("messages per tag", lambda: _tags(report, read)),
        ("messages over time", lambda: _timeline(report, read)),
        ("sizes and latencies", lambda: _histograms(report, read)),
        ("producers", lambda: _producers(report, read)),
        ("damage", lambda: _gaps(report, view("gaps"))),
        ("log files", lambda: _files(report, view("files"))),
        ("consume queues against log", lambda: _queues(report, reader, read, view("consumequeue"))),
        ("index against log", lambda: _index(report, read, view("index"))),
        ("consumer lag", lambda: _lags(report, view("offsets"))),
    ]
    for done, (name, run) in enumerate(steps):
        if progress:
            progress(name, done, len(steps))
        run()
    if progress:
        progress("done", len(steps), len(steps))
    return report


class _Read(Protocol):
    """Provides the messages of the store with selected columns: Spark cannot prune them itself."""

    def __call__(self, *columns: str) -> DataFrame: ...


def _messages(spark: SparkSession, store: dict[str, str], *columns: str) -> DataFrame:
    let_workers_find_source(spark)
    reader = spark.read.format("rocketmq").options(**store).option("readIsolation", "all")
    # Damage has its own chapter, and sizes need no decompression.
    reader = reader.option("mode", "DROPMALFORMED").option("columns", ",".join(columns))
    return reader.option("decompress", "none").load()


def _view(spark: SparkSession, store: dict[str, str], view: str) -> DataFrame:
    let_workers_find_source(spark)
    return spark.read.format("rocketmq").options(**store).option("view", view).load()


def _ms(column: str) -> Any:
    return F.unix_millis(F.col(column))


def _topics(report: Report, read: _Read) -> None:
    messages = read("topic", "queue_id", "store_size", "body", "store_timestamp")
    rows = (
        messages.groupBy("topic")
        .agg(
            F.count("*").alias("messages"),
            F.sum("store_size").alias("bytes"),
            F.sum(F.octet_length("body")).alias("body_bytes"),
            F.count_distinct("queue_id").alias("queues"),
            F.min(_ms("store_timestamp")).alias("first_ms"),
            F.max(_ms("store_timestamp")).alias("last_ms"),
        )
        .orderBy(F.desc("messages"), "topic")
        .collect()
    )
    report.topics = [ReportedTopic(**row.asDict()) for row in rows]
    report.messages = sum(row.messages for row in report.topics)
    report.bytes = sum(row.bytes for row in report.topics)
    report.body_bytes = sum(row.body_bytes for row in report.topics)
    report.first_ms = min((row.first_ms for row in report.topics), default=0)
    report.last_ms = max((row.last_ms for row in report.topics), default=0)


def _pairs(frame: DataFrame) -> list[tuple[Any, Any]]:
    return [(row[0], row[1]) for row in frame.collect()]


def _top(messages: DataFrame, column: Any, limit: int) -> list[tuple[str, int]]:
    counted = messages.groupBy(column.alias("name")).count()
    return _pairs(counted.orderBy(F.desc("count"), "name").limit(limit))


def _tags(report: Report, read: _Read) -> None:
    messages = read("tags")
    report.tags = _top(messages, F.coalesce(F.col("tags"), F.lit("")), 2 * TOP_COUNT)


def _producers(report: Report, read: _Read) -> None:
    messages = read("born_host")
    address = F.regexp_replace("born_host", ":-?[0-9]+$", "")
    report.producers = _top(messages, address, TOP_COUNT)


def _timeline(report: Report, read: _Read) -> None:
    messages = read("topic", "store_timestamp")
    span = max(report.last_ms - report.first_ms, 1) / 1000
    report.bucket_seconds = next(
        (seconds for seconds in BUCKETS_SECONDS if span / seconds <= BUCKET_COUNT_MAX),
        BUCKETS_SECONDS[-1],
    )
    width = report.bucket_seconds * 1000
    shown = [row.topic for row in report.topics[: TOP_COUNT - 1]]
    bucket = F.floor(_ms("store_timestamp") / width) * width
    topic = F.when(F.col("topic").isin(shown), F.col("topic")).otherwise(F.lit(OTHERS))
    counted = messages.groupBy(bucket.alias("bucket"), topic.alias("name")).count()
    report.timeline = [
        (row[0], row[1], row[2]) for row in counted.orderBy("bucket", "name").collect()
    ]


def _histograms(report: Report, read: _Read) -> None:
    messages = read("store_size", "store_timestamp", "born_timestamp")
    latency = F.greatest(_ms("store_timestamp") - _ms("born_timestamp"), F.lit(0))
    size_below, latency_below = (
        _power_of_two_above(F.col("store_size")),
        _power_of_two_above(latency),
    )
    # Both in one pass: there are some tens of bounds of each.
    rows = messages.groupBy(size_below.alias("size"), latency_below.alias("latency")).count()
    sizes: Counter[int] = Counter()
    latencies: Counter[int] = Counter()
    for size, wait, count in rows.collect():
        sizes[size] += count
        latencies[wait] += count
    report.sizes, report.latencies = sorted(sizes.items()), sorted(latencies.items())


def _power_of_two_above(value: Any) -> Any:
    power = F.pow(F.lit(2), F.length(F.bin(value.cast("long")))).cast("long")
    return F.when(value < 1, F.lit(1).cast("long")).otherwise(power)


def _gaps(report: Report, gaps: DataFrame) -> None:
    columns = [column.name for column in dataclasses.fields(GapRow)]
    rows = gaps.select(*columns).orderBy("physical_offset").collect()
    report.gaps = [GapRow(**row.asDict()) for row in rows]


def _files(report: Report, files: DataFrame) -> None:
    rows = (
        files.filter("family = 'commitlog'")
        .select(
            F.col("file").alias("name"),
            "size",
            F.col("wasted_bytes").alias("wasted"),
            _ms("min_store_timestamp").alias("first_ms"),
            _ms("max_store_timestamp").alias("last_ms"),
        )
        .orderBy("name")
        .collect()
    )
    report.files = [FileRow(**row.asDict()) for row in rows]


_FLAGS = ("entries", "keys", "tags")
"""Columns that mark a row as an index entry that exists, or as one that a key or tag requires."""


def _flagged(rows: DataFrame, flag: str) -> DataFrame:
    """Add the columns that ``_count_flags`` adds up: 1 in the named one, 0 in the others."""
    return rows.select("*", *(F.lit(int(name == flag)).alias(name) for name in _FLAGS))


def _count_flags(rows: DataFrame, on: list[str]) -> DataFrame:
    """Count existing and expected entries per position: one shuffle for both."""
    return rows.groupBy(*on).agg(*(F.sum(name).alias(name) for name in _FLAGS))


def _match(entries: Any, wanted: Any, prefix: str = "") -> list[Any]:
    """Return the sums of an ``Agreement`` over positions."""
    return [
        # A record may be indexed twice after a recovery: both entries are right.
        F.sum(F.when(wanted > 0, entries).otherwise(0)).alias(f"{prefix}right"),
        F.sum(F.when(wanted == 0, entries).otherwise(0)).alias(f"{prefix}wrong"),
        F.sum(F.when(entries == 0, wanted).otherwise(0)).alias(f"{prefix}missing"),
    ]


_NOT_QUEUED = "(sys_flag & 12) in (4, 12)"  # prepared, rolled back


def _queues(report: Report, reader: StoreReader, read: _Read, view: DataFrame) -> None:
    messages = read(
        "topic", "queue_id", "queue_offset", "physical_offset", "store_size", "sys_flag"
    )
    on = ["topic", "queue_id", "queue_offset", "physical_offset", "size"]
    units = view.filter("topic not like '\\%LMQ\\%%'").select(*on)
    deleted = queue_rows.deleted_before(
        reader,
        queue_rows.known_topics(reader),
        tombstones.read(reader.folder),
        [row.topic for row in report.topics],
        reader.end_offset,
    )
    queued = messages.filter(f"not {_NOT_QUEUED}").withColumn("size", F.col("store_size"))
    if deleted:
        ends = F.create_map(*(F.lit(text) for pair in deleted.items() for text in pair))
        begin = F.coalesce(F.element_at(ends, F.col("topic")), F.lit(0))
        queued = queued.filter(F.col("physical_offset") >= begin)
    places = _count_flags(
        _flagged(units, "entries").unionAll(_flagged(queued.select(*on), "keys")), on
    )
    row = places.agg(*_match(F.col("entries"), F.col("keys"))).first()
    assert row is not None
    report.queue_agreement = Agreement(*(count or 0 for count in row))


def _index(report: Report, read: _Read, view: DataFrame) -> None:
    messages = read(
        "topic", "physical_offset", "sys_flag", "tags", "keys", "msg_id", "offset_msg_id"
    )
    index = view.select("key_hash", "physical_offset")
    start = index.agg(F.min("physical_offset")).first()
    if start is None or start[0] is None:
        return
    # Rolled-back records and those before the oldest index file are not indexed.
    keyed = messages.filter(f"(sys_flag & 12) != 12 and physical_offset >= {start[0]}")
    on = ["key_hash", "physical_offset"]
    places = _count_flags(_flagged(index, "entries").unionAll(_hashed(keyed)), on)
    entries, keys, tags = F.col("entries"), F.col("keys"), F.col("tags")
    row = places.agg(
        F.max((entries > 0) & (tags > 0)).alias("has_tags"),
        *_match(entries, keys),
        *_match(entries, keys + tags, "tagged_"),
    ).first()
    assert row is not None
    # 5.4 and later index the tags too; the entries show whether this store's broker did.
    prefix = "tagged_" if row["has_tags"] else ""
    report.index_agreement = Agreement(
        row[f"{prefix}right"] or 0, row[f"{prefix}wrong"] or 0, row[f"{prefix}missing"] or 0
    )


def _hashed(messages: DataFrame) -> DataFrame:
    """Return the positions of entries of unique keys and keys, and those of tags."""
    # The property UNIQ_KEY, without decoding all properties: without it, both ids are equal.
    unique_key = F.when(F.col("msg_id") != F.col("offset_msg_id"), F.col("msg_id"))
    unique = F.array_compact(F.array(unique_key))
    keys = F.coalesce(F.concat(unique, "keys"), F.array().cast("array<string>"))
    tag = F.array_compact(F.array(F.concat(F.lit(index_entry.TAG_KEY_PREFIX), F.col("tags"))))
    texts = F.concat(
        F.transform(keys, lambda key: F.struct(key.alias("text"), F.lit(0).alias("tags"))),
        F.transform(tag, lambda key: F.struct(key.alias("text"), F.lit(1).alias("tags"))),
    )
    exploded = messages.select("topic", "physical_offset", F.explode(texts).alias("key"))
    return exploded.select(
        _key_hash("topic", "key.text").alias("key_hash"),
        "physical_offset",
        F.lit(0).alias("entries"),
        (1 - F.col("key.tags")).alias("keys"),
        F.col("key.tags").alias("tags"),
    )


@F.udf(returnType=IntegerType(), useArrow=False)  # Arrow would need pandas
def _key_hash(topic: str, key: str) -> int:
    return index_entry.key_hash(index_entry.key_of(topic, key))


def _lags(report: Report, offsets: DataFrame) -> None:
    rows = (
        offsets.groupBy("consumer_group", "topic")
        .agg(F.sum("lag").alias("lag"))
        .orderBy(F.desc("lag"), "consumer_group", "topic")
        .collect()
    )
    report.lags = [LagRow(row[0], row[1], row[2]) for row in rows]
