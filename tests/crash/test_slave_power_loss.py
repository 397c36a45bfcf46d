"""A slave loses power at any moment: its log is a part of its master's, and follows it again.

No byte after the end is left, so that nothing of the lost bytes can appear again, and a slave that
becomes master gives no queue offset twice.
"""

import itertools
import random
import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from log_copy import assert_same, copy_log, log_bytes
from lossy_disk import Loss, LossyDisk
from reput.clock import ManualClock
from reput.store.message_store import MessageStore
from store_fixture import START_MS, assert_sound, config
from store_subject import message

pytestmark = [pytest.mark.crash, pytest.mark.slow]

actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 60)),
        st.tuples(st.just("receive"), st.integers(1, 60_000)),
        st.tuples(st.just("part"), st.integers(1, 3_000)),
        st.tuples(st.just("step"), st.sampled_from([1, 700, 70_000])),
        st.tuples(st.just("crash"), st.integers(0, 1 << 30)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    min_size=5,
    max_size=30,
)


class Pair:
    """A master, and a slave whose disk can lose power."""

    def __init__(self, folder: Path, flush: str, loss: Loss) -> None:
        self.flush, self.loss = flush, loss
        self.clock = ManualClock(START_MS)
        self.root = folder / "slave"
        self.master = MessageStore.open(config=config(folder / "master"), clock=self.clock)
        self.disk = LossyDisk(self.root)
        self.count = 0
        self.open()

    def open(self, role: str = "SLAVE") -> None:
        settings = {"broker_role": role, "flush_disk_type": self.flush}
        self.slave = MessageStore.open(
            config=config(self.root, **settings), clock=self.clock, disk=self.disk
        )

    def put(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            size = number * 7919 % 4_000
            sent = message(f"Topic{number % 2}", b"%d:" % number + b"x" * size, number % 3,
                          keys=f"key{number}")  # fmt: skip
            self.master.put(sent)
        self.count += count

    def receive(self, size: int) -> None:
        stop = min(self.slave.replica_log.end + size, self.master.replication_limit)
        copy_log(self.master, self.slave, itertools.repeat(5_000), stop=stop)

    def part(self, size: int) -> None:
        """Receive the first bytes of a frame, whose rest does not come."""
        log = self.slave.replica_log
        view = self.master.log_view(log.end, size)
        if view is not None:
            log.buffer(len(view.data))[: len(view.data) // 2] = view.data[: len(view.data) // 2]
            view.release()

    def step(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        while self.slave.step():
            pass

    def crash(self, seed: int) -> None:
        durable_end = self.slave.replica_log.durable_end
        self.disk.lose_power(random.Random(seed), self.loss, before=self.slave.abandon)
        self.open()
        self.check(durable_end)

    def reopen(self, _: int) -> None:
        self.slave.close()
        self.open()
        self.check(0)

    def check(self, durable_end: int) -> None:
        log = self.slave.replica_log
        # Dispatch has passed a blank that the slave may go back to: its records are durable.
        last = next(self.records(durable_end), 0)
        assert log.end >= last
        assert log_bytes(self.slave) == log_bytes(self.master, stop=log.end)
        assert self.slave.dispatcher.dispatched_offset == log.end
        assert not log.problem
        for file in self.slave.log.files.files:
            assert not any(Path(file.path).read_bytes()[max(log.end - file.start, 0) :])

    def records(self, stop: int) -> itertools.chain[int]:
        """Yield the ends of the master's records up to a physical offset, newest first."""
        position, ends = 0, []
        while position < stop:
            data = self.master.record_at(position)
            if data is None:
                position += 64 * 1024 - position % (64 * 1024)
                continue
            position += len(data)
            ends.append(position)
        return itertools.chain(end for end in reversed(ends) if end <= stop)


few_examples = hypothesis.settings(max_examples=hypothesis.settings.default.max_examples // 5)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@few_examples
@hypothesis.given(actions=actions, loss=st.sampled_from(Loss))
@pytest.mark.sampled(4)
def test_a_slave_has_a_part_of_its_masters_log(
    flush: str, actions: list[tuple[str, int]], loss: Loss
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        pair = Pair(folder, flush, loss)
        for name, value in [("put", 30), *actions, ("crash", 7)]:
            getattr(pair, name)(value)
        copy_log(pair.master, pair.slave)
        pair.step(0)
        assert_same(pair.master, pair.slave)
        pair.slave.close()
        pair.open("ASYNC_MASTER")
        for queue_id in range(3):
            expected = pair.master.max_offset("Topic0", queue_id)
            assert pair.slave.put(message("Topic0", queue_id=queue_id)).queue_offset == expected
        pair.slave.close()
        pair.master.close()
        assert_sound(pair.root)
    finally:
        shutil.rmtree(folder)
