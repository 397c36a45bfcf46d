"""The page of replica groups, and elections, with a controller and scripted brokers."""

import html
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import replica_requests as requests
from asgi import Answer, call
from console_forms import confirmation, hidden_fields
from controller_subject import until
from ports import free_port
from replica_requests import NAME
from replica_scene import ReplicaScene
from reput.client.admin import Admin
from reput.clock import ManualClock
from reput.console.app import Console
from reput.console.audit import AuditLog
from reput.console.cluster import WatchedCluster
from reput.console.parts import ConsoleParts

FORM = {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8080"}
JSON = {"accept": "application/json"}


class Site:
    """A console of a scene, without users, with changes allowed."""

    def __init__(self, scene: ReplicaScene, parts: ConsoleParts, clock: ManualClock) -> None:
        self.scene = scene
        self.parts = parts
        self._clock = clock
        self.console = Console(parts)

    async def data(self) -> Any:
        self._clock.advance(5_000)
        answer = await call(self.console, "/replicas", headers=JSON)
        assert answer.status == 200, answer.data
        return answer.data

    async def post(self, fields: dict[str, str]) -> Answer:
        self._clock.advance(5_000)
        token = hidden_fields((await call(self.console, "/audit")).text)["csrf"]
        form = {**fields, "csrf": token}
        url = f"/replicas/{NAME}/elect"
        return await call(self.console, url, method="POST", headers=FORM, form=form)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with ReplicaScene(tmp_path) as scene, Admin(scene.namesrv) as admin:
        await scene.add(1, 2)
        clock = ManualClock(1_700_000_000_000)
        cluster = WatchedCluster.of(admin, clock)
        audit = AuditLog(tmp_path / "audit.jsonl")
        parts = ConsoleParts(clock, scene.namesrv, cluster, audit, may_operate=True)
        yield Site(scene, parts, clock)


async def test_groups_are_shown_with_their_replicas(site: Site) -> None:
    site.scene.members[1].end = 70
    data = await site.data()
    (group,) = data["groups"]
    assert (group["name"], group["master_id"], group["master_epoch"]) == (NAME, 1, 1)
    assert [row["lag_bytes"] for row in group["replicas"]] == [None, 30]
    assert [row["is_candidate"] for row in group["replicas"]] == [False, True]
    text = (await call(site.console, "/replicas")).text
    assert text.count("<h1") == 1
    assert "Preview making it master" in text


async def test_a_waiting_group_says_what_to_do(site: Site) -> None:
    first = site.scene.members[0]
    await first.ask(requests.alter(1, 1, [1], 2))
    await first.stop()
    groups = site.scene.subject.controller.parts.groups
    await until(lambda: groups.all()[0].master_id is None)
    (group,) = (await site.data())["groups"]
    assert f"start a replica that was in sync: 1 at {first.address}" in group["problem"]
    page = html.unescape((await call(site.console, "/replicas")).text)
    assert group["problem"] in page


async def test_an_election_is_confirmed_and_recorded(site: Site) -> None:
    refused = await site.post({"id": "1"})
    assert (refused.status, "allowed are 2" in refused.text) == (400, True)
    preview = await site.post({"id": "2"})
    assert "Nothing has been changed yet" in preview.text
    groups = site.scene.subject.controller.parts.groups
    assert groups.all()[0].master_id == 1
    receipt = await site.post({**confirmation(preview.text), "typed": NAME})
    assert receipt.status == 200, receipt.text
    address = site.scene.members[1].address
    assert f"{address} is the master of {NAME} in epoch 2" in receipt.text
    assert groups.all()[0].master_id == 2
    (entry,) = site.parts.audit.newest()
    assert (entry.action, entry.outcome) == ("replicas.elect", "done")


async def test_a_confirmation_is_refused_after_another_election(site: Site) -> None:
    preview = await site.post({"id": "2"})
    await site.scene.subject.ask(requests.elect(2, designate=True))
    await site.scene.members[1].beat(2, 100)
    await site.scene.members[1].ask(requests.alter(2, 2, [1, 2], 3))
    refused = await site.post({**confirmation(preview.text), "typed": NAME})
    assert refused.status == 400  # 2 is the master already, and no candidate
    assert site.scene.subject.controller.parts.groups.all()[0].master_epoch == 2


async def test_a_controller_that_does_not_answer_is_a_problem(site: Site) -> None:
    unused = f"127.0.0.1:{free_port()}"
    for member in site.scene.members:
        member.settings["controllerAddr"] = unused
    data = await site.data()
    assert data["groups"] == []
    assert f"cannot connect to {unused}" in data["problems"][0]
