"""The offsets that the slaves of a master have acknowledged.

Pure bookkeeping: the connections report, pending puts ask. A connection counts only after it has
reported a physical offset that the log has, and no longer than it is open
(https://github.com/apache/rocketmq/issues/3015).
"""

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Replica:
    """The connection of a slave."""

    address: str
    """The slave's address, ``ip:port``."""
    acked_offset: int | None = None
    """Physical offset up to which the slave has the log; None until its first valid report, and
    while it must repeat it."""
    doubtful_offset: int | None = None
    """Offset that the slave had acknowledged before its host connected again. It confirms
    nothing, as both may be of the same slave; but puts wait for the slave's next report."""
    sent_offset: int = 0
    """Physical offset after the last byte sent to it."""
    sent_bytes: int = 0
    """Number of log bytes sent to it."""
    reported_ms: int = 0
    """Time of its last report, monotonic ms."""
    broker_id: int | None = None
    """Id of the slave under a controller; None in the classic mode."""
    is_learner: bool = False
    """True if it never becomes in sync."""


@dataclass(slots=True)
class ReplicaAcks:
    """Acknowledgements of all connected slaves."""

    replicas: list[Replica] = field(default_factory=list)
    """The open connections."""

    def add(self, replica: Replica) -> None:
        """Add the connection of a slave."""
        self.replicas.append(replica)

    def remove(self, replica: Replica) -> None:
        """Remove a connection and its acknowledgements."""
        self.replicas.remove(replica)

    def acked_offsets(self) -> list[int]:
        """Return the offsets of all slaves that have reported, descending."""
        acked = [
            replica.acked_offset for replica in self.replicas if replica.acked_offset is not None
        ]
        if len(acked) > 1:
            acked.sort(reverse=True)
        return acked

    def confirmed(self, count: int) -> int | None:
        """Return the physical offset up to which ``count`` slaves have the log.

        Returns:
            None if fewer slaves have reported.
        """
        offsets = self.acked_offsets()
        return offsets[count - 1] if 0 < count <= len(offsets) else None

    def of_broker(self, broker_id: int) -> Replica | None:
        """Return the connection of a broker under a controller; None if it is not connected."""
        for replica in self.replicas:
            if replica.broker_id == broker_id:
                return replica
        return None

    def available(self, end: int, lag_max: int, reported_since_ms: int) -> int:
        """Return the number of slaves that are likely to acknowledge soon.

        Args:
            end: Physical offset of the log's end.
            lag_max: Lag in bytes from which on a slave does not count, as in Java.
            reported_since_ms: Slaves that have not reported since do not count, monotonic ms: the
                other side of their connection may be gone.
        """
        count = 0
        for replica in self.replicas:  # faster than a generator, at each put that waits
            known_offset = replica.acked_offset
            if known_offset is None:
                known_offset = replica.doubtful_offset
            if (
                known_offset is not None
                and end - known_offset < lag_max
                and replica.reported_ms >= reported_since_ms
            ):
                count += 1
        return count
