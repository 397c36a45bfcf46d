"""Reference implementation of the kernels: slow and obvious, on the codec ``format.message``.

It runs where there are no compiled kernels, and the tests compare the kernels with it.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord
from reput.format import (
    body as bodies_format,
    cq_unit,
    index_entry,
    java,
    message as record,
    message_id,
)
from reput.format.kernels.layout import Buffer, IntArray, Pairs, Runs, Segments, Words
from reput.format.message import Verdict

_MAGIC_LEADS = tuple(
    magic.to_bytes(4, "big", signed=True)
    for magic in (record.MAGIC_V1, record.MAGIC_V2, record.MAGIC_BLANK)
)
_FRAMED = (Verdict.MESSAGE, Verdict.BLANK, Verdict.TRUNCATED)
_WHOLE_DAMAGE = (Verdict.BAD_CRC, Verdict.BAD_RECORD_CRC)


def engine() -> str:
    """Return ``reference``."""
    return "reference"


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
    """Walk the records that start in ``[start, stop)`` of a log buffer.

    Args:
        buffer: A log file or its first part.
        start: Position of the first record.
        stop: Records from here on are left.
        physical_offset: Offset in the log of position 0.
        file_end: Where the file ends, if the buffer is only its first part.
        check_crc: Compare bodies and records with their checksums.
        room: Most segments to return; the walk can be taken up at ``next_position``.

    Returns:
        Segments that tile ``[start, next_position)``. Damage runs to the next position where a
        record or blank is framed right and stands where it says (a failed checksum: to the record's
        end), or to the zeros that end the data. A record cut by the end of a part is left, and so
        are zeros and damage in the last bytes of a part, too few to hold a head.
    """
    view = memoryview(buffer).cast("B")
    end = len(view)
    at = start
    found: list[tuple[int, int, int]] = []
    while at < min(stop, end) and len(found) < room:
        verdict, size = record.classify(
            view, at, physical_offset + at, file_end=file_end, check_crc=check_crc
        )
        if verdict is Verdict.TRUNCATED:
            break
        if verdict > Verdict.TRUNCATED and verdict not in _WHOLE_DAMAGE:
            if not any(view[at:]):
                verdict, size = Verdict.ZEROS, end - at
            else:
                size = _damage_end(view, at, physical_offset, file_end) - at
        if verdict is Verdict.ZEROS and file_end is not None and end < file_end:
            # The last zeros of a part may be the first bytes of a TOTALSIZE.
            size = _unjudged(at, end) - at
        found.append((at, size, verdict))
        at += size
    return Segments(
        np.array([one[0] for one in found], np.int64),
        np.array([one[1] for one in found], np.int32),
        np.array([one[2] for one in found], np.uint8),
        at,
    )


def judge(
    buffer: Buffer,
    positions: IntArray,
    *,
    physical_offset: int,
    file_end: int | None = None,
    check_crc: bool = True,
) -> Segments:
    """Judge what stands at given positions, as ``message.classify`` does for one.

    Returns:
        The positions with the sizes records claim (0 where framed wrong) and the verdicts.
        ``BAD_ZEROS`` also where zeros reach the end: a record should be there.
    """
    view = memoryview(buffer).cast("B")
    found = []
    for at in map(int, positions):
        verdict, size = record.classify(
            view, at, physical_offset + at, file_end=file_end, check_crc=check_crc
        )
        if verdict is Verdict.ZEROS:
            too_short = len(view) - at < record.SIZE_AND_MAGIC.size
            verdict, size = Verdict.BAD_SIZE if too_short else Verdict.BAD_ZEROS, 0
        found.append((size, verdict))
    return Segments(
        np.asarray(positions, np.int64),
        np.array([size for size, _ in found], np.int32),
        np.array([verdict for _, verdict in found], np.uint8),
        len(view),
    )


def _unjudged(at: int, end: int) -> int:
    return max(at + 1, end - record.JUDGED_BYTES + 1)


def _damage_end(view: memoryview, at: int, physical_offset: int, file_end: int | None) -> int:
    end = len(view)
    found = find_record(view, at + 1, physical_offset=physical_offset, file_end=file_end)
    if found < end:
        return found
    if file_end is not None and end < file_end:
        return _unjudged(at, end)
    behind = data_end(view, at)
    is_clear = end - behind >= record.SIZE_AND_MAGIC.size and behind > at
    return behind if is_clear else end


def find_record(
    buffer: Buffer, position: int, *, physical_offset: int, file_end: int | None = None
) -> int:
    """Return the position of the next framed record or blank, or the buffer's length."""
    view = memoryview(buffer).cast("B")
    data = bytes(view)
    candidates = []
    for lead in _MAGIC_LEADS:
        hit = data.find(lead, position + record.POSITION_MAGIC)
        while hit >= 0:
            candidates.append(hit - record.POSITION_MAGIC)
            hit = data.find(lead, hit + 1)
    for at in sorted(candidates):
        verdict, _ = record.classify(
            view, at, physical_offset + at, file_end=file_end, check_crc=False
        )
        is_cut = (
            file_end is not None and len(view) < file_end and len(view) - at < record.JUDGED_BYTES
        )
        if verdict in _FRAMED and not is_cut:
            return at
    return len(view)


def data_end(buffer: Buffer, start: int = 0) -> int:
    """Return the position behind the last byte that is not zero, ``start`` if there is none."""
    return start + len(bytes(memoryview(buffer)[start:]).rstrip(b"\0"))


