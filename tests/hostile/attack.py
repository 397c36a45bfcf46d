"""Rounds of hostile traffic: several connections at once, each with its own behaviour.

A round follows from its seed and number: ``script`` returns the bytes that each connection writes,
and ``play`` writes them. Answers of the servers are read and dropped, or not read at all.
"""

import contextlib
import random
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hostile import mutations, requests
from hostile.wire import Draft

PIPELINED = "pipelined"
"""All frames at once; replies are read."""
ONE_BY_ONE = "one by one"
"""The next frame after a reply, or after some time without one."""
UNREAD = "unread"
"""All frames at once; replies are not read until the round ends."""
TRICKLED = "trickled"
"""A few bytes at a time."""
RESET = "reset"
"""A part of the frames, then the connection is reset."""

MANNERS = [PIPELINED, PIPELINED, ONE_BY_ONE, ONE_BY_ONE, UNREAD, TRICKLED, RESET]
REPLY_S = 0.05
"""Time that "one by one" waits for a reply, in s: not every request has one."""
TRICKLE_S = 0.002
WRITE_BYTES = 1 << 16


@dataclass
class Script:
    """The frames that a connection writes."""

    manners: str
    frames: list[tuple[str, bytes]]
    """Description and bytes of each frame."""


@dataclass
class Played:
    """Results of a round."""

    frames: list[tuple[float, str, int]] = field(default_factory=list)
    """Time at which a frame's last byte was written, its description, its length."""
    written_bytes: int = 0
    replies_bytes: int = 0
    closed: int = 0
    """Number of connections that the server closed."""

    def near(self, start: float, end: float) -> list[str]:
        """Return the frames that were written in an interval, or shortly before it."""
        return [
            f"{label} ({size} bytes, {(moment - start) * 1000:+.0f} ms)"
            for moment, label, size in self.frames
            if start - 0.25 <= moment <= end
        ]


def script(
    server: str, seed: int | str, number: int, *, codes: list[int] | None = None, count: int = 60
) -> list[Script]:
    """Return what a round's connections write.

    Args:
        server: ``broker`` or ``namesrv``; ``ha``: the broker's port for slaves.
        seed: Seed of the run.
        number: Number of the round.
        codes: Request codes of the frames; None: all codes, and recorded frames.
        count: Maximum number of frames of a connection.
    """
    rng = random.Random(f"{server}/{seed}/{number}")
    if server == "ha":
        return [_reports(rng) for _ in range(rng.choice([2, 6, 20, 80]))]
    drafts: Mapping[int, list[Draft]] = requests.SERVERS[server]
    others = requests.recorded() if codes is None else []
    if codes is not None:
        drafts = {code: drafts[code] for code in codes}
    scripts = []
    for _ in range(rng.randint(2, 6)):
        manners = rng.choice(MANNERS)
        frames = [mutations.frame(rng, drafts, others) for _ in range(rng.randint(1, count))]
        if manners == PIPELINED and rng.random() < 0.3:
            # The same small request repeatedly, like a broken client.
            label, data = rng.choice(frames)
            if len(data) < 4_096:
                frames += [(f"{label}, repeated", data)] * rng.choice([100, 1_000])
        scripts.append(Script(manners, frames))
    return scripts


REPORTS = (0, 0, 0, 1, 7, 4_096, 1 << 20, 1 << 40, 2**63 - 1, -1, -(2**63))
"""Physical offsets that hostile slaves report."""
REAL_SLAVE = "127.0.0.9"
"""Address of a slave that follows the protocol."""


def _reports(rng: random.Random) -> Script:
    """Return what a hostile slave writes: reports, cut anywhere, or anything else."""
    frames = []
    for _ in range(rng.choice([1, 1, 3, 100])):
        values = [rng.choice(REPORTS)] * rng.choice([1, 1, 2, 1_000])
        data = struct.pack(f">{len(values)}q", *values)
        if rng.random() < 0.2:
            data = rng.randbytes(rng.randint(1, 20_000))
        label = f"{len(values)} reports of {values[0]}"
        frames.append((label, data[: rng.choice([3, 8, 1 << 20])]))
    return Script(rng.choice(MANNERS), frames)


