r"""Remoting command: one frame of the protocol, a request or a reply.

    int length          of everything behind it
    int mark            serialization in the top byte, length of the header in the other three
    header              JSON or binary
    body                the rest

JSON header: ``code language version opaque flag remark extFields serializeTypeCurrentRPC``; what is
null is left out. Binary header, big endian::

    short code | byte language | short version | int opaque | int flag |
    int length, remark | int length, (short length, name, int length, value)*

A reply bears the opaque of its request and uses its serialization.
Source: rocketmq 4.9.8 ``RemotingCommand``, ``RocketMQSerializable``; golden frames in
``tests/data/remoting``.
"""

import enum
import struct
from dataclasses import dataclass
from typing import Any

import msgspec

from reput import limits
from reput.errors import LimitExceeded, NotAFrame, excerpt
from reput.format import codes, java
from reput.format.java import Int

LENGTH = struct.Struct(">i")
MARK = struct.Struct(">i")
FRAME_BYTES_MAX = 16_777_216
"""A longer frame closes the connection, as in Java (``com.rocketmq.remoting.frameMaxLength``)."""
IS_REPLY = 1
IS_ONEWAY = 2

_LENGTH_AND_MARK = struct.Struct(">ii")
_BINARY_HEAD = struct.Struct(">hbhii")
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_HEADER_LENGTH_MASK = 0xFFFFFF
_FIELD_BYTES_MIN = 6
"""A field takes at least so many bytes of a header, in JSON and in binary."""
_FEW_FIELDS_BYTES = _FIELD_BYTES_MIN * limits.HEADER_FIELDS.maximum
"""A header up to this length cannot have too many fields."""

Buffer = bytes | bytearray | memoryview


class Serialization(enum.IntEnum):
    """How a header is written."""

    JSON = 0
    ROCKETMQ = 1


@dataclass(slots=True)
class Command:
    """A request or a reply."""

    code: int
    """What is asked for, or how it went."""
    opaque: int = 0
    """Chosen by who asks; the reply bears it too."""
    flag: int = 0
    language: int = codes.LanguageCode.PYTHON
    version: int = codes.VERSION
    remark: str | None = None
    ext_fields: dict[str, str] | None = None
    body: bytes = b""
    serialization: Serialization = Serialization.JSON
    refusal: LimitExceeded | None = None
    """Why a request that was decoded must be refused; its fields were not read then."""

    @property
    def is_reply(self) -> bool:
        """Whether it answers a request."""
        return self.flag & IS_REPLY != 0

    @property
    def is_oneway(self) -> bool:
        """Whether nobody waits for a reply, and none must be sent."""
        return self.flag & IS_ONEWAY != 0


