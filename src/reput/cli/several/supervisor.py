"""Runs the processes of several brokers: starts and restarts them, and passes on their log.

A broker that ends with exit code 0 was stopped, for instance after draining: it stays stopped.
Any other end is a failure: it is started again, after a second, then after twice as long each time,
up to a minute; after a minute of service the next delay is a second again.

If systemd watches the parent, the parent watches the brokers in the same way: each reports to it
that its loop turns, and one that does not is killed, and started again.
"""

import asyncio
import contextlib
import enum
import logging
import math
import socket
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from reput.cli import log_lines
from reput.cli.child_broker import ChildBroker
from reput.cli.server_texts import CannotServe
from reput.cli.several import free_ports
from reput.cli.several.plan import BrokerPlan
from reput.cli.systemd import FEEDS_PER_TIMEOUT, SOCKET, STOPPING, WATCHDOG_US

FIRST_DELAY_S = 1.0
DELAY_MAX_S = 60.0
SERVED_S = 60.0
"""Time after which a serving broker restarts with the first delay again, in seconds."""
CHOICES_MAX = 5
"""Starts with newly chosen ports, if another process has taken one meanwhile."""
ANY_GRPC_PORT = "--any-grpc-port"
"""Option of a broker that serves 5.x clients at any port."""
_PORT, _GRPC_PORT = "REPUT_LISTEN_PORT", "REPUT_GRPC_SERVER_PORT"
_READ_BYTES = 1 << 16
_LINE_BYTES_MAX = 1 << 20

_log = logging.getLogger(__name__)


class State(enum.StrEnum):
    """State of a broker."""

    STARTING = "starting"
    SERVING = "serving"
    FAILED = "failed"
    STOPPED = "stopped"


class Supervised:
    """A broker under the parent.

    Args:
        member: The broker.
        options: Options of its process.
        socket: Path of the socket where it answers questions about metrics and health.
        environment: Environment of its process.
        host: Address on which it listens.
    """

    def __init__(
        self,
        member: BrokerPlan,
        options: list[str],
        socket: Path,
        environment: Mapping[str, str],
        host: str = "",
    ) -> None:
        self.member = member
        self.child = ChildBroker(member.name, member.conf)
        self.socket = socket
        self.state = State.STARTING
        self.restart_count = 0
        self.last_end = ""
        """How the last process of the broker ended."""
        self._options = [*options, "--monitor-socket", str(socket)]
        if member.core is not None:
            self._options += ["--core", str(member.core)]
        self._environment = dict(environment)
        self._host = host
        self.fed_s = 0.0
        """Time of the broker's last report, by the monotonic clock; infinite once it stops."""
        self._last_line = ""
        self._reading: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the broker, and wait until it serves.

        Raises:
            CannotServe: It has ended instead.
        """
        for _ in range(CHOICES_MAX):
            is_chosen = self._choose_ports()
            try:
                await self._start()
            except CannotServe:
                # Another process may have taken a port between its choice and this start.
                if not (is_chosen and "is in use" in self._last_line):
                    raise
                del self._environment[_PORT]
            else:
                return
        raise CannotServe(f"{self.member.name} did not start: {self._last_line}")

    def _choose_ports(self) -> bool:
        """Choose ports that may be any, once: after a restart clients find it at the same ones."""
        if _PORT in self._environment or self.member.own["listenPort"] != "0":
            return False
        port = free_ports.choose(self._host)
        if port is None:
            return False
        self._environment[_PORT] = str(port)
        if ANY_GRPC_PORT in self._options:
            self._environment[_GRPC_PORT] = str(port - 1)
        return True

    async def _start(self) -> None:
        self._last_line = ""
        await self.child.launch(
            *self._options, log=asyncio.subprocess.PIPE, environment=self._environment
        )
        process = self.child.process
        assert process is not None
        assert process.stderr is not None
        self._reading = [asyncio.create_task(self._pass_on(process.stderr))]
        if not await self.child.await_start():
            self.last_end = await self.child.wait()
            await asyncio.gather(*self._reading)
            self.state = State.FAILED
            reason = self._last_line or self.last_end
            raise CannotServe(f"{self.member.name} did not start: {reason}")
        assert process.stdout is not None
        self._reading.append(asyncio.create_task(self._pass_on(process.stdout)))
        # The same one after a restart also where none could be chosen.
        self._environment[_PORT] = self.child.address.rpartition(":")[2]
        self.fed_s = time.monotonic()
        self.state = State.SERVING

    async def keep(self) -> None:
        """Wait for the end of the started broker, and start it again while it fails."""
        delay_s = FIRST_DELAY_S
        while True:
            begin = time.monotonic()
            if self.state is State.SERVING:
                self.last_end = await self.child.wait()
                await asyncio.gather(*self._reading)
                if self.child.process is not None and self.child.process.returncode == 0:
                    self.state = State.STOPPED
                    _log.warning("%s was stopped, and is not started again", self.member.name)
                    return
                self.state = State.FAILED
                if time.monotonic() - begin >= SERVED_S:
                    delay_s = FIRST_DELAY_S
            _log.error(
                "%s has ended (%s), and is started again in %.0f s",
                *(self.member.name, self.last_end, delay_s),
            )
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, DELAY_MAX_S)
            self.restart_count += 1
            self.state = State.STARTING
            try:
                await self.start()
            except CannotServe as error:
                _log.error("%s", error)
            else:
                _log.warning("%s serves again, pid %s", self.member.name, self.child.pid)

    @contextlib.asynccontextmanager
    async def watched(self, timeout_s: float) -> AsyncIterator[None]:
        """Kill the broker whenever it reports nothing for some time; ``keep`` starts it again.

        Enter it before ``start``: the process gets the address for its reports.

        Args:
            timeout_s: The time, in seconds.
        """
        address = f"{self.socket}.notify"
        self._environment |= {SOCKET: address, WATCHDOG_US: str(round(timeout_s * 1e6))}
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        receiver.setblocking(False)
        receiver.bind(address)
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Feeds(self), sock=receiver
        )
        watching = asyncio.create_task(self._watch(timeout_s))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait((watching,))
            transport.close()

    async def _watch(self, timeout_s: float) -> None:
        while True:
            await asyncio.sleep(timeout_s / FEEDS_PER_TIMEOUT)
            process = self.child.process
            is_silent = time.monotonic() - self.fed_s > timeout_s
            if is_silent and self.state is State.SERVING and self.child.is_running:
                assert process is not None
                _log.error(
                    "%s has not reported for %.0f s, and is killed", self.member.name, timeout_s
                )
                process.kill()

    async def stop(self) -> None:
        """Stop the broker cleanly."""
        await self.child.stop()
        if self._reading:
            await asyncio.gather(*self._reading, return_exceptions=True)
        if self.state is State.SERVING:
            self.state = State.STOPPED

    async def _pass_on(self, stream: asyncio.StreamReader) -> None:
        """Write the lines of the broker's output into the log of this process, with its name."""
        rest = b""
        while data := await stream.read(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _LINE_BYTES_MAX:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._write(line)
        if rest:
            self._write(rest)

    def _write(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._last_line = text
            log_lines.pass_on(text, broker=self.member.name)


class _Feeds(asyncio.DatagramProtocol):
    """Receives the reports of a broker."""

    def __init__(self, broker: Supervised) -> None:
        self._broker = broker

    def datagram_received(self, data: bytes, addr: object) -> None:
        is_stopping = f"{STOPPING}=1".encode() in data.splitlines()
        self._broker.fed_s = math.inf if is_stopping else time.monotonic()
