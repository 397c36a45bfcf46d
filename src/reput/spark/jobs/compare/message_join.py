"""Match the messages of two sides by topic, queue and queue offset, and the rest by unique key.

It is for sides with different physical offsets: stores of two brokers, or a store and a running
broker. Spark groups both sides once by place; the few messages without an equal at their place are
grouped by unique key. Bodies and properties are compared by their hashes.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window, functions as F

from reput.spark.jobs.compare.findings import (
    DIFFERENT,
    KINDS,
    ONLY_LEFT,
    ONLY_RIGHT,
    Counted,
    Mismatch,
)
from reput.spark.jobs.running import TaskFailed, reason
from reput.spark.registration import let_workers_find_source

NUMBERS_AND_HOSTS = (
    *("physical_offset", "flag", "sys_flag", "born_timestamp", "born_host", "store_timestamp"),
    *("store_host", "reconsume_times", "prepared_transaction_offset", "body_crc", "store_size"),
)
HASHED = {"body": "body", "properties": "raw_properties"}
"""Fields compared by hash -> their columns."""
FINDING_SCHEMA = """
    section string, kind string, text string, count long, file string, topic string, queue_id int,
    queue_offset long, physical_offset long, field string, left string, right string
"""
_PLACE = ("topic", "queue_id", "queue_offset")
_SIDES = ("left", "right")


def read(spark: SparkSession, options: Mapping[str, str], *, partition_bytes: int) -> DataFrame:
    """Return the messages of a side with the compared fields.

    Args:
        spark: The session.
        options: Options of ``format("rocketmq")`` for the side.
        partition_bytes: Approximate bytes that a task reads.
    """
    columns = [*_PLACE, "msg_id", *NUMBERS_AND_HOSTS, *HASHED.values()]
    defaults = {
        "readIsolation": "all",
        "checkCrc": "false",
        "decompress": "none",
        "rawProperties": "true",
        "columns": ",".join(columns),
        "maxBytesPerPartition": str(partition_bytes),
    }
    let_workers_find_source(spark)
    frame = spark.read.format("rocketmq").options(**{**defaults, **options}).load()
    hashes = [F.xxhash64(column).alias(name) for name, column in HASHED.items()]
    return frame.select(*_PLACE, "msg_id", *NUMBERS_AND_HOSTS, *hashes)


def findings(left: DataFrame, right: DataFrame, ignore: Collection[str]) -> DataFrame:
    """Return the differences of two sides, a row per ``Mismatch``.

    Args:
        left: The messages from ``read``.
        right: The messages of the other side.
        ignore: Names of fields that may differ.
    """
    names = [name for name in (*NUMBERS_AND_HOSTS, *HASHED) if name not in ignore]
    rest = _unequal(left, right, names)
    key = F.coalesce("left.msg_id", "right.msg_id")
    alone = F.col("left").isNull() | F.col("right").isNull()
    place = F.concat_ws("/", F.col("queue_id"), F.col("queue_offset"), F.col("nth"))
    rest = rest.withColumn("is_alone", alone).withColumn(
        # A message without unique key, or with an equal at its place, is a group by itself.
        "key",
        F.when(F.col("is_alone"), F.coalesce(key, place)).otherwise(place),
    )
    group = Window.partitionBy("topic", "key", "is_alone")
    other = F.when(F.col("left").isNull(), F.struct("queue_id", "queue_offset"))
    rest = rest.withColumns(
        {
            "is_moved": F.col("is_alone")
            & (F.count("left").over(group) == 1)
            & (F.count("right").over(group) == 1),
            "moved_to": F.max(other).over(group),
        }
    )
    # A message that has moved is reported once, by its place on the left.
    return rest.filter(~F.col("is_moved") | F.col("left").isNotNull()).select(
        *_columns(names, ignores_queue="queue_id" in ignore)
    )


def counted(frame: DataFrame, most: int) -> Counted:
    """Return the number of findings of each kind, and the first ones.

    Raises:
        TaskFailed: A side cannot be read.
    """
    seen = Observation()
    counts = [F.count_if(F.col("kind") == kind).alias(kind) for kind in KINDS]
    order = ["kind", "topic", "queue_id", "queue_offset"]
    try:
        rows = frame.observe(seen, *counts).orderBy(*order).limit(max(most, 1)).collect()
    except PySparkException as error:
        raise TaskFailed(f"compare, messages: {reason(error)}") from error
    totals = seen.get
    return (
        {("messages", kind): totals[kind] for kind in KINDS},
        [Mismatch(**row.asDict()) for row in rows[:most]],
    )


def _unequal(left: DataFrame, right: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return pairs of records at a place that differ or lack one: ``left``, ``right``, ``names``.

    If several records of a side have one place, they are matched in log order.
    """
    both = left.withColumn("is_left", F.lit(True)).unionByName(
        right.withColumn("is_left", F.lit(False))
    )
    fields = ["physical_offset", *[name for name in both.columns if name not in _PLACE]]
    record = F.struct(*dict.fromkeys(fields))
    places = both.groupBy(*_PLACE).agg(F.sort_array(F.collect_list(record)).alias("records"))
    lists = {
        "left": F.filter("records", lambda row: row["is_left"]),
        "right": F.filter("records", lambda row: ~row["is_left"]),
    }
    pairs = places.select(
        *_PLACE,
        F.posexplode(F.arrays_zip(*[column.alias(side) for side, column in lists.items()])),
    ).select(*_PLACE, F.col("pos").alias("nth"), "col.left", "col.right")
    differs = [F.when(~_of("left", name).eqNullSafe(_of("right", name)), name) for name in names]
    none = F.lit(None).cast("string")
    named = pairs.withColumn("names", F.array_compact(F.array(none, *differs)))
    is_alone = F.col("left").isNull() | F.col("right").isNull()
    return named.filter(is_alone | (F.size("names") > 0))


