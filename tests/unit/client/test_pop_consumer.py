"""A pop consumer with our broker: pops, acknowledgements, extensions, and redelivery."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TypeGuard

import pytest

from reput.client import (
    Admin,
    BrokerError,
    ClientConfig,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    InvalidOption,
    Message,
    MessageModel,
    NotStarted,
    PopConsumer,
    PoppedMessage,
    Producer,
    ReceivedMessage,
)
from reput.client.core import pop_handles
from reput.client.core.trace_codec import Begun, Consumed
from reput.client.popping import ANY_QUEUE
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.testing import LocalBroker
from scripted_cluster import ScriptedCluster

GUARD_S = 30
"""Limit of a test's waits, in s."""
FIRST = ConsumeFromWhere.FIRST_OFFSET
CONFIG = ConsumerConfig(consume_from_where=FIRST)
SHORT = ConsumerConfig(consume_from_where=FIRST, pop_invisible_ms=1_000)


@pytest.fixture
def topic(rocketmq: LocalBroker, request: pytest.FixtureRequest) -> str:
    """Create a topic of four queues for this test; its group has the same name."""
    name = "".join(char if char.isalnum() else "-" for char in request.node.name)[-60:]
    rocketmq.create_topic(name, 4)
    return name


async def send(mq: LocalBroker, topic: str, bodies: Iterable[bytes], tags: str = "") -> None:
    async with Producer("producers", namesrv=mq.namesrv_addr) as producer:
        await producer.send_many([Message(topic, body, tags or None) for body in bodies])


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def popped(consumer: PopConsumer, count: int) -> list[PoppedMessage]:
    """Pop until ``count`` messages have arrived."""
    messages: list[PoppedMessage] = []
    async with asyncio.timeout(GUARD_S):
        while len(messages) < count:
            messages += await consumer.pop()
    return messages


def is_popped(message: ReceivedMessage) -> TypeGuard[PoppedMessage]:
    return isinstance(message, PoppedMessage)


class Listener:
    """Records messages; fails for some bodies as often as ``failures`` gives."""

    def __init__(self, failures: dict[bytes, int] | None = None) -> None:
        self.messages: list[ReceivedMessage] = []
        self.failures = Counter(failures or {})
        self.delay_level = 0
        self._arrived = asyncio.Condition()

    async def __call__(
        self, messages: list[ReceivedMessage], context: ConsumeContext
    ) -> ConsumeResult:
        async with self._arrived:
            self.messages += messages
            self._arrived.notify_all()
        context.delay_level = self.delay_level
        context.suspend_ms = 10
        for message in messages:
            if self.failures[message.body]:
                self.failures[message.body] -= 1
                return ConsumeResult.LATER
        return ConsumeResult.SUCCESS

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(GUARD_S), self._arrived:
            await self._arrived.wait_for(lambda: len(self.messages) >= count)


# --- without a listener -------------------------------------------------------------------


async def test_an_acknowledged_message_is_consumed(rocketmq: LocalBroker, topic: str) -> None:
    await send(rocketmq, topic, numbered(50))
    async with PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG) as consumer:
        await consumer.subscribe(topic)
        messages = await popped(consumer, 50)
        assert Counter(message.body for message in messages) == Counter(numbered(50))
        assert {message.topic for message in messages} == {topic}
        assert {message.reconsume_times for message in messages} == {0}
        await consumer.ack(*messages)
        await consumer.ack(messages[0])  # a second acknowledgement has no effect
        await assert_acknowledged(consumer, messages)


async def assert_acknowledged(consumer: PopConsumer, messages: Iterable[PoppedMessage]) -> None:
    for message in messages:
        with pytest.raises(BrokerError, match="is not held"):
            await consumer.nack(message)


async def test_a_message_comes_again_after_its_invisible_time(
    rocketmq: LocalBroker, topic: str
) -> None:
    await send(rocketmq, topic, [b"one"])
    config = ConsumerConfig(consume_from_where=FIRST, pop_invisible_ms=50)
    async with PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=config) as consumer:
        await consumer.subscribe(topic)
        for attempt in range(2):
            (message,) = await popped(consumer, 1)
            assert (message.body, message.topic, message.reconsume_times) == (
                b"one",
                topic,
                attempt,
            )


async def test_a_nacked_message_comes_again_after_its_delay(
    rocketmq: LocalBroker, topic: str
) -> None:
    await send(rocketmq, topic, [b"one"])
    async with PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG) as consumer:
        await consumer.subscribe(topic)
        for attempt in range(3):
            (message,) = await popped(consumer, 1)
            assert message.reconsume_times == attempt
            await consumer.nack(message, delay_ms=1)
        (message,) = await popped(consumer, 1)
        await consumer.ack(message)
        await assert_acknowledged(consumer, [message])
        with pytest.raises(InvalidOption, match="delay_ms"):
            await consumer.nack(message, delay_ms=-1)


