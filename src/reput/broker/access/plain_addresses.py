"""White addresses of access control 1.0: patterns for addresses whose requests are not checked.

    10.0.3.7   10.0.3.7,10.0.3.9   10.0.3.{7,9}   10.0.3.*   10.0.3-5.*   *
    fd00::7    fd00::7,fd00::9     fd00::{7,9}    2::ac5:78:1-200:*       fd00::a:*

In a range, the first component with ``*`` or ``low-high`` decides, and what follows it does not
count: ``10.0.3-5.9`` contains 10.0.4.1. Java reads some patterns so that they never match, match
nothing but errors, or match more than they show; here they are refused.
Source: rocketmq 4.9.7 ``RemoteAddressStrategyFactory``, ``AclUtils``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from reput.errors import InvalidOption
from reput.format.ip_address import parse_address

ALLOWED = (
    "an address 10.0.3.7 or fd00::7, several as 10.0.3.7,10.0.3.9 or 10.0.3.{7,9}, a range "
    "10.0.3.*, 10.0.3-5.* or fd00::a:1-200, all addresses as *, or nothing"
)
"""The allowed patterns, as a phrase."""

_EVERY = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_GROUPS = 8
_BYTE = re.compile(r"0|[1-9][0-9]{0,2}")
_GROUP = re.compile(r"[0-9A-Fa-f]{1,4}")
_LAST = re.compile(r"[0-9*-]+")
_RANGE = re.compile(r"([0-9A-Fa-f]+)-([0-9A-Fa-f]+)")


class _Range(NamedTuple):
    """Addresses whose beginning is fixed, and whose next component is in a range."""

    length: int
    """Size of the addresses: 4 or 16 bytes."""
    head: bytes
    low: bytes
    high: bytes

    def contains(self, packed: bytes) -> bool:
        start = len(self.head)
        component = packed[start : start + len(self.low)]
        return (
            len(packed) == self.length
            and packed.startswith(self.head)
            and self.low <= component <= self.high
        )


@dataclass(frozen=True, slots=True)
class AddressSet:
    """The addresses of some patterns."""

    is_all: bool = False
    single: frozenset[bytes] = frozenset()
    """Packed addresses."""
    ranges: tuple[_Range, ...] = ()

    def contains(self, address: str) -> bool:
        """Return True if a peer's address, without its port, is in the set."""
        if self.is_all:
            return True
        if not self.single and not self.ranges:
            return False
        packed = packed_address(address)
        if packed is None:
            return False
        return packed in self.single or any(part.contains(packed) for part in self.ranges)

    def __bool__(self) -> bool:
        """Return False if the set is empty."""
        return self.is_all or bool(self.single) or bool(self.ranges)


NO_ADDRESS = AddressSet()
"""The empty set."""


def union(sets: Iterable[AddressSet]) -> AddressSet:
    """Return the set of all addresses of some sets."""
    parts = tuple(sets)
    return AddressSet(
        any(part.is_all for part in parts),
        frozenset[bytes]().union(*(part.single for part in parts)),
        tuple(one_range for part in parts for one_range in part.ranges),
    )


def packed_address(text: str) -> bytes | None:
    """Return an address in 4 or 16 bytes; None if it is not one."""
    try:
        return parse_address(text).packed
    except ValueError:
        return None


def parse_pattern(text: str, name: str) -> AddressSet:
    """Return the addresses of a pattern.

    Args:
        text: The pattern; the set of a blank one is empty.
        name: What the pattern is, for an error.

    Raises:
        InvalidOption: It is none.
    """
    if not text.strip():
        return NO_ADDRESS
    if text in _EVERY:
        return AddressSet(is_all=True)
    parsed: AddressSet | None
    if text.endswith("}"):
        parsed = _alternatives(text)
    elif "," in text:
        parsed = _addresses([part for part in text.split(",") if part])
    elif "*" in text or "-" in text:
        one_range = _range_v6(text) if ":" in text else _range_v4(text)
        parsed = None if one_range is None else AddressSet(ranges=(one_range,))
    else:
        parsed = _addresses([text])
    if not parsed:
        raise InvalidOption(name, text, ALLOWED)
    return parsed


def _alternatives(text: str) -> AddressSet | None:
    """Return the set of ``10.0.3.{7,9}``."""
    head, brace, tail = text[:-1].partition("{")
    if not brace or not head.endswith((":", ".")):
        return None
    return _addresses([head + part for part in tail.split(",") if part])


def _addresses(texts: list[str]) -> AddressSet | None:
    """Return the set of single addresses; None if one is wrong."""
    packed = [packed_address(text) for text in texts if not set("[]%") & set(text)]
    known = frozenset(address for address in packed if address is not None)
    return AddressSet(single=known) if len(packed) == len(texts) and None not in packed else None


def _range_v4(text: str) -> _Range | None:
    parts = [part.strip() for part in text.split(".")]
    if len(parts) != 4:
        return None
    head = bytearray()
    for position, part in enumerate(parts):
        if part == "*" or "-" in part:
            bounds = _bounds(part, 10, 255)
            if not position or bounds is None or not all(map(_LAST.fullmatch, parts[position:])):
                return None
            low, high = bounds
            return _Range(4, bytes(head), bytes([low]), bytes([high]))
        if not _BYTE.fullmatch(part) or int(part) > 255:
            return None
        head.append(int(part))
    return None


def _range_v6(text: str) -> _Range | None:
    """Return a range of IPv6: in the last component, or the one before a last ``*``."""
    head, _, part = text.rpartition(":")
    groups = _GROUPS - 1
    if part == "*" and "-" in head:
        head, _, part = head.rpartition(":")
        groups -= 1
    bounds = _bounds(part.strip(), 16, 0xFFFF)
    packed_head = _head_v6(head, groups)
    if bounds is None or packed_head is None:
        return None
    if head.endswith(":") and part.strip() != "*":
        return None  # Java reads 2::1-200 as 2:0:1-200, which contains other addresses
    low, high = (value.to_bytes(2, "big") for value in bounds)
    return _Range(16, packed_head, low, high)


def _head_v6(text: str, groups: int) -> bytes | None:
    """Return the first components; ``::`` is as many zeros as complete ``groups``.

    Without ``::`` there may be fewer: ``fd00:1:*``.
    """
    if not text.strip(":"):
        return None
    if text.endswith(":"):  # of ``2::*``
        text += ":" if "::" not in text else ""
    before, gap, after = text.partition("::")
    first = before.split(":") if before else []
    last = after.split(":") if after else []
    zeros = groups - len(first) - len(last) if gap else 0
    if not all(map(_GROUP.fullmatch, first + last)) or zeros < bool(gap):
        return None
    values = [int(part, 16) for part in first] + [0] * zeros + [int(part, 16) for part in last]
    if not 0 < len(values) <= groups:
        return None
    return b"".join(value.to_bytes(2, "big") for value in values)


def _bounds(part: str, base: int, most: int) -> tuple[int, int] | None:
    """Return the bounds of ``*`` or ``low-high``; None if they are wrong."""
    if part == "*":
        return 0, most
    pair = _RANGE.fullmatch(part)
    if pair is None:
        return None
    try:
        low, high = int(pair[1], base), int(pair[2], base)
    except ValueError:  # a letter in a decimal number
        return None
    return (low, high) if low <= high <= most and high > 0 else None
