"""Health of a server, as /health reports it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Health:
    """Result of the health checks."""

    problems: tuple[str, ...] = ()
    """Problems; if there are none, the server is healthy."""
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further values, as JSON."""

    @property
    def is_well(self) -> bool:
        """True if there is no problem."""
        return not self.problems

    def describe(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "status": "ok" if self.is_well else "failing",
            "problems": list(self.problems),
            "warnings": list(self.warnings),
            **self.details,
        }
