"""Stores that came out of an archive, in the hands of RocketMQ's own."""

from pathlib import Path

import pytest

import golden
from interop.java_store import JavaStore
from reput.spark.jobs.archive import archive
from reput.spark.jobs.restore import restore
from spark.in_process import InProcess

pytestmark = pytest.mark.interop

Place = tuple[str, int, int]


def queued(version: str, topics: list[str] | None) -> dict[Place, str]:
    """(topic, queue, queue offset) -> unique key, as a golden store's manifest has it."""
    return {
        (one["topic"], one["queueId"], one["queueOffset"]): one["uniqKey"] or ""
        for one in golden.messages(version, "clean")
        if one["sysFlag"] & 4 == 0 and (topics is None or one["topic"] in topics)
    }


@pytest.mark.parametrize("topics", [None, ["GoldenOne", "GoldenFour"]], ids=["all", "two-topics"])
def test_java_opens_it_and_finds_every_message(
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
    assert view.max_physical_offset == result.log_bytes
    found = {
        (topic, queue_id, offset): one.properties.get("UNIQ_KEY", "")
        for (topic, queue_id), queue in view.queues.items()
        for offset, one in queue.messages.items()
        if one.queue_offset == offset
    }
    assert found == queued(version, topics)
    assert not any(queue.holes for queue in view.queues.values())
