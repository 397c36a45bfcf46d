"""Kernel: read the frames of a gRPC connection into rows, one for each request.

It acknowledges PINGs, counts windows, decodes header blocks (``hpack``), and finds the data of each
request. It stops before any frame that it does not handle, with nothing of it done: the caller
handles it (``reput.grpc.http2.connection``), and must make the requests of the rows first.

**What it handles**; a frame of any other form is left to the caller:

* HEADERS that end the block and not the request, without padding or priority, of the next odd
  stream, while there may be another stream; a block of at most BLOCK_BYTES_MAX that is not damaged.
* DATA of a request of this call, without padding: all of it in one frame; then, if that was not the
  end, an empty one that is.
* PING, WINDOW_UPDATE for the connection, or for streams that are not open.

A request may be fast (ROW_PATH) if it has the path of one of PATHS, the client id CLIENT, and the
headers that gRPC requires, each once and none of an unusual form.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format.kernels.hashes import same_bytes
from reput.format.kernels.memory import (
    COMPILE_OPTIONS,
    copy,
    get_i32,
    get_u8,
    load_i32,
    put_u8,
    set_word,
    store_i32,
    text_run,
    word,
)
from reput.format.kernels.plain_text import first_word, name_word
from reput.grpc.kernels import call_words as words
from reput.grpc.kernels.hpack import decode

DATA, HEADERS, PING, WINDOW_UPDATE = 0, 1, 6, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
HEAD_BYTES = 9
PAYLOAD_BYTES_MAX = 16_384
WINDOW_MAX = (1 << 31) - 1
FRAMES_MAX = 256
FIELDS_MAX = 48
FIELD_BYTES_MAX = 8192
SPACE, COLON = ord(" "), ord(":")

METHOD, SCHEME, PATH, AUTHORITY, TYPE, CLIENT, TE, TIMEOUT, ENCODING = (1 << i for i in range(9))
REQUIRED = METHOD | SCHEME | PATH | TYPE | CLIENT
W_METHOD, W_SCHEME, W_PATH = map(name_word, (":method", ":scheme", ":path"))
W_AUTHORITY, W_TYPE = map(name_word, (":authority", "content-type"))
W_TE, W_TIMEOUT, W_ENCODING = map(name_word, ("te", "grpc-timeout", "grpc-encoding"))
W_CLIENT, W_CLIENT_END = name_word("x-mq-client-id"), name_word("x-mq-client-id"[-8:])
W_CONTENT, W_LENGTH_END = name_word("content-length"), name_word("content-length"[-8:])
W_TYPE_END, W_TIMEOUT_END = name_word("content-type"[-8:]), name_word("grpc-timeout"[-8:])
W_ENCODING_END = name_word("grpc-encoding"[-8:])
W_TRAILERS, W_IDENTITY = name_word("trailers"), name_word("identity")
W_APPLICATION, W_GRPC = name_word("application/grpc"), name_word("application/grpc"[-8:])
GRPC_SIZE = len("application/grpc")
FORBIDDEN = tuple(
    map(name_word, ("connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"))
)


@njit(**COMPILE_OPTIONS)
def is_good_name(name, size):
    """Return whether a name is of small letters, digits, dashes, dots and underscores."""
    for i in range(size):
        byte = get_u8(name + i)
        if not (97 <= byte <= 122 or 48 <= byte <= 57 or 45 <= byte <= 46 or byte == 95):
            return False
    if size < 7:
        return True
    start = first_word(name, size)
    for i in range(len(FORBIDDEN)):  # noqa: SIM110 - kernels have no generators
        if start == FORBIDDEN[i]:
            return False
    return True


@njit(**COMPILE_OPTIONS)
def is_good_value(value, size):
    """Return whether a value is visible ASCII, with no space at either end."""
    if size == 0:
        return True
    if get_u8(value) == SPACE or get_u8(value + size - 1) == SPACE:
        return False
    end = value + size
    while value < end:
        run = text_run(value)
        value += run
        if run < 16:
            return value >= end
    return True


@njit(**COMPILE_OPTIONS)
def bit_of(name, size):
    """Return the bit of a header that matters; 0 for others, -1 for one that makes it unusual."""
    start = first_word(name, size)
    if size == 2:
        return TE if start == W_TE else 0
    if size == 5:
        return PATH if start == W_PATH else 0
    if size == 7:
        if start == W_METHOD:
            return METHOD
        return SCHEME if start == W_SCHEME else 0
    if size == 10:
        return AUTHORITY if start == W_AUTHORITY else 0
    if size == 12:
        last = first_word(name + 4, 8)
        if start == W_TYPE and last == W_TYPE_END:
            return TYPE
        return TIMEOUT if start == W_TIMEOUT and last == W_TIMEOUT_END else 0
    if size == 13:
        return ENCODING if start == W_ENCODING and first_word(name + 5, 8) == W_ENCODING_END else 0
    if size == 14:
        last = first_word(name + 6, 8)
        if start == W_CLIENT and last == W_CLIENT_END:
            return CLIENT
        return -1 if start == W_CONTENT and last == W_LENGTH_END else 0
    return 0


@njit(**COMPILE_OPTIONS)
def is_timeout(value, size):
    """Return whether a value is a number of 1 to 8 digits and a unit."""
    if size < 2 or size > 9:
        return False
    for i in range(size - 1):
        digit = get_u8(value + i)
        if digit < 48 or digit > 57:
            return False
    unit = get_u8(value + size - 1)
    return unit in (72, 77, 83, 109, 117, 110)  # H M S m u n


@njit(**COMPILE_OPTIONS)
def path_number(block, value, size):
    """Return the number of a path; 0 for an unknown one."""
    paths = word(block, words.PATHS)
    for i in range(word(block, words.PATH_COUNT)):
        if word(paths, 2 * i + 1) == size and same_bytes(word(paths, 2 * i), value, size):
            return i + 1
    return 0


@njit(**COMPILE_OPTIONS)
def fast_path(block, fields, end):
    """Return the number of the path of a request that may be fast; else 0."""
    seen = 0
    path = 0
    count = 0
    is_pseudo = True
    if end - fields > FIELD_BYTES_MAX:
        return 0
    while fields < end:
        name_size, size = get_i32(fields), get_i32(fields + 4)
        name = fields + 8
        value = name + name_size
        fields = value + size
        count += 1
        if name_size == 0 or not is_good_value(value, size):
            return 0
        bit = bit_of(name, name_size)
        if bit < 0 or seen & bit:
            return 0
        seen |= bit
        if get_u8(name) == COLON:
            if not is_pseudo or bit & (METHOD | SCHEME | PATH | AUTHORITY) == 0:
                return 0
            if bit == PATH:
                path = path_number(block, value, size)
                if path == 0:
                    return 0
            continue
        is_pseudo = False
        if bit == 0:
            if not is_good_name(name, name_size):
                return 0
        elif bit == TE:
            if size != 8 or first_word(value, 8) != W_TRAILERS:
                return 0
        elif bit == TYPE:
            if size != GRPC_SIZE:
                return 0
            if first_word(value, 8) != W_APPLICATION or first_word(value + 8, 8) != W_GRPC:
                return 0
        elif bit == TIMEOUT:
            if not is_timeout(value, size):
                return 0
        elif bit == ENCODING:
            if size != 8 or first_word(value, 8) != W_IDENTITY:
                return 0
        elif bit == CLIENT:
            client_size = word(block, words.CLIENT_SIZE)
            if size != client_size or not same_bytes(word(block, words.CLIENT), value, size):
                return 0
    if count > FIELDS_MAX or seen & REQUIRED != REQUIRED:
        return 0
    return path


@njit(**COMPILE_OPTIONS)
def take_headers(block, address, size, flags, stream, count, fields, limit):
    """Begin the row of a request; return the end of its fields, 0 if the frame is left."""
    last = word(block, words.LAST_STREAM)
    if flags != END_HEADERS or stream & 1 == 0 or stream <= last or stream > last + 2:
        return 0
    if count >= word(block, words.STREAMS_LEFT) or size > words.BLOCK_BYTES_MAX:
        return 0
    table = word(block, words.TABLE)
    static, huffman = word(block, words.STATIC), word(block, words.HUFFMAN)
    fields_end = decode(table, static, huffman, address, address + size, fields, limit)
    if fields_end == 0:
        return 0
    set_word(block, words.LAST_STREAM, stream)
    set_word(block, words.CONTROL_FRAMES, 0)
    set_word(block, words.EMPTY_FRAMES, 0)
    row = word(block, words.ROWS) + 8 * words.ROW_WORDS * count
    room = word(block, words.FIELDS)
    set_word(row, words.ROW_STREAM, stream)
    set_word(row, words.ROW_STATE, words.STATE_NEW)
    set_word(row, words.ROW_FIELDS, fields - room)
    set_word(row, words.ROW_FIELDS_END, fields_end - room)
    set_word(row, words.ROW_DATA, -1)
    set_word(row, words.ROW_DATA_END, -1)
    set_word(row, words.ROW_IS_ENDED, 0)
    path = 0
    if word(block, words.CLIENT) != 0:
        path = fast_path(block, fields, fields_end)
    set_word(row, words.ROW_PATH, path)
    return fields_end


@njit(**COMPILE_OPTIONS)
def put_window_update(block, count):
    """Let the peer send ``count`` more bytes."""
    size = word(block, words.OUT_SIZE)
    out = word(block, words.OUT) + size
    store_i32(out, 4 << 8 | WINDOW_UPDATE)
    put_u8(out + 4, 0)
    store_i32(out + 5, 0)
    store_i32(out + 9, count)
    set_word(block, words.OUT_SIZE, size + 13)


@njit(**COMPILE_OPTIONS)
def take_data(block, address, size, flags, stream, count):
    """Find the row of data; return whether it was taken."""
    if flags & ~END_STREAM != 0:
        return False
    number = count - 1
    rows = word(block, words.ROWS)
    row = 0
    while number >= 0:
        row = rows + 8 * words.ROW_WORDS * number
        if word(row, words.ROW_STREAM) == stream:
            break
        number -= 1
    if number < 0 or word(row, words.ROW_IS_ENDED) != 0:
        return False
    has_data = word(row, words.ROW_DATA) >= 0
    if (has_data and size != 0) or (size == 0 and flags == 0):
        return False
    window = word(block, words.RECEIVE_WINDOW) - size
    window_max = word(block, words.RECEIVE_WINDOW_MAX)
    if window < window_max >> 1:
        if window < 0:
            return False
        put_window_update(block, window_max - window)
        window = window_max
    set_word(block, words.RECEIVE_WINDOW, window)
    set_word(block, words.CONTROL_FRAMES, 0)
    set_word(block, words.EMPTY_FRAMES, 0)
    if not has_data:
        position = address - word(block, words.BUFFER)
        set_word(row, words.ROW_DATA, position)
        set_word(row, words.ROW_DATA_END, position + size)
    if flags == END_STREAM:
        set_word(row, words.ROW_IS_ENDED, 1)
    return True


@njit(**COMPILE_OPTIONS)
def take_ping(block, address, size, flags, stream):
    """Acknowledge a PING; return whether it was taken."""
    frames = word(block, words.CONTROL_FRAMES) + 1
    if size != 8 or stream != 0 or flags & ACK or frames > word(block, words.CONTROL_FRAMES_MAX):
        return False
    set_word(block, words.CONTROL_FRAMES, frames)
    out_size = word(block, words.OUT_SIZE)
    out = word(block, words.OUT) + out_size
    store_i32(out, 8 << 8 | PING)
    put_u8(out + 4, ACK)
    store_i32(out + 5, 0)
    copy(out + 9, address, 8)
    set_word(block, words.OUT_SIZE, out_size + 17)
    return True


@njit(**COMPILE_OPTIONS)
def take_window_update(block, address, size, stream, count):
    """Count a WINDOW_UPDATE; return whether it was taken."""
    frames = word(block, words.EMPTY_FRAMES) + 1
    if size != 4 or frames > word(block, words.EMPTY_FRAMES_MAX):
        return False
    change = load_i32(address) & WINDOW_MAX
    if stream == 0:
        window = word(block, words.WINDOW) + change
        if change == 0 or window > WINDOW_MAX:
            return False
        set_word(block, words.WINDOW, window)
    else:
        if stream > word(block, words.LAST_STREAM):
            return False
        numbers = word(block, words.OPEN_STREAMS)
        for i in range(word(block, words.OPEN_COUNT)):
            if word(numbers, i) == stream:
                return False
        rows = word(block, words.ROWS)
        for i in range(count):
            if word(rows + 8 * words.ROW_WORDS * i, words.ROW_STREAM) == stream:
                return False
    set_word(block, words.EMPTY_FRAMES, frames)
    return True


@njit(**COMPILE_OPTIONS)
def read_calls(block):
    """Entry point: read frames from POSITION on; return the number of rows."""
    buffer = word(block, words.BUFFER)
    address = buffer + word(block, words.POSITION)
    end = buffer + word(block, words.END)
    fields = word(block, words.FIELDS)
    limit = fields + word(block, words.FIELDS_ROOM)
    row_max = word(block, words.ROW_MAX)
    count = 0
    frames_left = FRAMES_MAX
    set_word(block, words.OUT_SIZE, 0)
    set_word(block, words.HAS_OTHER, 0)
    while end - address >= HEAD_BYTES and frames_left > 0:
        size_and_kind = load_i32(address) & 0xFFFFFFFF
        kind, size = size_and_kind & 0xFF, size_and_kind >> 8
        payload = address + HEAD_BYTES
        if size > PAYLOAD_BYTES_MAX:
            set_word(block, words.HAS_OTHER, 1)
            break
        if payload + size > end:
            break
        flags = get_u8(address + 4)
        stream = load_i32(address + 5) & WINDOW_MAX
        is_taken = False
        if kind == HEADERS:
            # Its row must stay with its data, if possible: rows end at the end of a call.
            if count == row_max:
                break
            fields_end = take_headers(block, payload, size, flags, stream, count, fields, limit)
            if fields_end != 0:
                is_taken = True
                fields = fields_end
                count += 1
        elif kind == DATA:
            is_taken = take_data(block, payload, size, flags, stream, count)
        elif kind == PING:
            is_taken = take_ping(block, payload, size, flags, stream)
        elif kind == WINDOW_UPDATE:
            is_taken = take_window_update(block, payload, size, stream, count)
        if not is_taken:
            set_word(block, words.HAS_OTHER, 1)
            break
        address = payload + size
        frames_left -= 1
    set_word(block, words.POSITION, address - buffer)
    return count


ENTRY_POINTS = {"read_calls": 1}
"""Entry points and their numbers of arguments. Arguments and results are int64."""
