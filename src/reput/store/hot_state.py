"""The memory that kernels and Python share: control block, topic rows, queue rows, lists.

    block ---> topic table ---> topic row ---> queue rows by id ---> queue row ---> tail of units
          ---> dirty list, touched list (of queue rows)

Addresses never move while anything points at them: tables that grow are copied, and the block then
points at the copy. The meaning of their fields: ``reput.store.kernels.control_block``.
"""

from collections.abc import Iterator
from typing import Generic

import numpy as np
import numpy.typing as npt

from reput.format import java, names
from reput.format.kernels.rows import WORD_BYTES, RowKind, columns_of, word_count
from reput.store.kernels import control_block as state, hot, tables
from reput.store.kernels.control_block import ControlBlock

_CHUNK_WORDS = 1 << 15
_SLOT_COUNT_MIN = 1 << 8
_ALL_SLOTS = 1 << 62
_QUEUE_COUNT_MIN = 8
_LIST_SIZE_MIN = 1 << 10
_TOPIC = columns_of(state.TopicRow)


class _Rows(Generic[RowKind]):
    """Rows of one layout, allocated from chunks that never move."""

    def __init__(self, kind: type[RowKind]) -> None:
        self._kind = kind
        self._width = word_count(kind)
        self._chunks: list[npt.NDArray[np.int64]] = []
        self._chunk = memoryview(b"")
        self._used = _CHUNK_WORDS
        self._free: list[RowKind] = []

    def take(self) -> tuple[int, RowKind]:
        """Return the address of a row of zeros, and the row."""
        if self._free:
            row = self._free.pop()
            row.clear()
            return row.address, row
        if self._used + self._width > _CHUNK_WORDS:
            self._chunks.append(np.zeros(_CHUNK_WORDS, np.int64))
            self._chunk = self._chunks[-1].data
            self._used = 0
        start = self._used
        self._used += self._width
        row = self._kind.from_buffer(self._chunk, WORD_BYTES * start)
        return row.address, row

    def give_back(self, row: RowKind) -> None:
        """Free a row. Nothing may point at it any more."""
        self._free.append(row)

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return len(self._chunks)

    @property
    def rows_per_chunk(self) -> int:
        """Number of rows in a chunk."""
        return _CHUNK_WORDS // self._width

    def columns(self, *words: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yield some words of all rows, chunk by chunk: arrays of shape (rows, words)."""
        rows = self.rows_per_chunk
        for chunk in self._chunks:
            yield chunk[: rows * self._width].reshape(rows, self._width)[:, words]

    def address(self, chunk: int, index: int) -> int:
        """Return the address of a row by its chunk and its index in it."""
        return hot.address_of(self._chunks[chunk]) + 8 * index * self._width

    def place(self, address: int) -> tuple[int, int]:
        """Return the chunk of a row, and its index in it."""
        for number, chunk in enumerate(self._chunks):
            distance = address - hot.address_of(chunk)
            if 0 <= distance < 8 * _CHUNK_WORDS:
                return number, distance // (8 * self._width)
        raise AssertionError("the row is of no chunk")


class QueueEnds:
    """Begin and end of a queue, as in its row, which Python and the kernels share."""

    __slots__ = ("address", "row")

    def __init__(self, address: int, row: state.QueueRow) -> None:
        self.address = address
        """Address of the row."""
        self.row = row

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message in the log; ``max_offset`` if there is none."""
        return self.row.min_offset

    @property
    def max_offset(self) -> int:
        """Queue offset after the last message that was dispatched."""
        return self.row.max_offset

    @property
    def next_offset(self) -> int:
        """Queue offset of the next message that is put."""
        return self.row.next_offset

    @property
    def end_physical_offset(self) -> int:
        """Physical offset after the record of the last unit; 0 without units."""
        return self.row.end_physical


class TopicRow:
    """A topic's row."""

    __slots__ = ("_name", "_queues", "address", "hash", "words")

    def __init__(self, address: int, words: state.TopicRow, name: bytes) -> None:
        self.address = address
        self.words = words
        self.hash = tables.name_slot(name, _ALL_SLOTS)
        """Hash of the name, from which its slot follows in tables of any size."""
        self._name = np.frombuffer(name, np.uint8)
        self._queues = np.zeros(_QUEUE_COUNT_MIN, np.int64)
        words.name = hot.address_of(self._name)
        words.name_size = len(name)
        words.hash = java.string_hash(java.decode_utf8(name) + "#") & 0xFFFFFFFF
        self._point()

    def _point(self) -> None:
        self.words.queues = hot.address_of(self._queues)
        self.words.queue_limit = len(self._queues)

    @property
    def name(self) -> bytes:
        """Name of the topic in UTF-8."""
        return self._name.tobytes()

    def set_queue(self, queue_id: int, address: int) -> None:
        """Set the row of a queue; address 0 removes it."""
        if queue_id >= len(self._queues):
            grown = np.zeros(1 << queue_id.bit_length(), np.int64)
            grown[: len(self._queues)] = self._queues
            self._queues = grown
            self._point()
        self._queues[queue_id] = address


class HotState:
    """The control block and everything it points at, except files.

    A queue row is on a list at most once, so the lists have room for all rows.

    Args:
        is_slow: Kernels leave all dispatch to Python, as extension units need it.
    """

    def __init__(self, *, is_slow: bool = False) -> None:
        self.is_slow = is_slow
        """True if kernels leave all dispatch to Python."""
        self.block = ControlBlock()
        self.address = self.block.address
        self.argument = hot.Address(self.address)
        """Address of the block as short kernels take it."""
        self._topic_rows = _Rows(state.TopicRow)
        self._queue_rows = _Rows(state.QueueRow)
        self._topics: dict[bytes, TopicRow] = {}
        self._by_address: dict[int, TopicRow] = {}
        self._seen_counts: list[npt.NDArray[np.int64]] = []
        """Messages and bytes that ``put_news`` has reported, by chunk of topic rows."""
        self._write_queues: dict[bytes, int] = {}
        self._slow_topics: set[bytes] = set()
        self._slots = np.zeros(_SLOT_COUNT_MIN, np.int64)
        self.made_queue_count = 0
        """Number of queues that were ever added."""
        self._queue_count = 0
        self._dirty = np.zeros(_LIST_SIZE_MIN, np.int64)
        self._touched = np.zeros(_LIST_SIZE_MIN, np.int64)
        self._crc_tables = hot.crc_tables()
        self.block.crc_tables = hot.address_of(self._crc_tables)
        self._point_at_slots()
        self._point_at_lists()

    def _point_at_slots(self) -> None:
        self.block.topics = hot.address_of(self._slots)
        self.block.topic_slots = len(self._slots)

    def _point_at_lists(self) -> None:
        self.block.dirty = hot.address_of(self._dirty)
        self.block.touched = hot.address_of(self._touched)

    def set_delays(self, levels_ms: tuple[int, ...]) -> dict[int, int]:
        """Set the delays of all levels; return them as level -> ms."""
        self._delays = np.array(levels_ms, np.int64)
        self.block.delays = hot.address_of(self._delays)
        self.block.delay_count = len(levels_ms)
        return dict(enumerate(levels_ms, 1))

    # Topics -----------------------------------------------------------------------------------

    def topic(self, name: bytes) -> TopicRow:
        """Return the row of a topic; create it if it does not exist."""
        topic_row = self._topics.get(name)
        if topic_row is None:
            address, words = self._topic_rows.take()
            topic_row = self._topics[name] = self._by_address[address] = TopicRow(
                address, words, name
            )
            while len(self._seen_counts) < self._topic_rows.chunk_count:
                self._seen_counts.append(np.zeros((self._topic_rows.rows_per_chunk, 2), np.int64))
            words.kind = self._kind(name)
            words.write_queues = self._write_queues.get(name, 0)
            if 2 * len(self._topics) > len(self._slots):
                self._rehash(4 * len(self._slots))
            else:
                self._insert(topic_row)
        return topic_row

    def _kind(self, name: bytes) -> int:
        if self.is_slow or name in self._slow_topics:
            return state.KIND_SLOW
        is_schedule = name == names.SCHEDULE_TOPIC.encode()
        return state.KIND_SCHEDULE if is_schedule else state.KIND_PLAIN

    def set_slow(self, name: bytes, *, is_slow: bool) -> None:
        """Disable the fast path of a topic for a while, if the topic has a row."""
        row = self._topics.get(name)
        if row is not None:
            row.words.kind = state.KIND_SLOW if is_slow else self._kind(name)

    def keep_slow(self, name: bytes, *, is_slow: bool) -> None:
        """Disable or enable the fast path of a topic permanently."""
        (self._slow_topics.add if is_slow else self._slow_topics.discard)(name)
        self.set_slow(name, is_slow=is_slow)

    def put_news(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield the puts since the last call: name of a topic, number of messages, and their bytes.

        Puts to a topic that was dropped since are not reported. The caller may change anything
        between two topics.
        """
        counts = self._topic_rows.columns(_TOPIC.message_count, _TOPIC.byte_count)
        for number, (chunk, seen) in enumerate(zip(counts, self._seen_counts, strict=False)):
            for index in np.flatnonzero(chunk[:, 0] != seen[:, 0]).tolist():
                row = self._by_address.get(self._topic_rows.address(number, index))
                if row is None:
                    continue
                messages = row.words.message_count
                size = row.words.byte_count
                seen_messages, seen_size = seen[index].tolist()
                if messages != seen_messages:
                    seen[index] = messages, size
                    yield row.name, messages - seen_messages, size - seen_size

    def count_more(self, name: bytes, count: int) -> None:
        """Add messages to the total of a topic whose record holds more than one."""
        self._topics[name].words.message_count += count

    def set_write_queues(self, name: bytes, count: int) -> None:
        """Set the number of queues of a topic that the fast path may store in; 0: none."""
        self._write_queues.pop(name, None)
        if count:
            self._write_queues[name] = count
        row = self._topics.get(name)
        if row is not None:
            row.words.write_queues = count

    def drop_topic(self, name: bytes) -> None:
        """Remove a topic whose queues are dropped."""
        row = self._topics.pop(name, None)
        if row is not None:
            self._remove_slot(row)
            chunk, index = self._topic_rows.place(row.address)
            self._seen_counts[chunk][index] = 0
            row.words.message_count = row.words.byte_count = 0
            self._topic_rows.give_back(row.words)
            del self._by_address[row.address]

    def _remove_slot(self, row: TopicRow) -> None:
        """Clear the slot of a topic, and move up those after it that belong there.

        Inserting all topics again would make deletions of many topics quadratic.
        """
        slots, mask = self._slots, len(self._slots) - 1
        free = row.hash & mask
        while slots[free] != row.address:
            free = (free + 1) & mask
        slot = (free + 1) & mask
        while slots[slot]:
            home = self._by_address[int(slots[slot])].hash & mask
            if (slot - home) & mask >= (slot - free) & mask:
                slots[free] = slots[slot]
                free = slot
            slot = (slot + 1) & mask
        slots[free] = 0

    def _rehash(self, slot_count: int) -> None:
        self._slots = np.zeros(slot_count, np.int64)
        for row in self._topics.values():
            self._insert(row)
        self._point_at_slots()

    def _insert(self, row: TopicRow) -> None:
        slots, mask = self._slots, len(self._slots) - 1
        slot = row.hash & mask
        while slots[slot]:
            slot = (slot + 1) & mask
        slots[slot] = row.address

    # Queues -----------------------------------------------------------------------------------

    def add_queue(self, topic: bytes, queue_id: int) -> tuple[int, state.QueueRow]:
        """Return address and words of a new row for a queue of a topic."""
        address, words = self._queue_rows.take()
        self._queue_count += 1
        self.made_queue_count += 1
        if self._queue_count > len(self._dirty):
            self._dirty = np.concatenate((self._dirty, np.zeros_like(self._dirty)))
            self._touched = np.concatenate((self._touched, np.zeros_like(self._touched)))
            self._point_at_lists()
        self.topic(topic).set_queue(queue_id, address)
        return address, words

    def drop_queue(self, topic: bytes, queue_id: int, words: state.QueueRow) -> None:
        """Remove a queue that is on no list."""
        self.hide_queue(topic, queue_id)
        self.free_queue(words)

    def hide_queue(self, topic: bytes, queue_id: int) -> None:
        """Hide a queue from the kernels."""
        self._topics[topic].set_queue(queue_id, 0)

    def free_queue(self, words: state.QueueRow) -> None:
        """Free the row of a queue that is on no list and hidden from the kernels."""
        assert not words.marks, "taken from the lists first"
        self._queue_count -= 1
        self._queue_rows.give_back(words)

    def mark_dirty(self, address: int) -> None:
        """Put a row on the list of queues with units that are not in a file yet."""
        self._dirty[self.block.dirty_count] = address
        self.block.dirty_count += 1

    def mark_touched(self, address: int) -> None:
        """Add a row to the list of queues with new units."""
        self._touched[self.block.touched_count] = address
        self.block.touched_count += 1

    @property
    def dirty_count(self) -> int:
        """Number of queue rows with units that are not in a file yet."""
        return self.block.dirty_count

    def dirty_rows(self) -> list[int]:
        """Return the addresses of queue rows with units that are not in a file yet."""
        rows: list[int] = self._dirty[: self.block.dirty_count].tolist()
        return rows

    def first_dirty_rows(self, count: int) -> list[int]:
        """Return the addresses of the rows that have waited longest, at most ``count``."""
        rows: list[int] = self._dirty[: min(count, self.block.dirty_count)].tolist()
        return rows

    def put_off_dirty_rows(self, count: int, end: int, rows: list[int]) -> None:
        """Remove the first ``count`` from the list, and insert some of them before index ``end``.

        The caller has cleared the marks of the others. The cost is two copies for any length.
        """
        dirty = self._dirty[: self.block.dirty_count]
        kept = (dirty[count:end], np.array(rows, np.int64), dirty[end:])
        self.block.dirty_count += len(rows) - count
        self._dirty[: self.block.dirty_count] = np.concatenate(kept)

    def set_dirty_rows(self, rows: list[int]) -> None:
        """Replace the list; the caller has cleared the marks of the others."""
        self._dirty[: len(rows)] = rows
        self.block.dirty_count = len(rows)

    def take_touched_rows(self) -> list[int]:
        """Return the addresses of the rows of queues with new units since the last call."""
        rows: list[int] = self._touched[: self.block.touched_count].tolist()
        self.block.touched_count = 0
        return rows

    def take_off_lists(self, addresses: set[int]) -> None:
        """Remove rows from both lists before they are dropped; the caller clears their marks."""
        self.set_dirty_rows([address for address in self.dirty_rows() if address not in addresses])
        kept = [address for address in self.take_touched_rows() if address not in addresses]
        self._touched[: len(kept)] = kept
        self.block.touched_count = len(kept)
