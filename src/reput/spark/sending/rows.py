"""Rows as messages to send or store: the columns of a write and their values.

Column names equal those of reads. ``check_columns`` rejects an invalid column on the driver, before
there are rows; ``messages`` rejects an invalid value, with the number of its row.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyarrow import types as kinds

from reput.errors import InvalidOption, ReputError, similar_name
from reput.format import names, properties as props
from reput.spark.rows import FIELDS, RAW_PROPERTIES
from reput.spark.sending.options import RowOptions

TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
"""Property with the deliver time for 5.x brokers."""
_TIMER_DELAYS: Final = frozenset({"TIMER_DELAY_SEC", "TIMER_DELAY_MS"})
"""Properties with a delay instead of the deliver time."""


class BadRow(ReputError):
    """Error of a row that is not a valid message.

    Args:
        row: Number of the row among the rows of its task, from 0.
        column: The invalid column.
        reason: The error, and the allowed values.
    """

    def __init__(self, row: int, column: str, reason: str) -> None:
        self.row = row
        self.column = column
        self.reason = reason
        super().__init__(f"row {row}, column {column!r}: {reason}")


@dataclass(slots=True)
class OutgoingMessage:
    """A validated row."""

    row: int
    """Its number among the rows of its task, from 0."""
    topic: str
    body: bytes
    tags: str | None = None
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    """All other properties."""
    queue_id: int | None = None
    sharding_key: str | None = None
    delay_level: int = 0
    deliver_at_ms: int | None = None
    flag: int = 0
    born_timestamp_ms: int | None = None
    uniq_key: str | None = None

    @property
    def is_timed(self) -> bool:
        """True if a 5.x broker delays it until a time."""
        return self.deliver_at_ms is not None or not _TIMER_DELAYS.isdisjoint(self.properties)

    @property
    def is_delayed(self) -> bool:
        """True if its broker delays it."""
        return self.delay_level > 0 or self.is_timed

    def property_bytes(self, uniq_key: str | None = None) -> bytes:
        """Return the property string of its record.

        Args:
            uniq_key: Unique key for a row without one.

        Raises:
            BadRow: A name or value is empty or contains a separator, or the string is too long.
        """
        properties: dict[str, str] = {}
        unique = self.uniq_key or uniq_key
        if unique:
            properties[props.UNIQ_KEY] = unique
        if self.tags:
            properties[props.TAGS] = self.tags
        if self.keys:
            properties[props.KEYS] = props.KEY_SEPARATOR.join(self.keys)
        if self.delay_level:
            properties[props.DELAY] = str(self.delay_level)
        if self.deliver_at_ms is not None:
            properties[TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        properties.update(self.properties)
        try:
            return props.encode(properties)
        except ValueError as error:
            raise BadRow(self.row, "properties", str(error)) from None


# Columns -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    fits: Callable[[pa.DataType], bool]
    types: str
    """Allowed types, in words."""


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    return _is_text(kind) or bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))


def _is_time(kind: pa.DataType) -> bool:
    # A timestamp without a time zone is a separate type of Spark and not a point in time.
    return kind == pa.int64() or (kinds.is_timestamp(kind) and kind.tz is not None)


def _is_keys(kind: pa.DataType) -> bool:
    is_list = kinds.is_list(kind) or kinds.is_large_list(kind)
    return _is_text(kind) or (is_list and _is_text(kind.value_type))


def _is_properties(kind: pa.DataType) -> bool:
    return bool(kinds.is_map(kind)) and _is_text(kind.key_type) and _is_text(kind.item_type)


_TEXT = _Column(_is_text, "string")
_NUMBER = _Column(kinds.is_signed_integer, "int")
_TIME = _Column(_is_time, "timestamp or bigint (milliseconds)")
_COLUMNS: Final = {
    "body": _Column(_is_text_or_bytes, "binary or string"),
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": _Column(_is_keys, "array<string> or string"),
    "properties": _Column(_is_properties, "map<string,string>"),
    "queue_id": _NUMBER,
    "sharding_key": _TEXT,
    "delay_level": _NUMBER,
    "deliver_at": _TIME,
    "flag": _NUMBER,
    "born_timestamp": _TIME,
    "uniq_key": _TEXT,
}
READ_ONLY: Final = frozenset({*FIELDS, RAW_PROPERTIES} - {*_COLUMNS})
"""Columns of reads that are not part of a message to send."""

_OF_KAFKA = {
    "key": "keys",
    "value": "body",
    "headers": "properties",
    "partition": "queue_id",
    "timestamp": "born_timestamp",
}
"""Columns of Spark's Kafka sink -> the columns of this sink."""
_WINDOW_ROWS = 1024
"""Number of rows that are Python objects at a time."""
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_HAS_COLUMN = frozenset({props.TAGS, props.KEYS, props.UNIQ_KEY, props.DELAY, TIMER_DELIVER_MS})
_OF_BROKERS = frozenset(
    {
        props.CLUSTER,
        props.REAL_TOPIC,
        props.REAL_QUEUE_ID,
        props.INNER_MULTI_QUEUE_OFFSET,
        props.INNER_NUM,
        props.INNER_BASE,
        props.CRC32,
    }
)
"""Properties that brokers set and trust."""


