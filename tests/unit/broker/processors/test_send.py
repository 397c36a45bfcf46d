"""Sends: stored messages and replies. Codes are Java's (facts, section 5)."""

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import request_corpus
import world
from remoting_subject import read_frame
from reput.broker import closing
from reput.broker.fastpath.send_ingest import Received
from reput.broker.put_stalls import PutStalls
from reput.clock import ManualClock
from reput.errors import WriteFailed
from reput.format import message as record
from reput.format.codes import ResponseCode
from reput.format.message import StoredMessage
from reput.remoting.client import RemotingClient
from reput.store.config import FlushDiskType
from reput.store.message_store import MessageStore
from world import Subject, until


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
    async with world.broker(tmp_path, store=store) as subject:
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
    async with world.broker(tmp_path, store=store) as subject:
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
    async with world.broker(tmp_path, store=store) as subject:
        reply = await subject.send("T")
        assert reply.code == ResponseCode.FLUSH_DISK_TIMEOUT
        # It is stored nevertheless, and the reply has its place.
        assert reply.ext_fields is not None
        assert reply.ext_fields["queueOffset"] == "0"


async def test_a_stop_answers_requests_that_wait_for_a_failed_disk(tmp_path: Path) -> None:
    store = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with world.broker(tmp_path, store=store) as subject:
        broker = subject.broker
        await broker.loops.stop()
        waiting = asyncio.ensure_future(subject.send("T"))
        await until(lambda: len(broker.parts.pending_replies))
        broker.store.flusher.failure = WriteFailed("commitlog", "Input/output error")
        closing.settle(broker.parts, broker.store)
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


# --- puts that stall ----------------------------------------------------------------------------

SLOW = {"wait_time_mills_in_send_queue": 5_000}
BUSY = "broker busy, start flow control for a while, period in queue: "


@pytest.mark.parametrize(
    ("stall_ms", "settings", "waiting", "later"),
    [
        (200, {}, "", ""),
        (201, {}, f"[TIMEOUT_CLEAN_QUEUE]{BUSY}201ms", ""),
        (1_000, {}, f"[TIMEOUT_CLEAN_QUEUE]{BUSY}1000ms", ""),
        (1_001, {}, f"[PCBUSY_CLEAN_QUEUE]{BUSY}1001ms", f"[PCBUSY_CLEAN_QUEUE]{BUSY}1001ms"),
        (1_001, SLOW, f"[PCBUSY_CLEAN_QUEUE]{BUSY}1001ms", f"[PCBUSY_CLEAN_QUEUE]{BUSY}1001ms"),
        (1_001, {"broker_fast_failure_enable": False}, "", ""),
    ],
)  # fmt: skip
async def test_sends_that_waited_for_a_put_that_stalled(
    tmp_path: Path, stall_ms: int, settings: dict[str, Any], waiting: str, later: str
) -> None:
    """Codes, limits and beginnings of the texts are those of 4.9.7 (BrokerFastFailure).

    Two producers' sends are read in one turn of the loop; a third producer's comes during the put.
    """
    clock = ManualClock(1_700_000_000_000)
    enabled = {"broker_fast_failure_enable": True}
    async with (
        world.broker(tmp_path, clock=clock, **{**enabled, **settings}) as subject,
        RemotingClient() as client,
    ):
        await subject.send("T")
        second = Subject(subject.broker, client, [])
        await second.send("T")
        host, _, port = subject.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        left_ms = [stall_ms]

        def stalling(put: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            result = put(*arguments, **options)
            has_put = not isinstance(result, Received) or result.send_count
            if has_put and left_ms:
                clock.advance(left_ms.pop())
                writer.write(request_corpus.send(b"x", queue_id=0))
            return result

        puts: list[tuple[object, str]] = [(subject.broker.store, "begin_put")]
        if subject.broker.frontend is not None:
            puts.append((subject.broker.frontend._send_ingest, "receive"))
        for part, name in puts:
            setattr(part, name, functools.partial(stalling, getattr(part, name)))
        replies = await asyncio.gather(subject.send("T"), second.send("T"))
        refused = sorted(reply.remark or "" for reply in replies)
        assert refused == ["", waiting]
        third = await read_frame(reader)
        assert (third.remark or "") == later
        for reply in (*replies, third):
            expected = ResponseCode.SYSTEM_BUSY if reply.remark else ResponseCode.SUCCESS
            assert reply.code == expected
        assert (await subject.send("T")).code == ResponseCode.SUCCESS
        writer.close()
        await writer.wait_closed()


async def test_slow_puts_are_logged_at_most_every_ten_seconds(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    stalls = PutStalls(subject.broker.settings, clock)
    for duration_ms in (499, 500, 700, 9_299, 600):
        begun_ms = clock.monotonic_ms()
        clock.advance(duration_ms)
        assert stalls.end(begun_ms) == duration_ms
    lines = [record.getMessage() for record in caplog.records if "put took" in record.getMessage()]
    assert lines == [
        "a put took 500 ms; 1 took 500 ms or more since the start",
        "a put took 600 ms; 4 took 500 ms or more since the start",
    ]


async def test_a_put_starts_the_flush_of_a_full_batch_of_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("BUSY_MS", "CALM_MS", "IDLE_MS"):
        monkeypatch.setattr(f"reput.broker.loops.{pause}", 3_600_000)
    config = {"flush_commit_log_timed": False}
    async with world.broker(tmp_path, store=config) as subject:
        await until(lambda: "disk" in subject.broker.loops.turns)
        log = subject.broker.store.log
        await subject.send("T")
        assert log.flushed_offset == 0
        for _ in range(2):  # on the fast path the second send
            await subject.send("T", bytes(4 * 4096))
            await until(lambda: log.flushed_offset >= log.written_offset)
