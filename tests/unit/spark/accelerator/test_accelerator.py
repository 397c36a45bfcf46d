"""Plans of the accelerator: ranges that hold every record once, and whole records alone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import golden
import store_builder
from reput.errors import StoreUnavailable
from reput.format.message import StoredMessage
from reput.spark import accelerator
from reput.spark.accelerator.building import JarUnavailable
from reput.spark.accelerator.planning import plan_of
from spark import reading

FILE_BYTES = 8192


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> store_builder.Built:
    messages = store_builder.messages(200)
    messages[50] = store_builder.message(body=b"x" * 5000)  # larger than a partition
    root = tmp_path_factory.mktemp("accelerator") / "store"
    return store_builder.build(root, messages, log_file_bytes=FILE_BYTES)


def planned(root: Path, **options: Any) -> dict[str, Any]:
    text = plan_of(reading.parse(root, **options))
    assert text is not None
    plan: dict[str, Any] = json.loads(text)
    return plan


def records_of(plan: dict[str, Any], messages: list[StoredMessage]) -> list[list[int]]:
    """Return the offsets of the records in each partition, walked as the jar walks them."""
    sizes = {message.physical_offset: message.store_size for message in messages}
    partitions = []
    for partition in plan["partitions"]:
        offsets = []
        for segment in partition["segments"]:
            assert segment["fileStart"] <= segment["start"] < segment["stop"] <= segment["fileEnd"]
            assert Path(segment["path"]).name == f"{segment['fileStart']:020d}"
            position = segment["start"]
            while position < segment["stop"]:
                if position not in sizes:  # a blank
                    assert segment["stop"] == segment["fileEnd"]
                    position = segment["stop"]
                else:
                    offsets.append(position)
                    position += sizes[position]
            assert position == segment["stop"]
        partitions.append(offsets)
    return partitions


def test_partitions_are_those_of_the_python_source(store: store_builder.Built) -> None:
    for target in (97, 700, 3000, 9000, 1 << 27):
        plan = planned(store.root, maxBytesPerPartition=target)
        scan = reading.scan(store.root, maxBytesPerPartition=target, columns="physical_offset")
        assert records_of(plan, store.messages) == [
            [offset for batch in scan.read(task) for offset in batch["physical_offset"].to_pylist()]
            for task in scan.tasks()
        ]
    for start, end in ((0, 1), (1, 8193), (5000, 16384), (8191, 8300)):
        plan = planned(store.root, startingPhysicalOffset=start, endingPhysicalOffset=end)
        offsets = [offset for part in records_of(plan, store.messages) for offset in part]
        places = [message.physical_offset for message in store.messages]
        assert offsets == [place for place in places if start <= place < end]


def test_isolation_and_topics_are_handed_over(store: store_builder.Built) -> None:
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    assert half in planned(store.root)["hiddenTopics"]
    assert half not in planned(store.root, readIsolation="half")["hiddenTopics"]
    assert planned(store.root, readIsolation="all")["hiddenTopics"] == []
    assert planned(store.root, readIsolation="all")["hiddenFlags"] == 0
    selected = planned(store.root, topic="TopicA", scan="log")
    assert (selected["topics"], selected["hiddenTopics"]) == (["TopicA"], [])


def test_other_reads_stay_with_the_python_source(
    store: store_builder.Built, tmp_path: Path
) -> None:
    of_queue, broker = {"TopicA": {"broker-a": [0]}}, {"broker": "broker-a"}
    for options in (
        *({"mode": "PERMISSIVE"}, {"mode": "SALVAGE"}, {"charset": "utf-8"}, {"allowLive": True}),
        *({"tags": "TagA"}, {"sql92": "a = 1"}, {"key": "shared"}, {"uniqKey": "x"}),
        *({"rawProperties": True}, {"resolveTopics": True}, {"startingTimestamp": 1}),
        *({"subscribePattern": "Topic.*"}, {"view": "topics"}),
        {"assign": of_queue, **broker},
        {"endingOffsets": {"TopicA": {"broker-a": {"0": 3}}}, **broker},
        *({name: False} for name in ("includeSystemTopics", "includeRetry", "includeDlq")),
        {"topic": "TopicA", "scan": "consumequeue"},
        {"columns": "brokr"},  # an error of load()
    ):
        assert plan_of(reading.parse(store.root, **options)) is None, options
    with pytest.raises(StoreUnavailable):
        plan_of(reading.parse(store.root / "config"))
    connect: Any = SimpleNamespace()  # a session without a JVM
    assert not accelerator.is_available(connect)
    assert accelerator.accelerated(connect, reading.parse(store.root)) is None
    shutil.copytree(store.root, tmp_path / "store")
    golden.log_files(tmp_path / "store")[1].unlink()
    assert plan_of(reading.parse(tmp_path / "store", failOnDataLoss=False)) is None


def test_the_error_without_a_compiler_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JarUnavailable, match="openjdk-17-jdk-headless"):
        accelerator.jar(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-m", "reput.spark.accelerator", "--folder", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "there is no javac" in ran.stderr
