"""Which SQL filters take a message: bits computed once at dispatch (``enableCalcFilterBitMap``).

Every group with an SQL filter on a topic has some positions of a Bloom filter. A message whose
properties a group's filter takes gets that group's bits; a pull then skips, by the extension unit
alone, what cannot match. Java: ``CommitLogDispatcherCalcBitMap``, ``BloomFilter``, ``BitsArray``.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from reput.format import sql92
from reput.store.table_files import ConsumerFilter

SQL92 = "SQL92"
LETTERS_MAX = 32 * 1024
"""Of all filters on a topic. A topic with more gets no bits, and all pulls look at its messages:
each message that is stored would be looked at by all of them."""

_log = logging.getLogger(__name__)


class Filters(Protocol):
    """Where the groups' filters are."""

    def of(self, topic: str) -> dict[str, ConsumerFilter]:
        """Return the filters on a topic, by group."""


class FilterBits:
    """Computes the bits of messages.

    Args:
        filters: The groups' filters; ``config/consumerFilter.json``.
    """

    def __init__(self, filters: Filters) -> None:
        self._filters = filters
        self._unusable: set[str] = set()

    def of(self, topic: str, properties: Mapping[str, str]) -> bytes:
        """Return the bits of a message; empty if no group filters its topic, or too many do."""
        groups = self._filters.of(topic)
        if not groups or sum(len(one.expression) for one in groups.values()) > LETTERS_MAX:
            return b""
        bits = bytearray(-(-max(one.bloom_bits for one in groups.values()) // 8))
        for one in groups.values():
            compiled = self._filter(one)
            if compiled is not None and compiled.matches(properties):
                for position in one.bloom_positions:
                    if position // 8 < len(bits):
                        bits[position // 8] |= 1 << position % 8
        return bytes(bits)

    def _filter(self, one: ConsumerFilter) -> sql92.Filter | None:
        if one.expression_type != SQL92 or one.expression in self._unusable:
            return None
        try:
            return sql92.compile_filter(one.expression)
        except sql92.Sql92Error as error:
            _log.warning("filter of group %s cannot be used: %s", one.group, error)
            self._unusable.add(one.expression)
            return None
