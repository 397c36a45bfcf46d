"""Rates and means of a consumer: counts over elapsed time."""

from reput.client.core.consume_rates import ConsumeRates, RatesByTopic


def test_rates_and_means() -> None:
    rates = ConsumeRates(0)
    for at_ms in range(0, 30_000, 1000):
        rates.add_pull(at_ms, 20, 10)
        rates.add_call(at_ms, 6, 9, 1)
    status = rates.status(30_000)
    assert status.pull_tps == 10
    assert status.pull_rt == 20
    assert status.consume_rt == 6
    assert status.consume_ok_tps == 9
    assert status.consume_failed_tps == 1
    assert status.consume_failed_msgs == 30
    durations = rates.listener_durations
    assert (sum(durations.counts), durations.sum_ms) == (30, 180)


def test_rates_without_calls_are_zero() -> None:
    status = ConsumeRates(5).status(5)
    assert status.pull_rt == status.pull_tps == status.consume_rt == 0


def test_old_calls_leave_the_rates() -> None:
    rates = ConsumeRates(0)
    rates.add_call(0, 5, 60, 0)
    assert rates.status(60_000).consume_ok_tps == 1
    rates.add_call(61_000, 5, 0, 0)
    assert rates.status(120_500).consume_ok_tps < 1
    assert rates.status(500_000).consume_ok_tps == 0


def test_failures_are_counted_for_an_hour() -> None:
    rates = ConsumeRates(0)
    rates.add_call(0, 5, 0, 3)
    assert rates.status(3_599_999).consume_failed_msgs == 3
    rates.add_call(3_600_000, 5, 1, 0)
    assert rates.status(3_600_001).consume_failed_msgs == 0


def test_rates_of_a_topic_start_at_first_use() -> None:
    rates = RatesByTopic()
    rates.of("T", 0).add_call(0, 10, 1, 0)
    assert list(rates) == ["T"]
    assert rates.of("T", 5).status(5).consume_rt == 10
