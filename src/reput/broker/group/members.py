"""Members of groups: actions when a member joins, changes or leaves."""

import logging

from reput.broker import quotas
from reput.broker.filter import selection
from reput.broker.filter.consumer_filters import ConsumerFilters
from reput.broker.group.groups import Groups
from reput.broker.group.notices import MemberNotices
from reput.broker.group.queue_locks import QueueLocks
from reput.broker.group.subscription_groups import SubscriptionGroups
from reput.broker.settings.live import LiveConfig
from reput.broker.topic.topics import READ_WRITE, Topics
from reput.clock import Clock
from reput.format import names
from reput.format.bodies import ConsumerData
from reput.remoting.channel import Channel
from reput.remoting.time_slices import Steps, TimeSlices
from reput.store.message_store import MessageStore
from reput.store.tables.groups import SubscriptionGroup

_QUEUES_AT_ONCE = 200
"""Queues that are examined between two yields."""

_log = logging.getLogger(__name__)


class Members:
    """Members of producer and consumer groups.

    Args:
        groups: The groups and their members.
        subscription_groups: The settings of consumer groups.
        topics: The topics, among them retry topics.
        filters: The SQL filters of consumer groups.
        locks: The locks that members hold on queues.
        store: The store.
        settings: The settings in force.
        clock: The clock.
        slices: Runs work that may take long in time slices.
    """

    def __init__(
        self,
        groups: Groups[Channel],
        subscription_groups: SubscriptionGroups,
        topics: Topics,
        filters: ConsumerFilters,
        locks: QueueLocks,
        store: MessageStore,
        settings: LiveConfig,
        clock: Clock,
        slices: TimeSlices,
    ) -> None:
        self._groups = groups
        self._subscription_groups = subscription_groups
        self._topics = topics
        self._filters = filters
        self._locks = locks
        self._store = store
        self._settings = settings
        self._clock = clock
        self._notices = MemberNotices(groups, self._is_notified, slices)

    def forget(self, channel: Channel) -> None:
        """Remove the members of a connection that is closed."""
        for group in self._groups.remove(channel):
            self.left(group)

    def left(self, group: str) -> None:
        """Notify the remaining members of a group that a member has left."""
        if self._groups.consumer(group) is None:
            self._filters.unregister(group, self._clock.now_ms())
        self.notify(group)

    def notify(self, group: str) -> None:
        """Notify the members of a consumer group, soon, that one joined, left or changed."""
        if self._groups.consumer(group) is not None:
            self._notices.notify_soon(group)

    def _is_notified(self, group: str) -> bool:
        settings = self._subscription_groups.get(group)
        return self._settings.broker.notify_consumer_ids_changed_enable and (
            settings is None or settings.notify_members_enable
        )

    def register_filters(self, member: ConsumerData, newest_ms: dict[str, int]) -> Steps[bool]:
        """Register the SQL filters of a member's subscriptions.

        Args:
            member: The member.
            newest_ms: Topic -> store time of its newest message, ms; a cache of one request.

        Returns:
            True if the table must be saved before the reply: after a crash an older filter would
            otherwise be used with newer filter bits.
        """
        subscriptions = member.subscription_data_set
        for subscription in subscriptions:
            topic = subscription.topic
            if topic not in newest_ms and not selection.is_tag_type(subscription.expression_type):
                newest_ms[topic] = yield from self._newest_ms(topic)
        has_changed = yield from self._filters.register(
            member.group_name,
            subscriptions,
            self._clock.now_ms,
            lambda topic: newest_ms.get(topic, 0),
        )
        return has_changed and self._settings.store.enable_calc_filter_bit_map

    def _newest_ms(self, topic: str) -> Steps[int]:
        """Return the store time of the newest message of a topic, ms; 0 if there is none."""
        known = self._topics.get(topic)
        newest_ms = 0
        for queue_id in range(known.write_queue_count if known is not None else 0):
            end = self._store.max_offset(topic, queue_id)
            time_ms = self._store.store_time(topic, queue_id, end - 1) if end else None
            newest_ms = max(newest_ms, time_ms or 0)
            if queue_id % _QUEUES_AT_ONCE == _QUEUES_AT_ONCE - 1:
                yield
        return newest_ms

    def make_retry_topic(
        self, group: SubscriptionGroup, now_ms: int, address: str = quotas.OWN
    ) -> None:
        """Create the retry topic of a group, if it has none and its name allows it.

        A name of more than 248 characters leaves no room for the topic's prefix, and groups of an
        older table can have any name.
        """
        name = names.retry_topic(group.name)
        if group.retry_queue_count > 0 and names.is_legal_group_topic(name):
            self._topics.for_group(
                name, group.retry_queue_count, READ_WRITE, now_ms, address=address
            )

    def expire(self) -> None:
        """Close the connections of members without heartbeats; drop old locks and filters."""
        monotonic_ms = self._clock.monotonic_ms()
        timeout_ms = self._settings.broker.channel_expired_timeout
        for channel in self._groups.silent(monotonic_ms - timeout_ms):
            _log.warning("%s sent no heartbeat; closing the connection", channel.peer)
            channel.close()
            self.forget(channel)
        self._locks.expire(monotonic_ms)
        self._filters.expire(self._clock.now_ms())
