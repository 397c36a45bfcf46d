"""Kernel: walk a log buffer into segments, each a record, a blank, zeros or damage.

Segments tile the walked range without gap or overlap. Framing damage ends where a record with right
lengths says of itself that it stands just there: its own offset, eight bytes of it, makes a false
hit in a body all but impossible. ``reput.format.message.classify`` and ``reference.scan`` define
what these functions must return.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import message as record, sys_flag as flags
from reput.format.kernels.hashes import crc32
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    get_i64,
    get_u8,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    put_i32,
    put_i64,
    put_u8,
)

MESSAGE = int(record.Verdict.MESSAGE)
BLANK = int(record.Verdict.BLANK)
ZEROS = int(record.Verdict.ZEROS)
TRUNCATED = int(record.Verdict.TRUNCATED)
BAD_SIZE = int(record.Verdict.BAD_SIZE)
BAD_MAGIC = int(record.Verdict.BAD_MAGIC)
BAD_LENGTH = int(record.Verdict.BAD_LENGTH)
BAD_PHYSICAL_OFFSET = int(record.Verdict.BAD_PHYSICAL_OFFSET)
BAD_CRC = int(record.Verdict.BAD_CRC)
BAD_RECORD_CRC = int(record.Verdict.BAD_RECORD_CRC)
BAD_ZEROS = int(record.Verdict.BAD_ZEROS)

MAGIC_V1 = record.MAGIC_V1
MAGIC_V2 = record.MAGIC_V2
MAGIC_BLANK = record.MAGIC_BLANK
AT_MAGIC = record.POSITION_MAGIC
AT_BODY_CRC = record.POSITION_BODY_CRC
AT_PHYSICAL_OFFSET = record.POSITION_PHYSICAL_OFFSET
AT_SYS_FLAG = record.POSITION_SYS_FLAG
AT_BORN_HOST = record.POSITION_BORN_HOST
HOST_V4 = record.HOST_V4_BYTES
V6_EXTRA = record.HOST_V6_BYTES - record.HOST_V4_BYTES
BORN_V6 = flags.BORN_HOST_V6
STORE_V6 = flags.STORE_HOST_V6
STORE_TIMESTAMP_BYTES = record.STORE_TIMESTAMP.size
TAIL_BYTES = record.TAIL.size
BODY_LENGTH_IN_TAIL = record.TAIL.size - 4
FIXED_V1 = record.FIXED_BYTES_V1
JUDGED = record.JUDGED_BYTES
HEAD_WORD = record.SIZE_AND_MAGIC.size
CRC_BYTES = record.CRC_PROPERTY_BYTES
CRC_PREFIX = int.from_bytes(record.CRC_PROPERTY_PREFIX[:8], "little", signed=True)
TOPIC_MAX_V1 = record.TOPIC_BYTES_MAX_V1
MAGIC_LEAD = MAGIC_V1 >> 24 & 255
BLANK_LEAD = MAGIC_BLANK >> 24 & 255


@njit(**COMPILE_OPTIONS)
def born_to_tail(sys_flag):
    """Return the bytes from BORNHOST to RECONSUMETIMES."""
    size = HOST_V4 + STORE_TIMESTAMP_BYTES + HOST_V4
    if sys_flag & BORN_V6:
        size += V6_EXTRA
    if sys_flag & STORE_V6:
        size += V6_EXTRA
    return size


@njit(**COMPILE_OPTIONS)
def topic_length_bytes(magic):
    """Return the width of TOPICLEN."""
    return 2 if magic == MAGIC_V2 else 1


@njit(**COMPILE_OPTIONS)
def load_topic_length(at, magic):
    """Return TOPICLEN."""
    return load_u16(at) if magic == MAGIC_V2 else load_u8(at)


@njit(**COMPILE_OPTIONS)
def frame(at, left, file_left, physical_offset):
    """Judge the head and lengths of what stands at ``at``; the checksums are left out.

    Zeros are reported as BAD_ZEROS: whether they reach the end is the walker's question.
    """
    if left < file_left and left < JUDGED:
        return TRUNCATED
    if left < HEAD_WORD:
        return BAD_SIZE
    size = load_i32(at)
    magic = load_i32(at + AT_MAGIC)
    if size == 0 and magic == 0:
        return BAD_ZEROS
    if magic == MAGIC_BLANK:
        return BLANK if size == file_left else BAD_SIZE
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return BAD_MAGIC
    width = topic_length_bytes(magic)
    if size < FIXED_V1 - 1 + width or size > file_left:
        return BAD_SIZE
    own_offset = load_i64(at + AT_PHYSICAL_OFFSET)
    if size > left:
        return TRUNCATED if own_offset == physical_offset else BAD_PHYSICAL_OFFSET
    end = at + size
    tail = at + AT_BORN_HOST + born_to_tail(load_i32(at + AT_SYS_FLAG))
    if tail + TAIL_BYTES > end:
        return BAD_LENGTH
    body_length = load_i32(tail + BODY_LENGTH_IN_TAIL)
    topic = tail + TAIL_BYTES + body_length
    if body_length < 0 or topic + width > end:
        return BAD_LENGTH
    topic_length = load_topic_length(topic, magic)
    properties = topic + width + topic_length
    if properties + 2 > end or (magic == MAGIC_V1 and topic_length > TOPIC_MAX_V1):
        return BAD_LENGTH
    property_length = load_i16(properties)
    if property_length < 0 or properties + 2 + property_length != end:
        return BAD_LENGTH
    if own_offset != physical_offset:
        return BAD_PHYSICAL_OFFSET
    return MESSAGE


@njit(**COMPILE_OPTIONS)
def record_crc(table, at, size):
    """Compare a record with the ``__CRC32#`` property it may end with; digits are reversed."""
    start = at + size - CRC_BYTES
    if get_i64(start) != CRC_PREFIX or get_u8(start + 8) != 1 or get_u8(start + 19) != 2:
        return MESSAGE
    value = 0
    for i in range(9, -1, -1):
        digit = get_u8(start + 9 + i) - 48
        if digit < 0 or digit > 9:
            return MESSAGE
        value = value * 10 + digit
    crc = crc32(table, at, size - CRC_BYTES) & 0x7FFFFFFF
    return MESSAGE if value == crc else BAD_RECORD_CRC


