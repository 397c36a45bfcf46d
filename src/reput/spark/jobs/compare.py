"""Compare: what two stores differ in, from the first differing byte to lost messages.

    files     names, sizes, and per file the first differing byte, explained
    messages  records that one side lacks, and the fields in which others differ
    queues    units that one side lacks, and those that differ
    tables    topics, consumer and delay offsets, groups

Where both logs have the same messages at the same physical offsets (a copy, a slave, a salvaged
store) messages are matched by it: parts whose bytes are equal are not decoded. Else Spark joins
them by topic, queue and queue offset, and what is left by unique key.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F

from reput.errors import InvalidOption
from reput.spark.jobs import differences
from reput.spark.jobs.differences import (
    DIFFERENT,
    ONLY_LEFT,
    ONLY_RIGHT,
    FilePart,
    Finding,
    LogPart,
    QueuePart,
    Sides,
)
from reput.spark.jobs.running import Progress
from reput.store import paths
from reput.store.consume_queue_view import BatchConsumeQueueView, ConsumeQueueView
from reput.store.files import Folder
from reput.store.reader import StoreReader

SECTIONS = ("files", "messages", "queues", "tables")
MATCHES = ("auto", "physical", "queue")
OTHER_BROKER = frozenset({"physical_offset", "store_timestamp", "store_host"})
"""What two brokers legitimately differ in, for ``ignore``."""
FINDINGS_MAX = 100
PARTITION_BYTES = 128 * 1024 * 1024

_UNITS_A_PART = 1 << 20
_FILES_A_TASK = 256
_SAMPLES = 16
_SCHEMA = """
    section string, kind string, text string, count long, file string, topic string, queue_id int,
    queue_offset long, physical_offset long, field string, left string, right string
"""
_KEY = ("topic", "queue_id", "queue_offset", "nth")
_CONTENT = (
    *("physical_offset", "flag", "sys_flag", "born_timestamp", "born_host", "store_timestamp"),
    *("store_host", "reconsume_times", "prepared_transaction_offset", "body_crc", "store_size"),
)
_HASHED = {"body": "body", "properties": "raw_properties"}
IGNORABLE = frozenset({*_CONTENT, *_HASHED, "queue_id", "size", "tags_code"})
"""What may be ignored: fields of messages, and of units."""
_RESERVED = frozenset({paths.LOCK})


@dataclass(frozen=True)
class Comparison:
    """How two stores differ; ``as_json`` gives plain values."""

    left: str
    right: str
    sections: tuple[str, ...]
    """What was compared."""
    matched_by: str
    """How messages were matched: ``physical`` or ``queue``; empty if they were not."""
    counts: dict[str, dict[str, int]]
    """Section -> kind -> files, messages, units or entries."""
    findings: tuple[Finding, ...]
    """The first of them, section by section."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not any(any(kinds.values()) for kinds in self.counts.values())

    def as_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries."""
        return {**dataclasses.asdict(self), "is_equal": self.is_equal}


def compare(
    spark: SparkSession,
    left: str,
    right: str,
    *,
    sections: Collection[str] = SECTIONS,
    match: str = "auto",
    ignore: Collection[str] = (),
    findings_max: int = FINDINGS_MAX,
    partition_bytes: int = PARTITION_BYTES,
    allow_live: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two stores.

    Args:
        spark: The session to run the tasks in.
        left: A store.
        right: Another one, or a copy of it.
        sections: What to compare; files are left out where something is ignored.
        match: How messages are matched: ``physical`` offset, ``queue`` (topic, queue and queue
            offset, then unique key), or ``auto``.
        ignore: Fields that may differ, as ``OTHER_BROKER``.
        findings_max: So many findings of each section are returned; counts are of all.
        partition_bytes: Bytes of a log or file a task takes.
        allow_live: Brokers may be at work on the stores.
        progress: Told before each step.

    Raises:
        StoreUnavailable: One is no store, or is in use.
        InvalidOption: A section, field or way to match is unknown.
    """
    job = _Comparing(spark, left, right, sections, match, ignore, partition_bytes, allow_live)
    tell = progress or (lambda what, done, total: None)
    counts: dict[str, dict[str, int]] = {}
    findings: list[Finding] = []
    for done, section in enumerate(job.sections):
        tell(section, done, len(job.sections))
        counted, first = job.summary(section, findings_max)
        counts[section] = {
            kind: counted.get((section, kind), 0) for kind in (ONLY_LEFT, ONLY_RIGHT, DIFFERENT)
        }
        findings += first
    tell("done", len(job.sections), len(job.sections))
    matched = job.matched_by if "messages" in job.sections else ""
    return Comparison(left, right, job.sections, matched, counts, tuple(findings))


