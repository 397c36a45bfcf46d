"""A controller on a port: requests of brokers and operators, elections, restarts, disks."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import replica_requests as requests
from controller_subject import ControllerSubject, Replica
from lossy_disk import Loss, LossyDisk
from reput.clock import ManualClock
from reput.errors import CorruptRecord, StoreUnavailable, WriteFailed
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.server import RemotingServer
from reput.store.files.disk import Disk
from seeds import random as seeded
from waiting import until


class _FailingDisk(Disk):
    """A disk whose writes can fail, or wait."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def replace(self, path: str, data: bytes) -> None:
        if self.fails:
            raise WriteFailed(path, "cannot write: No space left on device")
        super().replace(path, data)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def disk() -> _FailingDisk:
    return _FailingDisk()


@pytest.fixture
async def subject(
    tmp_path: Path, clock: ManualClock, disk: _FailingDisk
) -> AsyncIterator[ControllerSubject]:
    async with ControllerSubject(tmp_path, clock, disk) as running:
        yield running


def pass_time(subject: ControllerSubject, duration_ms: int) -> None:
    """Advance the clock as far as a controller that runs all the time would see it."""
    for _ in range(duration_ms // 1000):
        subject.clock.advance(1000)
        subject.controller.parts.elections.check_all()
    subject.clock.advance(duration_ms % 1000)
    subject.controller.parts.elections.check_all()


# --- a group ------------------------------------------------------------------------------------


async def test_two_brokers_become_a_group(subject: ControllerSubject) -> None:
    first, second = subject.replica(1), subject.replica(2)
    assert (await first.ask(requests.next_id())).fields["nextBrokerId"] == "1"
    joined = await first.join()
    assert "masterBrokerId" not in joined.fields
    assert joined.body == {"syncStateSet": [], "syncStateSetEpoch": 0}
    elected = await first.ask(requests.elect(1))
    assert elected.fields == {
        "masterBrokerId": "1",
        "masterAddress": first.address,
        "masterEpoch": "1",
        "syncStateSetEpoch": "1",
    }
    assert (await second.ask(requests.next_id())).fields["nextBrokerId"] == "2"
    joined = await second.join()
    assert joined.fields["masterBrokerId"] == "1"
    altered = await first.ask(requests.alter(1, 1, [1, 2], 1))
    assert altered.fields == {"newSyncStateSetEpoch": "2"}
    assert altered.body == {"syncStateSet": [1, 2], "syncStateSetEpoch": 2}
    assert await subject.info() == ("1", 1, [1, 2])


async def test_the_first_election_waits_for_the_heartbeat(subject: ControllerSubject) -> None:
    """Java sends both at once, from two threads."""
    first, second = subject.replica(1), subject.replica(2)
    await first.join()
    await first.beat(epoch=3, end=500)
    code = f"{second.address};1"
    assert (await second.ask(requests.apply_id(2, code))).code == 0
    assert (await second.ask(requests.register(2, second.address))).code == 0
    asked = asyncio.create_task(second.ask(requests.elect(2)))
    await asyncio.sleep(0)
    await second.beat(epoch=3, end=900)
    assert (await asked).fields["masterBrokerId"] == "2"
    assert await subject.info() == ("2", 4, [2])


async def test_the_end_of_the_master_s_connection_elects_at_once(
    subject: ControllerSubject,
) -> None:
    first, second, third = await subject.group_of(1, 2, 3)
    await second.beat(1, 100)
    await third.beat(1, 200)
    await first.client.close()
    await subject.until_info("3", 2, [3])


async def test_a_silent_master_is_dead_after_its_timeout(subject: ControllerSubject) -> None:
    first, second = await subject.group_of(1, 2)
    await first.beat(1, 100, timeout_ms=3_000)
    pass_time(subject, 2_000)
    await second.beat(1, 100)
    pass_time(subject, 1_000)
    assert await subject.info() == ("1", 1, [1, 2])
    pass_time(subject, 1)
    await subject.until_info("2", 2, [2])


async def test_a_slave_that_dies_causes_no_election(subject: ControllerSubject) -> None:
    first, second = await subject.group_of(1, 2)
    await second.client.close()
    await until(lambda: 2 not in subject.controller.parts.elections.sight("broker-a").alive)
    pass_time(subject, 20_000)
    await first.beat(1)
    assert subject.controller.parts.elections.counts["new_master"] == 1


async def test_without_a_candidate_the_group_waits_for_one(subject: ControllerSubject) -> None:
    first, _, third = await subject.group_of(1, 2, 3)
    assert (await first.ask(requests.alter(1, 1, [1], 2))).code == 0
    await first.client.close()
    await subject.until_info(None, 2, [1])
    assert (await third.ask(requests.elect(3))).code == 2012
    pass_time(subject, 5_000)
    assert await subject.info() == (None, 2, [1])
    await subject.replica(1).beat(1, 100)
    await subject.until_info("1", 3, [1])


async def test_an_unclean_election_if_it_is_allowed(tmp_path: Path, clock: ManualClock) -> None:
    async with ControllerSubject(tmp_path, clock, enable_elect_unclean_master=True) as subject:
        first, second = await subject.group_of(1, 2)
        assert (await first.ask(requests.alter(1, 1, [1], 2))).code == 0
        await second.beat(1, 100)
        await first.client.close()
        await subject.until_info("2", 2, [2])


async def test_a_heartbeat_for_the_id_of_another_broker_does_not_count(
    subject: ControllerSubject,
) -> None:
    first, _ = await subject.group_of(1, 2)
    copied = subject.replica(1)
    copied.address = "10.9.9.9:10911"
    assert (await copied.ask(requests.register(1, copied.address))).code == 2014
    refused = await copied.beat(5, 1 << 40)
    assert refused.code == 2014
    assert f"is registered at {first.address}, not at 10.9.9.9:10911" in str(refused.remark)
    assert subject.controller.parts.elections.sight("broker-a").alive[1].end_offset == 0
    assert (await copied.beat(cluster="other")).code == 2008
    assert (await subject.ask(requests.heartbeat(None, first.address))).code == 2005
    assert (await subject.ask(requests.heartbeat(1, "h:1", name="unknown"))).code == 2008


# --- notices --------------------------------------------------------------------------------------


class _Notified:
    """A port of a broker, for notices."""

    def __init__(self) -> None:
        self.requests: list[Command] = []
        self.server = RemotingServer(self, host="127.0.0.1")

    def on_open(self, channel: Channel) -> None:
        """Do nothing."""

    def on_closed(self, channel: Channel) -> None:
        """Do nothing."""

    def on_request(self, channel: Channel, request: Command) -> None:
        self.requests.append(request)


async def test_living_brokers_are_notified(subject: ControllerSubject) -> None:
    ports = [_Notified(), _Notified()]
    replicas: list[Replica] = []
    for number, port in enumerate(ports, 1):
        await port.server.start()
        replica = subject.replica(number)
        replica.address = f"127.0.0.1:{port.server.port}"
        await replica.join()
        replicas.append(replica)
    await replicas[0].ask(requests.elect(1))
    await until(lambda: all(port.requests for port in ports))
    notice = ports[1].requests[0]
    assert (notice.code, notice.is_oneway) == (RequestCode.NOTIFY_BROKER_ROLE_CHANGED, True)
    assert notice.ext_fields == {
        "masterBrokerId": "1",
        "masterAddress": replicas[0].address,
        "masterEpoch": "1",
        "syncStateSetEpoch": "1",
    }
    assert notice.body == b'{"syncStateSet":[1],"syncStateSetEpoch":1}'
    await replicas[0].ask(requests.alter(1, 1, [1, 2], 1))
    await replicas[0].client.close()
    await until(lambda: len(ports[1].requests) == 2)
    assert ports[1].requests[1].ext_fields is not None
    assert ports[1].requests[1].ext_fields["masterBrokerId"] == "2"
    assert len(ports[0].requests) == 1
    for port in ports:
        await port.server.stop()


# --- restarts and disks ---------------------------------------------------------------------------


async def test_after_a_start_masters_are_presumed_to_be_alive(tmp_path: Path) -> None:
    clock = ManualClock(1)
    async with ControllerSubject(tmp_path, clock) as before:
        await before.group_of(1, 2)
    async with ControllerSubject(tmp_path, clock) as subject:
        second = subject.replica(2)
        await second.beat(1, 100)
        assert (await second.ask(requests.elect(2))).code == 2011
        pass_time(subject, 10_000)
        await second.beat(1, 100)
        assert await subject.info() == ("1", 1, [1, 2])
        pass_time(subject, 1)
        await subject.until_info("2", 2, [2])


async def test_a_controller_that_slept_listens_before_an_election(
    subject: ControllerSubject, clock: ManualClock
) -> None:
    first, second = await subject.group_of(1, 2)
    clock.advance(60_000)
    await second.beat(1, 100)
    subject.controller.parts.elections.check_all()
    assert await subject.info() == ("1", 1, [1, 2])
    await first.beat(1, 100)
    pass_time(subject, 9_000)
    assert await subject.info() == ("1", 1, [1, 2])


async def test_nothing_is_answered_that_a_power_cut_forgets(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    disk, chance = LossyDisk(root), seeded("controller", 1)
    for loss in Loss:
        async with ControllerSubject(root / loss.name, disk=disk) as subject:
            await subject.group_of(1, 2)
            known = await subject.info()
            disk.lose_power(chance, loss, before=subject.controller.store.abandon)
        async with ControllerSubject(root / loss.name, disk=disk) as subject:
            assert await subject.info() == known


async def test_what_cannot_be_saved_is_refused_and_tried_again(
    subject: ControllerSubject, disk: _FailingDisk
) -> None:
    first, second = await subject.group_of(1, 2)
    await second.beat(1, 100)
    disk.fails = True
    refused = await first.ask(requests.alter(1, 1, [1], 2))
    assert refused.code == 1
    assert "No space left on device" in str(refused.remark)
    assert await subject.info() == ("1", 1, [1, 2])
    await first.client.close()
    elections = subject.controller.parts.elections
    await until(lambda: elections.counts["failed"] > 0)
    assert await subject.info() == ("1", 1, [1, 2])
    disk.fails = False
    pass_time(subject, 1_000)
    await subject.until_info("2", 2, [2])
    assert elections.failure == ""


async def test_a_start_that_fails_releases_everything(tmp_path: Path, disk: _FailingDisk) -> None:
    async with ControllerSubject(tmp_path) as running:
        second = ControllerSubject(tmp_path)
        with pytest.raises(StoreUnavailable, match="another controller"):
            await second.controller.start()
        state = Path(running.controller.store.path)
    disk.fails = True
    with pytest.raises(WriteFailed):
        await ControllerSubject(tmp_path, disk=disk).controller.start()
    state.write_bytes(state.read_bytes()[:-1])  # noqa: ASYNC240 - nothing else runs
    with pytest.raises(CorruptRecord, match="checksum"):
        await ControllerSubject(tmp_path).controller.start()


async def test_stop_twice_and_start_again(tmp_path: Path) -> None:
    async with ControllerSubject(tmp_path) as subject:
        await subject.controller.stop()
        await subject.controller.stop()
        await subject.controller.start()
        assert (await subject.ask(requests.metadata())).code == 0


# --- operators ------------------------------------------------------------------------------------


async def test_metadata_names_the_address_that_was_used(subject: ControllerSubject) -> None:
    reply = await subject.ask(requests.metadata())
    assert reply.fields == {
        "group": "reput",
        "controllerLeaderId": "n0",
        "controllerLeaderAddress": subject.address,
        "isLeader": "true",
        "peers": f"n0:{subject.address};",
    }


async def test_metadata_names_the_configured_address(tmp_path: Path) -> None:
    settings = {
        "controller_d_leger_group": "group1",
        "controller_d_leger_self_id": "n2",
        "controller_d_leger_peers": "n2-controller.example:9878",
    }
    async with ControllerSubject(tmp_path, **settings) as subject:
        fields = (await subject.ask(requests.metadata())).fields
    assert fields["controllerLeaderAddress"] == "controller.example:9878"
    assert (fields["group"], fields["peers"]) == ("group1", "n2:controller.example:9878;")


async def test_the_replicas_of_groups(subject: ControllerSubject) -> None:
    first, second = await subject.group_of(1, 2)
    await first.ask(requests.alter(1, 1, [1], 2))
    await second.client.close()
    await until(lambda: 2 not in subject.controller.parts.elections.sight("broker-a").alive)
    reply = await subject.ask(requests.in_sync_data(["broker-a", "unknown"]))
    replicas = [
        {
            "alive": replica is first,
            "brokerAddress": replica.address,
            "brokerId": replica.broker_id,
            "brokerName": "broker-a",
        }
        for replica in (first, second)
    ]
    assert reply.body == {
        "replicasInfoTable": {
            "broker-a": {
                "inSyncReplicas": replicas[:1],
                "masterAddress": first.address,
                "masterBrokerId": 1,
                "masterEpoch": 1,
                "notInSyncReplicas": replicas[1:],
                "syncStateSetEpoch": 3,
            }
        }
    }
    assert (await subject.ask(requests.in_sync_data([]))).code == 1


async def test_an_operator_moves_the_master_and_cleans(subject: ControllerSubject) -> None:
    first, second = await subject.group_of(1, 2)
    await second.beat(1, 100)
    moved = await subject.ask(requests.elect(2, designate=True))
    assert moved.fields["masterBrokerId"] == "2"
    assert moved.body == {
        "brokerMemberGroup": {
            "brokerAddrs": {"1": first.address, "2": second.address},
            "brokerName": "broker-a",
            "cluster": "DefaultCluster",
        },
        "syncStateSet": [2],
    }
    assert (await subject.ask(requests.clean("1"))).code == 2009
    assert (await subject.ask(requests.clean("1", living=True))).code == 0
    assert (await first.ask(requests.register(1, first.address))).code == 2010
    assert (await subject.ask(requests.clean(living=True))).code == 0
    assert (await subject.ask(requests.replica_info())).code == 2008


async def test_settings_change_while_it_runs(subject: ControllerSubject) -> None:
    change = Command(RequestCode.UPDATE_CONTROLLER_CONFIG, body=b"enableElectUncleanMaster=true")
    assert (await subject.ask(change)).code == 0
    assert subject.controller.config.value.enable_elect_unclean_master
    text = (await subject.ask(Command(RequestCode.GET_CONTROLLER_CONFIG))).body.decode()
    assert "enableElectUncleanMaster=true\n" in text
    refused = Command(RequestCode.UPDATE_CONTROLLER_CONFIG, body=b"controllerStorePath=/x")
    assert (await subject.ask(refused)).code == 16


async def test_a_request_that_no_controller_knows(subject: ControllerSubject) -> None:
    assert (await subject.ask(Command(1014, ext_fields={}))).code == 3


async def test_one_that_does_not_lead_says_so(subject: ControllerSubject) -> None:
    await subject.group_of(1, 2)
    subject.controller.parts.groups.step_down()
    assert (await subject.ask(requests.replica_info())).code == 2007
    assert (await subject.ask(requests.metadata())).fields["isLeader"] == "false"
