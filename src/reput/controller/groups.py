"""All groups, as the quorum store has them: decisions are made one after another for each group.

decide on the current group -> changed? compare-and-set, durable -> answer
                               another leader was first: read, decide again
"""

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from reput.controller import group as codec
from reput.controller.group import Group
from reput.controller.quorum import Conflict, QuorumStore, StoredValue
from reput.controller.rules import Decision
from reput.errors import ReputError
from reput.limits import Limit

_ATTEMPTS_MAX = 10

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
        self._is_outdated = False
        self.change_count = 0
        """Number of changes that were made durable."""
        self.failure = ""
        """Error of the latest change; empty if it succeeded."""

    async def lead(self) -> None:
        """Become the leader, and read all groups.

        Raises:
            CorruptRecord: A value is no group.
            ReputError: The store cannot be used.
        """
        self._fence = await self._store.lead()
        await self._read()

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
            ReputError: The change is perhaps not durable; its answer must not be sent.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):
            return await self._change(name, decide)

    async def _change(self, name: str, decide: Decide) -> tuple[Group | None, Decision]:
        for attempt in range(_ATTEMPTS_MAX):
            if self._is_outdated:
                await self._read()
            group, revision = self._entries.get(name, (None, 0))
            decision = decide(group)
            if decision.group is group:
                return group, decision
            if group is None:
                self._limit.check(len(self._entries) + 1)
            value = None if decision.group is None else codec.encode(decision.group)
            try:
                changed = await self._store.compare_and_set(
                    name, value, revision=revision, fence=self._fence
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
            self._take(name, decision.group, changed)
            self.change_count += 1
            self.failure = ""
            return group, decision
        raise AssertionError("the last attempt returns or raises")

    def _take(self, name: str, group: Group | None, revision: int) -> None:
        if group is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = group, revision

    async def _read(self) -> None:
        """Read all groups. Raises ``ReputError``."""
        entries: dict[str, StoredValue] = await self._store.read()
        self._entries = {
            name: (codec.decode(entry.value), entry.revision) for name, entry in entries.items()
        }
        self._is_outdated = False