def findings_frame(
    spark: SparkSession,
    left: str,
    right: str,
    *,
    sections: Collection[str] = SECTIONS,
    match: str = "auto",
    ignore: Collection[str] = (),
    partition_bytes: int = PARTITION_BYTES,
    allow_live: bool = False,
) -> DataFrame:
    """Return every finding as a row, computed when it is asked for. Arguments as ``compare``.

    Columns: those of ``Finding``. What a join found stays cached until the session forgets it.
    """
    job = _Comparing(spark, left, right, sections, match, ignore, partition_bytes, allow_live)
    frames = [job.frame(section) for section in job.sections]
    return functools.reduce(DataFrame.unionByName, frames)


_Part = FilePart | LogPart | QueuePart | str
"""A part of a file, the log, a queue; or the path of a table."""


class _Comparing:
    """Two stores, on the driver."""

    def __init__(
        self,
        spark: SparkSession,
        left: str,
        right: str,
        sections: Collection[str],
        match: str,
        ignore: Collection[str],
        partition_bytes: int,
        allow_live: bool,
    ) -> None:
        _check("sections", sections, SECTIONS)
        _check("match", [match], MATCHES)
        _check("ignore", ignore, sorted(IGNORABLE))
        if not sections:
            raise InvalidOption("sections", "", ", ".join(SECTIONS))
        self._spark = spark
        self._sides = Sides(left, right, frozenset(ignore), allow_live)
        self._left = StoreReader.open(left, allow_live=allow_live)
        self._right = StoreReader.open(right, allow_live=allow_live)
        self._partition_bytes = max(partition_bytes, 1)
        # Where fields may differ, bytes of files do.
        self.sections = tuple(
            one for one in SECTIONS if one in sections and not (ignore and one == "files")
        )
        self._match = match
        self._kept: DataFrame | None = None  # rows of the join that differ

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
        is_same = low < high and differences.sampled_matches(self._left, self._right, places)
        return "physical" if is_same else "queue"

    def summary(self, section: str, most: int) -> tuple[dict[tuple[str, str], int], list[Finding]]:
        """Return counts and first findings of a section."""
        if section == "messages" and self.matched_by == "queue":
            return self._summary_of_frame(self._joined(), most)
        found = self._sizes() if section == "files" else []
        results = [differences.capped(iter(found), most)]
        tasks = self._tasks(section)
        if tasks:
            work = functools.partial(_summarize, self._sides, most)
            if section == "files":
                firsts = self._rdd(tasks).flatMap(functools.partial(_find, self._sides)).collect()
                results.append(differences.capped(iter(_first_of_files(firsts)), most))
            else:
                results += self._rdd(tasks).map(work).collect()
        counts: dict[tuple[str, str], int] = {}
        first: list[Finding] = []
        for counted, some in results:
            for key, count in counted.items():
                counts[key] = counts.get(key, 0) + count
            first += some
        return counts, first[:most]

    def frame(self, section: str) -> DataFrame:
        """Return the findings of a section as rows."""
        if section == "messages" and self.matched_by == "queue":
            return self._joined()
        tasks = self._tasks(section)
        rows: Any
        if section == "files":
            firsts = self._rdd(tasks).flatMap(functools.partial(_find, self._sides)).collect()
            rows = [dataclasses.astuple(one) for one in [*self._sizes(), *_first_of_files(firsts)]]
        elif tasks:
            found = self._rdd(tasks).flatMap(functools.partial(_find, self._sides))
            rows = found.map(dataclasses.astuple)
        else:
            rows = []
        return self._spark.createDataFrame(rows, _SCHEMA)

    def _rdd(self, tasks: Sequence[tuple[_Part, ...]]) -> Any:
        return self._spark.sparkContext.parallelize(tasks, max(len(tasks), 1))

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
                return [(differences.TABLES)]

    def _file_parts(self) -> Iterator[FilePart]:
        ours, theirs = self._files
        for path in sorted(ours.keys() & theirs.keys()):
            size = min(ours[path], theirs[path])
            for start in range(0, size, self._partition_bytes):
                yield FilePart(path, start, min(start + self._partition_bytes, size))

    @functools.cached_property
    def _files(self) -> tuple[dict[str, int], dict[str, int]]:
        return _sizes_below(self._left.folder), _sizes_below(self._right.folder)

    def _sizes(self) -> list[Finding]:
        """Return files that one side lacks, or that have another size."""
        ours, theirs = self._files
        found = []
        for path in sorted({*ours, *theirs}):
            a, b = ours.get(path), theirs.get(path)
            if a is None or b is None:
                kind, side = (ONLY_RIGHT, "right") if a is None else (ONLY_LEFT, "left")
                found.append(Finding("files", kind, f"{path} is only on the {side}", file=path))
            elif a != b:
                text = f"{path} has {a} bytes on the left and {b} on the right"
                found.append(
                    Finding(
                        *("files", DIFFERENT, text),
                        file=path,
                        field="size",
                        left=str(a),
                        right=str(b),
                    )
                )
        return found

    def _log_parts(self) -> Iterator[LogPart]:
        sides = [one for one in (self._left, self._right) if one.end_offset > one.log.min_offset]
        low = min((one.log.min_offset for one in sides), default=0)
        high = max((one.end_offset for one in sides), default=0)
        for start in range(low, high, self._partition_bytes):
            yield LogPart(start, min(start + self._partition_bytes, high))

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

    # Messages by queue ------------------------------------------------------------------------

    def _joined(self) -> DataFrame:
        """Return the findings of messages matched by queue offset, then by unique key."""
        left, right = (self._messages(path, side) for path, side in self._named_sides())
        key = [*_KEY]
        both = left.join(right, key, "full_outer")
        ignore = self._sides.ignore
        names = [name for name in (*_CONTENT, *_HASHED) if name not in ignore]
        differing = F.array_compact(
            F.array(*[F.when(~_left(n).eqNullSafe(_right(n)), F.lit(n)) for n in names])
        )
        is_alone = _left("here").isNull() | _right("here").isNull()
        # All that follows asks for these few rows: both stores are read and joined once.
        rest = both.withColumn("names", differing).filter(is_alone | (F.size("names") > 0))
        self._kept = rest = rest.persist()
        matched = rest.filter(~is_alone)
        only_left = rest.filter(_right("here").isNull())
        only_right = rest.filter(_left("here").isNull())
        pairs = _moved(only_left, only_right, ignore)
        moved_left = pairs.select("topic", _left("msg_id"))
        moved_right = pairs.select("topic", _right("msg_id"))
        return functools.reduce(
            DataFrame.unionByName,
            [
                _only(only_left.join(moved_left, ["topic", "left_msg_id"], "left_anti"), "left"),
                _only(
                    only_right.join(moved_right, ["topic", "right_msg_id"], "left_anti"), "right"
                ),
                _differing(matched, names),
                _moved_findings(pairs),
            ],
        )

    def _named_sides(self) -> list[tuple[str, str]]:
        return [(self._sides.left, "left"), (self._sides.right, "right")]

    def _messages(self, path: str, side: str) -> DataFrame:
        columns = ["topic", "queue_id", "queue_offset", "msg_id", *_CONTENT, *_HASHED.values()]
        reader = self._spark.read.format("rocketmq").options(
            path=path,
            allowLive=str(self._sides.allow_live).lower(),
            readIsolation="all",
            mode="DROPMALFORMED",  # damage is found by what the other side has there
            checkCrc="false",
            decompress="none",
            rawProperties="true",
            columns=",".join(columns),
            maxBytesPerPartition=str(self._partition_bytes),
        )
        nth = F.row_number().over(Window.partitionBy(*_KEY[:-1]).orderBy("physical_offset"))
        hashes = {name: F.xxhash64(column) for name, column in _HASHED.items()}
        content = [F.col(name).alias(f"{side}_{name}") for name in ("msg_id", *_CONTENT)]
        content += [value.alias(f"{side}_{name}") for name, value in hashes.items()]
        return (
            reader.load()
            .withColumn("nth", nth)
            .select(*_KEY, *content, F.lit(True).alias(f"{side}_here"))
        )

    def _summary_of_frame(
        self, frame: DataFrame, most: int
    ) -> tuple[dict[tuple[str, str], int], list[Finding]]:
        try:
            rows = frame.groupBy("section", "kind").agg(F.sum("count")).collect()
            counts = {(row[0], row[1]): row[2] for row in rows}
            order = ["kind", "topic", "queue_id", "queue_offset"]
            first = [Finding(**row.asDict()) for row in frame.orderBy(*order).head(most)]
        finally:
            if self._kept is not None:
                self._kept.unpersist()
        return counts, first


