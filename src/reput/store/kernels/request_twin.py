"""The kernels' readers of headers in plain Python; see ``header_json`` and ``header_binary``.

Grammar by regular expressions, meaning by ``reput.format.command``: what is common must mean to the
kernels what it means there.
"""

import functools
import json
import re
import struct
from dataclasses import dataclass

from reput.format import command
from reput.format.command import Command, Serialization
from reput.store.kernels import pull_rules, send_rules

LETTERS = "abcdefghijklmn"
_INT = struct.Struct(">i")
_NAME_LENGTH = struct.Struct(">h")
_INT_MAX = 0x7FFFFFFF
_FIELDS_START = struct.calcsize(">hbhiii")

_PLAIN = rb"[\x20-!#-\[\]-\x7f]*"
_ESCAPED = rb"(?:[\x20-!#-\[\]-\x7f]|\\[\"\\/]|\\u000[12])*"
_NUMBER = rb"(?:0|[1-9][0-9]{0,17})"
_SENT_AND_PULLED = (*LETTERS, *send_rules.FIELD_NAMES, *pull_rules.FIELD_NAMES)
_ANY_TEXT = ("i", "properties")
"""Of sends: fields whose text may be any."""
_JSON_PROPERTIES = re.compile(rb'[{,]"(?:i|properties)":"(' + _ESCAPED + rb')"')
_PLAIN_ALL = re.compile(_PLAIN)
_NUMBER_ALL = re.compile(_NUMBER.decode())


@dataclass(frozen=True, slots=True)
class ReadHeader:
    """A header that a reader of the kernels takes, with its frame."""

    command: Command
    properties_size: int
    """Of the properties of a send, as they stand in it."""
    frame_size: int
    """With its length."""


@functools.cache
def _json_of(names: tuple[str, ...]) -> re.Pattern[bytes]:
    """Return what a header is whose fields have these names; empty: those of sends and pulls."""
    known = b"|".join(re.escape(name).encode() for name in names or _SENT_AND_PULLED)
    field = rb'"(?:%b)":"%b"' % (known, _PLAIN)
    if not names:
        field = rb'(?:"(?:i|properties)":"%b"|"(?!i"|properties")%b)' % (_ESCAPED, field[1:])
    member = (
        rb'(?:"(?:code|flag|opaque|version)":%b|"(?:language|serializeTypeCurrentRPC)":"%b"'
        rb'|"extFields":\{%b(?:,%b)*\})' % (_NUMBER, _PLAIN, field, field)
    )
    return re.compile(rb"\{%b(?:,%b)*\}[ \t\r\n]*" % (member, member))


def read_header(frame: bytes, names: tuple[str, ...] = ()) -> ReadHeader | None:
    """Read the header of a frame that follows its length; None: it is not common.

    Args:
        frame: The frame.
        names: Of the fields that are known; those of sends and pulls.
    """
    (mark,) = command.MARK.unpack_from(frame)
    kind = mark >> 24 & 0xFF
    body_at = command.MARK.size + (mark & 0xFFFFFF)
    if body_at > len(frame) or kind not in (0, 1):
        return None
    return (_read_json if kind == Serialization.JSON else _read_binary)(frame, body_at, names)


def _read_json(frame: bytes, body_at: int, names: tuple[str, ...]) -> ReadHeader | None:
    header = frame[command.MARK.size : body_at]
    if not _json_of(names).fullmatch(header):
        return None
    pairs = json.loads(header, object_pairs_hook=list)
    found = dict(pairs)
    numbers = [value for value in found.values() if isinstance(value, int)]
    if len(found) < len(pairs) or max(numbers, default=0) > _INT_MAX:
        return None
    if not {"code", "flag", "opaque", "extFields"} <= found.keys():
        return None
    if len(dict(found["extFields"])) < len(found["extFields"]):
        return None
    text = None if names else _JSON_PROPERTIES.search(header)
    return _read(frame, len(text[1]) if text else 0)


def _read_binary(frame: bytes, body_at: int, names: tuple[str, ...]) -> ReadHeader | None:
    header = frame[command.MARK.size : body_at]
    if len(header) < _FIELDS_START + _INT.size:
        return None
    remark_size, size = struct.unpack_from(">ii", header, _FIELDS_START - _INT.size)
    at = _FIELDS_START + _INT.size
    if remark_size or size != len(header) - at:
        return None
    known = {name.encode() for name in names or _SENT_AND_PULLED}
    any_text = () if names else tuple(name.encode() for name in _ANY_TEXT)
    found: dict[bytes, bytes] = {}
    while at < len(header):
        try:
            (name_size,) = _NAME_LENGTH.unpack_from(header, at)
            (value_size,) = _INT.unpack_from(header, at + 2 + name_size)
        except struct.error:
            return None
        name = header[at + 2 : at + 2 + name_size]
        at += 6 + name_size
        value = header[at : at + value_size]
        at += value_size
        if name_size <= 0 or value_size <= 0 or at > len(header):
            return None
        if name in found or name not in known:
            return None
        if name not in any_text and not _PLAIN_ALL.fullmatch(value):
            return None
        found[name] = value
    text = found.get(b"i", found.get(b"properties", b""))
    return _read(frame, len(text))


def _read(frame: bytes, properties_size: int) -> ReadHeader:
    size = command.LENGTH.size + len(frame)
    return ReadHeader(command.decode(frame), properties_size, size)


def is_number(text: str | None, limit: int | None = _INT_MAX) -> bool:
    """Whether a text is a number as one would write it, up to ``limit``."""
    if text is None or not _NUMBER_ALL.fullmatch(text):
        return False
    return limit is None or int(text) <= limit
