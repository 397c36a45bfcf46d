"""Progress that may be told once what it rests on is on disk.

Who puts messages again saves how far it is. Were that saved before the copies are durable, a crash
would lose them; saved late, a crash makes some of them twice.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class DurableProgress(Generic[Key]):
    """Positions, each to be saved when the log is on disk up to a physical offset."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Key, int]] = deque()

    def note(self, key: Key, position: int, physical_offset: int) -> None:
        """Take a position of somebody's work, whose copies end at a physical offset.

        Physical offsets do not go down from one call to the next.
        """
        self._waiting.append((physical_offset, key, position))

    def durable(self, flushed_offset: int) -> Iterator[tuple[Key, int]]:
        """Yield what may be saved now, oldest first, and forget it."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= flushed_offset:
            _, key, position = waiting.popleft()
            yield key, position
