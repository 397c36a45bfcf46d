"""How long an event loop of this process keeps its clients waiting, without the machine's noise.

The loop runs servers in a separate thread; clients are other threads. Beside the servers, a timer
that is late was held up by a turn of the loop, and a ping that waits was held up by several. Of a
wait counts what the servers have caused: the CPU time of this process without that of its clients,
so also that of a thread that holds the interpreter, and that of collections of garbage.

    wait   by the clock, longer on a busy machine
    own    CPU time that the servers have used meanwhile; not more than the wait

CPU time is not free of noise: beside other processes the same work takes several times as much
(shared caches, page faults, a host that takes the CPU away). A long wait is therefore divided by
the slowness of the processor at its end, and ``local_scene.judged`` takes the minimum of some
measurements. A loop that waits for a disk uses no CPU time: the probes of
``make hostile`` see that.
"""

import asyncio
import contextlib
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hostile.call_probe import take_end_of_call
from hostile.calls import Conversation, prefixed
from hostile.servers import Stall

TICK_S = 0.004
PING_S = 0.05
"""Pause between two pings, in s."""
MEMORY_S = 0.02
"""Interval at which memory is measured, in s."""
_NOTABLE_S = 0.005
_LONG_S = 0.02
_WORK = range(5_000)
_WORK_S = 0.25e-3
"""CPU time of ``_WORK`` on a processor that the bounds of waits are for, in s: an AMD EPYC."""
_PAGE_BYTES = 4096


def memory_bytes() -> int:
    """Return the anonymous memory of this process on Linux."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


def slowness() -> float:
    """Return how many times longer than ``_WORK_S`` its work takes now, at least 1."""
    times_s = []
    for _ in range(3):
        begun_s = time.thread_time()
        sum(number * number for number in _WORK)
        times_s.append(time.thread_time() - begun_s)
    return max(1.0, min(times_s) / _WORK_S)


class Clients:
    """The threads whose CPU time is not that of the servers."""

    def __init__(self, threads: Iterable[threading.Thread]) -> None:
        idents = (thread.ident for thread in threads)
        self._clocks = [time.pthread_getcpuclockid(ident) for ident in idents if ident is not None]

    def cpu_s(self) -> float:
        """Return the CPU time of this process without them, in s."""
        return time.process_time() - sum(map(time.clock_gettime, self._clocks))


@dataclass
class Observation:
    """Waits and memory since the last look."""

    stalls: list[Stall] = field(default_factory=list)
    """Waits that are notable."""
    memory_first: int = field(default_factory=memory_bytes)
    """Anonymous memory at the beginning, in bytes."""
    memory_most: int = 0
    """Greatest anonymous memory, in bytes."""


class LoopWatch:
    """Watches the running loop.

    Args:
        cpu_s: Returns the CPU time of the servers.
    """

    def __init__(self, cpu_s: Callable[[], float]) -> None:
        self.cpu_s = cpu_s
        self.seen = Observation()
        self.pingers: list[Pinger] = []
        self._ident = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        self._measured_s = 0.0
        self._arm()

    def _arm(self) -> None:
        self._ticked_s, self._cpu_s = time.monotonic(), self.cpu_s()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now = time.monotonic()
        self.add("turn", self._ticked_s + TICK_S, self._cpu_s)
        if now > self._measured_s + MEMORY_S:
            self._measured_s = now
            self.seen.memory_most = max(self.seen.memory_most, memory_bytes())
        self._arm()

    def add(self, name: str, start_s: float, start_cpu_s: float) -> None:
        """Add a wait that ends now."""
        wait_s = time.monotonic() - start_s
        own_s = min(wait_s, self.cpu_s() - start_cpu_s)
        if own_s > _LONG_S:
            own_s /= slowness()
        if own_s > _NOTABLE_S:
            self.seen.stalls.append(Stall(name, start_s, wait_s, own_s))

    def count_memory_from_now(self) -> None:
        """Leave out what clients have made, to write it."""
        self.seen.memory_first, self.seen.memory_most = memory_bytes(), 0

    def take(self) -> Observation:
        """Return what was seen since the last call."""
        seen, self.seen = self.seen, Observation()
        return seen

    def is_in_long_turn(self, cpu_s: float) -> bool:
        """Return whether a turn has used some CPU time until now; any thread may call it."""
        return self.cpu_s() > self._cpu_s + cpu_s

    def stack(self) -> str:
        """Return where the loop is; any thread may call it."""
        frame = sys._current_frames().get(self._ident)
        return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else ""

    def ping(self, pinger: "Pinger") -> None:
        """Let a client send pings, until the watch ends."""
        self.pingers.append(pinger)
        pinger.begin(self)

    async def settle(self, limit_s: float) -> list[str]:
        """Wait until each client has got a reply to a new ping; return the others."""
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + limit_s:
            if all(pinger.answered_s > begun_s for pinger in self.pingers):
                return []
            await asyncio.sleep(TICK_S)
        return [pinger.name for pinger in self.pingers if pinger.answered_s <= begun_s]

    def end(self) -> None:
        """End pings and measurement."""
        self._timer.cancel()
        for pinger in self.pingers:
            pinger.end()


class Pinger(asyncio.Protocol):
    """A client that sends a small request repeatedly.

    Args:
        name: Name of the server, for reports.
        port: Port of the server.
        request: The request, a frame of remoting.
    """

    def __init__(self, name: str, port: int, request: bytes = b"") -> None:
        self.name = name
        self.answered_s = 0.0
        """Time at which the latest answered ping was sent, by the monotonic clock."""
        self._port = port
        self._request = request
        self._is_over = False
        self._transport: Any = None  # uvloop's transports are no subclass of asyncio's
        self._asked: tuple[float, float] | None = None  # time and CPU time of the pending ping

    def begin(self, watch: LoopWatch) -> None:
        """Connect, and send the first ping."""
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    def end(self) -> None:
        """Send no more pings."""
        self._task.cancel()
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                await self._loop.create_connection(lambda: self, "127.0.0.1", self._port)
                await self._closed.wait()
            await asyncio.sleep(PING_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._closed = asyncio.Event()
        self._kept = bytearray()
        self._begin()
        self._ping()

    def connection_lost(self, error: Exception | None) -> None:
        self._asked = None
        self._closed.set()

    def _ping(self) -> None:
        if not self._is_over and not self._transport.is_closing():
            self._asked = time.monotonic(), self._watch.cpu_s()
            self._write(self._next_request())

    def _write(self, data: bytes) -> None:
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._kept += data
        try:
            is_answered = self._take_reply(self._kept)
        except ConnectionResetError:
            self._transport.abort()
            return
        if is_answered and self._asked is not None:
            self._watch.add(self.name, *self._asked)
            self.answered_s, _ = self._asked
            self._asked = None
            self._loop.call_later(PING_S, self._ping)

    def _begin(self) -> None:
        """Write what a connection begins with."""

    def _next_request(self) -> bytes:
        return self._request

    def _take_reply(self, kept: bytearray) -> bool:
        """Remove a reply from received bytes; return whether it was complete."""
        if len(kept) < 4 or len(kept) < 4 + struct.unpack_from(">i", kept)[0]:
            return False
        kept.clear()
        return True


class CallPinger(Pinger):
    """A 5.x client that makes a small call repeatedly, as ``hostile.call_probe`` does."""

    def _begin(self) -> None:
        self._conversation = Conversation(client_id=b"probe")
        self._write(Conversation.hello())

    def _next_request(self) -> bytes:
        return self._conversation.call("Heartbeat", prefixed(b""))

    def _take_reply(self, kept: bytearray) -> bool:
        return take_end_of_call(kept)
