"""Locks are given back, and none stays because two requests crossed."""

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
    """Lock all but queue 2."""
    asked = bodies.decode(LockBody, request.body)
    ok = [one for one in asked.mq_set if one.queue_id != 2]
    return command.reply(request, body=bodies.encode(LockReply(lock_ok_mq_set=ok)))


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster({"T": {"broker-a": 3}}) as one:
        one.broker.answers[LOCK] = grant
        one.broker.answers[UNLOCK] = command.reply
        yield one


@pytest.fixture
async def instance(cluster: ScriptedCluster) -> AsyncIterator[ClientInstance]:
    member = Guest()
    one = await ClientInstance.join(ClientConfig(namesrv_addr=cluster.namesrv), member)
    yield one
    await one.leave(member)


def unlocked(cluster: ScriptedCluster) -> list[set[MessageQueue]]:
    asked = [bodies.decode(LockBody, one.body) for one in cluster.broker.asked(UNLOCK)]
    assert all(one.consumer_group == "G" for one in asked)
    return [set(one.mq_set) for one in asked]


async def test_what_was_locked_is_given_back(
    cluster: ScriptedCluster, instance: ClientInstance
) -> None:
    locks = QueueLocks(instance, "G")
    assert await locks.lock(QUEUES) == set(QUEUES[:2])
    await locks.unlock(QUEUES[:1])
    await locks.unlock_all()
    await locks.unlock_all()
    assert unlocked(cluster) == [{QUEUES[0]}, {QUEUES[1]}]


async def test_what_nobody_waited_for_is_given_back_too(
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


async def test_a_lock_that_is_being_renewed_is_given_back_after_that(
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
