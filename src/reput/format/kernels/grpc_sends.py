r"""Kernels: turn SendMessage requests into requests to a broker, and its replies into replies.

``grpc_sends`` looks at the rows of ``read_calls`` whose path is the first one. A request becomes a
frame of code 310 with a binary header, the same as the front makes of it (``reput.grpc.sending``).

**What takes the fast path**; the front serves all others:

* One message, not compressed, of a topic among TOPICS: one for normal messages that can be written.
* Each field at most once but keys and user properties; no unknown field. System properties: tag,
  keys, message id, digest, encoding, type but TRANSACTION, born time and host, queue id.
* Text is visible ASCII. Tag, keys, message id and born host do not begin or end with a space; the
  tag has no ``|``. A message id has at most ID_BYTES_MAX bytes.
* At most PROPERTIES_MAX user properties, with different names that are neither empty nor reserved,
  and do not begin with ``_``. The message without its body has at most TEXT_BYTES_MAX bytes.
* A body that is not empty.

``grpc_send_replies`` writes the replies to requests whose message is stored with nothing to add;
the others are left to the front.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import names, properties as props
from reput.format.command import Command, Serialization
from reput.format.grpc_messages import Code, MessageType
from reput.format.kernels import call_words as words
from reput.format.kernels.columns import NAME_VALUE, PAIR_END
from reput.format.kernels.hashes import same_bytes
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_u8,
    load_i16,
    load_i32,
    load_u16,
    put_u8,
    set_word,
    store_i16,
    store_i32,
    text_writer,
    visible_run,
    word,
)
from reput.format.kernels.plain_text import first_word, name_word, number
from reput.format.reserved_properties import RESERVED_PROPERTIES

SEND_PATH = 1
"""Number of the path of SendMessage among PATHS."""
SEND_CODE = 310
PREFIX_BYTES = 5
ID_BYTES_MAX = 80
PROPERTIES_MAX = 16
TEXT_BYTES_MAX = 4096
ROOM_BESIDE = 1024
SECONDS_MAX = 1 << 36
SPACE, PIPE, UNDERSCORE = map(ord, " |_")

# Words of a message, from M_FIRST on: address and size of each.
M_TOPIC, M_TAG, M_ID, M_HOST, M_BODY = (words.M_FIRST + 2 * i for i in range(5))
M_ENCODING, M_BORN, M_KEY_COUNT, M_COUNT, M_SYSTEM, M_SYSTEM_END = (
    words.M_FIRST + 10 + i for i in range(6)
)
M_NAMES = words.M_FIRST + 16
"""Addresses of the entries of the user properties."""
assert 16 + PROPERTIES_MAX <= words.M_WORDS

RESERVED = sorted(RESERVED_PROPERTIES)
R_SIZES = tuple(len(name) for name in RESERVED)
R_STARTS = tuple(name_word(name) for name in RESERVED)
R_ENDS = tuple(name_word(name[-8:]) for name in RESERVED)

TRANSACTION = int(MessageType.TRANSACTION)
GZIP = 2
BINARY_MARK = int(Serialization.ROCKETMQ) << 24
VERSION = Command(SEND_CODE).version
AT_FIELDS = 8 + 21
"""Size of length, mark, and what precedes the fields of a binary header."""


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


def _varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14])


OK = b"\x08" + _varint(int(Code.OK)) + b"\x12\x02OK"
"""The Status of a success."""
REPLY = b"\x0a" + bytes([len(OK)]) + OK + b"\x12"
put_ok_reply = text_writer(REPLY)
REPLY_SIZE = len(REPLY)
ENTRY = b"\x0a" + bytes([len(OK)]) + OK + b"\x12"
put_ok_entry = text_writer(ENTRY)
ENTRY_SIZE = len(ENTRY)
W_OFFSET, W_OFFSET_END = name_word("queueOffset"), name_word("queueOffset"[-8:])
W_HANDLE = name_word("recallHandle")
FRAME_HEAD_BYTES = 9
REPLY_ROOM = 512


# --- protobuf -------------------------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def varint(address, end):
    """Return a number of up to 8 bytes, and its end; 0 for the end if it has another form."""
    value = 0
    shift = 0
    while address < end and shift < 56:
        byte = get_u8(address)
        address += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, address
        shift += 7
    return 0, 0


@njit(**COMPILE_OPTIONS)
def delimited(address, end):
    """Return begin and end of the bytes whose size is at an address; zeros if they are cut off."""
    size, begin = varint(address, end)
    if begin == 0 or size > end - begin:
        return 0, 0
    return begin, begin + size


@njit(**COMPILE_OPTIONS)
def is_visible(address, end):
    """Return whether text is visible ASCII and spaces. Bytes after the end are read."""
    while address < end:
        run = visible_run(address)
        address += run
        if run < 16:
            return address >= end
    return True


@njit(**COMPILE_OPTIONS)
def is_trimmed(address, end):
    """Return whether text is visible ASCII, not empty, and without a space at either end."""
    if address >= end or get_u8(address) == SPACE or get_u8(end - 1) == SPACE:
        return False
    return is_visible(address, end)


@njit(**COMPILE_OPTIONS)
def set_place(block, number, begin, end):
    """Set the place of a field; return False if it has one."""
    if word(block, number) != 0:
        return False
    set_word(block, number, begin)
    set_word(block, number + 1, end - begin)
    return True


@njit(**COMPILE_OPTIONS)
def read_resource(block, address, end, number):
    """Read the name of a resource; return whether it is plain."""
    while address < end:
        tag = get_u8(address)
        begin, stop = delimited(address + 1, end)
        if stop == 0 or not is_visible(begin, stop):
            return False
        if tag == 0x12:
            if not set_place(block, number, begin, stop):
                return False
        elif tag != 0x0A:  # the namespace, which is ignored
            return False
        address = stop
    return word(block, number) != 0


@njit(**COMPILE_OPTIONS)
def read_time(block, address, end):
    """Read a timestamp into M_BORN, in ms; return whether it is plain."""
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
    set_word(block, M_BORN, seconds * 1000 + nanos // 1_000_000)
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
    has_born = False
    while address < end:
        tag = get_u8(address)
        address += 1
        if tag & 7 == 0:
            value, address = varint(address, end)
            if address == 0:
                return False
            if tag == 0x28:
                set_word(block, M_ENCODING, value)
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
            if not set_place(block, M_TAG, begin, stop):
                return False
        elif tag == 0x12:
            if not is_trimmed(begin, stop):
                return False
            set_word(block, M_KEY_COUNT, word(block, M_KEY_COUNT) + 1)
        elif tag == 0x1A:
            if not is_trimmed(begin, stop) or stop - begin > ID_BYTES_MAX:
                return False
            if not set_place(block, M_ID, begin, stop):
                return False
        elif tag == 0x22:
            if not is_digest(begin, stop):
                return False
        elif tag == 0x3A:
            if has_born or not read_time(block, begin, stop):
                return False
            has_born = True
        elif tag == 0x42:
            if not is_trimmed(begin, stop) or not set_place(block, M_HOST, begin, stop):
                return False
        else:
            return False
    if word(block, M_ENCODING) > GZIP:
        return False
    if not has_born:
        set_word(block, M_BORN, word(block, words.NOW_MS))
    return word(block, M_ID) != 0


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
    count = word(block, M_COUNT)
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
        other = word(block, M_NAMES + i)
        other_size = get_u8(other + 1)
        if other_size == size and same_bytes(other + 2, name, size):
            return False
    set_word(block, M_NAMES + count, address)
    set_word(block, M_COUNT, count + 1)
    return True


@njit(**COMPILE_OPTIONS)
def read_message(block, address, end):
    """Read a message into words of the block; return whether it takes the fast path."""
    for i in range(words.M_WORDS):
        set_word(block, words.M_FIRST + i, 0)
    start = address
    while address < end:
        tag = get_u8(address)
        begin, stop = delimited(address + 1, end)
        if stop == 0:
            return False
        if tag == 0x0A:
            if not read_resource(block, begin, stop, M_TOPIC):
                return False
        elif tag == 0x12:
            if not read_property(block, begin, stop):
                return False
        elif tag == 0x1A:
            if word(block, M_SYSTEM) != 0 or not read_system(block, begin, stop):
                return False
            set_word(block, M_SYSTEM, begin)
            set_word(block, M_SYSTEM_END, stop)
        elif tag == 0x22:
            if not set_place(block, M_BODY, begin, stop):
                return False
        else:
            return False
        address = stop
    body_size = word(block, M_BODY + 1)
    if body_size == 0 or body_size > word(block, words.BODY_BYTES_MAX):
        return False
    if end - start - body_size > TEXT_BYTES_MAX:
        return False
    return word(block, M_SYSTEM) != 0 and word(block, M_TOPIC) != 0


# --- the request to the broker ----------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def find_topic(block):
    """Return the row of the topic of the message; 0 if it is not known."""
    name, size = word(block, M_TOPIC), word(block, M_TOPIC + 1)
    row = word(block, words.TOPICS)
    for _ in range(word(block, words.TOPIC_COUNT)):
        if word(row, words.TOPIC_NAME_SIZE) == size and same_bytes(
            word(row, words.TOPIC_NAME), name, size
        ):
            return row
        row += 8 * words.TOPIC_WORDS
    return 0


@njit(**COMPILE_OPTIONS)
def put_digits(address, value):
    """Write a number that is not negative; return its end."""
    size = 1
    bound = 10
    while size < 18 and value >= bound:
        size += 1
        bound *= 10
    digit = address + size
    while digit > address:
        digit -= 1
        put_u8(digit, 48 + value % 10)
        value //= 10
    return address + size


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
def put_copy(address, text, size):
    """Copy bytes; return the end of the copy."""
    copy(address, text, size)
    return address + size


@njit(**COMPILE_OPTIONS)
def put_all_keys(block, address):
    """Write the keys, separated by spaces; return their end."""
    cursor, end = word(block, M_SYSTEM), word(block, M_SYSTEM_END)
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
    for i in range(word(block, M_COUNT)):
        entry = word(block, M_NAMES + i)
        name_size = get_u8(entry + 1)
        value_size, value = varint(entry + 3 + name_size, entry + 16 + name_size)
        if value_size == 0:
            continue  # a property string cannot hold it
        address = put_copy(address, entry + 2, name_size)
        put_u8(address, NAME_VALUE)
        address = put_copy(address + 1, value, value_size)
        put_u8(address, PAIR_END)
        address += 1
    if word(block, M_TAG) != 0:
        put_tags(address)
        address = put_copy(address + TAGS_SIZE, word(block, M_TAG), word(block, M_TAG + 1))
        put_u8(address, PAIR_END)
        address += 1
    if word(block, M_KEY_COUNT) != 0:
        put_keys(address)
        address = put_all_keys(block, address + KEYS_SIZE)
        put_u8(address, PAIR_END)
        address += 1
    put_unique_key(address)
    address = put_copy(address + UNIQUE_KEY_SIZE, word(block, M_ID), word(block, M_ID + 1))
    put_u8(address, PAIR_END)
    put_reconsumed(address + 1)
    address += 1 + RECONSUMED_SIZE
    address = put_copy(address, word(block, M_TOPIC), word(block, M_TOPIC + 1))
    put_host(address)
    address += HOST_SIZE
    if word(block, M_HOST) != 0:
        address = put_copy(address, word(block, M_HOST), word(block, M_HOST + 1))
    else:
        address = put_copy(address, word(block, words.BORN_HOST), word(block, words.BORN_HOST_SIZE))
    put_born(address)
    return put_digits(address + BORN_SIZE, word(block, M_BORN))


@njit(**COMPILE_OPTIONS)
def put_request(block, start, opaque, queue_id):
    """Write the frame of the message; return its end."""
    topic, topic_size = word(block, M_TOPIC), word(block, M_TOPIC + 1)
    store_i16(start + 8, SEND_CODE)
    put_u8(start + 10, word(block, words.LANGUAGE))
    store_i16(start + 11, VERSION)
    store_i32(start + 13, opaque)
    store_i32(start + 17, 0)  # flag
    store_i32(start + 21, 0)  # size of the remark
    fields = start + AT_FIELDS
    address = put_text(fields, 97, topic, topic_size)
    address = put_text(address, 98, topic, topic_size)
    put_defaults(address)
    address = put_number(address + DEFAULTS_SIZE, 101, queue_id)
    address = put_number(address, 102, 1 if word(block, M_ENCODING) == GZIP else 0)
    address = put_number(address, 103, word(block, M_BORN))
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
    end = put_copy(end, word(block, M_BODY), word(block, M_BODY + 1))
    store_i32(start, end - start - 4)
    return end


@njit(**COMPILE_OPTIONS)
def message_of(address, end):
    """Return begin and end of the one message of a request; zeros for another one."""
    if end - address < PREFIX_BYTES + 2 or get_u8(address) != 0:
        return 0, 0
    if load_i32(address + 1) != end - address - PREFIX_BYTES:
        return 0, 0
    return address + PREFIX_BYTES, end


@njit(**COMPILE_OPTIONS)
def grpc_sends(block, count):
    """Entry point: make the requests of ``count`` rows; return the number of those made."""
    buffer = word(block, words.BUFFER)
    frames = word(block, words.FRAMES)
    room = word(block, words.FRAMES_ROOM)
    row = word(block, words.ROWS) - 8 * words.ROW_WORDS
    used, made = 0, 0
    for i in range(count):
        row += 8 * words.ROW_WORDS
        if word(row, words.ROW_PATH) != SEND_PATH or word(row, words.ROW_IS_ENDED) == 0:
            continue
        data, data_end = buffer + word(row, words.ROW_DATA), buffer + word(row, words.ROW_DATA_END)
        begin, end = message_of(data, data_end)
        if end == 0 or get_u8(begin) != 0x0A:
            continue
        begin, stop = delimited(begin + 1, end)
        if stop != end or not read_message(block, begin, end):
            continue
        topic = find_topic(block)
        if topic == 0 or used + (data_end - data) + ROOM_BESIDE > room:
            continue
        turn = word(block, words.TURN)
        set_word(block, words.TURN, turn + 1)
        queue_id = turn % word(topic, words.TOPIC_QUEUES)
        used = put_request(block, frames + used, word(block, words.OPAQUE) + i, queue_id) - frames
        set_word(row, words.ROW_STATE, words.STATE_ASKED)
        set_word(row, words.ROW_ID, word(block, M_ID) - buffer)
        set_word(row, words.ROW_ID_SIZE, word(block, M_ID + 1))
        made += 1
    set_word(block, words.FRAMES_SIZE, used)
    return made


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
def put_varint(address, value):
    """Write a number that is not negative; return its end."""
    while value > 127:
        put_u8(address, value & 127 | 128)
        value >>= 7
        address += 1
    put_u8(address, value)
    return address + 1


@njit(**COMPILE_OPTIONS)
def put_frame_head(address, size, kind, flags, stream):
    """Write the head of a frame; return its end."""
    store_i32(address, size << 8 | kind)
    put_u8(address + 4, flags)
    store_i32(address + 5, stream)
    return address + FRAME_HEAD_BYTES


@njit(**COMPILE_OPTIONS)
def put_send_message_response(address, message_id, id_size, queue_offset):
    """Write a SendMessageResponse of one entry; return its end."""
    put_ok_reply(address)
    size_at = address + REPLY_SIZE
    put_ok_entry(size_at + 1)
    address = size_at + 1 + ENTRY_SIZE
    put_u8(address, id_size)
    address = put_copy(address + 1, message_id, id_size)
    if queue_offset != 0:
        put_u8(address, 0x20)
        address = put_varint(address + 1, queue_offset)
    put_u8(size_at, address - size_at - 1)
    return address


@njit(**COMPILE_OPTIONS)
def begin_reply(block, out, stream):
    """Write the headers of a reply; return the place of its message."""
    size = word(block, words.HEADERS_SIZE)
    address = put_frame_head(out, size, 1, 4, stream)
    copy(address, word(block, words.HEADERS_BLOCK), size)
    return address + size + FRAME_HEAD_BYTES + PREFIX_BYTES


@njit(**COMPILE_OPTIONS)
def end_reply(block, message, end, stream):
    """Write what precedes and follows the message of a reply; return the end, 0 if it must wait."""
    size = end - message + PREFIX_BYTES
    window = word(block, words.WINDOW)
    if size > window or size > word(block, words.INITIAL_WINDOW):
        return 0
    set_word(block, words.WINDOW, window - size)
    put_frame_head(message - PREFIX_BYTES - FRAME_HEAD_BYTES, size, 0, 0, stream)
    put_u8(message - PREFIX_BYTES, 0)
    store_i32(message - 4, size - PREFIX_BYTES)
    trailers = word(block, words.TRAILERS_SIZE)
    end = put_frame_head(end, trailers, 1, 5, stream)
    copy(end, word(block, words.TRAILERS_BLOCK), trailers)
    return end + trailers


@njit(**COMPILE_OPTIONS)
def grpc_send_replies(block, count):
    """Entry point: write the replies for those of the broker; return the number of those written.

    ``count`` is the number of rows.
    """
    address = word(block, words.REPLIES)
    replies_end = address + word(block, words.REPLIES_SIZE)
    buffer = word(block, words.BUFFER)
    rows = word(block, words.ROWS)
    start = word(block, words.OUT)
    out = start
    limit = start + word(block, words.OUT_ROOM) - REPLY_ROOM
    done = 0
    while replies_end - address >= AT_FIELDS and out <= limit:
        end = address + 4 + load_i32(address)
        header = address + 8
        mark = load_i32(address + 4)
        fields = address + AT_FIELDS
        address = end
        if end > replies_end or end < fields:
            break
        header_size = mark & 0xFFFFFF
        if mark >> 24 != BINARY_MARK >> 24 or header + header_size > end:
            continue
        if load_i16(header) != 0 or load_i32(header + 13) != 0:
            continue
        number_of_row = load_i32(header + 5) - word(block, words.OPAQUE)
        if number_of_row < 0 or number_of_row >= count:
            continue
        row = rows + 8 * words.ROW_WORDS * number_of_row
        if word(row, words.ROW_STATE) != words.STATE_ASKED:
            continue
        if word(row, words.ROW_PATH) != SEND_PATH:
            continue
        queue_offset = stored_offset(fields, header + header_size)
        if queue_offset < 0:
            continue
        stream = word(row, words.ROW_STREAM)
        message = begin_reply(block, out, stream)
        message_id, id_size = buffer + word(row, words.ROW_ID), word(row, words.ROW_ID_SIZE)
        message_end = put_send_message_response(message, message_id, id_size, queue_offset)
        reply_end = end_reply(block, message, message_end, stream)
        if reply_end == 0:
            continue
        out = reply_end
        set_word(row, words.ROW_STATE, words.STATE_DONE)
        done += 1
    set_word(block, words.OUT_SIZE, out - start)
    return done


ENTRY_POINTS = {"grpc_sends": 2, "grpc_send_replies": 2}
"""Entry points and their numbers of arguments. Arguments and results are int64."""
