"""The kernel ``batch_records`` and its reference implementation on valid, invalid and cut batches.

Each example follows from a number: ``check_batch(4711)`` runs it again.
"""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings

from fuzz.kernel_worlds import IS_SOAK, SEEDS, Fence
from reput.format import batch, properties as props
from reput.store.kernels import hot, native, reference

try:
    native.engine()
except native.KernelsUnavailable:
    pytest.skip("no compiled kernels here", allow_module_level=True)

SIZES = [-(1 << 31), -1, 0, 1, 21, 22, 23, 100, 32_767, 32_768, 65_535, (1 << 31) - 1]
PAIRS = [b"a\1b", b"KEYS\1k1 k2", b"POP_CK\1x", b"INNER_NUM\x013", b"__CRC32#\x010000000000"]
PAIRS += [b"POP_CK", b"", b"\1", b"POP_CKX\1y", "gr\u00fc\1n".encode(), b"v\1" + b"w" * 3000]
TAIL = b"__CRC32#\x010000000000\2"


def some_properties(random: Random) -> bytes:
    pairs = [random.choice(PAIRS) for _ in range(random.choice([0, 1, 2, 5]))]
    odd = [b"\xff\1\xfe"] if random.random() < 0.05 else []
    return b"\2".join(pairs + odd) + random.choice([b"", b"\2"])


def some_batch(random: Random) -> bytes:
    """Return a batch; every other one has a wrong length, or is cut."""
    messages = [
        batch.InnerMessage(
            random.getrandbits(31), random.randbytes(random.choice([0, 1, 50])),
            some_properties(random)[:32_767],
        )
        for _ in range(random.choice([0, 1, 2, 7, 20]))
    ]  # fmt: skip
    data = bytearray(batch.encode(messages))
    if data and random.random() < 0.5:
        position = random.randrange(len(data))
        wrong = random.choice(SIZES).to_bytes(4, "big", signed=True)
        if random.random() < 0.5:
            position = random.choice([0, batch.HEAD.size - 4])
        data[position : position + 4] = wrong[: len(data) - position]
    return bytes(data[: random.randint(0, len(data))] if random.random() < 0.3 else data)


def check_batch(seed: int) -> int:
    """Compare both implementations; return the number of records that they made."""
    random = Random(seed)
    dropped = [name.encode() + b"\2" for name in sorted(props.OF_BROKERS)]
    texts = [
        some_batch(random),
        random.randbytes(random.choice([88, 100])),
        random.randbytes(random.choice([1, 2, 128])),
        b"".join(dropped) if random.random() < 0.5 else b"",
        TAIL if random.random() < 0.5 else b"",
    ]
    record_max = random.choice([90, 300, 1 << 20, 1 << 20])
    fences = [Fence(len(text)) for text in texts]
    arguments = []
    for fence, text in zip(fences, texts, strict=True):
        fence.write(0, text)
        arguments += [fence.address, len(text)]
    results = []
    for kernel in (hot.batch_records, reference.batch_records):
        counts = np.zeros(3, np.int64)
        counted = kernel(*arguments, record_max, 0, hot.address_of(counts))
        target = Fence(int(counts[1]))  # Exactly the counted size.
        repeated = np.zeros(3, np.int64)
        made = kernel(*arguments, record_max, target.address, hot.address_of(repeated))
        assert (made, *repeated) == (counted, *counts)
        results.append((made, *counts.tolist(), target.data))
    assert results[0] == results[1]
    return int(results[0][0])


@given(SEEDS)
@settings(max_examples=2000 if IS_SOAK else 100)
def test_batch(seed: int) -> None:
    check_batch(seed)


def test_many_batches_become_records() -> None:
    """Otherwise the test above would test little."""
    assert sum(check_batch(seed) for seed in range(100)) > 100
