"""Reserved names of RocketMQ, and the names that users may choose."""

import pytest
from hypothesis import given, strategies as st

import golden
from cases import each
from reput.format import names

# Topics that the brokers of the golden stores created.
MADE_BY_BROKERS = {
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "TBW102",
    "BenchmarkTest",
    "rmq_sys_wheel_timer",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    "rmq_sys_REVIVE_LOG_DefaultCluster",
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a",
}
# Named after cluster and broker: the name alone does not show that they are system topics.
NAMED_AFTER_OTHERS = {"DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC"}


@each(("version", "name"), golden.STORES)
def test_topics_of_golden_stores(version: str, name: str) -> None:
    for topic in golden.manifest(version, name)["topics"]:
        is_users = topic not in MADE_BY_BROKERS
        assert names.is_system_topic(topic) is not is_users
        if is_users and topic not in NAMED_AFTER_OTHERS:
            assert topic.startswith(("Golden", "%RETRY%CG_", "%DLQ%CG_", "%LMQ%")), topic
        limit = names.LONG_TOPIC_LENGTH_MAX if topic.startswith("%RETRY%") else 127
        assert names.is_legal_topic(topic, limit)


@each(("version", "name"), golden.STORES)
def test_retry_and_dead_letter_topics_of_golden_stores(version: str, name: str) -> None:
    topics = set(golden.manifest(version, name)["topics"])
    groups = set(golden.manifest(version, name)["subscriptionGroups"])
    retry = {topic for topic in topics if names.is_retry_topic(topic)}
    dead = {topic for topic in topics if names.is_dlq_topic(topic)}
    assert dead <= {names.dlq_topic(group) for group in groups}
    assert not retry & dead
    assert all(topic.startswith("%RETRY%") for topic in retry)
    assert all(topic.startswith("%DLQ%") for topic in dead)


@pytest.mark.parametrize(
    "topic",
    ["RMQ_SYS_TRACE_TOPIC", "rmq_sys_anything", "SCHEDULE_TOPIC_XXXX", "TBW102", "SELF_TEST_TOPIC"],
)
def test_system_topics(topic: str) -> None:
    assert names.is_system_topic(topic)


@pytest.mark.parametrize(
    "topic", ["T", "RMQ_SYS_", "%RETRY%g", "%DLQ%g", "schedule_topic_xxxx", ""]
)
def test_other_topics(topic: str) -> None:
    assert not names.is_system_topic(topic)


@each(
    ("topic", "is_legal"),
    [
        ("T", True),
        ("a-Z_09%|", True),
        ("t" * 127, True),
        ("t" * 128, False),
        ("", False),
        ("a b", False),
        ("a.b", False),
        ("a/b", False),
        ("ü", False),
        ("٣", False),
        ("T\n", False),
    ],
)
def test_legal_topics(topic: str, is_legal: bool) -> None:
    """The limit is 127, not 256: a length byte is signed in Java."""
    assert names.is_legal_topic(topic) is is_legal


def test_long_topics() -> None:
    assert names.is_legal_topic("t" * 255, names.LONG_TOPIC_LENGTH_MAX)
    assert not names.is_legal_topic("t" * 256, names.LONG_TOPIC_LENGTH_MAX)


@given(st.text())
def test_names_of_groups(group: str) -> None:
    assert names.retry_topic(group) == "%RETRY%" + group
    assert names.dlq_topic(group) == "%DLQ%" + group
    assert names.is_retry_topic(names.retry_topic(group))
    assert names.is_dlq_topic(names.dlq_topic(group))
    assert not names.is_system_topic(names.retry_topic(group))


@each(
    ("topic", "may"),
    [
        ("TopicA", True),
        ("%LMQ%x", True),
        ("%DLQ%group", True),
        ("%RETRY%group", False),
        ("SCHEDULE_TOPIC_XXXX", False),
        ("rmq_sys_wheel_timer", False),
        ("RMQ_SYS_TRANS_HALF_TOPIC", False),
        ("TRANS_CHECK_MAX_TIME_TOPIC", False),
    ],
)
def test_topics_that_may_have_light_queues(topic: str, may: bool) -> None:
    assert names.may_have_light_queues(topic) is may
