"""Limits of requests, connections and clients: what a limit is, and the list of all.

Each package declares its limits in its own ``limits`` module, in the lowest package that checks
them. A limit is checked as soon as the value is available, before any work is done. A value over
the limit is refused with ``LimitExceeded``: the text contains the limit, the value and the maximum.
Servers count refusals by limit; ``/metrics`` shows them as ``reput_limit_refusals_total``.
Reference: docs/reference/limits.md, compared with the declarations by a test.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace

from reput.errors import LimitExceeded

_SYSTEM_ERROR = 1
"""``ResponseCode.SYSTEM_ERROR``, which is in a higher package."""

KIB = 1024
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limit:
    """A maximum, with the error message of its refusals."""

    name: str
    """Label of its metric, and key of its row in the reference."""
    subject: str
    """The limited quantity, as a noun phrase: ``groups in a heartbeat``."""
    maximum: int
    """Largest allowed value; the default if there is an option."""
    unit: str = ""
    """Unit such as ``bytes``; empty for a count."""
    option: str = ""
    """Key of a server's file that changes the limit; empty if it is fixed."""
    scope: str = "request"
    """Scope of the maximum: ``request``, ``connection``, ``address`` or ``server``."""
    response_code: int = _SYSTEM_ERROR
    """Response code of a refusal."""

    def check(self, value: int, place: str = "") -> None:
        """Refuse a value over the maximum.

        Args:
            value: The counted or measured value.
            place: Name or address of the object, for the error message.

        Raises:
            LimitExceeded: The value is over the maximum.
        """
        if value > self.maximum:
            raise self.exceeded(value, place)

    def check_count(self, value: int, place: str = "") -> None:
        """Refuse a count over the maximum, or below 0. Raises ``LimitExceeded``."""
        if not 0 <= value <= self.maximum:
            raise self.exceeded(value, place)

    def exceeded(self, value: int | None = None, place: str = "") -> LimitExceeded:
        """Return the error that refuses a value; None if only the excess is known."""
        unit = f" {self.unit}" if self.unit else ""
        amount = f"more than {self.maximum}{unit}" if value is None else f"{value}{unit}"
        location = f" ({place})" if place else ""
        change = f"; {self.option} changes it" if self.option else ""
        return LimitExceeded(
            self.name,
            f"{self.subject}{location}: {amount}; allowed: at most {self.maximum}{unit}, "
            f"limit {self.name}{change}",
            self.response_code,
        )

    def at(self, maximum: int) -> "Limit":
        """Return the limit with a configured maximum."""
        return replace(self, maximum=maximum)

    def configured(self, settings: object) -> "Limit":
        """Return the limit with the maximum of its option in settings."""
        field = re.sub(r"([A-Z])", r"_\1", self.option).lower()
        return self.at(getattr(settings, field))


_declared: dict[str, Limit] = {}


def declare(
    name: str,
    subject: str,
    maximum: int,
    unit: str = "",
    *,
    option: str = "",
    scope: str = "request",
    response_code: int = _SYSTEM_ERROR,
) -> Limit:
    """Return a new limit, and put it on the list of all; the arguments are those of ``Limit``."""
    assert name not in _declared, f"two limits are called {name}"
    limit = Limit(name, subject, maximum, unit, option, scope, response_code)
    _declared[name] = limit
    return limit


def declared() -> list[Limit]:
    """Return the limits of all packages that were imported, in the order of their declaration."""
    return list(_declared.values())


class Refusals:
    """Counts of refusals, by name of the limit."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Count refusals of a limit."""
        self.counts[name] += count


# --- settings --------------------------------------------------------------------------------

WAITING_SETTINGS = declare(
    "waiting_settings",
    "changes of settings that wait for earlier ones",
    100,
    scope="server",
)
SETTINGS_BYTES = declare("settings_bytes", "text of changed settings", 64 * KIB, "bytes")
