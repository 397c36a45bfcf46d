"""Arguments and results of the kernel ``acks``: one block of int64 words, and rows.

The words are described here, what the kernel does with them in ``acks``. Positions are those of the
receive buffer.
"""

from collections.abc import Iterator

from reput.format import command, pop_codec, send_reply
from reput.format.codes import RequestCode
from reput.format.command import Command

_words: Iterator[int] = iter(range(1 << 5))

BUFFER = next(_words)
"""Address of the receive buffer."""
POSITION = next(_words)
"""Position of the first frame; after the call, end of the last frame that was read."""
END = next(_words)
"""End of the bytes in the buffer; the last frame may be incomplete."""
ROWS = next(_words)
ROW_MAX = next(_words)
REPLIES = next(_words)
"""Address of the room for the replies, which are concatenated."""
REPLIES_ROOM = next(_words)

FRAME_OPAQUE = next(_words)
"""Opaque of a frame. The words from here on are for the kernel alone."""
FRAME_GROUP, FRAME_GROUP_SIZE = next(_words), next(_words)
FRAME_TOPIC, FRAME_TOPIC_SIZE = next(_words), next(_words)
FRAME_QUEUE_ID, FRAME_QUEUE_ID_SIZE = next(_words), next(_words)
FRAME_OFFSET, FRAME_OFFSET_SIZE = next(_words), next(_words)
FRAME_INFO, FRAME_INFO_SIZE = next(_words), next(_words)
"""Address and size of the fields' values, in the order of ``FIELD_NAMES``; then numbers."""
FRAME_START = next(_words)
FRAME_POP_TIME = next(_words)
WORDS = next(_words)

# --- a row: acknowledgements that follow each other, of one checkpoint ------------------

ROW_TOPIC = 0
"""Position of the topic's name."""
ROW_TOPIC_SIZE = 1
ROW_GROUP = 2
ROW_GROUP_SIZE = 3
ROW_QUEUE_ID = 4
ROW_START = 5
"""First queue offset of the checkpoint."""
ROW_POP_TIME = 6
ROW_FIRST = 7
"""Queue offset of bit 0."""
ROW_BITS = 8
"""Bit i: the message with queue offset ROW_FIRST + i is acknowledged."""
ROW_COUNT = 9
"""Number of acknowledgements; a message may be acknowledged twice."""
ROW_END = 10
"""End of the last frame of the row, a position."""
ROW_REPLIES = 11
"""Size of all replies up to the last one of the row, bytes."""
ROW_WORDS = 12

# --- requests of the fast path ---------------------------------------------------------

CODE = int(RequestCode.ACK_MESSAGE)
FIELD_NAMES = ("consumerGroup", "topic", "queueId", "offset", "extraInfo")
"""Required fields, each once. Other fields are ignored."""
ORDERED_REVIVE_QUEUE = pop_codec.ORDERED_REVIVE_QUEUE
"""Revive queue of messages that were popped in order. Their acknowledgements fall back."""
BITS = 63
REPLY_BYTES_MAX = 160

REPLY_PIECES = send_reply.cut(
    command.encode(command.reply(Command(CODE, 11111)))[command.LENGTH.size + command.MARK.size :],
    b"11111",
)
"""Header of a reply: before the opaque, and after it."""
