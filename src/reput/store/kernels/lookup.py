"""Kernels: find messages by key and by time, in mapped index files, queue files and log files.

``find_by_key`` does what ``getting.Getter.query_in_steps`` does in slices, and ``find_by_time``
what ``offset_by_unit`` does unit by unit. What would take long is left to them: chains of more than
``steps_max`` entries, runs of more than GAP_UNITS units whose messages are gone.
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
)
from reput.store.kernels import lookup_args as words
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
from reput.store.kernels.control_block import ControlBlock
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
    file_size = block.file_size
    position = (physical_offset - block.files_start) % file_size
    left = min(block.readable - physical_offset, file_size - position)
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
def add_match(args, count, physical_offset, address):
    """Insert a record into the list, which ascends by physical offset."""
    index = count
    while index > 0 and args.matches[index - 1].physical_offset > physical_offset:
        before, match = args.matches[index - 1], args.matches[index]
        match.physical_offset = before.physical_offset
        match.record = before.record
        match.size = before.size
        index -= 1
    match = args.matches[index]
    match.physical_offset = physical_offset
    match.record = address
    match.size = load_i32(address)


@njit(**COMPILE_OPTIONS)
def copy_matches(args, count):
    """Copy the records of the list to the buffer; return their number, FALLS_BACK without room."""
    total = 0
    for index in range(count):
        total += args.matches[index].size
    args.result_size = total
    if total > args.buffer_room:
        return FALLS_BACK
    target = args.buffer
    for index in range(count):
        size = args.matches[index].size
        copy(target, args.matches[index].record, size)
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
            block.index_begin_timestamp,
            block.index_end_timestamp,
            block.index_next,
        )
    return row.begin_ms, row.end_ms, row.next_entry


@njit(**COMPILE_OPTIONS)
def find_by_key(block, args, topic, topic_size, key, key_size):
    """Entry point: copy the newest messages with a key into ``buffer``; return their number.

    ``readable`` must be current. The result may be FALLS_BACK or IS_UNMAPPED.
    """
    file_count = block.index_file_count
    if file_count < 0:
        return FALLS_BACK
    is_tags = args.is_tags
    begin_ms = args.begin_ms
    end_ms = args.end_ms
    key_hash = key_hash_of(topic, topic_size, key, key_size, is_tags)
    slots = block.index_slots
    slot = HEADER_BYTES + SLOT_BYTES * (key_hash % slots)
    entries = HEADER_BYTES + SLOT_BYTES * slots
    args.is_truncated = 0
    count = 0
    steps = 0
    last = -1
    for number in range(file_count - 1, -1, -1):
        row = block.index_files[number]
        file_begin_ms, file_end_ms, newer = file_times(block, row, number == file_count - 1)
        is_before = file_end_ms < begin_ms - 2 * SLACK_MS
        if newer <= 1 or is_before or file_begin_ms > end_ms + SLACK_MS:
            continue
        file = row.map
        steps += STEPS_OF_FILE
        entry_number = load_i32(file + slot)
        while 0 < entry_number < newer:
            steps += 1
            if steps > args.steps_max:
                return FALLS_BACK
            entry = file + entries + ENTRY_BYTES * entry_number
            physical_offset = load_i64(entry + 4)
            if load_i32(entry) == key_hash and physical_offset != last:
                about_ms = file_begin_ms + 1000 * load_i32(entry + 12)
                if entry_number == 1 or begin_ms - 2 * SLACK_MS < about_ms <= end_ms:
                    last = physical_offset
                    record = find_record(block, physical_offset, args.record_size_max)
                    if record == IS_UNMAPPED:
                        args.unmapped = physical_offset
                        return IS_UNMAPPED
                    steps += STEPS_OF_RECORD
                    if (
                        record != 0
                        and begin_ms <= load_i64(store_timestamp_address(record)) <= end_ms
                        and carries(record, topic, topic_size, key, key_size, is_tags)
                    ):
                        if count == args.count_max:
                            args.is_truncated = 1
                            return copy_matches(args, count)
                        add_match(args, count, physical_offset, record)
                        count += 1
            newer = entry_number
            entry_number = load_i32(entry + 16)
    return copy_matches(args, count)


# --- by time -----------------------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def find_unit(args, queue_offset):
    """Return the address of a unit, 0 if it is not in memory."""
    row = args.queue_row
    index = queue_offset - row.tail_offset
    if index >= 0:
        tail = row.tail
        return tail + UNIT_BYTES * index if tail != 0 else 0
    index = queue_offset - row.mapped_offset
    if index < 0 or index >= row.mapped_count:
        return 0
    return row.mapped + UNIT_BYTES * index


@njit(**COMPILE_OPTIONS)
def time_of(block, args, queue_offset):
    """Return the store time of a message, or of the nearest readable one before it, ms.

    It is 0 if there is none; FALLS_BACK or IS_UNMAPPED if that is not known.
    """
    first = args.queue_row.min_offset
    for number in range(queue_offset, max(first, queue_offset - GAP_UNITS) - 1, -1):
        unit = find_unit(args, number)
        if unit == 0:
            return FALLS_BACK
        physical_offset = load_i64(unit)
        size = load_i32(unit + 8)
        if physical_offset < 0 or size <= 0 or (physical_offset == 0 and size == FILLER_SIZE):
            continue
        record = find_record(block, physical_offset, args.record_size_max)
        if record == IS_UNMAPPED:
            args.unmapped = physical_offset
            return IS_UNMAPPED
        if record != 0:
            return max(load_i64(store_timestamp_address(record)), 0)
    return 0 if queue_offset - GAP_UNITS < first else FALLS_BACK


@njit(**COMPILE_OPTIONS)
def find_by_time(block, args):
    """Entry point: return the queue offset of a time between ``low`` and ``high``.

    ``readable`` must be current. The result may be FALLS_BACK or IS_UNMAPPED.
    """
    wanted_ms = args.time_ms
    is_upper = args.is_upper
    low = args.low
    high = args.high
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


ENTRY_POINTS = {
    "find_by_key": (ControlBlock, words.KeySearch, int, int, int, int),
    "find_by_time": (ControlBlock, words.TimeSearch),
}
"""Entry points and their arguments. Results are numbers."""
