"""Whether and when a send is tried again, and what is said when it is not.

Source: rocketmq 5.5.0 ``DefaultMQProducerImpl.sendDefaultImpl``. 4.9.7 gives up at once where a
broker is busy. 5.5.0 counts that as one of its three attempts, which are over within milliseconds;
here it counts as none, so that a busy moment does not fail a send that has seconds left.
"""

from collections.abc import Sequence

from reput.errors import (
    BrokerError,
    ConnectionLost,
    Overloaded,
    RemotingError,
    RequestTimedOut,
    Unreachable,
)
from reput.format.codes import ResponseCode

RETRY_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""What another broker may answer otherwise."""

BUSY_PAUSE_MS = 10
"""After the first busy answer to a send; then twice that, and so on, up to"""
BUSY_PAUSE_MAX_MS = 500
"""this."""


class SendFailed(RemotingError):
    """A message was not acknowledged. It may be stored all the same, if a reply was lost.

    Args:
        topic: The message's.
        broker_names: The brokers that were tried, in order.
        reason: Why the last attempt failed.
    """

    def __init__(self, topic: str, broker_names: Sequence[str], reason: RemotingError) -> None:
        self.topic = topic
        self.broker_names = tuple(broker_names)
        self.reason = reason
        self.retriable = reason.retriable
        self.refresh_route = reason.refresh_route
        self.response_code = reason.response_code
        count = len(self.broker_names)
        attempts = "1 attempt" if count == 1 else f"{count} attempts"
        super().__init__(
            f"message to topic {topic!r} not sent in {attempts}"
            f" ({', '.join(self.broker_names)}): {reason}"
        )


def may_retry(error: RemotingError) -> bool:
    """Whether another broker may do what this one did not."""
    if isinstance(error, BrokerError):
        return error.response_code in RETRY_CODES
    return isinstance(error, (Unreachable, ConnectionLost, RequestTimedOut, Overloaded))


class Attempts:
    """What one send may still try. Times are those of a clock that never goes backwards.

    Args:
        count_max: Attempts, without those that a busy broker turned away.
        deadline_ms: When the time for all of them is over.
        waits_for_busy: Offer the message again to brokers that are busy, as long as there is time.
    """

    def __init__(self, count_max: int, deadline_ms: int, *, waits_for_busy: bool) -> None:
        self.broker_names: list[str] = []
        """Who was tried, in order; the sender appends to it."""
        self.deadline_ms = deadline_ms
        self._count_max = count_max
        self._waits_for_busy = waits_for_busy
        self._busy_count = 0

    def pause_ms(self, failure: RemotingError | None, now_ms: int) -> int | None:
        """Return how long to wait before the next attempt, which may be 0; None: it was the last.

        Args:
            failure: Of the last attempt; None: it was stored, but less safely than is wanted.
            now_ms: The time.
        """
        pause_ms = 0
        if self._waits_for_busy and _is_busy(failure):
            self._busy_count += 1
            pause_ms = busy_pause_ms(self._busy_count)
        elif len(self.broker_names) - self._busy_count >= self._count_max:
            return None
        if now_ms + pause_ms >= self.deadline_ms or not (failure is None or may_retry(failure)):
            return None
        return pause_ms


def busy_pause_ms(busy_count: int) -> int:
    """Return how long to wait after so many busy answers to one send, the first being 1."""
    doublings = min(busy_count - 1, BUSY_PAUSE_MAX_MS.bit_length())
    return min(BUSY_PAUSE_MS << doublings, BUSY_PAUSE_MAX_MS)


def _is_busy(failure: RemotingError | None) -> bool:
    """Whether a broker has turned a request away unseen: nothing of it is stored."""
    return isinstance(failure, BrokerError) and failure.response_code == ResponseCode.SYSTEM_BUSY
