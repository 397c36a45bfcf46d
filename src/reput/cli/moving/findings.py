"""The findings of a check, each with a verdict."""

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """What a finding means for the move."""

    OK = "ok"
    WARNING = "warning"
    """The broker starts, and something is lost, late or unprotected."""
    STOP = "stop"
    """The broker would not start, or would serve wrong data."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A thing that was checked."""

    area: str
    """``settings``, ``store``, ``features``, ``machine`` or ``way back``."""
    subject: str
    verdict: Verdict
    found: str
    action: str = ""
    """What to do; empty for ``ok``."""


class Findings:
    """The findings of one area, in the order of the checks.

    Args:
        area: Name of the area.
    """

    def __init__(self, area: str) -> None:
        self._area = area
        self.all: list[Finding] = []

    def ok(self, subject: str, found: str) -> None:
        """Add a finding that needs no action."""
        self._add(subject, Verdict.OK, found, "")

    def warn(self, subject: str, found: str, action: str) -> None:
        """Add a finding with which the broker starts nevertheless."""
        self._add(subject, Verdict.WARNING, found, action)

    def stop(self, subject: str, found: str, action: str) -> None:
        """Add a finding that forbids the move."""
        self._add(subject, Verdict.STOP, found, action)

    def _add(self, subject: str, verdict: Verdict, found: str, action: str) -> None:
        self.all.append(Finding(self._area, subject, verdict, found, action))
