"""``reput producer`` against a broker."""

import base64
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.client import Message, blocking
from reput.testing.local_broker import LocalBroker
from wire_command import Command

Stdin = Callable[[bytes], None]


def test_a_message_with_everything(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders", queues=1)
    arguments = ["--tags", "new", "-k", "k1", "-k", "k2", "-p", "a=b=c"]
    (sent,) = command.json_lines("producer", "send", "Orders", "zwölf", *arguments)
    (stored,) = rocketmq.messages("Orders")
    assert (stored.body, stored.tags, stored.keys) == ("zwölf".encode(), "new", ["k1", "k2"])
    assert stored.properties["a"] == "b=c"
    assert sent == {
        "status": "SEND_OK",
        "message_id": stored.message_id,
        "offset_message_id": stored.offset_message_id,
        "broker_name": "broker-a",
        "queue_id": 0,
        "queue_offset": 0,
        "recall_handle": None,
    }


def test_a_delayed_message_is_recalled(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalBroker(topics=["Orders"], settings={"recallMessageEnable": True}) as mq:
        command = Command(mq.namesrv_addr, capsys)
        options = ["--at", "2100-01-01T00:00", "--utc"]
        assert "the max delay 259200000ms" in command.complaint(
            "topic", "send", "Orders", "far", *options
        )
        begun_ms = time.time_ns() // 1_000_000
        (sent,) = command.json_lines("topic", "send", "Orders", "soon", "--after", 3600)
        handle = sent["recall_handle"]
        # RocketMQ's RecallMessageHandle: version, topic, broker, a second before it comes, key.
        version, topic, broker, due_ms, key = base64.urlsafe_b64decode(handle).decode().split(" ")
        assert (version, topic, broker) == ("v1", "Orders", "broker-a")
        assert key == sent["message_id"]
        assert 3_599_000 <= int(due_ms) - begun_ms < 3_660_000
        line = command("topic", "send", "Orders", "soon", "--after", 3600).rstrip("\n")
        assert line.split("\t")[3].startswith(handle[:10])
        assert command("message", "recall", "Orders", handle) == key + "\n"
        assert "one of topic 'Others'" in command.complaint("message", "recall", "Others", handle)
        assert "what a send returned" in command.complaint("message", "recall", "Orders", "x")
        assert mq.messages("Orders") == []


def test_a_past_time_delivers_at_once(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders", queues=1)
    command("topic", "send", "Orders", "now", "--at", "2020-01-01T00:00")
    assert [message.body for message in rocketmq.messages("Orders")] == [b"now"]
    text = command.complaint("topic", "send", "Orders", "x", "--after", 1, "--delay", 3)
    assert "give one of --delay, --after and --at" in text


def test_lines_of_stdin_keep_their_order_in_one_queue(
    command: Command, rocketmq: LocalBroker, stdin: Stdin
) -> None:
    rocketmq.create_topic("Orders", queues=4)
    lines = [f"line {n}".encode() for n in range(300)]
    stdin(b"\n".join(lines))
    receipts = command("producer", "send", "Orders", "--queue", "broker-a:2").splitlines()
    assert [message.split("\t")[2] for message in receipts] == [
        f"broker-a:2:{n}" for n in range(300)
    ]
    assert [message.body for message in rocketmq.messages("Orders")] == lines


def test_empty_lines_are_skipped_and_counted(
    command: Command, rocketmq: LocalBroker, stdin: Stdin
) -> None:
    rocketmq.create_topic("Orders", queues=4)
    stdin(b"one\n\ntwo\r\n\n")
    assert len(command("topic", "send", "Orders").splitlines()) == 2
    assert "2 empty lines" in command.notes
    assert sorted(message.body for message in rocketmq.messages("Orders")) == [b"one", b"two"]


def test_a_file_is_one_message(command: Command, rocketmq: LocalBroker, tmp_path: Path) -> None:
    rocketmq.create_topic("Orders", queues=1)
    (tmp_path / "body").write_bytes(b"a\nb\n\x00")
    command("producer", "send", "Orders", "--file", tmp_path / "body", "--repeat", 2)
    assert [message.body for message in rocketmq.messages("Orders")] == [b"a\nb\n\x00"] * 2


def test_a_failure_ends_sending(command: Command, rocketmq: LocalBroker, stdin: Stdin) -> None:
    rocketmq.create_topic("Orders", queues=1)
    stdin(b"good\n" + b"x" * 60_000 + b"\n" + b"never")
    # Properties longer than a record allows: the first line fails already.
    text = command.complaint("producer", "send", "Orders", "-p", "a=" + "x" * 40_000)
    assert "properties" in text
    assert rocketmq.messages("Orders") == []


def test_producers_are_listed(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders", queues=1)
    with blocking.Producer("Shop", namesrv=rocketmq.namesrv_addr) as producer:
        producer.send(Message("Orders", b"x"))
        producer.send(Message("Orders", b"y"))
        asked = ["producer", "list", "--group", "Shop", "--topic", "Orders"]
        tries = (command.json(*asked)["producers"] for _ in range(1000))
        (message,) = next(filter(None, tries))  # The first heartbeat is sent asynchronously.
        assert (message["group"], message["language"], message["version"]) == (
            "Shop",
            "PYTHON",
            "4.9.7",
        )
        everyone = command.json("producer", "list")["producers"]
        assert message["client_id"] in {other["client_id"] for other in everyone}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["producer", "list", "--group", "G"], "both of --group and --topic"),
        (["producer", "send", "T", "x", "--file", "y"], "BODY or --file, not both"),
        (["producer", "send", "T", "x", "-p", "a"], "NAME=VALUE"),
        (["producer", "send", "T", "--file", "/nowhere"], "/nowhere: No such file"),
        (["producer", "send", "T", "--repeat", "2"], "--repeat needs"),
        (["producer", "send", "T", "x", "--queue", "a:9"], "--queue"),
    ],
)
def test_refusals_are_one_line(command: Command, arguments: list[str], text: str) -> None:
    assert text in command.complaint(*arguments)
