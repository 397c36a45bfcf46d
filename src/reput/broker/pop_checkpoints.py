"""What groups have popped and not acknowledged yet: checkpoints, in memory.

A checkpoint has a place in the revive topic (``revive``) and is there again after a restart. It is
over when each of its messages was acknowledged, or put where the group finds it again. The queues
of that topic are read in order: what is known of them ends before the first one that is not over.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reput.format.pop_codec import AckRecord, CheckpointRecord


class Key(NamedTuple):
    """What tells checkpoints apart."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_ms: int


@dataclass(slots=True, eq=False)
class Checkpoint:
    """Messages that a client holds for a while."""

    key: Key
    queue_offsets: Sequence[int]
    """Of its messages; a range, if they follow each other, as most do."""
    due_ms: int
    """When the group sees again what is not acknowledged then."""
    revive_queue_id: int
    revive_offset: int
    """Where it stands in the revive topic."""
    is_suspended: bool = False
    """The next delivery is no further attempt."""
    settled: int = 0
    """Bit i: message i was acknowledged, or put again."""
    saved: int = 0
    """Bit i: the revive topic says that message i was acknowledged."""
    all_bits: int = field(init=False)
    """A bit for each message."""

    def __post_init__(self) -> None:
        self.all_bits = (1 << len(self.queue_offsets)) - 1

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be done."""
        return self.settled == self.all_bits

    def bits_of(self, first_offset: int, bits: int) -> int:
        """Return the bits of messages that are named in another way.

        Args:
            first_offset: A queue offset.
            bits: Bit i: the message ``i`` behind it, if it is one of these.
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
        """Numbers of the messages that are neither acknowledged nor put again."""
        return [one for one in range(len(self.queue_offsets)) if not self.settled >> one & 1]

    @property
    def unsaved(self) -> list[int]:
        """Queue offsets that were acknowledged, and the revive topic does not say so."""
        bits = self.settled & ~self.saved
        return [offset for one, offset in enumerate(self.queue_offsets) if bits >> one & 1]


class Checkpoints:
    """The checkpoints that are not over, and those the revive topic still counts from."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Checkpoint] = {}
        self._due: list[tuple[int, int, Checkpoint]] = []
        self._number = 0
        self._queues: dict[int, deque[Checkpoint]] = {}
        self._unsaved: dict[Checkpoint, None] = {}  # in the order of their acks

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    @property
    def message_count(self) -> int:
        """Messages that clients hold; looks at every checkpoint."""
        return sum(len(one.left) for one in self._by_key.values())

    def add(self, one: Checkpoint) -> None:
        """Take up a checkpoint; of a revive queue they come in its order."""
        self._by_key[one.key] = one
        self._queues.setdefault(one.revive_queue_id, deque()).append(one)
        self.put_off(one, one.due_ms)

    def acknowledge(self, key: Key, first_offset: int, bits: int = 1) -> bool:
        """Take note that messages were consumed; return whether somebody held one of them.

        Args:
            key: Of their checkpoint.
            first_offset: Queue offset of the first one.
            bits: Which of those behind it as well; see ``Checkpoint.bits_of``.
        """
        one = self._by_key.get(key)
        if one is None:
            return False
        held = one.bits_of(first_offset, bits) & ~one.settled
        if not held:
            return False
        self._settle(one, held)
        self._unsaved[one] = None
        return True

    def holds(self, key: Key, queue_offset: int) -> bool:
        """Whether a message of a checkpoint is neither acknowledged nor put again."""
        one = self._by_key.get(key)
        return one is not None and one.bits_of(queue_offset, 1) & ~one.settled != 0

    def take_up_ack(self, ack: AckRecord) -> None:
        """Take over what an ack of the revive topic says; acks follow their checkpoints there."""
        key = Key(ack.topic, ack.group, ack.queue_id, ack.start_offset, ack.pop_ms)
        one = self._by_key.get(key)
        if one is None:
            return
        for number, offset in enumerate(one.queue_offsets):
            if offset in ack.queue_offsets:
                one.saved |= 1 << number
        self._settle(one, one.saved)

    def settle(self, one: Checkpoint, number: int) -> None:
        """Take note that a message was put where its group finds it again, or is gone."""
        self._settle(one, 1 << number)

    def end(self, one: Checkpoint) -> None:
        """Give up what is left of a checkpoint: nobody wants it any more."""
        self._settle(one, one.all_bits)

    def _settle(self, one: Checkpoint, bits: int) -> None:
        one.settled |= bits
        if one.settled == one.all_bits:
            self._by_key.pop(one.key, None)

    # What is due ------------------------------------------------------------------------------

    def due(self, now_ms: int) -> Iterator[Checkpoint]:
        """Yield what is due and not over; each once, unless it is ``put_off``."""
        while self._due and (self._due[0][0] <= now_ms or self._due[0][2].is_over):
            one = heapq.heappop(self._due)[2]
            if not one.is_over:
                yield one

    def put_off(self, one: Checkpoint, due_ms: int) -> None:
        """Yield a checkpoint when ``due_ms`` has come."""
        self._number += 1
        heapq.heappush(self._due, (due_ms, self._number, one))
        # Those that are over stay in the heap until their time; not more than others.
        if len(self._due) > 64 and len(self._due) > 2 * len(self._by_key):
            self._due = [entry for entry in self._due if not entry[2].is_over]
            heapq.heapify(self._due)

    def next_due_ms(self) -> int | None:
        """Return when something may be due; None: nothing waits."""
        return self._due[0][0] if self._due else None

    # The revive topic -------------------------------------------------------------------------

    def first_open(self, revive_queue_id: int) -> int | None:
        """Return where a queue of the revive topic has its first checkpoint that is not over."""
        waiting = self._queues.get(revive_queue_id)
        if waiting is None:
            return None
        while waiting and waiting[0].is_over:
            self._unsaved.pop(waiting.popleft(), None)
        return waiting[0].revive_offset if waiting else None

    def take_unsaved(self, count_max: int) -> list[Checkpoint]:
        """Return checkpoints with acks that the revive topic does not hold, and forget that."""
        taken = list(itertools.islice(self._unsaved, count_max))
        for one in taken:
            del self._unsaved[one]
        return taken

    def keep_unsaved(self, one: Checkpoint) -> None:
        """Return a checkpoint again from ``take_unsaved``: its acks could not be put."""
        self._unsaved[one] = None


def of_record(
    record: CheckpointRecord, queue_id: int, queue_offset: int, late_ms: int
) -> Checkpoint:
    """Return the checkpoint of a record of the revive topic.

    Args:
        record: What it says.
        queue_id: Of the revive topic.
        queue_offset: Where it stands there.
        late_ms: How long to wait for acks that may follow it, when its time is over.
    """
    return Checkpoint(
        Key(record.topic, record.group, record.queue_id, record.start_offset, record.pop_ms),
        record.queue_offsets,
        record.pop_ms + record.invisible_ms + late_ms,
        queue_id,
        queue_offset,
        is_suspended=record.is_suspended,
    )
