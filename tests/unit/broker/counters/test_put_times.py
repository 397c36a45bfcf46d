"""Durations of puts. The text and its classes are those of ``StoreStatsService`` in 4.9.7."""

import math

import pytest

from reput.broker.counters.put_times import MINUTE_MS, TIME_MS_MAX, PutTimes

START_MS = 1_700_000_000_000
NOTHING = (
    "[<=0ms]:0 [0~10ms]:0 [10~50ms]:0 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 "
    "[1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:0 "
)
"""Text of a 4.9.7 broker after a minute without puts."""


def counts(times: PutTimes) -> list[int]:
    return [int(part.rpartition(":")[2]) for part in times.distribution().split()]


def test_distribution_without_puts() -> None:
    times = PutTimes()
    assert times.distribution() == NOTHING
    assert (times.percentile_ms(0.99), times.max_ms, times.sum_ms) == (0, 0, 0)


@pytest.mark.parametrize(
    ("duration_ms", "number"),  # the if-else chain of setPutMessageEntireTimeMax
    [
        (0, 0), (1, 1), (9, 1), (10, 2), (49, 2), (50, 3), (99, 3), (100, 4), (199, 4), (200, 5),
        (499, 5), (500, 6), (999, 6), (1000, 7), (1999, 7), (2000, 8), (2999, 8), (3000, 9),
        (3999, 9), (4000, 10), (4999, 10), (5000, 11), (9999, 11), (10_000, 12), (10**9, 12),
    ],
)  # fmt: skip
def test_classes_are_those_of_java(duration_ms: int, number: int) -> None:
    times = PutTimes()
    times.add(duration_ms, 3)
    assert counts(times) == [3 * (i == number) for i in range(13)]


def test_percentiles() -> None:
    times = PutTimes()
    times.add(1, 989)
    times.add(7, 10)
    times.add(30)
    assert [times.percentile_ms(share) for share in (0.5, 0.989, 0.99, 0.999, 1)] == [
        1,
        1,
        7,
        7,
        30,
    ]
    assert times.max_ms == 30
    assert times.sum_ms == 989 + 70 + 30


def test_the_distribution_covers_the_last_minute() -> None:
    times = PutTimes()
    times.step(START_MS)
    times.add(5)
    assert sum(counts(times)) == 1  # no minute has passed yet
    times.step(START_MS + MINUTE_MS - 1)
    times.add(20)
    times.step(START_MS + MINUTE_MS)
    times.add(5_000)
    assert counts(times)[:4] == [0, 1, 1, 0]
    assert sum(counts(times)) == 2
    times.step(START_MS + 2 * MINUTE_MS)
    assert (times.percentile_ms(0.99), sum(counts(times))) == (5_000, 1)
    times.step(START_MS - 3_600_000)  # the clock was set back
    assert times.distribution() == NOTHING
    assert times.max_ms == 5_000


def test_totals_are_never_reset() -> None:
    times = PutTimes()
    times.step(START_MS)
    for duration_ms in (0, 0, 9, 10, 10 * TIME_MS_MAX):
        times.add(duration_ms)
    times.step(START_MS + MINUTE_MS)
    totals = dict(times.totals())
    assert [totals[bound] for bound in (0.001, 0.01, 0.05, 10, math.inf)] == [2, 3, 4, 4, 5]
