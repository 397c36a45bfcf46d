"""Read consecutive requests of one code with one kernel call, as rows of numbers.

A processor gets one request, as an object with texts. Where a client sends many small requests,
making these objects costs more than serving them. A ``RequestList`` is made once for the fields of
a request code, and then reads consecutive requests into rows of numbers.

    ends = RequestList(37, [Field("producerGroup", Kind.TEXT, is_required=True), ...], buffer)
    for row in ends.collect(position, end):
        row[ROW.opaque], row[ends.value("commitLogOffset")], ends.text(row, "producerGroup")

It stops before the first request with an unknown field or another form, which falls back to its
processor. The forms that it reads: ``reput.broker.kernels.scan_requests``.
"""

import ctypes
import enum
import functools
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from reput.broker.kernels import hot as kernels, scan_args as rules
from reput.broker.kernels.scan_args import ROW, ScanCall, ScannedRow, ScannedValue
from reput.format import command as commands
from reput.format.command import Command, Serialization
from reput.format.kernels.rows import WORD_BYTES, row_and_tail, word_count
from reput.remoting.channel import Channel
from reput.store.kernels import hot
from reput.store.kernels.control_block import ControlBlock, KnownField

ROWS_MAX = 256
"""Maximum of requests that one call reads."""


class Kind(enum.IntEnum):
    """Kinds of fields."""

    TEXT = rules.TEXT
    INT = rules.INT
    """A number of 32 bits that is not negative."""
    LONG = rules.LONG
    """A number of up to 18 digits that is not negative."""
    BOOL = rules.BOOL


class Field(NamedTuple):
    """A field that requests may have."""

    name: str
    kind: Kind
    is_required: bool = False


FIELDS_OF_5 = (
    Field("bname", Kind.TEXT),
    Field("ns", Kind.TEXT),
    Field("nsd", Kind.BOOL),
    Field("oway", Kind.BOOL),
    Field("lo", Kind.BOOL),
)
"""Fields that clients of 5.x add to any request: broker, namespace, whether that is part of the
name, one-way, logical queue. A broker ignores them."""

Row = list[int]
"""A request: the words of a ``ScannedRow``."""


