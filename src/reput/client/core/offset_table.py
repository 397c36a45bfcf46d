"""How far a group has come in each queue, as one member knows it, and what a store must still hear.

The file of a broadcasting member is Java's ``LocalFileOffsetStore``: one JSON object, keyed by
queue.
"""

from collections.abc import Mapping

from reput.format import bodies
from reput.format.bodies import MessageQueue, QueueOffsets, ResetOffsets


class OffsetTable:
    """Queue to consumer offset."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._saved: dict[MessageQueue, int] = {}  # what a store was told last

    def get(self, queue: MessageQueue) -> int | None:
        """Return how far the group has come, ``None`` if that is not known here."""
        return self._offsets.get(queue)

    def advance(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Note how far the group has come; never back."""
        if consumer_offset > self._offsets.get(queue, -1):
            self._offsets[queue] = consumer_offset

    def set(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Note where the group shall be, also back."""
        self._offsets[queue] = consumer_offset

    def remove(self, queue: MessageQueue) -> None:
        """Forget a queue: another member may move it from now on."""
        self._offsets.pop(queue, None)
        self._saved.pop(queue, None)

    def unsaved(self) -> dict[MessageQueue, int]:
        """Return what a store has not heard yet."""
        saved = self._saved
        return {queue: one for queue, one in self._offsets.items() if saved.get(queue) != one}

    def note_saved(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Take down what a store was told."""
        if queue in self._offsets:
            self._saved[queue] = consumer_offset

    def doubt(self, queue: MessageQueue) -> None:
        """Take nothing of a queue for saved: a broker that was killed may have forgotten it."""
        self._saved.pop(queue, None)

    def of_topic(self, topic: str) -> dict[MessageQueue, int]:
        """Return the queues of a topic that are known here."""
        return {queue: one for queue, one in self._offsets.items() if queue.topic == topic}


def encode_file(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the bytes of a file of consumer offsets."""
    return bodies.encode(ResetOffsets(offset_table=QueueOffsets(offsets)))


def decode_file(data: bytes) -> dict[MessageQueue, int]:
    """Return the consumer offsets in a file, ours or Java's. Raises ``InvalidBody``."""
    return dict(bodies.decode(ResetOffsets, data).offset_table)
