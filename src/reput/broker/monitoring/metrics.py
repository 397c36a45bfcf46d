"""What /metrics and /health of a broker say, on ``metricsPort``.

Tables are read in slices, so that a scrape of many queues holds nobody up. How they are served:
``reput.remoting.metrics_server``.

Series are bounded: the first ``NAMES_MAX`` topics, and pairs of topic and group, have series of
their own, the others share one that is called ``_other``. A name keeps its series as
long as it exists.
"""

import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

from reput import __version__
from reput.broker.counters import stats
from reput.broker.loops import Loops
from reput.broker.monitoring import health
from reput.broker.parts import Parts
from reput.errors import StoreUnavailable
from reput.remoting import metrics_server
from reput.remoting.health import Health
from reput.remoting.metrics_server import Family, Histogram, Turns, single
from reput.store.disk import Disk

NAMES_MAX = 500
OTHER = "_other"
QUARANTINING_LOOPS = ("timers", "pops", "transactions", "delayed", "store")
"""Background loops that pass over stored records; a loop may come to be here."""

_NAMES_SLICE = 1_000
"""Names that are compared before others have their turn."""
_STORE_TIMES_MAX = 2_000  # each looks a record up, which may be on disk


class Names:
    """Which names have series of their own.

    Args:
        count_max: How many at most.
    """

    def __init__(self, count_max: int = NAMES_MAX) -> None:
        self._count_max = count_max
        self._named: set[tuple[str, ...]] = set()

    def keep(self, existing: Iterable[tuple[str, ...]]) -> Iterator[None]:
        """Forget the names that do not exist any more; give room to new ones, in their order.

        Yields where others may have their turn.
        """
        known: set[tuple[str, ...]] = set()
        first: list[tuple[str, ...]] = []
        names = iter(existing)
        while some := set(itertools.islice(names, _NAMES_SLICE)):
            known |= self._named & some
            # Those that come later may be smaller; there is never room for more than these.
            first = heapq.nsmallest(self._count_max, {*first, *(some - self._named)})
            yield
        self._named = known
        self._named.update(first[: self._count_max - len(known)])

    def label(self, name: tuple[str, ...]) -> tuple[str, ...]:
        """Return a name, or ``_other`` in its place."""
        return name if name in self._named else (OTHER,) * len(name)


