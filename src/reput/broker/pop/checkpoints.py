"""What groups have popped and not acknowledged yet: checkpoints, in memory.

A checkpoint has a place in the revive topic (``revive``) and is there again after a restart. It is
over when each of its messages was acknowledged, or put where the group finds it again. The queues
of that topic are read in order: what is known of them ends before the first one that is not over.
"""

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reput.format.pop_codec import AckRecord, CheckpointRecord

RECORDS_BEHIND_MAX = 20_000
"""So many records of a queue of the revive topic are read again at a start for the sake of one
checkpoint: at most a second's work. Then it is put at the queue's end as well."""
_MOVED_AT_ONCE = 64


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
    """Bit i: the revive topic says that message i is settled."""
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
        """Queue offsets that are settled, and the revive topic does not say so."""
        bits = self.settled & ~self.saved
        return [offset for one, offset in enumerate(self.queue_offsets) if bits >> one & 1]


_Due = tuple[int, int, Checkpoint]
"""When it is due, a number that no other entry has, and what."""


class Checkpoints:
    """The checkpoints that are not over, and those the revive topic still counts from."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Checkpoint] = {}
        """Also those that are over, while the revive topic is read from before them: a later ack
        there of the same key would be taken for one of both."""
        self._open_count = 0
        """How many are not over."""
        self._due: list[_Due] = []
        """A heap."""
        self._older_due: list[_Due] = []
        """Another one, of which those that are not over move to the first, some at a time."""
        self._number = 0
        self._queues: dict[int, deque[Checkpoint]] = {}
        """Queue of the revive topic -> its checkpoints from the first on that is not over."""
        self._open_counts: Counter[int] = Counter()
        """Queue of the revive topic -> how many of these are not over."""
        self._unsaved: dict[Checkpoint, None] = {}  # in the order they were settled

    def __len__(self) -> int:
        return self._open_count

    def __contains__(self, key: Key) -> bool:
        """Whether a key is taken: by a checkpoint that is not over, or was not long ago."""
        return key in self._by_key

    @property
    def message_count(self) -> int:
        """Messages that clients hold; looks at every checkpoint."""
        return sum(len(one.left) for one in self._by_key.values())

    def add(self, one: Checkpoint) -> None:
        """Take up a checkpoint; of a revive queue they come in its order.

        One of the same key is over: it was ``carried``, and this is what was left of it.
        """
        known = self._by_key.get(one.key)
        if known is not None:
            known.saved = known.all_bits
            self._settle(known, known.all_bits)
        self._by_key[one.key] = one
        self._open_count += 1
        self._queues.setdefault(one.revive_queue_id, deque()).append(one)
        self._open_counts[one.revive_queue_id] += 1
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
        """Record that a message was put into the retry topic, or no longer exists.

        The next save writes it to the revive topic, like an acknowledgement. Otherwise a start that
        reads from an older open checkpoint would put the message into the retry topic again.
        """
        self._settle(one, 1 << number)
        self._unsaved[one] = None

    def end(self, one: Checkpoint) -> None:
        """Give up what is left of a checkpoint: nobody wants it any more."""
        self._settle(one, one.all_bits)
        self._unsaved[one] = None

    def _settle(self, one: Checkpoint, bits: int) -> None:
        if not one.is_over and (one.settled | bits) == one.all_bits:
            self._open_count -= 1
            self._open_counts[one.revive_queue_id] -= 1
        one.settled |= bits

    # What is due ------------------------------------------------------------------------------

    def due(self, now_ms: int) -> Iterator[Checkpoint]:
        """Yield what is due and not over; each once, unless it is ``put_off``."""
        while (heap := self._next_heap()) and (heap[0][0] <= now_ms or heap[0][2].is_over):
            one = heapq.heappop(heap)[2]
            if not one.is_over:
                yield one

    def put_off(self, one: Checkpoint, due_ms: int) -> None:
        """Yield a checkpoint when ``due_ms`` has come."""
        self._number += 1
        heapq.heappush(self._due, (due_ms, self._number, one))
        # Those that are over stay in the heap until their time; not more than others.
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
        """Return the heap with the entry that is due first; an empty one if there is none."""
        if not self._older_due or (self._due and self._due[0] < self._older_due[0]):
            return self._due
        return self._older_due

    def next_due_ms(self) -> int | None:
        """Return when something may be due; None: nothing waits."""
        heap = self._next_heap()
        return heap[0][0] if heap else None

    # The revive topic -------------------------------------------------------------------------

    def first_open(self, revive_queue_id: int) -> int | None:
        """Return where a queue of the revive topic has its first checkpoint that is not over."""
        waiting = self._queues.get(revive_queue_id)
        if waiting is None:
            return None
        while waiting and waiting[0].is_over:
            one = waiting.popleft()
            self._unsaved.pop(one, None)
            if self._by_key.get(one.key) is one:
                del self._by_key[one.key]
        return waiting[0].revive_offset if waiting else None

    def stale(self, revive_queue_id: int, end: int) -> Checkpoint | None:
        """Return a checkpoint for whose sake too many records would be read again at a start.

        Args:
            revive_queue_id: A queue of the revive topic.
            end: Where that ends.

        Returns:
            The first open checkpoint of the queue, to be ``carried`` to its end; None if only few
            records follow it, or if most of those that follow are open checkpoints, too.
        """
        begin = self.first_open(revive_queue_id)
        if begin is None:
            return None
        is_far = end - begin > RECORDS_BEHIND_MAX + 4 * self._open_counts[revive_queue_id]
        return self._queues[revive_queue_id][0] if is_far else None

    def carried(self, one: Checkpoint, revive_offset: int) -> None:
        """Record that the first checkpoint of a queue was written again at the end of the queue.

        There it names the messages alone that are left.
        """
        waiting = self._queues[one.revive_queue_id]
        assert waiting[0] is one, "it is the first one"
        waiting.rotate(-1)  # a deque turns by one at once, however long it is
        one.revive_offset = revive_offset
        one.saved = one.settled
        self._unsaved.pop(one, None)

    def take_unsaved(self, count_max: int) -> list[Checkpoint]:
        """Return checkpoints of which the revive topic does not know enough, and forget that."""
        taken = list(itertools.islice(self._unsaved, count_max))
        for one in taken:
            del self._unsaved[one]
        return taken

    def keep_unsaved(self, one: Checkpoint) -> None:
        """Return a checkpoint again from ``take_unsaved``: its ack could not be put."""
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
