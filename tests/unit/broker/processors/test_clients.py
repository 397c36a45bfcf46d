"""203, 204, 328; 223, 307, 309 at a broker, and its requests to clients."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from reput.broker.processors import clients
from reput.format import bodies, command as commands
from reput.format.bodies import (
    ConsumerData,
    ConsumerStatus,
    HeartbeatData,
    MessageQueue,
    QueueOffsets,
    SubscriptionData,
)
from reput.format.codes import LanguageCode, RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    ConsumerRunningInfoHeader,
    ConsumerStatusHeader,
)
from reput.remoting.client import RemotingClient
from world import NAME, Subject

Answer = Callable[[Command], Command | None]


class Consumer:
    """A client that is a member of a group and replies as configured."""

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
        await self._subject.send_body(
            RequestCode.HEART_BEAT, body, client=self.client, language=language
        )

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()


def replying(code: int = 0, body: bytes = b"", remark: str | None = None) -> Answer:
    return lambda request: commands.reply(request, code, remark, {"x": "y"}, body)


# --- requests to clients -------------------------------------------------------------


async def running_info(subject: Subject, client_id: str) -> Command:
    header = ConsumerRunningInfoHeader(
        consumer_group="group", client_id=client_id, jstack_enable=True
    )
    return await subject.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header)


async def test_a_client_without_a_reply_is_reported(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput.broker.processors.clients.CLIENT_TIMEOUT_MS", 1)
    async with Consumer(subject, "one") as consumer:
        await consumer.join()
        reply = await running_info(subject, "one")
    assert reply.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert (reply.remark or "").startswith("consumer <group> <one> Timeout: ")


def status_of(consumer_offset: int) -> bytes:
    table = QueueOffsets({MessageQueue("T", NAME, 0): consumer_offset})
    return bodies.encode(ConsumerStatus(message_queue_table=table))


async def test_a_failure_ends_the_request_without_waiting_for_other_members(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("a bug")

    requests: list[asyncio.Future[Command]] = []
    send_request = clients.send_request

    def noted(*args: Any) -> "asyncio.Future[Command]":
        requests.append(send_request(*args))
        return requests[-1]

    monkeypatch.setattr(clients, "_status_of", fail)
    monkeypatch.setattr(clients, "send_request", noted)
    async with (
        Consumer(subject, "one", replying(body=status_of(5))) as first,
        Consumer(subject, "two") as second,
    ):
        for member in (first, second):
            await member.join()
        header = ConsumerStatusHeader(topic="T", group="group")
        reply = await subject.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "ArithmeticError: a bug")
    assert [future.cancelled() for future in requests] == [False, True]
