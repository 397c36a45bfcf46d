"""Retries of sends: whether, when, and the final error.

Source: rocketmq 5.5.0 ``DefaultMQProducerImpl.sendDefaultImpl``. 4.9.7 gives up at once if a broker
is busy. In 5.5.0 a busy reply counts as one of three attempts, which are over within milliseconds.
Here it does not count, so that a send with seconds left does not fail because of a busy moment.
Neither does a broker that cannot be reached, as while it restarts: nothing was sent to it. Once
each broker has failed, there are pauses between attempts, which Java uses up within milliseconds.
"""

from collections.abc import Sequence

from reput.errors import (
    AccessRefused,
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
"""Response codes after which another broker may succeed."""

BUSY_PAUSE_MS = 10
"""Delay after the first busy reply to a send, in ms; doubled up to BUSY_PAUSE_MAX_MS."""
BUSY_PAUSE_MAX_MS = 500
"""Maximum delay after busy replies, in ms."""
BACKOFF_MAX_MS = 1_000
"""Maximum delay after other failures, in ms, unless the first one is longer."""


class SendFailed(RemotingError):
    """A message was not acknowledged. It may be stored nevertheless, if a reply was lost.

    Args:
        topic: Topic of the message.
        broker_names: The brokers that were tried, in order.
        reason: Error of the last attempt.
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
            f" ({', '.join(dict.fromkeys(self.broker_names))}): {reason}"
        )


def may_retry(error: RemotingError) -> bool:
    """Return whether another broker may succeed after an error."""
    if isinstance(error, BrokerError):
        return not isinstance(error, AccessRefused) and error.response_code in RETRY_CODES
    return isinstance(error, (Unreachable, ConnectionLost, RequestTimedOut, Overloaded))


class Attempts:
    """The remaining attempts of one send. Times are monotonic.

    Args:
        count_max: Maximum number of attempts. Those which stored nothing do not count: busy replies
            and, with ``backoff_ms``, brokers that were not reached.
        deadline_ms: Time at which all attempts end.
        waits_for_busy: Retry brokers that stored nothing until the deadline.
        backoff_ms: First delay once each broker has failed, in ms; doubled after each failure; 0:
            none.
    """

    def __init__(
        self, count_max: int, deadline_ms: int, *, waits_for_busy: bool, backoff_ms: int = 0
    ) -> None:
        self.broker_names: list[str] = []
        """Names of the tried brokers, in order; the sender appends to it."""
        self.deadline_ms = deadline_ms
        self._count_max = count_max
        self._waits_for_busy = waits_for_busy
        self._backoff_ms = backoff_ms
        self._busy_count = 0
        self._unreached_count = 0
        self._backoff_count = 0

    def pause_ms(
        self, failure: RemotingError | None, now_ms: int, *, has_other: bool = True
    ) -> int | None:
        """Return the delay before the next attempt, possibly 0; None after the last one.

        Args:
            failure: Error of the last attempt; None: it was stored, but less safely than requested.
            now_ms: The time.
            has_other: True if a broker was not tried yet.
        """
        pause_ms = 0
        backs_off = bool(self._backoff_ms) and failure is not None and not has_other
        if self._waits_for_busy and _is_busy(failure):
            self._busy_count += 1
            pause_ms = busy_pause_ms(self._busy_count)
        elif self._waits_for_busy and self._backoff_ms and isinstance(failure, Unreachable):
            self._unreached_count += 1
            pause_ms = self._next_backoff_ms() if backs_off else 0
        elif len(self.broker_names) - self._busy_count - self._unreached_count >= self._count_max:
            return None
        elif backs_off:
            # A short timeout does not take away attempts.
            pause_ms = min(self._next_backoff_ms(), max(0, self.deadline_ms - now_ms) // 2)
        if now_ms + pause_ms >= self.deadline_ms or not (failure is None or may_retry(failure)):
            return None
        return pause_ms

    def _next_backoff_ms(self) -> int:
        first_ms = self._backoff_ms
        doublings = min(self._backoff_count, BACKOFF_MAX_MS.bit_length())
        self._backoff_count += 1
        return min(first_ms << doublings, max(first_ms, BACKOFF_MAX_MS))


def busy_pause_ms(busy_count: int) -> int:
    """Return the delay after the n-th busy reply to one send, from 1, in ms."""
    doublings = min(busy_count - 1, BUSY_PAUSE_MAX_MS.bit_length())
    return min(BUSY_PAUSE_MS << doublings, BUSY_PAUSE_MAX_MS)


def _is_busy(failure: RemotingError | None) -> bool:
    """Return whether a busy broker rejected a request without storing anything."""
    return isinstance(failure, BrokerError) and failure.response_code == ResponseCode.SYSTEM_BUSY
