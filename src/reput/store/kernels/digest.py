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
    get_i64,
    load_i32,
    load_i64,
    put_i32,
    put_i64,
    set_word,
    word,
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

ENTRY_BYTES = 8 * args.ENTRY_WORDS
TOPIC_BYTES = 8 * args.TOPIC_WORDS
FLAG_LIGHT = args.FLAG_LIGHT
FLAG_DELAY = args.FLAG_DELAY
NO_TOPIC = -1


@njit(**COMPILE_OPTIONS)
def topic_number(words, name, size):
    """Return the number of a topic in a digest; NO_TOPIC if it is no UTF-8, or there is no room."""
    topics = word(words, args.TOPICS)
    slots = word(words, args.TOPIC_SLOTS)
    mask = word(words, args.TOPIC_SLOTS_COUNT) - 1
    slot = name_slot(name, size, mask + 1)
    while True:
        number = get_i64(slots + 8 * slot) - 1
        if number < 0:
            break
        topic = topics + TOPIC_BYTES * number
        if word(topic, args.TOPIC_NAME_SIZE) == size and same_bytes(
            word(topic, args.TOPIC_NAME), name, size
        ):
            return number
        slot = (slot + 1) & mask
    number = word(words, args.TOPIC_COUNT)
    if number == word(words, args.TOPICS_MAX) or not is_utf8(name, size):
        return NO_TOPIC
    topic = topics + TOPIC_BYTES * number
    set_word(topic, args.TOPIC_NAME, name)
    set_word(topic, args.TOPIC_NAME_SIZE, size)
    set_word(topic, args.TOPIC_HASH, topic_prefix(name, size))
    set_word(topic, args.TOPIC_ROW, 0)
    put_i64(slots + 8 * slot, number + 1)
    set_word(words, args.TOPIC_COUNT, number + 1)
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
    buffer = word(words, args.FILE)
    stop = word(words, args.STOP)
    end = word(words, args.END)
    file_end = word(words, args.FILE_END)
    base = word(words, args.BASE)
    table = word(words, args.CRC_TABLES)
    hashes = word(words, args.HASHES)
    position = word(words, args.START)
    if not word(words, args.IS_START):
        position = resync(buffer, position, min(end, stop + JUDGED), file_end, base)
    count = 0
    hash_count = 0
    last_name = 0
    last_size = -1
    topic_at = NO_TOPIC
    while position < stop and count < word(words, args.ENTRIES_MAX):
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
        if word(words, args.HAS_KEYS) and kind != ROLLBACK:
            needed = count_words(keys, keys + keys_size)
            if unique_size > 0:
                needed += 1
            indexed_tags_size = tags_size if word(words, args.HAS_TAGS) else 0
            if indexed_tags_size > 0:
                needed += 1
            if hash_count + needed > word(words, args.HASHES_MAX):
                break
            put_hashes(
                hashes + 4 * hash_count,
                word(word(words, args.TOPICS) + TOPIC_BYTES * topic_at, args.TOPIC_HASH),
                unique, unique_size, keys, keys_size, tags, indexed_tags_size,
            )  # fmt: skip
            hash_count += needed
        flags = kind
        if is_light:
            flags |= FLAG_LIGHT
        if delay_size > 0:
            flags |= FLAG_DELAY
        code = signed32(java_hash(0, tags, tags_size)) if tags_size > 0 else 0
        entry = word(words, args.ENTRIES) + ENTRY_BYTES * count
        set_word(entry, args.ENTRY_POSITION, position)
        set_word(entry, args.ENTRY_SIZE, size)
        set_word(entry, args.ENTRY_TOPIC, topic_at)
        set_word(entry, args.ENTRY_QUEUE_ID, load_i32(source + AT_QUEUE_ID))
        set_word(entry, args.ENTRY_QUEUE_OFFSET, load_i64(source + AT_QUEUE_OFFSET))
        set_word(entry, args.ENTRY_TAGS_CODE, code)
        set_word(entry, args.ENTRY_TIMESTAMP, load_i64(store_timestamp_address(source)))
        set_word(entry, args.ENTRY_FLAGS, flags)
        set_word(entry, args.ENTRY_HASHES_END, hash_count)
        count += 1
        position += size
    return count


