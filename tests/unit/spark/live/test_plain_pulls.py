"""Which reads of brokers the accelerator may begin by itself."""

from typing import Any

import pytest

from reput.spark import options as option_texts, plan
from reput.spark.filters import Constraint, from_span, from_values
from reput.spark.live.plain_pulls import is_plain
from reput.spark.live.plan import LiveTask
from reput.spark.store_planner import option_constraint
from spark import reading


def are_plain(constraint: Constraint | None = None, **given: Any) -> bool:
    options = option_texts.parse(reading.texts({"nameServer": "127.0.0.1:1", **given}))
    return is_plain(options, option_constraint(options).meet(constraint or Constraint()))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"topic": "Orders"},
        {"subscribePattern": "Or.*"},
        {"assign": {"Orders": {"broker-a": [0]}}},
        {"startingOffsets": "group:Billing", "topic": "Orders"},
        {"startingTimestamp": 1, "endingTimestamp": 2},
        {"columns": "topic,body", "checkCrc": False, "decompress": "none"},
        {"readIsolation": "all", "includeRetry": False},
        {"pullBatchSize": 7, "readFrom": "slave", "failOnDataLoss": False},
        {"namespaceV2": "ns"},
    ],
    ids=str,
)
def test_plain_reads(given: dict[str, Any]) -> None:
    assert are_plain(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"tags": "TagA"},
        {"sql92": "a = 1"},
        {"key": "k"},
        {"uniqKey": "x"},
        {"charset": "utf-8"},
        {"rawProperties": True},
        {"resolveTopics": True},
        {"useTls": True},
        {"accessKey": "user", "secretKey": "pass"},
        {"namespace": "ns"},
    ],
    ids=str,
)
def test_other_reads(given: dict[str, Any]) -> None:
    assert not are_plain(**given)


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (from_values("topic", ["Orders"]), True),
        (from_values("queue_id", [1]), True),
        (from_span("queue_offset", 5, 9), True),
        (from_values("tags", ["TagA"]), False),
        (from_values("msg_id", ["x"]), False),
        (from_span("store_timestamp", 5, None), False),
        (from_span("physical_offset", 5, None), False),
        (from_span("physical_offset", None, 5), False),
    ],
)
def test_predicates(constraint: Constraint, expected: bool) -> None:
    assert are_plain(constraint) is expected


def test_a_task_without_its_first_messages() -> None:
    slices = tuple(plan.QueueSlice("Orders", number, 10, 20) for number in range(3))
    task = LiveTask(plan.QueueRange(0, slices), "broker-a", 100.0)

    def left(count: int) -> list[tuple[int, int, int]]:
        parts = task.after(count).partition.slices
        return [(part.queue_id, part.start, part.stop) for part in parts]

    assert left(0) == [(0, 10, 20), (1, 10, 20), (2, 10, 20)]
    assert left(3) == [(0, 13, 20), (1, 10, 20), (2, 10, 20)]
    assert left(10) == [(1, 10, 20), (2, 10, 20)]
    assert left(25) == [(2, 15, 20)]
    assert left(30) == []
