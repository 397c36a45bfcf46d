"""The findings of a check, each with a verdict."""

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """Consequence of a finding for the move."""

    OK = "ok"
    WARNING = "warning"
    """The broker starts, and something is lost, late or unprotected."""
    STOP = "stop"
    """The broker would not start, or would serve wrong data."""


@dataclass(frozen=True, slots=True)
class MoveFinding:
    """The result of a check."""

    area: str
    """``settings``, ``store``, ``features``, ``machine`` or ``way back``."""
    subject: str
    verdict: Verdict
    fact: str
    action: str = ""
    """What to do; empty for ``ok``."""


class Findings:
    """The findings of one area, in the order of the checks.

    Args:
        area: Name of the area.
    """

    def __init__(self, area: str) -> None:
        self._area = area
        self.all: list[MoveFinding] = []

    def ok(self, subject: str, fact: str) -> None:
        """Add a finding that needs no action."""
        self._add(subject, Verdict.OK, fact, "")

    def warn(self, subject: str, fact: str, action: str) -> None:
        """Add a finding with which the broker starts nevertheless."""
        self._add(subject, Verdict.WARNING, fact, action)

    def stop(self, subject: str, fact: str, action: str) -> None:
        """Add a finding that forbids the move."""
        self._add(subject, Verdict.STOP, fact, action)

    def _add(self, subject: str, verdict: Verdict, fact: str, action: str) -> None:
        self.all.append(MoveFinding(self._area, subject, verdict, fact, action))
