"""Encoding of a write's rows as records without positions, as by ``store.writing.incoming``.

The fast path joins the parts of records column by column in Arrow. A window of rows with anything
special (delays, sharding keys, properties reserved for brokers, errors of ``outgoing_rows``) falls
back to encoding row by row; both give the same bytes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reput.format import (
    java,
    message as record,
    names,
    properties as props,
    sharding,
    sys_flag as flags,
)
from reput.spark.importing.options import ImportOptions
from reput.spark.importing.plan import QueueKey, RecordTable
from reput.spark.sending import rows as outgoing_rows
from reput.spark.sending.rows import BadRow, OutgoingMessage
from reput.store.writing import incoming
from reput.store.writing.incoming import IncomingMessage, Refused

STORE_TIME: Final = "store_timestamp"
_WINDOW_ROWS = 4096
_WINDOW_BYTES_MAX = 1 << 28
"""Size of bodies above which a window falls back, in bytes: Arrow counts a column's bytes in 31
bits."""

_HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_address", "S4"),
        ("born_port", ">i4"),
        ("store_timestamp", ">i8"),
        ("store_address", "S4"),
        ("store_port", ">i4"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_size", ">i4"),
    ]
)
"""Fields up to the body, with two IPv4 hosts, in the order of ``format.message``."""
_SEPARATORS = f"[{props.NAME_VALUE_SEPARATOR}{props.PROPERTY_SEPARATOR}]"
_OWN_COLUMN: Final = {"uniq_key": props.UNIQ_KEY, "tags": props.TAGS, "keys": props.KEYS}
"""Column to property, in the order of a record."""
_ODD_KEYS = "^ |  | $"
"""Spaces that split_keys drops."""


class Encoded(NamedTuple):
    """Concatenated records."""

    data: bytes | memoryview
    table: RecordTable


@dataclass
class RowEncoder:
    """Encodes the rows of one task.

    Args:
        options: Options of the write.
        queue_counts: Number of queues by topic; others get the number in ``options``.
        now_ms: Born time of rows without one, in ms.
        first_queue: First queue for rows without one; differs by task.
    """

    options: ImportOptions
    queue_counts: Mapping[str, int]
    now_ms: int
    first_queue: int = 0

    def __post_init__(self) -> None:
        self._queues: dict[QueueKey, int] = {}
        self._row = 0
        self._turn = self.first_queue
        self._delay_levels = len(self.options.store.delay_levels_ms)

    @property
    def queues(self) -> tuple[QueueKey, ...]:
        """Queues of the rows, as numbered in tables."""
        return tuple(self._queues)

    def encode(self, batch: pa.RecordBatch) -> Iterator[Encoded]:
        """Yield the records of a batch, in order.

        Raises:
            BadRow: A row cannot be stored as a message.
        """
        for start in range(0, batch.num_rows, _WINDOW_ROWS):
            window = batch.slice(start, _WINDOW_ROWS)
            times = self._store_times(window)
            common = _Common(window, self).encode()
            data, sizes, queues = self._encode_rows(window) if common is None else common
            self._row += window.num_rows
            yield Encoded(data, RecordTable(sizes, queues, times))

    # Queues -----------------------------------------------------------------------------------

    def queue_count(self, topic: str) -> int:
        """Return the number of queues of a topic."""
        return self.queue_counts.get(topic, self.options.queue_count)

    def take_turns(self, count: int) -> npt.NDArray[np.int64]:
        """Return the next queue ids, round robin, for rows without a queue."""
        turns = np.arange(self._turn, self._turn + count)
        self._turn += count
        return turns

    def queue_number(self, topic: str, queue_id: int) -> int:
        """Return the number of a queue in the tables."""
        return self._queues.setdefault((topic, queue_id), len(self._queues))

    # Times ------------------------------------------------------------------------------------

    def _store_times(self, window: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
        if not self.options.keeps_store_times:
            return None
        column = window.column(STORE_TIME)
        if column.null_count:
            row = self._row + int(np.flatnonzero(column.is_null())[0])
            raise BadRow(row, STORE_TIME, "is null; keepStoreTimestamps needs one of every row")
        times: npt.NDArray[np.int64] = _milliseconds(column).to_numpy()
        if (times < 0).any() or (times > self.now_ms).any():
            bad = int(np.flatnonzero((times < 0) | (times > self.now_ms))[0])
            allowed = f"is {times[bad]} ms; allowed: 0 up to now, {self.now_ms}"
            raise BadRow(self._row + bad, STORE_TIME, allowed)
        return times

    # Row by row -------------------------------------------------------------------------------

    def _encode_rows(
        self, window: pa.RecordBatch
    ) -> tuple[bytes, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        records: list[bytes] = []
        queues: list[int] = []
        for message in outgoing_rows.messages(window, self.options.rows, self._row):
            stored = self._stored(message)
            queues.append(self.queue_number(stored.topic, stored.queue_id))
            records.append(self._record(message.row, stored))
        sizes = np.array([len(data) for data in records], np.int32)
        return b"".join(records), sizes, np.array(queues, np.int32)

    def _stored(self, message: OutgoingMessage) -> IncomingMessage:
        """Return the stored form of a message, which differs if it is delayed."""
        if message.deliver_at_ms is not None:
            reason = "is a time; an import holds messages back by delay_level only"
            raise BadRow(message.row, "deliver_at", reason)
        host = self.options.store_host
        born = message.born_timestamp_ms
        stored = IncomingMessage(
            message.topic,
            message.body,
            self._queue_id(message),
            message.property_bytes(),
            self.now_ms if born is None else born,
            host,
            host,
            message.flag,
        )
        try:
            # The property with its real topic was read while it waited, or when it arrived.
            if props.REAL_TOPIC not in message.properties:
                stored = incoming.delayed(stored, self._delay_levels)
            if self.options.store.enabled_append_prop_crc:
                stored = incoming.with_crc_room(stored)
        except Refused as refused:
            raise BadRow(message.row, "properties", refused.reason) from None
        return stored

    def _queue_id(self, message: OutgoingMessage) -> int:
        if message.queue_id is not None:
            return message.queue_id
        count = self.queue_count(message.topic)
        if message.sharding_key is not None:
            return sharding.queue_index(message.sharding_key, count)
        return int(self.take_turns(1)[0]) % count

    def _record(self, row: int, stored: IncomingMessage) -> bytes:
        config = self.options.store
        topic = java.encode_utf8(stored.topic)
        if len(stored.body) > config.max_message_size:
            reason = f"has {len(stored.body)} bytes; allowed: {config.max_message_size}"
            raise BadRow(row, "body", f"{reason} (maxMessageSize)")
        data = incoming.encode(stored, topic)
        if len(data) > config.record_bytes_max:
            reason = f"gives a record of {len(data)} bytes; allowed: {config.record_bytes_max}"
            raise BadRow(row, "body", reason)
        return data


class _Uncommon(Exception):
    """Signal that a window needs the fallback."""


class _Common:
    """Fast path: a window of rows without anything special."""

    def __init__(self, window: pa.RecordBatch, encoder: RowEncoder) -> None:
        self._window = window
        self._encoder = encoder
        self._options = encoder.options
        self._count = window.num_rows

    def encode(
        self,
    ) -> tuple[memoryview, npt.NDArray[np.int32], npt.NDArray[np.int32]] | None:
        """Return records, sizes and queues; None to fall back."""
        try:
            body = self._body()
            topic_ids, topics = self._topics()
            properties = self._properties()
            heads = self._heads()
            # Last, since it advances the round robin.
            queue_ids = heads["queue_id"] = self._queue_ids(topic_ids, topics)
        except _Uncommon:
            return None
        return self._join(heads, body, topic_ids, topics, properties, queue_ids)

    def _column(self, name: str) -> pa.Array | None:
        """Return a column; None if it is missing or all null."""
        if name not in self._window.schema.names:
            return None
        column = self._window.column(name)
        return None if column.null_count == self._count else column

    def _body(self) -> pa.Array:
        body = self._column("body")
        if body is None or body.null_count or body.nbytes > _WINDOW_BYTES_MAX:
            raise _Uncommon
        body = body.cast(pa.binary())
        sizes = pc.binary_length(body)
        if self._count and pc.max(sizes).as_py() > self._options.store.max_message_size:
            raise _Uncommon
        return body

    def _topics(self) -> tuple[npt.NDArray[np.int64], list[str]]:
        """Return the number of each row's topic, and the topics."""
        if self._options.rows.topic is not None:
            return np.zeros(self._count, np.int64), [self._options.rows.topic]
        column = self._column("topic")
        if column is None or column.null_count:
            raise _Uncommon
        coded = column.cast(pa.string()).dictionary_encode()
        topics = coded.dictionary.to_pylist()
        if not all(names.is_legal_topic(topic) for topic in topics):
            raise _Uncommon
        return coded.indices.to_numpy().astype(np.int64), topics

    def _queue_ids(
        self, topic_ids: npt.NDArray[np.int64], topics: list[str]
    ) -> npt.NDArray[np.int64]:
        for name in ("sharding_key", "delay_level", "deliver_at"):
            if self._column(name) is not None:
                raise _Uncommon
        numbers = self._numbers("queue_id", 0, -1)
        is_free = numbers < 0
        if is_free.any():
            counts = np.array([self._encoder.queue_count(topic) for topic in topics], np.int64)
            turns = self._encoder.take_turns(int(np.count_nonzero(is_free)))
            numbers = numbers.copy()
            numbers[is_free] = turns % counts[topic_ids[is_free]]
        return numbers

    def _numbers(self, name: str, least: int, default: int) -> npt.NDArray[np.int64]:
        column = self._column(name)
        if column is None:
            return np.full(self._count, default, np.int64)
        numbers = column.cast(pa.int64())
        bounds = pc.min_max(numbers).as_py()
        if bounds["min"] < least or bounds["max"] >= 1 << 31:
            raise _Uncommon
        filled: npt.NDArray[np.int64] = numbers.fill_null(default).to_numpy()
        return filled

    def _born_times(self) -> npt.NDArray[np.int64]:
        column = self._column("born_timestamp")
        if column is None:
            return np.full(self._count, self._encoder.now_ms, np.int64)
        times = _milliseconds(column)
        if pc.min(times).as_py() < 0:
            raise _Uncommon
        filled: npt.NDArray[np.int64] = times.fill_null(self._encoder.now_ms).to_numpy()
        return filled

    def _heads(self) -> npt.NDArray[np.void]:
        host = self._options.store_host
        if host.is_v6:
            raise _Uncommon
        heads = np.zeros(self._count, _HEAD)
        heads["magic"] = record.MAGIC_V1
        heads["flag"] = self._numbers("flag", -(1 << 31), 0)
        heads["sys_flag"] = flags.TRANSACTION_NONE
        heads["born_timestamp"] = self._born_times()
        for name in ("born", "store"):
            heads[f"{name}_address"] = host.address
            heads[f"{name}_port"] = host.port
        return heads

    # Properties -------------------------------------------------------------------------------

    def _properties(self) -> pa.Array:
        """Return the property strings."""
        rest, named = self._map()
        parts = []
        for column, name in _OWN_COLUMN.items():
            own_text = self._keys() if column == "keys" else self._text(column)
            text = _coalesce(own_text, named.get(name))
            if text is None:
                continue
            _refuse(text, _SEPARATORS)
            if name == props.KEYS:
                _refuse(text, _ODD_KEYS)
            parts.append(_pairs(name.encode(), text.cast(pa.binary())).fill_null(b""))
        if rest is not None:
            parts.append(rest)
        if self._options.store.enabled_append_prop_crc:
            room = record.CRC_PROPERTY_PREFIX + b"0" * 10 + props.PROPERTY_SEPARATOR.encode()
            parts.append(pa.array([room] * self._count, pa.binary()))
        if not parts:
            return pa.array([b""] * self._count, pa.binary())
        joined = pc.binary_join_element_wise(*parts, b"") if len(parts) > 1 else parts[0]
        if self._count and pc.max(pc.binary_length(joined)).as_py() > props.LENGTH_MAX:
            raise _Uncommon
        return joined

    def _text(self, name: str) -> pa.Array | None:
        column = self._column(name)
        if column is None:
            return None
        column = column.cast(pa.string())
        return pc.if_else(pc.equal(column, ""), None, column)

    def _keys(self) -> pa.Array | None:
        column = self._column("keys")
        if column is None or not _is_list(column.type):
            return self._text("keys")
        words = column.flatten().cast(pa.string())
        if words.null_count or pc.any(pc.equal(words, "")).as_py():
            raise _Uncommon
        _refuse(words, props.KEY_SEPARATOR)
        joined = pc.binary_join(column.cast(pa.list_(pa.string())), props.KEY_SEPARATOR)
        return pc.if_else(pc.equal(joined, ""), None, joined)

    def _map(self) -> tuple[pa.Array | None, dict[str, pa.Array]]:
        """Return the properties without a column, as one string, and the properties with one."""
        column = self._column("properties")
        if column is None:
            return None, {}
        offsets = np.asarray(column.offsets).astype(np.int64)
        # A slice has the keys of the whole array; a null row may have some, which are ignored.
        counts = np.where(np.asarray(column.is_null()), 0, np.diff(offsets))
        if (counts != np.diff(offsets)).any():
            raise _Uncommon
        keys = column.keys.slice(offsets[0], offsets[-1] - offsets[0]).cast(pa.string())
        values = column.items.slice(offsets[0], offsets[-1] - offsets[0]).cast(pa.string())
        if keys.null_count or values.null_count:
            raise _Uncommon
        known = keys.dictionary_encode()
        known_names = known.dictionary.to_pylist()
        trusted = self._options.rows.trusted_properties
        if any(not name or outgoing_rows.is_special(name, trusted) for name in known_names):
            raise _Uncommon
        _refuse(known.dictionary, _SEPARATORS)
        _refuse(values, _SEPARATORS)
        if len(values) and pc.min(pc.binary_length(values)).as_py() == 0:
            raise _Uncommon
        codes = known.indices.to_numpy()
        rows = np.repeat(np.arange(self._count), counts)
        named: dict[str, pa.Array] = {}
        is_rest = np.ones(len(codes), np.bool_)
        for name in _OWN_COLUMN.values():
            if name in known_names:
                is_it = codes == known_names.index(name)
                is_rest &= ~is_it
                places = np.full(self._count, -1, np.int64)
                places[rows[is_it]] = np.flatnonzero(is_it)
                named[name] = values.take(pa.array(places, mask=places < 0))
        if is_rest.all():
            kept, ends = _pairs(keys.cast(pa.binary()), values.cast(pa.binary())), counts
        else:
            chosen = pa.array(np.flatnonzero(is_rest))
            kept = _pairs(
                keys.take(chosen).cast(pa.binary()), values.take(chosen).cast(pa.binary())
            )
            ends = np.bincount(rows[is_rest], minlength=self._count)
        starts = np.concatenate([[0], np.cumsum(ends)]).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(starts), kept)
        return pc.binary_join(lists, b""), named

    # Records ----------------------------------------------------------------------------------

    def _join(
        self,
        heads: npt.NDArray[np.void],
        body: pa.Array,
        topic_ids: npt.NDArray[np.int64],
        topics: list[str],
        properties: pa.Array,
        queue_ids: npt.NDArray[np.int64],
    ) -> tuple[memoryview, npt.NDArray[np.int32], npt.NDArray[np.int32]] | None:
        encoded = [topic.encode() for topic in topics]
        texts = [record.TOPIC_LENGTH_V1.pack(len(name)) + name for name in encoded]
        topic_sizes = np.array([len(text) for text in texts], np.int64)[topic_ids]
        body_sizes = np.asarray(pc.binary_length(body)).astype(np.int64)
        property_sizes = np.asarray(pc.binary_length(properties)).astype(np.int64)
        lengths = record.PROPERTIES_LENGTH.size
        sizes = _HEAD.itemsize + body_sizes + topic_sizes + lengths + property_sizes
        if self._count and int(sizes.max()) > self._options.store.record_bytes_max:
            return None
        heads["size"], heads["body_size"] = sizes, body_sizes
        joined = pc.binary_join_element_wise(
            _fixed(heads),
            body,
            pa.array(texts, pa.binary()).take(pa.array(topic_ids)),
            _fixed(property_sizes.astype(">i2")),
            properties,
            b"",
        )
        _, _, data = joined.buffers()
        codes = topic_ids << 32 | queue_ids
        known, places = np.unique(codes, return_inverse=True)
        number = self._encoder.queue_number
        numbers = np.array(
            [number(topics[code >> 32], code & 0xFFFFFFFF) for code in known.tolist()], np.int32
        )
        total = int(sizes.sum())
        view = memoryview(data)[:total] if total else memoryview(b"")
        return view, sizes.astype(np.int32), numbers[places]


