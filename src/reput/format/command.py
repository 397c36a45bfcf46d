r"""Remoting command: one frame of the protocol, a request or a reply.

    int length          of everything after it
    int mark            serialization in the top byte, length of the header in the other three
    header              JSON or binary
    body                the rest

JSON header: ``code language version opaque flag remark extFields serializeTypeCurrentRPC``; null
fields are omitted. Binary header, big endian::

    short code | byte language | short version | int opaque | int flag |
    int length, remark | int length, (short length, name, int length, value)*

A reply repeats the opaque of its request and uses its serialization.
Source: rocketmq 4.9.8 ``RemotingCommand``, ``RocketMQSerializable``; golden frames in
``tests/data/remoting``.
"""

import enum
import json
import struct
from dataclasses import dataclass
from typing import Any

import msgspec

from reput.errors import LimitExceeded, NotAFrame, excerpt
from reput.format import codes, java, limits
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
"""Minimum size of a field in a header, JSON or binary, in bytes."""
_FEW_FIELDS_BYTES = _FIELD_BYTES_MIN * limits.HEADER_FIELDS.maximum
"""A header up to this length cannot have too many fields."""

Buffer = bytes | bytearray | memoryview


class Serialization(enum.IntEnum):
    """Encoding of a header."""

    JSON = 0
    ROCKETMQ = 1


@dataclass(slots=True)
class Command:
    """A request or a reply."""

    code: int
    """Request code, or response code of a reply."""
    opaque: int = 0
    """Number that the requester chooses and the reply repeats."""
    flag: int = 0
    language: int = codes.LanguageCode.PYTHON
    version: int = codes.VERSION
    remark: str | None = None
    ext_fields: dict[str, str] | None = None
    body: bytes = b""
    serialization: Serialization = Serialization.JSON
    refusal: LimitExceeded | None = None
    """Reason to refuse a decoded request; its fields were not read."""
    has_repeats: bool = False
    """True if a decoded header has a name twice; in JSON only if ``decode`` was asked to look."""

    @property
    def is_reply(self) -> bool:
        """True for a reply to a request."""
        return self.flag & IS_REPLY != 0

    @property
    def is_oneway(self) -> bool:
        """True if the requester expects no reply; none may be sent."""
        return self.flag & IS_ONEWAY != 0


