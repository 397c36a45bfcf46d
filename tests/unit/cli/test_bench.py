"""``reput bench`` against a broker, and the histogram against sorted values."""

import math
import random

import pytest

from reput.cli.histogram import Histogram
from reput.testing.local_broker import LocalBroker
from wire_command import Command


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--window", 1],
        ["--connections", 3, "--window", 7],
        ["--batch", 10],
        ["--rate", 5000],
        ["--one-way"],
    ],
    ids=str,
)
def test_what_is_counted_is_stored(
    command: Command, rocketmq: LocalBroker, options: list[object]
) -> None:
    rocketmq.create_topic("Bench", queues=3)
    found = command.json("bench", "produce", "Bench", "--count", 300, "--size", 50, *options)
    assert (found["message_count"], found["failed_count"], found["failures"]) == (300, 0, {})
    assert found["bytes"] == 300 * 50
    pulled = command.json("bench", "consume", "Bench", "--count", 301, "--duration", 30)
    assert pulled["message_count"] == 301  # and the one that comes before the clock starts
    stored = rocketmq.messages("Bench")
    assert len(stored) == 301
    assert {one.body for one in stored} == {b"x" * 50}
    assert len({one.message_id for one in stored}) == 301
    latency = found["latency_ms"]
    if "--one-way" in options:
        assert latency["max"] is None
    else:
        assert 0 < latency["p50"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]


def test_messages_are_spread_over_all_queues(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Bench", queues=4)
    command("bench", "produce", "Bench", "--count", 400)
    assert {one.queue_id for one in rocketmq.messages("Bench")} == {0, 1, 2, 3}


def test_there_is_a_line_each_second_and_a_summary(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Bench", queues=1)
    lines = command("bench", "produce", "Bench", "--duration", 1.2, "--rate", 100).splitlines()
    assert "messages" in lines[0]
    assert "/s" in lines[0]
    assert [line.split("  ")[0] for line in lines[-3:]] == ["messages", "rate", "latency ms"]


def test_what_a_broker_refuses_is_counted_and_makes_the_code_1(
    command: Command, rocketmq: LocalBroker
) -> None:
    rocketmq.create_topic("Bench", queues=1)
    # The broker allows no more than 4 MiB; one message alone is still less.
    options = ["--size", 500_000, "--batch", 12, "--count", 12]
    found = command.json("bench", "produce", "Bench", *options, code=1)
    assert (found["message_count"], found["failed_count"]) == (0, 12)
    (reason,) = found["failures"]
    assert "code 13" in reason


def test_a_topic_that_is_not_there_is_one_line(command: Command) -> None:
    assert "no topic 'Nothing'" in command.complaint("bench", "consume", "Nothing")


# --- the histogram ------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [100, 255, 256, 100_000, 1 << 40])
def test_percentiles_are_those_of_the_values(limit: int) -> None:
    generator = random.Random(limit)
    values = [generator.randrange(limit) for _ in range(1000)]
    found = Histogram()
    for one in values:
        found.record(one)
    values.sort()
    for percent in (0.1, 50, 90, 99, 99.9, 100):
        exact = values[math.ceil(len(values) * percent / 100) - 1]
        measured = found.percentile(percent)
        assert measured is not None
        assert exact <= measured <= exact + exact / 128
    assert (found.count, found.max) == (1000, values[-1])
    assert found.mean == sum(values) / 1000


def test_two_histograms_together_are_one() -> None:
    both, odd, even = Histogram(), Histogram(), Histogram()
    for one in range(10_000):
        both.record(one)
        (odd if one % 2 else even).record(one)
    odd.add(even)
    assert [odd.percentile(p) for p in range(1, 101)] == [both.percentile(p) for p in range(1, 101)]
    assert (odd.count, odd.max, odd.mean) == (both.count, both.max, both.mean)


def test_nothing_has_no_percentiles() -> None:
    assert (Histogram().percentile(50), Histogram().mean, Histogram().max) == (None, None, 0)
