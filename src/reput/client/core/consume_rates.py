"""Counts of a topic's messages: totals, and rates over the last one to two minutes."""

from dataclasses import dataclass

from reput.client.core.durations import Durations
from reput.format.bodies import ConsumeStatus

WINDOW_MS = 60_000
HOUR_MS = 3_600_000


@dataclass(slots=True)
class _Totals:
    begin_ms: int
    pull_count: int = 0
    pull_ms: int = 0
    pulled_count: int = 0
    call_count: int = 0
    call_ms: int = 0
    consumed_count: int = 0
    failed_count: int = 0


class RatesByTopic(dict[str, "ConsumeRates"]):
    """The rates by topic of a consumer."""

    def of(self, topic: str, now_ms: int) -> "ConsumeRates":
        """Return the rates of a topic; create them if missing."""
        rates = self.get(topic)
        if rates is None:
            rates = self[topic] = ConsumeRates(now_ms)
        return rates


class ConsumeRates:
    """Sums of one topic: of the last complete minute, of the current one, and since the start."""

    def __init__(self, now_ms: int) -> None:
        self.received_count = 0
        """Number of messages that arrived since the start."""
        self.consumed_count = 0
        """Number of messages consumed since the start."""
        self.failed_count = 0
        """Number of messages since the start that failed and are delivered again."""
        self.dead_count = 0
        """Number of messages since the start that went to the dead letters."""
        self.listener_durations = Durations()
        """Durations of the listener's calls since the start."""
        self._old = _Totals(now_ms)
        self._new = _Totals(now_ms)
        self._failed_in_hour = 0
        self._hour_begin_ms = now_ms

    def add_pull(self, now_ms: int, duration_ms: int, message_count: int) -> None:
        """Count a pull that returned messages."""
        totals = self._at(now_ms)
        totals.pull_count += 1
        totals.pull_ms += duration_ms
        totals.pulled_count += message_count
        self.received_count += message_count

    def add_call(
        self, now_ms: int, duration_ms: int, consumed_count: int, failed_count: int
    ) -> None:
        """Count a call of the listener."""
        totals = self._at(now_ms)
        totals.call_count += 1
        totals.call_ms += duration_ms
        self.listener_durations.add(duration_ms)
        self.add_consumed(now_ms, consumed_count, failed_count)

    def add_consumed(self, now_ms: int, consumed_count: int, failed_count: int = 0) -> None:
        """Count messages that the program has consumed, or not."""
        totals = self._at(now_ms)
        totals.consumed_count += consumed_count
        totals.failed_count += failed_count
        self._failed_in_hour += failed_count
        self.consumed_count += consumed_count
        self.failed_count += failed_count

    def status(self, now_ms: int) -> ConsumeStatus:
        """Return means and rates since the start of the last complete minute."""
        new = self._at(now_ms)
        old = self._old
        seconds = max(now_ms - old.begin_ms, 1000) / 1000
        return ConsumeStatus(
            consume_failed_msgs=self._failed_in_hour,
            consume_failed_tps=(old.failed_count + new.failed_count) / seconds,
            consume_ok_tps=(old.consumed_count + new.consumed_count) / seconds,
            consume_rt=(old.call_ms + new.call_ms) / max(old.call_count + new.call_count, 1),
            pull_rt=(old.pull_ms + new.pull_ms) / max(old.pull_count + new.pull_count, 1),
            pull_tps=(old.pulled_count + new.pulled_count) / seconds,
        )

    def _at(self, now_ms: int) -> _Totals:
        if now_ms - self._new.begin_ms >= WINDOW_MS:
            # After a longer pause, older counts are meaningless.
            is_recent = now_ms - self._new.begin_ms < 2 * WINDOW_MS
            self._old = self._new if is_recent else _Totals(now_ms - WINDOW_MS)
            self._new = _Totals(now_ms)
        if now_ms - self._hour_begin_ms >= HOUR_MS:
            self._failed_in_hour = 0
            self._hour_begin_ms = now_ms
        return self._new
