"""Metrics of streams, from events as Spark sends them. Without Spark's JVM."""

import json
import sys
from typing import Any

import pytest
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

import reput.spark
from reput.extras import ExtraMissing
from reput.format.message import REASONS, Verdict
from reput.spark.stream_metrics import ENDED_MAX, StreamListener
from reput.spark.streaming.positions import LAG, SOURCE, QueueKey, encode

ID, RUN = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
PLACE = "topic Orders of name server 10.0.0.5:9876"
AT_S = 1_763_971_200
AT = "2025-11-24T08:00:00.000Z"
QUEUES = [QueueKey("Orders", "broker-a", number) for number in range(3)]


def source(end: Any, latest: Any, row_count: int = 0) -> dict[str, Any]:
    return {
        "description": "PythonMicroBatchStream@1",
        "startOffset": "{}",
        "endOffset": json.dumps(end),
        "latestOffset": json.dumps(latest),
        "numInputRows": row_count,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
        "metrics": {},
    }


def latest(*ends: int, starts: Any = None, source: str = PLACE, **lag: int) -> dict[str, Any]:
    positions = dict(zip(QUEUES, ends, strict=False))
    return {**encode(positions, starts or {}), LAG: lag, SOURCE: source}


def progress(*sources: Any, name: str | None = "bills", observed: Any = None) -> QueryProgressEvent:
    return QueryProgressEvent(
        StreamingQueryProgress.fromJson(
            {
                "id": ID,
                "runId": RUN,
                "name": name,
                "timestamp": AT,
                "batchId": 3,
                "batchDuration": 7,
                "numInputRows": 0,
                "inputRowsPerSecond": 0.0,
                "processedRowsPerSecond": 0.0,
                "durationMs": {},
                "eventTime": {},
                "stateOperators": [],
                "sources": list(sources),
                "sink": {"description": "noop", "numOutputRows": 0, "metrics": {}},
                "observedMetrics": observed or {},
            }
        )
    )


def started(listener: StreamListener, query_id: str = ID, name: str | None = "bills") -> None:
    listener.onQueryStarted(
        QueryStartedEvent.fromJson({"id": query_id, "runId": RUN, "name": name, "timestamp": AT})
    )


def ended(listener: StreamListener, error: str | None, query_id: str = ID) -> None:
    listener.onQueryTerminated(
        QueryTerminatedEvent.fromJson(
            {"id": query_id, "runId": RUN, "exception": error, "errorClassOnException": None}
        )
    )


def series(listener: StreamListener, name: str) -> dict[tuple[str, ...], float]:
    return listener.measured()[f"reput_stream_{name}"].values


@pytest.fixture
def listener() -> StreamListener:
    made = StreamListener()
    started(made)
    return made


def test_lag_by_queue(listener: StreamListener) -> None:
    end = encode({QUEUES[0]: 40, QUEUES[1]: 12}, {})
    report = latest(50, 12, 107, starts={QUEUES[2]: 100}, messages=17, bytes=9_000, dataLosses=2)
    report[LAG]["oldestStoreTimestamp"] = 1_500
    listener.onQueryProgress(progress(source(end, report, 30)))
    listener.onQueryProgress(progress(source(end, report, 12)))
    of = ("bills", PLACE, "Orders", "broker-a")
    assert series(listener, "lag_messages") == {(*of, "0"): 10, (*of, "1"): 0, (*of, "2"): 7}
    assert series(listener, "lag_bytes") == {("bills", PLACE): 9_000}
    assert series(listener, "oldest_message_timestamp_seconds") == {("bills", PLACE): 1.5}
    assert series(listener, "rows_total") == {("bills", PLACE): 42}
    assert series(listener, "data_losses_total") == {("bills", PLACE): 2}
    assert series(listener, "checksum_failures_total") == {("bills", PLACE): 0}
    assert series(listener, "progress_timestamp_seconds") == {("bills",): AT_S}
    # Idle queries live; ended ones have no lag any more.
    listener.onQueryIdle(
        QueryIdleEvent.fromJson({"id": ID, "runId": RUN, "timestamp": AT.replace(":00.", ":09.")})
    )
    assert series(listener, "progress_timestamp_seconds") == {("bills",): AT_S + 9}
    ended(listener, None)
    assert series(listener, "lag_messages") == series(listener, "failures_total") == {}
    assert series(listener, "rows_total") == {("bills", PLACE): 42}


def test_other_sources_are_left_out(listener: StreamListener) -> None:
    kafka = source({"topic": {"0": 5}}, {"topic": {"0": 9}}, 5)
    listener.onQueryProgress(progress(kafka, source("17", None), source(5, 6)))
    assert all(not family.values for family in listener.measured().values())


def test_a_source_without_a_report_is_named_by_its_topics(listener: StreamListener) -> None:
    """PySpark 4.0 and 4.1."""
    listener.onQueryProgress(progress(source(encode({QUEUES[0]: 40}, {}), None, 5)))
    assert series(listener, "rows_total") == {("bills", "topics Orders"): 5}
    assert series(listener, "lag_messages") == {}


@pytest.mark.parametrize(
    ("error", "reason", "counted"),
    [
        (REASONS[Verdict.BAD_CRC], "checksum", "checksum_failures_total"),
        (REASONS[Verdict.BAD_RECORD_CRC], "checksum", "checksum_failures_total"),
        ("DataLoss: queue Orders/0 (failOnDataLoss=false reads", "data_loss", "data_losses_total"),
        ("the sink is down", "other", None),
    ],
)
def test_failures_by_reason(
    listener: StreamListener, error: str, reason: str, counted: str | None
) -> None:
    listener.onQueryProgress(progress(source(encode({}, {}), latest())))
    ended(listener, f"[STREAM_FAILED] ... {error} ...")
    assert series(listener, "failures_total") == {("bills", reason): 1}
    for name in ("checksum_failures_total", "data_losses_total"):
        assert series(listener, name) == {("bills", PLACE): float(name == counted)}


def test_damage_that_was_observed(listener: StreamListener) -> None:
    ours = source(encode({}, {}), latest())
    counts = {"damaged": 5, "checksums": 2}
    listener.onQueryProgress(progress(ours, observed={"reput.damage:": counts, "mine": {"a": 1}}))
    listener.onQueryProgress(progress(ours, observed={"reput.damage:": counts}))
    assert series(listener, "damaged_rows_total") == {("bills", PLACE): 10}
    assert series(listener, "checksum_failures_total") == {("bills", PLACE): 4}
    # Two sources have separate names.
    other = source(encode({}, {}), latest(source="b"))
    listener.onQueryProgress(progress(ours, other, observed={"reput.damage:b": counts}))
    assert series(listener, "damaged_rows_total") == {("bills", PLACE): 10, ("bills", "b"): 5}


def test_series_are_bounded() -> None:
    listener = StreamListener()
    for number in range(ENDED_MAX + 30):
        query_id = f"00000000-0000-0000-0000-{number:012}"
        started(listener, query_id, None)
        ended(listener, "down", query_id)
    assert len(series(listener, "failures_total")) == ENDED_MAX
    names = [name for name, _ in series(listener, "failures_total")]
    assert names[-1].endswith("129")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:

    for name in (
        "prometheus_client",
        "reput.spark.stream_metrics",
        "reput.remoting.metrics_server",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr(reput.spark, "stream_metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ExtraMissing, match=r"pip install '\.\[server\]'"):
        reput.spark._listeners()
