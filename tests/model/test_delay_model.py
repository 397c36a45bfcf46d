"""Delay levels and timers compared with a plain list, in any order of a broker's events.

The model is a list of acknowledged messages, each with the time before which it may not be
delivered. Whatever happens in between, each message is delivered at least once, none early, and
none that was recalled in time. Clocks are set back and forward, levels change, processes are
killed, power is lost (``LossyDisk``): under SYNC_FLUSH no message is lost then, else only unsynced
ones.
"""

import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lossy_disk import Loss, LossyDisk
from reput.broker import delay
from reput.broker.delay import DelaySchedule
from reput.broker.timer import timers
from reput.broker.timer.timers import Timers
from reput.clock import ManualClock
from reput.errors import RequestRefused
from reput.format import names, properties as props
from reput.format.message import StoredMessage
from reput.store.message_store import MessageStore
from reput.store.tables.offsets import DelayOffsetTable
from reput.store.tables.timer_table import TimerTable
from reput.store.writing.incoming import IncomingMessage
from store_fixture import START_MS, config
from store_subject import messages_of

LEVELS = ("1s 5s 10s", "1s", "10s 5s 1s", "2s 1s 5s 30s")
LEVEL_MS_MAX = 30_000
ROLL_S = 20
PRECISION_MS = 1000
TOPIC = "T"

_ANY = 1 << 30

is_thorough = hypothesis.settings.default.max_examples > 100
"""Set by ``--hypothesis-profile=soak``."""
STEPS = delay.MESSAGES_PER_STEP, timers.MESSAGES_PER_STEP


@dataclass
class Sent:
    """A message that was acknowledged."""

    not_before_ms: int
    """Earliest time of delivery; 0: unknown, because the clock or the levels have changed since."""
    out_ms: int | None = None
    """Time at which a timer message leaves, less a precision."""
    is_durable: bool = False
    recalled_after: int | None = None
    """Number of deliveries before the recall."""


