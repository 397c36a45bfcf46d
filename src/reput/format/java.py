"""Java's string hash, UTF-8 and integers, as far as RocketMQ's formats use them.

Integers are big endian and signed everywhere in RocketMQ; text is UTF-8.
"""

import re
import struct
from typing import Annotated

import msgspec

_INT_MIN = -(1 << 31)

Int = Annotated[int, msgspec.Meta(ge=_INT_MIN, le=(1 << 31) - 1)]
"""Field of a header or body that is an ``int`` in Java."""
Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Field of a header or body that is a ``long`` in Java."""
_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def string_hash(text: str) -> int:
    """Return ``String.hashCode()``: ``h = 31*h + c`` over UTF-16 code units, as signed 32 bits.

    ``string_hash("TagA") == 2598919``.
    """
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def absolute_hash(value: int) -> int:
    """Return ``Math.abs`` of a 32-bit hash, and 0 for the value that has no absolute value."""
    return 0 if value == _INT_MIN else abs(value)


def decode_utf8(data: bytes) -> str:
    """Decode as ``new String(data, UTF_8)`` does: malformed bytes become U+FFFD, nothing raises."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        # An encoded surrogate is one U+FFFD in Java, and one for each byte in Python.
        return _ENCODED_SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")


def encode_utf8(text: str) -> bytes:
    """Encode as ``String.getBytes(UTF_8)`` does: a lone surrogate becomes ``?``."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # UTF-16 joins the two characters of a surrogate pair, as in a Java string.
        units = text.encode("utf-16-be", "surrogatepass")
        return units.decode("utf-16-be", "surrogatepass").encode("utf-8", "replace")
