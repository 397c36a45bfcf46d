"""Each reader returns the rows of Java's manifests: of whole stores, and of every selection.

The same readers in Spark are in tests/spark.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import golden
import reput.arrow
from reput.spark import plan
from reput.spark.filters import from_span, from_values
from reput.spark.jobs.archive import archive
from reput.spark.options import TriggerLimits
from spark import reading, streams
from spark.in_process import InProcess
from spark.reading import Row

EVERYTHING: dict[str, Any] = {"broker": reading.BROKER, "readIsolation": "all"}
HALF, OPERATIONS = reading.HIDDEN_TOPICS
SYSTEM_TOPICS = ("SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT")
EACH_STORE = pytest.mark.parametrize(("version", "name"), golden.EACH_STORE)

Queue = tuple[str, int]
Wants = Callable[[Row], bool]


# --- whole stores -----------------------------------------------------------


def planned(store: Path, _: Path) -> list[Row]:
    return reading.read(store, **EVERYTHING).rows


def by_arrow(store: Path, _: Path) -> list[Row]:
    """Read many small tasks in several threads."""
    scan = reput.arrow.scan(store, maxBytesPerPartition="8k", threads=3, **EVERYTHING)
    arrow_rows: list[Row] = []
    for batch in scan:
        batch.validate(full=True)
        arrow_rows += batch.to_pylist(maps_as_pydicts="strict")
    return arrow_rows


def archived(store: Path, folder: Path) -> Path:
    into = folder / "archive"
    if not into.exists():
        archive(InProcess(), str(store), str(into), include_last=True, broker=reading.BROKER)
    return into


def from_an_archive(store: Path, folder: Path) -> list[Row]:
    return reading.read(archived(store, folder), **EVERYTHING).messages


def by_a_stream(store: Path, _: Path) -> list[Row]:
    """Read micro-batches of 100 queue offsets."""
    stream = streams.open_stream(path=store, startingOffsets="earliest", **EVERYTHING)
    return streams.everything(stream, TriggerLimits(max_offsets=100))


READERS: tuple[Callable[[Path, Path], list[Row]], ...] = (planned, by_arrow)
OF_WHOLE_QUEUES: tuple[Callable[[Path, Path], list[Row]], ...] = (from_an_archive, by_a_stream)
"""Readers for ``clean``: an archive takes long, and a stream sees what queues list."""


@EACH_STORE
def test_rows_equal_the_manifest(version: str, name: str, tmp_path: Path) -> None:
    store, expected = golden.unpack(version, name), reading.expected(version, name)
    for read in (*READERS, *(OF_WHOLE_QUEUES if name == "clean" else ())):
        got = [reading.comparable(version, row) for row in read(store, tmp_path)]
        assert got == expected, read.__name__
    counts = reading.scan(store).counts()
    visible = Counter((row["topic"], row["queue_id"]) for row in filter(is_visible, expected))
    assert counts is None or {(t, q): count for _, t, q, count in counts if count} == visible


# --- selections -------------------------------------------------------------


def is_visible(row: Row) -> bool:
    """Return whether the default isolation shows a row."""
    return row["topic"] not in reading.HIDDEN_TOPICS


def by_broker(values: dict[Queue, Any]) -> dict[str, Any]:
    """Return the JSON of an option with a value for each queue."""
    table: dict[str, Any] = {}
    for (topic, queue_id), value in values.items():
        table.setdefault(topic, {reading.BROKER: {}})[reading.BROKER][str(queue_id)] = value
    return table


def within(starts: dict[Queue, float], stops: dict[Queue, float]) -> Wants:
    """Select the visible rows between two queue offsets of each queue."""

    def wants(row: Row) -> bool:
        queue, number = (row["topic"], row["queue_id"]), row["queue_offset"]
        is_inside = starts.get(queue, 0) <= number < stops.get(queue, float("inf"))
        return is_visible(row) and is_inside

    return wants


def among(column: str, *values: object) -> Wants:
    return lambda row: row[column] in values


def with_key(*keys: str) -> Wants:
    return lambda row: bool({*row["keys"]} & {*keys})


def unique(row: Row) -> str | None:
    key: str | None = row["properties"].get("UNIQ_KEY")
    return key


Selections = Iterator[tuple[dict[str, Any], Wants]]


def of_topics(rows: list[Row]) -> Selections:
    """Yield options of a read, and which rows it has, visible or not."""
    topics = sorted({row["topic"] for row in rows})
    yield {}, is_visible
    yield {"readIsolation": "half"}, lambda row: row["topic"] != OPERATIONS
    yield {"readIsolation": "all"}, lambda row: True
    for some in (topics[::2], topics[1::2], topics[:1], [HALF], [OPERATIONS]):
        if {*some} <= {*topics}:  # named topics are read whatever their kind
            yield {"topics": ",".join(some), "includeRetry": False}, among("topic", *some)
    for pattern in ("Golden(One|Four)", "Golden", ".*e.*"):
        matching = [topic for topic in topics if re.fullmatch(pattern, topic)]
        yield {"subscribePattern": pattern}, among("topic", *matching)
    for option, is_of_kind in {
        "includeRetry": lambda topic: topic.startswith("%RETRY%"),
        "includeDlq": lambda topic: topic.startswith("%DLQ%"),
        "includeSystemTopics": lambda topic: topic in SYSTEM_TOPICS or topic.startswith("rmq_sys_"),
    }.items():
        left = [topic for topic in topics if not is_of_kind(topic)]
        yield {option: False}, lambda row, left=left: is_visible(row) and row["topic"] in left
        # Predicates do not count as names.
        others = [*{*topics} - {*left}, HALF]
        yield {option: False, "constraint": from_values("topic", others)}, lambda row: False


def of_positions(rows: list[Row]) -> Selections:
    queues: dict[Queue, list[Row]] = defaultdict(list)
    for row in sorted(filter(is_visible, rows), key=lambda row: row["queue_offset"]):
        queues[row["topic"], row["queue_id"]].append(row)
    some = [*queues][::3]
    assign: dict[str, Any] = {topic: {reading.BROKER: []} for topic, _ in some}
    for topic, queue_id in some:
        assign[topic][reading.BROKER].append(queue_id)
    yield {"assign": assign}, lambda row: (row["topic"], row["queue_id"]) in some

    large = {queue: own for queue, own in queues.items() if len(own) > 4}
    starts = {queue: own[len(own) // 3]["queue_offset"] for queue, own in large.items()}
    stops = {queue: own[-2]["queue_offset"] for queue, own in large.items()}
    both = {"startingOffsets": by_broker(starts), "endingOffsets": by_broker(stops)}
    yield both, within(starts, stops)
    few = dict([*starts.items()][::2])
    words = {**few, **dict.fromkeys([*starts][1::2], -2)}
    yield {"startingOffsets": by_broker(words)}, within(few, {})
    few = dict([*stops.items()][::2])
    words = {**few, **dict.fromkeys([*stops][1::2], -1)}
    yield {"endingOffsets": by_broker(words)}, within({}, few)

    def first(time: datetime) -> dict[Queue, float]:
        """Return the first message of each queue at or after a time.

        Its queue offset bounds a read: known-bugs.md#offset-by-time.
        """
        later = {q: [r for r in own if r["store_timestamp"] >= time] for q, own in queues.items()}
        return {q: own[0]["queue_offset"] if own else float("inf") for q, own in later.items()}

    times = sorted({row["store_timestamp"] for row in filter(is_visible, rows)})
    step, middle = timedelta(milliseconds=1), times[len(times) // 2]
    for low, high in ((times[0] - step, times[0]), (times[0], middle), (middle, times[-1])):
        given = {"startingTimestamp": ms(low), "endingTimestamp": ms(high)}
        yield given, within(first(low), first(high))
    yield {"startingTimestamp": ms(middle) + 1}, within(first(middle + step), {})
    yield {"endingTimestamp": ms(times[-1]) + 1}, is_visible
    starts = {queue: ms(own[2]["store_timestamp"]) for queue, own in large.items()}
    stops = {queue: ms(own[-1]["store_timestamp"]) for queue, own in large.items()}
    firsts = {queue: first(reading.time_of(time))[queue] for queue, time in starts.items()}
    ends = {queue: first(reading.time_of(time))[queue] for queue, time in stops.items()}
    given = {"startingOffsetsByTimestamp": by_broker(starts)}
    yield {**given, "endingOffsetsByTimestamp": by_broker(stops)}, within(firsts, ends)

    places = [row["physical_offset"] for row in rows]
    low, high = places[len(places) // 4], places[len(places) // 2]
    for start, stop in ((low, high), (low + 1, high + 1), (0, 1), (places[-1] + 1, 1 << 50)):
        yield (
            {"startingPhysicalOffset": start, "endingPhysicalOffset": stop},
            lambda row, start=start, stop=stop: (
                is_visible(row) and start <= row["physical_offset"] < stop
            ),
        )


def of_keys(rows: list[Row]) -> Selections:
    rows = [*filter(is_visible, rows)]
    keys = Counter(key for row in rows for key in row["keys"] if "," not in key)
    some = [*[*keys][:2], [*keys][-1], keys.most_common(1)[0][0]] if keys else ["nobody's"]
    for key in some:
        yield {"key": key}, with_key(key)
    rare = [key for key, count in keys.items() if count < 5][::12]
    yield {"keyIn": ",".join([*rare, "none"])}, with_key(*rare)
    ids = [key for key in map(unique, rows) if key]
    named = {ids[0], ids[len(ids) // 2], ids[-1]}
    yield {"uniqKey": ",".join([*named, "no such id"])}, lambda row: unique(row) in named
    both = rows[10]
    yield (
        {"topic": both["topic"], "uniqKey": unique(both) or "none"},
        lambda row: (row["topic"], unique(row)) == (both["topic"], unique(both) or "none"),
    )
    shown = [row["msg_id"] for row in rows if not unique(row)][:5]  # offset ids
    shown += [*named, "nobody"]
    yield {"constraint": from_values("msg_id", shown)}, among("msg_id", *shown)


def of_content(rows: list[Row]) -> Selections:
    rows = [*filter(is_visible, rows)]
    tags = [tag for tag in dict.fromkeys(row["tags"] for row in rows) if tag][:2]
    yield {"tags": " || ".join(tags)}, among("tags", *tags)
    yield (
        {"sql92": f"TAGS = '{tags[0]}' OR KEYS IS NULL"},
        lambda row: row["tags"] == tags[0] or "KEYS" not in row["properties"],
    )
    yield {"constraint": from_values("tags", tags[:1])}, among("tags", tags[0])
    topic = Counter(row["topic"] for row in rows).most_common(1)[0][0]
    yield {"constraint": from_values("topic", [topic, "nobody"])}, among("topic", topic)
    yield {"constraint": from_values("queue_id", [1, 3])}, among("queue_id", 1, 3)
    yield {"constraint": from_span("queue_offset", 3, 5)}, among("queue_offset", 3, 4, 5)
    low, high = rows[len(rows) // 4], rows[len(rows) // 2]
    place = low["physical_offset"]
    yield (
        {"constraint": from_span("physical_offset", place, None)},
        lambda row: row["physical_offset"] >= place,
    )
    times = [ms(row["store_timestamp"]) * 1000 for row in (low, high)]
    for inwards in (0, 1):  # microseconds
        start, stop = times[0] + inwards, times[1] - inwards
        yield (
            {"constraint": from_span("store_timestamp", start, stop)},
            lambda row, start=start, stop=stop: start <= ms(row["store_timestamp"]) * 1000 <= stop,
        )


def ms(time: datetime) -> int:
    return (time - reading.EPOCH) // timedelta(milliseconds=1)


def places(rows: list[Row]) -> list[tuple[int, int, str]]:
    return sorted((row["physical_offset"], row["queue_offset"], row["msg_id"]) for row in rows)


KINDS = {"log": plan.LogRange, "consumequeue": plan.QueueRange}
NOT_IN_STREAMS = re.compile("constraint|ending|Physical")


@EACH_STORE
@pytest.mark.parametrize("select", [of_topics, of_positions, of_keys, of_content])
@pytest.mark.sampled(4)
def test_selections(
    version: str, name: str, select: Callable[[list[Row]], Selections], tmp_path: Path
) -> None:
    """By log, by queue, as planned; of ``clean`` also from an archive, and as a stream."""
    store, rows = golden.unpack(version, name), reading.expected(version, name)
    for options, wants in select(rows):
        are_named = any(word in options for word in ("topics", "subscribePattern", "readIsolation"))
        wanted = places([r for r in rows if wants(r) and (are_named or is_visible(r))])
        for how in ("auto", "log", "consumequeue"):
            got = reading.read_light(store, scan=how, **options)
            assert places(got.rows) == wanted, (options, how)
            kinds = {type(task.partition) for task in got.tasks}
            if "topics" in options and how != "auto" and name == "clean":
                assert kinds <= {KINDS[how]}, options
        if name == "clean":
            got = reading.read_light(archived(store, tmp_path), **options)
            assert places(got.rows) == wanted, (options, "archive")
            if not NOT_IN_STREAMS.search(" ".join(options)):
                stream = streams.open_stream(
                    path=store, **{"startingOffsets": "earliest"} | options
                )
                assert places(streams.everything(stream)) == wanted, (options, "stream")


@pytest.mark.parametrize("index", ["none", "the newest file is gone", "the oldest file is gone"])
@pytest.mark.sampled(2)
def test_keys_without_a_whole_index(index: str, tmp_path: Path) -> None:
    store = golden.copy_store("4.9.7", "clean", tmp_path)
    files = sorted((store / "index").iterdir())
    for file in {"none": files, "the newest file is gone": files[-1:]}.get(index, files[:1]):
        file.unlink()
    rows = [*filter(is_visible, reading.expected("4.9.7", "clean"))]
    for options, wants in of_keys(rows):
        got = reading.read_light(store, **options)
        assert places(got.rows) == places([*filter(wants, rows)]), options
