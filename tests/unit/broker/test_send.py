"""Sends: stored messages and replies. Codes are Java's (facts, section 5)."""

import asyncio
from pathlib import Path

import pytest

import broker_subject
from broker_subject import Subject
from reput.errors import WriteFailed
from reput.format import message as record
from reput.format.codes import ResponseCode
from reput.format.message import StoredMessage
from reput.store.config import FlushDiskType
from reput.store.message_store import MessageStore


def stored(subject: Subject, topic: str, queue_id: int = 0, first: int = 0) -> list[StoredMessage]:
    result = subject.broker.store.get(topic, queue_id, first)
    return [record.decode(bytes(data)) for data in result.records]


async def test_a_negative_queue_is_any_queue(subject: Subject) -> None:
    seen = set()
    for _ in range(64):
        reply = await subject.send("T", queue_id=-1)
        assert reply.ext_fields is not None
        seen.add(reply.ext_fields["queueId"])
    assert seen == {"0", "1", "2", "3"}


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


async def test_a_missing_sync_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageStore, "sync", lambda _: None)
    monkeypatch.setattr(MessageStore, "step_disk", lambda _: False)
    store = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "sync_flush_timeout": 1}
    async with broker_subject.running(tmp_path, store=store) as subject:
        reply = await subject.send("T")
        assert reply.code == ResponseCode.FLUSH_DISK_TIMEOUT
        # It is stored nevertheless, and the reply has its place.
        assert reply.ext_fields is not None
        assert reply.ext_fields["queueOffset"] == "0"


async def test_a_stop_answers_requests_that_wait_for_a_failed_disk(tmp_path: Path) -> None:
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


async def test_a_table_that_cannot_be_saved_does_not_block_other_tables(subject: Subject) -> None:
    broker = subject.broker
    broker.parts.deliveries.consumer_offsets.put("T", "g", 0, 5)

    def fail(now_ms: int) -> None:
        raise WriteFailed("topics.json", "Input/output error")

    broker.parts.topics.table.save = fail  # type: ignore[method-assign]
    with pytest.raises(WriteFailed, match=r"topics\.json"):
        broker.parts.saved_tables.save_all()
    assert not broker.parts.deliveries.consumer_offsets.is_dirty
    del broker.parts.topics.table.save
