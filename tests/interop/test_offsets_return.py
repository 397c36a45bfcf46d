"""A master of ours that restarts asks its slaves for offsets that consumers committed there."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from interop.clusters import until
from interop.pairs import REPUT, Pair, asked, committed, tables
from interop.wire import Remote
from reput.client import Message, blocking
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import UpdateConsumerOffsetHeader

pytestmark = [
    pytest.mark.rotating,
    pytest.mark.interop,
    pytest.mark.xdist_group("test_offsets_return"),
]

COUNT = 20
GROUPS = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG.name


def commit(address: str, offsets: Sequence[int]) -> None:
    async def question(remote: Remote) -> None:
        for consumer_offset in offsets:
            header = UpdateConsumerOffsetHeader(
                consumer_group="g", topic="T", queue_id=0, commit_offset=consumer_offset
            )
            reply = await remote.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            assert reply.code == ResponseCode.SUCCESS

    asked(address, question)


@pytest.mark.parametrize(
    ("slave", "commits", "returns"),
    [
        (REPUT, 1, True),
        # consumerOffsetUpdateVersionStep is 500: the version of its table rises so rarely.
        ("5.5.0", 1_500, True),
        # Its reply has no version: it may be older than what an operator has set on the master.
        ("4.9.7", 1, False),
    ],
)
def test_offsets_of_slaves_return(slave: str, commits: int, returns: bool, tmp_path: Path) -> None:
    with Pair(REPUT, slave, tmp_path) as pair:
        with blocking.Admin(pair.namesrv) as admin:
            admin.create_topic("T", queue_count=1, broker=pair.master.address)
            admin.create_group("g", broker=pair.master.address)  # 5.x takes commits of known groups
        with blocking.Producer("P", namesrv=pair.namesrv) as producer:
            for number in range(COUNT):
                producer.send(Message("T", b"%d" % number), queue=MessageQueue("T", "broker-a", 0))
        commit(pair.master.address, [5])
        pair.until_synced(lambda: committed(pair.slave.address, "g", "T", 0) == 5)
        pair.until_synced(lambda: "g" in tables(pair.slave.address)[GROUPS])
        pair.until_caught_up("T")
        path = pair.master.store / "config/consumerOffset.json"
        until(lambda: path.exists() and '"0":5' in path.read_text())
        pair.master.kill_broker()
        commit(pair.slave.address, [COUNT - 3] * commits)
        pair.master.start()
        assert committed(pair.master.address, "g", "T", 0) == (COUNT - 3 if returns else 5)
