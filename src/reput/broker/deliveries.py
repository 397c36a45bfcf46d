"""Statistics and consumer offsets, including what the fast path has delivered.

The kernel answers pulls without Python, and counts the delivered messages and committed offsets.
This module adds those counts before statistics or consumer offsets are read.
"""

from reput.broker import limits
from reput.broker.counters.stats import Stats
from reput.broker.pull_subscriptions import PullSubscriptions
from reput.broker.settings.live import LiveConfig
from reput.limits import Refusals
from reput.store.config import BrokerRole
from reput.store.tables.offsets import ConsumerOffsetTable


class Deliveries:
    """Statistics and consumer offsets.

    Args:
        pull_subscriptions: The kernel's subscriptions, with its counts of deliveries.
        consumer_offsets: The table of consumer offsets.
        stats: The statistics.
        settings: The current settings, with the limit of consumer offsets.
        refusals: The counts of refused requests.
    """

    def __init__(
        self,
        pull_subscriptions: PullSubscriptions,
        consumer_offsets: ConsumerOffsetTable,
        stats: Stats,
        settings: LiveConfig,
        refusals: Refusals,
    ) -> None:
        self._pull_subscriptions = pull_subscriptions
        self._consumer_offsets = consumer_offsets
        self._stats = stats
        self._settings = settings
        self._refusals = refusals

    @property
    def consumer_offsets(self) -> ConsumerOffsetTable:
        """The consumer offsets of all groups."""
        self._settle()
        return self._consumer_offsets

    @property
    def stats(self) -> Stats:
        """The counts of stored and delivered messages."""
        self._settle()
        return self._stats

    def _settle(self) -> None:
        """Add the kernel's counts since the last call."""
        if not self._pull_subscriptions.has_news:
            return
        table = self._consumer_offsets
        count_max = self._settings.broker.reput_consumer_offsets_max
        # As the processor: a slave stores only the offsets that are committed by themselves.
        is_slave = self._settings.store.broker_role is BrokerRole.SLAVE
        for delivery in self._pull_subscriptions.take():
            self._stats.delivered(delivery)
            if is_slave or delivery.consumer_offset is None or delivery.consumer_offset < 0:
                continue
            queue = delivery.topic, delivery.group, delivery.queue_id
            if table.count < count_max or table.get(*queue) is not None:
                table.put(*queue, delivery.consumer_offset)
            else:
                self._refusals.add(limits.CONSUMER_OFFSETS.name)
