"""Header blocks: the decoder of requests and the encoder of replies. Pure. Source: RFC 7541.

    block    field, field, ...
    field    1xxxxxxx  index of an entry: name and value
             01xxxxxx  index of a name, or 0 and the name; value; becomes an entry
             0000xxxx  the same, not an entry; 0001xxxx: nor of any other connection on the way
             001xxxxx  new size of the table; only before the first field
    string   1 bit Huffman or not, length, bytes
    entries  1 to 61 static, from 62 dynamic: the newest first

A decoder must execute each block, in order, also of requests that are refused: blocks change the
table. A string that is not indexed here is not kept.
"""

from collections.abc import Iterable

from reput.errors import Http2Error
from reput.grpc.http2 import huffman
from reput.grpc.http2.frames import ErrorCode

Field = tuple[bytes, bytes]
"""A name and a value."""

TABLE_BYTES = 4096
"""Size of a dynamic table unless settings change it, in bytes."""
ENTRY_BYTES = 32
"""Bytes that an entry takes besides its name and value."""
_INTEGER_BYTES_MAX = 4
"""Bytes of an integer after its first; 28 bits are more than any length or index."""

STATIC: tuple[Field, ...] = (
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    *(
        (name, b"")
        for name in (
            *(b"accept-language", b"accept-ranges", b"accept", b"access-control-allow-origin"),
            *(b"age", b"allow", b"authorization", b"cache-control", b"content-disposition"),
            *(b"content-encoding", b"content-language", b"content-length", b"content-location"),
            *(b"content-range", b"content-type", b"cookie", b"date", b"etag", b"expect"),
            *(b"expires", b"from", b"host", b"if-match", b"if-modified-since", b"if-none-match"),
            *(b"if-range", b"if-unmodified-since", b"last-modified", b"link", b"location"),
            *(b"max-forwards", b"proxy-authenticate", b"proxy-authorization", b"range"),
            *(b"referer", b"refresh", b"retry-after", b"server", b"set-cookie"),
            *(b"strict-transport-security", b"transfer-encoding", b"user-agent", b"vary", b"via"),
            b"www-authenticate",
        )
    ),
)
"""Entries 1 to 61."""

_FIRST_DYNAMIC = len(STATIC) + 1
_NO_ENTRY: Field = (b"", b"")
_STATIC_BY_INDEX = (_NO_ENTRY, *STATIC)
_SHARED_MAX = 1024
_SHARED_BYTES_MAX = 64
_shared: dict[bytes, bytes] = {}
"""Short texts of entries: thousands of connections of one SDK have the same ones."""
_ALIKE = frozenset(
    (
        *(b":path", b"content-type", b"te", b"user-agent", b"grpc-accept-encoding"),
        *(b"accept-encoding", b"x-mq-language", b"x-mq-client-version", b"x-mq-protocol"),
    )
)
"""Names of headers whose values are the same in many calls, unlike dates and ids."""


def _wrong(reason: str) -> Http2Error:
    return Http2Error(ErrorCode.COMPRESSION_ERROR, f"header block: {reason}")


