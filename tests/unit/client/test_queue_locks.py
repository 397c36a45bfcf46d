"""Queue locks are released, also when a request is cancelled or in flight."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from reput.client.config import ClientConfig
from reput.client.core import requests
from reput.client.instance import ClientInstance, Guest
from reput.client.queue_locks import QueueLocks
from reput.format import bodies, command
from reput.format.bodies import LockBody, LockReply, MessageQueue
from reput.format.codes import RequestCode
from reput.format.command import Command
from scripted_cluster import ScriptedCluster

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(3)]
LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


def grant(request: Command) -> Command:
    """Lock all queues but number 2."""
    asked = bodies.decode(LockBody, request.body)
    ok = [queue for queue in asked.mq_set if queue.queue_id != 2]
    return command.reply(request, body=bodies.encode(LockReply(lock_ok_mq_set=ok)))


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster({"T": {"broker-a": 3}}) as scripted:
        scripted.broker.answers[LOCK] = grant
        scripted.broker.answers[UNLOCK] = command.reply
        yield scripted


@pytest.fixture
async def instance(cluster: ScriptedCluster) -> AsyncIterator[ClientInstance]:
    member = Guest()
    joined = await ClientInstance.join(ClientConfig(namesrv_addr=cluster.namesrv), member)
    yield joined
    await joined.leave(member)


def unlocked(cluster: ScriptedCluster) -> list[set[MessageQueue]]:
    asked = [bodies.decode(LockBody, request.body) for request in cluster.broker.asked(UNLOCK)]
    assert all(body.consumer_group == "G" for body in asked)
    return [set(body.mq_set) for body in asked]


async def test_held_locks_are_released(cluster: ScriptedCluster, instance: ClientInstance) -> None:
    locks = QueueLocks(instance, "G")
    assert await locks.lock(QUEUES) == set(QUEUES[:2])
    await locks.unlock(QUEUES[:1])
    await locks.unlock_all()
    await locks.unlock_all()
    assert unlocked(cluster) == [{QUEUES[0]}, {QUEUES[1]}]


async def test_locks_of_a_cancelled_request_are_released(
    cluster: ScriptedCluster, instance: ClientInstance
) -> None:
    cluster.broker.answers[LOCK] = lambda _: None
    locks = QueueLocks(instance, "G")
    asking = asyncio.create_task(locks.lock(QUEUES))
    await cluster.broker.until_asked(LOCK)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await locks.unlock_all()
    assert unlocked(cluster) == [set(QUEUES)]


async def test_a_lock_under_renewal_is_released_afterwards(
    cluster: ScriptedCluster, instance: ClientInstance
) -> None:
    cluster.broker.answers[LOCK] = lambda _: None
    locks = QueueLocks(instance, "G")
    asking = asyncio.create_task(locks.lock(QUEUES))
    (held,) = await cluster.broker.until_asked(LOCK)
    giving_back = asyncio.create_task(locks.unlock(QUEUES))
    await instance.ask(cluster.broker.address, requests.heartbeat(b"{}"))
    assert unlocked(cluster) == []
    cluster.broker.channels[0].answer(held, grant(held))
    assert await asking == set(QUEUES[:2])
    await giving_back
    assert unlocked(cluster) == [set(QUEUES)]
