"""A broker and a name server as processes, watched while they are attacked.

    with Scene(folder, PROFILES["everything"]) as scene:
        with scene.watching("what is done") as watch:
            ...  # attack scene.broker_port, scene.namesrv_port
        watch.check()
        scene.check_end()

Probe processes ping both servers all the time (``hostile.probe``); a third probe pings a server
that does nothing (``hostile.echo``), and so measures the machine. A producer and a consumer run
beside them (``hostile.traffic``).
"""

import contextlib
import json
import re
import select
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hostile import traffic
from ports import free_port
from reput.broker.settings.config import HA_PORT_DISTANCE
from reput.format import command as commands
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput_cluster import ReputCluster

TESTS = Path(__file__).resolve().parents[1]

STALL_MAX_S = 0.050
"""Limit of the wait of another client's request, in s, beyond the noise of the machine."""
CALL_STALL_MAX_S = 4 * STALL_MAX_S
"""Limit of the wait of another client's call, in s: it takes turns with the calls of the attack."""
MEMORY_MAX = 300 << 20
"""Limit of the anonymous memory of a server, in bytes."""
LOG_BYTES_MAX = 4 << 20
"""Limit of a server's log output in a minute of attacks, in bytes."""
HEALTH_S = 10.0
"""Time that /health may be red before it counts, in s: loops run once a second."""
SETTLE_S = 60.0
"""Time that a probe may get no reply before the server counts as dead, in s."""

ROUTE = commands.encode(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "Probed"}))
END_OF_QUEUE = commands.encode(
    Command(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "Probed", "queueId": "0"})
)
"""Small requests to a name server and to a broker."""

Settings = Mapping[str, str | int | bool]

PROFILES: Mapping[str, Settings] = {
    "plain": {},
    "everything": {
        "enablePropertyFilter": True,
        "enableCalcFilterBitMap": True,
        "enableConsumeQueueExt": True,
        "enableLmq": True,
        "enableMultiDispatch": True,
        "enableMixedMessageType": True,
        "recallMessageEnable": True,
        "traceTopicEnable": True,
        "indexTags": True,
        # Half messages are checked, and delayed ones rolled, within the run.
        "transactionCheckInterval": 1_000,
        "transactionTimeOut": 1_000,
        "timerRollWindowSlot": 5,
        "flushConsumerOffsetInterval": 1_000,
    },
}
"""Name -> settings in broker.conf."""

_TRACEBACK = re.compile(rb"Traceback \(most recent call last\)|exception=")


def memory_of(process: int | str) -> int:
    """Return the anonymous memory of a process on Linux, in bytes. Raises ``OSError``.

    Args:
        process: Its id, or ``self``.
    """
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise OSError(f"process {process} has ended")


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping with a long wait; times in s."""

    start: float
    wait: float
    own: float
    """The part of the wait that the server itself has caused."""


@dataclass(frozen=True, slots=True)
class Stall:
    """The wait of a ping without the machine's noise; times in s."""

    server: str
    start: float
    wait: float
    stall: float

    def __str__(self) -> str:
        return f"{self.server}: waited {self.wait * 1000:.0f} ms, {self.stall * 1000:.0f} its own"


class ProbeProcess:
    """A probe and its log."""

    def __init__(
        self,
        name: str,
        port: int,
        pid: int,
        request: bytes,
        folder: Path,
        module: str = "hostile.probe",
        stall_max_s: float = STALL_MAX_S,
    ) -> None:
        self.name = name
        self.stall_max_s = stall_max_s
        self._path = folder / f"probe-{name}-{pid}.txt"
        self._path.touch()
        self._file = self._path.open()
        self._rest = ""
        self.pings: list[Ping] = []
        self.waiting: Ping | None = None
        """The pending ping, if it has waited for a second."""
        self.alive_s = 0.0
        self.count = 0
        arguments = [str(port), str(pid), str(self._path), request.hex()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, cwd=TESTS
        )

    def read(self) -> None:
        """Read the new lines of the log."""
        self._rest += self._file.read()
        *lines, self._rest = self._rest.split("\n")
        for line in lines:
            kind, *numbers = line.split()
            values = [float(number) for number in numbers]
            if kind == "alive":
                self.alive_s, self.count = values[0], int(values[1])
                self.waiting = None
            elif kind == "ping":
                self.pings.append(Ping(*values))
                self.waiting = None
            elif kind == "waiting":
                self.waiting = Ping(*values)

    def settle(self, after_s: float, limit_s: float) -> bool:
        """Wait for a reply after a time; return whether there was one."""
        deadline = time.monotonic() + limit_s
        while True:
            self.read()
            if self.alive_s > after_s:
                return True
            if time.monotonic() > deadline or self._process.poll() is not None:
                return False
            pause(0.02)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._file.close()


