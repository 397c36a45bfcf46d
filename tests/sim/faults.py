"""Faults put in by hand: the simulation must find each of them.

    python -m sim.faults                 # all of them, up to 200 seeds each
    python -m sim.faults half-visible    # some, by name

Each is a small change of today's code, such as a programmer could make. A fault that no seed finds
shows what the simulation does not see.
"""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import seeds
from reput.broker import assembly
from reput.broker.offset.commits import OffsetCommits
from reput.broker.pending_replies import PendingReplies
from reput.broker.pop.revive import Revive
from reput.broker.replication import tail_check
from reput.broker.replication.log_receiver import LogReceiver
from reput.broker.replication.state import SlaveState
from reput.broker.replication.topic_check import TopicCheck
from reput.broker.timer.timers import Timers
from reput.broker.transaction.transactions import Transactions
from reput.format import sys_flag as flags
from reput.format.codes import RequestCode
from reput.store.log.mapped_file import MappedFile
from reput.store.log.replica_acks import ReplicaAcks
from reput.store.message_store import MessageStore
from reput.store.opening.recovery import Recovery
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.tables.offsets import ConsumerOffsetTable
from reput.store.tables.saved_file import SavedFile, Written
from reput.store.writing.dispatch import Dispatcher
from reput.store.writing.flush import GroupCommit
from reput.store.writing.replica_log import ReplicaLog
from sim.disk import SimDisk
from sim.fault import Fault, Patch, replaced, skipped
from sim.led_faults import LED_FAULTS
from sim.plan import plan
from sim.run import play

SEEDS_MAX = 200
SCENARIOS = Path(__file__).parent / "scenarios"
FAULTS_PER_RUN = 6
"""More than in other runs, so that more of them happen together with the one put in."""

# The faults -------------------------------------------------------------------------------------


def _ack_before_sync() -> Patch:
    def judge(original: Any, self: Any, put: Any, flushed: int, *rest: Any, **more: Any) -> Any:
        return original(self, put, 1 << 62, *rest, **more)

    return replaced(GroupCommit, "_judge", judge)


def _dead_slave_counts() -> Patch:
    def remove(original: Any, self: Any, replica: Any) -> None:
        replica.acked_offset = 1 << 60

    return replaced(ReplicaAcks, "remove", remove)


def _ack_of_fewer_bytes() -> Patch:
    def acked(original: Any, self: ReplicaAcks) -> list[int]:
        return [offset + 3_000 for offset in original(self)]

    return replaced(ReplicaAcks, "acked_offsets", acked)


def _ack_before_write() -> Patch:
    def begin(original: Any, self: Any, header: Any, filled: int) -> None:
        original(self, header, filled)
        self._report(header.physical_offset + header.size)

    return replaced(LogReceiver, "_begin_frame", begin)


def _memory_acks() -> Patch:
    def acknowledge(_original: Any, self: Any) -> None:
        self._report(self._log.end)

    return replaced(LogReceiver, "acknowledge", acknowledge)


def _log_without_sync() -> Patch:
    def sync(original: Any, self: Any, descriptor: int, path: str) -> None:
        if "commitlog" not in path:
            original(self, descriptor, path)

    return replaced(SimDisk, "sync_file", sync)


def _queues_without_sync() -> Patch:
    def sync(original: Any, self: Any, descriptor: int, path: str) -> None:
        if "consumequeue" not in path:
            original(self, descriptor, path)

    return replaced(SimDisk, "sync_file", sync)


def _flushed_after_failure() -> Patch:
    def sync(original: Any, self: Any, descriptor: Any) -> None:
        with contextlib.suppress(Exception):
            original(self, descriptor)

    return replaced(MappedFile, "_sync", sync)


def _offset_twice() -> Patch:
    def cut(original: Any, self: Any, end: int) -> Any:
        done = original(self, end)
        if self.row.tail_offset > 1 and self.topic == "T":
            original(self, max(0, end - 1_000))
        return done

    return replaced(ConsumeQueue, "cut", cut)


