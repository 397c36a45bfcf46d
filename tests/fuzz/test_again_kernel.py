"""The kernels that copy stored records, on a log that may be damaged.

Log files end where the process may read nothing more. Each example follows from one number:
``check_again(4711)`` runs it again.
"""

import struct
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fuzz.test_hot_kernels import Fence
from interop import samples
from reput.format import message as record, names, sys_flag as flags
from reput.format.message import Host
from reput.store import incoming
from reput.store.copying import CopyRule
from reput.store.incoming import IncomingMessage
from reput.store.kernels import (
    control_block as state,
    copy_args as words,
    hot,
    native,
)

try:
    native.engine()
except native.KernelsUnavailable:
    pytest.skip("no compiled kernels here", allow_module_level=True)

TOLD_WORDS = max(words.WAITING_WORDS, words.TOLD_WORDS)
SEEDS = st.integers(0, 2**32)
NOW_MS = 1_700_000_000_123
TOPICS = ["T", names.HALF_TOPIC, names.TIMER_TOPIC, "t" * 127, "Крамниця"]
NAMES = ["REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "WAIT"]
NAMES += ["RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "PGROUP", "PGROUP"]
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
    """What waiting messages have, mostly; and what they should not."""
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


def some_record(random: Random) -> bytes:
    topic = random.choice(TOPICS[:3] * 3 + TOPICS)
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


class Log:
    """Files with records, which share the words that say where they are."""

    def __init__(self, random: Random) -> None:
        self.size = random.choice([300, 1000, 4000])
        self.files = [Fence(self.size) for _ in range(random.choice([1, 2, 3]))]
        self.start = random.choice([0, 4]) * self.size
        self.places: list[list[int]] = []
        for number, file in enumerate(self.files):
            self._fill(random, file, self.start + number * self.size)
        self.addresses = np.array([one.address for one in self.files], np.int64)
        self.known = self.addresses.copy()
        for number in range(len(self.files)):
            if random.random() < 0.3:
                self.known[number] = 0
        self.block = np.zeros(state.BLOCK_WORDS, np.int64)
        end = self.start + len(self.files) * self.size
        self.block[state.DELAY_COUNT] = 18
        self.block[state.FILES] = hot.address_of(self.known)
        self.block[state.FILE_COUNT] = len(self.files)
        self.block[state.FILES_START] = self.start
        self.block[state.FILE_SIZE] = self.size
        self.block[state.READABLE] = random.choice([end, end, end, random.randint(self.start, end)])

    def _fill(self, random: Random, file: Fence, start: int) -> None:
        position = random.choice([0, 0, 40])
        for queue_offset in range(20):
            data = bytearray(some_record(random))
            if position + len(data) > self.size:
                break
            if random.random() < 0.1:  # it ends just where the file does
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
        return np.array(rows, np.int64).reshape(len(rows), words.PLACE_WORDS)


def some_rule(random: Random) -> CopyRule:
    return CopyRule(
        random.choice([None, None, None, b"Other", "Крамниця".encode()]),
        random.choice([0, 7]),
        from_topic=random.choice([b"", b"", b"T", names.HALF_TOPIC.encode()]),
        sys_flags_off=random.choice([0, flags.TRANSACTION_MASK]),
        sys_flags_on=random.choice([0, flags.TRANSACTION_COMMIT]),
        has_prepared_offset=random.random() < 0.5,
        reconsume_more=random.choice([0, 1]),
        dropped=random.choice([(), (), ("WAIT",), ("REAL_TOPIC", "TIMER_OUT_MS", "KEY")]),
    )


OP_LIKE = incoming.encode(IncomingMessage("op", b"", 0, b"TAGS\1d\2"), b"op")
OP = Fence(len(OP_LIKE))
OP.write(0, OP_LIKE)


class Call:
    """The words of a call, with room for what it makes; the same for the same ``random``."""

    def __init__(self, random: Random, log: Log, rule: CopyRule, places: np.ndarray, more: Fence):
        self.scratch = Fence(random.choice([0, 200, 4000, 4000]))
        self.told = Fence(8 * TOLD_WORDS * len(places))
        self.words = np.zeros(words.WORDS, np.int64)
        self.words[: words.RULE_WORDS] = rule.words
        for word, value in {
            words.BLOCK: hot.address_of(log.block),
            words.TOPIC_MAX: random.choice([3, 127]),
            words.RECORD_MAX: random.choice([200, 1 << 20]),
            words.HAS_LIGHT_QUEUES: random.random() < 0.5,
            words.SCRATCH: self.scratch.address,
            words.SCRATCH_ROOM: self.scratch.size,
            words.SIZES: self.told.address,
            words.PLACES: hot.address_of(places),
            words.PLACE_COUNT: len(places),
            words.MORE: more.address,
            words.OP: OP.address,
            words.OP_SIZE: OP.size,
        }.items():
            self.words[word] = value
        self.argument = hot.Address(hot.address_of(self.words))


@given(SEEDS)
@settings(max_examples=300)
def test_again(seed: int) -> None:
    check_again(seed)


def check_again(seed: int) -> int:
    """Return how many records were made."""
    random = Random(seed)
    log, rule = Log(random), some_rule(random)
    more = Fence(random.choice([0, 30]))
    more.write(0, b"\2a\1b\2c"[: more.size].ljust(more.size, b"d"))
    places = log.some_places(random, more.size)
    made = at = 0
    while at < len(places):
        left = places[at:].copy()
        step = random.getrandbits(32)
        one = Call(Random(step), log, rule, left, more)
        count = hot.again(one.argument)
        check_made(one, count)
        made += count
        at += count
        if one.words[words.STOP] == words.STOP_UNMAPPED:
            log.map(int(one.words[words.STOP_OFFSET]), random)
        elif one.words[words.STOP] != words.STOP_DONE:
            at += 1
    return made


def check_made(call: Call, count: int) -> None:
    """What was made are whole records, one behind the other."""
    data, at = call.scratch.data, 0
    for _ in range(count):
        (size,) = struct.unpack_from(">i", data, at)
        one = record.decode(data[at : at + size], check_crc=False)
        assert one.body_crc == 0
        at += size
    assert at == call.words[words.RESULT_BYTES]


@given(SEEDS)
@settings(max_examples=300)
def test_later(seed: int) -> None:
    check_later(seed)


def check_later(seed: int) -> int:
    """Return how many records were made."""
    random = Random(seed)
    log = Log(random)
    more = Fence(random.choice([0, 30]))
    more.write(0, b"REAL_TOPIC\1T\2REAL_QID\0010\2"[: more.size].ljust(more.size, b"d"))
    places = log.some_places(random, more.size)
    wanted = [
        (random.choice([0, 0, 1, 18, 19, 2**31 - 1]), random.choice([16] * 9 + [4, 0, 2**31 - 1]))
        for _ in places
    ]
    places = with_more_words(places, wanted, words.LATER_WORDS)
    return check_calls(random, log, CopyRule(), places, more, hot.later)


def with_more_words(places: np.ndarray, more: list[tuple[int, ...]], width: int) -> np.ndarray:
    columns = np.array(more, np.int64).reshape(len(places), width - words.PLACE_WORDS)
    return np.hstack([places, columns])


def check_calls(
    random: Random,
    log: Log,
    rule: CopyRule,
    places: np.ndarray,
    more: Fence,
    kernel: hot.Kernel,
    records_each: int = 1,
) -> int:
    """Return of how many places records were made."""
    made = at = 0
    while at < len(places):
        left = places[at:].copy()
        step = random.getrandbits(32)
        one = Call(Random(step), log, rule, left, more)
        count = kernel(one.argument)
        if records_each == 1:
            check_made(one, count)
        made += count
        at += count
        if one.words[words.STOP] == words.STOP_UNMAPPED:
            log.map(int(one.words[words.STOP_OFFSET]), random)
        elif one.words[words.STOP] != words.STOP_DONE:
            at += 1
    return made


@given(SEEDS)
@settings(max_examples=300)
def test_decided(seed: int) -> None:
    check_decided(seed)


def check_decided(seed: int) -> int:
    """Return of how many half messages records were made."""
    random = Random(seed)
    log = Log(random)
    rule = CopyRule(
        from_topic=random.choice([b"", b"", names.HALF_TOPIC.encode()]), has_prepared_offset=True
    )
    groups = Fence(7)
    groups.write(0, b"gproduc")
    places = log.some_places(random, 0)
    said = [
        (*random.choice([(0, 1)] * 5 + [(1, 6), (0, 0), (0, 7)]), random.choice([0, 1]))
        for _ in places
    ]
    places = with_more_words(places, said, words.DECIDED_WORDS)
    return check_calls(random, log, rule, places, groups, hot.decided, 2)


@given(SEEDS)
@settings(max_examples=200)
def test_waiting(seed: int) -> None:
    check_waiting(seed)


def check_waiting(seed: int) -> int:
    """Return how many rows were read that are common."""
    random = Random(seed)
    log = Log(random)
    places = log.some_places(random, 0)
    found = at = 0
    while True:
        left = places[at:].copy()
        one = Call(Random(seed), log, CopyRule(), left, Fence(0))
        count = hot.waiting(one.argument)
        told = one.told.data[: 8 * words.WAITING_WORDS * len(left)]
        rows = np.frombuffer(told, np.int64).reshape(-1, words.WAITING_WORDS)
        found += int((rows[:count, words.WAITING_OUT_MS] >= 0).sum())
        at += count
        if at == len(places):
            return found
        log.map(int(one.words[words.STOP_OFFSET]), random)


def test_many_are_common() -> None:
    """The generator makes what it says: else the tests above would test little."""
    assert sum(check_again(seed) for seed in range(300)) > 100
    assert sum(check_waiting(seed) for seed in range(300)) > 100
    assert sum(check_later(seed) for seed in range(300)) > 40
    assert sum(check_decided(seed) for seed in range(300)) > 40
