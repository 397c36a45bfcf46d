"""Two brokers that get the same bytes, one with the fast path, one without.

After each read both have sent the same replies and stored the same records, and their states are
equal; when the pair is closed, so are their files. Brokers are slow to open: a pair serves many
cases. Their loops do not run, so that their states change only when they read.
"""

import asyncio
import contextlib
import ctypes
import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import world
from reput.broker.kernels import hot
from reput.broker.parts import Parts
from reput.broker.server import Broker
from reput.broker.settings.access import AccessSettings
from reput.clock import ManualClock
from reput.format import command as commands, cq_unit
from reput.format.command import LENGTH, Command
from reput.format.message import Host
from reput.remoting.channel import Channel
from reput.remoting.server_state import ServerState
from reput.remoting.time_slices import TimeSlices
from reput.remoting.turns import Turns
from reput.store.config import BrokerRole
from reput.store.message_store import MessageStore
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.tables.config_tables import TopicConfig
from reput.store.writing.incoming import IncomingMessage

NOW_MS = 1_700_000_000_000
STORE_HOST = Host(b"\xc0\0\x02\x01", 10911)
BORN = ("192.0.2.7", 4711)
COMPARED = ("commitlog", "consumequeue", "index")
"""Folders of a store whose files are compared."""
NO_LIMIT_S = 3600
"""Seconds that no request takes, however slow the machine: no loop would resume it."""


class WholeSlices(TimeSlices):
    """Slices that no request exceeds."""

    def __init__(self) -> None:
        super().__init__(slice_s=NO_LIMIT_S)

    def turn_deadline(self) -> float:
        return self.deadline()


class WholeTurns(Turns):
    """Turns that never end."""

    @property
    def is_over(self) -> bool:
        return False


