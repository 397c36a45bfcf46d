"""The memory that kernels and Python share: control block, topic rows, queue rows, lists.

    block ---> topic table ---> topic row ---> queue rows by id ---> queue row ---> tail of units
          ---> dirty list, touched list (of queue rows)

Addresses never move while anything points at them: tables that grow are copied, and the block then
points at the copy. What the words mean: ``reput.store.kernels.control_block``.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from reput.format import java, names
from reput.store.kernels import control_block as state, hot, tables

_CHUNK_WORDS = 1 << 15
_SLOTS_AT_FIRST = 1 << 8
_ALL_SLOTS = 1 << 62
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

    @property
    def chunk_count(self) -> int:
        """How many chunks there are."""
        return len(self._chunks)

    @property
    def rows_per_chunk(self) -> int:
        """How many rows a chunk has."""
        return _CHUNK_WORDS // self._width

    def columns(self, *words: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yield these words of all rows, chunk by chunk: an array of shape (rows, words)."""
        rows = self.rows_per_chunk
        for chunk in self._chunks:
            yield chunk[: rows * self._width].reshape(rows, self._width)[:, words]

    def address(self, chunk: int, index: int) -> int:
        """Return the address of a row by its place."""
        return hot.address_of(self._chunks[chunk]) + 8 * index * self._width

    def place(self, address: int) -> tuple[int, int]:
        """Return the place of a row: its chunk, and its index in it."""
        for number, chunk in enumerate(self._chunks):
            distance = address - hot.address_of(chunk)
            if 0 <= distance < 8 * _CHUNK_WORDS:
                return number, distance // (8 * self._width)
        raise AssertionError("the row is of no chunk")


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

    __slots__ = ("_name", "_queues", "address", "hash", "words")

    def __init__(self, address: int, words: Words, name: bytes) -> None:
        self.address = address
        self.words = words
        self.hash = tables.name_slot(name, _ALL_SLOTS)
        """What its slot is made of, in tables of any size."""
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
    """The control block and everything it points at, but files.

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
        self._by_address: dict[int, TopicRow] = {}
        self._seen_counts: list[npt.NDArray[np.int64]] = []
        """Of each chunk of topic rows, messages and bytes that ``put_news`` has told."""
        self._write_queues: dict[bytes, int] = {}
        self._slow_topics: set[bytes] = set()
        self._slots = np.zeros(_SLOTS_AT_FIRST, np.int64)
        self.made_queue_count = 0
        """How many queues were ever added."""
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
            found = self._topics[name] = self._by_address[address] = TopicRow(address, words, name)
            while len(self._seen_counts) < self._topic_rows.chunk_count:
                self._seen_counts.append(np.zeros((self._topic_rows.rows_per_chunk, 2), np.int64))
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

    def put_news(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield what was put and not yielded before: name of a topic, messages, bytes of records.

        What a dropped topic got since then is not in it. Anything may change between two of them.
        """
        counts = self._topic_rows.columns(state.TOPIC_MESSAGE_COUNT, state.TOPIC_BYTE_COUNT)
        for number, (chunk, seen) in enumerate(zip(counts, self._seen_counts, strict=False)):
            for index in np.flatnonzero(chunk[:, 0] != seen[:, 0]).tolist():
                row = self._by_address.get(self._topic_rows.address(number, index))
                if row is None:
                    continue
                messages = row.words[state.TOPIC_MESSAGE_COUNT]
                size = row.words[state.TOPIC_BYTE_COUNT]
                seen_messages, seen_size = seen[index].tolist()
                if messages != seen_messages:
                    seen[index] = messages, size
                    yield row.name, messages - seen_messages, size - seen_size

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
            self._take_out(gone)
            chunk, index = self._topic_rows.place(gone.address)
            self._seen_counts[chunk][index] = 0
            gone.words[state.TOPIC_MESSAGE_COUNT] = gone.words[state.TOPIC_BYTE_COUNT] = 0
            self._topic_rows.give_back(gone.address, gone.words)
            del self._by_address[gone.address]

    def _take_out(self, gone: TopicRow) -> None:
        """Empty the slot of a topic, and let those behind it move up that could have stood there.

        To enter all others anew would make deletions of many topics quadratic.
        """
        slots, mask = self._slots, len(self._slots) - 1
        free = gone.hash & mask
        while slots[free] != gone.address:
            free = (free + 1) & mask
        at = (free + 1) & mask
        while slots[at]:
            home = self._by_address[int(slots[at])].hash & mask
            if (at - home) & mask >= (at - free) & mask:
                slots[free] = slots[at]
                free = at
            at = (at + 1) & mask
        slots[free] = 0

    def _rehash(self, slot_count: int) -> None:
        self._slots = np.zeros(slot_count, np.int64)
        for row in self._topics.values():
            self._enter(row)
        self._point_at_slots()

    def _enter(self, row: TopicRow) -> None:
        slots, mask = self._slots, len(self._slots) - 1
        slot = row.hash & mask
        while slots[slot]:
            slot = (slot + 1) & mask
        slots[slot] = row.address

    # Queues -----------------------------------------------------------------------------------

    def add_queue(self, topic: bytes, queue_id: int) -> tuple[int, Words]:
        """Return address and words of a new queue row, entered under its topic."""
        address, words = self._queue_rows.take()
        self._queue_count += 1
        self.made_queue_count += 1
        if self._queue_count > len(self._dirty):
            self._dirty = np.concatenate((self._dirty, np.zeros_like(self._dirty)))
            self._touched = np.concatenate((self._touched, np.zeros_like(self._touched)))
            self._point_at_lists()
        self.topic(topic).set_queue(queue_id, address)
        return address, words

    def drop_queue(self, topic: bytes, queue_id: int, address: int, words: Words) -> None:
        """Forget a queue that is on no list."""
        self.hide_queue(topic, queue_id)
        self.free_queue(address, words)

    def hide_queue(self, topic: bytes, queue_id: int) -> None:
        """Let kernels not find a queue any more."""
        self._topics[topic].set_queue(queue_id, 0)

    def free_queue(self, address: int, words: Words) -> None:
        """Give the row of a queue back that is on no list, and that kernels cannot find."""
        assert not words[state.QUEUE_MARKS], "taken from the lists first"
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

    @property
    def dirty_count(self) -> int:
        """How many queue rows have units that are in no file."""
        return self.block[state.DIRTY_COUNT]

    def dirty_rows(self) -> list[int]:
        """Return the addresses of queue rows with units that are in no file."""
        rows: list[int] = self._dirty[: self.block[state.DIRTY_COUNT]].tolist()
        return rows

    def first_dirty_rows(self, count: int) -> list[int]:
        """Return the addresses of those that have waited longest, at most ``count``."""
        rows: list[int] = self._dirty[: min(count, self.block[state.DIRTY_COUNT])].tolist()
        return rows

    def put_off_dirty_rows(self, count: int, end: int, rows: list[int]) -> None:
        """Take the first ``count`` off the list, and put some of them back before place ``end``.

        The caller has cleared the marks of the others. Costs two copies, however many are left.
        """
        dirty = self._dirty[: self.block[state.DIRTY_COUNT]]
        kept = (dirty[count:end], np.array(rows, np.int64), dirty[end:])
        self.block[state.DIRTY_COUNT] += len(rows) - count
        self._dirty[: self.block[state.DIRTY_COUNT]] = np.concatenate(kept)

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
