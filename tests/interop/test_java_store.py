"""``java_store`` itself: it returns the known contents of stores.

The manifests of the golden stores were made by other means, when the stores were recorded.
"""

import hashlib
from pathlib import Path
from typing import Any

import pytest

import golden
from interop import java_oracle
from interop.java_oracle import JavaError
from interop.java_store import JavaMessage, JavaStore, JavaTime, JavaView, Put

pytestmark = pytest.mark.interop

SMALL = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": 1000,
    "maxHashSlotNum": 64,
    "maxIndexNum": 100,
    "maxMessageSize": 32768,
}


# --- golden stores ----------------------------------------------------------


STORES = ["clean", "ext", "expired"]
if java_oracle.wants_all_versions():
    STORES += ["recovered", "expired-nocq-recovered"]


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", STORES)
def test_a_golden_store_has_the_contents_of_its_manifest(
    java_store: JavaStore, name: str, tmp_path: Path
) -> None:
    assert_as_in_the_manifest(java_store, name, tmp_path)


@pytest.mark.rotating
def test_a_store_of_5_has_the_contents_of_its_manifest(
    java_store: JavaStore, tmp_path: Path
) -> None:
    if java_store.version != "5.5.0":
        pytest.skip("no such case: only in 5.x")
    view = assert_as_in_the_manifest(java_store, "v5", tmp_path)
    lite = view.queues["%LMQ%second-0", 0].messages.values()
    assert [(message.topic, message.queue_offset) for message in lite] == [
        ("GoldenOne-lmq", number) for number in (0, 2, 4, 6, 8)
    ]
    # Whole batches are read, at the place of their first message.
    assert list(view.queues["GoldenBatch-bcq", 0].messages) == [0, 4, 8]


@pytest.mark.rotating
def test_a_killed_store_is_recovered(java_store: JavaStore, tmp_path: Path) -> None:
    version = java_store.version
    manifest = golden.manifest(version, "unclean")
    assert manifest["recordsNotInQueues"]
    store = golden.copy_store(version, "unclean", tmp_path)
    view = java_store.open(store, manifest["config"])
    physical_offsets = {
        offset for queue in view.queues.values() for offset in queue.physical_offsets
    }
    prepared_or_rolled_back = {4, 12}
    assert physical_offsets == {
        message["commitLogOffset"]
        for message in golden.messages(version, "unclean")
        if message["sysFlag"] & 12 not in prepared_or_rolled_back
    }


@pytest.mark.rotating
def test_a_damaged_store_is_refused(java_store: JavaStore, tmp_path: Path) -> None:
    store = golden.copy_store(java_store.version, "ext", tmp_path)
    config = golden.manifest(java_store.version, "ext")["config"]
    view = java_store.open(store, {**config, "mappedFileSizeCommitLog": 12345})
    assert not view.is_loaded
    assert not view.queues
    assert any("length not matched message store config value" in line for line in view.log)


def assert_as_in_the_manifest(java_store: JavaStore, name: str, folder: Path) -> JavaView:
    version = java_store.version
    manifest = golden.manifest(version, name)
    queries = {
        (query["topic"], query["key"], query["begin"], query["end"], query["max"]): query[
            "messageOffsets"
        ]
        for query in manifest["queries"]
    }
    times = {
        (query["topic"], query["queueId"], query["timestamp"]): JavaTime(
            query["offset"], query.get("lower"), query.get("upper")
        )
        for query in manifest["offsetByTime"]
    }
    store = golden.copy_store(version, name, folder)
    view = java_store.open(store, manifest["config"], keys=[*queries], times=[*times])

    assert view.min_physical_offset == manifest["minPhyOffset"]
    assert view.max_physical_offset == manifest["maxPhyOffset"]
    assert_queues(view, version, name)
    assert view.keys == queries
    assert view.times == times
    return view


def assert_queues(view: JavaView, version: str, name: str) -> None:
    records = {message["commitLogOffset"]: message for message in golden.messages(version, name)}
    expected = {
        (entry["topic"], entry["queueId"]): entry
        for entry in golden.manifest(version, name)["queues"]
    }
    # An open store may have created empty queues in memory, for each delay level.
    assert {pair for pair, queue in view.queues.items() if queue.max_queue_offset} == {
        pair for pair, entry in expected.items() if entry["maxOffset"]
    }
    for pair, entry in expected.items():
        queue = view.queues[pair]
        assert (queue.min_queue_offset, queue.max_queue_offset) == (
            entry["minOffset"],
            entry["maxOffset"],
        )
        if "units" in entry:
            # The first records of a queue may be deleted with their log file.
            first = entry["maxOffset"] - len(queue.messages)
            assert list(queue.messages) == list(range(first, entry["maxOffset"]))
            units = [unit if isinstance(unit, list) else unit["unit"] for unit in entry["units"]]
            offsets = [physical_offset for physical_offset, _, _ in units]
            assert queue.physical_offsets == offsets[len(offsets) - len(queue.messages) :]
            assert bool(queue.holes) == (first > entry["minOffset"])
        for message in queue.messages.values():
            assert as_in_manifest(message) == {
                key: records[message.physical_offset][key] for key in as_in_manifest(message)
            }


