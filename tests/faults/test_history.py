"""The checker of histories: each rule finds a history that breaks it, and no rule finds another."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.history import (
    SHOWN_MAX,
    Commit,
    Expectation,
    Fault,
    Guarantee,
    History,
    LogCopy,
    Observation,
    Problem,
    Read,
    Rule,
    Send,
    Status,
    digest,
    summary,
)

TOPIC = "T"
BROKERS = ("a", "b")
QUEUES = 3
COUNT = 30
RECORD_BYTES = 100
CUT = 20
"""Messages before the master changes."""
PERIOD_MS = 1_000
FAULT = Fault("kill", 10_000, 12_000)


def whole(guarantee: Guarantee = Guarantee.SYNC) -> History:
    """Return a history that keeps all rules: two producers, a promotion, reads of both brokers.

    Message 5 has status 12 and is stored, message 7 has no reply and is not; 9 was refused.
    """
    history = History(guarantee, BROKERS, sync_period_ms=PERIOD_MS, term=1)
    queue_ends = [0] * QUEUES
    physical = 0
    for number in range(COUNT):
        queue_id, start_ms = number % QUEUES, number * 500 + (2_000 if number >= CUT else 0)
        status = {
            5: Status.FLUSH_SLAVE_TIMEOUT,
            7: Status.UNKNOWN,
            9: Status.REFUSED,
        }.get(number, Status.OK)
        is_stored = number not in (7, 9)
        send = Send(
            key=f"k{number}",
            producer=f"p{number % 2}",
            broker="a" if number < CUT else "b",
            topic=TOPIC,
            queue_id=queue_id,
            body=digest(b"%d" % number),
            started_ms=start_ms,
            ended_ms=start_ms + 20,
            status=status,
            term=int(number >= CUT),
            queue_offset=queue_ends[queue_id] if is_stored else None,
            physical_offset=physical if is_stored else None,
        )
        history.sends.append(send)
        if is_stored:
            add_reads(history, send)
            queue_ends[queue_id] += 1
            physical += RECORD_BYTES
    data = random.Random(1).randbytes(physical)
    history.logs += [LogCopy("a", 0, data), LogCopy("b", 200, data[200:])]
    history.faults.append(FAULT)
    history.expectations.append(Expectation("kill", 10_000, 3_000))
    for time_ms, consumer_offset in ((1_000, 1), (5_000, 3), (9_500, 5), (13_000, 6)):
        history.commits.append(Commit("a", "g", TOPIC, 0, consumer_offset, time_ms))
    history.observations += [
        Observation("a", "g", TOPIC, 0, 3, 8, 6_000),
        Observation("b", "g", TOPIC, 0, 3, 8, 12_500),  # 5 was committed too late to be copied.
        Observation("b", "g", TOPIC, 0, 6, 8, 14_000),
        Observation("a", "g", TOPIC, 0, 3, 8, 13_500, is_master=False),
    ]
    return history


def add_reads(history: History, send: Send) -> None:
    """Add reads of a message: from the master at once, from both brokers at the end."""
    assert send.queue_offset is not None
    assert send.physical_offset is not None
    for broker, time_ms in ((send.broker, send.ended_ms), ("a", 60_000), ("b", 60_000)):
        history.reads.append(
            Read(
                broker,
                send.topic,
                send.queue_id,
                send.queue_offset,
                send.physical_offset,
                send.key,
                send.body,
                time_ms,
                is_final=time_ms == 60_000,
            )
        )


def broken_rules(history: History) -> set[Rule]:
    return {problem.rule for problem in history.check()}


def drop(history: History, key: str, broker: str | None = None) -> None:
    """Remove a message from the final reads of a broker or of all."""
    history.reads = [
        read
        for read in history.reads
        if not (read.is_final and read.key == key and broker in (None, read.broker))
    ]


def change_sends(history: History, key: str, **changes: object) -> None:
    history.sends = [
        dataclasses.replace(send, **changes) if send.key == key else send  # type: ignore[arg-type]
        for send in history.sends
    ]


def change_reads(history: History, is_meant: Callable[[Read], bool], **changes: object) -> None:
    history.reads = [
        dataclasses.replace(read, **changes) if is_meant(read) else read  # type: ignore[arg-type]
        for read in history.reads
    ]


# --- one broken history for each rule ------------------------------------------------


def lose_a_message(history: History) -> None:
    drop(history, "k8")


def lose_a_message_on_one_replica(history: History) -> None:
    drop(history, "k8", "b")


def change_a_byte(history: History) -> None:
    change_reads(history, lambda read: read.key == "k8" and read.is_final, body=digest(b"other"))


def read_nothing(history: History) -> None:
    history.reads.clear()
    history.replicas = ()


def give_an_offset_twice(history: History) -> None:
    change_sends(history, "k21", queue_offset=2)


def read_another_message_at_a_place(history: History) -> None:
    """Read another message at the place of an acknowledged one."""
    change_reads(history, lambda read: read.key == "k12" and not read.is_final, queue_offset=1)


def swap_two_messages(history: History) -> None:
    """Store two messages of a producer in the wrong order, on all replicas."""
    places = {"k12": 5, "k18": 3}
    for key, queue_offset in places.items():
        change_sends(history, key, queue_offset=queue_offset)
        change_reads(history, lambda read, key=key: read.key == key, queue_offset=queue_offset)  # type: ignore[misc]


def swap_two_messages_in_the_log_alone(history: History) -> None:
    for key, queue_offset in {"k12": 5, "k18": 3}.items():
        change_reads(history, lambda read, key=key: read.key == key, queue_offset=queue_offset)  # type: ignore[misc]


def read_an_unsent_message(history: History) -> None:
    history.reads.append(Read("a", TOPIC, 0, 90, 9_000, "x", digest(b"x"), 5_000))


def read_from_another_queue(history: History) -> None:
    history.reads.append(Read("a", TOPIC, 0, 90, 9_000, "k8", digest(b"8"), 5_000))


def store_a_message_twice(history: History) -> None:
    for broker in BROKERS:
        read = Read(broker, TOPIC, 2, 90, 9_000, "k8", digest(b"8"), 60_000, is_final=True)
        history.reads.append(read)


def store_a_refused_message(history: History) -> None:
    for broker in BROKERS:
        read = Read(broker, TOPIC, 0, 90, 9_000, "k9", digest(b"9"), 60_000, is_final=True)
        history.reads.append(read)


def let_logs_differ(history: History) -> None:
    log = history.logs[1]
    data = bytearray(log.data)
    data[700] ^= 1
    history.logs[1] = dataclasses.replace(log, data=bytes(data))


def let_a_log_be_shorter(history: History) -> None:
    log = history.logs[1]
    history.logs[1] = dataclasses.replace(log, data=log.data[:-RECORD_BYTES])


def leave_a_log_out(history: History) -> None:
    history.logs.pop()


def let_queues_differ(history: History) -> None:
    """Store an indeterminate message on one replica only."""
    drop(history, "k5", "b")


def move_an_offset_back(history: History) -> None:
    history.observations.append(Observation("a", "g", TOPIC, 0, 2, 8, 7_000))


def forget_a_copied_offset(history: History) -> None:
    history.observations.append(Observation("b", "g", TOPIC, 0, 1, 8, 12_600))


def move_an_offset_back_after_healing(history: History) -> None:
    history.observations.append(Observation("b", "g", TOPIC, 0, 5, 8, 14_500))


def let_a_slave_never_copy(history: History) -> None:
    history.observations.append(Observation("b", "g", TOPIC, 0, 1, 8, 9_000, is_master=False))


def serve_late(history: History) -> None:
    history.expectations.append(Expectation("kill", 9_600, 2_300))


def never_serve_again(history: History) -> None:
    history.expectations.append(Expectation("healing", 40_000, 10_000))


BROKEN: dict[Callable[[History], None], set[Rule]] = {
    lose_a_message: {Rule.LOST},
    lose_a_message_on_one_replica: {Rule.LOST, Rule.DIVERGED},
    change_a_byte: {Rule.LOST, Rule.PHANTOM},
    read_nothing: {Rule.LOST},
    give_an_offset_twice: {Rule.REUSED, Rule.ORDER},
    read_another_message_at_a_place: {Rule.REUSED},
    swap_two_messages: {Rule.ORDER},
    swap_two_messages_in_the_log_alone: {Rule.REUSED, Rule.ORDER},
    read_an_unsent_message: {Rule.PHANTOM},
    read_from_another_queue: {Rule.PHANTOM},
    store_a_message_twice: {Rule.PHANTOM},
    store_a_refused_message: {Rule.REFUSED},
    let_logs_differ: {Rule.DIVERGED},
    let_a_log_be_shorter: {Rule.DIVERGED},
    leave_a_log_out: {Rule.DIVERGED},
    let_queues_differ: {Rule.DIVERGED},
    move_an_offset_back: {Rule.OFFSETS},
    forget_a_copied_offset: {Rule.OFFSETS},
    move_an_offset_back_after_healing: {Rule.OFFSETS},
    let_a_slave_never_copy: {Rule.OFFSETS},
    serve_late: {Rule.LATE},
    never_serve_again: {Rule.LATE},
}


@pytest.mark.parametrize("guarantee", Guarantee)
def test_a_whole_history_has_no_problem(guarantee: Guarantee) -> None:
    assert whole(guarantee).check() == []


@pytest.mark.parametrize("breaks", BROKEN, ids=lambda breaks: breaks.__name__)
def test_a_broken_history_is_found(breaks: Callable[[History], None]) -> None:
    history = whole()
    breaks(history)
    assert broken_rules(history) == BROKEN[breaks]


def test_each_rule_has_a_broken_history() -> None:
    assert set().union(*BROKEN.values()) == set(Rule)


# --- what the guarantees allow --------------------------------------------------------


def lose_the_end(history: History, first: int) -> None:
    """Remove the messages of the first term from a number on, from both replicas."""
    for number in range(first, CUT):
        drop(history, f"k{number}")


def test_async_may_lose_the_end_of_a_log_only() -> None:
    history = whole(Guarantee.ASYNC)
    lose_the_end(history, 17)
    assert broken_rules(history) == set()
    drop(history, "k10")  # 11 to 16 are still there.
    assert broken_rules(history) == {Rule.LOST}


def test_sync_must_not_lose_the_end() -> None:
    history = whole(Guarantee.SYNC)
    lose_the_end(history, 19)
    assert broken_rules(history) == {Rule.LOST}


def test_async_must_not_lose_what_no_promotion_could_lose() -> None:
    history = whole(Guarantee.ASYNC)
    drop(history, f"k{COUNT - 1}")
    assert broken_rules(history) == {Rule.LOST}


def test_places_of_lost_messages_are_given_again_under_async_only() -> None:
    def history(guarantee: Guarantee) -> History:
        made = whole(guarantee)
        lose_the_end(made, 19)
        change_sends(made, "k22", queue_offset=5)
        change_reads(made, lambda read: read.key == "k22", queue_offset=5)
        change_reads(made, lambda read: read.key == "k19", queue_offset=5)
        change_sends(made, "k19", queue_offset=5)
        return made

    assert Rule.REUSED not in broken_rules(history(Guarantee.ASYNC))
    assert Rule.REUSED in broken_rules(history(Guarantee.SYNC))


def test_reads_of_unacknowledged_messages_count_with_confirmed_reads_only() -> None:
    """The master returned message 7, which no slave had; another message got its place."""
    history = whole()
    history.reads.append(Read("a", TOPIC, 1, 4, 9_000, "k7", digest(b"7"), 9_000))
    assert broken_rules(history) == set()
    history.has_confirmed_reads = True
    assert broken_rules(history) == {Rule.REUSED}


def test_offsets_above_the_end_of_a_queue_are_lowered() -> None:
    history = whole()
    history.observations.append(Observation("b", "g", TOPIC, 0, 2, 2, 12_600))
    assert broken_rules(history) == set()


# --- reports -------------------------------------------------------------------------


def test_a_summary_shows_some_problems_of_each_rule() -> None:
    problems = [Problem(Rule.LOST, f"k{number}") for number in range(SHOWN_MAX + 2)]
    lines = summary([*problems, Problem(Rule.LATE, "never")]).splitlines()
    assert lines[-2:] == ["lost: and 2 more", "late: never"]
    assert len(lines) == SHOWN_MAX + 2


def test_a_history_is_saved(tmp_path: Path) -> None:
    history = whole()
    history.save(tmp_path / "history.jsonl")
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    counted = (history.sends, history.reads, history.commits, history.observations, history.faults)
    assert len(lines) == sum(map(len, counted)) + len(history.expectations) + len(history.logs)
