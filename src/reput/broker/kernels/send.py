r"""Kernel: store the sends in a receive buffer, and write their replies.

It answers the pulls among them too (``deliver``).

``receive`` works in rounds. A round is as many frames as there is room for: it makes their records
in the scratch, concatenated and without offsets; ``append`` appends them; the replies are to those
that are in the log. A frame that falls back ends the call: all frames before it are answered, and
nothing of the frame itself is done.

**What takes the fast path**; all else falls back to the processor (``STOP_FRAME``):

* RECEIVE_IS_ON, and records have no checksum property (HAS_RECORD_CRC is off).
* A frame of JSON or the binary header, with code 310 and fields ``a`` to ``n``, or with code 10 and
  their long names (and ``bname``); flag 0: a request that wants a reply; opaque not negative; no
  remark. The forms that the two readers accept: ``header_json``, ``header_binary``.
* Fields: all but ``i`` to ``n`` are required, and no unknown one is allowed. Numbers are in decimal
  without sign or leading zero, up to 18 digits. Text is ASCII without controls, quotes and
  backslashes; in JSON, properties may have escapes.
* ``b``: a topic with a row of KIND_PLAIN and TOPIC_WRITE_QUEUES, of at most 127 bytes.
* ``e``: below TOPIC_WRITE_QUEUES. ``f``: only the bits of compression, with a known type,
  MULTI_TAGS, and of half messages TRANSACTION_PREPARED. ``d h l`` are 32-bit numbers, ``g`` is a
  number. ``j`` is 0, ``k`` and ``m`` are ``false``. ``a c n`` may be any text.
* ``i``: properties of the form in ``send_properties``; as they were sent, and with the added ones,
  at most 32,767 bytes.
* Half messages, where TAKES_HALVES; messages with a delay level up to DELAY_COUNT; and, where
  TAKES_TIMERS, messages with a delivery time (``send_timers``). They are stored as
  ``broker.transaction``, ``store.writing.incoming.delayed`` and ``broker.timer`` do, in the topic
  where they wait.
* The body has 1 to BODY_BYTES_MAX bytes, the record at most RECORD_BYTES_MAX, and fits the scratch.
* Client and broker have IPv4 addresses: for others RECEIVE_IS_ON is off.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.broker.kernels import send_rules
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
    get_i64,
    get_u8,
    load_i32,
    put_i64,
    put_u8,
    set_word,
    store_i16,
    store_i32,
    store_i64,
    text_writer,
    word,
)
from reput.format.kernels.plain_text import INT_MAX, put_decimal
from reput.store.kernels import control_block as state
from reput.store.kernels.append import append, find_topic

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

PLACE_BYTES = state.PLACE_BYTES
NOTE_BYTES = send_rules.NOTE_BYTES - state.PLACE_BYTES
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
    if word(block, state.FRAME_FLAG) != 0 or word(block, state.FRAME_OPAQUE) < 0:
        return False
    seen = word(block, state.FRAME_SEEN)
    code = word(block, state.FRAME_CODE)
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
    row = word(block, state.FRAME_TOPIC_ROW)
    if row != 0:
        name, name_size = word(row, state.TOPIC_NAME), word(row, state.TOPIC_NAME_SIZE)
        if is_text(topic, size, name, name_size):
            return row
    row = find_topic(block, topic, size)
    set_word(block, state.FRAME_TOPIC_ROW, row)
    return row


@njit(**COMPILE_OPTIONS)
def is_fast_queue(block, topic, topic_size):
    """Return whether the fast path may store in the frame's queue."""
    if topic_size == 0 or topic_size > TOPIC_MAX:
        return False
    row = topic_row_of(block, topic, topic_size)
    if row == 0 or word(row, state.TOPIC_KIND) != state.KIND_PLAIN:
        return False
    return value_of(block, QUEUE_ID) < word(row, state.TOPIC_WRITE_QUEUES)


