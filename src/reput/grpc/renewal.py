"""Messages whose invisible time the front renews, while their consumer works on them.

A consumer receives with ``auto_renew``: it does not know how long it will take. Java's brokers give
a message another handle with each renewal, which the consumer does not get: it names the first one.

A message that its consumer perhaps did not get, because the connection broke, is not renewed: it
becomes visible when its time is over, or sooner if the consumer is gone.

Source: rocketmq-proxy 5.5.0 ``DefaultReceiptHandleManager``.
"""

import itertools
from dataclasses import dataclass
from typing import Any, Protocol

from reput.grpc import limits

MARGIN_MS = 10_000
"""Time before the end of its invisible time at which a message is renewed, in ms."""
STEPS_MS = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)
"""Invisible times by the number of renewals, in ms."""
LONGEST_MS = 3 * 3_600_000
"""Time after which a message is not renewed any more, in ms."""
FAILURES_MAX = 3
ARRIVAL_MS = 5_000
"""Age of a delivery above which it is not affected by the loss of its connection, in ms."""


class Closable(Protocol):
    """The connection of a delivery."""

    is_closed: bool


@dataclass(slots=True)
class Held:
    """A message that a consumer works on.

    Attributes:
        group: Its group.
        topic: The topic that was received from.
        receipt: Its receipt handle now.
        due_ms: When it becomes visible, in ms since the epoch.
        since_ms: When it was received, in ms since the epoch.
        renewal_count: Number of renewals.
        failure_count: Number of failures since the last one.
        connection_number: Number of the connection that it was sent over; 0: before a restart.
        is_renewed: Whether it certainly arrived, or may still do so.
    """

    group: str
    topic: str
    receipt: str
    due_ms: int
    since_ms: int
    renewal_count: int = 0
    failure_count: int = 0
    connection_number: int = 0
    is_renewed: bool = True


class Renewals:
    """The messages of a client, by group and the receipt handle that it received."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Held] = {}
        self._connections: dict[Closable, tuple[int, int]] = {}
        """Number, and time of the last delivery in ms, of the connections used recently."""
        self._numbers = itertools.count(1)
        self._first_due_ms = 0

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self._held)

    @property
    def is_empty(self) -> bool:
        """True if there are no messages, and none was delivered recently."""
        return not self._held and not self._connections

    def add(
        self,
        group: str,
        topic: str,
        receipt: str,
        due_ms: int,
        now_ms: int,
        connection: Closable | None = None,
    ) -> None:
        """Renew a message from now on; beyond the limit of a client it is not renewed."""
        if len(self._held) < limits.GRPC_RENEWED.maximum:
            held = Held(group, topic, receipt, due_ms, now_ms)
            self._held[group, receipt] = held
            self._first_due_ms = min(self._first_due_ms or due_ms, due_ms)
            if connection is not None:
                known = self._connections.get(connection)
                held.connection_number = next(self._numbers) if known is None else known[0]
                self._connections[connection] = held.connection_number, now_ms

    def leave_lost(self, now_ms: int) -> None:
        """Stop renewing messages that may be lost with their connection; called each second."""
        for connection, (number, last_ms) in list(self._connections.items()):
            is_recent = now_ms - last_ms < ARRIVAL_MS
            if connection.is_closed or not is_recent:
                del self._connections[connection]
            if connection.is_closed and is_recent:
                for held in self._held.values():
                    if held.connection_number == number and now_ms - held.since_ms < ARRIVAL_MS:
                        held.is_renewed = False

    def current(self, group: str, receipt: str) -> str:
        """Return the current handle of a message, given the handle that its consumer received."""
        held = self._held.get((group, receipt))
        return receipt if held is None else held.receipt

    def drop(self, group: str, receipt: str) -> None:
        """Stop renewing a message."""
        self._held.pop((group, receipt), None)

    def take_all(self) -> list[Held]:
        """Return all messages, and forget them."""
        held = list(self._held.values())
        self._held.clear()
        return held

    def dump(self) -> list[list[Any]]:
        """Return the messages as values of JSON."""
        return [
            [group, receipt, held.topic, held.receipt, held.due_ms, held.since_ms,
             held.renewal_count]
            for (group, receipt), held in self._held.items()
            if held.is_renewed
        ]  # fmt: skip

    @classmethod
    def load(cls, entries: list[list[Any]]) -> "Renewals":
        """Return the messages that ``dump`` has returned. Raises ``ValueError``, ``TypeError``."""
        renewals = cls()
        for group, receipt, topic, current, due_ms, since_ms, count in entries:
            held = Held(group, topic, current, int(due_ms), int(since_ms), int(count))
            renewals._held[group, receipt] = held
        renewals.settle()
        return renewals

    def is_due(self, now_ms: int) -> bool:
        """Return True if a message must be renewed now."""
        return bool(self._held) and self._first_due_ms - now_ms <= MARGIN_MS

    def due(self, now_ms: int, margin_ms: int = MARGIN_MS) -> list[tuple[Held, int]]:
        """Return the messages that end within ``margin_ms``, each with its next time in ms.

        Messages that were renewed for long enough are forgotten.
        """
        due = []
        for key, held in list(self._held.items()):
            if held.due_ms - now_ms > margin_ms:
                continue
            if now_ms - held.since_ms > LONGEST_MS or held.failure_count >= FAILURES_MAX:
                del self._held[key]
                continue
            if not held.is_renewed:
                if held.due_ms <= now_ms:
                    del self._held[key]
                continue
            due.append((held, STEPS_MS[min(held.renewal_count, len(STEPS_MS) - 1)]))
        return due

    def renewed(self, held: Held, receipt: str, due_ms: int) -> None:
        """Record that a message was renewed."""
        held.receipt, held.due_ms = receipt, due_ms
        held.renewal_count += 1
        held.failure_count = 0

    def settle(self) -> None:
        """Recompute the time at which the next message is due."""
        self._first_due_ms = min((held.due_ms for held in self._held.values()), default=0)
