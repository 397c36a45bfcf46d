"""The audit on Spark: checks that join messages. Verdicts are tested in tests/unit/spark/jobs."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions as F

import golden
import store_builder
from reput.errors import InvalidOption
from reput.format import names, properties as props, sys_flag as flags
from reput.spark.jobs import audit as job
from reput.spark.jobs.audit.verdicts import MessageVerdict, Stage

LATER_MS = 2_000_000_000_000


def copies(messages: list[dict[str, Any]]) -> dict[int, tuple[int, int]]:
    """Return physical offset -> (copies, first copy) of messages stored more than once."""
    same: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for message in messages:
        if not names.is_system_topic(message["topic"]) and message["uniqKey"]:
            key = ("topic", "uniqKey", "reconsumeTimes", "bodyCRC", "storedBodyLength")
            same[tuple(message[name] for name in key)].append(message["commitLogOffset"])
    return {
        physical_offset: (len(of), min(of))
        for of in same.values()
        if len(of) > 1
        for physical_offset in of
    }


@pytest.mark.soak
def test_the_audit_of_a_store_of_java_with_a_table(spark: SparkSession, tmp_path: Path) -> None:
    messages = golden.messages("4.9.7", "clean")
    store, table = golden.unpack("4.9.7", "clean"), str(tmp_path / "table")
    steps: list[tuple[str, int, int]] = []
    result = job.audit(
        spark, str(store), table=table, now_ms=LATER_MS, range_bytes=300_000,
        progress=lambda *step: steps.append(step),
    )  # fmt: skip
    assert result.is_clean
    # Each unit was claimed by its record: no other stages.
    assert [stage for stage, done, of in steps if done == of] == ["index", "records", "links"]
    rows = {row["physical_offset"]: row for row in job.messages(spark, table).collect()}
    assert len(rows) == len(messages)
    twice = copies(messages)
    copied = {place: (row["copies"], row["first_copy"]) for place, row in rows.items()}
    assert {place: copy for place, copy in copied.items() if copy[0]} == twice
    assert result.duplicated == sum(place != first for place, (_, first) in twice.items())

    for message in messages:
        row = rows[message["commitLogOffset"]]
        if message["topic"] == names.SCHEDULE_TOPIC and row["stage"] == Stage.DELIVERED:
            there = rows[row["other"]]
            assert there["topic"] == message["properties"]["REAL_TOPIC"]
            assert there["uniq_key"] == message["uniqKey"]
    halves = [
        rows[message["commitLogOffset"]]
        for message in messages
        if message["topic"] == names.HALF_TOPIC
    ]
    committed = [row for row in halves if row["stage"] == "committed"]
    assert {row["physical_offset"]: row["other"] for row in committed} == {
        message["preparedTransactionOffset"]: message["commitLogOffset"]
        for message in messages
        if message["sysFlag"] & flags.TRANSACTION_MASK == flags.TRANSACTION_COMMIT
    }
    ends = sum(message["topic"] == names.OP_HALF_TOPIC for message in messages)
    counted = Counter(row["stage"] for row in halves)
    assert counted["committed"] + counted["rolled_back"] == ends
    in_result = next(topic for topic in result.topics if topic.topic == names.HALF_TOPIC)
    assert in_result.stages == dict(counted)


@pytest.mark.soak
def test_lost_duplicated_and_undelivered_messages(spark: SparkSession, tmp_path: Path) -> None:
    def delayed(key: str) -> Any:
        known = {props.DELAY: "1", props.REAL_TOPIC: "TopicA", props.REAL_QUEUE_ID: "0"}
        return store_builder.message(names.SCHEDULE_TOPIC, unique_key=key, properties=known)

    real = {props.REAL_TOPIC: "TopicA", props.REAL_QUEUE_ID: "0"}
    sent = [
        store_builder.message("TopicA", b"once", unique_key="U1"),
        store_builder.message("TopicA", b"twice", unique_key="U2"),
        store_builder.message("TopicA", b"twice", unique_key="U2", queue_id=1),
        store_builder.message("TopicA", b"of a batch", unique_key="U3"),
        store_builder.message("TopicA", b"of a batch, too", unique_key="U3"),
        delayed("arrived"),
        delayed("not arrived"),
        store_builder.message("TopicA", unique_key="arrived", properties=real),
        store_builder.message(names.HALF_TOPIC, unique_key="H1", properties=real),
        store_builder.message(names.HALF_TOPIC, unique_key="H2", properties=real),
        store_builder.message(names.HALF_TOPIC, unique_key="H3", properties=real),
        store_builder.message(names.OP_HALF_TOPIC, b"0,1", tags="d"),
    ]
    placed = store_builder.place(sent, 4096)
    commit = store_builder.message(
        "TopicA",
        unique_key="H1",
        properties=real,
        sys_flag=flags.TRANSACTION_COMMIT,
        prepared_transaction_offset=placed[8].physical_offset,
    )
    built = store_builder.build(tmp_path / "store", [*sent, commit])
    (built.root / "config" / "delayOffset.json").write_text('{"offsetTable":{1:2}}')
    unit = built.queue_file("TopicA", 0)
    unit.write_bytes(bytes(20) + unit.read_bytes()[20:])

    table = str(tmp_path / "table")
    with pytest.raises(InvalidOption, match="table"):
        job.messages(spark, table)
    result = job.audit(spark, str(built.root), table=table)
    assert (result.duplicated, result.lost_count, result.is_clean) == (1, 1, False)
    assert result.stages == {
        Stage.COMMITTED: 1,
        Stage.DELIVERED: 1,
        Stage.OPERATION: 1,
        Stage.ROLLED_BACK: 1,
        Stage.UNDECIDED: 1,
        Stage.UNDELIVERED: 1,
    }
    rows = job.messages(spark, table)
    lost = rows.filter(F.col("verdict") == str(MessageVerdict.LOST)).collect()
    assert [(row["uniq_key"], row["reason"]) for row in lost] == [("U1", "no_unit")]
    places = [message.physical_offset for message in built.messages]
    doubled = rows.filter("copies > 1").orderBy("physical_offset").collect()
    assert [(row["physical_offset"], row["first_copy"]) for row in doubled] == [
        (places[1], places[1]),
        (places[2], places[1]),
    ]
    stages = {
        row["uniq_key"]: (row["stage"], row["other"])
        for row in rows.filter("stage is not null and uniq_key is not null").collect()
    }
    assert stages == {
        "arrived": (Stage.DELIVERED, places[7]),
        "not arrived": (Stage.UNDELIVERED, None),
        "H1": (Stage.COMMITTED, places[12]),
        "H2": (Stage.ROLLED_BACK, None),
        "H3": (Stage.UNDECIDED, None),
    }
