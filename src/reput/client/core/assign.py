"""Allocation strategies: which member of a group reads which queue, with Java's results.

Each member computes the whole allocation and takes its share. Therefore all members, in any
language, must use the same ids and queues, in the same order (``sorted_queues``,
``sorted_clients``), and the same strategy.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from reput.errors import InvalidOption
from reput.format import allocation, java
from reput.format.allocation import (
    sorted_clients as sorted_clients,
    sorted_queues as sorted_queues,
    utf16,
)
from reput.format.bodies import MessageQueue

VIRTUAL_NODE_COUNT = 10
"""Number of points of a member on the ring of ``ConsistentHash``."""


class Strategy(Protocol):
    """Allocation of a topic's queues to the members of a group."""

    name: str
    """Java's name of the strategy."""

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member; empty if it is not among ``client_ids``.

        Args:
            client_id: The member.
            queues: All queues of the topic, sorted by ``sorted_queues``.
            client_ids: All members, sorted by ``sorted_clients``.
        """


class Averagely:
    """Consecutive queues, equally many per member; the first members get one of the remainder."""

    name = allocation.AVERAGELY

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member."""
        return allocation.averagely(client_id, queues, client_ids)


class AveragelyByCircle:
    """Round robin: every n-th queue, for n members."""

    name = allocation.BY_CIRCLE

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member."""
        return allocation.by_circle(client_id, queues, client_ids)


class ByConfig:
    """Configured queues, regardless of other members.

    Args:
        queues: Queues of all topics.
    """

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = list(queues)

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the configured queues of the topic.

        Java returns all configured queues; with several topics every topic then gets the queues of
        each, and a queue that no broker has is pulled from forever.
        """
        there = set(queues)
        return [queue for queue in self._queues if queue in there]


class ByMachineRoom:
    """Queues of brokers named ``room@broker`` in given rooms, divided evenly.

    Args:
        rooms: The rooms to read from.
    """

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member: consecutive ones, and one of the remainder."""
        if client_id not in client_ids:
            return []
        index = client_ids.index(client_id)
        near = [queue for queue in queues if self._is_near(queue)]
        share, rest = divmod(len(near), len(client_ids))
        mine = near[index * share : (index + 1) * share]
        if index < rest:
            mine.append(near[index + share * len(client_ids)])
        return mine

    def _is_near(self, queue: MessageQueue) -> bool:
        # Java's split drops empty parts at the end: "room@broker@" has two, "room@" one.
        parts = queue.broker_name.rstrip("@").split("@")
        return len(parts) == 2 and parts[0] in self._rooms


class MachineRoomNearby:
    """Assigns queues to members in the room of the broker; without such members, to all members.

    Args:
        inner: Strategy within a room.
        broker_room: Returns the room of a queue's broker.
        client_room: Returns the room of a member.
    """

    def __init__(
        self,
        inner: Strategy,
        broker_room: Callable[[MessageQueue], str],
        client_room: Callable[[str], str],
    ) -> None:
        self._inner = inner
        self._broker_room = broker_room
        self._client_room = client_room
        self.name = f"MACHINE_ROOM_NEARBY-{inner.name}"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member, those of its room first.

        Raises:
            InvalidOption: A broker or a member has no room.
        """
        if client_id not in client_ids:
            return []
        queues_in: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_in.setdefault(_room(self._broker_room(queue), queue), []).append(queue)
        clients_in: dict[str, list[str]] = {}
        for member in client_ids:
            clients_in.setdefault(_room(self._client_room(member), member), []).append(member)
        own_room = self._client_room(client_id)
        mine: list[MessageQueue] = []
        if own := queues_in.pop(own_room, None):
            mine += self._inner.allocate(client_id, own, clients_in[own_room])
        for room in sorted(queues_in, key=utf16):
            if room not in clients_in:
                mine += self._inner.allocate(client_id, queues_in[room], client_ids)
        return mine


def _room(room: str, of: object) -> str:
    if not room:
        raise InvalidOption("machine room", room, f"a name for the room of {of}")
    return room


class ConsistentHash:
    """Members and queues on a ring of hashes: when a member leaves, only its queues move.

    Args:
        virtual_node_count: Number of points per member on the ring; more divide more evenly.
    """

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_node_count: int = VIRTUAL_NODE_COUNT) -> None:
        if virtual_node_count < 1:
            raise InvalidOption("virtual_node_count", virtual_node_count, "at least 1")
        self._virtual_node_count = virtual_node_count

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member."""
        if client_id not in client_ids:
            return []
        ring: dict[int, str] = {}
        for member in client_ids:
            for i in range(self._virtual_node_count):
                ring[_ring_hash(f"{member}-{i}")] = member
        places = sorted(ring)
        mine = []
        for queue in queues:
            # The text is MessageQueue.toString() of Java.
            text = (
                f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
                f"queueId={queue.queue_id}]"
            )
            place = places[bisect_left(places, _ring_hash(text)) % len(places)]
            if ring[place] == client_id:
                mine.append(queue)
        return mine


def _ring_hash(key: str) -> int:
    digest = hashlib.md5(java.encode_utf8(key), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")
