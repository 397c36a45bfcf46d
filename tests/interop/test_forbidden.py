"""Refused pulls and their reasons: on our broker; with ``REPUT_INTEROP=all`` on 5.5.0 as well."""

from collections.abc import AsyncIterator, Iterator

import pytest

from interop import wire
from interop.clusters import KINDS, Cluster, start_cluster
from interop.wire import Remote
from reput.client import Admin
from reput.format.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
    encode,
)
from reput.format.codes import PullFlag, RequestCode, ResponseCode
from reput.format.headers import GroupForbiddenHeader

pytestmark = [pytest.mark.interop, pytest.mark.rotating]


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with start_cluster(request.param, "5.5.0", tmp_path_factory.mktemp("forbidden")) as running:
        yield running


@pytest.fixture
async def broker(cluster: Cluster) -> AsyncIterator[Remote]:
    async with wire.connected(cluster.address) as connection:
        yield connection


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.namesrv) as started:
        yield started


async def refusal(broker: Remote, topic: str, group: str, sys_flag: int) -> dict[str, str] | None:
    reply = await broker.pull(topic, 0, 0, consumer_group=group, sys_flag=sys_flag)
    assert reply.code == ResponseCode.NO_PERMISSION, reply.remark
    return reply.ext_fields


async def test_a_group_without_consume_permission_is_refused(
    cluster: Cluster, broker: Remote, admin: Admin
) -> None:
    await admin.create_topic("T", broker=cluster.address)
    idle = SubscriptionGroupConfig(group_name="idle", consume_enable=False)
    await admin.create_group(idle, broker=cluster.address)
    fields = await refusal(broker, "T", "idle", PullFlag.HAS_SUBSCRIPTION)
    assert fields == {"forbiddenType": "2"}


async def test_a_topic_without_read_permission_is_refused(
    cluster: Cluster, broker: Remote, admin: Admin
) -> None:
    await admin.create_topic("Written", perm=2, broker=cluster.address)
    await admin.create_group("G", broker=cluster.address)
    fields = await refusal(broker, "Written", "G", PullFlag.HAS_SUBSCRIPTION)
    assert fields == {"forbiddenType": "3"}


async def test_a_group_without_permission_for_a_topic_is_refused(
    cluster: Cluster, broker: Remote, admin: Admin
) -> None:
    await admin.create_topic("T", broker=cluster.address)
    await admin.create_group("kept-out", broker=cluster.address)
    header = GroupForbiddenHeader(group="kept-out", topic="T", readable=False)
    reply = await broker.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    member = ConsumerData(
        consume_from_where="CONSUME_FROM_LAST_OFFSET", consume_type="CONSUME_PASSIVELY",
        group_name="kept-out", message_model="CLUSTERING", unit_mode=False,
        subscription_data_set=[SubscriptionData(topic="T", sub_string="*", sub_version=1)],
    )  # fmt: skip
    data = HeartbeatData(client_id="one", consumer_data_set=[member], producer_data_set=[])
    reply = await broker.ask(RequestCode.HEART_BEAT, None, encode(data))
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    assert await refusal(broker, "T", "kept-out", 0) == {"forbiddenType": "5"}
