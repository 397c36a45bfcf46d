"""Reference implementation of the kernels: slow and obvious, on the codec ``format.message``.

It runs where there are no compiled kernels, and the tests compare the kernels with it.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord
from reput.format import (
    batch,
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
    """Scan the records that start in ``[start, stop)`` of a log buffer.

    Args:
        buffer: A log file or its first part.
        start: Position of the first record.
        stop: Position from which on records are left out.
        physical_offset: Physical offset of position 0.
        file_end: End of the file, if the buffer is only its first part.
        check_crc: Compare bodies and records with their checksums.
        room: Maximum of segments; another scan can continue at ``next_position``.

    Returns:
        Segments that tile ``[start, next_position)``. Damage ends at the next framed record or
        blank with its own physical offset (after a failed checksum: at the record's end), or at the
        zeros that end the data. A record cut by the end of a part is left out, and so are zeros and
        damage in the last bytes of a part, which are too few for a head.
    """
    view = memoryview(buffer).cast("B")
    end = len(view)
    position = start
    segments: list[tuple[int, int, int]] = []
    while position < min(stop, end) and len(segments) < room:
        verdict, size = record.classify(
            view, position, physical_offset + position, file_end=file_end, check_crc=check_crc
        )
        if verdict is Verdict.TRUNCATED:
            break
        if verdict > Verdict.TRUNCATED and verdict not in _WHOLE_DAMAGE:
            if not any(view[position:]):
                verdict, size = Verdict.ZEROS, end - position
            else:
                size = _damage_end(view, position, physical_offset, file_end) - position
        if verdict is Verdict.ZEROS and file_end is not None and end < file_end:
            # The last zeros of a part may be the first bytes of a TOTALSIZE.
            size = _unjudged(position, end) - position
        segments.append((position, size, verdict))
        position += size
    return Segments(
        np.array([segment[0] for segment in segments], np.int64),
        np.array([segment[1] for segment in segments], np.int32),
        np.array([segment[2] for segment in segments], np.uint8),
        position,
    )


def judge(
    buffer: Buffer,
    positions: IntArray,
    *,
    physical_offset: int,
    file_end: int | None = None,
    check_crc: bool = True,
) -> Segments:
    """Judge the records at given positions, as ``message.classify`` does for one.

    Returns:
        The positions with the sizes in the records (0 for one that is not framed) and the
        verdicts. Zeros are ``BAD_ZEROS`` even if they reach the end: a record should be there.
    """
    view = memoryview(buffer).cast("B")
    judged = []
    for position in map(int, positions):
        verdict, size = record.classify(
            view, position, physical_offset + position, file_end=file_end, check_crc=check_crc
        )
        if verdict is Verdict.ZEROS:
            too_short = len(view) - position < record.SIZE_AND_MAGIC.size
            verdict, size = Verdict.BAD_SIZE if too_short else Verdict.BAD_ZEROS, 0
        judged.append((size, verdict))
    return Segments(
        np.asarray(positions, np.int64),
        np.array([size for size, _ in judged], np.int32),
        np.array([verdict for _, verdict in judged], np.uint8),
        len(view),
    )


def _unjudged(position: int, end: int) -> int:
    return max(position + 1, end - record.JUDGED_BYTES + 1)


def _damage_end(view: memoryview, position: int, physical_offset: int, file_end: int | None) -> int:
    end = len(view)
    next_record = find_record(
        view, position + 1, physical_offset=physical_offset, file_end=file_end
    )
    if next_record < end:
        return next_record
    if file_end is not None and end < file_end:
        return _unjudged(position, end)
    data_end_position = data_end(view, position)
    is_clear = (
        end - data_end_position >= record.SIZE_AND_MAGIC.size and data_end_position > position
    )
    return data_end_position if is_clear else end


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
    for candidate in sorted(candidates):
        verdict, _ = record.classify(
            view, candidate, physical_offset + candidate, file_end=file_end, check_crc=False
        )
        is_cut = (
            file_end is not None
            and len(view) < file_end
            and len(view) - candidate < record.JUDGED_BYTES
        )
        if verdict in _FRAMED and not is_cut:
            return candidate
    return len(view)


def data_end(buffer: Buffer, start: int = 0) -> int:
    """Return the position after the last byte that is not zero, ``start`` if there is none."""
    return start + len(bytes(memoryview(buffer)[start:]).rstrip(b"\0"))


def checksum(data: Buffer) -> int:
    """Return the BODYCRC of ``data``."""
    return bodies_format.crc(bytes(data))


def _runs(values: list[bytes | None]) -> Runs:
    offsets = np.cumsum([0, *(len(value or b"") for value in values)], dtype=np.int32)
    data = np.frombuffer(b"".join(value or b"" for value in values), np.uint8)
    return Runs(offsets, data, np.array([value is not None for value in values], np.bool_))


def _texts(values: list[str | None]) -> Runs:
    return _runs([None if value is None else java.encode_utf8(value) for value in values])


class Columns:
    """Records of a buffer as columns. Positions must be those of framed records."""

    def __init__(self, buffer: Buffer, positions: IntArray) -> None:
        view = memoryview(buffer).cast("B")
        self._set([record.decode(view, int(position), check_crc=False) for position in positions])

    def _set(self, messages: list[record.StoredMessage]) -> None:
        self._messages = messages
        self.count = len(messages)

    def take(self, rows: npt.NDArray[Any]) -> "Columns":
        """Return the columns of some rows (indices or mask)."""
        part = object.__new__(Columns)
        part._set([self._messages[row] for row in np.arange(self.count)[rows]])
        return part

    def unwrapped(self) -> "Columns":
        """Return the columns of the messages inside of batch records, as ``batch.unwrap`` does.

        A record of which the body is no batch stays as it is: its flag INNER_BATCH is set.
        """
        part = object.__new__(Columns)
        part._set([inner for outer in self._messages for inner in batch.unwrap_if_valid(outer)])
        return part

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """Return a fixed-width column by its name in ``StoredMessage``."""
        is_long = name.endswith("offset") or name.endswith("timestamp")
        values = [getattr(message, name) for message in self._messages]
        return np.array(values, np.int64 if is_long else np.int32)

    def topics(self) -> Runs:
        """Return the topics."""
        return _all_present(_texts([message.topic for message in self._messages]))

    def topic_ids(self) -> tuple[npt.NDArray[np.int32], list[str]]:
        """Return a number per row, and the topic of each number."""
        numbers: dict[str, int] = {}
        ids = [numbers.setdefault(message.topic, len(numbers)) for message in self._messages]
        return np.array(ids, np.int32), list(numbers)

    def bodies(self, *, decompress: bool = True) -> tuple[Runs, dict[int, str]]:
        """Return the bodies, and by row the errors of bodies that could not be decompressed.

        A body that cannot be decompressed is returned as stored.
        """
        values: list[bytes | None] = []
        failures: dict[int, str] = {}
        for row, message in enumerate(self._messages):
            body = message.body
            if decompress:
                try:
                    body = message.plain_body()
                except CorruptRecord as error:
                    failures[row] = error.reason
            values.append(body)
        return _all_present(_runs(values)), failures

    def raw_properties(self) -> Runs:
        """Return the property strings as stored, with malformed UTF-8 replaced."""
        return _all_present(
            _texts([java.decode_utf8(message.property_bytes) for message in self._messages])
        )

    def properties(self) -> Pairs:
        """Return the names and values of the properties."""
        offsets = np.cumsum(
            [0, *(len(message.properties) for message in self._messages)], dtype=np.int32
        )
        names: list[str | None] = [
            name for message in self._messages for name in message.properties
        ]
        values: list[str | None] = [
            value for message in self._messages for value in message.properties.values()
        ]
        return Pairs(offsets, _all_present(_texts(names)), _all_present(_texts(values)))

    def tags(self) -> Runs:
        """Return the TAGS properties."""
        return _texts([message.tags for message in self._messages])

    def keys(self) -> Words:
        """Return the words of the KEYS properties."""
        lists = [message.keys for message in self._messages]
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int32)
        words: list[str | None] = [word for texts in lists for word in texts]
        return Words(offsets, _all_present(_texts(words)))

    def unique_keys(self) -> Runs:
        """Return the UNIQ_KEY properties."""
        return _texts([message.unique_key for message in self._messages])

    def batch_unique_keys(self) -> Runs:
        """Return the UNIQ_KEY properties of the batch records around unwrapped messages."""
        return _texts([message.batch_unique_key for message in self._messages])

    def offset_ids(self) -> Runs:
        """Return the offset ids."""
        return _all_present(_texts([message_id.offset_id(message) for message in self._messages]))

    def message_ids(self, offset_ids: Runs | None = None) -> Runs:
        """Return the unique keys, or the offset ids of messages without one."""
        return _all_present(_texts([message_id.message_id(message) for message in self._messages]))

    def born_hosts(self) -> Runs:
        """Return the addresses of the producers as text."""
        return _all_present(_texts([str(message.born_host) for message in self._messages]))

    def store_hosts(self) -> Runs:
        """Return the addresses of the broker as text."""
        return _all_present(_texts([str(message.store_host) for message in self._messages]))

    def tags_codes(self) -> npt.NDArray[np.int64]:
        """Return the hashes of the TAGS properties, 0 where absent."""
        return np.array([cq_unit.tags_code(message.tags) for message in self._messages], np.int64)

    def key_hashes(self, *, with_tags: bool = False) -> tuple[IntArray, npt.NDArray[np.int32]]:
        """Return (row, index hash) of every key in the index: unique keys, keys, tags."""
        unique: list[tuple[int, str]] = []
        keys: list[tuple[int, str]] = []
        tags: list[tuple[int, str]] = []
        for row, message in enumerate(self._messages):
            if message.unique_key:
                unique.append((row, index_entry.key_of(message.topic, message.unique_key)))
            keys += [(row, index_entry.key_of(message.topic, key)) for key in message.keys]
            if with_tags and message.tags:
                tags.append((row, index_entry.tag_key_of(message.topic, message.tags)))
        entries = unique + keys + tags
        return (
            np.array([row for row, _ in entries], np.int64),
            np.array([index_entry.key_hash(key) for _, key in entries], np.int32),
        )


def _all_present(runs: Runs) -> Runs:
    return runs._replace(present=None)
