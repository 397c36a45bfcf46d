"""Patience with servers that are away: whether a request is repeated. Pure: time is an argument.

Brokers and name servers restart during long reads and writes. Requests without a reply are repeated
for a time; a server that replies with an error gets a few more attempts, unless it is about to
serve.
"""

from typing import Final

from reput.errors import BrokerError, RemotingError
from reput.format.codes import ResponseCode

ANSWER_RETRIES: Final = 3
"""Number of retries after errors in replies."""
_SOON = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})
"""Response codes of a server that starts, or has too much to do."""


class Patience:
    """Patience with the attempts of one request.

    Args:
        timeout_ms: Time for which the request is repeated, in ms.
        retry_count: Maximum number of retries; None: no maximum.
        interval_ms: Delay before a retry, in ms.
    """

    def __init__(self, timeout_ms: int, retry_count: int | None, interval_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._retry_count = retry_count
        self._interval_ms = interval_ms
        self._answer_count = 0
        self._since_ms: int | None = None
        self.attempt_count = 0
        """Number of failed attempts."""

    def is_over(self, error: RemotingError, now_ms: int) -> bool:
        """Count a failed attempt; return whether it was the last one."""
        self.attempt_count += 1
        if self._since_ms is None:
            self._since_ms = now_ms
        if not error.retriable:
            return True
        if self._retry_count is not None:
            is_over = self.attempt_count > self._retry_count
        else:
            is_answer = isinstance(error, BrokerError) and error.response_code not in _SOON
            self._answer_count += is_answer
            is_over = self._answer_count > ANSWER_RETRIES
        return is_over or now_ms + self._interval_ms > self._since_ms + self._timeout_ms

    @property
    def is_worth_a_line(self) -> bool:
        """True if the log gets a line: ever more rarely while a server stays away."""
        return self.attempt_count & (self.attempt_count - 1) == 0

    def __str__(self) -> str:
        """Return the number of attempts in words."""
        return "once" if self.attempt_count == 1 else f"{self.attempt_count} times"