def _no_dispatch_at_opening() -> Patch:
    def dispatch(original: Any, self: Any, start: int, end: int, *rest: Any) -> Any:
        return original(self, end, end, *rest)

    return replaced(Recovery, "_dispatch", dispatch)


def _dropped_dispatch() -> Patch:
    numbers = itertools.count(1)

    def step(original: Any, self: Any, limit: int, now_ms: int) -> bool:
        if next(numbers) % 50 == 0 and self.dispatched_offset < limit:
            self.go_to(limit)
            return True
        return bool(original(self, limit, now_ms))

    return replaced(Dispatcher, "step", step)


def _early_dispatch() -> Patch:
    limit = property(lambda self: self.log.readable_offset)
    return mock.patch.object(MessageStore, "_dispatch_limit", limit)


def _half_visible() -> Patch:
    def hold_back(_original: Any, self: Any, message: Any, *_: Any) -> None:
        message.sys_flag &= ~flags.TRANSACTION_ROLLBACK

    return both(
        replaced(Transactions, "hold_back", hold_back), skipped(MessageStore, "take_halves")
    )


def _rollback_commits() -> Patch:
    def decide(original: Any, self: Any, half: Any, *, is_commit: bool, now_ms: int) -> Any:
        return original(self, half, is_commit=True, now_ms=now_ms)

    def decide_all(original: Any, self: Any, ends: Any, now_ms: int) -> Any:
        return original(self, [end._replace(is_commit=True) for end in ends], now_ms)

    return both(
        replaced(Transactions, "decide", decide), replaced(Transactions, "decide_all", decide_all)
    )


def _commit_rolls_back() -> Patch:
    def decide(original: Any, self: Any, half: Any, *, is_commit: bool, now_ms: int) -> Any:
        return original(self, half, is_commit=False, now_ms=now_ms)

    def decide_all(original: Any, self: Any, ends: Any, now_ms: int) -> Any:
        return original(self, [end._replace(is_commit=False) for end in ends], now_ms)

    return both(
        replaced(Transactions, "decide", decide), replaced(Transactions, "decide_all", decide_all)
    )


def _early_delivery() -> Patch:
    def deliver(original: Any, self: Any, properties: Any, now_ms: int) -> int:
        return int(original(self, properties, now_ms)) - 700

    return replaced(Timers, "_deliver_ms", deliver)


def _delays_forgotten() -> Patch:
    def load(original: Any, self: Any) -> None:
        original(self)
        self._taken_up = self._loaded_end

    return replaced(Timers, "load", load)


def _progress_of_timer_ahead() -> Patch:
    def progress(original: Any, self: Any, now_ms: int) -> Any:
        return original(self, now_ms)._replace(oldest=self._taken_up)

    return replaced(Timers, "_progress", progress)


def _offsets_not_saved() -> Patch:
    def replace(original: Any, self: Any, turn: int, data: bytes, *, is_durable: bool) -> Written:
        if "consumerOffset" in self._path:
            return Written.DURABLE
        done: Written = original(self, turn, data, is_durable=is_durable)
        return done

    return replaced(SavedFile, "replace", replace)


def _offsets_go_back() -> Patch:
    numbers = itertools.count(1)

    def put(original: Any, self: Any, topic: str, group: str, queue_id: int, offset: int) -> None:
        if next(numbers) % 10 == 0:
            offset = max(0, offset - 3)
        original(self, topic, group, queue_id, offset)

    return replaced(ConsumerOffsetTable, "put", put)


def _offset_of_next_queue() -> Patch:
    def commit(
        original: Any, self: Any, topic: Any, group: str, queue_id: int, offset: int, *rest: Any
    ) -> None:
        original(self, topic, group, 0, offset, *rest)

    return replaced(OffsetCommits, "commit", commit)


def _no_tail_check() -> Patch:
    async def check(_original: Any, own: Any, master: Any, master_log: Any) -> Any:
        return tail_check.Finding(SlaveState.FOLLOWING)

    return replaced(tail_check, "check", check)


