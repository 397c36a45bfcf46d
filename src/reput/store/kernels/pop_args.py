"""The words that the kernel ``take`` shares with who calls it: one block of int64.

The control block is named in it. What a word holds is written here, what the kernel does with it in
``take``.
"""

from collections.abc import Iterator

from reput.format import message as record, pop_codec
from reput.format.pop_codec import CheckpointRecord
from reput.format.send_reply import cut

_words: Iterator[int] = iter(range(1 << 6))

# --- who calls ------------------------------------------------------------------

BLOCK = next(_words)
"""Address of the control block; READABLE in it is as the log stands."""
HEAD = next(_words)
"""Address of the fields of a checkpoint's record up to its body, ``HEAD_BYTES``; those that differ
from record to record are 0."""
TOPIC = next(_words)
"""Address of the topic of checkpoints, behind a byte with its length."""
TOPIC_SIZE = next(_words)
"""With that byte."""
MARKS = next(_words)
"""Address of their properties, but for the last value, which is the time of the pop."""
MARKS_SIZE = next(_words)
BUFFER = next(_words)
"""Where the records go that are taken, one behind the other."""
BUFFER_ROOM = next(_words)
SCRATCH = next(_words)
"""Where the record of the checkpoint is made: ``SCRATCH_BYTES``."""
OFFSETS = next(_words)
"""Address of a word a message: their queue offsets."""
INFO = next(_words)
"""Where ``pop_codec.message_info`` of them goes: ``INFO_BYTES``."""

# --- a call: what is taken ------------------------------------------------------------

QUEUE_ROW = next(_words)
"""Address of the row of the queue."""
QUEUE_OFFSET = next(_words)
"""Of the first message that may be taken."""
COUNT_MAX = next(_words)
CODES = next(_words)
"""Address of the wanted tags codes, a word each, ascending."""
CODE_COUNT = next(_words)
"""0: all are wanted."""

# --- a call: what the checkpoint says ---------------------------------------------------

FIRST = next(_words)
"""Address of its JSON up to the distances; see ``pop_codec.checkpoint_ends``."""
FIRST_SIZE = next(_words)
LAST = next(_words)
"""Address of its JSON behind the start offset."""
LAST_SIZE = next(_words)
QUEUE_ID = next(_words)
POP_MS = next(_words)
INVISIBLE_MS = next(_words)
REVIVE_QUEUE_ID = next(_words)
"""Where it goes."""
STORE_MS = next(_words)
"""When."""

# --- what it tells ------------------------------------------------------------------

RESULT_BYTES = next(_words)
"""Of the records."""
RESULT_NEXT_OFFSET = next(_words)
"""Queue offset behind the last message that was looked at."""
RESULT_INFO_SIZE = next(_words)
RESULT_PHYSICAL_OFFSET = next(_words)
"""Of the checkpoint."""
RESULT_REVIVE_OFFSET = next(_words)
"""Its queue offset."""
RESULT_SIZE = next(_words)
"""Bytes of its record."""

WORDS = next(_words)

# --- sizes ----------------------------------------------------------------------------

HEAD_BYTES = record.FIXED_BYTES_V1 - record.TOPIC_LENGTH_V1.size - record.PROPERTIES_LENGTH.size
MESSAGES_MAX = pop_codec.MESSAGES_MAX
BODY_BYTES_MAX = 1024
"""A longer body of a checkpoint is Python's."""
_NUMBER_BYTES = 20
_NUMBERS_BYTES = (MESSAGES_MAX + 8) * _NUMBER_BYTES
MARKS_BYTES_MAX = 128
SCRATCH_BYTES = HEAD_BYTES + BODY_BYTES_MAX + _NUMBERS_BYTES + (1 << 8) + 2 * MARKS_BYTES_MAX
INFO_BYTES = _NUMBERS_BYTES

CHECKPOINT_PIECES = cut(
    pop_codec.encode(
        CheckpointRecord(
            broker_name="", group="", diffs=[11111], invisible_ms=22222, message_count=33333,
            pop_ms=44444, queue_id=55555, start_offset=66666, topic="",
        )
    ),
    *(b"11111", b"22222", b"33333", b"44444", b"55555", b"66666"),
)[1:-1]  # fmt: skip
"""The JSON of a checkpoint between the distances and its other numbers, and between those."""
INFO_KIND = pop_codec.NORMAL.encode() + b" "
"""What ``message_info`` begins with: retry topics are Python's."""