class Decoder:
    """The decoder of a connection.

    Args:
        table_bytes_max: Largest table that the peer may ask for, in bytes.
    """

    def __init__(self, table_bytes_max: int = TABLE_BYTES) -> None:
        self._entries: list[Field] = []  # dynamic ones, the newest first
        self._bytes = 0
        self._bytes_max = self._allowed_bytes = table_bytes_max

    @property
    def entries(self) -> list[Field]:
        """Dynamic entries, the newest first."""
        return self._entries

    @property
    def sizes(self) -> tuple[int, int]:
        """Present and allowed maximum of the table, in bytes."""
        return self._bytes_max, self._allowed_bytes

    def restore(self, entries: Iterable[Field], bytes_max: int) -> None:
        """Replace the dynamic entries, the newest first, and the maximum."""
        self._entries = list(entries)
        self._bytes = sum(len(name) + len(value) + ENTRY_BYTES for name, value in self._entries)
        self._bytes_max = bytes_max

    def decode(self, block: bytes) -> list[Field]:
        """Decode the fields of a block, in order.

        Raises:
            Http2Error: The block is damaged; no further block can be decoded.
        """
        entries = self._entries
        fields: list[Field] = []
        position, end = 0, len(block)
        try:
            while position < end:
                byte = block[position]
                position += 1
                if byte >= 0x80:
                    index = byte & 0x7F
                    if index == 0x7F:
                        index, position = _integer(block, position, 0x7F)
                    if not index:
                        raise _wrong("index 0")
                    fields.append(
                        _STATIC_BY_INDEX[index]
                        if index < _FIRST_DYNAMIC
                        else entries[index - _FIRST_DYNAMIC]
                    )
                    continue
                if byte >= 0x40:
                    index, prefix = byte & 0x3F, 0x3F
                elif byte >= 0x20:
                    position = self._resize(block, position, byte & 0x1F, is_first=not fields)
                    continue
                else:
                    index, prefix = byte & 0x0F, 0x0F
                if index == prefix:
                    index, position = _integer(block, position, prefix)
                if index:
                    name = (
                        _STATIC_BY_INDEX[index][0]
                        if index < _FIRST_DYNAMIC
                        else entries[index - _FIRST_DYNAMIC][0]
                    )
                else:
                    size = block[position]
                    if size < 0x7F:  # most strings: not Huffman, and short
                        position += 1 + size
                        name = block[position - size : position]
                    else:
                        name, position = _string(block, position)
                size = block[position]
                if size < 0x7F:
                    position += 1 + size
                    value = block[position - size : position]
                else:
                    value, position = _string(block, position)
                if position > end:
                    raise _wrong("it ends inside of a string")
                field = name, value
                if byte >= 0x40:
                    name = _share(name)
                    field = name, _share(value) if name in _ALIKE else value
                    self._insert(field)
                fields.append(field)
        except IndexError:
            raise _wrong("it ends inside of a field, or an index has no entry") from None
        return fields

    def _resize(self, block: bytes, position: int, size: int, *, is_first: bool) -> int:
        if size == 0x1F:
            size, position = _integer(block, position, 0x1F)
        if not is_first:
            raise _wrong("the size of the table changes after a field")
        if size > self._allowed_bytes:
            raise _wrong(f"a table of {size} bytes; allowed: {self._allowed_bytes}")
        self._bytes_max = size
        self._evict(size)
        return position

    def _insert(self, entry: Field) -> None:
        size = len(entry[0]) + len(entry[1]) + ENTRY_BYTES
        if self._bytes + size > self._bytes_max:
            # An entry that is larger than the table empties it.
            self._evict(self._bytes_max - size)
            if size > self._bytes_max:
                return
        self._entries.insert(0, entry)
        self._bytes += size

    def _evict(self, bytes_max: int) -> None:
        """Remove the oldest entries until the rest takes at most ``bytes_max``."""
        entries = self._entries
        while self._bytes > bytes_max and entries:
            name, value = entries.pop()
            self._bytes -= len(name) + len(value) + ENTRY_BYTES


def _share(text: bytes) -> bytes:
    """Return an equal text that other tables have as well, if there is one."""
    known = _shared.get(text)
    if known is not None:
        return known
    if len(_shared) < _SHARED_MAX and len(text) <= _SHARED_BYTES_MAX:
        _shared[text] = text
    return text


def _integer(block: bytes, position: int, value: int) -> tuple[int, int]:
    """Decode an integer after its first byte; return it and its end. Raises IndexError."""
    for shift in range(0, 7 * _INTEGER_BYTES_MAX, 7):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise _wrong("an integer has more than 28 bits")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    """Decode a string; return it and its end, which may be after the block. Raises IndexError."""
    byte = block[position]
    size = byte & 0x7F
    position += 1
    if size == 0x7F:
        size, position = _integer(block, position, 0x7F)
    end = position + size
    if end > len(block):
        raise _wrong("it ends inside of a string")
    text = block[position:end]
    return (huffman.decode(text) if byte >= 0x80 else text), end


