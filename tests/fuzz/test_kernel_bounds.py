"""The kernels of the fast path in fenced memory, with little room or none.

They touch nothing outside of their buffers, and leave nothing half done. ``test_broker_paths``
compares what they do with the processors. Each example follows from one number:
``check_receive(4711)`` runs it again.
"""

import ctypes
import struct
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from fuzz import request_streams as streams
from fuzz.kernel_worlds import (
    REQUIRED,
    SCANNED,
    SCANNED_CODE,
    SEEDS,
    UNTOUCHED,
    AckWorld,
    CopyCall,
    CopyLog,
    Fence,
    PopWorld,
    PullWorld,
    ScanCall,
    SendWorld,
    some_rule,
)
from fuzz.request_streams import Pop
from reput.broker.kernels import acks_args, native as broker_kernels, scan_args
from reput.format import command, message as record, names, pop_codec, properties as props
from reput.format.kernels.rows import size_of, word_count
from reput.store.kernels import control_block as state, copy_args, hot, native, pop_args
from reput.store.writing.copying import CopyRule

try:
    native.engine()
except native.KernelsUnavailable:
    pytest.skip("no compiled kernels here", allow_module_level=True)

EXAMPLES = settings.default.max_examples
OFFSETS = [0, 7, 7, 7, 8, 9, 9, 10, 11, 15, 1 << 40]
"""Of pulls; the queue begins at 7."""
POPS = [Pop("T", "G", 0, 0, 5), Pop("T", "G", 0, 32, 6), Pop("Orders", "G", 3, 1000, 5)]


# --- sends ----------------------------------------------------------------------------------


def hot_receive(world: SendWorld) -> int:
    """Call the compiled kernel, even where ``hot`` has another function."""
    kernel = broker_kernels.plain_function("receive", [ctypes.c_int64], is_short=True)
    return kernel(world.hot.argument)


def some_sends(random: Random) -> bytes:
    odd = random.choice([0, 0, 1])
    count = random.choice([1, 1, 2, 5, 12])
    return streams.with_damage(random, [streams.some_send(random, odd) for _ in range(count)])


@given(SEEDS)
@settings(max_examples=2 * EXAMPLES)
def test_receive(seed: int) -> None:
    check_receive(seed)


def check_receive(seed: int) -> int:
    """Return the number of replies."""
    random = Random(seed)
    data = some_sends(random)
    world = SendWorld(Random(seed), data, is_complete=random.random() < 0.7)
    while True:
        start = world.block.log_position
        answered = hot_receive(world)
        if not answered:
            assert world.block.log_position == start, "nothing half done"
        used = world.block.replies_bytes
        assert world.replies.data[used:] == UNTOUCHED * (world.replies.size - used)
        assert world.received.data == data
        if not answered or world.block.stop == state.STOP_DONE:
            return check_send_replies(world)
        skip_frame(world)


def skip_frame(world: SendWorld) -> None:
    """Skip the frame that the call stopped for, as if a processor had handled it."""
    data, position = world.received.data, world.block.receive_position
    size = int.from_bytes(data[position : position + 4], signed=True)
    if world.block.stop == state.STOP_FRAME and size >= 0:
        world.block.receive_position = position + 4 + size


def check_send_replies(world: SendWorld) -> int:
    """Check that replies are whole, and name records of the log; return their number."""
    start = world.block.log_start
    data = world.log.data[: world.block.log_position]
    replies, position, count = world.replies.data, 0, 0
    while position < world.block.replies_bytes:
        size = int.from_bytes(replies[position : position + 4])
        reply = command.decode(replies[position + 4 : position + 4 + size])
        assert reply.code == 0
        assert reply.ext_fields is not None
        place = int(reply.ext_fields["msgId"][16:], 16) - start
        verdict, record_size = record.classify(data, place, start + place)
        assert verdict is record.Verdict.MESSAGE
        assert record_size <= world.block.record_bytes_max
        stored = record.decode(data, place)
        topic = stored.properties.get("REAL_TOPIC", stored.topic)
        assert world.hot.topic(topic.encode()).words.kind == state.KIND_PLAIN
        position += 4 + size
        count += 1
    return count


