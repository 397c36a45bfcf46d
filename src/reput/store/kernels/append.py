"""Kernels: append records to the log, and dispatch them to queues and index.

``append`` copies records to the end of the log, sets queue offset, physical offset, store time and
checksum, and, if dispatch is live, calls ``dispatch_record`` for each. ``dispatch`` does that for
records that are in the log. Where something is missing (a file, a row, room), both stop before the
record, report what, and continue there in the next call.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import (
    cq_unit,
    index_entry,
    message as record,
    properties as props,
    sys_flag as flags,
)
from reput.format.kernels.columns import (
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    KEYS,
    NAME_VALUE,
    PAIR_END,
    SPACE,
    TAGS,
    UNIQ_KEY,
    find_byte,
)
from reput.format.kernels.hashes import (
    LOW_32,
    crc32,
    is_utf8,
    java_hash,
    name_slot,
    same_bytes,
    signed32,
)
from reput.format.kernels.log_scan import (
    AT_BODY_CRC,
    AT_BORN_HOST,
    AT_MAGIC,
    AT_PHYSICAL_OFFSET,
    AT_SYS_FLAG,
    BLANK,
    BODY_LENGTH_IN_TAIL,
    BORN_V6,
    HOST_V4,
    MESSAGE,
    TAIL_BYTES,
    TRUNCATED,
    V6_EXTRA,
    born_to_tail,
    checksums,
    ends_in_zeros,
    frame,
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
    put_u8,
    store_i32,
    store_i64,
)
from reput.store.kernels import control_block as state
from reput.store.kernels.control_block import ControlBlock

BLANK_BYTES = record.BLANK.size
UNIT_BYTES = cq_unit.SIZE
HEADER_BYTES = index_entry.HEADER.size
SLOT_BYTES = index_entry.SLOT.size
ENTRY_BYTES = index_entry.ENTRY.size
TRANSACTION = flags.TRANSACTION_MASK
PREPARED = flags.TRANSACTION_PREPARED
ROLLBACK = flags.TRANSACTION_ROLLBACK
INNER_BATCH = flags.INNER_BATCH
INT_MAX = 0x7FFFFFFF
HASH_SIGN = ord("#")
TAG_LETTER = ord(index_entry.TAG_KEY_PREFIX[0])
UNKNOWN_LEVEL_MS = 1000
CRC_BYTES = record.CRC_PROPERTY_BYTES
CRC_PREFIX_BYTES = len(record.CRC_PROPERTY_PREFIX)

DELAY = int.from_bytes(props.DELAY[:4].encode(), "little")
DELAY_LAST = ord(props.DELAY[4])
DELAY_SIZE = len(props.DELAY)
LIGHT_SIZE = len(props.INNER_MULTI_DISPATCH)
LIGHT = int.from_bytes(props.INNER_MULTI_DISPATCH[:8].encode(), "little", signed=True)
LIGHT_END = int.from_bytes(props.INNER_MULTI_DISPATCH[-8:].encode(), "little", signed=True)


@njit(**COMPILE_OPTIONS)
def find_topic(block, name, size):
    """Return the row of a topic, 0 if it has none."""
    slots = block.topic_slots
    table = block.topics
    slot = name_slot(name, size, slots)
    while True:
        row = table[slot]
        if row == 0:
            return 0
        if row.name_size == size and same_bytes(row.name, name, size):
            return row
        slot = (slot + 1) & (slots - 1)


@njit(**COMPILE_OPTIONS)
def find_queue(topic_row, queue_id):
    """Return the row of a queue, 0 if it has none."""
    if queue_id < 0 or queue_id >= topic_row.queue_limit:
        return 0
    return topic_row.queues[queue_id]


@njit(**COMPILE_OPTIONS)
def find_rows(block, topic, topic_size, queue_id):
    """Return the rows of a topic and of one of its queues, and why not: STOP_DONE if both exist."""
    topic_row = find_topic(block, topic, topic_size)
    if topic_row == 0:
        return 0, 0, state.STOP_TOPIC
    row = find_queue(topic_row, queue_id)
    if row == 0:
        block.stop_row = topic_row.address
        return topic_row, 0, state.STOP_QUEUE
    return topic_row, row, state.STOP_DONE


@njit(**COMPILE_OPTIONS)
def is_slow(topic_row, sys_flag, properties, end):
    """Return whether the dispatch of a record falls back to Python."""
    return (
        topic_row.kind == state.KIND_SLOW
        or sys_flag & INNER_BATCH != 0
        or not is_utf8(properties, end - properties)
    )


@njit(**COMPILE_OPTIONS)
def find_properties(address, end):
    """Find the properties that dispatch needs; of equal names the last one counts.

    Return addresses and sizes of UNIQ_KEY, KEYS, TAGS and DELAY (0 where absent), and whether
    INNER_MULTI_DISPATCH is there.
    """
    unique = keys = tags = delay = 0
    unique_size = keys_size = tags_size = delay_size = 0
    is_light = 0
    while address < end:
        separator = address
        while separator < end and get_u8(separator) != NAME_VALUE:
            if get_u8(separator) == PAIR_END:
                break
            separator += 1
        value = separator + 1
        pair_end = separator
        if separator < end and get_u8(separator) == NAME_VALUE:
            pair_end = find_byte(value, end, PAIR_END)
        name_size = separator - address
        size = pair_end - value
        if size > 0:
            if name_size == 4:
                name = get_i32(address)
                if name == TAGS:
                    tags, tags_size = value, size
                elif name == KEYS:
                    keys, keys_size = value, size
            elif name_size == 8:
                if get_i64(address) == UNIQ_KEY:
                    unique, unique_size = value, size
            elif name_size == DELAY_SIZE:
                if get_i32(address) == DELAY and get_u8(address + 4) == DELAY_LAST:
                    delay, delay_size = value, size
            elif name_size == LIGHT_SIZE and (
                get_i64(address) == LIGHT and get_i64(address + LIGHT_SIZE - 8) == LIGHT_END
            ):
                is_light = 1
        address = pair_end + 1
    return unique, unique_size, keys, keys_size, tags, tags_size, delay, delay_size, is_light


@njit(**COMPILE_OPTIONS)
def count_words(address, end):
    """Return the number of words between single spaces; empty ones do not count."""
    count = 0
    while address < end:
        word_end = find_byte(address, end, SPACE)
        if word_end > address:
            count += 1
        address = word_end + 1
    return count


@njit(**COMPILE_OPTIONS)
def index_hash(value):
    """Return the hash in an index entry, from an unsigned Java hash."""
    number = signed32(value)
    if number == -0x80000000:
        return 0
    return abs(number)


@njit(**COMPILE_OPTIONS)
def put_entry(block, key_hash, physical_offset, store_timestamp):
    """Put an index entry. The file must have room for it."""
    address = block.index_address
    slots = block.index_slots
    number = block.index_next
    slot = address + HEADER_BYTES + SLOT_BYTES * (key_hash % slots)
    previous = load_i32(slot)
    if previous <= 0 or previous > number:
        previous = 0
    begin = block.index_begin_timestamp
    seconds = 0
    if begin > 0 and store_timestamp > begin:
        seconds = min((store_timestamp - begin) // 1000, INT_MAX)
    entry = address + HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * number
    store_i32(entry, key_hash)
    store_i64(entry + 4, physical_offset)
    store_i32(entry + 12, seconds)
    store_i32(entry + 16, previous)
    store_i32(slot, number)
    if number <= 1:
        block.index_begin_offset = physical_offset
        block.index_begin_timestamp = store_timestamp
    if previous == 0:
        block.index_slots_used += 1
    block.index_next = number + 1
    block.index_end_offset = physical_offset
    block.index_end_timestamp = store_timestamp


@njit(**COMPILE_OPTIONS)
def write_index_header(block):
    """Write the header of the index file from the control block."""
    address = block.index_address
    if address == 0:
        return
    store_i64(address, block.index_begin_timestamp)
    store_i64(address + 8, block.index_end_timestamp)
    store_i64(address + 16, block.index_begin_offset)
    store_i64(address + 24, block.index_end_offset)
    store_i32(address + 32, block.index_slots_used)
    store_i32(address + 36, block.index_next)


@njit(**COMPILE_OPTIONS)
def topic_prefix(topic, size):
    """Return the hash of the beginning of a topic's index keys, unsigned."""
    return (java_hash(0, topic, size) * 31 + HASH_SIGN) & LOW_32