def _refuse(texts: pa.Array, pattern: str) -> None:
    matches: Callable[..., Any] = pc.match_substring_regex
    if pc.any(matches(texts, pattern)).as_py():
        raise _Uncommon


def _coalesce(first: pa.Array | None, second: pa.Array | None) -> pa.Array | None:
    if first is None or second is None:
        return first if second is None else second
    return pc.coalesce(first, second)


def _pairs(name: bytes | pa.Array, value: pa.Array) -> pa.Array:
    """Return properties as in a record; null if the value is null."""
    between = props.NAME_VALUE_SEPARATOR.encode()
    return pc.binary_join_element_wise(name, between, value, props.PROPERTY_SEPARATOR.encode(), b"")


def _fixed(rows: npt.NDArray[Any]) -> pa.Array:
    """Return an array's elements as fixed-size binary."""
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows).view(np.uint8))]
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _milliseconds(column: pa.Array) -> pa.Array:
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[column.type.unit]
    numbers = column.cast(pa.int64())
    if per_second <= 1000:
        return pc.multiply(numbers, 1000 // per_second)
    # Rounded down, also before 1970: Arrow's division truncates.
    whole = numbers.fill_null(0).to_numpy() // (per_second // 1000)
    return pa.array(whole, pa.int64(), mask=np.asarray(numbers.is_null()))
