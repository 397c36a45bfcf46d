"""What a round does with an undecided half message: pure rules.

Source: rocketmq 4.9.7 ``TransactionalMessageServiceImpl.check``. Two differences: a message is due
at exactly the age at which its immunity ends (rmq#9486); and a round in which it is immune does not
count as a check, so that it is never given up before its producer was asked.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from reput.format import properties as props
from reput.format.message import StoredMessage


class CheckAction(enum.Enum):
    """Action of a round of checks for a half message."""

    YOUNG = enum.auto()
    """The message and all later ones are too young: the round ends."""
    IMMUNE = enum.auto()
    """The producer has set a longer immunity: the round continues with the next message."""
    DUE = enum.auto()
    """The broker sends a check to the producer of the message."""
    GIVEN_UP = enum.auto()
    """Checked the maximum number of times, or too old for its producer to remember."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits of the checks; times are in ms."""

    timeout_ms: int
    """Age up to which a message is not checked, unless it has its own immunity."""
    checks_max: int
    age_max_ms: int


def judge(half: StoredMessage, rules: Rules, begun_ms: int, now_ms: int) -> CheckAction:
    """Decide what a round does with a half message.

    Args:
        half: The message.
        rules: The limits.
        begun_ms: Start of the round; later messages are left for the next round.
        now_ms: The time. A message's age counts from its born timestamp; a message from the future
            is due, as its age is unknown.

    The immunity of a message is limited to the retention time of messages.
    """
    age_ms = now_ms - half.born_timestamp
    if check_count(half.properties) >= rules.checks_max or age_ms > rules.age_max_ms:
        return CheckAction.GIVEN_UP
    if half.store_timestamp >= begun_ms:
        return CheckAction.YOUNG
    immunity_ms = immunity_of(half.properties)
    if immunity_ms is not None:
        immunity_ms = min(immunity_ms, rules.age_max_ms)
        return CheckAction.IMMUNE if -immunity_ms < age_ms < immunity_ms else CheckAction.DUE
    return CheckAction.YOUNG if 0 <= age_ms < rules.timeout_ms else CheckAction.DUE


def check_count(properties: Mapping[str, str]) -> int:
    """Return how many times the producer was asked."""
    return max(_number(properties.get(props.TRANSACTION_CHECK_TIMES)) or 0, 0)


def immunity_of(properties: Mapping[str, str]) -> int | None:
    """Return a message's own immunity in ms; None if it has none."""
    seconds = _number(properties.get(props.CHECK_IMMUNITY_TIME))
    return None if seconds is None or seconds < 0 else seconds * 1000


def first_offset(half: StoredMessage) -> int:
    """Return the queue offset of the first copy of a half message, which identifies all copies."""
    first = _number(half.properties.get(props.TRANSACTION_HALF_OFFSET))
    return first if first is not None and 0 <= first <= half.queue_offset else half.queue_offset


_DIGITS_MAX = 19


def _number(text: str | None) -> int | None:
    """Return a whole number as Java parses it, or None."""
    if text is None or len(text) > _DIGITS_MAX or "_" in text or text != text.strip():
        return None
    try:
        return int(text)
    except ValueError:
        return None
