"""Boards and alert rules: their files, and the metrics and labels that they name."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

import world
from controller_subject import ControllerSubject
from reput.broker.monitoring.rocketmq_metrics import LEFT_OUT, RocketmqMeter
from reput.console import exposition
from reput.console.history import History
from reput.console.rows import Rows
from reput.console.snapshot import BrokerPlace, Ends, QueueEnds, Snapshot
from reput.console.survey import SurveyFacts
from reput.controller.metrics import ControllerMeter
from reput.namesrv.metrics import NameServerMeter
from reput.remoting.metrics_server import Family, HistogramFamily
from scripts import monitoring_files
from scripts.monitoring_files import BOARDS, GROUPS, OPS, RULES_FILE
from topic_configs import topic_config
from world import Subject

DATA = Path(__file__).parents[3] / "data" / "metrics"
OF_JAVA_CONTROLLER = json.loads((DATA / "controller-5.5.0.json").read_text())["metrics"]
OF_JAVA = json.loads((DATA / "rocketmq-5.5.0.json").read_text())["metrics"]
OF_TARGET = {"instance", "job"}
"""Labels that Prometheus adds."""
OF_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
"""Metrics of prometheus_client itself."""
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
RULES = [rule for rules in GROUPS.values() for rule in rules]

Shapes = dict[str, set[str]]
"""Labels of metrics by name."""


def test_the_files_are_those_of_the_list() -> None:
    expected = monitoring_files.files()
    present = set(OPS.glob("*/*"))
    known = {path for path in present if path.parent.name in ("grafana", "prometheus")}
    assert known == expected.keys(), "run scripts/monitoring_files.py"
    for path, text in expected.items():
        assert path.read_text() == text, f"run scripts/monitoring_files.py: {path} differs"


# --- names and labels ---------------------------------------------------------------------------


def shapes_of(families: list[Family | HistogramFamily]) -> Shapes:
    shapes: Shapes = {}
    for family in families:
        labels = {*family.labels, *OF_TARGET}
        if isinstance(family, HistogramFamily):
            shapes[f"{family.name}_bucket"] = {*labels, "le"}
        else:
            shapes[family.name] = labels
    return shapes


def shapes_of_java(metrics: dict[str, Any] = OF_JAVA) -> Shapes:
    shapes: Shapes = {}
    for name, metric in metrics.items():
        labels = ({*metric["labels"]} - {"uid", "instance_id"}) | OF_TARGET
        if metric["kind"] == "histogram":
            shapes[f"{name}_bucket"] = {*labels, "le"}
        else:
            shapes[name] = labels
    return shapes


async def shapes_of_reput(subject: Subject, folder: Path) -> Shapes:
    """Return what a master, a slave and a name server export."""
    broker = subject.broker
    shapes = {name: {*OF_TARGET} for name in OF_PROCESS}
    native = RocketmqMeter(broker.parts, broker.loops, broker.connection_counts, 500)
    shapes |= shapes_of(await native.measure())
    shapes |= shapes_of(await NameServerMeter(world.name_server(folder)).measure())
    async with world.slave(folder / "slave") as slave:
        shapes |= shapes_of(await world.meter(slave.broker).measure())
    return shapes | shapes_of(await world.meter(broker).measure())


def shapes_of_exporter() -> Shapes:
    """Return what the exporter of a cluster with a broker of 4.9 and a lag exports."""
    now_ms = 1_700_000_000_000
    place = BrokerPlace("c", "a", 0, "10.0.0.1:10911")
    snapshot = Snapshot()
    snapshot.put_places([place], now_ms)
    topics = {name: topic_config(name) for name in ("T", "%DLQ%G")}
    snapshot.put_topics(place.address, topics, now_ms)
    for topic in topics:
        snapshot.put_ends(place.address, topic, Ends(now_ms, (QueueEnds(0, 0, 10, now_ms),)))
    snapshot.put_consumed(place.address, {("T", "G"): {0: 4}}, now_ms)
    status = {
        "commitLogDiskRatio": "0.5",
        "sendThreadPoolQueueSize": "0",
        "dispatchBehindBytes": "0",
    }
    snapshot.put_status(place.address, status, now_ms)
    survey = SurveyFacts(latencies={(place.address, "T", "G"): 7})
    text = exposition.render(snapshot, Rows(snapshot, History()), now_ms, survey)
    return {
        name: {*re.findall(r'(\w+)="', labels), *OF_TARGET}
        for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE)
    }


async def shapes_of_controller(folder: Path) -> Shapes:
    """Return what a controller with a group exports."""
    async with ControllerSubject(folder) as subject:
        await subject.group_of(1, 2)
        return shapes_of(await ControllerMeter(subject.controller).measure())


def labels_of(node: Any, shapes: Shapes) -> set[str]:
    """Return the labels of an expression's result.

    Raises:
        AssertionError: It names a metric or label that does not exist.
    """
    kind = type(node).__name__
    if kind == "VectorSelector":
        assert node.name in shapes, f"no metric: {node.name}"
        labels = shapes[node.name]
        for matcher in node.matchers.matchers:
            assert matcher.name in labels, f"no label of {node.name}: {matcher.name}"
        return labels
    if kind == "MatrixSelector":
        return labels_of(node.vector_selector, shapes)
    if kind == "ParenExpr":
        return labels_of(node.expr, shapes)
    if kind == "NumberLiteral":
        return set()
    if kind == "Call":
        labels = set().union(*(labels_of(argument, shapes) for argument in node.args))
        if node.func.name == "histogram_quantile":
            assert "le" in labels
            labels = labels - {"le"}
        return labels
    if kind == "AggregateExpr":
        labels = labels_of(node.expr, shapes)
        if node.modifier is None:
            return labels if str(node.op) == "topk" else set()
        assert set(node.modifier.labels) <= labels, f"{node.modifier.labels} of {labels}"
        return set(node.modifier.labels)
    assert kind == "BinaryExpr", kind
    left, right = labels_of(node.lhs, shapes), labels_of(node.rhs, shapes)
    card = None if node.modifier is None else node.modifier.card
    matching = None if node.modifier is None else node.modifier.matching
    if matching is not None:
        assert set(matching.labels) <= left & right
    if card == promql_parser.VectorMatchCardinality.ManyToOne:
        added = set(node.modifier.group_labels or ())
        assert added <= right
        return left | added
    if str(node.op) == "or":
        return left | right
    if matching is None and left and right and str(node.op) not in ("and", "unless"):
        assert left == right, f"{left} and {right} have no pairs"
    return left


def parsed(expression: str) -> Any:
    return promql_parser.parse(expression.replace("$__rate_interval", "5m"))


async def test_every_metric_and_label_exists(subject: Subject, tmp_path: Path) -> None:
    ours = await shapes_of_reput(subject, tmp_path)
    java = shapes_of_java()
    exported = shapes_of_exporter()
    controlled = await shapes_of_controller(tmp_path / "controller")
    java_controlled = shapes_of_java(OF_JAVA_CONTROLLER)
    assert not [name for name in LEFT_OUT if name in ours]
    for place, expression, only in monitoring_files.expressions():
        if only == "exporter":
            labels_of(parsed(expression), exported)
        if only in ("controller", "java controller"):
            ours_or_java = controlled if only == "controller" else java_controlled
            labels_of(parsed(expression), ours_or_java)
            continue  # brokers have its health and its connections as well
        for side, shapes in (("java", java), ("reput", ours)):
            if only in ("", side) or (only == "slave" and side == "reput"):
                try:
                    labels_of(parsed(expression), shapes)
                except AssertionError as error:
                    raise AssertionError(f"{place}, {side}: {error}") from None
            else:
                with pytest.raises(AssertionError, match="no metric"):
                    labels_of(parsed(expression), shapes)


async def test_legends_and_texts_name_labels_of_the_result(
    subject: Subject, tmp_path: Path
) -> None:
    shapes = shapes_of_java() | await shapes_of_reput(subject, tmp_path) | shapes_of_exporter()
    shapes = await shapes_of_controller(tmp_path / "controller") | shapes
    shapes |= shapes_of_java(OF_JAVA_CONTROLLER)
    for board in BOARDS.values():
        for panel in board.panels:
            for expression, legend in panel.queries:
                named = set(re.findall(r"{{(\w+)}}", legend))
                assert named <= labels_of(parsed(expression), shapes), (board.title, panel.title)
        for variable in board.variables:
            assert variable.label in labels_of(parsed(variable.metric), shapes)
    for rule in RULES:
        named = set(re.findall(r"\$labels\.(\w+)", rule.summary + rule.advice))
        assert named, rule.name
        assert named <= labels_of(parsed(rule.expression), shapes), rule.name


def test_a_wrong_metric_or_label_is_found() -> None:
    shapes = {"a": {"b"}}
    for wrong in ("x", 'a{c="1"}', "sum by (c) (a)", "a * on (c) a"):
        with pytest.raises(AssertionError):
            labels_of(parsed(wrong), shapes)


def test_a_board_uses_only_its_own_variables() -> None:
    for name, board in BOARDS.items():
        used = set(re.findall(r"\$(\w+)", (OPS / "grafana" / f"{name}.json").read_text()))
        assert used - {"__rate_interval", "__all"} == {
            *(variable.name for variable in board.variables)
        }, board.title


# --- rules --------------------------------------------------------------------------------------


def cases() -> Iterator[dict[str, Any]]:
    tests: list[dict[str, Any]] = yaml.safe_load((DATA / "rules_test.yml").read_text())["tests"]
    yield from tests


def test_every_rule_is_tested_with_and_without_an_alert() -> None:
    checks = [check for case in cases() for check in case["alert_rule_test"]]
    firing = {check["alertname"] for check in checks if check.get("exp_alerts")}
    silent = {check["alertname"] for check in checks if not check.get("exp_alerts")}
    assert firing == silent == {rule.name for rule in RULES}


async def test_the_series_of_these_tests_exist(subject: Subject, tmp_path: Path) -> None:
    shapes = shapes_of_java() | await shapes_of_reput(subject, tmp_path) | shapes_of_exporter()
    shapes = await shapes_of_controller(tmp_path / "controller") | shapes
    shapes |= shapes_of_java(OF_JAVA_CONTROLLER)
    for case in cases():
        for series in case["input_series"]:
            labels_of(parsed(series["series"]), shapes)


@needs_promtool
def test_rules_alert_as_their_tests_expect() -> None:
    for arguments in (["check", "rules", RULES_FILE], ["test", "rules", DATA / "rules_test.yml"]):
        done = subprocess.run(
            [str(PROMTOOL), *map(str, arguments)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
