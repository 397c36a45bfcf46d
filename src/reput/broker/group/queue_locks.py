"""Locks of queues for ordered consumption: one client of a group at a time. Only in memory.

Times are monotonic ms: setting the clock must neither release all locks nor keep those of dead
clients.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from reput.broker import limits, quotas
from reput.broker.quotas import OWN, AddressQuota
from reput.format.bodies import MessageQueue

EXPIRED_AT_ONCE = 10_000
"""Maximum number of locks that one call of ``expire`` removes."""


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int
    address: str


class QueueLocks:
    """Locks of queues, by group.

    Args:
        live_ms: Time after which a lock that is not renewed is free, in ms.
        locks_max: Largest number of locks.
    """

    def __init__(self, live_ms: int, locks_max: int = limits.LOCKS.maximum) -> None:
        self.locks_max = locks_max
        self._live_ms = live_ms
        self._locks: OrderedDict[tuple[str, MessageQueue], _Lock] = OrderedDict()
        """Locks from the least to the most recently renewed one."""
        self._counts: Counter[str] = Counter()
        """Group -> number of locks."""
        self._by_address = AddressQuota()

    def __len__(self) -> int:
        """Return the number of locks, including expired ones."""
        return len(self._locks)

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Collection[MessageQueue],
        monotonic_ms: int,
        address: str = OWN,
    ) -> list[MessageQueue]:
        """Lock queues or renew their locks; return the queues that the client has locked.

        Args:
            group: Group of the client.
            client_id: The client.
            queues: Queues to lock.
            monotonic_ms: The time.
            address: Address of the client: the locks of an address are limited.

        Raises:
            LimitExceeded: There would be too many locks; no lock has changed.
        """
        self._check_room(group, queues, monotonic_ms, address)
        locked = []
        for queue in queues:
            key = group, queue
            held = self._locks.get(key)
            is_free = held is None or monotonic_ms - held.renewed_ms > self._live_ms
            if is_free or (held is not None and held.client_id == client_id):
                if held is not None:
                    self._forget(key, held)
                self._locks[key] = _Lock(client_id, monotonic_ms, address)
                self._counts[group] += 1
                self._by_address.add(address)
                locked.append(queue)
        return locked

    def _check_room(
        self, group: str, queues: Collection[MessageQueue], monotonic_ms: int, address: str
    ) -> None:
        new_count = sum((group, queue) not in self._locks for queue in queues)
        if not new_count:
            return
        if len(self._locks) + new_count > self.locks_max:
            self.expire(monotonic_ms)
        if len(self._locks) + new_count > self.locks_max:
            raise quotas.exceeded(limits.LOCKS, self.locks_max)
        limits.LOCKS_PER_GROUP.check(self._counts[group] + new_count, group)
        maximum = limits.LOCKS_PER_ADDRESS.maximum
        self._by_address.check(address, limits.LOCKS_PER_ADDRESS, maximum, new_count)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release locks of this client."""
        for queue in queues:
            held = self._locks.get((group, queue))
            if held is not None and held.client_id == client_id:
                self._forget((group, queue), held)

    def expire(self, monotonic_ms: int) -> None:
        """Remove expired locks, a bounded number."""
        for _ in range(EXPIRED_AT_ONCE):
            key, held = next(iter(self._locks.items()), (None, None))
            if key is None or held is None or monotonic_ms - held.renewed_ms <= self._live_ms:
                return
            self._forget(key, held)

    def _forget(self, key: tuple[str, MessageQueue], held: _Lock) -> None:
        del self._locks[key]
        self._by_address.release(held.address)
        self._counts[key[0]] -= 1
        if not self._counts[key[0]]:
            del self._counts[key[0]]
