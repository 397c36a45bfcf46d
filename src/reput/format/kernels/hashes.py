"""Kernels: CRC-32, Java's string hash over UTF-8, UTF-8 validity, equal bytes, numbered names."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format.kernels import crc_fold
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    fold_crc,
    get_i32,
    get_i64,
    get_u8,
    get_u32,
    put_i32,
    put_i64,
)

LOW_32 = 0xFFFFFFFF
FOLD_BYTES_MIN = crc_fold.BYTES_MIN
CAN_FOLD = 16 * 256 * 4
"""Position of a word after the CRC tables: whether this processor can fold."""
HIGH_BITS = -0x7F7F7F7F7F7F7F80  # 0x80 in each byte, as a signed 64-bit number


@njit(**COMPILE_OPTIONS)
def table_entry(table, row, byte):
    """Return one word of the CRC tables."""
    return get_u32(table + (row * 256 + byte) * 4)


@njit(**COMPILE_OPTIONS)
def crc32(table, address, size):
    """Return zlib's CRC-32 of ``size`` bytes: by folding where the processor can, else by tables.

    ``table`` is the address of ``native.crc_tables``.
    """
    crc = LOW_32
    cursor = address
    end = address + size
    if size >= FOLD_BYTES_MIN and get_u32(table + CAN_FOLD):
        whole = size - size % 16
        crc = fold_crc(crc, cursor, whole)
        cursor += whole
    while end - cursor >= 16:
        a = get_u32(cursor) ^ crc
        b = get_u32(cursor + 4)
        c = get_u32(cursor + 8)
        d = get_u32(cursor + 12)
        crc = (
            table_entry(table, 15, a & 255)
            ^ table_entry(table, 14, (a >> 8) & 255)
            ^ table_entry(table, 13, (a >> 16) & 255)
            ^ table_entry(table, 12, a >> 24)
            ^ table_entry(table, 11, b & 255)
            ^ table_entry(table, 10, (b >> 8) & 255)
            ^ table_entry(table, 9, (b >> 16) & 255)
            ^ table_entry(table, 8, b >> 24)
            ^ table_entry(table, 7, c & 255)
            ^ table_entry(table, 6, (c >> 8) & 255)
            ^ table_entry(table, 5, (c >> 16) & 255)
            ^ table_entry(table, 4, c >> 24)
            ^ table_entry(table, 3, d & 255)
            ^ table_entry(table, 2, (d >> 8) & 255)
            ^ table_entry(table, 1, (d >> 16) & 255)
            ^ table_entry(table, 0, d >> 24)
        )
        cursor += 16
    while cursor < end:
        crc = (crc >> 8) ^ table_entry(table, 0, (crc ^ get_u8(cursor)) & 255)
        cursor += 1
    return crc ^ LOW_32


@njit(**COMPILE_OPTIONS)
def utf8_length(lead):
    """Return the bytes of a character by its first byte; 0 if no character starts with it."""
    if lead < 0x80:
        return 1
    if 0xC2 <= lead < 0xE0:
        return 2
    if 0xE0 <= lead < 0xF0:
        return 3
    if 0xF0 <= lead < 0xF5:
        return 4
    return 0


@njit(**COMPILE_OPTIONS)
def is_utf8_character(cursor, lead, length):
    """Return whether the continuation bytes of a character are valid.

    No overlong form, no surrogate, nothing over U+10FFFF.
    """
    second = get_u8(cursor + 1)
    if second & 0xC0 != 0x80:
        return False
    if length >= 3 and get_u8(cursor + 2) & 0xC0 != 0x80:
        return False
    if length == 4 and get_u8(cursor + 3) & 0xC0 != 0x80:
        return False
    if lead == 0xE0:
        return second >= 0xA0
    if lead == 0xED:
        return second < 0xA0
    if lead == 0xF0:
        return second >= 0x90
    if lead == 0xF4:
        return second < 0x90
    return True


@njit(**COMPILE_OPTIONS)
def is_utf8(address, size):
    """Return whether the bytes are well-formed UTF-8."""
    cursor = address
    end = address + size
    while cursor < end:
        if end - cursor >= 8 and get_i64(cursor) & HIGH_BITS == 0:
            cursor += 8
            continue
        lead = get_u8(cursor)
        length = utf8_length(lead)
        if length == 0 or cursor + length > end:
            return False
        if length > 1 and not is_utf8_character(cursor, lead, length):
            return False
        cursor += length
    return True


@njit(**COMPILE_OPTIONS)
def java_hash(start, address, size):
    """Continue a Java string hash over well-formed UTF-8; return it unsigned."""
    value = start
    cursor = address
    end = address + size
    while cursor < end:
        lead = get_u8(cursor)
        if lead < 0x80:
            value = (value * 31 + lead) & LOW_32
            cursor += 1
        elif lead < 0xE0:
            value = (value * 31 + ((lead & 0x1F) << 6 | get_u8(cursor + 1) & 0x3F)) & LOW_32
            cursor += 2
        elif lead < 0xF0:
            unit = (lead & 0xF) << 12 | (get_u8(cursor + 1) & 0x3F) << 6 | get_u8(cursor + 2) & 0x3F
            value = (value * 31 + unit) & LOW_32
            cursor += 3
        else:
            high = (lead & 0x7) << 18 | (get_u8(cursor + 1) & 0x3F) << 12
            point = (high | (get_u8(cursor + 2) & 0x3F) << 6 | get_u8(cursor + 3) & 0x3F) - 0x10000
            value = (value * 31 + 0xD800 + (point >> 10)) & LOW_32
            value = (value * 31 + 0xDC00 + (point & 0x3FF)) & LOW_32
            cursor += 4
    return value


@njit(**COMPILE_OPTIONS)
def signed32(value):
    """Return an unsigned 32-bit number as Java's int."""
    return value - (LOW_32 + 1) if value > 0x7FFFFFFF else value


