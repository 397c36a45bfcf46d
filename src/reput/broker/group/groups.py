"""The clients of a broker: producers, consumers, and the subscriptions of each group.

Kept only in memory: heartbeats restore it. A client is identified by its connection. The work for a
connection, including its end, depends on the number of its groups only.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from reput.broker import limits, quotas
from reput.broker.quotas import AddressQuota
from reput.broker.settings.config import BrokerConfig
from reput.format.bodies import ConsumerData, SubscriptionData

_SUBSCRIPTION_BYTES = 300
"""Approximate memory of a subscription besides its texts, in bytes."""


class Connected(Protocol):
    """The part of a connection that groups use."""

    @property
    def peer(self) -> str:
        """Address of the client, ``ip:port``."""


_C = TypeVar("_C", bound=Connected)


class Maxima(NamedTuple):
    """Limits of groups, members and subscriptions."""

    connection_groups: int = limits.CONNECTION_GROUPS.maximum
    memberships: int = limits.MEMBERSHIPS.maximum
    memberships_per_address: int = limits.MEMBERSHIPS_PER_ADDRESS.maximum
    group_members: int = limits.GROUP_MEMBERS.maximum
    subscription_bytes: int = limits.ALL_SUBSCRIPTION_BYTES.maximum

    @classmethod
    def of(cls, config: BrokerConfig) -> "Maxima":
        """Return the limits in the settings of a broker."""
        return cls(
            config.reput_connection_groups_max,
            config.reput_memberships_max,
            config.reput_memberships_per_address_max,
            config.reput_group_members_max,
            config.reput_subscription_bytes_max,
        )


@dataclass(slots=True)
class Member(Generic[_C]):
    """A client in a group."""

    channel: _C
    client_id: str
    language: int
    version: int
    seen_ms: int
    """Time of its last heartbeat, monotonic ms, so that setting the clock does not expire members.
    """


@dataclass(slots=True)
class ConsumerGroup(Generic[_C]):
    """A consumer group with members."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[_C, Member[_C]] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    """Subscriptions by topic."""
    subscription_bytes: int = 0
    """Approximate memory of the subscriptions, in bytes."""

    @property
    def client_ids(self) -> list[str]:
        """The ids of its members."""
        return [member.client_id for member in self.members.values()]

    def subscribe(self, wanted: Iterable[SubscriptionData]) -> tuple[bool, bool]:
        """Replace the subscriptions by those of a heartbeat.

        Returns:
            Whether topics were added or removed, and whether anything changed: a newer version of a
            subscription replaces the older one, but does not by itself change the assignment of
            queues.
        """
        by_topic = {subscription.topic: subscription for subscription in wanted}
        has_changed = False
        before = dict(self.subscriptions)
        for topic, subscription in by_topic.items():
            known = self.subscriptions.get(topic)
            if known is None:
                has_changed = True
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[topic] = subscription
        for topic in [topic for topic in self.subscriptions if topic not in by_topic]:
            del self.subscriptions[topic]
            has_changed = True
        has_any_changed = self.subscriptions != before
        if has_any_changed:
            self.subscription_bytes = size_of(self.subscriptions.values())
        return has_changed, has_any_changed


def size_of(subscriptions: Iterable[SubscriptionData]) -> int:
    """Return the approximate memory of subscriptions, in bytes."""
    return sum(
        _SUBSCRIPTION_BYTES
        + len(subscription.topic)
        + len(subscription.sub_string or "")
        + sum(len(tag) + 50 for tag in subscription.tags_set)
        + 8 * len(subscription.code_set)
        for subscription in subscriptions
    )


@dataclass(slots=True)
class _Memberships:
    """The groups of a connection, in the order of joining."""

    consumers: dict[str, None] = field(default_factory=dict)
    producers: dict[str, None] = field(default_factory=dict)
    producing_client: str | None = None
    """Client id of its latest heartbeat as a producer."""
    seen_ms: int = 0
    """Time of its last heartbeat, monotonic ms."""


class Groups(Generic[_C]):
    """Producer and consumer groups with members. Times are monotonic ms.

    Args:
        on_change: Called when the subscriptions of a consumer group have changed or were removed.
        maxima: The limits.
    """

    def __init__(
        self, on_change: Callable[[], None] = lambda: None, maxima: Maxima | None = None
    ) -> None:
        self.maxima = Maxima() if maxima is None else maxima
        self.membership_count = 0
        """Memberships of connections in groups."""
        self.subscription_bytes = 0
        """Approximate memory of all subscriptions, in bytes."""
        self._on_change = on_change
        self._consumers: dict[str, ConsumerGroup[_C]] = {}
        self._producers: dict[str, dict[_C, Member[_C]]] = {}
        self._memberships: dict[_C, _Memberships] = {}
        self._by_address = AddressQuota()
        self._turn = 0
        self._producing_clients: dict[str, dict[_C, Member[_C]]] = {}

    # Limits -----------------------------------------------------------------------------------

    def check_room(
        self, channel: _C, consumers: Iterable[ConsumerData], producers: Iterable[str]
    ) -> None:
        """Refuse a heartbeat with more groups than a connection can have.

        Raises:
            LimitExceeded: There would be too many groups, members or subscriptions.
        """
        known = self._memberships.get(channel) or _Memberships()
        new_consumers = {
            data.group_name for data in consumers if data.group_name not in known.consumers
        }
        new_producers = {name for name in producers if name not in known.producers}
        new_count = len(new_consumers) + len(new_producers)
        if not new_count:
            return
        maxima, count = self.maxima, len(known.consumers) + len(known.producers) + new_count
        limits.CONNECTION_GROUPS.at(maxima.connection_groups).check(count, channel.peer)
        self._by_address.check(
            quotas.host_of(channel.peer),
            limits.MEMBERSHIPS_PER_ADDRESS,
            maxima.memberships_per_address,
            new_count,
        )
        limits.MEMBERSHIPS.at(maxima.memberships).check(self.membership_count + new_count)
        limit = limits.GROUP_MEMBERS.at(maxima.group_members)
        for name in new_consumers:
            group = self._consumers.get(name)
            limit.check(len(group.members) + 1 if group is not None else 1, name)
        for name in new_producers:
            limit.check(len(self._producers.get(name, ())) + 1, name)

    def more_bytes(self, data: ConsumerData) -> int:
        """Return the additional memory of a group's new subscriptions, in bytes."""
        group = self._consumers.get(data.group_name)
        known = 0 if group is None else group.subscription_bytes
        return size_of(data.subscription_data_set) - known

    def check_subscriptions(self, more_bytes: int, place: str = "") -> None:
        """Refuse subscriptions that exceed the limit of all groups.

        Args:
            more_bytes: Additional memory, in bytes.
            place: Name of the member or group for the error message.

        Raises:
            LimitExceeded: The limit would be exceeded.
        """
        if more_bytes > 0:
            limit = limits.ALL_SUBSCRIPTION_BYTES.at(self.maxima.subscription_bytes)
            limit.check(self.subscription_bytes + more_bytes, place)

    def groups_of(self, channel: _C) -> list[str]:
        """Return the consumer groups that a connection is a member of."""
        known = self._memberships.get(channel)
        return [] if known is None else list(known.consumers)

    def _join(self, channel: _C, monotonic_ms: int) -> _Memberships:
        memberships = self._memberships.get(channel)
        if memberships is None:
            memberships = self._memberships[channel] = _Memberships()
        memberships.seen_ms = monotonic_ms
        return memberships

    def _count(self, channel: _C) -> None:
        self.membership_count += 1
        self._by_address.add(quotas.host_of(channel.peer))

    def _left(self, channel: _C, names: dict[str, None], group: str) -> None:
        del names[group]
        self.membership_count -= 1
        self._by_address.release(quotas.host_of(channel.peer))
        known = self._memberships[channel]
        if not known.consumers and not known.producers:
            del self._memberships[channel]

    # Consumers --------------------------------------------------------------------------------

    def consumer(self, group: str) -> ConsumerGroup[_C] | None:
        """Return a consumer group; None if it has no member."""
        return self._consumers.get(group)

    def consumers(self) -> Iterator[ConsumerGroup[_C]]:
        """Yield all consumer groups that have members."""
        yield from list(self._consumers.values())

    def register_consumer(
        self, channel: _C, client_id: str, data: ConsumerData, language: int, version: int,
        monotonic_ms: int,
    ) -> bool:  # fmt: skip
        """Apply a member's heartbeat; return whether the other members must be notified."""
        group = self._consumers.get(data.group_name)
        if group is None:
            group = self._consumers[data.group_name] = ConsumerGroup(
                data.group_name, data.consume_type, data.message_model, data.consume_from_where
            )
        is_other_model = group.message_model != data.message_model
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        is_new = channel not in group.members
        group.members[channel] = Member(channel, client_id, language, version, monotonic_ms)
        self._join(channel, monotonic_ms).consumers[group.name] = None
        if is_new:
            self._count(channel)
        self.subscription_bytes -= group.subscription_bytes
        has_topics_changed, has_changed = group.subscribe(data.subscription_data_set)
        self.subscription_bytes += group.subscription_bytes
        if has_changed or is_other_model:
            self._on_change()
        return has_topics_changed or is_new

    def unregister_consumer(self, channel: _C, group_name: str) -> bool:
        """Remove a member from a group; return False if it was not a member."""
        group = self._consumers.get(group_name)
        if group is None or group.members.pop(channel, None) is None:
            return False
        self._left(channel, self._memberships[channel].consumers, group_name)
        if not group.members:
            self.subscription_bytes -= group.subscription_bytes
            del self._consumers[group_name]
            self._on_change()
        return True

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the consumer groups whose members subscribe to a topic."""
        return [name for name, group in self._consumers.items() if topic in group.subscriptions]

    # Producers --------------------------------------------------------------------------------

    def producers(self, group: str) -> list[Member[_C]]:
        """Return the members of a producer group."""
        return list(self._producers.get(group, {}).values())

    def next_producer(self, group: str, is_usable: Callable[[_C], bool]) -> _C | None:
        """Return the connection of a member of a producer group, in turn."""
        channels = list(self._producers.get(group, {}))
        self._turn += 1
        for i in range(len(channels)):
            channel = channels[(self._turn + i) % len(channels)]
            if is_usable(channel):
                return channel
        return None

    def producer_groups(self) -> dict[str, list[Member[_C]]]:
        """Return all producer groups with their members."""
        return {name: list(members.values()) for name, members in self._producers.items()}

    def register_producer(
        self,
        channel: _C,
        client_id: str,
        group: str,
        language: int,
        version: int,
        monotonic_ms: int,
    ) -> None:
        """Apply a member's heartbeat."""
        members = self._producers.setdefault(group, {})
        if channel not in members:
            self._count(channel)
        member = members[channel] = Member(channel, client_id, language, version, monotonic_ms)
        known = self._join(channel, monotonic_ms)
        known.producers[group] = None
        if known.producing_client != client_id:
            self._stop_producing(channel, known)
            known.producing_client = client_id
        channels = self._producing_clients.setdefault(client_id, {})
        channels.pop(channel, None)
        channels[channel] = member  # becomes the newest

    def unregister_producer(self, channel: _C, group: str) -> None:
        """Remove a member from a group."""
        members = self._producers.get(group, {})
        member = members.pop(channel, None)
        if not members:
            self._producers.pop(group, None)
        if member is None:
            return
        known = self._memberships[channel]
        self._left(channel, known.producers, group)
        if not known.producers:
            self._stop_producing(channel, known)

    def _stop_producing(self, channel: _C, known: _Memberships) -> None:
        client_id, known.producing_client = known.producing_client, None
        if client_id is None:
            return
        channels = self._producing_clients.get(client_id, {})
        channels.pop(channel, None)
        if not channels:
            self._producing_clients.pop(client_id, None)

    def producer_of_client(self, client_id: str) -> Member[_C] | None:
        """Return the producer with the latest heartbeat of a client id."""
        channels = self._producing_clients.get(client_id)
        return next(reversed(channels.values())) if channels else None

    # Ends -------------------------------------------------------------------------------------

    def remove(self, channel: _C) -> list[str]:
        """Remove a connection; return the consumer groups that lost a member."""
        known = self._memberships.get(channel)
        if known is None:
            return []
        for group in list(known.producers):
            self.unregister_producer(channel, group)
        return [name for name in list(known.consumers) if self.unregister_consumer(channel, name)]

    def silent(self, limit_ms: int) -> list[_C]:
        """Return connections of members whose last heartbeat was before ``limit_ms``."""
        return [channel for channel, known in self._memberships.items() if known.seen_ms < limit_ms]
