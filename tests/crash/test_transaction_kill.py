"""kill -9 of our broker in the middle of transactions, repeatedly, on one folder.

With SYNC_FLUSH every acknowledged half message ends as its producer decides: a committed one is
delivered at least once, a rolled back one never. This holds also if the broker was killed before it
received the decision, and must ask for it.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import seeds
from reput.client import (
    ClientConfig,
    Message,
    ProducerConfig,
    PullConsumer,
    ReceivedMessage,
    SendResult,
    TransactionProducer,
    TransactionState,
)
from reput.errors import RemotingError
from reput_cluster import ReputCluster

pytestmark = [pytest.mark.crash, pytest.mark.slow]

IS_SOAK = hypothesis.settings.default.max_examples > 100
ROUND_COUNT = 12 if IS_SOAK else 2
TASK_COUNT = 16
DECIDED_MAX = 400
"""Limit of transactions that are decided in a round before the kill."""
GUARD_S = 60
TOPIC = "Killed"
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": 1 << 20,
    "maxMessageSize": 500_000,
    "transactionTimeOut": 300,
    "transactionCheckInterval": 300,
    "transactionCheckMax": 1000,
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReputCluster]:
    with ReputCluster(tmp_path / "cluster", SETTINGS) as running:
        yield running


class Minds:
    """The outcome of each local transaction, by the body of its message."""

    def __init__(self, seed: int) -> None:
        self._chance = seeds.random("minds", seed)
        self.states: dict[bytes, TransactionState] = {}

    def execute(self, message: Message, half: SendResult) -> TransactionState:
        states = (TransactionState.COMMIT, TransactionState.ROLLBACK)
        state = self.states[message.body] = self._chance.choice(states)
        return TransactionState.UNKNOWN if self._chance.random() < 0.3 else state

    async def check(self, message: ReceivedMessage) -> TransactionState:
        # A half message whose reply was lost has no local transaction: it never ran.
        return self.states.get(message.body, TransactionState.ROLLBACK)

    def committed(self) -> set[bytes]:
        return {body for body, state in self.states.items() if state is TransactionState.COMMIT}


async def send_until_killed(
    producer: TransactionProducer, cluster: ReputCluster, minds: Minds, seed: int
) -> None:
    chance = seeds.random("transaction kill", seed)
    life = chance.randrange(1, DECIDED_MAX)
    tried = decided = 0

    async def execute(message: Message, half: SendResult) -> TransactionState:
        return minds.execute(message, half)

    async def send() -> None:
        nonlocal tried, decided
        while cluster.is_broker_running:
            tried += 1
            body = f"{seed} {tried} ".encode().ljust(chance.randrange(10, 900), b"x")
            try:
                await producer.send_in_transaction(Message(TOPIC, body), execute)
            except RemotingError:
                return
            decided += 1
            if decided == life:
                os.kill(cluster.broker_pid, signal.SIGKILL)

    async with asyncio.timeout(GUARD_S):
        await asyncio.gather(*(send() for _ in range(TASK_COUNT)))


async def delivered(cluster: ReputCluster) -> set[bytes]:
    bodies: set[bytes] = set()
    async with PullConsumer("readers", namesrv=cluster.namesrv) as consumer:
        queues = await consumer.queues(TOPIC)
        await consumer.assign(queues)
        ends = {queue: await consumer.end_offset(queue) for queue in queues}
        count = 0
        for queue in queues:
            await consumer.seek_to_begin(queue)
        async with asyncio.timeout(GUARD_S):
            while count < sum(ends.values()):
                messages = await consumer.poll(1000)
                count += len(messages)
                bodies |= {message.body for message in messages}
    return bodies


async def test_every_transaction_ends_as_its_producer_decides(cluster: ReputCluster) -> None:
    minds = Minds(0)
    client = ClientConfig(namesrv_addr=cluster.namesrv, poll_name_server_ms=200, heartbeat_ms=200)
    once = ProducerConfig(retry_times_when_send_failed=0)
    async with TransactionProducer(
        "producers", check=minds.check, client=client, config=once
    ) as producer:
        for seed in range(ROUND_COUNT):
            await send_until_killed(producer, cluster, minds, seed)
            await asyncio.to_thread(cluster.kill_broker)
            await asyncio.to_thread(cluster.start)
        async with asyncio.timeout(GUARD_S):
            while not (bodies := await delivered(cluster)) >= minds.committed():
                await asyncio.sleep(0.1)
    assert len(minds.states) > ROUND_COUNT
    assert bodies == minds.committed()
    assert cluster.is_broker_running
