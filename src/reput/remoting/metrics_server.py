"""Serves /metrics for Prometheus, and /health, of a server that runs on an event loop.

    HTTP thread  --calls-->  event loop: measure, check_health  --values-->  HTTP thread: text

Tables are read only on the event loop, in slices, so that a scrape of many queues blocks no
requests. Concurrent requests for /metrics share one measurement. An event loop that does not
respond in time makes /health fail. A name that is not valid UTF-8 omits its series, and a family
that cannot be measured omits that family.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar, Protocol, TypeVar
from urllib.parse import parse_qsl

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from reput import limits
from reput.errors import InvalidOption
from reput.limits import Refusals
from reput.remoting.health import Health
from reput.remoting.http_listener import NOT_FOUND, HttpAnswer, HttpListener, on_loop
from reput.remoting.proxy_acceptor import HeaderResult, ProxyAcceptor
from reput.remoting.tls_acceptor import Handshake, TlsAcceptor

ANSWER_TIMEOUT_MS = 5_000
"""Timeout of the event loop's response, in ms."""
_MEASURE_TIMEOUT_MS = 30_000
"""Timeout of a measurement, in ms, which has the lowest priority."""
SLICE_S = 0.002
"""Time after which a measurement pauses for other tasks, in seconds."""

LEFT_OUT = "reput_metrics_series_left_out"
"""Name of the metric that is added to the measured ones."""

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_TOO_LONG = HttpAnswer(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "text/plain",
    f"the measurement takes more than {_MEASURE_TIMEOUT_MS} ms\n".encode(),
)

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Family:
    """A metric with all of its series."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    is_counter: bool = False
    values: dict[tuple[str, ...], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """A histogram of durations."""

    name: str
    help: str
    buckets: tuple[tuple[float, int], ...]
    """Upper bound in seconds and cumulative count; the last bound is infinity."""
    sum_s: float
    labels: ClassVar[tuple[str, ...]] = ()


class Meter(Protocol):
    """Measures a server; called on its event loop."""

    async def check_health(self) -> Health:
        """Return the health of the server."""

    async def measure(self) -> list[Family | HistogramFamily]:
        """Return all metrics."""


Detail = Callable[[Mapping[str, str]], Coroutine[Any, Any, "list[Family | HistogramFamily]"]]
"""Measures on demand, given the query of a request: name -> value.

