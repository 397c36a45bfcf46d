"""Who consumes a queue in order: one client of a group at a time. In memory only.

Times are monotonic ms: a clock that is set must neither free all locks nor keep those of the dead.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from reput.format.bodies import MessageQueue


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int


class QueueLocks:
    """Locks of queues, by group.

    Args:
        live_ms: A lock that is not renewed for so long is free.
    """

    def __init__(self, live_ms: int) -> None:
        self._live_ms = live_ms
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], monotonic_ms: int
    ) -> list[MessageQueue]:
        """Lock queues, or renew their locks; return those that the client has now."""
        locks = self._locks.setdefault(group, {})
        got = []
        for queue in queues:
            held = locks.get(queue)
            is_free = held is None or monotonic_ms - held.renewed_ms > self._live_ms
            if is_free or (held is not None and held.client_id == client_id):
                locks[queue] = _Lock(client_id, monotonic_ms)
                got.append(queue)
        return got

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give locks back; those of others stay."""
        locks = self._locks.get(group, {})
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                del locks[queue]

    def expire(self, monotonic_ms: int) -> None:
        """Forget locks that are free."""
        for group, locks in list(self._locks.items()):
            for queue, held in list(locks.items()):
                if monotonic_ms - held.renewed_ms > self._live_ms:
                    del locks[queue]
            if not locks:
                del self._locks[group]