class DelayMachine(RuleBasedStateMachine):
    """A store with a schedule and a timer, and the messages that were sent to it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="reput-model-"))
        self.root = self.folder / "store"
        self.root.mkdir()
        self.disk = LossyDisk(self.root)
        self.disk.usage = lambda path: 0.5  # type: ignore[method-assign]
        self.clock = ManualClock(START_MS)
        self.levels = LEVELS[0]
        self.sent: dict[bytes, Sent] = {}
        self.count = 0

    @initialize(is_sync=st.booleans(), step=st.sampled_from([1, 3, 256]))
    def begin(self, is_sync: bool, step: int) -> None:
        self.is_sync = is_sync
        delay.MESSAGES_PER_STEP = timers.MESSAGES_PER_STEP = step
        self.open()

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self.deliver_the_rest()
                self.store.close()
        finally:
            delay.MESSAGES_PER_STEP, timers.MESSAGES_PER_STEP = STEPS
            shutil.rmtree(self.folder)

    def open(self) -> None:
        settings = config(
            self.root,
            flush_disk_type="SYNC_FLUSH" if self.is_sync else "ASYNC_FLUSH",
            message_delay_level=self.levels,
            timer_roll_window_slot=ROLL_S,
            mapped_file_size_consume_queue=20 * 50,
        )
        self.store = MessageStore.open(config=settings, clock=self.clock, disk=self.disk)
        self.delayed = DelaySchedule(self.store, DelayOffsetTable.load(str(self.root), self.disk))
        self.timers = Timers(self.store, TimerTable.load(str(self.root), self.disk))
        self.delayed.load()
        self.timers.load()

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    # Clients.

    def put(self, topic: str, body: bytes, properties: dict[str, str]) -> None:
        message = IncomingMessage(topic, body, 0, props.encode(properties))
        result = self.store.put(message)
        assert result.status.is_stored, result
        self.store.step_memory()

    @rule(level=st.integers(1, 4))
    def send_by_level(self, level: int) -> None:
        self.count += 1
        body = b"level-%d" % self.count
        self.put(TOPIC, body, {"DELAY": str(level)})
        delays = self.store.config.delay_levels_ms
        due_ms = self.now_ms + delays[min(level, len(delays)) - 1]
        self.sent[body] = Sent(due_ms, is_durable=self.is_sync)

    @rule(delay_ms=st.sampled_from([1, 999, 1000, 1001, 2500, 7000, 45_000, 130_000]))
    def send_by_time(self, delay_ms: int) -> None:
        self.count += 1
        body = b"timer-%d" % self.count
        deliver_ms = self.now_ms + delay_ms
        properties = {"TIMER_DELIVER_MS": str(deliver_ms), "UNIQ_KEY": body.decode()}
        assert self.timers.park(TOPIC, 0, properties, self.now_ms)
        self.put(names.TIMER_TOPIC, body, properties)
        out_ms = int(properties["TIMER_OUT_MS"])
        self.sent[body] = Sent(deliver_ms, out_ms, is_durable=self.is_sync)

    @precondition(lambda self: any(message.out_ms is not None for message in self.sent.values()))
    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        waiting = [body for body, message in self.sent.items() if message.out_ms is not None]
        body = data.draw(st.sampled_from(waiting))
        message = self.sent[body]
        assert message.out_ms is not None
        key = body.decode()
        properties = {"TIMER_DELIVER_MS": str(message.out_ms + 1), "UNIQ_KEY": key,
                      "TIMER_DEL_UNIQKEY": key}  # fmt: skip
        try:
            self.timers.park(TOPIC, 0, properties, self.now_ms)
        except RequestRefused:
            assert message.out_ms < self.now_ms
            return
        self.put(names.TIMER_TOPIC, b"0", properties)
        if message.recalled_after is None:
            message.recalled_after = self.delivered()[body]

    # Time and brokers.

    @rule(after_ms=st.sampled_from([1, 400, 1000, 1001, 6000, 21_000]))
    def let_time_pass(self, after_ms: int) -> None:
        self.clock.advance(after_ms)

    @rule(by_ms=st.sampled_from([-3_600_000, -20_000, -500, 3_600_000]))
    def set_clock(self, by_ms: int) -> None:
        self.clock.set(self.now_ms + by_ms)
        for body, message in self.sent.items():
            if body.startswith(b"level"):
                message.not_before_ms = 0

    @rule()
    def step_levels(self) -> None:
        self.delayed.step(self.now_ms)
        self.store.step_memory()

    @rule()
    def step_timers(self) -> None:
        self.timers.step(self.now_ms)
        self.store.step_memory()

    @rule()
    def sync(self) -> None:
        self.store.sync()
        self.store.step_memory()
        self.delayed.step(self.now_ms)
        self.timers.step(self.now_ms)
        for message in self.sent.values():
            message.is_durable = True

    @rule()
    def save(self) -> None:
        self.delayed.table.save(self.now_ms)
        self.timers.table.save(self.now_ms)

    @rule(levels=st.sampled_from([None, *LEVELS]))
    def restart(self, levels: str | None) -> None:
        self.store.sync()
        self.store.step_memory()
        before = self.delivered()
        self.delayed.close()
        self.timers.close(self.now_ms)
        self.save()
        self.store.close()
        if levels is not None and levels != self.levels:
            self.levels = levels
            for body, message in self.sent.items():
                if body.startswith(b"level"):
                    message.not_before_ms = 0
        self.open()
        for message in self.sent.values():
            message.is_durable = True
        assert self.delivered() == before

    @rule()
    def kill_and_restart(self) -> None:
        self.store.abandon()
        self.open()

    @rule(seed=st.integers(0, 1 << 16), loss=st.sampled_from([Loss.ALL, Loss.SECTORS]))
    def lose_power_and_restart(self, seed: int, loss: Loss) -> None:
        self.disk.lose_power(random.Random(seed), loss, before=self.store.abandon)
        self.open()
        there = {message.body for message in self.everything()}
        for body, message in list(self.sent.items()):
            if not message.is_durable and body not in there:
                del self.sent[body]
        for message in self.sent.values():
            message.is_durable = True
            if message.recalled_after is not None and not self.is_sync:
                message.recalled_after = _ANY  # The recall may be lost without effect.

    # Invariants.

    def messages(self, topic: str, queue_id: int) -> list[StoredMessage]:
        return messages_of(self.store, topic, queue_id)

    def everything(self) -> list[StoredMessage]:
        return [
            message
            for queue in self.store.queues
            for message in self.messages(queue.topic, queue.queue_id)
        ]

    def delivered(self) -> Counter[bytes]:
        return Counter(message.body for message in self.messages(TOPIC, 0))

    @invariant()
    def no_message_is_early_or_delivered_after_its_recall(self) -> None:
        if not hasattr(self, "store"):
            return
        counts: Counter[bytes] = Counter()
        for message in self.messages(TOPIC, 0):
            counts[message.body] += 1
            known = self.sent.get(message.body)
            if known is None:
                continue
            left_ms = int(message.properties.get("TIMER_DEQUEUE_MS", message.store_timestamp))
            assert left_ms >= known.not_before_ms, message.body
        for body, known in self.sent.items():
            if known.recalled_after is not None:
                assert counts[body] <= known.recalled_after, body

    def deliver_the_rest(self) -> None:
        for _ in range(4):
            self.clock.advance(3_600_000)
            self.store.sync()
            self.store.step_memory()
            while self.delayed.step(self.now_ms) | self.timers.step(self.now_ms):
                self.store.sync()
                self.store.step_memory()
        self.no_message_is_early_or_delivered_after_its_recall()
        counts = self.delivered()
        for body, known in self.sent.items():
            assert counts[body] or known.recalled_after is not None, body
        assert len(self.timers) == 0


MODEL_SETTINGS = hypothesis.settings(
    max_examples=2000 if is_thorough else 12,
    stateful_step_count=60 if is_thorough else 30,
    report_multiple_bugs=False,
    deadline=None,
    phases=[phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain],
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)


def test_delays_agree_with_the_model() -> None:
    run_state_machine_as_test(DelayMachine, settings=MODEL_SETTINGS)
