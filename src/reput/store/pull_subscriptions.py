"""Delivering: common pulls, answered by the kernel that reads them (``receiving``).

The kernel knows readers: a group, a topic, and what of it the group wants. Rows of them are made
here, of pulls that were answered the long way, and all are taken away when anything changes that
answers depend on. What the kernel counts is collected here too.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reput.format import java, names
from reput.store.consume_queue import ConsumeQueues
from reput.store.hot_state import HotState
from reput.store.kernels import control_block as state, hot, tables
from reput.store.kernels.pull_rules import LONG_MAX

_SLOTS_AT_FIRST = 1 << 6
_LIST_AT_FIRST = 1 << 6
_READERS_MAX = 4096
_CODES_MAX = 256
"""Tags that a reader asks for, and letters of the expression that it says so with: who asks for
more is answered the long way."""
_TEXT_MAX = 4096
_ROWS_MAX = 1 << 18
"""Of deliveries: 12 MB; a topic may have 65,535 queues."""
_NOTHING_SAID = -1


class Reader(NamedTuple):
    """A group that reads a topic, and how its pulls say what they want."""

    topic: str
    group: str
    subscription: str | None
    """The expression that its pulls bring; None: they bring none."""
    sub_version: int
    """If they bring none: of what the group's members have subscribed to. Pulls of a newer one are
    not common."""
    tags_codes: tuple[int, ...]
    """What is wanted; nothing: everything."""
    queue_count: int
    """Queues that may be read have ids below this."""


class Delivery(NamedTuple):
    """What a group got from a queue since the last look."""

    topic: str
    group: str
    queue_id: int
    pull_count: int
    message_count: int
    byte_count: int
    consumer_offset: int | None
    """How far it has read, as it said last; None: it said nothing."""


class _Deliveries:
    """What a group got of a topic: a row a queue, shared by all its readers of the topic.

    Shared, as what their pulls say last of how far the group has read is what counts.
    """

    def __init__(self, number: int, topic: str, group: str, queue_count: int) -> None:
        self.topic = topic
        self.group = group
        self.rows = np.zeros((queue_count, state.DELIVERY_WORDS), np.int64)
        self.rows[:, state.DELIVERY_CONSUMER_OFFSET] = _NOTHING_SAID
        self.rows[:, state.DELIVERY_NUMBER] = number
        self.rows[:, state.DELIVERY_QUEUE_ID] = np.arange(queue_count)


class _Known:
    """A reader and its row."""

    def __init__(self, reader: Reader, deliveries: _Deliveries) -> None:
        self.reader = reader
        texts = (reader.group, reader.topic, reader.subscription or "")
        self._texts = [np.frombuffer(java.encode_utf8(one) + b"\0", np.uint8) for one in texts]
        self._codes = np.sort(np.array(reader.tags_codes, np.int64))
        self._row = np.zeros(state.READER_WORDS, np.int64)
        self.address = hot.address_of(self._row)
        addresses = [hot.address_of(text) for text in self._texts]
        sizes = [len(text) - 1 for text in self._texts]
        if reader.subscription is None:
            sizes[2] = -1
        row = self._row
        row[state.READER_GROUP], row[state.READER_TOPIC] = addresses[:2]
        row[state.READER_GROUP_SIZE], row[state.READER_TOPIC_SIZE] = sizes[:2]
        row[state.READER_SUBSCRIPTION] = addresses[2]
        row[state.READER_SUBSCRIPTION_SIZE] = sizes[2]
        row[state.READER_VERSION] = min(reader.sub_version, LONG_MAX)
        row[state.READER_CODES] = hot.address_of(self._codes)
        row[state.READER_CODE_COUNT] = len(self._codes)
        row[state.READER_DELIVERIES] = hot.address_of(deliveries.rows)
        row[state.READER_QUEUES] = len(deliveries.rows)

    def slot(self, slot_count: int) -> int:
        """Return the first slot of the table to try for it."""
        group, topic = (bytes(text[:-1]) for text in self._texts[:2])
        return tables.name_slot(group, slot_count) ^ tables.name_slot(topic, slot_count)


class PullSubscriptions:
    """The readers that the kernel knows.

    Args:
        hot_state: What kernels share.
        queues: What is read.
    """

    def __init__(self, hot_state: HotState, queues: ConsumeQueues) -> None:
        self._block = hot_state.block
        self._queues = queues
        self._known: dict[tuple[str, str, str | None], _Known] = {}
        self._deliveries: list[_Deliveries] = []
        self._by_group: dict[tuple[str, str], _Deliveries] = {}
        self._row_count = 0
        self._collected: list[Delivery] = []
        self._is_open = True
        self._make_table(_SLOTS_AT_FIRST)
        self._make_list(_LIST_AT_FIRST)

    def _make_table(self, slot_count: int) -> None:
        self._slots = np.zeros(slot_count, np.int64)
        for known in self._known.values():
            self._enter(known)
        self._block[state.READERS] = hot.address_of(self._slots)
        self._block[state.READER_SLOTS] = slot_count

    def _enter(self, known: _Known) -> None:
        slot = known.slot(len(self._slots))
        while self._slots[slot]:
            slot = (slot + 1) & (len(self._slots) - 1)
        self._slots[slot] = known.address

    def _make_list(self, size: int) -> None:
        """Make room on the list, on which nothing is."""
        self._list: npt.NDArray[np.int64] = np.zeros(size, np.int64)
        self._block[state.DELIVERED] = hot.address_of(self._list)

    def __len__(self) -> int:
        """How many readers the kernel knows."""
        return len(self._known)

    def add(self, reader: Reader) -> None:
        """Let the kernel answer a reader's pulls, if it can; nothing if it does so already."""
        key = reader.topic, reader.group, reader.subscription
        known = self._known.get(key)
        if not self._is_open or (known is not None and known.reader == reader):
            return
        if reader.topic.startswith(names.LMQ_PREFIX):
            return  # records of light queues do not say their places in it
        queues = self._queues.of_topic(reader.topic).values()
        if reader.tags_codes and any(one.extension is not None for one in queues):
            return  # units have addresses instead of tags codes
        if reader.queue_count > _ROWS_MAX:
            return
        if len(reader.tags_codes) > _CODES_MAX or len(reader.subscription or "") > _TEXT_MAX:
            return  # thousands of such readers would take gigabytes
        is_new_group = (reader.topic, reader.group) not in self._by_group
        has_room = self._row_count + is_new_group * reader.queue_count <= _ROWS_MAX
        if known is not None or not has_room or len(self._known) >= _READERS_MAX:
            self.clear()
        known = self._known[key] = _Known(reader, self._deliveries_of(reader))
        if 2 * len(self._known) > len(self._slots):
            self._make_table(4 * len(self._slots))
        else:
            self._enter(known)

    def _deliveries_of(self, reader: Reader) -> _Deliveries:
        key = reader.topic, reader.group
        found = self._by_group.get(key)
        if found is None:
            found = _Deliveries(len(self._deliveries), *key, reader.queue_count)
            self._by_group[key] = found
            self._deliveries.append(found)
            self._row_count += reader.queue_count
            if self._row_count > len(self._list):
                self._collect()
                self._make_list(2 * self._row_count)
        return found

    def clear(self) -> None:
        """Let the kernel forget all readers, as what they may have has changed."""
        if not self._known:
            return
        self._collect()
        self._known.clear()
        self._deliveries.clear()
        self._by_group.clear()
        self._row_count = 0
        self._make_table(_SLOTS_AT_FIRST)

    def close(self) -> None:
        """Clear, for good."""
        self.clear()
        self._is_open = False

    @property
    def has_news(self) -> bool:
        """Whether ``take`` returns anything."""
        return bool(self._collected) or self._block[state.DELIVERED_COUNT] > 0

    def take(self) -> list[Delivery]:
        """Return what was delivered since the last call."""
        self._collect()
        collected, self._collected = self._collected, []
        return collected

    def _collect(self) -> None:
        block = self._block
        addresses = self._list[: block[state.DELIVERED_COUNT]].tolist()
        block[state.DELIVERED_COUNT] = 0
        for address in addresses:
            words = hot.words_at(address, state.DELIVERY_WORDS)
            deliveries = self._deliveries[words[state.DELIVERY_NUMBER]]
            said = words[state.DELIVERY_CONSUMER_OFFSET]
            self._collected.append(
                Delivery(
                    deliveries.topic,
                    deliveries.group,
                    words[state.DELIVERY_QUEUE_ID],
                    words[state.DELIVERY_PULLS],
                    words[state.DELIVERY_MESSAGES],
                    words[state.DELIVERY_BYTES],
                    said if said != _NOTHING_SAID else None,
                )
            )
            words[state.DELIVERY_PULLS] = 0
            words[state.DELIVERY_MESSAGES] = words[state.DELIVERY_BYTES] = 0
            words[state.DELIVERY_CONSUMER_OFFSET] = _NOTHING_SAID
