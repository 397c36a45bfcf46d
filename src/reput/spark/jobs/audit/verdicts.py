"""What an audit can say of a message, a hole, a unit, a group, and its numbers. Pure.

Each word has its meaning and its evidence in docs/reference/audit.md.
"""

import dataclasses
import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


class MessageVerdict(enum.StrEnum):
    """What became of a message; each has exactly one."""

    DISPATCHED = "dispatched"
    """Whole, and the unit at its place points at it: consumers get it."""
    UNDISPATCHED = "undispatched"
    """Whole, without a unit yet; the broker, or its next start, makes it."""
    LOST = "lost"
    """Whole, and no unit leads to it: no consumer gets it. A rebuild brings it back."""
    DAMAGED = "damaged"
    """A unit leads to it, and no whole record stands there any more."""
    UNQUEUED = "unqueued"
    """Prepared or rolled back: it belongs into no queue."""
    DELETED = "deleted"
    """Of a topic that was deleted since."""


class Reason(enum.StrEnum):
    """Why a message is lost or damaged."""

    NO_UNIT = "no_unit"
    """No file, zeros or filler where its unit should be."""
    OTHER_UNIT = "other_unit"
    """The unit at its place points elsewhere."""
    WRONG_SIZE = "wrong_size"
    """The unit points at it with another size."""
    WRONG_TAGS = "wrong_tags"
    """The unit points at it with the code of other tags: who filters by tag does not get it."""
    IN_HOLE = "in_hole"
    """Where its unit points lies a hole of the log."""
    BEHIND_END = "behind_end"
    """Where its unit points the log has ended: a crash, or a cut, took its end."""


class Indexed(enum.StrEnum):
    """Whether the index finds a message."""

    INDEXED = "indexed"
    """By each of its keys."""
    MISSING = "missing"
    """Not by each of its keys, though the index covers it."""
    UNCOVERED = "uncovered"
    """From before the oldest index file, or between two that a crash left apart."""
    PENDING = "pending"
    """Behind the last entry of a store that was not stopped."""
    NO_KEYS = "no_keys"
    """It has none, or is rolled back."""


class Stage(enum.StrEnum):
    """How far a message is on a way of several stations."""

    WAITING = "waiting"
    """Delayed, and its time has not come."""
    DUE = "due"
    """Delayed, its time has come, and it is not delivered."""
    DELIVERED = "delivered"
    """Delayed, and the level's delivery is past it."""
    UNDELIVERED = "undelivered"
    """Delayed, the delivery is past it, and its topic does not have it. Only with a table."""
    UNDECIDED = "undecided"
    """Half a transaction: neither committed nor rolled back as far as is known."""
    COMMITTED = "committed"
    """Half a transaction, and the message stands in its topic. Only with a table."""
    ROLLED_BACK = "rolled_back"
    """Half a transaction, ended without a message. Only with a table."""
    CHECKED = "checked"
    """Half a transaction that the check has passed: a later copy took its place, or it was given
    up. Only with a table."""
    OPERATION = "operation"
    """Ends a transaction."""
    RETRY = "retry"
    """Of a retry topic: a group asked for it again."""
    DEAD = "dead"
    """Of a dead-letter topic: a group gave up on it."""


VERDICTS = tuple(MessageVerdict)
REASONS = (None, *Reason)
INDEXED = tuple(Indexed)
STAGES = (None, *Stage)
"""Arrays hold the places of words in these."""


