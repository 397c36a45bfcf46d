"""What a master that starts takes back from its slaves."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import world
from reput.broker.replication import reverse_fetch
from reput.clock import ManualClock
from reput.format import bodies, command
from reput.format.bodies import BrokerData, ClusterInfo
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import UpdateConsumerOffsetHeader
from reput.store.config import BrokerRole
from scripted_cluster import ScriptedServer
from scripted_master import SIZES, ScriptedMaster
from world import CLUSTER, NAME, Subject

NOW_MS = 1_700_000_000_000
COUNT = 10


class Group:
    """A name server, the folder of a master that has stopped, and a slave with its log."""

    def __init__(self, folder: Path, name_server: ScriptedServer, slave: ScriptedMaster) -> None:
        self.folder = folder
        self.slave = slave
        self.addresses = {0: "127.0.0.1:1", 1: slave.address}
        self._name_server = name_server
        name_server.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = self._listed
        slave.settings["brokerRole"] = "SLAVE"
        self.answer({"T@g": {"0": 7}})

    def _listed(self, request: Command) -> Command:
        broker = BrokerData(broker_addrs=self.addresses, broker_name=NAME, cluster=CLUSTER)
        info = ClusterInfo(broker_addr_table={NAME: broker}, cluster_addr_table={CLUSTER: [NAME]})
        return command.reply(request, body=bodies.encode(info))

    def answer(self, offsets: dict[str, dict[str, int]], changed_ms: int | None = NOW_MS) -> None:
        table: dict[str, Any] = {"offsetTable": offsets}
        if changed_ms is not None:
            table["dataVersion"] = {"counter": 1, "stateVersion": 0, "timestamp": changed_ms}
        self.answer_text(json.dumps(table))

    def answer_text(self, text: str) -> None:
        self.slave.answers[RequestCode.GET_ALL_CONSUMER_OFFSET] = lambda request: command.reply(
            request, body=text.encode()
        )

    async def offsets(self) -> list[int | None]:
        """Start the master; return the consumer offsets of groups g and new in two queues."""
        async with started(self.folder, self._name_server.address) as subject:
            table = subject.parts.deliveries.consumer_offsets
            return [table.get("T", group, queue) for group in ("g", "new") for queue in (0, 1)]


def started(
    root: Path, namesrv: str = "", **settings: Any
) -> contextlib.AbstractAsyncContextManager[Subject]:
    clock = ManualClock(NOW_MS)
    return world.broker(root, clock=clock, store={**SIZES, **settings}, namesrv_addr=namesrv)


async def commit(subject: Subject, consumer_offset: int, group: str = "g") -> None:
    header = UpdateConsumerOffsetHeader(
        consumer_group=group, topic="T", queue_id=0, commit_offset=consumer_offset
    )
    reply = await subject.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert reply.code == ResponseCode.SUCCESS


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    """Return a group whose offset in queue 0 is 4 on the master, and 7 on the slave."""
    async with started(tmp_path / "master") as subject:
        for number in range(COUNT):
            await subject.send("T", b"%d" % number)
        await commit(subject, 4)
    shutil.copytree(tmp_path / "master", tmp_path / "slave")
    name_server = ScriptedServer()
    await name_server.start()
    async with ScriptedMaster(tmp_path / "slave") as slave:
        yield Group(tmp_path / "master", name_server, slave)
    await name_server.stop()


async def test_a_larger_offset_is_taken(group: Group) -> None:
    assert await group.offsets() == [7, None, None, None]


async def test_a_new_group_is_taken(group: Group) -> None:
    group.answer({"T@new": {"0": 3, "1": 0}})
    assert await group.offsets() == [4, None, 3, 0]


async def test_keys_without_quotes_as_in_older_versions(group: Group) -> None:
    group.answer_text(
        f'{{"dataVersion":{{"counter":0,"timestamp":{NOW_MS}}},"offsetTable":{{"T@g":{{0:8}}}}}}'
    )
    assert await group.offsets() == [8, None, None, None]


async def test_no_offset_passes_the_end_of_its_queue(group: Group) -> None:
    group.answer({"T@g": {"0": 1_000, "1": 1_000}, "Unknown@g": {"0": 1}})
    assert await group.offsets() == [COUNT, 0, None, None]


async def test_no_offset_is_lowered(group: Group) -> None:
    group.answer({"T@g": {"0": 3}})
    assert await group.offsets() == [4, None, None, None]


async def test_offsets_of_the_brokers_own_groups_are_not_taken(group: Group) -> None:
    name = "CID_RMQ_SYS_TRANS"
    group.answer({f"T@{name}": {"0": 5}})
    async with started(group.folder, group._name_server.address) as subject:
        assert subject.parts.deliveries.consumer_offsets.get("T", name, 0) is None


async def test_an_older_table_is_not_taken(group: Group) -> None:
    """An operator has set the offset back on the master after the slave's last copy."""
    async with started(group.folder) as subject:
        subject.broker.clock.advance(1_000)  # type: ignore[attr-defined]
        table = subject.parts.deliveries.consumer_offsets
        table.current_version(subject.broker.clock.now_ms())
        table.put("T", "g", 0, 2)
    assert await group.offsets() == [2, None, None, None]
    group.answer({"T@g": {"0": 7}}, NOW_MS + 1_000)
    assert await group.offsets() == [7, None, None, None]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("brokerClusterName", "another"),
        ("brokerName", "broker-b"),
        ("brokerRole", "ASYNC_MASTER"),
    ],
)
async def test_another_broker_is_ignored(group: Group, key: str, value: str) -> None:
    group.slave.settings[key] = value
    assert await group.offsets() == [4, None, None, None]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"offsetTable":{"T@g":{"0":7}}}',  # 4.9.7 has no version
        '{"dataVersion":{"timestamp":1800000000000},"offsetTable":{"T@g":{"0":-7}}}',
        '{"dataVersion":{"timestamp":1800000000000},"offsetTable":{"T":{"0":7}}}',
        '{"dataVersion":{"timestamp":1800000000000},"offsetTable":7}',
    ],
)
async def test_a_bad_reply_changes_nothing(group: Group, text: str) -> None:
    group.answer_text(text)
    assert await group.offsets() == [4, None, None, None]


