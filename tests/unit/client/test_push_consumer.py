"""A push consumer with our broker: restarts, cancellation, closing, and order."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import pytest

from reput.client import (
    Admin,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from reput.testing import LocalBroker

GUARD_S = 30
"""Limit of a test's waits, in s."""
FIRST = ConsumeFromWhere.FIRST_OFFSET
ONE_WORKER = ConsumerConfig(consume_from_where=FIRST, consume_concurrency=1)


async def send(mq: LocalBroker, bodies: Iterable[bytes]) -> None:
    async with Producer("producers", namesrv=mq.namesrv_addr) as producer:
        for body in bodies:
            await producer.send(Message("T", body))


class Listener:
    """Records bodies; never returns from a call that has ``stuck`` messages."""

    def __init__(self, stuck: Iterable[bytes] = ()) -> None:
        self.bodies: list[bytes] = []
        self.stuck = set(stuck)
        self._arrived = asyncio.Condition()

    async def __call__(
        self, messages: list[ReceivedMessage], _context: ConsumeContext
    ) -> ConsumeResult:
        async with self._arrived:
            self.bodies += [message.body for message in messages]
            self._arrived.notify_all()
        if self.stuck.intersection(message.body for message in messages):
            await asyncio.Event().wait()
        return ConsumeResult.SUCCESS

    async def wait_for(self, *bodies: bytes) -> None:
        async with asyncio.timeout(GUARD_S), self._arrived:
            await self._arrived.wait_for(lambda: set(self.bodies).issuperset(bodies))


@pytest.fixture
def rocketmq() -> Iterator[LocalBroker]:
    with LocalBroker() as mq:
        yield mq


async def test_a_request_mode_of_pop_is_logged(
    rocketmq: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    rocketmq.create_topic("T", 1)
    async with Admin(rocketmq.namesrv_addr) as admin:
        await admin.create_group("G", broker=rocketmq.broker_addr)
        await admin.set_request_mode("G", "T", "POP", broker=rocketmq.broker_addr)
    listener = Listener()
    consumer = PushConsumer(
        "G", namesrv=rocketmq.namesrv_addr, listener=listener, config=ONE_WORKER
    )
    await consumer.subscribe("T")
    async with consumer, asyncio.timeout(GUARD_S):
        await send(rocketmq, [b"one"])
        await listener.wait_for(b"one")  # delivered in spite of the mode
        for mode, text in (("POP", "is to pop topic T"), ("PULL", "is to pull topic T again"),
                           ("POP", "is to pop topic T")):  # fmt: skip
            async with Admin(rocketmq.namesrv_addr) as admin:
                await admin.set_request_mode("G", "T", mode, broker=rocketmq.broker_addr)
            consumer._rebalance.wake()  # as every 20 s
            while f"group G {text}" not in caplog.text:
                await asyncio.sleep(0.01)
            caplog.clear()


@pytest.mark.parametrize("is_orderly", [False, True])
async def test_a_consumer_can_be_restarted(rocketmq: LocalBroker, is_orderly: bool) -> None:
    rocketmq.create_topic("T", 1)
    listener = Listener()
    consumer = PushConsumer(
        "G", namesrv=rocketmq.namesrv_addr, listener=listener, config=ONE_WORKER, orderly=is_orderly
    )
    await consumer.subscribe("T")
    for body in (b"one", b"two"):
        async with consumer:
            await send(rocketmq, [body])
            await listener.wait_for(body)
    assert listener.bodies == [b"one", b"two"]


async def test_a_cancelled_close_leaves_no_tasks(rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("T", 1)
    tasks = asyncio.all_tasks()
    listener = Listener(stuck=[b"one"])
    consumer = PushConsumer(
        "G", namesrv=rocketmq.namesrv_addr, listener=listener, config=ONE_WORKER
    )
    await consumer.subscribe("T")
    await consumer.start()
    await send(rocketmq, [b"one"])
    await listener.wait_for(b"one")
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert asyncio.all_tasks() == tasks
    listener.stuck.clear()
    async with consumer:  # no message was finished
        await send(rocketmq, [b"two"])
        await listener.wait_for(b"two")
    assert listener.bodies == [b"one", b"one", b"two"]


async def test_a_listener_may_close_its_consumer(rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("T", 1)
    tasks = asyncio.all_tasks()
    is_closed = asyncio.Event()

    async def listen(_messages: object, _context: object) -> ConsumeResult:
        await consumer.close()
        is_closed.set()
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(
        "G",
        namesrv=rocketmq.namesrv_addr,
        listener=listen,
        config=ONE_WORKER,
        close_timeout_ms=1,
    )
    await consumer.subscribe("T")
    await consumer.start()
    await send(rocketmq, [b"one"])
    async with asyncio.timeout(GUARD_S):
        await is_closed.wait()
        await asyncio.gather(*(asyncio.all_tasks() - tasks), return_exceptions=True)


async def test_order_is_kept_when_members_join_and_leave(rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("T", 3)
    running: Counter[int] = Counter()
    seen: defaultdict[int, list[int]] = defaultdict(list)
    overlaps: list[int] = []
    arrived = asyncio.Condition()

    def member(is_served: asyncio.Event) -> PushConsumer:
        async def listen(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
            queue_id = context.queue.queue_id
            running[queue_id] += 1
            if running[queue_id] > 1:
                overlaps.append(queue_id)
            await asyncio.sleep(0)
            seen[queue_id] += [int(message.body) for message in messages]
            running[queue_id] -= 1
            is_served.set()
            async with arrived:
                arrived.notify_all()
            return ConsumeResult.SUCCESS

        return PushConsumer(
            "G",
            namesrv=rocketmq.namesrv_addr,
            listener=listen,
            orderly=True,
            config=ConsumerConfig(consume_from_where=FIRST),
        )

    number = 0
    async with (
        Producer("producers", namesrv=rocketmq.namesrv_addr) as producer,
        member(asyncio.Event()) as stays,
        asyncio.timeout(GUARD_S),
    ):
        await stays.subscribe("T")
        queues = await producer.queues("T")
        for _ in range(2):
            is_served = asyncio.Event()
            async with member(is_served) as visitor:
                await visitor.subscribe("T")
                while not is_served.is_set():
                    for queue in queues:
                        await producer.send(Message("T", str(number).encode()), queue=queue)
                    number += 1
        async with arrived:
            await arrived.wait_for(lambda: sum(map(len, seen.values())) >= 3 * number)
    assert overlaps == []
    assert seen == {queue.queue_id: list(range(number)) for queue in queues}