def _of(side: str, name: str) -> Column:
    return F.col(side)[name]


# Findings -------------------------------------------------------------------------------------


def _columns(names: Sequence[str], *, ignores_queue: bool) -> list[Column]:
    """Return the columns of a ``Mismatch``, from those of a pair."""
    is_moved, moved_to = F.col("is_moved"), F.col("moved_to")
    is_left, is_right = F.col("left").isNotNull(), F.col("right").isNotNull()
    side = F.when(is_left, "left").otherwise("right")
    here = _message_name(F.col("queue_id"), F.col("queue_offset"))
    there = _message_name(moved_to["queue_id"], moved_to["queue_offset"])
    is_other_queue = F.lit(not ignores_queue) & (F.col("queue_id") != moved_to["queue_id"])
    moved_in = F.when(is_other_queue, F.lit("queue_id,queue_offset")).otherwise("queue_offset")
    fields = F.array_join("names", ",")
    shown = {side: _values(side, names) for side in _SIDES}
    other_side = F.when(is_left, "right").otherwise("left")
    texts = {
        "moved": F.concat(
            *(F.lit("left "), here, F.lit(" is on the right "), there),
            *(F.lit(", by its unique key "), _of("left", "msg_id")),
        ),
        "alone": F.concat(
            here,
            *(F.lit(" is only on the "), side, F.lit(": "), other_side),
            F.lit(" has no message there"),
        ),
        "differs": F.concat(
            *(here, F.lit(" differs in "), fields, F.lit(": left "), shown["left"]),
            *(F.lit(", right "), shown["right"]),
        ),
    }
    is_pair = is_left & is_right
    given = {
        "section": F.lit("messages"),
        "kind": F.when(is_moved | is_pair, DIFFERENT)
        .when(is_left, ONLY_LEFT)
        .otherwise(ONLY_RIGHT),
        "text": F.when(is_moved, texts["moved"])
        .when(is_pair, texts["differs"])
        .otherwise(texts["alone"]),
        "count": F.lit(1),
        "topic": F.col("topic"),
        "queue_id": F.col("queue_id"),
        "queue_offset": F.col("queue_offset"),
        "physical_offset": F.coalesce(*[_of(side, "physical_offset") for side in _SIDES]),
        "field": F.when(is_moved, moved_in).when(is_pair, fields),
        "left": F.when(is_moved, F.col("queue_offset").cast("string")).when(is_pair, shown["left"]),
        "right": F.when(is_moved, moved_to["queue_offset"].cast("string")).when(
            is_pair, shown["right"]
        ),
    }
    types = {"count": "long", "queue_id": "int", "queue_offset": "long", "physical_offset": "long"}
    return [
        given.get(column.name, F.lit(None))
        .cast(types.get(column.name, "string"))
        .alias(column.name)
        for column in dataclasses.fields(Mismatch)
    ]


def _message_name(queue_id: Column, queue_offset: Column) -> Column:
    parts = (F.lit("message "), queue_offset, F.lit(" of "), F.col("topic"), F.lit("/"), queue_id)
    return F.concat(*[part.cast("string") for part in parts])


def _values(side: str, names: Sequence[str]) -> Column:
    """Return a side's values of the differing fields, but for hashed fields."""
    shown = [
        F.when(
            F.array_contains("names", name),
            F.coalesce(_of(side, name).cast("string"), F.lit("nothing")),
        )
        for name in names
        if name not in HASHED
    ]
    return F.array_join(F.array_compact(F.array(*shown)), "; ") if shown else F.lit("")
