"""Faults of a broker that a test asks for: refused, lost and slow requests, closed connections.

    connection -> FaultyPort -> the broker's port
                      |
                   Faults: which requests fail next

While no fault is planned, a port passes the bytes on. Otherwise it passes decoded requests, which
the fast path does not see.
"""

import asyncio
import enum
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass

from reput.errors import InvalidOption
from reput.format import command as commands
from reput.format.codes import RequestCode, ResponseCode, name_of
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.server import BytesService, LongReply
from reput.remoting.time_slices import run_whole

REQUESTS: Mapping[str, frozenset[int]] = {
    "send": frozenset(
        {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
    ),
    "pull": frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}),
    "pop": frozenset({RequestCode.POP_MESSAGE}),
    "ack": frozenset({RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE}),
    "send-back": frozenset({RequestCode.CONSUMER_SEND_MSG_BACK}),
    "end-transaction": frozenset({RequestCode.END_TRANSACTION}),
    "commit-offset": frozenset({RequestCode.UPDATE_CONSUMER_OFFSET}),
    "heartbeat": frozenset({RequestCode.HEART_BEAT}),
}
"""Kinds of requests that can fail, by name."""

COUNT_MAX = 1_000_000
"""Maximum of a count of requests."""
PLANS_MAX = 1_000
"""Maximum number of faults that wait for their requests."""
DELAY_MS_MAX = 600_000
"""Maximum delay of a request, in ms."""
_DELAYED_MAX = 10_000
"""Maximum number of waiting requests; further requests are served at once."""


class Effect(enum.Enum):
    """A fault that a request causes instead of an ordinary reply."""

    REFUSE = "refuse"
    """The request is refused with an error."""
    DROP = "drop"
    """It is not served, and its connection is closed."""
    LOSE_REPLY = "lose-reply"
    """It is served, and its connection is closed before the reply."""


@dataclass(slots=True)
class _Plan:
    codes: frozenset[int]
    effect: Effect
    left: int
    code: int = ResponseCode.SYSTEM_ERROR
    remark: str = ""


class Faults:
    """The faults that are planned; shared by all ports of a test's brokers."""

    def __init__(self) -> None:
        self.channels: set[Channel] = set()
        """Open connections."""
        self.delayed_count = 0
        """Requests that wait for their delay."""
        self._plans: deque[_Plan] = deque()
        self._delays_ms: dict[str, int] = {}

    @property
    def are_planned(self) -> bool:
        """True if any request may fail or wait."""
        return bool(self._plans or self._delays_ms)

    def refuse_next(self, count: int, code: int, remark: str | None, request: str) -> None:
        """Let the next requests of a kind be refused.

        Args:
            count: Number of requests.
            code: Response code of the replies.
            remark: Text of the replies; by default it names the code.
            request: A key of ``REQUESTS``.

        Raises:
            InvalidOption: An argument is not allowed.
        """
        if not 1 <= code <= 0x7FFF:
            raise InvalidOption("code", code, "a response code from 1 to 32767")
        text = remark or f"{name_of(code)}: this test asked for it"
        self._plan(_Plan(_codes_of(request), Effect.REFUSE, count, code, text))

    def drop_next(self, count: int, request: str, *, is_served: bool) -> None:
        """Let the connections of the next requests of a kind be closed instead of a reply.

        Args:
            count: Number of requests.
            request: A key of ``REQUESTS``.
            is_served: Serve them before, so that only the replies are lost.

        Raises:
            InvalidOption: An argument is not allowed.
        """
        effect = Effect.LOSE_REPLY if is_served else Effect.DROP
        self._plan(_Plan(_codes_of(request), effect, count))

    def slow(self, delay_ms: int, request: str) -> None:
        """Let all requests of a kind wait before they are served, until it is 0.

        Raises:
            InvalidOption: An argument is not allowed.
        """
        _codes_of(request)
        if not 0 <= delay_ms <= DELAY_MS_MAX:
            raise InvalidOption("delay_ms", delay_ms, f"0 to {DELAY_MS_MAX}")
        self._delays_ms.pop(request, None)
        if delay_ms:
            self._delays_ms[request] = delay_ms

    def drop_connections(self) -> int:
        """Close all connections at once; return their number."""
        channels = list(self.channels)
        for channel in channels:
            channel.abort()
        return len(channels)

    def clear(self) -> None:
        """Forget all planned faults."""
        self._plans.clear()
        self._delays_ms.clear()

    def _plan(self, plan: _Plan) -> None:
        if not 1 <= plan.left <= COUNT_MAX:
            raise InvalidOption("count", plan.left, f"1 to {COUNT_MAX}")
        if len(self._plans) == PLANS_MAX:
            raise InvalidOption("count", plan.left, f"at most {PLANS_MAX} faults may wait")
        self._plans.append(plan)

    # Of ports ---------------------------------------------------------------------------------

    def take(self, code: int) -> _Plan | None:
        """Return the next fault of a request and use it up; None if it has no fault."""
        for plan in self._plans:
            if code in plan.codes:
                plan.left -= 1
                if not plan.left:
                    self._plans.remove(plan)
                return plan
        return None

    def delay_ms(self, code: int) -> int:
        """Return the time that a request waits, in ms."""
        if self.delayed_count >= _DELAYED_MAX:
            return 0
        delays = (delay for kind, delay in self._delays_ms.items() if code in REQUESTS[kind])
        return max(delays, default=0)


class FaultyPort:
    """A port of a broker with planned faults.

    Args:
        port: The port without them.
        faults: The faults.
    """

    def __init__(self, port: BytesService, faults: Faults) -> None:
        self._port = port
        self._faults = faults
        self._resumed: Command | None = None

    def on_open(self, channel: Channel) -> None:
        """Register a connection."""
        self._faults.channels.add(channel)
        self._port.on_open(channel)

    def on_bytes(self, channel: Channel, view: memoryview, end: int) -> int:
        """Serve the requests in a buffer; return the position of the first incomplete one."""
        if self._faults.are_planned:
            view = memoryview(bytes(view[:end]))  # the fast path serves only the shared buffer
        return self._port.on_bytes(channel, view, end)

    def on_request(self, channel: Channel, request: Command) -> Command | LongReply | None:
        """Serve a request, or let it fail."""
        if request is self._resumed:
            return self._port.on_request(channel, request)
        plan = self._faults.take(request.code)
        if plan is None:
            delay_ms = self._faults.delay_ms(request.code)
            if not delay_ms:
                return self._port.on_request(channel, request)
            self._faults.delayed_count += 1
            loop = asyncio.get_running_loop()
            loop.call_later(delay_ms / 1000, self._resume, channel, request)
            return None
        if plan.effect is Effect.REFUSE:
            return commands.reply(request, plan.code, plan.remark)
        if plan.effect is Effect.LOSE_REPLY:
            reply = self._port.on_request(channel, request)
            if isinstance(reply, Generator):
                run_whole(reply)
        channel.abort()
        return None

    def on_closed(self, channel: Channel) -> None:
        """Remove a connection."""
        self._faults.channels.discard(channel)
        self._port.on_closed(channel)

    def _resume(self, channel: Channel, request: Command) -> None:
        self._faults.delayed_count -= 1
        self._resumed = request
        try:
            channel.handle(request)
        finally:
            self._resumed = None


def _codes_of(request: str) -> frozenset[int]:
    codes = REQUESTS.get(request)
    if codes is None:
        raise InvalidOption("request", request, ", ".join(REQUESTS))
    return codes
