"""Memory for kernels: the bytes that they read and write end at a page without access.

A world is a control block with everything that it points at: a log file with little room, queues
with short tails or none, unknown topics, an index that is nearly full. The same ``Random`` makes
the same world, at other addresses.
"""

import ctypes
import mmap
import struct
from collections.abc import Callable, Collection
from random import Random
from typing import Any, cast

import numpy as np
from hypothesis import settings, strategies as st

from fuzz.request_streams import (
    EXPRESSIONS,
    GROUPS,
    NOW_MS,
    ODD_TOPICS,
    QUEUE_IDS,
    TIMER_MAX_MS,
    TOPICS as COMMON_TOPICS,
)
from interop import samples
from reput.broker.kernels import acks_args, scan_args, send_rules
from reput.broker.pull_subscriptions import PullSubscriptions, Reader
from reput.format import (
    cq_unit,
    index_entry,
    message as record,
    names,
    pop_codec,
    sys_flag as flags,
)
from reput.format.kernels.rows import Row, fields_of, row_and_tail, word_count
from reput.format.message import Host
from reput.store.hot_state import HotState
from reput.store.kernels import control_block as state, copy_args, hot, pop_args
from reput.store.message_store import MessageStore
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.writing import incoming
from reput.store.writing.copying import CopyRule
from reput.store.writing.incoming import IncomingMessage

SEEDS = st.integers(0, 2**32)
IS_SOAK = settings.default.max_examples > 100
DELAYS_MS = (1_000, 5_000, 7_200_000)
TOPICS = COMMON_TOPICS + ODD_TOPICS
QUEUES = [(topic, queue_id) for topic in TOPICS for queue_id in QUEUE_IDS]
UNTOUCHED = b"\xee"

# --- memory that ends at a page without access ----------------------------------