def checksum(data: Buffer) -> int:
    """Return BODYCRC of ``data``."""
    return bodies_format.crc(bytes(data))


def _runs(values: list[bytes | None]) -> Runs:
    offsets = np.cumsum([0, *(len(value or b"") for value in values)], dtype=np.int32)
    data = np.frombuffer(b"".join(value or b"" for value in values), np.uint8)
    return Runs(offsets, data, np.array([value is not None for value in values], np.bool_))


def _texts(values: list[str | None]) -> Runs:
    return _runs([None if value is None else java.encode_utf8(value) for value in values])


class Columns:
    """Records of a buffer as columns; positions must be those of framed records."""

    def __init__(self, buffer: Buffer, positions: IntArray) -> None:
        view = memoryview(buffer).cast("B")
        self._set([record.decode(view, int(at), check_crc=False) for at in positions])

    def _set(self, messages: list[record.StoredMessage]) -> None:
        self._messages = messages
        self.count = len(messages)

    def take(self, rows: npt.NDArray[Any]) -> "Columns":
        """Return the columns of some rows only (indices or mask)."""
        part = object.__new__(Columns)
        part._set([self._messages[row] for row in np.arange(self.count)[rows]])
        return part

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """Return a fixed-width column by the name it has in ``StoredMessage``."""
        is_long = name.endswith("offset") or name.endswith("timestamp")
        values = [getattr(one, name) for one in self._messages]
        return np.array(values, np.int64 if is_long else np.int32)

    def topics(self) -> Runs:
        """Return the topics."""
        return _all_present(_texts([one.topic for one in self._messages]))

    def topic_ids(self) -> tuple[npt.NDArray[np.int32], list[str]]:
        """Return a number per row and the topic each number stands for."""
        numbers: dict[str, int] = {}
        ids = [numbers.setdefault(one.topic, len(numbers)) for one in self._messages]
        return np.array(ids, np.int32), list(numbers)

    def bodies(self, *, decompress: bool = True) -> tuple[Runs, dict[int, str]]:
        """Return the bodies, and why those could not be unpacked that could not.

        A body that cannot be unpacked is returned as stored.
        """
        values: list[bytes | None] = []
        failures: dict[int, str] = {}
        for row, one in enumerate(self._messages):
            body = one.body
            if decompress:
                try:
                    body = one.plain_body()
                except CorruptRecord as error:
                    failures[row] = error.reason
            values.append(body)
        return _all_present(_runs(values)), failures

    def raw_properties(self) -> Runs:
        """Return the property strings as stored, malformed UTF-8 replaced."""
        return _all_present(
            _texts([java.decode_utf8(one.property_bytes) for one in self._messages])
        )

    def properties(self) -> Pairs:
        """Return names and values of the properties."""
        offsets = np.cumsum([0, *(len(one.properties) for one in self._messages)], dtype=np.int32)
        names: list[str | None] = [name for one in self._messages for name in one.properties]
        values: list[str | None] = [
            value for one in self._messages for value in one.properties.values()
        ]
        return Pairs(offsets, _all_present(_texts(names)), _all_present(_texts(values)))

    def tags(self) -> Runs:
        """Return the TAGS properties."""
        return _texts([one.tags for one in self._messages])

    def keys(self) -> Words:
        """Return the words of the KEYS properties."""
        lists = [one.keys for one in self._messages]
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int32)
        words: list[str | None] = [word for one in lists for word in one]
        return Words(offsets, _all_present(_texts(words)))

    def unique_keys(self) -> Runs:
        """Return the UNIQ_KEY properties."""
        return _texts([one.unique_key for one in self._messages])

    def offset_ids(self) -> Runs:
        """Return the offset ids."""
        return _all_present(_texts([message_id.offset_id(one) for one in self._messages]))

    def message_ids(self, offset_ids: Runs | None = None) -> Runs:
        """Return the unique keys, offset ids where there is none."""
        return _all_present(_texts([message_id.message_id(one) for one in self._messages]))

    def born_hosts(self) -> Runs:
        """Return the producers' addresses as text."""
        return _all_present(_texts([str(one.born_host) for one in self._messages]))

    def store_hosts(self) -> Runs:
        """Return the broker's addresses as text."""
        return _all_present(_texts([str(one.store_host) for one in self._messages]))

    def tags_codes(self) -> npt.NDArray[np.int64]:
        """Return the hashes of the TAGS properties, 0 where absent."""
        return np.array([cq_unit.tags_code(one.tags) for one in self._messages], np.int64)

    def key_hashes(self, *, with_tags: bool = False) -> tuple[IntArray, npt.NDArray[np.int32]]:
        """Return (row, index hash) of every key the broker indexes: unique keys, keys, tags."""
        unique: list[tuple[int, str]] = []
        keys: list[tuple[int, str]] = []
        tags: list[tuple[int, str]] = []
        for row, one in enumerate(self._messages):
            if one.unique_key:
                unique.append((row, index_entry.key_of(one.topic, one.unique_key)))
            keys += [(row, index_entry.key_of(one.topic, key)) for key in one.keys]
            if with_tags and one.tags:
                tags.append((row, index_entry.tag_key_of(one.topic, one.tags)))
        found = unique + keys + tags
        return (
            np.array([row for row, _ in found], np.int64),
            np.array([index_entry.key_hash(key) for _, key in found], np.int32),
        )


def _all_present(runs: Runs) -> Runs:
    return runs._replace(present=None)
