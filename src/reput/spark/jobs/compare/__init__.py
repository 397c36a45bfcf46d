"""Compare: what two stores differ in, from the first differing byte to lost messages.

    files     names, sizes, and per file the first differing byte, explained
    messages  records that one side lacks, and the fields in which others differ
    queues    units that one side lacks, and those that differ
    tables    topics, consumer and delay offsets, groups

Where both logs have the same messages at the same physical offsets (a copy, a slave, a salvaged
store) messages are matched by it: parts whose bytes are equal are not decoded. Else they are
matched by topic, queue and queue offset, and what is left by unique key (``joined_messages``).

A store can be compared with a running broker, too: messages by queue, and where queues begin and
end. Nothing is left behind on the broker.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from reput.errors import InvalidOption
from reput.spark import options as option_texts
from reput.spark.jobs.compare import (
    byte_ranges,
    findings,
    live_queues,
    message_join,
    messages as differing_messages,
    queues as differing_queues,
    tables as differing_tables,
)
from reput.spark.jobs.compare.byte_ranges import FilePart
from reput.spark.jobs.compare.findings import (
    DIFFERENT,
    KINDS,
    ONLY_LEFT,
    ONLY_RIGHT,
    Counted,
    Mismatch,
)
from reput.spark.jobs.compare.messages import LogSpan
from reput.spark.jobs.compare.queues import QueuePart
from reput.spark.jobs.compare.two_stores import TwoStores
from reput.spark.jobs.running import Progress, Runner, runner_on
from reput.spark.jobs.stopped_store import StoppedStore
from reput.spark.options import ReadOptions
from reput.store import paths
from reput.store.consume_queue_view import BatchConsumeQueueView, ConsumeQueueView
from reput.store.files import Folder, absolute
from reput.store.reader import StoreReader

SECTIONS = ("files", "messages", "queues", "tables")
LIVE_SECTIONS = ("messages", "queues")
"""What can be compared with a running broker."""
MATCHES = ("auto", "physical", "queue")
OTHER_BROKER = frozenset({"physical_offset", "store_timestamp", "store_host"})
"""What two brokers legitimately differ in, for ``ignore``."""
FINDINGS_MAX = 100
PARTITION_BYTES = 128 * 1024 * 1024

_UNITS_A_PART = 1 << 20
_FILES_A_TASK = 256
_SAMPLES = 16
IGNORABLE = frozenset(
    {
        *message_join.NUMBERS_AND_HOSTS,
        *message_join.HASHED,
        *("queue_id", "size", "tags_code"),
    }
)
"""What may be ignored: fields of messages, and of units."""
_RESERVED = frozenset({paths.LOCK})

Side = str | Mapping[str, str]
"""A store's folder; or options of ``format("rocketmq")`` that lead to a broker, ``nameServer`` and
``broker``."""


@dataclass(frozen=True)
class Comparison:
    """How two sides differ; ``as_json`` gives plain values."""

    left: str
    right: str
    """Of a broker: its name server."""
    sections: tuple[str, ...]
    """What was compared."""
    matched_by: str
    """How messages were matched: ``physical`` or ``queue``; empty if they were not."""
    counts: dict[str, dict[str, int]]
    """Section -> kind -> files, messages, units or entries."""
    findings: tuple[Mismatch, ...]
    """The first of them, section by section."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not any(any(kinds.values()) for kinds in self.counts.values())

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        return {**dataclasses.asdict(self), "is_equal": self.is_equal}