async def test_a_slave_with_another_log_is_ignored(group: Group, tmp_path: Path) -> None:
    """After a failover it followed another master, whose messages had the same offsets."""
    async with started(tmp_path / "master") as subject:
        await subject.send("T", b"only here")
    await group.slave.put(1, topic="Other")
    group.answer({"T@g": {"0": COUNT + 1}})
    assert await group.offsets() == [4, None, None, None]


@pytest.mark.parametrize("is_ahead", [False, True])
async def test_a_slave_with_a_shorter_or_longer_log(
    group: Group, tmp_path: Path, is_ahead: bool
) -> None:
    if is_ahead:  # the master has lost the end of its log in a power failure
        await group.slave.put(3, topic="Other")
    else:
        async with started(tmp_path / "master") as subject:
            await subject.send("T", b"only here")
    assert await group.offsets() == [7, None, None, None]


async def test_a_slave_may_have_a_part_of_a_record(group: Group, tmp_path: Path) -> None:
    async with started(tmp_path / "master") as subject:
        await subject.send("T", b"only here")
    end = group.slave.end
    answer = group.slave.answers[RequestCode.GET_BROKER_RUNTIME_INFO]

    def longer(request: Command) -> Command | None:
        reply = answer(request)
        assert reply is not None
        reply.body = bytes(reply.body).replace(str(end).encode(), str(end + 20).encode())
        return reply

    group.slave.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = longer
    assert await group.offsets() == [7, None, None, None]


async def test_a_slave_that_does_not_answer_delays_the_start_only_shortly(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reverse_fetch, "DURATION_S_MAX", 0.3)
    silent = ScriptedServer()
    silent.answers = dict.fromkeys(group.slave.answers, lambda _: None)
    await silent.start()
    group.addresses[2] = silent.address
    async with asyncio.timeout(30):
        assert await group.offsets() == [7, None, None, None]
    await silent.stop()


async def test_a_dead_name_server_or_slave_does_not_prevent_the_start(group: Group) -> None:
    group.addresses[1] = "127.0.0.1:1"
    assert await group.offsets() == [4, None, None, None]
    await group._name_server.stop()
    assert await group.offsets() == [4, None, None, None]


async def test_offsets_committed_on_our_slave_return(tmp_path: Path, group: Group) -> None:
    shutil.copytree(tmp_path / "master", tmp_path / "ours")
    config = {**SIZES, "broker_role": BrokerRole.SLAVE}
    clock = ManualClock(NOW_MS + 60_000)
    async with world.broker(tmp_path / "ours", clock=clock, store=config, broker_id=1) as slave:
        group.addresses[1] = slave.address
        assert await group.offsets() == [4, None, None, None]
        await commit(slave, 9)
        assert await group.offsets() == [9, None, None, None]
