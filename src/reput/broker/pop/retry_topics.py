"""The retry topics of what groups pop: which one gets what comes again, which ones are read.

A group has one for each topic that it pops. ``%RETRY%group_topic`` may mean two things, as names
hold underscores: with ``enableRetryTopicV2`` it is ``%RETRY%group+topic``, and what still waits
in the other is read as well. Source: rocketmq 5.5.0 ``KeyBuilder``, ``PopMessageProcessor``.
"""

from dataclasses import dataclass

from reput.format import names


@dataclass(frozen=True, slots=True)
class PopRetries:
    """How a broker calls them."""

    is_v2: bool = False
    """``enableRetryTopicV2``."""
    reads_v1: bool = True
    """``retrieveMessageFromPopRetryTopicV1``: beside the others."""

    def target(self, topic: str, group: str) -> str:
        """Return where messages of a topic are put that a group sees again."""
        named = names.pop_retry_topic_v2 if self.is_v2 else names.pop_retry_topic
        return named(topic, group)

    def sources(self, topic: str, group: str) -> tuple[str, ...]:
        """Return where a group that pops a topic looks for them."""
        if self.is_v2 and self.reads_v1:
            return names.pop_retry_topic(topic, group), names.pop_retry_topic_v2(topic, group)
        return (self.target(topic, group),)


V1 = PopRetries()
"""As brokers call them unless told otherwise."""
