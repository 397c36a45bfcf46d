"""The kernel ``acks`` on frames: valid, other, damaged and cut ones. Memory ends at a guard page.

Each example follows from one number: ``check_acks(4711)``.
"""

import ctypes
import json
from random import Random

import numpy as np
from hypothesis import given, settings

from fuzz.test_hot_kernels import SEEDS, Fence
from fuzz.test_send_kernel import damaged
from reput.format import command
from reput.format.command import Command, Serialization
from reput.store.kernels import acks_args as words, hot, native

TOPICS = ["T", "T", "Orders", "%RETRY%G_T", "grün", "", 'a"b']
GROUPS = ["G", "G", "please_rename_unique_group_name"]
NUMBERS = ["0", "7", "+7", "-1", "07", "1_0", "", "x", "2147483648", "999", "1" + "0" * 18]
HANDLES = ["", "1", "1 2 3 4 0", "1 2 3 4 0 ", "1  2 3 4 0 b", "a 2 3 4 0 b", "1 2 3 999 0 b"]
HANDLES += ["1 2 3 4 0 b 0 5", "01 2 3 4 0 b", "1 2 -3 4 0 b", "1 2 3 4", " 1 2 3 4 0 b"]
MORE = [{"bname": "broker-a"}, {"ns": "x", "lo": "false"}, {"": ""}, {"zz": "\n"}, {"topic ": "T"}]
MEMBERS = ['"remark":"x"', '"remark":null', '"code":200051', '"language":"GO"', '"version":1e3']


def some_ack(random: Random) -> bytes:
    """A frame: mostly of a few checkpoints, mostly common."""
    start = random.choice([0, 0, 32, 1000])
    offset = start + random.choice([random.randrange(32), random.randrange(200)])
    info = f"{start} {random.choice([5, 5, 6])} 60000 {random.randrange(3)} 0 broker-a 0 {offset}"
    fields = {
        "consumerGroup": random.choice(GROUPS[:2]),
        "topic": random.choice(TOPICS[:2]),
        "queueId": random.choice(["0", "0", "0", "3"]),
        "extraInfo": info,
        "offset": str(offset),
    }
    flag, body, code, kind = 0, b"", 200_051, Serialization.JSON
    if random.random() < 0.3:
        odd = random.randrange(9)
        if odd == 0:
            fields["topic"] = random.choice(TOPICS)
            fields["consumerGroup"] = random.choice(GROUPS)
        elif odd == 1:
            fields[random.choice(["queueId", "offset"])] = random.choice(NUMBERS)
        elif odd == 2:
            fields["extraInfo"] = random.choice(HANDLES)
        elif odd == 3:
            del fields[random.choice(list(fields))]
        elif odd <= 5:
            fields |= random.choice(MORE)
        elif odd == 6:
            flag = random.choice([1, 2])
        elif odd == 7:
            body = b"x"
        else:
            code = random.choice([200_050, 310, 11])
            kind = Serialization.JSON if code > 32_767 else random.choice(list(Serialization))
    names = list(fields)
    if random.random() < 0.3:
        random.shuffle(names)
    opaque = random.choice([0, 1, 77, 2_147_483_647])
    request = Command(
        code,
        opaque,
        flag,
        ext_fields={name: fields[name] for name in names},
        body=body,
        serialization=kind,
    )
    frame = command.encode(request)
    return (
        reordered(random, frame) if kind is Serialization.JSON and random.random() < 0.3 else frame
    )


def reordered(random: Random, frame: bytes) -> bytes:
    """The same with its header's members in another order, and perhaps one more."""
    size = int.from_bytes(frame[5:8])
    members = list(json.loads(frame[8 : 8 + size]).items())
    random.shuffle(members)
    texts = [json.dumps({name: value}, separators=(",", ":"))[1:-1] for name, value in members]
    if random.random() < 0.3:
        texts.insert(random.randint(0, len(texts)), random.choice(MEMBERS))
    header = ("{" + ",".join(texts) + "}" + random.choice(["", "", " \n", "x"])).encode()
    body = frame[8 + size :]
    length = 4 + len(header) + len(body)
    return length.to_bytes(4) + len(header).to_bytes(4) + header + body


def some_acks(random: Random) -> bytes:
    frames = []
    for _ in range(random.choice([1, 2, 5, 40])):
        frame = some_ack(random)
        if random.random() < 0.05:
            frame = damaged(random, frame)
        frames.append(frame)
    data = b"".join(frames)
    return data[: random.randint(0, len(data))] if random.random() < 0.2 else data


class World:
    """A block, and what it points at; the bytes end where nobody may read on."""

    def __init__(self, data: bytes, position: int, row_max: int, room: int) -> None:
        self.buffer = Fence(len(data))
        self.buffer.write(0, data)
        self.rows = np.full((row_max, words.ROW_WORDS), -1, np.int64)
        self.replies = Fence(room)
        self.block = np.zeros(words.WORDS, np.int64)
        for word, value in {
            words.BUFFER: self.buffer.address,
            words.POSITION: position,
            words.END: len(data),
            words.ROWS: hot.address_of(self.rows),
            words.ROW_MAX: row_max,
            words.REPLIES: self.replies.address,
            words.REPLIES_ROOM: room,
        }.items():
            self.block[word] = value
        self.argument = hot.Address(hot.address_of(self.block))


def check_acks(seed: int) -> int:
    """Serve a stream; return the number of acknowledgements that the kernel took."""
    random = Random(seed)
    data = some_acks(random)
    row_max, room = random.choice([1, 3, 256]), random.choice([100, 500, 64 << 10])
    kernel = native.plain_function("acks", [ctypes.c_int64], is_short=True)
    position = taken = 0
    while position < len(data):
        world = World(data, position, row_max, room)
        count = kernel(world.argument)
        assert 0 <= count <= row_max
        rows = world.rows[:count]
        assert (rows[:, words.ROW_BITS] != 0).all()
        assert count == 0 or 0 <= rows[-1, words.ROW_REPLIES] <= room
        taken += int(rows[:, words.ROW_COUNT].sum())
        behind = int(world.block[words.POSITION])
        assert position <= behind <= len(data)
        if behind == position:  # a frame of others: theirs follow
            behind += 4 + max(0, int.from_bytes(data[position : position + 4], signed=True))
        position = behind
    return taken


@given(SEEDS)
@settings(max_examples=300)
def test_acks(seed: int) -> None:
    check_acks(seed)


def test_most_are_common() -> None:
    """Else the test above would test little."""
    assert sum(check_acks(seed) for seed in range(50)) > 200
