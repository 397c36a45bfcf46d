"""Acknowledgements of popped messages that stand in one read, taken together.

Push consumers acknowledge message by message: for each there would be a command, a header, a
handle and a reply. A kernel makes rows of those that follow each other, one a checkpoint, and their
replies. A row that is not as it should be goes through the processor, frame by frame, in
its place; both ways have the same effects and the same replies.
"""

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from reput.broker.pop_checkpoints import Key
from reput.broker.pop_requests import HEADER_AT
from reput.format.kernels import acks_words as words, hot
from reput.remoting.channel import Channel

if TYPE_CHECKING:
    from reput.broker.server import Broker

_ROWS = 256
_REPLIES_BYTES = 64 << 10
_BEGINNING = b'{"code":%d,' % words.CODE
"""Of the header, as clients write it: others need not be tried."""


class PopAcks:
    """Takes acknowledgements.

    Args:
        broker: Whose messages they are of.
        buffer: What connections are read into; it stays where it is.
    """

    def __init__(self, broker: "Broker", buffer: bytearray) -> None:
        self.common_count = 0
        """Acknowledgements that went through no processor."""
        self._broker = broker
        self._buffer = buffer
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

    def take(self, channel: Channel, view: memoryview, at: int, end: int) -> int:
        """Take the acknowledgements that stand at ``at`` in the buffer, as far as they are common.

        Returns:
            Where the first other frame begins: ``at`` if there are none.
        """
        if not self._buffer.startswith(_BEGINNING, at + HEADER_AT):
            return at
        block = self._words
        block[words.POSITION] = at
        block[words.END] = end
        count = hot.acks(self._argument)
        replied = due = 0  # bytes of replies: those that are done with, those that may be sent
        for row in self._rows[:count].tolist():
            behind, replies = row[words.ROW_BEHIND], row[words.ROW_REPLIES]
            if self._is_taken(view, row):
                self.common_count += row[words.ROW_COUNT]
                at, due = behind, replies
                continue
            self._reply(channel, replied, due)
            at = channel.take_frames(view, at, behind)
            if at < behind:  # the other side takes no more now, or is gone
                return at
            replied = due = replies
        self._reply(channel, replied, due)
        return at

    def _reply(self, channel: Channel, begin: int, end: int) -> None:
        if end > begin:
            channel.write(hot.bytes_at(self._words[words.REPLIES] + begin, end - begin))

    def _is_taken(self, view: memoryview, row: list[int]) -> bool:
        """Acknowledge the messages of a row, if they are there to be; see ``pop_ack``."""
        broker = self._broker
        topic_at, group_at = row[words.ROW_TOPIC], row[words.ROW_GROUP]
        topic = str(view[topic_at : topic_at + row[words.ROW_TOPIC_SIZE]], "ascii")
        group = str(view[group_at : group_at + row[words.ROW_GROUP_SIZE]], "ascii")
        queue_id, first, bits = row[words.ROW_QUEUE_ID], row[words.ROW_FIRST], row[words.ROW_BITS]
        known = broker.topics.get(topic)
        if known is None or queue_id >= known.read_queue_count or not broker.is_master:
            return False
        least = first + (bits & -bits).bit_length() - 1
        most = first + bits.bit_length() - 1
        store = broker.store
        if least < store.min_offset(topic, queue_id) or most > store.max_offset(topic, queue_id):
            return False
        key = Key(topic, group, queue_id, row[words.ROW_START], row[words.ROW_POP_TIME])
        broker.pops.revive.checkpoints.acknowledge(key, first, bits)
        broker.stats.acknowledged(topic, group, row[words.ROW_COUNT])
        return True
