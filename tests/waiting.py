"""Waiting for what tasks, threads and processes do: it leaves them the processor.

A loop that only asks again takes the time that the others need, in this worker and in the next.
"""

import asyncio
import threading
import time
from collections.abc import Callable

GUARD_S = 60
"""Time that ends a hanging test, in s; none is expected to take so long."""
TURNS = 200
"""Turns of the loop without a pause: most conditions are the work of its other tasks."""
PAUSE_S = 0.002

_NEVER = threading.Event()


async def until(is_done: Callable[[], object]) -> None:
    """Wait until other tasks, or threads, have made a condition true."""
    turns = 0
    async with asyncio.timeout(GUARD_S):
        while not is_done():
            turns += 1
            await asyncio.sleep(0 if turns < TURNS else PAUSE_S)


def wait_until(
    is_done: Callable[[], object], explain: Callable[[], object] = str, guard_s: float = GUARD_S
) -> None:
    """Wait until other threads, or processes, have made a condition true.

    Args:
        is_done: The condition.
        explain: Returns what the error shows.
        guard_s: Time after which it fails, in s.
    """
    deadline = time.monotonic() + guard_s
    while not is_done():
        assert time.monotonic() < deadline, explain()
        _NEVER.wait(PAUSE_S)
