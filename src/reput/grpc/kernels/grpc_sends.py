"""Kernels: turn a SendMessage into a request to a broker, and its reply into a reply.

A request becomes a frame of code 310 with a binary header, the same as the front makes of it
(``reput.grpc.sending``). ``grpc_calls`` has the entry points.

**What takes the fast path**; the front serves all others:

* One message, not compressed, of one of ``topics``: those for normal messages that can be written.
* Each field at most once but keys and user properties; no unknown field. System properties: tag,
  keys, message id, digest, encoding, type but TRANSACTION, born time and host, queue id.
* Text is visible ASCII. Tag, keys, message id and born host do not begin or end with a space; the
  tag has no ``|``. A message id has at most ID_BYTES_MAX bytes.
* At most PROPERTIES_MAX user properties, with different names that are neither empty nor reserved,
  and do not begin with ``_``. The message without its body has at most TEXT_BYTES_MAX bytes.
* A body that is not empty.

A reply is written if the message is stored, and there is nothing to add.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import names, properties as props
from reput.format.command import Command, Serialization
from reput.format.kernels.columns import NAME_VALUE, PAIR_END
from reput.format.kernels.hashes import same_bytes
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_u8,
    load_i32,
    load_u16,
    put_u8,
    store_i16,
    store_i32,
    text_writer,
)
from reput.format.kernels.plain_text import first_word, name_word, number
from reput.format.kernels.row_types import clear
from reput.format.reserved_properties import RESERVED_PROPERTIES
from reput.grpc.kernels import call_words as words
from reput.grpc.kernels.grpc_wire import (
    AT_FIELDS,
    OK,
    REPLY_SIZE,
    begin_reply,
    delimited,
    end_reply,
    is_visible,
    message_of,
    put_copy,
    put_digits,
    put_ok_reply,
    put_varint,
    read_resource,
    set_place,
    varint,
)
from reput.grpc.wire.grpc_messages import MessageType

SEND_CODE = 310
ID_BYTES_MAX = 48
"""Maximum size of a message id, which a reply has twice; a size of its entry has one byte."""
PROPERTIES_MAX = words.PROPERTIES_MAX
TEXT_BYTES_MAX = 4096
ROOM_BESIDE = 1024
SECONDS_MAX = 1 << 36
SPACE, PIPE, UNDERSCORE = map(ord, " |_")

RESERVED = sorted(RESERVED_PROPERTIES)
R_SIZES = tuple(len(name) for name in RESERVED)
R_STARTS = tuple(name_word(name) for name in RESERVED)
R_ENDS = tuple(name_word(name[-8:]) for name in RESERVED)

TRANSACTION = int(MessageType.TRANSACTION)
GZIP = 2
BINARY_MARK = int(Serialization.ROCKETMQ) << 24
VERSION = Command(SEND_CODE).version


def _pair(name: str) -> bytes:
    return name.encode() + b"\1"


put_tags, put_keys, put_unique_key = map(
    text_writer, map(_pair, (props.TAGS, props.KEYS, props.UNIQ_KEY))
)
TAGS_SIZE, KEYS_SIZE, UNIQUE_KEY_SIZE = (
    len(name) + 1 for name in (props.TAGS, props.KEYS, props.UNIQ_KEY)
)
RECONSUMED = b"RECONSUME_TIME\x010\2" + _pair(props.PRODUCER_GROUP)
put_reconsumed = text_writer(RECONSUMED)
RECONSUMED_SIZE = len(RECONSUMED)
HOST = b"\2" + _pair("__BORNHOST")
put_host = text_writer(HOST)
HOST_SIZE = len(HOST)
BORN = b"\2" + _pair(props.BORN_TIMESTAMP)
put_born = text_writer(BORN)
BORN_SIZE = len(BORN)


def _field(letter: str, value: str) -> bytes:
    return b"\0\1" + letter.encode() + len(value).to_bytes(4) + value.encode()


DEFAULTS = _field("c", names.AUTO_CREATE_TOPIC) + _field("d", "4")
put_defaults = text_writer(DEFAULTS)
DEFAULTS_SIZE = len(DEFAULTS)
FLAG = _field("h", "0")
put_flag = text_writer(FLAG)
FLAG_SIZE = len(FLAG)
LAST = _field("j", "0") + _field("k", "false") + _field("m", "false")
put_last = text_writer(LAST)
LAST_SIZE = len(LAST)


ENTRY = b"\x0a" + bytes([len(OK)]) + OK + b"\x12"
put_ok_entry = text_writer(ENTRY)
ENTRY_SIZE = len(ENTRY)
TRANSACTION_ID_TAG = 0x1A
assert ENTRY_SIZE + 1 + ID_BYTES_MAX + 2 + ID_BYTES_MAX + 11 < 0x80
W_OFFSET, W_OFFSET_END = name_word("queueOffset"), name_word("queueOffset"[-8:])
W_HANDLE = name_word("recallHandle")


@njit(**COMPILE_OPTIONS)
def is_trimmed(address, end):
    """Return whether text is visible ASCII, not empty, and without a space at either end."""
    if address >= end or get_u8(address) == SPACE or get_u8(end - 1) == SPACE:
        return False
    return is_visible(address, end)


@njit(**COMPILE_OPTIONS)
def read_time(block, address, end):
    """Read the born time of a message; return whether it is plain."""
    seconds, nanos = 0, 0
    while address < end:
        tag = get_u8(address)
        value, address = varint(address + 1, end)
        if address == 0:
            return False
        if tag == 0x08:
            seconds = value
        elif tag == 0x10:
            nanos = value
        else:
            return False
    if seconds > SECONDS_MAX or nanos > 999_999_999:
        return False
    block.message.born_ms = seconds * 1000 + nanos // 1_000_000
    return True


@njit(**COMPILE_OPTIONS)
def is_digest(address, end):
    """Return whether a digest has the form that it should have; it is not compared."""
    while address < end:
        tag = get_u8(address)
        if tag == 0x08:
            _, address = varint(address + 1, end)
            if address == 0:
                return False
        elif tag == 0x12:
            begin, address = delimited(address + 1, end)
            if address == 0 or not is_visible(begin, address):
                return False
        else:
            return False
    return True


@njit(**COMPILE_OPTIONS)
def has_pipe(address, end):
    """Return whether a tag has the separator of tags."""
    while address < end:
        if get_u8(address) == PIPE:
            return True
        address += 1
    return False


@njit(**COMPILE_OPTIONS)
def read_system(block, address, end):
    """Read system properties; return whether all are plain."""
    sent = block.message
    has_born = False
    while address < end:
        tag = get_u8(address)
        address += 1
        if tag & 7 == 0:
            value, address = varint(address, end)
            if address == 0:
                return False
            if tag == 0x28:
                sent.encoding = value
            elif tag == 0x30:
                if value == TRANSACTION or value > 127:
                    return False
            elif tag != 0x68 or value > 0x7FFFFFFF:  # the queue, which is ignored
                return False
            continue
        begin, stop = delimited(address, end)
        if stop == 0:
            return False
        address = stop
        if tag == 0x0A:
            if not is_trimmed(begin, stop) or has_pipe(begin, stop):
                return False
            if not set_place(sent.tag, begin, stop):
                return False
        elif tag == 0x12:
            if not is_trimmed(begin, stop):
                return False
            sent.key_count += 1
        elif tag == 0x1A:
            if not is_trimmed(begin, stop) or stop - begin > ID_BYTES_MAX:
                return False
            if not set_place(sent.message_id, begin, stop):
                return False
        elif tag == 0x22:
            if not is_digest(begin, stop):
                return False
        elif tag == 0x3A:
            if has_born or not read_time(block, begin, stop):
                return False
            has_born = True
        elif tag == 0x42:
            if not is_trimmed(begin, stop) or not set_place(sent.host, begin, stop):
                return False
        else:
            return False
    if sent.encoding > GZIP:
        return False
    if not has_born:
        sent.born_ms = block.now_ms
    return sent.message_id.start != 0


@njit(**COMPILE_OPTIONS)
def is_reserved(name, size):
    """Return whether a user may not set a property of this name."""
    start = first_word(name, size)
    for i in range(len(R_SIZES)):
        if size == R_SIZES[i] and start == R_STARTS[i]:
            tail = name + size - 8 if size > 8 else name
            if first_word(tail, min(size, 8)) == R_ENDS[i]:
                return True
    return False


@njit(**COMPILE_OPTIONS)
def entry_places(address, end):
    """Return ends of name and value of a property; zeros if the entry has an unusual form."""
    if end - address < 2 or get_u8(address) != 0x0A:
        return 0, 0
    _, name_end = delimited(address + 1, end)
    if name_end == 0 or end - name_end < 2 or get_u8(name_end) != 0x12:
        return 0, 0
    _, value_end = delimited(name_end + 1, end)
    return (name_end, value_end) if value_end == end else (0, 0)


@njit(**COMPILE_OPTIONS)
def text_at(address, end):
    """Return the begin of delimited bytes that end at ``end``."""
    _, begin = varint(address, end)
    return begin


@njit(**COMPILE_OPTIONS)
def read_property(block, address, end):
    """Read an entry of the user properties; return whether it is plain."""
    sent = block.message
    count = sent.property_count
    name_end, value_end = entry_places(address, end)
    if value_end == 0 or count == PROPERTIES_MAX:
        return False
    name = text_at(address + 1, name_end)
    value = text_at(name_end + 1, value_end)
    size = name_end - name
    if get_u8(address + 1) != size:
        return False  # its size has more than one byte
    if size == 0 or get_u8(name) == UNDERSCORE or not is_visible(name, name_end):
        return False
    if not is_visible(value, value_end) or is_reserved(name, size):
        return False
    for i in range(count):
        other = sent.properties[i]
        other_size = get_u8(other + 1)
        if other_size == size and same_bytes(other + 2, name, size):
            return False
    sent.properties[count] = address
    sent.property_count = count + 1
    return True


@njit(**COMPILE_OPTIONS)
def read_message(block, address, end):
    """Read a message; return whether it takes the fast path."""
    sent = block.message
    clear(sent)
    start = address
    while address < end:
        tag = get_u8(address)
        begin, stop = delimited(address + 1, end)
        if stop == 0:
            return False
        if tag == 0x0A:
            if not read_resource(sent.topic, begin, stop):
                return False
        elif tag == 0x12:
            if not read_property(block, begin, stop):
                return False
        elif tag == 0x1A:
            if sent.system != 0 or not read_system(block, begin, stop):
                return False
            sent.system = begin
            sent.system_end = stop
        elif tag == 0x22:
            if not set_place(sent.body, begin, stop):
                return False
        else:
            return False
        address = stop
    body_size = sent.body.size
    if body_size == 0 or body_size > block.body_size_max:
        return False
    if end - start - body_size > TEXT_BYTES_MAX:
        return False
    return sent.system != 0 and sent.topic.start != 0


# --- the request to the broker ----------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def find_topic(block):
    """Return the row of the topic of the message; 0 if it is not known."""
    name, size = block.message.topic.start, block.message.topic.size
    for i in range(block.topic_count):
        row = block.topics[i]
        if row.name.size == size and same_bytes(row.name.start, name, size):
            return row
    return 0


@njit(**COMPILE_OPTIONS)
def put_text(address, letter, text, size):
    """Write a field; return its end."""
    store_i16(address, 1)
    put_u8(address + 2, letter)
    store_i32(address + 3, size)
    copy(address + 7, text, size)
    return address + 7 + size


@njit(**COMPILE_OPTIONS)
def put_number(address, letter, value):
    """Write a field with a number; return its end."""
    store_i16(address, 1)
    put_u8(address + 2, letter)
    end = put_digits(address + 7, value)
    store_i32(address + 3, end - address - 7)
    return end


@njit(**COMPILE_OPTIONS)
def put_all_keys(block, address):
    """Write the keys, separated by spaces; return their end."""
    cursor, end = block.message.system, block.message.system_end
    is_first = True
    while cursor < end:
        tag = get_u8(cursor)
        if tag & 7 == 0:
            _, cursor = varint(cursor + 1, end)
            continue
        begin, cursor = delimited(cursor + 1, end)
        if tag == 0x12:
            if not is_first:
                put_u8(address, SPACE)
                address += 1
            is_first = False
            address = put_copy(address, begin, cursor - begin)
    return address


@njit(**COMPILE_OPTIONS)
def put_properties(block, address):
    """Write the property string; return its end."""
    sent = block.message
    for i in range(sent.property_count):
        entry = sent.properties[i]
        name_size = get_u8(entry + 1)
        value_size, value = varint(entry + 3 + name_size, entry + 16 + name_size)
        if value_size == 0:
            continue  # a property string cannot hold it
        address = put_copy(address, entry + 2, name_size)
        put_u8(address, NAME_VALUE)
        address = put_copy(address + 1, value, value_size)
        put_u8(address, PAIR_END)
        address += 1
    if sent.tag.start != 0:
        put_tags(address)
        address = put_copy(address + TAGS_SIZE, sent.tag.start, sent.tag.size)
        put_u8(address, PAIR_END)
        address += 1
    if sent.key_count != 0:
        put_keys(address)
        address = put_all_keys(block, address + KEYS_SIZE)
        put_u8(address, PAIR_END)
        address += 1
    put_unique_key(address)
    address = put_copy(address + UNIQUE_KEY_SIZE, sent.message_id.start, sent.message_id.size)
    put_u8(address, PAIR_END)
    put_reconsumed(address + 1)
    address += 1 + RECONSUMED_SIZE
    address = put_copy(address, sent.topic.start, sent.topic.size)
    put_host(address)
    address += HOST_SIZE
    if sent.host.start != 0:
        address = put_copy(address, sent.host.start, sent.host.size)
    else:
        address = put_copy(address, block.born_host.start, block.born_host.size)
    put_born(address)
    return put_digits(address + BORN_SIZE, sent.born_ms)


@njit(**COMPILE_OPTIONS)
def put_request(block, start, opaque, queue_id):
    """Write the frame of the message; return its end."""
    sent = block.message
    topic, topic_size = sent.topic.start, sent.topic.size
    store_i16(start + 8, SEND_CODE)
    put_u8(start + 10, block.language)
    store_i16(start + 11, VERSION)
    store_i32(start + 13, opaque)
    store_i32(start + 17, 0)  # flag
    store_i32(start + 21, 0)  # size of the remark
    fields = start + AT_FIELDS
    address = put_text(fields, 97, topic, topic_size)
    address = put_text(address, 98, topic, topic_size)
    put_defaults(address)
    address = put_number(address + DEFAULTS_SIZE, 101, queue_id)
    address = put_number(address, 102, 1 if sent.encoding == GZIP else 0)
    address = put_number(address, 103, sent.born_ms)
    put_flag(address)
    address += FLAG_SIZE
    store_i16(address, 1)
    put_u8(address + 2, 105)
    end = put_properties(block, address + 7)
    store_i32(address + 3, end - address - 7)
    put_last(end)
    end += LAST_SIZE
    store_i32(start + 25, end - fields)
    store_i32(start + 4, BINARY_MARK | end - start - 8)
    end = put_copy(end, sent.body.start, sent.body.size)
    store_i32(start, end - start - 4)
    return end


@njit(**COMPILE_OPTIONS)
def make_send(block, row, opaque, frame, limit):
    """Write the request of a row at ``frame``; return its end, 0 if the row is left."""
    buffer = block.buffer
    data, data_end = buffer + row.data, buffer + row.data_end
    begin, end = message_of(data, data_end)
    if end == 0 or get_u8(begin) != 0x0A:
        return 0
    begin, stop = delimited(begin + 1, end)
    if stop != end or not read_message(block, begin, end):
        return 0
    topic = find_topic(block)
    if topic == 0 or frame + (data_end - data) + ROOM_BESIDE > limit:
        return 0
    turn = block.turn
    block.turn = turn + 1
    row.message_id.start = block.message.message_id.start - buffer
    row.message_id.size = block.message.message_id.size
    return put_request(block, frame, opaque, turn % topic.queue_count)


# --- replies ------------------------------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def stored_offset(address, end):
    """Return the queue offset in the fields of a reply; -1 for one that says more."""
    queue_offset = -1
    while address < end:
        if end - address < 6:
            return -1
        name_size = load_u16(address)
        name = address + 2
        value = name + name_size + 4
        if value > end:
            return -1
        size = load_i32(value - 4)
        address = value + size
        if size < 0 or address > end:
            return -1
        start = first_word(name, name_size)
        if name_size == 11 and start == W_OFFSET and first_word(name + 3, 8) == W_OFFSET_END:
            queue_offset = number(value, size)
        elif start == W_HANDLE:
            return -1
    return queue_offset


@njit(**COMPILE_OPTIONS)
def put_send_message_response(address, message_id, id_size, queue_offset):
    """Write a SendMessageResponse of one entry; return its end."""
    put_ok_reply(address)
    size_at = address + REPLY_SIZE
    put_ok_entry(size_at + 1)
    address = size_at + 1 + ENTRY_SIZE
    put_u8(address, id_size)
    address = put_copy(address + 1, message_id, id_size)
    put_u8(address, TRANSACTION_ID_TAG)  # the same: brokers answer with the unique key
    put_u8(address + 1, id_size)
    address = put_copy(address + 2, message_id, id_size)
    if queue_offset != 0:
        put_u8(address, 0x20)
        address = put_varint(address + 1, queue_offset)
    put_u8(size_at, address - size_at - 1)
    return address


@njit(**COMPILE_OPTIONS)
def answer_send(block, row, fields, end, out):
    """Write the reply to a send for that of the broker; return its end, 0 if it is left."""
    queue_offset = stored_offset(fields, end)
    if queue_offset < 0:
        return 0
    message = begin_reply(block, out, row.stream)
    message_id = block.buffer + row.message_id.start
    message_end = put_send_message_response(message, message_id, row.message_id.size, queue_offset)
    return end_reply(block, message, message_end, row.stream)
