"""Kernels: make copies of stored records, straight from the mapped log.

``copy_records`` makes them in a scratch, concatenated, as ``incoming.encode`` would: without
offsets, which ``append`` sets. ``copy_timers`` reads the properties of messages that wait for the
timer. Both get the address of a call (``copy_args``).

**What takes the fast path** is a V1 record that is whole, is where its place says, has IPv4 hosts
and is not a batch. Its properties have no ``__CRC32#``, and a valid REAL_TOPIC and REAL_QID if
these decide where it goes. ``copy_records`` stops before any other record, which falls back to
``reput.broker.republish``; that also reports the record's faults.

The broker calls it through ``store.writing.copying``:
``store.copier.put(places, rule, now_ms, more=...)``. The rule of a delayed message that is due is
``CopyRule()``; that of the final message of a transaction is ``CopyRule(from_topic=HALF_TOPIC,
sys_flags_off=TRANSACTION_MASK, sys_flags_on=TRANSACTION_COMMIT, has_prepared_offset=True)``, with
place ``(-1, physical offset, 0, 0, 0)`` if only the offset of the half message is known.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import message as record, properties as props, sys_flag as flags
from reput.format.kernels.columns import (
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    NAME_VALUE,
    PAIR_END,
    find_byte,
)
from reput.format.kernels.hashes import same_bytes
from reput.format.kernels.log_scan import (
    AT_BODY_CRC,
    AT_BORN_HOST,
    AT_MAGIC,
    AT_PHYSICAL_OFFSET,
    AT_SYS_FLAG,
    FIXED_V1,
    HOST_V4,
    MAGIC_V1,
    TOPIC_MAX_V1,
)
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_i64,
    get_u8,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    put_u8,
    store_i16,
    store_i32,
    store_i64,
)
from reput.store.kernels import copy_args as words
from reput.store.kernels.pull import IS_GONE, file_address

SLOW_FLAGS = flags.BORN_HOST_V6 | flags.STORE_HOST_V6 | flags.INNER_BATCH
AT_STORE_TIMESTAMP = AT_BORN_HOST + HOST_V4
AT_BODY = record.FIXED_BYTES_V1 - 3
AT_RECONSUME_TIMES = AT_BODY - record.TAIL.size
AT_PREPARED = AT_RECONSUME_TIMES + 4
AT_BODY_SIZE = AT_BODY - 4
INT_MAX = 0x7FFFFFFF
DONE, FALLS_BACK, UNMAPPED = words.STOP_DONE, words.STOP_FALLS_BACK, words.STOP_UNMAPPED


def _number(text: str) -> int:
    return int.from_bytes(text[:8].encode(), "little", signed=True)


def long_name(text: str) -> tuple[int, int, int, int]:
    """Return size, first, middle and last eight bytes of a name: all of it, up to 24 bytes."""
    middle = (len(text) - 8) // 2
    return len(text), _number(text), _number(text[middle:]), _number(text[-8:])


REAL_QUEUE_ID = _number(props.REAL_QUEUE_ID)
CRC32 = _number(props.CRC32)
SYSTEM = _number(words.SYSTEM_PREFIX)
REAL_TOPIC = long_name(props.REAL_TOPIC)
LIGHT = long_name(props.INNER_MULTI_DISPATCH)
OUT_MS = long_name(props.TIMER_OUT_MS)
ROLL_TIMES = long_name(props.TIMER_ROLL_TIMES)
RECALLED = long_name(props.TIMER_RECALLED_KEY)

LEGAL_LOW = sum(1 << ord(letter) for letter in "%-0123456789")
"""Bits of the letters that a topic may have: of those below 64, and of those above."""
LEGAL_HIGH = sum(
    1 << code - 64 for code in range(65, 127) if chr(code).isalpha() or chr(code) in "_|"
)


@njit(**COMPILE_OPTIONS)
def find_record(call, place):
    """Return address and size of a place's record, address and size of its topic, its properties.

    All are 0 if it falls back; then ``stop`` says why.
    """
    block = call.block
    physical_offset = place.physical_offset
    queue_offset = place.queue_offset
    size = place.size
    call.stop = FALLS_BACK
    left = block.readable - physical_offset
    if size < 0 or physical_offset < 0 or left < FIXED_V1:
        return 0, 0, 0, 0, 0
    file = file_address(block, physical_offset)
    if file == 0:
        call.stop = UNMAPPED
        call.stop_offset = physical_offset
        return 0, 0, 0, 0, 0
    if file == IS_GONE:
        return 0, 0, 0, 0, 0
    file_size = block.file_size
    position = (physical_offset - block.files_start) % file_size
    address = file + position
    left = min(left, file_size - position)
    if left < FIXED_V1:
        return 0, 0, 0, 0, 0
    own_size = load_i32(address)
    if (
        (size != 0 and size != own_size)
        or own_size < FIXED_V1
        or own_size > left
        or load_i32(address + AT_MAGIC) != MAGIC_V1
        or load_i64(address + AT_PHYSICAL_OFFSET) != physical_offset
        or (queue_offset >= 0 and load_i64(address + AT_QUEUE_OFFSET) != queue_offset)
        or load_i32(address + AT_SYS_FLAG) & SLOW_FLAGS != 0
    ):
        return 0, 0, 0, 0, 0
    body_size = load_i32(address + AT_BODY_SIZE)
    if body_size < 0 or body_size > own_size - FIXED_V1:
        return 0, 0, 0, 0, 0
    topic = address + AT_BODY + body_size + 1
    topic_size = load_u8(topic - 1)
    properties = topic + topic_size + 2
    if topic_size > TOPIC_MAX_V1 or properties > address + own_size:
        return 0, 0, 0, 0, 0
    properties_size = load_i16(properties - 2)
    if properties_size < 0 or properties + properties_size != address + own_size:
        return 0, 0, 0, 0, 0
    call.stop = DONE
    return address, own_size, topic, topic_size, properties


@njit(**COMPILE_OPTIONS)
def number(address, size):
    """Return the value of digits; -1 if there are other letters, none, or more than DIGITS_MAX."""
    if size == 0 or size > words.DIGITS_MAX:
        return -1
    value = 0
    for i in range(size):
        digit = get_u8(address + i) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@njit(**COMPILE_OPTIONS)
def is_name(name, size, wanted):
    """Return whether a name is a given one, as ``long_name`` describes it."""
    return (
        size == wanted[0]
        and get_i64(name) == wanted[1]
        and get_i64(name + (size - 8) // 2) == wanted[2]
        and get_i64(name + size - 8) == wanted[3]
    )


@njit(**COMPILE_OPTIONS)
def find_destination(call, address, end):
    """Return REAL_TOPIC and its size, and the number of REAL_QID; of equal names the last counts.

    The size is -1 if one of the properties falls back.
    """
    topic = topic_size = 0
    queue_id = -1
    has_light = call.has_light_queues != 0
    while address < end:
        pair_end = find_byte(address, end, PAIR_END)
        name_end = find_byte(address, pair_end, NAME_VALUE)
        size = name_end - address
        if size == 8:
            name = get_i64(address)
            if name == CRC32:
                return 0, -1, -1
            if name == REAL_QUEUE_ID and name_end < pair_end:
                queue_id = number(name_end + 1, pair_end - name_end - 1)
        elif is_name(address, size, REAL_TOPIC):
            if name_end < pair_end:
                topic = name_end + 1
                topic_size = pair_end - topic
        elif has_light and is_name(address, size, LIGHT):
            return 0, -1, -1
        address = pair_end + 1
    return topic, topic_size, queue_id


@njit(**COMPILE_OPTIONS)
def is_legal_topic(topic, size, size_max):
    """Return whether clients may create a topic of this name, which is not a system topic."""
    if size <= 0 or size > size_max:
        return False
    for i in range(size):
        letter = get_u8(topic + i)
        bits = LEGAL_LOW if letter < 64 else LEGAL_HIGH
        if letter >= 128 or bits >> (letter & 63) & 1 == 0:
            return False
    return size < 8 or get_i64(topic) != SYSTEM


@njit(**COMPILE_OPTIONS)
def put_until_topic(address, body_end, target, queue_id, sys_flag, reconsume_times, prepared):
    """Write the fields before the topic, but for the record's size; return their end."""
    copy(target, address, body_end - address)
    store_i32(target + AT_BODY_CRC, 0)
    store_i32(target + AT_QUEUE_ID, queue_id)
    store_i32(target + AT_SYS_FLAG, sys_flag)
    store_i32(target + AT_RECONSUME_TIMES, reconsume_times)
    store_i64(target + AT_PREPARED, prepared)
    return target + body_end - address


