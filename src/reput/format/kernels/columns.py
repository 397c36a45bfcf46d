"""Kernels: decode records into columns, straight into the buffers that Arrow will own.

``locate`` reads the fixed fields and finds the texts of each record; ``parse_properties`` splits
property strings. Both write (address, size) pairs: so callers can replace bytes (a body by its
decompressed form, a malformed text) before ``gather`` concatenates them.
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
    """Return the address of a column in the table."""
    return get_i64(table + 8 * number)


@njit(**COMPILE_OPTIONS)
def locate(buffer, positions, count, table):
    """Entry point: read the fixed fields and locate the texts of ``count`` records.

    The columns are those of ``layout.LOCATED``. Return ``count``.
    """
    for i in range(count):
        address = buffer + get_i64(positions + 8 * i)
        magic = load_i32(address + AT_MAGIC)
        sys_flag = load_i32(address + AT_SYS_FLAG)
        born_host = address + AT_BORN_HOST
        store_timestamp = born_host + HOST_V4 + (V6_EXTRA if sys_flag & BORN_V6 else 0)
        store_host = store_timestamp + 8
        tail = store_host + HOST_V4 + (V6_EXTRA if sys_flag & STORE_V6 else 0)
        body = tail + TAIL_BYTES
        body_size = load_i32(body - 4)
        topic_size = load_topic_length(body + body_size, magic)
        topic = body + body_size + topic_length_bytes(magic)
        properties = topic + topic_size + 2
        properties_size = load_i16(properties - 2)
        put_i32(column(table, 0) + 4 * i, load_i32(address + AT_QUEUE_ID))
        put_i32(column(table, 1) + 4 * i, load_i32(address + AT_FLAG))
        put_i64(column(table, 2) + 8 * i, load_i64(address + AT_QUEUE_OFFSET))
        put_i64(column(table, 3) + 8 * i, load_i64(address + AT_PHYSICAL_OFFSET))
        put_i32(column(table, 4) + 4 * i, sys_flag)
        put_i64(column(table, 5) + 8 * i, load_i64(address + AT_BORN_TIMESTAMP))
        put_i64(column(table, 6) + 8 * i, load_i64(store_timestamp))
        put_i32(column(table, 7) + 4 * i, load_i32(tail))
        put_i64(column(table, 8) + 8 * i, load_i64(tail + 4))
        put_i32(column(table, 9) + 4 * i, load_i32(address + AT_BODY_CRC))
        put_i32(column(table, 10) + 4 * i, load_i32(address))
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
def find_byte(address, end, byte):
    """Return the address of the next ``byte``, or ``end``."""
    while address < end and get_u8(address) != byte:
        address += 1
    return address


@njit(**COMPILE_OPTIONS)
def is_among_parts(text, size, parts, parts_size, separator):
    """Return whether a text is one of those between the separators of a list."""
    end = parts + parts_size
    while parts < end:
        part_end = find_byte(parts, end, separator)
        if part_end - parts == size and same_bytes(parts, text, size):
            return True
        parts = part_end + 1
    return False


@njit(**COMPILE_OPTIONS)
def drop_same_name(first, count, names, name_sizes, values, value_sizes, name, name_size):
    """Remove the property with a name from the properties of a record; return how many remain."""
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
    """Record the address and size of a property that has its own column."""
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
    """Entry point: split ``count`` property strings into pairs; of equal names the last stays.

    ``offsets`` (int32, ``count + 1``) delimits the pairs of each record. TAGS, KEYS and UNIQ_KEY
    are also written to their columns, with size 0 where absent. Return the number of pairs.
    """
    pairs = 0
    put_i32(offsets, 0)
    for i in range(count):
        address = get_i64(strings + 8 * i)
        end = address + get_i32(string_sizes + 4 * i)
        first = pairs
        note(tags, tags_sizes, i, 0, 0)
        note(keys, keys_sizes, i, 0, 0)
        note(unique, unique_sizes, i, 0, 0)
        while address < end:
            separator = address
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
            name_size = separator - address
            value_size = pair_end - value
            if name_size > 0 and value_size > 0:
                pairs = drop_same_name(
                    first, pairs, names, name_sizes, values, value_sizes, address, name_size
                )
                put_i64(names + 8 * pairs, address)
                put_i32(name_sizes + 4 * pairs, name_size)
                put_i64(values + 8 * pairs, value)
                put_i32(value_sizes + 4 * pairs, value_size)
                pairs += 1
                if name_size == 4:
                    word = get_i32(address)
                    if word == TAGS:
                        note(tags, tags_sizes, i, value, value_size)
                    elif word == KEYS:
                        note(keys, keys_sizes, i, value, value_size)
                elif name_size == 8 and get_i64(address) == UNIQ_KEY:
                    note(unique, unique_sizes, i, value, value_size)
            address = pair_end + 1
        put_i32(offsets + 4 * (i + 1), pairs)
    return pairs


@njit(**COMPILE_OPTIONS)
def split_words(texts, text_sizes, count, offsets, words, word_sizes):
    """Entry point: split texts at single spaces; return the number of words, none of them empty."""
    total = 0
    put_i32(offsets, 0)
    for i in range(count):
        address = get_i64(texts + 8 * i)
        end = address + get_i32(text_sizes + 4 * i)
        while address < end:
            word_end = find_byte(address, end, SPACE)
            if word_end > address:
                put_i64(words + 8 * total, address)
                put_i32(word_sizes + 4 * total, word_end - address)
                total += 1
            address = word_end + 1
        put_i32(offsets + 4 * (i + 1), total)
    return total


@njit(**COMPILE_OPTIONS)
def gather(addresses, sizes, count, offsets, data):
    """Entry point: concatenate ``count`` runs of bytes, with int32 offsets; return the size."""
    total = 0
    put_i32(offsets, 0)
    for i in range(count):
        size = get_i32(sizes + 4 * i)
        copy(data + total, get_i64(addresses + 8 * i), size)
        total += size
        put_i32(offsets + 4 * (i + 1), total)
    return total


@njit(**COMPILE_OPTIONS)
def put_decimal(address, value):
    """Write a number in decimal; return its end."""
    if value < 0:
        put_u8(address, 45)
        address += 1
        value = -value
    width = 1
    power = 10
    while value >= power:
        power *= 10
        width += 1
    for i in range(width - 1, -1, -1):
        put_u8(address + i, 48 + value % 10)
        value //= 10
    return address + width


@njit(**COMPILE_OPTIONS)
def hex_digit(value, letters):
    """Return the character of a hexadecimal digit; ``letters`` is the code of ``a`` or ``A``."""
    return 48 + value if value < 10 else letters + value - 10


@njit(**COMPILE_OPTIONS)
def put_group(address, value):
    """Write a group of an IPv6 address, lower case without leading zeros; return its end."""
    shift = 12
    while shift > 0 and value >> shift == 0:
        shift -= 4
    while shift >= 0:
        put_u8(address, hex_digit(value >> shift & 15, 97))
        address += 1
        shift -= 4
    return address


@njit(**COMPILE_OPTIONS)
def put_host(address, host, is_v6):
    """Write a host as text; return its end."""
    if is_v6:
        put_u8(address, 91)  # [
        address += 1
        for i in range(8):
            if i:
                put_u8(address, 58)  # :
                address += 1
            address = put_group(address, load_u16(host + 2 * i))
        put_u8(address, 93)  # ]
        address += 1
        host += 16
    else:
        for i in range(4):
            if i:
                put_u8(address, 46)  # .
                address += 1
            address = put_decimal(address, load_u8(host + i))
        host += 4
    put_u8(address, 58)  # :
    return put_decimal(address + 1, load_i32(host))


@njit(**COMPILE_OPTIONS)
def host_texts(hosts, sys_flags, v6_bit, count, offsets, data):
    """Entry point: write ``count`` hosts as ``ip:port`` or ``[ip6]:port``; return the size."""
    address = data
    put_i32(offsets, 0)
    for i in range(count):
        address = put_host(address, get_i64(hosts + 8 * i), get_i32(sys_flags + 4 * i) & v6_bit)
        put_i32(offsets + 4 * (i + 1), address - data)
    return address - data


@njit(**COMPILE_OPTIONS)
def put_hex(address, source, size):
    """Write bytes in upper-case hexadecimal; return the end."""
    for i in range(size):
        byte = get_u8(source + i)
        put_u8(address, hex_digit(byte >> 4, 65))
        put_u8(address + 1, hex_digit(byte & 15, 65))
        address += 2
    return address


@njit(**COMPILE_OPTIONS)
def offset_ids(hosts, sys_flags, records, v6_bit, count, offsets, data):
    """Entry point: write offset ids. ``records`` are record addresses. Return the size."""
    address = data
    put_i32(offsets, 0)
    for i in range(count):
        is_v6 = get_i32(sys_flags + 4 * i) & v6_bit
        host_size = (16 if is_v6 else 4) + PORT_BYTES
        address = put_hex(address, get_i64(hosts + 8 * i), host_size)
        address = put_hex(address, get_i64(records + 8 * i) + AT_PHYSICAL_OFFSET, 8)
        put_i32(offsets + 4 * (i + 1), address - data)
    return address - data


ENTRY_POINTS = {
    "locate": (int, int, int, int),
    "parse_properties": (int, int, int, int, int, int, int, int, int, int, int, int, int, int),
    "split_words": (int, int, int, int, int, int),
    "gather": (int, int, int, int, int),
    "host_texts": (int, int, int, int, int, int),
    "offset_ids": (int, int, int, int, int, int, int),
}
"""Entry points and their arguments. Results are numbers."""
