"""The in-sync set of a master under a controller, and what its members have.

Only a member of the set can be elected. So a message is safe when all members have it. A master
that may be replaced without its knowledge must not acknowledge a message before that.

    members    the set, as the controller has confirmed it
    claimed    brokers that the controller may have added: the answer is unknown
"""

from collections.abc import Callable

from reput.store.log.replica_acks import ReplicaAcks


class InSyncSet:
    """The in-sync set of a master.

    Args:
        own_id: The id of the master.
        replicas: The connected slaves.
        needs_all: Whether all members must have a message before it is acknowledged and consumed
            (``allAckInSyncStateSet``).
        may_act_alone: Returns whether no other master can have been elected by now.
    """

    def __init__(
        self,
        own_id: int,
        replicas: ReplicaAcks,
        *,
        needs_all: bool,
        may_act_alone: Callable[[], bool],
    ) -> None:
        self.needs_all = needs_all
        self._own_id = own_id
        self._replicas = replicas
        self._may_act_alone = may_act_alone
        self.members = frozenset({own_id})
        self.claimed: frozenset[int] = frozenset()
        self._others: tuple[int, ...] = ()

    @property
    def others(self) -> tuple[int, ...]:
        """Ids of the other brokers of which one may be elected."""
        return self._others

    def change(self, members: frozenset[int], claimed: frozenset[int] = frozenset()) -> None:
        """Set the members, and the brokers that the controller may have added."""
        self.members, self.claimed = members, claimed
        self._others = tuple(sorted((members | claimed) - {self._own_id}))

    @property
    def must_ask_all(self) -> bool:
        """True if a message is acknowledged only when all members have it."""
        return bool(self._others) and (self.needs_all or not self._may_act_alone())

    def confirmed(self, log_end: int) -> int:
        """Return the physical offset up to which all members have the log.

        Args:
            log_end: The end of the master's log, a physical offset.
        """
        for broker_id in self._others:
            replica = self._replicas.of_broker(broker_id)
            acked_offset = None if replica is None else replica.acked_offset
            log_end = min(log_end, acked_offset or 0)
        return log_end
