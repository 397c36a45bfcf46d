"""The fast path of a broker and its processors on random bytes: see ``broker_paths``."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import settings

from fuzz import broker_paths, request_streams as streams
from fuzz.broker_paths import Paths, in_turn
from fuzz.request_streams import Pop
from reput.format import names, sys_flag as flags
from reput.store.writing.incoming import IncomingMessage

EXAMPLES = settings.default.max_examples
TIMERS = {"message_delay_level": streams.DELAY_LEVELS, "timer_max_delay_sec": 600}
STORES: dict[str, dict[str, Any]] = {
    "large files": {},
    # Log, queue and index files end within a few requests.
    "small files": {
        "mapped_file_size_commit_log": 20_000,
        "mapped_file_size_consume_queue": 20 * 30,
        "max_hash_slot_num": 20,
        "max_index_num": 60,
        "timer_precision_ms": 100,
        "message_delay_level": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    },
}


@pytest.fixture(autouse=True)
def no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make both brokers try queues and retries in the same order."""
    monkeypatch.setattr("reput.broker.pop.pops.random.random", lambda: 0.5)


@pytest.fixture(params=STORES)
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Paths]:
    with broker_paths.open_paths(tmp_path, **TIMERS | STORES[request.param]) as opened:
        yield opened


# --- sends ----------------------------------------------------------------------------------


@pytest.mark.sampled(2)
def test_sends(paths: Paths) -> None:
    def check(seed: int) -> None:
        random = Random(seed)
        odd = random.choice([0, 0, 1])
        frames = [
            streams.some_send(random, odd, paths.now_ms)
            for _ in range(random.choice([1, 2, 5, 12]))
        ]
        paths.check(seed, streams.with_damage(random, frames))
        if random.random() < 0.2:
            paths.advance(random.choice([1, 500, 5_000, -300]))

    in_turn(2 * EXAMPLES, check)
    assert paths.counts.sends > 3 * EXAMPLES, "else this would test little"


# --- pulls ----------------------------------------------------------------------------------


@pytest.mark.sampled(2)
def test_pulls(paths: Paths) -> None:
    def check(seed: int) -> None:
        random = Random(seed)
        end = paths.max_offset()
        offsets = [end - 1, end, end + 1, end + 2, end + 9, 1 << 40, 0]
        offsets += [max(0, end - random.choice([2, 5, 20, 40])), end, end + 1, 8, 9, 98, 99]
        frames = [streams.heartbeat(random)] if random.random() < 0.5 else []
        frames += streams.sends(random)
        readers = streams.some_readers(random)
        for _ in range(random.choice([3, 20, 40])):
            odd = random.choice([0, 0, 0, 1])
            frames.append(streams.some_pull(random, odd, offsets, readers))
            if random.random() < 0.1:
                frames.append(streams.some_send(random, odd, paths.now_ms))
        chance = random.random()
        if chance < 0.2:
            paths.write_out_queues()
        elif chance < 0.3:
            paths.damage(paths.end - random.randrange(400), 1)
        paths.check(seed, streams.with_damage(random, frames))

    in_turn(2 * EXAMPLES, check)
    assert paths.counts.pulls > EXAMPLES, "else this would test little"


# --- pops and acknowledgements --------------------------------------------------------------


def pops_of(paths: Paths) -> list[Pop]:
    """Return pops with messages to acknowledge, and three that never happened."""
    checkpoints = paths.both.with_kernel.broker.parts.pops.revive.checkpoints
    pops = [
        Pop(key.topic, key.group, key.queue_id, key.start_offset, key.pop_ms, 6)
        for key in list(checkpoints._by_key)[-4:]
    ]
    last = pops[-1] if pops else Pop("T", "group", 0, 7, paths.now_ms)
    topic, group, queue_id, start, pop_ms = (
        last.topic, last.group, last.queue_id, last.start, last.pop_ms,
    )  # fmt: skip
    return [
        *pops,
        Pop(topic, group[::-1], queue_id, start, pop_ms),
        Pop(topic, group, queue_id, start, pop_ms + 1, 6),
        last,
        Pop(topic, group, queue_id, start + 2, pop_ms, 6),
    ]


