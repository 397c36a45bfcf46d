"""Counts of what the fast path has handled."""

from dataclasses import dataclass


@dataclass(slots=True)
class FastCounts:
    """Requests that no processor has seen. All are 0 while the fast path is off."""

    sends: int = 0
    """Messages and batches that were stored."""
    pulls: int = 0
    """Pulls that were answered."""
    acks: int = 0
    """Popped messages that were acknowledged one by one."""
    ack_batches: int = 0
    """Requests that acknowledged several messages."""
    transaction_ends: int = 0
    """Transactions that were committed or rolled back."""
    send_backs: int = 0
    """Messages that consumers have sent back."""