class Transport(asyncio.Transport):
    """A transport that collects the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": BORN, "sockname": ("192.0.2.1", 10911)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.is_closed = True


class Wire:
    """A connection to a broker, without a socket."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        for owner in (broker.identity, broker.parts.transactions, broker.parts.pops.revive):
            owner.store_host = STORE_HOST
        if broker.frontend is not None:
            broker.frontend.open()
        broker.parts.topics.on_make = None  # No loop writes them.
        state = broker._servers[0].state = ServerState()
        state.slices, state.reads = WholeSlices(), WholeTurns()
        broker.serving.slices.slice_s = NO_LIMIT_S
        self._seen_offset = 0
        self._open_channel()

    def _open_channel(self) -> None:
        server = self.broker._servers[0]
        self.transport = Transport()
        self.channel = Channel(server, self.broker._buffer, shared=server.state)
        self.channel.connection_made(self.transport)

    async def connect(self) -> None:
        """Close the connection, and open another one."""
        self.channel.connection_lost(None)
        self._open_channel()

    def feed(self, data: bytes) -> bytes:
        """Send bytes; return the bytes that come back at once."""
        while data and not self.transport.is_closed:
            room = self.channel.get_buffer(-1)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            self.channel.buffer_updated(size)
            data = data[size:]
        written, self.transport.written = self.transport.written, b""
        return written

    def new_records(self) -> list[bytes]:
        """Return the records that were written since the last call."""
        store = self.broker.store
        records = []
        while self._seen_offset < store.max_physical_offset:
            record = store.record_at(self._seen_offset)
            if record is None:  # The blank that ends a file.
                size = store.config.mapped_file_size_commit_log
                self._seen_offset += size - self._seen_offset % size
                continue
            records.append(record)
            self._seen_offset += len(record)
        return records

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue that exists."""
        queue = self.broker.store.queues.find(topic, queue_id)
        assert queue is not None
        return queue

    def state(self) -> dict[str, object]:
        """Return the state of the broker besides its records."""
        parts = self.broker.parts
        counted, ends = parts.deliveries.stats, parts.transactions
        return {
            "end": self.broker.store.max_physical_offset,
            "queues": sorted(
                (queue.topic, queue.queue_id, queue.max_offset)
                for queue in self.broker.store.queues
            ),
            "reads": [counted.found_count, counted.missed_count, counted.got_count],
            "consumer offsets": list(parts.deliveries.consumer_offsets.all()),
            "statistics": {
                name: {key: (series.value, series.times) for key, series in by_key.items()}
                for name, by_key in counted._series.items()
            },
            "puts": parts.pending_replies.put_count + parts.fast_counts.sends,
            "put topics": sorted(counted._put_news()),
            "topics": dict(parts.topics.table.all()),
            "pops": {
                key: (entry.left, entry.unsaved)
                for key, entry in parts.pops.revive.checkpoints._by_key.items()
            },
            "held": (len(parts.held_pulls), len(parts.pops.held)),
            "ends": [ends.committed_count, ends.rolled_back_count, ends.refused_count,
                     ends.repeated_count, ends.put_end, ends.progress()],
            "marks": (ends._marks.start, bytes(ends._marks._states)),
            "ops": (ends._ops.next_offset, [(run.begin, run.highest) for run in ends._ops._runs]),
            "copies": (ends._copies, ends._given_up),
            "delayed": parts.delayed.progress(),
            "timers": (
                len(parts.timers), parts.timers.delivered_count, parts.timers.recalled_count
            ),
            "timer metrics": parts.timers.metrics.body(),
        }  # fmt: skip


class Pair:
    """The two brokers."""

    def __init__(self, with_kernel: Wire, without: Wire, runner: asyncio.Runner) -> None:
        self.runner = runner
        """Runner of code that needs an event loop, such as opening a connection."""
        self.with_kernel = with_kernel
        self.without = without
        self.wires = with_kernel, without
        self.brokers = with_kernel.broker, without.broker
        self.parts: tuple[Parts, Parts] = with_kernel.broker.parts, without.broker.parts
        self.store: MessageStore = with_kernel.broker.store
        self.counts = self.parts[0].fast_counts
        self._records: list[int] = []
        for name, perm in (("T", 6), ("ReadOnly", 4), ("%RETRY%g", 6)):
            self.put_topic(name, perm=perm)
        self.put_topic("Narrow", write_queue_count=1)

    @property
    def fast_count(self) -> int:
        """Number of requests that kernels have answered."""
        return sum(dataclasses.astuple(self.counts))

    @property
    def now_ms(self) -> int:
        return self.brokers[0].clock.now_ms()

    # Bytes.

    def feed(self, data: bytes) -> int:
        """Feed both brokers, and compare; return the number of requests that kernels answered."""
        before = self.fast_count
        answers = []
        for wire in self.wires:
            random.seed(0)  # Some requests leave the choice of a queue to the broker.
            answers.append(wire.feed(data))
        self._compare_answers(*answers)
        self.compare()
        return self.fast_count - before

    def cut_anywhere(self, data: bytes, step: int = 1) -> None:
        """Feed bytes in two reads, cut at each place."""
        for cut in range(1, len(data), step):
            self.feed(data[:cut])
            self.feed(data[cut:])

    def check(self, seed: int, data: bytes) -> None:
        """Feed bytes of a new connection in several reads, cut anywhere, and compare."""
        self.runner.run(self._check(Random(seed), data))
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
            random.seed(seed)
            answer = wire.feed(data)
            await asyncio.sleep(0)  # Held pulls are answered.
            answers.append((answer, wire.feed(b"")))
        for now, later in zip(*answers, strict=True):
            self._compare_answers(now, later)
        self.compare_records()

    # Comparisons.

    def _compare_answers(self, answer: bytes, expected: bytes) -> None:
        if answer != expected:
            pairs = zip(replies_in(answer), replies_in(expected), strict=False)
            for number, (reply, other) in enumerate(pairs):
                assert reply == other, f"reply {number}: {reply}\ninstead of {other}"
        assert answer == expected, f"{answer!r}\ninstead of {expected!r}"

    def compare_records(self) -> None:
        """Compare the records that were stored since the last comparison."""
        stored, expected = (wire.new_records() for wire in self.wires)
        assert stored == expected

    def compare(self) -> None:
        """Compare the records and the states of the brokers."""
        self.compare_records()
        actual, expected = (wire.state() for wire in self.wires)
        for part in expected:
            assert actual[part] == expected[part], (part, actual[part], expected[part])
        assert not any(dataclasses.astuple(self.parts[1].fast_counts))

    # Changes of both brokers.

    def put(
        self, message: IncomingMessage, now_ms: int | None = None, *, is_noted: bool = True
    ) -> int:
        """Store a message in both stores directly; return its physical offset.

        If it is noted, ``last_records`` returns it.
        """
        now_ms = self.now_ms if now_ms is None else now_ms
        result, expected = (broker.store.put(message, now_ms) for broker in self.brokers)
        assert result == expected
        if result.status.is_stored and is_noted:
            self._records.append(result.physical_offset)
        return result.physical_offset

    def last_records(self, count: int) -> list[int]:
        """Return physical offsets of the last messages that were noted."""
        return self._records[-count:]

    def put_topic(self, name: str, **changes: Any) -> None:
        """Create or change a topic: of four queues, unless others are given."""
        known = {"read_queue_count": 4, "write_queue_count": 4, "perm": 6}
        for parts in self.parts:
            parts.topics.put(TopicConfig(name=name, **known | changes), NOW_MS)

    def delete_topic(self, name: str) -> None:
        for parts in self.parts:
            parts.topics.delete(name, NOW_MS)

    def reconfigure(self, **settings: str) -> None:
        for broker in self.brokers:
            world.reconfigure(broker, settings)

    def refuse_puts(self, reason: str) -> None:
        for broker in self.brokers:
            broker.store.putter.refusal = reason

    def advance(self, ms: int) -> None:
        for broker in self.brokers:
            assert isinstance(broker.clock, ManualClock)
            broker.clock.set(broker.clock.now_ms() + ms)

    def write_out_queues(self) -> None:
        """Drop the units of queues from memory: pulls read them ahead, from files."""
        for broker in self.brokers:
            for queue in broker.store.queues:
                queue.write_out()
                queue.drop_tail()

    def forget_pops(self) -> None:
        """Clear the fast path's records of pops."""
        frontend = self.brokers[0].frontend
        assert frontend is not None
        frontend._pops.forget()

    def damage(self, physical_offset: int, change: int) -> None:
        """Change a byte of the last log file; do nothing if it is in another file."""
        self.compare_records()
        for broker in self.brokers:
            block = broker.store.hot_state.block
            position = physical_offset - block.log_start
            if 0 <= position < block.log_position:
                place = ctypes.c_ubyte.from_address(block.log_address + position)
                place.value ^= change

    def damage_unit(self, topic: str, position: int) -> None:
        """Change a byte of the last unit of queue 0 of a topic, if the unit is in memory."""
        for wire in self.wires:
            row = wire.queue(topic, 0).row
            count = row.max_offset - row.tail_offset
            if count > 0 and row.tail:
                unit = row.tail + cq_unit.SIZE * (count - 1)
                ctypes.c_ubyte.from_address(unit + position).value ^= 1


