"""The parameters in the URL of a page, and why a request fails."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from reput.errors import ReputError, one_of


class RequestFailed(ReputError):
    """Failure of a request, which is answered with a page about it.

    Args:
        status: Status of HTTP.
        text: The problem, and the allowed values.
    """

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class RequestRefused(RequestFailed):
    """Refusal of a request that no page of the console sends; it is written to the audit log."""


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters in the URL of a page; an empty value means an absent parameter."""

    values: Mapping[str, Sequence[str]]

    def check_names(self, names: Collection[str]) -> None:
        """Check that all parameters are known. Raises ``RequestFailed`` for any other."""
        unknown = sorted(self.values.keys() - set(names))
        if unknown:
            raise RequestFailed(
                400, f"unknown parameter {unknown[0][:40]!r}; known are {one_of(unknown[0], names)}"
            )

    def text(self, name: str, default: str = "") -> str:
        """Return the last value of a parameter."""
        values = self.values.get(name)
        return values[-1] if values and values[-1] else default

    def number(self, name: str, default: int, smallest: int = 0, largest: int = 2**63 - 1) -> int:
        """Return a whole number. Raises ``RequestFailed`` outside of smallest to largest."""
        text = self.text(name)
        if not text:
            return default
        try:
            value = int(text) if text.isascii() and len(text) <= 20 else None
        except ValueError:
            value = None
        if value is None or not smallest <= value <= largest:
            raise RequestFailed(
                400, f"{name}={text[:40]!r}: allowed is a number from {smallest} to {largest}"
            )
        return value

    def choice(self, name: str, allowed: Sequence[str], default: str) -> str:
        """Return one of the allowed values. Raises ``RequestFailed`` for any other."""
        text = self.text(name, default)
        if text not in allowed:
            raise RequestFailed(400, f"{name}={text[:40]!r}: allowed are {', '.join(allowed)}")
        return text