def _bytes_flipped() -> Patch:
    numbers = itertools.count(1)

    def receive(original: Any, self: Any, buffers: Any) -> int:
        count = int(original(self, buffers))
        if next(numbers) % 40 == 0 and count > 200:
            buffers[-1][150] ^= 1
        return count

    return replaced(LogReceiver, "_receive", receive)


def _own_offset_ahead() -> Patch:
    def add(original: Any, self: Any, size: int, filled: Any = None) -> None:
        original(self, size, filled)
        if size > 8_000:
            original(self, 8)

    return replaced(ReplicaLog, "add", add)


def _acks_lost() -> Patch:
    return skipped(Revive, "save_acks")


def _ack_not_parked() -> Patch:
    return replaced(Revive, "_save_acks", lambda _original, self, now_ms, count_max: False)


def _never_revived() -> Patch:
    return replaced(
        Revive, "_revive_message", lambda _original, self, checkpoint, number, now_ms: True
    )


def _send_back_before_sync() -> Patch:
    def put(
        original: Any, self: Any, channel: Any, request: Any, message: Any, *rest: Any, **more: Any
    ) -> Any:
        if request.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            message.waits = False
        return original(self, channel, request, message, *rest, **more)

    return replaced(PendingReplies, "put", put)


def _topics_not_copied() -> Patch:
    return replaced(TopicCheck, "acknowledged_end", lambda _original, self, end: end)


def _lower_offsets_skipped() -> Patch:
    return skipped(assembly, "lower_offsets")


def _names_without_sync() -> Patch:
    def sync(original: Any, self: Any, path: str) -> None:
        """Do nothing: the names in the folder may be lost."""

    return replaced(SimDisk, "sync_folder", sync)


def both(*patches: Patch) -> Patch:
    stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def all_of_them() -> Iterator[None]:
        with stack:
            for patch in patches:
                stack.enter_context(patch)
            yield

    return all_of_them()


