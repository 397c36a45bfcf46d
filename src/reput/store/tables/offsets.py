"""The tables of offsets: consumerOffset.json, delayOffset.json."""

from collections.abc import Iterator

import msgspec

from reput.store.files import paths
from reput.store.tables.config_tables import GROUP_SEPARATOR, ConsumerOffset, Table
from reput.store.tables.saved_table import SavedTable

_NUMBERS = msgspec.json.Encoder(order="sorted")


class ConsumerOffsetTable(SavedTable):
    """consumerOffset.json: the consumer offset of each group and queue."""

    path = paths.CONSUMER_OFFSETS
    entries_member = "offsetTable"

    count = 0
    """Number of consumer offsets: one per group and queue."""

    def queue_count(self, topic: str, group: str) -> int:
        """Return the number of queues of a topic in which a group has an offset."""
        return len(self._queues.get((topic, group), ()))

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the queue offset that a group reads next; None if there is none."""
        queues = self._queues.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def of(self, topic: str, group: str) -> dict[int, int]:
        """Return queue id -> consumer offset, as a copy."""
        return dict(self._queues.get((topic, group), {}))

    def readers(self) -> Iterator[tuple[str, str]]:
        """Yield each (topic, group) with consumer offsets."""
        yield from list(self._queues)

    def all(self) -> Iterator[ConsumerOffset]:
        """Yield all consumer offsets; the table may change meanwhile."""
        for topic, group in list(self._queues):
            for queue_id, consumer_offset in self.of(topic, group).items():
                yield ConsumerOffset(topic, group, queue_id, consumer_offset)

    def put(self, topic: str, group: str, queue_id: int, consumer_offset: int) -> None:
        """Set a consumer offset; it may decrease."""
        key = topic, group
        queues = self._queues.setdefault(key, {})
        self.count += queue_id not in queues
        queues[queue_id] = consumer_offset
        self._changed.add(key)
        self.is_dirty = True
        self.change_count += 1

    def delete(self, *, topic: str | None = None, group: str | None = None) -> bool:
        """Remove the offsets of a topic, of a group, or of both; return whether there were any."""
        assert topic is not None or group is not None, "topic or group is required"
        if topic is not None and group is not None:
            doomed = [(topic, group)] if (topic, group) in self._queues else []
        else:
            doomed = [key for key in self._queues if topic == key[0] or group == key[1]]
        for key in doomed:
            self.count -= len(self._queues.pop(key))
        self._changed.update(doomed)
        self.is_dirty |= bool(doomed)
        self.change_count += len(doomed)
        return bool(doomed)

    def delete_queue(self, topic: str, group: str, queue_id: int) -> bool:
        """Remove the offset of a group in one queue; return whether there was one."""
        key = topic, group
        queues = self._queues.get(key, {})
        if queues.pop(queue_id, None) is None:
            return False
        if not queues:
            del self._queues[key]
        self.count -= 1
        self._changed.add(key)
        self.is_dirty = True
        self.change_count += 1
        return True

    def _decode(self, entries: Table) -> None:
        self._queues: dict[tuple[str, str], dict[int, int]] = {}
        for key, queues in entries.items():
            topic, _, group = key.partition(GROUP_SEPARATOR)
            offsets = {int(queue_id): int(value) for queue_id, value in queues.items()}
            self._queues[topic, group] = offsets
        self.count = sum(map(len, self._queues.values()))
        self._changed = set(self._queues)

    def _stored_entry(self, key: tuple[str, str]) -> dict[int, int] | None:
        return self._queues.get(key)

    def _name(self, key: tuple[str, str]) -> str:
        return GROUP_SEPARATOR.join(key)

    def _entry_text(self, value: dict[int, int]) -> bytes:
        # There may be a hundred thousand of them; this takes a tenth of the time of ``json``.
        text = _NUMBERS.encode({str(queue_id): number for queue_id, number in value.items()})
        if not value:
            return text
        return b"{\n\t\t\t" + text[1:-1].replace(b",", b",\n\t\t\t") + b"\n\t\t}"


class DelayOffsetTable(SavedTable):
    """delayOffset.json: the queue offset that each delay level delivers next."""

    path = paths.DELAY_OFFSETS
    entries_member = "offsetTable"
    is_progress = True

    def get(self, level: int) -> int | None:
        """Return the queue offset that a level delivers next; None if there is none."""
        return self._offsets.get(level)

    def all(self) -> dict[int, int]:
        """Return level -> queue offset, as a copy."""
        return dict(self._offsets)

    def put(self, level: int, queue_offset: int) -> None:
        """Set the queue offset that a level delivers next; the first level is 1."""
        self._offsets[level] = queue_offset
        self._changed.add(level)
        self.is_dirty = True
        self.change_count += 1

    def _decode(self, entries: Table) -> None:
        self._offsets = {int(level): int(value) for level, value in entries.items()}
        self._changed = set(self._offsets)

    def _stored_entry(self, key: int) -> int | None:
        return self._offsets.get(key)
