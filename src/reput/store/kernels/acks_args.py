"""The words that the kernel ``acks`` shares with who calls it: one block of int64, and rows.

What a word holds is written here, what the kernel does with it in ``acks``. Positions are in the
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
"""In: where the first frame starts. Out: behind the last one that was taken."""
END = next(_words)
"""How many bytes stand there; the last frame may be cut there."""
ROWS = next(_words)
ROW_MAX = next(_words)
REPLIES = next(_words)
"""Address where the replies go, one behind the other."""
REPLIES_ROOM = next(_words)

FRAME_OPAQUE = next(_words)
"""From here on: what the kernel has read of a frame; nobody else's."""
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
"""Position of its name."""
ROW_TOPIC_SIZE = 1
ROW_GROUP = 2
ROW_GROUP_SIZE = 3
ROW_QUEUE_ID = 4
ROW_START = 5
"""Queue offset that the checkpoint starts at."""
ROW_POP_TIME = 6
ROW_FIRST = 7
"""A queue offset."""
ROW_BITS = 8
"""Bit i: the message ``i`` behind that is acknowledged."""
ROW_COUNT = 9
"""Acknowledgements; a message may be named twice."""
ROW_BEHIND = 10
"""Position behind the last frame."""
ROW_REPLIES = 11
"""Bytes of all replies up to the last one of these."""
ROW_WORDS = 12

# --- what is common ---------------------------------------------------------------------

CODE = int(RequestCode.ACK_MESSAGE)
FIELD_NAMES = ("consumerGroup", "topic", "queueId", "offset", "extraInfo")
"""Each is there once. Others are not looked at, as they mean nothing here."""
ORDERED_REVIVE_QUEUE = pop_codec.ORDERED_REVIVE_QUEUE
"""Acknowledgements of messages that were taken in order are Python's."""
BITS = 63
REPLY_BYTES_MAX = 160

REPLY_PIECES = send_reply.cut(
    command.encode(command.reply(Command(CODE, 11111)))[command.LENGTH.size + command.MARK.size :],
    b"11111",
)
"""Of the header of a reply: before the opaque, and behind it."""
