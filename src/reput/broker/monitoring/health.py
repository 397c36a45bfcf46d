"""Health of the broker, as /health reports it.

Unhealthy means that an operator should act now: a background loop failed or hangs, the disk failed
or is full, the event loop does not respond (which only the requester can see). A name server
without this broker is a warning: clients that have the route continue. So are stored records that a
loop has skipped.
"""

from collections.abc import Mapping

from reput.broker.loops import Loops
from reput.broker.monitoring import replication_state
from reput.broker.parts import Parts
from reput.errors import excerpt
from reput.remoting.health import Health

SILENT_MS_MAX: Mapping[str, int] = {
    "store": 10_000,
    "disk": 60_000,  # a slow disk takes long to sync; meanwhile puts are refused or delayed
    "holds": 10_000,
    "delayed": 10_000,
    "tables": 30_000,
    "clients": 40_000,
    "registration": 180_000,  # an interval of 60 s, plus the timeouts of name servers
}
"""Loop -> longest time between two turns, in ms. Loops that turn on demand are not listed."""


def judge_loops(
    turns: Mapping[str, int], failures: Mapping[str, str], started_ms: int, monotonic_ms: int
) -> list[str]:
    """Return the problems of the background loops.

    Args:
        turns: Loop -> monotonic ms of its last turn; missing before the first turn.
        failures: Loop -> the error that it ended with, until its next turn.
        started_ms: Start of the loops, monotonic ms.
        monotonic_ms: The time.
    """
    problems = [f"loop {name} failed: {error}" for name, error in sorted(failures.items())]
    for name, limit_ms in SILENT_MS_MAX.items():
        silent_ms = monotonic_ms - turns.get(name, started_ms)
        if silent_ms > limit_ms and name not in failures:
            problems.append(f"loop {name} has not turned for {silent_ms} ms")
    return problems


def check(parts: Parts, loops: Loops, started_ms: int) -> Health:
    """Return the health of a broker. To be called on the event loop.

    Args:
        parts: The parts of the broker.
        loops: Its loops.
        started_ms: Start of the loops, monotonic ms.
    """
    monotonic_ms = parts.clock.monotonic_ms()
    store = parts.store
    problems = judge_loops(loops.turns, loops.failures, started_ms, monotonic_ms)
    reported = ""
    if store.flusher.failure is not None:
        reported = str(store.flusher.failure)
        problems.append(store.flusher.problem)
    elif store.why_no_puts and parts.identity.is_master:
        reported = store.why_no_puts
        problems.append(f"no messages are accepted: {reported}")
    # As a list: the disk thread adds entries.
    problems += [text for text in list(store.watch.problems.values()) if text != reported]
    problems += [
        f"{place} cannot be written at present: {text}"
        for place, text in parts.write_failures.current.items()
    ]
    problems += replication_state.problems(parts)
    warnings = [
        f"this broker is not registered with name server {server}: {excerpt(why)}"
        for server, why in sorted(parts.registration.problems.items())
    ]
    warnings += [
        f"topic {topic!r} cannot be registered with name servers: {excerpt(why)}"
        for topic, why in sorted(parts.registration.unencodable.items())
    ]
    warnings += parts.start_warnings
    warnings += replication_state.warnings(parts)
    if store.retention.ages.warning:
        warnings.append(store.retention.ages.warning)
    if not parts.settings.broker.name_servers:
        warnings.append("this broker is not registered with name servers: namesrvAddr is empty")
    quarantine = parts.quarantine
    warnings += [
        f"loop {loop} has skipped {count} stored records that it cannot process; the last ones "
        "are in passed_over"
        for loop, count in sorted(quarantine.counts.items())
    ]
    return Health(
        tuple(problems),
        tuple(warnings),
        {
            "broker": parts.settings.broker.broker_name,
            "cluster": parts.settings.broker.broker_cluster_name,
            "address": parts.identity.address,
            "uptime_ms": parts.clock.now_ms() - parts.identity.started_ms,
            "loops": {
                name: {"silent_ms": monotonic_ms - turned_ms}
                for name, turned_ms in sorted(loops.turns.items())
            },
            "replication": replication_state.describe(parts),
            "passed_over": [
                {"loop": record.loop, "place": record.place, "reason": record.reason}
                for record in reversed(quarantine.recent)
            ],
            "refusals": dict(sorted(parts.serving.refusals.counts.items())),
        },
    )
