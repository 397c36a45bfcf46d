"""The retry topics of groups that pop: their names, and which ones are read.

A group has a retry topic for each topic that it pops. ``%RETRY%group_topic`` is ambiguous, as names
may contain underscores: with ``enableRetryTopicV2`` it is ``%RETRY%group+topic``, and the messages
that remain in the old one are read as well. Source: rocketmq 5.5.0 ``KeyBuilder``,
``PopMessageProcessor``.
"""

from dataclasses import dataclass

from reput.format import names


@dataclass(frozen=True, slots=True)
class PopRetries:
    """Naming of retry topics."""

    is_v2: bool = False
    """Value of ``enableRetryTopicV2``."""
    reads_v1: bool = True
    """Value of ``retrieveMessageFromPopRetryTopicV1``: read the old retry topic, too."""

    def target(self, topic: str, group: str) -> str:
        """Return the retry topic to which unacknowledged messages of a topic are copied."""
        named = names.pop_retry_topic_v2 if self.is_v2 else names.pop_retry_topic
        return named(topic, group)

    def sources(self, topic: str, group: str) -> tuple[str, ...]:
        """Return the retry topics that a group reads when it pops a topic."""
        if self.is_v2 and self.reads_v1:
            return names.pop_retry_topic(topic, group), names.pop_retry_topic_v2(topic, group)
        return (self.target(topic, group),)


V1 = PopRetries()
"""The default naming."""
