"""Long work of an event loop in time slices, so that other requests are served in between.

    on_request -> processor, a generator that yields where it can pause
               -> the first slice at once; the rest is queued
    loop turn  -> one slice, for the work at the head of the queue -> other callbacks -> ...

However long the queue is, it takes one slice of each turn of the event loop. Addresses take turns;
of each, the connection that has used the least time is the next (``FairOrder``): a long request
delays another long one by a slice at a time, and a short one by one slice, however many there are.
New work is additional: all that begins in a turn has one slice together (``turn_deadline``), and
what has no part of it is queued.
"""

import asyncio
import contextlib
import heapq
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import TypeVar

from reput.errors import ReputError
from reput.remoting.fair_order import FairOrder

SLICE_S = 0.003
"""Time slice, in seconds."""

_T = TypeVar("_T")

Steps = Generator[None, None, _T]
"""Work that yields where it can pause."""

Step = Callable[[float], bool]
"""Works until a deadline, by the clock of the slices; returns True if more is left."""


class _AddressWork:
    """The work of an address."""

    def __init__(self, used_seconds: Callable[[], float]) -> None:
        self._used_seconds = used_seconds
        self._order = FairOrder()
        self._numbers = itertools.count()
        self._work: list[tuple[float, int, Hashable, Step]] = []  # a heap
        self._served: Hashable = None
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._work)

    def add(self, key: Hashable, step: Step) -> None:
        if key == self._served:  # its rest, after the time that it has used
            self._charge()
        place = self._order.place(key)
        heapq.heappush(self._work, (place, next(self._numbers), key, step))

    def advance(self, deadline: float) -> None:
        """Run a step of the key whose turn it is; add it again if more is left."""
        _, _, key, step = heapq.heappop(self._work)
        self._order.serve(key)
        self._served, self._since = key, self._used_seconds()
        try:
            if step(deadline):
                self.add(key, step)
            else:
                self._charge()
        finally:
            self._served = None

    def _charge(self) -> None:
        now = self._used_seconds()
        self._order.charge(self._served, now - self._since)
        self._since = now


class TimeSlices:
    """The queue of long work of one event loop.

    Args:
        slice_s: Time slice, in seconds.
        seconds: The clock of the slices.
        used_seconds: The clock of the time that each connection uses, constant while another
            process runs. None: that of the slices.
    """

    def __init__(
        self,
        slice_s: float = SLICE_S,
        seconds: Callable[[], float] = time.perf_counter,
        used_seconds: Callable[[], float] | None = None,
    ) -> None:
        self.slice_s = slice_s
        """Time slice, in seconds."""
        self.seconds = seconds
        """The clock of the slices."""
        self._used_seconds = used_seconds or seconds
        self._queues: OrderedDict[str, _AddressWork] = OrderedDict()  # by address, in turn
        self._is_scheduled = False
        self._run_deadline: float | None = None
        """End of the slice of new work in this turn; None if it has not begun."""

    def __len__(self) -> int:
        """Return the number of queued pieces of work."""
        return sum(map(len, self._queues.values()))

    def deadline(self) -> float:
        """Return the end of a slice that begins now."""
        return self.seconds() + self.slice_s

    def add(self, step: Step, address: str = "", key: Hashable = None) -> None:
        """Run a step in later turns of the loop, until it returns False.

        Args:
            step: The step.
            address: The client's address; empty for work of the server itself.
            key: The connection; None: no other work has the same one.
        """
        queue = self._queues.get(address)
        if queue is None:
            queue = self._queues[address] = _AddressWork(self._used_seconds)
        queue.add(step if key is None else key, step)
        self._schedule()

    def run(self, work: Steps[None]) -> None:
        """Run a generator now, and the rest in later turns.

        All calls in one turn of the loop share one slice; when it is over, further work is queued.
        """
        deadline = self.turn_deadline()
        if deadline is None or not advance(work, deadline, self.seconds)[0]:
            self.add(lambda deadline: not advance(work, deadline, self.seconds)[0])

    def turn_deadline(self) -> float | None:
        """Return the end of the slice for new work in this turn of the loop; None if it is over."""
        if self._run_deadline is None:
            self._run_deadline = self.deadline()
            asyncio.get_running_loop().call_soon(self._end_run)
        elif self.seconds() >= self._run_deadline:
            return None
        return self._run_deadline

    def _end_run(self) -> None:
        self._run_deadline = None

    def _schedule(self) -> None:
        if self._queues and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        deadline = self.deadline()
        try:
            # Short work shares the slice; otherwise each piece would wait for a separate turn.
            while self._queues:
                self._advance_first(deadline)
                if self.seconds() >= deadline:
                    break
        finally:
            self._schedule()

    def _advance_first(self, deadline: float) -> None:
        """Run a step of the address whose turn it is."""
        address = next(iter(self._queues))
        queue = self._queues[address]
        self._queues.move_to_end(address)
        try:
            queue.advance(deadline)
        finally:
            if not queue:
                del self._queues[address]


def advance(
    work: Steps[_T], deadline: float, seconds: Callable[[], float] = time.perf_counter
) -> tuple[bool, _T | None]:
    """Run a generator until it returns or the deadline has passed, by the clock of its slices.

    Returns:
        Whether it has returned, and its value.
    """
    while True:
        try:
            next(work)
        except StopIteration as end:
            return True, end.value
        if seconds() >= deadline:
            return False, None


def to_the_end(work: Steps[None], run: Callable[[Steps[None]], None]) -> Steps[None]:
    """Run work as a part of other work; if that is closed, ``run`` completes it.

    Raises:
        Exception: Errors of the work, while the caller is not closed.
    """
    try:
        for _ in work:
            yield
    except GeneratorExit:
        run(_unheard(work))
        raise


def _unheard(work: Steps[None]) -> Steps[None]:
    with contextlib.suppress(ReputError):  # there is no client to report it to
        yield from work


async def run_in_slices(
    work: Iterable[None],
    slice_s: float = SLICE_S,
    seconds: Callable[[], float] = time.perf_counter,
) -> None:
    """Run work in a task of the event loop, and let other tasks run after each slice."""
    deadline = seconds() + slice_s
    for _ in work:
        if seconds() >= deadline:
            await asyncio.sleep(0)
            deadline = seconds() + slice_s


def run_whole(work: Steps[_T]) -> _T:
    """Run a generator to its end at once: for callers that are not on a loop, and tests."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            value: _T = end.value
            return value
