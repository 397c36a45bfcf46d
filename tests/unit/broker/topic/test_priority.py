"""Priorities choose queues; tests/interop/test_priority.py compares with 5.5.0."""

import pytest

from reput.broker.topic import priority
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.groups import SubscriptionGroup

NAME = "_SYS_MSG_PRIORITY_"


@pytest.mark.parametrize(
    ("text", "queue_id"),
    [("0", 0), ("2", 2), ("+3", 3), ("4", 3), ("2147483647", 3), ("2147483648", None),
     ("-1", None), ("", None), ("high", None), (" 1", None), ("1.0", None)],
)  # fmt: skip
def test_the_queue_of_a_priority(text: str, queue_id: int | None) -> None:
    properties = {NAME: text}
    assert priority.queue_of(properties, 4) == queue_id
    assert properties == {NAME: text}


def test_a_message_without_priority_may_use_any_queue() -> None:
    assert priority.queue_of({}, 4) is None


def test_a_topic_without_write_queues() -> None:
    assert priority.queue_of({NAME: "3"}, 0) == 0


@pytest.mark.parametrize(
    "other", ["DELAY", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "__SHARDINGKEY"]
)
def test_other_kinds_of_messages_lose_their_priority(other: str) -> None:
    properties = {NAME: "3", other: "1"}
    assert priority.queue_of(properties, 4) is None
    assert properties == {other: "1"}


def test_half_messages_lose_their_priority() -> None:
    properties = {NAME: "3", "TRAN_MSG": "true"}
    assert priority.queue_of(properties, 4) is None
    assert properties == {"TRAN_MSG": "true"}


@pytest.mark.parametrize(
    ("kind", "factor", "percent"),
    [("PRIORITY", None, 100), ("PRIORITY", "30", 30), ("PRIORITY", "0", 0), ("FIFO", "30", 0),
     ("", None, 0)],
)  # fmt: skip
def test_how_often_the_higher_queues_are_read_first(
    kind: str, factor: str | None, percent: int
) -> None:
    topic = TopicConfig("T", 4, 4, 6, attributes=(("message.type", kind),) if kind else ())
    group = SubscriptionGroup(name="G", attributes=(("priority.factor", factor),) if factor else ())
    assert priority.read_percent(topic, group) == percent
    if factor is None:
        assert priority.read_percent(topic, None) == percent
