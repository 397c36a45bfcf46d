"""All groups, as the quorum store has them: decisions are made one after another for each group.

decide on the current group -> changed? compare-and-set, durable -> answer
                               another leader was first: read, decide again
"""

import asyncio
import logging
from collections.abc import Callable
from weakref import WeakValueDictionary

from reput.controller import group as codec
from reput.controller.group import Group
from reput.controller.quorum import Conflict, Deposed, QuorumStore, StoredValue
from reput.controller.rules import Decision
from reput.errors import ReputError
from reput.limits import Limit

_ATTEMPTS_MAX = 10
REFRESH_S = 1.0
"""Least time between two refreshes."""

_log = logging.getLogger(__name__)

Decide = Callable[[Group | None], Decision]
"""Decides on the current group; called again if the group has changed meanwhile."""


class Groups:
    """The groups of a controller, as far as it leads.

    Args:
        store: Keeps them.
        limit: The number of groups.
    """

    def __init__(self, store: QuorumStore, limit: Limit) -> None:
        self._store = store
        self._limit = limit
        self._fence = 0
        self._entries: dict[str, tuple[Group, int]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reading = asyncio.Lock()
        self._is_outdated = False
        self._refreshing: asyncio.Task[None] | None = None
        self.change_count = 0
        """Number of changes that were made durable."""
        self.failure = ""
        """Error of the latest change; empty if it succeeded."""

    @property
    def is_leading(self) -> bool:
        """True if the groups are certainly the current ones, and may be changed here."""
        return self._store.leads(self._fence)

    @property
    def has_led(self) -> bool:
        """True from the time at which it became the leader until it steps down."""
        return self._fence != 0

    async def lead(self) -> None:
        """Become the leader, and read all groups.

        Raises:
            CorruptRecord: A value is no group.
            ReputError: The store cannot be used.
        """
        self._fence = 0
        fence = await self._store.lead()
        self._is_outdated = True
        await self._read()
        self._fence = fence

    async def until_deposed(self) -> None:
        """Wait until another controller may lead permanently."""
        await self._store.until_deposed(self._fence)

    def step_down(self) -> None:
        """Lead no more."""
        self._fence = 0

    def refresh(self) -> None:
        """Read all groups soon, as a controller that does not lead has unknown ones."""
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())

    async def close(self) -> None:
        """Read no more."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait((self._refreshing,))

    def get(self, name: str) -> Group | None:
        """Return a group."""
        entry = self._entries.get(name)
        return None if entry is None else entry[0]

    def all(self) -> list[Group]:
        """Return all groups, sorted by name."""
        return [self._entries[name][0] for name in sorted(self._entries)]

    async def change(self, name: str, decide: Decide) -> tuple[Group | None, Decision]:
        """Decide on a group, after all decisions on it that were begun before.

        Returns:
            The group before, and the decision. The change is durable.

        Raises:
            LimitExceeded: There are too many groups.
            Deposed: This controller does not lead.
            ReputError: The change is perhaps not durable; its answer must not be sent.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):
            return await self._change(name, decide)

    async def _change(self, name: str, decide: Decide) -> tuple[Group | None, Decision]:
        for attempt in range(_ATTEMPTS_MAX):
            await self._read()
            group, revision = self._entries.get(name, (None, 0))
            fence = self._fence
            decision = decide(group)
            if not self.is_leading:
                raise Deposed("The controller is not in leader state")
            if decision.group is group:
                return group, decision
            if group is None:
                self._limit.check(len(self._entries) + 1)
            value = None if decision.group is None else codec.encode(decision.group)
            try:
                changed = await self._store.compare_and_set(
                    name, value, revision=revision, fence=fence
                )
            except Conflict as error:
                self._is_outdated = True
                if attempt + 1 == _ATTEMPTS_MAX:
                    raise
                self.failure = str(error)
                continue
            except ReputError as error:
                self._is_outdated = True
                self.failure = str(error)
                raise
            self.change_count += 1
            if fence == self._fence:
                self._take(name, decision.group, changed)
            else:
                self._is_outdated = True  # others may have changed it since
            self.failure = ""
            return group, decision
        raise AssertionError("the last attempt returns or raises")

    def _take(self, name: str, group: Group | None, revision: int) -> None:
        if group is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = group, revision

    async def _refresh(self) -> None:
        self._is_outdated = True
        try:
            await self._read()
        except ReputError as error:
            _log.warning("groups cannot be read: %s", error)
        await asyncio.sleep(REFRESH_S)
        self._refreshing = None

    async def _read(self) -> None:
        """Read all groups if they may be outdated. Raises ``ReputError``."""
        if not self._is_outdated:
            return
        async with self._reading:
            try:
                while self._is_outdated:
                    count, self._is_outdated = self.change_count, False
                    entries: dict[str, StoredValue] = await self._store.read()
                    if count != self.change_count:
                        self._is_outdated = True  # the values are perhaps older than the change
                        continue
                    self._entries = {
                        name: (codec.decode(entry.value), entry.revision)
                        for name, entry in entries.items()
                    }
            except BaseException:
                self._is_outdated = True
                raise
