"""``reput dlq`` against a broker: dead letters are shown, exported and sent again."""

import json
from pathlib import Path

import pytest

from reput.client import Message, Producer
from reput.client.admin import Admin
from reput.client.core import requests
from reput.client.core.requests import SendRequests
from reput.format import headers, properties as props
from reput.format.codes import RequestCode
from reput.testing.local_broker import LocalBroker
from wire_command import Command

GROUP = "Billing"


@pytest.fixture
async def letters(rocketmq: LocalBroker) -> list[str]:
    """Ids of three dead letters of a group, oldest first."""
    rocketmq.create_topic("Orders", queues=1)
    async with Admin(rocketmq.namesrv_addr) as admin:
        await admin.create_group(GROUP)
        async with Producer("g", namesrv=rocketmq.namesrv_addr) as producer:
            sent = [
                await producer.send(Message("Orders", b"body%d" % i, keys=f"key{i}", tags="Tag"))
                for i in range(3)
            ]
        for message in rocketmq.messages("Orders"):
            header = headers.SendBackHeader(
                offset=message.physical_offset, group=GROUP, delay_level=-1,
                origin_msg_id=message.message_id, origin_topic="Orders", unit_mode=False,
                max_reconsume_times=16,
            )  # fmt: skip
            request = requests.make(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            await admin.calls.ask(rocketmq.broker_addr, request)
    return [message.message_id for message in sent]


def test_groups_with_dead_letters_are_listed(command: Command, letters: list[str]) -> None:
    (results,) = command.json("dlq", "list")["groups"]
    assert (results["group"], results["topic"], results["message_count"]) == (
        GROUP,
        "%DLQ%Billing",
        3,
    )
    assert GROUP in command("dlq", "list")


def test_dead_letters_have_their_original_topic(command: Command, letters: list[str]) -> None:
    results = command.json_lines("dlq", "show", GROUP)
    assert [message["unique_key"] for message in results] == letters
    assert [message["body"] for message in results] == ["body0", "body1", "body2"]
    assert {message["origin_topic"] for message in results} == {"Orders"}
    assert {message["reconsume_times"] for message in results} == {1}
    line = command("dlq", "show", GROUP, "--limit", "1").split("\t")
    assert line[1:] == ["broker-a:0:0", "Orders", "1", "Tag", "key0", letters[0], "body0\n"]
    (only,) = command.json_lines("dlq", "show", GROUP, "--id", results[1]["origin_message_id"])
    assert only["unique_key"] == letters[1]
    since = str(results[2]["store_timestamp"])
    assert letters[2] in command("dlq", "show", GROUP, "--from", since)
    assert command("dlq", "show", GROUP, "--to", "2000-01-01") == ""


def test_export_writes_a_file_once(command: Command, letters: list[str], tmp_path: Path) -> None:
    file = tmp_path / "letters.jsonl"
    assert command.json("dlq", "export", GROUP, file)["message_count"] == 3
    results = [json.loads(line) for line in file.read_text().splitlines()]
    assert [bytes.fromhex(message["body"]) for message in results] == [b"body0", b"body1", b"body2"]
    assert [message["unique_key"] for message in results] == letters
    assert "the name of a new file" in command.complaint("dlq", "export", GROUP, file)


def test_resend_previews_without_yes(
    command: Command, rocketmq: LocalBroker, letters: list[str]
) -> None:
    preview = command.json("dlq", "resend", GROUP)
    assert not preview["is_done"]
    assert [message["unique_key"] for message in preview["messages"]] == letters
    assert {message["to_topic"] for message in preview["messages"]} == {"%RETRY%Billing"}
    assert "--yes makes the change" in command.notes
    assert rocketmq.messages("%RETRY%Billing") == []
    receipt = command.json("dlq", "resend", GROUP, "--id", letters[1], "--yes")
    assert [message["problem"] for message in receipt["messages"]] == [None]
    (message,) = rocketmq.messages("%RETRY%Billing")
    assert (message.body, message.keys, message.tags) == (b"body1", ["key1"], "Tag")
    assert (message.message_id, message.topic, message.reconsume_times) == (letters[1], "Orders", 0)
    assert message.offset_message_id == receipt["messages"][0]["new_offset_id"]


def test_resend_to_the_original_topic(
    command: Command, rocketmq: LocalBroker, letters: list[str]
) -> None:
    command("dlq", "resend", GROUP, "--to-origin", "--limit", "2", "--yes")
    results = rocketmq.messages("Orders")
    assert [message.message_id for message in results] == [*letters, *letters[:2]]
    again = results[-1].stored.properties
    assert not {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY", "REAL_TOPIC"} & again.keys()
    assert again["KEYS"] == "key1"


@pytest.fixture
async def ordered_letter(rocketmq: LocalBroker) -> str:
    """Id of a dead letter as Java's ordered consumers send it, after two tries.

    ``ConsumeMessageOrderlyService.sendMessageBack`` and ``DefaultMQProducerImpl.sendKernelImpl``:
    the numbers of tries are header fields, and remain properties.
    """
    rocketmq.create_topic("Orders", queues=1)
    tries = {"RECONSUME_TIME": "2", "MAX_RECONSUME_TIMES": "1"}
    own = {"RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": "0A0B", "DELAY": "4"}
    async with Admin(rocketmq.namesrv_addr) as admin:
        await admin.create_group(GROUP)
        send = SendRequests(GROUP, "TBW102", 1).send(
            f"%RETRY%{GROUP}",
            "broker-a",
            0,
            props.encode({"UNIQ_KEY": "0A0B", **own, **tries}).decode(),
            b"ordered",
            1_700_000_000_000,
            reconsume_times="2",
            max_reconsume_times="1",
        )
        await admin.calls.ask(rocketmq.broker_addr, send)
    (letter,) = rocketmq.messages(f"%DLQ%{GROUP}")
    assert tries.items() <= letter.stored.properties.items()
    return letter.message_id


def test_a_letter_of_an_ordered_group_reaches_the_group(
    command: Command, rocketmq: LocalBroker, ordered_letter: str
) -> None:
    command("dlq", "resend", GROUP, "--yes")
    (message,) = rocketmq.messages(f"%RETRY%{GROUP}")
    assert (message.body, message.message_id) == (b"ordered", ordered_letter)
    assert message.reconsume_times == 0
    assert len(rocketmq.messages(f"%DLQ%{GROUP}")) == 1
    command("dlq", "resend", GROUP, "--to-origin", "--yes")
    (again,) = rocketmq.messages("Orders")
    assert not {"RECONSUME_TIME", "MAX_RECONSUME_TIMES"} & again.stored.properties.keys()


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["show", "Unknown"], "no topic '%DLQ%Unknown'"),
        (["show", GROUP, "--id", "x"], "no dead letter of group Billing has id x"),
        (["resend", GROUP, "--from", "x"], "a time like"),
    ],
)
def test_refusals_are_one_line(command: Command, arguments: list[str], text: str) -> None:
    assert text in command.complaint("dlq", *arguments)
