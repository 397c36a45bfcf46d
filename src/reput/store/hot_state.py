"""The memory that the writing kernels and Python share: state block, topic rows, queue rows, lists.

    block ---> topic table ---> topic row ---> queue rows by id ---> queue row ---> tail of units
          ---> dirty list, touched list (of queue rows)

Addresses never move while anything points at them: tables that grow are copied, and the block then
points at the copy. What the words mean: ``reput.format.kernels.state``.
"""

import numpy as np
import numpy.typing as npt

from reput.format import java, names
from reput.format.kernels import hot, hot_twin, state

_CHUNK_WORDS = 1 << 15
_SLOTS_AT_FIRST = 1 << 8
_QUEUES_AT_FIRST = 8
_LIST_AT_FIRST = 1 << 10

Words = memoryview
"""int64 each, in native order: a row, or the block."""


class _Rows:
    """Rows of one width, carved from chunks that stay where they are."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._chunks: list[npt.NDArray[np.int64]] = []
        self._used = _CHUNK_WORDS
        self._free: list[tuple[int, Words]] = []

    def take(self) -> tuple[int, Words]:
        """Return the address of a row of zeros, and the row."""
        if self._free:
            address, row = self._free.pop()
            for i in range(self._width):
                row[i] = 0
            return address, row
        if self._used + self._width > _CHUNK_WORDS:
            self._chunks.append(np.zeros(_CHUNK_WORDS, np.int64))
            self._used = 0
        chunk = self._chunks[-1]
        start = self._used
        self._used += self._width
        return hot.address_of(chunk) + 8 * start, chunk.data[start : self._used]

    def give_back(self, address: int, row: Words) -> None:
        """Take a row back; nothing may point at it any more."""
        self._free.append((address, row))


class QueueEnds:
    """Where a queue begins and ends, as its row tells: Python and the kernels see the same."""

    __slots__ = ("address", "row")

    def __init__(self, address: int, row: Words) -> None:
        self.address = address
        """Of the row."""
        self.row = row

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message that is in the log; ``max_offset`` if none is."""
        return self.row[state.QUEUE_MIN_OFFSET]

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last message that was dispatched."""
        return self.row[state.QUEUE_MAX_OFFSET]

    @property
    def next_offset(self) -> int:
        """Queue offset that the next message gets which is put."""
        return self.row[state.QUEUE_NEXT_OFFSET]

    @property
    def end_physical_offset(self) -> int:
        """Physical offset behind the record of the last unit; 0 without units."""
        return self.row[state.QUEUE_END_PHYSICAL]


class TopicRow:
    """A topic as the kernels know it."""

    __slots__ = ("_name", "_queues", "address", "words")

    def __init__(self, address: int, words: Words, name: bytes) -> None:
        self.address = address
        self.words = words
        self._name = np.frombuffer(name, np.uint8)
        self._queues = np.zeros(_QUEUES_AT_FIRST, np.int64)
        words[state.TOPIC_NAME] = hot.address_of(self._name)
        words[state.TOPIC_NAME_SIZE] = len(name)
        words[state.TOPIC_HASH] = java.string_hash(java.decode_utf8(name) + "#") & 0xFFFFFFFF
        self._point()

    def _point(self) -> None:
        self.words[state.TOPIC_QUEUES] = hot.address_of(self._queues)
        self.words[state.TOPIC_QUEUE_LIMIT] = len(self._queues)

    @property
    def name(self) -> bytes:
        """The topic's UTF-8."""
        return self._name.tobytes()

    def set_queue(self, queue_id: int, address: int) -> None:
        """Enter a queue row under its id; address 0 takes it out."""
        if queue_id >= len(self._queues):
            grown = np.zeros(1 << queue_id.bit_length(), np.int64)
            grown[: len(self._queues)] = self._queues
            self._queues = grown
            self._point()
        self._queues[queue_id] = address


