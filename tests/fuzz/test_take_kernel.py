"""The kernel ``take`` on a world of messages: what it takes, and that it takes all or nothing.

Sends fill the log of a world, pops take from it; their checkpoints go to a topic that has room, or
not. Between calls units go where a store puts them, and bytes of the log change. Each example
follows from one number: ``check_take(4711)``.
"""

import ctypes
from random import Random

import msgspec
import numpy as np
from hypothesis import given, settings

from fuzz.test_deliver_kernel import CODES, PullWorld, sends
from fuzz.test_hot_kernels import IS_SOAK, NOW_MS, QUEUES, SEEDS, Fence
from fuzz.test_send_kernel import hot_receive
from reput.format import message as record, pop_codec
from reput.store import incoming
from reput.store.incoming import IncomingMessage
from reput.store.kernels import (
    control_block as state,
    hot,
    native,
    pop_args as words,
)

NAMES = ["G", "please_rename_unique_group_name", 'a"\\b', "Крамниця", "g" * 300, "g" * 900]
NUMBERS = [0, 1, 60_000, NOW_MS, 2**31 - 1, 2**63 - 1]
MARKS = b"TAGS\1ck\2TIMER_DELIVER_MS\1"


class TakeWorld(PullWorld):
    """A world with messages, and what ``take`` is called with."""

    def __init__(self, random: Random, data: bytes) -> None:
        super().__init__(random, data)
        self.buffer = Fence(random.choice([100, *[1000, 9000] * 4]))
        self.scratch_of_take = Fence(words.SCRATCH_BYTES)
        self.offsets = Fence(8 * words.MESSAGES_MAX)
        self.info = Fence(words.INFO_BYTES)
        self.call = np.zeros(words.WORDS, np.int64)
        self.argument = hot.Address(hot.address_of(self.call))
        self.kept: list[Fence] = []
        head = incoming.encode(IncomingMessage("", b""), b"")[: words.HEAD_BYTES]
        topic = random.choice([*["Orders"] * 8, "T", "t" * 126, "nobody"]).encode()
        self.call[words.BLOCK] = self.hot.address
        for place, one in {
            words.BUFFER: self.buffer,
            words.SCRATCH: self.scratch_of_take,
            words.OFFSETS: self.offsets,
            words.INFO: self.info,
        }.items():
            self.call[place] = one.address
        self.call[words.BUFFER_ROOM] = self.buffer.size
        self.call[words.HEAD] = self.keep(head)
        for place, text in (
            (words.TOPIC, record.TOPIC_LENGTH_V1.pack(len(topic)) + topic),
            (words.MARKS, random.choice([*[MARKS] * 8, b"", b"x" * 200])),
        ):
            self.call[place], self.call[place + 1] = self.keep(text), len(text)

    def keep(self, data: bytes) -> int:
        self.kept.append(Fence(len(data)))
        self.kept[-1].write(0, data)
        return self.kept[-1].address

    def prepare(self, random: Random) -> None:
        """Set what differs from call to call; mostly it is common."""
        call = self.call
        queue = random.choice(QUEUES) if random.random() < 0.1 else ("T", 0)
        call[words.QUEUE_ROW], _ = self.rows[queue]
        call[words.QUEUE_OFFSET] = random.choice([7, 7, 7, 7, 8, 8, 9, 12, 15, 0, 1 << 40])
        call[words.COUNT_MAX] = random.choice([1, 2, 3, 5, 32])
        codes = sorted(random.choice([[], [], CODES[:1], CODES]))
        call[words.CODES] = self.keep(np.array(codes, np.int64).tobytes())
        call[words.CODE_COUNT] = len(codes)
        names = NAMES if random.random() < 0.1 else NAMES[:4]
        name, other = random.choice(names), random.choice(names)
        ends = pop_codec.checkpoint_ends("broker-a", name, other)
        for place, text in zip((words.FIRST, words.LAST), ends, strict=True):
            call[place], call[place + 1] = self.keep(text), len(text)
        call[words.QUEUE_ID] = random.choice([0, 0, 3, 2**31 - 1])
        call[words.POP_MS] = random.choice([NOW_MS, NOW_MS, *NUMBERS])
        call[words.INVISIBLE_MS] = random.choice(NUMBERS)
        call[words.REVIVE_QUEUE_ID] = random.choice([0, 0, 0, 1, 1, 9, 5])
        call[words.STORE_MS] = NOW_MS
        if random.random() < 0.1:
            place = random.choice([words.COUNT_MAX, words.POP_MS, words.QUEUE_ID])
            call[place] = random.choice([-1, -(2**63), 0, 33])


