"""Locks of queues, that brokers keep for the members of an orderly consumer group.

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

    A broker that is asked twice at once may answer in any order: a lock that is renewed while it is
    given back would stay. So each broker is asked for one thing after the other.

    Args:
        instance: Whom brokers are asked through; its client id is whose locks they are.
        group: The consumer group, by its full name.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._asked_for: set[MessageQueue] = set()  # and not given back: brokers may hold them
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Return those queues that the brokers lock for this client, or have locked before.

        What fails is logged.
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
                    text = "group %s cannot lock queues of %s: %s"
                    log.warning(text, self._group, address, error)
                    return
                locked.update(ok)
                self._asked_for.difference_update(set(some).difference(ok))

        by_master = await self._by_master(queues)
        await asyncio.gather(*(lock_at(address, some) for address, some in by_master.items()))
        return locked

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Let others lock queues. What fails is logged: brokers forget it after a minute."""

        async def unlock_at(address: str, some: list[MessageQueue]) -> None:
            async with self._turns[address]:
                self._asked_for.difference_update(some)
                try:
                    await self._instance.ask(address, self._unlock_request(some))
                except Problem as error:
                    text = "group %s cannot unlock queues of %s: %s"
                    log.warning(text, self._group, address, error)

        by_master = await self._by_master(queues)
        await asyncio.gather(*(unlock_at(address, some) for address, some in by_master.items()))

    async def unlock_all(self) -> None:
        """Give back whatever brokers may hold, also where nobody has waited for their answer."""
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
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            try:
                route = await self._instance.route(queue.topic)
                found.setdefault(route.master(queue.broker_name), []).append(queue)
            except Problem as error:
                text = "group %s cannot lock or unlock %s: %s"
                log.warning(text, self._group, queue, error)
        return found
