"""Subscriptions of clients to lite topics, and the queues that may have messages for them.

A lite topic is a light queue ``%LMQ%$parent$child``. A group is bound to one parent; its clients
name the children that they read, again and again, as nothing of this is saved. In a group with
``lite.sub.model=Exclusive`` a child has one client, the latest. The clients of a group with
``lite.sub.wildcard`` read all children, and share what waits.

Source: rocketmq 5.5.0 ``LiteSubscriptionRegistryImpl``, ``LiteEventDispatcher``. Java gives a
message to one client of a group, and to another one if the first does not come. Here it waits for
each of them, and the first one gets it.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from reput.errors import RequestRefused
from reput.format.codes import ResponseCode
from reput.remoting.channel import Channel
from reput.remoting.long_replies import LIGHT_CHUNK, chunks
from reput.remoting.time_slices import Steps
from reput.store.tables.groups import SubscriptionGroup

BIND_TOPIC = "lite.bind.topic"
CLIENT_QUOTA = "lite.sub.client.quota"
_QUOTA_MAX = 2**31 - 1
_QUOTA_DIGITS = 19
"""Digits of the largest long, which the attribute may have."""
CLIENT_QUOTA_DEFAULT = 2000
"""Lite topics to which a client subscribes at most, unless its group has a quota."""
_MODEL = "lite.sub.model"
_RESET_EXCLUSIVE = "lite.sub.reset.offset.exclusive"
_RESET_UNSUBSCRIBED = "lite.sub.reset.offset.unsubscribe"
_WILDCARD = "lite.sub.wildcard"

Place = tuple[str, str]
"""Where pops are held: a client id and an empty text, or a wildcard group and ``*``."""
Queues = dict[str, None]
"""Names of light queues, in order of arrival."""


@dataclass(frozen=True, slots=True)
class LiteGroup:
    """The settings of a group that reads lite topics."""

    topic: str
    """Parent of the lite topics that it reads."""
    is_exclusive: bool
    """True if a lite topic has one client of the group."""
    resets_exclusive: bool
    """True if a client that takes over a lite topic begins at the first message."""
    resets_unsubscribed: bool
    """True if the group begins at the first message after a client has unsubscribed."""
    is_wildcard: bool
    """True if its clients read all lite topics."""
    client_quota: int
    """Lite topics to which a client subscribes at most."""

    def check_quota(self, client_id: str, group: str, count: int) -> None:
        """Refuse more lite topics of a client than the group allows.

        Raises:
            RequestRefused: There would be more.
        """
        if count > self.client_quota:
            raise RequestRefused(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                quota_exceeded(client_id, group, count, self.client_quota),
            )


def quota_of(attributes: Mapping[str, str]) -> int:
    """Return the lite topics to which a client of a group subscribes at most."""
    text = attributes.get(CLIENT_QUOTA, "")
    is_number = text.isdecimal() and len(text) <= _QUOTA_DIGITS
    return min(int(text), _QUOTA_MAX) if is_number else CLIENT_QUOTA_DEFAULT


def quota_exceeded(client_id: str, group: str, count: int, quota: int) -> str:
    """Return the text that refuses lite topics of a client."""
    return (
        f"lite subscription quota exceeded: {quota}; the client {client_id} of the group {group} "
        f"would have {count} lite topics; the group's attribute {CLIENT_QUOTA} decides"
    )


def group_of(group: SubscriptionGroup | None) -> LiteGroup | None:
    """Return the settings of a group that reads lite topics; None for other groups."""
    attributes = dict(group.attributes) if group is not None else {}
    topic = attributes.get(BIND_TOPIC)
    if not topic:
        return None
    return LiteGroup(
        topic,
        attributes.get(_MODEL) == "Exclusive",
        attributes.get(_RESET_EXCLUSIVE, "").lower() == "true",
        attributes.get(_RESET_UNSUBSCRIBED, "").lower() == "true",
        _WILDCARD in attributes,
        quota_of(attributes),
    )


@dataclass(slots=True, eq=False)
class LiteClient:
    """A client and its subscriptions."""

    client_id: str
    group: str
    topic: str
    channel: Channel
    """Connection of the client's latest subscription request."""
    seen_ms: int
    """Time of that request, in monotonic ms."""
    polled_ms: int = -1
    """Time of the client's last pop, in ms since the epoch; -1 without one."""
    queues: set[str] = field(default_factory=set)
    """Light queues of the client; empty for a client of a wildcard group."""
    waiting: Queues = field(default_factory=dict)
    """Queues that may have messages for it."""


@dataclass(slots=True, eq=False)
class _Wildcard:
    """A wildcard group: its clients share one set of waiting queues."""

    clients: dict[str, LiteClient] = field(default_factory=dict)
    waiting: Queues = field(default_factory=dict)


