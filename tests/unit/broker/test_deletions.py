"""Data that is deleted with a topic or a queue, and data of a recreated topic that is kept."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import world
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import TopicHeader, UpdateConsumerOffsetHeader
from reput.store.config import FlushDiskType
from reput.store.queues.batch_queue import BatchQueue
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.writing.removal import Removal
from world import Subject


async def commit(subject: Subject, topic: str, group: str, consumer_offset: int) -> None:
    header = UpdateConsumerOffsetHeader(
        consumer_group=group, topic=topic, queue_id=0, commit_offset=consumer_offset
    )
    reply = await subject.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert reply.code == ResponseCode.SUCCESS, reply.remark


async def delete(subject: Subject, topic: str) -> None:
    reply = await subject.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=topic))
    assert reply.code == ResponseCode.SUCCESS, reply.remark


async def recreate(subject: Subject) -> None:
    """Send to a deleted topic and read it, as live clients do at once."""
    await subject.send("Doomed", b"new")
    await commit(subject, "Doomed", "readers", 1)


async def test_offsets_of_a_recreated_topic_are_kept(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = subject.broker
    for _ in range(3):
        await subject.send("Doomed", b"old")
    await commit(subject, "Doomed", "readers", 3)
    await commit(subject, "Doomed", "others", 3)
    run = broker.parts.disk_thread.run

    async def after_sends(action: Callable[[], object]) -> object:
        if action == broker.store.removals.finish:
            await recreate(subject)
        return await run(action)

    monkeypatch.setattr(broker.parts.disk_thread, "run", after_sends)
    await delete(subject, "Doomed")
    assert broker.parts.topics.get("Doomed") is not None
    assert broker.store.max_offset("Doomed", 0) == 1
    assert broker.parts.deliveries.consumer_offsets.get("Doomed", "readers", 0) == 1
    assert broker.parts.deliveries.consumer_offsets.get("Doomed", "others", 0) is None


async def test_a_topic_recreated_during_its_deletion_is_deleted_with_its_offsets(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = subject.broker
    await subject.send("Doomed", b"old")
    await commit(subject, "Doomed", "readers", 1)
    known = broker.parts.topics.get("Doomed")
    assert known is not None
    begin = broker.store.begin_deletion
    forget = broker.parts.resets.delete
    calls: list[str | None] = []

    def after_sends(*, topic: str | None = None, group: str | None = None) -> None:
        forget(topic=topic, group=group)
        if not calls:  # the last step before its queues are deleted
            calls.append(topic)
            broker.parts.topics.put(known, broker.clock.now_ms())
            broker.parts.commits.commit(known, "readers", 0, 2)

    monkeypatch.setattr(broker.parts.resets, "delete", after_sends)
    seen: list[int | None] = []

    def begin_seen(topics: list[str]) -> Removal | None:
        seen.append(broker.parts.deliveries.consumer_offsets.get("Doomed", "readers", 0))
        return begin(topics)

    monkeypatch.setattr(broker.store, "begin_deletion", begin_seen)
    await delete(subject, "Doomed")
    assert calls
    assert seen == [None]
    assert broker.parts.topics.get("Doomed") is None
    assert broker.store.max_offset("Doomed", 0) == 0


async def test_queues_are_detached_after_a_flush_in_the_disk_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the loop would flush the log, as dispatch must catch up first."""
    sync = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with world.broker(tmp_path, store=sync) as subject:
        store, thread = subject.broker.store, subject.parts.disk_thread
        for topic in ("Doomed", "Unknown", "Unused"):
            await subject.send(topic, b"old")
        subject.parts.topics.delete("Unknown", subject.parts.clock.now_ms())
        monkeypatch.setattr(
            store, "_is_unused", lambda unused_queue: unused_queue.topic == "Unused"
        )
        run, begin_deletion, begin_removal = thread.run, store.begin_deletion, store.begin_removal
        done: list[str] = []

        async def running(action: Callable[[], object]) -> object:
            if action == store.sync:
                done.append("flush")
            return await run(action)

        def deleting(topics: Iterable[str]) -> Removal | None:
            done.append(f"delete {' '.join(topics)}")
            return begin_deletion(topics)

        def removing(queues: Iterable[ConsumeQueue | BatchQueue]) -> Removal | None:
            done.append(f"remove {' '.join(queue.topic for queue in queues)}")
            return begin_removal(queues)

        monkeypatch.setattr(thread, "run", running)
        monkeypatch.setattr(store, "begin_deletion", deleting)
        monkeypatch.setattr(store, "begin_removal", removing)
        await delete(subject, "Doomed")
        for code in (RequestCode.CLEAN_UNUSED_TOPIC, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE):
            assert (await subject.ask(code)).code == ResponseCode.SUCCESS
        flushed = ["flush", "delete Doomed", "flush", "delete Unknown", "flush", "remove Unused"]
        assert done == flushed


async def test_offsets_of_unused_queues_are_deleted_with_the_queues(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each start after a crash would miss the queue, and read the whole log for it."""
    broker = subject.broker
    for topic, queue_id in (("Old", 0), ("Old", 1), ("Other", 0)):
        await subject.send(topic, b"x", queue_id=queue_id)
        known = broker.parts.topics.get(topic)
        assert known is not None
        broker.parts.commits.commit(known, "readers", queue_id, 1)
    is_unused = ("Old", 0)
    monkeypatch.setattr(
        broker.store, "_is_unused", lambda queue: (queue.topic, queue.queue_id) == is_unused
    )
    count = broker.parts.deliveries.consumer_offsets.count
    reply = await subject.ask(RequestCode.CLEAN_UNUSED_TOPIC)
    assert reply.code == ResponseCode.SUCCESS
    reply = await subject.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    assert reply.code == ResponseCode.SUCCESS
    offsets = broker.parts.deliveries.consumer_offsets
    assert offsets.get("Old", "readers", 0) is None
    assert offsets.get("Old", "readers", 1) == 1
    assert offsets.get("Other", "readers", 0) == 1
    assert offsets.count == count - 1
    assert offsets.is_saved
    folder = Path(broker.store.root)
    stored = json.loads((folder / "config/consumerOffset.json").read_text())
    assert stored["offsetTable"]["Old@readers"] == {"1": 1}
