"""What cannot be written at the moment; each is tried again and again, and turns health red."""

import logging
from collections.abc import Callable

from reput.errors import WriteFailed

LOGGED_AGAIN_MS = 10_000

_log = logging.getLogger(__name__)


class WriteFailures:
    """What cannot be written at the moment: each is tried again and again.

    Args:
        monotonic_ms: The clock that log lines are counted by.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self.current: dict[str, str] = {}
        """What is to be written -> why it was not, the last time."""
        self._logged_ms: dict[str, int] = {}

    def add(self, place: str, error: Exception) -> None:
        """Note a failure; the same one is logged every ten seconds at most."""
        is_expected = isinstance(error, WriteFailed)
        text = str(error) if is_expected else f"{type(error).__name__}: {error}"
        now_ms = self._monotonic_ms()
        is_new = self.current.get(place) != text
        self.current[place] = text
        if is_new or now_ms - self._logged_ms[place] >= LOGGED_AGAIN_MS:
            self._logged_ms[place] = now_ms
            trace = None if is_expected else error
            _log.error("%s cannot be written for now: %s", place, text, exc_info=trace)

    def clear(self, place: str) -> None:
        """Note that it was written."""
        if self.current and self.current.pop(place, None) is not None:
            _log.warning("%s is written again", place)
