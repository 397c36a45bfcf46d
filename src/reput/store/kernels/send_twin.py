"""The kernel ``send.receive`` in plain Python; see there for what is common."""

import ctypes
import re
import struct
from dataclasses import dataclass

from reput.format import (
    command,
    headers,
    java,
    message as record,
    message_id,
    names,
    properties as props,
    recall_handle as handles,
    sys_flag as flags,
)
from reput.format.codes import RequestCode
from reput.format.command import Command, Serialization
from reput.format.headers import SendMessageHeader
from reput.format.message import Host, StoredMessage
from reput.format.recall_handle import RecallHandle
from reput.format.send_reply import send_reply
from reput.store.kernels import control_block as state, deliver_twin, hot_twin, send_rules
from reput.store.kernels.request_twin import LETTERS, ReadHeader, is_number, read_header
from reput.store.kernels.twin_memory import Row, read, topic_row, write

_PLACE = struct.Struct("=qq")
_COMMON_FLAGS = (
    flags.COMPRESSED | flags.MULTI_TAGS | flags.COMPRESSION_ZLIB | flags.TRANSACTION_PREPARED
)

_PAIR = rb"[\x20-\x7f]+\x01[\x20-\x7f]+"
_PAIRS = re.compile(rb"(?:%b(?:\x02%b)*\x02?)?" % (_PAIR, _PAIR))


@dataclass(frozen=True, slots=True)
class _Send:
    """A frame that is common, but perhaps for its properties and its record's size."""

    command: Command
    header: SendMessageHeader
    room: int
    """Bytes that the kernel may need while it makes the record."""


@dataclass(frozen=True, slots=True)
class _Note:
    """What its reply needs."""

    opaque: int
    serialization: Serialization
    queue_id: int
    end: int
    recall_handle: str


@dataclass(frozen=True, slots=True)
class _Stored:
    """What is stored of a send besides what its header says."""

    topic: str
    queue_id: int
    property_bytes: bytes
    recall_handle: str = ""


# --- one frame ------------------------------------------------------------------------------


def _by_letter(found: Command) -> dict[str, str] | None:
    """Return the fields by their letters; None if they are named otherwise than the code asks."""
    fields = found.ext_fields or {}
    if found.code == RequestCode.SEND_MESSAGE_V2:
        return fields if all(len(name) == 1 for name in fields) else None
    if found.code != RequestCode.SEND_MESSAGE or any(len(name) == 1 for name in fields):
        return None
    letters = dict(zip(send_rules.FIELD_NAMES, LETTERS, strict=True))
    return {letters[name]: value for name, value in fields.items()}


def _has_common_fields(fields: dict[str, str]) -> bool:
    return (
        set("abcdefgh") <= fields.keys()
        and all(is_number(fields[name]) for name in "defh")
        and is_number(fields["g"], None)
        and int(fields["f"]) & ~_COMMON_FLAGS == 0
        and fields.get("j", "0") == "0"
        and fields.get("k", "false") == fields.get("m", "false") == "false"
        and is_number(fields.get("l", "0"))
    )


def _read_send(block: Row, found: ReadHeader) -> _Send | None:
    body_size = len(found.command.body)
    if not 0 < body_size <= block[state.BODY_BYTES_MAX]:
        return None
    if found.command.flag or found.command.opaque < 0:
        return None
    fields = _by_letter(found.command)
    if fields is None or not _has_common_fields(fields):
        return None
    if found.command.code == RequestCode.SEND_MESSAGE:
        header = headers.decode(SendMessageHeader, found.command.ext_fields)
    else:
        header = headers.decode_v2(found.command.ext_fields)
    name = header.topic.encode()
    if not 0 < len(name) <= record.TOPIC_BYTES_MAX_V1:
        return None
    row = topic_row(block, name)
    if row is None or row[state.TOPIC_KIND] != state.KIND_PLAIN:
        return None
    if header.queue_id >= row[state.TOPIC_WRITE_QUEUES]:
        return None
    parts = body_size, len(name), found.properties_size, 1, block[state.SUFFIX_SIZE]
    more = send_rules.HELD_BYTES_MAX + send_rules.GAP + send_rules.SLACK
    room = record.FIXED_BYTES_V1 + sum(parts) + more
    return _Send(found.command, header, room)


def _pairs(text: str) -> dict[str, str] | None:
    """Return the properties that were sent; None: they are not common."""
    data = text.encode(errors="surrogatepass")
    if len(data) > props.LENGTH_MAX or not _PAIRS.fullmatch(data):
        return None
    pairs = [pair.partition("\1")[::2] for pair in text.split("\2") if pair]
    found = dict(pairs)
    if len(found.keys() - {props.WAIT}) > send_rules.NAMES_MAX:
        return None
    held_by = [name for name in found if _is_name_of_python(name)]
    if len(found) < len(pairs) or not set(held_by) <= set(send_rules.HELD_BACK):
        return None
    if len(held_by) > 1 or found.get(props.WAIT, "true") != "true":
        return None
    return found


