"""The pulls of the kernel ``receive``: replies have whole records of the log.

Sends fill the log of a world, pulls read it, and both stand in one stream: common ones, others,
damaged ones, cut ones. Between calls units go where a store puts them: out of the tail, and some of
them into what is read ahead. Each example follows from one number: ``check_deliver(4711)``.
"""

from random import Random
from typing import cast

import numpy as np
from hypothesis import given, settings

from fuzz.test_hot_kernels import SEEDS, Fence
from fuzz.test_send_kernel import (
    COMMON_QUEUES,
    SendWorld,
    damaged,
    hot_receive,
    json_frame,
    some_fields,
    some_frame,
)
from reput.format import command, cq_unit, message as record
from reput.format.command import Command, Serialization
from reput.store.consume_queue import ConsumeQueue, ConsumeQueues
from reput.store.kernels import control_block as state, hot
from reput.store.pull_subscriptions import PullSubscriptions, Reader

GROUPS = ["group", "please_rename_unique_group_name"]
TOPICS = sorted({topic for topic, _ in COMMON_QUEUES})
TEXTS = [None, None, "*", "TagA", "TagA || TagB", ""]
OFFSETS = (state.QUEUE_MIN_OFFSET, state.QUEUE_TAIL_OFFSET, state.QUEUE_MAX_OFFSET)
OFFSETS += (state.QUEUE_NEXT_OFFSET,)
CODES = [cq_unit.tags_code("TagA"), cq_unit.tags_code("TagB")]


class NoQueues:
    """As if no queue were of an unusual kind."""

    def of_topic(self, topic: str) -> dict[int, ConsumeQueue]:
        return {}


class PullWorld(SendWorld):
    """A world with a log that may be read, and readers."""

    def __init__(self, random: Random, data: bytes) -> None:
        super().__init__(random, data, is_kind=True)
        block = self.block
        _, row = self.rows["T", 0]
        for place in OFFSETS:  # from one digit to two
            row[place] = 7
        self.files = np.zeros(1, np.int64)
        self.ahead: dict[tuple[str, int], Fence] = {}
        self.pull_subscriptions = PullSubscriptions(self.hot, cast(ConsumeQueues, NoQueues()))
        for topic in TOPICS:
            for group in GROUPS:
                for text in TEXTS[1:]:
                    codes = random.choice([(), (), CODES[:1], CODES])
                    reader = Reader(topic, group, text, 5, tuple(codes), random.choice([1, 2, 12]))
                    if random.random() < 0.8:
                        self.pull_subscriptions.add(reader)
        self.files[0] = self.log.address if random.random() < 0.95 else 0
        for word, value in {
            state.DELIVER_IS_ON: random.random() < 0.95,
            state.FILTERED_UNITS_MAX: random.choice([2, 800]),
            state.FILES: hot.address_of(self.files),
            state.FILE_COUNT: 1,
            state.FILES_START: block[state.LOG_START],
            state.FILE_SIZE: block[state.LOG_SIZE],
            state.MEMORY_BYTES: random.choice([0, 1 << 40]),
            state.BYTES_IN_MEMORY_MAX: random.choice([500, 1 << 18]),
            state.COUNT_IN_MEMORY_MAX: random.choice([1, 32]),
            state.BYTES_ON_DISK_MAX: random.choice([300, 1 << 16]),
            state.COUNT_ON_DISK_MAX: random.choice([2, 8]),
        }.items():
            block[word] = value

    def make_readable(self) -> None:
        self.block[state.READABLE] = self.block[state.LOG_START] + self.block[state.LOG_POSITION]

    def write_out(self, random: Random) -> None:
        """Empty some tails, as a store does, and read some of their units ahead."""
        for queue, tail in self.tails.items():
            _, row = self.rows[queue]
            start, end = row[state.QUEUE_TAIL_OFFSET], row[state.QUEUE_MAX_OFFSET]
            if random.random() < 0.8 or start == end:
                continue
            first = random.choice([start, start, random.randint(start, end)])
            count = random.choice([end - first, random.randint(0, end - first)])
            units = tail.data[(first - start) * cq_unit.SIZE :][: count * cq_unit.SIZE]
            fence = self.ahead[queue] = Fence(len(units))
            fence.write(0, units)
            row[state.QUEUE_AHEAD], row[state.QUEUE_AHEAD_OFFSET] = fence.address, first
            row[state.QUEUE_AHEAD_COUNT] = count
            row[state.QUEUE_TAIL_OFFSET] = end
            row[state.QUEUE_MIN_OFFSET] = random.choice([start, start, first])

    def damage(self, random: Random) -> None:
        """Change a byte of the log."""
        end = self.block[state.LOG_POSITION]
        if end and random.random() < 0.05:
            at = random.randrange(end)
            self.log.write(at, bytes([random.randrange(256)]))


