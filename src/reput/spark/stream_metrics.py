"""Metrics of streams for Prometheus: ``reput.spark.stream_listener(port=9109)``.

    Spark  --events-->  StreamListener  --families-->  /metrics

Spark calls a ``StreamingQueryListener`` on the driver after each micro-batch. Ends of queues and
the lag come from the stream's own report, ``latestOffset`` (PySpark 4.2), damaged rows from
``observed``: tasks of a Python source have no other connection to the driver.
"""

import asyncio
import functools
import json
import operator
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from reput.format.message import REASONS, Verdict
from reput.remoting.http_listener import HttpAnswer, HttpListener
from reput.remoting.metrics_server import Family, text_of
from reput.spark.streaming.positions import LAG, VERSION, QueueKey, decode, lag_of

ENDED_MAX: Final = 100
"""Number of ended queries that keep their series."""
_OBSERVATION = "reput.damage"
_CHECKSUMS = (REASONS[Verdict.BAD_CRC], REASONS[Verdict.BAD_RECORD_CRC])
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_NOT_FOUND = HttpAnswer(HTTPStatus.NOT_FOUND, "text/plain", b"available: /metrics\n")

_BY_SOURCE = ("query", "source")
_FAMILIES: Final = (
    ("lag_messages", "Messages after the last micro-batch.",
     (*_BY_SOURCE, "topic", "broker", "queue")),
    ("lag_bytes", "Bytes of log after the last micro-batch.", _BY_SOURCE),
    ("oldest_message_timestamp_seconds", "Store time of the first of these messages.", _BY_SOURCE),
    ("rows_total", "Rows that were read.", _BY_SOURCE),
    ("data_losses_total", "Queues whose messages were gone, since the query started.", _BY_SOURCE),
    ("checksum_failures_total", "Records with a wrong checksum.", _BY_SOURCE),
    ("damaged_rows_total", "Rows with damage of any kind, counted by observed.", _BY_SOURCE),
    ("failures_total", "Queries that ended with an error.", ("query", "reason")),
    ("progress_timestamp_seconds", "Time of the last micro-batch, or of the last look.",
     ("query",)),
)  # fmt: skip
"""Name after ``reput_stream_``, meaning and labels of each metric."""

_Labels = tuple[str, ...]


def observed(frame: DataFrame, source: str = "", column: str = "_corrupt_record") -> DataFrame:
    """Return a frame whose damaged rows are counted by ``StreamListener``.

    Args:
        frame: A stream with mode PERMISSIVE or SALVAGE, as loaded.
        source: Label ``source`` of the counts; empty: the query's only source.
        column: The column with the error of a row.
    """
    damage = F.col(column)
    is_checksum = functools.reduce(operator.or_, map(damage.contains, _CHECKSUMS))
    return frame.observe(
        f"{_OBSERVATION}:{source}",
        F.count(damage).alias("damaged"),
        F.count(F.when(is_checksum, 1)).alias("checksums"),
    )


@dataclass
class _Query:
    """State of a query."""

    name: str
    source: str = ""
    """The only source of the query; empty if it has several."""
    gauges: dict[str, dict[_Labels, float]] = field(default_factory=dict)
    """Values of the last progress, by metric."""
    counts: dict[str, dict[_Labels, float]] = field(default_factory=dict)
    """Sums, by metric."""
    has_ended: bool = False

    def add(self, metric: str, labels: _Labels, count: float) -> None:
        values = self.counts.setdefault(metric, {})
        values[labels] = values.get(labels, 0) + count


