"""Records as rows: the schema of ``format("rocketmq")``, and Arrow batches of kernel columns.

The kernels' buffers become Arrow's without a copy. Names, order and types of columns are a public
interface (docs/reference/spark-schema.md).
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reput.errors import CorruptRecord, InvalidOption
from reput.format import names, namespace, properties as props, sys_flag as flags
from reput.format.kernels import Columns, Pairs, Runs, Words
from reput.spark.filters import Constraint, Span
from reput.spark.option_table import DROPMALFORMED, FAILFAST
from reput.spark.options import ReadOptions

if TYPE_CHECKING:
    from reput.format.sql92 import Filter

log = logging.getLogger("reput.spark")

TIMESTAMP = pa.timestamp("us", tz="UTC")
PROPERTIES = pa.map_(pa.string(), pa.string())

FIELDS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "broker": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "physical_offset": pa.int64(),
    "msg_id": pa.string(),
    "offset_msg_id": pa.string(),
    "tags": pa.string(),
    "keys": pa.list_(pa.string()),
    "body": pa.binary(),
    "properties": PROPERTIES,
    "flag": pa.int32(),
    "sys_flag": pa.int32(),
    "born_timestamp": TIMESTAMP,
    "born_host": pa.string(),
    "store_timestamp": TIMESTAMP,
    "store_host": pa.string(),
    "reconsume_times": pa.int32(),
    "prepared_transaction_offset": pa.int64(),
    "body_crc": pa.int32(),
    "store_size": pa.int32(),
}
"""The columns of view ``messages``, in order."""

RAW_PROPERTIES = "raw_properties"
_NO_BATCH = "body is not the batch of messages that its flags say"

_YEAR_1_MS = -62_135_596_800_000
_YEAR_10000_MS = 253_402_300_800_000
"""Spark's timestamps cover the years 1 to 9999; other times are null."""

_HALF_TOPICS = frozenset({names.HALF_TOPIC, names.ROCKSDB_HALF_TOPIC})
_OP_TOPICS = frozenset({names.OP_HALF_TOPIC, names.ROCKSDB_OP_HALF_TOPIC})


def message_fields(options: ReadOptions) -> dict[str, pa.DataType]:
    """Return the columns of a read with these options, by name."""
    fields = dict(FIELDS)
    if options.charset:
        fields["body"] = pa.string()
    if not options.include_body:
        del fields["body"]
    if not options.include_headers:
        del fields["properties"]
    if options.raw_properties:
        fields[RAW_PROPERTIES] = pa.binary()
    if options.corrupt_column in fields:
        raise InvalidOption(
            "columnNameOfCorruptRecord", options.corrupt_column, "a name no column has"
        )
    if options.corrupt_column:
        fields[options.corrupt_column] = pa.string()
    return fields


@dataclass(frozen=True)
class DamagedRow:
    """A row that reports damage."""

    physical_offset: int
    length: int
    reason: str
    file: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None

    def values(self) -> dict[str, object]:
        """Return the values of columns of view ``messages``; the others are null."""
        return {
            "topic": self.topic,
            "queue_id": self.queue_id,
            "queue_offset": self.queue_offset,
            "physical_offset": self.physical_offset,
            "store_size": self.length if self.length < 1 << 31 else None,
        }

    def error(self) -> CorruptRecord:
        """Return the damage as an exception."""
        where = f" (queue {self.topic}/{self.queue_id}, queue offset {self.queue_offset})"
        return CorruptRecord(
            self.reason + (where if self.topic is not None else ""),
            physical_offset=self.physical_offset,
            file=self.file,
            length=self.length,
        )


