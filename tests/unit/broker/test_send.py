"""Sending: what is stored, and what the producer is told. Codes are Java's (facts, section 5)."""

import asyncio
from pathlib import Path

import pytest

import broker_subject
from broker_subject import Subject
from reput.errors import RequestTimedOut, WriteFailed
from reput.format import batch, command as commands, message as record, message_id
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import IS_ONEWAY, Serialization
from reput.format.message import StoredMessage
from reput.store.config import FlushDiskType
from reput.store.message_store import MessageStore


def stored(subject: Subject, topic: str, queue_id: int = 0, first: int = 0) -> list[StoredMessage]:
    result = subject.broker.store.get(topic, queue_id, first)
    return [record.decode(bytes(one)) for one in result.records]


@pytest.mark.parametrize("serialization", list(Serialization))
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_a_message_is_stored_as_it_was_sent(
    subject: Subject, code: int, serialization: Serialization
) -> None:
    reply = await subject.send(
        "T",
        b"some body",
        queue_id=2,
        code=code,
        serialization=serialization,
        properties={"KEYS": "k1 k2", "TAGS": "TagA", "UNIQ_KEY": "0A", "WAIT": "true"},
        flag=0,
        born_timestamp=1_700_000_000_123,
    )
    assert reply.code == ResponseCode.SUCCESS
    assert reply.is_reply
    assert reply.serialization is serialization
    (message,) = stored(subject, "T", 2)
    assert message.body == b"some body"
    assert message.born_timestamp == 1_700_000_000_123
    # WAIT is taken out and the cluster added, as in Java.
    assert message.properties == {
        "KEYS": "k1 k2",
        "TAGS": "TagA",
        "UNIQ_KEY": "0A",
        "CLUSTER": broker_subject.CLUSTER,
    }
    assert str(message.store_host) == subject.address
    assert str(message.born_host).startswith("127.0.0.1:")
    assert reply.ext_fields == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": message_id.encode_offset_id(message.store_host, message.physical_offset),
        "queueId": "2",
        "queueOffset": "0",
    }


async def test_a_topic_is_made_as_the_default_topic_says(subject: Subject) -> None:
    topic = subject.parts.topics.get("T")
    assert topic is not None
    # min(what the client asked for, 8 of TBW102), its permission without inherit
    assert (topic.read_queue_count, topic.write_queue_count, topic.perm) == (4, 4, 6)


async def test_a_negative_queue_is_any_queue(subject: Subject) -> None:
    seen = set()
    for _ in range(64):
        reply = await subject.send("T", queue_id=-1)
        assert reply.ext_fields is not None
        seen.add(reply.ext_fields["queueId"])
    assert seen == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("topic", "fields", "code", "text"),
    [
        ("", {}, ResponseCode.SYSTEM_ERROR, "blank"),
        ("a b", {}, ResponseCode.SYSTEM_ERROR, "illegal characters"),
        ("x" * 128, {}, ResponseCode.SYSTEM_ERROR, "longer than"),
        ("T", {"queue_id": 4}, ResponseCode.SYSTEM_ERROR, "queueId"),
        ("New", {"default_topic": "T"}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        ("SCHEDULE_TOPIC_XXXX", {}, ResponseCode.NO_PERMISSION, "forbidden"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {}, ResponseCode.NO_PERMISSION, "forbidden"),
        (
            "T",
            {"properties": {"TRAN_MSG": "true", "DELAY": "1"}},
            ResponseCode.MESSAGE_ILLEGAL,
            "DELAY: a message of a transaction",
        ),
        (
            "T",
            {"properties": {"TRAN_MSG": "true"}, "batch": True},
            ResponseCode.MESSAGE_ILLEGAL,
            "batch",
        ),
        (
            "T",
            {"properties": {"TIMER_DELAY_SEC": "259201"}},
            ResponseCode.MESSAGE_ILLEGAL,
            "should not be bigger than the max delay 259200000ms",
        ),
    ],
)
async def test_refusals(
    subject: Subject, topic: str, fields: dict[str, object], code: ResponseCode, text: str
) -> None:
    before = subject.broker.store.max_physical_offset
    reply = await subject.send(topic, **fields)  # type: ignore[arg-type]
    assert (reply.code, text in (reply.remark or "")) == (code, True), reply.remark
    assert subject.broker.store.max_physical_offset == before


async def test_without_auto_creation_there_must_be_a_topic(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, auto_create_topic_enable=False) as subject:
        reply = await subject.send("T")
        assert reply.code == ResponseCode.TOPIC_NOT_EXIST
        assert subject.parts.topics.get("T") is None


async def test_missing_and_wrong_fields_are_named(subject: Subject) -> None:
    reply = await subject.ask(RequestCode.SEND_MESSAGE_V2)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "producerGroup" in (reply.remark or "")