class RequestList:
    """Consecutive requests of one code. Rows are valid until the next read into the buffer.

    Args:
        code: The request code.
        fields: The known fields, at most ``scan_args.FIELDS_MAX``.
        buffer: The buffer that connections are read into; it must not move.
    """

    def __init__(self, code: int, fields: Sequence[Field], buffer: bytearray) -> None:
        assert len(fields) <= rules.FIELDS_MAX
        self._values: dict[str, int] = {
            field.name: ROW.values + word_count(ScannedValue) * i for i, field in enumerate(fields)
        }
        self._width = word_count(ScannedRow) + word_count(ScannedValue) * len(fields)
        self._rows = np.zeros(self._width * ROWS_MAX, np.int64)
        self._row_words = self._rows.data
        self._names = [np.frombuffer(field.name.encode("ascii"), np.uint8) for field in fields]
        required = sum(1 << i for i, field in enumerate(fields) if field.is_required)
        call, known = row_and_tail(ScanCall, KnownField, len(fields))
        call.code, call.required = code, required
        call.rows, call.rows_max = hot.address_of(self._rows), ROWS_MAX
        call.row_bytes = WORD_BYTES * self._width
        call.names.count = len(fields)
        for entry, field, name in zip(known, fields, self._names, strict=True):
            entry.name, entry.name_size = hot.address_of(name), len(name)
            entry.kind = field.kind
        self._call = call
        self._argument = hot.Address(call.address)
        self._block = ControlBlock()
        self._block_argument = hot.Address(self._block.address)
        self._block.receive_address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))

    def collect(self, position: int, end: int) -> list[Row]:
        """Return the requests that follow each other from a position of the buffer.

        Args:
            position: The position of the first frame.
            end: The end of the bytes in the buffer; the last frame may be incomplete.
        """
        block = self._block
        block.receive_position = position
        block.receive_end = end
        count = kernels.scan_requests(self._block_argument, self._argument)
        width = self._width
        words = self._row_words[: width * count].tolist()
        return [words[start : start + width] for start in range(0, width * count, width)]

    def serve(
        self,
        channel: Channel,
        view: memoryview,
        position: int,
        end: int,
        serve_rows: Callable[[Channel, Sequence[Row]], int],
    ) -> int:
        """Serve consecutive requests from a position of the buffer.

        Args:
            channel: The connection.
            view: The buffer.
            position: The position of the first frame.
            end: The end of the bytes in the buffer.
            serve_rows: Serves the leading requests of a list, writes their replies, and returns
                their number. The first one that it leaves goes through its processor.

        Returns:
            The position of the first frame that is not served; ``position`` if it is another
            request.
        """
        rows = self.collect(position, end)
        done, count_max = 0, len(rows)
        while done < len(rows) and not channel.is_closed and not channel.has_stalled():
            count = serve_rows(channel, rows[done : done + count_max])
            if count:
                done += count
                position = rows[done - 1][ROW.end]
                count_max *= 2
                continue
            frame_end = channel.take_frames(view, position, end, 1)
            if frame_end == position:
                return position
            done, position = done + 1, frame_end
            count_max = 1  # the next ones may need their processor too
        return position

    def value(self, name: str) -> int:
        """Return the index of a field's value in a row; the size of its text follows."""
        return self._values[name]

    def text(self, row: Row, name: str) -> bytes | None:
        """Return a field of TEXT, which is ASCII; None if the request lacks it."""
        value = self._values[name]
        size = row[value + 1]
        return None if size == rules.ABSENT else hot.bytes_at(row[value], size)


def empty_replies(rows: Sequence[Row]) -> bytes:
    """Return the replies to requests that succeeded, concatenated; none to one-way requests."""
    is_plain = not any(row[ROW.flag] | row[ROW.serialization] for row in rows)
    if is_plain and rows:  # all in JSON, none one-way
        opaques = [row[ROW.opaque] for row in rows]
        digits = len(str(max(opaques)))
        if digits == len(str(min(opaques))):
            before, after = _around_opaque(_JSON, digits)
            return before + (after + before).join([b"%d" % opaque for opaque in opaques]) + after
    replies = []
    for row in rows:
        if row[ROW.flag]:
            continue
        opaque, serialization = row[ROW.opaque], row[ROW.serialization]
        if serialization == _JSON:
            replies.append(empty_json_reply(opaque))
        else:
            before, after = _around_opaque(serialization, _OPAQUE_BYTES)
            replies.append(before + opaque.to_bytes(_OPAQUE_BYTES) + after)
    return b"".join(replies)


def empty_json_reply(opaque: int) -> bytes:
    """Return the reply to a request in JSON that succeeded."""
    text = b"%d" % opaque
    before, after = _around_opaque(_JSON, len(text))
    return before + text + after


_JSON = int(Serialization.JSON)  # members of an enum are slow to get at
_OPAQUE_BYTES = 4
_OPAQUE_POSITION = commands.LENGTH.size + commands.MARK.size + struct.calcsize(">hbh")
"""Position in a frame with a binary header, where code, language and version come first."""


@functools.cache
def _around_opaque(serialization: int, size: int) -> tuple[bytes, bytes]:
    """Return the bytes of a reply before and after its opaque of ``size`` bytes."""
    opaque = 10 ** (size - 1)
    request = Command(0, opaque, serialization=Serialization(serialization))
    data = commands.encode(commands.reply(request))
    if serialization == Serialization.ROCKETMQ:
        return data[:_OPAQUE_POSITION], data[_OPAQUE_POSITION + size :]
    before, mark, after = data.partition(b'"opaque":')
    return before + mark, after[size:]
