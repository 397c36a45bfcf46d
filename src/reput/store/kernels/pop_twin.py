"""The kernel ``take`` in plain Python: slow, obvious, on the same memory; see there."""

import ctypes
import struct

from reput.format import message as record, pop_codec, properties as props
from reput.store.kernels import control_block as state, hot_twin, pop_args as words, pull_rules
from reput.store.kernels.deliver_twin import units_in_memory
from reput.store.kernels.twin_memory import Row, read, write

_LENGTH = struct.Struct(">i")
_SIZE, _QUEUE_ID, _BORN_MS = 0, 3, 8
"""Of the fields in ``record.HEAD``."""
_NOT_NEGATIVE = (
    words.QUEUE_OFFSET,
    words.QUEUE_ID,
    words.POP_MS,
    words.INVISIBLE_MS,
    words.REVIVE_QUEUE_ID,
)


def _is_common(call: Row, block: Row) -> bool:
    return (
        not block[state.HAS_RECORD_CRC]
        and 1 <= call[words.COUNT_MAX] <= words.MESSAGES_MAX
        and all(call[one] >= 0 for one in _NOT_NEGATIVE)
        and call[words.FIRST_SIZE] + call[words.LAST_SIZE] <= words.BODY_BYTES_MAX
        and call[words.MARKS_SIZE] <= words.MARKS_BYTES_MAX
    )


def _find(call: Row, block: Row) -> list[int]:
    """Copy the records that are wanted; return their queue offsets."""
    row, begin = Row(call[words.QUEUE_ROW]), call[words.QUEUE_OFFSET]
    address, end = units_in_memory(row, begin)
    wanted = call[words.COUNT_MAX]
    if call[words.CODE_COUNT]:
        wanted = max(wanted, block[state.FILTERED_UNITS_MAX])
    wanted = min(wanted, pull_rules.READ_UNITS_MAX)
    count = min(end - begin, wanted)
    if not count:
        return []
    for word, value in {
        state.PULL_UNITS: address,
        state.PULL_UNIT_COUNT: count,
        state.PULL_QUEUE_OFFSET: begin,
        state.PULL_BUFFER: call[words.BUFFER],
        state.PULL_ROOM: call[words.BUFFER_ROOM],
        state.PULL_COUNT_MAX: call[words.COUNT_MAX],
        state.PULL_CODES: call[words.CODES],
        state.PULL_CODE_COUNT: call[words.CODE_COUNT],
        state.RESULT_LAST_OFFSET: 0,
    }.items():
        block[word] = value
    hot_twin.pull(ctypes.c_int64(block.address))
    is_odd = block[state.RESULT_GONE] or block[state.RESULT_DAMAGED]
    if block[state.STOP] != state.STOP_DONE or is_odd:
        return []
    scanned = block[state.RESULT_SCANNED]
    if scanned == count < wanted and begin + count < row[state.QUEUE_MAX_OFFSET]:
        return []
    call[words.RESULT_BYTES] = block[state.RESULT_BYTES]
    call[words.RESULT_NEXT_OFFSET] = begin + scanned
    return record.queue_offsets_in(read(call[words.BUFFER], block[state.RESULT_BYTES]))


def _checkpoint(call: Row, queue_offsets: list[int]) -> bytes:
    begin = call[words.QUEUE_OFFSET]
    values = (
        ",".join(str(one - begin) for one in queue_offsets),
        call[words.INVISIBLE_MS],
        len(queue_offsets),
        call[words.POP_MS],
        call[words.QUEUE_ID],
        begin,
    )
    pieces = (
        read(call[words.FIRST], call[words.FIRST_SIZE]),
        *words.CHECKPOINT_PIECES,
        read(call[words.LAST], call[words.LAST_SIZE]),
    )
    texts = [str(value).encode() for value in values]
    return b"".join(b"%b%b" % one for one in zip(pieces, [*texts, b""], strict=True))


def _record(call: Row, body: bytes) -> bytes:
    head = bytearray(read(call[words.HEAD], words.HEAD_BYTES))
    marks = read(call[words.MARKS], call[words.MARKS_SIZE])
    marks += str(call[words.POP_MS]).encode() + props.PROPERTY_SEPARATOR.encode()
    topic = read(call[words.TOPIC], call[words.TOPIC_SIZE])
    rest = body + topic + record.PROPERTIES_LENGTH.pack(len(marks)) + marks
    fields = list(record.HEAD.unpack_from(head))
    fields[_SIZE] = len(head) + len(rest)
    fields[_QUEUE_ID] = call[words.REVIVE_QUEUE_ID]
    fields[_BORN_MS] = call[words.POP_MS]
    record.HEAD.pack_into(head, 0, *fields)
    _LENGTH.pack_into(head, len(head) - _LENGTH.size, len(body))
    return bytes(head) + rest


def take(address: ctypes.c_int64) -> int:
    """Take messages; as the kernel ``pop.take``."""
    call = Row(address.value)
    block = Row(call[words.BLOCK])
    queue_offsets = _find(call, block) if _is_common(call, block) else []
    if not queue_offsets:
        return 0
    write(call[words.OFFSETS], struct.pack(f"={len(queue_offsets)}q", *queue_offsets))
    body = _checkpoint(call, queue_offsets)
    if len(body) > words.BODY_BYTES_MAX:
        return 0
    data = _record(call, body)
    block[state.INPUT_POSITION] = 0
    block[state.INPUT_SIZE] = len(data)
    block[state.INPUT_TIME] = call[words.STORE_MS]
    block[state.PLACES] = call.address + 8 * words.RESULT_PHYSICAL_OFFSET
    if not hot_twin.append(ctypes.c_int64(block.address), data):
        return 0
    call[words.RESULT_SIZE] = len(data)
    info = pop_codec.message_info("", call[words.QUEUE_ID], queue_offsets).encode()
    write(call[words.INFO], info)
    call[words.RESULT_INFO_SIZE] = len(info)
    return len(queue_offsets)
