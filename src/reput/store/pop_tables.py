"""The tables of pop consumption: which groups pop, and what they hold in order.

Both are as Java 5.x has them: messageRequestMode.json, and consumerOrderInfo.json.
Source: rocketmq 5.5.0 ``MessageRequestModeManager``, ``QueueLevelConsumerManager``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from reput.store import paths
from reput.store.config_tables import GROUP_SEPARATOR, Table
from reput.store.table_files import SavedTable

_COMPACT = msgspec.json.Encoder(order="sorted")

PULL = "PULL"
POP = "POP"


@dataclass(frozen=True, slots=True)
class RequestMode:
    """How a group reads a topic."""

    topic: str
    group: str
    mode: str
    """PULL or POP."""
    share_count: int = 0
    """How many members' queues a member pops beside its own; 0 or less: those of all."""


class RequestModeTable(SavedTable):
    """messageRequestMode.json: how groups read topics, where somebody has said."""

    path = paths.REQUEST_MODES
    entries_member = "messageRequestModeMap"
    count = 0
    """How much somebody has said."""

    def get(self, topic: str, group: str) -> RequestMode | None:
        """Return how a group reads a topic; None: nobody has said."""
        return self._modes.get(topic, {}).get(group)

    def all(self) -> Iterator[RequestMode]:
        """Yield all that somebody has said."""
        for groups in self._modes.values():
            yield from groups.values()

    def put(self, one: RequestMode) -> None:
        """Add or replace a mode."""
        groups = self._modes.setdefault(one.topic, {})
        self.count += one.group not in groups
        groups[one.group] = one
        self._changed.add(one.topic)
        self.is_dirty = True

    def delete(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove what was said of a topic, of a group, or of both."""
        for one, groups in list(self._modes.items()):
            doomed = [other for other in groups if topic in (None, one) and group in (None, other)]
            for other in doomed:
                del groups[other]
            if doomed:
                self.count -= len(doomed)
                self._changed.add(one)
                self.is_dirty = True
            if not groups:
                del self._modes[one]

    def _decode(self, entries: Table) -> None:
        self._modes: dict[str, dict[str, RequestMode]] = {}
        for topic, groups in entries.items():
            self._modes[topic] = {
                group: RequestMode(
                    topic, group, str(one.get("mode", PULL)), int(one.get("popShareQueueNum", 0))
                )
                for group, one in groups.items()
            }
        self.count = sum(map(len, self._modes.values()))
        self._changed = set(self._modes)

    def _entry_text(self, value: Table) -> bytes:
        # All groups of a topic are one entry, made anew for each: this takes a hundredth of the
        # time that an indented text takes.
        text = _COMPACT.encode(value)
        return text if text.isascii() else super()._entry_text(value)

    def _stored_entry(self, key: str) -> Table | None:
        if key not in self._modes:
            return None
        return {
            group: {
                "consumerGroup": group,
                "mode": one.mode,
                "popShareQueueNum": one.share_count,
                "topic": key,
            }
            for group, one in self._modes[key].items()
        }


@dataclass(slots=True)
class OrderBlock:
    """Messages of a queue that a group took in order: the next come when these are acknowledged.

    Times are ms since the epoch.
    """

    pop_ms: int
    invisible_ms: int
    queue_offsets: list[int]
    taken_ms: int
    acked: int = 0
    """Bit i: the i-th was acknowledged."""
    attempt_id: str | None = None
    """Who asks with it again gets the same messages."""
    visible_ms: dict[int, int] = field(default_factory=dict)
    """Queue offset -> when it may be taken again, where that was changed."""
    counts: dict[int, int] = field(default_factory=dict)
    """Queue offset -> how often it was taken before."""


class ConsumerOrderTable(SavedTable):
    """consumerOrderInfo.json: what groups hold of queues that they read in order."""

    path = paths.CONSUMER_ORDER
    entries_member = "table"
    count = 0
    """Queues that groups hold or held something of."""

    def get(self, topic: str, group: str, queue_id: int) -> OrderBlock | None:
        """Return what a group holds of a queue, or held last; None if it never did.

        Whoever changes it says so with ``put``.
        """
        return self._blocks.get((topic, group), {}).get(queue_id)

    def queue_count(self, topic: str, group: str) -> int:
        """Return in how many queues of a topic a group holds or held something."""
        return len(self._blocks.get((topic, group), ()))

    def put(self, topic: str, group: str, queue_id: int, block: OrderBlock) -> None:
        """Set what a group holds of a queue."""
        key = topic, group
        blocks = self._blocks.setdefault(key, {})
        self.count += queue_id not in blocks
        blocks[queue_id] = block
        self._changed.add(key)
        self.is_dirty = True

    def delete(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove what is kept of a topic, of a group, or of both."""
        for key in [
            (one, other)
            for one, other in self._blocks
            if topic in (None, one) and group in (None, other)
        ]:
            self.count -= len(self._blocks.pop(key))
            self._changed.add(key)
            self.is_dirty = True

    def _decode(self, entries: Table) -> None:
        self._blocks: dict[tuple[str, str], dict[int, OrderBlock]] = {}
        for key, queues in entries.items():
            topic, _, group = key.partition(GROUP_SEPARATOR)
            self._blocks[topic, group] = {
                int(queue_id): _block(value) for queue_id, value in queues.items()
            }
        self.count = sum(map(len, self._blocks.values()))
        self._changed = set(self._blocks)

    def _name(self, key: tuple[str, str]) -> str:
        return GROUP_SEPARATOR.join(key)

    def _stored_entry(self, key: tuple[str, str]) -> Table | None:
        blocks = self._blocks.get(key)
        if not blocks:
            return None
        return {str(queue_id): _block_entry(one) for queue_id, one in blocks.items()}


def _block(value: Table) -> OrderBlock:
    first, *distances = [int(one) for one in value.get("o") or ()] or [0]
    offsets = [first, *(first + one for one in distances)] if value.get("o") else []
    return OrderBlock(
        pop_ms=int(value.get("popTime", 0)),
        invisible_ms=int(value.get("i") or 0),
        queue_offsets=offsets,
        taken_ms=int(value.get("l", 0)),
        acked=int(value.get("cm", 0)) & (1 << 64) - 1,
        attempt_id=value.get("a"),
        visible_ms={int(key): int(one) for key, one in (value.get("ot") or {}).items()},
        counts={int(key): int(one) for key, one in (value.get("oc") or {}).items()},
    )


def _block_entry(one: OrderBlock) -> Table:
    entry: Table = {
        "popTime": one.pop_ms,
        "i": one.invisible_ms,
        "o": [
            offset - one.queue_offsets[0] * (at > 0) for at, offset in enumerate(one.queue_offsets)
        ],
        "l": one.taken_ms,
        "cm": one.acked,
    }
    if one.attempt_id is not None:
        entry["a"] = one.attempt_id
    if one.visible_ms:
        entry["ot"] = {str(offset): at_ms for offset, at_ms in one.visible_ms.items()}
    if one.counts:
        entry["oc"] = {str(offset): count for offset, count in one.counts.items()}
    return entry
