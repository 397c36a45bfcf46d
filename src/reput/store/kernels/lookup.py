"""Kernels: find messages by key and by time, in mapped index files, queue files and log files.

``find_by_key`` does what ``getting.Getter.query_in_steps`` does in slices, and ``find_by_time``
what ``offset_by_unit`` does unit by unit. What would take long is left to them: chains of more than
STEPS_MAX entries, runs of more than GAP_UNITS units whose messages are gone.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import index_entry
from reput.format.kernels.columns import SPACE, is_among_parts
from reput.format.kernels.hashes import java_hash, same_bytes
from reput.format.kernels.log_scan import JUDGED, MESSAGE, frame
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    load_i32,
    load_i64,
    set_word,
    word,
)
from reput.store.kernels import control_block as state, lookup_args as words
from reput.store.kernels.append import (
    ENTRY_BYTES,
    HEADER_BYTES,
    SLOT_BYTES,
    find_properties,
    find_texts,
    index_hash,
    store_timestamp_address,
    tags_prefix,
    topic_prefix,
)
from reput.store.kernels.pull import FILLER_SIZE, IS_GONE, UNIT_BYTES, file_address

SLACK_MS = index_entry.SLACK_MS
STEPS_OF_FILE = 4
STEPS_OF_RECORD = 16
"""Index entries that take as long as reading a file's slot, and as checking a record."""
GAP_UNITS = 64
FALLS_BACK, IS_UNMAPPED = words.FALLS_BACK, words.IS_UNMAPPED


@njit(**COMPILE_OPTIONS)
def find_record(block, physical_offset, bytes_max):
    """Return the address of the record at an offset: 0 if there is none, or IS_UNMAPPED."""
    file = file_address(block, physical_offset)
    if file == IS_GONE:
        return 0
    if file == 0:
        return IS_UNMAPPED
    file_size = word(block, state.FILE_SIZE)
    position = (physical_offset - word(block, state.FILES_START)) % file_size
    left = min(word(block, state.READABLE) - physical_offset, file_size - position)
    if left <= JUDGED:
        return 0
    address = file + position
    size = load_i32(address)
    if size <= JUDGED or size > min(left, bytes_max):
        return 0
    return address if frame(address, size, size, physical_offset) == MESSAGE else 0


# --- by key ----------------------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def carries(address, topic, topic_size, key, key_size, is_tags):
    """Return whether a record is a message of a topic with a key, or with these tags."""
    _, _, name, name_size, properties, end = find_texts(address)
    if name_size != topic_size or not same_bytes(name, topic, topic_size):
        return False
    unique, unique_size, keys, keys_size, tags, tags_size, _, _, _ = find_properties(
        properties, end
    )
    if is_tags:
        return tags_size == key_size and same_bytes(tags, key, key_size)
    if unique_size == key_size and same_bytes(unique, key, key_size):
        return True
    return is_among_parts(key, key_size, keys, keys_size, SPACE)


@njit(**COMPILE_OPTIONS)
def add_place(args, count, physical_offset, address):
    """Insert a record into the list, which ascends by physical offset."""
    places = args + 8 * words.PLACES
    index = count
    while index > 0 and word(places, 3 * index - 3) > physical_offset:
        for part in range(3):
            set_word(places, 3 * index + part, word(places, 3 * index - 3 + part))
        index -= 1
    set_word(places, 3 * index, physical_offset)
    set_word(places, 3 * index + 1, address)
    set_word(places, 3 * index + 2, load_i32(address))


@njit(**COMPILE_OPTIONS)
def copy_places(args, count):
    """Copy the records of the list to the buffer; return their number, FALLS_BACK without room."""
    places = args + 8 * words.PLACES
    total = 0
    for index in range(count):
        total += word(places, 3 * index + 2)
    set_word(args, words.BYTES, total)
    if total > word(args, words.BUFFER_ROOM):
        return FALLS_BACK
    target = word(args, words.BUFFER)
    for index in range(count):
        size = word(places, 3 * index + 2)
        copy(target, word(places, 3 * index + 1), size)
        target += size
    return count


@njit(**COMPILE_OPTIONS)
def key_hash_of(topic, topic_size, key, key_size, is_tags):
    """Return the hash in the index entries of a topic's key, or of its tags."""
    value = topic_prefix(topic, topic_size)
    if is_tags:
        value = tags_prefix(value)
    return index_hash(java_hash(value, key, key_size))


@njit(**COMPILE_OPTIONS)
def file_times(block, row, is_current):
    """Return begin time, end time and next entry of an index file."""
    if is_current:
        return (
            word(block, state.INDEX_BEGIN_TIMESTAMP),
            word(block, state.INDEX_END_TIMESTAMP),
            word(block, state.INDEX_NEXT),
        )
    return word(row, words.FILE_BEGIN_MS), word(row, words.FILE_END_MS), word(row, words.FILE_NEXT)


