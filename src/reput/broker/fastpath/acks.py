"""Fast path of acknowledgements of popped messages: one kernel call for all of one read.

Push consumers acknowledge message by message. The kernel turns the requests that follow each other
into rows, one for each checkpoint, and makes their replies. A row that is not valid falls back to
the processor, frame by frame, in its place.
"""

import ctypes

import numpy as np

from reput.broker.kernels import hot as kernels
from reput.broker.kernels.acks_args import ROW, AckCall, AckRow
from reput.broker.parts import Parts
from reput.broker.pop.checkpoints import Key
from reput.format.kernels.rows import word_count
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
        self._rows = np.zeros((_ROWS, word_count(AckRow)), np.int64)
        self._words = AckCall()
        self._words.buffer = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self._words.ack_rows = hot.address_of(self._rows)
        self._words.row_max = _ROWS
        self._words.replies = hot.address_of(self._replies)
        self._words.replies_room = _REPLIES_BYTES
        self._argument = hot.Address(self._words.address)

    def serve(self, channel: Channel, view: memoryview, position: int, end: int) -> int:
        """Serve consecutive acknowledgements from a position of the buffer.

        Returns:
            The position of the first other frame; ``position`` if there is no acknowledgement.
        """
        block = self._words
        block.position = position
        block.end = end
        count = kernels.acks(self._argument)
        sent = ready = 0  # ends of the replies that were sent, and that may be sent
        for row in self._rows[:count].tolist():
            row_end, replies_end = row[ROW.end], row[ROW.replies]
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
            channel.write(hot.bytes_at(self._words.replies + begin, end - begin))

    def _acknowledge(self, view: memoryview, row: list[int]) -> bool:
        """Acknowledge the messages of a row; return False if it is not valid: see ``pop_ack``."""
        parts = self._parts
        topic_at, group_at = row[ROW.topic], row[ROW.group]
        topic = str(view[topic_at : topic_at + row[ROW.topic_size]], "ascii")
        group = str(view[group_at : group_at + row[ROW.group_size]], "ascii")
        queue_id, first, bits = row[ROW.queue_id], row[ROW.first], row[ROW.bits]
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
        key = Key(topic, group, queue_id, row[ROW.start], row[ROW.pop_time])
        revive = parts.pops.revive
        if not revive.checkpoints.acknowledge(key, first, bits) and revive.is_unknown(key):
            return False
        count = row[ROW.count]
        parts.fast_counts.acks += count
        parts.deliveries.stats.acknowledged(topic, group, count, request_count=count)
        return True
