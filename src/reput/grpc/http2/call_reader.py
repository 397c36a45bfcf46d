"""Reads the frames of busy connections with a kernel: a row for each request.

Requests of one read become rows of numbers; a service may answer some of them at once, all together
(``Service.serve_rows``). The others become streams, as if their frames had been read one by one.
What the kernel does not handle is left to ``Http2Connection``, frame by frame, in its place.

A connection that sends many calls has its header table in memory, which the kernel and the decoder
share in turn.
"""

import ctypes
import functools
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reput.format.kernels.library import KernelsUnavailable
from reput.grpc import limits
from reput.grpc.http2 import huffman
from reput.grpc.http2.hpack import STATIC, Decoder, Field
from reput.grpc.kernels import call_words as words, native

ROWS_MAX = 128
FIELDS_BYTES = 256 << 10
OUT_BYTES = 256 << 10
FRAMES_BYTES = 512 << 10
_OPEN_MAX = 64
_SIZES = struct.Struct("=ii")

Row = list[int]
"""A request: words as in ``call_words``."""


def address_of(array: npt.NDArray[Any]) -> int:
    """Return the address of an array's bytes."""
    return int(array.__array_interface__["data"][0])


class HeaderTable:
    """The header table of a connection, in memory."""

    def __init__(self) -> None:
        self._memory = np.zeros(words.TABLE_BYTES // 8, np.int64)
        self._words = self._memory.data
        self._data = self._memory.data.cast("B")[8 * words.TABLE_WORDS :]
        self.address = address_of(self._memory)

    def take(self, decoder: Decoder) -> None:
        """Take the entries of a decoder."""
        table = self._words
        table[words.T_BYTES_MAX], table[words.T_ALLOWED_BYTES] = decoder.sizes
        entries = decoder.entries
        position = size = 0
        for number, (name, value) in enumerate(reversed(entries)):
            end = position + len(name) + len(value)
            self._data[position:end] = name + value
            slot = position << 32 | len(name) << 16 | len(value)
            table[words.T_SLOTS + number % words.SLOTS] = slot
            position = end
            size += len(name) + len(value) + words.ENTRY_BYTES
        table[words.T_INSERTED] = table[words.T_COUNT] = len(entries)
        table[words.T_BYTES] = size
        table[words.T_END] = position

    def give(self, decoder: Decoder) -> None:
        """Give the entries to a decoder."""
        table = self._words
        entries: list[Field] = []
        inserted = table[words.T_INSERTED]
        for number in range(table[words.T_COUNT]):
            slot = table[words.T_SLOTS + (inserted - 1 - number) % words.SLOTS]
            begin = slot >> 32
            middle = begin + (slot >> 16 & 0xFFFF)
            end = middle + (slot & 0xFFFF)
            entries.append((bytes(self._data[begin:middle]), bytes(self._data[middle:end])))
        decoder.restore(entries, table[words.T_BYTES_MAX])


@functools.cache
def _static_table() -> npt.NDArray[np.uint8]:
    slots, data = [0], bytearray()
    for name, value in STATIC:
        slots.append(len(data) << 32 | len(name) << 16 | len(value))
        data += name + value
    data += bytes(words.SLACK)
    return np.frombuffer(np.array(slots, np.int64).tobytes() + data, np.uint8)


@functools.cache
def _huffman_tables() -> npt.NDArray[np.int64]:
    tables = np.zeros(words.HUFFMAN_WORDS, np.int64)
    code, last_length = 0, 0
    for place, (length, symbol) in enumerate(huffman.lengths()):
        code <<= length - last_length
        last_length = length
        if not tables[words.COUNTS + length]:
            tables[words.FIRST_CODES + length] = code
            tables[words.FIRST_SYMBOLS + length] = place
        tables[words.COUNTS + length] += 1
        tables[words.SYMBOLS + place] = symbol
        if length <= words.SHORT_BITS:
            missing = words.SHORT_BITS - length
            first = words.SHORT_CODES + (code << missing)
            tables[first : first + (1 << missing)] = symbol << 8 | length
        code += 1
    return tables


class CallReader:
    """The kernels of a server, and the memory that they use. One call of a kernel is one pass.

    Args:
        buffer: The buffer that connections are read into, with ``call_words.SLACK`` bytes more
            than they use; it must not move.
        paths: Paths of the methods that may be answered at once; rows have their numbers, from 1.

    Raises:
        KernelsUnavailable: There are no compiled kernels.
    """

    def __init__(self, buffer: bytearray, paths: tuple[bytes, ...]) -> None:
        self.buffer = buffer
        self._read = kernel("read_calls", 1)
        self._memory = np.zeros(words.WORDS, np.int64)
        self.block = self._memory.data
        """The words of the kernels."""
        self.argument = ctypes.c_int64(address_of(self._memory))
        self._rows = np.zeros(words.ROW_WORDS * ROWS_MAX, np.int64)
        self.row_words = self._rows.data
        self._fields = np.zeros(FIELDS_BYTES + words.SLACK, np.uint8)
        self._field_bytes = self._fields.data
        self._out = np.zeros(OUT_BYTES + words.SLACK, np.uint8)
        self._frames = np.zeros(FRAMES_BYTES + words.SLACK, np.uint8)
        self._open = np.zeros(_OPEN_MAX, np.int64)
        self._open_words = self._open.data
        self._paths = [np.frombuffer(path, np.uint8) for path in paths]
        places = [word for path in self._paths for word in (address_of(path), len(path))]
        self._places = np.array(places or [0], np.int64)
        block = self.block
        block[words.BUFFER] = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        block[words.ROWS] = address_of(self._rows)
        block[words.ROW_MAX] = ROWS_MAX
        block[words.FIELDS] = address_of(self._fields)
        block[words.FIELDS_ROOM] = FIELDS_BYTES
        block[words.OUT] = address_of(self._out)
        block[words.OUT_ROOM] = OUT_BYTES
        block[words.FRAMES] = address_of(self._frames)
        block[words.FRAMES_ROOM] = FRAMES_BYTES
        block[words.STATIC] = address_of(_static_table())
        block[words.HUFFMAN] = address_of(_huffman_tables())
        block[words.OPEN_STREAMS] = address_of(self._open)
        block[words.PATHS] = address_of(self._places)
        block[words.PATH_COUNT] = len(paths)
        block[words.CONTROL_FRAMES_MAX] = limits.HTTP2_CONTROL_FRAMES.maximum
        block[words.EMPTY_FRAMES_MAX] = limits.HTTP2_EMPTY_FRAMES.maximum

    def takes(self, view: memoryview, stream_count: int) -> bool:
        """Return whether the kernel may read from a view, with a number of open streams."""
        return view.obj is self.buffer and stream_count <= _OPEN_MAX

    def read(
        self, streams: Mapping[int, object], table: HeaderTable, position: int, end: int
    ) -> int:
        """Read frames from a position of the buffer; return the number of rows.

        The words of the block have all else: POSITION, HAS_OTHER, and what belongs to the
        connection. ``frames`` are the answers to PINGs and such.
        """
        block = self.block
        block[words.POSITION] = position
        block[words.END] = end
        block[words.TABLE] = table.address
        block[words.OPEN_COUNT] = len(streams)
        for number, stream_id in enumerate(streams):
            self._open_words[number] = stream_id
        block[words.STREAMS_LEFT] = limits.HTTP2_STREAMS.maximum - len(streams)
        count: int = self._read(self.argument)
        return count

    def out(self) -> bytes:
        """Return the frames that the latest kernel has written."""
        size = self.block[words.OUT_SIZE]
        return ctypes.string_at(self.block[words.OUT], size) if size else b""

    def frames(self) -> bytes:
        """Return the requests to the broker that a kernel has written."""
        return ctypes.string_at(self.block[words.FRAMES], self.block[words.FRAMES_SIZE])

    def rows(self, count: int) -> list[Row]:
        """Return the first rows."""
        width = words.ROW_WORDS
        values = self.row_words[: width * count].tolist()
        return [values[start : start + width] for start in range(0, width * count, width)]

    def fields(self, row: Row) -> list[Field]:
        """Return the header fields of a row."""
        data = self._field_bytes
        position, end = row[words.ROW_FIELDS], row[words.ROW_FIELDS_END]
        fields = []
        while position < end:
            name_size, value_size = _SIZES.unpack_from(data, position)
            begin = position + _SIZES.size
            middle = begin + name_size
            position = middle + value_size
            fields.append((bytes(data[begin:middle]), bytes(data[middle:position])))
        return fields


def kernel(name: str, arguments: int) -> Any:
    """Return a kernel. Raises ``KernelsUnavailable``."""
    return native.plain_function(name, [ctypes.c_int64] * arguments, is_short=True)


def has_kernels() -> bool:
    """Return whether there are compiled kernels."""
    try:
        native.engine()
    except KernelsUnavailable:
        return False
    return True
