"""The kernels that append, dispatch and pull agree with their reference implementation.

Each is called in one of two equal worlds, whose addresses differ and are not compared. Each example
follows from a number: ``check_append(4711)`` runs it again.
"""

import ctypes
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

from fuzz.kernel_worlds import IS_SOAK, NOW_MS, QUEUES, SEEDS, Fence, World
from interop import samples
from reput.format import cq_unit, message as record, sys_flag as flags
from reput.format.message import Host
from reput.store.kernels import control_block as state, hot, native, reference
from reput.store.writing import incoming
from reput.store.writing.incoming import IncomingMessage

try:
    native.engine()
except native.KernelsUnavailable:
    pytest.skip("no compiled kernels here", allow_module_level=True)

DELAYS = ["0", "1", "3", "4", "99", "-1", "+1", "01", " 1", "1x", "", "٣", "2147483647", "1" * 30]
DELAYS += ["2147483648", "4294967297", "18446744073709551617"]
KEYS = ["k", "a b", " a  b ", "  ", "键 ключ", "polygenelubricants", "w " * 40]


def assert_alike(
    make: Callable[[], World],
    native_call: Callable[[World], Any],
    plain_call: Callable[[World], Any],
) -> World:
    """Make two worlds, call a function in each, compare them; return one of them afterwards."""
    world, other = make(), make()
    assert native_call(world) == plain_call(other)
    actual, expected = world.meaning(), other.meaning()
    for part in expected:
        assert actual[part] == expected[part], part
    return world


# --- messages -------------------------------------------------------------------


