"""An event loop on virtual time, for all processes of a simulation.

    ready callbacks of some process -> one of them, chosen by the seed -> ...
    nothing is ready                -> the time of the next timer

Callbacks of one process keep their order, as asyncio promises; those of different processes do not.
A process is the value of a context variable, which tasks and callbacks inherit: when it is killed,
nothing of it runs any more, not even a ``finally``.
"""

import asyncio
import contextvars
import heapq
import itertools
import random
import socket
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sim.network import Network, SimSocket
from sim.trace import Trace

_T = TypeVar("_T")

CALLBACK_S = 1e-6
"""Virtual time of a callback: the time always advances."""
WORKER_S = (0.0, 0.002)
"""Time after which a worker thread has done its work, from and to."""

Context = contextvars.Context


class Process:
    """One life of a program on a host.

    Args:
        name: Its name in traces.
        host: IP address of its host.
    """

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.is_alive = True
        self.is_paused = False
        self.worker_s = WORKER_S
        """Duration of the work of its threads, from and to: that of its disk."""
        self.ready: deque[_Handle] = deque()
        self.kept: list[object] = []
        """What a killed process has left: released at the end, as a release may run its code."""
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.failures: list[str] = []
        """Errors that reached the loop."""


PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("PROCESS")


class _Handle(asyncio.TimerHandle):
    """A callback of a process, also one without a time: a run makes tens of thousands."""

    __slots__ = ("process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "Loop",
        context: Context | None,
    ) -> None:
        # Without that of asyncio, whose questions about debug mode take most of its time.
        if context is None:
            context = contextvars.copy_context()
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = self._scheduled = False
        self._repr = self._source_traceback = None
        self.process: Process = context.get(PROCESS, loop.world)

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


