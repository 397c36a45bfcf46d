"""The messages that a pull selects: all, some tags, or those matching an SQL92 expression."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput.broker import limits
from reput.errors import RequestRefused
from reput.format import java
from reput.format.bodies import SubscriptionData
from reput.format.codes import ResponseCode
from reput.format.text_cache import TextCache

if TYPE_CHECKING:
    from reput.store.getting import MessageFilter

TAG = "TAG"
SQL92 = "SQL92"
ALL = "*"
TAG_SEPARATOR = "||"
_BYTES_PER_TAG = 40
_BYTES_PER_LETTER = 16
"""Approximate memory of a compiled expression, in bytes per character."""
NO_CLASS_FILTER = "filter by class is not supported: RocketMQ has dropped filter servers"


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages that a pull selects."""

    tags_codes: tuple[int, ...] = ()
    """Tags codes to select; empty for all messages."""
    message_filter: "MessageFilter | None" = None
    version: int = 0
    """Version of the subscription, if it comes from heartbeats."""
    filter_letters: int = 0
    """Length of the expression that the filter is compiled from."""

    @property
    def bytes_about(self) -> int:
        """Approximate memory if it is not shared, in bytes."""
        return _BYTES_PER_TAG * len(self.tags_codes) + _BYTES_PER_LETTER * self.filter_letters


EVERYTHING = Selection()


def is_tag_type(expression_type: str | None) -> bool:
    """Return True if an expression is a list of tags."""
    return expression_type in (None, "", TAG)


def of_tags(expression: str | None) -> Selection:
    """Return the selection of ``TagA || TagB``; empty text and ``*`` select all messages.

    Raises:
        RequestRefused: SUBSCRIPTION_PARSE_FAILED: there are separators but no tags, or the
            expression is over a limit.
    """
    if not expression or expression == ALL:
        return EVERYTHING
    return _of_tags(expression)


def _selection_of_tags(expression: str) -> Selection:
    limits.SUBSCRIPTION_BYTES.check(len(expression))
    limits.SUBSCRIPTION_BYTES.check(len(java.encode_utf8(expression)))
    limits.SUBSCRIPTION_TAGS.check(expression.count(TAG_SEPARATOR) + 1)
    tags = [tag.strip() for tag in expression.split(TAG_SEPARATOR)]
    codes = tuple(dict.fromkeys(java.string_hash(tag) for tag in tags if tag))
    if not codes and not expression.strip(" |"):
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
        )
    return Selection(codes)


_of_tags = TextCache(_selection_of_tags, count_max=4096, letters_max=512 * 1024, letters_of=len)


def of_subscription(subscription: SubscriptionData) -> Selection:
    """Return the selection of a subscription from a heartbeat."""
    if subscription.sub_string == ALL or not subscription.code_set:
        return Selection(version=subscription.sub_version)
    return Selection(tuple(subscription.code_set), version=subscription.sub_version)
