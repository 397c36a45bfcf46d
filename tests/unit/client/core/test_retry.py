import pytest

from reput.client.core.retry import Attempts, SendFailed, may_retry
from reput.client.core.route_cache import NoRoute
from reput.errors import (
    BrokerError,
    ConnectionLost,
    NotAFrame,
    Overloaded,
    RemotingError,
    RequestTimedOut,
    Unreachable,
)
from reput.format.codes import ResponseCode

# retryResponseCodes of DefaultMQProducer 5.5.0; 4.9.7 has the same without 2 and 1500.
RETRY_CODES = {17, 14, 1, 2, 16, 204, 205, 1500}


@pytest.mark.parametrize("code", sorted(RETRY_CODES))
def test_codes_that_another_broker_may_not_give(code: int) -> None:
    assert may_retry(BrokerError(code, "no"))


@pytest.mark.parametrize("code", sorted({*ResponseCode} - RETRY_CODES))
def test_codes_that_every_broker_gives(code: int) -> None:
    assert not may_retry(BrokerError(code, "no"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Unreachable("x:1", "refused"), True),
        (ConnectionLost("x:1"), True),
        (RequestTimedOut("x:1", 310, 3000), True),
        (Overloaded("too many"), True),
        (NoRoute("T"), False),
        (NotAFrame("bad"), False),
    ],
)
def test_what_happens_between_processes(error: RemotingError, expected: bool) -> None:
    assert may_retry(error) is expected


def test_a_failure_says_where_and_why() -> None:
    failure = SendFailed("T", ["broker-a", "broker-b"], BrokerError(14, "closing", "x:1"))

    assert failure.response_code == 14
    assert failure.retriable
    assert str(failure) == (
        "message to topic 'T' not sent in 2 attempts (broker-a, broker-b):"
        " x:1 answers code 14: closing"
    )


BUSY = BrokerError(2, "busy")
CLOSING = BrokerError(14, "closing")


def pauses(
    attempts: Attempts, failures: list[RemotingError | None], now_ms: int = 0
) -> list[int | None]:
    found = []
    for failure in failures:
        attempts.broker_names.append("broker-a")
        found.append(attempts.pause_ms(failure, now_ms))
    return found


def test_other_failures_are_tried_again_at_once_and_so_often() -> None:
    attempts = Attempts(3, 3000, waits_for_busy=True)
    assert pauses(attempts, [CLOSING, None, CLOSING]) == [0, 0, None]


def test_busy_brokers_are_given_more_and_more_time_and_count_as_no_attempt() -> None:
    attempts = Attempts(2, 3000, waits_for_busy=True)
    busy = [10, 20, 40, 80, 160, 320, 500, 500]
    assert pauses(attempts, [BUSY] * len(busy)) == busy
    assert pauses(attempts, [CLOSING, CLOSING]) == [0, None]


def test_nobody_waits_for_a_moment_that_is_too_late() -> None:
    attempts = Attempts(3, 100, waits_for_busy=True)
    assert pauses(attempts, [BUSY], now_ms=89) == [10]
    assert pauses(attempts, [BUSY], now_ms=80) == [None]
    assert pauses(attempts, [CLOSING], now_ms=99) == [0]
    assert pauses(attempts, [CLOSING], now_ms=100) == [None]


def test_who_wants_one_attempt_does_not_wait_for_busy_brokers() -> None:
    assert pauses(Attempts(1, 3000, waits_for_busy=False), [BUSY]) == [None]
