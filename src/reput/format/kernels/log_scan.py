"""Kernel: scan a log buffer into segments, each a record, a blank, zeros or damage.

Segments tile the scanned range without gap or overlap. Framing damage ends at the next record whose
lengths are valid and whose physical offset is its own: with eight bytes of offset, a false match in
a body is all but impossible. ``reput.format.message.classify`` and ``reference.scan`` define what
these functions must return.
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
SECTOR_BYTES = record.SECTOR_BYTES
CRC_PREFIX = int.from_bytes(record.CRC_PROPERTY_PREFIX[:8], "little", signed=True)
TOPIC_MAX_V1 = record.TOPIC_BYTES_MAX_V1
MAGIC_LEAD = MAGIC_V1 >> 24 & 255
BLANK_LEAD = MAGIC_BLANK >> 24 & 255


@njit(**COMPILE_OPTIONS)
def born_to_tail(sys_flag):
    """Return the size of the fields from BORNHOST up to RECONSUMETIMES, bytes."""
    size = HOST_V4 + STORE_TIMESTAMP_BYTES + HOST_V4
    if sys_flag & BORN_V6:
        size += V6_EXTRA
    if sys_flag & STORE_V6:
        size += V6_EXTRA
    return size


@njit(**COMPILE_OPTIONS)
def topic_length_bytes(magic):
    """Return the width of TOPICLEN, bytes."""
    return 2 if magic == MAGIC_V2 else 1


@njit(**COMPILE_OPTIONS)
def load_topic_length(address, magic):
    """Return TOPICLEN."""
    return load_u16(address) if magic == MAGIC_V2 else load_u8(address)


@njit(**COMPILE_OPTIONS)
def frame(address, left, file_left, physical_offset):
    """Return the verdict on the head and lengths at an address, without the checksums.

    Zeros are BAD_ZEROS: the caller finds out whether they reach the end.
    """
    if left < file_left and left < JUDGED:
        return TRUNCATED
    if left < HEAD_WORD:
        return BAD_SIZE
    size = load_i32(address)
    magic = load_i32(address + AT_MAGIC)
    if size == 0 and magic == 0:
        return BAD_ZEROS
    if magic == MAGIC_BLANK:
        return BLANK if size == file_left else BAD_SIZE
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return BAD_MAGIC
    width = topic_length_bytes(magic)
    if size < FIXED_V1 - 1 + width or size > file_left:
        return BAD_SIZE
    own_offset = load_i64(address + AT_PHYSICAL_OFFSET)
    if size > left:
        return TRUNCATED if own_offset == physical_offset else BAD_PHYSICAL_OFFSET
    end = address + size
    tail = address + AT_BORN_HOST + born_to_tail(load_i32(address + AT_SYS_FLAG))
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
def record_crc(table, address, size):
    """Compare a record with its ``__CRC32#`` property, if it has one; digits are reversed."""
    start = address + size - CRC_BYTES
    if get_i64(start) != CRC_PREFIX or get_u8(start + 8) != 1 or get_u8(start + 19) != 2:
        return MESSAGE
    value = 0
    for i in range(9, -1, -1):
        digit = get_u8(start + 9 + i) - 48
        if digit < 0 or digit > 9:
            return MESSAGE
        value = value * 10 + digit
    crc = crc32(table, address, size - CRC_BYTES) & 0x7FFFFFFF
    return MESSAGE if value == crc else BAD_RECORD_CRC


@njit(**COMPILE_OPTIONS)
def checksums(table, address, size):
    """Return the verdict on the body and record checksums of a framed record."""
    tail = address + AT_BORN_HOST + born_to_tail(load_i32(address + AT_SYS_FLAG))
    body_length = load_i32(tail + BODY_LENGTH_IN_TAIL)
    if body_length > 0:
        crc = crc32(table, tail + TAIL_BYTES, body_length) & 0x7FFFFFFF
        if crc != load_i32(address + AT_BODY_CRC):
            return BAD_CRC
    magic = load_i32(address + AT_MAGIC)
    topic = tail + TAIL_BYTES + body_length
    properties = topic + topic_length_bytes(magic) + load_topic_length(topic, magic)
    if load_i16(properties) >= CRC_BYTES:
        return record_crc(table, address, size)
    return MESSAGE


@njit(**COMPILE_OPTIONS)
def zeros_until(address, end):
    """Return the first address from ``at`` that is not zero, or ``end``."""
    while end - address >= 8 and get_i64(address) == 0:
        address += 8
    while address < end and get_u8(address) == 0:
        address += 1
    return address


@njit(**COMPILE_OPTIONS)
def ends_in_zeros(properties, properties_end, end):
    """Return whether the properties in a record's last sector are zeros; see ``format.message``.

    ``end`` is the end of the record: a position in its file.
    """
    if properties == properties_end or get_u8(properties_end - 1) != 0:
        return False
    start = max(properties, properties_end - ((end - 1) % SECTOR_BYTES + 1))
    return zeros_until(start, properties_end) == properties_end