@njit(**COMPILE_OPTIONS)
def find_by_key(block, args, topic, topic_size, key, key_size):
    """Entry point: copy the newest messages with a key into BUFFER; return their number.

    READABLE must be current. The result may be FALLS_BACK or IS_UNMAPPED.
    """
    file_count = word(block, state.INDEX_FILE_COUNT)
    if file_count < 0:
        return FALLS_BACK
    is_tags = word(args, words.IS_TAGS)
    begin_ms = word(args, words.BEGIN_MS)
    end_ms = word(args, words.END_MS)
    key_hash = key_hash_of(topic, topic_size, key, key_size, is_tags)
    slots = word(block, state.INDEX_SLOTS)
    slot = HEADER_BYTES + SLOT_BYTES * (key_hash % slots)
    entries = HEADER_BYTES + SLOT_BYTES * slots
    set_word(args, words.IS_TRUNCATED, 0)
    count = 0
    steps = 0
    last = -1
    for number in range(file_count - 1, -1, -1):
        row = word(block, state.INDEX_FILES) + 8 * words.FILE_WORDS * number
        file_begin_ms, file_end_ms, newer = file_times(block, row, number == file_count - 1)
        is_before = file_end_ms < begin_ms - 2 * SLACK_MS
        if newer <= 1 or is_before or file_begin_ms > end_ms + SLACK_MS:
            continue
        file = word(row, words.FILE_ADDRESS)
        steps += STEPS_OF_FILE
        entry_number = load_i32(file + slot)
        while 0 < entry_number < newer:
            steps += 1
            if steps > word(args, words.STEPS_MAX):
                return FALLS_BACK
            entry = file + entries + ENTRY_BYTES * entry_number
            physical_offset = load_i64(entry + 4)
            if load_i32(entry) == key_hash and physical_offset != last:
                about_ms = file_begin_ms + 1000 * load_i32(entry + 12)
                if entry_number == 1 or begin_ms - 2 * SLACK_MS < about_ms <= end_ms:
                    last = physical_offset
                    record = find_record(block, physical_offset, word(args, words.RECORD_BYTES_MAX))
                    if record == IS_UNMAPPED:
                        set_word(args, words.UNMAPPED, physical_offset)
                        return IS_UNMAPPED
                    steps += STEPS_OF_RECORD
                    if (
                        record != 0
                        and begin_ms <= load_i64(store_timestamp_address(record)) <= end_ms
                        and carries(record, topic, topic_size, key, key_size, is_tags)
                    ):
                        if count == word(args, words.COUNT_MAX):
                            set_word(args, words.IS_TRUNCATED, 1)
                            return copy_places(args, count)
                        add_place(args, count, physical_offset, record)
                        count += 1
            newer = entry_number
            entry_number = load_i32(entry + 16)
    return copy_places(args, count)


# --- by time -----------------------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def find_unit(args, queue_offset):
    """Return the address of a unit, 0 if it is not in memory."""
    row = word(args, words.QUEUE_ROW)
    index = queue_offset - word(row, state.QUEUE_TAIL_OFFSET)
    if index >= 0:
        tail = word(row, state.QUEUE_TAIL)
        return tail + UNIT_BYTES * index if tail != 0 else 0
    index = queue_offset - word(row, state.QUEUE_MAPPED_OFFSET)
    if index < 0 or index >= word(row, state.QUEUE_MAPPED_COUNT):
        return 0
    return word(row, state.QUEUE_MAPPED) + UNIT_BYTES * index


@njit(**COMPILE_OPTIONS)
def time_of(block, args, queue_offset):
    """Return the store time of a message, or of the nearest readable one before it, ms.

    It is 0 if there is none; FALLS_BACK or IS_UNMAPPED if that is not known.
    """
    first = word(word(args, words.QUEUE_ROW), state.QUEUE_MIN_OFFSET)
    for number in range(queue_offset, max(first, queue_offset - GAP_UNITS) - 1, -1):
        unit = find_unit(args, number)
        if unit == 0:
            return FALLS_BACK
        physical_offset = load_i64(unit)
        size = load_i32(unit + 8)
        if physical_offset < 0 or size <= 0 or (physical_offset == 0 and size == FILLER_SIZE):
            continue
        record = find_record(block, physical_offset, word(args, words.TIME_RECORD_BYTES_MAX))
        if record == IS_UNMAPPED:
            set_word(args, words.TIME_UNMAPPED, physical_offset)
            return IS_UNMAPPED
        if record != 0:
            return max(load_i64(store_timestamp_address(record)), 0)
    return 0 if queue_offset - GAP_UNITS < first else FALLS_BACK


@njit(**COMPILE_OPTIONS)
def find_by_time(block, args):
    """Entry point: return the queue offset of a time between LOW and HIGH.

    READABLE must be current. The result may be FALLS_BACK or IS_UNMAPPED.
    """
    wanted_ms = word(args, words.TIME_MS)
    is_upper = word(args, words.IS_UPPER)
    low = word(args, words.LOW)
    high = word(args, words.HIGH)
    while low < high:
        middle = (low + high) >> 1
        time_ms = time_of(block, args, middle)
        if time_ms < 0:
            return time_ms
        if time_ms < wanted_ms or (is_upper and time_ms == wanted_ms):
            low = middle + 1
        else:
            high = middle
    return low


ENTRY_POINTS = {"find_by_key": (int, int, int, int, int, int), "find_by_time": (int, int)}
"""Entry points and their arguments. Results are numbers."""
