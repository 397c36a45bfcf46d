"""Requests of consoles: the official dashboard and the exporter for Prometheus.

Both consist of calls of ``DefaultMQAdminExt``. Each call is made with both clusters. The answers
must have the same shape: the same fields, with values of the same kinds.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from interop.java_cluster import Admin, ClientError, JavaMessage, PushConsumer
from interop.mqadmin.sides import Both, Side, masked

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

GROUP = "Console"


class ConsoleCluster:
    """A cluster as a console sees it: a group reads ``Messages``, and a producer is connected."""

    def __init__(self, side: Side, admin: Admin, consumer: PushConsumer) -> None:
        self.side = side
        self.admin = admin
        connection = admin.call("examineConsumerConnectionInfo", GROUP)
        self.client_id = connection["connectionSet"][0]["clientId"]
        self.consumer = consumer

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method; ``BROKER``, ``ID``, ... are replaced by values of the cluster."""
        known = {
            "BROKER": self.side.broker,
            "NAMESRV": self.side.namesrv,
            "CLIENT": self.client_id,
            "ID": self.side.sent[0].offset_msg_id,
            "UNIQUE": self.side.sent[0].msg_id,
        }

        def resolved(word: Any) -> Any:
            if isinstance(word, list):
                return [resolved(item) for item in word]
            return known.get(word, word) if isinstance(word, str) else word

        try:
            return self.admin.call(method, *map(resolved, arguments))
        except ClientError as error:
            if error.type == "NoSuchMethodException":
                raise
            return {"refused": [error.type, error.code]}


@pytest.fixture(scope="module")
def clusters(both: Both) -> Iterator[list[ConsoleCluster]]:
    with contextlib.ExitStack() as stack:
        started = []
        for side in both.sides:
            consumer = stack.enter_context(both.java.push_consumer(side.namesrv, GROUP, "Messages"))
            consumer.take(6)
            both.await_committed(side, consumer, GROUP)
            producer = stack.enter_context(both.java.producer(side.namesrv, "console-producer"))
            producer.send([JavaMessage("Others", b"body")])
            admin = stack.enter_context(both.java.admin(side.namesrv))
            started.append(ConsoleCluster(side, admin, consumer))
        both.await_text("JAVA", "producerConnection", "-g", "console-producer", "-t", "Messages")
        yield started


def shape(value: Any) -> Any:
    """Return the shape of a value: kinds instead of values, and masked addresses in names."""
    if isinstance(value, dict) and "refused" in value:
        return value
    if isinstance(value, dict):
        # A broker of 5.x adds properties to messages. A member reports its retry topic after a
        # varying time.
        return {
            masked(name): "properties" if name == "properties" else shape(field)
            for name, field in sorted(value.items())
            if not name.startswith("%RETRY%")
        }
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return type(value).__name__


CALLS: tuple[tuple[Any, ...], ...] = (
    ("examineBrokerClusterInfo",),
    ("viewBrokerStatsData", "BROKER", "TOPIC_PUT_NUMS", "Messages"),
    ("viewBrokerStatsData", "BROKER", "TOPIC_PUT_SIZE", "Messages"),
    ("viewBrokerStatsData", "BROKER", "GROUP_GET_NUMS", f"Messages@{GROUP}"),
    ("viewBrokerStatsData", "BROKER", "GROUP_GET_SIZE", f"Messages@{GROUP}"),
    ("viewBrokerStatsData", "BROKER", "BROKER_PUT_NUMS", "DefaultCluster"),
    ("viewBrokerStatsData", "BROKER", "BROKER_GET_NUMS", "DefaultCluster"),
    ("viewBrokerStatsData", "BROKER", "SNDBCK_PUT_NUMS", f"Messages@{GROUP}"),
    ("examineTopicStats", "Messages"),
    ("examineTopicRouteInfo", "Messages"),
    ("queryTopicConsumeByWho", "Messages"),
    ("examineConsumeStats", GROUP, "Messages"),
    ("examineConsumeStats", GROUP),
    ("examineConsumeStats", "Nobody"),
    ("examineConsumerConnectionInfo", GROUP),
    ("examineConsumerConnectionInfo", "Nobody"),
    ("examineProducerConnectionInfo", "console-producer", "Messages"),
    ("queryMessage", "Messages", "key1", 8, 0, 4102444800000),
    ("viewMessage", "Messages", "ID"),
    ("consumeMessageDirectly", GROUP, "CLIENT", "Messages", "ID"),
    ("examineTopicConfig", "BROKER", "Messages"),
    ("examineTopicConfig", "BROKER", "Nowhere"),
    ("examineSubscriptionGroupConfig", "BROKER", GROUP),
    ("fetchAllTopicList",),
    ("getTopicClusterList", "Messages"),
    # changes that pages make
    ("createAndUpdateTopicConfig", "BROKER", {"topicName": "Paged", "readQueueNums": 2}),
    ("createAndUpdateSubscriptionGroupConfig", "BROKER", {"groupName": "Paged"}),
    ("examineSubscriptionGroupConfig", "BROKER", "Paged"),
    ("resetOffsetByTimestamp", "Messages", "Paged", 0, True),
    ("resetOffsetByTimestampOld", "Paged", "Messages", 0, True),
    ("resetOffsetByTimestamp", "Messages", GROUP, -1, True),
    ("deleteTopicInBroker", ["BROKER"], "Paged"),
    ("deleteSubscriptionGroup", "BROKER", "Paged", True),
)
CALLS_4: tuple[tuple[Any, ...], ...] = (
    ("consumeMessageDirectly", GROUP, "CLIENT", "ID"),
    ("queryMessageByUniqKey", "Messages", "UNIQUE", 32, 0, 4102444800000),
    ("deleteTopicInNameServer", ["NAMESRV"], "DefaultCluster", "Paged"),
)
CALLS_5: tuple[tuple[Any, ...], ...] = (
    ("examineConsumeStats", "BROKER", GROUP, None, 3000),
    ("queryMessageByUniqKey", "DefaultCluster", "Messages", "UNIQUE", 32, 0, 4102444800000),
    ("deleteTopicInNameServer", ["NAMESRV"], "Paged"),
)
"""Calls of 5.x; both consoles were first built for 4.x."""