class Fence:
    """Bytes that end at a page without access: an access past the end kills the process."""

    def __init__(self, size: int) -> None:
        pages = -(-size // mmap.PAGESIZE) + 1
        self._map = mmap.mmap(-1, pages * mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        end = start + (pages - 1) * mmap.PAGESIZE
        assert _LIBC.mprotect(ctypes.c_void_p(end), mmap.PAGESIZE, 0) == 0
        self.size = size
        self.address = end - size

    @property
    def data(self) -> bytes:
        return hot.bytes_at(self.address, self.size)

    def write(self, position: int, data: bytes) -> None:
        assert 0 <= position <= self.size - len(data)
        ctypes.memmove(self.address + position, data, len(data))


_LIBC = ctypes.CDLL(None, use_errno=True)


# --- worlds ---------------------------------------------------------------------

ADDRESSES = {
    "log_address",
    "crc_tables",
    "delays",
    "topics",
    "dirty",
    "touched",
    "index_address",
    "files",
    "places",
    "pull_units",
    "pull_buffer",
    "pull_codes",
    "stop_row",
}
"""Words that are addresses, which differ in every run."""


def words_of(row: Row, left_out: Collection[str]) -> list[int]:
    """Return the words of a row without some fields."""
    words = np.frombuffer(bytes(row), np.int64).tolist()
    numbers = {fields_of(type(row))[name].number for name in left_out}
    return [word for number, word in enumerate(words) if number not in numbers]


class World:
    """A control block with all that it points at; the same ``random`` gives the same world."""

    def __init__(self, random: Random, **words: int) -> None:
        self.hot = HotState(is_slow=random.random() < 0.05)
        self.hot.set_delays(DELAYS_MS)
        block = self.block = self.hot.block
        self._make_log(random)
        self._make_index(random)
        self.rows: dict[tuple[str, int], tuple[int, state.QueueRow]] = {}
        self.tails: dict[tuple[str, int], Fence] = {}
        for queue in QUEUES:
            if random.random() < 0.8:
                self._make_queue(queue, random)
        self.places = np.zeros(64, np.int64)
        block.places = hot.address_of(self.places)
        block.input_time = NOW_MS
        block.is_live = random.random() < 0.8
        block.has_light_queues = random.random() < 0.5
        for name, value in words.items():
            setattr(block, name, value)

    def _make_log(self, random: Random) -> None:
        block = self.block
        size = random.choice([300, 1000, 5000, 20_000])
        position = random.choice([0, 0, 100, size // 2, size - 8])
        self.log = Fence(size)
        block.log_address = self.log.address if random.random() < 0.95 else 0
        block.log_start = random.choice([0, 4, 10]) * size
        block.log_size = size
        block.log_position = position
        block.log_limit = random.choice([size, size, position, position + (size >> 3)])

    def leave_room(self, room: int, *, is_file: bool) -> None:
        """Leave room up to the end of the log file, or of its reserved part, if they have it."""
        block = self.block
        size = block.log_size
        if is_file:
            block.log_position = max(0, size - room)
            block.log_limit = size
        else:
            block.log_limit = min(size, block.log_position + room)

    def _make_index(self, random: Random) -> None:
        block = self.block
        slots, entries = random.choice([1, 7, 50]), random.choice([2, 10, 60])
        next_entry = random.choice([1, 1, 2, entries - 1, entries])
        self.index = Fence(index_entry.entry_position(entries, slots))
        for slot in range(slots):
            value = random.choice([0, 0, 1, entries, -5, 1 << 30])
            self.index.write(index_entry.slot_position(slot), value.to_bytes(4, signed=True))
        block.index_address = self.index.address if random.random() < 0.9 else 0
        block.index_is_on = random.random() < 0.9
        block.index_has_tags = random.random() < 0.5
        block.index_slots = slots
        block.index_entries_max = entries
        block.index_next = next_entry
        block.index_limit = random.choice([entries, entries, next_entry, next_entry + 2])
        block.index_begin_timestamp = random.choice(
            [0, 0, NOW_MS - 5_500, NOW_MS + 5_500, NOW_MS - (1 << 31) * 1000 - 1_000]
        )
        start = block.log_start
        block.index_end_offset = random.choice([-1, -1, -1, start, start + 400])

    def _make_queue(self, queue: tuple[str, int], random: Random) -> None:
        topic, queue_id = queue
        address, row = self.hot.add_queue(topic.encode(), queue_id)
        self.rows[queue] = address, row
        units = random.choice([0, 1, 2, 30])
        first = random.choice([0, 0, 0, 7, 1 << 40])
        used = random.randint(0, units)
        if units:
            tail = self.tails[queue] = Fence(units * cq_unit.SIZE)
            row.tail = tail.address
        row.tail_limit = units
        row.tail_offset = first
        row.max_offset = first + used
        row.next_offset = first + used + random.choice([0, 0, 3])
        if used:
            row.marks = state.MARK_DIRTY | state.MARK_TOUCHED
            self.hot.mark_dirty(address)
            self.hot.mark_touched(address)

    def meaning(self) -> dict[str, Any]:
        """Return the contents of the world without addresses."""
        by_address = {address: queue for queue, (address, _) in self.rows.items()}
        topics = {topic: self.hot.topic(topic.encode()) for topic in {t for t, _ in self.rows}}
        for topic, row in topics.items():
            by_address[row.address] = (topic, -1)
        stop_row = self.block.stop_row
        dirty, touched = self.hot.dirty_rows(), self.hot.take_touched_rows()
        return {
            "words": words_of(self.block, ADDRESSES),
            "stop row": by_address.get(stop_row, stop_row - self.log.address if stop_row else 0),
            "dirty": [by_address[row] for row in dirty],
            "touched": [by_address[row] for row in touched],
            "log": self.log.data,
            "index": self.index.data,
            "tails": {queue: tail.data for queue, tail in self.tails.items()},
            "rows": {queue: words_of(row, {"tail"}) for queue, (_, row) in self.rows.items()},
            "topics": {
                topic: [row.words.message_count, row.words.byte_count]
                for topic, row in topics.items()
            },
            "places": self.places.tolist(),
        }


# --- sends, pulls, pops ------------------------------------------------------------


class SendWorld(World):
    """A world with all that ``receive`` needs.

    A complete one has no lack but of room in its scratch, for its notes and its replies: some
    records do not fit the scratch at all, others not together.
    """

    def __init__(self, random: Random, data: bytes, *, is_complete: bool = False) -> None:
        super().__init__(random)
        block = self.block
        if is_complete:
            self._provide(random)
        for topic in sorted({topic for topic, _ in QUEUES}):
            row = self.hot.topic(topic.encode())
            write_queues = 10 if is_complete else random.choice([0, 1, 2, 10, 10, 10, 10, 10])
            row.words.write_queues = write_queues
        self.received = Fence(len(data))
        self.received.write(0, data)
        room, scratch, replies, body, size = map(
            random.choice,
            ([2, 40, 40], [700, 2_000, 5_000, 70_000, 70_000], [1_500, 3_000, 8_000], [4000],
             [400, 40_000, 40_000])
            if is_complete
            else ([0, 1, 2, 9], [100, 700, 9000], [0, 319, 320, 700, 9000], [20, 4000],
                  [250, 40_000]),
        )  # fmt: skip
        self.replies = Fence(replies)
        self.replies.write(0, UNTOUCHED * replies)
        self.scratch = Fence(scratch)
        self.suffix = random.choice([b"", b"CLUSTER\1DefaultCluster\2"])
        self.suffix_array = np.frombuffer(self.suffix + b"?", np.uint8)
        self.broker_name = random.choice([b"broker-a"] * 5 + [b"", b"b" * 100, "größer".encode()])
        self.name_array = np.frombuffer(self.broker_name + b"?", np.uint8)
        self.notes = Fence(send_rules.NOTE_BYTES * room)
        words = {
            "receive_is_on": is_complete or random.random() < 0.9,
            "takes_halves": is_complete or random.random() < 0.5,
            "takes_timers": is_complete or random.random() < 0.5,
            "timer_precision_ms": random.choice([1, 7, 1000, 60_000]),
            "timer_delay_ms_max": TIMER_MAX_MS,
            "clock_time": NOW_MS,
            "broker_name": hot.address_of(self.name_array),
            "broker_name_size": len(self.broker_name),
            "has_record_crc": not is_complete and random.random() < 0.1,
            "receive_address": self.received.address,
            "receive_end": len(data),
            "replies_address": self.replies.address,
            "replies_room": self.replies.size,
            "scratch_address": self.scratch.address,
            "scratch_room": self.scratch.size,
            "notes": self.notes.address,
            "notes_room": room,
            "suffix_address": hot.address_of(self.suffix_array),
            "suffix_size": len(self.suffix),
            "body_bytes_max": body,
            "record_bytes_max": size,
            "born_address": random.getrandbits(32),
            "born_port": random.getrandbits(16),
            "store_address": random.getrandbits(32),
            "store_port": random.getrandbits(16),
        }
        for name, value in words.items():
            setattr(block, name, value)

    def _provide(self, random: Random) -> None:
        """Provide the resource that an append stopped for."""
        for queue in QUEUES:
            if queue not in self.rows:
                self._make_queue(queue, random)
            _, row = self.rows[queue]
            tail = self.tails[queue] = Fence(30 * cq_unit.SIZE)
            row.tail = tail.address
            row.tail_limit = 30
            row.tail_offset = row.max_offset
        block = self.block
        while block.log_size < 20_000 or block.log_position > 100:
            self._make_log(random)
        block.log_address = self.log.address
        block.log_limit = block.log_size
        while block.index_entries_max < 60 or block.index_next > 2:
            self._make_index(random)
        block.index_address = self.index.address
        block.index_limit = block.index_entries_max
        block.index_end_offset = -1


OFFSET_FIELDS = ("min_offset", "tail_offset", "max_offset", "next_offset")
CODES = [cq_unit.tags_code("TagA"), cq_unit.tags_code("TagB")]


class NoQueues:
    """Queues of a store that has only plain ones."""

    def of_topic(self, topic: str) -> dict[int, ConsumeQueue]:
        return {}


class _StoreOf:
    """What ``PullSubscriptions`` needs of a store."""

    queues = NoQueues()

    def __init__(self, hot_state: HotState) -> None:
        self.hot_state = hot_state
        self.before_release: list[Callable[[], None]] = []


class PullWorld(SendWorld):
    """A world with a log that may be read, and readers."""

    def __init__(self, random: Random, data: bytes) -> None:
        super().__init__(random, data, is_complete=True)
        block = self.block
        _, row = self.rows["T", 0]
        for name in OFFSET_FIELDS:  # From one digit to two.
            setattr(row, name, 7)
        self.files = np.zeros(1, np.int64)
        self.ahead: dict[tuple[str, int], Fence] = {}
        self.pull_subscriptions = PullSubscriptions(cast(MessageStore, _StoreOf(self.hot)))
        for topic in COMMON_TOPICS:
            for group in GROUPS:
                for text in EXPRESSIONS[1:]:
                    codes = random.choice([(), (), CODES[:1], CODES])
                    reader = Reader(topic, group, text, 5, tuple(codes), random.choice([1, 2, 12]))
                    if random.random() < 0.8:
                        self.pull_subscriptions.add(reader)
        self.files[0] = self.log.address if random.random() < 0.95 else 0
        for name, value in {
            "deliver_is_on": random.random() < 0.95,
            "filtered_units_max": random.choice([2, 800]),
            "files": hot.address_of(self.files),
            "file_count": 1,
            "files_start": block.log_start,
            "file_size": block.log_size,
            "memory_bytes": random.choice([0, 1 << 40]),
            "bytes_in_memory_max": random.choice([500, 1 << 18]),
            "count_in_memory_max": random.choice([1, 32]),
            "bytes_on_disk_max": random.choice([300, 1 << 16]),
            "count_on_disk_max": random.choice([2, 8]),
        }.items():
            setattr(block, name, value)

    def make_readable(self) -> None:
        self.block.readable = self.block.log_start + self.block.log_position

    def write_out(self, random: Random) -> None:
        """Write out some tails, as a store does, and read some of their units ahead."""
        for queue, tail in self.tails.items():
            _, row = self.rows[queue]
            start, end = row.tail_offset, row.max_offset
            if random.random() < 0.8 or start == end:
                continue
            first = random.choice([start, start, random.randint(start, end)])
            count = random.choice([end - first, random.randint(0, end - first)])
            units = tail.data[(first - start) * cq_unit.SIZE :][: count * cq_unit.SIZE]
            fence = self.ahead[queue] = Fence(len(units))
            fence.write(0, units)
            row.ahead, row.ahead_offset = fence.address, first
            row.ahead_count = count
            row.tail_offset = end
            row.min_offset = random.choice([start, start, first])

    def damage(self, random: Random) -> None:
        """Change a byte of the log."""
        end = self.block.log_position
        if end and random.random() < 0.05:
            position = random.randrange(end)
            self.log.write(position, bytes([random.randrange(256)]))


CHECKPOINT_NAMES = [
    "G",
    "please_rename_unique_group_name",
    'a"\\b',
    "Крамниця",
    "g" * 300,
    "g" * 900,
]
NUMBERS = [0, 1, 60_000, NOW_MS, 2**31 - 1, 2**63 - 1]
MARKS = b"TAGS\1ck\2TIMER_DELIVER_MS\1"


class PopWorld(PullWorld):
    """A world with messages, and the arguments of ``pop_batch``."""

    def __init__(self, random: Random, data: bytes) -> None:
        super().__init__(random, data)
        self.buffer = Fence(random.choice([100, *[1000, 9000] * 4]))
        self.scratch_of_pop = Fence(pop_args.SCRATCH_BYTES)
        self.offsets = Fence(8 * pop_args.MESSAGES_MAX)
        self.info = Fence(pop_args.INFO_BYTES)
        self.call = pop_args.PopCall()
        self.argument = hot.Address(self.call.address)
        self.kept: list[Fence] = []
        head = incoming.encode(IncomingMessage("", b""), b"")[: pop_args.HEAD_BYTES]
        topic = random.choice([*["Orders"] * 8, "T", "t" * 126, "unknown"]).encode()
        self.call.block = self.hot.address
        self.call.buffer = self.buffer.address
        self.call.scratch = self.scratch_of_pop.address
        self.call.offsets = self.offsets.address
        self.call.info = self.info.address
        self.call.buffer_room = self.buffer.size
        self.call.head = self.keep(head)
        text = record.TOPIC_LENGTH_V1.pack(len(topic)) + topic
        self.call.topic, self.call.topic_size = self.keep(text), len(text)
        text = random.choice([*[MARKS] * 8, b"", b"x" * 200])
        self.call.properties, self.call.properties_size = self.keep(text), len(text)

    def keep(self, data: bytes) -> int:
        self.kept.append(Fence(len(data)))
        self.kept[-1].write(0, data)
        return self.kept[-1].address

    def prepare(self, random: Random) -> None:
        """Set the arguments that differ between calls; most calls take the fast path."""
        call = self.call
        queue = random.choice(QUEUES) if random.random() < 0.1 else ("T", 0)
        call.queue_row, _ = self.rows[queue]
        call.queue_offset = random.choice([7, 7, 7, 7, 8, 8, 9, 12, 15, 0, 1 << 40])
        call.count_max = random.choice([1, 2, 3, 5, 32])
        codes = sorted(random.choice([[], [], CODES[:1], CODES]))
        call.codes = self.keep(np.array(codes, np.int64).tobytes())
        call.code_count = len(codes)
        names = CHECKPOINT_NAMES if random.random() < 0.1 else CHECKPOINT_NAMES[:4]
        name, other = random.choice(names), random.choice(names)
        ends = pop_codec.checkpoint_ends("broker-a", name, other)
        call.first, call.first_size = self.keep(ends[0]), len(ends[0])
        call.last, call.last_size = self.keep(ends[1]), len(ends[1])
        call.queue_id = random.choice([0, 0, 3, 2**31 - 1])
        call.pop_ms = random.choice([NOW_MS, NOW_MS, *NUMBERS])
        call.invisible_ms = random.choice(NUMBERS)
        call.revive_queue_id = random.choice([0, 0, 0, 1, 1, 9, 5])
        call.store_ms = NOW_MS
        if random.random() < 0.1:
            call.count_max = pop_args.MESSAGES_MAX + 1
        if random.random() < 0.1:
            field = random.choice(["count_max", "pop_ms", "queue_id"])
            setattr(call, field, random.choice([-1, -(2**63), 0, 33]))


# --- acknowledgements ---------------------------------------------------------------


class AckWorld:
    """The argument block of ``acks`` with all that it points at."""

    def __init__(self, data: bytes, position: int, row_max: int, room: int) -> None:
        self.buffer = Fence(len(data))
        self.buffer.write(0, data)
        self.rows = np.full((row_max, word_count(acks_args.AckRow)), -1, np.int64)
        self.replies = Fence(room)
        self.block = acks_args.AckCall(
            buffer=self.buffer.address,
            position=position,
            end=len(data),
            ack_rows=hot.address_of(self.rows),
            row_max=row_max,
            replies=self.replies.address,
            replies_room=room,
        )
        self.argument = hot.Address(self.block.address)


# --- copies -------------------------------------------------------------------------

RESULT_WORDS_MAX = max(map(word_count, (copy_args.TimerProperties, copy_args.RetryResult)))
STORED_TOPICS = ["T", names.HALF_TOPIC, names.TIMER_TOPIC, "t" * 127, "Крамниця"]
NAMES = ["REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "WAIT"]
NAMES += ["RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "PGROUP", "PGROUP", "WAI", "REAL", "KEY"]
NAMES += ["TRAN_PREPARED_QUEUE_OFFSET", "DELAY"]
ODD_NAMES = [
    "DELAY",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "__CRC32#",
    "INNER_MULTI_DISPATCH",
    "",
    "REAL_TOPIK",
    "TIMER_DEX_UNIQKEY",
    "KEYS",
]
VALUES = {
    "REAL_TOPIC": [
        "T",
        "T",
        "%RETRY%g|x-_",
        "t" * 127,
        "t" * 128,
        names.HALF_TOPIC,
        "a.b",
        "é",
        "",
    ],
    "REAL_QID": ["0", "3", "3", "007", "2147483647", "2147483648", "-1", "+1", "", "1" * 19, "٣"],
    "TIMER_OUT_MS": ["1700000000000", "1700000000000", "0", "", "x", "9" * 18, "9" * 19],
    "TIMER_ROLL_TIMES": ["1", "12", "", "x", "0" * 19],
    "TIMER_DEL_UNIQKEY": ["key", ""],
    "PGROUP": ["g", "g", "produc", "gproduc", "G", ""],
}


def some_properties(random: Random) -> bytes:
    """Return the properties of a waiting message; some of them are odd."""
    pairs = []
    is_odd = random.random() < 0.3
    for _ in range(random.choice([0, 2, 3, 6])):
        name = random.choice(NAMES + ODD_NAMES * is_odd)
        values = VALUES.get(name, ["v", samples.text(random, 6), "a\1b"])
        value = values[0] if not is_odd and random.random() < 0.7 else random.choice(values)
        separator = "" if is_odd and random.random() < 0.1 else "\1"
        pairs.append((name + separator + value).encode(errors="replace"))
    if random.random() < 0.7:
        pairs += [b"REAL_TOPIC\1T", b"REAL_QID\0013"]
        random.shuffle(pairs)
    return b"\2".join(pairs) + random.choice([b"", b"\2", b"\2\2"])


def some_stored_record(random: Random) -> bytes:
    topic = random.choice(STORED_TOPICS[:3] * 3 + STORED_TOPICS)
    odd_host = Host(bytes(15) + b"\1", 10911)
    hosts = [Host(b"\x7f\0\0\1", random.randrange(65536))] * 20 + [odd_host]
    message = IncomingMessage(
        topic,
        random.randbytes(random.choice([0, 1, 80])),
        random.choice([0, 5]),
        some_properties(random),
        NOW_MS,
        random.choice(hosts),
        random.choice(hosts),
        random.randrange(-(2**31), 2**31),
        random.choice([0, 0, 4, 8, flags.COMPRESSED]),
        random.choice([0, 0, 3, 2**31 - 1]),
        random.choice([0, 1 << 40]),
    )
    return incoming.encode(message, topic.encode())


class CopyLog:
    """Log files with records, and a control block with their addresses."""

    def __init__(self, random: Random) -> None:
        self.size = random.choice([300, 1000, 4000])
        self.files = [Fence(self.size) for _ in range(random.choice([1, 2, 3]))]
        self.start = random.choice([0, 4]) * self.size
        self.places: list[list[int]] = []
        for number, file in enumerate(self.files):
            self._fill(random, file, self.start + number * self.size)
        self.addresses = np.array([file.address for file in self.files], np.int64)
        self.known = self.addresses.copy()
        for number in range(len(self.files)):
            if random.random() < 0.3:
                self.known[number] = 0
        self.block = state.ControlBlock()
        end = self.start + len(self.files) * self.size
        self.block.delay_count = 18
        self.block.files = hot.address_of(self.known)
        self.block.file_count = len(self.files)
        self.block.files_start = self.start
        self.block.file_size = self.size
        self.block.readable = random.choice([end, end, end, random.randint(self.start, end)])

    def _fill(self, random: Random, file: Fence, start: int) -> None:
        position = random.choice([0, 0, 40])
        for queue_offset in range(20):
            data = bytearray(some_stored_record(random))
            if position + len(data) > self.size:
                break
            if random.random() < 0.1:  # The record ends at the end of the file.
                position = self.size - len(data)
            struct.pack_into(
                ">qq", data, record.POSITION_QUEUE_OFFSET, queue_offset, start + position
            )
            struct.pack_into(">q", data, record.POSITION_BORN_HOST + 8, NOW_MS)
            if random.random() < 0.1:
                data[random.randrange(len(data))] = random.randrange(256)
            self.places.append([queue_offset, start + position, len(data)])
            file.write(position, bytes(data))
            position += len(data)

    def record_at(self, physical_offset: int) -> bytes:
        number, position = divmod(physical_offset - self.start, self.size)
        data = self.files[number].data[position:]
        (size,) = struct.unpack_from(">i", data)
        return data[:size]

    def map(self, physical_offset: int, random: Random) -> None:
        number = (physical_offset - self.start) // self.size
        is_gone = random.random() < 0.2
        self.known[number] = state.FILE_IS_GONE if is_gone else self.addresses[number]

    def some_places(self, random: Random, more_size: int) -> np.ndarray:
        rows = []
        for place in (
            random.choices(self.places, k=random.choice([1, 5, 12])) if self.places else []
        ):
            row = list(place)
            if random.random() < 0.2:
                row[random.randrange(3)] += random.choice([-1, 1, 1 << 40, -(1 << 40)])
            if random.random() < 0.2:
                row[0] = -1
            if random.random() < 0.2:
                row[2] = random.choice([0, -1, 1 << 31])
            begin = random.randint(0, more_size)
            rows.append([*row, begin, random.randint(0, more_size - begin)])
        return np.array(rows, np.int64).reshape(len(rows), word_count(copy_args.Place))


def some_rule(random: Random) -> CopyRule:
    return CopyRule(
        random.choice([None, None, None, b"Other", "Крамниця".encode()]),
        random.choice([0, 7]),
        from_topic=random.choice([b"", b"", b"T", names.HALF_TOPIC.encode()]),
        sys_flags_off=random.choice([0, flags.TRANSACTION_MASK]),
        sys_flags_on=random.choice([0, flags.TRANSACTION_COMMIT]),
        has_prepared_offset=random.random() < 0.5,
    )


OP_LIKE = incoming.encode(IncomingMessage("op", b"", 0, b"TAGS\1d\2"), b"op")
OP = Fence(len(OP_LIKE))
OP.write(0, OP_LIKE)


class CopyCall:
    """The argument block of a copy, with room for its results."""

    def __init__(
        self, random: Random, log: CopyLog, rule: CopyRule, places: np.ndarray, more: Fence
    ):
        self.scratch = Fence(random.choice([0, 200, 4000, 4000]))
        self.results = Fence(8 * RESULT_WORDS_MAX * len(places))
        # The calls of the four kernels differ in the rows that they point at, and in no word.
        self.words = copy_args.PlainCall(rule=rule.words)
        for name, value in {
            "block": log.block.address,
            "topic_size_max": random.choice([3, 127]),
            "record_size_max": random.choice([200, 1 << 20]),
            "has_light_queues": random.random() < 0.5,
            "scratch": self.scratch.address,
            "scratch_room": self.scratch.size,
            "results": self.results.address,
            "places": hot.address_of(places),
            "place_count": len(places),
            "more": more.address,
            "op": OP.address,
            "op_size": OP.size,
        }.items():
            setattr(self.words, name, value)
        self.argument = hot.Address(self.words.address)


# --- scanned requests ---------------------------------------------------------------

SCANNED_CODE = 37
SCANNED = {
    "producerGroup": scan_args.TEXT,
    "tranStateTableOffset": scan_args.LONG,
    "commitLogOffset": scan_args.LONG,
    "commitOrRollback": scan_args.INT,
    "fromTransactionCheck": scan_args.BOOL,
    "msgId": scan_args.TEXT,
    "transactionId": scan_args.TEXT,
    "bname": scan_args.TEXT,
}
REQUIRED = 0b1111


class ScanCall:
    """The arguments of ``scan_requests``: a list of fields, a buffer, and room for rows."""

    def __init__(self, data: bytes, rows_max: int, position: int = 0) -> None:
        self.rows = Fence(8 * self.width * rows_max)
        self.rows.write(0, bytes(self.rows.size))
        self.received = Fence(len(data))
        self.received.write(0, data)
        self.texts = [np.frombuffer(name.encode(), np.uint8) for name in SCANNED]
        self.wanted, known = row_and_tail(scan_args.ScanCall, state.KnownField, len(SCANNED))
        self.wanted.code, self.wanted.required = SCANNED_CODE, REQUIRED
        self.wanted.rows, self.wanted.rows_max = self.rows.address, rows_max
        self.wanted.row_bytes = 8 * self.width
        self.wanted.names.count = len(SCANNED)
        for field, text, kind in zip(known, self.texts, SCANNED.values(), strict=True):
            field.name, field.name_size, field.kind = hot.address_of(text), len(text), kind
        self.memory = state.ControlBlock()
        self.memory.receive_address = self.received.address
        self.memory.receive_position = position
        self.memory.receive_end = len(data)

    def collect(self, kernel: Any) -> tuple[int, int, list[list[int]]]:
        """Return count, position and rows; addresses as positions in the buffer."""
        count = kernel(hot.Address(self.memory.address), hot.Address(self.wanted.address))
        rows = np.frombuffer(self.rows.data, np.int64).reshape(-1, self.width).tolist()[:count]
        for row in rows:
            row[scan_args.ROW.body] -= self.received.address
            for i, kind in enumerate(SCANNED.values()):
                column = scan_args.ROW.values + word_count(scan_args.ScannedValue) * i
                if kind == scan_args.TEXT and row[column + 1] != scan_args.ABSENT:
                    row[column] -= self.received.address
        return count, int(self.memory.receive_position), rows

    width = word_count(scan_args.ScannedRow) + word_count(scan_args.ScannedValue) * len(SCANNED)
