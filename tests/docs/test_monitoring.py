"""The page on monitoring has the metrics under RocketMQ's names, as they are exported."""

import json
import re
from pathlib import Path

from reput.broker.monitoring.rocketmq_metrics import LEFT_OUT
from reput.broker.settings.config import BrokerConfig
from reput.broker.settings.exporter import COMMON_LABELS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "monitor-a-cluster.md"
OF_JAVA = json.loads((ROOT / "tests/data/metrics/rocketmq-5.5.0.json").read_text())["metrics"]


def test_every_metric_of_rocketmq_is_documented() -> None:
    exported, _, left_out = PAGE.read_text().partition("These metrics of RocketMQ are missing")
    rows = "\n".join(line for line in exported.splitlines() if line.startswith("| `"))
    documented = {
        name: set(filter(None, labels.split(",")))
        for name, labels in re.findall(r"`(rocketmq_\w+)(?:\{([\w,]+)\})?`", rows)
    }
    common = {*COMMON_LABELS, "instance_id", "uid"}
    assert documented == {
        name: set(metric["labels"]) - common
        for name, metric in OF_JAVA.items()
        if name not in LEFT_OUT
    }
    reasons = re.findall(r"^\| (.+?) \| (`rocketmq_.+`) \|$", left_out, re.MULTILINE)
    assert {
        name: reason for reason, names in reasons for name in re.findall(r"`(\w+)`", names)
    } == LEFT_OUT


def test_the_numbers_are_those_of_the_settings() -> None:
    text, config = PAGE.read_text(), BrokerConfig()
    assert f"first {config.reput_metrics_names} topics" in text
    assert f"metricsPromExporterPort={config.metrics_prom_exporter_port}" in text
