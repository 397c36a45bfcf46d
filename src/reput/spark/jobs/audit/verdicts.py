"""The verdicts of an audit on messages, holes, units and groups, and its counts. Pure.

docs/reference/audit.md defines each word and its evidence.
"""

import dataclasses
import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


class MessageVerdict(enum.StrEnum):
    """The verdict on a message; each message has exactly one."""

    DISPATCHED = "dispatched"
    """The record is whole, and the unit at its queue offset points at it: consumers get it."""
    UNDISPATCHED = "undispatched"
    """The record is whole and has no unit yet; the broker, or its next start, puts one."""
    LOST = "lost"
    """The record is whole and no unit points at it: no consumer gets it. A rebuild helps."""
    DAMAGED = "damaged"
    """A unit points at it, and no whole record is there any more."""
    UNQUEUED = "unqueued"
    """The record is prepared or rolled back, and belongs into no queue."""
    DELETED = "deleted"
    """The topic of the message was deleted since."""


class Reason(enum.StrEnum):
    """The reason why a message is lost or damaged."""

    NO_UNIT = "no_unit"
    """Its unit has no file, or zeros or filler in its place."""
    OTHER_UNIT = "other_unit"
    """The unit at its queue offset points elsewhere."""
    WRONG_SIZE = "wrong_size"
    """The unit points at it with another size."""
    WRONG_TAGS = "wrong_tags"
    """The unit points at it with another tags code: consumers that filter by tag miss it."""
    IN_HOLE = "in_hole"
    """Its unit points into a hole of the log."""
    AFTER_END = "behind_end"
    """Its unit points after the end of the log, which a crash or a cut has moved."""


class Indexed(enum.StrEnum):
    """The state of a message in the index."""

    INDEXED = "indexed"
    """The index has an entry for each of its keys."""
    MISSING = "missing"
    """An entry is missing, although an index file covers the message."""
    UNCOVERED = "uncovered"
    """The message is before the oldest index file, or between two files after a crash."""
    PENDING = "pending"
    """The message is after the last entry of a store that was not stopped."""
    NO_KEYS = "no_keys"
    """The message has no keys, or is rolled back."""


class Stage(enum.StrEnum):
    """The stage of a message that several topics get in turn."""

    WAITING = "waiting"
    """A delayed message that is not due yet."""
    DUE = "due"
    """A delayed message that is due and not delivered."""
    DELIVERED = "delivered"
    """A delayed message before the offset of its level."""
    UNDELIVERED = "undelivered"
    """A delayed message before the offset of its level that its topic lacks. Only with a table."""
    UNDECIDED = "undecided"
    """A half message without a known commit or rollback."""
    COMMITTED = "committed"
    """A half message that was committed to its topic. Only with a table."""
    ROLLED_BACK = "rolled_back"
    """A half message that was ended without a commit. Only with a table."""
    CHECKED = "checked"
    """A half message that the check has passed: a later copy replaces it, or it was given up.
    Only with a table.
    """
    OPERATION = "operation"
    """An op message, which ends a transaction."""
    RETRY = "retry"
    """A message of a retry topic."""
    DEAD = "dead"
    """A message of a dead-letter topic."""


VERDICTS = tuple(MessageVerdict)
REASONS = (None, *Reason)
INDEXED = tuple(Indexed)
STAGES = (None, *Stage)
"""Arrays hold positions in these tuples."""


