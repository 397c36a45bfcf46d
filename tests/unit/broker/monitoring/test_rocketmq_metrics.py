"""The metrics under RocketMQ's names, compared with a recorded scrape of Java's broker."""

import json
from pathlib import Path
from typing import Any

import pytest

import world
from interop.record_metrics import shape, traffic
from reput.broker.monitoring.rocketmq_metrics import LEFT_OUT, RocketmqMeter
from reput.broker.settings.config import BrokerConfig, load
from reput.broker.settings.exporter import LABELS, MetricsExporter, parse_labels
from reput.errors import InvalidOption
from reput.remoting.metrics_server import Family, HistogramFamily, text_of
from world import Subject

RECORDED = Path(__file__).parents[3] / "data" / "metrics" / "rocketmq-5.5.0.json"
OF_JAVA: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text())["metrics"]
OWN = {"instance_id", "uid"}
"""Labels that the recorded broker has by ``metricsLabel``."""


def meter(subject: Subject, names_max: int = 500) -> RocketmqMeter:
    broker = subject.broker
    return RocketmqMeter(broker.parts, broker.loops, broker.connection_counts, names_max)


async def text(subject: Subject, names_max: int = 500) -> str:
    return text_of(await meter(subject, names_max).measure()).decode()


def test_every_metric_of_java_is_exported_or_left_out_for_a_reason() -> None:
    assert LEFT_OUT.keys() < OF_JAVA.keys()
    assert all(LEFT_OUT.values())


def test_labels_of_java_are_reserved() -> None:
    labels = {label for metric in OF_JAVA.values() for label in metric["labels"]}
    assert labels - OWN <= LABELS


async def test_names_kinds_and_labels_are_those_of_java(tmp_path: Path) -> None:
    async with world.name_server(tmp_path) as name_server:
        namesrv = world.address_of(name_server)
        async with world.broker(
            tmp_path / "store", namesrv_addr=namesrv, metrics_label="instance_id:test,uid:7"
        ) as subject:
            async with traffic(namesrv, subject.address):
                exported = await text(subject)
            afterwards = samples_of(await text(subject))  # with the consumer offsets of a stop
    assert shape(exported) == {
        name: recorded for name, recorded in OF_JAVA.items() if name not in LEFT_OUT
    }
    samples = samples_of(exported)
    # The recorded broker has the same values, apart from the differences that are documented.
    of_readers = {"topic": "Metered", "consumer_group": "readers", "is_system": "false"}
    pulled = {**of_readers, "is_retry": "false"}
    assert samples[series("messages_out_total", **pulled)] == 9
    assert samples[series("send_to_dlq_messages_total", **of_readers)] == 1
    assert samples[series("commit_messages_total", topic="_other")] == 1
    assert samples[series("rollback_messages_total", topic="_other")] == 1
    client = {"language": "python", "version": "v4_9_7", "protocol_type": "remoting"}
    assert samples[series("producer_connections", **client)] == 1
    client |= {"consumer_group": "readers", "consume_mode": "push", "is_system": "false"}
    assert samples[series("consumer_connections", **client)] == 1
    assert afterwards[series("consumer_lag_messages", **pulled)] == 0
    assert afterwards[series("consumer_lag_latency_milliseconds", **pulled)] == 0
    assert series("consumer_connections", **client) not in afterwards


def samples_of(text: str) -> dict[str, float]:
    """Return the value of each series, by name and labels."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def series(name: str, **labels: str) -> str:
    """Return a series of the recorded broker, by its own labels."""
    known = {
        "cluster": "DefaultCluster",
        "instance_id": "test",
        "node_id": "broker-a",
        "node_type": "broker",
        "otel_scope_name": "broker-meter",
        "uid": "7",
        **labels,
    }
    listed = ",".join(f'{label}="{known[label]}"' for label in sorted(known))
    return f"rocketmq_{name}{{{listed}}}"


async def test_the_worst_groups_have_series(subject: Subject) -> None:
    for number in range(5):
        await subject.send("T", b"x" * (number + 1))
    offsets = subject.parts.deliveries.consumer_offsets
    end = subject.broker.store.max_offset("T", 0)
    for number, group in enumerate(("A", "B", "C", "D")):
        offsets.put("T", group, 0, end - number)
    exported = shape_of_lags(await meter(subject, 2).measure())
    assert exported == {"D": 3, "C": 2, "_other": 1}
    families = await world.meter(subject.broker, 2).measure()
    assert shape_of_lags(families) == {"D": 3, "C": 2, "_other": 1}


def shape_of_lags(families: list[Family | HistogramFamily]) -> dict[str, float]:
    """Return the lag in messages by group."""
    for family in families:
        if isinstance(family, Family) and family.name.endswith("_lag_messages"):
            group = next(
                position for position, label in enumerate(family.labels) if "group" in label
            )
            return {labels[group]: value for labels, value in family.values.items()}
    raise AssertionError("no lags")


async def test_a_group_keeps_its_series_at_equal_lags(subject: Subject) -> None:
    offsets = subject.parts.deliveries.consumer_offsets
    await subject.send("T")
    for group in ("B", "C"):
        offsets.put("T", group, 0, 0)
    current = meter(subject, 2)
    first = shape_of_lags(await current.measure())
    offsets.put("T", "A", 0, 0)
    assert shape_of_lags(await current.measure()) == first | {"_other": first["B"]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a", "name:value"),
        ("a:", "name:value"),
        (":b", "name:value"),
        ("a-b:c", "name:value"),
        ("__name__:c", "name:value"),
        ("a:b,topic:c", "in use"),
        ("cluster:c", "in use"),
    ],
)
def test_a_wrong_label_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidOption, match=f"metricsLabel.*{reason}"):
        BrokerConfig(metrics_label=text)


def test_labels_are_parsed() -> None:
    assert parse_labels(" instance_id:a:1 , uid: b,") == {"instance_id": "a:1", "uid": "b"}


@pytest.mark.parametrize("exporter", [MetricsExporter.OTLP_GRPC, MetricsExporter.LOG])
def test_another_exporter_is_refused_with_the_remedy(exporter: MetricsExporter) -> None:
    with pytest.raises(InvalidOption, match=r"metricsExporterType.*collector can scrape"):
        BrokerConfig(metrics_exporter_type=exporter)


def test_both_kinds_of_metrics_need_two_ports() -> None:
    with pytest.raises(InvalidOption, match=r"metricsPromExporterPort.*not metricsPort"):
        BrokerConfig(metrics_exporter_type=MetricsExporter.PROM, metrics_port=5557)


def test_no_setting_of_the_exporter_is_reported_as_ignored() -> None:
    source = {
        "metricsExporterType": "PROM",
        "metricsPromExporterHost": "127.0.0.1",
        "metricsPromExporterPort": "6000",
        "metricsLabel": "a:b",
        "reputMetricsNames": "7",
    }
    loaded = load({**source, "namesrvAddr": "127.0.0.1:9876"})
    assert not loaded.warnings
    assert loaded.broker.exports_metrics
