"""Progress that may be published once the messages that it depends on are durable.

A loop that copies messages saves its progress. If that were saved before the copies are durable, a
crash would lose them; saved late, a crash duplicates some of them.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class DurableProgress(Generic[Key]):
    """Positions to be published when the log is durable up to a physical offset."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Key, int]] = deque()

    def add(self, key: Key, position: int, physical_offset: int) -> None:
        """Add a position that depends on copies up to a physical offset.

        Physical offsets do not decrease from one call to the next.
        """
        self._waiting.append((physical_offset, key, position))

    def durable(self, flushed_offset: int) -> Iterator[tuple[Key, int]]:
        """Remove and yield the positions that are durable, oldest first."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= flushed_offset:
            _, key, position = waiting.popleft()
            yield key, position