@njit(**COMPILE_OPTIONS)
def may_be_held(block, held):
    """Return whether the message may be held in that place, or is one that need not wait."""
    if held == state.HELD_HALF:
        return word(block, state.TAKES_HALVES) != 0
    if value_of(block, SYS_FLAG) & PREPARED != 0:
        return False
    if held == state.HELD_TIMER:
        return word(block, state.TAKES_TIMERS) != 0
    return held <= word(block, state.DELAY_COUNT)


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
    if word(block, state.FRAME_SERIALIZATION) == JSON:
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
    set_word(block, state.FRAME_HELD, held)
    set_word(block, state.FRAME_OUT_MS, 0)
    set_word(block, state.FRAME_KEY, key)
    set_word(block, state.FRAME_KEY_SIZE, key_size)
    end = pairs_end
    suffix_size = word(block, state.SUFFIX_SIZE)
    copy(end, word(block, state.SUFFIX_ADDRESS), suffix_size)
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
    store_i32(address + AT_BORN_HOST, word(block, state.BORN_ADDRESS))
    store_i32(address + AT_BORN_HOST + 4, word(block, state.BORN_PORT))
    store_i64(address + AT_BORN_HOST + 8, 0)  # store time
    store_i32(address + AT_STORE_HOST, word(block, state.STORE_ADDRESS))
    store_i32(address + AT_STORE_HOST + 4, word(block, state.STORE_PORT))
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
    held = word(block, state.FRAME_HELD)
    if end != 0 and held != 0:
        # Written again: they name the waiting topic, and begin after its name.
        topic_size, queue_id = held_queue(held)
        properties = topic_place + topic_size + 2
        end = write_properties(block, properties)
    if end == 0 or end - address > word(block, state.RECORD_BYTES_MAX):
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
    suffix_size = word(block, state.SUFFIX_SIZE)
    return ROOM_BESIDE + body_size + topic_size + size + suffix_size


@njit(**COMPILE_OPTIONS)
def read_header(block, address, end):
    """Read the header of a frame; return the address of its body, 0 if the frame falls back.

    FRAME_CODE is set in either case, to 0 if the header has no code.
    """
    set_word(block, state.FRAME_CODE, 0)
    mark = load_i32(address)
    serialization = mark >> 24 & 0xFF
    body = address + (mark & HEADER_MASK) + FRAME_MIN
    if body > end:
        return 0
    set_word(block, state.FRAME_SERIALIZATION, serialization)
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
    if body_size == 0 or body_size > word(block, state.BODY_BYTES_MAX):
        return False
    if not is_fast_send(block):
        return False
    topic, topic_size = field_place(block, TOPIC)
    return is_fast_queue(block, topic, topic_size)


# --- a round -----------------------------------------------------------------


@njit(**COMPILE_OPTIONS)
def note_address(block, i):
    """Return the address of the note of the i-th frame. All places come before all notes."""
    notes = word(block, state.NOTES_ADDRESS) + PLACE_BYTES * word(block, state.NOTES_ROOM)
    return notes + NOTE_BYTES * i


@njit(**COMPILE_OPTIONS)
def write_note(block, i, end):
    """Write the note of the i-th frame: what its reply needs."""
    note = note_address(block, i)
    put_i64(note, word(block, state.FRAME_OPAQUE))
    put_i64(note + 8, word(block, state.FRAME_SERIALIZATION))
    put_i64(note + 16, value_of(block, QUEUE_ID))
    put_i64(note + 24, end)
    put_i64(note + 32, word(block, state.FRAME_OUT_MS))
    put_i64(note + 40, word(block, state.FRAME_KEY))
    put_i64(note + 48, word(block, state.FRAME_KEY_SIZE))


