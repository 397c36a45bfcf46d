"""What a member wants of a topic: all, some tags, or what an SQL92 expression selects.

The broker compares the hashes of tags, which may collide: what it sends is compared here again, by
text. An SQL92 expression is the broker's alone.
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
"""What ``String.trim`` takes off."""


class Tagged(Protocol):
    """What is asked of a message here."""

    @property
    def tags(self) -> str | None:
        """The TAGS property."""


M = TypeVar("M", bound=Tagged)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic and what is wanted of it. Make one with ``tags`` or ``sql``."""

    topic: str
    expression: str
    expression_type: str
    tag_set: frozenset[str]
    """Empty: all."""
    version: int
    """When it was made, ms: brokers keep the newest of a group."""

    @property
    def is_sql(self) -> bool:
        """Whether the broker decides alone, and has to be asked whether it can."""
        return self.expression_type != TAG

    def matching(self, messages: list[M]) -> list[M]:
        """Return the messages whose tag is wanted; the same list if all are."""
        if not self.tag_set:
            return messages
        wanted = self.tag_set
        return [one for one in messages if one.tags in wanted]

    def data(self) -> SubscriptionData:
        """Return what heartbeats say of it."""
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
    """Return a subscription to ``TagA || TagB``; ``*``, nothing, or ``None`` is all.

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
    """Return a subscription to what an SQL92 expression selects by properties.

    Whether it can be compiled is the broker's to say (request 46): versions know different words.

    Raises:
        InvalidOption: It is empty.
    """
    if not expression.strip():
        raise InvalidOption("expression", expression, "an SQL92 condition")
    return Subscription(topic, expression, SQL92, frozenset(), now_ms)
