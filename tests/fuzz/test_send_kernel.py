"""The kernel ``receive`` on frames of all kinds: nothing is half done, and nothing else is touched.

Worlds are those of ``test_hot_kernels``, with a receive buffer, a scratch and replies that end
where the process may touch nothing more. Frames are common ones, others, damaged ones, and noise;
each may be cut. Each example follows from one number: ``check_receive(4711)`` runs it again.
"""

import ctypes
import json
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fuzz.test_hot_kernels import NOW_MS, QUEUES, SEEDS, Fence, World
from reput.format import command, cq_unit, message as record
from reput.format.command import Command, Serialization
from reput.store.kernels import control_block as state, hot, native, send_rules

try:
    native.engine()
except native.KernelsUnavailable:
    pytest.skip("no compiled kernels here", allow_module_level=True)

UNTOUCHED = b"\xee"

PROPERTIES = ["KEYS\1k1 k2", "TAGS\1TagA", "UNIQ_KEY\1" + "7F" * 16, "WAIT\1true", "own\1value"]
PROPERTIES += ["PGROUP\1g", "a" * 33 + "\1" + "v" * 40, 'quoted\1"\\/', "TTL\x01100", "x\1y"]
PROPERTIES += [f"{start}X\1v" for start in send_rules.NAMES_OF_PYTHON]
ODD_PROPERTIES = ["WAIT\1false", "WAIT\1", "", "name", "\1value", "a\1b\1c", "日本\1x", "a\1日本"]
ODD_PROPERTIES += ["x\1y\3", "DELAY\x013", "WAITS\1true", "WAI\1true", "k\1" + "v" * 32_700]
HELD = ["TRAN_MSG\1true", "DELAY\x011", "DELAY\x012", "TIMER_DELAY_MS\x0110"]
HELD += ["TIMER_DELAY_SEC\x013", f"TIMER_DELIVER_MS\1{NOW_MS + 1000}"]
ODD_HELD = ["TRAN_MSG\1TRUE", "TRAN_MSG\1false", "TRAN_MSG\1tru", "TRAN_MSX\1true", "DELAY\x010"]
ODD_HELD += [
    "DELAY\x013",
    "DELAY\x014",
    "DELAY\x0103",
    "DELAY\1x",
    "DELAY\1" + "9" * 19,
    "DELAX\x011",
    *("TIMER_DELAY_MS\x010", "TIMER_DELAY_MS\x0100001", "TIMER_DELAY_MS\x01600001"),
    *("TIMER_DELAY_SEC\x01600", "TIMER_DELAY_SEC\x01601", "TIMER_DELAY_SEC\1" + "9" * 18),
    *(f"TIMER_DELIVER_MS\1{NOW_MS + more}" for more in (-1, 0, 1, 600_000, 600_001)),
    *("TIMER_DELIVER_MS\1" + "9" * 19, "TIMER_DELIVER_MS\1x", "TIMER_DELAY_XS\x013"),
    *("TIMER_DELAY_MSX\x013", "TIMER_OUT_MS\x013", "TIMER_DEL_UNIQKEY\x013"),
]
COMMON_QUEUES = [queue for queue in QUEUES if queue[0] in ("T", "Orders", "t" * 126)]
LETTERS = "abcdefghijklmn"


