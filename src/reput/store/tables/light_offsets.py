"""lmqConsumerOffset.json: the consumer offsets of a broker with ``enableLmq``.

It replaces consumerOffset.json, and has the same members. In addition, groups that read light
queues (LMQ) are in a separate member with one number for each topic and group, since a light queue
has no other queues. Source: rocketmq 4.9.7 ``LmqConsumerOffsetManager``.
"""

from typing import Self

from reput.format import names
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import open_folder
from reput.store.tables import config_tables
from reput.store.tables.config_tables import Table
from reput.store.tables.offsets import ConsumerOffsetTable

_LIGHT_MEMBER = "lmqOffsetTable"


class LightConsumerOffsetTable(ConsumerOffsetTable):
    """The consumer offsets of all groups and queues, including light ones."""

    path = paths.LIGHT_CONSUMER_OFFSETS

    @classmethod
    def load(cls, root: str, disk: Disk, *, interval_ms: int = 0) -> Self:
        """Return the table of a store; see ``SavedTable.load``.

        If it does not exist, groups continue at their offsets in consumerOffset.json. (Java's
        broker loses them when ``enableLmq`` is set.)
        """
        table = super().load(root, disk, interval_ms=interval_ms)
        light = config_tables.member(table._members, _LIGHT_MEMBER, cls.path)
        with config_tables.expected_kind(cls.path):
            for key, consumer_offset in light.items():
                topic, _, group = key.partition(config_tables.GROUP_SEPARATOR)
                table._queues[topic, group] = {0: int(consumer_offset)}
        if config_tables.find(open_folder(root), cls.path) is None:
            for entry in ConsumerOffsetTable.load(root, disk).all():
                table.put(entry.topic, entry.group, entry.queue_id, entry.consumer_offset)
        table.count = sum(map(len, table._queues.values()))
        return table

    def _stored_entry(self, key: tuple[str, str]) -> dict[int, int] | None:
        return None if names.is_light(key[1]) else super()._stored_entry(key)

    def _other_members(self) -> Table:
        light = {
            self._name(key): queues[0]
            for key, queues in self._queues.items()
            if names.is_light(key[1]) and 0 in queues
        }
        return {**super()._other_members(), _LIGHT_MEMBER: light}
