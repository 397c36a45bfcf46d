"""Readiness: a client that cannot work is not ready, and its calls have the reason."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from reput.client import (
    Admin,
    ConsumeFromWhere,
    ConsumerConfig,
    Message,
    MessageModel,
    MessageQueue,
    NoRoute,
    NotReady,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
    blocking,
    pull_consumer,
)
from reput.client.group_member import GroupMember
from reput.client.instance import ClientInstance
from reput.errors import BrokerError, RemotingError, ReputError
from reput.format.bodies import SubscriptionGroupConfig
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.testing import LocalBroker

GUARD_S = 30
FIRST = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
BROADCASTING = ConsumerConfig(message_model=MessageModel.BROADCASTING)
TOPIC, GROUP = "T", "known"

Make = Callable[..., GroupMember]


def ignore(*_: object) -> None:
    """Consume messages."""


CONSUMERS: dict[str, Make] = {
    "push": partial(PushConsumer, listener=ignore),
    "orderly push": partial(PushConsumer, listener=ignore, orderly=True),
    "pull": PullConsumer,
    "pop": PopConsumer,
    "pop with a listener": partial(PopConsumer, listener=ignore),
    "pop as assigned": partial(PopConsumer, asks_brokers=True),
}
each_consumer = pytest.mark.parametrize("make", CONSUMERS.values(), ids=CONSUMERS)


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalBroker]:
    settings = {"autoCreateSubscriptionGroup": "false", "autoCreateTopicEnable": "false"}
    with LocalBroker(topics=[TOPIC], settings=settings) as running:
        yield running


@pytest.fixture
async def mq(shared: LocalBroker) -> LocalBroker:
    async with Admin(shared.namesrv_addr) as admin:
        for topic in (TOPIC, "Half"):
            await admin.create_topic(topic, broker=shared.broker_addr)
        await admin.create_group(GROUP, broker=shared.broker_addr)
    return shared


async def until(consumer: GroupMember, *, is_ready: bool) -> None:
    """Wait for a change of readiness."""
    async with asyncio.timeout(GUARD_S):
        while consumer.is_ready() != is_ready:
            await consumer._rebalance.wait_for_change()


async def reason(consumer: GroupMember, timeout_ms: int = 2_000) -> str:
    """Return why a consumer is not ready."""
    assert not consumer.is_ready()
    with pytest.raises(NotReady) as raised:
        await consumer.ready(timeout_ms)
    return str(raised.value)


async def until_problem(consumer: GroupMember) -> None:
    """Wait until the broker has refused to answer a pull or pop, or the member's queues."""
    async with asyncio.timeout(GUARD_S):
        while consumer._problem() is None:
            await consumer._rebalance.wait_for_change()


async def asked(consumer: GroupMember) -> object:
    """Return the error of a call for messages; None if there is no such call."""
    if isinstance(consumer, PullConsumer):
        call = partial(consumer.poll, timeout_ms=100)
    elif isinstance(consumer, PopConsumer) and consumer._calls is None:
        call = partial(consumer.pop, timeout_ms=1_000)  # type: ignore[assignment]
    else:
        return None
    with pytest.raises(ReputError) as raised:
        await call()
    return raised.value


# --- consumers --------------------------------------------------------------------------


@each_consumer
async def test_a_consumer_that_can_work_is_ready(mq: LocalBroker, make: Make) -> None:
    consumer = make(GROUP, namesrv=mq.namesrv_addr)
    async with consumer:
        await consumer.subscribe(TOPIC)
        await consumer.ready()
        assert consumer.is_ready()
    assert not consumer.is_ready()


@each_consumer
async def test_a_group_that_does_not_exist_is_not_ready(mq: LocalBroker, make: Make) -> None:
    async with make("unknown", namesrv=mq.namesrv_addr) as consumer:
        await consumer.subscribe(TOPIC)
        await until_problem(consumer)
        assert "subscription group [unknown] does not exist" in await reason(consumer, 1)
        error = await asked(consumer)
        assert error is None or (isinstance(error, BrokerError) and error.response_code == 26)


@each_consumer
async def test_a_group_that_may_not_consume_is_not_ready(mq: LocalBroker, make: Make) -> None:
    async with Admin(mq.namesrv_addr) as admin:
        group = SubscriptionGroupConfig(group_name=GROUP, consume_enable=False)
        await admin.create_group(group, broker=mq.broker_addr)
    async with make(GROUP, namesrv=mq.namesrv_addr) as consumer:
        await consumer.subscribe(TOPIC)
        await until_problem(consumer)
        assert "no permission, known" in await reason(consumer, 1)
        error = await asked(consumer)
        assert error is None or (isinstance(error, BrokerError) and error.response_code == 16)


