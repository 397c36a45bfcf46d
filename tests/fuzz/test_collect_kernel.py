"""The kernel ``collect`` on requests of many kinds, cut and damaged ones.

Each example follows from one number: ``check(4711)`` runs it again.
"""

import ctypes
import json
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fuzz.test_hot_kernels import SEEDS, Fence
from fuzz.test_send_kernel import damaged, framed
from reput.format import command
from reput.format.command import Command, Serialization
from reput.store.kernels import (
    control_block as state,
    hot,
    native,
    scan_args as rules,
)

try:
    native.engine()
except native.KernelsUnavailable:
    pytest.skip("no compiled kernels here", allow_module_level=True)

CODE = 37
NAMES = {
    "producerGroup": rules.TEXT,
    "topic": rules.TEXT,
    "tranStateTableOffset": rules.LONG,
    "queueId": rules.INT,
    "fromTransactionCheck": rules.BOOL,
    "x": rules.TEXT,
    "properties": rules.TEXT,
    "language": rules.TEXT,
}
REQUIRED = 0b0101
VALUES = {
    rules.TEXT: ["group", "", "a b", "{},:", "x" * 40, "7"],
    rules.INT: ["0", "7", "2147483647"],
    rules.LONG: ["0", "2147483648", "9" * 18],
    rules.BOOL: ["true", "false"],
}
ODD = [
    "",
    "-1",
    "00",
    "07",
    "2147483648",
    "9" * 19,
    "True",
    "tru",
    "falsy",
    "日本",
    'a"b',
    "a\\b",
    "\1",
]


class Call:
    """A list of what is wanted, a buffer, and room for rows, which end where nobody may write."""

    def __init__(self, data: bytes, rows_max: int, position: int = 0) -> None:
        width = rules.ROW_WORDS + rules.VALUES * len(NAMES)
        self.rows = Fence(8 * width * rows_max)
        self.rows.write(0, bytes(self.rows.size))
        self.received = Fence(len(data))
        self.received.write(0, data)
        self.texts = [np.frombuffer(name.encode(), np.uint8) for name in NAMES]
        words = [CODE, self.rows.address, rows_max, REQUIRED, len(NAMES)]
        for text, kind in zip(self.texts, NAMES.values(), strict=True):
            words += [hot.address_of(text), len(text), kind]
        self.wanted = np.array(words, np.int64)
        self.memory = np.zeros(state.BLOCK_WORDS, np.int64)
        self.memory[state.RECEIVE_ADDRESS] = self.received.address
        self.memory[state.RECEIVE_POSITION] = position
        self.memory[state.RECEIVE_END] = len(data)

    def collect(self, kernel: Any) -> tuple[int, int, list[list[int]]]:
        """Return count, position and rows; addresses as positions in the buffer."""
        count = kernel(*(hot.Address(hot.address_of(one)) for one in (self.memory, self.wanted)))
        found = np.frombuffer(self.rows.data, np.int64).reshape(-1, self.width).tolist()[:count]
        for row in found:
            row[rules.ROW_BODY] -= self.received.address
            for i, kind in enumerate(NAMES.values()):
                at = rules.ROW_WORDS + rules.VALUES * i
                if kind == rules.TEXT and row[at + 1] != rules.ABSENT:
                    row[at] -= self.received.address
        return count, int(self.memory[state.RECEIVE_POSITION]), found

    width = rules.ROW_WORDS + rules.VALUES * len(NAMES)


def native_collect(*arguments: Any) -> int:
    return native.plain_function("collect", [ctypes.c_int64] * 2, is_short=True)(*arguments)


def some_request(random: Random, odd: float) -> bytes:
    names = [name for i, name in enumerate(NAMES) if REQUIRED >> i & 1 or random.random() < 0.5]
    random.shuffle(names)
    fields = {name: random.choice(VALUES[NAMES[name]]) for name in names}
    if fields.get("producerGroup") == "":
        fields["producerGroup"] = "g"
    if random.random() < 0.3 * odd:
        fields[random.choice(names)] = random.choice(ODD)
    if random.random() < 0.1 * odd:
        fields.pop(random.choice(names))
    if random.random() < 0.1 * odd:
        fields[random.choice(["unknown", "a", "topi", "producerGroups"])] = "1"
    code, opaque, flag, remark = CODE, random.choice([0, 1, 2**31 - 1]), random.choice([0, 2]), None
    if random.random() < 0.15 * odd:
        code, opaque, flag, remark = random.choice(
            [(38, 1, 0, None), (CODE, -1, 0, None), (CODE, 1, 1, None), (CODE, 1, 4, None),
             (CODE, 1, 0, "why")]
        )  # fmt: skip
    body = random.choice([b"", b"", b"some body"])
    kind = Serialization(random.random() < 0.4)
    if kind is Serialization.ROCKETMQ or random.random() < 0.5:
        return command.encode(
            Command(
                code, opaque, flag, remark=remark, ext_fields=fields, body=body, serialization=kind
            )
        )
    members = [("code", code), ("flag", flag), ("opaque", opaque), ("extFields", fields)]
    members += [("language", "JAVA"), ("version", 407), ("serializeTypeCurrentRPC", "JSON")]
    random.shuffle(members)
    header = json.dumps(dict(members), separators=(",", ":"), ensure_ascii=random.random() < 0.9)
    return framed(header.encode(), body, 0)


def some_stream(random: Random) -> bytes:
    frames = []
    odd = random.choice([0, 0, 1])
    for _ in range(random.choice([1, 2, 5, 9])):
        frame = some_request(random, odd)
        if random.random() < 0.2 * odd:
            frame = damaged(random, frame)
        frames.append(frame)
    if random.random() < 0.1:
        frames.append(random.choice([0, 3, -1, (1 << 24) + 1]).to_bytes(4, signed=True))
    data = b"".join(frames)
    return data[: random.randint(0, len(data))] if random.random() < 0.3 else data


def check(seed: int) -> int:
    random = Random(seed)
    data = some_stream(random)
    rows_max = random.choice([0, 1, 3, 20, 20])
    count, position, _ = Call(data, rows_max).collect(native_collect)
    assert 0 <= count <= rows_max
    assert 0 <= position <= len(data)
    return count


@given(SEEDS)
@settings(max_examples=400)
def test_collect(seed: int) -> None:
    check(seed)


@given(st.binary(max_size=200), st.integers(0, 3))
@settings(max_examples=100)
def test_noise(data: bytes, rows_max: int) -> None:
    assert Call(data, rows_max).collect(native_collect) == (0, 0, [])


@pytest.mark.parametrize("serialization", list(Serialization))
def test_every_cut(serialization: Serialization) -> None:
    """A header that is cut at any byte, with lengths that fit, and a buffer that is."""
    fields = {"producerGroup": "g", "tranStateTableOffset": "7", "fromTransactionCheck": "true"}
    whole = command.encode(Command(CODE, 1, ext_fields=fields, serialization=serialization))
    header = whole[8:]
    for cut in range(len(header)):
        for data in (whole[:cut], framed(header[:cut], b"", serialization) + whole):
            assert Call(data, 5).collect(native_collect)[0] == 0


def test_most_requests_are_common() -> None:
    assert sum(check(seed) for seed in range(200)) > 120
