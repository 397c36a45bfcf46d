r"""Kernel: store the sends in a receive buffer, and write their replies.

It answers the pulls among them too (``deliver``).

``receive`` works in rounds. A round is as many frames as there is room for: it makes their records
in the scratch, concatenated and without offsets; ``append`` appends them; the replies are to those
that are in the log. A frame that falls back ends the call: all frames before it are answered, and
nothing of the frame itself is done.

**What takes the fast path**; all else falls back to the processor (``STOP_FRAME``):

* ``receive_is_on``, and records have no checksum property (``has_record_crc`` is off).
* A frame of JSON or the binary header, with code 310 and fields ``a`` to ``n``, or with code 10 and
  their long names (and ``bname``); flag 0: a request that wants a reply; opaque not negative; no
  remark. The forms that the two readers accept: ``header_json``, ``header_binary``.
* Fields: all but ``i`` to ``n`` are required, and no unknown one is allowed. Numbers are in decimal
  without sign or leading zero, up to 18 digits. Text is ASCII without controls, quotes and
  backslashes; in JSON, properties may have escapes.
* ``b``: a topic with a row of KIND_PLAIN, with ``write_queues``, of at most 127 bytes.
* ``e``: below ``write_queues``. ``f``: only the bits of compression, with a known type,
  MULTI_TAGS, and of half messages TRANSACTION_PREPARED. ``d h l`` are 32-bit numbers, ``g`` is a
  number. ``j`` is 0, ``k`` and ``m`` are ``false``. ``a c n`` may be any text.
* ``i``: properties of the form in ``send_properties``; as they were sent, and with the added ones,
  at most 32,767 bytes.
* Half messages, where ``takes_halves``; messages with a delay level up to ``delay_count``; and,
  where ``takes_timers``, messages with a delivery time (``send_timers``). They are stored as
  ``broker.transaction``, ``store.writing.incoming.delayed`` and ``broker.timer`` do, in the topic
  where they wait.
* The body has 1 to BODY_BYTES_MAX bytes, the record at most RECORD_BYTES_MAX, and fits the scratch.
* Client and broker have IPv4 addresses: for others ``receive_is_on`` is off.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels.deliver import deliver, is_pull
from reput.broker.kernels.header_binary import read_binary
from reput.broker.kernels.header_json import read_json
from reput.broker.kernels.reply import put_reply
from reput.broker.kernels.request_fields import (
    BATCH,
    BORN_TIMESTAMP,
    DEFAULT_QUEUES,
    DEFAULT_TOPIC,
    FLAG,
    GROUP,
    LONG,
    LONG_MAX,
    MAX_RECONSUME_TIMES,
    PROPERTIES,
    QUEUE_ID,
    RECONSUME_TIMES,
    SEND_FIELD_COUNT,
    SYS_FLAG,
    TOPIC,
    UNIT_MODE,
    field_place,
    has_field,
    is_number,
    is_text,
    value_of,
)
from reput.broker.kernels.send_properties import unescape, write_pairs
from reput.broker.kernels.send_rules import (
    GAP,
    HANDLE_BYTES_MAX,
    HELD_BYTES_MAX,
    REAL_QUEUE_NAME,
    REAL_TOPIC_NAME,
    REPLY_BYTES_MAX,
    SLACK,
    TRANSACTION_ID_NAME,
    WAIT_PAIR,
)
from reput.broker.kernels.send_timers import put_leaving
from reput.format import (
    command,
    message as record,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.command import Serialization
from reput.format.kernels.columns import AT_BORN_TIMESTAMP, AT_FLAG, AT_QUEUE_ID, PAIR_END
from reput.format.kernels.log_scan import AT_BORN_HOST, AT_MAGIC, AT_SYS_FLAG, MAGIC_V1, TAIL_BYTES
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_i32,
    get_u8,
    load_i32,
    put_u8,
    store_i16,
    store_i32,
    store_i64,
    text_writer,
)
from reput.format.kernels.plain_text import INT_MAX, put_decimal
from reput.store.kernels import control_block as state
from reput.store.kernels.append import append, find_topic
from reput.store.kernels.control_block import ControlBlock

JSON = int(Serialization.JSON)
BINARY = int(Serialization.ROCKETMQ)
SEND = 10
SEND_V2 = 310
FRAME_MAX = command.FRAME_BYTES_MAX
FRAME_MIN = command.MARK.size
LENGTH_BYTES = command.LENGTH.size
HEADER_MASK = 0xFFFFFF
FIXED_BYTES = record.FIXED_BYTES_V1
AT_STORE_HOST = AT_BORN_HOST + record.HOST_V4_BYTES + record.STORE_TIMESTAMP.size
AT_TAIL = AT_STORE_HOST + record.HOST_V4_BYTES
AT_BODY = AT_TAIL + TAIL_BYTES
TOPIC_MAX = record.TOPIC_BYTES_MAX_V1
PROPERTIES_MAX = props.LENGTH_MAX
PREPARED = flags.TRANSACTION_PREPARED
ALLOWED_FLAGS = flags.COMPRESSED | flags.MULTI_TAGS | flags.COMPRESSION_ZLIB | PREPARED

put_half_topic = text_writer(names.HALF_TOPIC.encode())
put_schedule_topic = text_writer(names.SCHEDULE_TOPIC.encode())
put_timer_topic = text_writer(names.TIMER_TOPIC.encode())
put_wait_pair = text_writer(WAIT_PAIR.encode())
put_transaction_id_name = text_writer(TRANSACTION_ID_NAME.encode())
put_real_topic_name = text_writer(REAL_TOPIC_NAME.encode())
put_real_queue_name = text_writer(REAL_QUEUE_NAME.encode())
HALF_TOPIC_SIZE = len(names.HALF_TOPIC)
SCHEDULE_TOPIC_SIZE = len(names.SCHEDULE_TOPIC)
TIMER_TOPIC_SIZE = len(names.TIMER_TOPIC)
WAIT_PAIR_SIZE = len(WAIT_PAIR)
TRANSACTION_ID_SIZE = len(TRANSACTION_ID_NAME)
REAL_TOPIC_SIZE = len(REAL_TOPIC_NAME)
REAL_QUEUE_SIZE = len(REAL_QUEUE_NAME)
ROOM_BESIDE = FIXED_BYTES + 1 + HELD_BYTES_MAX + GAP + SLACK

ALL_FIELDS = (1 << SEND_FIELD_COUNT) - 1
REQUIRED = sum(
    1 << field
    for field in (
        *(GROUP, TOPIC, DEFAULT_TOPIC, DEFAULT_QUEUES),
        *(QUEUE_ID, SYS_FLAG, BORN_TIMESTAMP, FLAG),
    )
)
FALSE = int.from_bytes(b"fals", "little")
FALSE_LAST = ord("e")
FALSE_SIZE = len("false")

ROUND_IS_FULL = -1
ROUND_MEETS_PULL = -2


# --- one frame ---------------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def is_false(block, field):
    """Return whether a field is absent or ``false``."""
    if not has_field(block, field):
        return True
    address, size = field_place(block, field)
    return size == FALSE_SIZE and get_i32(address) == FALSE and get_u8(address + 4) == FALSE_LAST


@njit(**COMPILE_OPTIONS)
def is_fast_send(block):
    """Return whether the frame that was read is a fast send, but for its topic and texts."""
    if block.frame_flag != 0 or block.frame_opaque < 0:
        return False
    seen = block.frame_seen
    code = block.frame_code
    if code == SEND:
        if seen & ALL_FIELDS != 0:
            return False
        seen >>= LONG
    elif code != SEND_V2:
        return False
    if seen & ~ALL_FIELDS != 0 or seen & REQUIRED != REQUIRED:
        return False
    if has_field(block, RECONSUME_TIMES) and not is_number(block, RECONSUME_TIMES, 0):
        return False
    if has_field(block, MAX_RECONSUME_TIMES) and not is_number(block, MAX_RECONSUME_TIMES, INT_MAX):
        return False
    return (
        is_false(block, UNIT_MODE)
        and is_false(block, BATCH)
        and is_number(block, DEFAULT_QUEUES, INT_MAX)
        and is_number(block, QUEUE_ID, INT_MAX)
        and is_number(block, SYS_FLAG, INT_MAX)
        and value_of(block, SYS_FLAG) & ~ALLOWED_FLAGS == 0
        and is_number(block, BORN_TIMESTAMP, LONG_MAX)
        and is_number(block, FLAG, INT_MAX)
    )


@njit(**COMPILE_OPTIONS)
def topic_row_of(block, topic, size):
    """Return the row of a topic, 0 if it has none.

    Most frames name the topic of the frame before, so its row is tried first.
    """
    row = block.frame_topic_row
    if row != 0:
        name, name_size = row.name, row.name_size
        if is_text(topic, size, name, name_size):
            return row
    row = find_topic(block, topic, size)
    block.frame_topic_row = row
    return row


@njit(**COMPILE_OPTIONS)
def is_fast_queue(block, topic, topic_size):
    """Return whether the fast path may store in the frame's queue."""
    if topic_size == 0 or topic_size > TOPIC_MAX:
        return False
    row = topic_row_of(block, topic, topic_size)
    if row == 0 or row.kind != state.KIND_PLAIN:
        return False
    return value_of(block, QUEUE_ID) < row.write_queues