@given(SEEDS)
@settings(max_examples=300 if IS_SOAK else 60)
def test_take(seed: int) -> None:
    check_take(seed)


def check_take(seed: int) -> int:
    """Return how many calls took messages."""
    random = Random(seed)
    data = sends(random)
    kernel = native.plain_function("take", [ctypes.c_int64], is_short=True)
    world = TakeWorld(Random(seed), data)
    fill(world, data)
    taken = 0
    for _ in range(random.choice([1, 3, 8])):
        step = random.getrandbits(32)
        world.write_out(Random(step))
        world.damage(Random(step))
        world.make_readable()
        world.prepare(Random(step))
        start = world.block[state.LOG_POSITION]
        count = kernel(world.argument)
        if count:
            taken += 1
            check_taken(world, start, count)
        else:
            assert world.block[state.LOG_POSITION] == start, "nothing half done"
    return taken


def fill(world: TakeWorld, data: bytes) -> None:
    """Receive what is sent; leave out frames that fall back to the processor."""
    while True:
        hot_receive(world)
        stop, position = world.block[state.STOP], world.block[state.RECEIVE_POSITION]
        if stop not in (state.STOP_REPLIES, state.STOP_FRAME):
            return
        if stop == state.STOP_FRAME:
            size = int.from_bytes(data[position : position + 4])
            world.block[state.RECEIVE_POSITION] = position + 4 + size
        world.block[state.REPLIES_BYTES] = 0


def check_taken(world: TakeWorld, start: int, count: int) -> None:
    """The checkpoint is one that Python reads, and says which records were copied."""
    call, log_start = world.call, world.block[state.LOG_START]
    data = world.log.data[start : world.block[state.LOG_POSITION]]
    verdict, size = record.classify(data, 0, log_start + start)
    assert (verdict, size) == (record.Verdict.MESSAGE, len(data))
    assert size == call[words.RESULT_SIZE]
    stored = record.decode(data)
    # Not by ``decode_checkpoint``: it refuses numbers that no pop has.
    checkpoint = msgspec.json.decode(stored.body, type=pop_codec.CheckpointRecord)
    records = world.buffer.data[: call[words.RESULT_BYTES]]
    offsets = record.queue_offsets_in(records)
    assert len(offsets) == count
    assert checkpoint.queue_offsets == offsets
    assert (checkpoint.start_offset, checkpoint.pop_ms, checkpoint.invisible_ms) == (
        call[words.QUEUE_OFFSET], call[words.POP_MS], call[words.INVISIBLE_MS],
    )  # fmt: skip
    expected = pop_codec.encode_checkpoint(
        "broker-a", checkpoint.group, checkpoint.topic, int(call[words.QUEUE_ID]),
        int(call[words.QUEUE_OFFSET]), offsets, int(call[words.POP_MS]),
        int(call[words.INVISIBLE_MS]),
    )  # fmt: skip
    assert stored.body == expected
    info = pop_codec.message_info("T", int(call[words.QUEUE_ID]), offsets)
    assert world.info.data[: call[words.RESULT_INFO_SIZE]] == info.encode()


def test_most_are_common() -> None:
    """Else the test above would test little."""
    assert sum(check_take(seed) for seed in range(50)) > 25