@njit(**COMPILE_OPTIONS)
def checksums(table, at, size):
    """Judge body and record checksums of a record whose frame is right."""
    tail = at + AT_BORN_HOST + born_to_tail(load_i32(at + AT_SYS_FLAG))
    body_length = load_i32(tail + BODY_LENGTH_IN_TAIL)
    if body_length > 0:
        crc = crc32(table, tail + TAIL_BYTES, body_length) & 0x7FFFFFFF
        if crc != load_i32(at + AT_BODY_CRC):
            return BAD_CRC
    magic = load_i32(at + AT_MAGIC)
    topic = tail + TAIL_BYTES + body_length
    properties = topic + topic_length_bytes(magic) + load_topic_length(topic, magic)
    if load_i16(properties) >= CRC_BYTES:
        return record_crc(table, at, size)
    return MESSAGE


@njit(**COMPILE_OPTIONS)
def zeros_until(at, end):
    """Return the first address from ``at`` that is not zero, or ``end``."""
    while end - at >= 8 and get_i64(at) == 0:
        at += 8
    while at < end and get_u8(at) == 0:
        at += 1
    return at


@njit(**COMPILE_OPTIONS)
def last_data(start, end):
    """Return the address behind the last byte of ``[start, end)`` that is not zero."""
    at = end
    while at - start >= 8 and get_i64(at - 8) == 0:
        at -= 8
    while at > start and get_u8(at - 1) == 0:
        at -= 1
    return at


@njit(**COMPILE_OPTIONS)
def resync(buffer, position, end, file_end, base):
    """Return the next position where a framed record or blank stands, or ``end``."""
    at = position
    least = JUDGED if end < file_end else HEAD_WORD  # fewer bytes of a part prove nothing
    while end - at >= least:
        lead = get_u8(buffer + at + AT_MAGIC)
        if lead == MAGIC_LEAD or lead == BLANK_LEAD:
            verdict = frame(buffer + at, end - at, file_end - at, base + at)
            if verdict == MESSAGE or verdict == BLANK or verdict == TRUNCATED:
                return at
        at += 1
    return end