async def test_extend_prolongs_the_invisible_time(rocketmq: LocalBroker, topic: str) -> None:
    await send(rocketmq, topic, [b"one"])
    async with PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=SHORT) as consumer:
        await consumer.subscribe(topic)
        (message,) = await popped(consumer, 1)
        until_ms = message.held_until_ms
        await consumer.extend(message, 60_000)
        assert message.held_until_ms > until_ms + 50_000
        assert await consumer.pop(timeout_ms=1_300) == []
        await consumer.ack(message)  # by its new handle
        with pytest.raises(BrokerError, match="is not held"):
            await consumer.extend(message)


async def test_a_pop_returns_at_most_the_requested_count(rocketmq: LocalBroker, topic: str) -> None:
    await send(rocketmq, topic, numbered(10))
    async with (
        PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG) as consumer,
        PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG) as other,
    ):
        await consumer.subscribe(topic)
        await other.subscribe(topic)
        async with asyncio.timeout(GUARD_S):
            messages = await consumer.pop(3)
            assert len(messages) == 3
            rest = await popped(other, 7)
        assert Counter(message.body for message in [*messages, *rest]) == Counter(numbered(10))


async def test_a_pop_that_has_returned_takes_no_later_messages(
    rocketmq: LocalBroker, topic: str
) -> None:
    """No request stays at the broker: it would take a message, and no caller would get it."""
    await send(rocketmq, topic, numbered(3))
    async with (
        PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG) as consumer,
        PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG) as other,
    ):
        await consumer.subscribe(topic)
        await popped(consumer, 3)
        await send(rocketmq, topic, [b"late"])
        await other.subscribe(topic)
        async with asyncio.timeout(GUARD_S):
            assert [message.body for message in await other.pop()] == [b"late"]


async def test_waiting_pops_share_what_arrives(rocketmq: LocalBroker, topic: str) -> None:
    """The first pop takes all of the first messages; the other one is asked for again."""
    async with PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG) as consumer:
        await consumer.subscribe(topic)
        async with asyncio.timeout(GUARD_S):
            pops = [asyncio.create_task(consumer.pop(timeout_ms=60_000)) for _ in range(3)]
            received = []
            for number in range(3):
                await send(rocketmq, topic, [b"%d" % number])
                done, rest = await asyncio.wait(pops, return_when=asyncio.FIRST_COMPLETED)
                received += [message.body for task in done for message in task.result()]
                pops = list(rest)
        assert received == numbered(3)


async def test_messages_of_other_tags_with_the_same_hash_are_skipped(
    rocketmq: LocalBroker, topic: str
) -> None:
    for tag in ("Aa", "BB"):  # tags with one hash
        await send(rocketmq, topic, [tag.encode()], tag)
    async with PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=SHORT) as consumer:
        await consumer.subscribe(topic, "Aa")
        (message,) = await popped(consumer, 1)
        assert message.body == b"Aa"
        await consumer.ack(message)
        assert await consumer.pop(timeout_ms=1_300) == []  # the other message was acknowledged
        await consumer.unsubscribe(topic)
        assert consumer.queues() == []


async def test_sql_subscription(
    rocketmq: LocalBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Producer("producers", namesrv=rocketmq.namesrv_addr) as producer:
        for age in ("7", "20"):
            await producer.send(Message(topic, age.encode(), properties={"age": age}))
    async with PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG) as consumer:
        await consumer.subscribe_sql(topic, "age > 18 LIKE 7")
        assert [message.body for message in await popped(consumer, 1)] == [b"20"]
    assert "ignores what follows, 'LIKE 7'" in caplog.text


async def test_popped_messages_are_traced(rocketmq: LocalBroker, topic: str) -> None:
    client = ClientConfig(namesrv_addr=rocketmq.namesrv_addr, enable_trace=True)
    await send(rocketmq, topic, [b"one", b"two"])
    async with PopConsumer(topic, client=client, config=CONFIG) as consumer:
        await consumer.subscribe(topic)
        first, second = await popped(consumer, 2)
        await consumer.ack(first)
        await consumer.nack(second)
    async with Admin(rocketmq.namesrv_addr) as admin:
        for message, is_success in ((first, True), (second, False)):
            begun, done = [entry.trace for entry in await admin.message_trace(message.message_id)]
            assert isinstance(begun, Begun)
            assert isinstance(done, Consumed)
            assert (done.call_id, done.is_success) == (begun.call_id, is_success)
            assert (begun.group, done.group) == (topic, topic)