@njit(**COMPILE_OPTIONS)
def put_sizes(target, properties, end):
    """Write the sizes of a record and of its properties; return the record's size."""
    store_i16(properties - 2, end - properties)
    store_i32(target, end - target)
    return end - target


@njit(**COMPILE_OPTIONS)
def is_from_topic(call, topic, size):
    """Return whether records of a topic are wanted."""
    wanted_size = call.rule.from_topic_size
    return wanted_size == 0 or (
        wanted_size == size and same_bytes(call.rule.from_topic, topic, size)
    )


@njit(**COMPILE_OPTIONS)
def make(call, place, address, size, own_topic, own_topic_size, properties, target, room):
    """Make the record of a place from the result of ``find_record``; return its size.

    Return 0 if it falls back, or there is no room; ``stop`` says which.
    """
    call.stop = FALLS_BACK
    if not is_from_topic(call, own_topic, own_topic_size):
        return 0
    topic, topic_size, queue_id = find_destination(call, properties, address + size)
    if topic_size < 0:
        return 0
    if call.rule.topic != 0:
        topic = call.rule.topic
        topic_size = call.rule.topic_size
        queue_id = call.rule.queue_id
    elif (
        not is_legal_topic(topic, topic_size, call.topic_size_max)
        or queue_id < 0
        or queue_id > INT_MAX
    ):
        return 0
    more = call.more + place.more
    more_size = place.more_size
    properties_max = address + size - properties + 1 + more_size
    body_end = own_topic - 1
    size_max = body_end - address + 1 + topic_size + 2 + properties_max
    if properties_max > words.PROPERTIES_MAX or size_max > call.record_size_max:
        return 0
    if size_max > room:
        call.stop = words.STOP_ROOM
        return 0
    sys_flag = load_i32(address + AT_SYS_FLAG) & ~call.rule.sys_flags_off
    sys_flag |= call.rule.sys_flags_on
    prepared = 0
    if call.rule.has_prepared_offset:
        prepared = place.physical_offset
    reconsume_times = load_i32(address + AT_RECONSUME_TIMES)
    end = put_until_topic(address, body_end, target, queue_id, sys_flag, reconsume_times, prepared)
    put_u8(end, topic_size)
    copy(end + 1, topic, topic_size)
    start = end + 1 + topic_size + 2
    copy(start, properties, address + size - properties)
    end = start + address + size - properties
    if more_size > 0:
        if end > start and get_u8(end - 1) != PAIR_END:
            put_u8(end, PAIR_END)
            end += 1
        copy(end, more, more_size)
        end += more_size
    call.stop = DONE
    return put_sizes(target, start, end)


