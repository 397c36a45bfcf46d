"""/health of a controller: what an operator must do."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import replica_requests as requests
from controller_subject import ControllerSubject
from reput.controller import health


@pytest.fixture
async def subject(tmp_path: Path) -> AsyncIterator[ControllerSubject]:
    async with ControllerSubject(tmp_path) as running:
        yield running


async def test_a_group_with_a_successor_is_well(subject: ControllerSubject) -> None:
    await subject.group_of(1, 2)
    checked = health.check(subject.controller)
    assert (checked.problems, checked.warnings) == ((), ())
    assert checked.details["groups"] == 1
    assert checked.details["elections"] == {"new_master": 1}


async def test_a_master_alone_is_a_warning(subject: ControllerSubject) -> None:
    await subject.group_of(1)
    checked = health.check(subject.controller)
    assert checked.is_well
    (warning,) = checked.warnings
    assert warning == "broker-a would not survive its master: no other replica is in sync"


async def test_a_group_without_a_master_names_who_could_be(subject: ControllerSubject) -> None:
    first, second = await subject.group_of(1, 2)
    await first.ask(requests.alter(1, 1, [1], 2))
    await second.beat(1, 4_321)
    await first.client.close()
    await subject.until_info(None, 2, [1])
    checked = health.check(subject.controller)
    (problem,) = checked.problems
    assert f"has no master; start a replica that was in sync: 1 at {first.address}." in problem
    assert "the best of the others is broker 2, whose log ends at 4321 in epoch 1" in problem
    assert checked.details["without_master"] == 1


async def test_logs_of_later_epochs_and_intruders(subject: ControllerSubject) -> None:
    first, second = await subject.group_of(1, 2)
    await second.beat(epoch=9)
    copied = subject.replica(1)
    copied.address = "10.9.9.9:1"
    await copied.beat()
    checked = health.check(subject.controller)
    assert "is of epoch 9, but this controller knows no epoch after 1" in checked.problems[0]
    assert checked.warnings == ("10.9.9.9:1 sends heartbeats with the id 1 of broker-a",)
    subject.clock.advance(health.INTRUDER_SHOWN_MS + 1)
    await first.beat(1)
    assert not [text for text in health.check(subject.controller).warnings if "10.9.9.9" in text]


async def test_a_check_for_dead_masters_that_does_not_run(subject: ControllerSubject) -> None:
    elections = subject.controller.parts.elections
    elections.checked_ms -= 20_000
    assert "have not been checked for" in health.check(subject.controller).problems[0]


async def test_a_group_before_its_first_master_is_no_problem(subject: ControllerSubject) -> None:
    await subject.replica(1).join()
    assert health.check(subject.controller).is_well


async def test_many_groups_are_counted(subject: ControllerSubject) -> None:
    for number in range(12):
        await subject.group_of(1, name=f"b{number}")
    warnings = health.check(subject.controller).warnings
    assert len(warnings) == 11
    assert warnings[-1] == "and 2 more"
