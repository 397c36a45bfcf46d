"""Counts of a producer's sends, by topic."""

from reput.client.core.durations import Durations

TOPICS_MAX = 100
"""Largest number of topics of a client with separate metrics."""
OTHER = "_other"
"""Topic of the metrics of all other topics."""


class TopicSends:
    """Counts of the sends of a topic."""

    __slots__ = ("durations", "results", "retry_count")

    def __init__(self) -> None:
        self.results: dict[str, int] = {}
        """Number of sends by result."""
        self.retry_count = 0
        """Number of attempts after the first of each send."""
        self.durations = Durations()
        """Durations of sends with their retries."""

    def add(self, result: str, duration_ms: int) -> None:
        """Count a send that has ended."""
        self.results[result] = self.results.get(result, 0) + 1
        self.durations.add(duration_ms)


class SendCounts(dict[str, TopicSends]):
    """The counts by topic; topics beyond ``TOPICS_MAX`` share ``OTHER``."""

    def of(self, topic: str) -> TopicSends:
        """Return the counts of a topic; create them if missing."""
        sends = self.get(topic)
        if sends is None:
            if len(self) >= TOPICS_MAX:
                topic = OTHER
            sends = self.setdefault(topic, TopicSends())
        return sends
