"""Kernels: digest a piece of the log, and put its units and index entries.

``digest`` depends on nothing but the log, so any number of threads can run it for different pieces.
``put_digested_units`` and ``put_digested_keys`` put what ``append.dispatch`` puts, each in one
thread; the first uses only the words of queues, the second only those of the index.

A digest ends before the first record that ``append.dispatch`` leaves to Python, whatever queues
there are: damage, a blank, an inner batch, a text that is not UTF-8.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format.kernels.columns import AT_QUEUE_ID, AT_QUEUE_OFFSET, SPACE, find_byte
from reput.format.kernels.hashes import (
    is_utf8,
    java_hash,
    name_slot,
    same_bytes,
    signed32,
)
from reput.format.kernels.log_scan import (
    AT_SYS_FLAG,
    JUDGED,
    MESSAGE,
    checksums,
    ends_in_zeros,
    frame,
    resync,
)
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    get_i32,
    load_i32,
    load_i64,
    put_i32,
)
from reput.store.kernels import control_block as state, digest_args as args
from reput.store.kernels.append import (
    INNER_BATCH,
    PREPARED,
    ROLLBACK,
    TRANSACTION,
    count_words,
    deliver_time,
    find_properties,
    find_queue,
    find_texts,
    find_topic,
    has_room_for_keys,
    has_room_for_unit,
    index_hash,
    place_in_queue,
    put_entry,
    put_unit,
    store_timestamp_address,
    tags_prefix,
    topic_prefix,
    write_index_header,
)
from reput.store.kernels.control_block import ControlBlock

FLAG_LIGHT = args.FLAG_LIGHT
FLAG_DELAY = args.FLAG_DELAY
NO_TOPIC = -1


@njit(**COMPILE_OPTIONS)
def topic_number(words, name, size):
    """Return the number of a topic in a digest; NO_TOPIC if it is no UTF-8, or there is no room."""
    topics = words.topics
    slots = words.topic_slots
    mask = words.topic_slot_count - 1
    slot = name_slot(name, size, mask + 1)
    while True:
        number = slots[slot] - 1
        if number < 0:
            break
        topic = topics[number]
        if topic.name_size == size and same_bytes(topic.name, name, size):
            return number
        slot = (slot + 1) & mask
    number = words.topic_count
    if number == words.topics_max or not is_utf8(name, size):
        return NO_TOPIC
    topic = topics[number]
    topic.name = name
    topic.name_size = size
    topic.hash = topic_prefix(name, size)
    topic.row = 0
    slots[slot] = number + 1
    words.topic_count = number + 1
    return number


@njit(**COMPILE_OPTIONS)
def put_hashes(hashes, prefix, unique, unique_size, keys, keys_size, tags, tags_size):
    """Write the index hashes of a record, in the order of ``append.put_keys``."""
    if unique_size > 0:
        put_i32(hashes, index_hash(java_hash(prefix, unique, unique_size)))
        hashes += 4
    address = keys
    end = keys + keys_size
    while address < end:
        word_end = find_byte(address, end, SPACE)
        if word_end > address:
            put_i32(hashes, index_hash(java_hash(prefix, address, word_end - address)))
            hashes += 4
        address = word_end + 1
    if tags_size > 0:
        put_i32(hashes, index_hash(java_hash(tags_prefix(prefix), tags, tags_size)))


@njit(**COMPILE_OPTIONS)
def digest(words):
    """Entry point: write the entries of a piece of the log; return their number."""
    buffer = words.file
    stop = words.stop
    end = words.end
    file_end = words.file_end
    base = words.base
    table = words.crc_tables
    hashes = words.hashes
    position = words.start
    if not words.is_start:
        position = resync(buffer, position, min(end, stop + JUDGED), file_end, base)
    count = 0
    hash_count = 0
    last_name = 0
    last_size = -1
    topic_at = NO_TOPIC
    while position < stop and count < words.entries_max:
        source = buffer + position
        if frame(source, end - position, file_end - position, base + position) != MESSAGE:
            break
        size = load_i32(source)
        sys_flag = load_i32(source + AT_SYS_FLAG)
        _, _, name, name_size, properties, properties_end = find_texts(source)
        if (
            sys_flag & INNER_BATCH != 0
            or checksums(table, source, size) != MESSAGE
            or ends_in_zeros(properties, properties_end, position + size)
            or not is_utf8(properties, properties_end - properties)
        ):
            break
        if name_size != last_size or not same_bytes(name, last_name, name_size):
            topic_at = topic_number(words, name, name_size)
            last_name = name
            last_size = name_size
        if topic_at == NO_TOPIC:
            break
        unique, unique_size, keys, keys_size, tags, tags_size, _, delay_size, is_light = (
            find_properties(properties, properties_end)
        )
        kind = sys_flag & TRANSACTION
        if words.has_keys and kind != ROLLBACK:
            needed = count_words(keys, keys + keys_size)
            if unique_size > 0:
                needed += 1
            indexed_tags_size = tags_size if words.has_tags else 0
            if indexed_tags_size > 0:
                needed += 1
            if hash_count + needed > words.hashes_max:
                break
            put_hashes(
                hashes + 4 * hash_count,
                words.topics[topic_at].hash,
                unique, unique_size, keys, keys_size, tags, indexed_tags_size,
            )  # fmt: skip
            hash_count += needed
        flags = kind
        if is_light:
            flags |= FLAG_LIGHT
        if delay_size > 0:
            flags |= FLAG_DELAY
        code = signed32(java_hash(0, tags, tags_size)) if tags_size > 0 else 0
        entry = words.entries[count]
        entry.position = position
        entry.size = size
        entry.topic = topic_at
        entry.queue_id = load_i32(source + AT_QUEUE_ID)
        entry.queue_offset = load_i64(source + AT_QUEUE_OFFSET)
        entry.tags_code = code
        entry.timestamp = load_i64(store_timestamp_address(source))
        entry.flags = flags
        entry.hashes_end = hash_count
        count += 1
        position += size
    return count


@njit(**COMPILE_OPTIONS)
def code_of(block, topic_row, words, entry):
    """Return the tags code in the unit of a record: the deliver time of a delayed message."""
    code = entry.tags_code
    if entry.flags & FLAG_DELAY and topic_row.kind == state.KIND_SCHEDULE:
        source = words.file + entry.position
        _, _, _, _, properties, properties_end = find_texts(source)
        _, _, _, _, _, _, delay, delay_size, _ = find_properties(properties, properties_end)
        due = deliver_time(block, delay, delay_size, entry.timestamp)
        if due != 0:
            code = due
    return code


@njit(**COMPILE_OPTIONS)
def put_digested_units(block, words, number, count, stop_position):
    """Entry point: put the units of entries from ``number`` on, as ``append.dispatch`` does.

    It ends with the entry ``count``, at ``stop_position``, or before a record that Python has to do
    something for: ``stop`` has the reason, ``input_position`` the position. Return the next entry.
    """
    base = words.base
    stop = state.STOP_DONE
    position = block.input_position
    while number < count and position < stop_position:
        entry = words.entries[number]
        topic = words.topics[entry.topic]
        topic_row = topic.row
        if topic_row == 0:
            topic_row = find_topic(block, topic.name, topic.name_size)
            if topic_row == 0:
                stop = state.STOP_TOPIC
                break
            topic.row = topic_row
        row = find_queue(topic_row, entry.queue_id)
        if row == 0:
            block.stop_row = topic_row.address
            stop = state.STOP_QUEUE
            break
        if topic_row.kind == state.KIND_SLOW:
            stop = state.STOP_SLOW
            break
        size = entry.size
        flags = entry.flags
        kind = flags & TRANSACTION
        is_queued = 0
        if kind != PREPARED and kind != ROLLBACK:
            queue_offset = entry.queue_offset
            is_queued, stop = place_in_queue(block, row, queue_offset, base + position)
            if stop != state.STOP_DONE:
                break
        if is_queued:
            if not has_room_for_unit(row):
                block.stop_row = row.address
                stop = state.STOP_UNITS
                break
            put_unit(block, row, base + position, size, code_of(block, topic_row, words, entry))
        block.last_physical_offset = base + position
        block.last_store_timestamp = entry.timestamp
        block.dispatched = base + position + size
        number += 1
        position += size
        if is_queued and flags & FLAG_LIGHT and block.has_light_queues:
            block.stop_row = words.file + position - size
            stop = state.STOP_LIGHT
            break
    block.input_position = position
    block.stop = stop
    return number


@njit(**COMPILE_OPTIONS)
def put_digested_keys(block, words, number, count):
    """Entry point: put the index entries of ``number`` and the following, up to ``count``.

    Records that the index has already are passed over. It ends before a record for which the file
    has no room. Return the next entry.
    """
    base = words.base
    entries = words.entries
    hashes = words.hashes
    hash_at = entries[number - 1].hashes_end if number else 0
    while number < count:
        entry = entries[number]
        hashes_end = entry.hashes_end
        offset = base + entry.position
        if hashes_end > hash_at and offset > block.index_end_offset:
            if not has_room_for_keys(block, hashes_end - hash_at):
                break
            timestamp = entry.timestamp
            for i in range(hash_at, hashes_end):
                put_entry(block, get_i32(hashes + 4 * i), offset, timestamp)
        hash_at = hashes_end
        number += 1
    write_index_header(block)
    return number


ENTRY_POINTS = {
    "digest": (args.DigestWords,),
    "put_digested_units": (ControlBlock, args.DigestWords, int, int, int),
    "put_digested_keys": (ControlBlock, args.DigestWords, int, int),
}
"""Entry points and their arguments. Results are numbers."""
