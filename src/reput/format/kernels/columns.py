"""Kernels: decode records into columns, straight into the buffers that Arrow will own.

``locate`` reads the fixed fields and finds the texts of each record; ``parse_properties`` splits
property strings; both leave (address, size) pairs, so that a caller can put other bytes in place
(a decompressed body, a repaired text) before ``gather`` copies them side by side.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import message as record, properties as props
from reput.format.kernels.hashes import is_utf8, same_bytes
from reput.format.kernels.log_scan import (
    AT_BODY_CRC,
    AT_BORN_HOST,
    AT_MAGIC,
    AT_PHYSICAL_OFFSET,
    AT_SYS_FLAG,
    BORN_V6,
    HOST_V4,
    STORE_V6,
    TAIL_BYTES,
    V6_EXTRA,
    load_topic_length,
    topic_length_bytes,
)
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_i32,
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

AT_QUEUE_ID = record.POSITION_QUEUE_ID
AT_FLAG = record.POSITION_FLAG
AT_QUEUE_OFFSET = record.POSITION_QUEUE_OFFSET
AT_BORN_TIMESTAMP = record.POSITION_BORN_TIMESTAMP
PORT_BYTES = record.PORT.size

NAME_VALUE = ord(props.NAME_VALUE_SEPARATOR)
PAIR_END = ord(props.PROPERTY_SEPARATOR)
SPACE = ord(props.KEY_SEPARATOR)


def _word(text: str) -> int:
    return int.from_bytes(text.encode(), "little")


TAGS = _word(props.TAGS)
KEYS = _word(props.KEYS)
UNIQ_KEY = int.from_bytes(props.UNIQ_KEY.encode(), "little", signed=True)


@njit(**COMPILE_OPTIONS)
def column(table, number):
    """Return the address of a column from the table."""
    return get_i64(table + 8 * number)


@njit(**COMPILE_OPTIONS)
def locate(buffer, positions, count, table):
    """Entry point: fixed fields and text places of ``count`` records (see ``layout.LOCATED``)."""
    for i in range(count):
        at = buffer + get_i64(positions + 8 * i)
        magic = load_i32(at + AT_MAGIC)
        sys_flag = load_i32(at + AT_SYS_FLAG)
        born_host = at + AT_BORN_HOST
        store_timestamp = born_host + HOST_V4 + (V6_EXTRA if sys_flag & BORN_V6 else 0)
        store_host = store_timestamp + 8
        tail = store_host + HOST_V4 + (V6_EXTRA if sys_flag & STORE_V6 else 0)
        body = tail + TAIL_BYTES
        body_size = load_i32(body - 4)
        topic_size = load_topic_length(body + body_size, magic)
        topic = body + body_size + topic_length_bytes(magic)
        properties = topic + topic_size + 2
        properties_size = load_i16(properties - 2)
        put_i32(column(table, 0) + 4 * i, load_i32(at + AT_QUEUE_ID))
        put_i32(column(table, 1) + 4 * i, load_i32(at + AT_FLAG))
        put_i64(column(table, 2) + 8 * i, load_i64(at + AT_QUEUE_OFFSET))
        put_i64(column(table, 3) + 8 * i, load_i64(at + AT_PHYSICAL_OFFSET))
        put_i32(column(table, 4) + 4 * i, sys_flag)
        put_i64(column(table, 5) + 8 * i, load_i64(at + AT_BORN_TIMESTAMP))
        put_i64(column(table, 6) + 8 * i, load_i64(store_timestamp))
        put_i32(column(table, 7) + 4 * i, load_i32(tail))
        put_i64(column(table, 8) + 8 * i, load_i64(tail + 4))
        put_i32(column(table, 9) + 4 * i, load_i32(at + AT_BODY_CRC))
        put_i32(column(table, 10) + 4 * i, load_i32(at))
        put_i64(column(table, 11) + 8 * i, body)
        put_i32(column(table, 12) + 4 * i, body_size)
        put_i64(column(table, 13) + 8 * i, topic)
        put_i32(column(table, 14) + 4 * i, topic_size)
        put_i64(column(table, 15) + 8 * i, properties)
        put_i32(column(table, 16) + 4 * i, properties_size)
        put_i64(column(table, 17) + 8 * i, born_host)
        put_i64(column(table, 18) + 8 * i, store_host)
        good = is_utf8(topic, topic_size) and is_utf8(properties, properties_size)
        put_u8(column(table, 19) + i, 1 if good else 0)
    return count


@njit(**COMPILE_OPTIONS)
def find_byte(at, end, byte):
    """Return the address of the next ``byte``, or ``end``."""
    while at < end and get_u8(at) != byte:
        at += 1
    return at


@njit(**COMPILE_OPTIONS)
def drop_earlier(first, count, names, name_sizes, values, value_sizes, name, name_size):
    """Take out the pair of the same name from a record's pairs so far; return their number then."""
    for i in range(first, count):
        if get_i32(name_sizes + 4 * i) == name_size and same_bytes(
            get_i64(names + 8 * i), name, name_size
        ):
            for j in range(i + 1, count):
                put_i64(names + 8 * (j - 1), get_i64(names + 8 * j))
                put_i32(name_sizes + 4 * (j - 1), get_i32(name_sizes + 4 * j))
                put_i64(values + 8 * (j - 1), get_i64(values + 8 * j))
                put_i32(value_sizes + 4 * (j - 1), get_i32(value_sizes + 4 * j))
            return count - 1
    return count


