"""Kernel: make final and op messages of half messages that their producers have decided.

``copy_for_commit`` makes them in a scratch, concatenated, from the mapped log: for each committed
half message the final message, as ``copy_records`` makes it, and for each half message the op
message, which marks it as decided. It stops before a half message that falls back to
``broker.transaction.transactions``.

**What takes the fast path** is a record that ``copy_records`` copies, with the producer group in
its last PGROUP, without a second copy (no TRANSACTION_HALF_OFFSET), and not delayed (no DELAY). A
half message that is rolled back may have any REAL_TOPIC.
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
    store_i32,
)
from reput.format.kernels.plain_text import put_decimal
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

PRODUCER_GROUP = props.PRODUCER_GROUP.encode()
GROUP_SIZE = len(PRODUCER_GROUP)
GROUP_START = int.from_bytes(PRODUCER_GROUP[:4], "little")
GROUP_END = int.from_bytes(PRODUCER_GROUP[4:], "little")
assert GROUP_SIZE == 6
FIRST_COPY = long_name(props.TRANSACTION_HALF_OFFSET)
DIGITS_MAX = 19
"""Maximum of digits of a queue offset."""


@njit(**COMPILE_OPTIONS)
def is_fast_half(address, end, group, group_size):
    """Return whether properties are those of a group's half message without a second copy."""
    is_of_group = False
    while address < end:
        pair_end = find_byte(address, end, PAIR_END)
        name_end = find_byte(address, pair_end, NAME_VALUE)
        size = name_end - address
        if size == GROUP_SIZE:
            if get_i32(address) == GROUP_START and get_u16(address + 4) == GROUP_END:
                value = name_end + 1
                is_of_group = pair_end - value == group_size and same_bytes(
                    value, group, group_size
                )
        elif size == DELAY_SIZE:
            if get_i32(address) == DELAY and get_u8(address + 4) == DELAY_LAST:
                return False
        elif is_name(address, size, FIRST_COPY):
            return False
        address = pair_end + 1
    return is_of_group and group_size > 0


@njit(**COMPILE_OPTIONS)
def put_op(call, target, queue_offset):
    """Write the op message of a half message; return its size."""
    source = call.op
    head_size = AT_BODY - 4
    copy(target, source, head_size)
    end = put_decimal(target + AT_BODY, queue_offset)
    store_i32(target + head_size, end - target - AT_BODY)
    tail_size = call.op_size - AT_BODY
    copy(end, source + AT_BODY, tail_size)
    store_i32(target, end + tail_size - target)
    return end + tail_size - target


@njit(**COMPILE_OPTIONS)
def copy_for_commit(call):
    """Entry point: make the records of ``places``, concatenated, in ``scratch``.

    Return the number of half messages, which are the first ones. ``stop`` has the reason of the
    end, ``results`` and ``result_size`` the sizes of the records.
    """
    place_count = call.place_count
    scratch = call.scratch
    op_room = call.op_size + DIGITS_MAX
    count = 0
    total = 0
    call.stop = DONE
    while count < place_count:
        place = call.places[count]
        address, size, topic, topic_size, properties = find_record(call, place)
        if address == 0:
            break
        queue_offset = load_i64(address + AT_QUEUE_OFFSET)
        group = call.more + place.group
        group_size = place.group_size
        if (
            queue_offset < 0
            or not is_from_topic(call, topic, topic_size)
            or not is_fast_half(properties, address + size, group, group_size)
        ):
            call.stop = words.STOP_FALLS_BACK
            break
        room = call.scratch_room - total - op_room
        target = scratch + total
        final_size = 0
        if place.is_commit:
            final_size = make(
                call, place, address, size, topic, topic_size, properties, target, room
            )
            if final_size == 0:
                break
        elif room < 0:
            call.stop = words.STOP_ROOM
            break
        op_size = put_op(call, target + final_size, queue_offset)
        call.results[count].final_size = final_size
        call.results[count].op_size = op_size
        total += final_size + op_size
        count += 1
    call.result_size = total
    return count


ENTRY_POINTS = {"copy_for_commit": (words.DecisionCall,)}
"""Entry points and their arguments. Results are numbers."""