def some_property_bytes(random: Random) -> bytes:
    """Return a property string, mostly a valid one."""
    pairs = []
    for _ in range(random.choice([0, 1, 2, 3, 6])):
        name = random.choice(
            ["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "INNER_MULTI_DISPATCH", "KEYZ", "", "own", "WAIT"]
        )
        if name == "DELAY":
            value = random.choice(DELAYS)
        elif name == "KEYS":
            value = random.choice(KEYS)
        else:
            value = random.choice(["", "TagA", "%LMQ%a", "a\1b", samples.text(random, 6)])
        separator = "\1" if random.random() < 0.95 else ""
        pairs.append((name + separator + value).encode(errors="replace"))
    data = b"\2".join(pairs) + random.choice([b"", b"\2", b"\2\2"])
    if random.random() < 0.05:
        position = random.randint(0, len(data))
        data = data[:position] + random.choice(samples.MALFORMED) + data[position:]
    return data


def some_record(random: Random, *, has_crc: bool = False) -> bytes:
    """Return a record as the store encodes it, before it has its offset."""
    addresses = [bytes([127, 0, 0, 1]), bytes(15) + b"\1"]
    topic, queue_id = random.choice(QUEUES)
    message = IncomingMessage(
        topic,
        random.randbytes(random.choice([0, 1, 5, 80])),
        random.choice([queue_id, queue_id, 2, 1000, 2**31 - 1]),
        some_property_bytes(random),
        random.choice([0, NOW_MS, -1]),
        Host(random.choice(addresses), random.randrange(65536)),
        Host(random.choice(addresses), random.randrange(65536)),
        random.randrange(-(2**31), 2**31),
        random.choice([0, 0, 0, 4, 8, 12, flags.COMPRESSED, 0x300, flags.INNER_BATCH, 0x30]),
        random.choice([0, 3]),
        random.choice([0, 1 << 40]),
    )
    if has_crc:
        message = incoming.with_crc_room(message)
    return incoming.encode(message, topic.encode())


# --- append ---------------------------------------------------------------------


@given(SEEDS)
@settings(max_examples=500 if IS_SOAK else 60)
def test_append(seed: int) -> None:
    check_append(seed)


def check_append(seed: int) -> None:
    random = Random(seed)
    has_crc = random.random() < 0.2
    records = [some_record(random, has_crc=has_crc) for _ in range(random.choice([1, 1, 2, 8]))]
    data = b"".join(records)
    # Often a record ends near the end of the file, or of the part of it that is reserved.
    size = sum(map(len, records[: random.randint(1, len(records))]))
    room = random.choice([None, size + random.choice([-1, 0, 1, 7, 8, 9])])
    is_file = random.random() < 0.5

    def make() -> World:
        world = World(Random(seed), has_record_crc=has_crc, input_size=len(data))
        if room is not None:
            world.leave_room(room, is_file=is_file)
        return world

    after = assert_alike(
        make,
        lambda world: hot_native("append")(world.hot.argument, data),
        lambda world: reference.append(world.hot.argument, data),
    )
    assert_log_is_whole(after, make().block.log_position)


def assert_log_is_whole(world: World, start: int) -> None:
    """Check that the appended bytes are records with right offsets and checksums."""
    position, end = start, world.block.log_position
    data = world.log.data
    while position < end:
        offset = world.block.log_start + position
        verdict, size = record.classify(data, position, offset)
        assert verdict is record.Verdict.MESSAGE
        position += size
    assert position == end
    assert not any(data[end:])


def hot_native(name: str) -> Any:
    """Return the compiled kernel, whatever ``hot`` has chosen."""
    kinds = {"append": [ctypes.c_int64, ctypes.c_char_p], "pull": [ctypes.c_int64]}
    if name in kinds:
        return native.plain_function(name, kinds[name], is_short=True)
    return native.plain_function(name, [ctypes.c_int64] * 6, is_short=False)


# --- dispatch -------------------------------------------------------------------


@given(SEEDS)
@settings(max_examples=400 if IS_SOAK else 60)
def test_dispatch(seed: int) -> None:
    check_dispatch(seed)


def check_dispatch(seed: int) -> None:
    """Dispatch a log: sound, damaged, cut, with a blank, or with queue offsets that do not fit."""
    random = Random(seed)
    base = random.choice([0, 4096, 1 << 40])
    data = some_log(random, base)
    end = len(data)
    file_end = end + random.choice([0, 0, 100])
    start, stop = 0, random.choice([end, end, end // 2])

    def make() -> World:
        world = World(Random(seed), is_live=0, input_position=start)
        world.log = Fence(end)
        world.log.write(0, data)
        return world

    def call(kernel: Any) -> Callable[[World], Any]:
        return lambda world: kernel(world.hot.address, world.log.address, stop, end, file_end, base)

    after = assert_alike(make, call(hot_native("dispatch")), call(reference.dispatch))
    assert after.log.data == data
    assert after.block.stop != state.STOP_DONE or after.block.input_position >= stop


@given(SEEDS)
@settings(max_examples=400 if IS_SOAK else 60)
def test_find_unqueued(seed: int) -> None:
    check_find_unqueued(seed)


def check_find_unqueued(seed: int) -> None:
    """Look for a queue without a row, in a log as that of ``check_dispatch``."""
    random = Random(seed)
    base = random.choice([0, 4096, 1 << 40])
    data = some_log(random, base)
    end = len(data)
    file_end = end + random.choice([0, 0, 100])

    def make() -> World:
        world = World(Random(seed), is_live=0)
        world.log = Fence(end)
        world.log.write(0, data)
        return world

    def call(kernel: Any) -> Callable[[World], Any]:
        return lambda world: kernel(world.hot.address, world.log.address, 0, end, file_end, base)

    after = assert_alike(make, call(hot_native("find_unqueued")), call(reference.find_unqueued))
    assert after.log.data == data


def some_log(random: Random, base: int) -> bytes:
    """Return consecutive records, each with its offset; then perhaps damage."""
    log = bytearray()
    for _ in range(random.choice([1, 2, 6])):
        data = bytearray(some_record(random))
        queue_offset = random.choice([0, 0, 0, 1, 2, 7, 8, 1 << 40])
        data[20:36] = queue_offset.to_bytes(8) + (base + len(log)).to_bytes(8)
        log += data
    if random.random() < 0.2:
        room = random.choice([8, 100])
        log += record.pack_blank(room).ljust(room, b"\0")
    for _ in range(random.choice([0, 0, 1, 3])):
        position = random.randrange(len(log))
        log[position : position + 4] = random.choice(
            [b"\0\0\0\0", b"\xff\xff\xff\xff", random.randbytes(4)]
        )
    if random.random() < 0.2:
        del log[random.randrange(1, len(log)) :]
    return bytes(log)


# --- pull -----------------------------------------------------------------------


@given(SEEDS)
@settings(max_examples=400 if IS_SOAK else 60)
def test_pull(seed: int) -> None:
    check_pull(seed)


def check_pull(seed: int) -> None:
    """Pull by units that are right, wrong, or point at no record."""
    random = Random(seed)
    start = random.choice([0, 3]) * 4096
    places, files = some_files(random, start)
    units = b"".join(some_unit(random, places, start) for _ in range(random.choice([1, 5, 30])))
    some = [
        random.choice([-9, 0, 1, 7, 2598919]) for _ in range(random.choice([0, 1, 2, 5, 9, 20]))
    ]
    codes = np.array(sorted(some), np.int64)
    mapped = [random.random() < 0.9 for _ in files]
    gone = [random.random() < 0.1 for _ in files]
    words = {
        "pull_unit_count": len(units) // cq_unit.SIZE,
        "pull_queue_offset": random.choice([-1, 0, 0, 5]),
        "pull_room": random.choice([100, 1000, 100_000]),
        "pull_count_max": random.choice([1, 3, 32]),
        "pull_code_count": len(codes),
        "file_count": len(files),
        "files_start": start,
        "file_size": 4096,
        "readable": start + random.choice([4096, 4096 * len(files), 1000, 0]),
        "memory_bytes": random.choice([0, 2000, 1 << 40]),
        "bytes_in_memory_max": random.choice([300, 100_000]),
        "count_in_memory_max": random.choice([1, 4, 32]),
        "bytes_on_disk_max": random.choice([200, 100_000]),
        "count_on_disk_max": random.choice([1, 2, 8]),
        "result_last_offset": 77,
    }
    kept: list[Any] = []

    def make() -> World:
        world = World(Random(seed), **words)
        fences = [Fence(4096) for _ in files]
        for fence, data in zip(fences, files, strict=True):
            fence.write(0, data)
        addresses: npt.NDArray[np.int64] = np.array(
            [
                state.FILE_IS_GONE if is_gone else fence.address if is_mapped else 0
                for fence, is_mapped, is_gone in zip(fences, mapped, gone, strict=True)
            ],
            np.int64,
        )
        fence_of_units = Fence(len(units))
        fence_of_units.write(0, units)
        world.log = Fence(words["pull_room"])  # The reply, at the position that ``meaning`` reads.
        world.block.files = hot.address_of(addresses)
        world.block.pull_units = fence_of_units.address
        world.block.pull_buffer = world.log.address
        world.block.pull_codes = hot.address_of(codes) if len(codes) else 0
        kept.append((fences, addresses, fence_of_units))
        return world

    after = assert_alike(
        make,
        lambda world: hot_native("pull")(world.hot.argument),
        lambda world: reference.pull(world.hot.argument),
    )
    reply = after.log.data[: after.block.result_bytes]
    position = count = 0
    while position < len(reply):
        message = record.decode(reply, position, check_crc=False)
        assert (message.physical_offset, message.store_size) in places
        position, count = position + message.store_size, count + 1
    assert (position, count) == (len(reply), after.block.result_count)


def some_files(random: Random, start: int) -> tuple[list[tuple[int, int]], list[bytes]]:
    """Return log files of 4096 bytes, and (physical offset, size) of the records in them."""
    places, files = [], []
    for number in range(random.choice([1, 2, 4])):
        log = bytearray()
        while True:
            data = bytearray(some_record(random))
            if len(log) + len(data) > 4096:
                break
            offset = start + 4096 * number + len(log)
            data[20:36] = (len(places) % 7).to_bytes(8) + offset.to_bytes(8)
            places.append((offset, len(data)))
            log += data
        files.append(bytes(log).ljust(4096, b"\0"))
    return places, files


def some_unit(random: Random, places: list[tuple[int, int]], start: int) -> bytes:
    physical_offset, size = random.choice(places)
    code = random.choice([0, 1, 2598919, -1])
    kind = random.random()
    if kind < 0.1:
        size = random.choice([0, -1, 1, 3, 35, 4096, cq_unit.PRE_BLANK_SIZE, size + 1])
    elif kind < 0.2:
        physical_offset += random.choice([1, -1, 4096, 1 << 50, -(1 << 50)])
    elif kind < 0.25:
        size = random.choice([1, 2, 3, 5, 35])
        physical_offset = start + 4096 - size
    elif kind < 0.3:
        return bytes(20)
    return cq_unit.pack(cq_unit.Unit(physical_offset, size, code))
