"""A pair of brokers for random bytes: one serves requests with its fast path, the other without.

Brokers are slow to open, so a pair serves the examples of a whole test. An example is a connection
whose bytes arrive in several reads, cut anywhere. After each read both brokers have answered the
same bytes and stored the same records; after each example their counters are equal. When the pair
is closed, the files of both stores are equal.
"""

import asyncio
import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import broker_pair
import seeds
from broker_pair import NOW_MS, Both, Wire
from fuzz import request_streams
from reput.format import cq_unit
from reput.format.message import Host
from reput.store.tables.config_tables import TopicConfig
from reput.store.writing.incoming import IncomingMessage

QUEUE_COUNT = 10
COMPARED = ("commitlog", "consumequeue", "index")


class Paths:
    """The two brokers."""

    def __init__(self, both: Both, runner: asyncio.Runner) -> None:
        self.both = both
        self.wires = both.with_kernel, both.without
        self.counts = both.with_kernel.broker.parts.fast_counts
        self._runner = runner
        self._records: list[int] = []
        for wire in self.wires:
            wire.broker.parts.pops.revive.store_host = broker_pair.STORE_HOST
            for topic in request_streams.TOPICS:
                config = TopicConfig(
                    name=topic, read_queue_count=QUEUE_COUNT, write_queue_count=QUEUE_COUNT, perm=6
                )
                wire.broker.parts.topics.put(config, NOW_MS)

    @property
    def store(self) -> Any:
        return self.both.with_kernel.broker.store

    def max_offset(self, topic: str = "T", queue_id: int = 0) -> int:
        end: int = self.store.max_offset(topic, queue_id)
        return end

    @property
    def end(self) -> int:
        """Physical offset after the last record."""
        end: int = self.store.max_physical_offset
        return end

    @property
    def now_ms(self) -> int:
        return self.both.with_kernel.broker.clock.now_ms()

    def put(self, message: IncomingMessage) -> None:
        """Store a message in both stores directly, without the brokers."""
        results = [wire.broker.store.put(message, self.now_ms) for wire in self.wires]
        assert results[0] == results[1]
        if results[0].status.is_stored:
            self._records.append(results[0].physical_offset)

    def last_records(self, count: int) -> list[int]:
        """Return physical offsets of the last messages that were stored directly."""
        return self._records[-count:]

    def forget_pops(self) -> None:
        """Clear the fast path's records of pops."""
        frontend = self.both.with_kernel.broker.frontend
        assert frontend is not None
        frontend._pops.forget()

    def check(self, seed: int, data: bytes) -> None:
        """Send bytes of a new connection in several reads, and compare."""
        self._runner.run(self._check(Random(seed), data))
        self.compare()

    async def _check(self, cuts: Random, data: bytes) -> None:
        for wire in self.wires:
            await wire.connect()
        position = 0
        while position < len(data):
            whole = len(data) - position
            size = cuts.choice([whole, whole, cuts.randint(1, whole), cuts.randint(1, whole)])
            await self._read(cuts.getrandbits(32), data[position : position + size])
            position += size

    async def _read(self, seed: int, data: bytes) -> None:
        answers = []
        for wire in self.wires:
            random.seed(seed)  # Some requests leave the choice of a queue to the broker.
            answer = wire.feed(data)
            await asyncio.sleep(0)  # Held pulls are answered.
            answers.append((answer, wire.feed(b"")))
        assert answers[0] == answers[1]
        self._compare_records()

    def _compare_records(self) -> None:
        stored, expected = (wire.new_records() for wire in self.wires)
        assert stored == expected
        ends = [wire.broker.store.max_physical_offset for wire in self.wires]
        assert ends[0] == ends[1]

    def compare(self) -> None:
        """Compare the records and the states of the brokers."""
        self._compare_records()
        actual, expected = (known(wire) for wire in self.wires)
        for part in expected:
            assert actual[part] == expected[part], (part, actual[part], expected[part])

    def advance(self, ms: int) -> None:
        for wire in self.wires:
            wire.broker.clock.set(wire.broker.clock.now_ms() + ms)  # type: ignore[attr-defined]

    def write_out_queues(self) -> None:
        """Drop the units of queues from memory: pulls read them ahead, from files."""
        for wire in self.wires:
            for queue in wire.broker.store.queues:
                queue.write_out()
                queue.drop_tail()

    def damage(self, physical_offset: int, change: int) -> None:
        """Change a byte of the last log file; do nothing if it is in another file."""
        self._compare_records()
        for wire in self.wires:
            block = wire.broker.store.hot_state.block
            position = physical_offset - block.log_start
            if 0 <= position < block.log_position:
                place = ctypes.c_ubyte.from_address(block.log_address + position)
                place.value ^= change


