"""The differences of a comparison and their counts. Pure."""

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
    """Text for the operator."""
    count: int = 1
    """Number of files, messages, units or entries."""
    file: str | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    """Queue offset of the first message or unit."""
    physical_offset: int | None = None
    field: str | None = None
    """Names of the differing fields, separated by commas."""
    left: str | None = None
    right: str | None = None


Counted = tuple[dict[tuple[str, str], int], list[Mismatch]]
"""Section and kind -> number of differences; and the first findings."""


def capped(findings: Iterator[Mismatch], most: int) -> Counted:
    """Return the number of differences by section and kind, and the first findings."""
    counts: dict[tuple[str, str], int] = {}
    first: list[Mismatch] = []
    for mismatch in findings:
        key = mismatch.section, mismatch.kind
        counts[key] = counts.get(key, 0) + mismatch.count
        if len(first) < most:
            first.append(mismatch)
    return counts, first


def short(value: object) -> str:
    """Return the text of a value, truncated."""
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _TOO_LONG else text[:_TOO_LONG] + "..."
