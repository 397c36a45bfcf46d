"""The kernel ``collect`` in plain Python; see there for what is common."""

import ctypes

from reput.format import command
from reput.format.command import IS_ONEWAY
from reput.store.kernels import control_block as state, scan_args as rules
from reput.store.kernels.request_twin import ReadHeader, is_number, read_header
from reput.store.kernels.twin_memory import Row, read


def collect(block_address: ctypes.c_int64, wanted_address: ctypes.c_int64) -> int:
    """Write a row for each request of a receive buffer; as the kernel ``scan_requests.collect``."""
    block, wanted = Row(block_address.value), Row(wanted_address.value)
    count = 0
    while count < wanted[rules.ROWS_MAX] and _collect_one(block, wanted, count):
        count += 1
    return count


def _collect_one(block: Row, wanted: Row, i: int) -> bool:
    received = read(block[state.RECEIVE_ADDRESS], block[state.RECEIVE_END])
    position = block[state.RECEIVE_POSITION]
    if len(received) - position < command.LENGTH.size:
        return False
    (size,) = command.LENGTH.unpack_from(received, position)
    end = position + command.LENGTH.size + size
    if not command.MARK.size <= size <= command.FRAME_BYTES_MAX or end > len(received):
        return False
    fields = [_field(wanted, i) for i in range(wanted[rules.NAMES])]
    found = read_header(received[end - size : end], tuple(name for name, _ in fields))
    if found is None or not _is_wanted(wanted, found, [name for name, _ in fields]):
        return False
    row_bytes = 8 * (rules.ROW_WORDS + rules.VALUES * len(fields))
    row = Row(wanted[rules.ROWS] + row_bytes * i)
    before = Row(row.address - row_bytes) if i else None
    buffer = block[state.RECEIVE_ADDRESS]
    values = []
    for name, kind in fields:
        text = (found.command.ext_fields or {}).get(name)
        if text is None:
            values += [0, rules.ABSENT]
            continue
        place = _place(received, position, end, name, text)
        value = _value(kind, buffer + place, text)
        if value is None:
            return False
        at = rules.ROW_WORDS + len(values)
        if kind == rules.TEXT and before is not None:
            value = _known(text.encode(), before[at], before[at + 1]) or value
        values += [value, len(text)]
    body_size = len(found.command.body)
    head = (
        *(found.command.opaque, found.command.flag, int(found.command.serialization), end),
        *(buffer + end - body_size, body_size),
    )
    for number, one in enumerate((*head, *values)):
        row[number] = one
    block[state.RECEIVE_POSITION] = end
    return True


def _known(text: bytes, address: int, size: int) -> int | None:
    """Return where a text stands in the row before, if it is the same."""
    return address if size == len(text) and read(address, size) == text else None


def _field(wanted: Row, i: int) -> tuple[str, int]:
    """Return name and kind of a field."""
    at = rules.NAMES + 1 + rules.FIELD_WORDS * i
    name = read(wanted[at + rules.FIELD_NAME], wanted[at + rules.FIELD_NAME_SIZE])
    return name.decode(), wanted[at + rules.FIELD_KIND]


def _is_wanted(wanted: Row, found: ReadHeader, names: list[str]) -> bool:
    request = found.command
    required = {name for i, name in enumerate(names) if wanted[rules.REQUIRED] >> i & 1}
    return (
        request.code == wanted[rules.CODE]
        and request.flag in (0, IS_ONEWAY)
        and request.opaque >= 0
        and required <= (request.ext_fields or {}).keys()
    )


def _place(received: bytes, start: int, end: int, name: str, text: str) -> int:
    """Return where the text of a field stands: behind its name, and what ends that."""
    is_json = received[start + command.LENGTH.size] == command.Serialization.JSON
    if is_json:
        mark = f'"{name}":"{text}"'.encode()
        before = len(mark) - len(text) - 1
    else:
        sizes = len(name).to_bytes(2), len(text).to_bytes(4)
        mark = sizes[0] + name.encode() + sizes[1] + text.encode()
        before = len(mark) - len(text)
    return received.index(mark, start, end) + before


def _value(kind: int, address: int, text: str) -> int | None:
    """Return what a row has of a text; None if it is not of its kind."""
    if kind == rules.TEXT:
        return address
    if kind == rules.BOOL:
        return {"true": 1, "false": 0}.get(text)
    is_one = is_number(text) if kind == rules.INT else is_number(text, None)
    return int(text) if is_one else None
