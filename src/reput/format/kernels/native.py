"""The compiled kernels of this package with arrays as arguments and results.

Calls release the GIL, so ranges of a log can be scanned in as many threads as there are cores.
"""

import ctypes
import functools
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord
from reput.format import batch, body as bodies, java, message as record, sys_flag as flags
from reput.format.kernels.layout import (
    HOST_TEXT_MAX,
    LOCATED,
    OFFSET_ID_MAX,
    PAIR_BYTES_MIN,
    WORD_BYTES_MIN,
    Buffer,
    IntArray,
    Pairs,
    Runs,
    Segments,
    Words,
)
from reput.format.kernels.library import KernelsUnavailable, Library, made_once

__all__ = [
    "Columns",
    "KernelsUnavailable",
    "checksum",
    "crc_tables",
    "data_end",
    "engine",
    "find_record",
    "has_sha",
    "judge",
    "plain_function",
    "scan",
]

_HEX_PAIRS = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)
"""Two hexadecimal letters of each byte."""
_HOST_BYTES = np.array([4 + record.PORT.size, 16 + record.PORT.size], np.int32)
"""Sizes of stored hosts, IPv4 and IPv6, in bytes."""

_library = Library("reput.format.kernels")
engine = _library.engine
plain_function = _library.function


@functools.cache
def _function(name: str) -> Callable[..., int]:
    return _library.function(name)


def _call(name: str, *arguments: int) -> int:
    return _function(name)(*map(ctypes.c_int64, arguments))


@made_once
def crc_tables() -> npt.NDArray[np.uint32]:
    """Return 16 tables of 256 words, and a word: whether this processor can fold (``crc_fold``).

    Row k, byte b is the CRC of b followed by k zero bytes.
    """
    words = np.zeros(16 * 256 + 1, np.uint32)
    words[-1] = _has_instruction("pclmulqdq")
    tables = words[:-1].reshape(16, 256)
    # zlib inverts before and after; undo that to get the plain remainder
    for byte in range(256):
        tables[0, byte] = zlib.crc32(bytes([byte])) ^ zlib.crc32(b"\0")
    for row in range(1, 16):
        last = tables[row - 1]
        tables[row] = (last >> 8) ^ tables[0][last & 255]
    return words


def _has_instruction(name: str) -> bool:
    """Return whether the processor has an instruction set, as far as the system reports."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return os.uname().machine == "x86_64" and f" {name} " in flags


def has_sha() -> bool:
    """Return whether the processor has instructions for SHA-1 (``sha1_blocks``)."""
    return _has_instruction("sha_ni")


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _as_bytes(buffer: Buffer) -> npt.NDArray[np.uint8]:
    return np.frombuffer(buffer, np.uint8)


def scan(
    buffer: Buffer,
    start: int,
    stop: int,
    *,
    physical_offset: int,
    file_end: int | None = None,
    check_crc: bool = True,
    room: int = 1 << 16,
) -> Segments:
    """Scan the records that start in ``[start, stop)`` of a log buffer. See ``reference.scan``."""
    data = _as_bytes(buffer)
    positions = np.empty(room, np.int64)
    sizes = np.empty(room, np.int32)
    verdicts = np.empty(room, np.uint8)
    next_position = np.zeros(1, np.int64)
    count = _call(
        "scan",
        _address(data),
        start,
        min(stop, len(data)),
        len(data),
        len(data) if file_end is None else file_end,
        physical_offset,
        int(check_crc),
        _address(crc_tables()),
        _address(positions),
        _address(sizes),
        _address(verdicts),
        room,
        _address(next_position),
    )
    return Segments(positions[:count], sizes[:count], verdicts[:count], int(next_position[0]))


def judge(
    buffer: Buffer,
    positions: IntArray,
    *,
    physical_offset: int,
    file_end: int | None = None,
    check_crc: bool = True,
) -> Segments:
    """Judge the records at given positions. See ``reference.judge``."""
    data = _as_bytes(buffer)
    positions = np.ascontiguousarray(positions, np.int64)
    sizes = np.empty(len(positions), np.int32)
    verdicts = np.empty(len(positions), np.uint8)
    _call(
        "judge",
        _address(data),
        len(data),
        len(data) if file_end is None else file_end,
        physical_offset,
        int(check_crc),
        _address(crc_tables()),
        _address(positions),
        len(positions),
        _address(sizes),
        _address(verdicts),
    )
    return Segments(positions, sizes, verdicts, len(data))


def find_record(
    buffer: Buffer, position: int, *, physical_offset: int, file_end: int | None = None
) -> int:
    """Return the position of the next framed record or blank, or the buffer's length."""
    data = _as_bytes(buffer)
    end = len(data) if file_end is None else file_end
    return _call("find_record", _address(data), position, len(data), end, physical_offset)


