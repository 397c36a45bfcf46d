"""324, 325: replies that go to whoever asked. Codes and texts: Java's ReplyMessageProcessor."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import broker_subject
from broker_subject import CLUSTER, Subject
from reput.broker.group.groups import Groups
from reput.format import command as commands, headers, message_id, properties as props
from reput.format.bodies import HeartbeatData, ProducerData
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import IS_ONEWAY, Command
from reput.format.headers import PushReplyHeader, UnregisterClientHeader
from reput.format.message import StoredMessage
from reput.remoting.client import RemotingClient
from reput.store.config import FlushDiskType

TOPIC = f"{CLUSTER}_REPLY_TOPIC"
CODES = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
REPLY = {"MSG_TYPE": "reply", "CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "requester", "TTL": "3000"}


class Requester:
    """A client with a producer, and what it says to replies."""

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
        await subject.tell(RequestCode.HEART_BEAT, beat, client=self.client)


@pytest.fixture
async def requester(subject: Subject) -> AsyncIterator[Requester]:
    one = Requester()
    async with one.client:
        await one.greet(subject)
        yield one


def kept(subject: Subject) -> list[StoredMessage]:
    result = subject.broker.store.get(TOPIC, 0, 0)
    return broker_subject.messages_in(b"".join(map(bytes, result.records)))


@pytest.mark.parametrize("code", CODES)
async def test_a_reply_goes_to_who_asked_and_is_kept(
    subject: Subject, requester: Requester, code: RequestCode
) -> None:
    reply = await subject.send(TOPIC, b"42", code=code, properties=REPLY, reconsume_times=2)
    assert reply.code == ResponseCode.SUCCESS
    (pushed,) = requester.pushed
    assert pushed.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    assert pushed.body == b"42"
    header = headers.decode(PushReplyHeader, pushed.ext_fields)
    assert (header.topic, header.queue_id, header.producer_group) == (TOPIC, 0, "producers")
    assert (header.born_timestamp, header.reconsume_times) == (1_700_000_000_000, 2)
    assert header.store_host == subject.address
    assert header.born_host.startswith("127.0.0.1:")
    properties = props.decode((header.properties or "").encode())
    assert int(properties.pop("PUSH_REPLY_TIME")) == header.store_timestamp
    assert properties == REPLY
    (stored,) = kept(subject)
    assert (stored.body, stored.properties, stored.reconsume_times) == (b"42", REPLY, 2)
    assert reply.ext_fields == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": message_id.encode_offset_id(stored.store_host, stored.physical_offset),
        "queueId": "0",
        "queueOffset": "0",
    }


async def test_replies_need_not_be_kept(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, store_reply_message_enable=False) as subject:
        one = Requester()
        async with one.client:
            await one.greet(subject)
            reply = await subject.send(TOPIC, b"42", code=CODES[1], properties=REPLY)
        assert reply.code == ResponseCode.SUCCESS
        assert (reply.ext_fields or {})["msgId"] == "0"
        assert kept(subject) == []


async def test_a_kept_reply_waits_for_the_disk(tmp_path: Path) -> None:
    store = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with broker_subject.running(tmp_path, store=store) as subject:
        one = Requester()
        async with one.client:
            await one.greet(subject)
            reply = await subject.send(TOPIC, b"42", code=CODES[1], properties=REPLY)
        assert reply.code == ResponseCode.SUCCESS
        assert len((reply.ext_fields or {})["msgId"]) == 32
        assert subject.broker.store.log.flushed_offset == subject.broker.store.max_physical_offset


async def test_a_reply_that_too_many_wait_before_is_handed_over_and_answered(
    subject: Subject, requester: Requester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal was raised in a callback, and the sender had no answer."""
    monkeypatch.setattr(subject.parts.pending_replies, "_pending_max", 0)
    reply = await subject.send(TOPIC, b"42", code=CODES[1], properties=REPLY)
    assert reply.code == ResponseCode.SUCCESS
    assert (reply.ext_fields or {})["msgId"] == "0"
    assert [one.body for one in requester.pushed] == [b"42"]
    assert kept(subject) == []
    assert subject.broker.serving.refusals.counts["waiting_puts"] == 1


async def test_who_does_not_want_it_is_the_senders_error(
    subject: Subject, requester: Requester
) -> None:
    requester.code = ResponseCode.SYSTEM_ERROR
    reply = await subject.send(TOPIC, b"42", code=CODES[1], properties=REPLY)
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "push reply message to requesterfail.",
    )
    assert len(kept(subject)) == 1  # as in Java: it is kept all the same


async def test_nobody_is_there_to_take_it(subject: Subject) -> None:
    reply = await subject.send(TOPIC, b"42", code=CODES[1], properties=REPLY)
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "push reply message fail, channel of <requester> not found.",
    )
    reply = await subject.send(TOPIC, b"42", code=CODES[1], properties={"MSG_TYPE": "reply"})
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "reply message properties[REPLY_TO_CLIENT] is null",
    )


async def test_one_way(subject: Subject, requester: Requester) -> None:
    await subject.send(TOPIC, b"42", code=CODES[1], properties=REPLY, flag=IS_ONEWAY)
    await subject.send(TOPIC, b"43", code=CODES[1], properties=REPLY)
    assert [one.body for one in requester.pushed] == [b"42", b"43"]
    assert [one.body for one in kept(subject)] == [b"42", b"43"]


async def test_a_client_that_left_is_not_found(subject: Subject, requester: Requester) -> None:
    header = UnregisterClientHeader(client_id="requester", producer_group="askers")
    await subject.ask(RequestCode.UNREGISTER_CLIENT, header, client=requester.client)
    reply = await subject.send(TOPIC, b"42", code=CODES[1], properties=REPLY)
    assert "not found" in (reply.remark or "")


class Wire:
    peer = "127.0.0.1:1"


def test_a_client_is_found_by_its_last_connection_as_long_as_one_is_left() -> None:
    groups: Groups[Wire] = Groups()
    first, second = Wire(), Wire()
    for channel, group in ((first, "a"), (first, "b"), (second, "a")):
        groups.register_producer(channel, "client", group, 0, 0, 0)

    def found() -> Wire | None:
        member = groups.producer_of_client("client")
        return member.channel if member is not None else None

    assert found() is second
    groups.remove(second)
    assert found() is first
    groups.unregister_producer(first, "a")
    assert found() is first  # in b
    groups.unregister_producer(first, "b")
    assert found() is None