class Fault(enum.StrEnum):
    """What is wrong with something that is no message; notes are no faults."""

    HOLE = "hole"
    TORN_TAIL = "torn_tail"
    """Note: what a crash left of the last record."""
    STALE_TAIL = "stale_tail"
    """Note: records that an earlier recovery cut off."""
    GAP = "gap"
    """Queue offsets that neither a record nor a unit has, and no hole explains."""
    FILE_SIZE = "file_size"
    """Of a log or queue file: a broker does not start on it."""
    UNIT_ZERO = "unit_zero"
    """Zeros amid the units of a queue, where no record is to be found either."""
    UNIT_BLANK = "unit_blank"
    """The same, filler."""
    UNIT_INVALID = "unit_invalid"
    """The same, a negative offset or size."""
    UNIT_TWICE = "unit_twice"
    """It points at a message of its queue that has another unit: consumers get it twice."""
    LIGHT_UNIT = "light_unit"
    """A light queue (LMQ) lacks the unit of a message that names it."""
    UNIT_WRONG_RECORD = "unit_wrong_record"
    """It points at no message of its queue."""
    INDEX_FILE = "index_file"
    """It cannot be read."""
    INDEX_CHAIN = "index_chain"
    """Links of hash chains are wrong: keys are not found."""
    ENTRY_STRAY = "entry_stray"
    """Note: no message has the key; readers look at the message before they believe it."""
    ENTRY_STALE = "entry_stale"
    """Note: the entry points behind the end of the log."""
    TABLE = "table"
    """A table of the folder ``config``, or the checkpoint, cannot be read."""
    GROUP_AHEAD = "group_ahead"
    """A group's offset is behind the end of its queue: it skips what is sent next."""
    GROUP_EXPIRED = "group_expired"
    """Note: messages went with their log files before the group read them."""
    GROUP_WITHOUT_QUEUE = "group_without_queue"
    """Note: a group's offset is of a queue that is not there."""
    DELAY_AHEAD = "delay_ahead"
    """A level's delivery is behind the end of its queue."""


NOTES = frozenset(
    {
        Fault.TORN_TAIL,
        Fault.STALE_TAIL,
        Fault.ENTRY_STRAY,
        Fault.ENTRY_STALE,
        Fault.GROUP_EXPIRED,
        Fault.GROUP_WITHOUT_QUEUE,
    }
)
"""What circumstances explain and costs no message that is in the store."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """Something found; one of each kind of thing at each place."""

    fault: Fault
    where: str
    """Path below the store, or the name of a queue or group."""
    text: str
    count: int = 1
    is_note: bool = False
    physical_offset: int | None = None
    queue_offset: int | None = None


@dataclass(frozen=True, slots=True)
class LostMessage:
    """A message that is lost or damaged, one of a sample."""

    verdict: MessageVerdict
    reason: Reason
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int | None = None
    """ms; None of a damaged one."""
    unique_key: str | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """Messages of one queue that a hole took."""

    topic: str
    queue_id: int
    queue_offset: int
    """Of the first."""
    count: int


@dataclass(frozen=True, slots=True)
class AuditedHole:
    """Bytes of the log that are no record, and what they were."""

    physical_offset: int
    length: int
    reason: str
    file: str
    before_ms: int | None
    """Store time of the last whole record before it; None if there is none."""
    after_ms: int | None
    """Store time of the first whole record behind it; None if there is none."""
    missing: tuple[Missing, ...] = ()
    """Queue offsets that went with it."""

    @property
    def end(self) -> int:
        """Physical offset behind the last of these bytes."""
        return self.physical_offset + self.length

    @property
    def lost_count(self) -> int:
        """How many messages it took, as far as queues tell."""
        return sum(one.count for one in self.missing)


@dataclass(slots=True)
class TopicAudit:
    """The messages of one topic."""

    topic: str
    messages: int = 0
    """Whole records."""
    bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    verdicts: dict[str, int] = field(default_factory=dict)
    """By ``MessageVerdict``; damaged ones are not among ``messages``."""
    indexed: dict[str, int] = field(default_factory=dict)
    stages: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    """Messages that are known by a gap of queue offsets alone."""

    def merge(self, other: "TopicAudit") -> None:
        """Add what another range of the log has of it."""
        self.messages += other.messages
        self.bytes += other.bytes
        self.first_ms = _of_both(min, self.first_ms, other.first_ms)
        self.last_ms = _of_both(max, self.last_ms, other.last_ms)
        self.verdicts = total([self.verdicts, other.verdicts])
        self.indexed = total([self.indexed, other.indexed])
        self.stages = total([self.stages, other.stages])
        self.missing += other.missing


@dataclass(slots=True)
class GroupAudit:
    """What a group has and has not read of a topic."""

    group: str
    topic: str
    lag: int = 0
    """Ends of queues less the group's offsets, as consoles show it."""
    consumed: int = 0
    """Messages in the log before its offsets."""
    pending: int = 0
    """Messages in the log from its offsets on."""
    pending_bytes: int = 0
    oldest_pending_ms: int | None = None
    """Store time."""
    expired: int = 0
    """Messages that left the log before it read them."""

    def merge(self, other: "GroupAudit") -> None:
        """Add what another range of the log has for it."""
        self.consumed += other.consumed
        self.pending += other.pending
        self.pending_bytes += other.pending_bytes
        self.oldest_pending_ms = _of_both(min, self.oldest_pending_ms, other.oldest_pending_ms)


