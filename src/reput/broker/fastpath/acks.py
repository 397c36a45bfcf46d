"""Fast path of acknowledgements of popped messages: one kernel call for all of one read.

Push consumers acknowledge message by message. The kernel turns the requests that follow each other
into rows, one for each checkpoint, and makes their replies. A row that is not valid falls back to
the processor, frame by frame, in its place.
"""

import ctypes

import numpy as np

from reput.broker.kernels import acks_args as words, hot as kernels
from reput.broker.parts import Parts
from reput.broker.pop.checkpoints import Key
from reput.remoting.channel import Channel
from reput.store.kernels import hot

_ROWS = 256
_REPLIES_BYTES = 64 << 10


class FastAcks:
    """Serves acknowledgements.

    Args:
        parts: The parts of the broker.
        buffer: The buffer that connections are read into; it must not move.
    """

    def __init__(self, parts: Parts, buffer: bytearray) -> None:
        self._parts = parts
        self._replies = np.empty(_REPLIES_BYTES, np.uint8)
        self._rows = np.zeros((_ROWS, words.ROW_WORDS), np.int64)
        self._block = np.zeros(words.WORDS, np.int64)
        self._words = self._block.data
        self._words[words.BUFFER] = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self._words[words.ROWS] = hot.address_of(self._rows)
        self._words[words.ROW_MAX] = _ROWS
        self._words[words.REPLIES] = hot.address_of(self._replies)
        self._words[words.REPLIES_ROOM] = _REPLIES_BYTES
        self._argument = hot.Address(hot.address_of(self._block))

    def serve(self, channel: Channel, view: memoryview, position: int, end: int) -> int:
        """Serve consecutive acknowledgements from a position of the buffer.

        Returns:
            The position of the first other frame; ``position`` if there is no acknowledgement.
        """
        block = self._words
        block[words.POSITION] = position
        block[words.END] = end
        count = kernels.acks(self._argument)
        sent = ready = 0  # ends of the replies that were sent, and that may be sent
        for row in self._rows[:count].tolist():
            row_end, replies_end = row[words.ROW_END], row[words.ROW_REPLIES]
            if self._acknowledge(view, row):
                position, ready = row_end, replies_end
                continue
            self._reply(channel, sent, ready)
            position = channel.take_frames(view, position, row_end)
            if position < row_end:  # the connection takes no more replies now, or is closed
                return position
            sent = ready = replies_end
        self._reply(channel, sent, ready)
        return position

    def _reply(self, channel: Channel, begin: int, end: int) -> None:
        if end > begin:
            channel.write(hot.bytes_at(self._words[words.REPLIES] + begin, end - begin))

    def _acknowledge(self, view: memoryview, row: list[int]) -> bool:
        """Acknowledge the messages of a row; return False if it is not valid: see ``pop_ack``."""
        parts = self._parts
        topic_at, group_at = row[words.ROW_TOPIC], row[words.ROW_GROUP]
        topic = str(view[topic_at : topic_at + row[words.ROW_TOPIC_SIZE]], "ascii")
        group = str(view[group_at : group_at + row[words.ROW_GROUP_SIZE]], "ascii")
        queue_id, first, bits = row[words.ROW_QUEUE_ID], row[words.ROW_FIRST], row[words.ROW_BITS]
        known = parts.topics.get(topic)
        is_queue = known is not None and queue_id < known.read_queue_count
        if not is_queue or not parts.identity.is_master:
            return False
        if parts.subscription_groups.get(group) is None:
            return False
        least = first + (bits & -bits).bit_length() - 1
        most = first + bits.bit_length() - 1
        store = parts.store
        if least < store.min_offset(topic, queue_id) or most > store.max_offset(topic, queue_id):
            return False
        key = Key(topic, group, queue_id, row[words.ROW_START], row[words.ROW_POP_TIME])
        revive = parts.pops.revive
        if not revive.checkpoints.acknowledge(key, first, bits) and revive.is_unknown(key):
            return False
        count = row[words.ROW_COUNT]
        parts.fast_counts.acks += count
        parts.deliveries.stats.acknowledged(topic, group, count, request_count=count)
        return True
