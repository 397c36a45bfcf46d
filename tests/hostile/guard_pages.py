"""Run the kernels on hostile bytes between pages without access, for ``test_guard_pages``.

    python -m hostile.guard_pages SECONDS SEED [NAME]

All memory of a kernel (requests, records, units, scratch, replies, rows) ends, or begins, at a page
without access: an access out of bounds kills the process. The name of a check and its seed are
printed before it runs, for the report of a failure.
"""

import ctypes
import mmap
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from fuzz import (
    request_streams as streams,
    test_batch_records as batches,
    test_kernel_bounds as bounds,
    test_store_kernels as store_kernels,
)
from fuzz.gate_world import GateWorld, check_gate, some_frame
from fuzz.kernel_worlds import AckWorld, Fence, ScanCall, SendWorld
from reput.broker.kernels import gate_words, native as broker_kernels
from reput.format.kernels import native
from reput.store.kernels import control_block as state, hot

_NUMBERS = [-(1 << 31), -1, 0, 1, 3, 4, 5, 7, 8, 20, 90, 91, 92, 127, 128, 255, 256, 32_767, 32_768]
_NUMBERS += [65_535, (1 << 24) - 1, 1 << 24, (1 << 24) + 1, 0x7FFFFFF0, (1 << 31) - 1]
_LIBC = ctypes.CDLL(None, use_errno=True)
_SIDE = Random()
"""Chooses the side at which new memory touches its guard page."""


class GuardedBytes(Fence):
    """Bytes between two pages without access; they touch one of these."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        pages = -(-size // page) + 2
        self._map = mmap.mmap(-1, pages * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        end = start + (pages - 1) * page
        for guard in (start, end):
            assert _LIBC.mprotect(ctypes.c_void_p(guard), page, 0) == 0
        self.size = size
        self.address = start + page if _SIDE.random() < 0.3 else end - size


def guard() -> None:
    """Guard the memory of the fuzz tests on both sides."""
    Fence.__init__ = GuardedBytes.__init__  # type: ignore[method-assign]


def with_lies(random: Random, data: bytes) -> bytes:
    """Return bytes with wrong numbers of two, four or eight bytes in some places."""
    changed = bytearray(data)
    for _ in range(random.choice([0, 1, 1, 2, 5])):
        size = random.choice([1, 2, 4, 4, 4, 8])
        if len(changed) <= size:
            break
        # Most lengths are in heads.
        position = random.randrange(min(len(changed) - size, random.choice([12, 120, 1 << 30])))
        value = random.choice(_NUMBERS) + random.choice([0, 0, len(changed), -len(changed)])
        changed[position : position + size] = (value & (1 << 8 * size) - 1).to_bytes(size)
    return bytes(changed)


def receive(seed: int) -> None:
    """Call the kernel with wrong lengths of sends, and again after each frame that falls back."""
    random = Random(seed)
    data = with_lies(random, bounds.some_sends(random))
    world = SendWorld(Random(seed), data, is_complete=random.random() < 0.7)
    for _ in range(20):
        answered = bounds.hot_receive(world)
        position = world.block.receive_position
        assert 0 <= position <= len(data)
        assert 0 <= world.block.replies_bytes <= world.replies.size
        if not answered or world.block.stop == state.STOP_DONE:
            break
        bounds.skip_frame(world)


def take_acks(seed: int) -> None:
    """Call the kernel with wrong lengths of acknowledgements."""
    random = Random(seed)
    data = with_lies(random, bounds.some_acks(random))
    world = AckWorld(data, 0, random.choice([1, 3, 256]), random.choice([100, 500, 64 << 10]))
    kernel = broker_kernels.plain_function("acks", [ctypes.c_int64], is_short=True)
    assert 0 <= kernel(world.argument) <= len(world.rows)
    assert 0 <= world.block.position <= len(data)


def take_requests(seed: int) -> None:
    """Call the kernel with wrong lengths of requests of one kind."""
    random = Random(seed)
    frames = [streams.some_end(random, 1, [(0, 7), (5, 1 << 33)], "group") for _ in range(5)]
    data = with_lies(random, b"".join(frames))
    rows_max = random.choice([0, 1, 20])
    count = ScanCall(data, rows_max).collect(bounds.native_scan)[0]
    assert 0 <= count <= rows_max


def judge_frames(seed: int) -> None:
    """Call the gate with wrong lengths of signed requests."""
    random = Random(seed)
    data = with_lies(random, b"".join(some_frame(random) for _ in range(4)))
    for row in GateWorld(data).judge():
        assert 0 < row[gate_words.ROW.end] <= len(data)


def walk(seed: int) -> None:
    """Call all kernels that readers use with wrong lengths of records."""
    random = Random(seed)
    base = random.choice([0, 1 << 20, (1 << 40) + 4096])
    data = with_lies(random, store_kernels.some_log(random, base))
    fence = Fence(len(data))
    fence.write(0, data)
    if not data:
        return
    buffer = hot.view_at(fence.address, len(data))
    start = random.choice([0, 0, random.randrange(len(data))])
    file_end = random.choice([None, None, len(data) + 100])
    segments = native.scan(buffer, start, len(data), physical_offset=base, file_end=file_end)
    assert start <= segments.next_position <= max(len(data), file_end or 0)
    native.find_record(buffer, start, physical_offset=base, file_end=file_end)
    native.data_end(buffer, start)
    native.checksum(buffer)
    positions = np.array([random.randrange(len(data)) for _ in range(9)], np.int64)
    native.judge(buffer, positions, physical_offset=base, file_end=file_end)
    columns = native.Columns(buffer, segments.positions[segments.verdicts == 0])
    columns.topics()
    columns.bodies()
    columns.properties()
    columns.keys()
    columns.message_ids()
    columns.born_hosts()
    columns.key_hashes(with_tags=True)


CHECKS: dict[str, Callable[[int], Any]] = {
    "receive": receive,
    "take_acks": take_acks,
    "take_requests": take_requests,
    "judge_frames": judge_frames,
    "walk": walk,
    "check_gate": check_gate,
    "check_receive": bounds.check_receive,
    "check_deliver": bounds.check_deliver,
    "check_acks": bounds.check_acks,
    "check_scan": bounds.check_scan,
    "check_pop": bounds.check_pop,
    "check_copied": bounds.check_copied,
    "check_retried": bounds.check_retried,
    "check_committed": bounds.check_committed,
    "check_timers": bounds.check_timers,
    "check_append": store_kernels.check_append,
    "check_dispatch": store_kernels.check_dispatch,
    "check_pull": store_kernels.check_pull,
    "check_batch": batches.check_batch,
}


def run(seconds: float, seed: int, names: list[str]) -> None:
    """Run checks in turn, each with its own seed, until the time is over."""
    guard()
    counts = dict.fromkeys(names, 0)
    deadline = time.monotonic() + seconds
    number = 0
    while not number or time.monotonic() < deadline:
        for name in names:
            seed_of_round = seed + number
            print(f"{name} {seed_of_round}", flush=True)  # noqa: T201
            _SIDE.seed(seed_of_round)
            CHECKS[name](seed_of_round)
            counts[name] += 1
        number += 1
    print(f"done {counts}", flush=True)  # noqa: T201


if __name__ == "__main__":
    run(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(CHECKS))
