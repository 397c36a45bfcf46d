"""Arguments and results of the kernel ``pop_batch``: one block of int64 words.

The control block is one of the arguments. The words are described here, what the kernel does with
them in ``pop``.
"""

from collections.abc import Iterator

from reput.format import message as record, pop_codec
from reput.format.pop_codec import CheckpointRecord
from reput.format.send_reply import cut

_words: Iterator[int] = iter(range(1 << 6))

# --- the caller ---------------------------------------------------------------

BLOCK = next(_words)
"""Address of the control block; READABLE in it must be current."""
HEAD = next(_words)
"""Address of the fields of a checkpoint's record up to its body, ``HEAD_BYTES``; fields that differ
from record to record are 0.
"""
TOPIC = next(_words)
"""Address of the topic of checkpoints, after a byte with its length."""
TOPIC_SIZE = next(_words)
"""Size of the topic and its length byte."""
PROPERTIES = next(_words)
"""Address of the properties of checkpoints up to their last value, the time of the pop."""
PROPERTIES_SIZE = next(_words)
BUFFER = next(_words)
"""Address of the room for the records that are popped, which are concatenated."""
BUFFER_ROOM = next(_words)
SCRATCH = next(_words)
"""Address of the room for the record of the checkpoint, ``SCRATCH_BYTES``."""
OFFSETS = next(_words)
"""Address of the room for their queue offsets, a word each."""
INFO = next(_words)
"""Address of the room for their ``pop_codec.message_info``, ``INFO_BYTES``."""

# --- a call: the queue, and the wanted messages ------------------------------------------

QUEUE_ROW = next(_words)
"""Address of the row of the queue."""
QUEUE_OFFSET = next(_words)
"""Queue offset of the first message that may be popped."""
COUNT_MAX = next(_words)
CODES = next(_words)
"""Address of the wanted tags codes, a word each, ascending."""
CODE_COUNT = next(_words)
"""Number of wanted tags codes; 0: all messages are wanted."""

# --- a call: what the checkpoint says ---------------------------------------------------

FIRST = next(_words)
"""Address of the checkpoint's JSON up to the distances; see ``pop_codec.checkpoint_ends``."""
FIRST_SIZE = next(_words)
LAST = next(_words)
"""Address of its JSON after the start offset."""
LAST_SIZE = next(_words)
QUEUE_ID = next(_words)
POP_MS = next(_words)
INVISIBLE_MS = next(_words)
REVIVE_QUEUE_ID = next(_words)
"""Queue id of the checkpoint."""
STORE_MS = next(_words)
"""Store time of the checkpoint, ms."""

# --- results ------------------------------------------------------------------

RESULT_BYTES = next(_words)
"""Size of the records, bytes."""
RESULT_NEXT_OFFSET = next(_words)
"""Queue offset after the last message that was read."""
RESULT_INFO_SIZE = next(_words)
RESULT_PHYSICAL_OFFSET = next(_words)
"""Physical offset of the checkpoint."""
RESULT_REVIVE_OFFSET = next(_words)
"""Queue offset of the checkpoint."""
RESULT_SIZE = next(_words)
"""Size of the checkpoint's record, bytes."""

WORDS = next(_words)

# --- sizes ----------------------------------------------------------------------------

HEAD_BYTES = record.FIXED_BYTES_V1 - record.TOPIC_LENGTH_V1.size - record.PROPERTIES_LENGTH.size
MESSAGES_MAX = pop_codec.MESSAGES_MAX
BODY_BYTES_MAX = 1024
"""Maximum size of a checkpoint's body, bytes. Longer ones fall back."""
_NUMBER_BYTES = 20
_NUMBERS_BYTES = (MESSAGES_MAX + 8) * _NUMBER_BYTES
PROPERTIES_BYTES_MAX = 128
SCRATCH_BYTES = HEAD_BYTES + BODY_BYTES_MAX + _NUMBERS_BYTES + (1 << 8) + 2 * PROPERTIES_BYTES_MAX
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
"""JSON of a checkpoint between the distances and its other numbers, and between those."""
INFO_KIND = pop_codec.NORMAL.encode() + b" "
"""Beginning of ``message_info``: the kind of topic. Retry topics fall back."""
