"""``reput topic`` against a broker: its changes take effect, and its output is correct."""

import pytest

from reput.client import Message, blocking
from reput.testing.local_broker import LocalBroker
from wire_command import Command


def test_a_topic_is_created_listed_and_shown(command: Command, rocketmq: LocalBroker) -> None:
    made = command.json("topic", "create", "Orders", "--queues", 3, "--write-queues", 2)
    (on,) = made["brokers"]
    assert (on["read_queue_count"], on["write_queue_count"], on["perm"]) == (3, 2, 6)
    assert command.json("topic", "list") == {"topics": [{"topic": "Orders", "kind": "user"}]}
    with blocking.Admin(namesrv=rocketmq.namesrv_addr) as admin:
        config = admin.topic_configs(rocketmq.broker_addr)["Orders"]
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 2, 6)
    result = command.json("topic", "show", "Orders")
    # As with 5.x, including read-only queues.
    assert [queue["queue_id"] for queue in result["queues"]] == [0, 1, 2]
    assert result["brokers"][0]["addresses"] == {"0": rocketmq.broker_addr}


def test_show_counts_messages_and_names_groups(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders", queues=2)
    with blocking.Producer("g", namesrv=rocketmq.namesrv_addr) as producer:
        for _ in range(5):
            producer.send(Message("Orders", b"x"))
    with blocking.Admin(namesrv=rocketmq.namesrv_addr) as admin:
        queue = admin.topic_route("Orders").subscribe_queues[0]
        admin.update_consumer_offset("Billing", queue, 1)
    stored = rocketmq.messages("Orders")
    result = command.json("topic", "show", "Orders")
    assert result["message_count"] == 5
    assert sum(queue["message_count"] for queue in result["queues"]) == 5
    newest = max(queue["last_store_timestamp"] for queue in result["queues"])
    assert newest == max(message.store_timestamp_ms for message in stored)
    assert result["groups"] == ["Billing"]
    text = command("topic", "show", "Orders")
    assert "messages  5" in text
    assert "Billing" in text


def test_update_changes_only_given_settings(command: Command) -> None:
    command("topic", "create", "Orders", "--queues", 4, "--order")
    command("topic", "update", "Orders", "--perm", "r")
    (listed,) = command.json("topic", "list", "--long")["topics"]
    (on,) = listed["brokers"]
    assert (on["read_queue_count"], on["perm"], on["order"]) == (4, 4, True)
    command("topic", "update", "Orders", "--queues", 6, "--no-order", "--perm", "rw")
    (listed,) = command.json("topic", "list", "--long")["topics"]
    (on,) = listed["brokers"]
    assert (on["read_queue_count"], on["write_queue_count"], on["perm"], on["order"]) == (
        6,
        6,
        6,
        False,
    )


def test_delete_shows_first_and_deletes_with_yes(command: Command) -> None:
    command("topic", "create", "Orders")
    command("topic", "send", "Orders", "hello")
    preview = command.json("topic", "delete", "Orders")
    assert (preview["is_deleted"], preview["message_count"]) == (False, 1)
    assert "--yes" in command.notes
    assert command.json("topic", "list")["topics"] != []
    assert command.json("topic", "delete", "Orders", "--yes")["is_deleted"]
    assert command.json("topic", "list")["topics"] == []


def test_all_topics_have_their_kind(command: Command) -> None:
    command("topic", "create", "Orders")
    command("topic", "create", "%RETRY%Billing")
    command("topic", "create", "%DLQ%Billing")
    kinds = {
        topic["topic"]: topic["kind"] for topic in command.json("topic", "list", "--all")["topics"]
    }
    assert kinds["Orders"] == "user"
    assert kinds["%RETRY%Billing"] == "retry"
    assert kinds["%DLQ%Billing"] == "dead letter"
    assert kinds["TBW102"] == kinds["broker-a"] == kinds["DefaultCluster"] == "system"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["create", "no spaces"], "a-z A-Z 0-9"),
        (["create", "T", "--cluster", "Nowhere"], "allowed: DefaultCluster"),
        (["create", "T", "--broker", "nobody"], "allowed: broker-a"),
        (["create", "T", "--perm", "x"], "r, w, rw, none"),
        (["create", "T", "--attribute", "x"], "NAME=VALUE"),
        (["show", "Nothing"], "no topic 'Nothing'"),
        (["update", "Nothing", "--queues", "1"], "no topic 'Nothing'"),
        (["update", "Nothing"], "give one of --queues"),
        (["delete", "Nothing"], "no topic 'Nothing'"),
    ],
)
def test_refusals_are_one_line(command: Command, arguments: list[str], text: str) -> None:
    assert text in command.complaint("topic", *arguments)


def test_a_topic_is_not_created_twice(command: Command) -> None:
    command("topic", "create", "Orders")
    text = command.complaint("topic", "create", "Orders", "--queues", 1)
    assert text == "topic Orders already exists on broker-a; `reput topic update` changes it"


def test_the_log_has_changes_of_topics_as_pairs(
    command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="reput.broker")
    command("topic", "create", "Orders", "--queues", "3")
    (text,) = [text for text in caplog.messages if "'Orders' set by" in text]
    assert " read_queue_count=3 write_queue_count=3 perm=6 " in text
