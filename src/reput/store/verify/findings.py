"""The report of a verification, and the ledger that collects it."""

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from reput.store.files import paths
from reput.store.log.commit_log_view import Damage
from reput.store.reader import Condition, StoreReader
from reput.store.verify import number_runs
from reput.store.verify.number_runs import Mask

RUNS_MAX = 20
"""Maximum findings of one kind in one file; a further finding summarizes the rest."""

Progress = Callable[[str, int, int], None]
"""Called with the part that is being checked, the work done, and all its work."""


class Severity(enum.IntEnum):
    """Severity of a finding."""

    OK = 0
    NOTE = 1
    """Expected in the circumstances, and worth knowing."""
    WARNING = 2
    """No message is lost or hidden, but a broker or a reader may fail."""
    DAMAGE = 3
    """A message is lost, cannot be read, or is missing where it should be."""


class FindingKind(enum.StrEnum):
    """Kind of a finding."""

    CRASHED = "crashed"
    RUNNING = "running"
    FOREIGN_FILE = "foreign_file"
    LOG_EMPTY = "log_empty"
    LOG_FILE_SIZE = "log_file_size"
    LOG_FILE_NAME = "log_file_name"
    LOG_FILE_MISSING = "log_file_missing"
    LOG_FILE_WAITING = "log_file_waiting"
    LOG_FILES_OVERLAP = "log_files_overlap"
    LOG_HOLE = "log_hole"
    TORN_TAIL = "torn_tail"
    STALE_TAIL = "stale_tail"
    CLOCK_BACK = "clock_back"
    QUEUE_FILE_SIZE = "queue_file_size"
    QUEUE_FILE_NAME = "queue_file_name"
    QUEUE_FILE_MISSING = "queue_file_missing"
    UNIT_MISSING = "unit_missing"
    NOT_DISPATCHED = "not_dispatched"
    UNIT_ZERO = "unit_zero"
    UNIT_BLANK = "unit_blank"
    UNIT_INVALID = "unit_invalid"
    UNIT_STALE = "unit_stale"
    UNIT_IN_HOLE = "unit_in_hole"
    UNIT_WRONG_RECORD = "unit_wrong_record"
    UNIT_WRONG_SIZE = "unit_wrong_size"
    UNIT_WRONG_TAGS = "unit_wrong_tags"
    UNIT_OUT_OF_ORDER = "unit_out_of_order"
    QUEUE_OFFSET_TWICE = "queue_offset_twice"
    INDEX_ABSENT = "index_absent"
    INDEX_FILE = "index_file"
    INDEX_CHAIN = "index_chain"
    NOT_INDEXED = "not_indexed"
    KEY_MISSING = "key_missing"
    ENTRY_STALE = "entry_stale"
    ENTRY_IN_HOLE = "entry_in_hole"
    ENTRY_WRONG = "entry_wrong"
    CHECKPOINT = "checkpoint"
    LEDGER = "ledger"
    TABLE = "table"
    TOPIC = "topic"
    CONSUMER_OFFSET = "consumer_offset"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding with its file and position."""

    severity: Severity
    kind: FindingKind
    path: str
    """File or folder, relative to the store."""
    text: str
    physical_offset: int | None = None
    """Physical offset where it starts, if it is in the log."""
    length: int | None = None
    """Bytes of the log that it covers."""
    queue_offset: int | None = None
    """Queue offset where it starts, if it is in a queue."""
    count: int | None = None
    """Number of units, messages or entries."""


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """The verdict on a file."""

    path: str
    size: int
    severity: Severity = Severity.OK
    text: str = "ok"
    """Text of the gravest finding, and the number of other findings."""
    count: int = 0
    """Number of records, units or entries in it."""
    wasted_bytes: int = 0
    """Bytes of a log file after its last record."""


@dataclass(frozen=True, slots=True)
class HoleVerdict:
    """The verdict on bytes of the log without records: damage, or leftovers after the end."""

    damage: Damage
    severity: Severity
    kind: FindingKind
    text: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a verification."""

    location: str
    condition: Condition
    log_start: int
    log_end: int
    """Physical offset after the last record."""
    record_count: int
    queued_count: int
    """Number of records that belong into consume queues."""
    unit_count: int
    entry_count: int
    """Number of index entries."""
    files: tuple[FileVerdict, ...]
    holes: tuple[HoleVerdict, ...]
    """Holes in log order."""
    findings: tuple[Finding, ...]
    """Findings, gravest first, then by file."""

    @property
    def severity(self) -> Severity:
        """Severity of the gravest finding."""
        return max((finding.severity for finding in self.findings), default=Severity.OK)

    @property
    def is_damaged(self) -> bool:
        """Whether anything is damaged."""
        return self.severity is Severity.DAMAGE