def is_special(name: str, trusted: frozenset[str]) -> bool:
    """Return whether a property is reserved, apart from those with a column."""
    plain = {props.TAGS, props.KEYS, props.UNIQ_KEY}
    others = (_HAS_COLUMN - plain) | _OF_BROKERS | {props.TRANSACTION_PREPARED}
    return name in others - trusted


def check_columns(schema: pa.Schema, options: RowOptions) -> None:
    """Check that rows of this schema can be written.

    Raises:
        InvalidOption: A column is unknown, of a wrong type or duplicated, or one is missing.
    """
    allowed = ", ".join(f"{name} {column.types}" for name, column in _COLUMNS.items())
    for arrow_field in schema:
        column = _COLUMNS.get(arrow_field.name)
        if arrow_field.name not in READ_ONLY and (
            column is None or not column.fits(arrow_field.type)
        ):
            column_text = f"{arrow_field.name} {arrow_field.type}"
            raise InvalidOption("schema", column_text, f"{allowed}{_question(arrow_field.name)}")
        if schema.names.count(arrow_field.name) > 1:
            raise InvalidOption("schema", f"{arrow_field.name} twice", "each column once")
    of_reads = [name for name in schema.names if name in READ_ONLY]
    if of_reads and not options.ignore_read_columns:
        raise InvalidOption(
            "schema",
            ", ".join(of_reads),
            f"{allowed}; what only reading gives is left out by ignoreReadColumns=true",
        )
    if "body" not in schema.names:
        raise InvalidOption("schema", ", ".join(schema.names), f"a column body, of {allowed}")
    if options.topic is None and "topic" not in schema.names:
        raise InvalidOption("topic", None, "the topic of all messages; or a column topic")


def _question(name: str) -> str:
    """Return the question for a misspelt column, or one that is named as in Kafka."""
    similar = _OF_KAFKA.get(name) or similar_name(name, _COLUMNS)
    return f"; did you mean {similar!r}?" if similar and similar != name else ""


def messages(
    batch: pa.RecordBatch, options: RowOptions, first_row: int = 0
) -> Iterator[OutgoingMessage]:
    """Yield the rows of a batch as messages, in order.

    Args:
        batch: Rows whose schema passed ``check_columns``.
        options: Options of the conversion.
        first_row: Number of the first row in its task.

    Raises:
        BadRow: A value is not allowed; the previous rows have been yielded.
    """
    known = [name for name in batch.schema.names if name in _COLUMNS]
    wanted = batch.select(known)
    for start in range(0, batch.num_rows, _WINDOW_ROWS):
        window = wanted.slice(start, _WINDOW_ROWS)
        columns = [_values(name, window.column(name)) for name in known]
        for row, values in enumerate(zip(*columns, strict=True), first_row + start):
            yield _message(row, dict(zip(known, values, strict=True)), options)


