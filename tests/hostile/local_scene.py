"""The servers in a thread of the test's process, watched while they are attacked.

    @attacked(growth_max=64 << 20)
    def test_something(scene: LocalScene) -> None:
        ...  # attack scene.port, scene.namesrv_port, scene.ports["proxy"]

The same frames, settings and files as with processes (``hostile.servers``), on the loop that
servers have. During the test no turn of the loop, and no ping of another client, takes more CPU
time than ``STALL_MAX_S`` (``hostile.loop_watch``); memory grows by a bounded amount, and is less
than ``MEMORY_MAX`` more at any moment; afterwards each server answers, /health is green, no
traceback is logged, no acknowledged message is lost. Attacks of a module share servers, up to
``SHARED``; with ``make hostile`` each has its own. After the last one the broker is stopped or
killed, starts again, processes its stored records, is stopped, and its store is verified.
"""

import asyncio
import contextlib
import ctypes
import functools
import gc
import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

import seeds
from hostile import attack, call_servers, requests, servers, traffic
from hostile.attack import Played, Script
from hostile.loop_watch import CallPinger, Clients, LoopWatch, Observation, Pinger, memory_bytes
from hostile.servers import (
    CALL_STALL_MAX_S,
    LOG_BYTES_MAX,
    MEMORY_MAX,
    SETTLE_S,
    STALL_MAX_S,
    Settings,
    Watch,
)
from ports import free_port, free_port_of_broker
from reput.broker.monitoring.current_meter import CurrentMeter
from reput.broker.server import Broker
from reput.broker.settings import config as broker_config
from reput.broker.settings.config import HA_PORT_DISTANCE
from reput.cli import garbage
from reput.cli.log_lines import TextLines
from reput.grpc.proxy import config as proxy_config
from reput.grpc.proxy.server import Proxy
from reput.grpc.server import FrontServer
from reput.namesrv import config as namesrv_config
from reput.namesrv.server import NameServer
from reput.remoting.client_faults import ClientFaults
from reput.remoting.metrics_server import MetricsServer
from reput.store.reader import StoreReader
from reput.store.verify import Severity, verify
from reput.testing.controls import Controls
from reput.testing.faults import Faults
from reput.testing.shifted_clock import ShiftedClock
from reput_cluster import SMALL_FILES, texts

START_S = 180
REST_MS = 5_000
"""Time that loops get to process stored records, in ms of their clock."""
MEASUREMENTS = 3
TRAFFIC_S = 0.05
"""Pause of the producer and the consumer, in s."""
QUIET_S = 2 * attack.REPLY_S
REST_S = 0.01
RESTS = 5
GROWTH_MAX = 64 << 20
"""Limit of the growth of memory by an attack, in bytes."""
IS_LONG = "REPUT_HOSTILE_SECONDS" in os.environ
PLAY_CPU_S = 2.0 if IS_LONG else 0.3
"""CPU time of the servers that ends a round, in s."""
SHARED = 1 if IS_LONG else 12
"""Number of attacks on the same servers."""

_T = TypeVar("_T")
_LIBC = ctypes.CDLL(None)