@dataclass
class Watch:
    """Observations during an action."""

    subject: str
    start: float
    stalls: list[Stall] = field(default_factory=list)
    """The stalls that count, the longest first."""
    worst: dict[str, float] = field(default_factory=dict)
    """Server -> its longest stall, in s."""
    memory: dict[str, int] = field(default_factory=dict)
    """Server -> its anonymous memory at the end, in bytes."""
    growth: dict[str, int] = field(default_factory=dict)
    """Server -> growth of its anonymous memory, in bytes."""
    problems: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    """What a server did meanwhile, for reports."""

    def check(self, *, growth_max: int | None = None) -> None:
        """Fail if there was any problem.

        Args:
            growth_max: Allowed growth of the memory of a server, in bytes.
        """
        problems = list(self.problems)
        if growth_max is not None:
            problems += [
                f"{name} grew by {growth >> 20} MiB; allowed: {growth_max >> 20}"
                for name, growth in self.growth.items()
                if growth > growth_max
            ]
        assert not problems, f"{self.subject}:\n" + "\n".join(problems)


class Scene(ReputCluster):
    """A broker and a name server, watched.

    Args:
        folder: Folder of the store, the logs, and the files of the probes.
        settings: Additional lines of broker.conf.
        traffic: Whether a producer and a consumer run beside the attacks.
    """

    servers: tuple[str, ...] = ("broker", "namesrv")
    """Servers with a log."""

    def __init__(
        self, folder: Path, settings: Settings | None = None, *, traffic: bool = True
    ) -> None:
        self.metrics_port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._probes: dict[str, ProbeProcess] = {}
        self._echo: subprocess.Popen[bytes] | None = None
        self._traffic: subprocess.Popen[bytes] | None = None
        self._wants_traffic = traffic
        self._log_positions: dict[Path, int] = {}
        super().__init__(folder, {**(settings or {}), "metricsPort": self.metrics_port})
        try:
            self.watch_all()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    @property
    def namesrv_port(self) -> int:
        return int(self.namesrv.rpartition(":")[2])

    @property
    def ha_port(self) -> int:
        """The broker's port for slaves."""
        return self.port + HA_PORT_DISTANCE

    @property
    def namesrv_pid(self) -> int:
        assert self._namesrv_process is not None
        return self._namesrv_process.pid

    def pids(self) -> dict[str, int]:
        return {"broker": self.broker_pid, "namesrv": self.namesrv_pid}

    # --- watching -----------------------------------------------------------------

    def watch_all(self) -> None:
        """Start probes and traffic."""
        self._echo = subprocess.Popen(
            [sys.executable, "-m", "hostile.echo"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=TESTS,
        )
        assert self._echo.stdout is not None
        port = int(self._echo.stdout.readline())
        self._probes = {
            name: ProbeProcess(name, port, pid, request, self.folder)
            for name, port, pid, request in (
                ("control", port, self._echo.pid, END_OF_QUEUE),
                ("broker", self.port, self.broker_pid, END_OF_QUEUE),
                ("namesrv", self.namesrv_port, self.namesrv_pid, ROUTE),
            )
        }
        if self._wants_traffic and self._traffic is None:
            self._traffic = subprocess.Popen(
                [sys.executable, "-m", "hostile.traffic", str(self.port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=TESTS,
            )
        for probe in self._probes.values():
            self.settle(probe)

    def settle(self, probe: ProbeProcess) -> None:
        """Wait until a probe has got a reply."""
        is_settled = probe.settle(time.monotonic(), SETTLE_S)
        assert is_settled, f"{probe.name} does not answer\n{self.log()}"

    def unwatch(self) -> None:
        """End the probes; traffic continues."""
        for probe in self._probes.values():
            probe.close()
        self._probes = {}
        if self._echo is not None:
            self._echo.kill()
            self._echo.wait()
            for pipe in (self._echo.stdin, self._echo.stdout):
                assert pipe is not None
                pipe.close()
            self._echo = None

    @contextlib.contextmanager
    def watching(self, subject: str) -> Iterator[Watch]:
        """Watch both servers during an action; see ``Watch.check``."""
        memory = self.memory()
        watch = Watch(subject, time.monotonic())
        yield watch
        self._look(watch, memory)

    def _look(self, watch: Watch, memory: dict[str, int]) -> None:
        after = time.monotonic()
        for name, probe in self._probes.items():
            if not probe.settle(after, SETTLE_S):
                running = self.is_running(name)
                watch.problems.append(
                    f"{name}: no reply for {SETTLE_S} s; its process "
                    + ("runs" if running else "has ended")
                )
        control = self._probes["control"]
        for name, probe in self._probes.items():
            if name == "control":
                continue
            pings = [ping for ping in probe.pings if ping.start + ping.wait >= watch.start]
            if probe.waiting is not None:
                pings.append(probe.waiting)
            stalls = sorted(
                (self._without_noise(name, ping, control) for ping in pings),
                key=lambda stall: -stall.stall,
            )
            watch.worst[name] = stalls[0].stall if stalls else 0.0
            watch.stalls += [stall for stall in stalls if stall.stall > probe.stall_max_s]
            probe.pings.clear()
        control.pings = [ping for ping in control.pings if ping.start > after - 60]
        watch.stalls.sort(key=lambda stall: -stall.stall)
        watch.problems += [str(stall) for stall in watch.stalls[:5]]
        watch.memory = self._settled_memory(memory)
        watch.growth = {name: now - memory.get(name, 0) for name, now in watch.memory.items()}
        watch.problems += [
            f"{name} has {now >> 20} MiB; allowed: {MEMORY_MAX >> 20}"
            for name, now in watch.memory.items()
            if now > MEMORY_MAX and memory.get(name, 0) <= MEMORY_MAX
        ]
        if "broker" in watch.memory:
            problem = lasting_problem(self.metrics_port)
            if problem:
                watch.problems.append(f"/health: {problem}")
        watch.problems += self.log_problems(time.monotonic() - watch.start)

    def _settled_memory(self, before: dict[str, int]) -> dict[str, int]:
        """Return the memory of each server, once it has ended the connections of the attack.

        Args:
            before: The memory before the attack.
        """
        deadline = time.monotonic() + HEALTH_S
        while True:
            memory = self.memory()
            is_settled = all(
                now < MEMORY_MAX and now - before.get(name, now) < 64 << 20
                for name, now in memory.items()
            )
            if is_settled or time.monotonic() > deadline:
                return memory
            pause(0.1)

    @staticmethod
    def _without_noise(name: str, ping: Ping, control: ProbeProcess) -> Stall:
        noise = max(
            (
                other.wait
                for other in control.pings
                if other.start <= ping.start + ping.wait and other.start + other.wait >= ping.start
            ),
            default=0.0,
        )
        return Stall(name, ping.start, ping.wait, max(0.0, min(ping.own, ping.wait - noise)))

    # --- state --------------------------------------------------------------------

    def is_running(self, name: str) -> bool:
        process = self._broker_process if name == "broker" else self._namesrv_process
        return process is not None and process.poll() is None

    def memory(self) -> dict[str, int]:
        """Return the anonymous memory of each running server, in bytes."""
        memory_by_server = {}
        for name, pid in self.pids().items():
            with contextlib.suppress(OSError):
                memory_by_server[name] = memory_of(pid)
        return memory_by_server

    def metrics(self) -> str:
        """Return the text of /metrics."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=HEALTH_S) as reply:
            text: str = reply.read().decode()
            return text

    def log_problems(self, seconds: float) -> list[str]:
        """Return problems in the lines that were logged since the last call."""
        problems = []
        for name in self.servers:
            path = self.folder / f"{name}.log"
            with path.open("rb") as file:
                file.seek(self._log_positions.get(path, 0))
                data = file.read()
                self._log_positions[path] = file.tell()
            limit = int(LOG_BYTES_MAX * max(1.0, seconds / 60))
            if len(data) > limit:
                problems.append(f"{name} logged {len(data)} bytes; allowed: {limit}")
            traces = list(_TRACEBACK.finditer(data))
            if traces:
                first = data[traces[0].start() :][:6000].decode(errors="replace")
                text = first.partition("\n20")[0].replace("\\n", "\n")
                problems.append(
                    f"{name} logged {len(traces)} tracebacks; the first:\n{text[-900:]}"
                )
        return problems

    # --- the end --------------------------------------------------------------------------------

    def check_traffic(self) -> dict[str, Any]:
        """End the producer and the consumer; check that all acknowledged messages have arrived."""
        if self._traffic is None:
            return {}
        out, _ = self._traffic.communicate(timeout=SETTLE_S)
        self._traffic = None
        summary: dict[str, Any] = json.loads(out)
        traffic.check(summary)
        return summary

    def check_end(self) -> dict[str, Any]:
        """Stop, verify and restart; kill, and restart.

        Returns:
            The counts of the traffic.
        """
        self.unwatch()
        traffic = self.check_traffic()
        self.stop_broker()
        self.check_verified()
        self.start()
        self._check_served("after a stop")
        self.kill_broker()
        self.start()
        self._check_served("after a kill")
        self.stop_broker()
        self.check_verified()
        problems = self.log_problems(60)
        assert not problems, "\n".join(problems)
        return traffic

    def check_verified(self) -> None:
        """Verify the store, which no process has open."""
        command = [sys.executable, "-m", "reput", "store", "verify", str(self.store)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def _check_served(self, when: str) -> None:
        problem = lasting_problem(self.metrics_port)
        assert not problem, f"{when}: {problem}"
        assert "reput_healthy" in self.metrics(), when

    def __exit__(self, *error: Any) -> None:
        self.unwatch()
        if self._traffic is not None:
            self._traffic.kill()
            self._traffic.communicate()
        super().__exit__(*error)


def health_problem(metrics_port: int) -> str:
    """Return the problems in /health; an empty text if there are none."""
    url = f"http://127.0.0.1:{metrics_port}/health"
    try:
        with urllib.request.urlopen(url, timeout=HEALTH_S) as reply:
            reply.read()
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code}: {'; '.join(json.load(error).get('problems', []))}"
    except OSError as error:
        return str(error)


def lasting_problem(metrics_port: int) -> str:
    """Return the problems in /health, if it reports them for ``HEALTH_S``."""
    deadline = time.monotonic() + HEALTH_S
    while problem := health_problem(metrics_port):
        if time.monotonic() > deadline:
            break
        pause(0.5)
    return problem


def pause(seconds: float) -> None:
    """Wait."""
    select.select([], [], [], seconds)