def damage_unit(paths: Paths, topic: str, position: int) -> None:
    """Change a byte of the last unit of queue 0 of a topic, if the unit is in memory."""
    for wire in paths.wires:
        queue = wire.broker.store.queues.find(topic, 0)
        assert queue is not None
        row = queue.row
        count = row.max_offset - row.tail_offset
        if count > 0 and row.tail:
            unit = row.tail + cq_unit.SIZE * (count - 1)
            ctypes.c_ubyte.from_address(unit + position).value ^= 1


def known(wire: Wire) -> dict[str, object]:
    """Return the state of a broker besides its records."""
    parts = wire.broker.parts
    counted = parts.deliveries.stats
    ended = parts.transactions
    checkpoints = parts.pops.revive.checkpoints._by_key
    return {
        "queues": wire.queues(),
        "reads": wire.counts(),
        "statistics": {
            name: {key: (series.value, series.times) for key, series in by_key.items()}
            for name, by_key in counted._series.items()
        },
        "puts": parts.pending_replies.put_count + parts.fast_counts.sends,
        "put topics": sorted(counted._put_news()),
        "topics": dict(parts.topics.table.all()),
        "checkpoints": {key: (entry.left, entry.unsaved) for key, entry in checkpoints.items()},
        "held": len(parts.pops.held),
        "transactions": [
            ended.committed_count,
            ended.rolled_back_count,
            ended.refused_count,
            ended.repeated_count,
            bytes(ended._marks._states),
            ended.put_end,
        ],
        "delayed": parts.delayed.progress(),
        "timers": [
            len(parts.timers),
            parts.timers.delivered_count,
            parts.timers.recalled_count,
        ],
        "timer metrics": parts.timers.metrics.body(),
    }


def some_host(random: Random, odd: float = 1) -> Host:
    """Return an address of a client or a broker, mostly an IPv4 one."""
    if random.random() < 0.05 * odd:
        return Host(bytes(15) + b"\1", 4711)
    return Host(bytes([192, 0, 2, random.randrange(256)]), random.randrange(65_536))


def files(root: Path) -> dict[str, list[bytes]]:
    """Return the contents of a store's files by folder; names of index files hold the real time."""
    contents: dict[str, list[bytes]] = {}
    for folder in COMPARED:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file():
                name = str(path.parent.relative_to(root))
                contents.setdefault(name, []).append(path.read_bytes())
    return contents


@contextmanager
def open_paths(root: Path, **store_settings: Any) -> Iterator[Paths]:
    """Open a pair; when it is closed, compare the files of both stores."""
    pairs = broker_pair.open_both(root, **store_settings)
    both = next(pairs)
    try:
        yield Paths(both, both.runner)
    finally:
        pairs.close()  # type: ignore[attr-defined]
    kernel_files, expected = files(root / "kernel"), files(root / "python")
    assert kernel_files.keys() == expected.keys()
    for folder in expected:
        assert kernel_files[folder] == expected[folder], folder
    assert len(expected) > 2, "else nothing was stored"


def in_turn(count: int, check: Callable[[int], None], first: int | None = None) -> None:
    """Check a number of examples, each made from a seed.

    An example depends on the earlier ones: a failed run is repeated from the first example on.
    """
    if first is None:
        first = seeds.of("examples in turn") % 2**32
    for seed in range(first, first + count):
        try:
            check(seed)
        except Exception as error:
            raise AssertionError(f"example {seed}, after those from {first} on") from error
