"""A thread for blocking disk operations, which would otherwise block the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


class WorkerThread:
    """A thread that runs one action at a time.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, action: Callable[[], _T]) -> _T:
        """Run an action in the thread; return its result, or raise its error."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, action)

    def stop(self) -> None:
        """Finish the actions that were started, and end the thread."""
        self._executor.shutdown(wait=True)
