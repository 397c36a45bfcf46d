"""Pulls and pops that found nothing and wait for something to arrive: long polling.

Each waits at its queue until a message arrives there that it wants, or until its time is over.
Times are monotonic ms.
"""

import heapq
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from reput.broker.selection import Selection
from reput.errors import ReputError
from reput.format import command as commands
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import PullMessageHeader
from reput.remoting.channel import Channel

Queue = tuple[str, int]
"""Topic and queue id."""


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits."""

    channel: Channel
    request: Command
    header: PullMessageHeader
    selection: Selection
    queue_offset: int
    """Where to look on: messages before it, that came meanwhile, are not wanted."""
    deadline_ms: int
    is_over: bool = False
    """It was answered, or nobody waits for the answer any more."""

    @property
    def queue(self) -> Queue:
        """Where it waits."""
        return self.header.topic, self.header.queue_id


class Held(Protocol):
    """A request that waits at a queue."""

    is_over: bool

    @property
    def channel(self) -> Channel:
        """Who waits."""

    @property
    def request(self) -> Command:
        """For what."""

    @property
    def queue(self) -> Queue:
        """Where."""

    @property
    def deadline_ms(self) -> int:
        """Until when."""


_Held = TypeVar("_Held", bound=Held)
_log = logging.getLogger(__name__)


def answer(held: Held, look: Callable[[], Command | None]) -> bool:
    """Answer a request that waits, if there is an answer now; return whether there was."""
    try:
        found = look()
    except ReputError as error:
        code, fields = error.response_code, error.reply_fields
        found = commands.reply(held.request, code, str(error), fields)
    except Exception as error:  # noqa: BLE001 - the outermost edge of a request
        _log.exception("a request of %s that waited failed", held.channel.peer)
        text = f"{type(error).__name__}: {error}"
        found = commands.reply(held.request, ResponseCode.SYSTEM_ERROR, text)
    if found is None:
        return False
    held.channel.answer(held.request, found)
    return True


class HeldPulls(Generic[_Held]):
    """The requests that wait.

    Args:
        count_max: At most so many.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._by_queue: dict[Queue, list[_Held]] = {}
        self._by_channel: dict[Channel, set[_Held]] = {}
        self._deadlines: list[tuple[int, int, _Held]] = []
        self._numbers = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: _Held) -> bool:
        """Let a pull wait; return whether there was room for it."""
        if self._count >= self._count_max:
            return False
        self._count += 1
        self._by_queue.setdefault(pull.queue, []).append(pull)
        self._by_channel.setdefault(pull.channel, set()).add(pull)
        heapq.heappush(self._deadlines, (pull.deadline_ms, next(self._numbers), pull))
        return True

    def at(self, topic: str, queue_id: int) -> list[_Held]:
        """Return those who wait at a queue, in the order they came."""
        return list(self._by_queue.get((topic, queue_id), ()))

    def waits_at(self, topic: str, queue_id: int) -> bool:
        """Whether somebody waits at a queue."""
        return (topic, queue_id) in self._by_queue

    def wake(self, topic: str, queue_id: int, answers: Callable[[_Held], bool]) -> None:
        """Let those look again who wait at a queue; those that are answered wait no more."""
        waiting = self._by_queue.get((topic, queue_id))
        if waiting is None:
            return
        for pull in list(waiting):
            if not pull.is_over and answers(pull):
                self._end(pull)

    def expire(self, now_ms: int) -> Iterator[_Held]:
        """Yield those whose time is over; they wait no more."""
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now_ms or deadlines[0][2].is_over):
            _, _, pull = heapq.heappop(deadlines)
            if not pull.is_over:
                self._end(pull)
                yield pull

    def left_ms(self, now_ms: int, most_ms: int) -> int:
        """Return how long to wait before the next call of ``expire``; 1 to ``most_ms``."""
        if not self._deadlines:
            return most_ms
        return min(max(self._deadlines[0][0] - now_ms, 1), most_ms)

    def forget(self, channel: Channel) -> None:
        """Drop what a connection waits for."""
        for pull in list(self._by_channel.get(channel, ())):
            self._end(pull)

    def take_all(self) -> list[_Held]:
        """Take out all that wait, as before an end."""
        waiting = [pull for pulls in self._by_channel.values() for pull in pulls]
        for pull in waiting:
            self._end(pull)
        return waiting

    def _end(self, pull: _Held) -> None:
        pull.is_over = True
        self._count -= 1
        at_queue = self._by_queue[pull.queue]
        at_queue.remove(pull)
        if not at_queue:
            del self._by_queue[pull.queue]
        of_channel = self._by_channel[pull.channel]
        of_channel.discard(pull)
        if not of_channel:
            del self._by_channel[pull.channel]
        # Those that were answered early stay in the heap until their time; not more than others.
        if len(self._deadlines) > 64 and len(self._deadlines) > 2 * self._count:
            self._deadlines = [one for one in self._deadlines if not one[2].is_over]
            heapq.heapify(self._deadlines)
