"""``reput cluster replicas``, ``elect`` and ``forget`` with a controller and scripted brokers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import replica_requests as requests
from ports import free_port
from replica_requests import NAME
from replica_scene import Served, served
from wire_command import Command


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as made:
        made.run(made.scene.add(1, 2, 3))
        yield made


@pytest.fixture
def command(scene: Served, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(scene.scene.namesrv, capsys)


def group_of(command: Command, *more: object, code: int = 0) -> dict[str, Any]:
    (group,) = command.json("cluster", "replicas", *more, code=code)["groups"]
    assert isinstance(group, dict)
    return group


def test_a_group_shows_its_master_its_set_and_its_logs(scene: Served, command: Command) -> None:
    members = scene.scene.members
    members[0].end, members[1].epochs, members[1].end = 150, [(0, 0), (1, 60)], 120
    group = group_of(command)
    assert (group["broker_name"], group["controller"]) == (NAME, scene.scene.subject.address)
    assert (group["master_id"], group["master_address"]) == (1, members[0].address)
    assert (group["master_epoch"], group["set_epoch"]) == (1, 2)
    second = group["replicas"][1]
    assert (second["is_alive"], second["is_in_sync"]) == (True, True)
    assert (second["log_end"], second["lag_bytes"]) == (120, 30)
    assert second["epochs"] == [
        {"epoch": 0, "start": 0, "end": 60},
        {"epoch": 1, "start": 60, "end": 120},
    ]
    # The master's log ends where it ends, although Java says: at the largest number.
    assert group["replicas"][0]["epochs"] == [{"epoch": 1, "start": 0, "end": 150}]
    assert group["replicas"][0]["lag_bytes"] is None


def test_a_log_of_a_later_epoch_is_a_problem(scene: Served, command: Command) -> None:
    scene.scene.members[1].epochs = [(1, 0), (5, 60)]
    text = command("cluster", "replicas", code=1)
    assert "1:0-60 5:60-100" in text
    assert "is of epoch 5, but the controller knows no epoch after 1" in text
    # A switch without an id takes that log, whose epoch is the latest.
    assert command.json("cluster", "elect", NAME)["after"]["master_id"] == 2


def test_a_waiting_group_says_for_whom_and_what_would_be_lost(
    scene: Served, command: Command
) -> None:
    group = scene.scene.subject.controller.parts.groups
    first, second, third = scene.scene.members
    scene.run(first.ask(requests.alter(1, 1, [1], 2)))
    second.end, third.end = 70, 80
    scene.run(first.stop())
    scene.until(lambda: group.all()[0].master_id is None)
    shown = group_of(command, NAME, code=1)
    assert (shown["master_id"], shown["master_address"]) == (None, None)
    assert f"no master; start a replica that was in sync: 1 at {first.address}" in shown["problem"]
    assert f"broker 3 at {third.address}, whose log ends at 80 in epoch 1" in shown["problem"]
    assert "would lose all messages that were acknowledged later" in shown["problem"]
    refusal = command.complaint("cluster", "elect", NAME)
    assert "start a replica that was in sync" in refusal
    refusal = command.complaint("cluster", "elect", NAME, "--id", "2")
    assert f"refuses: Failed to elect a new master; broker 2 at {second.address} is not" in refusal


def test_a_planned_switch_shows_what_it_changed(scene: Served, command: Command) -> None:
    first, second, third = scene.scene.members
    second.end, third.end = 90, 95
    done = command.json("cluster", "elect", NAME)
    assert done["before"] == {
        "master_id": 1, "master_address": first.address, "master_epoch": 1, "set_epoch": 2,
    }  # fmt: skip
    assert done["after"] == {  # the longest log, which alone is in sync now
        "master_id": 3, "master_address": third.address, "master_epoch": 2, "set_epoch": 3,
    }  # fmt: skip
    assert done["problem"] is None
    assert 0 <= done["switch_ms"] <= done["listed_ms"]
    warning = group_of(command)["warning"]
    assert warning == "it would not survive its master: no other replica is in sync"


def test_refusals_of_an_election_are_plain(scene: Served, command: Command) -> None:
    first = scene.scene.members[0]
    assert "allowed: one of 1, 2, 3" in command.complaint("cluster", "elect", NAME, "--id", "7")
    text = command.complaint("cluster", "elect", NAME, "--id", "1")
    assert f"broker 1 at {first.address} is the master already" in text
    known = f"allowed: a name that the controller at {scene.scene.subject.address} knows"
    assert known in command.complaint("cluster", "elect", "broker-x")


def test_a_dead_replica_is_forgotten_only_with_yes(scene: Served, command: Command) -> None:
    groups = scene.scene.subject.controller.parts.groups
    forget = ("cluster", "forget", NAME, "--id", "2")
    assert "is still alive" in command.complaint(*forget, "--yes")
    scene.run(scene.scene.members[1].stop())
    scene.until(lambda: group_is_alive(scene) == {1, 3})
    preview = command.json(*forget)
    assert [replica["broker_id"] for replica in preview["replicas"]] == [2]
    assert sorted(groups.all()[0].replicas) == [1, 2, 3]
    assert command.json(*forget, "--yes")["is_done"]
    assert sorted(groups.all()[0].replicas) == [1, 3]
    refusal = command.complaint("cluster", "forget", NAME, "--yes")
    assert "Broker broker-a is still alive" in refusal


def group_is_alive(scene: Served) -> set[int]:
    return set(scene.scene.subject.controller.parts.elections.sight(NAME).alive)


def test_controllers_are_found_by_their_brokers_or_given(scene: Served, command: Command) -> None:
    address = scene.scene.subject.address
    unused = f"127.0.0.1:{free_port()}"
    for member in scene.scene.members:
        member.settings["controllerAddr"] = f"{unused};{address}"
    assert group_of(command)["controller"] == address
    for member in scene.scene.members:
        member.settings = {}
    assert command.json("cluster", "replicas")["groups"] == []
    refusal = command.complaint("cluster", "elect", NAME)
    assert "allowed: none: no broker has a controller" in refusal
    given = ("--controller", f"{unused};{address}")
    assert group_of(command, *given)["controller"] == address
    text = command("cluster", "replicas", "--controller", unused, code=1)
    assert "broker-a" in text
    assert f"cannot connect to {unused}" in command.notes