def _check(name: str, values: Collection[str], allowed: Sequence[str]) -> None:
    for value in values:
        if value not in allowed:
            raise InvalidOption(name, value, ", ".join(allowed))


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


def _first_of_files(findings: Sequence[Finding]) -> list[Finding]:
    """Return the first difference of each file; they come in the order of the files' bytes."""
    first: dict[str | None, Finding] = {}
    for one in findings:
        first.setdefault(one.file, one)
    return list(first.values())


# What executors do ----------------------------------------------------------------------------


def _find(sides: Sides, parts: tuple[_Part, ...]) -> Iterator[Finding]:
    for part in parts:
        match part:
            case FilePart():
                found = differences.in_file(sides, part)
                if found is not None:
                    yield found
            case LogPart():
                yield from differences.in_log(sides, part)
            case QueuePart():
                yield from differences.in_queue(sides, part)
            case str():
                yield from differences.in_table(*sides.readers, part)


def _summarize(
    sides: Sides, most: int, parts: tuple[_Part, ...]
) -> tuple[dict[tuple[str, str], int], list[Finding]]:
    return differences.capped(_find(sides, parts), most)


# Findings of a join ---------------------------------------------------------------------------


def _left(name: str) -> Column:
    return F.col(f"left_{name}")


def _right(name: str) -> Column:
    return F.col(f"right_{name}")


