"""Read consecutive requests of one code with one kernel call, as rows of numbers.

A processor gets one request, as an object with texts. Where a client sends many small requests,
making these objects costs more than serving them. A ``RequestList`` declares once which fields the
requests of a code have, and then reads consecutive ones into rows of numbers.

    ends = RequestList(37, [Field("producerGroup", Kind.TEXT, is_required=True), ...])
    for row in ends.collect(address, position, end):
        row[rules.ROW_OPAQUE], row[ends.value("commitLogOffset")], ends.text(row, "producerGroup")

It stops before the first request with a field or form that it does not know; that one falls back to
its processor. What it knows: ``reput.store.kernels.scan_requests``.
"""

import enum
import functools
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from reput.format import command as commands
from reput.format.command import Command, Serialization
from reput.remoting.channel import Channel
from reput.store.kernels import control_block as state, hot, scan_args as rules

ROWS_MAX = 256
"""Requests that one call reads at most."""


class Kind(enum.IntEnum):
    """What a field holds."""

    TEXT = rules.TEXT
    INT = rules.INT
    """From 0 on, 32 bits."""
    LONG = rules.LONG
    """From 0 on, up to 18 digits."""
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
"""What clients of 5.x add to any request: broker, namespace, whether that is of the name, one-way,
logical queue. To a broker it says nothing new."""

Row = list[int]
"""A request: words as ``scan_args`` says."""


class RequestList:
    """Reads requests of one code. Rows are valid until the buffer is read into again.

    Args:
        code: Which requests.
        fields: All that they may have, at most ``scan_args.FIELDS_MAX``.
    """

    def __init__(self, code: int, fields: Sequence[Field]) -> None:
        assert len(fields) <= rules.FIELDS_MAX
        self.code = code
        self._values = {
            field.name: rules.ROW_WORDS + rules.VALUES * i for i, field in enumerate(fields)
        }
        self._width = rules.ROW_WORDS + rules.VALUES * len(fields)
        self._rows = np.zeros(self._width * ROWS_MAX, np.int64)
        self._row_words = self._rows.data
        self._names = [np.frombuffer(field.name.encode("ascii"), np.uint8) for field in fields]
        required = sum(1 << i for i, field in enumerate(fields) if field.is_required)
        words = [code, hot.address_of(self._rows), ROWS_MAX, required, len(fields)]
        for field, name in zip(fields, self._names, strict=True):
            words += [hot.address_of(name), len(name), field.kind]
        self._wanted = np.array(words, np.int64)
        self._argument = hot.Address(hot.address_of(self._wanted))
        self._memory = np.zeros(state.BLOCK_WORDS, np.int64)
        self._block = self._memory.data
        self._block_argument = hot.Address(hot.address_of(self._memory))

    def collect(self, address: int, position: int, end: int) -> list[Row]:
        """Return the requests that stand in a row in a buffer; of the last one ROW_END is known.

        Args:
            address: Of the buffer.
            position: Where the first frame starts.
            end: Where the bytes end; the last frame may be cut there.
        """
        block = self._block
        block[state.RECEIVE_ADDRESS] = address
        block[state.RECEIVE_POSITION] = position
        block[state.RECEIVE_END] = end
        count = hot.collect(self._block_argument, self._argument)
        width = self._width
        words = self._row_words[: width * count].tolist()
        return [words[at : at + width] for at in range(0, width * count, width)]

    def value(self, name: str) -> int:
        """Return where in a row a field has its value; behind it is the size of its text."""
        return self._values[name]

    def text(self, row: Row, name: str) -> bytes | None:
        """Return a field of TEXT, which is ASCII; None if the request lacks it."""
        at = self._values[name]
        size = row[at + 1]
        return None if size == rules.ABSENT else hot.bytes_at(row[at], size)


def take_rows(
    rows: Sequence[Row],
    channel: Channel,
    view: memoryview,
    at: int,
    end: int,
    take: Callable[[Channel, Sequence[Row]], int],
) -> int:
    """Take requests that stand in a row, and write their replies.

    Args:
        rows: The requests.
        channel: Where they came from.
        view: The buffer where they stand.
        at: Where the first one does.
        end: Where the bytes end.
        take: Takes those that are common, up to the first other, and returns how many; each
            other one goes through its processor, in its place.

    Returns:
        Where the first frame begins that was not taken.
    """
    done, most = 0, len(rows)
    while done < len(rows) and not channel.is_closed and not channel.has_stalled():
        count = take(channel, rows[done : done + most])
        if count:
            done += count
            at = rows[done - 1][rules.ROW_END]
            most *= 2
            continue
        behind = channel.take_frames(view, at, end, 1)
        if behind == at:
            return at
        done, at = done + 1, behind
        most = 1  # those behind it may be no better
    return at


def empty_replies(rows: Sequence[Row]) -> bytes:
    """Return the replies to requests that say no more than that all is well; none to one-way ones.

    One behind the other.
    """
    is_plain = not any(row[rules.ROW_FLAG] | row[rules.ROW_SERIALIZATION] for row in rows)
    if is_plain and rows:  # all in JSON, and wanted
        opaques = [row[rules.ROW_OPAQUE] for row in rows]
        digits = len(str(max(opaques)))
        if digits == len(str(min(opaques))):
            before, behind = _around_opaque(_JSON, digits)
            return before + (behind + before).join([b"%d" % one for one in opaques]) + behind
    replies = []
    for row in rows:
        if row[rules.ROW_FLAG]:
            continue
        opaque, serialization = row[rules.ROW_OPAQUE], row[rules.ROW_SERIALIZATION]
        if serialization == _JSON:
            replies.append(empty_json_reply(opaque))
        else:
            before, behind = _around_opaque(serialization, _OPAQUE_BYTES)
            replies.append(before + opaque.to_bytes(_OPAQUE_BYTES) + behind)
    return b"".join(replies)


def empty_json_reply(opaque: int) -> bytes:
    """Return the same to a request in JSON that wants a reply."""
    text = b"%d" % opaque
    before, behind = _around_opaque(_JSON, len(text))
    return before + text + behind


_JSON = int(Serialization.JSON)  # members of an enum are slow to get at
_OPAQUE_BYTES = 4
_OPAQUE_AT = commands.LENGTH.size + commands.MARK.size + struct.calcsize(">hbh")
"""In a binary header: behind code, language and version."""


@functools.cache
def _around_opaque(serialization: int, size: int) -> tuple[bytes, bytes]:
    """Return a reply's bytes before and behind its opaque, which takes so many."""
    opaque = 10 ** (size - 1)
    request = Command(0, opaque, serialization=Serialization(serialization))
    data = commands.encode(commands.reply(request))
    if serialization == Serialization.ROCKETMQ:
        return data[:_OPAQUE_AT], data[_OPAQUE_AT + size :]
    before, mark, behind = data.partition(b'"opaque":')
    return before + mark, behind[size:]
