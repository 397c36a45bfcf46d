"""Is the broker well? What /health says, and what an operator is told.

Red when somebody should look now: a background loop died or hangs, the disk failed or is full, the
loop of the process does not answer (which only the one who asks can see). A name server that does
not know the broker is a warning: clients that have the route go on. So are stored records that a
loop has passed over.
"""

from collections.abc import Mapping

from reput.broker.loops import Loops
from reput.broker.parts import Parts
from reput.errors import excerpt
from reput.remoting.health import Health

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


def look(parts: Parts, loops: Loops, started_ms: int) -> Health:
    """Return how a broker is. On the loop's thread.

    Args:
        parts: The parts of the broker.
        loops: Its loops.
        started_ms: When its loops were started, monotonic.
    """
    monotonic_ms = parts.clock.monotonic_ms()
    store = parts.store
    problems = judge_loops(loops.turns, loops.failures, started_ms, monotonic_ms)
    failure = store.flusher.failure
    told = ""
    if failure is not None:
        told = str(failure)
        problems.append(f"the disk failed: {told}")
    elif store.refusal and parts.identity.is_master:
        told = store.refusal
        problems.append(f"no messages are taken: {told}")
    # As a list: the disk's thread adds to it.
    problems += [text for text in list(store.watch.problems.values()) if text != told]
    problems += [
        f"{place} cannot be written for now: {text}"
        for place, text in parts.write_failures.current.items()
    ]
    if store.is_page_cache_busy():
        problems.append("a put hangs in the page cache: the disk is too slow")
    warnings = [
        f"name server {server} does not know this broker: {excerpt(why)}"
        for server, why in sorted(parts.registration.problems.items())
    ]
    warnings += [
        f"no name server can be told of topic {topic!r}: {excerpt(why)}"
        for topic, why in sorted(parts.registration.untold.items())
    ]
    warnings += parts.start_warnings
    if store.retention.ages.warning:
        warnings.append(store.retention.ages.warning)
    if not parts.settings.broker.name_servers:
        warnings.append("no name server is told of this broker: namesrvAddr is empty")
    quarantine = parts.quarantine
    warnings += [
        f"loop {loop} has passed over {count} stored records that it cannot process; the last ones "
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
            "passed_over": [
                {"loop": record.loop, "place": record.place, "reason": record.reason}
                for record in reversed(quarantine.recent)
            ],
            "refusals": dict(sorted(parts.serving.refusals.counts.items())),
        },
    )
