"""Coroutines that are run without a task until they wait for something. Pure."""

from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

_T = TypeVar("_T")


class BegunWork(Coroutine[Any, Any, _T]):
    """The rest of a coroutine whose first step was run: to be made a task.

    Args:
        work: The coroutine.
        awaited: What it waits for, as its first step has returned it.
    """

    def __init__(self, work: Coroutine[Any, Any, _T], awaited: Any) -> None:
        self._work = work
        self._awaited = awaited
        self._is_resumed = False

    def send(self, value: Any) -> Any:
        """Continue; at first return what it waits for."""
        if self._is_resumed:
            return self._work.send(value)
        self._is_resumed = True
        awaited, self._awaited = self._awaited, None
        return awaited

    def throw(self, *error: Any) -> Any:
        """Continue with an error, such as a cancellation."""
        self._is_resumed = True
        try:
            return self._work.throw(*error)
        finally:
            del error  # whose traceback has this frame

    def close(self) -> None:
        """End the coroutine."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, _T]:
        """Refuse: a task runs it."""
        raise TypeError("the rest of a coroutine is for a task")
