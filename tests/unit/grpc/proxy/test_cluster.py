"""What a proxy concludes from brokers that do not answer."""

import asyncio
from typing import Any, cast

import pytest

from reput.clock import ManualClock
from reput.errors import RequestTimedOut
from reput.format import bodies
from reput.format.bodies import BrokerData, ClusterInfo
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.grpc.proxy.cluster import Cluster
from reput.grpc.statuses import Code, StatusError

BROKER = "192.0.2.1:10911"


class SlowBroker:
    """Connections to a broker that answers heartbeats alone, or refuses all else."""

    def __init__(self, version: int, *, refuses: bool = False) -> None:
        self.version = version
        self.refuses = refuses

    async def invoke(self, address: str, request: Command, timeout_ms: int) -> Command:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            broker = BrokerData(cluster="c", broker_name="a", broker_addrs={0: BROKER})
            info = ClusterInfo(broker_addr_table={"a": broker}, cluster_addr_table={"c": ["a"]})
            return Command(0, body=bodies.encode(info))
        if request.code == RequestCode.HEART_BEAT:
            return Command(0, version=self.version)
        if self.refuses:
            return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        raise RequestTimedOut(address, request.code, timeout_ms)


def test_a_broker_that_refuses_the_requests_of_5_0_is_an_old_one() -> None:
    async def check() -> None:
        remoting = cast(Any, SlowBroker(407, refuses=True))
        cluster = Cluster(["192.0.2.9:9876"], remoting, ManualClock(1))
        with pytest.raises(StatusError) as refused:
            await cluster.groups.get("readers")
        assert refused.value.code == Code.NOT_IMPLEMENTED
        await cluster.close()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("version", "is_old"),
    [
        (363, True),  # 4.7.5, which does not answer requests that it does not know
        (407, False),  # 4.9.7, as reput says, too
        (423, False),  # 5.0.5
    ],
)
def test_a_broker_that_answers_late_is_not_an_old_one(version: int, is_old: bool) -> None:
    async def check() -> None:
        cluster = Cluster(["192.0.2.9:9876"], cast(Any, SlowBroker(version)), ManualClock(1))
        if is_old:
            with pytest.raises(StatusError) as refused:
                await cluster.groups.get("readers")
            assert refused.value.code == Code.NOT_IMPLEMENTED
        else:
            with pytest.raises(RequestTimedOut):
                await cluster.groups.get("readers")
        await cluster.close()

    asyncio.run(check())
