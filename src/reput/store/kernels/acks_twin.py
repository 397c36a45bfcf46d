"""The kernel ``acks`` in plain Python: the fallback, and the oracle in tests.

Grammar by regular expressions, meaning by ``reput.format.command``.
"""

import json
import re
from typing import Any, NamedTuple

from reput.format import command
from reput.format.command import Command
from reput.store.kernels import acks_args as words
from reput.store.kernels.twin_memory import Row, read, write

_INT_MAX = 0x7FFFFFFF
_PLAIN = rb"[\x20-!#-\[\]-\x7f]*"
_NUMBER = rb"(?:0|[1-9][0-9]{0,17})"
_FIELD = rb'"%b":"%b"' % (_PLAIN, _PLAIN)
_MEMBER = (
    rb'(?:"(?:code|flag|opaque|version)":%b|"(?:language|serializeTypeCurrentRPC)":"%b"'
    rb'|"extFields":\{%b(?:,%b)*\})' % (_NUMBER, _PLAIN, _FIELD, _FIELD)
)
_JSON = re.compile(rb"\{%b(?:,%b)*\}[ \t\r\n]*" % (_MEMBER, _MEMBER))
_NUMBER_ALL = re.compile(_NUMBER.decode())
_HANDLE = re.compile(r"(%s) (%s) %s (%s) [^ ]* .*" % ((_NUMBER.decode(),) * 4))


class _Ack(NamedTuple):
    opaque: int
    topic: str
    group: str
    queue_id: int
    queue_offset: int
    start: int
    pop_ms: int

    @property
    def checkpoint(self) -> tuple[object, ...]:
        return self.topic, self.group, self.queue_id, self.start, self.pop_ms


def _read(frame: bytes) -> _Ack | None:
    """Return the acknowledgement of a frame behind its length; None: it is not common."""
    (mark,) = command.MARK.unpack_from(frame)
    header = frame[command.MARK.size :]
    if mark != len(header) or not _JSON.fullmatch(header):
        return None
    pairs = json.loads(header, object_pairs_hook=list)
    found: dict[str, Any] = dict(pairs)
    if len(found) < len(pairs) or not {"code", "flag", "opaque", "extFields"} <= found.keys():
        return None
    numbers = [value for value in found.values() if isinstance(value, int)]
    if max(numbers) > _INT_MAX or found["code"] != words.CODE or found["flag"] != 0:
        return None
    named = [name for name, _ in found["extFields"] if name in words.FIELD_NAMES]
    if sorted(named) != sorted(words.FIELD_NAMES):
        return None
    fields = dict(found["extFields"])
    handle = _HANDLE.fullmatch(fields["extraInfo"])
    if handle is None or handle[3] == str(words.ORDERED_REVIVE_QUEUE):
        return None
    if not _NUMBER_ALL.fullmatch(fields["queueId"]) or not _NUMBER_ALL.fullmatch(fields["offset"]):
        return None
    if int(fields["queueId"]) > _INT_MAX:
        return None
    return _Ack(
        found["opaque"],
        fields["topic"],
        fields["consumerGroup"],
        int(fields["queueId"]),
        int(fields["offset"]),
        int(handle[1]),
        int(handle[2]),
    )


def _place(frame: bytes, name: str) -> tuple[int, int]:
    """Return position and size of a field's value in a frame."""
    # In the order of the frame: a value may look like another field.
    fields = re.search(rb'"extFields":\{(%b(?:,%b)*)\}' % (_FIELD, _FIELD), frame)
    assert fields is not None
    for one in re.finditer(rb'"(%b)":"(%b)"' % (_PLAIN, _PLAIN), fields[1]):
        if one[1] == name.encode():
            return fields.start(1) + one.start(2), len(one[2])
    raise AssertionError(name)


def acks(argument: Any) -> int:
    """See ``acks.acks``."""
    block = Row(argument.value)
    data = read(block[words.BUFFER], block[words.END])
    at = block[words.POSITION]
    replies = b""
    rows: list[list[int]] = []
    last: tuple[object, ...] = ()
    while len(replies) + words.REPLY_BYTES_MAX <= block[words.REPLIES_ROOM]:
        if len(data) - at < command.LENGTH.size + command.MARK.size:
            break
        (size,) = command.LENGTH.unpack_from(data, at)
        frame = data[at + command.LENGTH.size : at + command.LENGTH.size + size]
        if size < command.MARK.size or len(frame) < size:
            break
        one = _read(frame)
        if one is None:
            break
        is_new = not rows or one.checkpoint != last
        if is_new or not 0 <= one.queue_offset - rows[-1][words.ROW_FIRST] < words.BITS:
            if len(rows) == block[words.ROW_MAX]:
                break
            base = at + command.LENGTH.size
            topic_at, topic_size = _place(frame, "topic")
            group_at, group_size = _place(frame, "consumerGroup")
            is_near = 0 <= one.queue_offset - one.start < words.BITS
            rows.append(
                [base + topic_at, topic_size, base + group_at, group_size, one.queue_id, one.start,
                 one.pop_ms, one.start if is_near else one.queue_offset, 0, 0, 0, 0]
            )  # fmt: skip
            last = one.checkpoint
        row = rows[-1]
        row[words.ROW_BITS] |= 1 << one.queue_offset - row[words.ROW_FIRST]
        row[words.ROW_COUNT] += 1
        replies += command.encode(command.reply(Command(words.CODE, one.opaque)))
        at += command.LENGTH.size + size
        row[words.ROW_BEHIND], row[words.ROW_REPLIES] = at, len(replies)
    write(block[words.REPLIES], replies)
    for number, row in enumerate(rows):
        target = Row(block[words.ROWS] + 8 * words.ROW_WORDS * number)
        for place, value in enumerate(row):
            target[place] = value
    block[words.POSITION] = at
    return len(rows)
