"""Consumer offsets of a group as known to one member, and the changes that its store lacks.

The file of a broadcasting member is that of Java's ``LocalFileOffsetStore``: one JSON object, keyed
by queue.
"""

from collections.abc import Mapping

from reput.format import bodies
from reput.format.bodies import MessageQueue, QueueOffsets, ResetOffsets


class OffsetTable:
    """Queue to consumer offset."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._saved: dict[MessageQueue, int] = {}  # last offsets sent to the store

    def get(self, queue: MessageQueue) -> int | None:
        """Return the consumer offset of a queue, None if unknown."""
        return self._offsets.get(queue)

    def advance(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Advance a consumer offset; never backwards."""
        if consumer_offset > self._offsets.get(queue, -1):
            self._offsets[queue] = consumer_offset

    def set(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Set a consumer offset, also backwards."""
        self._offsets[queue] = consumer_offset

    def remove(self, queue: MessageQueue) -> None:
        """Forget a queue, which another member may advance now."""
        self._offsets.pop(queue, None)
        self._saved.pop(queue, None)

    def unsaved(self) -> dict[MessageQueue, int]:
        """Return the offsets that the store lacks."""
        saved = self._saved
        return {
            queue: consumer_offset
            for queue, consumer_offset in self._offsets.items()
            if saved.get(queue) != consumer_offset
        }

    def note_saved(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Record offsets as sent to the store."""
        if queue in self._offsets:
            self._saved[queue] = consumer_offset

    def doubt(self, queue: MessageQueue) -> None:
        """Mark a queue as unsaved: a killed broker may have lost its offset."""
        self._saved.pop(queue, None)

    def of_topic(self, topic: str) -> dict[MessageQueue, int]:
        """Return the known queues of a topic."""
        return {
            queue: consumer_offset
            for queue, consumer_offset in self._offsets.items()
            if queue.topic == topic
        }


def encode_file(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the content of a file of consumer offsets."""
    return bodies.encode(ResetOffsets(offset_table=QueueOffsets(offsets)))


def decode_file(data: bytes) -> dict[MessageQueue, int]:
    """Return the consumer offsets in a file, ours or Java's. Raises ``InvalidBody``."""
    return dict(bodies.decode(ResetOffsets, data).offset_table)
