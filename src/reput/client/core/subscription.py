"""Subscriptions to a topic: all messages, some tags, or an SQL92 expression.

Brokers compare the hashes of tags, which can collide; clients compare the text again. SQL92
expressions are evaluated by brokers only.
Source: rocketmq 4.9.8 ``FilterAPI``, ``PullAPIWrapper``.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from reput.errors import InvalidOption
from reput.format import java
from reput.format.bodies import SubscriptionData

TAG = "TAG"
SQL92 = "SQL92"
ALL = "*"
TAG_SEPARATOR = "||"

_JAVA_SPACE = "".join(map(chr, range(0x21)))
"""Characters that ``String.trim`` removes."""


class Tagged(Protocol):
    """Interface of a message to be matched."""

    @property
    def tags(self) -> str | None:
        """The TAGS property."""


M = TypeVar("M", bound=Tagged)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscription to a topic. Make one with ``tags`` or ``sql``."""

    topic: str
    expression: str
    expression_type: str
    tag_set: frozenset[str]
    """Selected tags; empty: all messages."""
    version: int
    """Creation time in ms: brokers use the newest subscription of a group."""

    @property
    def is_sql(self) -> bool:
        """True for an SQL92 expression, which only brokers evaluate."""
        return self.expression_type != TAG

    def matching(self, messages: list[M]) -> list[M]:
        """Return the messages whose tag matches; the same list if all do."""
        if not self.tag_set:
            return messages
        wanted = self.tag_set
        return [message for message in messages if message.tags in wanted]

    def data(self) -> SubscriptionData:
        """Return the subscription for heartbeats."""
        return SubscriptionData(
            class_filter_mode=False,
            code_set=sorted({java.string_hash(tag) for tag in self.tag_set}),
            expression_type=self.expression_type,
            sub_string=self.expression,
            sub_version=self.version,
            tags_set=sorted(self.tag_set),
            topic=self.topic,
        )


def tags(topic: str, expression: str | None, now_ms: int) -> Subscription:
    """Return a subscription to ``TagA || TagB``; ``*``, "" or None: all messages.

    Raises:
        InvalidOption: The expression has separators and no tag.
    """
    if not expression or expression == ALL:
        return Subscription(topic, ALL, TAG, frozenset(), now_ms)
    parts = (part.strip(_JAVA_SPACE) for part in expression.split(TAG_SEPARATOR))
    words = frozenset(part for part in parts if part)
    if not words:
        raise InvalidOption("expression", expression, "* or tags, like TagA || TagB")
    return Subscription(topic, expression, TAG, words, now_ms)


def sql(topic: str, expression: str, now_ms: int) -> Subscription:
    """Return a subscription to the messages that match an SQL92 expression on properties.

    It is not compiled here but by the broker (request 46): versions differ in their grammar.

    Raises:
        InvalidOption: The expression is empty.
    """
    if not expression.strip():
        raise InvalidOption("expression", expression, "an SQL92 condition")
    return Subscription(topic, expression, SQL92, frozenset(), now_ms)
