"""The call of the kernel ``pop_batch``: arguments and results.

The fields are described here, what the kernel does with them in ``pop``.
"""

from reput.format import message as record, pop_codec
from reput.format.kernels.rows import Row, row, word
from reput.format.pop_codec import CheckpointRecord
from reput.format.send_reply import cut
from reput.store.kernels.control_block import AppendPlace, ControlBlock, QueueRow


class PopCall(Row):
    """A pop of messages of a queue."""

    # The caller.
    block = word(
        "address", "The control block; ``readable`` in it must be current", to=ControlBlock
    )
    head = word(
        "address",
        "Fields of a checkpoint's record up to its body, HEAD_BYTES; the ones that differ between "
        "records are 0",
    )
    topic = word("address", "The topic of checkpoints, after a byte with its length")
    topic_size = word("bytes", "Size of the topic and its length byte")
    properties = word(
        "address", "Properties of checkpoints up to their last value, the time of the pop"
    )
    properties_size = word("bytes", "Size of these properties")
    buffer = word("address", "Room for the records that are popped, which are concatenated")
    buffer_room = word("bytes", "Size of that room")
    scratch = word("address", "Room for the record of the checkpoint, SCRATCH_BYTES")
    offsets = word("address", "Room for the queue offsets of the records", to=int)
    info = word("address", "Room for their ``pop_codec.message_info``, INFO_BYTES")

    # The queue, and the wanted messages.
    queue_row = word("address", "Row of the queue", to=QueueRow)
    queue_offset = word("queue offset", "The first message that may be popped")
    count_max = word("count", "Limit of the messages")
    codes = word("address", "The wanted tags codes, a word each, ascending")
    code_count = word("count", "Wanted tags codes; 0: all messages are wanted")

    # What the checkpoint says.
    first = word(
        "address", "Its JSON up to the distances of the messages; see ``pop_codec.checkpoint_ends``"
    )
    first_size = word("bytes", "Size of that text")
    last = word("address", "Its JSON after the start offset")
    last_size = word("bytes", "Size of that text")
    queue_id = word("number", "Queue id of the messages")
    pop_ms = word("ms", "Time of the pop")
    invisible_ms = word("ms", "How long the messages are invisible to others")
    revive_queue_id = word("number", "Queue id of the checkpoint")
    store_ms = word("ms", "Store time of the checkpoint")

    # Results.
    result_size = word("bytes", "Size of the records")
    result_next_offset = word("queue offset", "After the last message that was read")
    result_info_size = word("bytes", "Size of the text in ``info``")
    checkpoint = row(AppendPlace, "Where the checkpoint is")
    checkpoint_size = word("bytes", "Size of the checkpoint's record")


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
