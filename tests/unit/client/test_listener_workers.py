"""Workers and their line of queues: a queue is in the line at most once, whatever happens."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from reput.client.core.consume_rates import RatesByTopic
from reput.client.core.process_queue import Batch
from reput.client.listener import ConsumeContext, ConsumeResult, ListenerCalls
from reput.client.listener_workers import ListenerWorkers
from reput.client.owned_queues import OwnedQueue
from reput.clock import ManualClock
from reput.format.bodies import MessageQueue

A, B = (MessageQueue("T", "broker-a", queue_id) for queue_id in range(2))


class Consumption:
    """Records the queues that workers bring; no call returns before ``may_end`` is set."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[OwnedQueue] = asyncio.Queue()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def consume(self, owned: OwnedQueue) -> None:
        owned.is_ready = False
        self.came.put_nowait(owned)
        await self.may_end.wait()
        if owned.queue == B:
            raise RuntimeError("for the test")


async def listen(_messages: object, _context: object) -> ConsumeResult:
    return ConsumeResult.LATER


@pytest.fixture
def workers() -> ListenerWorkers[OwnedQueue]:
    return ListenerWorkers[OwnedQueue]("G", ListenerCalls(listen, 1), RatesByTopic(), ManualClock())


@pytest.fixture
async def consumption(workers: ListenerWorkers[OwnedQueue]) -> AsyncIterator[Consumption]:
    """Run one worker and yield the consumption that it calls."""
    consumption = Consumption()
    task = asyncio.create_task(workers.work(consumption.consume))
    yield consumption
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_queue_is_in_line_once(
    workers: ListenerWorkers[OwnedQueue], consumption: Consumption
) -> None:
    a, b = OwnedQueue(A, 0), OwnedQueue(B, 0)
    for owned in (a, b, a):
        workers.line_up(owned)
    assert [await consumption.came.get() for _ in range(2)] == [a, b]
    workers.line_up(a)
    assert await consumption.came.get() is a
    assert consumption.came.empty()


async def test_a_resting_queue_is_not_in_line(
    workers: ListenerWorkers[OwnedQueue], consumption: Consumption
) -> None:
    a, b = OwnedQueue(A, 0), OwnedQueue(B, 0)
    a.is_resting = True
    workers.line_up(a)
    workers.line_up(b)
    assert await consumption.came.get() is b
    assert not a.is_ready


async def test_a_worker_survives_errors(
    workers: ListenerWorkers[OwnedQueue], consumption: Consumption, caplog: pytest.LogCaptureFixture
) -> None:
    workers.line_up(OwnedQueue(B, 0))
    workers.line_up(OwnedQueue(A, 0))
    with caplog.at_level(logging.ERROR):
        assert [(await consumption.came.get()).queue for _ in range(2)] == [B, A]
    assert "consumer group G in " in caplog.text
    assert "for the test" in caplog.text


async def test_a_closing_worker_ends_its_call_and_starts_no_other(
    workers: ListenerWorkers[OwnedQueue],
) -> None:
    consumption = Consumption()
    consumption.may_end.clear()
    task = asyncio.create_task(workers.work(consumption.consume))
    workers.line_up(OwnedQueue(A, 0))
    workers.line_up(OwnedQueue(B, 0))
    await consumption.came.get()
    workers.is_closing = True
    consumption.may_end.set()
    await task
    assert consumption.came.empty()


async def test_is_quiet_is_set_after_the_last_call(
    workers: ListenerWorkers[OwnedQueue],
) -> None:
    context = ConsumeContext(A)
    for _ in range(2):
        assert await workers.call(Batch([], 0), context) is ConsumeResult.LATER
    assert workers.calls_in_flight == 2
    workers.end_call()
    assert not workers.is_quiet.is_set()
    workers.end_call()
    assert workers.is_quiet.is_set()