class SendWorld(World):
    """A world with what ``receive`` needs."""

    def __init__(self, random: Random, data: bytes, *, is_kind: bool = False) -> None:
        super().__init__(random)
        block = self.block
        if is_kind:
            self._provide(random)
        for topic in sorted({topic for topic, _ in QUEUES}):
            row = self.hot.topic(topic.encode())
            write_queues = 10 if is_kind else random.choice([0, 1, 2, 10, 10, 10, 10, 10])
            row.words[state.TOPIC_WRITE_QUEUES] = write_queues
        self.received = Fence(len(data))
        self.received.write(0, data)
        room, scratch, replies, body, size = (
            (40, 70_000, 8_000, 4000, 40_000)
            if is_kind
            else map(random.choice, ([0, 1, 2, 9], [100, 700, 9000], [0, 319, 320, 700, 9000],
                                     [20, 4000], [250, 40_000]))
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
            state.RECEIVE_IS_ON: is_kind or random.random() < 0.9,
            state.TAKES_HALVES: is_kind or random.random() < 0.5,
            state.TAKES_TIMERS: is_kind or random.random() < 0.5,
            state.TIMER_PRECISION_MS: random.choice([1, 7, 1000, 60_000]),
            state.TIMER_DELAY_MS_MAX: 600_000,
            state.CLOCK_TIME: NOW_MS,
            state.BROKER_NAME: hot.address_of(self.name_array),
            state.BROKER_NAME_SIZE: len(self.broker_name),
            state.HAS_RECORD_CRC: not is_kind and random.random() < 0.1,
            state.RECEIVE_ADDRESS: self.received.address,
            state.RECEIVE_END: len(data),
            state.REPLIES_ADDRESS: self.replies.address,
            state.REPLIES_ROOM: self.replies.size,
            state.SCRATCH_ADDRESS: self.scratch.address,
            state.SCRATCH_ROOM: self.scratch.size,
            state.NOTES_ADDRESS: self.notes.address,
            state.NOTES_ROOM: room,
            state.SUFFIX_ADDRESS: hot.address_of(self.suffix_array),
            state.SUFFIX_SIZE: len(self.suffix),
            state.BODY_BYTES_MAX: body,
            state.RECORD_BYTES_MAX: size,
            state.BORN_ADDRESS: random.getrandbits(32),
            state.BORN_PORT: random.getrandbits(16),
            state.STORE_ADDRESS: random.getrandbits(32),
            state.STORE_PORT: random.getrandbits(16),
        }
        for word, value in words.items():
            block[word] = value

    def _provide(self, random: Random) -> None:
        """Let there be all that an append stops for."""
        for queue in QUEUES:
            if queue not in self.rows:
                self._make_queue(queue, random)
            _, row = self.rows[queue]
            tail = self.tails[queue] = Fence(30 * cq_unit.SIZE)
            row[state.QUEUE_TAIL] = tail.address
            row[state.QUEUE_TAIL_LIMIT] = 30
            row[state.QUEUE_TAIL_OFFSET] = row[state.QUEUE_MAX_OFFSET]
        block = self.block
        while block[state.LOG_SIZE] < 20_000 or block[state.LOG_POSITION] > 100:
            self._make_log(random)
        block[state.LOG_ADDRESS] = self.log.address
        block[state.LOG_LIMIT] = block[state.LOG_SIZE]
        while block[state.INDEX_ENTRIES_MAX] < 60 or block[state.INDEX_NEXT] > 2:
            self._make_index(random)
        block[state.INDEX_ADDRESS] = self.index.address
        block[state.INDEX_LIMIT] = block[state.INDEX_ENTRIES_MAX]
        block[state.INDEX_END_OFFSET] = -1


def hot_receive(world: World) -> int:
    kernel = native.plain_function("receive", [ctypes.c_int64], is_short=True)
    return kernel(world.hot.argument)


# --- frames ---------------------------------------------------------------------


def some_properties(random: Random, odd: float) -> str:
    """What clients send: a few pairs, no name twice; and perhaps something else."""
    pairs = random.sample(PROPERTIES[:10], random.choice([0, 1, 3, 5, 8]))
    if random.random() < 0.4:
        pairs.insert(random.randint(0, len(pairs)), random.choice(HELD))
    if random.random() < 0.2 * odd:
        pairs.insert(random.randint(0, len(pairs)), random.choice(HELD + ODD_HELD))
    if random.random() < 0.25 * odd:
        pairs.insert(random.randint(0, len(pairs)), random.choice(PROPERTIES + ODD_PROPERTIES))
    return "\2".join(pairs) + random.choice(["", "\2"] if pairs else [""])


def some_fields(random: Random, odd: float = 0) -> dict[str, str]:
    topic, queue_id = random.choice(QUEUES if random.random() < 0.2 * odd else COMMON_QUEUES)
    fields = {
        "a": random.choice(["group", "please_rename_unique_group_name"]),
        "b": random.choice(["", "Nobody", "T" * 128]) if random.random() < 0.05 * odd else topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": random.choice(["0", "0", "0", "1", "2", "259", "513", "769"]),
        "g": str(NOW_MS),
        "h": random.choice(["0", "7", "2147483647"]),
        "i": some_properties(random, odd),
        "j": "0",
        "k": "false",
        "l": "16",
        "m": "false",
        "n": "broker-a",
    }
    for name in "ijklmn":
        if random.random() < 0.3:
            del fields[name]
    if "TRAN_MSG" in fields.get("i", "") and random.random() < 0.5:
        fields["f"] = random.choice(["4", "5", "773"])
    if random.random() < 0.2 * odd:
        name = random.choice(LETTERS)
        fields[name] = random.choice(
            ["", "0", "1", "-1", "00", "07", "4", "true", "false", "False", " 0", "1e3", "1.0"]
            if random.random() < 0.5
            else ["2147483648", "1" * 18, "1" * 19, "9" * 25, "日本", "a\nb", "4096", "\\", '"']
        )
    if random.random() < 0.08 * odd:
        del fields[random.choice(list(fields))]
    if random.random() < 0.08 * odd:
        fields[random.choice(["o", "zz", "topic", "", "A", "ReqT"])] = "x"
    return fields


