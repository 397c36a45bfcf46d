"""A member of a group beside our controller: id, roles, lease, untrue answers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import replica_requests as requests
from controller_subject import ControllerSubject, until
from reput.broker.replicas.controllers import NoLeader, RefusedByController
from reput.broker.replicas.epochs import Epochs
from reput.broker.replicas.identity_files import Application, IdentityFiles
from reput.broker.replicas.member import LogEnd, Mastership, Member
from reput.broker.settings.config import BrokerConfig
from reput.clock import ManualClock
from reput.errors import StoreUnavailable
from reput.format.bodies import SyncStateSet
from reput.format.controller_headers import MasterHeader
from reput.format.epoch_file import Epoch
from reput.store.files.disk import Disk

TIMEOUT_MS = 3_000


class MemberSubject:
    """A member, its folder, its clock, and the roles that it has entered."""

    def __init__(self, controller: ControllerSubject, folder: Path, port: int = 10911) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.clock = ManualClock(1_700_000_000_000)
        self.entered: list[Mastership] = []
        self.end = 0
        self.files = IdentityFiles(
            str(folder / "brokerIdentity"), requests.CLUSTER, requests.NAME, Disk()
        )
        self.epochs = Epochs(str(folder / "epochs"), Disk())
        config = BrokerConfig(
            broker_name=requests.NAME,
            enable_controller_mode=True,
            controller_addr=controller.address,
            controller_heart_beat_timeout_mills=TIMEOUT_MS,
        )
        self.member = Member(
            config,
            lambda: f"127.0.0.1:{port}",
            self.files,
            self.epochs,
            lambda: LogEnd(self.end, self.end),
            self._enter,
            self.clock,
        )

    async def _enter(self, mastership: Mastership) -> None:
        self.entered.append(mastership)

    async def until_role(self, epoch: int, master_id: int) -> None:
        """Wait for a role, and ask at once, as after a notice."""

        def has_role() -> bool:
            self.member.wake()
            known = self.entered[-1:]
            return [(role.epoch, role.master_id) for role in known] == [(epoch, master_id)]

        await until(has_role)


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[ControllerSubject]:
    async with ControllerSubject(tmp_path / "controller") as running:
        yield running


@pytest.fixture
async def first(controller: ControllerSubject, tmp_path: Path) -> AsyncIterator[MemberSubject]:
    """Return the master of epoch 1."""
    subject = MemberSubject(controller, tmp_path / "first")
    subject.member.start()
    await subject.until_role(1, 1)
    yield subject
    await subject.member.stop()


async def test_the_first_broker_becomes_master_and_the_second_follows(
    controller: ControllerSubject, first: MemberSubject, tmp_path: Path
) -> None:
    assert first.member.is_master
    assert (first.folder / "brokerIdentity").read_text() == "DefaultCluster#broker-a#1"
    assert not (first.folder / "brokerIdentity-temp").exists()
    second = MemberSubject(controller, tmp_path / "second", 20911)
    second.member.start()
    await second.until_role(1, 1)
    assert (second.member.broker_id, second.member.is_master) == (2, False)
    assert second.member.master_addresses.address == "127.0.0.1:10911"
    assert not second.member.lease.is_valid
    await first.member.alter_in_sync(first.member.mastership, frozenset({1, 2}))
    assert await controller.info() == ("1", 1, [1, 2])
    await until(lambda: first.entered[-1].in_sync == {1, 2})
    await first.member.stop()  # its connections are closed, so it is dead
    await second.until_role(2, 2)
    await second.member.stop()


async def test_a_restarted_broker_keeps_its_id(
    controller: ControllerSubject, first: MemberSubject, tmp_path: Path
) -> None:
    await first.member.stop()
    again = MemberSubject(controller, first.folder)
    again.member.start()
    await until(lambda: again.member.wake() or again.member.is_master)
    assert again.member.broker_id == 1
    assert again.member.mastership.epoch > 1  # another life: what it had acknowledged is unknown
    await again.member.stop()


@pytest.mark.parametrize(("code", "broker_id"), [("mine", 1), ("another's", 2)])
async def test_an_application_that_was_interrupted_is_repeated(
    controller: ControllerSubject, tmp_path: Path, code: str, broker_id: int
) -> None:
    """The broker died before the answer; or another one has got the id meanwhile."""
    await controller.ask(requests.apply_id(1, code))
    subject = MemberSubject(controller, tmp_path / "broker")
    subject.files.write_application(Application(1, "mine"))
    subject.member.start()
    await until(lambda: subject.member.wake() or subject.member.is_master)
    assert subject.member.broker_id == subject.files.broker_id() == broker_id
    assert subject.files.application() is None
    await subject.member.stop()


async def test_a_foreign_identity_stops_the_start(
    controller: ControllerSubject, tmp_path: Path
) -> None:
    subject = MemberSubject(controller, tmp_path / "broker")
    (subject.folder / "brokerIdentity").write_text("DefaultCluster#broker-b#1")
    with pytest.raises(StoreUnavailable, match="of the broker 'broker-b'"):
        subject.member.start()


# --- the lease ------------------------------------------------------------------------------------


async def test_a_lease_lasts_as_long_as_the_controller_answers(first: MemberSubject) -> None:
    member, clock = first.member, first.clock
    await until(lambda: member.wake() or member.lease.is_valid)
    clock.advance(TIMEOUT_MS)
    assert not member.lease.is_valid
    await until(lambda: member.wake() or member.lease.is_valid)


async def test_a_lease_ends_with_the_connection_to_the_controller(
    controller: ControllerSubject, first: MemberSubject
) -> None:
    member = first.member
    await until(lambda: member.wake() or member.lease.is_valid)
    await controller.controller.stop()
    await until(lambda: not member.lease.is_valid)
    assert member.is_master  # it stays master, and asks all that are in sync
    await until(lambda: member.wake() or "no controller leads" in member.problem)
    assert first.entered == [first.entered[0]]


async def test_a_master_that_was_replaced_has_no_lease(
    controller: ControllerSubject, first: MemberSubject
) -> None:
    member = first.member
    second = controller.replica(2)
    await second.join()
    await member.alter_in_sync(member.mastership, frozenset({1, 2}))
    await second.beat(1, 0)
    elected = await controller.ask(requests.elect(2, designate=True))
    assert elected.fields["masterBrokerId"] == "2"
    await first.until_role(2, 2)
    assert not member.lease.is_valid


# --- untrue answers -------------------------------------------------------------------------------


async def test_an_unknown_outcome_is_not_taken_for_a_grant(
    controller: ControllerSubject, first: MemberSubject
) -> None:
    member = first.member
    before = member.mastership
    with pytest.raises(RefusedByController):
        await member.alter_in_sync(before, frozenset({1, 7}))
    assert member.mastership == before
    await controller.controller.stop()
    with pytest.raises(NoLeader):
        await member.alter_in_sync(before, frozenset({1}))
    assert member.mastership == before


async def test_an_older_answer_is_not_taken(
    controller: ControllerSubject, first: MemberSubject
) -> None:
    """One that was sent before another master was elected, or the set has changed, and is late."""
    member = first.member
    before, roles = member.mastership, list(first.entered)
    assert (before.epoch, before.set_epoch) == (1, 1)
    for epoch, set_epoch in ((0, 9), (1, 0)):
        answer = MasterHeader(master_broker_id=2, master_address="x:1", master_epoch=epoch)
        late = SyncStateSet(sync_state_set=[2], sync_state_set_epoch=set_epoch)
        member._take(answer, late)
        assert (member.mastership, first.entered) == (before, roles)


async def test_a_controller_without_its_state_is_not_obeyed(
    controller: ControllerSubject, tmp_path: Path
) -> None:
    """The log has an epoch that the controller has not given: it is older, or another one."""
    (scripted,) = await controller.group_of(1)
    await scripted.beat(1, 500)
    subject = MemberSubject(controller, tmp_path / "broker")
    subject.epochs.add(Epoch(5, 0))
    subject.member.start()
    await until(lambda: subject.member.wake() or "the controller's state" in subject.member.problem)
    assert "bytes of epoch 5" in subject.member.problem
    assert subject.entered == []
    await subject.member.stop()


async def test_a_role_that_fails_is_entered_later(
    controller: ControllerSubject, tmp_path: Path
) -> None:
    subject = MemberSubject(controller, tmp_path / "broker")
    failures = [StoreUnavailable("the disk is gone")]
    enter = subject.member._enter

    async def fail_once(mastership: Mastership) -> None:
        if failures:
            raise failures.pop()
        await enter(mastership)

    subject.member._enter = fail_once
    subject.member.start()
    await subject.until_role(1, 1)
    await asyncio.sleep(0)
    assert failures == []
    await subject.member.stop()