def serves_a_real_slave(port: int, limit_s: float = 30.0) -> bool:
    """Return whether an empty slave gets the first header of the log."""
    source = (REAL_SLAVE, 0)
    with socket.create_connection(("127.0.0.1", port), limit_s, source_address=source) as slave:
        slave.sendall(struct.pack(">q", 0))
        with contextlib.suppress(OSError):
            return bool(slave.recv(1))
    return False


class _Player:
    """A connection that plays its script."""

    def __init__(self, port: int, played: Script, log: Played) -> None:
        self.manners = played.manners
        self._log = log
        self._todo = deque((label, memoryview(data), len(data)) for label, data in played.frames)
        self._waits_until = 0.0
        self._reset_after = sum(len(data) for _, data in played.frames) // 2
        self._written = 0
        self.is_done = False
        self.socket = socket.socket()
        if self.manners == UNREAD:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)

    def events(self, now: float) -> int:
        """Return the events that the connection waits for."""
        events = 0 if self.manners == UNREAD else selectors.EVENT_READ
        if self._todo and now >= self._waits_until:
            events |= selectors.EVENT_WRITE
        return events

    def read(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionResetError
        self._log.replies_bytes += len(data)
        if self.manners == ONE_BY_ONE:
            self._waits_until = 0.0

    def write(self, now: float) -> None:
        label, view, size = self._todo[0]
        limit = 16 if self.manners == TRICKLED and size < 65_536 else WRITE_BYTES
        count = self.socket.send(view[:limit])
        self._written += count
        self._log.written_bytes += count
        view = view[count:]
        if self.manners == TRICKLED:
            self._waits_until = now + TRICKLE_S
        if view:
            self._todo[0] = (label, view, size)
        else:
            self._todo.popleft()
            self._log.frames.append((now, label, size))
            if self.manners == ONE_BY_ONE:
                self._waits_until = now + REPLY_S
        if self.manners == RESET and self._written >= self._reset_after:
            self.close(reset=True)
        elif not self._todo and self.manners != UNREAD:
            self._waits_until = now

    @property
    def has_written(self) -> bool:
        return not self._todo

    def close(self, *, reset: bool = False) -> None:
        self.is_done = True
        if reset:
            with contextlib.suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()


def play(
    port: int,
    scripts: list[Script],
    limit_s: float = 3.0,
    quiet_s: float = 0.3,
    rests: Callable[[], bool] | None = None,
    seconds: Callable[[], float] = time.monotonic,
) -> Played:
    """Play a round, until all is written and no byte arrives for some time, or time is over.

    Args:
        port: Port of the server.
        scripts: What the connections write.
        limit_s: Time of the round, in s.
        quiet_s: Time without a byte that ends it, in s.
        rests: Returns whether the server has nothing to do. The round ends when that is so and no
            byte moves, even if not all is written.
        seconds: The clock of ``limit_s``.
    """
    log = Played()
    players = [_Player(port, player_script, log) for player_script in scripts]
    deadline = seconds() + limit_s
    quiet_at = time.monotonic() + quiet_s
    while seconds() < deadline:
        now = time.monotonic()
        live = [player for player in players if not player.is_done]
        if not live:
            break
        if rests is None and now > quiet_at and all(player.has_written for player in live):
            break
        with selectors.DefaultSelector() as selector:
            for player in live:
                if events := player.events(now):
                    selector.register(player.socket, events, player)
            ready = selector.select(0.005) if selector.get_map() else []
        if not ready:
            if rests is not None and now > quiet_at and rests():
                break
            continue
        for key, events in ready:
            player = key.data
            try:
                if events & selectors.EVENT_READ:
                    player.read()
                    quiet_at = now + quiet_s
                if events & selectors.EVENT_WRITE:
                    player.write(time.monotonic())
                    quiet_at = now + quiet_s
            except BlockingIOError:
                continue
            except OSError:
                log.closed += 1
                player.close()
    for player in players:
        if not player.is_done:
            player.close()
    return log
