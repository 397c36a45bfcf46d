"""A value that is not known."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unknown:
    """An unknown value: ``{"unknown": reason}`` in JSON, never 0 and never null.

    A value known to be absent is None.
    """

    unknown: str
    """The reason, as the end of a sentence: ``broker-a is silent since 12:00:03Z``."""
