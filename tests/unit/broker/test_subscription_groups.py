"""200, 201, 207, 225, 352 at a broker."""

import json
from pathlib import Path

import pytest

import broker_subject
from broker_subject import Subject
from reput.format import bodies
from reput.format.bodies import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import GroupHeader, GroupNameHeader
from reput.store.config import BrokerRole

# As mqadmin 4.9.7 sends it.
OF_JAVA = (
    b'{"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":true,'
    b'"consumeFromMinEnable":false,"groupName":"group","notifyConsumerIdsChangedEnable":true,'
    b'"retryMaxTimes":3,"retryQueueNums":2,"whichBrokerWhenConsumeSlowly":1}'
)


async def create(subject: Subject, body: bytes = OF_JAVA) -> int:
    reply = await subject.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    return reply.code


async def test_a_group_is_told_as_it_was_set(subject: Subject) -> None:
    assert await create(subject) == ResponseCode.SUCCESS
    reply = await subject.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader(group="group"))
    # All of it, what Java has as default too: a client in Go takes what is left out for 0.
    assert json.loads(reply.body) == json.loads(OF_JAVA)
    reply = await subject.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert json.loads(reply.body)["subscriptionGroupTable"]["group"] == json.loads(OF_JAVA)
    table = bodies.decode(SubscriptionGroupTable, reply.body)
    assert table.data_version.counter == subject.broker.subscription_groups.table.version.counter
    assert {"TOOLS_CONSUMER", "CID_ONSAPI_OWNER"} <= table.subscription_group_table.keys()


async def test_a_group_is_on_disk_before_the_reply(subject: Subject) -> None:
    path = Path(subject.broker.store.root) / "config/subscriptionGroup.json"
    await create(subject)
    assert json.loads(path.read_text())["subscriptionGroupTable"]["group"]["retryMaxTimes"] == 3
    header = GroupNameHeader(group_name="group")
    await subject.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
    assert "group" not in json.loads(path.read_text())["subscriptionGroupTable"]


async def test_asking_for_a_group_makes_none(subject: Subject) -> None:
    reply = await subject.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader(group="none"))
    assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert subject.broker.subscription_groups.get("none") is None


async def test_of_a_list_all_are_made_or_none(subject: Subject) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    good, bad = SubscriptionGroupConfig(group_name="good"), SubscriptionGroupConfig(group_name=" ")
    reply = await subject.tell(code, SubscriptionGroupList(group_config_list=[good, bad]))
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "the group's name is blank")
    assert subject.broker.subscription_groups.get("good") is None
    reply = await subject.tell(code, SubscriptionGroupList(group_config_list=[good]))
    assert reply.code == ResponseCode.SUCCESS
    assert subject.broker.subscription_groups.get("good") is not None


@pytest.mark.parametrize("field", ["retryQueueNums", "retryMaxTimes"])
async def test_numbers_that_make_no_sense_are_refused(subject: Subject, field: str) -> None:
    body = json.dumps({**json.loads(OF_JAVA), field: -5}).encode()
    assert await create(subject, body) == ResponseCode.SYSTEM_ERROR
    assert subject.broker.subscription_groups.get("group") is None


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [({}, True), ({"remove_offset": True}, False), ({"clean_offset": True}, False)],
)
async def test_offsets_of_a_deleted_group_go_if_asked_for(
    subject: Subject, fields: dict[str, bool], is_kept: bool
) -> None:
    await create(subject)
    subject.broker.consumer_offsets.put("T", "group", 3, 1)
    subject.broker.consumer_offsets.put("T", "other", 3, 1)
    header = broker_subject.with_fields(GroupNameHeader(group_name="group"), fields)
    reply = await subject.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
    assert reply.code == ResponseCode.SUCCESS
    assert (subject.broker.consumer_offsets.get("T", "group", 3) == 1) is is_kept
    assert subject.broker.consumer_offsets.get("T", "other", 3) == 1


async def test_a_slave_has_its_groups_from_its_master(tmp_path: Path) -> None:
    async with broker_subject.running(
        tmp_path, store={"broker_role": BrokerRole.SLAVE}, broker_id=1
    ) as subject:
        assert await create(subject) == ResponseCode.SYSTEM_ERROR
