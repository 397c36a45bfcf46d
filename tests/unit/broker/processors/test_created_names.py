"""Names of topics and groups that clients create: RocketMQ's letters and lengths, in every request.

The letters are those of ``TopicValidator`` in 4.9.7; the limit of 255 for groups is in
``Validators``.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import world
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.store.tables.groups import SubscriptionGroup
from world import Subject

BAD_GROUPS = ["../../g", "a\nb", 'a"b', "a b", "a.b", "\x01", "ä", "g" * 256, " "]
BAD_TOPICS = ["../T", "a\nb", "a.b", "T" * 128, " "]


def heartbeat(*groups: str, topics: tuple[str, ...] = ("T",), client_id: str = "c") -> bytes:
    """Return the body of 34 as plain JSON, without the checks of our encoder."""
    subscriptions = [{"topic": topic, "subString": "*", "subVersion": 1} for topic in topics]
    return json.dumps(
        {
            "clientID": client_id,
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": subscriptions,
                }
                for group in groups
            ],
        }
    ).encode()


async def beat(subject: Subject, *groups: str, **more: Any) -> Command:
    return await subject.ask(RequestCode.HEART_BEAT, body=heartbeat(*groups, **more))


async def test_groups_with_other_names_are_not_created(subject: Subject) -> None:
    """``group/names.script`` has every request that could create a group."""
    topics, groups = subject.parts.topics.all(), subject.parts.subscription_groups.all()
    for group in BAD_GROUPS:
        for reply in (await beat(subject, group), await subject.pull("T", consumer_group=group)):
            assert reply.code != ResponseCode.SUCCESS, group
            assert "group" in (reply.remark or "")
            assert "Error:" not in (reply.remark or "")  # refused, not failed
    assert subject.parts.topics.all() == topics
    assert subject.parts.subscription_groups.all() == groups


async def test_a_group_of_lone_surrogates_is_refused(subject: Subject) -> None:
    body = heartbeat("X").replace(b'"X"', b'"\\ud800"')
    reply = await subject.ask(RequestCode.HEART_BEAT, body=body)
    assert reply.code != ResponseCode.SUCCESS
    assert (await subject.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).code == ResponseCode.SUCCESS
    assert not [topic for topic in subject.parts.topics.all() if not topic.isprintable()]


async def test_names_allowed_by_java_clients_are_accepted(subject: Subject) -> None:
    for group in ("g", "%a|b-c_9", "CID_RMQ_SYS_x", "g" * 255):
        assert (await beat(subject, group)).code == ResponseCode.SUCCESS, group
        assert subject.parts.subscription_groups.get(group) is not None
        # A topic has at most 255 letters, with its prefix.
        has_topic = subject.parts.topics.get(f"%RETRY%{group}") is not None
        assert has_topic is (len(group) <= 248)


async def test_existing_groups_with_other_names_keep_working(tmp_path: Path) -> None:
    for _ in range(2):
        async with world.broker(tmp_path) as subject:
            await subject.send("T", queue_id=3)
            table = subject.parts.subscription_groups.table
            table.put(SubscriptionGroup(name="old group"), 0)
            assert (await beat(subject, "old group")).code == ResponseCode.SUCCESS
            assert (await subject.pull("T", 3, consumer_group="old group")).code == 0
            # It gets no topic: none of that name was ever possible.
            assert subject.parts.topics.get("%RETRY%old group") is None


async def test_no_request_creates_a_topic_with_another_name(subject: Subject) -> None:
    known = subject.parts.topics.all()
    settings = {
        "order": False, "perm": 6, "readQueueNums": 1, "writeQueueNums": 1,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
    }  # fmt: skip
    for topic in BAD_TOPICS:
        assert (await subject.send(topic)).code != ResponseCode.SUCCESS, topic
        topics = [{**settings, "topicName": name} for name in ("Good", topic)]
        body = json.dumps({"topicConfigList": topics}).encode()
        reply = await subject.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        assert reply.code != ResponseCode.SUCCESS, topic
        assert subject.parts.topics.all() == known


async def test_topics_of_groups_are_checked_when_they_are_created(subject: Subject) -> None:
    topics = subject.parts.topics
    for name in ("%RETRY%a\nb_T", '%DLQ%a"b', "%RETRY%../x", "%RETRY%" + "g" * 249):
        with pytest.raises(Exception, match="cannot be created"):
            topics.for_group(name, 1, 6, 0)
        assert topics.get(name) is None
    for name in ("%RETRY%g+T", "%RETRY%g_T", "%DLQ%g"):
        assert topics.for_group(name, 1, 6, 0).name == name


async def test_text_that_clients_send_about_themselves_is_checked(subject: Subject) -> None:
    for more in ({"client_id": "a\nb"}, {"client_id": "c" * 1025}, {"topics": ("a\0b",)}):
        assert (await beat(subject, "g", **more)).code != ResponseCode.SUCCESS
        assert subject.parts.groups.consumer("g") is None
