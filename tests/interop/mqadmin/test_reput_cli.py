"""``reput`` commands have the same output and effect with our broker and the official one."""

import asyncio
import re
import time
from typing import Any

import pytest

from interop.mqadmin.sides import WAIT_S, Both, Side, masked
from reput.client import Message, blocking
from reput.client.admin import Admin
from reput.client.core import requests
from reput.format import headers
from reput.format.codes import RequestCode
from wire_command import Command

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

GROUP = "GivesUp"
DIFFERENT = re.compile(
    r"_(timestamp|offset|size|crc|host)$|^(offset_id|broker_name|version|properties)$"
)
"""Times, offsets, addresses; a broker of 5.x also adds properties to messages."""


@pytest.fixture
def commands(both: Both, capsys: pytest.CaptureFixture[str]) -> list[Command]:
    if both.is_secured:
        pytest.skip("no such case: commands with credentials are tested elsewhere")
    return [Command(side.namesrv, capsys) for side in both.sides]


def same(commands: list[Command], *arguments: str) -> Any:
    """Assert that a command prints the same JSON with both brokers; return the output with ours."""
    ours, official = (plain(command.json(*arguments)) for command in commands)
    assert ours == official
    return ours


def plain(value: Any) -> Any:
    """Return a document without the fields that may differ."""
    if isinstance(value, dict):
        return {name: plain(field) for name, field in value.items() if not DIFFERENT.search(name)}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return masked(value) if isinstance(value, str) else value


async def make_dead_letter(side: Side, group: str) -> None:
    """Make a message a dead letter of a group."""
    async with Admin(side.namesrv) as admin:
        await admin.create_group(group)
        sent = side.sent[1]
        message = await admin.message_by_offset_id(sent.offset_msg_id)
        assert message is not None
        header = headers.SendBackHeader(
            offset=message.physical_offset, group=group, delay_level=-1,
            origin_msg_id=message.message_id, origin_topic="Messages", unit_mode=False,
            max_reconsume_times=16,
        )  # fmt: skip
        request = requests.make(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        await admin.calls.ask(side.broker, request)


def test_dead_letters_are_resent(both: Both, commands: list[Command]) -> None:
    for side in both.sides:
        asyncio.run(make_dead_letter(side, GROUP))
    listed = [command.json("dlq", "list")["groups"] for command in commands]
    for groups in listed:
        (mine,) = [row for row in groups if row["group"] == GROUP]
        assert mine["message_count"] == 1
    shown = [command.json_lines("dlq", "show", GROUP) for command in commands]
    assert plain(shown[0][0]["body"]) == plain(shown[1][0]["body"]) == "body1"
    assert {rows[0]["origin_topic"] for rows in shown} == {"Messages"}
    preview = same(commands, "dlq", "resend", GROUP)
    assert not preview["is_done"]
    receipt = same(commands, "dlq", "resend", GROUP, "--yes")
    assert [message["problem"] for message in receipt["messages"]] == [None]
    for command in commands:
        (again,) = command.json_lines("message", "dump", f"%RETRY%{GROUP}")
        assert (again["body"], again["reconsume_times"]) == ("body1", 0)
        assert again["properties"]["RETRY_TOPIC"] == "Messages"


def test_cluster_operations_are_done(both: Both, commands: list[Command]) -> None:
    for switch in ("off", "on"):
        receipts = [
            command.json("cluster", "write-permission", "broker-a", switch) for command in commands
        ]
        assert {receipt["write_permission"] for receipt in receipts} == {switch}
    for what in ("queues", "topics", "log"):
        assert same(commands, "cluster", "clean", what, "--yes")["is_done"]
    same(commands, "cluster", "kv", "set", "Space", "key", "value")
    assert same(commands, "cluster", "kv", "list", "Space")["table"] == {"key": "value"}
    same(commands, "cluster", "kv", "delete", "Space", "key", "--yes")
    order = ("topic", "order", "Ordered")
    assert len(same(commands, *order, "--set", "broker-a:4")["topics"]) == 1
    assert same(commands, *order, "--delete")["topics"] == []


def test_counters_are_shown(both: Both, commands: list[Command]) -> None:
    for command in commands:
        counter = command.json("cluster", "counter", "TOPIC_PUT_NUMS", "Messages")
        assert [window["window"] for window in counter["windows"]] == ["minute", "hour", "day"]
        (topic,) = command.json("topic", "stats", "Messages")["topics"]
        assert topic["topic"] == "Messages"


def test_delayed_messages_are_counted(both: Both, commands: list[Command]) -> None:
    for side, command in zip(both.sides, commands, strict=True):
        with blocking.Producer("g", namesrv=side.namesrv) as producer:
            producer.send(Message("Messages2", b"x", delay_level=18))
        deadline = time.monotonic() + WAIT_S
        while not (levels := command.json("delay", "list")["levels"]):
            assert time.monotonic() < deadline
        (level,) = [row for row in levels if row["level"] == 18]
        assert (level["delay"], level["waiting_count"]) == ("2h", 1)


def test_consume_mode_is_shown_and_set(both: Both, commands: list[Command]) -> None:
    if both.is_4:
        pytest.skip("no such case: only in 5.x")
    for command in commands:
        command("group", "create", "Modes")
    mode = ("group", "mode", "Modes", "Messages")
    (row,) = same(commands, *mode, "--set", "POP", "--share", "1")["modes"]
    assert (row["mode"], row["share_count"]) == ("POP", 1)
    same(commands, *mode, "--set", "PULL")
