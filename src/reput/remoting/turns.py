"""The time that tasks may take in a turn of the event loop: a slice for all of them together.

    task -> take: time is left in this turn -> it continues
                  none is left              -> it waits for a later turn

The tasks of a key, such as a connection, continue in the order in which they began, so that the
first one ends before the next one begins, unless it waits for something else; of the keys, the one
that has used the least time is the next (``FairOrder``). A task asks before each step that may be
costly.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Hashable
from typing import TypeVar

from reput.remoting.fair_order import FairOrder
from reput.remoting.time_slices import SLICE_S, Steps

RELEASED_MAX = 16
"""Tasks that are woken in a turn; if no time is left, they wait again, in their place."""
_LEFT_MAX = 4 * RELEASED_MAX
"""Places of keys whose tasks do not wait that are kept."""

_T = TypeVar("_T")


class Turns:
    """The turns of one event loop.

    Args:
        slice_s: Time of all tasks in a turn, in seconds.
        seconds: The clock of the turns.
        used_seconds: The clock of the time that a task uses, constant while another process runs:
            a busy machine makes no client wait longer than the others. None: that of the turns.
    """

    def __init__(
        self,
        slice_s: float = SLICE_S,
        seconds: Callable[[], float] = time.perf_counter,
        used_seconds: Callable[[], float] | None = None,
    ) -> None:
        self._slice_s = slice_s
        self._seconds = seconds
        self._used_seconds = used_seconds or seconds
        self._deadline: float | None = None  # of this turn; None before the first task asks
        self._waiting: dict[Hashable, list[tuple[int, asyncio.Future[None]]]] = {}
        self._places: dict[Hashable, float] = {}  # of these keys, and of woken ones
        self._tickets = itertools.count(1)
        self._order = FairOrder()
        self._served: tuple[Hashable, float] | None = None  # who works; used before
        self._woken_count = 0
        self._is_scheduled = False

    @property
    def is_over(self) -> bool:
        """True if the time of this turn is used up."""
        if self._deadline is None:
            self._deadline = self._seconds() + self._slice_s
            asyncio.get_running_loop().call_soon(self._end)
            return self._slice_s <= 0
        return self._seconds() >= self._deadline

    def _end(self) -> None:
        self._deadline = None

    async def take(self, key: Hashable) -> int:
        """Begin to work: wait while earlier tasks wait, or no time is left.

        Returns:
            The ticket of the work: its place among that of the key.
        """
        ticket = next(self._tickets)
        if self._waiting or self._woken_count or self.is_over:
            await self._wait(key, ticket)
        return ticket

    async def pause(self, key: Hashable, ticket: int) -> None:
        """Continue to work: wait if no time is left, before later work of the key."""
        if self.is_over:
            await self._wait(key, ticket)

    async def run(self, key: Hashable, ticket: int, steps: Steps[_T]) -> _T:
        """Run a generator, with a pause where necessary; return its value."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                value: _T = end.value
                return value
            await self.pause(key, ticket)

    async def _wait(self, key: Hashable, ticket: int) -> None:
        self._charge()
        while True:
            woken = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting.setdefault(key, []), (ticket, woken))
            self._schedule()
            try:
                await woken
            finally:
                if woken.done() and not woken.cancelled():
                    self._woken_count -= 1
            self._charge()
            if not self.is_over or self._slice_s <= 0:
                self._places.pop(key, None)
                self._order.serve(key)
                self._served = key, self._used_seconds()
                self._schedule()  # so that it is charged for its own time only
                return

    def _charge(self) -> None:
        """Count the time of the task that has worked until now."""
        if self._served is not None:
            key, since = self._served
            self._order.charge(key, self._used_seconds() - since)
            self._served = None

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        """Wake some tasks, which continue in the next turn."""
        self._is_scheduled = False
        self._charge()
        # Before the tasks: one that does not wait may begin the time of this turn after this call.
        asyncio.get_running_loop().call_soon(self._end)
        # In order: a task that is woken after others often finds no time left.
        keys = heapq.nsmallest(RELEASED_MAX, self._waiting, key=self._place)
        count = 0
        while keys and count < RELEASED_MAX:
            for key in list(keys):
                count += self._wake_first(key)
                if key not in self._waiting:
                    keys.remove(key)
        if self._waiting:
            self._schedule()
        elif not self._woken_count:
            self._order = FairOrder()
            self._places.clear()
        if len(self._places) > len(self._waiting) + _LEFT_MAX:  # of cancelled tasks
            self._places = {key: self._place(key) for key in self._waiting}

    def _place(self, key: Hashable) -> float:
        """Return the place of a waiting key: the one that it had when it began to wait."""
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._order.place(key)
        return place

    def _wake_first(self, key: Hashable) -> bool:
        """Wake the first task of a key; return whether it was not cancelled."""
        tasks = self._waiting[key]
        _, woken = heapq.heappop(tasks)
        if not tasks:
            del self._waiting[key]
        if woken.done():
            return False
        woken.set_result(None)
        self._woken_count += 1
        return True
