"""Keeps the in-sync set of a master true: asks the controller to add and to remove slaves.

    a slave has nearly everything -> claimed: from now on it must have each message, too
    it has all that was there     -> the controller is asked to add it (1001)
    a member is gone, or lags     -> the controller is asked to remove it; until it has answered,
                                     messages are acknowledged only if the member has them

A request whose outcome is unknown may still be granted: what it wanted stays claimed until the
controller names a newer set, or has answered much later requests.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from reput.broker.replicas.controllers import RefusedByController
from reput.broker.replicas.member import Mastership, Member
from reput.clock import Clock
from reput.errors import ReputError
from reput.store.log.in_sync_set import InSyncSet
from reput.store.log.replica_acks import Replica, ReplicaAcks

CHECK_MS = 100
"""Interval of the checks, in ms."""
GONE_MS = 1_000
"""Time after which a slave that is not connected is removed, in ms."""
RETRY_MS = 1_000
"""Delay after a request that was refused or not answered, in ms."""
CLAIM_MS = 1_000
"""Time in which a claimed slave must get what it lacks, and pause after that, in ms."""
UNKNOWN_MS = 10_000
"""Time after a request without an answer in which it may still be granted, in ms."""
NEAR_BYTES = 4 * 1024 * 1024
"""Lag in bytes from which a slave is claimed: it then has everything soon."""

_log = logging.getLogger(__name__)


class _Claim(NamedTuple):
    """A slave that soon has the whole log."""

    goal: int
    """Physical offset up to which it must have the log."""
    begun_ms: int
    """The time of the claim, monotonic ms."""


class InSyncKeeper:
    """Keeps the in-sync set of a master.

    Args:
        member: The membership.
        mastership: The mastership that the broker has entered.
        in_sync: The set that puts obey.
        replicas: The connected slaves.
        log_end: Returns the end of the log, a physical offset.
        lag_ms_max: Time after which a slave that has not had the whole log is removed, in ms.
        on_change: Called when another set is in force.
        on_standing: Called with whether this broker can acknowledge messages, in each check: no
            other master can have been elected, or all members follow it.
        clock: The clock.
    """

    def __init__(
        self,
        member: Member,
        mastership: Mastership,
        in_sync: InSyncSet,
        replicas: ReplicaAcks,
        log_end: Callable[[], int],
        lag_ms_max: int,
        on_change: Callable[[], object],
        on_standing: Callable[[bool], object],
        clock: Clock,
    ) -> None:
        self._member = member
        self._mastership = mastership
        self._in_sync = in_sync
        self._replicas = replicas
        self._log_end = log_end
        self._lag_ms_max = lag_ms_max
        self._on_change = on_change
        self._on_standing = on_standing
        self._clock = clock
        self._seen_end = log_end()  # at the previous check
        self._had_all_ms: dict[int, int] = {}  # by broker id: when it had the whole log
        self._connected_ms: dict[int, int] = {}  # by broker id: when it was connected
        self._claims: dict[int, _Claim] = {}  # by broker id
        self._given_up_ms: dict[int, int] = {}  # by broker id: when its last claim ended
        self._unknown: dict[int, int] = {}  # perhaps added; by broker id: when that was asked for
        self._next_ms = 0
        self._task: asyncio.Task[None] | None = None
        self.take(mastership)

    def start(self) -> None:
        """Start the checks."""
        self._task = asyncio.create_task(self._run(), name="in-sync set")

    async def stop(self) -> None:
        """Stop the checks."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def take(self, mastership: Mastership) -> None:
        """Put the set of the same epoch that the controller has named in force."""
        self._mastership = mastership
        self._unknown.clear()
        self._apply()

    def _apply(self) -> None:
        members = self._mastership.in_sync | {self._member.broker_id or 0}
        for broker_id in members:
            self._claims.pop(broker_id, None)
        self._in_sync.change(members, frozenset(self._unknown) | frozenset(self._claims))
        self._on_change()

    async def _run(self) -> None:
        while True:
            try:
                await self.check()
            except ReputError as error:
                _log.warning("the in-sync set stays as it is: %s", error)
                self._next_ms = self._clock.monotonic_ms() + RETRY_MS
            except Exception:  # noqa: BLE001 - a turn of a loop; the next may succeed
                _log.exception("keeping the in-sync set failed")
                self._next_ms = self._clock.monotonic_ms() + RETRY_MS
            await asyncio.sleep(CHECK_MS / 1000)

    async def check(self) -> None:
        """Look at all slaves, and ask for another set if one is needed. Raises ``ReputError``."""
        now_ms, end = self._clock.monotonic_ms(), self._log_end()
        self._look(now_ms)
        self._seen_end = end
        others = self._in_sync.others
        is_followed = all(self._replica(key) is not None for key in others)
        self._on_standing(self._member.lease.is_valid or is_followed)
        self._claim(end, now_ms)
        if now_ms < self._next_ms:
            return
        members = self._in_sync.members
        ready = {key for key, claim in self._claims.items() if self._acked(key) >= claim.goal}
        removed = {key for key in members if self._is_lost(key, now_ms)}
        wanted = (members | ready) - removed
        if wanted != members:
            await self._ask(wanted, now_ms)

    def _look(self, now_ms: int) -> None:
        """Record which slaves are connected, and have the whole log."""
        for replica in self._replicas.replicas:
            if replica.broker_id is not None:
                self._connected_ms[replica.broker_id] = now_ms
                if (replica.acked_offset or 0) >= self._seen_end:
                    self._had_all_ms[replica.broker_id] = now_ms

    def _claim(self, end: int, now_ms: int) -> None:
        """Claim slaves that have nearly everything; give up claims that last too long."""
        before = dict(self._claims), dict(self._unknown)
        for key, claim in list(self._claims.items()):
            is_late = now_ms - claim.begun_ms >= CLAIM_MS and self._acked(key) < claim.goal
            if is_late or self._replica(key) is None:
                del self._claims[key]
                self._given_up_ms[key] = now_ms
        for key, asked_ms in list(self._unknown.items()):
            if self._member.answered_ms - asked_ms >= UNKNOWN_MS:
                del self._unknown[key]
        for replica in self._replicas.replicas:
            key_or_none, acked_offset = replica.broker_id, replica.acked_offset
            if key_or_none is None or replica.is_learner or acked_offset is None:
                continue
            if key_or_none in self._in_sync.members or key_or_none in self._claims:
                continue
            is_pausing = now_ms - self._given_up_ms.get(key_or_none, -CLAIM_MS) < CLAIM_MS
            if end - acked_offset <= NEAR_BYTES and not is_pausing:
                self._claims[key_or_none] = _Claim(end, now_ms)
                self._had_all_ms[key_or_none] = now_ms  # what it lacked before is forgiven
        if before != (self._claims, self._unknown):
            self._apply()

    def _replica(self, broker_id: int) -> Replica | None:
        return self._replicas.of_broker(broker_id)

    def _acked(self, broker_id: int) -> int:
        replica = self._replica(broker_id)
        return -1 if replica is None or replica.acked_offset is None else replica.acked_offset

    def _is_lost(self, broker_id: int, now_ms: int) -> bool:
        """Return whether a member is gone, or has not had the whole log for too long."""
        if broker_id == self._member.broker_id:
            return False
        connected_ms = self._connected_ms.setdefault(broker_id, now_ms)
        had_all_ms = self._had_all_ms.setdefault(broker_id, now_ms)
        return now_ms - connected_ms >= GONE_MS or now_ms - had_all_ms >= self._lag_ms_max

    async def _ask(self, wanted: frozenset[int], now_ms: int) -> None:
        """Ask the controller for another set. Raises ``ReputError``."""
        before = self._mastership
        try:
            await self._member.alter_in_sync(before, wanted)
        except RefusedByController:
            raise
        except BaseException:
            if self._mastership == before:
                self._unknown.update(dict.fromkeys(wanted - before.in_sync, now_ms))
                self._apply()
            raise
        _log.warning("the in-sync set is %s", sorted(wanted))
