"""Kernels: what is stored of a send that waits for the timer; what ``broker.timers.park`` does.

Common is one of the properties that ask for the timer, with a number as one would write it: a time
that is to come, and not further away than is allowed.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import properties as props
from reput.format.kernels.columns import NAME_VALUE, PAIR_END, UNIQ_KEY, find_byte
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    get_i64,
    put_u8,
    set_word,
    text_writer,
    word,
)
from reput.store.kernels import control_block as state
from reput.store.kernels.reply import put_decimal
from reput.store.kernels.request_fields import number
from reput.store.kernels.send_properties import time_unit
from reput.store.kernels.send_rules import HANDLE_PARTS_MAX, OUT_MS_NAME

put_out_ms_name = text_writer(OUT_MS_NAME.encode())
OUT_MS_SIZE = len(OUT_MS_NAME)
KEY_SIZE = len(props.UNIQ_KEY)


@njit(**COMPILE_OPTIONS)
def find_time(at, end):
    """Return what pairs say of the timer, and their unique key: unit, number, address and size."""
    unit = said = key = key_size = 0
    while at < end:
        name_end = find_byte(at, end, NAME_VALUE)
        value = name_end + 1
        pair_end = find_byte(value, end, PAIR_END)
        one = time_unit(at, name_end - at)
        if one >= 0:
            unit = one
            said = number(value, pair_end - value)
        elif name_end - at == KEY_SIZE and get_i64(at) == UNIQ_KEY:
            key = value
            key_size = pair_end - value
        at = pair_end + 1
    return unit, said, key, key_size


@njit(**COMPILE_OPTIONS)
def leaving_ms(block, unit, said):
    """Return TIMER_OUT_MS of a message that says so; -1: it is Python's."""
    now_ms = word(block, state.CLOCK_TIME)
    most = word(block, state.TIMER_DELAY_MS_MAX)
    if said < 0 or (unit != 0 and said > most):
        return -1
    deliver_ms = now_ms + said * unit if unit != 0 else said
    if deliver_ms <= now_ms or deliver_ms - now_ms > most:
        return -1
    precision_ms = word(block, state.TIMER_PRECISION_MS)
    return (deliver_ms + precision_ms - 1) // precision_ms * precision_ms - precision_ms


@njit(**COMPILE_OPTIONS)
def put_leaving(block, start, pairs_end, at, topic_size):
    """Write when the message of pairs leaves; return where that ends, 0: it is Python's.

    What its recall handle needs is remembered: FRAME_OUT_MS, FRAME_KEY.
    """
    unit, said, key, key_size = find_time(start, pairs_end)
    out_ms = leaving_ms(block, unit, said)
    parts_size = topic_size + word(block, state.BROKER_NAME_SIZE) + key_size
    if out_ms < 0 or parts_size > HANDLE_PARTS_MAX:
        return 0
    put_out_ms_name(at)
    at += OUT_MS_SIZE
    set_word(block, state.FRAME_OUT_MS, at if key_size > 0 else 0)
    set_word(block, state.FRAME_KEY, key)
    set_word(block, state.FRAME_KEY_SIZE, key_size)
    at = put_decimal(at, out_ms)
    put_u8(at, PAIR_END)
    return at + 1
