"""Readiness of consumers, and the program's functions for queues that they get and lose."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from reput.client import (
    ConsumeContext,
    Message,
    MessageQueue,
    NotReady,
    NotStarted,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    blocking,
)
from reput.errors import InvalidOption
from reput.testing import LocalBroker

GUARD_S = 30
"""Limit of a test's waits, in s."""


@pytest.fixture(scope="module")
def rocketmq() -> Iterator[LocalBroker]:
    with LocalBroker(topics=["T", "Pulled", "Blocking", "New"]) as mq:
        yield mq


class Queues:
    """Records the queues of a member, as reported by its callbacks."""

    def __init__(self) -> None:
        self.owned: set[MessageQueue] = set()
        self.events: list[str] = []
        self.changed = asyncio.Condition()

    async def assigned(self, queues: list[MessageQueue]) -> None:
        async with self.changed:
            self.events.append("assigned")
            assert not self.owned.intersection(queues)
            self.owned.update(queues)
            self.changed.notify_all()

    async def revoked(self, queues: list[MessageQueue]) -> None:
        async with self.changed:
            self.events.append("revoked")
            assert self.owned.issuperset(queues)
            self.owned.difference_update(queues)
            self.changed.notify_all()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(GUARD_S), self.changed:
            await self.changed.wait_for(lambda: len(self.owned) == count)

    async def listen(self, messages: list[ReceivedMessage], _: ConsumeContext) -> None:
        self.events += [message.body.decode() for message in messages]


@pytest.mark.parametrize("is_orderly", [False, True])
async def test_a_push_consumer_reports_its_queues(rocketmq: LocalBroker, is_orderly: bool) -> None:
    first, second = Queues(), Queues()
    consumers = [
        PushConsumer(
            f"G{is_orderly}",
            namesrv=rocketmq.namesrv_addr,
            listener=queues.listen,
            orderly=is_orderly,
            on_assigned=queues.assigned,
            on_revoked=queues.revoked,
        )
        for queues in (first, second)
    ]
    for consumer in consumers:
        await consumer.subscribe("T")
    async with consumers[0]:
        await consumers[0].ready()
        assert len(first.owned) == 4  # without the retry topic's
        async with consumers[1]:
            await second.until(2)
            await first.until(2)
            assert not first.owned & second.owned
        assert not second.owned
        await first.until(4)
    assert not first.owned


async def test_a_pull_consumer_may_seek_and_commit_in_callbacks(rocketmq: LocalBroker) -> None:
    async with Producer("P", namesrv=rocketmq.namesrv_addr) as producer:
        sent = [await producer.send(Message("Pulled", b"%d" % i)) for i in range(8)]
    committed: list[MessageQueue] = []

    async def assigned(queues: list[MessageQueue]) -> None:
        for queue in queues:
            consumer.seek(queue, 1)

    async def revoked(queues: list[MessageQueue]) -> None:
        await consumer.commit()
        committed.extend(queues)

    def make(auto_commit: bool = False, **callbacks: Any) -> PullConsumer:
        namesrv = rocketmq.namesrv_addr
        return PullConsumer("Pulling", namesrv=namesrv, auto_commit=auto_commit, **callbacks)

    consumer = make(on_assigned=assigned, on_revoked=revoked)
    async with consumer, asyncio.timeout(GUARD_S):
        await consumer.subscribe("Pulled")
        await consumer.ready()
        bodies = set()
        while len(bodies) < 4:
            bodies |= {message.body for message in await consumer.poll()}
    second = {result.queue: i for i, result in enumerate(sent)}  # the last one of each queue
    assert bodies == {b"%d" % i for i in second.values()}
    assert set(committed) == set(second)
    async with make() as other:
        await other.assign(second)
        await other.ready()
        assert other.is_ready()
        assert {await other.committed(queue) for queue in second} == {2}


def test_plain_callbacks_of_a_blocking_consumer_may_use_it(rocketmq: LocalBroker) -> None:
    threads = set()
    positions: list[int] = []

    def assigned(queues: list[MessageQueue]) -> None:
        threads.add(threading.current_thread().name)
        positions.extend(consumer.position(queue) for queue in queues)

    def revoked(queues: list[MessageQueue]) -> None:
        consumer.commit()
        positions.extend(-1 for _ in queues)

    consumer = blocking.PullConsumer(
        "Blocking", namesrv=rocketmq.namesrv_addr, on_assigned=assigned, on_revoked=revoked
    )
    with consumer:
        assert not consumer.is_ready()
        consumer.subscribe("Blocking")
        consumer.ready()
        assert consumer.is_ready()
    assert positions == [0, 0, 0, 0, -1, -1, -1, -1]
    assert not {"reput client", threading.current_thread().name} & threads


async def test_a_failing_callback_is_logged(
    rocketmq: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("an error of the user's")

    queues = Queues()
    consumer = PushConsumer(
        "Failing", namesrv=rocketmq.namesrv_addr, listener=queues.listen, on_assigned=fail
    )
    await consumer.subscribe("T")
    async with consumer:
        await consumer.ready()
        assert len([queue for queue in consumer.queues() if queue.topic == "T"]) == 4
    assert "on_assigned failed for 4 queues of T" in caplog.text


def test_a_callback_that_is_no_function_is_refused() -> None:
    wrong: Any = "revoked"
    with pytest.raises(InvalidOption, match="on_revoked"):
        PullConsumer("C", namesrv="127.0.0.1:9", on_revoked=wrong)


async def test_a_ready_group_misses_no_message(rocketmq: LocalBroker) -> None:
    arrived = asyncio.Event()

    async def listen(messages: list[ReceivedMessage], _: ConsumeContext) -> None:
        assert [message.body for message in messages] == [b"x"]
        arrived.set()

    consumer = PushConsumer("New", namesrv=rocketmq.namesrv_addr, listener=listen)
    await consumer.subscribe("New")
    async with consumer, Producer("P", namesrv=rocketmq.namesrv_addr) as producer:
        await consumer.ready()
        await producer.send(Message("New", b"x"))
        async with asyncio.timeout(GUARD_S):
            await arrived.wait()
    assert not consumer.is_ready()


async def test_a_consumer_that_cannot_be_ready_says_why(rocketmq: LocalBroker) -> None:
    consumer = PopConsumer("Waiting", namesrv=rocketmq.namesrv_addr)
    with pytest.raises(NotStarted):
        await consumer.ready()
    async with consumer:
        with pytest.raises(NotReady, match="no topic is subscribed"):
            await consumer.ready(timeout_ms=1)
        await consumer.subscribe("T")
        await consumer.ready()
        await consumer.subscribe("Missing")
        assert not consumer.is_ready()
        with pytest.raises(NotReady, match="'Missing'"):
            await consumer.ready(timeout_ms=500)
        await consumer.unsubscribe("Missing")
        assert consumer.is_ready()
