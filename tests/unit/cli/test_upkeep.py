"""Write permission, cleaning up, the key-value table, ordered topics: against a broker."""

import pytest

from reput.client import blocking
from reput.testing.local_broker import LocalBroker
from wire_command import Command


def perm_of(rocketmq: LocalBroker, topic: str) -> int:
    with blocking.Admin(namesrv=rocketmq.namesrv_addr) as admin:
        (queues,) = admin.topic_route(topic).data.queue_datas
        return queues.perm


def test_write_permission_changes_routes(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders")
    result = command.json("cluster", "write-permission", "broker-a", "off")
    assert (result["broker_name"], result["write_permission"]) == ("broker-a", "off")
    assert result["topic_count"] > 0
    assert perm_of(rocketmq, "Orders") == 4
    assert "on" in command("cluster", "write-permission", "broker-a", "on")
    assert perm_of(rocketmq, "Orders") == 6


@pytest.mark.parametrize("what", ["queues", "topics", "log"])
def test_clean_previews_without_yes(command: Command, what: str) -> None:
    assert not command.json("cluster", "clean", what)["is_done"]
    assert "--yes makes the change" in command.notes
    result = command.json("cluster", "clean", what, "--yes")
    assert result == {"is_done": True, "what": what, "brokers": ["broker-a"]}
    assert "broker-a" in command("cluster", "clean", what, "--broker", "broker-a", "--yes")


@pytest.mark.usefixtures("rocketmq")
def test_the_key_value_table(command: Command) -> None:
    kv = ("cluster", "kv")
    changed = command.json(*kv, "set", "Space", "key", "one")
    assert changed == {"namespace": "Space", "key": "key", "before": None, "after": "one"}
    assert command.json(*kv, "set", "Space", "key", "two")["before"] == "one"
    assert command.json(*kv, "list", "Space")["table"] == {"key": "two"}
    assert "two" in command(*kv, "list", "Space", "key")
    assert command.json(*kv, "delete", "Space", "key")["after"] == "two"
    assert command.json(*kv, "delete", "Space", "key", "--yes")["after"] is None
    assert command.json(*kv, "list", "Space")["table"] == {}


def test_queues_of_ordered_topics(command: Command, rocketmq: LocalBroker) -> None:
    result = command.json("topic", "order", "Orders", "--set", "broker-a:4", "--set", "broker-b:2")
    assert result["topics"] == [
        {"topic": "Orders", "broker_name": "broker-a", "queue_count": 4},
        {"topic": "Orders", "broker_name": "broker-b", "queue_count": 2},
    ]
    command("topic", "create", "Steps", "--order", "--queues", "3")
    assert [topic["topic"] for topic in command.json("topic", "order")["topics"]] == [
        "Orders", "Orders", "Steps",
    ]  # fmt: skip
    assert command.json("topic", "order", "Orders", "--delete")["topics"] == []
    assert "Steps  broker-a       3" in command("topic", "order")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["cluster", "write-permission", "x", "off"], "allowed: broker-a"),
        (["cluster", "write-permission", "broker-a", "maybe"], "maybe"),
        (["cluster", "clean", "all"], "all"),
        (["cluster", "kv", "list", "Space", "x"], "namespace Space has no key x"),
        (["cluster", "kv", "delete", "Space", "x", "--yes"], "namespace Space has no key x"),
        (["topic", "order", "--delete"], "take a TOPIC"),
        (["topic", "order", "T", "--set", "x"], "BROKER:COUNT"),
        (["topic", "order", "T", "--set", "b:1", "--delete"], "one of --set and --delete"),
    ],
)
def test_refusals_are_one_line(command: Command, arguments: list[str], text: str) -> None:
    assert text in command.complaint(*arguments)
