"""Kernel: messages that are sent back become the records that wait for the next attempt.

``later`` makes them side by side in a scratch, from the mapped log, as ``broker.retries`` and
``incoming.delayed`` would; rows of PLACES say where they stand (``copy_args``). It stops in front
of what is not common, which is Python's.

Common is what is common for ``again``, and has been consumed less often than LATER_TIMES_MAX, whose
properties all have a name and a value, RETRY_TOPIC and ORIGIN_MESSAGE_ID at most once.
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
    put_i64,
    put_u8,
    set_word,
    text_writer,
    word,
)
from reput.store.kernels import control_block as state, copy_args as words
from reput.store.kernels.append import DELAY, DELAY_LAST, DELAY_SIZE
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
from reput.store.kernels.reply import ID_BYTES, put_decimal, put_hex
from reput.store.kernels.send_properties import WAIT, WAIT_SIZE

RETRY_TOPIC = long_name(props.RETRY_TOPIC)
ORIGIN_ID = long_name(props.ORIGIN_MESSAGE_ID)
AT_STORE_HOST = AT_BORN_HOST + HOST_V4 + 8
LATER_BYTES = 8 * words.LATER_WORDS
TOLD_BYTES = 8 * words.TOLD_WORDS

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
"""Bytes of what is added at most, besides a topic and what the caller adds; and a separator."""

KEPT, REPLACED, IS_RETRY_TOPIC, IS_ORIGIN_ID, ODD = range(5)


@njit(**COMPILE_OPTIONS)
def kind_of(call, name, size):
    """Return what a property of this name is here."""
    if size == WAIT_SIZE:
        return REPLACED if get_i32(name) == WAIT else KEPT
    if size == DELAY_SIZE:
        is_delay = get_i32(name) == DELAY and get_u8(name + 4) == DELAY_LAST
        return REPLACED if is_delay else KEPT
    if size == 8:
        found = get_i64(name)
        if found == CRC32:
            return ODD
        return REPLACED if found == REAL_QUEUE_ID else KEPT
    if is_name(name, size, REAL_TOPIC):
        return REPLACED
    if is_name(name, size, RETRY_TOPIC):
        return IS_RETRY_TOPIC
    if is_name(name, size, ORIGIN_ID):
        return IS_ORIGIN_ID
    if word(call, words.HAS_LIGHT_QUEUES) != 0 and is_name(name, size, LIGHT):
        return ODD
    return KEPT


@njit(**COMPILE_OPTIONS)
def copy_kept(call, at, end, target):
    """Copy the pairs that are kept, each with a separator behind it.

    Returns where they end, 0 if one is not common; address and size of RETRY_TOPIC's value, 0 if it
    is not there; and whether ORIGIN_MESSAGE_ID is.
    """
    origin = origin_size = 0
    has_id = False
    while at < end:
        pair_end = find_byte(at, end, PAIR_END)
        name_end = find_byte(at, pair_end, NAME_VALUE)
        if name_end == at or name_end + 1 >= pair_end:
            return 0, 0, 0, False
        kind = kind_of(call, at, name_end - at)
        if kind == ODD or (kind == IS_RETRY_TOPIC and origin != 0):
            return 0, 0, 0, False
        if kind == IS_RETRY_TOPIC:
            origin = name_end + 1
            origin_size = pair_end - origin
        elif kind == IS_ORIGIN_ID:
            if has_id:
                return 0, 0, 0, False
            has_id = True
        if kind != REPLACED:
            copy(target, at, pair_end - at)
            target += pair_end - at
            put_u8(target, PAIR_END)
            target += 1
        at = pair_end + 1
    return target, origin, origin_size, has_id


@njit(**COMPILE_OPTIONS)
def put_id(target, at):
    """Write the message id that is made of the host and the place of a record; return its end."""
    host = load_i64(at + AT_STORE_HOST)
    physical_offset = load_i64(at + AT_PHYSICAL_OFFSET)
    put_hex(target, host >> 32)
    put_hex(target + 8, host)
    put_hex(target + 16, physical_offset >> 32)
    put_hex(target + 24, physical_offset)
    return target + ID_BYTES


@njit(**COMPILE_OPTIONS)
def put_pair_end(at):
    """Write a separator; return where it ends."""
    put_u8(at, PAIR_END)
    return at + 1


@njit(**COMPILE_OPTIONS)
def level_of(call, place, times):
    """Return the delay level of a message that was consumed so often."""
    level = word(place, words.LATER_LEVEL)
    if level == 0:
        level = words.FIRST_DELAY_LEVEL + times
    return min(level, word(word(call, words.BLOCK), state.DELAY_COUNT))


@njit(**COMPILE_OPTIONS)
def later(call):
    """Entry point: make the records of PLACES, one behind the other, in SCRATCH.

    Returns how many were made: the first ones. STOP says why it ended, RESULT_BYTES how long they
    are together, SIZES of each how long it is and where the topic stands that it was sent to.
    """
    place_count = word(call, words.PLACE_COUNT)
    scratch = word(call, words.SCRATCH)
    count = 0
    total = 0
    set_word(call, words.STOP, DONE)
    while count < place_count:
        place = word(call, words.PLACES) + LATER_BYTES * count
        at, size, topic, topic_size, properties = find_record(call, place)
        if at == 0:
            break
        set_word(call, words.STOP, words.STOP_UNCOMMON)
        times = load_i32(at + AT_RECONSUME_TIMES)
        if topic_size == 0 or times < 0 or times >= word(place, words.LATER_TIMES_MAX):
            break
        more_size = word(place, words.PLACE_MORE_SIZE)
        body_end = topic - 1
        properties_max = at + size - properties + topic_size + PAIRS_MAX + more_size
        size_max = body_end - at + 1 + SCHEDULE_TOPIC_SIZE + 2 + properties_max
        if properties_max > words.PROPERTIES_MAX or size_max > word(call, words.RECORD_MAX):
            break
        if size_max > word(call, words.SCRATCH_ROOM) - total:
            set_word(call, words.STOP, words.STOP_ROOM)
            break
        target = scratch + total
        level = level_of(call, place, times)
        sys_flag = load_i32(at + AT_SYS_FLAG)
        behind = put_until_topic(at, body_end, target, level - 1, sys_flag, times + 1, 0)
        put_u8(behind, SCHEDULE_TOPIC_SIZE)
        put_schedule_topic(behind + 1)
        start = behind + 1 + SCHEDULE_TOPIC_SIZE + 2
        end, origin, origin_size, has_id = copy_kept(call, properties, at + size, start)
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
            end = put_pair_end(put_id(end + ORIGIN_NAME_SIZE, at))
        put_wait_and_delay_name(end)
        end = put_pair_end(put_decimal(end + WAIT_AND_DELAY_NAME_SIZE, level))
        copy(end, word(call, words.MORE) + word(place, words.PLACE_MORE), more_size)
        end += more_size
        made = put_sizes(target, start, end)
        told = word(call, words.SIZES) + TOLD_BYTES * count
        if count > 0 and get_i64(told - TOLD_BYTES + 8 * words.TOLD_ORIGIN_SIZE) == origin_size:
            same = get_i64(told - TOLD_BYTES + 8 * words.TOLD_ORIGIN)
            if same_bytes(same, origin, origin_size):
                origin = same
        put_i64(told, made)
        put_i64(told + 8 * words.TOLD_ORIGIN, origin)
        put_i64(told + 8 * words.TOLD_ORIGIN_SIZE, origin_size)
        total += made
        count += 1
        set_word(call, words.STOP, DONE)
    set_word(call, words.RESULT_BYTES, total)
    return count


ENTRY_POINTS = {"later": 1}
"""Name to number of arguments; all are int64, and so is the result."""