@dataclass(slots=True)
class DelayAudit:
    """The messages of one delay level."""

    level: int
    delivered: int = 0
    due: int = 0
    waiting: int = 0
    backlog_bytes: int = 0
    """Of those due and waiting."""
    oldest_due_ms: int | None = None
    """When the first of those due should have been delivered."""

    def merge(self, other: "DelayAudit") -> None:
        """Add what another range of the log has of it."""
        self.delivered += other.delivered
        self.due += other.due
        self.waiting += other.waiting
        self.backlog_bytes += other.backlog_bytes
        self.oldest_due_ms = _of_both(min, self.oldest_due_ms, other.oldest_due_ms)


def _of_both(choose: Any, one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return choose(known) if known else None


@dataclass(frozen=True)
class AuditResult:
    """What an audit found. Times are ms since the epoch, sizes bytes."""

    store: str
    broker: str
    condition: str
    """``clean``, ``crashed`` or ``running``."""
    now_ms: int
    """By which delayed messages are due."""
    log_start: int
    log_end: int
    """Physical offsets between which the log was audited."""
    topics: tuple[TopicAudit, ...]
    """By name."""
    groups: tuple[GroupAudit, ...]
    """By group and topic."""
    delays: tuple[DelayAudit, ...]
    """By level."""
    holes: tuple[AuditedHole, ...]
    """The first of them; ``hole_count`` says how many there are."""
    hole_count: int
    hole_bytes: int
    lost: tuple[LostMessage, ...]
    """A sample, in the order of the log; ``verdicts`` say how many there are."""
    findings: tuple[AuditFinding, ...]
    """The first ones of each kind; ``faults`` say how many there are."""
    faults: dict[str, int]
    """By ``Fault``: how many things, notes too."""
    fault_count: int
    """Of these, how many are no notes."""
    duplicated: int | None = None
    """Records beyond the first of a message that is stored more than once; None without a table."""
    table: str | None = None
    """Where the table of all messages is."""

    @property
    def messages(self) -> int:
        """Whole records in the log."""
        return sum(one.messages for one in self.topics)

    @property
    def bytes(self) -> int:
        """Of whole records."""
        return sum(one.bytes for one in self.topics)

    @property
    def verdicts(self) -> dict[str, int]:
        """How many messages of all topics have each verdict."""
        return total(one.verdicts for one in self.topics)

    @property
    def indexed(self) -> dict[str, int]:
        """How many messages of all topics the index finds, and does not."""
        return total(one.indexed for one in self.topics)

    @property
    def stages(self) -> dict[str, int]:
        """How many messages are at each stage."""
        return total(one.stages for one in self.topics)

    @property
    def lost_count(self) -> int:
        """Messages that consumers should get and do not: lost, damaged, gone without a trace."""
        counts = self.verdicts
        gone = sum(one.missing for one in self.topics)
        return counts.get(MessageVerdict.LOST, 0) + counts.get(MessageVerdict.DAMAGED, 0) + gone

    @property
    def is_clean(self) -> bool:
        """Whether no message is lost and nothing is at fault."""
        is_found = not self.indexed.get(Indexed.MISSING, 0)
        is_delivered = not self.stages.get(Stage.UNDELIVERED, 0)
        return not self.lost_count and not self.fault_count and is_found and is_delivered

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries, with the sums."""
        plain = dataclasses.asdict(self)
        plain.update(
            is_clean=self.is_clean,
            messages=self.messages,
            bytes=self.bytes,
            lost_count=self.lost_count,
            verdicts=self.verdicts,
            indexed=self.indexed,
            stages=self.stages,
        )
        for plain_hole, hole in zip(plain["holes"], self.holes, strict=True):
            plain_hole["lost_count"] = hole.lost_count
        return plain


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of counts, by name; what is zero is left out."""
    sums: Counter[str] = Counter()
    for one in counts:
        sums.update(one)
    return {name: count for name, count in sorted(sums.items()) if count}
