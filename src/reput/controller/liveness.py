"""Which brokers are alive: those with heartbeats, on connections that are open.

A broker is alive until its timeout without a heartbeat is over, or its connection closes. When a
controller begins to lead, it *presumes* for the same time that all other masters are alive: they
may acknowledge messages meanwhile, as the leader before may have heard them last. Time in which the
controller itself did not run is no silence. Times are arguments.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from reput.format.controller_headers import HeartbeatHeader

DEFAULT_TIMEOUT_MS = 10_000
"""Java's default of ``controllerHeartBeatTimeoutMills``."""
LEAST_TIMEOUT_MS, MOST_TIMEOUT_MS = 1_000, 60_000
"""Range of the timeout of a heartbeat: outside of it a broker would never be dead, or always."""
_LOWEST_PRIORITY = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Report:
    """The latest heartbeat of a broker."""

    address: str
    epoch: int = -1
    end_offset: int = -1
    """End of its log, a physical offset."""
    priority: int = _LOWEST_PRIORITY
    """The smaller one is preferred."""
    timeout_ms: int = DEFAULT_TIMEOUT_MS


@dataclass(slots=True)
class _Heartbeat:
    seen_ms: int
    report: Report
    connection: object
    has_ended: bool = False
    """Whether the connection has closed."""


class Sight(NamedTuple):
    """The living brokers of a group."""

    alive: Mapping[int, Report]
    presumed: frozenset[int] = frozenset()
    """Brokers that the controller has not heard since it leads, and that may still be alive."""

    def may_act(self, broker_id: int | None) -> bool:
        """Return whether a broker may be alive."""
        return broker_id in self.alive or broker_id in self.presumed


def report_of(header: HeartbeatHeader) -> Report:
    """Return what a heartbeat says."""
    timeout_ms = header.heartbeat_timeout_mills
    if timeout_ms is None or timeout_ms <= 0:
        timeout_ms = DEFAULT_TIMEOUT_MS
    end_offset, priority = header.max_offset, header.election_priority
    return Report(
        header.broker_addr,
        epoch=-1 if header.epoch is None else header.epoch,
        end_offset=-1 if end_offset is None else end_offset,
        priority=_LOWEST_PRIORITY if priority is None else priority,
        timeout_ms=min(max(timeout_ms, LEAST_TIMEOUT_MS), MOST_TIMEOUT_MS),
    )


class Liveness:
    """The latest heartbeats, by broker name and id."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[int, _Heartbeat]] = {}
        self._presumed: dict[str, dict[int, int]] = {}
        """Ends of presumptions, in ms."""

    def hear(
        self, name: str, broker_id: int, report: Report, connection: object, now_ms: int
    ) -> bool:
        """Take a heartbeat; return whether the broker was not alive before."""
        entries = self._entries.setdefault(name, {})
        before = entries.get(broker_id)
        was_alive = before is not None and _is_alive(before, now_ms)
        entries[broker_id] = _Heartbeat(now_ms, report, connection)
        return not was_alive

    def presume(self, name: str, broker_id: int, timeout_ms: int, now_ms: int) -> None:
        """Presume that a broker is alive, for the time of its timeout, unless it ended here."""
        entry = self._entries.get(name, {}).get(broker_id)
        if entry is None or not entry.has_ended:
            end_ms = now_ms + (timeout_ms or DEFAULT_TIMEOUT_MS) + 1
            self._presumed.setdefault(name, {})[broker_id] = end_ms

    def close(self, connection: object) -> list[str]:
        """Take brokers whose connection has ended for dead; return their names.

        An earlier connection of a broker may be closed when a later one is already in use.
        """
        names = []
        for name, entries in self._entries.items():
            ended = [key for key, entry in entries.items() if entry.connection is connection]
            for key in ended:
                entries[key].has_ended = True
                self._presumed.get(name, {}).pop(key, None)
            if ended:
                names.append(name)
        return names

    def forget(self, name: str, broker_id: int | None = None) -> None:
        """Forget a broker that has started again, or all of a name."""
        for table in (self._entries, self._presumed):
            if broker_id is None:
                table.pop(name, None)
            else:
                table.get(name, {}).pop(broker_id, None)

    def pause(self, duration_ms: int, now_ms: int) -> None:
        """Leave out a time in which the controller did not run, and which has just ended."""
        for entry in self._all():
            entry.seen_ms = min(entry.seen_ms + duration_ms, now_ms)
        for ends in self._presumed.values():
            for key in ends:
                ends[key] += duration_ms

    def sight(self, name: str, now_ms: int) -> Sight:
        """Return the living brokers of a group."""
        entries, ends = self._entries.get(name, {}), self._presumed.get(name, {})
        alive = {key: entry.report for key, entry in entries.items() if _is_alive(entry, now_ms)}
        presumed = (key for key, end_ms in ends.items() if now_ms < end_ms and key not in alive)
        return Sight(alive, frozenset(presumed))

    def next_end_ms(self, now_ms: int) -> int | None:
        """Return the earliest time at which a living broker is dead; None if there is none."""
        ends = [_end_ms(entry) for entry in self._all() if _is_alive(entry, now_ms)]
        for table in self._presumed.values():
            ends += [end_ms for end_ms in table.values() if now_ms < end_ms]
        return min(ends, default=None)

    def _all(self) -> Iterator[_Heartbeat]:
        for entries in self._entries.values():
            yield from entries.values()


def _end_ms(entry: _Heartbeat) -> int:
    return entry.seen_ms + entry.report.timeout_ms + 1


def _is_alive(entry: _Heartbeat, now_ms: int) -> bool:
    return not entry.has_ended and now_ms < _end_ms(entry)
