from random import Random

import pytest
from hypothesis import given, strategies as st

from reput.client.core.queue_choice import (
    FAILURE_COUNTS_AS_MS,
    QueueChoice,
    SlowBrokers,
    avoidance_ms,
)
from reput.format.bodies import MessageQueue


def queues_of(**counts: int) -> list[MessageQueue]:
    return [
        MessageQueue("T", broker, queue_id)
        for broker, count in counts.items()
        for queue_id in range(count)
    ]


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 99), st.integers(0, 50))
def test_queues_take_turns(a: int, b: int, seed: int, skipped: int) -> None:
    queues = queues_of(a=a, b=b)
    choice = QueueChoice(rng=Random(seed))
    for _ in range(skipped):
        choice.choose("T", queues, 0, None)

    assert {choice.choose("T", queues, 0, None) for _ in queues} == set(queues)


def test_each_topic_has_its_own_round_robin() -> None:
    queues = queues_of(a=4)
    choice = QueueChoice(rng=Random(1))
    chosen = [(topic, choice.choose(topic, queues, 0, None)) for topic in "TTUTUUTU"]

    for topic in "TU":
        assert {queue for name, queue in chosen if name == topic} == set(queues)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99), st.booleans())
def test_a_retry_goes_to_another_broker(a: int, b: int, seed: int, avoids_slow: bool) -> None:
    choice = QueueChoice(SlowBrokers() if avoids_slow else None, Random(seed))

    for _ in range(a + b):
        assert choice.choose("T", queues_of(a=a, b=b), 0, "a").broker_name == "b"


@pytest.mark.parametrize("avoids_slow", [False, True])
def test_a_retry_on_the_only_broker_takes_another_queue(avoids_slow: bool) -> None:
    choice = QueueChoice(SlowBrokers() if avoids_slow else None, Random(3))
    tried = [choice.choose("T", queues_of(a=3), 0, last) for last in (None, "a", "a")]

    assert set(tried) == set(queues_of(a=3))


def test_a_slow_broker_is_avoided_for_a_while() -> None:
    slow = SlowBrokers()
    choice = QueueChoice(slow, Random(5))
    queues = queues_of(a=2, b=2)
    slow.record("a", 600, now_ms=1_000)

    assert {choice.choose("T", queues, 30_999, None).broker_name for _ in range(8)} == {"b"}
    assert {choice.choose("T", queues, 31_000, None) for _ in range(4)} == set(queues)


def test_the_broker_available_soonest_is_chosen_if_all_are_slow() -> None:
    slow = SlowBrokers()
    choice = QueueChoice(slow, Random(5))
    slow.record("a", FAILURE_COUNTS_AS_MS, now_ms=0)
    slow.record("b", 1_000, now_ms=0)
    slow.record("c", 2_000, now_ms=0)
    queues = queues_of(a=2, b=2, c=2)

    assert {choice.choose("T", queues, 10, None).broker_name for _ in range(8)} == {"b"}
    assert {choice.choose("T", queues, 10, "b").broker_name for _ in range(8)} == {"c"}


def test_a_fast_reply_ends_the_avoidance() -> None:
    slow = SlowBrokers()
    slow.record("a", FAILURE_COUNTS_AS_MS, now_ms=0)
    assert not slow.is_available("a", 1)

    slow.record("a", 20, now_ms=2)
    assert slow.is_available("a", 2)


@given(st.integers(0, 100_000), st.integers(0, 100_000))
def test_avoidance_does_not_decrease_with_latency(one_ms: int, more_ms: int) -> None:
    assert avoidance_ms(one_ms) <= avoidance_ms(one_ms + more_ms)