def compare(
    spark: SparkSession | None,
    left: str,
    right: Side,
    *,
    sections: Collection[str] | None = None,
    match: str = "auto",
    ignore: Collection[str] = (),
    findings_max: int = FINDINGS_MAX,
    partition_bytes: int = PARTITION_BYTES,
    allow_live: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two stores, or a store and a running broker.

    Args:
        spark: The session to run the tasks in; None for this process, where both logs are the same.
        left: A store.
        right: Another one, or a copy of it. Or a broker: options of its connection, as
            ``{"nameServer": "127.0.0.1:9876", "broker": "broker-a"}``.
        sections: What to compare; all that can be without it. Files are left out where something
            is ignored.
        match: How messages are matched: ``physical`` offset, ``queue`` (topic, queue and queue
            offset, then unique key), or ``auto``.
        ignore: Fields that may differ, as ``OTHER_BROKER``.
        findings_max: So many findings of each section are returned; counts are of all.
        partition_bytes: Bytes of a log or file a task takes.
        allow_live: Brokers may be at work on the stores.
        progress: Told of the tasks that are done.

    Raises:
        StoreUnavailable: One is no store, or is in use.
        InvalidOption: A section, field, option or way to match is unknown, or is not for a broker;
            or several brokers are meant.
        ReadFailed: A broker or name server does not answer.
        TaskFailed: A task failed as often as Spark runs one.
    """
    runner = runner_on(spark, "compare", progress)
    job = _job(spark, left, right, sections, match, ignore, partition_bytes, allow_live)
    counts: dict[str, dict[str, int]] = {}
    first: list[Mismatch] = []
    for section in job.sections:
        counted, some = job.counted(runner, section, findings_max)
        counts[section] = {kind: counted.get((section, kind), 0) for kind in KINDS}
        first += some
    matched = job.matched_by if "messages" in job.sections else ""
    return Comparison(left, job.right_name, job.sections, matched, counts, tuple(first))


def findings_frame(
    spark: SparkSession,
    left: str,
    right: Side,
    *,
    sections: Collection[str] | None = None,
    match: str = "auto",
    ignore: Collection[str] = (),
    partition_bytes: int = PARTITION_BYTES,
    allow_live: bool = False,
) -> DataFrame:
    """Return every finding as a row, computed when it is asked for. Arguments as ``compare``.

    Columns: those of ``Mismatch``.
    """
    job = _job(spark, left, right, sections, match, ignore, partition_bytes, allow_live)
    return functools.reduce(DataFrame.unionByName, map(job.frame, job.sections))


class _ComparisonJob(Protocol):
    """A comparison, on the driver."""

    sections: tuple[str, ...]
    right_name: str

    @property
    def matched_by(self) -> str:
        """How messages are matched."""

    def counted(self, runner: Runner, section: str, most: int) -> Counted:
        """Return counts and first findings of a section."""

    def frame(self, section: str) -> DataFrame:
        """Return the findings of a section as rows."""


def _job(
    spark: SparkSession | None,
    left: str,
    right: Side,
    sections: Collection[str] | None,
    match: str,
    ignore: Collection[str],
    partition_bytes: int,
    allow_live: bool,
) -> _ComparisonJob:
    live = None if isinstance(right, str) else _live_options(right)
    possible = SECTIONS if live is None else LIVE_SECTIONS
    wanted = possible if sections is None else sections
    _check("sections", wanted, possible)
    _check("match", [match], MATCHES if live is None else ("auto", "queue"))
    _check("ignore", ignore, sorted(IGNORABLE))
    if not wanted:
        raise InvalidOption("sections", "", ", ".join(possible))
    # Where fields may differ, bytes of files do.
    ordered = tuple(one for one in possible if one in wanted and not (ignore and one == "files"))
    some = frozenset(ignore)
    size = max(partition_bytes, 1)
    left = absolute(left)  # workers have folders of their own to work in
    if isinstance(right, str):
        right = absolute(right)
        sides = TwoStores(StoppedStore(left), StoppedStore(right), some, allow_live)
        return _TwoStores(spark, sides, ordered, match, size)
    assert live is not None
    return _StoreAndBroker(spark, left, right, live, some, ordered, allow_live, size)


def _live_options(told: Mapping[str, str]) -> ReadOptions:
    """Return the options of a connection. Raises ``InvalidOption`` for all others."""
    parsed = option_texts.parse(told)
    if parsed.live is None:
        raise InvalidOption("nameServer", None, "set: a store is compared by its folder's name")
    if replace(parsed, live=None) != replace(ReadOptions(()), live=None):
        allowed = "options of the connection only, as nameServer, broker, cluster, pullTimeoutMs"
        raise InvalidOption("right", dict(told), allowed)
    return parsed


def _session(spark: SparkSession | None) -> SparkSession:
    if spark is None:
        raise InvalidOption(
            "spark", None, "a session, to match messages by queue; without one: match=physical"
        )
    return spark


def _check(name: str, values: Collection[str], allowed: Sequence[str]) -> None:
    for value in values:
        if value not in allowed:
            raise InvalidOption(name, value, ", ".join(allowed))


def _store_options(path: str, *, allow_live: bool, **more: str) -> dict[str, str]:
    """Return how ``format("rocketmq")`` is told of a store."""
    # Damage is found by what the other side has there.
    told = {"path": path, "allowLive": str(allow_live).lower(), "mode": "DROPMALFORMED"}
    return {**told, **more}


# A store and a broker -------------------------------------------------------------------------


class _StoreAndBroker:
    """A store on the left, a running broker on the right."""

    matched_by = "queue"

    def __init__(
        self,
        spark: SparkSession | None,
        left: str,
        right: Mapping[str, str],
        options: ReadOptions,
        ignore: frozenset[str],
        sections: tuple[str, ...],
        allow_live: bool,
        partition_bytes: int,
    ) -> None:
        self._spark = spark
        self._left = StoreReader.open(left, allow_live=allow_live)
        # As brokers give messages, which only queues lead them to.
        self._options = _store_options(left, allow_live=allow_live, scan="consumequeue")
        self._right = right
        self._live = options
        self._ignore = ignore
        self._partition_bytes = partition_bytes
        self.sections = sections
        assert options.live is not None
        self.right_name = options.live.name_server

    @functools.cached_property
    def _ends(self) -> live_queues.Ends:
        return live_queues.ends(self._live)

    def counted(self, runner: Runner, section: str, most: int) -> Counted:
        runner.tell(section, 0, 1)
        if section == "queues":
            found = findings.capped(live_queues.findings(self._left, self._ends), most)
        else:
            found = message_join.counted(self.frame(section), most)
        runner.tell(section, 1, 1)
        return found

    def frame(self, section: str) -> DataFrame:
        ends = self._ends  # asked for first: it tells what is wrong with the options
        if section == "queues":
            rows = [dataclasses.astuple(one) for one in live_queues.findings(self._left, ends)]
            return _session(self._spark).createDataFrame(rows, message_join.FINDING_SCHEMA)
        right = {**self._right, "failOnDataLoss": "false"}
        sides = [
            message_join.read(_session(self._spark), told, partition_bytes=self._partition_bytes)
            for told in (self._options, right)
        ]
        return message_join.findings(sides[0], sides[1], self._ignore)


# Two stores -----------------------------------------------------------------------------------

_Part = FilePart | LogSpan | QueuePart | str
"""A part of a file, the log, a queue; or the path of a table."""


class _TwoStores:
    """Two stores."""

    def __init__(
        self,
        spark: SparkSession | None,
        sides: TwoStores,
        sections: tuple[str, ...],
        match: str,
        partition_bytes: int,
    ) -> None:
        self._spark = spark
        self._sides = sides
        self._left, self._right = sides.readers
        self._partition_bytes = partition_bytes
        self.sections = sections
        self._match = match
        self.right_name = sides.right.path

    @functools.cached_property
    def matched_by(self) -> str:
        """How messages are matched."""
        if self._match != "auto":
            return self._match
        low = max(self._left.log.min_offset, self._right.log.min_offset)
        high = min(self._left.end_offset, self._right.end_offset)
        is_empty = [one.end_offset <= one.log.min_offset for one in (self._left, self._right)]
        if any(is_empty):
            return "physical"
        places = [low + (high - low) * i // _SAMPLES for i in range(_SAMPLES)]
        is_same = low < high and differing_messages.sampled_matches(self._left, self._right, places)
        return "physical" if is_same else "queue"

    def counted(self, runner: Runner, section: str, most: int) -> Counted:
        if section == "messages" and self.matched_by == "queue":
            runner.tell(section, 0, 1)
            joined = message_join.counted(self._joined(), most)
            runner.tell(section, 1, 1)
            return joined
        tasks = self._tasks(section)
        if section == "files":
            found = runner(section, functools.partial(_first_of_files, self._sides), tasks)
            return findings.capped(iter([*self._sizes(), *_first_of_each(found)]), most)
        counts: dict[tuple[str, str], int] = {}
        first: list[Mismatch] = []
        for counted, some in runner(section, functools.partial(_counted, self._sides, most), tasks):
            for key, count in counted.items():
                counts[key] = counts.get(key, 0) + count
            first += some
        return counts, first[:most]

    def frame(self, section: str) -> DataFrame:
        if section == "messages" and self.matched_by == "queue":
            return self._joined()
        tasks = self._tasks(section)
        rows: Any
        if section == "files":
            work = functools.partial(_first_of_files, self._sides)
            found = runner_on(self._spark, "compare", None)(section, work, tasks)
            rows = [dataclasses.astuple(one) for one in [*self._sizes(), *_first_of_each(found)]]
        elif tasks:
            parts = _session(self._spark).sparkContext.parallelize(tasks, len(tasks))
            rows = parts.flatMap(functools.partial(_find, self._sides)).map(dataclasses.astuple)
        else:
            rows = []
        return _session(self._spark).createDataFrame(rows, message_join.FINDING_SCHEMA)

    def _joined(self) -> DataFrame:
        sides = [
            message_join.read(
                _session(self._spark),
                _store_options(path, allow_live=self._sides.allow_live),
                partition_bytes=self._partition_bytes,
            )
            for path in (self._sides.left.path, self._sides.right.path)
        ]
        return message_join.findings(sides[0], sides[1], self._sides.ignore)

    # Tasks ----------------------------------------------------------------------------------

    def _tasks(self, section: str) -> list[tuple[_Part, ...]]:
        match section:
            case "files":
                return _gathered(self._file_parts(), self._partition_bytes)
            case "messages":
                return [(part,) for part in self._log_parts()]
            case "queues":
                return [tuple(some) for some in _shares([*self._queue_parts()], _UNITS_A_PART)]
            case _:
                return [differing_tables.TABLES]

    def _file_parts(self) -> Iterator[FilePart]:
        ours, theirs = self._files
        for path in sorted(ours.keys() & theirs.keys()):
            size = min(ours[path], theirs[path])
            for start in range(0, size, self._partition_bytes):
                yield FilePart(path, start, min(start + self._partition_bytes, size))

    @functools.cached_property
    def _files(self) -> tuple[dict[str, int], dict[str, int]]:
        return _sizes_below(self._left.folder), _sizes_below(self._right.folder)

    def _sizes(self) -> list[Mismatch]:
        """Return files that one side lacks, or that have another size."""
        ours, theirs = self._files
        found = []
        for path in sorted({*ours, *theirs}):
            a, b = ours.get(path), theirs.get(path)
            if a is None or b is None:
                kind, side = (ONLY_RIGHT, "right") if a is None else (ONLY_LEFT, "left")
                found.append(Mismatch("files", kind, f"{path} is only on the {side}", file=path))
            elif a != b:
                text = f"{path} has {a} bytes on the left and {b} on the right"
                found.append(
                    Mismatch(
                        *("files", DIFFERENT, text),
                        file=path,
                        field="size",
                        left=str(a),
                        right=str(b),
                    )
                )
        return found

    def _log_parts(self) -> Iterator[LogSpan]:
        sides = [one for one in (self._left, self._right) if one.end_offset > one.log.min_offset]
        low = min((one.log.min_offset for one in sides), default=0)
        high = max((one.end_offset for one in sides), default=0)
        for start in range(low, high, self._partition_bytes):
            yield LogSpan(start, min(start + self._partition_bytes, high))

    def _queue_parts(self) -> Iterator[QueuePart]:
        for is_batch in (False, True):
            for topic, queue_id in sorted(
                {
                    (topic, queue_id)
                    for reader in (self._left, self._right)
                    for topic, ids in _queue_ids(reader, is_batch).items()
                    for queue_id in ids
                }
            ):
                queues = [
                    _queue(reader, topic, queue_id, is_batch)
                    for reader in (self._left, self._right)
                ]
                held = [one for one in queues if one.min_offset < one.max_offset]
                low = min((one.min_offset for one in held), default=0)
                high = max((one.max_offset for one in held), default=0)
                for start in range(low, high, _UNITS_A_PART):
                    stop = min(start + _UNITS_A_PART, high)
                    yield QueuePart(topic, queue_id, start, stop, is_batch)


def _sizes_below(folder: Folder, path: str = "") -> dict[str, int]:
    """Return the sizes of all files of a store by path."""
    found: dict[str, int] = {}
    for entry in folder.entries(path):
        name = f"{path}/{entry.name}".lstrip("/")
        if entry.is_folder:
            found.update(_sizes_below(folder, name))
        elif name not in _RESERVED:
            found[name] = entry.size
    return found


def _gathered(parts: Iterator[FilePart], target_bytes: int) -> list[tuple[_Part, ...]]:
    """Gather parts of files into tasks of about so many bytes."""
    tasks: list[tuple[_Part, ...]] = []
    share: list[_Part] = []
    size = 0
    for part in parts:
        length = part.stop - part.start
        if share and (size + length > target_bytes or len(share) >= _FILES_A_TASK):
            tasks.append(tuple(share))
            share, size = [], 0
        share.append(part)
        size += length
    return [*tasks, tuple(share)] if share else tasks


def _shares(parts: list[QueuePart], most: int) -> Iterator[list[QueuePart]]:
    """Gather parts of queues into tasks of at most so many units."""
    share: list[QueuePart] = []
    count = 0
    for part in parts:
        if share and count + part.stop - part.start > most:
            yield share
            share, count = [], 0
        share.append(part)
        count += part.stop - part.start
    if share:
        yield share


def _queue_ids(reader: StoreReader, is_batch: bool) -> dict[str, list[int]]:
    return reader.batch_queue_ids if is_batch else reader.queue_ids


def _queue(
    reader: StoreReader, topic: str, queue_id: int, is_batch: bool
) -> ConsumeQueueView | BatchConsumeQueueView:
    return reader.batch_queue(topic, queue_id) if is_batch else reader.queue(topic, queue_id)


def _first_of_each(found: Sequence[list[Mismatch]]) -> list[Mismatch]:
    """Return the first difference of each file; tasks are in the order of the files' bytes."""
    first: dict[str | None, Mismatch] = {}
    for one in (one for some in found for one in some):
        first.setdefault(one.file, one)
    return list(first.values())


# What executors do ----------------------------------------------------------------------------


def _find(sides: TwoStores, parts: tuple[_Part, ...]) -> Iterator[Mismatch]:
    for part in parts:
        match part:
            case FilePart():
                found = byte_ranges.in_file(sides, part)
                if found is not None:
                    yield found
            case LogSpan():
                yield from differing_messages.in_log(sides, part)
            case QueuePart():
                yield from differing_queues.in_queue(sides, part)
            case str():
                yield from differing_tables.in_table(sides, part)


def _counted(sides: TwoStores, most: int, parts: tuple[_Part, ...]) -> Counted:
    return findings.capped(_find(sides, parts), most)


def _first_of_files(sides: TwoStores, parts: tuple[_Part, ...]) -> list[Mismatch]:
    return list(_find(sides, parts))
