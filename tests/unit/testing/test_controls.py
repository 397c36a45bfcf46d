"""Time, waits, faults and restarts of a LocalBroker; times and levels are RocketMQ's defaults."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from reput.client import (
    ClientConfig,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    Producer,
    ProducerConfig,
    ReceivedMessage,
    SendResult,
    TransactionState,
    blocking,
)
from reput.errors import InvalidOption, ReputError
from reput.format.codes import ResponseCode
from reput.testing import LocalBroker

HOUR_MS = 3_600_000
FIRST = ConsumeFromWhere.FIRST_OFFSET
GUARD_MS = 30_000
SYNC = {"flushDiskType": "SYNC_FLUSH"}


@pytest.fixture
def mq() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"T": 1}) as running:
        yield running


def client(mq: LocalBroker) -> ClientConfig:
    return ClientConfig(namesrv_addr=mq.namesrv_addr, persist_offsets_ms=100)


def send(mq: LocalBroker, *messages: Message) -> None:
    with blocking.Producer("P", namesrv=mq.namesrv_addr) as producer:
        for message in messages:
            producer.send(message)


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


# --- time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, SYNC, {"transientStorePoolEnable": "true"}])
def test_after_an_advance_delayed_messages_are_in_their_queues(settings: dict[str, object]) -> None:
    with LocalBroker(topics={"T": 1}, settings=settings) as mq:
        send(
            mq,
            Message("T", b"in 3 h", delay_ms=3 * HOUR_MS),
            Message("T", b"level 18: 2 h", delay_level=18),
            Message("T", b"level 17: 1 h", delay_level=17),
            Message("T", b"in 70 h", delay_ms=70 * HOUR_MS),
        )
        mq.advance(HOUR_MS // 2)
        assert mq.messages("T") == []
        mq.advance(HOUR_MS)
        assert bodies(mq.messages("T")) == [b"level 17: 1 h"]
        mq.advance(2 * HOUR_MS)
        expected = [b"level 17: 1 h", b"level 18: 2 h", b"in 3 h"]
        assert bodies(mq.messages("T")) == expected
        mq.advance(70 * HOUR_MS)
        assert bodies(mq.messages("T")) == [*expected, b"in 70 h"]


@pytest.mark.parametrize("phase_ms", [0, 1, 250, 500, 750, 990])
def test_an_advance_by_a_delay_delivers_the_message(mq: LocalBroker, phase_ms: int) -> None:
    """Whatever the fraction of the second at which it was sent: the timer rounds up to a second."""

    def advance_to_phase() -> None:
        mq.advance((phase_ms - mq.now_ms) % 1_000)

    def at_the_latest(delay_ms: int) -> None:
        before_ms = mq._running.clock._shift_ms
        mq.advance(delay_ms)
        assert mq._running.clock._shift_ms - before_ms < delay_ms + 1_000

    advance_to_phase()
    send(mq, Message("T", b"delay", delay_ms=HOUR_MS))
    at_the_latest(HOUR_MS)
    assert bodies(mq.messages("T")) == [b"delay"]

    advance_to_phase()
    send(mq, Message("T", b"time", deliver_at_ms=mq.now_ms + HOUR_MS))
    mq.advance(HOUR_MS - 2_000)
    assert len(mq.messages("T")) == 1
    at_the_latest(2_000)
    assert len(mq.messages("T")) == 2

    advance_to_phase()
    send(mq, Message("T", b"level", delay_level=2))
    at_the_latest(5_000)
    assert len(mq.messages("T")) == 3


def test_an_advance_without_messages_is_exact(mq: LocalBroker) -> None:
    send(mq, Message("T", b"later", delay_ms=HOUR_MS))
    shift_ms = mq._running.clock._shift_ms
    mq.advance(1_234)
    assert mq._running.clock._shift_ms - shift_ms <= 1_234  # the machine's clock runs too


def test_an_advance_delivers_in_order_of_time(mq: LocalBroker) -> None:
    """Also if one advance passes all of them: each is stored at its time."""
    begun_ms = mq.now_ms
    send(mq, *(Message("T", b"%d" % hours, delay_ms=hours * HOUR_MS) for hours in (5, 1, 3, 2, 4)))
    mq.advance(6 * HOUR_MS)
    messages = mq.messages("T")
    assert bodies(messages) == [b"1", b"2", b"3", b"4", b"5"]
    hours = [(message.store_timestamp_ms - begun_ms) // HOUR_MS for message in messages]
    assert hours == [1, 2, 3, 4, 5]
    assert mq.now_ms - begun_ms >= 6 * HOUR_MS


async def test_an_advance_does_not_disconnect_members() -> None:
    """A broker forgets members after 120 s without a heartbeat: of real time."""
    async with LocalBroker() as mq, Producer("P", namesrv=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"one"))
        await mq.advance_async(24 * HOUR_MS)
        await producer.send(Message("T", b"two"))
        assert bodies(await mq.wait_for("T", 2)) == [b"one", b"two"]
        assert mq.drop_connections() > 0


def test_retries_of_a_consumer_end_in_the_dead_letters(mq: LocalBroker) -> None:
    """The first retry is after level 3, 10 s; the second after level 4, 30 s."""
    attempts = []

    def fail(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        attempts.append(messages[0].reconsume_times)
        return ConsumeResult.LATER

    config = ConsumerConfig(consume_from_where=FIRST, max_reconsume_times=2)
    send(mq, Message("T", b"poison"))
    with blocking.PushConsumer("G", client=client(mq), listener=fail, config=config) as consumer:
        consumer.subscribe("T")
        for retry, delay_ms in enumerate((10_000, 30_000), 1):
            mq.messages("SCHEDULE_TOPIC_XXXX", at_least=retry, timeout_ms=GUARD_MS)
            assert len(mq.messages("%RETRY%G")) == retry - 1
            mq.advance(delay_ms)
            assert len(mq.messages("%RETRY%G")) == retry
        (dead,) = mq.messages("%DLQ%G", at_least=1, timeout_ms=GUARD_MS)
    assert dead.body == b"poison"
    assert attempts == [0, 1, 2]


def test_a_popped_message_returns_after_its_invisible_time(mq: LocalBroker) -> None:
    send(mq, Message("T", b"one"))
    config = ConsumerConfig(consume_from_where=FIRST, pop_invisible_ms=600_000)
    with blocking.PopConsumer("G", client=client(mq), config=config) as consumer:
        consumer.subscribe("T")
        assert bodies(consumer.pop(timeout_ms=GUARD_MS)) == [b"one"]
        mq.advance(500_000)
        assert mq.messages("%RETRY%G_T") == []
        mq.advance(100_000)
        assert bodies(mq.messages("%RETRY%G_T")) == [b"one"]
        (again,) = consumer.pop(timeout_ms=GUARD_MS)
        assert again.reconsume_times == 1
        with pytest.raises(TimeoutError, match="hold popped messages"):
            mq.wait_until_consumed("G", timeout_ms=0)
        consumer.ack(again)
        mq.wait_until_consumed("G")


def test_the_producer_of_an_undecided_transaction_is_asked(mq: LocalBroker) -> None:
    """A half message is checked once it is older than ``transactionTimeOut``, 6 s."""
    asked = []

    def undecided(message: Message, half: SendResult) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body)
        return TransactionState.COMMIT

    with blocking.TransactionProducer("P", namesrv=mq.namesrv_addr, check=check) as producer:
        producer.send_in_transaction(Message("T", b"one"), undecided)
        assert mq.messages("T") == []
        mq.advance(6_000)
        assert bodies(mq.messages("T", at_least=1, timeout_ms=5_000)) == [b"one"]
    assert asked == [b"one"]


def test_durations_have_limits(mq: LocalBroker) -> None:
    with pytest.raises(InvalidOption, match="0 to 34560000000"):
        mq.advance(-1)
    with pytest.raises(InvalidOption, match="0 to 34560000000"):
        mq.advance(401 * 24 * HOUR_MS)


# --- waits --------------------------------------------------------------------------------------


async def test_waits_do_not_block_the_loop() -> None:
    async with LocalBroker(topics={"T": 1}) as mq:

        async def send_soon() -> None:
            async with Producer("P", namesrv=mq.namesrv_addr) as producer:
                await producer.send(Message("T", b"one"))

        sending = asyncio.create_task(send_soon())
        assert bodies(await mq.wait_for("T", timeout_ms=GUARD_MS)) == [b"one"]
        await sending
        with pytest.raises(TimeoutError, match="T has 1 messages after 1 ms, not 2"):
            await mq.wait_for("T", 2, timeout_ms=1)
        assert bodies(mq.messages("T")) == [b"one"]
        with pytest.raises(RuntimeError, match=r"use `await mq.wait_for\('T', 1\)`"):
            mq.messages("T", at_least=1)
        with pytest.raises(RuntimeError, match="wait_until_consumed_async"):
            mq.wait_until_consumed("G")
        assert len(await asyncio.to_thread(lambda: mq.messages("T", at_least=1))) == 1


def test_wait_until_consumed(mq: LocalBroker) -> None:
    with pytest.raises(TimeoutError, match="group G after 1 ms: it has no members and no offsets"):
        mq.wait_until_consumed("G", timeout_ms=1)
    send(mq, *(Message("T", b"%d" % number) for number in range(20)))
    may_consume = threading.Event()
    consumed: list[bytes] = []

    def consume(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
        may_consume.wait(GUARD_MS / 1000)
        consumed.extend(bodies(messages))
        return ConsumeResult.SUCCESS

    config = ConsumerConfig(consume_from_where=FIRST)
    with blocking.PushConsumer("G", client=client(mq), listener=consume, config=config) as consumer:
        consumer.subscribe("T")
        with pytest.raises(TimeoutError, match="queue 0 of T on broker-a"):
            mq.wait_until_consumed("G", timeout_ms=1_000)
        may_consume.set()
        mq.wait_until_consumed("G")
        assert len(consumed) == 20


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fast_path", ["true", "false"])
def test_the_next_sends_are_refused(fast_path: str) -> None:
    with LocalBroker(topics={"T": 1}, settings={"reputFastPath": fast_path}) as mq:
        config = ProducerConfig(retry_times_when_send_failed=0)
        with blocking.Producer("P", namesrv=mq.namesrv_addr, config=config) as producer:
            producer.send(Message("T", b"one"))
            mq.fail_next(2, code=ResponseCode.MESSAGE_ILLEGAL, remark="too illegal")
            for _ in range(2):
                with pytest.raises(ReputError, match="too illegal"):
                    producer.send(Message("T", b"refused"))
            producer.send(Message("T", b"two"))
        assert bodies(mq.messages("T")) == [b"one", b"two"]


def test_a_producer_repeats_a_send_that_is_refused_as_busy(mq: LocalBroker) -> None:
    mq.fail_next()
    send(mq, Message("T", b"one"))
    assert bodies(mq.messages("T")) == [b"one"]


@pytest.mark.parametrize(("stored", "count"), [(False, 1), (True, 2)])
def test_a_lost_reply_makes_a_duplicate(mq: LocalBroker, stored: bool, count: int) -> None:
    with blocking.Producer("P", namesrv=mq.namesrv_addr) as producer:
        producer.send(Message("T", b"before"))
        mq.drop_next(stored=stored)
        producer.send(Message("T", b"one"))
    assert bodies(mq.messages("T")) == [b"before"] + count * [b"one"]


def test_a_slow_send_times_out(mq: LocalBroker) -> None:
    config = ProducerConfig(retry_times_when_send_failed=0, send_timeout_ms=300)
    with blocking.Producer("P", namesrv=mq.namesrv_addr, config=config) as producer:
        mq.slow(1_000)
        with pytest.raises(ReputError):
            producer.send(Message("T", b"late"))
        assert mq.messages("T") == []
        assert bodies(mq.messages("T", at_least=1)) == [b"late"]
        mq.slow(0)
        producer.send(Message("T", b"at once"))


def test_clients_connect_again(mq: LocalBroker) -> None:
    with blocking.Producer("P", namesrv=mq.namesrv_addr) as producer:
        producer.send(Message("T", b"one"))
        assert mq.drop_connections() > 0
        producer.send(Message("T", b"two"))
        before = mq.broker_addr
        mq.restart()
        assert mq.broker_addr == before
        assert bodies(mq.messages("T")) == [b"one", b"two"]
        producer.send(Message("T", b"three"))
        mq.fail_next()  # a fault also works after a restart
        producer.send(Message("T", b"four"))
    assert bodies(mq.messages("T")) == [b"one", b"two", b"three", b"four"]


def test_clear_forgets_faults(mq: LocalBroker) -> None:
    mq.fail_next(100)
    mq.slow(600_000)
    mq.clear()
    send(mq, Message("T", b"one"))
    assert len(mq.messages("T")) == 1


def test_wrong_faults_are_errors(mq: LocalBroker) -> None:
    with pytest.raises(InvalidOption, match="send, pull, pop, ack"):
        mq.fail_next(request="sends")
    with pytest.raises(InvalidOption, match="1 to 1000000"):
        mq.drop_next(0)
    with pytest.raises(InvalidOption, match="response code"):
        mq.fail_next(code=0)
    with pytest.raises(InvalidOption, match="0 to 600000"):
        mq.slow(-1)


# --- several brokers ----------------------------------------------------------------------------


def test_several_brokers() -> None:
    with LocalBroker(brokers=2, topics={"T": 1}) as mq:
        assert len(set(mq.broker_addrs)) == 2
        with blocking.Producer("P", namesrv=mq.namesrv_addr) as producer:
            sent = [producer.send(Message("T", b"%d" % i, delay_level=18)) for i in range(4)]
        assert {result.queue.broker_name for result in sent} == {"broker-a", "broker-b"}
        mq.advance(2 * HOUR_MS)
        assert sorted(bodies(mq.messages("T"))) == [b"0", b"1", b"2", b"3"]
        mq.restart()
        assert len(mq.messages("T", at_least=4)) == 4
        assert {folder.name for folder in mq.store_folder.glob("broker-*")} == {
            "broker-a",
            "broker-b",
        }
        mq.clear()
        assert mq.messages("T") == []
    with pytest.raises(InvalidOption, match="1 to 8"):
        LocalBroker(brokers=0)
    with pytest.raises(InvalidOption, match="a LocalBroker sets it"):
        LocalBroker(brokers=2, settings={"brokerName": "mine"}).start()


def test_messages_that_wait_do_not_survive_a_clear() -> None:
    """The next test of a suite must not get them when it advances the time."""
    with LocalBroker() as mq, blocking.Producer("P", namesrv=mq.namesrv_addr) as producer:
        producer.send(Message("T", b"level", delay_level=16))
        producer.send(Message("T", b"time", delay_ms=1_800_000))
        mq.clear()
        mq.advance(3_600_000)
        assert mq.messages("T") == []
        producer.send(Message("T", b"next level", delay_level=16))
        producer.send(Message("T", b"next time", delay_ms=1_900_000))
        mq.advance(3_600_000)
        assert [message.body for message in mq.messages("T")] == [b"next level", b"next time"]
        mq.restart()
        mq.advance(3_600_000)
        assert len(mq.messages("T")) == 2
