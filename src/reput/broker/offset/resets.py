"""Offsets that an operator has set and no member has heard of yet. In memory only.

What the operator says is in the table of offsets at once: members that come later begin there. A
member that has the queue already goes by its own memory: its next pull is told. Until then what it
commits does not count. Java: ``ConsumerOffsetManager.assignResetOffset``, 5.x.
"""

from reput import limits


class ResetOffsets:
    """Where groups are to go on, by topic, group and queue."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], dict[int, int]] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many queues wait to be pulled."""
        return self._count

    def check_room(self, new_count: int) -> None:
        """Refuse to reset more queues than may wait.

        Raises:
            LimitExceeded: There would be too many.
        """
        limits.RESET_OFFSETS.check(self._count + new_count)

    def assign(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Tell the next pull of a queue to go on somewhere."""
        queues = self._waiting.setdefault((topic, group), {})
        self._count += queue_id not in queues
        queues[queue_id] = queue_offset

    def take(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return where the group is to go on, once; None if nobody has said so."""
        queues = self._waiting.get((topic, group))
        if queues is None:
            return None
        found = queues.pop(queue_id, None)
        self._count -= found is not None
        if not queues:
            del self._waiting[topic, group]
        return found

    def is_waiting(self, topic: str, group: str, queue_id: int | None = None) -> bool:
        """Whether a group has not heard yet where to go on, in a queue or in any of a topic."""
        queues = self._waiting.get((topic, group), {})
        return bool(queues) if queue_id is None else queue_id in queues

    def delete(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Forget what is kept of a topic, or of a group."""
        for key in [key for key in self._waiting if topic == key[0] or group == key[1]]:
            self._count -= len(self._waiting.pop(key))