@each_consumer
async def test_a_topic_that_may_not_be_read_is_not_ready(mq: LocalBroker, make: Make) -> None:
    async with Admin(mq.namesrv_addr) as admin:
        await admin.create_topic(TOPIC, perm=2, broker=mq.broker_addr)
    async with make(GROUP, namesrv=mq.namesrv_addr) as consumer:
        await consumer.subscribe(TOPIC)
        await until_problem(consumer)
        assert "none of its queues can be read" in await reason(consumer, 1)
        error = await asked(consumer)
        assert error is None or isinstance(error, NoRoute)


@each_consumer
async def test_a_topic_that_does_not_exist_is_not_ready(mq: LocalBroker, make: Make) -> None:
    async with make(GROUP, namesrv=mq.namesrv_addr) as consumer:
        await consumer.subscribe("Missing")
        await until_problem(consumer)
        assert "no route to topic 'Missing'" in await reason(consumer, 1)
        error = await asked(consumer)
        assert error is None or isinstance(error, NoRoute)


@each_consumer
async def test_each_topic_must_be_readable(mq: LocalBroker, make: Make) -> None:
    async with make(GROUP, namesrv=mq.namesrv_addr) as consumer:
        await consumer.subscribe(TOPIC)
        await consumer.ready()
        await consumer.subscribe("Missing")
        assert "no route to topic 'Missing'" in await reason(consumer)
        await consumer.unsubscribe("Missing")
        await until(consumer, is_ready=True)


@pytest.mark.parametrize("make", [CONSUMERS["push"], CONSUMERS["pop"]], ids=["push", "pop"])
async def test_readiness_follows_the_group(mq: LocalBroker, make: Make) -> None:
    async with make("late", namesrv=mq.namesrv_addr) as consumer:
        await consumer.subscribe(TOPIC)
        await until_problem(consumer)
        async with Admin(mq.namesrv_addr) as admin:
            await admin.create_group("late", broker=mq.broker_addr)
        await until(consumer, is_ready=True)
    async with Admin(mq.namesrv_addr) as admin:
        await admin.delete_group("late", broker=mq.broker_addr)


@each_consumer
async def test_readiness_follows_the_brokers(make: Make) -> None:
    async with LocalBroker(topics=[TOPIC]) as own:
        consumer = make(GROUP, namesrv=own.namesrv_addr)
        await consumer.start()
        await consumer.subscribe(TOPIC)
        await consumer.ready()
        assert consumer.is_connected
    try:
        async with asyncio.timeout(GUARD_S):  # the broker and the name server are down
            while consumer.is_connected:
                await consumer._rebalance.wait_for_change()
        await reason(consumer, 1)
        if not isinstance(consumer, PopConsumer):  # which asks when it is called
            await until_problem(consumer)
        error = await asked(consumer)
        assert error is None or (isinstance(error, RemotingError) and error.retriable)
    finally:
        await consumer.close()


async def test_iteration_raises_while_no_queue_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_consumer, "POLL_MS", 100)
    async with LocalBroker(topics=[TOPIC]) as own:
        consumer = PullConsumer(GROUP, namesrv=own.namesrv_addr)
        await consumer.start()
        await consumer.subscribe(TOPIC)
        await consumer.ready()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):  # An empty topic is no error.
                await anext(consumer)
    try:
        for _ in range(2):  # The consumer stays open.
            with pytest.raises(RemotingError) as raised:
                await asyncio.wait_for(anext(consumer), GUARD_S)
            assert raised.value.retriable
    finally:
        await consumer.close()
    assert [message async for message in consumer] == []


async def test_members_without_queues_are_ready(mq: LocalBroker) -> None:
    async with Admin(mq.namesrv_addr) as admin:
        await admin.create_topic("Half", queue_count=1, broker=mq.broker_addr)
    consumers = [PullConsumer(GROUP, namesrv=mq.namesrv_addr) for _ in range(2)]
    async with consumers[0], consumers[1]:
        for consumer in consumers:
            await consumer.subscribe("Half")
        for consumer in consumers:
            await until(consumer, is_ready=True)
        async with asyncio.timeout(GUARD_S):
            while sorted(len(consumer.assignment()) for consumer in consumers) != [0, 1]:
                await consumers[0]._rebalance.wait_for_change()
        assert all(consumer.is_ready() for consumer in consumers)
        assert [await consumer.poll(timeout_ms=0) for consumer in consumers] == [[], []]


async def test_a_broadcasting_member_is_ready_when_its_broker_answers(mq: LocalBroker) -> None:
    for group, is_ready in ((GROUP, True), ("unknown", False)):
        consumer = PushConsumer(
            group, namesrv=mq.namesrv_addr, listener=ignore, config=BROADCASTING
        )
        async with consumer:
            await consumer.subscribe(TOPIC)
            if is_ready:
                await consumer.ready()
            else:
                await until_problem(consumer)
                assert "does not exist" in await reason(consumer, 1)


