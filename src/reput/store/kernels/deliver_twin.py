"""The kernel ``deliver`` in plain Python; see there for what is common."""

import ctypes

from reput.format import cq_unit
from reput.format.codes import PullFlag, RequestCode
from reput.format.pull_reply import pull_reply
from reput.store.kernels import control_block as state, hot_twin, pull_rules
from reput.store.kernels.request_twin import LETTERS, ReadHeader, is_number
from reput.store.kernels.twin_memory import (
    Row,
    name_slot,
    queue_row,
    read,
    topic_row,
    word_at,
    write,
)

_NAMES = {*pull_rules.FIELD_NAMES, "topic", "queueId", "sysFlag", "bname"}
_INTS = ("queueId", "maxMsgNums", "sysFlag")
_LONGS = ("queueOffset", "commitOffset", "suspendTimeoutMillis", "subVersion")


def is_pull(header: ReadHeader) -> bool:
    """Whether a frame is a pull, common or not."""
    return header.command.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


def _is_common(header: ReadHeader) -> bool:
    fields = header.command.ext_fields or {}
    missing = _NAMES - fields.keys()
    return (
        header.command.flag == 0
        and header.command.opaque >= 0
        and fields.keys() <= _NAMES
        and not fields.keys() & set(LETTERS)
        and missing <= set(pull_rules.OPTIONAL)
        and fields.get("expressionType", pull_rules.TAG) == pull_rules.TAG
        and is_number(fields.get("maxMsgBytes", "0"))
        and all(is_number(fields[name]) for name in _INTS)
        and all(is_number(fields[name], None) for name in _LONGS)
        and int(fields["maxMsgNums"]) > 0
        and int(fields["sysFlag"]) & ~pull_rules.COMMON_FLAGS == 0
    )


def _text(row: Row, place: int) -> bytes:
    return read(row[place], row[place + 1])


def _find_reader(block: Row, fields: dict[str, str]) -> Row | None:
    slots = block[state.READER_SLOTS]
    subscription = None
    if int(fields["sysFlag"]) & PullFlag.HAS_SUBSCRIPTION:
        if "subscription" not in fields:
            return None
        subscription = fields["subscription"].encode()
    if not slots:
        return None
    group, topic = fields["consumerGroup"].encode(), fields["topic"].encode()
    slot = name_slot(group, slots) ^ name_slot(topic, slots)
    while address := word_at(block[state.READERS] + 8 * slot):
        row = Row(address)
        is_told = row[state.READER_SUBSCRIPTION_SIZE] < 0
        if (
            _text(row, state.READER_GROUP) == group
            and _text(row, state.READER_TOPIC) == topic
            and (None if is_told else _text(row, state.READER_SUBSCRIPTION)) == subscription
        ):
            return row
        slot = (slot + 1) % slots
    return None


def units_in_memory(row: Row, queue_offset: int) -> tuple[int, int]:
    """Return where units from an offset on stand, and behind which offset they end."""
    end = row[state.QUEUE_MAX_OFFSET]
    start, address = row[state.QUEUE_TAIL_OFFSET], row[state.QUEUE_TAIL]
    if queue_offset < start:
        start, address = row[state.QUEUE_AHEAD_OFFSET], row[state.QUEUE_AHEAD]
        end = start + row[state.QUEUE_AHEAD_COUNT]
    if not address or not max(start, row[state.QUEUE_MIN_OFFSET]) <= queue_offset < end:
        return 0, queue_offset
    return address + cq_unit.SIZE * (queue_offset - start), end


