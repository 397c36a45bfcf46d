"""Popped messages without brokers: acknowledgement, redelivery, dead letters, and their times."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from reput.client.config import ConsumerConfig
from reput.client.core.consume_rates import RatesByTopic
from reput.client.failed_messages import FailedMessages
from reput.client.listener import ConsumeContext, ConsumeResult, ListenerCalls
from reput.client.listener_workers import ListenerWorkers
from reput.client.message import ReceivedMessage
from reput.client.pop_consumption import PopConsumption, PopLine
from reput.client.popping import ANY_QUEUE, PoppedMessage
from reput.client.queue_pops import PopSource
from reput.clock import ManualClock
from reput.format import message as records
from reput.format.bodies import MessageQueue
from reput.format.body import crc
from reput.format.message import Host, StoredMessage
from reput.format.pop_codec import Handle

HOST = Host(bytes((192, 0, 2, 1)), 10911)
ANY = MessageQueue("T", "b", ANY_QUEUE)
NOW_MS = 1_700_000_000_000
HELD_MS = 60_000


def popped(queue_offset: int, *, retries: int = 0, is_damaged: bool = False) -> PoppedMessage:
    stored = StoredMessage(
        "T", b"x", 0, queue_offset, 0, 1, HOST, 2, HOST, reconsume_times=retries, body_crc=crc(b"x")
    )
    record = bytearray(records.encode(stored))
    if is_damaged:
        record[4:8] = bytes(4)
    message = PoppedMessage(bytes(record), "b")
    handle = Handle(queue_offset, NOW_MS, HELD_MS, 0, "0", "b", 0, queue_offset)
    message.hold("T", handle, NOW_MS, 0)
    return message


class Broker:
    """Records acknowledgements and changes; replaces all parts that send requests to brokers."""

    retries_max = 3

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.changed: list[tuple[int, int, bool]] = []
        self.dead: list[int] = []
        self.takes_dead_letters = True
        self.done_count = 0

    def add(self, messages: Sequence[PoppedMessage]) -> None:
        self.acked += [message.queue_offset for message in messages]

    async def change(
        self, message: PoppedMessage, invisible_ms: int, *, is_attempt: bool = True
    ) -> None:
        self.changed.append((message.queue_offset, invisible_ms, is_attempt))

    async def give_up(self, message: ReceivedMessage) -> bool:
        self.dead.append(message.queue_offset)
        return self.takes_dead_letters

    def done(self, source: PopSource, count: int) -> None:
        self.done_count += count


class Subject:
    """A consumption, its line of messages, and the messages that its listener got."""

    def __init__(self, *, is_ordered: bool = False, **settings: Any) -> None:
        self.clock = ManualClock(NOW_MS)
        self.broker = Broker()
        self.handed_out: list[int] = []
        self.failing: set[int] = set()
        self.delay_level = 0
        calls = ListenerCalls(self.listen, 1)
        self.workers = ListenerWorkers[PopLine]("G", calls, RatesByTopic(), self.clock)
        parts: Any = self.broker
        self.consumption = PopConsumption(
            ConsumerConfig(pop_invisible_ms=HELD_MS, **settings), parts, parts, parts,
            self.workers, parts, FailedMessages("G", RatesByTopic(), self.clock),
            is_ordered=is_ordered, clock=self.clock,
        )  # fmt: skip
        self.line = PopLine(PopSource(ANY), ANY)

    async def listen(
        self, messages: list[ReceivedMessage], context: ConsumeContext
    ) -> ConsumeResult:
        context.delay_level = self.delay_level
        self.handed_out += [message.queue_offset for message in messages]
        is_bad = self.failing.intersection(message.queue_offset for message in messages)
        return ConsumeResult.LATER if is_bad else ConsumeResult.SUCCESS

    async def consume(self, *messages: PoppedMessage) -> Broker:
        self.line.waiting.extend(messages)
        while self.line.waiting:
            await self.consumption.consume(self.line)
        return self.broker


async def test_each_message_is_acknowledged_or_comes_again() -> None:
    subject = Subject()
    subject.failing = {1}
    broker = await subject.consume(popped(0), popped(1), popped(2))
    assert (subject.handed_out, broker.acked) == ([0, 1, 2], [0, 2])
    assert broker.changed == [(1, 10_000, True)]
    assert broker.done_count == 3


async def test_in_order_messages_after_a_failure_come_again_too() -> None:
    subject = Subject(is_ordered=True, suspend_current_queue_time_ms=700)
    subject.failing = {1}
    broker = await subject.consume(popped(0), popped(1), popped(2))
    assert (subject.handed_out, broker.acked) == ([0, 1], [0])
    assert broker.changed == [(1, 700, True), (2, 700, False)]
    assert broker.done_count == 3


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_a_message_past_its_invisible_time_is_dropped(is_ordered: bool) -> None:
    subject = Subject(is_ordered=is_ordered)
    late = popped(1)
    late.held_until_ms += 1
    subject.clock.advance(HELD_MS)
    broker = await subject.consume(popped(0), late)
    assert subject.handed_out == ([] if is_ordered else [1])  # no later message overtakes
    assert broker.done_count == 2
    assert broker.changed == []


async def test_a_message_that_waited_is_extended_in_time() -> None:
    subject = Subject()
    subject.clock.advance(HELD_MS - 200)
    timer = subject.consumption._begin_to_hold([popped(0)], [])
    assert timer.when() - asyncio.get_running_loop().time() <= 0.1
    timer.cancel()


@pytest.mark.parametrize("delay_level", [0, -1])
async def test_dead_letters(delay_level: int) -> None:
    subject = Subject()
    subject.failing, subject.delay_level = {0, 1}, delay_level
    young, old = popped(0, retries=1), popped(1, retries=3)
    broker = await subject.consume(young, old)
    assert broker.dead == ([1] if delay_level == 0 else [0, 1])
    assert broker.acked == broker.dead
    assert broker.changed == ([(0, 30_000, True)] if delay_level == 0 else [])


async def test_a_refused_dead_letter_comes_again() -> None:
    subject = Subject()
    subject.broker.takes_dead_letters = False
    subject.failing, subject.delay_level = {1}, -1
    broker = await subject.consume(popped(1, retries=3))
    assert (broker.acked, broker.changed) == ([], [(1, 120_000, True)])


async def test_a_damaged_message_comes_again_after_the_first_delay() -> None:
    subject = Subject()
    subject.failing = {1}
    broker = await subject.consume(popped(1, is_damaged=True))
    assert broker.changed == [(1, 10_000, True)]