@pytest.mark.sampled(2)
def test_pops(paths: Paths) -> None:
    def check(seed: int) -> None:
        random = Random(seed)
        odd = random.choice([0, 0, 1])
        paths.advance(random.choice([0, 1, 1, 1000, -500]))
        frames = streams.sends(random) if random.random() < 0.5 else []
        pops = pops_of(paths)
        for _ in range(random.choice([1, 3, 6])):
            chance = random.random()
            if chance < 0.4:
                frames.append(streams.some_pop(random, odd, paths.now_ms))
            elif chance < 0.9:
                frames += streams.some_acks(random, odd, pops)
            else:
                frames.append(streams.some_ack_batch(random, odd, pops))
        chance = random.random()
        if chance < 0.1:
            paths.write_out_queues()
        elif chance < 0.15:
            paths.damage(paths.end - random.randrange(400), 1)
        elif chance < 0.2:
            paths.forget_pops()
        paths.check(seed, streams.with_damage(random, frames))

    in_turn(2 * EXAMPLES, check)
    assert paths.counts.acks > EXAMPLES, "else this would test little"


# --- ends of transactions -------------------------------------------------------------------

PRODUCERS = ("g", "g", "g", "g", "h", "producers")
HALF = "UNIQ_KEY\1AC\2TRAN_MSG\1true\2PGROUP\1%s\2REAL_TOPIC\1%s\2REAL_QID\1%s\2"
HALVES = ("", "DELAY\0011\2", "PGROUP\1h\2", "PGROUP\1g\2", "TRAN_PREPARED_QUEUE_OFFSET\0010\2")


def put_halves(paths: Paths, random: Random) -> None:
    """Store a half message; some have a form that no client sends."""
    topic = random.choice([*streams.TOPICS, "RMQ_SYS_TRACE_TOPIC", "T", "T", "a.b", "Nobody"])
    queue_id = random.choice(["0", "3", "-1", "x", "2147483648", "4294967296", "007"])
    text = HALF % (random.choice(PRODUCERS), topic, queue_id if random.random() < 0.3 else "0")
    properties = text + (random.choice(HALVES) if random.random() < 0.4 else "")
    sys_flag = random.choice([0, 0, flags.TRANSACTION_PREPARED, flags.TRANSACTION_ROLLBACK])
    message = IncomingMessage(
        names.HALF_TOPIC, b"half", 0, properties.encode(), sys_flag=sys_flag, is_due=True
    )
    paths.put(message)


def halves_of(paths: Paths) -> list[tuple[int, int]]:
    """Return queue offset and physical offset of the last half messages."""
    queue = paths.store.queues.find(names.HALF_TOPIC, 0)
    if queue is None:
        return [(0, 0)]
    begin = max(queue.min_offset, queue.max_offset - 12)
    units = queue.units(begin, 12)
    return list(enumerate(units["physical_offset"].tolist(), begin)) or [(0, 0)]


@pytest.mark.sampled(2)
def test_ends_of_transactions(paths: Paths) -> None:
    paths.check(0, streams.some_request(
        Random(0), 0, 310, streams.send_fields(Random(1)) | {"b": "T", "i": HALF % ("g", "T", 0)},
        b"half",
    ))  # fmt: skip

    def check(seed: int) -> None:
        random = Random(seed)
        odd = random.choice([0, 0, 1])
        for _ in range(random.choice([0, 2, 6])):
            put_halves(paths, random)
        halves = halves_of(paths)
        group = random.choice(PRODUCERS)
        frames = []
        for _ in range(random.choice([1, 3, 10])):
            frames.append(streams.some_end(random, odd, halves, group))
            if random.random() < 0.1:
                frames.append(streams.some_send(random, odd, paths.now_ms))
            if random.random() < 0.1:
                group = random.choice(PRODUCERS)
        paths.check(seed, streams.with_damage(random, frames))

    in_turn(2 * EXAMPLES, check)
    assert paths.counts.transaction_ends > EXAMPLES // 2, "else this would test little"


# --- messages that are sent back ------------------------------------------------------------

RETRIED = ("", "RETRY_TOPIC\1Orders\2", "ORIGIN_MESSAGE_ID\1AC\2", "WAIT\1true\2", "DELAY\0013\2",
           "REAL_TOPIC\1T\2REAL_QID\0011\2", "RETRY_TOPIC\1a\2RETRY_TOPIC\1b\2", "empty\1\2",
           "ORIGIN_MESSAGE_ID\1a\2ORIGIN_MESSAGE_ID\1b\2", "name\2", "KEYS\1k\2TAGS\1a\2",
           "\1v\2", "__CRC32#\00112345\2", "long\1" + "v" * 32_500 + "\2")  # fmt: skip