@njit(**COMPILE_OPTIONS)
def may_be_held(block, held):
    """Return whether the message may be held in that place, or is one that need not wait."""
    if held == state.HELD_HALF:
        return block.takes_halves != 0
    if value_of(block, SYS_FLAG) & PREPARED != 0:
        return False
    if held == state.HELD_TIMER:
        return block.takes_timers != 0
    return held <= block.delay_count


@njit(**COMPILE_OPTIONS)
def put_real_queue(block, address):
    """Write the pairs with the real topic and queue of a message that waits; return their end."""
    topic, topic_size = field_place(block, TOPIC)
    put_real_topic_name(address)
    address += REAL_TOPIC_SIZE
    copy(address, topic, topic_size)
    address += topic_size
    put_real_queue_name(address)
    address = put_decimal(address + REAL_QUEUE_SIZE, value_of(block, QUEUE_ID))
    put_u8(address, PAIR_END)
    return address + 1


@njit(**COMPILE_OPTIONS)
def write_properties(block, target):
    """Write the properties that are stored; return their end, 0 if the frame falls back."""
    source, size = field_place(block, PROPERTIES)
    start = target + GAP
    end = start
    if block.frame_serialization == JSON:
        end = unescape(source, source + size, start)
        if end == 0:
            return 0
    else:
        copy(start, source, size)
        end = start + size
    if end - start > PROPERTIES_MAX:
        return 0
    pairs_end, held, has_wait, key, key_size = write_pairs(start, end, target)
    if pairs_end == 0 or not may_be_held(block, held):
        return 0
    block.frame_held = held
    block.frame_out_ms = 0
    block.frame_key = key
    block.frame_key_size = key_size
    end = pairs_end
    suffix_size = block.suffix_size
    copy(end, block.suffix_address, suffix_size)
    end += suffix_size
    if has_wait and held == state.HELD_HALF:
        put_wait_pair(end)
        end += WAIT_PAIR_SIZE
    if held == state.HELD_TIMER:
        _, topic_size = field_place(block, TOPIC)
        end = put_leaving(block, target, pairs_end, end, topic_size)
        if end == 0:
            return 0
    if held == state.HELD_HALF and key_size > 0:
        put_transaction_id_name(end)
        end += TRANSACTION_ID_SIZE
        copy(end, key, key_size)
        put_u8(end + key_size, PAIR_END)
        end += key_size + 1
    if held != 0:
        end = put_real_queue(block, end)
    if has_wait and held == state.HELD_TIMER:
        put_wait_pair(end)
        end += WAIT_PAIR_SIZE
    return end if end - target <= PROPERTIES_MAX else 0


