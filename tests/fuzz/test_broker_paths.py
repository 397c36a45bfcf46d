"""The fast path of a broker and its processors on random bytes: see ``broker_paths``."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import settings

from broker_pair import Pair
from fuzz import broker_paths, request_streams as streams
from fuzz.broker_paths import (
    HALF,
    PRODUCERS,
    Requests,
    halves_of,
    in_turn,
    pops_of,
    put_consumed,
    put_halves,
)
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
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with broker_paths.open_paths(tmp_path, **TIMERS | STORES[request.param]) as opened:
        yield opened


# --- sends ----------------------------------------------------------------------------------


@pytest.mark.sampled(2)
def test_sends(paths: Pair) -> None:
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
def test_pulls(paths: Pair) -> None:
    def check(seed: int) -> None:
        random = Random(seed)
        end = paths.store.max_offset("T", 0)
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
            paths.damage(paths.store.max_physical_offset - random.randrange(400), 1)
        paths.check(seed, streams.with_damage(random, frames))

    in_turn(2 * EXAMPLES, check)
    assert paths.counts.pulls > EXAMPLES, "else this would test little"


# --- pops and acknowledgements --------------------------------------------------------------


@pytest.mark.sampled(2)
def test_pops(paths: Pair) -> None:
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
            paths.damage(paths.store.max_physical_offset - random.randrange(400), 1)
        elif chance < 0.2:
            paths.forget_pops()
        paths.check(seed, streams.with_damage(random, frames))

    in_turn(2 * EXAMPLES, check)
    assert paths.counts.acks > EXAMPLES, "else this would test little"


# --- ends of transactions -------------------------------------------------------------------


@pytest.mark.sampled(2)
def test_ends_of_transactions(paths: Pair) -> None:
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


@pytest.mark.sampled(2)
def test_messages_that_are_sent_back(paths: Pair) -> None:
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


def test_all_in_one_read(paths: Pair) -> None:
    in_turn(2 * EXAMPLES, lambda seed: check_all(paths, seed))
    assert all(dataclasses.astuple(paths.counts)), paths.counts


def test_records_with_checksums(tmp_path: Path) -> None:
    """Kernels do not write these records: all requests fall back."""
    with broker_paths.open_paths(tmp_path, **TIMERS, enabled_append_prop_crc=True) as paths:
        in_turn(EXAMPLES // 4, lambda seed: check_all(paths, seed))


def check_all(paths: Pair, seed: int) -> None:
    random = Random(seed)
    for _ in range(random.choice([0, 1, 4])):
        put_halves(paths, random)
        put_consumed(paths, random)
    paths.advance(random.choice([0, 0, 1]))
    requests = Requests(paths, random, random.choice([0, 0, 1]))
    frames = []
    for _ in range(random.choice([5, 20])):
        frames += requests.some() if random.random() < 0.7 else [requests.of_corpus()]
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
