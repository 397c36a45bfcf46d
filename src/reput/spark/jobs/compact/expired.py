"""The messages that are past the retention of their topic, and their totals."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from reput.errors import InvalidOption
from reput.format import names

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class Retention:
    """The times that messages of each topic are kept.

    Raises:
        InvalidOption: A pattern is no regular expression, or a time is negative.
    """

    rules: tuple[tuple[str, int | None], ...]
    """(pattern of topics, ms to keep their messages; None for ever); the first match counts. A
    pattern is a regular expression for the whole name. A system topic is matched by its own name
    only, so that ``.*`` does not drop delayed messages or open transactions.
    """
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
        """Return the store time from which messages of a topic are kept, in ms; None if all are."""
        for pattern, kept_ms in self.rules:
            is_pattern = not names.is_system_topic(topic)
            if topic == pattern or (is_pattern and re.fullmatch(pattern, topic)):
                return None if kept_ms is None else self.now_ms - kept_ms
        return None


@dataclass(frozen=True)
class TopicDropped:
    """The dropped messages of a topic."""

    topic: str
    messages: int
    record_bytes: int
    """Bytes of the records in the log."""


def by_topic(pieces: Iterable[tuple[str, int, int]]) -> tuple[TopicDropped, ...]:
    """Return the totals of (topic, messages, bytes of records) by topic, sorted."""
    messages: Counter[str] = Counter()
    record_bytes: Counter[str] = Counter()
    for topic, count, size in pieces:
        messages[topic] += count
        record_bytes[topic] += size
    return tuple(
        TopicDropped(topic, messages[topic], record_bytes[topic]) for topic in sorted(messages)
    )


def retention_from(option: str, texts: Iterable[str]) -> dict[str, int | None]:
    """Return pattern of topics -> ms to keep their messages, None for ever.

    Args:
        option: Name of the option that the texts are from.
        texts: Texts such as ``orders=7d``.

    Raises:
        InvalidOption: A text has another form.
    """
    rules: dict[str, int | None] = {}
    for text in texts:
        pattern, _, time = text.strip().rpartition("=")
        number, unit = time[:-1], time[-1:]
        if pattern and time == "forever":
            rules[pattern] = None
        elif pattern and unit in _UNITS_MS and number.isascii() and number.isdigit():
            rules[pattern] = int(number) * _UNITS_MS[unit]
        else:
            allowed = "TOPICS=TIME, as orders=7d, logs=12h, audit.*=forever"
            raise InvalidOption(option, text, allowed)
    return rules


def retention_of(rules: Mapping[str, int | None], now_ms: int) -> Retention:
    """Return the rules in a form that tasks can receive. Raises as ``Retention`` does."""
    return Retention(tuple(rules.items()), now_ms)
