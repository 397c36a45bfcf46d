"""Kernel: copy messages that are sent back into records that wait for the next attempt.

``copy_for_retry`` makes them in a scratch, concatenated, from the mapped log, as ``broker.retries``
and ``incoming.delayed`` would; ``places`` locate them (``copy_args``). It stops before a
message that falls back.

**What takes the fast path** is a record that ``copy_records`` copies, which was consumed less often
than ``times_max``, and whose properties all have a name and a value, no name twice. Messages that
are prepared or rolled back are not delayed: they fall back.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import names, properties as props
from reput.format.kernels.columns import NAME_VALUE, PAIR_END, find_byte
from reput.format.kernels.hashes import same_bytes
from reput.format.kernels.log_scan import AT_BORN_HOST, AT_PHYSICAL_OFFSET, AT_SYS_FLAG, HOST_V4
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_i32,
    get_i64,
    get_u8,
    load_i32,
    load_i64,
    put_u8,
    text_writer,
)
from reput.format.kernels.plain_text import ID_BYTES, put_decimal, put_hex
from reput.store.kernels import copy_args as words
from reput.store.kernels.append import DELAY, DELAY_LAST, DELAY_SIZE, PREPARED
from reput.store.kernels.copy_records import (
    AT_RECONSUME_TIMES,
    CRC32,
    DONE,
    LIGHT,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    find_record,
    is_name,
    long_name,
    put_sizes,
    put_until_topic,
)

WAIT = int.from_bytes(props.WAIT.encode(), "little")
WAIT_SIZE = len(props.WAIT)
RETRY_TOPIC = long_name(props.RETRY_TOPIC)
ORIGIN_ID = long_name(props.ORIGIN_MESSAGE_ID)
TIMER_DELAY_SEC = long_name(props.TIMER_DELAY_SEC)
TIMER_DELAY_MS = long_name(props.TIMER_DELAY_MS)
TIMER_DELIVER_MS = long_name(props.TIMER_DELIVER_MS)
AT_STORE_HOST = AT_BORN_HOST + HOST_V4 + 8

SCHEDULE_TOPIC = names.SCHEDULE_TOPIC.encode()
RETRY_TOPIC_NAME = f"{props.RETRY_TOPIC}\1".encode()
ORIGIN_NAME = f"{props.ORIGIN_MESSAGE_ID}\1".encode()
WAIT_AND_DELAY_NAME = f"{props.WAIT}\1false\2{props.DELAY}\1".encode()
put_schedule_topic = text_writer(SCHEDULE_TOPIC)
put_retry_topic_name = text_writer(RETRY_TOPIC_NAME)
put_origin_name = text_writer(ORIGIN_NAME)
put_wait_and_delay_name = text_writer(WAIT_AND_DELAY_NAME)
SCHEDULE_TOPIC_SIZE = len(SCHEDULE_TOPIC)
RETRY_TOPIC_NAME_SIZE = len(RETRY_TOPIC_NAME)
ORIGIN_NAME_SIZE = len(ORIGIN_NAME)
WAIT_AND_DELAY_NAME_SIZE = len(WAIT_AND_DELAY_NAME)
PAIRS_MAX = RETRY_TOPIC_NAME_SIZE + 1 + ORIGIN_NAME_SIZE + ID_BYTES + 1
PAIRS_MAX += WAIT_AND_DELAY_NAME_SIZE + 20
"""Maximum size of the added pairs, without a topic and the caller's pairs; and a separator."""

NAMES_MAX = 64
"""Number of properties that are compared with each other; a message with more falls back."""

KEPT, REPLACED, IS_RETRY_TOPIC, IS_ORIGIN_ID, ODD = range(5)


@njit(**COMPILE_OPTIONS)
def kind_of(call, name, size):
    """Return the kind of a property by its name."""
    if size == WAIT_SIZE:
        return REPLACED if get_i32(name) == WAIT else KEPT
    if size == DELAY_SIZE:
        is_delay = get_i32(name) == DELAY and get_u8(name + 4) == DELAY_LAST
        return REPLACED if is_delay else KEPT
    if size == 8:
        name_word = get_i64(name)
        if name_word == CRC32:
            return ODD
        return REPLACED if name_word == REAL_QUEUE_ID else KEPT
    if is_name(name, size, REAL_TOPIC):
        return REPLACED
    if is_name(name, size, RETRY_TOPIC):
        return IS_RETRY_TOPIC
    if is_name(name, size, ORIGIN_ID):
        return IS_ORIGIN_ID
    is_delay = is_name(name, size, TIMER_DELAY_SEC) or is_name(name, size, TIMER_DELAY_MS)
    if is_delay or is_name(name, size, TIMER_DELIVER_MS):
        return REPLACED  # by the delay level
    if call.has_light_queues != 0 and is_name(name, size, LIGHT):
        return ODD
    return KEPT


@njit(**COMPILE_OPTIONS)
def has_name(address, end, name, size):
    """Return whether a property of this name is among pairs with a separator at each end."""
    while address < end:
        name_end = find_byte(address, end, NAME_VALUE)
        if name_end - address == size and same_bytes(address, name, size):
            return True
        address = find_byte(name_end, end, PAIR_END) + 1
    return False


