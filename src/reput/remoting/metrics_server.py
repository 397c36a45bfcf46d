"""/metrics for Prometheus, and /health, of a server whose tables belong to the thread of its loop.

    HTTP thread  --asks-->  the loop's thread: measure, look  --values-->  HTTP thread: text

Tables are read on the loop's thread alone, in slices, so that a scrape of many queues holds nobody
up. Who asks for /metrics while they are measured gets what that comes to. A loop that does not
answer in time is a red /health. A name that cannot be written (no UTF-8) costs its own series, and
a family that cannot be measured costs that family.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar, Protocol, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from reput import limits
from reput.limits import Refusals
from reput.remoting.health import Health
from reput.remoting.http_listener import NOT_FOUND, HttpAnswer, HttpListener, on_loop

ANSWER_TIMEOUT_MS = 5_000
"""The loop has to answer within this."""
_MEASURE_TIMEOUT_MS = 30_000
"""How long measuring may take; it lets everything else go first."""
SLICE_S = 0.002
"""How long a measurement goes on before others get their turn, seconds."""

LEFT_OUT = "reput_metrics_series_left_out"
"""The metric that the text has beside those that were measured."""

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"

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


class Meter(Protocol):
    """Measures a server; called on its loop."""

    async def look(self) -> Health:
        """Return how the server is."""

    async def measure(self) -> list[Family | Histogram]:
        """Return all metrics."""


class MetricsServer:
    """Serves a server's metrics and health over HTTP.

    Args:
        meter: What measures it.
        host: Address to listen on.
        port: 0 for any that is free.
        answer_timeout_ms: The loop has to answer within this.
        refusals: Where refusals by limits are counted.
    """

    def __init__(
        self,
        meter: Meter,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        answer_timeout_ms: int = ANSWER_TIMEOUT_MS,
        refusals: Refusals | None = None,
    ) -> None:
        self._meter = meter
        self._answer_timeout_ms = answer_timeout_ms
        self._listener = HttpListener(self._answer, host=host, port=port, refusals=refusals)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._measuring: asyncio.Task[list[Family | Histogram]] | None = None
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    @property
    def host(self) -> str:
        """The address it listens on."""
        return self._listener.host

    @property
    def port(self) -> int:
        """What it listens on, once it is started."""
        return self._listener.port

    def start(self) -> None:
        """Begin to listen; on the loop's thread.

        Raises:
            OSError: The address is in use, or not ours.
        """
        self._loop = asyncio.get_running_loop()
        self._listener.start()
        _log.info("metrics and health are at http://%s:%d", self.host, self.port)

    async def stop(self) -> None:
        """Stop listening; who asks at the moment gets the answer."""
        await self._listener.stop()

    # On the HTTP thread -----------------------------------------------------------------------

    async def _answer(self, path: str) -> HttpAnswer:
        if path not in ("/metrics", "/health"):
            return NOT_FOUND
        assert self._loop is not None
        try:
            health = await on_loop(self._loop, self._meter.look(), self._answer_timeout_ms)
        except TimeoutError:
            problem = f"the server's loop has not answered for {self._answer_timeout_ms} ms"
            return _health_answer(
                {"status": "failing", "problems": [problem], "warnings": []}, is_well=False
            )
        if path == "/health":
            return _health_answer(health.describe(), is_well=health.is_well)
        try:
            families = await asyncio.shield(self._measured(self._loop))
        except TimeoutError:
            text = f"it takes more than {_MEASURE_TIMEOUT_MS} ms to measure\n".encode()
            return HttpAnswer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", text)
        return HttpAnswer(HTTPStatus.OK, _TEXT, generate_latest(self._process) + text_of(families))

    def _measured(
        self, loop: asyncio.AbstractEventLoop
    ) -> "asyncio.Task[list[Family | Histogram]]":
        """Return the measuring that is under way, or a new one."""
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
    """Return what limits have refused; every limit has its series."""
    family = Family(
        "reput_limit_refusals_total",
        "What was refused, by the limit that it was over.",
        ("limit",),
        is_counter=True,
    )
    family.values = {(limit.name,): 0.0 for limit in limits.LIMITS}
    family.values.update(((name,), float(count)) for name, count in refusals.counts.items())
    return family


class Turns:
    """When a long measurement lets others have their turn of the loop."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._slice_s = slice_s
        self._deadline = time.perf_counter() + slice_s

    async def rest(self) -> None:
        """Let others have their turn, if it is time."""
        if time.perf_counter() >= self._deadline:
            await asyncio.sleep(0)
            self._deadline = time.perf_counter() + self._slice_s


Part = Callable[[Turns], AsyncIterator[Family] | AsyncIterator[Histogram]]
"""Measures some families; calls ``rest`` where others may have their turn."""


async def gather(*parts: Part) -> list[Family | Histogram]:
    """Return the families of all parts, and which of them could not be measured.

    One table that cannot be measured must not hide all others.
    """
    turns, families = Turns(), []
    failed = Family("reput_metrics_part_failing", "1 if it cannot be measured.", ("part",))
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


def text_of(families: Iterable[Family | Histogram]) -> bytes:
    """Return families as Prometheus reads them, and how many series were left out."""
    collector = _Collector(families)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


class _Collector(Collector):
    """What prometheus_client asks."""

    def __init__(self, families: Iterable[Family | Histogram]) -> None:
        self._families = list(families)

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known when they are asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, as prometheus_client has them."""
        left_out = 0
        for family in self._families:
            if isinstance(family, Histogram):
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
        yield GaugeMetricFamily(LEFT_OUT, "Series whose names are no UTF-8.", value=left_out)


def _is_writable(label: str) -> bool:
    try:
        label.encode()
    except UnicodeEncodeError:
        return False
    return True
