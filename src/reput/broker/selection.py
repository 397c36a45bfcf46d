"""What a pull wants of a queue: all, some tags, or what an SQL92 expression says."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput.errors import RequestRefused
from reput.format import java
from reput.format.bodies import SubscriptionData
from reput.format.codes import ResponseCode

if TYPE_CHECKING:
    from reput.store.getting import MessageFilter

TAG = "TAG"
SQL92 = "SQL92"
ALL = "*"
TAG_SEPARATOR = "||"
NO_CLASS_FILTER = "filter by class is not supported: RocketMQ has dropped filter servers"


@dataclass(frozen=True, slots=True)
class Selection:
    """What a pull wants."""

    tags_codes: tuple[int, ...] = ()
    """Of the tags; none: all messages."""
    message_filter: "MessageFilter | None" = None
    version: int = 0
    """Of the subscription that heartbeats have told, if it is one of those."""


EVERYTHING = Selection()


def is_tag_type(expression_type: str | None) -> bool:
    """Whether an expression is a list of tags."""
    return expression_type in (None, "", TAG)


@functools.lru_cache(maxsize=4096)
def of_tags(expression: str | None) -> Selection:
    """Return what ``TagA || TagB`` selects; nothing, blank and ``*`` select all.

    Raises:
        RequestRefused: SUBSCRIPTION_PARSE_FAILED: there are separators and no tags.
    """
    if not expression or expression == ALL:
        return EVERYTHING
    tags = [tag.strip() for tag in expression.split(TAG_SEPARATOR)]
    codes = tuple(dict.fromkeys(java.string_hash(tag) for tag in tags if tag))
    if not codes and not expression.strip(" |"):
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
        )
    return Selection(codes)


def of_subscription(one: SubscriptionData) -> Selection:
    """Return what a member's heartbeat selects."""
    if one.sub_string == ALL or not one.code_set:
        return Selection(version=one.sub_version)
    return Selection(tuple(one.code_set), version=one.sub_version)
