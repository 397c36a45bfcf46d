"""What is answered to a put that cannot be stored: what 4.9.7 answers; where 5.5.0 differs, it says.

In 5.x the broker has taken some of these checks over from the store (``HookUtils``), and there is
no broker around Java's store here. Ours keeps them all.
"""

import dataclasses
from pathlib import Path

import pytest

from interop import same_puts
from interop.java_store import Config, JavaStore, Put
from interop.same_puts import SIZES, in_batch, plain, settings_of
from reput.format import batch as batches, properties as props
from reput.format.batch import InnerMessage

pytestmark = pytest.mark.interop

BODY_MAX = SIZES["maxMessageSize"]
assert isinstance(BODY_MAX, int)


def with_properties(size: int, *, letter: str = "x", more: str = "") -> Put:
    """A message whose property string takes ``size`` bytes, with no separator at its end."""
    rest = "" if not more else f"{more}\1y\2"
    room = size - len((rest + "own\1").encode())
    assert room % len(letter.encode()) == 0
    value = letter * (room // len(letter.encode()))
    properties = {more: "y", "own": value} if more else {"own": value}
    return Put("T", 0, b"", properties)


PUTS: dict[str, Put] = {
    "nothing": Put("T", 0, b""),
    "topic of 127 bytes": Put("t" * 127, 0, b""),
    "body of the greatest size": Put("T", 0, b"x" * BODY_MAX),
    "body of one byte more": Put("T", 0, b"x" * (BODY_MAX + 1)),
    "properties of 32767 bytes": with_properties(32767),
    "properties of 32768 bytes": with_properties(32768),
    "properties of 40000 bytes": with_properties(40000),
    "properties of 40000 bytes and fewer characters": with_properties(40000, letter="éé"),
    "body and properties of the greatest size": dataclasses.replace(
        with_properties(32759), body=b"x" * (BODY_MAX - 100)
    ),
    "record as long as a file": dataclasses.replace(with_properties(32767), body=b"x" * BODY_MAX),
    "batch": in_batch("T", 0, [plain(0), plain(1)]),
    "batch of the greatest size": Put(
        "T", 0, batches.encode([InnerMessage(0, b"x" * (BODY_MAX - 22), b"")]), is_batch=True
    ),
    "batch of one byte more": Put(
        "T", 0, batches.encode([InnerMessage(0, b"x" * (BODY_MAX - 21), b"")]), is_batch=True
    ),
}
