"""Tasks that share the time of turns: who continues, and in which order. No time is measured."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from remoting_subject import both_loops
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
