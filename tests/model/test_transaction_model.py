"""Transactions compared with the decisions of their producers, in any order of events.

A producer has decided, or never will. It sends its decision at any time: about the first copy of
its message or one from a check, late, twice, or not at all. The broker is stopped, is killed, or
loses unsynced bytes, at any time. Then:

* a committed message is delivered at least once, and exactly once if there is no crash;
* a message that is rolled back, or not decided, is never delivered;
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
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

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
"""Set by ``--hypothesis-profile=soak``."""

COMMIT, ROLLBACK, NEVER = "commit", "rollback", "never known"
INDEX = st.integers(0, 1 << 30)


@dataclass
class Transaction:
    """A producer's view of a transaction."""

    mind: str
    copies: list[StoredMessage] = field(default_factory=list)
    """The half message, and its copies from checks."""
    is_decided: bool = False


class TransactionMachine(RuleBasedStateMachine):
    """A store that is opened, crashed and opened again, and its producers."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="reput-transactions-"))
        self.known: dict[bytes, Transaction] = {}
        self.crash_count = 0
        self.opened: Subject | None = None

    @initialize(is_sync=st.booleans())
    def begin(self, is_sync: bool) -> None:
        self.settings = {
            "flush_disk_type": "SYNC_FLUSH" if is_sync else "ASYNC_FLUSH",
            "flush_interval_commit_log": 1 << 30,  # Only on demand.
            "mapped_file_size_consume_queue": 20 * 100,
        }
        self.root = self.folder / "store"
        self.disk = LossyDisk(self.root)
        self.clock = ManualClock(START_MS)
        self.opened = Subject(self._open(), self.clock, disk=self.disk)

    def _open(self) -> MessageStore:
        settings = config(self.root, **self.settings)
        return MessageStore.open(config=settings, clock=self.clock, disk=self.disk)

    @property
    def subject(self) -> Subject:
        assert self.opened is not None
        return self.opened

    def teardown(self) -> None:
        try:
            if self.opened is not None:
                self._finish()
                self.subject.stop()
                assert_sound(self.root, allowed={FindingKind.LOG_EMPTY})
        finally:
            shutil.rmtree(self.folder)

    # --- events -------------------------------------------------------------------

    @rule(
        mind=st.sampled_from([COMMIT, COMMIT, ROLLBACK, NEVER]),
        immunity_s=st.sampled_from([None, None, 1, 100]),
        age_ms=st.sampled_from([0, 0, 5_000, 3_600_000, -60_000]),
    )
    def send(self, mind: str, immunity_s: int | None, age_ms: int) -> None:
        body = b"%d" % len(self.known)
        properties = {} if immunity_s is None else {props.CHECK_IMMUNITY_TIME: str(immunity_s)}
        born_ms = self.clock.now_ms() - age_ms
        half = self.subject.send(body, properties, born_timestamp=born_ms)
        self.known[body] = Transaction(mind, [half])

    @precondition(lambda self: self.known)
    @rule(which=INDEX, copy=INDEX, times=st.integers(1, 2))
    def decide(self, which: int, copy: int, times: int) -> None:
        """Send the decision of a transaction, about any of its copies."""
        transaction = list(self.known.values())[which % len(self.known)]
        for _ in range(times):
            self._decide(transaction, transaction.copies[copy % len(transaction.copies)])

    def _decide(self, transaction: Transaction, copy: StoredMessage) -> None:
        half = self.subject.transactions.half_at(copy.physical_offset)
        if half is None or half.body != copy.body or transaction.mind is NEVER:
            return  # As the processor does if the half message no longer exists.
        decide = self.subject.commit if transaction.mind is COMMIT else self.subject.roll_back
        assert decide(half).status.is_stored
        transaction.is_decided = True

    @precondition(lambda self: self.known)
    @rule(which=st.lists(st.tuples(INDEX, INDEX), min_size=1, max_size=4))
    def decide_together(self, which: list[tuple[int, int]]) -> None:
        """Send the decisions of several transactions in one read."""
        all_known = list(self.known.values())
        decisions = []
        for number, copy in which:
            transaction = all_known[number % len(all_known)]
            half = transaction.copies[copy % len(transaction.copies)]
            if transaction.mind is not NEVER and self._exists(half):
                decisions.append((transaction, half))
        while decisions:
            count = self.subject.decide_all(
                [(half, transaction.mind is COMMIT) for transaction, half in decisions]
            )
            for transaction, _ in decisions[:count]:
                transaction.is_decided = True
            decisions = decisions[count:]
            if decisions:
                self._decide(*decisions.pop(0))

    def _exists(self, half: StoredMessage) -> bool:
        message = self.subject.transactions.half_at(half.physical_offset)
        return message is not None and message.body == half.body

    @rule(after_ms=st.sampled_from([0, 1_000, 7_000, INTERVAL_MS, INTERVAL_MS, 3 * INTERVAL_MS]))
    def let_time_pass(self, after_ms: int) -> None:
        self.clock.advance(after_ms)
        if self.settings["flush_disk_type"] == "SYNC_FLUSH":
            self.subject.store.sync()
        self.subject.asked.clear()
        self.subject.run()
        self._take_checks()

    def _take_checks(self) -> None:
        for asked in self.subject.asked:
            assert asked.topic == names.HALF_TOPIC
            self.known[asked.body].copies.append(asked)

    @rule(count=st.integers(1, 3))
    def take_steps(self, count: int) -> None:
        """Take some steps, not all that are due."""
        self.subject.asked.clear()
        for _ in range(count):
            self.subject.transactions.step(self.clock.now_ms())
        self.subject.store.step()
        self._take_checks()

    @rule(is_here=st.booleans())
    def producers_come_and_go(self, is_here: bool) -> None:
        self.subject.is_producer_here = is_here

    @rule()
    def sync(self) -> None:
        self.subject.sync()
        self.subject.save()
        self._take_checks()

    @rule()
    def stop_and_start(self) -> None:
        self.subject.stop()
        self._start()

    @rule(loss=st.sampled_from([Loss.NOTHING, Loss.ALL]))
    def crash(self, loss: Loss) -> None:
        self.crash_count += 1
        self.disk.lose_power(random.Random(0), loss, before=self.subject.store.abandon)
        self._start()
        self._remove_lost_transactions()

    def _start(self) -> None:
        self.subject.take(self._open())
        step_to_the_end(self.subject.store)

    def _remove_lost_transactions(self) -> None:
        """Remove transactions whose half message is lost under ASYNC_FLUSH."""
        there = {message.body for message in self.subject.messages(names.HALF_TOPIC, 0)}
        for body in self.known.keys() - there:
            del self.known[body]

    # --- invariants ---------------------------------------------------------------

    @invariant()
    def only_committed_messages_are_delivered(self) -> None:
        if self.opened is None:
            return
        for body, count in Counter(self.subject.bodies()).items():
            transaction = self.known[body]
            assert transaction.mind is COMMIT
            assert transaction.is_decided
            assert count == 1 or self.crash_count, f"{body!r} was delivered {count} times"

    def _finish(self) -> None:
        """Answer all checks of the broker."""
        self.subject.is_producer_here = True
        for _ in range(CHECKS_MAX + 6):  # An immunity lasts for four rounds.
            self.clock.advance(INTERVAL_MS)
            self.subject.asked.clear()
            self.subject.store.sync()
            self.subject.run()
            self._take_checks()
            for asked in list(self.subject.asked):
                self._decide(self.known[asked.body], asked)
        self.subject.sync()
        self.only_committed_messages_are_delivered()
        start, end = self.subject.transactions.progress()
        assert start == end
        assert self.subject.transactions.lost_count == 0
        delivered, given_up = set(self.subject.bodies()), set(self.subject.given_up())
        for body, transaction in self.known.items():
            if transaction.mind is COMMIT:
                assert body in delivered or (body in given_up and not transaction.is_decided)
            elif transaction.mind is NEVER:
                assert body in given_up
        if self.known:
            half_offset, op_offset = self.subject.saved()
            assert (half_offset, op_offset or 0) == (end, len(self.subject.ops()))


MODEL_SETTINGS = hypothesis.settings(
    max_examples=1500 if is_thorough else 12,
    stateful_step_count=50 if is_thorough else 25,
    report_multiple_bugs=False,
    phases=[phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain],
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)


def test_transactions_agree_with_the_model() -> None:
    run_state_machine_as_test(TransactionMachine, settings=MODEL_SETTINGS)
