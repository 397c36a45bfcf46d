"""Plans of the accelerator: ranges that hold every record once, and whole records alone."""

import json
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


@pytest.fixture
def store(tmp_path: Path) -> store_builder.Built:
    messages = store_builder.messages(200)
    messages[50] = store_builder.message(body=b"x" * 5000)  # larger than a partition
    return store_builder.build(tmp_path / "store", messages, log_file_bytes=FILE_BYTES)


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


@pytest.mark.parametrize("target", [97, 700, 3000, 9000, 1 << 27])
def test_partitions_are_those_of_the_python_source(store: store_builder.Built, target: int) -> None:
    plan = planned(store.root, maxBytesPerPartition=target)
    scan = reading.scan(store.root, maxBytesPerPartition=target, columns="physical_offset")
    wanted = [
        [offset for batch in scan.read(task) for offset in batch["physical_offset"].to_pylist()]
        for task in scan.tasks()
    ]
    assert records_of(plan, store.messages) == wanted


@pytest.mark.parametrize(("start", "end"), [(0, 1), (1, 8193), (5000, 16384), (8191, 8300)])
def test_physical_offsets_bound_the_partitions(
    store: store_builder.Built, start: int, end: int
) -> None:
    plan = planned(store.root, startingPhysicalOffset=start, endingPhysicalOffset=end)
    offsets = [offset for part in records_of(plan, store.messages) for offset in part]
    assert offsets == [
        message.physical_offset
        for message in store.messages
        if start <= message.physical_offset < end
    ]


def test_isolation_and_topics_are_handed_over(store: store_builder.Built) -> None:
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    assert half in planned(store.root)["hiddenTopics"]
    assert half not in planned(store.root, readIsolation="half")["hiddenTopics"]
    assert planned(store.root, readIsolation="all")["hiddenTopics"] == []
    assert planned(store.root, readIsolation="all")["hiddenFlags"] == 0
    selected = planned(store.root, topic="TopicA", scan="log")
    assert (selected["topics"], selected["hiddenTopics"]) == (["TopicA"], [])


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "PERMISSIVE"},
        {"mode": "SALVAGE"},
        {"tags": "TagA"},
        {"sql92": "a = 1"},
        {"key": "shared"},
        {"uniqKey": "x"},
        {"charset": "utf-8"},
        {"rawProperties": True},
        {"resolveTopics": True},
        {"subscribePattern": "Topic.*"},
        {"assign": {"TopicA": {"broker-a": [0]}}, "broker": "broker-a"},
        {"startingTimestamp": 1},
        {"endingOffsets": {"TopicA": {"broker-a": {"0": 3}}}, "broker": "broker-a"},
        {"includeSystemTopics": False},
        {"includeRetry": False},
        {"includeDlq": False},
        {"allowLive": True},
        {"view": "topics"},
        {"topic": "TopicA", "scan": "consumequeue"},
    ],
    ids=str,
)
def test_other_reads_stay_with_the_python_source(
    store: store_builder.Built, options: dict[str, Any]
) -> None:
    assert plan_of(reading.parse(store.root, **options)) is None


def test_a_log_without_a_file_stays_with_the_python_source(store: store_builder.Built) -> None:
    golden.log_files(store.root)[1].unlink()
    assert plan_of(reading.parse(store.root, failOnDataLoss=False)) is None


def test_errors_of_the_plan_are_those_of_the_source(store: store_builder.Built) -> None:
    with pytest.raises(StoreUnavailable):
        plan_of(reading.parse(store.root / "config"))
    assert plan_of(reading.parse(store.root, columns="brokr")) is None  # an error of load()


def test_a_session_without_a_jvm_has_no_accelerator(store: store_builder.Built) -> None:
    connect: Any = SimpleNamespace()
    assert not accelerator.is_available(connect)
    assert accelerator.accelerated(connect, reading.parse(store.root)) is None


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