class StreamListener(StreamingQueryListener):
    """Keeps metrics of all streams of a session that read with ``format("rocketmq")``.

    To be added with ``spark.streams.addListener``. Series of a query are those of its last
    micro-batch; counts begin with the listener. Only sources of this package are counted.
    """

    def __init__(self) -> None:
        self._queries: dict[str, _Query] = {}
        self._lock = threading.Lock()  # protects _queries: Spark and HTTP have separate threads
        self._http: HttpListener | None = None

    # Events -----------------------------------------------------------------------------------

    def onQueryStarted(self, event: Any) -> None:
        """Begin a query, or continue one that was restarted."""
        with self._lock:
            query = self._query(str(event.id), event.name)
            query.has_ended = False

    def onQueryProgress(self, event: Any) -> None:
        """Take the values of a micro-batch."""
        progress = event.progress
        with self._lock:
            query = self._query(str(progress.id), progress.name)
            _take(query, progress)

    def onQueryIdle(self, event: Any) -> None:
        """Record that a query is alive: there was nothing to read."""
        with self._lock:
            query = self._queries.get(str(event.id))
            if query is not None:
                _set_time(query, event.timestamp)

    def onQueryTerminated(self, event: Any) -> None:
        """Count a failure, and forget the lag, which an ended query does not have."""
        with self._lock:
            query = self._queries.get(str(event.id))
            if query is None:
                return
            query.has_ended = True
            query.gauges.clear()
            if event.exception:
                _count_failure(query, event.exception)
            ended = [key for key, value in self._queries.items() if value.has_ended]
            for key in ended[: -ENDED_MAX or None]:
                del self._queries[key]

    def _query(self, query_id: str, name: str | None) -> _Query:
        query = self._queries.pop(query_id, None) or _Query(name or query_id)
        self._queries[query_id] = query  # the last one to be forgotten
        return query

    # Metrics ----------------------------------------------------------------------------------

    def measured(self) -> dict[str, Family]:
        """Return all metrics with their series, by name."""
        families = {
            name: Family(f"reput_stream_{name}", text, labels, is_counter=name.endswith("_total"))
            for name, text, labels in _FAMILIES
        }
        with self._lock:
            for query in self._queries.values():
                for values in (query.gauges, query.counts):
                    for name, series in values.items():
                        for labels, value in series.items():
                            known = families[name].values
                            known[query.name, *labels] = known.get((query.name, *labels), 0) + value
        return {family.name: family for family in families.values()}

    @property
    def port(self) -> int | None:
        """Port of ``/metrics``; None if it is not served."""
        return None if self._http is None else self._http.port

    def serve(self, port: int, host: str = "127.0.0.1") -> None:
        """Serve ``/metrics`` until ``close``.

        Args:
            port: Port to listen on; 0 for any free port.
            host: Address to listen on; ``0.0.0.0`` for other machines.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        self.close()
        http = HttpListener(self._answer, host=host, port=port)
        http.start()
        self._http = http

    def close(self) -> None:
        """Stop serving."""
        http, self._http = self._http, None
        if http is not None:
            asyncio.run(http.stop())

    async def _answer(self, target: str) -> HttpAnswer:
        if target.partition("?")[0] != "/metrics":
            return _NOT_FOUND
        return HttpAnswer(HTTPStatus.OK, _TEXT, text_of(self.measured().values()))


def _take(query: _Query, progress: Any) -> None:
    """Set the values of a progress report."""
    ours = []
    gauges: dict[str, dict[_Labels, float]] = {}
    for source in progress.sources:
        end, latest = _position(source.endOffset), _position(source.latestOffset)
        if VERSION not in end and LAG not in latest:
            continue  # of another format
        after, _ = decode(end)
        text = lag_of(latest).source if latest else ""
        text = text or _places_of(after)
        ours.append(text)
        query.add("rows_total", (text,), source.numInputRows)
        if latest:
            _take_lag(query, gauges, text, after, latest)
    query.gauges = gauges
    if not ours:
        return
    query.source = ours[0] if len(ours) == 1 else ""
    for text in ours:
        for name in ("checksum_failures_total", "data_losses_total"):
            query.counts.setdefault(name, {}).setdefault((text,), 0)
    _set_time(query, progress.timestamp)
    for name, row in progress.observedMetrics.items():
        kind, _, text = name.partition(":")
        if kind == _OBSERVATION:
            query.add("damaged_rows_total", (text or query.source,), row["damaged"])
            query.add("checksum_failures_total", (text or query.source,), row["checksums"])


def _take_lag(
    query: _Query,
    gauges: dict[str, dict[_Labels, float]],
    text: str,
    after: Mapping[QueueKey, int],
    latest: Mapping[str, Any],
) -> None:
    lag = lag_of(latest)
    ends, starts = decode(latest)
    for key, end in ends.items():
        labels = (text, key.topic, key.broker, str(key.queue_id))
        position = after.get(key, starts.get(key, 0))
        gauges.setdefault("lag_messages", {})[labels] = max(end - position, 0)
    gauges.setdefault("lag_bytes", {})[text,] = lag.bytes
    if lag.oldest_store_timestamp is not None:
        seconds = lag.oldest_store_timestamp / 1000
        gauges.setdefault("oldest_message_timestamp_seconds", {})[text,] = seconds
    query.counts.setdefault("data_losses_total", {})[text,] = lag.data_losses


def _count_failure(query: _Query, error: str) -> None:
    reason = "other"
    if any(text in error for text in _CHECKSUMS):
        reason = "checksum"
        query.add("checksum_failures_total", (query.source,), 1)
    elif "DataLoss" in error or "failOnDataLoss=false" in error:
        reason = "data_loss"
        query.add("data_losses_total", (query.source,), 1)
    query.add("failures_total", (reason,), 1)


def _set_time(query: _Query, timestamp: str) -> None:
    seconds = datetime.fromisoformat(timestamp).timestamp()
    query.gauges.setdefault("progress_timestamp_seconds", {})[()] = seconds


def _position(text: str | None) -> dict[str, Any]:
    """Return the position in a report; empty if it is missing or belongs to another source."""
    try:
        parsed = json.loads(text or "null")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _places_of(positions: Mapping[QueueKey, int]) -> str:
    """Return a name for a source of PySpark 4.0 or 4.1, which has no report."""
    topics = sorted({key.topic for key in positions})
    return f"topics {', '.join(topics[:5])}{', ...' if len(topics) > 5 else ''}"