@njit(**COMPILE_OPTIONS)
def note(known, known_sizes, i, value, value_size):
    """Keep where the value of a property with a column of its own stands."""
    put_i64(known + 8 * i, value)
    put_i32(known_sizes + 4 * i, value_size)


@njit(**COMPILE_OPTIONS)
def parse_properties(
    strings,
    string_sizes,
    count,
    offsets,
    names,
    name_sizes,
    values,
    value_sizes,
    tags,
    tags_sizes,
    keys,
    keys_sizes,
    unique,
    unique_sizes,
):
    """Entry point: split ``count`` property strings into pairs; of equal names the last one stays.

    ``offsets`` (int32, ``count + 1``) delimits each record's pairs. TAGS, KEYS and UNIQ_KEY are
    noted per record too, with size 0 where absent. Returns the number of pairs.
    """
    pairs = 0
    put_i32(offsets, 0)
    for i in range(count):
        at = get_i64(strings + 8 * i)
        end = at + get_i32(string_sizes + 4 * i)
        first = pairs
        note(tags, tags_sizes, i, 0, 0)
        note(keys, keys_sizes, i, 0, 0)
        note(unique, unique_sizes, i, 0, 0)
        while at < end:
            separator = at
            while (
                separator < end
                and get_u8(separator) != NAME_VALUE
                and get_u8(separator) != PAIR_END
            ):
                separator += 1
            value = separator + 1
            pair_end = separator
            if separator < end and get_u8(separator) == NAME_VALUE:
                pair_end = find_byte(value, end, PAIR_END)
            name_size = separator - at
            value_size = pair_end - value
            if name_size > 0 and value_size > 0:
                pairs = drop_earlier(
                    first, pairs, names, name_sizes, values, value_sizes, at, name_size
                )
                put_i64(names + 8 * pairs, at)
                put_i32(name_sizes + 4 * pairs, name_size)
                put_i64(values + 8 * pairs, value)
                put_i32(value_sizes + 4 * pairs, value_size)
                pairs += 1
                if name_size == 4:
                    word = get_i32(at)
                    if word == TAGS:
                        note(tags, tags_sizes, i, value, value_size)
                    elif word == KEYS:
                        note(keys, keys_sizes, i, value, value_size)
                elif name_size == 8 and get_i64(at) == UNIQ_KEY:
                    note(unique, unique_sizes, i, value, value_size)
            at = pair_end + 1
        put_i32(offsets + 4 * (i + 1), pairs)
    return pairs


@njit(**COMPILE_OPTIONS)
def split_words(texts, text_sizes, count, offsets, words, word_sizes):
    """Entry point: split texts on single spaces, dropping empty words; returns how many words."""
    total = 0
    put_i32(offsets, 0)
    for i in range(count):
        at = get_i64(texts + 8 * i)
        end = at + get_i32(text_sizes + 4 * i)
        while at < end:
            word_end = find_byte(at, end, SPACE)
            if word_end > at:
                put_i64(words + 8 * total, at)
                put_i32(word_sizes + 4 * total, word_end - at)
                total += 1
            at = word_end + 1
        put_i32(offsets + 4 * (i + 1), total)
    return total


