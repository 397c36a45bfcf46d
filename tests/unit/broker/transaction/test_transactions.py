"""Half messages on a real store: delivery, checks by producers, and recovery from crashes."""

import json
from pathlib import Path
from typing import Any

import pytest

import golden
import store_fixture
from reput.broker.transaction import transactions
from reput.broker.transaction.transactions import Transactions
from reput.clock import ManualClock
from reput.format import message as record, names, properties as props, sys_flag as flags
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage, PutResult, PutStatus, Refused
from store_fixture import START_MS, RoomyDisk, Stores, needs_kernels
from store_subject import expire_files
from transaction_subject import BROKER_HOST, INTERVAL_MS, Subject

CHECK_TIMES = "TRANSACTION_CHECK_TIMES"


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


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_records_are_those_of_java(version: str, stores: Stores) -> None:
    """A message sent and committed here gets the records that Java stored for the same message."""
    known = golden.messages(version, "clean")
    finals = {
        message["preparedTransactionOffset"]: message
        for message in known
        if message["preparedTransactionOffset"]
    }
    halves = [
        message
        for message in known
        if message["topic"] == names.HALF_TOPIC
        and message["commitLogOffset"] in finals
        and CHECK_TIMES not in message["properties"]
    ]
    ops = [message for message in known if message["topic"] == names.OP_HALF_TOPIC]
    assert len(halves) >= 3
    subject = open_subject(stores)
    body = b"the body is not looked at"
    for java in halves:
        final = finals[java["commitLogOffset"]]
        sent = dict(java["properties"])
        java_key = sent.pop("__transactionId__", None)
        assert java_key == (sent["UNIQ_KEY"] if version == "5.5.0" else None)
        key = {"__transactionId__": sent["UNIQ_KEY"]}  # as 5.5.0
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
            java["topic"], java["queueId"], java["sysFlag"] & ~0x30, java["properties"] | key,
        )  # fmt: skip
        subject.commit(ours)
        delivered = subject.messages(topic, queue_id)[-1]
        # 5.x drops the destination; 4.9 and we keep it.
        place = {} if version == "4.9.7" else {"REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
        assert (
            delivered.sys_flag, delivered.properties, delivered.flag, delivered.queue_id,
            delivered.born_timestamp, delivered.prepared_transaction_offset,
        ) == (
            final["sysFlag"] & ~0x30, {**place, **final["properties"], **key}, final["flag"],
            final["queueId"], final["bornTimestamp"], ours.physical_offset,
        )  # fmt: skip
        assert delivered.body == body
    for op in subject.messages(names.OP_HALF_TOPIC, 0):
        java = ops[0]
        assert (op.tags, op.properties, op.queue_id, op.sys_flag) == (
            java["tags"], java["properties"], java["queueId"], java["sysFlag"],
        )  # fmt: skip
        assert (op.born_host, op.store_host) == (BROKER_HOST, BROKER_HOST)


@pytest.mark.parametrize("place", [{"REAL_TOPIC": "T"}, {"REAL_QID": "0"}, {"REAL_QID": "x"}])
def test_a_half_message_without_a_topic_stays_undecided(
    subject: Subject, place: dict[str, str]
) -> None:
    message = IncomingMessage(names.HALF_TOPIC, b"?", property_bytes=props.encode(place))
    put = subject.store.put(message)
    subject.store.step()
    with pytest.raises(Refused, match="belongs to topic"):
        subject.commit(subject.at(put.physical_offset))
    assert subject.ops() == []
    assert subject.transactions.progress() == (0, 1)


@needs_kernels
@pytest.mark.parametrize("room", range(7))
def test_messages_that_a_put_does_not_store_stay_undecided(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The log has room for ``room`` records, finals and op messages, when three are committed."""
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
    assert count == -(-room // 2)  # an op message without room is put alone
    assert subject.transactions.committed_count == count
    assert subject.bodies() == [b"%d" % number for number in range(count)]
    assert subject.ops() == subject.bodies()
    assert subject.transactions.waiting_count == 3 - count
    assert subject.transactions.put_end == subject.store.max_physical_offset or not count
    assert subject.decide_all(decisions[count:]) == 3 - count
    assert subject.bodies() == subject.ops() == [b"0", b"1", b"2"]


@needs_kernels
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
    assert [message.body for message in subject.round()] == [b"one"]
    subject.commit(subject.asked[0])
    assert subject.bodies() == [b"one"]


# --- asking -----------------------------------------------------------------------------


def test_many_messages_are_checked_in_small_steps(subject: Subject) -> None:
    for number in range(100):
        subject.send(b"%d" % number)
    subject.clock.advance(INTERVAL_MS)
    counts = []
    while subject.transactions.step(subject.clock.now_ms()):
        counts.append(len(subject.asked) - sum(counts))
        subject.store.step()
    assert sum(counts) == 100
    assert max(counts) <= transactions.MESSAGES_PER_STEP


# --- failures (known-bugs.md#stuck-half-messages) ----------


def test_a_message_that_cannot_be_republished_blocks_no_other(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    """Java tries it for a minute in each round, and makes no progress."""
    room = props.LENGTH_MAX - 200
    subject.send(b"large", {"x": "y" * room})
    subject.send(b"other")
    subject.round()
    wide = subject.asked
    assert [half.body for half in wide] == [b"large", b"other"]
    subject.send(b"full", {"x": "y" * (props.LENGTH_MAX - 80)})
    subject.send(b"next")
    assert [half.body for half in subject.round()] == [b"large", b"other", b"next"]
    assert subject.given_up() == [b"full"]
    assert "half message 4 of topic T is moved to TRANS_CHECK_MAX_TIME_TOPIC" in caplog.text


def test_a_damaged_message_is_counted_and_skipped(
    stores: Stores, subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = subject.send(b"bad"), subject.send(b"good")
    subject.save()
    subject.store.close()
    log = Path(subject.store.root) / "commitlog" / "0".zfill(20)
    with log.open("r+b") as file:
        file.seek(bad.physical_offset + 4)
        file.write(b"\0\0\0\0")
    stores.allow(*store_fixture.FindingKind)
    reopen(stores, subject)
    assert [half.body for half in subject.round()] == [b"good"]
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
    stores.allow(*store_fixture.FindingKind)


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
    stores.allow(*store_fixture.FindingKind)


def test_an_invalid_op_message_is_ignored(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    subject.send(b"one")
    for body, tag in ((b"nonsense", "d"), (b"0", "x"), (b"99", "d"), (b"\xff", "d")):
        properties = props.encode({"TAGS": tag})
        subject.store.put(IncomingMessage(names.OP_HALF_TOPIC, body, property_bytes=properties))
    subject.store.step()
    assert [half.body for half in subject.round()] == [b"one"]
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


def test_op_messages_are_kept_until_their_half_messages_are_passed(subject: Subject) -> None:
    halves = [subject.send(b"%d" % number) for number in range(600)]
    for half in halves[1:]:
        subject.roll_back(half)
    subject.sync()
    assert subject.saved() == (None, None)
    subject.roll_back(halves[0])
    subject.sync()
    assert subject.saved() == (600, 600)


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
    subject.commit(known[min(decided, copies)])  # its producer got no reply
    assert subject.round() == []
    for half in known:
        subject.commit(half)
    assert subject.bodies() == [b"one"]
    assert [message.body for message in subject.messages(names.OP_HALF_TOPIC, 0)] == [
        str(known[min(decided, copies)].queue_offset).encode()
    ]
    start, end = subject.transactions.progress()
    assert start == end


def test_a_final_message_before_the_log_end_has_its_op_message(stores: Stores) -> None:
    """Crashes leave such logs; a store with other damage is not covered."""
    subject = open_subject(stores)
    subject.commit(subject.send(b"one"))
    subject.stop()
    reopen(stores, subject)
    assert len(subject.ops()) == 1


@pytest.mark.parametrize("step_count", range(4))
@pytest.mark.parametrize("which", [0, 1])
def test_a_repeated_decision_after_a_restart_counts_once(
    stores: Stores, step_count: int, which: int
) -> None:
    """Also before the start has found out which half messages are copies."""
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


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("copies", [0, 2])
@pytest.mark.parametrize("is_commit_first", [True, False])
def test_another_decision_after_a_restart_has_no_effect(
    stores: Stores, is_commit_first: bool, copies: int, is_killed: bool
) -> None:
    """About any copy; after a stop the message is before the saved progress."""
    subject = open_subject(stores)
    known = [subject.send(b"one")]
    for _ in range(copies):
        known += subject.round()
    others = [subject.send(b"%d" % number) for number in range(3)]
    first, second = subject.commit, subject.roll_back
    if not is_commit_first:
        first, second = second, first
    for half in (known[-1], *others):
        first(half)
    subject.sync()
    if is_killed:
        subject.store.sync()
        subject.store.abandon()
    else:
        subject.stop()
    expected = [b"one", b"0", b"1", b"2"] if is_commit_first else []
    for _ in range(2):
        reopen(stores, subject)
        for half in (*known, *others):
            second(half)
        assert subject.decide_all([(half, not is_commit_first) for half in known]) == 0
        assert subject.bodies() == expected
        assert len(subject.ops()) == 4
        assert subject.transactions.repeated_count == len(known) + 3
        subject.stop()


@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_first_decision_about_a_message_that_was_given_up_counts_after_a_restart(
    stores: Stores, is_resumed: bool
) -> None:
    subject = open_subject(stores, transaction_check_max=1)
    half = subject.send(b"late")
    (copy,) = subject.round()
    subject.round()
    assert subject.given_up() == [b"late"]
    for number in range(100):
        subject.commit(subject.send(b"%d" % number))
    subject.stop()
    reopen(stores, subject)
    if is_resumed:
        (given_up,) = subject.messages(names.CHECK_MAX_TIME_TOPIC, 0)
        subject.transactions.resume(given_up, subject.clock.now_ms())
    subject.commit(half)
    subject.roll_back(half)
    assert subject.bodies()[100:] == [b"late"]
    subject.stop()
    reopen(stores, subject)
    for repeated in (copy, half):
        subject.commit(repeated)
    assert subject.bodies()[100:] == [b"late"]


def test_a_search_for_a_decision_is_done_in_steps(stores: Stores) -> None:
    subject = open_subject(stores, transaction_check_max=1)
    half = subject.send(b"late")
    subject.round()
    subject.round()
    for number in range(200):
        subject.roll_back(subject.send(b"%d" % number))
    subject.stop()
    reopen(stores, subject)
    steps = sum(1 for _ in subject.transactions.look_up(half))
    assert steps >= 200 // transactions.MESSAGES_PER_STEP
    subject.commit(half)
    assert sum(1 for _ in subject.transactions.look_up(half)) == 0


def test_no_producer_is_asked_before_recovery_is_complete(stores: Stores) -> None:
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
    assert [message.body for message in subject.asked] == [b"0"]


# --- stores of Java -----------------------------------------------------------------------


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_checks_continue_where_java_stopped(version: str, tmp_path: Path) -> None:
    root = golden.copy_store(version, "clean", tmp_path)
    known = golden.messages(version, "clean")
    halves = [message for message in known if message["topic"] == names.HALF_TOPIC]
    subject = continued(root, version, transaction_check_max=100)
    pending = pending_in(subject, known)
    assert len(pending) == 1  # by construction of the stores
    # Java continues at its offsets: they are after all decided messages.
    saved = golden.manifest(version, "clean")["consumerOffsets"]
    start = int(saved.get(f"{names.HALF_TOPIC}@CID_RMQ_SYS_TRANS", {"0": 0})["0"])
    assert subject.transactions.progress() == (start, len(halves))
    asked = subject.round()
    assert {half.unique_key for half in asked} == pending
    assert all(int(half.properties[CHECK_TIMES]) > 1 for half in asked)
    before = len(subject.messages("GoldenTx", asked[0].queue_id))
    (last,) = asked
    subject.commit(last)
    queue_id = int(last.properties["REAL_QID"])
    assert subject.messages("GoldenTx", queue_id)[-1].unique_key == last.unique_key
    assert subject.round() == []
    assert before >= 0
    subject.stop()


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_messages_are_given_up_as_by_java(version: str, tmp_path: Path) -> None:
    root = golden.copy_store(version, "clean", tmp_path)
    known = golden.messages(version, "clean")
    (java,) = [message for message in known if message["topic"] == names.CHECK_MAX_TIME_TOPIC]
    subject = continued(root, version, transaction_check_max=2)
    subject.round()
    given_up = subject.messages(names.CHECK_MAX_TIME_TOPIC, 0)
    assert [stored.unique_key for stored in given_up[:1]] == [java["uniqKey"]]
    assert len(given_up) == 2
    ours = given_up[-1]
    assert (ours.queue_id, ours.sys_flag & ~0x30, ours.reconsume_times) == (
        java["queueId"], java["sysFlag"] & ~0x30, java["reconsumeTimes"],
    )  # fmt: skip
    assert {"REAL_TOPIC", "REAL_QID", CHECK_TIMES, "PGROUP"} <= ours.properties.keys()
    subject.stop()


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_decisions_of_java_are_found_without_its_offsets(version: str, tmp_path: Path) -> None:
    """Both forms of op messages are read; messages republished by Java may be checked again."""
    root = golden.copy_store(version, "clean", tmp_path)
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()
    known = golden.messages(version, "clean")
    subject = continued(root, version, transaction_check_max=100)
    halves = [message for message in known if message["topic"] == names.HALF_TOPIC]
    decided = {message["preparedTransactionOffset"] for message in known}
    asked = {half.unique_key for half in subject.round()}
    never = {half["uniqKey"] for half in halves if half["commitLogOffset"] in decided} - {
        half["uniqKey"] for half in halves if CHECK_TIMES in half["properties"]
    }
    assert never
    assert not asked & never
    assert pending_in(subject, known) <= asked
    subject.stop()


def pending_in(subject: Subject, known: list[dict[str, Any]]) -> set[str]:
    """Return the unique keys of Java's half messages that are not decided."""
    kinds = {}
    for java in known:
        kind = java["properties"].get("tx")
        if kind == "half" and java["topic"] == names.HALF_TOPIC:
            kinds[java["uniqKey"]] = java
        if java["topic"] == names.CHECK_MAX_TIME_TOPIC:
            kinds.pop(java["uniqKey"])
    return set(kinds)


def continued(root: Path, version: str, **settings: Any) -> Subject:
    """Open a store of Java an hour after its last message."""
    sizes = golden.manifest(version, "clean")["config"]
    config = store_fixture.config(
        root,
        mapped_file_size_commit_log=int(sizes["mappedFileSizeCommitLog"]),
        mapped_file_size_consume_queue=int(sizes["mappedFileSizeConsumeQueue"]),
        max_hash_slot_num=int(sizes["maxHashSlotNum"]),
        max_index_num=int(sizes["maxIndexNum"]),
        max_message_size=int(sizes["maxMessageSize"]),
    )
    last_ms = max(message["storeTimestamp"] for message in golden.messages(version, "clean"))
    clock = ManualClock(last_ms + 3_600_000)
    store = MessageStore.open(config=config, clock=clock, disk=RoomyDisk())
    return Subject(store, clock, **settings)