def put_consumed(paths: Paths, random: Random) -> None:
    """Store a message to send back; some have a form that no client sends."""
    properties = "".join(random.choice(RETRIED) for _ in range(random.choice([0, 1, 2])))
    message = IncomingMessage(
        random.choice(["T", "U", "Orders"]), b"consumed", 0, properties.encode()[:32_767],
        paths.now_ms, broker_paths.some_host(random), broker_paths.some_host(random),
        reconsume_times=random.choice([0, 0, 1, 2, 3, 14, 15, 16, 17, -1, (1 << 31) - 1]),
        sys_flag=random.choice([0, 0, 1]),
    )  # fmt: skip
    paths.put(message)


@pytest.mark.sampled(2)
def test_messages_that_are_sent_back(paths: Paths) -> None:
    def check(seed: int) -> None:
        random = Random(seed)
        odd = random.choice([0, 0, 1])
        for _ in range(random.choice([1, 2, 6])):
            put_consumed(paths, random)
        offsets = paths.last_records(10)
        frames = [
            streams.some_send_back(random, odd, offsets) for _ in range(random.choice([1, 3, 10]))
        ]
        if random.random() < 0.1:
            paths.damage(random.choice(offsets) + random.randrange(120), 1)
        paths.check(seed, streams.with_damage(random, frames))

    in_turn(2 * EXAMPLES, check)
    assert paths.counts.send_backs > EXAMPLES // 2, "else this would test little"


# --- all kinds of requests ----------------------------------------------------


def test_all_in_one_read(paths: Paths) -> None:
    in_turn(EXAMPLES // 2, lambda seed: check_all(paths, seed))


def test_records_with_checksums(tmp_path: Path) -> None:
    """Kernels do not write these records: all requests fall back."""
    with broker_paths.open_paths(tmp_path, **TIMERS, enabled_append_prop_crc=True) as paths:
        in_turn(EXAMPLES // 4, lambda seed: check_all(paths, seed))


def check_all(paths: Paths, seed: int) -> None:
    random = Random(seed)
    odd = random.choice([0, 0, 1])
    pops, halves = pops_of(paths), halves_of(paths)
    offsets = [paths.max_offset(), max(0, paths.max_offset() - 2), 0]
    records = paths.last_records(10) or [0]
    makers: list[Callable[[], list[bytes]]] = [
        lambda: [streams.some_send(random, odd, paths.now_ms)],
        lambda: streams.sends(random),
        lambda: [streams.some_pull(random, odd, offsets)],
        lambda: [streams.some_pop(random, odd, paths.now_ms)],
        lambda: streams.some_acks(random, odd, pops),
        lambda: [streams.some_end(random, odd, halves, "g")],
        lambda: [streams.some_send_back(random, odd, records)],
    ]
    paths.advance(random.choice([0, 0, 1]))
    frames = []
    for _ in range(random.choice([5, 20])):
        frames += random.choice(makers)()
    paths.check(seed, streams.with_damage(random, frames))


def test_headers_that_are_cut(tmp_path: Path) -> None:
    """The cut is at any byte, with lengths that fit; by default at every third byte."""
    step = 1 if EXAMPLES > 100 else 3
    with broker_paths.open_paths(tmp_path, **TIMERS) as paths:
        frames = []
        for seed in range(16):
            random = Random(seed)
            fields = {"b": "T", "e": "0", "i": 'KEYS\1k\2WAIT\1true\2x\1"\\/'}
            paths.put(IncomingMessage("T", b"consumed", 0, b""))
            put_halves(paths, random)
            frames += [
                streams.some_request(random, 0, 310, streams.send_fields(random) | fields, b"body"),
                streams.some_pull(random, 0, [0]),
                streams.some_ack(random, 0, pops_of(paths)),
                streams.some_end(random, 0, halves_of(paths), "g"),
                streams.some_send_back(random, 0, paths.last_records(1)),
            ]
        for number, frame in enumerate(frames):
            header_end = 8 + int.from_bytes(frame[5:8])
            header, body = frame[8:header_end], frame[header_end:]
            for cut in range(number % (16 * step), len(header), 16 * step):
                short = streams.framed(header[:cut], body, frame[4])
                paths.check(number, short + frame)
                paths.check(number, frame[:cut])


def test_noise(tmp_path: Path) -> None:
    with broker_paths.open_paths(tmp_path) as paths:
        paths.check(0, b"".join(streams.some_send(Random(i), 0) for i in range(9)))

        def check(seed: int) -> None:
            random = Random(seed)
            paths.check(seed, random.randbytes(random.randrange(200)))

        in_turn(EXAMPLES, check)
