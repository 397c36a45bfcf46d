"""/metrics for Prometheus, and /health, over HTTP on ``metricsPort``.

    HTTP thread  --asks-->  the loop's thread: measure, look  --values-->  HTTP thread: text

Tables are read on the loop's thread alone, in slices, so that a scrape of many queues holds nobody
up. A loop that does not answer in time is a red /health.

Series are bounded: the first ``NAMES_MAX`` topics, and pairs of topic and group, have series of
their own, the others share one that is called ``_other`` (anchors C22). A name keeps its series as
long as it exists.
"""

import asyncio
import concurrent.futures
import contextlib
import heapq
import json
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from reput import __version__
from reput.broker import health, stats
from reput.broker.health import Health
from reput.errors import StoreUnavailable
from reput.store.disk import Disk

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    from reput.broker.server import Broker

NAMES_MAX = 500
OTHER = "_other"
ANSWER_TIMEOUT_MS = 5_000
"""The loop has to answer within this."""

_SLICE = 50
"""Readers that are looked at in one turn of the loop."""
_STORE_TIMES_MAX = 2_000  # each looks a record up, which may be on disk
_SOCKET_TIMEOUT_S = 10
_JSON = ("Content-Type", "application/json")

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Family:
    """One metric with all of its series."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    is_counter: bool = False
    values: dict[tuple[str, ...], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often a time was how long."""

    name: str
    help: str
    buckets: tuple[tuple[float, int], ...]
    """Seconds, and how many took less; the last has no bound."""
    sum_s: float
    labels: ClassVar[tuple[str, ...]] = ()


class Names:
    """Which names have series of their own.

    Args:
        count_max: How many at most.
    """

    def __init__(self, count_max: int = NAMES_MAX) -> None:
        self._count_max = count_max
        self._named: set[tuple[str, ...]] = set()

    def keep(self, existing: Iterable[tuple[str, ...]]) -> None:
        """Forget the names that do not exist any more; give room to new ones, in their order."""
        names = set(existing)
        self._named &= names
        room = self._count_max - len(self._named)
        if room:
            self._named.update(heapq.nsmallest(room, names - self._named))

    def label(self, name: tuple[str, ...]) -> tuple[str, ...]:
        """Return a name, or ``_other`` in its place."""
        return name if name in self._named else (OTHER,) * len(name)


