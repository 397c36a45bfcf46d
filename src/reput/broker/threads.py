"""The threads beside the event loop: for work that waits for the disk."""

import asyncio
import queue
import threading
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


class SyncThread:
    """Makes the log durable, one sync at a time; requests that arrive meanwhile share the next.

    A request and its completion are one thread switch each: for a single send under SYNC_FLUSH the
    switches between threads cost more than the disk.

    Args:
        name: The name of the thread.
        sync: Makes the log durable; called in the thread.
    """

    def __init__(self, name: str, sync: Callable[[], None]) -> None:
        self._name = name
        self._sync = sync
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._is_busy = False
        self._is_requested = False
        self._thread: threading.Thread | None = None

    def start(self, on_synced: Callable[[Exception | None], None]) -> None:
        """Start the thread; to be called on the event loop.

        Args:
            on_synced: Called on the event loop after each sync, with its exception or None.
        """
        self._on_synced = on_synced
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the current sync; ``on_synced`` is not called any more."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._requests.put(False)
            thread.join()

    def request(self) -> None:
        """Request a sync of all puts until now; to be called on the event loop."""
        self._is_requested = True
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        self._is_requested = False
        self._is_busy = True
        self._requests.put(True)

    def _run(self) -> None:
        while self._requests.get():
            problem = None
            try:
                self._sync()
            except Exception as error:  # noqa: BLE001 - the outermost edge of a thread
                problem = error
            self._loop.call_soon_threadsafe(self._end, problem)

    def _end(self, problem: Exception | None) -> None:
        self._is_busy = False
        if self._thread is None:
            return
        if self._is_requested:
            self._begin()  # before the replies are sent: the disk need not wait for that
        self._on_synced(problem)
