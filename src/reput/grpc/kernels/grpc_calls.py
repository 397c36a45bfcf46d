"""Kernels: turn the requests of rows into requests to a broker, and its replies into replies.

``grpc_requests`` looks at the rows of ``read_calls`` that may be fast: SendMessage (``grpc_sends``)
and AckMessage (``grpc_acks``). ``grpc_replies`` writes the replies to requests that succeeded. All
others are left to the front, row by row.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

from numba import njit

from reput.format.command import Serialization
from reput.format.kernels.memory import COMPILE_OPTIONS, load_i16, load_i32
from reput.grpc.kernels import call_words as words
from reput.grpc.kernels.grpc_acks import answer_ack, make_ack, opaque_of_success
from reput.grpc.kernels.grpc_sends import answer_send, make_send
from reput.grpc.kernels.grpc_wire import AT_FIELDS

SEND_PATH, ACK_PATH = words.SEND_PATH, words.ACK_PATH
BINARY = int(Serialization.ROCKETMQ)
REPLY_ROOM = 1024


@njit(**COMPILE_OPTIONS)
def grpc_requests(block, count):
    """Entry point: make the requests of ``count`` rows; return the number of those made."""
    frames = block.frames
    limit = frames + block.frames_room
    frame = frames
    made = 0
    for i in range(count):
        row = block.rows[i]
        path = row.path
        if path == 0 or row.is_ended == 0 or row.data < 0:
            continue
        end = 0
        opaque = block.opaque + i
        if path == SEND_PATH:
            end = make_send(block, row, opaque, frame, limit)
        elif path == ACK_PATH:
            end = make_ack(block, row, opaque, frame, limit)
        if end != 0:
            frame = end
            row.state = words.STATE_ASKED
            made += 1
    block.frames_size = frame - frames
    return made


@njit(**COMPILE_OPTIONS)
def answer(block, frame, end, count, out):
    """Write the reply for a frame of the broker; return its end, 0 if it is left."""
    header = frame + 8
    mark = load_i32(frame + 4)
    is_binary = mark >> 24 == BINARY
    if is_binary:
        header_end = header + (mark & 0xFFFFFF)
        if end - header < AT_FIELDS - 8 or header_end > end:
            return 0
        if load_i16(header) != 0 or load_i32(header + 13) != 0:
            return 0
        opaque = load_i32(header + 5)
    else:
        if mark != end - header:
            return 0
        opaque = opaque_of_success(header, end)
    number = opaque - block.opaque
    if number < 0 or number >= count:
        return 0
    row = block.rows[number]
    if row.state != words.STATE_ASKED:
        return 0
    path = row.path
    reply_end = 0
    if is_binary and path == SEND_PATH:
        reply_end = answer_send(block, row, frame + AT_FIELDS, header_end, out)
    elif not is_binary and path == ACK_PATH:
        reply_end = answer_ack(block, row, out)
    if reply_end != 0:
        row.state = words.STATE_DONE
    return reply_end


@njit(**COMPILE_OPTIONS)
def grpc_replies(block, count):
    """Entry point: write the replies for those of the broker; return the number of those written.

    ``count`` is the number of rows.
    """
    frame = block.replies.start
    replies_end = frame + block.replies.size
    start = block.out
    limit = start + block.out_room - REPLY_ROOM
    out = start
    done = 0
    while replies_end - frame >= 8 and out <= limit:
        size = load_i32(frame)
        end = frame + 4 + size
        if size < 4 or end > replies_end:
            break
        reply_end = answer(block, frame, end, count, out)
        if reply_end != 0:
            out = reply_end
            done += 1
        frame = end
    block.out_size = out - start
    return done


ENTRY_POINTS = {"grpc_requests": (words.Calls, int), "grpc_replies": (words.Calls, int)}
"""Entry points and their arguments. Results are numbers."""