def some_frame(random: Random) -> bytes:
    """A frame as a client of some language makes it; most are common."""
    odd = random.choice([0, 0, 1])
    fields = some_fields(random, odd)
    code = 310
    if random.random() < 0.3:
        code = 10
        names = dict(zip(LETTERS, send_rules.FIELD_NAMES, strict=True))
        fields = {names.get(name, name): value for name, value in fields.items()}
    body = random.randbytes(random.choice([1, 5, 80, 80, 300]))
    if random.random() < 0.1 * odd:
        body = b""
    opaque = random.choice([0, 1, 77, 2**31 - 1])
    flag = 0
    remark = None
    if random.random() < 0.2 * odd:
        code, opaque, flag, remark = random.choice(
            [
                *((320, 1, 0, None), (11, 1, 0, None), (code, -1, 0, None), (code, 1, 1, None)),
                *((code, 1, 2, None), (code, 1, 0, "why"), (code, 1, 4, None), (code, 1, 0, "")),
            ]
        )
    if random.random() < 0.5:
        kind = Serialization(random.random() < 0.6)
        return command.encode(Command(code, opaque, flag, 0, 407, remark, fields, body, kind))
    return json_frame(random, odd, code, opaque, flag, remark, fields, body)


def json_frame(
    random: Random,
    odd: float,
    code: int,
    opaque: int,
    flag: int,
    remark: str | None,
    fields: dict[str, str],
    body: bytes,
) -> bytes:
    """A frame whose keys stand in any order, and whose text another library may have written."""
    shuffled = list(fields.items())
    random.shuffle(shuffled)
    members: list[tuple[str, Any]] = [
        ("code", code),
        ("opaque", opaque),
        ("flag", flag),
        ("extFields", dict(shuffled)),
        ("language", random.choice(["JAVA", "GO", "OTHER", "nobody's"])),
        ("version", random.choice([0, 407, 513])),
        ("serializeTypeCurrentRPC", "JSON"),
    ]
    if remark is not None:
        members.append(("remark", remark))
    random.shuffle(members)
    if random.random() < 0.1 * odd:
        del members[random.randrange(len(members))]
    separators = (", ", ": ") if random.random() < 0.1 * odd else (",", ":")
    ascii_only = random.random() > 0.3 * odd
    header = json.dumps(dict(members), separators=separators, ensure_ascii=ascii_only)
    if random.random() < 0.1:
        header = header.replace("/", "\\/")
    if random.random() < 0.1:
        header += random.choice(["\n", " ", "\t\r\n  "])
    if random.random() < 0.05 * odd:
        header += random.choice(["\0", "}", ","])
    return framed(header.encode(errors="replace"), body, 0)


def framed(header: bytes, body: bytes, kind: int) -> bytes:
    mark = (kind << 24 | len(header)).to_bytes(4)
    return (4 + len(header) + len(body)).to_bytes(4) + mark + header + body


SPLICES = [b'"', b"\\", b"\\u0001", b"\\u0003", b"\0", b"\x80", b"\xc3\xa9", b",", b"{", b"}", b":"]
SPLICES += [b'"a":"b",', b'"code":310,', b"-", b"0", b"\1", b"\2", b"\x7f", b"null", b" ", b"[]"]


def damaged(random: Random, frame: bytes) -> bytes:
    """A frame with a little of its header changed; its lengths are right, mostly."""
    kind = frame[4]
    size = int.from_bytes(frame[5:8])
    header, body = bytearray(frame[8 : 8 + size]), frame[8 + size :]
    for _ in range(random.choice([1, 1, 2])):
        at = random.randint(0, len(header))
        behind = at + random.choice([0, 0, 1, 1, 2, 5])
        header[at:behind] = random.choice([b"", *SPLICES, random.randbytes(1)])
    found = bytearray(framed(bytes(header), body, kind))
    if random.random() < 0.1:
        at = random.randrange(8)
        found[at] = random.randrange(256)
    return bytes(found)


