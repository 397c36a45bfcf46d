"""Metrics for Prometheus, and the time that a measurement may take."""

import asyncio
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

import world
from reput import limits
from reput.broker.monitoring import queue_metrics
from reput.broker.monitoring.metrics import BrokerMeter, Names
from reput.broker.monitoring.rocketmq_metrics import RocketmqMeter
from reput.remoting.metrics_server import Family, HistogramFamily, MetricsServer
from reput.remoting.time_slices import run_whole
from world import Subject

SAMPLE = re.compile(r"^([a-z_]+)(\{[^}]*\})? (\S+)$", re.MULTILINE)


@pytest_asyncio.fixture
async def server(subject: Subject) -> AsyncIterator[MetricsServer]:
    metrics_server = MetricsServer(world.meter(subject.broker))
    metrics_server.start()
    yield metrics_server
    await metrics_server.stop()


def get(server: MetricsServer, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{server.port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def samples(server: MetricsServer) -> dict[str, float]:
    """Return the samples: name and labels -> value."""
    status, text = await asyncio.to_thread(get, server, "/metrics")
    assert status == 200, text
    return {name + labels: float(value) for name, labels, value in SAMPLE.findall(text)}


async def test_puts_are_counted(subject: Subject, server: MetricsServer) -> None:
    for _ in range(4):
        await subject.send("T", b"x" * 100)
    metrics = await samples(server)
    assert metrics['reput_topic_put_messages_total{topic="T"}'] == 5  # one is the fixture's
    assert metrics["reput_put_messages_total"] == 5
    written = metrics['reput_store_offset_bytes{kind="written"}']
    assert metrics["reput_put_bytes_total"] == written == subject.broker.store.log.written_offset
    frames = [metrics[f'reput_send_frames_total{{path="{path}"}}'] for path in ("kernel", "slow")]
    assert sum(frames) == 5
    assert metrics['reput_connections{port="main"}'] == 1
    assert metrics['reput_put_duration_seconds_bucket{le="+Inf"}'] == 5
    assert metrics["reput_put_duration_seconds_count"] == 5
    assert metrics['reput_put_duration_seconds_bucket{le="0.01"}'] <= 5
    assert metrics["reput_healthy"] == 1
    assert 0 < metrics[f'reput_disk_used_ratio{{folder="{subject.broker.store.root}"}}'] < 1
    assert metrics["process_resident_memory_bytes"] > 1_000_000


async def test_lag_is_reported_in_messages_and_in_time(
    subject: Subject, server: MetricsServer
) -> None:
    for _ in range(10):
        await subject.send("T", b"x", queue_id=1)
    broker = subject.broker
    broker.parts.deliveries.consumer_offsets.put("T", "G", 1, 7)
    broker.parts.deliveries.consumer_offsets.put("T", "G", 3, 0)
    broker.parts.deliveries.consumer_offsets.put("T", "Done", 1, 10)
    metrics = await samples(server)
    assert metrics['reput_group_lag_messages{group="G",topic="T"}'] == 3 + 1
    oldest_ms = broker.store.store_time("T", 3, 0)
    assert oldest_ms is not None
    age = metrics['reput_group_lag_seconds{group="G",topic="T"}']
    assert 0 <= age <= (broker.clock.now_ms() - oldest_ms) / 1000
    assert metrics['reput_group_lag_messages{group="Done",topic="T"}'] == 0
    assert metrics['reput_group_lag_seconds{group="Done",topic="T"}'] == 0


async def test_deliveries_to_groups_are_counted(subject: Subject, server: MetricsServer) -> None:
    await subject.pull("T", 3, consumer_group="G")
    await subject.pull("T", 3, 1, consumer_group="G")
    metrics = await samples(server)
    assert metrics['reput_group_got_messages_total{group="G",topic="T"}'] == 1
    assert metrics["reput_got_messages_total"] == 1
    assert metrics['reput_pulls_total{result="found"}'] == 1
    assert metrics['reput_pulls_total{result="empty"}'] == 1


def test_names_are_bounded_and_keep_their_series() -> None:
    names = Names(2)
    run_whole(names.keep([("b",), ("c",)]))
    run_whole(names.keep([("a",), ("b",), ("c",)]))
    assert [names.label((name,)) for name in "abc"] == [("_other",), ("b",), ("c",)]
    run_whole(names.keep([("a",), ("c",), ("d",)]))  # b was deleted: there is room for one
    assert [names.label((name,)) for name in "acd"] == [("a",), ("c",), ("_other",)]


async def test_series_beyond_the_bound_share_one(subject: Subject) -> None:
    topics = [f"Topic{i:02}" for i in range(20)]
    for topic in topics:
        await subject.send(topic)
        subject.parts.deliveries.consumer_offsets.put(topic, "G", 0, 0)
    families = {family.name: family for family in await world.meter(subject.broker, 5).measure()}
    puts = families["reput_topic_put_messages_total"].values
    assert len(puts) <= 5 + 1
    assert sum(puts.values()) == 21
    lags = families["reput_group_lag_messages"].values
    assert len(lags) == 5 + 1
    assert lags["_other", "_other"] == 15


def test_names_are_compared_in_slices_and_the_first_ones_win() -> None:
    names, count = Names(3), 10_000
    steps = list(names.keep((f"{i:05}",) for i in reversed(range(count))))
    assert len(steps) >= count // 1_000
    kept = [i for i in range(count) if names.label((f"{i:05}",)) != ("_other",)]
    assert kept == [0, 1, 2]


async def test_every_limit_has_its_count_of_refusals(
    subject: Subject, server: MetricsServer
) -> None:
    metrics = await samples(server)
    for limit in limits.declared():
        assert metrics[f'reput_limit_refusals_total{{limit="{limit.name}"}}'] == 0
    await subject.ask(25, body=b"x" * (limits.SETTINGS_BYTES.maximum + 1))
    metrics = await samples(server)
    assert metrics['reput_limit_refusals_total{limit="settings_bytes"}'] == 1


async def test_counts_without_a_series_are_counted(subject: Subject, server: MetricsServer) -> None:
    assert (await samples(server))["reput_stats_uncounted_total"] == 0
    subject.parts.deliveries.stats.series_max = 0
    subject.parts.deliveries.stats.acknowledged("T", "new")
    assert (await samples(server))["reput_stats_uncounted_total"] > 0


async def test_skipped_records_are_counted_and_named(
    subject: Subject, server: MetricsServer
) -> None:
    assert (await samples(server))['reput_records_passed_over_total{loop="pops"}'] == 0
    subject.parts.quarantine.add("pops", "rmq_sys_REVIVE_LOG_C 0 17", "bit set \ud800")
    subject.parts.quarantine.add("timers", "rmq_sys_wheel_timer 0 1", ValueError("no time"))
    metrics = await samples(server)
    assert metrics['reput_records_passed_over_total{loop="pops"}'] == 1
    status, text = await asyncio.to_thread(get, server, "/health")
    health = json.loads(text)
    assert status == 200
    assert [line.partition(" has")[0] for line in health["warnings"] if "passed" in line] == [
        "loop pops", "loop timers",
    ]  # fmt: skip
    assert health["passed_over"][0] == {
        "loop": "timers", "place": "rmq_sys_wheel_timer 0 1", "reason": "no time",
    }  # fmt: skip


async def test_a_name_that_is_not_utf_8_loses_only_its_own_series(
    subject: Subject, server: MetricsServer
) -> None:
    broker = subject.broker
    broker.parts.deliveries.consumer_offsets.put("T", "bad \ud800", 0, 0)
    broker.parts.deliveries.consumer_offsets.put("T", 'odd "\n\\ \u2028\x00', 0, 0)
    broker.parts.deliveries.consumer_offsets.put("T", "good", 0, 0)
    metrics = await samples(server)
    assert metrics['reput_group_lag_messages{group="good",topic="T"}'] == 0
    assert sum("odd" in name for name in metrics if "lag_messages" in name) == 1
    assert not [name for name in metrics if "bad" in name]
    assert metrics["reput_metrics_series_left_out"] == 2  # messages and seconds


async def test_a_failed_measurement_of_a_table_hides_no_other(
    subject: Subject, server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(subject.parts.deliveries.consumer_offsets, "readers", fail)
    metrics = await samples(server)
    assert metrics['reput_metrics_part_failing{part="lags"}'] == 1
    assert metrics["reput_healthy"] == 1
    assert metrics["reput_topics"] > 0


@pytest.mark.parametrize("kind", [BrokerMeter, RocketmqMeter])
async def test_a_long_measurement_lets_other_tasks_run(
    subject: Subject, kind: type[BrokerMeter] | type[RocketmqMeter]
) -> None:
    broker = subject.broker
    for i in range(3_000):
        subject.parts.deliveries.consumer_offsets.put("T", f"group-{i}", 0, 0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    began = time.process_time()
    await kind(broker.parts, broker.loops, broker.connection_counts, 500).measure()
    spent_s = time.process_time() - began
    counting.cancel()
    # With slices of 2 ms, whatever other work this process has.
    assert turns >= spent_s / 0.02


async def test_health_is_json(server: MetricsServer, subject: Subject) -> None:
    status, text = await asyncio.to_thread(get, server, "/health")
    assert status == 200
    assert json.loads(text)["address"] == subject.address
    subject.broker.loops.failures["store"] = "ValueError: no"
    # The loop turns every 200 ms and clears the failure; this reads it earlier.
    health = await world.meter(subject.broker).check_health()
    assert health.problems == ("loop store failed: ValueError: no",)
    assert (await asyncio.to_thread(get, server, "/"))[0] == 404


def test_a_hanging_loop_is_red(tmp_path: Path) -> None:
    """The HTTP thread reports it, as the loop cannot."""
    may_continue = threading.Event()
    answers: list[tuple[int, str]] = []

    async def hang() -> None:
        async with world.broker(tmp_path) as subject:
            server = MetricsServer(
                world.meter(subject.broker),
                answer_timeout_ms=100,
            )
            server.start()

            def ask() -> None:
                answers.extend(get(server, path) for path in ("/health", "/metrics"))
                may_continue.set()

            thread = threading.Thread(target=ask)
            thread.start()
            may_continue.wait(60)  # runs on the loop, which cannot turn until it returns
            thread.join()
            await server.stop()

    asyncio.run(hang())
    for status, text in answers:
        assert status == 503
        problems = json.loads(text)["problems"]
        assert problems == ["the event loop has not responded for 100 ms"]
    assert len(answers) == 2


async def test_a_port_in_use_is_reported(subject: Subject, server: MetricsServer) -> None:
    other = MetricsServer(
        world.meter(subject.broker),
        port=server.port,
    )
    with pytest.raises(OSError, match="in use"):
        other.start()
    await other.stop()


async def test_the_queues_of_a_topic_are_measured_on_demand(subject: Subject) -> None:
    for _ in range(3):
        await subject.send("T", queue_id=1)
    subject.parts.deliveries.consumer_offsets.put("T", "G", 1, 1)

    async def queues(query: Mapping[str, str]) -> list[Family | HistogramFamily]:
        return await queue_metrics.answer(subject.broker, query)

    server = MetricsServer(world.meter(subject.broker), details={"/metrics/queues": queues})
    server.start()
    try:
        status, text = await asyncio.to_thread(get, server, "/metrics/queues?topic=T&group=G")
        assert status == 200
        assert 'reput_queue_max_offset{queue_id="1",topic="T"} 3.0' in text
        assert 'reput_queue_max_offset{queue_id="2",topic="T"} 0.0' in text
        assert 'reput_queue_lag_messages{group="G",queue_id="1",topic="T"} 2.0' in text
        assert 'reput_queue_consumer_offset{group="G",queue_id="1",topic="T"} 1.0' in text
        status, text = await asyncio.to_thread(get, server, "/metrics/queues?topic=T")
        assert status == 200
        assert "reput_queue_min_offset" in text
        assert "reput_queue_lag_messages" not in text
        for query in ("", "?topic=", "?topic=None", "?topic=T&queue=1"):
            status, text = await asyncio.to_thread(get, server, f"/metrics/queues{query}")
            assert status == 400
            assert "allowed: " in text
    finally:
        await server.stop()
