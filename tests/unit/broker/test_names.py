"""Names of topics and groups that clients make: RocketMQ's letters and lengths, at every request.

The letters are those of 4.9.7 ``TopicValidator``; 255 those of a group in ``Validators``.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import broker_subject
from broker_subject import Subject
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    CloneGroupOffsetHeader,
    GroupForbiddenHeader,
    PopMessageHeader,
    SendBackHeader,
    UpdateConsumerOffsetHeader,
)
from reput.store.table_files import SubscriptionGroup

BAD_GROUPS = ["../../g", "a\nb", 'a"b', "a b", "a.b", "\x01", "ä", "g" * 256, " "]
BAD_TOPICS = ["../T", "a\nb", "a.b", "T" * 128, " "]
POP_HANDLE = "0 1700000000000 60000 0 0 broker-a 0 0"


def heartbeat(*groups: str, topics: tuple[str, ...] = ("T",), client_id: str = "c") -> bytes:
    """Return the body of 34, as JSON and not as what our encoder would let through."""
    subscriptions = [{"topic": one, "subString": "*", "subVersion": 1} for one in topics]
    return json.dumps(
        {
            "clientID": client_id,
            "consumerDataSet": [
                {
                    "groupName": one,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": subscriptions,
                }
                for one in groups
            ],
        }
    ).encode()


async def beat(subject: Subject, *groups: str, **more: Any) -> Command:
    return await subject.ask(RequestCode.HEART_BEAT, body=heartbeat(*groups, **more))


async def named(subject: Subject, code: int, group: str) -> Command:
    """Send a request that names a group."""
    if code == RequestCode.HEART_BEAT:
        return await beat(subject, group)
    if code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
        return await subject.ask(code, body=json.dumps({"groupName": group}).encode())
    if code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST:
        wanted = {"groupConfigList": [{"groupName": "good"}, {"groupName": group}]}
        return await subject.ask(code, body=json.dumps(wanted).encode())
    if code == RequestCode.PULL_MESSAGE:
        return await subject.pull("T", consumer_group=group)
    if code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        body = {"consumerGroup": group, "clientId": "c", "mqSet": []}
        return await subject.ask(code, body=json.dumps(body).encode())
    if code == RequestCode.QUERY_ASSIGNMENT:
        body = {"consumerGroup": group, "clientId": "c", "topic": "T"}
        return await subject.ask(code, body=json.dumps(body).encode())
    if code == RequestCode.SET_MESSAGE_REQUEST_MODE:
        body = {"consumerGroup": group, "mode": "POP", "topic": "T"}
        return await subject.ask(code, body=json.dumps(body).encode())
    header = {
        RequestCode.UPDATE_CONSUMER_OFFSET: lambda: UpdateConsumerOffsetHeader(
            consumer_group=group, topic="T", queue_id=0, commit_offset=1
        ),
        RequestCode.CLONE_GROUP_OFFSET: lambda: CloneGroupOffsetHeader(
            src_group="g", dest_group=group, topic="T", offline=True
        ),
        RequestCode.POP_MESSAGE: lambda: PopMessageHeader(
            consumer_group=group, topic="T", queue_id=-1, max_msg_nums=1, invisible_time=60_000,
            poll_time=0, born_time=0, init_mode=0,
        ),
        RequestCode.ACK_MESSAGE: lambda: AckMessageHeader(
            consumer_group=group, topic="T", queue_id=0, extra_info=POP_HANDLE, offset=0
        ),
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: lambda: ChangeInvisibleTimeHeader(
            consumer_group=group, topic="T", queue_id=3, extra_info=POP_HANDLE, offset=0,
            invisible_time=1,
        ),
        RequestCode.CONSUMER_SEND_MSG_BACK: lambda: SendBackHeader(
            offset=0, group=group, delay_level=0
        ),
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: lambda: GroupForbiddenHeader(
            group=group, topic="T", readable=False
        ),
    }[RequestCode(code)]()  # fmt: skip
    return await subject.ask(code, header)


@pytest.mark.parametrize("group", BAD_GROUPS)
@pytest.mark.parametrize(
    "code",
    [
        RequestCode.HEART_BEAT,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.PULL_MESSAGE,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    ],
)
async def test_no_request_makes_a_group_of_another_name(
    subject: Subject, code: RequestCode, group: str
) -> None:
    broker = subject.broker
    topics, groups = broker.parts.topics.all(), broker.parts.subscription_groups.all()
    offsets = list(broker.parts.deliveries.consumer_offsets.all())
    reply = await named(subject, code, group)
    assert reply.code != ResponseCode.SUCCESS
    assert "group" in (reply.remark or "")
    assert "Error:" not in (reply.remark or "")  # refused, not failed
    assert broker.parts.topics.all() == topics
    assert broker.parts.subscription_groups.all() == groups
    assert list(broker.parts.deliveries.consumer_offsets.all()) == offsets
    assert broker.parts.subscription_groups.table.all_forbidden() == {}
    assert broker.parts.request_modes.table.count == 0


async def test_a_group_of_lone_surrogates_is_refused(subject: Subject) -> None:
    body = heartbeat("X").replace(b'"X"', b'"\\ud800"')
    reply = await subject.ask(RequestCode.HEART_BEAT, body=body)
    assert reply.code != ResponseCode.SUCCESS
    assert (await subject.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).code == ResponseCode.SUCCESS
    assert not [one for one in subject.parts.topics.all() if not one.isprintable()]


async def test_of_a_heartbeat_with_a_bad_name_nothing_is_taken(subject: Subject) -> None:
    reply = await beat(subject, "good", "a b")
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert subject.parts.groups.consumer("good") is None
    assert subject.parts.subscription_groups.get("good") is None


@pytest.mark.parametrize("group", ["g", "%a|b-c_9", "CID_RMQ_SYS_x", "g" * 255])
async def test_names_that_clients_of_java_may_have_are_taken(subject: Subject, group: str) -> None:
    assert (await beat(subject, group)).code == ResponseCode.SUCCESS
    assert subject.parts.subscription_groups.get(group) is not None
    # A topic has at most 255 letters, with its prefix.
    has_topic = subject.parts.topics.get(f"%RETRY%{group}") is not None
    assert has_topic is (len(group) <= 248)


async def test_groups_of_other_names_that_are_there_go_on(tmp_path: Path) -> None:
    for _ in range(2):
        async with broker_subject.running(tmp_path) as subject:
            await subject.send("T", queue_id=3)
            table = subject.parts.subscription_groups.table
            table.put(SubscriptionGroup(name="old group"), 0)
            assert (await beat(subject, "old group")).code == ResponseCode.SUCCESS
            assert (await subject.pull("T", 3, consumer_group="old group")).code == 0
            # No topic is made of it: it could have none in any version.
            assert subject.parts.topics.get("%RETRY%old group") is None


@pytest.mark.parametrize("topic", BAD_TOPICS)
async def test_no_request_makes_a_topic_of_another_name(subject: Subject, topic: str) -> None:
    known = subject.parts.topics.all()
    assert (await subject.send(topic)).code != ResponseCode.SUCCESS
    settings = {
        "topicName": topic, "order": False, "perm": 6, "readQueueNums": 1, "writeQueueNums": 1,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
    }  # fmt: skip
    body = json.dumps({"topicConfigList": [{**settings, "topicName": "Good"}, settings]}).encode()
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    assert (await subject.ask(code, body=body)).code != ResponseCode.SUCCESS
    assert subject.parts.topics.all() == known


async def test_topics_of_groups_are_checked_where_brokers_make_them(subject: Subject) -> None:
    topics = subject.parts.topics
    for name in ("%RETRY%a\nb_T", '%DLQ%a"b', "%RETRY%../x", "%RETRY%" + "g" * 249):
        with pytest.raises(Exception, match="cannot be created"):
            topics.for_group(name, 1, 6, 0)
        assert topics.get(name) is None
    for name in ("%RETRY%g+T", "%RETRY%g_T", "%DLQ%g"):
        assert topics.for_group(name, 1, 6, 0).name == name


async def test_text_that_clients_say_of_themselves_is_checked(subject: Subject) -> None:
    for more in ({"client_id": "a\nb"}, {"client_id": "c" * 1025}, {"topics": ("a\0b",)}):
        assert (await beat(subject, "g", **more)).code != ResponseCode.SUCCESS
        assert subject.parts.groups.consumer("g") is None