PAIRS = ("sync", "disk", "three")
FAULTS: dict[str, Fault] = {
    "ack-before-sync": Fault(
        "a send is acknowledged before the log is durable",
        ("lone", "disk"),
        _ack_before_sync,
        is_found_soon=False,
    ),
    "no-slave-needed": Fault(
        "a SYNC_MASTER waits for no slave",
        PAIRS,
        lambda: replaced(GroupCommit, "slaves_needed", lambda *_: 0),
        is_found_soon=False,
    ),
    "dead-slave-counts": Fault(
        "a slave whose connection has ended counts for everything",
        ("sync", "three"),
        _dead_slave_counts,
        is_found_soon=False,
    ),
    "ack-of-fewer-bytes": Fault(
        "a slave counts that lacks the last bytes", PAIRS, _ack_of_fewer_bytes, is_found_soon=False
    ),
    "ack-before-write": Fault(
        "a slave acknowledges a frame of which it has the header",
        PAIRS,
        _ack_before_write,
        is_found_soon=False,
    ),
    "memory-acks": Fault(
        "haAckAfter=disk acknowledges bytes in memory", ("disk",), _memory_acks, is_found_soon=False
    ),
    "log-without-sync": Fault("the log is not synced", ("lone", "disk"), _log_without_sync),
    "queues-without-sync": Fault(
        "the checkpoint has queues that are not synced",
        ("lone", "disk"),
        _queues_without_sync,
        is_found_soon=False,
    ),
    "names-without-sync": Fault(
        "new files have no durable name", ("lone", "disk"), _names_without_sync
    ),
    "failed-sync-forgotten": Fault(
        "a failed sync counts as a success", ("lone",), _flushed_after_failure
    ),
    "offset-twice": Fault(
        "an opened queue gives an offset again", PAIRS, _offset_twice, is_found_soon=False
    ),
    "no-dispatch-at-opening": Fault(
        "recovery does not dispatch the last records", ("lone", *PAIRS), _no_dispatch_at_opening
    ),
    "dropped-dispatch": Fault("some records never reach a queue", ("lone",), _dropped_dispatch),
    "half-visible": Fault("half messages are delivered", ("lone", "sync"), _half_visible),
    "rollback-commits": Fault("a rollback delivers", ("lone", "sync"), _rollback_commits),
    "commit-rolls-back": Fault("a commit drops the message", ("lone", "sync"), _commit_rolls_back),
    "early-delivery": Fault("a delayed message is 0.7 s early", ("lone", "sync"), _early_delivery),
    "delays-forgotten": Fault(
        "the timer forgets at its start what waits", ("lone", "sync"), _delays_forgotten
    ),
    "timer-ahead": Fault(
        "the saved progress of the timer passes what waits",
        ("lone", "sync"),
        _progress_of_timer_ahead,
    ),
    "offsets-not-saved": Fault(
        "consumer offsets are never written", ("lone", "sync"), _offsets_not_saved
    ),
    "offsets-go-back": Fault("some commits are 3 too small", ("lone", "sync"), _offsets_go_back),
    "offset-of-other-queue": Fault(
        "a commit changes the wrong queue", ("lone", "sync"), _offset_of_next_queue
    ),
    "no-tail-check": Fault(
        "a slave follows without comparing logs", ("sync", "disk", "async"), _no_tail_check
    ),
    "bytes-flipped": Fault("a slave receives a wrong bit", PAIRS, _bytes_flipped),
    "log-too-long": Fault("a slave adds more than it got", PAIRS, _own_offset_ahead),
    "acks-lost-at-stop": Fault(
        "a broker that stops drops acks", ("lone", "sync"), _acks_lost, is_found_soon=False
    ),
    "acks-not-parked": Fault("acks stay in memory", ("lone", "sync"), _ack_not_parked),
    "never-revived": Fault(
        "unacknowledged messages do not come back", ("lone", "sync"), _never_revived
    ),
    "send-back-before-sync": Fault(
        "what a consumer sends back is acknowledged before the log is durable",
        ("lone",),
        _send_back_before_sync,
        scenario="send-back-and-power-cut",
    ),
    "topics-not-copied": Fault(
        "a slave acknowledges messages of topics that it lacks",
        PAIRS,
        _topics_not_copied,
        is_found_soon=False,
    ),
    "offsets-not-lowered": Fault(
        "a promoted slave keeps consumer offsets after the ends of queues",
        ("sync", "async"),
        _lower_offsets_skipped,
        is_found_soon=False,
    ),
    "early-dispatch": Fault(
        "consumers see messages that a power cut may remove",
        ("lone",),
        _early_dispatch,
        is_found_soon=False,
    ),
    **LED_FAULTS,
}


def search(name: str, first: int, seeds_max: int = SEEDS_MAX) -> tuple[int, str] | None:
    """Return how many seeds a fault takes, and what was found; None if none finds it."""
    fault = FAULTS[name]
    for number in range(seeds_max):
        kind = fault.kinds[number % len(fault.kinds)]
        lines = plan(first + number, faults=FAULTS_PER_RUN, kind=kind)
        if fault.scenario:
            lines = (SCENARIOS / f"{fault.scenario}.txt").read_text("utf-8").splitlines()
        with fault.put_in():
            outcome = play(first + number, lines)
        if outcome.problems and not play(first + number, lines).problems:
            return number + 1, str(outcome.problems[0])
    return None


def main() -> int:
    """Search faults; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("names", nargs="*", help="by default all")
    parser.add_argument("--first", type=int, help="first seed; by default that of today")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="maximum of a fault")
    options = parser.parse_args()
    missed = []
    for name in options.names or FAULTS:
        first = options.first if options.first is not None else seeds.today()
        result = search(name, first, options.seeds)
        if result is None:
            missed.append(name)
        text = "NOT FOUND" if result is None else f"{result[0]} seeds: {result[1][:150]}"
        print(f"{name:24} {text}", flush=True)  # noqa: T201 - a command
    print(f"{len(missed)} not found: {', '.join(missed) or 'none'}")  # noqa: T201
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
