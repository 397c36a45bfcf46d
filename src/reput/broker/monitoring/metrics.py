"""The metrics of a broker, served on ``metricsPort`` as /metrics.

Tables are read in slices, so that a scrape of many queues blocks no requests. The HTTP part is
``reput.remoting.metrics_server``.

The number of series is bounded (``reputMetricsNames``): the first topics, and pairs of topic and
group, have separate series, all others share the series ``_other``. A name keeps its series as long
as it exists, so that counters do not decrease. Consumer lag has the pairs that lag most (``lags``).
"""

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path

from reput import __version__
from reput.broker.access.refusals import AccessRefusals
from reput.broker.counters import stats
from reput.broker.loops import Loops
from reput.broker.monitoring import health, lags, replication_state
from reput.broker.parts import Parts
from reput.broker.replication.reports import Reason
from reput.broker.replication.state import SlaveState
from reput.errors import StoreUnavailable
from reput.kernel_choice import ENGINES
from reput.remoting import metrics_server
from reput.remoting.health import Health
from reput.remoting.metrics_server import Family, HistogramFamily, Turns, single
from reput.store.config import BrokerRole
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.kernels import hot

NAMES_MAX = 500
OTHER = "_other"
QUARANTINING_LOOPS = ("timers", "pops", "transactions", "delayed", "store")
"""Background loops that skip stored records."""

_NAMES_SLICE = 1_000
"""Names that are compared between two yields."""


class Names:
    """The names that have separate series.

    Args:
        count_max: Largest number of names.
    """

    def __init__(self, count_max: int = NAMES_MAX) -> None:
        self._count_max = count_max
        self._named: set[tuple[str, ...]] = set()

    def keep(self, existing: Iterable[tuple[str, ...]]) -> Iterator[None]:
        """Remove names that do not exist any more; add new ones in sorted order.

        Yields so that other tasks can run.
        """
        known: set[tuple[str, ...]] = set()
        first: list[tuple[str, ...]] = []
        names = iter(existing)
        while some := set(itertools.islice(names, _NAMES_SLICE)):
            known |= self._named & some
            # Later names may be smaller; there is never room for more than these.
            first = heapq.nsmallest(self._count_max, {*first, *(some - self._named)})
            yield
        self._named = known
        self._named.update(first[: self._count_max - len(known)])

    def label(self, name: tuple[str, ...]) -> tuple[str, ...]:
        """Return a name, or ``_other`` if it has no separate series."""
        return name if name in self._named else (OTHER,) * len(name)


