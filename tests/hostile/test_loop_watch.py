"""The measurement of turns: what servers compute counts, the machine and clients do not."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from hostile import loop_watch
from hostile.loop_watch import TICK_S, Clients, LoopWatch

pytestmark = pytest.mark.hostile

LONG_S = 0.06


def compute(seconds: Callable[[], float] = time.thread_time) -> None:
    """Use a processor, without a pause of the interpreter's lock."""
    end = seconds() + LONG_S
    while seconds() < end:
        sum(range(10_000))


def sleep() -> None:
    """Use no processor, as if other processes had it."""
    threading.Event().wait(LONG_S)


@pytest.fixture(autouse=True)
def steady_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the processor for as fast as ever: turns are divided by its slowness."""
    monkeypatch.setattr(loop_watch, "slowness", lambda: 1.0)


async def longest_s(act: Callable[[], object], clients: list[threading.Thread]) -> float:
    """Return the longest turn of the loop, in s, when it calls a function."""
    watch = LoopWatch(Clients(clients).cpu_s)
    await asyncio.sleep(2 * TICK_S)
    act()
    await asyncio.sleep(2 * TICK_S)
    watch.end()
    return max((stall.stall for stall in watch.take().stalls), default=0.0)


async def test_a_turn_counts_by_its_cpu_time() -> None:
    assert await longest_s(compute, []) > 0.9 * LONG_S
    assert await longest_s(sleep, []) < 0.5 * LONG_S


@pytest.mark.parametrize("is_client", [False, True])
async def test_a_thread_that_computes_meanwhile_counts_unless_it_is_a_client(
    is_client: bool,
) -> None:
    begun, ended, over = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.wait()
        compute()
        ended.set()
        over.wait()

    def wait_for_it() -> None:
        begun.set()
        ended.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        seen_s = await longest_s(wait_for_it, [thread] if is_client else [])
    finally:
        over.set()
        thread.join()
    assert (seen_s < 0.5 * LONG_S) if is_client else (seen_s > 0.9 * LONG_S)


async def test_memory_that_is_free_again_was_used() -> None:
    watch = LoopWatch(Clients([]).cpu_s)
    watch.count_memory_from_now()
    held = bytearray(64 << 20)
    held[::4096] = bytes(len(held[::4096])).replace(b"\0", b"x")
    while not watch.seen.memory_most:
        await asyncio.sleep(TICK_S)
    del held
    watch.end()
    seen = watch.take()
    assert seen.memory_most - seen.memory_first > 60 << 20