class RowMaker:
    """Makes Arrow batches of the selected columns.

    Args:
        columns: Names of the selected columns, in order.
        options: Options of the read.
        broker: Value of column ``broker``.
        of_records: Make a row of each record, also of those with a batch of messages inside.
    """

    def __init__(
        self,
        columns: Sequence[str],
        options: ReadOptions,
        broker: str,
        *,
        of_records: bool = False,
    ) -> None:
        fields = message_fields(options)
        self.schema = pa.schema([(name, fields[name]) for name in columns])
        self._options = options
        self._broker = broker
        self._of_records = of_records
        self._makers: dict[str, Callable[[Columns], pa.Array]] = {
            "topic": self._topic,
            "broker": self._broker_column,
            "msg_id": lambda columns: _strings(columns.message_ids()),
            "offset_msg_id": lambda columns: _strings(columns.offset_ids()),
            "tags": lambda columns: _strings(columns.tags()),
            "keys": lambda columns: _lists(columns.keys()),
            "properties": lambda columns: _maps(columns.properties()),
            "born_timestamp": lambda columns: _times(columns.numbers("born_timestamp")),
            "store_timestamp": lambda columns: _times(columns.numbers("store_timestamp")),
            "born_host": lambda columns: _strings(columns.born_hosts()),
            "store_host": lambda columns: _strings(columns.store_hosts()),
            "queue_id": self._queue_id,
            RAW_PROPERTIES: lambda columns: _binaries(columns.raw_properties()),
        }

    def batch(self, columns: Columns, notes: dict[int, str] | None = None) -> pa.RecordBatch:
        """Return the rows of some records; ``notes`` go to the corrupt column, by row.

        A body that cannot be decompressed, or not be split into the messages of its batch, is kept
        as stored with a note, or its row is dropped, or an error is raised, depending on the mode.

        Raises:
            CorruptRecord: There is such a body and mode is FAILFAST.
        """
        arrays = {}
        failures: dict[int, str] = {}
        if not self._of_records:
            is_batch = (columns.numbers("sys_flag") & flags.INNER_BATCH) != 0
            failures |= dict.fromkeys(np.flatnonzero(is_batch).tolist(), _NO_BATCH)
        if "body" in self.schema.names:
            bodies, packed = columns.bodies(decompress=self._options.decompress)
            failures |= packed
            arrays["body"] = self._body(bodies)
        for row, reason in failures.items():
            offset = int(columns.numbers("physical_offset")[row])
            error = CorruptRecord(reason, physical_offset=offset)
            if self._options.mode == FAILFAST:
                raise error
            log.warning("%s", error)
        if failures and self._options.mode == DROPMALFORMED:
            is_good = np.ones(columns.count, np.bool_)
            is_good[list(failures)] = False
            return self.batch(columns.take(is_good))
        notes = {**failures, **(notes or {})}
        for name in self.schema.names:
            if name == self._options.corrupt_column:
                arrays[name] = _sparse_strings(notes, columns.count)
            elif name not in arrays:
                make = self._makers.get(name)
                arrays[name] = make(columns) if make else pa.array(columns.numbers(name))
        return pa.RecordBatch.from_arrays(
            [arrays[n] for n in self.schema.names], schema=self.schema
        )

    def damage(self, rows: Sequence[DamagedRow]) -> pa.RecordBatch:
        """Return rows of damage, null except for position and reason."""
        values = [
            {**row.values(), "broker": self._broker, self._options.corrupt_column: row.reason}
            for row in rows
        ]
        arrays = [
            pa.array([row.get(field.name) for row in values], field.type) for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _topic(self, columns: Columns) -> pa.Array:
        topics = _strings(columns.topics())
        if self._options.resolve_topics:
            real = _property(columns, props.REAL_TOPIC)
            resolved = [real[i] or topic for i, topic in enumerate(topics.to_pylist())]
            topics = pa.array(resolved, pa.string())
        if not self._options.namespace:
            return topics
        full = topics.dictionary_encode()
        plain = [
            namespace.unwrap(self._options.namespace, name) for name in full.dictionary.to_pylist()
        ]
        return pa.array(plain, pa.string()).take(full.indices)

    def _queue_id(self, columns: Columns) -> pa.Array:
        stored = columns.numbers("queue_id")
        if not self._options.resolve_topics:
            return pa.array(stored)
        real = _property(columns, props.REAL_QUEUE_ID)
        is_number = [text is not None and text.isascii() and text.isdigit() for text in real]
        return pa.array(
            [int(str(real[i])) if is_number[i] else int(stored[i]) for i in range(len(real))],
            pa.int32(),
        )

    def _broker_column(self, columns: Columns) -> pa.Array:
        name = self._broker.encode()
        offsets = np.arange(columns.count + 1, dtype=np.int32) * len(name)
        return _strings(Runs(offsets, np.frombuffer(name * columns.count, np.uint8), None))

    def _body(self, bodies: Runs) -> pa.Array:
        array = _binaries(bodies)
        charset = self._options.charset
        if charset is None:
            return array
        texts = [body.decode(charset, "replace") for body in array.to_pylist()]
        return pa.array(texts, pa.string())


# Conditions on rows ------------------------------------------------------------------------


def hidden_topics(options: ReadOptions) -> frozenset[str]:
    """Return the topics that the isolation leaves out, unless topics are selected."""
    if options.selects_topics:
        return frozenset()
    hidden = {"committed": _HALF_TOPICS | _OP_TOPICS, "half": _OP_TOPICS}
    return hidden.get(options.isolation, frozenset())


class RowFilter:
    """Filters the rows of a batch by options and constraint."""

    def __init__(self, options: ReadOptions, constraint: Constraint) -> None:
        self._options = options
        self._constraint = constraint
        self._is_wanted_topic = self._topic_test()
        self._matches = _compiled(options.sql92).matches if options.sql92 else None

    def _topic_test(self) -> Callable[[str], bool]:
        options, wanted = self._options, self._constraint.topics
        is_named = options.topics is not None or options.assign is not None
        pattern = re.compile(options.topic_pattern) if options.topic_pattern else None
        hidden = hidden_topics(options)

        def is_wanted(topic: str) -> bool:
            if topic in hidden or (wanted is not None and topic not in wanted):
                return False
            if options.namespace and not is_named:
                full, topic = topic, namespace.unwrap(options.namespace, topic)
                if topic == full:  # of another namespace, or of the system
                    return False
            if pattern is not None and not pattern.fullmatch(topic):
                return False
            return is_named or (
                (options.include_system_topics or not names.is_system_topic(topic))
                and (options.include_retry or not names.is_retry_topic(topic))
                and (options.include_dlq or not names.is_dlq_topic(topic))
            )

        return is_wanted

    def wants_topic(self, topic: str) -> bool:
        """Return whether rows of a topic can pass."""
        return self._is_wanted_topic(topic)

    def rows(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Return the indexes of the passing rows, in order."""
        ids, topics = columns.topic_ids()
        is_wanted = np.array([self._is_wanted_topic(topic) for topic in topics], np.bool_)
        mask = is_wanted[ids] if len(topics) else np.zeros(0, np.bool_)
        wanted = self._constraint
        if wanted.queue_ids is not None:
            mask &= np.isin(columns.numbers("queue_id"), list(wanted.queue_ids))
        if self._options.isolation == "committed":
            # Such records are never queued; brokers before 4.3 stored them under their own topic.
            mask &= (columns.numbers("sys_flag") & flags.TRANSACTION_PREPARED) == 0
        mask &= _within(columns.numbers("queue_offset"), wanted.queue_offsets)
        mask &= _within(columns.numbers("physical_offset"), wanted.physical_offsets)
        if not wanted.store_times_us.is_all:
            span = wanted.store_times_us
            # Whole milliseconds: low is rounded up, high down. Out of the column's range: null.
            in_ms = Span(
                max(-(-span.low // 1000), _YEAR_1_MS), min(span.high // 1000, _YEAR_10000_MS - 1)
            )
            mask &= _within(columns.numbers("store_timestamp"), in_ms)
        rows = np.flatnonzero(mask)
        if len(rows) and self._uses_texts:
            rows = rows[self._text_mask(columns.take(rows))]
        return rows

    @property
    def _uses_texts(self) -> bool:
        options, wanted = self._options, self._constraint
        sets = (wanted.tags, wanted.message_ids, options.keys, options.unique_keys)
        return self._matches is not None or any(values is not None for values in sets)

    def _text_mask(self, columns: Columns) -> npt.NDArray[np.bool_]:
        mask = np.ones(columns.count, np.bool_)
        wanted = self._constraint
        if wanted.tags is not None:
            mask &= _is_in(columns.tags(), wanted.tags)
        if wanted.message_ids is not None:
            mask &= _is_in(columns.message_ids(), wanted.message_ids)
        if self._options.unique_keys is not None:
            wanted_keys = self._options.unique_keys
            mask &= _is_in(columns.unique_keys(), wanted_keys) | _is_in(
                columns.batch_unique_keys(), wanted_keys
            )
        if self._options.keys is not None:
            words = columns.keys()
            hits = np.flatnonzero(_is_in(words.words, self._options.keys))
            has_key = np.zeros(columns.count, np.bool_)
            has_key[np.searchsorted(words.offsets, hits, "right") - 1] = True
            mask &= has_key
        if self._matches is not None:
            maps = _maps(columns.properties()).to_pylist()
            mask &= np.array([self._matches(dict(pairs)) for pairs in maps], np.bool_)
        return mask


def _compiled(expression: str) -> "Filter":
    # Loading its grammar takes longer than reading most partitions.
    from reput.format import sql92

    try:
        return sql92.compile_filter(expression)
    except sql92.Sql92Error as error:
        raise InvalidOption("sql92", expression, f"a filter expression ({error})") from None


def warn_of_ignored(options: ReadOptions) -> None:
    """Log the part of ``sql92`` that RocketMQ ignores, if any.

    Raises:
        InvalidOption: It is not a filter expression.
    """
    if options.sql92 and (warning := _compiled(options.sql92).warning):
        log.warning("%s", warning)


def _within(values: npt.NDArray[np.int64], span: Span) -> npt.NDArray[np.bool_]:
    if span.is_all:
        return np.ones(len(values), np.bool_)
    inside: npt.NDArray[np.bool_] = (values >= span.low) & (values <= span.high)
    return inside


def _is_in(texts: Runs, wanted: frozenset[str]) -> npt.NDArray[np.bool_]:
    import pyarrow.compute as pc  # 40 ms that most reads do not need

    is_member = pc.is_in(_strings(texts), pa.array(sorted(wanted), pa.string()))
    return np.asarray(is_member.to_numpy(zero_copy_only=False), np.bool_)


# Kernel results as Arrow arrays --------------------------------------------------------------


def _validity(present: npt.NDArray[np.bool_] | None) -> tuple[pa.Buffer | None, int]:
    if present is None or present.all():
        return None, 0
    bits = np.packbits(present, bitorder="little")
    return pa.py_buffer(bits), len(present) - int(np.count_nonzero(present))


def _variable(kind: pa.DataType, runs: Runs) -> pa.Array:
    bits, null_count = _validity(runs.present)
    buffers = [bits, pa.py_buffer(runs.offsets), pa.py_buffer(runs.data)]
    return pa.Array.from_buffers(kind, len(runs.offsets) - 1, buffers, null_count)


def _strings(runs: Runs) -> pa.Array:
    return _variable(pa.string(), runs)


def _binaries(runs: Runs) -> pa.Array:
    return _variable(pa.binary(), runs)


def _lists(words: Words) -> pa.Array:
    buffers = [None, pa.py_buffer(words.offsets)]
    return pa.Array.from_buffers(
        FIELDS["keys"], len(words.offsets) - 1, buffers, 0, children=[_strings(words.words)]
    )


def _maps(pairs: Pairs) -> pa.Array:
    names_array, values = _strings(pairs.names), _strings(pairs.values)
    entries = pa.StructArray.from_arrays(
        [names_array, values], fields=[PROPERTIES.key_field, PROPERTIES.item_field]
    )
    buffers = [None, pa.py_buffer(pairs.offsets)]
    return pa.Array.from_buffers(PROPERTIES, len(pairs.offsets) - 1, buffers, 0, children=[entries])


def _times(times_ms: npt.NDArray[np.int64]) -> pa.Array:
    present = (times_ms >= _YEAR_1_MS) & (times_ms < _YEAR_10000_MS)
    bits, null_count = _validity(present)
    micros = np.where(present, times_ms, 0) * 1000
    return pa.Array.from_buffers(TIMESTAMP, len(micros), [bits, pa.py_buffer(micros)], null_count)


def _sparse_strings(notes: dict[int, str], count: int) -> pa.Array:
    if not notes:
        return pa.nulls(count, pa.string())
    return pa.array([notes.get(i) for i in range(count)], pa.string())


def _property(columns: Columns, name: str) -> list[str | None]:
    return [dict(pairs).get(name) for pairs in _maps(columns.properties()).to_pylist()]