class HotState:
    """The state block and everything it points at, but files.

    Queue rows are on a list at most once, so the lists have room for all rows there are.

    Args:
        is_slow: Kernels leave all dispatch to Python, as extension units need it.
    """

    def __init__(self, *, is_slow: bool = False) -> None:
        self._is_slow = is_slow
        self._block = np.zeros(state.BLOCK_WORDS, np.int64)
        self.address = hot.address_of(self._block)
        self.argument = hot.Address(self.address)
        """The address as short kernels take it."""
        self.block: Words = self._block.data
        self._topic_rows = _Rows(state.TOPIC_WORDS)
        self._queue_rows = _Rows(state.QUEUE_WORDS)
        self._topics: dict[bytes, TopicRow] = {}
        self._write_queues: dict[bytes, int] = {}
        self._slow_topics: set[bytes] = set()
        self._slots = np.zeros(_SLOTS_AT_FIRST, np.int64)
        self._queue_count = 0
        self._dirty = np.zeros(_LIST_AT_FIRST, np.int64)
        self._touched = np.zeros(_LIST_AT_FIRST, np.int64)
        self._crc_tables = hot.crc_tables()
        self.block[state.CRC_TABLES] = hot.address_of(self._crc_tables)
        self._point_at_slots()
        self._point_at_lists()

    def _point_at_slots(self) -> None:
        self.block[state.TOPICS] = hot.address_of(self._slots)
        self.block[state.TOPIC_SLOTS] = len(self._slots)

    def _point_at_lists(self) -> None:
        self.block[state.DIRTY] = hot.address_of(self._dirty)
        self.block[state.TOUCHED] = hot.address_of(self._touched)

    def set_delays(self, levels_ms: tuple[int, ...]) -> dict[int, int]:
        """Give the kernels what each delay level waits; return the same as level -> ms."""
        self._delays = np.array(levels_ms, np.int64)
        self.block[state.DELAYS] = hot.address_of(self._delays)
        self.block[state.DELAY_COUNT] = len(levels_ms)
        return dict(enumerate(levels_ms, 1))

    # Topics -----------------------------------------------------------------------------------

    def topic(self, name: bytes) -> TopicRow:
        """Return the row of a topic, made if need be."""
        found = self._topics.get(name)
        if found is None:
            address, words = self._topic_rows.take()
            found = self._topics[name] = TopicRow(address, words, name)
            words[state.TOPIC_KIND] = self._kind(name)
            words[state.TOPIC_WRITE_QUEUES] = self._write_queues.get(name, 0)
            if 2 * len(self._topics) > len(self._slots):
                self._rehash(4 * len(self._slots))
            else:
                self._enter(found)
        return found

    def _kind(self, name: bytes) -> int:
        if self._is_slow or name in self._slow_topics:
            return state.KIND_SLOW
        is_schedule = name == names.SCHEDULE_TOPIC.encode()
        return state.KIND_SCHEDULE if is_schedule else state.KIND_PLAIN

    def set_slow(self, name: bytes, *, is_slow: bool) -> None:
        """Let kernels leave a topic to Python for a while; nothing if it has no row."""
        row = self._topics.get(name)
        if row is not None:
            row.words[state.TOPIC_KIND] = state.KIND_SLOW if is_slow else self._kind(name)

    def keep_slow(self, name: bytes, *, is_slow: bool) -> None:
        """Let kernels leave a topic to Python for good, or no longer."""
        (self._slow_topics.add if is_slow else self._slow_topics.discard)(name)
        self.set_slow(name, is_slow=is_slow)

    def put_counts(self) -> dict[bytes, tuple[int, int]]:
        """Return what was put: name of a topic -> messages and bytes."""
        count, size = state.TOPIC_MESSAGE_COUNT, state.TOPIC_BYTE_COUNT
        return {name: (row.words[count], row.words[size]) for name, row in self._topics.items()}

    def count_more(self, name: bytes, count: int) -> None:
        """Add messages to the total of a topic whose record holds more than one."""
        self._topics[name].words[state.TOPIC_MESSAGE_COUNT] += count

    def set_write_queues(self, name: bytes, count: int) -> None:
        """Say how many queues of a topic take sends without a second look; 0: none."""
        self._write_queues.pop(name, None)
        if count:
            self._write_queues[name] = count
        row = self._topics.get(name)
        if row is not None:
            row.words[state.TOPIC_WRITE_QUEUES] = count

    def drop_topic(self, name: bytes) -> None:
        """Forget a topic whose queues are dropped."""
        gone = self._topics.pop(name, None)
        if gone is not None:
            self._rehash(len(self._slots))
            self._topic_rows.give_back(gone.address, gone.words)

    def _rehash(self, slot_count: int) -> None:
        self._slots = np.zeros(slot_count, np.int64)
        for row in self._topics.values():
            self._enter(row)
        self._point_at_slots()

    def _enter(self, row: TopicRow) -> None:
        slot = hot_twin.name_slot(row.name, len(self._slots))
        while self._slots[slot]:
            slot = (slot + 1) & (len(self._slots) - 1)
        self._slots[slot] = row.address

    # Queues -----------------------------------------------------------------------------------

    def add_queue(self, topic: bytes, queue_id: int) -> tuple[int, Words]:
        """Return address and words of a new queue row, entered under its topic."""
        address, words = self._queue_rows.take()
        self._queue_count += 1
        if self._queue_count > len(self._dirty):
            self._dirty = np.concatenate((self._dirty, np.zeros_like(self._dirty)))
            self._touched = np.concatenate((self._touched, np.zeros_like(self._touched)))
            self._point_at_lists()
        self.topic(topic).set_queue(queue_id, address)
        return address, words

    def drop_queue(self, topic: bytes, queue_id: int, address: int, words: Words) -> None:
        """Forget a queue that is on no list."""
        assert not words[state.QUEUE_MARKS], "taken from the lists first"
        self._topics[topic].set_queue(queue_id, 0)
        self._queue_count -= 1
        self._queue_rows.give_back(address, words)

    def mark_dirty(self, address: int) -> None:
        """Put a row on the list of those with units that are in no file."""
        self._dirty[self.block[state.DIRTY_COUNT]] = address
        self.block[state.DIRTY_COUNT] += 1

    def mark_touched(self, address: int) -> None:
        """Put a row on the list of those that got units."""
        self._touched[self.block[state.TOUCHED_COUNT]] = address
        self.block[state.TOUCHED_COUNT] += 1

    def dirty_rows(self) -> list[int]:
        """Return the addresses of queue rows with units that are in no file."""
        rows: list[int] = self._dirty[: self.block[state.DIRTY_COUNT]].tolist()
        return rows

    def set_dirty_rows(self, rows: list[int]) -> None:
        """Leave these on the list; the caller has cleared the marks of the others."""
        self._dirty[: len(rows)] = rows
        self.block[state.DIRTY_COUNT] = len(rows)

    def take_touched_rows(self) -> list[int]:
        """Return the addresses of queue rows that got units since the last call."""
        rows: list[int] = self._touched[: self.block[state.TOUCHED_COUNT]].tolist()
        self.block[state.TOUCHED_COUNT] = 0
        return rows

    def take_off_lists(self, addresses: set[int]) -> None:
        """Take rows off both lists before they are dropped; the caller clears their marks."""
        self.set_dirty_rows([one for one in self.dirty_rows() if one not in addresses])
        kept = [one for one in self.take_touched_rows() if one not in addresses]
        self._touched[: len(kept)] = kept
        self.block[state.TOUCHED_COUNT] = len(kept)