@njit(**COMPILE_OPTIONS)
def copy_kept(call, address, end, target):
    """Copy the pairs that are kept, each with a separator at its end.

    Return their end, 0 if a pair falls back; address and size of RETRY_TOPIC's value, 0 if it is
    absent; and whether ORIGIN_MESSAGE_ID is there.
    """
    start = target
    count = 0
    origin = origin_size = 0
    has_id = False
    while address < end:
        pair_end = find_byte(address, end, PAIR_END)
        name_end = find_byte(address, pair_end, NAME_VALUE)
        if name_end == address or name_end + 1 >= pair_end:
            return 0, 0, 0, False
        kind = kind_of(call, address, name_end - address)
        if kind == ODD:
            return 0, 0, 0, False
        if kind == IS_RETRY_TOPIC:
            origin = name_end + 1
            origin_size = pair_end - origin
        elif kind == IS_ORIGIN_ID:
            has_id = True
        if kind != REPLACED:
            count += 1
            if count > NAMES_MAX or has_name(start, target, address, name_end - address):
                return 0, 0, 0, False
            copy(target, address, pair_end - address)
            target += pair_end - address
            put_u8(target, PAIR_END)
            target += 1
        address = pair_end + 1
    return target, origin, origin_size, has_id


@njit(**COMPILE_OPTIONS)
def put_id(target, address):
    """Write the message id made of a record's host and physical offset; return its end."""
    host = load_i64(address + AT_STORE_HOST)
    physical_offset = load_i64(address + AT_PHYSICAL_OFFSET)
    put_hex(target, host >> 32)
    put_hex(target + 8, host)
    put_hex(target + 16, physical_offset >> 32)
    put_hex(target + 24, physical_offset)
    return target + ID_BYTES


@njit(**COMPILE_OPTIONS)
def put_pair_end(address):
    """Write a separator; return its end."""
    put_u8(address, PAIR_END)
    return address + 1


@njit(**COMPILE_OPTIONS)
def level_of(call, place, times):
    """Return the delay level of a message that was consumed ``times`` times."""
    level = place.level
    if level == 0:
        level = words.FIRST_DELAY_LEVEL + times
    return min(level, call.block.delay_count)


@njit(**COMPILE_OPTIONS)
def copy_for_retry(call):
    """Entry point: make the records of ``places``, concatenated, in ``scratch``.

    Return the number of records, which are those of the first places. ``stop`` has the reason of
    the end, ``result_size`` the size of all, ``results`` for each its size and the topic that it
    was sent to first.
    """
    place_count = call.place_count
    scratch = call.scratch
    count = 0
    total = 0
    call.stop = DONE
    while count < place_count:
        place = call.places[count]
        address, size, topic, topic_size, properties = find_record(call, place)
        if address == 0:
            break
        call.stop = words.STOP_FALLS_BACK
        times = load_i32(address + AT_RECONSUME_TIMES)
        sys_flag = load_i32(address + AT_SYS_FLAG)
        if topic_size == 0 or times < 0 or times >= place.times_max or sys_flag & PREPARED:
            break
        more_size = place.more_size
        body_end = topic - 1
        properties_max = address + size - properties + topic_size + PAIRS_MAX + more_size
        size_max = body_end - address + 1 + SCHEDULE_TOPIC_SIZE + 2 + properties_max
        if properties_max > words.PROPERTIES_MAX or size_max > call.record_size_max:
            break
        if size_max > call.scratch_room - total:
            call.stop = words.STOP_ROOM
            break
        target = scratch + total
        level = level_of(call, place, times)
        topic_start = put_until_topic(address, body_end, target, level - 1, sys_flag, times + 1, 0)
        put_u8(topic_start, SCHEDULE_TOPIC_SIZE)
        put_schedule_topic(topic_start + 1)
        start = topic_start + 1 + SCHEDULE_TOPIC_SIZE + 2
        end, origin, origin_size, has_id = copy_kept(call, properties, address + size, start)
        if end == 0:
            break
        if origin == 0:
            origin = topic
            origin_size = topic_size
            put_retry_topic_name(end)
            end += RETRY_TOPIC_NAME_SIZE
            copy(end, topic, topic_size)
            end = put_pair_end(end + topic_size)
        if not has_id:
            put_origin_name(end)
            end = put_pair_end(put_id(end + ORIGIN_NAME_SIZE, address))
        put_wait_and_delay_name(end)
        end = put_pair_end(put_decimal(end + WAIT_AND_DELAY_NAME_SIZE, level))
        copy(end, call.more + place.more, more_size)
        end += more_size
        made = put_sizes(target, start, end)
        result = call.results[count]
        if count > 0:
            last = call.results[count - 1]
            if last.origin_size == origin_size and same_bytes(last.origin, origin, origin_size):
                origin = last.origin
        result.size = made
        result.origin = origin
        result.origin_size = origin_size
        total += made
        count += 1
        call.stop = DONE
    call.result_size = total
    return count


ENTRY_POINTS = {"copy_for_retry": (words.RetryCall,)}
"""Entry points and their arguments. Results are numbers."""
