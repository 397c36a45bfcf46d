"""Values that are loaded when they are asked for, and become old."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from reput.clock import Clock
from reput.errors import ReputError
from reput.limits import Limit

RETRY_MS = 1_000
"""Least time between two attempts to load an old value again, in ms."""

V = TypeVar("V")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    loaded_ms: int
    tried_ms: int


class AgingCache(Generic[V]):
    """Values by name: loaded once for all who wait, and again in the background when they are old.

    A value that cannot be loaded again is used until it is too old. A name without a value is not
    remembered: it is asked for each time.

    Args:
        load: Loads a value; None: there is none.
        clock: The clock.
        fresh_ms: Age from which a value is loaded again, in ms.
        kept_ms: Age from which a value is not used any more, in ms.
        count_max: Values at most; the one that was loaded first makes room.
    """

    def __init__(
        self,
        load: Callable[[str], Awaitable[V | None]],
        clock: Clock,
        *,
        fresh_ms: int,
        kept_ms: int,
        count_max: Limit,
    ) -> None:
        self._load = load
        self._clock = clock
        self._fresh_ms = fresh_ms
        self._kept_ms = kept_ms
        self._count_max = count_max
        self._entries: dict[str, _Entry[V]] = {}
        self._loading: dict[str, asyncio.Task[V | None]] = {}

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._entries)

    async def get(self, name: str) -> V | None:
        """Return the value of a key; None if the key has no value.

        Raises:
            ReputError: It cannot be loaded, and none is known that is young enough.
        """
        entry = self._entries.get(name)
        now_ms = self._clock.monotonic_ms()
        if entry is not None:
            age_ms = now_ms - entry.loaded_ms
            if age_ms < self._fresh_ms:
                return entry.value
            if age_ms < self._kept_ms:
                if now_ms - entry.tried_ms >= RETRY_MS:
                    entry.tried_ms = now_ms
                    self._begin(name).add_done_callback(_report)
                return entry.value
        return await asyncio.shield(self._begin(name))

    def forget(self, name: str) -> None:
        """Load a value again when it is asked for the next time."""
        self._entries.pop(name, None)

    async def close(self) -> None:
        """Cancel the running loads."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, name: str) -> "asyncio.Task[V | None]":
        task = self._loading.get(name)
        if task is None:
            task = self._loading[name] = asyncio.ensure_future(self._loaded(name))
            task.add_done_callback(lambda _: self._loading.pop(name, None))
        return task

    async def _loaded(self, name: str) -> V | None:
        value = await self._load(name)
        self._entries.pop(name, None)
        if value is not None:
            if len(self._entries) >= self._count_max.maximum:
                del self._entries[next(iter(self._entries))]
            now_ms = self._clock.monotonic_ms()
            self._entries[name] = _Entry(value, now_ms, now_ms)
        return value


def _report(task: "asyncio.Task[object]") -> None:
    """Log why a value could not be loaded again; only known errors are expected."""
    if task.cancelled() or (error := task.exception()) is None:
        return
    if isinstance(error, ReputError):
        _log.warning("an old value is used: %s", error)
    else:
        _log.error("an old value is used", exc_info=error)
