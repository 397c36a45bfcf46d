r"""The property string of a message, and the names RocketMQ itself uses in it.

``name \x01 value \x02 name \x01 value``, with or without a last ``\x02``: 4.9 writes none,
4.5 and 5.x write one (known-bugs.md#property-separators). Both are read; what we write ends with
one, so that whoever appends to it damages nothing.
"""

import functools
from collections.abc import Callable, Mapping

from reput.format import java

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
LENGTH_MAX = 32767
"""Most bytes of a property string: its length is a signed short in the record."""

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQ_KEY = "UNIQ_KEY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
"""How often the producer of a half message was asked."""
TRANSACTION_HALF_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
"""Of a copy of a half message: the queue offset of the first one."""
CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""Of a half message: its producer is not asked before it is so old."""
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
CLUSTER = "CLUSTER"
PRIORITY = "_SYS_MSG_PRIORITY_"  # 5.4
CORRELATION_ID = "CORRELATION_ID"
"""Of a request and its reply."""
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
"""The client id of who awaits a reply."""
TTL = "TTL"
"""How long it does, in ms."""
MESSAGE_TYPE = "MSG_TYPE"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
REPLY_ARRIVE_TIME = "ARRIVE_TIME"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
POP_CHECKPOINT = "POP_CK"
"""The handle of a message that was popped (``pop_codec.Handle``)."""
FIRST_POP_TIME = "1ST_POP_TIME"
ORIGIN_GROUP = "ORIGIN_GROUP"
# Timer messages, 5.x.
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
"""When a message that waits for the timer leaves it, ms: the broker's to set."""
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
"""When it was taken up by the timer: on what has waited."""
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
"""When it left the timer."""
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
"""How often it was put again to wait on."""
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TIMER_RECALLED_KEY = "TIMER_DEL_UNIQKEY"
"""The unique key of a message that is not to be delivered."""
CRC32 = "__CRC32#"

KEY_SEPARATOR = " "
"""Between the words of KEYS; empty words do not count."""
LMQ_SEPARATOR = ","


def encode(properties: Mapping[str, str], *, last_separator: bool = True) -> bytes:
    r"""Return the property string as UTF-8 bytes.

    Raises:
        ValueError: A name or value is empty or holds ``\x01`` or ``\x02`` (4.9 could read a value
            with ``\x01``, 4.5 drops it), or the whole is longer than ``LENGTH_MAX`` bytes
            (known-bugs.md#long-properties, known-bugs.md#property-separators).
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
    data = java.encode_utf8(text)
    if len(data) > LENGTH_MAX:
        raise ValueError(f"properties take {len(data)} bytes; at most {LENGTH_MAX} fit a record")
    return data


def decode(data: bytes) -> dict[str, str]:
    r"""Return the properties in stored order; of equal names the last one wins.

    A pair counts only if its name and value are both non-empty; a value may hold ``\x01``.
    Malformed UTF-8 becomes U+FFFD as in Java. Never raises.
    """
    return parse(java.decode_utf8(data))


def parse(text: str) -> dict[str, str]:
    """Return the properties of a property string, as ``decode`` does."""
    properties: dict[str, str] = {}
    for pair in text.split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            # Re-insert, so that order follows the winning pair as the column kernel has it.
            properties.pop(name, None)
            properties[name] = value
    return properties


def find(data: bytes, name: str) -> bytes | None:
    r"""Return the value of one property, without decoding the others; None if it has none.

    What ``decode`` gives, but for a last pair of that name without a value, which hides the ones
    before.
    """
    mark = _mark(name)
    at = data.rfind(mark)
    if at < 0 and not data.startswith(mark[1:]):
        return None
    start = at + len(mark)  # at -1 this is right as well: the separator is not there
    end = data.find(mark[:1], start)
    return data[start : end if end >= 0 else len(data)] or None


_DIGITS_MAX = 18
"""Of a number that fits a long, whatever its digits are."""


def number(text: str | bytes | None, maximum: int = 10**_DIGITS_MAX - 1) -> int | None:
    """Return the number that a stored property says.

    Clients can store any text under any name: it is looked at before it is believed.

    Args:
        text: Its value; None if it is not there.
        maximum: The largest that makes sense.

    Returns:
        None if it is no number in ASCII digits, or a larger one.
    """
    if not text or len(text) > _DIGITS_MAX or not text.isascii() or not text.isdigit():
        return None
    value = int(text)
    return value if value <= maximum else None


OF_BROKERS = frozenset({CRC32, POP_CHECKPOINT, INNER_MULTI_QUEUE_OFFSET, INNER_NUM, INNER_BASE})
"""What only brokers write, and readers of the log believe: no client's message keeps it.

Java takes POP_CK out (5.x ``clearReservedProperties``), and overwrites the others where it looks at
them.
"""
_MARKS_OF_BROKERS = tuple(name.encode() for name in sorted(OF_BROKERS))


def without_those_of_brokers(data: bytes) -> bytes:
    """Return a property string without what only brokers write; most have none of it."""
    if not any(mark in data for mark in _MARKS_OF_BROKERS):
        return data
    pairs = data.split(PROPERTY_SEPARATOR.encode())
    separator = NAME_VALUE_SEPARATOR.encode()
    kept = [pair for pair in pairs if pair.partition(separator)[0] not in _MARKS_OF_BROKERS]
    return PROPERTY_SEPARATOR.encode().join(kept)


@functools.lru_cache(256)
def _mark(name: str) -> bytes:
    """Return what stands before the value of a property that is not the first."""
    return f"{PROPERTY_SEPARATOR}{name}{NAME_VALUE_SEPARATOR}".encode()


def getter(text: str) -> Callable[[str], str | None]:
    """Return what looks up a property in a property string, by its name.

    It gives what ``decode`` does, None where there is none, and costs less than a dictionary for
    the few names that a filter asks for. A name is not empty and holds no separator.
    """
    text = "\x02" + text  # literals: this is where filters spend their time

    def get(name: str) -> str | None:
        start = f"\x02{name}\x01"
        at = text.rfind(start)
        while at >= 0:
            value_at = at + len(start)
            end = text.find("\x02", value_at)
            value = text[value_at:end] if end >= 0 else text[value_at:]
            if value:
                return value
            at = text.rfind(start, 0, at)
        return None

    return get


def append(data: bytes, more: bytes) -> bytes:
    """Join two property strings, adding the separator that the first may lack.

    See known-bugs.md#property-separators.
    """
    if not data or not more or data.endswith(PROPERTY_SEPARATOR.encode()):
        return data + more
    return data + PROPERTY_SEPARATOR.encode() + more


def split_keys(keys: str | None) -> list[str]:
    """Return the words of a KEYS value: split on single spaces, empties dropped."""
    return [key for key in keys.split(KEY_SEPARATOR) if key] if keys else []
