"""Fast path of pulls: the readers whose pulls a kernel may answer (``send_ingest``).

A reader is a group, a topic, and a subscription. This module adds their rows after a processor has
answered their pulls, and removes all of them when anything changes that replies depend on. It also
collects what the kernel counts.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reput.broker.kernels.pull_rules import LONG_MAX
from reput.format import java, names
from reput.format.codes import MASTER_ID
from reput.format.kernels.rows import columns_of, word_count
from reput.format.pull_reply import SUGGESTED_MAX
from reput.store.kernels import hot, tables
from reput.store.kernels.control_block import DeliveryRow, ReaderRow
from reput.store.message_store import MessageStore

_SLOT_COUNT_MIN = 1 << 6
_LIST_SIZE_MIN = 1 << 6
_READERS_MAX = 4096
_CODES_MAX = 256
"""Maximum of tags in a subscription, and of characters in its expression. The pulls of readers with
more fall back.
"""
_TEXT_MAX = 4096
_ROWS_MAX = 1 << 18
"""Maximum of delivery rows, 12 MB; a topic may have 65,535 queues."""
_NO_OFFSET = -1

_DELIVERY = columns_of(DeliveryRow)


class Reader(NamedTuple):
    """A group that reads a topic, and the subscription in its pulls."""

    topic: str
    group: str
    subscription: str | None
    """The filter expression in its pulls; None if the pulls have no expression."""
    sub_version: int
    """Version of the subscription, for pulls without an expression; newer versions fall back."""
    tags_codes: tuple[int, ...]
    """Hashes of the wanted tags; empty: all messages."""
    queue_count: int
    """Number of queues that may be read."""
    broker_id: int = MASTER_ID
    """Id of the broker that replies suggest."""
    far_broker_id: int = MASTER_ID
    """Id of the broker that replies suggest if the messages are far from the end of the log."""


class Delivery(NamedTuple):
    """Messages that a group received from a queue since the last ``take``."""

    topic: str
    group: str
    queue_id: int
    pull_count: int
    message_count: int
    byte_count: int
    consumer_offset: int | None
    """The last consumer offset in its pulls; None if no pull had one."""


class _Deliveries:
    """Messages that a group received from a topic: a row per queue, shared by all its readers.

    Shared, as only the last consumer offset in the pulls of any of them counts.
    """

    def __init__(self, number: int, topic: str, group: str, queue_count: int) -> None:
        self.topic = topic
        self.group = group
        self.rows = np.zeros((queue_count, word_count(DeliveryRow)), np.int64)
        self.rows[:, _DELIVERY.consumer_offset] = _NO_OFFSET
        self.rows[:, _DELIVERY.number] = number
        self.rows[:, _DELIVERY.queue_id] = np.arange(queue_count)


class _ReaderRow:
    """A reader and its row."""

    def __init__(self, reader: Reader, deliveries: _Deliveries) -> None:
        self.reader = reader
        texts = (reader.group, reader.topic, reader.subscription or "")
        self._texts = [np.frombuffer(java.encode_utf8(text) + b"\0", np.uint8) for text in texts]
        self._codes = np.sort(np.array(reader.tags_codes, np.int64))
        self._row = ReaderRow()
        self.address = self._row.address
        addresses = [hot.address_of(text) for text in self._texts]
        sizes = [len(text) - 1 for text in self._texts]
        if reader.subscription is None:
            sizes[2] = -1
        row = self._row
        row.group, row.topic = addresses[:2]
        row.group_size, row.topic_size = sizes[:2]
        row.subscription = addresses[2]
        row.subscription_size = sizes[2]
        row.version = min(reader.sub_version, LONG_MAX)
        row.codes = hot.address_of(self._codes)
        row.code_count = len(self._codes)
        row.deliveries = hot.address_of(deliveries.rows)
        row.queues = len(deliveries.rows)
        row.broker = reader.broker_id
        row.far_broker = reader.far_broker_id

    def slot(self, slot_count: int) -> int:
        """Return the first slot of the table to try for this reader."""
        group, topic = (bytes(text[:-1]) for text in self._texts[:2])
        return tables.name_slot(group, slot_count) ^ tables.name_slot(topic, slot_count)


class PullSubscriptions:
    """The readers whose pulls the kernel answers.

    They are forgotten before the store removes queues, since the kernel has the addresses of these.

    Args:
        store: The store.
    """

    def __init__(self, store: MessageStore) -> None:
        self._block = store.hot_state.block
        self._queues = store.queues
        store.before_release.append(self.clear)
        self._readers: dict[tuple[str, str, str | None], _ReaderRow] = {}
        self._deliveries: list[_Deliveries] = []
        self._by_group: dict[tuple[str, str], _Deliveries] = {}
        self._row_count = 0
        self._collected: list[Delivery] = []
        self._is_open = True
        self._make_table(_SLOT_COUNT_MIN)
        self._make_list(_LIST_SIZE_MIN)

    def _make_table(self, slot_count: int) -> None:
        self._slots = np.zeros(slot_count, np.int64)
        for row in self._readers.values():
            self._insert(row)
        self._block.readers = hot.address_of(self._slots)
        self._block.reader_slots = slot_count

    def _insert(self, row: _ReaderRow) -> None:
        slot = row.slot(len(self._slots))
        while self._slots[slot]:
            slot = (slot + 1) & (len(self._slots) - 1)
        self._slots[slot] = row.address

    def _make_list(self, size: int) -> None:
        """Make room on the list, which must be empty."""
        self._list: npt.NDArray[np.int64] = np.zeros(size, np.int64)
        self._block.delivered = hot.address_of(self._list)

    def __len__(self) -> int:
        """Return the number of readers."""
        return len(self._readers)

    def add(self, reader: Reader) -> None:
        """Let the kernel answer a reader's pulls, if it can. Do nothing if it already does."""
        key = reader.topic, reader.group, reader.subscription
        row = self._readers.get(key)
        if not self._is_open or (row is not None and row.reader == reader):
            return
        if reader.topic.startswith(names.LMQ_PREFIX):
            return  # records of light queues do not have their queue offsets
        queues = self._queues.of_topic(reader.topic).values()
        if reader.tags_codes and any(queue.extension is not None for queue in queues):
            return  # units have addresses instead of tags codes
        if reader.queue_count > _ROWS_MAX:
            return
        if not all(
            0 <= broker_id <= SUGGESTED_MAX
            for broker_id in (reader.broker_id, reader.far_broker_id)
        ):
            return
        if len(reader.tags_codes) > _CODES_MAX or len(reader.subscription or "") > _TEXT_MAX:
            return  # thousands of such readers would take gigabytes
        is_new_group = (reader.topic, reader.group) not in self._by_group
        has_room = self._row_count + is_new_group * reader.queue_count <= _ROWS_MAX
        if row is not None or not has_room or len(self._readers) >= _READERS_MAX:
            self.clear()
        row = self._readers[key] = _ReaderRow(reader, self._deliveries_of(reader))
        if 2 * len(self._readers) > len(self._slots):
            self._make_table(4 * len(self._slots))
        else:
            self._insert(row)

    def _deliveries_of(self, reader: Reader) -> _Deliveries:
        key = reader.topic, reader.group
        deliveries = self._by_group.get(key)
        if deliveries is None:
            deliveries = _Deliveries(len(self._deliveries), *key, reader.queue_count)
            self._by_group[key] = deliveries
            self._deliveries.append(deliveries)
            self._row_count += reader.queue_count
            if self._row_count > len(self._list):
                self._collect()
                self._make_list(2 * self._row_count)
        return deliveries

    def clear(self) -> None:
        """Remove all readers, as their permissions or subscriptions have changed."""
        if not self._readers:
            return
        self._collect()
        self._readers.clear()
        self._deliveries.clear()
        self._by_group.clear()
        self._row_count = 0
        self._make_table(_SLOT_COUNT_MIN)

    def close(self) -> None:
        """Remove all readers, and add no more."""
        self.clear()
        self._is_open = False

    @property
    def has_news(self) -> bool:
        """Whether ``take`` returns anything."""
        return bool(self._collected) or self._block.delivered_count > 0

    def take(self) -> list[Delivery]:
        """Return what was delivered since the last call."""
        self._collect()
        collected, self._collected = self._collected, []
        return collected

    def _collect(self) -> None:
        block = self._block
        addresses = self._list[: block.delivered_count].tolist()
        block.delivered_count = 0
        for address in addresses:
            words = DeliveryRow.from_address(address)
            deliveries = self._deliveries[words.number]
            consumer_offset = words.consumer_offset
            self._collected.append(
                Delivery(
                    deliveries.topic,
                    deliveries.group,
                    words.queue_id,
                    words.pulls,
                    words.messages,
                    words.bytes,
                    consumer_offset if consumer_offset != _NO_OFFSET else None,
                )
            )
            words.pulls = 0
            words.messages = words.bytes = 0
            words.consumer_offset = _NO_OFFSET
