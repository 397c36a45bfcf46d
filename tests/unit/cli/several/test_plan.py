"""Plan, files and merged metrics of several brokers under one parent."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from reput import config
from reput.broker.settings.config import BrokerSettings, load
from reput.cli import log_lines
from reput.cli.server_texts import CannotServe
from reput.cli.several import merged_metrics, plan as planning
from reput.errors import InvalidOption
from reput.store.files import paths


def settings_of(root: Path, **given: Any) -> tuple[BrokerSettings, dict[str, str]]:
    texts = {key: str(value) for key, value in given.items()}
    texts |= {"storePathRootDir": str(root), "brokerName": "broker-a"}
    return load(texts, environment={}), texts


def plan_of(root: Path, count: int, **given: Any) -> list[planning.BrokerPlan]:
    settings, texts = settings_of(root, **given)
    return planning.members(settings, texts, count)


# --- names, ports, stores, cores ----------------------------------------------------------------


def test_names_ports_and_stores_follow_the_number(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path, 3, listenPort=20911, haListenPort=20950, grpcServerPort=20081, metricsPort=20557
    )
    assert [member.name for member in plan] == ["broker-a-0", "broker-a-1", "broker-a-2"]
    assert [member.store for member in plan] == [tmp_path / "0", tmp_path / "1", tmp_path / "2"]
    last = dict(plan[2].own)
    assert last.pop("storePathRootDir") == str(tmp_path / "2")
    assert last == {
        "brokerName": "broker-a-2",
        "listenPort": "20931",
        "haListenPort": "20970",
        "grpcServerPort": "20101",
    }


def test_folders_of_the_log_move_with_the_root(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 2, storePathCommitLog=f"{tmp_path}/commitlog")
    assert plan[1].own["storePathCommitLog"] == f"{tmp_path}/1/commitlog"
    with pytest.raises(InvalidOption, match=r"storePathCommitLog.*below storePathRootDir"):
        plan_of(tmp_path, 2, storePathCommitLog="/elsewhere/commitlog")


def test_stores_are_named_one_by_one(tmp_path: Path) -> None:
    settings, texts = settings_of(tmp_path)
    plan = planning.members(settings, texts, 2, stores=["/d0", "/d1"])
    assert [str(member.store) for member in plan] == ["/d0", "/d1"]
    for stores in (["/d0"], ["/d0", "/d0"], ["/d0", "/d1", "/d2"]):
        with pytest.raises(InvalidOption, match="2 different folders"):
            planning.members(settings, texts, 2, stores=stores)


def test_each_broker_has_a_core_if_there_are_enough(tmp_path: Path) -> None:
    settings, texts = settings_of(tmp_path)
    cores = [member.core for member in planning.members(settings, texts, 2, cores=[3, 5, 7])]
    assert cores == [3, 5]
    shared = planning.members(settings, texts, 4, cores=[3, 5, 7])
    assert {member.core for member in shared} == {None}


@pytest.mark.parametrize(
    ("count", "given", "text"),
    [
        (0, {}, "1 to 64"),
        (65, {}, "1 to 64"),
        (2, {"listenPort": 20911, "metricsPort": 20921}, "20921 would be metricsPort, and listen"),
        (2, {"listenPort": 20911, "grpcServerPort": 20912}, "20912 would be"),
        (3, {"listenPort": 65530}, "fewer"),
    ],
)
def test_wrong_counts_and_ports_are_refused(
    tmp_path: Path, count: int, given: dict[str, int], text: str
) -> None:
    with pytest.raises(InvalidOption, match=text):
        plan_of(tmp_path, count, **given)


# --- files --------------------------------------------------------------------------------------


def test_a_broker_keeps_what_was_changed_in_its_file(tmp_path: Path) -> None:
    """The later change of a key counts: of the common file, or of a broker's own."""
    source = tmp_path / "broker.conf"
    (member,) = plan_of(tmp_path, 1)

    def start(text: str) -> dict[str, str]:
        source.write_text(text)
        planning.write_confs([member], str(source), {})
        return config.read_properties(member.conf)

    first = start("# ours\nfileReservedTime=48\ndeleteWhen=04\nmaxMessageSize=1000\n")
    assert first["fileReservedTime"] == "48"
    assert first["brokerName"] == "broker-a-0"
    assert "# ours" in member.conf.read_text()
    # As a running broker writes it: mqadmin updateBrokerConfig.
    changed = {"fileReservedTime": "24", "deleteWhen": "05"}
    member.conf.write_text(config.replace_properties(member.conf.read_text(), changed))
    second = start("fileReservedTime=48\ndeleteWhen=06\n")
    assert second["fileReservedTime"] == "24"
    assert second["deleteWhen"] == "06"
    assert "maxMessageSize" not in second