@njit(**COMPILE_OPTIONS)
def copy_records(call):
    """Entry point: make the records of ``places``, concatenated, in ``scratch``.

    Return the number of records, which are those of the first places. ``stop`` has the reason of
    the end; ``results`` and ``result_size`` have their sizes.
    """
    place_count = call.place_count
    scratch = call.scratch
    room = call.scratch_room
    count = 0
    total = 0
    call.stop = DONE
    while count < place_count:
        place = call.places[count]
        address, size, topic, topic_size, properties = find_record(call, place)
        if address == 0:
            break
        made = make(
            call, place, address, size, topic, topic_size, properties, scratch + total, room - total
        )
        if made == 0:
            break
        call.results[count].size = made
        total += made
        count += 1
    call.result_size = total
    return count


@njit(**COMPILE_OPTIONS)
def fnv(address, size):
    """Return the FNV-1a hash of bytes."""
    value = words.FNV_START
    for i in range(size):
        value = (value ^ get_u8(address + i)) * words.FNV_FACTOR
    return value


@njit(**COMPILE_OPTIONS)
def read_timer(address, end):
    """Return TIMER_OUT_MS and TIMER_ROLL_TIMES as numbers, whether it is a recall, and its topic.

    The first is -1 if one of them falls back.
    """
    topic = fnv(address, 0)
    out_ms = -1
    roll_times = 0
    is_recall = 0
    while address < end:
        pair_end = find_byte(address, end, PAIR_END)
        name_end = find_byte(address, pair_end, NAME_VALUE)
        size = name_end - address
        value_size = pair_end - name_end - 1
        if name_end == pair_end:
            pass
        elif is_name(address, size, OUT_MS):
            out_ms = number(name_end + 1, value_size)
        elif is_name(address, size, ROLL_TIMES):
            if value_size > words.DIGITS_MAX:
                return -1, 0, 0, 0
            roll_times = max(number(name_end + 1, value_size), 0)
        elif is_name(address, size, RECALLED):
            is_recall = 1 if value_size > 0 else 0
        elif is_name(address, size, REAL_TOPIC):
            topic = fnv(name_end + 1, value_size)
        address = pair_end + 1
    return out_ms, roll_times, is_recall, topic


@njit(**COMPILE_OPTIONS)
def copy_timers(call):
    """Entry point: read the timer properties of the messages of ``places`` to ``results``.

    Return the number of rows, which is less than that of places if a file is not mapped.
    """
    place_count = call.place_count
    count = 0
    while count < place_count:
        address, size, _, _, properties = find_record(call, call.places[count])
        row = call.results[count]
        if address != 0:
            out_ms, roll_times, is_recall, topic = read_timer(properties, address + size)
            row.out_ms = out_ms
            row.stored_ms = load_i64(address + AT_STORE_TIMESTAMP)
            row.roll_times = roll_times
            row.is_recall = is_recall
            row.topic = topic
        elif call.stop == UNMAPPED:
            return count
        else:
            row.out_ms = -1
        count += 1
    call.stop = DONE
    return count


ENTRY_POINTS = {"copy_records": (words.PlainCall,), "copy_timers": (words.TimerCall,)}
"""Entry points and their arguments. Results are numbers."""
