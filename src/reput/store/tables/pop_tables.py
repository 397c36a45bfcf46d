"""The tables of pop consumption: request modes of groups, and unacknowledged ordered messages.

The formats are those of Java 5.x: messageRequestMode.json and consumerOrderInfo.json.
Source: rocketmq 5.5.0 ``MessageRequestModeManager``, ``QueueLevelConsumerManager``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from reput.store.files import paths
from reput.store.tables.config_tables import GROUP_SEPARATOR, Table
from reput.store.tables.saved_table import SavedTable

_COMPACT = msgspec.json.Encoder(order="sorted")

PULL = "PULL"
POP = "POP"


@dataclass(frozen=True, slots=True)
class RequestMode:
    """The request mode of a group on a topic."""

    topic: str
    group: str
    mode: str
    """PULL or POP."""
    share_count: int = 0
    """Number of other members whose queues a member pops too; 0 or less: all members."""


RequestModesByTopic = dict[str, dict[str, RequestMode]]
"""Topic -> group -> request mode."""


def request_modes(entries: Table) -> RequestModesByTopic:
    """Decode the entries of messageRequestMode.json, or of the reply to code 402.

    An invalid entry raises whatever ``config_tables.expected_kind`` expects.
    """
    return {
        topic: {
            group: RequestMode(
                topic,
                group,
                str(value.get("mode", PULL)),
                int(value.get("popShareQueueNum", 0)),
            )
            for group, value in groups.items()
        }
        for topic, groups in entries.items()
    }


class RequestModeTable(SavedTable):
    """messageRequestMode.json: the configured request modes."""

    path = paths.REQUEST_MODES
    entries_member = "messageRequestModeMap"
    count = 0
    """Number of configured modes."""
    _modes: RequestModesByTopic

    def get(self, topic: str, group: str) -> RequestMode | None:
        """Return the request mode of a group on a topic; None if it is not configured."""
        return self._modes.get(topic, {}).get(group)

    def all(self) -> Iterator[RequestMode]:
        """Yield all configured modes."""
        for groups in self._modes.values():
            yield from groups.values()

    def put(self, mode: RequestMode) -> None:
        """Add or replace a mode."""
        groups = self._modes.setdefault(mode.topic, {})
        self.count += mode.group not in groups
        groups[mode.group] = mode
        self._changed.add(mode.topic)
        self.is_dirty = True
        self.change_count += 1

    def replace(self, modes: RequestModesByTopic) -> None:
        """Replace all modes."""
        old, self._modes = self._modes, modes
        changed = {topic for topic in old | modes if old.get(topic) != modes.get(topic)}
        if changed:
            self.count = sum(map(len, modes.values()))
            self._changed |= changed
            self.is_dirty = True
            self.change_count += 1

    def delete(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove the modes of a topic, of a group, or of both."""
        for name, groups in list(self._modes.items()):
            doomed = [key for key in groups if topic in (None, name) and group in (None, key)]
            for key in doomed:
                del groups[key]
            if doomed:
                self.count -= len(doomed)
                self._changed.add(name)
                self.is_dirty = True
                self.change_count += 1
            if not groups:
                del self._modes[name]

    def _decode(self, entries: Table) -> None:
        self._modes = request_modes(entries)
        self.count = sum(map(len, self._modes.values()))
        self._changed = set(self._modes)

    def _entry_text(self, value: Table) -> bytes:
        # All groups of a topic are one entry, encoded again for each change: this takes a hundredth
        # of the time of an indented text.
        text = _COMPACT.encode(value)
        return text if text.isascii() else super()._entry_text(value)

    def _stored_entry(self, key: str) -> Table | None:
        if key not in self._modes:
            return None
        return {
            group: {
                "consumerGroup": group,
                "mode": mode.mode,
                "popShareQueueNum": mode.share_count,
                "topic": key,
            }
            for group, mode in self._modes[key].items()
        }


