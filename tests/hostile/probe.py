"""A client that sends a small request to a server repeatedly, and logs the response times.

    python -m hostile.probe PORT PID FILE REQUEST    in ``tests/``; ends with its stdin

Each line of the file is one of these; times are seconds of the monotonic clock::

    ping START WAIT OWN         a ping that waited for more than ``NOTABLE_S``
    waiting START WAIT OWN      a ping that still waits, once a second
    alive TIME COUNT            replies arrive, ten times a second
    closed TIME                 the connection has ended

OWN is the part of the wait that the server itself has caused: its CPU time, and the time in which
it slept or waited for a disk. The rest of WAIT is time in which other processes of the machine had
the CPU.
"""

import contextlib
import select
import socket
import struct
import sys
import time
from pathlib import Path

NOTABLE_S = 0.005
PAUSE_S = 0.008
"""Pause between two pings, in s."""
STEP_S = 0.002
"""Interval at which the server's state is sampled while it does not answer, in s."""
CONNECT_S = 5.0


class Server:
    """The state of a server's process, from the system."""

    def __init__(self, pid: int) -> None:
        # CPUCLOCK_SCHED of a process, see clock_getcpuclockid(3).
        self._clock = (~pid << 3) | 2
        self._stat = Path(f"/proc/{pid}/task/{pid}/stat")

    def cpu_s(self) -> float:
        """Return the CPU time of the process, in s."""
        return time.clock_gettime(self._clock)

    def wants_cpu(self) -> bool:
        """Return whether the main thread runs, or is runnable."""
        return self._stat.read_text().rpartition(")")[2].split()[0] == "R"


class Probe:
    """Sends the pings and writes the log."""

    def __init__(self, port: int, pid: int, path: str, request: bytes) -> None:
        self._port = port
        self._server = Server(pid)
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115 - open as long as the process
        self._request = request
        self._stdin = sys.stdin.fileno()
        self._count = 0
        self._alive_s = 0.0

    def run(self) -> None:
        """Send pings until stdin ends."""
        while not self._is_stop_requested(0):
            try:
                with socket.create_connection(("127.0.0.1", self._port), CONNECT_S) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.begin(connection)
                    while not self._is_stop_requested(PAUSE_S):
                        self._ping(connection)
            except OSError:
                self._write(f"closed {time.monotonic():.6f}")
                if self._is_stop_requested(0.05):
                    return

    def begin(self, connection: socket.socket) -> None:
        """Write what a connection begins with."""

    def next_request(self) -> bytes:
        """Return the next request."""
        return self._request

    def read_reply(self, connection: socket.socket) -> None:
        """Read a reply, whose first bytes have arrived."""
        _read_frame(connection)

    def _is_stop_requested(self, wait_s: float) -> bool:
        return bool(select.select([self._stdin], [], [], wait_s)[0])

    def _ping(self, connection: socket.socket) -> None:
        start = step_start = time.monotonic()
        cpu = self._server.cpu_s()
        own = 0.0
        reported_s = start + 1
        connection.sendall(self.next_request())
        while not select.select([connection], [], [], STEP_S)[0]:
            now, now_cpu, wants_cpu = time.monotonic(), self._server.cpu_s(), self._is_busy()
            own += self._own_part(now - step_start, now_cpu - cpu, wants_cpu)
            step_start, cpu = now, now_cpu
            if now > reported_s:
                self._write(f"waiting {start:.6f} {now - start:.6f} {own:.6f}")
                reported_s = now + 1
        now, now_cpu = time.monotonic(), self._server.cpu_s()
        own += self._own_part(now - step_start, now_cpu - cpu, wants_cpu=True)
        self.read_reply(connection)
        self._count += 1
        if now - start > NOTABLE_S:
            self._write(f"ping {start:.6f} {now - start:.6f} {own:.6f}")
        if now > self._alive_s + 0.1:
            self._write(f"alive {now:.6f} {self._count}")
            self._alive_s = now

    def _is_busy(self) -> bool:
        with contextlib.suppress(OSError, IndexError):
            return self._server.wants_cpu()
        return False

    @staticmethod
    def _own_part(wait_s: float, cpu_s: float, wants_cpu: bool) -> float:
        ran_s = min(wait_s, cpu_s)
        # Longer than a step: the probe itself was late.
        return ran_s if wants_cpu else max(ran_s, min(wait_s, STEP_S * 1.5))

    def _write(self, line: str) -> None:
        self._file.write(line + "\n")


def _read_frame(connection: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", _read(connection, 4))
    return _read(connection, length)


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


if __name__ == "__main__":
    Probe(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], bytes.fromhex(sys.argv[4])).run()