@njit(**COMPILE_OPTIONS)
def write_head(block, address, queue_id, body_size):
    """Write the fields before the body, but for size and offsets."""
    store_i32(address + AT_MAGIC, MAGIC_V1)
    store_i32(address + AT_MAGIC + 4, 0)  # the body's checksum
    store_i32(address + AT_QUEUE_ID, queue_id)
    store_i32(address + AT_FLAG, value_of(block, FLAG))
    store_i64(address + AT_FLAG + 4, 0)  # queue offset
    store_i64(address + AT_FLAG + 12, 0)  # physical offset
    store_i32(address + AT_SYS_FLAG, value_of(block, SYS_FLAG) & ~PREPARED)
    store_i64(address + AT_BORN_TIMESTAMP, value_of(block, BORN_TIMESTAMP))
    store_i32(address + AT_BORN_HOST, block.born_address)
    store_i32(address + AT_BORN_HOST + 4, block.born_port)
    store_i64(address + AT_BORN_HOST + 8, 0)  # store time
    store_i32(address + AT_STORE_HOST, block.store_address)
    store_i32(address + AT_STORE_HOST + 4, block.store_port)
    store_i32(address + AT_TAIL, 0)  # times it was consumed
    store_i64(address + AT_TAIL + 4, 0)  # physical offset of its half message
    store_i32(address + AT_TAIL + 12, body_size)