def test_stores_of_others_are_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 2)
    planning.write_confs(plan, None, {})
    planning.check_stores(str(tmp_path), plan)
    settings, texts = settings_of(tmp_path)
    swapped = planning.members(settings, texts, 2, stores=[str(m.store) for m in reversed(plan)])
    with pytest.raises(CannotServe, match=r"is the store of broker-a-1, not of broker-a-0"):
        planning.check_stores(str(tmp_path), swapped)
    (tmp_path / paths.COMMIT_LOG).mkdir()
    with pytest.raises(CannotServe, match=r"the store of one broker.*move everything"):
        planning.check_stores(str(tmp_path), plan)


# --- warnings -----------------------------------------------------------------------------------


def warnings_of(root: Path, count: int, core_count: int = 64, **given: Any) -> list[str]:
    settings, texts = settings_of(root, **given)
    plan = planning.members(settings, texts, count)
    return planning.warnings(settings, plan, core_count, is_pinned=True)


def test_warnings_name_what_changes_with_the_count(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, 1) == []
    (many,) = warnings_of(tmp_path, 4)
    assert "8 queues on each of 4 brokers, 32" in many
    assert "defaultTopicQueueNums=2" in many
    assert warnings_of(tmp_path, 4, defaultTopicQueueNums=4) == []
    (shared,) = warnings_of(tmp_path, 2, core_count=1)
    assert "2 brokers share 1 cores, and are not pinned" in shared


def test_ordered_topics_and_further_stores_are_warned_of(tmp_path: Path) -> None:
    tables = tmp_path / "0/config"
    tables.mkdir(parents=True)
    topics = {"Steps": {"topicName": "Steps", "order": True}, "Other": {"topicName": "Other"}}
    (tables / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (tmp_path / "2/commitlog").mkdir(parents=True)
    ordered, further = warnings_of(tmp_path, 2)
    assert "ordered topics (Steps)" in ordered
    assert f"{tmp_path}/2 has the store of a further broker" in further


# --- metrics and log ----------------------------------------------------------------------------


def test_metrics_of_all_brokers_are_one_text() -> None:
    """A name may have one block only: Prometheus refuses a second one."""
    texts = {
        name: (
            "# HELP up Whether.\n# TYPE up gauge\nup 1.0\n"
            "# HELP puts_total Puts.\n# TYPE puts_total counter\n"
            f'puts_total{{topic="a b"}} {value}\n'
            f'theirs{{cluster="c",node_id="{name}"}} 2\n'
        ).encode()
        for name, value in (("broker-a-0", 3.0), ("broker-a-1", 4.0))
    }
    assert merged_metrics.merge(texts).decode().splitlines() == [
        "# HELP up Whether.",
        "# TYPE up gauge",
        'up{node_id="broker-a-0"} 1.0',
        'up{node_id="broker-a-1"} 1.0',
        "# HELP puts_total Puts.",
        "# TYPE puts_total counter",
        'puts_total{node_id="broker-a-0",topic="a b"} 3.0',
        'theirs{cluster="c",node_id="broker-a-0"} 2',
        'puts_total{node_id="broker-a-1",topic="a b"} 4.0',
        'theirs{cluster="c",node_id="broker-a-1"} 2',
    ]


@pytest.mark.parametrize("as_json", [False, True])
def test_lines_of_brokers_have_their_name(tmp_path: Path, *, as_json: bool) -> None:
    file = tmp_path / "log"
    before = logging.getLogger().handlers[:]
    try:
        log_lines.begin("warning", as_json=as_json, file=str(file))
        child = '{"time": "t", "message": "m"}' if as_json else "t WARNING reput.x m"
        log_lines.pass_on(child, broker="broker-a-0")
        log_lines.pass_on("Traceback\x1b[31m", broker="broker-a-0")
    finally:
        for handler in logging.getLogger().handlers:
            handler.close()
        logging.getLogger().handlers[:] = before
    first, second = file.read_text().splitlines()
    if as_json:
        assert json.loads(first) == {"time": "t", "message": "m", "broker": "broker-a-0"}
        assert json.loads(second) == {"message": "Traceback\x1b[31m", "broker": "broker-a-0"}
    else:
        assert first == "t WARNING reput.x m broker=broker-a-0"
        assert second == r"Traceback\x1b[31m broker=broker-a-0"