def _finding(frame: DataFrame, kind: str, text: Column, **columns: Column) -> DataFrame:
    """Return rows as ``Finding`` has them."""
    given = {
        "section": F.lit("messages"),
        "kind": F.lit(kind),
        "text": text,
        "count": F.lit(1).cast("long"),
        **columns,
    }
    names = [one.name for one in dataclasses.fields(Finding)]
    types = {"queue_id": "int", "queue_offset": "long", "physical_offset": "long"}
    return frame.select(
        *[
            given.get(name, F.lit(None))
            .cast("long" if name == "count" else types.get(name, "string"))
            .alias(name)
            for name in names
        ]
    )


def _which(side: str = "") -> Column:
    offset = F.col(f"{side}_queue_offset" if side else "queue_offset")
    queue = F.col(f"{side}_queue_id" if side else "queue_id")
    return F.concat_ws(
        "", F.lit("message "), offset, F.lit(" of "), F.col("topic"), F.lit("/"), queue
    )


def _only(frame: DataFrame, side: str) -> DataFrame:
    other = "right" if side == "left" else "left"
    text = F.concat(_which(), F.lit(f" is only on the {side}: {other} has no message there"))
    return _finding(
        frame,
        f"only_{side}",
        text,
        topic=F.col("topic"),
        queue_id=F.col("queue_id"),
        queue_offset=F.col("queue_offset"),
        physical_offset=F.col(f"{side}_physical_offset"),
    )


def _differing(matched: DataFrame, names: Sequence[str]) -> DataFrame:
    def values(side: str) -> Column:
        # Of bodies and properties there are hashes only: they say that, not how, they differ.
        shown = [
            F.when(
                F.array_contains("names", name),
                F.coalesce(F.col(f"{side}_{name}").cast("string"), F.lit("nothing")),
            )
            for name in names
            if name not in _HASHED
        ]
        return F.array_join(F.array_compact(F.array(*shown)), "; ") if shown else F.lit("")

    field = F.array_join("names", ",")
    text = F.concat(
        *(_which(), F.lit(" differs in "), field, F.lit(": left "), values("left")),
        *(F.lit(", right "), values("right")),
    )
    return _finding(
        matched,
        DIFFERENT,
        text,
        topic=F.col("topic"),
        queue_id=F.col("queue_id"),
        queue_offset=F.col("queue_offset"),
        physical_offset=_left("physical_offset"),
        field=field,
        left=values("left"),
        right=values("right"),
    )


def _moved(only_left: DataFrame, only_right: DataFrame, ignore: Collection[str]) -> DataFrame:
    """Return messages that are on both sides, but at other places of queues: each once."""
    frames = []
    for side, frame in (("left", only_left), ("right", only_right)):
        kept = frame.filter(F.col(f"{side}_msg_id").isNotNull()).select(
            "topic",
            F.col(f"{side}_msg_id").alias("msg_id"),
            F.col("queue_id").alias(f"{side}_queue_id"),
            F.col("queue_offset").alias(f"{side}_queue_offset"),
            f"{side}_physical_offset",
        )
        count = F.count("*").over(Window.partitionBy("topic", "msg_id"))
        kept = kept.withColumn("copies", count).filter("copies = 1").drop("copies")
        frames.append(kept)
    pairs = frames[0].join(frames[1], ["topic", "msg_id"])
    if "queue_id" not in ignore:
        pairs = pairs.withColumn("other_queue", _left("queue_id") != _right("queue_id"))
    else:
        pairs = pairs.withColumn("other_queue", F.lit(False))
    return pairs.withColumns({"left_msg_id": F.col("msg_id"), "right_msg_id": F.col("msg_id")})


def _moved_findings(pairs: DataFrame) -> DataFrame:
    field = F.when(F.col("other_queue"), F.lit("queue_id,queue_offset")).otherwise("queue_offset")
    text = F.concat(
        *(F.lit("left "), _which("left"), F.lit(" is on the right "), _which("right")),
        *(F.lit(", by its unique key "), F.col("msg_id")),
    )
    return _finding(
        pairs,
        DIFFERENT,
        text,
        topic=F.col("topic"),
        queue_id=_left("queue_id"),
        queue_offset=_left("queue_offset"),
        physical_offset=_left("physical_offset"),
        field=field,
        left=_left("queue_offset"),
        right=_right("queue_offset"),
    )
