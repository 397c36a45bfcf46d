"""The next queue offset that each group pops, per queue.

The consumer offset is published once the checkpoints of all messages before it are durable: a crash
that loses a checkpoint then also loses the offset, and the messages are popped again. Until then
the position is only in memory. A consumer offset that is set otherwise, by a reset or by a client's
commit, overrides it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from reput.broker.durable import DurableProgress
from reput.store.tables.offsets import ConsumerOffsetTable


@dataclass(slots=True, eq=False)
class PopPosition:
    """The position of a group in a queue. Changed only through ``PopOffsets``."""

    topic: str
    group: str
    queue_id: int
    next_offset: int
    published: int
    """The consumer offset that was last published to the table."""


class PopOffsets:
    """The next queue offsets that groups pop.

    Args:
        table: Returns the table of consumer offsets.
    """

    def __init__(self, table: Callable[[], ConsumerOffsetTable]) -> None:
        self._table = table
        self._positions: dict[tuple[str, str, int], PopPosition] = {}
        self._unsaved: DurableProgress[PopPosition] = DurableProgress()

    def find(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the next queue offset that a group pops; None if it has popped nothing."""
        position = self.position(topic, group, queue_id)
        return None if position is None else position.next_offset

    def position(self, topic: str, group: str, queue_id: int) -> PopPosition | None:
        """Return the position of a group in a queue; None if it has popped nothing there."""
        published = self._table().get(topic, group, queue_id)
        key = topic, group, queue_id
        position = self._positions.get(key)
        if position is not None and position.published == published:
            return position
        if published is None:
            self._positions.pop(key, None)
            return None
        position = self._positions[key] = PopPosition(topic, group, queue_id, published, published)
        return position

    def set(self, topic: str, group: str, queue_id: int, queue_offset: int) -> PopPosition:
        """Set the position of a group and its consumer offset at once; return the position."""
        self._table().put(topic, group, queue_id, queue_offset)
        position = PopPosition(topic, group, queue_id, queue_offset, queue_offset)
        self._positions[topic, group, queue_id] = position
        return position

    def reset(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Set the consumer offset of a group; its next pop begins there.

        Also if this is the published offset already, from which pops have moved on.
        """
        self._table().put(topic, group, queue_id, queue_offset)
        self._positions.pop((topic, group, queue_id), None)

    def advance(self, position: PopPosition, queue_offset: int, physical_offset: int) -> None:
        """Move a group's position past the messages that it has popped.

        Args:
            position: The group's current position in the queue.
            queue_offset: The next queue offset that it pops.
            physical_offset: End of the checkpoint; once the log is durable up to here, the consumer
                offset is published.
        """
        position.next_offset = queue_offset
        self._unsaved.add(position, queue_offset, physical_offset)

    def publish(self, flushed_offset: int) -> None:
        """Publish the consumer offsets whose checkpoints are durable."""
        table = self._table()
        for position, queue_offset in self._unsaved.durable(flushed_offset):
            key = position.topic, position.group, position.queue_id
            is_unchanged = table.get(*key) == position.published
            if self._positions.get(key) is position and is_unchanged:
                table.put(*key, queue_offset)
                position.published = queue_offset
