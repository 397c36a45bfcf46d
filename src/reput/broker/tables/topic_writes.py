"""Writes topics.json after sends have created topics; their replies wait for it."""

import asyncio
import contextlib

from reput.broker.pending_replies import PendingReplies
from reput.broker.tables.failures import WriteFailures
from reput.broker.tables.writes import write_table
from reput.broker.threads import WorkerThread
from reput.broker.topic.topics import Topics
from reput.clock import Clock
from reput.store.message_store import MessageStore


class TopicWrites:
    """Writes the topics that sends have created, once per turn of the event loop.

    The file is as durable as the messages: under SYNC_FLUSH it is synced to disk.

    Args:
        topics: The topics.
        store: The store.
        pending_replies: The replies that wait.
        clock: The clock.
        failures: Files that cannot be written at present.
    """

    def __init__(
        self,
        topics: Topics,
        store: MessageStore,
        pending_replies: PendingReplies,
        clock: Clock,
        failures: WriteFailures,
    ) -> None:
        self._topics = topics
        self._flusher = store.flusher
        self._pending_replies = pending_replies
        self._clock = clock
        self._failures = failures
        # A separate thread: replies wait for it, and must not wait for other work of the disk.
        self._thread = WorkerThread("reput-topics")
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def are_pending(self) -> bool:
        """True if created topics are missing in the file."""
        return self._topics.written_count < self._topics.made_count

    def write_soon(self) -> None:
        """Write the created topics; to be called on the event loop."""
        if self._is_stopped:
            return  # the broker writes them before it sends the last replies
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="topics")

    async def stop(self) -> None:
        """Stop writing."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.stop()

    async def _run(self) -> None:
        topics = self._topics
        is_durable = self._flusher.is_sync
        try:
            while self.are_pending:
                # the end of this turn, in which other sends may create topics
                await asyncio.sleep(0)
                made_count = topics.made_count
                # The log may have space where the table has none: the failure is recorded and
                # logged, and the table is written again in a second, with all others.
                with contextlib.suppress(Exception):
                    await write_table(
                        topics.table,
                        self._thread,
                        self._clock,
                        self._failures,
                        is_durable=is_durable,
                    )
                topics.written(made_count)
                self._pending_replies.settle()
        except Exception as error:  # noqa: BLE001 - the store's loop retries
            self._failures.add("topics", error)
        else:
            self._failures.clear("topics")
