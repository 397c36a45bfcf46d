"""How many queues may be locked, and what becomes of locks that nobody renews."""

from reput.broker.group.queue_locks import EXPIRED_AT_ONCE, QueueLocks
from reput.format.bodies import MessageQueue


def queues(count: int, topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, "broker-a", number) for number in range(count)]


def test_locks_that_are_free_are_forgotten_oldest_first_some_at_a_time() -> None:
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
