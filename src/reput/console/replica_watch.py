"""The replica groups of the cluster's controllers, as pages show them.

They are asked when a page wants them, at most once at a time. A dead broker answers late, so a page
waits for the answers only until the deadline of pages, and shows the last ones with their age.
"""

import asyncio
from collections.abc import Sequence

from reput.client.admin import Admin, ReplicaGroups
from reput.clock import Clock
from reput.console.sources.live import DEADLINE_S
from reput.errors import ReputError

FRESH_MS = 1_000
"""Age up to which answers are shown without asking again."""


class ReplicaWatch:
    """Asks for the replica groups.

    Args:
        admin: A client that has been started.
        controllers: Addresses of controllers; empty: those in the settings of the brokers.
        clock: The clock.
    """

    def __init__(self, admin: Admin, controllers: Sequence[str], clock: Clock) -> None:
        self._admin = admin
        self._controllers = controllers
        self._clock = clock
        self._asking: asyncio.Task[None] | None = None
        self.groups = ReplicaGroups()
        """The last answers."""
        self.asked_ms = 0
        """Time of the last answers, ms since 1970; 0 before the first ones."""
        self.problem = ""
        """Why the last question has no answers."""

    async def refresh(self) -> None:
        """Ask again, and wait for the answers until the deadline."""
        if self._clock.now_ms() - self.asked_ms <= FRESH_MS:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="replica groups")
        await asyncio.wait({self._asking}, timeout=DEADLINE_S)

    async def _ask(self) -> None:
        try:
            self.groups = await self._admin.replica_groups(controllers=self._controllers)
        except ReputError as error:
            self.problem = str(error)
        else:
            self.problem, self.asked_ms = "", self._clock.now_ms()