class BrokerMeter:
    """Measures a broker. To be used only on the event loop.

    Args:
        parts: The parts of the broker.
        loops: Its loops.
        connection_counts: Returns the number of connections by port.
        names_max: Largest number of topics, and of pairs of topic and group, with separate series.
    """

    def __init__(
        self,
        parts: Parts,
        loops: Loops,
        connection_counts: Callable[[], Mapping[str, int]],
        names_max: int = NAMES_MAX,
    ) -> None:
        self._parts = parts
        self._loops = loops
        self._connection_counts = connection_counts
        self._topics = Names(names_max)
        self._pairs = Names(names_max)
        self._names_max = names_max
        self._lagging: frozenset[lags.Pair] = frozenset()
        self._disk = Disk()
        self._started_ms = parts.clock.monotonic_ms()

    async def check_health(self) -> Health:
        """Return the health of the broker."""
        return health.check(self._parts, self._loops, self._started_ms)

    async def measure(self) -> list[Family | HistogramFamily]:
        """Return all metrics."""
        return await metrics_server.gather(
            self._info,
            self._put_times,
            self._plain,
            self._loop_turns,
            self._refusals,
            self._traffic,
            self._topic_traffic,
            self._transactions,
            self._replication,
            self._replica_acks,
            self._lags,
        )

    async def _info(self, turns: Turns) -> AsyncIterator[Family]:
        config = self._parts.settings.broker
        info = Family("reput_info", "What runs.", ("version", "cluster", "broker"))
        info.values[__version__, config.broker_cluster_name, config.broker_name] = 1
        yield info
        engine = Family(
            "reput_kernels", "The engine of the kernels; reference is several times slower.",
            ("engine",),
        )  # fmt: skip
        engine.values = {(name,): float(name == hot.engine()) for name in ENGINES}
        yield engine

    async def _plain(self, turns: Turns) -> AsyncIterator[Family]:
        parts, store = self._parts, self._parts.store
        is_well = health.check(parts, self._loops, self._started_ms).is_well
        yield single("reput_healthy", "1 if /health reports no problem.", is_well)
        offsets = Family(
            "reput_store_offset_bytes",
            "Physical offsets: begin of the log, and the end of each state.",
            ("kind",),
        )
        offsets.values = {
            ("min",): store.min_physical_offset,
            ("written",): store.log.written_offset,
            ("flushed",): store.log.flushed_offset,
            ("readable",): store.max_physical_offset,
            ("dispatched",): store.dispatcher.dispatched_offset,
        }
        yield offsets
        yield self._disk_use()
        is_taking = not store.why_no_puts
        yield single("reput_store_writable", "1 if messages are accepted.", is_taking)
        yield single("reput_topics", "Topics.", len(parts.topics.all()))
        yield single("reput_queues", "Queues that have had messages.", len(store.queues))
        yield single("reput_held_pulls", "Held pulls.", len(parts.held_pulls))
        yield single(
            "reput_waiting_sends",
            "Replies to sends that wait for the disk.",
            len(parts.pending_replies),
        )
        connections = Family("reput_connections", "Open connections.", ("port",))
        counts = self._connection_counts()
        connections.values = {(name,): count for name, count in counts.items()}
        yield connections
        yield single(
            "reput_producer_groups",
            "Producer groups with members.",
            len(parts.groups.producer_groups()),
        )
        consumers = list(parts.groups.consumers())
        yield single("reput_consumer_groups", "Consumer groups with members.", len(consumers))
        members = sum(len(group.members) for group in consumers)
        yield single("reput_consumers", "Members of consumer groups.", members)
        failing = Family(
            "reput_name_server_failing",
            "1 if the broker is not registered with it.",
            ("name_server",),
        )
        problems = parts.registration.problems
        servers = parts.settings.broker.name_servers
        failing.values = {(group,): float(group in problems) for group in servers}
        yield failing

    def _disk_use(self) -> Family:
        usage = Family(
            "reput_disk_used_ratio", "Used share of a folder's file system.", ("folder",)
        )
        store = self._parts.store
        for folder in {store.root, *store.config.commit_log_folders}:
            with contextlib.suppress(StoreUnavailable):
                usage.values[folder,] = self._disk.usage(folder)
        return usage

    async def _loop_turns(self, turns: Turns) -> AsyncIterator[Family]:
        loops, now_ms = self._loops, self._parts.clock.monotonic_ms()
        silent = Family(
            "reput_loop_silent_seconds", "Time since the last turn of a background loop.", ("loop",)
        )
        silent.values = {(name,): (now_ms - ms) / 1000 for name, ms in loops.turns.items()}
        yield silent
        failing = Family(
            "reput_loop_failing", "1 if the loop failed and has not turned since.", ("loop",)
        )
        names = {*loops.turns, *loops.failures}
        failing.values = {(name,): float(name in loops.failures) for name in names}
        yield failing

    async def _refusals(self, turns: Turns) -> AsyncIterator[Family]:
        parts = self._parts
        yield metrics_server.refusals_by_limit(parts.serving.refusals)
        yield metrics_server.tls_handshakes(parts.serving.tls)
        yield metrics_server.proxy_headers(parts.serving.proxies)
        if parts.access is not None:
            for family in _access_refusals(parts.access.refusals):
                yield family
        yield single(
            "reput_stats_uncounted_total",
            "Events that are only in the totals, as there are too many series.",
            parts.deliveries.stats.uncounted_count,
            is_counter=True,
        )
        passed_over = Family(
            "reput_records_passed_over_total",
            "Stored records that a background loop could not process.",
            ("loop",),
            is_counter=True,
        )
        passed_over.values = {(loop,): 0.0 for loop in QUARANTINING_LOOPS}
        counts = parts.quarantine.counts.items()
        passed_over.values.update(((loop,), float(count)) for loop, count in counts)
        yield passed_over

    async def _put_times(self, turns: Turns) -> AsyncIterator[HistogramFamily]:
        times = self._parts.pending_replies.put_times
        yield HistogramFamily(
            "reput_put_duration_seconds",
            "Time from a send to its reply: the store, and the disk under SYNC_FLUSH.",
            tuple(times.totals()),
            times.sum_ms / 1000,
        )
        flusher = self._parts.store.flusher
        for name, text, durations in (
            ("reput_log_sync_seconds", "Duration of a sync of the log.", flusher.sync_durations),
            (
                "reput_log_commit_seconds",
                "Duration of a commit of pool buffers to the log.",
                flusher.commit_durations,
            ),
        ):
            yield HistogramFamily(name, text, tuple(durations.totals()), durations.sum_ms / 1000)

    async def _replication(self, turns: Turns) -> AsyncIterator[Family]:
        parts = self._parts
        config, identity = parts.settings.store, parts.identity
        role = Family("reput_role", "1 for the role of this broker.", ("role",))
        role.values = {(str(known),): float(known is config.broker_role) for known in BrokerRole}
        yield role
        yield single(
            "reput_replication_cut_bytes_total",
            "Bytes that were cut from this log, and are kept in the folder cut.",
            await asyncio.to_thread(_cut_bytes, parts.store.root),
            is_counter=True,
        )
        for family in _group_families(parts):
            yield family
        if not identity.is_master:
            status = parts.replication.follower.status
            state = Family("reput_slave_state", "1 for the state of this slave.", ("state",))
            state.values = {(str(known),): float(known is status.state) for known in SlaveState}
            yield state
            lag = replication_state.slave_lag(parts)
            yield single("reput_slave_lag_bytes", "Bytes that this slave lacks.", lag)
            yield single(
                "reput_slave_received_bytes_total",
                "Bytes of the log that this slave has received.",
                status.received_bytes,
                is_counter=True,
            )
            return
        port = parts.replication.slave_port
        labels = ("replica",)
        acks = Family("reput_replica_ack_offset", "Acknowledged physical offset.", labels)
        lags = Family("reput_replica_lag_bytes", "Bytes that a slave lacks.", labels)
        in_sync = Family("reput_replica_in_sync", "1 if a slave counts as available.", labels)
        info = port.slaves_status()
        for slave in info.ha_connection_info[: replication_state.REPLICAS_LISTED]:
            acks.values[slave.addr,] = slave.slave_ack_offset
            lags.values[slave.addr,] = slave.diff
            in_sync.values[slave.addr,] = slave.in_sync
        yield acks
        yield lags
        yield in_sync
        yield single("reput_replicas", "Connected slaves.", len(info.ha_connection_info))
        needed = config.replicas_needed - 1
        yield single("reput_replicas_needed", "Slaves that a send waits for.", needed)
        yield single(
            "reput_replication_sent_bytes_total",
            "Bytes of the log that were sent to slaves.",
            port.counts.sent_bytes,
            is_counter=True,
        )
        refused = Family(
            "reput_replication_refused_total",
            "Connections to the port for slaves that were closed.",
            ("reason",),
            is_counter=True,
        )
        refused.values = {(str(reason),): float(port.counts.refused[reason]) for reason in Reason}
        yield refused

    async def _replica_acks(self, turns: Turns) -> AsyncIterator[HistogramFamily]:
        times = self._parts.replication.slave_port.counts.ack_times
        yield HistogramFamily(
            "reput_replica_ack_seconds",
            "Time from sending bytes to a slave until it has acknowledged them.",
            tuple(times.totals()),
            times.sum_ms / 1000,
        )

    async def _transactions(self, turns: Turns) -> AsyncIterator[Family]:
        transactions = self._parts.transactions
        yield single(
            "reput_half_messages",
            "Half messages that wait for a decision.",
            transactions.waiting_count,
        )
        outcomes = Family(
            "reput_transactions_total",
            "Decisions and checks of half messages, by outcome.",
            ("outcome",),
            is_counter=True,
        )
        outcomes.values = {
            ("committed",): transactions.committed_count,
            ("rolled_back",): transactions.rolled_back_count,
            ("repeated",): transactions.repeated_count,
            ("refused",): transactions.refused_count,
            ("asked",): transactions.asked_count,
            ("unasked",): transactions.unasked_count,
            ("given_up",): transactions.given_up_count,
            ("lost",): transactions.lost_count,
        }
        yield outcomes

    async def _traffic(self, turns: Turns) -> AsyncIterator[Family]:
        parts = self._parts
        counts = parts.deliveries.stats
        for _ in counts.update():
            await turns.rest()
        yield single(
            "reput_put_messages_total", "Messages stored.", counts.put_count, is_counter=True
        )
        yield single(
            "reput_put_bytes_total", "Bytes of stored records.", counts.put_bytes, is_counter=True
        )
        yield single(
            "reput_put_failed_total", "Messages refused.", counts.put_failed_count, is_counter=True
        )
        yield single(
            "reput_sends_refused_busy_total",
            "Sends refused as they had waited for a put that stalled.",
            parts.put_stalls.refused_count,
            is_counter=True,
        )
        yield single(
            "reput_got_messages_total", "Messages delivered.", counts.got_count, is_counter=True
        )
        pulls = Family("reput_pulls_total", "Answered pulls.", ("result",), is_counter=True)
        pulls.values = {("found",): counts.found_count, ("empty",): counts.missed_count}
        yield pulls
        fast = parts.fast_counts
        sends = fast.sends + parts.pending_replies.put_count
        yield _by_path("reput_send_frames_total", "Sends", "kernel", fast.sends, sends)
        yield _by_path(
            "reput_pull_frames_total",
            "Answered pulls",
            "kernel",
            fast.pulls,
            counts.pull_count,
        )
        yield _by_path(
            "reput_pop_acks_total",
            "Acknowledged messages",
            "kernel",
            fast.acks,
            sum(counts.values(stats.BROKER_ACK_NUMS).values()),
        )
        yield _by_path(
            "reput_transaction_end_frames_total",
            "Ends of transactions",
            "together",
            fast.transaction_ends,
            parts.transactions.end_count,
        )
        yield _by_path(
            "reput_send_back_frames_total",
            "Messages that were sent back",
            "together",
            fast.send_backs,
            sum(counts.values(stats.SNDBCK_PUT_NUMS).values()),
        )
        yield single(
            "reput_fast_lookups_total",
            "Lookups by key, id or time and of queue ends that the kernel answered.",
            fast.lookups,
            is_counter=True,
        )

    async def _topic_traffic(self, turns: Turns) -> AsyncIterator[Family]:
        parts = self._parts
        for _ in self._topics.keep((name,) for name in list(parts.topics.all())):
            await turns.rest()
        for name, text, kind in (
            ("reput_topic_put_messages_total", "Messages stored.", stats.TOPIC_PUT_NUMS),
            ("reput_topic_put_bytes_total", "Bytes of stored records.", stats.TOPIC_PUT_SIZE),
        ):
            family = Family(name, text, ("topic",), is_counter=True)
            for topic, value in parts.deliveries.stats.values(kind).items():
                await turns.rest()
                _add(family, self._topics.label((topic,)), value)
            yield family

    async def _lags(self, turns: Turns) -> AsyncIterator[Family]:
        """Yield deliveries to groups, and their consumer lag."""
        got = self._parts.deliveries.stats.values(stats.GROUP_GET_NUMS)
        await turns.rest()
        for _ in self._pairs.keep((topic, group) for topic, _, group in map(_split, got)):
            await turns.rest()
        labels = ("topic", "group")
        family = Family(
            "reput_group_got_messages_total", "Messages delivered.", labels, is_counter=True
        )
        for key, value in got.items():
            await turns.rest()
            topic, _, group = _split(key)
            _add(family, self._pairs.label((topic, group)), value)
        yield family

        current = await lags.measure(self._parts, self._names_max, self._lagging, turns)
        self._lagging = frozenset(current.messages)
        messages = Family("reput_group_lag_messages", "Messages after the consumer offset.", labels)
        messages.values = {pair: float(count) for pair, count in current.messages.items()}
        if current.other_messages is not None:
            messages.values[OTHER, OTHER] = float(current.other_messages)
        yield messages
        age = Family(
            "reput_group_lag_seconds",
            "Age of the oldest message after the consumer offset, in the worst queue.",
            labels,
        )
        age.values = dict(current.seconds.items())
        yield age