def reply(
    request: Command,
    code: int = codes.ResponseCode.SUCCESS,
    remark: str | None = None,
    ext_fields: dict[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    """Return a reply to a request."""
    return Command(
        int(code),
        request.opaque,
        IS_REPLY,
        # Some clients accept few languages; Java brokers send JAVA.
        language=codes.LanguageCode.JAVA,
        remark=remark,
        ext_fields=ext_fields,
        body=body,
        serialization=request.serialization,
    )


def envelope(request: Command) -> Command:
    """Return a request without fields and body (up to 16 MiB); it suffices to make the reply.

    Used for requests that wait for their answer.
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
    """Return a frame without its body, to be written before the body. Raises as ``encode``."""
    if command.serialization is Serialization.JSON:
        header = _encode_json(command)
    else:
        header = _encode_binary(command)
    if len(header) > _HEADER_LENGTH_MASK:
        raise ValueError(f"a header of {len(header)} bytes; at most {_HEADER_LENGTH_MASK} fit")
    mark = command.serialization << 24 | len(header)
    length = MARK.size + len(header) + len(command.body)
    return _LENGTH_AND_MARK.pack(length, mark) + header


def decode(frame: Buffer, *, finds_repeats: bool = False) -> Command:
    """Return the command of a frame, without its length field. The body is a copy.

    A request whose header exceeds a limit is returned without fields and with a ``refusal``, so
    that the server can reply. Of several fields of one name, the last one counts.

    Args:
        frame: The frame.
        finds_repeats: Whether to set ``has_repeats``, which takes about twice as long.

    Raises:
        NotAFrame: The frame is damaged, of another protocol, or a reply whose header exceeds a
            limit.
    """
    if len(frame) < MARK.size:
        raise NotAFrame(f"frame of {len(frame)} bytes; the mark alone takes {MARK.size}")
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
        if finds_repeats and command.refusal is None:
            command.has_repeats = _has_repeats(header)
    elif serialization == Serialization.ROCKETMQ:
        command = _decode_binary(bytes(header))
    else:
        raise NotAFrame(f"serialization {serialization}; allowed: 0 (JSON), 1 (ROCKETMQ)")
    command.body = bytes(frame[header_end:])
    return command


# --- JSON -----------------------------------------------------------------------


class _JsonHead(msgspec.Struct):
    """JSON header without its fields."""

    code: Int
    flag: Int = 0
    language: str | int | None = None
    opaque: Int = 0
    version: Int = 0


class _JsonHeader(_JsonHead):
    """JSON header; unknown members are ignored."""

    remark: str | None = None
    extFields: dict[str, Any] | None = None


class _TextHeader(_JsonHeader):
    """JSON header whose fields are all text, as the protocol requires."""

    extFields: dict[str, str] | None = None


_decode_text = msgspec.json.Decoder(_TextHeader).decode
_decode_any = msgspec.json.Decoder(_JsonHeader, strict=False).decode
_decode_head = msgspec.json.Decoder(_JsonHead, strict=False).decode
_json_encode = msgspec.json.Encoder().encode
_OTHER_LANGUAGE = int(codes.LanguageCode.OTHER)
_LANGUAGES: dict[str | int | None, int] = {
    **{code: code for code in range(1 << 7)},
    **{language.name: int(language) for language in codes.LanguageCode},
}
"""Language code by name or number, as in a JSON header; anything else is ``OTHER``."""
_LANGUAGE_NAMES = {int(language): language.name.encode() for language in codes.LanguageCode}


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
        decoded: _JsonHeader = _decode_text(header)
        ext_fields = decoded.extFields
    except msgspec.ValidationError:
        decoded, ext_fields = _decode_leniently(header)
    except _UNREADABLE as error:
        raise _no_json(error) from error
    return Command(
        decoded.code,
        decoded.opaque,
        decoded.flag,
        _LANGUAGES.get(decoded.language, _OTHER_LANGUAGE),
        decoded.version,
        decoded.remark,
        ext_fields,
    )


def _decode_leniently(header: Buffer) -> tuple[_JsonHeader, dict[str, str] | None]:
    """Decode a header as Java does: numbers become text, nulls are omitted."""
    if len(header) > limits.HEADER_BYTES.maximum:
        raise NotAFrame(f"header of {len(header)} bytes whose fields are not all text")
    try:
        decoded = _decode_any(header)
        if decoded.extFields is None:
            return decoded, None
        return decoded, {
            name: value if isinstance(value, str) else _json_encode(value).decode()
            for name, value in decoded.extFields.items()
            if value is not None
        }
    except _UNREADABLE as error:
        raise _no_json(error) from error


class _Repeated(ValueError):
    """An object of JSON has a name twice."""


def _refuse_repeats(members: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in members}) != len(members):
        raise _Repeated


_decode_once = json.JSONDecoder(object_pairs_hook=_refuse_repeats).decode


def _has_repeats(header: Buffer) -> bool:
    """Return whether an object of a header, which was decoded before, has a name twice."""
    try:
        _decode_once(str(header, "utf-8"))
    except (ValueError, RecursionError):  # a number or a depth that no client sends, too
        return True
    return False


def _no_json(error: Exception) -> NotAFrame:
    return NotAFrame(f"header is not the JSON of a command: {excerpt(str(error))}")


_QUOTES_MAX = 4 * limits.HEADER_FIELDS.maximum + 40
"""Maximum number of quotes in a header: four per field, and those of the other members."""


def _refused_json(header: Buffer) -> Command | None:
    """Return a request without fields if its header exceeds a limit; otherwise None.

    A reply may be long: the reply to a batch has an id per message.
    """
    text = bytes(header)
    # The opening quote of a string never follows a backslash.
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
        remark, position = _text(header, _BINARY_HEAD.size, _INT)
        (size,) = _INT.unpack_from(header, position)
        position += _INT.size
        end = position + size
        if size < 0 or end > len(header):
            raise NotAFrame(
                f"fields of {size} bytes at {position} in a header of {len(header)} bytes"
            )
        refusal = None
        ext_fields: dict[str, str] | None = {} if size else None
        if len(header) > limits.HEADER_BYTES.maximum and not flag & IS_REPLY:
            refusal = limits.HEADER_BYTES.exceeded(len(header))
        count = kept_count = 0
        while position < end and refusal is None:
            name, position = _text(header, position, _SHORT)
            value, position = _text(header, position, _INT)
            if ext_fields is not None and value:
                ext_fields[name] = value
                kept_count += 1
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
        has_repeats=ext_fields is not None and kept_count != len(ext_fields),
    )


def _text(header: bytes, position: int, length: struct.Struct) -> tuple[str, int]:
    """Return a text prefixed by its length, and the position after it."""
    (size,) = length.unpack_from(header, position)
    start = position + length.size
    if size < 0 or start + size > len(header):
        raise NotAFrame(f"text of {size} bytes at {position} in a header of {len(header)} bytes")
    return java.decode_utf8(header[start : start + size]), start + size
