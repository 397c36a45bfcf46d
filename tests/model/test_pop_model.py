"""Pops in any order, compared with a model of who may receive which message.

The model records the sent messages, until when each is held, and which are acknowledged. Each pop
is compared with it. A crash removes the holds and acks that were not on disk: these messages may
be delivered once more, and none may be missing. At the end all messages are popped and
acknowledged: each has been seen.

Power is lost as well, with all unsynced bytes (``LossyDisk``).
"""

import random
import shutil
import sys
import tempfile
from dataclasses import dataclass, field

from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lossy_disk import Loss, LossyDisk
from reput.broker.group.subscription_groups import SubscriptionGroups
from reput.broker.held_requests import HeldRequests
from reput.broker.pop.checkpoints import Key
from reput.broker.pop.offsets import PopOffsets
from reput.broker.pop.orders import PopOrders
from reput.broker.pop.pops import HeldPop, PopParameters, Popped, Pops
from reput.broker.pop.revive import ACK_SAVE_MS, LATE_MS, Revive
from reput.broker.settings.config import BrokerConfig
from reput.broker.topic.topics import READ_WRITE, Topics
from reput.clock import ManualClock
from reput.store.message_store import MessageStore
from reput.store.tables.groups import SubscriptionGroupTable
from reput.store.tables.offsets import ConsumerOffsetTable
from reput.store.tables.pop_tables import ConsumerOrderTable
from reput.store.tables.topics import TopicTable
from reput.store.writing.incoming import IncomingMessage, PutStatus
from store_fixture import START_MS, config
from world import messages_in

QUEUE_COUNT = 2
GROUP = "G"
ORDERED = "O"


@dataclass
class Held:
    """A message that was popped."""

    body: bytes
    topic: str
    queue_id: int
    queue_offset: int
    start_offset: int
    pop_ms: int
    until_ms: int


@dataclass
class Ordered:
    """The messages of a queue that the ordered group holds."""

    bodies: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    pop_ms: int = 0
    until_ms: int = 0
    acked: set[int] = field(default_factory=set)


