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

# retryResponseCodes of DefaultMQProducer 5.5.0; those of 4.9.7 lack 2 and 1500.
RETRY_CODES = {17, 14, 1, 2, 16, 204, 205, 1500}


@pytest.mark.parametrize("code", sorted(RETRY_CODES))
def test_codes_of_one_broker_are_retried(code: int) -> None:
    assert may_retry(BrokerError(code, "no"))


@pytest.mark.parametrize("code", sorted({*ResponseCode} - RETRY_CODES))
def test_codes_of_every_broker_are_not_retried(code: int) -> None:
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
def test_which_transport_errors_are_retried(error: RemotingError, expected: bool) -> None:
    assert may_retry(error) is expected


def test_a_failure_names_brokers_and_cause() -> None:
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
    pauses_ms = []
    for failure in failures:
        attempts.broker_names.append("broker-a")
        pauses_ms.append(attempts.pause_ms(failure, now_ms))
    return pauses_ms


def test_other_failures_are_retried_at_once_up_to_the_limit() -> None:
    attempts = Attempts(3, 3000, waits_for_busy=True)
    assert pauses(attempts, [CLOSING, None, CLOSING]) == [0, 0, None]


def test_retries_of_busy_brokers_back_off_and_are_no_attempts() -> None:
    attempts = Attempts(2, 3000, waits_for_busy=True)
    busy = [10, 20, 40, 80, 160, 320, 500, 500]
    assert pauses(attempts, [BUSY] * len(busy)) == busy
    assert pauses(attempts, [CLOSING, CLOSING]) == [0, None]


def test_no_retry_starts_after_the_deadline() -> None:
    attempts = Attempts(3, 100, waits_for_busy=True)
    assert pauses(attempts, [BUSY], now_ms=89) == [10]
    assert pauses(attempts, [BUSY], now_ms=80) == [None]
    assert pauses(attempts, [CLOSING], now_ms=99) == [0]
    assert pauses(attempts, [CLOSING], now_ms=100) == [None]


UNREACHED = Unreachable("x:1", "refused")


def test_unreached_brokers_are_retried_with_pauses_until_the_deadline() -> None:
    attempts = Attempts(3, 3000, waits_for_busy=True, backoff_ms=100)
    now_ms = 0
    pauses_ms = []
    attempts.broker_names.append("broker-a")
    assert attempts.pause_ms(UNREACHED, now_ms, has_other=True) == 0  # the other broker at once
    while True:
        attempts.broker_names.append("broker-b")
        pause_ms = attempts.pause_ms(UNREACHED, now_ms, has_other=False)
        if pause_ms is None:
            break
        pauses_ms.append(pause_ms)
        now_ms += pause_ms
    assert pauses_ms == [100, 200, 400, 800, 1000]


def test_other_failures_keep_their_attempts_and_pause_once_each_broker_has_failed() -> None:
    attempts = Attempts(3, 3000, waits_for_busy=True, backoff_ms=100)
    pauses_ms = []
    for has_other in (True, False, False):
        attempts.broker_names.append("broker-a")
        pauses_ms.append(attempts.pause_ms(CLOSING, 0, has_other=has_other))
    assert pauses_ms == [0, 100, None]


def test_a_short_timeout_does_not_take_away_attempts() -> None:
    attempts = Attempts(3, 60, waits_for_busy=True, backoff_ms=100)
    attempts.broker_names.append("broker-a")
    assert attempts.pause_ms(CLOSING, 0, has_other=False) == 30
    attempts.broker_names.append("broker-a")
    assert attempts.pause_ms(CLOSING, 30, has_other=False) == 15


def test_without_back_off_attempts_are_those_of_java() -> None:
    attempts = Attempts(3, 3000, waits_for_busy=True, backoff_ms=0)
    assert pauses(attempts, [UNREACHED] * 3) == [0, 0, None]


def test_a_single_attempt_does_not_wait_for_busy_brokers() -> None:
    assert pauses(Attempts(1, 3000, waits_for_busy=False), [BUSY]) == [None]
