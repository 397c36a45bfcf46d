"""How a server is: what its /health says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Health:
    """What was found."""

    problems: tuple[str, ...] = ()
    """Why it is red; empty: green."""
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """For whoever wants to know more; JSON."""

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def describe(self) -> dict[str, Any]:
        """Return all as JSON."""
        return {
            "status": "ok" if self.is_well else "failing",
            "problems": list(self.problems),
            "warnings": list(self.warnings),
            **self.details,
        }
