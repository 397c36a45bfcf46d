"""Which messages have outlived the retention of their topic, and what they amount to."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from reput.errors import InvalidOption
from reput.format import names

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class Retention:
    """How long messages of each topic are kept.

    Raises:
        InvalidOption: A pattern is no regular expression, or a time is negative.
    """

    rules: tuple[tuple[str, int | None], ...]
    """(pattern of topics, ms to keep them; None: for good), the first that fits counts. A pattern
    is a regular expression for all of the name. A system topic fits its own name only, so that no
    ``.*`` takes messages that wait for their time or for the end of a transaction."""
    now_ms: int

    def __post_init__(self) -> None:
        if not self.rules:
            raise InvalidOption("retention", {}, "a time for each pattern of topics")
        for pattern, kept_ms in self.rules:
            try:
                re.compile(pattern)
            except re.error as error:
                allowed = f"patterns that are regular expressions ({error})"
                raise InvalidOption("retention", pattern, allowed) from None
            if kept_ms is not None and kept_ms < 0:
                raise InvalidOption("retention", {pattern: kept_ms}, "milliseconds from 0 up")

    def begin_ms(self, topic: str) -> int | None:
        """Return from which store time on messages of a topic stay; None if all do."""
        for pattern, kept_ms in self.rules:
            is_pattern = not names.is_system_topic(topic)
            if topic == pattern or (is_pattern and re.fullmatch(pattern, topic)):
                return None if kept_ms is None else self.now_ms - kept_ms
        return None


@dataclass(frozen=True)
class TopicDropped:
    """What goes of a topic."""

    topic: str
    messages: int
    record_bytes: int
    """As they stand in the log."""


def by_topic(pieces: Iterable[tuple[str, int, int]]) -> tuple[TopicDropped, ...]:
    """Add up (topic, messages, bytes of records), by topic in order."""
    messages: Counter[str] = Counter()
    record_bytes: Counter[str] = Counter()
    for topic, count, size in pieces:
        messages[topic] += count
        record_bytes[topic] += size
    return tuple(
        TopicDropped(topic, messages[topic], record_bytes[topic]) for topic in sorted(messages)
    )


def retention_from(option: str, texts: Iterable[str]) -> dict[str, int | None]:
    """Return pattern of topics -> ms that they are kept, None for good.

    Args:
        option: Where the texts are from.
        texts: Such as ``orders=7d``.

    Raises:
        InvalidOption: One says something else.
    """
    found: dict[str, int | None] = {}
    for text in texts:
        pattern, _, time = text.strip().rpartition("=")
        number, unit = time[:-1], time[-1:]
        if pattern and time == "forever":
            found[pattern] = None
        elif pattern and unit in _UNITS_MS and number.isascii() and number.isdigit():
            found[pattern] = int(number) * _UNITS_MS[unit]
        else:
            allowed = "TOPICS=TIME, as orders=7d, logs=12h, audit.*=forever"
            raise InvalidOption(option, text, allowed)
    return found


def retention_of(rules: Mapping[str, int | None], now_ms: int) -> Retention:
    """Return rules as they are carried to tasks. Raises as ``Retention`` does."""
    return Retention(tuple(rules.items()), now_ms)
