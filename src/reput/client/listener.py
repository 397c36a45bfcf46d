"""The listener of a push consumer: its results and context.

A listener is an async or a plain function; plain functions run in threads, so that they may block.
One that returns nothing has consumed its messages; one that raises gets them again.
"""

import asyncio
import contextvars
import enum
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from reput.client.message import ReceivedMessage
from reput.errors import InvalidOption
from reput.format.bodies import MessageQueue

log = logging.getLogger(__name__)


class ConsumeResult(enum.Enum):
    """Result of a call of the listener."""

    SUCCESS = "success"
    """The messages are consumed."""
    LATER = "later"
    """Deliver the messages again later: from the retry topic; orderly, before other messages."""
    COMMIT = "commit"
    """Orderly, without ``auto_commit``: these and the uncommitted earlier messages are consumed."""
    ROLLBACK = "rollback"
    """Orderly, without ``auto_commit``: deliver again from the last commit."""


@dataclass(slots=True)
class ConsumeContext:
    """Context of a listener's call: the queue, and options that the listener may set."""

    queue: MessageQueue
    consumed_count: int | None = None
    """Number of consumed messages, from the first, with ``SUCCESS``; the others are delivered
    again."""
    delay_level: int = 0
    """Delay level with ``LATER``; 0: chosen by the broker, increasing; -1: dead letter at once."""
    suspend_ms: int | None = None
    """Orderly, with ``LATER``: pause of the queue in ms; None: as configured."""
    failures: int = 0
    """Orderly: number of failures with the first message since it was pulled."""
    auto_commit: bool = True
    """Orderly: whether ``SUCCESS`` commits."""


Listener = Callable[
    [list[ReceivedMessage], ConsumeContext], ConsumeResult | Awaitable[ConsumeResult | None] | None
]
"""Function that consumes messages; None counts as ``SUCCESS``."""


class ListenerCalls:
    """Calls of a listener; exceptions and invalid results become ``LATER`` and a log line.

    Args:
        listener: The user's function.
        thread_count: Maximum number of threads for a plain function.

    Raises:
        InvalidOption: The listener is no function.
    """

    def __init__(self, listener: Listener, thread_count: int) -> None:
        if not callable(listener):
            raise InvalidOption("listener", listener, "a function of messages and context")
        self._listener = listener
        call = getattr(listener, "__call__", listener)  # noqa: B004 - an object's own method
        self.is_async = inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)
        self._thread_count = thread_count
        self._threads: ThreadPoolExecutor | None = None

    async def call(
        self, messages: list[ReceivedMessage], context: ConsumeContext
    ) -> tuple[ConsumeResult, BaseException | None]:
        """Call the listener; return its result and its exception, if any."""
        try:
            if self.is_async:
                answer = self._listener(messages, context)
            else:
                answer = await self._call_in_thread(messages, context)
            result: object = await answer if inspect.isawaitable(answer) else answer
        except (Exception, asyncio.CancelledError) as error:  # the outermost edge of users' code
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the consumer closes; else the listener's own await was cancelled
            log.exception(
                "listener failed with %d messages of %s",
                len(messages),
                context.queue,
            )
            return ConsumeResult.LATER, error
        if result is None:
            return ConsumeResult.SUCCESS, None
        if isinstance(result, ConsumeResult):
            return result, None
        log.error(
            "listener returned %r for %d messages of %s, which counts as a failure;"
            " return a ConsumeResult, or nothing for SUCCESS",
            result,
            len(messages),
            context.queue,
        )
        return ConsumeResult.LATER, None

    async def _call_in_thread(
        self, messages: list[ReceivedMessage], context: ConsumeContext
    ) -> ConsumeResult | Awaitable[ConsumeResult | None] | None:
        def call() -> ConsumeResult | Awaitable[ConsumeResult | None] | None:
            try:
                return self._listener(messages, context)
            except StopIteration as error:  # from a bare next(); a future cannot hold it
                raise RuntimeError("listener raised StopIteration") from error

        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._thread_count, "reput-consume")
        in_context = functools.partial(contextvars.copy_context().run, call)
        return await asyncio.get_running_loop().run_in_executor(self._threads, in_context)

    def close(self) -> None:
        """End the threads after their calls; a further call starts new threads."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