# --- pulls ----------------------------------------------------------------------------------


def some_pulls(random: Random) -> bytes:
    frames = streams.sends(random)
    odd = random.choice([0, 0, 1])
    for _ in range(random.choice([1, 3, 10])):
        frames.append(streams.some_pull(random, odd, OFFSETS))
        if random.random() < 0.1:
            frames.append(streams.some_send(random, odd))
    return streams.with_damage(random, frames)


@given(SEEDS)
@settings(max_examples=EXAMPLES)
def test_deliver(seed: int) -> None:
    check_deliver(seed)


def check_deliver(seed: int) -> int:
    """Return the number of pulls that were answered."""
    random = Random(seed)
    data = some_pulls(random)
    world = PullWorld(Random(seed), data)
    pull_count = 0
    while True:
        step = random.getrandbits(32)
        world.write_out(Random(step))
        world.damage(Random(step))
        world.make_readable()
        waiting_bytes = world.block.replies_bytes
        answered = hot_receive(world)
        delivered = world.block.deliver_count
        pull_count += delivered
        assert not (delivered and (answered or waiting_bytes)), "sends and pulls leave apart"
        deliveries = world.pull_subscriptions.take()
        assert sum(delivery.pull_count for delivery in deliveries) == delivered
        check_pull_replies(world)
        if world.block.stop not in (state.STOP_REPLIES, state.STOP_FRAME):
            return pull_count
        skip_frame(world)
        if delivered or world.block.stop == state.STOP_REPLIES or random.random() < 0.5:
            world.block.replies_bytes = 0


def check_pull_replies(world: PullWorld) -> None:
    """Check that replies are whole frames with whole records of the log."""
    data, position = world.replies.data[: world.block.replies_bytes], 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4])
        reply = command.decode(data[position + 4 : position + 4 + size])
        place = 0
        while place < len(reply.body):
            record_size, _ = record.SIZE_AND_MAGIC.unpack_from(reply.body, place)
            assert reply.body[place : place + record_size] in world.log.data
            place += record_size
        assert place == len(reply.body)
        position += 4 + size
    assert position == len(data)


# --- pops -----------------------------------------------------------------------------------


