"""The queue between pulls and listeners, compared with a plain list of finished messages."""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from reput.client.core.process_queue import Batch, ProcessQueue


@dataclass(frozen=True)
class One:
    queue_offset: int
    size_bytes: int = 100


def messages(*offsets: int) -> list[One]:
    return [One(offset) for offset in offsets]


class ProcessQueueModel(RuleBasedStateMachine):
    """Pulls and completions in any order; the model is the set of unfinished offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.queue: ProcessQueue[One] = ProcessQueue(100)
        self.next_offset = 100
        self.unfinished: list[int] = []
        self.waiting: list[int] = []
        self.taken: list[Batch[One]] = []
        self.taken_newest: Batch[One] | None = None
        self.committed = 100

    @rule(
        gaps=st.lists(st.integers(0, 3), max_size=6),
        after=st.integers(0, 5),
        repeated=st.integers(0, 3),
    )
    def pull(self, gaps: list[int], after: int, repeated: int) -> None:
        offsets = []
        for gap in gaps:
            self.next_offset += gap
            offsets.append(self.next_offset)
            self.next_offset += 1
        self.next_offset += after
        # A broker may return messages again.
        first = offsets[0] if offsets else self.next_offset
        before = list(range(self.queue.next_offset - repeated, self.queue.next_offset))
        before = [number for number in before if number < first]
        count = self.queue.put(messages(*before, *offsets), self.next_offset, self.now_ms)
        assert count == len(offsets)
        self.unfinished += offsets
        self.waiting += offsets

    @rule(count_max=st.integers(1, 4), pause_ms=st.integers(0, 5))
    def take(self, count_max: int, pause_ms: int) -> None:
        self.now_ms += pause_ms
        expected, self.waiting = self.waiting[:count_max], self.waiting[count_max:]
        batch = self.queue.take(count_max, self.now_ms)
        if batch is None:
            assert not expected
            return
        assert [message.queue_offset for message in batch.messages] == expected
        assert batch.taken_ms == self.now_ms
        self.taken.append(batch)
        self.taken_newest = batch

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.taken))
        self.taken.remove(batch)
        self._is_finished(batch.messages)
        self.queue.finish(batch)
        self.queue.finish(batch)  # a second completion changes nothing

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def keep_some(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.taken))
        kept = [message for message in batch.messages if data.draw(st.booleans())]
        self._is_finished([message for message in batch.messages if message not in kept])
        self.queue.keep(batch, kept)
        assert batch.is_finished == (not kept)
        if not kept:
            self.taken.remove(batch)

    @precondition(lambda self: self.taken_newest is not None and self.taken_newest in self.taken)
    @rule()
    def give_back(self) -> None:
        batch = self.taken_newest
        assert batch is not None
        # Messages between may be finished; the batch given back must be the last one taken.
        self.taken.remove(batch)
        self.waiting = [message.queue_offset for message in batch.messages] + self.waiting
        self.queue.give_back(batch)
        self.taken_newest = None

    @invariant()
    def committed_offset_is_the_first_unfinished(self) -> None:
        offset = self.queue.consumer_offset
        assert offset == min(self.unfinished, default=self.next_offset)
        assert offset >= self.committed, "it never goes back"
        self.committed = offset

    @invariant()
    def counts_are_right(self) -> None:
        queue = self.queue
        assert queue.message_count == len(self.unfinished)
        assert queue.size_bytes == 100 * len(self.unfinished)
        assert queue.waiting_count == len(self.waiting)
        assert queue.taken_count == len(self.unfinished) - len(self.waiting)
        assert queue.waiting_offset == min(self.waiting, default=self.next_offset)
        assert queue.next_offset == self.next_offset

    @rule(before_ms=st.integers(0, 40))
    def overdue(self, before_ms: int) -> None:
        in_order = sorted(self.taken, key=lambda taken: taken.messages[0].queue_offset)
        expected = []
        for batch in in_order:
            if batch.taken_ms >= before_ms:
                break
            expected.append(batch)
        assert self.queue.overdue(before_ms, count_max=1000) == expected

    def teardown(self) -> None:
        for batch in list(self.taken):
            self.queue.finish(batch)
        while batch := self.queue.take(3, self.now_ms):
            self.queue.finish(batch)
        assert self.queue.consumer_offset == self.next_offset
        assert self.queue.message_count == self.queue.size_bytes == self.queue.span == 0

    def _is_finished(self, messages: list[One]) -> None:
        for message in messages:
            self.unfinished.remove(message.queue_offset)


def test_a_queue_agrees_with_the_model() -> None:
    run_state_machine_as_test(ProcessQueueModel)


def test_the_span_is_from_the_oldest_unfinished_to_the_newest() -> None:
    queue: ProcessQueue[One] = ProcessQueue(5)
    assert queue.span == 0
    queue.put(messages(7, 8, 20), 21, 0)
    assert queue.span == 13
    first = queue.take(1, 0)
    second = queue.take(2, 0)
    assert first is not None
    assert second is not None
    queue.finish(second)
    assert queue.span == 13
    queue.finish(first)
    assert queue.span == 0
    assert queue.consumer_offset == 21


def test_a_pull_without_matches_advances_the_offset() -> None:
    queue: ProcessQueue[One] = ProcessQueue(5)
    queue.put([], 40, 0)
    assert queue.consumer_offset == queue.next_offset == 40
    queue.put([], 30, 0)  # a broker that lost its state
    assert queue.next_offset == 40


def test_overdue_returns_a_bounded_number() -> None:
    queue: ProcessQueue[One] = ProcessQueue(0)
    queue.put(messages(*range(50)), 50, 0)
    for _ in range(50):
        queue.take(1, 0)
    assert len(queue.overdue(1)) == 16
