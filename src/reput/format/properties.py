r"""The property string of a message, and RocketMQ's own property names.

``name \x01 value \x02 name \x01 value``, with or without a last ``\x02``: 4.9 writes none,
4.5 and 5.x write one (known-bugs.md#property-separators). Both are read; reput writes one, so
that appending a property is safe.
"""

import functools
from collections.abc import Callable, Mapping

from reput.format import java

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
LENGTH_MAX = 32767
"""Maximum size of a property string in bytes: the record has a signed short for it."""

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQ_KEY = "UNIQ_KEY"
SHARDING_KEY = "__SHARDINGKEY"
"""Key that selected the message's queue."""
RETRY_TOPIC = "RETRY_TOPIC"
RECONSUME_TIME = "RECONSUME_TIME"
"""Number of tries so far, of a message that an ordered consumer sends to its retry topic."""
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
"""Maximum number of properties."""
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
"""Unique key of a half message, and of its committed copy (5.0)."""
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
"""Number of checks of a half message."""
TRANSACTION_HALF_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
"""Queue offset of the original half message, on a copy."""
CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""Minimum age of a half message before its first check, in s."""
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
CLUSTER = "CLUSTER"
INSTANCE_ID = "INSTANCE_ID"
"""Namespace of the producer."""
PRIORITY = "_SYS_MSG_PRIORITY_"  # 5.4
LITE_TOPIC = "__LITE_TOPIC"  # 5.5
CORRELATION_ID = "CORRELATION_ID"
"""Id that a request and its reply share."""
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
"""Client id of the requester."""
TTL = "TTL"
"""Timeout of the requester, in ms."""
MESSAGE_TYPE = "MSG_TYPE"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
REPLY_ARRIVE_TIME = "ARRIVE_TIME"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
POP_CHECKPOINT = "POP_CK"
"""Handle of a popped message (``pop_codec.Handle``)."""
FIRST_POP_TIME = "1ST_POP_TIME"
ORIGIN_GROUP = "ORIGIN_GROUP"
# Timer messages, 5.x.
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
"""Deliver time of a timer message in ms; set by the broker."""
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
"""Time at which the timer read the message, in ms."""
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
"""Time at which the timer delivered the message, in ms."""
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
"""Number of times that the message was republished to wait on."""
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TIMER_RECALLED_KEY = "TIMER_DEL_UNIQKEY"
"""Unique key of the message to recall."""
CRC32 = "__CRC32#"

KEY_SEPARATOR = " "
"""Separator of the words of KEYS; empty words are ignored."""
LMQ_SEPARATOR = ","


def encode(properties: Mapping[str, str], *, last_separator: bool = True) -> bytes:
    r"""Return the property string as UTF-8 bytes.

    Raises:
        ValueError: As ``join``, or the whole is longer than ``LENGTH_MAX`` bytes
            (known-bugs.md#long-properties).
    """
    data = java.encode_utf8(join(properties, last_separator=last_separator))
    if len(data) > LENGTH_MAX:
        raise ValueError(f"properties take {len(data)} bytes; at most {LENGTH_MAX} fit a record")
    return data


def join(properties: Mapping[str, str], *, last_separator: bool = True) -> str:
    r"""Return the property string, as a header has it.

    Raises:
        ValueError: A name or value is empty or holds ``\x01`` or ``\x02`` (4.9 could read a value
            with ``\x01``, 4.5 drops it; known-bugs.md#property-separators).
    """
    parts = []
    for name, value in properties.items():
        if not name or not value:
            raise ValueError(f"property {name!r} = {value!r}: name and value must not be empty")
        for text in (name, value):
            if NAME_VALUE_SEPARATOR in text or PROPERTY_SEPARATOR in text:
                raise ValueError(
                    f"property {name!r} = {value!r} holds a separator (\\x01 or \\x02)"
                )
        parts.append(name + NAME_VALUE_SEPARATOR + value)
    text = PROPERTY_SEPARATOR.join(parts)
    if last_separator and parts:
        text += PROPERTY_SEPARATOR
    return text


def decode(data: bytes) -> dict[str, str]:
    r"""Return the properties in stored order; of equal names the last one wins.

    A pair counts only if its name and value are both non-empty; a value may hold ``\x01``.
    Malformed UTF-8 becomes U+FFFD as in Java. Never raises.
    """
    return parse(java.decode_utf8(data))


def parse(text: str) -> dict[str, str]:
    """Return the properties of a decoded property string, as ``decode`` does."""
    properties: dict[str, str] = {}
    for pair in text.split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            # Re-insert: the order is that of the last pair, as in the column kernel.
            properties.pop(name, None)
            properties[name] = value
    return properties


def find(data: bytes, name: str) -> bytes | None:
    r"""Return the value of one property, without decoding the others; None if it has none.

    Equals ``decode`` except that a last pair of that name without a value hides the earlier ones.
    """
    mark = _mark(name)
    position = data.rfind(mark)
    if position < 0 and not data.startswith(mark[1:]):
        return None
    start = position + len(mark)  # also right at -1: the separator is missing there
    end = data.find(mark[:1], start)
    return data[start : end if end >= 0 else len(data)] or None


_DIGITS_MAX = 18
"""Number of decimal digits that always fit a long."""


def number(text: str | bytes | None, maximum: int = 10**_DIGITS_MAX - 1) -> int | None:
    """Return the number in a stored property.

    Clients can store any text under any name, so that the value is validated.

    Args:
        text: Value of the property; None if it is missing.
        maximum: Largest valid number.

    Returns:
        The number; None unless it is written in ASCII digits and at most ``maximum``.
    """
    if not text or len(text) > _DIGITS_MAX or not text.isascii() or not text.isdigit():
        return None
    value = int(text)
    return value if value <= maximum else None


OF_BROKERS = frozenset({CRC32, POP_CHECKPOINT, INNER_MULTI_QUEUE_OFFSET, INNER_NUM, INNER_BASE})
"""Properties that only brokers write and readers of the log trust; they are removed from sends.

Java removes POP_CK (5.x ``clearReservedProperties``) and overwrites the others where it uses them.
"""
_MARKS_OF_BROKERS = tuple(name.encode() for name in sorted(OF_BROKERS))


def without_those_of_brokers(data: bytes) -> bytes:
    """Return a property string without the properties reserved for brokers."""
    if not any(mark in data for mark in _MARKS_OF_BROKERS):
        return data
    pairs = data.split(PROPERTY_SEPARATOR.encode())
    separator = NAME_VALUE_SEPARATOR.encode()
    kept = [pair for pair in pairs if pair.partition(separator)[0] not in _MARKS_OF_BROKERS]
    return PROPERTY_SEPARATOR.encode().join(kept)


@functools.lru_cache(256)
def _mark(name: str) -> bytes:
    """Return the bytes before the value of a property that is not the first."""
    return f"{PROPERTY_SEPARATOR}{name}{NAME_VALUE_SEPARATOR}".encode()


def getter(text: str) -> Callable[[str], str | None]:
    """Return a function that looks up a property by name.

    Its result equals that of ``decode``, or None. It is cheaper than a dictionary for the few names
    of a filter. Names are not empty and contain no separator.
    """
    text = "\x02" + text  # literals: filters spend their time here

    def get(name: str) -> str | None:
        start = f"\x02{name}\x01"
        position = text.rfind(start)
        while position >= 0:
            value_at = position + len(start)
            end = text.find("\x02", value_at)
            value = text[value_at:end] if end >= 0 else text[value_at:]
            if value:
                return value
            position = text.rfind(start, 0, position)
        return None

    return get


def append(data: bytes, more: bytes) -> bytes:
    """Join two property strings, with the separator that the first may lack.

    See known-bugs.md#property-separators.
    """
    if not data or not more or data.endswith(PROPERTY_SEPARATOR.encode()):
        return data + more
    return data + PROPERTY_SEPARATOR.encode() + more


def split_keys(keys: str | None) -> list[str]:
    """Return the words of a KEYS value: split on single spaces, empties dropped."""
    return [key for key in keys.split(KEY_SEPARATOR) if key] if keys else []
