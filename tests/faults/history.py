"""The history of a run with faults, and the rules that it must keep.

    history = History(Guarantee.SYNC)
    history.sends.append(Send(...))      # while the run lasts
    history.reads.append(Read(...))
    history.logs.append(LogCopy(...))    # after healing
    problems = history.check()

A history knows only what clients saw: sends with their replies, and reads from any broker at any
time. Reads after healing, of every replica, are final. Checking is pure. The rules:

1. **lost**: an acknowledged message is in the final reads, with the same bytes.
2. **reused**: a place (topic, queue, queue offset) has one key, over all replies and all reads.
3. **order**: messages of a producer in a queue have the order in which they were sent.
4. **phantom**: each message that is read was sent, to that queue, with these bytes, and is there
   once.
5. **refused**: a message that a broker refused to store is never read. A message with any other
   status or without a reply may be stored or not.
6. **diverged**: after healing all replicas have the same log and the same queues.
7. **offsets**: a consumer offset never goes back further than one period of synchronisation.
8. **late**: sends succeed again within a given time after a fault.
"""

import dataclasses
import enum
import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Queue = tuple[str, int]
"""Topic and queue id."""
Place = tuple[str, int, int]
"""Topic, queue id and queue offset."""

SHOWN_MAX = 5
"""Problems of a rule that a summary shows."""


class Status(enum.StrEnum):
    """Outcome of a send, as its producer saw it."""

    OK = "SEND_OK"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    UNKNOWN = "no reply"
    """Timeout or lost connection."""
    REFUSED = "refused"
    """The broker replied that it has not stored the message."""
    UNSENT = "not connected"
    """There was no connection, so that no byte was sent."""


NEVER_STORED = frozenset({Status.REFUSED, Status.UNSENT})


class Rule(enum.StrEnum):
    """Rule of a history."""

    LOST = "lost"
    REUSED = "reused"
    ORDER = "order"
    PHANTOM = "phantom"
    REFUSED = "refused"
    DIVERGED = "diverged"
    OFFSETS = "offsets"
    LATE = "late"


class Guarantee(enum.StrEnum):
    """Guarantee of an acknowledgement; see docs/how-to/replicate-a-broker.md."""

    SYNC = "sync"
    """Two brokers have the message: one failure loses nothing."""
    ASYNC = "async"
    """The master has the message: a promotion loses at most the end of the log."""
    DISK = "disk"
    """The disks of two brokers have the message: a power cut of both loses nothing."""

    @property
    def may_lose_end(self) -> bool:
        """Whether acknowledged messages at the end of the log may be lost."""
        return self is Guarantee.ASYNC


