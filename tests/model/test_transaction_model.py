"""Transactions against what their producers know, in any order of what can happen to them.

A producer has made up its mind, or never will. It says so when it likes: about the first copy of
its message or one that it was asked about, late, twice, or not at all. The broker is stopped, is
killed, or loses what was not synced, at any time. Then:

* what is committed is delivered, once at least, and just once while nothing crashes, and nobody
  says again after a restart what was said before it;
* what is rolled back, or not decided, is never delivered;
* in the end each message is delivered, rolled back, or given up.
"""

import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lossy_disk import Loss, LossyDisk
from reput.clock import ManualClock
from reput.format import names, properties as props
from reput.format.message import StoredMessage
from reput.store.message_store import MessageStore
from reput.store.verify import FindingKind
from store_fixture import START_MS, assert_sound, config
from store_subject import step_to_the_end
from transaction_subject import CHECKS_MAX, INTERVAL_MS, Subject

is_thorough = hypothesis.settings.default.max_examples > 100
"""Under ``--hypothesis-profile=soak``."""

COMMIT, ROLLBACK, NEVER = "commit", "rollback", "never known"
INDEX = st.integers(0, 1 << 30)


@dataclass
class Transaction:
    """What a producer knows."""

    mind: str
    copies: list[StoredMessage] = field(default_factory=list)
    """The half message, and those that were asked about."""
    was_told: bool = False
    told_in: int | None = None
    """In which run of the broker that was first."""
    is_told_again: bool = False
    """In a later one."""

    def tell(self, run: int) -> None:
        """Take note that it is told in a run of the broker."""
        self.is_told_again |= self.told_in not in (None, run)
        self.was_told, self.told_in = True, run if self.told_in is None else self.told_in


