"""``reput transaction`` against a broker that gives half messages up at once; ``group mode``."""

import time

import pytest

from reput.client import Message, blocking
from reput.testing.local_broker import LocalBroker
from wire_command import Command

WAIT_S = 20
HURRY = pytest.mark.rocketmq(
    transactionTimeOut=1, transactionCheckInterval=50, transactionCheckMax=1
)


def given_up(command: Command, count: int) -> list[dict[str, str]]:
    """Wait until a broker has given up N half messages; return the list."""
    deadline = time.monotonic() + WAIT_S
    while len(results := command.json_lines("transaction", "list")) < count:
        assert time.monotonic() < deadline, results
    return results


@HURRY
def test_a_given_up_message_is_listed_and_resumed(command: Command, rocketmq: LocalBroker) -> None:
    assert command("transaction", "list") == ""
    rocketmq.create_topic("Orders", queues=1)
    marks = {"TRAN_MSG": "true", "PGROUP": "payments"}
    with blocking.Producer("payments", namesrv=rocketmq.namesrv_addr) as producer:
        sent = producer.send(Message("Orders", b"half", keys="order-1", properties=marks))
    (results,) = given_up(command, 1)
    assert (results["origin_topic"], results["producer_group"]) == ("Orders", "payments")
    assert (results["unique_key"], results["body"]) == (sent.message_id, "half")
    assert rocketmq.messages("Orders") == []
    line = command("transaction", "list").split("\t")
    assert line[1:] == [
        "broker-a:0:0", "Orders", "payments", "-", "order-1", sent.message_id, "half\n",
    ]  # fmt: skip

    preview = command.json("transaction", "resume", sent.message_id)
    assert not preview["is_done"]
    assert "--yes makes the change" in command.notes
    assert len(command.json_lines("transaction", "list")) == 1
    receipt = command.json("transaction", "resume", results["offset_id"], "--yes")
    assert receipt["is_done"]
    # The broker checks it again, no producer replies, and the broker gives it up again.
    assert [message["unique_key"] for message in given_up(command, 2)] == [sent.message_id] * 2


def test_an_unknown_id_is_refused(command: Command, rocketmq: LocalBroker) -> None:
    complaint = command.complaint("transaction", "resume", "x", "--yes")
    assert complaint == "no given-up half message has id x"


def test_request_modes(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders", queues=1)
    command("group", "create", "Billing")
    mode = ("group", "mode", "Billing")
    assert command.json(*mode)["modes"] == []
    wanted = {"broker_name": "broker-a", "topic": "Orders", "mode": "POP", "share_count": 2}
    assert command.json(*mode, "Orders", "--set", "POP", "--share", "2")["modes"] == [wanted]
    assert command.json(*mode)["modes"] == [wanted]
    assert "PULL" in command(*mode, "Orders", "--set", "PULL")
    assert "--set takes a TOPIC" in command.complaint(*mode, "--set", "POP")
    assert "topic[Nothing] not exist" in command.complaint(*mode, "Nothing", "--set", "POP")