@njit(**COMPILE_OPTIONS)
def tags_prefix(prefix):
    """Return the hash of the beginning of a topic's tag keys, from that of its keys."""
    value = (prefix * 31 + TAG_LETTER) & LOW_32
    return (value * 31 + HASH_SIGN) & LOW_32


@njit(**COMPILE_OPTIONS)
def put_keys(
    block, topic_row, unique, unique_size, keys, keys_size, tags, tags_size, offset, timestamp
):
    """Put the entries of a record, in the broker's order: unique key, keys, tags."""
    prefix = topic_row.hash
    if unique_size > 0:
        value = java_hash(prefix, unique, unique_size)
        put_entry(block, index_hash(value), offset, timestamp)
    address = keys
    end = keys + keys_size
    while address < end:
        word_end = find_byte(address, end, SPACE)
        if word_end > address:
            value = java_hash(prefix, address, word_end - address)
            put_entry(block, index_hash(value), offset, timestamp)
        address = word_end + 1
    if tags_size > 0 and block.index_has_tags:
        value = java_hash(tags_prefix(prefix), tags, tags_size)
        put_entry(block, index_hash(value), offset, timestamp)


@njit(**COMPILE_OPTIONS)
def deliver_time(block, delay, delay_size, store_timestamp):
    """Return when a delayed message is due, ms; 0 if its level is not a positive number."""
    level = 0
    for i in range(delay_size):
        digit = get_u8(delay + i) - 48
        if digit < 0 or digit > 9 or level > INT_MAX // 10:
            return 0
        level = level * 10 + digit
    if level <= 0 or level > INT_MAX:
        return 0
    if level > block.delay_count:
        return store_timestamp + UNKNOWN_LEVEL_MS
    return store_timestamp + block.delays[level - 1]


