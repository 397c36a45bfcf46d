"""Tasks that share the time of turns: who continues, and in which order. No time is measured."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from remoting_subject import both_loops
from reput.grpc.http2.begun_work import BegunWork
from reput.remoting.time_slices import Steps
from reput.remoting.turns import RELEASED_MAX, Turns

NO_TIME, MUCH_TIME = 0.0, 3_600.0
"""Slices that are over at once, so that each step takes a turn; and that never are."""


async def settled(is_done: Callable[[], object]) -> int:
    """Let the loop turn until something is done; return the number of turns."""
    for number in range(10_000):
        if is_done():
            return number
        await asyncio.sleep(0)
    raise AssertionError("it is never done")


def begun(work: Coroutine[Any, Any, int]) -> "asyncio.Task[int]":
    """Run work as a call of gRPC: it becomes a task when it waits."""
    return asyncio.ensure_future(BegunWork(work, work.send(None)))


def tasks(*work: Awaitable[object]) -> list["asyncio.Future[object]"]:
    return [asyncio.ensure_future(each) for each in work]


@both_loops
async def test_no_caller_waits_while_there_is_time() -> None:
    turns = Turns(MUCH_TIME)
    done: list[int] = []

    async def work(number: int) -> None:
        ticket = await turns.take("a")
        await turns.pause("a", ticket)
        done.append(number)

    running = tasks(*map(work, range(1_000)))
    assert await settled(lambda: len(done) == 1_000) == 1
    assert done == list(range(1_000))
    await asyncio.gather(*running)


@both_loops
async def test_work_of_a_key_keeps_its_order_and_keys_take_turns() -> None:
    turns = Turns(NO_TIME)
    done: list[str] = []

    async def work(key: str, number: int) -> None:
        await turns.take(key)
        done.append(f"{key}{number}")

    many = [work("many", number) for number in range(300)]
    running = tasks(*many, work("one", 0), work("other", 0))
    await asyncio.gather(*running)
    assert [name for name in done if name.startswith("many")] == [f"many{n}" for n in range(300)]
    assert max(done.index("one0"), done.index("other0")) < RELEASED_MAX


def ticking(slice_s: float) -> Turns:
    """Return turns whose clock is a second later each time that it is read."""
    ticks = itertools.count()
    return Turns(slice_s, lambda: float(next(ticks)))


@both_loops
async def test_begun_work_ends_before_later_work_of_its_key() -> None:
    turns = ticking(slice_s=4.0)  # some steps in each turn
    done: list[tuple[str, int]] = []

    async def work(key: str, number: int) -> None:
        def steps() -> Steps[str]:
            for _ in range(10):
                done.append((key, number))
                yield
            return "value"

        ticket = await turns.take(key)
        assert await turns.run(key, ticket, steps()) == "value"

    await asyncio.gather(*tasks(*(work(key, number) for number in range(3) for key in "ab")))
    for key in "ab":
        numbers = [number for name, number in done if name == key]
        assert numbers == [0] * 10 + [1] * 10 + [2] * 10
    assert {key for key, _ in done[:20]} == {"a", "b"}


@both_loops
async def test_short_work_is_served_beside_long_work() -> None:
    turns = ticking(slice_s=4.0)
    steps_done = 0

    async def long_work() -> None:
        nonlocal steps_done
        ticket = await turns.take("long")
        for _ in range(1_000):
            steps_done += 1
            await turns.pause("long", ticket)

    running = tasks(*(long_work() for _ in range(30)))
    await settled(lambda: steps_done > 100)
    await turns.take("short")
    assert steps_done < 200
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@both_loops
async def test_keys_that_use_little_are_served_before_those_that_use_much() -> None:
    """Each of 30 busy connections had a turn before each small call of another one."""
    clock = Clock()
    turns = Turns(slice_s=4.0, seconds=clock)
    slices_used = 0

    async def busy(number: int) -> None:
        nonlocal slices_used
        while True:  # one call after the other, of a slice each
            ticket = await turns.take(number)
            clock.now_s += 4.0
            slices_used += 1
            await turns.pause(number, ticket)

    running = tasks(*(busy(number) for number in range(30)))
    await settled(lambda: slices_used > 90)
    waits = []
    for _ in range(20):
        before = slices_used
        await turns.take("small")
        clock.now_s += 0.01
        waits.append(slices_used - before)
        await asyncio.sleep(0)
    assert max(waits) <= 3
    before = slices_used
    await settled(lambda: slices_used > before + 60)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@both_loops
async def test_the_time_of_other_processes_is_not_charged() -> None:
    """A client that was served while the machine was busy waited for a second afterwards."""
    clock, used = Clock(), Clock()
    turns = Turns(slice_s=4.0, seconds=clock, used_seconds=used)
    slices_used = 0

    async def busy(number: int) -> None:
        nonlocal slices_used
        while True:
            ticket = await turns.take(number)
            clock.now_s += 4.0
            used.now_s += 4.0
            slices_used += 1
            await turns.pause(number, ticket)

    running = tasks(*(busy(number) for number in range(30)))
    await settled(lambda: slices_used > 90)
    waits = []
    for _ in range(20):
        before = slices_used
        await turns.take("small")
        clock.now_s += 100.0  # another process runs
        used.now_s += 0.01
        waits.append(slices_used - before)
        await asyncio.sleep(0)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert max(waits) <= 3


@both_loops
@pytest.mark.parametrize("as_task", [asyncio.ensure_future, begun], ids=["task", "begun work"])
async def test_time_without_waiting_calls_is_not_charged(
    as_task: Callable[[Coroutine[Any, Any, int]], "asyncio.Future[int]"],
) -> None:
    """The last one that had waited paid for the time after it, and then waited for seconds."""
    clock = Clock()
    turns = Turns(slice_s=4.0, seconds=clock)
    slices_used = 0

    async def busy(number: int) -> None:
        nonlocal slices_used
        while True:
            ticket = await turns.take(number)
            clock.now_s += 4.0
            slices_used += 1
            await turns.pause(number, ticket)

    await turns.take("first")
    clock.now_s += 4.0
    await as_task(turns.take("small"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    clock.now_s += 1_000.0  # the loop is idle, or does other work
    running = tasks(*(busy(number) for number in range(30)))
    await settled(lambda: slices_used > 90)
    before = slices_used
    await turns.take("small")
    assert slices_used - before <= 3
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@both_loops
async def test_work_that_does_not_wait_leaves_the_time_of_the_next_turn() -> None:
    """Tasks waited for a second: each turn's time was over that of another task before began."""
    clock = Clock()
    turns = Turns(slice_s=1.0, seconds=clock)
    served = 0

    async def beside() -> None:
        while True:
            assert turns.is_over in (True, False)  # as a task that looks whether to pause
            clock.now_s += 2.0
            await asyncio.sleep(0)

    async def work(key: str) -> None:
        nonlocal served
        await turns.take(key)
        served += 1
        clock.now_s += 0.1

    others = tasks(beside(), beside())
    await asyncio.sleep(0)
    running = tasks(*(work(key) for key in "abcde"))
    await asyncio.sleep(0)
    late = tasks(beside())
    try:
        assert await settled(lambda: served == 5) < 20
    finally:
        for task in (*others, *running, *late):
            task.cancel()
        await asyncio.gather(*others, *running, *late, return_exceptions=True)


class Clock:
    """A clock that work moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@both_loops
async def test_cancelled_work_makes_room() -> None:
    turns = Turns(NO_TIME)
    done: list[int] = []

    async def work(number: int) -> None:
        await turns.take("a")
        done.append(number)

    running = tasks(*map(work, range(100)))
    await asyncio.sleep(0)
    for task in running[:60]:
        task.cancel()
    await asyncio.sleep(0)
    running[60].cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert done == list(range(61, 100))
    done.clear()
    await asyncio.gather(*tasks(*map(work, range(5))))
    assert done == list(range(5))
