"""``reput consumer`` against a broker."""

import pytest

from reput.client import ConsumerConfig, blocking
from reput.client.config import ConsumeFromWhere
from reput.testing.local_broker import LocalBroker
from wire_command import Command


def test_consumers_are_listed_and_shown(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders", queues=1)
    command("topic", "send", "Orders", "one")
    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    with blocking.PullConsumer("Billing", namesrv=rocketmq.namesrv_addr, config=config) as member:
        member.subscribe("Orders")
        assert len(member.poll(32, 20_000)) == 1
        (listed,) = command.json("consumer", "list")["groups"]
        assert (listed["group"], listed["member_count"], listed["topics"]) == (
            "Billing",
            1,
            ["Orders"],
        )
        (shown,) = command.json("consumer", "show", "Billing")["members"]
        assert shown["problem"] is None
        (queue,) = shown["queues"]
        assert (queue["topic"], queue["queue_id"]) == ("Orders", 0)
        assert "Orders" in command("consumer", "show", "Billing", "--client", shown["client_id"])
        assert "allowed: " in command.complaint("consumer", "show", "Billing", "--client", "x")
        assert "did you mean 'Billing'?" in command.complaint("consumer", "show", "Biling")


def test_consuming_continues_where_it_ended(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders", queues=1)
    for n in range(5):
        command("topic", "send", "Orders", f"n{n}")
    consume = (
        "consumer",
        "consume",
        "Orders",
        "--group",
        "Billing",
        "--from",
        "earliest",
        "--idle",
        30,
    )
    first = command.json_lines(*consume, "--count", 3)
    assert [message["body"] for message in first] == ["n0", "n1", "n2"]
    rest = command.json_lines(*consume, "--count", 2)
    assert [message["body"] for message in rest] == ["n3", "n4"]
    assert command.json("group", "show", "Billing")["lag"] == 0


def test_popping_continues_where_it_ended(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders", queues=1)
    for n in range(5):
        command("topic", "send", "Orders", f"n{n}", "-p", f"n={n}")
    pop = ("consumer", "consume", "Orders", "--group", "Billing", "--pop", "--from", "earliest")
    first = command.json_lines(*pop, "--count", 3, "--idle", 30)
    assert [message["body"] for message in first] == ["n0", "n1", "n2"]
    (last,) = command.json_lines(*pop, "--sql", "n = 4", "--count", 1, "--idle", 30)
    assert last["body"] == "n4"


def test_popping_consumers_are_shown(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders", queues=1)
    with blocking.PopConsumer("Billing", namesrv=rocketmq.namesrv_addr) as member:
        member.subscribe("Orders")
        member.pop(timeout_ms=1)
        (shown,) = command.json("consumer", "show", "Billing")["members"]
        (popped,) = shown["popped"]
        assert (popped["topic"], popped["queue_id"], popped["held_count"]) == ("Orders", None, 0)
        assert "any queue" in command("consumer", "show", "Billing")


def test_consuming_with_sql(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders", queues=1)
    command("topic", "send", "Orders", "small", "-p", "n=1")
    command("topic", "send", "Orders", "large", "-p", "n=7")
    arguments = [
        "--group",
        "Billing",
        "--from",
        "earliest",
        "--sql",
        "n > 5",
        "--count",
        1,
        "--idle",
        30,
    ]
    (result,) = command.json_lines("consumer", "consume", "Orders", *arguments)
    assert result["body"] == "large"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["consumer", "consume", "Nothing", "--group", "G"], "no topic 'Nothing'"),
        (["consumer", "consume", "Nothing", "--group", "G", "--pop"], "no topic 'Nothing'"),
        (
            ["consumer", "consume", "T", "--group", "G", "--pop", "--from", "1"],
            "earliest or latest",
        ),
        (["consumer", "consume", "T", "--group", "G", "--from", "x"], "a time like"),
        (["consumer", "consume", "T"], "--group"),
    ],
)
def test_refusals_are_one_line(command: Command, arguments: list[str], text: str) -> None:
    assert text in command.complaint(*arguments)