@njit(**COMPILE_OPTIONS)
def code_of(block, topic_row, words, entry):
    """Return the tags code in the unit of a record: the deliver time of a delayed message."""
    code = word(entry, args.ENTRY_TAGS_CODE)
    if (
        word(entry, args.ENTRY_FLAGS) & FLAG_DELAY
        and word(topic_row, state.TOPIC_KIND) == state.KIND_SCHEDULE
    ):
        source = word(words, args.FILE) + word(entry, args.ENTRY_POSITION)
        _, _, _, _, properties, properties_end = find_texts(source)
        _, _, _, _, _, _, delay, delay_size, _ = find_properties(properties, properties_end)
        due = deliver_time(block, delay, delay_size, word(entry, args.ENTRY_TIMESTAMP))
        if due != 0:
            code = due
    return code


@njit(**COMPILE_OPTIONS)
def put_digested_units(block, words, number, count, stop_position):
    """Entry point: put the units of entries from ``number`` on, as ``append.dispatch`` does.

    It ends with the entry ``count``, at ``stop_position``, or before a record that Python has to do
    something for: STOP has the reason, INPUT_POSITION the position. Return the next entry.
    """
    base = word(words, args.BASE)
    stop = state.STOP_DONE
    position = word(block, state.INPUT_POSITION)
    while number < count and position < stop_position:
        entry = word(words, args.ENTRIES) + ENTRY_BYTES * number
        topic = word(words, args.TOPICS) + TOPIC_BYTES * word(entry, args.ENTRY_TOPIC)
        topic_row = word(topic, args.TOPIC_ROW)
        if topic_row == 0:
            topic_row = find_topic(
                block, word(topic, args.TOPIC_NAME), word(topic, args.TOPIC_NAME_SIZE)
            )
            if topic_row == 0:
                stop = state.STOP_TOPIC
                break
            set_word(topic, args.TOPIC_ROW, topic_row)
        row = find_queue(topic_row, word(entry, args.ENTRY_QUEUE_ID))
        if row == 0:
            set_word(block, state.STOP_ROW, topic_row)
            stop = state.STOP_QUEUE
            break
        if word(topic_row, state.TOPIC_KIND) == state.KIND_SLOW:
            stop = state.STOP_SLOW
            break
        size = word(entry, args.ENTRY_SIZE)
        flags = word(entry, args.ENTRY_FLAGS)
        kind = flags & TRANSACTION
        is_queued = 0
        if kind != PREPARED and kind != ROLLBACK:
            queue_offset = word(entry, args.ENTRY_QUEUE_OFFSET)
            is_queued, stop = place_in_queue(block, row, queue_offset, base + position)
            if stop != state.STOP_DONE:
                break
        if is_queued:
            if not has_room_for_unit(row):
                set_word(block, state.STOP_ROW, row)
                stop = state.STOP_UNITS
                break
            put_unit(block, row, base + position, size, code_of(block, topic_row, words, entry))
        set_word(block, state.LAST_PHYSICAL_OFFSET, base + position)
        set_word(block, state.LAST_STORE_TIMESTAMP, word(entry, args.ENTRY_TIMESTAMP))
        set_word(block, state.DISPATCHED, base + position + size)
        number += 1
        position += size
        if is_queued and flags & FLAG_LIGHT and word(block, state.HAS_LIGHT_QUEUES):
            set_word(block, state.STOP_ROW, word(words, args.FILE) + position - size)
            stop = state.STOP_LIGHT
            break
    set_word(block, state.INPUT_POSITION, position)
    set_word(block, state.STOP, stop)
    return number


@njit(**COMPILE_OPTIONS)
def put_digested_keys(block, words, number, count):
    """Entry point: put the index entries of ``number`` and the following, up to ``count``.

    Records that the index has already are passed over. It ends before a record for which the file
    has no room. Return the next entry.
    """
    base = word(words, args.BASE)
    entries = word(words, args.ENTRIES)
    hashes = word(words, args.HASHES)
    hash_at = word(entries + ENTRY_BYTES * (number - 1), args.ENTRY_HASHES_END) if number else 0
    while number < count:
        entry = entries + ENTRY_BYTES * number
        hashes_end = word(entry, args.ENTRY_HASHES_END)
        offset = base + word(entry, args.ENTRY_POSITION)
        if hashes_end > hash_at and offset > word(block, state.INDEX_END_OFFSET):
            if not has_room_for_keys(block, hashes_end - hash_at):
                break
            timestamp = word(entry, args.ENTRY_TIMESTAMP)
            for i in range(hash_at, hashes_end):
                put_entry(block, get_i32(hashes + 4 * i), offset, timestamp)
        hash_at = hashes_end
        number += 1
    write_index_header(block)
    return number


ENTRY_POINTS = {
    "digest": (int,),
    "put_digested_units": (int, int, int, int, int),
    "put_digested_keys": (int, int, int, int),
}
"""Entry points and their arguments. Results are numbers."""
