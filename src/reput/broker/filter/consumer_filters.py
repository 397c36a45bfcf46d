"""The SQL filters that groups subscribe with: ``config/consumerFilter.json``.

They come with heartbeats. A filter whose group has left is kept for a day: messages continue to get
its bits, so that the bits are valid if the group returns. Java: ``ConsumerFilterManager``, 4.9.7.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from reput.broker import limits
from reput.broker.filter import selection
from reput.broker.filter.selection import SQL92
from reput.errors import excerpt
from reput.format.bloom import BloomFilter
from reput.format.bodies import SubscriptionData
from reput.remoting.time_slices import Steps
from reput.store.tables.filters import ConsumerFilter, ConsumerFilterTable

SAVED_MS = 10_000
"""Interval of saving the table, in ms."""
_DEAD_AT_START_MS = 30_000
"""Assumed time since the groups left, for filters that are loaded at the start, in ms."""

_log = logging.getLogger(__name__)


class ConsumerFilters:
    """The SQL filters of groups on topics.

    Args:
        table: The saved filters.
        bloom: Bloom filter that assigns bits to groups.
        keep_ms: Time for which a filter is kept after its group has left, in ms.
        is_expression: Returns whether a text can be compiled.
        compile_in_steps: Prepares ``is_expression`` for a type and a text; None if that takes no
            time.
    """

    def __init__(
        self,
        table: ConsumerFilterTable,
        bloom: BloomFilter,
        keep_ms: int,
        is_expression: Callable[[str], bool],
        compile_in_steps: Callable[[str | None, str | None], Steps[None] | None],
    ) -> None:
        self.table = table
        self._bloom = bloom
        self._keep_ms = keep_ms
        self._is_expression = is_expression
        self._compile_in_steps = compile_in_steps
        self._topics: dict[str, set[str]] = {}
        """Topics by group."""
        self._count = self._letters = 0
        for saved_filter in table.all():
            self._count_in(saved_filter)

    def _count_in(self, group_filter: ConsumerFilter) -> None:
        self._topics.setdefault(group_filter.group, set()).add(group_filter.topic)
        self._count += 1
        self._letters += len(group_filter.expression)

    def _put(self, group_filter: ConsumerFilter) -> None:
        self._count_out(group_filter.topic, group_filter.group)
        self._count_in(group_filter)
        self.table.put(group_filter)

    def _delete(self, topic: str, group: str) -> bool:
        self._count_out(topic, group)
        return self.table.delete(topic, group)

    def _count_out(self, topic: str, group: str) -> None:
        old = self.table.get(topic, group)
        if old is None:
            return
        self._count -= 1
        self._letters -= len(old.expression)
        topics = self._topics[group]
        topics.discard(topic)
        if not topics:
            del self._topics[group]

    def load(self, now_ms: int) -> None:
        """Mark all saved filters as those of absent groups.

        If any was made for bits of another length, all are dropped, and their bits are not used any
        more; heartbeats bring them again.
        """
        saved = list(self.table.all())
        is_foreign = any(
            (saved_filter.bloom_bits, len(saved_filter.bloom_positions))
            != (self._bloom.bits, self._bloom.positions)
            for saved_filter in saved
        )
        if is_foreign:
            _log.warning(
                "all %d filters of consumerFilter.json are dropped: some are for bits of another "
                "length (expectConsumerNumUseFilter, maxErrorRateOfBloomFilter)", len(saved)
            )  # fmt: skip
        for saved_filter in saved:
            if is_foreign:
                self._delete(saved_filter.topic, saved_filter.group)
            elif not saved_filter.is_dead:
                self._set_dead(saved_filter, now_ms - _DEAD_AT_START_MS)

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
        clock: Callable[[], int],
        newest_ms: Callable[[str], int],
    ) -> Steps[bool]:
        """Register the subscriptions of a member; yield while filters are compiled.

        Args:
            group: The group.
            wanted: Subscriptions of the member, with and without filters.
            clock: Returns the time, ms. The born time of each filter is the time when it is added:
                messages that are stored while earlier ones are compiled do not have its bits.
            newest_ms: Returns the store time of the newest message of a topic.

        Returns:
            True if the meaning of bits has changed: the table should be saved before they are used.

        Raises:
            LimitExceeded: There are too many filters, or their total length is too large.
        """
        has_changed = False
        topics = set()
        for subscription in wanted:
            topics.add(subscription.topic)
            if subscription.sub_string and not selection.is_tag_type(subscription.expression_type):
                expression_type, text = subscription.expression_type, subscription.sub_string
                yield from self._compile_in_steps(expression_type, text) or ()
                has_changed |= self._register(group, subscription, clock, newest_ms)
                yield
        for known in self._of_group(group):
            if known.topic not in topics:
                self._set_dead(known, clock())
        return has_changed

    def _register(
        self,
        group: str,
        wanted: SubscriptionData,
        clock: Callable[[], int],
        newest_ms: Callable[[str], int],
    ) -> bool:
        topic, expression, kind = wanted.topic, wanted.sub_string or "", wanted.expression_type
        old = self.table.get(topic, group)
        if old is not None and wanted.sub_version <= old.client_version:
            if wanted.sub_version == old.client_version and old.is_dead:
                self._put(replace(old, dead_ms=0))
            return False
        if old is not None and (old.expression, old.expression_type) == (expression, kind):
            self._put(replace(old, client_version=wanted.sub_version, dead_ms=0))
            return False
        if kind != SQL92 or not self._is_expression(expression):
            # The client gets an error when it checks the filter (46), and when it pulls.
            return self._delete(topic, group)
        self._make_room(old, expression, group)
        group_filter = ConsumerFilter(
            topic=topic,
            group=group,
            expression=expression,
            expression_type=kind,
            client_version=wanted.sub_version,
            # Bits are used for messages stored later. If the clock was set back, that must not
            # include messages stored before.
            born_ms=max(clock(), newest_ms(topic)),
            bloom_bits=self._bloom.bits,
            bloom_positions=self._bloom.positions_of(group, topic),
        )
        self._put(group_filter)
        _log.info("group %s filters topic %s by %s", group, topic, excerpt(expression))
        return True

    def _make_room(self, old: ConsumerFilter | None, expression: str, group: str) -> None:
        """Drop filters of absent groups if there are too many. Raises ``LimitExceeded``."""
        more = 0 if old is not None else 1
        more_letters = len(expression) - (len(old.expression) if old is not None else 0)

        def is_full() -> bool:
            return (
                self._count + more > limits.CONSUMER_FILTERS.maximum
                or self._letters + more_letters > limits.CONSUMER_FILTER_BYTES.maximum
            )

        if is_full():
            for candidate in list(self.table.all()):
                if candidate.is_dead and candidate is not old:
                    self._delete(candidate.topic, candidate.group)
        if is_full():
            limits.CONSUMER_FILTERS.check(self._count + more, group)
            limits.CONSUMER_FILTER_BYTES.check(self._letters + more_letters, group)

    def unregister(self, group: str, now_ms: int) -> None:
        """Mark the filters of a group without members."""
        for group_filter in self._of_group(group):
            self._set_dead(group_filter, now_ms)

    def expire(self, now_ms: int) -> None:
        """Drop filters whose groups left too long ago."""
        for group_filter in list(self.table.all()):
            if group_filter.is_dead and now_ms - group_filter.dead_ms >= self._keep_ms:
                self._delete(group_filter.topic, group_filter.group)
                _log.info(
                    "the filter of group %s on topic %s is dropped",
                    group_filter.group,
                    group_filter.topic,
                )

    def _of_group(self, group: str) -> list[ConsumerFilter]:
        known = [self.table.get(topic, group) for topic in self._topics.get(group, ())]
        return [
            group_filter
            for group_filter in known
            if group_filter is not None and not group_filter.is_dead
        ]

    def _set_dead(self, group_filter: ConsumerFilter, dead_ms: int) -> None:
        self._put(replace(group_filter, dead_ms=max(dead_ms, group_filter.born_ms)))
