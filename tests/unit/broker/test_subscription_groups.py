"""200, 201, 207, 225, 352, 353 at a broker."""

import json
from pathlib import Path

import pytest

import broker_subject
from broker_subject import Subject
from reput.format import bodies
from reput.format.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import GroupForbiddenHeader, GroupHeader, GroupNameHeader
from reput.store.config import BrokerRole

# As mqadmin 4.9.7 sends it.
OF_JAVA = (
    b'{"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":true,'
    b'"consumeFromMinEnable":false,"groupName":"group","notifyConsumerIdsChangedEnable":true,'
    b'"retryMaxTimes":3,"retryQueueNums":2,"whichBrokerWhenConsumeSlowly":1}'
)

# What 5.5's class of a group has besides, with its defaults.
OF_5 = {
    "attributes": {},
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
}
SETTINGS = json.loads(OF_JAVA) | OF_5


async def create(subject: Subject, body: bytes = OF_JAVA) -> int:
    reply = await subject.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    return reply.code


async def test_a_group_is_told_as_it_was_set(subject: Subject) -> None:
    assert await create(subject) == ResponseCode.SUCCESS
    reply = await subject.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader(group="group"))
    # All of it, what Java has as default too: a client in Go takes what is left out for 0.
    assert json.loads(reply.body) == SETTINGS
    reply = await subject.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert json.loads(reply.body)["subscriptionGroupTable"]["group"] == SETTINGS
    table = bodies.decode(SubscriptionGroupTable, reply.body)
    assert table.data_version.counter == subject.parts.subscription_groups.table.version.counter
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
    assert subject.parts.subscription_groups.get("none") is None


async def test_of_a_list_all_are_made_or_none(subject: Subject) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    good, bad = SubscriptionGroupConfig(group_name="good"), SubscriptionGroupConfig(group_name=" ")
    reply = await subject.tell(code, SubscriptionGroupList(group_config_list=[good, bad]))
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "the group's name is blank")
    assert subject.parts.subscription_groups.get("good") is None
    reply = await subject.tell(code, SubscriptionGroupList(group_config_list=[good]))
    assert reply.code == ResponseCode.SUCCESS
    assert subject.parts.subscription_groups.get("good") is not None


@pytest.mark.parametrize("field", ["retryQueueNums", "retryMaxTimes"])
async def test_numbers_that_make_no_sense_are_refused(subject: Subject, field: str) -> None:
    body = json.dumps({**json.loads(OF_JAVA), field: -5}).encode()
    assert await create(subject, body) == ResponseCode.SYSTEM_ERROR
    assert subject.parts.subscription_groups.get("group") is None


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [({}, True), ({"remove_offset": True}, False), ({"clean_offset": True}, False)],
)
async def test_offsets_of_a_deleted_group_go_if_asked_for(
    subject: Subject, fields: dict[str, bool], is_kept: bool
) -> None:
    await create(subject)
    subject.parts.deliveries.consumer_offsets.put("T", "group", 3, 1)
    subject.parts.deliveries.consumer_offsets.put("T", "other", 3, 1)
    header = broker_subject.with_fields(GroupNameHeader(group_name="group"), fields)
    reply = await subject.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
    assert reply.code == ResponseCode.SUCCESS
    assert (subject.parts.deliveries.consumer_offsets.get("T", "group", 3) == 1) is is_kept
    assert subject.parts.deliveries.consumer_offsets.get("T", "other", 3) == 1


async def test_a_slave_has_its_groups_from_its_master(tmp_path: Path) -> None:
    async with broker_subject.running(
        tmp_path, store={"broker_role": BrokerRole.SLAVE}, broker_id=1
    ) as subject:
        assert await create(subject) == ResponseCode.SYSTEM_ERROR


# --- of 5.x -----------------------------------------------------------------

# As mqadmin 5.5.0 sends it.
OF_JAVA_5 = {
    "attributes": {"+priority.factor": "50"},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": True,
    "consumeTimeoutMinute": 7,
    "groupName": "group",
    "groupRetryPolicy": {
        "exponentialRetryPolicy": {"initial": 5000, "max": 7200000, "multiplier": 2},
        "type": "EXPONENTIAL",
    },
    "groupSysFlag": 2,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "subscriptionDataSet": [{"expression": "*", "expressionType": "TAG", "topic": "T"}],
    "whichBrokerWhenConsumeSlowly": 1,
}


