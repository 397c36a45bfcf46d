"""Counts of requests that the fast path has handled."""

from dataclasses import dataclass


@dataclass(slots=True)
class FastCounts:
    """Requests that did not reach a processor. All counts are 0 if the fast path is off."""

    sends: int = 0
    """Number of sends that were stored; a batch counts once."""
    pulls: int = 0
    """Answered pulls."""
    acks: int = 0
    """Popped messages that were acknowledged individually."""
    ack_batches: int = 0
    """Number of requests that acknowledged several messages."""
    transaction_ends: int = 0
    """Transactions that were committed or rolled back."""
    send_backs: int = 0
    """Messages that consumers have sent back."""
    lookups: int = 0
    """Queries by key, by id and by time, and of the ends of queues."""