@njit(**COMPILE_OPTIONS)
def mark_changed(block, row):
    """Put a queue row on both lists unless it is there."""
    marks = row.marks
    if marks & state.MARK_DIRTY == 0:
        block.dirty[block.dirty_count] = row
        block.dirty_count += 1
    if marks & state.MARK_TOUCHED == 0:
        block.touched[block.touched_count] = row
        block.touched_count += 1
    row.marks = marks | state.MARK_DIRTY | state.MARK_TOUCHED


@njit(**COMPILE_OPTIONS)
def put_unit(block, row, physical_offset, size, tags_code):
    """Append a unit to the tail of a queue, which must have room for it."""
    queue_offset = row.max_offset
    index = queue_offset - row.tail_offset
    unit = row.tail + UNIT_BYTES * index
    store_i64(unit, physical_offset)
    store_i32(unit + 8, size)
    store_i64(unit + 12, tags_code)
    row.max_offset = queue_offset + 1
    row.end_physical = physical_offset + size
    mark_changed(block, row)


@njit(**COMPILE_OPTIONS)
def has_room_for_unit(row):
    """Return whether the queue's tail has room for a unit."""
    used = row.max_offset - row.tail_offset
    return row.tail != 0 and used < row.tail_limit


@njit(**COMPILE_OPTIONS)
def has_room_for_keys(block, needed):
    """Return whether the index file has room for ``needed`` entries."""
    if block.index_address == 0:
        return False
    limit = min(block.index_entries_max, block.index_limit)
    return block.index_next + needed <= limit


