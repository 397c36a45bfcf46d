"""Notices to brokers that their group has another master (1008).

A notice gets no answer. One that cannot be sent is tried again, as long as it is the newest of its
group; brokers also ask every 5 s.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from reput.controller import rules
from reput.controller.group import Group
from reput.errors import ReputError
from reput.format import bodies, headers
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.remoting.client import RemotingClient

ATTEMPTS = 3
RETRY_S = 1.0

_log = logging.getLogger(__name__)


class Notices:
    """Sends notices.

    Args:
        client: Connects to the brokers.
        current: Returns a group as it is, by its name.
    """

    def __init__(self, client: RemotingClient, current: Callable[[str], Group | None]) -> None:
        self._client = client
        self._current = current
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, group: Group, broker_ids: Iterable[int]) -> None:
        """Notify brokers of a group of its master."""
        for broker_id in broker_ids:
            address = group.address(broker_id)
            if address is not None:
                task = asyncio.get_running_loop().create_task(self._send(group, address))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Send no more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _send(self, group: Group, address: str) -> None:
        problem = None
        for _ in range(ATTEMPTS):
            current = self._current(group.broker_name)
            if current is None or current.master_epoch != group.master_epoch:
                return
            try:
                await self._client.send_oneway(address, _notice(group))
            except ReputError as error:
                problem = error
                await asyncio.sleep(RETRY_S)
            else:
                return
        text = "%s was not notified that broker %s is the master of %.300r: %s"
        _log.warning(text, address, group.master_id, group.broker_name, problem)


def _notice(group: Group) -> Command:
    return Command(
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        ext_fields=headers.encode(rules.master_header(group)),
        body=bodies.encode(rules.in_sync_body(group)),
    )