@njit(**COMPILE_OPTIONS)
def same_bytes(a, b, size):
    """Return whether two runs of bytes are equal."""
    i = 0
    while i + 8 <= size:
        if get_i64(a + i) != get_i64(b + i):
            return False
        i += 8
    while i < size:
        if get_u8(a + i) != get_u8(b + i):
            return False
        i += 1
    return True


@njit(**COMPILE_OPTIONS)
def checksum(table, address, size):
    """Entry point: return the BODYCRC of a run of bytes."""
    return crc32(table, address, size) & 0x7FFFFFFF


@njit(**COMPILE_OPTIONS)
def text_hashes(addresses, sizes, count, hashes):
    """Entry point: write the Java hashes (int64) of ``count`` well-formed texts."""
    for i in range(count):
        value = java_hash(0, get_i64(addresses + 8 * i), get_i32(sizes + 4 * i))
        put_i64(hashes + 8 * i, signed32(value))
    return count


@njit(**COMPILE_OPTIONS)
def key_hashes(topics, topic_sizes, rows, keys, key_sizes, count, prefix, prefix_size, hashes):
    """Entry point: write the index hashes of ``topic#[prefix]key``.

    ``rows`` has for each key the row whose topic it belongs to.
    """
    for i in range(count):
        row = get_i64(rows + 8 * i)
        value = java_hash(0, get_i64(topics + 8 * row), get_i32(topic_sizes + 4 * row))
        value = (value * 31 + 35) & LOW_32  # '#'
        value = java_hash(value, prefix, prefix_size)
        value = java_hash(value, get_i64(keys + 8 * i), get_i32(key_sizes + 4 * i))
        number = signed32(value)
        if number == -0x80000000:
            number = 0
        put_i32(hashes + 4 * i, abs(number))
    return count


@njit(**COMPILE_OPTIONS)
def name_slot(address, size, slot_count):
    """Return the first slot of a table to try for a name: the FNV-1a hash of its bytes."""
    value = 0x811C9DC5
    for i in range(size):
        value = ((value ^ get_u8(address + i)) * 0x01000193) & LOW_32
    return value & (slot_count - 1)


@njit(**COMPILE_OPTIONS)
def intern(addresses, sizes, count, slots, slot_count, firsts, known, ids):
    """Entry point: number names by their bytes, in order of first appearance.

    ``slots`` is an open-addressing table of ``slot_count`` (a power of two, over ``count``) int32,
    filled with -1; ``firsts[n]`` becomes the first row with name ``n``. Return the number of names.
    """
    for i in range(count):
        address = get_i64(addresses + 8 * i)
        size = get_i32(sizes + 4 * i)
        slot = name_slot(address, size, slot_count)
        while True:
            name = get_i32(slots + 4 * slot)
            if name < 0:
                put_i32(slots + 4 * slot, known)
                put_i64(firsts + 8 * known, i)
                name = known
                known += 1
                break
            row = get_i64(firsts + 8 * name)
            if get_i32(sizes + 4 * row) == size and same_bytes(
                get_i64(addresses + 8 * row), address, size
            ):
                break
            slot = (slot + 1) & (slot_count - 1)
        put_i32(ids + 4 * i, name)
    return known


ENTRY_POINTS = {
    "checksum": (int, int, int),
    "text_hashes": (int, int, int, int),
    "key_hashes": (int, int, int, int, int, int, int, int, int),
    "intern": (int, int, int, int, int, int, int, int),
}
"""Entry points and their arguments. Results are numbers."""