# --- with a listener --------------------------------------------------------------------


async def test_members_share_the_messages(rocketmq: LocalBroker, topic: str) -> None:
    await send(rocketmq, topic, numbered(100))
    listener = Listener()
    members = [
        PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG, listener=listener)
        for _ in range(3)
    ]
    for member in members:
        await member.subscribe(topic)
    async with members[0], members[1], members[2]:
        await listener.wait_for(100)
        assert Counter(listener.bodies) == Counter(numbered(100))
        with pytest.raises(InvalidOption, match="listener"):
            await members[0].pop()


async def test_a_failed_message_comes_again(
    rocketmq: LocalBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_handles, "RETRY_DELAYS_S", (0,))
    await send(rocketmq, topic, numbered(10))
    listener = Listener({b"7": 2})
    consumer = PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG, listener=listener)
    await consumer.subscribe(topic)
    async with consumer:
        await listener.wait_for(12)
    assert Counter(listener.bodies) == Counter([*numbered(10), b"7", b"7"])
    seen = [message for message in listener.messages if message.body == b"7"]
    assert [message.reconsume_times for message in seen] == [0, 1, 2]
    assert {message.topic for message in seen} == {topic}


async def test_a_message_stays_hidden_while_its_listener_works(
    rocketmq: LocalBroker, topic: str
) -> None:
    await send(rocketmq, topic, [b"one"])
    may_end, calls = asyncio.Event(), list[ReceivedMessage]()

    async def listen(messages: list[ReceivedMessage], _: ConsumeContext) -> ConsumeResult:
        calls.extend(messages)
        await may_end.wait()
        return ConsumeResult.SUCCESS

    consumer = PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=SHORT, listener=listen)
    await consumer.subscribe(topic)
    async with PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=SHORT) as other:
        async with consumer, asyncio.timeout(GUARD_S):
            while not calls:
                await asyncio.sleep(0.01)
            (message,) = calls
            assert isinstance(message, PoppedMessage)
            first = message.handle
            await other.subscribe(topic)
            assert await other.pop(timeout_ms=1_200) == []
            assert message.handle != first
            may_end.set()
        assert await other.pop(timeout_ms=100) == []
    assert len(calls) == 1


async def test_messages_without_a_worker_go_to_other_members_at_close(
    rocketmq: LocalBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    await send(rocketmq, topic, numbered(10))
    is_called = asyncio.Event()

    async def listen(_: object, __: ConsumeContext) -> ConsumeResult:
        is_called.set()
        await asyncio.Event().wait()
        raise AssertionError

    config = ConsumerConfig(consume_from_where=FIRST, consume_concurrency=1)
    consumer = PopConsumer(
        topic,
        namesrv=rocketmq.namesrv_addr,
        config=config,
        listener=listen,
        close_timeout_ms=1,
    )
    await consumer.subscribe(topic)
    async with consumer:
        await is_called.wait()
        while sum(source.held_count for source in consumer._sources.values()) < 10:
            await asyncio.sleep(0.01)
    async with PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG) as other:
        await other.subscribe(topic)
        messages = await popped(other, 9)
    assert len(messages) == 9
    assert {message.reconsume_times for message in messages} == {0}  # never delivered to a listener
    assert "closes before all is acknowledged" in caplog.text


async def test_a_message_that_fails_too_often_is_a_dead_letter(
    rocketmq: LocalBroker, topic: str
) -> None:
    await send(rocketmq, topic, [b"bad", b"good"])
    config = ConsumerConfig(consume_from_where=FIRST, max_reconsume_times=0)
    listener = Listener({b"bad": 1})
    consumer = PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=config, listener=listener)
    await consumer.subscribe(topic)
    async with consumer:
        await listener.wait_for(2)
    dead = f"%DLQ%{topic}"
    (letter,) = rocketmq.messages(dead)
    assert (letter.body, letter.properties["RETRY_TOPIC"]) == (b"bad", topic)
    async with PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=config) as other:
        await assert_acknowledged(
            other, [message for message in listener.messages if is_popped(message)]
        )


async def test_an_orderly_consumer_keeps_the_order_over_failures(
    rocketmq: LocalBroker, topic: str
) -> None:
    async with Producer("producers", namesrv=rocketmq.namesrv_addr) as producer:
        queues = await producer.queues(topic)
        for number in range(12):
            for queue in queues[:2]:
                await producer.send(Message(topic, b"%d" % number), queue=queue)
    listener = Listener({b"3": 2})
    members = [
        PopConsumer(
            topic, namesrv=rocketmq.namesrv_addr, config=CONFIG, listener=listener, orderly=True
        )
        for _ in range(2)
    ]
    for member in members:
        await member.subscribe(topic)
    async with members[0], members[1]:
        await listener.wait_for(26)
    for queue in queues[:2]:
        seen = [message for message in listener.messages if message.queue_id == queue.queue_id]
        numbers = [int(message.body) for message in seen]
        attempts = numbers.count(3)
        assert numbers == [*range(3), *[3] * attempts, *range(4, 12)]
        assert [message.reconsume_times for message in seen if message.body == b"3"] == list(
            range(attempts)
        )
    assert Counter(listener.bodies)[b"3"] == 4


