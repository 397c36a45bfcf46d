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
        ["--tls", "--window", 7],
        ["--tls", "--rate", 5000],
        ["--tls", "--one-way"],
    ],
    ids=str,
)
def test_counted_messages_are_stored(
    command: Command, rocketmq: LocalBroker, options: list[object]
) -> None:
    rocketmq.create_topic("Bench", queues=3)
    result = command.json("bench", "produce", "Bench", "--count", 300, "--size", 50, *options)
    assert (result["message_count"], result["failed_count"], result["failures"]) == (300, 0, {})
    assert result["bytes"] == 300 * 50
    tls = [option for option in options if option == "--tls"]
    pulled = command.json("bench", "consume", "Bench", "--count", 301, "--duration", 30, *tls)
    assert pulled["message_count"] == 301  # including the one that creates the topic
    stored = rocketmq.messages("Bench")
    assert len(stored) == 301
    assert {message.body for message in stored} == {b"x" * 50}
    assert len({message.message_id for message in stored}) == 301
    latency = result["latency_ms"]
    if "--one-way" in options:
        assert latency["max"] is None
    else:
        assert 0 < latency["p50"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]


def test_messages_are_spread_over_all_queues(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Bench", queues=4)
    command("bench", "produce", "Bench", "--count", 400)
    assert {message.queue_id for message in rocketmq.messages("Bench")} == {0, 1, 2, 3}


def test_there_is_a_line_each_second_and_a_summary(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Bench", queues=1)
    lines = command("bench", "produce", "Bench", "--duration", 1.2, "--rate", 100).splitlines()
    assert "messages" in lines[0]
    assert "/s" in lines[0]
    assert [line.split("  ")[0] for line in lines[-3:]] == ["messages", "rate", "latency ms"]


def test_refused_messages_are_counted_and_make_the_exit_code_1(
    command: Command, rocketmq: LocalBroker
) -> None:
    rocketmq.create_topic("Bench", queues=1)
    # The broker allows at most 4 MiB a request: a batch of 12 exceeds it, one message does not.
    options = ["--size", 500_000, "--batch", 12, "--count", 12]
    result = command.json("bench", "produce", "Bench", *options, code=1)
    assert (result["message_count"], result["failed_count"]) == (0, 12)
    (reason,) = result["failures"]
    assert "code 13" in reason


def test_an_unknown_topic_is_one_line(command: Command) -> None:
    assert "no topic 'Nothing'" in command.complaint("bench", "consume", "Nothing")


# --- the histogram ------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [100, 255, 256, 100_000, 1 << 40])
def test_percentiles_match_sorted_values(limit: int) -> None:
    generator = random.Random(limit)
    values = [generator.randrange(limit) for _ in range(1000)]
    result = Histogram()
    for message in values:
        result.record(message)
    values.sort()
    for percent in (0.1, 50, 90, 99, 99.9, 100):
        exact = values[math.ceil(len(values) * percent / 100) - 1]
        measured = result.percentile(percent)
        assert measured is not None
        assert exact <= measured <= exact + exact / 128
    assert (result.count, result.max) == (1000, values[-1])
    assert result.mean == sum(values) / 1000


def test_added_histograms_equal_one() -> None:
    both, odd, even = Histogram(), Histogram(), Histogram()
    for message in range(10_000):
        both.record(message)
        (odd if message % 2 else even).record(message)
    odd.add(even)
    assert [odd.percentile(p) for p in range(1, 101)] == [both.percentile(p) for p in range(1, 101)]
    assert (odd.count, odd.max, odd.mean) == (both.count, both.max, both.mean)


def test_an_empty_histogram_has_no_percentiles() -> None:
    assert (Histogram().percentile(50), Histogram().mean, Histogram().max) == (None, None, 0)