def _is_name_of_python(name: str) -> bool:
    return name.startswith(tuple(send_rules.NAMES_OF_PYTHON))


def _leaving_ms(block: Row, sent: dict[str, str]) -> int | None:
    """Return TIMER_OUT_MS of a message with a time of its own; None: it is not common."""
    now_ms, most_ms = block[state.CLOCK_TIME], block[state.TIMER_DELAY_MS_MAX]
    ((name, unit_ms),) = (one for one in send_rules.TIMER_UNITS_MS.items() if one[0] in sent)
    if not block[state.TAKES_TIMERS] or not is_number(sent[name], None):
        return None
    said = int(sent[name])
    delay_ms = said * unit_ms if unit_ms else said - now_ms
    if not 0 < delay_ms <= most_ms:
        return None
    precision_ms = block[state.TIMER_PRECISION_MS]
    return -(-(now_ms + delay_ms) // precision_ms) * precision_ms - precision_ms


def _recall_handle(block: Row, topic: str, out_ms: int, key: str) -> str | None:
    """Return the handle of a message that waits for the timer; None: it is not common."""
    name = read(block[state.BROKER_NAME], block[state.BROKER_NAME_SIZE])
    if len(topic) + len(name) + len(key) > send_rules.HANDLE_PARTS_MAX:
        return None
    if not key:
        return ""
    return handles.encode(RecallHandle(topic, java.decode_utf8(name), str(out_ms + 1), key))


def _stored(block: Row, header: SendMessageHeader) -> _Stored | None:
    """Return what is stored of a send; None: it is not common."""
    sent = _pairs(header.properties or "")
    if sent is None:
        return None
    topic, queue_id = header.topic, header.queue_id
    level = sent.get(props.DELAY)
    marks: dict[str, str] = {}
    handle: str | None = ""
    if props.TRANSACTION_PREPARED in sent:
        if sent[props.TRANSACTION_PREPARED] != "true" or not block[state.TAKES_HALVES]:
            return None
        topic, queue_id = names.HALF_TOPIC, 0
    elif flags.transaction_type(header.sys_flag) != flags.TRANSACTION_NONE:
        return None
    elif level is not None:
        if not is_number(level) or not 0 < int(level) <= block[state.DELAY_COUNT]:
            return None
        topic, queue_id = names.SCHEDULE_TOPIC, int(level) - 1
    elif not sent.keys().isdisjoint(send_rules.TIMER_UNITS_MS):
        out_ms = _leaving_ms(block, sent)
        if out_ms is None:
            return None
        handle = _recall_handle(block, topic, out_ms, sent.get(props.UNIQ_KEY, ""))
        marks[props.TIMER_OUT_MS] = str(out_ms)
        topic, queue_id = names.TIMER_TOPIC, 0
    kept = {name: value for name, value in sent.items() if name != props.WAIT}
    stored = _encode(kept) + read(block[state.SUFFIX_ADDRESS], block[state.SUFFIX_SIZE])
    if not kept.keys().isdisjoint(send_rules.HELD_BACK):
        wait = _encode({props.WAIT: "true"}) if props.WAIT in sent else b""
        if topic == names.HALF_TOPIC:
            stored += wait
        place = {props.REAL_TOPIC: header.topic, props.REAL_QUEUE_ID: str(header.queue_id)}
        stored += _encode(marks | place)
        if topic == names.TIMER_TOPIC:
            stored += wait
    if handle is None or len(stored) > props.LENGTH_MAX:
        return None
    return _Stored(topic, queue_id, stored, handle)


def _encode(pairs: dict[str, str]) -> bytes:
    return "".join(f"{name}\1{value}\2" for name, value in pairs.items()).encode()


def _host(address: int, port: int) -> Host:
    return Host(address.to_bytes(4), port)


def _record(block: Row, send: _Send) -> tuple[bytes, str] | None:
    """Return the record of a send, and its recall handle; None: it is not common."""
    header = send.header
    stored = _stored(block, header)
    if stored is None:
        return None
    data = record.encode(
        StoredMessage(
            topic=stored.topic,
            body=send.command.body,
            queue_id=stored.queue_id,
            queue_offset=0,
            physical_offset=0,
            born_timestamp=header.born_timestamp,
            born_host=_host(block[state.BORN_ADDRESS], block[state.BORN_PORT]),
            store_timestamp=0,
            store_host=_host(block[state.STORE_ADDRESS], block[state.STORE_PORT]),
            flag=header.flag,
            sys_flag=header.sys_flag & ~flags.TRANSACTION_MASK,
            property_bytes=stored.property_bytes,
        )
    )
    return (data, stored.recall_handle) if len(data) <= block[state.RECORD_BYTES_MAX] else None


# --- a round --------------------------------------------------------------------------------


def _collect(block: Row) -> tuple[list[_Note], bytes, int | ReadHeader | None]:
    """Return frames, their records, and why not more: a stop, a pull, or None: there is no room."""
    received = read(block[state.RECEIVE_ADDRESS], block[state.RECEIVE_END])
    position = block[state.RECEIVE_POSITION]
    is_on = block[state.RECEIVE_IS_ON] and not block[state.HAS_RECORD_CRC]
    replies_left = block[state.REPLIES_ROOM] - block[state.REPLIES_BYTES]
    notes: list[_Note] = []
    records = b""
    while True:
        if len(received) - position < command.LENGTH.size:
            return notes, records, state.STOP_DONE
        (size,) = command.LENGTH.unpack_from(received, position)
        if not command.MARK.size <= size <= command.FRAME_BYTES_MAX:
            return notes, records, state.STOP_LENGTH
        end = position + command.LENGTH.size + size
        if end > len(received):
            return notes, records, state.STOP_DONE
        header = read_header(received[end - size : end])
        if header is None:
            return notes, records, state.STOP_FRAME
        if deliver_twin.is_pull(header):
            is_whole = not header.command.body
            return notes, records, header if is_whole else state.STOP_FRAME
        send = _read_send(block, header) if is_on else None
        if send is None:
            return notes, records, state.STOP_FRAME
        if block[state.DELIVER_COUNT]:
            return [], b"", state.STOP_REPLIES
        if replies_left < send_rules.REPLY_BYTES_MAX:
            return notes, records, None if notes else state.STOP_REPLIES
        has_room = send.room <= block[state.SCRATCH_ROOM] - len(records)
        if not has_room or len(notes) >= block[state.NOTES_ROOM]:
            return notes, records, None if notes else state.STOP_FRAME
        made = _record(block, send)
        if made is None:
            return notes, records, state.STOP_FRAME
        data, handle = made
        replies_left -= send_rules.REPLY_BYTES_MAX
        if handle:
            if replies_left < send_rules.HANDLE_BYTES_MAX:
                return notes, records, None if notes else state.STOP_REPLIES
            replies_left -= send_rules.HANDLE_BYTES_MAX
        request, queue_id = send.command, send.header.queue_id
        notes.append(_Note(request.opaque, request.serialization, queue_id, end, handle))
        records += data
        position = end


def _answer(block: Row, notes: list[_Note]) -> None:
    host = _host(block[state.STORE_ADDRESS], block[state.STORE_PORT])
    for i, note in enumerate(notes):
        place = read(block[state.NOTES_ADDRESS] + state.PLACE_BYTES * i, state.PLACE_BYTES)
        physical_offset, queue_offset = _PLACE.unpack(place)
        offset_id = message_id.encode_offset_id(host, physical_offset)
        reply = send_reply(
            note.opaque,
            note.serialization,
            offset_id,
            note.queue_id,
            queue_offset,
            note.recall_handle,
        )
        write(block[state.REPLIES_ADDRESS] + block[state.REPLIES_BYTES], reply)
        block[state.REPLIES_BYTES] += len(reply)
        block[state.RECEIVE_POSITION] = note.end


def receive(block_address: ctypes.c_int64) -> int:
    """Store and answer the sends of a receive buffer; as the kernel ``send.receive``."""
    block = Row(block_address.value)
    answered = 0
    block[state.DELIVER_COUNT] = 0
    while True:
        notes, records, stop = _collect(block)
        if notes:
            write(block[state.SCRATCH_ADDRESS], records)
            block[state.PLACES] = block[state.NOTES_ADDRESS]
            block[state.INPUT_POSITION] = 0
            block[state.INPUT_SIZE] = len(records)
            placed = hot_twin.append(block_address, records)
            _answer(block, notes[:placed])
            answered += placed
            if block[state.STOP] != state.STOP_DONE:
                return answered
        if isinstance(stop, ReadHeader):
            stop = None if notes else _answer_pull(block, stop, answered)
        if stop is not None:
            block[state.STOP] = stop
            return answered


def _answer_pull(block: Row, header: ReadHeader, answered: int) -> int | None:
    """Answer a pull; return None, or why not."""
    if answered or (not block[state.DELIVER_COUNT] and block[state.REPLIES_BYTES]):
        return state.STOP_REPLIES
    stop = deliver_twin.deliver(block, header)
    if stop == state.STOP_DONE:
        block[state.RECEIVE_POSITION] += header.frame_size
        block[state.DELIVER_COUNT] += 1
        return None
    return stop