class LogLines(logging.Handler):
    """The log of the servers, as they write it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(TextLines())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class LocalScene:
    """A name server, a broker and, for calls, a proxy before it.

    Args:
        folder: Folder of the store and the files of settings.
        settings: Additional lines of broker.conf.
        has_calls: Whether there are ports for 5.x clients.
        has_traffic: Whether a producer and a consumer run beside the attack; never without a user.
    """

    def __init__(
        self, folder: Path, settings: Settings, *, has_calls: bool = False, has_traffic: bool = True
    ) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.store.mkdir(parents=True)
        self.port = free_port_of_broker()
        self.namesrv_port = free_port()
        self.metrics_port = free_port()
        self.ports: dict[str, int] = {}
        """Ports for 5.x clients: of the broker, and of the proxy."""
        if has_calls:
            self.ports = {"broker": free_port(), "proxy": free_port()}
        self._has_traffic = has_traffic
        self.is_guarded = bool(settings.get("authenticationEnabled"))
        self.log = LogLines()
        self.now = ""
        """What the test does, for reports."""
        self.watch: LoopWatch | None = None
        address = f"127.0.0.1:{self.namesrv_port}"
        self._write("namesrv", {"listenPort": self.namesrv_port, "bindAddress": "127.0.0.1"})
        self._write(
            "broker",
            {
                "brokerName": "broker-a",
                "brokerIP1": "127.0.0.1",
                "bindAddress": "127.0.0.1",
                "listenPort": self.port,
                "namesrvAddr": address,
                "storePathRootDir": str(self.store),
                **SMALL_FILES,
                **settings,
            },
        )
        if has_calls:
            self._write(
                "proxy", call_servers.proxy_settings(address, self.ports["proxy"], settings)
            )
        self._failure: BaseException | None = None
        self._traffic: threading.Thread | None = None
        self._servers, self._clients = contextlib.ExitStack(), contextlib.ExitStack()

    def _write(self, name: str, settings: Settings) -> None:
        lines = (f"{key}={text}\n" for key, text in texts(settings).items())
        self._path(name).write_text("".join(lines))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.conf"

    @property
    def ha_port(self) -> int:
        """The broker's port for slaves."""
        return self.port + HA_PORT_DISTANCE

    def port_of(self, server: str) -> int:
        """Return a port; ``ha`` is the broker's for slaves."""
        return {"broker": self.port, "namesrv": self.namesrv_port, "ha": self.ha_port}[server]

    # --- the servers ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the servers; the end stops them."""
        started = threading.Event()
        self._failure = None

        def run() -> None:
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(self._serve(started))
            except BaseException as error:  # noqa: BLE001 - raised in the test's thread
                self._failure = error
            finally:
                started.set()

        thread = threading.Thread(target=run, name="servers")
        thread.start()
        try:
            assert started.wait(START_S), "the servers have not started"
            if self._failure is None:
                yield
        finally:
            if self._failure is None:
                self._loop.call_soon_threadsafe(self._stop.set)
            thread.join()
        if self._failure is not None:
            raise self._failure

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        faults = ClientFaults(logging.getLogger("reput"), time.monotonic)
        self._loop.set_exception_handler(faults.handle_loop_error)
        clock = ShiftedClock()
        async with contextlib.AsyncExitStack() as running:
            names, _ = namesrv_config.load(
                str(self._path("namesrv")),
                explicit={"kv_config_path": str(self.folder / "namesrv/kvConfig.json")},
            )
            name_server = await running.enter_async_context(NameServer(names))
            path = str(self._path("broker"))
            loaded = broker_config.load(path)
            self.broker = broker = await running.enter_async_context(
                Broker(
                    loaded.broker,
                    loaded.store,
                    clock=clock,
                    config_path=path,
                    tls=loaded.tls,
                    access=loaded.access,
                )
            )
            if self.ports:
                front = FrontServer(broker, self.ports["broker"])
                await front.start()
                running.push_async_callback(front.stop)
                proxy = Proxy(proxy_config.load(str(self._path("proxy"))), clock=clock)
                await running.enter_async_context(proxy)
            meter = CurrentMeter(broker)
            metrics = MetricsServer(meter, port=self.metrics_port, refusals=broker.serving.refusals)
            metrics.start()
            running.push_async_callback(metrics.stop)
            self._controls = controls = Controls(name_server, [broker], clock, Faults(), {})
            if requests.TOPIC not in broker.parts.topics.all():
                await controls.create_topic(requests.TOPIC, 4)
                await controls.create_topic(requests.LITE_TOPIC, 4, "LITE")
            await broker.parts.registration.register()
            await asyncio.to_thread(broker.parts.filters.load_compiler)
            garbage.keep_pauses_short()
            started.set()
            await self._stop.wait()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop of the servers; return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def advance(self, duration_ms: int = REST_MS) -> None:
        """Advance the time of the broker, and deliver what becomes due."""
        self.call(self._controls.advance(duration_ms))

    def play(self, port: int, scripts: list[Script]) -> Played:
        """Play a round, until the servers have worked it off; a busy machine cuts it not short."""
        self.count_memory_from_now()
        assert self.watch is not None
        played = attack.play(
            port,
            scripts,
            PLAY_CPU_S,
            QUIET_S,
            rests=lambda: self.call(self._rests()),
            seconds=self.watch.cpu_s,
        )
        assert played.written_bytes
        return played

    def count_memory_from_now(self) -> None:
        """Leave out what clients have made, to write it, from the memory of the servers."""
        assert self.watch is not None
        self._loop.call_soon_threadsafe(self.watch.count_memory_from_now)

    def block_count(self) -> int:
        """Return the number of small objects in memory, when the servers rest."""
        self.rest()
        gc.collect()
        return sys.getallocatedblocks()

    def rest(self) -> None:
        """Wait until the servers use little of a processor: they have worked off what they got."""
        self.call(self._rest())

    async def _rest(self) -> None:
        begun_s = time.monotonic()
        while not await self._rests() and time.monotonic() < begun_s + SETTLE_S:
            pass

    async def _rests(self) -> bool:
        """Return whether the servers use little of a processor, several times in a row."""
        assert self.watch is not None
        for _ in range(RESTS):
            before_s = self.watch.cpu_s()
            await asyncio.sleep(REST_S)
            if self.watch.cpu_s() > before_s + REST_S / 5:
                return False
        return True

    async def kill(self) -> None:
        """Leave the store as a crash does."""
        await self.broker._abandon()

    # --- watching ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self, subject: str) -> Iterator[Watch]:
        """Watch the servers during an action; see ``Watch.check``."""
        watch = Watch(subject, time.monotonic())
        clients = [threading.current_thread()]
        if self._traffic is not None:
            clients.append(self._traffic)
        self.call(self._begin_watch(Clients(clients)))
        assert self.watch is not None
        before = _settled_memory()
        try:
            yield watch
            dead = self.call(self.watch.settle(SETTLE_S))
            watch.problems += [f"{name} does not answer a ping" for name in dead]
        finally:
            seen = self.call(self._end_watch())
        self._judge(watch, seen, before)
        if problem := servers.lasting_problem(self.metrics_port):
            watch.problems.append(f"/health: {problem}")

    async def _begin_watch(self, clients: Clients) -> None:
        self.watch = watch = LoopWatch(clients.cpu_s)
        watch.ping(Pinger("broker", self.port, servers.END_OF_QUEUE))
        watch.ping(Pinger("namesrv", self.namesrv_port, servers.ROUTE))
        for name, port in self.ports.items():
            watch.ping(CallPinger(f"calls of the {name}", port))
        dead = await watch.settle(SETTLE_S)
        assert not dead, f"{dead} do not answer"
        watch.take()

    async def _end_watch(self) -> Observation:
        assert self.watch is not None
        watch, self.watch = self.watch, None
        watch.end()
        return watch.take()

    @staticmethod
    def _judge(watch: Watch, seen: Observation, before: int) -> None:
        for stall in seen.stalls:
            limit_s = CALL_STALL_MAX_S if stall.server.startswith("calls") else STALL_MAX_S
            watch.worst[stall.server] = max(watch.worst.get(stall.server, 0.0), stall.stall)
            if stall.stall > limit_s:
                watch.stalls.append(stall)
        watch.stalls.sort(key=lambda stall: -stall.stall)
        now = _settled_memory()
        watch.memory, watch.growth = {"process": now}, {"process": now - before}
        most = seen.memory_most - seen.memory_first
        if most > MEMORY_MAX:
            watch.problems.append(f"memory grew by {most >> 20} MiB; allowed: {MEMORY_MAX >> 20}")

    def _log_problems(self, seconds: float) -> list[str]:
        """Return problems in the log of some seconds."""
        lines = self.log.lines
        traces = [line for line in lines if " exception=" in line]
        problems = [f"logged: {line[-900:]}" for line in traces[:1]]
        size, limit = sum(map(len, lines)), LOG_BYTES_MAX * max(1.0, seconds / 60)
        if size > limit:
            problems.append(f"{size} bytes were logged; allowed: {limit:.0f}")
        return problems

    # --- the life of the servers ------------------------------------------------------------------

    def begin(self) -> None:
        """Start the servers, the producer and the consumer."""
        self._servers.enter_context(self._logging())
        self._servers.enter_context(self.running())
        self._clients.enter_context(self._traffic_beside())

    def attack(self, action: "Action", subject: str) -> Watch:
        """Attack the servers; return what was seen."""
        self.log.lines.clear()
        self._loop.call_soon_threadsafe(garbage.keep_pauses_short)  # it ends with each test
        with self._tracing_stalls() as places, self.watching(subject) as watch:
            played = action(self)
        watch.problems += self._log_problems(time.monotonic() - watch.start)
        watch.places = places
        if isinstance(played, Played):
            watch.places += [
                f"written meanwhile: {frame}"
                for stall in watch.stalls[:2]
                for frame in played.near(stall.start, stall.start + stall.wait)[-8:]
            ]
        return watch

    def end(self, subject: str) -> Watch:
        """End the servers, and start them again; return what was seen then."""
        self.log.lines.clear()
        self._clients.close()
        is_kill = seeds.random("end", subject).random() < 0.5
        if is_kill:
            self.call(self.kill())
        self._servers.close()
        end = "a kill" if is_kill else "a stop"
        with (
            self._logging(),
            self._tracing_stalls() as places,
            self.running(),
            self.watching(f"{subject}, after {end}") as watch,
        ):
            self.advance()
        findings = verify(StoreReader.open(str(self.store))).findings
        watch.problems += [str(each) for each in findings if each.severity is Severity.DAMAGE][:5]
        watch.problems += self._log_problems(time.monotonic() - watch.start)
        watch.places = places
        return watch

    def close(self) -> None:
        """End the servers."""
        with self._servers, self._clients:
            pass

    @contextlib.contextmanager
    def _logging(self) -> Iterator[None]:
        root, reput_log = logging.getLogger(), logging.getLogger("reput")
        level = reput_log.level
        root.addHandler(self.log)
        reput_log.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.removeHandler(self.log)
            reput_log.setLevel(level)

    @contextlib.contextmanager
    def _tracing_stalls(self) -> Iterator[list[str]]:
        """Note where the loop is while a turn takes long, for reports."""
        places: list[str] = []
        over = threading.Event()

        def look() -> None:
            while not over.wait(STALL_MAX_S / 2):
                watch = self.watch
                if watch is not None and watch.is_in_long_turn(STALL_MAX_S / 2):
                    places[5:] = [f"{self.now}\n{watch.stack()}"]

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield places
        finally:
            over.set()
            thread.join()

    @contextlib.contextmanager
    def _traffic_beside(self) -> Iterator[None]:
        """Let a producer and a consumer work meanwhile."""
        if self.is_guarded or not self._has_traffic:
            yield
            return
        over = threading.Event()
        producer = traffic.Traffic(self.port)
        self._traffic = thread = threading.Thread(
            target=producer.run, args=[lambda _: over.wait(TRAFFIC_S)]
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._traffic = None
        traffic.check(producer.summary())


def _settled_memory() -> int:
    """Return the anonymous memory of this process, without free parts."""
    _LIBC.malloc_trim(0)
    return memory_bytes()


Action = Callable[[LocalScene], object]


@dataclass
class Attack:
    """An attack, and what the servers may do meanwhile."""

    action: Action
    subject: str
    growth_max: int | None

    def play(self, scene: LocalScene) -> Watch:
        """Attack servers; fail if they break a promise, but return waits that are too long."""
        try:
            watch = scene.attack(self.action, self.subject)
            watch.check(growth_max=self.growth_max)
        except BaseException:
            scene.close()
            raise
        return watch


class Scenes:
    """Servers, of which some serve several attacks, and the measurements of their waits.

    A wait that is too long is measured again, with the same frames and new servers, and counts if
    waits of the same kind are too long ``MEASUREMENTS`` times. This repeats no failed test: the
    result is the minimum of some measurements, since the noise of CPU time only adds to it. All
    else is exact, and counts at once.

    Args:
        folders: Makes the folders of servers.
    """

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._shared: LocalScene | None = None
        self._kind: dict[str, Any] = {}
        self._attacks: list[Attack] = []

    def play(self, attack: Attack, **kind: Any) -> None:
        """Attack servers of a kind, the arguments of ``LocalScene``."""
        if kind != self._kind:
            self.end()
        self._kind = kind
        if self._shared is None:
            self._shared = self._begun()
        self._attacks.append(attack)
        try:
            watch = attack.play(self._shared)
        except BaseException:
            self._shared, self._attacks = None, []
            raise
        if watch.stalls:
            self._measure_again(attack, watch)
        if len(self._attacks) >= (SHARED if kind["has_traffic"] else 1):
            self.end()

    def end(self) -> None:
        """End the servers that have served attacks; fail if they do not continue."""
        scene, attacks = self._shared, self._attacks
        self._shared, self._attacks = None, []
        if scene is None:
            return
        watch = scene.end(" + ".join(attack.subject for attack in attacks))
        watch.check()
        if watch.stalls:
            for attack in attacks:
                self._measure_again(attack, watch)

    def _begun(self) -> LocalScene:
        scene = LocalScene(self._folders.mktemp("servers"), **self._kind)
        scene.begin()
        return scene

    def _measure_again(self, attack: Attack, first: Watch) -> None:
        """Fail if waits are too long with other servers, too."""
        names = {stall.server for stall in first.stalls}
        lines = [*map(str, first.stalls[:3]), *first.places]
        for number in range(1, MEASUREMENTS):
            scene = self._begun()
            watch = attack.play(scene)
            later = scene.end(attack.subject)
            later.check()
            stalls = [stall for stall in watch.stalls + later.stalls if stall.server in names]
            names = {stall.server for stall in stalls}
            if not names:
                return
            places = watch.places + later.places
            lines += [f"measurement {number}:", *map(str, stalls[:3]), *places]
        raise AssertionError(f"{attack.subject}:\n" + "\n".join(lines))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenes]:
    """Provide the servers of a module."""
    shared = Scenes(tmp_path_factory)
    yield shared
    shared.end()