@njit(**COMPILE_OPTIONS)
def held_queue(held):
    """Return the size of the name of the topic where a message waits, and the queue."""
    if held == state.HELD_HALF:
        return HALF_TOPIC_SIZE, 0
    if held == state.HELD_TIMER:
        return TIMER_TOPIC_SIZE, 0
    return SCHEDULE_TOPIC_SIZE, held - 1


@njit(**COMPILE_OPTIONS)
def put_held_topic(address, held):
    """Write the name of the topic where a message waits."""
    if held == state.HELD_HALF:
        put_half_topic(address)
    elif held == state.HELD_TIMER:
        put_timer_topic(address)
    else:
        put_schedule_topic(address)


@njit(**COMPILE_OPTIONS)
def write_record(block, address, body, body_size):
    """Write the record of the frame that was read, without its offsets.

    Return its size, 0 if the frame falls back.
    """
    topic, topic_size = field_place(block, TOPIC)
    queue_id = value_of(block, QUEUE_ID)
    topic_place = address + AT_BODY + body_size + 1
    properties = topic_place + topic_size + 2
    end = write_properties(block, properties)
    held = block.frame_held
    if end != 0 and held != 0:
        # Written again: they name the waiting topic, and begin after its name.
        topic_size, queue_id = held_queue(held)
        properties = topic_place + topic_size + 2
        end = write_properties(block, properties)
    if end == 0 or end - address > block.record_bytes_max:
        return 0
    write_head(block, address, queue_id, body_size)
    store_i32(address, end - address)
    copy(address + AT_BODY, body, body_size)
    put_u8(topic_place - 1, topic_size)
    if held == 0:
        copy(topic_place, topic, topic_size)
    else:
        put_held_topic(topic_place, held)
    store_i16(properties - 2, end - properties)
    return end - address


@njit(**COMPILE_OPTIONS)
def room_for_record(block, body_size):
    """Return an upper limit of the bytes that writing the record takes."""
    _, topic_size = field_place(block, TOPIC)
    _, size = field_place(block, PROPERTIES)
    suffix_size = block.suffix_size
    return ROOM_BESIDE + body_size + topic_size + size + suffix_size


@njit(**COMPILE_OPTIONS)
def read_header(block, address, end):
    """Read the header of a frame; return the address of its body, 0 if the frame falls back.

    ``frame_code`` is set in either case, to 0 if the header has no code.
    """
    block.frame_code = 0
    mark = load_i32(address)
    serialization = mark >> 24 & 0xFF
    body = address + (mark & HEADER_MASK) + FRAME_MIN
    if body > end:
        return 0
    block.frame_serialization = serialization
    if serialization == JSON:
        is_read = read_json(block, address + FRAME_MIN, body)
    elif serialization == BINARY:
        is_read = read_binary(block, address + FRAME_MIN, body)
    else:
        return 0
    return body if is_read else 0


@njit(**COMPILE_OPTIONS)
def is_for_log(block, body_size):
    """Return whether the frame that was read is a fast send, but perhaps for its properties."""
    if body_size == 0 or body_size > block.body_bytes_max:
        return False
    if not is_fast_send(block):
        return False
    topic, topic_size = field_place(block, TOPIC)
    return is_fast_queue(block, topic, topic_size)


# --- a round -----------------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def write_note(block, i, end):
    """Write the note of the i-th frame: what its reply needs."""
    note = block.notes[i]
    note.opaque = block.frame_opaque
    note.serialization = block.frame_serialization
    note.queue_id = value_of(block, QUEUE_ID)
    note.end = end
    note.out_ms = block.frame_out_ms
    note.key = block.frame_key
    note.key_size = block.frame_key_size