class Fault(enum.StrEnum):
    """Kinds of findings on everything but messages; notes are no faults."""

    HOLE = "hole"
    TORN_TAIL = "torn_tail"
    """Note: the part of the last record that a crash left."""
    STALE_TAIL = "stale_tail"
    """Note: records that an earlier recovery cut off."""
    GAP = "gap"
    """Queue offsets without record and unit, and without a hole that explains them."""
    FILE_SIZE = "file_size"
    """A log or queue file with a size that prevents a broker's start."""
    UNIT_ZERO = "unit_zero"
    """Zeros amid the units of a queue, for which there is no record."""
    UNIT_BLANK = "unit_blank"
    """Filler without a record between the units of a queue."""
    UNIT_INVALID = "unit_invalid"
    """A unit with a negative offset or size."""
    UNIT_TWICE = "unit_twice"
    """A unit that points at a message with another unit: consumers get the message twice."""
    LIGHT_UNIT = "light_unit"
    """A light queue (LMQ) lacks a unit, or has one with another size or tags code."""
    UNIT_WRONG_RECORD = "unit_wrong_record"
    """A unit that points at no message of its queue."""
    INDEX_FILE = "index_file"
    """An index file that cannot be read."""
    INDEX_CHAIN = "index_chain"
    """Wrong links of an index file's hash chains: keys are not found."""
    ENTRY_STRAY = "entry_stray"
    """Note: an entry whose key no message has; readers check the message."""
    ENTRY_STALE = "entry_stale"
    """Note: an entry that points after the end of the log."""
    TABLE = "table"
    """A table of the folder ``config``, or the checkpoint, that cannot be read."""
    GROUP_AHEAD = "group_ahead"
    """A group's offset is after the end of its queue: the group may skip messages."""
    GROUP_EXPIRED = "group_expired"
    """Note: messages expired before the group read them."""
    GROUP_WITHOUT_QUEUE = "group_without_queue"
    """Note: a group's offset is of a queue without files."""
    DELAY_AHEAD = "delay_ahead"
    """The offset of a delay level is after the end of its queue."""


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
"""Findings that circumstances explain and that cost no message of the store."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A finding; there is one of each kind at each place."""

    fault: Fault
    where: str
    """Path below the store, or name of a queue or group."""
    text: str
    count: int = 1
    is_note: bool = False
    physical_offset: int | None = None
    queue_offset: int | None = None


@dataclass(frozen=True, slots=True)
class LostMessage:
    """A lost or damaged message of the sample."""

    verdict: MessageVerdict
    reason: Reason
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int | None = None
    """Store time, in ms; None for a damaged message."""
    unique_key: str | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """Consecutive messages of a queue that were lost in a hole."""

    topic: str
    queue_id: int
    queue_offset: int
    """Queue offset of the first message."""
    count: int


@dataclass(frozen=True, slots=True)
class AuditedHole:
    """Bytes of the log without records, and the messages they took."""

    physical_offset: int
    length: int
    reason: str
    file: str
    before_ms: int | None
    """Store time of the last whole record before it; None if there is none."""
    after_ms: int | None
    """Store time of the first whole record after it; None if there is none."""
    missing: tuple[Missing, ...] = ()
    """Messages that it took."""

    @property
    def end(self) -> int:
        """Physical offset after the last of these bytes."""
        return self.physical_offset + self.length

    @property
    def lost_count(self) -> int:
        """Number of messages that it took, as far as queues show."""
        return sum(run.count for run in self.missing)


@dataclass(slots=True)
class TopicAudit:
    """The messages of a topic."""

    topic: str
    messages: int = 0
    """Number of whole records."""
    bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    verdicts: dict[str, int] = field(default_factory=dict)
    """Messages by ``MessageVerdict``; damaged ones are not among ``messages``."""
    indexed: dict[str, int] = field(default_factory=dict)
    stages: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    """Number of messages known only by a gap of queue offsets."""

    def merge(self, other: "TopicAudit") -> None:
        """Add the counts of another range of the log."""
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
    """The messages of a topic that a group has and has not read."""

    group: str
    topic: str
    lag: int = 0
    """Ends of queues minus the group's offsets, as consoles show it."""
    consumed: int = 0
    """Number of messages in the log before its offsets."""
    pending: int = 0
    """Number of messages in the log from its offsets on."""
    pending_bytes: int = 0
    oldest_pending_ms: int | None = None
    """Store time of the oldest pending message."""
    expired: int = 0
    """Number of messages that expired before it read them."""

    def merge(self, other: "GroupAudit") -> None:
        """Add the counts of another range of the log."""
        self.consumed += other.consumed
        self.pending += other.pending
        self.pending_bytes += other.pending_bytes
        self.oldest_pending_ms = _of_both(min, self.oldest_pending_ms, other.oldest_pending_ms)