def _values(name: str, column: pa.Array) -> list[Any]:
    """Return a column's values: bytes of a body, milliseconds of times."""
    if name == "body":
        large = kinds.is_large_string(column.type) or kinds.is_large_binary(column.type)
        column = column.cast(pa.large_binary() if large else pa.binary())
    if not kinds.is_timestamp(column.type):
        return list(column.to_pylist())
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[column.type.unit]
    numbers = column.cast(pa.int64()).to_pylist()
    if name == "deliver_at":  # never early
        return [None if number is None else -(-number * 1000 // per_second) for number in numbers]
    return [None if number is None else number * 1000 // per_second for number in numbers]


def _message(row: int, values: dict[str, Any], options: RowOptions) -> OutgoingMessage:
    body = values["body"]
    if body is None:
        raise BadRow(row, "body", "is null; every message has a body")
    topic = options.topic or values.get("topic") or ""
    if not topic:
        reason = "is null or empty; name one, or the topic of all by option topic"
        raise BadRow(row, "topic", reason)
    message = OutgoingMessage(row, options.full_topic(topic), body)
    if topic != options.topic and not names.is_legal_topic(message.topic):
        most = names.TOPIC_LENGTH_MAX
        reason = f"is {message.topic!r}; allowed: 1 to {most} characters of a-z A-Z 0-9 _ - % |"
        raise BadRow(row, "topic", reason)
    if pairs := values.get("properties"):
        _take_properties(message, pairs, options)
    if options.namespace:  # as RocketMQ's producers do; a copy gets that of its new place
        message.properties[props.INSTANCE_ID] = options.namespace
    if tags := values.get("tags"):
        message.tags = tags
    if keys := values.get("keys"):
        message.keys = _keys(row, keys)
    if unique := values.get("uniq_key"):
        message.uniq_key = unique
    message.queue_id = _number(row, "queue_id", values, 0)
    message.sharding_key = values.get("sharding_key")
    if message.queue_id is not None and message.sharding_key is not None:
        raise BadRow(row, "sharding_key", f"is there, and queue_id {message.queue_id} as well")
    if values.get("delay_level") is not None or values.get("deliver_at") is not None:
        message.delay_level = _number(row, "delay_level", values, 0) or 0
        message.deliver_at_ms = _time(row, "deliver_at", values)
    if message.delay_level and message.deliver_at_ms is not None:
        raise BadRow(row, "deliver_at", f"is there, and delay {message.delay_level} as well")
    message.flag = _number(row, "flag", values, _INT_MIN) or 0
    message.born_timestamp_ms = _time(row, "born_timestamp", values)
    return message


def _take_properties(
    message: OutgoingMessage, pairs: list[tuple[str, str | None]], options: RowOptions
) -> None:
    """Assign properties to their fields; columns are applied later and win."""
    row = message.row
    for name, value in pairs:
        if name in _OF_BROKERS and name not in options.trusted_properties:
            if options.ignore_read_columns:
                continue
            reason = f"{name!r} is set by brokers; ignoreReadColumns=true leaves such ones out"
            raise BadRow(row, "properties", reason)
        if not name or not value:
            reason = f"{name!r} = {value!r}: names and values must not be empty"
            raise BadRow(row, "properties", reason)
        if name == props.TRANSACTION_PREPARED and name not in options.trusted_properties:
            reason = f"{name!r} makes it part of a transaction, which is not supported yet"
            raise BadRow(row, "properties", reason)
        if name not in _HAS_COLUMN:
            message.properties[name] = value
        elif name == props.TAGS:
            message.tags = value
        elif name == props.KEYS:
            message.keys = _keys(row, value)
        elif name == props.UNIQ_KEY:
            message.uniq_key = value
        elif not value.isascii() or not value.isdigit() or len(value) > _DIGITS_MAX:
            raise BadRow(row, "properties", f"{name!r} = {value!r} is no number")
        elif name == props.DELAY:
            message.delay_level = _in_range(row, "properties", int(value), 0, _INT_MAX)
        else:
            message.deliver_at_ms = int(value)


_DIGITS_MAX = 18


def _keys(row: int, keys: str | list[str | None]) -> tuple[str, ...]:
    if isinstance(keys, str):
        return tuple(props.split_keys(keys))
    for key in keys:
        if not key or props.KEY_SEPARATOR in key:
            raise BadRow(row, "keys", f"has {key!r}; keys are not empty and have no spaces")
    return tuple(key for key in keys if key)


def _number(row: int, name: str, values: dict[str, Any], least: int) -> int | None:
    value = values.get(name)
    return None if value is None else _in_range(row, name, value, least, _INT_MAX)


def _time(row: int, name: str, values: dict[str, Any]) -> int | None:
    value = values.get(name)
    return None if value is None else _in_range(row, name, value, 0, (1 << 63) - 1)


def _in_range(row: int, name: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise BadRow(row, name, f"is {value}; allowed: {least} to {most}")
    return value
