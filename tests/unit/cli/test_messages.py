"""``reput message`` against a broker."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from reput.client import Admin, ClientConfig, Message, SendResult, blocking
from reput.format import batch, headers, properties as props
from reput.format.codes import RequestCode
from reput.format.command import Command as Frame
from reput.testing.local_broker import LocalBroker
from wire_command import Command


@pytest.fixture
def sent(rocketmq: LocalBroker) -> list[SendResult]:
    """Nine consecutive messages on three queues."""
    rocketmq.create_topic("Orders", queues=3)
    with blocking.Producer("g", namesrv=rocketmq.namesrv_addr) as producer:
        return [
            producer.send(
                Message("Orders", f"n{n}".encode(), tags="even" if n % 2 == 0 else "odd", keys="k")
            )
            for n in range(9)
        ]


def bodies(results: list[Any]) -> list[str]:
    return [message["body"] for message in results]


def test_a_message_by_its_ids(command: Command, sent: list[SendResult]) -> None:
    message = sent[4]
    by_place = command.json("message", "get", message.offset_message_id)["messages"]
    assert bodies(by_place) == ["n4"]
    assert (by_place[0]["message_id"], by_place[0]["broker_name"]) == (
        message.message_id,
        "broker-a",
    )
    by_topic = command.json("message", "get", message.message_id, "--topic", "Orders")["messages"]
    by_key = command.json("message", "by-unique-key", "Orders", message.message_id)["messages"]
    assert by_place == by_topic == by_key
    text = command("message", "by-unique-key", "Orders", message.message_id)
    assert text.endswith("body\nn4\n")


def test_ids_of_a_batch_show_each_message_inside(command: Command, rocketmq: LocalBroker) -> None:
    """A batch as producers of 5.x with automatic batches send it: its id is of the whole batch."""
    topic, batch_id = "Batches", "7F000001000118B4AAC2000000000000"
    command("topic", "create", topic, "--queues", 1, "--attribute", "queue.type=BatchCQ")
    inner = [
        batch.InnerMessage(0, f"n{n}".encode(), props.encode({"UNIQ_KEY": f"{n:032}", "KEYS": "k"}))
        for n in range(8)
    ]
    header = headers.SendMessageHeader(
        producer_group="g",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
        properties=props.encode({"UNIQ_KEY": batch_id, "WAIT": "true"}).decode(),
        batch=True,
    )
    request = Frame(
        RequestCode.SEND_BATCH_MESSAGE,
        ext_fields=headers.encode_v2(header),
        body=batch.encode(inner),
    )

    async def send() -> str:
        async with Admin(rocketmq.namesrv_addr) as admin:
            address = (await admin.topic_route(topic)).any_address("broker-a")
            reply = await admin.calls.ask(address, request)
            return headers.decode(headers.SendMessageReplyHeader, reply.ext_fields).msg_id

    offset_id = asyncio.run(send())
    for arguments in (
        ("get", batch_id, "--topic", topic),
        ("get", offset_id),
        ("by-unique-key", topic, batch_id),
    ):
        shown = command.json("message", *arguments)["messages"]
        assert [(hit["queue_offset"], hit["body"]) for hit in shown] == [
            (n, f"n{n}") for n in range(8)
        ]
        assert {hit["offset_id"] for hit in shown} == {offset_id}


def test_messages_by_key(command: Command, sent: list[SendResult], rocketmq: LocalBroker) -> None:
    result = command.json("message", "by-key", "Orders", "k")
    assert result["is_truncated"] is False
    results = result["messages"]
    # Messages of a deleted topic of this name are still in the log, as with Java.
    assert {message.offset_message_id for message in sent} <= {
        message["offset_id"] for message in results
    }
    assert set(bodies(results)) == {f"n{n}" for n in range(9)}
    assert command.notes == ""
    few = command.json("message", "by-key", "Orders", "k", "--limit", 4)
    assert (bodies(few["messages"]), few["is_truncated"]) == (["n5", "n6", "n7", "n8"], True)
    assert "the newest 4 messages; there may be more" in command.notes
    many = command.json("message", "by-key", "Orders", "k", "--limit", len(results) + 1)
    assert many == result
    later = max(message.store_timestamp_ms for message in rocketmq.messages("Orders")) + 1
    assert "has key k" in command.complaint("message", "by-key", "Orders", "k", "--from", later)


def test_dump_is_ordered_by_store_time(
    command: Command, sent: list[SendResult], rocketmq: LocalBroker
) -> None:
    results = command.json_lines("message", "dump", "Orders")
    assert sorted(bodies(results)) == [f"n{n}" for n in range(9)]
    times = [message["store_timestamp"] for message in results]
    assert times == sorted(times)
    assert {(message["queue_id"], message["queue_offset"]) for message in results} == {
        (message.queue.queue_id, message.queue_offset) for message in sent
    }
    assert len(command("message", "dump", "Orders", "--limit", 4).splitlines()) == 4
    odd = command.json_lines("message", "dump", "Orders", "--tags", "odd")
    assert sorted(bodies(odd)) == ["n1", "n3", "n5", "n7"]
    one_queue = command.json_lines("message", "dump", "Orders", "--queue", "broker-a:1")
    assert [message["queue_offset"] for message in one_queue] == [0, 1, 2]
    last_ms = max(message.store_timestamp_ms for message in rocketmq.messages("Orders"))
    assert command.json_lines("message", "dump", "Orders", "--from", last_ms + 1) == []
    moment = datetime.fromtimestamp((last_ms + 1) / 1000, UTC).isoformat(timespec="milliseconds")
    assert len(command("message", "dump", "Orders", "--to", moment).splitlines()) == 9


def test_dump_of_an_empty_topic_is_empty(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Empty", queues=2)
    assert command("message", "dump", "Empty") == ""


def test_tail_follows_and_commits_nothing(command: Command, sent: list[SendResult]) -> None:
    lines = command(
        "message",
        "tail",
        "Orders",
        "--from",
        "earliest",
        "--count",
        len(sent),
        "--idle",
        30,
        "--utc",
    ).splitlines()
    words = [line.split("\t") for line in lines]
    assert sorted(line[-1] for line in words) == [f"n{n}" for n in range(9)]
    assert {line[1] for line in words} == {
        f"broker-a:{message.queue.queue_id}:{message.queue_offset}" for message in sent
    }
    assert command("message", "tail", "Orders", "--idle", 0.2) == ""
    assert command.json("topic", "show", "Orders")["groups"] == []


def test_escape_sequences_of_a_body_are_escaped(command: Command, rocketmq: LocalBroker) -> None:
    rocketmq.create_topic("Orders", queues=1)
    command("topic", "send", "Orders", "\x1b[31mred")
    assert "\x1b" not in command("message", "dump", "Orders", "--body", "text")
    assert json.loads(command("message", "dump", "Orders", "--json"))["body_encoding"] == "hex"


@pytest.mark.usefixtures("sent")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["get", "x"], "give --topic"),
        (["get", "0A000001000012340000000000000000"], "which is no broker"),
        (["get", "x" * 32, "--topic", "Nothing"], "no topic 'Nothing'"),
        (["by-unique-key", "Orders", "x"], "no message of topic Orders has unique key x"),
        (["tail", "Orders", "--from", "teatime"], "earliest, latest, a time"),
        (["tail", "Orders", "--queue", "x:1"], "broker-a:0, broker-a:1, broker-a:2"),
        (["tail", "Nothing"], "no topic 'Nothing'"),
        (["dump", "Orders", "--to", "teatime"], "a time like"),
    ],
)
def test_refusals_are_one_line(command: Command, arguments: list[str], text: str) -> None:
    assert text in command.complaint("message", *arguments)


def test_the_trace_of_a_message(command: Command, rocketmq: LocalBroker) -> None:
    config = ClientConfig(namesrv_addr=rocketmq.namesrv_addr, enable_trace=True)
    with blocking.Producer("shop", client=config) as producer:
        message = producer.send(Message("Orders", b"two coffees", keys="k1"))
    (results,) = command.json("message", "trace", message.message_id)["traces"]
    assert (results["what"], results["group"], results["keys"]) == ("sent", "shop", "k1")
    assert (results["kind"], results["is_success"]) == ("normal", True)
    heading, line = command("message", "trace", message.message_id).splitlines()
    assert heading.split() == ["time", "what", "group", "client", "ms", "result"]
    assert line.split()[1:3] == ["sent", "shop"]
    assert line.endswith("success")
    assert "no trace of message 00" in command.complaint("message", "trace", "00")