def some_stream(random: Random) -> bytes:
    frames = []
    for _ in range(random.choice([1, 1, 2, 5, 12])):
        chance = random.random()
        frame = some_frame(random)
        if chance < 0.15:
            frame = damaged(random, frame)
        elif chance < 0.17:
            frame = framed(random.randbytes(60), b"x", random.choice([0, 1, 1, 2]))
        elif chance < 0.18:
            frame = random.choice([0, 3, -1, 1 << 24, (1 << 24) + 1]).to_bytes(4, signed=True)
        frames.append(frame)
    data = b"".join(frames)
    if random.random() < 0.3:
        data = data[: random.randint(0, len(data))]
    return data


# --- tests ----------------------------------------------------------------------


@given(SEEDS)
@settings(max_examples=500)
def test_receive(seed: int) -> None:
    check_receive(seed)


def check_receive(seed: int) -> SendWorld:
    random = Random(seed)
    data = some_stream(random)
    is_kind = random.random() < 0.7
    return serve(SendWorld(Random(seed), data, is_kind=is_kind))


def serve(world: SendWorld) -> SendWorld:
    """Call until nothing more is done; after each call look at what it may not have touched."""
    while True:
        start = world.block[state.LOG_POSITION]
        answered = hot_receive(world)
        if not answered:
            assert world.block[state.LOG_POSITION] == start, "nothing half done"
        used = world.block[state.REPLIES_BYTES]
        assert world.replies.data[used:] == UNTOUCHED * (world.replies.size - used)
        if not answered or world.block[state.STOP] == state.STOP_DONE:
            return world
        skip_frame(world)


def skip_frame(world: SendWorld) -> None:
    """Step over the frame that the call stopped for, as a caller does that handles it itself."""
    data, position = world.received.data, world.block[state.RECEIVE_POSITION]
    size = int.from_bytes(data[position : position + 4], signed=True)
    if world.block[state.STOP] == state.STOP_FRAME and size >= 0:
        world.block[state.RECEIVE_POSITION] = position + 4 + size


@given(SEEDS, st.binary(max_size=200))
@settings(max_examples=100)
def test_noise(seed: int, data: bytes) -> None:
    serve(SendWorld(Random(seed), data))


@pytest.mark.parametrize("serialization", list(Serialization))
@pytest.mark.parametrize("code", [310, 10])
def test_every_cut(code: int, serialization: Serialization) -> None:
    """A header that is cut anywhere, with lengths that fit, and a buffer that is."""
    fields = some_fields(Random(1)) | {"b": "T", "e": "0", "i": 'KEYS\1k\2WAIT\1true\2x\1"\\/'}
    if code == 10:
        names = dict(zip(LETTERS, send_rules.FIELD_NAMES, strict=True))
        fields = {names[name]: value for name, value in fields.items()}
    sent = Command(code, 7, ext_fields=fields, body=b"body", serialization=serialization)
    frame = command.encode(sent)
    header = frame[8:-4]
    # By default at every third byte, which are others for each shape.
    step = 1 if settings.default.max_examples > 100 else 3
    for cut in range((code == 10) + 2 * int(serialization), len(header), step):
        short = framed(header[:cut], b"body", serialization)
        for data in (frame[:cut], short) if cut % 8 else (short + frame,):
            serve(SendWorld(Random(5), data, is_kind=True))


def test_most_frames_are_common() -> None:
    """The generator makes what it says: else the tests above would test little."""
    answered = sum(check_common(seed) for seed in range(200))
    assert answered > 100


def check_common(seed: int) -> int:
    """Count answers in a world where nothing is missing, and look at what is in its log."""
    world = check_receive(seed)
    start = world.block[state.LOG_START]
    data = world.log.data[: world.block[state.LOG_POSITION]]
    replies, at, count = world.replies.data, 0, 0
    while at < world.block[state.REPLIES_BYTES]:
        size = int.from_bytes(replies[at : at + 4])
        reply = command.decode(replies[at + 4 : at + 4 + size])
        assert reply.code == 0
        assert reply.ext_fields is not None
        place = int(reply.ext_fields["msgId"][16:], 16) - start
        verdict, _ = record.classify(data, place, start + place)
        assert verdict is record.Verdict.MESSAGE
        at += 4 + size
        count += 1
    return count
