"""Compare two stores, from the first differing byte to lost messages.

    files     names, sizes, and per file the first differing byte, explained
    messages  records that one side lacks, and fields that differ
    queues    units that one side lacks, and units that differ
    tables    topics, consumer and delay offsets, groups

If both logs have the same messages at the same physical offsets (a copy, a slave, a salvaged
store), messages are matched by physical offset: parts with equal bytes are not decoded. Else they
are matched by topic, queue and queue offset, and the rest by unique key (``message_join``).

A store can be compared with a running broker, too: messages by queue, and the ends of queues.
Nothing changes on the broker.
"""

import dataclasses
import functools
import itertools
import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from reput.errors import InvalidOption
from reput.format import namespace
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
from reput.spark.jobs.running import Progress, Runner, frame_of, is_connect, runner_on
from reput.spark.jobs.stopped_store import StoppedStore
from reput.spark.options import LiveOptions, ReadOptions
from reput.store.files import paths
from reput.store.files.files import Folder, absolute
from reput.store.queues.consume_queue_view import BatchConsumeQueueView, ConsumeQueueView
from reput.store.reader import StoreReader

SECTIONS = ("files", "messages", "queues", "tables")
LIVE_SECTIONS = ("messages", "queues")
"""Sections of a comparison with a running broker."""
MATCHES = ("auto", "physical", "queue")
OTHER_BROKER = frozenset({"physical_offset", "store_timestamp", "store_host"})
"""Fields that differ between any two brokers, for ``ignore``."""
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
"""Fields of messages and of units that can be ignored."""
_RESERVED = frozenset({paths.LOCK})

Side = str | Mapping[str, str]
"""A store's folder; or options of ``format("rocketmq")`` for a broker, ``nameServer`` and
``broker``. With ``namespace``, both sides are compared in its topics only.
"""


@dataclass(frozen=True)
class Comparison:
    """The differences of two sides; ``as_json`` gives plain values."""

    left: str
    right: str
    """Folder of the store, or name server of the broker."""
    sections: tuple[str, ...]
    """The compared sections."""
    matched_by: str
    """Match of messages: ``physical`` or ``queue``; empty if they were not compared."""
    counts: dict[str, dict[str, int]]
    """Section -> kind -> number of files, messages, units or entries."""
    findings: tuple[Mismatch, ...]
    """The first differences, section by section."""

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
        spark: The session; without one tasks run in this process, which requires equal logs.
        left: A store.
        right: Another store, or a copy of it. Or a broker: options of its connection, such as
            ``{"nameServer": "127.0.0.1:9876", "broker": "broker-a"}``.
        sections: Sections to compare; by default all possible ones. Files are left out if fields
            are ignored.
        match: How messages are matched: by ``physical`` offset, by ``queue`` (topic, queue and
            queue offset, then unique key), or ``auto``.
        ignore: Fields that may differ, such as ``OTHER_BROKER``.
        findings_max: Number of findings to return of each section; counts include all.
        partition_bytes: Bytes of a log or file per task.
        allow_live: Brokers may be running on the stores.
        progress: Called with the number of completed tasks.

    Raises:
        StoreUnavailable: A folder is no store, or is in use.
        InvalidOption: A section, field, option or match is unknown, or not for a broker; or the
            options name several brokers.
        ReadFailed: A broker or name server does not answer.
        TaskFailed: A task failed as often as Spark retries it.
    """
    runner = runner_on(spark, "compare", progress)
    job = _job(spark, left, right, sections, match, ignore, partition_bytes, allow_live)
    counts: dict[str, dict[str, int]] = {}
    first: list[Mismatch] = []
    for section in job.sections:
        counted, mismatches = job.counted(runner, section, findings_max)
        counts[section] = {kind: counted.get((section, kind), 0) for kind in KINDS}
        first += mismatches
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
    """Return all findings as rows, computed lazily. Arguments as for ``compare``.

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
        """Return the counts and the first findings of a section."""

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
    # If fields may differ, so do the bytes of files.
    ordered = tuple(
        section for section in possible if section in wanted and not (ignore and section == "files")
    )
    ignored = frozenset(ignore)
    size = max(partition_bytes, 1)
    left = absolute(left)  # workers have other working directories
    if isinstance(right, str):
        right = absolute(right)
        sides = TwoStores(StoppedStore(left), StoppedStore(right), ignored, allow_live)
        return _StoreComparison(spark, sides, ordered, match, size)
    assert live is not None
    return _BrokerComparison(spark, left, right, live, ignored, ordered, allow_live, size)


