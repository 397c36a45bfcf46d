"""Files that cannot be written at present; writes are retried, and make the broker unhealthy."""

import logging
from collections.abc import Callable

from reput.errors import WriteFailed

LOGGED_AGAIN_MS = 10_000

_log = logging.getLogger(__name__)


class WriteFailures:
    """Files that cannot be written at present.

    Args:
        monotonic_ms: Returns the time, which limits the log lines.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self.current: dict[str, str] = {}
        """File -> error of the latest attempt."""
        self._logged_ms: dict[str, int] = {}

    def add(self, place: str, error: Exception) -> None:
        """Record a failure; a repeated one is logged at most every ten seconds."""
        is_expected = isinstance(error, WriteFailed)
        text = str(error) if is_expected else f"{type(error).__name__}: {error}"
        now_ms = self._monotonic_ms()
        is_new = self.current.get(place) != text
        self.current[place] = text
        if is_new or now_ms - self._logged_ms[place] >= LOGGED_AGAIN_MS:
            self._logged_ms[place] = now_ms
            trace = None if is_expected else error
            _log.error("%s cannot be written at present: %s", place, text, exc_info=trace)

    def clear(self, place: str) -> None:
        """Record a successful write."""
        if self.current and self.current.pop(place, None) is not None:
            _log.warning("%s can be written again", place)