class Meter:
    """Measures a broker; everything on the loop's thread.

    Args:
        broker: Which.
        names_max: Topics, and pairs of topic and group, with series of their own at most.
    """

    def __init__(self, broker: "Broker", names_max: int = NAMES_MAX) -> None:
        self._broker = broker
        self._topics = Names(names_max)
        self._pairs = Names(names_max)
        self._disk = Disk()
        self._started_ms = broker.clock.monotonic_ms()

    async def look(self) -> Health:
        """Return how the broker is."""
        return health.look(self._broker, self._started_ms)

    async def measure(self) -> list[Family | Histogram]:
        """Return all metrics."""
        broker = self._broker
        config = broker.config
        info = Family("reput_info", "What runs.", ("version", "cluster", "broker"))
        info.values[__version__, config.broker_cluster_name, config.broker_name] = 1
        families: list[Family | Histogram] = [info, self._put_times()]
        for part in (self._plain, self._loops, self._traffic, self._transactions):
            for one in part():
                families.append(one)
                await asyncio.sleep(0)
        families += [one async for one in self._lags()]
        return families

    def _plain(self) -> Iterator[Family]:
        broker, store = self._broker, self._broker.store
        is_well = health.look(broker, self._started_ms).is_well
        yield _one("reput_healthy", "1 if /health is green.", is_well)
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
        yield _one("reput_store_writable", "1 if messages are taken.", is_taking)
        yield _one("reput_topics", "Topics.", len(broker.topics.all()))
        yield _one("reput_queues", "Queues that have had messages.", len(store.queues))
        yield _one("reput_held_pulls", "Pulls that wait for messages.", len(broker.held_pulls))
        yield _one("reput_waiting_sends", "Replies that wait for the disk.", len(broker.intake))
        connections = Family("reput_connections", "Open connections.", ("port",))
        connections.values = {(name,): count for name, count in broker.connection_counts().items()}
        yield connections
        yield _one("reput_producer_groups", "With members.", len(broker.groups.producer_groups()))
        consumers = list(broker.groups.consumers())
        yield _one("reput_consumer_groups", "With members.", len(consumers))
        members = sum(len(one.members) for one in consumers)
        yield _one("reput_consumers", "Members of consumer groups.", members)
        failing = Family(
            "reput_name_server_failing", "1 if it does not know the broker.", ("name_server",)
        )
        problems = broker.registration.problems
        servers = broker.config.name_servers
        failing.values = {(one,): float(one in problems) for one in servers}
        yield failing

    def _disk_use(self) -> Family:
        found = Family("reput_disk_used_ratio", "Of the file system of a folder.", ("folder",))
        store = self._broker.store
        for folder in {store.root, *store.config.commit_log_folders}:
            with contextlib.suppress(StoreUnavailable):
                found.values[folder,] = self._disk.usage(folder)
        return found

    def _loops(self) -> Iterator[Family]:
        loops, now_ms = self._broker.loops, self._broker.clock.monotonic_ms()
        silent = Family(
            "reput_loop_silent_seconds", "Since the last turn of a background loop.", ("loop",)
        )
        silent.values = {(one,): (now_ms - ms) / 1000 for one, ms in loops.turns.items()}
        yield silent
        failing = Family("reput_loop_failing", "1 if it failed and did not turn since.", ("loop",))
        names = {*loops.turns, *loops.failures}
        failing.values = {(one,): float(one in loops.failures) for one in names}
        yield failing

    def _put_times(self) -> Histogram:
        times = self._broker.intake.put_times
        return Histogram(
            "reput_put_duration_seconds",
            "What sends wait for: the store, and the disk where replies wait for it.",
            tuple(times.totals()),
            times.sum_ms / 1000,
        )

    def _transactions(self) -> Iterator[Family]:
        one = self._broker.transactions
        yield _one("reput_half_messages", "That wait for a decision.", one.waiting_count)
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

    def _traffic(self) -> Iterator[Family]:
        broker = self._broker
        counts = broker.stats
        counts.look()
        yield _one(
            "reput_put_messages_total", "Messages stored.", counts.put_count, is_counter=True
        )
        yield _one("reput_put_bytes_total", "Of records.", counts.put_bytes, is_counter=True)
        yield _one(
            "reput_put_failed_total", "Messages refused.", counts.put_failed_count, is_counter=True
        )
        yield _one("reput_got_messages_total", "Consumed.", counts.got_count, is_counter=True)
        pulls = Family("reput_pulls_total", "Answered.", ("result",), is_counter=True)
        pulls.values = {("found",): counts.found_count, ("empty",): counts.missed_count}
        yield pulls
        intake = broker.intake
        sends = intake.common_count + intake.other_count
        yield _by_path("reput_send_frames_total", "Sends", "kernel", intake.common_count, sends)
        yield _by_path(
            "reput_pull_frames_total",
            "Answered pulls",
            "kernel",
            intake.common_pull_count,
            counts.pull_count,
        )
        yield _by_path(
            "reput_pop_acks_total",
            "Acknowledged messages",
            "kernel",
            intake.pop_acks.common_count,
            sum(counts.values(stats.BROKER_ACK_NUMS).values()),
        )
        yield _by_path(
            "reput_transaction_end_frames_total",
            "Ends of transactions",
            "together",
            intake.transaction_ends.common_count,
            broker.transactions.end_count,
        )
        yield _by_path(
            "reput_send_back_frames_total",
            "Messages that were sent back",
            "together",
            intake.send_backs.common_count,
            sum(counts.values(stats.SNDBCK_PUT_NUMS).values()),
        )
        self._topics.keep((name,) for name in broker.topics.all())
        for name, text, kind in (
            ("reput_topic_put_messages_total", "Messages stored.", stats.TOPIC_PUT_NUMS),
            ("reput_topic_put_bytes_total", "Of records.", stats.TOPIC_PUT_SIZE),
        ):
            family = Family(name, text, ("topic",), is_counter=True)
            for topic, value in counts.values(kind).items():
                _add(family, self._topics.label((topic,)), value)
            yield family

    async def _lags(self) -> AsyncIterator[Family]:
        """Yield what groups have got, and how far they are behind."""
        broker, store = self._broker, self._broker.store
        got = broker.stats.values(stats.GROUP_GET_NUMS)
        readers = list(broker.consumer_offsets.readers())
        pairs = {(topic, group) for topic, _, group in (key.rpartition("@") for key in got)}
        self._pairs.keep(pairs.union(readers))
        await asyncio.sleep(0)
        labels = ("topic", "group")
        family = Family("reput_group_got_messages_total", "Consumed.", labels, is_counter=True)
        for key, value in got.items():
            topic, _, group = key.rpartition("@")
            _add(family, self._pairs.label((topic, group)), value)
        yield family

        behind = Family("reput_group_lag_messages", "Stored and not committed yet.", labels)
        age = Family(
            "reput_group_lag_seconds",
            "Age of the oldest message that is not committed; of its worst queue.",
            labels,
        )
        now_ms, left = broker.clock.now_ms(), _STORE_TIMES_MAX
        for i, (topic, group) in enumerate(readers):
            if i % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            label = self._pairs.label((topic, group))
            lag_sum, oldest_ms = 0, now_ms
            for queue_id, consumer_offset in broker.consumer_offsets.of(topic, group).items():
                at = max(consumer_offset, store.min_offset(topic, queue_id))
                lag = store.max_offset(topic, queue_id) - at
                if lag > 0:
                    lag_sum += lag
                    if left:
                        left -= 1
                        stored_ms = store.store_time(topic, queue_id, at)
                        oldest_ms = min(oldest_ms, now_ms if stored_ms is None else stored_ms)
            _add(behind, label, lag_sum)
            age.values[label] = max(age.values.get(label, 0.0), (now_ms - oldest_ms) / 1000)
        yield behind
        yield age


