"""The views other than messages: the files of a store as tables.

``consumequeue`` units, ``index`` entries, log ``files``, ``gaps`` in the log, consumer ``offsets``,
``topics``, ``checkpoint``. Running brokers have ``offsets`` and ``topics``. Columns:
docs/reference/spark-schema.md.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from reput.format import names
from reput.spark.options import ReadOptions
from reput.spark.store_opening import store_paths
from reput.store.index.index_view import IndexFileView
from reput.store.log.commit_log_view import LogBatch
from reput.store.reader import StoreReader

log = logging.getLogger("reput.spark")

_TIMESTAMP = pa.timestamp("us", tz="UTC")
T = TypeVar("T")
_ROWS_A_BATCH = 1 << 16

FIELDS: dict[str, dict[str, pa.DataType]] = {
    "consumequeue": {
        "topic": pa.string(),
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "physical_offset": pa.int64(),
        "size": pa.int32(),
        "tags_code": pa.int64(),
        "message_count": pa.int32(),
        "bit_map": pa.binary(),
    },
    "index": {
        "file": pa.string(),
        "entry": pa.int32(),
        "key_hash": pa.int32(),
        "physical_offset": pa.int64(),
        "store_timestamp": _TIMESTAMP,
        "previous": pa.int32(),
    },
    "files": {
        "family": pa.string(),
        "file": pa.string(),
        "start_offset": pa.int64(),
        "size": pa.int64(),
        "first_physical_offset": pa.int64(),
        "last_physical_offset": pa.int64(),
        "min_store_timestamp": _TIMESTAMP,
        "max_store_timestamp": _TIMESTAMP,
        "wasted_bytes": pa.int64(),
        "modified": _TIMESTAMP,
    },
    "gaps": {
        "physical_offset": pa.int64(),
        "length": pa.int64(),
        "kind": pa.string(),
        "reason": pa.string(),
        "file": pa.string(),
    },
    "offsets": {
        "topic": pa.string(),
        "consumer_group": pa.string(),
        "queue_id": pa.int32(),
        "consumer_offset": pa.int64(),
        "min_offset": pa.int64(),
        "max_offset": pa.int64(),
        "lag": pa.int64(),
    },
    "topics": {
        "topic": pa.string(),
        "read_queue_count": pa.int32(),
        "write_queue_count": pa.int32(),
        "perm": pa.int32(),
        "is_ordered": pa.bool_(),
        "filter_type": pa.string(),
        "attributes": pa.map_(pa.string(), pa.string()),
        "is_system": pa.bool_(),
        "queue_count": pa.int32(),
        "message_count": pa.int64(),
    },
    "checkpoint": {
        "name": pa.string(),
        "value": pa.int64(),
        "timestamp": _TIMESTAMP,
    },
}

_COMMON_COLUMNS = {"broker": pa.string(), "store": pa.string()}


_PART_BYTES = 64 * 1024 * 1024
"""Approximate size of queue or index files per partition, in bytes."""


@dataclass(frozen=True, slots=True)
class ViewPart:
    """A part of a view: a store, and its queues or files if the view is split."""

    store: str
    """Path of the store, or name of a running broker."""
    queues: tuple[tuple[str, int], ...] = ()
    files: tuple[str, ...] = ()


def fields(options: ReadOptions) -> dict[str, pa.DataType]:
    """Return the columns of a view: store, broker, and its own."""
    return {**_COMMON_COLUMNS, **FIELDS[options.view]}


def partitions(options: ReadOptions) -> list[ViewPart]:
    """Split a view: queues and index files into parts of some size, the others by store."""
    if options.live is not None:
        return [ViewPart(broker) for broker in _of_brokers().brokers(options)]
    parts = []
    for store in store_paths(options):
        reader = _open(options, store)
        if options.view == "consumequeue":
            parts += [ViewPart(store, queues=some) for some in _gathered(_queues(reader, options))]
        elif options.view == "index":
            files = [(file.name, file.size) for file in reader.index.files]
            parts += [ViewPart(store, files=some) for some in _gathered(files)]
        else:
            parts.append(ViewPart(store))
    return parts


def _queues(reader: StoreReader, options: ReadOptions) -> list[tuple[tuple[str, int], int]]:
    """Return the selected queues and the sizes of their files."""
    sizes = {
        (topic, queue_id): 0
        for table in (reader.queue_ids, reader.batch_queue_ids)
        for topic, ids in table.items()
        if _is_wanted(options, topic)
        for queue_id in ids
    }
    for topic, queue_id in sizes:
        view = reader.queue(topic, queue_id)
        sizes[topic, queue_id] = sum(file.size for file in view.files)
    return list(sizes.items())


def _gathered(sized: Sequence[tuple[T, int]]) -> Iterator[tuple[T, ...]]:
    """Yield items in groups of about ``_PART_BYTES``."""
    group: list[T] = []
    total = 0
    for item, size in sized:
        if group and total + size > _PART_BYTES:
            yield tuple(group)
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield tuple(group)


def _open(options: ReadOptions, store: str) -> StoreReader:
    return StoreReader.open(store, allow_live=options.allow_live)


def _is_wanted(options: ReadOptions, topic: str) -> bool:
    if options.topic_pattern is not None:
        return re.fullmatch(options.topic_pattern, topic) is not None
    wanted = options.topics if options.assign is None else options.assign.keys()
    return wanted is None or topic in wanted


def read(options: ReadOptions, columns: Sequence[str], part: ViewPart) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part of a view."""
    known = fields(options)
    schema = pa.schema([(name, known[name]) for name in columns])
    tables: Iterable[Values]
    if options.live is not None:
        address, rows = _of_brokers().rows(options, part.store)
        common = {"broker": part.store, "store": address}
        tables = [_rows(options.view, rows)]
    else:
        reader = _open(options, part.store)
        common = {"broker": options.broker or reader.broker_name(), "store": reader.location}
        tables = _VIEWS[options.view](reader, options, part)
    for values in tables:
        count = len(next(iter(values.values())))
        arrays = [
            pa.array(values[name], field.type)
            if name in values
            else pa.array([common[name]] * count, field.type)
            for name, field in zip(schema.names, schema, strict=True)
        ]
        if count:
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


