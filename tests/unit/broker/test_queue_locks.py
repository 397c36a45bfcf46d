"""How many queues may be locked, and what becomes of locks that nobody renews."""

import json

import pytest

from broker_subject import Subject
from reput import limits
from reput.broker.group.queue_locks import EXPIRED_AT_ONCE, QueueLocks
from reput.errors import LimitExceeded
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode


def queues(count: int, topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, "broker-a", number) for number in range(count)]


def test_with_so_many_locks_no_queue_is_locked_any_more() -> None:
    locks = QueueLocks(60_000, locks_max=10)
    assert len(locks.lock("g", "one", queues(10), 0)) == 10
    with pytest.raises(LimitExceeded, match="reputLocksMax"):
        locks.lock("other", "one", queues(1), 0)
    assert len(locks) == 10
    assert len(locks.lock("g", "one", queues(10), 30_000)) == 10  # renewed
    # What nobody has renewed makes room.
    assert len(locks.lock("other", "two", queues(10), 90_001)) == 10
    assert len(locks) == 10


def test_groups_and_addresses_lock_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOCKS_PER_GROUP", limits.LOCKS_PER_GROUP.at(4))
    monkeypatch.setattr(limits, "LOCKS_PER_ADDRESS", limits.LOCKS_PER_ADDRESS.at(6))
    locks = QueueLocks(60_000)
    locks.lock("g", "one", queues(4), 0, "192.0.2.1")
    with pytest.raises(LimitExceeded, match="locks_per_group"):
        locks.lock("g", "one", queues(5), 0, "192.0.2.1")
    with pytest.raises(LimitExceeded, match="locks_per_address"):
        locks.lock("h", "one", queues(3), 0, "192.0.2.1")
    assert len(locks.lock("h", "one", queues(3), 0, "192.0.2.2")) == 3
    locks.unlock("g", "one", queues(4))
    assert len(locks.lock("i", "one", queues(4), 0, "192.0.2.1")) == 4


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


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        ({"queueId": -1}, "queueId"),
        ({"queueId": 1 << 31}, ""),
        ({"topic": "t" * 300}, "subscribed_topic_letters"),
        ({"brokerName": "b" * 300}, "broker_name_letters"),
        ({"topic": "a\nb"}, "control characters"),
    ],
)
async def test_queues_that_cannot_be_are_not_locked(
    subject: Subject, queue: dict[str, object], words: str
) -> None:
    known = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
    body = {"consumerGroup": "g", "clientId": "c", "mqSet": [known, {**known, **queue}]}
    reply = await subject.ask(RequestCode.LOCK_BATCH_MQ, body=json.dumps(body).encode())
    assert reply.code != ResponseCode.SUCCESS
    assert words in (reply.remark or "")
    assert len(subject.parts.locks) == 0


async def test_too_many_queues_in_a_request(subject: Subject) -> None:
    known = {"topic": "T", "brokerName": "broker-a"}
    for count in (20_000, 20_001):
        mq_set = [{**known, "queueId": number} for number in range(count)]
        body = {"consumerGroup": "g", "clientId": "c", "mqSet": mq_set}
        reply = await subject.ask(RequestCode.LOCK_BATCH_MQ, body=json.dumps(body).encode())
        is_allowed = count == limits.LOCK_QUEUES.maximum
        assert (reply.code == ResponseCode.SUCCESS) is is_allowed
        assert ("lock_queues" in (reply.remark or "")) is not is_allowed
