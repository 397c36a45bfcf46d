"""Allocation of queues to the members of a group, equal in brokers and clients.

All that compute an allocation need the same ids and queues in the same order (``sorted_queues``,
``sorted_clients``). Source: rocketmq 4.9.8 ``AllocateMessageQueueAveragely``,
``AllocateMessageQueueAveragelyByCircle``.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from reput.format.bodies import MessageQueue

_T = TypeVar("_T")

AVERAGELY = "AVG"
BY_CIRCLE = "AVG_BY_CIRCLE"


def sorted_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return queues in the order of Java's ``MessageQueue.compareTo``."""
    return sorted(
        queues, key=lambda queue: (utf16(queue.topic), utf16(queue.broker_name), queue.queue_id)
    )


def sorted_clients(client_ids: Iterable[str]) -> list[str]:
    """Return client ids in the order of Java's ``String.compareTo``."""
    return sorted(client_ids, key=utf16)


def utf16(text: str) -> bytes:
    """Return the key by which Java compares strings: UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")


def averagely(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Return a member's share: consecutive queues; the first members get one of the remainder."""
    if client_id not in client_ids:
        return []
    return list(averagely_at(client_ids.index(client_id), len(client_ids), queues))


def averagely_at(index: int, client_count: int, queues: Sequence[_T]) -> Sequence[_T]:
    """Return the share of the member with this index."""
    share, rest = divmod(len(queues), client_count)
    start = index * share + min(index, rest)
    return queues[start : start + share + (index < rest)]


def by_circle(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Return a member's share: every n-th queue, for n members."""
    if client_id not in client_ids:
        return []
    return list(by_circle_at(client_ids.index(client_id), len(client_ids), queues))


def by_circle_at(index: int, client_count: int, queues: Sequence[_T]) -> Sequence[_T]:
    """Return the share of the member with this index."""
    return queues[index::client_count]
