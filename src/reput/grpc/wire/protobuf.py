"""Protobuf messages as dicts, decoded and encoded by tables of fields.

``reput.grpc.wire.grpc_messages`` has the tables of the 5.x clients. A message is a dict by field
name: nested messages are dicts, repeated fields lists, maps dicts, enums ints, strings ``str`` and
bytes ``bytes``. An absent field is an absent key. Decoding keeps the presence of every field that
is on the wire, zeros too; encoding leaves out the zero of a field without presence, as protobuf
does.

Decoding follows protobuf: unknown fields, and known ones of another wire type, are skipped; the
last value of a scalar wins; occurrences of a nested message are merged; of a oneof the last member
remains; repeated scalars are packed or not. Source: the encoding guide of protocol buffers, and
what its C library (upb) accepts.

Only what these messages need is there: no groups, no extensions, no recursive messages (a table
exists before the tables that use it, so nesting is bounded by the tables), and maps from string to
string alone.
"""

import struct
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from reput.errors import InvalidProtobuf
from reput.grpc import limits

GROUP_DEPTH_MAX = 100
"""Maximum depth of unknown groups, which old writers may send; that of protobuf."""
SECONDS_MAX = 315_576_000_000
"""Maximum of the seconds of a duration, either sign: 10,000 years."""
TIMESTAMP_SECONDS_MIN = -62_135_596_800
TIMESTAMP_SECONDS_MAX = 253_402_300_799
"""Range of the seconds of a timestamp: years 1 to 9999."""

SMALL_BYTES = 4 * 1024
"""Size of a message that is decoded at once, in bytes; of a larger one, that of a step."""
FIELDS_PER_STEP = 1_000
"""Maximum number of fields that a step of decoding or counting reads, without nested fields."""

_TAG_BYTES_MAX = 5
_VARINT_BYTES_MAX = 10
_MASK_32 = (1 << 32) - 1
_MASK_64 = (1 << 64) - 1
_FLOAT = struct.Struct("<f")
_VARINT, _FIXED_64, _DELIMITED, _GROUP_START, _GROUP_END, _FIXED_32 = range(6)  # wire types
_WIRE_TYPES = {
    "string": _DELIMITED,
    "bytes": _DELIMITED,
    "message": _DELIMITED,
    "int32": _VARINT,
    "int64": _VARINT,
    "enum": _VARINT,
    "bool": _VARINT,
    "float": _FIXED_32,
}

# What a reader or writer does with a field: the delimited ones first.
_STRING, _MESSAGE, _MAP, _MESSAGES, _STRINGS, _BYTES, _PACKED = range(7)
_INT32, _INT64, _BOOL, _INT32S, _FLOATING = range(7, 12)
_SCALARS = {
    "string": _STRING,
    "bytes": _BYTES,
    "message": _MESSAGE,
    "int32": _INT32,
    "enum": _INT32,
    "int64": _INT64,
    "bool": _BOOL,
    "float": _FLOATING,
}
_REPEATED = {"string": _STRINGS, "message": _MESSAGES, "enum": _INT32S}

_ONE_BYTE = [bytes([number]) for number in range(128)]
"""Varints of one byte."""

Data = bytes | bytearray
"""Bytes of a message."""

Reader = Callable[[Data, int, int, dict[str, Any]], dict[str, Any]]
"""Adds the fields between two positions to a message, and returns it."""
Writer = Callable[[Mapping[str, Any]], bytes]


class MessageField(NamedTuple):
    """A field of a message."""

    number: int
    name: str
    kind: str
    """``string``, ``bytes``, ``message``, ``int32``, ``int64``, ``enum``, ``bool`` or ``float``."""
    message: "MessageTable | None" = None
    """MessageTable of a nested message."""
    label: str = ""
    """``optional``, ``repeated``, ``map`` (of strings), or empty."""
    oneof: str = ""
    """Name of the oneof it belongs to, if any."""