_UNIT_TEXTS = {
    FindingKind.UNIT_ZERO: (Severity.DAMAGE, "zeros amid the units"),
    FindingKind.UNIT_BLANK: (Severity.DAMAGE, "filler amid the units"),
    FindingKind.UNIT_INVALID: (Severity.DAMAGE, "a negative offset or size"),
    FindingKind.UNIT_STALE: (Severity.WARNING, "points after the end of the log"),
    FindingKind.UNIT_IN_HOLE: (Severity.WARNING, "points into damage of the log"),
    FindingKind.UNIT_WRONG_RECORD: (Severity.DAMAGE, "points at the wrong place"),
    FindingKind.UNIT_WRONG_SIZE: (Severity.DAMAGE, "the size is not the record's"),
    FindingKind.UNIT_WRONG_TAGS: (
        Severity.DAMAGE,
        "the tags code is not that of the message's tags",
    ),
    FindingKind.UNIT_OUT_OF_ORDER: (Severity.DAMAGE, "out of order"),
    FindingKind.QUEUE_OFFSET_TWICE: (Severity.DAMAGE, "two messages have this queue offset"),
}


@dataclass
class Ledger:
    """Collects files and findings."""

    files: list[FileVerdict] = field(default_factory=list)
    """Files without their findings."""
    findings: list[Finding] = field(default_factory=list)
    holes: list[HoleVerdict] = field(default_factory=list)

    def add_file(self, path: str, size: int, count: int = 0, wasted_bytes: int = 0) -> None:
        """Add an existing file."""
        self.files.append(FileVerdict(path, size, count=count, wasted_bytes=wasted_bytes))

    def add(
        self, severity: Severity, kind: FindingKind, path: str, text: str, **place: int
    ) -> None:
        """Add a finding; ``place`` has its offsets, length and count."""
        self.findings.append(Finding(severity, kind, path, text, **place))

    def add_hole(self, damage: Damage, severity: Severity, kind: FindingKind, text: str) -> None:
        """Add a hole, and a finding of it."""
        self.holes.append(HoleVerdict(damage, severity, kind, text))
        start, length = damage.physical_offset, damage.length
        path = f"{paths.COMMIT_LOG}/{damage.file}"
        where = f"physical offset {start}, {length} bytes: {text}"
        self.add(severity, kind, path, where, physical_offset=start, length=length)

    def add_units(
        self,
        path: str,
        kind: FindingKind,
        mask: Mask,
        first: int,
        texts: Mapping[int, str] | None = None,
    ) -> None:
        """Add a finding for each run of units.

        Args:
            path: The queue's file.
            kind: Kind of the finding.
            mask: Whether each unit has the fault.
            first: Queue offset of the first unit in the mask.
            texts: Texts for single units, by position in the mask.
        """
        severity, text = _UNIT_TEXTS[kind]
        all_runs = number_runs.of(mask)
        for start, count in all_runs[:RUNS_MAX]:
            span = number_runs.span("queue offset", first + start, count)
            text_there = f"{span}: {(texts or {}).get(start, text)}"
            self.add(severity, kind, path, text_there, queue_offset=first + start, count=count)
        if all_runs[RUNS_MAX:]:
            start = first + all_runs[RUNS_MAX][0]
            count = sum(length for _, length in all_runs[RUNS_MAX:])
            rest = f"{count} more queue offsets from {start} on: {text}"
            self.add(severity, kind, path, rest, queue_offset=start, count=count)

    def report(self, reader: StoreReader, **numbers: int) -> VerifyReport:
        """Return the report; missing numbers are 0."""
        counted: dict[str, Any] = dict.fromkeys(_NUMBERS, 0) | numbers
        return VerifyReport(
            location=reader.location,
            condition=reader.state.condition,
            files=tuple(sorted(self._verdicts(), key=lambda file: file.path)),
            holes=tuple(sorted(self.holes, key=lambda hole: hole.damage.physical_offset)),
            findings=tuple(
                sorted(self.findings, key=lambda finding: (-finding.severity, finding.path))
            ),
            **counted,
        )

    def _verdicts(self) -> Iterator[FileVerdict]:
        """Yield each file with its gravest finding; also missing files that have findings."""
        by_path: dict[str, list[Finding]] = {}
        for finding in self.findings:
            by_path.setdefault(finding.path, []).append(finding)
        for file in self.files:
            yield _judged(file, by_path.pop(file.path, []))
        for path, findings in by_path.items():
            yield _judged(FileVerdict(path, 0), findings)


_NUMBERS = (
    "log_start",
    "log_end",
    "record_count",
    "queued_count",
    "unit_count",
    "entry_count",
)


def _judged(file: FileVerdict, findings: list[Finding]) -> FileVerdict:
    if not findings:
        return file
    gravest = max(findings, key=lambda finding: finding.severity)
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return dataclasses.replace(file, severity=gravest.severity, text=gravest.text + more)
