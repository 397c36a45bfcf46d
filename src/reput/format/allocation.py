"""Who of a group reads which queue, as brokers and clients divide queues alike.

Whoever computes a division must see the same ids and queues, in the same order (``sorted_queues``,
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
    return sorted(queues, key=lambda one: (utf16(one.topic), utf16(one.broker_name), one.queue_id))


def sorted_clients(client_ids: Iterable[str]) -> list[str]:
    """Return client ids in the order of Java's ``String.compareTo``."""
    return sorted(client_ids, key=utf16)


def utf16(text: str) -> bytes:
    """Return what Java compares texts by."""
    return text.encode("utf-16-be", "surrogatepass")


def averagely(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Return a member's share: neighbours; the first members take what is left over."""
    if client_id not in client_ids:
        return []
    return list(averagely_at(client_ids.index(client_id), len(client_ids), queues))


def averagely_at(index: int, client_count: int, queues: Sequence[_T]) -> Sequence[_T]:
    """Return the share of the member at an index of all members."""
    share, rest = divmod(len(queues), client_count)
    start = index * share + min(index, rest)
    return queues[start : start + share + (index < rest)]


def by_circle(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Return a member's share: every n-th queue to each of n members."""
    if client_id not in client_ids:
        return []
    return list(by_circle_at(client_ids.index(client_id), len(client_ids), queues))


def by_circle_at(index: int, client_count: int, queues: Sequence[_T]) -> Sequence[_T]:
    """Return the share of the member at an index of all members."""
    return queues[index::client_count]