@njit(**COMPILE_OPTIONS)
def dispatch_record(
    block, topic_row, row, address, properties, end, sys_flag, size, offset, timestamp, wants_unit
):
    """Put the unit and the index entries of a record; stop before it if something is missing.

    A record that the index has already was dispatched before: its entries are not put twice. The
    last record of the index may lack some, which Python has to find out.
    """
    kind = sys_flag & TRANSACTION
    indexed_offset = block.index_end_offset
    may_be_indexed = block.index_is_on != 0 and kind != ROLLBACK
    if may_be_indexed and offset == indexed_offset:
        return state.STOP_SLOW
    is_queued = wants_unit and kind != PREPARED and kind != ROLLBACK
    if is_queued and not has_room_for_unit(row):
        block.stop_row = row.address
        return state.STOP_UNITS
    unique, unique_size, keys, keys_size, tags, tags_size, delay, delay_size, is_light = (
        find_properties(properties, end)
    )
    is_indexed = may_be_indexed and offset > indexed_offset
    if is_indexed:
        needed = count_words(keys, keys + keys_size)
        if unique_size > 0:
            needed += 1
        if tags_size > 0 and block.index_has_tags:
            needed += 1
        if needed == 0:
            is_indexed = False
        elif not has_room_for_keys(block, needed):
            return state.STOP_INDEX
    if is_queued:
        code = 0
        if delay_size > 0 and topic_row.kind == state.KIND_SCHEDULE:
            code = deliver_time(block, delay, delay_size, timestamp)
        if code == 0 and tags_size > 0:
            code = signed32(java_hash(0, tags, tags_size))
        put_unit(block, row, offset, size, code)
    if is_indexed:
        put_keys(
            block,
            topic_row,
            unique,
            unique_size,
            keys,
            keys_size,
            tags,
            tags_size,
            offset,
            timestamp,
        )
    block.last_physical_offset = offset
    block.last_store_timestamp = timestamp
    block.dispatched = offset + size
    if is_light and is_queued and block.has_light_queues:
        block.stop_row = address
        return state.STOP_LIGHT
    return state.STOP_DONE


@njit(**COMPILE_OPTIONS)
def find_texts(address):
    """Return address and size of a record's body and topic, and start and end of its properties."""
    tail = address + AT_BORN_HOST + born_to_tail(load_i32(address + AT_SYS_FLAG))
    body = tail + TAIL_BYTES
    body_size = load_i32(tail + BODY_LENGTH_IN_TAIL)
    magic = load_i32(address + AT_MAGIC)
    topic_size = load_topic_length(body + body_size, magic)
    topic = body + body_size + topic_length_bytes(magic)
    properties = topic + topic_size + 2
    return body, body_size, topic, topic_size, properties, properties + load_i16(properties - 2)


@njit(**COMPILE_OPTIONS)
def store_timestamp_address(address):
    """Return the address of a record's store time."""
    timestamp = address + AT_BORN_HOST + HOST_V4
    if load_i32(address + AT_SYS_FLAG) & BORN_V6:
        timestamp += V6_EXTRA
    return timestamp


@njit(**COMPILE_OPTIONS)
def put_record_crc(block, address, size):
    """Write the digits of the checksum property at the end of a record, the lowest digit first."""
    start = address + size - CRC_BYTES
    crc = crc32(block.crc_tables, address, size - CRC_BYTES) & INT_MAX
    for i in range(10):
        put_u8(start + CRC_PREFIX_BYTES + i, 48 + crc % 10)
        crc //= 10


@njit(**COMPILE_OPTIONS)
def count_message(topic_row, size):
    """Add a message to the totals of its topic."""
    topic_row.message_count += 1
    topic_row.byte_count += size


