"""Codes 906, 1007 and 1008, of brokers under our controller and of one without."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import replica_requests as requests
import world
from controller_subject import ControllerSubject
from reput.broker.replicas.member import Member
from reput.errors import RequestRefused
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from world import Subject, until

OPEN_END = 9223372036854775807
"""End of the last epoch, as a broker of RocketMQ 5.5.0 answers."""


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[ControllerSubject]:
    async with ControllerSubject(tmp_path / "controller") as running:
        yield running


def broker(
    controller: ControllerSubject, folder: Path, namesrv: str = "", **store: Any
) -> AbstractAsyncContextManager[Subject]:
    return world.broker(
        folder,
        store={"all_ack_in_sync_state_set": True, "ha_listen_port": 0, **store},
        enable_controller_mode=True,
        controller_addr=controller.address,
        broker_id=-1,
        broker_heartbeat_interval=100,
        broker_ip2="127.0.0.1",
        namesrv_addr=namesrv,
    )


def member_of(subject: Subject) -> Member:
    assert subject.parts.member is not None
    return subject.parts.member


async def until_master(epoch: int, *subjects: Subject) -> Subject:
    """Wait until one of them has entered the role of the master; return it."""

    def masters() -> list[Subject]:
        return [
            subject
            for subject in subjects
            if subject.broker.identity.is_master
            and member_of(subject)._entered.epoch == epoch
            and member_of(subject).epochs.last == epoch
        ]

    await until(masters)
    return masters()[0]


async def asked(subject: Subject, code: RequestCode) -> Any:
    reply = await subject.ask(code)
    assert reply.code == ResponseCode.SUCCESS, reply
    return json.loads(reply.body) if reply.body else reply.ext_fields


async def test_a_group_fails_over_with_its_epochs(
    controller: ControllerSubject, tmp_path: Path
) -> None:
    async with (
        world.name_server(tmp_path / "names") as names,
        broker(controller, tmp_path / "second", world.address_of(names)) as second,
        broker(controller, tmp_path / "first", world.address_of(names)) as first,
    ):

        def listed_epoch(subject: Subject) -> int:
            """Return the epoch in which a broker registered as master; 0 if it has not."""
            version = names.routes.data_version(subject.address)
            return 0 if version is None else version.state_version

        master = await until_master(1, first, second)
        slave = first if master is second else second
        info = await asked(master, RequestCode.EXCHANGE_BROKER_HA_INFO)
        assert info["masterHaAddress"] == master.broker.identity.ha_address
        assert info["masterAddress"] == master.address
        await until(lambda: len(master.broker.store.in_sync.members) == 2)
        await until(lambda: (listed_epoch(master), listed_epoch(slave)) == (1, 0))
        sent = await master.send("T", b"before")
        assert sent.code == ResponseCode.SUCCESS
        end = slave.broker.store.max_physical_offset
        assert end == master.broker.store.max_physical_offset
        assert await asked(master, RequestCode.GET_BROKER_EPOCH_CACHE) == {
            "brokerId": 0,
            "brokerName": requests.NAME,
            "clusterName": requests.CLUSTER,
            "epochList": [{"endOffset": OPEN_END, "epoch": 1, "startOffset": 0}],
            "maxOffset": end,
        }
        of_slave = await asked(slave, RequestCode.GET_BROKER_EPOCH_CACHE)
        assert of_slave["brokerId"] == member_of(slave).broker_id
        assert await asked(slave, RequestCode.EXCHANGE_BROKER_HA_INFO) == {}
        await master.broker.stop()
        await until_master(2, slave)
        await until(lambda: listed_epoch(slave) == 2)  # a name server ignores an older master
        assert (await slave.send("T", b"after")).code == ResponseCode.SUCCESS
        cache = await asked(slave, RequestCode.GET_BROKER_EPOCH_CACHE)
        assert cache["epochList"] == [
            {"endOffset": end, "epoch": 1, "startOffset": 0},
            {"endOffset": OPEN_END, "epoch": 2, "startOffset": end},
        ]


async def test_a_forged_notice_only_makes_a_broker_ask(
    controller: ControllerSubject, tmp_path: Path
) -> None:
    async with broker(controller, tmp_path / "first") as subject:
        await until_master(1, subject)
        member = member_of(subject)
        before, answered_ms = member.mastership, member.answered_ms
        notice = Command(
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
            ext_fields={
                "masterAddress": "127.0.0.1:9",
                "masterBrokerId": "2",
                "masterEpoch": "9",
                "syncStateSetEpoch": "9",
            },
            body=b'{"syncStateSet":[2],"syncStateSetEpoch":9}',
        )
        reply = await subject.client.invoke(subject.address, notice, world.TIMEOUT_MS)
        assert reply.code == ResponseCode.SUCCESS
        await until(lambda: member.answered_ms > answered_ms)
        assert member.mastership == before
        assert member.lease.is_valid
        assert subject.broker.identity.is_master
        assert (await subject.send("T", b"still")).code == ResponseCode.SUCCESS
        with pytest.raises(RequestRefused, match="the controller names the master"):
            subject.broker.settings.check_remote({"brokerRole": "SLAVE"}, may_change_role=True)


async def test_a_broker_without_a_controller(subject: Subject) -> None:
    for code in (RequestCode.GET_BROKER_EPOCH_CACHE, RequestCode.NOTIFY_BROKER_ROLE_CHANGED):
        reply = await subject.ask(code)
        assert (reply.code, reply.remark) == (1, "this request only for controllerMode ")
