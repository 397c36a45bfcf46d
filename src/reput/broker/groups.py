"""The clients of a broker: who produces, who consumes, and what each group subscribes to.

In memory only: heartbeats tell it all again. A client is known by its connection.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from reput.format.bodies import ConsumerData, SubscriptionData


class Connected(Protocol):
    """A connection, as far as it matters here."""

    @property
    def peer(self) -> str:
        """``ip:port`` of the client."""


_C = TypeVar("_C", bound=Connected)


@dataclass(slots=True)
class Member(Generic[_C]):
    """A client in a group."""

    channel: _C
    client_id: str
    language: int
    version: int
    seen_ms: int
    """Its last heartbeat. Monotonic: a clock that is set must not take all members for gone."""


@dataclass(slots=True)
class ConsumerGroup(Generic[_C]):
    """A consumer group with members."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[_C, Member[_C]] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    """By topic."""

    @property
    def client_ids(self) -> list[str]:
        """The ids of its members."""
        return [member.client_id for member in self.members.values()]

    def subscribe(self, wanted: Iterable[SubscriptionData]) -> tuple[bool, bool]:
        """Take over what a heartbeat subscribes to.

        Returns:
            Whether topics came or went, and whether anything changed: a newer version of a
            subscription replaces the older one, which alone changes no assignment.
        """
        by_topic = {one.topic: one for one in wanted}
        has_changed = False
        before = dict(self.subscriptions)
        for topic, one in by_topic.items():
            known = self.subscriptions.get(topic)
            if known is None:
                has_changed = True
            if known is None or one.sub_version > known.sub_version:
                self.subscriptions[topic] = one
        for topic in [topic for topic in self.subscriptions if topic not in by_topic]:
            del self.subscriptions[topic]
            has_changed = True
        return has_changed, self.subscriptions != before


class Groups(Generic[_C]):
    """Producer and consumer groups with members. Times are monotonic ms.

    Args:
        on_change: Called when what some consumer group subscribes to has changed, or is not known
            any more.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._consumers: dict[str, ConsumerGroup[_C]] = {}
        self._producers: dict[str, dict[_C, Member[_C]]] = {}
        self._turn = 0
        self._producing_clients: dict[str, dict[_C, Member[_C]]] = {}

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
        """Take over a member's heartbeat; return whether the others must be told."""
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
        has_topics_changed, has_changed = group.subscribe(data.subscription_data_set)
        if has_changed or is_other_model:
            self._on_change()
        return has_topics_changed or is_new

    def unregister_consumer(self, channel: _C, group_name: str) -> bool:
        """Take a member out of a group; return whether it was in."""
        group = self._consumers.get(group_name)
        if group is None or group.members.pop(channel, None) is None:
            return False
        if not group.members:
            del self._consumers[group_name]
            self._on_change()
        return True

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the consumer groups whose members subscribe to a topic."""
        return [name for name, one in self._consumers.items() if topic in one.subscriptions]

    # Producers --------------------------------------------------------------------------------

    def producers(self, group: str) -> list[Member[_C]]:
        """Return the members of a producer group."""
        return list(self._producers.get(group, {}).values())

    def next_producer(self, group: str, is_usable: Callable[[_C], bool]) -> _C | None:
        """Return the connection of a member of a producer group, of another one each time."""
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
        """Take over a member's heartbeat."""
        members = self._producers.setdefault(group, {})
        member = members[channel] = Member(channel, client_id, language, version, monotonic_ms)
        channels = self._producing_clients.setdefault(client_id, {})
        channels.pop(channel, None)
        channels[channel] = member  # the last one

    def unregister_producer(self, channel: _C, group: str) -> None:
        """Take a member out of a group."""
        members = self._producers.get(group, {})
        member = members.pop(channel, None)
        if not members:
            self._producers.pop(group, None)
        if member is None or any(channel in others for others in self._producers.values()):
            return
        channels = self._producing_clients.get(member.client_id, {})
        channels.pop(channel, None)
        if not channels:
            self._producing_clients.pop(member.client_id, None)

    def producer_of_client(self, client_id: str) -> Member[_C] | None:
        """Return the member of some producer group that was heard of last from a client."""
        channels = self._producing_clients.get(client_id)
        return next(reversed(channels.values())) if channels else None

    # Ends -------------------------------------------------------------------------------------

    def remove(self, channel: _C) -> list[str]:
        """Forget a connection; return the consumer groups that lost a member."""
        for group in [name for name, one in self._producers.items() if channel in one]:
            self.unregister_producer(channel, group)
        return [name for name in list(self._consumers) if self.unregister_consumer(channel, name)]

    def silent(self, limit_ms: int) -> list[_C]:
        """Return connections that are members, and were last heard of before ``limit_ms``."""
        members = [one for group in self._consumers.values() for one in group.members.values()]
        members += [one for group in self._producers.values() for one in group.values()]
        last: dict[_C, int] = {}
        for one in members:
            last[one.channel] = max(one.seen_ms, last.get(one.channel, 0))
        return [channel for channel, seen_ms in last.items() if seen_ms < limit_ms]