async def test_what_5x_says_of_a_group_is_kept_and_told(tmp_path: Path) -> None:
    expected = OF_JAVA_5 | {"attributes": {"priority.factor": "50"}}
    async with broker_subject.running(tmp_path) as subject:
        assert await create(subject, json.dumps(OF_JAVA_5).encode()) == ResponseCode.SUCCESS
    saved = json.loads((tmp_path / "config/subscriptionGroup.json").read_text())
    assert saved["subscriptionGroupTable"]["group"] == expected
    async with broker_subject.running(tmp_path) as subject:
        header = GroupHeader(group="group")
        reply = await subject.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        assert json.loads(reply.body) == expected


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"attributes": {"+color": "red"}}, "unsupported key: color"),
        ({"attributes": {"+priority.factor": "101"}}, "allowed: 0 to 100"),
        ({"attributes": {"priority.factor": "1"}}, "only add attribute is supported"),
        ({"groupRetryPolicy": {"type": "NEVER"}}, "allowed: EXPONENTIAL, CUSTOMIZED"),
    ],
)
async def test_what_5x_cannot_mean_is_refused(
    subject: Subject, fields: dict[str, object], why: str
) -> None:
    body = json.dumps(OF_JAVA_5 | fields).encode()
    reply = await subject.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert why in (reply.remark or "")
    assert subject.parts.subscription_groups.get("group") is None


async def forbid(subject: Subject, topic: str, readable: bool | None) -> bool:
    header = GroupForbiddenHeader(group="consumers", topic=topic, readable=readable)
    reply = await subject.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
    found = json.loads(reply.body)
    assert (found["group"], found["topic"]) == ("consumers", topic)
    return bool(found["readable"])


async def test_a_group_may_be_kept_from_a_topic(tmp_path: Path) -> None:
    async with broker_subject.running(tmp_path) as subject:
        await subject.send("T")
        for _ in range(3):  # the kernel answers the later ones
            assert (await subject.pull("T")).code == ResponseCode.SUCCESS
        assert await forbid(subject, "T", None)
        assert not await forbid(subject, "T", False)
        assert not await forbid(subject, "U", False)
        reply = await subject.pull("T")
        assert reply.code == ResponseCode.NO_PERMISSION
        assert reply.remark == "the consumer group[consumers] is forbidden for topic[T]"
        assert reply.ext_fields == {"forbiddenType": "5"}
        assert (await subject.pull("T", consumer_group="other")).code == ResponseCode.SUCCESS
    async with broker_subject.running(tmp_path) as subject:
        assert (await subject.pull("T")).code == ResponseCode.NO_PERMISSION
        reply = await subject.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        # Bit 2 is reading: PermName.INDEX_PERM_READ.
        assert json.loads(reply.body)["forbiddenTable"] == {"consumers": {"T": 4, "U": 4}}
        assert await forbid(subject, "T", True)
        assert (await subject.pull("T")).code == ResponseCode.SUCCESS
        assert not await forbid(subject, "U", None), "Java forgets this one too"
        await subject.ask(
            RequestCode.DELETE_SUBSCRIPTIONGROUP, GroupNameHeader(group_name="consumers")
        )
        assert await forbid(subject, "U", None)


async def test_a_group_may_be_kept_from_broadcasting(subject: Subject) -> None:
    await create(subject)  # with consumeBroadcastEnable false
    one = SubscriptionData(topic="T", sub_string="*", sub_version=1)
    for model, code in (
        ("CLUSTERING", ResponseCode.SUCCESS),
        ("BROADCASTING", ResponseCode.NO_PERMISSION),
    ):
        data = ConsumerData(
            consume_from_where="CONSUME_FROM_LAST_OFFSET", consume_type="CONSUME_PASSIVELY",
            group_name="group", message_model=model, subscription_data_set=[one], unit_mode=False,
        )  # fmt: skip
        body = HeartbeatData(client_id="one", consumer_data_set=[data], producer_data_set=[])
        await subject.tell(RequestCode.HEART_BEAT, body)
        reply = await subject.pull("T", 3, sys_flag=0, consumer_group="group")
        assert reply.code == code
    assert reply.remark == "the consumer group[group] can not consume by broadcast way"
    assert reply.ext_fields == {"forbiddenType": "4"}