class Loop(asyncio.AbstractEventLoop):
    """The loop.

    Args:
        chance: Source of all choices.
        trace: Gets everything that is sent.
    """

    def __init__(self, chance: random.Random, trace: Trace) -> None:
        self._chance = chance
        self.trace = trace
        self.now = 1.0
        """The virtual time, in seconds."""
        self.work_s = 1e-6
        """Virtual time between two readings of the clock of time slices."""
        self.world = Process("world", "10.0.0.254")
        """The process of the simulation itself."""
        self._ready: list[Process] = []
        self._timers: list[tuple[float, int, _Handle]] = []
        self._numbers = itertools.count()
        self._worker_ends: dict[int, float] = {}
        self._executors: list[object] = []
        self._processes: list[Process] = [self.world]
        self._sockets: dict[int, SimSocket] = {}
        self.network = Network(self, random.Random(chance.getrandbits(64)), trace)
        self.steps = 0
        """Number of callbacks that ran."""
        self._paused_count = 0
        self._is_over = False

    # Running ------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine of the simulation to its end; everything else ends with it."""
        events._set_running_loop(self)
        try:
            context = contextvars.copy_context()
            context.run(PROCESS.set, self.world)
            task = self.create_task(work, context=context)
            self._run_until(task)
            return task.result()
        finally:
            self._is_over = True
            events._set_running_loop(None)

    def _run_until(self, task: asyncio.Task[Any]) -> None:
        """Run callbacks until a task is done."""
        is_done, chance = task.done, self._chance.random
        timers, ready = self._timers, self._ready
        while not is_done():
            if timers and timers[0][0] <= self.now:
                self._move_due()
            runnable = ready
            if self._paused_count:
                runnable = [process for process in ready if not process.is_paused]
            if not runnable:
                if not timers:
                    raise RuntimeError("nothing will ever happen: all wait for each other")
                self.now = max(self.now, timers[0][0])
                continue
            count = len(runnable)
            process = runnable[0 if count == 1 else int(chance() * count)]
            handle = process.ready.popleft()
            if not process.ready:
                ready.remove(process)
            if handle._cancelled:
                continue
            self.steps += 1
            self.now += CALLBACK_S
            try:
                handle._context.run(handle._callback, *handle._args)
            except Exception as error:  # noqa: BLE001 - as a loop does
                process.failures.append(f"{handle._callback!r}: {error!r}")

    def _move_due(self) -> None:
        timers, now = self._timers, self.now
        while timers and timers[0][0] <= now:
            handle = heapq.heappop(timers)[2]
            if not handle._cancelled:
                handle._scheduled = False
                self._add(handle)

    def _add(self, handle: _Handle) -> None:
        process = handle.process
        if not process.is_alive:
            process.kept.append(handle)
            return
        if not process.ready:
            self._ready.append(process)
        process.ready.append(handle)

    def begin(self, name: str, host: str) -> Process:
        """Return a new process."""
        process = Process(name, host)
        self._processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """End a process: nothing of it runs any more, and its connections end."""
        process.is_alive = False
        if process in self._ready:
            self._ready.remove(process)
        process.kept += [process.ready, *process.tasks]

    def release(self) -> None:
        """Forget all programs, after the end of the run."""
        for process in self._processes:
            for task in process.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            process.tasks.clear()
            process.kept.clear()
            process.ready.clear()
        self._timers.clear()
        self._ready.clear()
        self._sockets.clear()

    def pause(self, process: Process, duration_s: float) -> None:
        """Let nothing of a process run for some time."""
        process.is_paused = True
        self._paused_count += 1

        def resume() -> None:
            process.is_paused = False
            self._paused_count -= 1

        self.call_later(duration_s, resume, context=self.world_context())

    def world_context(self) -> Context:
        """Return a new context of the simulation itself."""
        return context_of(self.world)

    def work_time(self) -> float:
        """Return the time for time slices; each reading takes some."""
        self.now += self.work_s
        return self.now

    # asyncio's interface ------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._is_over

    def is_closed(self) -> bool:
        return self._is_over

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(0.0, callback, args, self, context)
        if not self._is_over:
            self._add(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _Handle(when, callback, args, self, context)
        if not self._is_over:
            heapq.heappush(self._timers, (when, next(self._numbers), handle))
            handle._scheduled = True
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        process = PROCESS.get(self.world) if context is None else context.get(PROCESS, self.world)
        process.tasks[task] = None
        task.add_done_callback(lambda done: process.tasks.pop(done, None))
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._is_over:
            return
        error = context.get("exception")
        PROCESS.get(self.world).failures.append(f"{context.get('message')}: {error!r}")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def run_in_executor(
        self, executor: Any, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        """Run a function of a worker thread at a later point, which the seed chooses."""
        done: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            if done.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - as a thread pool does
                done.set_exception(error)
            else:
                done.set_result(result)

        process = PROCESS.get(self.world)
        end = self.now + self._chance.uniform(*process.worker_s)
        if executor is not None:  # one thread, which keeps the order
            if id(executor) not in self._worker_ends:
                self._executors.append(executor)
            end = max(end, self._worker_ends.get(id(executor), 0.0))
            self._worker_ends[id(executor)] = end
        self.call_at(end, run)
        return done

    async def getaddrinfo(  # type: ignore[override]
        self, host: Any, port: Any, **_: Any
    ) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any, port: int, **_: Any
    ) -> Any:
        return self.network.serve(PROCESS.get(), protocol_factory, port)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> Any:
        return await self.network.connect(PROCESS.get(), protocol_factory, (host, port))

    # Sockets of the simulation, by their descriptors ----------------------------------------------

    def register(self, sock: SimSocket) -> int:
        """Return a descriptor for a socket."""
        number = 1_000_000 + next(self._numbers)
        self._sockets[number] = sock
        return number

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._sockets[fd].watch_reads(lambda: callback(*args))

    def remove_reader(self, fd: Any) -> bool:
        return fd in self._sockets and self._sockets[fd].watch_reads(None)

    def add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._sockets[fd].watch_writes(lambda: callback(*args))

    def remove_writer(self, fd: Any) -> bool:
        return fd in self._sockets and self._sockets[fd].watch_writes(None)


def context_of(process: Process) -> Context:
    """Return a new context of a process."""
    context = contextvars.Context()
    context.run(PROCESS.set, process)
    return context


def spawn(
    loop: Loop, process: Process, work: Coroutine[Any, Any, _T], name: str = ""
) -> asyncio.Task[_T]:
    """Run a coroutine in a process."""
    return loop.create_task(work, name=name or process.name, context=context_of(process))
