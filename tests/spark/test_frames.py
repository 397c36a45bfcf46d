"""``reput.spark.read``, ``sql``, ``table``: the rows of ``format("rocketmq")``, of fewer columns.

The rows of ``format("rocketmq")`` itself are compared with manifests in ``test_source.py``.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

import golden
import reput.spark
import seeds
from reput.errors import ReputError
from reput.spark import accelerator
from spark import reading

pytestmark = pytest.mark.filterwarnings("ignore")

QUERIES = 400 if golden.IS_SOAK else 8
COLUMNS = ("topic", "queue_id", "queue_offset", "tags", "keys", "body", "properties", "flag")
PLAIN = ("topic", "queue_id", "tags", "flag", "msg_id", "store_timestamp", "broker")
"""Columns that rows can be grouped by."""


def load(spark: SparkSession, store: Path, **options: object) -> DataFrame:
    return spark.read.format("rocketmq").options(**options).load(str(store))


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read with Python, whatever else the session has on its class path."""
    monkeypatch.setattr(accelerator, "is_available", lambda _: False)


def drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


@pytest.fixture
def reads(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the columns of the reads since the last call."""
    caplog.set_level(logging.INFO, "reput.spark")
    start = "rocketmq reads the columns "

    def take() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        assert not [line for line in lines if "not understood" in line], lines
        return [line.removeprefix(start) for line in lines if line.startswith(start)]

    return take


# Which columns ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        (lambda frame: frame.select("tags", "topic").collect(), ["topic, tags"]),
        (lambda frame: frame.select(F.length("body")).collect(), ["body"]),
        (lambda frame: frame.where("flag >= 0").select("msg_id").collect(), ["msg_id, flag"]),
        (lambda frame: frame.where("flag >= 0").count(), ["flag"]),
        (lambda frame: frame.count(), []),
        (lambda frame: frame.groupBy("topic", "queue_id").count().collect(), []),
        (lambda frame: frame.groupBy("tags").count().orderBy("tags").toArrow(), ["tags"]),
        (lambda frame: frame.where("tags = 'TagA'").count(), ["queue_id"]),
        (lambda frame: frame.groupBy("tags").agg({"flag": "max"}).collect(), ["tags, flag"]),
        (lambda frame: frame.drop("body", "properties").select("flag").tail(1), ["flag"]),
        (lambda frame: drop(frame.select("topic").distinct()), ["topic"]),
        (lambda frame: frame.join(frame.select("msg_id"), "msg_id").select("flag").collect(),
         ["msg_id, flag", "msg_id"]),
        (lambda frame: frame.isEmpty(), ["queue_id"]),
    ],
)  # fmt: skip
@pytest.mark.sampled(8)
def test_columns_that_a_query_reads(
    spark: SparkSession,
    reads: Callable[[], list[str]],
    query: Callable[[DataFrame], object],
    columns: list[str],
) -> None:
    frame = reput.spark.read(spark, str(golden.unpack("4.9.7", "clean")))
    query(frame)
    assert reads() == columns


def test_views_in_sql(spark: SparkSession, reads: Callable[[], list[str]]) -> None:
    load(spark, golden.unpack("4.9.7", "clean")).createOrReplaceTempView("messages")
    text = "SELECT tags, count(*) AS n FROM messages WHERE topic = {topic} GROUP BY tags ORDER BY n"
    got = reput.spark.sql(spark, text, topic="GoldenOne").collect()
    messages = golden.messages("4.9.7", "clean")
    tags = Counter(message["tags"] for message in messages if message["topic"] == "GoldenOne")
    assert {row["tags"]: row["n"] for row in got} == tags
    assert reads() == ["tags"]
    frame = reput.spark.table(spark, "messages").select("tags", "flag")
    assert len(frame.collect()) == len(reading.visible(messages))
    assert reads() == ["tags, flag"]
    frame.cache()
    try:
        assert frame.groupBy("tags").count().collect()
        assert reads() == []
    finally:
        frame.unpersist()


def test_damage_decides_about_rows_as_in_a_read_of_everything(
    spark: SparkSession, reads: Callable[[], list[str]]
) -> None:
    store = str(golden.unpack("4.9.7", "torn/size-late"))
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        want = len(reading.read(store, mode=mode).rows)
        assert reput.spark.read(spark, store, mode=mode).count() == want
        assert reads() == ["queue_id, body"]
    with pytest.raises(PySparkException, match="lengths do not add up"):
        reput.spark.read(spark, store).select("tags").collect()
    with pytest.raises(ReputError, match="topic 'orders' is not in"):
        reput.spark.read(spark, store, topic="orders").count()


# The same rows ------------------------------------------------------------------------------


def predicate(choice: random.Random, messages: list[dict[str, Any]]) -> str:
    message = choice.choice(messages)
    number = choice.choice(["<", "<=", "=", ">", ">=", "<=>", "<>"])
    return choice.choice(
        [
            f"topic = '{message['topic']}'",
            f"topic in ('{message['topic']}', '{choice.choice(messages)['topic']}', 'Nothing')",
            "topic = 'Nothing'",
            f"queue_id {number} {message['queueId']}",
            f"queue_offset {number} {message['queueOffset']}",
            f"physical_offset {number} {message['commitLogOffset']}L",
            f"store_timestamp {number} timestamp_millis({message['storeTimestamp']}L)",
            f"msg_id = '{message['uniqKey']}'",
            "tags = 'TagA'",
            "tags is null",
            "tags is not null",
            f"flag {number} {message['flag']}",
            "length(body) > 100",
            "topic like 'Golden%' or queue_id = 1",
            "not (queue_id = 1)",
            "queue_id = 0 or queue_id = 2",
            "queue_id in (select queue_id from part "
            f"where queue_offset > {message['queueOffset']})",
        ]
    )


def chain(choice: random.Random, messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Return a random query: names of steps, and their arguments."""
    steps: list[tuple[str, Any]] = [
        ("where", predicate(choice, messages)) for _ in range(choice.randrange(3))
    ]
    kind = choice.choice(["select", "group", "agg", "count", "union", "join", "distinct", "top"])
    some = sorted(choice.sample(PLAIN, choice.randint(1, 3)))
    if kind == "select":
        return [*steps, ("select", sorted(choice.sample(COLUMNS, choice.randint(1, 4))))]
    if kind == "union":
        return [*steps, ("union", predicate(choice, messages)), ("select", some)]
    if kind == "group" and choice.random() < 0.5:
        having = choice.choice(["count > 3", f"{some[0]} is not null"])
        return [*steps, ("group", some), ("where", having)]
    return [*steps, (kind, some)]


def run(frame: DataFrame, steps: list[tuple[str, Any]]) -> Any:
    for name, argument in steps:
        match name:
            case "where":
                frame = frame.where(argument)
            case "select":
                frame = frame.select(*argument)
            case "union":
                frame = frame.union(frame.where(argument))
            case "group":
                frame = frame.groupBy(*argument).count()
            case "agg":
                frame = frame.groupBy(argument[0]).agg(
                    F.count("*").alias("count"), F.max("queue_offset"), F.countDistinct("tags")
                )
            case "join":
                right = frame.select("physical_offset", F.col(argument[0]).alias("other"))
                frame = frame.join(right, "physical_offset", "left").select("other", *argument)
            case "distinct":
                frame = frame.select(*argument).distinct()
            case "top":
                frame = frame.orderBy(F.desc("physical_offset")).limit(5).select(*argument)
            case "count":
                return frame.count()
    return sorted(map(str, frame.collect()))


@pytest.mark.parametrize("number", range(QUERIES))
@pytest.mark.sampled(8)
def test_random_queries_have_the_rows_of_the_source(spark: SparkSession, number: int) -> None:
    choice = seeds.random("frames", number)
    version = choice.choice(golden.VERSIONS) if golden.IS_SOAK else "4.9.7"
    store, messages = golden.unpack(version, "clean"), golden.messages(version, "clean")
    load(spark, store).createOrReplaceTempView("part")
    options: dict[str, Any] = choice.choice(
        [{}, {"readIsolation": "all"}, {"mode": "PERMISSIVE"}, {"topic": "GoldenOne,GoldenFour"}]
    )
    steps = chain(choice, messages)
    want = run(load(spark, store, **options), steps)
    assert run(reput.spark.read(spark, str(store), **options), steps) == want, (options, steps)