def digest(body: bytes) -> str:
    """Return a short hash of a message's bytes."""
    return hashlib.blake2b(body, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Send:
    """A send and its outcome.

    Attributes:
        key: Unique key of the message.
        body: Hash of the body.
        term: Number of promotions and of power cuts before it.
        queue_offset: Queue offset of the reply; None without one.
        physical_offset: Physical offset of the reply; None without one.
    """

    key: str
    producer: str
    broker: str
    topic: str
    queue_id: int
    body: str
    started_ms: int
    ended_ms: int
    status: Status
    term: int = 0
    queue_offset: int | None = None
    physical_offset: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Read:
    """A message as a broker returned it.

    Attributes:
        is_final: Whether it was read after healing.
    """

    broker: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    key: str
    body: str
    time_ms: int
    is_final: bool = False

    @property
    def place(self) -> Place:
        return self.topic, self.queue_id, self.queue_offset


@dataclass(frozen=True, slots=True)
class Commit:
    """A consumer offset that a broker has acknowledged."""

    broker: str
    group: str
    topic: str
    queue_id: int
    consumer_offset: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Observation:
    """A consumer offset that a broker returned.

    Attributes:
        is_master: Whether the broker was the master; a slave's offset may be a period older.
        queue_end: End of the queue there; offsets above it are lowered after a loss.
    """

    broker: str
    group: str
    topic: str
    queue_id: int
    consumer_offset: int
    queue_end: int
    time_ms: int
    is_master: bool = True


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, from its beginning until the system was whole again."""

    name: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Expectation:
    """Deadline by which a send must succeed."""

    name: str
    start_ms: int
    within_ms: int


@dataclass(frozen=True, slots=True)
class LogCopy:
    """A replica's log after healing.

    Attributes:
        start: Physical offset of its first byte.
        data: Its bytes up to its end.
    """

    broker: str
    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken rule."""

    rule: Rule
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass
class History:
    """The history of a run.

    Attributes:
        guarantee: The promise of an acknowledgement.
        replicas: Names of the brokers that must be equal after healing.
        sync_period_ms: Period in which a slave copies consumer offsets.
        term: Number of promotions and of power cuts; each may lose the end of a log, where the
            guarantee allows that.
        has_confirmed_reads: Whether brokers return only messages that cannot be lost. Brokers
            without controllers do not: a consumer may read a message of a master before the slave
            has it, and its place is given again if the master dies.
    """

    guarantee: Guarantee = Guarantee.SYNC
    replicas: Sequence[str] = ()
    sync_period_ms: int = 10_000
    term: int = 0
    has_confirmed_reads: bool = False
    sends: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    expectations: list[Expectation] = field(default_factory=list)
    logs: list[LogCopy] = field(default_factory=list)

    def check(self) -> list[Problem]:
        """Return all broken rules."""
        return [
            *self._lost(),
            *self._reused(),
            *self._order(),
            *self._phantoms(),
            *self._refused(),
            *self._diverged(),
            *self._offsets(),
            *self._late(),
        ]

    def statuses(self) -> dict[str, int]:
        """Return the number of sends by status."""
        return dict(Counter(str(send.status) for send in self.sends))

    def lost_keys(self) -> set[str]:
        """Return the keys of acknowledged messages that are on no replica after healing."""
        return {send.key for send in self._acknowledged()} - {read.key for read in self._final()}

    def save(self, path: Path) -> None:
        """Write the history as JSON lines; logs only as hash."""
        with path.open("w", encoding="utf-8") as file:
            for kind in ("faults", "expectations", "sends", "reads", "commits", "observations"):
                for entry in getattr(self, kind):
                    line = {"kind": kind, **dataclasses.asdict(entry)}
                    file.write(json.dumps(line) + "\n")
            for log in self.logs:
                line = {"kind": "logs", "broker": log.broker, "start": log.start, "end": log.end}
                file.write(json.dumps({**line, "digest": digest(log.data)}) + "\n")

    # --- parts ----------------------------------------------------------------

    def _acknowledged(self) -> Iterator[Send]:
        return (send for send in self.sends if send.status is Status.OK)

    def _final(self) -> Iterator[Read]:
        return (read for read in self.reads if read.is_final)

    # --- rule 1 -----------------------------------------------------------------

    def _lost(self) -> Iterator[Problem]:
        brokers = set(self.replicas) or {read.broker for read in self._final()}
        kept: dict[str, dict[str, str]] = {broker: {} for broker in brokers}
        for read in self._final():
            kept.setdefault(read.broker, {})[read.key] = read.body
        for broker, bodies in sorted(kept.items()):
            missing = [send for send in self._acknowledged() if send.key not in bodies]
            if self.guarantee.may_lose_end:
                missing = list(_not_at_the_end(missing, self._acknowledged(), self.term))
            for send in missing:
                yield Problem(Rule.LOST, f"{_name(send)} is not on {broker}")
            for send in self._acknowledged():
                if bodies.get(send.key, send.body) != send.body:
                    yield Problem(Rule.LOST, f"{_name(send)} has other bytes on {broker}")
        if not kept and any(True for _ in self._acknowledged()):
            yield Problem(Rule.LOST, "messages were acknowledged, but nothing was read at the end")

    # --- rule 2 -----------------------------------------------------------------

    def _reused(self) -> Iterator[Problem]:
        final_keys = {read.key for read in self._final()}
        acknowledged = {send.key for send in self._acknowledged()}
        keys: dict[Place, dict[str, str]] = defaultdict(dict)
        for send in self._acknowledged():
            if send.queue_offset is not None:
                place = send.topic, send.queue_id, send.queue_offset
                keys[place].setdefault(send.key, f"reply of {send.broker} at {send.ended_ms} ms")
        for read in self.reads:
            keys[read.place].setdefault(read.key, f"read from {read.broker} at {read.time_ms} ms")
        for place, sources in keys.items():
            # A lost message has had its place; another one may have it now.
            lost = {key for key in sources if key not in final_keys}
            if not self.has_confirmed_reads:
                sources = _without(sources, lost - acknowledged)
            if self.guarantee.may_lose_end:
                sources = _without(sources, lost)
            if len(sources) > 1:
                texts = ", ".join(f"{key} ({source})" for key, source in sources.items())
                yield Problem(Rule.REUSED, f"{_place(place)} was given to {texts}")

    # --- rule 3 -----------------------------------------------------------------

    def _order(self) -> Iterator[Problem]:
        """Compare the order of replies and of each replica with the order of sends."""
        acknowledged = sorted(self._acknowledged(), key=lambda send: send.started_ms)
        lost = self.lost_keys() if self.guarantee.may_lose_end else set()
        places = {send.key: send.queue_offset for send in acknowledged if send.key not in lost}
        yield from _unordered(acknowledged, places, "replies")
        by_broker: dict[str, dict[str, int]] = defaultdict(dict)
        for read in self._final():
            by_broker[read.broker].setdefault(read.key, read.queue_offset)
        for broker, queue_offsets in sorted(by_broker.items()):
            there = [send for send in acknowledged if send.key in queue_offsets]
            yield from _unordered(there, queue_offsets, broker)

    # --- rule 4 -----------------------------------------------------------------

    def _phantoms(self) -> Iterator[Problem]:
        sent = {send.key: send for send in self.sends}
        seen: dict[tuple[str, str], Place] = {}
        for read in self.reads:
            send, place = sent.get(read.key), read.place
            if send is None:
                yield Problem(Rule.PHANTOM, f"{read.key!r} on {read.broker} was never sent")
                continue
            if (send.topic, send.queue_id, send.body) != (read.topic, read.queue_id, read.body):
                text = f"{_name(send)} was read from {read.broker} at {_place(place)}"
                yield Problem(Rule.PHANTOM, f"{text}, in another queue or with other bytes")
            if read.is_final:
                before = seen.setdefault((read.broker, read.key), place)
                if before != place:
                    text = f"{read.key} is twice on {read.broker}: {_place(before)}"
                    yield Problem(Rule.PHANTOM, f"{text} and {_place(place)}")

    # --- rule 5 -----------------------------------------------------------------

    def _refused(self) -> Iterator[Problem]:
        refused = {send.key: send for send in self.sends if send.status in NEVER_STORED}
        for key in sorted({read.key for read in self.reads} & refused.keys()):
            send = refused[key]
            text = f"{_name(send)} was refused ({send.status}: {send.reason}), but is stored"
            yield Problem(Rule.REFUSED, text)

    # --- rule 6 -----------------------------------------------------------------

    def _diverged(self) -> Iterator[Problem]:
        for first, other in itertools.pairwise(self.logs):
            yield from _different_logs(first, other)
        queues: dict[str, dict[Place, str]] = {broker: {} for broker in self.replicas}
        for read in self._final():
            queues.setdefault(read.broker, {})[read.place] = read.key
        names = list(queues)
        for first_name, other_name in itertools.pairwise(names):
            mine, theirs = queues[first_name], queues[other_name]
            for place in sorted(mine.keys() | theirs.keys()):
                if mine.get(place) != theirs.get(place):
                    text = f"{_place(place)}: {first_name} has {mine.get(place)}"
                    yield Problem(Rule.DIVERGED, f"{text}, {other_name} has {theirs.get(place)}")
        for replica in self.replicas:
            if self.logs and replica not in {log.broker for log in self.logs}:
                yield Problem(Rule.DIVERGED, f"there is no log of {replica}")

    # --- rule 7 -----------------------------------------------------------------

    def _offsets(self) -> Iterator[Problem]:
        spans = list(_merged(self.faults, self.sync_period_ms))
        commits: dict[tuple[str, str, int], list[Commit]] = defaultdict(list)
        for commit in self.commits:
            commits[commit.group, commit.topic, commit.queue_id].append(commit)
        for observation in self.observations:
            name = observation.group, observation.topic, observation.queue_id
            lowest = min(
                observation.queue_end,
                max(
                    (
                        commit.consumer_offset
                        for commit in commits[name]
                        if self._must_be_known(commit, observation, spans)
                    ),
                    default=-1,
                ),
            )
            if observation.consumer_offset < lowest:
                text = f"{observation.group} on {name[1]}/{name[2]}: {observation.broker} returned"
                text += f" {observation.consumer_offset} at {observation.time_ms} ms,"
                yield Problem(Rule.OFFSETS, f"{text} after {lowest} had been committed")

    def _must_be_known(
        self, commit: Commit, observation: Observation, spans: Iterable[tuple[int, int]]
    ) -> bool:
        until_ms = observation.time_ms
        if not observation.is_master:
            until_ms -= self.sync_period_ms
        for start_ms, end_ms in spans:
            if start_ms <= observation.time_ms and end_ms >= commit.time_ms:
                until_ms = min(until_ms, start_ms - self.sync_period_ms)
        return commit.time_ms <= until_ms

    # --- rule 8 -----------------------------------------------------------------

    def _late(self) -> Iterator[Problem]:
        times = sorted(send.ended_ms for send in self._acknowledged())
        for expected in self.expectations:
            first = next((time for time in times if time >= expected.start_ms), None)
            if first is None or first > expected.start_ms + expected.within_ms:
                took = "never" if first is None else f"after {first - expected.start_ms} ms"
                text = f"after {expected.name} at {expected.start_ms} ms a send succeeded {took},"
                yield Problem(Rule.LATE, f"{text} allowed are {expected.within_ms} ms")


def summary(problems: Sequence[Problem]) -> str:
    """Return the problems, a line each, at most five of a rule."""
    lines = []
    for rule, count in Counter(problem.rule for problem in problems).items():
        texts = [str(problem) for problem in problems if problem.rule is rule]
        lines += texts[:SHOWN_MAX]
        if count > SHOWN_MAX:
            lines.append(f"{rule}: and {count - SHOWN_MAX} more")
    return "\n".join(lines)


def _not_at_the_end(
    missing: Iterable[Send], acknowledged: Iterable[Send], term: int
) -> Iterator[Send]:
    """Return the missing messages that are not at the end of a term, and those of the last one."""
    gone = list(missing)
    names = {send.key for send in gone}
    ends: dict[int, int] = {}
    for send in acknowledged:
        if send.key not in names and send.physical_offset is not None:
            ends[send.term] = max(ends.get(send.term, -1), send.physical_offset)
    for send in gone:
        end = ends.get(send.term, -1)
        if send.term >= term or send.physical_offset is None or send.physical_offset < end:
            yield send


def _without(sources: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    excluded = set(keys)
    return {key: source for key, source in sources.items() if key not in excluded}


def _unordered(
    sends: Iterable[Send], places: Mapping[str, int | None], source: str
) -> Iterator[Problem]:
    """Find pairs of sends, the first of which ended before the second began, in wrong order."""
    by_stream: dict[tuple[str, str, int], list[Send]] = defaultdict(list)
    for send in sends:
        by_stream[send.producer, send.topic, send.queue_id].append(send)
    for stream in by_stream.values():
        ended = sorted(stream, key=lambda send: send.ended_ms)
        highest: tuple[int, Send] | None = None
        next_ended = 0
        for send in stream:
            while next_ended < len(ended) and ended[next_ended].ended_ms <= send.started_ms:
                place = places.get(ended[next_ended].key)
                if place is not None and (highest is None or place > highest[0]):
                    highest = place, ended[next_ended]
                next_ended += 1
            place = places.get(send.key)
            if highest is not None and place is not None and place <= highest[0]:
                earlier = highest[1]
                if earlier is not send:
                    text = f"{earlier.key} at {highest[0]} was sent before {send.key} at {place}"
                    yield Problem(Rule.ORDER, f"{send.topic}/{send.queue_id}, {source}: {text}")


def _different_logs(first: LogCopy, other: LogCopy) -> Iterator[Problem]:
    names = f"{first.broker} and {other.broker}"
    if first.end != other.end:
        text = f"the logs of {names} end at {first.end} and {other.end}"
        yield Problem(Rule.DIVERGED, text)
    start, end = max(first.start, other.start), min(first.end, other.end)
    mine = first.data[start - first.start : end - first.start]
    theirs = other.data[start - other.start : end - other.start]
    if start > end:
        yield Problem(Rule.DIVERGED, f"the logs of {names} have no byte in both")
    elif mine != theirs:
        differs = next(
            i for i, pair in enumerate(zip(mine, theirs, strict=True)) if len({*pair}) > 1
        )
        yield Problem(Rule.DIVERGED, f"the logs of {names} differ at {start + differs}")


def _merged(faults: Iterable[Fault], gap_ms: int) -> Iterator[tuple[int, int]]:
    """Return the times of faults; a calm time shorter than a period does not separate them."""
    span: tuple[int, int] | None = None
    for fault in sorted(faults, key=lambda fault: fault.start_ms):
        if span is not None and fault.start_ms <= span[1] + gap_ms:
            span = span[0], max(span[1], fault.end_ms)
            continue
        if span is not None:
            yield span
        span = fault.start_ms, fault.end_ms
    if span is not None:
        yield span


def _name(send: Send) -> str:
    where = f"{send.topic}/{send.queue_id}/{send.queue_offset}, physical {send.physical_offset}"
    return f"{send.key} ({where}, acknowledged by {send.broker} at {send.ended_ms} ms)"


def _place(place: Place) -> str:
    return "/".join(map(str, place))