def _live_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a connection. Raises ``InvalidOption`` for any other option."""
    parsed = option_texts.parse(options)
    if parsed.live is None:
        raise InvalidOption("nameServer", None, "set: a store is compared by its folder's name")
    if replace(parsed, live=None) != replace(ReadOptions(()), live=None):
        allowed = "options of the connection only, as nameServer, broker, cluster, pullTimeoutMs"
        raise InvalidOption("right", ", ".join(options), allowed)
    return parsed


def _with_pattern(options: Mapping[str, str], live: LiveOptions) -> dict[str, str]:
    """Return options that read the topics of a namespace by a pattern: with their full names."""
    replaced = ("namespace", "nameserver", "rocketmq.namesrv.addr", "consumergroup")
    texts = {name: text for name, text in options.items() if name.lower() not in replaced}
    return {
        **texts,
        "nameServer": live.name_server,
        "consumerGroup": live.consumer_group,
        "subscribePattern": namespace.topic_pattern(live.namespace),
    }


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
    """Return the options of ``format("rocketmq")`` for a store."""
    # Damage shows as a difference to the other side.
    common = {"path": path, "allowLive": str(allow_live).lower(), "mode": "DROPMALFORMED"}
    return {**common, **more}


# A store and a broker -------------------------------------------------------------------------


class _BrokerComparison:
    """A comparison of a store and a running broker."""

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
        # As a broker delivers messages: those in queues only.
        self._options = _store_options(left, allow_live=allow_live, scan="consumequeue")
        assert options.live is not None
        if options.namespace:
            right = _with_pattern(right, options.live)
            options = option_texts.parse(right)
            self._options["subscribePattern"] = right["subscribePattern"]
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
        runner.report(section, 0, 1)
        if section == "queues":
            counted = findings.capped(self._queue_findings(), most)
        else:
            counted = message_join.counted(self.frame(section), most)
        runner.report(section, 1, 1)
        return counted

    def frame(self, section: str) -> DataFrame:
        _ = self._ends  # first, as it checks the options
        if section == "queues":
            rows = [dataclasses.astuple(item) for item in self._queue_findings()]
            return _session(self._spark).createDataFrame(rows, message_join.FINDING_SCHEMA)
        right = {**self._right, "failOnDataLoss": "false"}
        sides = [
            message_join.read(_session(self._spark), side, partition_bytes=self._partition_bytes)
            for side in (self._options, right)
        ]
        return message_join.findings(sides[0], sides[1], self._ignore)

    def _queue_findings(self) -> Iterator[Mismatch]:
        return live_queues.findings(self._left, self._ends, self._live.topic_pattern)


# Two stores -----------------------------------------------------------------------------------

_Part = FilePart | LogSpan | QueuePart | str
"""A part of a file, of the log or of a queue; or the path of a table."""


class _StoreComparison:
    """A comparison of two stores."""

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
        is_empty = [side.end_offset <= side.log.min_offset for side in (self._left, self._right)]
        if any(is_empty):
            return "physical"
        places = [low + (high - low) * i // _SAMPLES for i in range(_SAMPLES)]
        is_same = low < high and differing_messages.sampled_matches(self._left, self._right, places)
        return "physical" if is_same else "queue"

    def counted(self, runner: Runner, section: str, most: int) -> Counted:
        if section == "messages" and self.matched_by == "queue":
            runner.report(section, 0, 1)
            joined = message_join.counted(self._joined(), most)
            runner.report(section, 1, 1)
            return joined
        tasks = self._tasks(section)
        if section == "files":
            results = runner(section, functools.partial(_first_of_files, self._sides), tasks)
            return findings.capped(iter([*self._sizes(), *_first_of_each(results)]), most)
        counts: dict[tuple[str, str], int] = {}
        first: list[Mismatch] = []
        work = functools.partial(_counted, self._sides, most)
        for counted, mismatches in runner(section, work, tasks):
            for key, count in counted.items():
                counts[key] = counts.get(key, 0) + count
            first += mismatches
        return counts, first[:most]

    def frame(self, section: str) -> DataFrame:
        if section == "messages" and self.matched_by == "queue":
            return self._joined()
        tasks = self._tasks(section)
        rows: Any
        if section == "files":
            work = functools.partial(_first_of_files, self._sides)
            results = runner_on(self._spark, "compare", None)(section, work, tasks)
            rows = [
                dataclasses.astuple(item) for item in [*self._sizes(), *_first_of_each(results)]
            ]
        elif tasks and is_connect(self._spark):
            pickled = [pickle.dumps(task) for task in tasks]
            find = functools.partial(_rows, self._sides)
            spark = _session(self._spark)
            return frame_of(spark, find, pickled, message_join.FINDING_SCHEMA).drop("number")
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
                return [tuple(share) for share in _shares([*self._queue_parts()], _UNITS_A_PART)]
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
        """Return the files that one side lacks, or that differ in size."""
        ours, theirs = self._files
        mismatches = []
        for path in sorted({*ours, *theirs}):
            a, b = ours.get(path), theirs.get(path)
            if a is None or b is None:
                kind, side = (ONLY_RIGHT, "right") if a is None else (ONLY_LEFT, "left")
                mismatches.append(
                    Mismatch("files", kind, f"{path} is only on the {side}", file=path)
                )
            elif a != b:
                text = f"{path} has {a} bytes on the left and {b} on the right"
                mismatches.append(
                    Mismatch(
                        *("files", DIFFERENT, text),
                        file=path,
                        field="size",
                        left=str(a),
                        right=str(b),
                    )
                )
        return mismatches

    def _log_parts(self) -> Iterator[LogSpan]:
        sides = [
            side for side in (self._left, self._right) if side.end_offset > side.log.min_offset
        ]
        low = min((side.log.min_offset for side in sides), default=0)
        high = max((side.end_offset for side in sides), default=0)
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
                filled = [queue for queue in queues if queue.min_offset < queue.max_offset]
                low = min((queue.min_offset for queue in filled), default=0)
                high = max((queue.max_offset for queue in filled), default=0)
                for start in range(low, high, _UNITS_A_PART):
                    stop = min(start + _UNITS_A_PART, high)
                    yield QueuePart(topic, queue_id, start, stop, is_batch)


def _sizes_below(folder: Folder, path: str = "") -> dict[str, int]:
    """Return path -> size of all files of a store, without locks and the backups of tables."""
    sizes: dict[str, int] = {}
    for entry in folder.entries(path):
        name = f"{path}/{entry.name}".lstrip("/")
        if entry.is_folder:
            sizes.update(_sizes_below(folder, name))
        elif name not in _RESERVED and not name.endswith(paths.BACKUP_SUFFIX):
            sizes[name] = entry.size
    return sizes


def _gathered(parts: Iterator[FilePart], target_bytes: int) -> list[tuple[_Part, ...]]:
    """Group parts of files into tasks of about ``target_bytes``."""
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
    """Group parts of queues into tasks of at most ``most`` units."""
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


def _first_of_each(of_tasks: Sequence[list[Mismatch]]) -> list[Mismatch]:
    """Return the first difference of each file; tasks are in file order."""
    first: dict[str | None, Mismatch] = {}
    for mismatch in itertools.chain.from_iterable(of_tasks):
        first.setdefault(mismatch.file, mismatch)
    return list(first.values())


# What executors do ----------------------------------------------------------------------------


def _rows(sides: TwoStores, parts: tuple[_Part, ...]) -> Iterator[tuple[Any, ...]]:
    return map(dataclasses.astuple, _find(sides, parts))


def _find(sides: TwoStores, parts: tuple[_Part, ...]) -> Iterator[Mismatch]:
    for part in parts:
        match part:
            case FilePart():
                mismatch = byte_ranges.in_file(sides, part)
                if mismatch is not None:
                    yield mismatch
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
