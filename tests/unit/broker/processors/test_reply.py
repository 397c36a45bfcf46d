"""324, 325: replies to the requester. Codes and texts: Java's ReplyMessageProcessor."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import world
from reput.format import command as commands
from reput.format.bodies import HeartbeatData, ProducerData
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.message import StoredMessage
from reput.remoting.client import RemotingClient
from reput.store.config import FlushDiskType
from world import CLUSTER, Subject

TOPIC = f"{CLUSTER}_REPLY_TOPIC"
CODES = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
REPLY = {"MSG_TYPE": "reply", "CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "requester", "TTL": "3000"}


class Requester:
    """A client with a producer, and its answers to replies."""

    def __init__(self) -> None:
        self.code = ResponseCode.SUCCESS
        self.pushed: list[Command] = []
        self.client = RemotingClient(handler=self._on_request)

    def _on_request(self, address: str, request: Command) -> Command:
        self.pushed.append(request)
        return commands.reply(request, self.code, None if self.code == 0 else "not now")

    async def greet(self, subject: Subject, group: str = "askers") -> None:
        data = [ProducerData(group_name=group)]
        beat = HeartbeatData(client_id="requester", consumer_data_set=[], producer_data_set=data)
        await subject.send_body(RequestCode.HEART_BEAT, beat, client=self.client)


@pytest.fixture
async def requester(subject: Subject) -> AsyncIterator[Requester]:
    connected = Requester()
    async with connected.client:
        await connected.greet(subject)
        yield connected


def kept(subject: Subject) -> list[StoredMessage]:
    result = subject.broker.store.get(TOPIC, 0, 0)
    return world.messages_in(b"".join(map(bytes, result.records)))


async def test_a_kept_reply_waits_for_the_disk(tmp_path: Path) -> None:
    store = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with world.broker(tmp_path, store=store) as subject:
        requester = Requester()
        async with requester.client:
            await requester.greet(subject)
            reply = await subject.send(TOPIC, b"42", code=CODES[1], properties=REPLY)
        assert reply.code == ResponseCode.SUCCESS
        assert len((reply.ext_fields or {})["msgId"]) == 32
        assert subject.broker.store.log.flushed_offset == subject.broker.store.max_physical_offset


async def test_a_reply_over_the_limit_is_delivered_and_acknowledged(
    subject: Subject, requester: Requester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal used to be raised in a callback, and the sender got no answer."""
    monkeypatch.setattr(subject.parts.pending_replies, "_pending_max", 0)
    reply = await subject.send(TOPIC, b"42", code=CODES[1], properties=REPLY)
    assert reply.code == ResponseCode.SUCCESS
    assert (reply.ext_fields or {})["msgId"] == "0"
    assert [pushed.body for pushed in requester.pushed] == [b"42"]
    assert kept(subject) == []
    assert subject.broker.serving.refusals.counts["waiting_puts"] == 1