def reply(
    request: Command,
    code: int = codes.ResponseCode.SUCCESS,
    remark: str | None = None,
    ext_fields: dict[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    """Return what answers a request."""
    return Command(
        int(code),
        request.opaque,
        IS_REPLY,
        # Clients look at it, and some know few languages: ours say what a Java broker says.
        language=codes.LanguageCode.JAVA,
        remark=remark,
        ext_fields=ext_fields,
        body=body,
        serialization=request.serialization,
    )


def envelope(request: Command) -> Command:
    """Return what a reply needs of a request, without its fields and body: those may be 16 MiB.

    For requests that are kept until they are answered.
    """
    return Command(
        request.code,
        request.opaque,
        request.flag,
        language=request.language,
        version=request.version,
        serialization=request.serialization,
    )


# --- the frame ------------------------------------------------------------------


def encode(command: Command) -> bytes:
    """Return a frame, with its length field.

    Raises:
        ValueError: The code does not fit the binary header (5.x codes above 32767 need JSON), a
            field's name does not, or the header does not fit a frame.
    """
    return encode_head(command) + command.body


def encode_head(command: Command) -> bytes:
    """Return a frame without its body, to be written before it. Raises as ``encode``."""
    if command.serialization is Serialization.JSON:
        header = _encode_json(command)
    else:
        header = _encode_binary(command)
    if len(header) > _HEADER_LENGTH_MASK:
        raise ValueError(f"a header of {len(header)} bytes; at most {_HEADER_LENGTH_MASK} fit")
    mark = command.serialization << 24 | len(header)
    length = MARK.size + len(header) + len(command.body)
    return _LENGTH_AND_MARK.pack(length, mark) + header


def decode(frame: Buffer) -> Command:
    """Return the command of a frame, without its length field. The body is a copy.

    A request whose header is over a limit is returned without fields and with a ``refusal``, so
    that it can be answered.

    Raises:
        NotAFrame: It is damaged, of another protocol, or a reply with a header over the limits.
    """
    if len(frame) < MARK.size:
        raise NotAFrame(f"frame of {len(frame)} bytes; at least {MARK.size} are its mark")
    (mark,) = MARK.unpack_from(frame)
    header_end = MARK.size + (mark & _HEADER_LENGTH_MASK)
    if header_end > len(frame):
        raise NotAFrame(
            f"header of {header_end - MARK.size} bytes in a frame of {len(frame)} bytes"
        )
    serialization = mark >> 24 & 0xFF
    header = frame[MARK.size : header_end]
    if serialization == Serialization.JSON:
        command = _decode_json(header)
    elif serialization == Serialization.ROCKETMQ:
        command = _decode_binary(bytes(header))
    else:
        raise NotAFrame(f"serialization {serialization}; allowed: 0 (JSON), 1 (ROCKETMQ)")
    command.body = bytes(frame[header_end:])
    return command


# --- JSON -----------------------------------------------------------------------


class _JsonHead(msgspec.Struct):
    """What is read of a JSON header whose fields are not."""

    code: Int
    flag: Int = 0
    language: str | int | None = None
    opaque: Int = 0
    version: Int = 0


class _JsonHeader(_JsonHead):
    """What is read of a JSON header; anything else in it is ignored."""

    remark: str | None = None
    extFields: dict[str, Any] | None = None


class _TextHeader(_JsonHeader):
    """The same, with fields that are all text, as they should be."""

    extFields: dict[str, str] | None = None


_decode_text = msgspec.json.Decoder(_TextHeader).decode
_decode_any = msgspec.json.Decoder(_JsonHeader, strict=False).decode
_decode_head = msgspec.json.Decoder(_JsonHead, strict=False).decode
_json_encode = msgspec.json.Encoder().encode
_OTHER_LANGUAGE = int(codes.LanguageCode.OTHER)
_LANGUAGES: dict[str | int | None, int] = {
    **{code: code for code in range(1 << 7)},
    **{one.name: int(one) for one in codes.LanguageCode},
}
"""A byte's code by what a header says: a name or a number; all else is ``OTHER``."""
_LANGUAGE_NAMES = {int(one): one.name.encode() for one in codes.LanguageCode}


def _encode_json(command: Command) -> bytes:
    header = (
        b'{"code":%d,"flag":%d,"language":"%b","opaque":%d,"serializeTypeCurrentRPC":"JSON",'
        b'"version":%d'
        % (
            command.code,
            command.flag,
            _LANGUAGE_NAMES.get(command.language, b"OTHER"),
            command.opaque,
            command.version,
        )
    )
    if command.remark is not None:
        header += b',"remark":' + _json_encode(command.remark)
    if command.ext_fields is not None:
        header += b',"extFields":' + _json_encode(command.ext_fields)
    return header + b"}"


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _decode_json(header: Buffer) -> Command:
    if len(header) > _FEW_FIELDS_BYTES:
        refused = _refused_json(header)
        if refused is not None:
            return refused
    try:
        found: _JsonHeader = _decode_text(header)
        ext_fields = found.extFields
    except msgspec.ValidationError:
        found, ext_fields = _decode_leniently(header)
    except _UNREADABLE as error:
        raise _no_json(error) from error
    return Command(
        found.code,
        found.opaque,
        found.flag,
        _LANGUAGES.get(found.language, _OTHER_LANGUAGE),
        found.version,
        found.remark,
        ext_fields,
    )


def _decode_leniently(header: Buffer) -> tuple[_JsonHeader, dict[str, str] | None]:
    """Return header and fields as Java reads them: numbers as text, nulls left out."""
    if len(header) > limits.HEADER_BYTES.maximum:
        raise NotAFrame(f"header of {len(header)} bytes whose fields are not all text")
    try:
        found = _decode_any(header)
        if found.extFields is None:
            return found, None
        return found, {
            name: value if isinstance(value, str) else _json_encode(value).decode()
            for name, value in found.extFields.items()
            if value is not None
        }
    except _UNREADABLE as error:
        raise _no_json(error) from error


def _no_json(error: Exception) -> NotAFrame:
    return NotAFrame(f"header is not the JSON of a command: {excerpt(str(error))}")


_QUOTES_MAX = 4 * limits.HEADER_FIELDS.maximum + 40
"""Of the fields, each of which has four, and of the rest of a header."""


def _refused_json(header: Buffer) -> Command | None:
    """Return a request with a header over the limits, without its fields; None: it is within.

    A reply may be long: that to a batch has an id for each message.
    """
    text = bytes(header)
    # Of the two quotes of a string the first never stands behind a backslash.
    quotes = text.count(b'"') - text.count(b'\\"')
    if quotes > _QUOTES_MAX:
        refusal = limits.HEADER_FIELDS.exceeded()
    elif len(text) > limits.HEADER_BYTES.maximum:
        refusal = limits.HEADER_BYTES.exceeded(len(text))
    else:
        return None
    try:
        head = _decode_head(header)
    except _UNREADABLE as error:
        raise _no_json(error) from error
    if head.flag & IS_REPLY:
        if quotes > _QUOTES_MAX:
            raise NotAFrame(f"reply: {refusal}")
        return None
    return Command(
        head.code,
        head.opaque,
        head.flag,
        _LANGUAGES.get(head.language, _OTHER_LANGUAGE),
        head.version,
        refusal=refusal,
    )


# --- binary ---------------------------------------------------------------------


def _encode_binary(command: Command) -> bytes:
    remark = java.encode_utf8(command.remark or "")
    fields = []
    try:
        for name, value in (command.ext_fields or {}).items():
            name_bytes, value_bytes = java.encode_utf8(name), java.encode_utf8(value)
            fields += [_SHORT.pack(len(name_bytes)), name_bytes]
            fields += [_INT.pack(len(value_bytes)), value_bytes]
        extension = b"".join(fields)
        head = _BINARY_HEAD.pack(
            command.code, command.language, command.version, command.opaque, command.flag
        )
    except struct.error as error:
        raise ValueError(f"command {command.code} does not fit a binary header: {error}") from error
    return b"".join((head, _INT.pack(len(remark)), remark, _INT.pack(len(extension)), extension))


def _decode_binary(header: bytes) -> Command:
    try:
        code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(header)
        remark, at = _text(header, _BINARY_HEAD.size, _INT)
        (size,) = _INT.unpack_from(header, at)
        at += _INT.size
        end = at + size
        if size < 0 or end > len(header):
            raise NotAFrame(f"fields of {size} bytes at {at} in a header of {len(header)} bytes")
        refusal = None
        ext_fields: dict[str, str] | None = {} if size else None
        if len(header) > limits.HEADER_BYTES.maximum and not flag & IS_REPLY:
            refusal = limits.HEADER_BYTES.exceeded(len(header))
        count = 0
        while at < end and refusal is None:
            name, at = _text(header, at, _SHORT)
            value, at = _text(header, at, _INT)
            if ext_fields is not None and value:
                ext_fields[name] = value
            count += 1
            if count > limits.HEADER_FIELDS.maximum:
                refusal = limits.HEADER_FIELDS.exceeded()
    except struct.error as error:
        raise NotAFrame(f"binary header of {len(header)} bytes is cut: {error}") from error
    if refusal is not None:
        if flag & IS_REPLY:
            raise NotAFrame(f"reply: {refusal}")
        remark, ext_fields = "", None
    return Command(
        code,
        opaque,
        flag,
        language,
        version,
        remark or None,
        ext_fields,
        serialization=Serialization.ROCKETMQ,
        refusal=refusal,
    )


def _text(header: bytes, at: int, length: struct.Struct) -> tuple[str, int]:
    """Return text that stands behind its length, and where it ends."""
    (size,) = length.unpack_from(header, at)
    start = at + length.size
    if size < 0 or start + size > len(header):
        raise NotAFrame(f"text of {size} bytes at {at} in a header of {len(header)} bytes")
    return java.decode_utf8(header[start : start + size]), start + size
