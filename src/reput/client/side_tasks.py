"""Tasks that run beside everything else and that nobody waits for."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any


class SideTasks:
    """Those that run now. Whoever owns them ends them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()  # The loop alone would not keep them.

    def begin(self, what: Coroutine[Any, Any, None]) -> None:
        """Run something in a task of its own."""
        task = asyncio.create_task(what)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(list(self._running))


async def stop(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end."""
    # But not for the one that asks: a listener may close its own consumer.
    tasks = [task for task in tasks if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
