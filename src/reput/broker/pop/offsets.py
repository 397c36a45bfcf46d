"""Where each group pops next in each queue.

The consumer offset is told once the checkpoints of what lies before it are on disk: a crash that
takes a checkpoint takes the offset back with it, and the messages are popped again. Until then the
place is known here. Whoever sets the consumer offset otherwise, a reset or a client that commits
one, moves the place with it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from reput.broker.durable import DurableProgress
from reput.store.table_files import ConsumerOffsetTable


@dataclass(slots=True, eq=False)
class Place:
    """Where a group pops next in a queue. Changed through ``PopOffsets`` only."""

    topic: str
    group: str
    queue_id: int
    next_offset: int
    told: int
    """What the table was told last."""


class PopOffsets:
    """Queue offsets that groups pop next.

    Args:
        table: Returns the table of consumer offsets.
    """

    def __init__(self, table: Callable[[], ConsumerOffsetTable]) -> None:
        self._table = table
        self._places: dict[tuple[str, str, int], Place] = {}
        self._unsaved: DurableProgress[Place] = DurableProgress()

    def find(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the queue offset that a group pops next; None if it has popped none."""
        place = self.place(topic, group, queue_id)
        return None if place is None else place.next_offset

    def place(self, topic: str, group: str, queue_id: int) -> Place | None:
        """Return the place of a group in a queue; None if it has popped nothing of it."""
        known = self._table().get(topic, group, queue_id)
        key = topic, group, queue_id
        place = self._places.get(key)
        if place is not None and place.told == known:
            return place
        if known is None:
            self._places.pop(key, None)
            return None
        place = self._places[key] = Place(topic, group, queue_id, known, known)
        return place

    def set(self, topic: str, group: str, queue_id: int, queue_offset: int) -> Place:
        """Let a group go on somewhere else, at once; return its place."""
        self._table().put(topic, group, queue_id, queue_offset)
        place = Place(topic, group, queue_id, queue_offset, queue_offset)
        self._places[topic, group, queue_id] = place
        return place

    def advance(self, place: Place, queue_offset: int, physical_offset: int) -> None:
        """Let a group go on behind what it has popped.

        Args:
            place: Of the group in the queue, as it is now.
            queue_offset: What it pops next.
            physical_offset: Told once the log is on disk up to here: the end of the checkpoint.
        """
        place.next_offset = queue_offset
        self._unsaved.note(place, queue_offset, physical_offset)

    def tell(self, flushed_offset: int) -> None:
        """Tell the table what rests on checkpoints that are on disk."""
        table = self._table()
        for place, queue_offset in self._unsaved.durable(flushed_offset):
            key = place.topic, place.group, place.queue_id
            is_known = table.get(*key) == place.told
            if self._places.get(key) is place and is_known:
                table.put(*key, queue_offset)
                place.told = queue_offset