@njit(**COMPILE_OPTIONS)
def append(block, buffer):
    """Entry point: append the records of ``buffer[input_position:input_size]``, in order.

    The caller guarantees that they are whole and their lengths valid. ``places`` has room for a row
    for each. Return the number of records; ``stop`` has the reason of the end.
    """
    size = block.input_size
    now_ms = block.input_time
    places = block.places
    input_position = block.input_position
    count = 0
    stop = state.STOP_DONE
    log = block.log_address
    file_size = block.log_size
    limit = block.log_limit
    start = block.log_start
    is_live = block.is_live
    while input_position < size:
        source = buffer + input_position
        record_size = load_i32(source)
        position = block.log_position
        end = position + record_size
        if log == 0 or end + BLANK_BYTES > file_size:
            stop = state.STOP_ROLL
            break
        if end > limit:
            stop = state.STOP_RESERVE
            break
        sys_flag = load_i32(source + AT_SYS_FLAG)
        body, body_size, topic, topic_size, properties, properties_end = find_texts(source)
        topic_row, row, stop = find_rows(block, topic, topic_size, load_i32(source + AT_QUEUE_ID))
        if stop != state.STOP_DONE:
            break
        offset = start + position
        if is_live:
            if is_slow(topic_row, sys_flag, properties, properties_end):
                stop = state.STOP_SLOW
                break
            # Before the copy: if it finds no room, nothing has happened.
            stop = dispatch_record(
                block, topic_row, row, log + position, properties, properties_end,
                sys_flag, record_size, offset, now_ms, 1,
            )  # fmt: skip
            if stop != state.STOP_DONE and stop != state.STOP_LIGHT:
                break
        kind = sys_flag & TRANSACTION
        queue_offset = 0
        if kind != PREPARED and kind != ROLLBACK:
            queue_offset = row.next_offset
            row.next_offset = queue_offset + 1
        target = log + position
        # TOTALSIZE comes last: without it the rest is not a record yet.
        copy(target + 4, source + 4, record_size - 4)
        crc = 0
        if body_size > 0:
            crc = crc32(block.crc_tables, body, body_size) & INT_MAX
        store_i32(target + AT_BODY_CRC, crc)
        store_i64(target + AT_QUEUE_OFFSET, queue_offset)
        store_i64(target + AT_PHYSICAL_OFFSET, offset)
        store_i64(store_timestamp_address(target), now_ms)
        store_i32(target, record_size)
        if block.has_record_crc:
            put_record_crc(block, target, record_size)
        block.log_position = end
        block.log_timestamp = now_ms
        places[count].physical_offset = offset
        places[count].queue_offset = queue_offset
        count += 1
        input_position += record_size
        count_message(topic_row, record_size)
        if stop == state.STOP_LIGHT:
            break
    if is_live and count > 0:
        write_index_header(block)
    block.input_position = input_position
    block.stop = stop
    return count


@njit(**COMPILE_OPTIONS)
def place_in_queue(block, row, queue_offset, physical_offset):
    """Return whether a record is the next one of its queue (1, 0), and why dispatch has to stop.

    It stops where units are missing, and where a queue has begun again; ``stop_row`` is then its
    row.
    """
    expected = row.max_offset
    if queue_offset > expected:
        block.stop_row = row.address
        return 0, state.STOP_GAP
    if queue_offset == 0 < expected and physical_offset >= row.end_physical:
        block.stop_row = row.address
        return 0, state.STOP_BEGUN
    if queue_offset >= row.next_offset:
        row.next_offset = queue_offset + 1
    return 1 if queue_offset == expected else 0, state.STOP_DONE