@njit(**COMPILE_OPTIONS)
def last_data(start, end):
    """Return the address after the last byte that is not zero; else ``start``."""
    address = end
    while address - start >= 8 and get_i64(address - 8) == 0:
        address -= 8
    while address > start and get_u8(address - 1) == 0:
        address -= 1
    return address


@njit(**COMPILE_OPTIONS)
def resync(buffer, position, end, file_end, base):
    """Return the position of the next framed record or blank, or ``end``."""
    candidate = position
    size_min = JUDGED if end < file_end else HEAD_WORD  # fewer bytes of a part prove nothing
    while end - candidate >= size_min:
        lead = get_u8(buffer + candidate + AT_MAGIC)
        if lead == MAGIC_LEAD or lead == BLANK_LEAD:
            verdict = frame(
                buffer + candidate, end - candidate, file_end - candidate, base + candidate
            )
            if verdict == MESSAGE or verdict == BLANK or verdict == TRUNCATED:
                return candidate
        candidate += 1
    return end


@njit(**COMPILE_OPTIONS)
def unjudged(position, end):
    """Return the position in a part from which too few bytes are left to judge."""
    return max(position + 1, end - JUDGED + 1)


@njit(**COMPILE_OPTIONS)
def damage_end(buffer, position, end, file_end, base):
    """Return the end of damage at ``position``: the next record, or the start of the last zeros."""
    next_record = resync(buffer, position + 1, end, file_end, base)
    if next_record < end:
        return next_record
    if end < file_end:
        return unjudged(position, end)
    data_end_position = last_data(buffer + position, buffer + end) - buffer
    # Fewer zeros than a head word may be part of the damage.
    return (
        data_end_position
        if end - data_end_position >= HEAD_WORD and data_end_position > position
        else end
    )


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
    """Entry point: scan the records that start in ``[start, stop)``.

    The arguments are addresses (``buffer, table, positions, sizes, verdicts, next_position``) and
    positions in the buffer. ``base`` is the physical offset of position 0, ``end`` the end of the
    bytes, ``file_end`` that of the file, ``room`` the maximum of segments. The scan stops before a
    record that is cut by ``end`` but not by ``file_end``, and where too few bytes are left to
    judge. Return the number of segments.
    """
    position = start
    count = 0
    while position < stop and count < room:
        verdict = frame(buffer + position, end - position, file_end - position, base + position)
        if verdict == MESSAGE:
            size = load_i32(buffer + position)
            if check:
                verdict = checksums(table, buffer + position, size)
        elif verdict == BLANK:
            size = file_end - position
        elif verdict == TRUNCATED:
            break
        else:
            zeros_end = zeros_until(buffer + position, buffer + end) - buffer
            if zeros_end == end:
                verdict = ZEROS
                # The last zeros of a part may be the first bytes of a TOTALSIZE.
                size = (unjudged(position, end) if end < file_end else end) - position
            else:
                size = damage_end(buffer, position, end, file_end, base) - position
        put_i64(positions + 8 * count, position)
        put_i32(sizes + 4 * count, size)
        put_u8(verdicts + count, verdict)
        count += 1
        position += size
    put_i64(next_position, position)
    return count


@njit(**COMPILE_OPTIONS)
def judge(buffer, end, file_end, base, check, table, positions, count, sizes, verdicts):
    """Entry point: judge the records at ``count`` given positions, each within the buffer.

    Sizes are those in the records, 0 for a record that is not framed. Return the number of
    messages.
    """
    good = 0
    for i in range(count):
        position = get_i64(positions + 8 * i)
        verdict = frame(buffer + position, end - position, file_end - position, base + position)
        size = 0
        if verdict == MESSAGE or verdict == TRUNCATED:
            size = load_i32(buffer + position) if end - position >= JUDGED else 0
        elif verdict == BLANK:
            size = file_end - position
        if verdict == MESSAGE and check:
            verdict = checksums(table, buffer + position, size)
        if verdict == MESSAGE:
            good += 1
        put_i32(sizes + 4 * i, size)
        put_u8(verdicts + i, verdict)
    return good


@njit(**COMPILE_OPTIONS)
def find_record(buffer, position, end, file_end, base):
    """Entry point: return the position of the next framed record or blank, or ``end``."""
    return resync(buffer, position, end, file_end, base)


@njit(**COMPILE_OPTIONS)
def data_end(buffer, start, end):
    """Entry point: return the position after the last byte that is not zero."""
    return last_data(buffer + start, buffer + end) - buffer


ENTRY_POINTS = {
    "scan": (int, int, int, int, int, int, int, int, int, int, int, int, int),
    "judge": (int, int, int, int, int, int, int, int, int, int),
    "find_record": (int, int, int, int, int),
    "data_end": (int, int, int),
}
"""Entry points and their arguments. Results are numbers."""