@dataclass(slots=True)
class DelayAudit:
    """The messages of a delay level."""

    level: int
    delivered: int = 0
    due: int = 0
    waiting: int = 0
    backlog_bytes: int = 0
    """Bytes of the due and waiting messages."""
    oldest_due_ms: int | None = None
    """Time when the first due message should have been delivered."""

    def merge(self, other: "DelayAudit") -> None:
        """Add the counts of another range of the log."""
        self.delivered += other.delivered
        self.due += other.due
        self.waiting += other.waiting
        self.backlog_bytes += other.backlog_bytes
        self.oldest_due_ms = _of_both(min, self.oldest_due_ms, other.oldest_due_ms)


def _of_both(choose: Any, first: int | None, second: int | None) -> int | None:
    known = [value for value in (first, second) if value is not None]
    return choose(known) if known else None


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit. Times are ms since the epoch, sizes bytes."""

    store: str
    broker: str
    condition: str
    """``clean``, ``crashed`` or ``running``."""
    now_ms: int
    """Time at which delayed messages are due or not."""
    log_start: int
    log_end: int
    """Physical offset where the audited part of the log ends; it begins at ``log_start``."""
    topics: tuple[TopicAudit, ...]
    """Topics by name."""
    groups: tuple[GroupAudit, ...]
    """Groups by group and topic."""
    delays: tuple[DelayAudit, ...]
    """Delay levels by number."""
    holes: tuple[AuditedHole, ...]
    """The first holes, in log order; ``hole_count`` counts all."""
    hole_count: int
    hole_bytes: int
    lost: tuple[LostMessage, ...]
    """A sample in log order; ``verdicts`` counts all."""
    findings: tuple[AuditFinding, ...]
    """The first findings of each kind; ``faults`` counts all."""
    faults: dict[str, int]
    """Counts by ``Fault``, including notes."""
    fault_count: int
    """Number of findings, without notes."""
    duplicated: int | None = None
    """Records beyond the first of a message that is stored more than once; None without a table."""
    table: str | None = None
    """Folder of the table of all messages."""

    @property
    def messages(self) -> int:
        """Number of whole records in the log."""
        return sum(topic.messages for topic in self.topics)

    @property
    def bytes(self) -> int:
        """Bytes of whole records."""
        return sum(topic.bytes for topic in self.topics)

    @property
    def verdicts(self) -> dict[str, int]:
        """Messages of all topics by verdict."""
        return total(topic.verdicts for topic in self.topics)

    @property
    def indexed(self) -> dict[str, int]:
        """Messages of all topics by state in the index."""
        return total(topic.indexed for topic in self.topics)

    @property
    def stages(self) -> dict[str, int]:
        """Messages of all topics by stage."""
        return total(topic.stages for topic in self.topics)

    @property
    def lost_count(self) -> int:
        """Number of messages that consumers should get and do not: lost, damaged, and missing."""
        counts = self.verdicts
        gone = sum(topic.missing for topic in self.topics)
        return counts.get(MessageVerdict.LOST, 0) + counts.get(MessageVerdict.DAMAGED, 0) + gone

    @property
    def is_clean(self) -> bool:
        """Whether no message is lost and there is no fault."""
        is_found = not self.indexed.get(Indexed.MISSING, 0)
        is_delivered = not self.stages.get(Stage.UNDELIVERED, 0)
        return not self.lost_count and not self.fault_count and is_found and is_delivered

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries, with the totals."""
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
    """Return the totals of counts by name; zeros are left out."""
    totals: Counter[str] = Counter()
    for count in counts:
        totals.update(count)
    return {name: count for name, count in sorted(totals.items()) if count}
