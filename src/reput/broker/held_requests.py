"""Long polling: holds pulls and pops that found nothing until a message arrives.

A request is held at a queue until it can be answered or its deadline is over. Times are monotonic
ms.
"""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from reput.broker import limits
from reput.broker.access.access import Grant
from reput.broker.filter.selection import Selection
from reput.broker.quotas import AddressQuota
from reput.errors import ReputError
from reput.format import command as commands
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import PullMessageHeader
from reput.remoting.channel import Channel
from reput.remoting.time_slices import Steps, run_whole

Queue = tuple[str, int]
"""Topic and queue id."""
WaitPlace = tuple[str, int | str]
"""Topic and queue id, or topic and group: any queue of the topic."""


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that is held."""

    channel: Channel
    request: Command
    """The request without header and body."""
    header: PullMessageHeader
    """The header without its subscription."""
    selection: Selection
    queue_offset: int
    """The first queue offset that was not examined yet."""
    deadline_ms: int
    find_reply: Callable[["HeldPull", bool], Command | None]
    """Returns the reply to this pull if there is one; in any case if the argument is True."""
    grant: Grant | None = None
    """Permission that the request was granted; None without access control."""
    is_over: bool = False
    """True once it was answered or its connection was closed."""

    def retry(self, *, is_last: bool) -> Command | None:
        """Return the reply; None if there is none yet."""
        return self.find_reply(self, is_last)

    @property
    def bytes_about(self) -> int:
        """Approximate memory of its selection, in bytes."""
        return self.selection.bytes_about

    @property
    def places(self) -> tuple[Queue]:
        """Queue that the request waits for."""
        return ((self.header.topic, self.header.queue_id),)

    @property
    def key(self) -> None:
        """None: each pull has its own offset."""
        return


class Held(Protocol):
    """A request that is held."""

    is_over: bool

    def retry(self, *, is_last: bool) -> Command | None:
        """Return the reply if there is one: in any case if ``is_last``.

        Raises:
            ReputError: The request is refused, which is a reply, too.
        """

    @property
    def channel(self) -> Channel:
        """The connection that gets the reply."""

    @property
    def request(self) -> Command:
        """The envelope of the request: ``command.envelope``."""

    @property
    def bytes_about(self) -> int:
        """The approximate memory of its filter, bytes."""

    @property
    def places(self) -> Sequence[WaitPlace]:
        """The places whose messages can answer it."""

    @property
    def deadline_ms(self) -> int:
        """The time of the last reply, monotonic ms."""

    @property
    def key(self) -> Hashable | None:
        """A value shared by requests that find the same messages; None if there is none."""


_RETRY_UNREAD_S = 0.005
"""The interval of retries for connections with unread replies, seconds."""

_Held = TypeVar("_Held", bound=Held)
_log = logging.getLogger(__name__)


def _answer(held: Held, *, is_last: bool) -> bool:
    """Send the reply of a held request, or its error; return False if there is none yet."""
    try:
        reply = held.retry(is_last=is_last)
    except ReputError as error:
        code, fields = error.code_for(held.request.version), error.reply_fields
        reply = commands.reply(held.request, code, str(error), fields)
    except Exception as error:  # noqa: BLE001 - the outermost edge of a request
        _log.exception("a held request of %s failed", held.channel.peer)
        text = f"{type(error).__name__}: {error}"
        reply = commands.reply(held.request, ResponseCode.SYSTEM_ERROR, text)
    if reply is None:
        return False
    held.channel.answer(held.request, reply)
    return True


class HeldRequests(Generic[_Held]):
    """Holds requests at their places, in order of arrival.

    A connection that does not read its replies gets no more of them, as unread replies cost memory.
    Its requests are retried when it reads.

    Args:
        count_max: The largest number of requests.
        run: Runs work that may take long in time slices.
        per_connection_max: The largest number of requests of one connection.
        per_address_max: The largest number of requests of the connections from one address.
        bytes_max: The largest sum of ``bytes_about``.
    """

    def __init__(
        self,
        count_max: int,
        run: Callable[[Steps[None]], None] = run_whole,
        *,
        per_connection_max: int = limits.HELD_PER_CONNECTION.maximum,
        per_address_max: int = limits.HELD_PER_ADDRESS.maximum,
        bytes_max: int = limits.HELD_BYTES.maximum,
    ) -> None:
        self._count_max = count_max
        self._run = run
        self._per_connection_max = per_connection_max
        self._per_address_max = per_address_max
        self._bytes_max = bytes_max
        self._by_address = AddressQuota()
        self._by_place: dict[WaitPlace, dict[_Held, None]] = {}  # in order of arrival
        self._by_channel: dict[Channel, dict[_Held, None]] = {}  # in order of arrival
        self._unread: dict[_Held, None] = {}
        """Requests whose connections have unread replies."""
        self._woken: dict[WaitPlace, None] = {}
        """Places whose requests will be retried; once each, however often they were woken."""
        self._is_serving = False
        self._deadlines: list[tuple[int, int, _Held]] = []
        self._numbers = itertools.count()
        self.count = 0
        """Number of held requests."""
        self._bytes = 0

    def __len__(self) -> int:
        return self.count

    def hold(self, held: _Held) -> bool:
        """Hold a request; return False if a limit is reached."""
        channel = held.channel
        if (
            self.count >= self._count_max
            or len(self._by_channel.get(channel, ())) >= self._per_connection_max
            or self._by_address.used(channel.address) >= self._per_address_max
            or self._bytes + held.bytes_about > self._bytes_max
        ):
            return False
        self.count += 1
        self._bytes += held.bytes_about
        self._by_address.add(channel.address)
        for place in held.places:
            self._by_place.setdefault(place, {})[held] = None
        self._by_channel.setdefault(channel, {})[held] = None
        heapq.heappush(self._deadlines, (held.deadline_ms, next(self._numbers), held))
        return True

    def held_at(self, topic: str, queue_id: int) -> list[_Held]:
        """Return the requests at a queue, in order of arrival."""
        return list(self._by_place.get((topic, queue_id), ()))

    def wake(self, topic: str, queue_or_group: int | str) -> None:
        """Try to answer the requests at a place.

        This happens at once unless requests are being retried. Otherwise the place is queued;
        however often it is woken meanwhile, it is processed once.
        """
        place = topic, queue_or_group
        if place not in self._by_place:
            return
        self._woken[place] = None
        if not self._is_serving:
            self._is_serving = True
            self._run(self._serve_woken())

    def _serve_woken(self) -> Steps[None]:
        try:
            while self._woken:
                place = next(iter(self._woken))
                del self._woken[place]
                yield from self._serve_place(place)
        finally:
            self._is_serving = False

    def _serve_place(self, place: WaitPlace) -> Steps[None]:
        # Thousands of requests may wait for one message: if a request finds nothing, others with
        # the same key do not either.
        failed_keys: set[Hashable] = set()
        for held in list(self._by_place[place]):
            key = held.key
            if held.is_over or (key is not None and key in failed_keys):
                continue
            if not held.channel.takes_notices:
                self._wait_for_reader(held)
            elif not self._try(held) and key is not None:
                failed_keys.add(key)
            yield

    def _try(self, held: _Held) -> bool:
        is_answered = _answer(held, is_last=False)
        if is_answered and not held.is_over:
            self._end(held)
        return is_answered

    def _wait_for_reader(self, held: _Held) -> None:
        """Retry a request once its connection has read its replies."""
        if not self._unread:
            loop = asyncio.get_running_loop()
            loop.call_later(_RETRY_UNREAD_S, lambda: self._run(self.retry_unread()))
        self._unread[held] = None

    def retry_unread(self) -> Steps[None]:
        """Retry the requests whose connections have read their replies in the meantime."""
        for held in list(self._unread):
            if not held.is_over and held.channel.takes_notices:
                self._unread.pop(held, None)
                self._try(held)
            yield

    def retry_all(self) -> Steps[None]:
        """Try to answer all requests, as their permissions may have changed."""
        for held in [held for of_channel in self._by_channel.values() for held in of_channel]:
            if not held.is_over and held.channel.takes_notices:
                self._try(held)
            yield

    def expire(self, now_ms: int) -> Steps[None]:
        """Answer the requests whose deadline has passed."""
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now_ms or deadlines[0][2].is_over):
            _, _, held = heapq.heappop(deadlines)
            if held.is_over:
                continue
            is_unread = held in self._unread
            self._end(held)
            # A client that does not read its replies gets none: it sends the request again.
            if not is_unread or held.channel.takes_notices:
                _answer(held, is_last=True)
                yield

    def left_ms(self, now_ms: int, most_ms: int) -> int:
        """Return the time until the next deadline, 1 to ``most_ms``."""
        if not self._deadlines:
            return most_ms
        return min(max(self._deadlines[0][0] - now_ms, 1), most_ms)

    def forget(self, channel: Channel) -> None:
        """Drop the requests of a connection."""
        for held in list(self._by_channel.get(channel, ())):
            self._end(held)

    def answer_all(self) -> None:
        """Answer all requests as at their deadlines, at shutdown."""
        for held in [held for of_channel in self._by_channel.values() for held in of_channel]:
            self._end(held)
            _answer(held, is_last=True)

    def _end(self, held: _Held) -> None:
        held.is_over = True
        self.count -= 1
        self._bytes -= held.bytes_about
        self._by_address.release(held.channel.address)
        self._unread.pop(held, None)
        for place in held.places:
            at_place = self._by_place[place]
            del at_place[held]
            if not at_place:
                del self._by_place[place]
                self._woken.pop(place, None)
        of_channel = self._by_channel[held.channel]
        of_channel.pop(held, None)
        if not of_channel:
            del self._by_channel[held.channel]
        # Finished requests stay in the heap until their deadline, at most as many as the others.
        if len(self._deadlines) > 64 and len(self._deadlines) > 2 * self.count:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].is_over]
            heapq.heapify(self._deadlines)
