"""Kernels: the stored form of a send that waits for the timer, as ``broker.timer.timers`` makes it.

The fast path handles one of the properties for the timer, with a number in decimal without sign or
leading zero: a future time that is not further away than is allowed.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels.send_properties import time_unit
from reput.broker.kernels.send_rules import HANDLE_PARTS_MAX, OUT_MS_NAME
from reput.format.kernels.columns import NAME_VALUE, PAIR_END, find_byte
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    put_u8,
    text_writer,
)
from reput.format.kernels.plain_text import number, put_decimal

put_out_ms_name = text_writer(OUT_MS_NAME.encode())
OUT_MS_SIZE = len(OUT_MS_NAME)


@njit(**COMPILE_OPTIONS)
def find_time(address, end):
    """Return the timer property of pairs: unit and number."""
    unit = amount = 0
    while address < end:
        name_end = find_byte(address, end, NAME_VALUE)
        value = name_end + 1
        pair_end = find_byte(value, end, PAIR_END)
        named_unit = time_unit(address, name_end - address)
        if named_unit >= 0:
            unit = named_unit
            amount = number(value, pair_end - value)
        address = pair_end + 1
    return unit, amount


@njit(**COMPILE_OPTIONS)
def leaving_ms(block, unit, amount):
    """Return the TIMER_OUT_MS that a message asks for; -1 if it falls back."""
    now_ms = block.clock_time
    delay_max_ms = block.timer_delay_ms_max
    if amount < 0 or (unit != 0 and amount > delay_max_ms):
        return -1
    deliver_ms = now_ms + amount * unit if unit != 0 else amount
    if deliver_ms <= now_ms or deliver_ms - now_ms > delay_max_ms:
        return -1
    precision_ms = block.timer_precision_ms
    return (deliver_ms + precision_ms - 1) // precision_ms * precision_ms - precision_ms


@njit(**COMPILE_OPTIONS)
def put_leaving(block, start, pairs_end, address, topic_size):
    """Write when the message of pairs leaves the timer; return the end, 0 if the frame falls back.

    ``frame_key`` must be set; ``frame_out_ms`` is set for the recall handle.
    """
    unit, amount = find_time(start, pairs_end)
    key_size = block.frame_key_size
    out_ms = leaving_ms(block, unit, amount)
    parts_size = topic_size + block.broker_name_size + key_size
    if out_ms < 0 or parts_size > HANDLE_PARTS_MAX:
        return 0
    put_out_ms_name(address)
    address += OUT_MS_SIZE
    block.frame_out_ms = address if key_size > 0 else 0
    address = put_decimal(address, out_ms)
    put_u8(address, PAIR_END)
    return address + 1
