"""``reput group`` against a broker."""

import pytest

from reput.client import ConsumerConfig, Message, blocking
from reput.client.config import ConsumeFromWhere
from reput.testing.local_broker import LocalBroker
from wire_command import Command


def test_a_group_is_created_changed_and_deleted(command: Command) -> None:
    command("group", "create", "Billing", "--retries", 3)
    command("group", "update", "Billing", "--no-consume")
    (result,) = command.json("group", "list")["groups"]
    assert (result["group"], result["retry_count_max"], result["consume_enable"]) == (
        "Billing",
        3,
        False,
    )
    preview = command.json("group", "delete", "Billing")
    assert (preview["is_deleted"], preview["brokers"]) == (False, ["broker-a"])
    assert len(command.json("group", "list")["groups"]) == 1
    command("group", "delete", "Billing", "--yes")
    assert command.json("group", "list") == {"groups": []}


def test_system_groups_are_listed_with_all(command: Command) -> None:
    names = {group["group"] for group in command.json("group", "list", "--all")["groups"]}
    assert "TOOLS_CONSUMER" in names


def test_show_has_offsets_and_lag(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders", queues=1)
    with blocking.Producer("g", namesrv=rocketmq.namesrv_addr) as producer:
        for _ in range(5):
            producer.send(Message("Orders", b"x"))
    with blocking.Admin(namesrv=rocketmq.namesrv_addr) as admin:
        (queue,) = admin.topic_route("Orders").subscribe_queues
        admin.update_consumer_offset("Billing", queue, 2)
    third = rocketmq.messages("Orders")[1]
    result = command.json("group", "show", "Billing", "--topic", "Orders")
    assert (result["lag"], result["member_count"]) == (3, 0)
    assert result["queues"] == [
        {
            "topic": "Orders",
            "broker_name": "broker-a",
            "queue_id": 0,
            "broker_offset": 5,
            "consumer_offset": 2,
            "lag": 3,
            "last_store_timestamp": third.store_timestamp_ms,
        }
    ]
    assert "lag       3" in command("group", "show", "Billing")


def test_an_offset_after_the_end_is_no_negative_lag(
    command: Command, rocketmq: LocalBroker
) -> None:
    """As of a topic that was made again, while its group kept the former offset."""
    rocketmq.create_topic("Orders", queues=1)
    with blocking.Admin(namesrv=rocketmq.namesrv_addr) as admin:
        (queue,) = admin.topic_route("Orders").subscribe_queues
        admin.update_consumer_offset("Billing", queue, 35)
    result = command.json("group", "show", "Billing", "--topic", "Orders")
    assert (result["lag"], result["queues"][0]["lag"]) == (0, 0)


def test_connected_members_are_shown(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders", queues=1)
    command("group", "create", "Billing")
    assert command.json("group", "members", "Billing")["members"] == []
    assert command.json("group", "show", "Billing")["lag"] == 0
    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    with blocking.PullConsumer("Billing", namesrv=rocketmq.namesrv_addr, config=config) as consumer:
        consumer.subscribe("Orders", "new || paid")
        result = command.json("group", "members", "Billing")
        (member,) = result["members"]
        assert (member["language"], member["version"]) == ("PYTHON", "4.9.7")
        assert result["subscriptions"] == [
            {"topic": "Orders", "expression": "new || paid", "expression_type": "TAG"}
        ]
        assert "new || paid" in command("group", "members", "Billing")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["update", "Unknown", "--retries", "1"], "no broker has group Unknown"),
        (["update", "Unknown"], "give an option to change"),
        (["delete", "Unknown"], "no broker has group Unknown"),
        (["create", "no spaces"], "a-z A-Z 0-9"),
        (["list", "--broker", "x"], "allowed: broker-a"),
        (["show", "Unknown"], "no broker knows group 'Unknown'; `reput group list` shows"),
        (["show", "TOOLS_CONSUMR"], "did you mean 'TOOLS_CONSUMER'?"),
        (["members", "Unknown"], "no broker knows group 'Unknown'"),
    ],
)
def test_refusals_are_one_line(command: Command, arguments: list[str], text: str) -> None:
    assert text in command.complaint("group", *arguments)


def test_a_group_is_not_created_twice(command: Command) -> None:
    command("group", "create", "Billing")
    assert "`reput group update`" in command.complaint("group", "create", "Billing")
