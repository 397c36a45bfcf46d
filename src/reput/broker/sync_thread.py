"""Makes the log durable in a thread of its own, for those whose replies wait for it.

It is asked and answers in one step each: of what a lone send costs under SYNC_FLUSH, the hops
between threads are more than the disk.
"""

import asyncio
import queue
import threading
from collections.abc import Callable


class SyncThread:
    """Runs one sync at a time; all who ask meanwhile share the next one.

    Args:
        sync: What makes durable; called in the thread.
        on_synced: Called on the loop after each sync, with what it raised.
    """

    def __init__(
        self, sync: Callable[[], None], on_synced: Callable[[Exception | None], None]
    ) -> None:
        self._sync = sync
        self._on_synced = on_synced
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._is_busy = False
        self._is_wanted = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start it; on the loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="reput-sync", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; a sync that is under way is waited for, and nobody hears of it any more."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._requests.put(False)
            thread.join()

    def ask(self) -> None:
        """Have everything made durable that was put up to now; on the loop."""
        self._is_wanted = True
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        self._is_wanted = False
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
        if self._is_wanted:
            self._begin()  # before the replies leave: the disk need not wait for them
        self._on_synced(problem)
