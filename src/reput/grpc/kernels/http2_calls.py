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

A request may be fast (``CallRow.path``) if it has one of ``paths``, the id of ``client``, and the
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
    store_i32,
    text_run,
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
    paths = block.paths
    for i in range(block.path_count):
        if paths[i].size == size and same_bytes(paths[i].start, value, size):
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
            client_size = block.client.size
            if size != client_size or not same_bytes(block.client.start, value, size):
                return 0
    if count > FIELDS_MAX or seen & REQUIRED != REQUIRED:
        return 0
    return path


@njit(**COMPILE_OPTIONS)
def take_headers(block, address, size, flags, stream, count, fields, limit):
    """Begin the row of a request; return the end of its fields, 0 if the frame is left."""
    last = block.last_stream
    if flags != END_HEADERS or stream & 1 == 0 or stream <= last or stream > last + 2:
        return 0
    if count >= block.streams_left or size > words.BLOCK_BYTES_MAX:
        return 0
    table = block.table
    static, huffman = block.static, block.huffman
    fields_end = decode(table, static, huffman, address, address + size, fields, limit)
    if fields_end == 0:
        return 0
    block.last_stream = stream
    block.control_frames = 0
    block.empty_frames = 0
    row = block.rows[count]
    room = block.fields
    row.stream = stream
    row.state = words.STATE_NEW
    row.fields = fields - room
    row.fields_end = fields_end - room
    row.data = -1
    row.data_end = -1
    row.is_ended = 0
    path = 0
    if block.client.start != 0:
        path = fast_path(block, fields, fields_end)
    row.path = path
    return fields_end


@njit(**COMPILE_OPTIONS)
def put_window_update(block, count):
    """Let the peer send ``count`` more bytes."""
    size = block.out_size
    out = block.out + size
    store_i32(out, 4 << 8 | WINDOW_UPDATE)
    put_u8(out + 4, 0)
    store_i32(out + 5, 0)
    store_i32(out + 9, count)
    block.out_size = size + 13


@njit(**COMPILE_OPTIONS)
def take_data(block, address, size, flags, stream, count):
    """Find the row of data; return whether it was taken."""
    if flags & ~END_STREAM != 0:
        return False
    number = count - 1
    rows = block.rows
    row = rows
    while number >= 0:
        row = rows[number]
        if row.stream == stream:
            break
        number -= 1
    if number < 0 or row.is_ended != 0:
        return False
    has_data = row.data >= 0
    if (has_data and size != 0) or (size == 0 and flags == 0):
        return False
    window = block.receive_window - size
    window_max = block.receive_window_max
    if window < window_max >> 1:
        if window < 0:
            return False
        put_window_update(block, window_max - window)
        window = window_max
    block.receive_window = window
    block.control_frames = 0
    block.empty_frames = 0
    if not has_data:
        position = address - block.buffer
        row.data = position
        row.data_end = position + size
    if flags == END_STREAM:
        row.is_ended = 1
    return True


@njit(**COMPILE_OPTIONS)
def take_ping(block, address, size, flags, stream):
    """Acknowledge a PING; return whether it was taken."""
    frames = block.control_frames + 1
    if size != 8 or stream != 0 or flags & ACK or frames > block.control_frames_max:
        return False
    block.control_frames = frames
    out_size = block.out_size
    out = block.out + out_size
    store_i32(out, 8 << 8 | PING)
    put_u8(out + 4, ACK)
    store_i32(out + 5, 0)
    copy(out + 9, address, 8)
    block.out_size = out_size + 17
    return True


@njit(**COMPILE_OPTIONS)
def take_window_update(block, address, size, stream, count):
    """Count a WINDOW_UPDATE; return whether it was taken."""
    frames = block.empty_frames + 1
    if size != 4 or frames > block.empty_frames_max:
        return False
    change = load_i32(address) & WINDOW_MAX
    if stream == 0:
        window = block.window + change
        if change == 0 or window > WINDOW_MAX:
            return False
        block.window = window
    else:
        if stream > block.last_stream:
            return False
        numbers = block.open_streams
        for i in range(block.open_count):
            if numbers[i] == stream:
                return False
        rows = block.rows
        for i in range(count):
            if rows[i].stream == stream:
                return False
    block.empty_frames = frames
    return True


@njit(**COMPILE_OPTIONS)
def read_calls(block):
    """Entry point: read frames from ``position`` on; return the number of rows."""
    buffer = block.buffer
    address = buffer + block.position
    end = buffer + block.end
    fields = block.fields
    limit = fields + block.fields_room
    row_max = block.row_max
    count = 0
    frames_left = FRAMES_MAX
    block.out_size = 0
    block.has_other = 0
    while end - address >= HEAD_BYTES and frames_left > 0:
        size_and_kind = load_i32(address) & 0xFFFFFFFF
        kind, size = size_and_kind & 0xFF, size_and_kind >> 8
        payload = address + HEAD_BYTES
        if size > PAYLOAD_BYTES_MAX:
            block.has_other = 1
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
            block.has_other = 1
            break
        address = payload + size
        frames_left -= 1
    block.position = address - buffer
    return count


ENTRY_POINTS = {"read_calls": (words.Calls,)}
"""Entry points and their arguments. Results are numbers."""
