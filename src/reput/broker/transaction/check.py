"""What becomes of a half message that nobody has decided: pure rules.

Source: rocketmq 4.9.7 ``TransactionalMessageServiceImpl.check``. Two things are other than there:
at the very age that it is immune up to a message is due, not in between (rmq#9486); and a round in
which it is immune is no check, so that it is never given up without having been asked about.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from reput.format import properties as props
from reput.format.message import StoredMessage


class Verdict(enum.Enum):
    """What a round does with a half message."""

    YOUNG = enum.auto()
    """Too young, and so are those behind it: the round ends."""
    IMMUNE = enum.auto()
    """Its producer wants it left alone for longer than others: on to the next."""
    DUE = enum.auto()
    """Its producer is asked."""
    GIVEN_UP = enum.auto()
    """Asked often enough, or so old that its producer cannot be expected to know."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Times are in ms."""

    timeout_ms: int
    """Up to this age a message is left alone, unless it says otherwise."""
    checks_max: int
    age_max_ms: int


def judge(half: StoredMessage, rules: Rules, begun_ms: int, now_ms: int) -> Verdict:
    """Return what is to be done with a half message.

    Args:
        half: The message.
        rules: The limits.
        begun_ms: When the round began: what came later is left for the next.
        now_ms: The time. A message's age counts from when its producer made it; one from the future
            is due, as nobody knows how old it is.

    However long a message wants to be left alone: not for longer than messages are kept.
    """
    age_ms = now_ms - half.born_timestamp
    if check_count(half.properties) >= rules.checks_max or age_ms > rules.age_max_ms:
        return Verdict.GIVEN_UP
    if half.store_timestamp >= begun_ms:
        return Verdict.YOUNG
    immunity_ms = immunity_of(half.properties)
    if immunity_ms is not None:
        immunity_ms = min(immunity_ms, rules.age_max_ms)
        return Verdict.IMMUNE if -immunity_ms < age_ms < immunity_ms else Verdict.DUE
    return Verdict.YOUNG if 0 <= age_ms < rules.timeout_ms else Verdict.DUE


def check_count(properties: Mapping[str, str]) -> int:
    """Return how often the producer was asked."""
    return max(_number(properties.get(props.TRANSACTION_CHECK_TIMES)) or 0, 0)


def immunity_of(properties: Mapping[str, str]) -> int | None:
    """Return up to which age a message wants to be left alone, ms; None if it does not say."""
    seconds = _number(properties.get(props.CHECK_IMMUNITY_TIME))
    return None if seconds is None or seconds < 0 else seconds * 1000


def first_offset(half: StoredMessage) -> int:
    """Return the queue offset of the first of a half message's copies: what names all of them."""
    first = _number(half.properties.get(props.TRANSACTION_HALF_OFFSET))
    return first if first is not None and 0 <= first <= half.queue_offset else half.queue_offset


_DIGITS_MAX = 19


def _number(text: str | None) -> int | None:
    """Return a whole number as Java reads it; None if it is none."""
    if text is None or len(text) > _DIGITS_MAX or "_" in text or text != text.strip():
        return None
    try:
        return int(text)
    except ValueError:
        return None
