"""203, 204, 328; 222, 223, 307, 309; 314 at a broker, and what it asks its clients."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker_subject import NAME, Subject, messages_in
from reput.broker.processors import connections
from reput.format import bodies, command as commands, message_id
from reput.format.bodies import (
    ConsumerConnection,
    ConsumerData,
    ConsumerStatus,
    HeartbeatData,
    MessageQueue,
    ProducerConnection,
    ProducerData,
    ProducerTable,
    QueueOffsets,
    ResetOffsetList,
    ResetOffsets,
    SubscriptionData,
)
from reput.format.codes import LanguageCode, RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    CloneGroupOffsetHeader,
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    ConsumerRunningInfoHeader,
    ConsumerStatusHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
)
from reput.remoting.client import RemotingClient

Answer = Callable[[Command], Command | None]


class Consumer:
    """A client that is in a group, and what it answers."""

    def __init__(self, subject: Subject, name: str, answer: Answer = lambda _: None) -> None:
        self.name = name
        self.asked: asyncio.Queue[Command] = asyncio.Queue()
        self._subject = subject
        self._answer = answer
        self.client = RemotingClient(handler=self._on_request)

    def _on_request(self, address: str, request: Command) -> Command | None:
        if request.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self.asked.put_nowait(request)
            return self._answer(request)
        return None

    async def join(self, language: LanguageCode = LanguageCode.JAVA) -> None:
        subscription = SubscriptionData(sub_string="*", sub_version=1, topic="T")
        data = ConsumerData(
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            consume_type="CONSUME_PASSIVELY",
            group_name="group",
            message_model="CLUSTERING",
            subscription_data_set=[subscription],
            unit_mode=False,
        )
        body = HeartbeatData(client_id=self.name, consumer_data_set=[data], producer_data_set=[])
        await self._subject.tell(
            RequestCode.HEART_BEAT, body, client=self.client, language=language
        )

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()


def replying(code: int = 0, body: bytes = b"", remark: str | None = None) -> Answer:
    return lambda request: commands.reply(request, code, remark, {"x": "y"}, body)


# --- who is connected ---------------------------------------------------------------


async def test_members_of_a_group_are_told_with_what_they_want(subject: Subject) -> None:
    async with Consumer(subject, "one") as one, Consumer(subject, "two") as two:
        await one.join()
        await two.join(LanguageCode.GO)
        reply = await subject.ask(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(consumer_group="group")
        )
    found = bodies.decode(ConsumerConnection, reply.body)
    assert {(at.client_id, at.language) for at in found.connection_set} == {
        ("one", "JAVA"),
        ("two", "GO"),
    }
    assert all(at.client_addr.startswith("127.0.0.1:") for at in found.connection_set)
    assert found.subscription_table["T"].sub_string == "*"
    assert (found.consume_type, found.message_model, found.consume_from_where) == (
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_LAST_OFFSET",
    )


async def test_groups_without_members_are_said_to_be_so(subject: Subject) -> None:
    reply = await subject.ask(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(consumer_group="none")
    )
    assert (reply.code, reply.remark) == (
        ResponseCode.CONSUMER_NOT_ONLINE,
        "the consumer group[none] not online",
    )
    reply = await subject.ask(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader(producer_group="none")
    )
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "the producer group[none] not exist",
    )


async def test_producers_are_told_by_group(subject: Subject) -> None:
    data = [ProducerData(group_name="group-a"), ProducerData(group_name="group-b")]
    body = HeartbeatData(client_id="me", consumer_data_set=[], producer_data_set=data)
    await subject.tell(RequestCode.HEART_BEAT, body, version=399)
    reply = await subject.ask(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader(producer_group="group-a")
    )
    (one,) = bodies.decode(ProducerConnection, reply.body).connection_set
    assert (one.client_id, one.language, one.version) == ("me", "PYTHON", 399)
    reply = await subject.ask(RequestCode.GET_ALL_PRODUCER_INFO)
    table = bodies.decode(ProducerTable, reply.body).data
    assert {name: [one.client_id for one in members] for name, members in table.items()} == {
        "group-a": ["me"],
        "group-b": ["me"],
    }
    assert table["group-a"][0].remote_ip == f"/{one.client_addr}"


# --- what clients are asked ----------------------------------------------------------


async def running_info(subject: Subject, client_id: str) -> Command:
    header = ConsumerRunningInfoHeader(
        consumer_group="group", client_id=client_id, jstack_enable=True
    )
    return await subject.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header)


async def test_a_question_is_passed_on_and_its_answer_back(subject: Subject) -> None:
    answer = replying(code=5, body=b"what it does", remark="busy")
    async with Consumer(subject, "other") as other, Consumer(subject, "one", answer) as one:
        await other.join()
        await one.join()
        reply = await running_info(subject, "one")
        asked = one.asked.get_nowait()
        assert other.asked.empty()
    assert (reply.code, reply.remark, reply.body) == (5, "busy", b"what it does")
    assert reply.ext_fields == {"x": "y"}
    assert asked.ext_fields == {
        "consumerGroup": "group",
        "clientId": "one",
        "jstackEnable": "true",
    }


async def test_who_is_not_there_cannot_be_asked(subject: Subject) -> None:
    reply = await running_info(subject, "nobody")
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "The Consumer <group> <nobody> not online",
    )


async def test_who_goes_while_asked_is_told_of(subject: Subject) -> None:
    async with Consumer(subject, "one") as one:
        await one.join()
        asking = asyncio.create_task(running_info(subject, "one"))
        await one.asked.get()
    reply = await asking
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert (reply.remark or "").startswith("invoke consumer <group> <one> Exception: connection")


async def test_who_does_not_answer_is_told_of(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput.broker.processors.connections.CLIENT_TIMEOUT_MS", 1)
    async with Consumer(subject, "one") as one:
        await one.join()
        reply = await running_info(subject, "one")
    assert reply.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert (reply.remark or "").startswith("consumer <group> <one> Timeout: ")


async def test_one_message_is_consumed_on_request(subject: Subject) -> None:
    (stored,) = messages_in((await subject.pull("T", 3)).body)
    async with Consumer(subject, "one", replying(body=b"done")) as one:
        await one.join()
        header = ConsumeDirectlyHeader(
            consumer_group="group", client_id="one", msg_id=message_id.offset_id(stored)
        )
        reply = await subject.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        asked = one.asked.get_nowait()
    assert reply.body == b"done"
    assert messages_in(asked.body) == [stored]
    assert (asked.ext_fields or {})["brokerName"] == NAME


@pytest.mark.parametrize("msg_id", ["", "xyz", "7F00000100002A9F00000000000FFFFF"])
async def test_a_message_that_is_not_there_is_not_consumed(subject: Subject, msg_id: str) -> None:
    header = ConsumeDirectlyHeader(consumer_group="group", client_id="one", msg_id=msg_id)
    reply = await subject.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert msg_id in (reply.remark or "")


def status_of(consumer_offset: int) -> bytes:
    table = QueueOffsets({MessageQueue("T", NAME, 0): consumer_offset})
    return bodies.encode(ConsumerStatus(message_queue_table=table))


@pytest.mark.parametrize(("who", "said"), [(None, {"one": 5, "two": 7}), ("two", {"two": 7})])
async def test_members_say_how_far_they_are(
    subject: Subject, who: str | None, said: dict[str, int]
) -> None:
    async with (
        Consumer(subject, "one", replying(body=status_of(5))) as one,
        Consumer(subject, "two", replying(body=status_of(7))) as two,
        Consumer(subject, "three", replying(code=1)) as three,
    ):
        for member in (one, two, three):
            await member.join()
        header = ConsumerStatusHeader(topic="T", group="group", client_addr=who)
        reply = await subject.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
    table = bodies.decode(ConsumerStatus, reply.body).consumer_table
    assert {name: dict(one) for name, one in table.items()} == {
        name: {MessageQueue("T", NAME, 0): offset} for name, offset in said.items()
    }


async def test_who_asks_hears_of_a_failure_and_the_other_members_are_not_waited_for(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("a bug")

    asked: list[asyncio.Future[Command]] = []
    send_request = connections.send_request

    def noted(*args: Any) -> "asyncio.Future[Command]":
        asked.append(send_request(*args))
        return asked[-1]

    monkeypatch.setattr(connections, "_status_of", fail)
    monkeypatch.setattr(connections, "send_request", noted)
    async with (
        Consumer(subject, "one", replying(body=status_of(5))) as one,
        Consumer(subject, "two") as two,
    ):
        for member in (one, two):
            await member.join()
        header = ConsumerStatusHeader(topic="T", group="group")
        reply = await subject.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "ArithmeticError: a bug")
    assert [future.cancelled() for future in asked] == [False, True]


async def test_a_group_without_members_says_nothing(subject: Subject) -> None:
    header = ConsumerStatusHeader(topic="T", group="none")
    reply = await subject.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "No Any Consumer online in the consumer group: [none]",
    )


# --- offsets -------------------------------------------------------------------------


async def reset(subject: Subject, topic: str = "T", **fields: object) -> Command:
    known = {"topic": topic, "group": "group", "timestamp": -1, "is_force": True, **fields}
    return await subject.ask(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        ResetOffsetHeader(**known),  # type: ignore[arg-type]
    )


def by_queue(table: QueueOffsets) -> list[int]:
    return [table[MessageQueue("T", NAME, queue_id)] for queue_id in range(4)]


async def test_members_are_told_where_to_go_on(subject: Subject) -> None:
    for queue_id in range(4):
        subject.parts.deliveries.consumer_offsets.put("T", "group", queue_id, 0)
    async with Consumer(subject, "one") as one, Consumer(subject, "two") as two:
        await one.join()
        await two.join(LanguageCode.CPP)
        reply = await reset(subject)
        told, listed = await one.asked.get(), await two.asked.get()
    table = bodies.decode(ResetOffsets, reply.body).offset_table
    assert by_queue(table) == [0, 0, 0, 1]
    assert told.is_oneway
    assert told.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    assert bodies.decode(ResetOffsets, told.body).offset_table == table
    in_list = bodies.decode(ResetOffsetList, listed.body).offset_table
    assert [(one.queue_id, one.offset) for one in in_list] == [(0, 0), (1, 0), (2, 0), (3, 1)]


async def test_without_force_offsets_only_go_back(subject: Subject) -> None:
    for queue_id in range(4):
        subject.parts.deliveries.consumer_offsets.put("T", "group", queue_id, 0)
    async with Consumer(subject, "one") as one:
        await one.join()
        reply = await reset(subject, is_force=False)
        assert by_queue(bodies.decode(ResetOffsets, reply.body).offset_table) == [0, 0, 0, 0]
        reply = await reset(subject, timestamp=0)
        assert by_queue(bodies.decode(ResetOffsets, reply.body).offset_table) == [0, 0, 0, 0]


async def test_why_offsets_cannot_be_reset(subject: Subject) -> None:
    reply = await reset(subject, "None")
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "[reset-offset] reset offset failed, no topic in this broker. topic=None",
    )
    reply = await reset(subject)
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "THe consumer group <group> not exist",
    )
    for queue_id in range(4):
        subject.parts.deliveries.consumer_offsets.put("T", "group", queue_id, 0)
    reply = await reset(subject)
    assert (reply.code, reply.remark) == (
        ResponseCode.CONSUMER_NOT_ONLINE,
        "Consumer not online, so can not reset offset, Group: group Topic: T Timestamp: -1",
    )


@pytest.mark.parametrize(("topic", "cloned"), [("T", {"T"}), (None, {"T", "U"})])
async def test_a_group_goes_on_where_another_is(
    subject: Subject, topic: str | None, cloned: set[str]
) -> None:
    await subject.send("U")
    for one in ("T", "U", "Gone"):
        subject.parts.deliveries.consumer_offsets.put(one, "source", 2, 5)
    header = CloneGroupOffsetHeader(src_group="source", dest_group="target", topic=topic)
    reply = await subject.ask(RequestCode.CLONE_GROUP_OFFSET, header)
    assert reply.code == ResponseCode.SUCCESS
    offsets = subject.parts.deliveries.consumer_offsets
    assert {one for one in ("T", "U", "Gone") if offsets.of(one, "target") == {2: 5}} == cloned