def replies_in(data: bytes) -> list[Command]:
    replies = []
    while data:
        (size,) = LENGTH.unpack_from(data)
        replies.append(commands.decode(data[4 : 4 + size]))
        data = data[4 + size :]
    return replies


def files(root: Path) -> dict[str, list[bytes]]:
    """Return the contents of a store's files by folder; names of index files hold the real time."""
    contents: dict[str, list[bytes]] = {}
    for folder in COMPARED:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file():
                name = str(path.parent.relative_to(root))
                contents.setdefault(name, []).append(path.read_bytes())
    return contents


@contextlib.contextmanager
def open_pair(
    root: Path,
    *,
    access: AccessSettings | None = None,
    acl_home: Path | None = None,
    **store_settings: Any,
) -> Iterator[Pair]:
    """Open two brokers; when they are closed, compare the files of both stores.

    Args:
        root: Folder of their stores.
        access: Settings of access control 2.0.
        acl_home: Folder with the accounts of access control 1.0; None: it is off.
        store_settings: Further settings of the stores.
    """
    if not hot.is_compiled:
        pytest.skip("no compiled kernels here")

    home = {} if acl_home is None else {"acl_enable": True, "rocketmq_home": str(acl_home)}
    broker_id = 1 if store_settings.get("broker_role") is BrokerRole.SLAVE else 0

    async def start(name: str, *, has_kernel: bool) -> Wire:
        store = {"max_message_size": 4096, **store_settings}
        broker = Broker(
            world.broker_config(reput_fast_path=has_kernel, broker_id=broker_id, **home),
            world.store_config(root / name, **store),
            clock=ManualClock(NOW_MS),
            access=access,
        )
        broker.load_accounts()
        await broker._open()
        return Wire(broker)

    async def stop(wire: Wire) -> None:
        wire.channel.connection_lost(None)
        for server in wire.broker._servers:
            await server.stop()
        await wire.broker.parts.replication.stop()
        wire.broker.store.close()

    with asyncio.Runner() as runner:
        with_kernel = runner.run(start("kernel", has_kernel=True))
        without = runner.run(start("python", has_kernel=False))
        try:
            # Channels are created for a running loop, and need one only for later writes.
            runner.run(asyncio.sleep(0))
            yield Pair(with_kernel, without, runner)
        finally:
            for wire in (with_kernel, without):
                runner.run(stop(wire))
    kernel_files, expected = files(root / "kernel"), files(root / "python")
    assert kernel_files.keys() == expected.keys()
    for folder in expected:
        assert kernel_files[folder] == expected[folder], folder