def attacked(
    *,
    growth_max: int | None = GROWTH_MAX,
    settings: Settings | None = None,
    has_calls: bool = False,
    has_traffic: bool = True,
) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Turn a function with an argument ``scene`` into a test in which servers are attacked.

    Args:
        growth_max: Limit of the growth of memory, in bytes.
        settings: Additional lines of broker.conf.
        has_calls: Whether there are 5.x clients.
        has_traffic: Whether a producer and a consumer run beside the attack; without them it has
            its own servers.
    """
    profiles = call_servers.PROFILES if has_calls else servers.PROFILES
    names = list(profiles) if has_calls or IS_LONG else ["everything"]

    def decorate(test: Callable[..., object]) -> Callable[..., None]:
        @pytest.mark.parametrize("profile", names)
        @functools.wraps(test)
        def run(
            scenes: Scenes, profile: str, request: pytest.FixtureRequest, **arguments: Any
        ) -> None:
            attack = Attack(functools.partial(test, **arguments), request.node.name, growth_max)
            scenes.play(
                attack,
                settings={**profiles[profile], **(settings or {})},
                has_calls=has_calls,
                has_traffic=has_traffic,
            )

        # pytest must see a plain function with the fixtures instead of the scene.
        del run.__wrapped__
        given = inspect.signature(test).parameters.keys() - {"scene"}
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
                for name in (*sorted(given), "scenes", "profile", "request")
            ]
        )
        return run

    return decorate
