"""A ledger of the messages of a move: when its clients sent, decided and received each.

The clients fill a ``Ledger`` while brokers are switched. ``problems`` then compares what they
received with what RocketMQ promises: at least once, in order within a queue, not before the time of
delivery. A message may repeat only if a switch interrupted its way, if a request about it had no
reply, or if a consumer asked for it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

COMMIT_MS = 1_000
"""Time between the receipt of a message and the commit of its offset, in ms."""
SHOWN_MAX = 5

Offsets = Mapping[tuple[str, str, int], int]
"""Consumer offsets by topic, group and queue id."""


@dataclass(slots=True)
class Receipt:
    """The receipt of a message by a consumer."""

    queue: str
    queue_offset: int
    now_ms: int
    is_refused: bool


@dataclass(slots=True)
class Entry:
    """The way of a message."""

    begin_ms: int
    """Time of the first attempt to send it, in ms since the epoch."""
    due_ms: int = 0
    """Time before which it must not arrive; 0: none."""
    end_ms: int = 0
    """Time when it was acknowledged; 0: not yet."""
    is_delivered: bool = True
    """False once its transaction is rolled back."""
    is_uncertain: bool = False
    """Whether a request about it had no reply: the broker may have done it nevertheless."""
    released_ms: int = 0
    """Time when the broker took the acknowledgement of its pop; 0: not yet."""
    receipts: list[Receipt] = field(default_factory=list)


class Ledger:
    """The messages of a topic, as the clients of one consumer group know them.

    Args:
        topic: The topic, for texts.
        is_ordered: Whether bodies end in numbers that ascend by one within a queue.
        repeated_ms: Time before a switch since which messages may arrive a second time, in ms.
    """

    def __init__(
        self, topic: str, *, is_ordered: bool = False, repeated_ms: int = COMMIT_MS
    ) -> None:
        self.topic = topic
        self.entries: dict[bytes, Entry] = {}
        self.strangers: list[bytes] = []
        """Received bodies that were never sent."""
        self._is_ordered = is_ordered
        self._repeated_ms = repeated_ms
        self._lasts: dict[str, int] = {}
        self._skips: list[str] = []

    # --- what happens ----------------------------------------------------------------------------

    def sending(self, body: bytes, now_ms: int, due_ms: int = 0) -> None:
        """Record that a message is sent for the first time."""
        self.entries[body] = Entry(now_ms, due_ms)

    def acknowledged(self, body: bytes, now_ms: int) -> None:
        """Record that a broker has a message."""
        self.entries[body].end_ms = now_ms

    def uncertain(self, body: bytes) -> None:
        """Record that a request about a message had no reply."""
        self.entries[body].is_uncertain = True

    def rolled_back(self, body: bytes) -> None:
        """Record that the transaction of a message has failed."""
        self.entries[body].is_delivered = False

    def received(
        self, body: bytes, queue: str, queue_offset: int, now_ms: int, *, is_refused: bool = False
    ) -> None:
        """Record the receipt of a message; ``is_refused``: the consumer asks for it again."""
        entry = self.entries.get(body)
        if entry is None:
            self.strangers.append(body)
            return
        entry.receipts.append(Receipt(queue, queue_offset, now_ms, is_refused))
        if self._is_ordered:
            last, number = self._lasts.get(queue, -1), number_of(body)
            if number > last + 1:
                self._skips.append(f"{queue}: {number} after {last}")
            self._lasts[queue] = max(last, number)

    def released(self, body: bytes, now_ms: int) -> None:
        """Record that a broker took the acknowledgement of a popped message."""
        entry = self.entries[body]
        entry.released_ms = entry.released_ms or now_ms

    # --- what they show --------------------------------------------------------------------------

    @property
    def acknowledged_count(self) -> int:
        """Number of messages that brokers have acknowledged."""
        return sum(entry.end_ms > 0 for entry in self.entries.values())

    def missing(self) -> list[bytes]:
        """Return the acknowledged messages that did not arrive, or not again after a refusal."""
        return [
            body
            for body, entry in self.entries.items()
            if entry.end_ms
            and entry.is_delivered
            and (not entry.receipts or entry.receipts[-1].is_refused)
        ]

    def problems(self, switches: Iterable[tuple[int, int]]) -> list[str]:
        """Return a text about each kind of broken promise; none is expected.

        Args:
            switches: Begin and end of each switch of the broker, in ms.
        """
        times = [(begin - self._repeated_ms, end) for begin, end in switches]
        problems: dict[str, list[bytes]] = {
            "lost": self.missing(),
            "never sent": self.strangers,
            "delivered although rolled back": [],
            "delivered too early": [],
            "delivered after an acknowledged pop": [],
            "repeated": [],
        }
        for body, entry in self.entries.items():
            if not entry.receipts:
                continue
            first = entry.receipts[0].now_ms
            if not entry.is_delivered:
                problems["delivered although rolled back"].append(body)
            if first < entry.due_ms:
                problems["delivered too early"].append(body)
            # A message whose send had no reply may be stored twice, and each is acknowledged.
            is_once = bool(entry.released_ms) and not entry.is_uncertain
            if is_once and entry.receipts[-1].now_ms > entry.released_ms:
                problems["delivered after an acknowledged pop"].append(body)
            may_repeat = entry.is_uncertain or any(
                entry.begin_ms <= end and first >= begin for begin, end in times
            )
            wanted = 1 + sum(receipt.is_refused for receipt in entry.receipts)
            if len(entry.receipts) > wanted and not may_repeat:
                problems["repeated"].append(body)
        texts = [_text(self.topic, what, bodies) for what, bodies in problems.items() if bodies]
        return texts + [f"{self.topic}: skipped in {skip}" for skip in self._skips]

    def summary(self) -> str:
        """Return counts, for the output of a run."""
        counts = Counter(len(entry.receipts) for entry in self.entries.values())
        more = sum(counts[count] for count in counts if count > 1)
        return (
            f"{self.topic}: {len(self.entries)} sent, {self.acknowledged_count} acknowledged, "
            f"{sum(entry.receipts != [] for entry in self.entries.values())} received, "
            f"{more} more than once"
        )


def number_of(body: bytes) -> int:
    """Return the number at the end of a body."""
    return int(body.rpartition(b"-")[2])


def _text(topic: str, what: str, bodies: list[bytes]) -> str:
    shown = b" ".join(bodies[:SHOWN_MAX]).decode()
    return f"{topic}: {len(bodies)} {what}: {shown}"


def offsets_gone_back(before: Offsets, after: Offsets) -> list[str]:
    """Return a text about each consumer offset that is lower after a switch, or lost."""
    return [
        f"{key}: {consumer_offset} before, {after.get(key)} after"
        for key, consumer_offset in before.items()
        if after.get(key, 0) < consumer_offset
    ]
