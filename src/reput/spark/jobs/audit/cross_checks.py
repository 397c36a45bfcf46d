"""Compare messages with each other on the table, by Spark: copies, deliveries, transactions.

    copies     the same topic, unique key, attempt, body checksum and length, more than once
    delays     a delayed message before its level's offset, and the message in its topic
    halves     half messages, the messages that commit them, the operations that end them

Rows are matched by hashes: only a hash of eight bytes per message is shuffled, and whole rows only
of messages with equal hashes.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from reput.errors import InvalidOption
from reput.format import names, sys_flag as flags
from reput.spark.jobs.audit import message_table
from reput.spark.jobs.audit.verdicts import AuditResult, MessageVerdict, Stage, TopicAudit, total

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_COPY = ("topic", "uniq_key", "attempts", "body_crc", "body_size")
_HALVES = {
    names.OP_HALF_TOPIC: names.HALF_TOPIC,
    names.ROCKSDB_OP_HALF_TOPIC: names.ROCKSDB_HALF_TOPIC,
}
"""Topic of op messages -> topic of the half messages they end."""
_CHECK_GROUP = "CID_RMQ_SYS_TRANS"
"""Group as which the transaction check reads half messages."""


def messages(spark: "SparkSession", table: str) -> "DataFrame":
    """Return the rows of a table with their links. As ``audit.messages``."""
    if not message_table.is_finished(table):
        raise InvalidOption("table", table, "the table of an audit that has ended")
    rows = spark.read.parquet(message_table.spark_path(table, message_table.MESSAGES))
    links = _read_links(spark, message_table.spark_path(table, message_table.LINKS))
    links = links.withColumnRenamed("stage", "found_stage")
    joined = rows.join(links, "physical_offset", "left")
    stage = F.coalesce("found_stage", "stage")
    return joined.withColumn("stage", stage).drop("found_stage")


def complete(spark: "SparkSession", result: AuditResult, table: str) -> AuditResult:
    """Find the links, write them beside the rows, and count them."""
    rows = spark.read.parquet(message_table.spark_path(table, message_table.MESSAGES))
    links_found = _copies(rows).unionByName(_delays(rows)).unionByName(_halves(rows))
    path = message_table.spark_path(table, message_table.LINKS)
    links_found.write.mode("overwrite").parquet(path)
    links = _read_links(spark, path)
    duplicated = links.filter("first_copy != physical_offset").count()
    staged = links.filter("stage is not null").join(rows.drop("stage"), "physical_offset")
    counts = staged.groupBy("topic", "stage").count().collect()
    topics = {audit.topic: audit for audit in result.topics}
    for topic in {row["topic"] for row in counts}:
        more = {row["stage"]: row["count"] for row in counts if row["topic"] == topic}
        topics[topic] = _restaged(topics[topic], more)
    return replace(
        result, topics=tuple(topics[name] for name in sorted(topics)), duplicated=duplicated
    )


def _restaged(audit: TopicAudit, stages: dict[str, int]) -> TopicAudit:
    """Return a topic with the stages of some messages replaced."""
    before = Stage.DELIVERED if audit.topic == names.SCHEDULE_TOPIC else Stage.UNDECIDED
    moved = {str(before): -sum(stages.values())}
    return replace(audit, stages=total([audit.stages, moved, stages]))


_LINK_KINDS = {"copies": "long", "first_copy": "long", "other": "long", "stage": "string"}


def _links(frame: "DataFrame", **known: "Column") -> "DataFrame":
    return frame.select(
        "physical_offset",
        *(
            known.get(name, F.lit(None)).cast(kind).alias(name)
            for name, kind in _LINK_KINDS.items()
        ),
    )


def _read_links(spark: "SparkSession", path: str) -> "DataFrame":
    # Without links Spark writes no file from which to infer the columns.
    kinds = ", ".join(f"{name} {kind}" for name, kind in _LINK_KINDS.items())
    return spark.read.schema(f"physical_offset long, {kinds}").parquet(path)


def _copies(rows: "DataFrame") -> "DataFrame":
    """Return the messages that are stored more than once, and the place of the first copy."""
    is_own = F.col("topic").isin(*names.SYSTEM_TOPICS) | F.col("topic").startswith(
        names.SYSTEM_TOPIC_PREFIX
    )
    stored = [
        str(verdict)
        for verdict in (MessageVerdict.DISPATCHED, MessageVerdict.UNDISPATCHED, MessageVerdict.LOST)
    ]
    plain = rows.filter(F.col("verdict").isin(*stored) & F.col("uniq_key").isNotNull() & ~is_own)
    hashed = plain.select(*_COPY, "physical_offset", F.xxhash64(*_COPY).alias("hash"))
    met = hashed.groupBy("hash").count().filter("count > 1").select("hash")
    same = hashed.join(met, "hash", "left_semi").groupBy(*_COPY)
    counted = same.agg(
        F.count("*").alias("copies"),
        F.min("physical_offset").alias("first_copy"),
        F.collect_list("physical_offset").alias("places"),
    ).filter("copies > 1")
    each = counted.select("copies", "first_copy", F.explode("places").alias("physical_offset"))
    return _links(each, copies=F.col("copies"), first_copy=F.col("first_copy"))


def _delays(rows: "DataFrame") -> "DataFrame":
    """Return the places where delayed messages were delivered, and undelivered messages."""
    is_delivered = F.col("stage") == str(Stage.DELIVERED)
    is_delivered &= F.col("topic") == names.SCHEDULE_TOPIC
    delayed = rows.filter(
        is_delivered & F.col("uniq_key").isNotNull() & F.col("real_topic").isNotNull()
    )
    delayed = delayed.select("physical_offset", "real_topic", "uniq_key", "attempts")
    in_topic = rows.filter((F.col("real_topic") == F.col("topic")) & F.col("uniq_key").isNotNull())
    arrived = in_topic.groupBy("real_topic", "uniq_key", "attempts").agg(
        F.max("physical_offset").alias("other")
    )
    joined = delayed.join(arrived, ["real_topic", "uniq_key", "attempts"], "left")
    is_there = F.col("other") > F.col("physical_offset")
    stage = F.when(is_there, F.lit(None)).otherwise(F.lit(str(Stage.UNDELIVERED)))
    return _links(joined, other=F.when(is_there, F.col("other")), stage=stage)


def _halves(rows: "DataFrame") -> "DataFrame":
    """Return the end of each half message."""
    halves = rows.filter(F.col("topic").isin(*_HALVES.values()))
    is_commit = F.col("sys_flag").bitwiseAND(flags.TRANSACTION_MASK) == flags.TRANSACTION_COMMIT
    by_half = rows.filter(is_commit).groupBy("prepared_transaction_offset")
    commits = by_half.agg(F.min("physical_offset").alias("other"))
    commits = commits.withColumnRenamed("prepared_transaction_offset", "physical_offset")
    half_topic = F.when(F.col("topic") == names.OP_HALF_TOPIC, names.HALF_TOPIC)
    half_topic = half_topic.otherwise(names.ROCKSDB_HALF_TOPIC)
    ended = rows.filter(F.col("ends").isNotNull()).select(
        half_topic.alias("topic"), "queue_id", F.explode("ends").alias("queue_offset")
    )
    ended = ended.distinct().withColumn("is_ended", F.lit(True))
    half = ["physical_offset", "topic", "queue_id", "queue_offset", "groups_consumed"]
    joined = halves.select(*half).join(commits, "physical_offset", "left")
    joined = joined.join(ended, ["topic", "queue_id", "queue_offset"], "left")
    is_passed = F.array_contains("groups_consumed", _CHECK_GROUP)
    stage = (
        F.when(F.col("other").isNotNull(), str(Stage.COMMITTED))
        .when(F.col("is_ended"), str(Stage.ROLLED_BACK))
        .when(is_passed, str(Stage.CHECKED))
        .otherwise(str(Stage.UNDECIDED))
    )
    return _links(joined, other=F.col("other"), stage=stage)
