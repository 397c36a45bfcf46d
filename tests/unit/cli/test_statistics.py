"""``topic stats``, ``cluster counter`` and ``delay list`` against a broker."""

import pytest

from reput.client import Message, blocking
from reput.testing.local_broker import LocalBroker
from waiting import wait_until
from wire_command import Command


@pytest.fixture
def consumed(rocketmq: LocalBroker) -> LocalBroker:
    """A broker with six messages, of which a group has consumed and committed four."""
    rocketmq.create_topic("Orders", queues=1)
    with blocking.Producer("g", namesrv=rocketmq.namesrv_addr) as producer:
        producer.send_batch([Message("Orders", b"x") for _ in range(4)])
        with blocking.PullConsumer("Billing", namesrv=rocketmq.namesrv_addr) as member:
            (queue,) = member.queues("Orders")
            member.assign([queue])
            member.seek(queue, 0)
            got = 0
            while got < 4:
                messages = member.poll(32, 20_000)
                assert messages
                got += len(messages)
        for _ in range(2):
            producer.send(Message("Orders", b"x"))
    with blocking.Admin(namesrv=rocketmq.namesrv_addr) as admin:
        admin.update_consumer_offset("Billing", queue, 4)
    return rocketmq


def test_topic_rates_and_lag(command: Command, consumed: LocalBroker) -> None:
    (result,) = command.json("topic", "stats", "Orders")["topics"]
    assert (result["topic"], result["kind"]) == ("Orders", "user")
    (group,) = result["groups"]
    assert (group["group"], group["lag"]) == ("Billing", 2)
    text = command("topic", "stats")
    assert "Orders" in text
    assert "SCHEDULE_TOPIC_XXXX" not in text


def test_counters_have_windows(command: Command, consumed: LocalBroker) -> None:
    result = command.json("cluster", "counter", "TOPIC_PUT_NUMS", "Orders")["windows"]
    assert [window["window"] for window in result] == ["minute", "hour", "day"]
    assert {window["broker_name"] for window in result} == {"broker-a"}
    assert "minute" in command("cluster", "counter", "BROKER_PUT_NUMS", "DefaultCluster")
    complaint = command.complaint("cluster", "counter", "TOPIC_PUT_NUMS", "Nothing")
    assert complaint == "no broker has counted TOPIC_PUT_NUMS of Nothing since it started"


def test_pending_messages_of_delay_levels(command: Command, rocketmq: LocalBroker) -> None:
    assert command.json("delay", "list")["levels"] == []
    rocketmq.create_topic("Orders", queues=1)

    with blocking.Producer("g", namesrv=rocketmq.namesrv_addr) as producer:
        for _ in range(3):
            producer.send(Message("Orders", b"x", delay_level=18))
    wait_until(lambda: command.json("delay", "list")["levels"])  # dispatched asynchronously
    assert command.json("delay", "list")["levels"] == [
        {
            "broker_name": "broker-a",
            "level": 18,
            "delay": "2h",
            "waiting_count": 3,
            "delivered_count": 0,
        }
    ]
    assert "2h" in command("delay", "list")