@given(SEEDS)
@settings(max_examples=EXAMPLES // 2)
def test_pop(seed: int) -> None:
    check_pop(seed)


def check_pop(seed: int) -> int:
    """Return the number of calls that took messages."""
    random = Random(seed)
    data = b"".join(streams.sends(random))
    kernel = native.plain_function("pop_batch", [ctypes.c_int64], is_short=True)
    world = PopWorld(Random(seed), data)
    fill(world)
    taken = 0
    for _ in range(random.choice([1, 3, 8])):
        step = random.getrandbits(32)
        world.write_out(Random(step))
        world.damage(Random(step))
        world.make_readable()
        world.prepare(Random(step))
        start = world.block.log_position
        count = kernel(world.argument)
        if count:
            taken += 1
            check_popped(world, start, count)
        else:
            assert world.block.log_position == start, "nothing half done"
    return taken


def fill(world: PopWorld) -> None:
    """Receive the sends of a world; leave out frames that fall back to the processor."""
    while True:
        hot_receive(world)
        if world.block.stop not in (state.STOP_REPLIES, state.STOP_FRAME):
            return
        skip_frame(world)
        world.block.replies_bytes = 0


def check_popped(world: PopWorld, start: int, count: int) -> None:
    """Check that the checkpoint can be decoded, and names the records that were copied."""
    call, log_start = world.call, world.block.log_start
    assert count <= call.count_max <= pop_args.MESSAGES_MAX
    data = world.log.data[start : world.block.log_position]
    verdict, size = record.classify(data, 0, log_start + start)
    assert (verdict, size) == (record.Verdict.MESSAGE, len(data))
    assert size == call.checkpoint_size
    stored = record.decode(data)
    # Not by ``decode_checkpoint``: it refuses numbers that no pop has.
    checkpoint = msgspec.json.decode(stored.body, type=pop_codec.CheckpointRecord)
    records = world.buffer.data[: call.result_size]
    offsets = record.queue_offsets_in(records)
    assert len(offsets) == count
    assert checkpoint.queue_offsets == offsets
    assert (checkpoint.start_offset, checkpoint.pop_ms, checkpoint.invisible_ms) == (
        call.queue_offset, call.pop_ms, call.invisible_ms,
    )  # fmt: skip
    expected = pop_codec.encode_checkpoint(
        "broker-a", checkpoint.group, checkpoint.topic, int(call.queue_id),
        int(call.queue_offset), offsets, int(call.pop_ms),
        int(call.invisible_ms),
    )  # fmt: skip
    assert stored.body == expected
    info = pop_codec.message_info("T", int(call.queue_id), offsets)
    assert world.info.data[: call.result_info_size] == info.encode()


# --- acknowledgements -----------------------------------------------------------------------


def some_acks(random: Random) -> bytes:
    odd = random.choice([0, 0, 1])
    frames = []
    for _ in range(random.choice([1, 2, 5, 20])):
        frames += streams.some_acks(random, odd, POPS)
    return streams.with_damage(random, frames)


@given(SEEDS)
@settings(max_examples=EXAMPLES)
def test_acks(seed: int) -> None:
    check_acks(seed)


def check_acks(seed: int) -> int:
    """Return the number of acknowledgements that the kernel took."""
    random = Random(seed)
    data = some_acks(random)
    row_max, room = random.choice([1, 3, 256]), random.choice([100, 500, 64 << 10])
    kernel = broker_kernels.plain_function("acks", [ctypes.c_int64], is_short=True)
    position = taken = 0
    while position < len(data):
        world = AckWorld(data, position, row_max, room)
        count = kernel(world.argument)
        assert 0 <= count <= row_max
        rows = world.rows[:count]
        assert (rows[:, acks_args.ROW.bits] != 0).all()
        assert count == 0 or 0 <= rows[-1, acks_args.ROW.replies] <= room
        taken += int(rows[:, acks_args.ROW.count].sum())
        end = world.block.position
        assert position <= end <= len(data)
        if end == position:  # a frame that falls back
            end += 4 + max(0, int.from_bytes(data[position : position + 4], signed=True))
        position = end
    return taken


# --- copies ---------------------------------------------------------------------------------


@given(SEEDS)
@settings(max_examples=EXAMPLES)
def test_copies(seed: int) -> None:
    check_copied(seed)
    check_retried(seed)
    for more in range(3):
        check_committed(seed + more)
    check_timers(seed)


def check_copied(seed: int) -> int:
    """Return the number of records that were made."""
    random = Random(seed)
    log = CopyLog(random)
    rule = some_rule(random)
    more = Fence(random.choice([0, 30]))
    more.write(0, b"\2a\1b\2c"[: more.size].ljust(more.size, b"d"))
    places = log.some_places(random, more.size)
    return check_calls(random, log, rule, places, more, hot.copy_records, keeps_all=True)


def check_retried(seed: int) -> int:
    """Return the number of records that were made."""
    random = Random(seed)
    log = CopyLog(random)
    more = Fence(random.choice([0, 30]))
    more.write(0, b"REAL_TOPIC\1T\2REAL_QID\0010\2"[: more.size].ljust(more.size, b"d"))
    places = log.some_places(random, more.size)
    levels = [
        (random.choice([0, 0, 1, 18, 19, 2**31 - 1]), random.choice([16] * 9 + [4, 0, 2**31 - 1]))
        for _ in places
    ]
    places = with_columns(places, levels, word_count(copy_args.RetryPlace))
    return check_calls(random, log, CopyRule(), places, more, hot.copy_for_retry)


def check_committed(seed: int) -> int:
    """Return the number of half messages of which records were made."""
    random = Random(seed)
    log = CopyLog(random)
    from_topic = random.choice([b"", b"", names.HALF_TOPIC.encode()])
    rule = CopyRule(from_topic=from_topic, has_prepared_offset=True)
    groups = Fence(7)
    groups.write(0, b"gproduc")
    places = log.some_places(random, 0)
    decisions = [
        (*random.choice([(0, 1)] * 5 + [(1, 6), (0, 0), (0, 7)]), random.choice([0, 1]))
        for _ in places
    ]
    places = with_columns(places, decisions, word_count(copy_args.DecisionPlace))
    return check_calls(
        random, log, rule, places, groups, hot.copy_for_commit, from_topic=from_topic
    )


def with_columns(places: np.ndarray, columns: list[tuple[int, ...]], width: int) -> np.ndarray:
    added = np.array(columns, np.int64).reshape(len(places), width - word_count(copy_args.Place))
    return np.hstack([places, added])


def check_calls(
    random: Random,
    log: CopyLog,
    rule: CopyRule,
    places: np.ndarray,
    more: Fence,
    kernel: hot.Kernel,
    *,
    from_topic: bytes | None = None,
    keeps_all: bool = False,
) -> int:
    """Return the number of places of which records were made."""
    made = position = 0
    while position < len(places):
        left = places[position:].copy()
        call = CopyCall(Random(random.getrandbits(32)), log, rule, left, more)
        count = kernel(call.argument)
        if from_topic is None:
            check_made(call, count)
        else:
            check_decisions(log, from_topic, left[:count], call)
        if keeps_all:
            check_kept(log, rule, left[:count], call.scratch.data)
        made += count
        position += count
        if call.words.stop == copy_args.STOP_UNMAPPED:
            log.map(int(call.words.stop_offset), random)
        elif call.words.stop != copy_args.STOP_DONE:
            position += 1
    return made


def check_made(call: CopyCall, count: int) -> None:
    """Check that the scratch has whole records, one after another."""
    data, position = call.scratch.data, 0
    for _ in range(count):
        (size,) = struct.unpack_from(">i", data, position)
        made = record.decode(data[position : position + size], check_crc=False)
        assert made.body_crc == 0
        assert size <= call.words.record_size_max
        position += size
    assert position == call.words.result_size


def check_decisions(log: CopyLog, from_topic: bytes, places: np.ndarray, call: CopyCall) -> None:
    """Check the final messages and the op messages of half messages."""
    size = size_of(copy_args.DecisionResult) * len(places)
    words = np.frombuffer(call.results.data[:size], np.int64)
    data, position = call.scratch.data, 0
    for place, (final_size, op_size) in zip(places, words.reshape(-1, 2).tolist(), strict=True):
        physical_offset = int(place[copy_args.PLACE.physical_offset])
        half = record.decode(log.record_at(physical_offset), check_crc=False)
        assert from_topic in (b"", half.topic.encode())
        assert not {props.TRANSACTION_HALF_OFFSET, props.DELAY} & half.properties.keys()
        assert (final_size > 0) == bool(place[copy_args.DECISION_PLACE.is_commit])
        if final_size:
            final = record.decode(data[position : position + final_size], check_crc=False)
            assert final.body == half.body
        position += final_size
        op = record.decode(data[position : position + op_size], check_crc=False)
        assert op.body == b"%d" % half.queue_offset
        position += op_size
    assert position == call.words.result_size


def check_kept(log: CopyLog, rule: CopyRule, places: np.ndarray, made: bytes) -> None:
    """Check that copies have the flags of their sources that a rule keeps, and the properties."""
    flags_off, flags_on = rule.words.sys_flags_off, rule.words.sys_flags_on
    for place in places:
        data = log.record_at(int(place[copy_args.PLACE.physical_offset]))
        flags = record.decode(data, check_crc=False).sys_flag
        assert record.decode(made, check_crc=False).sys_flag == flags & ~flags_off | flags_on
        kept = pairs_of(data)
        (size,) = struct.unpack_from(">i", made)
        assert pairs_of(made[:size])[: len(kept)] == kept
        made = made[size:]


def pairs_of(data: bytes) -> list[bytes]:
    properties = record.decode(data, check_crc=False).property_bytes
    return [pair for pair in properties.split(b"\2") if pair]


def check_timers(seed: int) -> int:
    """Return the number of records whose properties were read."""
    random = Random(seed)
    log = CopyLog(random)
    places = log.some_places(random, 0)
    read = position = 0
    while True:
        left = places[position:].copy()
        call = CopyCall(Random(seed), log, CopyRule(), left, Fence(0))
        count = hot.copy_timers(call.argument)
        data = call.results.data[: size_of(copy_args.TimerProperties) * len(left)]
        rows = np.frombuffer(data, np.int64).reshape(-1, word_count(copy_args.TimerProperties))
        read += int((rows[:count, copy_args.TIMER.out_ms] >= 0).sum())
        position += count
        if position == len(places):
            return read
        log.map(int(call.words.stop_offset), random)


# --- scanned requests -----------------------------------------------------------------------


@given(SEEDS)
@settings(max_examples=4 * EXAMPLES)
def test_scan(seed: int) -> None:
    check_scan(seed)


def check_scan(seed: int) -> int:
    """Return the number of requests that were read."""
    random = Random(seed)
    odd = random.choice([0, 1, 1])
    halves = [(0, 7), (5, 1 << 33)]
    frames = [
        streams.some_end(random, odd, halves, random.choice(streams.GROUPS))
        for _ in range(random.choice([1, 2, 5, 9]))
    ]
    if odd and random.random() < 0.1:
        frames = [frame.replace(b'"code":37', b'"code":38') for frame in frames]
    data = streams.with_damage(random, frames)
    rows_max = random.choice([0, 1, 3, 20, 20])
    count, position, rows = ScanCall(data, rows_max).collect(native_scan)
    assert 0 <= count <= rows_max
    begin = 0
    for row in rows:
        end = row[scan_args.ROW.end]
        check_row(row, data, command.decode(data[begin + 4 : end]))
        begin = end
    assert position == begin <= len(data)
    return count


def check_row(row: list[int], data: bytes, request: command.Command) -> None:
    """Compare a row with a decoded request; its values must be written as clients write them."""
    assert (row[scan_args.ROW.opaque], row[scan_args.ROW.flag]) == (request.opaque, request.flag)
    assert request.opaque >= 0
    assert request.flag in (0, command.IS_ONEWAY)
    assert request.code == SCANNED_CODE
    assert request.remark is None
    fields = dict(request.ext_fields or {})
    for i, (name, kind) in enumerate(SCANNED.items()):
        value, size = row[scan_args.ROW.values + 2 * i :][:2]
        text = fields.pop(name, None)
        assert (size == scan_args.ABSENT) == (text is None)
        if text is None:
            assert not REQUIRED >> i & 1
        elif kind == scan_args.TEXT:
            assert data[value : value + size].decode() == text
            assert text.isascii()
            assert text.replace("\x7f", "").isprintable()  # JSON has no escape for DEL
            assert not set(text) & set('"\\')
        elif kind == scan_args.BOOL:
            assert text == ("false", "true")[value]
        else:
            assert str(value) == text
            assert 0 <= value < (1 << 31 if kind == scan_args.INT else 10**18)
    assert not fields


def native_scan(*arguments: ctypes.c_int64) -> int:
    return broker_kernels.plain_function("scan_requests", [ctypes.c_int64] * 2, is_short=True)(
        *arguments
    )


# --- all of them ----------------------------------------------------------------------------


def test_many_requests_take_the_fast_path() -> None:
    """Else the tests above would test little."""
    assert sum(check_receive(seed) for seed in range(100)) > 30
    assert sum(check_deliver(seed) for seed in range(100)) > 10
    assert sum(check_pop(seed) for seed in range(25)) > 8
    assert sum(check_acks(seed) for seed in range(25)) > 100
    assert sum(check_copied(seed) for seed in range(100)) > 20
    assert sum(check_timers(seed) for seed in range(100)) > 20
    assert sum(check_retried(seed) for seed in range(100)) > 12
    assert sum(check_committed(seed) for seed in range(200)) > 20
    assert sum(check_scan(seed) for seed in range(50)) > 15
