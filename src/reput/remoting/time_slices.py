"""Long work of a loop in time slices, so that everybody else is served in between.

    on_request -> processor, a generator that yields where it may pause
               -> the first slice at once; what is left goes into the queue
    loop turn  -> one slice of the work at the head of the queue -> everybody else -> ...

However much waits in the queue, it takes one slice of each turn of the loop. Work takes turns: a
long request delays another long one by a slice at a time, and a short one by one slice. Work that
begins comes on top: the first slice of each long request, and one slice of a turn for all that is
``run`` in it.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from reput.errors import ReputError

SLICE_S = 0.005
"""How long work goes on before others get their turn, seconds."""

_T = TypeVar("_T")

Steps = Generator[None, None, _T]
"""Work that yields where others may have their turn."""

Step = Callable[[float], bool]
"""Works until a deadline, seconds of ``time.perf_counter``; returns whether more is left."""


class TimeSlices:
    """The queue of long work of one loop."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self.slice_s = slice_s
        """How long work goes on before others get their turn, seconds."""
        self._queue: deque[Step] = deque()
        self._is_scheduled = False
        self._run_deadline: float | None = None
        """When the slice ends that ``run`` has in this turn; None: it has not begun."""

    def __len__(self) -> int:
        """How many pieces of work are under way."""
        return len(self._queue)

    def deadline(self) -> float:
        """Return when a slice that begins now ends."""
        return time.perf_counter() + self.slice_s

    def add(self, step: Step) -> None:
        """Let work go on in later turns of the loop, until it says that nothing is left."""
        self._queue.append(step)
        self._schedule()

    def run(self, work: Steps[None]) -> None:
        """Run a generator now, and what is left in later turns.

        All that is run in one turn of the loop shares one slice: what comes when that is over waits
        in the queue.
        """
        if self._run_deadline is None:
            self._run_deadline = self.deadline()
            asyncio.get_running_loop().call_soon(self._end_run)
        elif time.perf_counter() >= self._run_deadline:
            self.add(lambda deadline: not advance(work, deadline)[0])
            return
        if not advance(work, self._run_deadline)[0]:
            self.add(lambda deadline: not advance(work, deadline)[0])

    def _end_run(self) -> None:
        self._run_deadline = None

    def _schedule(self) -> None:
        if self._queue and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        if not self._queue:
            return
        step = self._queue.popleft()
        try:
            if step(self.deadline()):
                self._queue.append(step)
        finally:
            self._schedule()


def advance(work: Steps[_T], deadline: float) -> tuple[bool, _T | None]:
    """Run a generator until it returns or the deadline is over.

    Returns:
        Whether it has returned, and what.
    """
    while True:
        try:
            next(work)
        except StopIteration as end:
            return True, end.value
        if time.perf_counter() >= deadline:
            return False, None


def to_the_end(work: Steps[None], run: Callable[[Steps[None]], None]) -> Steps[None]:
    """Run work as a part of other work; if that is closed meanwhile, let ``run`` do the rest.

    Raises:
        Exception: What the work raises, as long as somebody is there who hears of it.
    """
    try:
        for _ in work:
            yield
    except GeneratorExit:
        run(_unheard(work))
        raise


def _unheard(work: Steps[None]) -> Steps[None]:
    with contextlib.suppress(ReputError):  # whoever would be answered is gone
        yield from work


async def run_in_slices(work: Iterable[None], slice_s: float = SLICE_S) -> None:
    """Run work of a task of the loop, and let others have their turn after each slice."""
    deadline = time.perf_counter() + slice_s
    for _ in work:
        if time.perf_counter() >= deadline:
            await asyncio.sleep(0)
            deadline = time.perf_counter() + slice_s


def run_whole(work: Steps[_T]) -> _T:
    """Run a generator to its end at once: for callers that are not on a loop, and tests."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            value: _T = end.value
            return value