class LiteSubscriptions:
    """The subscriptions of all clients.

    Args:
        evicted: Called with a client, and a queue that another client of its group has taken.
    """

    def __init__(self, evicted: Callable[[LiteClient, str], None]) -> None:
        self._evicted = evicted
        self._clients: dict[str, LiteClient] = {}
        self._by_queue: dict[str, dict[str, dict[str, LiteClient]]] = {}
        """Queue -> group -> client id -> client."""
        self._wildcards: dict[str, dict[str, _Wildcard]] = {}
        """Parent topic -> group -> its clients."""
        self.count = 0
        """Number of pairs of client and lite topic."""

    # Clients ----------------------------------------------------------------------------------

    def client(self, client_id: str) -> LiteClient | None:
        """Return a client; None if it has no subscriptions."""
        return self._clients.get(client_id)

    @property
    def client_count(self) -> int:
        """Number of clients."""
        return len(self._clients)

    def clients(self, group: str) -> list[LiteClient]:
        """Return the clients of a group."""
        return [client for client in self._clients.values() if client.group == group]

    def obtain(
        self, client_id: str, group: str, topic: str, channel: Channel, now_ms: int
    ) -> LiteClient:
        """Return a connected client; create it if it is new.

        Raises:
            RequestRefused: It is a client of another group.
        """
        client = self._clients.get(client_id)
        if client is None:
            client = self._clients[client_id] = LiteClient(client_id, group, topic, channel, now_ms)
        elif (client.group, client.topic) != (group, topic):
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"the client {client_id} reads lite topics of {client.topic} as a member of "
                f"{client.group}, not of {topic} as one of {group}",
            )
        client.channel, client.seen_ms = channel, now_ms
        return client

    def remove(self, client: LiteClient) -> Steps[None]:
        """Remove a client with its subscriptions."""
        if self._clients.pop(client.client_id, None) is None:
            return
        for part in chunks(client.queues, LIGHT_CHUNK):
            for queue in part:
                self.unsubscribe(client, queue)
            yield
        wildcard = self._wildcards.get(client.topic, {}).get(client.group)
        if wildcard is not None:
            wildcard.clients.pop(client.client_id, None)
            if not wildcard.clients:
                del self._wildcards[client.topic][client.group]

    def expired(self, before_ms: int) -> list[LiteClient]:
        """Return the clients without a subscription request since a time, in monotonic ms."""
        return [client for client in self._clients.values() if client.seen_ms < before_ms]

    # Subscriptions ----------------------------------------------------------------------------

    def subscribe(self, client: LiteClient, queue: str, *, is_exclusive: bool) -> list[LiteClient]:
        """Add a subscription; return the clients that have lost it, if it is exclusive."""
        if queue in client.queues:
            return []
        group = self._by_queue.setdefault(queue, {}).setdefault(client.group, {})
        others = list(group.values()) if is_exclusive else []
        group[client.client_id] = client
        client.queues.add(queue)
        client.waiting[queue] = None
        self.count += 1
        for other in others:
            self.unsubscribe(other, queue)
            self._evicted(other, queue)
        return others

    def subscribe_all(self, client: LiteClient) -> bool:
        """Subscribe a client of a wildcard group to all lite topics; return whether it is new."""
        groups = self._wildcards.setdefault(client.topic, {})
        clients = groups.setdefault(client.group, _Wildcard()).clients
        is_new = client.client_id not in clients
        clients[client.client_id] = client
        return is_new

    def unsubscribe(self, client: LiteClient, queue: str) -> bool:
        """Remove a subscription; return whether there was one."""
        if queue not in client.queues:
            return False
        client.queues.discard(queue)
        client.waiting.pop(queue, None)
        self.count -= 1
        groups = self._by_queue[queue]
        del groups[client.group][client.client_id]
        if not groups[client.group]:
            del groups[client.group]
        if not groups:
            del self._by_queue[queue]
        return True

    def forget(self, queue: str) -> None:
        """Remove all subscriptions of a queue that is deleted."""
        for group in list(self._by_queue.get(queue, {}).values()):
            for client in list(group.values()):
                self.unsubscribe(client, queue)
        for groups in self._wildcards.values():
            for wildcard in groups.values():
                wildcard.waiting.pop(queue, None)

    def subscribers(self, queue: str, topic: str) -> Iterator[tuple[str, list[str]]]:
        """Yield each group that reads a queue of a parent, with the ids of its clients."""
        for group, clients in self._by_queue.get(queue, {}).items():
            yield group, list(clients)
        for group in self._wildcards.get(topic, {}):
            yield group, ["*"]

    # Waiting queues -----------------------------------------------------------------------------

    def arrived(self, queue: str, topic: str, group: str | None = None) -> list[Place]:
        """Note that a queue may have messages.

        Args:
            queue: The light queue.
            topic: The parent.
            group: The only group for which there are messages; None for all.

        Returns:
            The places to wake, in the order in which they get messages.
        """
        places = []
        for name, members in self._by_queue.get(queue, {}).items():
            if group in (None, name):
                clients = list(members.values())
                random.shuffle(clients)
                for client in clients:
                    client.waiting[queue] = None
                    places.append((client.client_id, ""))
        for name, wildcard in self._wildcards.get(topic, {}).items():
            if group in (None, name):
                wildcard.waiting[queue] = None
                places.append((name, "*"))
        return places

    def all_wait(self, client: LiteClient, queues: Iterable[str]) -> None:
        """Note that queues may have messages for a client, or for its wildcard group."""
        self.waiting_of(client).update(dict.fromkeys(queues))

    def waiting_of(self, client: LiteClient) -> Queues:
        """Return the queues that may have messages for a client."""
        wildcard = self._wildcard_of(client)
        return client.waiting if wildcard is None else wildcard.waiting

    def place_of(self, client: LiteClient) -> Place:
        """Return where the pops of a client are held."""
        return (client.client_id, "") if self._wildcard_of(client) is None else (client.group, "*")

    def _wildcard_of(self, client: LiteClient) -> _Wildcard | None:
        wildcard = self._wildcards.get(client.topic, {}).get(client.group)
        return wildcard if wildcard is not None and client.client_id in wildcard.clients else None