@dataclass(slots=True)
class OrderBlock:
    """Messages of a queue that a group popped in order; the next ones follow after their acks.

    Times are in ms since the epoch.
    """

    pop_ms: int
    invisible_ms: int
    queue_offsets: list[int]
    taken_ms: int
    acked: int = 0
    """Bit i is set if message i was acknowledged."""
    attempt_id: str | None = None
    """Id of the pop request; a request with the same id gets the same messages."""
    visible_ms: dict[int, int] = field(default_factory=dict)
    """Queue offset -> time at which it may be popped again, where that was changed."""
    counts: dict[int, int] = field(default_factory=dict)
    """Queue offset -> number of earlier deliveries."""
    uncounted: set[int] = field(default_factory=set)
    """Queue offsets whose current delivery is not counted; the file has no field for them."""


class ConsumerOrderTable(SavedTable):
    """consumerOrderInfo.json: the last messages that groups popped in order."""

    path = paths.CONSUMER_ORDER
    entries_member = "table"
    count = 0
    """Number of (queue, group) pairs with an entry."""

    def get(self, topic: str, group: str, queue_id: int) -> OrderBlock | None:
        """Return the last block of a queue that a group popped; None if there is none.

        After a change to it, the caller must ``put`` it.
        """
        return self._blocks.get((topic, group), {}).get(queue_id)

    def queue_count(self, topic: str, group: str) -> int:
        """Return the number of queues of a topic for which a group has an entry."""
        return len(self._blocks.get((topic, group), ()))

    def put(self, topic: str, group: str, queue_id: int, block: OrderBlock) -> None:
        """Set the block of a queue and group."""
        key = topic, group
        blocks = self._blocks.setdefault(key, {})
        self.count += queue_id not in blocks
        blocks[queue_id] = block
        self._changed.add(key)
        self.is_dirty = True
        self.change_count += 1

    def release(self, topic: str, group: str, queue_id: int) -> None:
        """Remove the block of a queue, if there is one."""
        key = topic, group
        blocks = self._blocks.get(key, {})
        if blocks.pop(queue_id, None) is None:
            return
        if not blocks:
            del self._blocks[key]
        self.count -= 1
        self._changed.add(key)
        self.is_dirty = True
        self.change_count += 1

    def delete(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove the entries of a topic, of a group, or of both."""
        doomed = [
            key for key in self._blocks if topic in (None, key[0]) and group in (None, key[1])
        ]
        for key in doomed:
            self.count -= len(self._blocks.pop(key))
            self._changed.add(key)
            self.is_dirty = True
            self.change_count += 1

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
        return {str(queue_id): _block_entry(block) for queue_id, block in blocks.items()}


def _block(value: Table) -> OrderBlock:
    first, *distances = [int(number) for number in value.get("o") or ()] or [0]
    offsets = [first, *(first + distance for distance in distances)] if value.get("o") else []
    return OrderBlock(
        pop_ms=int(value.get("popTime", 0)),
        invisible_ms=int(value.get("i") or 0),
        queue_offsets=offsets,
        taken_ms=int(value.get("l", 0)),
        acked=int(value.get("cm", 0)) & (1 << 64) - 1,
        attempt_id=value.get("a"),
        visible_ms={int(key): int(time_ms) for key, time_ms in (value.get("ot") or {}).items()},
        counts={int(key): int(count) for key, count in (value.get("oc") or {}).items()},
    )


def _block_entry(block: OrderBlock) -> Table:
    entry: Table = {
        "popTime": block.pop_ms,
        "i": block.invisible_ms,
        "o": [
            queue_offset - block.queue_offsets[0] * (index > 0)
            for index, queue_offset in enumerate(block.queue_offsets)
        ],
        "l": block.taken_ms,
        "cm": block.acked,
    }
    if block.attempt_id is not None:
        entry["a"] = block.attempt_id
    if block.visible_ms:
        entry["ot"] = {str(number): time_ms for number, time_ms in block.visible_ms.items()}
    if block.counts:
        entry["oc"] = {str(number): count for number, count in block.counts.items()}
    return entry