class Meter:
    """Measures a broker; everything on the loop's thread.

    Args:
        parts: The parts of the broker.
        loops: Its loops.
        connection_counts: Returns the number of connections by port.
        names_max: Topics, and pairs of topic and group, with series of their own at most.
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
        self._disk = Disk()
        self._started_ms = parts.clock.monotonic_ms()

    async def look(self) -> Health:
        """Return how the broker is."""
        return health.look(self._parts, self._loops, self._started_ms)

    async def measure(self) -> list[Family | Histogram]:
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
            self._lags,
        )

    async def _info(self, turns: Turns) -> AsyncIterator[Family]:
        config = self._parts.settings.broker
        info = Family("reput_info", "What runs.", ("version", "cluster", "broker"))
        info.values[__version__, config.broker_cluster_name, config.broker_name] = 1
        yield info

    async def _plain(self, turns: Turns) -> AsyncIterator[Family]:
        parts, store = self._parts, self._parts.store
        is_well = health.look(parts, self._loops, self._started_ms).is_well
        yield single("reput_healthy", "1 if /health is green.", is_well)
        offsets = Family(
            "reput_store_offset_bytes",
            "Physical offsets: where the log begins, and up to where it is so.",
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
        is_taking = not store.refusal
        yield single("reput_store_writable", "1 if messages are taken.", is_taking)
        yield single("reput_topics", "Topics.", len(parts.topics.all()))
        yield single("reput_queues", "Queues that have had messages.", len(store.queues))
        yield single("reput_held_pulls", "Pulls that wait for messages.", len(parts.held_pulls))
        yield single(
            "reput_waiting_sends", "Replies that wait for the disk.", len(parts.pending_replies)
        )
        connections = Family("reput_connections", "Open connections.", ("port",))
        counts = self._connection_counts()
        connections.values = {(name,): count for name, count in counts.items()}
        yield connections
        yield single("reput_producer_groups", "With members.", len(parts.groups.producer_groups()))
        consumers = list(parts.groups.consumers())
        yield single("reput_consumer_groups", "With members.", len(consumers))
        members = sum(len(one.members) for one in consumers)
        yield single("reput_consumers", "Members of consumer groups.", members)
        failing = Family(
            "reput_name_server_failing", "1 if it does not know the broker.", ("name_server",)
        )
        problems = parts.registration.problems
        servers = parts.settings.broker.name_servers
        failing.values = {(one,): float(one in problems) for one in servers}
        yield failing

    def _disk_use(self) -> Family:
        found = Family("reput_disk_used_ratio", "Of the file system of a folder.", ("folder",))
        store = self._parts.store
        for folder in {store.root, *store.config.commit_log_folders}:
            with contextlib.suppress(StoreUnavailable):
                found.values[folder,] = self._disk.usage(folder)
        return found

    async def _loop_turns(self, turns: Turns) -> AsyncIterator[Family]:
        loops, now_ms = self._loops, self._parts.clock.monotonic_ms()
        silent = Family(
            "reput_loop_silent_seconds", "Since the last turn of a background loop.", ("loop",)
        )
        silent.values = {(one,): (now_ms - ms) / 1000 for one, ms in loops.turns.items()}
        yield silent
        failing = Family("reput_loop_failing", "1 if it failed and did not turn since.", ("loop",))
        names = {*loops.turns, *loops.failures}
        failing.values = {(one,): float(one in loops.failures) for one in names}
        yield failing

    async def _refusals(self, turns: Turns) -> AsyncIterator[Family]:
        parts = self._parts
        yield metrics_server.refusals_by_limit(parts.serving.refusals)
        yield single(
            "reput_stats_uncounted_total",
            "Counts that no series of the statistics has, as there are too many.",
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

    async def _put_times(self, turns: Turns) -> AsyncIterator[Histogram]:
        times = self._parts.pending_replies.put_times
        yield Histogram(
            "reput_put_duration_seconds",
            "What sends wait for: the store, and the disk where replies wait for it.",
            tuple(times.totals()),
            times.sum_ms / 1000,
        )

    async def _transactions(self, turns: Turns) -> AsyncIterator[Family]:
        one = self._parts.transactions
        yield single("reput_half_messages", "That wait for a decision.", one.waiting_count)
        found = Family(
            "reput_transactions_total",
            "Decisions and checks, by what came of them.",
            ("outcome",),
            is_counter=True,
        )
        found.values = {
            ("committed",): one.committed_count,
            ("rolled_back",): one.rolled_back_count,
            ("repeated",): one.repeated_count,
            ("refused",): one.refused_count,
            ("asked",): one.asked_count,
            ("unasked",): one.unasked_count,
            ("given_up",): one.given_up_count,
            ("lost",): one.lost_count,
        }
        yield found

    async def _traffic(self, turns: Turns) -> AsyncIterator[Family]:
        parts = self._parts
        counts = parts.deliveries.stats
        for _ in counts.look():
            await turns.rest()
        yield single(
            "reput_put_messages_total", "Messages stored.", counts.put_count, is_counter=True
        )
        yield single("reput_put_bytes_total", "Of records.", counts.put_bytes, is_counter=True)
        yield single(
            "reput_put_failed_total", "Messages refused.", counts.put_failed_count, is_counter=True
        )
        yield single("reput_got_messages_total", "Consumed.", counts.got_count, is_counter=True)
        pulls = Family("reput_pulls_total", "BrokerError.", ("result",), is_counter=True)
        pulls.values = {("found",): counts.found_count, ("empty",): counts.missed_count}
        yield pulls
        fast = parts.fast_counts
        sends = fast.sends + parts.pending_replies.put_count
        yield _by_path("reput_send_frames_total", "Sends", "kernel", fast.sends, sends)
        yield _by_path(
            "reput_pull_frames_total",
            "BrokerError pulls",
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

    async def _topic_traffic(self, turns: Turns) -> AsyncIterator[Family]:
        parts = self._parts
        for _ in self._topics.keep((name,) for name in list(parts.topics.all())):
            await turns.rest()
        for name, text, kind in (
            ("reput_topic_put_messages_total", "Messages stored.", stats.TOPIC_PUT_NUMS),
            ("reput_topic_put_bytes_total", "Of records.", stats.TOPIC_PUT_SIZE),
        ):
            family = Family(name, text, ("topic",), is_counter=True)
            for topic, value in parts.deliveries.stats.values(kind).items():
                await turns.rest()
                _add(family, self._topics.label((topic,)), value)
            yield family

    async def _lags(self, turns: Turns) -> AsyncIterator[Family]:
        """Yield what groups have got, and how far they are behind."""
        parts, store = self._parts, self._parts.store
        got = parts.deliveries.stats.values(stats.GROUP_GET_NUMS)
        readers = list(parts.deliveries.consumer_offsets.readers())
        await turns.rest()
        told = ((topic, group) for topic, _, group in (key.rpartition("@") for key in got))
        for _ in self._pairs.keep(itertools.chain(told, readers)):
            await turns.rest()
        labels = ("topic", "group")
        family = Family("reput_group_got_messages_total", "Consumed.", labels, is_counter=True)
        for key, value in got.items():
            await turns.rest()
            topic, _, group = key.rpartition("@")
            _add(family, self._pairs.label((topic, group)), value)
        yield family

        behind = Family("reput_group_lag_messages", "Stored and not committed yet.", labels)
        age = Family(
            "reput_group_lag_seconds",
            "Age of the oldest message that is not committed; of its worst queue.",
            labels,
        )
        now_ms, left = parts.clock.now_ms(), _STORE_TIMES_MAX
        for topic, group in readers:
            label = self._pairs.label((topic, group))
            lag_sum, oldest_ms = 0, now_ms
            await turns.rest()
            for queue_id, consumer_offset in parts.deliveries.consumer_offsets.of(
                topic, group
            ).items():
                await turns.rest()
                next_offset = max(consumer_offset, store.min_offset(topic, queue_id))
                lag = store.max_offset(topic, queue_id) - next_offset
                if lag > 0:
                    lag_sum += lag
                    if left:
                        left -= 1
                        stored_ms = store.store_time(topic, queue_id, next_offset)
                        oldest_ms = min(oldest_ms, now_ms if stored_ms is None else stored_ms)
            _add(behind, label, lag_sum)
            age.values[label] = max(age.values.get(label, 0.0), (now_ms - oldest_ms) / 1000)
        yield behind
        yield age


def _by_path(name: str, what: str, quick: str, quick_count: int, total: int) -> Family:
    """Return how many took the quick path, which has a name, and how many the slow one."""
    of_quick = "the kernel's" if quick == "kernel" else quick
    text = f"{what} by the path they took: {of_quick}, or the slow one of all others."
    found = Family(name, text, ("path",), is_counter=True)
    found.values = {(quick,): float(quick_count), ("slow",): float(total - quick_count)}
    return found


def _add(family: Family, label: tuple[str, ...], value: float) -> None:
    family.values[label] = family.values.get(label, 0.0) + value
