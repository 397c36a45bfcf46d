"""Kernels: decode header blocks of HTTP/2 (HPACK), with the table in memory.

``decode`` does the same as ``reput.grpc.http2.hpack.Decoder``, which explains the fields.
It returns 0 for a block that is damaged or unusual, and the table is then as before: the decoder in
Python names the fault. Source: RFC 7541.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_u8,
    put_i32,
    put_u8,
)
from reput.format.kernels.rows import size_of
from reput.grpc.kernels import call_words as words

SLOT_MASK = words.SLOTS - 1
DATA = size_of(words.HeaderWords)
DATA_BYTES = words.DATA_BYTES
ENTRY_BYTES, INSERTS_MAX = words.ENTRY_BYTES, words.INSERTS_MAX
STATIC_COUNT = words.STATIC_COUNT
STATIC_DATA = size_of(words.StaticWords)
SHORT_BITS, SHORT_MASK = words.SHORT_BITS, (1 << words.SHORT_BITS) - 1
LENGTH_MAX = words.LENGTH_MAX
END_SYMBOL = words.SYMBOL_COUNT - 1
INTEGER_BYTES_MAX = 4


@njit(**COMPILE_OPTIONS)
def unhuffman(tables, source, size, target):
    """Decode a string; return the end of what was written, 0 if it is damaged."""
    bits, count = 0, 0
    end = source + size
    while True:
        while count <= 40 and source < end:
            bits = bits << 8 | get_u8(source)
            count += 8
            source += 1
        if count >= SHORT_BITS:
            next_bits = bits >> (count - SHORT_BITS) & SHORT_MASK
        else:
            missing = SHORT_BITS - count
            next_bits = (bits << missing | (1 << missing) - 1) & SHORT_MASK
        entry = tables.short_codes[next_bits]
        length = entry & 0xFF
        symbol = entry >> 8
        if entry == 0:
            length = SHORT_BITS + 1
            symbol = -1
            while length <= LENGTH_MAX and length <= count:
                code = (bits >> (count - length)) - tables.first_codes[length]
                if 0 <= code < tables.counts[length]:
                    symbol = tables.symbols[tables.first_symbols[length] + code]
                    break
                length += 1
            if symbol == END_SYMBOL:
                return 0
        if symbol < 0 or length > count:
            # The rest is padding: fewer than 8 bits, all ones.
            return target if count < 8 and bits == (1 << count) - 1 else 0
        put_u8(target, symbol)
        target += 1
        count -= length
        bits &= (1 << count) - 1


@njit(**COMPILE_OPTIONS)
def integer(address, end, value):
    """Return an integer after its first byte, and its end; 0 for the end if it is damaged."""
    shift = 0
    while address < end and shift < 7 * INTEGER_BYTES_MAX:
        byte = get_u8(address)
        address += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, address
        shift += 7
    return 0, 0


@njit(**COMPILE_OPTIONS)
def string(tables, address, end, target, limit):
    """Decode a string to ``target``; return ends of input and output, zeros if it is damaged."""
    if address >= end:
        return 0, 0
    first = get_u8(address)
    size = first & 0x7F
    address += 1
    if size == 0x7F:
        size, address = integer(address, end, size)
        if address == 0:
            return 0, 0
    if size > end - address or target + 2 * size > limit:
        return 0, 0
    if first >= 0x80:
        return address + size, unhuffman(tables, address, size, target)
    copy(target, address, size)
    return address + size, target + size


@njit(**COMPILE_OPTIONS)
def entry_of(table, static, index):
    """Return an entry of either table, and the address of its bytes; -1 if there is none."""
    if index <= STATIC_COUNT:
        entry = static.slots[index]
        return entry, static.address + STATIC_DATA + (entry >> 32)
    number = index - STATIC_COUNT - 1
    if number >= table.count:
        return -1, 0
    entry = table.slots[table.inserted - 1 - number & SLOT_MASK]
    return entry, table.address + DATA + (entry >> 32)


@njit(**COMPILE_OPTIONS)
def evict(table, bytes_max):
    """Remove the oldest entries until the rest takes at most ``bytes_max``."""
    count, size = table.count, table.size
    while size > bytes_max and count > 0:
        entry = table.slots[table.inserted - count & SLOT_MASK]
        size -= (entry >> 16 & 0xFFFF) + (entry & 0xFFFF) + ENTRY_BYTES
        count -= 1
    table.count = count
    table.size = size


@njit(**COMPILE_OPTIONS)
def insert(table, name, name_size, value_size):
    """Insert an entry whose value follows its name; return whether there is room for its bytes."""
    size = name_size + value_size + ENTRY_BYTES
    bytes_max = table.size_max
    if table.size + size > bytes_max:
        evict(table, bytes_max - size)
        if size > bytes_max:
            return True
    position = table.end
    if position + name_size + value_size > DATA_BYTES:
        return False
    copy(table.address + DATA + position, name, name_size + value_size)
    inserted = table.inserted
    table.slots[inserted & SLOT_MASK] = position << 32 | name_size << 16 | value_size
    table.inserted = inserted + 1
    table.count += 1
    table.size += size
    table.end = position + name_size + value_size
    return True


@njit(**COMPILE_OPTIONS)
def compact(table, room):
    """Move the bytes of all entries to the beginning, through ``room``."""
    count, inserted = table.count, table.inserted
    position = 0
    for number in range(count, 0, -1):  # the oldest first
        slot = inserted - number & SLOT_MASK
        entry = table.slots[slot]
        size = (entry >> 16 & 0xFFFF) + (entry & 0xFFFF)
        copy(room + position, table.address + DATA + (entry >> 32), size)
        table.slots[slot] = position << 32 | entry & 0xFFFFFFFF
        position += size
    copy(table.address + DATA, room, position)
    table.end = position


@njit(**COMPILE_OPTIONS)
def decode_fields(table, static, huffman, address, end, target, limit):
    """Decode a block; see ``decode``. The table may have changed if 0 is returned."""
    is_first = True
    inserts = 0
    while address < end:
        byte = get_u8(address)
        address += 1
        field = target
        name = field + 8
        if limit - name < 64:
            return 0
        if byte >= 0x80:
            index = byte & 0x7F
            if index == 0x7F:
                index, address = integer(address, end, index)
            if index == 0 or address == 0:
                return 0
            entry, source = entry_of(table, static, index)
            if entry < 0:
                return 0
            name_size, value_size = entry >> 16 & 0xFFFF, entry & 0xFFFF
            if name_size + value_size > limit - name:
                return 0
            copy(name, source, name_size + value_size)
        else:
            if byte >= 0x40:
                index, prefix = byte & 0x3F, 0x3F
            elif byte >= 0x20:
                size = byte & 0x1F
                if size == 0x1F:
                    size, address = integer(address, end, size)
                if address == 0 or not is_first or size > table.allowed_size:
                    return 0
                table.size_max = size
                evict(table, size)
                continue
            else:
                index, prefix = byte & 0x0F, 0x0F
            if index == prefix:
                index, address = integer(address, end, index)
                if address == 0:
                    return 0
            if index != 0:
                entry, source = entry_of(table, static, index)
                if entry < 0:
                    return 0
                name_size = entry >> 16 & 0xFFFF
                if name_size > limit - name:
                    return 0
                copy(name, source, name_size)
            else:
                address, name_end = string(huffman, address, end, name, limit)
                if name_end == 0:
                    return 0
                name_size = name_end - name
            address, value_end = string(huffman, address, end, name + name_size, limit)
            if value_end == 0:
                return 0
            value_size = value_end - name - name_size
            if byte >= 0x40:
                inserts += 1
                if inserts > INSERTS_MAX or not insert(table, name, name_size, value_size):
                    return 0
        put_i32(field, name_size)
        put_i32(field + 4, value_size)
        target = name + name_size + value_size
        is_first = False
    return target


@njit(**COMPILE_OPTIONS)
def decode(table, static, huffman, address, end, target, limit):
    """Decode a block to fields at ``target``; return their end.

    It is 0 if the block falls back; the table is then as before. A block without fields falls back.
    """
    if table.end > DATA_BYTES - 2 * words.BLOCK_BYTES_MAX:
        if limit - target < DATA_BYTES:
            return 0
        compact(table, target)
    inserted, count, size = table.inserted, table.count, table.size
    bytes_max, data_end = table.size_max, table.end
    fields_end = decode_fields(table, static, huffman, address, end, target, limit)
    if fields_end == 0 or fields_end == target:
        table.inserted = inserted
        table.count = count
        table.size = size
        table.size_max = bytes_max
        table.end = data_end
        return 0
    return fields_end
