"""What consoles ask: the stock dashboard and the exporter for Prometheus.

Both are made of calls of ``DefaultMQAdminExt``; each is made here with both clusters, and must give
what has the same shape: the same fields, with values of the same kinds.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from interop.java_cluster import Admin, ClientError, JavaMessage, PushConsumer
from interop.mqadmin.sides import Both, Side, masked

pytestmark = pytest.mark.interop

GROUP = "Console"


class Asked:
    """A cluster as a console sees it: a group reads ``Messages``, and a producer is there."""

    def __init__(self, side: Side, admin: Admin, consumer: PushConsumer) -> None:
        self.side = side
        self.admin = admin
        connection = admin.call("examineConsumerConnectionInfo", GROUP)
        self.client_id = connection["connectionSet"][0]["clientId"]
        self.consumer = consumer

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method; ``BROKER``, ``CLIENT`` and ``ID`` stand for those of the side."""
        known = {
            "BROKER": self.side.broker,
            "CLIENT": self.client_id,
            "ID": self.side.sent[0].offset_msg_id,
        }
        words = [known.get(one, one) if isinstance(one, str) else one for one in arguments]
        try:
            return self.admin.call(method, *words)
        except ClientError as error:
            return {"refused": [error.type, error.code]}


@pytest.fixture(scope="module")
def asked(both: Both) -> Iterator[list[Asked]]:
    with contextlib.ExitStack() as stack:
        found = []
        for side in both.sides:
            consumer = stack.enter_context(both.java.push_consumer(side.namesrv, GROUP, "Messages"))
            consumer.take(6)
            both.await_committed(side, consumer, GROUP)
            producer = stack.enter_context(both.java.producer(side.namesrv, "console-producer"))
            producer.send([JavaMessage("Others", b"body")])
            admin = stack.enter_context(both.java.admin(side.namesrv))
            found.append(Asked(side, admin, consumer))
        both.await_text("JAVA", "producerConnection", "-g", "console-producer", "-t", "Messages")
        yield found


def shape(value: Any) -> Any:
    """Return what a value is made of: kinds instead of values, and no addresses in names."""
    if isinstance(value, dict) and "refused" in value:
        return value
    if isinstance(value, dict):
        # A broker of 5.x puts more properties into messages.
        return {
            masked(name): "properties" if name == "properties" else shape(one)
            for name, one in sorted(value.items())
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
    ("examineConsumerConnectionInfo", GROUP),
    ("examineConsumerConnectionInfo", "Nobody"),
    ("examineProducerConnectionInfo", "console-producer", "Messages"),
    ("queryMessage", "Messages", "key1", 8, 0, 4102444800000),
    ("consumeMessageDirectly", GROUP, "CLIENT", "ID"),
    ("examineTopicConfig", "BROKER", "Messages"),
    ("examineSubscriptionGroupConfig", "BROKER", GROUP),
)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: "-".join(map(str, call)))
def test_answers_have_the_same_shape(both: Both, asked: list[Asked], call: tuple[Any, ...]) -> None:
    ours, official = (shape(one.call(*call)) for one in asked)
    assert ours == official


def test_what_a_member_says_of_itself(asked: list[Asked]) -> None:
    ours, official = (one.call("getConsumerRunningInfo", GROUP, "CLIENT", False) for one in asked)
    assert ours.keys() == official.keys()
    assert shape(ours["statusTable"]) == shape(official["statusTable"])
    # How many queues a member has by now depends on its last look at the others.
    mine, theirs = (
        {str(shape(queue)) for queue in one["mqTable"].values()} for one in (ours, official)
    )
    assert mine == theirs


def test_runtime_stats_can_be_read_as_the_exporter_reads_them(
    both: Both, asked: list[Asked]
) -> None:
    """It takes each value for a number, or a few of them, and fails if one is not."""
    ours, official = (one.call("fetchBrokerRuntimeStats", "BROKER")["table"] for one in asked)
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
