"""Background tasks that no caller awaits."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any


class SideTasks:
    """Running tasks. Their owner stops them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()  # The loop alone keeps only weak references.

    def begin(self, what: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine as a task."""
        task = asyncio.create_task(what)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(list(self._running))


async def stop(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end."""
    # Except the calling task: a listener may close its own consumer.
    tasks = [task for task in tasks if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
