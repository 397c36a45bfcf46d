"""The table of filters, consumerFilter.json."""

from collections.abc import Iterator
from dataclasses import dataclass

from reput.store.files import paths
from reput.store.tables.config_tables import Table
from reput.store.tables.saved_table import SavedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFilter:
    """An entry of consumerFilter.json: the SQL filter of a group on a topic."""

    topic: str
    group: str
    expression: str
    expression_type: str
    client_version: int
    """Version of the subscription: its creation time by the client's clock, in ms."""
    born_ms: int
    dead_ms: int = 0
    """Time at which the last consumer left, in ms."""
    bloom_bits: int
    """Length of the bit maps of filter and messages, in bits."""
    bloom_positions: tuple[int, ...]

    @property
    def is_dead(self) -> bool:
        """True if no consumer uses the filter."""
        return self.dead_ms >= self.born_ms


class ConsumerFilterTable(SavedTable):
    """consumerFilter.json: the SQL filters, by topic and group."""

    path = paths.CONSUMER_FILTERS
    entries_member = "filterDataByTopic"

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """Return a filter; None if there is none."""
        return self._filters.get(topic, {}).get(group)

    def of(self, topic: str) -> dict[str, ConsumerFilter]:
        """Return group -> filter of a topic, as a copy."""
        return dict(self._filters.get(topic, {}))

    def all(self) -> Iterator[ConsumerFilter]:
        """Yield every filter."""
        for groups in self._filters.values():
            yield from groups.values()

    def entry(self, topic: str, group: str) -> Table | None:
        """Return a filter as stored, in Java's order of members; None if there is none."""
        stored = self._stored.get((topic, group))
        return None if stored is None else dict(sorted(stored.items()))

    def put(self, entry: ConsumerFilter) -> None:
        """Add or replace a filter."""
        stored = self._stored.setdefault((entry.topic, entry.group), {})
        bloom = {**stored.get("bloomFilterData", {})}
        bloom |= {"bitNum": entry.bloom_bits, "bitPos": list(entry.bloom_positions)}
        stored |= {**_filter_entry(entry), "bloomFilterData": bloom}
        self._filters.setdefault(entry.topic, {})[entry.group] = entry
        self._changed.add(entry.topic)
        self.is_dirty = True
        self.change_count += 1

    def delete(self, topic: str, group: str) -> bool:
        """Remove a filter; return whether it was there."""
        groups = self._filters.get(topic, {})
        if groups.pop(group, None) is None:
            return False
        if not groups:
            del self._filters[topic]
        del self._stored[topic, group]
        self._changed.add(topic)
        self.is_dirty = True
        self.change_count += 1
        return True

    def _decode(self, entries: Table) -> None:
        self._topics = entries
        self._stored: dict[tuple[str, str], Table] = {}
        self._filters: dict[str, dict[str, ConsumerFilter]] = {}
        for topic, value in entries.items():
            for group, stored in (value.get("groupFilterData") or {}).items():
                self._stored[topic, group] = dict(stored)
                self._filters.setdefault(topic, {})[group] = _filter(topic, group, stored)

        self._changed = set(self._filters)

    def _stored_entry(self, key: str) -> Table | None:
        groups = self._filters.get(key)
        if not groups:
            return None
        data = {group: self._stored[key, group] for group in groups}
        return {**self._topics.get(key, {}), "topic": key, "groupFilterData": data}


def _filter(topic: str, group: str, value: Table) -> ConsumerFilter:
    bloom = value.get("bloomFilterData") or {}
    return ConsumerFilter(
        topic=topic,
        group=group,
        expression=str(value.get("expression", "")),
        expression_type=str(value.get("expressionType", "")),
        client_version=int(value.get("clientVersion", 0)),
        born_ms=int(value.get("bornTime", 0)),
        dead_ms=int(value.get("deadTime", 0)),
        bloom_bits=int(bloom.get("bitNum", 0)),
        bloom_positions=tuple(int(bit) for bit in bloom.get("bitPos") or ()),
    )


def _filter_entry(entry: ConsumerFilter) -> Table:
    return {
        "bornTime": entry.born_ms,
        "clientVersion": entry.client_version,
        "consumerGroup": entry.group,
        "dead": entry.is_dead,
        "deadTime": entry.dead_ms,
        "expression": entry.expression,
        "expressionType": entry.expression_type,
        "topic": entry.topic,
    }
