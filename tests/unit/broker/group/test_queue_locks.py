"""The limit of locked queues, and locks that no client renews."""

import pytest

from reput.broker.group.queue_locks import EXPIRED_AT_ONCE, QueueLocks
from reput.errors import LimitExceeded
from reput.format.bodies import MessageQueue


def queues(count: int, topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, "broker-a", number) for number in range(count)]


def test_the_number_of_locks_is_bounded() -> None:
    locks = QueueLocks(60_000, locks_max=10)
    assert len(locks.lock("g", "one", queues(10), 0)) == 10
    with pytest.raises(LimitExceeded, match="reputLocksMax"):
        locks.lock("other", "one", queues(1), 0)
    assert len(locks) == 10
    assert len(locks.lock("g", "one", queues(10), 30_000)) == 10  # renewed
    # Expired locks make room.
    assert len(locks.lock("other", "two", queues(10), 90_001)) == 10
    assert len(locks) == 10


def test_free_locks_are_evicted_oldest_first_in_parts() -> None:
    locks = QueueLocks(60_000)
    for topic in "ABC":
        locks.lock("g", "one", queues(EXPIRED_AT_ONCE - 1, topic), 0)
    locks.lock("g", "one", queues(5, "B"), 50_000)
    locks.expire(60_000)
    assert len(locks) == 3 * (EXPIRED_AT_ONCE - 1)
    locks.expire(60_001)
    assert len(locks) == 2 * EXPIRED_AT_ONCE - 3
    for _ in range(2):
        locks.expire(60_001)
    assert len(locks) == 5
    assert locks.lock("g", "two", queues(5, "B"), 60_001) == []
