"""RocketMQ's own store opens stores that were restored from an archive."""

from pathlib import Path

import pytest

import golden
from interop.java_store import JavaStore
from reput.format import names
from reput.spark.jobs.archive import archive
from reput.spark.jobs.compact import compact
from reput.spark.jobs.restore import restore
from reput.store.reader import StoreReader
from spark.in_process import InProcess

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

Place = tuple[str, int, int]


def queued(version: str, topics: list[str] | None) -> dict[Place, str]:
    """Return (topic, queue, queue offset) -> unique key from a golden store's manifest."""
    return {
        (message["topic"], message["queueId"], message["queueOffset"]): message["uniqKey"] or ""
        for message in golden.messages(version, "clean")
        if message["sysFlag"] & 4 == 0 and (topics is None or message["topic"] in topics)
    }


@pytest.mark.parametrize("topics", [None, ["GoldenOne", "GoldenFour"]], ids=["all", "two-topics"])
def test_java_opens_a_restored_store_and_finds_every_message(
    java_store: JavaStore, topics: list[str] | None, tmp_path: Path
) -> None:
    version = java_store.version
    store = golden.unpack(version, "clean")
    session, archived, target = InProcess(), tmp_path / "archive", tmp_path / "store"
    archive(session, str(store), str(archived), include_last=True)
    result = restore(session, str(archived), str(target), topics=topics)
    config = golden.manifest(version, "clean")["config"]
    assert result.file_bytes == int(config["mappedFileSizeCommitLog"])

    view = java_store.open(target, config)
    assert view.is_loaded
    first = 0 if result.is_identical else result.file_bytes
    assert view.max_physical_offset == first + result.log_bytes
    stored = {
        (topic, queue_id, offset): message.properties.get("UNIQ_KEY", "")
        for (topic, queue_id), queue in view.queues.items()
        for offset, message in queue.messages.items()
        if message.queue_offset == offset
    }
    assert stored == queued(version, topics)
    assert not any(queue.holes for queue in view.queues.values())


def test_java_opens_a_compacted_store_and_every_queue_keeps_its_end(
    java_store: JavaStore, tmp_path: Path
) -> None:
    version = java_store.version
    store, target = golden.unpack(version, "clean"), tmp_path / "store"
    result = compact(InProcess(), str(store), str(target), retention={".*": 0})
    assert result.is_written
    config = golden.manifest(version, "clean")["config"]
    reader = StoreReader.open(str(store))
    assert result.file_bytes == int(config["mappedFileSizeCommitLog"])

    old = java_store.open(golden.copy_store(version, "clean", tmp_path / "old"), config)
    new = java_store.open(target, config)
    assert new.is_loaded
    assert new.max_physical_offset == old.max_physical_offset == reader.end_offset
    # Kept are the open log files, system topics, and the last message of each queue.
    open_from = result.log_files * result.file_bytes
    lasts = {key[:2]: key for key in sorted(queued(version, None))}
    want = {
        (message["topic"], message["queueId"], message["queueOffset"]): message["uniqKey"] or ""
        for message in golden.messages(version, "clean")
        if message["sysFlag"] & 4 == 0
        and (
            message["commitLogOffset"] >= open_from
            or names.is_system_topic(message["topic"])
            or lasts[message["topic"], message["queueId"]][2] == message["queueOffset"]
        )
    }
    assert len(want) < len(queued(version, None)) / 2
    stored = {
        (topic, queue_id, offset): message.properties.get("UNIQ_KEY", "")
        for (topic, queue_id), queue in new.queues.items()
        for offset, message in queue.messages.items()
        if message.queue_offset == offset
    }
    assert stored == want
    ends = {key: queue.max_queue_offset for key, queue in old.queues.items()}
    assert {key: queue.max_queue_offset for key, queue in new.queues.items()} == ends
    assert any(queue.min_queue_offset > 0 for queue in new.queues.values())
