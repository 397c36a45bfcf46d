"""The machine's clock plus an offset that a test increases."""

from reput.clock import SystemClock


class ShiftedClock(SystemClock):
    """A time of day ahead of the machine's; both continue to run.

    Durations are real: connected clients and held requests do not expire by an advance. Clients
    have the machine's clock.
    """

    def __init__(self) -> None:
        self._shift_ms = 0

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, ahead of the machine by the sum of all advances."""
        return super().now_ms() + self._shift_ms

    def advance(self, duration_ms: int) -> None:
        """Advance the time of day."""
        assert duration_ms >= 0, f"time does not run backwards: {duration_ms} ms"
        self._shift_ms += duration_ms