class PopMachine(RuleBasedStateMachine):
    """A broker's pops without its sockets, and their model."""

    @initialize(sync=st.booleans(), seed=st.integers(0, 1 << 16))
    def begin(self, sync: bool, seed: int) -> None:
        self.random = random.Random(seed)
        self.root = tempfile.mkdtemp(prefix="pops-")
        self.disk = LossyDisk(self.root)
        self.clock = ManualClock(START_MS)
        self.flush = "SYNC_FLUSH" if sync else "ASYNC_FLUSH"
        self.count = 0
        self.sent: set[bytes] = set()
        self.bodies: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUE_COUNT)}
        self.held: dict[bytes, Held] = {}
        self.acked: set[bytes] = set()
        self.acked_permanently: set[bytes] = set()
        self.seen: set[bytes] = set()
        self.doubtful: set[bytes] = set()
        """Messages popped before a crash: copies may be in the retry topic, and be popped again."""
        self.ordered = {queue_id: Ordered() for queue_id in range(QUEUE_COUNT)}
        self.done_in_order = dict.fromkeys(range(QUEUE_COUNT), 0)
        self.open()

    def open(self) -> None:
        self.store = MessageStore.open(
            config=config(
                self.root, flush_disk_type=self.flush, mapped_file_size_consume_queue=20 * 300
            ),
            clock=self.clock,
            disk=self.disk,
        )
        broker_config = BrokerConfig(broker_name="b")
        self.topics = Topics(TopicTable.load(self.root, self.disk), broker_config)
        self.groups = SubscriptionGroups(
            SubscriptionGroupTable.load(self.root, self.disk), broker_config
        )
        self.offsets = ConsumerOffsetTable.load(self.root, self.disk)
        held: HeldRequests[HeldPop] = HeldRequests(0)
        self.pops = Pops(
            self.store,
            self.topics,
            Revive(
                self.store, self.topics, self.groups, lambda: self.offsets,
                cluster_name="c", broker_name="b", queue_count=2,
            ),
            PopOffsets(lambda: self.offsets),
            PopOrders(ConsumerOrderTable.load(self.root, self.disk)),
            held,
            retry_percent=50,
            broker_name="b",
            is_old=lambda topic, queue_id: False,
        )  # fmt: skip
        self.topics.for_group("T", QUEUE_COUNT, READ_WRITE, self.clock.now_ms())
        self.tables = (
            self.topics.table, self.groups.table, self.offsets, self.pops.orders.table,
        )  # fmt: skip
        self.save()
        self.pops.revive.load(self.clock.now_ms())

    def save(self) -> None:
        for table in self.tables:
            table.save(self.clock.now_ms())

    def flush_all(self) -> None:
        self.store.flusher.commit()
        self.store.sync()
        self.store.step_memory()

    # Clients.

    @rule(queue_id=st.integers(0, QUEUE_COUNT - 1), count=st.integers(1, 5))
    def send(self, queue_id: int, count: int) -> None:
        for _ in range(count):
            body = b"%d" % self.count
            self.count += 1
            assert self.store.put(IncomingMessage("T", body, queue_id)).status is PutStatus.PUT_OK
            self.bodies[queue_id].append(body)
            self.sent.add(body)
        self.store.step_memory()
        self.flush_all()  # The producer was answered: no crash takes the message.

    @rule(
        queue_id=st.integers(-1, QUEUE_COUNT - 1),
        count=st.sampled_from([1, 2, 32]),
        invisible_ms=st.sampled_from([1, 1_000, 5_000]),
    )
    def pop(self, queue_id: int, count: int, invisible_ms: int) -> None:
        self.take(self.popped(queue_id, count, invisible_ms), invisible_ms)

    def popped(self, queue_id: int, count: int, invisible_ms: int) -> Popped:
        wanted = PopParameters("T", GROUP, queue_id, count, invisible_ms)
        result = self.pops.pop(wanted, self.clock.now_ms())
        assert result.count <= count
        self.store.step_memory()
        if self.store.flusher.is_sync:
            self.flush_all()
        return result

    def take(self, result: Popped, invisible_ms: int) -> None:
        now_ms = self.clock.now_ms()
        starts = {}
        for (topic, queue_id, _), info in zip(result.results, result.start_infos, strict=True):
            starts[topic, queue_id] = int(info.split(" ")[2])
        for message in messages_in(b"".join(result.data)):
            body = message.body
            assert body in self.sent
            assert message.topic == "T"
            if body not in self.doubtful:
                assert body not in self.acked | self.acked_permanently, f"{body!r} was acknowledged"
                known = self.held.get(body)
                assert known is None or known.until_ms <= now_ms, f"{body!r} is held"
            self.seen.add(body)
            handle = message.properties.get("POP_CK")
            topic = f"%RETRY%{GROUP}_T" if handle else "T"
            assert handle is not None or not message.reconsume_times
            start = starts[topic, message.queue_id]
            if handle:
                assert handle.split(" ")[:2] == [str(start), str(result.pop_ms)]
            self.held[body] = Held(
                body, topic, message.queue_id, message.queue_offset, start, result.pop_ms,
                now_ms + invisible_ms,
            )  # fmt: skip

    def draw_held(self, data: st.DataObject) -> Held:
        return self.held[data.draw(st.sampled_from(sorted(self.held)), label="message")]

    def key(self, held: Held) -> Key:
        return Key(held.topic, GROUP, held.queue_id, held.start_offset, held.pop_ms)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        held = self.draw_held(data)
        self.acknowledge(held)

    def acknowledge(self, held: Held) -> None:
        was_held = self.pops.revive.checkpoints.acknowledge(self.key(held), held.queue_offset)
        if held.until_ms > self.clock.now_ms() and held.body not in self.doubtful:
            assert was_held, f"{held} is not held, before its time was over"
        if was_held:
            self.acked.add(held.body)
        del self.held[held.body]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), invisible_ms=st.sampled_from([0, 500, 20_000]), late=st.booleans())
    def change(self, data: st.DataObject, invisible_ms: int, late: bool) -> None:
        held = self.draw_held(data)
        checkpoints = self.pops.revive.checkpoints
        if checkpoints.holding(self.key(held), held.queue_offset) is None:
            assert held.until_ms <= self.clock.now_ms() or held.body in self.doubtful
            return
        now_ms = self.clock.now_ms()
        new = Key(held.topic, GROUP, held.queue_id, held.queue_offset, now_ms)
        while new in checkpoints:
            new = new._replace(pop_ms=new.pop_ms + 1)
        put = self.pops.revive.hold(
            new, [held.queue_offset], max(0, now_ms + invisible_ms - new.pop_ms), 0, now_ms,
            is_suspended=late,
        )  # fmt: skip
        assert put.status.is_stored
        assert checkpoints.acknowledge(self.key(held), held.queue_offset)
        held.start_offset, held.pop_ms = held.queue_offset, new.pop_ms
        held.until_ms = now_ms + invisible_ms

    @rule(queue_id=st.integers(0, QUEUE_COUNT - 1), count=st.sampled_from([1, 3]))
    def pop_in_order(self, queue_id: int, count: int) -> None:
        now_ms = self.clock.now_ms()
        wanted = PopParameters("T", ORDERED, queue_id, count, 2_000, is_ordered=True)
        popped = self.pops.pop(wanted, now_ms)
        messages = messages_in(b"".join(popped.data))
        block = self.ordered[queue_id]
        left = [message for message in block.offsets if message not in block.acked]
        if left and block.until_ms > now_ms:
            assert not messages
            return
        begin = self.done_in_order[queue_id]
        expected = self.bodies[queue_id][begin : begin + count]
        assert [message.body for message in messages] == expected
        if messages:
            self.ordered[queue_id] = Ordered(
                expected, [message.queue_offset for message in messages], now_ms, now_ms + 2_000
            )

    @rule(queue_id=st.integers(0, QUEUE_COUNT - 1), data=st.data())
    def ack_in_order(self, queue_id: int, data: st.DataObject) -> None:
        block = self.ordered[queue_id]
        left = [queue_offset for queue_offset in block.offsets if queue_offset not in block.acked]
        if not left:
            return
        offset = data.draw(st.sampled_from(left), label="offset")
        next_offset = self.pops.orders.acknowledge("T", ORDERED, queue_id, offset, block.pop_ms)
        block.acked.add(offset)
        left = [queue_offset for queue_offset in block.offsets if queue_offset not in block.acked]
        assert next_offset == (left[0] if left else block.offsets[-1] + 1)
        self.pops.offsets.set("T", ORDERED, queue_id, next_offset)
        self.done_in_order[queue_id] = next_offset

    # Time.

    @rule(duration_ms=st.sampled_from([1, 999, 3_000, 30_000]))
    def tick(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)

    @rule()
    def step(self) -> None:
        for _ in range(100):
            did = self.pops.revive.step(self.clock.now_ms())
            self.store.step_memory()
            if self.store.flusher.is_sync:
                self.flush_all()
            self.pops.publish_progress()
            if not did:
                return
        raise AssertionError("there is always more to do")

    @rule()
    def settle(self) -> None:
        """Write everything to the disk."""
        self.clock.advance(ACK_SAVE_MS)
        self.step()
        self.flush_all()
        self.pops.publish_progress()
        self.save()
        self.acked_permanently |= self.acked
        self.acked.clear()

    # Ends of runs.

    @rule()
    def restart(self) -> None:
        self.pops.revive.save_acks(self.clock.now_ms())
        self.flush_all()
        self.pops.publish_progress()
        self.save()
        self.store.close()
        self.acked_permanently |= self.acked
        self.acked.clear()
        self.open()

    @rule(loss=st.sampled_from([Loss.NOTHING, Loss.ALL, Loss.SECTORS, Loss.FILES]))
    def crash(self, loss: Loss) -> None:
        if loss is Loss.NOTHING:
            self.store.abandon()
        else:
            self.disk.lose_power(self.random, loss, before=self.store.abandon)
        self.open()
        self.doubtful |= self.seen - self.acked_permanently
        self.acked.clear()
        self.held.clear()
        for queue_id, block in self.ordered.items():
            block.offsets.clear()
            known = self.offsets.get("T", ORDERED, queue_id)
            assert (known or 0) <= self.done_in_order[queue_id]
            self.done_in_order[queue_id] = known or 0
            saved = self.pops.orders.table.get("T", ORDERED, queue_id)
            if saved is not None:
                left = [
                    queue_offset
                    for index, queue_offset in enumerate(saved.queue_offsets)
                    if not saved.acked >> index & 1
                ]
                self.ordered[queue_id] = Ordered(
                    [], left, saved.pop_ms, saved.pop_ms + saved.invisible_ms
                )

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            if sys.exc_info()[0] is None:
                self.consume_all()
        finally:
            self.store.abandon()
            shutil.rmtree(self.root)

    def consume_all(self) -> None:
        """Check that each sent message is delivered and acknowledged after any events."""
        for _ in range(20):
            self.clock.advance(60_000 + LATE_MS)
            self.step()
            has_found = False
            while (result := self.popped(-1, 32, 1_000)).count:
                has_found = True
                self.take(result, 1_000)
                for held in list(self.held.values()):
                    self.acknowledge(held)
            if not has_found:
                break
        missing = self.sent - self.acked - self.acked_permanently
        assert not missing, f"{missing} were never seen again"
        self.clock.advance(60_000)
        self.step()
        assert not self.popped(-1, 32, 1_000).count
        assert len(self.pops.revive.checkpoints) == 0


def test_pops_agree_with_the_model() -> None:
    most = settings.default.max_examples
    run_state_machine_as_test(
        PopMachine, settings=settings(max_examples=max(15, most // 10), stateful_step_count=30)
    )