Values = dict[str, Any]


def _of_brokers() -> Any:
    from reput.spark.live import views as live_views  # readers of stores need no network

    return live_views


def _rows(view: str, rows: Sequence[Sequence[Any]]) -> Values:
    return {name: [row[i] for row in rows] for i, name in enumerate(FIELDS[view])}


def _micros(time_ms: int | None) -> int | None:
    return None if time_ms is None else time_ms * 1000


def _consume_queue(reader: StoreReader, options: ReadOptions, part: ViewPart) -> Iterator[Values]:
    for topic, queue_id in part.queues:
        if queue_id in reader.batch_queue_ids.get(topic, ()):
            units = reader.batch_queue(topic, queue_id).units
            counts = units["message_count"]
            yield _unit_values(topic, queue_id, units["queue_offset"], units, counts)
        if queue_id in reader.queue_ids.get(topic, ()):
            yield from _plain_queue(reader, topic, queue_id)


def _plain_queue(reader: StoreReader, topic: str, queue_id: int) -> Iterator[Values]:
    queue = reader.queue(topic, queue_id)
    extension = reader.extension(topic, queue_id)
    for start in range(queue.min_offset, queue.max_offset, _ROWS_A_BATCH):
        numbers, units = queue.units(start, min(start + _ROWS_A_BATCH, queue.max_offset))
        values = _unit_values(topic, queue_id, numbers, units, np.ones(len(units), np.int32))
        if extension.files:
            ext_units = [
                extension.unit(int(code)) if code < -(1 << 31) else None
                for code in units["tags_code"]
            ]
            values["bit_map"] = [(unit.bit_map or None) if unit else None for unit in ext_units]
            values["tags_code"] = [
                unit.tags_code if unit else int(code)
                for unit, code in zip(ext_units, units["tags_code"], strict=True)
            ]
        yield values


def _unit_values(topic: str, queue_id: int, numbers: Any, units: Any, counts: Any) -> Values:
    kinds = {name: units.dtype[name].newbyteorder("=") for name in units.dtype.names}
    native = {name: units[name].astype(kind) for name, kind in kinds.items()}
    return {
        "topic": [topic] * len(units),
        "queue_id": [queue_id] * len(units),
        "queue_offset": np.asarray(numbers).astype(np.int64),
        "physical_offset": native["physical_offset"],
        "size": native["size"],
        "tags_code": native["tags_code"],
        "message_count": np.asarray(counts).astype(np.int32),
        "bit_map": [None] * len(units),
    }


def _index(reader: StoreReader, options: ReadOptions, part: ViewPart) -> Iterator[Values]:
    for file in reader.index.files:
        if file.name in part.files:
            yield from _index_file(file)


def _index_file(file: IndexFileView) -> Iterator[Values]:
    entries = file.entries()
    times = file.header.begin_timestamp + entries["seconds"].astype(np.int64) * 1000
    for start in range(0, len(entries), _ROWS_A_BATCH):
        some = entries[start : start + _ROWS_A_BATCH]
        yield {
            "file": [file.name] * len(some),
            "entry": np.arange(start + 1, start + 1 + len(some), dtype=np.int32),
            "key_hash": some["key_hash"].astype(np.int32),
            "physical_offset": some["physical_offset"].astype(np.int64),
            "store_timestamp": times[start : start + len(some)] * 1000,
            "previous": some["previous"].astype(np.int32),
        }