@njit(**COMPILE_OPTIONS)
def collect(block):
    """Make records of the frames from RECEIVE_POSITION on, without answering them.

    Return their number, the bytes of their records, and why there are not more: a stop,
    ROUND_IS_FULL, or ROUND_MEETS_PULL. After pulls of the same call there are none.
    """
    buffer = word(block, state.RECEIVE_ADDRESS)
    received = word(block, state.RECEIVE_END)
    position = word(block, state.RECEIVE_POSITION)
    scratch = word(block, state.SCRATCH_ADDRESS)
    is_on = word(block, state.RECEIVE_IS_ON) != 0 and word(block, state.HAS_RECORD_CRC) == 0
    replies_left = word(block, state.REPLIES_ROOM) - word(block, state.REPLIES_BYTES)
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
        if word(block, state.DELIVER_COUNT) > 0:
            return 0, 0, state.STOP_REPLIES
        if replies_left < REPLY_BYTES_MAX:
            return count, used, ROUND_IS_FULL if count else state.STOP_REPLIES
        has_room = room_for_record(block, body_size) <= word(block, state.SCRATCH_ROOM) - used
        if not has_room or count >= word(block, state.NOTES_ROOM):
            return count, used, ROUND_IS_FULL if count else state.STOP_FRAME
        record_size = write_record(block, scratch + used, body, body_size)
        if record_size == 0:
            return count, used, state.STOP_FRAME
        replies_left -= REPLY_BYTES_MAX
        if word(block, state.FRAME_OUT_MS) != 0:
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
    start = word(block, state.REPLIES_ADDRESS)
    address = start + word(block, state.REPLIES_BYTES)
    for i in range(count):
        note = note_address(block, i)
        place = word(block, state.NOTES_ADDRESS) + PLACE_BYTES * i
        address = put_reply(
            block, address, get_i64(note + 8), get_i64(note), get_i64(place), get_i64(note + 16),
            get_i64(place + 8), get_i64(note + 32), get_i64(note + 40), get_i64(note + 48),
        )  # fmt: skip
    set_word(block, state.REPLIES_BYTES, address - start)
    set_word(block, state.RECEIVE_POSITION, get_i64(note_address(block, count - 1) + 24))


@njit(**COMPILE_OPTIONS)
def answer_pull(block, answered):
    """Answer the pull at RECEIVE_POSITION, whose header was read; return STOP_DONE, or why not."""
    # Replies of this call, or of a call before that the caller has not seen a stop of.
    if answered > 0 or (word(block, state.DELIVER_COUNT) == 0 and word(block, state.REPLIES_BYTES)):
        return state.STOP_REPLIES
    stop = deliver(block)
    if stop == state.STOP_DONE:
        position = word(block, state.RECEIVE_POSITION)
        size = load_i32(word(block, state.RECEIVE_ADDRESS) + position)
        set_word(block, state.RECEIVE_POSITION, position + LENGTH_BYTES + size)
        set_word(block, state.DELIVER_COUNT, word(block, state.DELIVER_COUNT) + 1)
    return stop


@njit(**COMPILE_OPTIONS)
def receive(block):
    """Entry point: answer the sends or the pulls of a receive buffer, from RECEIVE_POSITION on.

    INPUT_TIME is the store time of the sends; READABLE must be current. Return the number of sends
    that were answered; DELIVER_COUNT has the number of pulls, STOP the reason of the end. After a
    stop of ``append``, the record that it is about is at INPUT_POSITION of the scratch.
    """
    answered = 0
    set_word(block, state.FRAME_TOPIC_ROW, 0)
    set_word(block, state.DELIVER_COUNT, 0)
    while True:
        count, used, stop = collect(block)
        if count > 0:
            set_word(block, state.PLACES, word(block, state.NOTES_ADDRESS))
            set_word(block, state.INPUT_POSITION, 0)
            set_word(block, state.INPUT_SIZE, used)
            placed = append(block, word(block, state.SCRATCH_ADDRESS))
            if placed > 0:
                answer(block, placed)
                answered += placed
            if word(block, state.STOP) != state.STOP_DONE:
                return answered
        if stop == ROUND_MEETS_PULL and count == 0:
            stop = answer_pull(block, answered)
            if stop == state.STOP_DONE:
                continue
        if stop != ROUND_IS_FULL and stop != ROUND_MEETS_PULL:
            set_word(block, state.STOP, stop)
            return answered


ENTRY_POINTS = {"receive": (int,)}
"""Entry points and their arguments. Results are numbers."""