Raises ``InvalidOption`` if a value is not allowed.
"""


class MetricsServer:
    """Serves a server's metrics and health over HTTP.

    Args:
        meter: Measures the server.
        host: Address to listen on.
        port: Port to listen on; 0 for any free port.
        path: Path of a Unix socket to listen on instead.
        answer_timeout_ms: Timeout of the event loop's response, in ms.
        refusals: Counts refusals by limits.
        details: Further pages, by path; one measurement at a time.
    """

    def __init__(
        self,
        meter: Meter,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        path: str | None = None,
        answer_timeout_ms: int = ANSWER_TIMEOUT_MS,
        refusals: Refusals | None = None,
        details: Mapping[str, Detail] | None = None,
    ) -> None:
        self._meter = meter
        self._path = path
        self._details = details or {}
        self._detail_lock = asyncio.Lock()
        self._answer_timeout_ms = answer_timeout_ms
        self._listener = HttpListener(
            self._answer, host=host, port=port, path=path, refusals=refusals
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._measuring: asyncio.Task[list[Family | HistogramFamily]] | None = None
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    @property
    def host(self) -> str:
        """Address it listens on."""
        return self._listener.host

    @property
    def port(self) -> int:
        """Port it listens on, after ``start``."""
        return self._listener.port

    def start(self) -> None:
        """Start listening; to be called on the event loop.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        self._loop = asyncio.get_running_loop()
        self._listener.start()
        if self._path is None:
            _log.info("metrics and health are at http://%s:%d", self.host, self.port)

    async def stop(self) -> None:
        """Stop listening; running requests are answered."""
        await self._listener.stop()

    # On the HTTP thread -----------------------------------------------------------------------

    async def _answer(self, target: str) -> HttpAnswer:
        path, _, query = target.partition("?")
        assert self._loop is not None
        if path in self._details:
            return await self._detail(self._loop, self._details[path], dict(parse_qsl(query)))
        if path not in ("/metrics", "/health"):
            return NOT_FOUND
        try:
            health = await on_loop(self._loop, self._meter.check_health(), self._answer_timeout_ms)
        except TimeoutError:
            problem = f"the event loop has not responded for {self._answer_timeout_ms} ms"
            return _health_answer(
                {"status": "failing", "problems": [problem], "warnings": []}, is_well=False
            )
        if path == "/health":
            return _health_answer(health.describe(), is_well=health.is_well)
        try:
            families = await asyncio.shield(self._measured(self._loop))
        except TimeoutError:
            return _TOO_LONG
        return HttpAnswer(HTTPStatus.OK, _TEXT, generate_latest(self._process) + text_of(families))

    async def _detail(
        self, loop: asyncio.AbstractEventLoop, measure: Detail, query: Mapping[str, str]
    ) -> HttpAnswer:
        try:
            async with self._detail_lock:
                families = await on_loop(loop, measure(query), _MEASURE_TIMEOUT_MS)
        except TimeoutError:
            return _TOO_LONG
        except InvalidOption as error:
            return HttpAnswer(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n".encode())
        return HttpAnswer(HTTPStatus.OK, _TEXT, text_of(families))

    def _measured(
        self, loop: asyncio.AbstractEventLoop
    ) -> "asyncio.Task[list[Family | HistogramFamily]]":
        """Return the running measurement, or start one."""
        if self._measuring is None or self._measuring.done():
            work = on_loop(loop, self._meter.measure(), _MEASURE_TIMEOUT_MS)
            self._measuring = asyncio.get_running_loop().create_task(work)
        return self._measuring


def _health_answer(description: Mapping[str, Any], *, is_well: bool) -> HttpAnswer:
    status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
    return HttpAnswer(status, _JSON, json.dumps(description, indent=2).encode() + b"\n")


def single(name: str, text: str, value: float, *, is_counter: bool = False) -> Family:
    """Return a metric of one series without labels."""
    return Family(name, text, is_counter=is_counter, values={(): float(value)})


def refusals_by_limit(refusals: Refusals) -> Family:
    """Return the counts of refusals; every limit has a series."""
    family = Family(
        "reput_limit_refusals_total",
        "Refusals by limit.",
        ("limit",),
        is_counter=True,
    )
    family.values = {(limit.name,): 0.0 for limit in limits.declared()}
    family.values.update(((name,), float(count)) for name, count in refusals.counts.items())
    return family


def tls_handshakes(tls: TlsAcceptor | None) -> Family:
    """Return the counts of connections that began, or should have begun, with a handshake."""
    counts = {} if tls is None else tls.counts
    values: dict[tuple[str, ...], float]
    values = {(str(result),): float(counts.get(result, 0)) for result in Handshake}
    text = "Connections by the result of their TLS handshake."
    return Family("reput_tls_handshakes_total", text, ("result",), is_counter=True, values=values)


def proxy_headers(proxies: ProxyAcceptor | None) -> Family:
    """Return the counts of connections of proxies by their header."""
    counts = {} if proxies is None else proxies.counts
    values: dict[tuple[str, ...], float]
    values = {(str(result),): float(counts.get(result, 0)) for result in HeaderResult}
    text = "Connections of proxies by the result of their PROXY header."
    return Family("reput_proxy_headers_total", text, ("result",), is_counter=True, values=values)


class Turns:
    """Lets a long measurement pause for other tasks of the event loop."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._slice_s = slice_s
        self._deadline = time.perf_counter() + slice_s

    async def rest(self) -> None:
        """Pause for other tasks, if the interval has passed."""
        if time.perf_counter() >= self._deadline:
            await asyncio.sleep(0)
            self._deadline = time.perf_counter() + self._slice_s


Part = Callable[[Turns], AsyncIterator[Family] | AsyncIterator[HistogramFamily]]
"""Measures some families; calls ``rest`` where it can pause."""


async def gather(*parts: Part) -> list[Family | HistogramFamily]:
    """Return the families of all parts, and a metric of failed parts.

    A table that cannot be measured must not hide all others.
    """
    turns, families = Turns(), []
    failed = Family("reput_metrics_part_failing", "1 if the part cannot be measured.", ("part",))
    for part in parts:
        try:
            async for family in part(turns):
                families.append(family)
                await turns.rest()
        except Exception:  # noqa: BLE001 - the outermost edge of a part
            name = getattr(part, "__name__", "").strip("_")
            _log.exception("metrics: %s cannot be measured", name)
            failed.values[name,] = 1.0
    return [*families, failed]


# --- the text -----------------------------------------------------------------------------------


def text_of(families: Iterable[Family | HistogramFamily]) -> bytes:
    """Return families in Prometheus' text format, with the number of omitted series."""
    collector = _Collector(families)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


class _Collector(Collector):
    """Adapter to prometheus_client."""

    def __init__(self, families: Iterable[Family | HistogramFamily]) -> None:
        self._families = list(families)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names are known only when metrics are collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics in the form of prometheus_client."""
        left_out = 0
        for family in self._families:
            if isinstance(family, HistogramFamily):
                buckets = [
                    ("+Inf" if math.isinf(bound) else str(bound), count)
                    for bound, count in family.buckets
                ]
                yield HistogramMetricFamily(family.name, family.help, buckets, family.sum_s)
                continue
            kind: Callable[..., Any] = (
                CounterMetricFamily if family.is_counter else GaugeMetricFamily
            )
            metric = kind(family.name, family.help, labels=family.labels)
            for labels, value in family.values.items():
                if all(map(_is_writable, labels)):
                    metric.add_metric(labels, value)
                else:
                    left_out += 1
            yield metric
        yield GaugeMetricFamily(LEFT_OUT, "Series whose names are not valid UTF-8.", value=left_out)


def _is_writable(label: str) -> bool:
    try:
        label.encode()
    except UnicodeEncodeError:
        return False
    return True
