"""Values in an etcd, for several controllers: the one that has the key ``leader`` leads.

    PREFIX/controllers/n1   name and address of a controller, as long as its lease lives
    PREFIX/leader           the same of the leader; its revision is the fencing number
    PREFIX/groups/broker-a  a value

A controller has a lease, and renews it several times in its duration. The leader stops to claim
that it leads when its own clock says that the lease may have expired: it counts from before it has
asked for the renewal, and leaves a fifth of the duration for clocks of different speeds. So it
stops before etcd removes its key, and before another one leads. Each change is one transaction with
two conditions: the value has the revision that was read, and ``leader`` has the fencing number.

A change whose answer is lost was made, or not, or will be made later. The leader writes its key
again then, so that a change under the old number can be made no more; and ``groups`` reads again
under the new number. The controller looks at its keys in each turn, so a lost answer about these
needs no care.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from reput.clock import Clock
from reput.controller.etcd_client import (
    Delete,
    Empty,
    EtcdClient,
    EtcdFailed,
    KeepAliveReply,
    KeyValue,
    LeaseGrant,
    LeaseId,
    LeaseReply,
    NotAnEtcd,
    Operation,
    Put,
    Range,
    RangeReply,
    Transaction,
    TransactionReply,
    of_change,
    of_create,
)
from reput.controller.quorum import Conflict, Deposed, Peer, StoredValue
from reput.errors import ReputError, StoreUnavailable

TURNS_PER_LEASE = 5
"""Renewals in the duration of a lease."""
_MARGIN = 0.2
"""Part of a lease in which the leader no longer claims that it leads."""
_RETRY_S = 0.2
_CHANGE_S = 3.0
"""Time for the answer to a change, or to a request for all values."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class EtcdQuorum:
    """The values of an etcd below a prefix.

    Args:
        client: Asks etcd.
        prefix: Prefix of the keys.
        own: This controller, as the others and its brokers know it.
        clock: The clock; only its monotonic time is used.
        lease_s: Duration of the lease, in seconds: the longest time without a leader.
    """

    def __init__(
        self, client: EtcdClient, prefix: str, own: Peer, clock: Clock, lease_s: int
    ) -> None:
        self.place = f"{client}{prefix}"
        self.failure = ""
        """Why etcd cannot be used, or does not let this controller lead; empty if all is well."""
        self.leader: Peer | None = None
        """The leading controller, if it is another one."""
        self.members: Sequence[Peer] = ()
        """The other controllers that run."""
        self._client = client
        self._own = own
        self._value = msgspec.json.encode(own._asdict())
        self._clock = clock
        self._lease_s = lease_s
        self._groups = f"{prefix}/groups/".encode()
        self._controllers = f"{prefix}/controllers/".encode()
        self._own_key = self._controllers + own.name.encode()
        self._leader_key = f"{prefix}/leader".encode()
        self._lease = 0
        self._lease_end_ms = 0
        """Monotonic time at which the lease may expire, less the margin, in ms."""
        self.term = 0
        """Create revision of the leader's key: another one if another controller has led since."""
        self._fence = 0
        """Fencing number; 0 if this controller does not lead."""
        self._is_in_doubt = False
        """Whether a change under the fencing number may be made later."""
        self._woken = asyncio.Event()
        self._changed = asyncio.Event()
        """Set when the fencing number changes."""
        self._turns: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to look for the leader, or to lead. Raises ``StoreUnavailable``: it is no etcd."""
        try:
            await self._turn()
        except NotAnEtcd as error:
            await self._client.close()
            raise StoreUnavailable(f"{error}; set reputQuorum in controller.conf") from error
        except ReputError as error:
            self._fail(error)
        self._turns = asyncio.get_running_loop().create_task(self._run(), name="lease")

    async def close(self) -> None:
        """Give the lease back, so that another controller leads at once."""
        if self._turns is not None:
            self._turns.cancel()
            await asyncio.wait((self._turns,))
            self._turns = None
        self._step_down("it stops")
        if self._lease:
            try:
                await self._call("/v3/lease/revoke", LeaseId(self._lease), Empty)
            except ReputError as error:
                _log.warning("the lease was not given back, so it will expire: %s", error)
            self._lease = 0
        await self._client.close()

    def abandon(self) -> None:
        """Do nothing: nothing belongs to the machine."""

    # Leading --------------------------------------------------------------------------------------

    async def lead(self) -> int:
        """Become the leader, and return the fencing number; wait while another one leads."""
        while not self._fence:
            await self._changed.wait()
            self._changed.clear()
        return self._fence

    def leads(self, fence: int) -> bool:
        """Return whether this controller leads under the number, and its lease surely lives."""
        is_current = fence == self._fence != 0 and not self._is_in_doubt
        return is_current and self._clock.monotonic_ms() < self._lease_end_ms

    async def until_deposed(self, fence: int) -> None:
        """Wait until this controller no longer leads under the number."""
        while self._fence == fence:
            await self._changed.wait()
            self._changed.clear()

    async def _run(self) -> None:
        pause_s = _RETRY_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
            self._woken.clear()
            pause_s = _RETRY_S
            try:
                await self._turn()
                pause_s = self._lease_s / TURNS_PER_LEASE
            except ReputError as error:
                self._fail(error)
            except Exception as error:  # noqa: BLE001 - a turn of a loop; the next may succeed
                _log.exception("asking etcd failed")
                self.failure = f"{type(error).__name__}: {error}"

    async def _turn(self) -> None:
        """Keep the lease, look at the keys, and lead if no other does. Raises ``ReputError``."""
        if self._lease:
            await self._renew()
        if not self._lease:
            await self._grant()
        if self._is_in_doubt and self._fence:
            await self._write_again()
        leader, own = await self._look()
        if own is None:
            await self._create(self._own_key)
            leader, own = await self._look()
        problem = ""
        if own is not None and own.lease != self._lease:
            problem = (
                f"a controller with the name {self._own.name} runs already, or has not been dead "
                f"for {self._lease_s} s: each needs its own controllerDLegerSelfId"
            )
        elif own is not None and leader is None:
            await self._create(self._leader_key)
            await self._look()
        if problem and problem != self.failure:
            _log.warning("%s", problem)
        elif self.failure and not problem:
            _log.warning("etcd works again: %s", self.place)
        self.failure = problem

    async def _grant(self) -> None:
        asked_ms = self._clock.monotonic_ms()
        made = await self._call("/v3/lease/grant", LeaseGrant(self._lease_s), LeaseReply)
        self._lease = made.id
        self._extend(asked_ms, made.ttl)

    async def _renew(self) -> None:
        asked_ms = self._clock.monotonic_ms()
        kept = await self._call("/v3/lease/keepalive", LeaseId(self._lease), KeepAliveReply)
        if kept.result is None:
            raise EtcdFailed(f"{self.place} does not renew the lease: {kept.error}")
        if kept.result.ttl > 0:
            self._extend(asked_ms, kept.result.ttl)
        else:
            self._lease = self._lease_end_ms = 0
            self._step_down("its lease has expired")

    def _extend(self, asked_ms: int, ttl_s: int) -> None:
        self._lease_end_ms = asked_ms + int(ttl_s * 1000 * (1 - _MARGIN))

    async def _look(self) -> tuple[KeyValue | None, KeyValue | None]:
        """Return the keys of the leader and of this controller; note who leads, and who runs."""
        steps = [
            Operation(request_range=Range(self._leader_key)),
            Operation(request_range=_all_below(self._controllers)),
        ]
        reply = await self._call("/v3/kv/txn", Transaction(success=steps), TransactionReply)
        leaders, controllers = (step.response_range for step in reply.responses)
        leader = leaders.kvs[0] if leaders is not None and leaders.kvs else None
        known = controllers.kvs if controllers is not None else []
        self.members = [_peer(item) for item in known if item.key != self._own_key]
        is_own = leader is not None and leader.lease == self._lease
        self.leader = None if leader is None or is_own else _peer(leader)
        if leader is not None and is_own:
            self.term = leader.create_revision
            self._step_up(leader.mod_revision)
        else:
            name = "no controller" if self.leader is None else self.leader.name
            self._step_down(f"{name} leads")
        return leader, next((item for item in known if item.key == self._own_key), None)

    async def _write_again(self) -> None:
        """Write the leader's key again, so that it has a new revision."""
        put = Operation(request_put=Put(self._leader_key, self._value, self._lease))
        condition = of_change(self._leader_key, self._fence)
        change = Transaction(compare=[condition], success=[put])
        await self._call("/v3/kv/txn", change, TransactionReply)

    async def _create(self, key: bytes) -> None:
        """Create a key of this controller, unless another one has it."""
        put = Operation(request_put=Put(key, self._value, self._lease))
        change = Transaction(compare=[of_create(key, 0)], success=[put])
        await self._call("/v3/kv/txn", change, TransactionReply)

    def _step_up(self, fence: int) -> None:
        if fence != self._fence:
            self._step_down("its key was written again")
            self._fence, self._is_in_doubt = fence, False
            self._changed.set()
            _log.warning("controller %s leads, with the fencing number %d", self._own.name, fence)

    def _step_down(self, why: str) -> None:
        if self._fence:
            _log.warning("controller %s leads no more: %s", self._own.name, why)
            self._fence = 0
            self._changed.set()

    def _fail(self, error: ReputError) -> None:
        if not self.failure:
            _log.error("%s", error)
        self.failure = str(error)

    # Values ---------------------------------------------------------------------------------------

    async def read(self) -> dict[str, StoredValue]:
        """Return all values by key. Raises ``EtcdFailed``."""
        request = _all_below(self._groups)
        reply = await self._client.call("/v3/kv/range", request, RangeReply, _CHANGE_S)
        start = len(self._groups)
        return {
            item.key[start:].decode(): StoredValue(item.value, item.mod_revision)
            for item in reply.kvs
        }

    async def compare_and_set(
        self, key: str, value: bytes | None, *, revision: int, fence: int
    ) -> int:
        """Replace a value; return its new revision.

        Raises:
            Conflict: The revision is another one.
            Deposed: The fencing number is not that of the leader.
            EtcdFailed: The outcome is unknown; the leader gets another number.
        """
        if not self.leads(fence):
            raise Deposed(f"controller {self._own.name} does not lead, or its lease may be over")
        name = self._groups + key.encode()
        if value is None:
            change = Operation(request_delete_range=Delete(name))
        else:
            change = Operation(request_put=Put(name, value))
        request = Transaction(
            compare=[of_change(name, revision), of_change(self._leader_key, fence)],
            success=[change],
            failure=[Operation(request_range=Range(self._leader_key))],
        )
        try:
            reply = await self._client.call("/v3/kv/txn", request, TransactionReply, _CHANGE_S)
        except BaseException:
            if fence == self._fence:
                self._is_in_doubt = True
                self._woken.set()
            raise
        if reply.succeeded:
            return reply.header.revision
        leaders = reply.responses[0].response_range if reply.responses else None
        if leaders is None or not leaders.kvs or leaders.kvs[0].mod_revision != fence:
            if fence == self._fence:
                self._step_down("its key in etcd is gone")
            raise Deposed(f"controller {self._own.name} leads no more")
        raise Conflict(f"{key} has another revision than {revision}")

    async def _call(self, path: str, message: object, reply_type: type[T]) -> T:
        """Ask within a third of the lease, so that it survives a member that does not answer."""
        return await self._client.call(path, message, reply_type, self._lease_s / 3)


def _all_below(prefix: bytes) -> Range:
    return Range(prefix, prefix[:-1] + bytes([prefix[-1] + 1]))


def _peer(item: KeyValue) -> Peer:
    """Return the controller in a value. Raises ``EtcdFailed``."""
    try:
        fields = msgspec.json.decode(item.value, type=dict[str, str])
        return Peer(fields["name"], fields["address"])
    except (msgspec.MsgspecError, KeyError) as error:
        raise EtcdFailed(
            f"the key {item.key!r} has a value that is no controller: is the prefix of reputQuorum "
            "used by another program?"
        ) from error