async def test_assigned_queues_must_be_answered(mq: LocalBroker) -> None:
    queue = MessageQueue(TOPIC, "broker-a", 0)
    async with PullConsumer(GROUP, namesrv=mq.namesrv_addr) as consumer:
        await consumer.assign([queue])
        await consumer.ready()
    async with PullConsumer("unknown", namesrv=mq.namesrv_addr) as consumer:
        await consumer.assign([queue])
        await until_problem(consumer)
        assert "does not exist" in await reason(consumer, 1)
        with pytest.raises(BrokerError, match="does not exist"):
            await consumer.poll(timeout_ms=0)


async def test_paused_queues_need_no_answer(mq: LocalBroker) -> None:
    push = PushConsumer(GROUP, namesrv=mq.namesrv_addr, listener=ignore)
    push.pause()
    pull = PullConsumer(
        GROUP, namesrv=mq.namesrv_addr, on_assigned=lambda queues: pull.pause(queues)
    )
    for consumer in (push, pull):
        async with consumer:
            await consumer.subscribe(TOPIC)
            await consumer.ready()
            assert isinstance(consumer, PushConsumer) or await consumer.poll(timeout_ms=0) == []


async def test_one_queue_that_fails_does_not_hide_the_others(mq: LocalBroker) -> None:
    async with Producer("P", namesrv=mq.namesrv_addr) as producer:
        await producer.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "broker-a", 1))
    async with PullConsumer(GROUP, namesrv=mq.namesrv_addr, config=FIRST) as consumer:
        mq.fail_next(code=1, request="pull")
        await consumer.subscribe(TOPIC)
        await consumer.ready()
        assert [message.body for message in await consumer.poll(timeout_ms=GUARD_S * 1000)] == [
            b"x"
        ]


async def test_clocks_that_differ_do_not_keep_a_pop_consumer_from_being_ready(
    mq: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's brokers answer so to a request whose time, by its client, is 500 ms old."""
    ask = ClientInstance.ask

    async def late(self: ClientInstance, address: str, request: Command, **more: Any) -> Command:
        if request.code == RequestCode.NOTIFICATION:
            raise BrokerError(ResponseCode.POLLING_TIMEOUT, "the broker's clock is ahead", address)
        return await ask(self, address, request, **more)

    monkeypatch.setattr(ClientInstance, "ask", late)
    async with PopConsumer(GROUP, namesrv=mq.namesrv_addr) as consumer:
        await consumer.subscribe(TOPIC)
        await consumer.ready()


def test_blocking_consumers_have_the_same_readiness(shared: LocalBroker) -> None:
    namesrv = shared.namesrv_addr
    with blocking.PullConsumer("unknown", namesrv=namesrv) as pull:
        pull.subscribe(TOPIC)
        with pytest.raises(NotReady, match="does not exist"):
            pull.ready(2_000)
        with pytest.raises(BrokerError, match="does not exist"):
            pull.poll(timeout_ms=100)
    with blocking.PopConsumer("unknown", namesrv=namesrv) as pop:
        pop.subscribe(TOPIC)
        with pytest.raises(NotReady, match="does not exist"):
            pop.ready(2_000)
    with blocking.PushConsumer("unknown", namesrv=namesrv, listener=ignore) as push:
        push.subscribe(TOPIC)
        with pytest.raises(NotReady, match="does not exist"):
            push.ready(2_000)
        assert not push.is_ready()


# --- producers --------------------------------------------------------------------------


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_readiness_of_a_producer_follows_the_brokers(is_transactional: bool) -> None:
    async with LocalBroker(topics=[TOPIC]) as own:
        producer = (
            TransactionProducer(
                "P", check=lambda _: TransactionState.UNKNOWN, namesrv=own.namesrv_addr
            )
            if is_transactional
            else Producer("P", namesrv=own.namesrv_addr)
        )
        await producer.start()
        await producer.ready(TOPIC)
        assert producer.is_ready(TOPIC)
        assert producer.is_ready()
    try:
        async with asyncio.timeout(GUARD_S):
            while producer.is_connected:
                await asyncio.sleep(0)
        assert not producer.is_ready(TOPIC)
        assert not producer.is_ready()
        for topic in (TOPIC, None):
            with pytest.raises(NotReady):
                await producer.ready(topic, timeout_ms=100)
        with pytest.raises(RemotingError):
            await producer.send(Message(TOPIC, b"x"), timeout_ms=100)
    finally:
        await producer.close()


async def test_a_producer_without_a_writable_topic_is_not_ready(mq: LocalBroker) -> None:
    async with Admin(mq.namesrv_addr) as admin:
        await admin.create_topic("Half", perm=4, broker=mq.broker_addr)
    async with Producer("P", namesrv=mq.namesrv_addr) as producer:
        for topic, text in (("Half", "can be written to"), ("Missing", "no name server knows it")):
            with pytest.raises(NotReady, match=text):
                await producer.ready(topic, timeout_ms=500)
            assert not producer.is_ready(topic)
