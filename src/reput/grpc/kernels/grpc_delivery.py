r"""Kernel: turn records into messages of a ReceiveMessage reply.

Each row is a record; its result is a message of gRPC with its prefix, the same as the front makes
of it (``reput.grpc.conversion.incoming``).

**What it handles**; the result of any other record is empty, and the front makes it:

* Records of the first form, with hosts of IPv4. Text is visible ASCII.
* The properties TAGS, KEYS, UNIQ_KEY, ``__BORNHOST`` and ``__SHARDINGKEY``, each once and not
  empty; UNIQ_KEY is there. Properties of users, and reserved ones with no meaning for a consumer
  (``reserved_properties``).
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format import properties as props
from reput.format.kernels.columns import NAME_VALUE, PAIR_END, find_byte
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    get_u8,
    load_i16,
    load_i32,
    load_i64,
    put_u8,
    store_i32,
)
from reput.format.kernels.plain_text import first_word
from reput.format.kernels.row_types import clear
from reput.format.reserved_properties import RESERVED_PROPERTIES
from reput.grpc.kernels.delivery_words import Delivery
from reput.grpc.kernels.grpc_sends import R_ENDS, R_SIZES, R_STARTS
from reput.grpc.kernels.grpc_wire import is_visible, put_copy, put_digits, put_varint, set_place
from reput.grpc.wire.grpc_messages import DigestType, Encoding, MessageType

MAGIC_V1 = -626843481
COMPRESSED, HOSTS_V6 = 1, 0x30
AT_BORN_HOST = 48
FIXED_BYTES = 88 + 1 + 2
SPACE, DOT, COLON = map(ord, " .:")
ROOM_BESIDE = 2048
SYSTEM_BYTES_MAX = 16_000

ORDINARY = frozenset((props.TAGS, props.KEYS, props.UNIQ_KEY, "__BORNHOST"))
SPEAKING = frozenset(
    {
        *("TRAN_MSG", "DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"),
        *("_SYS_MSG_PRIORITY_", "__LITE_TOPIC", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"),
        *("POP_CK", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"),
    }
)
"""Reserved properties that say something about the message: the front handles them."""
assert SPEAKING | ORDINARY <= RESERVED_PROPERTIES
OF_NUMBER = tuple(
    1 if name in SPEAKING else 2 if name in ORDINARY else 0 for name in sorted(RESERVED_PROPERTIES)
)
"""Kinds of the reserved names, by number: 1 is left, 2 is a field, 0 is hidden."""
NUMBER_OF = {name: number for number, name in enumerate(sorted(RESERVED_PROPERTIES))}
TAGS, KEYS, UNIQUE_KEY, BORN_HOST = (
    NUMBER_OF[name] for name in (props.TAGS, props.KEYS, props.UNIQ_KEY, "__BORNHOST")
)
SHARDING_SIZE = len(props.SHARDING_KEY)
SHARDING = int.from_bytes(props.SHARDING_KEY[:8].encode(), "little", signed=True)
SHARDING_END = int.from_bytes(props.SHARDING_KEY[-8:].encode(), "little", signed=True)
TRACE_SIZE = len("TRACE_CONTEXT")
TRACE = int.from_bytes(b"TRACE_CO", "little", signed=True)
MD5, GZIP, IDENTITY = int(DigestType.MD5), int(Encoding.GZIP), int(Encoding.IDENTITY)
NORMAL, FIFO = int(MessageType.NORMAL), int(MessageType.FIFO)
DIGEST_SIZE = 32


@njit(**COMPILE_OPTIONS)
def reserved_number(name, size):
    """Return the number of a reserved name; -1 for another one."""
    start = first_word(name, size)
    for i in range(len(R_SIZES)):
        if size == R_SIZES[i] and start == R_STARTS[i]:
            tail = name + size - 8 if size > 8 else name
            if first_word(tail, min(size, 8)) == R_ENDS[i]:
                return i
    return -1


@njit(**COMPILE_OPTIONS)
def varint_bytes(value):
    """Return the size of a number that is not negative."""
    size = 1
    while value > 127:
        value >>= 7
        size += 1
    return size


@njit(**COMPILE_OPTIONS)
def put_field(address, tag, text, size):
    """Write a field of text; return its end."""
    put_u8(address, tag)
    address = put_varint(address + 1, size)
    return put_copy(address, text, size)


@njit(**COMPILE_OPTIONS)
def put_time(address, tag, ms):
    """Write a timestamp or duration; return its end."""
    put_u8(address, tag)
    begin = address + 2
    end = begin
    if ms >= 1000:
        put_u8(end, 0x08)
        end = put_varint(end + 1, ms // 1000)
    if ms % 1000 != 0:
        put_u8(end, 0x10)
        end = put_varint(end + 1, ms % 1000 * 1_000_000)
    put_u8(address + 1, end - begin)
    return end


@njit(**COMPILE_OPTIONS)
def put_ip(address, host):
    """Write an address of IPv4; return its end."""
    for i in range(4):
        if i > 0:
            put_u8(address, DOT)
            address += 1
        address = put_digits(address, get_u8(host + i))
    return address


@njit(**COMPILE_OPTIONS)
def put_entry(address, name, name_size, value, value_size):
    """Write an entry of the user properties; return its end."""
    size = 2 + varint_bytes(name_size) + name_size + varint_bytes(value_size) + value_size
    put_u8(address, 0x12)
    address = put_varint(address + 1, size)
    address = put_field(address, 0x0A, name, name_size)
    return put_field(address, 0x12, value, value_size)


@njit(**COMPILE_OPTIONS)
def put_user_properties(block, address, pairs, end):
    """Write the user properties, and find the others; return their end, 0 if they are left."""
    named = block.properties
    clear(named)
    while pairs < end:
        name_end = find_byte(pairs, end, NAME_VALUE)
        value = name_end + 1
        value_end = find_byte(value, end, PAIR_END)
        size, value_size = name_end - pairs, value_end - value
        if name_end >= end or size == 0 or value_size <= 0:
            return 0
        if not is_visible(pairs, name_end) or not is_visible(value, value_end):
            return 0
        number = reserved_number(pairs, size)
        if number >= 0:
            kind = OF_NUMBER[number]
            if kind == 1:
                return 0
            is_new = True
            if number == TAGS:
                is_new = set_place(named.tag, value, value_end)
            elif number == KEYS:
                is_new = set_place(named.keys, value, value_end)
            elif number == UNIQUE_KEY:
                is_new = set_place(named.message_id, value, value_end)
            elif number == BORN_HOST:
                is_new = set_place(named.host, value, value_end)
            if not is_new:
                return 0
        else:
            start = first_word(pairs, size)
            if size == TRACE_SIZE and start == TRACE:
                return 0
            is_group = size == SHARDING_SIZE and start == SHARDING
            is_group = is_group and first_word(pairs + size - 8, 8) == SHARDING_END
            if is_group and not set_place(named.group, value, value_end):
                return 0
            address = put_entry(address, pairs, size, value, value_size)
        pairs = value_end + 1
    return address if block.properties.message_id.start != 0 else 0


@njit(**COMPILE_OPTIONS)
def put_keys(address, keys, end):
    """Write the keys of a property; return their end."""
    while keys < end:
        key_end = find_byte(keys, end, SPACE)
        if key_end > keys:
            address = put_field(address, 0x12, keys, key_end - keys)
        keys = key_end + 1
    return address


@njit(**COMPILE_OPTIONS)
def put_system(block, address, record, row):
    """Write the system properties; return their end."""
    named = block.properties
    if named.tag.start != 0:
        address = put_field(address, 0x0A, named.tag.start, named.tag.size)
    keys = named.keys.start
    if keys != 0:
        address = put_keys(address, keys, keys + named.keys.size)
    address = put_field(address, 0x1A, named.message_id.start, named.message_id.size)
    put_u8(address, 0x22)
    put_u8(address + 1, 4 + DIGEST_SIZE)
    put_u8(address + 2, 0x08)
    put_u8(address + 3, MD5)
    texts = block.texts
    address = put_field(address + 4, 0x12, texts + row.digest, DIGEST_SIZE)
    put_u8(address, 0x28)
    put_u8(address + 1, GZIP if load_i32(record + 36) & COMPRESSED else IDENTITY)
    put_u8(address + 2, 0x30)
    put_u8(address + 3, FIFO if named.group.start != 0 else NORMAL)
    address = put_time(address + 4, 0x3A, load_i64(record + 40))
    if named.host.start != 0:
        address = put_field(address, 0x42, named.host.start, named.host.size)
    else:
        put_u8(address, 0x42)
        end = put_ip(address + 2, record + AT_BORN_HOST)
        put_u8(address + 1, end - address - 2)
        address = end
    address = put_time(address, 0x4A, load_i64(record + 56))
    put_u8(address, 0x52)
    end = put_ip(address + 2, record + 64)
    put_u8(end, COLON)
    end = put_digits(end + 1, load_i32(record + 68))
    put_u8(address + 1, end - address - 2)
    address = put_field(end, 0x62, texts + row.handle, row.handle_size)
    queue_id = load_i32(record + 12)
    if queue_id != 0:
        put_u8(address, 0x68)
        address = put_varint(address + 1, queue_id)
    put_u8(address, 0x70)
    address = put_varint(address + 1, load_i64(record + 20))
    address = put_time(address, 0x7A, block.invisible_ms)
    put_u8(address, 0x80)
    put_u8(address + 1, 0x01)
    address = put_varint(address + 2, row.attempt)
    if named.group.start != 0:
        put_u8(address, 0x8A)
        address = put_field(address + 1, 0x01, named.group.start, named.group.size)
    return address


@njit(**COMPILE_OPTIONS)
def put_message(block, out, record, row):
    """Write the message of a record; return its end, 0 if the record is left."""
    size = load_i32(record)
    if load_i32(record + 4) != MAGIC_V1 or load_i32(record + 36) & HOSTS_V6:
        return 0
    body_size = load_i32(record + 84)
    if body_size < 0 or body_size > size - FIXED_BYTES:
        return 0
    body = record + 88
    topic = body + body_size
    pairs = topic + 1 + get_u8(topic) + 2
    pairs_size = load_i16(pairs - 2)
    if pairs_size < 0 or pairs_size > SYSTEM_BYTES_MAX or pairs + pairs_size != record + size:
        return 0
    if load_i64(record + 40) < 0 or load_i64(record + 56) < 0 or load_i32(record + 68) < 0:
        return 0
    # Sizes come before what they are about, so that is written to the scratch first.
    scratch = block.scratch
    users_end = put_user_properties(block, scratch, pairs, pairs + pairs_size)
    if users_end == 0:
        return 0
    system_end = put_system(block, users_end, record, row)
    users_size, system_size = users_end - scratch, system_end - users_end
    topic_size = block.topic.size
    message_size = 4 + topic_size + users_size + 1 + varint_bytes(system_size) + system_size
    if body_size != 0:
        message_size += 1 + varint_bytes(body_size) + body_size
    reply_size = 1 + varint_bytes(message_size) + message_size
    put_u8(out, 0)
    store_i32(out + 1, reply_size)
    put_u8(out + 5, 0x12)
    address = put_varint(out + 6, message_size)
    put_u8(address, 0x0A)
    put_u8(address + 1, 2 + topic_size)
    address = put_field(address + 2, 0x12, block.topic.start, topic_size)
    address = put_copy(address, scratch, users_size)
    put_u8(address, 0x1A)
    address = put_varint(address + 1, system_size)
    address = put_copy(address, users_end, system_size)
    if body_size != 0:
        address = put_field(address, 0x22, body, body_size)
    return address


@njit(**COMPILE_OPTIONS)
def grpc_deliver(block, count):
    """Entry point: write the messages of ``count`` rows; return the number of those written."""
    records = block.records
    start = block.out
    limit = start + block.out_room
    out = start
    done = 0
    for i in range(count):
        row = block.rows[i]
        record = records + row.record
        end = 0
        # An entry of the user properties takes at most three times the size of its pair.
        if out + 3 * load_i32(record) + ROOM_BESIDE < limit:
            end = put_message(block, out, record, row)
        row.begin = out - start
        if end != 0:
            out = end
            done += 1
        row.end = out - start
    return done


ENTRY_POINTS = {"grpc_deliver": (Delivery, int)}
"""Entry points and their arguments. Results are numbers."""
