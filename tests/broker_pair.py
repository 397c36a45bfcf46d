"""Two brokers that get the same bytes, one with the fast path, one without."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import broker_subject
from reput.broker.counters import stats
from reput.broker.kernels import hot
from reput.broker.server import Broker
from reput.broker.settings.access import AccessSettings
from reput.clock import ManualClock
from reput.format import command as commands
from reput.format.command import LENGTH, Command
from reput.format.message import Host
from reput.remoting.channel import Channel
from reput.remoting.server_state import ServerState
from reput.remoting.time_slices import TimeSlices
from reput.remoting.turns import Turns
from reput.store.config import BrokerRole
from reput.store.tables.config_tables import TopicConfig

NOW_MS = 1_700_000_000_000
STORE_HOST = Host(b"\xc0\0\x02\x01", 10911)
BORN = ("192.0.2.7", 4711)


ADDED = {
    "AccessKey": "account",
    "SecurityToken": "token",
    "Signature": "NLvGjWych3OXP4GNbt5Ds48yoXI=",
    "OnsChannel": "ALIYUN",
    "ns": "space",
    "nsd": "true",
}
"""Fields that clients add to any request, for access control and namespaces."""


class WholeSlices(TimeSlices):
    """Slices that no request exceeds, however slow the machine: no loop would resume it."""

    def __init__(self) -> None:
        super().__init__(slice_s=3600)

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
        broker.identity.store_host = broker.parts.transactions.store_host = STORE_HOST
        if broker.frontend is not None:
            broker.frontend.open()
        broker.parts.topics.on_make = None  # No loop writes them.
        for name, perm in (("T", 6), ("ReadOnly", 4), ("%RETRY%g", 6)):
            broker.parts.topics.put(
                TopicConfig(name=name, read_queue_count=4, write_queue_count=4, perm=perm), NOW_MS
            )
        broker.parts.topics.put(
            TopicConfig(name="Narrow", read_queue_count=4, write_queue_count=1, perm=6), NOW_MS
        )
        self._seen_offset = 0
        broker._servers[0].state = ServerState()
        broker._servers[0].state.slices = WholeSlices()
        broker._servers[0].state.reads = WholeTurns()
        broker.serving.slices.slice_s = 3600
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

    def queues(self) -> list[tuple[str, int, int]]:
        return sorted(
            (queue.topic, queue.queue_id, queue.max_offset) for queue in self.broker.store.queues
        )

    @property
    def fast_count(self) -> int:
        """Number of requests that the kernel has answered."""
        return self.broker.parts.fast_counts.sends + self.broker.parts.fast_counts.pulls

    def counts(self) -> list[object]:
        """Return the counters of reads, consumer offsets, and the number of held pulls."""
        delivery_stats = self.broker.parts.deliveries.stats
        names = stats.GROUP_GET_NUMS, stats.GROUP_GET_SIZE, stats.GROUP_GET_LATENCY
        offsets = list(self.broker.parts.deliveries.consumer_offsets.all())
        waiting = len(self.broker.parts.held_pulls)
        events = [
            (name, key, series.times)
            for name in names
            for key, series in delivery_stats._series.get(name, {}).items()
        ]
        return [
            delivery_stats.found_count,
            delivery_stats.missed_count,
            delivery_stats.got_count,
            *map(delivery_stats.values, names),
            events,
            offsets,
            waiting,
        ]


class Both:
    """The two brokers."""

    def __init__(self, with_kernel: Wire, without: Wire, runner: asyncio.Runner) -> None:
        self.runner = runner
        """Runner of code that needs an event loop, such as opening a connection."""
        self.with_kernel = with_kernel
        self.without = without

    def feed(self, data: bytes) -> int:
        """Feed both brokers, and compare; return the number of requests the kernel answered."""
        before = self.with_kernel.fast_count
        got, expected = self.with_kernel.feed(data), self.without.feed(data)
        assert replies_in(got) == replies_in(expected)
        assert got == expected
        assert self.with_kernel.new_records() == self.without.new_records()
        assert self.with_kernel.queues() == self.without.queues()
        assert self.with_kernel.counts() == self.without.counts()
        assert self.without.fast_count == 0
        return self.with_kernel.fast_count - before


def replies_in(data: bytes) -> list[Command]:
    replies = []
    while data:
        (size,) = LENGTH.unpack_from(data)
        replies.append(commands.decode(data[4 : 4 + size]))
        data = data[4 + size :]
    return replies


def open_both(
    root: Path,
    *,
    access: AccessSettings | None = None,
    acl_home: Path | None = None,
    **store_settings: Any,
) -> Iterator[Both]:
    """Open two brokers. Their loops do not run, so their state changes only when they read.

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

    async def start(name: str, *, has_kernel: bool) -> Broker:
        store = {"max_message_size": 4096, **store_settings}
        broker = Broker(
            broker_subject.broker_config(reput_fast_path=has_kernel, broker_id=broker_id, **home),
            broker_subject.store_config(root / name, **store),
            clock=ManualClock(NOW_MS),
            access=access,
        )
        broker.load_accounts()
        await broker._open()
        return broker

    async def make() -> Both:
        return Both(
            Wire(await start("kernel", has_kernel=True)),
            Wire(await start("python", has_kernel=False)),
            runner,
        )

    with asyncio.Runner() as runner:
        pair = runner.run(make())

        async def stop() -> None:
            for wire in (pair.with_kernel, pair.without):
                wire.channel.connection_lost(None)
                for server in wire.broker._servers:
                    await server.stop()
                await wire.broker.parts.replication.stop()
                await wire.broker.parts.replication.stop()
                wire.broker.store.close()

        try:
            # Channels are created for a running loop, and need one only for later writes.
            runner.run(asyncio.sleep(0))
            yield pair
        finally:
            runner.run(stop())
