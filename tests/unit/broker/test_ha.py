"""907, 908: a master without slaves. The fields are those of 5.5.0 ``HARuntimeInfo``."""

import json
from pathlib import Path

import broker_subject
from broker_subject import Subject
from reput.format.codes import RequestCode, ResponseCode
from reput.store.config import BrokerRole


async def test_a_master_has_no_slaves(subject: Subject) -> None:
    reply = await subject.ask(RequestCode.GET_BROKER_HA_STATUS)
    assert json.loads(reply.body) == {
        "haConnectionInfo": [],
        "inSyncSlaveNums": 0,
        "master": True,
        "masterCommitLogMaxOffset": subject.broker.store.max_physical_offset,
    }
    reply = await subject.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET)
    assert reply.code == ResponseCode.SUCCESS


async def test_a_slave_says_that_it_copies_nothing(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path, store={"broker_role": BrokerRole.SLAVE}) as subject:
        for code in (RequestCode.GET_BROKER_HA_STATUS, RequestCode.RESET_MASTER_FLUSH_OFFSET):
            reply = await subject.ask(code)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "replication is not supported" in str(reply.remark)
