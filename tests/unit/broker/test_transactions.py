"""Half messages on a real store: what is delivered, who is asked, and after what crash."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import golden
import store_fixture
from reput.broker.transaction import transactions
from reput.broker.transaction.transactions import Transactions
from reput.clock import ManualClock
from reput.errors import RequestRefused
from reput.format import message as record, names, properties as props, sys_flag as flags
from reput.format.codes import ResponseCode
from reput.store.incoming import IncomingMessage, PutResult, PutStatus, Refused
from reput.store.message_store import MessageStore
from store_fixture import START_MS, RoomyDisk, Stores
from store_subject import expire_files
from transaction_subject import BROKER_HOST, CHECKS_MAX, INTERVAL_MS, TIMEOUT_MS, Subject

CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
FIRST = "TRAN_PREPARED_QUEUE_OFFSET"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"


def open_subject(stores: Stores, clock: ManualClock | None = None, **settings: Any) -> Subject:
    clock = clock or ManualClock(START_MS)
    broker = {name: settings.pop(name) for name in list(settings) if "transaction" in name}
    store = stores.open(clock=clock, mapped_file_size_consume_queue=20 * 1000, **settings)
    return Subject(store, clock, **broker)


def reopen(stores: Stores, subject: Subject, **settings: Any) -> None:
    subject.take(
        stores.open(clock=subject.clock, mapped_file_size_consume_queue=20 * 1000, **settings)
    )


@pytest.fixture
def subject(stores: Stores) -> Subject:
    return open_subject(stores)


# --- half, commit, roll back ------------------------------------------------------------


def test_nobody_sees_a_message_before_it_is_committed(subject: Subject) -> None:
    half = subject.send(b"one")
    assert subject.bodies() == []
    assert subject.commit(half).status is PutStatus.PUT_OK
    assert subject.bodies() == [b"one"]
    assert subject.ops() == [b"0"]


def test_a_message_that_is_rolled_back_is_never_seen(subject: Subject) -> None:
    half = subject.send(b"one")
    subject.roll_back(half)
    assert subject.round() == []
    assert subject.bodies() == []
    assert subject.ops() == [b"0"]
    assert subject.transactions.progress() == (1, 1)


def test_what_is_told_twice_counts_once(subject: Subject) -> None:
    subject.send(b"open")  # what is before nothing undecided is forgotten
    first, second = subject.send(b"one"), subject.send(b"two")
    subject.commit(first)
    subject.commit(first)
    subject.roll_back(first)
    subject.roll_back(second)
    subject.commit(second)
    assert subject.bodies() == [b"one"]
    assert subject.ops() == [b"1", b"2"]
    assert subject.transactions.repeated_count == 3


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_records_are_those_of_java(version: str, stores: Stores) -> None:
    """What Java made of a message that was sent, committed: we make the same of it."""
    known = golden.messages(version, "clean")
    finals = {
        one["preparedTransactionOffset"]: one for one in known if one["preparedTransactionOffset"]
    }
    halves = [
        one
        for one in known
        if one["topic"] == names.HALF_TOPIC
        and one["commitLogOffset"] in finals
        and CHECK_TIMES not in one["properties"]
    ]
    ops = [one for one in known if one["topic"] == names.OP_HALF_TOPIC]
    assert len(halves) >= 3
    subject = open_subject(stores)
    body = b"the body is not looked at"
    for java in halves:
        final = finals[java["commitLogOffset"]]
        sent = dict(java["properties"])
        topic, queue_id = sent.pop("REAL_TOPIC"), int(sent.pop("REAL_QID"))
        message = IncomingMessage(
            topic, body, queue_id, born_timestamp=java["bornTimestamp"], flag=java["flag"],
            sys_flag=(java["sysFlag"] & ~0x30) | flags.TRANSACTION_PREPARED,
        )  # fmt: skip
        subject.transactions.hold_back(message, sent, START_MS)
        message.property_bytes = props.encode(sent)
        put = subject.store.put(message)
        subject.store.step()
        ours = subject.at(put.physical_offset)
        assert (ours.topic, ours.queue_id, ours.sys_flag, ours.properties) == (
            java["topic"], java["queueId"], java["sysFlag"] & ~0x30, java["properties"],
        )  # fmt: skip
        subject.commit(ours)
        delivered = subject.messages(topic, queue_id)[-1]
        # 5.x forgets where it was to go; 4.9 and we do not.
        place = {} if version == "4.9.7" else {"REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
        assert (
            delivered.sys_flag, delivered.properties, delivered.flag, delivered.queue_id,
            delivered.born_timestamp, delivered.prepared_transaction_offset,
        ) == (
            final["sysFlag"] & ~0x30, {**place, **final["properties"]}, final["flag"],
            final["queueId"], final["bornTimestamp"], ours.physical_offset,
        )  # fmt: skip
        assert delivered.body == body
    for op in subject.messages(names.OP_HALF_TOPIC, 0):
        java = ops[0]
        assert (op.tags, op.properties, op.queue_id, op.sys_flag) == (
            java["tags"], java["properties"], java["queueId"], java["sysFlag"],
        )  # fmt: skip
        assert (op.born_host, op.store_host) == (BROKER_HOST, BROKER_HOST)


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_half_message_cannot_be_delayed(subject: Subject, name: str) -> None:
    """Java stores it where nobody delivers it, and clients take the delay away, or refuse."""
    with pytest.raises(RequestRefused, match=f"{name}: a message of a transaction cannot") as found:
        subject.send(b"one", {name: "3"})
    assert found.value.response_code == ResponseCode.MESSAGE_ILLEGAL


def test_transactions_can_be_refused(stores: Stores) -> None:
    subject = open_subject(stores, reject_transaction_message=True)
    with pytest.raises(RequestRefused, match="sending transaction message is forbidden") as found:
        subject.send(b"one")
    assert found.value.response_code == ResponseCode.NO_PERMISSION
    stores.allow(*store_fixture.Kind)


@pytest.mark.parametrize(
    ("properties", "reconsume_times", "expected"),
    [
        ({"TRAN_MSG": "true"}, 0, True),
        ({"TRAN_MSG": "TRUE"}, 0, True),
        ({"TRAN_MSG": "false"}, 0, False),
        ({"TRAN_MSG": "1"}, 0, False),
        ({}, 0, False),
        ({"TRAN_MSG": "true", "DELAY": "3"}, 2, False),  # a client before 4.6.1 sends it back
        ({"TRAN_MSG": "true"}, 2, True),
    ],
)
def test_which_messages_are_half(
    properties: dict[str, str], reconsume_times: int, expected: bool
) -> None:
    assert transactions.is_half(properties, reconsume_times) is expected


@pytest.mark.parametrize("place", [{"REAL_TOPIC": "T"}, {"REAL_QID": "0"}, {"REAL_QID": "x"}])
def test_a_half_message_that_belongs_nowhere_stays_undecided(
    subject: Subject, place: dict[str, str]
) -> None:
    message = IncomingMessage(names.HALF_TOPIC, b"?", property_bytes=props.encode(place))
    put = subject.store.put(message)
    subject.store.step()
    with pytest.raises(Refused, match="belongs to topic"):
        subject.commit(subject.at(put.physical_offset))
    assert subject.ops() == []
    assert subject.transactions.progress() == (0, 1)


@pytest.mark.parametrize("room", range(7))
def test_what_one_put_does_not_take_stays_undecided(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The log has room for so many records, finals and op messages, when three are committed."""
    decisions = [(subject.send(b"%d" % number), True) for number in range(3)]
    put = MessageStore.put_encoded

    def put_some(
        store: MessageStore, data: bytes, count: int, now_ms: int
    ) -> tuple[int, memoryview]:
        end = 0
        for _ in range(min(room, count)):
            end += record.SIZE_AND_MAGIC.unpack_from(data, end)[0]
        return put(store, data[:end], min(room, count), now_ms)

    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "put_encoded", put_some)
        count = subject.decide_all(decisions)
    assert count == -(-room // 2)  # an op message that had no room is put alone
    assert subject.transactions.committed_count == count
    assert subject.bodies() == [b"%d" % number for number in range(count)]
    assert subject.ops() == subject.bodies()
    assert subject.transactions.waiting_count == 3 - count
    assert subject.transactions.put_end == subject.store.max_physical_offset or not count
    assert subject.decide_all(decisions[count:]) == 3 - count
    assert subject.bodies() == subject.ops() == [b"0", b"1", b"2"]


def test_an_op_message_that_cannot_be_put_leaves_a_decided_message(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decisions = [(subject.send(b"%d" % number), True) for number in range(2)]
    put = MessageStore.put_encoded

    def put_the_final_one(
        store: MessageStore, data: bytes, count: int, now_ms: int
    ) -> tuple[int, memoryview]:
        (size,) = record.SIZE_AND_MAGIC.unpack_from(data)[:1]
        return put(store, data[:size], 1, now_ms)

    def refuse(store: MessageStore, message: IncomingMessage, now_ms: int) -> PutResult:
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full")

    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "put_encoded", put_the_final_one)
        patch.setattr(MessageStore, "put", refuse)
        assert subject.decide_all(decisions) == 1
    assert "no op message for half message 0: full" in caplog.text
    assert (subject.bodies(), subject.ops()) == ([b"0"], [])
    assert subject.decide_all(decisions) == 0  # the first is decided
    assert subject.decide_all(decisions[1:]) == 1
    assert subject.bodies() == [b"0", b"1"]


def test_a_commit_that_cannot_be_stored_leaves_no_op_message(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = subject.send(b"one")
    put = MessageStore.put

    def refuse(store: MessageStore, message: IncomingMessage, now_ms: int) -> PutResult:
        if message.topic == "T":
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full")
        return put(store, message, now_ms)

    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "put", refuse)
        assert subject.commit(half).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert subject.ops() == []
    assert [one.body for one in subject.round()] == [b"one"]
    subject.commit(subject.asked[0])
    assert subject.bodies() == [b"one"]


# --- asking -----------------------------------------------------------------------------


def test_a_producer_is_asked_when_the_message_is_old_enough(subject: Subject) -> None:
    subject.round()  # what is sent now waits for the round after the next one's begin
    half = subject.send(b"one")
    assert subject.transactions.waiting_count == 1
    (asked,) = subject.round(INTERVAL_MS)
    assert asked.body == b"one"
    assert subject.transactions.waiting_count == 1
    assert asked.queue_offset == half.queue_offset + 1
    assert asked == dataclasses.replace(
        subject.at(asked.physical_offset),
        body_crc=asked.body_crc, store_size=asked.store_size,
    )  # fmt: skip
    assert asked.properties == {**half.properties, CHECK_TIMES: "1", FIRST: "0"}
    assert asked.born_timestamp == half.born_timestamp


def test_a_young_message_is_left_alone(subject: Subject) -> None:
    subject.clock.advance(INTERVAL_MS - TIMEOUT_MS + 1)
    subject.send(b"one")
    assert subject.round(TIMEOUT_MS - 1) == []
    assert len(subject.round()) == 1


def test_who_does_not_know_is_asked_again_and_then_given_up(subject: Subject) -> None:
    subject.send(b"one")
    times = []
    for _ in range(CHECKS_MAX):
        (asked,) = subject.round()
        times.append(asked.properties[CHECK_TIMES])
    assert times == ["1", "2", "3"]
    assert subject.round() == []
    assert subject.given_up() == [b"one"]
    (found,) = subject.messages(names.CHECK_MAX_TIME_TOPIC, 0)
    assert found.properties[CHECK_TIMES] == "3"
    assert found.properties["REAL_TOPIC"] == "T"
    assert subject.round() == []
    assert subject.transactions.progress() == (4, 4)
    assert subject.bodies() == []


def test_checks_count_while_nobody_is_there_to_be_asked(subject: Subject) -> None:
    """As in Java."""
    subject.is_producer_here = False
    subject.send(b"one")
    for _ in range(CHECKS_MAX):
        assert subject.round() == []
    assert subject.given_up() == []
    subject.round()
    assert subject.given_up() == [b"one"]
    assert (subject.transactions.asked_count, subject.transactions.unasked_count) == (0, 3)


def test_a_late_answer_about_any_copy_decides_the_message(subject: Subject) -> None:
    """Java delivers it, and asks again about the newer copy, which is delivered as well."""
    first = subject.send(b"one")
    other = subject.send(b"two")
    subject.send(b"open")
    (asked, *_) = subject.round()
    subject.round()
    subject.commit(first)
    subject.roll_back(other)
    subject.commit(asked)
    assert [one.body for one in subject.round()] == [b"open"]
    subject.commit(subject.asked[0])
    assert subject.bodies() == [b"one", b"open"]
    subject.run()
    start, end = subject.transactions.progress()
    assert start == end
    subject.roll_back(first)
    subject.commit(asked)
    subject.commit(other)
    assert subject.bodies() == [b"one", b"open"]
    assert subject.transactions.repeated_count == 4
    assert subject.transactions.progress()[0] == subject.transactions.progress()[1]


def test_what_was_given_up_can_be_committed_all_the_same(subject: Subject) -> None:
    half = subject.send(b"one")
    for _ in range(CHECKS_MAX + 1):
        subject.round()
    assert subject.given_up() == [b"one"]
    subject.commit(half)
    assert subject.bodies() == [b"one"]


def test_what_was_given_up_is_asked_about_again(subject: Subject) -> None:
    half = subject.send(b"one")
    for _ in range(CHECKS_MAX + 1):
        subject.round()
    (given_up,) = subject.messages(names.CHECK_MAX_TIME_TOPIC, 0)
    assert subject.transactions.resume(given_up, subject.clock.now_ms()).status.is_stored
    subject.store.step()
    (asked,) = subject.round()
    assert asked.properties[CHECK_TIMES] == "1"
    subject.commit(half)  # what is said of the first counts for the one that came back
    assert subject.bodies() == [b"one"]
    assert subject.round() == []


def test_a_half_message_that_waits_can_be_asked_about_from_the_beginning(
    subject: Subject,
) -> None:
    subject.send(b"one")
    for _ in range(2):
        (asked,) = subject.round()
    subject.transactions.resume(asked, subject.clock.now_ms())
    subject.store.step()
    (again,) = subject.round()
    assert (asked.properties[CHECK_TIMES], again.properties[CHECK_TIMES]) == ("2", "1")


def test_only_half_messages_are_resumed(subject: Subject) -> None:
    half = subject.send(b"one")
    subject.commit(half)
    (final,) = subject.messages()
    with pytest.raises(RequestRefused, match="allowed: one that was given up"):
        subject.transactions.resume(final, START_MS)


def test_a_message_may_want_to_be_left_alone_for_longer(subject: Subject) -> None:
    subject.send(b"patient", {IMMUNITY: "100"})
    subject.send(b"other")
    assert [one.body for one in subject.round()] == [b"other"]  # it does not hold others up
    start, end = subject.transactions.progress()
    assert (start, end) == (2, 4)
    assert [one.body for one in subject.round()] == [b"other"]
    assert [one.body for one in subject.round()] == [b"other"]
    asked = subject.round()  # 120 s
    assert [one.body for one in asked] == [b"patient"]
    # In Java the rounds in which it was left alone count as checks.
    assert asked[0].properties[CHECK_TIMES] == "1"
    assert asked[0].properties[FIRST] == "0"


def test_a_message_that_was_left_alone_is_decided_by_its_first_copy(subject: Subject) -> None:
    half = subject.send(b"patient", {IMMUNITY: "100"})
    subject.round()
    subject.round()
    subject.commit(half)
    assert subject.bodies() == [b"patient"]
    for _ in range(4):
        assert subject.round() == []


def test_a_clock_that_is_set_back_stops_nothing(subject: Subject) -> None:
    subject.send(b"one")
    subject.clock.set(START_MS - 3_600_000)
    subject.run()  # it begins a round at once: nobody knows when the last one was
    assert subject.asked == []  # stored after the round began
    subject.clock.set(START_MS + 1)
    assert len(subject.round()) == 1


def test_many_are_asked_about_a_few_at_a_time(subject: Subject) -> None:
    for number in range(100):
        subject.send(b"%d" % number)
    subject.clock.advance(INTERVAL_MS)
    counts = []
    while subject.transactions.step(subject.clock.now_ms()):
        counts.append(len(subject.asked) - sum(counts))
        subject.store.step()
    assert sum(counts) == 100
    assert max(counts) <= transactions.MESSAGES_PER_STEP


# --- what goes wrong (known-bugs.md#stuck-half-messages)
# --------------------------------------------------------


def test_a_message_that_cannot_be_put_back_holds_nobody_up(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    """Java tries it for a minute, in each round, and gets no further."""
    room = props.LENGTH_MAX - 200
    subject.send(b"large", {"x": "y" * room})
    subject.send(b"other")
    subject.round()
    wide = subject.asked
    assert [one.body for one in wide] == [b"large", b"other"]
    subject.send(b"full", {"x": "y" * (props.LENGTH_MAX - 80)})
    subject.send(b"next")
    assert [one.body for one in subject.round()] == [b"large", b"other", b"next"]
    assert subject.given_up() == [b"full"]
    assert "half message 4 of topic T is moved to TRANS_CHECK_MAX_TIME_TOPIC" in caplog.text


def test_a_damaged_message_is_counted_and_passed(
    stores: Stores, subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = subject.send(b"bad"), subject.send(b"good")
    subject.save()
    subject.store.close()
    log = Path(subject.store.root) / "commitlog" / "0".zfill(20)
    with log.open("r+b") as file:
        file.seek(bad.physical_offset + 4)
        file.write(b"\0\0\0\0")
    stores.allow(*store_fixture.Kind)
    reopen(stores, subject)
    assert [one.body for one in subject.round()] == [b"good"]
    assert subject.transactions.lost_count == 1
    assert f"{names.HALF_TOPIC}, message 0: it cannot be read" in caplog.text
    assert subject.transactions.progress() == (2, 3)
    assert good.queue_offset == 1


def test_a_message_whose_last_copy_is_damaged_can_be_decided(
    stores: Stores, subject: Subject
) -> None:
    half = subject.send(b"one")
    (copy,) = subject.round()
    log = Path(subject.store.root) / "commitlog" / "0".zfill(20)
    with log.open("r+b") as file:
        file.seek(copy.physical_offset + 4)
        file.write(b"\0\0\0\0")
    assert subject.round() == []
    assert subject.transactions.lost_count == 1
    subject.commit(half)
    assert subject.bodies() == [b"one"]
    stores.allow(*store_fixture.Kind)


def test_a_full_disk_ends_a_round_and_nothing_is_lost(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        subject.send(b"%d" % number)
    full = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="the disk is full")
    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "put", lambda *_: full)
        assert subject.round() == []
        assert subject.round(500) == []
        assert subject.round(500) == []
    assert caplog.text.count("the disk is full") == 1
    assert [one.body for one in subject.round(1000)] == [b"0", b"1", b"2"]


def test_half_messages_that_expire_are_counted(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    subject = open_subject(stores, file_reserved_time=1)
    for _ in range(40):
        subject.send(bytes(4000))
    queue = subject.store.queues.find(names.HALF_TOPIC, 0)
    assert queue is not None
    expire_files(subject.store, 64 * 1024)
    assert queue.min_offset > 0
    subject.run()
    assert subject.transactions.lost_count == queue.min_offset
    assert "have expired" in caplog.text
    stores.allow(*store_fixture.Kind)


def test_an_op_message_that_says_nonsense_is_ignored(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    subject.send(b"one")
    for body, tag in ((b"nonsense", "d"), (b"0", "x"), (b"99", "d"), (b"\xff", "d")):
        properties = props.encode({"TAGS": tag})
        subject.store.put(IncomingMessage(names.OP_HALF_TOPIC, body, property_bytes=properties))
    subject.store.step()
    assert [one.body for one in subject.round()] == [b"one"]
    assert caplog.text.count("its content is not valid") == 3
    assert "message 2: it is about half message 99; there are 1" in caplog.text


# --- restarts -----------------------------------------------------------------------------


def test_progress_is_saved_when_it_is_durable(stores: Stores) -> None:
    subject = open_subject(stores, flush_interval_commit_log=1 << 30)
    halves = [subject.send(b"%d" % number) for number in range(3)]
    for half in halves[:2]:
        subject.roll_back(half)
    subject.run()
    assert subject.saved() == (None, None)
    subject.sync()
    assert subject.saved() == (2, 2)
    subject.commit(halves[2])
    subject.stop()
    table = json.loads((Path(subject.store.root) / "config/consumerOffset.json").read_text())
    assert table["offsetTable"] == {
        f"{names.HALF_TOPIC}@CID_RMQ_SYS_TRANS": {"0": 3},
        f"{names.OP_HALF_TOPIC}@CID_RMQ_SYS_TRANS": {"0": 3},
    }


def test_op_messages_are_needed_until_what_they_decide_is_passed(subject: Subject) -> None:
    halves = [subject.send(b"%d" % number) for number in range(600)]
    for half in halves[1:]:
        subject.roll_back(half)
    subject.sync()
    assert subject.saved() == (None, None)
    subject.roll_back(halves[0])
    subject.sync()
    assert subject.saved() == (600, 600)


@pytest.mark.parametrize("is_clean", [True, False])
def test_after_a_restart_it_goes_on(stores: Stores, is_clean: bool) -> None:
    subject = open_subject(stores)
    committed, open_, rolled_back, moved = (
        subject.send(one) for one in (b"committed", b"open", b"rolled back", b"moved")
    )
    assert len(subject.round()) == 4
    subject.commit(committed)
    subject.roll_back(rolled_back)
    late = subject.send(b"late")
    if is_clean:
        subject.stop()
    else:
        subject.store.abandon()
    reopen(stores, subject)
    assert [one.body for one in subject.round()] == [b"open", b"moved", b"late"]
    for half in (open_, moved, late):
        subject.commit(half)  # known by the first copy
    assert subject.round() == []
    assert subject.bodies() == [b"committed", b"open", b"moved", b"late"]
    start, end = subject.transactions.progress()
    assert start == end
    assert CHECK_TIMES not in late.properties


def test_a_message_with_many_copies_waits_after_a_crash(stores: Stores) -> None:
    subject = open_subject(stores)
    subject.send(b"one")
    for _ in range(CHECKS_MAX - 1):
        subject.round()
    subject.store.abandon()
    reopen(stores, subject)
    subject.run()
    assert subject.transactions.waiting_count == 1
    assert [one.body for one in subject.round()] == [b"one"]


@pytest.mark.parametrize("copies", [0, 1, 2])
@pytest.mark.parametrize("decided", [0, 1, 2])
def test_a_crash_between_final_and_op_message_delivers_once(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, copies: int, decided: int
) -> None:
    subject = open_subject(stores)
    known = [subject.send(b"one")]
    for _ in range(copies):
        known += subject.round()
    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "_put_op", lambda *_, **__: PutResult(PutStatus.PUT_OK))
        subject.commit(known[min(decided, copies)])
    assert subject.ops() == []
    subject.store.abandon()
    reopen(stores, subject)
    assert subject.transactions.lost_count == 0
    subject.commit(known[min(decided, copies)])  # its producer did not hear of it
    assert subject.round() == []
    for half in known:
        subject.commit(half)
    assert subject.bodies() == [b"one"]
    assert [one.body for one in subject.messages(names.OP_HALF_TOPIC, 0)] == [
        str(known[min(decided, copies)].queue_offset).encode()
    ]
    start, end = subject.transactions.progress()
    assert start == end


def test_what_a_client_sends_as_committed_decides_nothing(stores: Stores) -> None:
    """Its prepared transaction offset is 0, where a half message may stand."""
    subject = open_subject(stores)
    half = subject.send(b"one")
    assert half.physical_offset == 0
    sent = IncomingMessage("T", b"one", 2, sys_flag=flags.TRANSACTION_COMMIT)
    assert subject.store.put(sent).status.is_stored
    subject.store.abandon()
    reopen(stores, subject)
    assert [one.body for one in subject.round()] == [b"one"]


def test_a_final_message_that_does_not_end_the_log_has_its_op_message(stores: Stores) -> None:
    """So it is with what crashes leave; of stores that were damaged otherwise nobody knows."""
    subject = open_subject(stores)
    subject.commit(subject.send(b"one"))
    subject.stop()
    reopen(stores, subject)
    assert len(subject.ops()) == 1


@pytest.mark.parametrize("step_count", range(4))
@pytest.mark.parametrize("which", [0, 1])
def test_what_is_told_twice_after_a_restart_counts_once(
    stores: Stores, step_count: int, which: int
) -> None:
    """Also before it is known which half messages are copies of others."""
    subject = open_subject(stores)
    known = [subject.send(b"one"), *subject.round()]
    subject.stop()
    reopen(stores, subject)
    for _ in range(step_count):
        subject.transactions.step(subject.clock.now_ms())
    for _ in range(2):
        subject.commit(known[which])
    assert subject.round() == []
    for half in known:
        subject.commit(half)
    assert subject.bodies() == [b"one"]
    assert subject.transactions.waiting_count == 0


def test_nobody_is_asked_before_all_is_read_again(stores: Stores) -> None:
    subject = open_subject(stores)
    halves = [subject.send(b"%d" % number) for number in range(200)]
    for half in halves[1:]:
        subject.roll_back(half)
    subject.save()
    subject.store.abandon()
    reopen(stores, subject)
    subject.clock.advance(INTERVAL_MS)
    steps = 0
    while not subject.transactions.is_read:
        assert subject.transactions.step(subject.clock.now_ms())
        assert subject.asked == []
        steps += 1
    assert steps >= 200 // transactions.MESSAGES_PER_STEP
    subject.run()
    assert [one.body for one in subject.asked] == [b"0"]


def test_offsets_beyond_the_queues_are_corrected(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    subject = open_subject(stores)
    subject.send(b"one")
    for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC):
        subject.offsets.put(topic, names.TRANSACTION_GROUP, 0, 77)
    subject.stop()
    with caplog.at_level(logging.ERROR):
        reopen(stores, subject)
    assert caplog.text.count("saved offset 77") == 2
    assert subject.saved() == (1, 0)
    subject.save()


# --- stores of Java -----------------------------------------------------------------------


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_where_java_stopped_it_goes_on(version: str, tmp_path: Path) -> None:
    root = golden.copy_store(version, "clean", tmp_path)
    known = golden.messages(version, "clean")
    halves = [one for one in known if one["topic"] == names.HALF_TOPIC]
    subject = continued(root, version, transaction_check_max=100)
    pending = pending_in(subject, known)
    assert len(pending) == 1  # the stores were made so
    # Java begins at its offsets: all that it has dealt with is behind them.
    saved = golden.manifest(version, "clean")["consumerOffsets"]
    start = int(saved.get(f"{names.HALF_TOPIC}@CID_RMQ_SYS_TRANS", {"0": 0})["0"])
    assert subject.transactions.progress() == (start, len(halves))
    asked = subject.round()
    assert {one.unique_key for one in asked} == pending
    assert all(int(one.properties[CHECK_TIMES]) > 1 for one in asked)
    before = len(subject.messages("GoldenTx", asked[0].queue_id))
    (last,) = asked
    subject.commit(last)
    queue_id = int(last.properties["REAL_QID"])
    assert subject.messages("GoldenTx", queue_id)[-1].unique_key == last.unique_key
    assert subject.round() == []
    assert before >= 0
    subject.stop()


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_what_java_gave_up_we_give_up_alike(version: str, tmp_path: Path) -> None:
    root = golden.copy_store(version, "clean", tmp_path)
    known = golden.messages(version, "clean")
    (java,) = [one for one in known if one["topic"] == names.CHECK_MAX_TIME_TOPIC]
    subject = continued(root, version, transaction_check_max=2)
    subject.round()
    found = subject.messages(names.CHECK_MAX_TIME_TOPIC, 0)
    assert [one.unique_key for one in found[:1]] == [java["uniqKey"]]
    assert len(found) == 2
    ours = found[-1]
    assert (ours.queue_id, ours.sys_flag & ~0x30, ours.reconsume_times) == (
        java["queueId"], java["sysFlag"] & ~0x30, java["reconsumeTimes"],
    )  # fmt: skip
    assert {"REAL_TOPIC", "REAL_QID", CHECK_TIMES, "PGROUP"} <= ours.properties.keys()
    subject.stop()


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_all_that_java_decided_is_known_without_its_offsets(version: str, tmp_path: Path) -> None:
    """Both forms of op messages are read; what Java had put again it may ask about once more."""
    root = golden.copy_store(version, "clean", tmp_path)
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()
    known = golden.messages(version, "clean")
    subject = continued(root, version, transaction_check_max=100)
    halves = [one for one in known if one["topic"] == names.HALF_TOPIC]
    decided = {one["preparedTransactionOffset"] for one in known}
    asked = {one.unique_key for one in subject.round()}
    never = {one["uniqKey"] for one in halves if one["commitLogOffset"] in decided} - {
        one["uniqKey"] for one in halves if CHECK_TIMES in one["properties"]
    }
    assert never
    assert not asked & never
    assert pending_in(subject, known) <= asked
    subject.stop()


def pending_in(subject: Subject, known: list[dict[str, Any]]) -> set[str]:
    """Return the unique keys of the half messages of Java's that are not decided."""
    kinds = {}
    for one in known:
        kind = one["properties"].get("tx")
        if kind == "half" and one["topic"] == names.HALF_TOPIC:
            kinds[one["uniqKey"]] = one
        if one["topic"] == names.CHECK_MAX_TIME_TOPIC:
            kinds.pop(one["uniqKey"])
    return set(kinds)


def continued(root: Path, version: str, **settings: Any) -> Subject:
    """Open a store of Java's an hour after its last message."""
    sizes = golden.manifest(version, "clean")["config"]
    config = store_fixture.config(
        root,
        mapped_file_size_commit_log=int(sizes["mappedFileSizeCommitLog"]),
        mapped_file_size_consume_queue=int(sizes["mappedFileSizeConsumeQueue"]),
        max_hash_slot_num=int(sizes["maxHashSlotNum"]),
        max_index_num=int(sizes["maxIndexNum"]),
        max_message_size=int(sizes["maxMessageSize"]),
    )
    last_ms = max(one["storeTimestamp"] for one in golden.messages(version, "clean"))
    clock = ManualClock(last_ms + 3_600_000)
    store = MessageStore.open(config=config, clock=clock, disk=RoomyDisk())
    return Subject(store, clock, **settings)
