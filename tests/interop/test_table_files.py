"""The broker classes that keep tables read our files without losing anything."""

import json
from pathlib import Path
from typing import Any

import pytest

import golden
from interop.java_oracle import Oracle
from reput.format import fastjson
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.filters import ConsumerFilter, ConsumerFilterTable
from reput.store.tables.groups import SubscriptionGroup, SubscriptionGroupTable
from reput.store.tables.offsets import ConsumerOffsetTable, DelayOffsetTable
from reput.store.tables.topics import TopicTable

pytestmark = pytest.mark.interop

BROKER = "org.apache.rocketmq.broker"
TABLES: dict[type[Any], str] = {
    TopicTable: f"{BROKER}.topic.TopicConfigManager",
    SubscriptionGroupTable: f"{BROKER}.subscription.SubscriptionGroupManager",
    ConsumerOffsetTable: f"{BROKER}.offset.ConsumerOffsetManager",
    ConsumerFilterTable: f"{BROKER}.filter.ConsumerFilterManager",
}
KINDS = [*TABLES, DelayOffsetTable]


def read_by_java(oracle: Oracle, root: Path, kind: type[Any]) -> Any:
    """Return the file that Java would write after it has read ours."""
    text = (root / kind.path).read_text()
    package = "store.schedule" if oracle.is_4 else "broker.schedule"
    delay = f"org.apache.rocketmq.{package}.DelayOffsetSerializeWrapper"
    answer = oracle.ask_one("table", TABLES.get(kind, delay), text)
    return fastjson.parse(answer["text"])


def load(kind: type[Any], root: Path) -> Any:
    return kind.load(str(root), Disk())


def test_java_reads_our_topics(table_oracle: Oracle, tmp_path: Path) -> None:
    table = load(TopicTable, tmp_path)
    table.put(TopicConfig("T", 8, 4, 6, order=True, sys_flag=2), 100)
    table.put(TopicConfig("U", 1, 1, 2, attributes=(("message.type", "FIFO"),)), 200)
    table.save(300)
    java = read_by_java(table_oracle, tmp_path, TopicTable)
    assert java["dataVersion"] | {"stateVersion": 0} == {
        "counter": 2,
        "timestamp": 200,
        "stateVersion": 0,
    }
    assert java["topicConfigTable"]["T"] | {"attributes": {}} == {
        "attributes": {},
        "order": True,
        "perm": 6,
        "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 2,
        "writeQueueNums": 4,
    }
    if not table_oracle.is_4:
        assert java["topicConfigTable"]["U"]["attributes"] == {"message.type": "FIFO"}


def test_java_reads_our_groups(table_oracle: Oracle, tmp_path: Path) -> None:
    table = load(SubscriptionGroupTable, tmp_path)
    group = SubscriptionGroup(name="g", retry_max=3, consume_broadcast_enable=False, broker_id=1)
    table.put(group, 100)
    table.put(SubscriptionGroup(name="plain"), 100)
    table.save(100)
    java = read_by_java(table_oracle, tmp_path, SubscriptionGroupTable)["subscriptionGroupTable"]
    ours = json.loads((tmp_path / paths.SUBSCRIPTION_GROUPS).read_text())["subscriptionGroupTable"]
    for name in ("g", "plain"):
        assert ours[name].items() <= java[name].items()
    # Java's own default of a group is ours.
    assert ours["plain"].items() <= (java["SELF_TEST_C_GROUP"] | {"groupName": "plain"}).items()


def test_java_reads_our_consumer_offsets(table_oracle: Oracle, tmp_path: Path) -> None:
    table = load(ConsumerOffsetTable, tmp_path)
    offsets = {0: 3, 1: (1 << 62), 10: 0, 2: 5}
    for queue_id, consumer_offset in offsets.items():
        table.put("%RETRY%日本", "日本", queue_id, consumer_offset)
    table.save(0)
    java = read_by_java(table_oracle, tmp_path, ConsumerOffsetTable)
    assert java["offsetTable"] == {
        "%RETRY%日本@日本": {str(queue_id): value for queue_id, value in offsets.items()}
    }


def test_java_reads_our_delay_offsets(table_oracle: Oracle, tmp_path: Path) -> None:
    table = load(DelayOffsetTable, tmp_path)
    for level in range(1, 19):
        table.put(level, level * 1000)
    table.save(0)
    java = read_by_java(table_oracle, tmp_path, DelayOffsetTable)
    assert java["offsetTable"] == {str(level): level * 1000 for level in range(1, 19)}


def test_java_reads_our_filters(table_oracle: Oracle, tmp_path: Path) -> None:
    table = load(ConsumerFilterTable, tmp_path)
    consumer_filter = ConsumerFilter(
        topic="TopicA",
        group="CGO",
        expression="a > 5 AND b = '日本'",
        expression_type="SQL92",
        client_version=1_700_000_000_000,
        born_ms=1_700_000_000_001,
        bloom_bits=112,
        bloom_positions=(36, 98, 22),
    )
    table.put(consumer_filter)
    table.save(0)
    java = read_by_java(table_oracle, tmp_path, ConsumerFilterTable)
    stored = java["filterDataByTopic"]["TopicA"]["groupFilterData"]["CGO"]
    ours = json.loads((tmp_path / paths.CONSUMER_FILTERS).read_text())
    expected = ours["filterDataByTopic"]["TopicA"]["groupFilterData"]["CGO"]
    assert stored == expected


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, "ext" if kind is ConsumerFilterTable else "clean") for kind in KINDS]
)
def test_java_reads_its_table_after_we_saved_it(
    table_oracle: Oracle, kind: type[Any], name: str, tmp_path: Path
) -> None:
    store = golden.copy_store(table_oracle.version, name, tmp_path)
    before = read_by_java(table_oracle, store, kind)
    load(kind, store).save(1)
    after = read_by_java(table_oracle, store, kind)
    assert len(after[kind.entries_member]) > 0
    assert after[kind.entries_member] == before[kind.entries_member]
    # 4.9.7 does not read the version of groups, and writes the age of the process instead.
    if before.get("dataVersion", {}).get("counter"):
        assert after["dataVersion"] == before["dataVersion"]
