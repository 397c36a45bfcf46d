"""Bodies as pages show them: a JSON tree, text, or bytes in hex; what was left out is part of it.

Integers that a browser would round are texts. A body is what a producer sent: nothing here trusts
its size, its depth or its characters.
"""

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reput.errors import CorruptRecord
from reput.extras import ExtraMissing
from reput.format import body as codec
from reput.format.message import StoredMessage

SHOWN_BYTES_MAX = 64 * 1024
"""Maximum bytes of a body on a page; a longer body is cut and can be downloaded."""
HEX_BYTES_MAX = 4 * 1024
"""Bytes of a body that is not text: 256 lines."""
NODES_MAX = 4_000
"""Maximum nodes of a JSON tree; a larger one is shown as text."""
DEPTH_MAX = 40
"""Maximum nesting of a JSON tree; a deeper one is shown as text."""
PREVIEW_LETTERS = 160
EXACT_INTEGER_MAX = (1 << 53) - 1
"""Largest integer that a browser does not round."""
_LINE_BYTES = 16


class BodyKind(enum.StrEnum):
    """Form in which a body is shown."""

    EMPTY = "empty"
    JSON = "json"
    TEXT = "text"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a JSON tree."""

    name: str
    """Name of the member, or number of the element; empty for the root."""
    kind: str
    """``object``, ``array``, ``string``, ``number``, ``integer``, ``boolean`` or ``null``."""
    text: str
    """The value, for a number as it was written; for an object or array the number of nodes."""
    nodes: tuple["Node", ...] = ()


@dataclass(frozen=True, slots=True)
class BodyView:
    """A body in the form that a page shows."""

    kind: BodyKind
    size_bytes: int
    """Size of the decompressed body."""
    stored_bytes: int
    compression: str
    """``none``, ``zlib``, ``lz4``, ``zstd``, or ``unknown N``."""
    shown_bytes: int
    text: str
    """The text; or lines of position, bytes and ASCII."""
    tree: Node | None = None
    problem: str | None = None
    """Reason why the body is shown as stored, or JSON as text."""

    @property
    def is_cut(self) -> bool:
        """True if only the start is shown."""
        return self.shown_bytes < self.size_bytes


def view(message: StoredMessage) -> BodyView:
    """Return the body of a message as a page shows it."""
    compression = codec.compression_name(message.sys_flag)
    problem = None
    try:
        data = message.plain_body()
    except (CorruptRecord, ExtraMissing) as error:
        data, problem = bytes(message.body), f"shown as stored: {error}"
    stored = len(message.body)
    if not data:
        return BodyView(BodyKind.EMPTY, 0, stored, compression, 0, "", None, problem)
    text, shown_bytes = _text(data)
    if text is None:
        shown = data[:HEX_BYTES_MAX]
        return BodyView(
            BodyKind.HEX,
            len(data),
            stored,
            compression,
            len(shown),
            hex_lines(shown),
            None,
            problem,
        )
    tree = None
    if text.lstrip()[:1] in ("{", "["):
        if shown_bytes < len(data):
            problem = problem or f"JSON is shown as text, as it is over {SHOWN_BYTES_MAX} bytes"
        else:
            try:
                tree = _tree(text)
            except _NoTree as error:
                problem = problem or str(error)
    kind = BodyKind.TEXT if tree is None else BodyKind.JSON
    return BodyView(kind, len(data), stored, compression, shown_bytes, text, tree, problem)


def preview(data: bytes) -> str:
    """Return the start of a body on one line."""
    start = data[: 4 * PREVIEW_LETTERS]
    text, _ = _text(start, is_start=len(start) < len(data))
    if text is None:
        shown = start[: PREVIEW_LETTERS // 4]
        return shown.hex(" ") + (" …" if len(shown) < len(data) else "")
    line = " ".join(text.split())
    is_cut = len(start) < len(data) or len(line) > PREVIEW_LETTERS
    return line[:PREVIEW_LETTERS] + ("…" if is_cut else "")


def hex_lines(data: bytes) -> str:
    """Return bytes as lines of position, 16 bytes and their ASCII."""
    lines = []
    for position in range(0, len(data), _LINE_BYTES):
        row = data[position : position + _LINE_BYTES]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{position:08x}  {row.hex(' '):<47}  {letters}")
    return "\n".join(lines)


def _text(data: bytes, *, is_start: bool = False) -> tuple[str | None, int]:
    """Return UTF-8 text without control characters and its size; None for other bytes."""
    shown = data[:SHOWN_BYTES_MAX]
    is_start = is_start or len(shown) < len(data)
    try:
        text = shown.decode()
    except UnicodeDecodeError as error:
        # The cut may be amid a character.
        if not is_start or error.end != len(shown) or error.start < len(shown) - 3:
            return None, 0
        shown = shown[: error.start]
        text = shown.decode()
    if any(not (letter.isprintable() or letter in "\t\r\n\u2028\u200d\ufe0f") for letter in text):
        return None, 0
    return text, len(shown)


class _NoTree(Exception):
    """A text that looks like JSON and is shown as text."""


class _Counted(list[tuple[str, Any]]):
    """Members of an object in order: names may repeat."""


def _tree(text: str) -> Node:
    def constant(name: str) -> float:
        raise _NoTree(f"not JSON: {name} is no number")

    try:
        value = json.loads(
            text,
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=constant,
            object_pairs_hook=_Counted,
        )
    except RecursionError:
        raise _NoTree(f"JSON is shown as text, as it is nested over {DEPTH_MAX} deep") from None
    except ValueError as error:
        raise _NoTree(f"not JSON: {error}") from None
    count = 0

    def node(name: str, value: Any, depth: int) -> Node:
        nonlocal count
        count += 1
        if count > NODES_MAX:
            raise _NoTree(f"JSON is shown as text, as it has over {NODES_MAX} values")
        if depth > DEPTH_MAX:
            raise _NoTree(f"JSON is shown as text, as it is nested over {DEPTH_MAX} deep")
        members: Sequence[tuple[str, Any]]
        if isinstance(value, _Counted):
            kind, members = "object", value
        elif isinstance(value, list):
            kind, members = "array", [(str(n), element) for n, element in enumerate(value)]
        else:
            return _leaf(name, value)
        nodes = tuple(node(inner, element, depth + 1) for inner, element in members)
        return Node(name, kind, str(len(nodes)), nodes)

    return node("", value, 1)


class _Number(str):
    """The digits of a number, as written."""

    __slots__ = ()


def _leaf(name: str, value: Any) -> Node:
    if isinstance(value, _Number):
        is_integer = value.lstrip("-").isdecimal()
        return Node(name, "integer" if is_integer else "number", str(value))
    if isinstance(value, str):
        return Node(name, "string", value)
    if value is None:
        return Node(name, "null", "null")
    return Node(name, "boolean", "true" if value else "false")