@njit(**COMPILE_OPTIONS)
def dispatch(block, buffer, stop_position, end, file_end, base):
    """Entry point: dispatch the records of a log buffer that start before ``stop_position``.

    It begins at ``input_position``; ``end``, ``file_end`` and ``base`` as in ``log_scan.scan``. A
    blank ends the scan at ``file_end``. A record that its queue has already gets no second unit.
    With ``checks_content`` it stops at records of ``torn_records``. Return the number of records;
    ``stop`` has the reason of the end.
    """
    input_position = block.input_position
    count = 0
    stop = state.STOP_DONE
    while input_position < stop_position:
        source = buffer + input_position
        verdict = frame(
            source, end - input_position, file_end - input_position, base + input_position
        )
        if verdict == BLANK:
            input_position = file_end
            block.dispatched = base + input_position
            break
        if verdict == TRUNCATED:
            stop = state.STOP_PART
            break
        if verdict != MESSAGE:
            stop = state.STOP_DAMAGE
            break
        size = load_i32(source)
        sys_flag = load_i32(source + AT_SYS_FLAG)
        _, _, topic, topic_size, properties, properties_end = find_texts(source)
        if block.checks_content != 0 and (
            checksums(block.crc_tables, source, size) != MESSAGE
            or ends_in_zeros(properties, properties_end, input_position + size)
        ):
            stop = state.STOP_TORN
            break
        topic_row, row, stop = find_rows(block, topic, topic_size, load_i32(source + AT_QUEUE_ID))
        if stop != state.STOP_DONE:
            break
        if is_slow(topic_row, sys_flag, properties, properties_end):
            stop = state.STOP_SLOW
            break
        kind = sys_flag & TRANSACTION
        wants_unit = 0
        if kind != PREPARED and kind != ROLLBACK:
            queue_offset = load_i64(source + AT_QUEUE_OFFSET)
            wants_unit, stop = place_in_queue(block, row, queue_offset, base + input_position)
            if stop != state.STOP_DONE:
                break
        stop = dispatch_record(
            block, topic_row, row, source, properties, properties_end,
            sys_flag, size, base + input_position,
            load_i64(store_timestamp_address(source)), wants_unit,
        )  # fmt: skip
        if stop != state.STOP_DONE and stop != state.STOP_LIGHT:
            break
        count += 1
        input_position += size
        if stop == state.STOP_LIGHT:
            break
    if count > 0:
        write_index_header(block)
    block.input_position = input_position
    block.stop = stop
    return count


@njit(**COMPILE_OPTIONS)
def find_unqueued(block, buffer, position, end, file_end, base):
    """Entry point: return the position of the first record without a row of its queue.

    ``end``, ``file_end`` and ``base`` are those of ``log_scan.scan``. Blanks, damage and an
    incomplete record are found likewise; ``end`` if there is nothing of all this.
    """
    while position < end:
        source = buffer + position
        if frame(source, end - position, file_end - position, base + position) != MESSAGE:
            break
        _, _, topic, topic_size, _, _ = find_texts(source)
        _, row, _ = find_rows(block, topic, topic_size, load_i32(source + AT_QUEUE_ID))
        if row == 0:
            break
        position += load_i32(source)
    return position


@njit(**COMPILE_OPTIONS)
def put_texts(block, data, sizes, count, offset, timestamp):
    """Entry point: put the index entries of ``count`` keys, which are concatenated in UTF-8.

    There must be room for them; ``sizes`` (int32) are their bytes, including topic and ``#``. For
    records that Python dispatches.
    """
    address = data
    for i in range(count):
        size = get_i32(sizes + 4 * i)
        put_entry(block, index_hash(java_hash(0, address, size)), offset, timestamp)
        address += size
    write_index_header(block)
    return count


ENTRY_POINTS = {
    "append": (ControlBlock, int),
    "dispatch": (ControlBlock, int, int, int, int, int),
    "find_unqueued": (ControlBlock, int, int, int, int, int),
    "put_texts": (ControlBlock, int, int, int, int, int),
}
"""Entry points and their arguments. Results are numbers."""
