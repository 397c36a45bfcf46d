"""Kernel: turn the messages of a batch into concatenated records without offsets.

``batch_records`` does for each message what ``store.writing.incoming.encode`` does for one. The
caller makes the common parts once: the fields before the body, and the topic.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import batch, message as record, properties as props
from reput.format.kernels.columns import NAME_VALUE, PAIR_END, SPACE, find_byte, is_among_parts
from reput.format.kernels.hashes import is_utf8
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_u8,
    load_i16,
    load_i32,
    put_i64,
    put_u8,
    store_i16,
    store_i32,
)

FIXED_BYTES = batch.FIXED_BYTES
HEAD_BYTES = batch.HEAD.size
AT_FLAG = batch.FLAG_POSITION
AT_BODY_LENGTH = HEAD_BYTES - 4
AT_RECORD_FLAG = record.POSITION_FLAG
PROPERTIES_LENGTH_BYTES = record.PROPERTIES_LENGTH.size
PROPERTIES_MAX = props.LENGTH_MAX


@njit(**COMPILE_OPTIONS)
def count_byte(address, end, byte):
    """Return the number of times that a byte occurs."""
    count = 0
    while address < end:
        count += 1 if get_u8(address) == byte else 0
        address += 1
    return count


@njit(**COMPILE_OPTIONS)
def keep_pairs(address, end, dropped, dropped_size, target):
    """Copy properties without the dropped ones, each with its separator; return their size.

    Return also whether the last separator is missing. With ``target`` 0 nothing is copied.
    """
    size = 0
    lacks_end = 0
    while address < end:
        pair_end = find_byte(address, end, PAIR_END)
        next_pair = min(pair_end + 1, end)
        name_end = find_byte(address, pair_end, NAME_VALUE)
        if not is_among_parts(address, name_end - address, dropped, dropped_size, PAIR_END):
            if target != 0:
                copy(target + size, address, next_pair - address)
            size += next_pair - address
            lacks_end = 1 if pair_end == end else 0
        address = next_pair
    return size, lacks_end


@njit(**COMPILE_OPTIONS)
def put_properties(address, end, more, target):
    """Write the stored properties of a message; return their size.

    With ``target`` 0 they are not written.
    """
    dropped, dropped_size, tail, tail_size = more
    if dropped_size > 0:
        size, lacks_end = keep_pairs(address, end, dropped, dropped_size, target)
    else:
        size = end - address
        lacks_end = 1 if size > 0 and get_u8(end - 1) != PAIR_END else 0
        if target != 0:
            copy(target, address, size)
    if tail_size > 0:
        if lacks_end:
            if target != 0:
                put_u8(target + size, PAIR_END)
            size += 1
        if target != 0:
            copy(target + size, tail, tail_size)
        size += tail_size
    return size


@njit(**COMPILE_OPTIONS)
def put_record(address, part_size, body_size, stored_size, size, common, more, target):
    """Write the record of a message."""
    head, head_size, topic, topic_size = common
    copy(target, head, head_size)
    store_i32(target, size)
    store_i32(target + AT_RECORD_FLAG, load_i32(address + AT_FLAG))
    store_i32(target + head_size - 4, body_size)
    target += head_size
    copy(target, address + HEAD_BYTES, body_size)
    target += body_size
    copy(target, topic, topic_size)
    target += topic_size
    store_i16(target, stored_size)
    put_properties(
        address + FIXED_BYTES + body_size,
        address + part_size,
        more,
        target + PROPERTIES_LENGTH_BYTES,
    )


@njit(**COMPILE_OPTIONS)
def batch_records(
    body, size, head, head_size, topic, topic_size, dropped, dropped_size, tail, tail_size,
    record_max, target, result,
):  # fmt: skip
    """Entry point: make the records of a batch body, up to the first message that is not valid.

    The arguments are addresses and sizes: of the body; of the fields of a record before its body,
    and of its topic with its length, both the same for all; of the names of properties that are
    left out, each with a separator at its end; of the text that is appended to properties.
    ``target`` has room for all records; 0: they are only counted. Three words are written to
    ``result``: the position in the body after the last message, the bytes of the records, and the
    number of spaces in their properties, which separate keys. Return the number of messages.
    """
    common = head, head_size, topic, topic_size
    more = dropped, dropped_size, tail, tail_size
    end = body + size
    address = body
    total = 0
    spaces = 0
    count = 0
    while end - address >= FIXED_BYTES:
        part_size = load_i32(address)
        body_size = load_i32(address + AT_BODY_LENGTH)
        if part_size > end - address or body_size < 0 or body_size > part_size - FIXED_BYTES:
            break
        properties = address + FIXED_BYTES + body_size
        properties_size = load_i16(properties - PROPERTIES_LENGTH_BYTES)
        if properties_size < 0 or properties + properties_size != address + part_size:
            break
        if not is_utf8(properties, properties_size):
            break
        stored_size = put_properties(properties, address + part_size, more, 0)
        record_size = head_size + body_size + topic_size + PROPERTIES_LENGTH_BYTES + stored_size
        if stored_size > PROPERTIES_MAX or record_size > record_max:
            break
        if target != 0:
            put_record(
                address,
                part_size,
                body_size,
                stored_size,
                record_size,
                common,
                more,
                target + total,
            )
        spaces += count_byte(properties, address + part_size, SPACE)
        total += record_size
        count += 1
        address += part_size
    put_i64(result, address - body)
    put_i64(result + 8, total)
    put_i64(result + 16, spaces)
    return count


ENTRY_POINTS = {"batch_records": (int, int, int, int, int, int, int, int, int, int, int, int, int)}
"""Entry points and their arguments. Results are numbers."""
