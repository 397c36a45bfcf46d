import pytest

from reput.client.core.retry import SendFailed, may_retry
from reput.client.core.route_cache import NoRoute
from reput.errors import (
    Answered,
    ConnectionLost,
    NotAFrame,
    Overloaded,
    RemotingError,
    RequestTimedOut,
    Unreachable,
)
from reput.format.codes import ResponseCode


@pytest.mark.parametrize("code", [17, 14, 1, 16, 204, 205])
def test_codes_that_another_broker_may_not_give(code: int) -> None:
    assert may_retry(Answered(code, "no"))


@pytest.mark.parametrize("code", sorted({*ResponseCode} - {17, 14, 1, 16, 204, 205}))
def test_codes_that_every_broker_gives(code: int) -> None:
    assert not may_retry(Answered(code, "no"))


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
    failure = SendFailed("T", ["broker-a", "broker-b"], Answered(14, "closing", "x:1"))

    assert failure.response_code == 14
    assert failure.retriable
    assert str(failure) == (
        "message to topic 'T' not sent in 2 attempts (broker-a, broker-b):"
        " x:1 answers code 14: closing"
    )
