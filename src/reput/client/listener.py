"""What a push consumer calls with messages, and what that may say.

A listener is an async function, or a plain one; plain ones run in threads, so that they may wait.
"""

import asyncio
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from reput.client.message import ReceivedMessage
from reput.format.bodies import MessageQueue

log = logging.getLogger(__name__)


class ConsumeResult(enum.Enum):
    """What became of the messages of a call."""

    SUCCESS = "success"
    """They are done with."""
    LATER = "later"
    """Again, after a while: from the retry topic; of an orderly listener, before all others."""
    COMMIT = "commit"
    """Orderly, without ``auto_commit``: these, and those of the calls before, are done with."""
    ROLLBACK = "rollback"
    """Orderly, without ``auto_commit``: again, back to the last commit."""


@dataclass(slots=True)
class ConsumeContext:
    """What a listener may want to know of its messages' queue, and may decide for this call."""

    queue: MessageQueue
    consumed_count: int | None = None
    """With ``SUCCESS``: only so many from the first on are done with, the others come later."""
    delay_level: int = 0
    """With ``LATER``: when; 0: the broker decides, longer each time; -1: not again, dead letter."""
    suspend_ms: int | None = None
    """Orderly, with ``LATER``: how long the queue rests; as configured if not set."""
    failures: int = 0
    """Orderly: how often the listener has failed with the first message since it was pulled."""
    auto_commit: bool = True
    """Orderly: whether ``SUCCESS`` is a commit."""


Listener = Callable[
    [list[ReceivedMessage], ConsumeContext], ConsumeResult | Awaitable[ConsumeResult]
]


class ListenerCalls:
    """Calls a listener; what it raises or returns by mistake becomes ``LATER``, and a log line.

    Args:
        listener: The user's function.
        thread_count: Most threads for a plain function.
    """

    def __init__(self, listener: Listener, thread_count: int) -> None:
        self._listener = listener
        call = getattr(listener, "__call__", listener)  # noqa: B004 - an object's own method
        self.is_async = inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)
        self._thread_count = thread_count
        self._threads: ThreadPoolExecutor | None = None

    async def call(
        self, messages: list[ReceivedMessage], context: ConsumeContext
    ) -> tuple[ConsumeResult, BaseException | None]:
        """Return what the listener says of messages, and what it raised instead, if it did."""
        try:
            if self.is_async:
                answer = self._listener(messages, context)
            else:
                answer = await self._call_in_thread(messages, context)
            result: object = await answer if inspect.isawaitable(answer) else answer
        except (Exception, asyncio.CancelledError) as error:  # the outermost edge of users' code
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # The consumer closes; else the listener has awaited what was cancelled.
            log.exception(
                "listener failed with %d messages of %s, which come again",
                len(messages),
                context.queue,
            )
            return ConsumeResult.LATER, error
        if isinstance(result, ConsumeResult):
            return result, None
        log.error(
            "listener returned %r for %d messages of %s, which come again; return a ConsumeResult",
            result,
            len(messages),
            context.queue,
        )
        return ConsumeResult.LATER, None

    async def _call_in_thread(
        self, messages: list[ReceivedMessage], context: ConsumeContext
    ) -> ConsumeResult | Awaitable[ConsumeResult]:
        def call() -> ConsumeResult | Awaitable[ConsumeResult]:
            try:
                return self._listener(messages, context)
            except StopIteration as error:  # of a bare next(); no future can hold it
                raise RuntimeError("listener raised StopIteration") from error

        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._thread_count, "reput-consume")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self) -> None:
        """Let the threads end when they have returned; a further call gets new ones."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
