"""kill -9 of our broker while a group pops: no message is lost, and acknowledged ones stay so.

Under SYNC_FLUSH a kill loses only data in memory: acks of the last second, offsets of the last
seconds. These messages are delivered once more.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import hypothesis
import pytest

import pop_client
import seeds
from pop_client import PoppedMessage
from reput.errors import RemotingError
from reput.format import headers
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import Header
from reput.remoting.client import RemotingClient
from reput_cluster import ReputCluster
from world import send_header

pytestmark = [pytest.mark.crash, pytest.mark.slow]

ROUND_COUNT = 10 if hypothesis.settings.default.max_examples > 100 else 2
MEMBER_COUNT = 3
INVISIBLE_MS = 1_500
TOPIC, GROUP = "Popped", "members"
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "flushConsumerOffsetInterval": 200,
    "defaultTopicQueueNums": 4,
}


@dataclass
class Wire:
    """A connection to a broker of another process."""

    address: str
    client: RemotingClient = field(default_factory=RemotingClient)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        fields = headers.encode(header) if header is not None else None
        return await self.client.invoke(
            self.address, Command(code, ext_fields=fields, body=body), 20_000
        )

    async def send(self, body: bytes, queue_id: int) -> bool:
        header = send_header(TOPIC, queue_id)
        reply = await self.client.invoke(
            self.address,
            Command(RequestCode.SEND_MESSAGE_V2, ext_fields=headers.encode_v2(header), body=body),
            20_000,
        )
        return reply.code == ResponseCode.SUCCESS

    async def pop(self) -> list[PoppedMessage]:
        return await pop_client.pop(
            self, TOPIC, GROUP, invisible_time=INVISIBLE_MS, max_msg_nums=8, poll_time=500
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReputCluster]:
    with ReputCluster(tmp_path / "cluster", SETTINGS) as running:
        yield running


async def work(
    cluster: ReputCluster, seed: int, sent: set[bytes], acked: Counter[bytes], life: int
) -> None:
    """Send, pop and acknowledge until the broker is killed."""
    chance = seeds.random("pop kill", seed)

    async def produce() -> None:
        async with Wire(cluster.address) as wire:
            for number in range(100_000):
                body = b"%d-%d" % (seed, number)
                if await wire.send(body, number % 4):
                    sent.add(body)

    async def consume(member: int) -> None:
        async with Wire(cluster.address) as wire:
            while True:
                for message in await wire.pop():
                    choice = chance.random()
                    if choice < 0.8:
                        reply = await pop_client.ack(wire, message)
                        acked[message.body] += reply.code == ResponseCode.SUCCESS
                    elif choice < 0.9:
                        await pop_client.change(wire, message, 500)
                    if acked.total() >= life:
                        os.kill(cluster.broker_pid, signal.SIGKILL)

    results = await asyncio.gather(
        produce(), *(consume(message) for message in range(MEMBER_COUNT)), return_exceptions=True
    )
    assert all(isinstance(message, RemotingError) for message in results), results


async def test_no_message_is_lost_and_acks_last(cluster: ReputCluster) -> None:
    sent: set[bytes] = set()
    acked: Counter[bytes] = Counter()
    chance = seeds.random("pop kill")
    async with asyncio.timeout(120):
        for round_number in range(ROUND_COUNT):
            life = acked.total() + chance.randrange(50, 400)
            await work(cluster, round_number, sent, acked, life)
            cluster.kill_broker()
            cluster.start()
        async with Wire(cluster.address) as wire:
            while sent - acked.keys():
                for message in await wire.pop():
                    assert (await pop_client.ack(wire, message)).code == ResponseCode.SUCCESS
                    acked[message.body] += 1
            # The rest is from the last moments before a kill; then none arrives any more.
            clock = asyncio.get_running_loop().time
            quiet_since = clock()
            while clock() - quiet_since < 2 * INVISIBLE_MS / 1000 + 3:
                for message in await wire.pop():
                    await pop_client.ack(wire, message)
                    quiet_since = clock()
        cluster.stop_broker()
        cluster.start()
        async with Wire(cluster.address) as wire:
            assert await wire.pop() == []
    assert len(sent) > 50