def as_in_manifest(message: JavaMessage) -> dict[str, Any]:
    return {
        "commitLogOffset": message.physical_offset,
        "storeSize": message.size,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": message.properties,
        "storedBodySha256": hashlib.sha256(message.body).hexdigest(),
        "offsetMsgId": message.message_id,
    }


# --- writing ----------------------------------------------------------------


V4, V6 = "192.0.2.7:1", "[fd00:0:0:0:0:0:0:1]:65535"
V6_BITS = {(V4, V4): 0, (V6, V4): 0x10, (V4, V6): 0x20, (V6, V6): 0x30}
"""Born host and store host -> bits of the sysFlag."""


@pytest.mark.rotating
@pytest.mark.parametrize("crash", [False, True])
def test_written_messages_are_found(java_store: JavaStore, crash: bool, tmp_path: Path) -> None:
    hosts = [(V4, V4)] if java_store.version.startswith("4.5") else list(V6_BITS)
    puts = [
        Put(
            "Orders",
            number % 2,
            body=b"body %d" % number,
            properties={"UNIQ_KEY": f"U{number}", "KEYS": f"k{number} 键", "TAGS": "TagA"},
            flag=number,
            born_host=hosts[number % len(hosts)][0],
            store_host=hosts[number % len(hosts)][1],
            reconsume_times=3,
        )
        for number in range(200)
    ]
    written = java_store.write(tmp_path, puts, SMALL, crash=crash).puts
    assert (tmp_path / "abort").exists() == crash
    assert {answer.status for answer in written} == {"PUT_OK"}

    asked = [("Orders", "k7"), ("Orders", "U199"), ("Orders", "键"), ("Orders", "nothing")]
    view = java_store.open(tmp_path, SMALL, keys=asked)
    messages = [view.queues["Orders", n % 2].messages[n // 2] for n in range(200)]
    for put, answer, message in zip(puts, written, messages, strict=True):
        assert (put.body, dict(put.properties)) == (message.body, message.properties)
        assert (put.flag, put.reconsume_times) == (message.flag, message.reconsume_times)
        assert (put.born_host, put.store_host) == (message.born_host, message.store_host)
        assert message.sys_flag == V6_BITS[put.born_host, put.store_host]
        assert answer.physical_offset == message.physical_offset
        assert answer.queue_offset == message.queue_offset
        assert answer.store_timestamp == message.store_timestamp
        assert answer.message_id == message.message_id
    assert view.keys["Orders", "k7"] == [written[7].physical_offset]
    # A key may be indexed twice after a crash: Java skips only messages before the index's end.
    assert set(view.keys["Orders", "U199"]) == {written[199].physical_offset}
    assert len(view.keys["Orders", "键"]) == 64
    assert view.keys["Orders", "nothing"] == []
    assert not (tmp_path / "abort").exists()


@pytest.mark.rotating
def test_illegal_puts_are_refused(java_store: JavaStore, tmp_path: Path) -> None:
    puts = [
        Put("T", 0, b"x" * 40_000),
        Put("T", 0, b"", {"a": "x" * 40_000}),
        Put("T", 0, b"good", {"z": "1", "a": "2", "m": "3"}),
    ]
    answers = java_store.write(tmp_path, puts, SMALL).puts
    too_long = "MESSAGE_ILLEGAL" if java_store.version == "4.9.7" else "PROPERTIES_SIZE_EXCEEDED"
    assert [answer.status for answer in answers] == ["MESSAGE_ILLEGAL", too_long, "PUT_OK"]
    # Java's own maps have no order; this harness keeps that of the request.
    assert b"z\x011\x02a\x012\x02m\x013" in golden.log_files(tmp_path)[0].read_bytes()


@pytest.mark.rotating
def test_a_transient_store_pool_is_written_out(java_store: JavaStore, tmp_path: Path) -> None:
    pool = {**SMALL, "transientStorePoolEnable": True, "transientStorePoolSize": 2}
    answers = java_store.write(tmp_path, [Put("T", 0, b"pooled")] * 3, pool).puts
    assert [answer.status for answer in answers] == ["PUT_OK"] * 3
    assert len(java_store.open(tmp_path, SMALL).queues["T", 0].messages) == 3


@pytest.mark.rotating
def test_an_unknown_setting_is_an_error(java_store: JavaStore, tmp_path: Path) -> None:
    with pytest.raises(JavaError, match="no setting mappedFileSize"):
        java_store.open(tmp_path, {"mappedFileSize": 1})


# --- measuring --------------------------------------------------------------


@pytest.mark.rotating
def test_costs_are_measured(java_store: JavaStore, tmp_path: Path) -> None:
    sizes = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 1000, "maxIndexNum": 100_000}
    bench = java_store.bench(tmp_path, sizes, messages=2000, warm_up=500, queues=4)
    assert bench.messages == 2000
    assert bench.statuses == {"PUT_OK": 2000}
    assert 0 < bench.put_ms <= bench.dispatched_ms
    assert bench.cpu_ms > 0
    cost = java_store.open_cost(tmp_path, sizes)
    assert 0 < cost.load_ms + cost.start_ms < cost.wall_ms