def _split(key: str) -> tuple[str, str, str]:
    return key.rpartition("@")


def _access_refusals(refusals: AccessRefusals) -> tuple[Family, Family]:
    """Return the counters of access control; the number of addresses is bounded."""
    refused = Family(
        "reput_access_refused_total",
        "Requests that access control refused: of unknown senders, or without permission.",
        ("reason",),
        is_counter=True,
    )
    refused.values = {
        ("not_authenticated",): refusals.unauthenticated_count,
        ("not_authorized",): refusals.unauthorized_count,
    }
    by_address = Family(
        "reput_access_not_authenticated_total",
        "Requests of unknown senders by address: the first addresses, and all others together.",
        ("address",),
        is_counter=True,
    )
    by_address.values = {(name,): count for name, count in refusals.by_address.items() if count}
    return refused, by_address


def _group_families(parts: Parts) -> Iterator[Family]:
    """Yield the state of a broker under a controller."""
    member, in_sync = parts.member, parts.store.in_sync
    if member is None:
        return
    yield single("reput_epoch", "Epoch of the group's master.", member.mastership.epoch)
    has_problem = bool(member.problem)
    yield single("reput_group_problem", "1 if the broker has no role or may lose it.", has_problem)
    if in_sync is None:
        return
    end = parts.store.max_physical_offset
    yield single("reput_lease_left_seconds", "Rest of the lease.", member.lease.left_ms / 1000)
    members = len(in_sync.members)
    yield single("reput_in_sync_replicas", "Brokers in sync, with this master.", members)
    yield single(
        "reput_unconfirmed_bytes",
        "Bytes at the end of the log that not all in-sync replicas have.",
        end - in_sync.confirmed(end),
    )


def _cut_bytes(root: str) -> int:
    """Return the size of the files with bytes that were cut from the log."""
    with contextlib.suppress(OSError):
        return sum(path.stat().st_size for path in Path(root, paths.CUT_BYTES).iterdir())
    return 0


def _by_path(name: str, what: str, quick: str, quick_count: int, total: int) -> Family:
    """Return a counter of the fast path and the slow path."""
    text = f"{what} by path: {quick} on the fast path, slow by the processor."
    family = Family(name, text, ("path",), is_counter=True)
    family.values = {(quick,): float(quick_count), ("slow",): float(total - quick_count)}
    return family


def _add(family: Family, label: tuple[str, ...], value: float) -> None:
    family.values[label] = family.values.get(label, 0.0) + value
