"""Locks of queues, kept by brokers for the members of an orderly consumer group.

Source: rocketmq 4.9.8 ``RebalanceImpl.lock``, ``lockAll``, ``unlock``.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable

from reput.client.core import requests
from reput.client.instance import ClientInstance
from reput.client.membership import Problem
from reput.format import bodies
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode
from reput.format.command import Command

log = logging.getLogger(__name__)


class QueueLocks:
    """The locks of one member of a group.

    A broker may handle two concurrent requests in any order, so that a renewal could survive a
    release. Therefore each broker has at most one request in flight.

    Args:
        instance: Client instance for requests; locks belong to its client id.
        group: The consumer group, by its full name.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._asked_for: set[MessageQueue] = set()  # and not released
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock queues; return all that the brokers hold for this client.

        Failures are logged.
        """
        locked: set[MessageQueue] = set()

        async def lock_at(address: str, some: list[MessageQueue]) -> None:
            request = requests.make(RequestCode.LOCK_BATCH_MQ, body=self._body(some))
            async with self._turns[address]:
                self._asked_for.update(some)
                try:
                    reply = await self._instance.ask(address, request)
                    ok = bodies.decode(bodies.LockReply, reply.body).lock_ok_mq_set
                except Problem as error:
                    text = "group %s cannot lock queues of %s"
                    self._instance.outages.warn(log, error, text, self._group, address)
                    return
                locked.update(ok)
                self._asked_for.difference_update(set(some).difference(ok))

        by_master = await self._by_master(queues)
        await asyncio.gather(*(lock_at(address, some) for address, some in by_master.items()))
        return locked

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release queues. Failures are logged: brokers drop locks after a minute."""

        async def unlock_at(address: str, some: list[MessageQueue]) -> None:
            async with self._turns[address]:
                self._asked_for.difference_update(some)
                try:
                    await self._instance.ask(address, self._unlock_request(some))
                except Problem as error:
                    text = "group %s cannot unlock queues of %s"
                    self._instance.outages.warn(log, error, text, self._group, address)

        by_master = await self._by_master(queues)
        await asyncio.gather(*(unlock_at(address, some) for address, some in by_master.items()))

    async def unlock_all(self) -> None:
        """Release all locks that brokers may hold, including requests in flight."""
        await self.unlock(list(self._asked_for))

    def _unlock_request(self, queues: list[MessageQueue]) -> Command:
        return requests.make(RequestCode.UNLOCK_BATCH_MQ, body=self._body(queues))

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return bodies.encode(
            bodies.LockBody(
                client_id=self._instance.client_id, consumer_group=self._group, mq_set=queues
            )
        )

    async def _by_master(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        by_master: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            try:
                route = await self._instance.route(queue.topic)
                by_master.setdefault(route.master(queue.broker_name), []).append(queue)
            except Problem as error:
                text = "group %s cannot lock or unlock %s"
                self._instance.outages.warn(log, error, text, self._group, queue)
        return by_master
