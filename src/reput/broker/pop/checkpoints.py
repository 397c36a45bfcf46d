"""Checkpoints in memory: messages that groups have popped and not acknowledged yet.

A checkpoint has a record in the revive topic (``revive``), from which a restart restores it. It is
finished when each of its messages was acknowledged or copied to the group's retry topic. The queues
of the revive topic are processed in order: the progress of a queue ends before its first unfinished
checkpoint.
"""

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reput.format.pop_codec import AckRecord, CheckpointRecord

REREAD_RECORDS_MAX = 20_000
"""Records of a revive queue that a start may have to read again because of one open checkpoint,
about a second's work. Beyond that the checkpoint is rewritten at the end of the queue."""
_MOVED_AT_ONCE = 64


class Key(NamedTuple):
    """Identity of a checkpoint."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_ms: int


@dataclass(slots=True, eq=False)
class Checkpoint:
    """Messages of a queue that a client holds until they are acknowledged or due."""

    key: Key
    queue_offsets: Sequence[int]
    """Queue offsets of the messages; a range if they are consecutive, as most are."""
    due_ms: int
    """Time at which unacknowledged messages are delivered to the group again, in ms."""
    revive_queue_id: int
    revive_offset: int
    """Queue offset of its record in the revive topic."""
    is_suspended: bool = False
    """True if the next delivery does not count as an attempt."""
    was_read: bool = False
    """True if its record was read from the log: another broker, or an earlier run, has put it."""
    settled: int = 0
    """Bit i is set when message i was acknowledged or copied to the retry topic."""
    saved: int = 0
    """Bit i is set when the revive topic has a record that message i is settled."""
    all_bits: int = field(init=False)
    """Mask with a bit for each message."""

    def __post_init__(self) -> None:
        self.all_bits = (1 << len(self.queue_offsets)) - 1

    @property
    def is_over(self) -> bool:
        """True when every message is settled."""
        return self.settled == self.all_bits

    def bits_of(self, first_offset: int, bits: int) -> int:
        """Translate an acknowledged range of queue offsets into bits of this checkpoint.

        Args:
            first_offset: Queue offset of bit 0.
            bits: Bit i is set for the message at ``first_offset + i``; others than this
                checkpoint's are ignored.
        """
        offsets = self.queue_offsets
        if isinstance(offsets, range):
            shift = first_offset - offsets.start
            if shift >= len(offsets):
                return 0
            return (bits << shift if shift >= 0 else bits >> -shift) & self.all_bits
        return sum(
            1 << number
            for number, offset in enumerate(offsets)
            if offset >= first_offset and bits >> (offset - first_offset) & 1
        )

    @property
    def left(self) -> list[int]:
        """Numbers of the messages that are neither acknowledged nor copied to the retry topic."""
        return [
            number for number in range(len(self.queue_offsets)) if not self.settled >> number & 1
        ]

    @property
    def unsaved(self) -> list[int]:
        """Queue offsets of settled messages for which the revive topic has no record yet."""
        bits = self.settled & ~self.saved
        return [offset for number, offset in enumerate(self.queue_offsets) if bits >> number & 1]


_Due = tuple[int, int, Checkpoint]
"""Due time in ms, a unique number that breaks ties, and the checkpoint."""


class Checkpoints:
    """Unfinished checkpoints, and finished checkpoints that a restart would still read."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Checkpoint] = {}
        """Includes finished checkpoints while a start would read the revive topic from before them:
        a later ack of the same key would otherwise be applied to the wrong one."""
        self._open_count = 0
        """Number of unfinished checkpoints."""
        self._due: list[_Due] = []
        """Heap of the current due times."""
        self._older_due: list[_Due] = []
        """Heap from before the last swap; its unfinished entries move to ``_due`` in small
        portions.
        """
        self._number = 0
        self._queues: dict[int, deque[Checkpoint]] = {}
        """Revive queue -> its checkpoints, from the first unfinished one on."""
        self._open_counts: Counter[int] = Counter()
        """Revive queue -> number of its unfinished checkpoints."""
        self._unsaved: dict[Checkpoint, None] = {}  # in the order of settling

    def __len__(self) -> int:
        return self._open_count

    def __contains__(self, key: Key) -> bool:
        """Return True if a checkpoint has this key, unfinished or finished recently."""
        return key in self._by_key

    @property
    def message_count(self) -> int:
        """Number of messages that clients hold; iterates over all checkpoints."""
        return sum(len(checkpoint.left) for checkpoint in self._by_key.values())

    def has_open(self, group: str) -> bool:
        """Return True if a group's members hold messages; iterates over all checkpoints."""
        return any(key.group == group and held.left for key, held in self._by_key.items())

    def add(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint; those of a revive queue arrive in queue order.

        An older one with the same key is finished: it was ``carried`` or renewed, and this is its
        remainder.
        """
        older = self._by_key.get(checkpoint.key)
        if older is not None:
            older.saved = older.all_bits
            self._settle(older, older.all_bits)
            self._unsaved.pop(older, None)
        self._by_key[checkpoint.key] = checkpoint
        self._open_count += 1
        self._queues.setdefault(checkpoint.revive_queue_id, deque()).append(checkpoint)
        self._open_counts[checkpoint.revive_queue_id] += 1
        self.put_off(checkpoint, checkpoint.due_ms)

    def acknowledge(self, key: Key, first_offset: int, bits: int = 1) -> bool:
        """Record that messages were consumed; return whether any of them was held.

        Args:
            key: Key of their checkpoint.
            first_offset: Queue offset of the first message.
            bits: Bit i is set for the message at ``first_offset + i``; see ``Checkpoint.bits_of``.
        """
        checkpoint = self._by_key.get(key)
        if checkpoint is None:
            return False
        held = checkpoint.bits_of(first_offset, bits) & ~checkpoint.settled
        if not held:
            return False
        self._settle(checkpoint, held)
        self._unsaved[checkpoint] = None
        return True

    def holding(self, key: Key, queue_offset: int) -> Checkpoint | None:
        """Return the checkpoint of a message; None if it was acknowledged or delivered again."""
        checkpoint = self._by_key.get(key)
        if checkpoint is None or not checkpoint.bits_of(queue_offset, 1) & ~checkpoint.settled:
            return None
        return checkpoint

    def apply_ack(self, ack: AckRecord) -> None:
        """Apply an ack record of the revive topic; it follows its checkpoint there."""
        key = Key(ack.topic, ack.group, ack.queue_id, ack.start_offset, ack.pop_ms)
        checkpoint = self._by_key.get(key)
        if checkpoint is None:
            return
        for number, offset in enumerate(checkpoint.queue_offsets):
            if offset in ack.queue_offsets:
                checkpoint.saved |= 1 << number
        self._settle(checkpoint, checkpoint.saved)

    def settle(self, checkpoint: Checkpoint, number: int) -> None:
        """Record that a message was put into the retry topic, or no longer exists.

        The next save writes it to the revive topic, like an acknowledgement. Otherwise a start that
        reads from an older open checkpoint would put the message into the retry topic again.
        """
        self._settle(checkpoint, 1 << number)
        self._unsaved[checkpoint] = None

    def end(self, checkpoint: Checkpoint) -> None:
        """Abandon the remaining messages of a checkpoint, which no group needs any more."""
        self._settle(checkpoint, checkpoint.all_bits)
        self._unsaved[checkpoint] = None

    def _settle(self, checkpoint: Checkpoint, bits: int) -> None:
        before, after = checkpoint.settled, checkpoint.settled | bits
        checkpoint.settled = after
        if after == checkpoint.all_bits and before != after:
            self._open_count -= 1
            self._open_counts[checkpoint.revive_queue_id] -= 1

    # Due checkpoints -----------------------------------------------------------------------------

    def due(self, now_ms: int) -> Iterator[Checkpoint]:
        """Yield unfinished checkpoints that are due, each once unless it is ``put_off``."""
        while (heap := self._next_heap()) and (heap[0][0] <= now_ms or heap[0][2].is_over):
            checkpoint = heapq.heappop(heap)[2]
            if not checkpoint.is_over:
                yield checkpoint

    def put_off(self, checkpoint: Checkpoint, due_ms: int) -> None:
        """Schedule a checkpoint for ``due_ms``."""
        self._number += 1
        heapq.heappush(self._due, (due_ms, self._number, checkpoint))
        # Finished checkpoints stay in the heap until their time, at most as many as unfinished
        # ones.
        older = self._older_due
        if not older and len(self._due) > _MOVED_AT_ONCE and len(self._due) > 2 * self._open_count:
            self._due, self._older_due = older, self._due
            older = self._older_due
        if not older:
            return
        for _ in range(min(_MOVED_AT_ONCE, len(older))):
            entry = heapq.heappop(older)
            if not entry[2].is_over:
                heapq.heappush(self._due, entry)

    def _next_heap(self) -> "list[_Due]":
        """Return the heap with the earliest entry; an empty heap if there is none."""
        if not self._older_due or (self._due and self._due[0] < self._older_due[0]):
            return self._due
        return self._older_due

    def next_due_ms(self) -> int | None:
        """Return the time at which a checkpoint may be due; None if there is none."""
        heap = self._next_heap()
        return heap[0][0] if heap else None

    # The revive topic -------------------------------------------------------------------------

    def first_open(self, revive_queue_id: int) -> int | None:
        """Return the offset of the first unfinished checkpoint of a revive queue, or None."""
        checkpoints = self._queues.get(revive_queue_id)
        if checkpoints is None:
            return None
        while checkpoints and checkpoints[0].is_over:
            checkpoint = checkpoints.popleft()
            self._unsaved.pop(checkpoint, None)
            if self._by_key.get(checkpoint.key) is checkpoint:
                del self._by_key[checkpoint.key]
        return checkpoints[0].revive_offset if checkpoints else None

    def stale(self, revive_queue_id: int, end: int) -> Checkpoint | None:
        """Return a checkpoint that makes a start read too many records again.

        Args:
            revive_queue_id: A queue of the revive topic.
            end: Its end.

        Returns:
            The first open checkpoint of the queue, to be ``carried`` to its end; None if few
            records follow it, or if most of the records after it are open checkpoints too.
        """
        begin = self.first_open(revive_queue_id)
        if begin is None:
            return None
        is_far = end - begin > REREAD_RECORDS_MAX + 4 * self._open_counts[revive_queue_id]
        return self._queues[revive_queue_id][0] if is_far else None

    def carried(self, checkpoint: Checkpoint, revive_offset: int) -> None:
        """Record that the first checkpoint of a queue was rewritten at the end of the queue.

        The new record names only the remaining messages.
        """
        checkpoints = self._queues[checkpoint.revive_queue_id]
        assert checkpoints[0] is checkpoint, "it is the first one"
        checkpoints.rotate(-1)  # rotating a deque by one is O(1)
        checkpoint.revive_offset = revive_offset
        checkpoint.saved = checkpoint.settled
        self._unsaved.pop(checkpoint, None)

    def take_unsaved(self, count_max: int) -> list[Checkpoint]:
        """Remove and return checkpoints with settled messages that the revive topic lacks."""
        taken = list(itertools.islice(self._unsaved, count_max))
        for checkpoint in taken:
            del self._unsaved[checkpoint]
        return taken

    def return_unsaved(self, checkpoint: Checkpoint) -> None:
        """Return a checkpoint from ``take_unsaved`` because its ack could not be put."""
        self._unsaved[checkpoint] = None


def of_record(
    record: CheckpointRecord, queue_id: int, queue_offset: int, late_ms: int
) -> Checkpoint:
    """Return the checkpoint of a record of the revive topic.

    Args:
        record: The decoded record.
        queue_id: Queue of the revive topic.
        queue_offset: Offset of the record there.
        late_ms: Time to wait after the due time for acks that follow the record, in ms.
    """
    return Checkpoint(
        Key(record.topic, record.group, record.queue_id, record.start_offset, record.pop_ms),
        record.queue_offsets,
        record.pop_ms + record.invisible_ms + late_ms,
        queue_id,
        queue_offset,
        is_suspended=record.is_suspended,
        was_read=True,
    )