class TransactionMachine(RuleBasedStateMachine):
    """A store that is opened, crashed and opened again, and its producers."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="reput-transactions-"))
        self.known: dict[bytes, Transaction] = {}
        self.crash_count = 0
        self.run = 0
        self.subject: Subject | None = None

    @initialize(is_sync=st.booleans())
    def begin(self, is_sync: bool) -> None:
        self.settings = {
            "flush_disk_type": "SYNC_FLUSH" if is_sync else "ASYNC_FLUSH",
            "flush_interval_commit_log": 1 << 30,  # only when told to
            "mapped_file_size_consume_queue": 20 * 100,
        }
        self.root = self.folder / "store"
        self.disk = LossyDisk(self.root)
        self.clock = ManualClock(START_MS)
        self.subject = Subject(self._open(), self.clock, disk=self.disk)

    def _open(self) -> MessageStore:
        settings = config(self.root, **self.settings)
        return MessageStore.open(config=settings, clock=self.clock, disk=self.disk)

    @property
    def one(self) -> Subject:
        assert self.subject is not None
        return self.subject

    def teardown(self) -> None:
        try:
            if self.subject is not None:
                self._come_to_the_end()
                self.one.stop()
                assert_sound(self.root, allowed={FindingKind.LOG_EMPTY})
        finally:
            shutil.rmtree(self.folder)

    # --- what happens ---------------------------------------------------------

    @rule(
        mind=st.sampled_from([COMMIT, COMMIT, ROLLBACK, NEVER]),
        immunity_s=st.sampled_from([None, None, 1, 100]),
        age_ms=st.sampled_from([0, 0, 5_000, 3_600_000, -60_000]),
    )
    def send(self, mind: str, immunity_s: int | None, age_ms: int) -> None:
        body = b"%d" % len(self.known)
        properties = {} if immunity_s is None else {props.CHECK_IMMUNITY_TIME: str(immunity_s)}
        born_ms = self.clock.now_ms() - age_ms
        half = self.one.send(body, properties, born_timestamp=born_ms)
        self.known[body] = Transaction(mind, [half])

    @precondition(lambda self: self.known)
    @rule(which=INDEX, copy=INDEX, times=st.integers(1, 2))
    def tell(self, which: int, copy: int, times: int) -> None:
        """A producer says what it knows of a transaction, about any copy that it knows."""
        told = list(self.known.values())[which % len(self.known)]
        for _ in range(times):
            self._tell(told, told.copies[copy % len(told.copies)])

    def _tell(self, told: Transaction, copy: StoredMessage) -> None:
        half = self.one.transactions.half_at(copy.physical_offset)
        if half is None or half.body != copy.body or told.mind is NEVER:
            return  # as the processor does with what is not there any more
        decide = self.one.commit if told.mind is COMMIT else self.one.roll_back
        assert decide(half).status.is_stored
        told.tell(self.run)

    @precondition(lambda self: self.known)
    @rule(which=st.lists(st.tuples(INDEX, INDEX), min_size=1, max_size=4))
    def tell_together(self, which: list[tuple[int, int]]) -> None:
        """Producers say what they know of several transactions in one read."""
        all_known = list(self.known.values())
        told = []
        for number, copy in which:
            one = all_known[number % len(all_known)]
            half = one.copies[copy % len(one.copies)]
            if one.mind is not NEVER and self._stands(half):
                told.append((one, half))
        while told:
            count = self.one.decide_all([(half, one.mind is COMMIT) for one, half in told])
            for one, _ in told[:count]:
                one.tell(self.run)
            told = told[count:]
            if told:
                self._tell(*told.pop(0))

    def _stands(self, half: StoredMessage) -> bool:
        found = self.one.transactions.half_at(half.physical_offset)
        return found is not None and found.body == half.body

    @rule(after_ms=st.sampled_from([0, 1_000, 7_000, INTERVAL_MS, INTERVAL_MS, 3 * INTERVAL_MS]))
    def let_time_pass(self, after_ms: int) -> None:
        self.clock.advance(after_ms)
        if self.settings["flush_disk_type"] == "SYNC_FLUSH":
            self.one.store.sync()
        self.one.asked.clear()
        self.one.run()
        self._take_questions()

    def _take_questions(self) -> None:
        for asked in self.one.asked:
            assert asked.topic == names.HALF_TOPIC
            self.known[asked.body].copies.append(asked)

    @rule(count=st.integers(1, 3))
    def take_steps(self, count: int) -> None:
        """Some, and not all that there is to be done."""
        self.one.asked.clear()
        for _ in range(count):
            self.one.transactions.step(self.clock.now_ms())
        self.one.store.step()
        self._take_questions()

    @rule(is_here=st.booleans())
    def producers_come_and_go(self, is_here: bool) -> None:
        self.one.is_producer_here = is_here

    @rule()
    def sync(self) -> None:
        self.one.sync()
        self.one.save()
        self._take_questions()

    @rule()
    def stop_and_start(self) -> None:
        self.one.stop()
        self._start()

    @rule(loss=st.sampled_from([Loss.NOTHING, Loss.ALL]))
    def crash(self, loss: Loss) -> None:
        self.crash_count += 1
        self.disk.lose_power(random.Random(0), loss, before=self.one.store.abandon)
        self._start()
        self._forget_what_is_lost()

    def _start(self) -> None:
        self.run += 1
        self.one.take(self._open())
        step_to_the_end(self.one.store)

    def _forget_what_is_lost(self) -> None:
        """Under ASYNC_FLUSH a half message may be gone; then nobody knows of its transaction."""
        there = {one.body for one in self.one.messages(names.HALF_TOPIC, 0)}
        for body in self.known.keys() - there:
            del self.known[body]

    # --- what must be so --------------------------------------------------------

    @invariant()
    def nothing_is_delivered_that_should_not_be(self) -> None:
        if self.subject is None:
            return
        for body, count in Counter(self.one.bodies()).items():
            told = self.known[body]
            assert told.mind is COMMIT
            assert told.was_told
            may_be_more = self.crash_count or told.is_told_again
            assert count == 1 or may_be_more, f"{body!r} was delivered {count} times"

    def _come_to_the_end(self) -> None:
        """Producers answer all they are asked."""
        self.one.is_producer_here = True
        for _ in range(CHECKS_MAX + 6):  # an immunity lasts for four rounds
            self.clock.advance(INTERVAL_MS)
            self.one.asked.clear()
            self.one.store.sync()
            self.one.run()
            self._take_questions()
            for asked in list(self.one.asked):
                self._tell(self.known[asked.body], asked)
        self.one.sync()
        self.nothing_is_delivered_that_should_not_be()
        start, end = self.one.transactions.progress()
        assert start == end
        assert self.one.transactions.lost_count == 0
        delivered, given_up = set(self.one.bodies()), set(self.one.given_up())
        for body, told in self.known.items():
            if told.mind is COMMIT:
                assert body in delivered or (body in given_up and not told.was_told)
            elif told.mind is NEVER:
                assert body in given_up
        if self.known:
            half_offset, op_offset = self.one.saved()
            assert (half_offset, op_offset or 0) == (end, len(self.one.ops()))


TestTransactionModel = TransactionMachine.TestCase
TestTransactionModel.settings = hypothesis.settings(
    max_examples=1500 if is_thorough else 12,
    stateful_step_count=50 if is_thorough else 25,
    report_multiple_bugs=False,
    phases=[phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain],
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
