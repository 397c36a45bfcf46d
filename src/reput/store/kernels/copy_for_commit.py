"""Kernel: half messages that their producers have decided become final and op messages.

``decided`` makes them side by side in a scratch, from the mapped log: of each that is committed the
final message, as ``again`` makes it, and of each the op message, which says which one is decided.
It stops in front of what is not common, which is Python's (``broker.transactions``).

Common is what is common for ``again``, of that group by its last PGROUP, put once (there is no
TRANSACTION_HALF_OFFSET), and delivered at once (no DELAY). What is rolled back may belong anywhere.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import properties as props
from reput.format.kernels.columns import AT_QUEUE_OFFSET, NAME_VALUE, PAIR_END, find_byte
from reput.format.kernels.hashes import same_bytes
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_i32,
    get_u8,
    get_u16,
    load_i64,
    put_i64,
    set_word,
    store_i32,
    word,
)
from reput.store.kernels import copy_args as words
from reput.store.kernels.append import DELAY, DELAY_LAST, DELAY_SIZE
from reput.store.kernels.copy_records import (
    AT_BODY,
    DONE,
    find_record,
    is_from_topic,
    is_name,
    long_name,
    make,
)
from reput.store.kernels.reply import put_decimal

PRODUCER_GROUP = props.PRODUCER_GROUP.encode()
GROUP_SIZE = len(PRODUCER_GROUP)
GROUP_START = int.from_bytes(PRODUCER_GROUP[:4], "little")
GROUP_END = int.from_bytes(PRODUCER_GROUP[4:], "little")
assert GROUP_SIZE == 6
FIRST_COPY = long_name(props.TRANSACTION_HALF_OFFSET)
PLACE_BYTES = 8 * words.DECIDED_WORDS
TOLD_BYTES = 8 * words.DECIDED_TOLD_WORDS
DIGITS_MAX = 19
"""Of a queue offset."""


@njit(**COMPILE_OPTIONS)
def is_common_half(at, end, group, group_size):
    """Whether properties are those of a group's half message that was put once."""
    is_of_group = False
    while at < end:
        pair_end = find_byte(at, end, PAIR_END)
        name_end = find_byte(at, pair_end, NAME_VALUE)
        size = name_end - at
        if size == GROUP_SIZE:
            if get_i32(at) == GROUP_START and get_u16(at + 4) == GROUP_END:
                value = name_end + 1
                is_of_group = pair_end - value == group_size and same_bytes(
                    value, group, group_size
                )
        elif size == DELAY_SIZE:
            if get_i32(at) == DELAY and get_u8(at + 4) == DELAY_LAST:
                return False
        elif is_name(at, size, FIRST_COPY):
            return False
        at = pair_end + 1
    return is_of_group and group_size > 0


@njit(**COMPILE_OPTIONS)
def put_op(call, target, queue_offset):
    """Write the op message of a half message; return its size."""
    source = word(call, words.OP)
    head_size = AT_BODY - 4
    copy(target, source, head_size)
    end = put_decimal(target + AT_BODY, queue_offset)
    store_i32(target + head_size, end - target - AT_BODY)
    tail_size = word(call, words.OP_SIZE) - AT_BODY
    copy(end, source + AT_BODY, tail_size)
    store_i32(target, end + tail_size - target)
    return end + tail_size - target


@njit(**COMPILE_OPTIONS)
def decided(call):
    """Entry point: make the records of PLACES, one behind the other, in SCRATCH.

    Returns of how many half messages they were made: the first ones. STOP says why it ended, SIZES
    and RESULT_BYTES how long they are.
    """
    place_count = word(call, words.PLACE_COUNT)
    scratch = word(call, words.SCRATCH)
    op_room = word(call, words.OP_SIZE) + DIGITS_MAX
    count = 0
    total = 0
    set_word(call, words.STOP, DONE)
    while count < place_count:
        place = word(call, words.PLACES) + PLACE_BYTES * count
        at, size, topic, topic_size, properties = find_record(call, place)
        if at == 0:
            break
        queue_offset = load_i64(at + AT_QUEUE_OFFSET)
        group = word(call, words.MORE) + word(place, words.DECIDED_GROUP)
        group_size = word(place, words.DECIDED_GROUP_SIZE)
        if (
            queue_offset < 0
            or not is_from_topic(call, topic, topic_size)
            or not is_common_half(properties, at + size, group, group_size)
        ):
            set_word(call, words.STOP, words.STOP_UNCOMMON)
            break
        room = word(call, words.SCRATCH_ROOM) - total - op_room
        target = scratch + total
        final_size = 0
        if word(place, words.DECIDED_IS_COMMIT):
            final_size = make(call, place, at, size, topic, topic_size, properties, target, room)
            if final_size == 0:
                break
        elif room < 0:
            set_word(call, words.STOP, words.STOP_ROOM)
            break
        op_size = put_op(call, target + final_size, queue_offset)
        told = word(call, words.SIZES) + TOLD_BYTES * count
        put_i64(told + 8 * words.DECIDED_FINAL_SIZE, final_size)
        put_i64(told + 8 * words.DECIDED_OP_SIZE, op_size)
        total += final_size + op_size
        count += 1
    set_word(call, words.RESULT_BYTES, total)
    return count


ENTRY_POINTS = {"decided": 1}
"""Name to number of arguments; all are int64, and so is the result."""
