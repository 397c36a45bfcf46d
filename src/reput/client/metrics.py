"""Metrics of producers and consumers.

    producer.metrics()["reput_client_sends_total"].values["orders", "Orders", "ok"]

    from prometheus_client import REGISTRY          # pip install prometheus-client
    REGISTRY.register(ClientCollector(producer, consumer))

The counters are always on: a send or a call of a listener adds to a few numbers, which are
assembled when they are read, in any thread. The number of series is bounded: the first
``TOPICS_MAX`` topics of a client have separate ones, all others share the topic ``_other``.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from reput.client.connection_events import PeerKind
from reput.client.core.consume_rates import ConsumeRates
from reput.client.core.durations import BOUNDS_MS, Durations
from reput.client.core.send_counts import OTHER, TOPICS_MAX, SendCounts
from reput.format.bodies import MessageQueue

if TYPE_CHECKING:
    from prometheus_client.core import Metric as PrometheusMetric

    from reput.client.instance import ClientInstance


class MetricKind(enum.Enum):
    """Kind of a metric."""

    COUNTER = "counter"
    """Sum since the client was made."""
    GAUGE = "gauge"
    """Current value."""
    HISTOGRAM = "histogram"
    """Distribution since the client was made."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of durations."""

    buckets: tuple[tuple[float, int], ...]
    """Upper bounds in seconds, each with the number of durations up to it; the last is infinite."""
    sum_s: float

    @property
    def count(self) -> int:
        """Number of durations."""
        return self.buckets[-1][1]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its series."""

    name: str
    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    help: str
    values: dict[tuple[str, ...], float | Distribution] = field(default_factory=dict)
    """Value of each series, by the values of its labels."""


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_BY_TOPIC = ("group", "topic")
_BY_RESULT = ("group", "topic", "result")

_OF_PRODUCERS = (
    Metric("reput_client_sends_total", _COUNTER, "sends", _BY_RESULT,
           "Sends that have ended; a batch is one send."),
    Metric("reput_client_send_retries_total", _COUNTER, "attempts", _BY_TOPIC,
           "Attempts after the first of each send."),
    Metric("reput_client_send_duration_seconds", _HISTOGRAM, "seconds", _BY_TOPIC,
           "Durations of sends, with their retries."),
)  # fmt: skip
_OF_CONSUMERS = (
    Metric("reput_client_messages_received_total", _COUNTER, "messages", _BY_TOPIC,
           "Messages that were pulled or popped."),
    Metric("reput_client_messages_consumed_total", _COUNTER, "messages", _BY_RESULT,
           "Messages by the result of their consumption."),
    Metric("reput_client_dead_letters_total", _COUNTER, "messages", _BY_TOPIC,
           "Messages that went to the dead letters of the group."),
    Metric("reput_client_listener_duration_seconds", _HISTOGRAM, "seconds", _BY_TOPIC,
           "Durations of the listener's calls."),
    Metric("reput_client_queues", _GAUGE, "queues", _BY_TOPIC,
           "Queues that the client reads."),
    Metric("reput_client_lag_messages", _GAUGE, "messages", _BY_TOPIC,
           "Messages of these queues that are not consumed."),
)  # fmt: skip
_OF_CONNECTIONS = (
    Metric("reput_client_connections", _GAUGE, "connections", ("peer",),
           "Open connections."),
    Metric("reput_client_connects_total", _COUNTER, "connections", ("peer",),
           "Connections that were opened."),
    Metric("reput_client_reconnects_total", _COUNTER, "connections", ("peer",),
           "Connections that were opened to an address that had one before."),
)  # fmt: skip

METRICS = (*_OF_PRODUCERS, *_OF_CONSUMERS, *_OF_CONNECTIONS)
"""All metrics, without values."""


def producer_metrics(
    group: str, sends_by_topic: SendCounts, instance: "ClientInstance | None"
) -> dict[str, Metric]:
    """Return the metrics of a producer by name.

    Args:
        group: Group of the producer.
        sends_by_topic: Counts of its sends.
        instance: Its client instance; None if it is not started.
    """
    metrics = _empty((*_OF_PRODUCERS, *_OF_CONNECTIONS))
    for topic, sends in list(sends_by_topic.items()):
        for result, count in list(sends.results.items()):
            _add(metrics, "reput_client_sends_total", (group, topic, result), count)
        _add(metrics, "reput_client_send_retries_total", (group, topic), sends.retry_count)
        durations = _histogram(sends.durations)
        _add(metrics, "reput_client_send_duration_seconds", (group, topic), durations)
    _add_connections(metrics, instance)
    return metrics


def consumer_metrics(
    group: str,
    rates_by_topic: Mapping[str, ConsumeRates],
    queues: Iterable[MessageQueue],
    lags: Mapping[MessageQueue, int],
    instance: "ClientInstance | None",
) -> dict[str, Metric]:
    """Return the metrics of a consumer by name.

    Args:
        group: Group of the consumer.
        rates_by_topic: Counts of its messages.
        queues: Its queues.
        lags: Lag of each queue that has one.
        instance: Its client instance; None if it is not started.
    """
    metrics = _empty((*_OF_CONSUMERS, *_OF_CONNECTIONS))
    named: dict[str, None] = {}

    def label(topic: str) -> tuple[str, str]:
        if topic not in named and len(named) >= TOPICS_MAX:
            return group, OTHER
        named[topic] = None
        return group, topic

    for topic, rates in list(rates_by_topic.items()):
        series = label(topic)
        _add(metrics, "reput_client_messages_received_total", series, rates.received_count)
        results = (("success", rates.consumed_count), ("failed", rates.failed_count))
        for result, count in results:
            _add(metrics, "reput_client_messages_consumed_total", (*series, result), count)
        _add(metrics, "reput_client_dead_letters_total", series, rates.dead_count)
        durations = _histogram(rates.listener_durations)
        if durations.count:
            _add(metrics, "reput_client_listener_duration_seconds", series, durations)
    for queue in queues:
        _add(metrics, "reput_client_queues", label(queue.topic), 1)
    for queue, lag in lags.items():
        _add(metrics, "reput_client_lag_messages", label(queue.topic), lag)
    _add_connections(metrics, instance)
    return metrics


class MeteredClient(Protocol):
    """A producer or consumer, of ``reput.client`` or ``reput.client.blocking``."""

    def metrics(self) -> dict[str, Metric]:
        """Return the metrics of the client by name."""


class ClientCollector:
    """Metrics of clients for a registry of ``prometheus_client``.

    Clients of one group are added up. Clients that share connections count them once.

    Args:
        clients: Producers and consumers, with or without ``await``.
    """

    def __init__(self, *clients: MeteredClient) -> None:
        self._clients = clients

    def describe(self) -> Iterable["PrometheusMetric"]:
        """Return nothing: names are not known before they are read."""
        return ()

    def collect(self) -> Iterator["PrometheusMetric"]:
        """Yield all metrics, as ``prometheus_client`` asks for them.

        Raises:
            ModuleNotFoundError: ``prometheus_client`` is not installed.
        """
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        for metric in self._totals().values():
            family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
            if metric.kind is MetricKind.COUNTER:
                family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            elif metric.kind is MetricKind.GAUGE:
                family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            else:
                family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in sorted(metric.values.items()):
                if isinstance(family, HistogramMetricFamily):
                    assert isinstance(value, Distribution)
                    buckets = [(_bound(bound_s), count) for bound_s, count in value.buckets]
                    family.add_metric(labels, buckets, value.sum_s)
                else:
                    assert not isinstance(value, Distribution)
                    family.add_metric(labels, value)
            yield family

    def _totals(self) -> dict[str, Metric]:
        totals = _empty(METRICS)
        shared: set[int] = set()
        for client in self._clients:
            own = client.metrics()
            # The instance is the place of the connections: clients may share it.
            instance = getattr(getattr(client, "_client", client), "_instance", None)
            is_counted = id(instance) in shared
            shared.add(id(instance))
            for metric in own.values():
                if is_counted and metric.labels == ("peer",):
                    continue
                for labels, value in metric.values.items():
                    _add(totals, metric.name, labels, value)
        return totals


def _empty(metrics: Iterable[Metric]) -> dict[str, Metric]:
    return {
        metric.name: Metric(metric.name, metric.kind, metric.unit, metric.labels, metric.help)
        for metric in metrics
    }


def _add(
    metrics: Mapping[str, Metric], name: str, labels: tuple[str, ...], value: float | Distribution
) -> None:
    """Add a value to a series."""
    values = metrics[name].values
    known = values.get(labels)
    if isinstance(value, Distribution):
        if isinstance(known, Distribution):
            buckets = zip(known.buckets, value.buckets, strict=True)
            value = Distribution(
                tuple((bound_s, before + count) for (bound_s, before), (_, count) in buckets),
                known.sum_s + value.sum_s,
            )
    elif known is not None:
        assert not isinstance(known, Distribution)
        value += known
    values[labels] = value


def _add_connections(metrics: Mapping[str, Metric], instance: "ClientInstance | None") -> None:
    if instance is None:
        return
    counts = instance.connection_counts
    for name, by_kind in (
        ("reput_client_connections", instance.open_connections()),
        ("reput_client_connects_total", counts.opened),
        ("reput_client_reconnects_total", counts.reopened),
    ):
        for kind in PeerKind:
            _add(metrics, name, (kind.value,), by_kind[kind])


def _histogram(durations: Durations) -> Distribution:
    bounds_s = (*(bound_ms / 1000 for bound_ms in BOUNDS_MS), float("inf"))
    cumulative = accumulate(list(durations.counts))
    return Distribution(tuple(zip(bounds_s, cumulative, strict=True)), durations.sum_ms / 1000)


def _bound(bound_s: float) -> str:
    return "+Inf" if bound_s == float("inf") else repr(bound_s)