def _files(reader: StoreReader, options: ReadOptions, part: ViewPart) -> Iterator[Values]:
    rows: list[Sequence[Any]] = [
        (
            "commitlog",
            state.file.name,
            state.file.start,
            state.file.size,
            state.first_offset,
            state.last_offset,
            _micros(state.min_store_timestamp),
            _micros(state.max_store_timestamp),
            state.wasted_bytes,
            _micros(state.file.modified_ms),
        )
        for state in reader.log_file_states()
    ]
    for queue in reader.queues():
        for file in queue.files:
            name = f"{queue.topic}/{queue.queue_id}/{file.name}"
            modified = _micros(file.modified_ms)
            rows.append(("consumequeue", name, file.start, file.size, *[None] * 5, modified))
    for index_file in reader.index.files:
        header = index_file.header
        rows.append(
            (
                "index",
                index_file.name,
                None,
                index_file.size,
                header.begin_physical_offset,
                header.end_physical_offset,
                _micros(header.begin_timestamp),
                _micros(header.end_timestamp),
                None,
                _micros(index_file.modified_ms),
            )
        )
    yield _rows("files", rows)


def _gaps(reader: StoreReader, options: ReadOptions, part: ViewPart) -> Iterator[Values]:
    tail = reader.tail
    tails = [(gap, kind) for gap, kind in ((tail.torn, "torn"), (tail.stale, "stale")) if gap]
    walked: Iterator[LogBatch] = reader.walk(check_crc=options.check_crc)
    rows = [(gap, "damage") for batch in walked for gap in batch.damage]
    yield _rows(
        "gaps",
        [
            (gap.physical_offset, gap.length, kind, gap.reason, gap.file)
            for gap, kind in [*rows, *tails]
        ],
    )


def _offsets(reader: StoreReader, options: ReadOptions, part: ViewPart) -> Iterator[Values]:
    rows = []
    for row in reader.consumer_offsets():
        if not _is_wanted(options, row.topic):
            continue
        is_batch = row.queue_id in reader.batch_queue_ids.get(row.topic, ())
        if is_batch:
            batch = reader.batch_queue(row.topic, row.queue_id)
            low, high = batch.min_offset, batch.max_offset
        else:
            queue = reader.queue(row.topic, row.queue_id)
            low, high = queue.min_offset, queue.max_offset
        lag = high - row.consumer_offset
        rows.append((row.topic, row.group, row.queue_id, row.consumer_offset, low, high, lag))
    if not rows:
        log.warning("%s: no group has committed an offset of a selected topic", reader.location)
    yield _rows("offsets", rows)


def _topics(reader: StoreReader, options: ReadOptions, part: ViewPart) -> Iterator[Values]:
    table = reader.topics()
    known = sorted({*table, *reader.queue_ids, *reader.batch_queue_ids})
    rows = []
    for name in known:
        if not _is_wanted(options, name):
            continue
        topic = table.get(name)
        queues = [reader.queue(name, i) for i in reader.queue_ids.get(name, ())]
        batches = [reader.batch_queue(name, i) for i in reader.batch_queue_ids.get(name, ())]
        count = sum(queue.max_offset - queue.min_offset for queue in queues)
        count += sum(queue.max_offset - queue.min_offset for queue in batches)
        rows.append(
            (
                name,
                topic.read_queue_count if topic else None,
                topic.write_queue_count if topic else None,
                topic.perm if topic else None,
                topic.order if topic else None,
                topic.filter_type if topic else None,
                list(topic.attributes) if topic else None,
                names.is_system_topic(name),
                len(queues) + len(batches),
                count,
            )
        )
    yield _rows("topics", rows)


def _checkpoint(reader: StoreReader, options: ReadOptions, part: ViewPart) -> Iterator[Values]:
    if reader.state.checkpoint_problem is not None:
        raise reader.state.checkpoint_problem
    page = reader.state.checkpoint
    if page is None:
        return
    times = {
        "physical_timestamp": page.physical_timestamp,
        "queue_timestamp": page.queue_timestamp,
        "index_timestamp": page.index_timestamp,
    }
    places = {
        "master_flushed_offset": page.master_flushed_offset,
        "confirmed_physical_offset": page.confirmed_physical_offset,
        "queue_physical_offset": page.queue_physical_offset,
    }
    rows = [(name, value, _micros(value)) for name, value in times.items()]
    yield _rows("checkpoint", [*rows, *((name, value, None) for name, value in places.items())])


_VIEWS: dict[str, Callable[[StoreReader, ReadOptions, ViewPart], Iterator[Values]]] = {
    "consumequeue": _consume_queue,
    "index": _index,
    "files": _files,
    "gaps": _gaps,
    "offsets": _offsets,
    "topics": _topics,
    "checkpoint": _checkpoint,
}
