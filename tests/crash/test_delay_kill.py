"""kill -9 of our broker while messages wait and are delivered: none is lost, none is early."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import seeds
from interop import wire
from reput.client.config import ProducerConfig
from reput.client.message import Message
from reput.client.producer import Producer
from reput.clock import SystemClock
from reput.errors import RemotingError
from reput.format.codes import ResponseCode
from reput.format.message import StoredMessage
from reput_cluster import ReputCluster
from world import messages_in

pytestmark = [pytest.mark.crash, pytest.mark.slow]

IS_SOAK = hypothesis.settings.default.max_examples > 100
ROUND_COUNT = 15 if IS_SOAK else 2
TASK_COUNT = 8
SENT_MAX = 400
"""Limit of messages that are acknowledged in a round before the kill."""
TOPIC = "Waiting"
QUEUES = 4
LEVEL_MS = (1000, 2000)
CLOCK = SystemClock()
LOOKS, PAUSE_S = 300, 0.1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReputCluster]:
    settings = {
        "flushDiskType": "SYNC_FLUSH",
        "mappedFileSizeCommitLog": 1 << 20,
        "maxMessageSize": 500_000,
        "messageDelayLevel": "1s 2s",
        "timerPrecisionMs": 100,
        "flushDelayOffsetInterval": 200,
    }
    with ReputCluster(tmp_path / "cluster", settings) as running:
        yield running


async def send_until_killed(
    producer: Producer, cluster: ReputCluster, number: int
) -> dict[bytes, int]:
    """Send delayed messages until some are acknowledged, kill; return body -> due time in ms."""
    chance = seeds.random("delay kill", number)
    life = chance.randrange(50, SENT_MAX)
    acknowledged: dict[bytes, int] = {}
    tried = 0

    async def send() -> None:
        nonlocal tried
        while cluster.is_broker_running:
            tried += 1
            body = f"{number} {tried}".encode()
            now_ms = CLOCK.now_ms()
            if chance.random() < 0.5:
                level = chance.choice((1, 2))
                due_ms = now_ms + LEVEL_MS[level - 1]
                message = Message(TOPIC, body, delay_level=level)
            else:
                due_ms = now_ms + chance.randrange(100, 2_500)
                message = Message(TOPIC, body, deliver_at_ms=due_ms)
            try:
                await producer.send(message)
            except RemotingError:
                return  # The message may or may not be stored.
            acknowledged[body] = due_ms
            if len(acknowledged) >= life and cluster.is_broker_running:
                cluster.kill_broker()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(TASK_COUNT):
            tasks.create_task(send())
    return acknowledged


async def all_messages(broker: wire.Remote) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    for queue_id in range(QUEUES):
        queue_offset = 0
        while True:
            reply = await broker.pull(TOPIC, queue_id, queue_offset)
            if reply.code != ResponseCode.SUCCESS:
                break
            messages += messages_in(reply.body)
            queue_offset = messages[-1].queue_offset + 1
    return messages


async def test_acknowledged_messages_are_delivered_and_none_is_early(cluster: ReputCluster) -> None:
    once = ProducerConfig(retry_times_when_send_failed=0)
    due: dict[bytes, int] = {}
    for number in range(ROUND_COUNT):
        async with Producer("waiting", namesrv=cluster.namesrv, config=once) as producer:
            due |= await send_until_killed(producer, cluster, number)
        await asyncio.to_thread(cluster.start)
    assert len(due) > 50
    async with wire.connected(cluster.address) as broker:
        messages: list[StoredMessage] = []
        for _ in range(LOOKS):
            messages = await all_messages(broker)
            if due.keys() <= {message.body for message in messages}:
                break
            await asyncio.sleep(PAUSE_S)
    assert due.keys() <= {message.body for message in messages}
    for message in messages:
        assert message.store_timestamp >= due.get(message.body, 0), message.body
