"""What compare finds: one difference, and the counts of many. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

ONLY_LEFT = "only_left"
ONLY_RIGHT = "only_right"
DIFFERENT = "different"
KINDS = (ONLY_LEFT, ONLY_RIGHT, DIFFERENT)
_TOO_LONG = 60


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference; fields that do not apply are None."""

    section: str
    """``files``, ``messages``, ``queues`` or ``tables``."""
    kind: str
    """``only_left``, ``only_right`` or ``different``."""
    text: str
    """For people."""
    count: int = 1
    """Files, messages, units or entries that it stands for."""
    file: str | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    """Of the first."""
    physical_offset: int | None = None
    field: str | None = None
    """What differs; several are separated by commas."""
    left: str | None = None
    right: str | None = None


Counted = tuple[dict[tuple[str, str], int], list[Mismatch]]
"""Section and kind -> how many things differ; and the first findings."""


def capped(findings: Iterator[Mismatch], most: int) -> Counted:
    """Return how many things each section and kind counts, and the first findings."""
    counts: dict[tuple[str, str], int] = {}
    first: list[Mismatch] = []
    for one in findings:
        key = one.section, one.kind
        counts[key] = counts.get(key, 0) + one.count
        if len(first) < most:
            first.append(one)
    return counts, first


def short(value: object) -> str:
    """Return a value for people; a long one is cut."""
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _TOO_LONG else text[:_TOO_LONG] + "..."
