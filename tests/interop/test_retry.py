"""Redelivered messages and dead letters: Java's consumers on our broker and the official one."""

import asyncio
import contextlib
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import world
from interop.conftest import StartOfficial
from interop.java_cluster import JavaClient, JavaMessage, JavaReceived
from reput.broker.server import Broker
from reput.format import headers, message as record, names, properties as props
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import SendBackHeader, SendMessageHeader
from reput.format.message import StoredMessage
from reput.namesrv.config import NamesrvConfig
from reput.namesrv.server import NameServer
from reput.remoting.client import RemotingClient

pytestmark = pytest.mark.interop

GUARD_S = 60
"""Time limit of a test that hangs, in seconds; no step is expected to take that long."""
DELAYS = "1s 1s 1s 1s 1s 1s 1s 1s"
_numbers = itertools.count()


class Ours:
    """Our name server with our broker."""

    def __init__(self, namesrv: NameServer, broker: Broker) -> None:
        self.broker = broker
        self.namesrv = f"127.0.0.1:{namesrv.port}"
        self.address = f"127.0.0.1:{broker.identity.port}"

    def stored(self, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        records = self.broker.store.get(topic, queue_id, 0).records
        return [record.decode(bytes(data)) for data in records]


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Ours]:
    namesrv = NameServer(
        NamesrvConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            kv_config_path=str(tmp_path / "kvConfig.json"),
            config_store_path=str(tmp_path / "namesrv.properties"),
        )
    )
    async with namesrv:
        broker = Broker(
            world.broker_config(namesrv_addr=f"127.0.0.1:{namesrv.port}"),
            world.store_config(tmp_path / "store", message_delay_level=DELAYS),
        )
        async with broker:
            yield Ours(namesrv, broker)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """Provide a group and topic name that is unique to the test."""
    return f"{request.node.originalname}-{os.getpid()}-{next(_numbers)}"


def consumed(
    java: JavaClient,
    namesrv: str,
    group: str,
    count: int,
    laters: int,
    *,
    until: Callable[[], Any] | None = None,
    **settings: Any,
) -> list[JavaReceived]:
    """Send a message and consume it ``count`` times. Blocks.

    A consumer that closes before its last result is acknowledged sends it once more: ``until`` is
    the condition to wait for.
    """
    message = JavaMessage(group, b"body", tags="a", keys="k", properties={"p": "v"})
    with contextlib.closing(java.producer(namesrv)) as producer:
        producer.send([message])
        with contextlib.closing(
            java.push_consumer(namesrv, group, group, laters=laters, **settings)
        ) as consumer:
            received = consumer.take(count)
            deadline = time.monotonic() + GUARD_S
            pause = threading.Event()
            while until is not None and not until() and time.monotonic() < deadline:
                pause.wait(0.02)  # no event to wait for
            return received