async def test_brokers_choose_the_queues_to_pop(
    rocketmq: LocalBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    await send(rocketmq, topic, numbered(20))
    async with Admin(rocketmq.namesrv_addr) as admin:
        await admin.create_group(topic, broker=rocketmq.broker_addr)
        consumer = PopConsumer(
            topic, namesrv=rocketmq.namesrv_addr, config=CONFIG, asks_brokers=True
        )
        await consumer.subscribe(topic)
        async with consumer:
            messages = await popped(consumer, 20)
            assert {queue.queue_id for queue in consumer.queues()} == {0, 1, 2, 3}
            assert "is to pull topic" in caplog.text
            await consumer.ack(*messages)
            await admin.set_request_mode(topic, topic, "POP", broker=rocketmq.broker_addr)
            await send(rocketmq, topic, numbered(20))
            consumer._rebalance.wake()  # as every 20 s
            await popped(consumer, 20)
            async with asyncio.timeout(10):
                while {queue.queue_id for queue in consumer.queues()} != {ANY_QUEUE}:
                    await asyncio.sleep(0.01)
            assert f"is to pop topic {topic} again" in caplog.text


async def test_admin_sees_a_pop_consumer(rocketmq: LocalBroker, topic: str) -> None:
    await send(rocketmq, topic, [b"one"])
    listener = Listener()
    consumer = PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG, listener=listener)
    await consumer.subscribe(topic)
    async with consumer, Admin(rocketmq.namesrv_addr) as admin:
        await listener.wait_for(1)
        connection = await admin.consumer_connection(topic)
        assert connection is not None
        (member,) = connection.connection_set
        info = await admin.consumer_running_info(topic, member.client_id)
        any_queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=ANY_QUEUE)
        assert info.mq_pop_table.keys() == {any_queue}
        done = await admin.consume_directly(topic, member.client_id, listener.messages[0])
        assert done.consume_result == "CR_SUCCESS"
        assert listener.bodies == [b"one", b"one"]


# --- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (ConsumerConfig(message_model=MessageModel.BROADCASTING), "messageModel"),
        (ConsumerConfig(consume_from_where=ConsumeFromWhere.TIMESTAMP), "consumeFromWhere"),
    ],
)
def test_invalid_options_are_refused(config: ConsumerConfig, name: str) -> None:
    with pytest.raises(InvalidOption, match=name):
        PopConsumer("G", namesrv="127.0.0.1:9876", config=config)


async def test_calls_before_start_are_refused() -> None:
    consumer = PopConsumer("G", namesrv="127.0.0.1:9876")
    await consumer.subscribe("T")
    with pytest.raises(NotStarted):
        await consumer.pop()


async def test_a_broker_without_pop_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        ScriptedCluster({"T": {"broker-a": 1}}) as cluster,
        PopConsumer("G", namesrv=cluster.namesrv) as consumer,
    ):
        await consumer.subscribe("T")
        with pytest.raises(BrokerError) as raised:
            await consumer.pop(timeout_ms=200)
    assert raised.value.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "brokers before 5.0" in caplog.text


async def test_lost_acknowledgements_are_repeated(
    rocketmq: LocalBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput.client.acks.AGAIN_MS", 1)
    await send(rocketmq, topic, numbered(40))
    listener = Listener()
    consumer = PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG, listener=listener)
    await consumer.subscribe(topic)
    async with consumer:
        ask, lost = consumer._started().ask, list[Command]()

        async def lose(address: str, request: Command, timeout_ms: int | None = None) -> Command:
            code = request.code
            if code == RequestCode.BATCH_ACK_MESSAGE:  # like a broker of 5.0
                raise BrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no", address)
            if code == RequestCode.ACK_MESSAGE and len(lost) < 5:
                lost.append(request)
                raise BrokerError(ResponseCode.SYSTEM_BUSY, "later", address)
            return await ask(address, request, timeout_ms)

        monkeypatch.setattr(consumer._started(), "ask", lose)
        await listener.wait_for(40)
    assert len(lost) == 5
    async with PopConsumer(topic, namesrv=rocketmq.namesrv_addr, config=CONFIG) as other:
        await assert_acknowledged(
            other, [message for message in listener.messages if is_popped(message)]
        )
