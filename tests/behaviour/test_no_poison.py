"""Stored messages of clients, however forged, stop no loop, no start and no reader of the store.

A forged record has two origins: a send, which must remove or refuse what clients may not set; and
the log of an older broker, which accepted it. The tests of the second kind store the record without
any checks. A valid message follows each forged one, and must be delivered.
"""

import dataclasses
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import seeds
import world
from pop_client import INVISIBLE_MS, pop, pop_reply
from reput.broker.pop.revive import LATE_MS
from reput.broker.processors import pull as pull_processor
from reput.broker.transaction.transactions import End
from reput.clock import ManualClock
from reput.format import (
    batch,
    headers,
    message as record,
    names,
    properties as props,
    recall_handle as handles,
    sys_flag as flags,
)
from reput.format.batch import InnerMessage
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import EndTransactionHeader, RecallMessageHeader, ResumeCheckHeader
from reput.format.message import StoredMessage
from reput.format.message_id import encode_offset_id
from reput.format.recall_handle import RecallHandle
from reput.remoting.time_slices import run_whole
from reput.store.reader import StoreReader
from reput.store.verify import Severity, VerifyReport, verify
from reput.store.writing.incoming import IncomingMessage, PutStatus
from world import Subject, subject as subject

START_MS = 1_700_000_000_000
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
INT_MAX = (1 << 31) - 1
DIGITS = "9" * 5000
CLOSED = sorted({*names.WRITTEN_BY_BROKERS, REVIVE})
SEND_CODES = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
HALF = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": "0A0B"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture(params=["kernel", "processor"])
def has_kernel(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "kernel")


def choose_path(subject: Subject, *, has_kernel: bool) -> None:
    """Send through the kernel where possible, or only through processors."""
    if not has_kernel:
        frontend = subject.broker.frontend
        assert frontend is not None
        frontend._send_ingest._is_open = False


def put(subject: Subject, topic: str, body: bytes = b"x", queue_id: int = 0, **more: Any) -> int:
    """Store a record without the checks of requests; return its queue offset."""
    properties = more.pop("properties", {})
    data = b"".join(f"{name}\1{value}\2".encode() for name, value in properties.items())
    message = IncomingMessage(topic, body, queue_id, data, is_due=True, **more)
    message.born_timestamp = subject.broker.clock.now_ms()
    result = subject.broker.store.put(message)
    assert result.status is PutStatus.PUT_OK, result.reason
    subject.broker.store.step_memory()
    return result.queue_offset