def comparable(messages: list[JavaReceived]) -> list[tuple[Any, ...]]:
    """Return the fields that must be equal on both brokers."""
    marks = ("MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "UNIQ_KEY", "ORIGIN_MESSAGE_ID")
    rows = []
    for message in messages:
        properties = {
            name: value for name, value in message.properties.items() if name not in marks
        }
        has_marks = tuple(name in message.properties for name in marks)
        rows.append(
            (
                message.topic,
                message.body,
                message.tags,
                message.keys,
                message.reconsume_times,
                properties,
                has_marks,
            )
        )
    return rows


@pytest.mark.rotating
async def test_reconsume_times_grow_with_each_redelivery(
    ours: Ours, java_client: JavaClient, group: str
) -> None:
    received = await asyncio.to_thread(consumed, java_client, ours.namesrv, group, 4, 3)
    assert [message.reconsume_times for message in received] == [0, 1, 2, 3]
    assert {message.body for message in received} == {b"body"}
    assert {message.topic for message in received} == {group}  # clients show the original topic
    assert len({message.msg_id for message in received}) == 1
    first, *again = received
    assert {message.properties["ORIGIN_MESSAGE_ID"] for message in again} == {first.offset_msg_id}
    times = [message.store_timestamp for message in received]
    assert all(later - earlier >= 1000 for earlier, later in itertools.pairwise(times))
    assert ours.stored(names.dlq_topic(group)) == []


@pytest.mark.rotating
async def test_a_message_is_a_dead_letter_after_the_last_attempt(
    ours: Ours, java_client: JavaClient, group: str
) -> None:
    dead_topic = names.dlq_topic(group)
    received = await asyncio.to_thread(
        consumed, java_client, ours.namesrv, group, 3, 99, maxReconsumeTimes=2,
        until=lambda: ours.broker.store.max_offset(dead_topic, 0),
    )  # fmt: skip
    assert [message.reconsume_times for message in received] == [0, 1, 2]

    def pull() -> Sequence[JavaReceived]:
        # The consumer asks our broker when it closes, too: not on the loop of the broker.
        with contextlib.closing(java_client.pull_consumer(ours.namesrv, group)) as consumer:
            (queue,) = consumer.queues(dead_topic)
            return consumer.pull(queue, 0).messages

    letters = await asyncio.to_thread(pull)
    # A client that gets no answer within 5 s after it sent a message back also sends a copy.
    assert letters
    for dead in letters:
        assert (dead.body, dead.reconsume_times) == (b"body", 3)
        assert dead.properties["ORIGIN_MESSAGE_ID"] == received[0].offset_msg_id
        assert dead.properties["RETRY_TOPIC"] == group


@pytest.mark.rotating
async def test_consumers_get_equal_messages_from_the_official_broker(
    ours: Ours, java_client: JavaClient, group: str, start_official: StartOfficial
) -> None:
    official = await asyncio.to_thread(start_official, "4.9.7", {"messageDelayLevel": DELAYS})
    there = await asyncio.to_thread(consumed, java_client, official.namesrv, group, 3, 2)
    here = await asyncio.to_thread(consumed, java_client, ours.namesrv, group, 3, 2)
    assert comparable(here) == comparable(there)


@pytest.mark.rotating
async def test_a_delayed_message_is_delivered_when_due(
    ours: Ours, java_client: JavaClient, group: str
) -> None:
    def run() -> list[JavaReceived]:
        messages = [JavaMessage(group, b"%d" % n, delay_level=1 + n % 8) for n in range(40)]
        with (
            contextlib.closing(java_client.producer(ours.namesrv)) as producer,
            contextlib.closing(java_client.push_consumer(ours.namesrv, group, group)) as consumer,
        ):
            producer.send(messages)
            return consumer.take(40)

    received = await asyncio.to_thread(run)
    assert sorted(int(message.body) for message in received) == list(range(40))
    assert all(message.reconsume_times == 0 for message in received)
    for message in received:
        waited_ms = message.store_timestamp - message.born_timestamp
        assert waited_ms >= 1000


# --- the same requests to both brokers --------------------------------------------------------


@pytest.mark.rotating
async def test_both_brokers_give_equal_answers(
    ours: Ours, group: str, start_official: StartOfficial
) -> None:
    """Both give the same codes and remarks for 36 and copies to retry topics, and the same ends."""
    official = await asyncio.to_thread(start_official, "4.9.7", {"messageDelayLevel": DELAYS})
    async with RemotingClient() as client:
        there = [await _replies(client, official.address, group)]
        here = [await _replies(client, ours.address, group)]
    assert here == there


async def _replies(client: RemotingClient, address: str, group: str) -> list[Any]:
    replies: list[Any] = []

    async def ask(code: int, fields: dict[str, str], body: bytes = b"", **more: Any) -> Command:
        request = Command(code, ext_fields=fields, body=body, **more)
        return await client.invoke(address, request, 10_000)

    async def send(topic: str, **more: Any) -> Command:
        version = more.pop("version", 407)
        properties = props.encode(more.pop("properties", {})).decode()
        header = SendMessageHeader(
            producer_group="P", topic=topic, default_topic="TBW102", default_topic_queue_nums=4,
            queue_id=0, sys_flag=0, born_timestamp=1_700_000_000_000, flag=0,
            properties=properties, **more,
        )  # fmt: skip
        fields = headers.encode_v2(header)
        return await ask(RequestCode.SEND_MESSAGE_V2, fields, b"body", version=version)

    async def send_back(offset: int, **more: Any) -> Command:
        version = more.pop("version", 407)
        header = SendBackHeader(**{"offset": offset, "group": group, "delay_level": 0, **more})
        return await ask(
            RequestCode.CONSUMER_SEND_MSG_BACK, headers.encode(header), version=version
        )

    async def ends() -> dict[str, int]:
        topics = {
            "retry": (f"%RETRY%{group}", 0),
            "dead": (f"%DLQ%{group}", 0),
            "delayed": (names.SCHEDULE_TOPIC, 2),
        }
        ends = {}
        for name, (topic, queue_id) in topics.items():
            fields = {"topic": topic, "queueId": str(queue_id)}
            reply = await ask(RequestCode.GET_MAX_OFFSET, fields)
            ends[name] = int((reply.ext_fields or {}).get("offset", -1))
        return ends

    def add(reply: Command) -> None:
        fields = reply.ext_fields or {}
        remark = (reply.remark or "").split("\n")[0].rstrip()
        replies.append((reply.code, remark, fields.get("queueId")))

    reply = await send(group, properties={"TAGS": "a"})
    assert reply.code == ResponseCode.SUCCESS
    offset = int((reply.ext_fields or {})["msgId"][-16:], 16)
    add(await send_back(999_999_999))
    add(await send_back(offset, delay_level=-1))
    add(await send_back(offset, max_reconsume_times=0))
    add(await send_back(offset, max_reconsume_times=0, version=120))  # delayed
    add(await send_back(offset, delay_level=3))
    add(await send(f"%RETRY%{group}", reconsume_times=2))  # in the retry topic at once
    add(await send(f"%RETRY%{group}", reconsume_times=16))
    add(await send(f"%RETRY%{group}", reconsume_times=2, max_reconsume_times=2))
    add(await send(f"%RETRY%{group}", reconsume_times=2, max_reconsume_times=2, version=120))
    add(await send(f"%RETRY%{group}-new", reconsume_times=1))
    expected = {"retry": 4, "dead": 4, "delayed": 2}
    async with asyncio.timeout(GUARD_S):
        while await ends() != expected:
            await asyncio.sleep(0.05)
    return replies