@njit(**COMPILE_OPTIONS)
def gather(addresses, sizes, count, offsets, data):
    """Entry point: copy ``count`` runs side by side, with int32 offsets; returns the bytes."""
    total = 0
    put_i32(offsets, 0)
    for i in range(count):
        size = get_i32(sizes + 4 * i)
        copy(data + total, get_i64(addresses + 8 * i), size)
        total += size
        put_i32(offsets + 4 * (i + 1), total)
    return total


@njit(**COMPILE_OPTIONS)
def put_decimal(at, value):
    """Write a number in decimal; return the address behind it."""
    if value < 0:
        put_u8(at, 45)
        at += 1
        value = -value
    width = 1
    power = 10
    while value >= power:
        power *= 10
        width += 1
    for i in range(width - 1, -1, -1):
        put_u8(at + i, 48 + value % 10)
        value //= 10
    return at + width


@njit(**COMPILE_OPTIONS)
def hex_digit(value, letters):
    """Return the character of a hexadecimal digit; ``letters`` is the code of ``a`` or ``A``."""
    return 48 + value if value < 10 else letters + value - 10


@njit(**COMPILE_OPTIONS)
def put_group(at, value):
    """Write a group of an IPv6 address, lower case without leading zeros."""
    shift = 12
    while shift > 0 and value >> shift == 0:
        shift -= 4
    while shift >= 0:
        put_u8(at, hex_digit(value >> shift & 15, 97))
        at += 1
        shift -= 4
    return at


@njit(**COMPILE_OPTIONS)
def put_host(at, host, is_v6):
    """Write a host as text; return the address behind it."""
    if is_v6:
        put_u8(at, 91)  # [
        at += 1
        for i in range(8):
            if i:
                put_u8(at, 58)  # :
                at += 1
            at = put_group(at, load_u16(host + 2 * i))
        put_u8(at, 93)  # ]
        at += 1
        host += 16
    else:
        for i in range(4):
            if i:
                put_u8(at, 46)  # .
                at += 1
            at = put_decimal(at, load_u8(host + i))
        host += 4
    put_u8(at, 58)  # :
    return put_decimal(at + 1, load_i32(host))


@njit(**COMPILE_OPTIONS)
def host_texts(hosts, sys_flags, v6_bit, count, offsets, data):
    """Entry point: ``ip:port`` or ``[ip6]:port`` of ``count`` hosts; returns the bytes written."""
    at = data
    put_i32(offsets, 0)
    for i in range(count):
        at = put_host(at, get_i64(hosts + 8 * i), get_i32(sys_flags + 4 * i) & v6_bit)
        put_i32(offsets + 4 * (i + 1), at - data)
    return at - data


@njit(**COMPILE_OPTIONS)
def put_hex(at, source, size):
    """Write bytes in upper-case hexadecimal; return the address behind it."""
    for i in range(size):
        byte = get_u8(source + i)
        put_u8(at, hex_digit(byte >> 4, 65))
        put_u8(at + 1, hex_digit(byte & 15, 65))
        at += 2
    return at


@njit(**COMPILE_OPTIONS)
def offset_ids(hosts, sys_flags, records, v6_bit, count, offsets, data):
    """Entry point: offset ids; ``records`` are record addresses. Returns the bytes written."""
    at = data
    put_i32(offsets, 0)
    for i in range(count):
        is_v6 = get_i32(sys_flags + 4 * i) & v6_bit
        host_size = (16 if is_v6 else 4) + PORT_BYTES
        at = put_hex(at, get_i64(hosts + 8 * i), host_size)
        at = put_hex(at, get_i64(records + 8 * i) + AT_PHYSICAL_OFFSET, 8)
        put_i32(offsets + 4 * (i + 1), at - data)
    return at - data


ENTRY_POINTS = {
    "locate": 4,
    "parse_properties": 14,
    "split_words": 6,
    "gather": 5,
    "host_texts": 6,
    "offset_ids": 7,
}
"""Name to number of arguments; all are int64, and so is the result."""
