"""Codes 907 and 908: what ``mqadmin haStatus`` and ``resetMasterFlushOffset`` of 5.5.0 need."""

import json
from pathlib import Path

import world
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import ResetMasterFlushOffsetHeader
from world import Subject

CLIENT_FIELDS = {
    "lastReadTimestamp", "lastWriteTimestamp", "masterFlushOffset", "maxOffset",
    "transferredByteInSecond",
}  # fmt: skip
"""Fields of ``HAClientRuntimeInfo`` without a master: Java omits masterAddr, which is null."""


async def test_a_master_without_slaves(subject: Subject) -> None:
    await subject.send("T", b"body")
    reply = await subject.ask(RequestCode.GET_BROKER_HA_STATUS)
    body = json.loads(reply.body)
    assert set(body.pop("haClientRuntimeInfo")) == CLIENT_FIELDS
    assert body == {
        "haConnectionInfo": [],
        "inSyncSlaveNums": 0,
        "master": True,
        "masterCommitLogMaxOffset": subject.parts.store.max_physical_offset,
    }


async def test_a_master_ignores_a_reset(subject: Subject) -> None:
    header = ResetMasterFlushOffsetHeader(master_flush_offset=7)
    reply = await subject.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET, header)
    assert reply.code == ResponseCode.SUCCESS
    status = json.loads((await subject.ask(RequestCode.GET_BROKER_HA_STATUS)).body)
    assert status["haClientRuntimeInfo"]["masterFlushOffset"] == 0


async def test_a_slave_reports_its_connection_and_takes_a_reset(tmp_path: Path) -> None:
    async with world.slave(tmp_path) as slave:
        header = ResetMasterFlushOffsetHeader(master_flush_offset=7)
        reply = await slave.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET, header)
        assert reply.code == ResponseCode.SUCCESS
        slave.parts.replication.follower.status.master_ha_address = "10.0.0.1:10912"
        body = json.loads((await slave.ask(RequestCode.GET_BROKER_HA_STATUS)).body)
        table = json.loads((await slave.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    # The column #ACTIVATED of mqadmin clusterList.
    assert table["brokerActive"] == "false"
    client = body.pop("haClientRuntimeInfo")
    assert set(client) == CLIENT_FIELDS | {"masterAddr"}
    assert client["masterAddr"] == "10.0.0.1:10912"
    assert client["masterFlushOffset"] == 7
    assert body == {
        "haConnectionInfo": [],
        "inSyncSlaveNums": 0,
        "master": False,
        "masterCommitLogMaxOffset": 0,
    }


async def test_a_reset_needs_an_offset(subject: Subject) -> None:
    reply = await subject.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "masterFlushOffset" in (reply.remark or "")
