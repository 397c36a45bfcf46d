"""The SQL filters that groups subscribe with: ``config/consumerFilter.json``.

Heartbeats bring them. A filter whose group has left is kept for a day: messages go on getting its
bits, so that a group that comes back can trust them. Java: ``ConsumerFilterManager``, 4.9.7.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from reput import limits
from reput.broker.filter import selection
from reput.broker.filter.selection import SQL92
from reput.errors import excerpt
from reput.format.bloom import BloomFilter
from reput.format.bodies import SubscriptionData
from reput.remoting.time_slices import Steps
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
        self._topics: dict[str, set[str]] = {}
        """By group."""
        self._count = self._letters = 0
        for one in table.all():
            self._count_in(one)

    def _count_in(self, one: ConsumerFilter) -> None:
        self._topics.setdefault(one.group, set()).add(one.topic)
        self._count += 1
        self._letters += len(one.expression)

    def _put(self, one: ConsumerFilter) -> None:
        self._count_out(one.topic, one.group)
        self._count_in(one)
        self.table.put(one)

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
                self._delete(one.topic, one.group)
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
        clock: Callable[[], int],
        newest_ms: Callable[[str], int],
    ) -> Steps[bool]:
        """Take over all that a member of a group subscribes to; yield behind each filter.

        Args:
            group: The group.
            wanted: What the member subscribes to, filters or not.
            clock: Returns the time, ms. Each filter is born when it is in the table: messages that
                are stored while those before it are compiled do not have its bits.
            newest_ms: Returns the store time of the newest message of a topic.

        Returns:
            Whether the bits of messages mean something else now: the table should be saved before
            they are believed.

        Raises:
            LimitExceeded: There are too many filters, or they are too long in all.
        """
        has_changed = False
        topics = set()
        for one in wanted:
            topics.add(one.topic)
            if one.sub_string and not selection.is_tag_type(one.expression_type):
                has_changed |= self._register(group, one, clock, newest_ms)
                yield  # compiling one takes milliseconds
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
            # The client is told when it asks (46), and when it pulls.
            return self._delete(topic, group)
        self._make_room(old, expression, group)
        one = ConsumerFilter(
            topic=topic,
            group=group,
            expression=expression,
            expression_type=kind,
            client_version=wanted.sub_version,
            # Bits are believed of messages stored later. A clock that was set back must not make
            # some of those that were stored before.
            born_ms=max(clock(), newest_ms(topic)),
            bloom_bits=self._bloom.bits,
            bloom_positions=self._bloom.positions_of(group, topic),
        )
        self._put(one)
        _log.info("group %s filters topic %s by %s", group, topic, excerpt(expression))
        return True

    def _make_room(self, old: ConsumerFilter | None, expression: str, group: str) -> None:
        """Drop filters of groups that left, if there are too many. Raises ``LimitExceeded``."""
        more = 0 if old is not None else 1
        more_letters = len(expression) - (len(old.expression) if old is not None else 0)

        def is_full() -> bool:
            return (
                self._count + more > limits.CONSUMER_FILTERS.maximum
                or self._letters + more_letters > limits.CONSUMER_FILTER_BYTES.maximum
            )

        if is_full():
            for one in list(self.table.all()):
                if one.is_dead and one is not old:
                    self._delete(one.topic, one.group)
        if is_full():
            limits.CONSUMER_FILTERS.check(self._count + more, group)
            limits.CONSUMER_FILTER_BYTES.check(self._letters + more_letters, group)

    def unregister(self, group: str, now_ms: int) -> None:
        """Take note that a group has no member any more."""
        for one in self._of_group(group):
            self._set_dead(one, now_ms)

    def expire(self, now_ms: int) -> None:
        """Forget filters whose groups left too long ago."""
        for one in list(self.table.all()):
            if one.is_dead and now_ms - one.dead_ms >= self._keep_ms:
                self._delete(one.topic, one.group)
                _log.info("the filter of group %s on topic %s is dropped", one.group, one.topic)

    def _of_group(self, group: str) -> list[ConsumerFilter]:
        known = [self.table.get(topic, group) for topic in self._topics.get(group, ())]
        return [one for one in known if one is not None and not one.is_dead]

    def _set_dead(self, one: ConsumerFilter, dead_ms: int) -> None:
        self._put(replace(one, dead_ms=max(dead_ms, one.born_ms)))
