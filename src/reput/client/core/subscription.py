"""Subscriptions to a topic: all messages, some tags, or an SQL92 expression.

Brokers compare the hashes of tags, which can collide; clients compare the text again. SQL92
expressions are evaluated by brokers only.
Source: rocketmq 4.9.8 ``FilterAPI``, ``PullAPIWrapper``.
"""

import re
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


def check_tags(expression: object) -> None:
    """Check that an expression of a program is a list of tags as brokers understand it.

    Brokers take any other text for one tag, which no message has.

    Raises:
        InvalidOption: It is no text, or has other separators, spaces or a comparison; the error
            has the expression that was probably meant.
    """
    if expression is None:
        return
    if not isinstance(expression, str):
        allowed = "one text, such as 'TagA || TagB'"
        if isinstance(expression, (list, tuple, set, frozenset)):
            meant = f" {TAG_SEPARATOR} ".join(sorted(map(str, expression)))
            allowed = f"one text; did you mean {meant!r}?"
        raise InvalidOption("expression", expression, allowed)
    words = [word.strip(_JAVA_SPACE) for word in expression.split(TAG_SEPARATOR)]
    if any("=" in word for word in words) and _COMPARISON.search(expression):
        raise InvalidOption("expression", expression, "tags; conditions are for subscribe_sql")
    if any(_OTHER_SEPARATORS.search(word) for word in words):
        meant = f" {TAG_SEPARATOR} ".join(filter(None, _OTHER_SEPARATORS.split(expression)))
        sql_text = f"TAGS = '{expression}'"
        raise InvalidOption(
            "expression",
            expression,
            f"tags separated by {TAG_SEPARATOR}; did you mean {meant!r}? One tag with this name is"
            f" subscribed with subscribe_sql and {sql_text!r}",
        )


_OTHER_SEPARATORS = re.compile(r"[,;|\x00-\x20]+")
"""Characters that were probably meant to separate tags."""
_COMPARISON = re.compile(r"=\s*['\"]")


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
