"""Bits of the SQL filters that match a message, computed at dispatch (``enableCalcFilterBitMap``).

Every group with an SQL filter on a topic has some positions of a Bloom filter. If the filter
matches the properties of a message, the message gets these bits; a pull then skips messages by
their extension units alone. Java: ``CommitLogDispatcherCalcBitMap``, ``BloomFilter``,
``BitsArray``.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from reput.format import sql92
from reput.store.tables.filters import ConsumerFilter

SQL92 = "SQL92"
LETTERS_MAX = 32 * 1024
"""Total length of all filters on a topic. A topic with more gets no bits, and pulls read its
messages: at dispatch, each message would be matched with all of the filters."""

_log = logging.getLogger(__name__)


class Filters(Protocol):
    """The source of the groups' filters."""

    def of(self, topic: str) -> dict[str, ConsumerFilter]:
        """Return the filters on a topic, by group."""


class FilterBits:
    """Computes the bits of messages.

    Args:
        filters: Filters of the groups; ``config/consumerFilter.json``.
    """

    def __init__(self, filters: Filters) -> None:
        self._filters = filters
        self._unusable: set[str] = set()

    def of(self, topic: str, properties: Mapping[str, str]) -> bytes:
        """Return the bits of a message; empty if no group filters its topic, or too many do."""
        groups = self._filters.of(topic)
        if not groups or sum(len(entry.expression) for entry in groups.values()) > LETTERS_MAX:
            return b""
        bits = bytearray(-(-max(entry.bloom_bits for entry in groups.values()) // 8))
        for entry in groups.values():
            compiled = self._filter(entry)
            if compiled is not None and compiled.matches(properties):
                for position in entry.bloom_positions:
                    if position // 8 < len(bits):
                        bits[position // 8] |= 1 << position % 8
        return bytes(bits)

    def _filter(self, entry: ConsumerFilter) -> sql92.Filter | None:
        if entry.expression_type != SQL92 or entry.expression in self._unusable:
            return None
        try:
            return sql92.compile_filter(entry.expression)
        except sql92.Sql92Error as error:
            _log.warning("filter of group %s cannot be used: %s", entry.group, error)
            self._unusable.add(entry.expression)
            return None
