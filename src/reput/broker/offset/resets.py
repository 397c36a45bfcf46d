"""Consumer offsets that an operator has set and no member has received yet. Only in memory.

The new offset is in the table of offsets at once: members that join later start there. A member
that already has the queue uses its own position: its next pull gets the new offset. Until then its
commits are ignored. Pops use the table of offsets: a group's next pop ends the wait. Java:
``ConsumerOffsetManager.assignResetOffset``, 5.x.
"""

from reput.broker import limits


class ResetOffsets:
    """Pending offsets by topic, group and queue."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], dict[int, int]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of queues with a pending offset."""
        return self._count

    def check_room(self, new_count: int) -> None:
        """Refuse to reset more queues than the limit.

        Raises:
            LimitExceeded: There would be too many pending resets.
        """
        limits.RESET_OFFSETS.check(self._count + new_count)

    def assign(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Set the offset for the next pull of a queue."""
        queues = self._waiting.setdefault((topic, group), {})
        self._count += queue_id not in queues
        queues[queue_id] = queue_offset

    def take(self, topic: str, group: str, queue_id: int) -> int | None:
        """Remove and return the pending offset of a queue; None if there is none."""
        queues = self._waiting.get((topic, group))
        if queues is None:
            return None
        queue_offset = queues.pop(queue_id, None)
        self._count -= queue_offset is not None
        if not queues:
            del self._waiting[topic, group]
        return queue_offset

    def discard(self, topic: str, group: str, queue_id: int) -> None:
        """Remove the pending offset of a queue; a negative queue id means all queues."""
        queues = self._waiting.get((topic, group), {})
        for pending_id in list(queues) if queue_id < 0 else [queue_id]:
            self.take(topic, group, pending_id)

    def is_waiting(self, topic: str, group: str, queue_id: int | None = None) -> bool:
        """Return True if a group has a pending offset in a queue, or in any queue of a topic."""
        queues = self._waiting.get((topic, group), {})
        return bool(queues) if queue_id is None else queue_id in queues

    def delete(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Delete the pending offsets of a topic, or of a group."""
        for key in [key for key in self._waiting if topic == key[0] or group == key[1]]:
            self._count -= len(self._waiting.pop(key))
