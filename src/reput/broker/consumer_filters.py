"""The SQL filters that groups subscribe with: ``config/consumerFilter.json``.

Heartbeats bring them. A filter whose group has left is kept for a day: messages go on getting its
bits, so that a group that comes back can trust them. Java: ``ConsumerFilterManager``, 4.9.7.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from reput.broker import selection
from reput.broker.selection import SQL92
from reput.format.bloom import BloomFilter
from reput.format.bodies import SubscriptionData
from reput.store.table_files import ConsumerFilter, ConsumerFilterTable

SAVED_MS = 10_000
"""Between two savings of the table."""
_DEAD_AT_START_MS = 30_000
"""So long ago all groups left that are there at the start, it is thought."""

_log = logging.getLogger(__name__)


class ConsumerFilters:
    """The filters of groups on topics.

    Args:
        table: What is saved.
        bloom: Which bits a group has.
        keep_ms: A filter is kept for so long after its group has left.
        is_expression: Whether a text can be compiled.
    """

    def __init__(
        self,
        table: ConsumerFilterTable,
        bloom: BloomFilter,
        keep_ms: int,
        is_expression: Callable[[str], bool],
    ) -> None:
        self.table = table
        self._bloom = bloom
        self._keep_ms = keep_ms
        self._is_expression = is_expression

    def load(self, now_ms: int) -> None:
        """Take over what is saved: nobody is there yet.

        If one was made for bits of another length all are dropped, and so are believed no more;
        heartbeats bring them again.
        """
        found = list(self.table.all())
        is_foreign = any(
            (one.bloom_bits, len(one.bloom_positions)) != (self._bloom.bits, self._bloom.positions)
            for one in found
        )
        if is_foreign:
            _log.warning(
                "all %d filters of consumerFilter.json are dropped: some are for bits of another "
                "length (expectConsumerNumUseFilter, maxErrorRateOfBloomFilter)", len(found)
            )  # fmt: skip
        for one in found:
            if is_foreign:
                self.table.delete(one.topic, one.group)
            elif not one.is_dead:
                self._set_dead(one, now_ms - _DEAD_AT_START_MS)

    def of(self, topic: str) -> dict[str, ConsumerFilter]:
        """Return the filters on a topic, by group."""
        return self.table.of(topic)

    def find(self, topic: str, group: str) -> ConsumerFilter | None:
        """Return a group's filter on a topic, or None."""
        return self.table.get(topic, group)

    def register(
        self,
        group: str,
        wanted: Iterable[SubscriptionData],
        now_ms: int,
        newest_ms: Callable[[str], int],
    ) -> bool:
        """Take over all that a member of a group subscribes to.

        Args:
            group: The group.
            wanted: What the member subscribes to, filters or not.
            now_ms: The time.
            newest_ms: Returns the store time of the newest message of a topic.

        Returns:
            Whether the bits of messages mean something else now: the table should be saved before
            they are believed.
        """
        has_changed = False
        topics = set()
        for one in wanted:
            topics.add(one.topic)
            if one.sub_string and not selection.is_tag_type(one.expression_type):
                has_changed |= self._register(group, one, now_ms, newest_ms)
        for known in self._of_group(group):
            if known.topic not in topics:
                self._set_dead(known, now_ms)
        return has_changed

    def _register(
        self,
        group: str,
        wanted: SubscriptionData,
        now_ms: int,
        newest_ms: Callable[[str], int],
    ) -> bool:
        topic, expression, kind = wanted.topic, wanted.sub_string or "", wanted.expression_type
        old = self.table.get(topic, group)
        if old is not None and wanted.sub_version <= old.client_version:
            if wanted.sub_version == old.client_version and old.is_dead:
                self.table.put(replace(old, dead_ms=0))
            return False
        if old is not None and (old.expression, old.expression_type) == (expression, kind):
            self.table.put(replace(old, client_version=wanted.sub_version, dead_ms=0))
            return False
        if kind != SQL92 or not self._is_expression(expression):
            # The client is told when it asks (46), and when it pulls.
            return self.table.delete(topic, group)
        one = ConsumerFilter(
            topic=topic,
            group=group,
            expression=expression,
            expression_type=kind,
            client_version=wanted.sub_version,
            # Bits are believed of messages stored later. A clock that was set back must not make
            # some of those that were stored before.
            born_ms=max(now_ms, newest_ms(topic)),
            bloom_bits=self._bloom.bits,
            bloom_positions=self._bloom.positions_of(group, topic),
        )
        self.table.put(one)
        _log.info("group %s filters topic %s by %s", group, topic, expression)
        return True

    def unregister(self, group: str, now_ms: int) -> None:
        """Take note that a group has no member any more."""
        for one in self._of_group(group):
            self._set_dead(one, now_ms)

    def expire(self, now_ms: int) -> None:
        """Forget filters whose groups left too long ago."""
        for one in list(self.table.all()):
            if one.is_dead and now_ms - one.dead_ms >= self._keep_ms:
                self.table.delete(one.topic, one.group)
                _log.info("the filter of group %s on topic %s is dropped", one.group, one.topic)

    def _of_group(self, group: str) -> list[ConsumerFilter]:
        return [one for one in self.table.all() if one.group == group and not one.is_dead]

    def _set_dead(self, one: ConsumerFilter, dead_ms: int) -> None:
        self.table.put(replace(one, dead_ms=max(dead_ms, one.born_ms)))
