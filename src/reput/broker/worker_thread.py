"""A thread for what waits for the disk, so that the loop does not."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


class WorkerThread:
    """A thread that runs one action after the other.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, action: Callable[[], _T]) -> _T:
        """Run an action in the thread; return its result, or raise its error."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, action)

    def stop(self) -> None:
        """Finish the actions that were begun, and end the thread."""
        self._executor.shutdown(wait=True)
