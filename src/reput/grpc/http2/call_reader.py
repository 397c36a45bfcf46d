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

from reput.format.kernels.rows import rows_of, size_of, start_of
from reput.grpc import limits
from reput.grpc.http2 import huffman
from reput.grpc.http2.hpack import STATIC, Decoder, Field
from reput.grpc.kernels import call_words as words, native
from reput.grpc.kernels.call_words import CallRow, Calls, HeaderWords, HuffmanWords, Text

ROWS_MAX = 128
FIELDS_BYTES = 256 << 10
OUT_BYTES = 256 << 10
FRAMES_BYTES = 512 << 10
_OPEN_MAX = 64
_SIZES = struct.Struct("=ii")


def address_of(array: npt.NDArray[Any]) -> int:
    """Return the address of an array's bytes."""
    return int(array.__array_interface__["data"][0])


class HeaderTable:
    """The header table of a connection, in memory."""

    def __init__(self) -> None:
        self._memory = bytearray(words.TABLE_BYTES)
        self._words = HeaderWords.from_buffer(self._memory)
        self._data = memoryview(self._memory)[size_of(HeaderWords) :]
        self.address = self._words.address

    def take(self, decoder: Decoder) -> None:
        """Take the entries of a decoder."""
        table = self._words
        table.size_max, table.allowed_size = decoder.sizes
        entries = decoder.entries
        position = size = 0
        for number, (name, value) in enumerate(reversed(entries)):
            end = position + len(name) + len(value)
            self._data[position:end] = name + value
            slot = position << 32 | len(name) << 16 | len(value)
            table.slots[number % words.SLOTS] = slot
            position = end
            size += len(name) + len(value) + words.ENTRY_BYTES
        table.inserted = table.count = len(entries)
        table.size = size
        table.end = position

    def give(self, decoder: Decoder) -> None:
        """Give the entries to a decoder."""
        table = self._words
        entries: list[Field] = []
        inserted = table.inserted
        for number in range(table.count):
            slot = table.slots[(inserted - 1 - number) % words.SLOTS]
            begin = slot >> 32
            middle = begin + (slot >> 16 & 0xFFFF)
            end = middle + (slot & 0xFFFF)
            entries.append((bytes(self._data[begin:middle]), bytes(self._data[middle:end])))
        decoder.restore(entries, table.size_max)


@functools.cache
def _static_table() -> npt.NDArray[np.uint8]:
    slots, data = [0], bytearray()
    for name, value in STATIC:
        slots.append(len(data) << 32 | len(name) << 16 | len(value))
        data += name + value
    data += bytes(words.SLACK)
    return np.frombuffer(np.array(slots, np.int64).tobytes() + data, np.uint8)


@functools.cache
def _huffman_tables() -> HuffmanWords:
    tables = HuffmanWords()
    code, last_length = 0, 0
    for place, (length, symbol) in enumerate(huffman.lengths()):
        code <<= length - last_length
        last_length = length
        if not tables.counts[length]:
            tables.first_codes[length] = code
            tables.first_symbols[length] = place
        tables.counts[length] += 1
        tables.symbols[place] = symbol
        if length <= words.SHORT_BITS:
            missing = words.SHORT_BITS - length
            for short_code in range(code << missing, code + 1 << missing):
                tables.short_codes[short_code] = symbol << 8 | length
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
        self.block = Calls()
        """The words of the kernels."""
        self.argument = ctypes.c_int64(self.block.address)
        self._rows = rows_of(CallRow, ROWS_MAX)
        self._fields = np.zeros(FIELDS_BYTES + words.SLACK, np.uint8)
        self._field_bytes = self._fields.data
        self._out = np.zeros(OUT_BYTES + words.SLACK, np.uint8)
        self._frames = np.zeros(FRAMES_BYTES + words.SLACK, np.uint8)
        self._open = np.zeros(_OPEN_MAX, np.int64)
        self._open_words = self._open.data
        self._paths = [np.frombuffer(path, np.uint8) for path in paths]
        self._places = rows_of(Text, len(paths))
        for place, path in zip(self._places, self._paths, strict=True):
            place.start, place.size = address_of(path), len(path)
        block = self.block
        block.buffer = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        block.rows = start_of(self._rows)
        block.row_max = ROWS_MAX
        block.fields = address_of(self._fields)
        block.fields_room = FIELDS_BYTES
        block.out = address_of(self._out)
        block.out_room = OUT_BYTES
        block.frames = address_of(self._frames)
        block.frames_room = FRAMES_BYTES
        block.static = address_of(_static_table())
        block.huffman = _huffman_tables().address
        block.open_streams = address_of(self._open)
        block.paths = start_of(self._places)
        block.path_count = len(paths)
        block.control_frames_max = limits.HTTP2_CONTROL_FRAMES.maximum
        block.empty_frames_max = limits.HTTP2_EMPTY_FRAMES.maximum

    def takes(self, view: memoryview, stream_count: int) -> bool:
        """Return whether the kernel may read from a view, with a number of open streams."""
        return view.obj is self.buffer and stream_count <= _OPEN_MAX

    def read(
        self, streams: Mapping[int, object], table: HeaderTable, position: int, end: int
    ) -> int:
        """Read frames from a position of the buffer; return the number of rows.

        The block has all else: ``position``, ``has_other``, and what belongs to the connection.
        ``out`` are the answers to PINGs and such.
        """
        block = self.block
        block.position = position
        block.end = end
        block.table = table.address
        block.open_count = len(streams)
        for number, stream_id in enumerate(streams):
            self._open_words[number] = stream_id
        block.streams_left = limits.HTTP2_STREAMS.maximum - len(streams)
        count: int = self._read(self.argument)
        return count

    def out(self) -> bytes:
        """Return the frames that the latest kernel has written."""
        size = self.block.out_size
        return ctypes.string_at(self.block.out, size) if size else b""

    def frames(self) -> bytes:
        """Return the requests to the broker that a kernel has written."""
        return ctypes.string_at(self.block.frames, self.block.frames_size)

    def rows(self, count: int) -> list[CallRow]:
        """Return copies of the first rows."""
        size = size_of(CallRow)
        return [CallRow.from_buffer_copy(self._rows, size * number) for number in range(count)]

    def fields(self, row: CallRow) -> list[Field]:
        """Return the header fields of a row."""
        data = self._field_bytes
        position, end = row.fields, row.fields_end
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