def some_pull(random: Random) -> bytes:
    """A pull as a client of some language makes it; most are common."""
    odd = random.choice([0, 0, 1])
    topic, queue_id = random.choice(COMMON_QUEUES) if random.random() < 0.2 else ("T", 0)
    text = random.choice(TEXTS)
    fields = {
        "consumerGroup": random.choice(GROUPS),
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(random.choice([0, 7, 7, 7, 8, 9, 9, 10, 11, 15, 1 << 40])),
        "maxMsgNums": str(random.choice([1, 2, 4, 32, 32, 5000])),
        "sysFlag": str(random.choice([0, 1, 2, 3, 18]) | (text is not None) * 4),
        "commitOffset": str(random.choice([0, 5, 1 << 50])),
        "suspendTimeoutMillis": "15000",
        "subscription": text if text is not None else "*",
        "subVersion": random.choice(["0", "5", "5", "6" if odd else "4"]),
        "expressionType": "TAG",
        "maxMsgBytes": "2147483647",
        "bname": "broker-a",
    }
    for name in ("subscription", "expressionType", "maxMsgBytes", "bname"):
        if random.random() < 0.3:
            del fields[name]
    if random.random() < 0.3 * odd:
        name = random.choice(list(fields))
        fields[name] = random.choice(
            ["", "0", "1", "-1", "00", "7", "9", "TAG", "SQL92", "2147483648", "9" * 18, "9" * 19]
        )
    if random.random() < 0.1 * odd:
        del fields[random.choice(list(fields))]
    if random.random() < 0.1 * odd:
        fields[random.choice(["a", "b", "zz", "properties", "lo"])] = "x"
    code = random.choice([11, 361])
    opaque = random.choice([0, 1, 77, 2**31 - 1])
    flag = 0
    remark = None
    body = b""
    if random.random() < 0.2 * odd:
        opaque, flag, remark, body = random.choice(
            [(-1, 0, None, b""), (1, 1, None, b""), (1, 2, None, b""), (1, 0, "why", b""),
             (1, 0, None, b"body")]
        )  # fmt: skip
    if random.random() < 0.5:
        kind = Serialization(random.random() < 0.6)
        return command.encode(Command(code, opaque, flag, 0, 407, remark, fields, body, kind))
    return json_frame(random, odd, code, opaque, flag, remark, fields, body)


def sends(random: Random) -> bytes:
    """Common sends, most of them to one queue."""
    frames = []
    for _ in range(random.choice([0, 12, 20, 30])):
        fields = some_fields(random)
        if random.random() < 0.8:
            fields |= {"b": "T", "e": "0"}
        fields["i"] = random.choice(["TAGS\1TagA", "TAGS\1TagB", "TAGS\1other", "KEYS\1k"])
        sent = Command(310, 1, ext_fields=fields, body=random.randbytes(random.choice([1, 80])))
        frames.append(command.encode(sent))
    return b"".join(frames)


def some_stream(random: Random) -> bytes:
    frames = [sends(random)]
    for _ in range(random.choice([1, 3, 10])):
        frame = some_pull(random)
        chance = random.random()
        if chance < 0.1:
            frame = damaged(random, frame)
        elif chance < 0.2:
            frame += some_frame(random)
        frames.append(frame)
    data = b"".join(frames)
    if random.random() < 0.2:
        data = data[: random.randint(0, len(data))]
    return data


@given(SEEDS)
@settings(max_examples=200)
def test_deliver(seed: int) -> None:
    check_deliver(seed)


def check_deliver(seed: int) -> int:
    """Return how many pulls were answered."""
    random = Random(seed)
    data = some_stream(random)
    world = PullWorld(Random(seed), data)
    pull_count = 0
    while True:
        step = random.getrandbits(32)
        world.write_out(Random(step))
        world.damage(Random(step))
        world.make_readable()
        answered = hot_receive(world)
        delivered = world.block[state.DELIVER_COUNT]
        pull_count += delivered
        assert not (answered and delivered)
        deliveries = world.pull_subscriptions.take()
        assert sum(delivery.pull_count for delivery in deliveries) == delivered
        check_replies(world)
        stop = world.block[state.STOP]
        position = world.block[state.RECEIVE_POSITION]
        if stop not in (state.STOP_REPLIES, state.STOP_FRAME):
            return pull_count
        if stop == state.STOP_FRAME:
            size = int.from_bytes(data[position : position + 4])
            world.block[state.RECEIVE_POSITION] = position + 4 + size
        world.block[state.REPLIES_BYTES] = 0


def check_replies(world: PullWorld) -> None:
    """Replies are whole frames; those to pulls have whole records of the log."""
    data, at = world.replies.data[: world.block[state.REPLIES_BYTES]], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        reply = command.decode(data[at + 4 : at + 4 + size])
        place = 0
        while place < len(reply.body):
            record_size, _ = record.SIZE_AND_MAGIC.unpack_from(reply.body, place)
            assert reply.body[place : place + record_size] in world.log.data
            place += record_size
        assert place == len(reply.body)
        at += 4 + size
    assert at == len(data)


def test_many_pulls_are_common() -> None:
    """The generator makes what it says: else the test above would test little."""
    assert sum(check_deliver(seed) for seed in range(200)) > 50
