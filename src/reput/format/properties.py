r"""The property string of a message, and the names RocketMQ itself uses in it.

``name \x01 value \x02 name \x01 value``, with or without a last ``\x02``: 4.9 writes none,
4.5 and 5.x write one (anchors D21, rmq#3476). Both are read; what we write ends with one, so that
whoever appends to it damages nothing.
"""

from collections.abc import Mapping

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
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
CLUSTER = "CLUSTER"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
CRC32 = "__CRC32#"

KEY_SEPARATOR = " "
"""Between the words of KEYS; empty words do not count."""
LMQ_SEPARATOR = ","


def encode(properties: Mapping[str, str], *, last_separator: bool = True) -> bytes:
    r"""Return the property string as UTF-8 bytes.

    Raises:
        ValueError: A name or value is empty or holds ``\x01`` or ``\x02`` (4.9 could read a value
            with ``\x01``, 4.5 drops it), or the whole is longer than ``LENGTH_MAX`` bytes
            (anchors D20, D21).
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
    properties: dict[str, str] = {}
    for pair in java.decode_utf8(data).split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            # Re-insert, so that order follows the winning pair as the column kernel has it.
            properties.pop(name, None)
            properties[name] = value
    return properties


def append(data: bytes, more: bytes) -> bytes:
    """Join two property strings, adding the separator that the first may lack (anchors D21)."""
    if not data or not more or data.endswith(PROPERTY_SEPARATOR.encode()):
        return data + more
    return data + PROPERTY_SEPARATOR.encode() + more


def split_keys(keys: str | None) -> list[str]:
    """Return the words of a KEYS value: split on single spaces, empties dropped."""
    return [key for key in keys.split(KEY_SEPARATOR) if key] if keys else []
