"""The rules of a run: those of ``faults.history``, and those of delays, transactions and groups.

1. **early**: a delayed message is not seen before its time.
2. **rolled back**: a half message without a commit is never seen.
3. **acknowledged again**: a popped message is not delivered again after its acknowledgement, unless
   its broker died since the pop, or a clock was set in between, so that the pop may be over.
4. **undelivered**: each group has consumed, or popped and acknowledged, all stored messages after
   healing, unless a slave was promoted: consumers may have read what it did not have.
5. **beyond**: a master has no consumer offset after the end of its queue.
6. **broken**: no program has reported an internal error.
7. **prefix**: the logs of a master and of a slave that follows it are equal as far as both go.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from faults.history import History, Problem, Rule
from sim.workload import DELAYED, POPPERS, PUSHERS, TOPIC, TRANSACTIONAL, Sight

TOLERANCE_MS = 200
"""By how much the clocks of clients, brokers and the timer's rounding may differ."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A broken rule that is not one of ``faults.history``."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass(slots=True)
class Record:
    """What happened in a run.

    Attributes:
        history: What clients saw.
        sight: What the history does not have.
        deaths_ms: Times when a broker died, or changed its role; one that is stopped loses nothing.
        promotions: Number of promotions.
        errors: Errors that programs have reported.
        facts: Rules that were broken while the run lasted.
        jumps_ms: Times when the clock of a broker was set.
        set_back_ms: By how much clocks were set: delayed messages may be due so much later.
    """

    history: History
    sight: Sight
    deaths_ms: list[int] = field(default_factory=list)
    promotions: int = 0
    errors: list[str] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    jumps_ms: list[int] = field(default_factory=list)
    set_back_ms: int = 0


def check(record: Record) -> list[Problem | Fact]:
    """Return all broken rules of a run."""
    return [
        *record.facts,
        *(problem for problem in record.history.check() if not _may_be(problem, record)),
        *_early(record),
        *_rolled_back(record),
        *_acked_again(record),
        *_undelivered(record),
        *_beyond(record),
        *(Fact("broken", text) for text in record.errors),
    ]


def _may_be(problem: Problem, record: Record) -> bool:
    """Return whether delivery at least once explains a problem.

    A broker that dies delivers delayed messages again, and the answer to a check may come twice.
    """
    if problem.rule is Rule.REUSED and record.promotions:
        # A copy that consumers saw was lost with the old master, and was delivered again since.
        return problem.text.startswith((f"{DELAYED}/", f"{TRANSACTIONAL}/"))
    if problem.rule is not Rule.PHANTOM or "is twice" not in problem.text:
        return False
    key = problem.text.split(" ")[0]
    sight = record.sight
    is_repeated = key in sight.due_ms and bool(record.deaths_ms)
    return is_repeated or (key in sight.decided and bool(record.history.faults[1:]))


def _early(record: Record) -> Iterator[Fact]:
    if record.jumps_ms:
        return
    due_ms = record.sight.due_ms
    for read in record.history.reads:
        if read.key in due_ms and read.time_ms < due_ms[read.key] - TOLERANCE_MS:
            early_ms = due_ms[read.key] - read.time_ms
            yield Fact("early", f"{read.key} was read from {read.broker} {early_ms} ms too early")


def _rolled_back(record: Record) -> Iterator[Fact]:
    for read in record.history.reads:
        if read.key in record.sight.rolled_back:
            yield Fact("rolled back", f"{read.key} was read from {read.broker}")


def _acked_again(record: Record) -> Iterator[Fact]:
    acked_ms: dict[str, int] = {}
    for acked in record.sight.acked:
        acked_ms.setdefault(acked.key, acked.time_ms)
    first_ms: dict[str, int] = {}
    for popped in record.sight.popped:
        key = popped.key
        first_ms.setdefault(key, popped.time_ms)
        if popped.time_ms <= acked_ms.get(key, popped.time_ms):
            continue
        # A pop from before a death may come back beside the one that was acknowledged.
        has_died = any(died_ms >= first_ms[key] for died_ms in record.deaths_ms)
        is_late = any(first_ms[key] <= set_ms <= acked_ms[key] for set_ms in record.jumps_ms)
        if not has_died and not is_late:
            text = f"{key}, acknowledged at {acked_ms[key]} ms, was popped at {popped.time_ms} ms"
            yield Fact("acknowledged again", text)


def stored_keys(history: History) -> set[str]:
    """Return the keys of the topic that all groups consume, as they are at the end."""
    return {read.key for read in history.reads if read.is_final and read.topic == TOPIC}


def _undelivered(record: Record) -> Iterator[Fact]:
    if record.promotions or not record.sight.groups:
        return
    wanted = stored_keys(record.history)
    groups = {
        group: {seen.key for seen in consumed} for group, consumed in record.sight.groups.items()
    }
    groups[POPPERS] = {seen.key for seen in record.sight.acked}
    for group in (PUSHERS, POPPERS):
        missing = wanted - groups.get(group, set())
        if missing:
            shown = ", ".join(sorted(missing)[:5])
            yield Fact("undelivered", f"{len(missing)} messages to {group}: {shown}")


def _beyond(record: Record) -> Iterator[Fact]:
    for seen in record.history.observations:
        if seen.is_master and seen.consumer_offset > seen.queue_end:
            text = f"{seen.consumer_offset} in {seen.topic}/{seen.queue_id} of {seen.broker}"
            yield Fact("beyond", f"the consumer offset is {text}, which ends at {seen.queue_end}")


def summary(problems: Iterable[Problem | Fact]) -> str:
    """Return the problems, a line each, at most five of a rule."""
    counts: dict[str, int] = {}
    lines = []
    for problem in problems:
        rule = str(problem.rule)
        counts[rule] = counts.get(rule, 0) + 1
        if counts[rule] <= 5:
            lines.append(str(problem))
    return "\n".join([*lines, *(f"{rule}: {n} in all" for rule, n in counts.items() if n > 5)])