@njit(**COMPILE_OPTIONS)
def unjudged(position, end):
    """Return where what follows ``position`` in a part becomes too short to judge."""
    return max(position + 1, end - JUDGED + 1)


@njit(**COMPILE_OPTIONS)
def damage_end(buffer, position, end, file_end, base):
    """Return where damage at ``position`` ends: at the next record, or before the last zeros."""
    found = resync(buffer, position + 1, end, file_end, base)
    if found < end:
        return found
    if end < file_end:
        return unjudged(position, end)
    behind = last_data(buffer + position, buffer + end) - buffer
    # A zero run shorter than a head word cannot be told from the end of what is damaged.
    return behind if end - behind >= HEAD_WORD and behind > position else end


@njit(**COMPILE_OPTIONS)
def scan(
    buffer,
    start,
    stop,
    end,
    file_end,
    base,
    check,
    table,
    positions,
    sizes,
    verdicts,
    room,
    next_position,
):
    """Entry point: walk records that start in ``[start, stop)``.

    Args are addresses (``buffer, table, positions, sizes, verdicts, next_position``) and positions
    within the buffer; ``base`` is the physical offset of position 0, ``end`` where the bytes end,
    ``file_end`` where the file does, ``room`` how many segments fit. A record cut by ``end`` but
    not by ``file_end`` is not taken: the walk stops before it, as it does where too few bytes are
    left to judge. Returns the number of segments.
    """
    at = start
    count = 0
    while at < stop and count < room:
        verdict = frame(buffer + at, end - at, file_end - at, base + at)
        if verdict == MESSAGE:
            size = load_i32(buffer + at)
            if check:
                verdict = checksums(table, buffer + at, size)
        elif verdict == BLANK:
            size = file_end - at
        elif verdict == TRUNCATED:
            break
        else:
            behind = zeros_until(buffer + at, buffer + end) - buffer
            if behind == end:
                verdict = ZEROS
                # The last zeros of a part may be the first bytes of a TOTALSIZE.
                size = (unjudged(at, end) if end < file_end else end) - at
            else:
                size = damage_end(buffer, at, end, file_end, base) - at
        put_i64(positions + 8 * count, at)
        put_i32(sizes + 4 * count, size)
        put_u8(verdicts + count, verdict)
        count += 1
        at += size
    put_i64(next_position, at)
    return count


@njit(**COMPILE_OPTIONS)
def judge(buffer, end, file_end, base, check, table, positions, count, sizes, verdicts):
    """Entry point: judge what stands at ``count`` given positions, each within the buffer.

    Sizes are what the record claims, 0 where it is framed wrong. Returns the number of messages.
    """
    good = 0
    for i in range(count):
        at = get_i64(positions + 8 * i)
        verdict = frame(buffer + at, end - at, file_end - at, base + at)
        size = 0
        if verdict == MESSAGE or verdict == TRUNCATED:
            size = load_i32(buffer + at) if end - at >= JUDGED else 0
        elif verdict == BLANK:
            size = file_end - at
        if verdict == MESSAGE and check:
            verdict = checksums(table, buffer + at, size)
        if verdict == MESSAGE:
            good += 1
        put_i32(sizes + 4 * i, size)
        put_u8(verdicts + i, verdict)
    return good


@njit(**COMPILE_OPTIONS)
def find_record(buffer, position, end, file_end, base):
    """Entry point: position of the next framed record or blank from ``position``, or ``end``."""
    return resync(buffer, position, end, file_end, base)


@njit(**COMPILE_OPTIONS)
def data_end(buffer, start, end):
    """Entry point: position behind the last byte that is not zero."""
    return last_data(buffer + start, buffer + end) - buffer


ENTRY_POINTS = {"scan": 13, "judge": 10, "find_record": 5, "data_end": 3}
"""Name to number of arguments; all are int64, and so is the result."""
