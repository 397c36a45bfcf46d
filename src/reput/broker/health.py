"""Is the broker well? What /health says, and what an operator is told.

Red when somebody should look now: a background loop died or hangs, the disk failed or is full, the
loop of the process does not answer (which only the one who asks can see). A name server that does
not know the broker is a warning: clients that have the route go on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reput.broker.server import Broker

SILENT_MS_MAX: Mapping[str, int] = {
    "store": 10_000,
    "disk": 60_000,  # a sync of a slow disk takes long; puts are refused or late meanwhile
    "holds": 10_000,
    "delayed": 10_000,
    "tables": 30_000,
    "clients": 40_000,
    "registration": 180_000,  # 60 s between two, and time for name servers that do not answer
}
"""Loop -> how long it may take between two turns. Loops that turn on demand are not in here."""


@dataclass(frozen=True, slots=True)
class Health:
    """What was found."""

    problems: tuple[str, ...] = ()
    """Why it is red; empty: green."""
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """For whoever wants to know more; JSON."""

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def describe(self) -> dict[str, Any]:
        """Return all as JSON."""
        return {
            "status": "ok" if self.is_well else "failing",
            "problems": list(self.problems),
            "warnings": list(self.warnings),
            **self.details,
        }


def judge_loops(
    turns: Mapping[str, int], failures: Mapping[str, str], started_ms: int, monotonic_ms: int
) -> list[str]:
    """Return what is wrong with the background loops.

    Args:
        turns: Loop -> monotonic ms of its last turn; missing: it has not turned yet.
        failures: Loop -> the error it ended with, until it turns again.
        started_ms: When they were started, monotonic.
        monotonic_ms: What the time is.
    """
    problems = [f"loop {name} failed: {error}" for name, error in sorted(failures.items())]
    for name, limit_ms in SILENT_MS_MAX.items():
        silent_ms = monotonic_ms - turns.get(name, started_ms)
        if silent_ms > limit_ms and name not in failures:
            problems.append(f"loop {name} has not turned for {silent_ms} ms")
    return problems


def look(broker: "Broker", started_ms: int) -> Health:
    """Return how a broker is. On the loop's thread.

    Args:
        broker: Which.
        started_ms: When its loops were started, monotonic.
    """
    monotonic_ms = broker.clock.monotonic_ms()
    loops, store = broker.loops, broker.store
    problems = judge_loops(loops.turns, loops.failures, started_ms, monotonic_ms)
    failure = store.flusher.failure
    if failure is not None:
        problems.append(f"the disk failed: {failure}")
    elif store.refusal and broker.is_master:
        problems.append(f"no messages are taken: {store.refusal}")
    if store.is_page_cache_busy():
        problems.append("a put hangs in the page cache: the disk is too slow")
    warnings = [
        f"name server {server} does not know this broker: {why}"
        for server, why in sorted(broker.registration.problems.items())
    ]
    if not broker.config.name_servers:
        warnings.append("no name server is told of this broker: namesrvAddr is empty")
    return Health(
        tuple(problems),
        tuple(warnings),
        {
            "broker": broker.config.broker_name,
            "cluster": broker.config.broker_cluster_name,
            "address": broker.address,
            "uptime_ms": broker.clock.now_ms() - broker.started_ms,
            "loops": {
                name: {"silent_ms": monotonic_ms - turned_ms}
                for name, turned_ms in sorted(loops.turns.items())
            },
        },
    )