async def test_a_one_way_message_is_stored_and_not_answered(subject: Subject) -> None:
    await subject.send("T", b"quiet", queue_id=1, flag=IS_ONEWAY)
    # The next request on the connection is answered, and first: there was no other reply.
    reply = await subject.send("T", b"loud", queue_id=1)
    assert reply.ext_fields is not None
    assert reply.ext_fields["queueOffset"] == "1"
    assert [one.body for one in stored(subject, "T", 1)] == [b"quiet", b"loud"]


async def test_a_batch_is_stored_message_by_message(subject: Subject) -> None:
    bodies = [b"one", b"two", b"three"]
    body = batch.encode(
        batch.InnerMessage(0, one, f"UNIQ_KEY\x01ID{i}\x02".encode())
        for i, one in enumerate(bodies)
    )
    reply = await subject.send(
        "T",
        body,
        queue_id=1,
        code=RequestCode.SEND_BATCH_MESSAGE,
        properties={"UNIQ_KEY": "of the batch"},
        batch=True,
    )
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    found = stored(subject, "T", 1)
    assert [one.body for one in found] == bodies
    assert [one.properties["UNIQ_KEY"] for one in found] == ["ID0", "ID1", "ID2"]
    assert reply.ext_fields is not None
    assert reply.ext_fields["msgId"].split(",") == [
        message_id.encode_offset_id(one.store_host, one.physical_offset) for one in found
    ]


async def test_under_sync_flush_the_reply_waits_for_the_disk(tmp_path: Path) -> None:
    store = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with broker_subject.running(tmp_path, store=store) as subject:
        reply = await subject.send("T")
        assert reply.code == ResponseCode.SUCCESS
        assert subject.broker.store.log.flushed_offset == subject.broker.store.max_physical_offset
        assert subject.parts.topics.table.is_saved, "the topic was made for the message"


async def test_under_sync_flush_a_table_that_cannot_be_saved_keeps_no_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise WriteFailed("topics.json", "no room")

    store = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with broker_subject.running(tmp_path, store=store) as subject:
        table = subject.parts.topics.table
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table._file, "replace", fail)
            assert (await subject.send("T")).code == ResponseCode.SUCCESS
            assert not table.is_saved
        assert "topics.json cannot be written at present" in caplog.text


async def test_a_sync_that_does_not_come_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageStore, "sync", lambda _: None)
    monkeypatch.setattr(MessageStore, "step_disk", lambda _: False)
    store = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "sync_flush_timeout": 1}
    async with broker_subject.running(tmp_path, store=store) as subject:
        reply = await subject.send("T")
        assert reply.code == ResponseCode.FLUSH_DISK_TIMEOUT
        # It is stored nevertheless, and says where.
        assert reply.ext_fields is not None
        assert reply.ext_fields["queueOffset"] == "0"


async def test_a_stop_answers_those_who_wait_for_a_disk_that_failed(tmp_path: Path) -> None:
    store = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with broker_subject.running(tmp_path, store=store) as subject:
        broker = subject.broker
        await broker.loops.stop()
        waiting = asyncio.ensure_future(subject.send("T"))
        while not len(broker.parts.pending_replies):
            await asyncio.sleep(0)
        broker.store.flusher.failure = WriteFailed("commitlog", "Input/output error")
        broker._settle()
        assert (await waiting).code == ResponseCode.FLUSH_DISK_TIMEOUT
        broker.store.flusher.failure = None


async def test_a_table_that_cannot_be_saved_keeps_no_other_from_it(subject: Subject) -> None:
    broker = subject.broker
    broker.parts.deliveries.consumer_offsets.put("T", "g", 0, 5)

    def fail(now_ms: int) -> None:
        raise WriteFailed("topics.json", "Input/output error")

    broker.parts.topics.table.save = fail  # type: ignore[method-assign]
    with pytest.raises(WriteFailed, match=r"topics\.json"):
        broker.parts.saved_tables.save_all()
    assert not broker.parts.deliveries.consumer_offsets.is_dirty
    del broker.parts.topics.table.save


async def test_nothing_is_lost_over_a_restart(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        for number in range(100):
            await subject.send("T", str(number).encode())
    async with broker_subject.running(tmp_path) as subject:
        assert subject.parts.topics.get("T") is not None
        found = stored(subject, "T") + stored(subject, "T", first=32)
        found += stored(subject, "T", first=64) + stored(subject, "T", first=96)
        assert [one.body for one in found] == [str(number).encode() for number in range(100)]


async def test_unknown_requests_are_answered(subject: Subject) -> None:
    reply = await subject.ask(31_000)
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "31000" in (reply.remark or "")


async def test_a_one_way_request_that_fails_is_not_answered(subject: Subject) -> None:
    request = commands.Command(RequestCode.SEND_MESSAGE_V2, flag=IS_ONEWAY)
    with pytest.raises(RequestTimedOut):
        await subject.client.invoke(subject.address, request, 50)
