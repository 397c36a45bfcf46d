"""RocketMQ's own store opens salvaged stores, and has every recovered message."""

from pathlib import Path

import pytest

import golden
from interop.conftest import StartOfficial
from interop.java_cluster import JavaClient
from interop.java_store import JavaStore
from reput.spark.jobs import hole_filling
from reput.spark.jobs.salvage import Salvaged, salvage
from spark.in_process import InProcess
from spark.jobs_setting import flip, log_place, settings

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

BROKEN = 6
"""Interval of damaged messages in the log; small enough for holes at all kinds of positions."""


def salvaged(version: str, tmp_path: Path, *, has_gap: bool) -> tuple[Path, Salvaged, set[int]]:
    """Return a salvaged store with many holes, and the physical offsets of the intact messages."""
    source = golden.copy_store(version, "clean", tmp_path / "damaged")
    messages = golden.messages(version, "clean")
    whole = set()
    for number, message in enumerate(messages):
        path, position = log_place(source, message["commitLogOffset"])
        if number % BROKEN == 3:
            flip(path, position + 4)
        else:
            whole.add(message["commitLogOffset"])
    if has_gap:
        gone = golden.log_files(source)[4]
        whole = {
            physical_offset
            for physical_offset in whole
            if log_place(source, physical_offset)[0] != gone
        }
        gone.unlink()
    target = tmp_path / "cluster" / "store"
    target.parent.mkdir()
    report = salvage(InProcess(), str(source), str(target), config=settings(version))
    return target, report, whole


@pytest.mark.parametrize("has_gap", [False, True], ids=["holes", "holes-and-a-missing-file"])
def test_java_opens_a_salvaged_store_and_finds_every_message(
    java_store: JavaStore, has_gap: bool, tmp_path: Path
) -> None:
    version = java_store.version
    target, report, whole = salvaged(version, tmp_path, has_gap=has_gap)
    assert report.record_count == len(whole)
    config = golden.manifest(version, "clean")["config"]

    view = java_store.open(target, config)
    assert view.is_loaded
    assert view.max_physical_offset == report.end_offset
    queued = {
        (message["topic"], message["queueId"], message["queueOffset"]): message["commitLogOffset"]
        for message in golden.messages(version, "clean")
        if message["commitLogOffset"] in whole and message["sysFlag"] & 4 == 0
    }
    stored = {
        (topic, queue_id, offset): message.physical_offset
        for (topic, queue_id), queue in view.queues.items()
        for offset, message in queue.messages.items()
        if message.queue_offset == offset
    }
    assert stored == queued
    # No client gets the filling of the holes, and no place of a queue is without a message.
    assert not any(topic == hole_filling.TOPIC for topic, _ in view.queues)
    assert not any(queue.holes for queue in view.queues.values())

    again = java_store.open(target, config, crash=True)
    assert again.max_physical_offset == report.end_offset
    recovered = java_store.open(target, config)
    assert recovered.max_physical_offset == report.end_offset
    assert {key: queue.physical_offsets for key, queue in recovered.queues.items()} == {
        key: queue.physical_offsets for key, queue in view.queues.items()
    }


def test_consumers_of_the_official_broker_read_a_salvaged_store(
    start_official: StartOfficial, java_client: JavaClient, tmp_path: Path
) -> None:
    if java_client.version != "4.9.7":
        pytest.skip("no such case: one client is enough")
    target, _, whole = salvaged("4.9.7", tmp_path, has_gap=True)
    settings_of_java = golden.manifest("4.9.7", "clean")["config"]
    cluster = start_official("4.9.7", settings_of_java, target.parent)
    with java_client.pull_consumer(cluster.namesrv, "SalvageReaders") as consumer:
        for topic in ("GoldenOne", "GoldenFour", "GoldenSixteen"):
            got = {
                (message.queue_id, message.queue_offset, message.physical_offset, message.msg_id)
                for received in consumer.read_all(topic).values()
                for message in received
            }
            assert got == {
                (
                    message["queueId"],
                    message["queueOffset"],
                    message["commitLogOffset"],
                    message["uniqKey"],
                )
                for message in golden.messages("4.9.7", "clean")
                if message["topic"] == topic and message["commitLogOffset"] in whole
            }