class MetricsServer:
    """Serves a broker's metrics and health, from a thread of its own.

    Args:
        broker: Which; started.
        host: Address to listen on.
        port: 0 for any that is free.
        answer_timeout_ms: The loop has to answer within this.
    """

    def __init__(
        self,
        broker: "Broker",
        *,
        host: str = "0.0.0.0",
        port: int = 0,
        answer_timeout_ms: int = ANSWER_TIMEOUT_MS,
    ) -> None:
        self.host = host
        self.port = port
        """What it listens on, once it is started."""
        self._meter = Meter(broker)
        self._answer_timeout_ms = answer_timeout_ms
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_Collector(self))
        self._metrics = make_wsgi_app(registry, disable_compression=True)

    def start(self) -> None:
        """Begin to listen; on the loop's thread.

        Raises:
            OSError: The address is in use, or not ours.
        """
        self._loop = asyncio.get_running_loop()
        self._server = make_server(
            self.host, self.port, self._answer, server_class=_Server, handler_class=_Handler
        )
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="reput-metrics", daemon=True
        )
        self._thread.start()
        _log.info("metrics and health are at http://%s:%d", self.host, self.port)

    async def stop(self) -> None:
        """Stop listening; who asks at the moment gets the answer."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        self._server = None
        await asyncio.to_thread(server.shutdown)  # what is asked needs the loop meanwhile
        await asyncio.to_thread(thread.join)
        server.server_close()

    def ask(self, what: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop and wait for it; on the HTTP thread.

        Raises:
            TimeoutError: The loop did not answer in time.
        """
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(what, self._loop)
        try:
            return future.result(self._answer_timeout_ms / 1000)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise TimeoutError(
                f"the broker's loop has not answered for {self._answer_timeout_ms} ms"
            ) from None

    def families(self) -> list[Family | Histogram]:
        """Return all metrics; on the HTTP thread."""
        return self.ask(self._meter.measure())

    def _answer(self, environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        try:
            if path == "/metrics":
                text: Iterable[bytes] = self._metrics(environ, start)
                return text
            if path == "/health":
                found = self.ask(self._meter.look())
            else:
                start("404 Not Found", [("Content-Type", "text/plain")])
                return [b"here are /metrics and /health\n"]
        except TimeoutError as error:
            found = Health((str(error),))
        status = "200 OK" if found.is_well else "503 Service Unavailable"
        start(status, [_JSON])
        return [json.dumps(found.describe(), indent=2).encode() + b"\n"]


class _Collector(Collector):
    """What prometheus_client asks."""

    def __init__(self, server: MetricsServer) -> None:
        self._server = server

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known when they are asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, as prometheus_client has them."""
        for one in self._server.families():
            if isinstance(one, Histogram):
                buckets = [
                    ("+Inf" if math.isinf(bound) else str(bound), count)
                    for bound, count in one.buckets
                ]
                yield HistogramMetricFamily(one.name, one.help, buckets, one.sum_s)
                continue
            kind: Callable[..., Any] = CounterMetricFamily if one.is_counter else GaugeMetricFamily
            family = kind(one.name, one.help, labels=one.labels)
            for labels, value in one.values.items():
                family.add_metric(labels, value)
            yield family


class _Server(WSGIServer):
    """One request at a time: who asks is one Prometheus and one prober."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say that a request failed."""
        _log.exception("a request of %s failed", client_address)


class _Handler(WSGIRequestHandler):
    timeout = _SOCKET_TIMEOUT_S  # one who sends nothing keeps the others waiting no longer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Nothing: that somebody asked is no event."""


def _one(name: str, text: str, value: float, *, is_counter: bool = False) -> Family:
    return Family(name, text, is_counter=is_counter, values={(): float(value)})


def _by_path(name: str, what: str, quick: str, quick_count: int, total: int) -> Family:
    """Return how many took the quick path, which has a name, and how many the slow one."""
    of_quick = "the kernel's" if quick == "kernel" else quick
    text = f"{what} by the path they took: {of_quick}, or the slow one of all others."
    found = Family(name, text, ("path",), is_counter=True)
    found.values = {(quick,): float(quick_count), ("slow",): float(total - quick_count)}
    return found


def _add(family: Family, label: tuple[str, ...], value: float) -> None:
    family.values[label] = family.values.get(label, 0.0) + value