def data_end(buffer: Buffer, start: int = 0) -> int:
    """Return the position after the last byte that is not zero, ``start`` if there is none."""
    data = _as_bytes(buffer)
    return _call("data_end", _address(data), start, len(data))


def checksum(data: Buffer) -> int:
    """Return the BODYCRC of ``data``."""
    array = _as_bytes(data)
    return _call("checksum", _address(crc_tables()), _address(array), len(array))


class _Texts:
    """Addresses and sizes of runs of bytes in memory that the caller keeps alive."""

    def __init__(self, addresses: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]) -> None:
        self.addresses = addresses
        self.sizes = sizes

    @classmethod
    def empty(cls, count: int) -> "_Texts":
        return cls(np.empty(count, np.int64), np.empty(count, np.int32))

    def take(self, rows: IntArray) -> "_Texts":
        return _Texts(self.addresses[rows], self.sizes[rows])

    def arguments(self) -> tuple[int, int]:
        return _address(self.addresses), _address(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def first(self, count: int) -> "_Texts":
        return _Texts(self.addresses[:count], self.sizes[:count])

    def gather(self, present: npt.NDArray[np.bool_] | None = None) -> Runs:
        offsets = np.empty(len(self) + 1, np.int32)
        total = int(self.sizes.sum(dtype=np.int64))
        if total > np.iinfo(np.int32).max:
            raise OverflowError(f"{total} bytes in one column of a batch; take fewer records")
        data = np.empty(total, np.uint8)
        _call("gather", *self.arguments(), len(self), _address(offsets), _address(data))
        return Runs(offsets, data, present)

    def numbered(self) -> tuple[npt.NDArray[np.int32], IntArray]:
        """Return a number per run, equal for equal bytes, and the first row of each number."""
        slot_count = 1 << max(4, (2 * len(self)).bit_length())
        slots = np.full(slot_count, -1, np.int32)
        firsts = np.empty(len(self), np.int64)
        ids = np.empty(len(self), np.int32)
        known = _call(
            "intern",
            *self.arguments(),
            len(self),
            _address(slots),
            slot_count,
            _address(firsts),
            0,
            _address(ids),
        )
        return ids, firsts[:known]

    def hashes(self) -> npt.NDArray[np.int64]:
        hashes = np.empty(len(self), np.int64)
        _call("text_hashes", *self.arguments(), len(self), _address(hashes))
        return hashes


class Columns:
    """Records of a buffer as columns. For the methods see ``reference.Columns``."""

    def __init__(self, buffer: Buffer, positions: IntArray) -> None:
        self._buffer = _as_bytes(buffer)
        self._kept: list[Any] = []  # bytes that addresses point into, besides the buffer
        positions = np.ascontiguousarray(positions, np.int64)
        self.count = len(positions)
        self._located = {name: np.empty(self.count, kind) for name, kind in LOCATED}
        table = np.array([_address(column) for column in self._located.values()], np.int64)
        _call("locate", _address(self._buffer), _address(positions), self.count, _address(table))
        self._records = positions + _address(self._buffer)
        self._repair_texts()
        self._pairs: _PropertyPairs | None = None

    def _repair_texts(self) -> None:
        """Replace texts that are not UTF-8 by what Java would read."""
        for row in np.flatnonzero(self._located["text_is_utf8"] == 0):
            for name in ("topic", "properties"):
                text = java.decode_utf8(self._bytes_at(name, row))
                self._replace(name, row, text.encode())

    def _bytes_at(self, name: str, row: Any) -> bytes:
        address = int(self._located[name][row])
        return ctypes.string_at(address, int(self._located[f"{name}_size"][row]))

    def _replace(self, name: str, row: Any, data: bytes) -> None:
        kept = np.frombuffer(data or b"\0", np.uint8)
        self._kept.append(kept)
        self._located[name][row] = _address(kept)
        self._located[f"{name}_size"][row] = len(data)

    def take(self, rows: npt.NDArray[Any]) -> "Columns":
        """Return the columns of some rows (indices or mask)."""
        part = object.__new__(Columns)
        part._buffer = self._buffer
        part._kept = self._kept
        part._located = {name: column[rows] for name, column in self._located.items()}
        part._records = self._records[rows]
        part._pairs = None
        part.count = len(part._records)
        return part

    def unwrapped(self) -> "Columns":
        """Return the columns of the messages inside of batch records."""
        outer_rows = np.flatnonzero(self._located["sys_flag"] & flags.INNER_BATCH)
        if not len(outer_rows):
            return self
        kept = list(self._kept)
        counts = np.ones(self.count, np.int64)
        is_batch = np.zeros(self.count, np.bool_)
        places = [np.empty((0, len(batch.Place._fields)), np.int64)]
        for row in outer_rows:
            sys_flag, address = (int(self._located[name][row]) for name in ("sys_flag", "body"))
            try:
                body = bodies.decompress(self._bytes_at("body", row), sys_flag)
                inner = batch.places(body)
            except CorruptRecord:
                continue
            is_batch[row], counts[row] = True, len(inner)
            if sys_flag & flags.COMPRESSED:
                kept.append(np.frombuffer(body or b"\0", np.uint8))
                address = _address(kept[-1])
            shifts = [0, address, 0, address, address]
            places.append(np.array(inner, np.int64).reshape(-1, len(shifts)) + shifts)
        part = self.take(np.repeat(np.arange(self.count), counts))
        part._kept = kept
        outer = self.take(is_batch)
        part._put_inside(np.repeat(is_batch, counts), outer, counts[is_batch], places)
        return part

    def _put_inside(
        self,
        inside: npt.NDArray[np.bool_],
        outer: "Columns",
        counts: IntArray,
        places: list[IntArray],
    ) -> None:
        """Give the rows of batch records the values of the messages inside.

        Args:
            inside: Mask of these rows.
            outer: The batch records.
            counts: Number of messages inside of each.
            places: Flags, addresses and sizes of the messages: rows of ``batch.Place``.
        """
        located = self._located
        flag, body, body_size, properties, end = np.concatenate(places).T
        for name, values in (
            ("flag", flag),
            ("body", body),
            ("body_size", body_size),
            ("properties", properties),
            ("properties_size", end - properties),
        ):
            located[name][inside] = values
        located["sys_flag"][inside] &= ~batch.OUTER_FLAGS
        firsts = np.repeat(np.cumsum(counts) - counts, counts)
        located["queue_offset"][inside] += np.arange(len(firsts)) - firsts
        unique = outer._parsed().unique
        for name, kind, of_outer in (
            ("batch_unique", np.int64, unique.addresses),
            ("batch_unique_size", np.int32, unique.sizes),
        ):
            located.setdefault(name, np.zeros(self.count, kind))[inside] = np.repeat(
                of_outer, counts
            )
        for row in np.flatnonzero(inside):
            text = self._bytes_at("properties", row)
            repaired = java.decode_utf8(text).encode()
            if repaired != text:
                self._replace("properties", row, repaired)

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """Return a fixed-width column."""
        return self._located[name]

    def _texts(self, name: str) -> _Texts:
        return _Texts(self._located[name], self._located[f"{name}_size"])

    def topics(self) -> Runs:
        """Return the topics."""
        return self._texts("topic").gather()

    def topic_ids(self) -> tuple[npt.NDArray[np.int32], list[str]]:
        """Return a number per row, and the topic of each number."""
        ids, firsts = self._texts("topic").numbered()
        return ids, [self._bytes_at("topic", row).decode() for row in firsts]

    def bodies(self, *, decompress: bool = True) -> tuple[Runs, dict[int, str]]:
        """Return the bodies, and by row the errors of bodies that could not be decompressed."""
        failures: dict[int, str] = {}
        if not decompress:
            return self._texts("body").gather(), failures
        packed = np.flatnonzero(self._located["sys_flag"] & flags.COMPRESSED)
        if not len(packed):
            return self._texts("body").gather(), failures
        part = self.take(np.arange(self.count))
        part._kept = list(self._kept)
        for row in packed:
            try:
                plain = bodies.decompress(
                    self._bytes_at("body", row), int(self._located["sys_flag"][row])
                )
            except CorruptRecord as error:
                failures[int(row)] = error.reason
            else:
                part._replace("body", row, plain)
        return part._texts("body").gather(), failures

    def raw_properties(self) -> Runs:
        """Return the property strings as stored."""
        return self._texts("properties").gather()

    def _parsed(self) -> "_PropertyPairs":
        if self._pairs is None:
            self._pairs = _PropertyPairs(self._texts("properties"))
        return self._pairs

    def properties(self) -> Pairs:
        """Return the names and values of the properties."""
        parsed = self._parsed()
        return Pairs(parsed.offsets, parsed.names.gather(), parsed.values.gather())

    def tags(self) -> Runs:
        """Return the TAGS properties."""
        tags = self._parsed().tags
        return tags.gather(tags.sizes > 0)

    def keys(self) -> Words:
        """Return the words of the KEYS properties."""
        offsets, words = self._key_words()
        return Words(offsets, words.gather())

    def _key_words(self) -> tuple[npt.NDArray[np.int32], _Texts]:
        keys = self._parsed().keys
        words = _Texts.empty(int(keys.sizes.sum(dtype=np.int64)) // WORD_BYTES_MIN + self.count)
        offsets = np.empty(self.count + 1, np.int32)
        count = _call(
            "split_words", *keys.arguments(), self.count, _address(offsets), *words.arguments()
        )
        return offsets, words.first(count)

    def unique_keys(self) -> Runs:
        """Return the UNIQ_KEY properties."""
        unique = self._parsed().unique
        return unique.gather(unique.sizes > 0)

    def batch_unique_keys(self) -> Runs:
        """Return the UNIQ_KEY properties of the batch records around unwrapped messages."""
        if "batch_unique" not in self._located:
            nothing = np.zeros(self.count, np.int64)
            return _Texts(nothing, nothing.astype(np.int32)).gather(nothing != 0)
        unique = self._texts("batch_unique")
        return unique.gather(unique.sizes > 0)

    def offset_ids(self) -> Runs:
        """Return the offset ids."""
        if (self._located["sys_flag"] & flags.STORE_HOST_V6).any():
            return self._offset_ids_of_any_host()
        hosts = self._host_bytes("store_host", flags.STORE_HOST_V6).gather()
        words = np.empty(2 * self.count, ">i8")
        words[0::2] = hosts.data.view(">i8")
        words[1::2] = self._located["physical_offset"]
        letters = _HEX_PAIRS[words.view(np.uint8)]
        offsets = np.arange(self.count + 1, dtype=np.int32) * (2 * words.itemsize * 2)
        return Runs(offsets, letters.view(np.uint8), None)

    def _offset_ids_of_any_host(self) -> Runs:
        offsets = np.empty(self.count + 1, np.int32)
        data = np.empty(self.count * OFFSET_ID_MAX, np.uint8)
        size = _call(
            "offset_ids",
            _address(self._located["store_host"]),
            _address(self._located["sys_flag"]),
            _address(self._records),
            flags.STORE_HOST_V6,
            self.count,
            _address(offsets),
            _address(data),
        )
        return Runs(offsets, data[:size], None)

    def message_ids(self, offset_ids: Runs | None = None) -> Runs:
        """Return the unique keys, or the offset ids of messages without one."""
        unique = self._parsed().unique
        lacking = unique.sizes == 0
        if not lacking.any():
            return unique.gather()
        ids = offset_ids or self.offset_ids()
        starts = ids.offsets[:-1].astype(np.int64) + _address(ids.data)
        mixed = _Texts(
            np.where(lacking, starts, unique.addresses),
            np.where(lacking, np.diff(ids.offsets), unique.sizes).astype(np.int32),
        )
        return mixed.gather()

    def born_hosts(self) -> Runs:
        """Return the addresses of the producers as text."""
        return self._hosts("born_host", flags.BORN_HOST_V6)

    def store_hosts(self) -> Runs:
        """Return the addresses of the broker as text."""
        return self._hosts("store_host", flags.STORE_HOST_V6)

    def _hosts(self, name: str, v6_bit: int) -> Runs:
        # A batch has few hosts: each becomes a text once.
        stored = self._host_bytes(name, v6_bit)
        ids, firsts = stored.numbered()
        hosts, sys_flags = stored.addresses[firsts], self._located["sys_flag"][firsts]
        offsets = np.empty(len(firsts) + 1, np.int32)
        data = np.empty(len(firsts) * HOST_TEXT_MAX, np.uint8)
        _call(
            "host_texts",
            _address(hosts),
            _address(sys_flags),
            v6_bit,
            len(firsts),
            _address(offsets),
            _address(data),
        )
        if len(firsts) == 1:  # as the store hosts of a log are
            size = offsets[1]
            ends = np.arange(self.count + 1, dtype=np.int32) * size
            return Runs(ends, np.tile(data[:size], self.count), None)
        texts = _Texts(offsets[:-1] + np.int64(_address(data)), np.diff(offsets))
        return texts.take(ids.astype(np.int64)).gather()

    def _host_bytes(self, name: str, v6_bit: int) -> _Texts:
        is_v6 = (self._located["sys_flag"] & v6_bit) != 0
        return _Texts(self._located[name], _HOST_BYTES[is_v6.astype(np.intp)])

    def tags_codes(self) -> npt.NDArray[np.int64]:
        """Return the hashes of the TAGS properties, 0 where absent."""
        return self._parsed().tags.hashes()

    def key_hashes(self, *, with_tags: bool = False) -> tuple[IntArray, npt.NDArray[np.int32]]:
        """Return (row, index hash) of every key in the index."""
        parsed = self._parsed()
        offsets, words = self._key_words()
        unique_rows = np.flatnonzero(parsed.unique.sizes)
        sets: list[tuple[IntArray, _Texts, bytes]] = [
            (unique_rows, parsed.unique.take(unique_rows), b""),
            (np.repeat(np.arange(self.count), np.diff(offsets)), words, b""),
        ]
        if with_tags:
            tag_rows = np.flatnonzero(parsed.tags.sizes)
            sets.append((tag_rows, parsed.tags.take(tag_rows), b"T#"))
        hashes = [self._hash_keys(*key_set) for key_set in sets]
        return np.concatenate([rows for rows, _, _ in sets]), np.concatenate(hashes)

    def _hash_keys(self, rows: IntArray, keys: _Texts, prefix: bytes) -> npt.NDArray[np.int32]:
        hashes = np.empty(len(rows), np.int32)
        rows = np.ascontiguousarray(rows, np.int64)
        start = np.frombuffer(prefix or b"\0", np.uint8)
        _call(
            "key_hashes",
            *self._texts("topic").arguments(),
            _address(rows),
            *keys.arguments(),
            len(rows),
            _address(start),
            len(prefix),
            _address(hashes),
        )
        return hashes


class _PropertyPairs:
    """Property strings, split into addresses of names and values."""

    def __init__(self, strings: _Texts) -> None:
        count = len(strings)
        room = int(((strings.sizes.astype(np.int64) + 1) // PAIR_BYTES_MIN).sum())
        names, values = _Texts.empty(room), _Texts.empty(room)
        self.offsets = np.empty(count + 1, np.int32)
        self.tags, self.keys, self.unique = (_Texts.empty(count) for _ in range(3))
        pair_count = _call(
            "parse_properties",
            *strings.arguments(),
            count,
            _address(self.offsets),
            *names.arguments(),
            *values.arguments(),
            *self.tags.arguments(),
            *self.keys.arguments(),
            *self.unique.arguments(),
        )
        self.names, self.values = names.first(pair_count), values.first(pair_count)