@pytest.mark.parametrize(
    "call", [*CALLS, *CALLS_4, *CALLS_5], ids=lambda call: "-".join(map(str, call))
)
def test_answers_have_the_same_shape(
    both: Both, clusters: list[ConsoleCluster], call: tuple[Any, ...]
) -> None:
    if call in (CALLS_5 if both.is_4 else CALLS_4):
        pytest.skip("no such case: only in the other version")
    ours, official = (shape(cluster.call(*call)) for cluster in clusters)
    assert ours == official


def test_running_info_of_a_member_has_the_same_shape(clusters: list[ConsoleCluster]) -> None:
    ours, official = (
        cluster.call("getConsumerRunningInfo", GROUP, "CLIENT", False) for cluster in clusters
    )
    assert ours.keys() == official.keys()
    assert shape(ours["statusTable"]) == shape(official["statusTable"])
    # The number of assigned queues depends on the time of the member's last rebalance.
    mine, theirs = (
        {str(shape(queue)) for queue in info["mqTable"].values()} for info in (ours, official)
    )
    assert mine == theirs


def test_the_exporter_can_parse_runtime_stats(both: Both, clusters: list[ConsoleCluster]) -> None:
    """The exporter parses each value as one or several numbers, and fails on any other text."""
    ours, official = (
        cluster.call("fetchBrokerRuntimeStats", "BROKER")["table"] for cluster in clusters
    )
    patterns = {
        "number": re.compile(r"-?\d+(\.\d+)?(E-?\d+)?"),
        "numbers": re.compile(r"( ?\d+\.\d+(E-?\d+)?)* *"),
        "sizes": re.compile(r"Total : [\d.]+ \w+, Free : [\d.]+ \w+\."),
        "size": re.compile(r"[\d.]+ \w+"),
        "times": re.compile(r"null|(\[\S+\]:\d+ )+"),
        "offsets": re.compile(r"\d+,\d+"),
        "duration": re.compile(r"\[ \d+ days, \d+ hours, \d+ minutes, \d+ seconds \]"),
        "text": re.compile(r"V\d_\d+_\d+|true|false"),
    }

    def kinds(value: str) -> set[str]:
        return {name for name, pattern in patterns.items() if pattern.fullmatch(value)}

    for name, value in official.items():
        if "/" not in name:
            assert kinds(value) & kinds(ours[name]), (name, value, ours[name])


def test_topics_and_groups_have_the_same_fields(clusters: list[ConsoleCluster]) -> None:
    """Page contents: the system topics differ between the brokers, all else has the same form."""
    answers = []
    for cluster in clusters:
        topics = cluster.call("getAllTopicConfig", "BROKER", 5000)
        groups = cluster.call("getAllSubscriptionGroup", "BROKER", 5000)
        config = cluster.call("getBrokerConfig", "BROKER")
        assert {type(value) for value in config.values()} == {str}
        assert config["brokerName"] == "broker-a"
        answers.append(
            (
                topics.keys(),
                topics["topicConfigTable"]["Messages"],
                groups.keys(),
                groups["subscriptionGroupTable"][GROUP],
            )
        )
    assert answers[0] == answers[1]


def test_topic_types_are_set_and_shown(both: Both, clusters: list[ConsoleCluster]) -> None:
    """Topic types of 5.x are attributes, which pages set and show."""
    if both.is_4:
        pytest.skip("no such case: only in 5.x")
    answers = []
    for cluster in clusters:
        name = "Typed"
        for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "UNSPECIFIED", "none"):
            topic = {"topicName": name + kind, "attributes": {"+message.type": kind}}
            answers.append(shape(cluster.call("createAndUpdateTopicConfig", "BROKER", topic)))
            answers.append(cluster.call("examineTopicConfig", "BROKER", name + kind))
    assert answers[: len(answers) // 2] == answers[len(answers) // 2 :]