class MessageTable:
    """Fields of a message, and the functions that they are compiled to.

    Args:
        name: Name of the message.
        fields: Its fields, by number.
    """

    __slots__ = ("fields", "name", "nested", "nested_tables", "read", "write")

    def __init__(self, name: str, *fields: MessageField) -> None:
        self.name = name
        self.fields = fields
        self.nested = _nested(fields)
        self.nested_tables = {
            field.number << 3 | _DELIMITED: (field, field.message)
            for field in fields
            if field.message
        }
        self.read = _reader(name, fields)
        self.write = _writer(name, fields)

    def place(self, values: dict[str, Any], field: MessageField, item: dict[str, Any]) -> None:
        """Add a nested message to a message, as if it had been read now."""
        if field.label == "repeated":
            values.setdefault(field.name, []).append(item)
            return
        values[field.name] = item
        for rival in self.fields:
            if field.oneof == rival.oneof != "" and rival != field:
                values.pop(rival.name, None)

    def __repr__(self) -> str:
        return f"<table of {self.name}>"


class Encoded(dict[str, Any]):
    """A message that is encoded once, as it never changes.

    Args:
        table: MessageTable of the message.
        values: Its fields.
    """

    __slots__ = ("data",)

    def __init__(self, table: MessageTable, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.data = table.write(values)


def decode(table: MessageTable, data: Data) -> dict[str, Any]:
    """Return the message that bytes encode.

    Raises:
        InvalidProtobuf: The bytes are damaged; the text names message, field, and the byte at
            which reading stopped.
    """
    if len(data) > _UNCOUNTED_BYTES:
        for _ in counted_in_steps(table, data):
            pass
    return table.read(data, 0, len(data), {})


def counted_in_steps(table: MessageTable, data: Data) -> Generator[None, None, int]:
    """Return the number of fields, before dicts are made of them; yield after each bounded part.

    Damaged bytes are counted up to the damage, which is left to the reader.

    Raises:
        InvalidProtobuf: There are too many fields.
    """
    count_max = limits.PROTOBUF_FIELDS.maximum
    count = position = group_depth = 0
    nested, end = table.nested, len(data)
    outer: list[tuple[Nested, int]] = []
    try:
        while position < end or outer:
            if position >= end:
                nested, end = outer.pop()
                continue
            count += 1
            if count > count_max:
                refusal = limits.PROTOBUF_FIELDS.exceeded()
                raise InvalidProtobuf(f"{table.name}: {refusal}, at byte {position}")
            if count % FIELDS_PER_STEP == 0:
                yield
            tag, position = _tag(data, position)
            wire_type = tag & 7
            if wire_type == _DELIMITED:
                size, position = _varint(data, position)
                if position + size > end:
                    return count
                inner = _NO_FIELDS if group_depth else nested.get(tag, _NO_FIELDS)
                if inner is _NO_FIELDS or not size:
                    position += size
                elif inner is None:
                    count += size
                    position += size
                else:
                    outer.append((nested, end))
                    nested, end = inner, position + size
            elif wire_type == _GROUP_START:
                group_depth += 1
            elif wire_type == _GROUP_END:
                group_depth -= 1
            else:
                position = _skip(data, position, end, tag)
    except (IndexError, ValueError):
        pass
    return count


def decoded_in_steps(table: MessageTable, data: Data) -> Generator[None, None, dict[str, Any]]:
    """Return the message that bytes encode, as ``decode``; yield after each bounded part.

    The fields must have been counted (``counted_in_steps``). Parts of a message that follow each
    other are as good as the whole, so that it is read in runs of fields; a nested message that is
    large itself is read in the same way.

    Raises:
        InvalidProtobuf: As ``decode``.
    """
    values: dict[str, Any] = {}
    yield from _read_in_steps(table, data, 0, len(data), values)
    return values


def _read_in_steps(
    table: MessageTable, data: Data, position: int, end: int, values: dict[str, Any]
) -> Generator[None, None, None]:
    begin = position
    count = 0
    while position < end:
        start = position
        try:
            tag, position = _tag(data, position)
            nested = table.nested_tables.get(tag)
            size = inner = 0
            if tag & 7 == _DELIMITED:
                size, inner = _varint(data, position)
                position = inner + size
            else:
                position = _skip(data, position, end, tag)
        except (IndexError, ValueError):
            break  # the reader names the place
        if position > end:
            break
        count += 1
        if nested is not None and size > SMALL_BYTES:
            table.read(data, begin, start, values)
            field, inner_table = nested
            item: dict[str, Any] = {}
            if field.label != "repeated":
                item = values.get(field.name) or {}
            yield from _read_in_steps(inner_table, data, inner, position, item)
            table.place(values, field, item)
            begin = position
        elif position - begin > SMALL_BYTES or count >= FIELDS_PER_STEP:
            table.read(data, begin, position, values)
            begin, count = position, 0
            yield
    table.read(data, begin, end, values)


def encode(table: MessageTable, values: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message; a nested message may be given as its bytes.

    Text that is no Unicode (a lone surrogate) becomes ``?``, as in Java.

    Raises:
        InvalidProtobuf: A field is unknown, or its value of the wrong type or range.
    """
    return table.write(values)


# --- decoding ---------------------------------------------------------------------


def _reader(message: str, fields: tuple[MessageField, ...]) -> Reader:
    """Compile the reader of a message."""
    by_tag: dict[int, tuple[int, str, Reader, tuple[str, ...]]] = {}
    for field in fields:
        rivals = tuple(
            other.name for other in fields if field.oneof == other.oneof != "" and other != field
        )
        read = field.message.read if field.message else _no_reader
        tag = field.number << 3 | _WIRE_TYPES[field.kind]
        if field.label == "map":
            by_tag[field.number << 3 | _DELIMITED] = (_MAP, field.name, _ENTRY.read, rivals)
        elif field.label == "repeated":
            by_tag[tag] = (_REPEATED[field.kind], field.name, read, rivals)
            if tag & 7 != _DELIMITED:
                by_tag[field.number << 3 | _DELIMITED] = (_PACKED, field.name, read, rivals)
        else:
            by_tag[tag] = (_SCALARS[field.kind], field.name, read, rivals)
    find = by_tag.get

    def read_message(data: Data, position: int, end: int, values: dict[str, Any]) -> dict[str, Any]:
        name = ""
        try:
            while position < end:
                tag = data[position]
                position += 1
                if tag > 127:
                    tag, position = _tag(data, position - 1)
                field = find(tag)
                if field is None:
                    name = f"field {tag >> 3}"
                    position = _skip(data, position, end, tag)
                    continue
                kind, name, read, rivals = field
                if kind <= _PACKED:
                    size = data[position]
                    position += 1
                    if size > 127:
                        size, position = _varint(data, position - 1)
                    stop = position + size
                    if stop > end:
                        raise ValueError(f"has {size} bytes, {end - position} remain")
                    if kind == _STRING:
                        values[name] = data[position:stop].decode()
                    elif kind == _MESSAGE:
                        values[name] = read(data, position, stop, values.get(name) or {})
                    elif kind == _MAP:
                        if (
                            size > 3
                            and data[position] == 0x0A
                            and (key_size := data[position + 1]) < 128
                            and (key_stop := position + 2 + key_size) < stop - 1
                            and data[key_stop] == 0x12
                            and (value_size := data[key_stop + 1]) < 128
                            and key_stop + 2 + value_size == stop
                        ):  # the usual form: key, then value, both short
                            key = data[position + 2 : key_stop].decode()
                            value = data[key_stop + 2 : stop].decode()
                        else:
                            entry = read(data, position, stop, {})
                            key, value = entry.get("key", ""), entry.get("value", "")
                        if name in values:
                            values[name][key] = value
                        else:
                            values[name] = {key: value}
                    elif kind == _MESSAGES:
                        item = read(data, position, stop, {})
                        if name in values:
                            values[name].append(item)
                        else:
                            values[name] = [item]
                    elif kind == _STRINGS:
                        values.setdefault(name, []).append(data[position:stop].decode())
                    elif kind == _BYTES:
                        values[name] = bytes(memoryview(data)[position:stop])
                    else:
                        numbers = values.setdefault(name, [])
                        while position < stop:
                            number, position = _varint(data, position)
                            numbers.append((number + _HALF_32 & _MASK_32) - _HALF_32)
                        if position > stop:
                            raise ValueError("is cut off")
                    position = stop
                elif kind == _FLOATING:
                    (values[name],) = _FLOAT.unpack_from(data, position)
                    position += _FLOAT.size
                else:
                    number = data[position]
                    position += 1
                    if number > 127:
                        number, position = _varint(data, position - 1)
                    if kind == _INT32:
                        if number >= _HALF_32:
                            number = (number + _HALF_32 & _MASK_32) - _HALF_32
                        values[name] = number
                    elif kind == _INT64:
                        values[name] = number if number < _HALF_64 else number - (1 << 64)
                    elif kind == _BOOL:
                        values[name] = number != 0
                    else:
                        number = (number + _HALF_32 & _MASK_32) - _HALF_32
                        values.setdefault(name, []).append(number)
                if rivals:
                    for rival in rivals:
                        values.pop(rival, None)
            if position > end:
                raise ValueError("is cut off")
        except (IndexError, struct.error):
            raise _error(message, name, position, "is cut off") from None
        except UnicodeDecodeError as error:
            reason = f"is no UTF-8: {error.reason}"
            raise _error(message, name, position + error.start, reason) from None
        except ValueError as error:
            raise _error(message, name, position, f"{error}") from None
        return values

    return read_message


_HALF_32 = 1 << 31
_HALF_64 = 1 << 63


Nested = dict[int, "Nested | None"]
"""Tags whose bytes contain fields, with those of these; None for packed numbers."""


def _nested(fields: tuple[MessageField, ...]) -> Nested:
    """Return the tags of a message whose bytes contain fields or numbers."""
    nested: Nested = {}
    for field in fields:
        if field.message:
            nested[field.number << 3 | _DELIMITED] = field.message.nested
        elif field.label == "map":
            nested[field.number << 3 | _DELIMITED] = {}
        elif field.label == "repeated" and field.kind != "string":
            nested[field.number << 3 | _DELIMITED] = None
    return nested


_UNCOUNTED_BYTES = 2 * limits.PROTOBUF_FIELDS.maximum
"""Size of a message that cannot have too many fields: each takes two bytes."""


_NO_FIELDS: Nested = {}


def _no_reader(data: Data, position: int, end: int, values: dict[str, Any]) -> dict[str, Any]:
    """Refuse to read: the field is no message."""
    raise AssertionError("the field is no message")


def _error(message: str, field: str, position: int, reason: str) -> InvalidProtobuf:
    """Return the error of damaged bytes."""
    return InvalidProtobuf(f"{message}: {field or 'a tag'} {reason}, at byte {position}")


def _varint(data: Data, position: int) -> tuple[int, int]:
    """Return an unsigned varint and the position after it; bits over 64 are dropped."""
    number = data[position]
    if number < 128:
        return number, position + 1
    byte = data[position + 1]
    if byte < 128:
        return number - 0x80 | byte << 7, position + 2
    number += (byte << 7) - 0x4080
    byte = data[position + 2]
    if byte < 128:
        return number | byte << 14, position + 3
    number += (byte - 128) << 14
    for place in range(3, _VARINT_BYTES_MAX):
        byte = data[position + place]
        if byte < 128:
            return (number | byte << 7 * place) & _MASK_64, position + place + 1
        number |= (byte - 128) << 7 * place
    raise ValueError(f"is a number of more than {_VARINT_BYTES_MAX} bytes")


def _tag(data: Data, position: int) -> tuple[int, int]:
    """Return a tag and the position after it."""
    tag, stop = _varint(data, position)
    if tag > _MASK_32 or stop - position > _TAG_BYTES_MAX:
        raise ValueError("has a tag of more than 32 bits")
    return tag, stop


def _skip(data: Data, position: int, end: int, tag: int) -> int:
    """Return the position after an unknown field, whose tag has been read."""
    groups: list[int] = []
    while True:
        if not tag >> 3:
            raise ValueError("has the number 0")
        wire_type = tag & 7
        if wire_type == _VARINT:
            position = _varint(data, position)[1]
        elif wire_type == _DELIMITED:
            size, position = _varint(data, position)
            position += size
        elif wire_type == _FIXED_64:
            position += 8
        elif wire_type == _FIXED_32:
            position += 4
        elif wire_type == _GROUP_START:
            groups.append(tag >> 3)
            if len(groups) > GROUP_DEPTH_MAX:
                raise ValueError(f"has groups deeper than {GROUP_DEPTH_MAX}")
        elif wire_type == _GROUP_END:
            if not groups or groups.pop() != tag >> 3:
                raise ValueError("is the end of a group that has not begun")
        else:
            raise ValueError(f"has the wire type {wire_type}; allowed: 0 to 5")
        if position > end:
            raise ValueError("is cut off")
        if not groups:
            return position
        if position == end:
            raise ValueError("is a group without an end")
        tag, position = _tag(data, position)


# --- encoding ---------------------------------------------------------------------


def _writer(message: str, fields: tuple[MessageField, ...]) -> Writer:
    """Compile the writer of a message."""
    by_name: dict[str, tuple[int, bytes, Writer, bool]] = {}
    for field in fields:
        write = field.message.write if field.message else _no_writer
        if field.label == "map":
            kind, wire_type = _MAP, _DELIMITED
        elif field.label == "repeated":
            kind, wire_type = _REPEATED[field.kind], _DELIMITED  # numbers are packed
        else:
            kind, wire_type = _SCALARS[field.kind], _WIRE_TYPES[field.kind]
        tag = _varint_bytes(field.number << 3 | wire_type)
        by_name[field.name] = (kind, tag, write, bool(field.label == "optional" or field.oneof))

    def write_message(values: Mapping[str, Any]) -> bytes:
        parts: list[bytes] = []
        add = parts.append
        name = ""
        try:
            for name, value in values.items():
                kind, tag, write, has_presence = by_name[name]
                if kind == _STRING:
                    if value or has_presence:
                        raw = value.encode() if value.isascii() else _utf8(value)
                        size = len(raw)
                        add(tag + (_ONE_BYTE[size] if size < 128 else _varint_bytes(size)))
                        add(raw)
                elif kind == _MESSAGE:
                    if type(value) is Encoded:
                        raw = value.data
                    else:
                        raw = value if type(value) is bytes else write(value)
                    size = len(raw)
                    add(tag + (_ONE_BYTE[size] if size < 128 else _varint_bytes(size)))
                    add(raw)
                elif kind <= _STRINGS:
                    if kind == _MAP:
                        items = [_entry(key, text) for key, text in value.items()]
                    elif kind == _STRINGS:
                        items = [_utf8(text) for text in value]
                    else:
                        items = [item if type(item) is bytes else write(item) for item in value]
                    for raw in items:
                        size = len(raw)
                        add(tag + (_ONE_BYTE[size] if size < 128 else _varint_bytes(size)))
                        add(raw)
                elif kind == _BYTES:
                    if value or has_presence:
                        add(tag + _varint_bytes(len(value)))
                        add(value)
                elif kind == _FLOATING:
                    if value or has_presence:
                        add(tag + _FLOAT.pack(value))
                elif kind == _INT32S:
                    if value:
                        raw = b"".join([_int_bytes(number, _HALF_32) for number in value])
                        add(tag + _varint_bytes(len(raw)) + raw)
                elif value or has_presence:
                    if 0 <= value < 128:
                        add(tag + _ONE_BYTE[value])
                    else:
                        add(tag + _int_bytes(value, _HALF_64 if kind == _INT64 else _HALF_32))
            return b"".join(parts)
        except KeyError:
            allowed = ", ".join(by_name)
            raise InvalidProtobuf(f"{message} has no field {name!r}; it has: {allowed}") from None
        except (AttributeError, TypeError, ValueError, OverflowError, struct.error) as error:
            raise InvalidProtobuf(f"{message}: {name} cannot be encoded: {error}") from None

    return write_message


def _no_writer(values: Mapping[str, Any]) -> bytes:
    """Refuse to write: the field is no message."""
    raise AssertionError("the field is no message")


def _utf8(text: str) -> bytes:
    """Return the UTF-8 of a text; a lone surrogate becomes ``?``."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace")


def _entry(key: str, value: str) -> bytes:
    """Return the bytes of an entry of a map."""
    key_raw, value_raw = _utf8(key), _utf8(value)
    key_head = b"\x0a" + _varint_bytes(len(key_raw))
    return b"%b%b\x12%b%b" % (key_head, key_raw, _varint_bytes(len(value_raw)), value_raw)


def _varint_bytes(number: int) -> bytes:
    """Return the varint of an unsigned number."""
    if number < 128:
        return _ONE_BYTE[number]
    raw = bytearray()
    while number > 127:
        raw.append(number & 127 | 128)
        number >>= 7
    raw.append(number)
    return bytes(raw)


def _int_bytes(number: int, end: int) -> bytes:
    """Return the varint of a signed number, which must be in ``-end`` to ``end - 1``."""
    if not -end <= number < end:
        raise ValueError(f"{number} is not from {-end} to {end - 1}")
    return _varint_bytes(number & _MASK_64)


# --- well-known messages ----------------------------------------------------------

_ENTRY = MessageTable(
    "an entry of a map", MessageField(1, "key", "string"), MessageField(2, "value", "string")
)
TIMESTAMP = MessageTable(
    "google.protobuf.Timestamp",
    MessageField(1, "seconds", "int64"),
    MessageField(2, "nanos", "int32"),
)
DURATION = MessageTable(
    "google.protobuf.Duration",
    MessageField(1, "seconds", "int64"),
    MessageField(2, "nanos", "int32"),
)


def from_ms(ms: int) -> dict[str, int]:
    """Return a timestamp of ms since 1970, or a duration of ms, which may not be negative."""
    seconds, rest = divmod(ms, 1000)
    return {"seconds": seconds, "nanos": rest * 1_000_000}


def timestamp_ms(value: Mapping[str, int]) -> int:
    """Return a timestamp in ms since 1970.

    Raises:
        InvalidProtobuf: It is outside of the years 1 to 9999, or its nanoseconds are no fraction.
    """
    seconds, nanos = value.get("seconds", 0), value.get("nanos", 0)
    if TIMESTAMP_SECONDS_MIN <= seconds <= TIMESTAMP_SECONDS_MAX and 0 <= nanos < 1_000_000_000:
        return seconds * 1000 + nanos // 1_000_000
    raise InvalidProtobuf(
        f"a timestamp has {seconds} seconds and {nanos} nanoseconds; allowed: "
        f"{TIMESTAMP_SECONDS_MIN} to {TIMESTAMP_SECONDS_MAX} and 0 to 999999999"
    )


def duration_ms(value: Mapping[str, int]) -> int:
    """Return a duration in ms, rounded towards zero.

    Raises:
        InvalidProtobuf: It exceeds 10,000 years, or its nanoseconds are no fraction of its sign.
    """
    seconds, nanos = value.get("seconds", 0), value.get("nanos", 0)
    if abs(seconds) <= SECONDS_MAX and abs(nanos) < 1_000_000_000 and seconds * nanos >= 0:
        rest = abs(nanos) // 1_000_000
        return seconds * 1000 + (rest if nanos > 0 else -rest)
    raise InvalidProtobuf(
        f"a duration has {seconds} seconds and {nanos} nanoseconds; allowed: at most "
        f"{SECONDS_MAX} and 999999999, both of one sign"
    )
