"""The call of the kernel ``acks``: arguments and results.

What the kernel does with the fields: ``acks``. Positions are those of the receive buffer.
"""

from reput.format import command, pop_codec, send_reply
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.format.kernels.rows import Row, columns_of, rows, word
from reput.store.kernels.control_block import FrameValue

FIELD_NAMES = ("consumerGroup", "topic", "queueId", "offset", "extraInfo")
"""Required fields, each once. Other fields are ignored."""


class AckRow(Row):
    """Acknowledgements that follow each other, of one checkpoint."""

    topic = word("position", "The topic's name")
    topic_size = word("bytes", "Size of the name")
    group = word("position", "The group's name")
    group_size = word("bytes", "Size of the name")
    queue_id = word("number", "The queue")
    start = word("queue offset", "The first of the checkpoint")
    pop_time = word("ms", "Time of the pop")
    first = word("queue offset", "That of bit 0")
    bits = word("bits", "Bit i: the message with queue offset ``first`` + i is acknowledged")
    count = word("count", "Acknowledgements; a message may be acknowledged twice")
    end = word("position", "End of the last frame of the row")
    replies = word("bytes", "Size of all replies up to the last one of the row")


ROW = columns_of(AckRow)


class AckCall(Row):
    """A call of ``acks``."""

    buffer = word("address", "The receive buffer")
    position = word("position", "The first frame; then the end of the last frame that was read")
    end = word("position", "End of the bytes; the last frame may be incomplete")
    ack_rows = word("address", "The rows", to=AckRow)
    row_max = word("count", "Rows that there is room for")
    replies = word("address", "Room for the replies, which are concatenated")
    replies_room = word("bytes", "Size of that room")

    # A frame: of use to the kernel only.
    frame_code = word("number", "Request code")
    frame_flag = word("bits", "Flag of the header")
    frame_opaque = word("number", "Opaque of the header")
    fields = rows(len(FIELD_NAMES), FrameValue, "Values of the fields, as in FIELD_NAMES")
    queue_id = word("number", "The queue")
    offset = word("queue offset", "Of the message")
    start = word("queue offset", "The first of the checkpoint")
    pop_time = word("ms", "Time of the pop")


# --- requests of the fast path ---------------------------------------------------------

CODE = int(RequestCode.ACK_MESSAGE)
ORDERED_REVIVE_QUEUE = pop_codec.ORDERED_REVIVE_QUEUE
"""Revive queue of messages that were popped in order. Their acknowledgements fall back."""
BITS = 63
REPLY_BYTES_MAX = 160

REPLY_PIECES = send_reply.cut(
    command.encode(command.reply(Command(CODE, 11111)))[command.LENGTH.size + command.MARK.size :],
    b"11111",
)
"""Header of a reply: before the opaque, and after it."""