# --- replies ------------------------------------------------------------------------------------

_INDEX_OF_FIELD = {field: index for index, field in reversed(list(enumerate(STATIC, 1)))}
_INDEX_OF_NAME = {name: index for index, (name, _) in reversed(list(enumerate(STATIC, 1)))}


def encode_integer(value: int, first: int, prefix: int) -> bytes:
    """Encode an integer whose first byte has other bits ``first`` and a mask ``prefix``."""
    if value < prefix:
        return bytes((first | value,))
    encoded = bytearray((first | prefix,))
    value -= prefix
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _encode_string(text: bytes) -> bytes:
    return encode_integer(len(text), 0, 0x7F) + text


def _encode_literal(field: Field, first: int, prefix: int) -> bytes:
    name, value = field
    index = _INDEX_OF_NAME.get(name, 0)
    encoded = encode_integer(index, first, prefix)
    return encoded + (b"" if index else _encode_string(name)) + _encode_string(value)


class Encoder:
    """The encoder of a connection.

    Recurring fields become entries of the peer's table, if there is room for them; they are never
    evicted. Other fields are literals. Strings are not compressed.

    Args:
        recurring: Fields that most replies have.
    """

    def __init__(self, recurring: Iterable[Field] = ()) -> None:
        self._recurring = frozenset(recurring)  # itself if it is one
        self._numbers: dict[Field, int] = {}  # of entries, in the order of their insertion
        self._bytes = 0
        self._bytes_max = TABLE_BYTES
        self._blocks: dict[tuple[Field, ...], bytes] = {}
        self._smallest: int | None = None  # size since the last block

    def resize(self, table_bytes: int) -> None:
        """Take the size of the table that the peer allows, in bytes."""
        size = min(table_bytes, TABLE_BYTES)
        if size == self._bytes_max:
            return
        smallest = size if self._smallest is None else min(size, self._smallest)
        if size < self._bytes:
            self._numbers, self._bytes, smallest = {}, 0, 0
        self._bytes_max, self._smallest = size, smallest
        self._blocks = {}

    def encode(self, fields: tuple[Field, ...]) -> bytes:
        """Encode a block, which must be sent before the next one."""
        block = self._blocks.get(fields)
        if block is not None:
            return block
        inserted = len(self._numbers)
        updates = self._updates()
        block = b"".join(map(self._encode_field, fields))
        if len(self._numbers) != inserted:
            self._blocks = {}  # the indices of all entries have changed
        elif self._recurring.issuperset(fields):
            self._blocks[fields] = block
        return updates + block

    def known(self, fields: tuple[Field, ...]) -> bytes | None:
        """Return the block of recurring fields if it changes no table; else None."""
        return self._blocks.get(fields)

    def _encode_field(self, field: Field) -> bytes:
        index = _INDEX_OF_FIELD.get(field)
        if index is None:
            if field not in self._recurring:
                return _encode_literal(field, 0, 0x0F)
            number = self._numbers.get(field)
            if number is None:
                size = len(field[0]) + len(field[1]) + ENTRY_BYTES
                if self._bytes + size > self._bytes_max:
                    return _encode_literal(field, 0, 0x0F)
                self._bytes += size
                self._numbers[field] = len(self._numbers)
                return _encode_literal(field, 0x40, 0x3F)
            index = _FIRST_DYNAMIC + len(self._numbers) - 1 - number
        return encode_integer(index, 0x80, 0x7F)

    def _updates(self) -> bytes:
        """Return the new sizes of the table, for the next block: the smallest and the last one."""
        smallest, self._smallest = self._smallest, None
        if smallest is None:
            return b""
        sizes = (smallest,) if smallest == self._bytes_max else (smallest, self._bytes_max)
        return b"".join(encode_integer(size, 0x20, 0x1F) for size in sizes)
