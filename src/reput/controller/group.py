"""The state of a replica group, the brokers of one name: what a controller must never forget.

    master_epoch   grows with each change of the master, also if there is none afterwards
    in_sync        the replicas with every acknowledged message; only one of them may be elected
    set_epoch      grows with each change of ``in_sync``

Values do not change: a decision makes a new one (``rules``), and ``groups`` saves it.
"""

from collections.abc import Mapping

import msgspec

from reput.errors import CorruptRecord
from reput.format.java import Int, Long

FIRST_BROKER_ID = 1


class Replica(msgspec.Struct, frozen=True, rename="camel"):
    """A broker of a group."""

    address: str
    check_code: str
    """Identifies the request that has taken the id."""


class Group(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A replica group."""

    cluster_name: str
    broker_name: str
    replicas: Mapping[Long, Replica]
    next_broker_id: Long = FIRST_BROKER_ID
    master_id: Long | None = None
    master_epoch: Int = 0
    in_sync: tuple[Long, ...] = ()
    set_epoch: Int = 0
    heartbeat_timeout_ms: Int = 0
    """Silence after which the master is dead, in ms, as its heartbeats said; 0: unknown."""

    @property
    def master_address(self) -> str | None:
        """Address of the master, if there is one."""
        return None if self.master_id is None else self.address(self.master_id)

    def address(self, broker_id: int) -> str | None:
        """Return the address of a replica."""
        replica = self.replicas.get(broker_id)
        return None if replica is None else replica.address

    def with_replica(self, broker_id: int, replica: Replica) -> "Group":
        """Return the group with a new replica, or with a new address of one."""
        return msgspec.structs.replace(
            self,
            replicas={**self.replicas, broker_id: replica},
            next_broker_id=max(self.next_broker_id, broker_id + 1),
        )

    def with_master(self, broker_id: int | None, epoch: int, timeout_ms: int = 0) -> "Group":
        """Return the group with another master, which alone is in sync.

        Without a master the set stays: who was in sync may be elected later.
        """
        changed = msgspec.structs.replace(self, master_id=broker_id, master_epoch=epoch)
        if broker_id is None:
            return changed
        return msgspec.structs.replace(
            changed.with_in_sync([broker_id]), heartbeat_timeout_ms=timeout_ms
        )

    def with_in_sync(self, broker_ids: "list[int] | set[int]") -> "Group":
        """Return the group with another in-sync set."""
        return msgspec.structs.replace(
            self, in_sync=tuple(sorted(set(broker_ids))), set_epoch=self.set_epoch + 1
        )

    def without_replicas(self, broker_ids: set[int]) -> "Group | None":
        """Return the group without some replicas; None if none is left."""
        replicas = {key: value for key, value in self.replicas.items() if key not in broker_ids}
        if not replicas:
            return None
        left = msgspec.structs.replace(self, replicas=replicas)
        if self.master_id in broker_ids:
            left = left.with_master(None, self.master_epoch + 1)
        in_sync = set(self.in_sync)
        return left.with_in_sync(in_sync - broker_ids) if in_sync & broker_ids else left


def encode(group: Group) -> bytes:
    """Return a group as JSON."""
    return msgspec.json.encode(group)


def decode(data: bytes) -> Group:
    """Return a group from its JSON. Raises ``CorruptRecord``."""
    try:
        return msgspec.json.decode(data, type=Group)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"this is no replica group: {error}") from error
