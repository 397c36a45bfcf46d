"""``reput dlq`` against a broker: dead letters are shown, written to a file, and sent again."""

import json
from pathlib import Path

import pytest

from reput.client import Message, blocking
from reput.client.admin import Admin
from reput.client.core import requests
from reput.format import headers
from reput.format.codes import RequestCode
from reput.testing.local_broker import LocalBroker
from wire_command import Command

GROUP = "Billing"


@pytest.fixture
async def letters(rocketmq: LocalBroker) -> list[str]:
    """The ids of three messages that a group has given up on, oldest first."""
    rocketmq.create_topic("Orders", queues=1)
    async with Admin(rocketmq.namesrv_addr) as admin:
        await admin.create_group(GROUP)
        with blocking.Producer("g", namesrv=rocketmq.namesrv_addr) as producer:
            sent = [
                producer.send(Message("Orders", b"body%d" % i, keys=f"key{i}", tags="Tag"))
                for i in range(3)
            ]
        for one in rocketmq.messages("Orders"):
            header = headers.SendBackHeader(
                offset=one.physical_offset, group=GROUP, delay_level=-1,
                origin_msg_id=one.message_id, origin_topic="Orders", unit_mode=False,
                max_reconsume_times=16,
            )  # fmt: skip
            request = requests.make(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            await admin.calls.ask(rocketmq.broker_addr, request)
    return [one.message_id for one in sent]


def test_who_has_dead_letters(command: Command, letters: list[str]) -> None:
    (found,) = command.json("dlq", "list")["groups"]
    assert (found["group"], found["topic"], found["message_count"]) == (GROUP, "%DLQ%Billing", 3)
    assert GROUP in command("dlq", "list")


def test_they_are_shown_with_where_they_came_from(command: Command, letters: list[str]) -> None:
    found = command.json_lines("dlq", "show", GROUP)
    assert [one["unique_key"] for one in found] == letters
    assert [one["body"] for one in found] == ["body0", "body1", "body2"]
    assert {one["origin_topic"] for one in found} == {"Orders"}
    assert {one["reconsume_times"] for one in found} == {1}
    line = command("dlq", "show", GROUP, "--limit", "1").split("\t")
    assert line[1:] == ["broker-a:0:0", "Orders", "1", "Tag", "key0", letters[0], "body0\n"]
    (only,) = command.json_lines("dlq", "show", GROUP, "--id", found[1]["origin_message_id"])
    assert only["unique_key"] == letters[1]
    since = str(found[2]["store_timestamp"])
    assert letters[2] in command("dlq", "show", GROUP, "--from", since)
    assert command("dlq", "show", GROUP, "--to", "2000-01-01") == ""


def test_export_writes_a_file_once(command: Command, letters: list[str], tmp_path: Path) -> None:
    file = tmp_path / "letters.jsonl"
    assert command.json("dlq", "export", GROUP, file)["message_count"] == 3
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [bytes.fromhex(one["body"]) for one in found] == [b"body0", b"body1", b"body2"]
    assert [one["unique_key"] for one in found] == letters
    assert "the name of a new file" in command.complaint("dlq", "export", GROUP, file)


def test_resending_is_shown_and_then_done(
    command: Command, rocketmq: LocalBroker, letters: list[str]
) -> None:
    preview = command.json("dlq", "resend", GROUP)
    assert not preview["is_done"]
    assert [one["unique_key"] for one in preview["messages"]] == letters
    assert {one["to_topic"] for one in preview["messages"]} == {"%RETRY%Billing"}
    assert "--yes makes the change" in command.notes
    assert rocketmq.messages("%RETRY%Billing") == []
    receipt = command.json("dlq", "resend", GROUP, "--id", letters[1], "--yes")
    assert [one["problem"] for one in receipt["messages"]] == [None]
    (one,) = rocketmq.messages("%RETRY%Billing")
    assert (one.body, one.keys, one.tags) == (b"body1", ["key1"], "Tag")
    assert (one.message_id, one.topic, one.reconsume_times) == (letters[1], "Orders", 0)
    assert one.offset_message_id == receipt["messages"][0]["new_offset_id"]


def test_resending_to_where_they_came_from(
    command: Command, rocketmq: LocalBroker, letters: list[str]
) -> None:
    command("dlq", "resend", GROUP, "--to-origin", "--limit", "2", "--yes")
    found = rocketmq.messages("Orders")
    assert [one.message_id for one in found] == [*letters, *letters[:2]]
    again = found[-1].stored.properties
    assert not {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY", "REAL_TOPIC"} & again.keys()
    assert again["KEYS"] == "key1"


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "Nobody"], "no topic '%DLQ%Nobody'"),
        (["show", GROUP, "--id", "x"], "no dead letter of group Billing has id x"),
        (["resend", GROUP, "--from", "x"], "a time like"),
    ],
)
def test_refusals_are_one_line(command: Command, arguments: list[str], said: str) -> None:
    assert said in command.complaint("dlq", *arguments)