def _find_messages(
    block: Row, reader: Row, row: Row, fields: dict[str, str], header: ReadHeader
) -> tuple[bytes, int]:
    """Return the reply, empty if there is none; and why not."""
    queue_offset, max_count = int(fields["queueOffset"]), int(fields["maxMsgNums"])
    address, end = units_in_memory(row, queue_offset)
    if end == queue_offset:
        return b"", state.STOP_FRAME
    wanted = max_count
    if reader[state.READER_CODE_COUNT]:
        wanted = max(wanted, block[state.FILTERED_UNITS_MAX])
    wanted = min(wanted, pull_rules.READ_UNITS_MAX)
    count = min(end - queue_offset, wanted)
    used = block[state.REPLIES_BYTES]
    room = block[state.REPLIES_ROOM] - used - pull_rules.HEAD_BYTES_MAX
    when_full = state.STOP_REPLIES if used else state.STOP_FRAME
    if room < 0:
        return b"", when_full
    request = header.command
    bounds = row[state.QUEUE_MIN_OFFSET], row[state.QUEUE_MAX_OFFSET]

    def reply(next_offset: int, records: bytes) -> bytes:
        return pull_reply(request.opaque, request.serialization, next_offset, *bounds, records)

    head = len(reply(queue_offset + min(count, max_count), b""))
    for word, value in {
        state.PULL_UNITS: address,
        state.PULL_UNIT_COUNT: count,
        state.PULL_QUEUE_OFFSET: queue_offset,
        state.PULL_BUFFER: block[state.REPLIES_ADDRESS] + used + head,
        state.PULL_ROOM: room,
        state.PULL_COUNT_MAX: max_count,
        state.PULL_CODES: reader[state.READER_CODES],
        state.PULL_CODE_COUNT: reader[state.READER_CODE_COUNT],
        state.RESULT_LAST_OFFSET: 0,
    }.items():
        block[word] = value
    found = hot_twin.pull(ctypes.c_int64(block.address))
    stop = block[state.STOP]
    if stop != state.STOP_DONE:
        return b"", when_full if stop == state.STOP_BUFFER else state.STOP_FRAME
    scanned = block[state.RESULT_SCANNED]
    is_used_up = scanned == count < wanted and queue_offset + count < bounds[1]
    if not found or block[state.RESULT_GONE] or block[state.RESULT_DAMAGED] or is_used_up:
        return b"", state.STOP_FRAME
    records = read(block[state.PULL_BUFFER], block[state.RESULT_BYTES])
    whole = reply(queue_offset + scanned, records)
    if len(whole) != head + len(records):
        return b"", state.STOP_FRAME
    return whole, state.STOP_DONE


def _count(block: Row, reader: Row, fields: dict[str, str]) -> None:
    size = 8 * state.DELIVERY_WORDS
    delivery = Row(reader[state.READER_DELIVERIES] + size * int(fields["queueId"]))
    if not delivery[state.DELIVERY_PULLS]:
        Row(block[state.DELIVERED])[block[state.DELIVERED_COUNT]] = delivery.address
        block[state.DELIVERED_COUNT] += 1
    delivery[state.DELIVERY_PULLS] += 1
    delivery[state.DELIVERY_MESSAGES] += block[state.RESULT_COUNT]
    delivery[state.DELIVERY_BYTES] += block[state.RESULT_BYTES]
    if int(fields["sysFlag"]) & PullFlag.COMMIT_OFFSET:
        delivery[state.DELIVERY_CONSUMER_OFFSET] = int(fields["commitOffset"])


def deliver(block: Row, header: ReadHeader) -> int:
    """Answer a pull; return STOP_DONE, or why not."""
    fields = header.command.ext_fields or {}
    if not block[state.DELIVER_IS_ON] or not _is_common(header):
        return state.STOP_FRAME
    reader = _find_reader(block, fields)
    topic = topic_row(block, fields["topic"].encode())
    queue_id = int(fields["queueId"])
    if (
        reader is None
        or queue_id >= reader[state.READER_QUEUES]
        or topic is None
        or topic[state.TOPIC_KIND] != state.KIND_PLAIN
    ):
        return state.STOP_FRAME
    is_told = reader[state.READER_SUBSCRIPTION_SIZE] < 0
    if is_told and int(fields["subVersion"]) > reader[state.READER_VERSION]:
        return state.STOP_FRAME
    row = queue_row(topic, queue_id)
    if row is None:
        return state.STOP_FRAME
    reply, stop = _find_messages(block, reader, row, fields, header)
    if reply:
        write(block[state.REPLIES_ADDRESS] + block[state.REPLIES_BYTES], reply)
        block[state.REPLIES_BYTES] += len(reply)
        _count(block, reader, fields)
    return stop