def stored(subject: Subject, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    subject.broker.store.step_memory()
    result = subject.broker.store.get(topic, queue_id, 0, 32)
    return [record.decode(bytes(data), check_crc=False) for data in result.records]


def bodies(subject: Subject, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in stored(subject, topic, queue_id)]


def run(subject: Subject) -> None:
    """Run all loops once."""
    broker = subject.broker
    now_ms = broker.clock.now_ms()
    for step in (
        broker.loops.step_pops,
        broker.parts.delayed.step,
        broker.parts.timers.step,
        broker.parts.transactions.step,
    ):
        broker.store.step_memory()
        for _ in range(1000):
            if not step(now_ms):
                break
        else:
            raise AssertionError(f"{step} does not end")
    broker.store.step_memory()
    assert not broker.loops.failures


def verified(root: Path) -> VerifyReport:
    report = verify(StoreReader.open(str(root)))
    assert report.severity < Severity.WARNING, report.findings
    return report


# --- topics of brokers ------------------------------------------------------------------------


async def test_clients_write_and_recall_nothing_in_topics_of_brokers(tmp_path: Path) -> None:
    async with world.broker(tmp_path, recall_message_enable=True) as subject:
        deliver_ms = str(subject.broker.clock.now_ms() + 60_000)
        for topic in CLOSED:
            subject.parts.topics.for_group(topic, 4, 6, START_MS)
            for code in SEND_CODES * 2:
                reply = await subject.send(topic, code=code)
                assert reply.code == ResponseCode.NO_PERMISSION, (topic, code)
                assert reply.remark == f"Sending message to topic[{topic}] is forbidden."
            handle = handles.encode(RecallHandle(topic, world.NAME, deliver_ms, "key"))
            header = RecallMessageHeader(producer_group="p", topic=topic, recall_handle=handle)
            reply = await subject.ask(RequestCode.RECALL_MESSAGE, header)
            assert reply.code == ResponseCode.NO_PERMISSION, topic
            assert subject.broker.store.max_offset(topic, 0) == 0, topic


# --- properties that only brokers write -------------------------------------------------------


FORGED = {
    "POP_CK": "0 1 2 3 0 broker-a 0 0",
    "INNER_NUM": DIGITS,
    "INNER_BASE": DIGITS,
    "INNER_MULTI_QUEUE_OFFSET": "9" * 18,
    "__CRC32#": "1234567890",
}


async def test_a_send_drops_properties_that_only_brokers_write(
    tmp_path: Path, *, has_kernel: bool
) -> None:
    async with world.broker(tmp_path, store_reply_message_enable=True) as subject:
        choose_path(subject, has_kernel=has_kernel)
        mine = {"TAGS": "a", "RETRY_TOPIC": "Other", "RECONSUME_TIME": "3", "REAL_TOPIC": "X"}
        await subject.send("T", b"plain", properties={**mine, **FORGED})
        await subject.send(
            "T", b"reply", properties={**mine, **FORGED}, code=RequestCode.SEND_REPLY_MESSAGE_V2
        )
        inner = InnerMessage(0, b"inner", props.encode({**mine, **FORGED}))
        await subject.send("T", batch.encode([inner]), code=RequestCode.SEND_BATCH_MESSAGE)
        await subject.send("T", b"good")
        messages = stored(subject, "T")
        assert [message.body for message in messages] == [b"plain", b"reply", b"inner", b"good"]
        for forged in messages[:3]:
            assert not FORGED.keys() & forged.properties.keys()
            assert mine.items() <= forged.properties.items()
    verified(tmp_path)


async def test_a_batch_marked_as_one_record_creates_no_batch_queue(tmp_path: Path) -> None:
    async with world.broker(tmp_path) as subject:
        parts = batch.encode([InnerMessage(0, b"inner", b"")])
        for sys_flag in (flags.INNER_BATCH, flags.INNER_BATCH | flags.NEED_UNWRAP):
            reply = await subject.send(
                "T", parts, code=RequestCode.SEND_BATCH_MESSAGE, sys_flag=sys_flag
            )
            assert reply.code == ResponseCode.MESSAGE_ILLEGAL
        assert (await subject.send("T", b"good")).code == ResponseCode.SUCCESS
        assert bodies(subject) == [b"good"]
    verified(tmp_path)


# --- pops -------------------------------------------------------------------------------------


def checkpoint(**fields: object) -> bytes:
    return json.dumps(
        {"bm": 0, "bn": "broker-a", "c": "G", "d": [0], "it": 1000, "n": 1, "pt": START_MS, "q": 0,
         "ro": 0, "so": 0, "sp": False, "t": "T", **fields}
    ).encode()  # fmt: skip


BAD_CHECKPOINTS = [
    checkpoint(d=[], n=10**9),
    checkpoint(d=[], n=-1),
    checkpoint(d=list(range(33)), n=33),
    checkpoint(d=[-5]),
    checkpoint(d=[1 << 63]),
    checkpoint(so=1 << 63),
    checkpoint(so=-1),
    checkpoint(q=1 << 31),
    checkpoint(pt=1 << 62, it=1 << 62),
    checkpoint(it=-1),
    checkpoint(t="x" * 300),
    checkpoint(t="../x"),
    checkpoint(c="g" * 300),
    checkpoint(c=""),
    b'{"c":"\\ud800"',
    b"[" * 10_000,
    b"\xff\xfe",
    b"",
]


async def test_forged_checkpoints_are_skipped_at_any_time(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with world.broker(tmp_path, clock=clock, revive_queue_num=1) as subject:
        await subject.send("T", b"good")
        assert len(await pop(subject)) == 1  # Creates the topic.
        for body in BAD_CHECKPOINTS:
            put(subject, REVIVE, body, properties={"TAGS": "ck"})
        for body in (b"{}", b'{"aol":[' + b"1," * 40 + b"1]}"):
            put(subject, REVIVE, body, properties={"TAGS": "bAck"})
        put(subject, REVIVE, b"", properties={"TAGS": "other"})
        run(subject)
        broker = subject.broker
        bad_count = len(BAD_CHECKPOINTS) + 3
        assert broker.parts.quarantine.counts["pops"] == bad_count
        assert len(broker.parts.pops.revive.checkpoints) == 1
        clock.advance(INVISIBLE_MS)
        run(subject)
        (again,) = await pop(subject)
        assert (again.body, again.message.reconsume_times) == (b"good", 1)
    async with world.broker(tmp_path, clock=clock, revive_queue_num=1) as subject:
        assert subject.parts.quarantine.counts["pops"] in (0, bad_count)
        clock.advance(INVISIBLE_MS + LATE_MS)
        run(subject)
        (again,) = await pop(subject)
        assert again.message.reconsume_times == 2
    verified(tmp_path)


async def test_a_message_with_the_largest_consumption_count_is_delivered_again(
    tmp_path: Path, clock: ManualClock, *, has_kernel: bool
) -> None:
    async with world.broker(tmp_path, clock=clock) as subject:
        choose_path(subject, has_kernel=has_kernel)
        await subject.send("T", b"often", reconsume_times=INT_MAX)
        await subject.send("T", b"good")
        assert len(await pop(subject)) == 2
        clock.advance(INVISIBLE_MS)
        run(subject)
        counts = {popped.body: popped.message.reconsume_times for popped in await pop(subject)}
        assert counts == {b"often": INT_MAX, b"good": 1}
    verified(tmp_path)


async def test_a_popped_message_that_the_store_refuses_does_not_stop_others(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.broker(tmp_path, clock=clock) as subject:
        for body in (b"bad", b"good"):
            await subject.send("T", body)
        assert len(await pop(subject)) == 2
        store = subject.broker.store
        put_it = store.put

        def fail(message: IncomingMessage, *now_ms: int) -> Any:
            if message.body == b"bad":
                raise struct.error("whatever a record may bring about")
            return put_it(message, *now_ms)

        monkeypatch.setattr(store, "put", fail)
        clock.advance(INVISIBLE_MS)
        run(subject)
        assert [popped.body for popped in await pop(subject)] == [b"good"]
        assert subject.parts.quarantine.counts == {"pops": 1}
        assert subject.parts.pops.revive.lost_count == 1


async def test_a_step_of_revive_is_bounded_by_bytes(tmp_path: Path, clock: ManualClock) -> None:
    async with world.broker(tmp_path, clock=clock) as subject:
        for _ in range(4):
            await subject.send("T", bytes(1 << 20))
        for _ in range(4):  # A reply has no room for two messages.
            assert len(await pop(subject, max_msg_nums=1)) == 1
        clock.advance(INVISIBLE_MS)
        revive = subject.parts.pops.revive
        revived = []
        for _ in range(4):
            revive.step(clock.now_ms())
            revived.append(revive.revived_count)
        assert revived == [1, 2, 3, 4]


async def test_pops_that_would_slow_each_start_are_refused(subject: Subject) -> None:
    for fields, limit in (
        ({"invisible_time": 1 << 62}, "pop_invisible_ms"),
        ({"group": "g" * 248}, "pop_retry_topic_letters"),
        ({"attempt_id": "x" * 300, "order": True}, "pop_attempt_letters"),
    ):
        reply = await pop_reply(subject, **fields)
        assert reply.code == ResponseCode.INVALID_PARAMETER, limit
        assert f"limit {limit}" in (reply.remark or "")
    assert len(subject.parts.pops.revive.checkpoints) == 0


# --- transactions -----------------------------------------------------------------------------


async def send_half(subject: Subject, **properties: str) -> EndTransactionHeader:
    reply = await subject.send(
        "T", b"half", queue_id=1, properties={**HALF, **properties}, sys_flag=4,
        born_timestamp=subject.broker.clock.now_ms(),
    )  # fmt: skip
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    fields = reply.ext_fields or {}
    return end_of(int(fields["queueOffset"]), int(fields["msgId"][16:], 16))


def end_of(queue_offset: int, physical_offset: int) -> EndTransactionHeader:
    return EndTransactionHeader(
        producer_group="producers",
        tran_state_table_offset=queue_offset,
        commit_log_offset=physical_offset,
        commit_or_rollback=flags.TRANSACTION_COMMIT,
    )


async def test_a_half_message_cannot_set_its_copy_number(
    tmp_path: Path, clock: ManualClock, *, has_kernel: bool
) -> None:
    async with world.broker(tmp_path, clock=clock) as subject:
        choose_path(subject, has_kernel=has_kernel)
        forged = {"TRAN_PREPARED_QUEUE_OFFSET": str(10**15), "TRANSACTION_CHECK_TIMES": "14"}
        await send_half(subject)
        await send_half(subject, **forged)
        (_, half) = stored(subject, names.HALF_TOPIC)
        assert not forged.keys() & half.properties.keys()
        assert half.properties["REAL_TOPIC"] == "T"


async def test_old_forged_half_and_op_messages_are_skipped(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with world.broker(tmp_path, clock=clock) as subject:
        await send_half(subject)
        place = {**HALF, "REAL_TOPIC": "T", "REAL_QID": "1"}
        for forged in (str(10**15), DIGITS, "-1", "3000000000"):
            put(
                subject, names.HALF_TOPIC, b"forged",
                properties={**place, "TRAN_PREPARED_QUEUE_OFFSET": forged},
            )  # fmt: skip
        put(subject, names.HALF_TOPIC, b"nowhere", properties={**place, "REAL_QID": DIGITS})
        put(
            subject, names.HALF_TOPIC, b"op",
            properties={**place, "REAL_TOPIC": names.OP_HALF_TOPIC},
        )  # fmt: skip
        for body in (DIGITS.encode(), b"1," * 3 + DIGITS.encode(), b"\xff", b"99"):
            put(subject, names.OP_HALF_TOPIC, body, properties={"TAGS": "d"})
    async with world.broker(tmp_path, clock=clock) as subject:
        run(subject)
        transactions = subject.parts.transactions
        assert transactions.is_read
        assert len(transactions._marks._states) <= 7
        assert subject.parts.quarantine.counts["transactions"] == 4
        clock.advance(60_000)
        run(subject)
        assert {message.body for message in stored(subject, names.HALF_TOPIC)[7:]} == {
            b"half", b"forged", b"nowhere", b"op",
        }  # fmt: skip
        last = stored(subject, names.HALF_TOPIC)[-2:]
        for message in last:  # Messages that belong nowhere, or where no client may write.
            reply = await subject.ask(
                RequestCode.END_TRANSACTION, end_of(message.queue_offset, message.physical_offset)
            )
            assert reply.code == ResponseCode.MESSAGE_ILLEGAL
        end = await send_half(subject)
        assert (await subject.ask(RequestCode.END_TRANSACTION, end)).code == ResponseCode.SUCCESS
        assert bodies(subject, "T", 1) == [b"half"]
    async with world.broker(tmp_path, clock=clock) as subject:
        run(subject)
        assert subject.parts.transactions.is_read
        assert len(subject.parts.transactions._marks._states) <= 64
    verified(tmp_path)


async def test_a_record_inside_a_body_is_no_half_message(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with world.broker(tmp_path, clock=clock) as subject:
        genuine = await send_half(subject)
        store = subject.broker.store
        targets = [names.OP_HALF_TOPIC, names.HALF_TOPIC, REVIVE, "T"]
        ends = []
        for topic in targets:
            for queue_offset in (3_000_000_000, genuine.tran_state_table_offset):
                end = store.log.written_offset
                inner = _half_record(end + 88, queue_offset, topic)
                reply = await subject.send("T", inner, queue_id=3)
                assert reply.code == ResponseCode.SUCCESS
                store.step_memory()
                data = store.record_at(end)
                assert data is not None
                place = end + data.index(inner)
                assert store.record_at(place) is None or place == end + 88
                ends.append(end_of(queue_offset, place))
        ends_before = {topic: store.max_offset(topic, 0) for topic in targets}
        for end in ends:
            reply = await subject.ask(RequestCode.END_TRANSACTION, end)
            assert reply.code == ResponseCode.SYSTEM_ERROR, reply.remark
            msg_id = encode_offset_id(subject.broker.identity.store_host, end.commit_log_offset)
            reply = await subject.ask(
                RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHeader(msg_id=msg_id)
            )
            assert reply.code == ResponseCode.SYSTEM_ERROR, reply.remark
        # Consecutive sends: the fast path handles them, not a processor.
        assert subject.parts.transactions.decide_all(
            [_end(end_header) for end_header in ends], clock.now_ms()
        ) == 0  # fmt: skip
        assert {topic: store.max_offset(topic, 0) for topic in targets} == ends_before
        assert len(subject.parts.transactions._marks._states) <= 1
        assert (await subject.ask(RequestCode.END_TRANSACTION, genuine)).code == 0
        assert bodies(subject, "T", 1) == [b"half"]
    verified(tmp_path)


def _end(header: EndTransactionHeader) -> End:
    places = header.tran_state_table_offset, header.commit_log_offset
    return End(*places, b"producers", is_commit=True)


def _half_record(physical_offset: int, queue_offset: int, topic: str) -> bytes:
    return record.encode(
        dataclasses.replace(
            _BLANK,
            physical_offset=physical_offset,
            queue_offset=queue_offset,
            property_bytes=props.encode({**HALF, "REAL_TOPIC": topic, "REAL_QID": "0"}),
        )
    )


_HOST = record.Host(b"\x7f\0\0\1", 10911)
_BLANK = StoredMessage(
    topic=names.HALF_TOPIC,
    body=b"1" * 100,
    queue_id=0,
    queue_offset=0,
    physical_offset=0,
    born_timestamp=START_MS,
    born_host=_HOST,
    store_timestamp=START_MS,
    store_host=_HOST,
)


async def test_no_half_message_is_delayed(subject: Subject) -> None:
    for delays in ({"TIMER_X": "0", "DELAY": "3"}, {"DELAY": "1"}):
        reply = await subject.send("T", b"half", properties={**HALF, **delays}, sys_flag=4)
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL, delays
    for queue_id in (0, 2):
        assert subject.broker.store.max_offset(names.SCHEDULE_TOPIC, queue_id) == 0


# --- the timer and delay levels ---------------------------------------------------------------


FAR = {"REAL_TOPIC": "T", "REAL_QID": "0"}


async def test_forged_messages_in_the_timers_queue_are_skipped(
    tmp_path: Path, clock: ManualClock
) -> None:
    roll = {"timer_roll_window_slot": 5}
    out_ms = str(START_MS + 1000)
    async with world.broker(tmp_path, clock=clock, store=roll) as subject:
        subject.parts.topics.for_group(names.TIMER_TOPIC, 1, 6, START_MS)
        for properties in (
            {**FAR, "TIMER_OUT_MS": DIGITS},
            {**FAR, "TIMER_OUT_MS": out_ms, "REAL_QID": DIGITS},
            {**FAR, "TIMER_OUT_MS": out_ms, "REAL_QID": "2147483646"},
            {**FAR, "TIMER_OUT_MS": out_ms, "REAL_TOPIC": "x" * 300},
            {**FAR, "TIMER_OUT_MS": out_ms, "REAL_TOPIC": "../x"},
            {"TIMER_OUT_MS": out_ms},
            {},
        ):
            put(subject, names.TIMER_TOPIC, b"bad", properties=properties)
        rolled = {**FAR, "TIMER_OUT_MS": str(START_MS + 60_000), "TIMER_ROLL_TIMES": DIGITS}
        put(subject, names.TIMER_TOPIC, b"rolled", properties=rolled)
        put(subject, names.TIMER_TOPIC, b"good", properties={**FAR, "TIMER_OUT_MS": out_ms})
        run(subject)
        for _ in range(70):
            clock.advance(1000)
            run(subject)
        assert bodies(subject) == [b"good", b"rolled"]
        assert subject.parts.quarantine.counts == {"timers": 7}
        assert not subject.broker.loops.failures
    async with world.broker(tmp_path, clock=clock, store=roll) as subject:
        run(subject)
        assert bodies(subject) == [b"good", b"rolled"]
        assert subject.parts.quarantine.counts["timers"] == 0
    verified(tmp_path)


async def test_a_delayed_message_cannot_set_its_count_of_rolls(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with world.broker(tmp_path, clock=clock) as subject:
        marks = {"TIMER_DELAY_SEC": "60", "TIMER_ROLL_TIMES": DIGITS}
        assert (await subject.send("T", properties=marks)).code == ResponseCode.SUCCESS
        (parked,) = stored(subject, names.TIMER_TOPIC)
        assert "TIMER_ROLL_TIMES" not in parked.properties


async def test_forged_messages_of_a_delay_level_are_skipped(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with world.broker(tmp_path, clock=clock) as subject:
        for properties in (
            {**FAR, "REAL_QID": DIGITS},
            {**FAR, "REAL_QID": "2147483646"},
            {**FAR, "REAL_TOPIC": "x" * 300},
            {**FAR, "REAL_TOPIC": ".."},
            {**FAR, "REAL_TOPIC": names.OP_HALF_TOPIC, "INNER_MULTI_DISPATCH": "%LMQ%x"},
            {},
        ):
            marks = {"DELAY": "1", **properties}
            put(subject, names.SCHEDULE_TOPIC, b"bad", properties=marks)
        put(subject, names.SCHEDULE_TOPIC, b"level", properties={"DELAY": DIGITS, **FAR})
        put(subject, names.SCHEDULE_TOPIC, b"good", properties={"DELAY": "1", **FAR})
        clock.advance(2000)
        run(subject)
        assert bodies(subject) == [b"level", b"good"]
        assert subject.parts.delayed.progress()[1] == (8, 8)
        assert subject.parts.quarantine.counts["delayed"] >= 5
    async with world.broker(tmp_path, clock=clock) as subject:
        run(subject)
        assert bodies(subject) == [b"level", b"good"]
    verified(tmp_path)


async def test_an_excess_light_queue_does_not_stop_a_delay_level(
    tmp_path: Path, clock: ManualClock
) -> None:
    light = {"enable_multi_dispatch": True, "max_lmq_consume_queue_num": 1}
    async with world.broker(tmp_path, clock=clock, store=light) as subject:
        first = {"INNER_MULTI_DISPATCH": "%LMQ%one"}
        assert (await subject.send("T", b"0", properties=first)).code == ResponseCode.SUCCESS
        second = {"INNER_MULTI_DISPATCH": "%LMQ%two", "DELAY": "1"}
        await subject.send("T", b"bad", properties=second)
        await subject.send("T", b"good", properties={"DELAY": "1"})
        clock.advance(2000)
        run(subject)
        assert bodies(subject) == [b"0", b"good"]
        assert subject.parts.quarantine.counts == {"delayed": 1}


# --- light queues, queue ids, names -----------------------------------------------------------


async def test_a_send_names_only_light_queues(tmp_path: Path) -> None:
    light = {"enable_multi_dispatch": True, "enable_lmq": True}
    async with world.broker(tmp_path, store=light) as subject:
        await subject.send("Other", b"other")
        for named in ("%LMQ%" + "x" * 300, "Other", "%LMQ%a,Other", "%LMQ%a/b", "%LMQ%,", ".."):
            reply = await subject.send("T", b"bad", properties={"INNER_MULTI_DISPATCH": named})
            assert reply.code == ResponseCode.MESSAGE_ILLEGAL, named
        await subject.send("T", b"good", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
        run(subject)
        assert bodies(subject) == bodies(subject, "%LMQ%a") == [b"good"]
        assert bodies(subject, "Other") == [b"other"]
        store = subject.broker.store
        assert store.dispatcher.dispatched_offset == store.max_physical_offset
    verified(tmp_path)


async def test_parts_of_a_batch_cannot_set_offsets_of_light_queues(tmp_path: Path) -> None:
    light = {"enable_multi_dispatch": True, "enable_lmq": True}
    async with world.broker(tmp_path, store=light) as subject:
        forged = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "5"}
        await subject.send("T", b"0", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
        parts = batch.encode([InnerMessage(0, b"inner", props.encode(forged))])
        await subject.send("T", parts, code=RequestCode.SEND_BATCH_MESSAGE)
        await subject.send("T", b"1", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
        assert bodies(subject, "%LMQ%a") == [b"0", b"1"]
    verified(tmp_path)


async def test_a_queue_id_needs_no_rows_for_smaller_ids(subject: Subject) -> None:
    message = IncomingMessage("T", b"far", queue_id=INT_MAX - 1)
    result = subject.broker.store.put(message)
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert "allowed: 0 to" in result.reason


# --- all properties -----------------------------------------------------------


VALUES = [
    "0", "1", "-1", "3", "18", "19", str(INT_MAX), str(2**31), str(2**63), DIGITS,
    "1e3", "0x1", " 1",
    "true", "false", "TRUE", "T", "%LMQ%a", "%LMQ%a,%LMQ%b", "a@b@c", "../x", "x" * 300,
    "\u00b2",
    names.HALF_TOPIC, REVIVE, str(START_MS + 1500), str(START_MS - 5), "1234567890",
]  # fmt: skip
NAMES = sorted(
    value
    for name, value in vars(props).items()
    if name.isupper() and isinstance(value, str) and value.replace("_", "").isalnum()
)


@pytest.mark.parametrize("seed", range(4))
async def test_any_properties_of_a_client(tmp_path: Path, clock: ManualClock, seed: int) -> None:
    chance = seeds.random("poison", seed)
    settings: dict[str, Any] = {
        "clock": clock,
        "store_reply_message_enable": True,
        "store": {
            "enable_multi_dispatch": seed % 2 == 0,
            "enable_lmq": seed % 2 == 0,
            "timer_roll_window_slot": 5,
            "enabled_append_prop_crc": seed == 3,
        },
    }
    in_queue_1 = []
    for _ in range(2):
        async with world.broker(tmp_path, **settings) as subject:
            for number in range(120):
                chosen = chance.sample(NAMES, chance.randrange(1, 5))
                properties = {name: chance.choice(VALUES) for name in chosen}
                code = chance.choice(SEND_CODES)
                body = b"%d" % number
                if code == RequestCode.SEND_BATCH_MESSAGE:
                    parts = [InnerMessage(0, body, props.encode(properties))] * 2
                    body, properties = batch.encode(parts), {}
                sys_flag = chance.choice((0, 0, 0, 4, 8, 12, 1 << 6, 1 << 7, 3 << 4))
                reply = await subject.send(
                    "T", body, code=code, properties=properties, sys_flag=sys_flag,
                    reconsume_times=chance.choice((0, 0, 1, 16, INT_MAX, -1)),
                    born_timestamp=chance.choice((0, START_MS, 2**63 - 1, -(2**63))),
                )  # fmt: skip
                assert not (reply.remark or "").startswith(("struct.", "ValueError", "TypeError"))
                if (reply.ext_fields or {}).get("queueId") == "1":
                    assert properties.get(props.PRIORITY) == "1", "queue 0 was requested"
                    if not sys_flag & 4:  # those of 4 (prepared) and 12 (rolled back) are in none
                        in_queue_1.append(body)
            assert (await subject.send("T", b"good", queue_id=1)).code == ResponseCode.SUCCESS
            in_queue_1.append(b"good")
            for _ in range(4):
                await pop(subject)
                clock.advance(INVISIBLE_MS + LATE_MS)
                run(subject)
            run_whole(subject.parts.deliveries.stats.forget_topic("a"))
            await subject.parts.registration._bodies_of_all()
            await world.meter(subject.broker).measure()
            assert not subject.broker.loops.failures
            assert bodies(subject, "T", 1) == in_queue_1
            count = subject.broker.store.dispatcher.dispatched_offset
            assert count == subject.broker.store.max_physical_offset
    verified(tmp_path)


# --- tables, registration, counts -------------------------------------------------------------


def forge_tables(root: Path) -> Iterator[tuple[Path, str]]:
    bad = "%RETRY%\ud800"
    for name, member, key in (
        ("topics.json", "topicConfigTable", bad),
        ("subscriptionGroup.json", "subscriptionGroupTable", "\ud800"),
        ("consumerOffset.json", "offsetTable", f"{bad}@\ud800"),
    ):
        path = root / "config" / name
        table = json.loads(path.read_text())
        entries = table[member]
        entry: dict[str, Any] = dict(next(iter(entries.values()), {"0": 1}))
        if "topicName" in entry:
            entry |= {"topicName": key, "readQueueNums": 10**40, "writeQueueNums": 10**40}
        elif "groupName" in entry:
            entry["groupName"] = key
        else:
            entry = {"0": 10**30}
        entries[key] = entry
        text = json.dumps(table)
        path.write_text(text)
        yield path, text


async def test_names_that_are_no_text_do_not_break_tables_or_registrations(tmp_path: Path) -> None:
    async with world.broker(tmp_path) as subject:
        await subject.send("T", b"good")
        await subject.pull("T")
        subject.parts.deliveries.consumer_offsets.put("T", "consumers", 0, 1)
    for path, text in forge_tables(tmp_path):
        assert "\\ud800" in text, path
    async with world.broker(tmp_path) as subject:
        broker = subject.broker
        assert "%RETRY%?" in broker.parts.topics.all()
        for code in (
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.GET_ALL_CONSUMER_OFFSET,
        ):
            assert (await subject.ask(code)).code == ResponseCode.SUCCESS, code
        assert b'"%RETRY%?"' in (await broker.parts.registration._bodies_of_all())[0].data
        families = await world.meter(broker).measure()
        for family in families:
            for labels in getattr(family, "values", {}):
                "".join(labels).encode()
        assert (await subject.send("T", b"good")).code == ResponseCode.SUCCESS
    async with world.broker(tmp_path) as subject:
        assert bodies(subject) == [b"good", b"good"]


async def test_a_topic_that_cannot_be_encoded_is_left_out_of_registrations(
    subject: Subject,
) -> None:

    broker = subject.broker
    bad = dataclasses.replace(broker.parts.topics.all()["T"], name="\ud800")
    broker.parts.topics.table.put(bad, START_MS)
    body = json.loads((await broker.parts.registration._bodies_of_all())[0].data)
    topics = body["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert "T" in topics
    assert set(topics) == set(broker.parts.topics.all()) - {"\ud800"}
    warnings = world.health_of(broker).warnings
    assert any("'\\ud800'" in warning for warning in warnings)
    json.dumps(warnings).encode()
    broker.parts.topics.table.delete("\ud800", START_MS)
    await broker.parts.registration._bodies_of_all()
    assert not broker.parts.registration.unencodable


async def test_a_dead_letter_of_a_topic_with_any_name_is_counted_and_dropped(
    subject: Subject,
) -> None:
    broker = subject.broker
    broker.parts.deliveries.stats.sent_back("a@b@c", "G", is_dead=True)
    broker.parts.deliveries.stats.sent_back("T", "G", is_dead=True)
    run_whole(broker.parts.deliveries.stats.forget_topic("T"))
    assert list(broker.parts.deliveries.stats.values("SNDBCK2DLQ_TIMES")) == [
        "null@a@b@c@G@SEND_BACK_TO_DLQ"
    ]
    run_whole(broker.parts.deliveries.stats.forget_group("G"))
    assert not broker.parts.deliveries.stats.values("SNDBCK2DLQ_TIMES")
    assert not broker.parts.deliveries.stats.values("SNDBCK_PUT_NUMS")


@pytest.mark.parametrize("level", [0, -1])
async def test_send_backs_are_counted_for_existing_topics(subject: Subject, level: int) -> None:
    await subject.send("T", b"m", properties={"RETRY_TOPIC": "a@b@c"}, reconsume_times=INT_MAX)
    await subject.send("T", b"m", queue_id=3, properties={"RETRY_TOPIC": "a@b@c"})
    header = headers.SendBackHeader(offset=0, group="consumers", delay_level=level)
    for message in (*stored(subject, "T", 0), *stored(subject, "T", 3)):
        header.offset = message.physical_offset
        reply = await subject.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
    counted = set(subject.parts.deliveries.stats.values("SNDBCK_PUT_NUMS"))
    assert counted <= {"T@consumers", "%RETRY%consumers@consumers"}
    run_whole(subject.parts.deliveries.stats.forget_group("consumers"))


async def test_a_pull_of_a_group_whose_name_fits_no_event_is_answered(subject: Subject) -> None:
    broker = subject.broker
    header = world.pull_header("T", 0, 10**9, consumer_group="a\1b")
    pull_processor._record_move(broker.parts, header, 0)
    assert broker.store.max_offset(names.OFFSET_MOVED_TOPIC, 0) == 0
    pull_processor._record_move(broker.parts, world.with_fields(header, {"consumer_group": "G"}), 0)
    assert broker.store.max_offset(names.OFFSET_MOVED_TOPIC, 0) == 1