@njit(**COMPILE_OPTIONS)
def collect(block):
    """Make records of the frames from ``receive_position`` on, without answering them.

    Return their number, the bytes of their records, and why there are not more: a stop,
    ROUND_IS_FULL, or ROUND_MEETS_PULL. After pulls of the same call there are none.
    """
    buffer = block.receive_address
    received = block.receive_end
    position = block.receive_position
    scratch = block.scratch_address
    is_on = block.receive_is_on != 0 and block.has_record_crc == 0
    replies_left = block.replies_room - block.replies_bytes
    count = 0
    used = 0
    while True:
        if received - position < LENGTH_BYTES:
            return count, used, state.STOP_DONE
        size = load_i32(buffer + position)
        if size < FRAME_MIN or size > FRAME_MAX:
            return count, used, state.STOP_LENGTH
        end = position + LENGTH_BYTES + size
        if end > received:
            return count, used, state.STOP_DONE
        body = read_header(block, buffer + position + LENGTH_BYTES, buffer + end)
        if body == 0:
            return count, used, state.STOP_FRAME
        body_size = buffer + end - body
        if is_pull(block):
            return count, used, ROUND_MEETS_PULL if body_size == 0 else state.STOP_FRAME
        if not is_on or not is_for_log(block, body_size):
            return count, used, state.STOP_FRAME
        if block.deliver_count > 0:
            return 0, 0, state.STOP_REPLIES
        if replies_left < REPLY_BYTES_MAX:
            return count, used, ROUND_IS_FULL if count else state.STOP_REPLIES
        has_room = room_for_record(block, body_size) <= block.scratch_room - used
        if not has_room or count >= block.notes_room:
            return count, used, ROUND_IS_FULL if count else state.STOP_FRAME
        record_size = write_record(block, scratch + used, body, body_size)
        if record_size == 0:
            return count, used, state.STOP_FRAME
        replies_left -= REPLY_BYTES_MAX
        if block.frame_out_ms != 0:
            if replies_left < HANDLE_BYTES_MAX:
                return count, used, ROUND_IS_FULL if count else state.STOP_REPLIES
            replies_left -= HANDLE_BYTES_MAX
        write_note(block, count, end)
        count += 1
        used += record_size
        position = end


@njit(**COMPILE_OPTIONS)
def answer(block, count):
    """Write the replies to the first ``count`` frames of the round, whose records are appended."""
    start = block.replies_address
    address = start + block.replies_bytes
    for i in range(count):
        note = block.notes[i]
        place = block.places[i]
        address = put_reply(
            block, address, note.serialization, note.opaque, place.physical_offset, note.queue_id,
            place.queue_offset, note.out_ms, note.key, note.key_size,
        )  # fmt: skip
    block.replies_bytes = address - start
    block.receive_position = block.notes[count - 1].end


@njit(**COMPILE_OPTIONS)
def answer_pull(block, answered):
    """Answer the pull whose header was read; return STOP_DONE, or why not."""
    # Replies of this call, or of a call before that the caller has not seen a stop of.
    if answered > 0 or (block.deliver_count == 0 and block.replies_bytes):
        return state.STOP_REPLIES
    stop = deliver(block)
    if stop == state.STOP_DONE:
        position = block.receive_position
        size = load_i32(block.receive_address + position)
        block.receive_position = position + LENGTH_BYTES + size
        block.deliver_count += 1
    return stop


@njit(**COMPILE_OPTIONS)
def receive(block):
    """Entry point: answer the sends or pulls of a receive buffer, from ``receive_position`` on.

    ``input_time`` is the store time of the sends; ``readable`` must be current. Return the number
    of sends that were answered; ``deliver_count`` has the number of pulls, ``stop`` the reason of
    the end. After a stop of ``append``, the record that it is about is at ``input_position`` of the
    scratch.
    """
    answered = 0
    block.frame_topic_row = 0
    block.deliver_count = 0
    while True:
        count, used, stop = collect(block)
        if count > 0:
            block.places = block.notes[block.notes_room].address
            block.input_position = 0
            block.input_size = used
            placed = append(block, block.scratch_address)
            if placed > 0:
                answer(block, placed)
                answered += placed
            if block.stop != state.STOP_DONE:
                return answered
        if stop == ROUND_MEETS_PULL and count == 0:
            stop = answer_pull(block, answered)
            if stop == state.STOP_DONE:
                continue
        if stop != ROUND_IS_FULL and stop != ROUND_MEETS_PULL:
            block.stop = stop
            return answered


ENTRY_POINTS = {"receive": (ControlBlock,)}
"""Entry points and their arguments. Results are numbers."""
