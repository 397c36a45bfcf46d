"""Our consumers against the official broker, and in one group with Java's consumers."""

import asyncio
import itertools
import os
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from interop.conftest import StartOfficial
from interop.java_cluster import JavaClient, JavaCluster
from reput.client.admin import Admin
from reput.client.config import ClientConfig, ConsumeFromWhere, ConsumerConfig, MessageModel
from reput.client.core.route_cache import NoRoute
from reput.client.listener import ConsumeContext, ConsumeResult
from reput.client.message import Message, ReceivedMessage
from reput.client.producer import Producer
from reput.client.pull_consumer import PullConsumer
from reput.client.push_consumer import PushConsumer
from reput.client.send_back import SendBack
from reput.clock import ManualClock, SystemClock
from reput.errors import BrokerError, Unreachable
from reput.format import java, names
from reput.format.bodies import MessageQueue
from reput.format.codes import ResponseCode

pytestmark = pytest.mark.interop

GUARD_S = 25
"""Time limit of a test that hangs, in seconds; no step is expected to take that long."""
FIRST = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
BATCHES = ConsumerConfig(
    consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_message_batch_max_size=32
)
_numbers = itertools.count()


class Listener:
    """Async listener that records its messages and returns the result of ``answer``."""

    def __init__(
        self,
        answer: Callable[[list[ReceivedMessage], ConsumeContext], ConsumeResult] | None = None,
    ) -> None:
        self.messages: list[ReceivedMessage] = []
        self.calls: list[tuple[MessageQueue, list[bytes]]] = []
        self.running: Counter[MessageQueue] = Counter()
        self.overlaps = 0
        self._answer = answer
        self._arrived = asyncio.Condition()

    async def __call__(
        self, messages: list[ReceivedMessage], context: ConsumeContext
    ) -> ConsumeResult:
        self.overlaps += self.running[context.queue] > 0
        self.running[context.queue] += 1
        await asyncio.sleep(0)
        self.messages += messages
        self.calls.append((context.queue, [message.body for message in messages]))
        result = self._answer(messages, context) if self._answer else ConsumeResult.SUCCESS
        self.running[context.queue] -= 1
        async with self._arrived:
            self._arrived.notify_all()
        return result

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def wait(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(GUARD_S), self._arrived:
            await self._arrived.wait_for(enough)

    async def wait_for(self, count: int) -> None:
        await self.wait(lambda: len(self.messages) >= count)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition without a listener."""
    async with asyncio.timeout(GUARD_S):
        while not condition():
            await asyncio.sleep(0.02)


async def dispatched(consumer: PullConsumer, queue: MessageQueue, end: int) -> None:
    """Wait for the end of a queue: Java dispatches after it has answered the sender."""
    async with asyncio.timeout(GUARD_S):
        while await consumer.end_offset(queue) < end:
            await asyncio.sleep(0.01)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Provide a topic and group name that is unique to the test."""
    return f"{request.node.originalname}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
async def producer(official: JavaCluster) -> AsyncIterator[Producer]:
    async with Producer("producers", namesrv=official.namesrv) as started:
        yield started


async def send(producer: Producer, topic: str, bodies: Iterable[bytes], **more: Any) -> list[bytes]:
    """Send to the queues of a topic in turn, which makes its route known; return the bodies."""
    sent = list(bodies)
    for body in sent:
        await producer.send(Message(topic, body, **more))
    return sent


def numbered(count: int, prefix: str = "m") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def push(
    official: JavaCluster, group: str, listener: Any, config: ConsumerConfig = FIRST, **more: Any
) -> PushConsumer:
    return PushConsumer(group, namesrv=official.namesrv, listener=listener, config=config, **more)


async def committed(official: JavaCluster, group: str, topic: str) -> int:
    """Return the sum of a group's consumer offsets in a topic."""
    async with PullConsumer(group, namesrv=official.namesrv) as consumer:
        queues = await consumer.queues(topic)
        return sum([await consumer.committed(queue) or 0 for queue in queues])


# --- clustering ---------------------------------------------------------------------


async def test_a_single_member_gets_all_messages(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    sent = await send(producer, topic, numbered(50), tags="a", keys=["k1", "k2"])
    listener = Listener()
    async with push(official, topic, listener, BATCHES) as consumer:
        await consumer.subscribe(topic)
        await listener.wait_for(50)
        live = await send(producer, topic, numbered(20, "live"))
        await listener.wait_for(70)
    assert sorted(listener.bodies) == sorted(sent + live)
    assert all(message.topic == topic for message in listener.messages)
    assert listener.messages[0].tags == "a"
    assert listener.messages[0].keys == ["k1", "k2"]
    assert await committed(official, topic, topic) == 70
    again = Listener()
    async with push(official, topic, again, BATCHES) as consumer:
        await consumer.subscribe(topic)
        await send(producer, topic, [b"last"])
        await again.wait_for(1)
    assert again.bodies == [b"last"]


async def test_two_members_share_until_one_leaves(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    sent = await send(producer, topic, numbered(8))
    first, second = Listener(), Listener()
    stays, leaves = push(official, topic, first), push(official, topic, second)
    await stays.subscribe(topic)
    await leaves.subscribe(topic)

    def owned(consumer: PushConsumer) -> int:
        return sum(queue.topic == topic for queue in consumer.queues())

    async with stays:
        async with leaves:
            await until(lambda: owned(stays) == owned(leaves) == 2)
            assert not set(stays.queues()) & set(leaves.queues())
            before = len(first.messages) + len(second.messages)
            assert before <= 8 or set(first.bodies + second.bodies) <= set(sent)
            sent += await send(producer, topic, numbered(40, "both"))
            await first.wait(lambda: sum(body[:4] == b"both" for body in first.bodies) == 20)
            await second.wait(lambda: sum(body[:4] == b"both" for body in second.bodies) == 20)
        await until(lambda: owned(stays) == 4)
        sent += await send(producer, topic, numbered(20, "alone"))
        await first.wait(lambda: sum(body[:5] == b"alone" for body in first.bodies) == 20)
    assert set(first.bodies) | set(second.bodies) == set(sent)
    # After a clean shutdown, messages sent while both were assigned are not repeated.
    both = Counter(body for body in first.bodies + second.bodies if body[:4] == b"both")
    assert set(both.values()) == {1}


@pytest.mark.sampled(14)
async def test_python_and_java_members_share(
    official: JavaCluster, java_client: JavaClient, producer: Producer, topic: str
) -> None:
    await send(producer, topic, numbered(4))
    listener = Listener()
    async with push(official, topic, listener) as consumer:
        await consumer.subscribe(topic)
        theirs = await asyncio.to_thread(java_client.push_consumer, official.namesrv, topic, topic)
        try:
            await until(lambda: sum(queue.topic == topic for queue in consumer.queues()) == 2)
            own = {queue.queue_id for queue in consumer.queues() if queue.topic == topic}
            other: set[int] = set()
            async with asyncio.timeout(GUARD_S):
                while len(other) != 2:
                    assigned = await asyncio.to_thread(theirs.assigned)
                    other = {queue.queue_id for queue in assigned if queue.topic == topic}
            assert sorted([*own, *other]) == [0, 1, 2, 3]
            await send(producer, topic, numbered(20, "both"))
            await listener.wait(lambda: sum(body[:4] == b"both" for body in listener.bodies) == 10)
            await asyncio.to_thread(
                theirs.wait_until,
                lambda received: sum(message.body[:4] == b"both" for message in received) == 10,
            )
        finally:
            await asyncio.to_thread(theirs.close)


async def test_a_plain_function_runs_in_threads(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    sent = await send(producer, topic, numbered(8))
    got: list[bytes] = []
    meeting = threading.Barrier(4, timeout=GUARD_S)

    def listen(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        meeting.wait()  # Blocks until four threads are here.
        got.extend(message.body for message in messages)
        return ConsumeResult.SUCCESS

    async with push(official, topic, listen) as consumer:
        await consumer.subscribe(topic)
        await until(lambda: len(got) == 8)
    assert sorted(got) == sent


async def test_tags_are_compared_by_text(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    assert java.string_hash("AaAa") == java.string_hash("BBBB")
    for tag in ("AaAa", "BBBB", "other", "c"):
        await send(producer, topic, [tag.encode()], tags=tag)
    await send(producer, topic, [b"none"])
    listener = Listener()
    async with push(official, topic, listener) as consumer:
        await consumer.subscribe(topic, "AaAa || c")
        await listener.wait_for(2)
        await send(producer, topic, [b"end"], tags="c")
        await listener.wait(lambda: b"end" in listener.bodies)
    assert sorted(listener.bodies) == [b"AaAa", b"c", b"end"]


async def test_sql92_filters_messages(start_official: StartOfficial, topic: str) -> None:
    cluster = start_official(settings={"enablePropertyFilter": True})
    listener = Listener()
    async with Producer("producers", namesrv=cluster.namesrv) as producer:
        for number in range(10):
            await send(producer, topic, [b"%d" % number], properties={"n": str(number)})
        async with push(cluster, topic, listener) as consumer:
            await consumer.subscribe_sql(topic, "n > 5 AND n <> 7")
            await listener.wait_for(3)
            with pytest.raises(BrokerError) as refused:
                await consumer.subscribe_sql(topic, "n = = 5")
            assert refused.value.response_code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert sorted(listener.bodies) == [b"6", b"8", b"9"]
        bad = push(cluster, f"{topic}-bad", listener)
        await bad.subscribe_sql(topic, "n = = 5")
        with pytest.raises(BrokerError):
            await bad.start()
        async with PullConsumer(f"{topic}-pull", namesrv=cluster.namesrv, config=FIRST) as pull:
            await pull.subscribe_sql(topic, "n BETWEEN 2 AND 3")
            pulled: list[bytes] = []
            while len(pulled) < 2:
                pulled += [message.body for message in await pull.poll(timeout_ms=GUARD_S * 1000)]
            assert sorted(pulled) == [b"2", b"3"]


# --- redelivery ---------------------------------------------------------------------


async def test_a_message_is_redelivered_until_it_succeeds(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    await send(producer, topic, [b"good", b"hard"], keys="k")

    def answer(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        (message,) = messages
        context.delay_level = 1
        is_hard = message.body == b"hard" and message.reconsume_times < 2
        if is_hard and message.reconsume_times == 1:
            raise RuntimeError("an error of the user's")
        return ConsumeResult.LATER if is_hard else ConsumeResult.SUCCESS

    listener = Listener(answer)
    async with push(official, topic, listener) as consumer:
        await consumer.subscribe(topic)
        await listener.wait_for(4)
    assert Counter(listener.bodies) == {b"good": 1, b"hard": 3}
    hard = [message for message in listener.messages if message.body == b"hard"]
    assert [message.reconsume_times for message in hard] == [0, 1, 2]
    assert {message.topic for message in hard} == {topic}
    assert {message.message_id for message in hard} == {hard[0].message_id}
    assert hard[1].queue.topic == names.retry_topic(topic)
    assert await committed(official, topic, topic) == 2


async def test_unconsumable_messages_are_dead_letters(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    await send(producer, topic, [b"hopeless", b"unwanted"])

    def answer(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        context.delay_level = -1 if messages[0].body == b"unwanted" else 0
        return ConsumeResult.LATER

    listener = Listener(answer)
    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=0)
    async with push(official, topic, listener, config) as consumer:
        await consumer.subscribe(topic)
        await listener.wait_for(2)
    letters = await dead_letters(official, topic, 2)
    assert sorted(message.body for message in letters) == [b"hopeless", b"unwanted"]


async def dead_letters(official: JavaCluster, group: str, count: int) -> list[ReceivedMessage]:
    """Read the dead letters of a group; wait for their topic if it does not exist yet."""
    if official.version == "4.5.2":
        pytest.skip("no such case: 4.5 creates dead-letter topics without read permission")
    topic = names.dlq_topic(group)
    letters: list[ReceivedMessage] = []
    async with (
        asyncio.timeout(GUARD_S),
        PullConsumer("readers", namesrv=official.namesrv, config=FIRST) as consumer,
    ):
        while True:
            try:
                await consumer.assign(await consumer.queues(topic))
            except NoRoute:
                await asyncio.sleep(0.1)
            else:
                break
        for queue in consumer.assignment():
            consumer.seek(queue, 0)
        while len(letters) < count:
            letters += await consumer.poll(timeout_ms=GUARD_S * 1000)
    return letters


@pytest.mark.rotating
async def test_a_copy_is_sent_if_the_broker_refuses_a_send_back(
    official: JavaCluster, producer: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise Unreachable("192.0.2.1:10911", "for the test")

    monkeypatch.setattr(SendBack, "_ask_its_broker", refuse)
    large = b"large" * 2000  # sent compressed
    await send(producer, topic, [large], tags="t", properties={"own": "value"})

    def answer(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        is_first = messages[0].reconsume_times == 0
        return ConsumeResult.LATER if is_first else ConsumeResult.SUCCESS

    listener = Listener(answer)
    async with push(official, topic, listener) as consumer:
        await consumer.subscribe(topic)
        await listener.wait_for(2)  # The second arrives after 10 s.
    first, second = listener.messages
    assert second.body == large
    assert (second.reconsume_times, second.topic, second.tags) == (1, topic, "t")
    assert second.message_id == first.message_id
    assert second.properties["own"] == "value"
    assert second.queue.topic == names.retry_topic(topic)


@pytest.mark.rotating
async def test_an_overdue_message_is_sent_back(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    await send(producer, topic, [b"stuck"])
    may_end = asyncio.Event()
    retried = asyncio.Event()
    calls: list[int] = []

    async def listen(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        calls.append(messages[0].reconsume_times)
        if not messages[0].reconsume_times:
            await may_end.wait()
        else:
            retried.set()
        return ConsumeResult.LATER

    clock = ManualClock(SystemClock().now_ms())
    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=1)
    async with push(official, topic, listen, config, clock=clock) as consumer:
        await consumer.subscribe(topic)
        await until(lambda: calls == [0])
        await consumer._consumption.send_back_overdue()
        clock.advance(15 * 60_000 + 1)
        await consumer._consumption.send_back_overdue()
        await consumer._consumption.send_back_overdue()  # already sent back
        may_end.set()
        async with asyncio.timeout(GUARD_S):
            await retried.wait()  # after 10 s
    assert calls == [0, 1]
    assert await committed(official, topic, topic) == 1


async def test_the_failed_part_of_a_batch_is_redelivered(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    queue = (await created(official, producer, topic))[0]
    for body in numbered(10):
        await producer.send(Message(topic, body), queue=queue)

    def answer(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        context.delay_level = 1
        if len(messages) > 1:
            context.consumed_count = len(messages) - 1
        return ConsumeResult.SUCCESS

    listener = Listener(answer)
    async with push(official, topic, listener, BATCHES) as consumer:
        await consumer.subscribe(topic)
        await listener.wait(
            lambda: any(message.reconsume_times == 1 for message in listener.messages)
        )
    again = [message for message in listener.messages if message.reconsume_times == 1]
    ends = [bodies[-1] for queue, bodies in listener.calls if len(bodies) > 1]
    assert {message.body for message in again} <= set(ends)
    assert set(listener.bodies) == set(numbered(10)) | {b"create"}


async def created(official: JavaCluster, producer: Producer, topic: str) -> list[MessageQueue]:
    """Create a topic by sending to it, and return its queues once the name server has its route.

    A broker answers the send first and registers the topic later.
    """
    await send(producer, topic, [b"create"])
    async with asyncio.timeout(GUARD_S), Admin(official.namesrv) as admin:
        while True:
            try:
                return list((await admin.topic_route(topic)).publish_queues)
            except NoRoute:
                await asyncio.sleep(0.02)


# --- in order -----------------------------------------------------------------------


async def test_orderly_members_keep_the_order(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    queues = await created(official, producer, topic)
    for number in range(30):
        for queue in queues:
            body = f"{queue.queue_id}-{number}".encode()
            await producer.send(Message(topic, body), queue=queue)
    failed: set[bytes] = set()

    def answer(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        context.suspend_ms = 10
        body = messages[0].body
        if body.endswith(b"7") and body not in failed:
            failed.add(body)
            return ConsumeResult.LATER
        assert context.failures <= (body in failed), "0 if the queue has moved in between"
        return ConsumeResult.SUCCESS

    first, second = Listener(answer), Listener(answer)
    async with push(official, topic, first, orderly=True) as stays:
        await stays.subscribe(topic)
        async with push(official, topic, second, orderly=True) as leaves:
            await leaves.subscribe(topic)
            total = 1 + 30 * len(queues)
            await until(lambda: len(set(first.bodies + second.bodies)) == total)
            await until(lambda: len([x for x in leaves.queues() if x.topic == topic]) == 2)
        await until(lambda: len([x for x in stays.queues() if x.topic == topic]) == 4)
        await producer.send(Message(topic, b"end"), queue=queues[0])
        await first.wait(lambda: b"end" in first.bodies)
    assert first.overlaps == second.overlaps == 0
    for listener in (first, second):
        seen: dict[MessageQueue, list[bytes]] = defaultdict(list)
        for queue, bodies in listener.calls:
            seen[queue] += bodies
        for bodies in seen.values():
            numbers = [int(body.split(b"-")[1]) for body in bodies if b"-" in body]
            assert numbers == sorted(numbers), "only failed messages come twice, and without delay"
    everything = Counter(first.bodies + second.bodies)
    assert all(everything[body] == 2 for body in failed)
    assert all(count == 1 for body, count in everything.items() if body not in failed)
    assert await committed(official, topic, topic) == 2 + 30 * len(queues)


async def test_orderly_manual_commit_and_rollback(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    queue = (await created(official, producer, topic))[0]
    for body in numbered(6):
        await producer.send(Message(topic, body), queue=queue)
    rollbacks: list[bytes] = []

    def answer(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        context.auto_commit = False
        context.suspend_ms = 10
        body = messages[0].body
        if body == b"m3" and not rollbacks:
            rollbacks.append(body)
            return ConsumeResult.ROLLBACK
        return ConsumeResult.COMMIT if body in (b"m1", b"m5") else ConsumeResult.SUCCESS

    listener = Listener(answer)
    async with push(official, topic, listener, orderly=True) as consumer:
        await consumer.subscribe(topic)
        await listener.wait(lambda: b"m5" in listener.bodies)
    bodies = [body for body in listener.bodies if body != b"create"]
    assert bodies == [b"m0", b"m1", b"m2", b"m3", b"m2", b"m3", b"m4", b"m5"]


async def test_orderly_failure_becomes_a_dead_letter(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    queue = (await created(official, producer, topic))[0]
    for body in (b"hopeless", b"next"):
        await producer.send(Message(topic, body), queue=queue)

    def answer(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        context.suspend_ms = 10
        is_bad = messages[0].body == b"hopeless"
        return ConsumeResult.LATER if is_bad else ConsumeResult.SUCCESS

    listener = Listener(answer)
    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=2)
    async with push(official, topic, listener, config, orderly=True) as consumer:
        await consumer.subscribe(topic)
        await listener.wait(lambda: b"next" in listener.bodies)
    assert Counter(listener.bodies)[b"hopeless"] == 3
    (dead,) = await dead_letters(official, topic, 1)
    assert dead.body == b"hopeless"


# --- broadcasting -------------------------------------------------------------------


async def test_each_broadcasting_member_gets_all_messages(
    official: JavaCluster,
    producer: Producer,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    sent = await send(producer, topic, numbered(12))
    config = ConsumerConfig(
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, message_model=MessageModel.BROADCASTING
    )

    def member(name: str, listener: Listener) -> PushConsumer:
        client = ClientConfig(namesrv_addr=official.namesrv, instance_name=name)
        return PushConsumer(topic, client=client, listener=listener, config=config)

    first, second = Listener(), Listener()
    async with member("one", first) as member_one, member("two", second) as member_two:
        await member_one.subscribe(topic)
        await member_two.subscribe(topic)
        await first.wait_for(12)
        await second.wait_for(12)
        assert len(member_one.queues()) == len(member_two.queues()) == 4
    assert sorted(first.bodies) == sorted(second.bodies) == sorted(sent)
    pattern = f".rocketmq_offsets/*/{topic}/offsets.json"
    files = sorted(tmp_path.glob(pattern))  # noqa: ASYNC240 - a small folder
    assert [file.parts[-3].partition("@")[2] for file in files] == ["one", "two"]
    again = Listener()
    async with member("one", again) as member_one:
        await member_one.subscribe(topic)
        await send(producer, topic, [b"new"])
        await again.wait_for(1)
    assert again.bodies == [b"new"]


# --- initial positions --------------------------------------------------------------


async def test_an_offset_beyond_the_end_is_corrected(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    queue = (await created(official, producer, topic))[0]
    for body in numbered(3):
        sent = await producer.send(Message(topic, body), queue=queue)
    async with PullConsumer(topic, namesrv=official.namesrv) as consumer:
        await consumer.assign([queue])
        end = sent.queue_offset + 1
        await dispatched(consumer, queue, end)
        consumer.seek(queue, end + 1000)
        await until(lambda: consumer.position(queue) == end)
        await producer.send(Message(topic, b"new"), queue=queue)
        (message,) = await consumer.poll(timeout_ms=GUARD_S * 1000)
        assert message.body == b"new"


async def test_a_consumer_begins_at_a_time(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    queue = (await created(official, producer, topic))[0]
    times = []
    async with PullConsumer("readers", namesrv=official.namesrv) as reader:
        await reader.assign([queue])
        for body in numbered(5):
            sent = await producer.send(Message(topic, body), queue=queue)
            reader.seek(queue, sent.queue_offset)
            # Java dispatches asynchronously, and holds the pull until then.
            (stored,) = await reader.poll(1, timeout_ms=GUARD_S * 1000)
            assert stored.body == body
            times.append(stored.store_timestamp_ms)
            await asyncio.sleep(0.01)  # a pause, so that the store times differ
    # A broker answers 0 to an unknown group while a queue still begins at 0.
    async with PullConsumer(topic, namesrv=official.namesrv) as consumer:
        await consumer.assign([queue])
        await consumer.seek_to_time(queue, times[2])
        assert consumer.position(queue) == await consumer.offset_at(queue, times[2])
        (message,) = await consumer.poll(1, timeout_ms=GUARD_S * 1000)
        assert message.body == b"m2"


# --- pulling ------------------------------------------------------------------------


async def test_a_subscribed_pull_consumer_gets_all_messages(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    sent = await send(producer, topic, numbered(30))
    pulled: list[bytes] = []
    async with PullConsumer(topic, namesrv=official.namesrv, config=FIRST) as consumer:
        await consumer.subscribe(topic)
        while len(pulled) < 30:
            pulled += [
                message.body for message in await consumer.poll(7, timeout_ms=GUARD_S * 1000)
            ]
        assert len(consumer.assignment()) == 4
        assert await consumer.poll(timeout_ms=50) == []
    assert sorted(pulled) == sorted(sent)
    assert await committed(official, topic, topic) == 30
    async with PullConsumer(topic, namesrv=official.namesrv, config=FIRST) as consumer:
        await consumer.subscribe(topic)
        await send(producer, topic, [b"one", b"two"])
        async with asyncio.timeout(GUARD_S):
            later = []
            async for message in consumer:
                later.append(message.body)
                if len(later) == 2:
                    break
    assert sorted(later) == [b"one", b"two"]
    assert await committed(official, topic, topic) == 32


async def test_an_error_in_a_pull_loop_repeats_the_message(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    queue = (await created(official, producer, topic))[0]
    for body in numbered(5):
        await producer.send(Message(topic, body), queue=queue)

    async def fail_at_third() -> None:
        async with PullConsumer(topic, namesrv=official.namesrv, config=FIRST) as consumer:
            await consumer.assign([queue])
            async for message in consumer:
                if message.body == b"m2":
                    raise RuntimeError("an error of the user's")

    with pytest.raises(RuntimeError):
        await fail_at_third()
    async with PullConsumer(topic, namesrv=official.namesrv) as consumer:
        await consumer.assign([queue])
        first = await consumer.poll(1, timeout_ms=GUARD_S * 1000)
        assert [message.body for message in first] == [b"m2"]


async def test_an_assigned_pull_consumer_seeks_pauses_and_commits(
    official: JavaCluster, producer: Producer, topic: str
) -> None:
    queues = await created(official, producer, topic)
    chosen = [queue for queue in queues if queue.queue_id in (1, 2)]
    sent: dict[MessageQueue, list[bytes]] = {}
    ends: dict[MessageQueue, int] = {}
    for queue in queues:
        sent[queue] = numbered(10, f"{queue.queue_id}-")
        for body in sent[queue]:
            ends[queue] = (await producer.send(Message(topic, body), queue=queue)).queue_offset + 1
    async with PullConsumer(
        topic, namesrv=official.namesrv, config=FIRST, auto_commit=False
    ) as consumer:
        await consumer.assign(chosen)
        assert consumer.assignment() == sorted(chosen)
        active, paused = chosen
        for queue in chosen:
            await dispatched(consumer, queue, ends[queue])
            await consumer.seek_to_end(queue)
            consumer.seek(queue, consumer.position(queue) - 4)
        consumer.pause([paused])
        tail = await poll_bodies(consumer, 4)
        assert tail == sent[active][6:]
        assert await consumer.poll(timeout_ms=50) == []
        consumer.resume([paused])
        assert await poll_bodies(consumer, 4) == sent[paused][6:]
        assert await consumer.committed(active) in (None, 0), "nothing was committed"
        await consumer.commit()
        end = await consumer.end_offset(active)
        assert await consumer.committed(active) == end
        await consumer.commit({active: end - 3})
        assert await consumer.committed(active) == end - 3
        await consumer.seek_to_begin(active)
        assert consumer.position(active) == await consumer.begin_offset(active)
        again = [body for body in await poll_bodies(consumer, 10) if body != b"create"]
        assert again[:2] == [b"1-0", b"1-1"]
        await consumer.assign([paused])
        assert consumer.assignment() == [paused]
    async with PullConsumer(topic, namesrv=official.namesrv) as consumer:
        await consumer.assign([active])
        assert consumer.position(active) == end - 3


async def poll_bodies(consumer: PullConsumer, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < count:
        messages = await consumer.poll(count - len(bodies), timeout_ms=GUARD_S * 1000)
        assert messages
        bodies += [message.body for message in messages]
    return bodies


# --- operators ----------------------------------------------------------------------


@pytest.mark.sampled(14)
async def test_operators_see_and_reset_a_member(
    official: JavaCluster, java_client: JavaClient, producer: Producer, topic: str
) -> None:
    sent = await send(producer, topic, numbered(8))
    listener = Listener()

    async def mqadmin(*arguments: str) -> str:
        return await asyncio.to_thread(java_client.mqadmin, *arguments, namesrv=official.namesrv)

    client = ClientConfig(namesrv_addr=official.namesrv, persist_offsets_ms=100)
    async with PushConsumer(topic, client=client, listener=listener, config=FIRST) as consumer:
        await consumer.subscribe(topic)
        await listener.wait_for(8)
        shown = await mqadmin("consumerConnection", "-g", topic)
        assert "CONSUME_PASSIVELY" in shown
        client_id = next(word for word in shown.split() if "@" in word)
        status = await mqadmin("consumerStatus", "-g", topic, "-i", client_id)
        assert "PROP_CONSUMEORDERLY" in status
        assert status.count(topic) > 4, "queues, subscriptions and rates of the topic"
        message = listener.messages[0]
        where = ("-t", topic) if java_client.version[0] == "5" else ()
        by_id = ("queryMsgById", "-i", message.offset_message_id, *where)
        direct = await mqadmin(*by_id, "-g", topic, "-d", client_id)
        assert "CR_SUCCESS" in direct
        await listener.wait_for(9)
        assert listener.messages[8].message_id == message.message_id
        async with asyncio.timeout(GUARD_S):
            while await committed(official, topic, topic) < 8:
                await asyncio.sleep(0.05)
        moved = await mqadmin("resetOffsetByTime", "-g", topic, "-t", topic, "-s", "1")
        assert "broker-a" in moved, moved
        await listener.wait_for(17)
    assert sorted(listener.bodies[9:]) == sorted(sent)
