"""Records that kernels copy equal records that a broker encodes from decoded messages.

Delayed messages and timer messages leave the topic where they wait. In one broker kernels read and
copy them; the copier of the other broker does nothing, as on a machine without compiled kernels.
Most messages are as brokers store them. Some have odd properties, IPv6 addresses, or light queues,
and some bytes of the log are damaged.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from broker_pair import Pair
from fuzz import broker_paths
from fuzz.broker_paths import in_turn
from interop import samples
from reput.format import message as record, names, sys_flag as flags
from reput.format.kernels.rows import word_count
from reput.store.kernels import copy_args as words
from reput.store.writing.incoming import IncomingMessage

EXAMPLES = settings.default.max_examples
STORES: dict[str, dict[str, Any]] = {
    "large files": {},
    # Some files are not mapped, and some records end where their file does.
    "small files": {
        "mapped_file_size_commit_log": 8_000,
        "enable_multi_dispatch": True,
        "timer_precision_ms": 100,
        "timer_max_delay_sec": 600,
        "timer_roll_window_slot": 10,
    },
}
SYS_FLAG_END = record.POSITION_SYS_FLAG + 3
TOPICS = ["T", "Orders", "%RETRY%g|x-_", "t" * 127]
NAMES = ["REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "WAIT"]
NAMES += ["RETRY_TOPIC", "UNIQ_KEY", "PGROUP", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"]
ODD_NAMES = ["DELAY", "TRAN_PREPARED_QUEUE_OFFSET", "__CRC32#", "INNER_MULTI_DISPATCH", "KEYS"]
ODD_NAMES += ["", "REAL_TOPIK", "TIMER_DEX_UNIQKEY", "TIMER_OUT_MSX"]
VALUES = {
    "REAL_TOPIC": ["T", "T", *TOPICS[1:], "t" * 128, names.HALF_TOPIC, "RMQ_SYS_X", "a.b", "é", ""],
    "REAL_QID": ["0", "3", "3", "007", "2147483647", "2147483648", "4294967299", "-1", "+1", "",
                 "1" * 19, "٣"],
    "TIMER_ROLL_TIMES": ["1", "12", "", "x", "0" * 19, "0" * 17 + "12", "0" * 17 + "12"],
    "TIMER_DEL_UNIQKEY": ["key", "T+key", ""],
    "UNIQ_KEY": ["key", "other"],
    "DELAY": ["1", "2", "0", "x"],
    "INNER_MULTI_DISPATCH": ["%LMQ%a", "%LMQ%a,%LMQ%b"],
}  # fmt: skip


class NoCopier:
    """The copier of a store without compiled kernels: every record falls back."""

    def put(self, *arguments: object, **more: object) -> tuple[int, int]:
        """Put nothing."""
        return 0, 0

    def timer_properties(self, places: np.ndarray) -> np.ndarray:
        """Return a row for each place, so that the caller reads the record."""
        rows = np.zeros((len(places), word_count(words.TimerProperties)), np.int64)
        rows[:, words.TIMER.out_ms] = -1
        return rows


@pytest.fixture(params=STORES)
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with broker_paths.open_paths(tmp_path, **STORES[request.param]) as opened:
        opened.brokers[1].store.copier = NoCopier()  # type: ignore[assignment]
        yield opened


def some_properties(random: Random, odd: float, timer_ms: int | None) -> bytes:
    """Return the properties of a waiting message; some of them are odd."""
    pairs = []
    is_odd = random.random() < 0.25 * odd
    for _ in range(random.choice([0, 1, 3])):
        name = random.choice(NAMES + ODD_NAMES * is_odd)
        if name == "TIMER_OUT_MS" and not is_odd:
            continue
        values = VALUES.get(name, ["v", samples.text(random, 6), "a\1b"])
        is_plain = not is_odd and random.random() >= 0.3 * odd
        value = values[0] if is_plain else random.choice(values)
        separator = "" if is_odd and random.random() < 0.1 else "\1"
        pairs.append((name + separator + value).encode(errors="replace"))
    if random.random() < 0.9 or not odd:
        topic = random.choice(["T", "T", "T", "U", "Orders"])
        pairs += [f"REAL_TOPIC\1{topic}".encode(), b"REAL_QID\0013"]
        random.shuffle(pairs)
    if timer_ms is not None:
        odd_times = ["", "x", "9" * 18, "9" * 19, "0"]
        text = random.choice(odd_times) if is_odd and random.random() < 0.2 else str(timer_ms)
        pairs.insert(random.randint(0, len(pairs)), f"TIMER_OUT_MS\1{text}".encode())
    if random.random() < 0.02 * odd:
        pairs.append(b"long\1" + b"v" * random.choice([4_000, 32_500]))
    return b"\2".join(pairs) + random.choice([b"", b"\2", b"\2"])


def some_message(
    random: Random, odd: float, topic: str, timer_ms: int | None, now_ms: int
) -> IncomingMessage:
    return IncomingMessage(
        topic,
        random.randbytes(random.choice([0, 1, 80])),
        0,
        some_properties(random, odd, timer_ms)[:32_767],
        now_ms - 5,
        broker_paths.some_host(random, odd),
        broker_paths.some_host(random, odd),
        random.randrange(-(2**31), 2**31),
        random.choice([0, 0, 0, flags.COMPRESSED, flags.TRANSACTION_COMMIT]),
        random.choice([0, 0, 3, 2**31 - 1]),
        random.choice([0, 0, 1 << 40]),
        is_due=True,
    )


Step = Callable[[Any, int], bool]


def check(paths: Pair, seed: int, topic: str, step: Step, odd: float = 1) -> None:
    """Store some messages in the topic where they wait, and deliver the due ones."""
    random = Random(seed)
    for _ in range(random.choice([1, 4, 9])):
        timer_ms = None
        if topic == names.TIMER_TOPIC:
            timer_ms = paths.now_ms + random.choice([-1000, 0, 500, 2000, 2000, 5000, 90_000])
        paths.put(some_message(random, odd, topic, timer_ms, paths.now_ms))
    chance = random.random()
    if chance < 0.2 * odd:
        position = random.choice([SYS_FLAG_END, random.randrange(120)])
        paths.damage(paths.last_records(3)[0] + position, random.choice([1, 16, 32, 255]))
    elif chance < 0.3 * odd:
        paths.damage_unit(topic, random.choice([7, 11, 11, 11]))
    paths.advance(random.choice([0, 100, 1000, 3000]))
    for parts in paths.parts:
        for _ in range(50):
            if not step(parts, paths.now_ms):
                break
    paths.compare()


def step_delayed(parts: Any, now_ms: int) -> bool:
    is_busy: bool = parts.delayed.step(now_ms)
    return is_busy


def step_timers(parts: Any, now_ms: int) -> bool:
    is_busy: bool = parts.timers.step(now_ms)
    return is_busy


@pytest.mark.sampled(2)
def test_delayed_messages(paths: Pair) -> None:
    in_turn(2 * EXAMPLES, lambda seed: check(paths, seed, names.SCHEDULE_TOPIC, step_delayed))
    assert paths.store.max_offset("T", 3) > EXAMPLES, "else this would test little"


@pytest.mark.sampled(2)
def test_messages_of_the_timer(paths: Pair) -> None:
    in_turn(EXAMPLES, lambda seed: check(paths, seed, names.TIMER_TOPIC, step_timers))
    assert paths.store.max_offset("T", 3) > EXAMPLES // 2, "else this would test little"
