"""kill -9 of our broker while messages wait and are delivered: none is lost, none is early."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from broker_subject import messages_in
from interop import wire
from reput.client.config import ProducerConfig
from reput.client.message import Message
from reput.client.producer import Producer
from reput.clock import SystemClock
from reput.errors import RemotingError
from reput.format.codes import ResponseCode
from reput.format.message import StoredMessage
from reput_cluster import ReputCluster

pytestmark = [pytest.mark.crash, pytest.mark.slow]

IS_SOAK = hypothesis.settings.default.max_examples > 100
ROUND_COUNT = 15 if IS_SOAK else 2
TASK_COUNT = 8
SENT_MAX = 400
"""At most so many are acknowledged in a round before the kill."""
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
    """Send what waits until some are acknowledged, kill; return body -> when it may come, ms."""
    chance = random.Random(number)
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
                return  # it may be there, or not
            acknowledged[body] = due_ms
            if len(acknowledged) >= life and cluster.is_broker_running:
                cluster.kill_broker()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(TASK_COUNT):
            tasks.create_task(send())
    return acknowledged


async def all_messages(broker: wire.Remote) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    for queue_id in range(QUEUES):
        at = 0
        while True:
            reply = await broker.pull(TOPIC, queue_id, at)
            if reply.code != ResponseCode.SUCCESS:
                break
            found += messages_in(reply.body)
            at = found[-1].queue_offset + 1
    return found


async def test_what_was_acknowledged_comes_and_nothing_is_early(cluster: ReputCluster) -> None:
    once = ProducerConfig(retry_times_when_send_failed=0)
    due: dict[bytes, int] = {}
    for number in range(ROUND_COUNT):
        async with Producer("waiting", namesrv=cluster.namesrv, config=once) as producer:
            due |= await send_until_killed(producer, cluster, number)
        await asyncio.to_thread(cluster.start)
    assert len(due) > 50
    async with wire.connected(cluster.address) as broker:
        found: list[StoredMessage] = []
        for _ in range(LOOKS):
            found = await all_messages(broker)
            if due.keys() <= {one.body for one in found}:
                break
            await asyncio.sleep(PAUSE_S)
    assert due.keys() <= {one.body for one in found}
    for one in found:
        assert one.store_timestamp >= due.get(one.body, 0), one.body
